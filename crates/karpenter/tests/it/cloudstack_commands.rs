//! `karpenter cloudstack doctor` and `types`, over HTTP against `karpenter cloudstack simulator`.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

/// A simulator on a socket, which ends with the test.
struct Simulator {
    child: Child,
    endpoint: String,
    key: String,
    secret: String,
}

impl Drop for Simulator {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Simulator {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_karpenter"))
            .args(["cloudstack", "simulator"])
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

    fn run(&self, secret: &str, arguments: &[&str]) -> (Option<i32>, String) {
        let run = Command::new(env!("CARGO_BIN_EXE_karpenter"))
            .arg("cloudstack")
            .args(arguments)
            .env("CLOUDSTACK_API_URL", &self.endpoint)
            .env("CLOUDSTACK_API_KEY", &self.key)
            .env("CLOUDSTACK_SECRET_KEY", secret)
            .env("CLOUDSTACK_ALLOW_INSECURE_HTTP", "true")
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
