//! Names on the wire: what Cluster API, its users and we write on each other's objects.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Cluster API's group.
pub(crate) const CAPI_GROUP: &str = "cluster.x-k8s.io";

/// On a MachineDeployment or MachineSet: Karpenter may scale it. On a Machine: it has been claimed. On a clone: it is ours. Cluster API
/// copies it to Nodes.
pub(crate) const MEMBER: &str = "node.cluster.x-k8s.io/karpenter-member";

/// Which Cluster an object belongs to: a label, and on a Node an annotation.
pub(crate) const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";
/// On a Node: the namespace of its Cluster.
pub(crate) const CLUSTER_NAMESPACE: &str = "cluster.x-k8s.io/cluster-namespace";
/// Which MachineDeployment a Machine or MachineSet belongs to.
pub(crate) const DEPLOYMENT_NAME: &str = "cluster.x-k8s.io/deployment-name";
/// Which MachineSet a Machine belongs to.
pub(crate) const SET_NAME: &str = "cluster.x-k8s.io/set-name";
/// Which MachineDeployment of a topology an object was made for.
pub(crate) const TOPOLOGY_DEPLOYMENT: &str = "topology.cluster.x-k8s.io/deployment-name";
/// The object is written by the topology controller.
pub(crate) const TOPOLOGY_OWNED: &str = "topology.cluster.x-k8s.io/owned";
/// On a Cluster: the version that its topology's upgrade has come to.
pub(crate) const UPGRADE_STEP: &str = "topology.internal.cluster.x-k8s.io/upgrade-step";
/// Checks that are not made before Machines are, separated by commas, or `All`.
pub(crate) const SKIP_PREFLIGHT_CHECKS: &str = "machineset.cluster.x-k8s.io/skip-preflight-checks";
/// Controllers leave the object alone.
pub(crate) const PAUSED: &str = "cluster.x-k8s.io/paused";
/// A MachineSet that shrinks takes such Machines first.
pub(crate) const DELETE_MACHINE: &str = "cluster.x-k8s.io/delete-machine";
/// Who else manages the replicas.
pub(crate) const REPLICAS_MANAGED_BY: &str = "cluster.x-k8s.io/replicas-managed-by";
/// The least size of a scalable resource.
pub(crate) const MIN_SIZE: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size";
/// The greatest size of a scalable resource.
pub(crate) const MAX_SIZE: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size";
/// The revision of a MachineSet, and the newest one of its MachineDeployment.
pub(crate) const REVISION: &str = "machinedeployment.clusters.x-k8s.io/revision";
/// Cluster API does not drain this Machine's Node.
pub(crate) const EXCLUDE_DRAIN: &str = "machine.cluster.x-k8s.io/exclude-node-draining";
/// Cluster API does not wait for the volumes of this Machine's Node.
pub(crate) const EXCLUDE_DETACH: &str = "machine.cluster.x-k8s.io/exclude-wait-for-node-volume-detach";
/// Prefix of hooks that hold back the drain of a Machine.
pub(crate) const PRE_DRAIN_HOOK: &str = "pre-drain.delete.hook.machine.cluster.x-k8s.io";
/// Our own hook: Karpenter drains the Node of a Machine that somebody else deletes.
pub(crate) const OWN_HOOK: &str = "pre-drain.delete.hook.machine.cluster.x-k8s.io/karpenter";
/// Prefix of hooks that hold back the end of a Machine.
pub(crate) const PRE_TERMINATE_HOOK: &str = "pre-terminate.delete.hook.machine.cluster.x-k8s.io";
/// Health checks leave the Machine alone.
pub(crate) const SKIP_REMEDIATION: &str = "cluster.x-k8s.io/skip-remediation";
/// A Machine is being changed in place.
pub(crate) const UPDATE_IN_PROGRESS: &str = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress";
/// What a clone was made from.
pub(crate) const CLONED_FROM_NAME: &str = "cluster.x-k8s.io/cloned-from-name";
/// The kind of what a clone was made from.
pub(crate) const CLONED_FROM_KIND: &str = "cluster.x-k8s.io/cloned-from-groupkind";
/// On a Node: its machine may be taken away at any time.
pub(crate) const INTERRUPTIBLE: &str = "cluster.x-k8s.io/interruptible";
/// The domain of the annotations cluster-autoscaler scales from zero with.
pub(crate) const CAPACITY_DOMAIN: &str = "capacity.cluster-autoscaler.kubernetes.io/";
/// A price some tools write.
pub(crate) const CURRENT_PRICE: &str = "cluster.x-k8s.io/machine-current-price";

/// The binding the Go provider wrote on NodeClaims. On Nodes the key is Cluster API's own, so we never write it.
pub(crate) const GO_MACHINE: &str = "cluster.x-k8s.io/machine";

