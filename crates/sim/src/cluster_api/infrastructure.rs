//! The simulated infrastructure: what a template's machines have, how long they take, and how they fail.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use karpenter_runtime::object_key::ObjectKey;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use serde::Deserialize;
use serde_json::{Value, json};

use super::bootstrap::is_awaited;
use super::kinds::{Kind, annotation, is_paused, label, patch, patch_status, text};
use super::machines::UNINITIALIZED;
use super::misfortune::Misfortune;
use crate::actor::{Actor, Agenda, code, unless_gone};
use crate::cluster::Cluster;
use crate::objects::{Change, Objects, is_deleting};

const FINALIZER: &str = "simmachine.infrastructure.cluster.x-k8s.io";
/// How often a machine of a paused Cluster is looked at.
const AGAIN: Duration = Duration::from_secs(5);
/// How long a new template takes to say what its machines have.
const TELLS_AFTER: Duration = Duration::from_secs(5);
/// On infrastructure that does not go for as long as this stands on it.
pub(super) const STUCK: &str = "sim.karpenter.sh/stuck";

/// What a machine has and does: `spec` of a SimMachine, from its template.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Behaviour {
    /// Seconds until it has an id and is provisioned.
    provision_seconds: u64,
    /// Seconds until it has an id, if that is before it is provisioned.
    id_seconds: Option<u64>,
    /// Seconds from there until its Node joins.
    join_seconds: u64,
    /// Seconds it takes to be deleted.
    delete_seconds: u64,
    /// It is never provisioned.
    never: bool,
    /// Its Node never joins.
    never_joins: bool,
    /// After so many seconds it reports this reason and message for good.
    fails: Option<Fails>,
    /// How many machines of its template can exist at once.
    quota: Option<usize>,
    /// Capacity of the Node.
    capacity: Option<Value>,
    /// What of it pods may use, if that is not all.
    allocatable: Option<Value>,
    /// The failure domain that it is put into, whatever was asked for.
    placed_in: Option<String>,
    /// Further labels of the Node.
    node_labels: Option<Value>,
    /// The Node joins without the taint that Karpenter waits for.
    untainted: bool,
    /// The Node joins under an id that is not its machine's.
    joins_as_another: bool,
    /// A second Node joins under another name, as when a machine is renamed.
    joins_twice: bool,
    /// So many seconds after its Node joined it is dead, and nobody says so.
    dies_seconds: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Fails {
    seconds: u64,
    reason: String,
    message: String,
}

/// What is due for a machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Tell(ObjectKey),
    Look(ObjectKey),
    Identify(ObjectKey),
    Provision(ObjectKey),
    Fail(ObjectKey),
    Join(ObjectKey),
    Die(ObjectKey),
    Vanish(ObjectKey),
}

/// The infrastructure provider.
pub(super) struct Infrastructure {
    cluster: Cluster,
    client: kube::Client,
    misfortune: Misfortune,
}

impl Infrastructure {
    pub(super) fn new(cluster: &Cluster, misfortune: Misfortune) -> Self {
        Self { cluster: cluster.clone(), client: cluster.client(Self::NAME), misfortune }
    }

    fn machine(&self, key: &ObjectKey) -> Option<Arc<DynamicObject>> {
        self.cluster.read(|objects| objects.sim_machines.get(key).cloned())
    }

    /// Whether its Cluster is paused: its objects may be on the move then, and one that goes says nothing about the machine.
    fn is_paused(&self, machine: &DynamicObject) -> bool {
        let namespace = machine.metadata.namespace.as_deref().unwrap_or_default();
        let cluster = ObjectKey::namespaced(namespace, label(machine, "cluster.x-k8s.io/cluster-name"));
        self.cluster
            .read(|objects| is_paused(machine, objects.capi_clusters.get(&cluster).map(|found| &**found)))
    }

    /// Whether its Machine waits for bootstrap data.
    fn awaits_data(&self, name: &ObjectKey) -> bool {
        self.cluster.read(|objects| objects.machines.get(name).is_some_and(|machine| is_awaited(machine)))
    }

    /// Says what a template's machines have, where it is one that says so.
    async fn tell_capacity(&self, name: &ObjectKey) -> Result<(), kube::Error> {
        let template = self.cluster.read(|objects| objects.sim_machine_templates.get(name).cloned());
        let Some(template) = template.filter(|template| tells_capacity(template)) else { return Ok(()) };
        let capacity = template.data.pointer("/spec/template/spec/capacity").cloned();
        let status = json!({
            "capacity": capacity.unwrap_or_else(usual_capacity),
            "nodeInfo": {"architecture": "amd64", "operatingSystem": "linux"},
        });
        patch_status(&self.client, Kind::SimMachineTemplate, &template, status).await
    }

