//! The third stage of a NodeClaim: its Node is ready for pods (rules L1.40–L1.44).
//!
//! What DRA drivers publish is not looked at: dynamic resources are not simulated yet, which start-up says.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Taint};
use karpenter_api::conditions::ConditionStatus;
use karpenter_api::nodeclaim::{INITIALIZED, REBOOTING, REGISTERED};
use karpenter_api::{NodeClaim, Quantity, labels, taints};
use karpenter_runtime::controller::Outcome;
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::writes::{self, Lock, Written};
use kube::{Api, ResourceExt as _};

use super::lifecycle::{Lifecycle, News, Pass, Stage};
use super::registration::{same_taint, taints_of};
use crate::totals::label;

/// Why a node is not ready for pods yet: reason and message of the condition.
type NotYet = (&'static str, String);

impl Lifecycle {
    pub(super) async fn initialization(&self, pass: &mut Pass) -> Result<Stage, ReconcileError> {
        let stay = Ok(Stage::Next(Outcome::Done));
        let conditions = pass.conditions(&self.context);
        let known = conditions.get(INITIALIZED).cloned().unwrap_or_default();
        // While a node reboots, what is still running looks ready and is not.
        let in_time = conditions.is_true(&[REGISTERED]) && !conditions.is_true(&[REBOOTING]);
        if known.status != ConditionStatus::Unknown {
            let mut conditions = conditions;
            conditions.set(INITIALIZED, known.status, known.reason(), known.message());
            return stay;
        }
        if !in_time {
            return stay;
        }
        let node = self.context.stores.node_of(&pass.claim).one();
        let node = match node.ok_or_else(not_found).and_then(|node| check(&node, &pass.claim).map(|()| node))
        {
            Ok(node) => node,
            Err((reason, message)) => {
                let mut conditions = pass.conditions(&self.context);
                conditions.set_unknown_with_reason(INITIALIZED, reason, &message);
                return stay;
            }
        };
        let nodes: Api<Node> = Api::all(self.context.client.clone());
        let node = if label(&*node, labels::INITIALIZED) == labels::TRUE {
            // Labelled already: somebody was here before us, or this is the node before its reboot and the watch lags behind.
            match nodes.get_opt(&node.name_any()).await? {
                Some(node) if check(&node, &pass.claim).is_ok() => Arc::new(node),
                _ => return stay,
            }
        } else {
            node
        };
        let mut labelled = (*node).clone();
        let node_labels = labelled.metadata.labels.get_or_insert_default();
        node_labels.insert(labels::INITIALIZED.to_owned(), labels::TRUE.to_owned());
        match writes::patch(&nodes, &node, &labelled, Lock::None).await? {
            Written::Done(_) | Written::Unchanged => {}
            Written::Gone | Written::Conflict => return stay,
        }
        pass.conditions(&self.context).set_true(INITIALIZED);
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        let allocatable = serde_json::to_value(allocatable).unwrap_or_default();
        pass.news.push(News::Initialized { node: ObjectKey::of(&*node), allocatable });
        stay
    }
}

fn not_found() -> NotYet {
    ("NodeNotFound", "Node not registered with cluster".to_owned())
}

fn check(node: &Node, claim: &NodeClaim) -> Result<(), NotYet> {
    if !is_ready(node) {
        return Err(("NodeNotReady", "Node status is NotReady".to_owned()));
    }
    let taints = taints_of(node);
    let startup = claim.spec.startup_taints();
    let left = startup.iter().find_map(|startup| taints.iter().find(|taint| same_taint(startup, taint)));
    if let Some(taint) = left {
        return Err(("StartupTaintsExist", format!("StartupTaint {:?} still exists", text(taint))));
    }
    if let Some(taint) = taints.iter().find(|taint| is_ephemeral(taint)) {
        let message = format!("KnownEphemeralTaint {:?} still exists", text(taint));
        return Err(("KnownEphemeralTaintsExist", message));
    }
    let requests = claim.spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let requested = requests.into_iter().flatten().filter(|(_, quantity)| !quantity.is_zero());
    // kubelet shows a device's resource as zero until its plugin has registered.
    let missing = requested.map(|(name, _)| name).find(|name| !is_allocatable(node, name));
    if let Some(name) = missing {
        let message = format!("Resource {name:?} was requested but not registered");
        return Err(("ResourceNotRegistered", message));
    }
    Ok(())
}

/// Whether a node's `Ready` condition is true.
pub(crate) fn is_ready(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn is_allocatable(node: &Node, resource: &str) -> bool {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let quantity = allocatable.and_then(|allocatable| allocatable.get(resource));
    quantity
        .and_then(|quantity| Quantity::parse(&quantity.0).ok())
        .is_some_and(|quantity| !quantity.is_zero())
}

fn is_ephemeral(taint: &Taint) -> bool {
    taints::EPHEMERAL.iter().any(|known| known.matches(taint))
        || taints::UNREGISTERED.matches(taint)
        || taint.key.starts_with(taints::EPHEMERAL_KEY_PREFIX)
}

/// A taint in one word: `key=value:effect`.
fn text(taint: &Taint) -> String {
    match taint.value.as_deref().unwrap_or_default() {
        "" => format!("{}:{}", taint.key, taint.effect),
        value => format!("{}={value}:{}", taint.key, taint.effect),
    }
}
