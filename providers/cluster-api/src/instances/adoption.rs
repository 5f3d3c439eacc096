//! NodeClaims for Machines that were there before Karpenter: the way from cluster-autoscaler, or from nodes made by hand, to a
//! cluster that Karpenter looks after. Only with `adoption: Existing`. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use karpenter_api::labels::{
    ARCH, CAPACITY_TYPE, CAPACITY_TYPE_ON_DEMAND, CAPACITY_TYPE_SPOT, INSTANCE_TYPE, NODEPOOL, OS,
    TOPOLOGY_REGION, TOPOLOGY_ZONE, WINDOWS_BUILD,
};
use karpenter_api::{NodeClaim, NodePool, annotations, finalizers};
use karpenter_cloudprovider::conversion;
use karpenter_engine::requirement::{Operator, SelectorRequirement};
use karpenter_engine::requirements::Requirements;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::node_claims::Target;
use crate::GROUP;
use crate::client::machine::Machine;
use crate::names;

/// The kind of NodeClass that NodePools of ours refer to.
const NODE_CLASS_KIND: &str = "ClusterAPINodeClass";

/// In the annotation of an adopted NodeClaim: it was made for the Machine it names.
pub(crate) const EXISTING: &str = "existing";

/// For how long a Machine that could not be adopted is not asked after again: there may be many of them, and a look every second.
const UNSUITED: Duration = Duration::from_secs(60);

/// Machines, by uid, that no NodePool suited, whose Node was not there, or for which no NodeClaim could be made, and when that was found out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unsuited(BTreeMap<String, Instant>);

impl Unsuited {
    /// Whether a Machine could not be adopted a moment ago.
    pub(crate) fn holds(&self, machine: &Machine) -> bool {
        self.0.get(&machine.uid).is_some_and(|at| at.elapsed() < UNSUITED)
    }

    /// Those of these Machines, by uid, that may be adopted now.
    pub(crate) fn without(&self, machines: &BTreeSet<String>) -> BTreeSet<String> {
        let suits = |uid: &&String| self.0.get(*uid).is_none_or(|at| at.elapsed() >= UNSUITED);
        machines.iter().filter(suits).cloned().collect()
    }

    /// These Machines cannot be adopted for now.
    pub(crate) fn note(&mut self, machines: &[&Machine]) {
        self.0.retain(|_, at| at.elapsed() < UNSUITED);
        self.0.extend(machines.iter().map(|machine| (machine.uid.clone(), Instant::now())));
    }
}

/// Whether a Machine has a Node, is nobody's, and stays.
pub(crate) fn is_adoptable(machine: &Machine) -> bool {
    machine.claim().is_none()
        && !machine.deleting
        && !machine.is_marked()
        && !machine.is_condemned()
        && !machine.is_paused()
        && machine.node_name.is_some()
        && machine.provider_id.is_some()
}

/// The NodePool an adopted node belongs to: of those that name the NodeClass and whose requirements its labels meet, the one of the
/// greatest weight, then by name. A static NodePool has the number of nodes it wants, and would delete what is added.
pub(crate) fn pool_for<'a>(
    pools: &'a [NodePool],
    node_class: &str,
    labels: &BTreeMap<String, String>,
) -> Option<&'a NodePool> {
    let fits = |pool: &&NodePool| {
        let spec = &pool.spec.template.spec;
        let class = &spec.node_class_ref;
        class.name == node_class
            && class.group == GROUP
            && class.kind == NODE_CLASS_KIND
            && !pool.is_static()
            && pool.metadata.deletion_timestamp.is_none()
            && meets(pool, labels)
    };
    let weight =
        |pool: &&NodePool| (std::cmp::Reverse(pool.spec.weight.unwrap_or(0)), pool.metadata.name.clone());
    pools.iter().filter(fits).min_by_key(weight)
}

/// Whether labels meet the requirements of a NodePool; requirements that cannot be read are met by none.
pub(super) fn meets(pool: &NodePool, labels: &BTreeMap<String, String>) -> bool {
    let selectors: Vec<SelectorRequirement> =
        pool.spec.template.spec.requirements.iter().map(conversion::selector).collect();
    let Ok(requirements) = Requirements::from_selectors(&selectors) else { return false };
    requirements.iter().all(|requirement| match labels.get(&*requirement.key) {
        Some(value) => requirement.has(value),
        None => matches!(requirement.operator(), Operator::NotIn | Operator::DoesNotExist),
    })
}

/// What of a Node is true of it alone, whatever its resource says of all of them.
const OF_THE_NODE: [&str; 5] = [TOPOLOGY_ZONE, TOPOLOGY_REGION, ARCH, OS, WINDOWS_BUILD];

