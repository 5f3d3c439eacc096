//! What a NodeClass offers at the moment, worked out from what the management cluster has: by the operator, and by `explain` in the
//! same way. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use karpenter_api::NodePool;
use karpenter_engine::instance_type::InstanceType;
use karpenter_primitives::Selector;
use tokio::time::Instant;

use super::adoption;
use super::holds::{self, Hold, HoldKind};
use super::ledger::{self, ClaimFacts, Rise, Rules, Sightings, Situation};
use super::{customization, rollout, skew, templates};
use crate::client::fields::Malformed;
use crate::client::machine::Machine;
use crate::client::mirror::Mirror;
use crate::client::scalable::{Scalable, ScalableKey};
use crate::client::settings::Settings;
use crate::instancetypes::annotated::Annotated;
use crate::instancetypes::blueprint::{Blueprint, Ignored, Learnt, Surroundings};
use crate::instancetypes::catalog::{Catalog, Entry};
use crate::instancetypes::kept::{RunsAs, with_kept};
use crate::instancetypes::price::Told;
use crate::instancetypes::taints;
use crate::instancetypes::{devices, node_labels};
use crate::names;
use crate::nodeclass::{Adoption, ClusterAPINodeClass, DEFAULT_SURPLUS_TIMEOUT, LaunchMode, SelectorMode};

/// What a NodeClass offers, and what it cannot offer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offers {
    pub(crate) catalog: Catalog,
    /// What the offerings were made from.
    pub(crate) blueprints: Vec<Blueprint>,
    /// What takes part.
    pub(crate) members: Vec<Arc<Scalable>>,
    /// What keeps something from being offered, each told once.
    pub(crate) excluded: Vec<Malformed>,
    /// What takes part and cannot be offered, and why: the key to blame may be the NodeClass's.
    pub(crate) left_out: BTreeMap<ScalableKey, Malformed>,
    /// What is said of members and not reckoned with.
    pub(crate) ignored: Vec<Ignored>,
    /// What nodes run as, whether it is still offered or not.
    pub(crate) kept: Vec<RunsAs>,
    /// Whether NodePools inherit taints.
    pub(crate) inherit_taints: bool,
}

impl Offers {
    /// The entry a Machine of a resource was bought as.
    pub(crate) fn entry_of(&self, machine: &Machine, id: &ScalableKey) -> Option<Entry> {
        self.catalog.entry(id, machine.failure_domain.as_deref()).cloned()
    }

    /// What a NodePool is offered by itself: nothing whose nodes have a taint that it neither declares nor inherits, for its pods are planned
    /// without that, and would never run there. What nodes run as is listed besides.
    pub(crate) fn types_for(&self, pool: &NodePool) -> Arc<[InstanceType]> {
        let offered = self.offered_to(pool);
        with_kept(&offered, &self.kept).map_or(offered, Arc::from)
    }

    fn offered_to(&self, pool: &NodePool) -> Arc<[InstanceType]> {
        let inherited = self.inherited_taints(pool);
        let further = |id: &ScalableKey| self.further_taints(id, pool, &inherited);
        if self.blueprints.iter().all(|blueprint| further(&blueprint.id).is_empty()) {
            return Arc::clone(&self.catalog.types);
        }
        self.catalog.offering(|id| further(id).is_empty()).into()
    }

    /// What a NodePool is offered besides where it inherits taints: nodes with taints that others it could get do not have, kind by kind.
    pub(crate) fn tainted_types(&self, pool: &NodePool) -> Vec<(Vec<Taint>, Arc<[InstanceType]>)> {
        if !self.inherit_taints {
            return Vec::new();
        }
        let inherited = self.inherited_taints(pool);
        let further = |id: &ScalableKey| -> Vec<&Taint> {
            let mut further = self.further_taints(id, pool, &inherited);
            further.sort_by_key(|taint| taints::identity(taint));
            further
        };
        let mut kinds: Vec<Vec<&Taint>> = self
            .could_get(pool)
            .map(|blueprint| further(&blueprint.id))
            .filter(|kind| !kind.is_empty())
            .collect();
        kinds.sort_by_key(|kind| kind.iter().map(|taint| taints::identity(taint)).collect::<Vec<_>>());
        kinds.dedup();
        let types = |kind: &[&Taint]| {
            let mut types = self.catalog.offering(|id| further(id) == kind);
            types.retain(|one| one.offerings.iter().any(|offering| offering.available));
            types.into()
        };
        kinds.iter().map(|kind| (kind.iter().copied().cloned().collect(), types(kind))).collect()
    }

