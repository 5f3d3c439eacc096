//! The chart and the image beside the program: definitions, settings, gates and versions are the same in all of them. What needs
//! Helm or a cluster is in `conformance/peers/helm`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use karpenter_provider_cloudstack::settings::VARIABLES;
use karpenter_runtime::options::{FeatureGates, Options, PROVIDERS};
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn chart(file: &str) -> String {
    read(&root().join("charts/karpenter").join(file))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).expect("YAML")
}

fn schema() -> Value {
    serde_json::from_str(&chart("values.schema.json")).expect("JSON")
}

#[test]
fn its_definitions_are_those_the_program_prints() {
    let mut found = BTreeSet::new();
    let folder = root().join("charts/karpenter/crds");
    for entry in fs::read_dir(&folder).expect("the chart's definitions") {
        let path = entry.expect("an entry").path();
        let file = read(&path);
        let definition = yaml(&file);
        let text =
            |pointer: &str| definition.pointer(pointer).and_then(Value::as_str).expect(pointer).to_owned();
        let kind = text("/spec/names/kind");
        let out = Command::new(env!("CARGO_BIN_EXE_karpenter"))
            .args(["crds", "--kind", &kind])
            .output()
            .expect("karpenter crds runs");
        assert!(
            file.as_bytes() == out.stdout,
            "{} differs from `karpenter crds --kind {kind}`; write that into it (just crds)",
            path.display()
        );
        let name = format!("{}_{}.yaml", text("/spec/group"), text("/spec/names/plural"));
        assert_eq!(path.file_name().and_then(|n| n.to_str()), Some(name.as_str()));
        found.insert(kind);
    }
    let all =
        Command::new(env!("CARGO_BIN_EXE_karpenter")).arg("crds").output().expect("karpenter crds runs");
    let printed =
        String::from_utf8(all.stdout).expect("UTF-8").matches("\nkind: CustomResourceDefinition").count();
    assert_eq!(found.len(), printed, "the chart has {found:?}");
}

