//! Which resources are served: the built-in kinds and, as their definitions are established, the custom ones.
//!
//! A registry is immutable; a change of a CustomResourceDefinition makes a new one. Storage ids outlive versions: all
//! versions of a resource share one, and a definition that comes back gets its old one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::builtin::{BuiltinKind, builtins};
use crate::crd::CrdVersion;
use crate::object::ANONYMOUS_HEAD;
use crate::schema::StructuralSchema;
use crate::store::StorageId;

/// The group of CustomResourceDefinitions, whose objects change this registry.
pub(crate) const CRD_GROUP: &str = "apiextensions.k8s.io";
pub(crate) const CRD_PLURAL: &str = "customresourcedefinitions";

const ALL_VERBS: &[&str] =
    &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];

/// One served version of one resource.
pub(crate) struct Resource {
    pub(crate) storage: StorageId,
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) kind: String,
    pub(crate) list_kind: String,
    pub(crate) short_names: Vec<String>,
    pub(crate) categories: Vec<String>,
    pub(crate) namespaced: bool,
    pub(crate) verbs: &'static [&'static str],
    pub(crate) subresources: Vec<Subresource>,
    /// What field selectors may name beside the object's name and namespace.
    pub(crate) selectable_fields: Vec<String>,
    /// The same fields as stored objects name them; differs for views only.
    pub(crate) stored_fields: Vec<String>,
    pub(crate) handling: Handling,
    /// What clients of this version are warned with.
    pub(crate) deprecation: Option<String>,
    /// What an answered object starts with, up to the digits of its version.
    pub(crate) head: Box<str>,
}

/// Whose rules the objects of a resource follow.
#[derive(Clone)]
pub(crate) enum Handling {
    Builtin(&'static BuiltinKind),
    Custom(Arc<CrdVersion>),
}

/// A part of an object that is read or written on its own address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subresource {
    pub(crate) name: String,
    /// Group, version and kind of the body.
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
    pub(crate) verbs: &'static [&'static str],
}

const PART_VERBS: &[&str] = &["get", "patch", "update"];

impl Resource {
    fn builtin(kind: &'static BuiltinKind, storage: StorageId) -> Self {
        let or = |text: &'static str, parent: &'static str| if text.is_empty() { parent } else { text };
        let subresources = kind.subresources.iter().map(|sub| Subresource {
            name: sub.name.into(),
            // The parent's group goes with the parent's version: an empty group alone means the core group.
            group: if sub.version.is_empty() { kind.group } else { sub.group }.into(),
            version: or(sub.version, kind.version).into(),
            kind: or(sub.kind, kind.kind).into(),
            verbs: sub.verbs,
        });
        Self {
            storage,
            group: kind.group.into(),
            version: kind.version.into(),
            plural: kind.plural.into(),
            singular: kind.singular.into(),
            kind: kind.kind.into(),
            list_kind: format!("{}List", kind.kind),
            short_names: owned(kind.short_names),
            categories: owned(kind.categories),
            namespaced: kind.namespaced,
            verbs: kind.verbs,
            subresources: subresources.collect(),
            selectable_fields: owned(kind.selectable_fields),
            stored_fields: kind.selectable_fields.iter().map(|field| stored_field(kind, field)).collect(),
            handling: Handling::Builtin(kind),
            deprecation: kind.deprecation.map(str::to_owned),
            head: head(kind.group, kind.version, kind.kind),
        }
    }

    fn custom(version: CrdVersion, storage: StorageId, deprecation: Option<String>) -> Self {
        let mut subresources = Vec::new();
        if version.status {
            subresources.push(Subresource {
                name: "status".into(),
                group: version.group.clone(),
                version: version.version.clone(),
                kind: version.kind.clone(),
                verbs: PART_VERBS,
            });
        }
        if version.scale.is_some() {
            subresources.push(Subresource {
                name: "scale".into(),
                group: "autoscaling".into(),
                version: "v1".into(),
                kind: "Scale".into(),
                verbs: PART_VERBS,
            });
        }
        let fields: Vec<String> =
            version.selectable_fields.iter().map(|path| path.trim_start_matches('.').to_owned()).collect();
        Self {
            storage,
            group: version.group.clone(),
            version: version.version.clone(),
            plural: version.plural.clone(),
            singular: version.singular.clone(),
            kind: version.kind.clone(),
            list_kind: version.list_kind.clone(),
            short_names: version.short_names.clone(),
            categories: version.categories.clone(),
            namespaced: version.namespaced,
            verbs: ALL_VERBS,
            subresources,
            selectable_fields: fields.clone(),
            stored_fields: fields,
            deprecation,
            head: head(&version.group, &version.version, &version.kind),
            handling: Handling::Custom(Arc::new(version)),
        }
    }

