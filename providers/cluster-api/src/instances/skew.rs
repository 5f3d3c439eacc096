//! The checks that a MachineSet makes before it makes a Machine, for Machines that no MachineSet makes: that the control plane is not
//! on its way to another version, and that the Machine's own goes with it. Pure.

use super::holds::{Hold, HoldKind};
use crate::client::cluster::Cluster;
use crate::client::control_plane::ControlPlane;
use crate::client::scalable::Scalable;
use crate::names;

/// How many minor versions kubelet may be older than the control plane.
const OLDEST: u64 = 3;

/// A version, as far as it is compared: its numbers, and what else it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version<'a> {
    numbers: (u64, u64, u64),
    rest: &'a str,
}

impl<'a> Version<'a> {
    /// Reads `v1.36.0`, `1.36`, `v1.36.0-rc.1+k3s1`.
    fn read(text: &'a str) -> Option<Self> {
        let text = text.trim().trim_start_matches('v');
        let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
        let (numbers, rest) = text.split_at(end);
        let mut numbers = numbers.split('.').map(|number| number.parse::<u64>().ok());
        let (major, minor) = (numbers.next()??, numbers.next()??);
        let patch = numbers.next().unwrap_or(Some(0))?;
        Some(Self { numbers: (major, minor, patch), rest })
    }

    fn minor(self) -> u64 {
        self.numbers.1
    }

    /// Whether who has the other one has yet to be upgraded to this one.
    fn is_ahead_of(self, other: Self) -> bool {
        self.numbers > other.numbers || (self.numbers == other.numbers && self.rest != other.rest)
    }
}

/// Why no Machine is to be made from a blueprint now. What cannot be compared holds nothing back: a control plane without a version,
/// or a version that is none.
pub(crate) fn hold(blueprint: &Scalable, cluster: &Cluster, control_plane: &ControlPlane) -> Option<Hold> {
    let skipped = blueprint.annotations.get(names::SKIP_PREFLIGHT_CHECKS).map(String::as_str);
    let skipped: Vec<&str> = skipped.unwrap_or_default().split(',').map(str::trim).collect();
    let is_made = |check: &str| !skipped.contains(&check) && !skipped.contains(&"All");
    let wanted = control_plane.version.as_deref()?;
    let checks: [(&str, Option<String>); 4] = [
        ("ControlPlaneIsStable", unstable(cluster, control_plane, wanted)),
        ("KubernetesVersionSkew", too_far_apart(blueprint, wanted)),
        ("KubeadmVersionSkew", not_for_kubeadm(blueprint, wanted)),
        ("ControlPlaneVersionSkew", not_propagated(blueprint, cluster, wanted)),
    ];
    let (check, why) =
        checks.into_iter().find_map(|(check, why)| Some((check, why?)).filter(|_| is_made(check)))?;
    let message = format!("{}: {why} (check {check})", blueprint.id);
    Some(Hold { kind: HoldKind::Waiting, reason: "ControlPlaneUpgrading", message })
}

fn unstable(cluster: &Cluster, control_plane: &ControlPlane, wanted: &str) -> Option<String> {
    let subject = &control_plane.subject;
    if let Some(topology) = cluster.topology_version.as_deref() {
        let step = cluster.upgrade_step.as_deref();
        if topology != wanted && step != Some(wanted) {
            return Some(format!("{subject} is about to be upgraded to {}", step.unwrap_or(topology)));
        }
    }
    if control_plane.current.is_empty() {
        return Some(format!("{subject} is being provisioned"));
    }
    let goal = Version::read(wanted)?;
    let behind = control_plane
        .current
        .iter()
        .find(|current| Version::read(current).is_some_and(|current| goal.is_ahead_of(current)))?;
    Some(format!("{subject} is being upgraded from {behind} to {wanted}"))
}

fn too_far_apart(blueprint: &Scalable, wanted: &str) -> Option<String> {
    let own = blueprint.version.as_deref()?;
    let (kubelet, control_plane) = (Version::read(own)?.minor(), Version::read(wanted)?.minor());
    if kubelet > control_plane {
        return Some(format!("its version {own} is newer than the control plane's, {wanted}"));
    }
    (kubelet + OLDEST < control_plane).then(|| {
        format!(
            "its version {own} is more than {OLDEST} minor versions older than the control plane's, {wanted}"
        )
    })
}

fn not_for_kubeadm(blueprint: &Scalable, wanted: &str) -> Option<String> {
    let bootstrap = blueprint.bootstrap.as_ref()?;
    if bootstrap.kind != "KubeadmConfigTemplate" || bootstrap.group != "bootstrap.cluster.x-k8s.io" {
        return None;
    }
    let own = blueprint.version.as_deref()?;
    let same = Version::read(own)?.minor() == Version::read(wanted)?.minor();
    (!same).then(|| format!("kubeadm of version {own} cannot join a control plane of version {wanted}"))
}

