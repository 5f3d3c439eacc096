//! Names Nodes where no cloud controller manager does: provider id, zone, region, instance type, and the taint away that waits
//! for one. A Node is a machine's only if it has its name and its address, and the machine is provably ours. One whose machine went
//! before that is removed at once.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeAddress};
use karpenter_api::labels as well_known;
use karpenter_runtime::controller::{Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::store::Store;
use karpenter_runtime::writes::{self, Lock, Written};
use kube::{Api, ResourceExt as _};

use crate::abandoned_nodes::AbandonedNodes;
use crate::accounts::Accounts;
use crate::client::error::ApiError;
use crate::client::model::VirtualMachine;
use crate::naming::label_value;
use crate::{labels, zones};

/// Kept on a Node until somebody has named it.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// A list of machines no older than this will do.
const RECENT: Duration = Duration::from_secs(2);
/// When to look again at a Node whose machine is not known.
const AGAIN: Duration = Duration::from_secs(10);

/// Names Nodes.
pub(crate) struct NodeNames {
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) abandoned: AbandonedNodes,
    pub(crate) nodes: Store<Node>,
    pub(crate) api: Api<Node>,
}

impl Reconciler for NodeNames {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let shared = &self.accounts.own.shared;
        let Some(node) = self.nodes.get(&key) else { return Ok(Outcome::Done) };
        let named =
            node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).is_some_and(|id| !id.is_empty());
        if named || !key.name.starts_with(shared.naming.prefix()) {
            return Ok(Outcome::Done);
        }
        let found = match self.machine_of(&node).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, Node = %key, "whose node this is cannot be found out yet");
                return Ok(Outcome::After(AGAIN));
            }
        };
        if let Some(machine) = found {
            let mut node = (*node).clone();
            // Before the taint goes: what runs on a node is reached by its address.
            if lacks_address(&node) {
                let addressed = with_address(&node, &machine);
                let written = writes::patch_status(&self.api, &node, &addressed, Lock::Optimistic).await;
                match written.map_err(ReconcileError::from)? {
                    Written::Done(written) => node = *written,
                    Written::Unchanged => {}
                    Written::Gone => return Ok(Outcome::Done),
                    Written::Conflict => return Ok(Outcome::Requeue),
                }
            }
            let named = self.named(&node, &machine);
            let written = writes::patch(&self.api, &node, &named, Lock::Optimistic)
                .await
                .map_err(ReconcileError::from)?;
            return Ok(if written.is_conflict() { Outcome::Requeue } else { Outcome::Done });
        }
        if self.abandoned.is_one(&node).await {
            return match self.abandoned.remove(&node).await {
                Ok(true) => Ok(Outcome::Done),
                Ok(false) => Ok(Outcome::Requeue),
                Err(error) => Err(ReconcileError::from(error)),
            };
        }
        Ok(Outcome::After(AGAIN))
    }
}

fn addresses(node: &Node) -> impl Iterator<Item = &NodeAddress> {
    node.status.iter().flat_map(|status| status.addresses.iter().flatten())
}

/// Whether it waits for a cloud controller manager.
pub(crate) fn waits(node: &Node) -> bool {
    let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.any(|taint| taint.key == UNINITIALIZED)
}

/// Whether its kubelet waits to be told its address: one that is to have a cloud controller manager does not know it by itself.
fn lacks_address(node: &Node) -> bool {
    waits(node) && !addresses(node).any(|address| address.type_.ends_with("IP"))
}

/// Whether this Node is this machine: the same name is not enough where there is more to go by, since anybody can take one.
pub(crate) fn is_of(node: &Node, machine: &VirtualMachine) -> bool {
    let its_own = |address: &NodeAddress| {
        let addresses = machine.nic.iter().flat_map(|nic| [&nic.ipaddress, &nic.ip6address]);
        // IPv6 has many ways to write one.
        let known = address.address.parse::<IpAddr>();
        addresses.filter(|own| !own.is_empty()).any(|own| {
            *own == address.address || known.as_ref().is_ok_and(|known| own.parse().as_ref() == Ok(known))
        })
    };
    node.name_any() == machine.name
        && (addresses(node).any(its_own) || (lacks_address(node) && machine.address().is_some()))
}

/// The Node with the address of its machine.
fn with_address(node: &Node, machine: &VirtualMachine) -> Node {
    let mut addressed = node.clone();
    let known = addressed.status.get_or_insert_default().addresses.get_or_insert_default();
    for (kind, address) in
        [("InternalIP", machine.address().unwrap_or_default()), ("Hostname", &machine.name)]
    {
        if !known.iter().any(|other| other.type_ == kind) {
            known.push(NodeAddress { type_: kind.to_owned(), address: address.to_owned() });
        }
    }
    addressed
}

