//! A MachineHealthCheck over all Machines: one whose Node has been unready for five minutes, or has not come within twenty, is
//! condemned, and one that somebody says is to be replaced. Who replaces it is its owner's affair. When too many are unhealthy at once that is said of each, and none is condemned:
//! more likely something else is broken.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use karpenter_runtime::object_key::ObjectKey;
use kube::api::DynamicObject;

use super::Switches;
use super::deployments::cluster_of;
use super::kinds::{Kind, annotation, condition, is_paused, patch_status, text, with_conditions};
use crate::actor::{Actor, Agenda};
use crate::cluster::Cluster;
use crate::objects::{Change, Objects, is_deleting};

/// How often an unhealthy Machine is looked at.
const AGAIN: Duration = Duration::from_secs(30);
/// For how long a Node may be unready.
const UNREADY: SignedDuration = SignedDuration::from_mins(5);
/// How long a Node may take to come.
const STARTUP: SignedDuration = SignedDuration::from_mins(20);

/// The controller.
pub(super) struct HealthChecks {
    cluster: Cluster,
    client: kube::Client,
    switches: Switches,
}

impl HealthChecks {
    pub(super) fn new(cluster: &Cluster, switches: Switches) -> Self {
        Self { cluster: cluster.clone(), client: cluster.client(Self::NAME), switches }
    }

    /// What is wrong with a Machine, or when to look again.
    fn judge(&self, machine: &DynamicObject) -> Verdict {
        if annotation(machine, SKIP).is_some() {
            return Verdict::Fine;
        }
        if annotation(machine, FORCE).is_some() {
            return FORCED;
        }
        if condition(machine, "NodeHealthy") == "True" {
            return Verdict::Fine;
        }
        let now = self.cluster.now();
        let born = machine.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
        let node = text(machine, "/status/nodeRef/name");
        if node.is_empty() {
            return if now.duration_since(born) >= STARTUP { UNHEALTHY } else { Verdict::Later };
        }
        let unready_since = self.cluster.read(|objects| Some(unready_since(objects.node(node)?)));
        match unready_since {
            // The Node is gone.
            None => UNHEALTHY,
            Some(None) => Verdict::Later,
            Some(Some(since)) if now.duration_since(since) >= UNREADY => UNHEALTHY,
            Some(Some(_)) => Verdict::Later,
        }
    }

    /// Whether so many Machines are unhealthy that none is to be replaced.
    fn is_short_circuited(&self) -> bool {
        let Some(most) = self.switches.most_unhealthy() else { return false };
        let machines: Vec<_> = self.cluster.read(|objects| objects.machines.values().cloned().collect());
        let unhealthy = machines
            .iter()
            .filter(|machine| !is_deleting(&***machine))
            .filter(|machine| matches!(self.judge(machine), Verdict::Condemned { .. }));
        unhealthy.count() > most
    }
}

/// On a Machine: it is well whatever its Node says.
const SKIP: &str = "cluster.x-k8s.io/skip-remediation";
/// On a Machine: it is to be replaced, however well it is.
const FORCE: &str = "cluster.x-k8s.io/remediate-machine";

enum Verdict {
    Fine,
    Later,
    Condemned { reason: &'static str, message: &'static str },
}

const UNHEALTHY: Verdict = Verdict::Condemned { reason: "UnhealthyNode", message: "its Node is unhealthy" };
const FORCED: Verdict =
    Verdict::Condemned { reason: "HasRemediateAnnotation", message: "somebody wants it replaced" };

/// Since when a Node has not been ready.
fn unready_since(node: &k8s_openapi::api::core::v1::Node) -> Option<Timestamp> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    if ready.status == "True" {
        return None;
    }
    ready.last_transition_time.as_ref().map(|time| time.0)
}

impl Actor for HealthChecks {
    type Key = ObjectKey;
    const NAME: &'static str = "machinehealthcheck-controller";

    fn observe(&mut self, change: &Change, _: &Objects, agenda: &mut Agenda<ObjectKey>) {
        if let Change::Machine(edit) = change
            && edit.new.is_some()
        {
            agenda.after(edit.key.clone(), Duration::from_secs(1));
        }
    }

    async fn act(&mut self, key: &ObjectKey, agenda: &mut Agenda<ObjectKey>) -> Result<(), kube::Error> {
        let (machine, paused) = self.cluster.read(|objects| {
            let machine = objects.machines.get(key).cloned();
            let paused = machine.as_ref().is_some_and(|m| is_paused(m, cluster_of(objects, m)));
            (machine, paused)
        });
        let Some(machine) = machine.filter(|machine| !is_deleting(&**machine)) else { return Ok(()) };
        if paused || !self.switches.health_is_checked() {
            agenda.after(key.clone(), AGAIN);
            return Ok(());
        }
        match self.judge(&machine) {
            Verdict::Fine => {}
            Verdict::Later => agenda.after(key.clone(), AGAIN),
            Verdict::Condemned { reason, message } => {
                let said = [
                    ("HealthCheckSucceeded", false, reason, message),
                    ("OwnerRemediated", false, "WaitingForRemediation", ""),
                ];
                let said = if self.is_short_circuited() { &said[..1] } else { &said[..] };
                let conditions = with_conditions(&machine, said);
                let status = serde_json::json!({"conditions": conditions});
                patch_status(&self.client, Kind::Machine, &machine, status).await?;
                // Another writer may have had older conditions in hand.
                agenda.after(key.clone(), AGAIN);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster_api::kinds::patch;
    use crate::cluster_api::{self, ClusterApi};
    use crate::world::{World, WorldOptions, in_virtual_time};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_machine_that_somebody_wants_replaced_is_condemned_however_well_it_is_unless_it_is_to_be_left_alone()
    {
        in_virtual_time(async {
            let world = World::new(WorldOptions::default()).await.expect("a world");
            let capi = ClusterApi::install(&world).await.expect("Cluster API");
            capi.check_health(true);
            let mut deployment = cluster_api::machine_deployment("fleet", "c", "m", "t", &[]);
            deployment["spec"]["replicas"] = 2.into();
            for object in [
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fleet"}}),
                cluster_api::cluster("fleet", "c"),
                cluster_api::template("fleet", "t", json!({"provisionSeconds": 1, "joinSeconds": 1})),
                deployment,
            ] {
                world.create(object).await.expect("an object");
            }
            world.run_for(60 * SECOND).await.expect("no broken rule");
            let names =
                || world.cluster().read(|objects| objects.machines.keys().cloned().collect::<Vec<_>>());
            let [first, second] = <[ObjectKey; 2]>::try_from(names()).expect("two Machines");
            let client = world.cluster().client("user");
            let both = json!({"metadata": {"annotations": {FORCE: "", SKIP: ""}}});
            patch(&client, Kind::Machine, &first, both).await.expect("annotations");
            let forced = json!({"metadata": {"annotations": {FORCE: ""}}});
            patch(&client, Kind::Machine, &second, forced).await.expect("an annotation");
            world.run_for(120 * SECOND).await.expect("no broken rule");
            let left = names();
            assert_eq!(left.len(), 2, "another is made");
            assert!(left.contains(&first), "it is left alone");
            assert!(!left.contains(&second), "it is replaced");
        })
        .expect("a runtime");
    }
}
