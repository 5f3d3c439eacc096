//! What users do, drawn from a seed: workloads of many shapes, budgets, daemons and jobs, and load that comes and goes.
//!
//! A [`Script`] is plain data made before the run, so that it can be printed, cut down and played again.

use std::time::Duration;

use karpenter_api::NodeClaim;
use karpenter_api::labels::{HOSTNAME, TOPOLOGY_ZONE};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::actor::unless_gone;
use crate::chance::{Chance, Span};
use crate::cluster::Cluster;
use crate::faults::Faults;
use crate::world::{Trouble, World};

/// One thing a user does.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// Creates an object.
    Create(Value),
    /// Sets the replicas of a Deployment or StatefulSet in the default namespace.
    Scale {
        /// Deployment or StatefulSet.
        kind: &'static str,
        /// Its name.
        name: String,
        /// How many.
        replicas: u64,
    },
    /// Deletes a workload in the default namespace.
    Delete {
        /// Its kind.
        kind: &'static str,
        /// Its name.
        name: String,
    },
}

/// What happens when, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    /// Since the script began.
    pub acts: Vec<(Duration, Act)>,
}

/// How much of everything.
#[derive(Clone, Debug)]
pub struct Volume {
    /// How many Deployments, at most.
    pub deployments: u64,
    /// How many pods each, at most.
    pub replicas: u64,
    /// How long users are busy.
    pub period: Duration,
}

impl Default for Volume {
    fn default() -> Self {
        Self { deployments: 6, replicas: 12, period: Duration::from_secs(20 * 60) }
    }
}

impl Script {
    /// Drawn from chance.
    pub fn draw(chance: &mut Chance, volume: &Volume) -> Self {
        let mut script = Self::default();
        let period = Span { least: Duration::ZERO, most: volume.period };
        if chance.happens(0.6) {
            script.acts.push((Duration::ZERO, Act::Create(daemon_set(chance))));
        }
        for number in 0..chance.between(1, volume.deployments.max(1)) {
            let name = format!("app-{number}");
            let start = chance.duration(&period) / 2;
            let replicas = chance.between(1, volume.replicas.max(1));
            script.acts.push((start, Act::Create(deployment(chance, &name, replicas))));
            if chance.happens(0.5) {
                script.acts.push((start, Act::Create(budget(chance, &name))));
            }
            for _ in 0..chance.below(4) {
                let at = start + chance.duration(&period) / 2;
                let replicas =
                    if chance.happens(0.3) { 0 } else { chance.between(1, volume.replicas.max(1)) };
                script.acts.push((at, Act::Scale { kind: "Deployment", name: name.clone(), replicas }));
            }
            if chance.happens(0.3) {
                script.acts.push((volume.period, Act::Delete { kind: "Deployment", name }));
            }
        }
        for number in 0..chance.below(3) {
            let start = chance.duration(&period);
            script.acts.push((start, Act::Create(job(chance, &format!("job-{number}")))));
        }
        if chance.happens(0.4) {
            let start = chance.duration(&period) / 2;
            script.acts.push((start, Act::Create(stateful_set(chance, "db"))));
        }
        // What is drawn for the same moment happens in the order it was drawn.
        script.acts.sort_by_key(|(at, _)| *at);
        script
    }

    /// Plays the script in a world, to its end.
    ///
    /// # Errors
    ///
    /// If the server refuses something.
    pub async fn play(&self, world: &World) -> Result<(), Trouble> {
        let started = tokio::time::Instant::now();
        let client = world.cluster().client("user");
        let api = |kind: &str| -> Api<DynamicObject> {
            let (group, version) = if kind == "Job" { ("batch", "v1") } else { ("apps", "v1") };
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            Api::default_namespaced_with(client.clone(), &resource)
        };
        for (at, act) in &self.acts {
            tokio::time::sleep_until(started + *at).await;
            if let Some(violation) = world.cluster().violation() {
                return Err(violation.into());
            }
            let done = match act {
                Act::Create(object) => {
                    world.create(object.clone()).await?;
                    continue;
                }
                Act::Scale { kind, name, replicas } => {
                    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
                    unless_gone(api(kind).patch(name, &PatchParams::default(), &patch).await).map(drop)
                }
                Act::Delete { kind, name } => {
                    unless_gone(api(kind).delete(name, &DeleteParams::background()).await).map(drop)
                }
            };
            done.map_err(|source| Trouble::Refused { what: format!("{act:?}"), source: Box::new(source) })?;
        }
        Ok(())
    }
}

