//! Where memory comes from, and when it goes back.

use std::ffi::{c_int, c_long};

/// glibc's takes nearly half the time of a small write in the embedded server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// mimalloc's number for how long freed memory is kept for the next to come, in milliseconds.
const PURGE_DELAY: c_int = 15;

#[allow(unsafe_code)]
// SAFETY: as in mimalloc.h, whose enumerations are ints.
unsafe extern "C" {
    /// Sets an option by its number; numbers that mean nothing are ignored.
    safe fn mi_option_set(option: c_int, value: c_long);
}

/// For whoever runs for months: what a burst of pods took is given back to the system when it is freed, and not whenever the next
/// burst comes. Short commands are faster with what they have.
pub(crate) fn give_back_at_once() {
    mi_option_set(PURGE_DELAY, 0);
}