/// The labels of an adopted node's NodeClaim: what its resource is offered with, as the Node has it, for the Node knows. Instance type
/// and capacity type are the offering's, by which Karpenter knows its price; a resource that is not offered has what the Node says.
pub(crate) fn labels_of(
    node: &BTreeMap<String, String>,
    offered: Option<&BTreeMap<String, String>>,
    resource: &str,
) -> BTreeMap<String, String> {
    let mut labels = offered.cloned().unwrap_or_default();
    for (key, value) in node {
        let is_known = labels.contains_key(key) && key != INSTANCE_TYPE && key != CAPACITY_TYPE;
        if is_known || OF_THE_NODE.contains(&key.as_str()) {
            labels.insert(key.clone(), value.clone());
        }
    }
    let said = |key: &str| node.get(key).filter(|value| !value.is_empty()).cloned();
    let spot = node.contains_key(names::INTERRUPTIBLE);
    let paid = if spot { CAPACITY_TYPE_SPOT } else { CAPACITY_TYPE_ON_DEMAND };
    labels
        .entry(INSTANCE_TYPE.to_owned())
        .or_insert_with(|| said(INSTANCE_TYPE).unwrap_or_else(|| resource.to_owned()));
    labels
        .entry(CAPACITY_TYPE.to_owned())
        .or_insert_with(|| said(CAPACITY_TYPE).unwrap_or_else(|| paid.to_owned()));
    labels
}

/// Adds what a NodePool asks for and the Node has.
pub(crate) fn with_what_is_required(
    pool: &NodePool,
    node: &BTreeMap<String, String>,
    mut labels: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    for requirement in &pool.spec.template.spec.requirements {
        if let Some(value) = node.get(&requirement.key) {
            labels.entry(requirement.key.clone()).or_insert_with(|| value.clone());
        }
    }
    labels
}

