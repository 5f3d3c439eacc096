//! What is read of a MachineDeployment or MachineSet, in v1beta1 and v1beta2.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use karpenter_primitives::LabelSelector;
use karpenter_runtime::object_key::ObjectKey;
use kube::api::DynamicObject;
use serde::Deserialize as _;
use serde_json::Value;

use super::fields::{Condition, Fields, Malformed, Reference, condition};
use crate::names;

/// A kind that has a number of Machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::enum_variant_names, reason = "the kinds are called so")]
pub(crate) enum ScalableKind {
    /// Has MachineSets, one per revision of its template.
    MachineDeployment,
    MachineSet,
    /// Has none: Machines of their own are made from it. One that a NodeClass names or selects, named
    /// `<NodeClass>.<template>` with the template's dots as underscores.
    MachineTemplate,
}

impl ScalableKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::MachineDeployment => "MachineDeployment",
            Self::MachineSet => "MachineSet",
            Self::MachineTemplate => "MachineTemplate",
        }
    }

    /// The label its Machines carry its name in, if it has any.
    pub(crate) fn machine_label(self) -> Option<&'static str> {
        match self {
            Self::MachineDeployment => Some(names::DEPLOYMENT_NAME),
            Self::MachineSet => Some(names::SET_NAME),
            Self::MachineTemplate => None,
        }
    }
}

/// Names a scalable resource. MachineDeployments and MachineSets of the same name are different resources.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ScalableKey {
    pub(crate) kind: ScalableKind,
    pub(crate) key: ObjectKey,
}

impl ScalableKey {
    /// As the annotation holds it: a MachineDeployment is the rule and needs no kind.
    pub(crate) fn to_annotation(&self) -> String {
        match self.kind {
            ScalableKind::MachineDeployment => self.key.to_string(),
            kind => format!("{}:{}", kind.as_str(), self.key),
        }
    }

    /// What [`Display`](fmt::Display) wrote.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (kind, key) = text.split_once(' ')?;
        let kinds =
            [ScalableKind::MachineDeployment, ScalableKind::MachineSet, ScalableKind::MachineTemplate];
        let kind = kinds.into_iter().find(|known| known.as_str() == kind)?;
        Some(Self { kind, key: super::fields::parse_key(key)? })
    }

    /// What [`to_annotation`](Self::to_annotation) wrote.
    pub(crate) fn from_annotation(text: &str) -> Option<Self> {
        let (kind, key) = match text.split_once(':') {
            Some(("MachineSet", key)) => (ScalableKind::MachineSet, key),
            Some(("MachineTemplate", key)) => (ScalableKind::MachineTemplate, key),
            _ => (ScalableKind::MachineDeployment, text),
        };
        Some(Self { kind, key: super::fields::parse_key(key)? })
    }
}

impl fmt::Display for ScalableKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.as_str(), self.key)
    }
}

/// The condition that says whether Machines could be made.
pub(crate) const MACHINES_CREATED: &str = "MachinesCreated";

/// A MachineDeployment or MachineSet, or what a NodeClass names in place of one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scalable {
    /// Kind, namespace and name.
    pub(crate) id: ScalableKey,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) created: Timestamp,
    /// Whether it is on its way out.
    pub(crate) deleting: bool,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    /// The Cluster it belongs to.
    pub(crate) cluster_name: String,
    /// The MachineDeployment that controls it, by name.
    pub(crate) controlled_by: Option<String>,
    /// How many Machines are wanted.
    pub(crate) replicas: i32,
    /// Which ownerless Machines it takes for its own.
    pub(crate) selector: Option<LabelSelector>,
    /// The labels of its Machines.
    pub(crate) template_labels: BTreeMap<String, String>,
    /// The annotations of its Machines.
    pub(crate) template_annotations: BTreeMap<String, String>,
    /// What its Machines are to be, as its owner wrote it, in the version it was read in.
    pub(crate) template_spec: Value,
    /// That version, where the server said so.
    pub(crate) read_in: Option<String>,
    /// Where its Machines go.
    pub(crate) failure_domain: Option<String>,
    /// Where they may go, where they go to no place of their own and may not go everywhere.
    pub(crate) failure_domains: Vec<String>,
    /// The Kubernetes version of its Machines.
    pub(crate) version: Option<String>,
    /// The taints of its nodes, where Cluster API sets them.
    pub(crate) taints: Vec<Value>,
    /// What its infrastructure is cloned from.
    pub(crate) infrastructure: Option<Reference>,
    /// What its bootstrap configuration is cloned from.
    pub(crate) bootstrap: Option<Reference>,
    /// The Secret that takes the place of a bootstrap configuration.
    pub(crate) bootstrap_secret: Option<String>,
    /// Whether nodes are only replaced when someone deletes their Machines.
    pub(crate) on_delete: bool,
    /// `spec.paused`: rollouts stand still, scaling does not.
    pub(crate) rollout_paused: bool,
    /// From when on Machines that are older than this time are to be replaced.
    pub(crate) rollout_after: Option<Timestamp>,
    pub(crate) conditions: Vec<Condition>,
    /// Who of others set the replicas last, as the server has it; watches leave that out.
    pub(crate) replicas_set_by: Option<String>,
    /// Whether that was after Karpenter had last set them.
    pub(crate) replicas_are_anothers: bool,
}

