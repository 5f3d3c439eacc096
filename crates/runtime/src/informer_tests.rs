//! The mirror without a server, and the protocol against a scripted one.

use std::sync::Mutex;

use http::{Request, Response};
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::client::Body;
use tower::service_fn;

use super::*;
use crate::metrics::queue::QueueMetrics;
use crate::rate_limit::unspecified;
use crate::sync::lock;

fn object(name: &str, version: &str, uid: &str) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.name = Some(name.to_owned());
    object.metadata.resource_version = Some(version.to_owned());
    object.metadata.uid = Some(uid.to_owned());
    object.metadata.managed_fields = Some(vec![Default::default()]);
    object
}

fn unread(object: &impl serde::Serialize) -> Unread {
    serde_json::from_str(&serde_json::to_string(object).expect("JSON")).expect("an object")
}

fn mirror() -> Mirror<ConfigMap> {
    Mirror::new("ConfigMap", |object| object)
}

/// Writes down what a subscriber hears, as `+new`, `=initial`, `~changed`, `.unchanged` and `-gone`.
fn listen(mirror: &mut Mirror<ConfigMap>) -> Arc<Mutex<Vec<String>>> {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let store = mirror.store.clone();
    let ears = Arc::clone(&heard);
    mirror.subscribers.push(Box::new(move |delta| {
        let sign = match delta {
            Delta::Added { initial: false, .. } => '+',
            Delta::Added { initial: true, .. } => '=',
            Delta::Updated { .. } if delta.is_news() => '~',
            Delta::Updated { .. } => '.',
            Delta::Deleted { .. } => '-',
        };
        let key = ObjectKey::of(&**delta.object());
        assert_eq!(store.get(&key).is_some(), sign != '-', "the store changes before subscribers hear of it");
        lock(&ears).push(format!("{sign}{key}"));
    }));
    heard
}

fn take(heard: &Mutex<Vec<String>>) -> String {
    lock(heard).drain(..).collect::<Vec<_>>().join(" ")
}

#[test]
fn an_object_that_cannot_be_read_stays_what_it_was() {
    let unreadable = |name: &str, version: &str| {
        let mut odd = serde_json::to_value(object(name, version, name)).expect("JSON");
        odd["data"] = 3.into();
        unread(&odd)
    };
    let mut mirror = mirror();
    let heard = listen(&mut mirror);
    mirror.apply(Event::Apply(unread(&object("a", "1", "a"))));
    mirror.apply(Event::Apply(unreadable("a", "2")));
    mirror.apply(Event::Init);
    mirror.apply(Event::InitApply(unreadable("a", "2")));
    mirror.apply(Event::InitApply(unreadable("b", "3")));
    mirror.apply(Event::InitDone);
    assert_eq!(take(&heard), "+a", "it exists: it is neither gone nor changed");
    mirror.apply(Event::Delete(unreadable("a", "2")));
    assert_eq!(take(&heard), "-a");
}

#[test]
fn a_relist_tells_what_changed_what_did_not_and_what_went() {
    let mut mirror = mirror();
    let heard = listen(&mut mirror);
    mirror.apply(Event::Init);
    mirror.apply(Event::InitApply(unread(&object("a", "1", "u-a"))));
    mirror.apply(Event::InitApply(unread(&object("b", "2", "u-b"))));
    mirror.apply(Event::InitApply(unread(&object("c", "3", "u-c"))));
    assert!(!mirror.store.is_synced());
    mirror.apply(Event::InitDone);
    assert!(mirror.store.is_synced());
    assert_eq!(take(&heard), "=a =b =c");
    mirror.apply(Event::Apply(unread(&object("d", "4", "u-d"))));
    mirror.apply(Event::Apply(unread(&object("a", "5", "u-a"))));
    mirror.apply(Event::Delete(unread(&object("b", "6", "u-b"))));
    mirror.apply(Event::Delete(unread(&object("b", "6", "u-b"))));
    assert_eq!(take(&heard), "+d ~a -b");
    mirror.apply(Event::Init);
    mirror.apply(Event::InitApply(unread(&object("a", "5", "u-a"))));
    mirror.apply(Event::InitApply(unread(&object("c", "9", "u-c"))));
    mirror.apply(Event::InitApply(unread(&object("e", "8", "u-e"))));
    mirror.apply(Event::InitDone);
    assert_eq!(take(&heard), ".a ~c +e -d");
}

