//! Karpenter's decisions: which pods go where, which NodeClaims to create, and why. Pure: no clock, no network, no async.
