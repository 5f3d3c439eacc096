//! What Machine mode changes in the clones of templates: the NodeClass's patches, the taint that nodes register with, and how kubelet is
//! set up; and a hash of everything a Machine was made from, by which it is known to be out of date. Pure.

use k8s_openapi::api::core::v1::Taint;
use karpenter_api::{NodeClaim, ResourceList, structure_hash, taints};
use serde_json::{Value, json};

use crate::client::fields::Malformed;
use crate::client::scalable::Scalable;
use crate::nodeclass::{
    ClonePatch, ClusterAPINodeClass, ClusterAPINodeClassSpec, Kubelet, PatchOperation, PatchValue,
};

/// Why a patch cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("spec.{field}[{index}]: {problem}")]
pub(crate) struct PatchError {
    /// `bootstrapPatches` or `infrastructurePatches`.
    pub(crate) field: &'static str,
    pub(crate) index: usize,
    /// What is wrong with it.
    pub(crate) problem: String,
}

/// Applies patches to the `spec` of a clone.
pub(crate) fn patch(
    spec: &mut Value,
    field: &'static str,
    patches: &[ClonePatch],
    claim: &NodeClaim,
    kubelet: Option<&Kubelet>,
) -> Result<(), PatchError> {
    for (index, patch) in patches.iter().enumerate() {
        let failed = |problem: String| PatchError { field, index, problem };
        let value = match (&patch.value, patch.value_from) {
            (Some(text), None) => serde_json::from_str(text).map_err(|error| {
                failed(format!("value {text:?} is not JSON: {error}; a text wants quotes"))
            })?,
            (None, Some(PatchValue::Labels)) => json!(claim.metadata.labels.clone().unwrap_or_default()),
            (None, Some(PatchValue::Taints)) => json!(taints_of(claim)),
            (None, Some(PatchValue::Name)) => json!(claim.metadata.name),
            (None, Some(PatchValue::Kubelet)) => {
                kubelet.map(arguments).unwrap_or_default().into_iter().collect()
            }
            (None, None) => Value::Null,
            (Some(_), Some(_)) => {
                return Err(failed("value and valueFrom are both set; keep one".to_owned()));
            }
        };
        let operation = match patch.op.unwrap_or_default() {
            PatchOperation::Add => json!([{"op": "add", "path": patch.path, "value": value}]),
            PatchOperation::Replace => json!([{"op": "replace", "path": patch.path, "value": value}]),
            PatchOperation::Remove => json!([{"op": "remove", "path": patch.path}]),
        };
        let operation: json_patch::Patch = serde_json::from_value(operation)
            .map_err(|error| failed(format!("path {:?}: {error}", patch.path)))?;
        json_patch::patch(spec, &operation).map_err(|error| failed(error.to_string()))?;
    }
    Ok(())
}

/// Values of a NodeClass's patches that mean nothing, whatever the NodeClaim: every launch would fail on them.
pub(crate) fn trouble(class: &ClusterAPINodeClass) -> Vec<Malformed> {
    let spec = class.spec();
    let fields = [
        ("bootstrapPatches", spec.bootstrap_patches),
        ("infrastructurePatches", spec.infrastructure_patches),
    ];
    let mut found = Vec::new();
    for (field, patches) in fields.into_iter().filter(|_| class.makes_machines()) {
        for (index, patch) in patches.iter().flatten().enumerate() {
            let value = patch.value.as_ref();
            let error = value.and_then(|text| Some((text, serde_json::from_str::<Value>(text).err()?)));
            found.extend(error.map(|(text, error)| Malformed {
                object: format!("ClusterAPINodeClass {}", class.name()),
                key: format!("spec.{field}[{index}].value"),
                problem: format!("{text:?} is not JSON: {error}; a text wants quotes"),
            }));
        }
    }
    found
}

fn taints_of(claim: &NodeClaim) -> Vec<Taint> {
    let all = [&claim.spec.taints, &claim.spec.startup_taints];
    let mut found: Vec<Taint> = all.into_iter().flatten().flatten().cloned().collect();
    found.push(taints::UNREGISTERED.to_taint());
    found
}

