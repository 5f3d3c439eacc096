//! Keeps the mirror true: watches the kinds of our Cluster in the version the management cluster serves, starts over when
//! that version changes, and looks at the infrastructure templates that are referred to.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use karpenter_runtime::controller::Runnable;
use karpenter_runtime::entropy::Entropy;
use karpenter_runtime::informer::{Delta, Informer};
use karpenter_runtime::object_key::ObjectKey;
use kube::api::DynamicObject;
use kube::runtime::watcher;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::control_plane::ControlPlane;
use super::fields::{Malformed, Reference};
use super::hub::{Hub, HubError};
use super::mirror::{Mirror, TemplateLabels, Watched};
use super::template::Template;
use super::versions::VersionError;
use crate::names::CLUSTER_NAME;

/// How often the management cluster is asked whether it is there, and templates are looked at again.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// How long to wait before a management cluster that cannot be asked is asked again.
const PAUSE: Duration = Duration::from_secs(5);

pub(crate) struct Watching {
    hub: Arc<Hub>,
    mirror: Mirror,
    entropy: Entropy,
    /// A scalable resource changed: it may refer to another template.
    resources_changed: Arc<Notify>,
}

impl Watching {
    /// Feeds `mirror` from `hub`.
    pub(crate) fn new(hub: Arc<Hub>, mirror: Mirror, entropy: &Entropy) -> Self {
        Self {
            hub,
            mirror,
            entropy: entropy.child("cluster-api/watching"),
            resources_changed: Arc::default(),
        }
    }

