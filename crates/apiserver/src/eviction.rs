//! Evictions: deletions of pods that ask their disruption budget first.

use std::sync::Arc;

use karpenter_primitives::selector::{LabelSelector, Selector};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::binding::{set_condition, success};
use crate::create::fit_namespace;
use crate::decode::{self, WriteOptions};
use crate::delete::DeleteOptions;
use crate::environment::rfc3339;
use crate::object::{is_deleting, meta_str, metadata, object_mut};
use crate::registry::Resource;
use crate::server::Writer;
use crate::service::Call;
use crate::status::ApiError;
use crate::store::{Key, range};
use crate::update::Target;

/// How many evictions may be under way that the budget's controller has not seen yet.
const MAX_DISRUPTED_PODS: usize = 2000;
const REFUSED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

/// What a budget says to an eviction.
enum Verdict {
    /// Nobody needs to be told.
    Free,
    /// The budget is charged: its new state.
    Charged(Value),
}

pub(crate) fn evict(call: &Call, target: Target<'_>) -> Result<Answer, ApiError> {
    let options = WriteOptions::parse(&call.query, "CreateOptions")?;
    let mut eviction = decode::parse(&call.body, decode::media_type(&call.headers), "Eviction")?.value;
    let kind = eviction.get("kind").and_then(Value::as_str).unwrap_or_default();
    if !matches!(kind, "" | "Eviction") {
        return Err(decode::not_a(&eviction, "policy", "Eviction", &call.registry()));
    }
    fit_namespace(&mut eviction, target.namespace)?;
    if meta_str(&eviction, "name") != target.name {
        return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
    }
    let mut deletion = DeleteOptions::read(eviction.get("deleteOptions").unwrap_or(&Value::Null))?;
    deletion.dry_run |= options.dry_run;
    let target = Target { subresource: None, ..target };
    call.server.write(|writer| writer.evict(target, deletion).map(|()| success()))
}

impl Writer<'_> {
    fn evict(&mut self, target: Target<'_>, deletion: DeleteOptions) -> Result<(), ApiError> {
        let stored = self.get(&target.key()).ok_or_else(|| target.not_found())?;
        let pod = stored.to_value(target.resource);
        if !ignores_budgets(&pod) {
            let registry = Arc::clone(&self.state.registry);
            if let Some(budgets) = registry.find("policy", "v1", "poddisruptionbudgets") {
                let matching = self.budgets_of(budgets, target.namespace, &pod);
                if matching.len() > 1 {
                    return Err(ApiError::internal(
                        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
                    ));
                }
                for (key, budget) in matching {
                    match judge(&pod, budget, &rfc3339(self.environment.now()))? {
                        Verdict::Free => {}
                        // kube-apiserver charges the budget before it looks at the eviction's preconditions.
                        Verdict::Charged(budget) if !deletion.dry_run => {
                            drop(self.put(&key, budgets, &budget))
                        }
                        Verdict::Charged(_) => {}
                    }
                }
            }
        }
        self.mark_and_delete(target, deletion)
    }

    fn budgets_of(&self, budgets: &Resource, namespace: &str, pod: &Value) -> Vec<(Key, Value)> {
        let labels = metadata(pod).and_then(|m| m.get("labels")).and_then(Value::as_object);
        range(self.state.store.objects(), budgets.storage, Some(namespace), None)
            .map(|(key, stored)| (key.clone(), stored.to_value(budgets)))
            .filter(|(_, budget)| {
                selector(budget).matches_with(|key| labels.and_then(|l| l.get(key)).and_then(Value::as_str))
            })
            .collect()
    }

    fn mark_and_delete(&mut self, target: Target<'_>, mut deletion: DeleteOptions) -> Result<(), ApiError> {
        let key = target.key();
        let stored = self.get(&key).ok_or_else(|| target.not_found())?;
        crate::delete::check_preconditions(target, &deletion, &stored)?;
        if !deletion.dry_run {
            let mut pod = stored.to_value(target.resource);
            let condition = json!({
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting",
            });
            set_condition(&mut pod, condition, &rfc3339(self.environment.now()));
            let marked = self.put_if_changed(&key, target.resource, &pod);
            // The precondition held a moment ago; our own mark does not break it.
            deletion.revision = deletion.revision.map(|_| marked.revision.to_string());
        }
        self.delete(target, &deletion).map(drop)
    }
}

