//! Requirement algebra on numbers.
//!
//! Every distinct requirement and every distinct set of requirements exists once and is known by its number, so comparing two is
//! comparing integers, and the answers to "do these overlap", "what remains of both" are remembered. A cluster has
//! few distinct requirements however many pods it has.

use hashbrown::{HashMap, HashTable};
use smallvec::SmallVec;
use std::hash::BuildHasher;

use crate::hashing::FixedState;
use crate::labels::{Labels, Text};
use crate::requirement::{Operator, Requirement, min_bound};
use crate::requirements::{Incompatibility, Requirements};
use crate::vocabulary::{HOST, KeyId, ValueId, Vocabulary};

/// A distinct requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ReqId(u32);

/// A distinct set of requirements, hostname left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SetId(u32);

impl SetId {
    /// The set without requirements.
    pub(crate) const EMPTY: SetId = SetId(0);

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Whether keys a claim does not define may be asked for, if they are well known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Undefined {
    /// No: the receiver is a node, what it does not define it does not have.
    Denied,
    /// Yes: the receiver is a claim, its instance types will define them.
    AllowedIfWellKnown,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Req {
    pub(crate) key: KeyId,
    pub(crate) complement: bool,
    /// Sorted by number.
    pub(crate) values: SmallVec<[ValueId; 4]>,
    pub(crate) gte: Option<i64>,
    pub(crate) lte: Option<i64>,
    pub(crate) min_values: Option<i64>,
}

impl Req {
    pub(crate) fn operator(&self) -> Operator {
        match (self.complement, self.values.is_empty()) {
            (true, false) => Operator::NotIn,
            (true, true) => Operator::Exists,
            (false, false) => Operator::In,
            (false, true) => Operator::DoesNotExist,
        }
    }

    /// Whether absence of the label would do.
    fn content_with_absence(&self) -> bool {
        matches!(self.operator(), Operator::NotIn | Operator::DoesNotExist)
    }

    fn lists(&self, value: ValueId) -> bool {
        self.values.binary_search(&value).is_ok()
    }
}

/// Stands for the hostname of something that has none.
pub(crate) const NO_HOST: ValueId = ValueId(u32::MAX);

/// Requirements of a pod or volume: a shared set, and what it asks of the hostname.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Demand {
    pub(crate) set: SetId,
    pub(crate) host: Option<ReqId>,
}

impl Demand {
    pub(crate) const NONE: Demand = Demand { set: SetId::EMPTY, host: None };
}

type Entries = SmallVec<[(KeyId, ReqId); 12]>;

struct Set {
    entries: Entries,
    has_min_values: bool,
}

/// All requirements and sets of a solve, and what is known about them.
pub(crate) struct Algebra {
    pub(crate) vocabulary: Vocabulary,
    hasher: FixedState,
    reqs: Vec<Req>,
    req_index: HashTable<ReqId>,
    sets: Vec<Set>,
    set_index: HashTable<SetId>,
    intersections: HashMap<(ReqId, ReqId), ReqId, FixedState>,
    overlaps: HashMap<(ReqId, ReqId), bool, FixedState>,
    merges: HashMap<(SetId, SetId), SetId, FixedState>,
    compatibilities: HashMap<(SetId, SetId, Undefined), bool, FixedState>,
    narrowings: HashMap<(SetId, ReqId), SetId, FixedState>,
    /// By address of key and value.
    label_reqs: HashMap<(usize, usize), (KeyId, ReqId), FixedState>,
    /// By address of the labels.
    label_demands: HashMap<usize, Demand, FixedState>,
}

impl Algebra {
    pub(crate) fn new(vocabulary: Vocabulary) -> Self {
        let mut algebra = Algebra {
            vocabulary,
            hasher: FixedState::default(),
            reqs: Vec::new(),
            req_index: HashTable::new(),
            sets: Vec::new(),
            set_index: HashTable::new(),
            intersections: HashMap::default(),
            overlaps: HashMap::default(),
            merges: HashMap::default(),
            compatibilities: HashMap::default(),
            narrowings: HashMap::default(),
            label_reqs: HashMap::default(),
            label_demands: HashMap::default(),
        };
        algebra.intern_set(Entries::new());
        algebra
    }

