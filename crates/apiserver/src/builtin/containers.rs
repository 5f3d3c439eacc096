//! What a container must satisfy, as a main, init or ephemeral container.

use karpenter_primitives::names;
use serde_json::{Value, json};

use super::checks::{
    self, Errors, dns_label, duplicate, forbidden, invalid, non_negative, one_of, required, unsupported,
};
use super::fields::{at as value_at, entries, flag, has, int, items, text};
use super::path::At;
use super::quantity;

/// What a container may refer to.
pub(super) struct Surroundings<'a> {
    pub(super) volumes: Vec<&'a str>,
    pub(super) claims: Vec<&'a str>,
}

/// The containers of a pod's spec.
pub(super) fn main_containers(errors: &mut Errors, at: At<'_>, list: &[Value], around: &Surroundings<'_>) {
    if list.is_empty() {
        required(errors, at, "");
        return;
    }
    let mut seen = Vec::new();
    for (index, container) in list.iter().enumerate() {
        let at = at.index(index);
        container_itself(errors, at, container, around);
        unique_name(errors, at, container, &mut seen);
        hooks_and_probes(errors, at, container);
    }
    host_ports(errors, at, list);
}

/// The init containers; `main` are the others, whose names are taken.
pub(super) fn init_containers(
    errors: &mut Errors,
    at: At<'_>,
    list: &[Value],
    main: &[Value],
    around: &Surroundings<'_>,
) {
    let mut seen: Vec<&str> = main.iter().map(|c| text(c, "name")).collect();
    for (index, container) in list.iter().enumerate() {
        let at = at.index(index);
        container_itself(errors, at, container, around);
        if has(container, "restartPolicy") {
            one_of(
                errors,
                at.field("restartPolicy"),
                text(container, "restartPolicy"),
                &["Always", "Never", "OnFailure"],
            );
        }
        unique_name(errors, at, container, &mut seen);
        if text(container, "restartPolicy") == "Always" {
            hooks_and_probes(errors, at, container);
        } else {
            for key in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
                if has(container, key) {
                    forbidden(
                        errors,
                        at.field(key),
                        "may not be set for init containers without restartPolicy=Always",
                    );
                }
            }
        }
    }
}

fn unique_name<'a>(errors: &mut Errors, at: At<'_>, container: &'a Value, seen: &mut Vec<&'a str>) {
    let name = text(container, "name");
    if seen.contains(&name) {
        duplicate(errors, at.field("name"), name);
    } else if !name.is_empty() {
        seen.push(name);
    }
}

fn container_itself(errors: &mut Errors, at: At<'_>, container: &Value, around: &Surroundings<'_>) {
    match text(container, "name") {
        "" => required(errors, at.field("name"), ""),
        name => dns_label(errors, at.field("name"), name),
    }
    match text(container, "image") {
        "" => required(errors, at.field("image"), ""),
        image if image.trim() != image => {
            invalid(errors, at.field("image"), image, "must not have leading or trailing whitespace");
        }
        _ => {}
    }
    one_of(
        errors,
        at.field("terminationMessagePolicy"),
        text(container, "terminationMessagePolicy"),
        &["File", "FallbackToLogsOnError"],
    );
    ports(errors, at.field("ports"), items(container, "ports"));
    environment(errors, at.field("env"), items(container, "env"));
    environment_sources(errors, at.field("envFrom"), items(container, "envFrom"));
    mounts(errors, at.field("volumeMounts"), items(container, "volumeMounts"), around);
    for (index, device) in items(container, "volumeDevices").iter().enumerate() {
        let list_at = at.field("volumeDevices");
        let (device_at, name) = (list_at.index(index), text(device, "name"));
        if !around.volumes.contains(&name) {
            checks::not_found(errors, device_at.field("name"), name, "");
        }
    }
    for policy in items(container, "resizePolicy") {
        let list_at = at.field("resizePolicy");
        one_of(errors, list_at, text(policy, "resourceName"), &["cpu", "memory"]);
        one_of(errors, list_at, text(policy, "restartPolicy"), &["NotRequired", "RestartContainer"]);
    }
    one_of(
        errors,
        at.field("imagePullPolicy"),
        text(container, "imagePullPolicy"),
        &["Always", "IfNotPresent", "Never"],
    );
    resources(errors, at.field("resources"), value_at(container, &["resources"]), around);
    security_context(errors, at.field("securityContext"), value_at(container, &["securityContext"]));
}

