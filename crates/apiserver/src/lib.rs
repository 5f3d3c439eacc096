//! An embedded Kubernetes API server, in memory: a tower service for kube clients, and HTTP for kubectl.
//!
//! It knows nothing of Karpenter. One generic, schema-driven path serves every kind.

mod builtin;
mod crd;
mod field_error;
mod go_format;
mod schema;
mod status;
