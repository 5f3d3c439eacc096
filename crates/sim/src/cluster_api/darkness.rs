//! O8: while the management cluster cannot be reached or refuses every question, nothing is known to have gone, and nothing could be
//! replaced, so no NodeClaim and no Node is deleted but by people and by what was decided before.

use jiff::{SignedDuration, Timestamp};
use karpenter_api::NodeClaim;
use karpenter_api::conditions::HasConditions as _;

use crate::faults::Faults;
use crate::invariants::{Invariant, Step};
use crate::objects::{Change, Objects, is_deleting};

/// So long after the lights went out that is noticed, and what was decided before may have begun.
const NOTICED: SignedDuration = SignedDuration::from_secs(90);

/// See the module.
pub struct NothingGoesInTheDark {
    provider: String,
    hub: Faults,
    since: Option<Timestamp>,
}

impl NothingGoesInTheDark {
    /// For a provider whose writes stand under names that start with `provider` and who reaches the management cluster through
    /// `hub`.
    pub fn new(provider: &str, hub: &Faults) -> Self {
        Self { provider: provider.to_owned(), hub: hub.clone(), since: None }
    }
}

/// Whether the workload cluster alone is reason enough: a disruption that began by then, or a Node that somebody deletes.
fn for_its_own_reasons(objects: &Objects, claim: &NodeClaim, noticed: Timestamp) -> bool {
    let id = claim.status.as_ref().and_then(|status| status.provider_id.as_ref());
    let mut nodes = objects
        .nodes
        .values()
        .filter(|node| id.is_some() && node.spec.as_ref().and_then(|spec| spec.provider_id.as_ref()) == id);
    let chosen = claim.condition("DisruptionReason").filter(|c| c.status.as_str() == "True");
    nodes.any(|node| is_deleting(&**node)) || chosen.is_some_and(|chosen| chosen.since() <= noticed)
}

impl Invariant for NothingGoesInTheDark {
    fn name(&self) -> &'static str {
        "nothing goes in the dark"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["O8"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        let dark = self.hub.is_cut_off() || self.hub.refusal().is_some();
        self.since = match (dark, self.since) {
            (false, _) => None,
            (true, since) => since.or(Some(step.now)),
        };
        let Some(noticed) = self.since.map(|since| since.saturating_add(NOTICED).unwrap_or(since)) else {
            return Ok(());
        };
        if step.now <= noticed || !step.entry.actor.starts_with(&self.provider) {
            return Ok(());
        }
        for change in step.changes {
            match &**change {
                Change::NodeClaim(edit) => {
                    let (Some(old), Some(new)) = (&edit.old, &edit.new) else { continue };
                    if !is_deleting(&**old)
                        && is_deleting(&**new)
                        && !for_its_own_reasons(step.objects, new, noticed)
                    {
                        return Err(format!(
                            "NodeClaim {} is deleted and the management cluster cannot be reached",
                            edit.key
                        ));
                    }
                }
                Change::Node(edit) => {
                    let (Some(old), Some(new)) = (&edit.old, &edit.new) else { continue };
                    let id = new.spec.as_ref().and_then(|spec| spec.provider_id.as_ref());
                    let live = step.objects.node_claims.values().any(|claim| {
                        let theirs = claim.status.as_ref().and_then(|status| status.provider_id.as_ref());
                        theirs == id && id.is_some() && !is_deleting(&**claim)
                    });
                    if !is_deleting(&**old) && is_deleting(&**new) && live {
                        return Err(format!(
                            "Node {} of a live NodeClaim is deleted and the management cluster cannot be reached",
                            edit.key
                        ));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}
