//! What holds for a claim to be bought: its pods may be there, every type on its list could really serve it, and the
//! pool's limits hold.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::requirement::{Expression, HOSTNAME, demands, tolerates};
use crate::world::{Amounts, World, add, amounts, entries, list, text, texts};
use crate::{Claim, Placement};

pub(crate) fn check(world: &World, placement: &Placement, wrong: &mut Vec<String>) {
    for claim in &placement.claims {
        let Some(pool) = world.pools.get(claim.pool) else {
            wrong.push(format!("{}: no such pool", claim.title));
            continue;
        };
        if claim.pods.is_empty() {
            wrong.push(format!("{}: has no pods", claim.title));
        }
        pods_may_be_there(world, claim, pool, wrong);
        requests_cover_the_pods(world, claim, wrong);
        types_could_serve(world, claim, wrong);
        min_values_are_met(world, claim, wrong);
    }
    limits_hold(world, placement, wrong);
}

/// The claim's requirements, as the expressions on each label.
pub(crate) fn requirements<'a>(claim: &'a Claim) -> BTreeMap<&'a str, Vec<Expression<'a>>> {
    let mut out: BTreeMap<&str, Vec<Expression>> = BTreeMap::new();
    for r in list(&claim.json["requirements"]) {
        out.entry(text(&r["key"])).or_default().push(Expression::read(r));
    }
    out
}

/// The values a claim may still get for a label, when it lists them.
pub(crate) fn listed_values<'a>(claim: &'a Claim, key: &str) -> Option<Vec<&'a str>> {
    list(&claim.json["requirements"])
        .iter()
        .find(|r| text(&r["key"]) == key && text(&r["operator"]) == "In")
        .map(|r| texts(&r["values"]))
}

/// Whether whatever node the claim becomes satisfies the expression. A label the claim does not pin to a list passes:
/// bounds hide exclusions on the wire, so nothing sure can be said.
pub(crate) fn claim_satisfies(claim: &Claim, expression: &Expression) -> bool {
    if expression.key == HOSTNAME {
        return !expression.needs_presence();
    }
    match listed_values(claim, expression.key) {
        Some(values) => values.iter().all(|v| expression.accepts(Some(v))),
        None => true,
    }
}

fn pods_may_be_there(world: &World, claim: &Claim, pool: &Value, wrong: &mut Vec<String>) {
    let taints = list(&pool["spec"]["template"]["spec"]["taints"]);
    for pod in claim.pods.iter().filter_map(|p| world.pods.get(*p)) {
        // A PreferNoSchedule taint may be relaxed away, hence is no reason to refuse.
        for taint in taints.iter().filter(|t| text(&t["effect"]) != "PreferNoSchedule") {
            if !tolerates(pod.spec(), taint) {
                wrong.push(format!("{}: pod {} does not tolerate {taint}", claim.title, pod.key));
            }
        }
        if !demands(pod.spec()).iter().any(|all| all.iter().all(|e| claim_satisfies(claim, e))) {
            wrong.push(format!("{}: the node demands of pod {} do not hold", claim.title, pod.key));
        }
    }
}

fn requests_cover_the_pods(world: &World, claim: &Claim, wrong: &mut Vec<String>) {
    let mut total = Amounts::new();
    for pod in claim.pods.iter().filter_map(|p| world.pods.get(*p)) {
        add(&mut total, &pod.requests);
    }
    let asked = amounts(&claim.json["requests"]);
    for (name, amount) in total {
        if asked.get(&name).copied().unwrap_or_default() < amount {
            wrong.push(format!("{}: requests less {name} than its pods", claim.title));
        }
    }
}

/// The values an instance type has for each label: what kwok derives, then what the file adds or replaces.
fn type_labels(kind: &Value) -> BTreeMap<String, Vec<String>> {
    let mut out: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let one = |v: &Value| vec![text(v).to_owned()];
    out.insert("node.kubernetes.io/instance-type".into(), one(&kind["name"]));
    out.insert("kubernetes.io/arch".into(), one(&kind["architecture"]));
    let owned = |v: &Value| texts(v).into_iter().map(str::to_owned).collect::<Vec<_>>();
    out.insert("kubernetes.io/os".into(), owned(&kind["operatingSystems"]));
    for key in ["topology.kubernetes.io/zone", "karpenter.sh/capacity-type"] {
        let values: BTreeSet<String> = list(&kind["offerings"])
            .iter()
            .flat_map(|o| list(&o["Requirements"]))
            .filter(|r| text(&r["key"]) == key)
            .flat_map(|r| owned(&r["values"]))
            .collect();
        out.insert(key.into(), values.into_iter().collect());
    }
    for r in list(&kind["requirements"]) {
        // Only lists and absence can be told label by label; anything else is left open.
        match text(&r["operator"]) {
            "In" => drop(out.insert(text(&r["key"]).into(), owned(&r["values"]))),
            "DoesNotExist" => drop(out.insert(text(&r["key"]).into(), Vec::new())),
            _ => drop(out.remove(text(&r["key"]))),
        }
    }
    out
}

