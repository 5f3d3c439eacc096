//! Services, Endpoints, EndpointSlices, Ingresses and NetworkPolicies.

use serde_json::{Value, json};

use super::fields::{at, child, default_to, has, inner, items, items_mut, remove, set, text};
use super::network_rules;
use super::{Lookup, Rules};
use crate::field_error::FieldError;
use crate::status::ApiError;

pub(super) const SERVICE: Rules = Rules {
    default: default_service,
    prepare_create: prepare_service,
    prepare_update: prepare_service_update,
    validate_create: network_rules::service,
    validate_update: network_rules::service_update,
    ..Rules::NONE
};
pub(super) const ENDPOINTS: Rules = Rules {
    default: default_endpoints,
    validate_create: network_rules::endpoints,
    validate_update: |new, _, _, errors| network_rules::endpoints(new, errors),
    ..Rules::NONE
};
pub(super) const ENDPOINT_SLICE: Rules = Rules {
    default: default_endpoint_slice,
    validate_create: network_rules::endpoint_slice,
    validate_update: network_rules::endpoint_slice_update,
    ..Rules::NONE
};
pub(super) const NETWORK_POLICY: Rules = Rules {
    default: default_network_policy,
    validate_create: network_rules::network_policy,
    validate_update: |new, _, _, errors| network_rules::network_policy(new, errors),
    ..Rules::NONE
};
pub(super) const INGRESS: Rules = Rules {
    validate_create: network_rules::ingress,
    validate_update: |new, _, subresource, errors| {
        if subresource.is_none() {
            network_rules::ingress(new, errors);
        }
    },
    ..Rules::NONE
};
pub(super) const INGRESS_CLASS: Rules = Rules { default: default_ingress_class, ..Rules::NONE };

fn default_service(service: &mut Value) {
    let spec = child(service, "spec");
    default_to(spec, "sessionAffinity", "None");
    if text(spec, "sessionAffinity") == "None" {
        remove(spec, "sessionAffinityConfig");
    } else if text(spec, "sessionAffinity") == "ClientIP" {
        let config = child(child(spec, "sessionAffinityConfig"), "clientIP");
        default_to(config, "timeoutSeconds", 10_800);
    }
    default_to(spec, "type", "ClusterIP");
    for port in items_mut(spec, "ports") {
        default_to(port, "protocol", "TCP");
        let unset = matches!(port.get("targetPort"), None | Some(Value::Null))
            || port.get("targetPort").is_some_and(|p| p == 0 || p == "");
        if unset {
            let own = port.get("port").cloned().unwrap_or(Value::from(0));
            set(port, "targetPort", own);
        }
    }
    let kind = text(spec, "type").to_owned();
    let outside = matches!(kind.as_str(), "NodePort" | "LoadBalancer")
        || (kind == "ClusterIP" && !items(spec, "externalIPs").is_empty());
    if outside {
        default_to(spec, "externalTrafficPolicy", "Cluster");
    }
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer" | "ClusterIP") {
        default_to(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        default_to(spec, "allocateLoadBalancerNodePorts", true);
        for ingress in items_mut(child(child(service, "status"), "loadBalancer"), "ingress") {
            if has(ingress, "ip") {
                default_to(ingress, "ipMode", "VIP");
            }
        }
    }
}

/// The network cluster addresses are given out of, as kubeadm sets it up.
const SERVICE_NETWORK: [u8; 2] = [10, 96];
/// Node ports are given out of this range.
const NODE_PORTS: std::ops::RangeInclusive<i64> = 30_000..=32_767;

fn prepare_service(service: &mut Value, cluster: &dyn Lookup) -> Result<(), ApiError> {
    allocate(service, cluster)
}

/// Gives a Service its cluster address and node ports: the first free ones, so that a replay gives the same.
fn allocate(service: &mut Value, cluster: &dyn Lookup) -> Result<(), ApiError> {
    let name = text(at(service, &["metadata"]), "name").to_owned();
    let spec = child(service, "spec");
    let kind = text(spec, "type").to_owned();
    if kind == "ExternalName" {
        return Ok(());
    }
    let headless = text(spec, "clusterIP") == "None";
    // Nobody knows the addresses behind a headless Service without a selector: they may be of either family.
    let either = headless && !has(spec, "selector");
    default_to(spec, "ipFamilyPolicy", if either { "RequireDualStack" } else { "SingleStack" });
    default_to(spec, "ipFamilies", if either { json!(["IPv4", "IPv6"]) } else { json!(["IPv4"]) });
    let others = if headless && kind == "ClusterIP" { Vec::new() } else { cluster.list("", "services", "") };
    if headless {
        set(spec, "clusterIPs", json!(["None"]));
    } else {
        if !has(spec, "clusterIP") {
            let given = match items(spec, "clusterIPs").first().and_then(Value::as_str) {
                Some(first) => first.to_owned(),
                None => free_address(&others),
            };
            set(spec, "clusterIP", given);
        }
        let address = text(spec, "clusterIP");
        if others.iter().any(|s| text(at(s, &["spec"]), "clusterIP") == address) {
            let shown = json!([address]);
            let error = FieldError::invalid(
                "spec.clusterIPs",
                &shown,
                format!("failed to allocate IP {address}: provided IP is already allocated"),
            );
            return Err(ApiError::invalid("", "Service", &name, &[error]));
        }
        let own = json!([text(spec, "clusterIP")]);
        default_to(spec, "clusterIPs", own);
    }
    if kind == "NodePort"
        || (kind == "LoadBalancer" && spec.get("allocateLoadBalancerNodePorts") != Some(&Value::Bool(false)))
    {
        let mut taken: Vec<i64> = others
            .iter()
            .flat_map(|s| items(at(s, &["spec"]), "ports"))
            .filter_map(|p| p.get("nodePort").and_then(Value::as_i64))
            .collect();
        for (index, port) in items(spec, "ports").iter().enumerate() {
            let Some(number) = port.get("nodePort").and_then(Value::as_i64).filter(|n| *n != 0) else {
                continue;
            };
            if taken.contains(&number) {
                let path = format!("spec.ports[{index}].nodePort");
                let error = FieldError::invalid(path, &number.into(), "provided port is already allocated");
                return Err(ApiError::invalid("", "Service", &name, &[error]));
            }
        }
        taken.extend(items(spec, "ports").iter().filter_map(|p| p.get("nodePort").and_then(Value::as_i64)));
        for port in items_mut(spec, "ports") {
            if has(port, "nodePort") {
                continue;
            }
            if let Some(free) = NODE_PORTS.into_iter().find(|p| !taken.contains(p)) {
                taken.push(free);
                set(port, "nodePort", free);
            }
        }
    }
    Ok(())
}

