//! NodePools as the solver uses them: in order, with their requirements compiled, their instance types filtered and their
//! limits counted down.

use std::sync::Arc;

use crate::algebra::{Algebra, SetId};
use crate::bits::Bits;
use crate::columns::{Cell, Columns, Row};
use crate::daemons::DaemonGroup;
use crate::eligibility::requirement_problems;
use crate::instance_type::InstanceType;
use crate::labels::{INITIALIZED, Labels, NODE_POOL, REGISTERED, Text};
use crate::node_pool::NodePool;
use crate::plan::RejectedObject;
use crate::reasons::{SkipReason, SkippedPool};
use crate::requirement::{Operator, Requirement};
use crate::requirements::Requirements;
use crate::resources::NODES;
use crate::snapshot::Snapshot;
use crate::taints::PREFER_NO_SCHEDULE;
use crate::tolerance::TaintsId;
use crate::types::TypeTable;

/// A pool that takes part, before its instance types are known to suit it.
pub(crate) struct Pool<'s> {
    pub(crate) source: &'s NodePool,
    /// Its instance types with overlays applied; `None` when it has none.
    pub(crate) types: Option<Arc<[InstanceType]>>,
    /// What is left of its limits: by column, only limited ones.
    pub(crate) remaining: Vec<(u32, Cell)>,
    /// The kinds of nodes it has: those with its own taints first. None if it has no instance types.
    pub(crate) kinds: Vec<Kind>,
}

/// Nodes of a pool with the same taints.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) taints: TaintsId,
    /// Index of its instance type table.
    pub(crate) table: usize,
}

/// What new claims of a pool start from.
pub(crate) struct Template {
    /// Index of its pool.
    pub(crate) pool: usize,
    /// Index of its instance type table.
    pub(crate) table: usize,
    pub(crate) name: Text,
    pub(crate) labels: Labels,
    pub(crate) set: SetId,
    pub(crate) taints: TaintsId,
    /// Instance types that suit it.
    pub(crate) types: Bits,
    /// Of these, the ones its limits still allow; recomputed when limits move.
    pub(crate) within_limits: Bits,
    /// The most of each column any of `types` has.
    pub(crate) largest: Row,
    pub(crate) daemons: Vec<DaemonGroup>,
    /// Whether the claim made last had its `minValues` lowered. One flag for all claims, as upstream's shared annotation is.
    pub(crate) min_values_relaxed: bool,
}

/// Pools that take part, heaviest first; equals in reverse order of name.
pub(crate) fn participating<'s>(
    snapshot: &'s Snapshot,
    skipped: &mut Vec<SkippedPool>,
    rejected: &mut Vec<RejectedObject>,
) -> Vec<&'s NodePool> {
    let mut pools: Vec<&NodePool> = Vec::new();
    for pool in &snapshot.node_pools {
        let reason = if pool.replicas.is_some() {
            Some(SkipReason::Static)
        } else if !pool.ready {
            Some(SkipReason::NotReady)
        } else if pool.deleting {
            Some(SkipReason::Deleting)
        } else {
            unusable(pool).map(|(field, problem)| {
                rejected.push(RejectedObject {
                    object: format!("NodePool {}", pool.name),
                    field,
                    problem: problem.clone(),
                });
                SkipReason::Invalid(problem)
            })
        };
        match reason {
            Some(reason) => skipped.push(SkippedPool { node_pool: pool.name.clone(), reason }),
            None => pools.push(pool),
        }
    }
    pools.sort_by(|a, b| b.weight.cmp(&a.weight).then_with(|| b.name.cmp(&a.name)));
    pools.dedup_by(|later, earlier| {
        let same = later.name == earlier.name;
        if same {
            rejected.push(RejectedObject {
                object: format!("NodePool {}", later.name),
                field: "metadata.name".into(),
                problem: "another NodePool has the same name; the first one counts".into(),
            });
        }
        same
    });
    pools
}

/// Requirements without a meaning, or that nothing can ever meet.
fn unusable(pool: &NodePool) -> Option<(String, String)> {
    let field = "spec.template.spec.requirements".to_owned();
    let requirements = match Requirements::from_selectors(&pool.requirements) {
        Ok(requirements) => requirements,
        Err(error) => return Some((field, error.to_string())),
    };
    // A node's label would have to be drawn from an empty range.
    let empty_range = |r: &&Requirement| r.complement && r.lte.is_some_and(|l| l < r.gte.unwrap_or(0));
    let impossible = requirements.iter().find(empty_range);
    impossible.map(|r| (field, format!("no value can satisfy {r}; raise the upper bound")))
}

