//! Whether candidates can go for nothing, or for one node that costs less than they do.

use std::sync::Arc;

use super::Judge;
use super::candidate::Candidate;
use super::command::{Command, source_price};
use super::method::Method;
use super::reasons::{SPOT_TO_SPOT_TYPES, Why};
use super::simulate::{Offer, Purpose, SimulationError, Solved};
use super::workbench::Workbench;
use crate::algebra::{SetId, Undefined};
use crate::labels::{CAPACITY_TYPE, ON_DEMAND, RESERVED, SPOT, Text};
use crate::requirements::Requirements;
use crate::solver::Solver;
use crate::vocabulary::{KeyId, ValueId};

impl<'s> Judge<'s> {
    /// The consolidation of these candidates together, or why there is none.
    pub(crate) fn consolidation(
        &self,
        bench: &mut Workbench<'s>,
        method: Method,
        candidates: &[Arc<Candidate>],
    ) -> Result<Result<Command, Why>, SimulationError> {
        bench.simulate(&self.census, Purpose::Consolidation, candidates, |solved| {
            self.consolidate(method, candidates, solved)
        })
    }

    fn consolidate(
        &self,
        method: Method,
        candidates: &[Arc<Candidate>],
        solved: &mut Solved<'_, '_>,
    ) -> Result<Command, Why> {
        if !solved.all_scheduled() {
            return Err(solved.troubles());
        }
        let mut command = Command::new(method, candidates.to_vec());
        match solved.offers.len() {
            0 => {
                command.existing_nodes = solved.placements();
                return Ok(command);
            }
            1 => {}
            several => {
                let waiting = solved.pods_of_others(candidates);
                return Err(Why::NeedsSeveralNodes(several).unless_for(waiting));
            }
        }
        let Some(mut offer) = solved.offers.pop() else { return Err(Why::NeedsSeveralNodes(0)) };
        let price = source_price(candidates);
        let cheaper = self.make_cheaper(candidates, solved.solver, &mut offer, price).and_then(|()| {
            if method == Method::MultiNodeConsolidation {
                self.drop_same_types(candidates, solved.solver, &mut offer, price)?;
            }
            Ok(())
        });
        if let Err(why) = cheaper {
            solved.offers.push(offer);
            return Err(why.unless_for(solved.pods_of_others(candidates)));
        }
        let cheapest = offer.types.first().map(|t| solved.solver.launch_price(&offer, *t));
        command.savings = price - cheapest.flatten().unwrap_or(0.0);
        command.replacements = vec![solved.plan(offer)];
        command.existing_nodes = solved.placements();
        Ok(command)
    }

    /// Narrows the offer to what costs less than `price` whichever way it is launched.
    fn make_cheaper(
        &self,
        candidates: &[Arc<Candidate>],
        solver: &mut Solver<'_>,
        offer: &mut Offer,
        price: f64,
    ) -> Result<(), Why> {
        let all_spot = candidates.iter().all(|c| c.capacity_type() == SPOT);
        let spot_to_spot = all_spot && solver.allows(offer.set, SPOT);
        if spot_to_spot {
            if !self.options.gates.spot_to_spot_consolidation {
                return Err(Why::SpotToSpotDisabled);
            }
            offer.set = solver.only(offer.set, SPOT);
            solver.keep_offered(offer);
        }
        solver.keep_cheaper(offer, price)?;
        if !spot_to_spot {
            // It is chosen because spot is cheap; if there is no spot it must not become on-demand. On platforms that hardly know spot
            // it may have been chosen for its price on demand, and a replacement that asks for spot would never come.
            if solver.allows(offer.set, SPOT) && solver.allows(offer.set, ON_DEMAND) {
                let spot = solver.only(offer.set, SPOT);
                if self.census.snapshot.provider.sells_spot || solver.is_offered(offer, spot) {
                    offer.set = spot;
                }
            }
            return Ok(());
        }
        if candidates.len() > 1 {
            return Ok(());
        }
        if offer.types.len() < SPOT_TO_SPOT_TYPES {
            return Err(Why::SpotToSpotTooFew(offer.types.len()));
        }
        // As few types as will do, so that the node launched is among the cheapest and stays.
        let needed = solver.types_needed(offer);
        offer.types.truncate(SPOT_TO_SPOT_TYPES.max(needed));
        Ok(())
    }

    /// Where the replacement could be of a type that goes, it must be cheaper than that node: else that node had better stay.
    fn drop_same_types(
        &self,
        candidates: &[Arc<Candidate>],
        solver: &mut Solver<'_>,
        offer: &mut Offer,
        price: f64,
    ) -> Result<(), Why> {
        let mut going: Vec<(&Text, Option<f64>)> = Vec::new();
        for candidate in candidates {
            let Some(name) = &candidate.instance_type else { continue };
            let own = self.cheapest_own_offering(candidate);
            match going.iter_mut().find(|(n, _)| *n == name) {
                Some((_, known)) => *known = [*known, own].into_iter().flatten().reduce(f64::min),
                None => going.push((name, own)),
            }
        }
        let table = &solver.tables[offer.table];
        let limit = offer
            .types
            .iter()
            .filter_map(|t| going.iter().find(|(name, _)| **name == table.types[*t as usize].name))
            // A type without a price counts as free, so nothing is cheaper.
            .map(|(_, own)| own.unwrap_or(0.0))
            .fold(f64::MAX, f64::min);
        solver.keep_cheaper(offer, limit).map_err(|why| match why {
            Why::NotCheaper { cheapest, .. } => Why::NotCheaper { price, cheapest },
            other => other,
        })
    }

