//! What runs inside the machines: a guest boots once its machine runs, reads its user data and joins the cluster as a Node
//! of the machine's name. A cloud controller manager, where there is one, names it by provider id and takes its Node away
//! when the machine is gone; elsewhere kubelet names it, or nobody does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeSpec, NodeStatus, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::CloudStack;
use super::guest_data::GuestData;
use crate::actor::{code, unless_gone};
use crate::chance::{Chance, Span};
use crate::cluster::Cluster;

/// Kept on a Node until the cloud controller manager has seen it.
pub const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// The longest time between two looks at the cloud.
const LOOK: Duration = Duration::from_secs(1);
/// What a kernel keeps of the memory.
const KERNEL_PERCENT: i64 = 3;
/// What a file system and the partitions beside it keep of their disk.
const FILE_SYSTEM_PERCENT: i64 = 4;

/// Who gives a Node its provider id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedBy {
    /// The cloud controller manager, some time after it has joined, with labels and addresses.
    CloudControllerManager(Span),
    /// Its kubelet, as Cluster API's images do it.
    Kubelet,
    /// Nobody.
    Nobody,
    /// Nobody, and its kubelet waits for a cloud controller manager, even for its own address.
    Awaited,
}

/// How guests behave.
#[derive(Clone, Copy, Debug)]
pub struct GuestOptions {
    /// From a running machine to its Node.
    pub boot: Span,
    /// Who names Nodes.
    pub named_by: NamedBy,
    /// How likely it is that a machine never joins.
    pub stillborn: f64,
    /// How long after a machine has gone the cloud controller manager deletes its Node.
    pub node_deletion: Span,
}

impl Default for GuestOptions {
    fn default() -> Self {
        Self {
            boot: Span::secs(15, 40),
            named_by: NamedBy::CloudControllerManager(Span::secs(1, 5)),
            stillborn: 0.0,
            node_deletion: Span::secs(5, 60),
        }
    }
}

/// The guests of all machines of a cloud. They end when dropped.
pub struct Guests {
    task: JoinHandle<()>,
    options: Arc<Mutex<GuestOptions>>,
    problems: Arc<Mutex<Vec<String>>>,
}

impl Drop for Guests {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Guests {
    /// Lets the machines of a cloud join a cluster.
    pub fn of(cloud: &CloudStack, cluster: &Cluster, options: GuestOptions) -> Self {
        let options = Arc::new(Mutex::new(options));
        let problems = Arc::new(Mutex::default());
        let mut house = House {
            cloud: cloud.clone(),
            cluster: cluster.clone(),
            client: cluster.client("guest"),
            chance: Chance::new(cluster.entropy(), "cloudstack/guests"),
            options: Arc::clone(&options),
            problems: Arc::clone(&problems),
            guests: BTreeMap::new(),
        };
        let task = tokio::spawn(async move {
            loop {
                let pause = house.look().await;
                tokio::time::sleep(pause).await;
            }
        });
        Self { task, options, problems }
    }

