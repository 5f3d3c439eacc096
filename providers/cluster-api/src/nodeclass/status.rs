//! The status of a NodeClass: whether the management cluster answers and lets us do what we do, what takes part, what is left out and
//! which key is to blame. Written when something changed, looked at once a minute.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use karpenter_api::conditions::{ConditionSet, HasConditions as _};
use karpenter_api::{ConditionStatus, NodePool};
use karpenter_runtime::controller::{Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::events::{Event, EventType, reference};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::writes::{Lock, patch_status};
use kube::Api;
use tokio::time::Instant;

use super::permissions::{Missing, Permissions};
use super::resources::{resources, unmanaged};
use super::{
    ClusterAPINodeClass, Drift, INSTANCE_TYPES_RESOLVED, KUBELET_AS_DECLARED, LaunchMode,
    MANAGEMENT_CLUSTER_READY, PERMISSIONS_READY, PRICES_KNOWN, Remediation, SCALABLE_RESOURCES_RESOLVED,
    TAINTS_DECLARED, UNMANAGED_MACHINES,
};
use crate::client::scalable::{Scalable, ScalableKind};
use crate::instances::fleet::Fleet;
use crate::instances::holds::HoldKind;
use crate::instances::offers::{Offers, launch_hold};
use crate::instances::templates;
use crate::instancetypes::{capacity, taints};

/// How often a NodeClass is looked at.
const PERIOD: Duration = Duration::from_secs(60);
/// How long it is at least between two writes of a NodeClass: another one that believes it leads may see things differently.
const BETWEEN_WRITES: Duration = Duration::from_secs(1);
/// After how long without an answer the management cluster counts as away.
const SILENCE: Duration = Duration::from_secs(90);
/// Why resources are told of that take part in several NodeClasses.
const SHARED: &str = "SharedResources";
/// Conditions of which an event tells when they do not hold. What is left out of instance types is told by itself.
const WRONG_IF_FALSE: [&str; 5] = [
    MANAGEMENT_CLUSTER_READY,
    PERMISSIONS_READY,
    SCALABLE_RESOURCES_RESOLVED,
    TAINTS_DECLARED,
    KUBELET_AS_DECLARED,
];
/// Reasons of which an event tells although their condition holds.
const WRONG_IN_ANY_CASE: [&str; 3] = ["NewCredentialsNotUsed", "SomeForbidden", SHARED];

pub(crate) struct StatusController {
    fleet: Arc<Fleet>,
    api: Api<ClusterAPINodeClass>,
    started: Instant,
    permissions: Permissions,
    /// When each NodeClass was last written.
    written: Mutex<BTreeMap<String, Instant>>,
}

/// How the management cluster is doing.
enum Reach {
    There,
    /// Nobody has heard of it yet.
    Unknown,
    /// It does not answer, and why.
    Away(String),
}

impl StatusController {
    /// For this fleet's NodeClasses.
    pub(crate) fn new(fleet: Arc<Fleet>, api: Api<ClusterAPINodeClass>) -> Self {
        let permissions = Permissions::default();
        Self { fleet, api, started: Instant::now(), permissions, written: Mutex::default() }
    }

    fn judge(&self, class: &mut ClusterAPINodeClass, missing: Option<Missing>, pools: &[NodePool]) {
        let fleet = &self.fleet;
        let (offers, name) = (fleet.offers(class), class.name().to_owned());
        let counted = unmanaged(&fleet.mirror, &offers.members, &fleet.owner);
        let resources = resources(fleet, &offers, class, &counted);
        let unmanaged: Vec<String> = counted.iter().map(|(id, count)| format!("{count} of {id}")).collect();
        let templates = class.has_templates();
        let selects = templates::kind(class).map(|(_, kind)| kind);
        let is_unlisted = offers.excluded.is_empty() && templates::unlisted(class, &fleet.mirror).is_some();
        let undeclared = undeclared(class, &offers, pools);
        let shared = shared(fleet, &offers, &name);
        let unknown_prices = fleet.lessons.unknown_prices(class);
        let is_ours = fleet.hub.scope().is_none_or(|scope| class.is_for(&scope.namespace, &scope.cluster));
        let mut conditions = ConditionSet::of(class, fleet.clock.now());
        let unused = fleet.hub.unused_credentials();
        let unused = unused.map(|why| format!("new credentials are not used: {why}"));
        match (self.reach(), unused) {
            (Reach::There, None) => drop(conditions.set_true(MANAGEMENT_CLUSTER_READY)),
            (Reach::There, Some(unused)) => drop(conditions.set_true_with_reason(
                MANAGEMENT_CLUSTER_READY,
                "NewCredentialsNotUsed",
                &unused,
            )),
            (Reach::Away(why), unused) => {
                let message = [why].into_iter().chain(unused).collect::<Vec<_>>().join("; ");
                conditions.set_false(MANAGEMENT_CLUSTER_READY, "Unreachable", &message);
            }
            (Reach::Unknown, _) => {}
        }
        match missing {
            // Who was never asked has not refused to say: what was known before us, if anything was, stays.
            None if fleet.hub.silent_for().is_none() => {}
            // Nobody can say: what cannot be found out is no reason to stop.
            None => drop(conditions.set_true_with_reason(
                PERMISSIONS_READY,
                "NotReviewed",
                "the management cluster does not say what we may do",
            )),
            Some(missing) if !missing.needed.is_empty() => {
                let message = format!("not allowed in the management cluster: {}", some(&missing.needed));
                conditions.set_false(PERMISSIONS_READY, "Forbidden", &message);
            }
            Some(missing) if !missing.useful.is_empty() => {
                let message = format!(
                    "not allowed in the management cluster, and done without: {}",
                    some(&missing.useful)
                );
                conditions.set_true_with_reason(PERMISSIONS_READY, "SomeForbidden", &message);
            }
            Some(_) => drop(conditions.set_true(PERMISSIONS_READY)),
        }
        let is_known = fleet.is_synced() && !is_unlisted;
        let Some(scope) = fleet.hub.scope().filter(|_| is_known) else { return };
        if fleet.mirror.cluster().is_none() {
            let message = format!(
                "there is no Cluster {}/{} in the management cluster; set CLUSTER_NAME and CLUSTER_NAMESPACE to the one this cluster is",
                scope.namespace, scope.cluster
            );
            conditions.set_false(SCALABLE_RESOURCES_RESOLVED, "NoCluster", &message);
            conditions.set_false(INSTANCE_TYPES_RESOLVED, "NoCluster", "there is nothing to offer");
        } else if !is_ours {
            let message = format!(
                "this cluster is Cluster {}/{}, and spec.clusterRef or spec.namespaces are of another",
                scope.namespace, scope.cluster
            );
            conditions.set_false(SCALABLE_RESOURCES_RESOLVED, "AnotherCluster", &message);
            conditions.set_false(INSTANCE_TYPES_RESOLVED, "AnotherCluster", "there is nothing to offer");
        } else if offers.members.is_empty() {
            let none = match selects {
                Some(kind) => {
                    format!("no {kind} of namespace {} matches spec.machineTemplateSelector", scope.namespace)
                }
                None => format!(
                    "no MachineDeployment or MachineSet of Cluster {}/{} carries the label {} and matches spec.scalableResourceSelector",
                    scope.namespace,
                    scope.cluster,
                    crate::names::MEMBER
                ),
            };
            let why = offers.excluded.iter().map(ToString::to_string);
            let message = some(&[none].into_iter().chain(why).collect::<Vec<_>>());
            conditions.set_false(SCALABLE_RESOURCES_RESOLVED, "NoScalableResources", &message);
            conditions.set_false(INSTANCE_TYPES_RESOLVED, "NoScalableResources", "there is nothing to offer");
        } else {
            let reverts = fleet.reverts.lately(offers.members.iter().map(|member| &member.id));
            if !reverts.is_empty() {
                let (reason, message) = ("ReplicasChangedByAnother", some(&reverts));
                conditions.set_true_with_reason(SCALABLE_RESOURCES_RESOLVED, reason, &message);
            } else if !shared.is_empty() {
                conditions.set_true_with_reason(SCALABLE_RESOURCES_RESOLVED, SHARED, &some(&shared));
            } else {
                conditions.set_true(SCALABLE_RESOURCES_RESOLVED);
            }
            let broken = fleet.mirror.broken();
            let left_out: Vec<String> =
                offers.excluded.iter().chain(&broken).map(ToString::to_string).collect();
            if offers.catalog.types.is_empty() {
                let all_missing = offers.excluded.iter().all(capacity::is_missing) && broken.is_empty();
                let reason = if all_missing { "MissingCapacity" } else { "AllLeftOut" };
                conditions.set_false(INSTANCE_TYPES_RESOLVED, reason, &some(&left_out));
            } else if let Some((reason, message)) = besides(&offers, &left_out) {
                // What is offered works; what is not as it was meant is told all the same.
                conditions.set_true_with_reason(INSTANCE_TYPES_RESOLVED, reason, &message);
            } else {
                conditions.set_true(INSTANCE_TYPES_RESOLVED);
            }
        }
        if undeclared.is_empty() {
            conditions.set_true(TAINTS_DECLARED);
        } else {
            conditions.set_false(TAINTS_DECLARED, "TaintsNotDeclared", &some(&undeclared));
        }
        let differs: Vec<String> = offers
            .blueprints
            .iter()
            .filter_map(|blueprint| {
                Some(format!("{}: {}", blueprint.id, blueprint.kubelet_differs.as_ref()?))
            })
            .collect();
        if differs.is_empty() {
            conditions.set_true(KUBELET_AS_DECLARED);
        } else {
            conditions.set_false(KUBELET_AS_DECLARED, "KubeletDiffers", &some(&differs));
        }
        if unknown_prices.is_empty() {
            conditions.set_true(PRICES_KNOWN);
        } else {
            conditions.set_false(PRICES_KNOWN, "PricesUnknown", &some(&unknown_prices));
        }
        if templates || unmanaged.is_empty() {
            conditions.set_false(UNMANAGED_MACHINES, "NoUnmanagedMachines", "all Machines are Karpenter's");
        } else {
            let message = format!(
                "Machines that were there before Karpenter, or are another's: {}; they count, and are never claimed, marked or deleted",
                some(&unmanaged)
            );
            conditions.set_true_with_reason(UNMANAGED_MACHINES, "UnmanagedMachines", &message);
        }
        class.status.get_or_insert_default().resources = Some(resources);
    }

    /// What nodes of a NodeClass cost, as it offers them now.
    fn count_prices(&self, class: &ClusterAPINodeClass) {
        let price = &self.fleet.metrics.price;
        price.delete_matching(&[("node_class", class.name())]);
        for entry in &self.fleet.offers(class).catalog.entries {
            let (resource, source) = (entry.id.to_string(), entry.price.source.to_string());
            let zone = entry.zone.as_deref().unwrap_or_default();
            price.set(&[class.name(), &resource, zone, &source], entry.price.per_hour);
        }
    }

    fn reach(&self) -> Reach {
        let hub = &self.fleet.hub;
        match hub.silent_for() {
            None => match hub.trouble() {
                Some(trouble) => Reach::Away(trouble),
                // Who has only just come knows nothing.
                None if self.started.elapsed() < SILENCE => Reach::Unknown,
                None => Reach::Away("it has not answered yet".to_owned()),
            },
            Some(silent) if silent > SILENCE => Reach::Away(
                hub.trouble().unwrap_or_else(|| format!("it has not answered for {} s", silent.as_secs())),
            ),
            Some(_) => Reach::There,
        }
    }

    fn tell(&self, class: &ClusterAPINodeClass) {
        let offers = self.fleet.offers(class);
        for malformed in offers.excluded.iter().chain(&self.fleet.mirror.broken()) {
            let event =
                Event::new(reference(class), EventType::Warning, "ResourceLeftOut", malformed.to_string());
            self.fleet.recorder.publish(event.dedupe_by([malformed.to_string()]));
        }
        let spec = class.spec();
        let by_karpenter = spec.drift == Some(Drift::Karpenter)
            && spec.launch_mode.unwrap_or_default() == LaunchMode::MachineDeployment;
        let rolls = |member: &&Arc<Scalable>| {
            by_karpenter && member.id.kind == ScalableKind::MachineDeployment && !member.on_delete
        };
        for member in offers.members.iter().filter(rolls) {
            let message = format!(
                "{}: with drift: Karpenter its strategy should be OnDelete; Cluster API replaces its nodes as well",
                member.id
            );
            let event = Event::new(reference(class), EventType::Warning, "RolloutStrategy", message);
            self.fleet.recorder.publish(event.dedupe_by([member.id.to_string()]));
        }
        let mode = spec.launch_mode.unwrap_or_default();
        let paused = class.launches_while_rollout_paused();
        for member in &offers.members {
            let hold = launch_hold(&self.fleet.mirror, member, mode, paused);
            // What Cluster API holds up by itself, and what somebody holds up for a moment, NodeClaims tell that wait for it.
            let Some(hold) = hold.filter(|hold| matches!(hold.kind, HoldKind::NotOurs | HoldKind::NoWrites))
            else {
                continue;
            };
            let event = Event::new(reference(class), EventType::Warning, hold.reason, hold.message.clone());
            self.fleet.recorder.publish(event.dedupe_by([hold.message]));
        }
        let repairs = spec.remediation == Some(Remediation::NodeRepair)
            || spec.repair_conditions.as_ref().is_some_and(|conditions| !conditions.is_empty());
        if repairs && !self.fleet.settings.node_repair {
            let message = "remediation: NodeRepair and repairConditions take the feature gate NodeRepair, which is off: nothing comes of them";
            let event = Event::new(reference(class), EventType::Warning, "NodeRepairOff", message.to_owned());
            self.fleet.recorder.publish(event.dedupe_by([class.name().to_owned()]));
        }
        let control_plane = self.fleet.mirror.control_plane();
        if let Some(Err(trouble)) = control_plane.as_deref().filter(|_| class.makes_machines()) {
            let message = format!("versions cannot be compared before Machines are made: {trouble}");
            let event = Event::new(reference(class), EventType::Warning, "ControlPlaneUnknown", message);
            self.fleet.recorder.publish(event.dedupe_by([trouble.clone()]));
        }
        for ignored in &offers.ignored {
            let what = ignored.what.to_string();
            let event = Event::new(reference(class), EventType::Warning, ignored.reason, what.clone());
            self.fleet.recorder.publish(event.dedupe_by([what]));
        }
        for renamed in &offers.catalog.renamed {
            let event =
                Event::new(reference(class), EventType::Warning, "InstanceTypeRenamed", renamed.clone());
            self.fleet.recorder.publish(event.dedupe_by([renamed.clone()]));
        }
    }

    /// Tells by events, too, what conditions say is wrong. What is told in parts elsewhere is not told again.
    fn tell_of_conditions(&self, class: &ClusterAPINodeClass) {
        for condition in class.conditions() {
            let is_false =
                condition.status == ConditionStatus::False && WRONG_IF_FALSE.contains(&&*condition.type_);
            if is_false || WRONG_IN_ANY_CASE.contains(&condition.reason()) {
                let (reason, message) = (condition.reason().to_owned(), condition.message().to_owned());
                let event = Event::new(reference(class), EventType::Warning, reason, message);
                // What is said may count seconds: that is no other event.
                self.fleet.recorder.publish(event.dedupe_by([class.name().to_owned()]));
            }
        }
    }

    /// The NodePools, where it matters what they declare. `None` if they cannot be had just now.
    async fn node_pools(&self, class: &ClusterAPINodeClass) -> Option<Vec<NodePool>> {
        if self.fleet.offers(class).blueprints.iter().all(|blueprint| blueprint.taints.is_empty()) {
            return Some(Vec::new());
        }
        self.fleet.node_claims.node_pools().await.ok()
    }
}

impl Reconciler for StatusController {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Some(before) = self.fleet.node_class(&key.name) else {
            self.fleet.metrics.price.delete_matching(&[("node_class", &key.name)]);
            return Ok(Outcome::Done);
        };
        self.count_prices(&before);
        let missing = self.permissions.missing(&self.fleet, &before).await;
        let Some(pools) = self.node_pools(&before).await else { return Ok(Outcome::After(BETWEEN_WRITES)) };
        let mut after = ClusterAPINodeClass::clone(&before);
        self.judge(&mut after, missing, &pools);
        self.tell(&before);
        self.tell_of_conditions(&after);
        if after == *before {
            return Ok(Outcome::After(PERIOD));
        }
        let now = Instant::now();
        {
            let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
            let since = written.get(before.name()).map(|at| now.saturating_duration_since(*at));
            if let Some(rest) =
                since.and_then(|since| BETWEEN_WRITES.checked_sub(since)).filter(|r| !r.is_zero())
            {
                return Ok(Outcome::After(rest));
            }
            written.insert(before.name().to_owned(), now);
        }
        let written = patch_status(&self.api, &*before, &after, Lock::Optimistic).await?;
        Ok(if written.is_conflict() { Outcome::After(BETWEEN_WRITES) } else { Outcome::After(PERIOD) })
    }
}

