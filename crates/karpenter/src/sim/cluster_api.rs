//! The Cluster API world: users come and go while the workload cluster, the management cluster and the process fail, Machines meet
//! every misfortune, and people and their tools do to the Cluster what they do; then everything heals and must come right, and
//! when all work is gone so must be every Machine that is Karpenter's, with its clones.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use karpenter_cloudprovider::{Installation, Surroundings};
use karpenter_provider_cluster_api::ClusterAPINodeClass;
use karpenter_provider_cluster_api::client::settings::Settings;
use karpenter_provider_cluster_api::wiring::{self, Parts};
use karpenter_runtime::clock::{Clock, SharedClock};
use karpenter_runtime::entropy::Entropy;
use karpenter_runtime::environment::Environment;
use karpenter_sim::chance::{Chance, Span};
use karpenter_sim::cluster_api::unrest::{BROKEN, TO_BE_TAKEN, Unrest};
use karpenter_sim::cluster_api::{
    self, ClaimedMachinesLive, ClusterApi, FewWrites, Lag, LevelsWithinBounds, MachinesGoWithTheirClaims,
    NothingGoesInTheDark, OneMachinePerClaim, RaisedForSomebody, RolloutsCount, is_settled,
};
use karpenter_sim::faults::{FaultPlan, Faults};
use karpenter_sim::invariants::Invariant;
use karpenter_sim::process::Life;
use karpenter_sim::traffic::{self, Script, Volume};
use karpenter_sim::{Objects, Process, Trouble, World, WorldOptions, invariants};
use kube::api::DynamicObject;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::course::{MINUTE, discontent, discontent_and_nodes, go_home, told};
use super::operator::{self, Leads};
use super::{Report, Run};

const SECOND: Duration = Duration::from_secs(1);
const CAPACITY: &str = "capacity.cluster-autoscaler.kubernetes.io/";
const NODE_LABELS: &str = "capacity.cluster-autoscaler.kubernetes.io/labels";
const CLAIM: &str = "karpenter.cluster.x-k8s.io/nodeclaim-uid";
const NAMESPACE: &str = "fleet";
const CLUSTER: &str = "c";
const MIN_SIZE: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size";
const MAX_SIZE: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size";

/// Lives through one seed.
pub(super) async fn simulate(run: Run) -> Report {
    let entropy = Entropy::from_seed(run.seed);
    let world = match World::new(WorldOptions { seed: run.seed, ..WorldOptions::default() }).await {
        Ok(world) => world,
        Err(trouble) => return Report::failed_to_begin(&trouble),
    };
    let lag = if run.calm { Lag::none() } else { Lag::drawn(world.cluster()) };
    let capi = match ClusterApi::install_behind(&world, &lag).await {
        Ok(capi) => capi,
        Err(trouble) => return Report::failed_to_begin(&trouble),
    };
    let plan = |name: &str| {
        if run.calm { FaultPlan::none() } else { FaultPlan::swarm(&entropy.child(name)) }
    };
    let hub = Faults::new(plan("hub"), world.cluster().entropy(), "hub");
    world.cluster().watch_over(rules(&hub));
    let behind = hub.clone();
    let repairs = Chance::new(&entropy, "node repair").happens(0.25);
    let process = world.process("karpenter", plan("workload"), move |life| {
        karpenter(life, behind.clone(), Leads::IfElected, repairs)
    });
    run.plant_into(&process);
    let result = live(&world, &capi, &process, &hub, run, repairs).await;
    let failure = result.err().map(|trouble| told(&trouble, &world.cluster().read(state)));
    let machines = world.cluster().read(|objects| objects.machines.len());
    Report::of(world.cluster(), &process, &format!("machines={machines}"), failure)
}

/// O1 to O9, which are about Cluster API, and the core's own rules.
pub(super) fn rules(hub: &Faults) -> Vec<Box<dyn Invariant>> {
    let mut rules: Vec<Box<dyn Invariant>> = vec![
        Box::new(OneMachinePerClaim),
        Box::new(ClaimedMachinesLive::new("karpenter")),
        Box::new(LevelsWithinBounds::new("karpenter")),
        Box::new(RaisedForSomebody::new("karpenter")),
        Box::new(MachinesGoWithTheirClaims::new("karpenter", hub)),
        Box::new(FewWrites::new("karpenter")),
        Box::new(NothingGoesInTheDark::new("karpenter", hub)),
        Box::new(RolloutsCount::new(hub)),
    ];
    rules.extend(invariants::all("karpenter"));
    rules
}

