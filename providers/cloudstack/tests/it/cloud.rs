//! A simulated cloud with a provider on it, in virtual time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use jiff::SignedDuration;
use karpenter_api::conditions::ConditionSet;
use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloudprovider::error::ProviderError;
use karpenter_cloudprovider::provider::{CloudProvider, Launch, LaunchedInstance};
use karpenter_provider_cloudstack::client::request::Scope;
use karpenter_provider_cloudstack::client::signature::Credentials;
use karpenter_provider_cloudstack::client::throttle::Rate;
use karpenter_provider_cloudstack::client::transport::{Transport, TransportError};
use karpenter_provider_cloudstack::client::{Client, Session};
use karpenter_provider_cloudstack::garbage::Round;
use karpenter_provider_cloudstack::naming::Naming;
use karpenter_provider_cloudstack::voice::{Book, Voice};
use karpenter_provider_cloudstack::{CloudStackNodeClass, CloudStackProvider, Objects, ProviderOptions};
use karpenter_runtime::environment::Environment;
use karpenter_sim::cloudstack::account::Role;
use karpenter_sim::cloudstack::{CloudStack, Lost, MachineView};
use serde_json::{Value, json};

/// The road into the simulator.
pub(crate) struct Wire(pub(crate) CloudStack);

impl Transport for Wire {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, TransportError>> {
        async move {
            self.0.handle(request).await.map_err(|lost| match lost {
                Lost::Refused => TransportError::NotSent(lost.to_string()),
                Lost::NoAnswer => TransportError::NoAnswer(lost.to_string()),
            })
        }
        .boxed()
    }
}

/// The objects of a cluster.
#[derive(Default)]
pub(crate) struct Cluster {
    pub(crate) classes: Mutex<BTreeMap<String, Arc<CloudStackNodeClass>>>,
    pub(crate) claims: Mutex<BTreeMap<String, Arc<NodeClaim>>>,
    /// The watch of NodeClasses has not caught up yet.
    pub(crate) classes_unknown: Mutex<bool>,
    /// NodeClaims as the API server has them where the watch has not brought that yet; nothing where they are gone.
    pub(crate) ahead: Mutex<BTreeMap<String, Option<Arc<NodeClaim>>>>,
    /// The API server does not answer.
    pub(crate) unreadable: Mutex<bool>,
    /// How often it was asked.
    pub(crate) reads: Mutex<usize>,
}

impl Cluster {
    /// What the API server says.
    pub(crate) fn book(self: &Arc<Self>) -> Book {
        let cluster = Arc::clone(self);
        Arc::new(move || {
            *cluster.reads.lock().unwrap() += 1;
            if *cluster.unreadable.lock().unwrap() {
                return Err("the API server does not answer".to_owned());
            }
            let mut claims: BTreeMap<String, Option<Arc<NodeClaim>>> = BTreeMap::new();
            claims.extend(cluster.claims.lock().unwrap().iter().map(|(k, v)| (k.clone(), Some(v.clone()))));
            claims.extend(cluster.ahead.lock().unwrap().clone());
            Ok(claims.into_values().flatten().map(|claim| (*claim).clone()).collect())
        })
    }
}

impl Objects for Cluster {
    fn node_class(&self, name: &str) -> Option<Arc<CloudStackNodeClass>> {
        self.classes.lock().unwrap().get(name).cloned()
    }

    fn node_classes(&self) -> Option<Vec<Arc<CloudStackNodeClass>>> {
        let known = !*self.classes_unknown.lock().unwrap();
        known.then(|| self.classes.lock().unwrap().values().cloned().collect())
    }

    fn node_claims(&self) -> Option<Vec<Arc<NodeClaim>>> {
        Some(self.claims.lock().unwrap().values().cloned().collect())
    }
}

pub(crate) struct World {
    pub(crate) cloud: CloudStack,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) provider: CloudStackProvider,
    pub(crate) client: Client,
    pub(crate) environment: Environment,
    /// Reasons and messages of the events its provider tells.
    pub(crate) told: Told,
}

/// Reasons and messages of events.
pub(crate) type Told = Arc<Mutex<Vec<(String, String)>>>;

