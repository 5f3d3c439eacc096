//! The provider on the embedded API server, under paused time.

mod launching;
mod world;
