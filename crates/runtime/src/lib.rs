//! What every controller stands on: time, queues, watches, leases, events, metrics, probes, logs, options.
//!
//! It knows Kubernetes' client and decides nothing. Everything here is deterministic under a paused tokio clock: time comes
//! from [`clock`], randomness from [`entropy`], nothing iterates a hash map, every `select!` has an order.
//!
//! | Module | What it is |
//! |---|---|
//! | [`environment`], [`clock`], [`entropy`] | what a part of the program is given: time, randomness, a metrics registry |
//! | [`work_queue`], [`rate_limit`] | what is to be reconciled, and when again |
//! | [`informer`], [`lenient`], [`store`], [`object_key`] | watches a kind, keeps it, tells what changed |
//! | [`controller`], [`error`], [`context`] | runs reconcilers |
//! | [`lease`], [`program`] | who leads; everything together, started and stopped in order |
//! | [`client`], [`road`], [`renewal`], [`writes`] | requests to the API server, throttled and counted; patches of what changed |
//! | [`compute`], [`ttl_cache`] | thinking beside the runtime; remembering for a while |
//! | [`events`], [`metrics`], [`logging`], [`probes`], [`http`] | what operators see |
//! | [`options`], [`go_duration`], [`surroundings`] | what users write, and where the program finds itself |

pub mod client;
pub mod clock;
pub mod compute;
pub mod context;
pub mod controller;
pub mod entropy;
pub mod environment;
pub mod error;
pub mod events;
pub mod http;
pub mod informer;
pub mod lease;
pub mod logging;
pub mod metrics;
pub mod object_key;
pub mod options;
pub mod otlp;
pub mod probes;
mod profiling;
pub mod program;
pub mod rate_limit;
pub mod renewal;
pub mod road;
pub mod store;
pub mod surroundings;
mod sync;
pub mod ttl_cache;
pub mod unread;
pub mod work_queue;
pub mod writes;

pub use karpenter_primitives::go_duration;