fn ports(errors: &mut Errors, at: At<'_>, list: &[Value]) {
    let mut seen = Vec::new();
    for (index, port) in list.iter().enumerate() {
        let at = at.index(index);
        let name = text(port, "name");
        if !name.is_empty() && checks::port_name(errors, at.field("name"), name) {
            if seen.contains(&name) {
                duplicate(errors, at.field("name"), name);
            } else {
                seen.push(name);
            }
        }
        match int(port, "containerPort").unwrap_or(0) {
            0 => required(errors, at.field("containerPort"), ""),
            number => checks::port_number(errors, at.field("containerPort"), number),
        }
        if let Some(number) = int(port, "hostPort").filter(|n| *n != 0) {
            checks::port_number(errors, at.field("hostPort"), number);
        }
        one_of(errors, at.field("protocol"), text(port, "protocol"), &["SCTP", "TCP", "UDP"]);
    }
}

fn host_ports(errors: &mut Errors, at: At<'_>, list: &[Value]) {
    let mut seen = Vec::new();
    for (index, container) in list.iter().enumerate() {
        for (port_index, port) in items(container, "ports").iter().enumerate() {
            let Some(number) = int(port, "hostPort").filter(|n| *n != 0) else { continue };
            let key = format!("{}/{}/{number}", text(port, "protocol"), text(port, "hostIP"));
            if seen.contains(&key) {
                let container_at = at.index(index);
                let ports_at = container_at.field("ports");
                duplicate(errors, ports_at.index(port_index).field("hostPort"), key);
            } else {
                seen.push(key);
            }
        }
    }
}

fn environment(errors: &mut Errors, at: At<'_>, list: &[Value]) {
    for (index, variable) in list.iter().enumerate() {
        let at = at.index(index);
        let name = text(variable, "name");
        if name.is_empty() {
            required(errors, at.field("name"), "");
        } else if !name.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=') {
            invalid(
                errors,
                at.field("name"),
                name,
                "a valid environment variable name must consist only of printable ASCII characters other than '='",
            );
        }
        if has(variable, "valueFrom") {
            value_from(errors, at.field("valueFrom"), variable);
        }
    }
}

fn value_from(errors: &mut Errors, at: At<'_>, variable: &Value) {
    let source = value_at(variable, &["valueFrom"]);
    let mut count = 0;
    if let Some(reference) = source.get("fieldRef") {
        count += 1;
        field_reference(errors, at.field("fieldRef"), reference, ENV_FIELDS);
    }
    if let Some(reference) = source.get("resourceFieldRef") {
        count += 1;
        if text(reference, "resource").is_empty() {
            required(errors, at.field("resourceFieldRef").field("resource"), "");
        }
    }
    for key in ["configMapKeyRef", "secretKeyRef"] {
        if let Some(reference) = source.get(key) {
            count += 1;
            let at = at.field(key);
            if text(reference, "name").is_empty() {
                required(errors, at.field("name"), "");
            }
            match text(reference, "key") {
                "" => required(errors, at.field("key"), ""),
                name => checks::name(errors, at.field("key"), name, checks::config_key_errors),
            }
        }
    }
    count += i32::from(has(source, "fileKeyRef"));
    if count == 0 {
        invalid(
            errors,
            at,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        );
    } else if !text(variable, "value").is_empty() {
        invalid(errors, at, "", "may not be specified when `value` is not empty");
    } else if count > 1 {
        invalid(errors, at, "", "may not have more than one field specified at a time");
    }
}

