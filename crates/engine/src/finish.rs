//! From solved claims to the plan: reservations pinned, daemons reckoned in, instance types ordered by price and cut to size.

use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::algebra::{Algebra, SetId, Undefined};
use crate::bits::Bits;
use crate::classes::ClassId;
use crate::columns::Cell;
use crate::hashing::FixedState;
use crate::labels::{CAPACITY_TYPE, INITIALIZED, INSTANCE_TYPE, Labels, REGISTERED, RESERVED, Text};
use crate::misses::KnownMisses;
use crate::plan::{NodePlacement, PlacedPod, Plan, PlannedClaim, PodError, Why};
use crate::reasons::{Relaxation, Unplaceable};
use crate::requirement::{Operator, SelectorRequirement};
use crate::resources::Resources;
use crate::snapshot::MinValuesPolicy;
use crate::solver::{Candidate, Failure, Solver};
use crate::templates::unmet_min_values;
use crate::types::TypeTable;
use crate::vocabulary::ValueId;

/// Instance types of a table by price for one set of requirements, equals by name; and each one's price.
pub(crate) struct PriceList {
    /// Types, cheapest first.
    pub(crate) order: Vec<u32>,
    /// By type: the cheapest it can be launched for; `f64::MAX` when it cannot.
    pub(crate) prices: Vec<f64>,
}

impl PriceList {
    fn new(table: &TypeTable, set: SetId, algebra: &mut Algebra) -> Self {
        let prices: Vec<f64> = (0..table.len())
            .map(|number| {
                table
                    .offerings_of(number)
                    .iter()
                    .filter(|o| o.launchable && algebra.compatible(set, o.set, Undefined::AllowedIfWellKnown))
                    .map(|o| o.price)
                    .fold(f64::MAX, f64::min)
            })
            .collect();
        let mut order: Vec<u32> = (0..table.len() as u32).collect();
        order.sort_by(|a, b| {
            prices[*a as usize]
                .total_cmp(&prices[*b as usize])
                .then_with(|| table.types[*a as usize].name.cmp(&table.types[*b as usize].name))
        });
        PriceList { order, prices }
    }
}

/// What claims that are alike are launched with.
struct Launch {
    instance_types: Arc<[Text]>,
    requirements: Arc<[SelectorRequirement]>,
    labels: Labels,
    open_labels: Vec<Text>,
    /// Keys whose `minValues` the cheapest types do not reach.
    unmet: Vec<Text>,
    price_overlay: bool,
    capacity_overlay: bool,
    cheapest_price: Option<f64>,
}

/// What earlier claims had worked out: price lists by table and requirements, launches by template, requirements and types.
#[derive(Default)]
pub(crate) struct Launches {
    prices: HashMap<(usize, SetId), PriceList, FixedState>,
    /// By table and requirements: what each type may cost at worst.
    pub(crate) worst: HashMap<(usize, SetId), Arc<[f64]>, FixedState>,
    known: HashMap<(usize, SetId, Bits), Launch, FixedState>,
}

