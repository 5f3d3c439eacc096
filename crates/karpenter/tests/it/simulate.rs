//! `karpenter simulate` from outside: what it prints, what it refuses, what its exit status will be.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use karpenter::simulate::{self, Report};
use serde_json::Value;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: simulate::Args,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn simulate(arguments: &[&str]) -> Result<Report, String> {
    let cli = Cli::try_parse_from(["simulate"].iter().chain(arguments)).map_err(|e| e.to_string())?;
    simulate::report(&cli.args).map_err(|e| e.to_string())
}

/// Files of one test, gone with it.
struct Files(PathBuf);

impl Files {
    fn new(test: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        fs::create_dir_all(&folder).expect("a folder for the test");
        Self(folder)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).expect("a file for the test");
        path.to_string_lossy().into_owned()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const TYPES: &str = r#"[{"name":"small","architecture":"amd64","operatingSystems":["linux"],"resources":{"cpu":"4","memory":"16Gi"},
  "offerings":[{"Price":0.5,"Requirements":[{"key":"karpenter.sh/capacity-type","operator":"In","values":["on-demand"]},
  {"key":"topology.kubernetes.io/zone","operator":"In","values":["a"]}]}]}]"#;

const DUMP: &str = r#"
apiVersion: v1
kind: List
items:
- apiVersion: karpenter.sh/v1
  kind: NodePool
  metadata: {name: default}
  spec: {template: {spec: {nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}, requirements: []}}}
- apiVersion: v1
  kind: Pod
  metadata: {name: web, namespace: shop, creationTimestamp: "2026-05-01T00:00:00Z"}
  spec: {containers: [{name: c, resources: {requests: {cpu: 1}}}]}
  status: {conditions: [{type: PodScheduled, status: "False", reason: Unschedulable}]}
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: settings, namespace: shop}
"#;

#[test]
fn the_example_reads_well() {
    let file = root().join("examples/simulate.yaml");
    let report = simulate(&[&file.to_string_lossy()]).expect("a plan");
    assert!(!report.all_placed);
    let shown = report.text.replace(&*file.to_string_lossy(), "examples/simulate.yaml");
    let golden = fs::read_to_string(root().join("examples/simulate.txt")).expect("the printed example");
    assert_eq!(shown, golden, "examples/simulate.txt shows what the example prints");
}

#[test]
fn a_dump_with_an_instance_type_file_is_a_scenario() {
    let files = Files::new("dump");
    let (dump, types) = (files.write("dump.yaml", DUMP), files.write("types.json", TYPES));
    let report = simulate(&["-o", "json", "--instance-types", &types, &dump]).expect("a plan");
    assert!(report.all_placed, "{}", report.text);
    let plan: Value = serde_json::from_str(&report.text).expect("JSON");
    assert_eq!(plan["newNodeClaims"][0]["pods"][0], "shop/web");
    assert_eq!(plan["newNodeClaims"][0]["cheapestPrice"], 0.5);
    let table = simulate(&["--instance-types", &types, &dump]).expect("a plan").text;
    assert!(table.starts_with("At 2026-05-01T00:00:00Z:"), "{table}");
    assert!(table.contains("Of no concern to scheduling: 1 ConfigMap"), "{table}");
    let later =
        simulate(&["--now", "2027-01-01T00:00:00Z", "--instance-types", &types, &dump]).expect("a plan");
    assert!(later.text.starts_with("At 2027-01-01T00:00:00Z:"), "{}", later.text);
}

#[test]
fn what_cannot_be_understood_is_an_error_with_file_and_remedy() {
    let files = Files::new("errors");
    let dump = files.write("dump.yaml", DUMP);
    let odd = files.write("odd.yaml", "mode: both\n");
    let option = files.write("option.yaml", "options: {preferencePolicy: Never}\n");
    for (arguments, wanted) in [
        (vec![dump.as_str()], "--instance-types"),
        (vec!["no-such-file.yaml"], "no-such-file.yaml: cannot be read"),
        (vec![&odd], "\"both\" is neither provision nor disrupt"),
        (vec![&option], "options.preferencePolicy"),
        (vec!["--now", "noon", &dump], "--now: \"noon\""),
        (vec!["--instance-types", &dump, &dump], "an instance type file is a list"),
        (vec!["--count", "0", "--timings", &dump], "--count"),
        (vec![], "FILE"),
    ] {
        let error = simulate(&arguments).expect_err(wanted);
        assert!(error.contains(wanted), "{arguments:?}: {error}");
    }
}