    pub(crate) fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    pub(crate) fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|sub| sub.name == name)
    }

    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        self.group == group && self.plural == plural
    }

    pub(crate) fn is_custom(&self) -> bool {
        matches!(self.handling, Handling::Custom(_))
    }

    /// The kind whose other form these objects are, if they are only a view.
    pub(crate) fn view(&self) -> Option<&'static BuiltinKind> {
        match self.handling {
            Handling::Builtin(kind) => kind.view_of.and(Some(kind)),
            Handling::Custom(_) => None,
        }
    }

    /// The schema that decides what is shown of an object another version may have written; nothing if there is none.
    pub(crate) fn narrowing_schema(&self) -> Option<&StructuralSchema> {
        match &self.handling {
            Handling::Custom(version) if version.shared => Some(&version.schema),
            _ => None,
        }
    }

    /// What an item of a list starts with: kube-apiserver names the kind of custom objects only.
    pub(crate) fn item_head(&self) -> &str {
        if self.is_custom() { &self.head } else { ANONYMOUS_HEAD }
    }
}

/// A view's field as the stored objects name it. Events are the only views with fields of their own.
fn stored_field(kind: &BuiltinKind, field: &str) -> String {
    match (kind.view_of, field.split_once('.')) {
        (None, _) => field.to_owned(),
        (Some(_), Some(("regarding", rest))) => format!("involvedObject.{rest}"),
        (Some(_), None) if field == "reportingController" => "reportingComponent".to_owned(),
        (Some(_), _) => field.to_owned(),
    }
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn head(group: &str, version: &str, kind: &str) -> Box<str> {
    let api_version = api_version(group, version);
    format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",{}", &ANONYMOUS_HEAD[1..]).into()
}

pub(crate) fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// Group, version and plural.
type Address = (String, String, String);

/// All served resources.
#[derive(Clone)]
pub(crate) struct Registry {
    resources: BTreeMap<Address, Arc<Resource>>,
    /// The preferred version of each resource, by group and plural: admission asks for these with every write.
    preferred: BTreeMap<String, BTreeMap<String, Arc<Resource>>>,
    storages: BTreeMap<(String, String), StorageId>,
}

impl Registry {
    /// The built-in kinds alone.
    pub(crate) fn new() -> Self {
        let mut registry =
            Self { resources: BTreeMap::new(), preferred: BTreeMap::new(), storages: BTreeMap::new() };
        for kind in builtins() {
            let (group, _) = kind.view_of.unwrap_or((kind.group, kind.version));
            let storage = registry.storage(group, kind.plural);
            registry.insert(Resource::builtin(kind, storage));
        }
        registry.find_preferred();
        registry
    }

    fn find_preferred(&mut self) {
        self.preferred.clear();
        for (address, resource) in &self.resources {
            let (group, _, plural) = address;
            let found = self.preferred.entry(group.clone()).or_default();
            match found.get(plural) {
                Some(other) if !is_newer(&resource.version, &other.version) => {}
                _ => drop(found.insert(plural.clone(), Arc::clone(resource))),
            }
        }
    }

    fn storage(&mut self, group: &str, plural: &str) -> StorageId {
        let next = StorageId(u32::try_from(self.storages.len()).unwrap_or(u32::MAX));
        *self.storages.entry((group.to_owned(), plural.to_owned())).or_insert(next)
    }

    fn insert(&mut self, resource: Resource) {
        let address = (resource.group.clone(), resource.version.clone(), resource.plural.clone());
        self.resources.insert(address, Arc::new(resource));
    }

    /// Serves a definition's versions in place of what it served before.
    pub(crate) fn serve_custom(
        &mut self,
        group: &str,
        plural: &str,
        versions: Vec<CrdVersion>,
        deprecations: &BTreeMap<String, String>,
    ) {
        self.stop_custom(group, plural);
        let storage = self.storage(group, plural);
        for version in versions.into_iter().filter(|version| version.served) {
            let deprecation = deprecations.get(&version.version).cloned();
            self.insert(Resource::custom(version, storage, deprecation));
        }
        self.find_preferred();
    }

