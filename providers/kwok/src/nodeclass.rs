//! KWOKNodeClass: how simulated nodes come up. It is ready from the start, so it needs no status controller.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_api::conditions::{self, Condition, ConditionTypes, HasConditions};
use karpenter_api::crd::{Crd, Scope};
use karpenter_api::schema::{DURATION_PATTERN, Schema};
use karpenter_api::{Duration, api_resource};
use karpenter_cloudprovider::provider::NodeClassKind;
use karpenter_runtime::environment::Environment;
use karpenter_runtime::informer::Informer;
use kube::runtime::watcher;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::GROUP;

/// The name of the resource.
pub(crate) const PLURAL: &str = "kwoknodeclasses";

/// How simulated nodes come up.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct KWOKNodeClass {
    /// Name, labels and the like.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is wanted.
    #[serde(default)]
    pub spec: Option<KWOKNodeClassSpec>,
    /// Whether it can be used.
    #[serde(default)]
    pub status: Option<KWOKNodeClassStatus>,
}

api_resource!(KWOKNodeClass, ClusterResourceScope, GROUP, "v1alpha1", "kwoknodeclasses", optional);

/// What is wanted of simulated nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KWOKNodeClassSpec {
    /// How long a node takes to join.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_registration_delay: Option<Duration>,
}

/// Whether the NodeClass can be used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KWOKNodeClassStatus {
    /// Only `Ready`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
}

impl HasConditions for KWOKNodeClass {
    const TYPES: ConditionTypes = ConditionTypes::ready(&[]);

    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default()
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        self.status.get_or_insert_default().conditions.get_or_insert_default()
    }
}

/// The kind, as providers are found by.
pub(crate) fn kind() -> NodeClassKind {
    NodeClassKind::new(GROUP, "v1alpha1", "KWOKNodeClass", PLURAL)
}

/// The watch of all NodeClasses.
pub(crate) fn watch(client: &kube::Client, environment: &Environment) -> Informer<KWOKNodeClass> {
    Informer::all(client, watcher::Config::default(), &environment.entropy)
}

impl KWOKNodeClass {
    /// How long after its launch a node joins.
    pub(crate) fn registration_delay(&self) -> std::time::Duration {
        let set = self.spec.as_ref().and_then(|spec| spec.node_registration_delay.as_ref());
        set.map(Duration::to_std).unwrap_or_default()
    }

    /// The definition of the kind.
    pub fn crd() -> Crd {
        let spec = Schema::object().describe("How simulated nodes come up.").optional(
            "nodeRegistrationDelay",
            Schema::string()
                .describe(
                    "How long a node takes to join the cluster, as a real instance takes time to start.",
                )
                .pattern(DURATION_PATTERN),
        );
        // Nothing has to be found out about this NodeClass, so the API server itself makes it ready.
        let ready = json!({
            "conditions": [{
                "type": "Ready",
                "status": "True",
                "reason": "Ready",
                "message": "",
                "lastTransitionTime": "2024-01-01T01:01:01Z",
            }],
        });
        let status = Schema::object()
            .describe("Whether the NodeClass can be used.")
            .default_value(ready)
            .optional("conditions", conditions::schema());
        Crd {
            group: GROUP,
            version: "v1alpha1",
            kind: "KWOKNodeClass",
            plural: PLURAL,
            short_names: &["kwoknc", "kwokncs"],
            categories: &["karpenter"],
            scope: Scope::Cluster,
            columns: Vec::new(),
            scale: None,
            schema: Crd::root("How simulated nodes come up.")
                .optional("spec", spec)
                .optional("status", status),
        }
    }
}
