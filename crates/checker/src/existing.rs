//! What holds for pods put on a node that exists or is in flight: it stays, it has room, and it lets them in.

use crate::Placement;
use crate::requirement::{HOSTNAME, demands, stable, tolerates};
use crate::world::{Amounts, Node, World, add, text};

pub(crate) fn check(world: &World, placement: &Placement, wrong: &mut Vec<String>) {
    for (name, pods) in &placement.existing {
        let Some(node) = world.nodes.get(name) else {
            wrong.push(format!("node {name}: does not exist"));
            continue;
        };
        if node.going_away() {
            wrong.push(format!("node {name}: is going away"));
        }
        fits(world, name, node, pods, wrong);
        pods_may_be_there(world, name, node, pods, wrong);
    }
}

fn fits(world: &World, name: &str, node: &Node, pods: &[&str], wrong: &mut Vec<String>) {
    let mut used = Amounts::new();
    if let Some(node_name) = node.node_name() {
        world.bound_to(node_name).for_each(|p| add(&mut used, &p.requests));
    }
    let mut new = Amounts::new();
    pods.iter().filter_map(|p| world.pods.get(*p)).for_each(|p| add(&mut new, &p.requests));
    let room = node.resources("allocatable");
    for (resource, more) in new {
        let total = used.get(&resource).copied().unwrap_or_default() + more;
        if more > 0 && total > room.get(&resource).copied().unwrap_or_default() {
            wrong.push(format!("node {name}: has not enough {resource}"));
        }
    }
}

fn pods_may_be_there(world: &World, name: &str, node: &Node, pods: &[&str], wrong: &mut Vec<String>) {
    let mut labels: std::collections::BTreeMap<&str, &str> =
        node.labels().into_iter().map(|(k, v)| (stable(k), v)).collect();
    if labels.get(HOSTNAME).is_none_or(|h| h.is_empty()) {
        labels.insert(HOSTNAME, name);
    }
    let all: Vec<_> = pods.iter().filter_map(|p| world.pods.get(*p)).collect();
    for pod in &all {
        for taint in node.lasting_taints() {
            if text(&taint["effect"]) != "PreferNoSchedule" && !tolerates(pod.spec(), taint) {
                wrong.push(format!("node {name}: pod {} does not tolerate {taint}", pod.key));
            }
        }
        // Go Karpenter lets a node absorb the labels its new pods speak of, so a later pod may ask for a label the
        // node does not have but an earlier pod of the plan mentioned.
        let absorbed = |key: &str| {
            all.iter().any(|p| p.key != pod.key && demands(p.spec()).iter().flatten().any(|e| e.key == key))
        };
        let holds = demands(pod.spec()).iter().any(|alternative| {
            alternative.iter().all(|e| {
                let value = labels.get(e.key).copied();
                e.accepts(value) || value.is_none() && absorbed(e.key)
            })
        });
        if !holds {
            wrong.push(format!("node {name}: the node demands of pod {} do not hold", pod.key));
        }
    }
}
