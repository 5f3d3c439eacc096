//! A cloud that sells machines: slow, short of capacity, forgetful and eventually consistent, as the seed decides.
//!
//! A provider is written against a [`CloudHandle`], which knows nothing of Karpenter. A machine that comes up makes its Node;
//! one that goes takes its kubelet with it, and some time later the cloud's node controller deletes the Node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeSpec, NodeStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::actor::unless_gone;
use crate::chance::{Chance, Span};
use crate::cluster::Cluster;
use crate::gate::Gate;
use crate::invariants::Asked;
use crate::inventory::{Instance, InstanceId, InstanceState, Launch, NodeTemplate};

/// How the cloud behaves when nothing is wrong with it.
#[derive(Clone, Debug)]
pub struct CloudOptions {
    /// How long a call takes.
    pub call: Span,
    /// From launch to the Node's creation.
    pub boot: Span,
    /// From the order to go to being gone.
    pub shutdown: Span,
    /// How long lists lag behind launches and removals.
    pub list_lag: Span,
    /// Whether two launches with one token are one.
    pub honours_tokens: bool,
    /// How long after a machine has gone its Node is deleted; never, if `None`.
    pub node_deletion: Option<Span>,
    /// What goes wrong.
    pub faults: CloudFaults,
}

impl Default for CloudOptions {
    fn default() -> Self {
        Self {
            call: Span::millis(50, 1500),
            boot: Span::secs(10, 60),
            shutdown: Span::secs(5, 40),
            list_lag: Span::NONE,
            honours_tokens: true,
            node_deletion: Some(Span::secs(5, 60)),
            faults: CloudFaults::default(),
        }
    }
}

/// How likely it is that something goes wrong, per call or machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CloudFaults {
    /// An offering runs dry for some minutes.
    pub no_capacity: f64,
    /// A call is refused: too many.
    pub throttled: f64,
    /// A call fails, having done nothing.
    pub unavailable: f64,
    /// A call fails, having done what was asked.
    pub lost_reply: f64,
    /// A machine disappears by itself.
    pub vanish: f64,
    /// A machine never comes up.
    pub stillborn: f64,
    /// A call takes very long.
    pub slow: f64,
    /// A list leaves out what it likes, or everything, and says nothing about it.
    pub forgetful_list: f64,
    /// A machine makes its Node, and its kubelet never says that it is ready.
    pub never_ready: f64,
}

impl CloudFaults {
    /// Each kind there or not, and more or less likely, as the seed decides.
    pub fn swarm(chance: &mut Chance) -> Self {
        let mut draw = || {
            if chance.happens(0.5) {
                [0.01, 0.05, 0.2][usize::try_from(chance.below(3)).unwrap_or(0)]
            } else {
                0.0
            }
        };
        Self {
            no_capacity: draw(),
            throttled: draw(),
            unavailable: draw(),
            lost_reply: draw(),
            vanish: draw() / 2.0,
            stillborn: draw() / 2.0,
            slow: draw(),
            forgetful_list: draw(),
            never_ready: draw() / 2.0,
        }
    }
}

/// What the cloud answers instead of what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloudError {
    /// There is no such machine to be had now; another size, zone or kind may do.
    #[error("no capacity for {instance_type} ({capacity_type}) in {zone}")]
    NoCapacity {
        /// The size.
        instance_type: String,
        /// The zone.
        zone: String,
        /// The capacity type.
        capacity_type: String,
    },
    /// There is no such machine, or no more.
    #[error("instance {0} not found")]
    NotFound(InstanceId),
    /// Nothing was done; later it may be.
    #[error("too many requests")]
    Throttled,
    /// Nothing was done; later it may be.
    #[error("the cloud is unavailable")]
    Unavailable,
    /// What was asked for may or may not have been done.
    #[error("no answer in time")]
    TimedOut,
}

type Offering = (String, String, String);

/// The cloud. Clones are handles to the same one.
#[derive(Clone)]
pub struct Cloud {
    cluster: Cluster,
    client: kube::Client,
    state: Arc<Mutex<State>>,
}

struct State {
    options: CloudOptions,
    chance: Chance,
    healed: bool,
    dry: BTreeMap<Offering, Timestamp>,
    /// Restarts that were asked for, by operation.
    reboots: BTreeSet<String>,
    /// What is drawn about kubelets: a stream of its own, so that other draws stay what they were without it.
    kubelets: Chance,
    /// Machines whose kubelets have never spoken.
    mute: BTreeSet<InstanceId>,
}

