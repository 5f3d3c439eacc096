//! Tags of machines while they run: those they lack are put back, and those of the NodeClass get the value it says by now.
//!
//! The server changes no tag: one that is to have another value is removed and made anew. Only a user's tag is ever removed, and only
//! with the value that was seen; what says whose a machine is stays whatever it says. A key that the NodeClass has no more stays
//! too: nobody knows who put it there.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::candidates::is_own;
use crate::client::model::{Tag, VirtualMachine};
use crate::client::request::Scope;
use crate::client::requests;
use crate::shared::Shared;

/// What takes a tag off.
const DELETE: &str = "deleteTags";
/// What is tagged.
const MACHINE: &str = "UserVm";
/// How many machines get other values in a while: whoever edits a NodeClass of a thousand machines asks for no thousand calls at once.
const MAX_IN_A_WHILE: usize = 20;
const WHILE: Duration = Duration::from_secs(110);
/// How long a machine is left alone after that: somebody else may want another value, and both would go on for ever.
const PATIENCE: Duration = Duration::from_secs(10 * 60);

/// When machines were last given other values.
#[derive(Debug, Default)]
pub(crate) struct Retagged(Mutex<BTreeMap<String, Instant>>);

impl Retagged {
    /// Whether it is a machine's turn, which it then takes.
    fn takes_turn(&self, id: &str) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.retain(|_, at| at.elapsed() < PATIENCE);
        let lately = last.values().filter(|at| at.elapsed() < WHILE).count();
        if last.contains_key(id) || lately >= MAX_IN_A_WHILE {
            return false;
        }
        last.insert(id.to_owned(), Instant::now());
        true
    }
}

/// The tags of users that a machine carries with another value than it should, with that value. To the server keys that differ in
/// case alone are the same; in other letters than ours it is somebody else's.
fn outdated<'a>(
    machine: &'a VirtualMachine,
    wanted: &'a BTreeMap<String, String>,
) -> Vec<(&'a Tag, &'a str)> {
    let carried = machine.tags.iter().filter(|tag| !is_own(&tag.key));
    let known = carried.filter_map(|tag| Some((tag, wanted.get(&tag.key)?.as_str())));
    known.filter(|(tag, value)| tag.value != *value).collect()
}

impl Shared {
    /// Gives a machine the tags it lacks, and those of users the values they should have. What cannot be done now is done by the next
    /// round.
    pub(crate) async fn repair_tags(
        &self,
        machine: &VirtualMachine,
        scope: &Scope,
        tags: &BTreeMap<String, String>,
    ) {
        let missing: BTreeMap<String, String> = tags
            .iter()
            .filter(|(key, _)| !machine.has_tag(key))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        let ids = std::slice::from_ref(&machine.id);
        if !missing.is_empty()
            && let Err(error) = self.client.call(&requests::create_tags(MACHINE, ids, &missing)).await
        {
            tracing::warn!(machine = machine.id, %error, "tags will be set later");
        }
        let outdated = outdated(machine, tags);
        let may_not = || self.denied.holds(DELETE, scope, &machine.id);
        if outdated.is_empty() || may_not() || !self.retagged.takes_turn(&machine.id) {
            return;
        }
        for (tag, value) in outdated {
            if let Err(error) = self.client.call(&requests::delete_tag(MACHINE, ids, tag)).await {
                self.denied.note(&error, scope, &machine.id);
                tracing::warn!(machine = machine.id, tag = tag.key, %error, "a tag keeps its old value for now");
                continue;
            }
            // Should the server do this first, it refuses it, and the next round finds the tag missing.
            let anew = BTreeMap::from([(tag.key.clone(), value.to_owned())]);
            if let Err(error) = self.client.call(&requests::create_tags(MACHINE, ids, &anew)).await {
                tracing::warn!(machine = machine.id, tag = tag.key, %error, "a tag will be set later");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::labels;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn what_says_whose_a_machine_is_is_never_out_of_date() {
        let tag = |key: &str, value: &str| Tag { key: key.into(), value: value.into() };
        let own = [
            labels::TAG_NODE_CLAIM_UID,
            labels::TAG_NODE_CLAIM,
            labels::TAG_NODE_CLASS_HASH,
            labels::TAG_KEPT_DISKS,
            "kubernetes.io/cluster/test",
        ];
        let mut tags: Vec<Tag> = own.iter().map(|key| tag(key, "old")).collect();
        tags.extend([tag("team", "red"), tag("Owner", "a"), tag("same", "x"), tag("theirs", "y")]);
        let machine = VirtualMachine { tags: tags.clone(), ..VirtualMachine::default() };
        let mut wanted = map(&[("team", "blue"), ("owner", "b"), ("same", "x"), ("lacks", "z")]);
        wanted.extend(own.map(|key| (key.to_owned(), "new".to_owned())));
        assert_eq!(outdated(&machine, &wanted), [(&tags[5], "blue")]);
    }

    #[tokio::test(start_paused = true)]
    async fn few_machines_at_a_time_and_none_again_soon_get_other_values() {
        let retagged = Retagged::default();
        let took = || (0..50).filter(|number| retagged.takes_turn(&number.to_string())).count();
        assert_eq!((took(), took()), (MAX_IN_A_WHILE, 0));
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(took(), MAX_IN_A_WHILE);
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(took(), 10, "each had its turn");
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(took(), 0);
        tokio::time::sleep(PATIENCE).await;
        assert_eq!(took(), MAX_IN_A_WHILE);
    }
}
