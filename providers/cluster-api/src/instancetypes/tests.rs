//! What a resource would give, from what was read of it.

use std::collections::{BTreeMap, BTreeSet};

use karpenter_api::{NodeClaim, NodeClassReference};
use karpenter_cloudprovider::conversion;
use karpenter_engine::requirement::Operator;
use serde_json::json;

use super::annotated::Annotated;
use super::blueprint::{Blueprint, Learnt, Surroundings};
use super::catalog::{Catalog, NoOffer};
use super::devices;
use super::price::{Source, Told};
use crate::client::fields::Malformed;
use crate::client::scalable::{Scalable, ScalableKey, ScalableKind};
use crate::client::sync_labels::SyncLabels;
use crate::client::template::Template;
use crate::fixtures::{deployment, deployment_json, object, read_deployment};
use crate::labels;
use crate::nodeclass::ClusterAPINodeClassSpec;

mod catalog;

const CAPACITY: &str = "capacity.cluster-autoscaler.kubernetes.io";

fn spec(value: serde_json::Value) -> ClusterAPINodeClassSpec {
    serde_json::from_value(value).expect("a spec")
}

fn blueprint_of(
    scalable: &Scalable,
    template: Option<&Template>,
    spec: &ClusterAPINodeClassSpec,
) -> Result<Blueprint, Malformed> {
    static LEARNT: BTreeMap<ScalableKey, Learnt> = BTreeMap::new();
    let domains = ["a".to_owned(), "b".to_owned()];
    let around = Surroundings {
        node_class: "default",
        spec,
        failure_domains: &domains,
        sync_labels: &SyncLabels::read(r"^team\.example/,^cluster\.x-k8s\.io/,^topology\.|hash$")
            .expect("patterns"),
        default_arch: "amd64",
        vm_memory_overhead: 0,
        learnt: &LEARNT,
        spot: &BTreeSet::new(),
        told: &Told::default(),
    };
    Blueprint::of(scalable, None, template, around)
}

fn blueprint(scalable: &Scalable) -> Blueprint {
    blueprint_of(scalable, None, &ClusterAPINodeClassSpec::default()).expect("a blueprint")
}

fn claim(requirements: serde_json::Value, requests: serde_json::Value) -> NodeClaim {
    let mut claim: NodeClaim = serde_json::from_value(json!({
        "metadata": {"name": "n", "labels": {"team": "x"}},
        "spec": {
            "requirements": requirements,
            "resources": {"requests": requests},
            "nodeClassRef": {"group": "karpenter.cluster.x-k8s.io", "kind": "ClusterAPINodeClass", "name": "default"},
        },
    }))
    .expect("a NodeClaim");
    claim.spec.node_class_ref = NodeClassReference {
        group: crate::GROUP.to_owned(),
        kind: "ClusterAPINodeClass".to_owned(),
        name: "default".to_owned(),
    };
    claim
}

fn quantities(blueprint: &Blueprint) -> BTreeMap<&str, String> {
    blueprint.capacity.iter().map(|(name, quantity)| (name.as_str(), quantity.to_string())).collect()
}

/// What pods may use of the memory of a type of these resources.
fn usable(blueprints: &[Blueprint]) -> String {
    let catalog = Catalog::of(blueprints, |_, _| None);
    assert_eq!(catalog.types.len(), 1, "all of one type");
    conversion::resource_list(&conversion::allocatable(&catalog.types[0]))["memory"].to_string()
}

/// What pods may use, in cores and memory.
fn left(spec_json: serde_json::Value, vm_memory_overhead: u32, learnt: Option<Learnt>) -> [String; 2] {
    let (scalable, spec) = (deployment("m", &[]), spec(spec_json));
    let learnt = learnt.map(|learnt| (scalable.id.clone(), learnt)).into_iter().collect();
    let around = Surroundings {
        node_class: "default",
        spec: &spec,
        failure_domains: &[],
        sync_labels: &SyncLabels::default(),
        default_arch: "amd64",
        vm_memory_overhead,
        learnt: &learnt,
        spot: &BTreeSet::new(),
        told: &Told::default(),
    };
    let catalog =
        Catalog::of(&[Blueprint::of(&scalable, None, None, around).expect("a blueprint")], |_, _| None);
    let left = conversion::resource_list(&conversion::allocatable(&catalog.types[0]));
    ["cpu", "memory"].map(|resource| left[resource].to_string())
}

#[test]
fn what_nobody_tells_is_reserved_only_where_users_ask_for_it() {
    assert_eq!(left(json!({}), 0, None), ["4", "16284Mi"], "as kubeadm has it");
    // A quarter of 4 GiB, a fifth of 4 and a tenth of 8 make 2663 MiB.
    let curve = json!({"defaultReservations": "Curve"});
    assert_eq!(left(curve, 0, None), ["3920m", "13621Mi"]);
    assert_eq!(left(json!({}), 250_000, None), ["4", "12188Mi"], "a quarter that the machine never sees");
    let told = json!({"defaultReservations": "Curve", "kubelet": {"kubeReserved": {"memory": "1Gi"}}});
    assert_eq!(left(told, 0, None), ["4", "15260Mi"], "what is told goes first");
}

