//! What is kept of a pod once the state has taken from it what scheduling needs: the little that draining, metrics and events
//! ask for. There are more pods than anything else, so this is most of what grows with a cluster.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ObjectReference, Pod, PodCondition, PodSpec, PodStatus, ResourceRequirements, Toleration,
    Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as OpenQuantity;
use karpenter_api::{Quantity, annotations, taints};
use karpenter_engine::ingest::Held;
use karpenter_runtime::informer::Kept;
use karpenter_runtime::object_key::ObjectKey;

/// Amounts of resources: thousandths of cores, whole units of everything else.
pub(crate) type Amounts = BTreeMap<String, i64>;

/// A pod as controllers know it.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenPod {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Which of this name.
    pub uid: Box<str>,
    pub(crate) version: Box<str>,
    pub(crate) created: Option<Timestamp>,
    /// When it has to be gone, once it is being deleted.
    pub(crate) deleted: Option<Timestamp>,
    pub(crate) started: Option<Timestamp>,
    /// The node it is bound to.
    pub(crate) node: Option<Box<str>>,
    pub(crate) phase: Phase,
    /// Since when it is ready, while it is.
    pub(crate) ready: Option<Since>,
    /// Since when it has a node, as kube-scheduler says.
    pub(crate) scheduled: Option<Since>,
    pub(crate) owned_by: OwnerKinds,
    /// The path of its first owner in the API.
    pub(crate) owner: Box<str>,
    /// `karpenter.sh/do-not-disrupt`.
    pub(crate) do_not_disrupt: Option<Box<str>>,
    /// `controller.kubernetes.io/pod-deletion-cost`.
    pub deletion_cost: Option<Box<str>>,
    /// Whether it stays on nodes that are being drained.
    pub(crate) tolerates_disruption: bool,
    /// Whether the cluster cannot do without it.
    pub(crate) is_critical: bool,
    /// How long it may take to end, in seconds.
    pub(crate) grace: Option<i64>,
    /// Names of the PersistentVolumeClaims it uses.
    pub(crate) volume_claims: Box<[Box<str>]>,
    /// Whether it asks for devices by claims.
    pub(crate) has_resource_claims: bool,
    pub(crate) requests: Needs,
    pub(crate) limits: Needs,
}

/// How far a pod is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing is said.
    #[default]
    None,
    Pending,
    Running,
    Succeeded,
    Failed,
    Unknown,
}

impl Phase {
    fn of(text: Option<&str>) -> Self {
        match text {
            Some("Pending") => Self::Pending,
            Some("Running") => Self::Running,
            Some("Succeeded") => Self::Succeeded,
            Some("Failed") => Self::Failed,
            None | Some("") => Self::None,
            Some(_) => Self::Unknown,
        }
    }

    /// As the API has it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Unknown => "Unknown",
        }
    }
}

/// A condition that is true, and since when if that is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Since(pub(crate) Option<Timestamp>);

/// Which kinds are among a pod's owners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnerKinds {
    pub(crate) daemon_set: bool,
    pub(crate) stateful_set: bool,
    /// A ReplicaSet, and it is the one in charge.
    pub(crate) replica_set: bool,
    /// A Node: it is the image of a static pod, which the API cannot remove.
    pub(crate) node: bool,
}

impl OwnerKinds {
    fn of(pod: &Pod) -> Self {
        let mut owners = Self::default();
        for owner in pod.metadata.owner_references.iter().flatten() {
            match (owner.api_version.as_str(), owner.kind.as_str()) {
                ("apps/v1", "DaemonSet") => owners.daemon_set = true,
                ("apps/v1", "StatefulSet") => owners.stateful_set = true,
                ("apps/v1", "ReplicaSet") => owners.replica_set |= owner.controller == Some(true),
                ("v1", "Node") => owners.node = true,
                _ => {}
            }
        }
        owners
    }
}

/// Amounts in as little room as they need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs(Box<[(Box<str>, i64)]>);

impl Needs {
    fn new(amounts: Amounts) -> Self {
        Self(amounts.into_iter().map(|(name, amount)| (name.into_boxed_str(), amount)).collect())
    }

