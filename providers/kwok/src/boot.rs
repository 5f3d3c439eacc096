//! Nodes that take their time: a NodeClass with `nodeRegistrationDelay` has its instances join some time after they were
//! launched, as real machines do.
//!
//! A boot lives in memory. After a restart [`Boots::resume`] finds the launched NodeClaims that still have no Node and goes on
//! where they are in their delay, so that no NodeClaim waits for a Node that nobody will make.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use karpenter_api::conditions::HasConditions as _;
use karpenter_api::{ConditionStatus, NodeClaim, nodeclaim};
use karpenter_cloudprovider::error::ProviderError;
use karpenter_runtime::clock::SharedClock;
use kube::ResourceExt as _;
use tokio::task::AbortHandle;

use crate::client::Wire;
use crate::instances;
use crate::instancetypes::Catalogue;
use crate::nodeclass::KWOKNodeClass;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Boots under way.
pub(crate) struct Boots {
    wire: Wire,
    catalogue: Arc<Catalogue>,
    clock: SharedClock,
    /// By the NodeClaim's UID.
    under_way: Mutex<BTreeMap<String, AbortHandle>>,
}

impl Boots {
    pub(crate) fn new(wire: Wire, catalogue: Arc<Catalogue>, clock: SharedClock) -> Self {
        Self { wire, catalogue, clock, under_way: Mutex::default() }
    }

    /// Has the NodeClaim's Node join after `delay`, unless it is on its way already.
    pub(crate) fn start(self: &Arc<Self>, claim: &NodeClaim, delay: Duration) {
        let Some(uid) = claim.uid() else { return };
        let mut under_way = self.lock();
        if under_way.contains_key(&uid) {
            return;
        }
        let (boots, name, key) = (Arc::clone(self), claim.name_any(), uid.clone());
        let task = tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            boots.join(&name, &key).await;
            boots.lock().remove(&key);
        });
        under_way.insert(uid, task.abort_handle());
    }

    /// Gives up the NodeClaim's boot.
    pub(crate) fn cancel(&self, claim: &NodeClaim) {
        if let Some(task) = claim.uid().and_then(|uid| self.lock().remove(&uid)) {
            task.abort();
        }
    }

    /// Makes the Node, trying for as long as the NodeClaim wants it.
    async fn join(&self, name: &str, uid: &str) {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.try_join(name, uid).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::error!(%error, NodeClaim = name, "failed creating node from nodeclaim");
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn try_join(&self, name: &str, uid: &str) -> Result<(), ProviderError> {
        let wanted = |claim: &NodeClaim| {
            claim.metadata.uid.as_deref() == Some(uid) && claim.metadata.deletion_timestamp.is_none()
        };
        match self.wire.claim(name).await?.filter(wanted) {
            Some(claim) => {
                let node = instances::node(&claim, &self.catalogue)?;
                self.wire.make_node(&node).await.map(drop)
            }
            None => Ok(()),
        }
    }

    /// Goes on with the boots of the process that was here before. How many there were.
    pub(crate) async fn resume(self: &Arc<Self>) -> Result<usize, ProviderError> {
        let mut resumed = 0;
        for claim in self.wire.claims().await?.iter().filter(|claim| awaits_node(claim)) {
            let since = claim.condition(nodeclaim::LAUNCHED).and_then(|c| c.last_transition_time.clone());
            let passed = since.map_or(Duration::ZERO, |since| self.clock.since(since.0));
            let node_class = self.wire.node_class(&claim.spec.node_class_ref.name).await?;
            let delay = node_class.as_ref().map_or(Duration::ZERO, KWOKNodeClass::registration_delay);
            self.start(claim, delay.saturating_sub(passed));
            resumed += 1;
        }
        Ok(resumed)
    }

    /// Resumes boots, however long the server takes to answer.
    pub(crate) async fn resume_all(self: &Arc<Self>) {
        let mut pause = FIRST_PAUSE;
        while let Err(error) = self.resume().await {
            tracing::error!(%error, "looking for launched nodeclaims without a node failed, will retry");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, AbortHandle>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether this NodeClaim is an instance of ours that has not been seen as a Node yet.
fn awaits_node(claim: &NodeClaim) -> bool {
    instances::provider_id(claim).is_some_and(|id| id.starts_with(instances::ID_PREFIX))
        && claim.condition_status(nodeclaim::REGISTERED) != ConditionStatus::True
        && claim.metadata.deletion_timestamp.is_none()
}
