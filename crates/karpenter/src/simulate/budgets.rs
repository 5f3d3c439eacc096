//! Budgets that are obeyed as Go Karpenter would obey them, although no API server lets them through: whoever wrote the file may
//! not know.

use karpenter_api::nodepool::Budget;

/// The field of the budget that the definition of NodePools refuses, and why.
pub(crate) fn refused(budget: &Budget) -> Option<(&'static str, &'static str)> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_amount = match budget.nodes.strip_suffix('%') {
        Some(percent) => is_number(percent) && (percent.len() <= 2 || percent == "100"),
        None => is_number(&budget.nodes),
    };
    if !is_amount {
        return Some(("nodes", "must be a number, or a percentage up to 100%"));
    }
    if budget.schedule.is_some() != budget.duration.is_some() {
        return Some(("schedule", "must be set with duration"));
    }
    let is_negative = budget.duration.as_ref().is_some_and(|duration| duration.to_signed().is_negative());
    is_negative.then_some(("duration", "must not be negative"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_the_definition_refuses_is_named_and_nothing_else() {
        for (budget, field) in [
            (json!({"nodes": "0"}), None),
            (json!({"nodes": "100%", "schedule": "@daily", "duration": "1h"}), None),
            (json!({"nodes": "150%"}), Some("nodes")),
            (json!({"nodes": "-1"}), Some("nodes")),
            (json!({"nodes": "1", "schedule": "@daily"}), Some("schedule")),
            (json!({"nodes": "1", "schedule": "@daily", "duration": "-1h"}), Some("duration")),
        ] {
            let read: Budget = serde_json::from_value(budget.clone()).expect("a budget");
            assert_eq!(refused(&read).map(|(field, _)| field), field, "{budget}");
        }
    }
}
