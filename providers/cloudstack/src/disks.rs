//! Which disks go with a machine: those it was made with. Whatever else is attached to it, such as a volume of a storage
//! driver, is somebody's data and stays.
//!
//! The server names the disks it makes with a machine (`DATA-7`, or `DATA-7-1` of several) and makes them at once. By that
//! they are recognised until they carry the tag that says which NodeClaim they belong to.
//!
//! A disk whose `deleteOnTermination` is false is made with a machine and stays all the same. The machine carries a tag that
//! says which, and so does the disk: whatever becomes of the NodeClass meanwhile, no data goes by mistake.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::ResourceExt as _;

use crate::client::error::ApiError;
use crate::client::model::{VirtualMachine, Volume, time};
use crate::client::request::Scope;
use crate::client::requests;
use crate::client::throttle::Lane;
use crate::nodeclass::{CloudStackNodeClass, CloudStackNodeClassSpec};
use crate::shared::Shared;
use crate::{labels, later_disks};

/// What shows disks.
pub(crate) const LIST: &str = "listVolumes";
/// Disks that are younger or older than their machine by more than this were not made with it.
const MADE_TOGETHER: Duration = Duration::from_secs(10 * 60);

/// The tags of a machine that its disks get too.
const TAGS: [&str; 4] =
    [labels::TAG_MANAGED_BY, labels::TAG_NODE_CLAIM, labels::TAG_NODE_POOL, labels::TAG_NODE_CLAIM_UID];
/// Those that disks get which stay: for people to see where they come from. Nothing says that they are ours to remove.
const KEPT_TAGS: [&str; 2] = [labels::TAG_NODE_CLAIM, labels::TAG_NODE_POOL];

/// Whether a disk is called as the server calls those it makes with a machine.
fn is_named_by_server(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("DATA-") else { return false };
    let mut parts = rest.split('-');
    let number =
        |part: Option<&str>| part.is_some_and(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()));
    number(parts.next()) && parts.next().is_none_or(|part| number(Some(part))) && parts.next().is_none()
}

/// The devices of the extra disks that stay when their machine goes.
pub(crate) fn kept_devices(spec: &CloudStackNodeClassSpec) -> BTreeSet<i64> {
    let before = usize::from(spec.disk_offering.is_some());
    let disks = spec.data_disks.iter().enumerate();
    let kept = disks.filter(|(_, disk)| disk.delete_on_termination == Some(false));
    kept.map(|(number, _)| requests::device(before + number)).collect()
}

/// Whether a disk that was made with a machine stays when it goes. In doubt it does.
fn is_kept(disk: &Volume, machine: &VirtualMachine, kept: &BTreeSet<i64>) -> bool {
    let device = later_disks::number(&machine.name, &disk.name).map(requests::device).or(disk.deviceid);
    let by_device = device.map_or(!kept.is_empty(), |device| kept.contains(&device));
    disk.tag(labels::TAG_KEPT).is_some() || by_device
}

