//! Requests to the management cluster. Every write is a patch of what is ours, bound to what was read: the version, the uid, or
//! the fields that matter to it. A write whose object was changed or has gone says so, so that the caller looks again instead of
//! guessing.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_runtime::error::with_causes;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::unread::Unread;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Status;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::cluster::Cluster;
use super::fields::{Condition, Malformed, Reference, with_condition};
use super::machine::Machine;
use super::scalable::{Scalable, ScalableKey, ScalableKind};
use super::scope::{Ours, Scope, ScopeError};
use super::versions::{VersionError, Versions};
use crate::names::{self, CAPI_GROUP, CLUSTER_NAME};

/// Why the management cluster did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// It was changed since it was read: look again.
    #[error("{0} was changed in between")]
    Conflict(String),
    /// It does not exist (any more).
    #[error("{0} does not exist")]
    NotFound(String),
    /// We may not, or a webhook or quota says no.
    #[error("{what}: the management cluster refused: {message}")]
    Refused {
        /// What was asked for.
        what: String,
        /// What the server, webhook or quota says.
        message: String,
    },
    /// It is not known whether it was done.
    #[error("{what}: the management cluster gave no answer")]
    Unavailable {
        /// What was asked for.
        what: String,
        /// Why there was none.
        #[source]
        source: Box<kube::Error>,
    },
    /// It serves no version we can read.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// Which Cluster is ours is not known.
    #[error(transparent)]
    Scope(#[from] ScopeError),
    /// What it has cannot be read.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

impl HubError {
    /// Whether the object is known not to exist.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound(_))
    }

    /// Whether to look again at once.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict(_))
    }
}

/// The management cluster, as far as it is about our Cluster.
pub struct Hub {
    client: Client,
    ours: Ours,
    versions: Versions,
    health: Mutex<Health>,
}

#[derive(Debug, Default)]
struct Health {
    last_answer: Option<Instant>,
    trouble: Option<String>,
    /// Whether the last question about Cluster API's own kinds got no answer, not even a refusal.
    out_of_reach: bool,
    /// Why new credentials are not used.
    unused_credentials: Option<String>,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("ours", &self.ours).finish_non_exhaustive()
    }
}

/// An API handle with what it is about, for messages.
struct Scoped<'a> {
    hub: &'a Hub,
    api: Api<DynamicObject>,
    what: String,
    /// Whether it is of Cluster API's own group: what becomes of the other kinds may be for their own providers' sake.
    is_own: bool,
}

impl Hub {
    /// The management cluster behind this client.
    pub fn new(client: Client, ours: Ours) -> Self {
        Self { client, ours, versions: Versions::default(), health: Mutex::default() }
    }

    /// Which Cluster is ours, if that is known.
    pub(crate) fn scope(&self) -> Option<&Scope> {
        self.ours.known()
    }

    /// Which Cluster is ours; the management cluster is asked if that is not known.
    pub(crate) async fn find_scope(&self) -> Result<&Scope, HubError> {
        Ok(self.ours.find(&self.client, &self.versions).await?)
    }

    /// The client that requests go by.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The versions it serves.
    pub(crate) fn versions(&self) -> &Versions {
        &self.versions
    }

    /// How long ago it last answered; `None` if it never has.
    pub(crate) fn silent_for(&self) -> Option<Duration> {
        self.health().last_answer.map(|at| at.elapsed())
    }

