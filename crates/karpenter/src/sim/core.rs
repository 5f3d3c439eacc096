//! The core world: users come and go for a quarter of an hour while the API server, the cloud and the process itself fail;
//! then everything heals and must come right, and when all work is gone so must be every machine.

use std::sync::Arc;

use karpenter_runtime::entropy::Entropy;
use karpenter_sim::chance::{Chance, Span};
use karpenter_sim::cloud::{CloudFaults, CloudOptions};
use karpenter_sim::faults::FaultPlan;
use karpenter_sim::traffic::{self, Script, Volume};
use karpenter_sim::{Process, Trouble, World, WorldOptions, invariants};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::cloud::{Platform, node_class_objects, node_class_ref};
use super::course::{MINUTE, discontent, discontent_and_nodes, go_home, told, wait_until_nothing_is_left};
use super::{Report, Run, operator};

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
        Err(trouble) => return Report::failed_to_begin(&trouble),
    };
    world.cluster().watch_over(invariants::all("karpenter"));
    let plan = if run.calm { FaultPlan::default() } else { FaultPlan::swarm(world.cluster().entropy()) };
    let platform = Platform::default().mistaken(run.plant);
    let process = world.process("karpenter", plan, operator::karpenter(operator::settings(&[]), platform));
    run.plant_into(&process);
    let result = live(&world, &process, run).await;
    let instances = world.cluster().inventory(|inventory| inventory.len());
    let failure = result.err().map(|trouble| told(&trouble, &world.cluster().read(discontent_and_nodes)));
    Report::of(world.cluster(), &process, &format!("instances={instances}"), failure)
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

    go_home(world, &script).await?;
    wait_until_nothing_is_left(world).await?;
    process.stop(MINUTE).await;
    Ok(())
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
