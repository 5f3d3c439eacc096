//! Durations against Go's `time` package.

use karpenter_api::Duration;

use crate::{rows, text};

#[test]
fn every_recorded_duration_is_as_long_and_spelled_as_in_go() {
    for row in rows(include_str!("../../../../conformance/api/durations.json")) {
        match Duration::parse(text(&row, "in")) {
            Err(_) => assert_eq!(row["error"], true, "{row}"),
            Ok(duration) => {
                assert!(row["error"].is_null(), "{row}");
                assert_eq!(duration.as_nanos(), row["nanos"].as_i64().unwrap(), "{row}");
                assert_eq!(Duration::from_nanos(duration.as_nanos()).as_str(), text(&row, "out"), "{row}");
            }
        }
    }
}
