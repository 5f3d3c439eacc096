//! That each rule can fail, and does not where it should hold.

use serde_json::json;

use super::*;
use crate::cluster_api::steps::{Trial, claimed_for};
use crate::objects::Edit;
use crate::tape::Entry;

const PAUSED: &str = "cluster.x-k8s.io/paused";

fn read<K: serde::de::DeserializeOwned>(object: serde_json::Value) -> Arc<K> {
    Arc::new(serde_json::from_value(object).unwrap())
}

/// A NodeClaim on its way out, its Machine, and a pod on its Node with this wish not to be disrupted.
fn draining(wish: &str) -> Objects {
    let mut objects = Objects::default();
    let claim = json!({
        "metadata": {"name": "n", "uid": "n-uid", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}, "requirements": []},
        "status": {"nodeName": "node", "providerID": "sim://m"},
    });
    objects.node_claims.insert(ObjectKey::cluster("n"), read(claim));
    let machine = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {"name": "m", "namespace": "fleet", "annotations": {CLAIM: "n-uid"}},
    });
    objects.machines.insert(ObjectKey::namespaced("fleet", "m"), read(machine));
    let pod = json!({
        "metadata": {"name": "p", "namespace": "default", "annotations": {DO_NOT_DISRUPT: wish}},
        "spec": {"nodeName": "node", "containers": []}, "status": {"phase": "Running"},
    });
    objects.pods.insert(ObjectKey::namespaced("default", "p"), read(pod));
    objects
}

#[test]
fn a_machine_may_stay_for_as_long_as_a_pod_on_it_refuses_to_be_moved() {
    assert!(wants_its_machine(&draining("true"), "n-uid"));
}

#[test]
fn a_node_claim_deleted_before_it_said_that_its_node_registered_is_held_up_by_a_pod_like_any_other() {
    let unsaid = |wish: &str| {
        let mut objects = draining(wish);
        let key = ObjectKey::cluster("n");
        let mut claim = objects.node_claims.get(&key).map(|claim| (**claim).clone()).expect("a NodeClaim");
        claim.status.get_or_insert_default().node_name = None;
        objects.node_claims.insert(key, claim.into());
        let node = json!({"metadata": {"name": "node"}, "spec": {"providerID": "sim://m"}});
        objects.nodes.insert(ObjectKey::cluster("node"), read(node));
        objects
    };
    let settled = |objects: &Objects| objects.node_claims.values().all(|claim| is_settled(objects, claim));
    assert!(wants_its_machine(&unsaid("true"), "n-uid"));
    assert!(settled(&unsaid("true")));
    assert!(!wants_its_machine(&unsaid("false"), "n-uid"), "nothing holds it up");
    assert!(!settled(&unsaid("false")));
}

#[test]
fn a_machine_may_stay_for_as_long_as_a_budget_allows_no_eviction() {
    let mut objects = draining("false");
    let budget = |allowed: i32| {
        json!({
            "metadata": {"name": "b", "namespace": "default"}, "spec": {"selector": {}},
            "status": {
                "disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1,
            },
        })
    };
    let key = ObjectKey::namespaced("default", "b");
    objects.disruption_budgets.insert(key.clone(), read(budget(0)));
    assert!(wants_its_machine(&objects, "n-uid"));
    objects.disruption_budgets.insert(key, read(budget(1)));
    assert!(!wants_its_machine(&objects, "n-uid"));
}

#[test]
fn a_machine_whose_node_claim_is_on_its_way_out_must_go_when_nothing_holds_it_up() {
    assert!(!wants_its_machine(&draining("false"), "n-uid"));
    let mut drained = draining("true");
    drained.pods.clear();
    assert!(!wants_its_machine(&drained, "n-uid"));
    assert!(!wants_its_machine(&draining("true"), "another"));
}

