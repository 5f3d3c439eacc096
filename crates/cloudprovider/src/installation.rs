//! How a provider joins the program: what it is given, and what it brings besides itself.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use karpenter_runtime::environment::Environment;
use karpenter_runtime::events::Recorder;
use karpenter_runtime::options::Options;
use tokio_util::sync::CancellationToken;

use crate::provider::CloudProvider;

/// What a provider is given.
#[derive(Clone)]
pub struct Surroundings {
    /// Requests to the cluster whose pods are served.
    pub client: kube::Client,
    /// Clock, randomness, metrics.
    pub environment: Environment,
    /// What the program was told.
    pub options: Arc<Options>,
    /// Whom to tell what happened.
    pub recorder: Recorder,
}

/// A provider and what must run with it, most of it while the program leads: its NodeClass controller, its own watches.
pub struct Installation {
    /// The provider.
    pub provider: Arc<dyn CloudProvider>,
    /// What runs with it.
    pub parts: Vec<Part>,
}

/// Something that runs until it is stopped.
pub struct Part {
    /// Its name, for messages.
    pub name: String,
    /// Whether it runs on replicas that stand by as well.
    pub always: bool,
    /// Runs it.
    pub run: Box<dyn FnOnce(CancellationToken) -> BoxFuture<'static, ()> + Send>,
}

impl Part {
    /// Of a controller, an informer or any other runnable.
    pub fn new(
        name: impl Into<String>,
        run: impl FnOnce(CancellationToken) -> BoxFuture<'static, ()> + Send + 'static,
    ) -> Self {
        Self { name: name.into(), always: false, run: Box::new(run) }
    }

    /// Of what serves others, whether this replica leads or not. It must decide nothing.
    pub fn always(
        name: impl Into<String>,
        run: impl FnOnce(CancellationToken) -> BoxFuture<'static, ()> + Send + 'static,
    ) -> Self {
        Self { always: true, ..Self::new(name, run) }
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Part").field(&self.name).finish()
    }
}

/// Why a provider cannot start: what is wrong with its settings or surroundings, and the remedy.
#[derive(Debug, thiserror::Error)]
#[error("provider {provider} cannot start: {problem}")]
pub struct InstallError {
    /// Which provider.
    pub provider: &'static str,
    /// What is wrong and what to do.
    pub problem: String,
}
