//! The second stage of a NodeClaim: finds its Node, gives it what the claim says and takes the unregistered taint off, in one
//! write (rules L1.20–L1.27).

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use karpenter_api::conditions::ConditionStatus;
use karpenter_api::nodeclaim::REGISTERED;
use karpenter_api::{NodeClaim, finalizers, labels, taints};
use karpenter_cloudprovider::HookResult;
use karpenter_runtime::controller::Outcome;
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::events::{Event, EventType, reference};
use karpenter_runtime::logging;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::writes::{self, Lock, Written};
use kube::{Api, Resource as _};

use super::lifecycle::{Lifecycle, News, Pass, Stage};
use crate::pairing::Paired;
use crate::planted::{Bug, is_planted};
use crate::totals::label;

/// What the hooks say together.
struct Hooks {
    /// Those that hold the node back, in the order they are registered in.
    pending: Vec<String>,
    outcome: Outcome,
    errors: Vec<ReconcileError>,
}

impl Lifecycle {
    pub(super) async fn registration(&self, pass: &mut Pass) -> Result<Stage, ReconcileError> {
        let known = pass.conditions(&self.context).get(REGISTERED).cloned().unwrap_or_default();
        if known.status != ConditionStatus::Unknown {
            let mut conditions = pass.conditions(&self.context);
            conditions.set(REGISTERED, known.status, known.reason(), known.message());
            return Ok(Stage::Next(Outcome::Done));
        }
        let node = match self.context.stores.node_of(&pass.claim) {
            Paired::One(node) => node,
            Paired::None => {
                let mut conditions = pass.conditions(&self.context);
                conditions.set_unknown_with_reason(
                    REGISTERED,
                    "NodeNotFound",
                    "Node not registered with cluster",
                );
                return Ok(Stage::Next(Outcome::Done));
            }
            Paired::Several => {
                let mut conditions = pass.conditions(&self.context);
                conditions.set_false(
                    REGISTERED,
                    "MultipleNodesFound",
                    "Invariant violated, matched multiple nodes",
                );
                return Ok(Stage::Next(Outcome::Done));
            }
        };
        let labelled = node.metadata.labels.iter().flatten().any(|(key, _)| key == labels::REGISTERED);
        if !labelled && !taints_of(&node).iter().any(|taint| taints::UNREGISTERED.matches(taint)) {
            self.tell_missing_taint(&pass.claim);
        }
        let mut synced = (*node).clone();
        sync(&pass.claim, &mut synced);
        let hooks = check_hooks(pass).await;
        let ready = hooks.pending.is_empty();
        if ready {
            if let Some(taints) = synced.spec.as_mut().and_then(|spec| spec.taints.as_mut())
                && !is_planted(Bug::LeavesTheTaint)
            {
                taints.retain(|taint| !taints::UNREGISTERED.matches(taint));
            }
            let node_labels = synced.metadata.labels.get_or_insert_default();
            node_labels.insert(labels::REGISTERED.to_owned(), labels::TRUE.to_owned());
        } else {
            tracing::debug!(hooks = %logging::json(hooks.pending.clone()), "awaiting registration hooks");
            let mut conditions = pass.conditions(&self.context);
            let names = hooks.pending.join(", ");
            conditions.set_unknown_with_reason(REGISTERED, "RegistrationHookPending", &names);
        }
        let nodes: Api<Node> = Api::all(self.context.client.clone());
        match writes::patch(&nodes, &node, &synced, Lock::Optimistic).await {
            Ok(Written::Done(_) | Written::Unchanged) => {}
            Ok(Written::Conflict) => return Ok(Stage::Next(Outcome::Requeue)),
            // Its end comes by the watch.
            Ok(Written::Gone) => return Ok(Stage::Next(Outcome::Done)),
            Err(error) => return Err(ReconcileError::from(error).context("patching node")),
        }
        if !ready {
            ReconcileError::combine(hooks.errors)?;
            return Ok(Stage::Next(hooks.outcome));
        }
        pass.conditions(&self.context).set_true(REGISTERED);
        pass.claim.status.get_or_insert_default().node_name.clone_from(&node.metadata.name);
        pass.news.push(News::Registered { node: ObjectKey::of(&*node) });
        Ok(Stage::Next(Outcome::Done))
    }

    fn tell_missing_taint(&self, claim: &NodeClaim) {
        let key = taints::UNREGISTERED.key;
        tracing::error!(
            error = "missing taint prevents registration-related race conditions on Karpenter-managed nodes",
            taint = key,
            "node claim registration error"
        );
        let message = format!(
            "Missing {key} taint which prevents registration related race conditions on Karpenter-managed nodes"
        );
        let event = Event::new(reference(claim), EventType::Warning, "UnregisteredTaintMissing", message);
        self.context.recorder.publish(event.dedupe_by(claim.metadata.uid.clone()));
    }
}

/// Asks all hooks at once.
async fn check_hooks(pass: &Pass) -> Hooks {
    let hooks = pass.provider.registration_hooks();
    let answers = join_all(hooks.iter().map(|hook| hook.registered(&pass.claim))).await;
    let mut together = Hooks { pending: Vec::new(), outcome: Outcome::Done, errors: Vec::new() };
    for (hook, answer) in hooks.iter().zip(answers) {
        let outcome = match answer {
            Ok(HookResult::Ready) => continue,
            Ok(HookResult::Requeue) => Outcome::Requeue,
            Ok(HookResult::After(wait)) => Outcome::After(wait),
            Err(error) => {
                let doing = format!("registration hook {:?} failed", hook.name());
                together.errors.push(ReconcileError::from(error).context(doing));
                Outcome::Done
            }
        };
        together.outcome = Outcome::combine([together.outcome, outcome]);
        together.pending.push(hook.name().to_owned());
    }
    together
}

/// Gives a node what its claim says: finalizer, owner, taints, annotations, labels. The claim wins over the node.
fn sync(claim: &NodeClaim, node: &mut Node) {
    let finalizers = node.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|finalizer| finalizer == finalizers::TERMINATION) {
        finalizers.push(finalizers::TERMINATION.to_owned());
    }
    let owner = OwnerReference {
        api_version: NodeClaim::api_version(&()).into_owned(),
        kind: NodeClaim::kind(&()).into_owned(),
        name: claim.metadata.name.clone().unwrap_or_default(),
        uid: claim.metadata.uid.clone().unwrap_or_default(),
        block_owner_deletion: Some(true),
        controller: None,
    };
    let owners = node.metadata.owner_references.get_or_insert_default();
    let same = |known: &OwnerReference| {
        known.api_version == owner.api_version && known.kind == owner.kind && known.uid == owner.uid
    };
    if !owners.iter().any(same) {
        owners.push(owner);
    }
    if label(node, labels::DO_NOT_SYNC_TAINTS) != labels::TRUE {
        for taint in claim.spec.taints().iter().chain(claim.spec.startup_taints()) {
            let taints = node.spec.get_or_insert_default().taints.get_or_insert_default();
            if !taints.iter().any(|known| same_taint(known, taint)) {
                taints.push(taint.clone());
            }
        }
    }
    let annotations = claim.metadata.annotations.clone().unwrap_or_default();
    node.metadata.annotations.get_or_insert_default().extend(annotations);
    let labels = claim.metadata.labels.clone().unwrap_or_default();
    node.metadata.labels.get_or_insert_default().extend(labels);
}

pub(super) fn taints_of(node: &Node) -> &[Taint] {
    node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
}

/// Key and effect make a taint the same; the value does not.
pub(super) fn same_taint(a: &Taint, b: &Taint) -> bool {
    a.key == b.key && a.effect == b.effect
}
