//! What a pod's volumes demand: where they can be reached, and how many attachments they take.

use std::collections::BTreeMap;

use crate::cluster::VolumeClaim;
use crate::labels::{HOSTNAME, Text};
use crate::pod::{NodeSelectorTerm, Pod, PodVolume};
use crate::reasons::PodRejection;
use crate::requirement::{Requirement, SelectorRequirement};
use crate::requirements::Requirements;
use crate::snapshot::Snapshot;

/// Volumes by CSI driver.
pub(crate) type Volumes = BTreeMap<Text, Vec<Text>>;

/// Adds the volumes of `more` that `all` does not have yet.
pub(crate) fn union_into(all: &mut Volumes, more: &Volumes) {
    for (driver, claims) in more {
        let known = all.entry(driver.clone()).or_default();
        for claim in claims {
            if !known.contains(claim) {
                known.push(claim.clone());
            }
        }
    }
}

fn claim_name(pod: &Pod, volume: &PodVolume) -> Text {
    match volume {
        PodVolume::Claim(name) => name.clone(),
        PodVolume::Ephemeral(volume) => format!("{}-{volume}", pod.name).into(),
    }
}

fn find<'s>(pod: &Pod, name: &Text, snapshot: &'s Snapshot) -> Option<&'s VolumeClaim> {
    snapshot.storage.claims.get(&(pod.namespace.clone(), name.clone()))
}

/// The CSI driver behind a claim; empty when there is none to count against.
fn driver(claim: &VolumeClaim, snapshot: &Snapshot) -> Result<Text, String> {
    if !claim.volume_name.is_empty() {
        let volume = snapshot.storage.volumes.get(&claim.volume_name);
        return volume
            .map(|v| v.driver.clone())
            .ok_or_else(|| format!("persistentvolumes {:?} not found", claim.volume_name));
    }
    let class = snapshot.storage.classes.get(&claim.storage_class);
    Ok(class.map_or_else(|| "".into(), |c| csi_name(&c.provisioner)))
}

/// The CSI driver that has taken over from an in-tree provisioner.
fn csi_name(provisioner: &Text) -> Text {
    match provisioner.as_ref() {
        "kubernetes.io/aws-ebs" => "ebs.csi.aws.com".into(),
        "kubernetes.io/gce-pd" => "pd.csi.storage.gke.io".into(),
        "kubernetes.io/cinder" => "cinder.csi.openstack.org".into(),
        "kubernetes.io/azure-disk" => "disk.csi.azure.com".into(),
        "kubernetes.io/azure-file" => "file.csi.azure.com".into(),
        "kubernetes.io/vsphere-volume" => "csi.vsphere.vmware.com".into(),
        "kubernetes.io/portworx-volume" => "pxd.portworx.com".into(),
        _ => provisioner.clone(),
    }
}

/// The attachments a pod needs. A claim that is gone is skipped, a volume that is gone is an error.
pub(crate) fn attachments(pod: &Pod, snapshot: &Snapshot) -> Result<Volumes, String> {
    let mut volumes = Volumes::new();
    for volume in &pod.spec.volumes {
        let name = claim_name(pod, volume);
        let Some(claim) = find(pod, &name, snapshot) else { continue };
        let driver = driver(claim, snapshot)?;
        if !driver.is_empty() {
            let id: Text = format!("{}/{name}", pod.namespace).into();
            let known = volumes.entry(driver).or_default();
            if !known.contains(&id) {
                known.push(id);
            }
        }
    }
    Ok(volumes)
}

/// Where the pod's volumes can all be reached: alternatives in the order to try them; none means anywhere.
pub(crate) fn alternatives(pod: &Pod, snapshot: &Snapshot) -> Result<Vec<Requirements>, String> {
    let mut alternatives: Option<Vec<Requirements>> = None;
    for volume in &pod.spec.volumes {
        let name = claim_name(pod, volume);
        let claim = find(pod, &name, snapshot)
            .ok_or_else(|| format!("discovering persistent volume claim, {name:?} not found"))?;
        let of_volume = reachable_from(claim, snapshot)?;
        if of_volume.is_empty() {
            continue;
        }
        alternatives = Some(match alternatives {
            None => of_volume,
            Some(so_far) => combine(&so_far, &of_volume),
        });
    }
    Ok(alternatives.unwrap_or_default())
}