    /// Resource and amount.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.0.iter().map(|(name, amount)| (&**name, *amount))
    }
}

impl Kept for SeenPod {
    fn key(&self) -> ObjectKey {
        self.key.clone()
    }

    fn uid(&self) -> Option<&str> {
        Some(&*self.uid).filter(|uid| !uid.is_empty())
    }

    fn version(&self) -> Option<&str> {
        Some(&self.version)
    }
}

impl SeenPod {
    /// Of a pod as the API has it.
    pub(crate) fn of(pod: &Pod) -> Self {
        let (meta, nothing) = (&pod.metadata, PodSpec::default());
        let spec = pod.spec.as_ref().unwrap_or(&nothing);
        let boxed = |text: Option<&str>| text.unwrap_or_default().into();
        let annotation = |key: &str| {
            let value = meta.annotations.as_ref().and_then(|annotations| annotations.get(key));
            value.map(|value| value.as_str().into())
        };
        let key = ObjectKey::of(pod);
        let class = spec.priority_class_name.as_deref();
        let volumes = spec.volumes.iter().flatten();
        Self {
            uid: boxed(meta.uid.as_deref()),
            version: boxed(meta.resource_version.as_deref()),
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            deleted: meta.deletion_timestamp.as_ref().map(|time| time.0),
            started: pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map(|time| time.0),
            node: spec.node_name.as_deref().filter(|name| !name.is_empty()).map(Into::into),
            phase: Phase::of(pod.status.as_ref().and_then(|status| status.phase.as_deref())),
            ready: condition(pod, "Ready"),
            scheduled: condition(pod, "PodScheduled"),
            owned_by: OwnerKinds::of(pod),
            owner: owner(pod).unwrap_or_default().into(),
            do_not_disrupt: annotation(annotations::DO_NOT_DISRUPT),
            deletion_cost: annotation(annotations::POD_DELETION_COST),
            tolerates_disruption: spec.tolerations.iter().flatten().any(answers_disruption),
            // By the name of its priority class alone, as kubelet's graceful shutdown has it.
            is_critical: matches!(class, Some("system-cluster-critical" | "system-node-critical")),
            grace: spec.termination_grace_period_seconds,
            volume_claims: volumes.filter_map(|volume| claim_name(&key.name, volume)).collect(),
            has_resource_claims: has_resource_claims(spec),
            requests: Needs::new(total(
                spec,
                pod.status.as_ref(),
                |resources| resources.requests.as_ref(),
                true,
            )),
            limits: Needs::new(total(spec, None, |resources| resources.limits.as_ref(), false)),
            key,
        }
    }

    /// What an event about it says it is about.
    pub(crate) fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(self.key.name.to_string()),
            namespace: Some(self.key.namespace.to_string()),
            uid: Some(self.uid.to_string()),
            resource_version: Some(self.version.to_string()),
            ..ObjectReference::default()
        }
    }
}

fn condition(pod: &Pod, type_: &str) -> Option<Since> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    let is = |condition: &&PodCondition| condition.type_ == type_;
    let met = conditions.find(is).filter(|condition| condition.status == "True")?;
    Some(Since(met.last_transition_time.as_ref().map(|time| time.0)))
}

fn owner(pod: &Pod) -> Option<String> {
    let owner = pod.metadata.owner_references.iter().flatten().next()?;
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let kind = owner.kind.to_lowercase();
    Some(format!("/apis/{}/namespaces/{namespace}/{kind}s/{}", owner.api_version, owner.name))
}

fn answers_disruption(toleration: &Toleration) -> bool {
    let text = |text: &Option<String>| text.as_deref().unwrap_or_default().to_owned();
    let matches = |text: &Option<String>, wanted: &str| {
        text.as_deref().is_none_or(|text| text.is_empty() || text == wanted)
    };
    let taint = taints::DISRUPTED;
    matches(&toleration.effect, taint.effect.as_str())
        && matches(&toleration.key, taint.key)
        && match text(&toleration.operator).as_str() {
            // The taint has no value.
            "" | "Equal" => text(&toleration.value).is_empty(),
            "Exists" => true,
            _ => false,
        }
}

