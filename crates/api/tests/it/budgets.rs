//! Schedules and disruption budgets against robfig/cron and Go Karpenter.

use jiff::Timestamp;
use karpenter_api::cron::Schedule;
use karpenter_api::nodepool::DisruptionReason;

use crate::{pool, rows, text};

#[test]
fn every_recorded_schedule_hits_when_go_says_or_fails_in_its_words() {
    let mut wrong = Vec::new();
    for row in rows(include_str!("../../../../conformance/api/crons.json")) {
        match Schedule::parse(text(&row, "schedule")) {
            Err(error) if error.to_string() == text(&row, "error") => {}
            Err(error) => wrong.push(format!("{row}: {error}")),
            Ok(schedule) => {
                let Some(next) = row["next"].as_object() else {
                    wrong.push(format!("{row}: was accepted"));
                    continue;
                };
                for (from, hit) in next {
                    let got = schedule.next(from.parse().unwrap()).map(|t| t.to_string()).unwrap_or_default();
                    if got != hit.as_str().unwrap() {
                        wrong.push(format!("{} after {from}: {got:?}, Go says {hit}", row["schedule"]));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_recorded_budget_allows_what_go_allows() {
    let mut wrong = Vec::new();
    for row in rows(include_str!("../../../../conformance/api/budgets.json")) {
        let spec = serde_json::json!({
            "disruption": { "budgets": row["budgets"] },
            "template": { "spec": { "nodeClassRef": {}, "requirements": [] } },
        });
        let now: Timestamp = text(&row, "now").parse().unwrap();
        let reason: DisruptionReason = serde_json::from_value(row["reason"].clone()).unwrap();
        let nodes = row["nodes"].as_i64().unwrap();
        let (allowed, error) = match pool(&spec).allowed_disruptions(now, nodes, reason) {
            Ok(allowed) => (allowed, String::new()),
            Err(errors) => (0, errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
        };
        if row["allowed"] != allowed || error != text(&row, "error") {
            wrong.push(format!("{row}: got {allowed} {error:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