    pub(crate) fn req(&self, id: ReqId) -> &Req {
        &self.reqs[id.0 as usize]
    }

    pub(crate) fn intern(&mut self, req: Req) -> ReqId {
        let hash = self.hasher.hash_one(&req);
        let (reqs, hasher) = (&mut self.reqs, &self.hasher);
        let next = ReqId(reqs.len() as u32);
        let found = self.req_index.find(hash, |id| reqs[id.0 as usize] == req).copied();
        found.unwrap_or_else(|| {
            reqs.push(req);
            self.req_index.insert_unique(hash, next, |id| hasher.hash_one(&reqs[id.0 as usize]));
            next
        })
    }

    fn intern_set(&mut self, entries: Entries) -> SetId {
        let hash = self.hasher.hash_one(&entries);
        let hasher = &self.hasher;
        let found = self.set_index.find(hash, |id| self.sets[id.index()].entries == entries).copied();
        found.unwrap_or_else(|| {
            let has_min_values = entries.iter().any(|(_, r)| self.reqs[r.0 as usize].min_values.is_some());
            let next = SetId(self.sets.len() as u32);
            self.sets.push(Set { entries, has_min_values });
            let sets = &self.sets;
            self.set_index.insert_unique(hash, next, |id| hasher.hash_one(&sets[id.index()].entries));
            next
        })
    }

    /// `key In [value]`.
    pub(crate) fn exactly(&mut self, key: KeyId, value: ValueId) -> ReqId {
        self.one_of(key, SmallVec::from_slice(&[value]))
    }

    /// `key In values`, or `DoesNotExist` when there are none.
    pub(crate) fn one_of(&mut self, key: KeyId, mut values: SmallVec<[ValueId; 4]>) -> ReqId {
        values.sort_unstable();
        values.dedup();
        self.intern(Req { key, complement: false, values, gte: None, lte: None, min_values: None })
    }

    /// `key Exists`.
    pub(crate) fn exists(&mut self, key: KeyId) -> ReqId {
        self.intern(Req {
            key,
            complement: true,
            values: SmallVec::new(),
            gte: None,
            lte: None,
            min_values: None,
        })
    }

    pub(crate) fn requirement(&mut self, requirement: &Requirement) -> ReqId {
        let key = self.vocabulary.key(&requirement.key);
        let mut values: SmallVec<[ValueId; 4]> =
            requirement.values.iter().map(|v| self.vocabulary.value(key, v)).collect();
        values.sort_unstable();
        self.intern(Req {
            key,
            complement: requirement.complement,
            values,
            gte: requirement.gte,
            lte: requirement.lte,
            min_values: requirement.min_values,
        })
    }

    /// Requirements with the hostname kept apart.
    pub(crate) fn demand(&mut self, requirements: &Requirements) -> Demand {
        let mut entries = Entries::new();
        let mut host = None;
        for requirement in requirements.iter() {
            let req = self.requirement(requirement);
            match self.req(req).key {
                HOST => host = Some(req),
                key => entries.push((key, req)),
            }
        }
        entries.sort_unstable();
        Demand { set: self.intern_set(entries), host }
    }

    /// Makes room for the labels of so many nodes, each with a hostname of its own.
    pub(crate) fn expect_labels(&mut self, nodes: usize) {
        self.label_demands.reserve(nodes);
        self.label_reqs.reserve(nodes);
    }

