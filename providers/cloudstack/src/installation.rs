//! How the provider joins the program: its keys from the settings, its watches, its controllers.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::FutureExt as _;
use karpenter_api::NodeClaim;
use karpenter_cloudprovider::{InstallError, Installation, Part, Surroundings};
use karpenter_runtime::controller::Controller;
use karpenter_runtime::informer::{Informer, own_key};
use kube::Api;
use kube::runtime::watcher;

use crate::client::Client;
use crate::client::http::HttpSettings;
use crate::client::signature::Credentials;
use crate::client::throttle::Rate;
use crate::controller::{NodeClassController, class_of};
use crate::credentials::{self, Keys};
use crate::nodeclass::CloudStackNodeClass;
use crate::{CloudStackProvider, GROUP, Objects, ProviderOptions, Watched};

/// A directory with the files of the Secret `cloudstack-credentials`; keys are then exchanged when they change.
pub const CREDENTIALS_DIR: &str = "CLOUDSTACK_CREDENTIALS_DIR";
/// A file of certificates in PEM to trust besides the system's.
pub const CA_FILE: &str = "CLOUDSTACK_CA_FILE";
/// `true` to take an API address without TLS.
pub const ALLOW_INSECURE_HTTP: &str = "CLOUDSTACK_ALLOW_INSECURE_HTTP";

fn wrong(problem: impl ToString) -> InstallError {
    InstallError { provider: "cloudstack", problem: problem.to_string() }
}

/// A variable of the environment that is set to something.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The provider with what runs beside it.
///
/// # Errors
///
/// If a setting is missing or cannot be used. Wrong keys are no error here: they may be put right while the program runs.
pub fn install(around: &Surroundings) -> Result<Installation, InstallError> {
    let options = &around.options.cloudstack;
    let needed = |value: &str, name: &str| {
        if value.is_empty() { Err(wrong(format!("{name} is not set"))) } else { Ok(value.to_owned()) }
    };
    let cluster = needed(&options.cluster_name, "CLUSTER_NAME")?;
    let directory = variable(CREDENTIALS_DIR).map(PathBuf::from);
    let keys = match &directory {
        Some(directory) => credentials::read(directory).map_err(wrong)?,
        None => Keys {
            api_url: needed(&options.api_url, "CLOUDSTACK_API_URL")?,
            credentials: Credentials::new(
                needed(options.api_key.reveal(), "CLOUDSTACK_API_KEY")?,
                needed(options.secret_key.reveal(), "CLOUDSTACK_SECRET_KEY")?,
            ),
        },
    };
    let ca_bundle = match variable(CA_FILE) {
        Some(file) => {
            let text = std::fs::read_to_string(&file);
            Some(text.map_err(|error| wrong(format!("{CA_FILE} {file}: {error}")))?)
        }
        None => None,
    };
    let settings = HttpSettings {
        verify: options.verify_ssl,
        ca_bundle,
        allow_insecure_http: variable(ALLOW_INSECURE_HTTP).as_deref() == Some("true"),
        ..HttpSettings::default()
    };
    let session = keys.clone().session(&settings).map_err(wrong)?;
    let client = Client::new(session, Rate::default(), &around.environment);
    let mut installation = install_with(client.clone(), ProviderOptions::new(cluster), around);
    if let Some(directory) = directory {
        installation.parts.push(Part::new("cloudstack credentials", move |stop| {
            credentials::follow(directory, keys, settings, client, stop).boxed()
        }));
    }
    Ok(installation)
}

/// As [`install`], over a client of its own: for simulations.
pub fn install_with(client: Client, options: ProviderOptions, around: &Surroundings) -> Installation {
    let entropy = &around.environment.entropy;
    let api: Api<CloudStackNodeClass> = Api::all(around.client.clone());
    let mut classes: Informer<CloudStackNodeClass> =
        Informer::new(Api::all(around.client.clone()), watcher::Config::default(), entropy);
    let mut claims: Informer<NodeClaim> =
        Informer::new(Api::all(around.client.clone()), watcher::Config::default(), entropy);
    let objects: Arc<dyn Objects> = Arc::new(Watched { classes: classes.store(), claims: claims.store() });
    let provider = Arc::new(CloudStackProvider::new(client, options, objects, &around.environment));
    let reconciler = NodeClassController { provider: Arc::clone(&provider), api };
    let controller =
        Controller::for_objects("nodeclass.cloudstack", GROUP, "CloudStackNodeClass", reconciler)
            .build(&around.environment);
    classes.feed(&controller.queue(), own_key);
    claims.feed(&controller.queue(), |delta| class_of(delta.object()).into_iter().collect());
    let garbage = Arc::clone(&provider);
    Installation {
        provider,
        parts: vec![
            Part::new("watch cloudstacknodeclasses", move |stop| Informer::run(classes, stop).boxed()),
            Part::new("watch nodeclaims for cloudstack", move |stop| Informer::run(claims, stop).boxed()),
            Part::new("nodeclass.cloudstack", move |stop| controller.run(stop).boxed()),
            Part::new("cloudstack machines", move |stop| {
                async move { garbage.look_after(stop).await }.boxed()
            }),
        ],
    }
}
