//! The kinds every Kubernetes server has from the start: their table, and what kube-apiserver does to their objects
//! between the wire and the store.
//!
//! For the request path a built-in kind is one [`BuiltinKind`]: `decode` checks and normalises what came in,
//! `default` fills in, `prepare_*` are the registry's strategy together with the admission plugins that matter, and
//! `validate_*` say what is wrong. Generic rules (names, labels, annotations, namespaces, preconditions) are not
//! here: the write path applies them to every kind, built in or not.

mod autoscaling;
mod batch;
mod batch_rules;
mod checks;
mod config;
mod containers;
mod cron;
mod decode;
mod devices;
mod event;
mod fields;
mod kinds;
mod lease;
mod limits;
mod namespace;
mod network;
mod network_rules;
mod node;
mod path;
mod pod;
mod pod_defaults;
mod pod_spec;
mod pod_update;
mod policy;
mod quantity;
mod rbac;
#[cfg(test)]
mod replay;
mod row;
mod scheduling;
mod scheduling_rules;
mod storage;
mod storage_rules;
mod structure;
mod timestamp;
mod volumes;
mod warnings;
mod webhooks;
mod workload_rules;
mod workloads;

use std::borrow::Cow;

use schemars::SchemaGenerator;
use serde_json::Value;

use crate::field_error::FieldError;
use crate::status::ApiError;

pub(crate) use kinds::builtins;

/// What a fresh server has of its own, namespaces aside.
pub(crate) fn initial_objects() -> Vec<Value> {
    scheduling::initial_classes()
}

/// What admission may look up in the store while it prepares an object.
pub(crate) trait Lookup {
    /// One object; `namespace` is empty for cluster-scoped kinds.
    fn get(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Value>;
    /// All objects of a kind, in a namespace or (empty) everywhere.
    fn list(&self, group: &str, plural: &str, namespace: &str) -> Vec<Value>;
}

/// A part of an object that is read or written on its own address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subresource {
    pub(crate) name: &'static str,
    /// The kind of the body; empty stands for the kind of the parent.
    pub(crate) kind: &'static str,
    /// The group and version of the body's kind; empty stands for those of the parent.
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) verbs: &'static [&'static str],
}

/// One built-in kind.
pub(crate) struct BuiltinKind {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) singular: &'static str,
    pub(crate) short_names: &'static [&'static str],
    pub(crate) categories: &'static [&'static str],
    pub(crate) namespaced: bool,
    /// Has a `status` subresource.
    pub(crate) status: bool,
    /// Has a `scale` subresource.
    pub(crate) scale: bool,
    pub(crate) subresources: &'static [Subresource],
    /// What field selectors may name beside `metadata.name` and `metadata.namespace`.
    pub(crate) selectable_fields: &'static [&'static str],
    pub(crate) verbs: &'static [&'static str],
    /// What every request for this kind is warned of.
    pub(crate) deprecation: Option<&'static str>,
    /// Group and version whose objects these are, when this kind is only another view of them.
    pub(crate) view_of: Option<(&'static str, &'static str)>,
    /// An update may leave out `metadata.resourceVersion`.
    pub(crate) unconditional_update: bool,
    /// An update of a name that does not exist creates it.
    pub(crate) create_on_update: bool,
    /// What is wrong with a text as a name of this kind.
    pub(crate) name_errors: fn(&str) -> Vec<String>,
    /// What raises `metadata.generation`.
    pub(crate) generation: Generation,
    /// Registers the kind's structure and returns the name of its definition.
    pub(crate) structure: fn(&mut SchemaGenerator) -> Cow<'static, str>,
    rules: &'static Rules,
}

/// Which changes of an object count as a new generation of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Generation {
    /// The kind has no generation.
    None,
    /// A change of `spec`.
    Spec,
    /// A change of `spec` or of the annotations.
    SpecAndAnnotations,
    /// A change of `spec`, counted from the first change on (CSIDriver does so).
    SpecFromZero,
    /// A change of anything but `metadata` and `status`.
    Content,
    /// A change of that or of the labels.
    ContentAndLabels,
    /// Always 1.
    Once,
}

/// What one kind adds to the generic path. Every function is pure; the defaults do nothing.
pub(crate) struct Rules {
    default: fn(&mut Value),
    prepare_create: fn(&mut Value, &dyn Lookup) -> Result<(), ApiError>,
    prepare_update: fn(&mut Value, &Value, Option<&str>),
    validate_create: fn(&Value, &mut Vec<FieldError>),
    validate_update: fn(&Value, &Value, Option<&str>, &mut Vec<FieldError>),
    /// Whether a status sent with a create is dropped.
    status_on_create: StatusOnCreate,
}

