//! Where the management cluster is, and which Cluster of it is ours: what users set, checked when it is read.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use k8s_openapi::api::core::v1::Secret;
use karpenter_primitives::names::label_value_errors;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use serde_json::json;

use super::sync_labels::{BadPattern, SyncLabels};

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// Two settings say different things.
    #[error("{0} and {1} are both set; keep one of them")]
    Both(&'static str, &'static str),
    /// A setting needs another.
    #[error("{0} is set without {1}, which it belongs to")]
    Without(&'static str, &'static str),
    /// A setting has a value that means nothing.
    #[error("{setting}: {value:?} {problem}")]
    Invalid {
        /// Its environment variable.
        setting: &'static str,
        /// What it says.
        value: String,
        /// What it should be.
        problem: &'static str,
    },
    /// Which labels are copied means nothing.
    #[error(transparent)]
    SyncLabels(#[from] BadPattern),
    /// A kubeconfig cannot be used.
    #[error("{what}: {source}; it should be a kubeconfig that kubectl can use")]
    Kubeconfig {
        /// Where it stands.
        what: String,
        /// What is wrong with it.
        source: Box<KubeconfigError>,
    },
    /// The Secret of a workload cluster's kubeconfig lacks it.
    #[error(
        "secret {0}: key \"value\" holds no kubeconfig; Cluster API writes it there once the control plane is up"
    )]
    NoKubeconfig(String),
}

/// How the management cluster is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is the cluster we run for.
    Joined,
    /// By the kubeconfig in this file.
    Kubeconfig(PathBuf),
    /// By its address, without a kubeconfig.
    Url {
        /// The address of its API server.
        url: String,
        /// Bearer token.
        token: Option<String>,
        /// Certificate authority, PEM.
        authority: Option<String>,
        /// Whether any certificate will do.
        insecure: bool,
    },
}

/// What users set: where the management cluster is, and what applies to all NodeClasses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How the management cluster is reached.
    pub access: Access,
    /// Our Cluster's name; found by itself if there is only one.
    pub cluster_name: Option<String>,
    /// Our Cluster's namespace.
    pub cluster_namespace: Option<String>,
    /// The architecture of nodes whose template does not say.
    pub default_arch: String,
    /// The part of its memory that a machine never sees where nobody says, in millionths.
    pub vm_memory_overhead: u32,
    /// Further labels that Cluster API copies from Machines to Nodes.
    pub sync_labels: SyncLabels,
    /// How long a window of launches stays open after its last arrival, and after its first.
    pub window: (Duration, Duration),
    /// For how long what was last seen of the management cluster is believed.
    pub max_age: Duration,
    /// Whether the core repairs nodes: the feature gate NodeRepair.
    pub node_repair: bool,
    /// Whether nodes are launched though fewer values are left than `minValues` asks for: the core's setting `MIN_VALUES_POLICY`.
    pub relaxes_min_values: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            access: Access::Joined,
            cluster_name: None,
            cluster_namespace: None,
            default_arch: "amd64".to_owned(),
            vm_memory_overhead: 0,
            sync_labels: SyncLabels::default(),
            window: (Duration::from_millis(100), Duration::from_secs(1)),
            max_age: Duration::from_secs(15 * 60),
            node_repair: false,
            relaxes_min_values: false,
        }
    }
}

impl Settings {
    /// What the settings say, by the names of their environment variables.
    pub fn read(setting: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let text = |name: &str| setting(name).map(|text| text.trim().to_owned()).filter(|t| !t.is_empty());
        let (kubeconfig, url) = (text("CLUSTER_API_KUBECONFIG"), text("CLUSTER_API_URL"));
        let token = text("CLUSTER_API_TOKEN");
        let authority = text("CLUSTER_API_CERTIFICATE_AUTHORITY_DATA").map(authority).transpose()?;
        let insecure = match text("CLUSTER_API_SKIP_TLS_VERIFY").as_deref() {
            None | Some("false" | "0") => false,
            Some("true" | "1") => true,
            Some(other) => {
                return Err(SettingsError::Invalid {
                    setting: "CLUSTER_API_SKIP_TLS_VERIFY",
                    value: other.to_owned(),
                    problem: "is neither true nor false",
                });
            }
        };
        let access = match (kubeconfig, url) {
            (Some(_), Some(_)) => {
                return Err(SettingsError::Both("CLUSTER_API_KUBECONFIG", "CLUSTER_API_URL"));
            }
            (Some(path), None) => Access::Kubeconfig(path.into()),
            (None, Some(url)) => Access::Url { url, token, authority, insecure },
            (None, None) if token.is_some() => {
                return Err(SettingsError::Without("CLUSTER_API_TOKEN", "CLUSTER_API_URL"));
            }
            (None, None) if authority.is_some() => {
                let set = "CLUSTER_API_CERTIFICATE_AUTHORITY_DATA";
                return Err(SettingsError::Without(set, "CLUSTER_API_URL"));
            }
            (None, None) => Access::Joined,
        };
        let (cluster_name, cluster_namespace) = (text("CLUSTER_NAME"), text("CLUSTER_NAMESPACE"));
        let default_arch = text("CLUSTER_API_DEFAULT_ARCH").unwrap_or_else(|| "amd64".to_owned());
        if !label_value_errors(&default_arch).is_empty() {
            return Err(SettingsError::Invalid {
                setting: "CLUSTER_API_DEFAULT_ARCH",
                value: default_arch,
                problem: "cannot be the value of a label such as amd64 or arm64",
            });
        }
        Ok(Self {
            access,
            cluster_name,
            cluster_namespace,
            default_arch,
            vm_memory_overhead: part(text("VM_MEMORY_OVERHEAD_PERCENT"))?,
            sync_labels: SyncLabels::read(&text("CLUSTER_API_SYNC_LABELS").unwrap_or_default())?,
            ..Self::default()
        })
    }

