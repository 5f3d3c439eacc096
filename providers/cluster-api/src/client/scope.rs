//! Which Cluster of the management cluster is ours: the one that was named, else the one that the Nodes of the workload cluster say they
//! belong to, else the one that NodeClasses refer to, else the only one there is. Found out when the management cluster answers, and once
//! and for all: another Cluster's Machines are not ours.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use k8s_openapi::api::core::v1::Node;
use karpenter_runtime::object_key::ObjectKey;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client};

use super::settings::Settings;
use super::versions::{VersionError, Versions};
use crate::names::{CAPI_GROUP, CLUSTER_NAME, CLUSTER_NAMESPACE};
use crate::nodeclass::ClusterAPINodeClass;

/// How many Nodes are asked which Cluster they belong to; all of a cluster say the same.
const NODES: u32 = 50;

/// Which Cluster is ours.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Scope {
    pub(crate) namespace: String,
    pub(crate) cluster: String,
}

/// Why it is not known which Cluster is ours.
#[derive(Debug, thiserror::Error)]
pub enum ScopeError {
    /// The management cluster has none.
    #[error(
        "no Cluster {wanted} in the management cluster; set CLUSTER_NAME and CLUSTER_NAMESPACE to the one this cluster is"
    )]
    NoCluster {
        /// What was looked for.
        wanted: String,
    },
    /// It has several, and which is ours was not said.
    #[error(
        "the management cluster has several Clusters ({0}); set CLUSTER_NAME and CLUSTER_NAMESPACE to the one this cluster is"
    )]
    WhichCluster(String),
    /// It has one, and that is another cluster's.
    #[error(
        "the Nodes or NodeClasses of this cluster say that it is Cluster {told}, and the management cluster has only {there}; is it the right one? CLUSTER_NAME and CLUSTER_NAMESPACE overrule them"
    )]
    AnotherCluster {
        /// What Nodes, or else NodeClasses, say.
        told: String,
        /// The only one there is.
        there: String,
    },
    /// It serves no version we can read.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// It could not be asked.
    #[error("listing the Clusters of the management cluster")]
    Unreachable(#[source] Box<kube::Error>),
    /// The workload cluster could not be asked.
    #[error("asking the Nodes of this cluster which Cluster they belong to")]
    NodesUnknown(#[source] Box<kube::Error>),
    /// The workload cluster could not be asked for its NodeClasses.
    #[error("asking the NodeClasses of this cluster which Cluster they are for")]
    NodeClassesUnknown(#[source] Box<kube::Error>),
}

/// What was said about our Cluster, and which it is once that is known.
#[derive(Default)]
pub struct Ours {
    name: Option<String>,
    namespace: Option<String>,
    /// The cluster whose Nodes and NodeClasses know.
    workload: Option<Client>,
    found: OnceLock<Scope>,
}

impl std::fmt::Debug for Ours {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ours")
            .field("name", &self.name)
            .field("namespace", &self.namespace)
            .field("found", &self.found)
            .finish_non_exhaustive()
    }
}

impl Ours {
    /// As the settings say.
    pub fn new(settings: &Settings) -> Self {
        let (name, namespace) = (settings.cluster_name.clone(), settings.cluster_namespace.clone());
        let found = OnceLock::new();
        if let (Some(cluster), Some(namespace)) = (&name, &namespace) {
            // Nobody has set it before.
            let _ = found.set(Scope { namespace: namespace.clone(), cluster: cluster.clone() });
        }
        Self { name, namespace, workload: None, found }
    }

    /// Of which nothing is left to find out.
    pub(crate) fn is(scope: Scope) -> Self {
        Self { found: OnceLock::from(scope), ..Self::default() }
    }

    /// The same, and what is not said is asked of the Nodes and NodeClasses of this cluster.
    pub fn asking(self, workload: Client) -> Self {
        Self { workload: Some(workload), ..self }
    }

    /// Which it is, if that is known.
    pub(crate) fn known(&self) -> Option<&Scope> {
        self.found.get()
    }

    /// Which it is; both clusters are asked if that is not known.
    pub(crate) async fn find(&self, client: &Client, versions: &Versions) -> Result<&Scope, ScopeError> {
        if let Some(known) = self.known() {
            return Ok(known);
        }
        let told = match self.told_by_nodes().await? {
            None => self.told_by_node_classes().await?,
            by_nodes => by_nodes,
        };
        let resource = versions.resource(client, CAPI_GROUP, "Cluster").await?;
        let api: Api<DynamicObject> = match &self.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let there = match api.list(&ListParams::default()).await {
            Ok(clusters) => {
                let wanted = |key: &ObjectKey| self.name.as_deref().is_none_or(|name| name == &*key.name);
                let keys = clusters.items.iter().map(ObjectKey::of).filter(wanted);
                let mut all: Vec<Scope> = keys
                    .map(|key| Scope { namespace: key.namespace.to_string(), cluster: key.name.to_string() })
                    .collect();
                all.sort();
                Some(all)
            }
            // Whoever may not list them all may be told which one to read.
            Err(kube::Error::Api(status)) if status.code == 403 && told.is_some() => None,
            Err(error) => return Err(ScopeError::Unreachable(Box::new(error))),
        };
        let scope = choose(there.as_deref(), told, self.name.as_deref().unwrap_or_default())?;
        Ok(self.found.get_or_init(|| scope))
    }

    /// The Cluster that Nodes say they belong to: Cluster API writes it on each. `None` where none says, or they do not agree.
    async fn told_by_nodes(&self) -> Result<Option<Scope>, ScopeError> {
        let Some(workload) = &self.workload else { return Ok(None) };
        let listed = Api::<Node>::all(workload.clone()).list(&ListParams::default().limit(NODES)).await;
        let listed = listed.map_err(|error| ScopeError::NodesUnknown(Box::new(error)))?;
        Ok(self.agreed(listed.items.iter().filter_map(belongs_to)))
    }

    /// The Cluster that NodeClasses are for. `None` where none says, or they do not agree.
    async fn told_by_node_classes(&self) -> Result<Option<Scope>, ScopeError> {
        let Some(workload) = &self.workload else { return Ok(None) };
        let listed = Api::<ClusterAPINodeClass>::all(workload.clone()).list(&ListParams::default()).await;
        let classes = match listed {
            Ok(listed) => listed.items,
            // Their kind is not defined yet.
            Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
            Err(error) => return Err(ScopeError::NodeClassesUnknown(Box::new(error))),
        };
        Ok(self.agreed(classes.iter().filter_map(is_for)))
    }

    /// The one that all of them say, of those that go with what was said about ours.
    pub(crate) fn agreed(&self, told: impl Iterator<Item = Scope>) -> Option<Scope> {
        let agrees = |scope: &Scope| {
            self.name.as_ref().is_none_or(|name| *name == scope.cluster)
                && self.namespace.as_ref().is_none_or(|namespace| *namespace == scope.namespace)
        };
        let told: BTreeSet<Scope> = told.filter(agrees).collect();
        let mut told = told.into_iter();
        told.next().filter(|_| told.next().is_none())
    }
}

/// The Cluster a Node says it belongs to.
pub(crate) fn belongs_to(node: &Node) -> Option<Scope> {
    let annotations = node.metadata.annotations.as_ref()?;
    let text = |key: &str| annotations.get(key).filter(|text| !text.is_empty()).cloned();
    Some(Scope { namespace: text(CLUSTER_NAMESPACE)?, cluster: text(CLUSTER_NAME)? })
}

/// The Cluster a NodeClass refers to.
pub(crate) fn is_for(class: &ClusterAPINodeClass) -> Option<Scope> {
    let named = class.spec.as_ref()?.cluster_ref.as_ref()?;
    Some(Scope { namespace: named.namespace.clone(), cluster: named.name.clone() })
}

/// Which Cluster is ours, of those that are there (unless nobody may say which), by what Nodes or NodeClasses say. A Cluster that Nodes do
/// not belong to is not taken for theirs because it is the only one.
fn choose(there: Option<&[Scope]>, told: Option<Scope>, wanted: &str) -> Result<Scope, ScopeError> {
    let text = |scope: &Scope| format!("{}/{}", scope.namespace, scope.cluster);
    match (there, told) {
        (None, Some(told)) => Ok(told),
        (None | Some([]), None) => Err(ScopeError::NoCluster { wanted: wanted.to_owned() }),
        (Some([]), Some(told)) => Err(ScopeError::NoCluster { wanted: text(&told) }),
        (Some(all), Some(told)) if all.contains(&told) => Ok(told),
        (Some([only]), Some(told)) => {
            Err(ScopeError::AnotherCluster { told: text(&told), there: text(only) })
        }
        (Some([only]), None) => Ok(only.clone()),
        (Some(several), _) => {
            let names: Vec<String> = several.iter().take(5).map(text).collect();
            Err(ScopeError::WhichCluster(names.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn scope(namespace: &str, cluster: &str) -> Scope {
        Scope { namespace: namespace.to_owned(), cluster: cluster.to_owned() }
    }

    #[test]
    fn of_several_clusters_the_one_that_nodes_belong_to_is_ours() {
        let there = [scope("fleet", "a"), scope("fleet", "b")];
        assert_eq!(choose(Some(&there), Some(scope("fleet", "b")), "").expect("ours"), scope("fleet", "b"));
        assert!(matches!(choose(Some(&there), None, ""), Err(ScopeError::WhichCluster(_))));
        let elsewhere = choose(Some(&there), Some(scope("other", "b")), "");
        assert!(matches!(elsewhere, Err(ScopeError::WhichCluster(_))), "none of those is it");
        assert_eq!(choose(None, Some(scope("fleet", "b")), "").expect("ours"), scope("fleet", "b"));
    }

    #[test]
    fn the_only_cluster_is_not_ours_if_nodes_belong_to_another() {
        let there = [scope("fleet", "staging")];
        assert_eq!(choose(Some(&there), None, "").expect("ours"), there[0]);
        let error = choose(Some(&there), Some(scope("fleet", "prod")), "").expect_err("not ours").to_string();
        assert!(error.contains("fleet/prod") && error.contains("fleet/staging"), "{error}");
    }

    #[test]
    fn node_classes_say_which_cluster_is_ours_if_they_agree_with_each_other_and_with_what_was_set() {
        let class = |spec: serde_json::Value| -> ClusterAPINodeClass {
            serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": spec})).expect("a NodeClass")
        };
        let of = |name: &str| class(json!({"clusterRef": {"name": name, "namespace": "fleet"}}));
        let told =
            |ours: &Ours, classes: &[ClusterAPINodeClass]| ours.agreed(classes.iter().filter_map(is_for));
        let anything = Ours::default();
        assert_eq!(told(&anything, &[of("a"), class(json!({})), of("a")]), Some(scope("fleet", "a")));
        assert_eq!(told(&anything, &[of("a"), of("b")]), None);
        let named = Ours { name: Some("b".to_owned()), ..Ours::default() };
        assert_eq!(told(&named, &[of("a"), of("b")]), Some(scope("fleet", "b")));
    }

    #[test]
    fn a_node_belongs_to_a_cluster_if_it_names_it_in_full() {
        let node = |annotations: serde_json::Value| -> Node {
            serde_json::from_value(json!({"metadata": {"annotations": annotations}})).expect("a Node")
        };
        let whole = json!({CLUSTER_NAME: "a", CLUSTER_NAMESPACE: "fleet"});
        assert_eq!(belongs_to(&node(whole)), Some(scope("fleet", "a")));
        assert_eq!(belongs_to(&node(json!({CLUSTER_NAME: "a"}))), None);
    }
}
