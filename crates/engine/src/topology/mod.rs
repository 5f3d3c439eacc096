//! Spread, affinity and anti-affinity: groups of pods counted per domain.
//!
//! A pod *owns* the groups its own constraints ask for. It is also bound by *inverse* groups: the anti-affinity of other pods against
//! it. Groups are shared by all pods whose constraints have the same [`identity`].

mod domains;
mod group;
mod identity;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use hashbrown::HashMap;

pub(crate) use domains::{PoolDomains, Universe};
pub(crate) use group::{Choice, Counts, Group, Hosts, NodeFilter, Occupied, Place, Spot};
use identity::{FilterIdentity, Identity, SelectorIdentity};

use crate::algebra::{Algebra, NO_HOST};
use crate::bits::Bits;
use crate::hashing::FixedState;
use crate::labels::{self, HOSTNAME, Labels, Text};
use crate::pod::{PodAffinityTerm, PodSpec, TopologySpread, WhenUnsatisfiable};
use crate::reasons::TopologyKind;
use crate::requirements::Requirements;
use crate::selector::{Expression, LabelSelector, Selector};
use crate::snapshot::PreferencePolicy;
use crate::tolerance::{Tolerance, TolerationsId};
use crate::types::TypeTable;
use crate::vocabulary::{HOST, KeyId, ValueId};

/// A Node object, as counting sees it.
pub(crate) struct CountedNode {
    pub(crate) name: Text,
    pub(crate) labels: Labels,
    pub(crate) place: Place,
}

/// What counting looks at while groups are created.
pub(crate) struct Surroundings<'a> {
    pub(crate) algebra: &'a mut Algebra,
    pub(crate) tolerance: &'a mut Tolerance,
    pub(crate) tables: &'a [TypeTable],
    pub(crate) namespaces: &'a BTreeMap<Text, Labels>,
}

/// The pod whose constraints are turned into groups.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) spec: &'a PodSpec,
    pub(crate) namespace: &'a Text,
    pub(crate) labels: &'a Labels,
    pub(crate) tolerations: TolerationsId,
}

pub(crate) struct Topology {
    pub(crate) policy: PreferencePolicy,
    pub(crate) universe: Universe,
    pub(crate) groups: Vec<Group>,
    identities: HashMap<Identity, u32, FixedState>,
    pub(crate) inverse: Vec<Group>,
    inverse_identities: HashMap<Identity, u32, FixedState>,
    /// By inverse group: what the pod that made it tolerates, which decides the domains it knows from the start.
    inverse_makers: Vec<TolerationsId>,
    /// Every Node object.
    pub(crate) nodes: Vec<CountedNode>,
    /// Nodes pods may be placed on, with the labels the state believes.
    pub(crate) active: Vec<(u32, Labels)>,
    /// By key: the domain of every node, and of every active one by the labels the state believes.
    node_domains: HashMap<KeyId, Rc<NodeDomains>, FixedState>,
    /// Placed pods that count: namespace, labels, and the nodes they are on.
    pub(crate) placed: Vec<(Text, Labels, Vec<u32>)>,
    /// Where in `placed` pods of a namespace and labels are, by address.
    pub(crate) placed_at: HashMap<(usize, usize), usize, FixedState>,
    /// Nodes a simulation assumes away: their domains are not there for being active.
    pub(crate) gone: Bits,
    /// Whether pods share an inverse group and yet would each have made another one of it: who comes first decides.
    pub(crate) ambiguous: bool,
}

/// The domains nodes are in, for one key.
struct NodeDomains {
    of_nodes: Vec<Option<ValueId>>,
    of_active: Vec<Option<ValueId>>,
}

impl Topology {
    pub(crate) fn new(policy: PreferencePolicy, universe: Universe) -> Self {
        Topology {
            policy,
            universe,
            groups: Vec::new(),
            identities: HashMap::default(),
            inverse: Vec::new(),
            inverse_identities: HashMap::default(),
            inverse_makers: Vec::new(),
            nodes: Vec::new(),
            active: Vec::new(),
            node_domains: HashMap::default(),
            placed: Vec::new(),
            placed_at: HashMap::default(),
            gone: Bits::default(),
            ambiguous: false,
        }
    }

