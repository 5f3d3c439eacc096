//! How a row of the table of kinds is written: a plain kind, then what differs from it.

use std::borrow::Cow;

use karpenter_primitives::names;
use schemars::{JsonSchema, SchemaGenerator};

use super::{BuiltinKind, Generation, Rules, Subresource};

const VERBS: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
pub(super) const STATUS: Subresource = sub("status", "", "", "", &["get", "patch", "update"]);
pub(super) const SCALE: Subresource = sub("scale", "Scale", "autoscaling", "v1", &["get", "patch", "update"]);

pub(super) const fn sub(
    name: &'static str,
    kind: &'static str,
    group: &'static str,
    version: &'static str,
    verbs: &'static [&'static str],
) -> Subresource {
    Subresource { name, kind, group, version, verbs }
}

pub(super) fn structure_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Cow<'static, str> {
    generator.subschema_for::<T>();
    T::schema_name()
}

pub(super) const fn kind(
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
    structure: fn(&mut SchemaGenerator) -> Cow<'static, str>,
) -> BuiltinKind {
    BuiltinKind {
        group,
        version,
        kind,
        plural,
        singular,
        short_names: &[],
        categories: &[],
        namespaced: false,
        status: false,
        scale: false,
        subresources: &[],
        selectable_fields: &[],
        verbs: VERBS,
        deprecation: None,
        view_of: None,
        unconditional_update: true,
        create_on_update: false,
        name_errors: names::dns1123_subdomain_errors,
        generation: Generation::None,
        structure,
        rules: &Rules::NONE,
    }
}

/// How a row of the table is written: each method sets what differs from the plain kind.
impl BuiltinKind {
    pub(super) const fn namespaced(mut self) -> Self {
        self.namespaced = true;
        self
    }

    pub(super) const fn short(mut self, names: &'static [&'static str]) -> Self {
        self.short_names = names;
        self
    }

    pub(super) const fn categories(mut self, categories: &'static [&'static str]) -> Self {
        self.categories = categories;
        self
    }

    pub(super) const fn verbs(mut self, verbs: &'static [&'static str]) -> Self {
        self.verbs = verbs;
        self
    }

    pub(super) const fn subresources(mut self, subresources: &'static [Subresource]) -> Self {
        let mut i = 0;
        while i < subresources.len() {
            match subresources[i].name.as_bytes() {
                b"status" => self.status = true,
                b"scale" => self.scale = true,
                _ => {}
            }
            i += 1;
        }
        self.subresources = subresources;
        self
    }

    pub(super) const fn selectable(mut self, fields: &'static [&'static str]) -> Self {
        self.selectable_fields = fields;
        self
    }

    pub(super) const fn needs_resource_version(mut self) -> Self {
        self.unconditional_update = false;
        self
    }

    pub(super) const fn create_on_update(mut self) -> Self {
        self.create_on_update = true;
        self
    }

    pub(super) const fn deprecated(mut self, warning: &'static str) -> Self {
        self.deprecation = Some(warning);
        self
    }

    pub(super) const fn view_of(mut self, group: &'static str, version: &'static str) -> Self {
        self.view_of = Some((group, version));
        self
    }

    pub(super) const fn generation(mut self, generation: Generation) -> Self {
        self.generation = generation;
        self
    }

    /// Names are labels of RFC 1123.
    pub(super) const fn label_names(mut self) -> Self {
        self.name_errors = names::dns1123_label_errors;
        self
    }

    /// Any name that can stand in a path will do.
    pub(super) const fn free_names(mut self) -> Self {
        self.name_errors = names::path_segment_errors;
        self
    }

    pub(super) const fn rules(mut self, rules: &'static Rules) -> Self {
        self.rules = rules;
        self
    }
}
