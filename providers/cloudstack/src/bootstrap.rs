//! How a machine joins the cluster, for images that bring kubeadm, k3s or RKE2 and leave the rest to us, and for those whose
//! user data joins by itself. Pure.
//!
//! A part of our own tells kubelet labels, taints and limits and joins; what the NodeClass says besides comes as a second part,
//! which cloud-init runs after it.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use karpenter_api::ResourceList;

use crate::nodeclass::{Bootstrap, CloudStackNodeClassSpec};
use crate::userdata::{self, Variables};

/// What separates the parts; no script holds it by accident.
const BOUNDARY: &str = "karpenter-7d1f9a4e";

/// What user data is, by how it begins, as cloud-init tells it; of two that fit the longer. Whatever is none of these cloud-init looks at
/// itself.
const KINDS: [(&str, &str); 9] = [
    ("#!", "text/x-shellscript"),
    ("#cloud-config-archive", "text/cloud-config-archive"),
    ("#cloud-config-jsonp", "text/cloud-config-jsonp"),
    ("#cloud-config", "text/cloud-config"),
    ("#cloud-boothook", "text/cloud-boothook"),
    ("#include-once", "text/x-include-once-url"),
    ("#include", "text/x-include-url"),
    ("#part-handler", "text/part-handler"),
    ("## template: jinja", "text/jinja2"),
];

/// How long lines of base64 are in MIME documents.
const LINE: usize = 76;

/// User data that cannot be put together. Nothing of it is quoted: it holds what joins a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BootstrapError {
    #[error(
        "spec.userData is a MIME document already and cannot be merged with spec.bootstrap; leave one of them out"
    )]
    CannotMerge,
    #[error(
        "spec.userData is no machine configuration of Talos; with spec.bootstrap.mode Talos it must be a worker's, as `talosctl gen config` writes it"
    )]
    NoMachineConfiguration,
    #[error("spec.userData is the machine configuration of a {0}; Karpenter makes workers, give worker.yaml")]
    NotAWorker(String),
}

/// The user data of mode `Custom`: the user's, with what `spec.bootstrap` says filled in.
pub(crate) fn custom(
    theirs: Option<&str>,
    bootstrap: &Bootstrap,
    token: &str,
    implied: BTreeMap<String, String>,
) -> String {
    let mut arguments = implied;
    arguments.extend(bootstrap.kubelet_extra_args.clone());
    let arguments: Vec<String> = arguments.iter().map(|(name, value)| format!("--{name}={value}")).collect();
    let mut text = theirs.unwrap_or_default().to_owned();
    for (name, value) in [
        ("bootstrapToken", token),
        ("apiServer", &bootstrap.api_server),
        ("caCertHash", bootstrap.ca_cert_hash.as_deref().unwrap_or_default()),
        ("kubeletArgs", &arguments.join(" ")),
    ] {
        text = userdata::put(text, name, value);
    }
    text
}

/// The whole user data: ours, and the user's behind it.
pub(crate) fn merge(ours: &str, theirs: Option<&str>) -> Result<String, BootstrapError> {
    let Some(theirs) = theirs.filter(|text| !text.trim().is_empty()) else { return Ok(ours.to_owned()) };
    // A script that does not begin in its first line is none to who runs it.
    let theirs = theirs.trim_start();
    let beginning = theirs.to_ascii_lowercase();
    if beginning.starts_with("content-type:") || beginning.starts_with("mime-version:") {
        return Err(BootstrapError::CannotMerge);
    }
    let known = KINDS.iter().find(|(begins, _)| beginning.starts_with(begins));
    let kind = known.map_or("text/plain", |(_, kind)| kind);
    let (ours, theirs) = (part("text/x-shellscript", ours), part(kind, theirs));
    Ok(format!(
        "Content-Type: multipart/mixed; boundary=\"{BOUNDARY}\"\nMIME-Version: 1.0\n\n--{BOUNDARY}\n{ours}\n--{BOUNDARY}\n{theirs}\n--{BOUNDARY}--\n"
    ))
}

/// One part. Letters that are not ASCII are taken apart by whoever reads them, cloud-init's Python for one, unless the part says how they
/// are written.
fn part(kind: &str, text: &str) -> String {
    if text.is_ascii() {
        return format!("Content-Type: {kind}\n\n{text}");
    }
    let letters = STANDARD.encode(text);
    let lines: Vec<String> =
        letters.as_bytes().chunks(LINE).map(|line| String::from_utf8_lossy(line).into_owned()).collect();
    format!(
        "Content-Type: {kind}; charset=\"utf-8\"\nContent-Transfer-Encoding: base64\n\n{}",
        lines.join("\n")
    )
}

