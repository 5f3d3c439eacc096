//! CloudStackNodeClass: zone, networks, templates and offerings that virtual machines are made of.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_api::api_resource;
use karpenter_api::conditions::{self, Condition, ConditionTypes, HasConditions};
use karpenter_api::crd::{Column, Crd, Scope};
use karpenter_api::schema::Schema;
use serde::{Deserialize, Serialize};

use crate::GROUP;

/// What virtual machines are made of.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct CloudStackNodeClass {
    /// Name, labels and the like.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is wanted.
    #[serde(default)]
    pub spec: Option<CloudStackNodeClassSpec>,
    /// What was found for it.
    #[serde(default)]
    pub status: Option<CloudStackNodeClassStatus>,
}

api_resource!(CloudStackNodeClass, ClusterResourceScope, GROUP, "v1", "cloudstacknodeclasses", optional);

/// What is wanted of the virtual machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CloudStackNodeClassSpec {
    /// The zone, by name.
    pub zone: String,
    /// Which networks.
    #[serde(default)]
    pub network_selector_terms: Vec<SelectorTerm>,
    /// Which service offerings.
    #[serde(default)]
    pub service_offering_selector_terms: Vec<SelectorTerm>,
    /// Which templates.
    #[serde(default)]
    pub template_selector_terms: Vec<TemplateSelectorTerm>,
    /// The offering of an additional disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_offering: Option<String>,
    /// The root disk in gigabytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_disk_size: Option<i64>,
    /// The key pair for logging in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_key_pair: Option<String>,
    /// What the machine is told at its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// Tags of the virtual machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<BTreeMap<String, String>>,
}

/// Selects things by id, name or tags; terms of a list are alternatives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelectorTerm {
    /// The id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Tags that must all be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<BTreeMap<String, String>>,
}

/// Selects templates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateSelectorTerm {
    /// The id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The operating system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_type: Option<String>,
    /// Tags that must all be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<BTreeMap<String, String>>,
}

/// What was found for a NodeClass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CloudStackNodeClassStatus {
    /// The networks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub networks: Option<Vec<Network>>,
    /// The service offerings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_offerings: Option<Vec<ServiceOffering>>,
    /// The templates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub templates: Option<Vec<Template>>,
    /// Whether it can be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
}

/// A network that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// Its zone.
    pub zone: String,
}

/// A service offering that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceOffering {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Cores.
    pub cpu_number: i64,
    /// Megahertz per core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_speed: Option<i64>,
    /// Memory in megabytes.
    pub memory: i64,
    /// Megabits per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_rate: Option<i64>,
}

/// A template that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Template {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its operating system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_type: Option<String>,
    /// Its zone.
    pub zone: String,
}

impl HasConditions for CloudStackNodeClass {
    const TYPES: ConditionTypes = ConditionTypes::ready(&[]);

    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default()
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        self.status.get_or_insert_default().conditions.get_or_insert_default()
    }
}

impl CloudStackNodeClass {
    /// The definition of the kind.
    pub fn crd() -> Crd {
        Crd {
            group: GROUP,
            version: "v1",
            kind: "CloudStackNodeClass",
            plural: "cloudstacknodeclasses",
            short_names: &["csnc", "csncs"],
            categories: &["karpenter"],
            scope: Scope::Cluster,
            columns: vec![
                Column::text("Ready", ".status.conditions[?(@.type=='Ready')].status"),
                Column::age(),
                Column::text("Zone", ".spec.zone").wide(),
            ],
            scale: None,
            schema: Crd::root("What the virtual machines of CloudStack are made of.")
                .optional("spec", spec_schema())
                .optional("status", status_schema()),
        }
    }
}

fn spec_schema() -> Schema {
    let text = |description| Schema::string().describe(description);
    let tags = Schema::map_of(Schema::string())
        .describe("Tags of the virtual machines.")
        .cel("self.all(k, k != '')", "empty tag keys aren't supported")
        .cel(
            "self.all(k, k != 'karpenter.sh/nodepool')",
            "tag contains a restricted tag matching karpenter.sh/nodepool",
        )
        .cel(
            "self.all(k, k !='karpenter.sh/nodeclaim')",
            "tag contains a restricted tag matching karpenter.sh/nodeclaim",
        )
        .cel(
            "self.all(k, k !='karpenter.k8s.cloudstack/nodeclass')",
            "tag contains a restricted tag matching karpenter.k8s.cloudstack/nodeclass",
        );
    let template = term("template").optional("osType", text("Operating system of the template."));
    Schema::object()
        .describe("What the virtual machines are made of.")
        .required("zone", text("Name of the zone."))
        .required("networkSelectorTerms", terms("networkSelectorTerms", "networks", term("network")))
        .required(
            "serviceOfferingSelectorTerms",
            terms("serviceOfferingSelectorTerms", "service offerings", term("service offering")),
        )
        .required("templateSelectorTerms", terms("templateSelectorTerms", "templates", template))
        .optional("diskOffering", text("Offering of an additional disk."))
        .optional(
            "rootDiskSize",
            Schema::int64().describe("Size of the root disk in gigabytes.").minimum(1).maximum(1000),
        )
        .optional("sshKeyPair", text("Name of the SSH key pair."))
        .optional("userData", text("User data the machine starts with."))
        .optional("tags", tags)
}

fn terms(field: &str, what: &str, item: Schema) -> Schema {
    Schema::list_of(item)
        .describe(&format!("Which {what} may be used; what any of the terms selects."))
        .max_items(30)
        .cel("self.size() != 0", &format!("{field} cannot be empty"))
        .cel(
            "self.all(x, has(x.tags) || has(x.id) || has(x.name))",
            "expected at least one, got none, ['tags', 'id', 'name']",
        )
}

fn term(what: &str) -> Schema {
    let tags = Schema::map_of(Schema::string())
        .describe(&format!("Tags the {what} must have."))
        .max_properties(20)
        .cel("self.all(k, k != '' && self[k] != '')", "empty tag keys or values aren't supported");
    Schema::object()
        .describe(&format!("Selects by id, name or tags of the {what}."))
        .optional("id", Schema::string().describe(&format!("Id of the {what}.")))
        .optional("name", Schema::string().describe(&format!("Name of the {what}.")))
        .optional("tags", tags)
}

fn status_schema() -> Schema {
    let text = |description| Schema::string().describe(description);
    let number = |description| Schema::integer().describe(description);
    let network = Schema::object()
        .describe("A network that was found.")
        .required("id", text("Its id."))
        .required("name", text("Its name."))
        .optional("type", text("Its type."))
        .required("zone", text("Its zone."));
    let offering = Schema::object()
        .describe("A service offering that was found.")
        .required("id", text("Its id."))
        .required("name", text("Its name."))
        .required("cpuNumber", number("Cores."))
        .optional("cpuSpeed", number("Megahertz per core."))
        .required("memory", number("Memory in megabytes."))
        .optional("networkRate", number("Megabits per second."));
    let template = Schema::object()
        .describe("A template that was found.")
        .required("id", text("Its id."))
        .required("name", text("Its name."))
        .optional("osType", text("Its operating system."))
        .required("zone", text("Its zone."));
    Schema::object()
        .describe("What was found for the NodeClass.")
        .optional("networks", Schema::list_of(network).describe("The networks that were selected."))
        .optional(
            "serviceOfferings",
            Schema::list_of(offering).describe("The service offerings that were selected."),
        )
        .optional("templates", Schema::list_of(template).describe("The templates that were selected."))
        .optional("conditions", conditions::schema())
}