    pub(crate) fn stop_custom(&mut self, group: &str, plural: &str) {
        self.resources.retain(|_, resource| !(resource.is_custom() && resource.is(group, plural)));
        self.find_preferred();
    }

    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.resources.get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }

    /// The preferred version of a resource.
    pub(crate) fn preferred(&self, group: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.preferred.get(group)?.get(plural)
    }

    /// The resource an `apiVersion` and `kind` name.
    pub(crate) fn by_kind(&self, api_version: &str, kind: &str) -> Option<&Arc<Resource>> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        self.in_version(group, version).find(|resource| resource.kind == kind)
    }

    /// A resource in whose form the objects of a storage are kept.
    pub(crate) fn of_storage(&self, storage: StorageId) -> Option<&Arc<Resource>> {
        self.resources.values().find(|resource| resource.storage == storage && resource.view().is_none())
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.values()
    }

    pub(crate) fn groups(&self) -> BTreeSet<&str> {
        self.resources.keys().map(|(group, _, _)| group.as_str()).collect()
    }

    /// The versions of a group, preferred first.
    pub(crate) fn versions(&self, group: &str) -> Vec<&str> {
        let found: BTreeSet<&str> =
            self.resources.keys().filter(|(g, _, _)| g == group).map(|(_, v, _)| v.as_str()).collect();
        let mut versions: Vec<&str> = found.into_iter().collect();
        sort_versions(&mut versions);
        versions
    }

    /// The versions in which a resource is served.
    pub(crate) fn versions_of(&self, group: &str, plural: &str) -> BTreeSet<String> {
        let found = self.resources.values().filter(|resource| resource.is(group, plural));
        found.map(|resource| resource.version.clone()).collect()
    }

    /// The resources of one version, by plural.
    pub(crate) fn in_version(
        &self,
        group: &str,
        version: &str,
    ) -> impl Iterator<Item = &Arc<Resource>> + use<'_> {
        let first = (group.to_owned(), version.to_owned(), String::new());
        let (group, version) = (group.to_owned(), version.to_owned());
        let from = self.resources.range(first..).map(|(_, resource)| resource);
        from.take_while(move |resource| resource.group == group && resource.version == version)
    }
}

/// Sorts versions, preferred first.
pub(crate) fn sort_versions<T: AsRef<str> + Ord>(versions: &mut [T]) {
    versions.sort_by(|a, b| priority(b.as_ref()).cmp(&priority(a.as_ref())).then(a.cmp(b)));
}

pub(crate) fn is_newer(a: &str, b: &str) -> bool {
    priority(a) > priority(b)
}

/// Kubernetes' version order: stable over beta over alpha, then higher numbers; anything else last.
fn priority(version: &str) -> (u8, u32, u32) {
    let Some(rest) = version.strip_prefix('v') else { return (0, 0, 0) };
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (major, stage) = rest.split_at(digits);
    let Ok(major) = major.parse() else { return (0, 0, 0) };
    let (rank, minor) = match stage {
        "" => (3, "0"),
        _ => match (stage.strip_prefix("beta"), stage.strip_prefix("alpha")) {
            (Some(minor), _) => (2, minor),
            (_, Some(minor)) => (1, minor),
            _ => return (0, 0, 0),
        },
    };
    minor.parse().map_or((0, 0, 0), |minor| (rank, major, minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_order_as_kubernetes_orders_them() {
        let mut versions = vec!["v1beta1", "v2", "foo", "v1", "v1alpha2", "v11beta2", "v1beta2"];
        versions.sort_by_key(|v| std::cmp::Reverse(priority(v)));
        assert_eq!(versions, ["v2", "v1", "v11beta2", "v1beta2", "v1beta1", "v1alpha2", "foo"]);
    }

    #[test]
    fn every_built_in_kind_is_found_by_address_and_by_kind() {
        let registry = Registry::new();
        for resource in registry.all() {
            let same = registry.find(&resource.group, &resource.version, &resource.plural);
            assert!(same.is_some_and(|found| found.kind == resource.kind));
            assert!(registry.by_kind(&resource.api_version(), &resource.kind).is_some());
        }
    }
}
