//! What the simulated cloud remembers: its catalogue as the JSON it is answered with, and machines, volumes, jobs and groups as
//! what they are.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::account::{Account, Role};
use super::settings::Settings;
use super::storage::Pool;
use super::wire::Refusal;
use crate::chance::Chance;

/// Who something belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Owner {
    /// Index of the account that made it.
    pub(crate) account: usize,
    /// The project it belongs to instead.
    pub(crate) project: Option<String>,
}

impl Owner {
    /// Whether both are the same: of a project it does not matter who made what.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.project == other.project && (self.project.is_some() || self.account == other.account)
    }
}

/// A virtual machine.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) number: u64,
    pub(crate) id: String,
    pub(crate) name: String,
    /// The name that people see.
    pub(crate) display_name: String,
    pub(crate) owner: Owner,
    pub(crate) created: Timestamp,
    pub(crate) updated: Option<Timestamp>,
    pub(crate) state: &'static str,
    pub(crate) zone: String,
    pub(crate) template: String,
    pub(crate) offering: String,
    pub(crate) cpu: i64,
    pub(crate) cpu_speed: i64,
    pub(crate) memory: i64,
    pub(crate) gpus: i64,
    pub(crate) nics: Vec<Nic>,
    pub(crate) host: Option<String>,
    /// Whether it ever had storage.
    pub(crate) stored: bool,
    pub(crate) groups: Vec<String>,
    pub(crate) security_groups: Vec<String>,
    pub(crate) tags: Vec<(String, String)>,
    pub(crate) details: BTreeMap<String, String>,
    pub(crate) disk_offering: Option<String>,
    pub(crate) user_data: Option<String>,
    pub(crate) key_pairs: Vec<String>,
    pub(crate) group: Option<String>,
    pub(crate) protected: bool,
    /// When its lease ends.
    pub(crate) lease_ends: Option<Timestamp>,
    /// Jobs that work on it, in the order they came; the first is at work.
    pub(crate) jobs: VecDeque<String>,
}

impl Machine {
    /// Whether it holds its share of a host.
    pub(crate) fn occupies(&self) -> bool {
        self.host.is_some()
            && matches!(self.state, "Starting" | "Running" | "Stopping" | "Migrating" | "Unknown")
    }

    /// Whether it counts against limits.
    pub(crate) fn counts(&self) -> bool {
        !matches!(self.state, "Destroyed" | "Expunging" | "Error")
    }

    pub(crate) fn has_tag(&self, key: &str, value: &str) -> bool {
        self.tags.iter().any(|(k, v)| k == key && v == value)
    }
}

/// An interface.
#[derive(Clone, Debug)]
pub(crate) struct Nic {
    pub(crate) id: String,
    pub(crate) network: String,
    pub(crate) address: String,
    pub(crate) mac: String,
    /// Whether it is plugged into a network that exists on the hosts.
    pub(crate) plugged: bool,
}

/// A volume.
#[derive(Clone, Debug)]
pub(crate) struct Volume {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) root: bool,
    pub(crate) owner: Owner,
    pub(crate) zone: String,
    pub(crate) created: Timestamp,
    pub(crate) machine: Option<u64>,
    pub(crate) device: i64,
    pub(crate) size_bytes: i64,
    pub(crate) offering: String,
    /// The storage pool it takes space of, once it has its place.
    pub(crate) pool: Option<String>,
    /// When it was destroyed: it is shown for a while after that.
    pub(crate) destroyed: Option<Timestamp>,
    pub(crate) tags: Vec<(String, String)>,
}

/// A job.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) account: usize,
    pub(crate) class: &'static str,
    pub(crate) machine: Option<u64>,
    /// Type and id of what it works on, as it is answered.
    pub(crate) instance: Option<(&'static str, String)>,
    pub(crate) created: Timestamp,
    pub(crate) completed: Option<Timestamp>,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) work: Work,
}

/// How a router fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Router {
    /// It takes no orders, and the server knows that it is the router.
    Unreachable,
    /// It does not do what it is told, for which the server gives up the whole zone: then there is no host.
    Disobedient,
}

/// What a job came to.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Done(Value),
    Failed(u16, String),
    /// The server died over it.
    Crashed,
}

/// How large a machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) cpu: i64,
    pub(crate) cpu_speed: i64,
    pub(crate) memory: i64,
    pub(crate) gpus: i64,
}

