//! MachineSets: creation behind preflight checks, deletion in the order of the real controller, remediation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use karpenter_runtime::object_key::ObjectKey;
use kube::api::{DeleteParams, DynamicObject};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Switches;
use super::deployments::{Pace, RATE, cluster_of, merge};
use super::informers::{Informers, UNSEEN_AGAIN, Unseen};
use super::kinds::{
    Kind, annotation, condition, controller_of, create, delete, is_paused, keep, label, number, owned_by,
    patch, patch_status, text, with_conditions,
};
use super::preflight::hold;
use crate::actor::{Actor, Agenda, Source as _, unless_gone};
use crate::chance::Chance;
use crate::objects::{Change, Objects, is_deleting, uid};

const FINALIZER: &str = "cluster.x-k8s.io/machineset";
/// On a Machine: it goes before others.
const MARK: &str = "cluster.x-k8s.io/delete-machine";
const REVISION: &str = "machinedeployment.clusters.x-k8s.io/revision";

/// How often a MachineSet that is held back looks again.
const PREFLIGHT_AGAIN: Duration = Duration::from_secs(15);
/// How often a MachineSet that was refused something tries again.
const REFUSED_AGAIN: Duration = Duration::from_secs(5);

/// What a MachineSet was refused: the reason and the message it gives.
type Refused = (&'static str, String);

/// The controller.
pub(super) struct Sets {
    informers: Informers,
    client: kube::Client,
    chance: Chance,
    switches: Switches,
    pace: Pace,
    unseen: Unseen,
    /// When each MachineSet last made a Machine, where they come one after the other.
    last_made: BTreeMap<ObjectKey, Instant>,
    /// How many each has yet to make of those that it lacked when it began: it makes all of them, whatever is wanted by then.
    begun: BTreeMap<ObjectKey, usize>,
}

impl Sets {
    pub(super) fn new(informers: &Informers, switches: Switches) -> Self {
        let cluster = informers.truth();
        Self {
            informers: informers.clone(),
            client: cluster.client(Self::NAME),
            chance: Chance::new(cluster.entropy(), Self::NAME),
            switches,
            pace: Pace::default(),
            unseen: Unseen::default(),
            last_made: BTreeMap::new(),
            begun: BTreeMap::new(),
        }
    }

    async fn reconcile(&mut self, set: &DynamicObject) -> Result<Option<Duration>, kube::Error> {
        self.adopt(set).await?;
        let (machines, held) = self.informers.read(|objects| (machines_of(objects, set), hold(objects, set)));
        for machine in &machines {
            if let Some(change) = in_place(set, machine) {
                patch(&self.client, Kind::Machine, &ObjectKey::of(&**machine), change).await?;
            }
        }
        let at_once = self.informers.read(|objects| remediated_at_once(objects, set));
        for machine in condemned(&machines, at_once).iter().filter(|_| held.is_none()) {
            self.delete_machine(set, machine).await?;
        }
        let replicas = usize::try_from(number(set, "/spec/replicas")).unwrap_or(0);
        let mut again = None;
        let mut blocked = String::new();
        let mut refused: Option<Refused> = None;
        let key = ObjectKey::of(set);
        self.begun.retain(|_, left| *left > 0);
        if machines.len() < replicas || self.begun.contains_key(&key) {
            let disabled = annotation(set, "cluster.x-k8s.io/disable-machine-create") == Some("true");
            match held {
                _ if disabled => {}
                Some(why) => {
                    blocked = format!(" is blocked because:\n* {why}");
                    again = Some(PREFLIGHT_AGAIN);
                }
                None => match self.switches.machine_every() {
                    Some(time) => {
                        self.begun.entry(key).or_insert_with(|| replicas.saturating_sub(machines.len()));
                        match self.create_one(set, time).await? {
                            Ok(rest) => again = Some(rest),
                            Err(told) => refused = Some(told),
                        }
                    }
                    None => {
                        for _ in machines.len()..replicas {
                            refused = self.create_machine(set).await?.err().or(refused);
                        }
                    }
                },
            }
        } else if machines.len() > replicas {
            let mut order = machines.clone();
            let policy = text(set, "/spec/deletion/order").to_owned();
            let mut scores: BTreeMap<String, u64> = BTreeMap::new();
            for machine in &order {
                scores.insert(
                    name(machine),
                    if policy == "Random" || policy.is_empty() { self.chance.below(1000) } else { 0 },
                );
            }
            order.sort_by(|a, b| {
                let by_age = a.metadata.creation_timestamp.cmp(&b.metadata.creation_timestamp);
                let by_age = if policy == "Newest" { by_age.reverse() } else { by_age };
                let by_age = if policy.is_empty() || policy == "Random" {
                    scores[&name(a)].cmp(&scores[&name(b)])
                } else {
                    by_age
                };
                priority(b).cmp(&priority(a)).then(by_age).then_with(|| name(a).cmp(&name(b)))
            });
            self.note_unseen_marks(&key, &machines);
            for machine in order.iter().take(machines.len() - replicas) {
                if !is_deleting(&**machine) {
                    self.delete_machine(set, machine).await?;
                }
            }
        }
        let up = machines.len() < replicas;
        let message = if up {
            format!("Scaling up from {} to {replicas} replicas{blocked}", machines.len())
        } else {
            String::new()
        };
        let mut status = json!({
            "replicas": machines.len(),
            "conditions": with_conditions(set, &[("ScalingUp", up, if up { "ScalingUp" } else { "NotScalingUp" }, &message)]),
        });
        if let Some((reason, message)) = &refused {
            status["deprecated"] = created(false, reason, message);
            again = Some(REFUSED_AGAIN);
        } else if !up {
            status["deprecated"] = created(true, "", "");
        }
        patch_status(&self.client, Kind::MachineSet, set, status).await?;
        Ok(again)
    }

    /// Takes Machines that its selector matches and that belong to nobody.
    async fn adopt(&self, set: &DynamicObject) -> Result<(), kube::Error> {
        for machine in self.informers.read(|objects| orphans_for(objects, set)) {
            let mut owners: Vec<Value> =
                machine.metadata.owner_references.iter().flatten().map(|owner| json!(owner)).collect();
            owners.push(owned_by(Kind::MachineSet, set));
            let change = json!({"metadata": {"ownerReferences": owners}});
            patch(&self.client, Kind::Machine, &ObjectKey::of(&*machine), change).await?;
        }
        Ok(())
    }

    /// Makes a Machine if the last one is old enough; when to look again.
    async fn create_one(
        &mut self,
        set: &DynamicObject,
        time: Duration,
    ) -> Result<Result<Duration, Refused>, kube::Error> {
        let key = ObjectKey::of(set);
        let last = self.last_made.get(&key).map(Instant::elapsed);
        if let Some(rest) = last.and_then(|last| time.checked_sub(last)).filter(|rest| !rest.is_zero()) {
            return Ok(Ok(rest));
        }
        if let Err(refused) = self.create_machine(set).await? {
            return Ok(Err(refused));
        }
        if let Some(left) = self.begun.get_mut(&key) {
            *left = left.saturating_sub(1);
        }
        self.last_made.insert(key, Instant::now());
        Ok(Ok(time))
    }

    /// Its Machines go first.
    async fn take_down(&mut self, set: &DynamicObject) -> Result<(), kube::Error> {
        let machines = self.informers.read(|objects| machines_of(objects, set));
        if machines.is_empty() {
            let free = json!({"metadata": {"finalizers": null}});
            return patch(&self.client, Kind::MachineSet, &ObjectKey::of(set), free).await;
        }
        for machine in machines.iter().filter(|machine| !is_deleting(&***machine)) {
            self.delete_machine(set, machine).await?;
        }
        Ok(())
    }

    async fn delete_machine(
        &mut self,
        set: &DynamicObject,
        machine: &DynamicObject,
    ) -> Result<(), kube::Error> {
        delete(&self.client, Kind::Machine, machine).await?;
        self.unseen.expect(&self.informers, &ObjectKey::of(set), Kind::Machine, ObjectKey::of(machine));
        Ok(())
    }

    /// Puts on the tape that it chooses among Machines without having heard yet that one is marked.
    fn note_unseen_marks(&self, key: &ObjectKey, machines: &[Arc<DynamicObject>]) {
        let is_marked = |machine: &DynamicObject| annotation(machine, MARK).is_some();
        let truth = self.informers.truth();
        let unseen = truth.read(|objects| {
            let mut unmarked = machines.iter().filter(|machine| !is_marked(machine));
            unmarked.any(|machine| {
                objects.machines.get(&ObjectKey::of(&**machine)).is_some_and(|now| is_marked(now))
            })
        });
        if unseen {
            let deed = format!("MachineSet {} has not heard of a mark", key.name);
            truth.record(&"informers".into(), deed, "noted".to_owned(), &[]);
        }
    }

    /// Makes a Machine and its clones, or says what it was refused; then nothing of it stays.
    async fn create_machine(&mut self, set: &DynamicObject) -> Result<Result<(), Refused>, kube::Error> {
        let key = ObjectKey::of(set);
        let namespace = &*key.namespace;
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let suffix: String =
            (0..5).filter_map(|_| self.chance.pick(LETTERS).map(|letter| char::from(*letter))).collect();
        let name = format!("{}-{suffix}", key.name);
        let mut template = set.data.pointer("/spec/template").cloned().unwrap_or_default();
        merge(&mut template["metadata"]["labels"], &json!({"cluster.x-k8s.io/set-name": &*key.name}));
        let labels = template["metadata"]["labels"].clone();
        let mut spec = template["spec"].clone();
        let mut clones = Vec::new();
        for (kind, template_kind, pointer, reason) in [
            (Kind::SimConfig, "SimConfigTemplate", "/bootstrap/configRef", "BootstrapTemplateCloningFailed"),
            (
                Kind::SimMachine,
                "SimMachineTemplate",
                "/infrastructureRef",
                "InfrastructureTemplateCloningFailed",
            ),
        ] {
            let Some(reference) =
                spec.pointer(pointer).filter(|reference| reference["kind"] == template_kind)
            else {
                continue;
            };
            let from = reference["name"].as_str().unwrap_or_default().to_owned();
            let behaviour = self.informers.read(|objects| {
                let templates = match kind {
                    Kind::SimConfig => &objects.sim_config_templates,
                    _ => &objects.sim_machine_templates,
                };
                let template = templates.get(&ObjectKey::namespaced(namespace, from.as_str()))?;
                template.data.pointer("/spec/template/spec").cloned()
            });
            let clone = json!({
                "apiVersion": format!("{}/v1beta2", kind.group()), "kind": kind.as_str(),
                "metadata": {
                    "name": name, "namespace": namespace, "labels": labels,
                    "annotations": {"cluster.x-k8s.io/cloned-from-name": from},
                    "ownerReferences": [owned_by(Kind::MachineSet, set)],
                },
                "spec": behaviour.unwrap_or_else(|| json!({})),
            });
            if let Some(refusal) = self.switches.refusal(kind) {
                self.clean_up(&clones).await?;
                return Ok(Err((reason, refusal)));
            }
            create(&self.client, kind, clone).await?;
            clones.push((kind, ObjectKey::namespaced(namespace, name.as_str())));
            if let Some(reference) = spec.pointer_mut(pointer) {
                *reference = json!({"apiGroup": kind.group(), "kind": kind.as_str(), "name": name});
            }
        }
        let machine = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {
                "name": name, "namespace": namespace, "labels": labels,
                "annotations": template["metadata"]["annotations"],
                "finalizers": ["machine.cluster.x-k8s.io"],
                "ownerReferences": [owned_by(Kind::MachineSet, set)],
            },
            "spec": spec,
        });
        if let Some(refusal) = self.switches.refusal(Kind::Machine) {
            self.clean_up(&clones).await?;
            return Ok(Err(("MachineCreationFailed", refusal)));
        }
        create(&self.client, Kind::Machine, machine).await?;
        let made = ObjectKey::namespaced(namespace, name.as_str());
        self.unseen.expect(&self.informers, &key, Kind::Machine, made);
        Ok(Ok(()))
    }

    /// Deletes what was cloned for a Machine that was refused.
    async fn clean_up(&self, clones: &[(Kind, ObjectKey)]) -> Result<(), kube::Error> {
        for (kind, key) in clones {
            let api = kind.api(&self.client, &key.namespace);
            unless_gone(api.delete(&key.name, &DeleteParams::background()).await)?;
        }
        Ok(())
    }
}

