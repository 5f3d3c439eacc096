//! Seeded runs: everything fails for a while, then heals and must come right (O1 to O6).

use karpenter_runtime::entropy::Entropy;
use karpenter_sim::chance::{Chance, Span};
use karpenter_sim::cluster_api::{self, Kind, Lag, UPGRADING};
use karpenter_sim::faults::FaultPlan;
use serde_json::json;

use crate::rig::{MAX, MINUTE, NAMESPACE, Rig, SECOND, initialized, scenario};

/// How many seeds `cargo test` runs; set `CLUSTER_API_SEEDS` to `A..B` for others.
fn seeds() -> std::ops::Range<u64> {
    let text = std::env::var("CLUSTER_API_SEEDS").unwrap_or_default();
    let range = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    range.unwrap_or(0..3)
}

#[test]
fn whatever_fails_everything_comes_right_in_the_end() {
    for seed in seeds() {
        eprintln!("seed {seed}");
        scenario(live(seed));
    }
}

async fn live(seed: u64) {
    let entropy = Entropy::from_seed(seed);
    let (workload, hub) =
        (FaultPlan::swarm(&entropy.child("workload")), FaultPlan::swarm(&entropy.child("hub")));
    let mut chance = Chance::new(&entropy, "traffic");
    let class = json!({"timeouts": {"launch": "8m", "surplus": "3m"}, "drift": "Off"});
    let rig = Rig::lagging(seed, class, workload, hub, Lag::drawn).await;
    let slow = json!({"provisionSeconds": chance.between(1, 120), "joinSeconds": 5, "deleteSeconds": chance.between(0, 60)});
    rig.create(cluster_api::template(NAMESPACE, "slow", slow)).await;
    let full = json!({"quota": chance.between(1, 4), "provisionSeconds": 5});
    rig.create(cluster_api::template(NAMESPACE, "full", full)).await;
    let price = |text: &'static str| ("karpenter.cluster.x-k8s.io/price", text);
    rig.create(cluster_api::machine_deployment(NAMESPACE, "c", "full", "full", &[(MAX, "8"), price("0.1")]))
        .await;
    rig.create(cluster_api::machine_deployment(NAMESPACE, "c", "slow", "slow", &[(MAX, "4"), price("0.2")]))
        .await;
    rig.deployment("m", &[(MAX, "50"), price("0.3")]).await;
    if chance.happens(0.3) {
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 2}})).await;
        rig.pass(30 * SECOND).await;
    }
    rig.karpenter.start();
    let danger = rig.karpenter.endanger(Span::secs(30, 240), Span::secs(1, 20));
    for _ in 0..8 {
        let wanted = usize::try_from(chance.below(12)).unwrap_or(0);
        rig.want(wanted);
        match chance.below(5) {
            0 => {
                let paused = json!({"spec": {"paused": true}});
                rig.patch(Kind::Cluster, "c", paused).await;
                rig.pass(chance.duration(&Span::secs(10, 300))).await;
                rig.patch(Kind::Cluster, "c", json!({"spec": {"paused": false}})).await;
            }
            1 => {
                rig.patch(
                    Kind::Cluster,
                    "c",
                    json!({"metadata": {"annotations": {UPGRADING: "the control plane"}}}),
                )
                .await;
                rig.pass(chance.duration(&Span::secs(10, 600))).await;
                rig.patch(Kind::Cluster, "c", json!({"metadata": {"annotations": {UPGRADING: null}}})).await;
            }
            2 => {
                rig.capi.run_machine_sets(false);
                rig.pass(chance.duration(&Span::secs(5, 120))).await;
                rig.capi.run_machine_sets(true);
            }
            _ => {}
        }
        let names: Vec<String> = rig.read(|objects| {
            let live =
                objects.node_claims.iter().filter(|(_, claim)| claim.metadata.deletion_timestamp.is_none());
            live.map(|(key, _)| key.name.to_string()).collect()
        });
        // Nobody needs them any more, or somebody deletes one by hand.
        let excess = names.len().saturating_sub(wanted).max(usize::from(chance.happens(0.4)));
        for name in names.iter().take(excess) {
            rig.delete_claim_if_there(name).await;
        }
        rig.pass(chance.duration(&Span::secs(10, 300))).await;
    }
    rig.karpenter.faults().heal();
    rig.hub.heal();
    // Ends at its next turn, with the process running.
    let _ = danger.await;
    rig.want(5);
    rig.until("at least five nodes are ready", 120 * MINUTE, |objects| {
        initialized(objects) >= 5
            && objects
                .node_claims
                .values()
                .all(|claim| claim.status.as_ref().is_some_and(|s| s.provider_id.is_some()))
    })
    .await;
    rig.pass(20 * MINUTE).await;
    rig.at_rest();
}
