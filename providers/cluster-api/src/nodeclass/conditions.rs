//! What the conditions of a NodeClass say: of the management cluster, of our rights there, of what takes part, and of what is not as it was
//! meant. Reads what the provider knows, and asks nobody.

use karpenter_api::NodePool;
use karpenter_api::conditions::ConditionSet;

use super::permissions::Missing;
use super::resources::{resources, unmanaged};
use super::{
    ClusterAPINodeClass, INSTANCE_TYPES_RESOLVED, KUBELET_AS_DECLARED, MANAGEMENT_CLUSTER_READY,
    PERMISSIONS_READY, PRICES_KNOWN, SCALABLE_RESOURCES_RESOLVED, TAINTS_DECLARED, UNMANAGED_MACHINES,
};
use crate::client::scalable::ScalableKind;
use crate::client::scope::Scope;
use crate::instances::fleet::Fleet;
use crate::instances::offers::Offers;
use crate::instances::templates;
use crate::instancetypes::{capacity, taints};

/// Why resources are told of that take part in several NodeClasses.
pub(super) const SHARED: &str = "SharedResources";

/// How the management cluster is doing.
pub(super) enum Reach {
    There,
    /// Nobody has heard of it yet.
    Unknown,
    /// It does not answer, and why.
    Away(String),
}

type Conditions<'a> = ConditionSet<'a, ClusterAPINodeClass>;

/// Writes into the status of `after`, which is a copy of `class`, how it stands. `missing` are the rights we lack, if that is known; `pools`
/// are the NodePools, where it matters what they declare.
pub(super) fn judge(
    fleet: &Fleet,
    class: &ClusterAPINodeClass,
    (reach, missing): (Reach, Option<Missing>),
    pools: &[NodePool],
    after: &mut ClusterAPINodeClass,
) {
    let offers = fleet.offers(class);
    let mut conditions = ConditionSet::of(after, fleet.clock.now());
    management_cluster(fleet, reach, &mut conditions);
    permissions(fleet, missing, &mut conditions);
    let is_unlisted = offers.excluded.is_empty() && templates::unlisted(class, &fleet.mirror).is_some();
    let is_known = fleet.is_synced() && !is_unlisted;
    let Some(scope) = fleet.hub.scope().filter(|_| is_known) else { return };
    match nothing_takes_part(fleet, class, &offers, scope) {
        Some((reason, message)) => {
            conditions.set_false(SCALABLE_RESOURCES_RESOLVED, reason, &message);
            conditions.set_false(INSTANCE_TYPES_RESOLVED, reason, "there is nothing to offer");
        }
        None => {
            scalable_resources(fleet, class, &offers, &mut conditions);
            instance_types(fleet, &offers, &mut conditions);
        }
    }
    let undeclared = undeclared(class, &offers, pools);
    holds_if_none(&mut conditions, TAINTS_DECLARED, "TaintsNotDeclared", &undeclared);
    holds_if_none(&mut conditions, KUBELET_AS_DECLARED, "KubeletDiffers", &kubelet_differences(&offers));
    let unknown_prices = fleet.lessons.unknown_prices(class);
    holds_if_none(&mut conditions, PRICES_KNOWN, "PricesUnknown", &unknown_prices);
    let counted = unmanaged(&fleet.mirror, &offers.members, &fleet.owner);
    let others: Vec<String> = counted.iter().map(|(id, count)| format!("{count} of {id}")).collect();
    unmanaged_machines(class, &others, &mut conditions);
    after.status.get_or_insert_default().resources = Some(resources(fleet, &offers, class, &counted));
}

/// Whether the management cluster answers, and by which credentials.
fn management_cluster(fleet: &Fleet, reach: Reach, conditions: &mut Conditions<'_>) {
    let unused = fleet.hub.unused_credentials();
    let unused = unused.map(|why| format!("new credentials are not used: {why}"));
    match (reach, unused) {
        (Reach::There, None) => {
            conditions.set_true(MANAGEMENT_CLUSTER_READY);
        }
        (Reach::There, Some(unused)) => {
            conditions.set_true_with_reason(MANAGEMENT_CLUSTER_READY, "NewCredentialsNotUsed", &unused);
        }
        (Reach::Away(why), unused) => {
            let message = [why].into_iter().chain(unused).collect::<Vec<_>>().join("; ");
            conditions.set_false(MANAGEMENT_CLUSTER_READY, "Unreachable", &message);
        }
        (Reach::Unknown, _) => {}
    }
}

/// Whether we may do there what is to be done.
fn permissions(fleet: &Fleet, missing: Option<Missing>, conditions: &mut Conditions<'_>) {
    match missing {
        // Who was never asked has not refused to say: what was known before us, if anything was, stays.
        None if fleet.hub.silent_for().is_none() => {}
        // Nobody can say: what cannot be found out is no reason to stop.
        None => {
            let message = "the management cluster does not say what we may do";
            conditions.set_true_with_reason(PERMISSIONS_READY, "NotReviewed", message);
        }
        Some(missing) if !missing.needed.is_empty() => {
            let message = format!("not allowed in the management cluster: {}", some(&missing.needed));
            conditions.set_false(PERMISSIONS_READY, "Forbidden", &message);
        }
        Some(missing) if !missing.useful.is_empty() => {
            let message =
                format!("not allowed in the management cluster, and done without: {}", some(&missing.useful));
            conditions.set_true_with_reason(PERMISSIONS_READY, "SomeForbidden", &message);
        }
        Some(_) => {
            conditions.set_true(PERMISSIONS_READY);
        }
    }
}