/// What kubelet must be told so that it offers what Karpenter counts on.
pub(crate) fn kubelet_arguments(spec: &CloudStackNodeClassSpec) -> BTreeMap<String, String> {
    let list = |list: &ResourceList| {
        list.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(",")
    };
    let told = [
        ("max-pods", spec.max_pods.map(|pods| pods.to_string())),
        ("kube-reserved", spec.kube_reserved.as_ref().map(list)),
        ("system-reserved", spec.system_reserved.as_ref().map(list)),
    ];
    told.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// Labels of Kubernetes' own domains that kubelet takes; it does not start with others. The core writes those later.
pub(crate) fn kubelet_takes(label: &str) -> bool {
    const TAKEN: [&str; 9] = [
        "kubernetes.io/arch",
        "kubernetes.io/hostname",
        "kubernetes.io/instance-type",
        "kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "beta.kubernetes.io/os",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
    ];
    let Some((domain, _)) = label.split_once('/') else { return true };
    let within = |parent: &str| domain == parent || domain.ends_with(&format!(".{parent}"));
    let of_kubernetes = within("kubernetes.io") || within("k8s.io");
    !of_kubernetes
        || within("kubelet.kubernetes.io")
        || within("node.kubernetes.io")
        || TAKEN.contains(&label)
}

/// The script that joins. What the NodeClass says of kubelet's arguments goes before what follows from it.
pub(crate) fn script(
    bootstrap: &Bootstrap,
    token: &str,
    implied: BTreeMap<String, String>,
    variables: &Variables,
) -> String {
    let api_server = bootstrap.api_server.as_str();
    let mut arguments = implied;
    arguments.extend(bootstrap.kubelet_extra_args.clone());
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
            let (ask, own) = provider_id(&arguments, variables, " --");
            format!(
                "#!/bin/bash\nset -euo pipefail\n{ask}for file in /etc/default/kubelet /etc/sysconfig/kubelet; do\n  [ -d \"$(dirname \"$file\")\" ] && echo 'KUBELET_EXTRA_ARGS={words}'{own} > \"$file\"\ndone\nkubeadm join {api_server} --token {token} {discovery} --node-name \"$(hostname)\"\n"
            )
        }
    }
}