/// What a job does, step by step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Work {
    /// Place and start it.
    Start {
        /// It is being made: failure leaves it in `Error`.
        deploy: bool,
        /// Whether to start it at all.
        start: bool,
        /// Already on its host.
        placed: bool,
    },
    Stop,
    Reboot,
    Destroy {
        expunge: bool,
        volumes: Vec<String>,
    },
    Expunge,
    Tag {
        resource_type: String,
        ids: Vec<String>,
        tags: Vec<(String, String)>,
    },
    Untag {
        ids: Vec<String>,
        tags: Vec<(String, String)>,
    },
    /// Give a machine another offering.
    Scale {
        offering: String,
        wanted: Result<Size, Refusal>,
    },
    /// Attach a volume to a machine.
    Attach {
        volume: String,
        machine: u64,
        device: Option<i64>,
    },
    /// Everything was done when it was accepted.
    Nothing(Value),
}

/// Something that will happen.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// The job takes its next step.
    Step(String),
    /// The network stands on the hosts.
    Implemented(String),
    /// Destroyed machines go for good.
    ExpungeThread,
}

/// An affinity group.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) description: Option<String>,
    pub(crate) owner: Owner,
}

/// A project.
#[derive(Clone, Debug)]
pub(crate) struct Project {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) display_text: String,
    pub(crate) owner: usize,
    pub(crate) created: Timestamp,
    pub(crate) limits: BTreeMap<String, i64>,
}

/// Machines by number. A copy costs nothing until one of the two is changed: how things were is remembered many times a second.
#[derive(Clone, Debug, Default)]
pub(crate) struct Machines(Arc<BTreeMap<u64, Machine>>);

impl Deref for Machines {
    type Target = BTreeMap<u64, Machine>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Machines {
    fn deref_mut(&mut self) -> &mut Self::Target {
        Arc::make_mut(&mut self.0)
    }
}

/// Everything.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) settings: Settings,
    /// How far the server's clock is ahead of everybody's.
    pub(crate) ahead: SignedDuration,
    pub(crate) accounts: Vec<Account>,
    pub(crate) capability: Value,
    pub(crate) zones: Vec<Value>,
    pub(crate) hosts: Vec<Value>,
    pub(crate) offerings: Vec<Value>,
    pub(crate) system_offerings: Vec<Value>,
    pub(crate) disk_offerings: Vec<Value>,
    pub(crate) templates: Vec<Value>,
    pub(crate) networks: Vec<Value>,
    pub(crate) network_services: Value,
    pub(crate) security_groups: Vec<Value>,
    pub(crate) tariffs: Vec<Value>,
    pub(crate) management_servers: Vec<Value>,
    pub(crate) resource_types: Vec<(String, String)>,
    /// What a new project gets.
    pub(crate) project_limits: BTreeMap<String, i64>,
    pub(crate) gpu_cards: Vec<Value>,
    pub(crate) vgpu_profiles: Vec<Value>,
    pub(crate) user_data: Vec<Value>,
    pub(crate) key_pairs: Vec<Value>,
    pub(crate) machines: Machines,
    /// Ids of machines, also of those that are gone: the server remembers them.
    pub(crate) machine_ids: BTreeMap<String, u64>,
    pub(crate) volumes: Vec<Volume>,
    /// Primary storage; a zone without any has as much as is wanted.
    pub(crate) pools: Vec<Pool>,
    pub(crate) groups: Vec<Group>,
    pub(crate) projects: Vec<Project>,
    pub(crate) jobs: BTreeMap<String, Job>,
    pub(crate) events: BTreeMap<(Timestamp, u64), Event>,
    pub(crate) sequence: u64,
    pub(crate) next_machine: u64,
    /// When the account's earlier deployments are through: they queue for its resource count.
    pub(crate) busy_until: BTreeMap<usize, Timestamp>,
    pub(crate) ids: Chance,
    pub(crate) delays: Chance,
    /// Ids of what was removed from the catalogue: the server looks them up all the same.
    pub(crate) removed: BTreeSet<String>,
    /// Hosts that refuse to start anything.
    pub(crate) broken_hosts: BTreeSet<String>,
    /// Networks whose router does not do what it is told, and how the server takes that.
    pub(crate) broken_routers: BTreeMap<String, Router>,
    /// What people did to machines, as `listEvents` tells it: oldest first.
    pub(crate) history: Vec<(Owner, Value)>,
    /// The machines as they were, while lists lag behind.
    pub(crate) past: VecDeque<(Timestamp, Machines)>,
}

/// This much later, or earlier, as far as a clock goes.
fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.saturating_add(by).unwrap_or(time)
}

/// How fine the past is remembered.
const MOMENT: SignedDuration = SignedDuration::from_millis(250);

