//! Which provider serves which NodeClass. Several live in one process; a NodePool chooses by the kind it refers to.

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_api::label_rules::LabelRules;
use karpenter_api::{NodeClaim, NodeClassReference, NodePool};
use karpenter_engine::Provider as SchedulingRules;

use crate::provider::{CloudProvider, LaunchWaker, NodeClassKind};

/// The providers of this program.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    providers: Vec<Arc<dyn CloudProvider>>,
    by_kind: BTreeMap<(String, String), usize>,
}

/// Why providers cannot live together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// Two serve the same kind.
    #[error("NodeClass {kind} is served by {first} and by {second}; run one of them")]
    Contested {
        /// The kind.
        kind: String,
        /// The provider that came first.
        first: String,
        /// The other.
        second: String,
    },
    /// One of this name is there already.
    #[error("provider {0} is given twice; give it once")]
    Twice(String),
    /// A provider that nothing could lead to.
    #[error("provider {0} serves no NodeClass")]
    Useless(String),
}

/// Nobody serves this NodeClass: the object is not ours, and left alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no provider serves NodeClass {group}/{kind}; running: {running}; refer to one of these kinds, or start its provider with --provider"
)]
pub struct UnknownNodeClass {
    /// The group asked for.
    pub group: String,
    /// The kind asked for.
    pub kind: String,
    running: String,
}

impl Registry {
    /// Without providers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Of these providers.
    pub fn of(providers: impl IntoIterator<Item = Arc<dyn CloudProvider>>) -> Result<Self, RegistryError> {
        let mut registry = Self::new();
        for provider in providers {
            registry.register(provider)?;
        }
        Ok(registry)
    }

    /// Adds a provider.
    pub fn register(&mut self, provider: Arc<dyn CloudProvider>) -> Result<(), RegistryError> {
        let name = provider.name().to_owned();
        if self.providers.iter().any(|known| known.name() == name) {
            return Err(RegistryError::Twice(name));
        }
        let kinds = provider.supported_node_classes();
        if kinds.is_empty() {
            return Err(RegistryError::Useless(name));
        }
        for kind in kinds {
            if let Some(known) = self.by_kind.get(&(kind.group.clone(), kind.kind.clone())) {
                let first = self.providers[*known].name().to_owned();
                return Err(RegistryError::Contested { kind: kind.to_string(), first, second: name });
            }
        }
        let at = self.providers.len();
        self.by_kind.extend(kinds.iter().map(|kind| ((kind.group.clone(), kind.kind.clone()), at)));
        self.providers.push(provider);
        Ok(())
    }

    /// All providers, in the order they were registered.
    pub fn providers(&self) -> &[Arc<dyn CloudProvider>] {
        &self.providers
    }

    /// The provider that serves this NodeClass.
    pub fn for_node_class(
        &self,
        reference: &NodeClassReference,
    ) -> Result<&Arc<dyn CloudProvider>, UnknownNodeClass> {
        let kind = (reference.group.clone(), reference.kind.clone());
        self.by_kind.get(&kind).map(|at| &self.providers[*at]).ok_or_else(|| {
            let running: Vec<String> = self
                .providers
                .iter()
                .flat_map(|provider| {
                    provider
                        .supported_node_classes()
                        .iter()
                        .map(move |kind| format!("{} ({kind})", provider.name()))
                })
                .collect();
            let running = if running.is_empty() { "none".to_owned() } else { running.join(", ") };
            UnknownNodeClass { group: kind.0, kind: kind.1, running }
        })
    }

    /// The provider of this NodeClaim.
    pub fn for_claim(&self, claim: &NodeClaim) -> Result<&Arc<dyn CloudProvider>, UnknownNodeClass> {
        self.for_node_class(&claim.spec.node_class_ref)
    }

    /// The provider of this NodePool.
    pub fn for_pool(&self, pool: &NodePool) -> Result<&Arc<dyn CloudProvider>, UnknownNodeClass> {
        self.for_node_class(&pool.spec.template.spec.node_class_ref)
    }

    /// Every kind of NodeClass that is served.
    pub fn node_classes(&self) -> impl Iterator<Item = &NodeClassKind> {
        self.providers.iter().flat_map(|provider| provider.supported_node_classes())
    }

    /// Whether a node with these labels is ours (rule M2): it carries the label of a NodeClass, whatever its value.
    pub fn manages_node(&self, labels: Option<&BTreeMap<String, String>>) -> bool {
        self.provider_of_node(labels).is_some()
    }

    /// The provider of a node with these labels.
    pub fn provider_of_node(
        &self,
        labels: Option<&BTreeMap<String, String>>,
    ) -> Option<&Arc<dyn CloudProvider>> {
        let labels = labels?;
        self.providers.iter().find(|provider| {
            provider.supported_node_classes().iter().any(|kind| labels.contains_key(&kind.label_key()))
        })
    }

    /// The rules on labels with what every provider adds.
    pub fn label_rules(&self) -> LabelRules {
        self.providers.iter().fold(LabelRules::core(), |rules, provider| provider.label_rules(rules))
    }