#[test]
fn a_kubelet_that_keeps_something_else_than_is_declared_is_told() {
    let shows = |memory: &str, pages: &str| Learnt {
        capacity: serde_json::from_value(json!({"cpu": "4", "memory": "16Gi", "hugepages-2Mi": pages}))
            .expect("resources"),
        allocatable: serde_json::from_value(json!({"cpu": "4", "memory": memory})).expect("resources"),
    };
    let told = |declared: serde_json::Value, learnt: Learnt| {
        let (scalable, spec) = (deployment("m", &[]), spec(declared));
        let learnt = [(scalable.id.clone(), learnt)].into();
        let around = Surroundings {
            node_class: "default",
            spec: &spec,
            failure_domains: &[],
            sync_labels: &SyncLabels::default(),
            default_arch: "amd64",
            vm_memory_overhead: 75_000,
            learnt: &learnt,
            spot: &BTreeSet::new(),
            told: &Told::default(),
        };
        Blueprint::of(&scalable, None, None, around).expect("a blueprint").kubelet_differs
    };
    let declared = || json!({"kubelet": {"kubeReserved": {"memory": "924Mi"}}});
    assert_eq!(told(declared(), shows("15Gi", "0")), None, "and 100Mi for eviction");
    assert_eq!(told(declared(), shows("14Gi", "1Gi")), None, "huge pages are nobody's overhead");
    assert_eq!(
        told(declared(), shows("14Gi", "0")).as_deref(),
        Some("kubelet keeps 2Gi of memory where 1Gi is declared")
    );
    assert_eq!(told(json!({"kubelet": {"maxPods": 20}}), shows("14Gi", "0")), None, "nothing is declared");
    let curve = json!({
        "defaultReservations": "Curve", "kubelet": {"evictionHard": {"memory.available": "100Mi"}},
    });
    assert_eq!(told(curve, shows("15Gi", "0")), None, "what is usual is no declaration");
    let curve = json!({"defaultReservations": "Curve", "kubelet": {"systemReserved": {"memory": "4Gi"}}});
    assert!(told(curve, shows("15Gi", "0")).is_some(), "it keeps less than that alone");
    let system = json!({"kubelet": {"systemReserved": {"memory": "924Mi"}}});
    assert_eq!(told(system.clone(), shows("15Gi", "0")), None);
    assert!(told(system, shows("14Gi", "0")).is_some(), "nodes are planned without the rest");
    let eviction = json!({"kubelet": {"evictionHard": {"memory.available": "100Mi"}}});
    assert!(told(eviction, shows("14Gi", "0")).is_some());
    let pods = |allows: &str| {
        let mut learnt = shows("15Gi", "0");
        learnt.capacity.insert("pods".to_owned(), karpenter_api::Quantity::parse(allows).expect("pods"));
        told(json!({"kubelet": {"maxPods": 20}}), learnt)
    };
    assert_eq!(pods("20"), None);
    assert_eq!(pods("110").as_deref(), Some("kubelet allows 110 pods where 20 are declared"));
}

#[test]
fn what_a_node_shows_goes_before_what_is_usual() {
    let seen = || Learnt {
        capacity: serde_json::from_value(json!({"cpu": "4", "memory": "16Gi"})).expect("resources"),
        allocatable: serde_json::from_value(json!({"cpu": "3900m", "memory": "15Gi"})).expect("resources"),
    };
    let curve = json!({"defaultReservations": "Curve", "kubelet": {"maxPods": 50}});
    assert_eq!(left(curve, 75_000, Some(seen())), ["3900m", "15Gi"]);
}

