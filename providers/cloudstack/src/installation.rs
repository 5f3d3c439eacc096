//! How the provider joins the program: its keys from the settings, its watches, its controllers.

use std::sync::Arc;

use futures_util::FutureExt as _;
use k8s_openapi::api::core::v1::{Node, Secret};
use karpenter_api::NodeClaim;
use karpenter_cloudprovider::{InstallError, Installation, Part, Surroundings};
use karpenter_runtime::controller::Controller;
use karpenter_runtime::environment::Environment;
use karpenter_runtime::informer::{Informer, own_key};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::options::CloudStackOptions;
use karpenter_runtime::surroundings;
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};

use crate::abandoned_nodes::AbandonedNodes;
use crate::accounts::{Accounts, Reach};
use crate::client::Client;
use crate::client::request::Scope;
use crate::client::throttle::Rate;
use crate::controller::{NodeClassController, class_of};
use crate::credentials::{self, Files, FollowsSecret, KeyKeeper, Roads, SecretKeys, http_roads, no_session};
use crate::keys;
use crate::node_names::NodeNames;
use crate::nodeclass::{CloudStackNodeClass, CredentialsRef};
use crate::settings::{Settings, Source};
use crate::voice::Voice;
use crate::webhook::{self, Doubts, WebhookOptions};
use crate::{CloudStackProvider, GROUP, Objects, ProviderOptions, Watched};

fn wrong(problem: impl ToString) -> InstallError {
    InstallError { provider: "cloudstack", problem: problem.to_string() }
}

/// The provider with what runs beside it.
///
/// # Errors
///
/// If a setting is missing or cannot be used. Wrong keys are no error here: they may be put right while the program runs.
pub fn install(around: &Surroundings) -> Result<Installation, InstallError> {
    let own = surroundings::lease_namespace(&around.options.leader_election_namespace).ok();
    let variable = |name: &str| std::env::var(name).ok();
    let settings = Settings::read(&around.options.cloudstack, own.as_deref(), &variable).map_err(wrong)?;
    let roads = http_roads(settings.http);
    let webhook = settings.webhook.map(|(port, name)| {
        // Where its Service is, which is not always where the lease is.
        let namespace = surroundings::lease_namespace("").map_err(|_| {
            wrong("CLOUDSTACK_WEBHOOK_PORT is set, and this is no pod whose API server could call it; leave it out")
        })?;
        Ok::<_, InstallError>(WebhookOptions { port, namespace, name })
    });
    let options = ProviderOptions { webhook: webhook.transpose()?, ..settings.options };
    let environment = &around.environment;
    match settings.source {
        Source::Given(keys) => {
            let session = keys.session(&roads).map_err(wrong)?;
            let client = Client::new(session, settings.rate, environment);
            Ok(install_with(client, &roads, settings.rate, options, around))
        }
        Source::Directory(directory) => {
            let nothing = no_session(format!("{} has not been read yet", directory.display()));
            let client = Client::new(nothing, settings.rate, environment);
            let files = Files { directory, keeper: KeyKeeper::new(&roads, client.clone()) };
            files.begin();
            let mut installation = install_with(client, &roads, settings.rate, options, around);
            installation.parts.push(Part::new("cloudstack credentials", move |stop| files.run(stop).boxed()));
            Ok(installation)
        }
        Source::Secret { namespace, name } => {
            Ok(install_from_secret((&namespace, &name), &roads, settings.rate, options, around))
        }
    }
}

/// A client by the settings of the environment, for commands that only ask.
///
/// # Errors
///
/// If a setting is missing or cannot be used, or the keys are in a Secret of the cluster.
pub fn client_of_environment(
    options: &CloudStackOptions,
    environment: &Environment,
) -> Result<(Client, ProviderOptions), InstallError> {
    let settings = Settings::read(options, None, &|name| std::env::var(name).ok()).map_err(wrong)?;
    let roads = http_roads(settings.http);
    let keys = match settings.source {
        Source::Given(keys) => *keys,
        Source::Directory(directory) => keys::read(&directory).map_err(wrong)?,
        Source::Secret { .. } => {
            return Err(wrong(
                "no keys; set CLOUDSTACK_API_URL, CLOUDSTACK_API_KEY and CLOUDSTACK_SECRET_KEY, or CLOUDSTACK_CREDENTIALS_DIR",
            ));
        }
    };
    let session = keys.session(&roads).map_err(wrong)?;
    Ok((Client::new(session, settings.rate, environment), settings.options))
}

/// A client with the keys of a Secret that NodeClasses name, by the settings of the environment, for commands that only ask.
///
/// # Errors
///
/// If a setting cannot be used, or the Secret holds no keys.
pub fn client_of_secret(
    reference: &CredentialsRef,
    secret: &Secret,
    options: &CloudStackOptions,
    environment: &Environment,
) -> Result<(Client, ProviderOptions), InstallError> {
    let settings = Settings::read(options, None, &|name| std::env::var(name).ok()).map_err(wrong)?;
    let keys = keys::of_secret(&format!("Secret {reference}"), secret).map_err(wrong)?;
    let session = keys.session(&http_roads(settings.http)).map_err(wrong)?;
    let options = ProviderOptions { scope: Scope::Own, ..settings.options };
    Ok((Client::new(session, settings.rate, environment), options))
}

