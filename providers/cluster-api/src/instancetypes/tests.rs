//! What is offered, from what was read.

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

#[test]
fn what_nodes_show_to_be_left_for_pods_holds_for_all_that_are_said_to_be_alike() {
    let same = ("karpenter.cluster.x-k8s.io/instance-type", "large");
    let (mut seen, unseen) = (blueprint(&deployment("m", &[same])), blueprint(&deployment("n", &[same])));
    assert_eq!(usable(&[seen.clone(), unseen.clone()]), "16284Mi", "nobody has seen a node");
    let shows = |memory: &str| -> karpenter_api::ResourceList {
        serde_json::from_value(json!({"cpu": "4", "memory": memory})).expect("resources")
    };
    seen.allocatable = Some(shows("15Gi"));
    assert_eq!(usable(&[seen.clone(), unseen.clone()]), "15Gi");
    assert_eq!(usable(&[unseen.clone(), seen.clone()]), "15Gi");
    let less = Blueprint { allocatable: Some(shows("14Gi")), ..unseen.clone() };
    assert_eq!(usable(&[seen.clone(), less]), "14Gi", "the least of what was seen");
    let more = Blueprint { allocatable: Some(shows("20Gi")), ..unseen };
    assert_eq!(usable(&[more]), "16Gi", "never more than is said to be there");
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
fn what_nobody_tells_of_nodes_is_what_a_node_shows_for_all_that_are_said_to_be_alike() {
    let same = ("karpenter.cluster.x-k8s.io/instance-type", "large");
    let list = |value: serde_json::Value| -> karpenter_api::ResourceList {
        serde_json::from_value(value).expect("resources")
    };
    let all = || {
        let some = json!({"cpu": "2", "memory": "1Gi", "pods": "250", "ephemeral-storage": "100Gi"});
        let mut all = list(some);
        all.extend(list(json!({"example.com/widget": "1", "example.com/none": "0", "hugepages-1Gi": "1Gi"})));
        all
    };
    let shows = |disk: &str| Learnt {
        capacity: all(),
        allocatable: list(json!({"cpu": "2", "pods": "58", "ephemeral-storage": disk})),
    };
    let set = set_of_m(&[]);
    let blueprint =
        |name: &str, learnt| blueprint_with(&deployment(name, &[same]), &set, learnt).expect("a blueprint");
    let told = |blueprints: &[Blueprint]| {
        let catalog = Catalog::of(blueprints, |_, _| None);
        assert_eq!(catalog.types.len(), 1, "all of one type");
        let mut capacity = conversion::resource_list(&catalog.types[0].capacity);
        assert!(!capacity.contains_key("example.com/none"), "of which there are none");
        assert!(!capacity.contains_key("hugepages-1Gi"), "memory is shown without them");
        ["cpu", "example.com/widget", "pods", "ephemeral-storage"]
            .map(|name| capacity.remove(name).map(|quantity| quantity.to_string()).unwrap_or_default())
    };
    assert_eq!(told(&[blueprint("m", None)]), ["4", "9", "110", ""], "nobody has seen a node");
    let (seen, unseen) = (blueprint("m", Some(shows("90Gi"))), blueprint("n", None));
    assert_eq!(told(&[seen.clone(), unseen.clone()]), ["4", "9", "58", "90Gi"], "what is told goes first");
    assert_eq!(told(&[unseen, seen.clone()]), ["4", "9", "58", "90Gi"]);
    let less = blueprint("o", Some(shows("80Gi")));
    assert_eq!(told(&[seen, less])[3], "80Gi", "the least that was seen");
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
fn a_reservation_is_known_by_its_resource_and_is_used_up() {
    let reserved = deployment(
        "m",
        &[
            ("karpenter.cluster.x-k8s.io/capacity-type", "reserved"),
            ("karpenter.cluster.x-k8s.io/reservation-capacity", "2"),
        ],
    );
    let blueprint = blueprint(&reserved);
    let catalog = Catalog::of(std::slice::from_ref(&blueprint), |_, _| None);
    let offering = &catalog.types[0].offerings[0];
    assert_eq!((offering.reservation_capacity, offering.available), (2, true));
    let key = crate::labels::RESERVATION_ID;
    assert!(offering.requirements.get(key).is_some_and(|id| id.has("m")));
    assert_eq!(catalog.entries[0].labels.get(key).map(String::as_str), Some("m"), "its node says so");
    let used = Blueprint { reservation: 0, ..blueprint };
    let catalog = Catalog::of(&[used], |_, _| None);
    assert!(!catalog.types[0].offerings[0].available);
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
fn equal_resources_of_one_name_are_one_type_and_different_ones_are_not() {
    let zone = |name: &str, zone: &str, cpu: &str| {
        let labels = format!("node.kubernetes.io/instance-type=large,topology.kubernetes.io/zone={zone}");
        deployment(name, &[(&format!("{CAPACITY}/labels"), &labels), (&format!("{CAPACITY}/cpu"), cpu)])
    };
    let blueprints = [
        blueprint(&zone("m1", "a", "4")),
        blueprint(&zone("m2", "b", "4")),
        blueprint(&zone("m3", "c", "8")),
    ];
    let catalog = Catalog::of(&blueprints, |_, _| None);
    let shape: Vec<(String, usize)> =
        catalog.types.iter().map(|t| (t.name.to_string(), t.offerings.len())).collect();
    assert_eq!(shape, [("large".to_owned(), 2), ("large-m3".to_owned(), 1)]);
    assert!(
        catalog.renamed[0].contains("MachineDeployment default/m3 is offered as large-m3"),
        "{:?}",
        catalog.renamed
    );
    let targets: Vec<&str> = catalog.entries.iter().map(|entry| &*entry.id.key.name).collect();
    assert_eq!(targets, ["m1", "m2", "m3"]);
}

/// What each resource is offered as.
fn offered(blueprints: &[Blueprint]) -> Vec<String> {
    let catalog = Catalog::of(blueprints, |_, _| None);
    let name = |blueprint: &Blueprint| {
        let entry = catalog.entry(&blueprint.id, None).expect("an offering");
        catalog.types[entry.instance_type].name.to_string()
    };
    blueprints.iter().map(name).collect()
}

/// A resource that was made in this second, with nodes that run under these names.
fn running(scalable: &Scalable, second: i64, carried: &[&str]) -> Blueprint {
    Blueprint {
        created: jiff::Timestamp::from_second(second).expect("a time"),
        carried: carried.iter().map(|name| (*name).to_owned()).collect(),
        ..blueprint(scalable)
    }
}

#[test]
fn a_newcomer_of_the_same_name_renames_nothing_that_runs() {
    let set = Scalable::read(
        ScalableKind::MachineSet,
        &object(deployment_json("a", &[(&format!("{CAPACITY}/cpu"), "8")])),
    )
    .expect("a MachineSet");
    let deployment_a = deployment("a", &[]);
    let both = [running(&deployment_a, 1, &["a"]), running(&set, 2, &[])];
    assert_eq!(offered(&both), ["a", "default.a"], "its nodes run as that");
    let both = [running(&deployment_a, 2, &[]), running(&set, 1, &["a"])];
    assert_eq!(offered(&both), ["default.a", "a"], "whatever its kind");
    let both = [running(&deployment_a, 2, &[]), running(&set, 1, &[])];
    assert_eq!(offered(&both), ["default.a", "a"], "nothing runs: the older one was there first");
    assert_eq!(offered(&both[..1]), ["a"]);
    let alone = [running(&set, 2, &["default.a"])];
    assert_eq!(offered(&alone), ["default.a"], "nor is it renamed back when the other is gone");

    let large = |name: &str, memory: &str| {
        let key = format!("{CAPACITY}/memory");
        deployment(name, &[("karpenter.cluster.x-k8s.io/instance-type", "large"), (&key, memory)])
    };
    let (a, b) = (large("a", "32Gi"), large("b", "16Gi"));
    let both = [running(&a, 2, &[]), running(&b, 1, &["large"])];
    assert_eq!(offered(&both), ["large-a", "large"], "it comes first by name, and is new");
    let catalog = Catalog::of(&both, |_, _| None);
    assert!(
        catalog.renamed.len() == 1
            && catalog.renamed[0].contains("MachineDeployment default/a is offered as large-a")
    );
    let both = [running(&a, 1, &[]), running(&b, 2, &["large"])];
    assert_eq!(offered(&both), ["large-a", "large"], "it is older, and nothing of it runs");
    let both = [running(&a, 1, &["large"]), running(&b, 2, &["large"])];
    assert_eq!(offered(&both), ["large", "large-b"], "two that differ are never one");
    let both = [running(&a, 1, &["large-a"]), running(&b, 2, &["large"])];
    assert_eq!(offered(&both), ["large-a", "large"], "each keeps what it has");
}

#[test]
fn where_several_names_are_taken_those_that_are_left_are_the_same_as_ever() {
    let memory = format!("{CAPACITY}/memory");
    let named = |resource: &str, name: &str, size: &str| {
        deployment(resource, &[("karpenter.cluster.x-k8s.io/instance-type", name), (&memory, size)])
    };
    let set = Scalable::read(ScalableKind::MachineSet, &object(deployment_json("a", &[(&memory, "8Gi")])))
        .expect("a MachineSet");
    let all = [
        running(&named("x", "default.a", "4Gi"), 1, &[]),
        running(&set, 2, &[]),
        running(&deployment("a", &[]), 3, &[]),
    ];
    assert_eq!(offered(&all), ["default.a", "a", "default.a-a"]);
    let last_resort = "large-a-machinedeployment";
    let all = [
        running(&named("x", last_resort, "4Gi"), 1, &[last_resort]),
        running(&named("y", "large", "8Gi"), 2, &["large"]),
        running(&named("z", "large-a", "12Gi"), 3, &["large-a"]),
        running(&named("a", "large", "32Gi"), 4, &[last_resort]),
    ];
    let last = offered(&all).pop();
    assert_eq!(last.as_deref(), Some(last_resort), "whichever of its names its nodes run under");
}

#[test]
fn the_cheapest_that_fits_is_chosen_whatever_other_labels_it_has() {
    let priced = |name: &str, cpu: &str, price: &str| {
        deployment(
            name,
            &[
                (&format!("{CAPACITY}/cpu"), cpu),
                ("karpenter.cluster.x-k8s.io/price", price),
                (&format!("{CAPACITY}/labels"), "node-role.kubernetes.io/worker=,disk=fast"),
            ],
        )
    };
    let blueprints: Vec<Blueprint> =
        [priced("a-dear", "8", "0.40"), priced("b-cheap", "4", "0.15"), priced("c-tiny", "1", "0.01")]
            .iter()
            .map(blueprint)
            .collect();
    let catalog = Catalog::of(&blueprints, |_, _| None);
    let names = |requirements, requests| -> Vec<String> {
        let claim = claim(requirements, requests);
        catalog.choices(&claim, false).map_or_else(
            |_| Vec::new(),
            |entries| entries.iter().map(|e| e.id.key.name.to_string()).collect(),
        )
    };
    assert_eq!(names(json!([]), json!({"cpu": "2"})), ["b-cheap", "a-dear"]);
    let exact = json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["a-dear"]}]);
    assert_eq!(names(exact, json!({"cpu": "2"})), ["a-dear"]);
    let disk = |value: &str| json!([{"key": "disk", "operator": "In", "values": [value]}]);
    assert_eq!(names(disk("fast"), json!({"cpu": "6"})), ["a-dear"]);
    assert!(names(disk("slow"), json!({"cpu": "6"})).is_empty());
    let zoned = json!([{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}]);
    assert!(names(zoned, json!({})).is_empty(), "where its nodes are is not known");
    let team = json!([{"key": "team", "operator": "In", "values": ["x"]}]);
    assert_eq!(names(team, json!({"cpu": "6"})), ["a-dear"], "the NodeClaim sets this label itself");
    let error = catalog.choices(&claim(json!([]), json!({"cpu": "100"})), false).expect_err("nothing");
    let NoOffer::Nothing(why) = &error else { panic!("{error}") };
    assert_eq!(why.len(), 3);
    assert!(why[0].contains("MachineDeployment default/a-dear: the requested resources do not fit"));
}