/// A field of a template that is not of the shape it has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{field}: must be {wanted}")]
pub(crate) struct Misshapen {
    /// Which, from the root of the template.
    pub(crate) field: &'static str,
    /// What it should be.
    pub(crate) wanted: &'static str,
}

/// Has the nodes of a kubeadm configuration register with Karpenter's taint, and with those of the NodeClaim. Other kinds of
/// configuration want a patch.
pub(crate) fn register_with_taints(kind: &str, spec: &mut Value, claim: &NodeClaim) -> Result<(), Misshapen> {
    if kind != "KubeadmConfig" {
        return Ok(());
    }
    let spec = object(spec, "spec.template.spec")?;
    let join = object(&mut spec["joinConfiguration"], "spec.template.spec.joinConfiguration")?;
    let registration =
        object(&mut join["nodeRegistration"], "spec.template.spec.joinConfiguration.nodeRegistration")?;
    let list = &mut registration["taints"];
    if list.is_null() {
        // Kubeadm sets none on workers by itself.
        *list = json!([]);
    }
    let Some(list) = list.as_array_mut() else {
        let field = "spec.template.spec.joinConfiguration.nodeRegistration.taints";
        return Err(Misshapen { field, wanted: "a list" });
    };
    for taint in taints_of(claim) {
        let same =
            |known: &Value| known["key"] == taint.key.as_str() && known["effect"] == taint.effect.as_str();
        if !list.iter().any(same) {
            list.push(json!(taint));
        }
    }
    Ok(())
}

/// Has kubelet on the nodes of a kubeadm configuration keep what the NodeClass says, which is what Karpenter counts on. `version` is
/// that of the configuration's kind: arguments are a list since v1beta2. Other kinds of configuration want a patch.
pub(crate) fn set_up_kubelet(
    kind: &str,
    version: &str,
    spec: &mut Value,
    kubelet: Option<&Kubelet>,
) -> Result<(), Misshapen> {
    let arguments = kubelet.map(arguments).unwrap_or_default();
    if kind != "KubeadmConfig" || arguments.is_empty() {
        return Ok(());
    }
    let spec = object(spec, "spec.template.spec")?;
    let join = object(&mut spec["joinConfiguration"], "spec.template.spec.joinConfiguration")?;
    let registration =
        object(&mut join["nodeRegistration"], "spec.template.spec.joinConfiguration.nodeRegistration")?;
    let found = &mut registration["kubeletExtraArgs"];
    if found.is_null() {
        *found = if version == "v1beta1" { json!({}) } else { json!([]) };
    }
    match found {
        Value::Object(map) => {
            map.extend(arguments.into_iter().map(|(name, value)| (name.to_owned(), value.into())))
        }
        Value::Array(list) => {
            list.retain(|known| !arguments.iter().any(|(name, _)| known["name"] == *name));
            list.extend(arguments.into_iter().map(|(name, value)| json!({"name": name, "value": value})));
        }
        _ => {
            let field = "spec.template.spec.joinConfiguration.nodeRegistration.kubeletExtraArgs";
            return Err(Misshapen { field, wanted: "a list or an object" });
        }
    }
    Ok(())
}

/// What kubelet is started with.
fn arguments(kubelet: &Kubelet) -> Vec<(&'static str, String)> {
    let list = |list: &Option<ResourceList>| {
        let pairs = list.as_ref()?.iter().map(|(resource, quantity)| format!("{resource}={quantity}"));
        Some(pairs.collect::<Vec<_>>().join(","))
    };
    let eviction = kubelet.eviction_hard.as_ref().map(|hard| {
        hard.iter().map(|(signal, value)| format!("{signal}<{value}")).collect::<Vec<_>>().join(",")
    });
    [
        ("kube-reserved", list(&kubelet.kube_reserved)),
        ("system-reserved", list(&kubelet.system_reserved)),
        ("eviction-hard", eviction),
        ("max-pods", kubelet.max_pods.map(|pods| pods.to_string())),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value.filter(|value| !value.is_empty())?)))
    .collect()
}

/// A field that holds an object, made if it is not there.
fn object<'a>(value: &'a mut Value, field: &'static str) -> Result<&'a mut Value, Misshapen> {
    if value.is_null() {
        *value = json!({});
    }
    if value.is_object() { Ok(value) } else { Err(Misshapen { field, wanted: "an object" }) }
}

