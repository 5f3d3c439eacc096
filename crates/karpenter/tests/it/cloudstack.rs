//! Karpenter on the simulated CloudStack, from manifests to running pods: what a new user does, and a hundred nodes.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Event, Secret};
use karpenter::cloudstack::soak::{Args, soak};
use karpenter::cloudstack::stage::{Stage, apply_credentials, furnish, node_class, node_class_ref};
use karpenter_api::conditions::HasConditions as _;
use karpenter_provider_cloudstack::naming::ProviderIdFormat;
use karpenter_provider_cloudstack::{CloudStackNodeClass, ProviderOptions};
use karpenter_sim::chance::Span;
use karpenter_sim::cloudstack::guests::{GuestOptions, NamedBy};
use karpenter_sim::cloudstack::settings::Throttle;
use karpenter_sim::faults::FaultPlan;
use karpenter_sim::objects::{is_active, is_ready, node_ready};
use karpenter_sim::traffic::{Act, Script};
use karpenter_sim::{Objects, Process, Trouble, WorldOptions, in_virtual_time};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

/// Manifests as users of the Go provider have them, word for word.
const SECRET: &str = include_str!("../../../../conformance/cloudstack/credentials.yaml");
const NODE_CLASS: &str = include_str!("../../../../conformance/cloudstack/nodeclass.yaml");

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).expect("YAML")
}

fn pool(disruption: Value) -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"},
        "spec": {"template": {"spec": {"nodeClassRef": node_class_ref(), "requirements": []}}, "disruption": disruption},
    })
}

/// A NodePool whose nodes hold one pod of 1500m each.
pub(crate) fn small_nodes(disruption: Value) -> Value {
    let mut pool = pool(disruption);
    pool["spec"]["template"]["spec"]["requirements"] =
        json!([{"key": "karpenter.k8s.cloudstack/instance-cpu", "operator": "In", "values": ["2"]}]);
    pool
}

pub(crate) fn deployment(name: &str, replicas: u64, cpu: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": {"app": name}},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [
                {"name": "c", "image": "registry.k8s.io/pause", "resources": {"requests": {"cpu": cpu}}},
            ]},
        }},
    })
}

pub(crate) fn all_run(objects: &Objects, count: usize) -> bool {
    objects.pods.values().filter(|pod| is_active(pod) && is_ready(pod)).count() == count
}

/// A user applies a Secret, a NodeClass, a NodePool and a workload; who gives Nodes their names differs from cloud to cloud.
fn a_new_user(named_by: NamedBy, options: ProviderOptions) {
    let done = in_virtual_time(async {
        let guests = GuestOptions { named_by, ..GuestOptions::default() };
        let stage = Stage::new(WorldOptions { seed: 6, ..WorldOptions::default() }, guests).await?;
        furnish(&stage.cloud, 2);
        let world = &stage.world;
        let karpenter = stage.karpenter(FaultPlan::none(), options);
        karpenter.start();
        world
            .create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "karpenter"}}))
            .await?;
        // In any order: the NodeClass first says that there are no keys.
        world.create(yaml(NODE_CLASS)).await?;
        world.run_for(Duration::from_secs(5)).await?;
        for object in [yaml(SECRET), pool(json!({})), deployment("web", 3, "1")] {
            world.create(object).await?;
        }
        let within = Duration::from_secs(5 * 60);
        world.wait_until("the pods run", within, |objects| all_run(objects, 3)).await?;
        // Which may be before the Nodes are registered, since these machines bring no taints.
        let initialized = |objects: &Objects| {
            objects.nodes.values().all(|node| {
                node.metadata.labels.as_ref().is_some_and(|l| l.contains_key("karpenter.sh/initialized"))
            })
        };
        world.wait_until("the nodes are initialised", within, initialized).await?;
        world.cluster().read(|objects| {
            for node in objects.nodes.values() {
                let labels = node.metadata.labels.clone().unwrap_or_default();
                let label = |key: &str| labels.get(key).map(String::as_str).unwrap_or_default().to_owned();
                assert_eq!(label("karpenter.sh/registered"), "true");
                assert_eq!(label("karpenter.sh/initialized"), "true");
                assert_eq!(label("topology.kubernetes.io/zone"), "zone-01");
                let taints = node.spec.clone().unwrap_or_default().taints.unwrap_or_default();
                assert!(taints.is_empty(), "{taints:?}");
                let addresses = node.status.clone().unwrap_or_default().addresses.unwrap_or_default();
                assert!(addresses.iter().any(|address| address.type_ == "InternalIP"), "{addresses:?}");
            }
        });
        assert_eq!(stage.guests.problems(), Vec::<String>::new());
        karpenter.stop(Duration::from_secs(60)).await;
        Ok::<(), karpenter_sim::Trouble>(())
    });
    done.expect("a runtime").unwrap_or_else(|trouble| panic!("{trouble}"));
}

