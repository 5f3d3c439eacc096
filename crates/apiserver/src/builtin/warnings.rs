//! What kube-apiserver accepts in a new object but warns of: names, fields and values that do not do what they seem to.

use std::collections::BTreeMap;

use karpenter_primitives::names;
use serde_json::Value;

use super::fields::{at, entries, has, items, text};
use super::path::At;
use super::quantity;

/// The warnings for a new object of a kind, in kube-apiserver's order and words.
pub(super) fn on_create(group: &str, kind: &str, object: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let spec = at(object, &["spec"]);
    match (group, kind) {
        ("", "Pod") => {
            name_as_hostname(object, "the Pod's hostname", &mut found);
            pod_spec(At::Top("spec"), spec, &mut found);
        }
        ("", "PodTemplate") => {
            let template_at = At::Top("template");
            pod_spec(template_at.field("spec"), at(object, &["template", "spec"]), &mut found);
        }
        ("apps", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet")
        | ("", "ReplicationController")
        | ("batch", "Job") => {
            pod_spec(At::Top("spec.template.spec"), at(spec, &["template", "spec"]), &mut found);
        }
        ("batch", "CronJob") => {
            name_as_hostname(object, "Pod names and hostnames", &mut found);
            let template = at(spec, &["jobTemplate", "spec", "template", "spec"]);
            pod_spec(At::Top("spec.jobTemplate.spec.template.spec"), template, &mut found);
        }
        ("networking.k8s.io", "Ingress")
            if has(at(object, &["metadata", "annotations"]), "kubernetes.io/ingress.class") =>
        {
            found.push(
                "annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead"
                    .to_owned(),
            );
        }
        _ => {}
    }
    found
}

fn name_as_hostname(object: &Value, used_in: &str, found: &mut Vec<String>) {
    let name = text(at(object, &["metadata"]), "name");
    let mut why = Vec::new();
    if name.len() > 63 {
        why.push("must be no more than 63 characters");
    }
    if name.contains('.') {
        why.push("must not contain dots");
    }
    if !why.is_empty() && names::dns1123_subdomain_errors(name).is_empty() {
        found.push(format!(
            "metadata.name: this is used in {used_in}, which can result in surprising behavior; a DNS label is recommended: [{}]",
            why.join(",")
        ));
    }
}

/// Node labels that have another name now: the old one, since when, the new one.
const OLD_NODE_LABELS: [(&str, &str, &str); 6] = [
    ("beta.kubernetes.io/arch", "v1.14", "kubernetes.io/arch"),
    ("beta.kubernetes.io/os", "v1.14", "kubernetes.io/os"),
    ("failure-domain.beta.kubernetes.io/region", "v1.17", "topology.kubernetes.io/region"),
    ("failure-domain.beta.kubernetes.io/zone", "v1.17", "topology.kubernetes.io/zone"),
    ("beta.kubernetes.io/instance-type", "v1.17", "node.kubernetes.io/instance-type"),
    ("alpha.kubernetes.io/fluentd-ds-ready", "v1.6", ""),
];

fn old_node_label(label: &str) -> Option<String> {
    let (_, since, now) = OLD_NODE_LABELS.iter().find(|(old, ..)| *old == label)?;
    let instead = if now.is_empty() { String::new() } else { format!("; use {now:?} instead") };
    Some(format!("deprecated since {since}{instead}"))
}

fn pod_spec(spec_at: At<'_>, spec: &Value, found: &mut Vec<String>) {
    for (label, _) in entries(spec, "nodeSelector") {
        if let Some(why) = old_node_label(label) {
            found.push(format!("{spec_at}.nodeSelector[{label}]: {why}"));
        }
    }
    node_affinity(spec_at.field("affinity"), at(spec, &["affinity", "nodeAffinity"]), found);
    for (index, constraint) in items(spec, "topologySpreadConstraints").iter().enumerate() {
        let list_at = spec_at.field("topologySpreadConstraints");
        let constraint_at = list_at.index(index);
        let key = text(constraint, "topologyKey");
        if let Some(why) = old_node_label(key) {
            found.push(format!("{constraint_at}.topologyKey: {key} is {why}"));
        }
    }
    image_pull_secrets(spec_at.field("imagePullSecrets"), spec, found);
    for (index, volume) in items(spec, "volumes").iter().enumerate() {
        for (source, since) in [
            ("gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
            ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
        ] {
            if has(volume, source) {
                found.push(format!("{spec_at}.volumes[{index}].{source}: {since}"));
            }
        }
    }
    for list in ["initContainers", "containers"] {
        for (index, container) in items(spec, list).iter().enumerate() {
            let list_at = spec_at.field(list);
            container_values(list_at.index(index), container, found);
        }
    }
    null_selectors(spec_at, spec, found);
}

fn node_affinity(affinity_at: At<'_>, affinity: &Value, found: &mut Vec<String>) {
    let required = at(affinity, &["requiredDuringSchedulingIgnoredDuringExecution"]);
    for (term_index, term) in items(required, "nodeSelectorTerms").iter().enumerate() {
        for (index, expression) in items(term, "matchExpressions").iter().enumerate() {
            let key = text(expression, "key");
            if let Some(why) = old_node_label(key) {
                found.push(format!(
                    "{affinity_at}.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[{term_index}].matchExpressions[{index}].key: {key} is {why}"
                ));
            }
        }
    }
}

fn image_pull_secrets(list_at: At<'_>, spec: &Value, found: &mut Vec<String>) {
    let mut seen = Vec::new();
    for (index, secret) in items(spec, "imagePullSecrets").iter().enumerate() {
        let name = text(secret, "name");
        if name.is_empty() {
            found.push(format!("{list_at}[{index}].name: invalid empty name \"\""));
        } else if seen.contains(&name) {
            found.push(format!("{list_at}[{index}].name: duplicate name {name:?}"));
        }
        seen.push(name);
    }
}

fn container_values(container_at: At<'_>, container: &Value, found: &mut Vec<String>) {
    let mut names_seen = Vec::new();
    for (index, variable) in items(container, "env").iter().enumerate() {
        let name = text(variable, "name");
        if names_seen.contains(&name) {
            found.push(format!(
                "{container_at}.env[{index}]: hides previous definition of {name:?}, which may be dropped when using apply"
            ));
        }
        names_seen.push(name);
    }
    for list in ["limits", "requests"] {
        for resource in ["memory", "ephemeral-storage"] {
            let amount = at(container, &["resources", list, resource]).as_str();
            if let Some(parsed) = quantity::parse(amount).filter(|q| !super::checks::is_whole(q)) {
                found.push(format!(
                    "{container_at}.resources.{list}[{resource}]: fractional byte value \"{parsed}\" is invalid, must be an integer"
                ));
            }
        }
    }
    let mut ports_seen = BTreeMap::new();
    for (index, port) in items(container, "ports").iter().enumerate() {
        let number = port.get("containerPort").and_then(Value::as_i64).unwrap_or(0);
        let host = port.get("hostPort").and_then(Value::as_i64).unwrap_or(0);
        let key = (number, text(port, "protocol"), host, text(port, "hostIP"));
        if let Some(first) = ports_seen.get(&key) {
            found.push(format!(
                "{container_at}.ports[{index}]: duplicate port definition with {container_at}.ports[{first}]"
            ));
        } else {
            ports_seen.insert(key, index);
        }
    }
}

/// Selectors that were left out, and so select nothing where everything may have been meant.
fn null_selectors(spec_at: At<'_>, spec: &Value, found: &mut Vec<String>) {
    const WHY: &str = "a null labelSelector results in matching no pod";
    for kind in ["podAffinity", "podAntiAffinity"] {
        let affinity = at(spec, &["affinity", kind]);
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        for (index, term) in items(affinity, required).iter().enumerate() {
            if !has(term, "labelSelector") {
                found.push(format!("{spec_at}.affinity.{kind}.{required}[{index}].labelSelector: {WHY}"));
            }
        }
        let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
        for (index, term) in items(affinity, preferred).iter().enumerate() {
            if !has(at(term, &["podAffinityTerm"]), "labelSelector") {
                found.push(format!(
                    "{spec_at}.affinity.{kind}.{preferred}[{index}].podAffinityTerm.labelSelector: {WHY}"
                ));
            }
        }
    }
    for (index, constraint) in items(spec, "topologySpreadConstraints").iter().enumerate() {
        if !has(constraint, "labelSelector") {
            found.push(format!("{spec_at}.topologySpreadConstraints[{index}].labelSelector: {WHY}"));
        }
    }
}
