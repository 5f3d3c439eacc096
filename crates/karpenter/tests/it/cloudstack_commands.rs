//! `karpenter cloudstack doctor`, `types` and `orphans`, over HTTP against `karpenter cloudstack simulator`.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use karpenter_provider_cloudstack::naming::Naming;
use serde_json::{Value, json};

pub(crate) const CLUSTER: &str = "commands";

/// A cluster on a socket, which ends with the test.
pub(crate) struct Cluster {
    child: Child,
    kubeconfig: std::path::PathBuf,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.kubeconfig);
    }
}

impl Cluster {
    /// One that knows Karpenter's kinds, for the test of this name.
    pub(crate) fn start(name: &str) -> Self {
        let kubeconfig = std::env::temp_dir()
            .join(format!("karpenter-cloudstack-cluster-{name}-{}.yaml", std::process::id()));
        let _ = std::fs::remove_file(&kubeconfig);
        let child = Command::new(env!("CARGO_BIN_EXE_karpenter"))
            .args(["apiserver", "--kubeconfig"])
            .arg(&kubeconfig)
            .spawn()
            .expect("the binary runs");
        let cluster = Self { child, kubeconfig };
        while !cluster.kubeconfig.exists() {
            std::thread::yield_now();
        }
        let definitions =
            Command::new(env!("CARGO_BIN_EXE_karpenter")).arg("crds").output().expect("it runs");
        let definitions = String::from_utf8(definitions.stdout).expect("text");
        let definitions: Vec<Value> = serde_saphyr::from_multiple(&definitions).expect("YAML");
        for definition in &definitions {
            cluster.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition);
        }
        cluster
    }

    pub(crate) async fn client(&self) -> kube::Client {
        let config = kube::config::Kubeconfig::read_from(&self.kubeconfig).expect("a kubeconfig");
        let usual = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(config, &usual).await.expect("a config");
        kube::Client::try_from(config).expect("a client")
    }

    pub(crate) fn create(&self, path: &str, object: &Value) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let client = self.client().await;
            let body = serde_json::to_vec(object).expect("JSON");
            let request = http::Request::post(path).header("content-type", "application/json").body(body);
            client.request::<Value>(request.expect("a request")).await.expect("created");
        });
    }

    pub(crate) fn file(&self) -> &str {
        self.kubeconfig.to_str().expect("a name")
    }
}

/// A simulator on a socket, which ends with the test.
pub(crate) struct Simulator {
    child: Child,
    pub(crate) endpoint: String,
    pub(crate) key: String,
    pub(crate) secret: String,
}

