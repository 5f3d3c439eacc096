//! The whole of Karpenter on a simulated Cluster API: what the provider's own tests, with their small core, cannot show.

use std::sync::Arc;
use std::time::Duration;

use karpenter_api::conditions::HasConditions as _;
use karpenter_api::{ConditionStatus, NodePool};
use karpenter_cloudprovider::{CloudProvider, Measured, Registry, Surroundings};
use karpenter_controllers::operator::COMPONENT;
use karpenter_controllers::{Given, assemble};
use karpenter_provider_cluster_api::ClusterAPINodeClass;
use karpenter_runtime::compute::Compute;
use karpenter_runtime::environment::Environment;
use karpenter_runtime::events;
use karpenter_runtime::metrics::Registry as Metrics;
use karpenter_runtime::options::{Environ, Options};
use karpenter_sim::cluster_api::{self, ClusterApi, Kind};
use karpenter_sim::invariants::replacements::ReplacementsComeFirst;
use karpenter_sim::invariants::{Invariant, Step};
use karpenter_sim::objects::{Change, is_active, is_deleting, is_ready};
use karpenter_sim::traffic::{Act, Script};
use karpenter_sim::{Objects, World, WorldOptions, in_virtual_time};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::json;
use tokio_util::sync::CancellationToken;

const MINUTE: Duration = Duration::from_secs(60);
const NAMESPACE: &str = "fleet";
const PRICE: &str = "karpenter.cluster.x-k8s.io/price";

