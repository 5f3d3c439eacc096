//! Reboots: one at a time, and not again and again.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::conditions::{Condition, ConditionStatus, HasConditions as _};
use karpenter_api::{NodeClaim, nodeclaim};

use super::{Invariant, Step};
use crate::objects::Change;

/// Within which time reboots of a node are counted.
const WINDOW: SignedDuration = SignedDuration::from_hours(24);
/// How many one process asks for within that time, and one whose answer it never got.
const MOST: usize = 2 + 1;

fn rebooting(claim: &NodeClaim) -> Option<&Condition> {
    claim.condition(nodeclaim::REBOOTING).filter(|condition| condition.status == ConditionStatus::True)
}

/// A reboot that was asked for goes on to its end, and a node that reboots do not help is not rebooted for ever.
pub struct RebootsAreFew {
    karpenter: String,
    /// When reboots were asked for by the process that runs, by the NodeClaim's uid.
    asked: BTreeMap<String, Vec<Timestamp>>,
}

impl RebootsAreFew {
    /// For writes under names that start with `karpenter`.
    pub fn new(karpenter: &str) -> Self {
        Self { karpenter: karpenter.to_owned(), asked: BTreeMap::new() }
    }
}

impl Invariant for RebootsAreFew {
    fn name(&self) -> &'static str {
        "a node is rebooted once at a time, and twice a day"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I30"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        if !step.entry.actor.starts_with(self.karpenter.as_str()) {
            return Ok(());
        }
        if step.entry.deed.starts_with("process ") && step.entry.deed.ends_with(" starts") {
            // It remembers nothing of what another did.
            self.asked.clear();
        }
        for change in step.changes {
            let Change::NodeClaim(edit) = &**change else { continue };
            let (Some(old), Some(new)) = (edit.old.as_deref(), edit.new.as_deref()) else { continue };
            let Some(is) = rebooting(new) else { continue };
            if let Some(was) = rebooting(old) {
                if was.last_transition_time != is.last_transition_time {
                    return Err(format!("the reboot of NodeClaim {} began anew before it ended", edit.key));
                }
                let reasons = (was.reason(), is.reason());
                if reasons == (nodeclaim::reboot::ISSUED, nodeclaim::reboot::REQUESTED) {
                    return Err(format!(
                        "the reboot of NodeClaim {} was ordered and asked for again",
                        edit.key
                    ));
                }
                continue;
            }
            let asked = self.asked.entry(new.metadata.uid.clone().unwrap_or_default()).or_default();
            asked.retain(|at| step.now.duration_since(*at) < WINDOW);
            asked.push(step.now);
            if asked.len() > MOST {
                let times = asked.len();
                return Err(format!("NodeClaim {} was to be rebooted {times} times within a day", edit.key));
            }
        }
        Ok(())
    }
}
