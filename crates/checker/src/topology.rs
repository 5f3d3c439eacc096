//! Spread and (anti-)affinity, by counting every pair and every domain.
//!
//! Only what can be decided from the finished plan is checked: a spread whose pods all carry the same constraint and
//! nothing that narrows their nodes, anti-affinity between pods that are both pinned by such a term, affinity whose
//! partner must stand somewhere.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::Placement;
use crate::claims::listed_values;
use crate::requirement::{HOSTNAME, demands, selects};
use crate::world::{Pod, World, list, text, texts};

/// Where a pod is, in terms of one topology key.
#[derive(Clone, Debug, PartialEq)]
enum Domain {
    /// One of these values.
    Among(BTreeSet<String>),
    /// Cannot be told from the plan.
    Open,
}

struct Standing<'w, 'a> {
    pod: &'w Pod<'a>,
    /// Placed by the plan, rather than bound before.
    placed: bool,
    place: Place<'w>,
}

#[derive(Clone, Copy)]
enum Place<'w> {
    Claim(usize),
    /// By the name the plan uses.
    Node(&'w str),
}

pub(crate) fn check(world: &World, placement: &Placement, wrong: &mut Vec<String>) {
    let standing = standing(world, placement);
    let scene = Scene { world, placement, standing };
    scene.spread(wrong);
    scene.anti_affinity(wrong);
    scene.affinity(wrong);
}

/// All pods that have or get a place; those leaving a node count where the plan puts them.
fn standing<'w, 'a>(world: &'w World<'a>, placement: &'w Placement) -> Vec<Standing<'w, 'a>> {
    let mut out = Vec::new();
    let mut placed = BTreeSet::new();
    for (i, claim) in placement.claims.iter().enumerate() {
        for pod in claim.pods.iter().filter_map(|p| world.pods.get(*p)) {
            placed.insert(&pod.key);
            out.push(Standing { pod, placed: true, place: Place::Claim(i) });
        }
    }
    for (node, pods) in &placement.existing {
        for pod in pods.iter().filter_map(|p| world.pods.get(*p)) {
            placed.insert(&pod.key);
            out.push(Standing { pod, placed: true, place: Place::Node(node) });
        }
    }
    for (name, node) in &world.nodes {
        let Some(node_name) = node.node_name() else { continue };
        for pod in world.bound_to(node_name) {
            if !placed.contains(&pod.key) && !pod.terminating() && !world.leaves_its_node(pod) {
                out.push(Standing { pod, placed: false, place: Place::Node(name) });
            }
        }
    }
    out
}

struct Scene<'w, 'a> {
    world: &'w World<'a>,
    placement: &'w Placement<'w>,
    standing: Vec<Standing<'w, 'a>>,
}

impl Scene<'_, '_> {
    fn domain(&self, place: Place, key: &str) -> Domain {
        let one = |v: &str| Domain::Among(BTreeSet::from([v.to_owned()]));
        match place {
            Place::Claim(i) if key == HOSTNAME => one(&format!("claim {i}")),
            Place::Claim(i) => listed_values(&self.placement.claims[i], key)
                .map_or(Domain::Open, |vs| Domain::Among(vs.into_iter().map(str::to_owned).collect())),
            Place::Node(name) => match self.world.nodes[name].labels().get(key) {
                Some(value) => one(value),
                None if key == HOSTNAME => one(name),
                None => Domain::Open,
            },
        }
    }

    fn spread(&self, wrong: &mut Vec<String>) {
        let mut seen = BTreeSet::new();
        for owner in self.standing.iter().filter(|s| s.placed) {
            for constraint in list(&owner.pod.spec()["topologySpreadConstraints"]) {
                if !plain(constraint) || !seen.insert((owner.pod.namespace, constraint.to_string())) {
                    continue;
                }
                self.spread_of(owner.pod.namespace, constraint, wrong);
            }
        }
    }

