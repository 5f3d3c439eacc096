//! Kubernetes quantities, label selectors and name syntax, shared by the API types and the embedded API server.
