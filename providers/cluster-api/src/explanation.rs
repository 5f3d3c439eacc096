//! Why a MachineDeployment or MachineSet is offered, or is not: by the code that decides in the operator, on objects as they are. What
//! only a running operator knows (what failed of late, what was learnt from Nodes) is not part of it. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use kube::api::DynamicObject;
use serde_json::Value;

use crate::ClusterAPINodeClass;
use crate::client::fields::Reference;
use crate::client::mirror::{Mirror, Watched};
use crate::client::scalable::Scalable;
use crate::client::template::Template;
use crate::instances::fleet::takes_part;
use crate::instances::holds;
use crate::instancetypes::blueprint::{Blueprint, Surroundings};
use crate::names;

/// What is known about a Cluster.
#[derive(Default)]
pub struct Evidence {
    node_classes: Vec<ClusterAPINodeClass>,
    mirror: Mirror,
}

/// Why nothing can be said.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoEvidence {
    /// There is no resource of that name.
    #[error("there is no MachineDeployment or MachineSet {name:?}; there are {known}")]
    NoResource {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// There is no NodeClass.
    #[error("there is no ClusterAPINodeClass, so nothing is offered; create one")]
    NoNodeClass,
}

impl Evidence {
    /// What these objects tell; those of other kinds tell nothing.
    pub fn of(objects: impl IntoIterator<Item = Value>) -> Self {
        let mut evidence = Self::default();
        // Templates are known by what refers to them.
        let is_template =
            |value: &Value| value["kind"].as_str().is_some_and(|kind| kind.ends_with("Template"));
        let (templates, others): (Vec<Value>, Vec<Value>) = objects.into_iter().partition(is_template);
        for value in others.into_iter().chain(templates) {
            evidence.add(value);
        }
        evidence
    }

    fn add(&mut self, value: Value) {
        let kind = value["kind"].as_str().unwrap_or_default().to_owned();
        let group =
            value["apiVersion"].as_str().unwrap_or_default().split('/').next().unwrap_or_default().to_owned();
        if kind == "ClusterAPINodeClass" {
            let Ok(class) = serde_json::from_value::<ClusterAPINodeClass>(value) else { return };
            // What is applied later counts.
            self.node_classes.retain(|known| known.name() != class.name());
            self.node_classes.push(class);
            return;
        }
        let Ok(object) = serde_json::from_value::<DynamicObject>(value) else { return };
        let watched = Watched::ALL.into_iter().find(|watched| watched.as_str() == kind);
        if let Some(watched) = watched.filter(|_| group == names::CAPI_GROUP) {
            self.mirror.apply(watched, &object);
        } else if kind.ends_with("Template") {
            let name = object.metadata.name.clone().unwrap_or_default();
            let read = Template::read(&kind, &object).map_err(|error| error.to_string());
            for reference in self.references(&group, &kind, &name) {
                self.mirror.set_template(reference, read.clone());
            }
        }
    }

    /// How scalable resources refer to a template.
    fn references(&self, group: &str, kind: &str, name: &str) -> Vec<Reference> {
        let all = self.mirror.template_references().into_iter();
        all.filter(|r| r.group == group && r.kind == kind && r.name == name).collect()
    }

    /// Whether each NodeClass offers the resource of this name (`name` or `namespace/name`), and why.
    pub fn explain(&self, name: &str) -> Result<String, NoEvidence> {
        let all = self.mirror.scalables();
        let is_it =
            |scalable: &&Arc<Scalable>| *scalable.id.key.name == *name || scalable.id.key.to_string() == name;
        let found: Vec<&Arc<Scalable>> = all.iter().filter(is_it).collect();
        if found.is_empty() {
            let mut known: Vec<String> = all.iter().map(|s| s.id.key.to_string()).take(5).collect();
            if known.is_empty() {
                known.push("none".to_owned());
            }
            return Err(NoEvidence::NoResource { name: name.to_owned(), known: known.join(", ") });
        }
        if self.node_classes.is_empty() {
            return Err(NoEvidence::NoNodeClass);
        }
        let mut text = String::new();
        for scalable in found {
            // Writing to a String does not fail.
            let _ = writeln!(text, "{}", scalable.id);
            for class in &self.node_classes {
                let verdict = match self.verdict(scalable, class) {
                    Ok(offered) => format!("offered as {offered}"),
                    Err(why) => format!("not offered: {why}"),
                };
                let _ = writeln!(text, "  ClusterAPINodeClass {}: {verdict}", class.name());
            }
        }
        Ok(text)
    }

    fn verdict(&self, scalable: &Scalable, class: &ClusterAPINodeClass) -> Result<String, String> {
        if !takes_part(class, scalable) {
            return Err(match scalable.labels.get(names::MEMBER).map(String::as_str) {
                None => format!("it has no label {}", names::MEMBER),
                Some("false") => format!("its label {} says false", names::MEMBER),
                Some(_) => "its labels do not match spec.scalableResourceSelector".to_owned(),
            });
        }
        let cluster = self.mirror.cluster();
        let spec = class.spec();
        let around = Surroundings {
            node_class: class.name(),
            spec: &spec,
            failure_domains: cluster.as_ref().map(|c| c.failure_domains.as_slice()).unwrap_or_default(),
            sync_labels: &[],
            default_arch: "amd64",
            learnt: &BTreeMap::new(),
        };
        let template = scalable.infrastructure.as_ref().and_then(|r| self.mirror.template(r));
        let template = template.as_ref().and_then(|template| template.as_ref().as_ref().ok());
        let blueprint = Blueprint::of(scalable, template, around)
            .map_err(|error| format!("{}: {}", error.key, error.problem))?;
        let (_, max) = scalable.bounds().map_err(|error| format!("{}: {}", error.key, error.problem))?;
        if let Some(hold) = holds::hold(scalable, &self.mirror.sets_of(&scalable.id), cluster.as_deref()) {
            return Err(format!("{}: {}", hold.reason, hold.message));
        }
        if max.is_some_and(|max| scalable.replicas >= max) {
            return Err(format!("it has {} replicas, its greatest size", scalable.replicas));
        }
        let amount = |name: &str| blueprint.capacity.get(name).map(ToString::to_string).unwrap_or_default();
        let places: Vec<String> = blueprint
            .places
            .iter()
            .map(|place| {
                let zone = place.zone.as_deref().unwrap_or("no zone");
                format!("{zone} at {:.4} per hour by {}", place.price.per_hour, place.price.source)
            })
            .collect();
        let name = blueprint.named.clone().unwrap_or_else(|| scalable.id.key.name.to_string());
        Ok(format!(
            "{name}, {} cpu, {} memory, {}; {}",
            amount("cpu"),
            amount("memory"),
            blueprint.capacity_type,
            places.join(", ")
        ))
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
        Evidence::of([
            class("default", json!({})),
            class("gpu", json!({"scalableResourceSelector": {"matchLabels": {"gpu": "yes"}}})),
            deployment,
        ])
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
        assert!(told(full).contains("not offered: it has 0 replicas, its greatest size"));
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
}
