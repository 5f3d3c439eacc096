//! Candidates on a server that holds one lease, under paused time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

use super::*;
use crate::events::{EventWriter, recorder};
use crate::sync::lock;

/// A server with one lease, whose link to one client can be cut or made to hang.
#[derive(Clone, Default)]
struct Server {
    lease: Arc<Mutex<Option<(u64, Value)>>>,
}

#[derive(Clone, Default)]
struct Link {
    cut: Arc<AtomicBool>,
    hangs: Arc<AtomicBool>,
    loses_reply: Arc<AtomicBool>,
    forbids: Arc<AtomicBool>,
    /// Somebody else always writes first.
    is_overtaken: Arc<AtomicBool>,
}

impl Server {
    fn client(&self, link: &Link) -> Client {
        let (server, link) = (self.clone(), link.clone());
        let service = service_fn(move |request: Request<Body>| {
            let (server, link) = (server.clone(), link.clone());
            async move {
                if link.hangs.load(Ordering::Relaxed) {
                    std::future::pending::<()>().await;
                }
                if link.cut.load(Ordering::Relaxed) {
                    return Err(std::io::Error::other("connection refused"));
                }
                let (parts, body) = request.into_parts();
                let body = body.collect().await.expect("a body").to_bytes();
                let (code, answer) = if link.forbids.load(Ordering::Relaxed) {
                    (
                        403,
                        json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "leases is forbidden", "details": {"kind": "leases"}}),
                    )
                } else if parts.method == Method::PUT && link.is_overtaken.load(Ordering::Relaxed) {
                    (
                        409,
                        json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict", "message": "the object has been modified"}),
                    )
                } else {
                    server.answer(&parts.method, &body)
                };
                if parts.method == Method::PUT && link.loses_reply.swap(false, Ordering::Relaxed) {
                    return Err(std::io::Error::other("connection reset"));
                }
                Ok(Response::builder()
                    .status(code)
                    .body(Body::from(answer.to_string().into_bytes()))
                    .unwrap())
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, method: &Method, body: &[u8]) -> (u16, Value) {
        let status = |code: u16, reason: &str| {
            (
                code,
                json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason}),
            )
        };
        let mut stored = lock(&self.lease);
        match (method, stored.as_ref()) {
            (&Method::GET, Some((_, lease))) => return (200, lease.clone()),
            (&Method::GET, None) => return status(404, "NotFound"),
            (&Method::POST, Some(_)) => return status(409, "AlreadyExists"),
            (&Method::PUT, None) => return status(404, "NotFound"),
            _ => {}
        }
        let mut lease: Value = serde_json::from_slice(body).expect("a lease");
        let version = stored.as_ref().map_or(1, |(version, _)| version + 1);
        if let Some((known, _)) = stored.as_ref()
            && lease["metadata"]["resourceVersion"].as_str() != Some(known.to_string().as_str())
        {
            return status(409, "Conflict");
        }
        lease["metadata"]["resourceVersion"] = version.to_string().into();
        *stored = Some((version, lease.clone()));
        (200, lease)
    }

    fn spec(&self) -> Value {
        lock(&self.lease).as_ref().map(|(_, lease)| lease["spec"].clone()).unwrap_or_default()
    }

    fn set(&self, spec: Value) {
        let mut stored = lock(&self.lease);
        let version = stored.as_ref().map_or(1, |(version, _)| version + 1);
        let metadata = json!({"name": "karpenter-leader-election", "namespace": "kube-system", "resourceVersion": version.to_string()});
        *stored = Some((version, json!({"metadata": metadata, "spec": spec})));
    }
}

struct Candidate {
    link: Link,
    environment: Environment,
    elector: Elector,
    writer: EventWriter,
}

fn candidate(server: &Server, name: &str, seed: u64) -> Candidate {
    let environment = Environment::seeded("2026-01-02T03:04:05Z".parse().expect("a time"), seed);
    let link = Link::default();
    let (recorder, writer) = recorder("karpenter", &environment);
    let config = LeaseConfig::new("kube-system", "karpenter-leader-election", name);
    let elector = Elector::new(server.client(&link), config, &environment, &recorder);
    Candidate { link, environment, elector, writer }
}

/// Runs a candidate whose work is to hold a flag up until told to stop, and `winding` longer.
fn start(
    elector: Elector,
    stop: &CancellationToken,
    winding: Duration,
) -> (Arc<AtomicBool>, tokio::task::JoinHandle<Result<(), LostLease>>) {
    /// Lowers the flag however the work ends.
    struct Flag(Arc<AtomicBool>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(false, Ordering::Relaxed);
        }
    }
    let leading = Arc::new(AtomicBool::new(false));
    let flag = Flag(Arc::clone(&leading));
    let work = move |stop: CancellationToken| async move {
        let flag = flag;
        flag.0.store(true, Ordering::Relaxed);
        stop.cancelled().await;
        tokio::time::sleep(winding).await;
    };
    (leading, tokio::spawn(elector.lead(stop.clone(), work)))
}

