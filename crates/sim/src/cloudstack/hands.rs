//! What administrators, tenants and accidents do to the cloud without Karpenter: the hands of a test.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::CloudStack;
use super::account::Role;
use super::placement::number;
use super::state::{Group, Machine, Owner, Router, State, Volume};

/// A machine as a test looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineView {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// State.
    pub state: String,
    /// When it was made.
    pub created: Timestamp,
    /// Service offering.
    pub offering: String,
    /// Networks in the order of its interfaces.
    pub networks: Vec<String>,
    /// Address.
    pub address: String,
    /// The host it runs on.
    pub host: Option<String>,
    /// Tags.
    pub tags: BTreeMap<String, String>,
    /// User data as it was given.
    pub user_data: Option<String>,
    /// Project.
    pub project: Option<String>,
    /// Name of the account that made it.
    pub account: String,
}

impl MachineView {
    /// Whether it is there and not about to go.
    pub fn is_live(&self) -> bool {
        is_live(&self.state)
    }

    /// Whether somebody has still to remove it: also what failed to start holds its name and address.
    pub fn is_there(&self) -> bool {
        is_there(&self.state)
    }
}

/// Whether a machine in this state is there and not about to go.
pub(super) fn is_live(state: &str) -> bool {
    !matches!(state, "Destroyed" | "Expunging" | "Error")
}

/// Whether a machine in this state has still to be removed.
pub(super) fn is_there(state: &str) -> bool {
    !matches!(state, "Destroyed" | "Expunging")
}

fn view(machine: &Machine, state: &State) -> MachineView {
    MachineView {
        id: machine.id.clone(),
        name: machine.name.clone(),
        state: machine.state.to_owned(),
        created: machine.created,
        offering: machine.offering.clone(),
        networks: machine.nics.iter().map(|nic| nic.network.clone()).collect(),
        address: machine.nics.first().map(|nic| nic.address.clone()).unwrap_or_default(),
        host: machine.host.clone(),
        tags: machine.tags.iter().cloned().collect(),
        user_data: machine.user_data.clone(),
        project: machine.owner.project.clone(),
        account: state.accounts.get(machine.owner.account).map(|a| a.name.clone()).unwrap_or_default(),
    }
}

impl CloudStack {
    /// Every machine whose row is there, whoever owns it, in the order they were made.
    pub fn machines(&self) -> Vec<MachineView> {
        let state = self.state();
        state.machines.values().map(|machine| view(machine, &state)).collect()
    }

    /// The machines that are there and not about to go.
    pub fn live_machines(&self) -> Vec<MachineView> {
        self.machines().into_iter().filter(MachineView::is_live).collect()
    }

    /// The server dies and is back at once.
    pub fn restart(&self) {
        let now = self.now();
        self.state().crash(now);
    }

    fn change(&self, id: &str, change: impl FnOnce(&mut Machine)) {
        let mut state = self.state();
        if let Some(number) = state.machine_ids.get(id).copied()
            && let Some(machine) = state.machines.get_mut(&number)
        {
            change(machine);
        }
    }

    /// Writes down what somebody did to a machine.
    fn record(&self, id: &str, kind: &str, what: &str, stage: &str) {
        let now = self.now();
        let mut state = self.state();
        let Some(machine) = state.machine(id).cloned() else { return };
        state.record(&machine, "operator", kind, what, stage, now);
    }

    /// The server begins to move a machine to another host.
    pub fn begin_moving_machine(&self, id: &str) {
        self.record(id, "VM.MIGRATE", "Migrating", "Started");
    }

    /// The machine runs on another host.
    pub fn finish_moving_machine(&self, id: &str) {
        self.record(id, "VM.MIGRATE", "Successfully completed migrating", "Completed");
    }

    /// Somebody stops a machine.
    pub fn stop_machine(&self, id: &str) {
        self.record(id, "VM.STOP", "Successfully completed stopping", "Completed");
        self.change(id, |machine| {
            machine.state = "Stopped";
            machine.host = None;
        });
    }