/// A cluster with two sizes of nodes, large and small, at these prices.
struct Stage {
    world: World,
    controllers: ClusterApi,
    stop: CancellationToken,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Stage {
    async fn new(prices: Option<[&str; 2]>) -> Self {
        Self::with(prices, &[]).await
    }

    /// With these settings.
    async fn with(prices: Option<[&str; 2]>, settings: &[&str]) -> Self {
        Self::of(prices, settings, json!({"drift": "Karpenter"}), json!({})).await
    }

    /// With this NodeClass, and a NodePool of which something is so.
    async fn of(
        prices: Option<[&str; 2]>,
        settings: &[&str],
        class: serde_json::Value,
        of_nodes: serde_json::Value,
    ) -> Self {
        let world = World::new(WorldOptions::default()).await.expect("a world");
        let controllers = ClusterApi::install(&world).await.expect("Cluster API");
        // More than one is never disrupted at a time: the pool's budget.
        world.cluster().watch_over(karpenter_sim::invariants::all("karpenter"));
        let mut objects = vec![
            ClusterAPINodeClass::crd().to_json(),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
            cluster_api::cluster(NAMESPACE, "c"),
            json!({
                "apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass",
                "metadata": {"name": "default"}, "spec": class,
            }),
        ];
        let mut nodes = json!({"requirements": [], "nodeClassRef": {
            "group": "karpenter.cluster.x-k8s.io", "kind": "ClusterAPINodeClass", "name": "default",
        }});
        for (field, value) in of_nodes.as_object().into_iter().flatten() {
            nodes[field] = value.clone();
        }
        objects.push(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"},
            "spec": {
                "disruption": {
                    "consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "30s",
                    "budgets": [{"nodes": "1"}],
                },
                "template": {"spec": nodes},
            },
        }));
        for (index, (name, cpu, memory)) in
            [("large", "8", "32Gi"), ("small", "4", "16Gi")].into_iter().enumerate()
        {
            let machine = json!({
                "provisionSeconds": 3, "joinSeconds": 2,
                "capacity": {"cpu": cpu, "memory": memory, "pods": "110"},
                // Without a zone a node is consolidated only when it is empty.
                "nodeLabels": {"topology.kubernetes.io/zone": "a"},
            });
            objects.push(cluster_api::template(NAMESPACE, name, machine));
            let mut annotations = vec![
                ("capacity.cluster-autoscaler.kubernetes.io/cpu", cpu),
                ("capacity.cluster-autoscaler.kubernetes.io/memory", memory),
                ("capacity.cluster-autoscaler.kubernetes.io/labels", "topology.kubernetes.io/zone=a"),
            ];
            annotations.extend(prices.map(|prices| (PRICE, prices[index])));
            objects.push(cluster_api::machine_deployment(NAMESPACE, "c", name, name, &annotations));
        }
        for object in objects {
            world.create(object).await.expect("an object");
        }
        let stop = CancellationToken::new();
        run_karpenter(&world, settings, stop.clone()).await;
        Self { world, controllers, stop }
    }

    async fn apply(&self, name: &str, replicas: u64, cpu: &str, apart: bool) {
        let mut spec = json!({"terminationGracePeriodSeconds": 0, "containers": [{
            "name": "main", "image": "registry.k8s.io/pause", "resources": {"requests": {"cpu": cpu}},
        }]});
        if apart {
            spec["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": name}}},
            ]}});
        }
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
            "spec": {
                "replicas": replicas, "selector": {"matchLabels": {"app": name}},
                "template": {"metadata": {"labels": {"app": name}}, "spec": spec},
            },
        });
        self.world.create(deployment).await.expect("a Deployment");
    }

    /// Has the pods of a Deployment tolerate taints of this key.
    async fn tolerate(&self, name: &str, key: &str) {
        let tolerations = json!([{"key": key, "operator": "Exists"}]);
        let tolerating = Patch::Merge(json!({"spec": {"template": {"spec": {"tolerations": tolerations}}}}));
        let deployments: Api<k8s_openapi::api::apps::v1::Deployment> =
            Api::namespaced(self.world.cluster().client("user"), "default");
        deployments.patch(name, &PatchParams::default(), &tolerating).await.expect("the Deployment");
    }

    async fn delete(&self, name: &str) {
        let act = Act::Delete { kind: "Deployment", name: name.to_owned() };
        Script { acts: vec![(Duration::ZERO, act)] }.play(&self.world).await.expect("it goes");
    }

    async fn until(&self, what: &str, holds: impl Fn(&Objects) -> bool) {
        self.world.wait_until(what, 30 * MINUTE, holds).await.expect(what);
    }

    /// The nodes there are, by instance type.
    fn nodes(&self) -> Vec<String> {
        self.world.cluster().read(types)
    }

    /// Writes of somebody whose line on the tape contains a text.
    fn writes(&self, actor: &str, text: &str) -> usize {
        self.world.cluster().tape(|tape| {
            let theirs = tape.entries().iter().filter(|entry| entry.actor.starts_with(actor));
            theirs.filter(|entry| entry.deed.contains(text) && entry.outcome.starts_with('2')).count()
        })
    }

    /// The messages of events of this reason.
    async fn events(&self, reason: &str) -> Vec<String> {
        let api: Api<k8s_openapi::api::core::v1::Event> = Api::all(self.world.cluster().client("user"));
        let events = api.list(&ListParams::default()).await.expect("events").items;
        let of_reason = events.into_iter().filter(|event| event.reason.as_deref() == Some(reason));
        of_reason.filter_map(|event| event.message).collect()
    }

    /// Of those about objects of this kind.
    async fn events_of(&self, kind: &str, reason: &str) -> Vec<String> {
        let api: Api<k8s_openapi::api::core::v1::Event> = Api::all(self.world.cluster().client("user"));
        let mut events = api.list(&ListParams::default()).await.expect("events").items;
        events.retain(|event| event.involved_object.kind.as_deref() == Some(kind));
        let of_reason = events.into_iter().filter(|event| event.reason.as_deref() == Some(reason));
        of_reason.filter_map(|event| event.message).collect()
    }

    fn api(&self, kind: Kind) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(kind.group(), "v1beta2", kind.as_str()));
        Api::namespaced_with(self.world.cluster().client("user"), NAMESPACE, &resource)
    }

    /// The names of the NodeClaims there are.
    fn names(&self) -> Vec<String> {
        self.world.cluster().read(|objects| objects.node_claims.keys().map(ToString::to_string).collect())
    }

    async fn annotate(&self, name: &str, key: &str, value: &str) {
        self.change(name, json!({"metadata": {"annotations": {key: value}}})).await;
    }

    /// Changes a MachineDeployment.
    async fn change(&self, name: &str, change: serde_json::Value) {
        let api = self.api(Kind::MachineDeployment);
        api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await.expect("a change");
    }
}

fn types(objects: &Objects) -> Vec<String> {
    let mut types: Vec<String> = objects
        .node_claims
        .values()
        .filter(|claim| !is_deleting(&***claim))
        .filter_map(|claim| claim.metadata.labels.as_ref()?.get("node.kubernetes.io/instance-type").cloned())
        .collect();
    types.sort();
    types
}

fn all_run(objects: &Objects) -> bool {
    !objects.pods.is_empty() && objects.pods.values().all(|pod| !is_active(pod) || is_ready(pod))
}

async fn run_karpenter(world: &World, settings: &[&str], stop: CancellationToken) {
    let cluster = world.cluster();
    let environment = Environment {
        clock: Arc::new(cluster.clock().clone()),
        entropy: cluster.entropy().child("karpenter"),
        registry: Metrics::new(),
    };
    let client = cluster.client("karpenter");
    let settings = ["--provider", "cluster-api"].into_iter().chain(settings.iter().copied());
    let options = Arc::new(Options::parse(settings, &Environ::new()).expect("options"));
    let (recorder, writer) = events::recorder(COMPONENT, &environment);
    let around = Surroundings {
        client: client.clone(),
        environment: environment.clone(),
        options: Arc::clone(&options),
        recorder: recorder.clone(),
    };
    let installation = karpenter_provider_cluster_api::install(&around).await.expect("the provider");
    let measured = Arc::new(Measured::new(installation.provider, &environment.registry));
    let (mut program, _) = assemble(Given {
        client,
        environment,
        options,
        providers: Registry::of([measured as Arc<dyn CloudProvider>]).expect("one provider"),
        events: (recorder, writer),
        compute: Compute::Inline,
    });
    for part in installation.parts {
        program.while_leading(part.name, part.run);
    }
    tokio::spawn(program.run(stop, None));
}

