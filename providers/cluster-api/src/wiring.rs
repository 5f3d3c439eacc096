//! Puts the provider together: which Cluster is ours, the watches on both clusters, the controllers. Knows no decision.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use k8s_openapi::api::core::v1::Secret;
use karpenter_api::conditions::HasConditions as _;
use karpenter_api::nodeclaim::{LAUNCHED, REGISTERED};
use karpenter_api::{ConditionStatus, NodeClaim};
use karpenter_cloudprovider::{InstallError, Installation, Part, Surroundings};
use karpenter_runtime::client::{self, Limits};
use karpenter_runtime::controller::Controller;
use karpenter_runtime::environment::Environment;
use karpenter_runtime::error::with_causes;
use karpenter_runtime::events::Recorder;
use karpenter_runtime::informer::{Delta, Informer, own_key};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::options::{MinValuesPolicy, Options};
use karpenter_runtime::renewal::{Switch, renewable};
use karpenter_runtime::work_queue::WorkQueue;
use karpenter_runtime::{rate_limit, surroundings};
use kube::config::KubeConfigOptions;
use kube::runtime::watcher;
use kube::{Api, Client, Config};
use tokio_util::sync::CancellationToken;

use crate::client::credentials::{
    ANSWER, Files, Known, Make, cluster_uid, follow_files, follow_secret, nowhere, passes, workload_secret,
};
use crate::client::hub::Hub;
use crate::client::mirror::{Mirror, News, Wanted};
use crate::client::prices::{self, Fetch};
use crate::client::scope::Ours;
use crate::client::settings::{Access, Settings, SettingsError, workload_kubeconfig};
use crate::client::watching::Watching;
use crate::instances::actor::{Actor, concerned};
use crate::instances::care::care;
use crate::instances::fleet::Fleet;
use crate::instances::known_fleet::KnownFleet;
use crate::instances::node_claims::NodeClaims;
use crate::instances::templates;
use crate::metrics::Metrics;
use crate::nodeclass::status::StatusController;
use crate::{ClusterAPINodeClass, ClusterApi, GROUP};

/// Why the provider cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A cluster could not be asked.
    #[error("{what}")]
    Unreachable {
        /// What it was asked for.
        what: &'static str,
        /// Why it could not be.
        #[source]
        source: Box<kube::Error>,
    },
}

/// What the provider is given.
pub struct Parts {
    /// The cluster that pods run in.
    pub workload: Client,
    /// The cluster that Cluster API runs in.
    pub management: Client,
    /// What users set, by flags or in the environment.
    pub settings: Settings,
    /// Clock, randomness and metrics of this process.
    pub environment: Environment,
    /// Where events for users go.
    pub recorder: Recorder,
    /// Asks endpoints for prices.
    pub fetch: Fetch,
}

/// How the provider joins the program.
pub async fn install(around: &Surroundings) -> Result<Installation, InstallError> {
    let failed = |problem: String| InstallError { provider: "cluster-api", problem };
    let options = &around.options;
    let settings = settings(options).map_err(|error| failed(error.to_string()))?;
    // What is changed from here on is noticed.
    let known = Files::of(&settings);
    let config = if options.cluster_api.in_management_cluster {
        // The client we are given is of the cluster we work for; the one we run in is the other.
        let own = surroundings::cluster(options.kubeconfig.as_ref()).await;
        Some(own.map_err(|error| failed(error.to_string())))
    } else {
        settings.management().await.map_err(|error| failed(error.to_string())).transpose()
    };
    let limits = Limits { qps: options.cluster_api.qps, burst: options.cluster_api.burst };
    let metrics = around.environment.registry.clone();
    let make: Make =
        Box::new(move |config| client::build(config, env!("CARGO_PKG_VERSION"), limits, &metrics));
    let mut renewal = None;
    let management = match config {
        None => around.client.clone(),
        Some(config) => {
            let made = config.and_then(|config| {
                make(config).map_err(|error| {
                    failed(format!("cannot make a client of the management cluster: {error}"))
                })
            });
            let (made, known) = match made {
                Ok(made) => (made, known),
                // A file can be put right while we run: until then NodeClasses tell what is wrong with it.
                Err(error) if matches!(settings.access, Access::Kubeconfig(_)) => {
                    tracing::error!(%error, "the management cluster cannot be reached, will look again");
                    (nowhere(error.problem), Files::default())
                }
                Err(error) => return Err(error),
            };
            let (client, switch) = renewable(made);
            renewal = Some((settings.clone(), known, switch, make));
            client
        }
    };
    let parts = Parts {
        workload: around.client.clone(),
        management,
        settings,
        environment: around.environment.clone(),
        recorder: around.recorder.clone(),
        fetch: prices::over_http(),
    };
    let (provider, mut parts) = assemble(parts).await.map_err(|error| failed(with_causes(&error)))?;
    parts.extend(renewal.map(|(settings, known, switch, make)| {
        let judge = KnownFleet::new(provider.fleet());
        Part::new("cluster-api.credentials", move |stop| {
            follow_files(settings, known, switch, make, judge, stop).boxed()
        })
    }));
    Ok(Installation { provider, parts })
}

