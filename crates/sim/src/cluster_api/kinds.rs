//! The kinds of Cluster API and of the simulated infrastructure: their definitions, which keep every field, and the few ways the
//! controllers read and write them.

use karpenter_runtime::object_key::ObjectKey;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::actor::{code, unless_gone};

/// A kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A cluster.
    Cluster,
    /// Machines in revisions.
    MachineDeployment,
    /// Machines.
    MachineSet,
    /// One node to be.
    Machine,
    /// The machine behind it.
    SimMachine,
    /// What machines are made from.
    SimMachineTemplate,
    /// Bootstrap data.
    SimConfig,
    /// What bootstrap data is made from.
    SimConfigTemplate,
    /// A control plane; nobody but who reads it minds what it says.
    SimControlPlane,
}

impl Kind {
    pub(super) const ALL: [Self; 9] = [
        Self::Cluster,
        Self::MachineDeployment,
        Self::MachineSet,
        Self::Machine,
        Self::SimMachine,
        Self::SimMachineTemplate,
        Self::SimConfig,
        Self::SimConfigTemplate,
        Self::SimControlPlane,
    ];

    /// As written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::MachineDeployment => "MachineDeployment",
            Self::MachineSet => "MachineSet",
            Self::Machine => "Machine",
            Self::SimMachine => "SimMachine",
            Self::SimMachineTemplate => "SimMachineTemplate",
            Self::SimConfig => "SimConfig",
            Self::SimConfigTemplate => "SimConfigTemplate",
            Self::SimControlPlane => "SimControlPlane",
        }
    }

    /// Its API group.
    pub fn group(self) -> &'static str {
        match self {
            Self::SimMachine | Self::SimMachineTemplate => "infrastructure.cluster.x-k8s.io",
            Self::SimConfig | Self::SimConfigTemplate => "bootstrap.cluster.x-k8s.io",
            Self::SimControlPlane => "controlplane.cluster.x-k8s.io",
            _ => "cluster.x-k8s.io",
        }
    }

    pub(crate) fn resource(self) -> ApiResource {
        self.resource_of("v1beta2")
    }

    fn resource_of(self, version: &str) -> ApiResource {
        ApiResource::from_gvk(&GroupVersionKind::gvk(self.group(), version, self.as_str()))
    }

    pub(crate) fn api(self, client: &kube::Client, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(client.clone(), namespace, &self.resource())
    }

    /// Asks in the version that is served: the controllers of one release know both.
    async fn ask<T, F>(
        self,
        client: &kube::Client,
        namespace: &str,
        question: impl Fn(Api<DynamicObject>) -> F,
    ) -> Result<T, kube::Error>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        match question(self.api(client, namespace)).await {
            Err(error) if is_not_served(&error) => {
                let older = self.resource_of("v1beta1");
                question(Api::namespaced_with(client.clone(), namespace, &older)).await
            }
            answer => answer,
        }
    }
}

/// Whether the server does not know the version, as opposed to the object.
fn is_not_served(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => {
            status.code == 404 && status.details.as_ref().is_none_or(|details| details.name.is_empty())
        }
        _ => false,
    }
}

/// The version that a handle asks in, which is part of its address.
fn version_of(api: &Api<DynamicObject>) -> &str {
    api.resource_url().split('/').nth(3).unwrap_or("v1beta2")
}

/// The definition of a kind with only these versions served.
pub(super) fn serving(kind: Kind, versions: &[&str]) -> Value {
    let mut definition = definition(kind, &["v1beta2", "v1beta1"]);
    for version in definition["spec"]["versions"].as_array_mut().into_iter().flatten() {
        let served = version["name"].as_str().is_some_and(|name| versions.contains(&name));
        version["served"] = served.into();
    }
    definition
}

/// The definitions, in these versions, the first one stored.
pub fn definitions(versions: &[&str]) -> Vec<Value> {
    Kind::ALL.into_iter().map(|kind| definition(kind, versions)).collect()
}

fn definition(kind: Kind, versions: &[&str]) -> Value {
    let resource = kind.resource();
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let schema = json!({"type": "object", "properties": {"spec": any, "status": any}});
    let mut subresources = json!({"status": {}});
    if matches!(kind, Kind::MachineDeployment | Kind::MachineSet) {
        subresources["scale"] = json!({
            "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        });
    }
    let served = |(index, version): (usize, &&str)| {
        json!({
            "name": version, "served": true, "storage": index == 0, "subresources": subresources,
            "schema": {"openAPIV3Schema": schema},
        })
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{}.{}", resource.plural, kind.group()),
            "labels": {"cluster.x-k8s.io/v1beta2": "v1beta2"},
        },
        "spec": {
            "group": kind.group(), "scope": "Namespaced",
            "names": {
                "kind": kind.as_str(), "plural": resource.plural, "singular": kind.as_str().to_lowercase(),
                "listKind": format!("{}List", kind.as_str()),
            },
            "versions": versions.iter().enumerate().map(served).collect::<Vec<Value>>(),
        },
    })
}

/// A text at a pointer; empty if there is none.
pub(crate) fn text<'a>(object: &'a DynamicObject, pointer: &str) -> &'a str {
    object.data.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// A number at a pointer.
pub(crate) fn number(object: &DynamicObject, pointer: &str) -> i64 {
    object.data.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

/// A label; empty if there is none.
pub(crate) fn label<'a>(object: &'a DynamicObject, key: &str) -> &'a str {
    object.metadata.labels.as_ref().and_then(|labels| labels.get(key)).map(String::as_str).unwrap_or_default()
}

