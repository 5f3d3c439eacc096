//! What the server says there is, as far as the provider wants to know. Fields are missing when empty, and numbers come as
//! numbers or as texts, so everything is read leniently.

use std::collections::BTreeMap;
use std::ops::Deref;

use jiff::Timestamp;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A tag.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Tag {
    /// Key.
    #[serde(deserialize_with = "text")]
    pub key: String,
    /// Value.
    #[serde(deserialize_with = "text")]
    pub value: String,
}

/// What a machine has several of. What a list leaves out altogether is not known, which is not the same as none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown<T>(Option<Vec<T>>);

impl<T> Shown<T> {
    /// Whether the list said nothing of them.
    pub fn is_left_out(&self) -> bool {
        self.0.is_none()
    }
}

impl<T> Default for Shown<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Deref for Shown<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl<T> FromIterator<T> for Shown<T> {
    fn from_iter<I: IntoIterator<Item = T>>(rows: I) -> Self {
        Self(Some(rows.into_iter().collect()))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Shown<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::<Vec<T>>::deserialize(deserializer).map(Self)
    }
}

/// A virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VirtualMachine {
    /// Id.
    #[serde(deserialize_with = "text")]
    pub id: String,
    /// Name and host name.
    #[serde(deserialize_with = "text")]
    pub name: String,
    /// When its row was written.
    #[serde(deserialize_with = "text")]
    pub created: String,
    /// `Running`, `Stopped`, …
    #[serde(deserialize_with = "text")]
    pub state: String,
    /// Zone.
    #[serde(deserialize_with = "text")]
    pub zoneid: String,
    /// Zone.
    #[serde(deserialize_with = "text")]
    pub zonename: String,
    /// Template.
    #[serde(deserialize_with = "text")]
    pub templateid: String,
    /// Template.
    #[serde(deserialize_with = "text")]
    pub templatename: String,
    /// Service offering.
    #[serde(deserialize_with = "text")]
    pub serviceofferingid: String,
    /// Service offering.
    #[serde(deserialize_with = "text")]
    pub serviceofferingname: String,
    /// Cores.
    #[serde(deserialize_with = "number")]
    pub cpunumber: Option<i64>,
    /// Mebibytes.
    #[serde(deserialize_with = "number")]
    pub memory: Option<i64>,
    /// Interfaces.
    pub nic: Shown<Nic>,
    /// Affinity groups.
    pub affinitygroup: Shown<Named>,
    /// Security groups.
    pub securitygroup: Shown<Named>,
    /// Tags.
    #[serde(deserialize_with = "or_nothing")]
    pub tags: Vec<Tag>,
    /// Group.
    #[serde(deserialize_with = "text")]
    pub group: String,
    /// Architecture; administrators only.
    #[serde(deserialize_with = "text")]
    pub arch: String,
    /// Key pairs, separated by commas.
    #[serde(deserialize_with = "text")]
    pub keypairs: String,
    /// `UserVm`, `cksnode`, …
    #[serde(deserialize_with = "text")]
    pub vmtype: String,
    /// The host it is on; administrators only.
    #[serde(deserialize_with = "text")]
    pub hostid: String,
    /// When its lease ends, if it has one.
    #[serde(deserialize_with = "text")]
    pub leaseexpirydate: String,
    /// The account it belongs to, if not a project.
    #[serde(deserialize_with = "text")]
    pub account: String,
    /// The project it belongs to.
    #[serde(deserialize_with = "text")]
    pub project: String,
    /// Whether it must not be deleted.
    #[serde(deserialize_with = "truth")]
    pub deleteprotection: bool,
    /// The job at work on it.
    #[serde(deserialize_with = "some_text")]
    pub jobid: Option<String>,
    /// That job's status.
    #[serde(deserialize_with = "number")]
    pub jobstatus: Option<i64>,
}

impl VirtualMachine {
    /// The value of a tag.
    pub fn tag(&self, key: &str) -> Option<&str> {
        self.tags.iter().find(|tag| tag.key == key).map(|tag| tag.value.as_str())
    }

    /// Whether CloudStack's own Kubernetes service sees to it.
    pub(crate) fn is_of_kubernetes_service(&self) -> bool {
        self.vmtype.eq_ignore_ascii_case("cksnode")
    }

