//! The server as its clients see it.

mod cluster;
mod fuzz_requests;
mod lists;
mod objects;
mod tape;
mod watching;
