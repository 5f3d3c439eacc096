//! Every recorded setting of Go Karpenter, and the ways to get one wrong.

use serde_json::Value;

use super::*;

const RECORDED: &str = include_str!("../../../conformance/settings/settings.json");

fn recorded() -> Value {
    serde_json::from_str(RECORDED).expect("the recorded settings are JSON")
}

fn environ(pairs: &[(&str, &str)]) -> Environ {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn parse(args: &[&str], pairs: &[(&str, &str)]) -> Result<Options, OptionsError> {
    Options::parse(args.iter().copied(), &environ(pairs))
}

fn error(args: &[&str], pairs: &[(&str, &str)]) -> String {
    parse(args, pairs).expect_err("an error").to_string()
}

fn effective(options: &Options, name: &str) -> String {
    let found = options.effective().iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("there is no setting {name}")).1.clone()
}

/// A value other than the default that the setting accepts, in the syntax of a flag.
fn another(row: &Value) -> String {
    let name = row["flag"].as_str().or(row["env"].as_str()).unwrap_or_default();
    match (name, row["type"].as_str().unwrap_or_default(), &row["default"]) {
        ("feature-gates", ..) => "NodeRepair=true".to_owned(),
        ("scheduler-config", ..) => "{}".to_owned(),
        ("ignore-dra-requests", ..) => "true".to_owned(),
        (_, "bool", default) => (default != true).to_string(),
        (_, "int" | "int64", _) => "1234".to_owned(),
        (_, "duration", _) => "1m30s".to_owned(),
        (_, _, default) => match row["validValues"].as_array() {
            Some(values) => values
                .iter()
                .filter_map(Value::as_str)
                .find(|v| *v != default && !v.is_empty())
                .expect("a choice")
                .to_owned(),
            None => "something-else".to_owned(),
        },
    }
}

#[test]
fn every_recorded_setting_has_its_default_its_variable_and_its_flag_which_wins() {
    let rows = recorded();
    let rows = rows["settings"].as_array().expect("settings");
    assert!(rows.len() > 35);
    for row in rows {
        let flag = row["flag"].as_str();
        let env = row["env"].as_str().expect("every setting has a variable");
        // Go reads these outside of its flags; ours are settings like any other.
        let name = match env {
            "KUBECONFIG" => "kubeconfig",
            "CLUSTER_NAME" => "cluster-name",
            _ => flag.unwrap_or(env),
        };
        let default = match &row["default"] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        let secret = ["KEY", "TOKEN"].iter().any(|end| env.ends_with(end));
        let shown = |text: &str| if secret { "redacted".to_owned() } else { text.to_owned() };
        let value = another(row);

        assert_eq!(effective(&parse(&[], &[]).expect(name), name), default, "default of {name}");
        assert_eq!(effective(&parse(&[], &[(env, &value)]).expect(name), name), shown(&value), "{env}");
        let Some(flag) = flag else { continue };
        let args = [format!("--{flag}={value}")];
        let with_flag = parse(&[&args[0]], &[(env, &default)]).expect(name);
        assert_eq!(effective(&with_flag, name), shown(&value), "--{flag} goes before {env}");
        let single_dash = [format!("-{flag}={value}")];
        assert_eq!(effective(&parse(&[&single_dash[0]], &[]).expect(name), name), shown(&value), "-{flag}");
        match row["type"].as_str().expect("a type") {
            "bool" => {
                for wrong in ["1", "TRUE", "yes", ""] {
                    let message = error(&[&format!("--{flag}={wrong}")], &[]);
                    assert!(message.contains(&format!("--{flag} ({env})")), "{message}");
                }
                let options = parse(&[], &[(env, "maybe")]).expect("a bad variable is as if not set");
                assert_eq!((effective(&options, name), options.warnings.len()), (default, 1), "{env}");
            }
            "int" | "int64" | "duration" => {
                let message = error(&[&format!("--{flag}"), "twelve"], &[]);
                assert!(message.starts_with(&format!("--{flag} ({env}): \"twelve\" must be a")), "{message}");
                let options = parse(&[], &[(env, "twelve")]).expect("a bad variable is as if not set");
                assert_eq!((effective(&options, name), options.warnings.len()), (default, 1), "{env}");
                assert!(options.warnings[0].contains(env), "{:?}", options.warnings);
            }
            _ => {
                let options =
                    parse(&[&format!("--{flag}"), &value], &[]).expect("the value may be the next argument");
                assert_eq!(effective(&options, name), shown(&value));
            }
        }
        if let Some(values) = row["validValues"].as_array() {
            for valid in values.iter().filter_map(Value::as_str) {
                assert!(parse(&[], &[(env, valid)]).is_ok(), "{env}={valid}");
            }
            let message = error(&[], &[(env, "wrong")]);
            assert!(message.contains("must be one of") && message.contains(env), "{message}");
        }
    }
}

