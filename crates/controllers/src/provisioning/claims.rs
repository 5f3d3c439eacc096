//! Makes NodeClaims: from a decision of the engine, or as a static NodePool's template says; and creates them.
//!
//! Whoever creates NodeClaims does it here, so that all of them look the same, are known to the state at once, and are counted.

use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use karpenter_api::nodeclaim::ResourceRequirements;
use karpenter_api::nodepool::HASH_VERSION;
use karpenter_api::{Duration, NodeClaim, NodePool, NodeSelectorRequirement, annotations, labels};
use karpenter_cloudprovider::conversion;
use karpenter_engine::PlannedClaim;
use karpenter_engine::labels::{HOSTNAME, NODE_POOL, WELL_KNOWN};
use karpenter_engine::requirement::{Operator, Requirement, SelectorRequirement};
use karpenter_engine::requirements::Requirements;
use karpenter_engine::taints::Taint;
use karpenter_runtime::entropy::Stream;
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::logging;
use karpenter_runtime::metrics::CounterVec;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::work_queue::WorkQueue;
use kube::Api;
use kube::api::PostParams;
use kube::core::Status;

use super::leftovers;
use super::unanswered::Unanswered;
use crate::context::Context;

/// The longest name a generated one may start with; more is cut, as the API server does.
const LONGEST_BASE: usize = 58;
/// The letters generated names end in: without vowels, so that they make no words.
const SUFFIX_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;
/// How many names are tried before a name that is always taken is an error.
const NAMES_TRIED: u32 = 4;

/// Adds the taints it was planned with and its NodePool does not declare, if any.
fn inherit(claim: &mut NodeClaim, taints: &[Taint]) {
    let spec = &mut claim.spec;
    let inherited = taints.iter().filter(|taint| {
        let mut declared = spec.taints.iter().chain(&spec.startup_taints).flatten();
        !declared.any(|known| taint.matches(&known.key, &known.effect))
    });
    let inherited = inherited.map(|taint| core::Taint {
        key: taint.key.to_string(),
        value: Some(taint.value.to_string()).filter(|value| !value.is_empty()),
        effect: taint.effect.to_string(),
        time_added: None,
    });
    let inherited: Vec<core::Taint> = inherited.collect();
    if !inherited.is_empty() {
        spec.taints.get_or_insert_default().extend(inherited);
    }
}

/// Creates NodeClaims; clones share what they need.
#[derive(Clone)]
pub(crate) struct ClaimFactory(Arc<Factory>);

struct Factory {
    context: Context,
    names: Mutex<Stream>,
    created: CounterVec,
    /// Looks after NodeClaims that vanish before any watch shows them.
    leftovers: WorkQueue<leftovers::Created>,
    unanswered: Unanswered,
}

impl ClaimFactory {
    pub(super) fn new(context: &Context, leftovers: WorkQueue<leftovers::Created>) -> Self {
        Self(Arc::new(Factory {
            context: context.clone(),
            names: Mutex::new(context.environment.entropy.stream("nodeclaim names")),
            created: context.environment.registry.counter(
                "karpenter_nodeclaims_created_total",
                "NodeClaims created, by reason, NodePool and whether minValues were relaxed.",
                &["reason", "nodepool", "min_values_relaxed"],
            ),
            leftovers,
            unanswered: Unanswered::default(),
        }))
    }