/// As [`install`], with keys from a Secret of the cluster (namespace and name), over roads of its own.
pub fn install_from_secret(
    (namespace, name): (&str, &str),
    roads: &Roads,
    rate: Rate,
    options: ProviderOptions,
    around: &Surroundings,
) -> Installation {
    let nothing = format!(
        "Secret {namespace}/{name} has not been read yet; it is to have the keys api-url, api-key and secret-key (CLOUDSTACK_CREDENTIALS_SECRET names another)"
    );
    let client = Client::new(no_session(nothing), rate, &around.environment);
    let place = Source::Secret { namespace: namespace.to_owned(), name: name.to_owned() }.place();
    let options = ProviderOptions { keys_place: place, ..options };
    let mut installation = install_with(client.clone(), roads, rate, options, around);
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut secrets: Informer<Secret> =
        Informer::namespaced(&around.client, namespace, only, &around.environment.entropy);
    let keys = Arc::new(SecretKeys {
        secrets: secrets.store(),
        api: Api::namespaced(around.client.clone(), namespace),
        keeper: KeyKeeper::new(roads, client),
    });
    let key = ObjectKey::namespaced(namespace, name);
    keys.be_asked_for(key.clone());
    let controller = Controller::for_objects("cloudstack.credentials", "", "Secret", FollowsSecret(keys))
        .build(&around.environment);
    secrets.feed(&controller.queue(), own_key);
    controller.queue().add_after(key, credentials::WATCH_BEGINS);
    installation.parts.push(Part::new("watch the cloudstack credentials", move |stop| {
        Informer::run(secrets, stop).boxed()
    }));
    installation.parts.push(Part::new("cloudstack.credentials", move |stop| controller.run(stop).boxed()));
    installation
}

/// As [`install`], over a client of its own; the roads lead to the accounts of keys that NodeClasses name.
pub fn install_with(
    client: Client,
    roads: &Roads,
    rate: Rate,
    options: ProviderOptions,
    around: &Surroundings,
) -> Installation {
    let options = ProviderOptions { node_repair: around.options.feature_gates.node_repair, ..options };
    let entropy = &around.environment.entropy;
    let api: Api<CloudStackNodeClass> = Api::all(around.client.clone());
    let mut classes: Informer<CloudStackNodeClass> =
        Informer::all(&around.client, watcher::Config::default(), entropy);
    let mut claims: Informer<NodeClaim> = Informer::all(&around.client, watcher::Config::default(), entropy);
    let objects: Arc<dyn Objects> = Arc::new(Watched { classes: classes.store(), claims: claims.store() });
    let voice = Voice::new(around.recorder.clone(), around.client.clone());
    let name_nodes = options.name_nodes;
    let (webhook, max_user_data) = (options.webhook.clone(), options.max_user_data);
    let reach = Reach {
        roads: Arc::clone(roads),
        rate,
        options: options.clone(),
        cluster: around.client.clone(),
        voice: voice.clone(),
        environment: around.environment.clone(),
    };
    let own = Arc::new(CloudStackProvider::speaking(
        client,
        options,
        Arc::clone(&objects),
        voice,
        &around.environment,
    ));
    let accounts = Arc::new(Accounts::new(Arc::clone(&own), objects, reach));
    let reconciler =
        NodeClassController { accounts: Arc::clone(&accounts), api, claims: Api::all(around.client.clone()) };
    let controller =
        Controller::for_objects("nodeclass.cloudstack", GROUP, "CloudStackNodeClass", reconciler)
            .build(&around.environment);
    classes.feed(&controller.queue(), own_key);
    // What NodeClasses say about the keys is said at once.
    let (queue, known) = (controller.queue(), classes.store());
    accounts.watch_keys(move || {
        for class in known.list() {
            queue.add(ObjectKey::cluster(class.name_any()));
        }
    });
    claims.feed(&controller.queue(), |delta| class_of(delta.object()).into_iter().collect());
    let (garbage, launches, others) = (Arc::clone(&own), own, Arc::clone(&accounts));
    let mut parts = vec![
        Part::new("watch cloudstacknodeclasses", move |stop| Informer::run(classes, stop).boxed()),
        Part::new("watch nodeclaims for cloudstack", move |stop| Informer::run(claims, stop).boxed()),
        Part::new("nodeclass.cloudstack", move |stop| controller.run(stop).boxed()),
        Part::new("cloudstack machines", move |stop| async move { garbage.look_after(stop).await }.boxed()),
        Part::new("cloudstack launches", move |stop| {
            async move { launches.watch_launches(stop).await }.boxed()
        }),
        Part::new("cloudstack accounts", move |stop| others.look_after(stop).boxed()),
    ];
    if let Some(webhook) = webhook {
        let (client, clock) = (around.client.clone(), Arc::clone(&around.environment.clock));
        let knows = Arc::clone(&accounts);
        let doubts: Doubts = Arc::new(move |class| {
            let knows = Arc::clone(&knows);
            async move { knows.doubts(&class).await }.boxed()
        });
        // Whoever stands by is called as well.
        parts.push(Part::always("cloudstack webhook", move |stop| {
            webhook::run(webhook, client, clock, max_user_data, doubts, stop).boxed()
        }));
    }
    let abandoned = AbandonedNodes { accounts: Arc::clone(&accounts), api: Api::all(around.client.clone()) };
    if !name_nodes {
        parts.push(Part::new("cloudstack nodes", move |stop| abandoned.look_after(stop).boxed()));
    } else {
        let mut nodes: Informer<Node> = Informer::all(&around.client, watcher::Config::default(), entropy);
        let names = NodeNames {
            accounts: Arc::clone(&accounts),
            abandoned,
            nodes: nodes.store(),
            api: Api::all(around.client.clone()),
        };
        let names = Controller::for_objects("node.cloudstack", "", "Node", names).build(&around.environment);
        nodes.feed(&names.queue(), own_key);
        parts.push(Part::new("watch nodes for cloudstack", move |stop| Informer::run(nodes, stop).boxed()));
        parts.push(Part::new("node.cloudstack", move |stop| names.run(stop).boxed()));
    }
    Installation { provider: accounts, parts }
}