    /// Taints of a resource's nodes that a NodePool does not declare, and that keep it from being offered them: where it inherits, those
    /// that it declares with another value.
    pub(crate) fn missing_taints<'a>(&self, blueprint: &'a Blueprint, pool: &NodePool) -> Vec<&'a Taint> {
        match self.inherit_taints {
            true => taints::contradicting(&blueprint.taints, pool),
            false => taints::lacking(&blueprint.taints, pool, &[]),
        }
    }

    fn further_taints(&self, id: &ScalableKey, pool: &NodePool, inherited: &[Taint]) -> Vec<&Taint> {
        let blueprint = self.blueprints.iter().find(|blueprint| blueprint.id == *id);
        blueprint.map(|blueprint| taints::lacking(&blueprint.taints, pool, inherited)).unwrap_or_default()
    }

    /// What a NodePool's requirements and its own taints allow for.
    fn could_get(&self, pool: &NodePool) -> impl Iterator<Item = &Blueprint> {
        self.blueprints.iter().filter(move |blueprint| {
            let mut entries = self.catalog.entries.iter().filter(|entry| entry.id == blueprint.id);
            taints::contradicting(&blueprint.taints, pool).is_empty()
                && entries.any(|entry| adoption::meets(pool, &entry.labels))
        })
    }

    /// The taints that a NodePool does not declare and all nodes have that it could get, where it need not declare them.
    pub(crate) fn inherited_taints(&self, pool: &NodePool) -> Vec<Taint> {
        if !self.inherit_taints {
            return Vec::new();
        }
        let mut all = self.could_get(pool);
        let Some(first) = all.next() else { return Vec::new() };
        let mut common = taints::lacking(&first.taints, pool, &[]);
        for blueprint in all {
            common.retain(|taint| blueprint.taints.contains(taint));
        }
        common.into_iter().cloned().collect()
    }
}

/// What offers are worked out from.
pub(crate) struct Market<'a> {
    /// What the management cluster has of our Cluster.
    pub(crate) mirror: &'a Mirror,
    pub(crate) settings: &'a Settings,
    /// What Nodes of resources tell.
    pub(crate) learnt: BTreeMap<ScalableKey, Learnt>,
    /// Resources whose nodes turned out to be spot.
    pub(crate) spot: BTreeSet<ScalableKey>,
    /// The instance types that nodes of resources run as.
    pub(crate) carried: BTreeMap<ScalableKey, BTreeSet<String>>,
    /// Prices that are told outside the NodeClass.
    pub(crate) told: Told,
    /// Whether the management cluster has been silent for longer than what was seen of it is believed.
    pub(crate) silent: bool,
    /// How many more nodes a resource may give; `None` is any number.
    pub(crate) room: &'a dyn Fn(&Scalable) -> Option<usize>,
    /// How many live NodeClaims come from a resource, or wait for it.
    pub(crate) running: &'a dyn Fn(&ScalableKey) -> usize,
    /// What failed of late at a resource, in a failure domain.
    pub(crate) failed: &'a dyn Fn(&ScalableKey, Option<&str>) -> Option<String>,
}