fn free_address(others: &[Value]) -> String {
    let [a, b] = SERVICE_NETWORK;
    let taken: std::collections::BTreeSet<&str> =
        others.iter().map(|s| text(at(s, &["spec"]), "clusterIP")).collect();
    // The first address belongs to the API server's own Service.
    (2..65_535_u32)
        .map(|n| format!("{a}.{b}.{}.{}", n >> 8, n & 255))
        .find(|address| !taken.contains(address.as_str()))
        .unwrap_or_default()
}

/// What the cluster gave a Service stays with it while the type still needs it.
fn prepare_service_update(new: &mut Value, old: &Value, subresource: Option<&str>) {
    if subresource.is_some() {
        return;
    }
    let (kind, old_kind) =
        (text(at(new, &["spec"]), "type").to_owned(), text(at(old, &["spec"]), "type").to_owned());
    let old_spec = at(old, &["spec"]);
    let spec = child(new, "spec");
    if kind != "ExternalName" {
        for key in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            if let Some(value) = old_spec.get(key) {
                default_to(spec, key, value.clone());
            }
        }
        if matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
            let address = text(spec, "clusterIP").to_owned();
            for (index, port) in items_mut(spec, "ports").iter_mut().enumerate() {
                if has(port, "nodePort") {
                    continue;
                }
                let same = items(old_spec, "ports").iter().find(|p| {
                    p.get("port") == port.get("port")
                        && p.get("protocol") == port.get("protocol")
                        && has(p, "nodePort")
                });
                let number = same.and_then(|p| p.get("nodePort")).and_then(Value::as_i64);
                set(port, "nodePort", number.unwrap_or_else(|| own_node_port(&address, index)));
            }
        }
    }
    if kind != old_kind && kind == "ExternalName" {
        for key in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            remove(spec, key);
        }
        remove(spec, "internalTrafficPolicy");
    }
    if matches!(old_kind.as_str(), "NodePort" | "LoadBalancer")
        && matches!(kind.as_str(), "ClusterIP" | "ExternalName")
    {
        for port in items_mut(spec, "ports") {
            remove(port, "nodePort");
        }
        remove(spec, "externalTrafficPolicy");
        remove(spec, "allocateLoadBalancerNodePorts");
    }
}

/// A node port for a Service that becomes reachable from outside only later. An update cannot see the other Services, so
/// the port follows from the one thing no two of them share: the cluster address.
fn own_node_port(address: &str, index: usize) -> i64 {
    let host: i64 = address
        .rsplit('.')
        .take(2)
        .zip([1, 256])
        .map(|(octet, weight)| octet.parse().unwrap_or(0) * weight)
        .sum();
    let count = NODE_PORTS.end() - NODE_PORTS.start() + 1;
    // From the end of the range downwards: creation fills it from the beginning.
    NODE_PORTS.end() - (host * 4 + index as i64) % count
}

fn default_endpoints(endpoints: &mut Value) {
    for subset in items_mut(endpoints, "subsets") {
        for port in items_mut(subset, "ports") {
            default_to(port, "protocol", "TCP");
        }
    }
}

fn default_endpoint_slice(slice: &mut Value) {
    for port in items_mut(slice, "ports") {
        default_to(port, "name", "");
        default_to(port, "protocol", "TCP");
    }
}

fn default_network_policy(policy: &mut Value) {
    let spec = child(policy, "spec");
    if items(spec, "policyTypes").is_empty() {
        let egress = !items(spec, "egress").is_empty();
        set(spec, "policyTypes", if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) });
    }
    for direction in ["ingress", "egress"] {
        for rule in items_mut(spec, direction) {
            for port in items_mut(rule, "ports") {
                default_to(port, "protocol", "TCP");
            }
        }
    }
}

fn default_ingress_class(class: &mut Value) {
    if let Some(parameters) = inner(child(class, "spec"), "parameters") {
        default_to(parameters, "scope", "Cluster");
    }
}