    /// Whether there is a tag of this key as the server compares keys: those that differ in case alone are one to it.
    pub(crate) fn has_tag(&self, key: &str) -> bool {
        let key = key.to_lowercase();
        self.tags.iter().any(|tag| tag.key.to_lowercase() == key)
    }

    /// Where it is, in words.
    pub(crate) fn whose(&self) -> String {
        if self.project.is_empty() {
            format!("in account {:?}", self.account)
        } else {
            format!("in project {:?}", self.project)
        }
    }

    /// Whether a job is at work on it.
    pub fn has_pending_job(&self) -> bool {
        self.jobid.is_some() && self.jobstatus.unwrap_or(0) == 0
    }

    /// When it was made, if that can be read.
    pub fn created(&self) -> Option<Timestamp> {
        time(&self.created)
    }

    /// The address of its default interface.
    pub fn address(&self) -> Option<&str> {
        let nic = self.nic.iter().find(|nic| nic.isdefault).or_else(|| self.nic.first())?;
        [&nic.ipaddress, &nic.ip6address].into_iter().map(String::as_str).find(|address| !address.is_empty())
    }
}

/// A time as CloudStack writes it: `2026-11-15T07:32:16+0000`.
pub(crate) fn time(text: &str) -> Option<Timestamp> {
    jiff::fmt::strtime::parse("%Y-%m-%dT%H:%M:%S%z", text).ok()?.to_timestamp().ok()
}

/// Something that happened, as the server tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Event {
    /// What it happened to.
    #[serde(deserialize_with = "text")]
    pub resourceid: String,
    /// When it was written down.
    #[serde(deserialize_with = "text")]
    pub created: String,
    /// `Scheduled`, `Started` or `Completed`.
    #[serde(deserialize_with = "text")]
    pub state: String,
    /// `INFO`, `WARN` or `ERROR`.
    #[serde(deserialize_with = "text")]
    pub level: String,
}

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Nic {
    /// Network.
    #[serde(deserialize_with = "text")]
    pub networkid: String,
    /// Network.
    #[serde(deserialize_with = "text")]
    pub networkname: String,
    /// Address.
    #[serde(deserialize_with = "text")]
    pub ipaddress: String,
    /// Address, by IPv6.
    #[serde(deserialize_with = "text")]
    pub ip6address: String,
    /// Whether it is the default.
    #[serde(deserialize_with = "truth")]
    pub isdefault: bool,
    /// Its place among the interfaces.
    #[serde(deserialize_with = "number")]
    pub deviceid: Option<i64>,
}

/// Something with an id and a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Named {
    /// Id.
    #[serde(deserialize_with = "text")]
    pub id: String,
    /// Name.
    #[serde(deserialize_with = "text")]
    pub name: String,
    /// Kind, where there are several.
    #[serde(rename = "type")]
    #[serde(deserialize_with = "text")]
    pub kind: String,
}

/// A security group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SecurityGroup {
    /// Id.
    #[serde(deserialize_with = "text")]
    pub id: String,
    /// Name.
    #[serde(deserialize_with = "text")]
    pub name: String,
    /// Tags.
    #[serde(deserialize_with = "or_nothing")]
    pub tags: Vec<Tag>,
}

/// An affinity group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AffinityGroup {
    /// Id.
    #[serde(deserialize_with = "text")]
    pub id: String,
    /// Name.
    #[serde(deserialize_with = "text")]
    pub name: String,
    /// Type, such as `host anti-affinity`.
    #[serde(rename = "type")]
    #[serde(deserialize_with = "text")]
    pub type_: String,
    /// Its machines.
    #[serde(rename = "virtualmachineIds")]
    #[serde(deserialize_with = "or_nothing")]
    pub virtual_machine_ids: Vec<String>,
}

