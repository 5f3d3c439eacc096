//! What the documentation says is what there is.

use karpenter_provider_cloudstack::settings::VARIABLES;

const GUIDE: &str = include_str!("../../../../docs/cloudstack.md");

#[test]
fn the_guide_lists_every_variable_with_what_it_does() {
    for (name, what) in VARIABLES {
        let rows = GUIDE.matches(&format!("| `{name}` |")).count();
        assert_eq!(rows, 1, "{name} is in docs/cloudstack.md {rows} times");
        assert!(
            GUIDE.contains(&format!("| `{name}` | {what} |")),
            "{name} is not in docs/cloudstack.md as it is"
        );
    }
}
