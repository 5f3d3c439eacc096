//! Controllers of NodePools: their hash, their books, whether they are fit for use.

pub(crate) mod health;
