//! Lines as they come out.

use std::sync::{Arc, Mutex};

use super::*;
use crate::clock::TokioClock;
use crate::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use crate::environment::Environment;
use crate::error::{Field, ReconcileError, Structured};
use crate::sync::lock;

#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.0).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Captured {
    fn text(&self) -> String {
        String::from_utf8(lock(&self.0).clone()).expect("utf-8")
    }
}

fn clock() -> SharedClock {
    Arc::new(TokioClock::starting_at("2026-01-02T03:04:05.678901Z".parse().expect("a time")))
}

fn logged(config: Config, log: impl FnOnce()) -> String {
    let out = Captured::default();
    tracing::subscriber::with_default(subscriber(config, clock(), out.clone()), log);
    out.text()
}

#[tokio::test(start_paused = true)]
async fn what_is_logged_follows_the_level_while_the_program_runs() {
    let level = Level::from(LevelFilter::INFO);
    let config = Config { level: level.clone(), ..Config::default() };
    let text = logged(config, || {
        let log = |when: &str| tracing::debug!(when, "a detail");
        log("before");
        level.set(LevelFilter::DEBUG);
        log("meanwhile");
        level.set(LevelFilter::INFO);
        log("after");
    });
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains(r#""when":"meanwhile""#), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_line_has_zaps_keys_in_zaps_order() {
    let config = Config { commit: Some("abc1234".to_owned()), ..Config::default() };
    let line = logged(config, || {
        let node = ObjectKey::cluster("n1");
        tracing::info!(
            Node = %object(&node),
            Pods = %objects([&ObjectKey::namespaced("ns", "p")]),
            "provider-id" = "kwok://1",
            nodes = 3,
            duration = %duration(Duration::from_millis(1500)),
            "registered \"nodeclaim\"",
        );
    });
    assert_eq!(
        line,
        concat!(
            r#"{"level":"INFO","time":"2026-01-02T03:04:05.678Z","logger":"controller","message":"registered \"nodeclaim\"","#,
            r#""commit":"abc1234","Node":{"name":"n1"},"Pods":[{"name":"p","namespace":"ns"}],"provider-id":"kwok://1","#,
            r#""nodes":3,"duration":"1.5s"}"#,
            "\n"
        )
    );
}

#[tokio::test(start_paused = true)]
async fn the_level_decides_what_is_written_and_debug_shows_where() {
    let log = || {
        tracing::debug!("fine");
        tracing::error!(logger = "events", error = "no", "wrong");
        tracing::info!(target: "kube_client::client", "chatter");
        tracing::warn!(target: "kube_client::client", "trouble");
        tracing::warn!(target: "kube_runtime::watcher", "what our informers say as well");
    };
    let at = |level: LevelFilter| logged(Config { level: level.into(), ..Config::default() }, log);
    assert_eq!(at(LevelFilter::ERROR).lines().count(), 1);
    assert!(
        at(LevelFilter::ERROR).contains(r#""logger":"controller.events","message":"wrong","error":"no"}"#)
    );
    assert!(at(LevelFilter::INFO).contains(r#""logger":"controller.kube_client","message":"trouble"}"#));
    let debug = at(LevelFilter::DEBUG);
    assert_eq!(debug.lines().count(), 3, "{debug}");
    assert!(debug.contains(r#""caller":"src/logging_tests.rs:"#), "{debug}");
}

#[tokio::test(start_paused = true)]
async fn people_get_text() {
    let config = Config { format: Format::Text, ..Config::default() };
    let line =
        logged(config, || tracing::info!(pods = 3, NodePool = %object(&ObjectKey::cluster("p")), "found"));
    assert_eq!(line, "2026-01-02T03:04:05.678Z INFO  found pods=3 NodePool={\"name\":\"p\"}\n");
}

struct Failing;

impl Reconciler for Failing {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        tracing::info!("looking");
        let error = Structured::new(io::Error::other("no room"))
            .with("NodePool", Field::object(&ObjectKey::cluster("p")));
        if &*key.name == "bad" { Err(ReconcileError::from(error)) } else { Ok(Outcome::Done) }
    }
}

#[tokio::test(start_paused = true)]
async fn lines_of_a_reconcile_name_controller_object_and_id_and_errors_bring_their_values() {
    let out = Captured::default();
    let guard = tracing::subscriber::set_default(subscriber(Config::default(), clock(), out.clone()));
    let environment = Environment::seeded("2026-01-02T03:04:05Z".parse().expect("a time"), 1);
    let controller = Controller::for_objects("nodeclaim.lifecycle", "karpenter.sh", "NodeClaim", Failing)
        .build(&environment);
    controller.queue().add(ObjectKey::cluster("bad"));
    controller.turn().await;
    drop(guard);
    let lines: Vec<Value> =
        out.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 2);
    for line in &lines {
        assert_eq!(line["controller"], "nodeclaim.lifecycle");
        assert_eq!(line["controllerKind"], "NodeClaim");
        assert_eq!(line["NodeClaim"], serde_json::json!({"name": "bad"}));
        assert_eq!((&line["namespace"], &line["name"]), (&Value::from(""), &Value::from("bad")));
        assert_eq!(line["reconcileID"], lines[0]["reconcileID"]);
    }
    assert_eq!(lines[1]["message"], "Reconciler error");
    assert_eq!(lines[1]["error"], "no room (NodePool=p)");
    assert_eq!(lines[1]["NodePool"], serde_json::json!({"name": "p"}));
}

#[test]
fn a_log_file_that_cannot_be_written_says_so_with_flag_and_remedy() {
    assert!(open_outputs("stdout,stderr", "stderr").is_ok());
    let error = open_outputs("/no/such/directory/log", "").err().expect("an error").to_string();
    assert!(error.contains("--log-output-paths") && error.contains("/no/such/directory/log"), "{error}");
    for nothing in ["", " , "] {
        let error = open_outputs(nothing, "stderr").err().expect("nobody would hear anything").to_string();
        assert!(error.contains("--log-output-paths") && error.contains("stdout"), "{error}");
    }
}

/// An output that takes nothing while it is full.
struct Full(Arc<std::sync::atomic::AtomicBool>, Captured);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(io::Error::other("no space left"));
        }
        self.1.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_output_that_cannot_be_written_is_told_of_once_and_does_not_silence_those_after_it() {
    let full = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let [first, second, errors] = [(); 3].map(|()| Captured::default());
    let output =
        |path: &str, out: Box<dyn Write + Send>| Output { path: path.to_owned(), out, is_broken: false };
    let mut tee = Tee {
        outputs: vec![
            output("disk", Box::new(Full(Arc::clone(&full), first.clone()))),
            output("stdout", Box::new(second.clone())),
        ],
        errors: vec![output("stderr", Box::new(errors.clone()))],
    };
    let mut write = |line: &str| tee.write_all(line.as_bytes()).expect("it goes on");
    write("a\n");
    write("b\n");
    assert_eq!(errors.text(), "cannot write logs to \"disk\": no space left\n");
    full.store(false, std::sync::atomic::Ordering::Relaxed);
    write("c\n");
    full.store(true, std::sync::atomic::Ordering::Relaxed);
    write("d\n");
    assert_eq!((first.text().as_str(), second.text().as_str()), ("c\n", "a\nb\nc\nd\n"));
    assert_eq!(errors.text().lines().count(), 2, "it broke anew");
}
