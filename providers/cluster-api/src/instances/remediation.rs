//! Who replaces unhealthy Machines where it is node repair: health checks of Cluster API are told to leave claimed Machines alone, from
//! the claim on, and no longer when the NodeClass says otherwise. Only while the core repairs nodes: else nobody would.

use serde_json::{Value, json};

use super::fleet::Fleet;
use super::ledger::is_our_mark;
use crate::client::machine::Machine;
use crate::names;
use crate::nodeclass::ClusterAPINodeClass;

/// What we write where others write anything or nothing: so it is known whose it is.
const OURS: &str = "karpenter";
/// How many Machines are written to at a time: others wait for whoever does it.
const AT_A_TIME: usize = 20;

/// Whether nodes of a NodeClass are node repair's to replace.
pub(crate) fn is_node_repairs(fleet: &Fleet, class: &ClusterAPINodeClass) -> bool {
    fleet.settings.node_repair && class.leaves_remediation_to_node_repair()
}

/// The annotation that a claimed Machine gets, where it is wanted.
pub(crate) fn annotate(annotations: &mut Value, wanted: bool) {
    if wanted {
        annotations[names::SKIP_REMEDIATION] = OURS.into();
    }
}

/// What is to be written on a Machine so that health checks leave it alone, or do not any more. What others wrote stays.
fn change(machine: &Machine, wanted: bool) -> Option<Value> {
    match (machine.annotations.get(names::SKIP_REMEDIATION).map(String::as_str), wanted) {
        (None, true) => Some(json!(OURS)),
        (Some(OURS), false) => Some(Value::Null),
        _ => None,
    }
}

/// Has claimed Machines say what their NodeClasses want, a few at a time. What fails is done the next time.
pub(crate) async fn look_after(fleet: &Fleet) {
    let mut written = 0;
    for machine in fleet.mirror.machines().into_iter().filter(|m| !m.deleting && !is_our_mark(m)) {
        let Some(claim) = machine.claim().filter(|claim| claim.owner == fleet.owner) else { continue };
        let found = fleet.node_claims.seen(&claim.node_claim, &claim.uid);
        let class = found.and_then(|found| fleet.node_class(&found.spec.node_class_ref.name));
        // What is not seen may say otherwise.
        let Some(class) = class else { continue };
        let Some(value) = change(&machine, is_node_repairs(fleet, &class)) else { continue };
        if fleet.paused(&machine).is_some() {
            continue;
        }
        if written == AT_A_TIME || !matches!(fleet.is_paused().await, Ok(false)) {
            return;
        }
        written += 1;
        let metadata = json!({"annotations": {names::SKIP_REMEDIATION: value}});
        match fleet.hub.annotate_machine(&machine, metadata).await {
            Ok(_) => fleet.metrics.writes.inc(&["remediation"]),
            Err(error) => {
                tracing::debug!(%error, machine = %machine.key, "cannot tell health checks about a Machine");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::machine;

    #[test]
    fn what_others_tell_health_checks_stays() {
        let plain = machine("a", 0, &[]);
        let ours = machine("b", 0, &[(names::SKIP_REMEDIATION, OURS)]);
        let theirs = machine("c", 0, &[(names::SKIP_REMEDIATION, "")]);
        assert_eq!(change(&plain, true), Some(json!(OURS)));
        assert_eq!(change(&ours, false), Some(Value::Null));
        for (machine, wanted) in [(&plain, false), (&ours, true), (&theirs, true), (&theirs, false)] {
            assert_eq!(change(machine, wanted), None, "{} {wanted}", machine.key);
        }
    }
}
