//! Nodes for pods that have no place.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use karpenter_api::NodeClaim;
use karpenter_cloudprovider::ProviderError;
use karpenter_cloudprovider::fake::{Behaviour, Method, instance_types};
use karpenter_engine::instance_type::InstanceType;
use karpenter_engine::node_pool::TaintedTypes;
use karpenter_engine::taints::Taint;
use serde_json::{Value, json};

use crate::lines::Lines;
use crate::objects::{With, claim, node, node_class, node_name, node_pool, pending_pod, pod_on, provider_id};
use crate::rig::Rig;

async fn rig() -> Rig {
    let rig = Rig::quiet(&[]).await;
    rig.create(node_class()).await;
    rig
}

fn claims(rig: &Rig) -> Vec<Arc<NodeClaim>> {
    rig.context.stores.node_claims.list()
}

/// The NodeClaims there are after so many have been made.
async fn expect_claims(rig: &Rig, count: usize) -> Vec<Arc<NodeClaim>> {
    rig.eventually(&format!("{count} NodeClaims"), |rig| claims(rig).len() == count).await;
    claims(rig)
}

/// Nothing is created, however long one waits.
async fn expect_no_claims(rig: &Rig) {
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!(claims(rig), []);
}

/// A node of four CPUs that is up.
async fn existing_node(rig: &Rig, name: &str) {
    rig.create(claim(name, "default", 4)).await;
    rig.create(node(name, "default", 4)).await;
    // The server gives every new node a taint that the node lifecycle controller takes away.
    rig.patch(&node(name, "default", 4), json!({"spec": {"taints": null}})).await;
}

fn values(claim: &NodeClaim, key: &str) -> Vec<String> {
    let found = claim.spec.requirements.iter().find(|requirement| requirement.key == key);
    found.map(|requirement| requirement.values().to_vec()).unwrap_or_default()
}

fn json_of(claim: &NodeClaim) -> Value {
    serde_json::to_value(claim).expect("JSON")
}

#[tokio::test(start_paused = true)]
async fn a_pending_pod_becomes_a_node_claim() {
    let rig = rig().await;
    rig.create(node_pool("default")).await;
    rig.create(pending_pod("p", "1500m")).await;
    let claim = json_of(&expect_claims(&rig, 1).await[0]);
    let pool = rig.get(&node_pool("default")).await.expect("the pool");
    let name = claim["metadata"]["name"].as_str().expect("a name");
    assert!(name.strip_prefix("default-").is_some_and(|suffix| suffix.len() == 5), "{name}");
    assert_eq!(claim["metadata"]["generateName"], "default-");
    assert_eq!(
        claim["metadata"]["ownerReferences"],
        json!([{
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "name": "default",
            "uid": pool["metadata"]["uid"], "blockOwnerDeletion": true,
        }])
    );
    let labels = &claim["metadata"]["labels"];
    assert_eq!(labels["karpenter.sh/nodepool"], "default");
    assert_eq!(labels["karpenter.test.sh/fakenodeclass"], "default");
    let annotations = &claim["metadata"]["annotations"];
    assert_eq!(annotations["karpenter.sh/nodepool-hash-version"], "v3");
    assert_eq!(annotations["karpenter.sh/nodeclaim-min-values-relaxed"], "false");
    assert!(
        annotations["karpenter.sh/nodepool-hash"].as_str().is_some_and(|hash| hash.parse::<u64>().is_ok())
    );
    assert_eq!(
        claim["spec"]["resources"]["requests"],
        json!({"cpu": "1500m", "memory": "10Mi", "pods": "1"})
    );
    assert_eq!(claim["spec"]["nodeClassRef"]["name"], "default");
    let claim = &claims(&rig)[0];
    assert_eq!(
        values(claim, "node.kubernetes.io/instance-type"),
        ["fake-it-2", "fake-it-3", "fake-it-4", "fake-it-5"],
        "the smallest is too small"
    );
    assert_eq!(values(claim, "karpenter.sh/capacity-type"), ["on-demand", "spot"]);
    assert_eq!(values(claim, "karpenter.sh/nodepool"), ["default"]);
    let told = rig.events("Pod", "p").await;
    assert!(told.contains(&format!("Nominated: Pod should schedule on: nodeclaim/{name}")), "{told:?}");
    let metrics = rig.context.environment.registry.encode();
    assert!(
        metrics.contains(
            r#"karpenter_nodeclaims_created_total{min_values_relaxed="false",nodepool="default",reason="provisioned"} 1"#
        ),
        "{metrics}"
    );
}

