//! What a MachineSet asks before it makes a Machine: whether the control plane stands still, whether the Machine's version goes with it,
//! and whether its template is there.

use karpenter_runtime::object_key::ObjectKey;
use kube::api::DynamicObject;

use super::UPGRADING;
use super::deployments::cluster_of;
use super::kinds::{annotation, label, text};
use super::topology::OWNED;
use crate::objects::Objects;

/// Checks that are not made, separated by commas, or `All`.
const SKIPPED: &str = "machineset.cluster.x-k8s.io/skip-preflight-checks";
/// How many minor versions kubelet may be older than the control plane.
const OLDEST: u64 = 3;

/// Why no Machine may be made now.
pub(super) fn hold(objects: &Objects, set: &DynamicObject) -> Option<String> {
    let cluster = cluster_of(objects, set)?;
    let skipped: Vec<&str> = annotation(set, SKIPPED).unwrap_or_default().split(',').map(str::trim).collect();
    let failed = [
        ("ControlPlaneIsStable", unstable(objects, cluster)),
        ("KubernetesVersionSkew", too_far_apart(objects, cluster, set)),
        ("KubeadmVersionSkew", not_for_kubeadm(objects, cluster, set)),
        ("ControlPlaneVersionSkew", not_propagated(objects, cluster, set)),
    ];
    let held = failed.into_iter().find_map(|(check, why)| {
        let why = why.filter(|_| !skipped.contains(&check) && !skipped.contains(&"All"))?;
        Some(format!("{why} (\"{check}\" preflight check failed)"))
    });
    held.or_else(|| without_template(objects, set))
}

fn control_plane<'a>(objects: &'a Objects, cluster: &DynamicObject) -> Option<&'a DynamicObject> {
    let namespace = cluster.metadata.namespace.as_deref().unwrap_or_default();
    let key = ObjectKey::namespaced(namespace, text(cluster, "/spec/controlPlaneRef/name"));
    objects.sim_control_planes.get(&key).map(|found| &**found)
}

fn unstable(objects: &Objects, cluster: &DynamicObject) -> Option<String> {
    if let Some(why) = annotation(cluster, UPGRADING) {
        return Some(format!("{why} is upgrading"));
    }
    let found = control_plane(objects, cluster)?;
    let name = found.metadata.name.as_deref().unwrap_or_default();
    match (text(found, "/spec/version"), text(found, "/status/version")) {
        ("", _) => None,
        (_, "") => Some(format!("SimControlPlane {name} is provisioning")),
        (wanted, is) => (wanted != is).then(|| format!("SimControlPlane {name} is upgrading")),
    }
}

/// A MachineSet's version and its control plane's, and which minor ones they are.
struct Versions<'a> {
    own: &'a str,
    theirs: &'a str,
    own_minor: u64,
    their_minor: u64,
}

/// The versions of a MachineSet and of its control plane, where both have one.
fn versions<'a>(
    objects: &'a Objects,
    cluster: &DynamicObject,
    set: &'a DynamicObject,
) -> Option<Versions<'a>> {
    let minor = |version: &str| version.split('.').nth(1)?.parse::<u64>().ok();
    let own = text(set, "/spec/template/spec/version");
    let theirs = text(control_plane(objects, cluster)?, "/spec/version");
    Some(Versions { own, theirs, own_minor: minor(own)?, their_minor: minor(theirs)? })
}

fn too_far_apart(objects: &Objects, cluster: &DynamicObject, set: &DynamicObject) -> Option<String> {
    let Versions { own, theirs, own_minor, their_minor } = versions(objects, cluster, set)?;
    (own_minor > their_minor || own_minor + OLDEST < their_minor).then(|| {
        format!(
            "MachineSet version ({own}) and ControlPlane version ({theirs}) do not conform to the skew policy"
        )
    })
}

fn not_for_kubeadm(objects: &Objects, cluster: &DynamicObject, set: &DynamicObject) -> Option<String> {
    let Versions { own, theirs, own_minor, their_minor } = versions(objects, cluster, set)?;
    let kubeadm = text(set, "/spec/template/spec/bootstrap/configRef/kind") == "KubeadmConfigTemplate";
    (kubeadm && own_minor != their_minor).then(|| {
        format!("MachineSet version ({own}) and ControlPlane version ({theirs}) do not conform to kubeadm's")
    })
}