#[test]
fn what_is_left_at_launch_has_as_many_values_as_the_node_pool_wants() {
    let blueprints: Vec<Blueprint> =
        ["a", "b", "full"].iter().map(|name| blueprint(&deployment(name, &[]))).collect();
    let catalog = Catalog::of(&blueprints, |id, _| {
        (&*id.key.name == "full").then(|| "it has its greatest size".into())
    });
    let asks = |least: i64| {
        let types = json!({"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["a", "b", "full"], "minValues": least});
        claim(json!([types]), json!({"cpu": "2"}))
    };
    assert_eq!(catalog.choices(&asks(2), false).map(|choices| choices.len()), Ok(2));
    let mut three = asks(3);
    let error = catalog.choices(&three, false).expect_err("two are left");
    assert_eq!(error.to_string(), "minValues of node.kubernetes.io/instance-type is 3, and 2 can be had");
    assert_eq!(
        catalog.choices(&three, true).map(|choices| choices.len()),
        Ok(2),
        "whoever asked, by the settings"
    );
    let relaxed = ("karpenter.sh/nodeclaim-min-values-relaxed".to_owned(), "true".to_owned());
    three.metadata.annotations = Some([relaxed].into());
    assert_eq!(catalog.choices(&three, false).map(|choices| choices.len()), Ok(2), "the core did without");
}

#[test]
fn who_asks_for_a_zone_is_not_planned_onto_nodes_whose_zone_is_not_known() {
    let zone = |catalog: &Catalog| {
        let requirement = catalog.types[0].requirements.get(karpenter_api::labels::TOPOLOGY_ZONE);
        requirement.map(|requirement| requirement.operator())
    };
    let unknown = Catalog::of(&[blueprint(&deployment("m", &[]))], |_, _| None);
    assert_eq!(zone(&unknown), Some(Operator::DoesNotExist));
    let labels = format!("{CAPACITY}/labels");
    let known = deployment("m", &[(&labels, "topology.kubernetes.io/zone=a")]);
    assert_eq!(zone(&Catalog::of(&[blueprint(&known)], |_, _| None)), Some(Operator::In));
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
fn names_that_are_too_long_for_a_label_are_offered_in_short() {
    let long = "m".repeat(70);
    let (one, same) = (deployment(&long, &[]), deployment(&long, &[(&format!("{CAPACITY}/cpu"), "8")]));
    let catalog = Catalog::of(&[blueprint(&one), blueprint(&same)], |_, _| None);
    let names: Vec<&str> = catalog.types.iter().map(|found| &*found.name).collect();
    assert!(names.iter().all(|name| name.len() <= 63), "{names:?}");
    assert_eq!(names.len(), 2);
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
fn prices_and_capacity_are_found_by_the_name_that_is_shown_of_a_renamed_type() {
    let (name, memory) = ("karpenter.cluster.x-k8s.io/instance-type", format!("{CAPACITY}/memory"));
    let spec = spec(json!({
        "pricing": {"table": {"large": "1", "large-n": "2", "large-n/a": "9"}},
        "instanceTypes": [
            {"name": "large", "capacity": {"example.com/widget": "1"}},
            {"name": "large-n", "capacity": {"example.com/widget": "2"}},
        ],
    }));
    let of = |resource: &str, size: &str| {
        let scalable = deployment(resource, &[(name, "large"), (&memory, size)]);
        blueprint_of(&scalable, None, &spec).expect("a blueprint")
    };
    let catalog = Catalog::of(&[of("m", "16Gi"), of("n", "32Gi")], |_, _| None);
    let told: Vec<_> = catalog
        .entries
        .iter()
        .map(|entry| {
            let found = &catalog.types[entry.instance_type];
            let widgets = conversion::resource_list(&found.capacity)["example.com/widget"].to_string();
            (found.name.to_string(), entry.price.per_hour, widgets)
        })
        .collect();
    let expected = [("large", 1.0, "1"), ("large-n", 2.0, "2")];
    assert_eq!(told, expected.map(|(name, price, widgets)| (name.to_owned(), price, widgets.to_owned())));
}

#[test]
fn who_asks_for_a_well_known_label_that_nobody_states_is_neither_planned_nor_launched() {
    let stated = deployment("m", &[(&format!("{CAPACITY}/labels"), "topology.kubernetes.io/region=eu")]);
    let catalog = |scalable: &Scalable| Catalog::of(&[blueprint(scalable)], |_, _| None);
    let planned =
        |catalog: &Catalog, key: &str| catalog.types[0].requirements.get(key).is_none_or(|own| own.has("eu"));
    let launched = |catalog: &Catalog, key: &str| {
        let asks = claim(json!([{"key": key, "operator": "In", "values": ["eu"]}]), json!({"cpu": "1"}));
        catalog.choices(&asks, false).is_ok()
    };
    let silent = catalog(&deployment("m", &[]));
    let region = "topology.kubernetes.io/region";
    for key in [region, "node.kubernetes.io/windows-build", labels::INSTANCE_FAMILY, labels::CAPACITY_CPU] {
        assert!(
            !planned(&silent, key) && !launched(&silent, key),
            "{key}: planned, it would be refused for ever"
        );
    }
    let told = catalog(&stated);
    assert!(planned(&told, region) && launched(&told, region));
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
