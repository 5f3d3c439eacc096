//! How a machine joins the cluster, for images that bring kubeadm, k3s or RKE2 and leave the rest to us. Pure.
//!
//! A part of our own tells kubelet labels, taints and limits and joins; what the NodeClass says besides comes as a second part,
//! which cloud-init runs after it.

use std::collections::BTreeMap;

use crate::nodeclass::Bootstrap;
use crate::userdata::Variables;

/// What separates the parts; no script holds it by accident.
const BOUNDARY: &str = "karpenter-7d1f9a4e";

/// User data that cannot be put together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "spec.userData is a MIME document already and cannot be merged with spec.bootstrap; leave one of them out"
)]
pub(crate) struct CannotMerge;

/// The whole user data: ours, and the user's behind it.
pub(crate) fn merge(ours: &str, theirs: Option<&str>) -> Result<String, CannotMerge> {
    let Some(theirs) = theirs.filter(|text| !text.trim().is_empty()) else { return Ok(ours.to_owned()) };
    if theirs.to_ascii_lowercase().starts_with("content-type:") || theirs.starts_with("MIME-Version:") {
        return Err(CannotMerge);
    }
    let kind = if theirs.starts_with("#cloud-config") { "text/cloud-config" } else { "text/x-shellscript" };
    Ok(format!(
        "Content-Type: multipart/mixed; boundary=\"{BOUNDARY}\"\nMIME-Version: 1.0\n\n--{BOUNDARY}\nContent-Type: text/x-shellscript\n\n{ours}\n--{BOUNDARY}\nContent-Type: {kind}\n\n{theirs}\n--{BOUNDARY}--\n"
    ))
}

/// The script that joins.
pub(crate) fn script(
    bootstrap: &Bootstrap,
    token: &str,
    max_pods: Option<i64>,
    variables: &Variables,
) -> String {
    let api_server = bootstrap.api_server.as_str();
    let mut arguments: BTreeMap<String, String> = bootstrap.kubelet_extra_args.clone();
    if let Some(max_pods) = max_pods {
        arguments.entry("max-pods".to_owned()).or_insert_with(|| max_pods.to_string());
    }
    match bootstrap.mode.as_str() {
        "K3s" => agent("k3s", "https://", api_server, token, &arguments, variables),
        "RKE2" => agent("rke2", "https://", api_server, token, &arguments, variables),
        _ => {
            let labels = variables.labels.as_str();
            let taints = variables.taints.as_str();
            let mut words =
                vec![format!("--node-labels={labels}"), format!("--register-with-taints={taints}")];
            words.extend(arguments.iter().map(|(name, value)| format!("--{name}={value}")));
            let discovery = match &bootstrap.ca_cert_hash {
                Some(hash) => format!("--discovery-token-ca-cert-hash {hash}"),
                None => "--discovery-token-unsafe-skip-ca-verification".to_owned(),
            };
            let words = words.join(" ");
            format!(
                "#!/bin/bash\nset -euo pipefail\nfor file in /etc/default/kubelet /etc/sysconfig/kubelet; do\n  [ -d \"$(dirname \"$file\")\" ] && echo 'KUBELET_EXTRA_ARGS={words}' > \"$file\"\ndone\nkubeadm join {api_server} --token {token} {discovery} --node-name \"$(hostname)\"\n"
            )
        }
    }
}

/// k3s and RKE2 read one file each, alike.
fn agent(
    name: &str,
    scheme: &str,
    api_server: &str,
    token: &str,
    arguments: &BTreeMap<String, String>,
    variables: &Variables,
) -> String {
    let mut kubelet = vec![
        format!("node-labels={}", variables.labels),
        format!("register-with-taints={}", variables.taints),
    ];
    kubelet.extend(arguments.iter().map(|(name, value)| format!("{name}={value}")));
    let kubelet: String = kubelet.iter().map(|argument| format!("  - \"{argument}\"\n")).collect();
    format!(
        "#!/bin/bash\nset -euo pipefail\nmkdir -p /etc/rancher/{name}\ncat > /etc/rancher/{name}/config.yaml <<'END'\nserver: \"{scheme}{api_server}\"\ntoken: \"{token}\"\nkubelet-arg:\n{kubelet}END\nsystemctl enable --now {name}-agent\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bootstrap(mode: &str) -> Bootstrap {
        Bootstrap {
            mode: mode.into(),
            api_server: "api.example.com:6443".into(),
            ca_cert_hash: Some("sha256:1".into()),
            kubelet_extra_args: [("v".to_owned(), "2".to_owned())].into(),
            ..Bootstrap::default()
        }
    }

    fn variables() -> Variables {
        Variables {
            labels: "a=b".into(),
            taints: "karpenter.sh/unregistered=:NoExecute".into(),
            ..Variables::default()
        }
    }

    #[test]
    fn every_mode_tells_kubelet_labels_taints_and_the_rest_and_joins() {
        for (mode, joins) in [
            (
                "Kubeadm",
                "kubeadm join api.example.com:6443 --token t --discovery-token-ca-cert-hash sha256:1",
            ),
            ("K3s", "server: \"https://api.example.com:6443\""),
            ("RKE2", "systemctl enable --now rke2-agent"),
        ] {
            let script = script(&bootstrap(mode), "t", Some(50), &variables());
            for part in [
                joins,
                "node-labels=a=b",
                "register-with-taints=karpenter.sh/unregistered=:NoExecute",
                "max-pods=50",
                "v=2",
            ] {
                assert!(script.contains(part), "{mode}: {part} in {script}");
            }
        }
    }

    #[test]
    fn what_the_user_says_comes_behind_as_what_it_is() {
        assert_eq!(merge("#!/bin/sh\n", None).as_deref(), Ok("#!/bin/sh\n"));
        let merged = merge("#!/bin/sh\nours", Some("#cloud-config\npackages: []")).expect("parts");
        assert!(
            merged.contains("text/cloud-config\n\n#cloud-config")
                && merged.ends_with(&format!("--{BOUNDARY}--\n"))
        );
        assert!(merged.find("ours") < merged.find("packages"));
        assert_eq!(merge("x", Some("Content-Type: multipart/mixed\n")), Err(CannotMerge));
    }
}