impl Drop for Simulator {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Simulator {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_karpenter"))
            .args(["cloudstack", "simulator"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let mut line = || lines.next().expect("a line").expect("text");
        let endpoint = line().trim_start_matches("endpoint=").to_owned();
        // All four lines: a reader that goes away would end it.
        let (user, _, _) = (line(), line(), line());
        let value = |name: &str| {
            let word = user.split(' ').find_map(|word| word.strip_prefix(&format!("{name}=")));
            word.expect(name).to_owned()
        };
        Self { endpoint, key: value("api-key"), secret: value("secret-key"), child }
    }

    pub(crate) fn run(&self, secret: &str, arguments: &[&str]) -> (Option<i32>, String) {
        self.run_with(secret, arguments, &[])
    }

    fn run_with(
        &self,
        secret: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> (Option<i32>, String) {
        let run = Command::new(env!("CARGO_BIN_EXE_karpenter"))
            .arg("cloudstack")
            .args(arguments)
            .env("CLOUDSTACK_API_URL", &self.endpoint)
            .env("CLOUDSTACK_API_KEY", &self.key)
            .env("CLOUDSTACK_SECRET_KEY", secret)
            .env("CLOUDSTACK_ALLOW_INSECURE_HTTP", "true")
            .env("CLUSTER_NAME", CLUSTER)
            .envs(variables.iter().copied())
            .output()
            .expect("the binary runs");
        let text =
            format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        (run.status.code(), text)
    }
}

fn node_class(network: &str) -> std::path::PathBuf {
    let file =
        std::env::temp_dir().join(format!("karpenter-cloudstack-{network}-{}.yaml", std::process::id()));
    let text = format!(
        "apiVersion: karpenter.k8s.cloudstack/v1\nkind: CloudStackNodeClass\nmetadata: {{name: default}}\nspec:\n  zone: sim-zone-1\n  networkSelectorTerms: [{{name: {network}}}]\n  serviceOfferingSelectorTerms: [{{name: k8s.*}}]\n  templateSelectorTerms: [{{name: CentOS*}}]\n"
    );
    std::fs::write(&file, text).expect("a file");
    file
}

#[test]
fn the_doctor_says_what_works_and_what_does_not() {
    let simulator = Simulator::start();
    let (code, text) = simulator.run(&simulator.secret, &["doctor"]);
    assert_eq!(code, Some(0), "{text}");
    for part in ["CloudStack 4.23", "ok   credentials", "ok   rights", "expunging", "sim-zone-1"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (code, text) = simulator.run("wrong", &["doctor"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("FAIL credentials") && !text.contains("wrong"), "{text}");
    let (code, text) =
        simulator.run(&simulator.secret, &["doctor", "-f", &node_class("k8s-net").display().to_string()]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("default can be used"), "{text}");
    let (code, text) =
        simulator.run(&simulator.secret, &["doctor", "-f", &node_class("nowhere").display().to_string()]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("spec.networkSelectorTerms"), "{text}");
}

#[test]
fn a_served_simulator_misbehaves_as_it_is_told_to() {
    let doctor = |arguments: &[&str]| {
        let simulator = Simulator::start_with(arguments);
        simulator.run(&simulator.secret, &["doctor"])
    };
    let odd = ["--enforce-post", "--page-size", "2", "--repeat-rows", "1", "--clock-ahead", "5m"];
    let (code, text) = doctor(&odd);
    assert_eq!(code, Some(0), "all of it is borne: {text}");
    for refused in [["--clock-ahead", "20m"], ["--revoke-keys-after", "0s"]] {
        let (code, text) = doctor(&refused);
        assert!(code == Some(1) && text.contains("FAIL credentials"), "{refused:?}: {text}");
    }
}

#[test]
fn the_proxy_of_the_environment_is_used_except_where_it_says_otherwise() {
    use std::io::Read as _;
    let proxy = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = proxy.local_addr().expect("an address").to_string();
    // What the first caller asks for. It gets no answer, and the doctor says so.
    let asked = std::thread::spawn(move || {
        let (mut socket, _) = proxy.accept().expect("a caller");
        let mut start = [0u8; 64];
        let length = socket.read(&mut start).expect("a request");
        String::from_utf8_lossy(&start[..length]).into_owned()
    });
    // Nobody listens there.
    let doctor = |no_proxy: &str| {
        let run = Command::new(env!("CARGO_BIN_EXE_karpenter"))
            .args(["cloudstack", "doctor"])
            .env("CLOUDSTACK_API_URL", "https://127.0.0.1:1/client/api")
            .env("CLOUDSTACK_API_KEY", "key")
            .env("CLOUDSTACK_SECRET_KEY", "secret")
            .env("CLUSTER_NAME", CLUSTER)
            .env("HTTPS_PROXY", format!("http://{address}"))
            .env("NO_PROXY", no_proxy)
            .output()
            .expect("the binary runs");
        assert_eq!(run.status.code(), Some(1), "{}", String::from_utf8_lossy(&run.stdout));
    };
    doctor("127.0.0.1");
    assert!(!asked.is_finished(), "the proxy is for others");
    doctor("elsewhere.example");
    assert!(asked.join().expect("asked").starts_with("CONNECT 127.0.0.1:1 "));
}

#[test]
fn types_are_listed_with_price_and_availability_cheapest_first() {
    let simulator = Simulator::start();
    let file = node_class("k8s-net").display().to_string();
    let (code, text) = simulator.run(&simulator.secret, &["types", "-f", &file]);
    assert_eq!(code, Some(0), "{text}");
    let names: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names.first(), Some(&"INSTANCE"), "{text}");
    assert!(names.contains(&"k8s.small") && names.contains(&"k8s.custom.4c-16g"), "{text}");
    // 64 cores are more than the account's limit leaves.
    let huge = text.lines().find(|line| line.starts_with("k8s.huge")).unwrap_or_default();
    assert!(huge.contains(" no "), "{text}");
    let (code, text) = simulator.run(&simulator.secret, &["types", "-f", "/nonexistent"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("/nonexistent"), "{text}");
}

#[test]
fn orphans_are_machines_of_the_cluster_that_no_node_claim_wants() {
    let prefix = Naming::new("karpenter", CLUSTER).prefix().to_owned();
    let (lost, wanted, other) = (format!("{prefix}lost"), format!("{prefix}np-a"), "karpenter-x");
    let simulator = Simulator::start_with(&[
        "--clock-behind",
        "10m",
        "--machine",
        &lost,
        "--machine",
        &wanted,
        "--machine",
        other,
    ]);
    let cluster = Cluster::start("orphans");
    let orphans = || simulator.run(&simulator.secret, &["orphans", "--kubeconfig", cluster.file()]);

    let (code, text) = orphans();
    assert_eq!(code, Some(2), "a cluster without NodeClass is the wrong one: {text}");
    assert!(text.contains("CLUSTER_NAME"), "{text}");

    let class = |name: &str, credentials: Value| {
        let mut class = json!({
            "apiVersion": "karpenter.k8s.cloudstack/v1", "kind": "CloudStackNodeClass", "metadata": {"name": name},
            "spec": {"zone": "sim-zone-1", "networkSelectorTerms": [{"name": "k8s-net"}],
                "serviceOfferingSelectorTerms": [{"name": "k8s.*"}], "templateSelectorTerms": [{"name": "*"}]},
        });
        if !credentials.is_null() {
            class["spec"]["credentialsRef"] = credentials;
        }
        class
    };
    let classes = "/apis/karpenter.k8s.cloudstack/v1/cloudstacknodeclasses";
    cluster.create(classes, &class("default", Value::Null));
    cluster.create(
        "/apis/karpenter.sh/v1/nodeclaims",
        &json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "np-a"},
            "spec": {"requirements": [], "nodeClassRef":
                {"group": "karpenter.k8s.cloudstack", "kind": "CloudStackNodeClass", "name": "default"}},
        }),
    );
    let (code, text) = orphans();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&lost) && text.contains("1 virtual machines of cluster commands"), "{text}");
    assert!(!text.contains(&wanted) && !text.contains(other), "{text}");