/// A NodeClass with the fields most have, on the networks and templates of the simulated cloud.
pub(crate) fn spec() -> Value {
    json!({
        "zone": "sim-zone-1",
        "networkSelectorTerms": [{"name": "k8s-net"}],
        "serviceOfferingSelectorTerms": [{"name": "k8s.small"}, {"name": "k8s.medium"}],
        "templateSelectorTerms": [{"name": "CentOS*"}],
        "userData": "#!/bin/bash\necho {{nodeClaim}}\n",
    })
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::seeded(1).await
    }

    /// A cloud whose server's clock is so many minutes ahead of the cluster's.
    pub(crate) async fn whose_server_is_ahead(minutes: i64) -> Self {
        let world = Self::new().await;
        world.cloud.set_clock_ahead(SignedDuration::from_mins(minutes));
        world
    }

    pub(crate) async fn seeded(seed: u64) -> Self {
        let environment = Environment::seeded("2026-11-15T08:00:00Z".parse().unwrap(), seed);
        let cloud = CloudStack::new(&environment);
        // Two hosts with room: the measured ones are small.
        for i in 0..2 {
            cloud.add("host", json!({"name": format!("big-{i}"), "memorytotal": 64i64 << 30, "cpuwithoverprovisioning": "64000", "memoryallocatedbytes": 0, "cpuallocatedvalue": 0}));
        }
        let cluster = Arc::new(Cluster::default());
        let options = ProviderOptions::new("test");
        let (client, _) = provider(&cloud, &cluster, &environment, Role::User, options.clone());
        let told = Told::default();
        let heard = Arc::clone(&told);
        let voice = Voice::heard_by(Arc::new(move |reason, message| {
            heard.lock().unwrap().push((reason.to_owned(), message.to_owned()));
        }));
        let voice = voice.reading(cluster.book());
        let objects = Arc::clone(&cluster) as Arc<dyn Objects>;
        let provider = CloudStackProvider::speaking(client.clone(), options, objects, voice, &environment);
        let world = Self { cloud, cluster, provider, client, environment, told };
        world.class("default", spec()).await;
        world
    }

    /// Another process with the same view of the cluster: a new leader, or the other of two.
    pub(crate) fn another(&self, seed: u64) -> CloudStackProvider {
        let environment = Environment {
            entropy: karpenter_runtime::entropy::Entropy::from_seed(seed),
            registry: karpenter_runtime::metrics::Registry::new(),
            ..self.environment.clone()
        };
        provider(&self.cloud, &self.cluster, &environment, Role::User, ProviderOptions::new("test")).1
    }

    /// Another process that is told otherwise.
    pub(crate) fn with_options(&self, options: ProviderOptions) -> CloudStackProvider {
        self.with_role(Role::User, options)
    }

    /// A provider with the keys of a root administrator, who makes machines for the tenant.
    pub(crate) fn as_root(&self) -> CloudStackProvider {
        let tenant = self.cloud.account(Role::User).unwrap();
        let scope = Scope::Account { account: tenant.name, domain_id: tenant.domain_id };
        self.with_role(Role::Root, ProviderOptions { scope, ..ProviderOptions::new("test") })
    }

    /// A provider with the keys of another role.
    pub(crate) fn with_role(&self, role: Role, options: ProviderOptions) -> CloudStackProvider {
        let environment =
            Environment { registry: karpenter_runtime::metrics::Registry::new(), ..self.environment.clone() };
        provider(&self.cloud, &self.cluster, &environment, role, options).1
    }

    /// A new process with keys of the account of this name.
    pub(crate) fn as_account(&self, name: &str) -> CloudStackProvider {
        let environment =
            Environment { registry: karpenter_runtime::metrics::Registry::new(), ..self.environment.clone() };
        let keys = Credentials::new(format!("{name}-api-key"), format!("{name}-secret-key"));
        with_keys(&self.cloud, &self.cluster, &environment, keys, ProviderOptions::new("test")).1
    }

    /// Applies a NodeClass and sees to its status, as its controller does.
    pub(crate) async fn class(&self, name: &str, spec: Value) -> Arc<CloudStackNodeClass> {
        self.class_by(&self.provider, name, spec).await
    }

    pub(crate) async fn class_by(
        &self,
        provider: &CloudStackProvider,
        name: &str,
        spec: Value,
    ) -> Arc<CloudStackNodeClass> {
        let mut class: CloudStackNodeClass =
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).expect("a NodeClass");
        if let Err(error) = provider.resolve_status(&mut class).await {
            ConditionSet::of(&mut class, self.environment.clock.now()).set_false(
                "Ready",
                "Error",
                &error.to_string(),
            );
        }
        let class = Arc::new(class);
        self.cluster.classes.lock().unwrap().insert(name.to_owned(), Arc::clone(&class));
        class
    }

    /// The id of a new project with a network of its own, and a NodeClass in it.
    pub(crate) fn project(&self) -> (String, Value) {
        let project = self.cloud.add_project("team");
        let network =
            json!({"name": "team-net", "projectid": project, "account": null, "state": "Allocated"});
        self.cloud.add("network", network);
        let mut inside = spec();
        inside["projectID"] = project.clone().into();
        inside["networkSelectorTerms"] = json!([{"name": "team-net"}]);
        (project, inside)
    }

    /// A NodeClaim as the core would write it.
    pub(crate) fn claim(&self, name: &str, requests: Value) -> Arc<NodeClaim> {
        let claim: NodeClaim = serde_json::from_value(json!({
            "metadata": {"name": name, "uid": format!("uid-{name}"), "labels": {"karpenter.sh/nodepool": "pool"},
                "creationTimestamp": self.environment.clock.now().to_string()},
            "spec": {
                "nodeClassRef": {"group": "karpenter.k8s.cloudstack", "kind": "CloudStackNodeClass", "name": "default"},
                "requirements": [{"key": "karpenter.sh/nodepool", "operator": "In", "values": ["pool"]}],
                "resources": {"requests": requests},
            },
        }))
        .expect("a NodeClaim");
        let claim = Arc::new(claim);
        self.cluster.claims.lock().unwrap().insert(name.to_owned(), Arc::clone(&claim));
        claim
    }

    /// Launches a claim and writes the outcome into it, as the core does.
    pub(crate) async fn launch(&self, claim: &NodeClaim) -> Result<LaunchedInstance, ProviderError> {
        self.launch_by(&self.provider, claim).await
    }

    pub(crate) async fn launch_by(
        &self,
        provider: &CloudStackProvider,
        claim: &NodeClaim,
    ) -> Result<LaunchedInstance, ProviderError> {
        let Launch::Launched(instance) = provider.create(claim).await? else { panic!("never pending") };
        let mut written = claim.clone();
        instance.write_into(&mut written);
        let name = claim.metadata.name.clone().unwrap();
        self.cluster.claims.lock().unwrap().insert(name, Arc::new(written));
        Ok(*instance)
    }

    /// What the machine of a small claim of this name was launched as.
    pub(crate) async fn node(&self, name: &str) -> LaunchedInstance {
        self.launch(&self.claim(name, json!({"cpu": "1"}))).await.expect("a machine")
    }

    /// The id of a machine by the name of ours, which nobody made for a claim.
    pub(crate) fn stray(&self, name: &str) -> String {
        self.tagged(name, &[])
    }

    pub(crate) fn tagged(&self, name: &str, tags: &[(&str, &str)]) -> String {
        self.cloud.add_machine(&format!("{}{name}", Naming::new("karpenter", "test").prefix()), tags)
    }

    /// The machine of the claim of this name.
    pub(crate) fn machine_of(&self, name: &str) -> MachineView {
        self.live().into_iter().find(|machine| machine.name.ends_with(name)).expect("a machine")
    }

    pub(crate) async fn round(&self) -> Round {
        self.provider.round().await.expect("a round")
    }

    /// The claim as it stands in the cluster.
    pub(crate) fn current(&self, name: &str) -> Arc<NodeClaim> {
        Arc::clone(&self.cluster.claims.lock().unwrap()[name])
    }

    /// Deletes a claim as the core does: again and again until it hears that nothing is there.
    pub(crate) async fn delete(&self, claim: &NodeClaim) -> Result<Duration, ProviderError> {
        let start = tokio::time::Instant::now();
        for _ in 0..60 {
            match self.provider.delete(claim).await {
                Err(error) if error.is_not_found() => return Ok(start.elapsed()),
                Err(error)
                    if matches!(error, ProviderError::Other(_))
                        && start.elapsed() > Duration::from_secs(120) =>
                {
                    return Err(error);
                }
                _ => tokio::time::sleep(Duration::from_secs(5)).await,
            }
        }
        panic!("never gone")
    }

    /// The messages of the events that were told for a reason.
    pub(crate) fn told(&self, reason: &str) -> Vec<String> {
        let told = self.told.lock().unwrap();
        told.iter().filter(|(why, _)| why == reason).map(|(_, message)| message.clone()).collect()
    }

    pub(crate) fn live(&self) -> Vec<MachineView> {
        self.cloud.live_machines()
    }

    pub(crate) fn calls(&self, command: &str) -> usize {
        self.cloud.calls().get(command).copied().unwrap_or(0)
    }

    pub(crate) fn pool(&self, class: &str) -> NodePool {
        serde_json::from_value(json!({"metadata": {"name": "pool"}, "spec": {"template": {"spec": {
            "nodeClassRef": {"group": "karpenter.k8s.cloudstack", "kind": "CloudStackNodeClass", "name": class},
            "requirements": []}}}}))
        .expect("a NodePool")
    }
}