    /// What labels say; the hostname is kept apart. Labels that share storage are worked out once, and so are shared strings:
    /// the labels must stay alive for as long as the algebra.
    pub(crate) fn labels(&mut self, labels: &Labels) -> Demand {
        if let Some(known) = self.label_demands.get(&labels.address()) {
            return *known;
        }
        let mut set = Entries::new();
        let mut host: Option<ReqId> = None;
        for (name, value) in labels.iter() {
            let address = (name.as_ptr() as usize, value.as_ptr() as usize);
            let (key, req) = match self.label_reqs.get(&address) {
                Some(known) => *known,
                None => {
                    let normalized = crate::labels::normalized(name);
                    let key = if normalized == name.as_ref() {
                        self.vocabulary.key(name)
                    } else {
                        self.vocabulary.key(&Text::from(normalized))
                    };
                    let value = self.vocabulary.value(key, value);
                    let req = self.exactly(key, value);
                    self.label_reqs.insert(address, (key, req));
                    (key, req)
                }
            };
            if key == HOST {
                host = Some(req);
            } else if let Some(entry) = set.iter().position(|(k, _)| *k == key) {
                // An alias and its successor on one object: both must hold.
                set[entry].1 = self.intersect(set[entry].1, req);
            } else {
                set.push((key, req));
            }
        }
        set.sort_unstable();
        let demand = Demand { set: self.intern_set(set), host };
        self.label_demands.insert(labels.address(), demand);
        demand
    }

    pub(crate) fn entries(&self, set: SetId) -> &[(KeyId, ReqId)] {
        &self.sets[set.index()].entries
    }

    pub(crate) fn has_min_values(&self, set: SetId) -> bool {
        self.sets[set.index()].has_min_values
    }

    pub(crate) fn get(&self, set: SetId, key: KeyId) -> Option<ReqId> {
        let entries = self.entries(set);
        entries.binary_search_by_key(&key, |(k, _)| *k).ok().map(|i| entries[i].1)
    }

    pub(crate) fn has(&self, req: ReqId, value: ValueId) -> bool {
        let req = self.req(req);
        req.lists(value) != req.complement && self.in_bounds(req.key, value, req.gte, req.lte)
    }

    fn in_bounds(&self, key: KeyId, value: ValueId, gte: Option<i64>, lte: Option<i64>) -> bool {
        if gte.is_none() && lte.is_none() {
            return true;
        }
        let integer = self.vocabulary.integer(key, value);
        integer.is_some_and(|v| gte.is_none_or(|g| v >= g) && lte.is_none_or(|l| v <= l))
    }

    /// What both accept.
    pub(crate) fn intersect(&mut self, a: ReqId, b: ReqId) -> ReqId {
        if a == b && !self.collapses(a) {
            return a;
        }
        let pair = (a.min(b), a.max(b));
        if let Some(known) = self.intersections.get(&pair) {
            return *known;
        }
        let (x, y) = (self.req(a), self.req(b));
        let (gte, lte) = (x.gte.max(y.gte), min_bound(x.lte, y.lte));
        let min_values = x.min_values.max(y.min_values);
        let key = x.key;
        let result = if gte.zip(lte).is_some_and(|(g, l)| g > l) {
            Req { key, complement: false, values: SmallVec::new(), gte: None, lte: None, min_values }
        } else {
            let complement = x.complement && y.complement;
            let mut values: SmallVec<[ValueId; 4]> = match (x.complement, y.complement) {
                (true, true) => {
                    let mut union: SmallVec<[ValueId; 4]> =
                        x.values.iter().chain(&y.values).copied().collect();
                    union.sort_unstable();
                    union.dedup();
                    union
                }
                (true, false) => y.values.iter().copied().filter(|v| !x.lists(*v)).collect(),
                (false, true) => x.values.iter().copied().filter(|v| !y.lists(*v)).collect(),
                (false, false) => x.values.iter().copied().filter(|v| y.lists(*v)).collect(),
            };
            values.retain(|v| self.in_bounds(key, *v, gte, lte));
            let (gte, lte) = if complement { (gte, lte) } else { (None, None) };
            Req { key, complement, values, gte, lte, min_values }
        };
        let result = self.intern(result);
        self.intersections.insert(pair, result);
        result
    }