    // Not knowing what is in an account is no reason to say that nothing is.
    cluster.create(classes, &class("other", json!({"namespace": "default", "name": "team-a"})));
    let (code, text) = orphans();
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("Secret default/team-a") && text.contains("spec.credentialsRef"), "{text}");
    let mut left = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "np-b"},
        "spec": {"requirements": [], "nodeClassRef":
            {"group": "karpenter.k8s.cloudstack", "kind": "CloudStackNodeClass", "name": "gone"}},
    });
    left["metadata"]["annotations"] = json!({"karpenter.k8s.cloudstack/credentials": "default/a-team"});
    cluster.create("/apis/karpenter.sh/v1/nodeclaims", &left);
    let (code, text) = orphans();
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("Secret default/a-team"), "the keys a NodeClaim was made with count too: {text}");
}

#[test]
fn scenario_22_the_simulator_serves_https_to_whoever_trusts_its_certificate() {
    let certificates =
        format!("{}/../../providers/cloudstack/tests/it/certificates", env!("CARGO_MANIFEST_DIR"));
    let file = |name: &str| format!("{certificates}/{name}");
    let (certificate, key, authority) = (file("server.pem"), file("server.key"), file("ca.pem"));
    let simulator = Simulator::start_with(&["--tls-cert", &certificate, "--tls-key", &key]);
    assert!(simulator.endpoint.starts_with("https://127.0.0.1:"), "{}", simulator.endpoint);
    let (code, text) = simulator.run(&simulator.secret, &["doctor"]);
    assert!(code == Some(1) && text.contains("certificate"), "{text}");
    let trusting = [("CLOUDSTACK_CA_FILE", authority.as_str())];
    let (code, text) = simulator.run_with(&simulator.secret, &["doctor"], &trusting);
    assert_eq!(code, Some(0), "{text}");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_karpenter"));
        let run = command.args(["cloudstack", "simulator"]).args(arguments).output().expect("it runs");
        assert!(!run.status.success());
        String::from_utf8_lossy(&run.stderr).into_owned()
    };
    assert!(run(&["--tls-cert", &certificate]).contains("--tls-key"));
    let swapped = run(&["--tls-cert", &certificate, "--tls-key", &authority]);
    assert!(swapped.contains("the key is not in PEM"), "{swapped}");
}