#[test]
fn every_recorded_gate_is_there_with_its_default_and_can_be_changed() {
    let rows = recorded();
    let rows = rows["featureGates"].as_array().expect("gates");
    let names: Vec<_> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names, FeatureGates::NAMES);
    for row in rows {
        let (name, default) =
            (row["name"].as_str().expect("a name"), row["default"].as_bool().expect("a default"));
        let state = |options: &Options| {
            options.feature_gates.states().into_iter().find(|(known, _)| *known == name).expect("a gate").1
        };
        assert_eq!(state(&parse(&[], &[]).expect("defaults")), default, "{name}");
        let changed = format!(" {name} = {} ,", !default);
        let options = parse(&[], &[("FEATURE_GATES", &changed)]).expect(name);
        assert_eq!(state(&options), !default, "{name}");
        assert_eq!(
            options.feature_gates.states().into_iter().filter(|(known, on)| *known != name && *on).count(),
            usize::from(name != "ReservedCapacity"),
            "gates left out keep their defaults"
        );
    }
}

#[test]
fn gates_that_cannot_be_read_stop_the_start_and_unknown_ones_are_pointed_out() {
    for wrong in ["NodeRepair", "NodeRepair=", "NodeRepair=maybe"] {
        let message = error(&["--feature-gates", wrong], &[]);
        assert!(
            message.starts_with("--feature-gates (FEATURE_GATES)") && message.contains("NodeRepair"),
            "{message}"
        );
    }
    let options =
        parse(&["--feature-gates=Drift=true,NodeOverlay=1"], &[]).expect("unknown gates are ignored");
    assert!(options.feature_gates.node_overlay);
    assert!(options.warnings[0].contains("Drift"), "{:?}", options.warnings);
}

#[test]
fn a_warm_up_that_nobody_does_is_pointed_out() {
    let options = parse(&["--disable-controller-warmup=false"], &[]).expect("it is accepted");
    assert!(options.warnings[0].contains("--disable-controller-warmup"), "{:?}", options.warnings);
    assert_eq!(parse(&[], &[]).expect("defaults").warnings, Vec::<String>::new());
}

#[test]
fn dynamic_resources_are_refused_with_the_remedy() {
    for message in [error(&["--ignore-dra-requests=false"], &[]), error(&[], &[("IGNORE_DRA_REQUESTS", "0")])]
    {
        assert_eq!(
            message,
            "--ignore-dra-requests (IGNORE_DRA_REQUESTS): \"false\" is not supported: dynamic resource allocation is not \
             simulated yet; leave it at true"
        );
    }
}

#[test]
fn wrong_arguments_name_what_is_wrong() {
    for (args, expected) in [
        (&["--metrics-prot=1"][..], "unknown flag --metrics-prot"),
        (&["--metrics-port"], "--metrics-port (METRICS_PORT) needs a value"),
        (&["---metrics-port=1"], "bad flag syntax"),
        (&["--=1"], "bad flag syntax"),
        (&["--enable-profiling", "true"], "unexpected argument \"true\""),
        (&["run"], "unexpected argument \"run\""),
        (&["-"], "unexpected argument \"-\""),
        (&["--", "x"], "unexpected argument \"x\""),
        (
            &["--metrics-port=70000"],
            "--metrics-port (METRICS_PORT): \"70000\" must be a port between 0 and 65535",
        ),
        (
            &["--batch-max-duration=-1s"],
            "--batch-max-duration (BATCH_MAX_DURATION): \"-1s\" must not be negative",
        ),
        (&["--provider=aws"], "names \"aws\", which is no provider; there are kwok, cluster-api, cloudstack"),
        (&["--log-level=INFO"], "--log-level (LOG_LEVEL): \"INFO\" must be one of debug, info, warn, error"),
    ] {
        let message = error(args, &[]);
        assert!(message.contains(expected), "{args:?}: {message}");
    }
    assert_eq!(parse(&["--help"], &[]).err(), Some(OptionsError::Help));
    assert_eq!(parse(&["-h"], &[]).err(), Some(OptionsError::Help));
    assert!(Options::help().contains("--batch-max-duration (BATCH_MAX_DURATION)"));
}