impl Solver<'_> {
    /// Writes the outcome into `plan`.
    pub(crate) fn finish(mut self, plan: &mut Plan) {
        let mut planned: Vec<Option<usize>> = vec![None; self.claims.len()];
        for position in 0..self.order.len() {
            let number = self.order.claims()[position] as usize;
            match self.finish_claim(number) {
                Ok(claim) => {
                    planned[number] = Some(plan.new_claims.len());
                    plan.new_claims.push(claim);
                }
                Err(reason) => {
                    for (pod, _) in std::mem::take(&mut self.claims[number].pods) {
                        self.errors[pod as usize] = Some(Failure::Before(reason.clone()));
                    }
                }
            }
        }
        plan.existing_nodes = self.placements();
        let mut known_misses = KnownMisses::default();
        for (pod, failure) in std::mem::take(&mut self.errors).into_iter().enumerate() {
            if let Some(failure) = failure {
                let misses = match &failure {
                    Failure::Refused(class, _) if self.options.explain => {
                        let candidate = Candidate { pod: pod as u32, class: *class };
                        Some(self.misses(candidate, &planned, &mut known_misses))
                    }
                    _ => None,
                };
                let reason = self.explain_failure(pod as u32, failure);
                plan.pod_errors.push(PodError { pod: self.pods[pod].pod.clone(), reason, misses });
            }
        }
        plan.pod_errors.sort_by(|a, b| (&a.pod.namespace, &a.pod.name).cmp(&(&b.pod.namespace, &b.pod.name)));
    }

    /// What goes to nodes that exist, in the order they are tried.
    pub(crate) fn placements(&mut self) -> Vec<NodePlacement> {
        let mut placements = Vec::new();
        for node in 0..self.existing.len() {
            let pods = std::mem::take(&mut self.existing[node].pods);
            if pods.is_empty() {
                continue;
            }
            let pods = pods.into_iter().map(|(pod, class)| self.placed(pod, class, Why::FirstNode)).collect();
            placements.push(NodePlacement { node: self.existing[node].name.clone(), pods });
        }
        placements
    }

    /// The pod with what was given up on the way to the class it was placed as.
    fn placed(&mut self, pod: u32, class: ClassId, why: Why) -> PlacedPod {
        let mut relaxed: Vec<Relaxation> = Vec::new();
        let mut at = self.pods[pod as usize].class;
        while at != class {
            let tolerate = self.tolerate_preferences;
            let Some((weaker, what)) = self.with_workshop(|classes, w| classes.relax(at, tolerate, w)) else {
                break;
            };
            relaxed.push(what);
            at = weaker;
        }
        PlacedPod { pod: self.pods[pod as usize].pod.clone(), relaxed, why }
    }

    /// The claim as it is to be created; an error when its instance types cannot be cut to size.
    fn finish_claim(&mut self, number: usize) -> Result<PlannedClaim, Unplaceable> {
        let set = self.launch_set(number);
        let claim = &self.claims[number];
        let alike = (claim.template, set, claim.types.clone());
        let unmet = &self.known_launch(&alike).unmet;
        if !unmet.is_empty() {
            let unmet = unmet.clone();
            return Err(self.truncation_error(number, unmet));
        }
        Ok(self.plan_claim(number, set, alike.2))
    }

    /// The claim's requirements once all pods have joined: the reservations it holds are pinned.
    pub(crate) fn launch_set(&mut self, number: usize) -> SetId {
        let claim = &self.claims[number];
        if claim.held.is_empty() {
            return claim.set;
        }
        pin_reservations(
            claim.set,
            claim.held.iter().map(|r| &self.reservations.names[r.0 as usize]),
            &self.snapshot.provider.reservation_id_label,
            &mut self.algebra,
        )
    }

    /// Why the claim's instance types cannot be cut to size.
    pub(crate) fn truncation_error(&self, number: usize, labels: Vec<Text>) -> Unplaceable {
        let node_pool = self.templates[self.claims[number].template].name.clone();
        Unplaceable::Truncated { node_pool, labels }
    }

    /// What the claim is launched with, worked out once for all that are alike.
    fn known_launch(&mut self, alike: &(usize, SetId, Bits)) -> &Launch {
        if !self.launches.known.contains_key(alike) {
            let launch = self.launch(alike.0, alike.1, &alike.2);
            self.launches.known.insert(alike.clone(), launch);
        }
        &self.launches.known[alike]
    }

    /// The claim with these requirements and instance types, whether or not they reach its `minValues`.
    pub(crate) fn plan_claim(&mut self, number: usize, set: SetId, types: Bits) -> PlannedClaim {
        let requests = self.claim_requests(number);
        let alike = (self.claims[number].template, set, types);
        self.known_launch(&alike);
        let template = &self.templates[alike.0];
        let launch = &self.launches.known[&alike];
        let source = self.pools[template.pool].source;
        let planned = PlannedClaim {
            node_pool: template.name.clone(),
            node_pool_uid: source.uid.clone(),
            pods: Vec::new(),
            instance_types: launch.instance_types.clone(),
            requirements: launch.requirements.clone(),
            labels: launch.labels.clone(),
            open_labels: launch.open_labels.clone(),
            annotations: source.annotations.clone(),
            taints: self.tolerance.list(template.taints).to_vec(),
            startup_taints: source.startup_taints.clone(),
            requests,
            min_values_relaxed: template.min_values_relaxed,
            price_overlay: launch.price_overlay,
            capacity_overlay: launch.capacity_overlay,
            cheapest_price: launch.cheapest_price,
        };
        let pods = std::mem::take(&mut self.claims[number].pods);
        let pods = pods.into_iter().enumerate().map(|(at, (pod, class))| {
            let why = match at {
                0 => Why::NewClaim { passed_over: self.passed_over.remove(&pod).unwrap_or_default() },
                _ => Why::SharedClaim,
            };
            self.placed(pod, class, why)
        });
        PlannedClaim { pods: pods.collect(), ..planned }
    }

    /// Prices of a table's instance types under these requirements.
    pub(crate) fn prices(&mut self, table: usize, set: SetId) -> &PriceList {
        let (tables, algebra) = (&self.tables, &mut self.algebra);
        self.launches
            .prices
            .entry((table, set))
            .or_insert_with(|| PriceList::new(&tables[table], set, algebra))
    }

    /// The cheapest of `types` under these requirements, as many as a claim may list; and the keys whose `minValues` they miss
    /// where that matters.
    pub(crate) fn truncate(&mut self, table: usize, set: SetId, types: &Bits) -> (Vec<u32>, Vec<Text>) {
        let most = self.options.max_instance_types;
        let order = &self.prices(table, set).order;
        let cheapest: Vec<u32> =
            order.iter().copied().filter(|t| types.contains(*t as usize)).take(most).collect();
        let strict = self.options.min_values_policy == MinValuesPolicy::Strict;
        let unmet = if strict { self.missed_min_values(table, set, &cheapest) } else { Vec::new() };
        (cheapest, unmet)
    }

    /// Keys whose `minValues` these types do not reach, by name.
    pub(crate) fn missed_min_values(&self, table: usize, set: SetId, types: &[u32]) -> Vec<Text> {
        if !self.algebra.has_min_values(set) {
            return Vec::new();
        }
        let table = &self.tables[table];
        let mut listed = Bits::none(table.len());
        for number in types {
            listed.insert(*number as usize);
        }
        let keys = unmet_min_values(&self.algebra, table, &listed, set);
        let mut labels: Vec<Text> =
            keys.iter().map(|(k, _)| self.algebra.vocabulary.key_name(*k).clone()).collect();
        labels.sort();
        labels
    }

    /// What a claim of the template with these requirements and instance types is launched with.
    fn launch(&mut self, template: usize, set: SetId, types: &Bits) -> Launch {
        let of_table = self.templates[template].table;
        let (cheapest, unmet) = self.truncate(of_table, set, types);
        let cheapest: Vec<usize> = cheapest.into_iter().map(|t| t as usize).collect();
        let cheapest_price = {
            let prices = &self.prices(of_table, set).prices;
            cheapest.first().map(|t| prices[*t]).filter(|p| *p != f64::MAX)
        };
        let table = &self.tables[of_table];
        let mut listed = Bits::none(table.len());
        for number in &cheapest {
            listed.insert(*number);
        }
        let requirements = if table.named_plainly {
            let launched = with_capacity_types(set, table, &cheapest, &mut self.algebra);
            plain_wire_requirements(launched, table, &listed, &mut self.algebra)
        } else {
            let named = with_type_names(set, table, &cheapest, &mut self.algebra);
            let launched = with_capacity_types(named, table, &cheapest, &mut self.algebra);
            wire_requirements(launched, &self.algebra)
        };
        let (labels, open_labels) = custom_labels(&self.templates[template].labels, set, &self.algebra);
        Launch {
            instance_types: cheapest.iter().map(|t| table.types[*t].name.clone()).collect(),
            requirements: requirements.into(),
            labels,
            open_labels,
            unmet,
            price_overlay: cheapest.iter().any(|t| table.types[*t].price_overlaid),
            capacity_overlay: cheapest.iter().any(|t| table.types[*t].capacity_overlaid),
            cheapest_price,
        }
    }

    /// What the claim's pods ask for, and the least its daemons will.
    fn claim_requests(&self, number: usize) -> Resources {
        let claim = &self.claims[number];
        let mut sums: Vec<Option<Cell>> = vec![None; self.columns.len()];
        for (_, class) in &claim.pods {
            let shape = &self.classes.shapes[self.classes.classes[*class as usize].shape as usize];
            for (column, cell) in &self.classes.needs[shape.need as usize] {
                let sum = sums[*column as usize].get_or_insert(0);
                *sum = sum.saturating_add(*cell);
            }
        }
        let present: SmallVec<[(u32, Cell); 8]> =
            sums.iter().enumerate().filter_map(|(c, sum)| sum.map(|s| (c as u32, s))).collect();
        let mut requests = self.columns.resources(&present);
        let mut least = Resources::new();
        for group in &self.templates[claim.template].daemons {
            if group.types.intersects(&claim.types) {
                least = if least.is_empty() {
                    group.requests.clone()
                } else {
                    least.min_of_shared(&group.requests)
                };
            }
        }
        requests.add(&least);
        requests
    }
}

