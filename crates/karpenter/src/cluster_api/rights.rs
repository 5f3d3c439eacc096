//! What the core asks of the cluster that pods run in, as the chart grants it.

use karpenter_provider_cluster_api::self_check::Right;
use karpenter_runtime::options::FeatureGates;

const SEE: &[&str] = &["list", "watch"];

/// The rights of the core with these gates; `spreads` says whether pods get spread constraints by default.
pub fn core(gates: &FeatureGates, spreads: bool) -> Vec<Right> {
    let mut rights = Vec::new();
    let mut add = |verbs: &[&'static str], group: &str, resources: &[&str]| {
        rights.extend(resources.iter().map(|resource| Right::anywhere(verbs, group, resource)));
    };
    add(SEE, "karpenter.sh", &["nodepools", "nodeclaims"]);
    add(SEE, "", &["pods", "nodes", "persistentvolumes", "persistentvolumeclaims", "namespaces"]);
    add(SEE, "storage.k8s.io", &["storageclasses", "csinodes", "volumeattachments"]);
    add(SEE, "apps", &["daemonsets"]);
    add(SEE, "policy", &["poddisruptionbudgets"]);
    add(&["get", "create", "delete", "patch"], "karpenter.sh", &["nodeclaims"]);
    add(&["patch"], "karpenter.sh", &["nodepools", "nodeclaims/status", "nodepools/status"]);
    add(&["get", "delete", "patch"], "", &["nodes"]);
    add(&["delete"], "", &["pods"]);
    add(&["create"], "", &["pods/eviction"]);
    add(&["create", "patch"], "", &["events"]);
    if gates.node_overlay {
        add(SEE, "karpenter.sh", &["nodeoverlays"]);
        add(&["patch"], "karpenter.sh", &["nodeoverlays/status"]);
    }
    if gates.capacity_buffer || spreads {
        add(SEE, "", &["services", "replicationcontrollers"]);
        add(SEE, "apps", &["replicasets", "statefulsets"]);
    }
    if gates.capacity_buffer {
        add(SEE, "autoscaling.x-k8s.io", &["capacitybuffers"]);
        add(&["patch"], "autoscaling.x-k8s.io", &["capacitybuffers/status"]);
        add(SEE, "", &["podtemplates"]);
        add(SEE, "apps", &["deployments"]);
    }
    if gates.pod_deletion_cost_management {
        add(&["patch"], "", &["pods"]);
    }
    // Only some API servers ask for it.
    let finalizers = ["nodeclaims/finalizers", "nodepools/finalizers"];
    rights.extend(finalizers.map(|of| Right::anywhere(&["update"], "karpenter.sh", of).useful()));
    rights
}
