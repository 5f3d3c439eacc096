//! Writes on each NodePool whether its NodeClass is there and ready (rule N2).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use karpenter_api::conditions::{Condition, ConditionSet, ConditionStatus, HasConditions as _, READY};
use karpenter_api::nodepool::NODE_CLASS_READY;
use karpenter_api::{NodeClassReference, NodePool};
use karpenter_cloudprovider::error::truncated;
use karpenter_runtime::controller::{Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::events::{Event, EventType, reference};
use karpenter_runtime::logging;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use karpenter_runtime::writes::OVERTAKEN;
use kube::api::DynamicObject;
use tokio::time::Instant;

use super::{controller, follow_with_class, write_status};
use crate::context::Context;
use crate::watches::Watches;

/// Where a NodePool names its NodeClass.
const FIELD: &str = "spec.template.spec.nodeClassRef";

struct Readiness {
    context: Context,
    unserved: Unserved,
    said: Said,
}

/// How often a NodePool may say something else than was written on it just now before that is taken for another leader's word: our own
/// watch shows it late, too.
const PATIENCE: u32 = 3;

/// What was last written on each NodePool, when, and how often in a row. Another leader whose watch of NodeClasses is behind, or ahead,
/// takes it back as soon as it sees it, and would be answered as fast: for as long as both lead, as fast as the API server can take it.
#[derive(Default)]
struct Said(Mutex<BTreeMap<String, Word>>);

struct Word {
    said: Option<Wording>,
    at: Instant,
    in_a_row: u32,
}

impl Said {
    /// How long to wait before writing on a NodePool again that keeps saying something else than was written on it just now.
    fn contradicted(&self, pool: &NodePool) -> Option<Duration> {
        let said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let word = said.get(pool.metadata.name.as_deref()?)?;
        if word.in_a_row < PATIENCE || word.said == node_class_ready(pool) {
            return None;
        }
        OVERTAKEN.checked_sub(word.at.elapsed()).filter(|rest| !rest.is_zero())
    }

    fn remember(&self, pool: &NodePool) {
        let name = pool.metadata.name.clone().unwrap_or_default();
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = said.get(&name).filter(|word| word.at.elapsed() < OVERTAKEN);
        let in_a_row = before.map_or(0, |word| word.in_a_row) + 1;
        said.insert(name, Word { said: node_class_ready(pool), at: Instant::now(), in_a_row });
    }

    fn forget(&self, key: &ObjectKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&*key.name);
    }
}

/// Status, reason, message and generation: times come back in whole seconds, and say nothing.
type Wording = (ConditionStatus, String, String, Option<i64>);

fn node_class_ready(pool: &NodePool) -> Option<Wording> {
    let ready = pool.conditions().iter().find(|condition| condition.type_ == NODE_CLASS_READY)?;
    Some((ready.status, ready.reason().to_owned(), ready.message().to_owned(), ready.observed_generation))
}

/// NodePools of kinds no provider here serves, with the generation they were mentioned at. They may be another Karpenter's, so
/// nothing is written on them; but where a name was mistyped nobody else would say so, so it is told by an event.
#[derive(Default)]
struct Unserved(Mutex<BTreeMap<String, Option<i64>>>);

impl Unserved {
    /// Whether this has not been said of the NodePool as it is.
    fn is_news(&self, pool: &NodePool) -> bool {
        let name = pool.metadata.name.clone().unwrap_or_default();
        let mut mentioned = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        mentioned.insert(name, pool.metadata.generation) != Some(pool.metadata.generation)
    }

    fn forget(&self, key: &ObjectKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&*key.name);
    }
}

/// Makes the controller part of the program.
pub(crate) fn register(context: &Context, watches: &mut Watches, program: &mut Program) {
    let controller = controller(
        context,
        "nodepool.readiness",
        Readiness { context: context.clone(), unserved: Unserved::default(), said: Said::default() },
    );
    follow_with_class(context, watches, &controller.queue());
    context.run(program, controller);
}