/// Somebody deletes a NodeClaim now and then, so that nodes with pods have to be drained.
pub async fn delete_claims(cluster: Cluster, faults: Faults) {
    let mut chance = Chance::new(cluster.entropy(), "unrest");
    let claims: Api<NodeClaim> = Api::all(cluster.client("user"));
    while faults.are_on() {
        tokio::time::sleep(chance.duration(&Span::secs(60, 240))).await;
        let names: Vec<String> =
            cluster.read(|objects| objects.node_claims.keys().map(|key| key.name.to_string()).collect());
        if let Some(name) = chance.pick(&names) {
            // It may be gone already.
            let _ = claims.delete(name, &DeleteParams::default()).await;
        }
    }
}

fn resources(chance: &mut Chance) -> Value {
    let cpu = [100, 250, 500, 1000, 2000][usize::try_from(chance.below(5)).unwrap_or(0)];
    let memory = [128, 256, 512, 1024, 4096][usize::try_from(chance.below(5)).unwrap_or(0)];
    json!({"requests": {"cpu": format!("{cpu}m"), "memory": format!("{memory}Mi")}})
}

/// A pod template with this `app` label and a drawn shape.
fn template(chance: &mut Chance, app: &str) -> Value {
    let mut spec = json!({
        "containers": [{"name": "main", "image": "registry.k8s.io/pause", "resources": resources(chance)}],
        "terminationGracePeriodSeconds": chance.between(0, 60),
    });
    let selector = json!({"matchLabels": {"app": app}});
    match chance.below(6) {
        0 => {
            spec["topologySpreadConstraints"] = json!([{
                "maxSkew": chance.between(1, 2), "topologyKey": TOPOLOGY_ZONE,
                "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector,
            }]);
        }
        1 => {
            spec["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": HOSTNAME, "labelSelector": selector},
            ]}});
        }
        2 => {
            spec["affinity"] = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": TOPOLOGY_ZONE, "labelSelector": selector},
            ]}});
        }
        _ => {}
    }
    if chance.happens(0.2) {
        spec["initContainers"] =
            json!([{"name": "init", "image": "registry.k8s.io/pause", "resources": resources(chance)}]);
    }
    let mut annotations = json!({});
    if chance.happens(0.1) {
        annotations[karpenter_api::annotations::DO_NOT_DISRUPT] = "true".into();
    }
    json!({"metadata": {"labels": {"app": app}, "annotations": annotations}, "spec": spec})
}

fn deployment(chance: &mut Chance, name: &str, replicas: u64) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": template(chance, name),
        },
    })
}

fn stateful_set(chance: &mut Chance, name: &str) -> Value {
    let policy = if chance.happens(0.5) { "Parallel" } else { "OrderedReady" };
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name},
        "spec": {
            "replicas": chance.between(1, 4),
            "serviceName": name,
            "podManagementPolicy": policy,
            "selector": {"matchLabels": {"app": name}},
            "template": template(chance, name),
        },
    })
}

fn daemon_set(chance: &mut Chance) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent", "namespace": "kube-system"},
        "spec": {
            "selector": {"matchLabels": {"app": "agent"}},
            "template": {
                "metadata": {"labels": {"app": "agent"}},
                "spec": {
                    "tolerations": if chance.happens(0.5) { json!([{"operator": "Exists"}]) } else { json!([]) },
                    "containers": [{
                        "name": "agent", "image": "registry.k8s.io/pause",
                        "resources": {"requests": {"cpu": "50m", "memory": "32Mi"}},
                    }],
                },
            },
        },
    })
}

fn job(chance: &mut Chance, name: &str) -> Value {
    let mut template = template(chance, name);
    template["spec"]["restartPolicy"] = "Never".into();
    let parallelism = chance.between(1, 4);
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {
            "parallelism": parallelism, "completions": parallelism * chance.between(1, 3),
            "backoffLimit": 1000, "template": template,
        },
    })
}

fn budget(chance: &mut Chance, app: &str) -> Value {
    let (field, value) = match chance.below(4) {
        0 => ("minAvailable", json!(1)),
        1 => ("minAvailable", json!("50%")),
        2 => ("maxUnavailable", json!(1)),
        _ => ("maxUnavailable", json!("30%")),
    };
    let mut spec = json!({"selector": {"matchLabels": {"app": app}}});
    spec[field] = value;
    json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": app}, "spec": spec})
}

#[cfg(test)]
mod tests {
    use karpenter_runtime::entropy::Entropy;

    use super::*;

    fn script(seed: u64) -> Script {
        Script::draw(&mut Chance::new(&Entropy::from_seed(seed), "traffic"), &Volume::default())
    }

    #[test]
    fn a_seed_decides_the_script_and_another_seed_another() {
        assert_eq!(script(1), script(1));
        assert_ne!(script(1), script(2));
        assert!(script(3).acts.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    }
}
