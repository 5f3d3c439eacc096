//! Which instance types metrics tell of: those that are on offer, and none that are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

/// Name, zone, capacity type and currency of something on offer.
pub(crate) type Series = [String; 4];

/// What each NodeClass offered when it was looked at last.
#[derive(Debug, Default)]
pub(crate) struct Measured(Mutex<BTreeMap<String, BTreeSet<Series>>>);

/// What is not on offer any more.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Vanished {
    /// Where, and as what.
    pub(crate) series: Vec<Series>,
    /// Nowhere.
    pub(crate) types: BTreeSet<String>,
}

impl Measured {
    /// Notes what a NodeClass offers; what none of those that are there offers any more.
    pub(crate) fn note(
        &self,
        class: &str,
        offered: BTreeSet<Series>,
        is_there: impl Fn(&str) -> bool,
    ) -> Vanished {
        let mut measured = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before: BTreeSet<Series> = measured.values().flatten().cloned().collect();
        measured.insert(class.to_owned(), offered);
        measured.retain(|name, _| name == class || is_there(name));
        let now: BTreeSet<&Series> = measured.values().flatten().collect();
        let names: BTreeSet<&str> = now.iter().map(|series| series[0].as_str()).collect();
        let series: Vec<Series> = before.into_iter().filter(|series| !now.contains(series)).collect();
        let types = series.iter().map(|series| series[0].clone());
        let types = types.filter(|name| !names.contains(name.as_str())).collect();
        Vanished { series, types }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_class_offers_any_more_is_told_of_no_more() {
        let series = |name: &str, zone: &str| [name, zone, "on-demand", ""].map(str::to_owned);
        let both = BTreeSet::from([series("small", "a"), series("small", "b")]);
        let measured = Measured::default();
        let note = |class: &str, offered: BTreeSet<Series>, there: &[&str]| {
            measured.note(class, offered, |name| there.contains(&name))
        };
        assert_eq!(note("one", both.clone(), &["one"]), Vanished::default());
        assert_eq!(note("two", [series("small", "b")].into(), &["one", "two"]), Vanished::default());
        let gone = note("one", [series("large", "a")].into(), &["one", "two"]);
        assert_eq!(
            (gone.series, gone.types),
            (vec![series("small", "a")], BTreeSet::new()),
            "one has it in b"
        );
        let gone = note("one", [series("large", "a")].into(), &["one"]);
        assert_eq!(
            (gone.series, gone.types),
            (vec![series("small", "b")], BTreeSet::from(["small".to_owned()]))
        );
    }
}