fn claim_name(pod: &str, volume: &Volume) -> Option<Box<str>> {
    if let Some(claim) = &volume.persistent_volume_claim {
        return Some(claim.claim_name.as_str().into());
    }
    volume.ephemeral.as_ref().map(|_| format!("{pod}-{}", volume.name).into())
}

fn has_resource_claims(spec: &PodSpec) -> bool {
    let of_pod = spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty());
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut claims = containers.filter_map(|container| container.resources.as_ref()?.claims.as_ref());
    of_pod || claims.any(|claims| !claims.is_empty())
}

/// What a pod needs at most at one time (KEP-753): containers and sidecars together, or an init container with the sidecars
/// before it; then what the pod as a whole says, then its overhead. Limits have an overhead only where there is a limit. What a
/// container holds counts as the status has it, if there is one to go by; but for an init container, which is not resized.
fn total(
    spec: &PodSpec,
    status: Option<&PodStatus>,
    pick: impl Fn(&ResourceRequirements) -> Option<&BTreeMap<String, OpenQuantity>>,
    overhead_alone: bool,
) -> Amounts {
    let of = |container: &Container| amounts(container.resources.as_ref().and_then(&pick));
    let held = |container: &Container| {
        let asked = of(container);
        let Some(held) = status.and_then(|status| Held::by(container, status)) else { return asked };
        let mut most = amounts(held.actuated);
        raise(&mut most, &amounts(held.allocated));
        if !held.is_all {
            raise(&mut most, &asked);
        }
        most
    };
    let mut total = Amounts::new();
    for container in &spec.containers {
        add(&mut total, &held(container));
    }
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        if container.restart_policy.as_deref() == Some("Always") {
            let needs = held(container);
            add(&mut total, &needs);
            add(&mut sidecars, &needs);
            raise(&mut peak, &sidecars);
        } else {
            let mut with_sidecars = of(container);
            add(&mut with_sidecars, &sidecars);
            raise(&mut peak, &with_sidecars);
        }
    }
    raise(&mut total, &peak);
    total.extend(amounts(spec.resources.as_ref().and_then(&pick)));
    for (name, amount) in amounts(spec.overhead.as_ref()) {
        if overhead_alone || total.contains_key(&name) {
            *total.entry(name).or_default() += amount;
        }
    }
    total.insert("pods".to_owned(), 1);
    total
}

/// Quantities as metrics show them.
pub(crate) fn amounts(list: Option<&BTreeMap<String, OpenQuantity>>) -> Amounts {
    let amount = |(name, quantity): (&String, &OpenQuantity)| {
        // The API server has checked it; what it lets through and we cannot read counts for nothing.
        let quantity = Quantity::parse(&quantity.0).unwrap_or_default();
        (name.clone(), if name == "cpu" { quantity.milli_value() } else { quantity.value() })
    };
    list.into_iter().flatten().map(amount).collect()
}

fn add(total: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        add_one(total, name, *amount);
    }
}

/// Adds an amount of one resource.
pub(crate) fn add_one(total: &mut Amounts, name: &str, amount: i64) {
    match total.get_mut(name) {
        Some(sum) => *sum = sum.saturating_add(amount),
        None => drop(total.insert(name.to_owned(), amount)),
    }
}