/// The NodeClaim of an adopted Machine, named after it so that it is made once.
pub(crate) fn adopt(
    pool: &NodePool,
    machine: &Machine,
    target: &Target,
    node_labels: &BTreeMap<String, String>,
) -> Result<NodeClaim, serde_json::Error> {
    let template = &pool.spec.template;
    let meta = template.metadata.clone().unwrap_or_default();
    let mut labels = meta.labels.unwrap_or_default();
    labels.extend(node_labels.clone());
    let pool_name = pool.metadata.name.clone().unwrap_or_default();
    labels.insert(NODEPOOL.to_owned(), pool_name.clone());
    let mut notes = meta.annotations.unwrap_or_default();
    for key in [annotations::NODEPOOL_HASH, annotations::NODEPOOL_HASH_VERSION] {
        if let Some(value) = pool.metadata.annotations.as_ref().and_then(|all| all.get(key)) {
            notes.insert(key.to_owned(), value.clone());
        }
    }
    notes.insert(names::TARGET.to_owned(), target.to_string());
    notes.insert(names::MACHINE.to_owned(), machine.key.to_string());
    notes.insert(names::ADOPTED.to_owned(), EXISTING.to_owned());
    let mut spec = serde_json::to_value(&template.spec)?;
    let known = [INSTANCE_TYPE, CAPACITY_TYPE, TOPOLOGY_ZONE]
        .into_iter()
        .filter_map(|key| Some(json!({"key": key, "operator": "In", "values": [node_labels.get(key)?]})));
    if let Some(requirements) = spec.get_mut("requirements").and_then(Value::as_array_mut) {
        requirements.extend(known);
    }
    serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {
            "name": &*machine.key.name, "labels": labels, "annotations": notes,
            "finalizers": [finalizers::TERMINATION],
            "ownerReferences": [{
                "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "name": pool_name,
                "uid": pool.metadata.uid.clone().unwrap_or_default(), "blockOwnerDeletion": true,
            }],
        },
        "spec": spec,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::scalable::ScalableKey;
    use crate::fixtures::machine;
    use crate::nodeclass::LaunchMode;

    fn pool(name: &str, weight: i32, requirement: Value) -> NodePool {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name, "uid": "u"},
            "spec": {"weight": weight, "template": {"spec": {
                "requirements": [requirement],
                "nodeClassRef": {"group": "karpenter.cluster.x-k8s.io", "kind": "ClusterAPINodeClass", "name": "default"},
            }}},
        }))
        .expect("a NodePool")
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_no_node_pool_suits_is_not_asked_after_for_a_minute() {
        let (one, other) =
            (crate::fixtures::machine("one", 0, &[]), crate::fixtures::machine("other", 0, &[]));
        let mut unsuited = Unsuited::default();
        unsuited.note(&[&one]);
        assert_eq!((unsuited.holds(&one), unsuited.holds(&other)), (true, false));
        tokio::time::advance(UNSUITED).await;
        unsuited.note(&[&other]);
        assert_eq!((unsuited.holds(&one), unsuited.holds(&other)), (false, true), "pools come and change");
    }

    #[test]
    fn a_node_goes_to_the_heaviest_pool_whose_requirements_it_meets() {
        let zone = |zone: &str| json!({"key": TOPOLOGY_ZONE, "operator": "In", "values": [zone]});
        let pools = [pool("a", 1, zone("a")), pool("b", 5, zone("b")), pool("c", 9, zone("a"))];
        let labels = BTreeMap::from([(TOPOLOGY_ZONE.to_owned(), "a".to_owned())]);
        let found = pool_for(&pools, "default", &labels).and_then(|pool| pool.metadata.name.clone());
        assert_eq!(found.as_deref(), Some("c"));
        assert!(pool_for(&pools, "other", &labels).is_none());
    }

    #[test]
    fn a_pool_of_another_provider_or_of_fixed_size_adopts_nothing() {
        let any = || json!({"key": TOPOLOGY_ZONE, "operator": "Exists"});
        let labels = BTreeMap::from([(TOPOLOGY_ZONE.to_owned(), "a".to_owned())]);
        let mut pools = [pool("group", 9, any()), pool("kind", 8, any()), pool("static", 7, any())];
        pools[0].spec.template.spec.node_class_ref.group = "karpenter.k8s.aws".to_owned();
        pools[1].spec.template.spec.node_class_ref.kind = "EC2NodeClass".to_owned();
        pools[2].spec.replicas = Some(3);
        assert!(pool_for(&pools, "default", &labels).is_none());
    }

    #[test]
    fn an_adopted_node_is_where_and_what_it_says_itself() {
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let node = map(&[
            (TOPOLOGY_ZONE, "b"),
            (ARCH, "arm64"),
            (INSTANCE_TYPE, "m5"),
            ("team", "x"),
            ("kubernetes.io/hostname", "h"),
        ]);
        let offered =
            map(&[(TOPOLOGY_ZONE, "a"), (ARCH, "amd64"), (INSTANCE_TYPE, "m"), (CAPACITY_TYPE, "on-demand")]);
        let labels = labels_of(&node, Some(&offered), "m");
        let wanted =
            map(&[(TOPOLOGY_ZONE, "b"), (ARCH, "arm64"), (INSTANCE_TYPE, "m"), (CAPACITY_TYPE, "on-demand")]);
        assert_eq!(labels, wanted);
        let alone = labels_of(&node, None, "m");
        let wanted = map(&[
            (TOPOLOGY_ZONE, "b"),
            (ARCH, "arm64"),
            (INSTANCE_TYPE, "m5"),
            (CAPACITY_TYPE, "on-demand"),
        ]);
        assert_eq!(alone, wanted, "its resource is not offered");
        let spot = map(&[(names::INTERRUPTIBLE, "")]);
        let wanted = map(&[(INSTANCE_TYPE, "m"), (CAPACITY_TYPE, "spot")]);
        assert_eq!(labels_of(&spot, None, "m"), wanted, "nothing else is said");
        let asks = pool("p", 1, json!({"key": "team", "operator": "In", "values": ["x"]}));
        assert_eq!(with_what_is_required(&asks, &node, labels)["team"], "x");
    }

    #[test]
    fn numbers_are_compared_as_numbers() {
        let labels = BTreeMap::from([("cores".to_owned(), "8".to_owned())]);
        let fits = |operator: &str, value: &str| {
            let pools = [pool("p", 1, json!({"key": "cores", "operator": operator, "values": [value]}))];
            pool_for(&pools, "default", &labels).is_some()
        };
        let met = [("Gt", "7"), ("Lt", "16"), ("Gte", "8"), ("Lte", "8")];
        let unmet = [("Gt", "8"), ("Lt", "8"), ("Gte", "16"), ("Lte", "7")];
        assert!(met.iter().all(|(operator, value)| fits(operator, value)));
        assert!(unmet.iter().all(|(operator, value)| !fits(operator, value)));
    }

    #[test]
    fn an_adopted_machine_is_named_by_its_node_claim() {
        let target = Target::new(
            ScalableKey::from_annotation("default/m").expect("a key"),
            LaunchMode::MachineDeployment,
            None,
        );
        let any = json!({"key": "kubernetes.io/os", "operator": "Exists"});
        let labels = BTreeMap::from([(INSTANCE_TYPE.to_owned(), "m".to_owned())]);
        let made = adopt(&pool("p", 1, any), &machine("m-x", 0, &[]), &target, &labels).expect("a NodeClaim");
        assert_eq!(made.metadata.name.as_deref(), Some("m-x"));
        assert_eq!(
            made.metadata.labels.as_ref().and_then(|l| l.get(NODEPOOL)).map(String::as_str),
            Some("p")
        );
        let facts = super::super::node_claims::facts(&made);
        assert_eq!(facts.bound_to.map(|key| key.to_string()).as_deref(), Some("default/m-x"));
    }
}
