//! The server as its clients see it.

mod cluster;
mod objects;
