//! Documents that list things list what there is: settings, gates, metrics. Examples are accepted by an API server.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use karpenter_provider_cloudstack::CloudStackNodeClass;
use karpenter_provider_cluster_api::ClusterAPINodeClass;
use karpenter_provider_kwok::{Catalogue, KWOKNodeClass};
use karpenter_runtime::options::{FeatureGates, Options};
use karpenter_sim::{World, WorldOptions};
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// The rows of all tables, as cells without padding and code marks.
fn rows(text: &str) -> Vec<Vec<String>> {
    let cell = |cell: &str| cell.trim().replace('`', "");
    text.lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"))
        .map(|line| line.split(" | ").map(cell).collect())
        .collect()
}

#[test]
fn the_page_of_settings_lists_every_setting_with_its_default_and_meaning() {
    let or_none = |text: &str| if text.is_empty() { "none".to_owned() } else { text.to_owned() };
    let wanted: Vec<Vec<String>> = Options::described()
        .map(|setting| {
            let flag = setting.flag.map(|flag| format!("--{flag}")).unwrap_or_default();
            let default = if setting.flag == Some("feature-gates") { "see below" } else { setting.default };
            vec![
                or_none(&flag),
                or_none(setting.env.unwrap_or_default()),
                or_none(default),
                setting.help.to_owned(),
            ]
        })
        .collect();
    let text = read("docs/settings.md");
    let listed: Vec<Vec<String>> =
        rows(&text).into_iter().filter(|row| row.len() == 4 && row[0] != "Flag").collect();
    for (listed, wanted) in listed.iter().zip(&wanted) {
        assert_eq!(listed, wanted, "docs/settings.md; the row should be\n| `{}` |", wanted.join("` | `"));
    }
    assert_eq!(listed.len(), wanted.len(), "docs/settings.md: one row per setting");
}

#[test]
fn the_page_of_settings_lists_every_gate_with_its_default() {
    let wanted: Vec<(String, String)> = FeatureGates::default()
        .states()
        .into_iter()
        .map(|(name, on)| (name.to_owned(), if on { "on" } else { "off" }.to_owned()))
        .collect();
    let listed: Vec<(String, String)> = rows(&read("docs/settings.md"))
        .into_iter()
        .filter(|row| row.len() == 3 && row[0] != "Gate")
        .map(|row| (row[0].clone(), row[1].clone()))
        .collect();
    assert_eq!(listed, wanted);
}

#[test]
fn the_page_of_metrics_lists_what_is_recorded_of_go_karpenter() {
    let recorded: Value =
        serde_json::from_str(include_str!("../../../../conformance/metrics/metrics.json")).expect("JSON");
    let text = read("docs/metrics.md");
    let listed: BTreeMap<String, (String, BTreeSet<String>)> = rows(&text)
        .into_iter()
        .filter(|row| row.len() == 4 && row[0] != "Metric")
        .map(|row| {
            let labels = row[2].split(", ").filter(|label| *label != "none").map(str::to_owned).collect();
            (row[0].clone(), (row[1].clone(), labels))
        })
        .collect();
    let mut unused: BTreeSet<&str> = listed.keys().map(String::as_str).collect();
    for metric in recorded["metrics"].as_array().expect("metrics") {
        let name = metric["name"].as_str().expect("a name");
        let text_of = |value: &Value| value.as_str().expect("a text").to_owned();
        let mut labels: BTreeSet<String> =
            metric["labels"].as_array().expect("labels").iter().map(text_of).collect();
        let mut row = name.to_owned();
        if let Some(rest) = name.strip_prefix("operator_") {
            // The page says in words what is more than this.
            for kind in ["nodeclaim_", "nodepool_", "node_", "capacitybuffer_", ""] {
                if let Some(rest) = rest.strip_prefix(kind) {
                    row = format!("operator_<kind>_{rest}");
                    break;
                }
            }
            for more in
                ["<nodeclass label>", "karpenter_sh_nodepool", "karpenter_sh_initialized", "group", "kind"]
            {
                labels.remove(more);
            }
        }
        match listed.get(&row) {
            Some((kind, listed)) => assert_eq!(
                (kind.as_str(), listed),
                (metric["type"].as_str().expect("a type"), &labels),
                "{name}"
            ),
            None => assert!(
                text.split("## Not here").nth(1).is_some_and(|rest| rest.contains(&format!("`{name}`"))),
                "docs/metrics.md does not mention {name}"
            ),
        }
        unused.remove(row.as_str());
    }
    assert!(unused.is_empty(), "docs/metrics.md lists what there is not: {unused:?}");
}

#[test]
fn the_example_of_an_instance_type_file_can_be_used() {
    let path = root().join("examples/kwok/instance-types.json");
    let catalogue = Catalogue::load(Some(&path)).expect("an instance type file");
    assert_eq!(catalogue.types.len(), 1);
}

