//! The engine from outside: snapshots in, plans out.

mod cluster;
mod disruption;
mod placing;
mod shortcuts;
