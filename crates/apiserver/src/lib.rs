//! An embedded Kubernetes API server, in memory: a tower service for kube clients, and HTTP for kubectl.
//!
//! It knows nothing of Karpenter. One generic, schema-driven path serves every kind; what a built-in or custom kind
//! adds is data and small pure functions. Time, ids and randomness come from an [`Environment`], so the same requests
//! give the same answers, byte for byte.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! use karpenter_apiserver::{ApiServer, Options, Seeded};
//!
//! let server = ApiServer::new(Seeded::default(), Options::default());
//! let client = kube::Client::new(server.service(), "default");
//! # drop(client);
//! # }
//! ```
//!
//! A request goes through these modules, from top to bottom:
//!
//! | | |
//! |---|---|
//! | `serve`, `service`, `body` | bytes in, bytes out; who is asked |
//! | `request`, `negotiate`, `registry` | what is asked for, and of which resource |
//! | `list`, `watch`, `discovery`, `openapi` | what is read |
//! | `decode`, `json`, `object_meta` | bodies into objects |
//! | `create`, `update`, `patch`, `delete`, `scale`, `binding`, `eviction`, `access` | what is written |
//! | `meta`, `builtin`, `schema`, `crd` | the rules objects follow |
//! | `garbage`, `namespaces`, `definitions` | what follows from a write |
//! | `server`, `store`, `bell`, `object`, `snapshot`, `history` | what is remembered, and who is told |

mod access;
mod answer;
mod bell;
mod binding;
mod body;
mod builtin;
mod continue_token;
mod crd;
mod create;
mod decode;
mod definitions;
mod delete;
mod discovery;
mod environment;
mod eviction;
mod field_error;
mod garbage;
mod go_format;
mod history;
mod json;
mod kubeconfig;
mod list;
mod meta;
mod namespaces;
mod negotiate;
mod object;
mod object_meta;
mod openapi;
mod patch;
mod registry;
mod request;
mod scale;
mod schema;
mod selection;
mod serve;
mod server;
mod service;
mod snapshot;
mod status;
mod store;
mod update;
mod watch;

pub use bell::{Bell, Listener};
pub use body::Body;
pub use environment::{Environment, Seeded};
pub use history::{Change, Forgotten};
pub use kubeconfig::kubeconfig;
pub use serve::{ServeError, serve};
pub use server::{ApiServer, Options};
pub use service::ApiService;
pub use snapshot::Snapshot;