    /// The NodeClaim the engine decided on. `pool` is the NodePool as it was when it decided.
    pub(crate) fn planned(&self, pool: &NodePool, planned: &PlannedClaim) -> NodeClaim {
        let mut claim = self.template_claim(pool);
        let labels = claim.metadata.labels.get_or_insert_default();
        labels.extend(planned.labels.iter().map(|(key, value)| (key.to_string(), value.to_string())));
        let requirements = Requirements::from_selectors(planned.requirements.iter()).unwrap_or_default();
        for key in &planned.open_labels {
            if let Some(value) = requirements.get(key).and_then(any_value) {
                labels.insert(key.to_string(), value);
            }
        }
        let annotations = claim.metadata.annotations.get_or_insert_default();
        let mut annotate = |key: &str, value: &str| annotations.insert(key.to_owned(), value.to_owned());
        let relaxed = if planned.min_values_relaxed { "true" } else { "false" };
        annotate(annotations::NODECLAIM_MIN_VALUES_RELAXED, relaxed);
        if planned.price_overlay {
            annotate(annotations::PRICE_OVERLAY_APPLIED, "true");
        }
        if planned.capacity_overlay {
            annotate(annotations::CAPACITY_OVERLAY_APPLIED, "true");
        }
        claim.spec.requirements = planned.requirements.iter().map(wire).collect();
        inherit(&mut claim, &planned.taints);
        let requests = conversion::resource_list(&planned.requests);
        claim.spec.resources = Some(ResourceRequirements { requests: Some(requests) });
        claim
    }

    /// A NodeClaim of a static NodePool: what it becomes is the provider's choice.
    pub(crate) fn of_static_pool(&self, pool: &NodePool) -> NodeClaim {
        let mut claim = self.template_claim(pool);
        let selectors: Vec<SelectorRequirement> =
            pool.spec.template.spec.requirements.iter().map(conversion::selector).collect();
        let mut requirements = Requirements::from_selectors(&selectors).unwrap_or_default();
        let labels = claim.metadata.labels.get_or_insert_default();
        for (key, value) in labels.iter() {
            requirements.add(Requirement::one_of(key.as_str(), [value.as_str()]));
        }
        let rules = self.0.context.providers.scheduling_rules();
        for requirement in requirements.iter() {
            let key = requirement.key.as_ref();
            let well_known = WELL_KNOWN.contains(&key) || rules.well_known_labels.contains(key);
            if !well_known
                && key != HOSTNAME
                && let Some(value) = any_value(requirement)
            {
                labels.insert(key.to_owned(), value);
            }
        }
        let mut wired: Vec<SelectorRequirement> =
            requirements.iter().flat_map(Requirement::to_selectors).collect();
        wired.sort();
        claim.spec.requirements = wired.iter().map(wire).collect();
        // No node without these would be made for it.
        if let Ok(provider) = self.0.context.providers.for_pool(pool) {
            inherit(&mut claim, &provider.inherited_taints(pool));
        }
        claim
    }

    fn template_claim(&self, pool: &NodePool) -> NodeClaim {
        let name = pool.metadata.name.clone().unwrap_or_default();
        let mut claim = pool.spec.template.to_node_claim();
        let class = &pool.spec.template.spec.node_class_ref;
        let labels = claim.metadata.labels.get_or_insert_default();
        labels.insert(labels::NODEPOOL.to_owned(), name.clone());
        labels.insert(labels::node_class(&class.group, &class.kind), class.name.clone());
        let annotations = claim.metadata.annotations.get_or_insert_default();
        annotations.insert(annotations::NODEPOOL_HASH.to_owned(), pool.hash());
        annotations.insert(annotations::NODEPOOL_HASH_VERSION.to_owned(), HASH_VERSION.to_owned());
        if claim.spec.termination_grace_period.is_none()
            && let Ok(provider) = self.0.context.providers.for_pool(pool)
        {
            let nanos = |time: std::time::Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
            let period = provider.default_termination_grace_period();
            claim.spec.termination_grace_period = period.map(|period| Duration::from_nanos(nanos(period)));
        }
        claim.metadata = ObjectMeta {
            generate_name: Some(format!("{name}-")),
            owner_references: Some(vec![OwnerReference {
                api_version: "karpenter.sh/v1".to_owned(),
                kind: "NodePool".to_owned(),
                name,
                uid: pool.metadata.uid.clone().unwrap_or_default(),
                block_owner_deletion: Some(true),
                controller: None,
            }]),
            ..claim.metadata
        };
        claim
    }

