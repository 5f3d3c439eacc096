//! What a pod's spec must satisfy, in a Pod or in a workload's template.

use serde_json::Value;

use super::checks::{
    self, Errors, NOT_AN_IP, dns_label, dns_subdomain, duplicate, forbidden, invalid, one_of, qualified_name,
    required, unsupported,
};
use super::containers::{self, Surroundings};
use super::fields::{at as value_at, entries, flag, has, int, items, text};
use super::path::At;
use super::scheduling_rules::{affinity, spread_constraints, tolerations};
use super::volumes::volumes;

/// Whose spec it is: a few rules hold only for the pod itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Pod,
    Template,
}

/// Validates the spec at `at`.
pub(super) fn validate(errors: &mut Errors, at: At<'_>, spec: &Value, owner: Owner) {
    volumes(errors, at.field("volumes"), spec, owner);
    resource_claims(errors, at.field("resourceClaims"), items(spec, "resourceClaims"));
    let around = Surroundings {
        volumes: items(spec, "volumes").iter().map(|v| text(v, "name")).filter(|n| !n.is_empty()).collect(),
        claims: items(spec, "resourceClaims").iter().map(|c| text(c, "name")).collect(),
    };
    let main = items(spec, "containers");
    containers::main_containers(errors, at.field("containers"), main, &around);
    containers::init_containers(
        errors,
        at.field("initContainers"),
        items(spec, "initContainers"),
        main,
        &around,
    );
    host_network(errors, at.field("containers"), spec, owner);
    one_of(errors, at.field("restartPolicy"), text(spec, "restartPolicy"), &["Always", "OnFailure", "Never"]);
    dns(errors, at, spec);
    checks::labels(errors, at.field("nodeSelector"), spec, "nodeSelector");
    let security = value_at(spec, &["securityContext"]);
    if flag(spec, "shareProcessNamespace") && flag(spec, "hostPID") {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        invalid(errors, at.field("securityContext").field("shareProcessNamespace"), true, detail);
    }
    containers::seccomp_profile(errors, at.field("securityContext"), security);
    for key in ["fsGroup", "runAsUser", "runAsGroup"] {
        containers::id(errors, at.field("securityContext").field(key), int(security, key));
    }
    affinity(errors, at.field("affinity"), value_at(spec, &["affinity"]));
    for (index, gate) in items(spec, "readinessGates").iter().enumerate() {
        qualified_name(
            errors,
            at.field("readinessGates").index(index).field("conditionType"),
            text(gate, "conditionType"),
        );
    }
    scheduling_gates(errors, at.field("schedulingGates"), items(spec, "schedulingGates"));
    spread_constraints(
        errors,
        at.field("topologySpreadConstraints"),
        items(spec, "topologySpreadConstraints"),
    );
    for key in ["serviceAccountName", "nodeName", "priorityClassName", "runtimeClassName"] {
        if has(spec, key) {
            dns_subdomain(errors, at.field(key), text(spec, key));
        }
    }
    if let Some(seconds) =
        int(spec, "activeDeadlineSeconds").filter(|s| !(1..=i64::from(i32::MAX)).contains(s))
    {
        invalid(
            errors,
            at.field("activeDeadlineSeconds"),
            seconds,
            "must be between 1 and 2147483647, inclusive",
        );
    }
    for key in ["hostname", "subdomain"] {
        if has(spec, key) {
            dns_label(errors, at.field(key), text(spec, key));
        }
    }
    tolerations(errors, at.field("tolerations"), items(spec, "tolerations"));
    for (index, alias) in items(spec, "hostAliases").iter().enumerate() {
        let list = at.field("hostAliases");
        let at = list.index(index);
        let ip = text(alias, "ip");
        if !checks::is_ip(ip) {
            invalid(errors, at.field("ip"), ip, NOT_AN_IP);
        }
        for (index, hostname) in items(alias, "hostnames").iter().filter_map(Value::as_str).enumerate() {
            dns_subdomain(errors, at.field("hostnames").index(index), hostname);
        }
    }
    if has(spec, "preemptionPolicy") {
        one_of(
            errors,
            at.field("preemptionPolicy"),
            text(spec, "preemptionPolicy"),
            &["PreemptLowerPriority", "Never"],
        );
    }
    for (name, amount) in entries(spec, "overhead") {
        checks::non_negative_quantity(errors, at.field("overhead").key(name), amount);
    }
    if has(spec, "os") {
        let name = text(value_at(spec, &["os"]), "name");
        if name.is_empty() {
            required(errors, at.field("os").field("name"), "cannot be empty");
        } else if !matches!(name, "linux" | "windows") {
            unsupported(errors, at.field("os"), name, &["linux", "windows"]);
        }
    }
}