/// A claim that holds reservations launches into one of these and nothing else.
fn pin_reservations<'a>(
    set: SetId,
    names: impl Iterator<Item = &'a Text>,
    label: &Text,
    algebra: &mut Algebra,
) -> SetId {
    let capacity_key = algebra.vocabulary.key(&CAPACITY_TYPE.into());
    let reserved = algebra.vocabulary.value(capacity_key, &RESERVED.into());
    let reserved = algebra.exactly(capacity_key, reserved);
    let set = algebra.replace(set, reserved);
    let label_key = algebra.vocabulary.key(label);
    let values: SmallVec<[ValueId; 4]> = names.map(|n| algebra.vocabulary.value(label_key, n)).collect();
    let ids = algebra.one_of(label_key, values);
    algebra.narrow(set, ids)
}

/// Narrows to the instance types listed.
fn with_type_names(set: SetId, table: &TypeTable, types: &[usize], algebra: &mut Algebra) -> SetId {
    let type_key = algebra.vocabulary.key(&INSTANCE_TYPE.into());
    let names: SmallVec<[ValueId; 4]> =
        types.iter().map(|t| algebra.vocabulary.value(type_key, &table.types[*t].name)).collect();
    let names = algebra.one_of(type_key, names);
    algebra.narrow(set, names)
}

