//! What reviews are answered.

use super::*;

fn class(spec: Value) -> Value {
    json!({"apiVersion": "karpenter.k8s.cloudstack/v1", "kind": "CloudStackNodeClass", "metadata": {"name": "default"}, "spec": spec})
}

fn plain() -> Value {
    json!({
        "zone": "zone-1",
        "networkSelectorTerms": [{"name": "net"}],
        "serviceOfferingSelectorTerms": [{"name": "small"}],
        "templateSelectorTerms": [{"name": "image"}],
    })
}

fn with(field: &str, value: Value) -> Value {
    let mut spec = plain();
    spec[field] = value;
    class(spec)
}

fn review(operation: &str, object: &Value, before: &Value) -> Review {
    let body = json!({"apiVersion": VERSION, "kind": KIND, "request": {
        "uid": "u-1",
        "operation": operation,
        "resource": {"group": GROUP, "version": "v1", "resource": "cloudstacknodeclasses"},
        "object": object,
        "oldObject": before,
    }});
    Review::read(body.to_string().as_bytes()).expect("a review")
}

#[test]
fn what_makes_no_sense_anywhere_is_refused_with_the_field() {
    let refused = |object: Value| validate(&object, 32_768).expect_err("refused");
    let kubeadm = json!({"mode": "Kubeadm", "apiServer": "10.0.0.1:6443", "tokenTTL": "1h"});
    assert!(refused(with("bootstrap", kubeadm)).starts_with("spec.bootstrap.caCertHash: "));
    let long = json!({"mode": "Custom", "apiServer": "10.0.0.1:6443", "tokenTTL": "48h"});
    assert!(refused(with("bootstrap", long)).starts_with("spec.bootstrap.tokenTTL: \"48h\""));
    assert!(refused(with("gpuResource", "gpu of mine".into())).starts_with("spec.gpuResource: "));
    assert!(refused(with("systemReserved", json!({"memory": "-1Gi"}))).starts_with("spec.systemReserved: "));
    // Nothing that could be compressed.
    let mut state = 1u32;
    let mut letter = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'!' + (state >> 26) as u8)
    };
    let noise: String = (0..60_000).map(|_| letter()).collect();
    assert!(refused(with("userData", noise.into())).contains("userData"));
    let mut both = with("gpuResource", "gpu of mine".into());
    both["spec"]["kubeReserved"] = json!({"cpu": "-1"});
    let told = refused(both);
    assert!(told.contains("spec.kubeReserved") && told.contains("spec.gpuResource"), "{told}");
    validate(&class(plain()), 32_768).expect("nothing wrong");
}

#[test]
fn what_cannot_be_read_is_refused_with_its_path() {
    let refused = validate(&with("rootDiskSize", "large".into()), 32_768).expect_err("refused");
    assert!(refused.starts_with("spec.rootDiskSize: invalid type"), "{refused}");
    let disks = json!([{"offering": "a"}, {"size": 5}]);
    let refused = validate(&with("dataDisks", disks), 32_768).expect_err("refused");
    assert!(refused.starts_with("spec.dataDisks[1]: missing field"), "{refused}");
}

#[test]
fn only_a_new_spec_of_a_nodeclass_that_stays_is_looked_at() {
    let (object, before) = (with("maxPods", 50.into()), class(plain()));
    assert!(review("CREATE", &object, &Value::Null).changed().is_some());
    assert!(review("UPDATE", &object, &before).changed().is_some());
    assert!(
        review("UPDATE", &object, &object).changed().is_none(),
        "a finalizer is not held up by an old mistake"
    );
    assert!(review("DELETE", &Value::Null, &before).changed().is_none());
    let mut going = object.clone();
    going["metadata"]["deletionTimestamp"] = "2026-11-15T08:00:00Z".into();
    assert!(review("UPDATE", &going, &before).changed().is_none());
    let mut other = review("CREATE", &object, &Value::Null);
    other.request["resource"]["resource"] = "pods".into();
    assert!(other.changed().is_none());
    let mut status = review("UPDATE", &object, &before);
    status.request.insert("subResource".to_owned(), "status".into());
    assert!(status.changed().is_none());
}

#[test]
fn an_answer_repeats_the_uid_and_says_why() {
    let review = review("CREATE", &class(plain()), &Value::Null);
    let refusal = review.refuse("spec.zone: no");
    assert_eq!((&refusal["apiVersion"], &refusal["kind"]), (&json!(VERSION), &json!(KIND)));
    assert_eq!(refusal["response"]["uid"], "u-1");
    assert_eq!(refusal["response"]["allowed"], false);
    assert_eq!(refusal["response"]["status"]["message"], "spec.zone: no");
    let warned = review.allow(&["spec.zone leads nowhere".to_owned()]);
    assert_eq!(
        warned["response"],
        json!({"uid": "u-1", "allowed": true, "warnings": ["spec.zone leads nowhere"]})
    );
    assert_eq!(review.patch(&[])["response"], json!({"uid": "u-1", "allowed": true}));
}

#[test]
fn what_is_no_review_is_told_so_by_what_is_wrong_with_it() {
    let fault = |body: &str| Review::read(body.as_bytes()).expect_err("no review");
    assert!(fault("{").contains("no JSON"));
    assert!(fault("[1]").contains("apiVersion is null"));
    assert!(fault(r#"{"apiVersion": "admission.k8s.io/v1beta1"}"#).contains("admission.k8s.io/v1\""));
    assert!(fault(r#"{"apiVersion": "admission.k8s.io/v1", "kind": "Pod"}"#).contains("kind is \"Pod\""));
    let without = |request: &str| {
        fault(&format!(
            r#"{{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {request}}}"#
        ))
    };
    assert!(without("null").contains("request is missing"));
    assert!(without("{}").contains("request.uid"));
    assert!(without(r#"{"uid": 7}"#).contains("request.uid"));
}

#[test]
fn defaults_are_filled_in_where_nothing_is_said_and_change_no_hash() {
    let mut object = class(plain());
    object["spec"]["deletionPolicy"] = "Destroy".into();
    object["spec"]["pricing"] = json!({"cpu": "0.1"});
    object["spec"]["dataDisks"] = json!([{"offering": "a"}, {"offering": "b", "deleteOnTermination": false}]);
    let changes = defaults(&object);
    let paths: Vec<&str> = changes.iter().filter_map(|change| change["path"].as_str()).collect();
    assert_eq!(
        paths,
        [
            "/spec/networkSelection",
            "/spec/userDataCompression",
            "/spec/pricing/quotaTariff",
            "/spec/dataDisks/0/deleteOnTermination"
        ]
    );
    let mut filled = object.clone();
    for change in &changes {
        let (owner, field) = change["path"].as_str().and_then(|path| path.rsplit_once('/')).expect("a path");
        filled.pointer_mut(owner).expect("an owner")[field] = change["value"].clone();
    }
    assert_eq!(filled["spec"]["deletionPolicy"], "Destroy");
    let hash = |object: &Value| validate(object, 32_768).expect("a NodeClass").hash();
    assert_eq!(hash(&filled), hash(&object), "no node drifts by it");
    assert!(defaults(&filled).is_empty(), "and once is enough");
    // Whatever comes, nothing is made of it but what was asked.
    for odd in [json!({}), json!({"spec": 7}), json!({"spec": {"dataDisks": [1], "pricing": []}})] {
        assert!(defaults(&odd).iter().all(|change| change["op"] == "add"));
    }
}