fn provider(
    cloud: &CloudStack,
    cluster: &Arc<Cluster>,
    environment: &Environment,
    role: Role,
    options: ProviderOptions,
) -> (Client, CloudStackProvider) {
    let account = cloud.account(role).unwrap();
    let keys = Credentials::new(account.api_key, account.secret_key);
    with_keys(cloud, cluster, environment, keys, options)
}

fn with_keys(
    cloud: &CloudStack,
    cluster: &Arc<Cluster>,
    environment: &Environment,
    credentials: Credentials,
    options: ProviderOptions,
) -> (Client, CloudStackProvider) {
    let session = Session {
        endpoint: "http://cloud/client/api".into(),
        credentials,
        transport: Arc::new(Wire(cloud.clone())),
        project: None,
    };
    let client = Client::new(session, Rate::default(), environment);
    let objects = Arc::clone(cluster) as Arc<dyn Objects>;
    let voice = Voice::default().reading(cluster.book());
    let provider = CloudStackProvider::speaking(client.clone(), options, objects, voice, environment);
    (client, provider)
}

/// A label of what was launched; empty if it has none of this key.
pub(crate) fn label<'a>(instance: &'a LaunchedInstance, key: &str) -> &'a str {
    instance.labels.get(key).map(String::as_str).unwrap_or_default()
}

pub(crate) async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}
