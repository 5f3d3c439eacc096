//! When Cluster API replaces a Machine, in a rollout or because a health check condemned it, its NodeClaim ends with it. A successor
//! of the same NodePool is made as soon as the Machine is on its way out: it waits, so the level stays as it is, and it gets
//! the new Machine. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_api::NodeClaim;

use super::ledger;
use super::node_claims::Target;
use super::rollout::Rollout;
use crate::client::machine::Machine;
use crate::names;
use crate::nodeclass::{ClusterAPINodeClassSpec, Drift, LaunchMode, Remediation};

/// What successions are found in.
#[derive(Clone, Copy)]
pub(crate) struct Estate<'a> {
    /// The resource's Machines.
    pub(crate) machines: &'a [Machine],
    pub(crate) claims: &'a [Arc<NodeClaim>],
    /// Our workload cluster, by the uid of its namespace kube-system.
    pub(crate) owner: &'a str,
    /// The rollout under way.
    pub(crate) rollout: Option<&'a Rollout>,
    pub(crate) spec: &'a ClusterAPINodeClassSpec,
}

impl Estate<'_> {
    /// The live NodeClaim of a Machine.
    fn claim_of(&self, machine: &Machine) -> Option<&Arc<NodeClaim>> {
        let claim = machine.claim().filter(|claim| claim.owner == self.owner)?;
        self.claims.iter().find(|found| {
            found.metadata.uid.as_ref() == Some(&claim.uid) && found.metadata.deletion_timestamp.is_none()
        })
    }

    /// Live NodeClaims whose Machine Cluster API is taking away to put another in its place, and that have no successor yet.
    fn bereaved(&self) -> Vec<(&Arc<NodeClaim>, &Machine)> {
        let by_rollout = self.spec.drift.unwrap_or_default() == Drift::ClusterAPI && self.rollout.is_some();
        let by_remediation = self.spec.remediation.unwrap_or_default() != Remediation::Karpenter;
        let taken = |machine: &&Machine| {
            machine.deleting
                && !ledger::is_our_mark(machine)
                && (by_rollout || (by_remediation && machine.is_condemned()))
        };
        let succeeded: BTreeSet<&str> = self
            .claims
            .iter()
            .filter_map(|claim| claim.metadata.annotations.as_ref()?.get(names::ADOPTED).map(String::as_str))
            .collect();
        let claims =
            self.machines.iter().filter(taken).filter_map(|machine| Some((self.claim_of(machine)?, machine)));
        let marked = |claim: &NodeClaim| {
            claim.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(names::SUCCEEDED))
        };
        claims
            .filter(|(claim, _)| !marked(claim))
            .filter(|(claim, _)| !succeeded.contains(claim.metadata.uid.as_deref().unwrap_or_default()))
            .collect()
    }

    /// Successors to be made, each with whom it succeeds.
    pub(crate) fn successors(&self, target: &Target) -> Vec<(NodeClaim, Arc<NodeClaim>)> {
        let pair = |(claim, machine): (&Arc<NodeClaim>, &Machine)| {
            (successor(claim, machine, target), Arc::clone(claim))
        };
        self.bereaved().into_iter().map(pair).collect()
    }

    /// NodeClaims that Karpenter is to delete because a health check condemned their Machines, with these.
    pub(crate) fn condemned(&self) -> Vec<(&Arc<NodeClaim>, &Machine)> {
        if self.spec.remediation.unwrap_or_default() != Remediation::Karpenter {
            return Vec::new();
        }
        // A verdict from before somebody told health checks to leave a Machine alone stays on it.
        let condemned = self.machines.iter().filter(|m| m.is_condemned() && !m.skips_remediation());
        condemned.filter_map(|machine| Some((self.claim_of(machine)?, machine))).collect()
    }
}

/// A NodeClaim like another one, named after the Machine that goes so that it is made once.
fn successor(claim: &NodeClaim, machine: &Machine, target: &Target) -> NodeClaim {
    let meta = &claim.metadata;
    let mut annotations = meta.annotations.clone().unwrap_or_default();
    for own in [names::MACHINE, names::GO_MACHINE, names::ADOPTED, names::SUCCEEDED] {
        annotations.remove(own);
    }
    annotations.insert(names::TARGET.to_owned(), target.to_string());
    annotations.insert(names::ADOPTED.to_owned(), meta.uid.clone().unwrap_or_default());
    NodeClaim {
        metadata: ObjectMeta {
            name: Some(machine.key.name.to_string()),
            labels: meta.labels.clone(),
            annotations: Some(annotations),
            owner_references: meta.owner_references.clone(),
            finalizers: meta.finalizers.clone(),
            ..ObjectMeta::default()
        },
        spec: claim.spec.clone(),
        status: None,
    }
}

/// The target of a successor: the resource itself.
pub(crate) fn target(id: &crate::client::scalable::ScalableKey) -> Target {
    Target::new(id.clone(), LaunchMode::MachineDeployment, None)
}
