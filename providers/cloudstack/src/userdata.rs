//! User data: what the machine is told at its start. Variables are filled in; what is long is compressed; what is too long is
//! an error here and not at the server.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::nodeclass::CloudStackNodeClassSpec;

/// What servers take in base64 unless configured otherwise.
pub(crate) const MAX_LENGTH: usize = 32_768;

/// How user data is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packing {
    /// What the server takes in base64.
    pub(crate) limit: usize,
    /// What is compressed.
    pub(crate) compressed: Compressed,
}

/// What of user data is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compressed {
    /// What is long.
    Long,
    /// What is short too.
    All,
    /// Nothing: the image reads it as it is.
    Nothing,
}

impl Packing {
    /// What a NodeClass wants of a server that takes so many characters.
    pub(crate) fn of(spec: &CloudStackNodeClassSpec, limit: usize) -> Self {
        let talos = spec.bootstrap.as_ref().is_some_and(|bootstrap| bootstrap.mode == "Talos");
        let compressed = match spec.user_data_compression.as_deref() {
            Some("Always") => Compressed::All,
            // Not every release of Talos takes it.
            _ if talos => Compressed::Nothing,
            _ => Compressed::Long,
        };
        Self { limit, compressed }
    }
}

impl Default for Packing {
    fn default() -> Self {
        Self { limit: MAX_LENGTH, compressed: Compressed::Long }
    }
}

/// What is known of the machine when its user data is written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Variables {
    pub(crate) cluster: String,
    pub(crate) node_claim: String,
    pub(crate) node_pool: String,
    pub(crate) zone: String,
    pub(crate) instance_type: String,
    /// `key=value` pairs, separated by commas, as kubelet's `--node-labels` takes them.
    pub(crate) labels: String,
    /// `key=value:effect`, separated by commas, as kubelet's `--register-with-taints` takes them.
    pub(crate) taints: String,
    /// The machine's provider id, with [`INSTANCE_ID`] for what only the machine itself knows.
    pub(crate) provider_id: String,
}

/// Stands for the machine's id in scripts, which put it into a variable of this name.
pub(crate) const INSTANCE_ID: &str = "$instance_id";

/// User data that no server would take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "spec.userData has {length} characters in base64, compressed where its reader can take that, and CloudStack takes {limit} (CLOUDSTACK_MAX_USER_DATA); shorten it, or register it with CloudStack and name it in spec.userDataID"
)]
pub(crate) struct TooLong {
    length: usize,
    limit: usize,
}

/// A text with its variables filled in.
pub(crate) fn fill(template: &str, variables: &Variables) -> String {
    let mut text = template.to_owned();
    for (name, value) in [
        ("clusterName", &variables.cluster),
        ("nodeClaim", &variables.node_claim),
        ("nodePool", &variables.node_pool),
        ("zone", &variables.zone),
        ("instanceType", &variables.instance_type),
        ("labels", &variables.labels),
        ("taints", &variables.taints),
    ] {
        text = put(text, name, value);
    }
    text
}

/// A text with one variable filled in.
pub(crate) fn put(text: String, name: &str, value: &str) -> String {
    text.replace(&format!("{{{{{name}}}}}"), value).replace(&format!("{{{{ {name} }}}}"), value)
}

/// The user data in base64, compressed where it is long. cloud-init knows gzip by its first bytes.
pub(crate) fn render(template: &str, variables: &Variables, packing: Packing) -> Result<String, TooLong> {
    let text = fill(template, variables);
    let plain = STANDARD.encode(&text);
    let Packing { limit, compressed } = packing;
    let stays = match compressed {
        Compressed::Long => plain.len() <= limit / 2,
        Compressed::All => false,
        Compressed::Nothing => true,
    };
    if stays {
        let length = plain.len();
        return if length <= limit { Ok(plain) } else { Err(TooLong { length, limit }) };
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    // Writing to memory cannot fail.
    let compressed = encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish()).unwrap_or_default();
    let compressed = STANDARD.encode(compressed);
    let length = compressed.len();
    if length <= limit { Ok(compressed) } else { Err(TooLong { length, limit }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_filled_in() {
        let variables = Variables { cluster: "prod".into(), labels: "a=b".into(), ..Variables::default() };
        let data =
            render("{{clusterName}} {{ labels }} {{other}}", &variables, Packing::default()).expect("short");
        assert_eq!(STANDARD.decode(data).expect("base64"), b"prod a=b {{other}}");
    }

    #[test]
    fn long_data_is_compressed_and_too_long_data_says_so() {
        let long = "echo hello\n".repeat(5000);
        let render = |text: &str, packing: Packing| render(text, &Variables::default(), packing);
        let usual = Packing::default();
        let data = STANDARD.decode(render(&long, usual).expect("compressible")).expect("base64");
        assert_eq!(&data[..2], b"\x1f\x8b", "gzip");
        let mut noise = String::new();
        let mut state = 1u64;
        while noise.len() < 60_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            noise.push_str(&format!("{:x}", state >> 16));
        }
        let error = render(&noise, usual).expect_err("too long").to_string();
        assert!(error.contains("userDataID") && error.contains("32768"), "{error}");
        render(&noise, Packing { limit: 1 << 20, ..usual }).expect("a server that takes more");
        let short = render("echo hello", Packing { compressed: Compressed::All, ..usual }).expect("short");
        assert_eq!(&STANDARD.decode(short).expect("base64")[..2], b"\x1f\x8b", "gzip where it is wanted");
        let plain = Packing { compressed: Compressed::Nothing, ..usual };
        assert!(render(&long, plain).is_err(), "what may not be compressed is measured as it is");
        let short = STANDARD.decode(render("machine: {}", plain).expect("short")).expect("base64");
        assert_eq!(short, b"machine: {}");
    }
}
