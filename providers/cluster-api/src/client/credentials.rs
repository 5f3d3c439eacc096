//! Credentials that are renewed while we run: the kubeconfig of the management cluster when its file changes, that of the workload cluster
//! when Cluster API writes its Secret anew. What cannot be used is told, and the old ones are kept; so they are if the new ones lead to
//! another cluster, of which nothing that we believe is true. A management cluster may be another one, if it has our Cluster: that can
//! be moved; a namesake of it is not ours (see `identity`).

use std::time::Duration;

use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use karpenter_runtime::error::with_causes;
use karpenter_runtime::renewal::Switch;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use tokio_util::sync::CancellationToken;

use super::settings::{Access, Settings, workload_kubeconfig};

/// How often files are looked at.
const FILES: Duration = Duration::from_secs(10);
/// How often the Secret is looked at.
const SECRET: Duration = Duration::from_secs(60);

/// How long a cluster has to answer before the way to it counts as wrong.
pub(crate) const ANSWER: Duration = Duration::from_secs(15);

/// What the workload cluster's Secret held when a client was made by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    pub(crate) secret: Vec<u8>,
    /// The cluster it led to, by the uid of its namespace kube-system.
    pub(crate) cluster: String,
}

/// Makes a client by a configuration.
pub type Make = Box<dyn Fn(Config) -> Result<Client, kube::Error> + Send + Sync>;

/// Decides whether new credentials of the management cluster are used.
pub(crate) trait Judge: Send + Sync {
    /// Fails if the client leads to another Cluster than ours, or nobody can say.
    fn check<'a>(&'a self, client: &'a Client) -> BoxFuture<'a, Result<(), String>>;

    /// Hears why new credentials are not used; `None` when that is over.
    fn tell(&self, unused: Option<&str>);
}

/// What files held when a client was made by them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Files(Option<Vec<Vec<u8>>>);

impl Files {
    /// Those that `settings` name, as they are now.
    pub(crate) fn of(settings: &Settings) -> Self {
        Self(contents(settings))
    }
}

/// Follows the files that `settings` name, until stopped. `known` is what the client goes by: what has changed since then, while we
/// stood by, is found at once.
pub(crate) async fn follow_files(
    settings: Settings,
    known: Files,
    switch: Switch,
    make: Make,
    judge: impl Judge,
    stop: CancellationToken,
) {
    let Files(mut known) = known;
    let mut first = true;
    while std::mem::take(&mut first) || passes(FILES, &stop).await {
        let now = contents(&settings);
        if now == known {
            judge.tell(None);
            continue;
        }
        // Files that cannot be read do not make those good that were refused.
        if now.is_none() {
            continue;
        }
        let made = match settings.management().await {
            Ok(Some(config)) => make(config).map_err(|error| error.to_string()),
            Ok(None) => return,
            Err(error) => Err(error.to_string()),
        };
        let renewed = async {
            let client = made?;
            let checked = tokio::time::timeout(ANSWER, judge.check(&client)).await;
            checked.unwrap_or_else(|_| Err(format!("no answer within {} s", ANSWER.as_secs())))?;
            Ok::<_, String>(client)
        };
        match renewed.await {
            Ok(client) => {
                tracing::info!("the management cluster's credentials were renewed");
                switch.point_at(client);
                known = now;
                judge.tell(None);
            }
            Err(error) => {
                tracing::error!(error, "cannot use the management cluster's new credentials");
                judge.tell(Some(&error));
            }
        }
    }
}

