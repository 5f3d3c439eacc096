//! One topology group: pods counted per domain, and which domains a pod may choose next.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use crate::algebra::{Algebra, Demand, ReqId, SetId, Undefined};
use crate::bits::Bits;
use crate::labels::{Labels, Text};
use crate::reasons::TopologyKind;
use crate::requirement::Operator;
use crate::selector::Selector;
use crate::tolerance::{TaintsId, Tolerance, TolerationsId};
use crate::vocabulary::{HOST, KeyId, ValueId, Vocabulary};

/// Pods that count each other across the domains of one key.
pub(crate) struct Group {
    pub(crate) kind: TopologyKind,
    /// The key as written, which domains are looked up and counted under.
    pub(crate) key: KeyId,
    /// The key a pod's choice is about: what `key` is an alias of, else the same.
    pub(crate) choice_key: KeyId,
    pub(crate) namespaces: BTreeSet<Text>,
    pub(crate) selector: Selector,
    pub(crate) max_skew: i32,
    pub(crate) min_domains: Option<i32>,
    pub(crate) filter: Option<NodeFilter>,
    pub(crate) counts: Counts,
    /// For groups that look at hosts: what their counts mean for whole lists of nodes and claims at once.
    pub(crate) hosts: Hosts,
}

/// Where a pod was placed.
#[derive(Clone, Copy)]
pub(crate) enum Spot {
    /// On a node that exists, by its number.
    Node(usize),
    /// On a claim in flight, by its number.
    Claim(usize),
}

/// Counts per host, seen from the nodes and claims.
#[derive(Default)]
pub(crate) struct Hosts {
    pub(crate) claims: Occupied,
    /// Worked out when first asked for: nodes are numbered after groups are made.
    pub(crate) nodes: Option<Occupied>,
}

/// Nodes (or claims) by how many pods a group counts on them.
#[derive(Default)]
pub(crate) struct Occupied {
    /// At least one.
    some: Bits,
    /// As many as a spread allows.
    full: Bits,
}

impl Occupied {
    pub(crate) fn note(&mut self, number: usize, count: i32, max_skew: i32) {
        if count > 0 {
            self.some.insert_growing(number);
        }
        if count >= max_skew {
            self.full.insert_growing(number);
        }
    }
}

/// Which nodes take part in a spread: those the creating pod could run on.
pub(crate) struct NodeFilter {
    pub(crate) alternatives: Vec<Demand>,
    pub(crate) honors_affinity: bool,
    pub(crate) honors_taints: bool,
    pub(crate) tolerations: TolerationsId,
}

/// Where a node or claim stands.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) set: SetId,
    pub(crate) host: ValueId,
    pub(crate) taints: TaintsId,
}

impl NodeFilter {
    pub(crate) fn matches(&self, place: Place, algebra: &mut Algebra, tolerance: &mut Tolerance) -> bool {
        let affinity = !self.honors_affinity
            || self.alternatives.is_empty()
            || self.alternatives.iter().any(|demand| {
                algebra.compatible(place.set, demand.set, Undefined::Denied)
                    && algebra.host_ok(place.host, demand.host)
            });
        affinity && (!self.honors_taints || tolerance.tolerates(place.taints, self.tolerations))
    }
}

/// Pods per domain. A domain can be known and empty, or not known at all.
#[derive(Clone, Default)]
pub(crate) struct Counts {
    /// By value number; negative when the domain is not known.
    by_value: Vec<i32>,
    /// Known domains by name. Not kept for hostnames, which are only ever looked up one at a time.
    ordered: Vec<ValueId>,
    /// The domain of nodes whose label is there and empty.
    nameless: Option<ValueId>,
    known: usize,
    occupied: usize,
    /// Domains that are known whether or not a pod is there.
    registered: Bits,
    /// Grows whenever a count does.
    pub(crate) version: u32,
}

impl Counts {
    pub(crate) fn get(&self, value: ValueId) -> Option<i32> {
        self.by_value.get(value.index()).copied().filter(|c| *c >= 0)
    }

    pub(crate) fn or_zero(&self, value: ValueId) -> i32 {
        self.get(value).unwrap_or(0)
    }

    fn slot(&mut self, key: KeyId, value: ValueId, vocabulary: &Vocabulary) -> &mut i32 {
        let at = value.index();
        if at >= self.by_value.len() {
            self.by_value.resize(at + 1, -1);
        }
        if self.by_value[at] < 0 {
            self.by_value[at] = 0;
            self.known += 1;
            if key != HOST {
                let name = vocabulary.value_name(key, value);
                if name.is_empty() {
                    self.nameless = Some(value);
                }
                let to = self.ordered.partition_point(|v| vocabulary.value_name(key, *v) < name);
                self.ordered.insert(to, value);
            }
        }
        &mut self.by_value[at]
    }

