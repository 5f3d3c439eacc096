//! Machine mode: a Machine of its own for every NodeClaim, named after it, with clones of the templates that a MachineDeployment or
//! the NodeClass names. Everything is made by name and carries the NodeClaim's uid, so that making it again changes nothing and what
//! was left half made is found.

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_api::NodeClaim;
use karpenter_api::conditions::HasConditions as _;
use karpenter_api::nodeclaim::LAUNCHED;
use karpenter_cloudprovider::{Launch, LaunchHandle, ProviderError};
use karpenter_runtime::object_key::ObjectKey;
use kube::api::{ApiResource, DynamicObject};
use serde_json::{Map, Value, json};

use super::customization;
use super::fleet::Fleet;
use super::hook;
use super::launch;
use super::node_claims::Target;
use super::offers;
use super::pace::Turn;
use super::remediation;
use super::templates;
use crate::client::cluster::Cluster;
use crate::client::fields::{Fields, Malformed, Reference};
use crate::client::hub::{HubError, machine_reference};
use crate::client::machine::Machine;
use crate::client::mirror::Mirror;
use crate::client::scalable::{Scalable, ScalableKey, ScalableKind};
use crate::instancetypes::node_labels::{comes_to_node, is_bookkeeping};
use crate::names;
use crate::nodeclass::{ClusterAPINodeClass, ClusterAPINodeClassSpec, LaunchMode};

/// Makes a NodeClaim's Machine, clones first: Cluster API looks for a missing infrastructure only every half a minute.
pub(crate) async fn launch(
    fleet: &Arc<Fleet>,
    claim: &NodeClaim,
    target: &Target,
) -> Result<Launch, ProviderError> {
    let pending = |reason: &str, message: String| Launch::Pending {
        reason: reason.to_owned(),
        message,
        handle: LaunchHandle(target.to_string()),
    };
    if let Some(message) = launch::away(fleet) {
        return Ok(pending("ManagementUnavailable", message));
    }
    // Nothing is broken, and nobody need stay away from it; but pods are not kept waiting for ever.
    let held =
        |reason: &str, message: String| match launch::is_overdue(fleet, claim, launch::age(fleet, claim)) {
            true => {
                fleet.metrics.launch_failures.inc(&[&target.id.to_string(), reason]);
                Err(ProviderError::insufficient_capacity(message))
            }
            false => Ok(pending(reason, message)),
        };
    let cluster = match fleet.mirror.cluster() {
        Some(cluster) => Ok(cluster),
        None => fleet.hub.cluster().await.map(Arc::new),
    };
    let paused = fleet.is_paused().await;
    let (cluster, paused) = match (cluster, paused) {
        (Ok(cluster), Ok(paused)) => (cluster, paused),
        // It has been moved to another management cluster, say: no blueprint is to blame.
        (Err(error), _) | (_, Err(error)) if error.is_not_found() => {
            return held("ManagementUnavailable", error.to_string());
        }
        (Err(error), _) | (_, Err(error)) => return Err(ProviderError::other(error)),
    };
    if paused {
        return held("Paused", "the Cluster is paused".to_owned());
    }
    let blueprint = match fleet.blueprint(&target.id) {
        Some(blueprint) => blueprint,
        None => there(fleet, target, asked(fleet, claim, &target.id).await)?,
    };
    let class = fleet.node_class(&claim.spec.node_class_ref.name);
    let launches_paused = class.is_some_and(|class| class.launches_while_rollout_paused());
    if let Some(hold) = offers::launch_hold(&fleet.mirror, &blueprint, LaunchMode::Machine, launches_paused) {
        return held(hold.reason, hold.message);
    }
    let class = &claim.spec.node_class_ref.name;
    let limits = fleet.node_class(class).and_then(|class| class.spec().launch_limits);
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let ahead = fleet.node_claims.ahead(claim, &target.id);
    if !fleet.pace.begin(class, limits, ahead, uid) {
        let message = format!("as many launches are under way as ClusterAPINodeClass {class} allows");
        return Ok(pending("LaunchRate", message));
    }
    let age = match fleet.pace.turn(uid) {
        Some(Turn::Came(at)) => at.elapsed(),
        _ => launch::age(fleet, claim),
    };
    if launch::is_overdue(fleet, claim, age) {
        let last = claim.condition(LAUNCHED).and_then(|condition| condition.message.clone());
        let last = last.map(|why| format!(": {why}")).unwrap_or_default();
        let why = format!("the Machine could not be made in time{last}");
        return Err(launch::failed(fleet, target, "NoMachine", &why));
    }
    match make(fleet, claim, target, &blueprint, &cluster).await {
        Ok(machine) => launch::progress(fleet, claim, &machine).await,
        Err(error @ HubError::Refused { .. }) => {
            // Nothing was launched, and this NodeClaim will not ask again.
            fleet.pace.give_back_turn(class, uid);
            Err(launch::failed(fleet, target, "Refused", &error.to_string()))
        }
        Err(error @ HubError::Malformed(_)) => {
            fleet.pace.give_back_turn(class, uid);
            Err(launch::failed(fleet, target, "Malformed", &error.to_string()))
        }
        Err(error @ HubError::NotFound(_)) => Ok(pending("TemplateMissing", error.to_string())),
        Err(error) => Err(ProviderError::other(error)),
    }
}