/// How far the provider's clock may be off, either way.
const CLOCK_SKEW_SECONDS: u64 = 90;

/// Karpenter as `karpenter run --provider cluster-api` starts it, with a management cluster of its own behind `hub`; with node repair,
/// or without.
pub(super) fn karpenter(life: Life, hub: Faults, leads: Leads, repairs: bool) -> BoxFuture<'static, ()> {
    let management = life.client_behind(&hub);
    let install = move |around: Surroundings| {
        let parts = Parts {
            workload: around.client,
            management: management.clone(),
            settings: Settings {
                cluster_name: Some(CLUSTER.to_owned()),
                cluster_namespace: Some(NAMESPACE.to_owned()),
                node_repair: repairs,
                ..Settings::default()
            },
            environment: Environment { clock: skewed(&around.environment), ..around.environment },
            recorder: around.recorder,
            // No prices are told by endpoints in this world.
            fetch: Arc::new(|_| std::future::ready(Err("there is no network".to_owned())).boxed()),
        };
        async move {
            let (provider, parts) = wiring::assemble(parts).await.ok()?;
            Some(Installation { provider, parts })
        }
        .boxed()
    };
    let flags: &[&str] = if repairs { &["--feature-gates=NodeRepair=true"] } else { &[] };
    operator::live(life, operator::settings(flags), leads, install).boxed()
}

/// A clock that is off by as much as the life's entropy says.
fn skewed(environment: &Environment) -> SharedClock {
    let mut chance = Chance::new(&environment.entropy, "clock skew");
    let ahead = SignedDuration::from_secs(i64::try_from(chance.below(2 * CLOCK_SKEW_SECONDS)).unwrap_or(0));
    let behind = SignedDuration::from_secs(i64::try_from(CLOCK_SKEW_SECONDS).unwrap_or(0));
    Arc::new(Skewed { clock: Arc::clone(&environment.clock), by: ahead - behind })
}

#[derive(Debug)]
struct Skewed {
    clock: SharedClock,
    by: SignedDuration,
}

impl Skewed {
    fn shown(&self, time: Timestamp) -> Timestamp {
        time.saturating_add(self.by).unwrap_or(time)
    }
}

impl Clock for Skewed {
    fn now(&self) -> Timestamp {
        self.shown(self.clock.now())
    }

    fn doubted_for(&self) -> Duration {
        self.clock.doubted_for()
    }

    fn undoubted_now(&self) -> Timestamp {
        self.shown(self.clock.undoubted_now())
    }
}