fn agrees(expressions: &[Expression], values: &[String]) -> bool {
    if values.is_empty() {
        return expressions.iter().all(|e| e.accepts(None));
    }
    values.iter().any(|v| expressions.iter().all(|e| e.accepts(Some(v))))
}

fn offering_agrees(needs: &BTreeMap<&str, Vec<Expression>>, offering: &Value) -> bool {
    list(&offering["Requirements"]).iter().all(|r| {
        let Some(expressions) = needs.get(text(&r["key"])) else { return true };
        let values: Vec<String> = texts(&r["values"]).into_iter().map(str::to_owned).collect();
        match text(&r["operator"]) {
            "In" | "DoesNotExist" => agrees(expressions, &values),
            _ => true,
        }
    })
}

fn available(offering: &Value) -> bool {
    offering["Available"].as_bool().unwrap_or(true)
}

fn launchable(offering: &Value) -> bool {
    let reserved = list(&offering["Requirements"]).iter().any(|r| {
        text(&r["key"]) == "karpenter.sh/capacity-type" && texts(&r["values"]).contains(&"reserved")
    });
    available(offering) && (!reserved || offering["ReservationCapacity"].as_i64().unwrap_or_default() > 0)
}

pub(crate) fn capacity(kind: &Value) -> Amounts {
    let mut out = Amounts::from([("pods".to_owned(), 110_000_000_000)]);
    out.extend(amounts(&kind["resources"]));
    out
}

/// What a node of this type, bought through this offering, leaves for pods.
fn allocatable(kind: &Value, offering: &Value) -> Amounts {
    let reserved = |o: &Value| {
        let mut sum = Amounts::new();
        for part in ["kubeReserved", "systemReserved", "evictionThreshold"] {
            add(&mut sum, &amounts(&o[part]));
        }
        sum
    };
    let mut overhead = match &kind["overhead"] {
        Value::Null => Amounts::from([("cpu".to_owned(), 100_000_000), ("memory".to_owned(), 10 << 20)]),
        given => reserved(given),
    };
    if kind["overhead"].is_null() {
        overhead.insert("memory".into(), (10 << 20) * 1_000_000_000);
    }
    overhead.extend(reserved(&offering["OverheadOverride"]));
    let mut total = capacity(kind);
    total.extend(amounts(&offering["CapacityOverride"]));
    let huge: i128 = total.iter().filter(|(k, _)| k.starts_with("hugepages-")).map(|(_, v)| *v).sum();
    let mut out: Amounts =
        total.iter().map(|(k, v)| (k.clone(), v - overhead.get(k).copied().unwrap_or_default())).collect();
    if let Some(memory) = out.get_mut("memory")
        && huge > 0
    {
        *memory = (*memory - huge).max(0);
    }
    out
}

