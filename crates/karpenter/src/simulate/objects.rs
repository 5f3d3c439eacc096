//! Raw objects into the cluster mirror: which kind each is, and what becomes of those that make no sense.
//!
//! An object that cannot be understood is left out with file, object and field, and the rest goes on. Kinds that scheduling
//! does not look at are counted and passed over.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1 as policy;
use k8s_openapi::api::storage::v1 as storage;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_api::conditions::{HasConditions, READY};
use karpenter_api::labels::NODEPOOL;
use karpenter_api::nodeclaim::LAUNCHED;
use karpenter_api::nodepool::NODE_REGISTRATION_HEALTHY;
use karpenter_api::{CapacityBuffer, Condition, ConditionStatus, NodeClaim, NodeOverlay, NodePool};
use karpenter_engine::ingest::FieldError;
use karpenter_state::{Cluster, Facts};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::budgets;
use super::rejected::Rejected;
use super::scenario::Origin;

/// What became of the objects.
#[derive(Default)]
pub(crate) struct Loaded {
    pub(crate) cluster: Cluster,
    /// Pods that wait for a place but make no sense: key and problem.
    pub(crate) unreadable_pods: Vec<(String, String)>,
    /// Objects passed over, by kind.
    pub(crate) passed_over: BTreeMap<String, usize>,
    /// What was read of the kinds there are many of; the mirror takes them in together.
    pub(crate) facts: Facts,
    /// NodeClaims that are no machine yet.
    pub(crate) unlaunched: Vec<Unlaunched>,
    /// What is part of the input although no API server lets it through.
    pub(crate) doubts: Vec<Rejected>,
    /// Which conditions keep NodePools from being ready, by name.
    pub(crate) unmet_conditions: BTreeMap<String, String>,
    seen: BTreeSet<(String, String, String)>,
}

/// A NodeClaim without an instance, and what is said of its launch.
pub(crate) struct Unlaunched {
    pub(crate) name: String,
    pub(crate) node_pool: String,
    /// Status, reason and message of its condition `Launched`; empty when it has none.
    pub(crate) launched: String,
}