    async fn identify(&self, machine: &DynamicObject) -> Result<(), kube::Error> {
        let key = ObjectKey::of(machine);
        if text(machine, "/spec/providerID").is_empty() {
            let id = format!("sim://{}/{}", key.namespace, key.name);
            patch(&self.client, Kind::SimMachine, &key, json!({"spec": {"providerID": id}})).await?;
        }
        Ok(())
    }

    async fn provision(&self, machine: &DynamicObject) -> Result<(), kube::Error> {
        self.identify(machine).await?;
        let mut status = json!({"initialization": {"provisioned": true}});
        if let Some(domain) = behaviour(machine).placed_in {
            status["failureDomain"] = domain.into();
        }
        patch_status(&self.client, Kind::SimMachine, machine, status).await
    }

    async fn join(&self, machine: &DynamicObject, behaviour: &Behaviour) -> Result<(), kube::Error> {
        let key = ObjectKey::of(machine);
        let capacity = behaviour.capacity.clone().unwrap_or_else(usual_capacity);
        let mut labels = json!({
            "kubernetes.io/hostname": &*key.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        });
        // Where it was asked to be, unless it says where it is.
        let machine_of_it = self.cluster.read(|objects| objects.machines.get(&key).cloned());
        if let Some(domain) =
            machine_of_it.and_then(|found| found.data.pointer("/spec/failureDomain").cloned())
        {
            labels["topology.kubernetes.io/zone"] = domain;
        }
        super::deployments::merge(&mut labels, behaviour.node_labels.as_ref().unwrap_or(&Value::Null));
        // As bootstrap data has it: the first goes when Cluster API knows the Node.
        let mut taints = vec![json!({"key": UNINITIALIZED, "effect": "NoSchedule"})];
        if !behaviour.untainted {
            taints.push(json!({"key": "karpenter.sh/unregistered", "effect": "NoExecute"}));
        }
        let id = match behaviour.joins_as_another {
            true => format!("sim://elsewhere/{}", key.name),
            false => text(machine, "/spec/providerID").to_owned(),
        };
        let names = [key.name.to_string(), second_name(&key.name)];
        for name in names.iter().take(if behaviour.joins_twice { 2 } else { 1 }) {
            labels["kubernetes.io/hostname"] = name.as_str().into();
            let node = json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "labels": labels},
                "spec": {
                    "providerID": id,
                    "taints": taints,
                },
                "status": {"capacity": capacity, "allocatable": behaviour.allocatable.as_ref().unwrap_or(&capacity)},
            });
            let node: Node = serde_json::from_value(node).map_err(kube::Error::SerdeError)?;
            match Api::<Node>::all(self.client.clone()).create(&PostParams::default(), &node).await {
                Err(error) if code(&error) == 409 => {}
                other => drop(other?),
            }
        }
        Ok(())
    }

    async fn vanish(&self, machine: &DynamicObject) -> Result<(), kube::Error> {
        let key = ObjectKey::of(machine);
        // A machine that is gone has no kubelet; its Node goes with the Machine, or by whoever notices.
        self.cluster.set_kubelet(&key.name, false);
        let behaviour = behaviour(machine);
        if behaviour.joins_twice || behaviour.joins_as_another {
            // Cluster API does not know them; whoever sees to the cloud's Nodes does.
            let nodes: Api<Node> = Api::all(self.client.clone());
            for name in [key.name.to_string(), second_name(&key.name)] {
                self.cluster.set_kubelet(&name, false);
                unless_gone(nodes.delete(&name, &DeleteParams::default()).await)?;
            }
        }
        let without = json!({"metadata": {"finalizers": null}});
        patch(&self.client, Kind::SimMachine, &key, without).await
    }

    /// How many machines of the same template were made before this one.
    fn earlier(&self, machine: &DynamicObject) -> usize {
        let template = |machine: &DynamicObject| {
            let annotations = machine.metadata.annotations.as_ref();
            annotations.and_then(|a| a.get("cluster.x-k8s.io/cloned-from-name").cloned()).unwrap_or_default()
        };
        let age = |machine: &DynamicObject| {
            (machine.metadata.creation_timestamp.clone(), machine.metadata.name.clone())
        };
        self.cluster.read(|objects| {
            let others = objects.sim_machines.values();
            others.filter(|other| template(other) == template(machine) && age(other) < age(machine)).count()
        })
    }
}

/// The name that a machine joins under the second time.
pub(super) fn second_name(name: &str) -> String {
    format!("{name}-again")
}

fn usual_capacity() -> Value {
    json!({"cpu": "4", "memory": "16Gi", "pods": "110"})
}

/// Whether a template's status is to say what its machines have.
fn tells_capacity(template: &DynamicObject) -> bool {
    template.data.pointer("/spec/template/spec/tellsCapacity") == Some(&Value::Bool(true))
}

fn is_provisioned(machine: &DynamicObject) -> bool {
    machine.data.pointer("/status/initialization/provisioned") == Some(&Value::Bool(true))
}