#[test]
fn owners_say_what_kubelet_keeps_and_nodes_are_not_asked_then() {
    let own = |key: &str| format!("karpenter.cluster.x-k8s.io/{key}");
    let (kube, system, eviction, percent) =
        (own("kube-reserved"), own("system-reserved"), own("eviction-hard"), own("memory-overhead-percent"));
    let scalable = deployment(
        "m",
        &[
            (kube.as_str(), "cpu=100m, memory=1Gi"),
            (&system, "memory=512Mi"),
            (&eviction, "memory.available=512Mi"),
        ],
    );
    assert_eq!(usable(&[blueprint(&scalable)]), "14Gi");
    assert_eq!(
        usable(&[blueprint(&deployment("m", &[(percent.as_str(), "25")]))]),
        "12188Mi",
        "and 100Mi for eviction"
    );
    let learnt = Learnt {
        capacity: serde_json::from_value(json!({"cpu": "4", "memory": "16Gi"})).expect("resources"),
        allocatable: serde_json::from_value(json!({"cpu": "4", "memory": "8Gi"})).expect("resources"),
    };
    let known = BTreeMap::from([(scalable.id.clone(), learnt)]);
    let spec = ClusterAPINodeClassSpec::default();
    let around = Surroundings {
        node_class: "default",
        spec: &spec,
        failure_domains: &[],
        sync_labels: &SyncLabels::default(),
        default_arch: "amd64",
        vm_memory_overhead: 0,
        learnt: &known,
        spot: &BTreeSet::new(),
        told: &Told::default(),
    };
    assert_eq!(usable(&[Blueprint::of(&scalable, None, None, around).expect("a blueprint")]), "14Gi");
    assert_eq!(
        usable(&[Blueprint::of(&deployment("m", &[]), None, None, around).expect("a blueprint")]),
        "8Gi"
    );
    for (key, text, told) in [
        (&kube, "cpu", "\"cpu\" is not as in cpu=100m,memory=1Gi"),
        (&system, "memory=much", "\"much\" is not a quantity such as 100m or 1Gi"),
        (&eviction, "memory.available=-5%", "\"-5%\" is neither a quantity nor a percentage"),
        (&percent, "some", "\"some\" is no percentage such as 7.5"),
    ] {
        let error =
            blueprint_of(&deployment("m", &[(key.as_str(), text)]), None, &spec).expect_err("malformed");
        assert!(error.to_string().contains(told) && error.to_string().contains(key.as_str()), "{error}");
    }
}

#[test]
fn a_bare_machine_deployment_with_cpu_and_memory_is_an_instance_type() {
    let blueprint = blueprint(&deployment("m", &[]));
    assert_eq!(quantities(&blueprint)["pods"], "110", "what kubelet allows by itself");
    let catalog = Catalog::of(&[blueprint], |_, _| None);
    let only = &catalog.types[0];
    assert_eq!((&*only.name, only.offerings.len()), ("m", 1), "named after the MachineDeployment");
    let left = conversion::resource_list(&conversion::allocatable(only));
    assert_eq!(left["memory"].to_string(), "16284Mi", "kubelet keeps 100Mi free");
    let stated = only.requirements.iter().filter(|r| r.operator() != Operator::DoesNotExist);
    let labels: Vec<String> = stated.map(|r| r.key.to_string()).collect();
    assert_eq!(
        labels,
        [
            "karpenter.sh/capacity-type",
            "kubernetes.io/arch",
            "kubernetes.io/os",
            "node.kubernetes.io/instance-type"
        ],
        "no member label"
    );
}

#[test]
fn annotations_tell_every_resource_and_the_first_source_wins() {
    let scalable = deployment(
        "m",
        &[
            (&format!("{CAPACITY}/ephemeral-disk"), "20Gi"),
            (&format!("{CAPACITY}/maxPods"), "30"),
            (&format!("{CAPACITY}/gpu-count"), "2"),
            (&format!("{CAPACITY}/gpu-type"), "nvidia.com/gpu"),
            ("karpenter.cluster.x-k8s.io/resource.example.com_widget", "3"),
            (&format!("{CAPACITY}/csi-driver"), "ebs.csi.aws.com=volume-limit=25,other=4"),
        ],
    );
    let template = Template::read(
        "FakeMachineTemplate",
        &object(json!({"metadata": {}, "status": {
            "capacity": {"cpu": "64", "hugepages-2Mi": "1Gi"}, "nodeInfo": {"architecture": "arm64"},
        }})),
    )
    .expect("a template");
    let blueprint =
        blueprint_of(&scalable, Some(&template), &ClusterAPINodeClassSpec::default()).expect("a blueprint");
    let expected = [
        ("cpu", "4"),
        ("memory", "16Gi"),
        ("ephemeral-storage", "20Gi"),
        ("pods", "30"),
        ("nvidia.com/gpu", "2"),
        ("example.com/widget", "3"),
        ("hugepages-2Mi", "1Gi"),
    ];
    assert_eq!(quantities(&blueprint), expected.map(|(k, v)| (k, v.to_owned())).into());
    assert_eq!(blueprint.labels["kubernetes.io/arch"], "arm64");
    assert_eq!(blueprint.volume_limits, [("ebs.csi.aws.com".to_owned(), 25), ("other".to_owned(), 4)].into());
}

/// A MachineSet of `m` with these annotations.
fn set_of_m(annotations: &[(&str, &str)]) -> Scalable {
    let mut value = deployment_json("m-1", annotations);
    let all = value["metadata"]["annotations"].as_object_mut().expect("a map");
    all.retain(|key, _| annotations.iter().any(|(known, _)| key == known));
    Scalable::read(ScalableKind::MachineSet, &object(value)).expect("a MachineSet")
}