impl Unlaunched {
    fn of(claim: &NodeClaim) -> Self {
        let said = |condition: &Condition| {
            let why = [condition.reason(), condition.message()].into_iter().filter(|text| !text.is_empty());
            let parts = std::iter::once(condition.status.as_str()).chain(why);
            parts.collect::<Vec<_>>().join(": ")
        };
        let pool = claim.metadata.labels.as_ref().and_then(|labels| labels.get(NODEPOOL));
        Self {
            name: claim.metadata.name.clone().unwrap_or_default(),
            node_pool: pool.cloned().unwrap_or_default(),
            launched: claim.condition(LAUNCHED).map(said).unwrap_or_default(),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: HeadMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct HeadMetadata {
    name: String,
    namespace: Option<String>,
}

impl Head {
    /// `Kind/name`, or `Kind/namespace/name`.
    fn title(&self) -> String {
        match self.metadata.namespace.as_deref().filter(|n| !n.is_empty()) {
            Some(namespace) => format!("{}/{namespace}/{}", self.kind, self.metadata.name),
            None => format!("{}/{}", self.kind, self.metadata.name),
        }
    }
}

/// What is wrong with an object.
struct Problem {
    field: String,
    problem: String,
}

impl From<FieldError> for Problem {
    fn from(e: FieldError) -> Self {
        Self { field: e.field, problem: e.problem }
    }
}

fn problem(field: &str, problem: impl Into<String>) -> Problem {
    Problem { field: field.into(), problem: problem.into() }
}

impl Loaded {
    pub(crate) fn read(
        objects: &[(Origin<'_>, &RawValue)],
        only: Option<ManagedBy>,
        rejected: &mut Vec<Rejected>,
    ) -> Self {
        let mut out = Self::default();
        for (origin, raw) in objects {
            let head: Head = match serde_json::from_str(raw.get()) {
                Ok(head) => head,
                Err(e) => {
                    rejected.push(Rejected::new(origin, "", "", format!("is no Kubernetes object: {e}")));
                    continue;
                }
            };
            if let Err(problem) = out.apply(&head, raw, only) {
                if head.kind == "Pod" && waits(raw) {
                    let namespace = head.metadata.namespace.as_deref().unwrap_or_default();
                    let text = format!("{}: {}", problem.field, problem.problem);
                    out.unreadable_pods.push((format!("{namespace}/{}", head.metadata.name), text));
                }
                rejected.push(Rejected::new(origin, head.title(), problem.field, problem.problem));
            }
        }
        out
    }

    fn apply(&mut self, head: &Head, raw: &RawValue, only: Option<ManagedBy>) -> Result<(), Problem> {
        if head.kind.is_empty() {
            return Err(problem("kind", "an object needs a kind"));
        }
        if head.metadata.name.is_empty() {
            return Err(problem("metadata.name", "an object needs a name"));
        }
        let namespace = head.metadata.namespace.clone().unwrap_or_default();
        if !self.seen.insert((head.kind.clone(), namespace, head.metadata.name.clone())) {
            return Err(problem(
                "metadata.name",
                "there is another object of this kind and name; the first one counts",
            ));
        }
        let (cluster, facts) = (&mut self.cluster, &mut self.facts);
        match (head.api_version.as_str(), head.kind.as_str()) {
            ("v1", "Pod") => {
                let mut pod: core::Pod = parsed(raw)?;
                ensure_uid(&mut pod.metadata, "Pod");
                cluster.read_pod(&pod, facts)?;
            }
            ("v1", "Node") => cluster.read_node(&parsed(raw)?, facts)?,
            ("v1", "Namespace") => cluster.apply_namespace(&parsed(raw)?),
            ("v1", "PersistentVolumeClaim") => cluster.apply_volume_claim(&parsed(raw)?),
            ("v1", "PersistentVolume") => cluster.apply_volume(&parsed(raw)?),
            ("v1", "Service") => cluster.apply_service(&parsed(raw)?),
            ("v1", "ReplicationController") => cluster.apply_replication_controller(&parsed(raw)?),
            ("apps/v1", "DaemonSet") => {
                let mut daemon_set: apps::DaemonSet = parsed(raw)?;
                ensure_uid(&mut daemon_set.metadata, "DaemonSet");
                cluster.apply_daemon_set(&daemon_set)?;
            }
            ("apps/v1", "ReplicaSet") => cluster.apply_replica_set(&parsed(raw)?)?,
            ("apps/v1", "StatefulSet") => cluster.apply_stateful_set(&parsed(raw)?)?,
            ("apps/v1", "Deployment") => cluster.apply_deployment(&parsed(raw)?)?,
            ("v1", "PodTemplate") => cluster.apply_pod_template(&parsed(raw)?)?,
            ("autoscaling.x-k8s.io/v1beta1", "CapacityBuffer") => {
                let mut buffer: CapacityBuffer = parsed(raw)?;
                ensure_uid(&mut buffer.metadata, "CapacityBuffer");
                cluster.apply_capacity_buffer(&buffer);
            }
            ("storage.k8s.io/v1", "StorageClass") => {
                cluster.apply_storage_class(&parsed::<storage::StorageClass>(raw)?);
            }
            ("storage.k8s.io/v1", "CSINode") => cluster.apply_csi_node(&parsed::<storage::CSINode>(raw)?),
            ("policy/v1", "PodDisruptionBudget") => {
                cluster.apply_disruption_budget(&parsed::<policy::PodDisruptionBudget>(raw)?);
            }
            ("karpenter.sh/v1", "NodePool") => {
                let mut pool: NodePool = parsed(raw)?;
                ensure_uid(&mut pool.metadata, "NodePool");
                if only.is_some_and(|only| !only.manages(&pool)) {
                    return Err(problem(
                        "spec.template.spec.nodeClassRef",
                        "a scenario's pools use karpenter.kwok.sh/KWOKNodeClass; no other provider takes part",
                    ));
                }
                make_ready_unless_said(&mut pool);
                cluster.apply_node_pool(&pool)?;
                self.unmet_conditions.insert(head.metadata.name.clone(), unmet_conditions(&pool));
                for (index, budget) in pool.budgets().iter().enumerate() {
                    if let Some((field, problem)) = budgets::refused(budget) {
                        let field = format!("spec.disruption.budgets[{index}].{field}");
                        self.doubts.push(Rejected::new("", head.title(), field, problem));
                    }
                }
            }
            ("karpenter.sh/v1", "NodeClaim") => {
                let claim: NodeClaim = parsed(raw)?;
                cluster.read_node_claim(&claim, facts)?;
                let instance = claim.status.as_ref().and_then(|status| status.provider_id.as_deref());
                if instance.unwrap_or_default().is_empty() {
                    self.unlaunched.push(Unlaunched::of(&claim));
                }
            }
            ("karpenter.sh/v1alpha1", "NodeOverlay") => {
                cluster.apply_node_overlay(&parsed::<NodeOverlay>(raw)?)?
            }
            (version, kind) => {
                unknown(version, kind)?;
                *self.passed_over.entry(kind.to_owned()).or_default() += 1;
            }
        }
        Ok(())
    }
}

/// The node class whose pools take part; the others belong to some other controller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ManagedBy {
    pub(crate) group: &'static str,
    pub(crate) kind: &'static str,
}

impl ManagedBy {
    /// The one the scenario format knows.
    pub(crate) const KWOK: Self = Self { group: "karpenter.kwok.sh", kind: "KWOKNodeClass" };

    fn manages(self, pool: &NodePool) -> bool {
        let class = &pool.spec.template.spec.node_class_ref;
        class.group == self.group && class.kind == self.kind
    }
}

/// Reads an object of a known kind; where that fails, once more to learn at which field.
fn parsed<T: DeserializeOwned>(raw: &RawValue) -> Result<T, Problem> {
    serde_json::from_str(raw.get()).or_else(|_| {
        let mut value: serde_json::Value =
            serde_json::from_str(raw.get()).map_err(|e| problem("", e.to_string()))?;
        drop_nulls(&mut value);
        serde_path_to_error::deserialize(value).map_err(|e: serde_path_to_error::Error<serde_json::Error>| {
            let path = e.path().to_string();
            let words = e.into_inner().to_string();
            // The place within one object's text helps nobody; the path does.
            let words = words.split(" at line ").next().unwrap_or_default().to_owned();
            Problem { field: path, problem: words }
        })
    })
}

/// A field set to null is a field left out, in Kubernetes.
fn drop_nulls(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(fields) => {
            fields.retain(|_, v| !v.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// Built-in and Karpenter kinds must be spelled right; what other groups hold is not ours to know.
fn unknown(api_version: &str, kind: &str) -> Result<(), Problem> {
    const CORE: &[&str] = &[
        "ConfigMap",
        "Secret",
        "ServiceAccount",
        "Endpoints",
        "Event",
        "LimitRange",
        "ResourceQuota",
        "Binding",
        "ComponentStatus",
    ];
    const APPS: &[&str] = &["ControllerRevision"];
    const STORAGE: &[&str] =
        &["VolumeAttachment", "CSIDriver", "CSIStorageCapacity", "VolumeAttributesClass"];
    const OURS: &[(&str, &[&str])] = &[
        (
            "v1",
            &[
                "Pod",
                "Node",
                "Namespace",
                "PersistentVolumeClaim",
                "PersistentVolume",
                "Service",
                "ReplicationController",
            ],
        ),
        ("apps/v1", &["DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"]),
        ("storage.k8s.io/v1", &["StorageClass", "CSINode"]),
        ("policy/v1", &["PodDisruptionBudget"]),
        ("karpenter.sh/v1", &["NodePool", "NodeClaim"]),
        ("karpenter.sh/v1alpha1", &["NodeOverlay"]),
    ];
    if let Some((version, _)) = OURS.iter().find(|(_, kinds)| kinds.contains(&kind)) {
        return Err(problem(
            "apiVersion",
            format!("{api_version:?} is not understood for {kind}; write {version}"),
        ));
    }
    let known: &[&str] = match api_version {
        "" => return Err(problem("apiVersion", "an object needs an apiVersion")),
        "v1" => CORE,
        "apps/v1" => APPS,
        "storage.k8s.io/v1" => STORAGE,
        "policy/v1" | "karpenter.sh/v1" | "karpenter.sh/v1alpha1" => &[],
        _ => return Ok(()),
    };
    if known.contains(&kind) {
        return Ok(());
    }
    Err(problem("kind", format!("there is no {kind} in {api_version}")))
}

/// Objects without a uid get one that depends on kind, namespace and name only, because uids decide the order of pods.
fn ensure_uid(metadata: &mut ObjectMeta, kind: &str) {
    if metadata.uid.as_deref().unwrap_or_default().is_empty() {
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        let key = format!("{kind}/{namespace}/{name}");
        metadata.uid = Some(Uuid::new_v5(&Uuid::NAMESPACE_OID, key.as_bytes()).to_string());
    }
}

/// No controller runs that would set the conditions, so a pool that does not say otherwise is ready.
fn make_ready_unless_said(pool: &mut NodePool) {
    if pool.conditions().is_empty() {
        for type_ in ["ValidationSucceeded", "NodeClassReady", "Ready"] {
            let condition =
                Condition { type_: type_.into(), status: ConditionStatus::True, ..Condition::default() };
            pool.conditions_mut().push(condition);
        }
    }
}

/// Each condition that is not met, with its message; those that sum up the others only where they are alone.
fn unmet_conditions(pool: &NodePool) -> String {
    let unmet = |c: &&Condition| c.status != ConditionStatus::True && c.type_ != NODE_REGISTRATION_HEALTHY;
    let (sums, others): (Vec<&Condition>, Vec<&Condition>) =
        pool.conditions().iter().filter(unmet).partition(|condition| condition.type_ == READY);
    let told = if others.is_empty() { sums } else { others };
    let text = |c: &&Condition| match c.message() {
        "" => format!("{} is {}", c.type_, c.status.as_str()),
        message => format!("{} is {}: {message}", c.type_, c.status.as_str()),
    };
    told.iter().map(text).collect::<Vec<_>>().join("; ")
}

/// Whether a pod that could not be understood is one somebody waits for.
fn waits(raw: &RawValue) -> bool {
    let Ok(pod) = serde_json::from_str::<serde_json::Value>(raw.get()) else { return false };
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    pod["spec"]["nodeName"].as_str().unwrap_or_default().is_empty()
        && conditions.iter().any(|c| c["type"] == "PodScheduled" && c["reason"] == "Unschedulable")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(objects: &[&str]) -> (Loaded, Vec<String>) {
        let raws: Vec<Box<RawValue>> =
            objects.iter().map(|o| RawValue::from_string((*o).to_owned()).unwrap()).collect();
        let listed: Vec<_> =
            raws.iter().enumerate().map(|(i, r)| (Origin { file: "f.json", index: i + 1 }, &**r)).collect();
        let mut rejected = Vec::new();
        let loaded = Loaded::read(&listed, Some(ManagedBy::KWOK), &mut rejected);
        (loaded, rejected.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn what_makes_no_sense_is_left_out_with_file_object_and_field() {
        let waiting =
            r#""status":{"conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable"}]}"#;
        for (object, want) in [
            (
                r#"{"apiVersion":"v1","kind":"Podd","metadata":{"name":"a"}}"#.to_owned(),
                "f.json: object 1: Podd/a: kind: there is no Podd in v1",
            ),
            (
                r#"{"apiVersion":"v2","kind":"Pod","metadata":{"name":"a"}}"#.to_owned(),
                "f.json: object 1: Pod/a: apiVersion: \"v2\" is not understood for Pod; write v1",
            ),
            (
                r#"{"apiVersion":"v1","kind":"Pod","metadata":{}}"#.to_owned(),
                "f.json: object 1: Pod/: metadata.name: an object needs a name",
            ),
            (
                r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"},"spec":{"taints":"x"}}"#
                    .to_owned(),
                "f.json: object 1: Node/n: spec.taints: invalid type: string \"x\", expected a sequence",
            ),
            (
                format!(
                    r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"p","namespace":"d"}},"spec":{{"containers":[{{"name":"c","resources":{{"requests":{{"cpu":"lots"}}}}}}]}},{waiting}}}"#
                ),
                "f.json: object 1: Pod/d/p: spec.containers[0].resources.requests[cpu]: ",
            ),
        ] {
            let (_, rejected) = load(&[&object]);
            assert!(rejected.len() == 1 && rejected[0].starts_with(want), "{rejected:?}\n{want}");
        }
    }

    #[test]
    fn a_pod_that_waits_and_makes_no_sense_is_remembered() {
        let (loaded, _) = load(&[
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"d"},"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"lots"}}}]},"status":{"conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable"}]}}"#,
        ]);
        assert_eq!(loaded.unreadable_pods[0].0, "d/p");
        assert_eq!(loaded.facts.pod_count(), 0);
    }

    #[test]
    fn the_first_of_two_objects_with_one_name_counts() {
        let pod = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"d"}}"#;
        let (loaded, rejected) = load(&[pod, pod]);
        assert_eq!(loaded.facts.pod_count(), 1);
        assert!(rejected[0].contains("object 2: Pod/d/p: metadata.name: there is another"), "{rejected:?}");
    }

    #[test]
    fn other_kinds_are_passed_over_and_counted() {
        let (loaded, rejected) = load(&[
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}"#,
            r#"{"apiVersion":"cert-manager.io/v1","kind":"Certificate","metadata":{"name":"a"}}"#,
        ]);
        assert_eq!(rejected, [] as [&str; 0]);
        assert_eq!(loaded.passed_over.values().sum::<usize>(), 2);
    }

    #[test]
    fn a_missing_uid_depends_on_kind_namespace_and_name_only() {
        let mut metadata =
            ObjectMeta { name: Some("p".into()), namespace: Some("d".into()), ..Default::default() };
        ensure_uid(&mut metadata, "Pod");
        assert_eq!(metadata.uid.as_deref(), Some("4077d286-f67e-5f20-8fc7-f4d89cffa2b5"));
    }
}