    /// What went wrong last, if nothing has gone right since.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.health().trouble.clone()
    }

    /// Whether the last question about Cluster API's own kinds got no answer, not even a refusal. One that the server cannot answer says
    /// nothing of others, such as one about a kind that it cannot convert.
    pub(crate) fn is_out_of_reach(&self) -> bool {
        self.health().out_of_reach
    }

    /// Why credentials that were given anew are not used, if so.
    pub(crate) fn unused_credentials(&self) -> Option<String> {
        self.health().unused_credentials.clone()
    }

    /// Takes note of why credentials that were given anew are not used; `None` when that is over.
    pub fn note_unused_credentials(&self, why: Option<String>) {
        self.health().unused_credentials = why;
    }

    /// Takes note of something that went wrong elsewhere.
    pub(crate) fn note(&self, error: &HubError) {
        self.health().trouble = Some(with_causes(error));
    }

    pub(crate) async fn cluster(&self) -> Result<Cluster, HubError> {
        let scope = self.find_scope().await?;
        let api = self.api(CAPI_GROUP, "Cluster", &scope.cluster).await?;
        Ok(Cluster::read(&api.get(&scope.cluster).await?)?)
    }

    /// A MachineDeployment or MachineSet, as it is now.
    pub(crate) async fn scalable(&self, id: &ScalableKey) -> Result<Scalable, HubError> {
        let api = self.api(CAPI_GROUP, id.kind.as_str(), &id.key.name).await?;
        Ok(Scalable::read(id.kind, &api.get(&id.key.name).await?)?)
    }

    /// The Machines of a scalable resource, or all of our Cluster, as they are now. One that cannot be read is an error: a list
    /// with holes would look like Machines that are gone.
    pub(crate) async fn machines(&self, of: Option<&ScalableKey>) -> Result<Vec<Machine>, HubError> {
        let mut labels = format!("{CLUSTER_NAME}={}", self.find_scope().await?.cluster);
        if let Some(id) = of {
            let Some(label) = id.kind.machine_label() else { return Ok(Vec::new()) };
            let name = names::label_value(&id.key.name);
            labels.push_str(&format!(",{label}={name}"));
        }
        let api = self.api(CAPI_GROUP, "Machine", &labels).await?;
        let listed = api.settle(api.api.list(&ListParams::default().labels(&labels)).await)?;
        Ok(listed.items.iter().map(Machine::read).collect::<Result<_, _>>()?)
    }

    /// The MachineSets of a scalable resource, as they are now; of anything but a MachineDeployment there are none. One that cannot be
    /// read is left out, as it is where they are watched.
    pub(crate) async fn sets_of(&self, id: &ScalableKey) -> Result<Vec<Arc<Scalable>>, HubError> {
        if id.kind != ScalableKind::MachineDeployment {
            return Ok(Vec::new());
        }
        let cluster = &self.find_scope().await?.cluster;
        let name = names::label_value(&id.key.name);
        let labels = format!("{CLUSTER_NAME}={cluster},{}={name}", names::DEPLOYMENT_NAME);
        let api = self.api(CAPI_GROUP, "MachineSet", &labels).await?;
        let listed = api.settle(api.api.list(&ListParams::default().labels(&labels)).await)?;
        let read = |object: &DynamicObject| Scalable::read(ScalableKind::MachineSet, object).ok();
        Ok(listed.items.iter().filter_map(read).map(Arc::new).collect())
    }

    /// Whether a kind of our Cluster can be listed.
    pub(crate) async fn list(&self, kind: &str) -> Result<(), HubError> {
        let labels = format!("{CLUSTER_NAME}={}", self.find_scope().await?.cluster);
        let api = self.api(CAPI_GROUP, kind, &labels).await?;
        api.settle(api.api.list(&ListParams::default().labels(&labels).limit(1)).await).map(drop)
    }

    /// A Machine, as it is now.
    pub(crate) async fn machine(&self, name: &str) -> Result<Machine, HubError> {
        let api = self.api(CAPI_GROUP, "Machine", name).await?;
        Ok(Machine::read(&api.get(name).await?)?)
    }

    /// Sets the number of replicas. Lowering is bound to the version that was read: what else was lowered and raised meanwhile
    /// may have cost the Machines that were counted on. Raising costs nothing, so that the number is still the one that was read
    /// is enough: while Machines come, Cluster API writes their resource's status several times a second.
    pub(crate) async fn scale(&self, scalable: &Scalable, replicas: i32) -> Result<(), HubError> {
        let api = self.api(CAPI_GROUP, scalable.id.kind.as_str(), &scalable.id.key.name).await?;
        let patch = raising(scalable, replicas).map(Patch::Json::<Value>).unwrap_or_else(|| {
            Patch::Merge(json!({
                "metadata": {"resourceVersion": scalable.resource_version},
                "spec": {"replicas": replicas},
            }))
        });
        let name = &scalable.id.key.name;
        let patched = api.api.patch_scale(name, &PatchParams::default(), &patch).await;
        api.settle_guarded(patched).map(drop)
    }

    /// Writes metadata (annotations and labels; null removes) of a scalable resource of this version.
    pub(crate) async fn annotate_scalable(
        &self,
        scalable: &Scalable,
        metadata: Value,
    ) -> Result<Scalable, HubError> {
        let id = &scalable.id;
        let api = self.api(CAPI_GROUP, id.kind.as_str(), &id.key.name).await?;
        let patched = api.patch_metadata(&id.key.name, &scalable.resource_version, metadata).await?;
        Ok(Scalable::read(id.kind, &patched)?)
    }

    /// Writes annotations and labels of a Machine that is still the one that was seen: not on its way out, with the claim and the
    /// mark it had. What Cluster API writes on it meanwhile does not matter: a young Machine changes several times a second.
    pub(crate) async fn annotate_machine(
        &self,
        machine: &Machine,
        metadata: Value,
    ) -> Result<Machine, HubError> {
        let name = &machine.key.name;
        let api = self.api(CAPI_GROUP, "Machine", name).await?;
        let patched = match guarded(machine, &metadata) {
            Some(patch) => {
                let patch = Patch::Json::<()>(patch);
                api.settle_guarded(api.api.patch(name, &PatchParams::default(), &patch).await)?
            }
            None => api.patch_metadata(name, &machine.resource_version, metadata).await?,
        };
        Ok(Machine::read(&patched)?)
    }

    /// Has Cluster API wait no longer for the drain of a Machine's node and for its volumes; where no MachineSet would take that back,
    /// nor for the Node to go.
    pub(crate) async fn stop_waiting(&self, machine: &Machine) -> Result<(), HubError> {
        let api = self.api(CAPI_GROUP, "Machine", &machine.key.name).await?;
        if machine.set_name().is_some() {
            let annotations = json!({names::EXCLUDE_DRAIN: "", names::EXCLUDE_DETACH: ""});
            let metadata = json!({"annotations": annotations});
            let patched = api.patch_metadata(&machine.key.name, &machine.resource_version, metadata).await;
            return patched.map(drop);
        }
        let spec = match self.versions.own(&self.client).await?.as_str() {
            "v1beta1" => json!({
                "nodeDrainTimeout": "1s", "nodeVolumeDetachTimeout": "1s", "nodeDeletionTimeout": "1s",
            }),
            _ => json!({"deletion": {
                "nodeDrainTimeoutSeconds": 1, "nodeVolumeDetachTimeoutSeconds": 1, "nodeDeletionTimeoutSeconds": 1,
            }}),
        };
        let patch = json!({"metadata": {"resourceVersion": machine.resource_version}, "spec": spec});
        let patched = api.api.patch(&machine.key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        api.settle(patched).map(drop)
    }

    /// Sets a condition of this very Machine, unless it is so already. Whether it was written.
    pub(crate) async fn set_condition(
        &self,
        machine: &Machine,
        wanted: &Condition,
        now: Timestamp,
    ) -> Result<bool, HubError> {
        let name = &machine.key.name;
        let api = self.api(CAPI_GROUP, "Machine", name).await?;
        let found = api.get(name).await?;
        if found.metadata.uid.as_deref() != Some(&*machine.uid) {
            return Err(HubError::NotFound(format!("Machine {}", machine.key)));
        }
        let is_old = self.versions.own(&self.client).await? == "v1beta1";
        let path = if is_old { "/status/v1beta2/conditions" } else { "/status/conditions" };
        let before = found.data.pointer(path).and_then(Value::as_array).cloned().unwrap_or_default();
        let Some(after) = with_condition(before, wanted, now) else { return Ok(false) };
        let status = json!({"conditions": after});
        let patch = json!({
            "metadata": {"resourceVersion": found.metadata.resource_version},
            "status": if is_old { json!({"v1beta2": status}) } else { status },
        });
        let patched = api.api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        api.settle(patched).map(|_| true)
    }

    /// Deletes this very Machine and no later one of its name.
    pub(crate) async fn delete_machine(&self, machine: &Machine) -> Result<(), HubError> {
        self.delete(&machine_reference(&machine.key), Some(&machine.uid)).await
    }

    /// Any object of our Cluster's namespace.
    pub(crate) async fn get(&self, reference: &Reference) -> Result<DynamicObject, HubError> {
        let api = self.api(&reference.group, &reference.kind, &reference.name).await?;
        api.get(&reference.name).await
    }

    /// All objects of a kind in our Cluster's namespace.
    pub(crate) async fn all(&self, group: &str, kind: &str) -> Result<Vec<DynamicObject>, HubError> {
        let api = self.api(group, kind, "").await?;
        Ok(api.settle(api.api.list(&ListParams::default()).await)?.items)
    }

    /// What all clones of a kind say of themselves that Karpenter made for our Cluster.
    pub(crate) async fn clones(&self, group: &str, kind: &str) -> Result<Vec<ObjectMeta>, HubError> {
        let labels = format!("{CLUSTER_NAME}={},{}", self.find_scope().await?.cluster, names::MEMBER);
        let api = self.api(group, kind, &labels).await?;
        let listed = api.settle(api.api.list_metadata(&ListParams::default().labels(&labels)).await)?;
        Ok(listed.items.into_iter().map(|clone| clone.metadata).collect())
    }

    /// Makes an object of our Cluster's namespace. One that is there already comes back as it is.
    pub(crate) async fn create_or_get(
        &self,
        reference: &Reference,
        object: Value,
    ) -> Result<DynamicObject, HubError> {
        let api = self.api(&reference.group, &reference.kind, &reference.name).await?;
        let object: DynamicObject = serde_json::from_value(object)
            .map_err(|error| api.unavailable(kube::Error::SerdeError(error)))?;
        match api.settle(api.api.create(&PostParams::default(), &object).await) {
            Err(HubError::Conflict(_)) => api.get(&reference.name).await,
            other => other,
        }
    }

    /// Deletes an object of our Cluster's namespace; one that is gone is as good.
    pub(crate) async fn delete(&self, reference: &Reference, uid: Option<&str>) -> Result<(), HubError> {
        let api = self.api(&reference.group, &reference.kind, &reference.name).await?;
        let preconditions =
            uid.map(|uid| Preconditions { uid: Some(uid.to_owned()), resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::background() };
        match api.settle(api.api.delete(&reference.name, &params).await) {
            Err(error) if error.is_not_found() => Ok(()),
            // Another object of that name: ours is gone.
            Err(error) if error.is_conflict() && uid.is_some() => Ok(()),
            other => other.map(drop),
        }
    }

    /// A handle to watch a kind in our Cluster's namespace with.
    pub(crate) async fn watchable(&self, kind: &str) -> Result<Api<Unread>, HubError> {
        let resource = self.versions.resource(&self.client, CAPI_GROUP, kind).await?;
        let namespace = &self.find_scope().await?.namespace;
        Ok(Api::namespaced_with(self.client.clone(), namespace, &resource))
    }

    async fn api(&self, group: &str, kind: &str, name: &str) -> Result<Scoped<'_>, HubError> {
        let resource = match self.versions.resource(&self.client, group, kind).await {
            Ok(resource) => resource,
            Err(error) => {
                self.health().trouble = Some(error.to_string());
                return Err(error.into());
            }
        };
        let namespace = &self.find_scope().await?.namespace;
        let api = Api::namespaced_with(self.client.clone(), namespace, &resource);
        let (what, is_own) = (format!("{kind} {namespace}/{name}"), group == CAPI_GROUP);
        Ok(Scoped { hub: self, api, what, is_own })
    }

    fn answered(&self) {
        let mut health = self.health();
        health.last_answer = Some(Instant::now());
        health.trouble = None;
        health.out_of_reach = false;
    }

    fn health(&self) -> std::sync::MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A Machine, as anything that can be referred to.
pub(crate) fn machine_reference(key: &ObjectKey) -> Reference {
    Reference {
        group: CAPI_GROUP.to_owned(),
        version: String::new(),
        kind: "Machine".to_owned(),
        name: key.name.to_string(),
    }
}

/// A patch that fits only a Machine that is as it was seen, in what matters to a claim, and in what is to be removed. `None` if it is on
/// its way out: then the version that was seen decides.
pub(super) fn guarded(machine: &Machine, metadata: &Value) -> Option<json_patch::Patch> {
    let pointer = |map: &str, key: &str| {
        let key = key.replace('~', "~0").replace('/', "~1");
        format!("/metadata/{map}/{key}")
    };
    if machine.deleting {
        return None;
    }
    // What is not there is tested for as null.
    let test = |path: String, value: Value| json!({"op": "test", "path": path, "value": value});
    let mut operations = vec![
        test("/metadata/uid".to_owned(), machine.uid.as_str().into()),
        test("/metadata/deletionTimestamp".to_owned(), Value::Null),
    ];
    if !machine.annotations.is_empty() {
        for key in [names::NODECLAIM_UID, names::DELETE_MACHINE] {
            let seen = machine.annotations.get(key).map_or(Value::Null, |value| value.as_str().into());
            operations.push(test(pointer("annotations", key), seen));
        }
    }
    for (map, there) in [("annotations", &machine.annotations), ("labels", &machine.labels)] {
        let Some(wanted) = metadata.get(map).and_then(Value::as_object) else { continue };
        let (removed, added): (Vec<_>, Vec<_>) = wanted.iter().partition(|(_, value)| value.is_null());
        for (path, value) in removed.iter().filter_map(|(key, _)| Some((pointer(map, key), there.get(*key)?)))
        {
            operations.push(test(path.clone(), value.as_str().into()));
            operations.push(json!({"op": "remove", "path": path}));
        }
        if there.is_empty() && !added.is_empty() {
            let added: serde_json::Map<String, Value> =
                added.into_iter().map(|(key, value)| (key.clone(), value.clone())).collect();
            operations.push(test(format!("/metadata/{map}"), Value::Null));
            operations.push(json!({"op": "add", "path": format!("/metadata/{map}"), "value": added}));
            continue;
        }
        for (key, value) in added {
            operations.push(json!({"op": "add", "path": pointer(map, key), "value": value}));
        }
    }
    serde_json::from_value(operations.into()).ok()
}

/// A patch that fits only a resource that has as many replicas as were read, and is to have more. `None` from none: a Scale leaves
/// a zero out, or does not.
pub(super) fn raising(scalable: &Scalable, replicas: i32) -> Option<json_patch::Patch> {
    if scalable.replicas <= 0 || replicas <= scalable.replicas {
        return None;
    }
    let operations = json!([
        {"op": "test", "path": "/metadata/uid", "value": scalable.uid},
        {"op": "test", "path": "/spec/replicas", "value": scalable.replicas},
        {"op": "replace", "path": "/spec/replicas", "value": replicas},
    ]);
    serde_json::from_value(operations).ok()
}

/// Whether a JSON patch did not fit; the server keeps the reason to itself, other than one that finds an object invalid, or a webhook that
/// denies the request. Of any other request the same answer is a refusal.
fn is_unfit(status: &Status) -> bool {
    status.code == 422
        && status.details.as_ref().is_none_or(|d| d.name.is_empty() && d.causes.is_empty())
        && status.message.starts_with("the server rejected our request due to an error in our request")
}

/// Whether nobody answered, or somebody in between in place of the server.
fn is_no_answer(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 502..=504),
        kube::Error::SerdeError(_) => false,
        _ => true,
    }
}