/// What a kubelet says about its node; everything else somebody else has said.
const KUBELET_CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

impl State {
    fn draw(&mut self, span: impl Fn(&CloudOptions) -> Span) -> Duration {
        let span = span(&self.options);
        self.chance.duration(&span)
    }

    fn strikes(&mut self, rate: impl Fn(&CloudFaults) -> f64) -> bool {
        let rate = if self.healed { 0.0 } else { rate(&self.options.faults) };
        // Drawn even when healed, so that healing does not shift what follows.
        self.chance.happens(rate)
    }

    /// Whether the kubelet of a machine that comes up now never speaks.
    fn is_mute(&mut self) -> bool {
        let rate = if self.healed { 0.0 } else { self.options.faults.never_ready };
        self.kubelets.happens(rate)
    }

    /// Leaves all, or some, out of a list if that was drawn; how many.
    fn forget(&mut self, list: &mut Vec<Instance>) -> usize {
        let before = list.len();
        if self.strikes(|faults| faults.forgetful_list) {
            let all = self.chance.happens(0.5);
            list.retain(|_| !all && self.chance.happens(0.5));
        }
        before - list.len()
    }
}

impl Cloud {
    /// A cloud without machines.
    pub fn new(cluster: &Cluster, options: CloudOptions) -> Self {
        let chance = Chance::new(cluster.entropy(), "cloud");
        let state = State {
            options,
            chance,
            healed: false,
            dry: BTreeMap::new(),
            reboots: BTreeSet::new(),
            kubelets: Chance::new(cluster.entropy(), "cloud/kubelets"),
            mute: BTreeSet::new(),
        };
        Self { cluster: cluster.clone(), client: cluster.client("cloud"), state: Arc::new(Mutex::new(state)) }
    }

    /// For a caller that nothing happens to.
    pub fn handle(&self, caller: &str) -> CloudHandle {
        self.handle_behind(caller, Gate::default())
    }

    /// For a process that may be killed.
    pub(crate) fn handle_behind(&self, caller: &str, gate: Gate) -> CloudHandle {
        CloudHandle { cloud: self.clone(), caller: caller.into(), gate }
    }

    /// From now on nothing goes wrong any more; kubelets that never spoke do.
    pub fn heal(&self) {
        let mute = {
            let mut state = self.lock();
            state.healed = true;
            state.dry.clear();
            std::mem::take(&mut state.mute)
        };
        let is_there =
            |instance: &&Instance| matches!(instance.state, InstanceState::Booting | InstanceState::Running);
        let nodes: Vec<String> = self.cluster.inventory(|inventory| {
            let machines = mute.iter().filter_map(|id| inventory.get(id)).filter(is_there);
            machines.map(|instance| instance.node_name.clone()).collect()
        });
        for node in nodes {
            self.cluster.set_kubelet(&node, true);
        }
    }

    /// Sells no more machines of an offering for a while.
    pub fn run_dry(&self, instance_type: &str, zone: &str, capacity_type: &str, period: Duration) {
        let until = later(self.cluster.now(), period);
        self.lock().dry.insert((instance_type.to_owned(), zone.to_owned(), capacity_type.to_owned()), until);
    }