/// What is out of sight, as the server has it: only what the server says does not exist is a failure.
fn there<T>(fleet: &Fleet, target: &Target, found: Result<T, HubError>) -> Result<Arc<T>, ProviderError> {
    match found {
        Ok(found) => Ok(Arc::new(found)),
        Err(error) if error.is_not_found() => {
            Err(launch::failed(fleet, target, "NoBlueprint", &error.to_string()))
        }
        Err(error) => Err(ProviderError::other(error)),
    }
}

/// A blueprint that is out of sight, as the server has it.
async fn asked(fleet: &Fleet, claim: &NodeClaim, id: &ScalableKey) -> Result<Scalable, HubError> {
    if id.kind != ScalableKind::MachineTemplate {
        return fleet.hub.scalable(id).await;
    }
    let class = fleet.node_class(&claim.spec.node_class_ref.name);
    Err(no_template(&fleet.mirror, class.as_deref(), id))
}

/// What it means that a template of a NodeClass is out of sight: nothing while the Cluster is, or before templates were listed.
fn no_template(mirror: &Mirror, class: Option<&ClusterAPINodeClass>, id: &ScalableKey) -> HubError {
    if mirror.cluster().is_none() {
        return HubError::Conflict(format!("the Cluster of {id}"));
    }
    match class.and_then(|class| templates::unlisted(class, mirror)) {
        Some(why) => HubError::Conflict(format!("{id} ({why})")),
        None => HubError::NotFound(id.to_string()),
    }
}

