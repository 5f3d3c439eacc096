//! Whether the accounts we have may do what we will ask of the clusters. Each right is asked for by itself (SelfSubjectAccessReview): that
//! is exact for one resource, and every server answers it. What a NodeClass says of its rights while we run is in
//! `nodeclass::permissions`, and the list of what is needed is the same.

use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::{ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};

use crate::ClusterAPINodeClass;
use crate::client::fields::Reference;
use crate::client::hub::{Hub, HubError};
use crate::client::scalable::{Scalable, ScalableKind};
use crate::instances::offers::takes_part;
use crate::instances::standalone::kind_of_clones;
use crate::instances::templates;
use crate::names::CAPI_GROUP;
use crate::nodeclass::LaunchMode;
use crate::nodeclass::permissions::{DEFINITIONS, Need, needs, needs_of_sets, uses};

/// Something that is asked of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// What is done: `get`, `list`, `watch` and the like.
    pub verbs: Vec<&'static str>,
    /// To what: an API group.
    pub group: String,
    /// To what: a resource, with its subresource after a slash.
    pub resource: String,
    /// In which namespace; in all of them if none is named, or to what is in none.
    pub namespace: Option<String>,
    /// To which object, if it is only one.
    pub name: Option<String>,
    /// Whether nothing works without it.
    pub is_needed: bool,
}

impl Right {
    /// One to all objects of a resource, wherever they are.
    pub fn anywhere(verbs: &[&'static str], group: &str, resource: &str) -> Self {
        Self {
            verbs: verbs.to_vec(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            namespace: None,
            name: None,
            is_needed: true,
        }
    }

    /// The same in one namespace.
    pub fn within(self, namespace: &str) -> Self {
        Self { namespace: Some(namespace.to_owned()), ..self }
    }

    /// The same to one object.
    pub fn named(self, name: &str) -> Self {
        Self { name: Some(name.to_owned()), ..self }
    }

    /// The same, to be done without where it is refused.
    pub fn useful(self) -> Self {
        Self { is_needed: false, ..self }
    }

    fn review(&self, verb: &str) -> SelfSubjectAccessReview {
        let (resource, subresource) = match self.resource.split_once('/') {
            Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
            None => (self.resource.as_str(), None),
        };
        let attributes = ResourceAttributes {
            group: Some(self.group.clone()),
            resource: Some(resource.to_owned()),
            subresource,
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            verb: Some(verb.to_owned()),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        };
        SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() }
    }

    /// Asks a cluster for it.
    pub async fn ask(&self, client: &Client) -> Verdict {
        let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
        let mut missing = Vec::new();
        for verb in &self.verbs {
            match api.create(&PostParams::default(), &self.review(verb)).await {
                Ok(review) if review.status.as_ref().is_some_and(|status| status.allowed) => {}
                Ok(_) => missing.push(*verb),
                Err(error) => return Verdict::Unknown(error.to_string()),
            }
        }
        if missing.is_empty() { Verdict::Granted } else { Verdict::Missing(missing) }
    }

    /// To what it is, in words.
    pub fn object(&self) -> String {
        let dot = if self.group.is_empty() { "" } else { "." };
        let name = self.name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
        let place = self.namespace.as_ref().map(|place| format!(" in namespace {place}")).unwrap_or_default();
        format!("{}{dot}{}{name}{place}", self.resource, self.group)
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verbs.join(", "), self.object())
    }
}

/// What a cluster says of a right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All of it is ours.
    Granted,
    /// These verbs we have not.
    Missing(Vec<&'static str>),
    /// It does not say.
    Unknown(String),
}

/// What we ask of the workload cluster besides what the core asks of it.
pub fn in_workload_cluster() -> Vec<Right> {
    let (group, resource) = (crate::GROUP, "clusterapinodeclasses");
    vec![
        Right::anywhere(&["get"], "", "namespaces").named("kube-system"),
        Right::anywhere(&["list", "watch"], group, resource),
        Right::anywhere(&["patch"], group, &format!("{resource}/status")),
    ]
}

