//! `karpenter explain`: a true and different sentence for every node that stays for a different reason.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Parser;
use karpenter::explain;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: explain::Args,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn report(arguments: &[&str]) -> Result<explain::Report, String> {
    let cli = Cli::try_parse_from(["explain"].iter().chain(arguments)).map_err(|e| e.to_string())?;
    explain::report(&cli.args).map_err(|e| format!("{e:#}"))
}

fn explain(arguments: &[&str]) -> Result<String, String> {
    report(arguments).map(|report| report.text)
}

/// The example with something else in it.
fn example_with(name: &str, what: &str, instead: &str) -> String {
    let text = std::fs::read_to_string(example()).expect("the example");
    assert!(text.contains(what), "the example has no {what:?}");
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("explain-{name}.yaml"));
    std::fs::write(&file, text.replace(what, instead)).expect("a file");
    file.to_string_lossy().into_owned()
}

fn example() -> String {
    root().join("examples/blocked-nodes.yaml").to_string_lossy().into_owned()
}

const NODES: [&str; 12] = [
    "pinned", "careful", "guarded", "starting", "held", "kept", "occupied", "restless", "full", "special",
    "retired", "foreign",
];

#[test]
fn every_blocked_node_has_a_sentence_of_its_own_and_the_page_shows_it() {
    let page = std::fs::read_to_string(root().join("docs/explain.md")).expect("the page");
    let mut sentences = BTreeSet::new();
    for node in NODES {
        let text = explain(&["node", node, &example()]).expect(node);
        let sentence = text.lines().find_map(|line| line.strip_prefix("stays: ")).expect(&text).to_owned();
        assert!(page.contains(&sentence), "docs/explain.md does not show, of node {node}: {sentence}");
        sentences.insert(sentence);
    }
    assert_eq!(sentences.len(), NODES.len(), "{sentences:#?}");
}

#[test]
fn a_node_is_found_by_its_claim_and_told_to_programs_too() {
    let text = explain(&["node", "default-careful", &example(), "-o", "json"]).expect("an answer");
    let answer: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&answer["node"], &answer["nodePool"]), (&"careful".into(), &"default".into()));
    assert_eq!(answer["verdict"]["rule"], "podDoNotDisrupt");
    assert_eq!(answer["methods"].as_array().map(Vec::len), Some(5), "{answer:#}");
}

#[test]
fn a_node_that_is_not_there_is_named_with_some_that_are() {
    let error = explain(&["node", "nobody", &example()]).expect_err("no such node");
    assert!(error.starts_with("there is no node \"nobody\"; there are 12 nodes, such as "), "{error}");
}

#[test]
fn a_machine_deployment_is_told_apart_by_node_class() {
    let file = |name: &str| root().join("examples/cluster-api").join(name).to_string_lossy().into_owned();
    let files = [file("machine-deployment.yaml"), file("nodepool.yaml"), file("machine-mode.yaml")];
    let text = explain(&["machine-deployment", "fleet/workers", &files[0], &files[1], &files[2]])
        .expect("an answer");
    assert!(text.contains("ClusterAPINodeClass default: offered as workers, 4 cpu, 16Gi memory"), "{text}");
    assert!(text.contains("ClusterAPINodeClass metal: not offered: its labels do not match"), "{text}");
    let error = explain(&["machine-deployment", "other", &files[0]]).expect_err("there is no such");
    assert!(error.contains("there are fleet/workers"), "{error}");
}

#[test]
fn a_node_pool_of_cluster_api_is_told_what_it_is_offered() {
    let file = |name: &str| root().join("examples/cluster-api").join(name).to_string_lossy().into_owned();
    let files = [file("machine-deployment.yaml"), file("nodepool.yaml")];
    for command in ["cluster-api", "capi"] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_karpenter"))
            .args([command, "explain", "default", &files[0], &files[1]])
            .env_remove("CLUSTER_NAME")
            .env_remove("CLUSTER_NAMESPACE")
            .output()
            .expect("karpenter runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(
            text.starts_with("NodePool default, ClusterAPINodeClass default\noffered:\n  workers, 4 cpu,"),
            "{text}"
        );
        assert!(text.contains("(MachineDeployment fleet/workers)\nnot offered:\n  nothing\n"), "{text}");
    }
}

#[test]
fn of_what_another_providers_pool_can_buy_nothing_is_claimed() {
    let dump = std::fs::read_to_string(example()).expect("the example");
    let (_, objects) = dump.split_once("\n---\n").expect("a header before the objects");
    let foreign =
        objects.replace("karpenter.kwok.sh", "example.com").replace("KWOKNodeClass", "OtherNodeClass");
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("explain-foreign.yaml");
    std::fs::write(&file, foreign).expect("a file");
    let text = explain(&["node", "full", &file.to_string_lossy()]).expect("an answer");
    let said = "is not known: no instance types are given for OtherNodeClass, see --instance-types";
    assert!(text.contains(said), "{text}");
}