/// Follows the Secret that Cluster API keeps the workload cluster's kubeconfig in, until stopped; `known` is what the client goes by.
pub(crate) async fn follow_secret(
    secrets: Api<Secret>,
    name: String,
    mut known: Known,
    switch: Switch,
    make: Make,
    stop: CancellationToken,
) {
    while passes(SECRET, &stop).await {
        // Away, or not to be had: the old ones are good for as long as they are.
        let Ok(secret) = secrets.get(&name).await else { continue };
        let now = workload_secret(&secret);
        if now.is_empty() || now == known.secret {
            continue;
        }
        let renewed = async {
            let kubeconfig = workload_kubeconfig(&secret).map_err(|error| error.to_string())?;
            let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
            let client =
                make(config.map_err(|error| error.to_string())?).map_err(|error| error.to_string())?;
            is_still(&client, &known.cluster).await?;
            Ok::<_, String>(client)
        };
        match renewed.await {
            Ok(client) => {
                tracing::info!(secret = name, "the workload cluster's credentials were renewed");
                switch.point_at(client);
                known.secret = now;
            }
            Err(error) => {
                tracing::error!(secret = name, error, "cannot use the workload cluster's new credentials")
            }
        }
    }
}

/// A cluster's name for itself: the uid of a namespace that is never deleted.
pub(crate) async fn cluster_uid(client: &Client) -> Result<String, kube::Error> {
    let namespace = Api::<Namespace>::all(client.clone()).get("kube-system").await?;
    Ok(namespace.metadata.uid.unwrap_or_default())
}

/// Fails unless the client is of this cluster.
async fn is_still(client: &Client, cluster: &str) -> Result<(), String> {
    let asked = tokio::time::timeout(ANSWER, cluster_uid(client)).await;
    let found = asked.map_err(|_| format!("no answer within {} s", ANSWER.as_secs()))?;
    let found = found.map_err(|error| with_causes(&error))?;
    if found == cluster {
        return Ok(());
    }
    Err(format!(
        "they lead to another cluster: namespace kube-system has uid {found:?} there and {cluster:?} here; \
         Karpenter goes on with the old ones, restart it if it is to work for that cluster"
    ))
}

/// What the Secret holds.
pub(crate) fn workload_secret(secret: &Secret) -> Vec<u8> {
    let value = secret.data.as_ref().and_then(|data| data.get("value"));
    value.map(|value| value.0.clone()).unwrap_or_default()
}

