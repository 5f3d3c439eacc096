//! What is read of a Machine, in v1beta1 and v1beta2.

use std::collections::BTreeMap;

use jiff::Timestamp;
use karpenter_runtime::object_key::ObjectKey;
use kube::api::DynamicObject;

use super::fields::{Condition, Fields, Malformed, Reference, condition};
use crate::names;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) key: ObjectKey,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) created: Timestamp,
    /// Whether it is on its way out.
    pub(crate) deleting: bool,
    pub(crate) deleting_since: Option<Timestamp>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    /// The Cluster it belongs to.
    pub(crate) cluster_name: String,
    /// Its id, once the infrastructure has given it one.
    pub(crate) provider_id: Option<String>,
    /// Where it is, or is to be.
    pub(crate) failure_domain: Option<String>,
    /// Where the infrastructure says that it is.
    pub(crate) placed_in: Option<String>,
    /// Where it was asked to be.
    pub(crate) asked_into: Option<String>,
    /// The Kubernetes version it is to run.
    pub(crate) version: Option<String>,
    pub(crate) infrastructure: Option<Reference>,
    /// Its Node, once it has joined.
    pub(crate) node_name: Option<String>,
    /// How far it has come, in one word.
    pub(crate) phase: String,
    pub(crate) conditions: Vec<Condition>,
    /// Why it will never be, if so.
    pub(crate) failure: Option<Failure>,
    /// Whether it gives its node no time to be drained, once it is being deleted.
    pub(crate) hurries: bool,
}

/// Why a Machine cannot come to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// Whom a Machine was claimed for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Claim {
    /// The NodeClaim's name.
    pub(crate) node_claim: String,
    /// The NodeClaim's uid.
    pub(crate) uid: String,
    /// The workload cluster, by the uid of its namespace kube-system.
    pub(crate) owner: String,
}

/// Reasons with which infrastructure providers say that asking again will not help.
const TERMINAL_REASONS: &[&str] = &[
    "InsufficientResources",
    "InsufficientCapacity",
    "InsufficientInstanceCapacity",
    "QuotaExceeded",
    "CreateError",
    "InvalidConfiguration",
    "InstanceProvisionFailed",
    "InstanceCreateFailed",
    "ProvisionFailed",
    "VMProvisionFailed",
];

impl Machine {
    pub(crate) fn read(object: &DynamicObject) -> Result<Self, Malformed> {
        let fields = Fields::of("Machine", object);
        let conditions = fields.conditions();
        Ok(Self {
            key: fields.key(),
            uid: fields.uid(),
            resource_version: fields.resource_version(),
            created: fields.created(),
            deleting: fields.deleting(),
            deleting_since: object.metadata.deletion_timestamp.as_ref().map(|time| time.0),
            labels: fields.labels(),
            annotations: fields.annotations(),
            cluster_name: fields.text("spec.clusterName")?.unwrap_or_default(),
            provider_id: fields.text("spec.providerID")?,
            failure_domain: fields.first_text(&["status.failureDomain", "spec.failureDomain"])?,
            placed_in: fields.text("status.failureDomain")?,
            asked_into: fields.text("spec.failureDomain")?,
            version: fields.text("spec.version")?,
            infrastructure: fields.reference("spec.infrastructureRef")?,
            node_name: fields.text("status.nodeRef.name")?,
            phase: fields.text("status.phase")?.unwrap_or_default(),
            failure: failure(&fields, &conditions)?,
            hurries: fields.int("spec.deletion.nodeDrainTimeoutSeconds")? == Some(1)
                || fields.text("spec.nodeDrainTimeout")?.as_deref() == Some("1s"),
            conditions,
        })
    }

    /// Whom it was claimed for, if for anyone.
    pub(crate) fn claim(&self) -> Option<Claim> {
        let text = |key: &str| self.annotations.get(key).cloned().unwrap_or_default();
        let uid = text(names::NODECLAIM_UID);
        (!uid.is_empty()).then(|| Claim {
            node_claim: text(names::NODECLAIM),
            uid,
            owner: text(names::OWNER),
        })
    }

    /// Whether its MachineSet is to take it first.
    pub(crate) fn is_marked(&self) -> bool {
        self.annotations.contains_key(names::DELETE_MACHINE)
    }

    /// Whether Cluster API waits for its node no longer, once it is being deleted. What a MachineSet's Machine has as its own time-outs is
    /// overwritten by those of the MachineSet at every turn, so there annotations tell.
    pub(crate) fn gives_up_waiting(&self) -> bool {
        match self.set_name() {
            Some(_) => [names::EXCLUDE_DRAIN, names::EXCLUDE_DETACH]
                .iter()
                .all(|key| self.annotations.contains_key(*key)),
            None => self.hurries,
        }
    }

