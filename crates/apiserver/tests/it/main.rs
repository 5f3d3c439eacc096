//! The server as its clients see it.

#![expect(clippy::unwrap_used, reason = "a test whose world cannot be set up has failed")]

mod cluster;
mod consequences;
mod fuzz_requests;
mod lists;
mod objects;
mod over_http;
mod parts;
mod tape;
mod watching;
