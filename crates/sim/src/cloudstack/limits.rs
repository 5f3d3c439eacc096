//! What accounts and projects use, and what they may.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::state::{Owner, State};
use super::wire::Refusal;

/// How lists name a resource, and how limits do.
const LISTED: [(&str, &str); 17] = [
    ("vm", "user_vm"),
    ("ip", "public_ip"),
    ("volume", "volume"),
    ("snapshot", "snapshot"),
    ("backup", "backup"),
    ("backupstorage", "backup_storage"),
    ("template", "template"),
    ("project", "project"),
    ("network", "network"),
    ("vpc", "vpc"),
    ("cpu", "cpu"),
    ("memory", "memory"),
    ("gpu", "gpu"),
    ("primarystorage", "primary_storage"),
    ("secondarystorage", "secondary_storage"),
    ("bucket", "bucket"),
    ("objectstorage", "object_storage"),
];

impl State {
    /// How much of a resource is used.
    pub(crate) fn usage(&self, owner: &Owner, resource: &str) -> i64 {
        let machines =
            || self.machines.values().filter(|machine| machine.counts() && machine.owner.is(owner));
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let volumes =
            || self.volumes.iter().filter(|volume| volume.destroyed.is_none() && volume.owner.is(owner));
        match resource {
            "user_vm" => count(machines().count()),
            "cpu" => machines().map(|machine| machine.cpu).sum(),
            "memory" => machines().map(|machine| machine.memory).sum(),
            "gpu" => machines().map(|machine| machine.gpus).sum(),
            "volume" => count(volumes().count()),
            "primary_storage" => volumes().map(|volume| volume.size_bytes >> 30).sum(),
            "network" => count(self.networks.iter().filter(|network| self.owns(owner, network)).count()),
            "project" if owner.project.is_none() => {
                count(self.projects.iter().filter(|project| project.owner == owner.account).count())
            }
            _ => 0,
        }
    }

    /// Limits, use and rest, as accounts and projects list them.
    pub(crate) fn add_usage(&self, rendered: &mut Value, owner: &Owner, limits: &BTreeMap<String, i64>) {
        for (name, resource) in LISTED {
            if resource == "project" && owner.project.is_some() {
                continue;
            }
            let used = self.usage(owner, resource);
            let (limit, left) = match limits.get(resource).filter(|limit| **limit >= 0) {
                Some(limit) if resource == "secondary_storage" => {
                    (limit.to_string(), format!("{}.0", limit - used))
                }
                Some(limit) => (limit.to_string(), (limit - used).to_string()),
                None => ("Unlimited".to_owned(), "Unlimited".to_owned()),
            };
            rendered[format!("{name}limit")] = limit.into();
            rendered[format!("{name}available")] = left.into();
            rendered[format!("{name}total")] =
                if resource == "secondary_storage" { json!(0.0) } else { used.into() };
        }
        let in_state =
            |state: &str| self.machines.values().filter(|m| m.owner == *owner && m.state == state).count();
        rendered["vmrunning"] = in_state("Running").into();
        rendered["vmstopped"] = in_state("Stopped").into();
    }

    /// The limits of an owner.
    fn limits_of(&self, owner: &Owner) -> Option<&BTreeMap<String, i64>> {
        match &owner.project {
            Some(id) => self.projects.iter().find(|project| project.id == *id).map(|project| &project.limits),
            None => self.accounts.get(owner.account).map(|account| &account.limits),
        }
    }

    /// Refuses what would exceed a limit.
    pub(crate) fn check_limits(&self, owner: &Owner, wanted: &[(&str, i64)]) -> Result<(), Refusal> {
        let Some(limits) = self.limits_of(owner) else { return Ok(()) };
        let Some(account) = self.accounts.get(owner.account) else { return Ok(()) };
        for (resource, amount) in wanted {
            let Some(limit) = limits.get(*resource).copied().filter(|limit| *limit >= 0) else { continue };
            let used = self.usage(owner, resource);
            if used + amount > limit {
                let whose = match &owner.project {
                    Some(id) => format!("Project Id = {id}"),
                    None => format!("Account Name = {}", account.name),
                };
                let text = format!(
                    "Maximum amount of resources of Type = '{resource}', tag = 'null' for {whose} in Domain Id = {} is exceeded: Account Resource Limit = {limit}, Current Account Resource Amount = {used}, Current Account Resource Reservation = 0, Requested Resource Amount = {amount}.",
                    account.domain_number
                );
                return Err(Refusal::new(535, 9999, text));
            }
        }
        Ok(())
    }
}