/// What we ask of the workload cluster for the prices of these NodeClasses; what is not told is reckoned.
pub fn for_prices(classes: &[ClusterAPINodeClass]) -> Vec<Right> {
    let mut rights: Vec<Right> = Vec::new();
    for prices in classes.iter().filter_map(|class| class.spec().pricing?.config_map_ref) {
        let right = Right::anywhere(&["get"], "", "configmaps").within(&prices.namespace).named(&prices.name);
        let right = right.useful();
        if !rights.contains(&right) {
            rights.push(right);
        }
    }
    rights
}

/// What we ask of the workload cluster for the conditions that these NodeClasses have nodes repaired by; asked where the core repairs
/// nodes, and without it those conditions count for nothing.
pub fn for_repairs(classes: &[ClusterAPINodeClass]) -> Vec<Right> {
    let named =
        |class: &ClusterAPINodeClass| class.spec().repair_conditions.is_some_and(|all| !all.is_empty());
    let right = classes.iter().any(named).then(|| Right::anywhere(&["patch"], "", "nodes/status").useful());
    right.into_iter().collect()
}

/// The NodeClasses of a cluster.
pub async fn node_classes(workload: &Client) -> Result<Vec<ClusterAPINodeClass>, kube::Error> {
    let api: Api<ClusterAPINodeClass> = Api::all(workload.clone());
    Ok(api.list(&ListParams::default()).await?.items)
}

/// What we ask of the management cluster for these NodeClasses. Which templates they use is looked up there; what may not be looked up
/// is not asked for, and the right to do so is missing.
pub async fn in_management_cluster(
    hub: &Hub,
    classes: &[ClusterAPINodeClass],
) -> Result<Vec<Right>, HubError> {
    let namespace = hub.find_scope().await?.namespace.clone();
    let mut rights = fixed(classes, &namespace);
    let cluster = hub.cluster().await.ok();
    let mut scalables = Vec::new();
    for kind in [ScalableKind::MachineDeployment, ScalableKind::MachineSet] {
        let listed = hub.all(CAPI_GROUP, kind.as_str()).await.unwrap_or_default();
        scalables.extend(listed.iter().filter_map(|object| Scalable::read(kind, object).ok()));
    }
    if let Some(cluster) = &cluster {
        scalables.retain(|scalable| scalable.cluster_name == *cluster.key.name);
    }
    rights.extend(of_sets(classes, &scalables, &namespace));
    let control_plane = cluster.and_then(|cluster| cluster.control_plane);
    for asked in of_templates(classes, &scalables, control_plane.as_ref()) {
        let served = hub.versions().resource(hub.client(), &asked.group, &asked.kind).await;
        let by_name = || ApiResource::from_gvk(&GroupVersionKind::gvk(&asked.group, "", &asked.kind));
        let plural = served.unwrap_or_else(|_| by_name()).plural;
        let right = Right::anywhere(asked.verbs, &asked.group, &plural).within(&namespace);
        rights.push(Right { is_needed: asked.is_needed, ..right });
    }
    Ok(rights)
}

/// What is asked of every management cluster.
fn fixed(classes: &[ClusterAPINodeClass], namespace: &str) -> Vec<Right> {
    let mut modes: BTreeSet<LaunchMode> =
        classes.iter().map(|class| class.spec().launch_mode.unwrap_or_default()).collect();
    if modes.is_empty() {
        modes.insert(LaunchMode::default());
    }
    let mut rights: Vec<Right> = Vec::new();
    for mode in modes {
        let needed = needs(mode, std::iter::empty()).into_iter().map(|need| (need, true));
        let useful = uses(mode, BTreeSet::new(), None).into_iter().map(|need| (need, false));
        for ((verbs, group, resource), is_needed) in needed.chain(useful) {
            let right = Right { is_needed, ..Right::anywhere(verbs, &group, resource) };
            // Definitions are in no namespace.
            let right = if resource == DEFINITIONS { right } else { right.within(namespace) };
            if !rights.contains(&right) {
                rights.push(right);
            }
        }
    }
    rights
}

