//! What kube-apiserver fills in for a pod's spec, wherever one stands: in a Pod or in a workload's template.

use serde_json::{Value, json};

use super::fields::{child, default_to, flag, has, inner, items_mut, set, text};
use super::quantity;

/// Defaults of a spec in a Pod or a template.
pub(super) fn default_spec(spec: &mut Value) {
    default_to(spec, "dnsPolicy", "ClusterFirst");
    default_to(spec, "restartPolicy", "Always");
    default_to(spec, "securityContext", json!({}));
    default_to(spec, "terminationGracePeriodSeconds", 30);
    default_to(spec, "schedulerName", "default-scheduler");
    // The deprecated field and its successor always say the same.
    if has(spec, "serviceAccountName") {
        let name = text(spec, "serviceAccountName").to_owned();
        set(spec, "serviceAccount", name);
    } else if has(spec, "serviceAccount") {
        let name = text(spec, "serviceAccount").to_owned();
        set(spec, "serviceAccountName", name);
    }
    for volume in items_mut(spec, "volumes") {
        default_volume(volume);
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in items_mut(spec, list) {
            default_container(container);
        }
    }
    if let Some(overhead) = inner(spec, "overhead") {
        default_resource_list(overhead);
    }
    if let Some(resources) = inner(spec, "resources") {
        default_resources(resources);
    }
}

/// Defaults only a Pod has: a template leaves them to the Pod that will be made of it.
pub(super) fn default_pod_only(spec: &mut Value) {
    for list in ["initContainers", "containers"] {
        for container in items_mut(spec, list) {
            requests_from_limits(container);
        }
    }
    if let Some(resources) = inner(spec, "resources") {
        let limits = resources.get("limits").and_then(Value::as_object).cloned().unwrap_or_default();
        for (name, amount) in limits {
            if matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-") {
                default_to(child(resources, "requests"), &name, amount);
            }
        }
    }
    default_to(spec, "enableServiceLinks", true);
    if flag(spec, "hostNetwork") {
        for list in ["initContainers", "containers"] {
            for container in items_mut(spec, list) {
                for port in items_mut(container, "ports") {
                    if let Some(number) = port.get("containerPort").cloned() {
                        default_to(port, "hostPort", number);
                    }
                }
            }
        }
    }
}

fn requests_from_limits(container: &mut Value) {
    let Some(resources) = inner(container, "resources") else { return };
    let Some(limits) = resources.get("limits").and_then(Value::as_object).filter(|l| !l.is_empty()).cloned()
    else {
        return;
    };
    let requests = child(resources, "requests");
    for (name, amount) in limits {
        default_to(requests, &name, amount);
    }
}

fn default_container(container: &mut Value) {
    if !has(container, "imagePullPolicy") {
        let policy = pull_policy(text(container, "image"));
        set(container, "imagePullPolicy", policy);
    }
    default_to(container, "terminationMessagePath", "/dev/termination-log");
    default_to(container, "terminationMessagePolicy", "File");
    for port in items_mut(container, "ports") {
        default_to(port, "protocol", "TCP");
    }
    for variable in items_mut(container, "env") {
        if let Some(source) = inner(variable, "valueFrom") {
            if let Some(field) = inner(source, "fieldRef") {
                default_to(field, "apiVersion", "v1");
            }
            if let Some(file) = inner(source, "fileKeyRef") {
                default_to(file, "optional", false);
            }
        }
    }
    if let Some(resources) = inner(container, "resources") {
        default_resources(resources);
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = inner(container, probe) {
            default_probe(probe);
        }
    }
    if let Some(lifecycle) = inner(container, "lifecycle") {
        for hook in ["postStart", "preStop"] {
            if let Some(get) = inner(lifecycle, hook).and_then(|hook| inner(hook, "httpGet")) {
                default_http_get(get);
            }
        }
    }
}

fn default_probe(probe: &mut Value) {
    default_to(probe, "timeoutSeconds", 1);
    default_to(probe, "periodSeconds", 10);
    default_to(probe, "successThreshold", 1);
    default_to(probe, "failureThreshold", 3);
    if let Some(get) = inner(probe, "httpGet") {
        default_http_get(get);
    }
    if let Some(grpc) = inner(probe, "grpc") {
        default_to(grpc, "service", "");
    }
}

fn default_http_get(get: &mut Value) {
    default_to(get, "path", "/");
    default_to(get, "scheme", "HTTP");
}