/// Three large nodes, half empty, whose pods then shrink.
async fn shrink(prices: Option<[&str; 2]>, mode: &str) -> Stage {
    let class = json!({"drift": "Karpenter", "launchMode": mode});
    let stage = Stage::of(prices, &[], class, json!({})).await;
    stage.apply("big", 3, "5", true).await;
    stage.until("three large nodes", |objects| types(objects) == ["large"; 3] && all_run(objects)).await;
    stage.apply("little", 3, "1", false).await;
    stage.until("the little ones run", all_run).await;
    stage.delete("big").await;
    let settled =
        |objects: &Objects| types(objects) == ["small"] && objects.node_claims.len() == 1 && all_run(objects);
    stage.until("one small node is enough", settled).await;
    stage
}

#[test]
fn a1_a_pod_runs_on_a_machine_deployment_scaled_from_zero() {
    in_virtual_time(async {
        let stage = Stage::new(Some(["0.40", "0.15"])).await;
        stage.apply("app", 1, "2", false).await;
        stage.until("it runs", |objects| types(objects) == ["small"] && all_run(objects)).await;
        stage.world.run_for(5 * MINUTE).await.expect("time passes");
        assert_eq!(stage.writes("karpenter", "/scale"), 1, "exactly one scale write");
        stage.world.cluster().read(|objects| {
            let machine = objects.machines.values().next().expect("a Machine");
            let claim = objects.node_claims.values().next().expect("a NodeClaim");
            let id = claim.status.as_ref().and_then(|status| status.provider_id.as_deref());
            assert_eq!(id, machine.data["spec"]["providerID"].as_str());
            for kind in ["Launched", "Registered", "Initialized"] {
                assert!(claim.condition(kind).is_some_and(|c| c.status.as_str() == "True"), "{kind}");
            }
            assert_eq!(
                (objects.machines.len(), replicas(objects, "small"), replicas(objects, "large")),
                (1, 1, 0)
            );
        });
    })
    .expect("a runtime");
}

fn replicas(objects: &Objects, name: &str) -> i64 {
    let found = objects.machine_deployments.iter().find(|(key, _)| &*key.name == name);
    found.and_then(|(_, object)| object.data["spec"]["replicas"].as_i64()).unwrap_or(-1)
}

/// Never more Machines than this.
struct AtMost(usize);

impl Invariant for AtMost {
    fn name(&self) -> &'static str {
        "Machines at a time"
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        let there = step.objects.machines.len();
        if there > self.0 {
            Err(format!("there are {there} Machines, and {} will do", self.0))
        } else {
            Ok(())
        }
    }
}

/// What keeps a Machine is Cluster API's own.
struct FinalizersAreTheirs;

impl Invariant for FinalizersAreTheirs {
    fn name(&self) -> &'static str {
        "finalizers of Machines are Cluster API's"
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        for change in step.changes {
            let Change::Machine(edit) = &**change else { continue };
            let (Some(old), Some(new)) = (&edit.old, &edit.new) else { continue };
            if &*step.entry.actor == "karpenter" && old.metadata.finalizers != new.metadata.finalizers {
                return Err(format!("Machine {} has {:?} by Karpenter", edit.key, new.metadata.finalizers));
            }
        }
        Ok(())
    }
}

#[test]
fn a10_drifted_nodes_of_an_on_delete_deployment_are_replaced_one_at_a_time() {
    in_virtual_time(async {
        let stage = Stage::new(Some(["0.40", "0.15"])).await;
        stage.change("small", json!({"spec": {"rollout": {"strategy": {"type": "OnDelete"}}}})).await;
        stage.apply("app", 4, "2500m", true).await;
        stage.until("four nodes", |objects| types(objects) == ["small"; 4] && all_run(objects)).await;
        let old = stage.names();
        stage.world.cluster().watch_over([
            Box::new(AtMost(5)) as Box<dyn Invariant>,
            Box::new(ReplacementsComeFirst::new("karpenter")),
        ]);
        stage.change("small", json!({"spec": {"template": {"spec": {"version": "v1.37.0"}}}})).await;
        let drifted = |objects: &Objects| {
            let drifted = objects.node_claims.values().filter(|claim| claim.condition("Drifted").is_some());
            drifted.count()
        };
        stage.until("that is told", |objects| drifted(objects) > 0).await;
        let is_new = |machine: &DynamicObject| {
            let labels = machine.metadata.labels.as_ref();
            labels
                .and_then(|labels| labels.get("cluster.x-k8s.io/set-name"))
                .is_some_and(|set| set == "small-00002")
        };
        stage
            .until("all are replaced", |objects| {
                objects.machines.len() == 4
                    && objects.machines.values().all(|m| is_new(m))
                    && all_run(objects)
            })
            .await;
        stage.world.run_for(15 * MINUTE).await.expect("time passes");
        let now = stage.names();
        assert!(now.len() == 4 && now.iter().all(|name| !old.contains(name)), "{old:?} {now:?}");
        assert_eq!(stage.world.cluster().read(|objects| replicas(objects, "small")), 4);
    })
    .expect("a runtime");
}

