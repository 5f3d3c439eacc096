//! Blueprints that a NodeClass names or selects itself, in place of MachineDeployments: pairs of templates that Machines of their own
//! are made from. They look like a MachineDeployment that has no replicas: what a node is and how it is made is told by the same code.
//! Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_runtime::object_key::ObjectKey;

use crate::client::cluster::Cluster;
use crate::client::fields::{Malformed, Reference};
use crate::client::mirror::Mirror;
use crate::client::scalable::{Scalable, ScalableKey, ScalableKind};
use crate::names;
use crate::nodeclass::{ClusterAPINodeClass, MachineTemplate, TemplateReference};

/// The blueprints that a NodeClass names or selects; none until the Cluster is known, nor if it is for another.
pub(crate) fn blueprints(class: &ClusterAPINodeClass, mirror: &Mirror) -> Vec<Arc<Scalable>> {
    let ours = mirror.cluster().filter(|ours| class.is_for(&ours.key.namespace, &ours.key.name));
    let Some(cluster) = ours else { return Vec::new() };
    let mut templates = class.machine_templates().to_vec();
    for template in selected(class, mirror, &cluster.key.name) {
        // What it says of one by name goes before what it says of all.
        if !templates.iter().any(|named| named.name == template.name) {
            templates.push(template);
        }
    }
    templates.iter().map(|template| Arc::new(blueprint(class, template, mirror, &cluster))).collect()
}

/// The templates that a NodeClass selects, as if it had named them. Several Clusters may share a namespace, and nodes of a template that
/// says it is another one's would join that, or none.
fn selected(class: &ClusterAPINodeClass, mirror: &Mirror, cluster: &str) -> Vec<MachineTemplate> {
    let Some(wanted) = class.machine_template_selector() else { return Vec::new() };
    let listing = mirror.listing(&wanted.api_group, &wanted.kind);
    let Some(templates) = listing.as_ref().and_then(|listing| listing.templates.as_ref()) else {
        return Vec::new();
    };
    // A selector that means nothing selects nothing.
    let Ok(selector) = wanted.selector.to_selector() else { return Vec::new() };
    let is_anothers =
        |labels: &BTreeMap<_, _>| labels.get(names::CLUSTER_NAME).is_some_and(|named| named != cluster);
    let selected = templates.iter().filter(|(_, labels)| selector.matches(labels) && !is_anothers(labels));
    selected.map(|(name, _)| wanted.naming(name)).collect()
}

/// Why it is not known which templates a NodeClass selects: until they could be listed once, none of them is known not to be there.
pub(crate) fn unlisted(class: &ClusterAPINodeClass, mirror: &Mirror) -> Option<String> {
    let (group, kind) = kind(class)?;
    let listing = mirror.listing(&group, &kind);
    if listing.as_ref().is_some_and(|listing| listing.templates.is_some()) {
        return None;
    }
    let why = listing.and_then(|listing| listing.trouble.clone());
    let why = why.unwrap_or_else(|| "they have not been listed yet".to_owned());
    Some(format!("the templates that ClusterAPINodeClass {} selects are not known yet: {why}", class.name()))
}

/// What keeps a NodeClass from selecting templates.
pub(crate) fn trouble(class: &ClusterAPINodeClass, mirror: &Mirror) -> Option<Malformed> {
    let wanted = class.machine_template_selector()?;
    let malformed = |key: &str, problem: String| Malformed {
        object: format!("ClusterAPINodeClass {}", class.name()),
        key: format!("spec.machineTemplateSelector{key}"),
        problem,
    };
    if let Err(error) = wanted.selector.to_selector() {
        return Some(malformed(".selector", error.to_string()));
    }
    let listing = mirror.listing(&wanted.api_group, &wanted.kind)?;
    listing.trouble.clone().map(|trouble| malformed("", trouble))
}

/// The kind of templates that a NodeClass selects from, by group and kind.
pub(crate) fn kind(class: &ClusterAPINodeClass) -> Option<(String, String)> {
    class.machine_template_selector().map(|wanted| (wanted.api_group.clone(), wanted.kind.clone()))
}