#[test]
fn every_setting_can_be_given_by_a_value_and_no_other() {
    // What tells the program where it runs is not for values; CloudStack's keys are mounted, so that they can be exchanged; the rest is
    // read by nobody.
    let elsewhere = [
        "KUBECONFIG",
        "KARPENTER_SERVICE",
        "KUBERNETES_MIN_VERSION",
        "CLOUDSTACK_API_URL",
        "CLOUDSTACK_API_KEY",
        "CLOUDSTACK_SECRET_KEY",
    ];
    let known: BTreeSet<&str> = Options::described()
        .filter_map(|setting| setting.env)
        .filter(|name| !elsewhere.contains(name))
        .collect();
    let template = chart("templates/_settings.tpl");
    let written: BTreeSet<&str> = template
        .split('"')
        .skip(1)
        .step_by(2)
        .filter(|word| word.len() > 4 && word.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'))
        // Those of the CloudStack provider's own are read by it and by nobody else.
        .filter(|word| !VARIABLES.iter().any(|(name, _)| name == word))
        .collect();
    assert_eq!(written, known);
}

#[test]
fn cloudstacks_keys_are_files_whichever_secret_they_are_in_so_that_they_can_be_exchanged() {
    let template = chart("templates/_settings.tpl");
    let keys = template.split("{{- define ").find(|part| part.starts_with("\"karpenter.cloudstackKeys\""));
    let keys = keys.expect("a template that names the Secret");
    for part in [".Values.cloudstack.credentialsSecret", "karpenter.secretName"] {
        assert!(keys.contains(part), "{keys}");
    }
    assert!(template.contains("{{- with include \"karpenter.cloudstackKeys\" . -}}"), "it is mounted");
    assert!(!template.contains("CLOUDSTACK_SECRET_KEY"), "not in the environment, which does not change");
}

#[test]
fn a_secret_with_cloudstacks_keys_that_is_watched_is_the_only_one_and_granted_by_name() {
    let made = chart("templates/secrets.yaml");
    let condition = made.lines().find(|line| line.contains("\"cloudstack\"")).expect("when a Secret is made");
    assert!(condition.contains("(not (include \"karpenter.cloudstackWatchedSecret\" .))"), "{condition}");
    let roles = chart("templates/role-cloudstack.yaml");
    let role = roles.split("include \"karpenter.cloudstackWatchedSecret\"").nth(1).expect("its own role");
    for part in ["namespace: {{ dir . }}", "resourceNames: [{{ base . | quote }}]"] {
        assert!(role.contains(part), "{part}: {role}");
    }
    let verbs: Vec<&str> = role.lines().filter(|line| line.contains("verbs:")).map(str::trim).collect();
    assert_eq!(verbs, ["verbs: [\"get\", \"list\", \"watch\"]"]);
}

#[test]
fn its_gates_and_providers_are_the_programs() {
    let lower = |name: &str| name[..1].to_lowercase() + &name[1..];
    let values = yaml(&chart("values.yaml"));
    for (gate, on) in FeatureGates::default().states() {
        assert_eq!(values["settings"]["featureGates"][lower(gate)], on, "{gate}");
    }
    let schema = schema();
    let allowed = schema["properties"]["settings"]["properties"]["featureGates"]["properties"].as_object();
    let allowed: BTreeSet<String> = allowed.expect("gates").keys().cloned().collect();
    assert_eq!(allowed, FeatureGates::NAMES.iter().map(|name| lower(name)).collect());
    assert_eq!(schema["properties"]["providers"]["items"]["enum"], Value::from(PROVIDERS.to_vec()));
}

#[test]
fn its_schema_knows_every_value_and_refuses_all_others() {
    fn check(values: &Value, schema: &Value, path: &str, found: &mut Vec<String>) {
        let (Some(values), Some(properties)) = (values.as_object(), schema["properties"].as_object()) else {
            return;
        };
        if schema["additionalProperties"] != false {
            found.push(format!("{path}: lets anything pass"));
        }
        for name in values.keys().chain(properties.keys()).collect::<BTreeSet<_>>() {
            match (values.get(name), properties.get(name)) {
                (Some(value), Some(schema)) => check(value, schema, &format!("{path}.{name}"), found),
                (None, _) if path.is_empty() && name == "global" => {}
                (None, _) => found.push(format!("{path}.{name}: not in values.yaml")),
                (_, None) => found.push(format!("{path}.{name}: not in values.schema.json")),
            }
        }
    }
    let mut found = Vec::new();
    check(&yaml(&chart("values.yaml")), &schema(), "", &mut found);
    assert_eq!(found, [] as [&str; 0]);
}

#[test]
fn only_whole_numbers_are_cut_to_whole_numbers() {
    let template = chart("templates/_settings.tpl");
    let cut: Vec<&str> = template.lines().filter(|line| line.contains("int64")).collect();
    // 0.075 is not 0.
    let whole_only =
        |line: &&str| line.contains("{{- if eq $value (floor $value) -}}{{- $value = int64 $value -}}");
    assert!(cut.len() == 1 && cut.iter().all(whole_only), "{cut:?}");
}

#[test]
fn values_of_a_chart_without_the_webhook_of_cloudstack_have_none() {
    for file in ["_settings.tpl", "networkpolicy.yaml", "deployment.yaml", "cloudstack-webhook.yaml"] {
        let template = chart(&format!("templates/{file}"));
        assert!(!template.contains(".Values.cloudstack.webhook.enabled"), "{file}");
        assert!(template.contains("if include \"karpenter.cloudstackWebhookEnabled\" ."), "{file}");
    }
}

#[test]
fn the_webhook_of_cloudstack_is_off_and_nothing_waits_for_it_when_it_is_on() {
    let values = yaml(&chart("values.yaml"));
    assert_eq!(values["cloudstack"]["webhook"]["enabled"], false);
    let helpers = chart("templates/_helpers.tpl");
    let terms =
        helpers.split("{{- define ").find(|part| part.starts_with("\"karpenter.cloudstackWebhookTerms\""));
    let terms = terms.expect("what its configurations have in common");
    assert!(terms.contains("failurePolicy: Ignore") && terms.contains("sideEffects: None"), "{terms}");
    let template = chart("templates/cloudstack-webhook.yaml");
    // Whatever may be read or written there is named; only creating cannot be.
    let rules =
        template.split("  - apiGroups:").skip(1).map(|rule| rule.split("\n---").next().unwrap_or_default());
    for rule in rules {
        let by_name = rule.contains("resourceNames: [{{ $name | quote }}]");
        assert!(by_name || rule.contains("verbs: [\"create\"]"), "{rule}");
    }
}

#[test]
fn chart_and_image_are_of_this_version_and_compiler() {
    let chart = yaml(&chart("Chart.yaml"));
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    let image = read(&root().join("Dockerfile"));
    assert!(
        image.contains(concat!("FROM rust:", env!("CARGO_PKG_RUST_VERSION"), "-")),
        "the workspace's rust-version"
    );
}
