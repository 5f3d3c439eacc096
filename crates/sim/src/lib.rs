//! The world around Karpenter, simulated on the embedded API server under virtual time.
//!
//! A [`World`] has the components of a cluster that Karpenter meets: a pod scheduler, kubelets, the controllers of
//! kube-controller-manager it can see, a cloud that sells machines. Each behaves like the real one as far as the API shows it,
//! and shares no code with what it helps to test. Programs under test run as [`Process`]es, behind faults, and may be
//! killed at any moment. Every write is on a [`Tape`] and checked against [`invariants`].
//!
//! Everything random follows from one seed and everything runs on one thread under tokio's paused clock: the same seed gives
//! the same tape, byte for byte.
//!
//! ```
//! use std::time::Duration;
//! use karpenter_sim::{World, WorldOptions, in_virtual_time};
//!
//! in_virtual_time(async {
//!     let world = World::new(WorldOptions { seed: 7, ..WorldOptions::default() }).await?;
//!     world.create(serde_json::json!({
//!         "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
//!         "status": {"capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"}},
//!     })).await?;
//!     let ready = |objects: &karpenter_sim::Objects| {
//!         objects.node("n").is_some_and(|node| karpenter_sim::objects::node_ready(node) == Some("True"))
//!     };
//!     world.wait_until("the node is ready", Duration::from_secs(60), ready).await?;
//!     Ok::<_, karpenter_sim::Trouble>(())
//! }).expect("a runtime").expect("a ready node");
//! ```
//!
//! | Module | What it is |
//! |---|---|
//! | [`world`] | everything together; time, waiting |
//! | [`cluster`], [`objects`], [`tape`] | the server, what is in it, what was written |
//! | `scheduler` | places pods |
//! | `kubelet`, `node_lifecycle`, `taint_eviction`, `pod_gc` | nodes and the pods on them |
//! | `workloads`, `disruption_budgets` | Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs; budgets |
//! | `volume_binder`, `attach_detach` | volumes |
//! | [`cloud`], [`inventory`] | machines |
//! | [`cloudstack`] | Apache CloudStack's management server |
//! | [`cluster_api`] | Cluster API's controllers and an infrastructure for them |
//! | [`faults`], [`process`] | what goes wrong; programs that are killed and started again |
//! | [`invariants`] | what must hold all the same |
//! | [`traffic`], [`chance`] | what users do, and everything else that is drawn |

mod actor;
mod attach_detach;
pub mod chance;
pub mod cloud;
pub mod cloudstack;
pub mod cluster;
pub mod cluster_api;
mod disruption_budgets;
pub mod faults;
mod gate;
mod hands;
pub mod invariants;
pub mod inventory;
pub mod kubelet;
mod node_lifecycle;
pub mod objects;
mod placement;
mod pod_gc;
pub mod process;
mod scheduler;
mod selection;
mod taint_eviction;
pub mod tape;
pub mod traffic;
mod volume_binder;
mod wire;
mod workloads;
pub mod world;

pub use cluster::Cluster;
pub use objects::Objects;
pub use process::Process;
pub use tape::Tape;
pub use world::{Trouble, World, WorldOptions, in_virtual_time};