/// A client by which nothing can be reached, and that says why: until what it lacks is there.
pub(crate) fn nowhere(why: String) -> Client {
    let answer = move |_: http::Request<kube::client::Body>| {
        let why = why.clone();
        async move { Err::<http::Response<kube::client::Body>, _>(Missing(why)) }
    };
    Client::new(tower::service_fn(answer), "default")
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Missing(String);

/// Whether time has passed, and not the end come.
pub(crate) async fn passes(time: Duration, stop: &CancellationToken) -> bool {
    tokio::select! {
        biased;
        () = stop.cancelled() => false,
        () = tokio::time::sleep(time) => true,
    }
}

/// What the kubeconfig and the files it names hold; `None` if it cannot be read, or there is none. Files with tokens are followed by the
/// client itself.
fn contents(settings: &Settings) -> Option<Vec<Vec<u8>>> {
    let Access::Kubeconfig(path) = &settings.access else { return None };
    let text = std::fs::read(path).ok()?;
    let mut files = Vec::new();
    if let Ok(kubeconfig) = Kubeconfig::from_yaml(&String::from_utf8_lossy(&text)) {
        files
            .extend(kubeconfig.clusters.into_iter().filter_map(|named| named.cluster?.certificate_authority));
        for user in kubeconfig.auth_infos.into_iter().filter_map(|named| named.auth_info) {
            files.extend([user.client_certificate, user.client_key].into_iter().flatten());
        }
    }
    let folder = path.parent();
    let read = |file: String| {
        let place = folder.map_or_else(|| file.clone().into(), |folder| folder.join(&file));
        std::fs::read(place).unwrap_or_default()
    };
    Some(std::iter::once(text).chain(files.into_iter().map(read)).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use karpenter_runtime::renewal::renewable;
    use kube::client::Body;

    use super::*;

    fn kubeconfig(server: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- {{name: c, context: {{cluster: c, user: u}}}}\nclusters:\n- {{name: c, cluster: {{server: \"{server}\"}}}}\nusers:\n- {{name: u, user: {{token: t}}}}\n"
        )
    }

    /// A cluster of which only its identity is known.
    fn cluster(uid: &str) -> Client {
        let namespace = serde_json::json!({"metadata": {"name": "kube-system", "uid": uid}}).to_string();
        let answer = move |_: http::Request<Body>| {
            let body = Body::from(namespace.clone().into_bytes());
            async move { Ok::<_, std::convert::Infallible>(http::Response::new(body)) }
        };
        Client::new(tower::service_fn(answer), "default")
    }

    /// Makes clients of clusters that are called by their host's first part, and lists of where they were to be.
    fn making() -> (Make, Arc<Mutex<Vec<String>>>) {
        let made: Arc<Mutex<Vec<String>>> = Arc::default();
        let making = Arc::clone(&made);
        let make: Make = Box::new(move |config| {
            making.lock().expect("a list").push(config.cluster_url.to_string());
            let host = config.cluster_url.host().unwrap_or_default();
            Ok(cluster(host.split('.').next().unwrap_or_default()))
        });
        (make, made)
    }

    /// Has nothing against anybody.
    struct Easy;

    impl Judge for Easy {
        fn check<'a>(&'a self, _: &'a Client) -> BoxFuture<'a, Result<(), String>> {
            Box::pin(async { Ok(()) })
        }

        fn tell(&self, _: Option<&str>) {}
    }

    /// Refuses everybody, and remembers what it was told last.
    struct Strict(Arc<Mutex<Option<String>>>);

    impl Judge for Strict {
        fn check<'a>(&'a self, _: &'a Client) -> BoxFuture<'a, Result<(), String>> {
            Box::pin(async { Err("another Cluster".to_owned()) })
        }

        fn tell(&self, unused: Option<&str>) {
            *self.0.lock().expect("a text") = unused.map(str::to_owned);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refused_credentials_are_told_until_those_in_use_are_back() {
        let path = file("refused");
        std::fs::write(&path, kubeconfig("https://old")).expect("a file");
        let settings = Settings { access: Access::Kubeconfig(path.clone()), ..Settings::default() };
        let (told, stop) = (Arc::default(), CancellationToken::new());
        let judge = Strict(Arc::clone(&told));
        let known = Files::of(&settings);
        let following =
            tokio::spawn(follow_files(settings, known, switch(), making().0, judge, stop.clone()));
        let refused = Some("another Cluster".to_owned());
        for (text, expected) in [
            (Some(kubeconfig("https://new")), refused.clone()),
            (None, refused),
            (Some(kubeconfig("https://old")), None),
        ] {
            match &text {
                Some(text) => std::fs::write(&path, text).expect("a file"),
                None => std::fs::remove_file(&path).expect("the file"),
            }
            tokio::time::sleep(2 * FILES).await;
            assert_eq!(*told.lock().expect("a text"), expected, "{text:?}");
        }
        stop.cancel();
        following.await.expect("it ends");
        std::fs::remove_file(&path).expect("the file");
    }

    fn switch() -> Switch {
        renewable(nowhere(String::new())).1
    }

    fn file(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("karpenter-{name}-{}", std::process::id()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_kubeconfig_that_changes_is_used_and_one_that_is_broken_is_not() {
        let path = file("credentials");
        std::fs::write(&path, kubeconfig("https://old")).expect("a file");
        let settings = Settings { access: Access::Kubeconfig(path.clone()), ..Settings::default() };
        let (make, made) = making();
        let stop = CancellationToken::new();
        let known = Files::of(&settings);
        let following = tokio::spawn(follow_files(settings, known, switch(), make, Easy, stop.clone()));
        for (text, expected) in [
            (kubeconfig("https://old"), 0),
            ("not a kubeconfig".to_owned(), 0),
            (kubeconfig("https://new"), 1),
            (kubeconfig("https://new"), 1),
        ] {
            tokio::time::sleep(Duration::from_secs(1)).await;
            std::fs::write(&path, &text).expect("a file");
            tokio::time::sleep(2 * FILES).await;
            assert_eq!(made.lock().expect("a list").len(), expected, "{text}");
        }
        assert_eq!(*made.lock().expect("a list"), ["https://new/"]);
        stop.cancel();
        following.await.expect("it ends");
        std::fs::remove_file(&path).expect("the file");
    }

    #[tokio::test(start_paused = true)]
    async fn what_changed_while_another_led_is_used_as_soon_as_we_lead() {
        let path = file("standby");
        std::fs::write(&path, kubeconfig("https://old")).expect("a file");
        let settings = Settings { access: Access::Kubeconfig(path.clone()), ..Settings::default() };
        let (make, made) = making();
        let known = Files::of(&settings);
        std::fs::write(&path, kubeconfig("https://new")).expect("a file");
        let stop = CancellationToken::new();
        let following = tokio::spawn(follow_files(settings, known, switch(), make, Easy, stop.clone()));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(*made.lock().expect("a list"), ["https://new/"]);
        stop.cancel();
        following.await.expect("it ends");
        std::fs::remove_file(&path).expect("the file");
    }

    /// A Secret that is followed.
    struct Followed {
        /// What it holds, to be changed.
        held: Arc<Mutex<String>>,
        /// Where clients were made for.
        made: Arc<Mutex<Vec<String>>>,
        /// A client of where it leads.
        client: Client,
        task: tokio::task::JoinHandle<()>,
    }

    /// Follows a Secret from a cluster `c` on.
    fn following(stop: &CancellationToken) -> Followed {
        let held = Arc::new(Mutex::new(String::new()));
        let holding = Arc::clone(&held);
        let answer = move |_: http::Request<Body>| {
            let value = k8s_openapi::ByteString(holding.lock().expect("a text").clone().into_bytes());
            let data = Some([("value".to_owned(), value)].into());
            let body = serde_json::to_vec(&Secret { data, ..Secret::default() }).expect("JSON");
            async move { Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(body))) }
        };
        let secrets = Api::namespaced(Client::new(tower::service_fn(answer), "default"), "fleet");
        let (make, made) = making();
        let secret = kubeconfig("https://before we began").into_bytes();
        let known = Known { secret, cluster: "c".to_owned() };
        let (client, switch) = renewable(cluster("c"));
        let task = tokio::spawn(follow_secret(
            secrets,
            "c-kubeconfig".to_owned(),
            known,
            switch,
            make,
            stop.clone(),
        ));
        Followed { held, made, client, task }
    }

    #[tokio::test(start_paused = true)]
    async fn the_workload_clusters_secret_is_used_when_cluster_api_writes_it_anew() {
        let stop = CancellationToken::new();
        let Followed { held, made, task, .. } = following(&stop);
        for (text, expected) in [
            (kubeconfig("https://c.old"), vec!["https://c.old/"]),
            ("not a kubeconfig".to_owned(), vec!["https://c.old/"]),
            (String::new(), vec!["https://c.old/"]),
            (kubeconfig("https://c.new"), vec!["https://c.old/", "https://c.new/"]),
            (kubeconfig("https://c.new"), vec!["https://c.old/", "https://c.new/"]),
        ] {
            *held.lock().expect("a text") = text.clone();
            tokio::time::sleep(2 * SECRET).await;
            assert_eq!(*made.lock().expect("a list"), expected, "{text}");
        }
        stop.cancel();
        task.await.expect("it ends");
    }

    #[tokio::test(start_paused = true)]
    async fn a_workload_secret_that_leads_to_another_cluster_is_not_gone_by() {
        let stop = CancellationToken::new();
        let Followed { held, client, task, .. } = following(&stop);
        *held.lock().expect("a text") = kubeconfig("https://another.cluster");
        tokio::time::sleep(2 * SECRET).await;
        assert_eq!(cluster_uid(&client).await.expect("a cluster"), "c", "the old one is kept");
        let error = is_still(&cluster("another"), "c").await.expect_err("another one");
        assert!(error.contains("lead to another cluster") && error.contains("restart"), "{error}");
        stop.cancel();
        task.await.expect("it ends");
    }
}
