//! A list of instance types, compiled: which of them meet a set of requirements, have an offering for it, and are large enough.
//!
//! An instance type is a bit. A *row* is an instance type with one particular amount of allocatable resources: types whose offerings
//! override capacity have several rows, all others one.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::algebra::{Algebra, ReqId, SetId, Undefined};
use crate::bits::Bits;
use crate::columns::{Cell, Columns, Need, Row};
use crate::hashing::FixedState;
use crate::instance_type::InstanceType;
use crate::labels::{CAPACITY_TYPE, INSTANCE_TYPE, RESERVED, Text};
use crate::vocabulary::{KeyId, ValueId};

/// A reservation by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ReservationId(pub(crate) u32);

/// Reservation ids and how many slots each has.
#[derive(Default)]
pub(crate) struct Reservations {
    by_name: HashMap<Text, ReservationId, FixedState>,
    pub(crate) names: Vec<Text>,
    /// Free slots: the least that any offering of that reservation tells.
    pub(crate) free: Vec<i64>,
}

impl Reservations {
    fn add(&mut self, name: &Text, capacity: i64) -> ReservationId {
        if let Some(id) = self.by_name.get(name) {
            let free = &mut self.free[id.0 as usize];
            *free = (*free).min(capacity);
            return *id;
        }
        let id = ReservationId(self.names.len() as u32);
        self.names.push(name.clone());
        self.free.push(capacity);
        self.by_name.insert(name.clone(), id);
        id
    }
}

impl Reservations {
    /// Gives a reservation a slot back.
    pub(crate) fn credit(&mut self, name: &Text) -> Option<ReservationId> {
        let id = self.by_name.get(name).copied();
        if let Some(id) = id {
            self.free[id.0 as usize] += 1;
        }
        id
    }
}

pub(crate) struct TypeInfo {
    pub(crate) name: Text,
    pub(crate) set: SetId,
    pub(crate) capacity: Row,
    pub(crate) volume_limits: BTreeMap<Text, i64>,
    pub(crate) capacity_overlaid: bool,
    pub(crate) price_overlaid: bool,
    /// First offering and number of offerings.
    offerings: (u32, u32),
}

pub(crate) struct OfferingInfo {
    pub(crate) set: SetId,
    pub(crate) price: f64,
    pub(crate) available: bool,
    pub(crate) launchable: bool,
    pub(crate) capacity_type: Option<ValueId>,
    pub(crate) reservation: Option<ReservationId>,
    pub(crate) reservation_capacity: i64,
}

/// Rows by amount of one resource: for any need, those with at least that much.
struct Levels {
    amounts: Vec<Cell>,
    at_least: Vec<Bits>,
}

struct KeyIndex {
    key: KeyId,
    by_req: Vec<(ReqId, Bits)>,
    absent: Bits,
}

/// What is known about one set of requirements.
pub(crate) struct Masks {
    /// Types whose own requirements overlap.
    pub(crate) compatible: Bits,
    /// Rows with an available, compatible offering.
    pub(crate) offered: Bits,
    /// Types with an available, compatible offering that is not reserved.
    pub(crate) unreserved: Bits,
    /// Types that are both compatible and offered, however large.
    pub(crate) eligible: Bits,
}

pub(crate) struct TypeTable {
    pub(crate) types: Vec<TypeInfo>,
    pub(crate) offerings: Vec<OfferingInfo>,
    row_types: Vec<u32>,
    levels: Vec<Levels>,
    /// Rows without a negative amount: nothing fits into an overcommitted one.
    sound: Bits,
    index: Vec<KeyIndex>,
    offering_sets: Vec<(SetId, Bits)>,
    unreserved_sets: Vec<(SetId, Bits)>,
    pub(crate) has_reserved: bool,
    /// Types by name.
    pub(crate) by_name: Vec<u32>,
    /// Every type's own requirement on the instance-type label is its name and no offering mentions that label, so that listing names
    /// says all there is to say.
    pub(crate) named_plainly: bool,
    masks: Vec<Masks>,
    masks_by_set: Vec<u32>,
    req_masks: HashMap<ReqId, Bits, FixedState>,
}

