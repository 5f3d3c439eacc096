//! The disruption world: a cluster that is busy and never left alone. Workloads come and go while NodePools, images, budgets,
//! policies and the wishes of pods and nodes change, machines expire and break, and everything fails that can. Then it heals,
//! people stop asking for anything, and whatever had drifted, broken or lain idle must have been put right.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_api::conditions::{Condition, ConditionStatus, HasConditions as _};
use karpenter_api::{NodeClaim, NodePool, annotations, nodeclaim, taints};
use karpenter_cloudprovider::{RepairAction, RepairPolicy};
use karpenter_runtime::entropy::Entropy;
use karpenter_runtime::options::Options;
use karpenter_sim::chance::{Chance, Span};
use karpenter_sim::cloud::{CloudFaults, CloudOptions};
use karpenter_sim::faults::{FaultPlan, Faults};
use karpenter_sim::invariants::replacements::{
    CommandsAreWhole, ReplacementsAreCheaper, ReplacementsComeFirst,
};
use karpenter_sim::invariants::restraint::RepairStopsWhereMuchIsBroken;
use karpenter_sim::objects::{is_active, is_deleting, node_of};
use karpenter_sim::traffic::{Script, Volume};
use karpenter_sim::{Cluster, Objects, Process, Trouble, World, WorldOptions, invariants};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Resource};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::cloud::{Platform, node_class_objects, node_class_ref, prices};
use super::course::{MINUTE, discontent, go_home, told, wait_until_nothing_is_left};
use super::{Report, Run, operator};

/// What a monitor says about machines it finds broken; restarting them helps, or not.
const BROKEN: &str = "example.com/MachineBroken";

/// Lives through one seed.
pub(super) async fn simulate(run: Run) -> Report {
    let entropy = Entropy::from_seed(run.seed);
    let faults = if run.calm {
        CloudFaults::default()
    } else {
        CloudFaults::swarm(&mut Chance::new(&entropy, "cloud faults"))
    };
    let cloud = CloudOptions { list_lag: Span::secs(0, 5), faults, ..CloudOptions::default() };
    let world = match World::new(WorldOptions { seed: run.seed, cloud, ..WorldOptions::default() }).await {
        Ok(world) => world,
        Err(trouble) => return Report::failed_to_begin(&trouble),
    };
    world.cluster().watch_over(invariants::all("karpenter"));
    world.cluster().watch_over([
        Box::new(ReplacementsComeFirst::new("karpenter")) as _,
        Box::new(CommandsAreWhole::new("karpenter")) as _,
        Box::new(RepairStopsWhereMuchIsBroken::new(BROKEN)) as _,
        Box::new(ReplacementsAreCheaper::new("karpenter", prices())) as _,
    ]);
    let platform = Platform::repairing(repair_policies()).mistaken(run.plant);
    let options = options(&mut Chance::new(&entropy, "options"));
    let plan = if run.calm { FaultPlan::default() } else { FaultPlan::swarm(world.cluster().entropy()) };
    let process = world.process("karpenter", plan, operator::karpenter(options, platform.clone()));
    run.plant_into(&process);
    let result = live(&world, &process, &platform, run).await;
    let instances = world.cluster().inventory(|inventory| inventory.len());
    let failure = result.err().map(|trouble| told(&trouble, &world.cluster().read(unfinished)));
    Report::of(world.cluster(), &process, &format!("instances={instances}"), failure)
}

/// Everything that disrupts is on; what changes how is drawn.
fn options(chance: &mut Chance) -> Arc<Options> {
    let mut gates = "NodeRepair=true,StaticCapacity=true".to_owned();
    for gate in ["SpotToSpotConsolidation", "TerminateFirstDrift", "TerminateFirstRepair"] {
        gates += &format!(",{gate}={}", chance.happens(0.5));
    }
    operator::settings(&[&format!("--feature-gates={gates}")])
}

fn repair_policies() -> Vec<RepairPolicy> {
    let policy = |reason: &str, action, minutes| RepairPolicy {
        condition_type: BROKEN.to_owned(),
        condition_status: "True".to_owned(),
        reason_regex: reason.to_owned(),
        toleration: Duration::from_secs(60),
        termination_grace_period: Some(minutes * MINUTE),
        priority: 10,
        action,
    };
    let gone_quiet = RepairPolicy {
        condition_type: "Ready".to_owned(),
        condition_status: "Unknown".to_owned(),
        toleration: 5 * MINUTE,
        ..policy("Silent", RepairAction::ReplaceNode, 1)
    };
    let fallback = policy("", RepairAction::ReplaceNode, 3);
    vec![policy("^Hung$", RepairAction::RebootNode, 2), gone_quiet, fallback]
}

