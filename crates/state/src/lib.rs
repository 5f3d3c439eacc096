//! A synchronous mirror of the cluster: objects go in one by one, an engine snapshot comes out.
//!
//! ```text
//! apply_pod, delete_node, … ──▶ Cluster ──▶ snapshot(now) ──▶ karpenter_engine::solve
//! ```
//!
//! The live controller feeds it from watches, `karpenter simulate` from files: the same code either way, so what is
//! simulated is what would happen. It remembers and never decides. Objects are kept as the engine's compact facts, the
//! originals are dropped: a pod of which there are thousands alike costs a few hundred bytes.
//!
//! | module | what it holds |
//! |---|---|
//! | `cluster` | the mirror: everything by kind and key, and the snapshot |
//! | `facts` | a whole cluster's pods and machines, read but not taken in yet |
//! | `machines` | Nodes and NodeClaims, paired by provider id |
//! | `memory` | what no object says: marks, nominations, when what was thought; whether everything has been seen |
//! | `pod_timings`, `pool_nodes` | parts of that memory: pods that wait, NodeClaims by NodePool |
//! | `buffers` | capacity buffers and their templates, as virtual pods |
//! | `convert`, `karpenter` | one object to the engine's facts: Kubernetes' kinds, Karpenter's kinds |

mod buffers;
mod cluster;
mod convert;
mod facts;
mod karpenter;
mod machines;
mod memory;
mod pod_timings;
mod pods;
mod pool_nodes;

pub use buffers::{
    MOST_REPLICAS, TemplateFacts, TemplateKind, TemplateRef, TemplateRefError, desired_replicas,
};
pub use cluster::{Cluster, Key};
pub use facts::Facts;
pub use memory::ConsolidationState;
pub use pod_timings::{PodTiming, PodTimings};
pub use pool_nodes::{PoolCounts, PoolNodes};
