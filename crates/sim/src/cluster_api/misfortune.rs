//! What becomes of machines while things may go wrong: a seed draws which fates there are and how likely, and each machine meets
//! at most one of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Node;
use karpenter_api::NodeClaim;
use karpenter_runtime::entropy::Entropy;
use karpenter_runtime::object_key::ObjectKey;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::ClusterApi;
use super::checks::CLAIM;
use super::infrastructure::second_name;
use super::kinds::{Kind, annotation, patch, text};
use crate::actor::{code, unless_gone};
use crate::chance::Chance;
use crate::objects::{Objects, uid};

const ZONE: &str = "topology.kubernetes.io/zone";
/// The zone of a machine, or of a template's machines, in what it is like.
const ZONE_OF_MACHINE: &str = "/spec/nodeLabels/topology.kubernetes.io~1zone";
const ZONE_OF_TEMPLATE: &str = "/spec/template/spec/nodeLabels/topology.kubernetes.io~1zone";
/// Where no template's machines are.
const ELSEWHERE: &str = "elsewhere";

/// What can become of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fate {
    /// It is never provisioned.
    Never,
    /// It fails for good, and says so.
    Fails,
    /// It has an id, and no Node ever joins.
    NeverJoins,
    /// It dies after its Node has joined.
    Dies,
    /// Its Node joins without the taint that Karpenter waits for.
    Untainted,
    /// Its Node says that it is in another zone.
    Elsewhere,
    /// It takes long to be deleted.
    Lingers,
    /// It takes long to be provisioned.
    Slow,
    /// Its Node joins under another id.
    OtherId,
    /// It joins twice, under two names.
    Twice,
}

impl Fate {
    const ALL: [Self; 10] = [
        Self::Never,
        Self::Fails,
        Self::NeverJoins,
        Self::Dies,
        Self::Untainted,
        Self::Elsewhere,
        Self::Lingers,
        Self::Slow,
        Self::OtherId,
        Self::Twice,
    ];

    /// What a machine of this fate is like.
    fn behaviour(self, chance: &mut Chance) -> Value {
        match self {
            Self::Never => json!({"never": true}),
            Self::Fails => json!({"fails": {
                "seconds": chance.between(1, 60), "reason": "InsufficientResources", "message": "no host has room",
            }}),
            Self::NeverJoins => json!({"neverJoins": true}),
            Self::Dies => json!({"diesSeconds": chance.between(5, 300)}),
            Self::Untainted => json!({"untainted": true}),
            Self::Elsewhere => json!({"nodeLabels": {ZONE: ELSEWHERE}}),
            Self::Lingers => json!({"deleteSeconds": chance.between(60, 600)}),
            Self::Slow => json!({"provisionSeconds": chance.between(60, 400)}),
            Self::OtherId => json!({"joinsAsAnother": true}),
            Self::Twice => json!({"joinsTwice": true}),
        }
    }
}

/// How likely a fate is, where it exists.
const RATES: [f64; 3] = [0.02, 0.1, 0.3];

/// See the module. Clones are the same.
#[derive(Clone)]
pub struct Misfortune(Arc<Mutex<State>>);

struct State {
    rates: BTreeMap<Fate, f64>,
    chance: Chance,
}

impl Misfortune {
    /// None.
    pub(super) fn none(entropy: &Entropy) -> Self {
        let chance = Chance::new(entropy, "misfortune");
        Self(Arc::new(Mutex::new(State { rates: BTreeMap::new(), chance })))
    }

    /// From now on about half of the fates exist, each at one of its rates.
    pub fn swarm(&self, entropy: &Entropy) {
        let mut chance = Chance::new(entropy, "fates");
        let mut state = self.lock();
        for fate in Fate::ALL {
            let (exists, rate) = (chance.happens(0.5), chance.pick(&RATES).copied());
            if let Some(rate) = rate.filter(|_| exists) {
                state.rates.insert(fate, rate);
            }
        }
    }