/// A MachineDeployment with this level, a claimed Machine and one of nobody's, in these MachineSets.
fn with_one_too_many(replicas: i64, sets: [&str; 2]) -> Objects {
    let mut objects = Objects::default();
    let epoch = json!({EPOCH: "2026-01-01T00:00:00Z"});
    let deployment = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
        "metadata": {"name": "d", "namespace": "fleet", "annotations": epoch}, "spec": {"replicas": replicas},
    });
    objects.machine_deployments.insert(ObjectKey::namespaced("fleet", "d"), read(deployment));
    let claim = json!({
        "metadata": {"name": "n", "uid": "n-uid"},
        "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}, "requirements": []},
        "status": {"providerID": "sim://m", "conditions": [{
            "type": REGISTERED, "status": "True", "reason": REGISTERED, "message": "",
            "lastTransitionTime": "2026-01-02T00:00:00Z",
        }]},
    });
    objects.node_claims.insert(ObjectKey::cluster("n"), read(claim));
    for (name, set, claim) in [("m", sets[0], json!({CLAIM: "n-uid"})), ("more", sets[1], json!({}))] {
        let machine = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {
                "name": name, "namespace": "fleet", "annotations": claim, "creationTimestamp": "2026-01-02T00:00:00Z",
                "labels": {"cluster.x-k8s.io/deployment-name": "d", SET_NAME: set},
            },
        });
        objects.machines.insert(ObjectKey::namespaced("fleet", name), read(machine));
    }
    objects
}

fn judged(objects: &Objects, raised_ago: Option<i64>) -> bool {
    let now: Timestamp = "2026-01-02T01:00:00Z".parse().unwrap();
    let mut rule = LevelsWithinBounds::new("karpenter");
    if let Some(ago) = raised_ago {
        let at = now - jiff::SignedDuration::from_secs(ago);
        rule.raised.insert(ObjectKey::namespaced("fleet", "d"), at);
    }
    let inventory = crate::inventory::Inventory::default();
    let healed_for = std::time::Duration::from_secs(600);
    rule.check_at_rest(&Rest { objects, inventory: &inventory, now, healed_for }).is_ok()
}

#[test]
fn at_rest_there_is_one_too_many_only_while_a_rollout_is_stuck_or_a_launch_has_just_failed() {
    assert!(!judged(&with_one_too_many(1, ["a", "a"]), None), "nobody wants it");
    assert!(judged(&with_one_too_many(1, ["a", "b"]), None), "its rollout has no room for it");
    assert!(!judged(&with_one_too_many(2, ["a", "b"]), None), "nobody wants the level");
    assert!(judged(&with_one_too_many(2, ["a", "b"]), Some(100)));
    assert!(!judged(&with_one_too_many(2, ["a", "b"]), Some(400)));
    assert!(!judged(&with_one_too_many(0, ["a", "b"]), Some(100)), "too few are always wrong");
    assert!(!judged(&with_one_too_many(2, ["a", "a"]), Some(100)), "without a rollout it falls at once");
}

#[test]
fn at_rest_the_level_need_not_keep_what_a_rollout_of_foreign_machines_has_besides_it() {
    let with_a_foreign_one = |sets: [&str; 2]| {
        let mut objects = with_one_too_many(1, sets);
        let key = ObjectKey::namespaced("fleet", "more");
        let mut machine = DynamicObject::clone(&objects.machines[&key]);
        let before: Timestamp = "2025-01-01T00:00:00Z".parse().unwrap();
        machine.metadata.creation_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(before));
        objects.machines.insert(key, Arc::new(machine));
        objects
    };
    assert!(judged(&with_a_foreign_one(["a", "b"]), None), "there are two, one of them by the surge");
    assert!(!judged(&with_a_foreign_one(["a", "a"]), None), "one of them is about to go");
}

