//! How Talos machines join: their user data is a machine configuration, which knows the cluster and its secrets by itself. What
//! Karpenter counts on is put into it: labels, taints and limits of kubelet. Pure.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::bootstrap::BootstrapError;
use crate::nodeclass::CloudStackNodeClassSpec;
use crate::userdata::{self, Variables};

/// The machine configuration with what kubelet must be told. What the user says of it stays, except for the arguments that
/// `spec.bootstrap` names.
pub(crate) fn configuration(
    theirs: Option<&str>,
    spec: &CloudStackNodeClassSpec,
    variables: &Variables,
) -> Result<String, BootstrapError> {
    let text = userdata::fill(theirs.unwrap_or_default(), variables);
    // What the parser says would quote the configuration, and that holds secrets.
    let mut documents: Vec<Value> =
        serde_saphyr::from_multiple(&text).map_err(|_| BootstrapError::NoMachineConfiguration)?;
    let machine = documents.iter_mut().find_map(|document| document.get_mut("machine"));
    let Some(Value::Object(machine)) = machine else { return Err(BootstrapError::NoMachineConfiguration) };
    let kind = machine.get("type").and_then(Value::as_str).unwrap_or("worker");
    if !["worker", "join"].contains(&kind) {
        return Err(BootstrapError::NotAWorker(kind.to_owned()));
    }
    let kubelet = object(machine, "kubelet");
    let arguments = object(kubelet, "extraArgs");
    let theirs = arguments.get("node-labels").and_then(Value::as_str).unwrap_or_default();
    let labels: Vec<&str> =
        [theirs, variables.labels.as_str()].into_iter().filter(|labels| !labels.is_empty()).collect();
    if !labels.is_empty() {
        let labels = labels.join(",");
        arguments.insert("node-labels".to_owned(), labels.into());
    }
    let further = spec.bootstrap.iter().flat_map(|bootstrap| &bootstrap.kubelet_extra_args);
    for (name, value) in further {
        arguments.insert(name.clone(), value.as_str().into());
    }
    let config = object(kubelet, "extraConfig");
    let taints = config.entry("registerWithTaints").or_insert_with(|| json!([]));
    if let Value::Array(taints) = taints {
        for taint in variables.taints.split(',').filter(|taint| !taint.is_empty()) {
            let (pair, effect) = taint.rsplit_once(':').unwrap_or((taint, "NoSchedule"));
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !taints.iter().any(|known| known["key"] == key && known["effect"] == effect) {
                taints.push(json!({"key": key, "value": value, "effect": effect}));
            }
        }
    }
    if let Some(pods) = spec.max_pods {
        config.entry("maxPods").or_insert_with(|| pods.into());
    }
    for (name, list) in [("kubeReserved", &spec.kube_reserved), ("systemReserved", &spec.system_reserved)] {
        if let Some(list) = list {
            let kept: BTreeMap<&String, String> =
                list.iter().map(|(name, amount)| (name, amount.to_string())).collect();
            config.entry(name).or_insert_with(|| json!(kept));
        }
    }
    // JSON is YAML, and each document is one line of it.
    let lines: Vec<String> = documents.iter().map(|document| format!("---\n{document}\n")).collect();
    Ok(lines.concat())
}

/// The object of this name; made, or made anew if it is something else.
fn object<'a>(of: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    let value = of.entry(name).or_insert_with(|| json!({}));
    if !value.is_object() {
        *value = json!({});
    }
    match value {
        Value::Object(object) => object,
        _ => unreachable!("it was made one"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: &str = "version: v1alpha1\nmachine:\n  type: worker\n  token: secret.token\n  kubelet:\n    image: kubelet:v1.35\n    extraArgs:\n      node-labels: rack=7\n    extraConfig:\n      maxPods: 20\ncluster:\n  clusterName: \"{{clusterName}}\"\n---\napiVersion: v1alpha1\nkind: WatchdogTimerConfig\n";

    fn spec(more: Value) -> CloudStackNodeClassSpec {
        let mut spec = json!({"zone": "z", "bootstrap": {"mode": "Talos"}});
        for (key, value) in more.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        serde_json::from_value(spec).expect("a spec")
    }

    fn variables() -> Variables {
        Variables {
            cluster: "prod".into(),
            labels: "karpenter.sh/nodepool=web".into(),
            taints: "karpenter.sh/unregistered=:NoExecute,team=a:NoSchedule".into(),
            ..Variables::default()
        }
    }

    #[test]
    fn a_workers_configuration_gets_labels_taints_and_limits_and_keeps_the_rest() {
        let spec = spec(json!({
            "maxPods": 50, "kubeReserved": {"cpu": "200m"},
            "bootstrap": {"mode": "Talos", "kubeletExtraArgs": {"v": "4"}},
        }));
        let text = configuration(Some(WORKER), &spec, &variables()).expect("a configuration");
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
        assert_eq!(documents.len(), 2, "{text}");
        assert_eq!(documents[1]["kind"], "WatchdogTimerConfig");
        let (machine, kubelet) = (&documents[0]["machine"], &documents[0]["machine"]["kubelet"]);
        assert_eq!((&machine["token"], &kubelet["image"]), (&json!("secret.token"), &json!("kubelet:v1.35")));
        assert_eq!(documents[0]["cluster"]["clusterName"], "prod");
        let arguments = json!({"node-labels": "rack=7,karpenter.sh/nodepool=web", "v": "4"});
        assert_eq!(kubelet["extraArgs"], arguments);
        assert_eq!(kubelet["extraConfig"]["maxPods"], 20, "what the user says of it stays");
        assert_eq!(kubelet["extraConfig"]["kubeReserved"], json!({"cpu": "200m"}));
        let taints = json!([
            {"key": "karpenter.sh/unregistered", "value": "", "effect": "NoExecute"},
            {"key": "team", "value": "a", "effect": "NoSchedule"},
        ]);
        assert_eq!(kubelet["extraConfig"]["registerWithTaints"], taints);
    }

    #[test]
    fn what_is_no_workers_configuration_is_refused_without_being_quoted() {
        for text in ["", "#!/bin/bash\necho secret", "a: [secret", "machine: secret"] {
            let error = configuration(Some(text), &spec(json!({})), &variables()).expect_err(text);
            assert_eq!(error, BootstrapError::NoMachineConfiguration);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        let controls = WORKER.replace("type: worker", "type: controlplane");
        let error = configuration(Some(&controls), &spec(json!({})), &variables()).expect_err("controls");
        assert!(error.to_string().contains("controlplane"), "{error}");
    }
}