#[test]
fn the_secret_and_node_class_users_have_with_a_node_pool_end_in_running_pods() {
    a_new_user(GuestOptions::default().named_by, ProviderOptions::new("prod"));
}

#[test]
fn nodes_named_by_their_kubelet_as_cluster_api_does_it_are_recognised() {
    let options =
        ProviderOptions { provider_id: ProviderIdFormat::ClusterApi, ..ProviderOptions::new("prod") };
    a_new_user(NamedBy::Kubelet, options);
}

#[test]
fn nodes_that_carry_ids_of_another_form_than_expected_are_recognised_all_the_same() {
    a_new_user(NamedBy::Kubelet, ProviderOptions::new("prod"));
}

#[test]
fn without_a_cloud_controller_manager_karpenter_names_the_nodes() {
    a_new_user(NamedBy::Nobody, ProviderOptions { name_nodes: true, ..ProviderOptions::new("prod") });
}

#[test]
fn nodes_that_nobody_names_and_that_wait_for_nobody_are_recognised_by_name_and_address() {
    a_new_user(NamedBy::Nobody, ProviderOptions::new("prod"));
}

#[test]
fn without_a_cloud_controller_manager_nodes_that_wait_for_one_get_their_addresses_too() {
    a_new_user(NamedBy::Awaited, ProviderOptions { name_nodes: true, ..ProviderOptions::new("prod") });
}

#[test]
fn a_node_that_waits_for_a_cloud_controller_manager_that_does_not_come_is_told_of() {
    let done = in_virtual_time(async {
        let guests = GuestOptions { named_by: NamedBy::Awaited, ..GuestOptions::default() };
        let stage = Stage::new(WorldOptions { seed: 6, ..WorldOptions::default() }, guests).await?;
        furnish(&stage.cloud, 2);
        apply_credentials(&stage.world).await?;
        for object in [node_class(), small_nodes(json!({})), deployment("web", 1, "1500m")] {
            stage.world.create(object).await?;
        }
        let karpenter = stage.karpenter(FaultPlan::none(), ProviderOptions::new("prod"));
        karpenter.start();
        stage.world.run_for(Duration::from_secs(6 * 60)).await?;
        let events: Api<Event> = Api::all(stage.world.cluster().client("user"));
        let events = events.list(&ListParams::default()).await.expect("events").items;
        let told = events.iter().find(|event| event.reason.as_deref() == Some("NodeWithoutProviderID"));
        let text = told.and_then(|event| event.message.clone()).unwrap_or_default();
        assert!(text.contains("CLOUDSTACK_NAME_NODES=true") && text.contains("--provider-id="), "{text:?}");
        karpenter.stop(Duration::from_secs(60)).await;
        Ok::<(), karpenter_sim::Trouble>(())
    });
    done.expect("a runtime").unwrap_or_else(|trouble| panic!("{trouble}"));
}