    /// The server loses sight of a machine, which goes on where it is.
    pub fn lose_sight_of_machine(&self, id: &str) {
        self.change(id, |machine| machine.state = "Unknown");
    }

    /// The server begins to make a backup of a machine.
    pub fn back_up_machine(&self, id: &str) {
        self.change(id, |machine| machine.state = "BackingUp");
    }

    /// A machine cannot be brought back from its backup.
    pub fn fail_to_restore_machine(&self, id: &str) {
        self.change(id, |machine| machine.state = "RestoreError");
    }

    /// A machine failed to start for good.
    pub fn fail_machine(&self, id: &str) {
        self.change(id, |machine| {
            machine.state = "Error";
            machine.host = None;
        });
    }

    /// The server sees a machine again.
    pub fn find_machine_again(&self, id: &str) {
        self.change(id, |machine| machine.state = "Running");
    }

    /// Somebody expunges a machine: nothing of it is left.
    pub fn expunge_machine(&self, id: &str) {
        let mut state = self.state();
        if let Some(number) = state.machine_ids.get(id).copied() {
            state.remove(number);
        }
    }

    /// Everything that was destroyed goes for good, due or not.
    pub fn expunge_all_destroyed(&self) {
        let mut state = self.state();
        let gone: Vec<u64> = state
            .machines
            .values()
            .filter(|machine| matches!(machine.state, "Destroyed" | "Expunging"))
            .map(|machine| machine.number)
            .collect();
        for number in gone {
            state.remove(number);
        }
    }

    /// Machines, volumes, groups and projects go, with the networks of projects.
    pub fn clear(&self) {
        let mut state = self.state();
        state.machines.clear();
        state.volumes.clear();
        state.groups.clear();
        state.projects.clear();
        state.networks.retain(|network| network["projectid"].is_null());
    }

    /// Somebody protects a machine, or no longer.
    pub fn protect_machine(&self, id: &str, protected: bool) {
        self.change(id, |machine| machine.protected = protected);
    }

    /// A machine gets a lease that ends then.
    pub fn lease_machine(&self, id: &str, ends: Timestamp) {
        self.change(id, |machine| machine.lease_ends = Some(ends));
    }

    /// Somebody gives a machine another offering.
    pub fn rescale_machine(&self, id: &str, offering: &str) {
        self.change(id, |machine| machine.offering = offering.to_owned());
    }

    /// Somebody makes the root disk of a machine this large.
    pub fn resize_root_disk(&self, id: &str, gb: i64) {
        let mut state = self.state();
        let number = state.machine_ids.get(id).copied();
        for volume in
            state.volumes.iter_mut().filter(|v| v.root && v.machine.is_some() && v.machine == number)
        {
            volume.size_bytes = gb << 30;
        }
    }

    /// Somebody gives the root disk of a machine another disk offering, by id.
    pub fn move_root_disk(&self, id: &str, offering: &str) {
        let mut state = self.state();
        let number = state.machine_ids.get(id).copied();
        for volume in
            state.volumes.iter_mut().filter(|v| v.root && v.machine.is_some() && v.machine == number)
        {
            offering.clone_into(&mut volume.offering);
        }
    }

    /// Somebody takes the last interface away.
    pub fn unplug_machine(&self, id: &str) {
        self.change(id, |machine| {
            machine.nics.pop();
        });
    }

    /// Somebody gives a machine another key pair.
    pub fn give_key_pair(&self, id: &str, name: &str) {
        self.change(id, |machine| machine.key_pairs = vec![name.to_owned()]);
    }

    /// Somebody puts a machine into a security group, by id.
    pub fn put_into_security_group(&self, id: &str, group: &str) {
        self.change(id, |machine| machine.security_groups.push(group.to_owned()));
    }