/// No fewer pods are ready than this.
struct RunsAtLeast(usize);

impl Invariant for RunsAtLeast {
    fn name(&self) -> &'static str {
        "pods that a budget protects"
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        let run = step.objects.pods.values().filter(|pod| is_active(pod) && is_ready(pod)).count();
        if run < self.0 { Err(format!("{run} pods run, and {} are to", self.0)) } else { Ok(()) }
    }
}

#[test]
fn a9_pods_are_moved_within_their_budget_by_a_rollout_of_cluster_api_and_claims_end_on_the_new_machines() {
    in_virtual_time(async {
        let class = json!({"drift": "ClusterAPI"});
        let stage = Stage::of(Some(["0.40", "0.15"]), &[], class, json!({})).await;
        stage.apply("app", 4, "2500m", true).await;
        stage.until("four nodes", |objects| types(objects) == ["small"; 4] && all_run(objects)).await;
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": "app", "namespace": "default"},
            "spec": {"minAvailable": 3, "selector": {"matchLabels": {"app": "app"}}},
        });
        stage.world.create(budget).await.expect("a budget");
        stage.world.run_for(MINUTE).await.expect("time passes");
        stage.world.cluster().watch_over([Box::new(RunsAtLeast(3)) as Box<dyn Invariant>]);
        let before = stage.world.cluster().read(|objects| {
            objects.machines.keys().map(ToString::to_string).collect::<std::collections::BTreeSet<_>>()
        });
        stage.change("small", json!({"spec": {"template": {"spec": {"version": "v1.37.0"}}}})).await;
        stage
            .until("all Machines are new", |objects| {
                let is_old =
                    |key: &karpenter_runtime::object_key::ObjectKey| before.contains(&key.to_string());
                objects.machines.len() == 4 && !objects.machines.keys().any(is_old) && all_run(objects)
            })
            .await;
        stage.world.run_for(15 * MINUTE).await.expect("time passes");
        stage.world.cluster().read(|objects| {
            let ids = |found: Vec<Option<&str>>| {
                found.into_iter().map(|id| id.unwrap_or_default().to_owned()).collect::<Vec<String>>()
            };
            let mut of_claims = ids(objects
                .node_claims
                .values()
                .map(|claim| claim.status.as_ref().and_then(|status| status.provider_id.as_deref()))
                .collect());
            let mut of_machines = ids(objects
                .machines
                .values()
                .map(|machine| machine.data["spec"]["providerID"].as_str())
                .collect());
            of_claims.sort();
            of_machines.sort();
            assert_eq!(of_claims, of_machines, "each NodeClaim is bound to a new Machine");
            assert_eq!((of_claims.len(), replicas(objects, "small"), all_run(objects)), (4, 4, true));
            assert!(objects.node_claims.values().all(|claim| !is_deleting(&**claim)));
        });
    })
    .expect("a runtime");
}

#[test]
fn a_pod_that_wants_what_an_overlay_adds_gets_one_node() {
    in_virtual_time(async {
        let settings = ["--feature-gates=NodeOverlay=true"];
        let stage = Stage::with(Some(["0.40", "0.15"]), &settings).await;
        // Cluster API knows nothing of it: a device plugin says it of the Nodes.
        let fused = json!({"spec": {"template": {"spec": {"capacity": {"example.com/fuse": "1"}}}}});
        let templates = stage.api(Kind::SimMachineTemplate);
        templates.patch("small", &PatchParams::default(), &Patch::Merge(fused)).await.expect("a template");
        let overlay = json!({
            "apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": {"name": "fuse"},
            "spec": {"requirements": [], "capacity": {"example.com/fuse": "1"}},
        });
        stage.world.create(overlay).await.expect("an overlay");
        let wants = json!({"cpu": "1", "example.com/fuse": "1"});
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "fused", "namespace": "default"},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [{
                "name": "main", "image": "registry.k8s.io/pause",
                "resources": {"requests": wants, "limits": wants},
            }]},
        });
        stage.world.create(pod).await.expect("a pod");
        stage.until("it runs", all_run).await;
        stage.world.run_for(5 * MINUTE).await.expect("time passes");
        assert_eq!(stage.nodes(), ["small"]);
        assert_eq!(stage.writes("karpenter", "/scale"), 1, "one launch is enough");
    })
    .expect("a runtime");
}

