//! An informer keeps up with a server, whatever happens between them.

use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::ConfigMap;
use karpenter_runtime::informer::{Delta, Informer};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::store::Store;
use kube::runtime::watcher;
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, Link, environment, seconds};

/// What a subscriber hears: `=initial`, `+new`, `~changed`, `.unchanged`, `-gone`.
type Heard = Arc<Mutex<Vec<String>>>;

fn watch(cluster: &Cluster, link: &Link, stop: &CancellationToken) -> (Store<ConfigMap>, Heard) {
    let config = watcher::Config::default().labels("watched=yes");
    let mut informer = Informer::all(&cluster.client(link), config, &environment(1).entropy);
    let heard = Heard::default();
    let ears = Arc::clone(&heard);
    informer.subscribe(move |delta: &Delta<ConfigMap>| {
        let sign = match delta {
            Delta::Added { initial: true, .. } => '=',
            Delta::Added { .. } => '+',
            Delta::Updated { .. } if delta.is_news() => '~',
            Delta::Updated { .. } => '.',
            Delta::Deleted { .. } => '-',
        };
        let name = delta.object().metadata.name.clone().unwrap_or_default();
        ears.lock().expect("no panic").push(format!("{sign}{name}"));
    });
    let store = informer.store();
    tokio::spawn(informer.run(stop.clone()));
    (store, heard)
}

fn take(heard: &Heard) -> String {
    heard.lock().expect("no panic").drain(..).collect::<Vec<_>>().join(" ")
}

fn value(store: &Store<ConfigMap>, name: &str) -> Option<String> {
    let object = store.get(&ObjectKey::namespaced("default", name))?;
    object.data.as_ref()?.get("value").cloned()
}

#[tokio::test(start_paused = true)]
async fn changes_arrive_in_order_and_only_of_what_is_selected() {
    let cluster = Cluster::new(1000);
    cluster.create("b").await;
    cluster.create("a").await;
    let stop = CancellationToken::new();
    let (store, heard) = watch(&cluster, &Link::default(), &stop);
    store.wait_synced().await;
    assert_eq!(take(&heard), "=a =b");
    cluster.create("c").await;
    cluster.write("a", "1").await;
    cluster.delete("b").await;
    seconds(1).await;
    assert_eq!(take(&heard), "+c ~a -b");
    let unlabelled = serde_json::json!({"metadata": {"labels": {"watched": null}}});
    let merge = kube::api::Patch::Merge(unlabelled);
    cluster.config_maps().patch("c", &Default::default(), &merge).await.expect("patched");
    seconds(1).await;
    assert_eq!(take(&heard), "-c", "what is no longer selected is gone");
    seconds(3600).await;
    assert_eq!(take(&heard), "", "watches end and begin without anyone noticing");
    assert_eq!(value(&store, "a").as_deref(), Some("1"));
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn what_was_missed_while_cut_off_is_made_up_for() {
    // So little history that the watch cannot go on where it was.
    let cluster = Cluster::new(3);
    for name in ["kept", "changed", "deleted", "replaced"] {
        cluster.create(name).await;
    }
    let (link, stop) = (Link::default(), CancellationToken::new());
    let (store, heard) = watch(&cluster, &link, &stop);
    store.wait_synced().await;
    take(&heard);
    link.cut(true);
    // The watch that is open ends by itself, and cannot be opened again.
    seconds(300).await;
    for i in 0..10 {
        cluster.write("changed", &i.to_string()).await;
    }
    cluster.delete("deleted").await;
    cluster.delete("replaced").await;
    cluster.create("replaced").await;
    cluster.create("added").await;
    seconds(60).await;
    let stale = take(&heard);
    assert!(store.is_synced() && value(&store, "changed").is_none(), "still as it was: {stale}");
    link.cut(false);
    seconds(120).await;
    assert_eq!(take(&heard), "+added ~changed .kept -replaced +replaced -deleted");
    assert_eq!(value(&store, "changed").as_deref(), Some("9"));
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_away_at_the_start_is_waited_for() {
    let cluster = Cluster::new(100);
    cluster.create("a").await;
    let (link, stop) = (Link::default(), CancellationToken::new());
    link.cut(true);
    let (store, heard) = watch(&cluster, &link, &stop);
    seconds(600).await;
    assert!(!store.is_synced());
    link.cut(false);
    store.wait_synced().await;
    assert_eq!(take(&heard), "=a");
    stop.cancel();
}
