//! One verdict per node out of the outcomes of all methods, for people.

use std::collections::BTreeMap;

use super::Outcome;
use super::command::Decision;
use super::method::Method;
use super::reasons::Why;
use crate::labels::Text;

/// What becomes of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// A method would take it away.
    Goes {
        /// The method.
        method: Method,
        /// What happens to it.
        decision: Decision,
        /// How many nodes the same command takes away.
        together_with: usize,
    },
    /// It stays.
    Stays {
        /// The method that came closest to taking it.
        method: Method,
        /// Why it did not.
        why: Why,
    },
}

/// What becomes of every node: the first method in order that takes it, or the most telling reason why none does.
pub fn explain(outcomes: &[Outcome]) -> BTreeMap<Text, Verdict> {
    let mut verdicts: BTreeMap<Text, Verdict> = BTreeMap::new();
    for outcome in outcomes {
        for command in &outcome.commands {
            for candidate in &command.candidates {
                let goes = Verdict::Goes {
                    method: outcome.method,
                    decision: command.decision(),
                    together_with: command.candidates.len(),
                };
                let verdict = verdicts.entry(candidate.node.clone()).or_insert_with(|| goes.clone());
                if matches!(verdict, Verdict::Stays { .. }) {
                    *verdict = goes;
                }
            }
        }
        for stays in &outcome.stays {
            let this = Verdict::Stays { method: stays.method, why: stays.why.clone() };
            let verdict = verdicts.entry(stays.node.clone()).or_insert_with(|| this.clone());
            if let Verdict::Stays { why, .. } = verdict
                && telling(&stays.why) > telling(why)
            {
                *verdict = this;
            }
        }
    }
    verdicts
}

/// How much a reason says: that a method is not about the node says nothing, that it tried and failed says most.
fn telling(why: &Why) -> u8 {
    match why {
        Why::NotDrifted | Why::NotEmpty | Why::Empty | Why::Healthy => 0,
        Why::StaticPool => 1,
        Why::NotTried | Why::NoBatch | Why::OutOfTime => 2,
        Why::PodsWouldNotSchedule { .. }
        | Why::NeedsSeveralNodes(_)
        | Why::OthersNeedNodes { .. }
        | Why::MinValues(_)
        | Why::NotCheaper { .. }
        | Why::SpotToSpotDisabled
        | Why::SpotToSpotTooFew(_)
        | Why::NotWorthIt { .. }
        | Why::StaticAtLimit
        | Why::StaticReservationsFull => 4,
        _ => 3,
    }
}