const ENV_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// A field of the pod itself, given to a container or a downward volume.
pub(super) fn field_reference(errors: &mut Errors, at: At<'_>, reference: &Value, allowed: &[&str]) {
    const KNOWN: &[&str] = &[
        "metadata.annotations",
        "metadata.labels",
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.hostNetwork",
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
        "status.nominatedNodeName",
        "status.phase",
        "status.podIP",
        "status.podIPs",
    ];
    let path = text(reference, "fieldPath");
    if path.is_empty() {
        required(errors, at.field("fieldPath"), "");
        return;
    }
    if let Some((map, key)) = path.strip_suffix("']").and_then(|p| p.split_once("['")) {
        if matches!(map, "metadata.annotations" | "metadata.labels") {
            // Annotations have been looked up without regard to case.
            let key = if map.ends_with("annotations") { key.to_lowercase() } else { key.to_owned() };
            checks::qualified_name(errors, at, &key);
        } else {
            invalid(errors, at, path, "does not support subscript");
        }
    } else if !KNOWN.contains(&path) {
        invalid(
            errors,
            at.field("fieldPath"),
            path,
            format!("error converting fieldPath: field label not supported: {path}"),
        );
    } else if !allowed.contains(&path) {
        unsupported(errors, at.field("fieldPath"), path, allowed);
    }
}

fn environment_sources(errors: &mut Errors, at: At<'_>, list: &[Value]) {
    for (index, source) in list.iter().enumerate() {
        let at = at.index(index);
        let given: Vec<&str> = ["configMapRef", "secretRef"].into_iter().filter(|k| has(source, k)).collect();
        for key in &given {
            if text(value_at(source, &[key]), "name").is_empty() {
                required(errors, at.field(key).field("name"), "");
            }
        }
        if given.is_empty() {
            invalid(errors, at, "", "must specify one of: `configMapRef` or `secretRef`");
        } else if given.len() > 1 {
            invalid(errors, at, "", "may not have more than one field specified at a time");
        }
    }
}

fn mounts(errors: &mut Errors, at: At<'_>, list: &[Value], around: &Surroundings<'_>) {
    let mut seen = Vec::new();
    for (index, mount) in list.iter().enumerate() {
        let here = at.index(index);
        let (name, path) = (text(mount, "name"), text(mount, "mountPath"));
        if name.is_empty() {
            required(errors, here.field("name"), "");
        }
        if !around.volumes.contains(&name) {
            checks::not_found(errors, here.field("name"), name, "");
        }
        if path.is_empty() {
            required(errors, here.field("mountPath"), "");
        }
        if seen.contains(&path) {
            invalid(errors, here.field("mountPath"), path, "must be unique");
        }
        seen.push(path);
        for key in ["subPath", "subPathExpr"] {
            descending_path(errors, at.field(key), text(mount, key));
        }
    }
}

/// A relative path that does not climb out.
pub(super) fn descending_path(errors: &mut Errors, at: At<'_>, path: &str) {
    if path.starts_with('/') {
        invalid(errors, at, path, "must be a relative path");
    }
    no_backsteps(errors, at, path);
}

pub(super) fn no_backsteps(errors: &mut Errors, at: At<'_>, path: &str) {
    if path.split('/').any(|part| part == "..") {
        invalid(errors, at, path, "must not contain '..'");
    }
}

fn is_native(resource: &str) -> bool {
    !resource.contains('/') || resource.contains("kubernetes.io/")
}

fn may_overcommit(resource: &str) -> bool {
    is_native(resource) && !resource.starts_with("hugepages-")
}

fn is_extended(resource: &str) -> bool {
    !is_native(resource)
        && !resource.starts_with("requests.")
        && names::qualified_name_errors(&format!("requests.{resource}")).is_empty()
}

