//! Name syntax against the recorded complaints.

use karpenter_primitives::names;

use crate::{rows, text};

type Check = fn(&str) -> Vec<String>;

#[test]
fn every_recorded_name_gets_the_complaints_go_has() {
    let checks: [(&str, Check); 5] = [
        ("dns1123Label", names::dns1123_label_errors),
        ("dns1123Subdomain", names::dns1123_subdomain_errors),
        ("dns1035Label", names::dns1035_label_errors),
        ("qualifiedName", names::qualified_name_errors),
        ("labelValue", names::label_value_errors),
    ];
    for row in rows(include_str!("../../../../conformance/api/names.json")) {
        for (kind, check) in checks {
            let recorded: Vec<String> = serde_json::from_value(row[kind].clone()).unwrap();
            assert_eq!(check(text(&row, "in")), recorded, "{kind} of {}", row["in"]);
        }
    }
}