impl State {
    /// A new id.
    pub(crate) fn uuid(&mut self) -> String {
        let mut digits = String::with_capacity(36);
        for (i, part) in [8, 4, 4, 4, 12].into_iter().enumerate() {
            if i > 0 {
                digits.push('-');
            }
            for at in 0..part {
                let digit = match (i, at) {
                    (2, 0) => 4,
                    (3, 0) => 8 + self.ids.below(4),
                    _ => self.ids.below(16),
                };
                digits.push(char::from_digit(u32::try_from(digit).unwrap_or(0), 16).unwrap_or('0'));
            }
        }
        digits
    }

    /// What the server takes this time for.
    pub(crate) fn server_time(&self, now: Timestamp) -> Timestamp {
        later(now, self.ahead)
    }

    /// Whatever waits for a time waits for one so much later: what is under way takes as long as it would have.
    pub(crate) fn postpone(&mut self, by: SignedDuration) {
        let events = std::mem::take(&mut self.events);
        self.events = events.into_iter().map(|((at, turn), event)| ((later(at, by), turn), event)).collect();
        self.busy_until.values_mut().for_each(|until| *until = later(*until, by));
        self.past.iter_mut().for_each(|(at, _)| *at = later(*at, by));
        self.accounts.iter_mut().for_each(|account| account.calls.1 = later(account.calls.1, by));
    }

    /// Remembers how things are, if lists are to show it later.
    pub(crate) fn remember(&mut self, now: Timestamp) {
        if self.settings.read_lag.is_zero() {
            self.past.clear();
            return;
        }
        if self.past.back().is_none_or(|(at, _)| now.duration_since(*at) >= MOMENT) {
            self.past.push_back((now, self.machines.clone()));
        }
        let lag = SignedDuration::try_from(self.settings.read_lag).unwrap_or_default();
        while self.past.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= lag) {
            self.past.pop_front();
        }
    }

    /// The machines as lists show them.
    pub(crate) fn shown_machines(&self) -> &BTreeMap<u64, Machine> {
        self.past.front().map_or(&self.machines, |(_, machines)| machines)
    }

    pub(crate) fn machine(&self, id: &str) -> Option<&Machine> {
        self.machines.get(self.machine_ids.get(id)?)
    }

    pub(crate) fn by_id<'a>(list: &'a [Value], id: &str) -> Option<&'a Value> {
        list.iter().find(|entry| entry["id"] == id)
    }

    /// Whether this id is or was anything.
    pub(crate) fn knows(&self, id: &str) -> bool {
        let lists = [
            &self.zones,
            &self.hosts,
            &self.offerings,
            &self.system_offerings,
            &self.disk_offerings,
            &self.templates,
            &self.networks,
            &self.security_groups,
            &self.gpu_cards,
            &self.vgpu_profiles,
            &self.user_data,
        ];
        self.machine_ids.contains_key(id)
            || self.jobs.contains_key(id)
            || self.volumes.iter().any(|volume| volume.id == id)
            || self.groups.iter().any(|group| group.id == id)
            || self.projects.iter().any(|project| project.id == id)
            || self.accounts.iter().any(|a| a.id == id || a.domain_id == id || a.user_id == id)
            || lists.iter().any(|list| Self::by_id(list, id).is_some())
            || self.networks.iter().any(|network| network["networkofferingid"] == id)
            || self.removed.contains(id)
    }

    /// Whether the caller may see and change what belongs to `owner`: what is in a project is for whoever has the project.
    pub(crate) fn may(&self, caller: usize, owner: &Owner) -> bool {
        let Some(account) = self.accounts.get(caller) else { return false };
        let whose = match &owner.project {
            Some(id) => self.projects.iter().find(|project| project.id == *id).map(|project| project.owner),
            None => Some(owner.account),
        };
        let domain = whose.and_then(|whose| self.accounts.get(whose)).map(|whose| &whose.domain_path);
        match account.role {
            Role::Root => true,
            Role::DomainAdmin => domain.is_some_and(|domain| domain.starts_with(&account.domain_path)),
            Role::User => whose == Some(caller),
        }
    }

    /// The same of a project, by its id.
    pub(crate) fn may_use_project(&self, caller: usize, project: &str) -> bool {
        self.may(caller, &Owner { account: caller, project: Some(project.to_owned()) })
    }

    /// An account as the server's refusals name it.
    pub(crate) fn described(&self, account: usize) -> String {
        self.accounts.get(account).map_or_else(String::new, |account| {
            format!(
                "Account [{{\"accountName\":\"{}\",\"id\":{},\"uuid\":\"{}\"}}]",
                account.name, account.number, account.id
            )
        })
    }

    pub(crate) fn schedule(&mut self, at: Timestamp, event: Event) {
        self.sequence += 1;
        self.events.insert((at, self.sequence), event);
    }
}