async fn seconds(secs: u64) {
    tokio::time::sleep(Duration::from_secs(secs)).await;
}

fn is_up(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn the_first_leads_the_second_waits_and_takes_over_when_released() {
    let server = Server::default();
    let mut first = candidate(&server, "host-a_1", 1);
    let second = candidate(&server, "host-b_2", 2);
    let (stop_first, stop_second) = (CancellationToken::new(), CancellationToken::new());
    let (first_leads, first_run) = start(first.elector, &stop_first, Duration::from_secs(20));
    seconds(1).await;
    let (second_leads, second_run) = start(second.elector, &stop_second, Duration::ZERO);
    seconds(100).await;
    assert!(is_up(&first_leads) && !is_up(&second_leads));
    let spec = server.spec();
    assert_eq!((&spec["holderIdentity"], &spec["leaseTransitions"]), (&json!("host-a_1"), &json!(0)));
    assert_eq!(spec["leaseDurationSeconds"], 15);
    assert_eq!(spec["acquireTime"], "2026-01-02T03:04:05.000000Z");
    assert_eq!(spec["renewTime"], "2026-01-02T03:05:45.000000Z", "renewed every two seconds");
    let status = first.environment.registry.encode();
    assert!(status.contains("leader_election_master_status{name=\"karpenter-leader-election\"} 1"));
    assert!(second.environment.registry.encode().contains("karpenter-leader-election\"} 0"));

    stop_first.cancel();
    seconds(19).await;
    assert!(is_up(&first_leads) && !is_up(&second_leads), "winding up happens under the lease");
    seconds(1).await;
    assert_eq!(first_run.await.expect("no panic"), Ok(()));
    seconds(5).await;
    assert!(is_up(&second_leads), "released, it is taken without waiting for it to run out");
    assert_eq!(server.spec()["leaseTransitions"], 1);
    let told: Vec<_> = first.writer.drain().into_iter().filter_map(|event| event.message).collect();
    assert_eq!(told, ["host-a_1 became leader", "host-a_1 stopped leading"]);
    stop_second.cancel();
    assert_eq!(second_run.await.expect("no panic"), Ok(()));
    let spec = server.spec();
    assert_eq!((&spec["holderIdentity"], &spec["leaseDurationSeconds"]), (&json!(""), &json!(1)));
}

#[tokio::test(start_paused = true)]
async fn a_leader_cut_off_stops_before_another_can_start() {
    let server = Server::default();
    let (first, second) = (candidate(&server, "a", 1), candidate(&server, "b", 2));
    let stop = CancellationToken::new();
    let (first_leads, first_run) = start(first.elector, &stop, Duration::ZERO);
    seconds(10).await;
    let (second_leads, _second_run) = start(second.elector, &stop, Duration::ZERO);
    seconds(10).await;
    for hangs in [false, true] {
        first.link.hangs.store(hangs, Ordering::Relaxed);
    }
    first.link.cut.store(true, Ordering::Relaxed);
    let cut = Instant::now();
    while is_up(&first_leads) {
        assert!(!is_up(&second_leads), "never two at once");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(cut.elapsed() <= Duration::from_secs(13), "{:?}", cut.elapsed());
    let error = first_run.await.expect("no panic").expect_err("the lease is lost").to_string();
    assert_eq!(
        error,
        "leader election lost: kube-system/karpenter-leader-election could not be renewed in time: no answer within 5s"
    );
    while !is_up(&second_leads) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(
        cut.elapsed() >= Duration::from_secs(13) && cut.elapsed() < Duration::from_secs(21),
        "{:?}",
        cut.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_answer_is_lost_is_recognised_as_our_own() {
    let server = Server::default();
    let first = candidate(&server, "a", 1);
    let stop = CancellationToken::new();
    let (leads, run) = start(first.elector, &stop, Duration::ZERO);
    for _ in 0..5 {
        seconds(3).await;
        first.link.loses_reply.store(true, Ordering::Relaxed);
    }
    seconds(30).await;
    assert!(is_up(&leads));
    assert_eq!(server.spec()["leaseTransitions"], 0);
    stop.cancel();
    assert_eq!(run.await.expect("no panic"), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_sees_anothers_name_stops_at_once_and_leaves_the_lease_alone() {
    let server = Server::default();
    let first = candidate(&server, "a", 1);
    let stop = CancellationToken::new();
    let (leads, run) = start(first.elector, &stop, Duration::from_secs(99));
    seconds(5).await;
    server
        .set(json!({"holderIdentity": "go-karpenter_1", "leaseDurationSeconds": 15, "leaseTransitions": 8}));
    seconds(2).await;
    assert!(!is_up(&leads));
    let error = run.await.expect("no panic").expect_err("lost").to_string();
    assert!(error.ends_with("is held by go-karpenter_1"), "{error}");
    assert_eq!(server.spec()["holderIdentity"], "go-karpenter_1");
}

#[tokio::test(start_paused = true)]
async fn a_dead_leaders_lease_is_taken_after_its_time_on_our_clock_whatever_it_says() {
    let server = Server::default();
    // Renewed in the far future, by a clock that is wrong.
    server.set(json!({
        "holderIdentity": "dead", "leaseDurationSeconds": 15, "leaseTransitions": 3,
        "renewTime": "2099-01-01T00:00:00.000000Z", "acquireTime": "2020-01-01T00:00:00.000000Z"
    }));
    let first = candidate(&server, "a", 1);
    let stop = CancellationToken::new();
    let (leads, run) = start(first.elector, &stop, Duration::ZERO);
    seconds(14).await;
    assert!(!is_up(&leads));
    seconds(6).await;
    assert!(is_up(&leads));
    assert_eq!(server.spec()["leaseTransitions"], 4);
    stop.cancel();
    run.await.expect("no panic").expect("released");
}

#[tokio::test(start_paused = true)]
async fn a_candidate_stopped_while_it_waits_never_leads() {
    let server = Server::default();
    server.set(json!({"holderIdentity": "other", "leaseDurationSeconds": 3600}));
    let first = candidate(&server, "a", 1);
    let stop = CancellationToken::new();
    let (leads, run) = start(first.elector, &stop, Duration::ZERO);
    seconds(60).await;
    stop.cancel();
    assert_eq!(run.await.expect("no panic"), Ok(()));
    assert!(!is_up(&leads));
    assert_eq!(server.spec()["holderIdentity"], "other");
}

#[tokio::test(start_paused = true)]
async fn a_candidate_that_cannot_ask_for_the_lease_says_why_and_what_to_do_until_it_can() {
    let server = Server::default();
    server.set(json!({"holderIdentity": "other", "leaseDurationSeconds": 3600}));
    let first = candidate(&server, "a", 1);
    let trouble = first.elector.trouble();
    first.link.forbids.store(true, Ordering::Relaxed);
    let stop = CancellationToken::new();
    let (_, run) = start(first.elector, &stop, Duration::ZERO);
    seconds(1).await;
    assert_eq!(
        trouble.last().as_deref(),
        Some(
            "lease kube-system/karpenter-leader-election: leases is forbidden (403 Forbidden); \
             grant it to this account, as the chart's roles do"
        )
    );
    first.link.forbids.store(false, Ordering::Relaxed);
    seconds(10).await;
    assert_eq!(trouble.last(), None, "that another holds it is no trouble");
    first.link.cut.store(true, Ordering::Relaxed);
    seconds(10).await;
    assert!(trouble.last().is_some_and(|why| why.ends_with("connection refused")), "{trouble:?}");
    first.link.cut.store(false, Ordering::Relaxed);
    server.set(json!({"holderIdentity": "", "leaseDurationSeconds": 1}));
    seconds(10).await;
    assert_eq!(trouble.last(), None, "it leads");
    stop.cancel();
    run.await.expect("no panic").expect("released");
}

#[tokio::test(start_paused = true)]
async fn a_lost_race_for_the_lease_is_no_trouble_but_a_leader_that_keeps_losing_it_stops() {
    let server = Server::default();
    server.set(json!({"holderIdentity": "", "leaseDurationSeconds": 1}));
    let first = candidate(&server, "a", 1);
    let trouble = first.elector.trouble();
    first.link.cut.store(true, Ordering::Relaxed);
    let stop = CancellationToken::new();
    let (leads, run) = start(first.elector, &stop, Duration::ZERO);
    seconds(1).await;
    assert!(trouble.last().is_some());
    first.link.is_overtaken.store(true, Ordering::Relaxed);
    first.link.cut.store(false, Ordering::Relaxed);
    seconds(10).await;
    assert_eq!((trouble.last(), is_up(&leads)), (None, false), "the server answers");
    first.link.is_overtaken.store(false, Ordering::Relaxed);
    seconds(10).await;
    assert!(is_up(&leads));
    first.link.is_overtaken.store(true, Ordering::Relaxed);
    seconds(15).await;
    let lost = run.await.expect("no panic").expect_err("it could not renew");
    assert!(lost.to_string().ends_with("could not be renewed in time: it was changed by another"), "{lost}");
    assert!(!is_up(&leads));
}

#[test]
fn an_identity_is_the_host_and_an_id() {
    let environment = Environment::seeded(Timestamp::UNIX_EPOCH, 1);
    let identity = identity("karpenter-0", &environment);
    assert!(
        identity.starts_with("karpenter-0_") && identity.len() == "karpenter-0_".len() + 36,
        "{identity}"
    );
}