fn blueprint_with(
    scalable: &Scalable,
    set: &Scalable,
    learnt: Option<Learnt>,
) -> Result<Blueprint, Malformed> {
    let spec = ClusterAPINodeClassSpec::default();
    let learnt = learnt.map(|learnt| (scalable.id.clone(), learnt)).into_iter().collect();
    let template = Template {
        capacity: [("cpu".to_owned(), "64".to_owned()), ("example.com/widget".to_owned(), "9".to_owned())]
            .into(),
        ..Template::default()
    };
    let around = Surroundings {
        node_class: "default",
        spec: &spec,
        failure_domains: &[],
        sync_labels: &SyncLabels::default(),
        default_arch: "amd64",
        vm_memory_overhead: 0,
        learnt: &learnt,
        spot: &BTreeSet::new(),
        told: &Told::default(),
    };
    Blueprint::of(scalable, Some(set), Some(&template), around)
}

#[test]
fn a_machine_set_tells_what_its_deployment_does_not_and_goes_before_the_template() {
    let own = "karpenter.cluster.x-k8s.io/resource.example.com_widget";
    let disk = format!("{CAPACITY}/ephemeral-disk");
    let set = set_of_m(&[
        (&format!("{CAPACITY}/cpu"), "nonsense that nobody reads"),
        (own, "3"),
        (&disk, "20Gi"),
        (&format!("{CAPACITY}/csi-driver"), "ebs.csi.aws.com=25"),
    ]);
    let deployment = deployment("m", &[]);
    let blueprint = blueprint_with(&deployment, &set, None).expect("a blueprint");
    let found = quantities(&blueprint);
    assert_eq!(
        ["cpu", "example.com/widget", "ephemeral-storage"].map(|key| found[key].as_str()),
        ["4", "3", "20Gi"]
    );
    assert_eq!(blueprint.volume_limits, [("ebs.csi.aws.com".to_owned(), 25)].into());
    let error = blueprint_with(&deployment, &set_of_m(&[(&disk, "much")]), None).expect_err("malformed");
    assert_eq!(
        error.to_string(),
        format!(
            "MachineDeployment default/m: MachineSet default/m-1: {disk}: \"much\" is not a quantity such as 4 or 16Gi"
        )
    );
}

#[test]
fn devices_that_pods_get_by_claims_are_told_to_be_ignored() {
    let (driver, count) = (format!("{CAPACITY}/dra-driver"), format!("{CAPACITY}/gpu-count"));
    let scalable = deployment("m", &[(&driver, "gpu.example.com"), (&count, "2")]);
    let capacity = blueprint(&scalable).capacity;
    assert_eq!(capacity.len(), 3, "cores, memory and pods: {capacity:?}");
    let told = devices::ignored(Annotated { scalable: &scalable, set: None }).expect("a word").to_string();
    let expected = format!("MachineDeployment default/m: {driver}: devices of gpu.example.com are ignored");
    assert!(told.starts_with(&expected), "{told}");
    let plain = deployment("m", &[(&count, "2")]);
    assert_eq!(devices::ignored(Annotated { scalable: &plain, set: None }), None);
}

#[test]
fn an_operating_system_is_the_templates_or_linux() {
    let of = |info: serde_json::Value| {
        let template = json!({"metadata": {}, "status": {"nodeInfo": info}});
        let template = Template::read("FakeMachineTemplate", &object(template)).expect("a template");
        let spec = ClusterAPINodeClassSpec::default();
        let labels = blueprint_of(&deployment("m", &[]), Some(&template), &spec).expect("a blueprint").labels;
        ["kubernetes.io/os", "kubernetes.io/arch"].map(|key| labels[key].clone())
    };
    assert_eq!(of(json!({"operatingSystem": "windows"})), ["windows", "amd64"]);
    assert_eq!(of(json!({"architecture": "s390x"})), ["linux", "s390x"]);
}

