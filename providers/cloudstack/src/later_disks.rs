//! Further data disks on servers before 4.21, which make one with a machine: made by name and attached once the machine runs.
//!
//! The name of a disk follows from its machine's, so an answer that was lost, a crash and two leaders all find the same disk.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use karpenter_api::NodeClaim;
use tokio::time::Instant;

use crate::client::error::{ApiError, ErrorKind};
use crate::client::job::JobState;
use crate::client::model::{VirtualMachine, Volume};
use crate::client::request::Scope;
use crate::client::requests::{self, NewDisk};
use crate::client::throttle::Lane;
use crate::nodeclass::CloudStackNodeClass;
use crate::provider::CloudStackProvider;
use crate::resolved::{Resolved, resolve};
use crate::shared::Shared;
use crate::{disks, labels};

/// When to look at the disks of a machine again: something was ordered, or went wrong. Each further failure doubles it.
const AGAIN: Duration = Duration::from_secs(15);
const LONGEST: Duration = Duration::from_secs(10 * 60);
/// What the server says of a device that another disk has.
const DEVICE_TAKEN: &str = " is used by ";

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

/// What is known of machines whose disks are attached later.
#[derive(Debug, Default)]
pub(crate) struct LaterDisks(Mutex<BTreeMap<String, Attaching>>);

/// How far the disks of a machine are.
#[derive(Debug, Default)]
struct Attaching {
    /// When to look again; never once all are attached.
    next: Option<Instant>,
    /// How long it was waited after the last failure.
    pause: Duration,
    orders: BTreeMap<String, Order>,
}

/// The last order to attach a disk.
#[derive(Clone, Debug, Default)]
struct Order {
    /// The job that carries it out; none once it is known what came of it.
    job: Option<String>,
    /// Whether the device it was to be is taken.
    is_taken: bool,
}

impl LaterDisks {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Attaching>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_due(&self, machine: &str) -> bool {
        let attaching = self.lock();
        attaching.get(machine).is_none_or(|known| known.next.is_some_and(|next| Instant::now() >= next))
    }

    /// This is what became of the disks of a machine now: whether all are attached. What fails is tried again ever more rarely.
    fn looked_at(&self, machine: &str, attached: Result<bool, &ApiError>) {
        let mut all = self.lock();
        let known = all.entry(machine.to_owned()).or_default();
        known.next = match attached {
            Ok(true) => None,
            Ok(false) => Some(Instant::now() + AGAIN),
            Err(_) => {
                known.pause = (known.pause * 2).clamp(AGAIN, LONGEST);
                Some(Instant::now() + known.pause)
            }
        };
    }

    fn order(&self, machine: &str, volume: &str) -> Order {
        self.lock().get(machine).and_then(|known| known.orders.get(volume).cloned()).unwrap_or_default()
    }

    fn ordered(&self, machine: &str, volume: &str, order: Order) {
        self.lock().entry(machine.to_owned()).or_default().orders.insert(volume.to_owned(), order);
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
        // One that was made when the NodeClass said something else had other disks.
        if machine.tag(labels::TAG_DATA_DISKS).is_none()
            || machine.state != "Running"
            || !shared.later_disks.is_due(&machine.id)
            || !shared.made_by(class).made(machine)
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
        let attached = attached.await;
        if let Err(error) = &attached {
            let text = format!("a data disk of virtual machine {} is missing: {error}", machine.name);
            shared.voice.warn(claim, "DataDiskMissing", text);
        }
        shared.later_disks.looked_at(&machine.id, attached.as_ref().copied());
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
        // One that cannot be attached keeps no other from it.
        let mut failure = None;
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
            let tags = tags(*number);
            if volume.tags.is_empty() {
                self.tag_volume(&volume.id, &tags).await?;
            }
            if volume.virtualmachineid.is_empty() {
                complete = false;
                if is_idle(volume) {
                    let is_kept = tags.contains_key(labels::TAG_KEPT);
                    let ordered = self.order_attached(machine, volume, requests::device(*number), is_kept);
                    failure = ordered.await.err().or(failure);
                }
            } else if volume.virtualmachineid != machine.id {
                let text = format!("the volume {name} is attached to another virtual machine; detach it");
                return Err(ApiError::new("attachVolume", ErrorKind::Parameter, text));
            }
            for twin in mine.iter().skip(1).filter(|twin| twin.virtualmachineid.is_empty() && is_idle(twin)) {
                self.client.call(&requests::destroy_volume(&twin.id)).await?;
            }
        }
        failure.map_or(Ok(complete), Err)
    }

    /// Orders a disk to be attached, unless that is under way. What came of the order before is told first, so that whoever looks knows
    /// what to mend; only that its device is taken is nobody's fault, and then another does, unless the device says that it is kept.
    async fn order_attached(
        &self,
        machine: &VirtualMachine,
        volume: &Volume,
        device: i64,
        is_kept: bool,
    ) -> Result<(), ApiError> {
        let mut order = self.later_disks.order(&machine.id, &volume.id);
        if let Some(job) = order.job.take() {
            match self.client.job(&job).await.map(|job| job.state) {
                Ok(JobState::Pending) => return Ok(()),
                Ok(JobState::Failed(error)) => {
                    let is_taken = error.text.contains(DEVICE_TAKEN) && !is_kept && !order.is_taken;
                    order.is_taken |= is_taken;
                    self.later_disks.ordered(&machine.id, &volume.id, order.clone());
                    if error.text.contains(DEVICE_TAKEN) && !is_taken {
                        let text = format!("{}; detach the disk that has its device", error.text);
                        return Err(ApiError { text, ..error });
                    }
                    if !is_taken {
                        return Err(error);
                    }
                }
                // It was attached and detached again, or nobody remembers.
                Ok(JobState::Succeeded(_)) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        let device = Some(device).filter(|_| !order.is_taken);
        let answer = self.client.call(&requests::attach_volume(&volume.id, &machine.id, device)).await?;
        order.job = answer["jobid"].as_str().map(str::to_owned);
        self.later_disks.ordered(&machine.id, &volume.id, order);
        Ok(())
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