/// What a Machine was made from, in short.
pub(crate) fn blueprint_hash(blueprint: &Scalable, spec: &ClusterAPINodeClassSpec) -> String {
    let reference = |reference: &Option<crate::client::fields::Reference>| {
        reference.as_ref().map(|r| json!([r.group, r.kind, r.name])).unwrap_or_default()
    };
    let made_from = json!([
        reference(&blueprint.infrastructure),
        reference(&blueprint.bootstrap),
        blueprint.bootstrap_secret,
        blueprint.version,
        spec.bootstrap_patches,
        spec.infrastructure_patches,
    ]);
    format!("{:016x}", structure_hash::text(&made_from.to_string()))
}

/// What the NodeClass changed in a Machine's clones, in short.
pub(crate) fn patches_hash(spec: &ClusterAPINodeClassSpec) -> String {
    let mut patches = vec![json!(spec.bootstrap_patches), json!(spec.infrastructure_patches)];
    patches.extend(spec.kubelet.as_ref().map(|kubelet| json!(kubelet)));
    let patches = Value::Array(patches);
    format!("{:016x}", structure_hash::text(&patches.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::deployment;

    fn claim() -> NodeClaim {
        serde_json::from_value(json!({
            "metadata": {"name": "n1", "labels": {"team": "a"}},
            "spec": {
                "requirements": [], "taints": [{"key": "gpu", "effect": "NoSchedule"}],
                "nodeClassRef": {"group": "g", "kind": "k", "name": "n"},
            },
        }))
        .expect("a NodeClaim")
    }

    #[test]
    fn a_patch_whose_value_is_no_json_is_named() {
        let class = |mode: &str| -> ClusterAPINodeClass {
            let patches = json!([{"path": "/a", "value": "1"}, {"path": "/b", "value": "plain"}]);
            serde_json::from_value(json!({
                "metadata": {"name": "metal"}, "spec": {"launchMode": mode, "bootstrapPatches": patches},
            }))
            .expect("a NodeClass")
        };
        let told: Vec<String> = trouble(&class("Machine")).iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 1, "{told:?}");
        let expected = "ClusterAPINodeClass metal: spec.bootstrapPatches[1].value: \"plain\" is not JSON";
        assert!(told[0].starts_with(expected), "{told:?}");
        assert!(trouble(&class("MachineDeployment")).is_empty());
    }

    #[test]
    fn patches_change_a_clone_with_values_of_the_node_claim() {
        let patches: Vec<ClonePatch> = serde_json::from_value(json!([
            {"op": "Add", "path": "/files", "value": "[{\"path\": \"/etc/x\"}]"},
            {"op": "Add", "path": "/nodeName", "valueFrom": "Name"},
            {"op": "Add", "path": "/labels", "valueFrom": "Labels"},
            {"op": "Add", "path": "/extraArgs", "valueFrom": "Kubelet"},
            {"op": "Remove", "path": "/old"},
        ]))
        .expect("patches");
        let mut spec = json!({"old": 1});
        let kubelet: Kubelet = serde_json::from_value(json!({"maxPods": 50})).expect("kubelet");
        patch(&mut spec, "bootstrapPatches", &patches, &claim(), Some(&kubelet)).expect("applied");
        let patched = json!({
            "files": [{"path": "/etc/x"}], "nodeName": "n1", "labels": {"team": "a"}, "extraArgs": {"max-pods": "50"},
        });
        assert_eq!(spec, patched);
        let arguments = patches[3..4].to_vec();
        patch(&mut spec, "bootstrapPatches", &arguments, &claim(), None).expect("applied");
        assert_eq!(spec["extraArgs"], json!({}), "nothing is said");
        let bad: Vec<ClonePatch> =
            serde_json::from_value(json!([{"op": "Add", "path": "/x", "value": "words"}])).expect("a patch");
        let error =
            patch(&mut spec, "bootstrapPatches", &bad, &claim(), None).expect_err("refused").to_string();
        assert!(error.starts_with("spec.bootstrapPatches[0]: value \"words\" is not JSON"), "{error}");
    }

    #[test]
    fn kubeadm_nodes_register_with_the_taints_of_their_node_claim() {
        let mut spec = json!({"joinConfiguration": {"nodeRegistration": {"taints": [{"key": "own", "effect": "NoSchedule"}]}}});
        register_with_taints("KubeadmConfig", &mut spec, &claim()).expect("registered");
        let keys: Vec<&str> = spec["joinConfiguration"]["nodeRegistration"]["taints"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|taint| taint["key"].as_str())
            .collect();
        assert_eq!(keys, ["own", "gpu", "karpenter.sh/unregistered"]);
        let mut other = json!({"a": 1});
        register_with_taints("TalosConfig", &mut other, &claim()).expect("left alone");
        assert_eq!(other, json!({"a": 1}));
    }

    #[test]
    fn kubelet_of_kubeadm_nodes_keeps_what_the_node_class_says_in_both_shapes() {
        let kubelet: Kubelet = serde_json::from_value(json!({
            "kubeReserved": {"cpu": "100m", "memory": "1Gi"}, "evictionHard": {"memory.available": "5%"}, "maxPods": 50,
        }))
        .expect("kubelet");
        let arguments = |version: &str, before: Value| {
            let mut spec = json!({"joinConfiguration": {"nodeRegistration": {"kubeletExtraArgs": before}}});
            set_up_kubelet("KubeadmConfig", version, &mut spec, Some(&kubelet)).expect("set up");
            spec["joinConfiguration"]["nodeRegistration"]["kubeletExtraArgs"].take()
        };
        let map = json!({"kube-reserved": "cpu=100m,memory=1Gi", "eviction-hard": "memory.available<5%", "max-pods": "50"});
        assert_eq!(arguments("v1beta1", Value::Null), map);
        let list = json!([
            {"name": "v", "value": "4"},
            {"name": "kube-reserved", "value": "cpu=100m,memory=1Gi"},
            {"name": "eviction-hard", "value": "memory.available<5%"},
            {"name": "max-pods", "value": "50"},
        ]);
        let before = json!([{"name": "v", "value": "4"}, {"name": "max-pods", "value": "110"}]);
        assert_eq!(arguments("v1beta2", before), list);
        let mut untouched = json!({});
        set_up_kubelet("KubeadmConfig", "v1beta2", &mut untouched, None).expect("left alone");
        set_up_kubelet("TalosConfig", "v1beta2", &mut untouched, Some(&kubelet)).expect("left alone");
        assert_eq!(untouched, json!({}));
        let mut odd = json!({"joinConfiguration": {"nodeRegistration": {"kubeletExtraArgs": "words"}}});
        assert!(set_up_kubelet("KubeadmConfig", "v1beta2", &mut odd, Some(&kubelet)).is_err());
        let told = ClusterAPINodeClassSpec { kubelet: Some(kubelet), ..ClusterAPINodeClassSpec::default() };
        assert_ne!(patches_hash(&told), patches_hash(&ClusterAPINodeClassSpec::default()));
    }

    #[test]
    fn a_misshapen_template_is_told_by_its_field() {
        let join = "spec.template.spec.joinConfiguration";
        for (mut spec, field) in [
            (json!([]), "spec.template.spec".to_owned()),
            (json!({"joinConfiguration": "words"}), join.to_owned()),
            (json!({"joinConfiguration": {"nodeRegistration": []}}), format!("{join}.nodeRegistration")),
            (
                json!({"joinConfiguration": {"nodeRegistration": {"taints": {}}}}),
                format!("{join}.nodeRegistration.taints"),
            ),
        ] {
            let error = register_with_taints("KubeadmConfig", &mut spec, &claim()).expect_err("refused");
            assert_eq!(error.field, field);
        }
    }

    #[test]
    fn another_version_or_patch_is_another_hash() {
        let spec = ClusterAPINodeClassSpec::default();
        let mut changed = deployment("m", &[]);
        assert_eq!(
            blueprint_hash(&changed, &spec),
            blueprint_hash(&deployment("m", &[("any", "note")]), &spec)
        );
        changed.version = Some("v1.37.0".to_owned());
        assert_ne!(blueprint_hash(&changed, &spec), blueprint_hash(&deployment("m", &[]), &spec));
    }
}