/// How a script finds out the provider id of the machine it runs on, and what it adds to kubelet's arguments then: nothing where the
/// NodeClass says who names Nodes, nor where the machine is told another id than CloudStack's lists show.
fn provider_id(
    arguments: &BTreeMap<String, String>,
    variables: &Variables,
    before: &str,
) -> (String, &'static str) {
    let is_said = ["cloud-provider", "provider-id"].iter().any(|name| arguments.contains_key(*name));
    // A zone may have any name, and not every one can stand in a script.
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/$".contains(c);
    if is_said || variables.provider_id.is_empty() || !variables.provider_id.chars().all(plain) {
        return (String::new(), "");
    }
    let ask = format!(
        "instance_id=\"$(cloud-init query instance_id 2>/dev/null || cat /var/lib/cloud/data/instance-id 2>/dev/null || true)\"\nprovider_id=\"\"\nif [[ \"$instance_id\" =~ ^[0-9a-fA-F-]{{36}}$ ]]; then\n  provider_id=\"{before}provider-id={}\"\nfi\n",
        variables.provider_id
    );
    (ask, "\"$provider_id\"")
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
    let (ask, own) = provider_id(arguments, variables, "");
    // One more of kubelet's arguments, which are the last thing in the file.
    let add = match own {
        "" => String::new(),
        own => format!("[ -z {own} ] || printf '  - \"%s\"\\n' {own} >> /etc/rancher/{name}/config.yaml\n"),
    };
    format!(
        "#!/bin/bash\nset -euo pipefail\n{ask}mkdir -p /etc/rancher/{name}\ncat > /etc/rancher/{name}/config.yaml <<'END'\nserver: \"{scheme}{api_server}\"\ntoken: \"{token}\"\nkubelet-arg:\n{kubelet}END\n{add}systemctl enable --now {name}-agent\n"
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
            provider_id: "external-cloudstack://$instance_id".into(),
            ..Variables::default()
        }
    }

    #[test]
    fn kubelet_is_told_its_provider_id_unless_somebody_else_names_nodes() {
        for mode in ["Kubeadm", "K3s", "RKE2"] {
            let told = |bootstrap: &Bootstrap| script(bootstrap, "t", BTreeMap::new(), &variables());
            let text = told(&bootstrap(mode));
            assert!(text.contains("provider-id=external-cloudstack://$instance_id\""), "{mode}: {text}");
            assert!(text.find("cloud-init query instance_id") < text.find("$provider_id"), "{mode}: {text}");
            for (name, value) in [("cloud-provider", "external"), ("provider-id", "mine://1")] {
                let mut by_others = bootstrap(mode);
                by_others.kubelet_extra_args.insert(name.to_owned(), value.to_owned());
                assert!(!told(&by_others).contains("instance_id"), "{mode} with {name}");
            }
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
            let spec: CloudStackNodeClassSpec = serde_json::from_value(serde_json::json!({
                "zone": "z", "maxPods": 50, "kubeReserved": {"cpu": "200m", "memory": "1Gi"},
            }))
            .expect("a spec");
            let script = script(&bootstrap(mode), "t", kubelet_arguments(&spec), &variables());
            for part in [
                joins,
                "node-labels=a=b",
                "register-with-taints=karpenter.sh/unregistered=:NoExecute",
                "max-pods=50",
                "kube-reserved=cpu=200m,memory=1Gi",
                "v=2",
            ] {
                assert!(script.contains(part), "{mode}: {part} in {script}");
            }
        }
    }

    #[test]
    fn user_data_that_joins_by_itself_is_told_what_with() {
        let text = custom(
            Some("join {{apiServer}} {{ bootstrapToken }} {{caCertHash}} -- {{kubeletArgs}} {{labels}}"),
            &bootstrap("Custom"),
            "a.b",
            [("max-pods".to_owned(), "50".to_owned())].into(),
        );
        assert_eq!(text, "join api.example.com:6443 a.b sha256:1 -- --max-pods=50 --v=2 {{labels}}");
    }

    #[test]
    fn labels_kubelet_would_not_start_with_are_left_to_the_core() {
        for (label, yes) in [
            ("team", true),
            ("example.com/team", true),
            ("karpenter.sh/nodepool", true),
            ("karpenter.k8s.cloudstack/zone-id", true),
            ("node.kubernetes.io/instance-type", true),
            ("topology.kubernetes.io/zone", true),
            ("node-restriction.kubernetes.io/team", false),
            ("kops.k8s.io/instancegroup", false),
            ("node-role.kubernetes.io/worker", false),
        ] {
            assert_eq!(kubelet_takes(label), yes, "{label}");
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
        assert_eq!(merge("x", Some("Content-Type: multipart/mixed\n")), Err(BootstrapError::CannotMerge));
    }

    #[test]
    fn what_user_data_is_shows_by_how_it_begins() {
        for (theirs, kind) in [
            ("#!/bin/sh\necho", "text/x-shellscript"),
            ("\n  #!/bin/sh\necho", "text/x-shellscript"),
            ("#cloud-config\na: b", "text/cloud-config"),
            ("#cloud-config-archive\n- a", "text/cloud-config-archive"),
            ("## template: jinja\n#cloud-config\na: b", "text/jinja2"),
            ("#include\nhttps://a/b", "text/x-include-url"),
            ("#include-once\nhttps://a/b", "text/x-include-once-url"),
            ("#cloud-boothook\n#!/bin/sh", "text/cloud-boothook"),
            ("#part-handler\nimport os", "text/part-handler"),
            ("echo no script", "text/plain"),
        ] {
            let merged = merge("#!/bin/sh\nours", Some(theirs)).expect("parts");
            let part =
                format!("--{BOUNDARY}\nContent-Type: {kind}\n\n{}\n--{BOUNDARY}--\n", theirs.trim_start());
            assert!(merged.ends_with(&part), "{kind}: {merged}");
        }
        assert_eq!(merge("x", Some("\nmime-version: 1.0\n")), Err(BootstrapError::CannotMerge));
    }

    #[test]
    fn letters_that_are_not_ascii_survive_whoever_reads_the_parts() {
        let theirs = "#cloud-config\nwrite_files:\n- path: /etc/motd\n  content: \"Grüße — 你好\"\n";
        let merged = merge("#!/bin/sh\nours", Some(theirs)).expect("parts");
        assert!(merged.is_ascii(), "{merged}");
        assert!(merged.contains("text/x-shellscript\n\n#!/bin/sh\nours\n--"), "as it is: {merged}");
        let (_, part) =
            merged.split_once("Content-Type: text/cloud-config; charset=\"utf-8\"\n").expect("theirs");
        let (encoding, body) = part.split_once("\n\n").expect("a body");
        assert_eq!(encoding, "Content-Transfer-Encoding: base64");
        let (body, _) = body.split_once("\n--").expect("an end");
        assert!(body.lines().all(|line| line.len() <= LINE), "{body}");
        let read = STANDARD.decode(body.replace('\n', "")).expect("base64");
        assert_eq!(String::from_utf8(read).as_deref(), Ok(theirs));
    }
}
