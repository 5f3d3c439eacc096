//! Faults between a client and the server, and processes that die.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use karpenter_runtime::informer::Informer;
use karpenter_sim::chance::Span;
use karpenter_sim::faults::{Fault, FaultPlan, Refusal};
use karpenter_sim::process::{CrashPoint, Life};
use karpenter_sim::{Process, World};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use serde_json::json;

use crate::objects::{MINUTE, quick};

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

fn maps(world: &World) -> usize {
    world.cluster().server().snapshot().list("", "configmaps").count()
}

/// A process that does one thing and then waits to be killed; what came of it is told.
fn one_shot(world: &World, plan: FaultPlan) -> (Arc<Process>, Arc<Mutex<Vec<String>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let diary = Arc::clone(&told);
    let process = world.process("subject", plan, move |life: Life| {
        let diary = Arc::clone(&diary);
        async move {
            let api: Api<ConfigMap> = Api::default_namespaced(life.client);
            let result = api.create(&PostParams::default(), &config_map(&format!("m{}", life.number))).await;
            let text = match result {
                Ok(_) => "ok".to_owned(),
                Err(kube::Error::Api(status)) => status.code.to_string(),
                Err(_) => "broken".to_owned(),
            };
            diary.lock().unwrap().push(text);
            std::future::pending::<()>().await;
        }
        .boxed()
    });
    (process, told)
}

