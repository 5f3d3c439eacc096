//! What Services, Endpoints, EndpointSlices, Ingresses and NetworkPolicies must satisfy.

use serde_json::Value;

use super::checks::{
    self, Errors, NOT_A_CIDR, NOT_AN_IP, dns_label, dns_subdomain, duplicate, invalid, label_selector,
    one_of, required, unsupported,
};
use super::fields::{at, has, int, items, text};
use super::path::At;

const SPEC: At<'static> = At::Top("spec");
const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];

pub(super) fn service(object: &Value, errors: &mut Errors) {
    let spec = at(object, &["spec"]);
    let kind = text(spec, "type");
    let headless = text(spec, "clusterIP") == "None";
    let ports = items(spec, "ports");
    if ports.is_empty() && !headless && kind != "ExternalName" {
        required(errors, SPEC.field("ports"), "");
    }
    if kind == "ExternalName" {
        match text(spec, "externalName").trim_end_matches('.') {
            "" => required(errors, SPEC.field("externalName"), ""),
            name => dns_subdomain(errors, SPEC.field("externalName"), name),
        }
    }
    service_ports(errors, ports);
    checks::labels(errors, SPEC.field("selector"), spec, "selector");
    one_of(errors, SPEC.field("sessionAffinity"), text(spec, "sessionAffinity"), &["ClientIP", "None"]);
    for (index, address) in items(spec, "clusterIPs").iter().filter_map(Value::as_str).enumerate() {
        if address != "None" && !checks::is_ip(address) {
            invalid(errors, SPEC.field("clusterIPs").index(index), address, NOT_AN_IP);
        }
    }
    for (index, address) in items(spec, "externalIPs").iter().filter_map(Value::as_str).enumerate() {
        if !checks::is_ip(address) {
            invalid(errors, SPEC.field("externalIPs").index(index), address, NOT_AN_IP);
        }
    }
    one_of(errors, SPEC.field("type"), kind, &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]);
    for (key, allowed) in
        [("externalTrafficPolicy", ["Cluster", "Local"]), ("internalTrafficPolicy", ["Cluster", "Local"])]
    {
        if has(spec, key) && !allowed.contains(&text(spec, key)) {
            unsupported(errors, SPEC.field(key), text(spec, key), &allowed);
        }
    }
}

fn service_ports(errors: &mut Errors, ports: &[Value]) {
    let list_at = SPEC.field("ports");
    let mut seen = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let port_at = list_at.index(index);
        let name = text(port, "name");
        if name.is_empty() {
            if ports.len() > 1 {
                required(errors, port_at.field("name"), "");
            }
        } else {
            dns_label(errors, port_at.field("name"), name);
            if seen.contains(&name) {
                duplicate(errors, port_at.field("name"), name);
            }
            seen.push(name);
        }
        checks::port_number(errors, port_at.field("port"), int(port, "port").unwrap_or(0));
        one_of(errors, port_at.field("protocol"), text(port, "protocol"), PROTOCOLS);
        checks::port(errors, port_at.field("targetPort"), at(port, &["targetPort"]));
        let same = |other: &&Value| {
            other.get("port") == port.get("port") && other.get("protocol") == port.get("protocol")
        };
        if ports[..index].iter().find(same).is_some() {
            duplicate(errors, port_at, Value::Null);
            let (protocol, number) = (text(port, "protocol"), int(port, "port").unwrap_or(0));
            checks::last_shown_as(
                errors,
                format!(
                    r#"{{"Name":"","Protocol":"{protocol}","AppProtocol":null,"Port":{number},"TargetPort":0,"NodePort":0}}"#
                ),
            );
        }
    }
}

pub(super) fn service_update(new: &Value, old: &Value, subresource: Option<&str>, errors: &mut Errors) {
    if subresource == Some("status") {
        return;
    }
    service(new, errors);
    let (spec, before) = (at(new, &["spec"]), at(old, &["spec"]));
    let both_inside = text(spec, "type") != "ExternalName" && text(before, "type") != "ExternalName";
    if both_inside
        && !text(before, "clusterIP").is_empty()
        && text(spec, "clusterIP") != text(before, "clusterIP")
    {
        let clear = text(spec, "clusterIP").is_empty();
        let detail = if clear { "primary clusterIP can not be unset" } else { "may not change once set" };
        invalid(errors, SPEC.field("clusterIPs").index(0), items(spec, "clusterIPs").to_vec(), detail);
    }
}

pub(super) fn endpoints(object: &Value, errors: &mut Errors) {
    let list_at = At::Top("subsets");
    for (index, subset) in items(object, "subsets").iter().enumerate() {
        let subset_at = list_at.index(index);
        if items(subset, "addresses").is_empty() && items(subset, "notReadyAddresses").is_empty() {
            required(errors, subset_at, "must specify `addresses` or `notReadyAddresses`");
        }
        for list in ["addresses", "notReadyAddresses"] {
            let addresses_at = subset_at.field(list);
            for (index, address) in items(subset, list).iter().enumerate() {
                let address_at = addresses_at.index(index);
                endpoint_address(errors, address_at.field("ip"), text(address, "ip"));
            }
        }
        let ports = items(subset, "ports");
        let ports_at = subset_at.field("ports");
        for (index, port) in ports.iter().enumerate() {
            let port_at = ports_at.index(index);
            match text(port, "name") {
                "" if ports.len() > 1 => required(errors, port_at.field("name"), ""),
                "" => {}
                name => dns_label(errors, port_at.field("name"), name),
            }
            checks::port_number(errors, port_at.field("port"), int(port, "port").unwrap_or(0));
            one_of(errors, port_at.field("protocol"), text(port, "protocol"), PROTOCOLS);
        }
    }
}

