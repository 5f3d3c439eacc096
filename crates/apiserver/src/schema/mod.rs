//! The schemas of custom resources: pruning, defaulting and validating objects against them, CEL rules included.
//!
//! A [`StructuralSchema`] is compiled once per CRD version and shared. What it accepts, drops, fills in and says is
//! kube-apiserver's, down to the words, because users read them and tools match on them. It knows nothing of
//! requests: metadata of the object itself, scale paths and status isolation are the request path's business.

mod cel;
mod cel_check;
mod cel_library;
mod cel_value;
mod correlate;
mod default_values;
mod defaulting;
mod embedded;
mod field_path;
mod format;
mod list_type;
mod node;
mod number;
mod openapi;
mod path;
mod prune;
mod scale;
mod structural;
mod validate;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use serde_json::Value;

use crate::field_error::{FieldError, Reason};
use cel::Ratchet;
use correlate::Predecessor;
use node::{Node, Type};
use path::Path;

pub(crate) use scale::ScalePaths;

/// The compiled schema of one version of a custom resource.
#[derive(Debug)]
pub(crate) struct StructuralSchema {
    root: Arc<Node>,
    scale: Option<ScalePaths>,
}

impl StructuralSchema {
    /// Compiles an `openAPIV3Schema`, or says why a CRD may not have it. `at` is where it stands in the CRD.
    pub(crate) fn compile(props: &JSONSchemaProps, at: &str) -> Result<Self, Vec<FieldError>> {
        let at = Path::Field(&Path::Root, at);
        let root = Node::build_rooted(props, true);
        if let Some(what) = structural::unsupported_keyword(props) {
            let mut errors = openapi::check(props, None, &at);
            if errors.is_empty() {
                let detail =
                    if what.starts_with('\'') { format!("OpenAPIV3Schema {what}") } else { what.to_owned() };
                errors.push(FieldError::invalid(at.to_string(), &Value::from(""), detail));
            }
            return Err(errors);
        }
        let mut errors = structural::check(props, &at);
        if errors.is_empty() {
            errors = default_values::check(&root, &at);
        }
        let rules_too = errors.is_empty().then_some(&root);
        errors.extend(openapi::check(props, rules_too, &at));
        if errors.is_empty() { Ok(Self { root: Arc::new(root), scale: None }) } else { Err(errors) }
    }

    /// The same schema for a version whose scale subresource reads these fields.
    pub(crate) fn with_scale(&self, scale: Option<ScalePaths>) -> Self {
        Self { root: self.root.clone(), scale }
    }

    /// The path of a field as field errors write it, and whether it is a string, a boolean or an integer.
    pub(crate) fn field(&self, json_path: &str) -> Result<(String, bool), String> {
        let (path, node) = field_path::resolve(json_path, &self.root, false)?;
        Ok((path, matches!(node.kind, Some(Type::String | Type::Boolean | Type::Integer))))
    }

    /// Drops fields the schema does not know, and nulls it does not allow. Returns the paths of the dropped fields, as
    /// the real server spells them in `unknown field "spec.foo"`.
    pub(crate) fn prune(&self, object: &mut Value) -> Vec<String> {
        prune::prune_resource(object, &self.root)
    }

    /// Fills in defaults.
    pub(crate) fn default(&self, object: &mut Value) {
        defaulting::set_defaults(object, &self.root);
    }

    /// Everything wrong with a pruned and defaulted object; `old` is the one it replaces.
    pub(crate) fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let before = old.map(|old| Predecessor::root(&self.root, old));
        let mut errors = validate::check(&self.root, object, before, &Path::Root);
        if let Some(scale) = &self.scale {
            scale.check_spec(object, &mut errors);
            scale.check_status(object, &mut errors);
        }
        embedded::check(object, &self.root, &Path::Root, &mut errors);
        self.check_lists(object, old, &mut errors);
        self.check_rules(object, old, &mut errors);
        errors
    }

    /// As [`Self::validate`], for an update of the status alone: only `.status` is held against the schema, but the
    /// rules of the whole object run.
    pub(crate) fn validate_status(&self, object: &Value, old: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if let (Some(status), Some(node)) = (object.get("status"), self.root.properties.get("status")) {
            let before = Predecessor::root(&self.root, old).key("status");
            errors = validate::check(node, status, before, &Path::Field(&Path::Root, "status"));
        }
        if let Some(scale) = &self.scale {
            scale.check_status(object, &mut errors);
        }
        self.check_lists(object, Some(old), &mut errors);
        self.check_rules(object, Some(old), &mut errors);
        errors
    }

    /// Duplicates are tolerated as long as the old object has some.
    fn check_lists(&self, object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
        let mut of_old = Vec::new();
        if let Some(old) = old {
            list_type::check(old, &self.root, &Path::Root, &mut of_old);
        }
        if of_old.is_empty() {
            list_type::check(object, &self.root, &Path::Root, errors);
        }
    }

    /// Rules run only on objects whose shape they can rely on.
    fn check_rules(&self, object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
        if !self.root.ruled {
            return;
        }
        let blocking = |error: &FieldError| {
            matches!(
                error.reason,
                Reason::NotSupported
                    | Reason::Required
                    | Reason::TooLong
                    | Reason::TooMany
                    | Reason::TypeInvalid
            )
        };
        if errors.iter().any(blocking) {
            let detail = "some validation rules were not checked because the object was invalid; correct the \
                          existing errors to complete validation";
            errors.push(FieldError::invalid(Path::Root.to_string(), &Value::Null, detail));
            return;
        }
        let ratchet = old
            .map_or_else(Ratchet::default, |old| Ratchet::root(Predecessor::root(&self.root, old), object));
        cel::check(&self.root, object, old, ratchet, &Path::Root, errors);
    }
}
