//! What pods on one node share: host ports and volume attachments, and where their volumes let them be.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::Placement;
use crate::claims::claim_satisfies;
use crate::requirement::{Expression, HOSTNAME, stable};
use crate::world::{Pod, World, list, text, texts};

pub(crate) fn check(world: &World, placement: &Placement, wrong: &mut Vec<String>) {
    for claim in &placement.claims {
        let pods: Vec<_> = claim.pods.iter().filter_map(|p| world.pods.get(*p)).collect();
        ports(&claim.title, &pods, &[], wrong);
        let attached = attachments(world, pods.iter().copied());
        for name in texts(&claim.json["instanceTypes"]) {
            let Some(limits) = world.types.get(name).map(|t| &t["volumeAttachmentLimits"]) else { continue };
            for (driver, volumes) in &attached {
                if limits[driver.as_str()].as_u64().is_some_and(|limit| volumes.len() as u64 > limit) {
                    wrong.push(format!("{}: type {name} attaches fewer volumes of {driver}", claim.title));
                }
            }
        }
        for pod in pods {
            volumes_allow(world, pod, &claim.title, &|e| claim_satisfies(claim, e), wrong);
        }
    }
    for (name, pods) in &placement.existing {
        let Some(node) = world.nodes.get(name) else { continue };
        let title = format!("node {name}");
        let new: Vec<_> = pods.iter().filter_map(|p| world.pods.get(*p)).collect();
        let old: Vec<_> = node.node_name().map(|n| world.bound_to(n).collect()).unwrap_or_default();
        ports(&title, &new, &old, wrong);
        let attached = attachments(world, new.iter().chain(&old).copied());
        let published = node.node_name().and_then(|n| world.csi_nodes.get(n));
        for driver in published.map(|c| list(&c["spec"]["drivers"])).unwrap_or_default() {
            let count = attached.get(text(&driver["name"])).map_or(0, BTreeSet::len) as u64;
            if driver["allocatable"]["count"].as_u64().is_some_and(|limit| count > limit) {
                wrong.push(format!("{title}: {count} volumes of {}, more than it attaches", driver["name"]));
            }
        }
        let labels: BTreeMap<&str, &str> = node.labels().into_iter().map(|(k, v)| (stable(k), v)).collect();
        let holds = |e: &Expression| {
            let value = labels.get(e.key).copied().or((e.key == HOSTNAME).then_some(*name));
            e.accepts(value)
        };
        for pod in new {
            volumes_allow(world, pod, &title, &holds, wrong);
        }
    }
}

fn host_ports(pod: &Pod) -> Vec<(i64, String, String)> {
    list(&pod.spec()["containers"])
        .iter()
        .flat_map(|c| list(&c["ports"]))
        .filter_map(|p| {
            let port = p["hostPort"].as_i64().filter(|p| *p != 0)?;
            let ip = Some(text(&p["hostIP"])).filter(|ip| !ip.is_empty()).unwrap_or("0.0.0.0");
            Some((port, text(&p["protocol"]).to_owned(), ip.to_owned()))
        })
        .collect()
}

fn ports(title: &str, new: &[&Pod], old: &[&Pod], wrong: &mut Vec<String>) {
    let any = |ip: &str| ip == "0.0.0.0" || ip == "::";
    for (i, a) in new.iter().enumerate() {
        for b in new[i + 1..].iter().chain(old) {
            for (port, protocol, ip) in host_ports(a) {
                let clash = host_ports(b)
                    .iter()
                    .any(|(p, q, j)| *p == port && *q == protocol && (*j == ip || any(j) || any(&ip)));
                if clash && a.key != b.key {
                    wrong.push(format!("{title}: pods {} and {} both want host port {port}", a.key, b.key));
                }
            }
        }
    }
}