#[test]
fn at_rest_an_on_delete_deployment_may_keep_what_only_a_machine_in_use_could_be_given_up_for() {
    let case = |strategy: &str, sets: [&str; 2]| {
        let mut objects = with_one_too_many(2, sets);
        let key = ObjectKey::namespaced("fleet", "d");
        let mut deployment = DynamicObject::clone(&objects.machine_deployments[&key]);
        deployment.data["spec"]["rollout"] = json!({"strategy": {"type": strategy}});
        let revision = |of: &str| std::collections::BTreeMap::from([(REVISION.to_owned(), of.to_owned())]);
        deployment.metadata.annotations.get_or_insert_default().extend(revision("2"));
        objects.machine_deployments.insert(key, Arc::new(deployment));
        for (name, number) in [("a", "1"), ("b", "2")] {
            let mut set = DynamicObject::clone(&objects.machines[&ObjectKey::namespaced("fleet", "m")]);
            set.metadata.annotations = Some(revision(number));
            objects.machine_sets.insert(ObjectKey::namespaced("fleet", name), Arc::new(set));
        }
        judged(&objects, None)
    };
    assert!(case("OnDelete", ["a", "b"]), "a lower level takes the old one, which is claimed");
    assert!(!case("OnDelete", ["b", "a"]), "the old one is nobody's, and can go");
    assert!(!case("OnDelete", ["b", "b"]), "there is no old one");
    assert!(!case("RollingUpdate", ["a", "b"]), "the old one goes anyway");
}

#[test]
fn at_rest_there_are_as_many_machines_as_the_owners_least_size_asks_for() {
    let case = |least: &str| {
        let mut objects = with_one_too_many(2, ["a", "a"]);
        let deployment = objects.machine_deployments.values_mut().next().expect("a MachineDeployment");
        let annotations = Arc::make_mut(deployment).metadata.annotations.get_or_insert_default();
        annotations.insert(MIN_SIZE.to_owned(), least.to_owned());
        judged(&objects, None)
    };
    assert!(!case("1"), "nobody wants the second one");
    assert!(case("2"));
    assert!(!case("3"), "one is missing");
}

#[derive(Clone, Copy)]
enum Held {
    Cluster,
    Deployment,
    Topology,
}

/// Whether the provider may set these replicas after those, which something has been holding for so many seconds.
fn may_scale(replicas: [i64; 2], annotations: serde_json::Value, held: Option<(Held, i64)>) -> bool {
    let deployment = |replicas: i64| -> Arc<DynamicObject> {
        read(json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
            "metadata": {
                "name": "d", "namespace": "fleet", "uid": "d-uid", "annotations": annotations,
                "labels": {topology::OWNED: "", topology::DEPLOYMENT: "d"},
            },
            "spec": {"clusterName": "c", "replicas": replicas},
        }))
    };
    let sets_replicas = matches!(held, Some((Held::Topology, _)));
    let cluster = |paused: bool| -> Arc<DynamicObject> {
        let annotations = if paused { json!({PAUSED: ""}) } else { json!({}) };
        let said = if sets_replicas { json!({"name": "d", "replicas": 1}) } else { json!({"name": "d"}) };
        read(json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "spec": {"topology": {"workers": {"machineDeployments": [said]}}},
            "metadata": {"name": "c", "namespace": "fleet", "uid": "c-uid", "annotations": annotations},
        }))
    };
    let mut objects = Objects::default();
    let (key, owner) = (ObjectKey::namespaced("fleet", "d"), ObjectKey::namespaced("fleet", "c"));
    objects.machine_deployments.insert(key.clone(), deployment(replicas[1]));
    objects.capi_clusters.insert(owner.clone(), cluster(false));
    let mut rule = LevelsWithinBounds::new("karpenter");
    let inventory = crate::inventory::Inventory::default();
    let mut step = |actor: &str, second: i64, change: Change| {
        let now = Timestamp::from_second(second).expect("a time");
        let entry = Entry {
            sequence: 0,
            at: std::time::Duration::ZERO,
            actor: actor.into(),
            deed: String::new(),
            outcome: String::new(),
            revision: 0,
        };
        let (entry, changes, objects) = (&entry, &[Arc::new(change)], &objects);
        let inventory = &inventory;
        rule.check(&Step { entry, body: &[], asked: None, changes, raw: &[], objects, inventory, now })
    };
    if let Some((what, ago)) = held {
        let change = match what {
            Held::Cluster => Change::CapiCluster(Edit { key: owner, old: None, new: Some(cluster(true)) }),
            Held::Topology => Change::CapiCluster(Edit { key: owner, old: None, new: Some(cluster(false)) }),
            Held::Deployment => {
                let mut held = DynamicObject::clone(&deployment(replicas[0]));
                held.metadata.annotations = Some(BTreeMap::from([(PAUSED.to_owned(), String::new())]));
                Change::MachineDeployment(Edit { key: key.clone(), old: None, new: Some(held.into()) })
            }
        };
        step("user", 1000 - ago, change).expect("people may");
    }
    let edit = Edit { key, old: Some(deployment(replicas[0])), new: Some(deployment(replicas[1])) };
    step("karpenter-1", 1000, Change::MachineDeployment(edit)).is_ok()
}

