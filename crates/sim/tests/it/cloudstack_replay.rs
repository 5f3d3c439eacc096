//! The simulated CloudStack answers what a real one was recorded to answer (conformance/cloudstack/samples.jsonl, in the order
//! they were recorded), ids, times and measured numbers aside.
//!
//! The fixture is the simulator's own: the measured cloud before the first sample. What its operators did between two
//! samples without being recorded is in [`between`].

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use http::Request;
use jiff::{SignedDuration, Timestamp};
use karpenter_runtime::clock::SharedClock;
use karpenter_runtime::environment::Environment;
use karpenter_sim::chance::Span;
use karpenter_sim::cloudstack::CloudStack;
use karpenter_sim::cloudstack::account::Role;
use karpenter_sim::cloudstack::settings::Throttle;
use serde_json::{Map, Value, json};

/// Samples that are answered differently, and why.
const DIFFERENT: [(&str, &str); 3] = [
    ("listVirtualMachines-project-bytag", "statistics of running machines, of which there are none"),
    ("listApis-deploy-user", "parameters are listed without their descriptions"),
    ("listApis-deploy-admin", "parameters are listed without their descriptions"),
];

/// Fields whose values are chance, time, or measured; they must be there all the same.
const MEASURED: [&str; 27] = [
    "created",
    "lastupdated",
    "completed",
    "ipaddress",
    "macaddress",
    "gputotal",
    "gpuused",
    "capacityused",
    "capacityallocated",
    "percentused",
    "memoryallocated",
    "memoryallocatedbytes",
    "memoryallocatedpercentage",
    "cpuallocated",
    "cpuallocatedvalue",
    "cpuallocatedpercentage",
    "cpuallocatedwithoverprovisioning",
    "hostid",
    "hostname",
    "instancename",
    "fingerprint",
    "expireAfter",
    "zonetoken",
    "isolationuri",
    "broadcasturi",
    "gateway",
    "netmask",
];

pub(crate) struct Replay {
    pub(crate) cloud: CloudStack,
    /// Recorded id to ours.
    ids: BTreeMap<String, String>,
    services: Value,
    clock: SharedClock,
}

#[derive(Clone, Copy)]
pub(crate) enum Sign {
    Well,
    NoVersion,
    NoExpiry,
    Expires(&'static str),
    Until(Timestamp),
    Secret(&'static str),
    Key(&'static str),
    Sha256,
    BareTilde,
}

fn encode(text: &str, bare_tilde: bool) -> String {
    text.bytes()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'*' | b'_' => char::from(b).to_string(),
            b'~' if bare_tilde => "~".to_owned(),
            _ => format!("%{b:02X}"),
        })
        .collect()
}

impl Replay {
    pub(crate) fn new() -> Self {
        let environment = Environment::seeded("2026-11-15T07:32:00Z".parse().unwrap(), 1);
        let fixture: Value = serde_json::from_str(include_str!("../../src/cloudstack/fixture.json")).unwrap();
        let services = fixture["networkservice"].clone();
        Self {
            cloud: CloudStack::new(&environment),
            ids: BTreeMap::new(),
            services,
            clock: environment.clock.clone(),
        }
    }

    pub(crate) async fn ask(
        &self,
        role: Role,
        post: bool,
        command: &str,
        params: &[(String, String)],
    ) -> (u16, Value) {
        self.ask_signed(role, post, command, params, Sign::Well).await
    }

