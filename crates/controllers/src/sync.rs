//! Whether decisions can be made now: everything in the cluster has been seen, and no launch is still open.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use karpenter_runtime::clock::Clock;
use karpenter_runtime::logging;
use karpenter_runtime::metrics::{Gauge, Registry};

use crate::context::Context;

/// Waiting longer than this is worth a word, and again after each of the second.
const WORTH_A_WORD: Duration = Duration::from_secs(30);
const NEXT_WORD: Duration = Duration::from_secs(10);

/// Tells whether the state is complete; clones share what they remember.
#[derive(Clone)]
pub(crate) struct Sync {
    context: Context,
    waiting: Arc<Mutex<Waiting>>,
    synced: Gauge,
    unsynced_seconds: Gauge,
}

#[derive(Default)]
struct Waiting {
    since: Option<Timestamp>,
    said: Option<Timestamp>,
}

impl Sync {
    pub(crate) fn new(context: &Context) -> Self {
        let registry: &Registry = &context.environment.registry;
        let nodes = registry.gauge("karpenter_cluster_state_node_count", "Nodes in the cluster state.", &[]);
        let cluster = context.cluster.clone();
        registry.before_encode(move || {
            nodes.set(&[], cluster.read(|cluster| cluster.machine_count()) as f64);
        });
        let gauge = |name: &str, help: &str| registry.gauge(name, help, &[]).with(&[]);
        Self {
            context: context.clone(),
            waiting: Arc::default(),
            synced: gauge(
                "karpenter_cluster_state_synced",
                "1 when the cluster state holds every NodeClaim and Node of the API server and every launch is known, 0 otherwise.",
            ),
            unsynced_seconds: gauge(
                "karpenter_cluster_state_unsynced_time_seconds",
                "Seconds for which the cluster state has not been synced.",
            ),
        }
    }

    /// Whether decisions can be made.
    pub(crate) fn is_synced(&self) -> bool {
        let synced = self.look();
        self.synced.set(if synced { 1.0 } else { 0.0 });
        let now = self.context.now();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if synced {
            *waiting = Waiting::default();
            self.unsynced_seconds.set(0.0);
            return true;
        }
        let clock: &dyn Clock = &*self.context.environment.clock;
        let time = clock.since(*waiting.since.get_or_insert(now));
        if time > WORTH_A_WORD && waiting.said.is_none_or(|said| clock.since(said) > NEXT_WORD) {
            waiting.said = Some(now);
            tracing::error!(
                error = "waiting on cluster sync",
                duration = %logging::duration(Duration::from_secs(time.as_secs())),
                "cluster is waiting on sync for extended duration"
            );
        }
        self.unsynced_seconds.set(time.as_secs_f64());
        false
    }

    /// Whether everything was seen once, or is now.
    pub(crate) fn has_synced(&self) -> bool {
        self.context.cluster.read(|cluster| cluster.has_synced()) || self.is_synced()
    }

    fn look(&self) -> bool {
        let Context { stores, cluster, providers, .. } = &self.context;
        if !stores.are_synced() {
            return false;
        }
        if cluster.read(|cluster| cluster.has_synced()) {
            return cluster.read(|cluster| !cluster.has_unlaunched_claims());
        }
        let claims = stores.node_claims.list();
        let nodes = stores.nodes.list();
        let ours = claims.iter().filter(|claim| providers.for_claim(claim).is_ok());
        let claims = ours.filter_map(|claim| claim.metadata.name.as_deref());
        let nodes = nodes.iter().filter_map(|node| node.metadata.name.as_deref());
        cluster.update(|cluster| cluster.synced(claims, nodes))
    }
}
