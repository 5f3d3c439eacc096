//! Root disks that somebody made larger: the machine is no longer what its NodeClass says.
//!
//! Only where the NodeClass says how large they are is there anything to compare with. Whether the server makes them that large
//! depends on offerings and templates, so it is believed only once a disk of that size was seen; else nodes would be replaced
//! for ever by others just like them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::client::error::ApiError;
use crate::client::model::{VirtualMachine, Volume};
use crate::client::request::Scope;
use crate::client::requests;
use crate::client::throttle::Lane;
use crate::shared::Shared;

/// How long a list is believed. It has the root disks of the whole account, so it is rarely asked for.
const BELIEVED: Duration = Duration::from_secs(10 * 60);
const GB: i64 = 1 << 30;

/// Sizes in bytes by machine.
type Sizes = BTreeMap<String, i64>;

/// What was listed last, by whose it is.
#[derive(Debug, Default)]
pub(crate) struct RootDisks(tokio::sync::Mutex<BTreeMap<Scope, (Instant, Arc<Sizes>)>>);

/// Whether the root disk of a machine is not as large as it was ordered, as far as anybody can tell.
fn is_resized(machine: &str, wanted_gb: i64, sizes: &Sizes) -> bool {
    let wanted = wanted_gb.saturating_mul(GB);
    let made_as_ordered = sizes.iter().any(|(other, size)| other != machine && *size == wanted);
    sizes.get(machine).is_some_and(|size| *size != wanted) && made_as_ordered
}

impl Shared {
    /// Whether somebody gave a machine a root disk of another size than its NodeClass says.
    ///
    /// # Errors
    ///
    /// If CloudStack cannot say what there is.
    pub(crate) async fn has_other_root_disk(
        &self,
        machine: &VirtualMachine,
        wanted_gb: i64,
        scope: &Scope,
    ) -> Result<bool, ApiError> {
        let mut listed = self.root_disks.0.lock().await;
        let sizes = match listed.get(scope) {
            Some((at, sizes)) if at.elapsed() < BELIEVED => Arc::clone(sizes),
            _ => {
                let begun = Instant::now();
                let request = requests::list_root_disks(scope);
                let disks: Vec<Volume> = self.client.list(&request, Lane::Refresh).await?;
                let of_machine = |disk: Volume| {
                    Some((disk.virtualmachineid, disk.size?)).filter(|(machine, _)| !machine.is_empty())
                };
                let sizes: Arc<Sizes> = Arc::new(disks.into_iter().filter_map(of_machine).collect());
                listed.insert(scope.clone(), (begun, Arc::clone(&sizes)));
                sizes
            }
        };
        Ok(is_resized(&machine.id, wanted_gb, &sizes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_disk_is_resized_only_if_others_are_made_as_ordered() {
        let sizes = |sizes: [(&str, i64); 2]| -> Sizes {
            sizes.into_iter().map(|(machine, gb)| (machine.to_owned(), gb * GB)).collect()
        };
        let one_grew = sizes([("a", 20), ("b", 50)]);
        assert!(is_resized("b", 20, &one_grew));
        assert!(!is_resized("a", 20, &one_grew));
        assert!(!is_resized("gone", 20, &one_grew), "nobody says how large it is");
        assert!(!is_resized("a", 10, &one_grew), "the server makes none of 10 GB, whatever the reason");
    }
}
