//! Is this plan allowed? A second opinion, written naively and from the outside.
//!
//! [`check`] takes the scenario and the plan as the JSON a user would see, works everything out again from the plain
//! objects (its own quantities, its own selectors, no index, no cache) and lists what is wrong. It depends on no crate
//! of this workspace, so a mistake in the engine cannot hide behind the same mistake here.
//!
//! It knows what a plan *must* keep, not which plan is best: two different plans can both be right. Where Go Karpenter
//! knowingly breaks a rule of Kubernetes (a pod that rides on a label another pod brought along, a spread that is only
//! counted once a claim is pinned), the check is as wide as that, and says so beside it; every recorded decision of Go
//! Karpenter passes.

mod claims;
mod existing;
mod quantity;
mod requirement;
mod sharing;
mod topology;
mod world;

use std::collections::BTreeMap;

use serde_json::Value;

use world::World;

/// Everything wrong with `plan` (the object under `outcomes[].provision`) for `scenario`, one sentence each.
pub fn check(scenario: &Value, plan: &Value) -> Vec<String> {
    let world = World::read(scenario);
    let placement = Placement::read(plan);
    let mut wrong = Vec::new();
    if plan["error"].as_str().is_some_and(|e| !e.is_empty()) {
        return wrong;
    }
    every_pod_has_one_answer(&world, plan, &placement, &mut wrong);
    claims::check(&world, &placement, &mut wrong);
    existing::check(&world, &placement, &mut wrong);
    sharing::check(&world, &placement, &mut wrong);
    topology::check(&world, &placement, &mut wrong);
    wrong
}

/// The plan, as far as placing pods goes.
struct Placement<'a> {
    claims: Vec<Claim<'a>>,
    /// Pods by existing node.
    existing: BTreeMap<&'a str, Vec<&'a str>>,
}

struct Claim<'a> {
    /// For messages: `claim 3 of pool default`.
    title: String,
    json: &'a Value,
    pool: &'a str,
    pods: Vec<&'a str>,
}

impl<'a> Placement<'a> {
    fn read(plan: &'a Value) -> Self {
        let claims = world::list(&plan["newNodeClaims"])
            .iter()
            .enumerate()
            .map(|(i, json)| Claim {
                title: format!("claim {i} of pool {}", world::text(&json["nodePool"])),
                json,
                pool: world::text(&json["nodePool"]),
                pods: world::texts(&json["pods"]),
            })
            .collect();
        let existing =
            world::entries(&plan["existingNodes"]).map(|(node, pods)| (node, world::texts(pods))).collect();
        Placement { claims, existing }
    }
}

fn every_pod_has_one_answer(world: &World, plan: &Value, placement: &Placement, wrong: &mut Vec<String>) {
    let mut answers: BTreeMap<&str, usize> = BTreeMap::new();
    let placed = placement.claims.iter().flat_map(|c| &c.pods).chain(placement.existing.values().flatten());
    for pod in placed {
        *answers.entry(pod).or_default() += 1;
    }
    for map in ["podErrors", "ignoredPods"] {
        for (pod, _) in world::entries(&plan[map]) {
            *answers.entry(pod).or_default() += 1;
        }
    }
    for (pod, count) in &answers {
        if *count > 1 {
            wrong.push(format!("pod {pod} has {count} answers"));
        }
        match world.pods.get(*pod) {
            None => wrong.push(format!("pod {pod} does not exist")),
            Some(p) if !p.provisionable() && !world.leaves_its_node(p) => {
                wrong.push(format!("pod {pod} is neither pending nor on a node that is going away"));
            }
            Some(_) => {}
        }
    }
    // Without any usable pool Go Karpenter answers nothing at all, not even errors.
    if !answers.is_empty() {
        for (key, pod) in &world.pods {
            if pod.provisionable() && !answers.contains_key(key.as_str()) {
                wrong.push(format!("pod {key} is pending and has no answer"));
            }
        }
    }
}