    /// A machine is gone, without anyone having asked.
    pub fn vanish(&self, id: &InstanceId) {
        self.terminate(id, "vanishes");
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why an offering cannot be had, if it cannot.
    fn shortage(&self, launch: &Launch) -> Option<CloudError> {
        let now = self.cluster.now();
        let offering = (launch.instance_type.clone(), launch.zone.clone(), launch.capacity_type.clone());
        let mut state = self.lock();
        if state.strikes(|faults| faults.no_capacity) {
            let period = state.chance.duration(&Span::secs(60, 600));
            state.dry.insert(offering.clone(), later(now, period));
        }
        state.dry.retain(|_, until| *until > now);
        let (instance_type, zone, capacity_type) = offering.clone();
        state.dry.contains_key(&offering).then_some(CloudError::NoCapacity {
            instance_type,
            zone,
            capacity_type,
        })
    }

    /// Buys a machine and lets it boot.
    fn buy(&self, caller: &Arc<str>, launch: Launch) -> Instance {
        let now = self.cluster.now();
        let (id, lag, boot, stillborn, vanishes) = {
            let mut state = self.lock();
            let id = InstanceId(format!("i-{:016x}", state.chance.below(u64::MAX)));
            let lag = state.draw(|options| options.list_lag);
            let boot = state.draw(|options| options.boot);
            let stillborn = state.strikes(|faults| faults.stillborn);
            let vanishes = state.strikes(|faults| faults.vanish);
            let after = state.chance.duration(&Span::secs(5, 900));
            (id, lag, boot, stillborn, vanishes.then_some(after))
        };
        let instance = Instance {
            provider_id: format!("sim:///{}/{id}", launch.zone),
            node_name: format!("node-{id}"),
            id: id.clone(),
            state: InstanceState::Booting,
            launch,
            launched_at: now,
            terminated_at: None,
            listed_from: later(now, lag),
            listed_until: None,
        };
        let bought = instance.clone();
        self.cluster.change_inventory(caller, format!("cloud: launch {id}"), |inventory| {
            inventory.insert(bought);
            ((), if stillborn { "stillborn" } else { "launched" }.to_owned())
        });
        if !stillborn {
            let (cloud, id) = (self.clone(), id.clone());
            tokio::spawn(async move {
                tokio::time::sleep(boot).await;
                cloud.come_up(&id).await;
            });
        }
        if let Some(after) = vanishes {
            let cloud = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                let healed = cloud.lock().healed;
                if !healed {
                    cloud.vanish(&id);
                }
            });
        }
        instance
    }

    async fn come_up(&self, id: &InstanceId) {
        let instance = self.cluster.inventory(|inventory| inventory.get(id).cloned());
        let Some(instance) = instance.filter(|instance| instance.state == InstanceState::Booting) else {
            return;
        };
        let mute = self.lock().is_mute();
        if mute {
            self.lock().mute.insert(id.clone());
            self.cluster.set_kubelet(&instance.node_name, false);
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        if let Err(error) = nodes.create(&PostParams::default(), &node_of(&instance)).await {
            tracing::error!(%id, %error, "a machine could not make its node");
            return;
        }
        self.cluster.change_inventory(&"cloud".into(), format!("cloud: boot {id}"), |inventory| {
            if let Some(instance) = inventory.get_mut(id).filter(|i| i.state == InstanceState::Booting) {
                instance.state = InstanceState::Running;
            }
            ((), if mute { "running, and never ready" } else { "running" }.to_owned())
        });
    }

    /// The machine is away for a while; what was wrong with it is forgotten.
    async fn restart(&self, id: &InstanceId, boot: &str) {
        let node = self.cluster.inventory(|inventory| inventory.get(id).map(|i| i.node_name.clone()));
        let Some(node) = node else { return };
        self.cluster.set_kubelet(&node, false);
        let away = self.lock().chance.duration(&Span::secs(15, 90));
        tokio::time::sleep(away).await;
        let is_there = self.cluster.inventory(|inventory| {
            inventory.get(id).is_some_and(|instance| instance.state == InstanceState::Running)
        });
        if !is_there {
            return;
        }
        let conditions: Vec<NodeCondition> = self.cluster.read(|objects| {
            let status = objects.node(&node).and_then(|node| node.status.as_ref());
            let all = status.and_then(|status| status.conditions.clone()).unwrap_or_default();
            all.into_iter()
                .filter(|condition| KUBELET_CONDITIONS.contains(&condition.type_.as_str()))
                .collect()
        });
        let status = json!({"status": {"nodeInfo": {"bootID": boot}, "conditions": conditions}});
        let nodes: Api<Node> = Api::all(self.client.clone());
        let written = nodes.patch_status(&node, &PatchParams::default(), &Patch::Merge(status)).await;
        if let Err(error) = unless_gone(written) {
            tracing::error!(node, %error, "a machine came back and could not say so");
        }
        self.cluster.set_kubelet(&node, true);
    }

    /// The machine is gone: its kubelet falls silent, and its Node is deleted some time later.
    fn terminate(&self, id: &InstanceId, how: &str) {
        let now = self.cluster.now();
        let (lag, deletion) = {
            let mut state = self.lock();
            let lag = state.draw(|options| options.list_lag);
            let span = state.options.node_deletion;
            (lag, span.map(|span| state.chance.duration(&span)))
        };
        let node =
            self.cluster.change_inventory(&"cloud".into(), format!("cloud: {id} {how}"), |inventory| {
                match inventory.get_mut(id).filter(|instance| instance.state.is_live()) {
                    Some(instance) => {
                        instance.state = InstanceState::Terminated;
                        instance.terminated_at = Some(now);
                        instance.listed_until = Some(later(now, lag));
                        (Some(instance.node_name.clone()), "terminated".to_owned())
                    }
                    None => (None, "gone already".to_owned()),
                }
            });
        let Some(node) = node else { return };
        self.cluster.set_kubelet(&node, false);
        if let Some(deletion) = deletion {
            let nodes: Api<Node> = Api::all(self.client.clone());
            tokio::spawn(async move {
                tokio::time::sleep(deletion).await;
                if let Err(error) = unless_gone(nodes.delete(&node, &DeleteParams::default()).await) {
                    tracing::error!(node, %error, "the node of a machine that is gone could not be deleted");
                }
            });
        }
    }
}