/// Whether Machines could be made, where all versions of Cluster API tell it.
fn created(holds: bool, reason: &str, message: &str) -> Value {
    let status = if holds { "True" } else { "False" };
    let condition =
        json!({"type": "MachinesCreated", "status": status, "reason": reason, "message": message});
    json!({"v1beta1": {"conditions": [condition]}})
}

/// What a MachineSet writes on a Machine of its own because its template says so: time-outs, which it sets back whoever set them, and on
/// one that stays labels and annotations. `None` if all is as it is to be.
fn in_place(set: &DynamicObject, machine: &DynamicObject) -> Option<Value> {
    const TIMEOUTS: [&str; 3] =
        ["nodeDrainTimeoutSeconds", "nodeVolumeDetachTimeoutSeconds", "nodeDeletionTimeoutSeconds"];
    let at =
        |object: &DynamicObject, pointer: String| object.data.pointer(&pointer).cloned().unwrap_or_default();
    let mut change = json!({});
    for timeout in TIMEOUTS {
        let wanted = at(set, format!("/spec/template/spec/deletion/{timeout}"));
        if wanted != at(machine, format!("/spec/deletion/{timeout}")) {
            change["spec"]["deletion"][timeout] = wanted;
        }
    }
    let meta = [("labels", &machine.metadata.labels), ("annotations", &machine.metadata.annotations)];
    for (map, there) in meta.into_iter().filter(|_| !is_deleting(machine)) {
        let wanted = at(set, format!("/spec/template/metadata/{map}"));
        for (key, value) in wanted.as_object().into_iter().flatten() {
            let known = there.as_ref().and_then(|there| there.get(key)).map(String::as_str);
            if known != value.as_str() {
                change["metadata"][map][key] = value.clone();
            }
        }
    }
    change.as_object().is_some_and(|change| !change.is_empty()).then_some(change)
}