/// Whether everything that was given is in what was stored.
fn lost(given: &Value, stored: &Value, path: &str, found: &mut Vec<String>) {
    match (given, stored) {
        (Value::Object(given), Value::Object(stored)) => {
            for (name, value) in given {
                lost(value, stored.get(name).unwrap_or(&Value::Null), &format!("{path}.{name}"), found);
            }
        }
        (Value::Array(given), Value::Array(stored)) if given.len() == stored.len() => {
            for (at, (given, stored)) in given.iter().zip(stored).enumerate() {
                lost(given, stored, &format!("{path}[{at}]"), found);
            }
        }
        // A quantity may be written in other ways.
        (Value::Number(_), Value::String(_)) => {}
        _ if given == stored => {}
        _ => found.push(format!("{path}: {given} became {stored}")),
    }
}

#[tokio::test(start_paused = true)]
async fn examples_are_accepted_by_an_api_server_as_they_stand() {
    for folder in ["examples/kwok", "examples/demo", "examples/cloudstack"] {
        let world = World::new(WorldOptions::default()).await.expect("a world");
        world.create(KWOKNodeClass::crd().to_json()).await.expect("the NodeClass's definition");
        world.create(CloudStackNodeClass::crd().to_json()).await.expect("the NodeClass's definition");
        let namespace =
            serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "karpenter"}});
        world.create(namespace).await.expect("a namespace");
        let mut files: Vec<PathBuf> = fs::read_dir(root().join(folder))
            .expect(folder)
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
            .collect();
        files.sort();
        assert!(!files.is_empty(), "{folder}");
        for file in files {
            let text = fs::read_to_string(&file).expect("an example");
            for document in serde_saphyr::from_multiple::<Value>(&text).expect("YAML") {
                let stored = world
                    .create(document.clone())
                    .await
                    .unwrap_or_else(|e| panic!("{}: {e}", file.display()));
                let stored = serde_json::to_value(&stored).expect("JSON");
                let mut document = document;
                if let Some(fields) = document.as_object_mut() {
                    // Stored as `data`.
                    fields.remove("stringData");
                }
                let mut found = Vec::new();
                lost(&document, &stored, &format!("{} {}", file.display(), document["kind"]), &mut found);
                assert_eq!(found, [] as [&str; 0]);
            }
        }
    }
}

/// The guides of the providers whose NodeClasses are ours, with their sources and their definitions.
fn guides() -> [(&'static str, &'static str, Value); 2] {
    [
        ("docs/cluster-api.md", "providers/cluster-api/src", ClusterAPINodeClass::crd().to_json()),
        ("docs/cloudstack.md", "providers/cloudstack/src", CloudStackNodeClass::crd().to_json()),
    ]
}

fn words(text: &str) -> BTreeSet<&str> {
    text.split(|letter: char| !letter.is_alphanumeric()).collect()
}

/// The names of all fields below a schema. What every condition has is told by Kubernetes.
fn fields<'a>(schema: &'a Value, found: &mut BTreeSet<&'a str>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        found.insert(name);
        if name != "conditions" {
            fields(field, found);
        }
    }
    if let Some(items) = schema.get("items") {
        fields(items, found);
    }
}

#[test]
fn the_guides_name_every_field_of_their_node_class() {
    for (guide, _, definition) in guides() {
        let text = read(guide);
        let named = words(&text);
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
        let mut all = BTreeSet::new();
        fields(&schema["spec"], &mut all);
        fields(&schema["status"], &mut all);
        // Of label selectors everywhere.
        let missing: Vec<_> =
            all.into_iter().filter(|field| *field != "operator" && !named.contains(field)).collect();
        assert!(missing.is_empty(), "{guide} does not tell of the fields {missing:?}");
    }
}

/// The reasons of the events that a source publishes, as far as they are written out where the event is made.
fn event_reasons(source: &str) -> impl Iterator<Item = &str> {
    let calls = ["Event::new(", "voice.warn(", "voice.inform("];
    calls.into_iter().flat_map(move |call| source.split(call).skip(1)).filter_map(|after| {
        let quoted = after.split(';').next()?.split('"').skip(1).step_by(2);
        quoted.into_iter().find(|text| {
            text.starts_with(|first: char| first.is_ascii_uppercase())
                && text.chars().all(char::is_alphanumeric)
        })
    })
}

fn sources(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if !path.to_string_lossy().ends_with("tests.rs") {
            found.push(fs::read_to_string(&path).expect("a source"));
        }
    }
}

#[test]
fn the_guides_name_the_reason_of_every_event() {
    for (guide, folder, _) in guides() {
        let text = read(guide);
        let named = words(&text);
        let mut all = Vec::new();
        sources(&root().join(folder), &mut all);
        let reasons: BTreeSet<&str> = all.iter().flat_map(|source| event_reasons(source)).collect();
        assert!(reasons.len() > 5, "{folder} publishes {reasons:?}");
        let missing: Vec<_> = reasons.into_iter().filter(|reason| !named.contains(reason)).collect();
        assert!(missing.is_empty(), "{guide} does not tell of the events {missing:?}");
    }
}