impl TypeTable {
    pub(crate) fn compile(
        list: &[InstanceType],
        algebra: &mut Algebra,
        columns: &mut Columns,
        reservations: &mut Reservations,
        reservation_label: &Text,
    ) -> Self {
        let reservation_key = algebra.vocabulary.key(reservation_label);
        let capacity_key = algebra.vocabulary.key(&CAPACITY_TYPE.into());
        let mut table = TypeTable {
            types: Vec::with_capacity(list.len()),
            offerings: Vec::new(),
            row_types: Vec::new(),
            levels: Vec::new(),
            sound: Bits::default(),
            index: Vec::new(),
            offering_sets: Vec::new(),
            unreserved_sets: Vec::new(),
            has_reserved: false,
            by_name: Vec::new(),
            named_plainly: false,
            masks: Vec::new(),
            masks_by_set: Vec::new(),
            req_masks: HashMap::default(),
        };
        let mut row_needs: Vec<Need> = Vec::new();
        let mut row_offerings: Vec<SmallVec<[u32; 8]>> = Vec::new();
        for (number, instance_type) in list.iter().enumerate() {
            let first_offering = table.offerings.len() as u32;
            for (at, offering) in instance_type.offerings.iter().enumerate() {
                // Types mostly list the same offerings in the same order.
                let before = number.checked_sub(1).and_then(|n| list[n].offerings.get(at));
                let set = match before {
                    Some(same) if same.requirements == offering.requirements => {
                        let (first, _) = table.types[number - 1].offerings;
                        table.offerings[first as usize + at].set
                    }
                    _ => algebra.demand(&offering.requirements).set,
                };
                let capacity_type =
                    offering.capacity_type().map(|c| algebra.vocabulary.value(capacity_key, c));
                let reserved = offering.capacity_type().is_some_and(|c| c.as_ref() == RESERVED);
                let reservation = reserved.then(|| {
                    let id = algebra.get(set, reservation_key).map(|r| algebra.render(r));
                    let name = id.filter(|r| !r.complement).and_then(|r| r.values.first().cloned());
                    reservations.add(&name.unwrap_or_else(|| "".into()), offering.reservation_capacity)
                });
                table.has_reserved |= reserved;
                table.offerings.push(OfferingInfo {
                    set,
                    price: offering.price,
                    available: offering.available,
                    launchable: offering.launchable(),
                    capacity_type,
                    reservation,
                    reservation_capacity: offering.reservation_capacity,
                });
            }
            let groups = instance_type.allocatable_groups();
            for group in &groups {
                table.row_types.push(number as u32);
                row_needs.push(columns.need(&group.allocatable));
                row_offerings.push(group.offerings.iter().map(|o| first_offering + *o as u32).collect());
            }
            let capacity = columns.need(&instance_type.capacity);
            let width = columns.len();
            table.types.push(TypeInfo {
                name: instance_type.name.clone(),
                set: algebra.demand(&instance_type.requirements).set,
                capacity: crate::columns::row(&capacity, width),
                volume_limits: instance_type.volume_limits.clone(),
                capacity_overlaid: instance_type.capacity_overlaid,
                price_overlaid: instance_type.offerings.iter().any(|o| o.price_overlaid),
                offerings: (first_offering, instance_type.offerings.len() as u32),
            });
        }
        table.index_rows(&row_needs, columns.len());
        table.index_requirements(algebra);
        table.index_offerings(&row_offerings);
        table.index_names(algebra);
        table
    }

    fn index_names(&mut self, algebra: &mut Algebra) {
        let key = algebra.vocabulary.key(&INSTANCE_TYPE.into());
        let mut by_name: Vec<u32> = (0..self.types.len() as u32).collect();
        by_name.sort_by(|a, b| self.types[*a as usize].name.cmp(&self.types[*b as usize].name));
        self.by_name = by_name;
        let plain = |info: &TypeInfo| {
            let own = algebra.get(info.set, key).map(|r| algebra.req(r));
            own.is_some_and(|r| {
                !r.complement
                    && r.values.len() == 1
                    && *algebra.vocabulary.value_name(key, r.values[0]) == info.name
            })
        };
        self.named_plainly =
            self.types.iter().all(plain) && self.offerings.iter().all(|o| algebra.get(o.set, key).is_none());
    }

    fn index_rows(&mut self, needs: &[Need], width: usize) {
        let rows = needs.len();
        self.sound = Bits::all(rows);
        let mut sound = Bits::none(rows);
        for (row, need) in needs.iter().enumerate() {
            if need.iter().all(|(_, cell)| *cell >= 0) {
                sound.insert(row);
            }
        }
        self.sound = sound;
        for column in 0..width as u32 {
            let amount = |need: &Need| need.iter().find(|(c, _)| *c == column).map_or(0, |(_, cell)| *cell);
            let mut sorted: Vec<(Cell, usize)> =
                needs.iter().enumerate().map(|(r, n)| (amount(n), r)).collect();
            sorted.sort_unstable();
            let mut levels = Levels { amounts: Vec::new(), at_least: Vec::new() };
            let mut seen = Bits::none(rows);
            for (position, (cell, row)) in sorted.iter().enumerate().rev() {
                seen.insert(*row);
                if position == 0 || sorted[position - 1].0 != *cell {
                    levels.amounts.push(*cell);
                    levels.at_least.push(seen.clone());
                }
            }
            levels.amounts.reverse();
            levels.at_least.reverse();
            self.levels.push(levels);
        }
    }

