//! Root disks that somebody made larger or moved to another disk offering: the machine is no longer what its NodeClass says.
//!
//! Only where the NodeClass says what they are to be is there anything to compare with. Whether the server makes them so depends on
//! its version, on offerings and templates, so it is believed only once another machine of the same NodeClass has such a disk; else
//! nodes would be replaced for ever by others just like them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::client::error::ApiError;
use crate::client::model::Volume;
use crate::client::request::Scope;
use crate::client::requests;
use crate::client::throttle::Lane;
use crate::disks;
use crate::shared::Shared;

/// How long a list is believed. It has the root disks of the whole account, so it is rarely asked for.
const BELIEVED: Duration = Duration::from_secs(10 * 60);
const GB: i64 = 1 << 30;

/// A root disk as it is listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RootDisk {
    bytes: Option<i64>,
    /// Id of its disk offering; empty where the server does not tell.
    offering: String,
}

/// By machine.
type Disks = BTreeMap<String, RootDisk>;

/// What was listed last, by whose it is.
#[derive(Debug, Default)]
pub(crate) struct RootDisks(tokio::sync::Mutex<BTreeMap<Scope, (Instant, Arc<Disks>)>>);

/// What a NodeClass says of root disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) gb: Option<i64>,
    /// Id of the disk offering.
    pub(crate) offering: Option<String>,
}

impl Wanted {
    fn is_anything(&self) -> bool {
        self.gb.is_some() || self.offering.is_some()
    }

    /// Whether the root disk of a machine is another than was ordered, as far as those of its like tell.
    fn differs(&self, machine: &str, like: &BTreeSet<&str>, disks: &Disks) -> bool {
        let Some(own) = disks.get(machine) else { return false };
        let made = |is_so: &dyn Fn(&RootDisk) -> bool| {
            let mut others = like.iter().filter(|other| **other != machine);
            others.any(|other| disks.get(*other).is_some_and(is_so))
        };
        let resized = self.gb.is_some_and(|gb| {
            let wanted = gb.saturating_mul(GB);
            own.bytes.is_some_and(|bytes| bytes != wanted) && made(&|disk| disk.bytes == Some(wanted))
        });
        let moved = self.offering.as_ref().is_some_and(|wanted| {
            !own.offering.is_empty()
                && own.offering != *wanted
                && made(&|disk: &RootDisk| disk.offering == *wanted)
        });
        resized || moved
    }
}

impl Shared {
    /// Whether somebody gave a machine another root disk than its NodeClass says; `like` are the machines made by the same NodeClass.
    /// A role that may not list disks never hears of one.
    ///
    /// # Errors
    ///
    /// If CloudStack cannot say what there is.
    pub(crate) async fn has_other_root_disk(
        &self,
        machine: &str,
        wanted: &Wanted,
        like: &BTreeSet<&str>,
        scope: &Scope,
    ) -> Result<bool, ApiError> {
        if !wanted.is_anything() {
            return Ok(false);
        }
        let mut listed = self.root_disks.0.lock().await;
        if self.denied.holds(disks::LIST, scope, machine) {
            return Ok(false);
        }
        let disks = match listed.get(scope) {
            Some((at, disks)) if at.elapsed() < BELIEVED => Arc::clone(disks),
            _ => {
                let begun = Instant::now();
                let request = requests::list_root_disks(scope);
                let volumes: Vec<Volume> = match self.client.list(&request, Lane::Refresh).await {
                    Err(error) if error.is_not_for_this_role() => {
                        self.denied.note_list(&error, scope);
                        tracing::warn!(%error, "whether root disks are still as they were made is not looked at");
                        return Ok(false);
                    }
                    volumes => volumes?,
                };
                let of_machine = |volume: Volume| {
                    let disk = RootDisk { bytes: volume.size, offering: volume.diskofferingid };
                    Some((volume.virtualmachineid, disk)).filter(|(machine, _)| !machine.is_empty())
                };
                let disks: Arc<Disks> = Arc::new(volumes.into_iter().filter_map(of_machine).collect());
                listed.insert(scope.clone(), (begun, Arc::clone(&disks)));
                disks
            }
        };
        Ok(wanted.differs(machine, like, &disks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disks(disks: [(&str, i64, &str); 2]) -> Disks {
        let disk = |gb: i64, offering: &str| RootDisk { bytes: Some(gb * GB), offering: offering.to_owned() };
        disks.into_iter().map(|(machine, gb, offering)| (machine.to_owned(), disk(gb, offering))).collect()
    }

    #[test]
    fn a_root_disk_is_resized_only_if_others_of_its_class_are_made_as_ordered() {
        let one_grew = disks([("a", 20, ""), ("b", 50, "")]);
        let both = BTreeSet::from(["a", "b"]);
        let of = |gb: i64| Wanted { gb: Some(gb), offering: None };
        assert!(of(20).differs("b", &both, &one_grew));
        assert!(!of(20).differs("a", &both, &one_grew));
        assert!(!of(20).differs("gone", &both, &one_grew), "nobody says how large it is");
        assert!(
            !of(10).differs("a", &both, &one_grew),
            "the server makes none of 10 GB, whatever the reason"
        );
        assert!(!of(20).differs("b", &BTreeSet::from(["b"]), &one_grew), "a is not made by this NodeClass");
    }

    #[test]
    fn a_root_disk_has_another_offering_only_if_others_of_its_class_have_the_one_that_was_ordered() {
        let one_moved = disks([("a", 20, "fast"), ("b", 20, "slow")]);
        let both = BTreeSet::from(["a", "b"]);
        let of = |offering: &str| Wanted { gb: None, offering: Some(offering.to_owned()) };
        assert!(of("fast").differs("b", &both, &one_moved));
        assert!(!of("fast").differs("a", &both, &one_moved));
        assert!(!of("huge").differs("b", &both, &one_moved), "older servers do not heed what is ordered");
        let untold = disks([("a", 20, "fast"), ("b", 20, "")]);
        assert!(!of("fast").differs("b", &both, &untold));
    }
}