#[test]
fn one_bad_object_does_not_take_the_others_with_it() {
    let files = Files::new("bad-object");
    let types = files.write("types.json", TYPES);
    let dump = files.write("dump.yaml", DUMP);
    let more = files.write(
        "more.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: bad, namespace: shop}\n\
         spec: {containers: [{name: c, resources: {requests: {memory: 1Gx}}}]}\n\
         status: {conditions: [{type: PodScheduled, status: \"False\", reason: Unschedulable}]}\n\
         ---\napiVersion: v1\nkind: Pdo\nmetadata: {name: odd}\n",
    );
    let report =
        simulate(&["-o", "json", "--reasons", "--instance-types", &types, &dump, &more]).expect("a plan");
    assert!(!report.all_placed);
    let plan: Value = serde_json::from_str(&report.text).expect("JSON");
    assert_eq!(plan["newNodeClaims"][0]["pods"][0], "shop/web");
    assert!(plan["ignoredPods"]["shop/bad"].as_str().expect("a reason").contains("requests[memory]"));
    assert_eq!(plan["reasons"]["rejected"].as_array().map(Vec::len), Some(2));
    assert_eq!(report.remarks.len(), 2);
    assert!(report.remarks[1].contains("Pdo/odd: kind: there is no Pdo in v1"), "{:?}", report.remarks);
}

#[test]
fn a_pool_that_makes_no_sense_is_skipped_with_the_reason() {
    let files = Files::new("bad-pool");
    let types = files.write("types.json", TYPES);
    let dump = files.write("dump.yaml", DUMP);
    for (name, requirement) in [
        ("below-zero", "{key: example.com/n, operator: Lt, values: ['0']}"),
        ("no-operator", "{key: example.com/n, operator: Near, values: ['0']}"),
    ] {
        let pool = files.write(
            &format!("{name}.yaml"),
            &format!(
                "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {{name: {name}}}\n\
                 spec: {{weight: 50, template: {{spec: {{nodeClassRef: {{group: g, kind: k, name: class}}, requirements: [{requirement}]}}}}}}\n"
            ),
        );
        let report =
            simulate(&["-o", "json", "--reasons", "--instance-types", &types, &dump, &pool]).expect("a plan");
        let plan: Value = serde_json::from_str(&report.text).expect("JSON");
        assert_eq!(plan["newNodeClaims"][0]["nodePool"], "default", "{name}: {}", report.text);
        assert!(plan["reasons"]["skippedNodePools"][name].is_string(), "{name}: {}", report.text);
    }
}

#[test]
fn timings_have_the_names_of_the_oracles_bench() {
    let files = Files::new("timings");
    let (dump, types) = (files.write("dump.yaml", DUMP), files.write("types.json", TYPES));
    let report = simulate(&["--timings", "--count", "3", "--instance-types", &types, &dump]).expect("a plan");
    let timings: Value = serde_json::from_str(report.remarks.last().expect("a line")).expect("JSON");
    for name in ["newSchedulerMs", "newSchedulerCPUMs", "solveMs", "solveCPUMs"] {
        assert_eq!(timings[name].as_array().map(Vec::len), Some(3), "{name}");
    }
    assert!(timings["peakRSSMiB"].is_number() && timings["rssBuiltMiB"].is_number());
}

