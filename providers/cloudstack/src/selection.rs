//! What a selector term selects. Within a term everything must hold; terms are alternatives.

use std::collections::BTreeMap;

use crate::client::model::{ServiceOffering, Tag};
use crate::nodeclass::{OfferingSelectorTerm, SelectorTerm};

/// Whether a text is what a pattern says; `*` stands for anything.
pub(crate) fn glob(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut left) = text.strip_prefix(head) else { return false };
    let (between, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
    // The first place is as good as any: whatever comes after it finds the more room.
    for word in between.split('*') {
        let Some(at) = left.find(word) else { return false };
        left = &left[at + word.len()..];
    }
    left.ends_with(tail)
}

/// Whether a term selects something of this id and name, whose tags `tag` looks up.
pub(crate) fn matches(term: &SelectorTerm, id: &str, name: &str, tag: impl Fn(&str) -> Vec<String>) -> bool {
    let nothing = BTreeMap::new();
    let tags = term.tags.as_ref().unwrap_or(&nothing);
    let says_something = term.id.is_some() || term.name.is_some() || !tags.is_empty();
    says_something
        && term.id.as_ref().is_none_or(|wanted| wanted == id)
        && term.name.as_ref().is_none_or(|wanted| glob(wanted, name))
        && tags.iter().all(|(key, wanted)| tag(key).iter().any(|value| glob(wanted, value)))
}

/// Whether a term selects a service offering: by id, name and tags as everything else, and by its size.
pub(crate) fn matches_offering(
    term: &OfferingSelectorTerm,
    offering: &ServiceOffering,
    tag: impl Fn(&str) -> Vec<String>,
) -> bool {
    let plain = SelectorTerm { id: term.id.clone(), name: term.name.clone(), tags: term.tags.clone() };
    matches(&plain, &offering.id, &offering.name, tag)
        // A customised offering has no size of its own: each of its sizes is held against the term.
        && offering.cpunumber.is_none_or(|cpu| within(cpu, term.min_cpu, term.max_cpu))
        && offering.memory.is_none_or(|mib| within(mib, term.min_memory, term.max_memory))
        && term
            .gpu
            .as_deref()
            .is_none_or(|gpu| (gpu == "Required") == offering.gpucount.is_some_and(|count| count > 0))
}

fn within(value: i64, least: Option<i64>, most: Option<i64>) -> bool {
    least.is_none_or(|least| value >= least) && most.is_none_or(|most| value <= most)
}

/// Whether a size is one the term allows.
pub(crate) fn is_size(term: &OfferingSelectorTerm, cpu: i64, memory_mib: i64) -> bool {
    within(cpu, term.min_cpu, term.max_cpu) && within(memory_mib, term.min_memory, term.max_memory)
}

/// The values of a tag.
pub(crate) fn tag_values(tags: &[Tag], key: &str) -> Vec<String> {
    tags.iter().filter(|tag| tag.key == key).map(|tag| tag.value.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, text, yes) in [
            ("k8s.*", "k8s.small", true),
            ("*", "", true),
            ("k8s.*l*", "k8s.small", true),
            ("k8s.small", "k8s.smaller", false),
            ("*ß", "größ", true),
            ("a*a", "a", false),
            ("a*b*a", "aba", true),
            ("*ab*", "aab", true),
            ("*a*b", "bab", true),
            ("**", "", true),
            ("a**b", "axb", true),
        ] {
            assert_eq!(glob(pattern, text), yes, "{pattern} {text}");
        }
    }

    #[test]
    fn a_pattern_of_many_stars_is_held_against_a_long_name_in_no_time() {
        let (pattern, text) = ("*a".repeat(200), "a".repeat(10_000));
        assert!(glob(&pattern, &text));
        assert!(!glob(&format!("{pattern}*b"), &text));
    }

    #[test]
    fn offerings_are_selected_by_size_too() {
        let offering: ServiceOffering = serde_json::from_value(
            serde_json::json!({"id": "1", "name": "a", "cpunumber": 4, "memory": 8192}),
        )
        .expect("an offering");
        let selects = |term: OfferingSelectorTerm| {
            let term = OfferingSelectorTerm { name: Some("*".into()), ..term };
            matches_offering(&term, &offering, |_| Vec::new())
        };
        let any = OfferingSelectorTerm::default;
        assert!(selects(OfferingSelectorTerm { min_cpu: Some(4), max_memory: Some(8192), ..any() }));
        assert!(!selects(OfferingSelectorTerm { min_cpu: Some(5), ..any() }));
        assert!(!selects(OfferingSelectorTerm { max_memory: Some(4096), ..any() }));
        assert!(!selects(OfferingSelectorTerm { gpu: Some("Required".into()), ..any() }));
        assert!(selects(OfferingSelectorTerm { gpu: Some("Excluded".into()), ..any() }));
    }

    #[test]
    fn everything_a_term_says_must_hold() {
        let tags =
            |pairs: &[(&str, &str)]| Some(pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect());
        let tag = |key: &str, value: &str| Tag { key: key.into(), value: value.into() };
        let there = [tag("team", "a"), tag("owner", "platform-berlin")];
        let selects = |term: &SelectorTerm| matches(term, "1", "net", |key| tag_values(&there, key));
        let term = |name: Option<&str>, pairs: &[(&str, &str)]| SelectorTerm {
            name: name.map(str::to_owned),
            tags: tags(pairs),
            ..SelectorTerm::default()
        };
        assert!(selects(&term(Some("net"), &[("team", "*")])));
        assert!(!selects(&term(Some("net"), &[("team", "b")])), "name and tags, not name or tags");
        assert!(selects(&term(None, &[("owner", "platform-*")])), "within a value, too");
        assert!(!selects(&term(None, &[("owner", "shop-*")])));
        assert!(!selects(&SelectorTerm::default()), "a term that says nothing selects nothing");
    }
}