#[test]
fn a19_a_node_goes_when_its_budget_and_the_hooks_of_others_let_it_and_is_drained_once() {
    for mode in ["MachineDeployment", "Machine"] {
        in_virtual_time(async {
            let class = json!({"launchMode": mode});
            let nodes = json!({"terminationGracePeriod": "20m"});
            let stage = Stage::of(Some(["0.40", "0.15"]), &[], class, nodes).await;
            stage.world.cluster().watch_over([Box::new(FinalizersAreTheirs) as Box<dyn Invariant>]);
            stage.apply("app", 1, "2", false).await;
            stage.until("it runs", |objects| types(objects) == ["small"] && all_run(objects)).await;
            let budget = json!({
                "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
                "metadata": {"name": "app", "namespace": "default"},
                "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "app"}}},
            });
            stage.world.create(budget).await.expect("a budget");
            let machine = stage.world.cluster().read(|objects| {
                objects.machines.keys().next().map(|key| key.name.to_string()).expect("a Machine")
            });
            let hook = "pre-drain.delete.hook.machine.cluster.x-k8s.io/backup";
            let set =
                |value: serde_json::Value| Patch::Merge(json!({"metadata": {"annotations": {hook: value}}}));
            let machines = stage.api(Kind::Machine);
            machines.patch(&machine, &PatchParams::default(), &set("".into())).await.expect("a hook");
            // Karpenter leaves pods that tolerate its taint; a second drain would not.
            let stays = json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stays", "namespace": "default"},
                "spec": {
                    "nodeName": machine, "containers": [{"name": "c", "image": "i"}],
                    "tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 0,
                },
            });
            stage.world.create(stays).await.expect("a pod");
            stage.world.run_for(MINUTE).await.expect("time passes");
            let name = stage.names().remove(0);
            let claims: Api<karpenter_api::NodeClaim> = Api::all(stage.world.cluster().client("user"));
            claims.delete(&name, &DeleteParams::default()).await.expect("a deletion");
            let is_there = |objects: &Objects| {
                objects.nodes.keys().any(|key| *key.name == *machine)
                    && objects.machines.keys().any(|key| *key.name == *machine)
                    && objects.node_claims.keys().any(|key| *key.name == *name)
            };
            stage.world.run_for(10 * MINUTE).await.expect("time passes");
            let runs = |objects: &Objects| {
                let mut pods = objects.pods.values();
                pods.any(|pod| {
                    is_ready(pod) && pod.spec.as_ref().is_some_and(|s| s.node_name.as_ref() == Some(&machine))
                })
            };
            assert!(
                stage.world.cluster().read(|objects| is_there(objects) && runs(objects)),
                "nothing is forced"
            );
            let told = stage.events("FailedDraining").await;
            assert!(told.iter().any(|said| said.contains("violates a PDB")), "{mode}: {told:?}");
            let told = stage.events_of("NodeClaim", "FailedDraining").await;
            assert!(told.iter().any(|said| said.contains("disruption budget app ")), "{mode}: {told:?}");
            let claim = claims.get(&name).await.expect("the NodeClaim");
            assert_eq!(
                claim.condition("Drained").map(|c| c.reason().to_owned()).as_deref(),
                Some("Draining")
            );
            let budgets: Api<k8s_openapi::api::policy::v1::PodDisruptionBudget> =
                Api::namespaced(stage.world.cluster().client("user"), "default");
            budgets.delete("app", &DeleteParams::default()).await.expect("a deletion");
            stage.world.run_for(5 * MINUTE).await.expect("time passes");
            assert!(stage.world.cluster().read(is_there), "the hook is waited for");
            let told = stage.events("DeletionStalled").await;
            assert!(told.iter().any(|said| said.contains(hook)), "{mode}: {told:?}");
            machines
                .patch(&machine, &PatchParams::default(), &set(serde_json::Value::Null))
                .await
                .expect("no hook");
            stage
                .until("it is gone", |objects| {
                    !objects.nodes.keys().any(|key| *key.name == *machine)
                        && !objects.machines.keys().any(|key| *key.name == *machine)
                        && !objects.node_claims.keys().any(|key| *key.name == *name)
                })
                .await;
            stage.until("the pod runs elsewhere", all_run).await;
            assert_eq!(stage.writes("machine-controller", "/eviction"), 0, "{mode}: it was drained once");
        })
        .expect("a runtime");
    }
}

