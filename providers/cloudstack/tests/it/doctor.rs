//! What `karpenter cloudstack doctor -f` says of a NodeClass is what Karpenter would say of it.

use karpenter_api::ConditionStatus;
use karpenter_api::conditions::HasConditions as _;
use karpenter_provider_cloudstack::doctor::{Finding, Verdict, examine};
use karpenter_provider_cloudstack::{CloudStackNodeClass, ProviderOptions};
use karpenter_runtime::environment::Environment;
use karpenter_runtime::metrics::Registry;
use serde_json::{Value, json};

use crate::cloud::{World, spec};

async fn examined(world: &World, spec: &Value) -> Vec<Finding> {
    let class: CloudStackNodeClass =
        serde_json::from_value(json!({"metadata": {"name": "default"}, "spec": spec})).expect("a NodeClass");
    let environment = Environment { registry: Registry::new(), ..world.environment.clone() };
    examine(&world.client, &ProviderOptions::new("test"), Some(&class), &environment).await
}

fn can_be_used(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.text.contains("can be used") && finding.verdict == Verdict::Good)
}

/// What Karpenter would not work with.
fn bad(findings: &[Finding]) -> Vec<&str> {
    let bad = findings.iter().filter(|finding| finding.verdict == Verdict::Bad);
    bad.map(|finding| finding.text.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn user_data_that_karpenter_would_not_use_fails_once_and_is_not_called_usable() {
    let world = World::new().await;
    let found = examined(&world, &spec()).await;
    assert!(can_be_used(&found) && bad(&found).is_empty(), "{found:?}");
    let mut noise = String::new();
    let mut state = 1u64;
    while noise.len() < 60_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        noise.push_str(&format!("{:x}", state >> 16));
    }
    let kubeadm =
        json!({"mode": "Kubeadm", "apiServer": "api:6443", "tokenTTL": "30m", "caVerification": "Skip"});
    let mime = "Content-Type: multipart/mixed; boundary=x\n\n--x--\n";
    for (bootstrap, user_data) in [
        (json!({"mode": "Talos"}), json!("#!/bin/bash\n")),
        (kubeadm.clone(), json!(mime)),
        (kubeadm, json!(format!("#!/bin/bash\n# {noise}\n"))),
        (Value::Null, json!(noise)),
    ] {
        let mut class = spec();
        class["bootstrap"] = bootstrap;
        class["userData"] = user_data;
        let found = examined(&world, &class).await;
        assert_eq!(bad(&found).len(), 1, "{found:?}");
        assert!(!can_be_used(&found), "{found:?}");
        let karpenter = world.class("default", class).await;
        let condition = karpenter.condition("ValidationSucceeded").expect("a condition");
        assert_eq!(condition.status, ConditionStatus::False, "{condition:?}");
        assert_eq!(bad(&found), [condition.message()]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_keys_of_the_environment_do_not_see_is_no_failure_of_a_class_with_keys_of_its_own() {
    let world = World::new().await;
    let mut class = spec();
    class["networkSelectorTerms"] = json!([{"name": "theirs"}]);
    assert_eq!(bad(&examined(&world, &class).await).len(), 1);
    class["credentialsRef"] = json!({"namespace": "karpenter", "name": "team-a"});
    let found = examined(&world, &class).await;
    assert_eq!(bad(&found), [] as [&str; 0], "{found:?}");
    assert!(!can_be_used(&found), "{found:?}");
    assert!(found.iter().any(|finding| finding.text.contains("spec.networkSelectorTerms")), "{found:?}");
}
