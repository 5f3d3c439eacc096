//! What the simulated cloud has: machines, by id. Plain data, which invariants look at; [`crate::cloud`] changes it.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;

/// The name the cloud gives a machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InstanceId(pub(crate) String);

impl InstanceId {
    /// An id as a caller has it, which may be of no machine.
    pub fn new(id: impl Into<String>) -> Self {
        Self(id.into())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How far a machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceState {
    /// Bought, not up yet.
    Booting,
    /// Up; its node has been made.
    Running,
    /// Asked to go.
    ShuttingDown,
    /// Gone, on request or by itself.
    Terminated,
}

impl InstanceState {
    /// Whether it still costs money.
    pub fn is_live(self) -> bool {
        self != Self::Terminated
    }
}

/// What a machine's Node looks like when it comes up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeTemplate {
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Taints.
    pub taints: Vec<Taint>,
    /// Capacity by resource, as quantities.
    pub capacity: BTreeMap<String, String>,
    /// Allocatable by resource, as quantities.
    pub allocatable: BTreeMap<String, String>,
}

/// What is asked of the cloud.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Launch {
    /// Two launches with one token are one launch, where the cloud honours tokens.
    pub token: String,
    /// The uid of the NodeClaim it is for: what no two live machines may share.
    pub claim_uid: String,
    /// The size of machine.
    pub instance_type: String,
    /// Where.
    pub zone: String,
    /// On demand, spot, reserved.
    pub capacity_type: String,
    /// Free marks, kept and given back.
    pub tags: BTreeMap<String, String>,
    /// The node it becomes.
    pub node: NodeTemplate,
}

/// A machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance {
    /// Its id.
    pub id: InstanceId,
    /// As in `Node.spec.providerID`.
    pub provider_id: String,
    /// The name its node has or will have.
    pub node_name: String,
    /// How far it is.
    pub state: InstanceState,
    /// What was asked for.
    pub launch: Launch,
    /// When it was bought.
    pub launched_at: Timestamp,
    /// When it went.
    pub terminated_at: Option<Timestamp>,
    /// From when on lists show it.
    pub(crate) listed_from: Timestamp,
    /// Until when lists show it although it has gone.
    pub(crate) listed_until: Option<Timestamp>,
}

/// All machines there ever were.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    instances: BTreeMap<InstanceId, Instance>,
}

impl Inventory {
    /// Every machine, gone ones included.
    pub fn all(&self) -> impl Iterator<Item = &Instance> {
        self.instances.values()
    }

    /// The machines that still cost money.
    pub fn live(&self) -> impl Iterator<Item = &Instance> {
        self.all().filter(|instance| instance.state.is_live())
    }

    /// A machine by id.
    pub fn get(&self, id: &InstanceId) -> Option<&Instance> {
        self.instances.get(id)
    }

    /// A machine by provider id.
    pub fn by_provider_id(&self, provider_id: &str) -> Option<&Instance> {
        let (_, id) = provider_id.rsplit_once('/')?;
        self.get(&InstanceId::new(id)).filter(|instance| instance.provider_id == provider_id)
    }

    pub(crate) fn get_mut(&mut self, id: &InstanceId) -> Option<&mut Instance> {
        self.instances.get_mut(id)
    }

    pub(crate) fn insert(&mut self, instance: Instance) {
        self.instances.insert(instance.id.clone(), instance);
    }

    /// How many machines there ever were.
    pub fn len(&self) -> usize {
        self.instances.len()
    }

    /// Whether nothing was ever bought.
    pub fn is_empty(&self) -> bool {
        self.instances.is_empty()
    }
}
