//! Whether we may do in the management cluster what a NodeClass needs: asked in one request, now and then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{ResourceRule, SelfSubjectRulesReview, SelfSubjectRulesReviewSpec};
use kube::Api;
use kube::api::PostParams;
use tokio::time::Instant;

use super::{ClusterAPINodeClass, LaunchMode};
use crate::client::scalable::{Scalable, ScalableKind};
use crate::instances::fleet::Fleet;
use crate::instances::templates;
use crate::names::CAPI_GROUP;

/// How long an answer holds if all is well.
const PERIOD: Duration = Duration::from_secs(10 * 60);
/// How long an answer holds if something is missing.
const RETRY: Duration = Duration::from_secs(60);

/// What is needed: verbs, and the resources of a group.
pub(crate) type Need = (&'static [&'static str], String, &'static str);

/// The definitions of kinds.
pub(crate) const DEFINITIONS: &str = "customresourcedefinitions";

/// What we may not do, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Missing {
    /// What nothing works without.
    pub(crate) needed: Vec<String>,
    /// What nodes come and go without.
    pub(crate) useful: Vec<String>,
}

/// What was found out, by NodeClass.
#[derive(Debug, Default)]
pub(crate) struct Permissions(Mutex<BTreeMap<String, Answer>>);

/// Until when an answer holds, and what was missing.
type Answer = (Instant, Option<Missing>);

impl Permissions {
    /// What a NodeClass needs or could use and we may not do; `None` if the management cluster does not say.
    pub(crate) async fn missing(&self, fleet: &Fleet, class: &ClusterAPINodeClass) -> Option<Missing> {
        let now = Instant::now();
        let mode = class.spec().launch_mode.unwrap_or_default();
        let key = format!("{}/{mode:?}", class.name());
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some((due, missing)) = &known
            && *due > now
        {
            return missing.clone();
        }
        let review = SelfSubjectRulesReview {
            spec: SelfSubjectRulesReviewSpec { namespace: Some(fleet.hub.scope()?.namespace.clone()) },
            ..SelfSubjectRulesReview::default()
        };
        let api: Api<SelfSubjectRulesReview> = Api::all(fleet.hub.client().clone());
        let missing = match api.create(&PostParams::default(), &review).await.map(|review| review.status) {
            Ok(Some(status)) => {
                let (clones, control_plane) = groups(fleet, class);
                let mut needs = needs(mode, clones.iter().cloned());
                let sets = |member: &Arc<Scalable>| member.id.kind == ScalableKind::MachineSet;
                if mode == LaunchMode::MachineDeployment && fleet.offers(class).members.iter().any(sets) {
                    needs.extend(needs_of_sets());
                }
                needs.extend(templates::kind(class).map(|(group, _)| -> Need { (&["list"], group, ANY) }));
                let missing = Missing {
                    needed: missing(&status.resource_rules, &needs),
                    useful: missing(&status.resource_rules, &uses(mode, clones, control_plane)),
                };
                // What the server does not know of it cannot deny.
                (!status.incomplete || missing == Missing::default()).then_some(missing)
            }
            Ok(None) => None,
            // Away, or it does not review: what was known stays.
            Err(_) => known.and_then(|(_, missing)| missing),
        };
        let well = missing.as_ref().is_none_or(|missing| *missing == Missing::default());
        let due = now + if well { PERIOD } else { RETRY };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, (due, missing.clone()));
        missing
    }
}

/// The groups of what is cloned for a NodeClass, and of the control plane: both only where Machines of their own are made. What it
/// selects from may have nothing in it yet.
fn groups(fleet: &Fleet, class: &ClusterAPINodeClass) -> (BTreeSet<String>, Option<String>) {
    if !class.makes_machines() {
        return (BTreeSet::new(), None);
    }
    let offers = fleet.offers(class);
    let templates = offers.members.iter().flat_map(|member| [&member.infrastructure, &member.bootstrap]);
    let control_plane = fleet.mirror.control_plane_reference().map(|reference| reference.group);
    let selected = templates::kind(class).map(|(group, _)| group);
    let groups = templates.flatten().map(|template| template.group.clone()).chain(selected);
    (groups.collect(), control_plane)
}

/// What the mode needs, with the groups of what is cloned.
pub(crate) fn needs(mode: LaunchMode, clones: impl Iterator<Item = String>) -> Vec<Need> {
    let group = || CAPI_GROUP.to_owned();
    let read: &[&str] = &["get", "list", "watch"];
    let mut needs: Vec<Need> = vec![
        (read, group(), "clusters"),
        (read, group(), "machinedeployments"),
        (read, group(), "machinesets"),
        (read, group(), "machines"),
        (&["patch", "delete"], group(), "machines"),
    ];
    match mode {
        // Capacity may come from annotations; where it must come from a template that we may not read, that MachineDeployment is
        // left out with the refusal, and the others work.
        LaunchMode::MachineDeployment => {
            needs.push((&["patch"], group(), "machinedeployments"));
            needs.push((&["patch"], group(), "machinedeployments/scale"));
        }
        LaunchMode::Machine => needs.push((&["create"], group(), "machines")),
    }
    // Their resources are named by their providers; whoever may touch any of a group may touch what is needed.
    needs.extend(clones.map(|group| -> Need { (&["get", "create", "delete"], group, ANY) }));
    needs
}

/// What MachineSets that belong to no MachineDeployment need besides.
pub(crate) fn needs_of_sets() -> [Need; 2] {
    ["machinesets", "machinesets/scale"]
        .map(|resource| -> Need { (&["patch"], CAPI_GROUP.to_owned(), resource) })
}

