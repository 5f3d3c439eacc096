//! Which host takes a machine. Host by host, as the real planner does it: what is free in sum helps nobody.

use std::collections::BTreeSet;

use serde_json::Value;

use super::state::{Machine, State};

/// What is free on a host.
pub(crate) struct Free {
    pub(crate) memory_bytes: i64,
    pub(crate) cpu_mhz: i64,
    pub(crate) gpus: i64,
}

/// A number, also one written as a text.
pub(crate) fn number(value: &Value) -> i64 {
    value.as_i64().or_else(|| value.as_str().and_then(|text| text.parse().ok())).unwrap_or(0)
}

pub(crate) fn words(value: &Value) -> BTreeSet<&str> {
    value.as_str().unwrap_or_default().split(',').map(str::trim).filter(|word| !word.is_empty()).collect()
}

/// The kind of group that leads to hosts which are dedicated to somebody.
const DEDICATION: &str = "ExplicitDedication";

/// Whether a host has cores enough, and fast enough: however much is free in sum, a machine has no more of them than its host.
fn is_capable(host: &Value, machine: &Machine) -> bool {
    number(&host["cpunumber"]) >= machine.cpu && number(&host["cpuspeed"]) >= machine.cpu_speed
}

/// Whether a host is nobody's, or its group's are the machine's: a dedicated host takes no others.
fn is_open_to(host: &Value, machine: &Machine) -> bool {
    host["affinitygroupid"].as_str().is_none_or(|group| machine.groups.iter().any(|of| of == group))
}

impl State {
    /// What the machines of a host leave free.
    pub(crate) fn free_on(&self, host: &Value) -> Free {
        let mut free = Free {
            memory_bytes: number(&host["memorytotal"]) - number(&host["memoryallocatedbytes"]),
            cpu_mhz: number(&host["cpuwithoverprovisioning"]) - number(&host["cpuallocatedvalue"]),
            gpus: number(&host["gpus"]),
        };
        for machine in self.machines.values() {
            if machine.occupies() && machine.host.as_deref() == host["id"].as_str() {
                free.memory_bytes -= machine.memory << 20;
                free.cpu_mhz -= machine.cpu * machine.cpu_speed;
                free.gpus -= machine.gpus;
            }
        }
        free
    }

    /// The host for a machine, or why there is none: code and text.
    pub(crate) fn place(&self, machine: &Machine) -> Result<String, (u16, String)> {
        let offering = Self::by_id(&self.offerings, &machine.offering).unwrap_or(&Value::Null);
        let template = Self::by_id(&self.templates, &machine.template).unwrap_or(&Value::Null);
        let wanted_tags = words(&offering["hosttags"]);
        let in_zone: Vec<&Value> = self
            .hosts
            .iter()
            .filter(|host| {
                host["zoneid"] == machine.zone.as_str()
                    && host["state"] == "Up"
                    && host["resourcestate"] == "Enabled"
                    && (template["arch"].is_null() || host["arch"] == template["arch"])
                    && is_open_to(host, machine)
            })
            .collect();
        let tagged: Vec<&Value> =
            in_zone.into_iter().filter(|host| wanted_tags.is_subset(&words(&host["hosttags"]))).collect();
        if tagged.is_empty() && !wanted_tags.is_empty() {
            return Err((530, "No suitable host found.".to_owned()));
        }
        let mut fitting: Vec<(&Value, Free)> = tagged
            .into_iter()
            .filter(|host| is_capable(host, machine))
            .map(|host| (host, self.free_on(host)))
            .filter(|(_, free)| {
                free.memory_bytes >= machine.memory << 20
                    && free.cpu_mhz >= machine.cpu * machine.cpu_speed
                    && free.gpus >= machine.gpus
            })
            .collect();
        let had_room = !fitting.is_empty();
        for group in machine.groups.iter().filter_map(|id| self.groups.iter().find(|g| g.id == *id)) {
            let taken: BTreeSet<&str> = self
                .machines
                .values()
                .filter(|other| other.id != machine.id && other.groups.contains(&group.id))
                .filter_map(|other| other.host.as_deref())
                .collect();
            let taken_by_group = |host: &Value| host["id"].as_str().is_some_and(|id| taken.contains(id));
            match group.kind.as_str() {
                "host anti-affinity" => fitting.retain(|(host, _)| !taken_by_group(host)),
                "host affinity" if !taken.is_empty() => fitting.retain(|(host, _)| taken_by_group(host)),
                "non-strict host anti-affinity" if fitting.iter().any(|(host, _)| !taken_by_group(host)) => {
                    fitting.retain(|(host, _)| !taken_by_group(host));
                }
                "non-strict host affinity" if fitting.iter().any(|(host, _)| taken_by_group(host)) => {
                    fitting.retain(|(host, _)| taken_by_group(host));
                }
                DEDICATION => fitting.retain(|(host, _)| host["affinitygroupid"] == group.id.as_str()),
                _ => {}
            }
        }
        // The emptiest; of equals the first.
        let best = fitting.iter().rev().max_by_key(|(_, free)| free.memory_bytes);
        let best = best.and_then(|(host, _)| host["id"].as_str()).map(str::to_owned);
        best.ok_or_else(|| {
            let mut text = format!(
                "No destination found for a deployment for VM instance {{\"id\":{},\"instanceName\":\"{}\",\"state\":\"Stopped\",\"type\":\"User\",\"uuid\":\"{}\"}}",
                machine.number,
                self.instance_name(machine),
                machine.id
            );
            if had_room || !machine.groups.is_empty() {
                text.push_str(", Please check the affinity groups provided, there may not be sufficient capacity to follow them");
            }
            (533, text)
        })
    }

    /// The name on the hypervisor.
    pub(crate) fn instance_name(&self, machine: &Machine) -> String {
        let account = self.accounts.get(machine.owner.account).map_or(0, |account| account.number);
        format!("i-{account}-{}-QA", machine.number)
    }
}