    /// Changes how guests behave that boot from now on.
    pub fn behave(&self, change: impl FnOnce(&mut GuestOptions)) {
        change(&mut self.options.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// What guests could make nothing of.
    pub fn problems(&self) -> Vec<String> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A machine as its guest sees it.
#[derive(Clone, Debug)]
struct Inside {
    id: String,
    name: String,
    running: bool,
    cpu: i64,
    memory_mib: i64,
    disk_gb: i64,
    gpus: i64,
    address: String,
    zone: String,
    offering: String,
    arch: &'static str,
}

impl CloudStack {
    /// The machines that are there, as their guests see them.
    fn insides(&self) -> Vec<Inside> {
        let state = self.state();
        let name = |list: &[serde_json::Value], id: &str| {
            super::State::by_id(list, id)
                .and_then(|entry| entry["name"].as_str())
                .unwrap_or_default()
                .to_owned()
        };
        let there =
            state.machines.values().filter(|machine| !matches!(machine.state, "Destroyed" | "Expunging"));
        let roots = state.volumes.iter().filter(|disk| disk.root);
        let roots: BTreeMap<u64, i64> =
            roots.filter_map(|disk| Some((disk.machine?, disk.size_bytes))).collect();
        there
            .map(|machine| {
                let template = super::State::by_id(&state.templates, &machine.template);
                let arm = template.is_some_and(|template| template["arch"] == "aarch64");
                Inside {
                    id: machine.id.clone(),
                    name: machine.name.clone(),
                    // What the server does not see goes on all the same.
                    running: matches!(machine.state, "Running" | "Unknown"),
                    cpu: machine.cpu,
                    memory_mib: machine.memory,
                    disk_gb: roots.get(&machine.number).map_or(1, |bytes| (bytes >> 30).max(1)),
                    gpus: machine.gpus,
                    address: machine.nics.first().map(|nic| nic.address.clone()).unwrap_or_default(),
                    zone: name(&state.zones, &machine.zone),
                    offering: name(&state.offerings, &machine.offering),
                    arch: if arm { "arm64" } else { "amd64" },
                }
            })
            .collect()
    }

    /// What a machine is told when it boots.
    fn user_data_of(&self, id: &str) -> Option<String> {
        self.state().machine(id)?.user_data.clone()
    }
}

/// How far a guest is.
#[derive(Clone, Debug)]
struct Guest {
    name: String,
    stage: Stage,
    /// Whether its machine ran at the last look.
    running: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// Will join then.
    Boots(Instant),
    /// Never will.
    Stillborn,
    /// Has joined; the cloud controller manager will see it then.
    Joined(Instant),
    /// Is known by its id.
    Named,
    /// Its machine is gone, its Node will be then.
    Leaves(Instant),
}

/// Where the guests live.
struct House {
    cloud: CloudStack,
    cluster: Cluster,
    client: kube::Client,
    chance: Chance,
    options: Arc<Mutex<GuestOptions>>,
    problems: Arc<Mutex<Vec<String>>>,
    guests: BTreeMap<String, Guest>,
}

impl House {
    fn options(&self) -> GuestOptions {
        *self.options.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does everything that is due; gives back how long nothing will be.
    async fn look(&mut self) -> Duration {
        let insides = self.cloud.insides();
        let there: BTreeSet<&str> = insides.iter().map(|inside| inside.id.as_str()).collect();
        let gone: Vec<String> =
            self.guests.keys().filter(|id| !there.contains(id.as_str())).cloned().collect();
        for id in gone {
            self.leave(&id).await;
        }
        for inside in &insides {
            self.visit(inside).await;
        }
        let now = Instant::now();
        let due = self.guests.values().filter_map(|guest| match guest.stage {
            Stage::Boots(at) | Stage::Joined(at) | Stage::Leaves(at)
                if guest.running || matches!(guest.stage, Stage::Leaves(_)) =>
            {
                Some(at)
            }
            _ => None,
        });
        let next = due.filter(|at| *at > now).min().map_or(LOOK, |at| at - now);
        let step = self
            .cloud
            .next_event()
            .map(|at| Duration::try_from(at.duration_since(self.cluster.now())).unwrap_or_default());
        next.min(step.unwrap_or(LOOK)).clamp(Duration::from_millis(50), LOOK)
    }

    async fn visit(&mut self, inside: &Inside) {
        let options = self.options();
        let now = Instant::now();
        if !self.guests.contains_key(&inside.id) {
            if !inside.running {
                return;
            }
            let boots = now + self.chance.duration(&options.boot);
            let stage =
                if self.chance.happens(options.stillborn) { Stage::Stillborn } else { Stage::Boots(boots) };
            self.guests.insert(inside.id.clone(), Guest { name: inside.name.clone(), stage, running: true });
            return;
        }
        let Some(guest) = self.guests.get_mut(&inside.id) else { return };
        if guest.running != inside.running {
            guest.running = inside.running;
            match guest.stage {
                Stage::Boots(_) if inside.running => {
                    guest.stage = Stage::Boots(now + self.chance.duration(&options.boot));
                }
                Stage::Joined(_) | Stage::Named => self.cluster.set_kubelet(&inside.name, inside.running),
                _ => {}
            }
        }
        if !inside.running {
            return;
        }
        let stage = self.guests.get(&inside.id).map(|guest| guest.stage);
        let next = match stage {
            Some(Stage::Boots(at)) if at <= now => match self.join(inside, &options).await {
                true => match options.named_by {
                    NamedBy::CloudControllerManager(span) => {
                        Some(Stage::Joined(now + self.chance.duration(&span)))
                    }
                    _ => Some(Stage::Named),
                },
                false => Some(Stage::Boots(now + Duration::from_secs(10))),
            },
            Some(Stage::Joined(at)) if at <= now => {
                let named = self.introduce(inside).await;
                Some(if named { Stage::Named } else { Stage::Joined(now + Duration::from_secs(2)) })
            }
            _ => None,
        };
        if let (Some(next), Some(guest)) = (next, self.guests.get_mut(&inside.id)) {
            guest.stage = next;
        }
    }

    /// Makes the Node; whether there is one now that is this guest's.
    async fn join(&self, inside: &Inside, options: &GuestOptions) -> bool {
        let data = match self.cloud.user_data_of(&inside.id).map(|data| GuestData::read(&data, &inside.id)) {
            None => GuestData::default(),
            Some(Ok(data)) => data,
            Some(Err(problem)) => {
                let text = format!("{}: {problem}", inside.name);
                let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
                if !problems.contains(&text) {
                    problems.push(text);
                }
                return false;
            }
        };
        let nodes: Api<Node> = Api::all(self.client.clone());
        match nodes.create(&PostParams::default(), &node(inside, &data, options)).await {
            Ok(_) => {
                self.cluster.set_kubelet(&inside.name, true);
                true
            }
            // Another machine has taken the name.
            Err(error) if code(&error) == 409 => false,
            Err(error) => {
                tracing::error!(machine = inside.name, %error, "a guest cannot join");
                false
            }
        }
    }

    /// What the cloud controller manager does with a new Node.
    async fn introduce(&self, inside: &Inside) -> bool {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let Ok(node) = nodes.get(&inside.name).await else { return true };
        let taints: Vec<Taint> = node
            .spec
            .and_then(|spec| spec.taints)
            .unwrap_or_default()
            .into_iter()
            .filter(|taint| taint.key != UNINITIALIZED)
            .collect();
        let patch = json!({
            "metadata": {"resourceVersion": node.metadata.resource_version, "labels": {
                "topology.kubernetes.io/zone": inside.zone,
                "topology.kubernetes.io/region": inside.zone,
                "node.kubernetes.io/instance-type": without_odd_characters(&inside.offering),
            }},
            "spec": {"providerID": format!("external-cloudstack://{}", inside.id), "taints": taints},
        });
        let written = nodes.patch(&inside.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        unless_gone(written).is_ok()
    }

    async fn leave(&mut self, id: &str) {
        let options = self.options();
        let now = Instant::now();
        let Some(guest) = self.guests.get_mut(id) else { return };
        let name = guest.name.clone();
        match guest.stage {
            Stage::Joined(_) | Stage::Named => {
                self.cluster.set_kubelet(&name, false);
                guest.running = false;
                guest.stage = Stage::Leaves(now + self.chance.duration(&options.node_deletion));
            }
            Stage::Leaves(at) if at <= now => {
                self.guests.remove(id);
                if matches!(options.named_by, NamedBy::CloudControllerManager(_)) {
                    let nodes: Api<Node> = Api::all(self.client.clone());
                    let ours = nodes.get_opt(&name).await.ok().flatten().is_some_and(|node| {
                        node.spec.and_then(|spec| spec.provider_id).is_some_and(|named| named.ends_with(id))
                    });
                    if ours {
                        // Gone by itself is gone.
                        let _ = nodes.delete(&name, &DeleteParams::default()).await;
                    }
                }
            }
            Stage::Leaves(_) => {}
            Stage::Boots(_) | Stage::Stillborn => drop(self.guests.remove(id)),
        }
    }
}

/// A name as the cloud controller manager makes a label of it: what may not stand there is left out.
fn without_odd_characters(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).collect()
}

fn node(inside: &Inside, data: &GuestData, options: &GuestOptions) -> Node {
    let memory_mib = inside.memory_mib - inside.memory_mib * KERNEL_PERCENT / 100;
    // The file system keeps some of its disk to itself.
    let disk_kib = (inside.disk_gb << 20) * (100 - FILE_SYSTEM_PERCENT) / 100;
    let pods = data.max_pods.unwrap_or(110);
    let mut capacity: BTreeMap<String, Quantity> = [
        ("cpu", inside.cpu.to_string()),
        ("memory", format!("{memory_mib}Mi")),
        ("pods", pods.to_string()),
        ("ephemeral-storage", format!("{disk_kib}Ki")),
    ]
    .map(|(name, amount)| (name.to_owned(), Quantity(amount)))
    .into();
    if inside.gpus > 0 {
        capacity.insert("nvidia.com/gpu".to_owned(), Quantity(inside.gpus.to_string()));
    }
    let mut allocatable = capacity.clone();
    // Kubelet's own thresholds for evictions.
    allocatable.insert("memory".to_owned(), Quantity(format!("{}Mi", memory_mib - 100)));
    allocatable.insert("ephemeral-storage".to_owned(), Quantity(format!("{}Ki", disk_kib * 9 / 10)));
    let mut labels: BTreeMap<String, String> = [
        ("kubernetes.io/hostname", inside.name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", inside.arch),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    labels.extend(data.labels.iter().cloned());
    let mut taints = data.taints.clone();
    let mut provider_id = data.provider_id.clone();
    match options.named_by {
        NamedBy::CloudControllerManager(_) | NamedBy::Awaited => taints.push(Taint {
            key: UNINITIALIZED.to_owned(),
            value: Some("true".to_owned()),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        }),
        NamedBy::Kubelet => {
            provider_id.get_or_insert_with(|| format!("cloudstack:///{}", inside.id));
        }
        NamedBy::Nobody => {}
    }
    let mut addresses = Vec::new();
    if options.named_by != NamedBy::Awaited {
        addresses.push(NodeAddress { type_: "InternalIP".to_owned(), address: inside.address.clone() });
    }
    addresses.push(NodeAddress { type_: "Hostname".to_owned(), address: inside.name.clone() });
    Node {
        metadata: ObjectMeta {
            name: Some(inside.name.clone()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id,
            taints: Some(taints).filter(|taints| !taints.is_empty()),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            capacity: Some(capacity),
            allocatable: Some(allocatable),
            addresses: Some(addresses),
            ..NodeStatus::default()
        }),
    }
}
