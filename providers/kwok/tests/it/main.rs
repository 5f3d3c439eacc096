//! The provider on the embedded API server, under paused time.

mod faults;
mod launching;
mod world;