#[test]
fn what_cannot_be_read_is_named_with_object_and_key() {
    let without = |key: &str| {
        let mut value = deployment_json("m", &[]);
        value["metadata"]["annotations"].as_object_mut().expect("a map").remove(&format!("{CAPACITY}/{key}"));
        read_deployment(value)
    };
    let cases = [
        (
            deployment("m", &[(&format!("{CAPACITY}/cpu"), "sixteen")]),
            format!("{CAPACITY}/cpu: \"sixteen\" is not a quantity"),
        ),
        (
            deployment("m", &[(&format!("{CAPACITY}/memory"), "-1Gi")]),
            format!("{CAPACITY}/memory: \"-1Gi\" is negative"),
        ),
        (without("memory"), format!("{CAPACITY}/memory: is missing")),
        (
            deployment("m", &[(&format!("{CAPACITY}/labels"), "a b=c")]),
            format!("{CAPACITY}/labels: \"a b=c\" is not a label"),
        ),
        (
            deployment("m", &[(&format!("{CAPACITY}/taints"), "key:Sometimes")]),
            format!("{CAPACITY}/taints: \"key:Sometimes\" is not"),
        ),
        (
            deployment("m", &[(&format!("{CAPACITY}/csi-driver"), "ebs.csi.aws.com=many")]),
            format!("{CAPACITY}/csi-driver: \"ebs.csi.aws.com=many\" is not name=limit"),
        ),
        (
            deployment("m", &[(&format!("{CAPACITY}/csi-driver"), "ebs.csi.aws.com=-1")]),
            format!("{CAPACITY}/csi-driver: \"ebs.csi.aws.com=-1\" is not name=limit"),
        ),
        (
            deployment("m", &[(&format!("{CAPACITY}/csi-driver"), "=25")]),
            format!("{CAPACITY}/csi-driver: \"=25\" does not name a CSI driver"),
        ),
        (
            deployment("m", &[(&format!("{CAPACITY}/dra-driver"), "not a driver")]),
            format!("{CAPACITY}/dra-driver: \"not a driver\" is not the name of a driver"),
        ),
        (
            deployment(
                "m",
                &[(&format!("{CAPACITY}/gpu-count"), "1"), (&format!("{CAPACITY}/gpu-type"), "a gpu")],
            ),
            format!("{CAPACITY}/gpu-type: \"a gpu\" is not the name of a resource"),
        ),
        (
            deployment("m", &[("karpenter.cluster.x-k8s.io/resource.example.com_", "3")]),
            "resource.example.com_: \"example.com/\" is not the name of a resource".to_owned(),
        ),
        (
            deployment("m", &[("karpenter.cluster.x-k8s.io/resource.example.com_widget", "some")]),
            "resource.example.com_widget: \"some\" is not a quantity".to_owned(),
        ),
        (
            deployment("m", &[("karpenter.cluster.x-k8s.io/price", "cheap")]),
            "karpenter.cluster.x-k8s.io/price: \"cheap\" is not a price".to_owned(),
        ),
        (
            deployment("m", &[(&format!("{CAPACITY}/labels"), "karpenter.sh/capacity-type=free")]),
            "karpenter.sh/capacity-type: \"free\" is none of".to_owned(),
        ),
    ];
    for (scalable, text) in cases {
        let error = blueprint_of(&scalable, None, &ClusterAPINodeClassSpec::default())
            .expect_err("refused")
            .to_string();
        assert!(error.starts_with("MachineDeployment default/m: ") && error.contains(&text), "{error}");
    }
}

#[test]
fn a_node_without_cpu_or_memory_is_left_out_with_its_key() {
    let refused = |scalable: &Scalable, template: Option<&Template>, spec: &ClusterAPINodeClassSpec| {
        blueprint_of(scalable, template, spec).expect_err("refused").to_string()
    };
    let plain = spec(json!({}));
    for (key, text) in [("cpu", "0"), ("cpu", "0m"), ("memory", "0"), ("memory", "0Gi")] {
        let error = refused(&deployment("m", &[(&format!("{CAPACITY}/{key}"), text)]), None, &plain);
        let told =
            format!("MachineDeployment default/m: {CAPACITY}/{key}: {text:?} would be a node without {key}");
        assert_eq!(error, told);
    }
    let own = "karpenter.cluster.x-k8s.io/resource.cpu";
    assert!(refused(&deployment("m", &[(own, "0")]), None, &plain).contains(own));
    let mut value = deployment_json("m", &[]);
    value["metadata"]["annotations"] = json!({});
    let silent = read_deployment(value);
    let template = Template {
        capacity: [("cpu".to_owned(), "0".to_owned()), ("memory".to_owned(), "4Gi".to_owned())].into(),
        ..Template::default()
    };
    let error = refused(&silent, Some(&template), &plain);
    assert!(error.contains("infrastructure template: status.capacity.cpu"), "{error}");
    let by_class = spec(json!({"instanceTypes": [{"name": "m", "capacity": {"cpu": "2", "memory": "0"}}]}));
    let error = refused(&silent, None, &by_class);
    assert!(error.contains(&format!("{CAPACITY}/memory")) && error.contains("instanceTypes"), "{error}");
    let nothing_else = deployment("m", &[(&format!("{CAPACITY}/ephemeral-disk"), "0")]);
    assert_eq!(
        quantities(&blueprint(&nothing_else))["ephemeral-storage"],
        "0",
        "of other things there may be none"
    );
}

#[test]
fn capacity_that_only_the_node_class_knows_is_used() {
    let mut value = deployment_json("m", &[]);
    value["metadata"]["annotations"] = json!({});
    let spec = spec(
        json!({"instanceTypes": [{"name": "m", "capacity": {"cpu": "2", "memory": "4Gi"}, "price": "0.07"}]}),
    );
    let blueprint = blueprint_of(&read_deployment(value), None, &spec).expect("a blueprint");
    assert_eq!(quantities(&blueprint)["cpu"], "2");
    assert_eq!((blueprint.places[0].price.per_hour, blueprint.places[0].price.source), (0.07, Source::Table));
}

