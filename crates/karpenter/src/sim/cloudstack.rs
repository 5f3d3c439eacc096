//! The CloudStack world: users come and go for a quarter of an hour while the API server, CloudStack, its hosts, its
//! administrators and the process itself fail; then everything heals and must come right, and when all work is gone so must
//! be every machine.

use std::sync::Arc;

use karpenter_provider_cloudstack::ProviderOptions;
use karpenter_runtime::entropy::Entropy;
use karpenter_sim::chance::{Chance, Span};
use karpenter_sim::cloudstack::MachineView;
use karpenter_sim::cloudstack::accidents::Accidents;
use karpenter_sim::cloudstack::checks;
use karpenter_sim::cloudstack::faults::Rates;
use karpenter_sim::cloudstack::guests::{GuestOptions, NamedBy};
use karpenter_sim::faults::FaultPlan;
use karpenter_sim::traffic::{self, Script, Volume};
use karpenter_sim::{Objects, Process, Trouble, WorldOptions, invariants};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::course::{MINUTE, discontent, go_home, told};
use super::{Report, Run};
use crate::cloudstack::stage::{Stage, apply_credentials, furnish, node_class, node_class_ref};

/// The other account of seeds that have two, its Secret and its NodeClass.
const OTHER: &str = "other";

/// Lives through one seed.
pub(super) async fn simulate(run: Run) -> Report {
    let entropy = Entropy::from_seed(run.seed);
    let mut chance = Chance::new(&entropy, "cloudstack world");
    let stillborn = if run.calm || chance.happens(0.5) { 0.0 } else { 0.05 };
    let by_kubelet = chance.happens(0.25);
    let guests = GuestOptions {
        stillborn,
        named_by: if by_kubelet { NamedBy::Nobody } else { GuestOptions::default().named_by },
        ..GuestOptions::default()
    };
    let options = WorldOptions { seed: run.seed, ..WorldOptions::default() };
    let stage = match Stage::new(options, guests).await {
        Ok(stage) => stage,
        Err(trouble) => return Report::failed_to_begin(&trouble),
    };
    furnish(&stage.cloud, 3);
    let cluster = stage.world.cluster();
    cluster.watch_over(invariants::all("karpenter"));
    cluster.watch_over(checks::all(&stage.cloud));
    let plan = if run.calm { FaultPlan::default() } else { FaultPlan::swarm(cluster.entropy()) };
    let options = ProviderOptions { name_nodes: by_kubelet, ..ProviderOptions::new("sim") };
    let process = stage.karpenter(plan, options);
    run.plant_into(&process);
    let result = live(&stage, &process, run).await;
    let failure = result.err().map(|trouble| told(&trouble, &unrest(&stage)));
    let calls: usize = stage.cloud.calls().values().sum();
    let deployments = stage.cloud.calls().get("deployVirtualMachine").copied().unwrap_or(0);
    let counts = format!("deployments={deployments} calls={calls}");
    Report::of(cluster, &process, &counts, failure)
}