    fn spread_of(&self, namespace: &str, constraint: &Value, wrong: &mut Vec<String>) {
        let key = text(&constraint["topologyKey"]);
        let skew = constraint["maxSkew"].as_i64().unwrap_or(1);
        let counted: Vec<_> = self
            .standing
            .iter()
            .filter(|s| s.pod.namespace == namespace && selects(&constraint["labelSelector"], &s.pod.labels))
            .collect();
        let same = |s: &&&Standing| {
            list(&s.pod.spec()["topologySpreadConstraints"]).contains(constraint)
                && demands(s.pod.spec()).iter().all(Vec::is_empty)
                && s.pod.spec()["volumes"].is_null()
        };
        if !counted.iter().filter(|s| s.placed).all(|s| same(&s)) {
            return;
        }
        let mut counts: BTreeMap<String, i64> = BTreeMap::new();
        for (name, node) in &self.world.nodes {
            if node.node.is_some()
                && !node.going_away()
                && let Domain::Among(values) = self.domain(Place::Node(name), key)
            {
                counts.extend(values.into_iter().map(|v| (v, 0)));
            }
        }
        let mut grown = BTreeSet::new();
        for s in &counted {
            let Domain::Among(values) = self.domain(s.place, key) else { continue };
            if let Some(value) = values.iter().next().filter(|_| values.len() == 1) {
                *counts.entry(value.clone()).or_default() += 1;
                if s.placed {
                    grown.insert(value.clone());
                }
            }
        }
        let least = if key == HOSTNAME { 0 } else { counts.values().copied().min().unwrap_or_default() };
        for domain in grown {
            if counts[&domain] - least > skew {
                wrong.push(format!(
                    "spread over {key} in {namespace}: {domain} has {} pods, the emptiest {least}",
                    counts[&domain]
                ));
            }
        }
    }

    fn anti_affinity(&self, wrong: &mut Vec<String>) {
        for a in &self.standing {
            for term in required(a.pod, "podAntiAffinity") {
                let key = text(&term["topologyKey"]);
                for b in &self.standing {
                    if a.pod.key == b.pod.key
                        || !(a.placed || b.placed)
                        || !self.term_selects(a.pod, term, b.pod)
                    {
                        continue;
                    }
                    // On other keys than the host only a pod that brings a term of its own is pinned to listed domains.
                    let pinned = |s: &Standing| {
                        !s.placed
                            || required(s.pod, "podAntiAffinity")
                                .iter()
                                .any(|t| text(&t["topologyKey"]) == key)
                    };
                    if key != HOSTNAME && !(pinned(a) && pinned(b)) {
                        continue;
                    }
                    if let (Domain::Among(x), Domain::Among(y)) =
                        (self.domain(a.place, key), self.domain(b.place, key))
                        && !x.is_disjoint(&y)
                    {
                        wrong.push(format!(
                            "pods {} and {} share a {key} against anti-affinity",
                            a.pod.key, b.pod.key
                        ));
                    }
                }
            }
        }
    }

    fn affinity(&self, wrong: &mut Vec<String>) {
        for a in self.standing.iter().filter(|s| s.placed) {
            for term in required(a.pod, "podAffinity") {
                let key = text(&term["topologyKey"]);
                // The first of its own kind may start a domain.
                if self.term_selects(a.pod, term, a.pod) || term["labelSelector"].is_null() {
                    continue;
                }
                let mine = self.domain(a.place, key);
                let together = |b: &Standing| match (&mine, self.domain(b.place, key)) {
                    (Domain::Among(x), Domain::Among(y)) => !x.is_disjoint(&y),
                    _ => true,
                };
                if !self.standing.iter().any(|b| self.term_selects(a.pod, term, b.pod) && together(b)) {
                    wrong.push(format!("pod {} is near nothing its affinity over {key} selects", a.pod.key));
                }
            }
        }
    }

    fn term_selects(&self, owner: &Pod, term: &Value, other: &Pod) -> bool {
        let named = texts(&term["namespaces"]);
        let by_label = &term["namespaceSelector"];
        let there = if named.is_empty() && by_label.is_null() {
            owner.namespace == other.namespace
        } else {
            named.contains(&other.namespace)
                || self.world.namespaces.get(other.namespace).is_some_and(|labels| selects(by_label, labels))
        };
        there && selects(&term["labelSelector"], &other.labels)
    }
}

/// A constraint without the fields that change what is counted.
fn plain(constraint: &Value) -> bool {
    text(&constraint["whenUnsatisfiable"]) == "DoNotSchedule"
        && ["matchLabelKeys", "nodeAffinityPolicy", "nodeTaintsPolicy", "minDomains"]
            .iter()
            .all(|k| constraint[*k].is_null())
}

fn required<'a>(pod: &Pod<'a>, kind: &str) -> &'a [Value] {
    list(&pod.spec()["affinity"][kind]["requiredDuringSchedulingIgnoredDuringExecution"])
}
