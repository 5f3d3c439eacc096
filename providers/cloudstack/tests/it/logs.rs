//! What is logged: enough to follow a node by one search, and, at the finest level when everything goes wrong, never keys, signatures or
//! user data.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use karpenter_provider_cloudstack::client::http::{HttpSettings, Way};
use karpenter_provider_cloudstack::credentials::http_roads;
use karpenter_runtime::logging;
use karpenter_sim::cloudstack::account::Role;
use karpenter_sim::cloudstack::faults::{Fault, Trouble};
use serde_json::{Value, json};
use tracing::Instrument as _;
use tracing::field::{Field, Visit};
use tracing::span;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::{Layer, Registry};

use crate::cloud::{World, seconds, spec};

/// Where lines are written to.
#[derive(Clone, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn the_line_of_a_call_names_its_reconcile_and_the_job_it_began() {
    let world = World::new().await;
    let output = Output::default();
    let level = tracing::level_filters::LevelFilter::DEBUG.into();
    let config = logging::Config { level, ..logging::Config::default() };
    let clock = world.environment.clock.clone();
    let guard = tracing::subscriber::set_default(logging::subscriber(config, clock, output.clone()));
    let reconcile = tracing::error_span!("reconcile", controller = "nodeclaim", reconcileID = "a-reconcile");
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    world.launch(&claim).instrument(reconcile).await.expect("a machine");
    drop(guard);
    let text = String::from_utf8(output.0.lock().unwrap().clone()).expect("text");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let deploy =
        lines.iter().find(|line| line["command"] == "deployVirtualMachine" && !line["jobid"].is_null());
    let deploy = deploy.unwrap_or_else(|| panic!("{text}"));
    assert_eq!(deploy["reconcileID"], "a-reconcile", "{deploy}");
    let log = world.cloud.log();
    let ordered = log.iter().find(|entry| entry.command == "deployVirtualMachine").expect("an order");
    assert_eq!(deploy["jobid"], ordered.parameters["customjobid"].as_str(), "{deploy}");
}

/// Everything that is logged, as text.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<String>>);

struct Into<'a>(&'a mut String);

impl Visit for Into<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}

impl<S: tracing::Subscriber> Layer<S> for Lines {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, _: &span::Id, _: Context<'_, S>) {
        let mut text = self.0.lock().unwrap();
        text.push_str(attributes.metadata().name());
        attributes.record(&mut Into(&mut text));
        text.push('\n');
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut text = self.0.lock().unwrap();
        event.record(&mut Into(&mut text));
        text.push('\n');
    }
}

#[test]
fn a_server_whose_certificate_is_not_checked_is_warned_of_whoever_said_so() {
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(Registry::default().with(lines.clone()));
    let (checked, unchecked) = (Way::default(), Way { ssl_no_verify: true, ..Way::default() });
    let told = |settings: HttpSettings, way: &Way| {
        lines.0.lock().unwrap().clear();
        let road = http_roads(settings)("https://cloud/client/api", way).expect("a road");
        (road.checks_certificates(), lines.0.lock().unwrap().clone())
    };
    assert_eq!(told(HttpSettings::default(), &checked), (true, String::new()));
    let (checks, text) = told(HttpSettings::default(), &unchecked);
    assert!(!checks && text.contains("NOT checked") && text.contains("ssl-no-verify of the keys"), "{text}");
    let unverified = HttpSettings { verify: false, ..HttpSettings::default() };
    let (checks, text) = told(unverified, &checked);
    assert!(!checks && text.contains("NOT checked") && text.contains("CLOUDSTACK_VERIFY_SSL"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn log_lines_never_hold_keys_signatures_or_user_data() {
    let lines = Lines::default();
    let guard = tracing::subscriber::set_default(Registry::default().with(lines.clone()));
    let world = World::new().await;
    let account = world.cloud.account(Role::User).unwrap();
    let mut class = spec();
    class["userData"] = "#!/bin/bash\nkubeadm join --token abcdef.0123456789abcdef\n".into();
    class["dataDisks"] = json!([{"offering": "k8s.data20"}]);
    world.class("default", class).await;
    for (i, trouble) in [
        Trouble::Proxy(502),
        Trouble::Truncate,
        Trouble::DropResponse,
        Trouble::DropRequest,
        Trouble::Refuse,
        Trouble::Fail(530, 4250, "something".into()),
        Trouble::Fail(401, 0, "unable to verify user credentials and/or request signature".into()),
    ]
    .into_iter()
    .enumerate()
    {
        for command in ["deployVirtualMachine", "createTags", "listVirtualMachines", "destroyVirtualMachine"]
        {
            world.cloud.inject(Fault::once(command, trouble.clone()));
        }
        let name = format!("np-{i}");
        let _ = world.launch(&world.claim(&name, json!({"cpu": "1"}))).await;
        seconds(130).await;
        let _ = world.provider.round().await;
        world.cloud.heal();
        let _ = world.delete(&world.current(&name)).await;
    }
    drop(guard);
    let text = lines.0.lock().unwrap().clone();
    assert!(
        text.contains("deployVirtualMachine") && text.contains("listVirtualMachines"),
        "calls are logged: {text}"
    );
    let encoded = base64::engine::general_purpose::STANDARD.encode("#!/bin/bash\nkubeadm join");
    let forbidden = [
        account.api_key.as_str(),
        account.secret_key.as_str(),
        "abcdef.0123456789",
        &encoded[..24],
        "signature=",
        "apikey=",
    ];
    for secret in forbidden {
        let line = text.lines().find(|line| line.to_lowercase().contains(&secret.to_lowercase()));
        assert_eq!(line, None, "{secret}");
    }
}