/// What a create does with the `status` it was sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StatusOnCreate {
    Kept,
    Dropped,
}

impl Rules {
    const NONE: Rules = Rules {
        default: |_| {},
        prepare_create: |_, _| Ok(()),
        prepare_update: |_, _, _| {},
        validate_create: |_, _| {},
        validate_update: |_, _, _, _| {},
        status_on_create: StatusOnCreate::Dropped,
    };
}

impl BuiltinKind {
    /// Checks the types of a request's object in Go's words, drops what the kind does not know (returning the paths,
    /// for `fieldValidation`) and brings the rest into the form kube-apiserver prints.
    ///
    /// The error is the decoder's text alone; the caller puts `Pod in version "v1" cannot be handled as a Pod: `
    /// before it.
    pub(crate) fn decode(&self, object: &mut Value) -> Result<Vec<String>, String> {
        decode::decode(self, object)
    }

    /// Fills in what the object leaves out.
    pub(crate) fn default(&self, object: &mut Value) {
        (self.rules.default)(object);
    }

    /// What the registry and admission do to a new object before it is validated.
    pub(crate) fn prepare_create(&self, object: &mut Value, cluster: &dyn Lookup) -> Result<(), ApiError> {
        if self.status && self.rules.status_on_create == StatusOnCreate::Dropped {
            decode::reset_field(self, object, "status");
        }
        // A kind that does not count keeps whatever the client wrote.
        if !matches!(self.generation, Generation::None | Generation::SpecFromZero) {
            fields::set_generation(object, Some(1));
        }
        (self.rules.prepare_create)(object, cluster)
    }

    /// What the registry does to an update before it is validated: a status write changes nothing but the status, any
    /// other write everything but the status.
    pub(crate) fn prepare_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        if self.status {
            match subresource {
                Some("status") => fields::keep_all_but_status(new, old),
                _ => fields::keep(new, old, "status"),
            }
        }
        (self.rules.prepare_update)(new, old, subresource);
        let grown = match self.generation {
            Generation::None | Generation::Once => false,
            Generation::Spec | Generation::SpecFromZero => new.get("spec") != old.get("spec"),
            Generation::SpecAndAnnotations => {
                new.get("spec") != old.get("spec")
                    || fields::at(new, &["metadata", "annotations"])
                        != fields::at(old, &["metadata", "annotations"])
            }
            Generation::Content => fields::content_differs(new, old),
            Generation::ContentAndLabels => {
                fields::content_differs(new, old)
                    || fields::at(new, &["metadata", "labels"]) != fields::at(old, &["metadata", "labels"])
            }
        };
        let before = fields::at(old, &["metadata", "generation"]).as_i64();
        fields::set_generation(new, if grown { Some(before.unwrap_or(0) + 1) } else { before });
    }

    /// From this kind's form to the form objects are stored in, for a kind that is only a view.
    pub(crate) fn to_stored(&self, object: &mut Value) {
        match (self.group, self.kind) {
            ("events.k8s.io", _) => event::to_core(object),
            ("autoscaling", "HorizontalPodAutoscaler") if self.version == "v1" => {
                autoscaling::v1_to_v2(object)
            }
            _ => return,
        }
        let stored = self.view_of.and_then(|(group, version)| {
            builtins().iter().find(|k| k.group == group && k.version == version && k.kind == self.kind)
        });
        if let Some(stored) = stored {
            decode::normalise(stored, object);
            stored.default(object);
        }
    }

    /// From the stored form to this kind's, for a kind that is only a view.
    #[expect(
        clippy::wrong_self_convention,
        reason = "the kind is the view an object is brought into, not its source"
    )]
    pub(crate) fn from_stored(&self, object: &mut Value) {
        match (self.group, self.kind) {
            ("events.k8s.io", _) => event::from_core(object),
            ("autoscaling", "HorizontalPodAutoscaler") if self.version == "v1" => {
                autoscaling::v2_to_v1(object)
            }
            _ => return,
        }
        decode::normalise(self, object);
    }

    /// What a client that made this object should know, though it is valid.
    pub(crate) fn warnings_on_create(&self, object: &Value) -> Vec<String> {
        warnings::on_create(self.group, self.kind, object)
    }

    /// What is wrong with a new object.
    pub(crate) fn validate_create(&self, object: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        (self.rules.validate_create)(object, &mut errors);
        errors
    }

    /// What is wrong with an update.
    pub(crate) fn validate_update(
        &self,
        new: &Value,
        old: &Value,
        subresource: Option<&str>,
    ) -> Vec<FieldError> {
        let mut errors = Vec::new();
        (self.rules.validate_update)(new, old, subresource, &mut errors);
        errors
    }
}
