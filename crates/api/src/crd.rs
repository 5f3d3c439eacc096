//! A CustomResourceDefinition, put together from a kind's names, columns and schema.

use serde_json::{Map, Value, json};

use crate::schema::Schema;

/// Whether objects live in namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// They do not.
    Cluster,
    /// They do.
    Namespaced,
}

/// A column of `kubectl get`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    name: &'static str,
    kind: &'static str,
    json_path: &'static str,
    wide_only: bool,
    description: Option<&'static str>,
}

impl Column {
    /// A column of text.
    pub const fn text(name: &'static str, json_path: &'static str) -> Self {
        Self { name, kind: "string", json_path, wide_only: false, description: None }
    }

    /// A column of whole numbers.
    pub const fn integer(name: &'static str, json_path: &'static str) -> Self {
        Self { name, kind: "integer", json_path, wide_only: false, description: None }
    }

    /// The age of the object.
    pub const fn age() -> Self {
        let json_path = ".metadata.creationTimestamp";
        Self { name: "Age", kind: "date", json_path, wide_only: false, description: None }
    }

    /// Shown with `-o wide` only.
    #[must_use]
    pub const fn wide(mut self) -> Self {
        self.wide_only = true;
        self
    }

    /// Says what the column shows.
    #[must_use]
    pub const fn describe(mut self, text: &'static str) -> Self {
        self.description = Some(text);
        self
    }

    fn to_json(&self) -> Value {
        let mut column = Map::new();
        column.insert("name".to_owned(), self.name.into());
        column.insert("type".to_owned(), self.kind.into());
        column.insert("jsonPath".to_owned(), self.json_path.into());
        if self.wide_only {
            column.insert("priority".to_owned(), 1.into());
        }
        if let Some(description) = self.description {
            column.insert("description".to_owned(), description.into());
        }
        Value::Object(column)
    }
}

/// The paths of the `scale` subresource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Where the wanted number is.
    pub spec_replicas: &'static str,
    /// Where the present number is.
    pub status_replicas: &'static str,
}

/// Everything the API server must know about a kind. Every kind here has one version and a `status` subresource.
#[derive(Clone, Debug, PartialEq)]
pub struct Crd {
    /// API group.
    pub group: &'static str,
    /// The one version.
    pub version: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// Name in URLs.
    pub plural: &'static str,
    /// Abbreviations for kubectl.
    pub short_names: &'static [&'static str],
    /// Groups of kinds for kubectl.
    pub categories: &'static [&'static str],
    /// Where objects live.
    pub scope: Scope,
    /// What `kubectl get` shows besides the name.
    pub columns: Vec<Column>,
    /// The `scale` subresource, if there is one.
    pub scale: Option<Scale>,
    /// The schema of the whole object, from [`Crd::root`].
    pub schema: Schema,
}

impl Crd {
    /// The object around a kind's spec and status: what every Kubernetes object has.
    pub fn root(description: &str) -> Schema {
        Schema::object()
            .describe(description)
            .optional(
                "apiVersion",
                Schema::string().describe("The API group and version the object is written in."),
            )
            .optional("kind", Schema::string().describe("The kind of the object."))
            .optional("metadata", Schema::object())
    }

    /// The name of the definition: `<plural>.<group>`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.plural, self.group)
    }

    /// The object to give to an API server.
    pub fn to_json(&self) -> Value {
        let mut names = json!({
            "kind": self.kind,
            "listKind": format!("{}List", self.kind),
            "plural": self.plural,
            "singular": self.kind.to_lowercase(),
        });
        if !self.categories.is_empty() {
            names["categories"] = json!(self.categories);
        }
        if !self.short_names.is_empty() {
            names["shortNames"] = json!(self.short_names);
        }
        let mut version = json!({
            "name": self.version,
            "served": true,
            "storage": true,
            "schema": { "openAPIV3Schema": Value::from(self.schema.clone()) },
            "subresources": { "status": {} },
        });
        if !self.columns.is_empty() {
            version["additionalPrinterColumns"] = self.columns.iter().map(Column::to_json).collect();
        }
        if let Some(scale) = self.scale {
            version["subresources"]["scale"] = json!({
                "specReplicasPath": scale.spec_replicas,
                "statusReplicasPath": scale.status_replicas,
            });
        }
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": { "name": self.name() },
            "spec": {
                "group": self.group,
                "names": names,
                "scope": match self.scope {
                    Scope::Cluster => "Cluster",
                    Scope::Namespaced => "Namespaced",
                },
                "versions": [version],
            },
        })
    }
}
