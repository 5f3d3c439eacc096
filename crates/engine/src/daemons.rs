//! What DaemonSets will take of every new node, and of nodes they have not reached yet.

use std::sync::Arc;

use crate::algebra::{Algebra, Demand, SetId, Undefined};
use crate::bits::Bits;
use crate::classes::Workshop;
use crate::columns::{self, Columns, Need, Row};
use crate::eligibility::pod_requirements;
use crate::pod::{HostPort, Pod, PodSpec};
use crate::relax;
use crate::resources::{PODS, Resources};
use crate::snapshot::Snapshot;
use crate::templates::Template;
use crate::tolerance::{TaintsId, Tolerance, TolerationsId};
use crate::types::TypeTable;
use crate::vocabulary::ValueId;

/// The pod that stands for a DaemonSet.
///
/// Upstream relaxes it in place while trying it on instance types, and what was dropped stays dropped for whatever comes
/// later in the same pass; so does this.
pub(crate) struct DaemonPod {
    /// `namespace/name` of the pod, the key that groups are told apart by.
    key: String,
    spec: PodSpec,
    requests: Resources,
    pub(crate) need: Need,
    tolerations: TolerationsId,
    demand: Demand,
    tolerates_preferences: bool,
}

/// Instance types on which the same daemons will run.
#[derive(Clone)]
pub(crate) struct DaemonGroup {
    pub(crate) types: Bits,
    /// What the daemons need; nothing at all without daemons.
    pub(crate) need: Need,
    pub(crate) requests: Resources,
    /// As a row, to be added.
    pub(crate) row: Row,
    pub(crate) ports: Vec<HostPort>,
}

/// One pod per DaemonSet: the newest real one, else the newest there was, with the template's own node affinity; or one made from the
/// template.
pub(crate) fn daemon_pods(
    snapshot: &Snapshot,
    ignore_dra: bool,
    algebra: &mut Algebra,
    tolerance: &mut Tolerance,
    columns: &mut Columns,
) -> Vec<DaemonPod> {
    let mut sets: Vec<_> = snapshot.daemon_sets.iter().collect();
    sets.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    let mut daemons = Vec::with_capacity(sets.len());
    for set in sets {
        let mut newest: Option<&Arc<Pod>> = None;
        for pod in &snapshot.pods {
            let controlled = pod.namespace == set.namespace
                && pod.owners.controller.as_ref().is_some_and(|c| c.uid == set.uid);
            if controlled && newest.is_none_or(|n| pod.created_seconds > n.created_seconds) {
                newest = Some(pod);
            }
        }
        let pod = newest.or(set.last_pod.as_ref()).unwrap_or(&set.template);
        let mut spec = (*pod.spec).clone();
        if let Some(required) = &set.template.spec.required_node_affinity {
            spec.required_node_affinity = Some(required.clone());
        }
        if spec.has_resource_claims && ignore_dra {
            continue;
        }
        let demand = strict_demand(&spec, algebra);
        daemons.push(DaemonPod {
            key: pod.key(),
            requests: spec.requests.clone(),
            need: columns.need(&spec.requests),
            tolerations: tolerance.tolerations(&spec.tolerations),
            demand,
            spec,
            tolerates_preferences: false,
        });
    }
    daemons
}

fn strict_demand(spec: &PodSpec, algebra: &mut Algebra) -> Demand {
    pod_requirements(spec, false).map_or(Demand::NONE, |r| algebra.demand(&r))
}

impl DaemonPod {
    /// Daemons do not respect preferences; upstream adds the toleration the first time a template is looked at.
    fn tolerate_preferences(&mut self, tolerance: &mut Tolerance) {
        if self.tolerates_preferences {
            return;
        }
        self.tolerates_preferences = true;
        if relax::tolerate_preferences(&mut self.spec.tolerations) {
            self.tolerations = tolerance.tolerations(&self.spec.tolerations);
        }
    }

    fn drop_first_term(&mut self, algebra: &mut Algebra) -> bool {
        let Some(terms) = self.spec.required_node_affinity.as_mut().filter(|t| t.len() > 1) else {
            return false;
        };
        terms.remove(0);
        self.demand = strict_demand(&self.spec, algebra);
        true
    }

    /// Whether the daemon will run on nodes of this template and instance type.
    fn runs_on_type(
        &mut self,
        set: SetId,
        taints: TaintsId,
        number: usize,
        table: &mut TypeTable,
        algebra: &mut Algebra,
        tolerance: &mut Tolerance,
    ) -> bool {
        self.tolerate_preferences(tolerance);
        if !tolerance.tolerates(taints, self.tolerations) {
            return false;
        }
        loop {
            // A claim's hostname is not known yet, so only indifference to it will do.
            if algebra.host_ok(crate::algebra::NO_HOST, self.demand.host)
                && algebra.compatible(set, self.demand.set, Undefined::AllowedIfWellKnown)
                && table.masks(algebra, self.demand.set).compatible.contains(number)
            {
                return true;
            }
            if !self.drop_first_term(algebra) {
                return false;
            }
        }
    }

    /// Whether the daemon will run on a node that exists.
    pub(crate) fn runs_on_node(
        &self,
        labels: SetId,
        host: ValueId,
        taints: TaintsId,
        algebra: &mut Algebra,
        tolerance: &mut Tolerance,
    ) -> bool {
        tolerance.tolerates(taints, self.tolerations)
            && algebra.compatible(labels, self.demand.set, Undefined::Denied)
            && algebra.host_ok(host, self.demand.host)
    }
}

/// What `daemons` ask for together.
fn total_requests<'d>(daemons: impl IntoIterator<Item = &'d DaemonPod>) -> Resources {
    let mut total = Resources::new();
    total.set(PODS, crate::resources::Amount::ZERO);
    for daemon in daemons {
        total.add(&daemon.requests);
    }
    total
}

/// A template's instance types grouped by the daemons that will run on them, in order of the daemons' names.
pub(crate) fn group_types(
    template: &Template,
    daemons: &mut [DaemonPod],
    table: &mut TypeTable,
    workshop: &mut Workshop<'_>,
) -> Vec<DaemonGroup> {
    let Workshop { algebra, tolerance, columns, .. } = workshop;
    let (types, set, taints) = (&template.types, template.set, template.taints);
    let mut groups: Vec<(Vec<usize>, Bits)> = Vec::new();
    for number in types.iter() {
        let running: Vec<usize> = (0..daemons.len())
            .filter(|d| daemons[*d].runs_on_type(set, taints, number, table, algebra, tolerance))
            .collect();
        match groups.iter_mut().find(|(r, _)| *r == running) {
            Some((_, types)) => types.insert(number),
            None => {
                let mut types = Bits::none(table.len());
                types.insert(number);
                groups.push((running, types));
            }
        }
    }
    let name = |running: &[usize]| -> String {
        let mut keys: Vec<&str> = running.iter().map(|d| daemons[*d].key.as_str()).collect();
        keys.sort_unstable();
        keys.join(",")
    };
    groups.sort_by_cached_key(|(running, _)| name(running));
    groups
        .into_iter()
        .map(|(running, types)| {
            let requests = if running.is_empty() {
                Resources::new()
            } else {
                total_requests(running.iter().map(|d| &daemons[*d]))
            };
            let need = columns.need(&requests);
            DaemonGroup {
                types,
                row: columns::row(&need, columns.len()),
                need,
                requests,
                ports: running.iter().flat_map(|d| daemons[*d].spec.host_ports.iter().cloned()).collect(),
            }
        })
        .collect()
}
