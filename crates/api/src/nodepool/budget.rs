//! Disruption budgets: how many nodes may be disrupted at a given time.

use jiff::Timestamp;

use super::{Budget, DisruptionReason, NodePool};
use crate::cron::{CronError, Schedule};

/// What a budget allows that does not count at the time.
pub const UNBOUNDED: i64 = i32::MAX as i64;

/// A budget that cannot be understood. It allows nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// The schedule is none, although the schema let it through.
    #[error("invariant violated, invalid cron, {0} (cron=<nil>)")]
    Schedule(#[from] CronError),
    /// The number of nodes is neither a number nor a percentage.
    #[error("invalid value for IntOrString: {problem}")]
    Nodes {
        /// What stands there.
        value: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl BudgetError {
    /// The field of the budget and what is wrong with it, without what upstream's text puts around it.
    pub fn field_and_problem(&self) -> (&'static str, String) {
        match self {
            Self::Schedule(problem) => ("schedule", problem.to_string()),
            Self::Nodes { value, problem } => ("nodes", format!("{value:?}: {problem}")),
        }
    }
}

impl NodePool {
    /// How many of `node_count` nodes may be disrupted for a reason at the same time: the least that any budget allows. If
    /// one of the pool's budgets cannot be understood, even one for other reasons, nothing may be disrupted;
    /// the errors say why.
    pub fn allowed_disruptions(
        &self,
        now: Timestamp,
        node_count: i64,
        reason: DisruptionReason,
    ) -> Result<i64, Vec<BudgetError>> {
        allowed_disruptions(self.budgets(), now, node_count, reason)
    }
}

/// What the budgets of one pool allow together; see [`NodePool::allowed_disruptions`].
pub fn allowed_disruptions(
    budgets: &[Budget],
    now: Timestamp,
    node_count: i64,
    reason: DisruptionReason,
) -> Result<i64, Vec<BudgetError>> {
    let mut allowed = UNBOUNDED;
    let mut errors = Vec::new();
    for budget in budgets {
        match budget.allowed_disruptions(now, node_count) {
            Ok(number) if budget.applies_to(reason) => allowed = allowed.min(number),
            Ok(_) => {}
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(allowed) } else { Err(errors) }
}

impl Budget {
    /// Whether it is about this reason. Without reasons it is about all; with an empty list, about none.
    pub fn applies_to(&self, reason: DisruptionReason) -> bool {
        self.reasons.as_ref().is_none_or(|reasons| reasons.contains(&reason))
    }

    /// How many of `node_count` nodes it allows to be disrupted, whatever the reason. Percentages are rounded up, so that a
    /// small pool is not stuck.
    pub fn allowed_disruptions(&self, now: Timestamp, node_count: i64) -> Result<i64, BudgetError> {
        if !self.is_active(now)? {
            return Ok(UNBOUNDED);
        }
        if let Ok(number) = self.nodes.parse::<i64>() {
            #[expect(clippy::cast_possible_truncation, reason = "Go keeps the low 32 bits")]
            let number = number as i32;
            return Ok(i64::from(number));
        }
        let Some(digits) = self.nodes.strip_suffix('%') else {
            return Err(self.without_number("invalid type: string is not a percentage".to_owned()));
        };
        let percent: i64 = digits.parse().map_err(|_| {
            let shown = karpenter_primitives::quote::quote(&self.nodes);
            self.without_number(format!("invalid value {shown}: {}", crate::cron::atoi_error(digits)))
        })?;
        Ok(round_up_percentage(percent, node_count))
    }

    fn without_number(&self, problem: String) -> BudgetError {
        BudgetError::Nodes { value: self.nodes.clone(), problem }
    }

    /// Whether it counts at the time: always without a schedule, else from each time the schedule hits for the duration.
    ///
    /// A schedule that never hits (30 February) counts always, since upstream takes "never" for a time long past.
    pub fn is_active(&self, now: Timestamp) -> Result<bool, BudgetError> {
        if self.schedule.is_none() && self.duration.is_none() {
            return Ok(true);
        }
        let schedule = Schedule::parse(self.schedule.as_deref().unwrap_or_default())?;
        let duration = self.duration.as_ref().map(|d| d.to_signed()).unwrap_or_default();
        let looked_back = now.checked_sub(duration).unwrap_or(Timestamp::MIN);
        Ok(schedule.next(looked_back).is_none_or(|hit| hit <= now))
    }
}

fn round_up_percentage(percent: i64, total: i64) -> i64 {
    let product = i128::from(percent) * i128::from(total);
    let up = i128::from(product % 100 > 0);
    i64::try_from(product / 100 + up).unwrap_or(i64::MAX)
}
