//! Which NodeClass, and with it which provider, a NodePool or NodeClaim uses.

use serde::{Deserialize, Serialize};

use crate::schema::Schema;

/// A reference to a NodeClass.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeClassReference {
    /// Its API group, without version.
    #[serde(default)]
    pub group: String,
    /// Its kind.
    #[serde(default)]
    pub kind: String,
    /// Its name.
    #[serde(default)]
    pub name: String,
}

impl NodeClassReference {
    pub(crate) fn schema() -> Schema {
        Schema::object()
            .describe("The NodeClass, an object of the provider, that says how nodes are built.")
            .required(
                "group",
                Schema::string()
                    .describe("API group of the NodeClass, without a version.")
                    .pattern("^[^/]*$")
                    .cel("self != ''", "group may not be empty"),
            )
            .required(
                "kind",
                Schema::string()
                    .describe("Kind of the NodeClass.")
                    .cel("self != ''", "kind may not be empty"),
            )
            .required(
                "name",
                Schema::string()
                    .describe("Name of the NodeClass.")
                    .cel("self != ''", "name may not be empty"),
            )
    }
}