/// Members of a NodeClass that follow the rules of another, which they take part in as well.
fn shared(fleet: &Fleet, offers: &Offers, class: &str) -> Vec<String> {
    let others = offers.members.iter().filter(|member| member.id.kind != ScalableKind::MachineTemplate);
    let others = others.filter_map(|member| {
        let first = fleet.node_class_of(member).filter(|first| first.name() != class)?;
        Some(format!(
            "{} takes part in ClusterAPINodeClass {} as well, and follows its rules (the first by name): limits, hooks, adoption, remediation",
            member.id,
            first.name()
        ))
    });
    others.collect()
}

/// NodePools of this NodeClass that do not declare taints which nodes of it have: they are not offered those nodes.
fn undeclared(class: &ClusterAPINodeClass, offers: &Offers, pools: &[NodePool]) -> Vec<String> {
    let ours = pools.iter().filter(|pool| {
        let class_ref = &pool.spec.template.spec.node_class_ref;
        class_ref.group == crate::GROUP && class_ref.name == class.name()
    });
    ours.flat_map(|pool| {
        let name = pool.metadata.name.as_deref().unwrap_or_default();
        offers.blueprints.iter().filter_map(move |blueprint| {
            let missing = offers.missing_taints(blueprint, pool);
            let missing: Vec<String> = missing.into_iter().map(taints::display).collect();
            (!missing.is_empty()).then(|| {
                format!(
                    "NodePool {name} lacks {} of {}, and is not offered it",
                    missing.join(", "),
                    blueprint.id
                )
            })
        })
    })
    .collect()
}