async fn live(world: &World, process: &Arc<Process>, platform: &Platform, run: Run) -> Result<(), Trouble> {
    let mut chance = Chance::new(world.cluster().entropy(), "traffic");
    for object in node_class_objects() {
        world.create(object).await?;
    }
    for number in 0..chance.between(1, 2) {
        world.create(node_pool(&mut chance, &format!("pool-{number}"))).await?;
    }
    if chance.happens(0.4) {
        world.create(static_pool(&mut chance)).await?;
    }
    process.start();
    let volume = Volume { deployments: 4, replicas: 6, period: 8 * MINUTE };
    let script = Script::draw(&mut chance, &volume);
    let people = People { cluster: world.cluster().clone(), platform: platform.clone() };
    let busy = tokio::spawn(people.clone().keep_changing_their_minds(12 * MINUTE));
    if run.calm {
        script.play(world).await?;
    } else {
        let danger = process.endanger(Span::secs(60, 300), Span::secs(1, 20));
        // In some worlds only: what was stamped with a time to come waits for it.
        let clock = chance.happens(0.3).then(|| process.mislead(Span::secs(60, 400), Span::secs(90, 900)));
        let misfortune = tokio::spawn(misfortune(world.cluster().clone(), process.faults().clone()));
        script.play(world).await?;
        world.run_for(volume.period / 2).await?;
        process.faults().heal();
        world.cloud().heal();
        // They end at their next turn, with the process running.
        let _ = (danger.await, misfortune.await);
        if let Some(clock) = clock {
            let _ = clock.await;
        }
    }
    let _ = busy.await;
    let healed = Instant::now();
    people.make_peace().await;
    let done = |objects: &Objects| unfinished(objects).is_empty();
    world.wait_until("everything has been put right", 90 * MINUTE, done).await?;
    // Longer than any command may take: one that was lost shows.
    world.run_for(Duration::from_secs(26 * 60).saturating_sub(healed.elapsed())).await?;
    world.wait_until("everything is still right", 60 * MINUTE, done).await?;
    world.cluster().check_at_rest(healed.elapsed())?;

    go_home(world, &script).await?;
    wait_until_nothing_is_left(world).await?;
    process.stop(MINUTE).await;
    Ok(())
}

/// What is still to be done once nobody wants anything any more: pods to start, nodes to replace or remove, marks to take off.
fn unfinished(objects: &Objects) -> Vec<String> {
    let mut all = discontent(objects);
    for (key, claim) in &objects.node_claims {
        for kind in [nodeclaim::DRIFTED, nodeclaim::DISRUPTION_REASON, nodeclaim::REBOOTING] {
            if claim.condition_status(kind) == ConditionStatus::True {
                let deleting = if is_deleting(&**claim) { ", which is being deleted," } else { "" };
                let reason = claim.condition(kind).map(Condition::reason).unwrap_or_default();
                all.push(format!("NodeClaim {key}{deleting} is {kind}: {reason}"));
            }
        }
    }
    for (key, node) in &objects.nodes {
        let mut tainted = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        if tainted.any(|taint| taints::DISRUPTED.matches(taint)) {
            all.push(format!("node {key} is tainted as disrupted"));
        }
        if is_broken(node) {
            let there = objects.pods.values().filter(|pod| {
                pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(&*key.name)
            });
            let there: Vec<&str> = there.filter_map(|pod| pod.metadata.name.as_deref()).collect();
            all.push(format!("node {key} is broken; on it are {there:?}"));
        }
    }
    for (key, pool) in objects.node_pools.iter().filter(|(_, pool)| pool.is_static()) {
        let replicas = usize::try_from(pool.spec.replicas.unwrap_or_default()).unwrap_or_default();
        let of_pool = |claim: &&Arc<NodeClaim>| {
            let labels = claim.metadata.labels.as_ref();
            labels.and_then(|labels| labels.get(karpenter_api::labels::NODEPOOL))
                == Some(&key.name.to_string())
        };
        let there = objects.node_claims.values().filter(of_pool).count();
        if there != replicas {
            all.push(format!("NodePool {key} has {there} of {replicas} nodes"));
        }
    }
    all
}

fn is_broken(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == BROKEN)
}