    /// Whether controllers leave it alone.
    pub(crate) fn is_paused(&self) -> bool {
        self.annotations.contains_key(names::PAUSED)
    }

    /// Whether it has a Node that is not known to be unhealthy, and is not being changed in place: a MachineSet that shrinks takes others
    /// first.
    pub(crate) fn is_steady(&self) -> bool {
        let sick = |kind: &str| condition(&self.conditions, kind).is_some_and(|c| c.is_false());
        self.node_name.is_some()
            && !self.is_updating()
            && !sick("NodeHealthy")
            && !sick("HealthCheckSucceeded")
    }

    /// Whether Cluster API waits for us before it drains its Node.
    pub(crate) fn waits_for_us(&self) -> bool {
        self.annotations.contains_key(names::OWN_HOOK)
    }

    /// Whether a health check wants it replaced, by the same two conditions that MachineSets go by. An unhealthy Machine alone is
    /// not condemned: a health check that finds too many of them at once holds remediation back, and so must everyone else.
    pub(crate) fn is_condemned(&self) -> bool {
        let is_false = |kind| condition(&self.conditions, kind).is_some_and(Condition::is_false);
        is_false("HealthCheckSucceeded") && is_false("OwnerRemediated")
    }

    /// Whether health checks are to leave it alone, and whoever goes by their verdict.
    pub(crate) fn skips_remediation(&self) -> bool {
        self.annotations.contains_key(names::SKIP_REMEDIATION)
    }

    /// Whether it is being changed in place.
    pub(crate) fn is_updating(&self) -> bool {
        self.annotations.contains_key(names::UPDATE_IN_PROGRESS)
            || condition(&self.conditions, "Updating").is_some_and(Condition::is_true)
    }

    /// The MachineDeployment or the MachineSet it belongs to, by labels.
    pub(crate) fn set_name(&self) -> Option<&str> {
        self.labels.get(names::SET_NAME).map(String::as_str)
    }

    /// Hooks of others that hold back its end, in order.
    pub(crate) fn hooks(&self) -> Vec<&str> {
        let hook = |key: &&String| {
            let is_hook =
                key.starts_with(names::PRE_DRAIN_HOOK) || key.starts_with(names::PRE_TERMINATE_HOOK);
            is_hook && *key != names::OWN_HOOK
        };
        self.annotations.keys().filter(hook).map(String::as_str).collect()
    }

    /// Why it never becomes a node, where these reasons count as well.
    pub(crate) fn failure_by(&self, reasons: &[&str]) -> Option<Failure> {
        self.failure.clone().or_else(|| failure_for(&self.conditions, reasons))
    }

    /// What a Machine without an id waits for: a reason and a sentence.
    pub(crate) fn waits_for(&self) -> (&'static str, String) {
        let stage = |kinds: [&str; 2]| kinds.iter().find_map(|kind| condition(&self.conditions, kind));
        let told = |what: &str, condition: Option<&Condition>| match condition {
            Some(c) if !c.message.is_empty() => format!("Machine {}: {what}: {}", self.key, c.message),
            _ => format!("Machine {}: {what}", self.key),
        };
        let bootstrap = stage(["BootstrapConfigReady", "BootstrapReady"]);
        if bootstrap.is_some_and(|condition| !condition.is_true()) {
            return ("BootstrapPending", told("its bootstrap data is being made", bootstrap));
        }
        let infrastructure = condition(&self.conditions, "InfrastructureReady");
        ("InfraProvisioning", told("its infrastructure is being provisioned", infrastructure))
    }
}

fn failure(fields: &Fields<'_>, conditions: &[Condition]) -> Result<Option<Failure>, Malformed> {
    let reason = fields.first_text(&["status.failureReason", "status.deprecated.v1beta1.failureReason"])?;
    let message =
        fields.first_text(&["status.failureMessage", "status.deprecated.v1beta1.failureMessage"])?;
    if reason.is_some() || message.is_some() {
        return Ok(Some(Failure {
            reason: reason.unwrap_or_else(|| "MachineFailed".to_owned()),
            message: message.unwrap_or_default(),
        }));
    }
    Ok(failure_for(conditions, TERMINAL_REASONS))
}

/// What conditions say, if that is one of these reasons.
fn failure_for(conditions: &[Condition], reasons: &[&str]) -> Option<Failure> {
    let terminal = conditions.iter().find(|condition| {
        condition.is_false()
            && matches!(condition.kind.as_str(), "InfrastructureReady" | "BootstrapConfigReady")
            && reasons.contains(&condition.reason.as_str())
    })?;
    Some(Failure { reason: terminal.reason.clone(), message: terminal.message.clone() })
}
