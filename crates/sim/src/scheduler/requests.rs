//! What a pod asks of a node: amounts of resources, and host ports.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Amounts by resource: thousandths of cores for `cpu`, whole units for everything else.
pub(super) type Amounts = BTreeMap<String, i64>;

/// Reads amounts; what cannot be read counts as nothing, as the server has refused it.
pub(super) fn amounts<'a>(list: impl IntoIterator<Item = (&'a String, &'a Quantity)>) -> Amounts {
    let read = |name: &String, quantity: &Quantity| {
        let parsed = karpenter_primitives::Quantity::parse(&quantity.0).unwrap_or_default();
        let amount = if name == "cpu" { parsed.milli_value() } else { parsed.value() };
        (name.clone(), amount)
    };
    list.into_iter().map(|(name, quantity)| read(name, quantity)).collect()
}

fn of_container(container: &Container) -> Amounts {
    requested(container.resources.as_ref())
}

/// Requests, and limits where there is no request.
fn requested(resources: Option<&ResourceRequirements>) -> Amounts {
    let Some(resources) = resources else { return Amounts::new() };
    let mut all = amounts(resources.limits.iter().flatten());
    all.extend(amounts(resources.requests.iter().flatten()));
    all
}

pub(super) fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let sum = to.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
}

pub(super) fn subtract(from: &mut Amounts, less: &Amounts) {
    for (name, amount) in less {
        let sum = from.entry(name.clone()).or_default();
        *sum = sum.saturating_sub(*amount);
    }
}

fn at_least(this: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let mine = this.entry(name.clone()).or_default();
        *mine = (*mine).max(*amount);
    }
}

/// What a pod needs at its worst moment: all containers together with the sidecars, or an init container with the sidecars
/// started before it; what is set for the whole pod instead; and the overhead of its runtime.
pub(super) fn of_pod(spec: &PodSpec) -> Amounts {
    let mut total = Amounts::new();
    for container in &spec.containers {
        add(&mut total, &of_container(container));
    }
    let mut sidecars = Amounts::new();
    let mut peak = Amounts::new();
    for container in spec.init_containers.iter().flatten() {
        let mut now = of_container(container);
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut total, &now);
            add(&mut sidecars, &now);
            now = sidecars.clone();
        } else {
            add(&mut now, &sidecars);
        }
        at_least(&mut peak, &now);
    }
    at_least(&mut total, &peak);
    total.extend(requested(spec.resources.as_ref()));
    add(&mut total, &amounts(spec.overhead.iter().flatten()));
    total
}

/// A port of the node: address, protocol, number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HostPort {
    address: String,
    protocol: String,
    port: i32,
}

impl HostPort {
    const ANY: &'static str = "0.0.0.0";

    /// Whether two pods cannot both have it.
    pub(super) fn conflicts(&self, other: &Self) -> bool {
        self.port == other.port
            && self.protocol == other.protocol
            && (self.address == other.address || self.address == Self::ANY || other.address == Self::ANY)
    }
}

/// The ports of the node a pod takes.
pub(super) fn host_ports(spec: &PodSpec) -> BTreeSet<HostPort> {
    let sidecars =
        spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|container| container.ports.iter().flatten());
    ports
        .filter_map(|port| {
            let number = port.host_port.filter(|number| *number > 0)?;
            let address = port.host_ip.as_deref().filter(|ip| !ip.is_empty()).unwrap_or(HostPort::ANY);
            let protocol = port.protocol.as_deref().filter(|protocol| !protocol.is_empty()).unwrap_or("TCP");
            Some(HostPort { address: address.to_owned(), protocol: protocol.to_owned(), port: number })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(value: serde_json::Value) -> PodSpec {
        serde_json::from_value(value).unwrap()
    }

    fn cpu(amount: &str) -> serde_json::Value {
        json!({"requests": {"cpu": amount}})
    }

    #[test]
    fn init_containers_count_at_their_peak_and_sidecars_always() {
        let pod = spec(json!({
            "containers": [{"name": "a", "resources": cpu("1")}, {"name": "b", "resources": {"limits": {"cpu": "500m"}}}],
            "initContainers": [
                {"name": "sidecar", "restartPolicy": "Always", "resources": cpu("200m")},
                {"name": "heavy", "resources": cpu("2")},
            ],
            "overhead": {"cpu": "50m"},
        }));
        assert_eq!(of_pod(&pod)["cpu"], 2250);
    }

    #[test]
    fn what_is_set_for_the_pod_replaces_the_sum_of_its_containers() {
        let pod =
            spec(json!({"containers": [{"name": "a", "resources": cpu("1")}], "resources": cpu("300m")}));
        assert_eq!(of_pod(&pod)["cpu"], 300);
    }

    #[test]
    fn ports_conflict_on_the_same_or_on_any_address() {
        let ports = |port: serde_json::Value| {
            host_ports(&spec(json!({"containers": [{"name": "a", "ports": [port]}]})))
        };
        let any = ports(json!({"containerPort": 1, "hostPort": 80}));
        let one = ports(json!({"containerPort": 1, "hostPort": 80, "hostIP": "10.0.0.1"}));
        let udp = ports(json!({"containerPort": 1, "hostPort": 80, "protocol": "UDP"}));
        let conflict = |a: &BTreeSet<HostPort>, b: &BTreeSet<HostPort>| {
            a.iter().any(|a| b.iter().any(|b| a.conflicts(b)))
        };
        assert!(conflict(&any, &one) && !conflict(&any, &udp));
    }
}
