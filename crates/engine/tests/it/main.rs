//! The engine from outside: snapshots in, plans out.

mod bad_input;
mod beyond_the_oracle;
mod cluster;
mod disruption;
mod domains;
mod placing;
mod random;
mod reasons;
mod shortcuts;
