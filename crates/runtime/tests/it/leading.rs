//! Two replicas of a small program: watch, reconcile, tell, lead, stop.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event as CoreEvent};
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::environment::Environment;
use karpenter_runtime::events::{Event, EventType, Recorder, recorder, reference};
use karpenter_runtime::informer::{Informer, own_key};
use karpenter_runtime::lease::{Elector, LeaseConfig, identity};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::{Program, ProgramError};
use karpenter_runtime::store::Store;
use karpenter_runtime::writes::{Lock, Written, patch};
use kube::api::ListParams;
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, Link, environment, seconds};

type Diary = Arc<Mutex<Vec<String>>>;

/// Puts its mark on every ConfigMap that has none.
struct Stamper {
    replica: &'static str,
    started: Instant,
    store: Store<ConfigMap>,
    client: Client,
    recorder: Recorder,
    diary: Diary,
}

impl Reconciler for Stamper {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Some(object) = self.store.get(&key) else { return Ok(Outcome::Done) };
        if object.metadata.annotations.as_ref().is_some_and(|a| a.contains_key("stamped-by")) {
            return Ok(Outcome::Done);
        }
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &key.namespace);
        let mut after = (*object).clone();
        after
            .metadata
            .annotations
            .get_or_insert_default()
            .insert("stamped-by".to_owned(), self.replica.to_owned());
        let stamped = match patch(&api, &object, &after, Lock::Optimistic).await? {
            Written::Done(stamped) => stamped,
            Written::Conflict => return Ok(Outcome::Requeue),
            Written::Gone | Written::Unchanged => return Ok(Outcome::Done),
        };
        let at = self.started.elapsed().as_secs();
        self.diary.lock().expect("no panic").push(format!("{at}s {} {}", self.replica, key.name));
        let event =
            Event::new(reference(&*stamped), EventType::Normal, "Stamped", format!("by {}", self.replica));
        self.recorder.publish(event.dedupe_by([&*key.name]));
        Ok(Outcome::Done)
    }
}

struct Replica {
    link: Link,
    stop: CancellationToken,
    environment: Environment,
    running: JoinHandle<Result<(), ProgramError>>,
}

fn start(cluster: &Cluster, replica: &'static str, seed: u64, diary: &Diary) -> Replica {
    let (link, stop, environment) = (Link::default(), CancellationToken::new(), environment(seed));
    let client = cluster.client(&link);
    let (recorder, writer) = recorder("stamper", &environment);
    let config = watcher::Config::default().labels("watched=yes");
    let mut informer = Informer::<ConfigMap>::all(&client, config, &environment.entropy);
    let stamper = Stamper {
        replica,
        started: Instant::now(),
        store: informer.store(),
        client: client.clone(),
        recorder: recorder.clone(),
        diary: Arc::clone(diary),
    };
    let controller =
        Controller::for_objects("stamper", "", "ConfigMap", stamper).workers(3).build(&environment);
    informer.feed(&controller.queue(), own_key);
    let mut program = Program::new();
    let writes = client.clone();
    program.always("events", move |stop| writer.run(writes, stop).boxed());
    program.while_leading("informer", informer);
    program.while_leading("stamper", controller);
    let lease = LeaseConfig::new("kube-system", "stamper", identity(replica, &environment));
    let elector = Elector::new(client, lease, &environment, &recorder);
    let running = tokio::spawn(program.run(stop.clone(), Some(elector)));
    Replica { link, stop, environment, running }
}

async fn holder(cluster: &Cluster) -> String {
    let leases: Api<Lease> = Api::namespaced(cluster.kubectl(), "kube-system");
    let lease = leases.get("stamper").await.expect("a lease");
    lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default()
}

async fn stamps(cluster: &Cluster) -> BTreeMap<String, String> {
    let objects =
        cluster.config_maps().list(&ListParams::default().labels("watched=yes")).await.expect("a list");
    let stamp = |object: ConfigMap| {
        let by = object.metadata.annotations.unwrap_or_default().remove("stamped-by").unwrap_or_default();
        (object.metadata.name.unwrap_or_default(), by)
    };
    objects.items.into_iter().map(stamp).collect()
}

/// The life of two replicas; the diary of what was reconciled when, by whom.
async fn story() -> Vec<String> {
    let cluster = Cluster::new(1000);
    let diary = Diary::default();
    for name in ["one", "two", "three"] {
        cluster.create(name).await;
    }
    let first = start(&cluster, "first", 1, &diary);
    seconds(5).await;
    let second = start(&cluster, "second", 2, &diary);
    seconds(5).await;
    assert!(holder(&cluster).await.starts_with("first_"));
    assert!(stamps(&cluster).await.values().all(|by| by == "first"));

    // The leader loses the server. Whatever it still holds in memory it must not act on when another leads.
    first.link.cut(true);
    cluster.create("four").await;
    seconds(30).await;
    assert!(holder(&cluster).await.starts_with("second_"));
    let error = first.running.await.expect("no panic").expect_err("the lease is lost").to_string();
    assert!(error.contains("leader election lost: kube-system/stamper"), "{error}");
    assert_eq!(stamps(&cluster).await["four"], "second");
    assert!(
        second.environment.registry.encode().contains("leader_election_master_status{name=\"stamper\"} 1")
    );

    // A third comes up and the second is told to stop: the lease is handed over.
    let third = start(&cluster, "third", 3, &diary);
    seconds(10).await;
    second.stop.cancel();
    second.running.await.expect("no panic").expect("a clean end");
    assert_eq!(holder(&cluster).await, "", "released");
    cluster.create("five").await;
    seconds(10).await;
    assert!(holder(&cluster).await.starts_with("third_"));
    assert_eq!(stamps(&cluster).await["five"], "third");
    third.stop.cancel();
    third.running.await.expect("no panic").expect("a clean end");

    let events: Api<CoreEvent> = Api::all(cluster.kubectl());
    let mut told: Vec<String> = events
        .list(&ListParams::default())
        .await
        .expect("events")
        .items
        .into_iter()
        .map(|event| {
            let source = event.source.and_then(|source| source.component).unwrap_or_default();
            let source = source.split('_').next().unwrap_or_default().to_owned();
            let message = event.message.unwrap_or_default();
            let message = message.split_once('_').map_or(message.clone(), |(who, what)| {
                format!("{who} {}", what.split_once(' ').map_or("", |(_, what)| what))
            });
            format!("{source}: {} {message}", event.involved_object.name.unwrap_or_default())
        })
        .collect();
    told.sort();
    assert_eq!(
        told,
        [
            "first: stamper first became leader",
            "second: stamper second became leader",
            "second: stamper second stopped leading",
            "stamper: five by third",
            "stamper: four by second",
            "stamper: one by first",
            "stamper: three by first",
            "stamper: two by first",
            "third: stamper third became leader",
            "third: stamper third stopped leading",
        ]
    );
    std::mem::take(&mut *diary.lock().expect("no panic"))
}

#[tokio::test(start_paused = true)]
async fn leadership_moves_on_loss_and_on_release_and_every_object_is_served_once() {
    let diary = story().await;
    let names: Vec<_> = diary.iter().filter_map(|entry| entry.split(' ').next_back()).collect();
    assert_eq!(names, ["one", "three", "two", "four", "five"], "{diary:?}");
}

#[test]
fn the_same_seeds_tell_the_same_story() {
    let tell = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.expect("a runtime").block_on(story())
    };
    assert_eq!(tell(), tell());
}