    /// An administrator gives a machine to another account, or to a project of the account that has it.
    pub fn assign_machine(&self, id: &str, account: Option<&str>, project: Option<&str>) {
        let found = account.and_then(|name| self.state().accounts.iter().position(|a| a.name == name));
        self.change(id, |machine| {
            machine.owner.account = found.unwrap_or(machine.owner.account);
            machine.owner.project = project.map(str::to_owned);
        });
    }

    /// Somebody sets or removes a tag.
    pub fn tag_machine(&self, id: &str, key: &str, value: Option<&str>) {
        self.change(id, |machine| {
            machine.tags.retain(|(k, _)| k != key);
            if let Some(value) = value {
                machine.tags.push((key.to_owned(), value.to_owned()));
            }
        });
    }

    /// A machine of the tenant that Karpenter knows nothing of.
    pub fn add_machine(&self, name: &str, tags: &[(&str, &str)]) -> String {
        let tenant = self.account(Role::User).map(|account| account.name).unwrap_or_default();
        self.add_machine_of(&tenant, name, tags)
    }

    /// The same of the account of this name.
    pub fn add_machine_of(&self, account: &str, name: &str, tags: &[(&str, &str)]) -> String {
        let now = self.now();
        let mut state = self.state();
        let caller = state.accounts.iter().position(|other| other.name == account).unwrap_or(0);
        let number = state.next_machine;
        state.next_machine += 1;
        let id = state.uuid();
        let text = |list: &[Value], key: &str| {
            list.first().and_then(|entry| entry[key].as_str()).unwrap_or_default().to_owned()
        };
        let machine = Machine {
            number,
            id: id.clone(),
            name: name.to_owned(),
            display_name: name.to_owned(),
            owner: Owner { account: caller, project: None },
            created: now,
            updated: Some(now),
            state: "Running",
            zone: text(&state.zones, "id"),
            template: text(&state.templates, "id"),
            offering: text(&state.offerings, "id"),
            cpu: 1,
            cpu_speed: 500,
            memory: 512,
            gpus: 0,
            nics: Vec::new(),
            host: None,
            stored: true,
            groups: Vec::new(),
            security_groups: Vec::new(),
            tags: tags.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            details: BTreeMap::new(),
            disk_offering: None,
            user_data: None,
            key_pairs: Vec::new(),
            group: None,
            protected: false,
            lease_ends: None,
            jobs: std::collections::VecDeque::new(),
        };
        state.machine_ids.insert(id.clone(), number);
        state.machines.insert(number, machine);
        id
    }

    /// Changes an entry of the catalogue (`zone`, `host`, `serviceoffering`, `template`, `network`, …), by name.
    pub fn edit(&self, kind: &str, name: &str, change: impl Fn(&mut Value)) {
        let mut state = self.state();
        for entry in state.catalogue(kind).iter_mut().filter(|entry| entry["name"] == name) {
            change(entry);
        }
    }

    /// Adds a copy of a catalogue's first entry with another id and these fields; gives back the id. A host that is given other megahertz
    /// than that one has as many cores as make them.
    pub fn add(&self, kind: &str, fields: Value) -> String {
        let mut state = self.state();
        let id = fields["id"].as_str().map_or_else(|| state.uuid(), str::to_owned);
        let mut entry = state.catalogue(kind).last().cloned().unwrap_or_else(|| json!({}));
        if let Some(entry) = entry.as_object_mut() {
            for key in ["serviceofferingdetails", "hosttags", "gpucount"] {
                entry.remove(key);
            }
        }
        entry["id"] = id.clone().into();
        if kind == "serviceoffering" {
            entry["iscustomized"] = false.into();
        }
        for (key, value) in fields.as_object().into_iter().flatten() {
            entry[key] = value.clone();
        }
        if kind == "host" && fields["cpunumber"].is_null() {
            let cores = number(&entry["cpuwithoverprovisioning"]) / number(&entry["cpuspeed"]).max(1);
            entry["cpunumber"] = cores.into();
        }
        state.catalogue(kind).push(entry);
        id
    }