#[test]
fn nodes_have_the_labels_cluster_api_copies_and_those_of_the_annotation() {
    let mut value = deployment_json(
        "m",
        &[(
            &format!("{CAPACITY}/labels"),
            "tier=gold,topology.kubernetes.io/zone=z1, node.cluster.x-k8s.io/x=annotated,ignored",
        )],
    );
    value["spec"]["template"]["metadata"]["labels"] = json!({
        "node-role.kubernetes.io/worker": "",
        "sub.node.cluster.x-k8s.io/y": "1",
        "node.cluster.x-k8s.io/x": "template",
        "node.cluster.x-k8s.io/karpenter-member": "",
        "team.example/name": "core",
        "other-team.example/name": "not copied",
        "cluster.x-k8s.io/cluster-name": "c",
        "topology.cluster.x-k8s.io/owned": "",
        "machine-template-hash": "12345",
        "app": "not copied",
    });
    let blueprint = blueprint(&read_deployment(value));
    let labels: Vec<String> = blueprint.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(
        labels,
        [
            "kubernetes.io/arch=amd64",
            "kubernetes.io/os=linux",
            "node-role.kubernetes.io/worker=",
            "node.cluster.x-k8s.io/x=annotated",
            "sub.node.cluster.x-k8s.io/y=1",
            "team.example/name=core",
            "tier=gold",
        ]
    );
    assert_eq!(blueprint.places[0].zone.as_deref(), Some("z1"));
}

#[test]
fn a_zone_is_the_label_else_the_failure_domain_else_none() {
    let pinned = || {
        let mut value = deployment_json("m", &[]);
        value["spec"]["template"]["spec"]["failureDomain"] = "fd-1".into();
        read_deployment(value)
    };
    let zones =
        |scalable: &Scalable, spec: &ClusterAPINodeClassSpec| -> Vec<(Option<String>, Option<String>)> {
            let blueprint = blueprint_of(scalable, None, spec).expect("a blueprint");
            blueprint.places.into_iter().map(|place| (place.zone, place.failure_domain)).collect()
        };
    let text = |text: &str| Some(text.to_owned());
    let plain = spec(json!({}));
    assert_eq!(zones(&deployment("m", &[]), &plain), [(None, None)]);
    assert_eq!(zones(&pinned(), &plain), [(text("fd-1"), text("fd-1"))]);
    let mapped =
        spec(json!({"failureDomainZones": {"fd-1": "zone-1", "a": "zone-a"}, "launchMode": "Machine"}));
    assert_eq!(zones(&pinned(), &mapped), [(text("zone-1"), text("fd-1"))]);
    assert_eq!(
        zones(&deployment("m", &[]), &mapped),
        [(text("zone-a"), text("a")), (text("b"), text("b"))],
        "a Machine of its own can be put into any failure domain"
    );
}

#[test]
fn spot_is_told_by_label_annotation_or_template() {
    let template = Template { spot: true, ..Template::default() };
    let of = |scalable: Scalable, template: Option<&Template>| {
        blueprint_of(&scalable, template, &ClusterAPINodeClassSpec::default())
            .expect("a blueprint")
            .capacity_type
    };
    assert_eq!(of(deployment("m", &[]), None), "on-demand");
    assert_eq!(of(deployment("m", &[]), Some(&template)), "spot");
    let label = [(&*format!("{CAPACITY}/labels"), "karpenter.sh/capacity-type=spot")];
    assert_eq!(of(deployment("m", &label), None), "spot");
    assert_eq!(
        of(deployment("m", &[("karpenter.cluster.x-k8s.io/capacity-type", "reserved")]), Some(&template)),
        "reserved"
    );
}

#[test]
fn a_price_comes_from_the_annotation_then_the_table_then_the_model() {
    let price = |scalable: &Scalable, spec: &ClusterAPINodeClassSpec| {
        let price = blueprint_of(scalable, None, spec).expect("a blueprint").places[0].price;
        ((price.per_hour * 1e6).round() / 1e6, price.source)
    };
    let plain = spec(json!({}));
    assert_eq!(price(&deployment("m", &[]), &plain), (0.184, Source::Model), "4 × 0.03 + 16 × 0.004");
    let model = spec(json!({"pricing": {"model": {"cpu": "1", "memoryGib": "0.5"}}}));
    assert_eq!(price(&deployment("m", &[]), &model), (12.0, Source::Model));
    let table = spec(json!({"pricing": {"table": {"m": "0.9", "m//on-demand": "0.8"}}}));
    assert_eq!(price(&deployment("m", &[]), &table), (0.8, Source::Table), "the most particular entry");
    let annotated = deployment("m", &[("cluster.x-k8s.io/machine-current-price", "0.3")]);
    assert_eq!(price(&annotated, &table), (0.3, Source::Annotation));
}

#[test]
fn taints_come_from_annotation_and_template() {
    let mut value =
        deployment_json("m", &[(&format!("{CAPACITY}/taints"), "dedicated=db:NoSchedule,gpu:NoExecute")]);
    value["spec"]["template"]["spec"]["taints"] = json!([
        {"key": "stays", "value": "1", "effect": "NoSchedule", "propagation": "Always"},
        {"key": "goes", "effect": "NoSchedule", "propagation": "OnInitialization"},
    ]);
    let taints = blueprint(&read_deployment(value)).taints;
    let taints: Vec<String> = taints
        .iter()
        .map(|t| format!("{}={}:{}", t.key, t.value.clone().unwrap_or_default(), t.effect))
        .collect();
    assert_eq!(taints, ["dedicated=db:NoSchedule", "gpu=:NoExecute", "stays=1:NoSchedule"]);
}