impl Scalable {
    pub(crate) fn read(kind: ScalableKind, object: &DynamicObject) -> Result<Self, Malformed> {
        let fields = Fields::of(kind.as_str(), object);
        let owners = object.metadata.owner_references.as_deref().unwrap_or_default();
        let strategy = fields.first_text(&["spec.rollout.strategy.type", "spec.strategy.type"])?;
        Ok(Self {
            id: ScalableKey { kind, key: fields.key() },
            uid: fields.uid(),
            resource_version: fields.resource_version(),
            created: fields.created(),
            deleting: fields.deleting(),
            labels: fields.labels(),
            annotations: fields.annotations(),
            cluster_name: fields.text("spec.clusterName")?.unwrap_or_default(),
            controlled_by: owners
                .iter()
                .find(|owner| owner.kind == "MachineDeployment")
                .map(|owner| owner.name.clone()),
            replicas: fields.int("spec.replicas")?.unwrap_or(0),
            selector: fields.at("spec.selector").and_then(|value| LabelSelector::deserialize(value).ok()),
            template_labels: fields.texts("spec.template.metadata.labels")?,
            template_annotations: fields.texts("spec.template.metadata.annotations")?,
            template_spec: fields.at("spec.template.spec").cloned().unwrap_or_default(),
            read_in: object
                .types
                .as_ref()
                .and_then(|types| types.api_version.split_once('/'))
                .map(|(_, version)| version.to_owned()),
            failure_domain: fields.text("spec.template.spec.failureDomain")?,
            failure_domains: Vec::new(),
            version: fields.text("spec.template.spec.version")?,
            taints: fields.list("spec.template.spec.taints")?.to_vec(),
            infrastructure: fields.reference("spec.template.spec.infrastructureRef")?,
            bootstrap: fields.reference("spec.template.spec.bootstrap.configRef")?,
            bootstrap_secret: fields.text("spec.template.spec.bootstrap.dataSecretName")?,
            on_delete: strategy.as_deref() == Some("OnDelete"),
            rollout_paused: fields.flag("spec.paused")?,
            rollout_after: rollout_after(&fields)?,
            conditions: conditions(&fields),
            replicas_set_by: replicas_set_by(object),
            replicas_are_anothers: replicas_are_anothers(object),
        })
    }

    /// Whether its owner lets Karpenter scale it. Any value but `false` counts, the Go provider wrote an empty one.
    pub(crate) fn is_member(&self) -> bool {
        self.labels.get(names::MEMBER).is_some_and(|value| value != "false")
    }

    /// Whether Cluster API's controllers leave it alone.
    pub(crate) fn is_paused(&self) -> bool {
        self.annotations.contains_key(names::PAUSED)
    }

    /// Whether someone else manages its replicas.
    pub(crate) fn managed_by_another(&self) -> Option<&str> {
        let manager = self.annotations.get(names::REPLICAS_MANAGED_BY)?.as_str();
        (!matches!(manager, "karpenter" | "")).then_some(manager)
    }

    /// Whether nodes that Karpenter has drained are not drained once more.
    pub(crate) fn excludes_drain(&self) -> bool {
        self.annotations.get(names::EXCLUDE_DRAIN_OPTION).is_none_or(|value| value.trim() != "false")
    }

    /// The reasons that its owner says are failures.
    pub(crate) fn failure_reasons(&self) -> Vec<&str> {
        let listed = self.annotations.get(names::FAILURE_REASONS).map(|list| list.split(','));
        listed.into_iter().flatten().map(str::trim).filter(|reason| !reason.is_empty()).collect()
    }

    /// The least and the greatest size, as its owner set them.
    pub(crate) fn bounds(&self) -> Result<(i32, Option<i32>), Malformed> {
        let size = |key: &str| match self.annotations.get(key).map(|text| text.trim()) {
            None | Some("") => Ok(None),
            Some(text) => match text.parse::<i32>() {
                Ok(size) if size >= 0 => Ok(Some(size)),
                _ => Err(self.malformed(key, format!("{text:?} is not a number of replicas"))),
            },
        };
        let (min, max) = (size(names::MIN_SIZE)?.unwrap_or(0), size(names::MAX_SIZE)?);
        match max {
            Some(max) if max < min => {
                Err(self.malformed(names::MAX_SIZE, format!("{max} is less than the least size, {min}")))
            }
            max => Ok((min, max)),
        }
    }