/// The pool's requirements and labels, as topology domains see them.
pub(crate) fn domain_requirements(pool: &NodePool) -> Requirements {
    let mut requirements = Requirements::from_selectors(&pool.requirements).unwrap_or_default();
    requirements.add_all(&Requirements::from_labels(&pool.labels));
    requirements
}

/// The pool's labels together with those Karpenter adds.
pub(crate) fn template_labels(pool: &NodePool) -> Labels {
    let own = pool.labels.iter().map(|(k, v)| (k.clone(), v.clone()));
    let added = [
        (Text::from(NODE_POOL), pool.name.clone()),
        (pool.node_class.label_key(), pool.node_class.name.clone()),
    ];
    Labels::new(own.chain(added))
}

/// What a claim of the pool starts with. Claims count as registered and initialized, so that daemons which wait for either are
/// reckoned with; both keys are left out of the result.
pub(crate) fn template_requirements(pool: &NodePool, labels: &Labels) -> Requirements {
    let mut requirements = Requirements::from_selectors(&pool.requirements).unwrap_or_default();
    requirements.add_all(&Requirements::from_labels(labels));
    requirements.add(Requirement::one_of(REGISTERED, ["true"]));
    requirements.add(Requirement::one_of(INITIALIZED, ["true"]));
    requirements
}

impl<'s> Pool<'s> {
    pub(crate) fn new(
        source: &'s NodePool,
        types: Option<Arc<[InstanceType]>>,
        columns: &mut Columns,
    ) -> Self {
        Pool { source, types, remaining: columns.need(&source.limits).into_vec(), kinds: Vec::new() }
    }

    /// Takes `capacity` from what is left.
    pub(crate) fn take(&mut self, capacity: impl Fn(u32) -> Cell) {
        for (column, left) in &mut self.remaining {
            *left = left.saturating_sub(capacity(*column));
        }
    }

    /// Whether the pool may have no further node at all.
    pub(crate) fn nodes_exhausted(&self, columns: &Columns) -> bool {
        columns
            .find(NODES)
            .is_some_and(|nodes| self.remaining.iter().any(|(c, left)| *c == nodes && *left == 0))
    }

    pub(crate) fn has_preference_taint(&self) -> bool {
        let of_kinds = self.source.tainted.iter().flat_map(|kind| &kind.taints);
        self.source.taints.iter().chain(of_kinds).any(|t| t.effect.as_ref() == PREFER_NO_SCHEDULE)
    }
}

impl Template {
    /// Recomputes which instance types the pool's limits still allow.
    pub(crate) fn apply_limits(&mut self, pool: &Pool<'_>, table: &TypeTable) {
        let within = |left: &(u32, Cell)| self.largest.get(left.0 as usize).copied().unwrap_or(0) <= left.1;
        if pool.remaining.iter().all(within) {
            return;
        }
        self.within_limits = self.types.clone();
        for number in self.types.iter() {
            let capacity = &table.types[number].capacity;
            let exceeds = pool
                .remaining
                .iter()
                .any(|(column, left)| capacity.get(*column as usize).copied().unwrap_or(0) > *left);
            if exceeds {
                self.within_limits.remove(number);
            }
        }
    }
}

/// Keys whose `minValues` the given types do not reach, with what they do reach.
pub(crate) fn unmet_min_values(
    algebra: &Algebra,
    table: &TypeTable,
    types: &Bits,
    set: SetId,
) -> Vec<(crate::vocabulary::KeyId, i64)> {
    if !algebra.has_min_values(set) || types.is_empty() {
        return Vec::new();
    }
    algebra
        .entries(set)
        .iter()
        .filter_map(|(key, req)| {
            let least = algebra.req(*req).min_values?;
            let reached = table.distinct_values(algebra, types, *key, *req);
            (reached < least).then_some((*key, reached))
        })
        .collect()
}

/// Problems of an overlay's requirements: those of any requirement, and an exclusion of nothing.
pub(crate) fn overlay_requirement_problems(
    requirements: &[crate::requirement::SelectorRequirement],
    snapshot: &Snapshot,
) -> Vec<String> {
    let mut problems = Vec::new();
    for requirement in requirements {
        problems.extend(requirement_problems(requirement, snapshot));
        if Operator::parse(&requirement.operator) == Some(Operator::NotIn) && requirement.values.is_empty() {
            problems.push(format!("key {} with operator NotIn must have a value defined", requirement.key));
        }
    }
    problems
}