#[test]
fn no_node_is_bought_for_a_pod_that_asks_for_more_of_the_disk_than_kubelet_gives() {
    let done = in_virtual_time(async {
        let stage =
            Stage::new(WorldOptions { seed: 6, ..WorldOptions::default() }, GuestOptions::default()).await?;
        furnish(&stage.cloud, 4);
        apply_credentials(&stage.world).await?;
        let mut class = node_class();
        class["spec"]["rootDiskSize"] = 100.into();
        let asks = |name: &str, disk: &str| {
            let mut asks = deployment(name, 1, "500m");
            asks["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["ephemeral-storage"] =
                disk.into();
            asks
        };
        for object in [class, small_nodes(json!({})), asks("nearly-all", "90Gi"), asks("most", "84Gi")] {
            stage.world.create(object).await?;
        }
        let karpenter = stage.karpenter(FaultPlan::none(), ProviderOptions::new("disks"));
        karpenter.start();
        stage.world.run_for(Duration::from_secs(20 * 60)).await?;
        assert_eq!(stage.cloud.calls()["deployVirtualMachine"], 1, "one for the pod that fits, and no more");
        assert!(stage.world.cluster().read(|objects| all_run(objects, 1)));
        karpenter.stop(Duration::from_secs(60)).await;
        Ok::<(), karpenter_sim::Trouble>(())
    });
    done.expect("a runtime").unwrap_or_else(|trouble| panic!("{trouble}"));
}

#[test]
fn a_template_term_may_name_only_its_family() {
    let done = in_virtual_time(async {
        let stage =
            Stage::new(WorldOptions { seed: 6, ..WorldOptions::default() }, GuestOptions::default()).await?;
        let terms = [
            (json!({"family": "ubuntu-k8s"}), true),
            (json!({"osType": "Ubuntu*"}), true),
            (json!({"version": "22.04"}), false),
            (json!({}), false),
        ];
        for (number, (term, is_taken)) in terms.into_iter().enumerate() {
            let mut class = node_class();
            class["metadata"]["name"] = format!("class-{number}").into();
            class["spec"]["templateSelectorTerms"] = json!([term]);
            assert_eq!(stage.world.create(class).await.is_ok(), is_taken, "{term}");
        }
        let mut class = node_class();
        class["spec"]["userData"] = "x".repeat((1 << 20) + 1).into();
        assert!(stage.world.create(class).await.is_err(), "no server takes so much");
        Ok::<(), karpenter_sim::Trouble>(())
    });
    done.expect("a runtime").unwrap_or_else(|trouble| panic!("{trouble}"));
}

/// The condition of the NodeClass about keys: status, reason, and whether the NodeClass is ready.
async fn about_keys(stage: &Stage) -> (String, String, String) {
    let classes: Api<CloudStackNodeClass> = Api::all(stage.world.cluster().client("user"));
    let class = classes.get("default").await.expect("the NodeClass");
    let of = |kind: &str| class.condition(kind).cloned().unwrap_or_default();
    let keys = of("CredentialsReady");
    (keys.status.as_str().to_owned(), keys.reason().to_owned(), of("Ready").status.as_str().to_owned())
}

/// Writes other keys into the Secret.
async fn write_keys(stage: &Stage, api_key: &str, secret_key: &str) {
    let secrets: Api<Secret> = Api::namespaced(stage.world.cluster().client("user"), "karpenter");
    let patch = json!({"stringData": {"api-key": api_key, "secret-key": secret_key}});
    let how = PatchParams::default();
    secrets.patch("cloudstack-credentials", &how, &Patch::Merge(patch)).await.expect("written");
}

async fn scale(stage: &Stage, replicas: u64) -> Result<(), karpenter_sim::Trouble> {
    let act = Act::Scale { kind: "Deployment", name: "web".to_owned(), replicas };
    Script { acts: vec![(Duration::ZERO, act)] }.play(&stage.world).await?;
    let count = usize::try_from(replicas).unwrap_or(usize::MAX);
    let within = Duration::from_secs(5 * 60);
    stage.world.wait_until("the pods run", within, |objects| all_run(objects, count)).await.map(drop)
}

/// A cloud with Karpenter at work, and a Deployment of one pod that fills a node.
async fn one_web_pod(seed: u64, cluster: &str) -> Result<(Stage, Arc<Process>), Trouble> {
    let stage = Stage::new(WorldOptions { seed, ..WorldOptions::default() }, GuestOptions::default()).await?;
    furnish(&stage.cloud, 4);
    apply_credentials(&stage.world).await?;
    for object in [node_class(), small_nodes(json!({})), deployment("web", 1, "1500m")] {
        stage.world.create(object).await?;
    }
    let karpenter = stage.karpenter(FaultPlan::none(), ProviderOptions::new(cluster));
    karpenter.start();
    Ok((stage, karpenter))
}

#[test]
fn scenario_21_keys_are_exchanged_while_karpenter_runs_and_wrong_ones_are_told_of_and_not_used() {
    let done = in_virtual_time(async {
        let (stage, karpenter) = one_web_pod(21, "keys").await?;
        let world = &stage.world;
        scale(&stage, 2).await?;
        let refused = |stage: &Stage| stage.cloud.log().iter().filter(|entry| entry.status == 401).count();

        // New keys in the Secret, the old ones revoked five seconds later.
        stage.cloud.add_keys("new-api-key", "new-secret-key");
        write_keys(&stage, "new-api-key", "new-secret-key").await;
        world.run_for(Duration::from_secs(5)).await?;
        stage.cloud.revoke_all_keys_but("new-api-key");
        scale(&stage, 4).await?;
        assert_eq!(refused(&stage), 0, "nobody noticed");

        // The other way round: revoked first. One call is refused at most, and sent again with what the Secret says then.
        stage.cloud.add_keys("third-api-key", "third-secret-key");
        stage.cloud.revoke_all_keys_but("third-api-key");
        write_keys(&stage, "third-api-key", "third-secret-key").await;
        scale(&stage, 5).await?;
        let so_far = refused(&stage);
        assert!(so_far <= 2, "{so_far} calls were refused");
        assert_eq!(about_keys(&stage).await, ("True".into(), "CredentialsReady".into(), "True".into()));

        // Wrong ones: told of at once, the old ones go on.
        write_keys(&stage, "wrong-api-key", "wrong-secret-key").await;
        world.run_for(Duration::from_secs(5)).await?;
        assert_eq!(about_keys(&stage).await, ("False".into(), "NewKeysRefused".into(), "True".into()));
        scale(&stage, 6).await?;

        // Put right.
        write_keys(&stage, "third-api-key", "third-secret-key").await;
        world.run_for(Duration::from_secs(5)).await?;
        assert_eq!(about_keys(&stage).await, ("True".into(), "CredentialsReady".into(), "True".into()));
        let events: Api<Event> = Api::all(world.cluster().client("user"));
        let events = events.list(&ListParams::default()).await.expect("events").items;
        let told = events.iter().any(|event| event.reason.as_deref() == Some("NewKeysRefused"));
        assert!(told, "an event says so too");
        let text = serde_json::to_string(&events).expect("JSON");
        assert!(!text.contains("-secret-key"), "no secret is told");
        karpenter.stop(Duration::from_secs(60)).await;
        Ok::<(), karpenter_sim::Trouble>(())
    });
    done.expect("a runtime").unwrap_or_else(|trouble| panic!("{trouble}"));
}

#[test]
fn a_machine_whose_lease_ends_is_replaced_before_it_does() {
    let done = in_virtual_time(async {
        let (stage, karpenter) = one_web_pod(25, "lease").await?;
        let world = &stage.world;
        scale(&stage, 1).await?;
        let leased = stage.cloud.live_machines()[0].id.clone();
        let now = world.cluster().now();
        stage.cloud.lease_machine(&leased, now + Duration::from_secs(3600));
        world.run_for(Duration::from_secs(25 * 60)).await?;
        assert_eq!(stage.cloud.live_machines()[0].id, leased, "there is time yet");
        world.run_for(Duration::from_secs(30 * 60)).await?;
        let machines = stage.cloud.live_machines();
        assert!(machines.len() == 1 && machines[0].id != leased, "{machines:?}");
        assert!(world.cluster().read(|objects| all_run(objects, 1)), "and the pod runs on another");
        karpenter.stop(Duration::from_secs(60)).await;
        Ok::<(), karpenter_sim::Trouble>(())
    });
    done.expect("a runtime").unwrap_or_else(|trouble| panic!("{trouble}"));
}

#[test]
fn prices_of_a_config_map_are_followed_while_karpenter_runs() {
    let done = in_virtual_time(async {
        let stage =
            Stage::new(WorldOptions { seed: 26, ..WorldOptions::default() }, GuestOptions::default()).await?;
        furnish(&stage.cloud, 4);
        let world = &stage.world;
        apply_credentials(world).await?;
        let book = |small: &str| {
            json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "prices", "namespace": "karpenter"},
                "data": {"k8s.small": small, "k8s.medium": "a lot"},
            })
        };
        world.create(book("9.5")).await?;
        let mut class = node_class();
        class["spec"]["pricing"] = json!({"configMapRef": {"namespace": "karpenter", "name": "prices"}});
        world.create(class).await?;
        let karpenter = stage.karpenter(FaultPlan::none(), ProviderOptions::new("prices"));
        karpenter.start();
        let price = async |name: &str| {
            let classes: Api<CloudStackNodeClass> = Api::all(stage.world.cluster().client("user"));
            let status = classes.get("default").await.expect("the NodeClass").status.unwrap_or_default();
            let found = status.service_offerings.unwrap_or_default().into_iter().find(|o| o.name == name);
            found.and_then(|offering| offering.price).unwrap_or_default()
        };
        world.run_for(Duration::from_secs(120)).await?;
        assert_eq!(price("k8s.small").await, "9.5000");
        assert_eq!(price("k8s.medium").await, "0.2000", "what is no price is left out");
        let maps: Api<ConfigMap> = Api::namespaced(world.cluster().client("user"), "karpenter");
        maps.patch("prices", &PatchParams::default(), &Patch::Merge(book("0.01"))).await.expect("written");
        world.run_for(Duration::from_secs(360)).await?;
        assert_eq!(price("k8s.small").await, "0.0100");
        karpenter.stop(Duration::from_secs(60)).await;
        Ok::<(), karpenter_sim::Trouble>(())
    });
    done.expect("a runtime").unwrap_or_else(|trouble| panic!("{trouble}"));
}

