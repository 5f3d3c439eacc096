//! O9: nodes that Cluster API is taking away count as disrupted when Karpenter begins to disrupt another one.

use std::collections::BTreeMap;

use jiff::Timestamp;
use karpenter_api::{NodeClaim, nodeclaim};

use super::checks::CLAIM;
use super::kinds::annotation;
use crate::faults::Faults;
use crate::invariants::commands::BudgetsHold;
use crate::invariants::identity::has_condition;
use crate::invariants::{Invariant, Step};
use crate::objects::{Change, is_deleting, uid};

/// So long a Machine has been on its way out, with the management cluster in sight, before Karpenter must know.
const SEEN_SECONDS: i64 = 120;

/// See the module.
pub struct RolloutsCount {
    budgets: BudgetsHold,
    hub: Faults,
    /// Since when the Machines of NodeClaims have been going and could be seen to, by the NodeClaim's uid.
    leaving: BTreeMap<String, Timestamp>,
}

impl RolloutsCount {
    /// For a provider who reaches the management cluster through `hub`.
    pub fn new(hub: &Faults) -> Self {
        Self { budgets: BudgetsHold::default(), hub: hub.clone(), leaving: BTreeMap::new() }
    }
}

impl Invariant for RolloutsCount {
    fn name(&self) -> &'static str {
        "nodes that Cluster API takes away count against the budgets"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["O9"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        for change in step.changes {
            let Change::Machine(edit) = &**change else { continue };
            let Some(claim) = edit.either().and_then(|machine| annotation(machine, CLAIM)) else { continue };
            if edit.new.as_ref().is_some_and(|machine| is_deleting(&**machine)) {
                self.leaving.entry(claim.to_owned()).or_insert(step.now);
            } else {
                self.leaving.remove(claim);
            }
        }
        if self.hub.is_cut_off() || self.hub.refusal().is_some() {
            self.leaving.values_mut().for_each(|since| *since = step.now);
        }
        let known = |claim: &NodeClaim| {
            let since = self.leaving.get(uid(claim));
            since.is_some_and(|since| step.now.as_second() - since.as_second() > SEEN_SECONDS)
        };
        // What is on its way out in its own cluster is not counted there any more.
        let leaves = |claim: &NodeClaim| {
            !is_deleting(claim) && has_condition(claim, nodeclaim::INITIALIZED) && known(claim)
        };
        self.budgets.check_with(step, leaves)
    }
}

#[cfg(test)]
mod tests {
    use karpenter_runtime::entropy::Entropy;
    use karpenter_runtime::object_key::ObjectKey;
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster_api::steps::{Trial, claimed_for, read};
    use crate::faults::FaultPlan;

    fn status(name: &str, reason: Option<&str>) -> Value {
        let condition = |kind: &str, reason: &str| {
            json!({
                "type": kind, "status": "True", "reason": reason, "message": "",
                "lastTransitionTime": "1970-01-02T00:00:00Z",
            })
        };
        let mut conditions = vec![condition("Initialized", "Initialized")];
        conditions.extend(reason.map(|reason| condition("DisruptionReason", reason)));
        json!({"nodeName": name, "providerID": format!("sim://{name}"), "conditions": conditions})
    }

    /// Whether Karpenter may disrupt one of two nodes of a pool that allows one, while Cluster API has been taking the other away for so
    /// long.
    fn may_disrupt(leaving_for: Option<i64>) -> bool {
        let hub = Faults::new(FaultPlan::none(), &Entropy::from_seed(1), "hub");
        let mut trial = Trial::of(RolloutsCount::new(&hub));
        let pool = json!({
            "metadata": {"name": "p"},
            "spec": {
                "disruption": {"budgets": [{"nodes": "1"}]},
                "template": {"spec": {
                    "requirements": [], "nodeClassRef": {"group": "g", "kind": "k", "name": "n"},
                }},
            },
        });
        trial.objects().node_pools.insert(ObjectKey::cluster("p"), read(pool));
        for name in ["a", "b"] {
            let node = json!({"metadata": {"name": name}, "spec": {"providerID": format!("sim://{name}")}});
            trial.objects().nodes.insert(ObjectKey::cluster(name), read(node));
            trial.claim("karpenter", name, json!({}), status(name, None)).expect("it may be made");
            trial.machine("karpenter", name, claimed_for(name)).expect("it may be claimed");
        }
        if let Some(seconds) = leaving_for {
            trial.delete_machine("machineset-controller", "a").expect("Cluster API may");
            trial.pass(seconds);
        }
        trial.claim("karpenter", "b", json!({}), status("b", Some("Empty"))).is_ok()
    }

    #[test]
    fn what_cluster_api_takes_away_counts_against_the_budget_once_it_must_be_known() {
        assert!(may_disrupt(None));
        assert!(may_disrupt(Some(30)), "that may not have been seen yet");
        assert!(!may_disrupt(Some(200)));
    }
}