/// What is asked of MachineSets that are scaled themselves, if any are.
fn of_sets(classes: &[ClusterAPINodeClass], scalables: &[Scalable], namespace: &str) -> Vec<Right> {
    let scaled = |scalable: &Scalable| {
        let mut scaling = classes.iter().filter(|class| !class.makes_machines());
        scalable.id.kind == ScalableKind::MachineSet
            && scalable.controlled_by.is_none()
            && scaling.any(|class| takes_part(class, scalable))
    };
    if !scalables.iter().any(scaled) {
        return Vec::new();
    }
    let right = |(verbs, group, resource): Need| Right::anywhere(verbs, &group, resource).within(namespace);
    needs_of_sets().into_iter().map(right).collect()
}

/// Something that is asked of a kind that a provider of Cluster API brings.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Asked {
    group: String,
    kind: String,
    verbs: &'static [&'static str],
    is_needed: bool,
}

/// What is asked of templates, of what is cloned from them, and of the control plane.
fn of_templates(
    classes: &[ClusterAPINodeClass],
    scalables: &[Scalable],
    control_plane: Option<&Reference>,
) -> BTreeSet<Asked> {
    let mut all = BTreeSet::new();
    let mut ask = |group: &str, kind: &str, verbs: &'static [&'static str], is_needed: bool| {
        all.insert(Asked { group: group.to_owned(), kind: kind.to_owned(), verbs, is_needed });
    };
    for class in classes {
        let theirs = scalables.iter().filter(|scalable| takes_part(class, scalable));
        let makes_machines = class.makes_machines();
        let mut used: Vec<Reference> =
            theirs.clone().filter_map(|scalable| scalable.infrastructure.clone()).collect();
        if makes_machines {
            used.extend(theirs.filter_map(|scalable| scalable.bootstrap.clone()));
            used.extend(templates::all_references(class));
        }
        for template in &used {
            let clones = kind_of_clones(template);
            if makes_machines {
                ask(&template.group, &template.kind, &["get"], true);
                ask(&template.group, clones, &["get", "create", "delete"], true);
                ask(&template.group, clones, &["list"], false);
            } else {
                // Capacity, ids a little sooner, and whether something is left of a Machine that is gone.
                ask(&template.group, &template.kind, &["get"], false);
                ask(&template.group, clones, &["get"], false);
            }
        }
        if let Some((group, kind)) = templates::kind(class) {
            ask(&group, &kind, &["list"], true);
        }
        if let Some(plane) = control_plane.filter(|_| makes_machines) {
            ask(&plane.group, &plane.kind, &["get"], false);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::deployment;

    fn class(spec: Value) -> ClusterAPINodeClass {
        serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": spec})).expect("a NodeClass")
    }

    /// A server that grants nothing but reading.
    fn reader() -> Client {
        let answer = |request: http::Request<Body>| async move {
            let body = request.into_body().collect_bytes().await.expect("a review");
            let mut review: Value = serde_json::from_slice(&body).expect("JSON");
            let verb = review["spec"]["resourceAttributes"]["verb"].as_str().unwrap_or_default();
            let allowed = ["get", "list", "watch"].contains(&verb);
            review["status"] = json!({"allowed": allowed});
            let body = Body::from(review.to_string().into_bytes());
            Ok::<_, std::convert::Infallible>(http::Response::new(body))
        };
        Client::new(tower::service_fn(answer), "default")
    }

    #[tokio::test]
    async fn each_verb_that_is_missing_is_named() {
        let right = Right::anywhere(&["get", "patch", "delete"], CAPI_GROUP, "machines").within("fleet");
        assert_eq!(right.ask(&reader()).await, Verdict::Missing(vec!["patch", "delete"]));
        assert_eq!(right.to_string(), "get, patch, delete machines.cluster.x-k8s.io in namespace fleet");
        let status = right.clone().named("m").review("get").spec.resource_attributes.expect("attributes");
        assert_eq!((status.name.as_deref(), status.namespace.as_deref()), (Some("m"), Some("fleet")));
        let read = Right::anywhere(&["get", "list"], "", "nodes");
        assert_eq!(
            (read.ask(&reader()).await, read.to_string()),
            (Verdict::Granted, "get, list nodes".to_owned())
        );
    }

    #[test]
    fn the_config_map_that_a_node_class_names_for_prices_is_useful_to_get() {
        let priced =
            || class(json!({"pricing": {"configMapRef": {"namespace": "kube-system", "name": "prices"}}}));
        let of = |classes: &[ClusterAPINodeClass]| -> Vec<String> {
            let rights = for_prices(classes);
            assert!(rights.iter().all(|right| !right.is_needed));
            rights.iter().map(ToString::to_string).collect()
        };
        assert!(of(&[class(json!({}))]).is_empty());
        assert_eq!(of(&[priced(), priced()]), ["get configmaps prices in namespace kube-system"]);
    }

    #[test]
    fn a_subresource_is_asked_for_as_one() {
        let review = Right::anywhere(&["patch"], CAPI_GROUP, "machinedeployments/scale").review("patch");
        let asked = review.spec.resource_attributes.expect("attributes");
        assert_eq!(asked.resource.as_deref(), Some("machinedeployments"));
        assert_eq!(asked.subresource.as_deref(), Some("scale"));
    }

    #[test]
    fn what_is_asked_follows_the_launch_modes_of_the_node_classes() {
        let scales = |classes: &[ClusterAPINodeClass]| {
            fixed(classes, "fleet").iter().any(|right| right.resource == "machinedeployments/scale")
        };
        let machine = || class(json!({"launchMode": "Machine"}));
        assert!(scales(&[]) && scales(&[class(json!({})), machine()]) && !scales(&[machine()]));
        let creates = |classes: &[ClusterAPINodeClass]| {
            fixed(classes, "fleet").iter().any(|right| right.verbs == ["create"] && right.is_needed)
        };
        assert!(creates(&[machine()]) && !creates(&[class(json!({}))]));
        let all = fixed(&[class(json!({})), machine()], "fleet");
        let distinct: BTreeSet<&Right> = all.iter().collect();
        assert_eq!(all.len(), distinct.len());
        let definitions = all.iter().find(|right| right.resource == DEFINITIONS).expect("definitions");
        assert_eq!((definitions.namespace.as_ref(), definitions.is_needed), (None, false));
    }

    #[test]
    fn a_machine_set_that_is_scaled_itself_has_its_own_rights_asked_for() {
        let set = |owner: Option<&str>| {
            let mut set = deployment("s", &[]);
            set.id.kind = ScalableKind::MachineSet;
            set.controlled_by = owner.map(str::to_owned);
            set
        };
        let told = |spec: Value, scalable: Scalable| -> Vec<String> {
            let rights = of_sets(&[class(spec)], &[scalable], "fleet");
            assert!(rights.iter().all(|right| right.is_needed));
            rights.iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            told(json!({}), set(None)),
            [
                "patch machinesets.cluster.x-k8s.io in namespace fleet",
                "patch machinesets/scale.cluster.x-k8s.io in namespace fleet",
            ]
        );
        let none = Vec::<String>::new();
        assert_eq!(told(json!({}), set(Some("m"))), none, "its MachineDeployment is scaled");
        assert_eq!(told(json!({}), deployment("m", &[])), none);
        assert_eq!(told(json!({"launchMode": "Machine"}), set(None)), none, "nothing is scaled");
    }

    #[test]
    fn templates_are_read_and_those_of_machine_mode_cloned() {
        let resource = deployment("m", &[]);
        let told = |spec: Value| -> Vec<String> {
            of_templates(&[class(spec)], std::slice::from_ref(&resource), None)
                .iter()
                .map(|asked| format!("{} {} {}", asked.verbs.join(","), asked.kind, asked.is_needed))
                .collect()
        };
        assert_eq!(told(json!({})), ["get FakeMachine false", "get FakeMachineTemplate false"]);
        assert_eq!(
            told(json!({"launchMode": "Machine"})),
            ["get,create,delete FakeMachine true", "list FakeMachine false", "get FakeMachineTemplate true"]
        );
        let selector = json!({
            "apiGroup": "infra.x", "kind": "FakeMachineTemplate", "selector": {}, "bootstrapDataSecretName": "s",
        });
        let selects = told(json!({"launchMode": "Machine", "machineTemplateSelector": selector}));
        assert!(selects.contains(&"list FakeMachineTemplate true".to_owned()), "{selects:?}");
        assert!(selects.contains(&"get,create,delete FakeMachine true".to_owned()), "{selects:?}");
    }
}