    /// Makes the domain known.
    pub(crate) fn register(&mut self, key: KeyId, value: ValueId, vocabulary: &Vocabulary) {
        self.slot(key, value, vocabulary);
        self.registered.insert_growing(value.index());
    }

    /// One pod less in the domain, as if it had never been counted.
    pub(crate) fn forget(&mut self, value: ValueId) {
        let Some(count) = self.by_value.get_mut(value.index()).filter(|c| **c > 0) else { return };
        *count -= 1;
        self.version += 1;
        if *count > 0 {
            return;
        }
        self.occupied -= 1;
        if !self.registered.contains(value.index()) {
            *count = -1;
            self.known -= 1;
            self.ordered.retain(|v| *v != value);
        }
    }

    /// One more pod in the domain.
    pub(crate) fn record(&mut self, key: KeyId, value: ValueId, vocabulary: &Vocabulary) {
        let count = self.slot(key, value, vocabulary);
        *count = count.saturating_add(1);
        if *count == 1 {
            self.occupied += 1;
        }
        self.version += 1;
    }

    /// Known domains with their counts, in number order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ValueId, i32)> + '_ {
        self.by_value.iter().enumerate().filter(|(_, c)| **c >= 0).map(|(v, c)| (ValueId(v as u32), *c))
    }

    pub(crate) fn known(&self) -> usize {
        self.known
    }
}

/// What a group leaves a pod to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The host under consideration is fine; it is settled anyway.
    Here,
    /// These domains.
    Domains(ReqId),
    /// None.
    Nothing,
}

impl Group {
    pub(crate) fn selects(&self, namespace: &Text, labels: &Labels) -> bool {
        self.namespaces.contains(namespace) && self.selector.matches(labels)
    }

    /// Where a pod may go, given the domains it allows itself and those a node with requirements `set` could be in. Not for hosts.
    pub(crate) fn choose(
        &self,
        selects_pod: bool,
        pod_domains: Option<ReqId>,
        set: SetId,
        algebra: &mut Algebra,
    ) -> Choice {
        let node_domains = algebra.get(set, self.key);
        let domains: SmallVec<[ValueId; 4]> = match self.kind {
            TopologyKind::Spread => {
                self.spread(selects_pod, pod_domains, node_domains, algebra).into_iter().collect()
            }
            TopologyKind::Affinity => self.affinity(selects_pod, pod_domains, node_domains, algebra),
            TopologyKind::AntiAffinity => self
                .counts
                .ordered
                .iter()
                .copied()
                .filter(|d| {
                    self.counts.or_zero(*d) == 0
                        && allows(algebra, node_domains, *d)
                        && allows(algebra, pod_domains, *d)
                })
                .collect(),
        };
        if domains.is_empty() {
            return Choice::Nothing;
        }
        let domains = if self.choice_key == self.key { domains } else { self.renumbered(&domains, algebra) };
        Choice::Domains(algebra.one_of(self.choice_key, domains))
    }

    /// The domains of the same names under the key of the choice.
    fn renumbered(&self, domains: &[ValueId], algebra: &mut Algebra) -> SmallVec<[ValueId; 4]> {
        let vocabulary = &mut algebra.vocabulary;
        domains
            .iter()
            .map(|domain| {
                let name = vocabulary.value_name(self.key, *domain).clone();
                vocabulary.value(self.choice_key, &name)
            })
            .collect()
    }

    /// Counts one more pod on `host`, which is the hostname of `spot`.
    pub(crate) fn record_host(&mut self, host: ValueId, spot: Spot, vocabulary: &Vocabulary) {
        self.counts.record(HOST, host, vocabulary);
        let count = self.counts.or_zero(host);
        match spot {
            Spot::Claim(number) => self.hosts.claims.note(number, count, self.max_skew),
            Spot::Node(number) => {
                if let Some(nodes) = &mut self.hosts.nodes {
                    nodes.note(number, count, self.max_skew);
                }
            }
        }
    }

    /// Takes out of `open` the nodes (or claims) that [`Group::choose_host`] is sure to refuse. It may miss some.
    pub(crate) fn rule_out(
        &self,
        open: &mut Bits,
        occupied: &Occupied,
        selects_pod: bool,
        pod_domains: Option<ReqId>,
    ) {
        match self.kind {
            TopologyKind::Spread if selects_pod => open.subtract(&occupied.full),
            TopologyKind::AntiAffinity => open.subtract(&occupied.some),
            TopologyKind::Affinity if pod_domains.is_none() && self.counts.occupied > 0 => {
                open.keep_only(&occupied.some);
            }
            TopologyKind::Spread | TopologyKind::Affinity => {}
        }
    }