fn behaviour(machine: &DynamicObject) -> Behaviour {
    let spec = machine.data.get("spec").cloned().unwrap_or_default();
    serde_json::from_value(spec).unwrap_or_default()
}

impl Actor for Infrastructure {
    type Key = Key;
    const NAME: &'static str = "infrastructure";

    fn observe(&mut self, change: &Change, _: &Objects, agenda: &mut Agenda<Key>) {
        if let Change::SimMachine(edit) = change
            && edit.new.is_some()
        {
            agenda.now(Key::Look(edit.key.clone()));
        }
        if let Change::SimMachineTemplate(edit) = change
            && edit.old.is_none()
        {
            agenda.after(Key::Tell(edit.key.clone()), TELLS_AFTER);
        }
    }

    async fn act(&mut self, key: &Key, agenda: &mut Agenda<Key>) -> Result<(), kube::Error> {
        if let Key::Tell(name) = key {
            return self.tell_capacity(name).await;
        }
        let (Key::Tell(name)
        | Key::Look(name)
        | Key::Identify(name)
        | Key::Provision(name)
        | Key::Fail(name)
        | Key::Join(name)
        | Key::Die(name)
        | Key::Vanish(name)) = key;
        let Some(machine) = self.machine(name) else { return Ok(()) };
        // What runs joins and dies by itself, whatever becomes of its object.
        if !matches!(key, Key::Join(_) | Key::Die(_)) && self.is_paused(&machine) {
            agenda.after(key.clone(), AGAIN);
            return Ok(());
        }
        // Without data to join with there is nothing to start.
        if matches!(key, Key::Identify(_) | Key::Provision(_)) && self.awaits_data(name) {
            agenda.after(key.clone(), AGAIN);
            return Ok(());
        }
        let behaviour = behaviour(&machine);
        let later = |agenda: &mut Agenda<Key>, key: Key, seconds: u64| {
            if !agenda.has(&key) {
                agenda.after(key, Duration::from_secs(seconds));
            }
        };
        let deleting = is_deleting(&*machine);
        match key {
            Key::Look(_) if deleting => later(agenda, Key::Vanish(name.clone()), behaviour.delete_seconds),
            Key::Look(_) => {
                if machine.metadata.finalizers.as_ref().is_none_or(Vec::is_empty) {
                    // What becomes of it is decided at its birth, and stands in it.
                    let change =
                        json!({"metadata": {"finalizers": [FINALIZER]}, "spec": self.misfortune.draw()});
                    return patch(&self.client, Kind::SimMachine, name, change).await;
                }
                let full = behaviour.quota.is_some_and(|quota| self.earlier(&machine) >= quota);
                if full && text(&machine, "/status/failureReason").is_empty() {
                    let status =
                        json!({"failureReason": "InsufficientResources", "failureMessage": "quota exceeded"});
                    return patch_status(&self.client, Kind::SimMachine, &machine, status).await;
                }
                if let Some(fails) = &behaviour.fails {
                    later(agenda, Key::Fail(name.clone()), fails.seconds);
                } else if !behaviour.never && !full && !is_provisioned(&machine) {
                    later(agenda, Key::Provision(name.clone()), behaviour.provision_seconds);
                    if let Some(seconds) = behaviour.id_seconds {
                        later(agenda, Key::Identify(name.clone()), seconds);
                    }
                } else if is_provisioned(&machine)
                    && !behaviour.never_joins
                    && machine.data.pointer("/status/joined").is_none()
                {
                    later(agenda, Key::Join(name.clone()), behaviour.join_seconds);
                }
            }
            Key::Identify(_) if !deleting => self.identify(&machine).await?,
            Key::Provision(_) if !deleting => self.provision(&machine).await?,
            Key::Join(_) if !deleting => {
                self.join(&machine, &behaviour).await?;
                patch_status(&self.client, Kind::SimMachine, &machine, json!({"joined": true})).await?;
                if let Some(seconds) = behaviour.dies_seconds {
                    later(agenda, Key::Die(name.clone()), seconds);
                }
            }
            Key::Fail(_) if !deleting => {
                let fails = behaviour.fails.unwrap_or_default();
                let status = json!({"failureReason": fails.reason, "failureMessage": fails.message});
                patch_status(&self.client, Kind::SimMachine, &machine, status).await?;
            }
            // Its Node stays behind.
            Key::Die(_) => self.cluster.set_kubelet(&name.name, false),
            // It looks again when somebody has put it right.
            Key::Vanish(_) if annotation(&machine, STUCK).is_some() => {}
            Key::Vanish(_) if deleting => self.vanish(&machine).await?,
            Key::Tell(_)
            | Key::Identify(_)
            | Key::Provision(_)
            | Key::Join(_)
            | Key::Fail(_)
            | Key::Vanish(_) => {}
        }
        Ok(())
    }
}