/// One caller's way to the cloud.
#[derive(Clone)]
pub struct CloudHandle {
    cloud: Cloud,
    caller: Arc<str>,
    gate: Gate,
}

impl CloudHandle {
    /// Launches a machine.
    ///
    /// # Errors
    ///
    /// No capacity, or any of the failures calls have.
    pub async fn launch(&self, launch: Launch) -> Result<Instance, CloudError> {
        let Launch { claim_uid, instance_type, zone, capacity_type, .. } = &launch;
        let deed =
            format!("cloud: asked to launch {instance_type} {capacity_type} in {zone} for {claim_uid}");
        self.ask(deed, &Asked::Launch { claim_uid: claim_uid.clone() }).await;
        self.arrive().await?;
        let cluster = &self.cloud.cluster;
        let honours = self.cloud.lock().options.honours_tokens;
        let known = cluster.inventory(|inventory| {
            let same = |instance: &&Instance| honours && instance.launch.token == launch.token;
            inventory.live().find(same).cloned()
        });
        let instance = match known {
            Some(instance) => instance,
            None => {
                if let Some(shortage) = self.cloud.shortage(&launch) {
                    self.note("cloud: launch refused", &shortage);
                    return self.leave(Err(shortage)).await;
                }
                self.cloud.buy(&self.caller, launch)
            }
        };
        self.leave(Ok(instance)).await
    }

