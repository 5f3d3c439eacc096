//! Recorded scenarios, changed at random (from fixed seeds): whatever comes out must keep the rules, and must depend neither on
//! what the engine remembers nor on the order in which objects are listed.

use karpenter::simulate;
use karpenter_checker::check;
use serde_json::{Value, json};

use crate::decisions::Case;

/// A small generator of our own, so that a seed means the same for ever.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// Drops objects, resizes pods, taints and limits pools, binds and frees pods: still a scenario, but one nobody recorded.
fn mutate(scenario: &mut Value, chance: &mut Chance) {
    let objects = scenario["objects"].as_array_mut().expect("objects");
    objects.retain(|o| o["kind"] == "NodePool" || o["kind"] == "Namespace" || !chance.one_in(12));
    for object in objects {
        match object["kind"].as_str() {
            Some("Pod") if chance.one_in(4) => {
                let cpu = *chance.pick(&["0", "10m", "250m", "1", "1500m", "7"]);
                object["spec"]["containers"][0]["resources"]["requests"]["cpu"] = cpu.into();
            }
            Some("Pod") if chance.one_in(10) => {
                object["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
            }
            Some("Pod") if chance.one_in(14) => {
                object["spec"]["topologySpreadConstraints"] = json!([{
                    "maxSkew": 1 + chance.below(2), "whenUnsatisfiable": "DoNotSchedule",
                    "topologyKey": *chance.pick(&["topology.kubernetes.io/zone", "kubernetes.io/hostname"]),
                    "labelSelector": {"matchLabels": object["metadata"]["labels"]},
                }]);
            }
            Some("NodePool") if chance.one_in(4) => {
                object["spec"]["limits"] = json!({"cpu": chance.below(60).to_string()});
            }
            Some("NodePool") if chance.one_in(5) => {
                object["spec"]["template"]["spec"]["taints"] =
                    json!([{"key": "new", "effect": "NoSchedule"}]);
            }
            Some("Node") if chance.one_in(5) => {
                object["spec"]["taints"] =
                    json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]);
            }
            _ => {}
        }
    }
}

/// Small enough that asking everything anew does not take long in a debug build.
fn small_cases() -> Vec<(String, Value)> {
    Case::all()
        .iter()
        .map(|case| (case.name.clone(), case.scenario()))
        .filter(|(_, s)| s["objects"].as_array().is_some_and(|o| o.len() < 90))
        .collect()
}

#[test]
fn changed_scenarios_get_plans_that_keep_the_rules_with_and_without_memory() {
    let mut wrong = Vec::new();
    for (i, (name, mut scenario)) in small_cases().into_iter().enumerate() {
        mutate(&mut scenario, &mut Chance(0x9E37_79B9_7F4A_7C15 ^ (i as u64 + 1)));
        let plan = simulate::decide_scenario(&scenario, true).unwrap_or_else(|e| panic!("{name}: {e}"));
        wrong.extend(check(&scenario, &plan).into_iter().map(|w| format!("{name}, changed: {w}")));
        let anew = simulate::decide_scenario(&scenario, false).unwrap_or_else(|e| panic!("{name}: {e}"));
        if plan != anew {
            wrong.push(format!("{name}, changed: another plan without memory"));
        }
    }
    assert!(wrong.is_empty(), "{} complaints\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_order_of_objects_in_a_file_does_not_matter() {
    for (i, (name, mut scenario)) in small_cases().into_iter().enumerate().step_by(4) {
        let plan = simulate::decide_scenario(&scenario, true).unwrap_or_else(|e| panic!("{name}: {e}"));
        Chance(i as u64 + 77).shuffle(scenario["objects"].as_array_mut().expect("objects"));
        let shuffled = simulate::decide_scenario(&scenario, true).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(plan, shuffled, "{name}");
    }
}