    /// Creates a NodeClaim for `reason`, unless its NodePool has more than it may already. As soon as it exists the state
    /// knows it: until it is launched, or its provider says what the launch will come to, nothing else is decided.
    pub(crate) async fn create(
        &self,
        claim: NodeClaim,
        pool: &str,
        reason: &str,
    ) -> Result<Arc<NodeClaim>, ReconcileError> {
        let context = &self.0.context;
        let latest = context.stores.node_pools.get(&ObjectKey::cluster(pool)).ok_or_else(|| {
            ReconcileError::message(format!(
                "getting current resource usage, NodePool.karpenter.sh {pool:?} not found"
            ))
        })?;
        let usage = context.cluster.read(|cluster| cluster.node_pool_usage(pool));
        if let Some(exceeded) = latest.exceeded_limit(&conversion::resource_list(&usage)) {
            return Err(exceeded.into());
        }
        let created = self.post(claim).await?;
        self.note(&created, pool, reason);
        Ok(Arc::new(created))
    }

    fn note(&self, created: &NodeClaim, pool: &str, reason: &str) {
        let context = &self.0.context;
        // The answer may come after the watch, which then knows more.
        let known = context.stores.node_claims.get(&ObjectKey::of(created));
        let is_known = known.is_some_and(|known| known.metadata.uid == created.metadata.uid);
        let noted = if is_known { Ok(()) } else { context.cluster.update(|c| c.apply_node_claim(created)) };
        if let Err(error) = noted {
            let object = logging::object(&ObjectKey::of(created));
            tracing::warn!(NodeClaim = %object, %error, "object is left out of scheduling");
        }
        self.0.leftovers.add_after(leftovers::Created(ObjectKey::of(created)), leftovers::AFTER);
        let types = created.spec.requirements.iter().find(|r| r.key == labels::INSTANCE_TYPE);
        let requests = created.spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        let requests: serde_json::Map<String, serde_json::Value> = requests
            .into_iter()
            .flatten()
            .map(|(name, amount)| (name.clone(), amount.to_string().into()))
            .collect();
        tracing::info!(
            NodePool = %logging::object(&ObjectKey::cluster(pool)),
            NodeClaim = %logging::object(&ObjectKey::of(created)),
            requests = %logging::json(requests),
            "instance-types" = some_of(types.map(|r| r.values()).unwrap_or_default(), 5),
            "created nodeclaim"
        );
        let relaxed = created.metadata.annotations.as_ref();
        let relaxed = relaxed.and_then(|a| a.get(annotations::NODECLAIM_MIN_VALUES_RELAXED));
        self.0.created.inc(&[reason, pool, relaxed.map_or("false", String::as_str)]);
    }

    /// Creates under a name chosen here, so that an answer that gets lost can be asked for again: nothing is created twice.
    async fn post(&self, mut claim: NodeClaim) -> Result<NodeClaim, kube::Error> {
        let api: Api<NodeClaim> = Api::all(self.0.context.client.clone());
        let base = claim.metadata.generate_name.clone().unwrap_or_default();
        let known = &self.0.context.stores.node_claims;
        let is_known = |name: &str| known.get(&ObjectKey::cluster(name)).is_some();
        let mut asked_before = self.0.unanswered.take(&claim, is_known);
        let mut tried = 0;
        loop {
            let again = asked_before.is_some();
            let name = asked_before.take().unwrap_or_else(|| self.name(&base));
            claim.metadata.name = Some(name.clone());
            tried += 1;
            let error = match api.create(&PostParams::default(), &claim).await {
                Ok(created) => return Ok(created),
                Err(kube::Error::Api(status)) if !again && is_taken(&status) && tried < NAMES_TRIED => {
                    continue;
                }
                Err(error) if !again && is_refusal(&error) => return Err(error),
                Err(error) => error,
            };
            // It may or may not have been created. If it was, it is ours: nobody else knows the name.
            match api.get_opt(&name).await {
                Ok(Some(created)) if created.metadata.deletion_timestamp.is_none() => return Ok(created),
                // What was asked for before is gone again.
                Ok(_) if again && tried < NAMES_TRIED => {}
                Ok(_) => return Err(error),
                Err(_) => {
                    self.0.unanswered.keep(claim);
                    return Err(error);
                }
            }
        }
    }