/// All Machines a MachineSet controls, those that are being deleted included: they count.
fn machines_of(objects: &Objects, set: &DynamicObject) -> Vec<Arc<DynamicObject>> {
    let owned = objects.machines.values();
    owned.filter(|machine| controller_of(machine, Kind::MachineSet) == Some(uid(set))).cloned().collect()
}

/// How many condemned Machines a MachineSet may replace at a time. Those of an older revision are left to the rollout, where that
/// takes them.
fn remediated_at_once(objects: &Objects, set: &DynamicObject) -> usize {
    let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
    let name = label(set, "cluster.x-k8s.io/deployment-name");
    let Some(owner) = objects.machine_deployments.get(&ObjectKey::namespaced(namespace, name)) else {
        return usize::MAX;
    };
    let is_current = annotation(set, REVISION) == annotation(owner, REVISION);
    let on_delete = text(owner, "/spec/rollout/strategy/type") == "OnDelete";
    if !is_current && !on_delete {
        return 0;
    }
    let most = owner.data.pointer("/spec/remediation/maxInFlight").and_then(Value::as_u64);
    most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX)
}

/// The condemned Machines that are to be deleted now: the newest first, and no more than may go at a time.
fn condemned(machines: &[Arc<DynamicObject>], at_once: usize) -> Vec<&Arc<DynamicObject>> {
    let is_condemned = |machine: &&Arc<DynamicObject>| {
        condition(machine, "HealthCheckSucceeded") == "False"
            && condition(machine, "OwnerRemediated") == "False"
    };
    let (leaving, mut staying): (Vec<_>, Vec<_>) =
        machines.iter().filter(is_condemned).partition(|machine| is_deleting(&***machine));
    staying.sort_by_key(|machine| {
        std::cmp::Reverse((machine.metadata.creation_timestamp.clone(), name(machine)))
    });
    staying.truncate(at_once.saturating_sub(leaving.len()));
    staying
}