#[test]
fn a_list_that_breaks_off_removes_nothing() {
    let mut mirror = mirror();
    let heard = listen(&mut mirror);
    for name in ["a", "b"] {
        mirror.apply(Event::Apply(unread(&object(name, "1", name))));
    }
    mirror.apply(Event::Init);
    mirror.apply(Event::InitApply(unread(&object("a", "1", "a"))));
    mirror.apply(Event::Init);
    mirror.apply(Event::InitApply(unread(&object("b", "1", "b"))));
    mirror.apply(Event::InitDone);
    assert_eq!(take(&heard), "+a +b .a .b -a", "only the complete list counts");
}

#[test]
fn an_object_made_again_under_its_name_is_a_death_and_a_birth() {
    let mut mirror = mirror();
    mirror.apply(Event::Apply(unread(&object("a", "1", "first"))));
    let heard = Arc::new(Mutex::new(Vec::new()));
    let ears = Arc::clone(&heard);
    mirror.subscribers.push(Box::new(move |delta: &Delta<ConfigMap>| {
        lock(&ears).push((matches!(delta, Delta::Deleted { .. }), delta.object().metadata.uid.clone()));
    }));
    mirror.apply(Event::Apply(unread(&object("a", "2", "second"))));
    assert_eq!(*lock(&heard), [(true, Some("first".to_owned())), (false, Some("second".to_owned()))]);
    assert!(mirror.store.get(&ObjectKey::cluster("a")).expect("a").metadata.managed_fields.is_none());
}

#[test]
fn what_is_trimmed_is_neither_kept_nor_told() {
    let mut mirror = mirror();
    mirror.trim = |object: &mut ConfigMap| object.data = None;
    mirror.subscribers.push(Box::new(|delta: &Delta<ConfigMap>| assert_eq!(delta.object().data, None)));
    let mut large = object("a", "1", "u");
    large.data = Some([("key".to_owned(), "value".to_owned())].into());
    mirror.apply(Event::Apply(unread(&large)));
    assert_eq!(mirror.store.list()[0].data, None);
}

/// All that is kept of a ConfigMap in the next test.
struct Size {
    key: ObjectKey,
    uid: String,
    entries: usize,
}

impl Kept for Size {
    fn key(&self) -> ObjectKey {
        self.key.clone()
    }

    fn uid(&self) -> Option<&str> {
        Some(&self.uid)
    }

    fn version(&self) -> Option<&str> {
        None
    }
}