    /// The rules of scheduling with what every provider adds. Storage is refused only where no provider can serve it, spot is
    /// asked for regardless only where all of them sell it, and of reservation labels there can be one: the first that is not
    /// the default.
    pub fn scheduling_rules(&self) -> SchedulingRules {
        let default = SchedulingRules::default();
        let mut each = self.providers.iter().map(|provider| provider.scheduling_rules());
        let Some(first) = each.next() else { return default };
        each.fold(first, |mut all, one| {
            all.well_known_labels.extend(one.well_known_labels);
            all.restricted_label_domains.extend(one.restricted_label_domains);
            all.unsupported_provisioners.retain(|name| one.unsupported_provisioners.contains(name));
            all.unsupported_topology_keys.retain(|key| one.unsupported_topology_keys.contains(key));
            all.sells_spot &= one.sells_spot;
            if all.reservation_id_label == default.reservation_id_label {
                all.reservation_id_label = one.reservation_id_label;
            }
            all
        })
    }

    /// Gives every provider the waker for its pending launches.
    pub fn wake_with(&self, waker: &LaunchWaker) {
        for provider in &self.providers {
            provider.wake_with(waker.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeProvider;

    fn kind(name: &str) -> NodeClassKind {
        NodeClassKind::new("example.com", "v1", name, &format!("{}es", name.to_lowercase()))
    }

    fn provider(name: &str, kinds: &[&str]) -> Arc<dyn CloudProvider> {
        Arc::new(FakeProvider::serving(name, kinds.iter().map(|name| kind(name))))
    }

    fn reference(kind: &str) -> NodeClassReference {
        NodeClassReference { group: "example.com".into(), kind: kind.into(), name: "default".into() }
    }

    #[test]
    fn a_node_pool_reaches_its_provider_by_the_kind_of_its_node_class() {
        let registry =
            Registry::of([provider("one", &["OneClass", "OldClass"]), provider("two", &["TwoClass"])])
                .expect("a registry");
        for (kind, name) in [("OneClass", "one"), ("OldClass", "one"), ("TwoClass", "two")] {
            let mut pool = NodePool::default();
            pool.spec.template.spec.node_class_ref = reference(kind);
            assert_eq!(registry.for_pool(&pool).expect(kind).name(), name);
            let mut claim = NodeClaim::default();
            claim.spec.node_class_ref = reference(kind);
            assert_eq!(registry.for_claim(&claim).expect(kind).name(), name);
        }
        let error =
            registry.for_node_class(&reference("EC2NodeClass")).expect_err("nobody serves it").to_string();
        assert_eq!(
            error,
            "no provider serves NodeClass example.com/EC2NodeClass; running: one (example.com/OneClass), one \
             (example.com/OldClass), two (example.com/TwoClass); refer to one of these kinds, or start its provider with \
             --provider"
        );
        assert!(
            Registry::new()
                .for_node_class(&reference("X"))
                .expect_err("none")
                .to_string()
                .contains("running: none")
        );
    }

    #[test]
    fn a_node_is_ours_by_the_label_of_its_node_class_whatever_its_value() {
        let registry = Registry::of([provider("one", &["OneClass"])]).expect("a registry");
        let labels = |key: &str| BTreeMap::from([(key.to_owned(), String::new())]);
        assert!(registry.manages_node(Some(&labels("example.com/oneclass"))));
        assert!(!registry.manages_node(Some(&labels("example.com/OneClass"))));
        assert!(!registry.manages_node(None));
    }

    #[test]
    fn rules_of_several_providers_add_up_and_refuse_only_what_none_can_serve() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).into()).collect();
        let rules = |labels: &[&str], provisioners: &[&str], reservation: &str| SchedulingRules {
            well_known_labels: set(labels),
            unsupported_provisioners: set(provisioners),
            reservation_id_label: reservation.into(),
            ..SchedulingRules::default()
        };
        let usual = SchedulingRules::default().reservation_id_label;
        let (one, two) =
            (FakeProvider::serving("one", [kind("A")]), FakeProvider::serving("two", [kind("B")]));
        one.rule(rules(&["one"], &["x", "y"], &usual));
        two.rule(rules(&["two"], &["y"], "example.com/reservation"));
        let registry =
            Registry::of([Arc::new(one) as Arc<dyn CloudProvider>, Arc::new(two)]).expect("a registry");
        let all = registry.scheduling_rules();
        assert_eq!(
            (all.well_known_labels, all.unsupported_provisioners),
            (set(&["one", "two"]), set(&["y"]))
        );
        assert_eq!(&*all.reservation_id_label, "example.com/reservation");
        assert_eq!(Registry::new().scheduling_rules().reservation_id_label, usual);
    }

    #[test]
    fn providers_that_cannot_live_together_are_refused_by_name() {
        let both = |second| Registry::of([provider("one", &["A"]), second]).expect_err("refused").to_string();
        assert_eq!(
            both(provider("two", &["B", "A"])),
            "NodeClass example.com/A is served by one and by two; run one of them"
        );
        assert_eq!(both(provider("one", &["B"])), "provider one is given twice; give it once");
        assert_eq!(both(provider("two", &[])), "provider two serves no NodeClass");
    }
}