/// One of several, as chance has it.
fn one_of<'a>(chance: &mut Chance, all: &[&'a str]) -> &'a str {
    chance.pick(all).copied().unwrap_or_default()
}

fn node_pool(chance: &mut Chance, name: &str) -> Value {
    let mut spec = template_spec(chance);
    match chance.below(4) {
        0 => requirement(&mut spec, "karpenter.sh/capacity-type", "on-demand"),
        1 => requirement(&mut spec, "karpenter.sh/capacity-type", "spot"),
        _ => {}
    }
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name},
        "spec": {
            "weight": chance.between(1, 100),
            "disruption": disruption(chance),
            "template": {"metadata": {"labels": {"version": "0"}}, "spec": spec},
        },
    })
}

fn static_pool(chance: &mut Chance) -> Value {
    let replicas = chance.between(1, 3);
    let mut pool = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "fixed"},
        "spec": {
            "replicas": replicas,
            "disruption": disruption(chance),
            "template": {"metadata": {"labels": {"version": "0"}}, "spec": template_spec(chance)},
        },
    });
    if chance.happens(0.5) {
        pool["spec"]["limits"] = json!({"nodes": replicas + 1});
    }
    pool
}

fn requirement(spec: &mut Value, key: &str, value: &str) {
    if let Some(all) = spec["requirements"].as_array_mut() {
        all.push(json!({"key": key, "operator": "In", "values": [value]}));
    }
}

fn template_spec(chance: &mut Chance) -> Value {
    let mut spec = json!({
        "nodeClassRef": node_class_ref(),
        "requirements": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}],
        "expireAfter": if chance.happens(0.3) { "10m" } else { "Never" },
    });
    if chance.happens(0.4) {
        spec["terminationGracePeriod"] = json!(format!("{}s", chance.between(30, 300)));
    }
    spec
}

fn disruption(chance: &mut Chance) -> Value {
    json!({
        "consolidationPolicy": one_of(chance, &["WhenEmpty", "WhenEmptyOrUnderutilized", "WhenEmptyOrUnderutilized", "Balanced"]),
        "consolidateAfter": one_of(chance, &["0s", "0s", "30s", "2m", "Never"]),
        "budgets": budgets(chance),
    })
}

/// Budgets as people write them: several, some for some reasons, some at some times.
fn budgets(chance: &mut Chance) -> Value {
    let mut all = Vec::new();
    for _ in 0..chance.between(1, 3) {
        let mut budget = json!({"nodes": one_of(chance, &["0", "1", "1", "2", "10%", "50%", "100%"])});
        if chance.happens(0.4) {
            let reasons: Vec<&str> =
                ["Underutilized", "Empty", "Drifted"].into_iter().filter(|_| chance.happens(0.5)).collect();
            if !reasons.is_empty() {
                budget["reasons"] = json!(reasons);
            }
        }
        if chance.happens(0.3) {
            budget["schedule"] = one_of(chance, &["*/5 * * * *", "*/10 * * * *", "@hourly"]).into();
            budget["duration"] = one_of(chance, &["2m", "5m", "20m"]).into();
        }
        all.push(budget);
    }
    json!(all)
}

/// Those who own the cluster, the cloud and what runs in it.
#[derive(Clone)]
struct People {
    cluster: Cluster,
    platform: Platform,
}

impl People {
    /// Change something twice a minute or so.
    async fn keep_changing_their_minds(self, period: Duration) {
        let mut chance = Chance::new(self.cluster.entropy(), "people");
        let started = Instant::now();
        let mut version = 0;
        while started.elapsed() < period {
            tokio::time::sleep(chance.duration(&Span::secs(5, 60))).await;
            version += 1;
            self.change_something(&mut chance, version).await;
        }
    }

