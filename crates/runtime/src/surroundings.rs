//! Where the program finds itself: which cluster, in which namespace, on which host.

use std::fs;
use std::path::{Path, PathBuf};

use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};

const OWN_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Why the program does not know where it is.
#[derive(Debug, thiserror::Error)]
pub enum SurroundingsError {
    /// A kubeconfig that was named cannot be used.
    #[error("kubeconfig {path:?} (--kubeconfig, KUBECONFIG): {source}; name a file that kubectl can use", path = .path.display())]
    Kubeconfig {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<KubeconfigError>,
    },
    /// None was named, and we are not in a cluster.
    #[error("no cluster: {0}; run inside one, or name a kubeconfig with --kubeconfig or KUBECONFIG")]
    NoCluster(String),
    /// We are not in a namespace, and none was named.
    #[error(
        "the lease needs a namespace, and outside a cluster there is none of our own; set --leader-election-namespace (LEADER_ELECTION_NAMESPACE), or --disable-leader-election if there is only ever one replica"
    )]
    NoNamespace,
}

/// The cluster to work on, by Go's order: the kubeconfig that was named (several, separated by colons, are merged), else the
/// cluster we run in, else the user's own kubeconfig.
pub async fn cluster(kubeconfig: Option<&Path>) -> Result<Config, SurroundingsError> {
    let Some(paths) = kubeconfig else {
        return Config::infer().await.map_err(|error| SurroundingsError::NoCluster(error.to_string()));
    };
    let failed = |source| SurroundingsError::Kubeconfig { path: paths.to_owned(), source: Box::new(source) };
    let mut merged: Option<Kubeconfig> = None;
    for path in std::env::split_paths(paths).filter(|path| !path.as_os_str().is_empty()) {
        let read = Kubeconfig::read_from(&path)
            .map_err(|source| SurroundingsError::Kubeconfig { path, source: Box::new(source) })?;
        merged = Some(match merged {
            None => read,
            Some(before) => before.merge(read).map_err(failed)?,
        });
    }
    let kubeconfig = merged.ok_or_else(|| failed(KubeconfigError::FindPath))?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(failed)
}

/// The namespace of the lease: the one that was named, else our own.
pub fn lease_namespace(named: &str) -> Result<String, SurroundingsError> {
    if !named.is_empty() {
        return Ok(named.to_owned());
    }
    let own = fs::read_to_string(OWN_NAMESPACE).unwrap_or_default();
    let own = own.trim();
    if own.is_empty() { Err(SurroundingsError::NoNamespace) } else { Ok(own.to_owned()) }
}

/// The name of this host: in a cluster, of the pod.
pub fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_kubeconfig_that_cannot_be_used_is_named_with_its_flag() {
        let error = cluster(Some(Path::new("/no/such/kubeconfig"))).await.expect_err("no file").to_string();
        assert!(
            error.contains("/no/such/kubeconfig") && error.contains("--kubeconfig, KUBECONFIG"),
            "{error}"
        );
        let error = cluster(Some(Path::new(":"))).await.expect_err("no file").to_string();
        assert!(error.contains("--kubeconfig"), "{error}");
    }

    #[test]
    fn a_named_namespace_is_taken_and_a_missing_one_says_what_to_set() {
        assert_eq!(lease_namespace("kube-system").expect("named"), "kube-system");
        if let Err(error) = lease_namespace("") {
            assert!(error.to_string().contains("--leader-election-namespace (LEADER_ELECTION_NAMESPACE)"));
        }
        assert!(!host_name().is_empty());
    }
}