impl NodeNames {
    /// The machine this Node is, in whatever account; an error only if none that answers has it.
    async fn machine_of(&self, node: &Node) -> Result<Option<VirtualMachine>, ApiError> {
        let mut unknown = None;
        for account in self.accounts.in_use()? {
            let shared = &account.shared;
            for scope in shared.scopes()? {
                match shared.inventory.recent(&scope, RECENT).await {
                    Ok(machines) => {
                        if let Some(machine) = machines.iter().find(|machine| is_of(node, machine)) {
                            return Ok(Some(machine.clone()));
                        }
                    }
                    Err(error) if shared.may_leave_out(&scope, &error) => {}
                    Err(error) => unknown = Some(error),
                }
            }
        }
        unknown.map_or(Ok(None), Err)
    }

    fn named(&self, node: &Node, machine: &VirtualMachine) -> Node {
        let options = &self.accounts.own.shared.options;
        let mut named = node.clone();
        let zone = label_value(&machine.zonename);
        let region = zones::region(&machine.zonename, options.region.as_deref());
        let node_labels = named.metadata.labels.get_or_insert_default();
        for (key, value) in [
            (well_known::TOPOLOGY_ZONE, zone),
            (well_known::TOPOLOGY_REGION, region),
            (well_known::INSTANCE_TYPE, label_value(&machine.serviceofferingname)),
            (labels::ZONE_ID, machine.zoneid.clone()),
        ] {
            // What Karpenter or its user said already stays.
            node_labels.entry(key.to_owned()).or_insert(value);
        }
        let spec = named.spec.get_or_insert_default();
        // As its NodeClaim has it: they find each other by that.
        let shared = &self.accounts.own.shared;
        let carried = self.accounts.own.carried().remove(&machine.id);
        spec.provider_id = Some(carried.unwrap_or_else(|| shared.form.write(&machine.zonename, &machine.id)));
        if let Some(taints) = &mut spec.taints {
            taints.retain(|taint| taint.key != UNINITIALIZED);
        }
        named
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_is_a_machines_only_with_its_name_and_its_address() {
        let machine: VirtualMachine = serde_json::from_value(
            json!({"id": "1", "name": "karpenter-x-a", "nic": [{"networkid": "n", "ipaddress": "10.1.1.4"}]}),
        )
        .expect("a machine");
        let node = |name: &str, address: &str| -> Node {
            serde_json::from_value(json!({"metadata": {"name": name},
                "status": {"addresses": [{"type": "InternalIP", "address": address}]}}))
            .expect("a node")
        };
        assert!(is_of(&node("karpenter-x-a", "10.1.1.4"), &machine));
        assert!(!is_of(&node("karpenter-x-a", "10.1.1.5"), &machine));
        assert!(!is_of(&node("karpenter-x-b", "10.1.1.4"), &machine));
        let without: VirtualMachine =
            serde_json::from_value(json!({"id": "1", "name": "karpenter-x-a", "nic": [{"networkid": "n"}]}))
                .expect("a machine");
        assert!(!is_of(&node("karpenter-x-a", ""), &without));
    }

    #[test]
    fn a_node_is_a_machines_by_its_address_of_ipv6() {
        let machine: VirtualMachine = serde_json::from_value(
            json!({"id": "1", "name": "karpenter-x-a", "nic": [{"networkid": "n", "ip6address": "2001:db8::4"}]}),
        )
        .expect("a machine");
        let node = |address: &str| -> Node {
            serde_json::from_value(json!({"metadata": {"name": "karpenter-x-a"},
                "status": {"addresses": [{"type": "InternalIP", "address": address}]}}))
            .expect("a node")
        };
        assert!(is_of(&node("2001:db8:0:0::4"), &machine));
        assert!(!is_of(&node("2001:db8::5"), &machine));
        assert_eq!(machine.address(), Some("2001:db8::4"));
    }

    #[test]
    fn a_node_that_waits_for_its_address_gets_that_of_the_machine_of_its_name() {
        let machine: VirtualMachine = serde_json::from_value(
            json!({"id": "1", "name": "karpenter-x-a", "nic": [{"networkid": "n", "ipaddress": "10.1.1.4"}]}),
        )
        .expect("a machine");
        let node = |name: &str, taint: &str| -> Node {
            let taints = json!([{"key": taint, "effect": "NoSchedule"}]);
            let addresses = json!([{"type": "Hostname", "address": name}]);
            serde_json::from_value(
                json!({"metadata": {"name": name}, "spec": {"taints": taints}, "status": {"addresses": addresses}}),
            )
            .expect("a node")
        };
        let waits = node("karpenter-x-a", UNINITIALIZED);
        assert!(lacks_address(&waits) && is_of(&waits, &machine));
        assert!(!is_of(&node("karpenter-x-b", UNINITIALIZED), &machine));
        assert!(!is_of(&node("karpenter-x-a", "other"), &machine), "a kubelet that should know its address");
        let addressed = with_address(&waits, &machine);
        let known: Vec<&str> = addresses(&addressed).map(|address| address.address.as_str()).collect();
        assert_eq!(known, ["karpenter-x-a", "10.1.1.4"]);
        assert!(!lacks_address(&addressed));
    }
}