#[test]
fn a23_nodes_become_the_cheapest_that_will_do_by_price_and_by_size() {
    let scaled = "MachineDeployment";
    let dear = Some(["0.40", "0.15"]);
    for (prices, mode) in [(dear, scaled), (None, scaled), (dear, "Machine"), (None, "Machine")] {
        in_virtual_time(async {
            let stage = shrink(prices, mode).await;
            let before = stage.names();
            stage.annotate("small", PRICE, "0.16").await;
            stage.world.run_for(15 * MINUTE).await.expect("time passes");
            assert_eq!(
                (stage.nodes(), stage.names()),
                (vec!["small".to_owned()], before),
                "a price is no drift"
            );
        })
        .expect("a runtime");
    }
}

#[test]
fn a_node_that_never_joins_is_given_up_after_the_time_it_has_to_register() {
    in_virtual_time(async {
        let stage = Stage::new(Some(["0.40", "0.15"])).await;
        let lost =
            json!({"provisionSeconds": 3, "neverJoins": true, "capacity": {"cpu": "4", "memory": "16Gi"}});
        stage.world.create(cluster_api::template(NAMESPACE, "lost", lost)).await.expect("a template");
        let cheap = [(PRICE, "0.01")];
        let lost = cluster_api::machine_deployment(NAMESPACE, "c", "lost", "lost", &cheap);
        stage.world.create(lost).await.expect("a MachineDeployment");
        stage.world.run_for(MINUTE).await.expect("time passes");
        stage.apply("app", 1, "1", false).await;
        stage.until("it is launched and does not come", |objects| types(objects) == ["lost"]).await;
        stage.world.run_for(14 * MINUTE).await.expect("time passes");
        assert_eq!(stage.nodes(), ["lost"], "there is time left");
        let first = stage.names();
        let given_up =
            move |objects: &Objects| objects.node_claims.keys().all(|key| !first.contains(&key.to_string()));
        stage.world.wait_until("it is given up", 3 * MINUTE, given_up).await.expect("it is given up");
    })
    .expect("a runtime");
}

#[test]
fn nodes_of_what_is_no_longer_offered_stay_and_are_known_for_what_they_are() {
    let broken = json!({"annotations": {"capacity.cluster-autoscaler.kubernetes.io/cpu": "sixteen"}});
    let gone = json!({"labels": {"node.cluster.x-k8s.io/karpenter-member": null}});
    let moved = json!({"annotations": {
        "capacity.cluster-autoscaler.kubernetes.io/labels": "topology.kubernetes.io/zone=b",
    }});
    for metadata in [broken, gone, moved] {
        in_virtual_time(async {
            // No two pods share a node, and the small ones are the cheapest.
            let class = json!({"drift": "Off"});
            let stage = Stage::of(Some(["0.40", "0.15"]), &[], class, json!({})).await;
            stage.apply("app", 2, "3", true).await;
            stage.until("all run", all_run).await;
            let before = stage.names();
            assert_eq!(stage.nodes(), ["small", "small"]);
            stage.world.run_for(50 * MINUTE).await.expect("time passes");
            stage.change("small", json!({"metadata": metadata})).await;
            stage.world.run_for(180 * MINUTE).await.expect("time passes");
            assert_eq!(stage.names(), before, "{metadata}");
            let drifted = |objects: &Objects| {
                objects
                    .node_claims
                    .values()
                    .any(|claim| claim.condition_status("Drifted") == ConditionStatus::True)
            };
            assert!(!stage.world.cluster().read(drifted), "{metadata}");
        })
        .expect("a runtime");
    }
}

#[test]
fn nodes_with_a_taint_that_a_pool_does_not_declare_are_not_made_for_it() {
    in_virtual_time(async {
        let stage = Stage::new(Some(["0.40", "0.15"])).await;
        stage
            .annotate("small", "capacity.cluster-autoscaler.kubernetes.io/taints", "team=x:NoSchedule")
            .await;
        stage.world.run_for(MINUTE).await.expect("time passes");
        stage.apply("app", 1, "1", false).await;
        stage
            .until("it runs on the dearer one", |objects| types(objects) == ["large"] && all_run(objects))
            .await;
        let classes: Api<ClusterAPINodeClass> = Api::all(stage.world.cluster().client("user"));
        let status = classes.get("default").await.expect("the NodeClass").status.expect("a status");
        let told = status.conditions.unwrap_or_default().into_iter().find(|c| c.type_ == "TaintsDeclared");
        let told = told.expect("a condition");
        assert_eq!(told.reason(), "TaintsNotDeclared");
        assert!(told.message().contains("NodePool default lacks team=x:NoSchedule"), "{}", told.message());
    })
    .expect("a runtime");
}