/// What is done where it may be: reading which version of a template keeps to Cluster API's contract; and of Machines of their own,
/// telling Cluster API about them, looking for clones that nobody needs, and comparing versions with the control plane's.
pub(crate) fn uses(mode: LaunchMode, clones: BTreeSet<String>, control_plane: Option<String>) -> Vec<Need> {
    let mut uses: Vec<Need> = vec![(&["get"], "apiextensions.k8s.io".to_owned(), DEFINITIONS)];
    if mode == LaunchMode::MachineDeployment {
        return uses;
    }
    uses.push((&["patch"], CAPI_GROUP.to_owned(), "machines/status"));
    uses.extend(clones.into_iter().map(|group| -> Need { (&["list"], group, ANY) }));
    uses.extend(control_plane.map(|group| -> Need { (&["get"], group, ANY) }));
    uses
}

/// Any resource of a group.
const ANY: &str = "";

/// Those of the needs that no rule meets, in words.
fn missing(rules: &[ResourceRule], needs: &[Need]) -> Vec<String> {
    let has = |list: Option<&Vec<String>>, wanted: &str| {
        // A rule may be about a subresource of all kinds.
        let of_all = wanted.split_once('/').map(|(_, subresource)| format!("*/{subresource}"));
        list.is_some_and(|list| {
            list.iter().any(|known| known == wanted || known == "*" || Some(known) == of_all.as_ref())
        })
    };
    let met = |verb: &str, group: &str, resource: &str| {
        rules.iter().any(|rule| {
            let resources = rule.resources.as_ref();
            let reaches = match resource {
                ANY => resources.is_some_and(|resources| !resources.is_empty()),
                resource => has(resources, resource),
            };
            let everywhere = rule.resource_names.as_ref().is_none_or(Vec::is_empty);
            rule.verbs.iter().any(|known| known == verb || known == "*")
                && has(rule.api_groups.as_ref(), group)
                && reaches
                && everywhere
        })
    };
    let mut missing = Vec::new();
    for (verbs, group, resource) in needs {
        let lacking: Vec<&str> = verbs.iter().copied().filter(|verb| !met(verb, group, resource)).collect();
        if !lacking.is_empty() {
            let what =
                if resource.is_empty() { format!("any of {group}") } else { format!("{resource}.{group}") };
            missing.push(format!("{} {what}", lacking.join(", ")));
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> ResourceRule {
        let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        ResourceRule {
            api_groups: Some(owned(groups)),
            resources: Some(owned(resources)),
            verbs: owned(verbs),
            resource_names: None,
        }
    }

    #[test]
    fn machines_of_their_own_need_their_clones_and_could_use_more() {
        let clones = || BTreeSet::from(["boot.x".to_owned(), "infra.x".to_owned()]);
        let needed = needs(LaunchMode::Machine, clones().into_iter());
        let enough = [
            rule(&["cluster.x-k8s.io"], &["*"], &["*"]),
            rule(&["infra.x", "boot.x"], &["*"], &["get", "create", "delete"]),
        ];
        assert_eq!(missing(&enough, &needed), Vec::<String>::new());
        assert_eq!(missing(&enough[..1], &needed)[0], "get, create, delete any of boot.x");
        let useful = uses(LaunchMode::Machine, clones(), Some("plane.x".to_owned()));
        let told = [
            "get customresourcedefinitions.apiextensions.k8s.io",
            "list any of boot.x",
            "list any of infra.x",
            "get any of plane.x",
        ];
        assert_eq!(missing(&enough, &useful), told);
    }

    #[test]
    fn a_machine_set_of_its_own_needs_its_own_rights() {
        let for_deployments = [
            rule(&["cluster.x-k8s.io"], &["*"], &["get", "list", "watch"]),
            rule(&["cluster.x-k8s.io"], &["machines"], &["patch", "delete"]),
            rule(&["cluster.x-k8s.io"], &["machinedeployments", "machinedeployments/scale"], &["patch"]),
        ];
        let needed = needs(LaunchMode::MachineDeployment, std::iter::empty());
        assert_eq!(missing(&for_deployments, &needed), Vec::<String>::new());
        assert_eq!(
            missing(&for_deployments, &needs_of_sets()),
            ["patch machinesets.cluster.x-k8s.io", "patch machinesets/scale.cluster.x-k8s.io"]
        );
    }

    #[test]
    fn what_we_may_not_do_is_named_by_verb_and_resource() {
        let needs: Vec<Need> = vec![
            (&["get", "patch"], "cluster.x-k8s.io".to_owned(), "machines"),
            (&["patch"], "cluster.x-k8s.io".to_owned(), "machinedeployments/scale"),
            (&["get"], "infra.x".to_owned(), ANY),
        ];
        let all = rule(&["*"], &["*"], &["*"]);
        assert_eq!(missing(&[all], &needs), Vec::<String>::new());
        let read = rule(&["cluster.x-k8s.io"], &["machines"], &["get", "list"]);
        let infra = rule(&["infra.x"], &["fakemachinetemplates"], &["get"]);
        assert_eq!(
            missing(&[read.clone(), infra], &needs),
            ["patch machines.cluster.x-k8s.io", "patch machinedeployments/scale.cluster.x-k8s.io"]
        );
        let scales = rule(&["cluster.x-k8s.io"], &["*/scale"], &["patch"]);
        assert_eq!(
            missing(&[scales], &needs[1..2]),
            Vec::<String>::new(),
            "the same subresource of all kinds"
        );
        let mut named = read;
        named.resource_names = Some(vec!["one".to_owned()]);
        assert_eq!(
            missing(&[named], &needs)[0],
            "get, patch machines.cluster.x-k8s.io",
            "one object is not all"
        );
    }
}
