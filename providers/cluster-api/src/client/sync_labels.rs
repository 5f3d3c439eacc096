//! Which labels of Machines the management cluster copies to Nodes besides those that Cluster API always does: its flag
//! `--additional-sync-machine-labels`, which has to be told to us. Read as it is there: regular expressions that match anywhere in a key,
//! separated by commas, one that has a comma itself in double quotes.

use regex::Regex;

/// Regular expressions of labels.
#[derive(Clone, Debug, Default)]
pub struct SyncLabels(Vec<Regex>);

/// Why a list of patterns cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "--additional-sync-machine-labels (CLUSTER_API_SYNC_LABELS): {pattern:?} is not a regular expression: {problem}; write it as \
     Cluster API's flag of that name has it, and one that has a comma in double quotes"
)]
pub struct BadPattern {
    /// As it was written.
    pub(crate) pattern: String,
    /// What is wrong with it.
    pub(crate) problem: String,
}

impl SyncLabels {
    /// What a list of patterns says.
    pub fn read(list: &str) -> Result<Self, BadPattern> {
        let patterns = split(list)?;
        let compiled = patterns.into_iter().map(|pattern| {
            // All but the last line draws where in the pattern it is.
            let problem = |error: regex::Error| {
                let told = error.to_string();
                let last = told.lines().last().unwrap_or_default().trim();
                last.strip_prefix("error: ").unwrap_or(last).to_owned()
            };
            Regex::new(&pattern).map_err(|error| BadPattern { problem: problem(error), pattern })
        });
        Ok(Self(compiled.collect::<Result<_, _>>()?))
    }

    /// Whether a label is copied.
    pub(crate) fn matches(&self, key: &str) -> bool {
        self.0.iter().any(|pattern| pattern.is_match(key))
    }
}

impl PartialEq for SyncLabels {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().map(Regex::as_str).eq(other.0.iter().map(Regex::as_str))
    }
}

impl Eq for SyncLabels {}

/// The items of a list, without the quotes around them.
fn split(list: &str) -> Result<Vec<String>, BadPattern> {
    let (mut items, mut item, mut quoted) = (Vec::new(), String::new(), false);
    for letter in list.chars() {
        match letter {
            '"' => quoted = !quoted,
            ',' if !quoted => items.push(std::mem::take(&mut item)),
            letter => item.push(letter),
        }
    }
    if quoted {
        return Err(BadPattern { pattern: item, problem: "its quotes are not closed".to_owned() });
    }
    items.push(item);
    Ok(items.iter().map(|item| item.trim().to_owned()).filter(|item| !item.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_matched_as_cluster_api_matches_them() {
        let labels = SyncLabels::read(r#"^team\.example/, "^tier-[a-z]{2,3}$" ,cost"#).expect("patterns");
        for key in ["team.example/name", "tier-one", "example.com/cost-centre"] {
            assert!(labels.matches(key), "{key}");
        }
        for key in ["my-team.example/name", "team-example/name", "tier-three", "tier-1"] {
            assert!(!labels.matches(key), "{key}");
        }
        assert!(!SyncLabels::read(" , ").expect("none").matches("anything"), "nothing is asked for");
    }

    #[test]
    fn a_pattern_that_means_nothing_is_named_with_its_flag_and_what_to_do() {
        let told = |list: &str| SyncLabels::read(list).expect_err(list).to_string();
        assert_eq!(
            told("^fine$,team("),
            "--additional-sync-machine-labels (CLUSTER_API_SYNC_LABELS): \"team(\" is not a regular expression: unclosed group; write \
             it as Cluster API's flag of that name has it, and one that has a comma in double quotes"
        );
        assert!(told("\"a{1,2}").contains("its quotes are not closed"));
        assert!(
            told("a{1,2}").contains("\"a{1\""),
            "a comma outside quotes ends a pattern, as it does there"
        );
    }
}
