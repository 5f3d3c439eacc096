//! Why a MachineDeployment or MachineSet is offered, or is not: by the code that decides in the operator, on objects as they are. What
//! only a running operator finds out (what Nodes and endpoints tell, what failed of late) is as it last wrote into the status of its
//! NodeClass. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::labels::CAPACITY_TYPE;
use karpenter_api::{NodeClaim, NodePool};
use kube::api::DynamicObject;
use serde_json::Value;

use crate::ClusterAPINodeClass;
use crate::client::control_plane::ControlPlane;
use crate::client::fields::Reference;
use crate::client::mirror::{Mirror, Watched};
use crate::client::scalable::{Scalable, ScalableKey, ScalableKind};
use crate::client::scope::{Ours, Scope, belongs_to, is_for};
use crate::client::settings::Settings;
use crate::client::template::Template;
use crate::instances::holds::HoldKind;
use crate::instances::learning::Lessons;
use crate::instances::ledger::ClaimFacts;
use crate::instances::node_claims::{Target, carried, facts};
use crate::instances::offers::{self, Claims, Market, Offers, launch_hold, selector_trouble, takes_part};
use crate::instances::templates;
use crate::instancetypes::price::{Source, Told, key};
use crate::instancetypes::taints;
use crate::nodeclass::ResourceStatus;
use crate::{GROUP, names};

/// What an explanation is drawn from: settings, and objects of both clusters.
#[derive(Default)]
pub struct Evidence {
    settings: Settings,
    node_classes: Vec<ClusterAPINodeClass>,
    node_pools: Vec<NodePool>,
    node_claims: Vec<NodeClaim>,
    nodes: Vec<Node>,
    /// Prices by the namespace and name of their ConfigMap.
    config_maps: BTreeMap<(String, String), BTreeMap<String, String>>,
    /// What the management cluster has of each Cluster, by its namespace and name.
    clusters: BTreeMap<(String, String), Mirror>,
}

/// Why nothing can be said.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoEvidence {
    /// There is no resource of that name.
    #[error("there is no MachineDeployment or MachineSet {name:?}; there are {known}")]
    NoResource {
        /// What was asked for.
        name: String,
        /// Some that there are.
        known: String,
    },
    /// Nobody says which Cluster is ours.
    #[error(
        "there are the Clusters {0}, and neither Nodes nor NodeClasses say which is this one; set CLUSTER_NAME and CLUSTER_NAMESPACE"
    )]
    WhichCluster(String),
    /// There is no NodeClass.
    #[error("there is no ClusterAPINodeClass, so nothing is offered; create one")]
    NoNodeClass,
    /// There is no NodePool of that name.
    #[error("there is no NodePool {name:?}; there are {known}")]
    NoNodePool {
        /// What was asked for.
        name: String,
        /// Some that there are.
        known: String,
    },
    /// A NodePool has no NodeClass of ours.
    #[error("NodePool {pool} has the NodeClass {class}, which {problem}")]
    NoClassOfPool {
        /// The NodePool that was asked for.
        pool: String,
        /// The NodeClass it names.
        class: String,
        /// What is wrong with that.
        problem: &'static str,
    },
}

/// Some names, or that there are none.
fn some(names: impl Iterator<Item = String>) -> String {
    let known: Vec<String> = names.take(5).collect();
    if known.is_empty() { "none".to_owned() } else { known.join(", ") }
}

impl Evidence {
    /// What these objects tell to an operator with these settings; those of other kinds tell nothing.
    pub fn of(settings: Settings, objects: impl IntoIterator<Item = Value>) -> Self {
        let mut evidence = Self { settings, ..Self::default() };
        // Templates and control planes are known by what refers to them.
        let refers = |value: &Value| {
            let of_cluster_api =
                value["apiVersion"].as_str().is_some_and(|v| v.starts_with("cluster.x-k8s.io/"));
            value["kind"] == "ClusterAPINodeClass" || of_cluster_api
        };
        let (referring, others): (Vec<Value>, Vec<Value>) = objects.into_iter().partition(refers);
        for value in referring.into_iter().chain(others) {
            evidence.add(value);
        }
        evidence
    }

