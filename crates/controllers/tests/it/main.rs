//! The controllers on the embedded API server, under virtual time.

mod mirror;
mod rig;