#[test]
fn values_mean_what_they_say() {
    let options = parse(
        &[
            "--provider",
            "kwok,cluster-api,kwok",
            "--metrics-port=0x1F90",
            "--cpu-requests=-5",
            "--enable-profiling",
        ],
        &[
            ("CLOUDSTACK_VERIFY_SSL", "no"),
            ("LOG_LEVEL", ""),
            ("METRICS_PORT", "9"),
            ("BATCH_IDLE_DURATION", "1.5s"),
        ],
    )
    .expect("options");
    assert_eq!(options.providers, ["kwok", "cluster-api"]);
    assert_eq!((options.metrics_port, options.cpu_requests_millicores), (8080, 1000));
    assert_eq!((options.enable_profiling, options.disable_controller_warmup), (true, true));
    assert_eq!(options.log_level, LevelFilter::INFO);
    assert_eq!(options.batch_idle_duration, Duration::from_millis(1500));
    assert!(options.cloudstack.verify_ssl, "only the word false turns it off");
    assert_eq!(options.kubeconfig, None);
    let quiet = parse(&[], &[("LOG_LEVEL", "warn")]).expect("options");
    assert_eq!(quiet.log_level, LevelFilter::WARN);
    let empty = parse(&[], &[("LEADER_ELECTION_NAME", "")]).expect("options");
    assert_eq!(empty.leader_election_name, "", "a text that is set to nothing is nothing");
}

#[test]
fn secrets_are_not_shown() {
    let options =
        parse(&["--cluster-api-token=s3cret"], &[("CLOUDSTACK_SECRET_KEY", "s3cret")]).expect("options");
    assert_eq!(options.cluster_api.token.reveal(), "s3cret");
    assert!(!format!("{options:?}").contains("s3cret"));
    assert_eq!(format!("{:?}", Secret::default()), "not set");
}

#[test]
fn numbers_are_read_as_go_reads_them() {
    for (text, value) in [
        ("0", Some(0)),
        ("-12", Some(-12)),
        ("+7", Some(7)),
        ("0x_ff", Some(255)),
        ("0b101", Some(5)),
        ("0o17", Some(15)),
        ("017", Some(15)),
        ("1_000", Some(1000)),
        ("-9223372036854775808", Some(i64::MIN)),
        ("9223372036854775808", None),
        ("1__0", None),
        ("_1", None),
        ("1_", None),
        ("0x", None),
        ("--1", None),
        ("", None),
        ("1e3", None),
        ("089", None),
    ] {
        assert_eq!(parse_int(text), value, "{text}");
    }
    assert_eq!(
        parse(&[], &[("METRICS_PORT", "010")]).expect("options").metrics_port,
        10,
        "variables are decimal"
    );
}

#[test]
fn a_scheduler_configuration_is_held_to_kube_schedulers_rules() {
    let with = |text: &str| parse(&["--scheduler-config", text], &[]);
    let good = "podTopologySpread:\n  defaultConstraints:\n  - {maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: ScheduleAnyway, minDomains: 2}\n";
    let constraints = with(good).expect("a good one").default_topology_spread;
    assert_eq!((constraints.len(), constraints[0].min_domains), (1, Some(2)));
    assert!(with("{}").expect("an empty one").default_topology_spread.is_empty());
    assert!(with("podTopologySpread: {}").is_ok());
    let constraint =
        |fields: &str| format!("{{\"podTopologySpread\": {{\"defaultConstraints\": [{{{fields}}}]}}}}");
    let base = "\"maxSkew\": 1, \"topologyKey\": \"a\", \"whenUnsatisfiable\": \"DoNotSchedule\"";
    for (text, expected) in [
        ("not: known".to_owned(), "not a scheduler configuration"),
        ("[".to_owned(), "not a scheduler configuration"),
        (constraint(&base.replace("\"maxSkew\": 1", "\"maxSkew\": 0")), "[0].maxSkew must be greater than 0"),
        (constraint(&base.replace("\"a\"", "\"\"")), "[0].topologyKey must be set"),
        (constraint(&base.replace("\"a\"", "\"a b\"")), "[0].topologyKey \"a b\" is not a label name"),
        (constraint(&base.replace("DoNotSchedule", "Never")), "[0].whenUnsatisfiable \"Never\" must be"),
        (constraint(&format!("{base}, \"labelSelector\": {{}}")), "[0].labelSelector must be left out"),
        (constraint(&format!("{base}, \"matchLabelKeys\": [\"x\"]")), "[0].matchLabelKeys must be left out"),
        (constraint(&format!("{base}, \"unknown\": 1")), "not a scheduler configuration"),
        (constraint(&format!("{base}}}, {{{base}")), "[1] repeats [0]"),
    ] {
        let message = with(&text).expect_err(&text).to_string();
        assert!(
            message.starts_with("--scheduler-config (SCHEDULER_CONFIG)") && message.contains(expected),
            "{message}"
        );
    }
}