    /// Runs until stopped. A management cluster that is away is waited for.
    pub(crate) async fn run(self, stop: CancellationToken) {
        loop {
            let watched = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                watched = self.watch(&stop) => watched,
            };
            if let Err(error) = watched {
                self.hub.note(&error);
                tracing::warn!(%error, "cannot watch the management cluster, will retry");
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(PAUSE) => {}
                }
            }
        }
    }

    /// Watches in the version served now; returns when that has changed.
    async fn watch(&self, stop: &CancellationToken) -> Result<(), HubError> {
        let version = self.hub.versions().own(self.hub.client()).await?;
        // Everything spawned here ends with this function, however it ends.
        let over = stop.child_token();
        let _guard = over.clone().drop_guard();
        let mut stores = Vec::new();
        for watched in Watched::ALL {
            let informer = self.informer(watched).await?;
            stores.push((watched, informer.store()));
            tokio::spawn(informer.run(over.clone()));
        }
        for (watched, store) in stores {
            // What keeps a watch from its first list is found out, and told, by asking for the same.
            while tokio::time::timeout(HEARTBEAT, store.wait_synced()).await.is_err() {
                let probed = match watched {
                    Watched::Cluster => self.hub.cluster().await.map(drop),
                    _ => self.hub.list(watched.as_str()).await,
                };
                if let Err(error) = probed {
                    tracing::warn!(%error, kind = watched.as_str(), "the management cluster is not known yet");
                }
                if self.serves_another(&version).await {
                    return Ok(());
                }
            }
            let keys: BTreeSet<ObjectKey> =
                store.list().iter().map(|object| ObjectKey::of(&**object)).collect();
            self.mirror.keep_only(watched, &keys);
        }
        self.look_at_templates().await;
        self.look_at_kinds().await;
        self.look_at_control_plane().await;
        self.mirror.mark_synced();
        tokio::select! {
            biased;
            () = self.beat() => {}
            () = self.look_until_served_otherwise(&version) => {}
        }
        Ok(())
    }

    /// Asks for ever whether the management cluster is there, however long it takes to say what is in it.
    async fn beat(&self) {
        loop {
            tokio::time::sleep(HEARTBEAT).await;
            if let Err(error) = self.hub.cluster().await {
                tracing::debug!(%error, "the management cluster did not answer");
            }
        }
    }

    /// Looks at what is not watched, again and again, until the management cluster serves another version.
    async fn look_until_served_otherwise(&self, version: &str) {
        // Counted from one to the next, whatever happens in between: in a busy Cluster something changes all the time.
        let mut again = Instant::now() + HEARTBEAT;
        loop {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(again) => again = Instant::now() + HEARTBEAT,
                () = self.resources_changed.notified() => {
                    self.look_at_new_templates().await;
                    continue;
                }
                () = self.mirror.wanted_changed() => {
                    self.look_at_new_templates().await;
                    self.look_at_kinds().await;
                    self.look_at_control_plane().await;
                    continue;
                }
            }
            self.look_at_templates().await;
            self.look_at_kinds().await;
            self.look_at_control_plane().await;
            if self.serves_another(version).await {
                return;
            }
        }
    }

    /// Whether the management cluster serves another version by now. Which one is forgotten when something was not served, and may have
    /// been found by another request since; an outage is no other version.
    async fn serves_another(&self, version: &str) -> bool {
        let Ok(now) = self.hub.versions().own(self.hub.client()).await else { return false };
        if now != version {
            tracing::info!(from = version, to = now, "the management cluster serves another version");
        }
        now != version
    }

    async fn informer(&self, watched: Watched) -> Result<Informer<DynamicObject>, HubError> {
        let api = self.hub.watchable(watched.as_str()).await?;
        let scope = self.hub.find_scope().await?;
        let config = match watched {
            Watched::Cluster => {
                watcher::Config::default().fields(&format!("metadata.name={}", scope.cluster))
            }
            _ => watcher::Config::default().labels(&format!("{CLUSTER_NAME}={}", scope.cluster)),
        };
        let mut informer = Informer::of_kind(watched.as_str(), api, config, &self.entropy);
        let (mirror, resources_changed) = (self.mirror.clone(), Arc::clone(&self.resources_changed));
        informer.subscribe(move |delta| {
            match delta {
                Delta::Added { object, .. } | Delta::Updated { new: object, .. } => {
                    mirror.apply(watched, object)
                }
                Delta::Deleted { object } => mirror.remove(watched, &ObjectKey::of(&**object)),
            }
            if matches!(watched, Watched::MachineDeployment | Watched::MachineSet) {
                resources_changed.notify_one();
            }
        });
        Ok(informer)
    }

    async fn look_at_templates(&self) {
        for reference in self.mirror.template_references() {
            self.look_at_template(&reference).await;
        }
    }

    async fn look_at_new_templates(&self) {
        for reference in self.mirror.template_references() {
            if self.mirror.template(&reference).is_none() {
                self.look_at_template(&reference).await;
            }
        }
    }

    /// Looks at all templates of the kinds that NodeClasses select from.
    async fn look_at_kinds(&self) {
        for (group, kind) in self.mirror.wanted_kinds() {
            let templates = match answer(self.hub.all(&group, &kind).await) {
                None => continue,
                Some(Err(trouble)) => Err(trouble),
                Some(Ok(objects)) => {
                    let mut templates = TemplateLabels::new();
                    for object in &objects {
                        let name = object.metadata.name.clone().unwrap_or_default();
                        let reference = Reference {
                            group: group.clone(),
                            version: String::new(),
                            kind: kind.clone(),
                            name: name.clone(),
                        };
                        let read = Template::read(&kind, object).map_err(|error| error.to_string());
                        self.mirror.set_template(reference, read);
                        // Also one that cannot be read is there.
                        templates.insert(name, object.metadata.labels.clone().unwrap_or_default());
                    }
                    Ok(templates)
                }
            };
            self.mirror.set_listing((group, kind), templates);
        }
    }

    async fn look_at_template(&self, reference: &Reference) {
        let found = self.hub.get(reference).await;
        if let Err(error @ HubError::Refused { .. }) = &found {
            return self.mirror.refuse_template(reference.clone(), error.to_string());
        }
        if let Some(found) = answer(found) {
            let read = |object: DynamicObject| {
                Template::read(&reference.kind, &object).map_err(|error| error.to_string())
            };
            self.mirror.set_template(reference.clone(), found.and_then(read));
        }
    }

    /// Looks at the control plane, where somebody wants to know.
    async fn look_at_control_plane(&self) {
        let Some(reference) = self.mirror.control_plane_reference() else {
            return self.mirror.set_control_plane(None);
        };
        let found = self.look_at(&reference, |object| ControlPlane::read(&reference.kind, object)).await;
        if let Some(found) = found {
            self.mirror.set_control_plane(Some(found));
        }
    }

    /// What an object says, or why it cannot be read; `None` if nobody can say just now, which is no reason to forget.
    async fn look_at<T>(
        &self,
        reference: &Reference,
        read: impl FnOnce(&DynamicObject) -> Result<T, Malformed>,
    ) -> Option<Result<T, String>> {
        let found = answer(self.hub.get(reference).await)?;
        Some(found.and_then(|object| read(&object).map_err(|error| error.to_string())))
    }
}

/// What the management cluster has, or why not; `None` if it did not say.
fn answer<T>(found: Result<T, HubError>) -> Option<Result<T, String>> {
    match found {
        Ok(found) => Some(Ok(found)),
        Err(
            error @ (HubError::NotFound(_)
            | HubError::Refused { .. }
            | HubError::Version(
                VersionError::NoGroup(_) | VersionError::NoKind { .. } | VersionError::NoVersion { .. },
            )),
        ) => Some(Err(error.to_string())),
        Err(_) => None,
    }
}

impl Runnable for Watching {
    fn run(self: Box<Self>, stop: CancellationToken) -> BoxFuture<'static, ()> {
        Self::run(*self, stop).boxed()
    }
}
