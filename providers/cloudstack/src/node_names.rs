//! Names Nodes where no cloud controller manager does: provider id, zone, region, instance type, and the taint away that waits
//! for one. A Node is a machine's only if it has its name and its address, and the machine is provably ours. A Node that never
//! got a name and whose machine is gone goes too: nobody else would remove it, and Karpenter waits for its name before it
//! decides anything.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::labels as well_known;
use karpenter_runtime::controller::{Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::store::Store;
use karpenter_runtime::writes::{self, Lock};
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, ResourceExt as _};

use crate::client::model::VirtualMachine;
use crate::labels;
use crate::naming::label_value;
use crate::provider::CloudStackProvider;

/// Kept on a Node until somebody has named it.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// A list of machines no older than this will do.
const RECENT: Duration = Duration::from_secs(2);
/// How long a Node without a machine may still be one that is coming.
const ABANDONED: Duration = Duration::from_secs(2 * 60);
/// When to look again at a Node whose machine is not known.
const AGAIN: Duration = Duration::from_secs(10);

/// Names Nodes.
pub(crate) struct NodeNames {
    pub(crate) provider: Arc<CloudStackProvider>,
    pub(crate) nodes: Store<Node>,
    pub(crate) api: Api<Node>,
}

impl Reconciler for NodeNames {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let shared = &self.provider.shared;
        let Some(node) = self.nodes.get(&key) else { return Ok(Outcome::Done) };
        let named =
            node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).is_some_and(|id| !id.is_empty());
        if named || !key.name.starts_with(shared.naming.prefix()) {
            return Ok(Outcome::Done);
        }
        let scopes = match shared.scopes() {
            Ok(scopes) => scopes,
            Err(error) => {
                tracing::debug!(%error, Node = %key, "whose node this is cannot be found out yet");
                return Ok(Outcome::After(AGAIN));
            }
        };
        for scope in scopes {
            let machines = match shared.inventory.recent(&scope, RECENT).await {
                Ok(machines) => machines,
                Err(error) if shared.may_leave_out(&scope, &error) => continue,
                Err(error) => {
                    tracing::warn!(%error, Node = %key, "whose node this is cannot be found out yet");
                    return Ok(Outcome::After(AGAIN));
                }
            };
            if let Some(machine) = machines.iter().find(|machine| is_of(&node, machine)) {
                let named = self.named(&node, machine);
                let written = writes::patch(&self.api, &node, &named, Lock::Optimistic)
                    .await
                    .map_err(ReconcileError::from)?;
                return Ok(if written.is_conflict() { Outcome::Requeue } else { Outcome::Done });
            }
        }
        if self.is_abandoned(&node) && self.machine_is_gone(&key.name).await {
            return self.remove(&node).await;
        }
        Ok(Outcome::After(AGAIN))
    }
}

/// Whether this Node is this machine: the same name is not enough, anybody can take one.
fn is_of(node: &Node, machine: &VirtualMachine) -> bool {
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    node.name_any() == machine.name
        && addresses.into_iter().any(|address| {
            machine.nic.iter().any(|nic| !nic.ipaddress.is_empty() && nic.ipaddress == address.address)
        })
}

impl NodeNames {
    /// Whether nobody has heard of the Node's kubelet for a while.
    fn is_abandoned(&self, node: &Node) -> bool {
        let clock = &self.provider.shared.clock;
        let old = node.metadata.creation_timestamp.as_ref().is_some_and(|at| clock.since(at.0) >= ABANDONED);
        let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        old && !conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
    }

    /// Whether the server says, for every account and project we know, that there is no machine of this name.
    async fn machine_is_gone(&self, name: &str) -> bool {
        let shared = &self.provider.shared;
        let Ok(scopes) = shared.scopes() else { return false };
        for scope in scopes {
            match shared.inventory.fresh(&scope).await {
                Ok(machines) if machines.iter().all(|machine| machine.name != name) => {}
                _ => return false,
            }
        }
        true
    }

    async fn remove(&self, node: &Node) -> ReconcileResult {
        let name = node.name_any();
        // As it was looked at: a kubelet that comes back in this moment keeps its Node.
        let only_this = Preconditions { uid: node.uid(), resource_version: node.resource_version() };
        let how = DeleteParams { preconditions: Some(only_this), ..DeleteParams::default() };
        match self.api.delete(&name, &how).await {
            Ok(_) => tracing::info!(Node = name, "removed: its machine is gone and it never got a name"),
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(kube::Error::Api(status)) if status.code == 409 => return Ok(Outcome::Requeue),
            Err(error) => return Err(ReconcileError::from(error)),
        }
        Ok(Outcome::Done)
    }

    fn named(&self, node: &Node, machine: &VirtualMachine) -> Node {
        let options = &self.provider.shared.options;
        let mut named = node.clone();
        let zone = label_value(&machine.zonename);
        let region = options.region.as_deref().map_or_else(|| zone.clone(), label_value);
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
        let shared = &self.provider.shared;
        let carried = self.provider.carried().remove(&machine.id);
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
}
