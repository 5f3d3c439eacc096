//! `karpenter run --provider cloudstack` as a whole, over sockets: a cluster, CloudStack's API over HTTP, and a machine that comes and goes.

use std::process::{Child, Command, Stdio};

use futures_util::StreamExt as _;
use kube::api::{Api, DeleteParams, DynamicObject, WatchEvent, WatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::cloudstack_commands::{CLUSTER, Cluster, Simulator};

/// Karpenter, which ends with the test.
struct Karpenter(Child);

impl Drop for Karpenter {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(cluster: &Cluster, simulator: &Simulator) -> Karpenter {
    let child = Command::new(env!("CARGO_BIN_EXE_karpenter"))
        .args(["run", "--provider=cloudstack", "--disable-leader-election"])
        .args(["--metrics-port=0", "--health-probe-port=0"])
        .env("KUBECONFIG", cluster.file())
        .env("CLUSTER_NAME", CLUSTER)
        .env("CLOUDSTACK_API_URL", &simulator.endpoint)
        .env("CLOUDSTACK_API_KEY", &simulator.key)
        .env("CLOUDSTACK_SECRET_KEY", &simulator.secret)
        .env("CLOUDSTACK_ALLOW_INSECURE_HTTP", "true")
        .stdout(Stdio::null())
        .spawn()
        .expect("the binary runs");
    Karpenter(child)
}

fn api(client: &kube::Client, group: &str, kind: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(group, "v1", kind);
    Api::all_with(client.clone(), &ApiResource::from_gvk(&kind))
}

fn is_true(object: &Value, condition: &str) -> bool {
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|found| found["type"] == condition && found["status"] == "True")
}

/// What an object of this name is once it is so; nothing once it is gone, where that is waited for.
async fn until(
    api: &Api<DynamicObject>,
    name: &str,
    is_so: impl Fn(Option<&Value>) -> bool,
) -> Option<Value> {
    // A minute is much longer than any of it takes.
    let watched = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(60);
    let mut events = api.watch(&watched, "0").await.expect("a watch").boxed();
    let mut last = Value::Null;
    while let Some(event) = events.next().await {
        let found = match event.expect("an event") {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                Some(serde_json::to_value(object).expect("JSON"))
            }
            WatchEvent::Deleted(_) => None,
            _ => continue,
        };
        if is_so(found.as_ref()) {
            return found;
        }
        last = found.unwrap_or_default();
    }
    panic!("{name} never became so; it is {last}")
}

#[test]
fn a_node_claim_gets_its_machine_over_http_though_an_answer_is_lost_and_takes_it_along() {
    let simulator = Simulator::start_with(&["--fault", "deployVirtualMachine=lost-answer"]);
    let cluster = Cluster::start("run");
    let class = json!({
        "apiVersion": "karpenter.k8s.cloudstack/v1", "kind": "CloudStackNodeClass", "metadata": {"name": "default"},
        "spec": {"zone": "sim-zone-1", "networkSelectorTerms": [{"name": "k8s-net"}],
            "serviceOfferingSelectorTerms": [{"name": "k8s.*"}], "templateSelectorTerms": [{"name": "CentOS*"}],
            "userData": "#!/bin/sh\n"},
    });
    cluster.create("/apis/karpenter.k8s.cloudstack/v1/cloudstacknodeclasses", &class);
    let _karpenter = start(&cluster, &simulator);
    let orphans = || simulator.run(&simulator.secret, &["orphans", "--kubeconfig", cluster.file()]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = cluster.client().await;
        let classes = api(&client, "karpenter.k8s.cloudstack", "CloudStackNodeClass");
        until(&classes, "default", |class| class.is_some_and(|class| is_true(class, "Ready"))).await;
        let claims = api(&client, "karpenter.sh", "NodeClaim");
        let claim: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "by-hand"},
            "spec": {"requirements": [], "resources": {"requests": {"cpu": "1"}}, "nodeClassRef":
                {"group": "karpenter.k8s.cloudstack", "kind": "CloudStackNodeClass", "name": "default"}},
        }))
        .expect("a NodeClaim");
        claims.create(&Default::default(), &claim).await.expect("created");
        let launched =
            until(&claims, "by-hand", |claim| claim.is_some_and(|claim| is_true(claim, "Launched"))).await;
        let launched = launched.expect("a NodeClaim");
        let provider_id = launched["status"]["providerID"].as_str().unwrap_or_default();
        assert!(provider_id.starts_with("external-cloudstack://"), "{launched}");
        assert!(!launched["status"]["capacity"]["cpu"].is_null(), "{launched}");
        claims.delete("by-hand", &DeleteParams::default()).await.expect("deleted");
        until(&claims, "by-hand", |claim| claim.is_none()).await;
    });
    let (code, text) = orphans();
    assert_eq!(code, Some(0), "nothing is left: {text}");
}