/// A zone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Zone {
    /// Id.
    #[serde(deserialize_with = "text")]
    pub id: String,
    /// Name.
    #[serde(deserialize_with = "text")]
    pub name: String,
    /// `Enabled` or `Disabled`.
    #[serde(deserialize_with = "text")]
    pub allocationstate: String,
    /// `Advanced` or `Basic`.
    #[serde(deserialize_with = "text")]
    pub networktype: String,
    /// Whether it has security groups.
    #[serde(deserialize_with = "truth")]
    pub securitygroupsenabled: bool,
    /// GPUs the server counts there; since 4.21.
    #[serde(deserialize_with = "number")]
    pub gputotal: Option<i64>,
    /// Those of them that machines have.
    #[serde(deserialize_with = "number")]
    pub gpuused: Option<i64>,
    /// Tags.
    #[serde(deserialize_with = "or_nothing")]
    pub tags: Vec<Tag>,
}

impl Zone {
    /// How many GPUs nobody has, as far as the server says. Where it counts none at all it may not know of those there are.
    pub(crate) fn free_gpus(&self) -> Option<i64> {
        let total = self.gputotal.filter(|total| *total > 0)?;
        Some((total - self.gpuused?).max(0))
    }
}

/// A network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Network {
    /// Id.
    #[serde(deserialize_with = "text")]
    pub id: String,
    /// Name.
    #[serde(deserialize_with = "text")]
    pub name: String,
    /// `Isolated`, `Shared`, `L2`.
    #[serde(rename = "type")]
    #[serde(deserialize_with = "text")]
    pub kind: String,
    /// `Allocated`, `Implemented`, `Setup`, …
    #[serde(deserialize_with = "text")]
    pub state: String,
    /// Zone.
    #[serde(deserialize_with = "text")]
    pub zoneid: String,
    /// Zone.
    #[serde(deserialize_with = "text")]
    pub zonename: String,
    /// When it was made.
    #[serde(deserialize_with = "text")]
    pub created: String,
    /// Whether an address is free at the moment; who does not say may have one.
    #[serde(deserialize_with = "perhaps")]
    pub canusefordeploy: Option<bool>,
    /// What it does for machines.
    #[serde(deserialize_with = "or_nothing")]
    pub service: Vec<Named>,
    /// Tags.
    #[serde(deserialize_with = "or_nothing")]
    pub tags: Vec<Tag>,
}

impl Network {
    /// Whether the server says that it has no address left.
    pub(crate) fn is_full(&self) -> bool {
        self.canusefordeploy == Some(false)
    }
}

/// A template in a zone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Template {
    /// Id.
    #[serde(deserialize_with = "text")]
    pub id: String,
    /// Name.
    #[serde(deserialize_with = "text")]
    pub name: String,
    /// When it was registered.
    #[serde(deserialize_with = "text")]
    pub created: String,
    /// Whether machines can be made of it.
    #[serde(deserialize_with = "truth")]
    pub isready: bool,
    /// Operating system.
    #[serde(deserialize_with = "text")]
    pub ostypename: String,
    /// Zone.
    #[serde(deserialize_with = "text")]
    pub zoneid: String,
    /// Zone.
    #[serde(deserialize_with = "text")]
    pub zonename: String,
    /// Bytes.
    #[serde(deserialize_with = "number")]
    pub size: Option<i64>,
    /// `x86_64` or `aarch64`.
    #[serde(deserialize_with = "text")]
    pub arch: String,
    /// `KVM`, `VMware`, …; `None` where machines say it.
    #[serde(deserialize_with = "text")]
    pub hypervisor: String,
    /// `ALLOWOVERRIDE`, `APPEND`, `DENYOVERRIDE`: what becomes of user data when the template brings its own.
    #[serde(deserialize_with = "text")]
    pub userdatapolicy: String,
    /// Details.
    #[serde(deserialize_with = "or_nothing")]
    pub details: BTreeMap<String, Value>,
    /// Tags.
    #[serde(deserialize_with = "or_nothing")]
    pub tags: Vec<Tag>,
}

