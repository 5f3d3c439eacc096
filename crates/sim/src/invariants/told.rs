//! What is told of disruption: only what has been done.

use karpenter_runtime::object_key::ObjectKey;
use serde_json::Value;

use super::lifecycle::claim_of;
use super::{Invariant, Step};
use crate::objects::is_deleting;

/// Karpenter says that it takes a node away after the server has accepted the deletion of its NodeClaim, and not before.
pub struct EndsAreToldAfterwards {
    karpenter: String,
}

impl EndsAreToldAfterwards {
    /// For writes under names that start with `karpenter`.
    pub fn new(karpenter: &str) -> Self {
        Self { karpenter: karpenter.to_owned() }
    }
}

impl Invariant for EndsAreToldAfterwards {
    fn name(&self) -> &'static str {
        "a node's end is told once its NodeClaim is being deleted"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I34"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        if !step.entry.actor.starts_with(self.karpenter.as_str()) {
            return Ok(());
        }
        for change in step.raw.iter().filter(|change| change.plural() == "events") {
            let Some(bytes) = change.after() else { continue };
            let event: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            if event["reason"] != "DisruptionTerminating" {
                continue;
            }
            let about = |field: &str| event["involvedObject"][field].as_str().unwrap_or_default();
            let key = ObjectKey::cluster(about("name"));
            // Another of the same name may have come since.
            let is_meant = |uid: &Option<String>| uid.as_deref() == Some(about("uid"));
            let claim = match about("kind") {
                "NodeClaim" => {
                    step.objects.node_claims.get(&key).filter(|claim| is_meant(&claim.metadata.uid))
                }
                "Node" => {
                    let node = step.objects.nodes.get(&key).filter(|node| is_meant(&node.metadata.uid));
                    node.and_then(|node| claim_of(step.objects, node))
                }
                _ => None,
            };
            if let Some(claim) = claim.filter(|claim| !is_deleting(&***claim)) {
                let name = claim.metadata.name.as_deref().unwrap_or_default();
                return Err(format!(
                    "the end of {key} is told, and its NodeClaim {name} is not being deleted"
                ));
            }
        }
        Ok(())
    }
}