    /// Forgets all groups but the inverse ones.
    pub(crate) fn forget_groups(&mut self) {
        self.groups.clear();
        self.identities.clear();
    }

    /// The groups the pod owns, created where they do not exist yet.
    pub(crate) fn own_groups(
        &mut self,
        subject: Subject<'_>,
        around: &mut Surroundings<'_>,
    ) -> Result<Vec<u32>, String> {
        let mut owned = Vec::new();
        for spread in &subject.spec.topology_spread {
            if self.policy == PreferencePolicy::Ignore
                && spread.when_unsatisfiable != WhenUnsatisfiable::DoNotSchedule
            {
                continue;
            }
            owned.push(self.spread_group(spread, subject, around)?);
        }
        let respects = self.policy == PreferencePolicy::Respect;
        for (kind, affinity) in [
            (TopologyKind::Affinity, &subject.spec.pod_affinity),
            (TopologyKind::AntiAffinity, &subject.spec.pod_anti_affinity),
        ] {
            let preferred = affinity.preferred.iter().filter(|_| respects).map(|(_, term)| term);
            for term in affinity.required.iter().chain(preferred) {
                owned.push(self.affinity_group(kind, term, subject, around)?);
            }
        }
        owned.sort_unstable();
        owned.dedup();
        Ok(owned)
    }

    /// The inverse groups of the pod's required anti-affinity, created where they do not exist yet.
    pub(crate) fn own_inverse_groups(
        &mut self,
        subject: Subject<'_>,
        around: &mut Surroundings<'_>,
    ) -> Result<Vec<u32>, String> {
        let mut owned = self.own_inverse_groups_listed(subject, around)?;
        owned.sort_unstable();
        owned.dedup();
        Ok(owned)
    }

    /// As [`Topology::own_inverse_groups`], one entry per term: two terms of one group count twice.
    pub(crate) fn own_inverse_groups_listed(
        &mut self,
        subject: Subject<'_>,
        around: &mut Surroundings<'_>,
    ) -> Result<Vec<u32>, String> {
        let mut owned = Vec::new();
        for term in &subject.spec.pod_anti_affinity.required {
            let identity = affinity_identity(TopologyKind::AntiAffinity, term, subject, around.namespaces)?;
            let id = match self.inverse_identities.get(&identity) {
                Some(id) => {
                    self.ambiguous |= self.inverse_makers[*id as usize] != subject.tolerations;
                    *id
                }
                None => {
                    let group = self.new_affinity_group(&identity, term, subject, around);
                    self.inverse_makers.push(subject.tolerations);
                    self.inverse.push(group);
                    let id = self.inverse.len() as u32 - 1;
                    self.inverse_identities.insert(identity, id);
                    id
                }
            };
            owned.push(id);
        }
        Ok(owned)
    }

    fn spread_group(
        &mut self,
        spread: &TopologySpread,
        subject: Subject<'_>,
        around: &mut Surroundings<'_>,
    ) -> Result<u32, String> {
        let selector = narrowed_selector(spread, subject.labels);
        let policy = |given: &Option<Text>, default: &str| given.clone().unwrap_or_else(|| default.into());
        let taint_policy = policy(&spread.node_taints_policy, "Ignore");
        let affinity_policy = policy(&spread.node_affinity_policy, "Honor");
        let identity = Identity {
            key: spread.topology_key.clone(),
            kind: TopologyKind::Spread,
            namespaces: BTreeSet::from([subject.namespace.clone()]),
            max_skew: spread.max_skew,
            filter: Some(FilterIdentity::of(subject.spec, &taint_policy, &affinity_policy)),
            selector: selector.as_ref().map(SelectorIdentity::of),
        };
        if let Some(id) = self.identities.get(&identity) {
            return Ok(*id);
        }
        let filter = NodeFilter {
            alternatives: filter_alternatives(subject.spec, around.algebra)?,
            honors_affinity: affinity_policy.as_ref() == "Honor",
            honors_taints: taint_policy.as_ref() == "Honor",
            tolerations: subject.tolerations,
        };
        let (key, choice_key) = keys_of(&spread.topology_key, around.algebra);
        let any_taints = taint_policy.as_ref() == "Ignore";
        let counts = self.initial_counts(key, any_taints, subject.tolerations, around);
        let group = Group {
            kind: TopologyKind::Spread,
            key,
            choice_key,
            namespaces: identity.namespaces.clone(),
            selector: Selector::parse(selector.as_ref()),
            max_skew: spread.max_skew,
            min_domains: spread.min_domains,
            filter: Some(filter),
            counts,
            hosts: Hosts::default(),
        };
        Ok(self.count_and_store(identity, group, selector.is_none(), around))
    }

