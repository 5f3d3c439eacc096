//! A small builder for the structural schemas of CRDs (OpenAPI v3 as Kubernetes understands it).
//!
//! It exists because a schema is part of the contract with users and must be exactly upstream's: a derive would decide for us
//! where a pattern or a list type goes. Each kind writes its schema next to its type.

use serde_json::{Map, Value, json};

/// What `Quantity` allows, as controller-gen writes it.
const QUANTITY_PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";
/// A label key: an optional domain, a slash, a name.
pub(crate) const QUALIFIED_NAME_PATTERN: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(\/))?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$";
/// A label value.
pub(crate) const LABEL_VALUE_PATTERN: &str = "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";
/// Hours, minutes and seconds in any number.
pub const DURATION_PATTERN: &str = "^([0-9]+(s|m|h))+$";
/// The same, or `Never`.
pub(crate) const NILLABLE_DURATION_PATTERN: &str = "^(([0-9]+(s|m|h))+|Never)$";

/// One node of a schema.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schema(Map<String, Value>);

impl Schema {
    fn of_type(name: &str) -> Self {
        Self::default().with("type", name)
    }

    /// An object with named properties.
    pub fn object() -> Self {
        Self::of_type("object")
    }

    /// An object with free keys and values of one schema.
    pub fn map_of(values: Schema) -> Self {
        Self::object().with("additionalProperties", values)
    }

    /// A list.
    pub fn list_of(items: Schema) -> Self {
        Self::of_type("array").with("items", items)
    }

    /// True or false.
    pub fn boolean() -> Self {
        Self::of_type("boolean")
    }

    /// A text.
    pub fn string() -> Self {
        Self::of_type("string")
    }

    /// A whole number.
    pub fn integer() -> Self {
        Self::of_type("integer")
    }

    /// A whole number of 32 bits.
    pub fn int32() -> Self {
        Self::integer().format("int32")
    }

    /// A whole number of 64 bits.
    pub fn int64() -> Self {
        Self::integer().format("int64")
    }

    /// A point in time.
    pub fn date_time() -> Self {
        Self::string().format("date-time")
    }

    /// An amount of a resource, as a number or a text.
    pub fn quantity() -> Self {
        Self::default()
            .with("anyOf", json!([{ "type": "integer" }, { "type": "string" }]))
            .with("x-kubernetes-int-or-string", true)
            .pattern(QUANTITY_PATTERN)
    }

    /// Amounts of resources by name.
    pub fn resource_list() -> Self {
        Self::map_of(Self::quantity())
    }

    fn with(mut self, keyword: &str, value: impl Into<Value>) -> Self {
        self.0.insert(keyword.to_owned(), value.into());
        self
    }

    /// Says what it is for, in a sentence or two.
    #[must_use]
    pub fn describe(self, text: &str) -> Self {
        self.with("description", text)
    }

    fn format(self, name: &str) -> Self {
        self.with("format", name)
    }

    /// The regular expression its text must match.
    #[must_use]
    pub fn pattern(self, pattern: &str) -> Self {
        self.with("pattern", pattern)
    }

    /// What it is if left out.
    #[must_use]
    pub fn default_value(self, value: Value) -> Self {
        self.with("default", value)
    }

    /// The only texts allowed.
    #[must_use]
    pub fn one_of(self, values: &[&str]) -> Self {
        self.with("enum", values)
    }

    /// The least number allowed.
    #[must_use]
    pub fn minimum(self, least: i64) -> Self {
        self.with("minimum", least)
    }

    /// The greatest number allowed.
    #[must_use]
    pub fn maximum(self, greatest: i64) -> Self {
        self.with("maximum", greatest)
    }

    /// The shortest text allowed.
    #[must_use]
    pub fn min_length(self, length: u32) -> Self {
        self.with("minLength", length)
    }

    /// The longest text allowed.
    #[must_use]
    pub fn max_length(self, length: u32) -> Self {
        self.with("maxLength", length)
    }

    /// The longest list allowed.
    #[must_use]
    pub fn max_items(self, count: u32) -> Self {
        self.with("maxItems", count)
    }

    /// The largest map allowed.
    #[must_use]
    pub fn max_properties(self, count: u32) -> Self {
        self.with("maxProperties", count)
    }

    /// Replaced as a whole by server-side apply.
    #[must_use]
    pub fn atomic_list(self) -> Self {
        self.with("x-kubernetes-list-type", "atomic")
    }

    /// A list without duplicates.
    #[must_use]
    pub fn set_list(self) -> Self {
        self.with("x-kubernetes-list-type", "set")
    }

    /// A list of objects told apart by `key`.
    #[must_use]
    pub fn map_list(self, key: &str) -> Self {
        self.with("x-kubernetes-list-type", "map").with("x-kubernetes-list-map-keys", json!([key]))
    }

    /// How server-side apply merges a map: `atomic` or `granular`.
    #[must_use]
    pub fn map_type(self, name: &str) -> Self {
        self.with("x-kubernetes-map-type", name)
    }

    /// A CEL rule and what is said when it does not hold.
    #[must_use]
    pub fn cel(mut self, rule: &str, message: &str) -> Self {
        self.push("x-kubernetes-validations", json!({ "rule": rule, "message": message }));
        self
    }

    /// A property that may be left out.
    #[must_use]
    pub fn optional(mut self, name: &str, schema: Schema) -> Self {
        let properties = self.0.entry("properties").or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(properties) = properties {
            properties.insert(name.to_owned(), schema.into());
        }
        self
    }

    /// A property that must be there.
    #[must_use]
    pub fn required(mut self, name: &str, schema: Schema) -> Self {
        self.push("required", name.into());
        self.optional(name, schema)
    }

    fn push(&mut self, keyword: &str, entry: Value) {
        if let Value::Array(entries) = self.0.entry(keyword).or_insert_with(|| Value::Array(Vec::new())) {
            entries.push(entry);
        }
    }
}

impl From<Schema> for Value {
    fn from(schema: Schema) -> Self {
        Value::Object(schema.0)
    }
}