#[test]
fn a_level_is_set_within_the_owners_bounds_unless_it_comes_nearer_to_them() {
    let (min, max) = (json!({MIN_SIZE: "2"}), json!({MAX_SIZE: "2"}));
    assert!(may_scale([3, 2], min.clone(), None));
    assert!(!may_scale([2, 1], min.clone(), None));
    assert!(may_scale([0, 1], min, None));
    assert!(may_scale([1, 2], max.clone(), None));
    assert!(!may_scale([2, 3], max.clone(), None));
    assert!(may_scale([4, 3], max, None));
}

#[test]
fn replicas_that_a_topology_sets_are_nobody_elses() {
    let may = |ago| may_scale([1, 2], json!({}), Some((Held::Topology, ago)));
    assert!(may(20), "a write may be on its way");
    assert!(!may(40));
    assert!(may_scale([1, 1], json!({}), Some((Held::Topology, 40))), "its annotations are another matter");
}

#[test]
fn nothing_is_written_to_what_has_been_paused_for_a_while_nor_to_what_belongs_to_it() {
    let may = |paused| may_scale([1, 2], json!({PAUSED: ""}), Some(paused));
    assert!(may((Held::Cluster, 20)) && may((Held::Deployment, 20)), "a write may be on its way");
    assert!(!may((Held::Cluster, 40)));
    assert!(!may((Held::Deployment, 40)));
}

#[test]
fn no_clone_is_made_or_deleted_in_a_cluster_that_has_been_paused_for_a_while() {
    let trial = |pause: Option<i64>| {
        let mut trial = Trial::of(LevelsWithinBounds::new("karpenter"));
        trial.cluster(false).expect("it may be made");
        trial.part("karpenter", "before", true).expect("nothing is paused");
        if let Some(ago) = pause {
            trial.cluster(true).expect("people may");
            trial.pass(ago);
        }
        trial
    };
    for pause in [None, Some(20)] {
        trial(pause).part("karpenter", "n", true).expect("a write may be on its way");
        trial(pause).part("karpenter", "before", false).expect("a write may be on its way");
    }
    let told = trial(Some(40)).part("karpenter", "n", true).expect_err("it is paused");
    assert_eq!(told, "the clone fleet/n was made while c is paused");
    let told = trial(Some(40)).part("karpenter", "before", false).expect_err("it is paused");
    assert_eq!(told, "the clone fleet/before was deleted while c is paused");
    trial(Some(40)).part("garbage-collector", "before", false).expect("others may");
}

#[test]
fn at_rest_a_machine_set_of_no_deployment_has_as_many_machines_as_are_wanted() {
    let now: Timestamp = "2026-01-02T01:00:00Z".parse().unwrap();
    let judged = |objects: &Objects| {
        let mut rule = LevelsWithinBounds::new("karpenter");
        let inventory = crate::inventory::Inventory::default();
        let healed_for = std::time::Duration::from_secs(600);
        rule.check_at_rest(&Rest { objects, inventory: &inventory, now, healed_for }).is_ok()
    };
    let mut objects = with_one_too_many(2, ["d", "d"]);
    objects.machine_sets = std::mem::take(&mut objects.machine_deployments);
    for machine in objects.machines.values_mut() {
        let labels = Arc::make_mut(machine).metadata.labels.as_mut().unwrap();
        labels.remove(DEPLOYMENT_NAME);
    }
    assert!(!judged(&objects), "nobody wants the second one");
    objects.machines.remove(&ObjectKey::namespaced("fleet", "more"));
    let set = objects.machine_sets.values_mut().next().unwrap();
    Arc::make_mut(set).data["spec"]["replicas"] = 1.into();
    assert!(judged(&objects));
}