/// Why there is nothing that could be offered, as a reason and in words, if there is not.
fn nothing_takes_part(
    fleet: &Fleet,
    class: &ClusterAPINodeClass,
    offers: &Offers,
    scope: &Scope,
) -> Option<(&'static str, String)> {
    let (namespace, cluster) = (&scope.namespace, &scope.cluster);
    if fleet.mirror.cluster().is_none() {
        let message = format!(
            "there is no Cluster {namespace}/{cluster} in the management cluster; set CLUSTER_NAME and CLUSTER_NAMESPACE to the one this cluster is"
        );
        return Some(("NoCluster", message));
    }
    if !class.is_for(namespace, cluster) {
        let message = format!(
            "this cluster is Cluster {namespace}/{cluster}, and spec.clusterRef or spec.namespaces are of another"
        );
        return Some(("AnotherCluster", message));
    }
    if !offers.members.is_empty() {
        return None;
    }
    let none = match templates::kind(class) {
        Some((_, kind)) => format!("no {kind} of namespace {namespace} matches spec.machineTemplateSelector"),
        None => format!(
            "no MachineDeployment or MachineSet of Cluster {namespace}/{cluster} carries the label {} and matches spec.scalableResourceSelector",
            crate::names::MEMBER
        ),
    };
    let why = offers.excluded.iter().map(ToString::to_string);
    Some(("NoScalableResources", some(&[none].into_iter().chain(why).collect::<Vec<_>>())))
}

/// Whether what takes part is the NodeClass's alone, and Karpenter's alone to scale.
fn scalable_resources(
    fleet: &Fleet,
    class: &ClusterAPINodeClass,
    offers: &Offers,
    conditions: &mut Conditions<'_>,
) {
    let shared = shared(fleet, offers, class.name());
    let reverts = fleet.reverts.lately(offers.members.iter().map(|member| &member.id));
    if !reverts.is_empty() {
        let (reason, message) = ("ReplicasChangedByAnother", some(&reverts));
        conditions.set_true_with_reason(SCALABLE_RESOURCES_RESOLVED, reason, &message);
    } else if !shared.is_empty() {
        conditions.set_true_with_reason(SCALABLE_RESOURCES_RESOLVED, SHARED, &some(&shared));
    } else {
        conditions.set_true(SCALABLE_RESOURCES_RESOLVED);
    }
}

/// Whether instance types are made of all that takes part.
fn instance_types(fleet: &Fleet, offers: &Offers, conditions: &mut Conditions<'_>) {
    let broken = fleet.mirror.broken();
    let left_out: Vec<String> = offers.excluded.iter().chain(&broken).map(ToString::to_string).collect();
    if offers.catalog.types.is_empty() {
        let all_missing = offers.excluded.iter().all(capacity::is_missing) && broken.is_empty();
        let reason = if all_missing { "MissingCapacity" } else { "AllLeftOut" };
        conditions.set_false(INSTANCE_TYPES_RESOLVED, reason, &some(&left_out));
    } else if let Some((reason, message)) = besides(offers, &left_out) {
        // What is offered works; what is not as it was meant is told all the same.
        conditions.set_true_with_reason(INSTANCE_TYPES_RESOLVED, reason, &message);
    } else {
        conditions.set_true(INSTANCE_TYPES_RESOLVED);
    }
}

/// A condition that holds unless something stands against it.
fn holds_if_none(conditions: &mut Conditions<'_>, kind: &str, reason: &str, against: &[String]) {
    if against.is_empty() {
        conditions.set_true(kind);
    } else {
        conditions.set_false(kind, reason, &some(against));
    }
}

/// Resources whose kubelets keep something else than is declared.
fn kubelet_differences(offers: &Offers) -> Vec<String> {
    let differs = offers
        .blueprints
        .iter()
        .filter_map(|blueprint| Some(format!("{}: {}", blueprint.id, blueprint.kubelet_differs.as_ref()?)));
    differs.collect()
}

/// Whether Machines take part that Karpenter does not manage.
fn unmanaged_machines(class: &ClusterAPINodeClass, others: &[String], conditions: &mut Conditions<'_>) {
    if class.has_templates() || others.is_empty() {
        conditions.set_false(UNMANAGED_MACHINES, "NoUnmanagedMachines", "all Machines are Karpenter's");
    } else {
        let message = format!(
            "Machines that were there before Karpenter, or are another's: {}; they count, and are never claimed, marked or deleted",
            some(others)
        );
        conditions.set_true_with_reason(UNMANAGED_MACHINES, "UnmanagedMachines", &message);
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