    fn name(&self, base: &str) -> String {
        let mut names = self.0.names.lock().unwrap_or_else(PoisonError::into_inner);
        let mut name = base.to_owned();
        name.truncate(base.floor_char_boundary(LONGEST_BASE));
        for _ in 0..SUFFIX_LENGTH {
            let letters = SUFFIX_LETTERS.len() as u64;
            let at = usize::try_from(names.next_u64() % letters).unwrap_or_default();
            name.push(char::from(SUFFIX_LETTERS[at]));
        }
        name
    }
}

fn is_taken(status: &Status) -> bool {
    status.code == 409 && status.reason == "AlreadyExists"
}

/// Whether the server said no: then nothing was created.
fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 408)
}

fn wire(requirement: &SelectorRequirement) -> NodeSelectorRequirement {
    NodeSelectorRequirement {
        min_values: requirement.min_values,
        ..NodeSelectorRequirement::new(
            requirement.key.to_string(),
            requirement.operator.as_ref().into(),
            requirement.values.iter().map(ToString::to_string),
        )
    }
}

/// A value the requirement allows; upstream picks one at random, this is the least. None if it allows none but the empty one, which
/// is no label.
fn any_value(requirement: &Requirement) -> Option<String> {
    match requirement.operator() {
        Operator::DoesNotExist => None,
        Operator::In => requirement.values.iter().find(|value| !value.is_empty()).map(ToString::to_string),
        _ => {
            let from = requirement.gte.unwrap_or(0);
            let to = requirement.lte.unwrap_or(i64::MAX);
            (from..=to).map(|number| number.to_string()).find(|number| requirement.has(number))
        }
    }
}

/// The first few of a list: `a, b and 3 other(s)`.
pub(crate) fn some_of<T: std::fmt::Display>(items: &[T], most: usize) -> String {
    let shown: Vec<String> = items.iter().take(most).map(ToString::to_string).collect();
    let rest = items.len() - shown.len();
    let shown = shown.join(", ");
    if rest == 0 { shown } else { format!("{shown} and {rest} other(s)") }
}

/// The NodePool a NodeClaim says it belongs to.
pub(crate) fn pool_of(claim: &NodeClaim) -> Option<&str> {
    claim.metadata.labels.as_ref()?.get(NODE_POOL).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requirement(operator: &str, values: &[&str]) -> Requirement {
        let selector = SelectorRequirement {
            key: "team".into(),
            operator: operator.into(),
            values: values.iter().map(|value| (*value).into()).collect(),
            min_values: None,
        };
        Requirement::from_selector(&selector).expect("a requirement")
    }

    #[test]
    fn an_open_label_gets_the_least_value_its_requirement_allows() {
        for (operator, values, expected) in [
            ("In", &["b", "a"][..], Some("a")),
            ("In", &["", "a"], Some("a")),
            ("In", &[""], None),
            ("Exists", &[], Some("0")),
            ("NotIn", &["0", "1"], Some("2")),
            ("Gt", &["7"], Some("8")),
            ("Lte", &["3"], Some("0")),
            ("DoesNotExist", &[], None),
        ] {
            assert_eq!(any_value(&requirement(operator, values)).as_deref(), expected, "{operator}");
        }
    }

    #[test]
    fn a_long_list_is_cut_and_says_so() {
        assert_eq!(some_of(&["a", "b"], 2), "a, b");
        assert_eq!(some_of(&["a", "b", "c", "d"], 2), "a, b and 2 other(s)");
        assert_eq!(some_of::<&str>(&[], 2), "");
    }
}