    async fn change_something(&self, chance: &mut Chance, version: u32) {
        let pools = self.names(|objects| objects.node_pools.keys().map(|key| key.name.to_string()).collect());
        let nodes = self.names(|objects| objects.nodes.keys().map(|key| key.name.to_string()).collect());
        let pods = self.names(|objects| {
            let bound = objects.pods.iter().filter(|(_, pod)| is_active(pod) && node_of(pod).is_some());
            bound
                .filter(|(key, _)| *key.namespace == *"default")
                .map(|(key, _)| key.name.to_string())
                .collect()
        });
        let pool = chance.pick(&pools).cloned().unwrap_or_default();
        let node = chance.pick(&nodes).cloned().unwrap_or_default();
        let pod = chance.pick(&pods).cloned().unwrap_or_default();
        match chance.below(10) {
            0 | 1 => {
                let template = json!({"metadata": {"labels": {"version": version.to_string()}}});
                self.patch::<NodePool>(&pool, json!({"spec": {"template": template}})).await;
            }
            2 => self.platform.publish_image(),
            3 => {
                let budgets = budgets(chance);
                self.patch::<NodePool>(&pool, json!({"spec": {"disruption": {"budgets": budgets}}})).await;
            }
            4 => {
                let disruption = disruption(chance);
                self.patch::<NodePool>(&pool, json!({"spec": {"disruption": disruption}})).await;
            }
            5 => {
                let wish = if chance.happens(0.6) { json!("true") } else { Value::Null };
                let about = one_of(chance, &[annotations::DO_NOT_DISRUPT, annotations::DO_NOT_REPAIR]);
                self.patch::<Node>(&node, json!({"metadata": {"annotations": {about: wish}}})).await;
            }
            6 => {
                let wish = one_of(chance, &["true", "true", "2m", ""]);
                let wish = if wish.is_empty() { Value::Null } else { json!(wish) };
                self.patch::<Pod>(&pod, wish_of(wish)).await;
            }
            7 => self.change_a_budget_of_pods(chance).await,
            8 if pools.iter().any(|pool| pool == "fixed") => {
                let replicas = chance.between(0, 4);
                let limits = json!({"nodes": replicas + chance.below(2)});
                self.patch::<NodePool>("fixed", json!({"spec": {"replicas": replicas, "limits": limits}}))
                    .await;
            }
            _ => self.find_broken(chance, &node).await,
        }
    }

    async fn change_a_budget_of_pods(&self, chance: &mut Chance) {
        let app = format!("app-{}", chance.below(3));
        let (least, most) = match chance.below(4) {
            0 => (Value::Null, json!(0)),
            1 => (Value::Null, json!(1)),
            2 => (json!("100%"), Value::Null),
            _ => (json!(1), Value::Null),
        };
        self.patch::<PodDisruptionBudget>(
            &app,
            json!({"spec": {"minAvailable": least, "maxUnavailable": most}}),
        )
        .await;
    }

    /// A monitor finds something wrong with a machine.
    async fn find_broken(&self, chance: &mut Chance, node: &str) {
        let reason = one_of(chance, &["Hung", "Hung", "DiskLost"]);
        let condition = json!({
            "type": BROKEN, "status": "True", "reason": reason, "message": "found by the monitor",
            "lastTransitionTime": self.cluster.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        });
        let found = self.cluster.read(|objects| {
            let node = objects.nodes.iter().find(|(key, _)| *key.name == *node);
            node.map(|(_, node)| (json!(node.status), node.metadata.resource_version.clone()))
        });
        let Some((mut status, version)) = found else { return };
        if let Some(conditions) = status["conditions"].as_array_mut() {
            conditions.retain(|known| known["type"] != BROKEN);
            conditions.push(condition);
        }
        let patch = json!({
            "metadata": {"resourceVersion": version}, "status": {"conditions": status["conditions"]},
        });
        let api: Api<Node> = Api::all(self.cluster.client("monitor"));
        // It may be gone or changed by now.
        let _ = api.patch_status(node, &PatchParams::default(), &Patch::Merge(patch)).await;
    }

    /// The monitor finds fault with one machine of a NodePool at most: where more than a fifth is broken, repair holds off for good.
    async fn agree_with_most(&self) {
        let mut kept = BTreeSet::new();
        let withdrawn: Vec<(String, Value)> = self.cluster.read(|objects| {
            let broken = objects.nodes.iter().filter(|(_, node)| is_broken(node));
            let more = broken.filter(|(_, node)| {
                let pool =
                    node.metadata.labels.as_ref().and_then(|all| all.get(karpenter_api::labels::NODEPOOL));
                !kept.insert(pool.cloned())
            });
            more.map(|(key, node)| {
                let mut conditions = json!(node.status.as_ref().and_then(|status| status.conditions.clone()));
                if let Some(conditions) = conditions.as_array_mut() {
                    conditions.retain(|known| known["type"] != BROKEN);
                }
                (key.name.to_string(), json!({"status": {"conditions": conditions}}))
            })
            .collect()
        });
        let api: Api<Node> = Api::all(self.cluster.client("monitor"));
        for (node, patch) in withdrawn {
            let _ = api.patch_status(&node, &PatchParams::default(), &Patch::Merge(patch)).await;
        }
    }