/// All pairs that can hold together; if none can, all pairs, so that the pod fails where it would be placed.
fn combine(existing: &[Requirements], added: &[Requirements]) -> Vec<Requirements> {
    let pairs = || existing.iter().flat_map(|a| added.iter().map(move |b| (a, b)));
    let merge = |(a, b): (&Requirements, &Requirements)| {
        let mut merged = a.clone();
        merged.add_all(b);
        merged
    };
    let compatible: Vec<Requirements> = pairs().filter(|(a, b)| a.intersects(b).is_ok()).map(merge).collect();
    if compatible.is_empty() { pairs().map(merge).collect() } else { compatible }
}

fn reachable_from(claim: &VolumeClaim, snapshot: &Snapshot) -> Result<Vec<Requirements>, String> {
    if !claim.volume_name.is_empty() {
        let volume = snapshot.storage.volumes.get(&claim.volume_name).ok_or_else(|| {
            format!(
                "getting existing requirements, getting persistent volume {:?}, not found",
                claim.volume_name
            )
        })?;
        let mut alternatives = Vec::new();
        for term in volume.node_affinity.iter().flatten() {
            alternatives.extend(volume_term(term, volume.host_bound)?);
        }
        return Ok(alternatives);
    }
    if claim.storage_class.is_empty() {
        return Ok(Vec::new());
    }
    let class = snapshot
        .storage
        .classes
        .get(&claim.storage_class)
        .ok_or_else(|| format!("getting storage class {:?}, not found", claim.storage_class))?;
    Ok(class
        .allowed_topologies
        .iter()
        .filter(|term| !term.is_empty())
        .map(|term| term.iter().map(|(k, vs)| Requirement::one_of(k.clone(), vs.iter().cloned())).collect())
        .collect())
}

/// One alternative of a volume's node affinity; none when it says nothing.
fn volume_term(term: &NodeSelectorTerm, host_bound: bool) -> Result<Option<Requirements>, String> {
    // A volume on one host moves with its pod, so the host it is on now is no constraint.
    let kept: Vec<&SelectorRequirement> =
        term.expressions.iter().filter(|e| !(host_bound && e.key.as_ref() == HOSTNAME)).collect();
    if term.expressions.is_empty() {
        return Ok(None);
    }
    Requirements::from_selectors(kept).map(Some).map_err(|e| e.to_string())
}

/// Whether the pod's claims are in a state kube-scheduler would accept.
pub(crate) fn validate(pod: &Pod, snapshot: &Snapshot) -> Result<(), PodRejection> {
    for volume in &pod.spec.volumes {
        let name = claim_name(pod, volume);
        let reject = |problem: String| PodRejection::VolumeClaim { claim: name.clone(), problem };
        let claim = find(pod, &name, snapshot).ok_or_else(|| {
            reject(format!("getting persistent volume claim, persistentvolumeclaims {name:?} not found"))
        })?;
        validate_claim(claim, snapshot).map_err(reject)?;
    }
    Ok(())
}

fn validate_claim(claim: &VolumeClaim, snapshot: &Snapshot) -> Result<(), String> {
    if claim.deleting {
        return Err("persistentvolumeclaim is being deleted".into());
    }
    if claim.lost {
        return Err("persistentvolumeclaim bound to non-existent persistentvolume".into());
    }
    if !claim.volume_name.is_empty() {
        let volume = snapshot.storage.volumes.get(&claim.volume_name).ok_or_else(|| {
            format!("failed to validate pvc, persistentvolumes {:?} not found", claim.volume_name)
        })?;
        if volume.deleting {
            return Err("failed to validate pvc, persistentvolume is being deleted".into());
        }
        if !claim.bind_completed {
            return Err("pvc is considered unbound because it does not contain annotation".into());
        }
    } else {
        if claim.storage_class.is_empty() {
            return Err("unbound pvc must define a storage class".into());
        }
        let class = snapshot.storage.classes.get(&claim.storage_class).ok_or_else(|| {
            format!(
                "failed to validate pvc, failed to get storage class, storageclasses {:?} not found",
                claim.storage_class
            )
        })?;
        if class.binds_immediately {
            return Err("failed to validate pvc, pvc with immediate volume binding mode must be bound".into());
        }
        let unsupported = &snapshot.provider.unsupported_topology_keys;
        if class.allowed_topologies.iter().flatten().any(|(key, _)| unsupported.contains(key)) {
            return Err("failed to validate pvc, storage class uses unsupported topology key".into());
        }
    }
    let driver = driver(claim, snapshot).map_err(|e| format!("failed to validate pvc, {e}"))?;
    if snapshot.provider.unsupported_provisioners.contains(&driver) {
        return Err("failed to validate pvc, provisioner is not supported".into());
    }
    Ok(())
}