/// An annotation.
pub(crate) fn annotation<'a>(object: &'a DynamicObject, key: &str) -> Option<&'a str> {
    object.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The status of a condition; empty if there is none.
pub(crate) fn condition<'a>(object: &'a DynamicObject, kind: &str) -> &'a str {
    let conditions = object.data.pointer("/status/conditions").and_then(Value::as_array);
    let found = conditions.into_iter().flatten().find(|condition| condition["type"] == kind);
    found.and_then(|condition| condition["status"].as_str()).unwrap_or_default()
}

/// The conditions of an object with some of them set anew.
pub(crate) fn with_conditions(object: &DynamicObject, set: &[(&str, bool, &str, &str)]) -> Value {
    let mut conditions =
        object.data.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    for (kind, holds, reason, message) in set {
        conditions.retain(|condition| condition["type"] != *kind);
        conditions.push(json!({
            "type": kind, "status": if *holds { "True" } else { "False" }, "reason": reason, "message": message,
        }));
    }
    conditions.sort_by(|a, b| a["type"].as_str().cmp(&b["type"].as_str()));
    Value::Array(conditions)
}

/// Whether a controller leaves an object alone.
pub(crate) fn is_paused(object: &DynamicObject, cluster: Option<&DynamicObject>) -> bool {
    let annotated = |object: &DynamicObject| annotation(object, "cluster.x-k8s.io/paused").is_some();
    let paused = |cluster: &DynamicObject| {
        annotated(cluster) || cluster.data.pointer("/spec/paused") == Some(&Value::Bool(true))
    };
    annotated(object) || cluster.is_some_and(paused)
}

/// The owner that controls an object, if it is of this kind: its uid.
pub(crate) fn controller_of(object: &DynamicObject, kind: Kind) -> Option<&str> {
    let owners = object.metadata.owner_references.as_deref().unwrap_or_default();
    let owner = owners.iter().find(|owner| owner.controller == Some(true) && owner.kind == kind.as_str());
    owner.map(|owner| owner.uid.as_str())
}

/// That `owner` controls what carries this.
pub(crate) fn owned_by(kind: Kind, owner: &DynamicObject) -> Value {
    json!({
        "apiVersion": format!("{}/v1beta2", kind.group()), "kind": kind.as_str(),
        "name": owner.metadata.name, "uid": owner.metadata.uid, "controller": true, "blockOwnerDeletion": true,
    })
}

/// Merges into an object; one that is gone has nothing left to merge.
pub(crate) async fn patch(
    client: &kube::Client,
    kind: Kind,
    key: &ObjectKey,
    change: Value,
) -> Result<(), kube::Error> {
    let patch = &Patch::Merge(change);
    let name = &*key.name;
    let asked = kind.ask(client, &key.namespace, |api| async move {
        api.patch(name, &PatchParams::default(), patch).await
    });
    unless_gone(asked.await).map(drop)
}

/// Whether a MachineSet belongs to no MachineDeployment.
pub(crate) fn is_standalone(set: &DynamicObject) -> bool {
    controller_of(set, Kind::MachineDeployment).is_none()
}

/// Whether an object has this finalizer; one that has not gets it.
pub(crate) async fn keep(
    client: &kube::Client,
    kind: Kind,
    object: &DynamicObject,
    finalizer: &str,
) -> Result<bool, kube::Error> {
    if object.metadata.finalizers.iter().flatten().any(|found| found == finalizer) {
        return Ok(true);
    }
    patch(client, kind, &ObjectKey::of(object), json!({"metadata": {"finalizers": [finalizer]}})).await?;
    Ok(false)
}

/// Merges into an object's status, unless it is so already.
pub(crate) async fn patch_status(
    client: &kube::Client,
    kind: Kind,
    object: &DynamicObject,
    status: Value,
) -> Result<(), kube::Error> {
    let current = object.data.get("status").cloned().unwrap_or_default();
    let Value::Object(wanted) = &status else { return Ok(()) };
    if wanted.iter().all(|(key, value)| current.get(key).unwrap_or(&Value::Null) == value) {
        return Ok(());
    }
    let key = ObjectKey::of(object);
    let patch = &Patch::Merge(json!({"status": status}));
    let name = &*key.name;
    let asked = kind.ask(client, &key.namespace, |api| async move {
        api.patch_status(name, &PatchParams::default(), patch).await
    });
    unless_gone(asked.await).map(drop)
}

/// Creates an object; one of that name is as good.
pub(crate) async fn create(client: &kube::Client, kind: Kind, object: Value) -> Result<(), kube::Error> {
    let object: DynamicObject = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
    let namespace = object.metadata.namespace.clone().unwrap_or_default();
    let object = &object;
    let asked = kind.ask(client, &namespace, |api| async move {
        let mut object = object.clone();
        // It says which version it is in.
        if let Some(types) = &mut object.types {
            types.api_version = format!("{}/{}", kind.group(), version_of(&api));
        }
        api.create(&PostParams::default(), &object).await
    });
    match asked.await {
        Err(error) if code(&error) == 409 => Ok(()),
        other => other.map(drop),
    }
}

/// Deletes this object and no later one of its name.
pub(crate) async fn delete(
    client: &kube::Client,
    kind: Kind,
    object: &DynamicObject,
) -> Result<(), kube::Error> {
    let key = ObjectKey::of(object);
    let preconditions = Preconditions { uid: object.metadata.uid.clone(), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
    let (name, params) = (&*key.name, &params);
    let asked = kind.ask(client, &key.namespace, |api| async move { api.delete(name, params).await });
    match asked.await {
        Err(error) if code(&error) == 409 => Ok(()),
        other => unless_gone(other).map(drop),
    }
}
