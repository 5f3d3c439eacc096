//! The core world: users come and go for a quarter of an hour while the API server, the cloud and the process itself fail;
//! then everything heals and must come right, and when all work is gone so must be every machine.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use karpenter_api::{NodeClaim, NodePool};
use karpenter_runtime::entropy::Entropy;
use karpenter_runtime::options::{Environ, Options};
use karpenter_sim::chance::{Chance, Span};
use karpenter_sim::cloud::{CloudFaults, CloudOptions};
use karpenter_sim::faults::FaultPlan;
use karpenter_sim::objects::{is_active, is_ready, node_of};
use karpenter_sim::traffic::{self, Act, Script, Volume};
use karpenter_sim::{Cluster, Objects, Process, Trouble, World, WorldOptions, invariants};
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::cloud::{Platform, node_class_objects, node_class_ref};
use super::{Report, Run, operator};

const MINUTE: Duration = Duration::from_secs(60);

/// Lives through one seed.
pub(super) async fn simulate(run: Run) -> Report {
    let entropy = Entropy::from_seed(run.seed);
    let faults = if run.calm {
        CloudFaults::default()
    } else {
        CloudFaults::swarm(&mut Chance::new(&entropy, "cloud faults"))
    };
    let cloud = CloudOptions { list_lag: Span::secs(0, 5), faults, ..CloudOptions::default() };
    let world = match World::new(WorldOptions { seed: run.seed, cloud, ..WorldOptions::default() }).await {
        Ok(world) => world,
        Err(trouble) => return failed_to_begin(&trouble),
    };
    world.cluster().watch_over(invariants::all("karpenter"));
    let plan = if run.calm { FaultPlan::default() } else { FaultPlan::swarm(world.cluster().entropy()) };
    let process = world.process("karpenter", plan, operator::karpenter(settings(), Platform::default()));
    if let Some(plant) = run.plant {
        process.faults().plant(Arc::new(plant));
    }
    let result = live(&world, &process, run).await;
    let instances = world.cluster().inventory(|inventory| inventory.len());
    let failure = result.err().map(|trouble| {
        let state = world.cluster().read(discontent);
        format!("{trouble}\n{}", state.join("\n"))
    });
    world.cluster().tape(|tape| Report {
        tape: tape.entries().iter().map(|entry| format!("{entry}\n")).collect(),
        digest: tape.digest(),
        summary: format!(
            "writes={} instances={instances} lives={} virtual={}s",
            tape.entries().len(),
            process.lives(),
            world.cluster().elapsed().as_secs()
        ),
        failure,
    })
}

/// All settings as they are unless somebody says otherwise.
fn settings() -> Arc<Options> {
    match Options::parse([], &Environ::new()) {
        Ok(options) => Arc::new(options),
        Err(error) => unreachable!("no settings at all are valid: {error}"),
    }
}

pub(super) fn failed_to_begin(trouble: &Trouble) -> Report {
    Report {
        tape: String::new(),
        digest: "-".to_owned(),
        summary: String::new(),
        failure: Some(trouble.to_string()),
    }
}