#[tokio::test(start_paused = true)]
async fn pods_that_come_together_share_a_node_and_are_provisioned_for_once() {
    let rig = rig().await;
    rig.create(node_pool("default")).await;
    for number in 0..4 {
        rig.create(pending_pod(&format!("p{number}"), "1")).await;
    }
    let made = expect_claims(&rig, 1).await;
    assert_eq!(json_of(&made[0])["spec"]["resources"]["requests"]["pods"], "4");
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!(claims(&rig).len(), 1, "a node is on its way, and nothing else is decided before it is known");
}

#[tokio::test(start_paused = true)]
async fn pods_are_not_given_to_another_pool_because_the_provider_of_theirs_is_slow() {
    let rig = rig().await;
    rig.create(node_pool("known")).await;
    rig.eventually("its instance types are known", |rig| rig.provider.count(Method::GetInstanceTypes) > 0)
        .await;
    rig.provider.always(Method::GetInstanceTypes, Some(Behaviour::Slow(Duration::from_secs(45))));
    rig.create(node_pool("preferred").with(json!({"spec": {"weight": 10}}))).await;
    rig.create(pending_pod("p", "1")).await;
    let made = expect_claims(&rig, 1).await;
    assert_eq!(json_of(&made[0])["metadata"]["labels"]["karpenter.sh/nodepool"], "preferred");
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_never_answers_keeps_pods_from_other_pools_for_minutes_only() {
    let rig = rig().await;
    rig.create(node_pool("known")).await;
    rig.eventually("its instance types are known", |rig| rig.provider.count(Method::GetInstanceTypes) > 0)
        .await;
    rig.provider.always(Method::GetInstanceTypes, Some(Behaviour::Hang));
    rig.create(node_pool("preferred").with(json!({"spec": {"weight": 10}}))).await;
    rig.create(pending_pod("p", "1")).await;
    rig.pass(Duration::from_secs(290)).await;
    assert_eq!(claims(&rig), []);
    rig.pass(Duration::from_secs(60)).await;
    let made = expect_claims(&rig, 1).await;
    assert_eq!(json_of(&made[0])["metadata"]["labels"]["karpenter.sh/nodepool"], "known");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_decided_until_every_kind_is_listed() {
    let flags = &["--feature-gates=NodeOverlay=true,CapacityBuffer=true"];
    let kinds = [
        "storageclasses",
        "csinodes",
        "namespaces",
        "nodeoverlays",
        "services",
        "replicationcontrollers",
        "replicasets",
        "statefulsets",
        "podtemplates",
        "deployments",
    ];
    for kind in kinds {
        let rig = Rig::quiet_without(flags, kind).await;
        rig.create(node_class()).await;
        rig.create(node_pool("default")).await;
        rig.create(pending_pod("p", "1")).await;
        rig.pass(Duration::from_secs(60)).await;
        assert_eq!(claims(&rig), [], "{kind} could not be listed");
        rig.answer_all();
        expect_claims(&rig, 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_template_of_the_pool_is_on_the_claim() {
    let rig = rig().await;
    let pool = node_pool("default").with(json!({"spec": {"template": {
        "metadata": {"labels": {"team": "a"}, "annotations": {"note": "x"}},
        "spec": {
            "taints": [{"key": "dedicated", "value": "a", "effect": "NoSchedule"}],
            "startupTaints": [{"key": "starting", "effect": "NoExecute"}],
            "expireAfter": "24h",
            "terminationGracePeriod": "30m",
            "requirements": [
                {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["test-zone-2"]},
                {"key": "rack", "operator": "In", "values": ["r2", "r1"]},
            ],
        },
    }}}));
    rig.create(pool).await;
    rig.create(pending_pod("p", "1").with(json!({"spec": {"tolerations": [{"operator": "Exists"}]}}))).await;
    let claim = json_of(&expect_claims(&rig, 1).await[0]);
    assert_eq!(claim["metadata"]["labels"]["team"], "a");
    assert_eq!(claim["metadata"]["labels"]["rack"], "r1", "one of those that are allowed");
    assert_eq!(claim["metadata"]["annotations"]["note"], "x");
    assert_eq!(claim["spec"]["taints"], json!([{"key": "dedicated", "value": "a", "effect": "NoSchedule"}]));
    assert_eq!(claim["spec"]["startupTaints"], json!([{"key": "starting", "effect": "NoExecute"}]));
    assert_eq!(
        (&claim["spec"]["expireAfter"], &claim["spec"]["terminationGracePeriod"]),
        (&json!("24h"), &json!("30m"))
    );
    assert_eq!(values(&claims(&rig)[0], "topology.kubernetes.io/zone"), ["test-zone-2"]);
}

#[tokio::test(start_paused = true)]
async fn taints_that_the_provider_has_planned_for_are_tolerated_or_no_node_is_launched() {
    let rig = rig().await;
    let taint = |key: &str| Taint { key: key.into(), value: "yes".into(), effect: "NoSchedule".into() };
    rig.provider.taint(vec![taint("gpu"), taint("known")]);
    let declared = json!([{"key": "known", "effect": "NoSchedule"}]);
    rig.create(node_pool("default").with(json!({"spec": {"template": {"spec": {"taints": declared}}}})))
        .await;
    let tolerating = |keys: &[&str]| {
        let tolerations: Vec<Value> =
            keys.iter().map(|key| json!({"key": key, "operator": "Exists"})).collect();
        json!({"spec": {"tolerations": tolerations}})
    };
    rig.create(pending_pod("p", "1500m").with(tolerating(&["known"]))).await;
    expect_no_claims(&rig).await;
    let told = rig.events("Pod", "p").await;
    assert!(told.iter().any(|said| said.contains("gpu=yes:NoSchedule")), "{told:?}");
    rig.create(pending_pod("q", "1500m").with(tolerating(&["known", "gpu"]))).await;
    let claim = json_of(&expect_claims(&rig, 1).await[0]);
    let inherited = json!({"key": "gpu", "value": "yes", "effect": "NoSchedule"});
    assert_eq!(claim["spec"]["taints"], json!([declared[0], inherited]));
}

#[tokio::test(start_paused = true)]
async fn what_has_further_taints_is_for_pods_that_tolerate_them_and_need_it() {
    let rig = rig().await;
    let large: Arc<[InstanceType]> = instance_types(900).split_off(899).into();
    let gpu = Taint { key: "gpu".into(), value: "yes".into(), effect: "NoSchedule".into() };
    rig.provider.offer_tainted(vec![TaintedTypes { taints: vec![gpu], instance_types: large }]);
    rig.create(node_pool("default")).await;
    rig.create(pending_pod("p", "500")).await;
    expect_no_claims(&rig).await;
    let told = rig.events("Pod", "p").await;
    assert!(told.iter().any(|said| said.contains("gpu=yes:NoSchedule")), "{told:?}");
    let tolerating = json!({"spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}});
    rig.create(pending_pod("q", "1").with(tolerating.clone())).await;
    assert_eq!(
        json_of(&expect_claims(&rig, 1).await[0])["spec"]["taints"],
        json!(null),
        "it needs none of that"
    );
    rig.create(pending_pod("r", "500").with(tolerating)).await;
    let claims = expect_claims(&rig, 2).await;
    let tainted: Vec<_> = claims
        .iter()
        .map(|claim| json_of(claim))
        .filter(|claim| !claim["spec"]["taints"].is_null())
        .collect();
    assert_eq!(tainted.len(), 1);
    assert_eq!(tainted[0]["spec"]["taints"], json!([{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_fits_nowhere_is_told_why() {
    let rig = rig().await;
    rig.create(node_pool("default")).await;
    rig.create(pending_pod("p", "100")).await;
    expect_no_claims(&rig).await;
    let told = rig.events("Pod", "p").await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0]
            .starts_with("FailedScheduling: Failed to schedule pod, no instance type has enough resources"),
        "{told:?}"
    );
    let metrics = rig.context.environment.registry.encode();
    assert!(
        metrics.contains(r#"karpenter_scheduler_unschedulable_pods_count{controller="provisioner"} 1"#),
        "{metrics}"
    );
    assert!(metrics.contains("karpenter_pods_scheduling_decision_duration_seconds_count 1"), "{metrics}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_refuses_our_nodes_is_left_alone_and_one_that_asks_for_nonsense_is_told() {
    let rig = rig().await;
    rig.create(node_pool("default")).await;
    let wants = |operator: &str, key: &str, values: &[&str]| {
        let requirement = json!({"key": key, "operator": operator, "values": values});
        json!({"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [requirement]}],
        }}}}})
    };
    rig.create(pending_pod("elsewhere", "1").with(wants("DoesNotExist", "karpenter.sh/nodepool", &[]))).await;
    rig.create(pending_pod("odd", "1").with(wants("In", "karpenter.sh/odd", &["x"]))).await;
    expect_no_claims(&rig).await;
    assert_eq!(rig.events("Pod", "elsewhere").await, [] as [String; 0]);
    let told = rig.events("Pod", "odd").await;
    assert!(told[0].contains("using label karpenter.sh/odd is not allowed"), "{told:?}");
    let metrics = rig.context.environment.registry.encode();
    assert!(metrics.contains("karpenter_scheduler_ignored_pods_count 2"), "{metrics}");
}

#[tokio::test(start_paused = true)]
async fn no_node_is_launched_for_pods_that_are_not_waiting_for_one() {
    let rig = rig().await;
    rig.create(node_pool("default")).await;
    let template = json!({"metadata": {"labels": {"app": "d"}}, "spec": pending_pod("d", "1")["spec"]});
    let daemons = rig
        .create(json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "d"}}, "template": template},
        }))
        .await;
    let owner =
        json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": daemons.metadata.uid});
    rig.create(pending_pod("daemon", "1").with(json!({"metadata": {"ownerReferences": [owner]}}))).await;
    rig.create(pending_pod("preempting", "1").with(json!({"status": {"nominatedNodeName": "n"}}))).await;
    rig.create(pending_pod("unseen", "1").with(json!({"status": {"conditions": []}}))).await;
    expect_no_claims(&rig).await;
}

#[tokio::test(start_paused = true)]
async fn pools_that_are_not_ready_static_or_anothers_launch_nothing() {
    let rig = rig().await;
    let class = |kind: &str| json!({"spec": {"template": {"spec": {"nodeClassRef": {"kind": kind, "name": "missing"}}}}});
    rig.create(node_pool("not-ready").with(class("FakeNodeClass")).with(json!({"status": null}))).await;
    rig.create(node_pool("another").with(class("OtherClass"))).await;
    rig.create(node_pool("fixed").with(json!({"spec": {"replicas": 0}}))).await;
    rig.create(pending_pod("p", "1")).await;
    expect_no_claims(&rig).await;
}

#[tokio::test(start_paused = true)]
async fn the_heavier_pool_is_used_first() {
    let rig = rig().await;
    rig.create(node_pool("light").with(json!({"spec": {"weight": 1}}))).await;
    rig.create(node_pool("heavy").with(json!({"spec": {"weight": 50}}))).await;
    rig.create(pending_pod("p", "1")).await;
    let made = expect_claims(&rig, 1).await;
    assert_eq!(values(&made[0], "karpenter.sh/nodepool"), ["heavy"]);
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_fails_for_one_pool_does_not_hold_up_the_others() {
    let rig = rig().await;
    rig.provider.offer_to("empty", Vec::new());
    rig.create(node_pool("empty").with(json!({"spec": {"weight": 50}}))).await;
    rig.create(node_pool("default")).await;
    rig.create(pending_pod("p", "1")).await;
    let made = expect_claims(&rig, 1).await;
    assert_eq!(values(&made[0], "karpenter.sh/nodepool"), ["default"]);
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_fails_is_asked_again() {
    let rig = rig().await;
    let error = ProviderError::other("down for maintenance");
    rig.provider.always(Method::GetInstanceTypes, Some(Behaviour::Fail(error)));
    rig.create(node_pool("default")).await;
    rig.create(pending_pod("p", "1")).await;
    expect_no_claims(&rig).await;
    rig.provider.always(Method::GetInstanceTypes, None);
    expect_claims(&rig, 1).await;
}

#[tokio::test(start_paused = true)]
async fn requirements_that_leave_no_instance_type_are_told_to_the_pool() {
    let rig = rig().await;
    rig.provider.offer(instance_types(2));
    let requirements =
        json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["none-such"]}]);
    rig.create(
        node_pool("default").with(json!({"spec": {"template": {"spec": {"requirements": requirements}}}})),
    )
    .await;
    rig.create(pending_pod("p", "1")).await;
    expect_no_claims(&rig).await;
    let told = rig.events("NodePool", "default").await;
    assert!(
        told.contains(
            &"NoCompatibleInstanceTypes: NodePool requirements filtered out all compatible available instance types"
                .to_owned()
        ),
        "{told:?}"
    );
    let told = rig.events("Pod", "p").await;
    assert!(told[0].ends_with("nodepool requirements filtered out all available instance types"), "{told:?}");
}

fn pool_requiring(requirements: Value) -> Value {
    node_pool("default").with(json!({"spec": {"template": {"spec": {"requirements": requirements}}}}))
}

async fn unusable(rig: &Rig) -> Vec<String> {
    let told = rig.events("NodePool", "default").await;
    told.iter().filter_map(|said| said.strip_prefix("UnusableRequirements: ")).map(str::to_owned).collect()
}

#[tokio::test(start_paused = true)]
async fn the_requirement_that_leaves_no_instance_type_is_named_with_what_there_is() {
    let (zone, arch, size) =
        ("topology.kubernetes.io/zone", "kubernetes.io/arch", "node.kubernetes.io/instance-type");
    for (requirements, said) in [
        (
            json!([{"key": zone, "operator": "In", "values": ["mars"]}]),
            "no instance type that can be had meets topology.kubernetes.io/zone In [mars]; \
             there is topology.kubernetes.io/zone In [test-zone-1 test-zone-2 test-zone-3]",
        ),
        (
            json!([
                {"key": arch, "operator": "In", "values": ["amd64"]},
                {"key": arch, "operator": "NotIn", "values": ["amd64"]},
            ]),
            "no value of kubernetes.io/arch is left by what is asked of it; take some of that back",
        ),
        (
            json!([{"key": size, "operator": "Exists", "minValues": 3}]),
            "minValues of node.kubernetes.io/instance-type is 3, and 2 can be had; lower it, or allow more values",
        ),
    ] {
        let lines = Lines::capture();
        let rig = rig().await;
        rig.provider.offer(instance_types(2));
        rig.create(pool_requiring(requirements)).await;
        rig.create(pending_pod("p", "1")).await;
        expect_no_claims(&rig).await;
        let said = format!("spec.template.spec.requirements: {said}");
        assert_eq!(unusable(&rig).await, [said.as_str()]);
        let lines = lines.saying("skipping, nodepool requirements filtered out all instance types");
        assert!(!lines.is_empty() && lines.iter().all(|line| line["problem"] == said.as_str()), "{lines:?}");
        let unmet =
            "minValues requirement is not met for label(s) (label(s)=[node.kubernetes.io/instance-type])";
        let of_min_values = if said.contains("minValues") { json!(unmet) } else { Value::Null };
        assert!(lines.iter().all(|line| line["minValuesIncompatibleErr"] == of_min_values), "{lines:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_no_value_can_satisfy_says_so_once_and_so_do_its_pods() {
    let lines = Lines::capture();
    let rig = rig().await;
    rig.create(pool_requiring(json!([{"key": "example.com/x", "operator": "Lt", "values": ["0"]}]))).await;
    rig.create(pending_pod("p", "1")).await;
    expect_no_claims(&rig).await;
    let told = unusable(&rig).await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].starts_with("spec.template.spec.requirements: no value can satisfy example.com/x "),
        "{told:?}"
    );
    assert_eq!(lines.saying("left out of scheduling"), [] as [Value; 0], "said by another line already");
    let told = rig.events("Pod", "p").await;
    let said = "FailedScheduling: Failed to schedule pod, no nodepool can be used: nodepool default makes no sense, spec.template.spec.requirements: no value can satisfy";
    assert!(told.iter().any(|event| event.starts_with(said)), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_told_why_its_only_pool_cannot_be_used_and_hears_the_pool_when_it_can() {
    let rig = Rig::quiet(&[]).await;
    rig.create(node_pool("default").with(json!({"status": null}))).await;
    rig.create(pending_pod("p", "1000")).await;
    expect_no_claims(&rig).await;
    let told = rig.events("Pod", "p").await;
    let said = "FailedScheduling: Failed to schedule pod, no nodepool can be used: nodepool default is not ready, NodeClassReady is False: NodeClass not found on cluster; spec.template.spec.nodeClassRef is FakeNodeClass \"default\"";
    assert_eq!(told, [said]);
    rig.create(node_class()).await;
    expect_no_claims(&rig).await;
    let told = rig.events("Pod", "p").await;
    assert_eq!(told.len(), 2, "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn limits_keep_a_pool_small() {
    let lines = Lines::capture();
    let rig = rig().await;
    rig.create(node_pool("default").with(json!({"spec": {"limits": {"cpu": "2"}}}))).await;
    rig.create(pending_pod("a", "1500m")).await;
    rig.create(pending_pod("b", "1500m")).await;
    let made = expect_claims(&rig, 1).await;
    assert_eq!(
        values(&made[0], "node.kubernetes.io/instance-type"),
        ["fake-it-2"],
        "larger ones would exceed the limit"
    );
    let mut told = rig.events("Pod", "a").await;
    told.extend(rig.events("Pod", "b").await);
    assert!(
        told.iter().any(|event| event
            .ends_with("all available instance types exceed limits for nodepool (NodePool=default)")),
        "{told:?}"
    );
    let lines = lines.saying("could not schedule pod");
    assert!(lines.iter().any(|line| line["NodePool"] == json!({"name": "default"})), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_fits_a_node_that_exists_is_promised_it_and_nothing_is_launched() {
    let rig = rig().await;
    rig.create(node_pool("default")).await;
    existing_node(&rig, "c").await;
    rig.create(pod_on("c", "running", "1")).await;
    rig.create(pending_pod("p", "1")).await;
    rig.pass(Duration::from_secs(5)).await;
    assert_eq!(claims(&rig).len(), 1);
    let told = rig.events("Pod", "p").await;
    assert!(
        told.contains(&format!("Nominated: Pod should schedule on: nodeclaim/c, node/{}", node_name("c"))),
        "{told:?}"
    );
    let snapshot = |rig: &Rig| {
        let now = rig.context.now();
        rig.context.cluster.read(|cluster| {
            cluster.snapshot(now, Default::default(), |pool| pool.instance_types.clone()).nodes
        })
    };
    assert!(snapshot(&rig)[0].nominated, "the node is promised");
    rig.delete(&pending_pod("p", "1")).await;
    rig.pass(Duration::from_secs(25)).await;
    assert!(!snapshot(&rig)[0].nominated, "a promise nobody renews runs out");
}

/// A command has begun to take the node of this claim away.
async fn let_go(rig: &Rig, claim: &str) {
    rig.eventually("the machine is known", |rig| {
        rig.context.cluster.read(|cluster| cluster.machine_named(&node_name(claim)).is_some())
    })
    .await;
    rig.context.cluster.update(|cluster| cluster.mark_for_deletion(&provider_id(claim)));
    let tainted = json!({"spec": {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}});
    rig.patch(&node(claim, "default", 4), tainted).await;
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_node_that_goes_away_get_a_new_one() {
    let rig = rig().await;
    rig.create(node_pool("default")).await;
    existing_node(&rig, "c").await;
    rig.create(pod_on("c", "moving", "1")).await;
    let_go(&rig, "c").await;
    expect_claims(&rig, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_another_karpenter_holds_nothing_up() {
    let rig = rig().await;
    let other = claim("other", "theirs", 1)
        .with(json!({"spec": {"nodeClassRef": {"kind": "OtherClass"}}, "status": null}));
    rig.create(other).await;
    rig.create(node_pool("default")).await;
    rig.create(pending_pod("p", "1")).await;
    expect_claims(&rig, 2).await;
}

#[tokio::test(start_paused = true)]
async fn no_two_claims_have_the_same_name() {
    let rig = rig().await;
    rig.create(node_pool("default")).await;
    for number in 0..30 {
        rig.create(pending_pod(&format!("p{number:02}"), "5")).await;
    }
    let made = expect_claims(&rig, 30).await;
    let names: BTreeSet<_> = made.iter().map(|claim| claim.metadata.name.clone()).collect();
    assert_eq!(names.len(), 30);
}

#[tokio::test(start_paused = true)]
async fn pending_pods_are_counted_by_the_zone_they_have_to_be_in() {
    let rig = rig().await;
    let in_zone = |zone: &str| json!({"spec": {"nodeSelector": {"topology.kubernetes.io/zone": zone}}});
    rig.create(node_pool("default").with(json!({"spec": {"limits": {"cpu": "0"}}}))).await;
    rig.create(pending_pod("anywhere", "1")).await;
    rig.create(pending_pod("here", "1").with(in_zone("test-zone-1"))).await;
    rig.create(pending_pod("here-too", "1").with(in_zone("test-zone-1"))).await;
    rig.pass(Duration::from_secs(5)).await;
    let metrics = rig.context.environment.registry.encode();
    for (zone, count) in [("flexible", 1), ("test-zone-1", 2)] {
        let series = format!(
            r#"karpenter_scheduler_pending_pods_by_effective_zone_count{{controller="provisioner",zone="{zone}"}} {count}"#
        );
        assert!(metrics.contains(&series), "{metrics}");
    }
}

#[tokio::test(start_paused = true)]
async fn pods_that_have_not_started_on_a_node_that_goes_are_counted_by_zone_too() {
    let rig = rig().await;
    rig.create(node_pool("default").with(json!({"spec": {"limits": {"cpu": "0"}}}))).await;
    existing_node(&rig, "c").await;
    rig.create(pod_on("c", "running", "1")).await;
    rig.create(pod_on("c", "starting", "1").with(json!({"status": {"phase": "Pending"}}))).await;
    let_go(&rig, "c").await;
    let flexible = |rig: &Rig| {
        let labels = [("controller", "provisioner"), ("zone", "flexible")];
        rig.metric("karpenter_scheduler_pending_pods_by_effective_zone_count", &labels)
    };
    rig.eventually("a pass", |rig| flexible(rig).is_some()).await;
    assert_eq!(flexible(&rig), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn a_pass_and_its_simulation_are_both_timed() {
    let rig = rig().await;
    let timed = |rig: &Rig| {
        rig.metric("karpenter_scheduler_scheduling_duration_seconds_count", &[("controller", "provisioner")])
            .unwrap_or_default()
    };
    rig.create(node_pool("default")).await;
    rig.pass(Duration::from_secs(15)).await;
    let before = timed(&rig);
    rig.create(pending_pod("p", "1")).await;
    expect_claims(&rig, 1).await;
    assert!(timed(&rig) >= before + 2.0, "{before} and then {}", timed(&rig));
}

#[tokio::test(start_paused = true)]
async fn a_launch_under_way_holds_nobody_up_and_its_room_is_counted_on() {
    let rig = rig().await;
    rig.provider.launch_within(Duration::from_secs(3600));
    rig.provider.next(Method::Create, Behaviour::Pending);
    rig.create(node_pool("default")).await;
    rig.create(pending_pod("first", "1500m")).await;
    expect_claims(&rig, 1).await;
    rig.pass(Duration::from_secs(30)).await;
    assert_eq!(claims(&rig).len(), 1, "the pod has a place on what is being launched");
    rig.create(pending_pod("second", "4")).await;
    let made = expect_claims(&rig, 2).await;
    let launched = made.iter().filter(|claim| claim.status.as_ref().is_some_and(|s| s.provider_id.is_some()));
    rig.pass(Duration::from_secs(5)).await;
    assert!(
        launched.count() <= 1 && rig.provider.launches() == 1,
        "the second is launched, the first is not"
    );
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!(claims(&rig).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_launch_of_which_nobody_knows_what_it_will_bring_is_waited_for() {
    let rig = rig().await;
    rig.provider.keep_secrets();
    rig.provider.launch_within(Duration::from_secs(3600));
    rig.provider.next(Method::Create, Behaviour::Pending);
    rig.create(node_pool("default")).await;
    rig.create(pending_pod("first", "1500m")).await;
    let first = expect_claims(&rig, 1).await;
    rig.create(pending_pod("second", "4")).await;
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!(claims(&rig).len(), 1);
    rig.provider.finish(first[0].metadata.name.as_deref().expect("a name"));
    expect_claims(&rig, 2).await;
}