async fn live(
    world: &World,
    capi: &ClusterApi,
    process: &Arc<Process>,
    hub: &Faults,
    run: Run,
    repairs: bool,
) -> Result<(), Trouble> {
    let mut chance = Chance::new(world.cluster().entropy(), "traffic");
    // What came later has a stream of its own, so that seeds are what they were where it does not matter.
    let mut later = Chance::new(world.cluster().entropy(), "cluster-api setting");
    let mut latest = Chance::new(world.cluster().entropy(), "cluster-api customs");
    let plan = Setting::draw(&mut chance, &mut later, &mut latest, repairs);
    for object in plan.objects(&mut chance) {
        world.create(object).await?;
    }
    if plan.domains {
        let told = capi.have_failure_domains(NAMESPACE, CLUSTER, &["a", "b"]).await;
        told.map_err(|source| Trouble::Refused {
            what: "failure domains".to_owned(),
            source: Box::new(source),
        })?;
    }
    let serve = async |versions: &[&str]| {
        let served = capi.serve(versions).await;
        served.map_err(|source| Trouble::Refused {
            what: format!("serving {versions:?}"),
            source: Box::new(source),
        })
    };
    if plan.begins_with_the_old_version {
        serve(&["v1beta1"]).await?;
    }
    capi.check_health(true);
    // Machines that are not Karpenter's.
    world.run_for(30 * SECOND).await?;
    process.start();
    let volume = Volume { deployments: 3, replicas: 6, period: 10 * MINUTE };
    let script = Script::draw(&mut chance, &volume);
    if run.calm {
        script.play(world).await?;
        world.run_for(3 * MINUTE).await?;
    } else {
        capi.misfortune().swarm(world.cluster().entropy());
        let danger = process.endanger(Span::secs(60, 300), Span::secs(1, 20));
        let claims = tokio::spawn(traffic::delete_claims(world.cluster().clone(), process.faults().clone()));
        let mut unrest = Unrest::new(capi, hub, NAMESPACE, CLUSTER);
        // Cluster API is upgraded some time.
        let upgraded = async {
            if plan.begins_with_the_old_version {
                tokio::time::sleep(plan.upgraded_after).await;
                serve(&["v1beta1", "v1beta2"]).await?;
            }
            Ok::<(), Trouble>(())
        };
        let (played, upgraded, usurped, ()) =
            tokio::join!(script.play(world), upgraded, usurp(world, hub, repairs), unrest.reign(12 * MINUTE));
        played?;
        upgraded?;
        usurped?;
        if chance.happens(0.3) {
            lead_twice(world, hub, &mut chance, repairs).await?;
        }
        world.run_for(MINUTE).await?;
        process.faults().heal();
        hub.heal();
        capi.end_misfortune().await.map_err(|source| Trouble::Refused {
            what: "putting Nodes right".to_owned(),
            source: Box::new(source),
        })?;
        // They end at their next turn, with the process running.
        let _ = (danger.await, claims.await);
    }
    let healed = Instant::now();
    world.wait_until("every pod is ready", 120 * MINUTE, |objects| discontent(objects).is_empty()).await?;
    world.run_for(20 * MINUTE).await?;
    let ready = |objects: &Objects| discontent(objects).is_empty() && all_is_calm(objects);
    world.wait_until("every pod is ready still", 90 * MINUTE, ready).await?;
    world.cluster().check_at_rest(healed.elapsed())?;
    capi.note_adopted();

    go_home(world, &script).await?;
    let empty = |objects: &Objects| {
        // Also what was cloned for Machines that were never made.
        let mut made = objects
            .machines
            .values()
            .chain(objects.sim_machines.values())
            .chain(objects.sim_configs.values());
        objects.node_claims.is_empty() && made.all(|object| !is_claimed(object))
    };
    world.wait_until("every Machine of Karpenter's is gone, and every clone", 90 * MINUTE, empty).await?;
    world.run_for(15 * MINUTE).await?;
    world.cluster().check_at_rest(healed.elapsed())?;
    process.stop(MINUTE).await;
    Ok(())
}

/// While all this happens, in some seeds, another Karpenter believes more than once that it leads, for longer than a lease takes to run
/// out, and with bad luck of its own.
async fn usurp(world: &World, hub: &Faults, repairs: bool) -> Result<(), Trouble> {
    let plan = FaultPlan::swarm(&world.cluster().entropy().child("usurper"));
    let mut chance = Chance::new(world.cluster().entropy(), "usurper");
    if !chance.happens(0.4) {
        return Ok(());
    }
    let hub = hub.clone();
    let second =
        world.process("karpenter-3", plan, move |life| karpenter(life, hub.clone(), Leads::Always, repairs));
    for _ in 0..chance.between(1, 3) {
        tokio::time::sleep(chance.duration(&Span::secs(30, 240))).await;
        second.start();
        tokio::time::sleep(chance.duration(&Span::secs(5, 20))).await;
        second.kill();
    }
    Ok(())
}

/// A second Karpenter believes for a while that it leads.
async fn lead_twice(world: &World, hub: &Faults, chance: &mut Chance, repairs: bool) -> Result<(), Trouble> {
    let hub = hub.clone();
    let second = world.process("karpenter-2", FaultPlan::none(), move |life| {
        karpenter(life, hub.clone(), Leads::Always, repairs)
    });
    second.start();
    world.run_for(chance.duration(&Span::secs(5, 15))).await?;
    second.kill();
    Ok(())
}

