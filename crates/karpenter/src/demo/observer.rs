//! What a bystander would notice: nodes that come and go, what runs on them, what they cost.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::conditions::HasConditions as _;
use karpenter_api::{NodeClaim, labels, nodeclaim};
use karpenter_engine::instance_type::InstanceType;
use karpenter_sim::objects::{is_active, is_deleting, is_finished, is_ready};
use karpenter_sim::{Cluster, Objects};

use super::screen::Screen;

/// A node as it was last told of.
struct Told {
    what: String,
    price: f64,
    ready: bool,
    going: bool,
}

/// Looks at the cluster and tells what is new.
pub(super) struct Observer {
    cluster: Cluster,
    screen: Screen,
    prices: BTreeMap<(String, String, String), f64>,
    claims: BTreeMap<String, Told>,
    tally: Tally,
    shown: Option<String>,
}

/// What it all came to.
#[derive(Default)]
struct Tally {
    launched: usize,
    removed: usize,
    most_nodes: usize,
    highest_cost: f64,
    spent: f64,
    /// When the first pod was there, and when none waited any more.
    first_pod: Option<Duration>,
    all_running: Option<Duration>,
    most_pods: usize,
}

impl Observer {
    pub(super) fn new(cluster: Cluster, screen: Screen) -> Self {
        let prices = BTreeMap::new();
        Self { cluster, screen, prices, claims: BTreeMap::new(), tally: Tally::default(), shown: None }
    }

    /// What the provider asks for its machines.
    pub(super) fn learn_prices(&mut self, types: &[InstanceType]) {
        for it in types {
            for offering in &it.offerings {
                let value = |key: &str| {
                    let requirement = offering.requirements.get(key);
                    requirement.and_then(|r| r.values.first()).map(ToString::to_string).unwrap_or_default()
                };
                let place = (it.name.to_string(), value(labels::TOPOLOGY_ZONE), value(labels::CAPACITY_TYPE));
                self.prices.insert(place, offering.price);
            }
        }
    }

    /// Tells something that the users do.
    pub(super) fn say(&self, text: &str) {
        self.screen.line(&format!("{} {text}", self.time()));
    }

    /// Ends a part of the story with where things stand.
    pub(super) fn phase(&mut self, text: &str) {
        let status = self.cluster.read(|objects| self.status(objects));
        self.screen.line(&format!("{} {text} {status}\n", self.time()));
    }

    /// Tells what has happened since the last look.
    pub(super) fn look(&mut self, passed: Duration) {
        let cluster = self.cluster.clone();
        cluster.read(|objects| {
            self.look_at_claims(objects);
            self.count(objects, passed);
            let status = self.status(objects);
            if self.shown.as_ref() != Some(&status) {
                self.screen.status(&format!("{} {status}", self.time()));
                self.shown = Some(status);
            }
        });
        self.screen.keep_pace(passed);
    }

    fn look_at_claims(&mut self, objects: &Objects) {
        for (key, claim) in &objects.node_claims {
            let Some(place) = place_of(claim) else { continue };
            let node = claim
                .status
                .as_ref()
                .and_then(|status| status.node_name.as_deref())
                .and_then(|name| objects.node(name));
            let ready = node.is_some_and(|node| initialized(node));
            let going = is_deleting(&**claim);
            let name = key.name.to_string();
            if !self.claims.contains_key(&name) {
                let price = self.prices.get(&place).copied().unwrap_or_default();
                let (instance_type, zone, capacity_type) = place;
                let what = format!("{name:<14} {instance_type:<22} {capacity_type:<9} {zone}");
                self.screen.line(&format!("{} + {what}  ${price:.4}/h", self.time()));
                self.tally.launched += 1;
                self.claims.insert(name.clone(), Told { what, price, ready: false, going: false });
            }
            let Some(told) = self.claims.get_mut(&name) else { continue };
            if ready && !told.ready {
                told.ready = true;
                let text = format!("{} * {name:<14} ready", clock(self.cluster.elapsed()));
                self.screen.line(&text);
            }
            if going && !told.going {
                told.going = true;
                let why = claim.condition(nodeclaim::DISRUPTION_REASON).map_or("deleted", |why| why.reason());
                self.screen.line(&format!("{} ~ {name:<14} going: {why}", clock(self.cluster.elapsed())));
            }
        }
        let gone: Vec<String> = self
            .claims
            .keys()
            .filter(|name| !objects.node_claims.keys().any(|key| *key.name == ***name))
            .cloned()
            .collect();
        for name in gone {
            if let Some(told) = self.claims.remove(&name) {
                self.tally.removed += 1;
                self.screen.line(&format!("{} - {}  saves ${:.4}/h", self.time(), told.what, told.price));
            }
        }
    }

