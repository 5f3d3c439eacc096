//! Keeps the status of NodeClasses: `nodeclass.cloudstack`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use karpenter_api::conditions::{HasConditions as _, READY};
use karpenter_api::{ConditionStatus, NodeClaim, nodeclaim};
use karpenter_runtime::controller::{Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::writes::{self, Lock, Written};
use kube::{Api, ResourceExt as _};

use crate::accounts::Accounts;
use crate::nodeclass::{CloudStackNodeClass, HASH_VERSION, NETWORK_READY};
use crate::{labels, shared};

/// Keeps a NodeClass while NodeClaims use it.
pub(crate) const FINALIZER: &str = "karpenter.k8s.cloudstack/termination";
/// When to look again: at what is well, at what is not, at what somebody still uses.
const WELL: Duration = Duration::from_secs(5 * 60);
const UNWELL: Duration = Duration::from_secs(60);
const IN_USE: Duration = Duration::from_secs(10);

/// Keeps the status of NodeClasses.
pub(crate) struct NodeClassController {
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) api: Api<CloudStackNodeClass>,
    pub(crate) claims: Api<NodeClaim>,
}

/// The NodeClass a NodeClaim is of.
pub(crate) fn class_of(claim: &NodeClaim) -> Option<ObjectKey> {
    let reference = &claim.spec.node_class_ref;
    (reference.kind == "CloudStackNodeClass").then(|| ObjectKey::cluster(reference.name.as_str()))
}

impl Reconciler for NodeClassController {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let objects: &Arc<dyn shared::Objects> = &self.accounts.own.shared.objects;
        let Some(class) = objects.node_class(&key.name) else { return Ok(Outcome::Done) };
        if class.metadata.deletion_timestamp.is_some() {
            return self.finalize(&class).await;
        }
        if !self.migrate_hashes(&class).await? {
            return Ok(Outcome::After(IN_USE));
        }
        let mut wanted = (*class).clone();
        let finalizers = wanted.metadata.finalizers.get_or_insert_default();
        if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
            finalizers.push(FINALIZER.to_owned());
        }
        let hash = wanted.hash();
        let annotations = wanted.metadata.annotations.get_or_insert_default();
        annotations.insert(labels::NODE_CLASS_HASH.to_owned(), hash);
        annotations.insert(labels::NODE_CLASS_HASH_VERSION.to_owned(), HASH_VERSION.to_owned());
        let before =
            match writes::patch(&self.api, &class, &wanted, Lock::Optimistic).await.map_err(failed)? {
                Written::Done(written) => *written,
                Written::Unchanged => (*class).clone(),
                Written::Gone => return Ok(Outcome::Done),
                Written::Conflict => return Ok(Outcome::Requeue),
            };
        let mut after = before.clone();
        let resolved = self.accounts.of_class(&before).resolve_status(&mut after).await;
        self.tell(&before, &after);
        let written =
            writes::patch_status(&self.api, &before, &after, Lock::Optimistic).await.map_err(failed)?;
        if written.is_conflict() {
            return Ok(Outcome::Requeue);
        }
        match resolved {
            Ok(()) if after.condition_status(READY) == ConditionStatus::True => Ok(Outcome::After(WELL)),
            Ok(()) => Ok(Outcome::After(UNWELL)),
            Err(error) => {
                tracing::warn!(%error, "CloudStack cannot say what there is for this NodeClass");
                Ok(Outcome::After(UNWELL))
            }
        }
    }
}

impl NodeClassController {
    /// A release that computes hashes otherwise stamps the NodeClaims anew before it stamps the NodeClass: what was launched from
    /// what the NodeClass says has not drifted. What has drifted already stays so. Whether all are stamped.
    async fn migrate_hashes(&self, class: &CloudStackNodeClass) -> Result<bool, ReconcileError> {
        let version = |annotations: &BTreeMap<String, String>| {
            annotations.get(labels::NODE_CLASS_HASH_VERSION).is_some_and(|version| version != HASH_VERSION)
        };
        if !version(class.annotations()) {
            return Ok(true);
        }
        let key = ObjectKey::cluster(class.name_any());
        let Some(claims) = self.accounts.own.shared.objects.node_claims() else { return Ok(false) };
        for claim in claims.iter().filter(|claim| class_of(claim).as_ref() == Some(&key)) {
            if !version(claim.annotations()) {
                continue;
            }
            let mut stamped = (**claim).clone();
            let annotations = stamped.metadata.annotations.get_or_insert_default();
            annotations.insert(labels::NODE_CLASS_HASH_VERSION.to_owned(), HASH_VERSION.to_owned());
            if claim.condition_status(nodeclaim::DRIFTED) != ConditionStatus::True {
                annotations.insert(labels::NODE_CLASS_HASH.to_owned(), class.hash());
            }
            let written = writes::patch(&self.claims, claim, &stamped, Lock::Optimistic).await;
            if written.map_err(failed)?.is_conflict() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// An event for whatever is wrong now and was not, or otherwise, before: who looks at events finds the field and the remedy.
    fn tell(&self, before: &CloudStackNodeClass, after: &CloudStackNodeClass) {
        for condition in after.conditions() {
            let said_by_others = condition.type_ == READY || condition.type_ == NETWORK_READY;
            let untold = ["AwaitingReconciliation", "AwaitingZone"].contains(&condition.reason());
            if said_by_others || untold || condition.status == ConditionStatus::True {
                continue;
            }
            let known = before.conditions().iter().find(|known| known.type_ == condition.type_);
            let same = known.is_some_and(|known| {
                known.status == condition.status
                    && known.reason() == condition.reason()
                    && known.message() == condition.message()
            });
            if !same {
                let (reason, message) = (condition.reason().to_owned(), condition.message().to_owned());
                self.accounts.own.shared.voice.warn(after, reason, message);
            }
        }
    }

    /// Lets a NodeClass go when nothing needs it any more: machines are destroyed by what it says.
    async fn finalize(&self, class: &CloudStackNodeClass) -> ReconcileResult {
        let key = ObjectKey::cluster(class.name_any());
        let Some(claims) = self.accounts.own.shared.objects.node_claims() else {
            return Ok(Outcome::After(IN_USE));
        };
        if claims.iter().any(|claim| class_of(claim).as_ref() == Some(&key)) {
            return Ok(Outcome::After(IN_USE));
        }
        match self.accounts.own.is_used(class).await {
            Ok(false) => {}
            Ok(true) => return Ok(Outcome::After(IN_USE)),
            Err(error) => {
                tracing::warn!(error, "NodeClaims cannot be read, so the NodeClass stays");
                return Ok(Outcome::After(IN_USE));
            }
        }
        let left = match self.accounts.of_class(class).left_behind(class).await {
            Ok(left) => left.first().map(|first| {
                let count = left.len();
                format!(
                    "{count} things of this cluster are left where no other NodeClass leads, such as {first}; it goes when they are gone"
                )
            }),
            Err(error) => {
                Some(format!("whether anything of this cluster is left is not known, so it stays: {error}"))
            }
        };
        if let Some(text) = left {
            self.accounts.own.shared.voice.warn(class, "MachinesLeft", text);
            return Ok(Outcome::After(UNWELL));
        }
        let mut released = class.clone();
        released.metadata.finalizers.get_or_insert_default().retain(|finalizer| finalizer != FINALIZER);
        let written = writes::patch(&self.api, class, &released, Lock::Optimistic).await.map_err(failed)?;
        Ok(if written.is_conflict() { Outcome::Requeue } else { Outcome::Done })
    }
}

fn failed(error: kube::Error) -> ReconcileError {
    ReconcileError::from(error)
}
