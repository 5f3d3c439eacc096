//! What is told, what is not, and what reaches a server.

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tower::service_fn;

use super::*;

fn environment() -> Environment {
    Environment::seeded("2026-01-02T03:04:05Z".parse().expect("a time"), 1)
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn node(name: &str) -> ObjectReference {
    let mut node = Node::default();
    node.metadata.name = Some(name.to_owned());
    node.metadata.uid = Some(format!("uid-{name}"));
    node.metadata.resource_version = Some("7".to_owned());
    reference(&node)
}

fn event(reason: &'static str, message: &str) -> Event {
    Event::new(node("n"), EventType::Normal, reason, message)
}

#[tokio::test(start_paused = true)]
async fn an_event_is_written_the_way_client_go_does() {
    let (recorder, mut writer) = recorder("karpenter", &environment());
    let mut pod = Pod::default();
    pod.metadata.name = Some("p".to_owned());
    pod.metadata.namespace = Some("ns".to_owned());
    recorder.publish(Event::new(reference(&pod), EventType::Warning, "FailedScheduling", "no room"));
    recorder.publish(event("DisruptionBlocked", "x"));
    recorder.for_component("host_id").publish(event("LeaderElection", "host_id became leader"));
    let told = writer.drain();
    let json = serde_json::to_value(&told[0]).expect("JSON");
    assert_eq!(
        json,
        serde_json::json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": "p.1886caf21c963200", "namespace": "ns"},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": "ns"},
            "type": "Warning", "reason": "FailedScheduling", "message": "no room", "count": 1,
            "firstTimestamp": "2026-01-02T03:04:05Z", "lastTimestamp": "2026-01-02T03:04:05Z",
            "source": {"component": "karpenter"}, "reportingComponent": "karpenter", "reportingInstance": ""
        })
    );
    assert_eq!(told[1].metadata.namespace.as_deref(), Some("default"), "a cluster-scoped object");
    assert_eq!(told[1].involved_object.resource_version.as_deref(), Some("7"));
    assert_eq!(told[2].reporting_component.as_deref(), Some("host_id"));
}

#[tokio::test(start_paused = true)]
async fn events_of_one_moment_have_names_of_their_own_and_impossible_ones_get_an_id() {
    let (recorder, mut writer) = recorder("karpenter", &environment());
    recorder.publish(event("A", "1"));
    recorder.publish(event("B", "2"));
    recorder.publish(Event::new(node("Not_A_Subdomain"), EventType::Normal, "C", "3"));
    let names: Vec<_> = writer.drain().into_iter().filter_map(|e| e.metadata.name).collect();
    assert_ne!(names[0], names[1]);
    assert_eq!(names[2].len(), 36, "{}", names[2]);
}

