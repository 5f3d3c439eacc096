//! Reading Cluster API's objects in both versions.

use karpenter_runtime::object_key::ObjectKey;
use kube::api::DynamicObject;
use serde_json::json;

use super::cluster::Cluster;
use super::fields::parse_key;
use super::hub::{Hub, HubError, guarded, raising};
use super::machine::Machine;
use super::scalable::{Scalable, ScalableKey, ScalableKind};
use super::scope::Ours;
use crate::fixtures::{self, deployment, object};
use crate::names;

fn machine(value: serde_json::Value) -> Machine {
    Machine::read(&object(value)).expect("a Machine")
}

#[test]
fn a_machine_reads_the_same_in_both_versions() {
    let old: DynamicObject = object(json!({
        "apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine",
        "metadata": {"name": "m", "namespace": "ns", "uid": "u"},
        "spec": {
            "clusterName": "c", "providerID": "fake://1", "failureDomain": "a", "version": "v1.36.0",
            "infrastructureRef": {"apiVersion": "infra.x/v1beta1", "kind": "FakeMachine", "name": "m", "namespace": "ns"},
            "bootstrap": {"configRef": {"apiVersion": "boot.x/v1", "kind": "FakeConfig", "name": "m"}},
        },
        "status": {
            "nodeRef": {"apiVersion": "v1", "kind": "Node", "name": "n"}, "phase": "Running",
            "conditions": [{"type": "InfrastructureReady", "status": "True"}],
            "v1beta2": {"conditions": [{"type": "UpToDate", "status": "False", "reason": "NotUpToDate"}]},
        },
    }));
    let new: DynamicObject = object(json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {"name": "m", "namespace": "ns", "uid": "u"},
        "spec": {
            "clusterName": "c", "providerID": "fake://1", "failureDomain": "a", "version": "v1.36.0",
            "infrastructureRef": {"apiGroup": "infra.x", "kind": "FakeMachine", "name": "m"},
            "bootstrap": {"configRef": {"apiGroup": "boot.x", "kind": "FakeConfig", "name": "m"}},
        },
        "status": {
            "nodeRef": {"name": "n"}, "phase": "Running",
            "conditions": [{"type": "UpToDate", "status": "False", "reason": "NotUpToDate"}],
        },
    }));
    let (mut old, new) = (Machine::read(&old).expect("old"), Machine::read(&new).expect("new"));
    // Only the old shape names a version; the group is what counts.
    old.infrastructure.as_mut().expect("a reference").version.clear();
    assert_eq!(old, new);
}

#[test]
fn a_scalable_resource_reads_the_same_in_both_versions() {
    let read = |spec: serde_json::Value| {
        let value = json!({"metadata": {"name": "m", "namespace": "ns"}, "spec": spec});
        Scalable::read(ScalableKind::MachineDeployment, &object(value)).expect("a MachineDeployment")
    };
    let old = read(json!({"replicas": 3, "strategy": {"type": "OnDelete"}, "paused": true, "template": {}}));
    let new = read(
        json!({"replicas": 3, "rollout": {"strategy": {"type": "OnDelete"}}, "paused": true, "template": {}}),
    );
    assert_eq!(old, new);
    assert!(old.on_delete && old.rollout_paused && old.replicas == 3);
}

#[test]
fn failure_domains_are_a_map_or_a_list() {
    let read = |domains: serde_json::Value| {
        let value = json!({"metadata": {"name": "c"}, "status": {"failureDomains": domains}});
        Cluster::read(&object(value)).expect("a Cluster").failure_domains
    };
    assert_eq!(read(json!({"b": {}, "a": {"controlPlane": true}})), ["a", "b"]);
    assert_eq!(read(json!([{"name": "b"}, {"name": "a"}])), ["a", "b"]);
    assert!(read(json!(null)).is_empty());
}

#[test]
fn a_field_of_the_wrong_type_is_named() {
    let value = json!({"metadata": {"name": "m", "namespace": "ns"}, "spec": {"providerID": 7}});
    let error = Machine::read(&object(value)).expect_err("a number").to_string();
    assert_eq!(error, "Machine ns/m: spec.providerID: is not a text");
    let value = json!({"metadata": {"name": "m", "namespace": "ns"}, "spec": {"replicas": "many"}});
    let error = Scalable::read(ScalableKind::MachineSet, &object(value)).expect_err("a text").to_string();
    assert_eq!(error, "MachineSet ns/m: spec.replicas: is not a whole number");
}