fn dns(errors: &mut Errors, at: At<'_>, spec: &Value) {
    const POLICIES: &[&str] = &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    one_of(errors, at.field("dnsPolicy"), text(spec, "dnsPolicy"), POLICIES);
    let config = value_at(spec, &["dnsConfig"]);
    if text(spec, "dnsPolicy") == "None" {
        if config.is_null() {
            required(errors, at.field("dnsConfig"), "must provide `dnsConfig` when `dnsPolicy` is None");
        } else if items(config, "nameservers").is_empty() {
            required(
                errors,
                at.field("dnsConfig").field("nameservers"),
                "must provide at least one DNS nameserver when `dnsPolicy` is None",
            );
        }
    }
    for (index, server) in items(config, "nameservers").iter().filter_map(Value::as_str).enumerate() {
        if !checks::is_ip(server) {
            invalid(errors, at.field("dnsConfig").field("nameservers").index(index), server, NOT_AN_IP);
        }
    }
}

fn host_network(errors: &mut Errors, at: At<'_>, spec: &Value, owner: Owner) {
    if !flag(spec, "hostNetwork") {
        return;
    }
    for (index, container) in items(spec, "containers").iter().enumerate() {
        for (port_index, port) in items(container, "ports").iter().enumerate() {
            let (host, inner) = (int(port, "hostPort").unwrap_or(0), int(port, "containerPort").unwrap_or(0));
            if (owner == Owner::Pod || host != 0) && host != inner {
                let container_at = at.index(index);
                let ports_at = container_at.field("ports");
                let at = ports_at.index(port_index);
                invalid(
                    errors,
                    at.field("hostPort"),
                    host,
                    "must match `containerPort` when `hostNetwork` is true",
                );
            }
        }
    }
}

fn resource_claims(errors: &mut Errors, at: At<'_>, list: &[Value]) {
    let mut seen = Vec::new();
    for (index, claim) in list.iter().enumerate() {
        let at = at.index(index);
        match text(claim, "name") {
            "" => required(errors, at.field("name"), ""),
            name if seen.contains(&name) => duplicate(errors, at.field("name"), name),
            name => {
                dns_label(errors, at.field("name"), name);
                seen.push(name);
            }
        }
        match (has(claim, "resourceClaimName"), has(claim, "resourceClaimTemplateName")) {
            (true, true) => invalid(
                errors,
                at,
                go_claim(claim),
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
            ),
            (false, false) => invalid(
                errors,
                at,
                go_claim(claim),
                "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
            ),
            _ => {}
        }
        for key in ["resourceClaimName", "resourceClaimTemplateName"] {
            if has(claim, key) {
                dns_subdomain(errors, at.field(key), text(claim, key));
            }
        }
    }
}

/// The claim as the server's own type is printed.
fn go_claim(claim: &Value) -> Value {
    serde_json::json!({
        "Name": text(claim, "name"),
        "ResourceClaimName": value_at(claim, &["resourceClaimName"]),
        "ResourceClaimTemplateName": value_at(claim, &["resourceClaimTemplateName"]),
    })
}

fn scheduling_gates(errors: &mut Errors, at: At<'_>, list: &[Value]) {
    let mut seen = Vec::new();
    for (index, gate) in list.iter().enumerate() {
        let name = text(gate, "name");
        qualified_name(errors, at.index(index), name);
        if seen.contains(&name) {
            duplicate(errors, at.index(index), name);
        }
        seen.push(name);
    }
}

/// Rules for the pod itself, on top of those for its spec.
pub(super) fn validate_pod(errors: &mut Errors, spec: &Value) {
    let at = At::Top("spec");
    validate(errors, at, spec, Owner::Pod);
    if has(spec, "ephemeralContainers") {
        forbidden(errors, at.field("ephemeralContainers"), "cannot be set on create");
    }
    if has(spec, "nodeName") && !items(spec, "schedulingGates").is_empty() {
        forbidden(errors, at.field("nodeName"), "cannot be set until all schedulingGates have been cleared");
    }
}
