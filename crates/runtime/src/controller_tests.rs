//! Controllers under paused time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

fn environment() -> Environment {
    Environment::seeded("2026-01-02T03:04:05Z".parse().expect("a time"), 1)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Plays back results per key and notes when it was called.
struct Script {
    started: Instant,
    results: Mutex<BTreeMap<&'static str, VecDeque<Step>>>,
    calls: Calls,
    takes: Duration,
    running: AtomicUsize,
    most: Arc<AtomicUsize>,
}

/// What a reconcile comes to.
type Step = fn() -> ReconcileResult;
type Calls = Arc<Mutex<Vec<(&'static str, u128)>>>;

impl Script {
    fn new(results: impl IntoIterator<Item = (&'static str, Vec<Step>)>) -> (Self, Calls) {
        let calls = Calls::default();
        let script = Self {
            started: Instant::now(),
            results: Mutex::new(results.into_iter().map(|(key, results)| (key, results.into())).collect()),
            calls: Arc::clone(&calls),
            takes: Duration::ZERO,
            running: AtomicUsize::new(0),
            most: Arc::default(),
        };
        (script, calls)
    }
}

impl Reconciler for Script {
    type Key = &'static str;

    async fn reconcile(&self, key: &'static str) -> ReconcileResult {
        assert_eq!(&*crate::context::controller_name(), "test");
        lock(&self.calls).push((key, self.started.elapsed().as_millis()));
        let running = self.running.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(running, Ordering::Relaxed);
        if !self.takes.is_zero() {
            tokio::time::sleep(self.takes).await;
        }
        self.running.fetch_sub(1, Ordering::Relaxed);
        let result = lock(&self.results).get_mut(key).and_then(VecDeque::pop_front);
        result.map_or(Ok(Outcome::Done), |result| result())
    }
}

async fn run_for(controller: Controller<Script>, time: Duration) {
    let stop = CancellationToken::new();
    let running = tokio::spawn(controller.run(stop.clone()));
    tokio::time::sleep(time).await;
    stop.cancel();
    running.await.expect("the controller outlives what it runs");
}

#[tokio::test(start_paused = true)]
async fn outcomes_decide_when_an_item_comes_again() {
    let (script, calls) = Script::new([(
        "a",
        vec![
            (|| Ok(Outcome::After(ms(50)))) as Step,
            || Err(ReconcileError::message("x")),
            || Err(ReconcileError::message("x")),
            || Ok(Outcome::Requeue),
            || Ok(Outcome::Requeue),
            || Err(ReconcileError::message("x")),
            || Ok(Outcome::Done),
        ],
    )]);
    let environment = environment();
    let controller = Controller::builder("test", script).build(&environment);
    controller.queue().add("a");
    run_for(controller, ms(60_000)).await;
    let times: Vec<_> = lock(&calls).iter().map(|(_, at)| *at).collect();
    // Errors and requeues alike 5, 10, 20, 40, 80 ms, as in controller-runtime.
    assert_eq!(times, [0, 50, 55, 65, 85, 125, 205]);
    let text = environment.registry.encode();
    for line in [
        "controller_runtime_reconcile_total{controller=\"test\",result=\"error\"} 3",
        "controller_runtime_reconcile_total{controller=\"test\",result=\"requeue_after\"} 1",
        "controller_runtime_reconcile_total{controller=\"test\",result=\"success\"} 1",
        "controller_runtime_reconcile_total{controller=\"test\",result=\"requeue\"} 2",
        "controller_runtime_reconcile_errors_total{controller=\"test\"} 3",
        "controller_runtime_max_concurrent_reconciles{controller=\"test\"} 1",
        "controller_runtime_active_workers{controller=\"test\"} 0",
        "controller_runtime_reconcile_time_seconds_count{controller=\"test\"} 7",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn again_is_paced_by_the_controllers_own_limiter() {
    let (script, calls) = Script::new([(
        "a",
        vec![(|| Ok(Outcome::Requeue)) as Step, || Ok(Outcome::Requeue), || Ok(Outcome::Done)],
    )]);
    let controller =
        Controller::builder("test", script).limiter(rate_limit::reasonable()).build(&environment());
    controller.queue().add("a");
    run_for(controller, ms(60_000)).await;
    let times: Vec<_> = lock(&calls).iter().map(|(_, at)| *at).collect();
    assert_eq!(times, [0, 100, 300]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_an_error_that_is_counted_and_tried_again() {
    let (script, calls) = Script::new([("a", vec![(|| panic!("boom")) as Step]), ("b", vec![])]);
    let environment = environment();
    let controller = Controller::builder("test", script).build(&environment);
    controller.queue().add("a");
    controller.queue().add("b");
    run_for(controller, ms(1000)).await;
    assert_eq!(*lock(&calls), [("a", 0), ("b", 0), ("a", 5)]);
    assert!(
        environment
            .registry
            .encode()
            .contains("controller_runtime_reconcile_panics_total{controller=\"test\"} 1")
    );
}

#[tokio::test(start_paused = true)]
async fn a_terminal_error_is_not_tried_again() {
    let (script, calls) = Script::new([("a", vec![(|| Err(ReconcileError::terminal("no"))) as Step])]);
    let controller = Controller::builder("test", script).build(&environment());
    controller.queue().add("a");
    run_for(controller, ms(10_000)).await;
    assert_eq!(lock(&calls).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn as_many_as_allowed_run_at_once_and_each_object_only_once() {
    let (mut script, calls) = Script::new([]);
    script.takes = ms(10);
    let most = Arc::clone(&script.most);
    let controller = Controller::builder("test", script).workers(3).build(&environment());
    let queue = controller.queue();
    for key in ["a", "b", "c", "d", "e"] {
        queue.add(key);
    }
    let running = tokio::spawn(run_for(controller, ms(100)));
    tokio::time::sleep(ms(1)).await;
    queue.add("a");
    running.await.expect("no panic");
    assert_eq!(most.load(Ordering::Relaxed), 3);
    let order: Vec<_> = lock(&calls).clone();
    assert_eq!(order, [("a", 0), ("b", 0), ("c", 0), ("d", 10), ("e", 10), ("a", 10)]);
}

#[tokio::test(start_paused = true)]
async fn stopping_waits_for_what_is_under_way_and_starts_nothing_new() {
    let (mut script, calls) = Script::new([]);
    script.takes = ms(500);
    let environment = environment();
    let controller = Controller::builder("test", script).build(&environment);
    controller.queue().add("a");
    controller.queue().add("b");
    let started = Instant::now();
    run_for(controller, ms(100)).await;
    assert_eq!(started.elapsed(), ms(500));
    assert_eq!(*lock(&calls), [("a", 0)]);
    assert!(
        environment.registry.encode().contains("reconcile_total{controller=\"test\",result=\"success\"} 1")
    );
}

struct Ticker(Arc<AtomicUsize>);

impl Singleton for Ticker {
    async fn reconcile(&self) -> ReconcileResult {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(Outcome::After(Duration::from_secs(10)))
    }
}

#[tokio::test(start_paused = true)]
async fn a_singleton_runs_at_once_as_it_says_and_when_woken() {
    let count = Arc::new(AtomicUsize::new(0));
    let controller = Controller::singleton("test", Ticker(Arc::clone(&count)), &environment());
    let (queue, stop) = (controller.queue(), CancellationToken::new());
    let running = tokio::spawn(controller.run(stop.clone()));
    tokio::time::sleep(Duration::from_secs(25)).await;
    assert_eq!(count.load(Ordering::Relaxed), 3);
    queue.add(());
    tokio::time::sleep(ms(1)).await;
    assert_eq!(count.load(Ordering::Relaxed), 4);
    stop.cancel();
    running.await.expect("no panic");
}

struct Asking(AtomicUsize);

impl Singleton for Asking {
    async fn reconcile(&self) -> ReconcileResult {
        let asked = self.0.fetch_add(1, Ordering::Relaxed);
        Ok(if asked < 2 { Outcome::Requeue } else { Outcome::Done })
    }
}

#[tokio::test(start_paused = true)]
async fn a_singleton_that_asks_to_come_again_is_counted_as_one_that_says_when() {
    let environment = environment();
    let controller = Controller::singleton("test", Asking(AtomicUsize::new(0)), &environment);
    let stop = CancellationToken::new();
    let running = tokio::spawn(controller.run(stop.clone()));
    tokio::time::sleep(Duration::from_secs(60)).await;
    stop.cancel();
    running.await.expect("no panic");
    let text = environment.registry.encode();
    for line in [
        "controller_runtime_reconcile_total{controller=\"test\",result=\"requeue_after\"} 2",
        "controller_runtime_reconcile_total{controller=\"test\",result=\"requeue\"} 0",
        "controller_runtime_reconcile_total{controller=\"test\",result=\"success\"} 1",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
    }
}

struct Failing(Arc<AtomicUsize>);

impl Singleton for Failing {
    async fn reconcile(&self) -> ReconcileResult {
        self.0.fetch_add(1, Ordering::Relaxed);
        Err(ReconcileError::message("no"))
    }
}

#[tokio::test(start_paused = true)]
async fn a_singleton_that_fails_again_and_again_never_stands_still_for_longer_than_half_a_minute() {
    let count = Arc::new(AtomicUsize::new(0));
    let controller = Controller::singleton("test", Failing(Arc::clone(&count)), &environment());
    let stop = CancellationToken::new();
    let running = tokio::spawn(controller.run(stop.clone()));
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let within_an_hour = count.swap(0, Ordering::Relaxed);
    assert!((120..150).contains(&within_an_hour), "{within_an_hour}");
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert!(count.load(Ordering::Relaxed) >= 1);
    stop.cancel();
    running.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn one_turn_reconciles_what_is_ready_and_no_more() {
    let (script, calls) = Script::new([]);
    let controller = Controller::builder("test", script).build(&environment());
    controller.queue().add("a");
    controller.queue().add_after("b", ms(5));
    assert_eq!(controller.turn().await, 1);
    assert_eq!(*lock(&calls), [("a", 0)]);
}

#[test]
fn outcomes_combine_to_the_most_urgent() {
    let combine = |outcomes: &[Outcome]| Outcome::combine(outcomes.iter().copied());
    assert_eq!(combine(&[]), Outcome::Done);
    assert_eq!(
        combine(&[Outcome::Done, Outcome::After(ms(5)), Outcome::After(ms(3))]),
        Outcome::After(ms(3))
    );
    assert_eq!(combine(&[Outcome::After(ms(5)), Outcome::Requeue, Outcome::Done]), Outcome::Requeue);
}