impl Market<'_> {
    /// What a NodeClass offers.
    pub(crate) fn offers(&self, class: &ClusterAPINodeClass) -> Offers {
        let spec = class.spec();
        let cluster = self.mirror.cluster();
        let around = Surroundings {
            node_class: class.name(),
            spec: &spec,
            failure_domains: cluster.as_ref().map(|c| c.failure_domains.as_slice()).unwrap_or_default(),
            sync_labels: &self.settings.sync_labels,
            default_arch: &self.settings.default_arch,
            vm_memory_overhead: self.settings.vm_memory_overhead,
            learnt: &self.learnt,
            spot: &self.spot,
            told: &self.told,
        };
        let mut offers =
            Offers { inherit_taints: spec.inherit_taints.unwrap_or_default(), ..Offers::default() };
        let mut reasons: BTreeMap<ScalableKey, Option<String>> = BTreeMap::new();
        for scalable in members(class, self.mirror) {
            let found = scalable.infrastructure.as_ref().and_then(|r| self.mirror.template(r));
            let template = found.as_ref().and_then(|template| template.as_ref().as_ref().ok());
            let sets = self.mirror.sets_of(&scalable.id);
            let newest = sets.iter().max_by_key(|set| set.revision()).map(|set| &**set);
            match Blueprint::of(&scalable, newest, template, around).and_then(|blueprint| {
                scalable.bounds()?;
                Ok(blueprint)
            }) {
                Ok(blueprint) => {
                    let carried = self.carried.get(&scalable.id).cloned().unwrap_or_default();
                    // Of what is paid for in advance counts what is left.
                    let running = i64::try_from((self.running)(&scalable.id)).unwrap_or(i64::MAX);
                    let reservation = blueprint.reservation.saturating_sub(running).max(0);
                    offers.ignored.extend(blueprint.ignored.iter().cloned());
                    offers.blueprints.push(Blueprint { carried, reservation, ..blueprint });
                }
                Err(mut malformed) => {
                    if let Some(Err(trouble)) = found.as_deref() {
                        malformed.problem.push_str(&format!("; the infrastructure template: {trouble}"));
                    }
                    if !offers.excluded.contains(&malformed) {
                        offers.excluded.push(malformed.clone());
                    }
                    offers.left_out.insert(scalable.id.clone(), malformed);
                }
            }
            let ignored = |reason| move |what| Ignored { reason, what };
            let annotated = Annotated { scalable: &scalable, set: newest };
            offers.ignored.extend(node_labels::ignored(&scalable).map(ignored("LabelsIgnored")));
            offers.ignored.extend(devices::ignored(annotated).map(ignored("DevicesIgnored")));
            reasons.insert(scalable.id.clone(), self.unavailable(&scalable, class));
            offers.members.push(scalable);
        }
        offers.excluded.extend(templates::trouble(class, self.mirror));
        offers.excluded.extend(selector_trouble(class));
        offers.excluded.extend(customization::trouble(class));
        offers.catalog = Catalog::of(&offers.blueprints, |id, place| {
            let reason = reasons.get(id).cloned().flatten();
            reason.or_else(|| (self.failed)(id, place.failure_domain.as_deref()))
        });
        offers
    }

    /// Why a resource cannot give a node at the moment.
    fn unavailable(&self, scalable: &Scalable, class: &ClusterAPINodeClass) -> Option<String> {
        if self.silent {
            return Some("the management cluster has not answered for long".to_owned());
        }
        let alone = class.makes_machines();
        let mode = class.spec().launch_mode.unwrap_or_default();
        if let Some(hold) = launch_hold(self.mirror, scalable, mode, class.launches_while_rollout_paused())
            && (hold.kind != HoldKind::Waiting || hold.is_broken())
        {
            return Some(format!("{}: {}", hold.reason, hold.message));
        }
        (!alone && (self.room)(scalable) == Some(0)).then(|| "it has its greatest size".to_owned())
    }
}

/// What holds a resource; `launches_paused` as of [`holds::hold`].
pub(crate) fn hold(mirror: &Mirror, scalable: &Scalable, launches_paused: bool) -> Option<Hold> {
    holds::hold(scalable, &mirror.sets_of(&scalable.id), mirror.cluster().as_deref(), launches_paused)
}

/// What holds launches from a resource in this mode: Machines of their own are no replicas of it, whosever those are, and no
/// MachineSet looks whether they may be made.
pub(crate) fn launch_hold(
    mirror: &Mirror,
    scalable: &Scalable,
    mode: LaunchMode,
    launches_paused: bool,
) -> Option<Hold> {
    let hold = hold(mirror, scalable, launches_paused);
    if mode == LaunchMode::MachineDeployment {
        return hold;
    }
    let hold = hold.filter(|hold| {
        matches!(hold.kind, HoldKind::NoLaunches | HoldKind::NoWrites) && !hold.is_about_replicas()
    });
    hold.or_else(|| {
        let (cluster, control_plane) = (mirror.cluster()?, mirror.control_plane()?);
        skew::hold(scalable, &cluster, control_plane.as_ref().as_ref().ok()?)
    })
}

/// What a NodeClass launches from: what it names itself, else the resources that take part in it.
pub(crate) fn members(class: &ClusterAPINodeClass, mirror: &Mirror) -> Vec<Arc<Scalable>> {
    let resources = mirror.scalables().into_iter().filter(|scalable| takes_part(class, scalable));
    resources.chain(templates::blueprints(class, mirror)).collect()
}

/// The Machines of a resource, as last seen.
pub(crate) fn machines_of(mirror: &Mirror, id: &ScalableKey) -> Vec<Machine> {
    let Some(label) = id.kind.machine_label() else { return Vec::new() };
    let machines = mirror.machines();
    let name = names::label_value(&id.key.name);
    let theirs = machines.iter().filter(|machine| {
        machine.key.namespace == id.key.namespace
            && machine.labels.get(label).map(String::as_str) == Some(&*name)
    });
    theirs.map(|machine| Machine::clone(machine)).collect()
}

/// NodeClaims that concern a resource.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claims {
    /// Live ones that target it, or that the Go provider bound to its Machines.
    pub(crate) live: Vec<ClaimFacts>,
    /// Those on their way out that the Go provider bound to its Machines.
    pub(crate) ending: Vec<ClaimFacts>,
}

