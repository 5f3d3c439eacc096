//! Where the program finds itself: which cluster, in which namespace, on which host.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{fs, io};

use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};

const OWN_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// What names a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kubeconfigs {
    /// One file, as a flag names it: whatever its name, it has to be there.
    File(PathBuf),
    /// Files separated by colons, as in `KUBECONFIG`. They are merged; as for kubectl those that do not exist do not matter, if one does.
    List(OsString),
}

impl Kubeconfigs {
    /// What a flag names, else what `KUBECONFIG` does.
    pub fn named(flag: Option<&Path>) -> Option<Self> {
        let variable = || std::env::var_os("KUBECONFIG").filter(|list| !list.is_empty()).map(Self::List);
        flag.map(|path| Self::File(path.to_owned())).or_else(variable)
    }

    fn as_path(&self) -> &Path {
        match self {
            Self::File(path) => path,
            Self::List(list) => Path::new(list),
        }
    }

    fn read(&self) -> Result<Kubeconfig, SurroundingsError> {
        let read = |path: &Path| {
            Kubeconfig::read_from(path).map_err(|source| SurroundingsError::kubeconfig(path, source))
        };
        let list = match self {
            Self::File(path) => return read(path),
            Self::List(list) => list,
        };
        let mut merged: Option<Kubeconfig> = None;
        let mut missing = None;
        for path in std::env::split_paths(list).filter(|path| !path.as_os_str().is_empty()) {
            let found = match read(&path) {
                Err(error) if error.is_missing_file() => {
                    missing.get_or_insert(error);
                    continue;
                }
                found => found?,
            };
            merged = Some(match merged {
                None => found,
                Some(before) => {
                    before.merge(found).map_err(|source| SurroundingsError::kubeconfig(&path, source))?
                }
            });
        }
        let nothing = || SurroundingsError::kubeconfig(self.as_path(), KubeconfigError::FindPath);
        merged.ok_or_else(|| missing.unwrap_or_else(nothing))
    }
}

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

impl SurroundingsError {
    fn kubeconfig(path: &Path, source: KubeconfigError) -> Self {
        Self::Kubeconfig { path: path.to_owned(), source: Box::new(source) }
    }

    fn is_missing_file(&self) -> bool {
        let Self::Kubeconfig { source, .. } = self else { return false };
        matches!(&**source, KubeconfigError::ReadConfig(error, _) if error.kind() == io::ErrorKind::NotFound)
    }
}

/// The cluster to work on: of the kubeconfig that was named, else the one we run in, else of the user's own.
pub async fn cluster(kubeconfig: Option<&Kubeconfigs>) -> Result<Config, SurroundingsError> {
    let Some(named) = kubeconfig else {
        if let Ok(around_us) = Config::incluster() {
            return Ok(around_us);
        }
        return Config::infer().await.map_err(|error| SurroundingsError::NoCluster(error.to_string()));
    };
    Config::from_custom_kubeconfig(named.read()?, &KubeConfigOptions::default())
        .await
        .map_err(|source| SurroundingsError::kubeconfig(named.as_path(), source))
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
        for named in [
            Kubeconfigs::File("/no/such/kubeconfig".into()),
            Kubeconfigs::List("/no/such/kubeconfig:/nor/this".into()),
        ] {
            let error = cluster(Some(&named)).await.expect_err("no file").to_string();
            assert!(
                error.contains("/no/such/kubeconfig") && error.contains("--kubeconfig, KUBECONFIG"),
                "{error}"
            );
        }
        let error = cluster(Some(&Kubeconfigs::List(":".into()))).await.expect_err("no file").to_string();
        assert!(error.contains("--kubeconfig"), "{error}");
    }

    #[tokio::test]
    async fn of_several_kubeconfigs_those_that_are_not_there_do_not_matter_and_a_flag_names_only_one() {
        let folder = std::env::temp_dir().join(format!("kubeconfigs-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        // A name that would be two in a list.
        let file = folder.join("of:two");
        let plain = folder.join("plain");
        let text = "{apiVersion: v1, kind: Config, current-context: c, \
                    clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], \
                    contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {}}]}";
        for path in [&file, &plain] {
            fs::write(path, text).expect("a kubeconfig");
        }
        let list = format!("/no/such/kubeconfig:{}:/nor/this", plain.display());
        let found = cluster(Some(&Kubeconfigs::List(list.into()))).await.expect("one is there");
        assert_eq!(found.cluster_url.to_string(), "http://127.0.0.1:1/");
        cluster(Some(&Kubeconfigs::File(file))).await.expect("a file is a file");
        // One that is there and makes no sense is not skipped.
        let odd = folder.join("odd");
        fs::write(&odd, "clusters: 1").expect("a file");
        let list = format!("{}:{}", plain.display(), odd.display());
        let error =
            cluster(Some(&Kubeconfigs::List(list.into()))).await.expect_err("no kubeconfig").to_string();
        assert!(error.contains("odd"), "{error}");
        fs::remove_dir_all(&folder).expect("the folder goes");
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
