//! From solved claims to the plan: reservations pinned, daemons reckoned in, instance types ordered by price and cut to size.

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::algebra::{Algebra, SetId, Undefined};
use crate::bits::Bits;
use crate::classes::ClassId;
use crate::columns::Cell;
use crate::labels::{CAPACITY_TYPE, INITIALIZED, INSTANCE_TYPE, Labels, REGISTERED, RESERVED, Text};
use crate::plan::{NodePlacement, PlacedPod, Plan, PlannedClaim, PodError};
use crate::reasons::{Relaxation, Unplaceable};
use crate::requirement::{Operator, SelectorRequirement};
use crate::resources::Resources;
use crate::snapshot::MinValuesPolicy;
use crate::solver::{Failure, Solver};
use crate::templates::unmet_min_values;
use crate::types::TypeTable;
use crate::vocabulary::ValueId;

/// Instance types of a table by price for one set of requirements, equals by name; and each one's price.
struct PriceList {
    order: Vec<u32>,
    prices: Vec<f64>,
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
struct Known {
    prices: HashMap<(usize, SetId), PriceList, FixedState>,
    launches: HashMap<(usize, SetId, Bits), Launch, FixedState>,
}

impl Solver<'_> {
    /// Writes the outcome into `plan`.
    pub(crate) fn finish(mut self, plan: &mut Plan) {
        let mut known = Known::default();
        for position in 0..self.order.len() {
            let number = self.order.claims()[position] as usize;
            match self.finish_claim(number, &mut known) {
                Ok(claim) => plan.new_claims.push(claim),
                Err(reason) => {
                    for (pod, _) in std::mem::take(&mut self.claims[number].pods) {
                        self.errors[pod as usize] = Some(Failure::Before(reason.clone()));
                    }
                }
            }
        }
        for node in 0..self.existing.len() {
            let pods = std::mem::take(&mut self.existing[node].pods);
            if pods.is_empty() {
                continue;
            }
            let pods = pods.into_iter().map(|(pod, class)| self.placed(pod, class)).collect();
            plan.existing_nodes.push(NodePlacement { node: self.existing[node].name.clone(), pods });
        }
        for (pod, failure) in std::mem::take(&mut self.errors).into_iter().enumerate() {
            if let Some(failure) = failure {
                let reason = self.explain_failure(pod as u32, failure);
                plan.pod_errors.push(PodError { pod: self.pods[pod].pod.clone(), reason });
            }
        }
        plan.pod_errors.sort_by(|a, b| (&a.pod.namespace, &a.pod.name).cmp(&(&b.pod.namespace, &b.pod.name)));
    }

    /// The pod with what was given up on the way to the class it was placed as.
    fn placed(&mut self, pod: u32, class: ClassId) -> PlacedPod {
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
        PlacedPod { pod: self.pods[pod as usize].pod.clone(), relaxed }
    }

    fn finish_claim(&mut self, number: usize, known: &mut Known) -> Result<PlannedClaim, Unplaceable> {
        let claim = &self.claims[number];
        let mut set = claim.set;
        if !claim.held.is_empty() {
            set = pin_reservations(
                set,
                claim.held.iter().map(|r| &self.reservations.names[r.0 as usize]),
                &self.snapshot.provider.reservation_id_label,
                &mut self.algebra,
            );
        }
        let Known { prices, launches } = known;
        let alike = (claim.template, set, claim.types.clone());
        if !launches.contains_key(&alike) {
            let launch = self.launch(claim.template, set, &alike.2, prices);
            launches.insert(alike.clone(), launch);
        }
        let template = &self.templates[self.claims[number].template];
        let launch = &launches[&alike];
        if !launch.unmet.is_empty() {
            let (node_pool, labels) = (template.name.clone(), launch.unmet.clone());
            return Err(Unplaceable::Truncated { node_pool, labels });
        }
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
            taints: source.taints.clone(),
            startup_taints: source.startup_taints.clone(),
            requests: self.claim_requests(number),
            min_values_relaxed: template.min_values_relaxed,
            price_overlay: launch.price_overlay,
            capacity_overlay: launch.capacity_overlay,
            cheapest_price: launch.cheapest_price,
        };
        let pods = std::mem::take(&mut self.claims[number].pods);
        Ok(PlannedClaim { pods: pods.into_iter().map(|(p, c)| self.placed(p, c)).collect(), ..planned })
    }

    /// What a claim of the template with these requirements and instance types is launched with.
    fn launch(
        &mut self,
        template: usize,
        set: SetId,
        types: &Bits,
        prices: &mut HashMap<(usize, SetId), PriceList, FixedState>,
    ) -> Launch {
        let template = &self.templates[template];
        let table = &self.tables[template.table];
        let prices = prices
            .entry((template.table, set))
            .or_insert_with(|| PriceList::new(table, set, &mut self.algebra));
        let mut cheapest: Vec<usize> =
            prices.order.iter().map(|t| *t as usize).filter(|t| types.contains(*t)).collect();
        cheapest.truncate(self.options.max_instance_types);
        let mut listed = Bits::none(table.len());
        for number in &cheapest {
            listed.insert(*number);
        }
        let mut unmet = Vec::new();
        if self.options.min_values_policy == MinValuesPolicy::Strict {
            let keys = unmet_min_values(&self.algebra, table, &listed, set);
            unmet.extend(keys.iter().map(|(k, _)| self.algebra.vocabulary.key_name(*k).clone()));
            unmet.sort();
        }
        let requirements = if table.named_plainly {
            let launched = with_capacity_types(set, table, &cheapest, &mut self.algebra);
            plain_wire_requirements(launched, table, &listed, &mut self.algebra)
        } else {
            let named = with_type_names(set, table, &cheapest, &mut self.algebra);
            let launched = with_capacity_types(named, table, &cheapest, &mut self.algebra);
            wire_requirements(launched, &self.algebra)
        };
        let (labels, open_labels) = custom_labels(&template.labels, set, &self.algebra);
        Launch {
            instance_types: cheapest.iter().map(|t| table.types[*t].name.clone()).collect(),
            requirements: requirements.into(),
            labels,
            open_labels,
            unmet,
            price_overlay: cheapest.iter().any(|t| table.types[*t].price_overlaid),
            capacity_overlay: cheapest.iter().any(|t| table.types[*t].capacity_overlaid),
            cheapest_price: cheapest.first().map(|t| prices.prices[*t]).filter(|p| *p != f64::MAX),
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

fn wire_requirements(set: SetId, algebra: &Algebra) -> Vec<SelectorRequirement> {
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
fn custom_labels(template: &Labels, set: SetId, algebra: &Algebra) -> (Labels, Vec<Text>) {
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
            (Operator::In, 1) => labels.extend(requirement.values.first().map(|v| (name.clone(), v.clone()))),
            _ => open.push(name.clone()),
        }
    }
    open.sort();
    (Labels::new(labels), open)
}
