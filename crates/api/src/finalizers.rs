//! The finalizer Karpenter holds objects with.

/// Holds a NodeClaim and its Node until pods are drained, volumes detached and the instance is gone.
pub const TERMINATION: &str = "karpenter.sh/termination";