#[test]
fn gates_of_the_operator_count_and_those_nobody_knows_are_refused() {
    let error = explain(&["node", "full", &example(), "--feature-gates", "NoSuch=true"]).expect_err("a gate");
    assert!(
        error.starts_with("--feature-gates: there is no gate \"NoSuch\"; there are NodeRepair, "),
        "{error}"
    );
    explain(&["node", "full", &example(), "--feature-gates", "SpotToSpotConsolidation=true"])
        .expect("an answer");
}

#[test]
fn a_pool_that_makes_no_sense_is_named_with_field_and_problem_and_not_taken_for_missing() {
    let (budgets, field) =
        (r#"budgets: [{nodes: "0"}]"#, "spec.disruption.budgets[0].reasons[0]: unknown variant");
    let file = example_with("whim", budgets, r#"budgets: [{nodes: "0", reasons: [Whim]}]"#);
    let told = report(&["node", "held", &file]).expect("an answer");
    let sentence = format!("stays: its NodePool frozen was left out of the input: {field}");
    assert!(told.text.contains(&sentence), "{}", told.text);
    assert_eq!(told.remarks.len(), 1, "{:?}", told.remarks);
    let named = format!("NodePool/frozen: {field}");
    assert!(
        told.remarks[0].starts_with("left out: ") && told.remarks[0].contains(&named),
        "{:?}",
        told.remarks
    );
    let json = explain(&["node", "held", &file, "-o", "json"]).expect("an answer");
    let answer: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert!(answer["leftOut"][0].as_str().is_some_and(|said| said.contains(&named)), "{answer:#}");
}

#[test]
fn instance_types_that_make_no_sense_are_named() {
    let told =
        report(&["node", "full", &example_with("price", "Price: 0.1,", "Price: -1,")]).expect("an answer");
    assert!(told.remarks.iter().any(|said| said.contains("InstanceType/small")), "{:?}", told.remarks);
    let sound = report(&["node", "full", &example()]).expect("an answer");
    assert_eq!(sound.remarks, [] as [&str; 0]);
}

#[test]
fn a_claim_that_was_not_launched_answers_with_its_condition() {
    let claim = "apiVersion: karpenter.sh/v1
kind: NodeClaim
metadata: {name: byhand, labels: {karpenter.sh/nodepool: default}}
spec: {nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}, requirements: []}
status: {conditions: [{type: Launched, status: Unknown, reason: LaunchFailed, message: no such zone}]}
---
apiVersion: karpenter.sh/v1
kind: NodeClaim
metadata: {name: untouched}
spec: {nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}, requirements: []}
";
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("explain-byhand.yaml");
    std::fs::write(&file, claim).expect("a file");
    let file = file.to_string_lossy();
    let text = explain(&["node", "byhand", &file]).expect("an answer");
    let said = "no node yet: it has not been launched; its condition Launched is Unknown: LaunchFailed: no such zone";
    assert_eq!(text, format!("NodeClaim byhand, NodePool default\n{said}\n"));
    let text = explain(&["node", "byhand", &file, "-o", "json"]).expect("an answer");
    let answer: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&answer["nodeClaim"], &answer["verdict"]["rule"]), (&"byhand".into(), &"notLaunched".into()));
    let text = explain(&["node", "untouched", &file]).expect("an answer");
    assert!(text.contains("says nothing of it; is Karpenter running?"), "{text}");
}

#[test]
fn a_budget_that_cannot_be_understood_is_told_by_field_and_value() {
    let budgets = r#"budgets: [{nodes: "0"}]"#;
    for (name, instead, said) in [
        ("never", r#"{nodes: "0", schedule: 61 * * * *, duration: 1h}"#, "schedule: "),
        ("lots", r#"{nodes: "99999999999999999999"}"#, r#"nodes: "99999999999999999999": "#),
    ] {
        let file = example_with(name, budgets, &format!("budgets: [{instead}]"));
        let text = explain(&["node", "held", &file]).expect("an answer");
        let sentence =
            format!("stays: a budget of NodePool frozen cannot be understood and so allows nothing: {said}");
        assert!(text.contains(&sentence), "{text}");
        assert!(!text.contains("<nil>"), "{text}");
    }
}

#[test]
fn a_budget_that_no_api_server_takes_is_named_beside_the_answer() {
    let file = example_with("beyond", r#"budgets: [{nodes: "0"}]"#, r#"budgets: [{nodes: "150%"}]"#);
    let told = report(&["node", "held", &file]).expect("an answer");
    let said = "an API server would refuse this: NodePool/frozen: spec.disruption.budgets[0].nodes: must be a number, or a percentage up to 100%";
    assert_eq!(told.remarks, [said]);
}
