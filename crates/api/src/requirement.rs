//! Requirements: what the labels of a node must be.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::schema::{LABEL_VALUE_PATTERN, QUALIFIED_NAME_PATTERN, Schema};

/// How a label relates to the values of a requirement.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operator {
    /// One of the values.
    In,
    /// None of the values; also satisfied by labels that are not there.
    NotIn,
    /// Any value.
    Exists,
    /// Not there.
    DoesNotExist,
    /// An integer greater than the value.
    Gt,
    /// An integer less than the value.
    Lt,
    /// An integer greater than or equal to the value.
    Gte,
    /// An integer less than or equal to the value.
    Lte,
    /// Anything else. The schema refuses it, but one odd object must not make a whole list unreadable;
    /// runtime validation names it.
    Unsupported(String),
}

impl Operator {
    /// The ones with a meaning.
    pub const SUPPORTED: [&str; 8] = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte"];

    /// As it is written.
    pub fn as_str(&self) -> &str {
        match self {
            Self::In => "In",
            Self::NotIn => "NotIn",
            Self::Exists => "Exists",
            Self::DoesNotExist => "DoesNotExist",
            Self::Gt => "Gt",
            Self::Lt => "Lt",
            Self::Gte => "Gte",
            Self::Lte => "Lte",
            Self::Unsupported(text) => text,
        }
    }

    /// Whether it compares integers.
    pub fn is_comparison(&self) -> bool {
        matches!(self, Self::Gt | Self::Lt | Self::Gte | Self::Lte)
    }
}

impl From<&str> for Operator {
    fn from(text: &str) -> Self {
        match text {
            "In" => Self::In,
            "NotIn" => Self::NotIn,
            "Exists" => Self::Exists,
            "DoesNotExist" => Self::DoesNotExist,
            "Gt" => Self::Gt,
            "Lt" => Self::Lt,
            "Gte" => Self::Gte,
            "Lte" => Self::Lte,
            other => Self::Unsupported(other.to_owned()),
        }
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for Operator {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Operator {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from(String::deserialize(deserializer)?.as_str()))
    }
}

/// One requirement of a NodePool, NodeClaim or NodeOverlay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSelectorRequirement {
    /// The label.
    pub key: String,
    /// How it relates to the values.
    pub operator: Operator,
    /// The values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<Vec<String>>,
    /// How many different values must remain possible (not in NodeOverlays).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_values: Option<i64>,
}

impl NodeSelectorRequirement {
    /// A requirement without `minValues`.
    pub fn new(
        key: impl Into<String>,
        operator: Operator,
        values: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        let values: Vec<String> = values.into_iter().map(Into::into).collect();
        let values = (!values.is_empty()).then_some(values);
        Self { key: key.into(), operator, values, min_values: None }
    }

    /// The values, none if they were left out.
    pub fn values(&self) -> &[String] {
        self.values.as_deref().unwrap_or_default()
    }
}

/// What sets the requirements of one kind apart from those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Pool,
    Claim,
    Overlay,
}

pub(crate) fn requirements_schema(of: Use) -> Schema {
    let mut key = Schema::string()
        .describe("The label the requirement is about.")
        .max_length(316)
        .pattern(QUALIFIED_NAME_PATTERN)
        .cel(
            r#"self in ["karpenter.sh/capacity-type", "karpenter.sh/nodepool"] || !self.find("^([^/]+)").endsWith("karpenter.sh")"#,
            r#"label domain "karpenter.sh" is restricted"#,
        );
    if of == Use::Pool {
        key = key.cel(r#"self != "karpenter.sh/nodepool""#, r#"label "karpenter.sh/nodepool" is restricted"#);
    }
    key = key.cel(r#"self != "kubernetes.io/hostname""#, r#"label "kubernetes.io/hostname" is restricted"#);

    let mut item = Schema::object()
        .describe("A condition on one label.")
        .required("key", key)
        .required("operator", Schema::string()
            .describe("How the label relates to the values: In, NotIn, Exists, DoesNotExist, Gt, Lt, Gte or Lte.")
            .one_of(&Operator::SUPPORTED))
        .optional("values", Schema::list_of(Schema::string())
            .describe("The values: at least one for In and NotIn, none for Exists and DoesNotExist, one integer for the rest.")
            .atomic_list()
            // Without effect on a list, but part of the published schema.
            .max_length(63)
            .pattern(LABEL_VALUE_PATTERN));
    if of != Use::Overlay {
        item = item.optional(
            "minValues",
            Schema::integer()
                .describe("Alpha: how many different values of the label must remain possible.")
                .minimum(1)
                .maximum(50),
        );
    }

    let mut list = Schema::list_of(item).atomic_list().max_items(100);
    list = match of {
        Use::Pool => list.describe("Conditions on the labels of nodes; together with the template's labels they say which nodes may be launched."),
        Use::Claim => list.describe("Conditions on the labels of the node; one that fulfils them all is launched."),
        Use::Overlay => list.describe("Which instance types the overlay changes, by their labels."),
    };
    if of == Use::Overlay {
        list = list.cel(
            "self.all(x, x.operator == 'NotIn' ? x.values.size() != 0 : true)",
            "requirements with operator 'NotIn' must have a value defined",
        );
    }
    list = list.cel(
        "self.all(x, x.operator == 'In' ? x.values.size() != 0 : true)",
        "requirements with operator 'In' must have a value defined",
    );
    let comparison = "self.all(x, (x.operator == 'Gt' || x.operator == 'Lt' || x.operator == 'Gte' || x.operator == 'Lte') ? (x.values.size() == 1 && int(x.values[0]) >= 0) : true)";
    if of == Use::Overlay {
        return list.cel(
            comparison,
            "requirements operator 'Gt', 'Lt', 'Gte' or 'Lte' must have a single positive integer value",
        );
    }
    list.cel(
        comparison,
        "requirements operator 'Gt', 'Lt', 'Gte', or 'Lte' must have a single positive integer value",
    )
    .cel(
        "self.all(x, (x.operator == 'In' && has(x.minValues)) ? x.values.size() >= x.minValues : true)",
        "requirements with 'minValues' must have at least that many values specified in the 'values' field",
    )
}

/// The schema of a list of taints.
pub(crate) fn taints_schema(description: &str) -> Schema {
    Schema::list_of(
        Schema::object()
            .describe("A taint: pods that do not tolerate it are kept off the node.")
            .required(
                "effect",
                Schema::string().describe("What happens to pods that do not tolerate the taint.").one_of(&[
                    "NoSchedule",
                    "PreferNoSchedule",
                    "NoExecute",
                ]),
            )
            .required(
                "key",
                Schema::string()
                    .describe("The key of the taint.")
                    .min_length(1)
                    .pattern(QUALIFIED_NAME_PATTERN),
            )
            .optional("timeAdded", Schema::date_time().describe("When the taint was added."))
            .optional(
                "value",
                Schema::string().describe("The value of the taint.").pattern(QUALIFIED_NAME_PATTERN),
            ),
    )
    .describe(description)
    .atomic_list()
}