fn raise(to: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let most = to.entry(name.clone()).or_default();
        *most = (*most).max(*amount);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn seen(pod: Value) -> SeenPod {
        SeenPod::of(&serde_json::from_value(pod).expect("a pod"))
    }

    #[test]
    fn a_pod_needs_its_containers_or_its_largest_start_whichever_is_more() {
        let cpu = |amount: &str| json!({"requests": {"cpu": amount}});
        let pod = seen(json!({"metadata": {"name": "p"}, "spec": {
            "containers": [{"name": "a", "resources": cpu("1")}, {"name": "b", "resources": cpu("500m")}],
            "initContainers": [
                {"name": "sidecar", "restartPolicy": "Always", "resources": cpu("250m")},
                {"name": "init", "resources": cpu("3")},
            ],
            "overhead": {"cpu": "100m", "memory": "1Mi"},
        }}));
        let requests: Vec<_> = pod.requests.iter().collect();
        assert_eq!(requests, [("cpu", 3350), ("memory", 1 << 20), ("pods", 1)]);
        let limits: Vec<_> = pod.limits.iter().collect();
        assert_eq!(limits, [("pods", 1)], "overhead limits nothing by itself");
    }

    #[test]
    fn a_pod_being_resized_needs_what_it_still_holds() {
        let cpu = |amount: &str| json!({"requests": {"cpu": amount}, "limits": {"cpu": amount}});
        let running = |name: &str, runs_with: &str, put_aside: &str| {
            json!({
                "name": name, "image": "i", "imageID": "i", "ready": true, "restartCount": 0,
                "resources": cpu(runs_with), "allocatedResources": {"cpu": put_aside},
            })
        };
        let resized = |conditions: Value| {
            seen(json!({
                "spec": {
                    "containers": [{"name": "a", "resources": cpu("1")}, {"name": "b", "resources": cpu("4")}],
                    "initContainers": [{"name": "init", "resources": cpu("1")}],
                },
                "status": {
                    "conditions": conditions,
                    "containerStatuses": [running("a", "2", "1"), running("b", "2", "3")],
                    "initContainerStatuses": [running("init", "64", "64")],
                },
            }))
        };
        let of =
            |pod: &SeenPod| pod.requests.iter().find(|(name, _)| *name == "cpu").map(|(_, amount)| amount);
        let deferred = resized(json!([]));
        assert_eq!(of(&deferred), Some(6000), "the one holds two, the other will have four");
        assert!(deferred.limits.iter().any(|limit| limit == ("cpu", 5000)), "limits are those of the spec");
        let infeasible = json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]);
        assert_eq!(of(&resized(infeasible)), Some(5000), "four it will never have");
    }

    #[test]
    fn a_toleration_of_the_disrupted_taint_keeps_a_pod_where_it_is() {
        let tolerates = |toleration: &Value| {
            seen(json!({"spec": {"containers": [], "tolerations": [toleration]}})).tolerates_disruption
        };
        for toleration in [
            json!({"operator": "Exists"}),
            json!({"key": "karpenter.sh/disrupted", "operator": "Exists"}),
            json!({"key": "karpenter.sh/disrupted", "operator": "Equal", "effect": "NoSchedule"}),
            json!({"key": "karpenter.sh/disrupted"}),
        ] {
            assert!(tolerates(&toleration), "{toleration}");
        }
        for toleration in [
            json!({"key": "karpenter.sh/disrupted", "operator": "Exists", "effect": "NoExecute"}),
            json!({"key": "karpenter.sh/disrupted", "operator": "Equal", "value": "x"}),
            json!({"key": "other", "operator": "Exists"}),
        ] {
            assert!(!tolerates(&toleration), "{toleration}");
        }
    }

    #[test]
    fn claims_are_those_it_names_and_those_made_for_it() {
        let pod = seen(
            json!({"metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": [], "volumes": [
                {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "b", "ephemeral": {}},
                {"name": "c", "emptyDir": {}},
            ]}}),
        );
        assert_eq!(*pod.volume_claims, ["data".into(), "p-b".into()]);
    }

    #[test]
    fn an_event_about_a_pod_names_it_as_one_about_the_object_would() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "default", "uid": "u", "resourceVersion": "7"},
        }))
        .expect("a pod");
        assert_eq!(SeenPod::of(&pod).reference(), karpenter_runtime::events::reference(&pod));
    }

    #[test]
    fn an_owner_in_charge_is_told_from_one_that_is_not() {
        let owned = |kind: &str, controller: bool| {
            let owner = json!([{"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "o", "controller": controller}]);
            seen(json!({"metadata": {"namespace": "n", "ownerReferences": owner}}))
        };
        assert!(owned("ReplicaSet", true).owned_by.replica_set);
        assert!(!owned("ReplicaSet", false).owned_by.replica_set);
        assert!(owned("DaemonSet", false).owned_by.daemon_set);
        assert_eq!(&*owned("ReplicaSet", true).owner, "/apis/apps/v1/namespaces/n/replicasets/o");
    }
}