/// Whether a disk that is attached to a machine was made with it, or for it.
fn is_made_with(disk: &Volume, machine: &VirtualMachine) -> bool {
    let together = || {
        let (Some(machine), Some(disk)) = (machine.created(), time(&disk.created)) else { return false };
        disk.duration_since(machine).unsigned_abs() <= MADE_TOGETHER
    };
    let of_claim = machine.tag(labels::TAG_NODE_CLAIM_UID);
    match disk.tag(labels::TAG_NODE_CLAIM_UID) {
        Some(uid) if of_claim.is_some() => of_claim == Some(uid),
        _ if later_disks::number(&machine.name, &disk.name).is_some() => true,
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
    /// The disks a machine was made with: those that go with it, and those that stay.
    ///
    /// # Errors
    ///
    /// If CloudStack cannot say what is attached to it.
    async fn disks_made_with(
        &self,
        machine: &VirtualMachine,
        scope: &Scope,
    ) -> Result<(Vec<Volume>, Vec<Volume>), ApiError> {
        // A machine without any tag may have disks all the same.
        if machine.tag(labels::TAG_DATA_DISKS).is_none() && !machine.tags.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let request = requests::list_data_disks(&machine.id, scope);
        let attached: Vec<Volume> = self.client.list(&request, Lane::Action).await?;
        let made = attached.into_iter().filter(|disk| is_made_with(disk, machine));
        // Nobody can say any more which of its disks were to stay.
        if machine.tags.is_empty() && self.some_class_keeps_disks() {
            return Ok((Vec::new(), made.collect()));
        }
        let kept = self.kept_of(machine);
        Ok(made.partition(|disk| !is_kept(disk, machine, &kept)))
    }

    fn some_class_keeps_disks(&self) -> bool {
        let keeps = |class: &Arc<CloudStackNodeClass>| {
            class.spec.as_ref().is_some_and(|spec| !kept_devices(spec).is_empty())
        };
        self.objects.node_classes().is_none_or(|classes| classes.iter().any(keeps))
    }

    /// The devices that stay: as the machine says, and as its NodeClass says by now, where its disks are still the same.
    fn kept_of(&self, machine: &VirtualMachine) -> BTreeSet<i64> {
        let told = machine.tag(labels::TAG_KEPT_DISKS).unwrap_or_default();
        let mut kept: BTreeSet<i64> = told.split(',').filter_map(|device| device.parse().ok()).collect();
        let class = machine.tag(labels::TAG_NODE_CLASS).and_then(|name| self.objects.node_class(name));
        if let Some(class) = class
            && self.made_by(&class).made(machine)
        {
            kept.extend(class.spec.as_ref().map(kept_devices).unwrap_or_default());
        }
        kept
    }

    /// The disks that go with a machine: none where the role may not list them, which its NodeClass is told once.
    ///
    /// # Errors
    ///
    /// If CloudStack cannot say what is attached to it.
    pub(crate) async fn disks_of(
        &self,
        machine: &VirtualMachine,
        scope: &Scope,
    ) -> Result<Vec<Volume>, ApiError> {
        match self.disks_made_with(machine, scope).await {
            // A machine that waited for that would wait for ever, and its disks outlive it anyhow.
            Err(error) if error.is_not_for_this_role() => {
                self.denied.note_list(&error, scope);
                self.tell_that_disks_stay(machine, &error);
                Ok(Vec::new())
            }
            disks => disks.map(|(going, _)| going),
        }
    }

    fn tell_that_disks_stay(&self, machine: &VirtualMachine, error: &ApiError) {
        tracing::warn!(machine = machine.id, %error, "its data disks stay, if it has any");
        let class = machine.tag(labels::TAG_NODE_CLASS).and_then(|name| self.objects.node_class(name));
        let Some(class) = class else { return };
        if self.denied.is_news(LIST, &class.uid().unwrap_or_else(|| class.name_any())) {
            let text = format!(
                "the data disks of virtual machine {} ({}) and of all others stay when their machines go: {error}; remove them by hand, and allow {LIST} to the role of the keys",
                machine.name, machine.id
            );
            self.voice.warn(class.as_ref(), "DeleteRefused", text);
        }
    }

    /// What a disk is tagged with: of the tags of its machine those that say whose it is, or that it stays.
    pub(crate) fn tags_of_disk(
        &self,
        tags: &BTreeMap<String, String>,
        kept: bool,
    ) -> BTreeMap<String, String> {
        let cluster = labels::cluster_tag(&self.options.cluster_name);
        let wanted = |key: &str| {
            if kept { KEPT_TAGS.contains(&key) } else { TAGS.contains(&key) || key == cluster }
        };
        let tags = tags.iter().filter(|(key, _)| wanted(key)).map(|(k, v)| (k.clone(), v.clone()));
        let stays = kept.then(|| (labels::TAG_KEPT.to_owned(), "true".to_owned()));
        tags.chain(stays).collect()
    }

    /// Marks the disks a machine was made with as its own, or as kept. What cannot be done now is done by the next round.
    pub(crate) async fn tag_disks(
        &self,
        machine: &VirtualMachine,
        scope: &Scope,
        tags: &BTreeMap<String, String>,
    ) {
        if !tags.contains_key(labels::TAG_DATA_DISKS)
            || self.tagged_disks.lock().contains(&machine.id)
            || self.denied.holds(LIST, scope, &machine.id)
        {
            return;
        }
        let tagged = async {
            let (going, kept) = self.disks_made_with(machine, scope).await?;
            // That they are ordered is no sign that they are there: only a list of disks that all have theirs is.
            let mut all_are = !(going.is_empty() && kept.is_empty());
            for (disks, kept, mark) in
                [(going, false, labels::TAG_NODE_CLAIM_UID), (kept, true, labels::TAG_KEPT)]
            {
                let without = disks.into_iter().filter(|disk| disk.tag(mark).is_none());
                let ids: Vec<String> = without.map(|disk| disk.id).collect();
                if !ids.is_empty() {
                    all_are = false;
                    let wanted = self.tags_of_disk(tags, kept);
                    self.client.call(&requests::create_tags("Volume", &ids, &wanted)).await?;
                }
            }
            Ok::<_, ApiError>(all_are)
        };
        match tagged.await {
            Ok(true) => {
                self.tagged_disks.lock().insert(machine.id.clone());
            }
            Ok(false) => {}
            Err(error) => {
                if error.command == LIST && error.is_not_for_this_role() {
                    self.denied.note_list(&error, scope);
                }
                tracing::warn!(machine = machine.id, %error, "disks will be tagged later");
            }
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
        assert!(is_made_with(&disk("DATA-7", soon, None), &machine));
        assert!(is_made_with(&disk("DATA-7-1", soon, None), &machine));
        assert!(is_made_with(&disk("renamed", "2026-11-15T09:00:00+0000", Some("uid")), &machine));
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
            assert!(!is_made_with(&others, &machine), "{others:?}");
        }
    }

    #[test]
    fn in_doubt_a_disk_is_kept() {
        let machine = VirtualMachine { name: "karpenter-x-a".into(), ..VirtualMachine::default() };
        let disk =
            |name: &str, deviceid: Option<i64>| Volume { name: name.into(), deviceid, ..Volume::default() };
        let kept = BTreeSet::from([2]);
        assert!(is_kept(&disk("DATA-7", Some(2)), &machine, &kept));
        assert!(is_kept(&disk("DATA-7", None), &machine, &kept), "nobody knows which it is");
        assert!(is_kept(&disk("karpenter-x-a-data-2", None), &machine, &kept), "its name says which it is");
        assert!(!is_kept(&disk("DATA-7", Some(1)), &machine, &kept));
        assert!(!is_kept(&disk("DATA-7", None), &machine, &BTreeSet::new()));
    }

    #[test]
    fn which_disks_stay_is_told_by_device() {
        let spec: CloudStackNodeClassSpec = serde_json::from_value(json!({
            "zone": "z", "diskOffering": "first",
            "dataDisks": [{"offering": "a"}, {"offering": "b", "deleteOnTermination": false}, {"offering": "c"},
                {"offering": "d", "deleteOnTermination": false}],
        }))
        .expect("a spec");
        assert_eq!(kept_devices(&spec), BTreeSet::from([4, 6]));
    }
}