/// Requests and limits of a container.
pub(super) fn resources(errors: &mut Errors, at: At<'_>, resources: &Value, around: &Surroundings<'_>) {
    for list in ["limits", "requests"] {
        let list_at = at.field(list);
        for (name, amount) in entries(resources, list) {
            let at = list_at.key(name);
            container_resource_name(errors, at, name);
            resource_amount(errors, at, name, amount);
            if list == "requests" {
                request_against_limit(
                    errors,
                    &list_at,
                    &At::field(&at_parent(&list_at), "limits"),
                    name,
                    amount,
                    resources,
                );
            }
        }
    }
    let any = |wanted: fn(&str) -> bool| {
        ["limits", "requests"].iter().any(|list| entries(resources, list).any(|(name, _)| wanted(name)))
    };
    if any(|n| n.starts_with("hugepages-")) && !any(|n| matches!(n, "cpu" | "memory")) {
        forbidden(errors, at, "HugePages require cpu or memory");
    }
    let mut seen = Vec::new();
    for (index, claim) in items(resources, "claims").iter().enumerate() {
        let claims_at = at.field("claims");
        let at = claims_at.index(index);
        let name = text(claim, "name");
        if name.is_empty() {
            required(errors, at, "");
        } else if seen.contains(&claim) {
            duplicate(errors, at, name);
        } else if !around.claims.contains(&name) {
            let mut known: Vec<&str> = around.claims.clone();
            known.sort_unstable();
            known.dedup();
            let detail = if known.is_empty() {
                "must be one of the names in pod.spec.resourceClaims which is empty".to_owned()
            } else {
                format!("must be one of the names in pod.spec.resourceClaims: {}", known.join(", "))
            };
            checks::not_found(errors, at, name, &detail);
        }
        seen.push(claim);
    }
}

/// The path a path hangs on.
fn at_parent<'a>(at: &At<'a>) -> At<'a> {
    match at {
        At::Field(parent, _) | At::Index(parent, _) | At::Key(parent, _) => **parent,
        top @ At::Top(_) => *top,
    }
}

fn request_against_limit(
    errors: &mut Errors,
    requests_at: &At<'_>,
    limits_at: &At<'_>,
    name: &str,
    amount: &Value,
    resources: &Value,
) {
    let limit = value_at(resources, &["limits", name]);
    match (quantity::parse(amount.as_str()), quantity::parse(limit.as_str())) {
        (Some(request), Some(limit)) if may_overcommit(name) && request > limit => {
            let detail = format!("must be less than or equal to {name} limit of {limit}");
            invalid(errors, *requests_at, amount.clone(), detail);
        }
        (Some(request), Some(limit)) if !may_overcommit(name) && request != limit => {
            invalid(
                errors,
                *requests_at,
                amount.clone(),
                format!("must be equal to {name} limit of {limit}"),
            );
        }
        (Some(_), None) if !may_overcommit(name) => {
            required(errors, *limits_at, "Limit must be set for non overcommitable resources");
        }
        _ => {}
    }
}

fn container_resource_name(errors: &mut Errors, at: At<'_>, name: &str) {
    checks::qualified_name(errors, at, name);
    if !name.contains('/') {
        let standard =
            matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
        if !standard {
            invalid(errors, at, name, "must be a standard resource type or fully qualified");
            invalid(errors, at, name, "must be a standard resource for containers");
        }
    } else if !is_native(name) && !is_extended(name) {
        invalid(errors, at, name, "doesn't follow extended resource name standard");
    }
}

fn resource_amount(errors: &mut Errors, at: At<'_>, name: &str, amount: &Value) {
    checks::non_negative_quantity(errors, at, amount);
    if !is_native(name) && quantity::parse(amount.as_str()).is_some_and(|q| !checks::is_whole(&q)) {
        invalid(errors, at, amount.clone(), "must be an integer");
    }
}

fn hooks_and_probes(errors: &mut Errors, at: At<'_>, container: &Value) {
    for hook in ["postStart", "preStop"] {
        if let Some(handler) = value_at(container, &["lifecycle"]).get(hook) {
            handlers(errors, at.field("lifecycle").field(hook), handler);
        }
    }
    for (key, only_one_success) in
        [("livenessProbe", true), ("readinessProbe", false), ("startupProbe", true)]
    {
        let Some(probe) = container.get(key) else { continue };
        let at = at.field(key);
        handlers(errors, at, probe);
        for number in
            ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
        {
            non_negative(errors, at.field(number), int(probe, number));
        }
        if let Some(grace) = int(probe, "terminationGracePeriodSeconds") {
            if !only_one_success {
                invalid(
                    errors,
                    at.field("terminationGracePeriodSeconds"),
                    grace,
                    "must not be set for readinessProbes",
                );
            } else if grace <= 0 {
                invalid(errors, at.field("terminationGracePeriodSeconds"), grace, "must be greater than 0");
            }
        }
        if only_one_success && int(probe, "successThreshold") != Some(1) {
            let value = probe.get("successThreshold").cloned().unwrap_or_default();
            invalid(errors, at.field("successThreshold"), value, "must be 1");
        }
    }
}