#[test]
fn karpenters_that_share_a_management_cluster_do_not_share_a_lease() {
    let name = |pairs: &[(&str, &str)]| parse(&[], pairs).expect("options").lease_name();
    let of = |cluster| {
        [
            ("CLUSTER_API_IN_MANAGEMENT_CLUSTER", "true"),
            ("CLUSTER_NAMESPACE", "fleet"),
            ("CLUSTER_NAME", cluster),
        ]
    };
    assert_eq!(name(&[("CLUSTER_NAME", "a")]), "karpenter-leader-election", "in a cluster of its own");
    assert_eq!(name(&of("a")), "karpenter-leader-election-fleet-a");
    assert_ne!(name(&of("a")), name(&of("b")));
    let chosen = [of("a").as_slice(), &[("LEADER_ELECTION_NAME", "mine")]].concat();
    assert_eq!(name(&chosen), "mine");
}

#[test]
fn a_variable_that_is_no_text_is_named_if_it_is_ours_and_otherwise_nobodys_concern() {
    use std::os::unix::ffi::OsStringExt as _;
    let garbage = || OsString::from_vec(vec![b'a', 0xff]);
    let text = || ("LOG_LEVEL".into(), "debug".into());
    let environ = Options::environ([("OTHER".into(), garbage()), (garbage(), "x".into()), text()])
        .expect("ours are texts");
    assert_eq!(environ, Environ::from([("LOG_LEVEL".to_owned(), "debug".to_owned())]));
    for name in ["METRICS_PORT", "CLOUDSTACK_API_KEY", "CLOUDSTACK_ON_STOPPED", "KUBECONFIG"] {
        let error = Options::environ([(name.into(), garbage()), text()]).expect_err(name).to_string();
        assert!(error.starts_with(name) && error.contains("UTF-8"), "{error}");
    }
}

#[test]
fn the_flag_names_one_kubeconfig_and_the_variable_a_list() {
    let list = parse(&[], &[("KUBECONFIG", "a:b")]).expect("options").kubeconfig;
    assert_eq!(list, Some(Kubeconfigs::List("a:b".into())));
    let file = parse(&["--kubeconfig=a:b"], &[("KUBECONFIG", "c:d")]).expect("options").kubeconfig;
    assert_eq!(file, Some(Kubeconfigs::File("a:b".into())));
}

#[test]
fn the_management_cluster_is_also_found_under_its_other_name() {
    let options = parse(&["--management-kubeconfig=/hub"], &[]).expect("options");
    assert_eq!(effective(&options, "cluster-api-kubeconfig"), "/hub");
}

#[test]
fn flags_of_cluster_api_and_cluster_autoscaler_have_the_names_they_have_there() {
    let options = parse(&["--default-arch=arm64"], &[]).expect("options");
    assert_eq!(options.cluster_api.default_arch, "arm64");
    let variable = [("CLUSTER_API_SYNC_LABELS", "from.the/variable")];
    let flag = "--additional-sync-machine-labels";
    let options = parse(&[flag, "^team/", flag, "^cost/,^tier$"], &variable).expect("options");
    assert_eq!(options.cluster_api.sync_labels, "^team/,^cost/,^tier$", "each adds to the ones before");
    assert_eq!(parse(&[], &variable).expect("options").cluster_api.sync_labels, "from.the/variable");
}