async fn make(
    fleet: &Arc<Fleet>,
    claim: &NodeClaim,
    target: &Target,
    blueprint: &Scalable,
    cluster: &Cluster,
) -> Result<Machine, HubError> {
    let class = fleet.node_class(&claim.spec.node_class_ref.name);
    let spec = class.as_ref().map(|class| class.spec()).unwrap_or_default();
    let clones = Clones { fleet, claim, blueprint, cluster, spec: &spec };
    let name = clones.name();
    let reference = machine_reference(&ObjectKey::namespaced(cluster.key.namespace.clone(), name));
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    // The watch may be late to show what was made, and the core asks often: to make it once more would be refused three times.
    if fleet.journeys.has_made(uid) {
        match fleet.hub.get(&reference).await {
            Ok(made) => {
                clones.is_ours("Machine", &made)?;
                return Ok(Machine::read(&made)?);
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    let bootstrap = match &blueprint.bootstrap {
        Some(template) => {
            let clone = clones.clone_of(template, "bootstrapPatches").await?;
            json!({"configRef": clones.reference(&clone).await?})
        }
        None => json!({"dataSecretName": blueprint.bootstrap_secret}),
    };
    let Some(template) = &blueprint.infrastructure else {
        let problem = "is missing: there is nothing to clone a machine from";
        return Err(blueprint.malformed("spec.template.spec.infrastructureRef", problem).into());
    };
    let infrastructure = clones.clone_of(template, "infrastructurePatches").await?;
    let labels = clones.machine_labels()?;
    let version = fleet.hub.versions().own(fleet.hub.client()).await?;
    // What has another name in the other version would be lost. Watches follow in a moment.
    let Some(spec_of_machines) = spec_in(fleet, blueprint, &version).await? else {
        return Err(HubError::Conflict(format!("{} in {version}", blueprint.id)));
    };
    let mut annotations = clones.annotations();
    hook::annotate(&mut annotations, spec.timeouts.as_ref().is_some_and(|timeouts| timeouts.hook.is_some()));
    let skips_remediation = class.is_some_and(|class| remediation::is_node_repairs(fleet, &class));
    remediation::annotate(&mut annotations, skips_remediation);
    annotations[names::BLUEPRINT_HASH] = customization::blueprint_hash(blueprint, &spec).into();
    annotations[names::PATCHES_HASH] = customization::patches_hash(&spec).into();
    // Time-outs, gates and taints are the blueprint's; where it goes and what it is made of is said here.
    let mut machine = spec_of_machines;
    if !machine.is_object() {
        machine = json!({});
    }
    for ours in ["failureDomain", "providerID"] {
        machine.as_object_mut().and_then(|machine| machine.remove(ours));
    }
    machine["clusterName"] = (*cluster.key.name).into();
    machine["bootstrap"] = bootstrap;
    machine["infrastructureRef"] = clones.reference(&infrastructure).await?;
    for (key, value) in [("version", &blueprint.version), ("failureDomain", &target.failure_domain)] {
        if let Some(value) = value {
            machine[key] = value.as_str().into();
        }
    }
    let object = json!({
        "apiVersion": format!("{}/{version}", names::CAPI_GROUP), "kind": "Machine",
        "metadata": {
            "name": name, "namespace": &*cluster.key.namespace, "labels": labels,
            "annotations": annotations, "ownerReferences": [clones.owner()],
        },
        "spec": machine,
    });
    let made = fleet.hub.create_or_get(&reference, object).await?;
    clones.is_ours("Machine", &made)?;
    fleet.journeys.made(uid);
    fleet.metrics.writes.inc(&["create"]);
    Ok(Machine::read(&made)?)
}

/// What the Machines of a blueprint are to be, as this version has it; `None` if the server did not say it in that.
async fn spec_in(fleet: &Fleet, blueprint: &Scalable, version: &str) -> Result<Option<Value>, HubError> {
    let is_in = |scalable: &Scalable| scalable.read_in.as_deref().is_none_or(|read_in| read_in == version);
    if is_in(blueprint) {
        return Ok(Some(blueprint.template_spec.clone()));
    }
    let now = fleet.hub.scalable(&blueprint.id).await?;
    Ok(is_in(&now).then_some(now.template_spec))
}

/// Deletes what was made for a NodeClaim that never got its Machine. What is out of sight is asked for: without the blueprint
/// nobody knows of which kinds the clones are.
pub(crate) async fn sweep(fleet: &Arc<Fleet>, claim: &NodeClaim, target: &Target) -> Result<(), HubError> {
    let cluster = match fleet.mirror.cluster() {
        Some(cluster) => cluster,
        None => match fleet.hub.cluster().await {
            Ok(cluster) => Arc::new(cluster),
            // It owned the clones: they have gone with it.
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
        },
    };
    let blueprint = match fleet.blueprint(&target.id) {
        Some(blueprint) => blueprint,
        None => match asked(fleet, claim, &target.id).await {
            Ok(blueprint) => Arc::new(blueprint),
            Err(error) if error.is_not_found() => {
                // They are looked for among all of their kinds when the NodeClaim is gone.
                let name = claim.metadata.name.as_deref().unwrap_or_default();
                tracing::info!(blueprint = %target.id, name, "a blueprint is gone; clones of its templates will be looked for");
                return Ok(());
            }
            Err(error) => return Err(error),
        },
    };
    let spec = ClusterAPINodeClassSpec::default();
    let clones = Clones { fleet, claim, blueprint: &blueprint, cluster: &cluster, spec: &spec };
    for template in [&blueprint.infrastructure, &blueprint.bootstrap].into_iter().flatten() {
        let clone = clones.named(template);
        match fleet.hub.get(&clone).await {
            Ok(object) if clones.is_ours(&clone.kind, &object).is_ok() => {
                fleet.hub.delete(&clone, object.metadata.uid.as_deref()).await?;
            }
            Ok(_) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The kind of a template's clones: its own without the word.
pub(crate) fn kind_of_clones(template: &Reference) -> &str {
    template.kind.strip_suffix("Template").unwrap_or(&template.kind)
}

/// The version that a template was read in, which its clone is to be written in: what is of one version may not be valid in another.
fn same_version<'a>(
    template: &Reference,
    found: &'a DynamicObject,
    clones: &'a ApiResource,
) -> Result<&'a str, HubError> {
    let read = found.types.as_ref().and_then(|types| types.api_version.rsplit('/').next());
    match read {
        Some(read) if read != clones.version => Err(HubError::Conflict(format!(
            "the version of {template} (it was read in {read}, and {} is served in {})",
            clones.kind, clones.version
        ))),
        _ => Ok(&clones.version),
    }
}

/// What is made for one NodeClaim.
struct Clones<'a> {
    fleet: &'a Fleet,
    claim: &'a NodeClaim,
    blueprint: &'a Scalable,
    cluster: &'a Cluster,
    spec: &'a ClusterAPINodeClassSpec,
}

impl Clones<'_> {
    fn name(&self) -> &str {
        self.claim.metadata.name.as_deref().unwrap_or_default()
    }

    fn uid(&self) -> &str {
        self.claim.metadata.uid.as_deref().unwrap_or_default()
    }

    /// The clone of a template, with our name.
    fn named(&self, template: &Reference) -> Reference {
        Reference {
            kind: kind_of_clones(template).to_owned(),
            name: self.name().to_owned(),
            ..template.clone()
        }
    }

    async fn clone_of(&self, template: &Reference, field: &'static str) -> Result<Reference, HubError> {
        let hub = &self.fleet.hub;
        let clone = self.named(template);
        let found = hub.get(template).await?;
        let fields = Fields::of(&template.kind, &found);
        let mut spec = fields.at("spec.template.spec").cloned().unwrap_or_else(|| json!({}));
        let served = hub.versions().resource(hub.client(), &clone.group, &clone.kind).await?;
        let version = same_version(template, &found, &served).inspect_err(|_| hub.versions().forget())?;
        customization::register_with_taints(&clone.kind, &mut spec, self.claim)
            .and_then(|()| {
                customization::set_up_kubelet(&clone.kind, version, &mut spec, self.spec.kubelet.as_ref())
            })
            .map_err(|error| fields.malformed(error.field, format!("must be {}", error.wanted)))?;
        let patches = match field {
            "bootstrapPatches" => &self.spec.bootstrap_patches,
            _ => &self.spec.infrastructure_patches,
        };
        let patches = patches.as_deref().unwrap_or_default();
        customization::patch(&mut spec, field, patches, self.claim, self.spec.kubelet.as_ref()).map_err(
            |error| Malformed {
                object: format!("ClusterAPINodeClass {}", self.claim.spec.node_class_ref.name),
                key: format!("spec.{}[{}]", error.field, error.index),
                problem: error.problem,
            },
        )?;
        let labels = fields.texts("spec.template.metadata.labels")?;
        let mut labels: Map<String, Value> = labels
            .into_iter()
            .chain(self.machine_labels()?)
            .map(|(key, value)| (key, value.into()))
            .collect();
        labels.insert(names::CLUSTER_NAME.to_owned(), (*self.cluster.key.name).into());
        // By which those are found that never get a Machine.
        labels.insert(names::MEMBER.to_owned(), "".into());
        let mut annotations = json!(fields.texts("spec.template.metadata.annotations")?);
        for (key, value) in self.annotations().as_object().into_iter().flatten() {
            annotations[key] = value.clone();
        }
        annotations[names::CLONED_FROM_NAME] = template.name.as_str().into();
        annotations[names::CLONED_FROM_KIND] = format!("{}.{}", template.kind, template.group).into();
        let object = json!({
            "apiVersion": served.api_version, "kind": clone.kind,
            "metadata": {
                "name": clone.name, "namespace": &*self.cluster.key.namespace, "labels": labels,
                "annotations": annotations, "ownerReferences": [self.owner()],
            },
            "spec": spec,
        });
        let made = hub.create_or_get(&clone, object).await?;
        self.is_ours(&clone.kind, &made)?;
        Ok(clone)
    }

    /// What the blueprint says of its Machines, and whom this one is for.
    fn annotations(&self) -> Value {
        let mut annotations = json!(self.blueprint.template_annotations);
        annotations[names::NODECLAIM] = self.name().into();
        annotations[names::NODECLAIM_UID] = self.uid().into();
        annotations[names::OWNER] = self.fleet.owner.as_str().into();
        annotations
    }

    /// Until the Machine controller makes the Machine the owner, the Cluster is: nothing outlives it.
    fn owner(&self) -> Value {
        let version = self.fleet.hub.versions().known().unwrap_or_else(|| "v1beta2".to_owned());
        json!({
            "apiVersion": format!("{}/{version}", names::CAPI_GROUP), "kind": "Cluster",
            "name": &*self.cluster.key.name, "uid": self.cluster.uid,
        })
    }

    /// The blueprint's labels, by which health checks and drain rules may select, and none that would make a MachineSet take the Machine
    /// for its own.
    fn machine_labels(&self) -> Result<BTreeMap<String, String>, HubError> {
        let more = &self.fleet.settings.sync_labels;
        let copied = self.blueprint.template_labels.iter().filter(|(key, _)| !is_bookkeeping(key));
        let mut labels: BTreeMap<String, String> = copied.map(|(k, v)| (k.clone(), v.clone())).collect();
        labels.insert(names::CLUSTER_NAME.to_owned(), self.cluster.key.name.to_string());
        labels.insert(names::MEMBER.to_owned(), String::new());
        let adopts = |set: &Scalable, labels: &BTreeMap<String, String>| {
            let selector = set.selector.as_ref().and_then(|selector| selector.to_selector().ok());
            selector.is_some_and(|selector| selector.matches(labels))
        };
        let sets = self.fleet.mirror.sets();
        let taken: Vec<&Arc<Scalable>> = sets.iter().filter(|set| adopts(set, &labels)).collect();
        for selector in taken.into_iter().filter_map(|set| set.selector.as_ref()) {
            // What comes to Nodes is planned with.
            let selects =
                |key: &String| selector.match_labels.as_ref().is_some_and(|all| all.contains_key(key));
            labels.retain(|key, _| comes_to_node(key, more) || key == names::CLUSTER_NAME || !selects(key));
        }
        match sets.iter().find(|set| adopts(set, &labels)) {
            Some(set) => {
                let problem = "selects the Machines that would be made here; it would take them for its own";
                Err(set.malformed("spec.selector", problem).into())
            }
            None => Ok(labels),
        }
    }

    /// A reference in the shape of the version in use.
    async fn reference(&self, to: &Reference) -> Result<Value, HubError> {
        let hub = &self.fleet.hub;
        let ours = hub.versions().own(hub.client()).await?;
        if ours == "v1beta1" {
            let served = hub.versions().resource(hub.client(), &to.group, &to.kind).await?;
            return Ok(json!({
                "apiVersion": served.api_version, "kind": to.kind, "name": to.name,
                "namespace": &*self.cluster.key.namespace,
            }));
        }
        Ok(json!({"apiGroup": to.group, "kind": to.kind, "name": to.name}))
    }

    /// An object of our name that was made for someone else is not ours to use or delete.
    fn is_ours(&self, kind: &str, object: &DynamicObject) -> Result<(), HubError> {
        let uid = object.metadata.annotations.as_ref().and_then(|a| a.get(names::NODECLAIM_UID));
        if uid.map(String::as_str) == Some(self.uid()) {
            return Ok(());
        }
        let problem =
            format!("an object of this name exists that was not made for NodeClaim {}", self.name());
        Err(Fields::of(kind, object).malformed(names::NODECLAIM_UID, problem).into())
    }
}

#[cfg(test)]
mod tests {
    use kube::core::GroupVersionKind;

    use super::*;
    use crate::client::mirror::{TemplateLabels, Watched};
    use crate::fixtures::object;

    #[test]
    fn a_selected_template_is_gone_only_once_templates_were_listed() {
        let class: ClusterAPINodeClass = serde_json::from_value(json!({
            "metadata": {"name": "metal"},
            "spec": {"launchMode": "Machine", "machineTemplateSelector": {
                "apiGroup": "infra.x", "kind": "FakeMachineTemplate", "selector": {}, "bootstrapDataSecretName": "join",
            }},
        }))
        .expect("a NodeClass");
        let (mirror, kind) = (Mirror::default(), ("infra.x".to_owned(), "FakeMachineTemplate".to_owned()));
        let id = ScalableKey::from_annotation("MachineTemplate:fleet/metal.small").expect("a key");
        let told = || no_template(&mirror, Some(&class), &id);
        assert!(told().is_conflict(), "its Cluster is not known");
        let cluster = json!({"metadata": {"name": "c", "namespace": "fleet", "uid": "u"}, "spec": {}});
        mirror.apply(Watched::Cluster, &object(cluster));
        assert!(told().is_conflict(), "nobody has looked");
        mirror.set_listing(kind.clone(), Err("no right".to_owned()));
        assert!(told().is_conflict() && told().to_string().contains("no right"), "{}", told());
        mirror.set_listing(kind, Ok(TemplateLabels::new()));
        assert!(told().is_not_found(), "it was not among them");
        assert!(no_template(&mirror, None, &id).is_not_found(), "its NodeClass is gone");
    }

    #[test]
    fn a_clone_is_not_written_in_another_version_than_its_template_was_read_in() {
        let template = Reference {
            group: "infra.x".to_owned(),
            version: String::new(),
            kind: "FakeMachineTemplate".to_owned(),
            name: "t".to_owned(),
        };
        let found = object(json!({
            "apiVersion": "infra.x/v1beta1", "kind": "FakeMachineTemplate", "metadata": {"name": "t"},
        }));
        let clones =
            |version: &str| ApiResource::from_gvk(&GroupVersionKind::gvk("infra.x", version, "FakeMachine"));
        assert_eq!(same_version(&template, &found, &clones("v1beta1")).ok(), Some("v1beta1"));
        let differs = clones("v1beta2");
        let told = same_version(&template, &found, &differs).expect_err("another version");
        assert!(told.is_conflict(), "{told}");
        assert!(
            told.to_string().contains("it was read in v1beta1, and FakeMachine is served in v1beta2"),
            "{told}"
        );
    }
}
