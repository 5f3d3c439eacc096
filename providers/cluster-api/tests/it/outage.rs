//! What the provider says of nodes while the management cluster is away: nothing is to be given up that could neither be ended nor
//! replaced.

use std::time::Duration;

use futures_util::FutureExt as _;
use http::Method;
use karpenter_api::NodeClaim;
use karpenter_cloudprovider::{CloudProvider as _, DisruptionHold};
use karpenter_sim::cluster_api::Kind;
use karpenter_sim::faults::{FaultPlan, Refusal};
use serde_json::json;

use crate::core;
use crate::refusals::{Forbidden, answering, forbid, hanging};
use crate::rig::{MAX, MINUTE, Rig, SECOND, initialized, scenario};

/// So long after the management cluster fell silent that is known.
const NOTICED: Duration = Duration::from_secs(90);

/// A NodeClaim that is up.
fn claim(rig: &Rig) -> NodeClaim {
    let found = rig.read(|objects| objects.node_claims.values().next().map(|claim| NodeClaim::clone(claim)));
    found.expect("a NodeClaim")
}

fn hold(rig: &Rig) -> Option<DisruptionHold> {
    rig.provider().disruption_hold(&claim(rig))
}

/// Two nodes.
async fn rig_of_two(mode: &str) -> Rig {
    let rig = Rig::new(json!({"launchMode": mode})).await;
    rig.deployment("m", &[(MAX, "10")]).await;
    rig.karpenter.start();
    rig.want(2);
    rig.until("two nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
    rig
}

#[test]
fn a16_while_the_management_cluster_is_away_no_node_may_be_disrupted() {
    for mode in ["MachineDeployment", "Machine"] {
        scenario(async move {
            let rig = rig_of_two(mode).await;
            rig.pass(10 * MINUTE).await;
            assert_eq!(hold(&rig), None);
            let reason = "the management cluster is out of reach".to_owned();
            let held = Some(DisruptionHold { reason, leaving: false, stuck: true });
            let begin: [&dyn Fn(&Rig); 3] = [
                &|rig| rig.hub.cut_off(40 * MINUTE),
                &|rig| rig.hub.refuse(Refusal::Unauthorized, 40 * MINUTE),
                &|rig| rig.hub.refuse(Refusal::Forbidden, 40 * MINUTE),
            ];
            for begin in begin {
                begin(&rig);
                rig.pass(NOTICED).await;
                for _ in 0..38 {
                    assert_eq!(hold(&rig), held, "all the time");
                    rig.pass(MINUTE).await;
                }
                rig.pass(3 * MINUTE).await;
                assert_eq!(hold(&rig), None, "it is over when it answers");
            }
        });
    }
}

#[test]
fn a_node_that_cluster_api_was_deleting_when_its_cluster_fell_silent_still_counts_as_leaving() {
    scenario(async {
        let rig = rig_of_two("MachineDeployment").await;
        // Somebody's hook keeps it.
        let name = claim(&rig).metadata.annotations.and_then(|all| {
            all.get("karpenter.cluster.x-k8s.io/machine")
                .and_then(|key| key.rsplit('/').next().map(str::to_owned))
        });
        let name = name.expect("a Machine");
        let hook =
            json!({"metadata": {"annotations": {"pre-drain.delete.hook.machine.cluster.x-k8s.io/x": "y"}}});
        rig.patch(Kind::Machine, &name, hook).await;
        rig.api(Kind::Machine).delete(&name, &Default::default()).await.expect("a deletion");
        rig.pass(10 * SECOND).await;
        let told = hold(&rig).map(|hold| (hold.leaving, hold.stuck));
        assert_eq!(told, Some((true, false)));
        rig.hub.cut_off(10 * MINUTE);
        rig.pass(NOTICED).await;
        assert_eq!(hold(&rig).map(|hold| (hold.leaving, hold.stuck)), Some((true, true)));
    });
}

#[test]
fn who_has_never_heard_of_the_management_cluster_gives_up_no_node() {
    scenario(async {
        let rig = rig_of_two("MachineDeployment").await;
        rig.karpenter.kill();
        rig.hub.cut_off(20 * MINUTE);
        rig.karpenter.start();
        rig.pass(5 * MINUTE).await;
        assert_eq!(hold(&rig).map(|hold| hold.stuck), Some(true));
        rig.pass(20 * MINUTE).await;
        assert_eq!(hold(&rig), None);
    });
}

#[test]
fn templates_that_take_long_to_be_read_do_not_make_the_management_cluster_look_away() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        let (slow, handle) = (Forbidden::default(), core::Handle::default());
        let (hub, what, left) = (rig.hub.clone(), slow.clone(), handle.clone());
        let karpenter = rig.world.process("karpenter", FaultPlan::none(), move |life| {
            let management = hanging(life.client_behind(&hub), Method::GET, what.clone(), 2 * MINUTE);
            let left = left.clone();
            async move { core::live_as(life, management, core::settings(), &left).await }.boxed()
        });
        karpenter.start();
        rig.want(1);
        rig.until("a node is ready", 10 * MINUTE, |objects| initialized(objects) == 1).await;
        forbid(&slow, "/simmachinetemplates");
        let provider = handle.lock().expect("a provider").clone().expect("a process that runs");
        for _ in 0..120 {
            rig.pass(5 * SECOND).await;
            assert_eq!(provider.disruption_hold(&claim(&rig)), None, "everything else is answered");
        }
    });
}

#[test]
fn a_kind_that_the_management_cluster_cannot_convert_holds_no_node_and_one_that_serves_nothing_holds_all() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        let (broken, handle) = (Forbidden::default(), core::Handle::default());
        let (hub, what, left) = (rig.hub.clone(), broken.clone(), handle.clone());
        let karpenter = rig.world.process("karpenter", FaultPlan::none(), move |life| {
            let error = (500, "conversion webhook failed: connection refused");
            let management = answering(life.client_behind(&hub), what.clone(), None, error);
            let left = left.clone();
            async move { core::live_as(life, management, core::settings(), &left).await }.boxed()
        });
        karpenter.start();
        rig.want(2);
        rig.until("two nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
        rig.pass(5 * MINUTE).await;
        let provider = handle.lock().expect("a provider").clone().expect("a process that runs");
        let stuck = || provider.disruption_hold(&claim(&rig)).is_some_and(|hold| hold.stuck);
        forbid(&broken, "/simmachinetemplates");
        for _ in 0..60 {
            rig.pass(5 * SECOND).await;
            assert!(!stuck(), "the others are served");
        }
        forbid(&broken, "/");
        rig.pass(NOTICED).await;
        for _ in 0..60 {
            assert!(stuck(), "all the time");
            rig.pass(5 * SECOND).await;
        }
        forbid(&broken, "");
        rig.pass(3 * MINUTE).await;
        assert!(!stuck(), "it is over when it serves again");
    });
}
