//! Blueprints that a NodeClass names itself, in place of MachineDeployments: pairs of templates that Machines of their own are made from.
//! They look like a MachineDeployment that has no replicas: what a node is and how it is made is told by the same code. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use karpenter_runtime::object_key::ObjectKey;

use crate::client::cluster::Cluster;
use crate::client::fields::Reference;
use crate::client::mirror::Mirror;
use crate::client::scalable::{Scalable, ScalableKey, ScalableKind};
use crate::names;
use crate::nodeclass::{ClusterAPINodeClass, MachineTemplate, TemplateReference};

/// The blueprints that a NodeClass names; none until its Cluster is known.
pub fn blueprints(class: &ClusterAPINodeClass, mirror: &Mirror) -> Vec<Arc<Scalable>> {
    let Some(cluster) = mirror.cluster() else { return Vec::new() };
    let templates = class.machine_templates().iter();
    templates.map(|template| Arc::new(blueprint(class, template, mirror, &cluster))).collect()
}

/// The infrastructure templates that a NodeClass names.
pub fn references(class: &ClusterAPINodeClass) -> impl Iterator<Item = Reference> {
    class.machine_templates().iter().map(|template| reference(&template.infrastructure_ref))
}

/// The name of a blueprint: that of its NodeClass, and its own.
fn key(class: &ClusterAPINodeClass, template: &MachineTemplate, cluster: &Cluster) -> ScalableKey {
    let name = format!("{}.{}", class.name(), template.name);
    ScalableKey {
        kind: ScalableKind::MachineTemplate,
        key: ObjectKey::namespaced(cluster.key.namespace.clone(), name.as_str()),
    }
}

fn blueprint(
    class: &ClusterAPINodeClass,
    template: &MachineTemplate,
    mirror: &Mirror,
    cluster: &Cluster,
) -> Scalable {
    let infrastructure = reference(&template.infrastructure_ref);
    let found = mirror.template(&infrastructure);
    let found = found.as_ref().and_then(|found| found.as_ref().as_ref().ok());
    let mut annotations = found.map(|found| found.annotations.clone()).unwrap_or_default();
    annotations.entry(names::INSTANCE_TYPE.to_owned()).or_insert_with(|| template.name.clone());
    Scalable {
        id: key(class, template, cluster),
        uid: String::new(),
        resource_version: String::new(),
        created: Timestamp::MIN,
        deleting: false,
        labels: Default::default(),
        annotations,
        cluster_name: cluster.key.name.to_string(),
        controlled_by: None,
        replicas: 0,
        selector: None,
        template_labels: template.labels.clone().unwrap_or_default(),
        failure_domain: None,
        failure_domains: template.failure_domains.clone().unwrap_or_default(),
        version: template.version.clone(),
        taints: Vec::new(),
        infrastructure: Some(infrastructure),
        bootstrap: template.bootstrap_ref.as_ref().map(reference),
        bootstrap_secret: template.bootstrap_data_secret_name.clone(),
        on_delete: false,
        rollout_paused: false,
        rollout_after: None,
        conditions: Vec::new(),
        replicas_set_by: None,
    }
}

fn reference(to: &TemplateReference) -> Reference {
    Reference {
        group: to.api_group.clone(),
        version: String::new(),
        kind: to.kind.clone(),
        name: to.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::client::mirror::Watched;
    use crate::client::template::Template;
    use crate::fixtures::object;

    fn class(launch_mode: &str) -> ClusterAPINodeClass {
        serde_json::from_value(json!({
            "metadata": {"name": "metal"},
            "spec": {"launchMode": launch_mode, "machineTemplates": [{
                "name": "large", "version": "v1.36.0", "failureDomains": ["a"],
                "infrastructureRef": {"apiGroup": "infra.x", "kind": "FakeMachineTemplate", "name": "t"},
                "bootstrapRef": {"apiGroup": "boot.x", "kind": "FakeConfigTemplate", "name": "b"},
            }]},
        }))
        .expect("a NodeClass")
    }

    fn mirror() -> Mirror {
        let mirror = Mirror::default();
        let cluster = json!({"metadata": {"name": "c", "namespace": "fleet", "uid": "u"}, "spec": {}});
        mirror.apply(Watched::Cluster, &object(cluster));
        mirror
    }

    #[test]
    fn templates_that_a_node_class_names_are_blueprints_of_its_cluster() {
        let (class, mirror) = (class("Machine"), mirror());
        assert!(blueprints(&class, &Mirror::default()).is_empty(), "its Cluster is not known");
        let found = blueprints(&class, &mirror);
        let [blueprint] = found.as_slice() else { panic!("one blueprint: {found:?}") };
        assert_eq!(blueprint.id.to_string(), "MachineTemplate fleet/metal.large");
        assert_eq!(ScalableKey::from_annotation(&blueprint.id.to_annotation()).as_ref(), Some(&blueprint.id));
        assert_eq!(blueprint.annotations[names::INSTANCE_TYPE], "large");
        let bootstrap = blueprint.bootstrap.as_ref().map(ToString::to_string);
        assert_eq!(bootstrap.as_deref(), Some("FakeConfigTemplate b"));
        let annotations = [(names::PRICE.to_owned(), "0.5".to_owned())];
        let template = Template { annotations: annotations.into(), ..Template::default() };
        let reference = references(&class).next().expect("a reference");
        mirror.set_template(reference, Ok(template));
        assert_eq!(
            blueprints(&class, &mirror)[0].annotations[names::PRICE],
            "0.5",
            "as a MachineDeployment's"
        );
    }

    #[test]
    fn templates_are_for_machines_of_their_own_only() {
        assert!(blueprints(&class("MachineDeployment"), &mirror()).is_empty());
    }
}