/// The infrastructure templates that a NodeClass names.
pub(crate) fn references(class: &ClusterAPINodeClass) -> impl Iterator<Item = Reference> {
    class.machine_templates().iter().map(|template| reference(&template.infrastructure_ref))
}

/// All templates that a NodeClass names, and one that stands for those that it selects.
pub(crate) fn all_references(class: &ClusterAPINodeClass) -> Vec<Reference> {
    let selected = class.machine_template_selector().map(|wanted| wanted.naming(""));
    let templates = class.machine_templates().iter().cloned().chain(selected);
    templates
        .flat_map(|template| [Some(template.infrastructure_ref), template.bootstrap_ref])
        .flatten()
        .map(|template| reference(&template))
        .collect()
}

/// The name of a blueprint: that of its NodeClass, and its own. Both may have dots: of two that share a name, one would be launched from
/// in place of the other.
fn key(class: &ClusterAPINodeClass, template: &MachineTemplate, cluster: &Cluster) -> ScalableKey {
    let name = format!("{}.{}", class.name(), template.name.replace('.', "_"));
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
    annotations
        .entry(names::INSTANCE_TYPE.to_owned())
        .or_insert_with(|| names::label_value(&template.name).into());
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
        replicas_are_anothers: false,
        replicas: 0,
        selector: None,
        template_labels: template.labels.clone().unwrap_or_default(),
        template_annotations: Default::default(),
        template_spec: Default::default(),
        read_in: None,
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
    use crate::client::mirror::{TemplateLabels, Watched};
    use crate::client::settings::Settings;
    use crate::client::template::Template;
    use crate::fixtures::object;
    use crate::instances::offers::Market;
    use crate::instancetypes::price::Told;

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

    /// One that also selects the templates of a pool.
    fn selecting(name: &str) -> ClusterAPINodeClass {
        let mut class = class("Machine");
        class.metadata.name = Some(name.to_owned());
        let spec = class.spec.as_mut().expect("a spec");
        spec.machine_template_selector = serde_json::from_value(json!({
            "apiGroup": "infra.x", "kind": "FakeMachineTemplate", "selector": {"matchLabels": {"pool": "p"}},
            "bootstrapDataSecretName": "join",
        }))
        .expect("a selector");
        class
    }

    /// Templates and the pools that they are labelled with.
    fn labelled(templates: &[(&str, &str)]) -> TemplateLabels {
        let mut labels = TemplateLabels::new();
        for (name, pool) in templates {
            labels.entry((*name).to_owned()).or_default().insert("pool".to_owned(), (*pool).to_owned());
        }
        labels
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
    fn templates_that_a_node_class_selects_are_blueprints_unless_it_names_them() {
        let (class, mirror) = (selecting("metal"), mirror());
        let kind = || kind(&class).expect("a kind");
        let names = || -> Vec<String> {
            blueprints(&class, &mirror).iter().map(|found| found.id.key.name.to_string()).collect()
        };
        assert_eq!(names(), ["metal.large"], "nobody has looked");
        mirror.set_listing(kind(), Ok(labelled(&[("large", "p"), ("small", "p"), ("other", "q")])));
        assert_eq!(names(), ["metal.large", "metal.small"]);
        let small = &blueprints(&class, &mirror)[1];
        assert_eq!(small.annotations[names::INSTANCE_TYPE], "small");
        assert_eq!(small.bootstrap_secret.as_deref(), Some("join"));
        mirror.set_listing(kind(), Err("no right".to_owned()));
        assert_eq!(names(), ["metal.large", "metal.small"], "what cannot be listed is not gone");
        let told = trouble(&class, &mirror).expect("trouble").to_string();
        assert_eq!(told, "ClusterAPINodeClass metal: spec.machineTemplateSelector: no right");
    }

    #[test]
    fn a_template_that_says_it_is_another_clusters_is_not_selected() {
        let (class, mirror) = (selecting("metal"), mirror());
        let mut templates = labelled(&[("anybodys", "p"), ("ours", "p"), ("theirs", "p")]);
        for (name, cluster) in [("ours", "c"), ("theirs", "d")] {
            let labels = templates.get_mut(name).expect("labels");
            labels.insert(names::CLUSTER_NAME.to_owned(), cluster.to_owned());
        }
        mirror.set_listing(kind(&class).expect("a kind"), Ok(templates));
        let found = blueprints(&class, &mirror);
        let names: Vec<&str> = found.iter().map(|found| &*found.id.key.name).collect();
        assert_eq!(names, ["metal.large", "metal.anybodys", "metal.ours"]);
    }

    #[test]
    fn templates_that_could_never_be_listed_are_not_known_to_be_gone() {
        let (class, mirror) = (selecting("metal"), mirror());
        assert_eq!(unlisted(&self::class("Machine"), &mirror), None, "nothing is selected");
        let told = || unlisted(&class, &mirror).expect("unknown");
        assert!(told().ends_with("selects are not known yet: they have not been listed yet"), "{}", told());
        let kind = || kind(&class).expect("a kind");
        mirror.set_listing(kind(), Err("no right".to_owned()));
        assert!(told().ends_with("not known yet: no right"), "{}", told());
        mirror.set_listing(kind(), Ok(TemplateLabels::new()));
        assert_eq!(unlisted(&class, &mirror), None, "there are none");
        mirror.set_listing(kind(), Err("away".to_owned()));
        assert_eq!(unlisted(&class, &mirror), None, "those that were there are known");
    }

    #[test]
    fn a_selected_template_that_cannot_be_read_is_left_out_by_name() {
        let (class, mirror) = (selecting("metal"), mirror());
        mirror.set_listing(kind(&class).expect("a kind"), Ok(labelled(&[("odd", "p")])));
        let to_odd = reference(&TemplateReference {
            api_group: "infra.x".to_owned(),
            kind: "FakeMachineTemplate".to_owned(),
            name: "odd".to_owned(),
        });
        mirror.set_template(to_odd, Err("status.capacity: is not a map".to_owned()));
        let market = Market {
            mirror: &mirror,
            settings: &Settings::default(),
            learnt: Default::default(),
            spot: Default::default(),
            carried: Default::default(),
            told: Told::default(),
            silent: false,
            room: &|_| None,
            running: &|_| 0,
            failed: &|_, _| None,
        };
        let excluded: Vec<String> = market.offers(&class).excluded.iter().map(ToString::to_string).collect();
        let told = excluded.iter().find(|told| told.contains("metal.odd")).expect("it is told");
        assert!(told.ends_with("the infrastructure template: status.capacity: is not a map"), "{told}");
    }

    #[test]
    fn templates_whose_names_have_dots_are_not_taken_for_those_of_another_node_class() {
        let (one, other, mirror) = (selecting("metal"), selecting("metal.small"), mirror());
        let there = labelled(&[("small.v1", "p"), ("v1", "p")]);
        mirror.set_listing(kind(&one).expect("a kind"), Ok(there));
        let found: Vec<_> = [&one, &other].iter().flat_map(|class| blueprints(class, &mirror)).collect();
        let ids: std::collections::BTreeSet<_> = found.iter().map(|found| found.id.clone()).collect();
        assert_eq!(ids.len(), found.len(), "{ids:?}");
        let dotted = found.iter().find(|found| &*found.id.key.name == "metal.small_v1").expect("a blueprint");
        assert_eq!(dotted.annotations[names::INSTANCE_TYPE], "small.v1", "the type has the template's name");
        let template = dotted.infrastructure.as_ref().map(|template| template.name.as_str());
        assert_eq!(template, Some("small.v1"));
    }

    #[test]
    fn templates_are_for_machines_of_their_own_only() {
        assert!(blueprints(&class("MachineDeployment"), &mirror()).is_empty());
    }
}