fn endpoint_address(errors: &mut Errors, at: At<'_>, ip: &str) {
    match ip.parse::<std::net::IpAddr>() {
        Err(_) => {
            // Two rules look at it, each with its own words.
            invalid(errors, at, ip, NOT_AN_IP);
            invalid(errors, at, ip, "must be a valid IP address");
        }
        Ok(address) if address.is_loopback() => {
            invalid(errors, at, ip, "may not be in the loopback range (127.0.0.0/8, ::1/128)");
        }
        Ok(_) => {}
    }
}

pub(super) fn endpoint_slice(object: &Value, errors: &mut Errors) {
    let kind = text(object, "addressType");
    one_of(errors, At::Top("addressType"), kind, &["FQDN", "IPv4", "IPv6"]);
    let list_at = At::Top("endpoints");
    for (index, endpoint) in items(object, "endpoints").iter().enumerate() {
        let addresses_at = list_at.index(index);
        let addresses_at = addresses_at.field("addresses");
        let addresses = items(endpoint, "addresses");
        if addresses.is_empty() {
            required(errors, addresses_at, "must contain at least 1 address");
        }
        for (index, address) in addresses.iter().filter_map(Value::as_str).enumerate() {
            if matches!(kind, "IPv4" | "IPv6") && !checks::is_ip(address) {
                invalid(errors, addresses_at.index(index), address, NOT_AN_IP);
            }
        }
    }
    let ports_at = At::Top("ports");
    let mut seen = Vec::new();
    for (index, port) in items(object, "ports").iter().enumerate() {
        let port_at = ports_at.index(index);
        let name = text(port, "name");
        if !name.is_empty() {
            dns_label(errors, port_at.field("name"), name);
        }
        if seen.contains(&name) {
            duplicate(errors, port_at.field("name"), name);
        }
        seen.push(name);
        one_of(errors, port_at.field("protocol"), text(port, "protocol"), PROTOCOLS);
    }
}

pub(super) fn endpoint_slice_update(new: &Value, old: &Value, _: Option<&str>, errors: &mut Errors) {
    endpoint_slice(new, errors);
    checks::immutable(errors, At::Top("addressType"), at(new, &["addressType"]), at(old, &["addressType"]));
}

pub(super) fn ingress(object: &Value, errors: &mut Errors) {
    let spec = at(object, &["spec"]);
    if items(spec, "rules").is_empty() && !has(spec, "defaultBackend") {
        let detail = "either `defaultBackend` or `rules` must be specified";
        invalid(errors, SPEC, at(spec, &["rules"]).clone(), detail);
    }
    let list_at = SPEC.field("rules");
    for (index, rule) in items(spec, "rules").iter().enumerate() {
        let rule_at = list_at.index(index);
        let host = text(rule, "host");
        if !host.is_empty() && !host.starts_with("*.") {
            dns_subdomain(errors, rule_at.field("host"), host);
        }
        let http_at = rule_at.field("http");
        let paths_at = http_at.field("paths");
        for (index, path) in items(at(rule, &["http"]), "paths").iter().enumerate() {
            ingress_path(errors, paths_at.index(index), path);
        }
    }
}

fn ingress_path(errors: &mut Errors, path_at: At<'_>, path: &Value) {
    let route = text(path, "path");
    match text(path, "pathType") {
        "" => {
            required(errors, path_at.field("pathType"), "pathType must be specified");
            return;
        }
        "Exact" | "Prefix" => {
            if !route.starts_with('/') {
                invalid(errors, path_at.field("path"), route, "must be an absolute path");
            }
        }
        "ImplementationSpecific" => {
            if !route.is_empty() && !route.starts_with('/') {
                invalid(errors, path_at.field("path"), route, "must be an absolute path");
            }
        }
        other => {
            unsupported(
                errors,
                path_at.field("pathType"),
                other,
                &["Exact", "ImplementationSpecific", "Prefix"],
            );
        }
    }
    let backend = at(path, &["backend"]);
    if let Some(service) = backend.get("service") {
        let backend_at = path_at.field("backend");
        let service_at = backend_at.field("service");
        match text(service, "name") {
            "" => required(errors, service_at.field("name"), ""),
            name => dns_label(errors, service_at.field("name"), name),
        }
        let port = at(service, &["port"]);
        if !has(port, "name") && !has(port, "number") {
            required(errors, service_at, "port name or number is required");
        }
    }
}

pub(super) fn network_policy(object: &Value, errors: &mut Errors) {
    let spec = at(object, &["spec"]);
    label_selector(errors, SPEC.field("podSelector"), at(spec, &["podSelector"]));
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        let list_at = SPEC.field(direction);
        for (index, rule) in items(spec, direction).iter().enumerate() {
            let rule_at = list_at.index(index);
            let peers_at = rule_at.field(peers);
            for (index, peer) in items(rule, peers).iter().enumerate() {
                let peer_at = peers_at.index(index);
                for selector in ["podSelector", "namespaceSelector"] {
                    if let Some(value) = peer.get(selector) {
                        label_selector(errors, peer_at.field(selector), value);
                    }
                }
                if let Some(block) = peer.get("ipBlock")
                    && !checks::is_cidr(text(block, "cidr"))
                {
                    invalid(errors, peer_at.field("ipBlock").field("cidr"), text(block, "cidr"), NOT_A_CIDR);
                }
            }
        }
    }
}
