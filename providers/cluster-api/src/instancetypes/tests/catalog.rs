//! Which types and offerings resources come to, under which names, and which of them a NodeClaim gets.

use super::*;

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
fn names_that_are_too_long_for_a_label_are_offered_in_short() {
    let long = "m".repeat(70);
    let (one, same) = (deployment(&long, &[]), deployment(&long, &[(&format!("{CAPACITY}/cpu"), "8")]));
    let catalog = Catalog::of(&[blueprint(&one), blueprint(&same)], |_, _| None);
    let names: Vec<&str> = catalog.types.iter().map(|found| &*found.name).collect();
    assert!(names.iter().all(|name| name.len() <= 63), "{names:?}");
    assert_eq!(names.len(), 2);
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