/// The cluster to work for, and what the Secret held that says where it is.
pub struct Workload {
    /// How it is reached.
    pub config: Config,
    /// What the Secret held, and which cluster that led to.
    pub known: Known,
}

/// How long to wait before a Secret that is not there, or cannot be used, is looked at again.
const SECRET_PAUSE: Duration = Duration::from_secs(10);

/// The cluster to work for, when we run in the management cluster: by the Secret that Cluster API keeps its kubeconfig in. A Cluster
/// may be younger than we are, and a kubeconfig may be wrong: one that can be used is waited for, and `tell` hears what is amiss.
/// `None` if we are stopped meanwhile.
pub async fn workload(
    own: Config,
    options: &Options,
    tell: impl Fn(&str),
    stop: &CancellationToken,
) -> Result<Option<Workload>, InstallError> {
    let (secrets, name) = workload_location(own, options)?;
    loop {
        match workload_now(&secrets, &name).await {
            Ok(workload) => return Ok(Some(workload)),
            Err(error) => {
                tracing::error!(error, "the cluster to work for cannot be reached, will look again");
                tell(&error);
            }
        }
        if !passes(SECRET_PAUSE, stop).await {
            return Ok(None);
        }
    }
}

/// Where the kubeconfig of the cluster to work for is kept.
fn workload_location(own: Config, options: &Options) -> Result<(Api<Secret>, String), InstallError> {
    let failed = |problem: String| InstallError { provider: "cluster-api", problem };
    let (name, namespace) = (&options.cluster_name, &options.cluster_api.cluster_namespace);
    for (value, setting) in [(name, "CLUSTER_NAME"), (namespace, "CLUSTER_NAMESPACE")] {
        if value.is_empty() {
            return Err(failed(format!(
                "{setting} is not set; with CLUSTER_API_IN_MANAGEMENT_CLUSTER it says which Cluster to work for"
            )));
        }
    }
    let client = Client::try_from(own).map_err(|error| failed(with_causes(&error)))?;
    Ok((Api::namespaced(client, namespace), format!("{name}-kubeconfig")))
}

/// Both clusters, as they are reached at the moment; nothing is waited for.
pub struct Clusters {
    /// The one that pods run in.
    pub workload: Client,
    /// The one that Cluster API runs in.
    pub management: Hub,
    /// What users set, by flags or in the environment.
    pub settings: Settings,
}

/// Both clusters from the one that we run in.
pub async fn clusters(own: Config, options: &Options) -> Result<Clusters, InstallError> {
    let failed = |problem: String| InstallError { provider: "cluster-api", problem };
    let client = |config: Config| Client::try_from(config).map_err(|error| failed(with_causes(&error)));
    let settings = settings(options).map_err(|error| failed(error.to_string()))?;
    let (workload, management) = if options.cluster_api.in_management_cluster {
        let (secrets, name) = workload_location(own.clone(), options)?;
        let workload = workload_now(&secrets, &name).await.map_err(failed)?;
        (client(workload.config)?, client(own)?)
    } else {
        let workload = client(own)?;
        let apart = settings.management().await.map_err(|error| failed(error.to_string()))?;
        let management = apart.map(client).transpose()?.unwrap_or_else(|| workload.clone());
        (workload, management)
    };
    let ours = Ours::new(&settings).asking(workload.clone());
    Ok(Clusters { management: Hub::new(management, ours), workload, settings })
}

async fn workload_now(secrets: &Api<Secret>, name: &str) -> Result<Workload, String> {
    let found = secrets.get(name).await;
    let secret = found.map_err(|error| format!("secret {name}: {}", with_causes(&error)))?;
    let kubeconfig = workload_kubeconfig(&secret).map_err(|error| error.to_string())?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let config = config.map_err(|error| format!("secret {name}: {error}"))?;
    let server = config.cluster_url.clone();
    let answers = async {
        let client = Client::try_from(config.clone()).map_err(|error| with_causes(&error))?;
        let asked = tokio::time::timeout(ANSWER, owner(&client)).await;
        let answer = asked.map_err(|_| format!("no answer within {} s", ANSWER.as_secs()))?;
        answer.map_err(|error| with_causes(&error))
    };
    let cluster = answers.await.map_err(|error| format!("secret {name}: {server}: {error}"))?;
    Ok(Workload { config, known: Known { secret: workload_secret(&secret), cluster } })
}