    /// Whether intersecting a requirement with itself changes it: bounds that exclude each other, or drop exclusions.
    fn collapses(&self, id: ReqId) -> bool {
        let req = self.req(id);
        req.gte.is_some() || req.lte.is_some()
    }

    /// Whether both can hold: some value is acceptable to both, or both are content with absence.
    pub(crate) fn overlaps(&mut self, a: ReqId, b: ReqId) -> bool {
        let pair = (a.min(b), a.max(b));
        if let Some(known) = self.overlaps.get(&pair) {
            return *known;
        }
        let result = self.overlap_uncached(a, b);
        self.overlaps.insert(pair, result);
        result
    }

    fn overlap_uncached(&self, a: ReqId, b: ReqId) -> bool {
        let (x, y) = (self.req(a), self.req(b));
        let (gte, lte) = (x.gte.max(y.gte), min_bound(x.lte, y.lte));
        let shared = if gte.zip(lte).is_some_and(|(g, l)| g > l) {
            false
        } else {
            match (x.complement, y.complement) {
                (true, true) => true,
                (true, false) => y.values.iter().any(|v| !x.lists(*v) && self.in_bounds(y.key, *v, gte, lte)),
                (false, _) => x
                    .values
                    .iter()
                    .any(|v| (y.lists(*v) != y.complement) && self.in_bounds(x.key, *v, gte, lte)),
            }
        };
        shared || (x.content_with_absence() && y.content_with_absence())
    }

    /// Whether something meeting `receiver` can meet `incoming`.
    pub(crate) fn compatible(&mut self, receiver: SetId, incoming: SetId, undefined: Undefined) -> bool {
        if incoming == SetId::EMPTY {
            return true;
        }
        if let Some(known) = self.compatibilities.get(&(receiver, incoming, undefined)) {
            return *known;
        }
        let result = self.first_conflict(receiver, incoming, undefined).is_none();
        self.compatibilities.insert((receiver, incoming, undefined), result);
        result
    }

    /// The requirement of `incoming` that cannot be met, and what stands against it.
    fn first_conflict(
        &mut self,
        receiver: SetId,
        incoming: SetId,
        undefined: Undefined,
    ) -> Option<(ReqId, Option<ReqId>)> {
        let asked: SmallVec<[(KeyId, ReqId); 12]> = self.entries(incoming).into();
        for (key, req) in &asked {
            let allowed = undefined == Undefined::AllowedIfWellKnown && self.vocabulary.is_well_known(*key);
            if !allowed && self.get(receiver, *key).is_none() && !self.req(*req).content_with_absence() {
                return Some((*req, None));
            }
        }
        asked.iter().find_map(|(key, req)| {
            let existing = self.get(receiver, *key)?;
            (!self.overlaps(existing, *req)).then_some((*req, Some(existing)))
        })
    }

    /// Why `compatible` said no.
    pub(crate) fn why_incompatible(
        &mut self,
        receiver: SetId,
        incoming: SetId,
        undefined: Undefined,
    ) -> Option<Incompatibility> {
        let (asked, existing) = self.first_conflict(receiver, incoming, undefined)?;
        Some(match existing {
            None => Incompatibility::UndefinedLabel {
                key: self.vocabulary.key_name(self.req(asked).key).clone(),
                hint: self.hint(receiver, self.req(asked).key),
            },
            Some(existing) => Incompatibility::NoOverlap {
                incoming: Box::new(self.render(asked)),
                existing: Box::new(self.render(existing)),
            },
        })
    }

