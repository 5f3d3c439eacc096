//! What holds for every input: nothing panics, and what is printed reads back as the same.

use std::str::FromStr;

use karpenter_primitives::{Quantity, Selector, names};
use proptest::prelude::*;

proptest! {
    #[test]
    fn any_text_is_a_quantity_or_an_error(text in ".{0,40}") {
        let _ = Quantity::parse(&text);
    }

    #[test]
    fn a_quantity_reads_back_from_what_it_prints(
        text in "[+-]?[0-9]{0,24}(\\.[0-9]{0,12})?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|e-?[0-9]{1,2})?"
    ) {
        let Ok(quantity) = Quantity::parse(&text) else { return Ok(()) };
        // Beyond the largest suffix the printed form loses the exponent, in Go as here.
        let bound = Quantity::from_str("1000E").unwrap();
        prop_assume!(quantity < bound && quantity > bound.negated());
        let canonical = quantity.negated().negated().to_string();
        let back = Quantity::parse(&canonical).unwrap();
        prop_assert_eq!(&back, &quantity);
        prop_assert_eq!(back.to_string(), canonical);
    }

    #[test]
    fn adding_and_taking_away_comes_back_to_the_start(a in any::<i64>(), b in any::<i64>()) {
        let start = Quantity::from_milli(a, karpenter_primitives::Format::DecimalSi);
        let other = Quantity::new(b, karpenter_primitives::Format::BinarySi);
        let mut there_and_back = start.clone();
        there_and_back += &other;
        there_and_back -= &other;
        prop_assert_eq!(there_and_back, start);
    }

    #[test]
    fn any_text_is_a_selector_or_an_error_and_a_selector_reads_back(text in "[a-c!=<>(), in\\PC]{0,30}") {
        if let Ok(selector) = Selector::parse(&text) {
            let printed = selector.to_string();
            prop_assert_eq!(Selector::parse(&printed).map(|s| s.to_string()), Ok(printed));
        }
    }

    #[test]
    fn any_text_can_be_judged_as_a_name(text in ".{0,80}") {
        names::dns1123_label_errors(&text);
        names::dns1035_label_errors(&text);
        names::qualified_name_errors(&text);
        names::label_value_errors(&names::mask_trailing_dash(&text));
    }
}
