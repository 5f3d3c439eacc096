//! Writes on NodeClaims when a pod last came to their node or left it (rules L7.1–L7.3): what `consolidateAfter` counts from.
//!
//! Pods that were there before the program started are news only if they came after what was last written: a restart does not
//! make every node in the cluster look busy.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_api::NodeClaim;
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::informer::Delta;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use karpenter_runtime::ttl_cache::TtlCache;
use karpenter_runtime::writes::{self, Lock};
use kube::Api;

use crate::context::Context;
use crate::pods;
use crate::seen_pod::{SeenPod, Since};
use crate::watches::Watches;

/// Events so close together are one. Shorter than what consolidation waits before it acts, so that it sees every pod that came.
const DEDUPE: Duration = Duration::from_secs(10);

/// A pod something happened to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PodEvent {
    pod: ObjectKey,
    /// Whether it was there before the watch began.
    initial: bool,
}

struct PodEvents {
    context: Context,
    claims: Api<NodeClaim>,
    /// UIDs of claims written to of late: the watch may not have brought that back yet.
    written: Mutex<TtlCache<String, ()>>,
}

/// Makes the controller part of the program.
pub(crate) fn register(context: &Context, watches: &mut Watches, program: &mut Program) {
    let events = PodEvents {
        context: context.clone(),
        claims: Api::all(context.client.clone()),
        written: Mutex::new(TtlCache::new(DEDUPE)),
    };
    let controller = Controller::builder("nodeclaim.podevents", events)
        .about("", "Pod", |event| event.pod.clone())
        .build(&context.environment);
    watches.pods.feed(&controller.queue(), |delta| occurrence(delta).into_iter().collect());
    context.run(program, controller);
}

/// What of a pod's change concerns its node: it came, ended or is ending.
fn occurrence(delta: &Delta<SeenPod>) -> Option<PodEvent> {
    let pod = delta.object();
    let bound = pod.node.is_some();
    let (happened, initial) = match delta {
        Delta::Added { initial, .. } => (bound, *initial),
        Delta::Updated { old, new } => {
            let came = old.node.is_none();
            let ended = !pods::is_terminal(old) && pods::is_terminal(new);
            let ending = !pods::is_terminating(old) && pods::is_terminating(new);
            (bound && (came || ended || ending), false)
        }
        Delta::Deleted { .. } => (false, false),
    };
    (happened && !pod.owned_by.daemon_set).then(|| PodEvent { pod: pod.key.clone(), initial })
}

impl Reconciler for PodEvents {
    type Key = PodEvent;

    async fn reconcile(&self, event: PodEvent) -> ReconcileResult {
        let stores = &self.context.stores;
        let Some(pod) = stores.pods.get(&event.pod) else { return Ok(Outcome::Done) };
        let node = pod.node.as_deref().and_then(|name| stores.nodes.get(&ObjectKey::cluster(name)));
        let Some(claim) = node.and_then(|node| stores.claim_of(&node).one()) else {
            return Ok(Outcome::Done);
        };
        if self.context.providers.for_claim(&claim).is_err() {
            return Ok(Outcome::Done);
        }
        let last = claim.status.as_ref().and_then(|status| status.last_pod_event_time.as_ref());
        if let Some(last) = last {
            let old_news = event.initial && bound_at(&pod).is_none_or(|bound| bound <= last.0);
            if old_news || self.context.environment.clock.since(last.0) < DEDUPE {
                return Ok(Outcome::Done);
            }
        }
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        if !self.written.lock().unwrap_or_else(PoisonError::into_inner).first_time(uid.clone()) {
            return Ok(Outcome::Done);
        }
        let mut noted = (*claim).clone();
        noted.status.get_or_insert_default().last_pod_event_time = Some(Time(self.context.undoubted_now()));
        if let Err(error) = writes::patch_status(&self.claims, &claim, &noted, Lock::None).await {
            self.written.lock().unwrap_or_else(PoisonError::into_inner).remove(&uid);
            return Err(error.into());
        }
        Ok(Outcome::Done)
    }
}

/// When the pod was given its node.
fn bound_at(pod: &SeenPod) -> Option<Timestamp> {
    pod.scheduled.and_then(|Since(time)| time)
}