/// Keeps the way to the cluster that [`workload`] found: Cluster API writes the Secret anew before its certificate ends.
pub async fn follow_workload(
    (own, known): (Config, Known),
    options: Arc<Options>,
    switch: Switch,
    make: Make,
    stop: CancellationToken,
) {
    let Ok(client) = Client::try_from(own) else { return };
    let secrets = Api::namespaced(client, &options.cluster_api.cluster_namespace);
    follow_secret(secrets, format!("{}-kubeconfig", options.cluster_name), known, switch, make, stop).await;
}

/// What the program's options say about us.
fn settings(all: &Options) -> Result<Settings, SettingsError> {
    let options = &all.cluster_api;
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Settings::read(|name| match name {
        "CLUSTER_API_KUBECONFIG" => options.kubeconfig.as_ref().map(|path| path.display().to_string()),
        "CLUSTER_API_DEFAULT_ARCH" => text(&options.default_arch),
        "CLUSTER_API_SYNC_LABELS" => text(&options.sync_labels),
        "VM_MEMORY_OVERHEAD_PERCENT" => text(&options.vm_memory_overhead_percent),
        "CLUSTER_NAMESPACE" => text(&options.cluster_namespace),
        "CLUSTER_NAME" => text(&all.cluster_name),
        // A kubeconfig goes before the rest, as in the Go provider.
        _ if options.kubeconfig.is_some() => None,
        "CLUSTER_API_URL" => text(&options.url),
        "CLUSTER_API_TOKEN" => text(options.token.reveal()),
        "CLUSTER_API_CERTIFICATE_AUTHORITY_DATA" => text(&options.certificate_authority_data),
        "CLUSTER_API_SKIP_TLS_VERIFY" => Some(options.skip_tls_verify.to_string()),
        _ => None,
    })
    .map(|settings| {
        debug_assert!(options.kubeconfig.is_none() || matches!(settings.access, Access::Kubeconfig(_)));
        let window = (options.batch_idle_duration, options.batch_max_duration);
        let node_repair = all.feature_gates.node_repair;
        let relaxes_min_values = all.min_values_policy == MinValuesPolicy::BestEffort;
        Settings { window, max_age: options.max_age, node_repair, relaxes_min_values, ..settings }
    })
}

/// The provider, and what keeps it going.
pub async fn assemble(parts: Parts) -> Result<(Arc<ClusterApi>, Vec<Part>), StartError> {
    let Parts { workload, management, settings, environment, recorder, fetch } = parts;
    let owner = owner(&workload).await?;
    let entropy = &environment.entropy;
    let mut node_claims: Informer<NodeClaim> =
        Informer::all(&workload, watcher::Config::default(), &entropy.child("cluster-api"));
    let mut node_classes: Informer<ClusterAPINodeClass> =
        Informer::all(&workload, watcher::Config::default(), entropy);
    let hub = Arc::new(Hub::new(management, Ours::new(&settings).asking(workload.clone())));
    let mirror = Mirror::default();
    let fleet = Arc::new(Fleet::new(
        Arc::clone(&hub),
        mirror.clone(),
        NodeClaims::new(node_claims.store(), Api::all(workload.clone())),
        node_classes.store(),
        settings,
        owner,
        Arc::clone(&environment.clock),
        recorder,
        Metrics::new(&environment.registry),
        fetch,
    ));

    let actor = Controller::builder("cluster-api.machines", Actor::new(Arc::clone(&fleet)))
        .workers(8)
        .limiter(rate_limit::reasonable())
        .build(&environment);
    // Set once, here.
    let _ = fleet.queue.set(actor.queue());
    let status = StatusController::new(Arc::clone(&fleet), Api::all(workload));
    let status =
        Controller::for_objects("nodeclass.cluster-api.status", GROUP, "ClusterAPINodeClass", status)
            .build(&environment);
    node_classes.feed(&status.queue(), own_key);
    let listening = Arc::downgrade(&fleet);
    node_classes.subscribe(move |_| {
        if let Some(fleet) = listening.upgrade() {
            look_at_what_is_wanted(&fleet);
        }
    });

    let listening = Arc::downgrade(&fleet);
    let statuses = status.queue();
    mirror.listen(move |news| {
        let Some(fleet) = listening.upgrade() else { return };
        heed_management_cluster(&fleet, news, &statuses);
    });
    let listening = Arc::downgrade(&fleet);
    node_claims.subscribe(move |delta| {
        let Some(fleet) = listening.upgrade() else { return };
        heed_node_claim(&fleet, delta);
    });

    let caring = Arc::downgrade(&fleet);
    let watching = Watching::new(hub, mirror, entropy);
    let parts = vec![
        Part::new("cluster-api.nodeclaims", move |stop| node_claims.run(stop).boxed()),
        Part::new("cluster-api.nodeclasses", move |stop| node_classes.run(stop).boxed()),
        Part::new("cluster-api.management", move |stop| watching.run(stop).boxed()),
        Part::new("cluster-api.care", move |stop| care(caring, stop).boxed()),
        Part::new("cluster-api.machines", move |stop| actor.run(stop).boxed()),
        Part::new("nodeclass.cluster-api.status", move |stop| status.run(stop).boxed()),
    ];
    Ok((Arc::new(ClusterApi::new(fleet)), parts))
}