    fn affinity_group(
        &mut self,
        kind: TopologyKind,
        term: &PodAffinityTerm,
        subject: Subject<'_>,
        around: &mut Surroundings<'_>,
    ) -> Result<u32, String> {
        let identity = affinity_identity(kind, term, subject, around.namespaces)?;
        if let Some(id) = self.identities.get(&identity) {
            return Ok(*id);
        }
        let group = self.new_affinity_group(&identity, term, subject, around);
        Ok(self.count_and_store(identity, group, term.selector.is_none(), around))
    }

    fn new_affinity_group(
        &mut self,
        identity: &Identity,
        term: &PodAffinityTerm,
        subject: Subject<'_>,
        around: &mut Surroundings<'_>,
    ) -> Group {
        let (key, choice_key) = keys_of(&term.topology_key, around.algebra);
        Group {
            kind: identity.kind,
            key,
            choice_key,
            namespaces: identity.namespaces.clone(),
            selector: Selector::parse(term.selector.as_ref()),
            max_skew: i32::MAX,
            min_domains: None,
            filter: None,
            counts: self.initial_counts(key, false, subject.tolerations, around),
            hosts: Hosts::default(),
        }
    }

    /// Domains that pools could create, all empty.
    fn initial_counts(
        &mut self,
        key: KeyId,
        any_taints: bool,
        tolerations: TolerationsId,
        around: &mut Surroundings<'_>,
    ) -> Counts {
        let mut counts = Counts::default();
        if key == HOST {
            return counts;
        }
        let reachable = self.universe.reachable(
            key,
            any_taints,
            tolerations,
            around.tables,
            around.algebra,
            around.tolerance,
        );
        for value in reachable {
            counts.register(key, value, &around.algebra.vocabulary);
        }
        counts
    }

    fn domains_of_nodes(&mut self, key: KeyId, algebra: &mut Algebra) -> Rc<NodeDomains> {
        let (nodes, active) = (&self.nodes, &self.active);
        let found = self.node_domains.entry(key).or_insert_with(|| {
            let name = algebra.vocabulary.key_name(key).clone();
            let mut value = |domain: &Text| algebra.vocabulary.value(key, domain);
            let of_nodes: Vec<Option<ValueId>> = nodes
                .iter()
                .map(|n| {
                    // The hostname has been looked up already.
                    if key == HOST && n.place.host != NO_HOST {
                        Some(n.place.host)
                    } else {
                        domain_of(n, &name).map(&mut value)
                    }
                })
                .collect();
            // Hosts are never registered ahead, so the active nodes' are not needed.
            let active = if key == HOST { &[][..] } else { active };
            let of_active = active
                .iter()
                .map(|(node, labels)| {
                    let node = *node as usize;
                    if nodes[node].labels.address() == labels.address() {
                        of_nodes[node]
                    } else {
                        labels.get(&name).map(&mut value)
                    }
                })
                .collect();
            Rc::new(NodeDomains { of_nodes, of_active })
        });
        found.clone()
    }