#[test]
fn a_machine_that_will_never_be_says_so() {
    let failed = |status: serde_json::Value| {
        machine(json!({"metadata": {"name": "m"}, "spec": {}, "status": status}))
            .failure
            .map(|f| (f.reason, f.message))
    };
    let expected = Some(("InsufficientResources".to_owned(), "no host".to_owned()));
    let old = json!({"failureReason": "InsufficientResources", "failureMessage": "no host"});
    assert_eq!(failed(old.clone()), expected);
    assert_eq!(failed(json!({"deprecated": {"v1beta1": old}})), expected);
    let condition = |reason: &str| json!({"conditions": [{"type": "InfrastructureReady", "status": "False", "reason": reason, "message": "no host"}]});
    assert_eq!(failed(condition("InsufficientResources")), expected);
    assert_eq!(failed(condition("Provisioning")), None, "still on its way");
}

#[test]
fn sizes_are_bounds_or_a_named_error() {
    let with = |min: &str, max: &str| {
        let prefix = "cluster.x-k8s.io/cluster-api-autoscaler-node-group";
        deployment("m", &[(&format!("{prefix}-min-size"), min), (&format!("{prefix}-max-size"), max)])
            .bounds()
    };
    assert_eq!(deployment("m", &[]).bounds(), Ok((0, None)));
    assert_eq!(with("1", "10"), Ok((1, Some(10))));
    for (min, max) in [("1", "ten"), ("-1", "3"), ("5", "3")] {
        let error = with(min, max).expect_err("refused").to_string();
        assert!(
            error.starts_with("MachineDeployment default/m: cluster.x-k8s.io/cluster-api-autoscaler"),
            "{error}"
        );
    }
}

#[test]
fn references_in_annotations_are_read_strictly() {
    assert_eq!(parse_key("ns/name"), Some(ObjectKey::namespaced("ns", "name")));
    for bad in ["name", "/name", "ns/", "a/b/c", " / "] {
        assert_eq!(parse_key(bad), None, "{bad}");
    }
    for kind in [ScalableKind::MachineDeployment, ScalableKind::MachineSet] {
        let id = ScalableKey { kind, key: ObjectKey::namespaced("ns", "m") };
        assert_eq!(ScalableKey::from_annotation(&id.to_annotation()), Some(id));
    }
}

#[test]
fn a_claim_fits_only_a_machine_that_nobody_claimed_or_marked_meanwhile() {
    let claim = json!({
        "annotations": {names::NODECLAIM: "n", names::NODECLAIM_UID: "u"}, "labels": {names::MEMBER: ""},
    });
    for annotations in [&[][..], &[("example.com/note", "kept")][..]] {
        let seen = fixtures::machine("m", 0, annotations);
        let patch = guarded(&seen, &claim).expect("a patch");
        let mut metadata =
            json!({"uid": "uid-m", "labels": seen.labels.clone(), "resourceVersion": "another"});
        if !annotations.is_empty() {
            metadata["annotations"] = json!(seen.annotations);
        }
        // As the API server does it, what is not there is null.
        let fits = |metadata: &serde_json::Value| {
            let mut object = json!({"metadata": metadata});
            let absent = |path: &str| object.pointer(path).is_none_or(serde_json::Value::is_null);
            let operations = patch.0.iter().filter(|operation| {
                let text = serde_json::to_value(operation).expect("JSON");
                !(text["op"] == "test"
                    && text["value"].is_null()
                    && absent(text["path"].as_str().unwrap_or_default()))
            });
            let operations: Vec<_> = operations.cloned().collect();
            json_patch::patch(&mut object, &operations).is_ok().then_some(object)
        };
        let claimed = fits(&metadata).expect("it fits");
        assert_eq!(claimed["metadata"]["annotations"][names::NODECLAIM_UID], "u");
        assert_eq!(claimed["metadata"]["labels"][names::MEMBER], "");
        for (key, value) in annotations {
            assert_eq!(claimed["metadata"]["annotations"][*key], *value);
        }
        for (key, value) in [("uid", json!("later")), ("deletionTimestamp", json!("2026-01-01T00:00:00Z"))] {
            let mut other = metadata.clone();
            other[key] = value;
            assert_eq!(fits(&other), None, "{key}");
        }
        for key in [names::NODECLAIM_UID, names::DELETE_MACHINE] {
            let mut other = metadata.clone();
            other["annotations"][key] = "theirs".into();
            assert_eq!(fits(&other), None, "{key}");
        }
    }
}

#[test]
fn what_is_taken_off_a_machine_is_what_was_seen_there() {
    let seen = fixtures::machine("m", 0, &[(names::OWN_HOOK, ""), ("example.com/note", "kept")]);
    let marked = json!({"annotations": {names::DELETE_MACHINE: "u", names::OWN_HOOK: null, "absent": null}});
    let patch = guarded(&seen, &marked).expect("a patch");
    let operations: Vec<_> =
        patch.0.iter().map(|operation| serde_json::to_value(operation).expect("JSON")).collect();
    let path = format!("/metadata/annotations/{}", names::OWN_HOOK.replace('/', "~1"));
    assert!(operations.contains(&json!({"op": "test", "path": path, "value": ""})), "{operations:?}");
    assert!(operations.contains(&json!({"op": "remove", "path": path})), "{operations:?}");
    assert!(!operations.iter().any(|operation| operation["path"] == "/metadata/annotations/absent"));
    assert!(guarded(&Machine { deleting: true, ..seen }, &marked).is_none(), "then its version decides");
}