#[test]
fn a_taint_that_all_machine_deployments_have_need_not_be_declared_where_taints_are_inherited() {
    in_virtual_time(async {
        let stage = Stage::new(Some(["0.40", "0.15"])).await;
        let classes: Api<ClusterAPINodeClass> = Api::all(stage.world.cluster().client("user"));
        let inherit = Patch::Merge(json!({"spec": {"inheritTaints": true}}));
        classes.patch("default", &PatchParams::default(), &inherit).await.expect("the NodeClass");
        let key = "capacity.cluster-autoscaler.kubernetes.io/taints";
        stage.annotate("small", key, "team=x:NoSchedule").await;
        stage.annotate("large", key, "team=x:NoSchedule,gpu:NoExecute").await;
        stage.world.run_for(MINUTE).await.expect("time passes");
        stage.apply("app", 1, "1", false).await;
        stage.world.run_for(5 * MINUTE).await.expect("time passes");
        assert_eq!(stage.nodes(), Vec::<String>::new(), "its pods would not run there");
        stage.tolerate("app", "team").await;
        stage
            .until("it runs on the one whose taints all are common", |objects| {
                types(objects) == ["small"] && all_run(objects)
            })
            .await;
        let inherited = |objects: &Objects| {
            let claim = objects.node_claims.values().next().cloned().expect("a NodeClaim");
            let taints = claim.spec.taints.clone().unwrap_or_default();
            taints.into_iter().map(|taint| format!("{}:{}", taint.key, taint.effect)).collect::<Vec<_>>()
        };
        assert_eq!(stage.world.cluster().read(inherited), ["team:NoSchedule"]);
    })
    .expect("a runtime");
}

#[test]
fn a_taint_that_some_machine_deployments_have_is_for_pods_that_tolerate_it_where_taints_are_inherited() {
    in_virtual_time(async {
        let stage = Stage::new(Some(["0.40", "0.15"])).await;
        let classes: Api<ClusterAPINodeClass> = Api::all(stage.world.cluster().client("user"));
        let inherit = Patch::Merge(json!({"spec": {"inheritTaints": true}}));
        classes.patch("default", &PatchParams::default(), &inherit).await.expect("the NodeClass");
        stage.annotate("large", "capacity.cluster-autoscaler.kubernetes.io/taints", "gpu:NoSchedule").await;
        stage.world.run_for(MINUTE).await.expect("time passes");
        stage.apply("app", 1, "1", false).await;
        stage
            .until("it runs where nothing need be tolerated", |objects| {
                all_run(objects) && types(objects) == ["small"]
            })
            .await;
        stage.apply("heavy", 1, "6", false).await;
        stage.world.run_for(5 * MINUTE).await.expect("time passes");
        assert_eq!(stage.nodes(), ["small"], "its pod would not run there");
        stage.tolerate("heavy", "gpu").await;
        stage
            .until("it runs on the one with the taint", |objects| {
                all_run(objects) && types(objects) == ["large", "small"]
            })
            .await;
        let tainted = |objects: &Objects| {
            let claims = objects.node_claims.values().filter(|claim| claim.spec.taints.is_some());
            let keys = claims.flat_map(|claim| claim.spec.taints.clone().unwrap_or_default());
            keys.map(|taint| taint.key).collect::<Vec<_>>()
        };
        assert_eq!(stage.world.cluster().read(tainted), ["gpu"]);
    })
    .expect("a runtime");
}

#[test]
fn nodes_whose_inherited_taint_a_pool_declares_with_another_value_are_not_made_for_it() {
    in_virtual_time(async {
        let stage = Stage::new(Some(["0.40", "0.15"])).await;
        let classes: Api<ClusterAPINodeClass> = Api::all(stage.world.cluster().client("user"));
        let inherit = Patch::Merge(json!({"spec": {"inheritTaints": true}}));
        classes.patch("default", &PatchParams::default(), &inherit).await.expect("the NodeClass");
        let pools: Api<NodePool> = Api::all(stage.world.cluster().client("user"));
        let taints = json!([{"key": "team", "value": "y", "effect": "NoSchedule"}]);
        let declares = Patch::Merge(json!({"spec": {"template": {"spec": {"taints": taints}}}}));
        pools.patch("default", &PatchParams::default(), &declares).await.expect("the NodePool");
        let key = "capacity.cluster-autoscaler.kubernetes.io/taints";
        stage.annotate("small", key, "team=x:NoSchedule").await;
        stage.annotate("large", key, "team=x:NoSchedule").await;
        stage.world.run_for(MINUTE).await.expect("time passes");
        stage.apply("app", 1, "1", false).await;
        stage.tolerate("app", "team").await;
        stage.world.run_for(10 * MINUTE).await.expect("time passes");
        let made = stage.writes("karpenter", "POST /apis/karpenter.sh/v1/nodeclaims");
        assert_eq!(made, 0, "a node cannot have both values");
        stage.annotate("large", key, "team=y:NoSchedule").await;
        stage
            .until("it runs on the dearer one", |objects| types(objects) == ["large"] && all_run(objects))
            .await;
        stage.world.run_for(30 * MINUTE).await.expect("time passes");
        assert_eq!(stage.nodes(), ["large"]);
    })
    .expect("a runtime");
}

