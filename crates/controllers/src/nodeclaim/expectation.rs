//! What decisions count on while a NodeClaim is not launched: a launch that takes its time, or fails and is tried again, must not
//! hold up the rest of the cluster.
//!
//! The pods a claim was made for have to find their place on what is expected of it, or every pass would make another claim for
//! them. So it is described as it would be launched, by an instance type with all its labels: what the claim asks for leaves some
//! open, and of the daemons it counts only those that every one of its instance types gets.

use std::collections::BTreeMap;
use std::time::Duration;

use karpenter_api::{NodeClaim, labels};
use karpenter_cloudprovider::{LaunchedInstance, conversion, selection};
use karpenter_engine::requirement::Requirement;
use karpenter_engine::requirements::Requirements;
use karpenter_runtime::object_key::ObjectKey;
use tokio::time::timeout;

use super::lifecycle::{Lifecycle, Pass};
use crate::pairing::provider_id;

/// How long a provider may take to say what a NodePool can buy. Healthy ones answer from memory.
const PATIENCE: Duration = Duration::from_secs(10);

impl Lifecycle {
    /// Lets decisions count on what a launch that is under way will come to, as far as its provider can tell. Otherwise they
    /// wait for it.
    pub(super) fn expect(&self, pass: &Pass) {
        match pass.provider.expected_instance(&pass.claim) {
            Some(expected) => self.count_on(pass, &expected),
            None => self.expect_nothing(pass),
        }
    }

    /// Lets decisions count on a claim whose launch failed and will be tried again, until it is launched or given up. Nothing
    /// knows how long that takes, and it is no matter of anybody else's.
    pub(super) async fn expect_after_failure(&self, pass: &Pass) {
        let expected = match pass.provider.expected_instance(&pass.claim) {
            Some(expected) => expected,
            None => self.cheapest(pass).await.unwrap_or_else(|| as_asked(&pass.claim)),
        };
        self.count_on(pass, &expected);
    }

    /// Lets decisions count on what a claim was launched as and could not be written down.
    pub(super) fn expect_launched(&self, pass: &Pass) {
        if !provider_id(&pass.claim).is_empty() {
            self.count_on_claim(&pass.claim);
        }
    }

    pub(super) fn expect_nothing(&self, pass: &Pass) {
        self.context.cluster.update(|cluster| cluster.expect_nothing(&pass.claim));
    }

    fn count_on(&self, pass: &Pass, expected: &LaunchedInstance) {
        let mut claim = pass.claim.clone();
        expected.write_into(&mut claim);
        self.count_on_claim(&claim);
    }

    fn count_on_claim(&self, claim: &NodeClaim) {
        self.context.cluster.update(|cluster| {
            if let Err(error) = cluster.expect_launch(claim) {
                tracing::debug!(%error, "what the launch will come to makes no sense, decisions wait for it");
                cluster.expect_nothing(claim);
            }
        });
    }

    /// The cheapest its NodePool offers for this claim.
    async fn cheapest(&self, pass: &Pass) -> Option<LaunchedInstance> {
        let claim = &pass.claim;
        let pool = claim.metadata.labels.as_ref()?.get(labels::NODEPOOL)?;
        let pool = self.context.stores.node_pools.get(&ObjectKey::cluster(pool.as_str()))?;
        let types = timeout(PATIENCE, pass.provider.get_instance_types(&pool)).await.ok()?.ok()?;
        let rules = pass.provider.scheduling_rules();
        let own_labels: Vec<&str> = rules.well_known_labels.iter().map(|label| &**label).collect();
        let choices = selection::by_price(&types, claim, &own_labels).ok()?;
        let (instance_type, offering) = *choices.first()?;
        let mut expected = selection::describe("", instance_type, offering);
        for (key, value) in asked_labels(claim, &instance_type.requirements) {
            expected.labels.entry(key).or_insert(value);
        }
        Some(expected)
    }
}

/// A claim of which nobody can say what it would be launched as: it has what it asks for.
fn as_asked(claim: &NodeClaim) -> LaunchedInstance {
    let requests = claim.spec.resources.as_ref().and_then(|resources| resources.requests.clone());
    let mut room = requests.unwrap_or_default();
    // Something has to be expected of it; that nothing has room there is something.
    room.entry("pods".to_owned()).or_default();
    LaunchedInstance {
        labels: asked_labels(claim, &Requirements::new()),
        capacity: room.clone(),
        allocatable: room,
        ..LaunchedInstance::default()
    }
}

/// A value of each label the claim asks for by its values: the first that is offered. Each of them suits the pods it was made for,
/// whose own demands are among the claim's.
fn asked_labels(claim: &NodeClaim, offered: &Requirements) -> BTreeMap<String, String> {
    let label = |asked: &Requirement| {
        if asked.complement {
            return None;
        }
        let choice = offered.get(&asked.key);
        let suits = |value: &str| asked.has(value) && choice.is_none_or(|choice| choice.has(value));
        let value = asked.values.iter().find(|value| suits(value))?;
        Some((asked.key.to_string(), value.to_string()))
    };
    let asked = conversion::requirements(claim).unwrap_or_default();
    asked.iter().filter_map(label).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(requests: serde_json::Value) -> NodeClaim {
        let requirements = json!([
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["b", "a"]},
            {"key": "kubernetes.io/arch", "operator": "NotIn", "values": ["arm64"]},
            {"key": "example.com/size", "operator": "Gt", "values": ["4"]},
        ]);
        let spec = json!({
            "nodeClassRef": {"group": "g", "kind": "k", "name": "n"},
            "requirements": requirements, "resources": {"requests": requests},
        });
        serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec})).expect("a NodeClaim")
    }

    #[test]
    fn a_claim_nobody_can_describe_has_the_room_it_asks_for_and_a_value_of_each_label_it_names() {
        let expected = as_asked(&claim(json!({"cpu": "2", "pods": "3"})));
        assert_eq!(expected.labels, BTreeMap::from([("topology.kubernetes.io/zone".into(), "a".into())]));
        assert_eq!(expected.allocatable, expected.capacity);
        assert_eq!(expected.allocatable["pods"].value(), 3);
        let nothing = as_asked(&claim(json!({})));
        assert_eq!(nothing.allocatable["pods"].value(), 0, "it is known, and has room for nobody");
    }

    #[test]
    fn of_several_values_one_is_expected_that_the_instance_type_offers() {
        let zones = Requirement::one_of("topology.kubernetes.io/zone", ["b", "c"]);
        let offered: Requirements = [zones].into_iter().collect();
        let labels = asked_labels(&claim(json!({})), &offered);
        assert_eq!(labels, BTreeMap::from([("topology.kubernetes.io/zone".into(), "b".into())]));
    }
}