    fn add(&mut self, value: Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let kind = text(&value["kind"]);
        let group = text(&value["apiVersion"]).split('/').next().unwrap_or_default().to_owned();
        let (namespace, name) = (text(&value["metadata"]["namespace"]), text(&value["metadata"]["name"]));
        match kind.as_str() {
            "ClusterAPINodeClass" => {
                let Ok(class) = serde_json::from_value::<ClusterAPINodeClass>(value) else { return };
                // What is applied later counts.
                self.node_classes.retain(|known| known.name() != class.name());
                self.node_classes.push(class);
            }
            "NodePool" => self.node_pools.extend(serde_json::from_value::<NodePool>(value)),
            "Node" => self.nodes.extend(serde_json::from_value::<Node>(value)),
            "NodeClaim" => self.node_claims.extend(serde_json::from_value::<NodeClaim>(value)),
            "ConfigMap" => {
                let data = serde_json::from_value(value["data"].clone()).unwrap_or_default();
                self.config_maps.insert((namespace, name), data);
            }
            _ if kind.ends_with("Template") => {
                let Ok(object) = serde_json::from_value::<DynamicObject>(value) else { return };
                let read = Template::read(&kind, &object).map_err(|error| error.to_string());
                for (_, mirror) in self.clusters.iter().filter(|((place, _), _)| *place == namespace) {
                    for reference in self.references(mirror, &group, &kind, &name) {
                        mirror.set_template(reference, read.clone());
                    }
                    self.list(mirror, (&group, &kind), &object, &read);
                }
            }
            _ if group == names::CAPI_GROUP => {
                let watched = Watched::ALL.into_iter().find(|watched| watched.as_str() == kind);
                let Some(watched) = watched else { return };
                let cluster = match watched {
                    Watched::Cluster => name,
                    _ => text(&value["spec"]["clusterName"]),
                };
                let Ok(object) = serde_json::from_value::<DynamicObject>(value) else { return };
                self.clusters.entry((namespace, cluster)).or_default().apply(watched, &object);
            }
            _ => {
                let is_it = |mirror: &&Mirror| {
                    let reference = mirror.cluster().and_then(|cluster| cluster.control_plane.clone());
                    reference.is_some_and(|r| r.group == group && r.kind == kind && r.name == name)
                };
                let Ok(object) = serde_json::from_value::<DynamicObject>(value) else { return };
                let there = self.clusters.iter().filter(|((place, _), _)| *place == namespace);
                for mirror in there.map(|(_, mirror)| mirror).filter(is_it) {
                    let read = ControlPlane::read(&kind, &object).map_err(|error| error.to_string());
                    mirror.set_control_plane(Some(read));
                }
            }
        }
    }

    /// Whether each NodeClass offers the resource of this name (`name` or `namespace/name`), and why.
    pub fn explain(&self, name: &str) -> Result<String, NoEvidence> {
        let all: Vec<(&Mirror, Arc<Scalable>)> = self
            .clusters
            .values()
            .flat_map(|mirror| {
                let named = self.node_classes.iter().flat_map(|class| templates::blueprints(class, mirror));
                mirror.scalables().into_iter().chain(named).map(move |scalable| (mirror, scalable))
            })
            .collect();
        let known = || some(all.iter().map(|(_, scalable)| scalable.id.key.to_string()));
        let is_it = |(_, scalable): &&(&Mirror, Arc<Scalable>)| {
            *scalable.id.key.name == *name || scalable.id.key.to_string() == name
        };
        let found: Vec<_> = all.iter().filter(is_it).collect();
        if found.is_empty() {
            return Err(NoEvidence::NoResource { name: name.to_owned(), known: known() });
        }
        if self.node_classes.is_empty() {
            return Err(NoEvidence::NoNodeClass);
        }
        let ours = self.ours()?;
        let mut text = String::new();
        for (mirror, scalable) in found {
            // Writing to a String does not fail.
            let _ = writeln!(text, "{}", scalable.id);
            let cluster = Scope {
                namespace: scalable.id.key.namespace.to_string(),
                cluster: scalable.cluster_name.clone(),
            };
            if ours.as_ref() != Some(&cluster) {
                let _ = match &ours {
                    Some(ours) => writeln!(
                        text,
                        "  not offered: it belongs to Cluster {}/{}, and this is {}/{}",
                        cluster.namespace, cluster.cluster, ours.namespace, ours.cluster
                    ),
                    None => writeln!(text, "  not offered: its Cluster is not this one"),
                };
                continue;
            }
            for class in &self.node_classes {
                let verdict = match self.verdict(mirror, scalable, class) {
                    Ok(offered) => format!("offered as {offered}"),
                    Err(why) => format!("not offered: {why}"),
                };
                let _ = writeln!(text, "  ClusterAPINodeClass {}: {verdict}", class.name());
            }
        }
        Ok(text)
    }