/// Machines of a topology are made in the control plane's own version.
fn not_propagated(objects: &Objects, cluster: &DynamicObject, set: &DynamicObject) -> Option<String> {
    let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
    let owner = ObjectKey::namespaced(namespace, label(set, "cluster.x-k8s.io/deployment-name"));
    let owner = objects.machine_deployments.get(&owner)?;
    let owned = owner.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(OWNED));
    let Versions { own, theirs, .. } = versions(objects, cluster, set)?;
    (owned && own != theirs).then(|| {
        format!("MachineSet version ({own}) is not yet the same as the ControlPlane version ({theirs})")
    })
}

fn without_template(objects: &Objects, set: &DynamicObject) -> Option<String> {
    let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
    let name = text(set, "/spec/template/spec/infrastructureRef/name");
    let template = ObjectKey::namespaced(namespace, name);
    (!objects.sim_machine_templates.contains_key(&template))
        .then(|| format!("SimMachineTemplate {name} does not exist"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster_api::steps::read;

    /// Why a MachineSet of this version makes no Machine while the control plane goes from one version to another.
    fn held(version: &str, [is, wanted]: [&str; 2], annotations: Value, owned: bool, kind: &str) -> String {
        let mut objects = Objects::default();
        let named = |name: &str| ObjectKey::namespaced("fleet", name);
        let reference = json!({"controlPlaneRef": {"name": "cp"}});
        let meta = |name: &str| json!({"name": name, "namespace": "fleet"});
        objects.capi_clusters.insert(named("c"), read(json!({"metadata": meta("c"), "spec": reference})));
        let control_plane =
            json!({"metadata": meta("cp"), "spec": {"version": wanted}, "status": {"version": is}});
        objects.sim_control_planes.insert(named("cp"), read(control_plane));
        objects.sim_machine_templates.insert(named("t"), read(json!({"metadata": meta("t")})));
        let mut deployment = json!({"metadata": meta("d")});
        if owned {
            deployment["metadata"]["labels"] = json!({OWNED: ""});
        }
        objects.machine_deployments.insert(named("d"), read(deployment));
        let set = json!({
            "metadata": {
                "name": "d-1", "namespace": "fleet", "annotations": annotations,
                "labels": {"cluster.x-k8s.io/deployment-name": "d"},
            },
            "spec": {"clusterName": "c", "template": {"spec": {
                "version": version, "infrastructureRef": {"name": "t"},
                "bootstrap": {"configRef": {"kind": kind, "name": "b"}},
            }}},
        });
        let why = hold(&objects, &read::<DynamicObject>(set)).unwrap_or_default();
        why.split('"').nth(1).unwrap_or_default().to_owned()
    }

    #[test]
    fn machines_are_made_in_versions_that_go_with_a_control_plane_that_stands_still() {
        let plain = |version: &str, control_plane| {
            held(version, control_plane, json!({}), false, "SimConfigTemplate")
        };
        assert_eq!(plain("v1.36.0", ["v1.36.0"; 2]), "");
        assert_eq!(plain("v1.36.0", ["v1.35.0", "v1.36.0"]), "ControlPlaneIsStable");
        assert_eq!(plain("v1.36.0", ["", "v1.36.0"]), "ControlPlaneIsStable");
        assert_eq!(plain("v1.37.0", ["v1.36.0"; 2]), "KubernetesVersionSkew");
        assert_eq!(plain("v1.33.0", ["v1.36.0"; 2]), "");
        assert_eq!(plain("v1.32.0", ["v1.36.0"; 2]), "KubernetesVersionSkew");
        let of = |owned, kind| held("v1.35.0", ["v1.36.0"; 2], json!({}), owned, kind);
        assert_eq!(of(false, "KubeadmConfigTemplate"), "KubeadmVersionSkew");
        assert_eq!(of(true, "SimConfigTemplate"), "ControlPlaneVersionSkew");
        for skipped in ["KubernetesVersionSkew, ControlPlaneIsStable", "All"] {
            let skip = json!({SKIPPED: skipped});
            assert_eq!(held("v1.37.0", ["v1.35.0", "v1.36.0"], skip, false, "SimConfigTemplate"), "");
        }
    }
}