    /// A defined key that the given one may be a misspelling of.
    fn hint(&self, receiver: SetId, key: KeyId) -> Option<Text> {
        let asked = self.vocabulary.key_name(key);
        let suffix = asked.split_once('/').map_or(asked.as_ref(), |(_, suffix)| suffix);
        let looks_alike = |name: &Text| name.contains(asked.as_ref()) || name.ends_with(suffix);
        let mut known: Vec<&Text> =
            self.entries(receiver).iter().map(|(k, _)| self.vocabulary.key_name(*k)).collect();
        known.sort();
        known.into_iter().find(|name| looks_alike(name)).cloned()
    }

    /// Requirements of both, narrowed where they share keys.
    pub(crate) fn merge(&mut self, a: SetId, b: SetId) -> SetId {
        if b == SetId::EMPTY || a == b && !self.set_collapses(a) {
            return a;
        }
        if a == SetId::EMPTY {
            return b;
        }
        if let Some(known) = self.merges.get(&(a, b)) {
            return *known;
        }
        let mut entries: Entries = self.entries(a).into();
        let added: Entries = self.entries(b).into();
        for (key, req) in added {
            match entries.binary_search_by_key(&key, |(k, _)| *k) {
                Ok(at) => entries[at].1 = self.intersect(entries[at].1, req),
                Err(at) => entries.insert(at, (key, req)),
            }
        }
        let merged = self.intern_set(entries);
        self.merges.insert((a, b), merged);
        merged
    }

    fn set_collapses(&self, set: SetId) -> bool {
        self.entries(set).iter().any(|(_, r)| self.collapses(*r))
    }

    /// The set with one more requirement.
    pub(crate) fn narrow(&mut self, set: SetId, req: ReqId) -> SetId {
        if let Some(known) = self.narrowings.get(&(set, req)) {
            return *known;
        }
        let key = self.req(req).key;
        let mut entries: Entries = self.entries(set).into();
        match entries.binary_search_by_key(&key, |(k, _)| *k) {
            Ok(at) => entries[at].1 = self.intersect(entries[at].1, req),
            Err(at) => entries.insert(at, (key, req)),
        }
        let narrowed = self.intern_set(entries);
        self.narrowings.insert((set, req), narrowed);
        narrowed
    }

    /// The set with the requirement on `key` replaced.
    pub(crate) fn replace(&mut self, set: SetId, req: ReqId) -> SetId {
        let key = self.req(req).key;
        let mut entries: Entries = self.entries(set).into();
        match entries.binary_search_by_key(&key, |(k, _)| *k) {
            Ok(at) => entries[at].1 = req,
            Err(at) => entries.insert(at, (key, req)),
        }
        self.intern_set(entries)
    }

    /// The set with another `minValues` on `key`.
    pub(crate) fn with_min_values(&mut self, set: SetId, key: KeyId, min_values: i64) -> SetId {
        let Some(req) = self.get(set, key) else { return set };
        let changed = Req { min_values: Some(min_values), ..self.req(req).clone() };
        let changed = self.intern(changed);
        self.replace(set, changed)
    }

    /// Whether a machine called `host` meets what is asked of the hostname.
    pub(crate) fn host_ok(&self, host: ValueId, asked: Option<ReqId>) -> bool {
        asked.is_none_or(|req| {
            if host == NO_HOST { self.req(req).content_with_absence() } else { self.has(req, host) }
        })
    }

    /// The requirement in words.
    pub(crate) fn render(&self, id: ReqId) -> Requirement {
        let req = self.req(id);
        Requirement {
            key: self.vocabulary.key_name(req.key).clone(),
            complement: req.complement,
            values: req.values.iter().map(|v| self.vocabulary.value_name(req.key, *v).clone()).collect(),
            gte: req.gte,
            lte: req.lte,
            min_values: req.min_values,
        }
    }

    /// The set in words.
    pub(crate) fn render_set(&self, set: SetId) -> Requirements {
        self.entries(set).iter().map(|(_, r)| self.render(*r)).collect()
    }
}
