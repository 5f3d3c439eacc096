//! The server as its clients see it.

mod cluster;
mod consequences;
mod fuzz_requests;
mod lists;
mod objects;
mod over_http;
mod parts;
mod tape;
mod watching;
