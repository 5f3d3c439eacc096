//! The domains that NodePools could create, by topology key.

use hashbrown::HashMap;

use crate::algebra::{Algebra, SetId};
use crate::hashing::FixedState;
use crate::requirement::Operator;
use crate::tolerance::{TaintsId, Tolerance, TolerationsId};
use crate::types::TypeTable;
use crate::vocabulary::{KeyId, ValueId};

/// A NodePool that has instance types, as far as domains care.
pub(crate) struct PoolDomains {
    /// Requirements and labels of its template.
    pub(crate) set: SetId,
    pub(crate) taints: TaintsId,
    /// Index of its instance type table.
    pub(crate) table: usize,
}

/// Domains by key, worked out when a key is first used as a topology.
#[derive(Default)]
pub(crate) struct Universe {
    pub(crate) pools: Vec<PoolDomains>,
    by_key: HashMap<KeyId, Vec<(ValueId, Vec<TaintsId>)>, FixedState>,
}

impl Universe {
    /// Domains of `key`, each with the taints of the pools that offer it.
    fn domains(
        &mut self,
        key: KeyId,
        tables: &[TypeTable],
        algebra: &mut Algebra,
    ) -> &[(ValueId, Vec<TaintsId>)] {
        let pools = &self.pools;
        self.by_key.entry(key).or_insert_with(|| {
            let mut domains: Vec<(ValueId, Vec<TaintsId>)> = Vec::new();
            let mut insert = |value: ValueId, taints: TaintsId| {
                match domains.iter_mut().find(|(v, _)| *v == value) {
                    None => domains.push((value, vec![taints])),
                    // Without taints there is nothing left to tell apart.
                    Some((_, lists)) if taints == TaintsId::NONE => *lists = vec![TaintsId::NONE],
                    Some((_, lists)) if lists[0] == TaintsId::NONE || lists.contains(&taints) => {}
                    Some((_, lists)) => lists.push(taints),
                }
            };
            for pool in pools {
                let own = algebra.get(pool.set, key);
                let of_types: Vec<_> = tables[pool.table].requirements_on(key).collect();
                for of_type in of_types {
                    let requirement = match (of_type, own) {
                        (Some(t), Some(p)) => algebra.intersect(t, p),
                        (Some(r), None) | (None, Some(r)) => r,
                        (None, None) => continue,
                    };
                    // Even the excluded values of a NotIn count as domains, as they do upstream.
                    for value in algebra.req(requirement).values.clone() {
                        insert(value, pool.taints);
                    }
                }
                if let Some(own) = own
                    && algebra.req(own).operator() == Operator::In
                {
                    for value in algebra.req(own).values.clone() {
                        insert(value, pool.taints);
                    }
                }
            }
            domains
        })
    }

    /// Domains of `key` a pod can reach: all, or those of some pool whose taints it tolerates.
    pub(crate) fn reachable(
        &mut self,
        key: KeyId,
        any_taints: bool,
        tolerations: TolerationsId,
        tables: &[TypeTable],
        algebra: &mut Algebra,
        tolerance: &mut Tolerance,
    ) -> Vec<ValueId> {
        self.domains(key, tables, algebra)
            .iter()
            .filter(|(_, lists)| any_taints || lists.iter().any(|t| tolerance.tolerates(*t, tolerations)))
            .map(|(value, _)| *value)
            .collect()
    }
}