    /// What a NodePool is offered, and why other resources are none of it.
    pub fn explain_pool(&self, name: &str) -> Result<String, NoEvidence> {
        let named = |pool: &&NodePool| pool.metadata.name.as_deref() == Some(name);
        let Some(pool) = self.node_pools.iter().find(named) else {
            let known = some(self.node_pools.iter().filter_map(|pool| pool.metadata.name.clone()));
            return Err(NoEvidence::NoNodePool { name: name.to_owned(), known });
        };
        let reference = &pool.spec.template.spec.node_class_ref;
        let no_class = |problem| NoEvidence::NoClassOfPool {
            pool: name.to_owned(),
            class: format!("{} {}", reference.kind, reference.name),
            problem,
        };
        if reference.group != GROUP {
            return Err(no_class("is not of Cluster API"));
        }
        let class = self.node_classes.iter().find(|class| class.name() == reference.name);
        let class = class.ok_or_else(|| no_class("does not exist"))?;
        let (mut offered, mut left_out) = (Vec::new(), Vec::new());
        let ours = self.ours()?.map(|ours| (ours.namespace, ours.cluster));
        if let Some(mirror) = ours.and_then(|ours| self.clusters.get(&ours)) {
            let offers = self.offers(mirror, class);
            for scalable in mirror.scalables().into_iter().chain(templates::blueprints(class, mirror)) {
                let verdict = self.verdict(mirror, &scalable, class);
                match verdict.and_then(|type_| suits(pool, &offers, &scalable).map(|()| type_)) {
                    Ok(type_) => offered.push(format!("{type_} ({})", scalable.id)),
                    Err(why) => left_out.push(format!("{}: {why}", scalable.id)),
                }
            }
        }
        let mut text = format!("NodePool {name}, ClusterAPINodeClass {}\n", class.name());
        for (title, mut lines) in [("offered", offered), ("not offered", left_out)] {
            lines.sort();
            if lines.is_empty() {
                lines.push("nothing".to_owned());
            }
            // Writing to a String does not fail.
            let _ = writeln!(text, "{title}:");
            for line in lines {
                let _ = writeln!(text, "  {line}");
            }
        }
        Ok(text)
    }

    /// Which Cluster is ours, found as the operator finds it: the one that the settings name, else the one that Nodes belong to, else
    /// the one that NodeClasses are for, else the only one.
    fn ours(&self) -> Result<Option<Scope>, NoEvidence> {
        let ours = Ours::new(&self.settings);
        if let Some(known) = ours.known() {
            return Ok(Some(known.clone()));
        }
        let is =
            |wanted: &Option<String>, found: &String| wanted.as_ref().is_none_or(|wanted| wanted == found);
        let there: Vec<Scope> = self
            .clusters
            .keys()
            .filter(|(namespace, name)| {
                is(&self.settings.cluster_namespace, namespace) && is(&self.settings.cluster_name, name)
            })
            .map(|(namespace, cluster)| Scope { namespace: namespace.clone(), cluster: cluster.clone() })
            .collect();
        let by_nodes = ours.agreed(self.nodes.iter().filter_map(belongs_to));
        let by_classes = || ours.agreed(self.node_classes.iter().filter_map(is_for));
        match (by_nodes, there.as_slice()) {
            (Some(told), _) => Ok(Some(told)),
            (None, [] | [_]) => Ok(there.into_iter().next()),
            (None, several) => match by_classes() {
                Some(told) => Ok(Some(told)),
                None => {
                    let names = several.iter().map(|scope| format!("{}/{}", scope.namespace, scope.cluster));
                    Err(NoEvidence::WhichCluster(some(names)))
                }
            },
        }
    }