async fn live(world: &World, process: &Arc<Process>, run: Run) -> Result<(), Trouble> {
    let mut chance = Chance::new(world.cluster().entropy(), "traffic");
    for object in node_class_objects() {
        world.create(object).await?;
    }
    for number in 0..chance.between(1, 3) {
        world.create(node_pool(&mut chance, &format!("pool-{number}"))).await?;
    }
    process.start();
    let volume = Volume { deployments: 3, replicas: 6, period: 12 * MINUTE };
    let script = Script::draw(&mut chance, &volume);
    if run.calm {
        script.play(world).await?;
        world.run_for(3 * MINUTE).await?;
    } else {
        let danger = process.endanger(Span::secs(60, 300), Span::secs(1, 20));
        let unrest = tokio::spawn(traffic::delete_claims(world.cluster().clone(), process.faults().clone()));
        script.play(world).await?;
        world.run_for(3 * MINUTE).await?;
        process.faults().heal();
        world.cloud().heal();
        // They end at their next turn, with the process running.
        let _ = (danger.await, unrest.await);
    }
    let healed = Instant::now();
    world.wait_until("every pod is ready", 60 * MINUTE, |objects| discontent(objects).is_empty()).await?;
    world.run_for(5 * MINUTE).await?;
    world
        .wait_until("every pod is ready still", 30 * MINUTE, |objects| discontent(objects).is_empty())
        .await?;
    world.cluster().check_at_rest(healed.elapsed())?;

    // Everyone goes home.
    let acts = script.acts.iter().filter_map(|(_, act)| match act {
        Act::Create(object) => farewell(object),
        _ => None,
    });
    Script { acts: acts.map(|act| (Duration::ZERO, act)).collect() }.play(world).await?;
    delete_all::<NodePool>(world.cluster()).await;
    delete_all::<NodeClaim>(world.cluster()).await;
    let empty = |objects: &Objects| objects.node_claims.is_empty() && objects.nodes.is_empty();
    world.wait_until("every node is gone", 90 * MINUTE, empty).await?;
    world.run_for(MINUTE).await?;
    let left = world.cluster().inventory(|inventory| inventory.live().count());
    if left > 0 {
        return Err(Trouble::TooLong {
            what: format!("{left} machines without a NodeClaim being removed"),
            within: 90 * MINUTE,
            at: world.cluster().elapsed(),
        });
    }
    process.stop(MINUTE).await;
    Ok(())
}

pub(super) fn farewell(object: &Value) -> Option<Act> {
    let name = object.pointer("/metadata/name")?.as_str()?.to_owned();
    let kind = ["Deployment", "StatefulSet", "Job"].into_iter().find(|kind| object["kind"] == *kind)?;
    Some(Act::Delete { kind, name })
}

pub(super) async fn delete_all<K>(cluster: &Cluster)
where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let api: Api<K> = Api::all(cluster.client("user"));
    // The world's own clients are never refused; what is gone by itself is gone.
    let _ = api.delete_collection(&DeleteParams::background(), &ListParams::default()).await;
}

fn node_pool(chance: &mut Chance, name: &str) -> Value {
    let after = ["0s", "30s", "5m", "Never"][usize::try_from(chance.below(4)).unwrap_or(0)];
    let policy = if chance.happens(0.5) { "WhenEmpty" } else { "WhenEmptyOrUnderutilized" };
    let nodes = ["1", "10%", "50%", "100%"][usize::try_from(chance.below(4)).unwrap_or(0)];
    let mut template = json!({"spec": {
        "nodeClassRef": node_class_ref(),
        "requirements": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}],
        "expireAfter": if chance.happens(0.3) { "15m" } else { "Never" },
    }});
    if chance.happens(0.3) {
        template["spec"]["terminationGracePeriod"] = json!(format!("{}s", chance.between(30, 300)));
    }
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name},
        "spec": {
            "weight": chance.between(1, 100),
            "disruption": {
                "consolidationPolicy": policy,
                "consolidateAfter": after,
                "budgets": [{"nodes": nodes}],
            },
            "template": template,
        },
    })
}

/// Pods that should run and do not. A NodeClaim may be on its way out for as long as a pod on it refuses to be moved.
pub(super) fn discontent(objects: &Objects) -> Vec<String> {
    let is_daemon =
        |pod: &Pod| pod.metadata.owner_references.iter().flatten().any(|owner| owner.kind == "DaemonSet");
    let waiting = objects.pods.values().filter(|pod| is_active(pod) && !is_ready(pod) && !is_daemon(pod));
    let tell = |pod: &Arc<Pod>| {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        format!("pod {name} on {} is not ready", node_of(pod).unwrap_or("no node"))
    };
    waiting.map(tell).collect()
}