/// Narrows to the capacity types the instance types can be launched with.
fn with_capacity_types(set: SetId, table: &TypeTable, types: &[usize], algebra: &mut Algebra) -> SetId {
    let capacity_key = algebra.vocabulary.key(&CAPACITY_TYPE.into());
    let mut capacity_types: SmallVec<[ValueId; 4]> = SmallVec::new();
    for number in types {
        for offering in table.offerings_of(*number).iter().filter(|o| o.launchable) {
            if let Some(capacity_type) = offering.capacity_type
                && !capacity_types.contains(&capacity_type)
                && algebra.compatible(set, offering.set, Undefined::AllowedIfWellKnown)
            {
                capacity_types.push(capacity_type);
            }
        }
    }
    if capacity_types.is_empty() {
        return set;
    }
    let capacity_types = algebra.one_of(capacity_key, capacity_types);
    algebra.narrow(set, capacity_types)
}

/// As [`wire_requirements`] with the names of the instance types in `listed`, which are known to be allowed.
fn plain_wire_requirements(
    set: SetId,
    table: &TypeTable,
    listed: &Bits,
    algebra: &mut Algebra,
) -> Vec<SelectorRequirement> {
    let type_key = algebra.vocabulary.key(&INSTANCE_TYPE.into());
    let min_values = algebra.get(set, type_key).and_then(|r| algebra.req(r).min_values);
    let mut wire = wire_requirements(set, algebra);
    wire.retain(|r| r.key.as_ref() != INSTANCE_TYPE);
    let named = table.by_name.iter().map(|t| *t as usize).filter(|t| listed.contains(*t));
    let entry = SelectorRequirement {
        values: named.map(|t| table.types[t].name.clone()).collect(),
        min_values,
        ..SelectorRequirement::new(INSTANCE_TYPE, Operator::In, [] as [Text; 0])
    };
    let at = wire.partition_point(|r| r.key.as_ref() < INSTANCE_TYPE);
    wire.insert(at, entry);
    wire
}

pub(crate) fn wire_requirements(set: SetId, algebra: &Algebra) -> Vec<SelectorRequirement> {
    let mut wire: Vec<SelectorRequirement> = algebra
        .render_set(set)
        .iter()
        .filter(|r| ![REGISTERED, INITIALIZED].contains(&r.key.as_ref()))
        .flat_map(|r| r.to_selectors())
        .collect();
    wire.sort();
    wire
}

/// The template's labels and those custom requirements pin to one value; and the keys they leave open.
pub(crate) fn custom_labels(template: &Labels, set: SetId, algebra: &Algebra) -> (Labels, Vec<Text>) {
    let mut labels: Vec<(Text, Text)> = template.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    let mut open = Vec::new();
    for (key, req) in algebra.entries(set) {
        let name = algebra.vocabulary.key_name(*key);
        if algebra.vocabulary.is_well_known(*key)
            || [REGISTERED, INITIALIZED].contains(&name.as_ref())
            || template.get(name).is_some()
        {
            continue;
        }
        let requirement = algebra.render(*req);
        match (requirement.operator(), requirement.values.len()) {
            (Operator::DoesNotExist, _) => {}
            (Operator::In, 1) => {
                // An empty value is as good as no label, as upstream has it.
                let value = requirement.values.first().filter(|value| !value.is_empty());
                labels.extend(value.map(|value| (name.clone(), value.clone())));
            }
            _ => open.push(name.clone()),
        }
    }
    open.sort();
    (Labels::new(labels), open)
}
