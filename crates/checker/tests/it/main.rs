//! The checker against recorded decisions: Go Karpenter's own pass, and broken ones do not.

mod recorded;