/// How many more nodes a resource that follows the rules of this NodeClass may give, of whose Machines those that are set aside serve nobody;
/// `None` is any number.
pub(crate) fn room(
    mirror: &Mirror,
    scalable: &Scalable,
    machines: &[Machine],
    (claims, set_aside): (&Claims, &BTreeSet<String>),
    owner: &str,
    class: Option<&ClusterAPINodeClass>,
) -> Option<usize> {
    let bounds = scalable.bounds().ok()?;
    bounds.1?;
    let adoption = class.and_then(|class| class.spec().adoption).unwrap_or_default();
    let rollout = rollout::rollout(scalable, &mirror.sets_of(&scalable.id), machines);
    ledger::room(&Situation {
        scalable,
        machines,
        in_sets: None,
        bounds,
        targeting: &claims.live,
        ending: &claims.ending,
        gone: &BTreeSet::new(),
        set_aside,
        awaited: &BTreeSet::new(),
        owner,
        rules: Rules {
            takes_part: class.is_some(),
            may_lower: true,
            adopt_unclaimed: class.is_some() && adoption != Adoption::Never,
            surplus_after: DEFAULT_SURPLUS_TIMEOUT,
            rise: Rise::ToWhatIsNeeded,
            most_launching: None,
        },
        rollout: rollout.as_ref(),
        anew: false,
        // When it was seen makes no difference here.
        sightings: &Sightings::default(),
        now: Timestamp::MAX,
        instant: Instant::now(),
    })
}

/// What keeps the selector of a NodeClass from selecting anything.
pub(crate) fn selector_trouble(class: &ClusterAPINodeClass) -> Option<Malformed> {
    if class.has_templates() {
        return None;
    }
    let selector = class.spec.as_ref()?.scalable_resource_selector.as_ref()?;
    let error = selector.to_selector().err()?;
    Some(Malformed {
        object: format!("ClusterAPINodeClass {}", class.name()),
        key: "spec.scalableResourceSelector".to_owned(),
        problem: error.to_string(),
    })
}

/// Whether a resource takes part in a NodeClass: it carries the member label and the selector matches, or the selector alone
/// decides. A selector that means nothing matches nothing, and a NodeClass that names templates itself, or is for another Cluster, has
/// no resources.
pub(crate) fn takes_part(class: &ClusterAPINodeClass, scalable: &Scalable) -> bool {
    if class.has_templates() || !class.is_for(&scalable.id.key.namespace, &scalable.cluster_name) {
        return false;
    }
    let spec = class.spec.as_ref();
    let selector = spec.and_then(|spec| spec.scalable_resource_selector.as_ref());
    let selected = match selector.map(|selector| selector.to_selector()) {
        None => return scalable.is_member(),
        Some(selector) => selector.unwrap_or_else(|_| Selector::nothing()).matches(&scalable.labels),
    };
    let replace = spec.and_then(|spec| spec.selector_mode) == Some(SelectorMode::Replace);
    let refused = scalable.labels.get(names::MEMBER).is_some_and(|value| value == "false");
    selected && !refused && (replace || scalable.is_member())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::client::sync_labels::SyncLabels;
    use crate::fixtures::deployment;
    use crate::nodeclass::ClusterAPINodeClassSpec;

    #[test]
    fn of_the_taints_that_a_pool_does_not_declare_only_those_that_contradict_its_own_are_missing_where_it_inherits()
     {
        let taints = ("capacity.cluster-autoscaler.kubernetes.io/taints", "team=y:NoSchedule,gpu:NoExecute");
        let around = Surroundings {
            node_class: "default",
            spec: &ClusterAPINodeClassSpec::default(),
            failure_domains: &[],
            sync_labels: &SyncLabels::default(),
            default_arch: "amd64",
            vm_memory_overhead: 0,
            learnt: &BTreeMap::new(),
            spot: &BTreeSet::new(),
            told: &Told::default(),
        };
        let blueprint = Blueprint::of(&deployment("m", &[taints]), None, None, around).expect("a blueprint");
        let missing = |inherit_taints: bool, own: serde_json::Value| {
            let pool: NodePool = serde_json::from_value(json!({
                "metadata": {"name": "p"},
                "spec": {"template": {"spec": {
                    "requirements": [], "taints": own,
                    "nodeClassRef": {"group": "g", "kind": "k", "name": "n"},
                }}},
            }))
            .expect("a NodePool");
            let offers = Offers { inherit_taints, ..Offers::default() };
            offers.missing_taints(&blueprint, &pool).into_iter().map(taints::display).collect::<Vec<_>>()
        };
        let team = |value: &str| json!([{"key": "team", "value": value, "effect": "NoSchedule"}]);
        assert_eq!(missing(false, json!([])), ["team=y:NoSchedule", "gpu:NoExecute"]);
        assert_eq!(missing(false, team("y")), ["gpu:NoExecute"]);
        assert!(missing(true, json!([])).is_empty() && missing(true, team("y")).is_empty());
        assert_eq!(missing(true, team("x")), ["team=y:NoSchedule"]);
    }
}