/// A service offering.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceOffering {
    /// Id.
    #[serde(deserialize_with = "text")]
    pub id: String,
    /// Name.
    #[serde(deserialize_with = "text")]
    pub name: String,
    /// `Active` or `Inactive`.
    #[serde(deserialize_with = "text")]
    pub state: String,
    /// Cores; absent where the user says how many.
    #[serde(deserialize_with = "number")]
    pub cpunumber: Option<i64>,
    /// Megahertz per core.
    #[serde(deserialize_with = "number")]
    pub cpuspeed: Option<i64>,
    /// Mebibytes; absent where the user says how much.
    #[serde(deserialize_with = "number")]
    pub memory: Option<i64>,
    /// Megabits per second.
    #[serde(deserialize_with = "number")]
    pub networkrate: Option<i64>,
    /// Gigabytes; 0 for that of the template.
    #[serde(deserialize_with = "number")]
    pub rootdisksize: Option<i64>,
    /// `shared` or `local`.
    #[serde(deserialize_with = "text")]
    pub storagetype: String,
    /// Restarted when its host dies.
    #[serde(deserialize_with = "truth")]
    pub offerha: bool,
    /// The root disk is new at every start.
    #[serde(deserialize_with = "truth")]
    pub isvolatile: bool,
    /// For the cloud's own machines.
    #[serde(deserialize_with = "truth")]
    pub issystem: bool,
    /// Whether the user says how large.
    #[serde(deserialize_with = "truth")]
    pub iscustomized: bool,
    /// Whether its machines have the root disk it comes with and no other.
    #[serde(deserialize_with = "truth")]
    pub diskofferingstrictness: bool,
    /// Tags of hosts it needs, separated by commas.
    #[serde(deserialize_with = "text")]
    pub hosttags: String,
    /// Tags of storage it needs, separated by commas.
    #[serde(deserialize_with = "text")]
    pub storagetags: String,
    /// Free words of its maker, and the bounds of a customised one.
    #[serde(deserialize_with = "or_nothing")]
    pub serviceofferingdetails: BTreeMap<String, Value>,
    /// GPUs.
    #[serde(deserialize_with = "number")]
    pub gpucount: Option<i64>,
    /// Which.
    #[serde(deserialize_with = "text")]
    pub gpucardname: String,
    /// Which slice of it.
    #[serde(deserialize_with = "text")]
    pub vgpuprofilename: String,
    /// Mebibytes of the slice.
    #[serde(deserialize_with = "number")]
    pub videoram: Option<i64>,
}

impl ServiceOffering {
    /// Servers before 4.21 tell of a GPU by details: the card or group of cards, and which slice of one.
    #[must_use]
    pub(crate) fn with_gpu_of_details(mut self) -> Self {
        if self.gpucount.is_none()
            && let Some(card) = self.detail("pciDevice").filter(|card| !card.is_empty())
        {
            self.gpucount = Some(1);
            self.gpucardname = card;
            self.vgpuprofilename = self.detail("vgpuType").unwrap_or_default();
        }
        self
    }

    /// How many GPUs the server counts a machine of it as having: those it tells of by details only, it does not count, and slices
    /// of a card may be counted as cards.
    pub(crate) fn counted_gpus(&self) -> i64 {
        let profile = self.vgpuprofilename.as_str();
        let is_slice = !profile.is_empty() && !profile.eq_ignore_ascii_case("passthrough");
        if is_slice || self.detail("pciDevice").is_some() { 0 } else { self.gpucount.unwrap_or(0) }
    }

    /// A detail, as text.
    pub fn detail(&self, key: &str) -> Option<String> {
        match self.serviceofferingdetails.get(key)? {
            Value::String(text) => Some(text.clone()),
            Value::Null => None,
            other => Some(other.to_string()),
        }
    }
}

/// A disk offering.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DiskOffering {
    /// Id.
    #[serde(deserialize_with = "text")]
    pub id: String,
    /// Name.
    #[serde(deserialize_with = "text")]
    pub name: String,
    /// Gigabytes.
    #[serde(deserialize_with = "number")]
    pub disksize: Option<i64>,
    /// Whether the user says how large.
    #[serde(deserialize_with = "truth")]
    pub iscustomized: bool,
}

