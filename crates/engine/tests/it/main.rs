//! The engine from outside: snapshots in, plans out.

mod cluster;
mod placing;
mod shortcuts;
