//! The commands of the `karpenter` program, as a library so that tests can run them in process.

pub mod simulate;