/// Who is not content, and what there is of Cluster API.
fn state(objects: &Objects) -> Vec<String> {
    let mut state = discontent_and_nodes(objects);
    let number = |object: &DynamicObject, pointer: &str| object.data.pointer(pointer).map(Value::to_string);
    for (key, deployment) in &objects.machine_deployments {
        let (level, there) = (number(deployment, "/spec/replicas"), number(deployment, "/status/replicas"));
        let annotations = deployment.metadata.annotations.iter().flatten();
        let kept: Vec<String> = annotations.map(|(key, value)| format!("{key}={value}")).collect();
        state.push(format!("{key} has {level:?} replicas and {there:?} Machines: {}", kept.join(" ")));
    }
    for (key, machine) in &objects.machines {
        let going = if machine.metadata.deletion_timestamp.is_some() { " and is going" } else { "" };
        let claim = machine.metadata.annotations.as_ref().and_then(|all| all.get(CLAIM));
        state.push(format!("Machine {key} is claimed by {claim:?}{going}"));
    }
    state
}

/// Whether a Machine, or a clone for one, is Karpenter's.
fn is_claimed(machine: &DynamicObject) -> bool {
    let ours = |namespace: &String| namespace == NAMESPACE;
    machine.metadata.namespace.as_ref().is_some_and(ours)
        && machine.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(CLAIM))
}

/// Nobody waits for a Machine, and none is on its way out, nor a NodeClaim but for those that a pod holds up.
fn all_is_calm(objects: &Objects) -> bool {
    objects.node_claims.values().all(|claim| is_settled(objects, claim))
        && objects.machines.values().all(|machine| machine.metadata.deletion_timestamp.is_none())
}

/// What a seed decides about the Cluster.
struct Setting {
    machine_mode: bool,
    /// Whether Machines are made from templates that the NodeClass names, in place of MachineDeployments.
    templates: bool,
    drift: &'static str,
    remediation: &'static str,
    adoption: &'static str,
    /// Replicas that were there before Karpenter.
    foreign: u64,
    /// Whether Cluster API waits for Karpenter before it drains a node.
    hook: bool,
    /// Whether there is a MachineSet that belongs to no MachineDeployment, and how many replicas it has before Karpenter comes.
    machine_set: Option<u64>,
    /// Whether Cluster API serves v1beta1 alone at first, and for how long.
    begins_with_the_old_version: bool,
    upgraded_after: Duration,
    /// Whether the Cluster has a topology that owns the MachineDeployments.
    topology: bool,
    /// How many Machines a MachineDeployment has whether they are used or not.
    least: u64,
    /// How many more Machines than wanted a rollout may have, and how many fewer.
    rolling: (u64, u64),
    /// Whether templates alone say what machines have, in their status.
    told_by_templates: bool,
    /// How long bootstrap data takes, where it is made for each Machine.
    bootstrap: Option<u64>,
    /// Whether all MachineDeployments leave old Machines to Karpenter, not one alone.
    on_delete: bool,
    /// How many launches may begin at a time, by NodeClass or by resource.
    limits: Option<Value>,
    /// Whether Machines of their own may be put in any of the Cluster's failure domains.
    domains: bool,
    /// Whether the NodeClass says which conditions announce a machine's end, and which mean that a node is broken.
    conditions: bool,
}

