//! The interned algebra gives the answers of the plain one.

use proptest::prelude::*;

use crate::algebra::{Algebra, Undefined};
use crate::labels::Text;
use crate::requirement::{Operator, Requirement, SelectorRequirement};
use crate::requirements::Requirements;
use crate::vocabulary::Vocabulary;

const KEYS: [&str; 4] =
    ["topology.kubernetes.io/zone", "example.com/a", "example.com/b", "kubernetes.io/arch"];
const VALUES: [&str; 6] = ["a", "b", "1", "5", "07", "-3"];

fn operator() -> impl Strategy<Value = Operator> {
    prop::sample::select(vec![
        Operator::In,
        Operator::NotIn,
        Operator::Exists,
        Operator::DoesNotExist,
        Operator::Gt,
        Operator::Lt,
        Operator::Gte,
        Operator::Lte,
    ])
}

fn requirement_on(key: &'static str) -> impl Strategy<Value = Requirement> {
    let values = prop::collection::vec(prop::sample::select(VALUES.to_vec()), 0..4);
    (operator(), values, prop::option::of(0i64..4), -4i64..9).prop_map(
        move |(operator, values, min, bound)| {
            let bounded = matches!(operator, Operator::Gt | Operator::Lt | Operator::Gte | Operator::Lte);
            let mut selector = SelectorRequirement::new(
                key,
                operator,
                if bounded {
                    vec![Text::from(bound.to_string())]
                } else {
                    values.into_iter().map(Text::from).collect()
                },
            );
            selector.min_values = min;
            Requirement::from_selector(&selector).unwrap()
        },
    )
}

fn requirements() -> impl Strategy<Value = Requirements> {
    let of_key = |key| prop::option::of(requirement_on(key));
    (of_key(KEYS[0]), of_key(KEYS[1]), of_key(KEYS[2]), of_key(KEYS[3]))
        .prop_map(|(a, b, c, d)| [a, b, c, d].into_iter().flatten().collect())
}

fn algebra() -> Algebra {
    Algebra::new(Vocabulary::new([]))
}

fn well_known(key: &str) -> bool {
    crate::labels::WELL_KNOWN.contains(&key)
}

proptest! {
    #[test]
    fn intersecting_numbers_is_intersecting_requirements(a in requirement_on(KEYS[0]), b in requirement_on(KEYS[0])) {
        let mut algebra = algebra();
        let (x, y) = (algebra.requirement(&a), algebra.requirement(&b));
        let both = algebra.intersect(x, y);
        prop_assert_eq!(algebra.render(both), a.intersection(&b));
        let again = algebra.intersect(x, x);
        prop_assert_eq!(algebra.render(again), a.intersection(&a));
    }

    #[test]
    fn membership_is_the_same(a in requirement_on(KEYS[1]), value in prop::sample::select(VALUES.to_vec())) {
        let mut algebra = algebra();
        let x = algebra.requirement(&a);
        let key = algebra.req(x).key;
        let number = algebra.vocabulary.value(key, &value.into());
        prop_assert_eq!(algebra.has(x, number), a.has(value));
    }

    #[test]
    fn compatibility_is_the_same_whoever_is_asked(a in requirements(), b in requirements()) {
        let mut algebra = algebra();
        let (x, y) = (algebra.demand(&a).set, algebra.demand(&b).set);
        prop_assert_eq!(algebra.compatible(x, y, Undefined::Denied), a.compatible(&b, |_| false).is_ok());
        prop_assert_eq!(
            algebra.compatible(x, y, Undefined::AllowedIfWellKnown),
            a.compatible(&b, well_known).is_ok()
        );
    }

    #[test]
    fn merging_is_the_same(a in requirements(), b in requirements()) {
        let mut algebra = algebra();
        let (x, y) = (algebra.demand(&a).set, algebra.demand(&b).set);
        let mut merged = a.clone();
        merged.add_all(&b);
        let both = algebra.merge(x, y);
        prop_assert_eq!(algebra.render_set(both), merged);
    }
}
