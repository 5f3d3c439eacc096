//! Which disks go with a machine: those it was made with. Whatever else is attached to it, such as a volume of a storage
//! driver, is somebody's data and stays.
//!
//! The server names the disks it makes with a machine (`DATA-7`, or `DATA-7-1` of several) and makes them at once. By that
//! they are recognised until they carry the tag that says which NodeClaim they belong to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::client::error::ApiError;
use crate::client::model::{VirtualMachine, Volume, time};
use crate::client::request::Scope;
use crate::client::requests;
use crate::client::throttle::Lane;
use crate::labels;
use crate::shared::Shared;

/// Disks that are younger or older than their machine by more than this were not made with it.
const MADE_TOGETHER: Duration = Duration::from_secs(10 * 60);

/// The tags of a machine that its disks get too.
const TAGS: [&str; 4] =
    [labels::TAG_MANAGED_BY, labels::TAG_NODE_CLAIM, labels::TAG_NODE_POOL, labels::TAG_NODE_CLAIM_UID];

/// Whether a disk is called as the server calls those it makes with a machine.
fn is_named_by_server(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("DATA-") else { return false };
    let mut parts = rest.split('-');
    let number =
        |part: Option<&str>| part.is_some_and(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()));
    number(parts.next()) && parts.next().is_none_or(|part| number(Some(part))) && parts.next().is_none()
}

/// Whether a disk that is attached to a machine was made with it.
pub(crate) fn goes_with(disk: &Volume, machine: &VirtualMachine) -> bool {
    let together = || {
        let (Some(machine), Some(disk)) = (machine.created(), time(&disk.created)) else { return false };
        disk.duration_since(machine).unsigned_abs() <= MADE_TOGETHER
    };
    let of_claim = machine.tag(labels::TAG_NODE_CLAIM_UID);
    match disk.tag(labels::TAG_NODE_CLAIM_UID) {
        Some(uid) if of_claim.is_some() => of_claim == Some(uid),
        _ => is_named_by_server(&disk.name) && together(),
    }
}

/// Machines whose disks are known to be tagged, so that nobody asks again.
#[derive(Debug, Default)]
pub(crate) struct Tagged(Mutex<BTreeSet<String>>);

impl Tagged {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all machines but these.
    pub(crate) fn keep(&self, ids: &BTreeSet<String>) {
        self.lock().retain(|id| ids.contains(id));
    }
}

impl Shared {
    /// The disks that go with a machine.
    ///
    /// # Errors
    ///
    /// If CloudStack cannot say what is attached to it.
    pub(crate) async fn disks_of(
        &self,
        machine: &VirtualMachine,
        scope: &Scope,
    ) -> Result<Vec<Volume>, ApiError> {
        // A machine without any tag may have disks all the same.
        if machine.tag(labels::TAG_DATA_DISKS).is_none() && !machine.tags.is_empty() {
            return Ok(Vec::new());
        }
        let request = requests::list_data_disks(&machine.id, scope);
        let attached: Vec<Volume> = self.client.list(&request, Lane::Action).await?;
        Ok(attached.into_iter().filter(|disk| goes_with(disk, machine)).collect())
    }

    /// Marks the disks a machine was made with as its own. What cannot be done now is done by the next round.
    pub(crate) async fn tag_disks(
        &self,
        machine: &VirtualMachine,
        scope: &Scope,
        tags: &BTreeMap<String, String>,
    ) {
        if !tags.contains_key(labels::TAG_DATA_DISKS) || self.tagged_disks.lock().contains(&machine.id) {
            return;
        }
        let cluster = labels::cluster_tag(&self.options.cluster_name);
        let wanted: BTreeMap<String, String> = tags
            .iter()
            .filter(|(key, _)| TAGS.contains(&key.as_str()) || **key == cluster)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let tagged = async {
            let disks = self.disks_of(machine, scope).await?;
            let without = disks.into_iter().filter(|disk| disk.tag(labels::TAG_NODE_CLAIM_UID).is_none());
            let ids: Vec<String> = without.map(|disk| disk.id).collect();
            if !ids.is_empty() {
                self.client.call(&requests::create_tags("Volume", &ids, &wanted)).await?;
            }
            Ok::<_, ApiError>(())
        };
        match tagged.await {
            Ok(()) => {
                self.tagged_disks.lock().insert(machine.id.clone());
            }
            Err(error) => tracing::warn!(machine = machine.id, %error, "disks will be tagged later"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_was_made_with_a_machine_goes_with_it() {
        let machine: VirtualMachine = serde_json::from_value(json!({
            "id": "1", "created": "2026-11-15T07:00:00+0000",
            "tags": [{"key": labels::TAG_NODE_CLAIM_UID, "value": "uid"}],
        }))
        .expect("a machine");
        let disk = |name: &str, created: &str, uid: Option<&str>| -> Volume {
            let tags = uid.map(|uid| json!({"key": labels::TAG_NODE_CLAIM_UID, "value": uid}));
            let tags: Vec<_> = tags.into_iter().collect();
            serde_json::from_value(json!({"id": "d", "name": name, "created": created, "tags": tags}))
                .expect("a disk")
        };
        let soon = "2026-11-15T07:00:03+0000";
        assert!(goes_with(&disk("DATA-7", soon, None), &machine));
        assert!(goes_with(&disk("DATA-7-1", soon, None), &machine));
        assert!(goes_with(&disk("renamed", "2026-11-15T09:00:00+0000", Some("uid")), &machine));
        for others in [
            disk("pvc-7f8c1a", soon, None),
            disk("DATA-7", "2026-11-15T08:00:00+0000", None),
            disk("DATA-7", "2026-11-15T06:00:00+0000", None),
            disk("DATA-7", "", None),
            disk("DATA-7", soon, Some("another")),
            disk("DATA-", soon, None),
            disk("DATA-7-1-1", soon, None),
            disk("DATA-x", soon, None),
        ] {
            assert!(!goes_with(&others, &machine), "{others:?}");
        }
    }
}