/// What is to be looked at in the management cluster besides what is watched, as NodeClasses are now.
fn look_at_what_is_wanted(fleet: &Fleet) {
    let classes = fleet.node_classes.list();
    fleet.mirror.want(Wanted {
        templates: classes
            .iter()
            .flat_map(|class| templates::references(class).collect::<Vec<_>>())
            .collect(),
        kinds: classes.iter().filter_map(|class| templates::kind(class)).collect(),
        control_plane: classes.iter().any(|class| class.makes_machines()),
    });
}

/// What follows from news of the management cluster: resources, NodeClaims and NodeClasses that they concern are looked at again.
fn heed_management_cluster(fleet: &Fleet, news: &News, statuses: &WorkQueue<ObjectKey>) {
    for id in concerned(fleet, news) {
        fleet.poke(&id);
    }
    match news {
        News::Machine(old, new) => {
            if let (None, Some(id)) = (old, new.as_ref().and_then(|new| fleet.mirror.scalable_of(new))) {
                fleet.born(id);
            }
            let claims = [old, new].into_iter().flatten().filter_map(|machine| machine.claim());
            for claim in claims.filter(|claim| claim.owner == fleet.owner) {
                fleet.wake(&claim.node_claim);
            }
        }
        News::Scalable(_) | News::Cluster => {
            for class in fleet.node_classes.list() {
                statuses.add_after(ObjectKey::of(&*class), Duration::from_secs(1));
            }
        }
    }
}

/// What follows from news of a NodeClaim: its resource is looked at again, and what its Node has come to is learnt from.
fn heed_node_claim(fleet: &Fleet, delta: &Delta<NodeClaim>) {
    let Some(target) = fleet.node_claims.target(delta.object()) else { return };
    fleet.poke(&target.id);
    let has_left = match delta {
        Delta::Added { .. } => false,
        Delta::Updated { old, new } => {
            old.metadata.deletion_timestamp.is_none() && new.metadata.deletion_timestamp.is_some()
        }
        Delta::Deleted { .. } => true,
    };
    if has_left {
        fleet.node_claims.note_left();
    }
    // What has an id is no node yet: that may be where it fails, again and again.
    let registered =
        |claim: &NodeClaim| claim.condition(REGISTERED).is_some_and(|c| c.status == ConditionStatus::True);
    if let Delta::Updated { old, new } = delta
        && !registered(old)
        && registered(new)
    {
        fleet.backoff.succeeded(&target.id, target.failure_domain.as_deref());
        let since = |kind: &str| new.condition(kind).map(|condition| condition.since());
        if let Some((launched, registered)) = since(LAUNCHED).zip(since(REGISTERED)) {
            let took = registered.duration_since(launched).as_secs_f64().max(0.0);
            fleet.metrics.phase_seconds.observe(&[&target.id.to_string(), "node"], took);
        }
    }
}

/// The workload cluster's name for itself.
async fn owner(workload: &Client) -> Result<String, StartError> {
    cluster_uid(workload).await.map_err(|source| StartError::Unreachable {
        what: "reading namespace kube-system of the workload cluster",
        source: Box::new(source),
    })
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// A management cluster that has nothing but this Secret.
    fn secrets(kubeconfig: &str) -> Api<Secret> {
        let value = base64::engine::general_purpose::STANDARD.encode(kubeconfig);
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "c-kubeconfig", "namespace": "fleet"},
            "data": {"value": value},
        });
        let answer = move |_: http::Request<Body>| {
            let body = Body::from(secret.to_string().into_bytes());
            async move { Ok::<_, std::convert::Infallible>(http::Response::new(body)) }
        };
        Api::namespaced(Client::new(tower::service_fn(answer), "default"), "fleet")
    }

    #[tokio::test]
    async fn a_workload_kubeconfig_that_leads_nowhere_is_named_and_not_gone_by() {
        let nowhere = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "c", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        });
        let error = workload_now(&secrets(&nowhere.to_string()), "c-kubeconfig").await.err();
        let error = error.expect("nobody listens there");
        assert!(error.starts_with("secret c-kubeconfig: http://127.0.0.1:1/: reading namespace"), "{error}");
        let error = workload_now(&secrets("{"), "c-kubeconfig").await.err().expect("no kubeconfig");
        assert!(error.contains("c-kubeconfig"), "{error}");
    }
}