/// Machines of its Cluster that a MachineSet's selector matches and that no other object controls.
fn orphans_for(objects: &Objects, set: &DynamicObject) -> Vec<Arc<DynamicObject>> {
    let wanted = set.data.pointer("/spec/selector/matchLabels").and_then(Value::as_object);
    let Some(wanted) = wanted.filter(|wanted| !wanted.is_empty()) else { return Vec::new() };
    let suits = |machine: &&Arc<DynamicObject>| {
        let owners = machine.metadata.owner_references.as_deref().unwrap_or_default();
        machine.metadata.namespace == set.metadata.namespace
            && text(machine, "/spec/clusterName") == text(set, "/spec/clusterName")
            && !is_deleting(&***machine)
            && !owners.iter().any(|owner| owner.controller == Some(true))
            && wanted.iter().all(|(key, value)| value.as_str() == Some(label(machine, key)))
    };
    objects.machines.values().filter(suits).cloned().collect()
}

/// Which Machine goes first.
fn priority(machine: &DynamicObject) -> u32 {
    if is_deleting(machine) {
        100
    } else if annotation(machine, MARK).is_some() {
        80
    } else if condition(machine, "Updating") == "True" {
        75
    } else if text(machine, "/status/nodeRef/name").is_empty()
        || condition(machine, "NodeHealthy") == "False"
        || condition(machine, "HealthCheckSucceeded") == "False"
    {
        50
    } else {
        20
    }
}

fn name(machine: &DynamicObject) -> String {
    machine.metadata.name.clone().unwrap_or_default()
}

impl Actor for Sets {
    type Key = ObjectKey;
    const NAME: &'static str = "machineset-controller";