#[test]
fn a_level_rises_only_from_what_was_read_whatever_else_has_changed() {
    let mut value = crate::fixtures::deployment_json("m", &[]);
    value["spec"]["replicas"] = 3.into();
    let seen = crate::fixtures::read_deployment(value);
    let scale = |replicas: i32, uid: &str| json!({"metadata": {"name": "m", "uid": uid, "resourceVersion": "9"}, "spec": {"replicas": replicas}});
    let raised = |mut scale: serde_json::Value| {
        let patch = raising(&seen, 5).expect("a patch");
        json_patch::patch(&mut scale, &patch).is_ok().then(|| scale["spec"]["replicas"].clone())
    };
    assert_eq!(raised(scale(3, &seen.uid)), Some(json!(5)));
    assert_eq!(raised(scale(4, &seen.uid)), None, "somebody else was first");
    assert_eq!(raised(scale(3, "another")), None, "one of the same name made since");
    assert!(raising(&seen, 2).is_none(), "lowering is bound to the version");
}

/// A management cluster that answers every request for an object with this.
fn hub_that_answers(code: u16, message: &'static str) -> Hub {
    use kube::client::Body;

    let answer = move |request: http::Request<Body>| {
        let version = json!({"groupVersion": "cluster.x-k8s.io/v1beta2", "version": "v1beta2"});
        let (code, body) = match request.uri().path() {
            "/apis" => (
                200,
                json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [
                    {"name": "cluster.x-k8s.io", "versions": [version]},
                ]}),
            ),
            "/api" => (200, json!({"kind": "APIVersions", "versions": ["v1"]})),
            _ => (
                code,
                json!({
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
                    "message": message, "reason": "No",
                }),
            ),
        };
        let answer = http::Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
        std::future::ready(answer)
    };
    let settings = super::settings::Settings {
        cluster_name: Some("c".to_owned()),
        cluster_namespace: Some("fleet".to_owned()),
        ..super::settings::Settings::default()
    };
    let client = kube::Client::new(tower::service_fn(answer), "default");
    Hub::new(client, Ours::new(&settings))
}

#[tokio::test]
async fn what_a_webhook_denies_with_422_is_refused_and_told() {
    let machine = fixtures::machine("m", 0, &[]);
    let claimed = async |message: &'static str| {
        let metadata = json!({"annotations": {names::NODECLAIM: "n"}});
        let error = hub_that_answers(422, message).annotate_machine(&machine, metadata).await;
        error.expect_err("a refusal")
    };
    let unfit = claimed("the server rejected our request due to an error in our request").await;
    assert!(unfit.is_conflict(), "the patch did not fit: {unfit}");
    let denial = "admission webhook \"names.example.com\" denied the request: no such team";
    let denied = claimed(denial).await;
    assert!(matches!(denied, HubError::Refused { .. }) && denied.to_string().ends_with(denial), "{denied}");
}

#[tokio::test]
async fn an_expired_token_is_no_refusal() {
    let answered = |code: u16| async move {
        let hub = hub_that_answers(code, "no");
        let error = hub.cluster().await.expect_err("no Cluster");
        (matches!(error, HubError::Refused { .. }), hub.is_out_of_reach(), hub.trouble())
    };
    assert_eq!(answered(403).await, (true, false, Some("no".to_owned())));
    assert_eq!(answered(401).await, (false, true, Some("no".to_owned())), "what there is is not known");
}

#[tokio::test]
async fn who_answers_that_it_cannot_is_in_reach_and_who_answers_in_its_place_is_not() {
    for (code, is_out_of_reach) in [(500, false), (429, false), (502, true), (503, true), (504, true)] {
        let hub = hub_that_answers(code, "no");
        let error = hub.cluster().await.expect_err("no Cluster");
        assert!(matches!(error, HubError::Unavailable { .. }), "{code}: {error}");
        assert_eq!(hub.is_out_of_reach(), is_out_of_reach, "{code}");
        assert!(hub.trouble().is_some() && hub.silent_for().is_none(), "{code} is no answer either way");
    }
}

#[test]
fn hooks_of_others_are_not_ours() {
    let ours = "pre-drain.delete.hook.machine.cluster.x-k8s.io/karpenter";
    let theirs = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/backup";
    let machine =
        machine(json!({"metadata": {"name": "m", "annotations": {ours: "", theirs: "x", "a": "b"}}}));
    assert!(machine.waits_for_us());
    assert_eq!(machine.hooks(), [theirs]);
}