    /// Somebody deletes an entry of the catalogue, by name.
    pub fn remove(&self, kind: &str, name: &str) {
        let mut state = self.state();
        let gone: Vec<Value> = state.catalogue(kind).extract_if(.., |entry| entry["name"] == name).collect();
        state.removed.extend(gone.iter().filter_map(|entry| entry["id"].as_str().map(str::to_owned)));
    }

    /// Somebody gives a machine another name.
    pub fn rename_machine(&self, id: &str, name: &str) {
        self.change(id, |machine| {
            name.clone_into(&mut machine.name);
            name.clone_into(&mut machine.display_name);
        });
    }

    /// The id of a catalogue's entry.
    pub fn id_of(&self, kind: &str, name: &str) -> Option<String> {
        let mut state = self.state();
        let entry = state.catalogue(kind).iter().find(|entry| entry["name"] == name)?;
        entry["id"].as_str().map(str::to_owned)
    }

    /// What the quota plug-in, which there is from now on, takes per month for a running machine and a gigabyte of volume.
    pub fn set_tariffs(&self, machine: f64, gigabyte: f64) {
        let mut state = self.state();
        state.settings.quota_plugin = true;
        for tariff in &mut state.tariffs {
            match tariff["usageType"].as_i64() {
                Some(1) => tariff["tariffValue"] = machine.into(),
                Some(6) => tariff["tariffValue"] = gigabyte.into(),
                _ => {}
            }
        }
    }

    /// An administrator dedicates a host, by name, to the ordinary tenant; gives back the id of the affinity group that leads there.
    pub fn dedicate_host(&self, name: &str) -> String {
        let mut state = self.state();
        let id = state.uuid();
        let tenant = state.accounts.iter().position(|account| account.role == Role::User).unwrap_or(0);
        let owner = Owner { account: tenant, project: None };
        let kind = "ExplicitDedication".to_owned();
        state.groups.push(Group {
            id: id.clone(),
            name: format!("dedicated-{name}"),
            kind,
            description: None,
            owner,
        });
        for host in state.hosts.iter_mut().filter(|host| host["name"] == name) {
            host["affinitygroupid"] = id.clone().into();
        }
        id
    }

    /// An administrator adds a tariff to the quota plug-in.
    pub fn add_tariff(&self, tariff: Value) {
        self.state().tariffs.push(tariff);
    }

    /// The ordinary tenant registers user data; gives back its id.
    pub fn add_user_data(&self, name: &str) -> String {
        let mut state = self.state();
        let id = state.uuid();
        let owner = state.accounts.iter().position(|account| account.role == Role::User).unwrap_or(0);
        let mut registered = json!({"id": id, "name": name, "userdata": "", "hasannotations": false});
        for (key, value) in state.owned(&state.owner_of(owner)) {
            registered[key] = value;
        }
        state.user_data.push(registered);
        id
    }

    /// The ordinary tenant registers a key pair, in a project if one is named.
    pub fn add_key_pair(&self, name: &str, project: Option<&str>) {
        let mut state = self.state();
        let account = state.accounts.iter().position(|account| account.role == Role::User).unwrap_or(0);
        let owner = Owner { account, project: project.map(str::to_owned) };
        let mut pair = json!({"name": name});
        for (key, value) in state.owned(&owner) {
            pair[key] = value;
        }
        state.key_pairs.push(pair);
    }

    /// The version the server says it has.
    pub fn set_version(&self, version: &str) {
        self.state().capability["cloudstackversion"] = version.into();
    }

    /// Somebody changes the state of a host, such as to `PrepareForMaintenance`.
    pub fn set_host_state(&self, id: &str, resource_state: &str) {
        for host in self.state().hosts.iter_mut().filter(|host| host["id"] == id) {
            host["resourcestate"] = resource_state.into();
        }
    }

