//! A toy autoscaler, plugged in as Karpenter will be: it keeps every rule under all faults, and with a bug it breaks the one
//! it should. Neither good nor quick, it only shows that the world, the faults and the rules are worth something.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use karpenter_api::{NodeClaim, annotations, finalizers, labels, nodeclaim, taints};
use karpenter_sim::chance::{Chance, Span};
use karpenter_sim::cloud::{CloudError, CloudFaults, CloudHandle, CloudOptions};
use karpenter_sim::faults::FaultPlan;
use karpenter_sim::inventory::{InstanceId, Launch, NodeTemplate};
use karpenter_sim::objects::{condition, is_active, is_deleting, is_ready, node_of, node_ready, uid};
use karpenter_sim::process::Life;
use karpenter_sim::traffic::{self, Script, Volume};
use karpenter_sim::{Objects, Process, Tape, Trouble, World, WorldOptions, in_virtual_time, invariants};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, GroupVersionKind, Status};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::objects::MINUTE;

/// What is wrong with an autoscaler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// Every launch is a new one.
    LaunchesAgain,
    /// The finalizer goes as soon as the cloud has been told.
    LetsGoEarly,
    /// What the cloud does not list is taken to be gone.
    TrustsLists,
    /// Pods are deleted where they should be evicted.
    Deletes,
    /// The instance is removed without waiting for pods.
    DoesNotDrain,
}

type Error = Box<dyn std::error::Error + Send + Sync>;

struct Autoscaler {
    claims: Api<NodeClaim>,
    dynamic: Api<DynamicObject>,
    nodes: Api<Node>,
    client: kube::Client,
    cloud: CloudHandle,
    chance: Chance,
    clock: karpenter_runtime::clock::SharedClock,
    bug: Bug,
}

fn run(life: Life, bug: Bug) -> BoxFuture<'static, ()> {
    async move {
        let client = life.client;
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("karpenter.sh", "v1", "NodeClaim"));
        let mut autoscaler = Autoscaler {
            claims: Api::all(client.clone()),
            dynamic: Api::all_with(client.clone(), &resource),
            nodes: Api::all(client.clone()),
            client,
            cloud: life.cloud,
            chance: Chance::new(&life.environment.entropy, "autoscaler"),
            clock: life.environment.clock,
            bug,
        };
        loop {
            // What failed is tried again in the next turn.
            let _ = autoscaler.turn().await;
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
    }
    .boxed()
}

fn provider_id(claim: &NodeClaim) -> Option<&str> {
    claim.status.as_ref()?.provider_id.as_deref()
}

fn name(claim: &NodeClaim) -> &str {
    claim.metadata.name.as_deref().unwrap_or_default()
}

fn is_tainted(node: &Node, known: taints::KnownTaint) -> bool {
    node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()).any(|taint| known.matches(taint))
}

fn is_daemon(pod: &Pod) -> bool {
    pod.metadata.owner_references.iter().flatten().any(|owner| owner.kind == "DaemonSet")
}

impl Autoscaler {
    async fn turn(&mut self) -> Result<(), Error> {
        let all = ListParams::default();
        let pods = Api::<Pod>::all(self.client.clone()).list(&all).await?.items;
        let claims = self.claims.list(&all).await?.items;
        let nodes = self.nodes.list(&all).await?.items;
        let node_of_claim = |claim: &NodeClaim| {
            let id = provider_id(claim);
            nodes
                .iter()
                .find(|node| id.is_some() && node.spec.as_ref().and_then(|s| s.provider_id.as_deref()) == id)
        };
        let homeless = pods.iter().filter(|pod| {
            is_active(pod)
                && node_of(pod).is_none()
                && condition(pod, "PodScheduled") == Some("False")
                && !is_daemon(pod)
        });
        let coming = claims.iter().filter(|claim| {
            !is_deleting(*claim)
                && node_of_claim(claim).is_none_or(|node| is_tainted(node, taints::UNREGISTERED))
        });
        let wanted = homeless.count().div_ceil(2).saturating_sub(coming.count()).min(4);
        for _ in 0..wanted.min(40usize.saturating_sub(claims.len())) {
            self.create_claim().await?;
        }
        for claim in &claims {
            let node = node_of_claim(claim);
            // One that fails must not hold up the others.
            let _ = match (is_deleting(claim), provider_id(claim)) {
                (true, _) => self.finish(claim, node, &pods).await,
                (false, None) => self.launch(claim).await,
                (false, Some(id)) => self.look_after(claim, id, node, &pods).await,
            };
        }
        self.collect_garbage(&claims).await
    }