/// The claims behind a pod's volumes; those that do not exist are left out.
fn claims_of<'a>(world: &'a World, pod: &Pod) -> Vec<(String, &'a Value)> {
    list(&pod.spec()["volumes"])
        .iter()
        .filter_map(|v| {
            let name = match (&v["persistentVolumeClaim"], &v["ephemeral"]) {
                (Value::Null, Value::Null) => return None,
                (Value::Null, _) => format!("{}-{}", text(&pod.json["metadata"]["name"]), text(&v["name"])),
                (claim, _) => text(&claim["claimName"]).to_owned(),
            };
            let key = format!("{}/{name}", pod.namespace);
            world.claims.get(&key).map(|c| (key, *c))
        })
        .collect()
}

fn attachments<'a>(
    world: &World,
    pods: impl Iterator<Item = &'a Pod<'a>>,
) -> BTreeMap<String, BTreeSet<String>> {
    let mut out: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for pod in pods {
        for (key, claim) in claims_of(world, pod) {
            let driver = match text(&claim["spec"]["volumeName"]) {
                "" => {
                    let class = world.classes.get(text(&claim["spec"]["storageClassName"]));
                    csi_name(class.map(|c| text(&c["provisioner"])).unwrap_or_default())
                }
                volume => match world.volumes.get(volume).map(|v| &v["spec"]) {
                    Some(spec) if !spec["csi"].is_null() => text(&spec["csi"]["driver"]),
                    Some(spec) if !spec["awsElasticBlockStore"].is_null() => "ebs.csi.aws.com",
                    _ => "",
                },
            };
            if !driver.is_empty() {
                out.entry(driver.to_owned()).or_default().insert(key);
            }
        }
    }
    out
}

/// The CSI driver that took over an in-tree provisioner.
fn csi_name(provisioner: &str) -> &str {
    match provisioner {
        "kubernetes.io/aws-ebs" => "ebs.csi.aws.com",
        "kubernetes.io/gce-pd" => "pd.csi.storage.gke.io",
        "kubernetes.io/azure-disk" => "disk.csi.azure.com",
        "kubernetes.io/azure-file" => "file.csi.azure.com",
        "kubernetes.io/cinder" => "cinder.csi.openstack.org",
        "kubernetes.io/vsphere-volume" => "csi.vsphere.vmware.com",
        "kubernetes.io/portworx-volume" => "pxd.portworx.com",
        other => other,
    }
}

/// Each volume must accept the place through one of its alternatives.
fn volumes_allow(
    world: &World,
    pod: &Pod,
    title: &str,
    holds: &dyn Fn(&Expression) -> bool,
    wrong: &mut Vec<String>,
) {
    for (key, claim) in claims_of(world, pod) {
        let alternatives: Vec<Vec<Expression>> = match text(&claim["spec"]["volumeName"]) {
            "" => world
                .classes
                .get(text(&claim["spec"]["storageClassName"]))
                .map(|class| list(&class["allowedTopologies"]))
                .unwrap_or_default()
                .iter()
                .map(|t| list(&t["matchLabelExpressions"]).iter().map(Expression::listed).collect())
                .collect(),
            volume => world.volumes.get(volume).map(|v| volume_alternatives(v)).unwrap_or_default(),
        };
        let stated: Vec<_> = alternatives.into_iter().filter(|a| !a.is_empty()).collect();
        if !stated.is_empty() && !stated.iter().any(|all| all.iter().all(holds)) {
            wrong.push(format!("{title}: volume claim {key} of pod {} cannot be there", pod.key));
        }
    }
}

fn volume_alternatives(volume: &Value) -> Vec<Vec<Expression<'_>>> {
    let spec = &volume["spec"];
    let moves = !spec["local"].is_null() || !spec["hostPath"].is_null();
    let mut out = Vec::new();
    for term in list(&spec["nodeAffinity"]["required"]["nodeSelectorTerms"]) {
        let all: Vec<_> = list(&term["matchExpressions"]).iter().map(Expression::read).collect();
        let kept: Vec<_> = all.iter().filter(|e| !moves || e.key != HOSTNAME).cloned().collect();
        if kept.is_empty() && !all.is_empty() {
            return Vec::new();
        }
        out.push(kept);
    }
    out
}