#[test]
fn a_capacity_buffer_gets_its_room_when_its_gate_is_open() {
    let files = Files::new("buffer");
    let (dump, types) = (files.write("dump.yaml", DUMP), files.write("types.json", TYPES));
    let buffer = files.write(
        "buffer.yaml",
        "apiVersion: autoscaling.x-k8s.io/v1beta1\nkind: CapacityBuffer\nmetadata: {name: spare, namespace: shop}\n\
         spec: {podTemplateRef: {name: web}}\n\
         status: {replicas: 2, conditions: [{type: ReadyForProvisioning, status: \"True\"}]}\n\
         ---\napiVersion: v1\nkind: PodTemplate\nmetadata: {name: web, namespace: shop}\n\
         template: {spec: {containers: [{name: c, resources: {requests: {cpu: 3}}}]}}\n",
    );
    for (gate, claims) in [(true, 3), (false, 1)] {
        let header =
            format!("now: \"2026-01-01T00:00:00Z\"\noptions: {{featureGates: {{CapacityBuffer: {gate}}}}}\n");
        let header = files.write("header.yaml", &header);
        let kwok =
            DUMP.replace("karpenter.k8s.aws", "karpenter.kwok.sh").replace("EC2NodeClass", "KWOKNodeClass");
        fs::write(&dump, kwok).expect("a file for the test");
        let report =
            simulate(&["-o", "json", "--instance-types", &types, &header, &dump, &buffer]).expect("a plan");
        let plan: Value = serde_json::from_str(&report.text).expect("JSON");
        assert_eq!(plan["newNodeClaims"].as_array().map(Vec::len), Some(claims), "{}", report.text);
    }
}

/// A scenario with a pod that waits, two types of which one is sold at `price`, and a NodePool with this status.
fn scenario(header: &str, price: &str, status: &str) -> String {
    let sold = |name: &str, price: &str| {
        format!(
            "- name: {name}\n  architecture: amd64\n  operatingSystems: [linux]\n  resources: {{cpu: \"4\", memory: 16Gi}}\n  \
             offerings: [{{Price: {price}, Requirements: [{{key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}}, \
             {{key: topology.kubernetes.io/zone, operator: In, values: [a]}}]}}]\n"
        )
    };
    format!(
        "{header}\ninstanceTypes:\n{}{}---\napiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {{name: default}}\n\
         spec: {{template: {{spec: {{nodeClassRef: {{group: karpenter.kwok.sh, kind: KWOKNodeClass, name: gone}}, requirements: []}}}}}}\n\
         {status}\n---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p, namespace: shop}}\n\
         spec: {{containers: [{{name: c, resources: {{requests: {{cpu: \"1\"}}}}}}]}}\n\
         status: {{conditions: [{{type: PodScheduled, status: \"False\", reason: Unschedulable}}]}}\n",
        sold("small", "0.5"),
        sold("odd", price),
    )
}

#[test]
fn a_price_that_is_no_number_is_left_out_alone_and_so_is_a_field_the_header_does_not_have() {
    let files = Files::new("odd-header");
    let file = files.write("s.yaml", &scenario("mod: provision", ".nan", ""));
    let report = simulate(&["-o", "json", &file]).expect("a plan");
    assert!(report.all_placed, "{}", report.text);
    assert_eq!(report.remarks.len(), 2, "{:?}", report.remarks);
    assert!(
        report.remarks[0].contains("s.yaml: mod: a scenario's header has no such field; it has mode, "),
        "{:?}",
        report.remarks
    );
    assert!(report.remarks[1].contains("InstanceType/odd: offerings[0].Price: "), "{:?}", report.remarks);
}

#[test]
fn a_pool_that_is_not_ready_says_which_condition_keeps_it() {
    let files = Files::new("not-ready");
    let status = "status: {conditions: [{type: Ready, status: \"False\"}, {type: NodeClassReady, status: \"False\", message: NodeClass not found on cluster}]}";
    let file = files.write("s.yaml", &scenario("mode: provision", "0.6", status));
    let report = simulate(&[&file]).expect("a plan");
    let said = "  default: not ready, NodeClassReady is False: NodeClass not found on cluster\n";
    assert!(report.text.contains(said), "{}", report.text);
}

#[test]
fn a_budget_that_no_api_server_takes_is_obeyed_and_named() {
    let files = Files::new("odd-budget");
    let text = scenario("mode: disrupt", "0.6", "").replace(
        "\nspec: {template:",
        "\nspec: {disruption: {consolidateAfter: 0s, budgets: [{nodes: \"1\", schedule: \"@daily\"}]}, template:",
    );
    let file = files.write("s.yaml", &text);
    let report = simulate(&["-o", "json", &file]).expect("a plan");
    let said = "an API server would refuse this: NodePool/default: spec.disruption.budgets[0].schedule: must be set with duration";
    assert_eq!(report.remarks, [said]);
}