    fn index_requirements(&mut self, algebra: &Algebra) {
        let universe = self.types.len();
        let mut positions: HashMap<ReqId, usize, FixedState> = HashMap::default();
        for (number, info) in self.types.iter().enumerate() {
            for (key, req) in algebra.entries(info.set) {
                let at = self.index.iter().position(|k| k.key == *key).unwrap_or_else(|| {
                    self.index.push(KeyIndex { key: *key, by_req: Vec::new(), absent: Bits::all(universe) });
                    self.index.len() - 1
                });
                let index = &mut self.index[at];
                let position = *positions.entry(*req).or_insert_with(|| {
                    index.by_req.push((*req, Bits::none(universe)));
                    index.by_req.len() - 1
                });
                index.by_req[position].1.insert(number);
            }
        }
        for index in &mut self.index {
            for (_, types) in &index.by_req {
                for number in types.iter() {
                    index.absent.remove(number);
                }
            }
        }
    }

    fn index_offerings(&mut self, row_offerings: &[SmallVec<[u32; 8]>]) {
        let (rows, universe) = (self.row_types.len(), self.types.len());
        for (row, offerings) in row_offerings.iter().enumerate() {
            for offering in offerings {
                let info = &self.offerings[*offering as usize];
                insert_by_set(&mut self.offering_sets, info.set, row, rows);
                if info.reservation.is_none() {
                    let number = self.row_types[row] as usize;
                    insert_by_set(&mut self.unreserved_sets, info.set, number, universe);
                }
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.types.len()
    }

    pub(crate) fn offerings_of(&self, number: usize) -> &[OfferingInfo] {
        let (first, count) = self.types[number].offerings;
        &self.offerings[first as usize..(first + count) as usize]
    }

    /// Types whose own requirement on the key overlaps `req`.
    fn overlapping(&mut self, algebra: &mut Algebra, key: KeyId, req: ReqId) -> Option<&Bits> {
        let index = self.index.iter().find(|k| k.key == key)?;
        if !self.req_masks.contains_key(&req) {
            let mut mask = index.absent.clone();
            for (own, types) in &index.by_req {
                if algebra.overlaps(*own, req) {
                    mask.or(types);
                }
            }
            self.req_masks.insert(req, mask);
        }
        self.req_masks.get(&req)
    }

    /// What is known about `set`; worked out the first time.
    pub(crate) fn masks(&mut self, algebra: &mut Algebra, set: SetId) -> &Masks {
        let at = set.index();
        if at >= self.masks_by_set.len() {
            self.masks_by_set.resize(at + 1, u32::MAX);
        }
        if self.masks_by_set[at] == u32::MAX {
            let computed = self.compute_masks(algebra, set);
            self.masks_by_set[at] = self.masks.len() as u32;
            self.masks.push(computed);
        }
        &self.masks[self.masks_by_set[at] as usize]
    }

    fn compute_masks(&mut self, algebra: &mut Algebra, set: SetId) -> Masks {
        let mut compatible = Bits::all(self.types.len());
        let entries: SmallVec<[(KeyId, ReqId); 12]> = algebra.entries(set).into();
        for (key, req) in entries {
            if let Some(mask) = self.overlapping(algebra, key, req) {
                compatible.and(mask);
            }
        }
        let mut offered = Bits::none(self.row_types.len());
        for (offering, rows) in &self.offering_sets {
            if algebra.compatible(set, *offering, Undefined::AllowedIfWellKnown) {
                offered.or(rows);
            }
        }
        let mut unreserved = Bits::none(self.types.len());
        for (offering, types) in &self.unreserved_sets {
            if algebra.compatible(set, *offering, Undefined::AllowedIfWellKnown) {
                unreserved.or(types);
            }
        }
        let mut eligible = self.types_of(&offered);
        eligible.and(&compatible);
        Masks { compatible, offered, unreserved, eligible }
    }

    fn one_row_each(&self) -> bool {
        self.row_types.len() == self.types.len()
    }

    fn types_of(&self, rows: &Bits) -> Bits {
        if self.one_row_each() {
            return rows.clone();
        }
        let mut types = Bits::none(self.types.len());
        for row in rows.iter() {
            types.insert(self.row_types[row] as usize);
        }
        types
    }

    /// Narrows `rows` to those with at least as much of every column as `total`.
    fn keep_fitting(&self, rows: &mut Bits, total: &[Cell]) {
        rows.and(&self.sound);
        for (column, amount) in total.iter().enumerate().filter(|(_, amount)| **amount > 0) {
            // A resource no instance type has, or not enough of it.
            let mask = self
                .levels
                .get(column)
                .and_then(|levels| levels.at_least.get(levels.amounts.partition_point(|a| a < amount)));
            match mask {
                Some(mask) => rows.and(mask),
                None => rows.clear(),
            }
        }
    }

    /// As [`TypeTable::keep`], into `kept`.
    pub(crate) fn keep_into(
        &mut self,
        kept: &mut Bits,
        algebra: &mut Algebra,
        types: &Bits,
        set: SetId,
        total: &[Cell],
    ) {
        if !self.one_row_each() {
            *kept = self.keep(algebra, types, set, total);
            return;
        }
        kept.assign(types);
        kept.and(&self.masks(algebra, set).eligible);
        self.keep_fitting(kept, total);
    }

    /// Those of `types` that meet `set` and have an offering for it in a row large enough for `total`.
    pub(crate) fn keep(&mut self, algebra: &mut Algebra, types: &Bits, set: SetId, total: &[Cell]) -> Bits {
        if self.one_row_each() {
            let mut kept = types.clone();
            kept.and(&self.masks(algebra, set).eligible);
            self.keep_fitting(&mut kept, total);
            return kept;
        }
        let masks = self.masks(algebra, set);
        let (mut rows, compatible) = (masks.offered.clone(), masks.compatible.clone());
        self.keep_fitting(&mut rows, total);
        let mut kept = self.types_of(&rows);
        kept.and(&compatible);
        kept.and(types);
        kept
    }

    /// Which criteria some of `types` meet: requirements; an offering in a row large enough; an offering; requirements and offering
    /// but too small; large enough with an offering but not the requirements.
    pub(crate) fn criteria(
        &mut self,
        algebra: &mut Algebra,
        types: &Bits,
        set: SetId,
        total: &[Cell],
    ) -> [bool; 5] {
        let masks = self.masks(algebra, set);
        let (compatible, offered) = (masks.compatible.clone(), masks.offered.clone());
        let mut rows = offered.clone();
        self.keep_fitting(&mut rows, total);
        let (fits, has_offering) = (self.types_of(&rows), self.types_of(&offered));
        let mut flags = [false; 5];
        for number in types.iter() {
            let (c, f, o) =
                (compatible.contains(number), fits.contains(number), has_offering.contains(number));
            let met = [c, f, o, c && o && !f, f && o && !c];
            for (flag, met) in flags.iter_mut().zip(met) {
                *flag |= met;
            }
        }
        flags
    }

    /// The most of a column any row of the types in both sets has; `None` when there are no such types.
    pub(crate) fn most(&self, types: &Bits, and: &Bits, column: usize) -> Option<Cell> {
        if !types.intersects(and) {
            return None;
        }
        let Some(levels) = self.levels.get(column) else { return Some(0) };
        let at = if self.one_row_each() {
            levels.at_least.partition_point(|level| level.intersects_both(types, and))
        } else {
            let mut both = types.clone();
            both.and(and);
            let rows = self.rows_of(&both);
            levels.at_least.partition_point(|level| level.intersects(&rows))
        };
        levels.amounts.get(at.wrapping_sub(1)).copied()
    }

    fn rows_of(&self, types: &Bits) -> Bits {
        let mut rows = Bits::none(self.row_types.len());
        for (row, number) in self.row_types.iter().enumerate() {
            if types.contains(*number as usize) {
                rows.insert(row);
            }
        }
        rows
    }

    /// Distinct requirements of the types on `key`; `None` for types that have none.
    pub(crate) fn requirements_on(&self, key: KeyId) -> impl Iterator<Item = Option<ReqId>> + '_ {
        let index = self.index.iter().find(|k| k.key == key);
        let absent = index.is_none_or(|k| !k.absent.is_empty()) && !self.types.is_empty();
        index.into_iter().flat_map(|k| k.by_req.iter().map(|(r, _)| Some(*r))).chain(absent.then_some(None))
    }

    /// Distinct values of `key` over `types` that `req` allows.
    pub(crate) fn distinct_values(&self, algebra: &Algebra, types: &Bits, key: KeyId, req: ReqId) -> i64 {
        let Some(index) = self.index.iter().find(|k| k.key == key) else { return 0 };
        let mut values: Vec<ValueId> = Vec::new();
        for (own, with) in &index.by_req {
            if with.intersects(types) {
                values.extend(algebra.req(*own).values.iter().filter(|v| algebra.has(req, **v)));
            }
        }
        values.sort_unstable();
        values.dedup();
        values.len() as i64
    }
}

fn insert_by_set(sets: &mut Vec<(SetId, Bits)>, set: SetId, bit: usize, universe: usize) {
    match sets.iter_mut().find(|(s, _)| *s == set) {
        Some((_, bits)) => bits.insert(bit),
        None => {
            let mut bits = Bits::none(universe);
            bits.insert(bit);
            sets.push((set, bits));
        }
    }
}