async fn live(stage: &Stage, process: &Arc<Process>, run: Run) -> Result<(), Trouble> {
    let world = &stage.world;
    let mut chance = Chance::new(world.cluster().entropy(), "traffic");
    apply_credentials(&stage.world).await?;
    let mut class = node_class();
    if Chance::new(world.cluster().entropy(), "disks").happens(0.25) {
        class["spec"]["dataDisks"] = json!([{"offering": "k8s.data20"}]);
    }
    world.create(class).await?;
    // Of its own stream, so that seeds stay what they were.
    let two_accounts = Chance::new(world.cluster().entropy(), "accounts").happens(0.25);
    if two_accounts {
        stage.cloud.add_account(OTHER, "k8s-network");
        for object in other_account() {
            world.create(object).await?;
        }
    }
    for number in 0..chance.between(1, 2) {
        let mut pool = node_pool(&mut chance, &format!("pool-{number}"));
        if two_accounts && number == 0 {
            pool["spec"]["template"]["spec"]["nodeClassRef"]["name"] = OTHER.into();
        }
        world.create(pool).await?;
    }
    process.start();
    let volume = Volume { deployments: 3, replicas: 5, period: 10 * MINUTE };
    let script = Script::draw(&mut chance, &volume);
    if run.calm {
        script.play(world).await?;
        world.run_for(3 * MINUTE).await?;
    } else {
        let rates = Rates::swarm(&mut Chance::new(world.cluster().entropy(), "cloudstack rates"));
        let accidents = tokio::spawn(Accidents::new(&stage.cloud, world.cluster(), rates).happen());
        let danger = process.endanger(Span::secs(60, 300), Span::secs(1, 20));
        let unrest = tokio::spawn(traffic::delete_claims(world.cluster().clone(), process.faults().clone()));
        script.play(world).await?;
        world.run_for(3 * MINUTE).await?;
        process.faults().heal();
        stage.cloud.heal();
        stage.guests.behave(|guests| guests.stillborn = 0.0);
        // They end at their next turn, with the process running.
        let _ = (danger.await, unrest.await, accidents.await);
    }
    let healed = Instant::now();
    let content = |objects: &Objects| discontent(objects).is_empty();
    world.wait_until("every pod is ready", 90 * MINUTE, content).await?;
    world.run_for(5 * MINUTE).await?;
    world.wait_until("every pod is ready still", 60 * MINUTE, content).await?;
    world.run_for((12 * MINUTE).saturating_sub(healed.elapsed())).await?;
    world.cluster().check_at_rest(healed.elapsed())?;

    go_home(world, &script).await?;
    let empty = |objects: &Objects| objects.node_claims.is_empty();
    world.wait_until("every NodeClaim is gone", 90 * MINUTE, empty).await?;
    let started = Instant::now();
    while !machines(stage).is_empty() {
        world.run_for(MINUTE).await?;
        if started.elapsed() > 20 * MINUTE {
            let what = format!("the end of {}", machines(stage).join(", "));
            return Err(Trouble::TooLong { what, within: 20 * MINUTE, at: world.cluster().elapsed() });
        }
    }
    process.stop(MINUTE).await;
    Ok(())
}

/// A Secret with the keys of the other account, and a NodeClass that is served with them.
fn other_account() -> [Value; 2] {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": OTHER, "namespace": "karpenter"},
        "stringData": {
            "api-url": "https://cloudstack.example.com/client/api",
            "api-key": format!("{OTHER}-api-key"), "secret-key": format!("{OTHER}-secret-key"),
        },
    });
    let mut class = node_class();
    class["metadata"]["name"] = OTHER.into();
    class["spec"]["credentialsRef"] = json!({"namespace": "karpenter", "name": OTHER});
    [secret, class]
}

/// Names of Karpenter's machines that are there, also of those that failed to start.
fn machines(stage: &Stage) -> Vec<String> {
    let ours = |machine: &MachineView| machine.is_there() && machine.name.starts_with("karpenter-");
    let ours = stage.cloud.machines().into_iter().filter(ours);
    ours.map(|machine| format!("{} ({})", machine.name, machine.state)).collect()
}

fn node_pool(chance: &mut Chance, name: &str) -> Value {
    let after = ["0s", "30s", "5m", "Never"][usize::try_from(chance.below(4)).unwrap_or(0)];
    let policy = if chance.happens(0.5) { "WhenEmpty" } else { "WhenEmptyOrUnderutilized" };
    let nodes = ["1", "50%", "100%"][usize::try_from(chance.below(3)).unwrap_or(0)];
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name},
        "spec": {
            "weight": chance.between(1, 100),
            "disruption": {
                "consolidationPolicy": policy, "consolidateAfter": after, "budgets": [{"nodes": nodes}],
            },
            "template": {"spec": {
                "nodeClassRef": node_class_ref(),
                "requirements": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}],
                "expireAfter": if chance.happens(0.3) { "20m" } else { "Never" },
            }},
        },
    })
}

/// What does not look right, for whoever reads a failure.
fn unrest(stage: &Stage) -> Vec<String> {
    let mut lines = stage.world.cluster().read(discontent);
    lines.extend(stage.guests.problems());
    lines.extend(stage.cloud.machines().iter().map(|machine| {
        format!(
            "machine {} {} {} {:?}",
            machine.name,
            machine.id,
            machine.state,
            machine.tags.get("karpenter.sh/nodeclaim")
        )
    }));
    stage.world.cluster().read(|objects| {
        for claim in objects.node_claims.values() {
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            let id = claim.status.as_ref().and_then(|status| status.provider_id.clone()).unwrap_or_default();
            lines.push(format!(
                "nodeclaim {name} {id} deleted={:?}",
                claim.metadata.deletion_timestamp.is_some()
            ));
        }
        for node in objects.nodes.values() {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            let id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default();
            lines.push(format!("node {name} {id}"));
        }
    });
    lines
}
