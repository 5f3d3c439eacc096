//! Further data disks on servers before 4.21, which make one with a machine: made by name and attached once the machine runs.
//!
//! The name of a disk follows from its machine's, so an answer that was lost, a crash and two leaders all find the same disk.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use karpenter_api::NodeClaim;
use tokio::time::Instant;

use crate::client::error::{ApiError, ErrorKind};
use crate::client::model::{VirtualMachine, Volume};
use crate::client::request::Scope;
use crate::client::requests::{self, NewDisk};
use crate::client::throttle::Lane;
use crate::nodeclass::CloudStackNodeClass;
use crate::provider::CloudStackProvider;
use crate::resolved::{Resolved, resolve};
use crate::shared::Shared;
use crate::{disks, labels};

/// When to look at the disks of a machine again: something was ordered, or went wrong.
const AGAIN: Duration = Duration::from_secs(15);

/// The name of a machine's extra disk of this number.
fn name(machine: &str, number: usize) -> String {
    format!("{machine}-data-{}", number + 1)
}

/// The number of the extra disk of this name, if it is the machine's.
pub(crate) fn number(machine: &str, disk: &str) -> Option<usize> {
    let number: usize = disk.strip_prefix(machine)?.strip_prefix("-data-")?.parse().ok()?;
    number.checked_sub(1).filter(|_| !machine.is_empty())
}

/// The machine a disk of this name was made for.
pub(crate) fn machine_of(disk: &str) -> Option<&str> {
    let (machine, rest) = disk.rsplit_once("-data-")?;
    rest.parse::<usize>().is_ok().then_some(machine)
}

/// Machines whose disks are all attached, or when to look again.
#[derive(Debug, Default)]
pub(crate) struct LaterDisks(Mutex<BTreeMap<String, Option<Instant>>>);

impl LaterDisks {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Option<Instant>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_due(&self, machine: &str) -> bool {
        self.lock().get(machine).is_none_or(|next| next.is_some_and(|next| Instant::now() >= next))
    }

    /// Forgets all machines but these.
    pub(crate) fn keep(&self, ids: &BTreeSet<String>) {
        self.lock().retain(|id, _| ids.contains(id));
    }
}

impl Resolved {
    /// The extra disks that the server does not make with a machine, by number.
    fn later_disks(&self, zone: &str) -> Vec<(usize, NewDisk)> {
        if !self.single_disk {
            return Vec::new();
        }
        let disks = self.new_disks(zone).into_iter().enumerate();
        disks.filter(|(number, disk)| *number > 0 || !disk.is_made_by_old_servers()).collect()
    }
}

impl CloudStackProvider {
    /// Makes and attaches what a running machine lacks of its disks; what is under way is looked at again.
    pub(crate) async fn attach_later_disks(
        &self,
        machine: &VirtualMachine,
        scope: &Scope,
        claim: &NodeClaim,
        class: &CloudStackNodeClass,
    ) {
        let shared = &self.shared;
        // By another NodeClass than this one was made the machine that has another hash: its disks were others.
        let as_made = machine.tag(labels::TAG_NODE_CLASS_HASH) == Some(class.hash().as_str());
        if machine.tag(labels::TAG_DATA_DISKS).is_none()
            || machine.state != "Running"
            || !as_made
            || !shared.later_disks.is_due(&machine.id)
        {
            return;
        }
        let attached = async {
            let resolved = resolve(class, &shared.scope(), &shared.catalogue).await?;
            let later = resolved.later_disks(&machine.zoneid);
            let tags = self.tags(claim, class);
            let kept = disks::kept_devices(&resolved.spec);
            let tags = |number| shared.tags_of_disk(&tags, kept.contains(&requests::device(number)));
            if later.is_empty() { Ok(true) } else { shared.attach(machine, scope, &later, tags).await }
        };
        let next = match attached.await {
            Ok(true) => None,
            Ok(false) => Some(Instant::now() + AGAIN),
            Err(error) => {
                let text = format!("a data disk of virtual machine {} is missing: {error}", machine.name);
                shared.voice.warn(claim, "DataDiskMissing", text);
                Some(Instant::now() + AGAIN)
            }
        };
        shared.later_disks.lock().insert(machine.id.clone(), next);
    }
}

impl Shared {
    /// Goes on attaching the disks of a machine; whether all are attached.
    async fn attach(
        &self,
        machine: &VirtualMachine,
        scope: &Scope,
        later: &[(usize, NewDisk)],
        tags: impl Fn(usize) -> BTreeMap<String, String>,
    ) -> Result<bool, ApiError> {
        let request = requests::list_data_disks_by_keyword(&machine.name, scope);
        let there: Vec<Volume> = self.client.list(&request, Lane::Action).await?;
        let mut complete = true;
        for (number, disk) in later {
            let name = name(&machine.name, *number);
            let mut mine: Vec<&Volume> = there.iter().filter(|volume| volume.name == name).collect();
            // The attached one, then the older: two leaders may both have made it.
            mine.sort_by_key(|volume| {
                (volume.virtualmachineid.is_empty(), volume.created.as_str(), volume.id.as_str())
            });
            let Some(volume) = mine.first() else {
                complete = false;
                let request = requests::create_volume(&name, &machine.zoneid, disk, scope);
                let answer = self.client.call(&request).await?;
                if let Some(id) = answer["id"].as_str() {
                    self.tag_volume(id, &tags(*number)).await?;
                }
                continue;
            };
            if volume.tags.is_empty() {
                self.tag_volume(&volume.id, &tags(*number)).await?;
            }
            if volume.virtualmachineid.is_empty() {
                complete = false;
                if is_idle(volume) {
                    let request = requests::attach_volume(&volume.id, &machine.id, requests::device(*number));
                    self.client.call(&request).await?;
                }
            } else if volume.virtualmachineid != machine.id {
                let text = format!("the volume {name} is attached to another virtual machine; detach it");
                return Err(ApiError::new("attachVolume", ErrorKind::Parameter, text));
            }
            for twin in mine.iter().skip(1).filter(|twin| twin.virtualmachineid.is_empty() && is_idle(twin)) {
                self.client.call(&requests::destroy_volume(&twin.id)).await?;
            }
        }
        Ok(complete)
    }

    async fn tag_volume(&self, id: &str, tags: &BTreeMap<String, String>) -> Result<(), ApiError> {
        self.client.call(&requests::create_tags("Volume", &[id.to_owned()], tags)).await.map(drop)
    }
}

/// Whether nothing is being done with a volume.
pub(crate) fn is_idle(volume: &Volume) -> bool {
    matches!(volume.state.as_str(), "Allocated" | "Ready")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_known_by_the_name_of_its_machine() {
        assert_eq!(number("karpenter-x-a", &name("karpenter-x-a", 1)), Some(1));
        assert_eq!(machine_of(&name("karpenter-x-a", 1)), Some("karpenter-x-a"));
        for other in ["karpenter-x-a-1-data-2", "karpenter-x-a-data-", "karpenter-x-a-data-0", "DATA-7"] {
            assert_eq!(number("karpenter-x-a", other), None, "{other}");
        }
        assert_eq!(number("", "-data-1"), None);
    }
}