/// What a hundred nodes took.
#[derive(Debug)]
struct Figures {
    up_secs: f64,
    down_secs: f64,
    calls_per_node: f64,
}

#[test]
fn a_hundred_nodes_come_and_go_near_the_lower_bound_with_few_calls() {
    const NODES: usize = 100;
    let figures = in_virtual_time(async {
        let stage =
            Stage::new(WorldOptions { seed: 5, ..WorldOptions::default() }, GuestOptions::default()).await?;
        furnish(&stage.cloud, 8);
        // As measured: 25 calls a second, each counted twice.
        let throttle = Throttle { max: 25, interval: Duration::from_secs(1), counts_twice: true };
        stage.cloud.configure(|settings| settings.throttle = Some(throttle));
        let world = &stage.world;
        apply_credentials(&stage.world).await?;
        world.create(node_class()).await?;
        let eager = json!({"consolidationPolicy": "WhenEmpty", "consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]});
        world.create(small_nodes(eager)).await?;
        let karpenter = stage.karpenter(FaultPlan::none(), ProviderOptions::new("scale"));
        karpenter.start();
        world.run_for(Duration::from_secs(60)).await?;
        let before: usize = stage.cloud.calls().values().sum();
        world.create(deployment("big", NODES as u64, "1500m")).await?;
        let ready = |objects: &Objects| {
            objects.nodes.values().filter(|node| node_ready(node) == Some("True")).count() == NODES
                && all_run(objects, NODES)
        };
        let hour = Duration::from_secs(3600);
        let up = world.wait_until("a hundred nodes are ready", hour, ready).await?;
        let delete = Act::Delete { kind: "Deployment", name: "big".to_owned() };
        Script { acts: vec![(Duration::ZERO, delete)] }.play(world).await?;
        let none = |objects: &Objects| objects.nodes.is_empty() && objects.node_claims.is_empty();
        let down = world.wait_until("no node is left", hour, none).await?;
        assert_eq!(stage.cloud.live_machines().len(), 0);
        let calls = stage.cloud.calls().values().sum::<usize>() - before;
        eprintln!("{:?}", stage.cloud.calls());
        let refused = stage.cloud.log().iter().filter(|entry| entry.status == 429).count();
        assert!(refused * 100 <= calls, "{refused} of {calls} calls were too many");
        karpenter.stop(Duration::from_secs(60)).await;
        Ok::<_, karpenter_sim::Trouble>(Figures {
            up_secs: up.as_secs_f64(),
            down_secs: down.as_secs_f64(),
            calls_per_node: calls as f64 / NODES as f64,
        })
    });
    let figures = figures.expect("a runtime").unwrap_or_else(|trouble| panic!("{trouble}"));
    let bound = lower_bound_secs(NODES as f64);
    eprintln!("{figures:?}, lower bound {bound:.0} s up");
    assert!(figures.up_secs <= bound * 1.3, "{figures:?}, at best {bound:.0} s");
    assert!(figures.calls_per_node <= 6.0, "{figures:?}");
    assert!(figures.down_secs <= 180.0, "{figures:?}");
}

/// What the latencies allow: the server accepts one deployment after the other; then the last one is placed, starts, boots,
/// is named and becomes ready, each taking its mean.
fn lower_bound_secs(nodes: f64) -> f64 {
    let latencies = karpenter_sim::cloudstack::settings::Latencies::MEASURED;
    let mean = |span: Span| (span.least + span.most).as_secs_f64() / 2.0;
    let guests = GuestOptions::default();
    let NamedBy::CloudControllerManager(naming) = guests.named_by else { unreachable!("the default") };
    let ready = karpenter_sim::kubelet::Timing::default();
    nodes * mean(latencies.accept)
        + [latencies.place, latencies.start, guests.boot, naming, ready.ready, ready.start]
            .map(mean)
            .iter()
            .sum::<f64>()
}

/// `karpenter cloudstack soak` is the long one.
#[test]
fn a_soak_with_random_faults_leaks_nothing_and_deletes_nothing_that_lives() {
    let played =
        soak(Args { nodes: 10, hours: 1, seed: 8, log: false, tape: false }, |line| eprintln!("{line}"))
            .expect("a runtime");
    let figures = played.unwrap_or_else(|trouble| panic!("{trouble}"));
    assert!(figures.calls <= figures.budget(), "{figures:?}");
}

#[test]
fn seeds_of_the_cloudstack_world_keep_every_rule_and_converge() {
    let (ok, text) = crate::sim::sim(&["--world", "cloudstack", "--seeds", "0..2"]);
    assert!(ok, "{text}");
    assert_eq!(text.lines().filter(|line| line.contains(" result=ok")).count(), 2, "{text}");
    let again = crate::sim::sim(&["--world", "cloudstack", "--seed", "1"]).1;
    assert!(text.contains(again.trim()), "the same seed, the same tape: {again} in {text}");
}

#[test]
fn the_demo_plays_on_cloudstack_too() {
    let run = std::process::Command::new(env!("CARGO_BIN_EXE_karpenter"))
        .args(["demo", "--provider", "cloudstack", "--speed", "10000"])
        .output()
        .expect("the binary runs");
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{text}\n{}", String::from_utf8_lossy(&run.stderr));
    assert!(text.contains("CloudStackNodeClass") && text.contains("zone-02"), "{text}");
    assert!(text.contains("$0.000/h now"), "an empty cluster costs nothing: {text}");
}