#[test]
fn what_is_empty_names_neither_an_instance_type_nor_a_zone() {
    let empty = "node.kubernetes.io/instance-type=,topology.kubernetes.io/zone=,kubernetes.io/arch=,role=";
    let blueprint = blueprint(&deployment("m", &[(&format!("{CAPACITY}/labels"), empty)]));
    assert_eq!((&blueprint.named, blueprint.zone_told), (&None, false));
    assert_eq!(blueprint.labels["kubernetes.io/arch"], "amd64", "the next one has the word");
    assert_eq!(blueprint.labels["role"], "", "of other labels nothing is a value as good as any");
    let catalog = Catalog::of(&[blueprint], |_, _| None);
    assert_eq!((&*catalog.types[0].name, &catalog.entries[0].zone), ("m", &None));
}

#[test]
fn what_cannot_be_the_value_of_a_label_is_left_out_by_its_key() {
    let spec = ClusterAPINodeClassSpec::default();
    let odd = Template { architecture: Some("a rm64".to_owned()), ..Template::default() };
    let labelled = |key: &str, value: &str| {
        let mut value_json = deployment_json("m", &[]);
        value_json["spec"]["template"]["metadata"]["labels"][key] = value.into();
        read_deployment(value_json)
    };
    let pinned = || {
        let mut value = deployment_json("m", &[]);
        value["spec"]["template"]["spec"]["failureDomain"] = "/dc/rack:1".into();
        read_deployment(value)
    };
    let named = deployment("m", &[("karpenter.cluster.x-k8s.io/instance-type", "big node")]);
    let cases = [
        (named, None, "instance-type: \"big node\" cannot be the value of a label"),
        (deployment("m", &[]), Some(&odd), "status.nodeInfo.architecture: \"a rm64\" cannot be"),
        (labelled("team.example/x", "a b"), None, "metadata.labels[team.example/x]: \"a b\" cannot be"),
        (
            labelled("team.example/a b", "c"),
            None,
            "metadata.labels: \"team.example/a b\" is not the key of a label",
        ),
        (pinned(), None, "failure domain /dc/rack:1: \"/dc/rack:1\" cannot be the value of a label"),
    ];
    for (scalable, template, told) in cases {
        let error = blueprint_of(&scalable, template, &spec).expect_err("malformed").to_string();
        assert!(error.starts_with("MachineDeployment default/m: ") && error.contains(told), "{error}");
    }
    let mapped = self::spec(json!({"failureDomainZones": {"/dc/rack:1": "rack-1"}}));
    let blueprint = blueprint_of(&pinned(), None, &mapped).expect("a blueprint");
    assert_eq!(blueprint.places[0].zone.as_deref(), Some("rack-1"));
    assert_eq!(blueprint.places[0].failure_domain.as_deref(), Some("/dc/rack:1"));
}

#[test]
fn a_failure_domain_that_is_no_zone_is_ignored_where_there_are_others() {
    let spec = spec(json!({"launchMode": "Machine", "failureDomainZones": {"a": "zone a"}}));
    let blueprint = blueprint_of(&deployment("m", &[]), None, &spec).expect("a blueprint");
    let zones: Vec<_> = blueprint.places.iter().map(|place| place.zone.as_deref()).collect();
    assert_eq!(zones, [Some("b")]);
    let [ignored] = blueprint.ignored.as_slice() else { panic!("one: {:?}", blueprint.ignored) };
    let told = ignored.what.to_string();
    assert!(
        told.starts_with("ClusterAPINodeClass default: spec.failureDomainZones[a]: \"zone a\" cannot"),
        "{told}"
    );
    assert_eq!(ignored.reason, "FailureDomainIgnored");
}

#[test]
fn a_taint_of_another_value_is_not_the_one_that_was_declared() {
    let tainted = deployment("m", &[(&format!("{CAPACITY}/taints"), "gpu=a:NoSchedule,plain:NoExecute")]);
    let catalog = Catalog::of(&[blueprint(&tainted)], |_, _| None);
    let served = |taints: serde_json::Value| {
        let mut claim = claim(json!([]), json!({}));
        claim.spec.taints = serde_json::from_value(taints).expect("taints");
        catalog.choices(&claim, false).is_ok()
    };
    let plain = json!({"key": "plain", "value": "", "effect": "NoExecute"});
    assert!(served(json!([{"key": "gpu", "value": "a", "effect": "NoSchedule"}, plain])));
    assert!(!served(json!([{"key": "gpu", "value": "b", "effect": "NoSchedule"}, plain])));
}