/// Pods that are not up, or on their way out, count for no budget.
fn ignores_budgets(pod: &Value) -> bool {
    let phase = pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
    matches!(phase, "Succeeded" | "Failed" | "Pending") || is_deleting(pod)
}

fn selector(budget: &Value) -> Selector {
    let Some(selector) = budget.pointer("/spec/selector") else { return Selector::nothing() };
    // Validation has refused selectors that cannot be read; what slipped through selects nothing.
    LabelSelector::deserialize(selector)
        .ok()
        .and_then(|selector| selector.to_selector().ok())
        .unwrap_or_else(Selector::nothing)
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

fn judge(pod: &Value, mut budget: Value, now: &str) -> Result<Verdict, ApiError> {
    let name = meta_str(&budget, "name").to_owned();
    let number = |path: &str| budget.pointer(path).and_then(Value::as_i64).unwrap_or(0);
    let (healthy, desired) = (number("/status/currentHealthy"), number("/status/desiredHealthy"));
    let allowed = number("/status/disruptionsAllowed");
    if !is_ready(pod) {
        let policy = budget.pointer("/spec/unhealthyPodEvictionPolicy").and_then(Value::as_str);
        if policy == Some("AlwaysAllow") || (healthy >= desired && desired > 0) {
            return Ok(Verdict::Free);
        }
    }
    if number("/status/observedGeneration") < number("/metadata/generation") {
        let why = format!("The disruption budget {name} is still being processed by the server.");
        return Err(refused(&why, Some(10)));
    }
    let forbidden = |why: &str| ApiError::forbidden("policy", "poddisruptionbudget", &name, why);
    if allowed < 0 {
        return Err(forbidden("pdb disruptions allowed is negative"));
    }
    let disrupted = budget.pointer("/status/disruptedPods").and_then(Value::as_object);
    if disrupted.is_some_and(|pods| pods.len() > MAX_DISRUPTED_PODS) {
        return Err(forbidden(
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
        ));
    }
    if allowed == 0 {
        return Err(refused(&exhausted(&name, &budget, healthy, desired), None));
    }
    charge(&mut budget, meta_str(pod, "name"), allowed - 1, now);
    Ok(Verdict::Charged(budget))
}

/// Why a budget has nothing left.
fn exhausted(name: &str, budget: &Value, healthy: i64, desired: i64) -> String {
    let conditions = budget.pointer("/status/conditions").and_then(Value::as_array);
    let condition = conditions.into_iter().flatten().find(|c| c["type"] == "DisruptionAllowed");
    let text = |field: &str| condition.and_then(|c| c[field].as_str()).unwrap_or_default();
    let denied = text("status") == "False" && !text("message").is_empty();
    if denied && text("reason") == "SyncFailed" {
        format!(
            "The disruption budget {name} does not allow evicting pods currently because it failed sync: {}",
            text("message")
        )
    } else if healthy <= desired {
        format!("The disruption budget {name} needs {desired} healthy pods and has {healthy} currently")
    } else if denied {
        format!(
            "The disruption budget {name} does not allow evicting pods currently ({}): {}",
            text("reason"),
            text("message")
        )
    } else {
        format!("The disruption budget {name} does not allow evicting pods currently")
    }
}

fn refused(why: &str, retry_seconds: Option<i64>) -> ApiError {
    let mut details = json!({"causes": [{"reason": "DisruptionBudget", "message": why}]});
    if let Some(seconds) = retry_seconds {
        details["retryAfterSeconds"] = seconds.into();
    }
    ApiError::other(429, "TooManyRequests", REFUSED).with_details(details)
}

fn charge(budget: &mut Value, pod: &str, left: i64, now: &str) {
    let generation = budget.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or(0);
    let status = object_mut(object_mut(budget).entry("status").or_insert_with(|| json!({})));
    status.insert("disruptionsAllowed".into(), left.into());
    let disrupted = status.entry("disruptedPods").or_insert_with(|| json!({}));
    object_mut(disrupted).insert(pod.to_owned(), now.into());
    if left > 0 {
        return;
    }
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    let Some(list) = conditions.as_array_mut() else { return };
    let condition = json!({
        "type": "DisruptionAllowed",
        "status": "False",
        "reason": "InsufficientPods",
        "message": "",
        "observedGeneration": generation,
        "lastTransitionTime": now,
    });
    match list.iter().position(|c| c["type"] == "DisruptionAllowed") {
        Some(at) => list[at] = condition,
        None => list.push(condition),
    }
}