/// A volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Volume {
    /// Id.
    #[serde(deserialize_with = "text")]
    pub id: String,
    /// Name.
    #[serde(deserialize_with = "text")]
    pub name: String,
    /// `ROOT` or `DATADISK`.
    #[serde(rename = "type")]
    #[serde(deserialize_with = "text")]
    pub kind: String,
    /// Where it is attached.
    #[serde(deserialize_with = "text")]
    pub virtualmachineid: String,
    /// As which of the machine's disks.
    #[serde(deserialize_with = "number")]
    pub deviceid: Option<i64>,
    /// In bytes.
    #[serde(deserialize_with = "number")]
    pub size: Option<i64>,
    /// Its disk offering.
    #[serde(deserialize_with = "text")]
    pub diskofferingid: String,
    /// `Allocated` until it is first attached, then `Ready`; others while something is done with it.
    #[serde(deserialize_with = "text")]
    pub state: String,
    /// When it was made.
    #[serde(deserialize_with = "text")]
    pub created: String,
    /// Tags.
    #[serde(deserialize_with = "or_nothing")]
    pub tags: Vec<Tag>,
}

impl Volume {
    /// The value of a tag.
    pub fn tag(&self, key: &str) -> Option<&str> {
        self.tags.iter().find(|tag| tag.key == key).map(|tag| tag.value.as_str())
    }
}

/// What is left of an account's or project's limits; `None` is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Budget {
    /// Virtual machines.
    #[serde(deserialize_with = "number")]
    pub vmavailable: Option<i64>,
    /// Cores.
    #[serde(deserialize_with = "number")]
    pub cpuavailable: Option<i64>,
    /// Mebibytes.
    #[serde(deserialize_with = "number")]
    pub memoryavailable: Option<i64>,
    /// Volumes.
    #[serde(deserialize_with = "number")]
    pub volumeavailable: Option<i64>,
    /// Gigabytes of primary storage.
    #[serde(deserialize_with = "number")]
    pub primarystorageavailable: Option<i64>,
    /// GPUs.
    #[serde(deserialize_with = "number")]
    pub gpuavailable: Option<i64>,
    /// Id.
    #[serde(deserialize_with = "text")]
    pub id: String,
    /// Name.
    #[serde(deserialize_with = "text")]
    pub name: String,
    /// Of accounts: 0 users, 1 root administrators, 2 administrators of a domain.
    #[serde(deserialize_with = "number")]
    pub accounttype: Option<i64>,
}

/// What the server is and the caller may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    /// Version of CloudStack.
    #[serde(deserialize_with = "text")]
    pub cloudstackversion: String,
    /// Whether the caller may expunge.
    #[serde(deserialize_with = "truth")]
    pub allowuserexpungerecovervm: bool,
    /// Window of the rate limit in seconds, where there is one.
    #[serde(deserialize_with = "number")]
    pub apilimitinterval: Option<i64>,
    /// Calls in that window.
    #[serde(deserialize_with = "number")]
    pub apilimitmax: Option<i64>,
}

/// What the quota plug-in takes for something.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Tariff {
    /// For what.
    #[serde(rename = "usageType", deserialize_with = "number")]
    pub usage_type: Option<i64>,
    /// How much, per month where it is used over time.
    #[serde(rename = "tariffValue")]
    pub tariff_value: Value,
    /// A script that decides what it is taken for; the server shows it to those who may write it.
    #[serde(rename = "activationRule")]
    pub activation_rule: Value,
    /// Until when.
    #[serde(rename = "endDate")]
    pub end_date: Value,
    /// When somebody removed it.
    pub removed: Value,
}

impl Tariff {
    /// Whether it is taken for everything of its kind, for as long as anybody can say.
    pub fn is_flat(&self) -> bool {
        let said = |value: &Value| !value.is_null() && value.as_str() != Some("");
        !said(&self.activation_rule) && !said(&self.end_date) && !said(&self.removed)
    }

    /// How much, if that is a number.
    pub fn value(&self) -> Option<f64> {
        let value = match &self.tariff_value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        value.filter(|value| value.is_finite() && *value >= 0.0)
    }
}

/// A text that may come as a number, or as nothing.
pub(super) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    some_text(deserializer).map(Option::unwrap_or_default)
}

/// A text that may come as a number, if there is one.
fn some_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Null => None,
        Value::String(text) => Some(text),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        Value::Array(_) => return Err(D::Error::custom("a list where a text is expected")),
        Value::Object(_) => return Err(D::Error::custom("an object where a text is expected")),
    })
}