    /// What the operator last wrote of a resource.
    fn row<'a>(class: &'a ClusterAPINodeClass, id: &ScalableKey) -> Option<&'a ResourceStatus> {
        let mut rows = class.status.iter().flat_map(|status| status.resources.iter().flatten());
        rows.find(|row| row.name == id.to_string())
    }

    /// What a NodeClass offers of a Cluster.
    fn offers(&self, mirror: &Mirror, class: &ClusterAPINodeClass) -> Offers {
        let (lessons, members) = (Lessons::default(), offers::members(class, mirror));
        lessons.recall(class);
        let market = Market {
            mirror,
            settings: &self.settings,
            learnt: lessons.learnt(&members, mirror),
            spot: lessons.spot(&members, mirror),
            carried: carried(class.name(), self.node_claims.iter()),
            told: self.told(class),
            silent: false,
            room: &|scalable| self.room(mirror, scalable),
            running: &|id| {
                let of = |claim: &&NodeClaim| Target::of(claim).is_some_and(|target| target.id == *id);
                let live = self.node_claims.iter().filter(|c| c.metadata.deletion_timestamp.is_none());
                live.filter(of).count()
            },
            failed: &|_, _| None,
        };
        market.offers(class)
    }

    fn verdict(
        &self,
        mirror: &Mirror,
        scalable: &Scalable,
        class: &ClusterAPINodeClass,
    ) -> Result<String, String> {
        if !class.is_for(&scalable.id.key.namespace, &scalable.cluster_name) {
            return Err("its Cluster is not the NodeClass's: spec.clusterRef or spec.namespaces".to_owned());
        }
        let named = templates::blueprints(class, mirror).iter().any(|named| named.id == scalable.id);
        if scalable.id.kind == ScalableKind::MachineTemplate && !named {
            return Err("it is another NodeClass's".to_owned());
        }
        if !named && class.has_templates() {
            let field = match class.machine_templates() {
                [] => "machineTemplateSelector says",
                _ => "machineTemplates say",
            };
            return Err(format!("its spec.{field} what Machines are made from"));
        }
        if !named && !takes_part(class, scalable) {
            if let Some(trouble) = selector_trouble(class) {
                return Err(trouble.to_string());
            }
            return Err(match scalable.labels.get(names::MEMBER).map(String::as_str) {
                None => format!("it has no label {}", names::MEMBER),
                Some("false") => format!("its label {} says false", names::MEMBER),
                Some(_) => "its labels do not match spec.scalableResourceSelector".to_owned(),
            });
        }
        let offers = self.offers(mirror, class);
        let id = &scalable.id;
        if let Some(malformed) = offers.left_out.get(id) {
            // Of the resource itself it need not be said whose the key is.
            let own = malformed.object == id.to_string();
            return Err(match own {
                true => format!("{}: {}", malformed.key, malformed.problem),
                false => malformed.to_string(),
            });
        }
        let Some(blueprint) = offers.blueprints.iter().find(|blueprint| blueprint.id == *id) else {
            return Err("it takes no part".to_owned());
        };
        let entries: Vec<_> = offers.catalog.entries.iter().filter(|entry| entry.id == *id).collect();
        if let Some(why) = entries.iter().find_map(|entry| entry.unavailable.clone()) {
            return Err(why);
        }
        let Some(first) = entries.first() else { return Err("it has no place for a node".to_owned()) };
        let amount = |name: &str| blueprint.capacity.get(name).map(ToString::to_string).unwrap_or_default();
        let places: Vec<String> = entries
            .iter()
            .map(|entry| {
                let zone = entry.zone.as_deref().unwrap_or("no zone");
                format!("{zone} at {:.4} per hour by {}", entry.price.per_hour, entry.price.source)
            })
            .collect();
        let mut text = format!(
            "{}, {} cpu, {} memory, {}; {}",
            offers.catalog.types[first.instance_type].name,
            amount("cpu"),
            amount("memory"),
            first.labels.get(CAPACITY_TYPE).map(String::as_str).unwrap_or_default(),
            places.join(", ")
        );
        let mode = class.spec().launch_mode.unwrap_or_default();
        let hold = launch_hold(mirror, scalable, mode, class.launches_while_rollout_paused());
        let waits = hold.filter(|hold| hold.kind == HoldKind::Waiting);
        if let Some(hold) = &waits {
            let _ = write!(text, "; its Machines will have to wait: {}: {}", hold.reason, hold.message);
        }
        let row = Self::row(class, id);
        if let Some(said) = row.and_then(|row| row.waiting.as_ref()).filter(|_| waits.is_none()) {
            let _ = write!(text, "; but Karpenter said last that its Machines wait: {said}");
        }
        if let Some(said) = row.and_then(|row| row.unavailable.as_ref()) {
            let _ = write!(text, "; but Karpenter said last: {said}");
        }
        Ok(text)
    }

    /// Prices of the ConfigMap that a NodeClass names, and those that its endpoint last told.
    fn told(&self, class: &ClusterAPINodeClass) -> Told {
        let reference = class.spec().pricing.and_then(|pricing| pricing.config_map_ref);
        let config_map = reference.and_then(|r| self.config_maps.get(&(r.namespace, r.name)).cloned());
        let mut endpoint = BTreeMap::new();
        let rows = class.status.iter().flat_map(|status| status.resources.iter().flatten());
        for row in rows.filter(|_| class.spec().pricing.is_some_and(|pricing| pricing.endpoint.is_some())) {
            let Some((name, paid)) = row.instance_type.as_ref().zip(row.capacity_type.as_ref()) else {
                continue;
            };
            let single = (&row.zone, &row.price, &row.price_source);
            let several = row.offerings.iter().flatten();
            let several = several.map(|offering| (&offering.zone, &offering.price, &offering.price_source));
            for (zone, price, source) in several.chain([single]) {
                let told = source.as_ref().is_some_and(|source| *source == Source::Endpoint.to_string());
                let price = price.as_ref().and_then(|price| price.parse::<f64>().ok());
                if let Some(price) = price.filter(|_| told) {
                    endpoint.insert(key(name, zone.as_deref(), paid), price);
                }
            }
        }
        Told { config_map: config_map.unwrap_or_default(), endpoint }
    }

    /// How scalable resources and NodeClasses refer to a template.
    fn references(&self, mirror: &Mirror, group: &str, kind: &str, name: &str) -> Vec<Reference> {
        let by_classes = self.node_classes.iter().flat_map(templates::references);
        let all = mirror.template_references().into_iter().chain(by_classes);
        all.filter(|r| r.group == group && r.kind == kind && r.name == name).collect()
    }

    /// Adds a template to those of its kind, where a NodeClass selects from these.
    fn list(
        &self,
        mirror: &Mirror,
        (group, kind): (&str, &str),
        object: &DynamicObject,
        read: &Result<Template, String>,
    ) {
        let wanted = (group.to_owned(), kind.to_owned());
        if !self.node_classes.iter().any(|class| templates::kind(class).as_ref() == Some(&wanted)) {
            return;
        }
        let name = object.metadata.name.clone().unwrap_or_default();
        let known = mirror.listing(group, kind).and_then(|known| known.templates.clone());
        let mut templates = known.unwrap_or_default();
        templates.insert(name.clone(), object.metadata.labels.clone().unwrap_or_default());
        mirror.set_listing(wanted, Ok(templates));
        let reference =
            Reference { group: group.to_owned(), version: String::new(), kind: kind.to_owned(), name };
        mirror.set_template(reference, read.clone());
    }

    /// How many more nodes a resource may give, as the operator reckons.
    fn room(&self, mirror: &Mirror, scalable: &Scalable) -> Option<usize> {
        let machines = offers::machines_of(mirror, &scalable.id);
        let is_bound =
            |facts: &ClaimFacts| machines.iter().any(|machine| facts.bound_to.as_ref() == Some(&machine.key));
        let targets = |claim: &NodeClaim| {
            Target::of(claim).is_some_and(|target| target.id == scalable.id && !target.standalone)
        };
        let mut claims = Claims::default();
        for claim in &self.node_claims {
            let facts = facts(claim);
            match claim.metadata.deletion_timestamp.is_some() {
                true if is_bound(&facts) => claims.ending.push(facts),
                false if targets(claim) || is_bound(&facts) => claims.live.push(facts),
                _ => {}
            }
        }
        // By whom the Machines of NodeClaims that are there were claimed.
        let uids = self.node_claims.iter().filter_map(|claim| claim.metadata.uid.as_deref());
        let uids: BTreeSet<&str> = uids.collect();
        let held = mirror.machines().into_iter().filter_map(|machine| machine.claim());
        let owner = held.filter(|held| uids.contains(held.uid.as_str())).map(|held| held.owner).next();
        let classes = self.node_classes.iter().filter(|class| takes_part(class, scalable));
        let class = classes.min_by_key(|class| class.name().to_owned());
        // Which Machines may not be written to is known to the operator alone.
        let claims = (&claims, &BTreeSet::new());
        offers::room(mirror, scalable, &machines, claims, owner.as_deref().unwrap_or_default(), class)
    }
}