    /// What a new machine is like, beyond its template.
    pub(super) fn draw(&self) -> Value {
        let mut state = self.lock();
        let State { rates, chance } = &mut *state;
        let mut fates = rates.iter();
        let fate = fates.find(|(_, rate)| chance.happens(**rate)).map(|(fate, _)| *fate);
        fate.map_or_else(|| json!({}), |fate| fate.behaviour(chance))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClusterApi {
    /// From now on machines are as their template says. What has befallen one stays, with two exceptions. Somebody puts right where
    /// Nodes say they are that Karpenter did not launch, and the NodeClaims that adopted these: a Node that it launched has the zone of its
    /// NodeClaim; that of another one is a domain that pods are spread over and nothing can be launched in, so they would wait for as
    /// long as it is there. And of two Nodes of one machine that Karpenter has not launched, somebody takes away the second: with both,
    /// Cluster API never calls the Machine available, and a rollout that waits for it stands still for ever.
    ///
    /// # Errors
    ///
    /// If the server refuses something.
    pub async fn end_misfortune(&self) -> Result<(), kube::Error> {
        self.misfortune.lock().rates.clear();
        let client = self.cluster.client("user");
        let nodes: Api<Node> = Api::all(client.clone());
        for key in self.cluster.read(doubled) {
            patch(&client, Kind::SimMachine, &key, json!({"spec": {"joinsTwice": null}})).await?;
            let second = second_name(&key.name);
            self.cluster.set_kubelet(&second, false);
            unless_gone(nodes.delete(&second, &DeleteParams::default()).await)?;
        }
        for (key, zone) in self.cluster.read(astray) {
            // Its Node may be yet to join.
            patch(&client, Kind::SimMachine, &key, json!({"spec": {"nodeLabels": {ZONE: zone}}})).await?;
            let right = Patch::Merge(json!({"metadata": {"labels": {ZONE: zone}}}));
            match nodes.patch(&key.name, &PatchParams::default(), &right).await {
                Err(error) if code(&error) == 404 => {}
                other => drop(other?),
            }
            let adopted = self.cluster.read(|objects| {
                let claim = annotation(objects.machines.get(&key)?, CLAIM)?;
                objects
                    .node_claims
                    .iter()
                    .find(|(_, found)| uid(&***found) == claim)
                    .map(|(key, _)| key.clone())
            });
            if let Some(claim) = adopted {
                let claims: Api<NodeClaim> = Api::all(client.clone());
                unless_gone(claims.patch(&claim.name, &PatchParams::default(), &right).await)?;
            }
        }
        Ok(())
    }
}

/// Machines that join twice and that nobody has claimed.
fn doubled(objects: &Objects) -> Vec<ObjectKey> {
    let twice = objects.sim_machines.iter().filter(|(key, machine)| {
        machine.data.pointer("/spec/joinsTwice") == Some(&Value::Bool(true)) && !is_claimed(objects, key)
    });
    twice.map(|(key, _)| key.clone()).collect()
}

fn is_claimed(objects: &Objects, key: &ObjectKey) -> bool {
    objects.machines.get(key).is_some_and(|machine| annotation(machine, CLAIM).is_some())
}

/// Machines whose Nodes say that they are elsewhere, or will where nobody has claimed them, and the zone that they should have.
fn astray(objects: &Objects) -> Vec<(ObjectKey, String)> {
    let zone_of = |machine: &kube::api::DynamicObject| {
        let from = annotation(machine, "cluster.x-k8s.io/cloned-from-name")?;
        let namespace = machine.metadata.namespace.as_deref()?;
        let templates = &objects.sim_machine_templates;
        let template = templates.get(&ObjectKey::namespaced(namespace, from));
        // Where the template is gone, wherever something can be launched.
        let mut others = templates.iter().filter(|(key, _)| &*key.namespace == namespace);
        let template = template.or_else(|| others.next().map(|(_, template)| template))?;
        Some(text(template, ZONE_OF_TEMPLATE).to_owned())
    };
    let says_so = |key: &ObjectKey| {
        let node = objects.nodes.get(&ObjectKey::cluster(&*key.name));
        let zone = node.and_then(|node| node.metadata.labels.as_ref()?.get(ZONE));
        zone.is_some_and(|zone| zone == ELSEWHERE)
    };
    let lost = objects.sim_machines.iter().filter(|(key, machine)| {
        text(machine, ZONE_OF_MACHINE) == ELSEWHERE && (says_so(key) || !is_claimed(objects, key))
    });
    lost.filter_map(|(key, machine)| Some((key.clone(), zone_of(machine)?))).collect()
}