    /// Nobody minds anything any more: whatever is to be done can be done.
    async fn make_peace(&self) {
        self.agree_with_most().await;
        let pools = self.names(|objects| objects.node_pools.keys().map(|key| key.name.to_string()).collect());
        for pool in pools {
            let disruption = json!({"budgets": [{"nodes": "100%"}], "consolidateAfter": "0s"});
            let mut spec = json!({"disruption": disruption});
            if pool == "fixed" {
                spec["limits"] = json!({"nodes": 10});
            }
            self.patch::<NodePool>(&pool, json!({"spec": spec})).await;
        }
        delete_all_budgets(&self.cluster).await;
        for node in self.names(|objects| objects.nodes.keys().map(|key| key.name.to_string()).collect()) {
            let wishes = json!({annotations::DO_NOT_DISRUPT: null, annotations::DO_NOT_REPAIR: null});
            self.patch::<Node>(&node, json!({"metadata": {"annotations": wishes}})).await;
        }
        for kind in ["Deployment", "StatefulSet", "Job"] {
            self.drop_wishes_of_templates(kind).await;
        }
        let pods = self.names(|objects| {
            let here = objects.pods.keys().filter(|key| *key.namespace == *"default");
            here.map(|key| key.name.to_string()).collect()
        });
        for pod in pods {
            self.patch::<Pod>(&pod, wish_of(Value::Null)).await;
        }
    }

    /// Pods to come have no wishes either.
    async fn drop_wishes_of_templates(&self, kind: &str) {
        // The template of a Job cannot be changed; its pods come to an end.
        if kind == "Job" {
            return;
        }
        let names = self.names(|objects| match kind {
            "Deployment" => objects.deployments.keys().map(|key| key.name.to_string()).collect(),
            _ => objects.stateful_sets.keys().map(|key| key.name.to_string()).collect(),
        });
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", kind));
        let api: Api<DynamicObject> = Api::default_namespaced_with(self.cluster.client("user"), &resource);
        for name in names {
            let patch = json!({"spec": {"template": wish_of(Value::Null)}});
            let _ = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
        }
    }

    fn names(&self, of: impl FnOnce(&Objects) -> Vec<String>) -> Vec<String> {
        self.cluster.read(of)
    }

    /// Changes an object; it may be gone by now.
    async fn patch<K>(&self, name: &str, patch: Value)
    where
        K: Resource<DynamicType = ()>,
    {
        let resource = ApiResource::erase::<K>(&());
        let client = self.cluster.client("user");
        let namespaced = ["Pod", "PodDisruptionBudget"].contains(&resource.kind.as_str());
        let api: Api<DynamicObject> = if namespaced {
            Api::default_namespaced_with(client, &resource)
        } else {
            Api::all_with(client, &resource)
        };
        let _ = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    }
}

fn wish_of(wish: Value) -> Value {
    json!({"metadata": {"annotations": {annotations::DO_NOT_DISRUPT: wish}}})
}

async fn delete_all_budgets(cluster: &Cluster) {
    let api: Api<PodDisruptionBudget> = Api::default_namespaced(cluster.client("user"));
    let _ =
        api.delete_collection(&kube::api::DeleteParams::default(), &kube::api::ListParams::default()).await;
}

/// Kubelets fall silent for a while, and somebody deletes a NodeClaim now and then.
async fn misfortune(cluster: Cluster, faults: Faults) {
    let mut chance = Chance::new(cluster.entropy(), "misfortune");
    let claims: Api<NodeClaim> = Api::all(cluster.client("user"));
    while faults.are_on() {
        tokio::time::sleep(chance.duration(&Span::secs(60, 240))).await;
        if chance.happens(0.5) {
            let names: Vec<String> =
                cluster.read(|objects| objects.node_claims.keys().map(|key| key.name.to_string()).collect());
            if let Some(name) = chance.pick(&names) {
                // It may be gone already.
                let _ = claims.delete(name, &kube::api::DeleteParams::default()).await;
            }
            continue;
        }
        let nodes: Vec<String> =
            cluster.read(|objects| objects.nodes.keys().map(|key| key.name.to_string()).collect());
        if let Some(node) = chance.pick(&nodes).filter(|node| cluster.kubelet_alive(node)) {
            cluster.set_kubelet(node, false);
            tokio::time::sleep(chance.duration(&Span::secs(30, 150))).await;
            let machine_lives =
                cluster.inventory(|inventory| inventory.live().any(|instance| instance.node_name == *node));
            if machine_lives {
                cluster.set_kubelet(node, true);
            }
        }
    }
}