    /// The management cluster as a client is made for it; `None` if it is the cluster we run for.
    pub(crate) async fn management(&self) -> Result<Option<Config>, SettingsError> {
        let (what, kubeconfig) = match &self.access {
            Access::Joined => return Ok(None),
            Access::Kubeconfig(path) => {
                let what = format!("CLUSTER_API_KUBECONFIG {:?}", path.display());
                let read = Kubeconfig::read_from(path);
                (what.clone(), read.map_err(|source| kubeconfig_error(what, source))?)
            }
            Access::Url { url, token, authority, insecure } => {
                let what = format!("CLUSTER_API_URL {url:?}");
                let made = by_url(url, token.as_deref(), authority.as_deref(), *insecure);
                (what.clone(), made.map_err(|source| kubeconfig_error(what, source))?)
            }
        };
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        config.map(Some).map_err(|source| kubeconfig_error(what, source))
    }
}

/// The workload cluster's kubeconfig as Cluster API keeps it: Secret `<cluster>-kubeconfig`, key `value`.
pub(crate) fn workload_kubeconfig(secret: &Secret) -> Result<Kubeconfig, SettingsError> {
    let meta = &secret.metadata;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let name = format!("{}/{}", text(&meta.namespace), text(&meta.name));
    let value = secret.data.as_ref().and_then(|data| data.get("value"));
    let value = value.and_then(|value| std::str::from_utf8(&value.0).ok()).filter(|text| !text.is_empty());
    let value = value.ok_or_else(|| SettingsError::NoKubeconfig(name.clone()))?;
    Kubeconfig::from_yaml(value).map_err(|source| kubeconfig_error(format!("secret {name}"), source))
}

fn kubeconfig_error(what: String, source: KubeconfigError) -> SettingsError {
    SettingsError::Kubeconfig { what, source: Box::new(source) }
}

/// A part of one, as AWS's provider has it in a setting of this name, in millionths.
fn part(text: Option<String>) -> Result<u32, SettingsError> {
    let Some(text) = text else { return Ok(0) };
    let part = text.parse::<f64>().ok().filter(|part| (0.0..1.0).contains(part));
    let part = part.ok_or(SettingsError::Invalid {
        setting: "VM_MEMORY_OVERHEAD_PERCENT",
        value: text,
        problem: "is no part of one, such as 0.075 for 7.5 percent",
    })?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to a million")]
    let millionths = (part * 1e6).round() as u32;
    Ok(millionths)
}