#[tokio::test(start_paused = true)]
async fn each_kind_of_fault_does_what_it_says() {
    for (fault, told, written) in [
        (Fault::TooManyRequests, "429", Some(0)),
        (Fault::InternalError, "500", Some(0)),
        (Fault::GatewayTimeout, "504", None),
        (Fault::LostReply, "broken", Some(1)),
        (Fault::Outage, "broken", Some(0)),
        (Fault::Latency, "ok", Some(1)),
        (Fault::Conflict, "ok", Some(1)),
    ] {
        let world = quick(1);
        let (process, diary) = one_shot(&world, FaultPlan::none().with(fault, 1.0));
        process.start();
        world.run_for(MINUTE).await.unwrap();
        assert_eq!(*diary.lock().unwrap(), [told], "{fault}");
        if let Some(written) = written {
            assert_eq!(maps(&world), written, "{fault}");
        }
        assert_eq!(process.faults().counts().contains_key(&fault), fault != Fault::Conflict, "{fault}");
        process.faults().heal();
        process.kill();
        process.start();
        world.run_for(MINUTE).await.unwrap();
        assert_eq!(diary.lock().unwrap().last().unwrap(), "ok", "{fault} heals");
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_dies_before_or_after_a_write_and_is_told_nothing() {
    for (after_commit, written) in [(false, 0), (true, 1)] {
        let world = quick(2);
        let (process, diary) = one_shot(&world, FaultPlan::none());
        process.start();
        process.crash_at(CrashPoint { writes: 0, after_commit });
        world.run_for(MINUTE).await.unwrap();
        assert!(!process.is_running() && diary.lock().unwrap().is_empty());
        assert_eq!(maps(&world), written);
        process.start();
        world.run_for(MINUTE).await.unwrap();
        assert_eq!((process.lives(), diary.lock().unwrap().len()), (2, 1));
        assert_eq!(maps(&world), written + 1);
    }
}

/// Counts up in a ConfigMap for ever, by informer and merge patch: a small controller, started again and again.
fn counter(seen: &Arc<Mutex<BTreeSet<String>>>, life: Life) -> futures_util::future::BoxFuture<'static, ()> {
    let seen = Arc::clone(seen);
    async move {
        let api: Api<ConfigMap> = Api::default_namespaced(life.client.clone());
        let mut informer = Informer::<ConfigMap>::namespaced(
            &life.client,
            life.client.default_namespace(),
            watcher::Config::default(),
            &life.environment.entropy,
        );
        informer.subscribe(move |delta| {
            let name = delta.object().metadata.name.clone().unwrap_or_default();
            seen.lock().unwrap().insert(name);
        });
        let store = informer.store();
        // Detached on purpose: killing the process must silence what nobody holds.
        tokio::spawn(informer.run(life.stop.clone()));
        let mut turn = 0;
        loop {
            tokio::time::sleep(Duration::from_secs(3)).await;
            turn += 1;
            let name = format!("m-{}-{turn}", life.number);
            if store.is_synced() && api.create(&PostParams::default(), &config_map(&name)).await.is_ok() {
                let patch = Patch::Merge(json!({"data": {"turn": turn.to_string()}}));
                let _ = api.patch(&name, &PatchParams::default(), &patch).await;
            }
        }
    }
    .boxed()
}

async fn endangered(seed: u64) -> (World, Arc<Process>, Arc<Mutex<BTreeSet<String>>>) {
    let world = quick(seed);
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let diary = Arc::clone(&seen);
    let process = world.process("subject", FaultPlan::all(), move |life| counter(&diary, life));
    process.start();
    let danger = process.endanger(Span::secs(20, 90), Span::secs(1, 10));
    world.run_for(15 * MINUTE).await.unwrap();
    process.faults().heal();
    danger.await.unwrap();
    world.run_for(5 * MINUTE).await.unwrap();
    (world, process, seen)
}

#[tokio::test(start_paused = true)]
async fn under_all_faults_nothing_is_missed_once_they_are_healed_and_the_tape_repeats() {
    let (world, process, seen) = endangered(3).await;
    assert!(process.lives() > 5, "{} lives", process.lives());
    let struck = process.faults().counts();
    assert!(struck.len() >= 9, "most kinds struck: {struck:?}");
    let names: BTreeSet<String> = world
        .cluster()
        .server()
        .snapshot()
        .list("", "configmaps")
        .map(|bytes| serde_json::from_slice::<ConfigMap>(&bytes).unwrap().metadata.name.unwrap())
        .collect();
    assert!(names.len() > 50, "{} objects", names.len());
    assert_eq!(*seen.lock().unwrap(), names, "the informer saw everything");

    let first = world.cluster().tape(Clone::clone);
    let (again, ..) = endangered(3).await;
    let second = again.cluster().tape(Clone::clone);
    assert_eq!(first.first_difference(&second), None);
    assert_eq!(first.digest(), second.digest());
    let (other, ..) = endangered(4).await;
    assert_ne!(first.digest(), other.cluster().tape(|tape| tape.digest()));
}

#[test]
fn a_seed_draws_which_faults_exist() {
    let plan = |seed| FaultPlan::swarm(&karpenter_runtime::entropy::Entropy::from_seed(seed));
    assert_eq!(plan(1), plan(1));
    let sizes: BTreeSet<usize> = (0..50).map(|seed| plan(seed).kinds().count()).collect();
    assert!(sizes.len() > 3, "{sizes:?}");
}

#[test]
fn over_some_seeds_every_kind_of_fault_is_drawn_and_left_out() {
    let plans: Vec<FaultPlan> =
        (0..20).map(|seed| FaultPlan::swarm(karpenter_sim::Cluster::new(seed).entropy())).collect();
    for fault in Fault::ALL {
        let drawn = plans.iter().filter(|plan| plan.rate(fault) > 0.0).count();
        assert!((3..=17).contains(&drawn), "{fault} is in {drawn} of 20 seeds");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_refused_is_told_so_for_a_while() {
    for (refusal, told) in [(Refusal::Unauthorized, "401"), (Refusal::Forbidden, "403")] {
        let world = quick(1);
        let (process, diary) = one_shot(&world, FaultPlan::none());
        process.faults().refuse(refusal, MINUTE);
        process.start();
        world.run_for(MINUTE / 2).await.unwrap();
        assert_eq!((&**diary.lock().unwrap(), maps(&world)), (&[told.to_owned()][..], 0));
        world.run_for(MINUTE).await.unwrap();
        process.kill();
        process.start();
        world.run_for(MINUTE).await.unwrap();
        assert_eq!((diary.lock().unwrap().last().unwrap().as_str(), maps(&world)), ("ok", 1));
    }
}