    /// Whether a pod may go to `host`.
    pub(crate) fn choose_host(
        &self,
        selects_pod: bool,
        pod_domains: Option<ReqId>,
        host: ValueId,
        algebra: &Algebra,
    ) -> Choice {
        let count = self.counts.or_zero(host);
        let fine = match self.kind {
            // A new host can always be had, so the least filled one is always empty.
            TopologyKind::Spread => count.saturating_add(i32::from(selects_pod)) <= self.max_skew,
            TopologyKind::Affinity => {
                allows(algebra, pod_domains, host)
                    && (count > 0 || (selects_pod && self.may_start_afresh(pod_domains, algebra)))
            }
            TopologyKind::AntiAffinity => count == 0,
        };
        if fine { Choice::Here } else { Choice::Nothing }
    }

    fn spread(
        &self,
        selects_pod: bool,
        pod_domains: Option<ReqId>,
        node_domains: Option<ReqId>,
        algebra: &Algebra,
    ) -> Option<ValueId> {
        let least = self.least(pod_domains, algebra);
        let own = i32::from(selects_pod);
        let mut best: Option<(i32, ValueId)> = None;
        for domain in &self.counts.ordered {
            if !allows(algebra, node_domains, *domain) {
                continue;
            }
            let count = self.counts.or_zero(*domain).saturating_add(own);
            // Among equals any other comes before the one without a name.
            let better = |(fewest, chosen): (i32, ValueId)| {
                count < fewest || (count == fewest && self.counts.nameless == Some(chosen))
            };
            if count.saturating_sub(least) <= self.max_skew && best.is_none_or(better) {
                best = Some((count, *domain));
            }
        }
        // An empty name reads as no choice at all, as it does upstream: where that domain alone has fewest pods, nothing is left.
        best.filter(|(count, domain)| *count < i32::MAX && self.counts.nameless != Some(*domain))
            .map(|(_, domain)| domain)
    }

    /// The smallest count over the domains the pod allows itself.
    pub(crate) fn least(&self, pod_domains: Option<ReqId>, algebra: &Algebra) -> i32 {
        let mut least = i32::MAX;
        let mut supported: i32 = 0;
        for domain in &self.counts.ordered {
            if allows(algebra, pod_domains, *domain) {
                supported += 1;
                least = least.min(self.counts.or_zero(*domain));
            }
        }
        if self.min_domains.is_some_and(|min| supported < min) { 0 } else { least }
    }

    fn affinity(
        &self,
        selects_pod: bool,
        pod_domains: Option<ReqId>,
        node_domains: Option<ReqId>,
        algebra: &Algebra,
    ) -> SmallVec<[ValueId; 4]> {
        let ordered = &self.counts.ordered;
        let occupied: SmallVec<[ValueId; 4]> = ordered
            .iter()
            .copied()
            .filter(|d| {
                self.counts.or_zero(*d) > 0
                    && allows(algebra, pod_domains, *d)
                    && allows(algebra, node_domains, *d)
            })
            .collect();
        if !occupied.is_empty() || !selects_pod || !self.may_start_afresh(pod_domains, algebra) {
            return occupied;
        }
        // Upstream offers the first domain of the intersection and, besides, the first the pod allows.
        let both =
            ordered.iter().find(|d| allows(algebra, pod_domains, **d) && allows(algebra, node_domains, **d));
        let pods = ordered.iter().find(|d| allows(algebra, pod_domains, **d));
        both.into_iter().chain(pods).copied().collect()
    }

    /// Whether a pod that selects itself may be the first: no pod is counted anywhere it could go.
    fn may_start_afresh(&self, pod_domains: Option<ReqId>, algebra: &Algebra) -> bool {
        if self.counts.occupied == 0 {
            return true;
        }
        if pod_domains.is_none_or(|r| algebra.req(r).operator() == Operator::Exists && !bounded(algebra, r)) {
            return false;
        }
        !self.counts.iter().any(|(domain, count)| count > 0 && allows(algebra, pod_domains, domain))
    }
}

fn bounded(algebra: &Algebra, req: ReqId) -> bool {
    let req = algebra.req(req);
    req.gte.is_some() || req.lte.is_some()
}

fn allows(algebra: &Algebra, req: Option<ReqId>, domain: ValueId) -> bool {
    req.is_none_or(|r| algebra.has(r, domain))
}
