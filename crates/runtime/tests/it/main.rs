//! The runtime on an embedded API server, under paused time.

mod cluster;
mod informing;
mod leading;
