//! A clock that leaps ahead, and is set right within the time in which it is doubted: nothing is given up or let go for that.

use std::time::Duration;

use karpenter_sim::Objects;
use karpenter_sim::cluster_api::{self, Kind};
use kube::api::DeleteParams;
use serde_json::json;

use crate::core;
use crate::rig::{CLUSTER, MAX, MINUTE, NAMESPACE, Rig, SECOND, claimed, initialized, scenario};

/// Longer than anything may take.
const LEAP: Duration = Duration::from_secs(60 * 60);
/// Less than the time for which a leap is doubted.
const WRONG: Duration = Duration::from_secs(40);

/// Lives through a leap that turns out to be wrong; `look` is taken just before that.
async fn leap<T>(rig: &Rig, look: impl FnOnce(&Rig) -> T) -> T {
    rig.karpenter.set_ahead(LEAP);
    rig.pass(WRONG).await;
    let seen = look(rig);
    rig.karpenter.set_ahead(Duration::ZERO);
    rig.pass(SECOND).await;
    seen
}

fn claims(rig: &Rig) -> Vec<String> {
    rig.read(|objects| objects.node_claims.keys().map(|key| key.name.to_string()).collect())
}

/// The name of the only Machine.
fn machine(rig: &Rig) -> String {
    let name = rig.read(|objects| objects.machines.keys().next().map(|key| key.name.to_string()));
    name.expect("a Machine")
}

#[test]
fn a_leap_of_the_clock_gives_up_no_launch() {
    for mode in ["MachineDeployment", "Machine"] {
        scenario(async {
            let rig = Rig::new(json!({"launchMode": mode})).await;
            let slow = json!({"provisionSeconds": 120, "joinSeconds": 2});
            rig.create(cluster_api::template(NAMESPACE, "slow", slow)).await;
            let deployment = cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "slow", &[(MAX, "10")]);
            rig.create(deployment).await;
            rig.karpenter.start();
            rig.want(1);
            rig.until("a Machine is on its way", MINUTE, |objects| claimed(objects) == 1).await;
            assert_eq!(leap(&rig, claims).await, ["n1"], "{mode}: it has waited for less than a minute");
            rig.until("the node is ready", 5 * MINUTE, |objects| initialized(objects) == 1).await;
            assert_eq!((claims(&rig), rig.read(claimed)), (vec!["n1".to_owned()], 1), "{mode}");
            rig.at_rest();
        });
    }
}

#[test]
fn a_leap_of_the_clock_makes_no_termination_overdue() {
    scenario(async {
        let rig = Rig::with_a_node(json!({})).await;
        let hook = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/backup";
        let held = json!({"metadata": {"annotations": {hook: ""}}});
        rig.patch(Kind::Machine, &machine(&rig), held).await;
        let by = rig.world.cluster().now() + jiff::SignedDuration::from_mins(10);
        rig.annotate_claim("n1", "karpenter.sh/nodeclaim-termination-timestamp", &by.to_string()).await;
        rig.want(0);
        rig.delete_claim("n1").await;
        rig.pass(20 * SECOND).await;
        let hurried = |rig: &Rig| {
            rig.read(|objects| {
                let annotations = objects.machines.values().filter_map(|m| m.metadata.annotations.as_ref());
                let key = "machine.cluster.x-k8s.io/exclude-wait-for-node-volume-detach";
                annotations.filter(|all| all.contains_key(key)).count()
            })
        };
        assert_eq!(leap(&rig, hurried).await, 0, "there are minutes left");
        rig.pass(11 * MINUTE).await;
        assert_eq!(hurried(&rig), 1);
    });
}

#[test]
fn a_leap_of_the_clock_lets_no_machine_go_undrained() {
    scenario(async {
        let rig = Rig::with_a_node(json!({"timeouts": {"hook": "10m"}})).await;
        rig.want(0);
        rig.annotate_claim("n1", core::UNDRAINED, "").await;
        let machine = machine(&rig);
        rig.api(Kind::Machine).delete(&machine, &DeleteParams::default()).await.expect("a deletion");
        rig.pass(20 * SECOND).await;
        let hook = "pre-drain.delete.hook.machine.cluster.x-k8s.io/karpenter";
        let waits = |rig: &Rig| {
            rig.read(|objects| {
                let found = objects.machines.iter().find(|(key, _)| *key.name == *machine);
                let annotations = found.and_then(|(_, found)| found.metadata.annotations.as_ref());
                annotations.is_some_and(|all| all.contains_key(hook))
            })
        };
        assert!(leap(&rig, waits).await, "its node is being drained");
        let is_gone = |objects: &Objects| objects.machines.keys().all(|key| *key.name != *machine);
        rig.until("it goes when its time is up", 12 * MINUTE, is_gone).await;
    });
}