    /// Tells a machine to go. It stays for a while; asking again is harmless.
    ///
    /// # Errors
    ///
    /// Not found once it is gone, or any of the failures calls have.
    pub async fn terminate(&self, id: &InstanceId) -> Result<(), CloudError> {
        self.ask(format!("cloud: asked to terminate {id}"), &Asked::Terminate { id: id.clone() }).await;
        self.arrive().await?;
        let deed = format!("cloud: terminate {id}");
        let state = self.cloud.cluster.change_inventory(&self.caller, deed, |inventory| {
            let instance = inventory.get_mut(id).filter(|instance| instance.state.is_live());
            let state =
                instance.map(|instance| std::mem::replace(&mut instance.state, InstanceState::ShuttingDown));
            (state, state.map_or("not found".to_owned(), |was| format!("was {was:?}")))
        });
        let Some(state) = state else { return self.leave(Err(CloudError::NotFound(id.clone()))).await };
        if state != InstanceState::ShuttingDown {
            let delay = self.cloud.lock().draw(|options| options.shutdown);
            let (cloud, id) = (self.cloud.clone(), id.clone());
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                cloud.terminate(&id, "is gone");
            });
        }
        self.leave(Ok(())).await
    }

    /// Restarts a machine: it is away for a while and comes back healthy, under a new boot id. One operation is one restart.
    ///
    /// # Errors
    ///
    /// Not found once it is gone, or any of the failures calls have.
    pub async fn reboot(&self, id: &InstanceId, operation: &str) -> Result<(), CloudError> {
        self.arrive().await?;
        let running = self.cloud.cluster.inventory(|inventory| {
            let instance = inventory.get(id).filter(|instance| instance.state.is_live());
            instance.map(|instance| instance.state == InstanceState::Running)
        });
        let Some(running) = running else { return self.leave(Err(CloudError::NotFound(id.clone()))).await };
        if running && self.cloud.lock().reboots.insert(operation.to_owned()) {
            let (cloud, id, boot) = (self.cloud.clone(), id.clone(), format!("boot-{operation}"));
            tokio::spawn(async move { cloud.restart(&id, &boot).await });
        }
        self.leave(Ok(())).await
    }

    /// A machine.
    ///
    /// # Errors
    ///
    /// Not found once it is gone, or any of the failures calls have.
    pub async fn get(&self, id: &InstanceId) -> Result<Instance, CloudError> {
        self.arrive().await?;
        let found = self.cloud.cluster.inventory(|inventory| inventory.get(id).cloned());
        let found =
            found.filter(|instance| instance.state.is_live()).ok_or_else(|| CloudError::NotFound(id.clone()));
        self.leave(found).await
    }

    /// The machines there are, as far as the cloud remembers: new ones may be missing, old ones still be there.
    ///
    /// # Errors
    ///
    /// Any of the failures calls have.
    pub async fn list(&self) -> Result<Vec<Instance>, CloudError> {
        self.arrive().await?;
        let now = self.cloud.cluster.now();
        let shown = |instance: &&Instance| {
            let gone = instance.listed_until.is_some_and(|until| until <= now);
            instance.listed_from <= now && !gone
        };
        let mut list: Vec<Instance> =
            self.cloud.cluster.inventory(|inventory| inventory.all().filter(shown).cloned().collect());
        let late = |instance: &&Instance| instance.state.is_live() != shown(instance);
        let late = self.cloud.cluster.inventory(|inventory| inventory.all().filter(late).count());
        if late > 0 {
            self.tell("cloud: a list lags", format!("{late} instances"));
        }
        let forgotten = self.cloud.lock().forget(&mut list);
        if forgotten > 0 {
            self.tell("cloud: a list forgets", format!("{forgotten} instances"));
        }
        self.leave(Ok(list)).await
    }

    async fn ask(&self, deed: String, asked: &Asked) {
        self.gate.pass().await;
        self.cloud.cluster.record_asking(&self.caller, deed, "asked".to_owned(), &[], Some(asked));
    }

    fn note(&self, deed: &str, outcome: &CloudError) {
        self.tell(deed, outcome.to_string());
    }

    fn tell(&self, deed: &str, outcome: String) {
        self.cloud.cluster.record(&self.caller, deed.to_owned(), outcome, &[]);
    }

    /// The way to the cloud, on which a request may be lost or refused.
    async fn arrive(&self) -> Result<(), CloudError> {
        self.gate.pass().await;
        let (delay, slow, refused) = {
            let mut state = self.cloud.lock();
            let mut delay = state.draw(|options| options.call) / 2;
            let slow = state.strikes(|faults| faults.slow);
            if slow {
                delay += state.chance.duration(&Span::secs(10, 90));
            }
            let refused = if state.strikes(|faults| faults.throttled) {
                Some(CloudError::Throttled)
            } else {
                state.strikes(|faults| faults.unavailable).then_some(CloudError::Unavailable)
            };
            (delay, slow, refused)
        };
        if slow {
            self.tell("cloud: a call is slow", format!("{delay:?}"));
        }
        tokio::time::sleep(delay).await;
        self.gate.pass().await;
        if let Some(error) = refused {
            self.note("cloud: call failed", &error);
            return Err(error);
        }
        Ok(())
    }

    /// The way back, on which an answer may be lost.
    async fn leave<T>(&self, answer: Result<T, CloudError>) -> Result<T, CloudError> {
        let (delay, lost) = {
            let mut state = self.cloud.lock();
            (state.draw(|options| options.call) / 2, state.strikes(|faults| faults.lost_reply))
        };
        tokio::time::sleep(delay).await;
        self.gate.pass().await;
        if lost {
            self.note("cloud: answer lost", &CloudError::TimedOut);
            return Err(CloudError::TimedOut);
        }
        answer
    }
}

fn later(time: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    time.saturating_add(by).unwrap_or(Timestamp::MAX)
}

fn node_of(instance: &Instance) -> Node {
    let NodeTemplate { labels, annotations, taints, capacity, allocatable } = instance.launch.node.clone();
    let quantities = |list: BTreeMap<String, String>| {
        Some(list.into_iter().map(|(name, amount)| (name, Quantity(amount))).collect())
    };
    let mut labels = labels;
    labels.entry(karpenter_api::labels::HOSTNAME.to_owned()).or_insert_with(|| instance.node_name.clone());
    Node {
        metadata: ObjectMeta {
            name: Some(instance.node_name.clone()),
            labels: Some(labels),
            annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id: Some(instance.provider_id.clone()),
            taints: Some(taints).filter(|taints| !taints.is_empty()),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            capacity: quantities(capacity),
            allocatable: quantities(allocatable),
            ..NodeStatus::default()
        }),
    }
}