/// Several things, or none where there is nothing.
fn or_nothing<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A number that may come as a text, with a fraction, or as `Unlimited`.
pub(super) fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Number(number) => number.as_i64().or_else(|| number.as_f64().map(|f| f as i64)),
        Value::String(text) => {
            text.trim().parse().ok().or_else(|| text.trim().parse::<f64>().ok().map(|f| f as i64))
        }
        _ => None,
    })
}

/// A truth that may come as a text, or not at all.
fn perhaps<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Bool(truth) => Some(truth),
        Value::String(text) => text.parse().ok(),
        _ => None,
    })
}

/// A truth that may come as a text.
pub(super) fn truth<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Bool(truth) => truth,
        Value::String(text) => text == "true",
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_come_as_numbers_texts_and_not_at_all() {
        let budget: Budget = serde_json::from_value(json!({
            "cpuavailable": "40", "memoryavailable": 40960, "vmavailable": "Unlimited", "gpuavailable": "2.0",
        }))
        .expect("a budget");
        let left = (budget.cpuavailable, budget.memoryavailable, budget.vmavailable, budget.gpuavailable);
        assert_eq!(left, (Some(40), Some(40960), None, Some(2)));
        assert_eq!(budget.volumeavailable, None);
    }

    #[test]
    fn a_number_where_a_text_is_expected_is_read() {
        let machine: VirtualMachine = serde_json::from_value(json!({
            "id": 7, "name": null, "jobid": 3, "tags": null, "group": true, "nic": [{"networkid": 1}],
        }))
        .expect("a machine");
        assert_eq!((machine.id.as_str(), machine.name.as_str(), machine.group.as_str()), ("7", "", "true"));
        assert_eq!((machine.jobid.as_deref(), machine.nic[0].networkid.as_str()), (Some("3"), "1"));
        assert!(machine.tags.is_empty());
        let offering: Result<ServiceOffering, _> =
            serde_json::from_value(json!({"serviceofferingdetails": null, "hosttags": null}));
        assert!(offering.is_ok(), "{offering:?}");
    }

    #[test]
    fn what_a_list_leaves_out_is_not_the_same_as_none() {
        let left_out = |row: Value| {
            let machine: VirtualMachine = serde_json::from_value(row).expect("a machine");
            (machine.nic.is_left_out(), machine.nic.len())
        };
        assert_eq!(left_out(json!({"id": "1"})), (true, 0));
        assert_eq!(left_out(json!({"id": "1", "nic": null})), (true, 0));
        assert_eq!(left_out(json!({"id": "1", "nic": []})), (false, 0));
    }

    #[test]
    fn a_gpu_is_told_by_fields_or_as_before_4_21_by_details() {
        let offering = |fields: Value| {
            let offering: ServiceOffering = serde_json::from_value(fields).expect("an offering");
            let offering = offering.with_gpu_of_details();
            (offering.gpucount, offering.gpucardname)
        };
        let card = "Group of NVIDIA Corporation GK107GL [GRID K1] GPUs";
        let details = json!({"pciDevice": card, "vgpuType": "passthrough"});
        assert_eq!(offering(json!({"serviceofferingdetails": details})), (Some(1), card.to_owned()));
        let told = json!({"gpucount": 2, "gpucardname": "A10", "serviceofferingdetails": details});
        assert_eq!(offering(told), (Some(2), "A10".to_owned()));
        assert_eq!(offering(json!({"name": "k8s.small"})), (None, String::new()));
    }

    #[test]
    fn only_whole_gpus_are_held_against_what_a_zone_has_left() {
        let counted = |profile: &str| {
            let offering = json!({"gpucount": 2, "gpucardname": "A10", "vgpuprofilename": profile});
            serde_json::from_value::<ServiceOffering>(offering).expect("an offering").counted_gpus()
        };
        assert_eq!((counted(""), counted("passthrough"), counted("NVIDIA A10-8Q")), (2, 2, 0));
    }

    #[test]
    fn times_are_read() {
        let machine =
            VirtualMachine { created: "2026-11-15T07:32:16+0000".into(), ..VirtualMachine::default() };
        assert_eq!(machine.created().map(|t| t.to_string()).as_deref(), Some("2026-11-15T07:32:16Z"));
        assert_eq!(time("soon"), None);
    }
}