/// On a NodeClaim: what it waits for a Machine from, as `namespace/name`; the handle of its launch.
pub(crate) const TARGET: &str = "karpenter.cluster.x-k8s.io/target";
/// On a NodeClaim: its Machine, as `namespace/name`.
pub(crate) const MACHINE: &str = "karpenter.cluster.x-k8s.io/machine";
/// On a Machine: the name of the NodeClaim it was claimed for.
pub(crate) const NODECLAIM: &str = "karpenter.cluster.x-k8s.io/nodeclaim";
/// On a Machine: the uid of the NodeClaim it was claimed for.
pub(crate) const NODECLAIM_UID: &str = "karpenter.cluster.x-k8s.io/nodeclaim-uid";
/// On a Machine: the workload cluster whose Karpenter claimed it, by the uid of its namespace kube-system.
pub(crate) const OWNER: &str = "karpenter.cluster.x-k8s.io/owner";
/// On a scalable resource: since when Karpenter scales it. What is older is not ours.
pub(crate) const EPOCH: &str = "karpenter.cluster.x-k8s.io/epoch";
/// On a scalable resource: how many replicas it had that are not ours.
pub(crate) const PROTECTED: &str = "karpenter.cluster.x-k8s.io/protected-replicas";
/// On a scalable resource: the name of its instance type.
pub(crate) const INSTANCE_TYPE: &str = "karpenter.cluster.x-k8s.io/instance-type";
/// On a scalable resource: its capacity type.
pub(crate) const CAPACITY_TYPE: &str = "karpenter.cluster.x-k8s.io/capacity-type";
/// On a scalable resource or infrastructure template: the price per hour.
pub(crate) const PRICE: &str = "karpenter.cluster.x-k8s.io/price";
/// Prefix of further resources of a scalable resource.
pub(crate) const RESOURCE_PREFIX: &str = "karpenter.cluster.x-k8s.io/resource.";
/// On a scalable resource: how many nodes of it are paid for in advance.
pub(crate) const RESERVATION: &str = "karpenter.cluster.x-k8s.io/reservation-capacity";
/// On a scalable resource: `false` has Cluster API drain its nodes once more when Karpenter has.
pub(crate) const EXCLUDE_DRAIN_OPTION: &str = "karpenter.cluster.x-k8s.io/exclude-node-draining";
/// On a scalable resource: reasons, separated by commas, with which its infrastructure or bootstrap provider says that asking again will
/// not help.
pub(crate) const FAILURE_REASONS: &str = "karpenter.cluster.x-k8s.io/failure-reasons";
/// On a scalable resource: what kubelet and runtime keep for themselves, as `cpu=100m,memory=1Gi`.
pub(crate) const KUBE_RESERVED: &str = "karpenter.cluster.x-k8s.io/kube-reserved";
/// On a scalable resource: what the system keeps for itself, as `cpu=100m,memory=1Gi`.
pub(crate) const SYSTEM_RESERVED: &str = "karpenter.cluster.x-k8s.io/system-reserved";
/// On a scalable resource: what kubelet keeps free so that eviction can act, as `memory.available=500Mi,nodefs.available=10%`.
pub(crate) const EVICTION_HARD: &str = "karpenter.cluster.x-k8s.io/eviction-hard";
/// On a scalable resource: how much of its memory, in percent, the virtual machine and the kernel take before kubelet sees it.
pub(crate) const MEMORY_OVERHEAD: &str = "karpenter.cluster.x-k8s.io/memory-overhead-percent";
/// On a NodeClaim: it was made for a Machine that was there already.
pub(crate) const ADOPTED: &str = "karpenter.cluster.x-k8s.io/adopted";
/// On a NodeClaim whose Machine Cluster API replaces: it has had its successor.
pub(crate) const SUCCEEDED: &str = "karpenter.cluster.x-k8s.io/succeeded";
/// On a Machine of ours: the blueprint it was made from, in short.
pub(crate) const BLUEPRINT_HASH: &str = "karpenter.cluster.x-k8s.io/blueprint-hash";
/// On a Machine of ours: what its NodeClass changed in the clones, in short.
pub(crate) const PATCHES_HASH: &str = "karpenter.cluster.x-k8s.io/patches-hash";

/// The longest value of a label.
const LONGEST_LABEL: usize = 63;

/// How Cluster API writes a name into a label: as it is, or in short where it is too long.
pub(crate) fn label_value(name: &str) -> Cow<'_, str> {
    if name.len() <= LONGEST_LABEL {
        return name.into();
    }
    // FNV-1a of 32 bits.
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{HASHED}{}_z", URL_SAFE_NO_PAD.encode(hash.to_be_bytes())).into()
}

const HASHED: &str = "hash_";

/// Whether a label holds a name in short: no name has an underscore.
pub(crate) fn is_hash(value: &str) -> bool {
    value.starts_with(HASHED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_too_long_for_a_label_is_written_as_cluster_api_does() {
        let long = format!("{}-abcde", "m".repeat(60));
        assert_eq!(label_value(&long), "hash_8_IfTw_z");
        assert_eq!(label_value(&long[..63]), long[..63]);
        assert!(is_hash(&label_value(&long)) && !is_hash("hash-z"));
    }
}