impl Reconciler for Readiness {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Some(pool) = self.context.stores.node_pools.get(&key) else {
            self.unserved.forget(&key);
            self.said.forget(&key);
            return Ok(Outcome::Done);
        };
        if let Err(error) = self.context.providers.for_pool(&pool) {
            if self.unserved.is_news(&pool) {
                tracing::info!(NodePool = %logging::object(&key), field = FIELD, %error, "leaving nodepool alone");
                let message = truncated(format!("{FIELD}: {error}"));
                let event = Event::new(reference(&*pool), EventType::Warning, "UnknownNodeClass", message);
                self.context.recorder.publish(event.dedupe_by(pool.metadata.uid.clone()));
            }
            return Ok(Outcome::Done);
        }
        self.unserved.forget(&key);
        let class = self.context.stores.node_class(&pool.spec.template.spec.node_class_ref);
        let mut judged: NodePool = (*pool).clone();
        let mut conditions = ConditionSet::of(&mut judged, self.context.now());
        match obstacle(class.as_deref()) {
            None => conditions.set_true(NODE_CLASS_READY),
            Some((reason, message)) => conditions.set_false(NODE_CLASS_READY, &reason, &message),
        };
        if class.is_none() {
            self.context.recorder.publish(missing_class(&pool));
        }
        if judged != *pool {
            if let Some(rest) = self.said.contradicted(&pool) {
                return Ok(Outcome::After(rest));
            }
            self.said.remember(&judged);
        }
        write_status(&self.context, &pool, &judged).await
    }
}

/// Names the NodeClass that the condition only says is missing.
fn missing_class(pool: &NodePool) -> Event {
    let NodeClassReference { group, kind, name } = &pool.spec.template.spec.node_class_ref;
    let message =
        format!("{FIELD}: there is no {kind} {name:?} of {group}; create it, or name one that there is");
    let uid = pool.metadata.uid.clone().unwrap_or_default();
    Event::new(reference(pool), EventType::Warning, "UnknownNodeClass", truncated(message))
        .dedupe_by([uid, name.clone()])
}

/// What keeps a NodeClass from being used: reason and message.
fn obstacle(class: Option<&DynamicObject>) -> Option<(String, String)> {
    let said = |reason: &str, message: &str| Some((reason.to_owned(), message.to_owned()));
    let Some(class) = class else { return said("NodeClassNotFound", "NodeClass not found on cluster") };
    if class.metadata.deletion_timestamp.is_some() {
        return said("NodeClassTerminating", "NodeClass is Terminating");
    }
    let conditions: Vec<Condition> = class
        .data
        .pointer("/status/conditions")
        .and_then(|conditions| serde_json::from_value(conditions.clone()).ok())
        .unwrap_or_default();
    let ready = conditions.into_iter().find(|condition| condition.type_ == READY);
    match ready {
        Some(ready) if ready.status == ConditionStatus::True => None,
        Some(ready) if ready.status == ConditionStatus::False => said(ready.reason(), ready.message()),
        _ => said("NodeClassReadinessUnknown", "Node Class Readiness Unknown"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_nobody_serves_is_mentioned_once_and_again_when_it_has_changed_or_come_back() {
        let unserved = Unserved::default();
        let mut pool = NodePool::default();
        pool.metadata.name = Some("mistyped".into());
        pool.metadata.generation = Some(1);
        assert!(unserved.is_news(&pool));
        assert!(!unserved.is_news(&pool));
        pool.metadata.generation = Some(2);
        assert!(unserved.is_news(&pool));
        unserved.forget(&ObjectKey::cluster("mistyped"));
        assert!(unserved.is_news(&pool));
    }

    fn judged(is_ready: bool) -> NodePool {
        judged_at(is_ready, jiff::Timestamp::UNIX_EPOCH)
    }

    fn judged_at(is_ready: bool, now: jiff::Timestamp) -> NodePool {
        let mut pool = NodePool::default();
        pool.metadata.name = Some("default".into());
        let mut conditions = ConditionSet::of(&mut pool, now);
        if is_ready {
            conditions.set_true(NODE_CLASS_READY);
        } else {
            conditions.set_false(NODE_CLASS_READY, "NodeClassReadinessUnknown", "unknown");
        }
        pool
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_is_contradicted_waits_before_it_insists() {
        let (said, ready, unready) = (Said::default(), judged(true), judged(false));
        assert_eq!(said.contradicted(&unready), None, "nothing was said yet");
        said.remember(&ready);
        assert_eq!(said.contradicted(&unready), None, "what it wrote may not have come back yet");
        for _ in 1..PATIENCE {
            said.remember(&ready);
        }
        assert_eq!(said.contradicted(&ready), None, "its own word is changed as soon as it must be");
        let as_it_comes_back =
            judged_at(true, jiff::Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_millis(400));
        assert_eq!(said.contradicted(&as_it_comes_back), None, "whatever becomes of its time");
        assert_eq!(said.contradicted(&unready), Some(OVERTAKEN), "another's is left for a while");
        tokio::time::advance(OVERTAKEN).await;
        assert_eq!(said.contradicted(&unready), None);
        for _ in 0..PATIENCE {
            said.remember(&ready);
        }
        assert!(said.contradicted(&unready).is_some());
        said.forget(&ObjectKey::cluster("default"));
        assert_eq!(said.contradicted(&unready), None, "a NodePool that went is another when it comes again");
    }
}