/// PEM as it is, or base64 of PEM as kubeconfigs have it.
fn authority(text: String) -> Result<String, SettingsError> {
    if text.contains("-----BEGIN") {
        return Ok(text);
    }
    let decoded = BASE64.decode(text.as_bytes()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    decoded.filter(|text| text.contains("-----BEGIN")).ok_or_else(|| SettingsError::Invalid {
        setting: "CLUSTER_API_CERTIFICATE_AUTHORITY_DATA",
        value: text.chars().take(16).collect(),
        problem: "is neither a PEM certificate nor base64 of one",
    })
}

fn by_url(
    url: &str,
    token: Option<&str>,
    authority: Option<&str>,
    insecure: bool,
) -> Result<Kubeconfig, KubeconfigError> {
    let mut cluster = json!({"server": url, "insecure-skip-tls-verify": insecure});
    if let Some(pem) = authority {
        cluster["certificate-authority-data"] = BASE64.encode(pem).into();
    }
    let user = token.map_or_else(|| json!({}), |token| json!({"token": token}));
    let kubeconfig = json!({
        "current-context": "management",
        "contexts": [{"name": "management", "context": {"cluster": "management", "user": "management"}}],
        "clusters": [{"name": "management", "cluster": cluster}],
        "users": [{"name": "management", "user": user}],
    });
    // JSON is YAML.
    Kubeconfig::from_yaml(&kubeconfig.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        Settings::read(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nothing_set_means_that_the_management_cluster_is_this_one() {
        assert_eq!(read(&[]).expect("settings"), Settings::default());
        assert_eq!(read(&[("CLUSTER_API_KUBECONFIG", " ")]).expect("settings").access, Access::Joined);
    }

    #[test]
    fn a_certificate_authority_may_be_pem_or_base64() {
        let pem = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----";
        for text in [pem.to_owned(), BASE64.encode(pem)] {
            let settings = read(&[
                ("CLUSTER_API_URL", "https://hub:6443"),
                ("CLUSTER_API_TOKEN", "t"),
                ("CLUSTER_API_CERTIFICATE_AUTHORITY_DATA", &text),
            ]);
            let Access::Url { authority, .. } = settings.expect("settings").access else { panic!("by url") };
            assert_eq!(authority.as_deref(), Some(pem));
        }
    }

    #[test]
    fn settings_that_contradict_each_other_are_named() {
        for (pairs, text) in [
            (
                vec![("CLUSTER_API_KUBECONFIG", "/f"), ("CLUSTER_API_URL", "https://hub")],
                "CLUSTER_API_KUBECONFIG and CLUSTER_API_URL are both set; keep one of them",
            ),
            (
                vec![("CLUSTER_API_TOKEN", "t")],
                "CLUSTER_API_TOKEN is set without CLUSTER_API_URL, which it belongs to",
            ),
            (
                vec![("CLUSTER_API_URL", "https://hub"), ("CLUSTER_API_SKIP_TLS_VERIFY", "maybe")],
                "CLUSTER_API_SKIP_TLS_VERIFY: \"maybe\" is neither true nor false",
            ),
            (
                vec![("CLUSTER_API_URL", "u"), ("CLUSTER_API_CERTIFICATE_AUTHORITY_DATA", "nonsense")],
                "CLUSTER_API_CERTIFICATE_AUTHORITY_DATA: \"nonsense\" is neither a PEM certificate nor base64 of one",
            ),
            (
                vec![("CLUSTER_API_DEFAULT_ARCH", "a rm64")],
                "CLUSTER_API_DEFAULT_ARCH: \"a rm64\" cannot be the value of a label such as amd64 or arm64",
            ),
            (
                vec![("VM_MEMORY_OVERHEAD_PERCENT", "7.5")],
                "VM_MEMORY_OVERHEAD_PERCENT: \"7.5\" is no part of one, such as 0.075 for 7.5 percent",
            ),
            (
                vec![("CLUSTER_API_SYNC_LABELS", "[team")],
                "--additional-sync-machine-labels (CLUSTER_API_SYNC_LABELS): \"[team\" is not a regular expression: unclosed character class; \
                 write it as Cluster API's flag of that name has it, and one that has a comma in double quotes",
            ),
        ] {
            assert_eq!(read(&pairs).expect_err("refused").to_string(), text);
        }
    }

    #[tokio::test]
    async fn a_management_cluster_by_address_has_its_token() {
        let settings = read(&[("CLUSTER_API_URL", "https://hub:6443"), ("CLUSTER_API_TOKEN", "secret")]);
        let config = settings.expect("settings").management().await.expect("a configuration").expect("apart");
        assert_eq!(config.cluster_url.to_string(), "https://hub:6443/");
        assert!(config.auth_info.token.is_some());
        let missing = read(&[("CLUSTER_API_KUBECONFIG", "/no/such/file")]).expect("settings");
        let error = missing.management().await.expect_err("no file").to_string();
        assert!(error.contains("CLUSTER_API_KUBECONFIG \"/no/such/file\""), "{error}");
    }

    #[test]
    fn a_workload_cluster_is_found_by_its_secret() {
        let mut secret = Secret::default();
        secret.metadata.name = Some("c-kubeconfig".into());
        secret.metadata.namespace = Some("fleet".into());
        let error = workload_kubeconfig(&secret).expect_err("empty").to_string();
        assert!(error.starts_with("secret fleet/c-kubeconfig: key \"value\""), "{error}");
        let yaml = "clusters: [{name: c, cluster: {server: 'https://c'}}]\ncurrent-context: c";
        let value = k8s_openapi::ByteString(yaml.as_bytes().to_vec());
        secret.data = Some([("value".to_owned(), value)].into());
        assert_eq!(workload_kubeconfig(&secret).expect("a kubeconfig").clusters[0].name, "c");
    }
}