    /// The cheapest offering, available or not, the candidate's labels could have come from.
    fn cheapest_own_offering(&self, candidate: &Candidate) -> Option<f64> {
        let name = candidate.instance_type.as_ref()?;
        let own = self.census.offers.instance_type(&candidate.node_pool, name)?;
        let labels = Requirements::from_labels(&candidate.labels);
        let provider = &self.census.snapshot.provider;
        let well_known =
            |key: &str| crate::labels::WELL_KNOWN.contains(&key) || provider.well_known_labels.contains(key);
        own.offerings
            .iter()
            .filter(|o| labels.compatible(&o.requirements, well_known).is_ok())
            .map(|o| o.price)
            .reduce(f64::min)
    }
}

impl Solver<'_> {
    fn capacity_type_value(&mut self, name: &str) -> (KeyId, ValueId) {
        let key = self.algebra.vocabulary.key(&CAPACITY_TYPE.into());
        (key, self.algebra.vocabulary.value(key, &name.into()))
    }

    /// Whether the requirements allow the capacity type.
    fn allows(&mut self, set: SetId, capacity_type: &str) -> bool {
        let (key, value) = self.capacity_type_value(capacity_type);
        self.algebra.get(set, key).is_none_or(|r| self.algebra.has(r, value))
    }

    /// The requirements narrowed to one capacity type.
    fn only(&mut self, set: SetId, capacity_type: &str) -> SetId {
        let (key, value) = self.capacity_type_value(capacity_type);
        let req = self.algebra.exactly(key, value);
        self.algebra.narrow(set, req)
    }

    /// Whether a type has an available offering for these requirements.
    fn is_offered(&mut self, offer: &Offer, set: SetId) -> bool {
        let (table, algebra) = (&self.tables[offer.table], &mut self.algebra);
        let offerings = |t: &u32| table.offerings_of(*t as usize).iter().filter(|o| o.available);
        let mut offered = offer.types.iter().flat_map(offerings);
        offered.any(|o| algebra.compatible(set, o.set, Undefined::AllowedIfWellKnown))
    }

    /// Keeps types with an available offering for the requirements.
    fn keep_offered(&mut self, offer: &mut Offer) {
        let (table, algebra) = (&self.tables[offer.table], &mut self.algebra);
        let set = offer.set;
        offer.types.retain(|t| {
            let mut offerings = table.offerings_of(*t as usize).iter().filter(|o| o.available);
            offerings.any(|o| algebra.compatible(set, o.set, Undefined::AllowedIfWellKnown))
        });
    }

    /// Keeps types that cost less than `price` even at worst.
    fn keep_cheaper(&mut self, offer: &mut Offer, price: f64) -> Result<(), Why> {
        let worst = self.worst_prices(offer.table, offer.set);
        let cheapest = offer.types.iter().map(|t| worst[*t as usize]).fold(f64::MAX, f64::min);
        offer.types.retain(|t| worst[*t as usize] < price);
        let missed = self.missed_min_values(offer.table, offer.set, &offer.types);
        if !missed.is_empty() {
            return Err(Why::MinValues(missed));
        }
        if offer.types.is_empty() {
            let cheapest = Some(cheapest).filter(|p| *p != f64::MAX);
            return Err(Why::NotCheaper { price, cheapest });
        }
        Ok(())
    }

    /// What each type of a table may cost at worst: providers launch into reservations first, then spot, then on-demand, and within
    /// these into whichever zone they like.
    fn worst_prices(&mut self, table: usize, set: SetId) -> Arc<[f64]> {
        if let Some(known) = self.launches.worst.get(&(table, set)) {
            return known.clone();
        }
        let by_preference =
            [RESERVED, SPOT, ON_DEMAND].map(|capacity_type| self.only(SetId::EMPTY, capacity_type));
        let (types, algebra) = (&self.tables[table], &mut self.algebra);
        let worst: Arc<[f64]> = (0..types.len())
            .map(|number| {
                let mut fits =
                    |set: SetId, of: SetId| algebra.compatible(set, of, Undefined::AllowedIfWellKnown);
                let usable: Vec<_> =
                    types.offerings_of(number).iter().filter(|o| o.launchable && fits(set, o.set)).collect();
                by_preference
                    .iter()
                    .find_map(|kind| {
                        let of_kind = usable.iter().filter(|o| fits(*kind, o.set)).map(|o| o.price);
                        of_kind.reduce(|most, p| if p > most || p.is_nan() { p } else { most })
                    })
                    // What may cost nobody knows how much is not cheaper than anything, in whichever order it is listed.
                    .filter(|most| !most.is_nan())
                    .unwrap_or(f64::MAX)
            })
            .collect();
        self.launches.worst.insert((table, set), worst.clone());
        worst
    }

    /// The least the type can be launched for.
    fn launch_price(&mut self, offer: &Offer, number: u32) -> Option<f64> {
        let price = self.prices(offer.table, offer.set).prices[number as usize];
        (price != f64::MAX).then_some(price)
    }

    /// How many of the offer's types, in order, it takes to meet every `minValues`.
    fn types_needed(&self, offer: &Offer) -> usize {
        if !self.algebra.has_min_values(offer.set) {
            return 0;
        }
        (1..=offer.types.len())
            .find(|n| self.missed_min_values(offer.table, offer.set, &offer.types[..*n]).is_empty())
            .unwrap_or(offer.types.len())
    }
}