#[test]
fn who_says_how_many_nodes_are_paid_for_in_advance_says_that_they_are() {
    let reservation = "karpenter.cluster.x-k8s.io/reservation-capacity";
    let reserved = blueprint(&deployment("m", &[(reservation, "3")]));
    assert_eq!((reserved.capacity_type.as_str(), reserved.reservation), ("reserved", 3));
    assert!(reserved.capacity_type_told && reserved.ignored.is_empty());
    let spot = ("karpenter.cluster.x-k8s.io/capacity-type", "spot");
    let spot = blueprint(&deployment("m", &[(reservation, "3"), spot]));
    assert_eq!(spot.capacity_type, "spot");
    let told: Vec<_> =
        spot.ignored.iter().map(|ignored| (ignored.reason, ignored.what.to_string())).collect();
    let expected =
        format!("MachineDeployment default/m: {reservation}: is ignored: its nodes are said to be spot");
    assert_eq!(told, [("ReservationIgnored", expected)]);
    let spec = ClusterAPINodeClassSpec::default();
    let error = blueprint_of(&deployment("m", &[(reservation, "-3")]), None, &spec).expect_err("malformed");
    assert!(error.to_string().ends_with("\"-3\" is not a number of nodes"), "{error}");
}

#[test]
fn labels_that_karpenter_and_kubelet_give_are_ignored_and_named() {
    let labels = "karpenter.sh/nodepool=x,kubernetes.io/hostname=y,karpenter.sh/capacity-type=spot,team=z";
    let labelled = deployment("m", &[(&format!("{CAPACITY}/labels"), labels)]);
    let offered = blueprint(&labelled);
    assert_eq!(offered.capacity_type, "spot");
    let kept: Vec<&str> =
        offered.labels.keys().map(String::as_str).filter(|key| !key.contains(".io/")).collect();
    assert_eq!(kept, ["team"]);
    assert!(!offered.labels.keys().any(|key| key.starts_with("karpenter.sh/") || key.ends_with("/hostname")));
    let told = super::node_labels::ignored(&labelled).expect("something").problem;
    assert!(told.contains("karpenter.sh/nodepool") && told.contains("kubernetes.io/hostname"), "{told}");
    assert!(!told.contains("capacity-type") && !told.contains("team"), "{told}");
}

#[test]
fn a_taint_that_no_node_can_have_is_named_by_its_annotation() {
    for bad in ["my gpu=yes:NoSchedule", "gpu=a b:NoSchedule", "gpu_=x:NoSchedule", "gpu=x:Never"] {
        let tainted = deployment("m", &[(&format!("{CAPACITY}/taints"), bad)]);
        let told = blueprint_of(&tainted, None, &ClusterAPINodeClassSpec::default()).expect_err(bad);
        assert!(told.key.ends_with("/taints"), "{told}");
    }
}

#[test]
fn how_many_pods_the_owner_of_a_resource_allows_goes_before_the_node_class_unless_that_tells_kubelet() {
    let said = deployment("m", &[(&format!("{CAPACITY}/maxPods"), "30")]);
    let pods = |scalable: &Scalable, spec_json: serde_json::Value| {
        let offered = blueprint_of(scalable, None, &spec(spec_json)).expect("a blueprint");
        quantities(&offered)["pods"].clone()
    };
    let kubelet = || json!({"maxPods": 50});
    assert_eq!(pods(&said, json!({"kubelet": kubelet()})), "30");
    assert_eq!(pods(&deployment("m", &[]), json!({"kubelet": kubelet()})), "50");
    assert_eq!(pods(&said, json!({"kubelet": kubelet(), "launchMode": "Machine"})), "50");
}

#[test]
fn a_machine_of_its_own_in_a_zone_that_is_told_is_asked_into_a_failure_domain_of_that_zone() {
    let zoned = |domains: &[&str]| {
        let mut zoned = deployment("m", &[(&format!("{CAPACITY}/labels"), "topology.kubernetes.io/zone=z1")]);
        zoned.failure_domains = domains.iter().map(|domain| (*domain).to_owned()).collect();
        zoned
    };
    let places = |scalable: &Scalable, mode: &str| {
        let spec = spec(json!({"launchMode": mode, "failureDomainZones": {"a": "z1", "b": "z2", "c": "z1"}}));
        let offered = blueprint_of(scalable, None, &spec).expect("a blueprint");
        offered.places.iter().map(|place| place.failure_domain.clone()).collect::<Vec<_>>()
    };
    let some = |name: &str| Some(name.to_owned());
    assert_eq!(places(&zoned(&["a", "b", "c"]), "Machine"), [some("a"), some("c")]);
    assert_eq!(places(&zoned(&["rack-7"]), "Machine"), [some("rack-7")], "the only one there is");
    assert_eq!(places(&zoned(&["b", "x"]), "Machine"), [None]);
    assert_eq!(places(&zoned(&["a", "b"]), "MachineDeployment"), [None]);
}