    /// Hosts that fail to start anything.
    pub fn break_hosts(&self, broken: bool) {
        let mut state = self.state();
        let ids: Vec<String> =
            state.hosts.iter().filter_map(|host| host["id"].as_str().map(str::to_owned)).collect();
        state.broken_hosts = if broken { ids.into_iter().collect() } else { Default::default() };
    }

    /// The router of a network, by id, fails from now on, or works again.
    pub fn break_router(&self, network: &str, how: Option<Router>) {
        let mut state = self.state();
        match how {
            Some(how) => state.broken_routers.insert(network.to_owned(), how),
            None => state.broken_routers.remove(network),
        };
    }

    /// Volumes that are neither root disks nor destroyed, with the machine they are attached to.
    pub fn data_disks(&self) -> Vec<(String, Option<String>)> {
        let state = self.state();
        let disks = state.volumes.iter().filter(|volume| !volume.root && volume.destroyed.is_none());
        disks
            .map(|disk| {
                let machine = disk.machine.and_then(|number| state.machines.get(&number));
                (disk.id.clone(), machine.map(|machine| machine.id.clone()))
            })
            .collect()
    }

    /// The names of the volumes [`Self::data_disks`] names.
    pub fn names_of_disks(&self) -> BTreeMap<String, String> {
        let state = self.state();
        let disks = state.volumes.iter().filter(|volume| !volume.root && volume.destroyed.is_none());
        disks.map(|disk| (disk.id.clone(), disk.name.clone())).collect()
    }

    /// The tags of the volumes [`Self::data_disks`] names.
    pub fn tags_of_disks(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        let state = self.state();
        let disks = state.volumes.iter().filter(|volume| !volume.root && volume.destroyed.is_none());
        disks.map(|disk| (disk.id.clone(), disk.tags.iter().cloned().collect())).collect()
    }

    /// Somebody sets tags of a volume.
    pub fn tag_disk(&self, id: &str, tags: &[(&str, &str)]) {
        for volume in self.state().volumes.iter_mut().filter(|volume| volume.id == id) {
            volume.tags.extend(tags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        }
    }

    /// Somebody, such as a storage driver, makes a volume and attaches it to a machine; gives back its id.
    pub fn attach_disk(&self, machine: &str, name: &str) -> Option<String> {
        self.attach_disk_as(machine, name, 9)
    }

    /// The same, as this device.
    pub fn attach_disk_as(&self, machine: &str, name: &str, device: i64) -> Option<String> {
        let now = self.now();
        let mut state = self.state();
        let (number, owner, zone) = {
            let machine = state.machine(machine)?;
            (machine.number, machine.owner.clone(), machine.zone.clone())
        };
        let id = state.uuid();
        let offering = state.disk_offerings.first().and_then(|offering| offering["id"].as_str());
        let disk = Volume {
            id: id.clone(),
            name: name.to_owned(),
            root: false,
            owner,
            zone,
            created: now,
            machine: Some(number),
            device,
            size_bytes: 8 << 30,
            offering: offering.unwrap_or_default().to_owned(),
            pool: None,
            destroyed: None,
            tags: Vec::new(),
        };
        state.volumes.push(disk);
        Some(id)
    }

    /// Names of the affinity groups.
    pub fn affinity_groups(&self) -> Vec<String> {
        self.state().groups.iter().map(|group| group.name.clone()).collect()
    }

    /// When the next thing happens by itself.
    pub fn next_event(&self) -> Option<Timestamp> {
        let state = self.state();
        let (at, _) = state.events.keys().next()?;
        at.checked_sub(state.ahead).ok()
    }
}

impl State {
    fn catalogue(&mut self, kind: &str) -> &mut Vec<Value> {
        match kind {
            "zone" => &mut self.zones,
            "host" => &mut self.hosts,
            "serviceoffering" => &mut self.offerings,
            "diskoffering" => &mut self.disk_offerings,
            "template" => &mut self.templates,
            "securitygroup" => &mut self.security_groups,
            _ => &mut self.networks,
        }
    }
}