/// Whether a NodePool would get nodes of a resource that its NodeClass offers, or why not.
fn suits(pool: &NodePool, offers: &Offers, scalable: &Scalable) -> Result<(), String> {
    let blueprint = offers.blueprints.iter().find(|blueprint| blueprint.id == scalable.id);
    let lacking = blueprint.map(|blueprint| offers.missing_taints(blueprint, pool));
    let lacking: Vec<String> = lacking.unwrap_or_default().into_iter().map(taints::display).collect();
    if !lacking.is_empty() {
        return Err(format!(
            "its nodes have taints that the NodePool does not declare: {}",
            lacking.join(", ")
        ));
    }
    match offers.catalog.refusal(&scalable.id, pool) {
        Some(why) => Err(format!("the NodePool requires something else: {why}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::deployment_json;

    fn evidence(deployment: Value) -> Evidence {
        let class = |name: &str, spec: Value| {
            json!({
                "apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass",
                "metadata": {"name": name}, "spec": spec,
            })
        };
        Evidence::of(
            Settings::default(),
            [
                class("default", json!({})),
                class("gpu", json!({"scalableResourceSelector": {"matchLabels": {"gpu": "yes"}}})),
                deployment,
            ],
        )
    }

    #[test]
    fn each_node_class_is_told_with_its_reason() {
        let text =
            evidence(deployment_json("m", &[("karpenter.cluster.x-k8s.io/price", "0.5")])).explain("m");
        assert_eq!(
            text.expect("an explanation"),
            "MachineDeployment default/m\n  ClusterAPINodeClass default: offered as m, 4 cpu, 16Gi memory, on-demand; no zone at 0.5000 per hour by annotation\n  ClusterAPINodeClass gpu: not offered: its labels do not match spec.scalableResourceSelector\n"
        );
    }

    #[test]
    fn what_keeps_it_away_is_named_with_its_key() {
        let told = |deployment: Value| evidence(deployment).explain("default/m").expect("an explanation");
        let bad = deployment_json("m", &[("capacity.cluster-autoscaler.kubernetes.io/cpu", "sixteen")]);
        assert!(
            told(bad).contains("not offered: capacity.cluster-autoscaler.kubernetes.io/cpu: \"sixteen\"")
        );
        let full = deployment_json("m", &[(names::MAX_SIZE, "0")]);
        assert!(told(full).contains("not offered: it has its greatest size"));
        let paused = deployment_json("m", &[(names::PAUSED, "")]);
        assert!(told(paused).contains("not offered: Paused:"));
        let mut other = deployment_json("m", &[]);
        other["metadata"]["labels"] = json!({});
        assert!(told(other).contains("it has no label node.cluster.x-k8s.io/karpenter-member"));
    }

    #[test]
    fn a_name_that_is_not_there_is_answered_with_those_that_are() {
        let error = evidence(deployment_json("m", &[])).explain("n").expect_err("no such").to_string();
        assert_eq!(error, "there is no MachineDeployment or MachineSet \"n\"; there are default/m");
    }

    /// One resource and what else there is.
    fn explained(spec: Value, deployment: Value, others: impl IntoIterator<Item = Value>) -> String {
        let class = json!({
            "apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass",
            "metadata": {"name": "default"}, "spec": spec,
        });
        let objects = [class, deployment].into_iter().chain(others);
        let settings = Settings { cluster_name: Some("c".to_owned()), ..Settings::default() };
        Evidence::of(settings, objects).explain("m").expect("an explanation")
    }

    fn pool(spec: Value) -> Value {
        let mut pool = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "p"},
            "spec": {"template": {"spec": {"requirements": [], "nodeClassRef": {
                "group": GROUP, "kind": "ClusterAPINodeClass", "name": "default",
            }}}},
        });
        for (key, value) in spec.as_object().expect("a spec") {
            pool["spec"]["template"]["spec"][key] = value.clone();
        }
        pool
    }

    /// What a NodePool is told of these MachineDeployments by a NodeClass without demands.
    fn told_of(pool: Value, settings: Settings, deployments: impl IntoIterator<Item = Value>) -> String {
        let class = json!({
            "apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass",
            "metadata": {"name": "default"}, "spec": {},
        });
        let objects = [class, pool].into_iter().chain(deployments);
        Evidence::of(settings, objects).explain_pool("p").expect("an explanation")
    }

    #[test]
    fn a_node_pool_is_told_what_it_gets_and_why_not_the_rest() {
        let price = [("karpenter.cluster.x-k8s.io/price", "0.5")];
        let zone = |zone: &str| format!("topology.kubernetes.io/zone={zone}");
        let labels = "capacity.cluster-autoscaler.kubernetes.io/labels";
        let near = deployment_json("near", &[price[0], (labels, &zone("a"))]);
        let far = deployment_json("far", &[(labels, &zone("b"))]);
        let tainted = deployment_json(
            "tainted",
            &[
                (labels, &zone("a")),
                ("capacity.cluster-autoscaler.kubernetes.io/taints", "gpu=yes:NoSchedule"),
            ],
        );
        let mut stranger = deployment_json("stranger", &[]);
        stranger["metadata"]["labels"] = json!({});
        let requirements = json!([
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]},
            {"key": "team", "operator": "In", "values": ["x"]},
        ]);
        let told = told_of(
            pool(json!({"requirements": requirements})),
            Settings::default(),
            [near, far, tainted, stranger],
        );
        assert_eq!(
            told,
            "NodePool p, ClusterAPINodeClass default\n\
             offered:\n  \
             near, 4 cpu, 16Gi memory, on-demand; a at 0.5000 per hour by annotation (MachineDeployment default/near)\n\
             not offered:\n  \
             MachineDeployment default/far: the NodePool requires something else: its topology.kubernetes.io/zone is \"b\"\n  \
             MachineDeployment default/stranger: it has no label node.cluster.x-k8s.io/karpenter-member\n  \
             MachineDeployment default/tainted: its nodes have taints that the NodePool does not declare: gpu=yes:NoSchedule\n"
        );
    }

    #[test]
    fn of_a_node_pool_that_gets_nothing_that_is_said() {
        let told = told_of(pool(json!({})), Settings::default(), []);
        assert_eq!(
            told,
            "NodePool p, ClusterAPINodeClass default\noffered:\n  nothing\nnot offered:\n  nothing\n"
        );
        let elsewhere = Settings { cluster_name: Some("d".to_owned()), ..Settings::default() };
        let told = told_of(pool(json!({})), elsewhere, [deployment_json("m", &[])]);
        assert!(!told.contains("default/m"), "another Cluster's: {told}");
    }

    #[test]
    fn a_node_pool_that_is_not_there_or_another_providers_is_named() {
        let evidence = Evidence::of(Settings::default(), [pool(json!({}))]);
        let error = |name: &str| evidence.explain_pool(name).expect_err("nothing to say").to_string();
        assert_eq!(error("q"), "there is no NodePool \"q\"; there are p");
        assert_eq!(
            error("p"),
            "NodePool p has the NodeClass ClusterAPINodeClass default, which does not exist"
        );
        let other =
            json!({"nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "k"}});
        let evidence = Evidence::of(Settings::default(), [pool(other)]);
        let error = evidence.explain_pool("p").expect_err("not ours").to_string();
        assert_eq!(error, "NodePool p has the NodeClass KWOKNodeClass k, which is not of Cluster API");
    }

    #[test]
    fn a_resource_of_another_cluster_than_the_node_class_names_is_not_offered() {
        let spec = json!({"clusterRef": {"name": "d", "namespace": "default"}});
        let told = explained(spec, deployment_json("m", &[]), []);
        assert!(told.contains("not offered: its Cluster is not the NodeClass's"), "{told}");
        let told = explained(json!({"namespaces": ["default"]}), deployment_json("m", &[]), []);
        assert!(told.contains("offered as m,"), "{told}");
    }

    #[test]
    fn what_cluster_api_will_do_by_itself_is_no_reason_not_to_offer() {
        let blocked = |why: &str| {
            let mut waiting = deployment_json("m", &[]);
            let message = format!("Scaling up is blocked because: {why}");
            waiting["status"] =
                json!({"conditions": [{"type": "ScalingUp", "status": "True", "message": message}]});
            explained(json!({}), waiting, [])
        };
        let told = blocked("c is upgrading (\"ControlPlaneIsStable\" preflight check failed)");
        assert!(
            told.contains("offered as m,") && told.contains("will have to wait: ControlPlaneUpgrading"),
            "{told}"
        );
        let told = blocked("no template");
        assert!(told.contains("not offered: ScalingUpBlocked"), "somebody has to mend that: {told}");
    }

    #[test]
    fn a_blueprint_whose_replicas_are_not_ours_gives_machines_of_their_own() {
        let managed =
            || deployment_json("m", &[(names::REPLICAS_MANAGED_BY, "another"), (names::MAX_SIZE, "0")]);
        assert!(explained(json!({}), managed(), []).contains("not offered: ReplicasManagedByAnother"));
        assert!(explained(json!({"launchMode": "Machine"}), managed(), []).contains("offered as m,"));
    }

    #[test]
    fn places_that_node_claims_wait_for_are_taken() {
        let claim = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": "n", "uid": "n", "annotations": {names::TARGET: "default/m"}},
            "spec": {"requirements": [], "nodeClassRef": {"group": "g", "kind": "k", "name": "default"}},
        });
        let deployment = || deployment_json("m", &[(names::MAX_SIZE, "1")]);
        assert!(explained(json!({}), deployment(), []).contains("offered as m,"));
        assert!(
            explained(json!({}), deployment(), [claim]).contains("not offered: it has its greatest size")
        );
    }

    #[test]
    fn another_cluster_of_the_management_cluster_is_none_of_its_business() {
        let cluster = |name: &str, paused: bool| {
            json!({
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
                "metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {"paused": paused},
            })
        };
        let told = explained(json!({}), deployment_json("m", &[]), [cluster("c", false), cluster("d", true)]);
        assert!(told.contains("offered as m,"), "{told}");
        let told = explained(json!({}), deployment_json("m", &[]), [cluster("c", true), cluster("d", false)]);
        assert!(told.contains("not offered: Paused"), "{told}");
    }

    #[test]
    fn templates_that_a_node_class_names_are_told_like_deployments() {
        let reference =
            |name: &str| json!({"apiGroup": "infra.x", "kind": "FakeMachineTemplate", "name": name});
        let named = |name: &str| json!({"name": name, "infrastructureRef": reference(name), "bootstrapDataSecretName": "s"});
        let class = json!({
            "apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass", "metadata": {"name": "metal"},
            "spec": {"launchMode": "Machine", "machineTemplates": [named("big"), named("lost")]},
        });
        let cluster = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": "c", "namespace": "default", "uid": "c"}, "spec": {},
        });
        let template = json!({
            "apiVersion": "infra.x/v1", "kind": "FakeMachineTemplate", "metadata": {"name": "big", "namespace": "default"},
            "spec": {"template": {"spec": {}}}, "status": {"capacity": {"cpu": "8", "memory": "32Gi"}},
        });
        let objects = [template, class, cluster, deployment_json("m", &[])];
        let evidence = Evidence::of(Settings::default(), objects);
        let told = |name: &str| evidence.explain(name).expect("an explanation");
        let big = told("metal.big");
        assert!(
            big.starts_with(
                "MachineTemplate default/metal.big\n  ClusterAPINodeClass metal: offered as big, 8 cpu"
            ),
            "{big}"
        );
        assert!(
            told("metal.lost")
                .contains("not offered: capacity.cluster-autoscaler.kubernetes.io/cpu: is missing")
        );
        assert!(told("m").contains("not offered: its spec.machineTemplates say what Machines are made from"));
    }

    #[test]
    fn a_control_plane_is_known_in_whatever_order_manifests_come() {
        let class = json!({
            "apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass",
            "metadata": {"name": "default"}, "spec": {"launchMode": "Machine"},
        });
        let plane = |name: &str| {
            json!({
                "apiVersion": "plane.x/v1", "kind": "SomeControlPlane",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"version": "v1.36.0"}, "status": {"version": "v1.35.9"},
            })
        };
        let cluster = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": "c", "namespace": "default", "uid": "c"},
            "spec": {"controlPlaneRef": {"apiGroup": "plane.x", "kind": "SomeControlPlane", "name": "cp"}},
        });
        let told = |plane: Value| {
            let objects = [plane, class.clone(), cluster.clone(), deployment_json("m", &[])];
            Evidence::of(Settings::default(), objects).explain("m").expect("an answer")
        };
        assert!(
            told(plane("cp")).contains("will have to wait: ControlPlaneUpgrading"),
            "{}",
            told(plane("cp"))
        );
        assert!(!told(plane("other")).contains("will have to wait"), "another Cluster's");
    }

    #[test]
    fn the_config_map_that_the_node_class_names_tells_prices() {
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"namespace": "kube-system", "name": "prices"}, "data": {"m": "0.75"},
        });
        let spec = json!({"pricing": {"configMapRef": {"namespace": "kube-system", "name": "prices"}}});
        let told = explained(spec, deployment_json("m", &[]), [map]);
        assert!(told.contains("at 0.7500 per hour by table"), "{told}");
    }

    #[test]
    fn a_resource_of_another_cluster_is_offered_to_nobody() {
        let class = json!({
            "apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass",
            "metadata": {"name": "default"}, "spec": {},
        });
        let mut theirs = deployment_json("n", &[]);
        theirs["spec"]["clusterName"] = "d".into();
        let objects = || [class.clone(), pool(json!({})), deployment_json("m", &[]), theirs.clone()];
        let silent = Evidence::of(Settings::default(), objects());
        let error = silent.explain("m").expect_err("nobody says which is ours").to_string();
        assert!(error.starts_with("there are the Clusters default/c, default/d, and neither"), "{error}");
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "x", "annotations": {
            names::CLUSTER_NAME: "c", names::CLUSTER_NAMESPACE: "default",
        }}});
        let evidence = Evidence::of(Settings::default(), objects().into_iter().chain([node]));
        assert!(evidence.explain("m").expect("an answer").contains("offered as m,"));
        let told = evidence.explain("n").expect("an answer");
        assert!(
            told.contains("not offered: it belongs to Cluster default/d, and this is default/c"),
            "{told}"
        );
        let told = evidence.explain_pool("p").expect("an answer");
        assert!(told.contains("default/m") && !told.contains("default/n"), "{told}");
    }

    #[test]
    fn what_a_running_karpenter_has_found_out_is_told() {
        let mut silent = deployment_json("m", &[]);
        silent["metadata"]["annotations"] = json!({});
        let told = |learned: Value, row: Value| {
            let mut row = row;
            row["name"] = "MachineDeployment default/m".into();
            row["learned"] = learned;
            let class = json!({
                "apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass",
                "metadata": {"name": "default"}, "spec": {"pricing": {"endpoint": "http://prices/"}},
                "status": {"resources": [row]},
            });
            Evidence::of(Settings::default(), [class, silent.clone()]).explain("m").expect("an answer")
        };
        assert!(told(json!(null), json!({})).contains("/cpu: is missing"));
        let all = json!({"cpu": "8", "memory": "32Gi"});
        let learned = json!({"template": "t", "capacity": all, "allocatable": all, "interruptible": true});
        let priced = json!({
            "instanceType": "m", "capacityType": "spot", "price": "0.700000", "priceSource": "endpoint",
            "unavailable": "HostsFull",
        });
        let text = told(learned.clone(), priced);
        let expected = "offered as m, 8 cpu, 32Gi memory, spot; no zone at 0.7000 per hour by endpoint; but Karpenter said last: HostsFull";
        assert!(text.contains(expected), "{text}");
        let waiting =
            json!({"waiting": "ControlPlaneUpgrading: KubeadmControlPlane default/cp is being upgraded"});
        let text = told(learned.clone(), waiting);
        let expected =
            "; but Karpenter said last that its Machines wait: ControlPlaneUpgrading: KubeadmControlPlane";
        assert!(text.contains(expected), "what only it may read: {text}");
        let of_another = json!({"template": "old", "capacity": all, "allocatable": all});
        assert!(told(of_another, json!({})).contains("/cpu: is missing"), "another template's");
    }
}