#[tokio::test(start_paused = true)]
async fn the_same_is_not_told_again_until_its_time_is_over() {
    let (recorder, mut writer) = recorder("karpenter", &environment());
    let blocked = |message: &str| event("DisruptionBlocked", message).dedupe_by(["uid"]);
    recorder.publish(blocked("first"));
    recorder.publish(blocked("the message is not part of the key"));
    recorder.publish(event("disruptionblocked", "nor is the case of the reason").dedupe_by(["uid"]));
    recorder.publish(event("DisruptionBlocked", "other values").dedupe_by(["uid", "Empty"]));
    recorder.publish(event("Unconsolidatable", "long").dedupe_by(["uid"]).dedupe_for(secs(900)));
    assert_eq!(writer.drain().len(), 3);
    tokio::time::sleep(secs(120)).await;
    recorder.publish(blocked("at the limit"));
    assert_eq!(writer.drain().len(), 0);
    tokio::time::sleep(secs(1)).await;
    recorder.publish(blocked("after it"));
    recorder.publish(event("Unconsolidatable", "still").dedupe_by(["uid"]));
    assert_eq!(writer.drain().len(), 1);
    for _ in 0..3 {
        recorder.publish(event("Finalized", "nothing to dedupe by"));
    }
    assert_eq!(writer.drain().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_the_rate_stops_still_counts_as_told() {
    let (recorder, mut writer) = recorder("karpenter", &environment());
    let limiter = EventLimiter::new(5.0, 10);
    let nominated = |i: u32| event("Nominated", "x").dedupe_by([i.to_string()]).limited_by(&limiter);
    for i in 0..15 {
        recorder.publish(nominated(i));
    }
    assert_eq!(writer.drain().len(), 10);
    tokio::time::sleep(secs(60)).await;
    recorder.publish(nominated(14));
    assert_eq!(writer.drain().len(), 0, "its dedupe time has begun although it was dropped");
    recorder.publish(nominated(0));
    recorder.publish(nominated(99));
    assert_eq!(writer.drain().len(), 1, "and what is deduped costs no token");
}

#[tokio::test(start_paused = true)]
async fn too_many_events_are_dropped_and_nobody_waits() {
    let (recorder, mut writer) = recorder("karpenter", &environment());
    for _ in 0..QUEUE + 50 {
        recorder.publish(event("A", "x"));
    }
    assert_eq!(writer.drain().len(), QUEUE);
    drop(writer);
    recorder.publish(event("A", "nobody listens"));
}

/// What a server was asked: method, path, body.
type Asked = Arc<Mutex<Vec<(Method, String, Value)>>>;

/// A server that stores nothing, answers with what it was sent, and follows a script of failures first.
fn server(script: Vec<Option<u16>>) -> (Client, Asked) {
    let asked = Asked::default();
    let seen = Arc::clone(&asked);
    let script = Arc::new(Mutex::new(script.into_iter()));
    let service = service_fn(move |request: Request<Body>| {
        let (seen, script) = (Arc::clone(&seen), Arc::clone(&script));
        async move {
            let (parts, body) = request.into_parts();
            let bytes = body.collect().await.expect("a body").to_bytes();
            let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            lock(&seen).push((parts.method.clone(), parts.uri.path().to_owned(), value.clone()));
            let (status, body) = match lock(&script).next() {
                Some(None) => return Err(std::io::Error::other("connection refused")),
                Some(Some(code)) if code >= 400 => (
                    code,
                    serde_json::json!({"kind": "Status", "status": "Failure", "code": code, "reason": "x"}),
                ),
                _ => (
                    200,
                    serde_json::json!({"metadata": {"name": "e", "namespace": "default"}, "involvedObject": {}}),
                ),
            };
            Ok(Response::builder().status(status).body(Body::from(body.to_string().into_bytes())).unwrap())
        }
    });
    (Client::new(service, "default"), asked)
}

fn methods(asked: &Asked) -> Vec<String> {
    lock(asked).drain(..).map(|(method, ..)| method.to_string()).collect()
}

async fn settle() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}

#[tokio::test(start_paused = true)]
async fn repeats_are_counted_on_the_first_and_a_vanished_first_is_written_anew() {
    let (recorder, writer) = recorder("karpenter", &environment());
    let (client, asked) = server(vec![Some(200), Some(200), Some(404), Some(200)]);
    let stop = CancellationToken::new();
    let running = tokio::spawn(writer.run(client, stop.clone()));
    for _ in 0..3 {
        recorder.publish(event("Finalized", "same"));
        tokio::time::sleep(secs(10)).await;
    }
    let requests: Vec<_> = lock(&asked).drain(..).collect();
    let verbs: Vec<_> = requests.iter().map(|(method, ..)| method.as_str()).collect();
    assert_eq!(verbs, ["POST", "PATCH", "PATCH", "POST"]);
    let name = requests[0].2["metadata"]["name"].as_str().expect("a name");
    assert_eq!(requests[1].1, format!("/api/v1/namespaces/default/events/{name}"));
    assert_eq!(
        requests[1].2,
        serde_json::json!({"count": 2, "lastTimestamp": "2026-01-02T03:04:15Z", "message": "same"})
    );
    assert_eq!(requests[3].2["count"], 3);
    stop.cancel();
    running.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn ten_similar_events_become_one_and_a_flood_about_one_object_stops() {
    let (recorder, writer) = recorder("karpenter", &environment());
    let (client, asked) = server(vec![]);
    tokio::spawn(writer.run(client, CancellationToken::new()));
    for i in 0..60 {
        recorder.publish(event("Similar", &format!("message {i}")));
        settle().await;
    }
    let requests: Vec<_> = lock(&asked).drain(..).collect();
    assert_eq!(requests.len(), 25, "the burst for one object");
    assert_eq!(requests[8].2["message"], "message 8");
    assert_eq!(requests[9].2["message"], "(combined from similar events): message 9");
    assert_eq!((requests[10].0.as_str(), &requests[10].2["count"]), ("PATCH", &Value::from(2)));
    tokio::time::sleep(secs(300)).await;
    recorder.publish(event("Similar", "later"));
    recorder.publish(event("Similar", "later still"));
    settle().await;
    assert_eq!(methods(&asked), ["PATCH"], "one more every five minutes");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_away_is_tried_again_and_one_that_refuses_is_not() {
    let (recorder, writer) = recorder("karpenter", &environment());
    let (client, asked) = server(vec![None, None, Some(200), Some(403), Some(200)]);
    tokio::spawn(writer.run(client, CancellationToken::new()));
    recorder.publish(event("A", "1"));
    recorder.publish(event("B", "2"));
    recorder.publish(event("C", "3"));
    tokio::time::sleep(secs(30)).await;
    let reasons: Vec<_> = lock(&asked).drain(..).map(|(_, _, body)| body["reason"].clone()).collect();
    assert_eq!(reasons, ["A", "A", "A", "B", "C"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_queued_when_the_program_stops_is_still_written() {
    let (recorder, writer) = recorder("karpenter", &environment());
    let (client, asked) = server(vec![]);
    let stop = CancellationToken::new();
    recorder.publish(event("A", "1"));
    stop.cancel();
    writer.run(client, stop).await;
    assert_eq!(methods(&asked), ["POST"]);
}