    async fn create_claim(&self) -> Result<(), Error> {
        let claim = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"generateName": "toy-", "finalizers": [finalizers::TERMINATION]},
            "spec": {
                "nodeClassRef": {"group": "example.com", "kind": "ToyNodeClass", "name": "default"},
                "requirements": [],
            },
        });
        self.dynamic.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
        Ok(())
    }

    async fn launch(&mut self, claim: &NodeClaim) -> Result<(), Error> {
        let zone = self.chance.pick(&["a", "b", "c"]).copied().unwrap_or("a");
        let token = match self.bug {
            Bug::LaunchesAgain => format!("{}-{}", uid(claim), self.chance.below(u64::MAX)),
            _ => uid(claim).to_owned(),
        };
        let amounts = || {
            [("cpu", "4"), ("memory", "16Gi"), ("pods", "30")]
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into()
        };
        let launch = Launch {
            token,
            claim_uid: uid(claim).to_owned(),
            instance_type: "toy".to_owned(),
            zone: zone.to_owned(),
            capacity_type: "on-demand".to_owned(),
            node: NodeTemplate {
                labels: [(labels::TOPOLOGY_ZONE.to_owned(), zone.to_owned())].into(),
                taints: vec![taints::UNREGISTERED.to_taint()],
                capacity: amounts(),
                allocatable: amounts(),
                ..NodeTemplate::default()
            },
            ..Launch::default()
        };
        let instance = self.cloud.launch(launch).await?;
        self.set_status(claim, &instance.provider_id, &[nodeclaim::LAUNCHED]).await
    }

    async fn set_status(
        &self,
        claim: &NodeClaim,
        provider_id: &str,
        conditions: &[&str],
    ) -> Result<(), Error> {
        let now = self.clock.now().to_string();
        let one = |kind: &&str| json!({"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": now});
        let conditions: Vec<_> = conditions.iter().map(one).collect();
        let patch = json!({"status": {"providerID": provider_id, "conditions": conditions}});
        self.claims.patch_status(name(claim), &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Registers a node, and gives up claims that came to nothing or are no longer needed.
    async fn look_after(
        &self,
        claim: &NodeClaim,
        id: &str,
        node: Option<&Node>,
        pods: &[Pod],
    ) -> Result<(), Error> {
        let created = claim.metadata.creation_timestamp.as_ref().map_or(self.clock.now(), |time| time.0);
        let age = self.clock.now().duration_since(created);
        let Some(node) = node.filter(|node| node_ready(node) == Some("True")) else {
            let instance = self.cloud.get(&InstanceId::new(id.rsplit('/').next().unwrap_or_default())).await;
            let lost = matches!(instance, Err(CloudError::NotFound(_)));
            if lost || age > SignedDuration::from_mins(10) {
                self.give_up(claim).await?;
            }
            return Ok(());
        };
        if is_tainted(node, taints::UNREGISTERED) {
            let stays = |taint: &&Taint| !taints::UNREGISTERED.matches(taint);
            let left: Vec<&Taint> =
                node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()).filter(stays).collect();
            let patch = json!({
                "metadata": {
                    "resourceVersion": node.metadata.resource_version,
                    "labels": {labels::REGISTERED: "true", labels::INITIALIZED: "true"},
                },
                "spec": {"taints": left},
            });
            let node_name = node.metadata.name.as_deref().unwrap_or_default();
            self.nodes.patch(node_name, &PatchParams::default(), &Patch::Merge(patch)).await?;
            let conditions = [nodeclaim::LAUNCHED, nodeclaim::REGISTERED, nodeclaim::INITIALIZED];
            return self.set_status(claim, id, &conditions).await;
        }
        let here =
            |pod: &&Pod| node_of(pod) == node.metadata.name.as_deref() && is_active(pod) && !is_daemon(pod);
        if age > SignedDuration::from_mins(5) && !pods.iter().any(|pod| here(&pod)) {
            let conditions = [
                nodeclaim::LAUNCHED,
                nodeclaim::REGISTERED,
                nodeclaim::INITIALIZED,
                nodeclaim::DISRUPTION_REASON,
            ];
            self.set_status(claim, id, &conditions).await?;
            self.give_up(claim).await?;
        }
        Ok(())
    }

    async fn give_up(&self, claim: &NodeClaim) -> Result<(), Error> {
        let preconditions = Preconditions { uid: claim.metadata.uid.clone(), ..Preconditions::default() };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        self.claims.delete(name(claim), &params).await?;
        Ok(())
    }

    async fn finish(&self, claim: &NodeClaim, node: Option<&Node>, pods: &[Pod]) -> Result<(), Error> {
        let up = node.filter(|node| node_ready(node) == Some("True") && self.bug != Bug::DoesNotDrain);
        if let Some(node) = up
            && !self.drain(node, pods).await?
        {
            return Ok(());
        }
        if let Some(id) = provider_id(claim) {
            let told =
                self.cloud.terminate(&InstanceId::new(id.rsplit('/').next().unwrap_or_default())).await;
            match told {
                Err(CloudError::NotFound(_)) => {}
                Ok(()) if self.bug == Bug::LetsGoEarly => {}
                other => return Ok(other?),
            }
        }
        let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        self.claims.patch(name(claim), &PatchParams::default(), &release).await?;
        Ok(())
    }

    /// Whether everyone has left.
    async fn drain(&self, node: &Node, pods: &[Pod]) -> Result<bool, Error> {
        let node_name = node.metadata.name.as_deref().unwrap_or_default();
        if !is_tainted(node, taints::DISRUPTED) {
            let mut all: Vec<Taint> =
                node.spec.iter().flat_map(|spec| spec.taints.iter().flatten().cloned()).collect();
            all.push(taints::DISRUPTED.to_taint());
            let patch = json!({"metadata": {"resourceVersion": node.metadata.resource_version}, "spec": {"taints": all}});
            self.nodes.patch(node_name, &PatchParams::default(), &Patch::Merge(patch)).await?;
            // Who was here before the taint is seen in the next turn.
            return Ok(false);
        }
        let tolerant =
            |pod: &Pod| pod.spec.iter().flat_map(|s| s.tolerations.iter().flatten()).any(|t| t.key.is_none());
        let mut empty = true;
        for pod in
            pods.iter().filter(|pod| node_of(pod) == Some(node_name) && is_active(pod) && !tolerant(pod))
        {
            empty = false;
            if pod.annotations().get(annotations::DO_NOT_DISRUPT).is_some_and(|wish| wish == "true") {
                continue;
            }
            let api: Api<Pod> =
                Api::namespaced(self.client.clone(), pod.metadata.namespace.as_deref().unwrap_or_default());
            let preconditions = Preconditions { uid: pod.metadata.uid.clone(), ..Preconditions::default() };
            let delete = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
            if self.bug == Bug::Deletes {
                api.delete(pod_name, &delete.grace_period(1)).await?;
            } else {
                // kube's own `evict` writes `delete_options`, which no server reads.
                let eviction = json!({
                    "apiVersion": "policy/v1", "kind": "Eviction",
                    "metadata": {"name": pod_name}, "deleteOptions": delete,
                });
                let params = PostParams::default();
                // A budget may have nothing left.
                let _: Result<Status, _> =
                    api.create_subresource("eviction", pod_name, &params, &eviction).await;
            }
        }
        Ok(empty)
    }

    /// Machines without a claim go; a claim without a machine is found by asking for that one machine.
    async fn collect_garbage(&self, claims: &[NodeClaim]) -> Result<(), Error> {
        let listed = self.cloud.list().await?;
        let now = self.clock.now();
        for instance in &listed {
            let owned = claims.iter().any(|claim| uid(claim) == instance.launch.claim_uid);
            let old = now.duration_since(instance.launched_at) > SignedDuration::from_mins(2);
            if !owned && old {
                match self.cloud.terminate(&instance.id).await {
                    Ok(()) | Err(CloudError::NotFound(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        if self.bug == Bug::TrustsLists {
            for claim in claims.iter().filter(|claim| provider_id(claim).is_some()) {
                if !listed.iter().any(|instance| provider_id(claim) == Some(&instance.provider_id)) {
                    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
                    self.claims.patch(name(claim), &PatchParams::default(), &release).await?;
                }
            }
        }
        Ok(())
    }
}

/// Who has no place or is not ready. Daemons do not count: a node that is full has no room for them, and the toy plans for none.
fn discontent(objects: &Objects) -> Vec<String> {
    let waiting = objects.pods.values().filter(|pod| is_active(pod) && !is_ready(pod) && !is_daemon(pod));
    let tell =
        |pod: &Arc<Pod>| format!("{:?} {:?}", pod.metadata.name, pod.status.as_ref().map(|s| &s.conditions));
    waiting.map(tell).collect()
}

fn is_content(objects: &Objects) -> bool {
    discontent(objects).is_empty()
}

/// A quarter of an hour of trouble, then as long as it takes to come right.
async fn simulate(seed: u64, bug: Bug) -> (Tape, Result<(), Trouble>) {
    let entropy = karpenter_runtime::entropy::Entropy::from_seed(seed);
    let cloud = CloudOptions {
        list_lag: Span::secs(0, 30),
        faults: CloudFaults::swarm(&mut Chance::new(&entropy, "cloud faults")),
        ..CloudOptions::default()
    };
    let world = World::new(WorldOptions { seed, cloud, ..WorldOptions::default() }).await.unwrap();
    world.cluster().watch_over(invariants::all("karpenter"));
    let plan = FaultPlan::swarm(world.cluster().entropy());
    let process = world.process("karpenter", plan, move |life| run(life, bug));
    process.start();
    let result = lead_through(&world, &process).await;
    if result.is_err() && bug == Bug::None {
        eprintln!("{:#?}", world.cluster().read(discontent));
    }
    (world.cluster().tape(Clone::clone), result)
}

async fn lead_through(world: &World, process: &Arc<Process>) -> Result<(), Trouble> {
    let danger = process.endanger(Span::secs(60, 300), Span::secs(1, 20));
    let unrest = tokio::spawn(traffic::delete_claims(world.cluster().clone(), process.faults().clone()));
    let mut chance = Chance::new(world.cluster().entropy(), "traffic");
    let volume = Volume { deployments: 3, replicas: 5, period: 12 * MINUTE };
    Script::draw(&mut chance, &volume).play(world).await?;
    world.run_for(3 * MINUTE).await?;
    process.faults().heal();
    world.cloud().heal();
    let healed = tokio::time::Instant::now();
    // It ends at its next turn, with the process running.
    let _ = (danger.await, unrest.await);
    world.wait_until("everyone is content", 60 * MINUTE, is_content).await?;
    world.run_for(15 * MINUTE).await?;
    world.wait_until("everyone is still content", 30 * MINUTE, is_content).await?;
    Ok(world.cluster().check_at_rest(healed.elapsed())?)
}

/// Two seeds, or those of `SIM_SEEDS=A..B` for a long run.
fn seeds() -> std::ops::Range<u64> {
    let given = std::env::var("SIM_SEEDS").unwrap_or_else(|_| "0..2".to_owned());
    let (from, to) = given.split_once("..").expect("SIM_SEEDS=A..B");
    from.parse().expect("a number")..to.parse().expect("a number")
}

#[test]
fn an_autoscaler_without_bugs_keeps_every_rule_converges_and_leaves_the_same_tape_twice() {
    for seed in seeds() {
        let (tape, result) = in_virtual_time(simulate(seed, Bug::None)).unwrap();
        result.unwrap_or_else(|trouble| panic!("seed {seed}: {trouble}"));
        if seed % 10 == 0 {
            let (again, _) = in_virtual_time(simulate(seed, Bug::None)).unwrap();
            assert_eq!(tape.first_difference(&again), None);
            assert_eq!(tape.digest(), again.digest());
        }
    }
}

#[test]
fn each_bug_breaks_the_rule_it_should() {
    for (bug, rule) in [
        (Bug::LaunchesAgain, "I2"),
        (Bug::LetsGoEarly, "I8"),
        (Bug::TrustsLists, "I8"),
        (Bug::Deletes, "I11"),
        (Bug::DoesNotDrain, "I10"),
    ] {
        let broken = (0..6).find_map(|seed| match in_virtual_time(simulate(seed, bug)).unwrap().1 {
            Err(Trouble::Violation(violation)) => Some(violation),
            _ => None,
        });
        let violation = broken.unwrap_or_else(|| panic!("{bug:?} is noticed by one of six seeds"));
        assert!(violation.rules.contains(&rule), "{bug:?}: {violation}");
    }
}