#[test]
fn at_rest_nothing_is_asked_of_what_was_moved_since_karpenter_scaled_it() {
    let case = |created: &str| {
        let mut objects = with_one_too_many(2, ["a", "a"]);
        let deployment = objects.machine_deployments.values_mut().next().expect("a MachineDeployment");
        let time = serde_json::from_value(json!(created)).expect("a time");
        Arc::make_mut(deployment).metadata.creation_timestamp = Some(time);
        judged(&objects, None)
    };
    assert!(!case("2025-12-31T00:00:00Z"), "nobody wants the second one");
    assert!(case("2026-01-01T12:00:00Z"), "somebody may");
}

#[test]
fn a_machine_is_claimed_anew_only_for_a_node_claim_that_was_restored() {
    let claim = |name: &str, uid: &str| json!({"karpenter.cluster.x-k8s.io/nodeclaim": name, CLAIM: uid});
    let trial = || {
        let mut trial = Trial::of(OneMachinePerClaim);
        trial.claim("karpenter", "a", json!({}), json!({})).expect("it may be made");
        trial.machine("karpenter", "m", claim("a", "a-uid")).expect("it may be claimed");
        trial
    };
    assert!(trial().machine("karpenter", "m", claim("a", "another")).is_err(), "it is in use");
    let mut gone = trial();
    gone.let_go("user", "a").expect("it may go");
    assert!(gone.machine("karpenter", "m", claim("b", "b-uid")).is_err(), "that is somebody else");
    let mut gone = trial();
    gone.let_go("user", "a").expect("it may go");
    gone.machine("karpenter", "m", claim("a", "another")).expect("it is back");
}

#[test]
fn a_provider_marks_and_deletes_only_what_is_its_own_and_no_longer_in_use() {
    let trial = || {
        let mut trial = Trial::of(ClaimedMachinesLive::new("karpenter"));
        trial.deployment("user", 1, json!({})).expect("people may");
        trial.machine("machineset-controller", "theirs", json!({})).expect("Cluster API may");
        trial.deployment("karpenter", 3, json!({EPOCH: "2020-01-01T00:00:00Z"})).expect("it takes part");
        trial.machine("machineset-controller", "spare", json!({})).expect("Cluster API may");
        trial.claim("karpenter", "a", json!({}), json!({})).expect("it may be made");
        trial.machine("karpenter", "used", claimed_for("a")).expect("it may be claimed");
        trial
    };
    let surplus = json!({MARK: "karpenter-surplus"});
    trial().machine("karpenter", "spare", surplus.clone()).expect("nobody wants it");
    trial().delete_machine("karpenter", "spare").expect("nobody wants it");
    // Whatever the annotation says, which a provider wrote itself.
    let told = trial().machine("karpenter", "theirs", surplus).expect_err("it is not Karpenter's");
    assert_eq!(told, "Machine theirs was marked, which was there before Karpenter");
    assert!(trial().delete_machine("karpenter", "theirs").is_err());
    let marked = json!({CLAIM: "a-uid", MARK: "a-uid"});
    let told = trial().machine("karpenter", "used", marked.clone()).expect_err("it is in use");
    assert_eq!(told, "Machine used was marked, and its NodeClaim a-uid lives");
    assert!(trial().delete_machine("karpenter", "used").is_err());
    let mut over = trial();
    over.let_go("karpenter", "a").expect("it may go");
    over.machine("karpenter", "used", marked).expect("its NodeClaim is gone");
}

#[test]
fn at_rest_no_node_claim_waits_for_its_node() {
    let mut objects = with_one_too_many(1, ["a", "b"]);
    let claim = objects.node_claims.values_mut().next().unwrap();
    Arc::make_mut(claim).status.as_mut().unwrap().conditions = None;
    let now: Timestamp = "2026-01-02T01:00:00Z".parse().unwrap();
    let inventory = crate::inventory::Inventory::default();
    let healed_for = std::time::Duration::from_secs(600);
    let rest = Rest { objects: &objects, inventory: &inventory, now, healed_for };
    let told = LevelsWithinBounds::new("karpenter").check_at_rest(&rest).unwrap_err();
    assert_eq!(told, "NodeClaim n still waits");
}
