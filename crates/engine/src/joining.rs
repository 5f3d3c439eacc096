//! Whether a claim takes a pod, and what it becomes when it does.

use crate::algebra::{SetId, Undefined};
use crate::bits::Bits;
use crate::claim::{Claim, Held, Joined};
use crate::classes::ClassId;
use crate::columns::{self, Row};
use crate::ports;
use crate::reasons::ReservedRejection;
use crate::refusal::Refusal;
use crate::snapshot::ReservedMode;
use crate::solver::{Candidate, Solver};
use crate::templates::unmet_min_values;
use crate::topology::{Place, Spot};
use crate::vocabulary::ValueId;
use crate::volumes::{self, Volumes};

impl Solver<'_> {
    pub(crate) fn can_join_claim(
        &mut self,
        number: usize,
        candidate: Candidate,
        volumes: Option<&Volumes>,
    ) -> Result<Joined, Refusal> {
        let claim = self.take_claim(number);
        let answer = self.can_join(&claim, candidate, volumes, false);
        self.claims[number] = claim;
        answer
    }

    /// Takes the claim out, to be put back, so that it can be asked while everything else is at hand.
    pub(crate) fn take_claim(&mut self, number: usize) -> Claim {
        std::mem::replace(&mut self.claims[number], Claim::vacant())
    }

    /// Whether the claim takes the pod, and what it then is.
    pub(crate) fn can_join(
        &mut self,
        claim: &Claim,
        candidate: Candidate,
        volumes: Option<&Volumes>,
        relax_min_values: bool,
    ) -> Result<Joined, Refusal> {
        let shape = &self.classes.shapes[self.classes.classes[candidate.class as usize].shape as usize];
        let (demand, need) = (shape.demand, shape.need);
        let template = &self.templates[claim.template];
        let taints = template.taints;
        if !self.tolerance.tolerates(taints, shape.tolerations) {
            return Err(Refusal::Taints);
        }
        let limited;
        let mut types = &claim.types;
        if let Some(volumes) = volumes.filter(|v| !v.is_empty()) {
            limited = self.types_with_attachments(claim, volumes);
            if limited.is_empty() {
                return Err(Refusal::VolumeLimit);
            }
            types = &limited;
        }
        if !self.algebra.compatible(claim.set, demand.set, Undefined::AllowedIfWellKnown)
            || !self.algebra.host_ok(claim.host, demand.host)
        {
            return Err(Refusal::Requirements);
        }
        let base = self.algebra.merge(claim.set, demand.set);
        let mut total = claim.requests.clone();
        columns::add(&mut total, &self.classes.needs[need as usize]);
        let alternatives = self.pods[candidate.pod as usize].alternatives.clone();
        if alternatives.is_empty() {
            return self.can_join_from(claim, candidate, base, types, &total, relax_min_values);
        }
        let mut last = Refusal::Requirements;
        for alternative in alternatives.iter() {
            if !self.algebra.compatible(base, alternative.set, Undefined::AllowedIfWellKnown)
                || !self.algebra.host_ok(claim.host, alternative.host)
            {
                last = Refusal::VolumeRequirements(base, *alternative);
                continue;
            }
            let narrowed = self.algebra.merge(base, alternative.set);
            match self.can_join_from(claim, candidate, narrowed, types, &total, relax_min_values) {
                Ok(joined) => return Ok(joined),
                Err(refusal) => last = refusal,
            }
        }
        Err(last)
    }

    fn types_with_attachments(&self, claim: &Claim, added: &Volumes) -> Bits {
        let mut all = claim.volumes.clone();
        volumes::union_into(&mut all, added);
        let table = &self.tables[self.templates[claim.template].table];
        let mut types = claim.types.clone();
        for number in claim.types.iter() {
            let limits = &table.types[number].volume_limits;
            let exceeded = all
                .iter()
                .any(|(driver, claims)| limits.get(driver).is_some_and(|l| claims.len() as i64 > *l));
            if exceeded {
                types.remove(number);
            }
        }
        types
    }

    /// The rest of `can_join` once node and volume requirements are merged into `base`.
    fn can_join_from(
        &mut self,
        claim: &Claim,
        candidate: Candidate,
        base: SetId,
        types: &Bits,
        total: &Row,
        relax_min_values: bool,
    ) -> Result<Joined, Refusal> {
        let taints = self.templates[claim.template].taints;
        let place = Place { set: base, host: claim.host, taints };
        let mut set =
            self.choose_domains(candidate.pod, candidate.class, place, Undefined::AllowedIfWellKnown)?;
        let kept = self.filter_types(claim, candidate.class, set, types, total);
        let table = &self.tables[self.templates[claim.template].table];
        let unmet = unmet_min_values(&self.algebra, table, &kept, set);
        if !unmet.is_empty() {
            if relax_min_values {
                for (key, reached) in unmet {
                    set = self.algebra.with_min_values(set, key, reached);
                }
            } else {
                return Err(Refusal::MinValues(set));
            }
        }
        if kept.is_empty() {
            return Err(Refusal::InstanceTypes(set));
        }
        let held = self.reserve(claim, &kept, set).map_err(Refusal::Reserved)?;
        Ok(Joined { set, types: kept, held })
    }

    /// Those of `types` that meet `set` and can hold `total` beside their daemons.
    fn filter_types(&mut self, claim: &Claim, class: ClassId, set: SetId, types: &Bits, total: &Row) -> Bits {
        let template = &self.templates[claim.template];
        let table = &mut self.tables[template.table];
        let spec = &self.classes.shapes[self.classes.classes[class as usize].shape as usize].spec;
        let clashes = |held: &[crate::pod::HostPort]| ports::first_clash(&spec.host_ports, held).is_some();
        let mut kept = Bits::none(table.len());
        if !spec.host_ports.is_empty() && clashes(&claim.ports) {
            return kept;
        }
        if let [group] = &template.daemons[..]
            && group.need.is_empty()
        {
            return table.keep(&mut self.algebra, types, set, total);
        }
        for group in &template.daemons {
            if !spec.host_ports.is_empty() && clashes(&group.ports) {
                continue;
            }
            let mut with_daemons = total.clone();
            columns::add(&mut with_daemons, &group.need);
            let mut of_group = table.keep(&mut self.algebra, types, set, &with_daemons);
            of_group.and(&group.types);
            kept.or(&of_group);
        }
        kept
    }

    /// The reservations the claim would hold, or why reserved capacity forbids it.
    fn reserve(&mut self, claim: &Claim, types: &Bits, set: SetId) -> Result<Held, ReservedRejection> {
        self.reserve_for(self.templates[claim.template].table, &claim.held, types, set)
    }

    /// As `reserve`, for a claim that holds `so_far`.
    pub(crate) fn reserve_for(
        &mut self,
        table: usize,
        so_far: &Held,
        types: &Bits,
        set: SetId,
    ) -> Result<Held, ReservedRejection> {
        let mut held = Held::new();
        let table = &mut self.tables[table];
        if !self.options.gates.reserved_capacity || !table.has_reserved {
            return Ok(held);
        }
        let (mut with_capacity, mut full) = (false, false);
        for number in types.iter() {
            for offering in table.offerings_of(number) {
                let Some(reservation) = offering.reservation.filter(|_| offering.available) else { continue };
                if !self.algebra.compatible(set, offering.set, Undefined::AllowedIfWellKnown) {
                    continue;
                }
                if offering.reservation_capacity == 0 && self.credited != Some(reservation) {
                    full = true;
                    continue;
                }
                with_capacity = true;
                let available =
                    so_far.contains(&reservation) || self.reservations.free[reservation.0 as usize] > 0;
                if available && !held.contains(&reservation) {
                    held.push(reservation);
                }
            }
        }
        let strict = self.reserved_mode == ReservedMode::Strict;
        if strict && with_capacity && held.is_empty() {
            return Err(ReservedRejection::Held);
        }
        if full && !with_capacity && !table.masks(&mut self.algebra, set).unreserved.intersects(types) {
            return Err(if strict { ReservedRejection::Full } else { ReservedRejection::FullFallThrough });
        }
        if strict && !so_far.is_empty() && held.is_empty() {
            return Err(ReservedRejection::WouldLose);
        }
        Ok(held)
    }

    pub(crate) fn join_claim(
        &mut self,
        number: usize,
        candidate: Candidate,
        volumes: Option<&Volumes>,
        joined: Joined,
    ) {
        let shape = &self.classes.shapes[self.classes.classes[candidate.class as usize].shape as usize];
        let claim = &mut self.claims[number];
        claim.pods.push((candidate.pod, candidate.class));
        claim.types = joined.types;
        claim.set = joined.set;
        columns::add(&mut claim.requests, &self.classes.needs[shape.need as usize]);
        claim.ports.extend(shape.spec.host_ports.iter().cloned());
        if let Some(volumes) = volumes {
            volumes::union_into(&mut claim.volumes, volumes);
        }
        for reservation in &joined.held {
            if !claim.held.contains(reservation) {
                self.reservations.free[reservation.0 as usize] -= 1;
            }
        }
        for reservation in &claim.held {
            if !joined.held.contains(reservation) {
                self.reservations.free[reservation.0 as usize] += 1;
            }
        }
        claim.held = joined.held;
        claim.update_room(&self.templates[claim.template], &self.tables);
        let place = Place { set: claim.set, host: claim.host, taints: self.templates[claim.template].taints };
        self.record(candidate, place, Spot::Claim(number));
    }

    pub(crate) fn create(
        &mut self,
        claim: Claim,
        candidate: Candidate,
        volumes: Option<&Volumes>,
        joined: Joined,
    ) {
        let number = claim.template;
        let lowered = self.algebra.entries(claim.set).iter().any(|(key, req)| {
            let before = self.algebra.req(*req).min_values;
            let after = self.algebra.get(joined.set, *key).and_then(|r| self.algebra.req(r).min_values);
            before.zip(after).is_some_and(|(before, after)| after < before)
        });
        self.claims.push(claim);
        self.order.push();
        self.lessons.add_claim(self.claims.len() - 1, number);
        self.next_host = self.algebra.vocabulary.placeholder_host(self.claims.len() + 1);
        self.join_claim(self.claims.len() - 1, candidate, volumes, joined);
        let template = &mut self.templates[number];
        template.min_values_relaxed = lowered;
        let table = &self.tables[template.table];
        let pool = &mut self.pools[template.pool];
        if pool.remaining.is_empty() {
            return;
        }
        // The largest instance type the claim could become is what may be missing from the limits later.
        let types = &self.claims[self.claims.len() - 1].types;
        pool.take(|column| {
            let capacity = |t: usize| table.types[t].capacity.get(column as usize).copied().unwrap_or(0);
            types.iter().map(capacity).max().unwrap_or(0)
        });
        let pool_index = template.pool;
        for template in self.templates.iter_mut().filter(|t| t.pool == pool_index) {
            template.apply_limits(&self.pools[pool_index], &self.tables[template.table]);
        }
    }
}

impl Claim {
    pub(crate) fn new(template: usize, host: ValueId, set: SetId, types: Bits, width: usize) -> Self {
        Claim {
            template,
            host,
            set,
            types,
            requests: vec![0; width],
            room: Row::new(),
            pods: Vec::new(),
            ports: Vec::new(),
            volumes: Volumes::new(),
            held: Held::new(),
        }
    }

    fn vacant() -> Self {
        Claim::new(0, ValueId(0), SetId::EMPTY, Bits::default(), 0)
    }
}