    pub(crate) async fn ask_signed(
        &self,
        role: Role,
        post: bool,
        command: &str,
        params: &[(String, String)],
        sign: Sign,
    ) -> (u16, Value) {
        let account = self.cloud.account(role).expect("an account");
        let key = if let Sign::Key(key) = sign { key.to_owned() } else { account.api_key };
        let secret = if let Sign::Secret(secret) = sign { secret.to_owned() } else { account.secret_key };
        let mut all: Vec<(String, String)> = params.to_vec();
        for (name, value) in [("command", command), ("response", "json"), ("apiKey", &key)] {
            all.push((name.to_owned(), value.to_owned()));
        }
        if !matches!(sign, Sign::NoVersion) {
            all.push(("signatureVersion".to_owned(), "3".to_owned()));
        }
        if !matches!(sign, Sign::NoVersion | Sign::NoExpiry) {
            let expires = match sign {
                _ if self.strict() => self.in_minutes(10),
                Sign::Expires(time) => time.to_owned(),
                Sign::Until(time) => time.to_string(),
                _ => "2027-01-01T00:00:00+0000".to_owned(),
            };
            all.push(("expires".to_owned(), expires));
        }
        all.sort();
        let bare = matches!(sign, Sign::BareTilde);
        let text = all
            .iter()
            .map(|(k, v)| format!("{k}={}", encode(v, bare)))
            .collect::<Vec<_>>()
            .join("&")
            .to_lowercase();
        let algorithm = if matches!(sign, Sign::Sha256) {
            ring::hmac::HMAC_SHA256
        } else {
            ring::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY
        };
        let tag = ring::hmac::sign(&ring::hmac::Key::new(algorithm, secret.as_bytes()), text.as_bytes());
        all.push(("signature".to_owned(), base64::engine::general_purpose::STANDARD.encode(tag)));
        let query = all
            .iter()
            .map(|(k, v)| format!("{}={}", encode(k, false), encode(v, false)))
            .collect::<Vec<_>>()
            .join("&");
        let request = if post {
            Request::post("/client/api").body(Bytes::from(query)).unwrap()
        } else {
            Request::get(format!("/client/api?{query}")).body(Bytes::new()).unwrap()
        };
        let response = self.cloud.handle(request).await.expect("an answer");
        (response.status().as_u16(), serde_json::from_slice(response.body()).expect("JSON"))
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn in_minutes(&self, minutes: i64) -> String {
        let then: Timestamp = self.clock.now() + SignedDuration::from_mins(minutes);
        then.strftime("%Y-%m-%dT%H:%M:%S+0000").to_string()
    }

    fn strict(&self) -> bool {
        let mut strict = false;
        self.cloud.configure(|settings| strict = settings.enforce_post);
        strict
    }

    /// What an order of a machine is answered, without the envelope.
    pub(crate) async fn deploy(
        &self,
        name: &str,
        offering: &str,
        network: &str,
        more: &[(&str, &str)],
    ) -> Value {
        let (_, body) = self.order(name, offering, network, more).await;
        // What is refused early names no command.
        body.get("errorresponse").unwrap_or(&body["deployvirtualmachineresponse"]).clone()
    }

    async fn order(&self, name: &str, offering: &str, network: &str, more: &[(&str, &str)]) -> (u16, Value) {
        let id = |kind: &str, name: &str| self.cloud.id_of(kind, name).expect("in the catalogue");
        let mut params = vec![
            ("zoneid".to_owned(), id("zone", "sim-zone-1")),
            ("serviceofferingid".to_owned(), id("serviceoffering", offering)),
            ("templateid".to_owned(), id("template", "CentOS 5.6 (64-bit) no GUI (Simulator)")),
            ("networkids".to_owned(), id("network", network)),
            ("name".to_owned(), name.to_owned()),
        ];
        params.extend(more.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
        self.ask(Role::User, true, "deployVirtualMachine", &params).await
    }

    pub(crate) fn machine(&self, name: &str) -> String {
        self.cloud.machines().into_iter().find(|machine| machine.name == name).expect("a machine").id
    }

    fn translated(&self, value: &str) -> String {
        value
            .split(',')
            .map(|part| self.ids.get(part).map_or(part, String::as_str))
            .collect::<Vec<_>>()
            .join(",")
    }

    /// Where the answers differ.
    fn differences(&mut self, path: &str, recorded: &Value, ours: &Value, out: &mut Vec<String>) {
        let key = path.rsplit('.').next().unwrap_or_default();
        match (recorded, ours) {
            (Value::String(word), _) if word == "@networkservice" => {
                if *ours != self.services {
                    out.push(format!("{path}: other services"));
                }
            }
            (Value::Object(a), Value::Object(b)) => {
                for name in a.keys().chain(b.keys().filter(|name| !a.contains_key(*name))) {
                    match (a.get(name), b.get(name)) {
                        (Some(x), Some(y)) => self.differences(&format!("{path}.{name}"), x, y, out),
                        (Some(x), None) => out.push(format!("{path}.{name} is missing ({x})")),
                        (None, Some(y)) => out.push(format!("{path}.{name} is too much ({y})")),
                        (None, None) => {}
                    }
                }
            }
            (Value::Array(a), Value::Array(b)) => {
                if a.len() != b.len() {
                    out.push(format!("{path}: {} instead of {}", b.len(), a.len()));
                    return;
                }
                let (mut a, mut b) = (a.clone(), b.clone());
                // Lists come in no order, but for volumes, whose names have numbers in them.
                if key != "volume" {
                    a.sort_by_key(name_of);
                    b.sort_by_key(name_of);
                }
                for (x, y) in a.iter().zip(&b) {
                    self.differences(&format!("{path}[]"), x, y, out);
                }
            }
            _ if MEASURED.contains(&key) => {
                if std::mem::discriminant(recorded) != std::mem::discriminant(ours) {
                    out.push(format!("{path}: {ours} is not like {recorded}"));
                }
            }
            (Value::String(a), Value::String(b)) => {
                if is_uuid(a) && is_uuid(b) {
                    let bound = self.ids.entry(a.clone()).or_insert_with(|| b.clone());
                    if bound != b {
                        out.push(format!("{path}: {b} instead of {bound}"));
                    }
                } else if masked(a) != masked(b) {
                    out.push(format!("{path}: {b:?} instead of {a:?}"));
                }
            }
            (a, b) if a == b => {}
            (a, b) => out.push(format!("{path}: {b} instead of {a}")),
        }
    }

    async fn replay(&mut self, sample: &Value) -> Vec<String> {
        let name = sample["sample"].as_str().unwrap();
        let mut out = Vec::new();
        let Some(command) = sample["command"].as_str() else {
            return self.replay_special(name, sample).await;
        };
        let role = match sample["caller"].as_str() {
            Some("Root") => Role::Root,
            Some("DomainAdmin") => Role::DomainAdmin,
            _ => Role::User,
        };
        let params: Vec<(String, String)> = sample["params"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(k, v)| {
                let value = v.as_str().unwrap();
                (k.clone(), if value == "@long" { "eHh4".repeat(1100) } else { self.translated(value) })
            })
            .collect();
        let (status, body) = self.ask(role, sample["method"] == "POST", command, &params).await;
        if sample["status"] != status {
            out.push(format!("status {status} instead of {}: {body}", sample["status"]));
        } else {
            self.differences("", &sample["body"], &body, &mut out);
        }
        out
    }

    /// Samples that are about how a request is made.
    async fn replay_special(&mut self, name: &str, sample: &Value) -> Vec<String> {
        let zones = |value: &str| vec![("keyword".to_owned(), value.to_owned())];
        let sign = match name {
            "sig-wrong-secret" => Sign::Secret("wrong"),
            "sig-unknown-key" => Sign::Key("nobody"),
            "sig-expired" => Sign::Expires("2026-11-15T07:00:00+0000"),
            "sig-expires-far" => Sign::Expires("2026-12-15T07:00:00+0000"),
            "sig-expires-Z" => Sign::Expires("2026-12-15T07:00:00Z"),
            "sig-expires-colon" => Sign::Expires("2026-12-15T07:00:00+00:00"),
            "sig-expires-millis" => Sign::Expires("2026-12-15T07:00:00.123+0000"),
            "sig-v3-no-expires" => Sign::NoExpiry,
            "sig-no-v3" | "enforce-post-no-v3" => Sign::NoVersion,
            "sig-sha256" => Sign::Sha256,
            "sig-tilde-unescaped" => Sign::BareTilde,
            _ => Sign::Well,
        };
        let value = match name {
            "sig-value-space" => "a b",
            "sig-value-plus" => "a+b",
            "sig-value-tilde" | "sig-tilde-unescaped" => "a~b",
            "sig-value-star" => "a*b",
            "sig-value-quotes" => "a'b(c)!",
            "sig-value-unicode" => "ü€漢",
            "sig-value-slash" => "a/b:c@d",
            _ => "sim",
        };
        let (status, body) = match name {
            "throttled-429" => {
                let mut last = (0, Value::Null);
                for _ in 0..4 {
                    last = self.ask(Role::User, false, "listZones", &[]).await;
                }
                last
            }
            "race-same-name" => {
                let (a, b) = tokio::join!(
                    self.deploy("race-1", "Small Instance", "k8s-net", &[]),
                    self.deploy("race-1", "Small Instance", "k8s-net", &[])
                );
                let made = [&a, &b].iter().filter(|answer| answer["id"].is_string()).count();
                return if sample["vms"] == made {
                    Vec::new()
                } else {
                    vec![format!("{made} machines: {a} {b}")]
                };
            }
            "deploy-ip-exhausted" => {
                self.order("ip-5", "Small Instance", "tiny", &[("startvm", "false")]).await
            }
            "userdata-post-too-long" => {
                let long = "eHh4".repeat(8334);
                self.order("ud-2", "k8s.small", "k8s-net", &[("userdata", &long)]).await
            }
            "enforce-post-expires-far" => self.ask_far().await,
            _ => self.ask_signed(Role::User, false, "listZones", &zones(value), sign).await,
        };
        let mut out = Vec::new();
        if sample["status"] != status {
            out.push(format!("status {status} instead of {}: {body}", sample["status"]));
        } else if sample["body"].is_object() {
            self.differences("", &sample["body"], &body, &mut out);
        }
        out
    }

    /// A signature that is good for too long, on a server that cares.
    async fn ask_far(&self) -> (u16, Value) {
        let account = self.cloud.account(Role::User).unwrap();
        let mut all = vec![
            ("apiKey".to_owned(), account.api_key),
            ("command".to_owned(), "listZones".to_owned()),
            ("expires".to_owned(), self.in_minutes(60)),
            ("response".to_owned(), "json".to_owned()),
            ("signatureVersion".to_owned(), "3".to_owned()),
        ];
        let text = all
            .iter()
            .map(|(k, v)| format!("{k}={}", encode(v, false)))
            .collect::<Vec<_>>()
            .join("&")
            .to_lowercase();
        let key =
            ring::hmac::Key::new(ring::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, account.secret_key.as_bytes());
        let tag = ring::hmac::sign(&key, text.as_bytes());
        all.push(("signature".to_owned(), base64::engine::general_purpose::STANDARD.encode(tag)));
        let query =
            all.iter().map(|(k, v)| format!("{k}={}", encode(v, false))).collect::<Vec<_>>().join("&");
        let request = Request::get(format!("/client/api?{query}")).body(Bytes::new()).unwrap();
        let response = self.cloud.handle(request).await.expect("an answer");
        (response.status().as_u16(), serde_json::from_slice(response.body()).expect("JSON"))
    }
}

fn name_of(value: &Value) -> String {
    for key in ["name", "key", "resourcetypename", "usageName", "type", "deviceid", "id"] {
        if !value[key].is_null() {
            return value[key].to_string();
        }
    }
    String::new()
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text
            .bytes()
            .enumerate()
            .all(|(i, b)| if [8, 13, 18, 23].contains(&i) { b == b'-' } else { b.is_ascii_hexdigit() })
}

/// A text without the numbers and ids in it; words stay as they are.
fn masked(text: &str) -> String {
    let mut masked = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if rest.get(..36).is_some_and(is_uuid) {
            masked.push_str("ID");
            rest = &rest[36..];
        } else if c.is_ascii_digit() {
            masked.push('0');
            rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        } else {
            masked.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    masked
}

#[test]
fn of_a_text_only_numbers_and_ids_are_not_compared() {
    let id = "7e8f9a23-bd0c-4621-bcff-c74754fb827f";
    assert_eq!(
        masked(&format!("VM {id} of 12 GiB")),
        masked(&format!("VM {} of 7 GiB", id.replace('7', "1")))
    );
    assert_ne!(masked("it is added"), masked("it is faded"));
}

pub(crate) async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// What happened before a sample without being recorded.
async fn between(replay: &mut Replay, name: &str) {
    let cloud = replay.cloud.clone();
    let unlimited = [
        "user_vm",
        "public_ip",
        "volume",
        "network",
        "cpu",
        "memory",
        "primary_storage",
        "secondary_storage",
    ];
    match name {
        "queryAsyncJobResult-createTags-done" => seconds(2).await,
        "deploy-same-name-after-error-job" => {
            let answer = replay.deploy("cap-huge", "k8s.small", "k8s-net", &[]).await;
            let job = answer["jobid"].as_str().unwrap().to_owned();
            replay.ids.insert("7f42fec8-f44e-4d60-b500-562f17b803a8".to_owned(), job);
            seconds(60).await;
        }
        "deploy-hosttag-unsatisfiable" => cloud.expunge_machine(&replay.machine("cap-huge")),
        "deploy-insufficient-huge" => unlimited.iter().for_each(|resource| cloud.limit(resource, -1)),
        "listVirtualMachines-two-tags-is-OR" => {
            cloud.tag_machine(&replay.machine("nic-2"), "k1", Some("x"));
            cloud.tag_machine(&replay.machine("disk-1"), "k2", Some("y"));
        }
        "listServiceOfferings-with-details-user" => seconds(5).await,
        "listVirtualMachines-expunged-user" => cloud.expunge_all_destroyed(),
        "listVirtualMachines-stopped" | "listVolumes-after-destroy-volumeids" | "domadmin-list-destroyed" => {
            seconds(60).await;
        }
        "listVolumes-after-expunge" => {
            for name in ["disk-1", "disk-2"] {
                cloud.expunge_machine(&replay.machine(name));
            }
        }
        "listVirtualMachines-affinity" => cloud.expunge_machine(&replay.machine("aa-4")),
        "deploy-start-fails" => cloud.configure(|settings| settings.starts_fail = true),
        "deploy-volume-fails" => cloud.configure(|settings| {
            settings.starts_fail = false;
            settings.volumes_fail = true;
        }),
        "deploy-dp" => cloud.configure(|settings| settings.volumes_fail = false),
        "destroy-delete-protected" => cloud.protect_machine(&replay.machine("dp-1"), true),
        "destroy-with-volumeids-user" => {
            let machine = replay.machine("dd-1");
            let disk =
                cloud.data_disks().into_iter().find(|(_, of)| of.as_ref() == Some(&machine)).expect("a disk");
            replay.ids.insert("ed8ae2f4-7ead-49e4-8d12-4c8625fe56aa".to_owned(), disk.0);
        }
        "deploy-slow" => cloud.configure(|settings| {
            settings.latencies.start = Span::secs(60, 60);
            settings.starts_fail = true;
        }),
        "listVirtualMachines-slow-starting" => seconds(2).await,
        "deploy-then-ms-restart" => cloud.configure(|settings| settings.starts_fail = false),
        "deploy-then-ms-restart-after" => {
            seconds(2).await;
            cloud.restart();
            cloud.configure(|settings| settings.latencies.start = Span::secs(2, 2));
        }
        "throttled-429" => {
            let interval = Duration::from_secs(10);
            let throttle = Throttle { max: 6, interval, counts_twice: true };
            cloud.configure(|settings| settings.throttle = Some(throttle));
        }
        "getApiLimit-enabled" => seconds(20).await,
        "race-same-name" => cloud.configure(|settings| settings.throttle = None),
        "enforce-post-get-refused" => cloud.configure(|settings| settings.enforce_post = true),
        "quotaTariffList-enabled-user" => cloud.configure(|settings| {
            settings.enforce_post = false;
            settings.quota_plugin = true;
        }),
        "listVirtualMachines-state-present" => {
            let kept =
                ["aa-0", "aa-1", "aa-2", "aa-3", "karpenter-np-abcde", "nic-2", "restart-1", "gpu-1", "pj-1"];
            for machine in cloud.machines().iter().filter(|machine| !kept.contains(&machine.name.as_str())) {
                cloud.expunge_machine(&machine.id);
            }
        }
        "listAccounts-admin" => {
            cloud.clear();
            for (resource, limit) in unlimited.iter().zip([20, 20, 20, 20, 40, 40_960, 200, 400]) {
                cloud.limit(resource, limit);
            }
        }
        "deploy-ip-exhausted" => {
            cloud.add("network", json!({"id": "ca47b010-c3ad-412a-98c8-344ae713a193", "name": "tiny", "cidr": "10.1.2.0/29", "state": "Allocated", "tags": []}));
            for i in 0..5 {
                replay.deploy(&format!("ip-{i}"), "Small Instance", "tiny", &[("startvm", "false")]).await;
            }
            seconds(60).await;
        }
        "domadmin-listVirtualMachines" => cloud.clear(),
        "deploy-expunge-allowed" => cloud.configure(|settings| settings.user_may_expunge = true),
        "listZones-showcapacities-domadmin" => {
            let zone = cloud
                .add("zone", json!({"id": "a1c0f891-cfaa-43cb-b5d0-a54d4ea2a947", "name": "sim-zone-2"}));
            let network = json!({"id": "4b00c50b-5168-4ddf-b105-b9326ef4e947", "name": "net-2", "zoneid": zone, "zonename": "sim-zone-2"});
            cloud.add("network", network);
        }
        "deploy-zone-disabled" => {
            cloud.edit("zone", "sim-zone-2", |zone| zone["allocationstate"] = "Disabled".into())
        }
        _ if name.ends_with("-job") || name.starts_with("queryAsyncJobResult-createTags-dup") => {
            seconds(200).await
        }
        "queryAsyncJobResult-deploy-done" | "queryAsyncJobResult-customjobid" => seconds(60).await,
        _ => {}
    }
}

#[tokio::test(start_paused = true)]
async fn the_recorded_samples_are_answered_alike() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../conformance/cloudstack/samples.jsonl");
    let samples = std::fs::read_to_string(file).expect("the samples");
    let mut replay = Replay::new();
    let mut different: Map<String, Value> = Map::new();
    let mut count = 0;
    for line in samples.lines() {
        let sample: Value = serde_json::from_str(line).expect("a sample");
        let name = sample["sample"].as_str().unwrap().to_owned();
        between(&mut replay, &name).await;
        let differences = replay.replay(&sample).await;
        count += 1;
        if !differences.is_empty() {
            different.insert(name, differences.join("; ").into());
        }
    }
    assert_eq!(count, 282);
    let unexplained: Vec<String> = different
        .iter()
        .filter(|(name, _)| !DIFFERENT.iter().any(|(known, _)| known == name))
        .map(|(name, why)| format!("{name}: {}", why.as_str().unwrap().chars().take(600).collect::<String>()))
        .collect();
    assert!(unexplained.is_empty(), "{} of {count} differ:\n{}", unexplained.len(), unexplained.join("\n"));
    for (name, reason) in DIFFERENT {
        assert!(different.contains_key(name), "{name} is answered alike now; it no longer needs {reason:?}");
    }
}