impl Setting {
    fn draw(chance: &mut Chance, later: &mut Chance, latest: &mut Chance, repairs: bool) -> Self {
        let mut one_of = |of: &[&'static str]| chance.pick(of).copied().unwrap_or_default();
        let drift = one_of(&["Off", "ClusterAPI", "Karpenter"]);
        let remediation = one_of(&["Karpenter", "ClusterAPI"]);
        let adoption = one_of(&["Never", "Unclaimed", "Existing", "Existing"]);
        // Without node repair nobody would.
        let remediation = if repairs && latest.happens(0.5) { "NodeRepair" } else { remediation };
        let machine_mode = chance.happens(0.25);
        // Without nodes that were there before there is nothing to adopt.
        let settled = chance.happens(if adoption == "Existing" { 0.8 } else { 0.3 });
        let mut setting = Self {
            machine_mode,
            templates: false,
            drift,
            remediation,
            adoption,
            foreign: if settled { chance.between(1, 3) } else { 0 },
            hook: chance.happens(0.3),
            machine_set: chance.happens(0.4).then(|| if settled { chance.below(3) } else { 0 }),
            begins_with_the_old_version: chance.happens(0.15),
            upgraded_after: chance.duration(&Span::secs(30, 600)),
            topology: chance.happens(0.4),
            least: if chance.happens(0.3) { chance.between(1, 2) } else { 0 },
            rolling: chance.pick(&[(1, 0), (1, 0), (2, 0), (0, 1), (1, 1)]).copied().unwrap_or((1, 0)),
            told_by_templates: later.happens(0.25),
            bootstrap: later.happens(0.3).then(|| later.below(90)),
            on_delete: drift == "Karpenter" && later.happens(0.6),
            limits: latest.happens(0.25).then(|| match latest.happens(0.5) {
                true => json!({"perMinute": latest.between(4, 12)}),
                false => json!({"perResource": latest.between(1, 4)}),
            }),
            domains: machine_mode && latest.happens(0.5),
            conditions: latest.happens(0.5),
        };
        setting.templates = machine_mode && chance.happens(0.5);
        setting
    }

    /// A Cluster with two zones: in each a cheap MachineDeployment that is short or slow, and a dear one that is not.
    fn objects(&self, chance: &mut Chance) -> Vec<Value> {
        let price = |text: &'static str| ("karpenter.cluster.x-k8s.io/price", text);
        let zone = |zone: &str| json!({"topology.kubernetes.io/zone": zone});
        let quota = json!({"quota": chance.between(1, 4), "provisionSeconds": 5, "nodeLabels": zone("a")});
        let slow = json!({
            "provisionSeconds": chance.between(1, 120), "joinSeconds": 5, "deleteSeconds": chance.between(0, 60),
            "nodeLabels": zone("b"),
        });
        let plain = |place: &str| match self.domains {
            true => json!({"provisionSeconds": 3, "joinSeconds": 2}),
            false => json!({"provisionSeconds": 3, "joinSeconds": 2, "nodeLabels": zone(place)}),
        };
        // Those of them whose nodes are where they are asked to be say nothing of a zone.
        let goes_anywhere = |name: &str| self.domains && matches!(name, "dear" | "far" | "alone");
        let deployment = |name: &str, zone: &str, annotations: &[(&str, &str)]| {
            let labels = format!("topology.kubernetes.io/zone={zone}");
            let mut all = annotations.to_vec();
            if !goes_anywhere(name) {
                all.push((NODE_LABELS, &labels));
            }
            let mut made = cluster_api::machine_deployment(NAMESPACE, CLUSTER, name, name, &all);
            let (surge, unavailable) = self.rolling;
            made["spec"]["rollout"] = json!({"strategy": {
                "type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable},
            }});
            if self.on_delete {
                made["spec"]["rollout"] = json!({"strategy": {"type": "OnDelete"}});
            }
            if self.told_by_templates {
                for told in ["cpu", "memory"] {
                    made["metadata"]["annotations"]
                        .as_object_mut()
                        .map(|all| all.remove(&format!("{CAPACITY}{told}")));
                }
            }
            if self.bootstrap.is_some() {
                made["spec"]["template"]["spec"]["bootstrap"] = json!({"configRef": config_reference()});
            }
            // Some budgets never allow an eviction.
            made["spec"]["template"]["spec"]["deletion"] = json!({"nodeDrainTimeoutSeconds": 300});
            made
        };
        let mut dear = deployment("dear", "a", &[(MAX_SIZE, "100"), price("0.3")]);
        dear["spec"]["replicas"] = self.foreign.into();
        if self.drift == "Karpenter" {
            dear["spec"]["rollout"] = json!({"strategy": {"type": "OnDelete"}});
        }
        let consolidate = chance.pick(&["0s", "30s", "5m", "Never"]).copied().unwrap_or_default();
        let policy = if chance.happens(0.5) { "WhenEmpty" } else { "WhenEmptyOrUnderutilized" };
        let nodes = chance.pick(&["1", "10%", "50%", "100%"]).copied().unwrap_or_default();
        let mut class = json!({
            "timeouts": {"launch": "8m", "surplus": "3m"},
            "drift": self.drift, "remediation": self.remediation, "adoption": self.adoption,
        });
        if self.hook {
            class["timeouts"]["hook"] = "5m".into();
        }
        if self.machine_mode {
            class["launchMode"] = "Machine".into();
        }
        if let Some(limits) = &self.limits {
            class["launchLimits"] = limits.clone();
        }
        if self.conditions {
            class["interruptionConditions"] = json!([TO_BE_TAKEN]);
            class["repairConditions"] = json!([{"type": BROKEN, "status": "True", "after": "2m"}]);
        }
        if self.templates {
            class["machineTemplates"] =
                ["quota", "slow", "dear", "far"].map(|name| self.machine_template(name)).to_vec().into();
        }
        // What a MachineDeployment would say of its nodes.
        let template = |name: &str, place: &str, price: &str, mut behaviour: Value| {
            if self.told_by_templates {
                behaviour["tellsCapacity"] = true.into();
            }
            let mut template = cluster_api::template(NAMESPACE, name, behaviour);
            if self.templates {
                template["metadata"]["annotations"] = json!({"karpenter.cluster.x-k8s.io/price": price});
            }
            if self.templates && !goes_anywhere(name) {
                let labels = format!("topology.kubernetes.io/zone={place}");
                template["metadata"]["annotations"][NODE_LABELS] = labels.into();
            }
            if self.templates && !self.told_by_templates {
                template["metadata"]["annotations"][format!("{CAPACITY}cpu")] = "4".into();
                template["metadata"]["annotations"][format!("{CAPACITY}memory")] = "16Gi".into();
            }
            template
        };
        let machine_set = self.machine_set.map(|replicas| {
            let mut set = deployment("alone", "b", &[(MAX_SIZE, "5"), price("0.15")]);
            set["kind"] = "MachineSet".into();
            set["spec"]["replicas"] = replicas.into();
            set["spec"]["selector"] = json!({"matchLabels": {"of": "alone"}});
            set["spec"]["template"]["metadata"]["labels"]["of"] = "alone".into();
            set
        });
        let least = self.least.to_string();
        let mut cluster = cluster_api::cluster(NAMESPACE, CLUSTER);
        let mut quota_deployment = deployment("quota", "a", &[(MAX_SIZE, "8"), price("0.1")]);
        let mut slow_deployment = deployment("slow", "b", &[(MAX_SIZE, "4"), price("0.2")]);
        let mut far = deployment("far", "b", &[(MIN_SIZE, &least), (MAX_SIZE, "100"), price("0.35")]);
        if self.topology {
            cluster_api::own(
                &mut cluster,
                &mut [&mut quota_deployment, &mut slow_deployment, &mut dear, &mut far],
            );
        }
        let mut objects = vec![
            ClusterAPINodeClass::crd().to_json(),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": format!("{NAMESPACE}-2")}}),
            cluster,
            template("quota", "a", "0.1", quota),
            template("slow", "b", "0.2", slow),
            template("dear", "a", "0.3", plain("a")),
            template("far", "b", "0.35", plain("b")),
            template("alone", "b", "0.15", plain("b")),
            quota_deployment,
            slow_deployment,
            dear,
            far,
            json!({
                "apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass",
                "metadata": {"name": "default"}, "spec": class,
            }),
            json!({
                "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"},
                "spec": {
                    "disruption": {
                        "consolidationPolicy": policy, "consolidateAfter": consolidate,
                        "budgets": [{"nodes": nodes}],
                    },
                    "template": {"spec": {
                        "requirements": [],
                        "nodeClassRef": {
                            "group": "karpenter.cluster.x-k8s.io", "kind": "ClusterAPINodeClass", "name": "default",
                        },
                    }},
                },
            }),
        ];
        objects.extend(machine_set);
        objects
            .extend(self.bootstrap.map(|seconds| cluster_api::config_template(NAMESPACE, "join", seconds)));
        objects
    }

    /// An entry of a NodeClass's `machineTemplates`.
    fn machine_template(&self, name: &str) -> Value {
        let mut entry = json!({
            "name": name, "version": "v1.36.0",
            "infrastructureRef": {
                "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "SimMachineTemplate", "name": name,
            },
        });
        match self.bootstrap {
            Some(_) => entry["bootstrapRef"] = config_reference(),
            None => entry["bootstrapDataSecretName"] = "bootstrap".into(),
        }
        entry
    }
}

/// Where bootstrap data comes from.
fn config_reference() -> Value {
    json!({"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "SimConfigTemplate", "name": "join"})
}
