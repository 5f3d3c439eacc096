//! `karpenter.sh/nodepool-hash` against the hashes of Go Karpenter.

use crate::{pool, rows, text};

#[test]
fn every_recorded_template_has_the_hash_go_gave_it() {
    let recorded = rows(include_str!("../../../../conformance/api/hashes.json"));
    assert!(recorded.len() >= 100);
    for row in recorded {
        assert_eq!(pool(&row["spec"]).hash(), text(&row, "hash"), "{}", row["spec"]);
    }
}