/// A refusal, and what to do about it: a webhook says that itself, the server's own authorization does not.
fn with_remedy(message: &str) -> String {
    match message.contains(" is forbidden: User ") {
        true => format!("{message}; `karpenter cluster-api self-check` tells which rights are missing"),
        false => message.to_owned(),
    }
}

impl Scoped<'_> {
    async fn get(&self, name: &str) -> Result<DynamicObject, HubError> {
        self.settle(self.api.get(name).await)
    }

    async fn patch_metadata(
        &self,
        name: &str,
        resource_version: &str,
        mut metadata: Value,
    ) -> Result<DynamicObject, HubError> {
        metadata["resourceVersion"] = resource_version.into();
        let patch = Patch::Merge(json!({"metadata": metadata}));
        self.settle(self.api.patch(name, &PatchParams::default(), &patch).await)
    }

    /// Of a patch that says what it fits.
    fn settle_guarded<T>(&self, result: Result<T, kube::Error>) -> Result<T, HubError> {
        match result {
            Err(kube::Error::Api(status)) if is_unfit(&status) => {
                self.hub.answered();
                Err(HubError::Conflict(self.what.clone()))
            }
            other => self.settle(other),
        }
    }

    fn settle<T>(&self, result: Result<T, kube::Error>) -> Result<T, HubError> {
        let error = match result {
            Ok(value) => {
                self.hub.answered();
                return Ok(value);
            }
            Err(error) => error,
        };
        let kube::Error::Api(status) = &error else { return Err(self.unavailable(error)) };
        match status.code {
            404 => {
                // Also what a server says that no longer serves this version.
                if status.details.as_ref().is_none_or(|details| details.name.is_empty()) {
                    self.hub.versions.forget();
                    return Err(self.unavailable(error));
                }
                self.hub.answered();
                Err(HubError::NotFound(self.what.clone()))
            }
            409 => {
                self.hub.answered();
                Err(HubError::Conflict(self.what.clone()))
            }
            // Nobody has been told from anybody: what may be done, and what there is, is not known.
            401 => {
                let mut health = self.hub.health();
                health.trouble = Some(status.message.clone());
                health.out_of_reach = true;
                drop(health);
                Err(HubError::Unavailable { what: self.what.clone(), source: Box::new(error) })
            }
            400 | 403 | 422 => {
                if status.code == 403 {
                    let mut health = self.hub.health();
                    health.trouble = Some(status.message.clone());
                    health.out_of_reach = false;
                } else {
                    self.hub.answered();
                }
                let message = with_remedy(&status.message);
                Err(HubError::Refused { what: self.what.clone(), message })
            }
            _ => Err(self.unavailable(error)),
        }
    }

    fn unavailable(&self, source: kube::Error) -> HubError {
        let mut health = self.hub.health();
        health.trouble = Some(source.to_string());
        // Whoever answers is there, unless all is answered like that: then it has been silent for long.
        health.out_of_reach |= self.is_own && is_no_answer(&source);
        drop(health);
        HubError::Unavailable { what: self.what.clone(), source: Box::new(source) }
    }
}