/// `Always` for the tag `latest`, given or meant.
fn pull_policy(image: &str) -> &'static str {
    let digest = image.contains('@');
    let name = image.split('@').next().unwrap_or(image);
    let last = name.rsplit('/').next().unwrap_or(name);
    match last.split_once(':') {
        Some((_, "latest")) => "Always",
        Some(_) => "IfNotPresent",
        // Text that is no image reference has no tag at all.
        None if digest || image.is_empty() || !plausible_image(name) => "IfNotPresent",
        None => "Always",
    }
}

fn plausible_image(name: &str) -> bool {
    let path = match name.split_once('/') {
        Some((host, path))
            if host.contains(['.', ':'])
                || host == "localhost"
                || host.bytes().any(|b| b.is_ascii_uppercase()) =>
        {
            path
        }
        _ => name,
    };
    path.split('/').all(|part| {
        !part.is_empty()
            && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b))
            && part.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
            && part.as_bytes().last().is_some_and(u8::is_ascii_alphanumeric)
    })
}

/// `requests` and `limits`, rounded up to thousandths.
pub(super) fn default_resources(resources: &mut Value) {
    for list in ["requests", "limits"] {
        if let Some(amounts) = inner(resources, list) {
            default_resource_list(amounts);
        }
    }
}

/// Amounts finer than a thousandth are rounded up.
pub(super) fn default_resource_list(amounts: &mut Value) {
    for amount in amounts.as_object_mut().into_iter().flat_map(|map| map.values_mut()) {
        if let Some(rounded) = amount.as_str().and_then(quantity::rounded_to_milli) {
            *amount = rounded.into();
        }
    }
}

fn default_volume(volume: &mut Value) {
    if volume.as_object().is_some_and(|map| map.keys().all(|key| key == "name")) {
        set(volume, "emptyDir", json!({}));
        return;
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = inner(volume, source) {
            default_to(source, "defaultMode", 0o644);
        }
    }
    if let Some(downward) = inner(volume, "downwardAPI") {
        default_field_refs(downward);
    }
    if let Some(projected) = inner(volume, "projected") {
        for source in items_mut(projected, "sources") {
            if let Some(downward) = inner(source, "downwardAPI") {
                default_field_refs(downward);
            }
            if let Some(token) = inner(source, "serviceAccountToken") {
                default_to(token, "expirationSeconds", 3600);
            }
        }
    }
    if let Some(image) = inner(volume, "image") {
        let policy = pull_policy(text(image, "reference"));
        default_to(image, "pullPolicy", policy);
    }
    if let Some(template) = inner(volume, "ephemeral").and_then(|e| inner(e, "volumeClaimTemplate")) {
        default_claim_spec(child(template, "spec"));
    }
    default_volume_source(volume);
}

/// Sources that pods and PersistentVolumes share.
pub(super) fn default_volume_source(source: &mut Value) {
    if let Some(host) = inner(source, "hostPath") {
        default_to(host, "type", "");
    }
    if let Some(iscsi) = inner(source, "iscsi") {
        default_to(iscsi, "iscsiInterface", "default");
    }
    if let Some(rbd) = inner(source, "rbd") {
        default_to(rbd, "pool", "rbd");
        default_to(rbd, "user", "admin");
        default_to(rbd, "keyring", "/etc/ceph/keyring");
    }
    if let Some(azure) = inner(source, "azureDisk") {
        default_to(azure, "cachingMode", "ReadWrite");
        default_to(azure, "kind", "Shared");
        default_to(azure, "fsType", "ext4");
        default_to(azure, "readOnly", false);
    }
    if let Some(scale_io) = inner(source, "scaleIO") {
        default_to(scale_io, "storageMode", "ThinProvisioned");
        default_to(scale_io, "fsType", "xfs");
    }
}

fn default_field_refs(downward: &mut Value) {
    for item in items_mut(downward, "items") {
        if let Some(field) = inner(item, "fieldRef") {
            default_to(field, "apiVersion", "v1");
        }
    }
}

/// The spec of a claim, in a PersistentVolumeClaim or a template of one.
pub(super) fn default_claim_spec(spec: &mut Value) {
    default_to(spec, "volumeMode", "Filesystem");
    if let Some(resources) = inner(spec, "resources") {
        default_resources(resources);
    }
}
