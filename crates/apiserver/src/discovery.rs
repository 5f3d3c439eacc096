//! Discovery: which groups, versions and resources there are, in the aggregated form and in the old ones.

use http::HeaderMap;
use serde_json::{Map, Value, json};

use crate::answer::Answer;
use crate::negotiate;
use crate::registry::{Registry, Resource, api_version};
use crate::request::Target;
use crate::service::not_found;

/// The Kubernetes version whose behaviour this server has.
const VERSION: &str = "v1.36.3";

/// Answers the paths that name no resource but may list some.
pub(crate) fn answer(registry: &Registry, target: &Target, headers: &HeaderMap) -> Answer {
    let aggregated = negotiate::aggregated_discovery(headers);
    match target {
        Target::CoreVersions if aggregated.is_some() => aggregated_list(registry, aggregated, true),
        Target::Groups if aggregated.is_some() => aggregated_list(registry, aggregated, false),
        Target::CoreVersions => Answer::value(
            200,
            &json!({
                "kind": "APIVersions",
                "versions": registry.versions(""),
                "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}],
            }),
        ),
        Target::Groups => {
            let groups: Vec<Value> = named_groups(registry).map(|name| group(registry, name)).collect();
            Answer::value(200, &json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        Target::Group(name) if !registry.versions(name).is_empty() && !name.is_empty() => {
            let mut found = group(registry, name);
            found["kind"] = "APIGroup".into();
            found["apiVersion"] = "v1".into();
            Answer::value(200, &found)
        }
        Target::GroupVersion { group, version } => group_version(registry, group, version),
        _ => not_found(),
    }
}

/// Answers health checks and the version.
pub(crate) fn other(path: &str) -> Option<Answer> {
    Some(match path.trim_end_matches('/') {
        "/healthz" | "/livez" | "/readyz" | "/healthz/ping" | "/livez/ping" | "/readyz/ping" => {
            Answer::text(200, "ok")
        }
        "/version" => Answer::value(
            200,
            &json!({
                "major": "1", "minor": "36",
                "emulationMajor": "1", "emulationMinor": "36",
                "minCompatibilityMajor": "1", "minCompatibilityMinor": "35",
                "gitVersion": VERSION, "gitCommit": "", "gitTreeState": "clean",
                "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "rustc",
                "platform": "linux/amd64",
            }),
        ),
        _ => return None,
    })
}

fn named_groups(registry: &Registry) -> impl Iterator<Item = &str> {
    registry.groups().into_iter().filter(|group| !group.is_empty())
}

fn group(registry: &Registry, name: &str) -> Value {
    let versions: Vec<Value> = registry
        .versions(name)
        .into_iter()
        .map(|version| json!({"groupVersion": api_version(name, version), "version": version}))
        .collect();
    let preferred = versions.first().cloned().unwrap_or_default();
    json!({"name": name, "versions": versions, "preferredVersion": preferred})
}

fn group_version(registry: &Registry, group: &str, version: &str) -> Answer {
    let mut resources = Vec::new();
    for resource in registry.in_version(group, version) {
        resources.push(legacy(resource));
        for part in &resource.subresources {
            let mut entry = json!({
                "name": format!("{}/{}", resource.plural, part.name),
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": part.kind,
                "verbs": part.verbs,
            });
            if (&part.group, &part.version) != (&resource.group, &resource.version) {
                entry["group"] = part.group.as_str().into();
                entry["version"] = part.version.as_str().into();
            }
            resources.push(entry);
        }
    }
    resources.extend(crate::access::legacy(group, version));
    if resources.is_empty() {
        return if group.is_empty() || !registry.versions(group).is_empty() {
            crate::status::ApiError::no_such_resource().into()
        } else {
            not_found()
        };
    }
    let mut list = json!({
        "kind": "APIResourceList",
        "groupVersion": api_version(group, version),
        "resources": resources,
    });
    if !group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    Answer::value(200, &list)
}

fn legacy(resource: &Resource) -> Value {
    let mut entry = json!({
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": resource.verbs,
    });
    name_extras(&mut entry, resource);
    entry
}

fn name_extras(entry: &mut Value, resource: &Resource) {
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
}

fn aggregated_list(registry: &Registry, format: Option<&str>, core: bool) -> Answer {
    let format = format.unwrap_or("v2");
    let groups: Vec<&str> = match core {
        true => vec![""],
        false => {
            let mut all: Vec<&str> = named_groups(registry).chain([crate::access::AUTHENTICATION]).collect();
            all.sort_unstable();
            all.dedup();
            all
        }
    };
    let items: Vec<Value> = groups.into_iter().map(|group| aggregated_group(registry, group)).collect();
    let list = json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{format}"),
        "metadata": {},
        "items": items,
    });
    let mut answer = Answer::value(200, &list);
    answer.content_type = match format {
        "v2beta1" => "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
        _ => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
    };
    answer
}

fn aggregated_group(registry: &Registry, group: &str) -> Value {
    let mut names = registry.versions(group);
    if names.is_empty() {
        names = vec!["v1"];
    }
    let versions: Vec<Value> = names
        .into_iter()
        .map(|version| {
            let mut resources: Vec<Value> =
                registry.in_version(group, version).map(|r| aggregated(r)).collect();
            resources.extend(crate::access::aggregated(group, version));
            json!({"version": version, "resources": resources, "freshness": "Current"})
        })
        .collect();
    let mut metadata = Map::new();
    if !group.is_empty() {
        metadata.insert("name".into(), group.into());
    }
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated(resource: &Resource) -> Value {
    // kube-apiserver leaves out the group and version of built-in kinds where they are those of the list.
    let kind = |group: &str, version: &str, kind: &str| match (group, version)
        == (&resource.group, &resource.version)
    {
        true if !resource.is_custom() => json!({"group": "", "version": "", "kind": kind}),
        _ => json!({"group": group, "version": version, "kind": kind}),
    };
    let mut entry = json!({
        "resource": resource.plural,
        "responseKind": kind(&resource.group, &resource.version, &resource.kind),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": resource.verbs,
    });
    name_extras(&mut entry, resource);
    if !resource.subresources.is_empty() {
        let parts: Vec<Value> = resource
            .subresources
            .iter()
            .map(|part| {
                json!({
                    "subresource": part.name,
                    "responseKind": kind(&part.group, &part.version, &part.kind),
                    "verbs": part.verbs,
                })
            })
            .collect();
        entry["subresources"] = parts.into();
    }
    entry
}