fn types_could_serve(world: &World, claim: &Claim, wrong: &mut Vec<String>) {
    let names = texts(&claim.json["instanceTypes"]);
    if names.is_empty() {
        wrong.push(format!("{}: lists no instance type", claim.title));
    }
    let strict = requirements(claim);
    // A claim that holds reservations is pinned to them at the very end, when its list of types is already made: each
    // type must serve it with the reservations left aside, and one of them must really have one.
    let mut needs = strict.clone();
    if listed_values(claim, "karpenter.sh/capacity-type").is_some_and(|v| v == ["reserved"]) {
        needs.remove("karpenter.sh/capacity-type");
        needs.retain(|key, _| !key.ends_with("/reservation-id"));
    }
    let mut bought_somewhere = false;
    let asked = amounts(&claim.json["requests"]);
    let overlaid = ["priceOverlay", "capacityOverlay"].iter().any(|k| claim.json[*k].as_bool() == Some(true));
    let mut prices = Vec::new();
    for name in names {
        let Some(kind) = world.types.get(name) else {
            wrong.push(format!("{}: no instance type {name}", claim.title));
            continue;
        };
        for (key, values) in type_labels(kind) {
            if needs.get(key.as_str()).is_some_and(|e| !agrees(e, &values)) {
                wrong.push(format!("{}: type {name} cannot have the {key} asked for", claim.title));
            }
        }
        let offerings: Vec<_> =
            list(&kind["offerings"]).iter().filter(|o| available(o) && offering_agrees(&needs, o)).collect();
        if offerings.is_empty() {
            wrong.push(format!("{}: no offering of type {name} agrees", claim.title));
        }
        let fits = |o: &&Value| {
            let room = allocatable(kind, o);
            asked.iter().all(|(k, v)| *v <= room.get(k).copied().unwrap_or_default())
        };
        // An overlay may give a type more than the file says.
        if !overlaid && !offerings.iter().any(fits) {
            wrong.push(format!("{}: does not fit on type {name}", claim.title));
        }
        let agreed: Vec<_> = offerings.iter().filter(|o| offering_agrees(&strict, o)).collect();
        bought_somewhere |= !agreed.is_empty();
        prices.extend(agreed.iter().filter(|o| launchable(o)).filter_map(|o| o["Price"].as_f64()));
    }
    if !bought_somewhere {
        wrong.push(format!("{}: no offering of any of its types agrees", claim.title));
    }
    if !overlaid {
        price_is_the_cheapest(claim, &prices, wrong);
    }
}

fn price_is_the_cheapest(claim: &Claim, prices: &[f64], wrong: &mut Vec<String>) {
    let bounded =
        list(&claim.json["requirements"]).iter().any(|r| matches!(text(&r["operator"]), "Gte" | "Lte"));
    let cheapest = prices.iter().copied().min_by(f64::total_cmp);
    match (claim.json["cheapestPrice"].as_f64(), cheapest) {
        (None, None) => {}
        // Bounds hide exclusions on the wire: a cheaper offering may be excluded without our seeing it.
        (Some(said), Some(found)) if (said - found).abs() < 1e-9 || bounded && said >= found => {}
        (None, Some(_)) if bounded => {}
        (said, found) => {
            wrong.push(format!("{}: says its cheapest price is {said:?}, it is {found:?}", claim.title));
        }
    }
}

fn min_values_are_met(world: &World, claim: &Claim, wrong: &mut Vec<String>) {
    if world.best_effort_min_values {
        return;
    }
    for r in list(&claim.json["requirements"]) {
        let Some(minimum) = r["minValues"].as_u64() else { continue };
        let key = text(&r["key"]);
        let mut seen = BTreeSet::new();
        for kind in texts(&claim.json["instanceTypes"]).iter().filter_map(|n| world.types.get(n)) {
            match type_labels(kind).get(key) {
                Some(values) => {
                    seen.extend(values.iter().filter(|v| Expression::read(r).accepts(Some(v))).cloned())
                }
                // kwok's own size, family, cpu and memory labels are not derived here.
                None => return,
            }
        }
        if (seen.len() as u64) < minimum {
            wrong.push(format!("{}: {} values of {key}, at least {minimum} wanted", claim.title, seen.len()));
        }
    }
}

fn limits_hold(world: &World, placement: &Placement, wrong: &mut Vec<String>) {
    for (name, pool) in &world.pools {
        let claims: Vec<_> = placement.claims.iter().filter(|c| c.pool == *name).collect();
        if claims.is_empty() {
            continue;
        }
        for (resource, _) in entries(&pool["spec"]["limits"]) {
            // Claims of one batch do not count against a limit on nodes, in Go Karpenter as here.
            if resource == "nodes" || claims.iter().any(|c| c.json["capacityOverlay"].as_bool() == Some(true))
            {
                continue;
            }
            let limit = amounts(&pool["spec"]["limits"])[resource];
            let mut used: i128 = world
                .nodes
                .values()
                .filter(|n| !n.going_away() && n.labels().get("karpenter.sh/nodepool") == Some(name))
                .filter_map(|n| n.resources("capacity").get(resource).copied())
                .sum();
            for claim in &claims {
                let types = texts(&claim.json["instanceTypes"]);
                let largest = types.iter().filter_map(|t| world.types.get(t));
                used += largest.filter_map(|t| capacity(t).get(resource).copied()).max().unwrap_or_default();
            }
            if used > limit {
                wrong.push(format!("pool {name}: its claims could use more {resource} than its limit"));
            }
        }
    }
}