#[test]
fn a_witness_sees_whole_what_is_kept_in_a_form_of_its_own_and_deaths_before_births() {
    let mut mirror: Mirror<ConfigMap, Size> = Mirror::new("ConfigMap", |object: ConfigMap| Size {
        key: ObjectKey::of(&object),
        uid: object.metadata.uid.clone().unwrap_or_default(),
        entries: object.data.map_or(0, |data| data.len()),
    });
    let told = Arc::new(Mutex::new(Vec::new()));
    let (seen, heard) = (Arc::clone(&told), Arc::clone(&told));
    mirror.witnesses.push(Box::new(move |object: &ConfigMap| {
        let value = object.data.as_ref().and_then(|data| data.get("key").cloned()).unwrap_or_default();
        lock(&seen).push(format!("saw {value}"));
    }));
    mirror.subscribers.push(Box::new(move |delta: &Delta<Size>| {
        let gone = matches!(delta, Delta::Deleted { .. });
        let (what, of) = (if gone { "gone" } else { "kept" }, delta.object());
        lock(&heard).push(format!("{what} {} {}", of.uid, of.entries));
    }));
    for uid in ["first", "second"] {
        let mut whole = object("a", "1", uid);
        whole.data = Some([("key".to_owned(), format!("of {uid}"))].into());
        mirror.apply(Event::Apply(unread(&whole)));
    }
    let expected = ["saw of first", "kept first 1", "gone first 1", "saw of second", "kept second 1"];
    assert_eq!(*lock(&told), expected);
    assert_eq!(mirror.store.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn pauses_grow_within_bounds_and_start_over_after_success_or_quiet() {
    let mut backoff = Backoff::new(Entropy::from_seed(1).stream("x"));
    let now = Instant::now();
    let mut expected = Backoff::FIRST;
    for _ in 0..10 {
        let pause = backoff.next(now);
        assert!(pause >= expected && pause < expected * 2, "{pause:?} for {expected:?}");
        expected = (expected * 2).min(Backoff::MAX);
    }
    assert!(backoff.next(now + Backoff::QUIET * 2) < Backoff::FIRST * 2);
    backoff.next(now);
    backoff.succeeded();
    assert!(backoff.next(now) < Backoff::FIRST * 2);
}

/// A server that lists `a` twice and `b` from then on, answers every watch in one way, and notes what it was asked.
fn server(requests: &Arc<Mutex<Vec<String>>>, watch: (u16, &'static str)) -> Client {
    let seen = Arc::clone(requests);
    let server = service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let lists = {
            let mut seen = lock(&seen);
            seen.push(if query.contains("watch=true") {
                "watch".to_owned()
            } else {
                format!("list?{query}")
            });
            seen.iter().filter(|r| r.starts_with("list")).count()
        };
        let (status, body) = if query.contains("watch=true") {
            (watch.0, watch.1.to_owned())
        } else {
            let item = |name: &str| {
                format!(r#"{{"metadata":{{"name":"{name}","uid":"{name}","resourceVersion":"1"}}}}"#)
            };
            let items = if lists < 3 { item("a") } else { item("b") };
            (
                200,
                format!(
                    r#"{{"kind":"ConfigMapList","apiVersion":"v1","metadata":{{"resourceVersion":"1"}},"items":[{items}]}}"#
                ),
            )
        };
        async move {
            // Read to the end, as a real server would.
            let _ = request.into_body().collect().await;
            Ok::<_, std::convert::Infallible>(
                Response::builder().status(status).body(Body::from(body.into_bytes())).unwrap(),
            )
        }
    });
    Client::new(server, "default")
}

/// Watches until `b` is known, which only a later list tells.
async fn relist(client: &Client) {
    let mut informer = Informer::<ConfigMap>::all(client, watcher::Config::default(), &Entropy::from_seed(1));
    let store = informer.store();
    let queue: WorkQueue<ObjectKey> = WorkQueue::new(unspecified(), QueueMetrics::none());
    informer.feed(&queue, own_key);
    let stop = CancellationToken::new();
    let running = tokio::spawn(informer.run(stop.clone()));
    store.wait_synced().await;
    assert_eq!(queue.get().await, Some((ObjectKey::cluster("a"), LOW_PRIORITY)));
    queue.done(&ObjectKey::cluster("a"));
    let started = Instant::now();
    while store.get(&ObjectKey::cluster("b")).is_none() {
        assert!(started.elapsed() < Duration::from_secs(600), "everything is listed again");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    stop.cancel();
    running.await.expect("no panic");
}

/// In the way of a proxy: a plain 410 instead of an event in the stream.
#[tokio::test(start_paused = true)]
async fn a_watch_refused_as_gone_is_answered_with_a_new_list() {
    let requests = Arc::default();
    let gone = r#"{"kind":"Status","status":"Failure","reason":"Expired","code":410,"message":"too old"}"#;
    relist(&server(&requests, (410, gone))).await;
    let requests = lock(&requests);
    assert!(requests.iter().filter(|r| r.starts_with("list")).count() >= 3, "{requests:?}");
    assert!(requests[0].contains("resourceVersion=0"), "the first list may be cached: {requests:?}");
    assert!(!requests[2].contains("resourceVersion=0"), "a later one may not: {requests:?}");
}

#[tokio::test(start_paused = true)]
async fn a_line_of_a_watch_that_cannot_be_understood_is_answered_with_a_new_list() {
    for line in ["{\"type\":\"MODIFIED\"}\n", "an error of some proxy\n"] {
        relist(&server(&Arc::default(), (200, line))).await;
    }
}

#[test]
fn a_watch_that_is_forbidden_says_who_may_not_do_what_and_what_to_do_about_it() {
    let status: kube::core::Status = serde_json::from_value(serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden",
        "message": "nodes is forbidden: User \"k\" cannot list resource \"nodes\"",
    }))
    .expect("a status");
    let problem = watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status)));
    assert_eq!(
        told(&problem),
        "cannot list: nodes is forbidden: User \"k\" cannot list resource \"nodes\" (403 Forbidden); \
         grant it to this account, as the chart's roles do"
    );
}

#[tokio::test]
async fn a_kind_of_the_group_without_a_name_is_called_by_its_own_alone() {
    let client = server(&Arc::default(), (200, ""));
    let informer = Informer::<ConfigMap>::all(&client, watcher::Config::default(), &Entropy::from_seed(1));
    assert_eq!((informer.kind.as_str(), informer.mirror.kind.as_str()), ("ConfigMap", "ConfigMap"));
}