#[test]
fn a_node_with_a_condition_that_its_node_class_names_is_replaced_by_node_repair() {
    in_virtual_time(async {
        let gate = ["--feature-gates", "NodeRepair=true"];
        let stage = Stage::with(Some(["0.40", "0.15"]), &gate).await;
        let classes: Api<ClusterAPINodeClass> = Api::all(stage.world.cluster().client("user"));
        let conditions = json!([{"type": "DiskCorrupt", "status": "True", "after": "5m"}]);
        let change = Patch::Merge(json!({"spec": {"repairConditions": conditions}}));
        classes.patch("default", &PatchParams::default(), &change).await.expect("the NodeClass");
        stage.apply("app", 1, "1", false).await;
        stage.until("it runs", |objects| types(objects) == ["small"] && all_run(objects)).await;
        let first = stage.names();
        let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(stage.world.cluster().client("user"));
        let name =
            stage.world.cluster().read(|objects| objects.nodes.keys().next().map(|key| key.name.to_string()));
        let name = name.expect("a Node");
        let node = serde_json::to_value(nodes.get(&name).await.expect("the Node")).expect("JSON");
        let mut conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let now = stage.world.cluster().now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        conditions.push(json!({
            "type": "DiskCorrupt", "status": "True", "reason": "Checksum", "lastTransitionTime": now,
            "lastHeartbeatTime": now,
        }));
        let change = Patch::Merge(json!({"status": {"conditions": conditions}}));
        nodes.patch_status(&name, &PatchParams::default(), &change).await.expect("the Node");
        stage.world.run_for(4 * MINUTE).await.expect("time passes");
        assert_eq!(stage.names(), first, "it is borne for five minutes");
        stage
            .until("it is replaced", move |objects| {
                let names: Vec<String> = objects.node_claims.keys().map(ToString::to_string).collect();
                names.len() == 1 && names != first && all_run(objects)
            })
            .await;
    })
    .expect("a runtime");
}

#[test]
fn nodes_older_than_the_time_to_roll_out_after_are_replaced_once() {
    in_virtual_time(async {
        let stage = Stage::new(Some(["0.40", "0.15"])).await;
        stage.apply("app", 1, "1", false).await;
        stage.until("it runs", |objects| types(objects) == ["small"] && all_run(objects)).await;
        let first = stage.names();
        let after = stage.world.cluster().now() + jiff::SignedDuration::from_mins(10);
        stage.change("small", json!({"spec": {"rollout": {"after": after.to_string()}}})).await;
        stage.world.run_for(9 * MINUTE).await.expect("time passes");
        assert_eq!(stage.names(), first, "it is not time yet");
        let replaced = {
            let first = first.clone();
            move |objects: &Objects| {
                let names: Vec<String> = objects.node_claims.keys().map(ToString::to_string).collect();
                names.len() == 1 && names != first && all_run(objects)
            }
        };
        stage.until("it is replaced", replaced).await;
        let second = stage.names();
        stage.world.run_for(30 * MINUTE).await.expect("time passes");
        assert_eq!(stage.names(), second, "and that is that");
    })
    .expect("a runtime");
}

#[test]
fn a_node_that_cluster_api_does_not_know_yet_is_waited_for_and_no_other_is_made() {
    in_virtual_time(async {
        let stage = Stage::new(None).await;
        stage.apply("app", 1, "2", false).await;
        // Its machine has an id, and joins in a moment.
        stage
            .until("it is launched", |objects| types(objects).len() == 1 && !objects.machines.is_empty())
            .await;
        let has_id = |objects: &Objects| {
            objects.machines.values().any(|machine| machine.data.pointer("/spec/providerID").is_some())
        };
        stage.until("its Machine has an id", has_id).await;
        stage.controllers.run_controllers(false);
        stage.until("its Node is there", |objects| !objects.nodes.is_empty()).await;
        stage.world.run_for(10 * MINUTE).await.expect("nothing goes wrong");
        assert_eq!(stage.names().len(), 1, "one will do, in a moment");
        let initialized = |objects: &Objects| {
            let mut claims = objects.node_claims.values();
            claims.any(|claim| claim.condition("Initialized").is_some_and(|c| c.status.as_str() == "True"))
        };
        assert!(!stage.world.cluster().read(initialized), "nothing can run there yet");
        stage.controllers.run_controllers(true);
        stage.until("the pod runs", all_run).await;
        assert!(stage.world.cluster().read(initialized));
        assert_eq!(stage.names().len(), 1);
    })
    .expect("a runtime");
}