fn handlers(errors: &mut Errors, at: At<'_>, owner: &Value) {
    let mut count = 0;
    for key in ["exec", "httpGet", "tcpSocket", "grpc", "sleep"] {
        let Some(handler) = owner.get(key) else { continue };
        let at = at.field(key);
        count += 1;
        if count > 1 {
            forbidden(errors, at, "may not specify more than 1 handler type");
            continue;
        }
        match key {
            "exec" if items(handler, "command").is_empty() => required(errors, at.field("command"), ""),
            "httpGet" => {
                if text(handler, "path").is_empty() {
                    required(errors, at.field("path"), "");
                }
                checks::port(errors, at.field("port"), value_at(handler, &["port"]));
                if !matches!(text(handler, "scheme"), "HTTP" | "HTTPS") {
                    unsupported(errors, at.field("scheme"), text(handler, "scheme"), &["HTTP", "HTTPS"]);
                }
            }
            "tcpSocket" | "grpc" => checks::port(errors, at.field("port"), value_at(handler, &["port"])),
            _ => {}
        }
    }
    if count == 0 {
        required(errors, at, "must specify a handler type");
    }
}

/// The seccomp profile of a pod's or container's security context at `at`.
pub(super) fn seccomp_profile(errors: &mut Errors, at: At<'_>, context: &Value) {
    let profile = value_at(context, &["seccompProfile"]);
    if profile.is_null() {
        return;
    }
    let profile_at = at.field("seccompProfile");
    let localhost = text(profile, "type") == "Localhost";
    let name = text(profile, "localhostProfile");
    if localhost && name.is_empty() {
        let detail = "must be set when seccomp type is Localhost";
        required(errors, profile_at.field("localhostProfile"), detail);
    } else if !localhost && has(profile, "localhostProfile") {
        let detail = "can only be set when seccomp type is Localhost";
        invalid(errors, profile_at.field("localhostProfile"), name, detail);
    }
    match text(profile, "type") {
        "" => required(errors, profile_at.field("type"), "type is required when seccompProfile is set"),
        "Localhost" | "RuntimeDefault" | "Unconfined" => {}
        other => {
            unsupported(
                errors,
                profile_at.field("type"),
                other,
                &["Localhost", "RuntimeDefault", "Unconfined"],
            );
        }
    }
}

fn security_context(errors: &mut Errors, at: At<'_>, context: &Value) {
    seccomp_profile(errors, at, context);
    for key in ["runAsUser", "runAsGroup"] {
        id(errors, at.field(key), int(context, key));
    }
    if context.get("allowPrivilegeEscalation") == Some(&Value::Bool(false)) {
        if flag(context, "privileged") {
            invalid(
                errors,
                at,
                json!({"Privileged": true, "AllowPrivilegeEscalation": false}),
                "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
            );
        }
        if items(value_at(context, &["capabilities"]), "add").iter().any(|c| c == "CAP_SYS_ADMIN") {
            invalid(
                errors,
                at,
                json!({"Capabilities": value_at(context, &["capabilities"]), "AllowPrivilegeEscalation": false}),
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
            );
        }
    }
}

/// The id of a user or group.
pub(super) fn id(errors: &mut Errors, at: At<'_>, value: Option<i64>) {
    if let Some(value) = value.filter(|v| !(0..=i64::from(i32::MAX)).contains(v)) {
        invalid(errors, at, value, "must be between 0 and 2147483647, inclusive");
    }
}