    /// Counts what is there already and keeps the group.
    fn count_and_store(
        &mut self,
        identity: Identity,
        mut group: Group,
        counts_everything: bool,
        around: &mut Surroundings<'_>,
    ) -> u32 {
        let domains = self.domains_of_nodes(group.key, around.algebra);
        let counts_node = |filter: &Option<NodeFilter>, place: Place, around: &mut Surroundings<'_>| {
            filter.as_ref().is_none_or(|f| f.matches(place, around.algebra, around.tolerance))
        };
        if group.key != HOST {
            for ((node, _), domain) in self.active.iter().zip(&domains.of_active) {
                let Some(domain) = domain else { continue };
                if self.gone.contains(*node as usize) {
                    continue;
                }
                if group.counts.get(*domain).is_none()
                    && counts_node(&group.filter, self.nodes[*node as usize].place, around)
                {
                    group.counts.register(group.key, *domain, &around.algebra.vocabulary);
                }
            }
        }
        for (namespace, labels, nodes) in &self.placed {
            // Without a selector the group selects no pod, yet upstream counts every pod there is.
            let counted =
                group.namespaces.contains(namespace) && (counts_everything || group.selector.matches(labels));
            for node in nodes.iter().filter(|_| counted) {
                let Some(domain) = domains.of_nodes[*node as usize] else { continue };
                if counts_node(&group.filter, self.nodes[*node as usize].place, around) {
                    group.counts.record(group.key, domain, &around.algebra.vocabulary);
                }
            }
        }
        self.groups.push(group);
        let id = self.groups.len() as u32 - 1;
        self.identities.insert(identity, id);
        id
    }
}

/// The key domains are looked up and counted under, which is the one written, and the key of the answer. They differ for the
/// deprecated beta labels: nodes are looked up by the label itself, while requirements know only its successor.
fn keys_of(topology_key: &Text, algebra: &mut Algebra) -> (KeyId, KeyId) {
    let key = algebra.vocabulary.key(topology_key);
    let successor = labels::normalized(topology_key);
    if successor == topology_key.as_ref() {
        return (key, key);
    }
    (key, algebra.vocabulary.key(&successor.into()))
}

/// The domain a node is in. A node without a hostname label is its own host by name.
fn domain_of<'n>(node: &'n CountedNode, key: &str) -> Option<&'n Text> {
    node.labels.get(key).or_else(|| (key == HOSTNAME).then_some(&node.name))
}

/// The constraint's selector, narrowed by the pod's own values of `matchLabelKeys`.
fn narrowed_selector(spread: &TopologySpread, labels: &Labels) -> Option<LabelSelector> {
    let mut selector = spread.selector.clone()?;
    for key in &spread.match_label_keys {
        if let Some(value) = labels.get(key) {
            selector.expressions.push(Expression {
                key: key.clone(),
                operator: "In".into(),
                values: vec![value.clone()],
            });
        }
    }
    Some(selector)
}

fn filter_alternatives(spec: &PodSpec, algebra: &mut Algebra) -> Result<Vec<crate::algebra::Demand>, String> {
    let selected = Requirements::from_labels(&spec.node_selector);
    let Some(terms) = &spec.required_node_affinity else { return Ok(vec![algebra.demand(&selected)]) };
    terms
        .iter()
        .map(|term| {
            let mut requirements = selected.clone();
            let of_term = Requirements::from_selectors(&term.expressions).map_err(|e| e.to_string())?;
            requirements.add_all(&of_term);
            Ok(algebra.demand(&requirements))
        })
        .collect()
}

fn affinity_identity(
    kind: TopologyKind,
    term: &PodAffinityTerm,
    subject: Subject<'_>,
    namespaces: &BTreeMap<Text, Labels>,
) -> Result<Identity, String> {
    let mut meant: BTreeSet<Text> = term.namespaces.iter().cloned().collect();
    match &term.namespace_selector {
        None if meant.is_empty() => {
            meant.insert(subject.namespace.clone());
        }
        None => {}
        Some(selector) => {
            let parsed = Selector::parse(Some(selector));
            if parsed == Selector::Nothing {
                return Err("parsing selector of a pod affinity term's namespaces".into());
            }
            meant.extend(namespaces.iter().filter(|(_, l)| parsed.matches(l)).map(|(name, _)| name.clone()));
        }
    }
    Ok(Identity {
        key: term.topology_key.clone(),
        kind,
        namespaces: meant,
        max_skew: i32::MAX,
        filter: None,
        selector: term.selector.as_ref().map(SelectorIdentity::of),
    })
}