    fn count(&mut self, objects: &Objects, passed: Duration) {
        let cost = self.cost();
        let waiting = pods_waiting(objects);
        let at = self.cluster.elapsed();
        let tally = &mut self.tally;
        tally.spent += cost * passed.as_secs_f64() / 3600.0;
        tally.highest_cost = tally.highest_cost.max(cost);
        tally.most_nodes = tally.most_nodes.max(self.claims.len());
        tally.most_pods = tally.most_pods.max(objects.pods.values().filter(|pod| is_ready(pod)).count());
        if waiting > 0 {
            tally.first_pod.get_or_insert(at);
        } else if tally.first_pod.is_some() {
            tally.all_running.get_or_insert(at);
        }
    }

    fn status(&self, objects: &Objects) -> String {
        let running = objects.pods.values().filter(|pod| is_ready(pod)).count();
        let ready = self.claims.values().filter(|told| told.ready).count();
        let nodes = self.claims.len();
        let waiting = pods_waiting(objects);
        format!(
            "[pods: {running} running, {waiting} waiting | nodes: {ready}/{nodes} ready | ${:.3}/h]",
            self.cost()
        )
    }

    fn cost(&self) -> f64 {
        // A sum of nothing is negative zero.
        self.claims.values().map(|told| told.price).sum::<f64>() + 0.0
    }

    fn time(&self) -> String {
        clock(self.cluster.elapsed())
    }

    /// What it all came to.
    pub(super) fn summary(&self) {
        let Tally { launched, removed, most_nodes, highest_cost, spent, first_pod, all_running, most_pods } =
            &self.tally;
        let total = self.cluster.elapsed();
        let unmanaged = highest_cost * total.as_secs_f64() / 3600.0;
        self.screen.line("Summary");
        if let (Some(from), Some(to)) = (first_pod, all_running) {
            let took = to.saturating_sub(*from).as_secs_f64();
            self.screen.line(&format!("  {most_pods} pods running {took:.1} s after they were created"));
        }
        self.screen.line(&format!(
            "  {launched} nodes launched, at most {most_nodes} at a time, {removed} removed again"
        ));
        self.screen.line(&format!(
            "  cost: ${highest_cost:.3}/h at the peak, ${:.3}/h now; ${spent:.4} spent in {} where keeping the peak would have cost ${unmanaged:.4}",
            self.cost(),
            clock(total).trim(),
        ));
    }
}

/// Pods that should run and do not. Daemons come with their nodes.
pub(super) fn pods_waiting(objects: &Objects) -> usize {
    objects.pods.values().filter(|pod| is_active(pod) && !is_ready(pod) && !is_daemon(pod)).count()
}

/// Whether pods of this `app` are still at it.
pub(super) fn working(objects: &Objects, app: &str) -> bool {
    let of_app =
        |pod: &Pod| pod.metadata.labels.as_ref().and_then(|l| l.get("app")).is_some_and(|a| a == app);
    objects.pods.values().any(|pod| of_app(pod) && !is_finished(pod))
}

fn is_daemon(pod: &Pod) -> bool {
    pod.metadata.owner_references.iter().flatten().any(|owner| owner.kind == "DaemonSet")
}

fn initialized(node: &Node) -> bool {
    node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(labels::INITIALIZED))
}

/// Instance type, zone and capacity type, once launched.
fn place_of(claim: &NodeClaim) -> Option<(String, String, String)> {
    claim.status.as_ref()?.provider_id.as_ref()?;
    let labels = claim.metadata.labels.as_ref()?;
    let label = |key: &str| labels.get(key).cloned().unwrap_or_default();
    Some((label(labels::INSTANCE_TYPE), label(labels::TOPOLOGY_ZONE), label(labels::CAPACITY_TYPE)))
}

/// Minutes and seconds.
fn clock(at: Duration) -> String {
    let seconds = at.as_secs();
    format!("{:>2}:{:02}", seconds / 60, seconds % 60)
}
