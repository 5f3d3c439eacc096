//! NodeClaims for Machines that were there before Karpenter: the way from cluster-autoscaler, or from nodes made by hand, to a
//! cluster that Karpenter looks after. Only with `adoption: Existing`. Pure.

use std::collections::BTreeMap;

use karpenter_api::labels::{CAPACITY_TYPE, INSTANCE_TYPE, NODEPOOL, TOPOLOGY_ZONE};
use karpenter_api::requirement::Operator;
use karpenter_api::{NodeClaim, NodePool, annotations, finalizers};
use serde_json::{Value, json};

use super::node_claims::Target;
use crate::client::machine::Machine;
use crate::names;

/// In the annotation of an adopted NodeClaim: it was made for the Machine it names.
pub const EXISTING: &str = "existing";

/// Whether a Machine has a Node, is nobody's, and stays.
pub fn is_adoptable(machine: &Machine) -> bool {
    machine.claim().is_none()
        && !machine.deleting
        && !machine.is_marked()
        && !machine.is_condemned()
        && machine.node_name.is_some()
        && machine.provider_id.is_some()
}

/// The NodePool an adopted node belongs to: of those that name the NodeClass and whose requirements its labels meet, the one of the
/// greatest weight, then by name.
pub fn pool_for<'a>(
    pools: &'a [NodePool],
    node_class: &str,
    labels: &BTreeMap<String, String>,
) -> Option<&'a NodePool> {
    let fits = |pool: &&NodePool| {
        let spec = &pool.spec.template.spec;
        let meets = spec.requirements.iter().all(|requirement| {
            let value = labels.get(&requirement.key);
            let named = |value: &String| requirement.values.iter().flatten().any(|known| known == value);
            match requirement.operator {
                Operator::In => value.is_some_and(named),
                Operator::NotIn => !value.is_some_and(named),
                Operator::DoesNotExist => value.is_none(),
                // Numbers are compared when somebody needs them.
                _ => value.is_some(),
            }
        });
        spec.node_class_ref.name == node_class && pool.metadata.deletion_timestamp.is_none() && meets
    };
    let weight =
        |pool: &&NodePool| (std::cmp::Reverse(pool.spec.weight.unwrap_or(0)), pool.metadata.name.clone());
    pools.iter().filter(fits).min_by_key(weight)
}

/// The NodeClaim of an adopted Machine, named after it so that it is made once.
pub fn adopt(
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