    /// How many of its replicas were there before Karpenter, if that is written down.
    pub(crate) fn protected_replicas(&self) -> Result<Option<i32>, Malformed> {
        let Some(text) = self.annotations.get(names::PROTECTED) else { return Ok(None) };
        match text.trim().parse::<i32>() {
            Ok(protected) if protected >= 0 => Ok(Some(protected)),
            _ => Err(self.malformed(names::PROTECTED, format!("{text:?} is not a number of replicas"))),
        }
    }

    /// The revision of its template, 0 if it does not say.
    pub(crate) fn revision(&self) -> i64 {
        self.annotations.get(names::REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// An error about one of its keys.
    pub(crate) fn malformed(&self, key: impl Into<String>, problem: impl fmt::Display) -> Malformed {
        Malformed { object: self.id.to_string(), key: key.into(), problem: problem.to_string() }
    }
}

/// The conditions, and whether Machines could be made: a refusal of one is told by the older kind alone.
fn conditions(fields: &Fields<'_>) -> Vec<Condition> {
    let mut conditions = fields.conditions();
    if condition(&conditions, MACHINES_CREATED).is_none() {
        conditions.extend(fields.older_condition(MACHINES_CREATED));
    }
    conditions
}

fn rollout_after(fields: &Fields<'_>) -> Result<Option<Timestamp>, Malformed> {
    let Some(text) = fields.first_text(&["spec.rollout.after", "spec.rolloutAfter"])? else {
        return Ok(None);
    };
    let time = text.parse().map_err(|_| fields.malformed("spec.rollout.after", "is not a time"))?;
    Ok(Some(time))
}

/// The field managers that `spec.replicas` are of, Karpenter first.
fn managers_of_replicas(object: &DynamicObject) -> (Vec<&ManagedFieldsEntry>, Vec<&ManagedFieldsEntry>) {
    let entries = object.metadata.managed_fields.as_deref().unwrap_or_default();
    let of_replicas = entries.iter().filter(|entry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        fields.is_some_and(|fields| fields.pointer("/f:spec/f:replicas").is_some())
    });
    of_replicas.partition(|entry| entry.manager.as_deref().unwrap_or_default().starts_with("karpenter"))
}

/// The field manager other than Karpenter that wrote `spec.replicas` last.
fn replicas_set_by(object: &DynamicObject) -> Option<String> {
    let (_, theirs) = managers_of_replicas(object);
    theirs.into_iter().max_by_key(|entry| entry.time.as_ref().map(|time| time.0))?.manager.clone()
}

/// Whether `spec.replicas` are of others alone: who sets another number takes the field from whoever had it.
fn replicas_are_anothers(object: &DynamicObject) -> bool {
    let (ours, theirs) = managers_of_replicas(object);
    ours.is_empty() && !theirs.is_empty()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::fixtures::{deployment_json, read_deployment};

    #[test]
    fn who_set_the_replicas_last_is_told_by_their_managers() {
        let entry = |manager: &str, time: &str, fields: serde_json::Value| {
            json!({
                "manager": manager, "time": time, "operation": "Update", "apiVersion": "cluster.x-k8s.io/v1beta2",
                "fieldsType": "FieldsV1", "fieldsV1": fields,
            })
        };
        let replicas = || json!({"f:spec": {"f:replicas": {}}});
        let mut deployment = deployment_json("m", &[]);
        deployment["metadata"]["managedFields"] = json!([
            entry("kubectl", "2026-01-01T00:00:00Z", replicas()),
            entry("argocd-controller", "2026-01-02T00:00:00Z", replicas()),
            entry("karpenter", "2026-01-03T00:00:00Z", replicas()),
            entry("manager", "2026-01-04T00:00:00Z", json!({"f:status": {"f:replicas": {}}})),
        ]);
        let shared = read_deployment(deployment.clone());
        assert_eq!(shared.replicas_set_by.as_deref(), Some("argocd-controller"));
        assert!(!shared.replicas_are_anothers, "Karpenter has set them, too");
        deployment["metadata"]["managedFields"].as_array_mut().expect("entries").remove(2);
        assert!(read_deployment(deployment).replicas_are_anothers);
        let untold = read_deployment(deployment_json("m", &[]));
        assert_eq!((untold.replicas_set_by, untold.replicas_are_anothers), (None, false));
    }
}