    fn observe(&mut self, change: &Change, objects: &Objects, agenda: &mut Agenda<ObjectKey>) {
        match change {
            Change::MachineSet(edit) => agenda.now(edit.key.clone()),
            Change::Machine(edit) => {
                let set = edit
                    .either()
                    .map(|machine| label(machine, "cluster.x-k8s.io/set-name"))
                    .unwrap_or_default();
                if !set.is_empty() {
                    agenda.now(ObjectKey::namespaced(edit.key.namespace.clone(), set));
                }
            }
            Change::CapiCluster(_) | Change::SimMachineTemplate(_) => {
                for key in objects.machine_sets.keys() {
                    agenda.now(key.clone());
                }
            }
            _ => {}
        }
    }

    async fn act(&mut self, key: &ObjectKey, agenda: &mut Agenda<ObjectKey>) -> Result<(), kube::Error> {
        if !self.switches.sets_run() {
            agenda.after(key.clone(), RATE);
            return Ok(());
        }
        if self.unseen.is_awaited(&self.informers, key) {
            agenda.after(key.clone(), UNSEEN_AGAIN);
            return Ok(());
        }
        if let Some(rest) = self.pace.too_soon(key) {
            agenda.after(key.clone(), rest);
            return Ok(());
        }
        let (set, paused) = self.informers.read(|objects| {
            let set = objects.machine_sets.get(key).cloned();
            let paused = set.as_ref().is_some_and(|set| is_paused(set, cluster_of(objects, set)));
            (set, paused)
        });
        let Some(set) = set.filter(|_| !paused) else { return Ok(()) };
        if is_deleting(&*set) {
            return self.take_down(&set).await;
        }
        if !keep(&self.client, Kind::MachineSet, &set, FINALIZER).await? {
            return Ok(());
        }
        if let Some(again) = self.reconcile(&set).await? {
            agenda.after(key.clone(), again);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_set_sets_back_what_its_template_says_otherwise() {
        let read = |value: Value| -> DynamicObject { serde_json::from_value(value).expect("an object") };
        let set = read(json!({"metadata": {}, "spec": {"template": {
            "metadata": {"labels": {"a": "b"}}, "spec": {"deletion": {"nodeDrainTimeoutSeconds": 600}},
        }}}));
        let going = |timeouts: Value| {
            read(json!({
                "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"deletion": timeouts},
            }))
        };
        let hurried = going(json!({"nodeDrainTimeoutSeconds": 1, "nodeDeletionTimeoutSeconds": 1}));
        let back = json!({"nodeDrainTimeoutSeconds": 600, "nodeDeletionTimeoutSeconds": null});
        assert_eq!(in_place(&set, &hurried), Some(json!({"spec": {"deletion": back}})));
        assert_eq!(in_place(&set, &going(json!({"nodeDrainTimeoutSeconds": 600}))), None);
        let stays = read(
            json!({"metadata": {"labels": {"c": "d"}}, "spec": {"deletion": {"nodeDrainTimeoutSeconds": 600}}}),
        );
        assert_eq!(in_place(&set, &stays), Some(json!({"metadata": {"labels": {"a": "b"}}})));
    }

    #[test]
    fn no_more_condemned_machines_go_than_may_at_a_time_and_the_newest_first() {
        let machine = |name: &str, second: u32, leaving: bool, condemned: bool| -> Arc<DynamicObject> {
            let conditions = json!([
                {"type": "HealthCheckSucceeded", "status": if condemned { "False" } else { "True" }},
                {"type": "OwnerRemediated", "status": "False"},
            ]);
            let mut value = json!({
                "metadata": {"name": name, "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z")},
                "status": {"conditions": conditions},
            });
            if leaving {
                value["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z".into();
            }
            Arc::new(serde_json::from_value(value).expect("a Machine"))
        };
        let all = [
            machine("old", 1, false, true),
            machine("new", 2, false, true),
            machine("well", 3, false, false),
            machine("gone", 4, true, true),
        ];
        let names =
            |at_once| condemned(&all, at_once).into_iter().map(|found| name(found)).collect::<Vec<_>>();
        assert_eq!(names(usize::MAX), ["new", "old"]);
        assert_eq!(names(2), ["new"]);
        assert_eq!(names(1), [""; 0], "one is on its way out");
    }

    #[test]
    fn what_is_leaving_marked_or_broken_goes_before_what_works() {
        let machine = |value: Value| -> DynamicObject { serde_json::from_value(value).expect("a Machine") };
        let node = json!({"nodeRef": {"name": "n"}});
        let order: Vec<u32> = [
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": node}),
            json!({"metadata": {"annotations": {"cluster.x-k8s.io/delete-machine": ""}}, "status": node}),
            json!({"metadata": {}, "status": {}}),
            json!({"metadata": {}, "status": node}),
        ]
        .map(|value| priority(&machine(value)))
        .into();
        assert_eq!(order, [100, 80, 50, 20]);
    }
}