/// What of that which takes part is not offered as it was meant: a reason for the worst of it, and all of it in words.
fn besides(offers: &Offers, left_out: &[String]) -> Option<(&'static str, String)> {
    let ignored: Vec<String> = offers.ignored.iter().map(|ignored| ignored.what.to_string()).collect();
    let told = [
        ("SomeLeftOut", "left out: ", left_out),
        ("SomeRenamed", "", offers.catalog.renamed.as_slice()),
        ("SomeIgnored", "", ignored.as_slice()),
    ];
    let told: Vec<_> = told.into_iter().filter(|(_, _, what)| !what.is_empty()).collect();
    let reason = told.first()?.0;
    let each = NAMED / told.len();
    let messages = told.iter().map(|(_, word, what)| format!("{word}{}", first(each, what)));
    Some((reason, messages.collect::<Vec<_>>().join("; ")))
}

/// So many of many are named in a condition.
const NAMED: usize = 20;
/// So long is what a condition says of each at most: the server takes no message of more than 32 KiB.
const LONGEST: usize = 500;

/// What a condition says of many: the first of them, and how many more there are.
fn some(all: &[String]) -> String {
    first(NAMED, all)
}

fn first(count: usize, all: &[String]) -> String {
    let mut named: Vec<String> = all.iter().take(count).map(|text| shortened(text)).collect();
    if all.len() > count {
        named.push(format!("and {} more", all.len() - count));
    }
    named.join("; ")
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instancetypes::blueprint::Ignored;

    #[test]
    fn a_status_names_the_first_of_many_that_are_left_out() {
        let few = ["a".to_owned(), "b".to_owned()];
        assert_eq!(some(&few), "a; b");
        let many: Vec<String> = (0..200).map(|n| format!("{n}: {}", "ä".repeat(5000))).collect();
        let told = some(&many);
        assert!(told.starts_with("0: ä") && told.ends_with("…; and 180 more"), "{told}");
        assert!(told.len() < 32 * 1024, "{}", told.len());
    }

    #[test]
    fn what_is_left_out_hides_neither_what_is_renamed_nor_what_is_ignored() {
        let what = |key: &str| crate::client::fields::Malformed {
            object: "MachineDeployment fleet/m".to_owned(),
            key: key.to_owned(),
            problem: "is ignored".to_owned(),
        };
        let mut offers = Offers::default();
        assert_eq!(besides(&offers, &[]), None);
        offers.ignored = vec![Ignored { reason: "LabelsIgnored", what: what("labels") }];
        let told = besides(&offers, &[]).expect("a word");
        assert_eq!(told, ("SomeIgnored", "MachineDeployment fleet/m: labels: is ignored".to_owned()));
        offers.catalog.renamed = vec!["n is offered as large-n".to_owned()];
        let (reason, message) = besides(&offers, &["a".to_owned(), "b".to_owned()]).expect("a word");
        assert_eq!(reason, "SomeLeftOut");
        assert!(
            message.starts_with("left out: a; b; n is offered as large-n; MachineDeployment fleet/m: labels"),
            "{message}"
        );
        let many: Vec<String> = (0..200).map(|n| format!("{n}: {}", "ä".repeat(5000))).collect();
        offers.catalog.renamed = many.clone();
        let (_, message) = besides(&offers, &many).expect("a word");
        assert!(message.len() < 32 * 1024, "{}", message.len());
    }
}