fn not_propagated(blueprint: &Scalable, cluster: &Cluster, wanted: &str) -> Option<String> {
    cluster.topology_version.as_ref()?;
    let own = blueprint.version.as_deref()?;
    (own != wanted).then(|| format!("its version {own} is not yet the control plane's, {wanted}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{deployment_json, object, read_deployment};

    /// What holds a blueprint of this version with this bootstrap template back.
    fn held(version: &str, bootstrap: &str, cluster: Value, control_plane: Value) -> Option<String> {
        let mut blueprint = deployment_json("m", &[]);
        blueprint["spec"]["template"]["spec"]["version"] = version.into();
        blueprint["spec"]["template"]["spec"]["bootstrap"] = json!({"configRef": {
            "apiGroup": "bootstrap.cluster.x-k8s.io", "kind": bootstrap, "name": "b",
        }});
        judged(blueprint, cluster, control_plane)
    }

    fn judged(blueprint: Value, mut cluster: Value, mut control_plane: Value) -> Option<String> {
        for object in [&mut cluster, &mut control_plane] {
            object["metadata"]["name"] = "c".into();
        }
        let cluster = Cluster::read(&object(cluster)).expect("a Cluster");
        let control_plane = ControlPlane::read("Plane", &object(control_plane)).expect("a control plane");
        let hold = hold(&read_deployment(blueprint), &cluster, &control_plane)?;
        assert_eq!((hold.kind, hold.reason), (HoldKind::Waiting, "ControlPlaneUpgrading"));
        Some(hold.message)
    }

    fn at(wanted: &str, current: &[&str]) -> Value {
        let versions: Vec<Value> = current.iter().map(|version| json!({"version": version})).collect();
        json!({"spec": {"version": wanted}, "status": {"versions": versions}})
    }

    #[test]
    fn no_machine_is_made_while_the_control_plane_is_on_its_way_to_another_version() {
        let told = |control_plane: Value| held("v1.36.0", "Any", json!({}), control_plane);
        assert_eq!(told(at("v1.36.0", &["v1.36.0"])), None);
        assert_eq!(told(json!({"spec": {"version": "v1.36.0"}, "status": {"version": "v1.36.0"}})), None);
        let upgrading = told(at("v1.37.0", &["v1.37.0", "v1.36.4"])).expect("held");
        assert!(
            upgrading.contains("upgraded from v1.36.4 to v1.37.0 (check ControlPlaneIsStable)"),
            "{upgrading}"
        );
        assert!(told(at("v1.36.0+b2", &["v1.36.0+b1"])).is_some(), "another build");
        assert!(told(at("v1.36.0", &[])).expect("held").contains("is being provisioned"));
        assert_eq!(told(at("v1.36.0", &["v1.36.1"])), None, "it will not go back");
        assert_eq!(told(json!({"spec": {}, "status": {}})), None, "its kind has no version");
    }

    #[test]
    fn a_topology_goes_before_its_control_plane_and_its_blueprints_after_it() {
        let cluster = |step: &str| {
            json!({
                "metadata": {"annotations": {names::UPGRADE_STEP: step}}, "spec": {"topology": {"version": "v1.37.0"}},
            })
        };
        let stable = || at("v1.36.0", &["v1.36.0"]);
        let pending = held("v1.36.0", "Any", cluster(""), stable()).expect("held");
        assert!(pending.contains("about to be upgraded to v1.37.0"), "{pending}");
        assert_eq!(held("v1.36.0", "Any", cluster("v1.36.0"), stable()), None, "this step is done");
        let behind = held("v1.36.0", "Any", cluster(""), at("v1.37.0", &["v1.37.0"])).expect("held");
        assert!(behind.contains("check ControlPlaneVersionSkew"), "{behind}");
    }

    #[test]
    fn a_version_that_does_not_go_with_the_control_plane_is_held_back() {
        let told = |version: &str, bootstrap: &str| {
            held(version, bootstrap, json!({}), at("v1.36.2", &["v1.36.2"])).unwrap_or_default()
        };
        assert_eq!(told("v1.36.9", "KubeadmConfigTemplate"), "", "patches may differ");
        assert!(told("v1.37.0", "Any").contains("newer than the control plane's"));
        assert_eq!(told("v1.33.0", "Any"), "");
        assert!(told("v1.32.0", "Any").contains("more than 3 minor versions older"));
        assert!(told("v1.35.0", "KubeadmConfigTemplate").contains("check KubeadmVersionSkew"));
        assert_eq!(told("stable", "KubeadmConfigTemplate"), "", "nobody can say");
    }

    #[test]
    fn checks_that_the_owner_of_a_blueprint_skips_are_not_made() {
        let upgrading = || at("v1.37.0", &["v1.36.4"]);
        for skip in ["ControlPlaneIsStable", "KubeadmVersionSkew, ControlPlaneIsStable", "All"] {
            let blueprint = deployment_json("m", &[(names::SKIP_PREFLIGHT_CHECKS, skip)]);
            assert_eq!(judged(blueprint, json!({}), upgrading()), None, "{skip}");
        }
        assert!(judged(deployment_json("m", &[]), json!({}), upgrading()).is_some());
    }
}
