//! Making a machine: what is checked while the caller waits, and the row that is then written.
//!
//! The checks come first, the row later: two requests of one name that arrive together both pass, as they do on a real server.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base64::Engine as _;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::account::{Account, Role};
use super::placement::number;
use super::state::{Machine, Nic, Owner, State, Volume, Work};
use super::wire::{Call, Refusal};

/// A deployment that passed the checks.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    machine: Machine,
    disks: Vec<(String, i64, i64)>,
    root_bytes: i64,
    root_offering: String,
    start: bool,
    custom_job: Option<String>,
    job: JobOf,
}

/// Who chooses the id of the job that makes a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobOf {
    Caller,
    Server,
    /// Another request has the job it was to have.
    Nobody,
}

impl Prepared {
    pub(crate) fn under(self, job: JobOf) -> Self {
        Self { job, ..self }
    }
}

impl State {
    /// Everything the server checks before it writes anything down.
    pub(crate) fn prepare(
        &mut self,
        caller: usize,
        call: &Call,
        now: Timestamp,
    ) -> Result<Prepared, Refusal> {
        let account = self.accounts.get(caller).ok_or_else(Refusal::unauthorized)?.clone();
        let get = |name: &str| call.get(name).unwrap_or_default().to_owned();
        let owner = self.owner_named(caller, call)?;
        if self.accounts.get(owner.account).is_some_and(|owner| owner.disabled) {
            let text = format!("The owner of vm to deploy is disabled: {}", self.described(owner.account));
            return Err(Refusal::denied(text));
        }
        let number_of_machine = self.next_machine;
        let name = call.get("name").map_or_else(|| format!("VM-{number_of_machine}"), str::to_owned);
        if !valid_name(&name) {
            return Err(Refusal::new(
                431,
                9999,
                "Unable to execute API command deployvirtualmachine due to invalid value. Invalid value provided for API arg: name - it can contain ASCII letters 'a' through 'z', the digits '0' through '9', and the hyphen ('-'), must be between 1 and 63 characters long, and can't start or end with \"-\" and can't start with digit",
            ));
        }
        self.check_custom_id(&account, call)?;
        self.check_user_data(call)?;
        let zone_id = get("zoneid");
        let zone = Self::by_id(&self.zones, &zone_id).cloned().unwrap_or_default();
        let offering = Self::by_id(&self.offerings, &get("serviceofferingid")).cloned().unwrap_or_default();
        let zone_text = || {
            let place = self.zones.iter().position(|other| other["id"] == zone["id"]).unwrap_or(0) + 1;
            format!("Zone {{\"id\": \"{place}\", \"name\": {}, \"uuid\": {}}}", zone["name"], zone["id"])
        };
        if zone["allocationstate"] == "Disabled" && account.role != Role::Root {
            let text = format!("Cannot perform this operation, Zone is currently disabled: {}", zone_text());
            return Err(Refusal::denied(text));
        }
        if offering.is_null() || offering["state"] == "Inactive" {
            let text = format!("Service offering is inactive: [{}].", get("serviceofferingid"));
            return Err(Refusal::parameter(text));
        }
        if Self::by_id(&self.templates, &get("templateid")).is_none() {
            return Err(Refusal::parameter("Unable to use template 204"));
        }
        if !self.may_launch(&owner, &get("templateid")) {
            let text = format!(
                "Account {} does not have permission to launch instances from template {}",
                self.described(owner.account),
                get("templateid")
            );
            return Err(Refusal::denied(text));
        }
        let of_template = Self::by_id(&self.templates, &get("templateid"))
            .and_then(|template| template["hypervisor"].as_str())
            .filter(|hypervisor| *hypervisor != "None");
        let another = |passed: &str| of_template.is_some_and(|own| !own.eq_ignore_ascii_case(passed));
        if call.get("hypervisor").is_some_and(another) {
            let text = "Hypervisor passed to the deployVm call, is different from the hypervisor type of the Template";
            return Err(Refusal::parameter(text));
        }
        let zones_of_offering = offering["zoneid"].as_str().unwrap_or_default();
        let sold_there =
            zones_of_offering.is_empty() || zones_of_offering.split(',').any(|zone| zone == zone_id);
        if !sold_there || !self.is_for(&offering, &owner) {
            let text = format!(
                "There's no way to confirm {} has access to Service offering {{\"id\":21,\"name\":{},\"uuid\":{}}}.",
                self.described(caller),
                offering["name"],
                offering["id"]
            );
            return Err(Refusal::denied(text));
        }
        let (cpu, cpu_speed, memory, mut details) = size(&offering, call)?;
        let (networks, addresses): (Vec<_>, Vec<_>) = self.networks_of(call)?.into_iter().unzip();
        if zone["networktype"] == "Basic" && !networks.is_empty() {
            return Err(Refusal::parameter("Can't specify network Ids in Basic zone"));
        }
        for id in &networks {
            let Some(network) = Self::by_id(&self.networks, id).cloned() else {
                return Err(Refusal::parameter("Unable to find network by id 204"));
            };
            if network["zoneid"] != zone["id"] {
                let text = format!(
                    "Network Network {{\"id\": 204, \"name\": {}, \"uuid\": {}, \"networkofferingid\": 10}} doesn't belong to zone {}",
                    network["name"],
                    network["id"],
                    zone_text()
                );
                return Err(Refusal::parameter(text));
            }
            if !self.may_join(&owner, &network) {
                let text = format!("Unable to use network with id= {id}, permission denied");
                return Err(Refusal::denied(text));
            }
        }
        self.check_groups(caller, &owner, call)?;
        let has_groups = |network: &Value| {
            let mut services = network["service"].as_array().into_iter().flatten();
            network["zoneid"] == zone["id"] && services.any(|service| service["name"] == "SecurityGroup")
        };
        if call.get("securitygroupids").is_some_and(|ids| !ids.is_empty())
            && zone["securitygroupsenabled"] != true
            && !self.networks.iter().any(has_groups)
        {
            let text = "Can't create vm with security groups; security group feature is not enabled per zone";
            return Err(Refusal::parameter(text));
        }
        if let Some(taken) = networks.iter().find(|id| self.name_taken(&name, id)) {
            let network = Self::by_id(&self.networks, taken).cloned().unwrap_or_default();
            let text = format!(
                "The vm with hostName {name} already exists in the network domain: {}; network={}",
                network["networkdomain"].as_str().unwrap_or_default(),
                network["name"].as_str().unwrap_or_default()
            );
            return Err(Refusal::parameter(text));
        }
        let key_pairs = self.key_pairs_of(caller, call)?;
        let disks = self.new_disks(call)?;
        let gpus = number(&offering["gpucount"]);
        let template = Self::by_id(&self.templates, &get("templateid")).cloned().unwrap_or_default();
        let root_gb = call.get("rootdisksize").and_then(|size| size.parse().ok());
        // Servers before 4.17 do not know the parameter, and ignore it.
        let root_override =
            call.get("overridediskofferingid").filter(|_| !self.is_older_than(&[4, 17])).map(str::to_owned);
        let root_offering = root_override.as_ref().and_then(|id| Self::by_id(&self.disk_offerings, id));
        let offered_gb = root_offering.map(|offering| number(&offering["disksize"])).filter(|gb| *gb > 0);
        let root_bytes = root_gb.or(offered_gb).map_or_else(|| number(&template["size"]), |gb: i64| gb << 30);
        if let Some(gb) = root_gb {
            let least = number(&template["size"]);
            if gb << 30 < least {
                let text = format!(
                    "Unsupported: rootdisksize override ({gb} GB) is smaller than template size {:.2} GB",
                    least as f64 / f64::from(1 << 30)
                );
                return Err(Refusal::parameter(text));
            }
            details.insert("rootdisksize".to_owned(), gb.to_string());
        }
        let volume_count = i64::try_from(disks.len()).unwrap_or(0) + 1;
        let disk_gb: i64 = disks.iter().map(|(_, size, _)| size >> 30).sum();
        self.check_limits(
            &owner,
            &[
                ("user_vm", 1),
                ("cpu", cpu),
                ("memory", memory),
                ("gpu", gpus),
                ("volume", volume_count),
                ("primary_storage", disk_gb + (root_bytes >> 30)),
            ],
        )?;
        let start = call.get("startvm") != Some("false");
        details.insert("deployvm".to_owned(), "true".to_owned());
        Ok(Prepared {
            machine: Machine {
                number: number_of_machine,
                id: call.get("customid").unwrap_or_default().to_owned(),
                display_name: call.get("displayname").unwrap_or(&name).to_owned(),
                name,
                owner,
                created: now,
                updated: None,
                state: "Stopped",
                zone: zone_id,
                template: get("templateid"),
                offering: get("serviceofferingid"),
                cpu,
                cpu_speed,
                memory,
                gpus,
                nics: networks
                    .into_iter()
                    .zip(addresses)
                    .map(|(network, address)| Nic {
                        id: String::new(),
                        network,
                        address,
                        mac: String::new(),
                        plugged: false,
                    })
                    .collect(),
                host: None,
                stored: false,
                groups: call.list("affinitygroupids"),
                security_groups: call.list("securitygroupids"),
                tags: Vec::new(),
                details,
                disk_offering: disks.first().map(|(offering, _, _)| offering.clone()),
                user_data: call.get("userdata").map(str::to_owned),
                key_pairs,
                group: call.get("group").map(str::to_owned),
                protected: false,
                lease_ends: None,
                jobs: VecDeque::new(),
            },
            disks,
            root_bytes,
            root_offering: root_override.unwrap_or_else(|| get("serviceofferingid")),
            start,
            custom_job: call.get("customjobid").map(str::to_owned),
            job: JobOf::Caller,
        })
    }

    /// Writes the row down and accepts the job. From here on the machine exists, whatever becomes of it.
    pub(crate) fn commit(
        &mut self,
        caller: usize,
        prepared: Prepared,
        now: Timestamp,
    ) -> Result<Value, Refusal> {
        let Prepared { mut machine, disks, root_bytes, root_offering, start, custom_job, job } = prepared;
        if !self.settings.names_race
            && let Some(network) =
                machine.nics.iter().find(|nic| self.name_taken(&machine.name, &nic.network))
        {
            let text = format!(
                "The vm with hostName {} already exists in the network domain: {}; network={}",
                machine.name, "cs4sandbox.simulator", network.network
            );
            return Err(Refusal::parameter(text));
        }
        machine.number = self.next_machine;
        machine.created = now;
        if machine.id.is_empty() {
            machine.id = self.uuid();
        }
        for i in 0..machine.nics.len() {
            let network = machine.nics[i].network.clone();
            let address = self.address(&network, &machine.nics[i].address);
            let address = address.ok_or_else(|| self.no_address(caller, &network))?;
            let id = self.uuid();
            let standing = Self::by_id(&self.networks, &network).is_some_and(|n| n["state"] == "Implemented");
            let nic = &mut machine.nics[i];
            nic.mac = format!("02:01:00:cc:{:02x}:{:02x}", (machine.number >> 8) & 255, machine.number & 255);
            nic.id = id;
            nic.address = address;
            nic.plugged = standing;
        }
        self.next_machine += 1;
        let (id, number) = (machine.id.clone(), machine.number);
        let root = Volume {
            id: self.uuid(),
            name: format!("ROOT-{number}"),
            root: true,
            owner: machine.owner.clone(),
            zone: machine.zone.clone(),
            created: now,
            machine: Some(number),
            device: 0,
            size_bytes: root_bytes,
            offering: root_offering,
            pool: None,
            destroyed: None,
            tags: Vec::new(),
        };
        self.volumes.push(root.clone());
        let several = disks.len() > 1;
        for (i, (offering, size_bytes, device)) in disks.into_iter().enumerate() {
            let name = if several { format!("DATA-{number}-{}", i + 1) } else { format!("DATA-{number}") };
            let id = self.uuid();
            self.volumes.push(Volume { id, name, root: false, device, size_bytes, offering, ..root.clone() });
        }
        self.machine_ids.insert(id.clone(), number);
        self.machines.insert(number, machine);
        if job == JobOf::Nobody {
            return Err(Refusal::hidden(9999));
        }
        let custom_job = custom_job.filter(|_| job == JobOf::Caller);
        let work = Work::Start { deploy: true, start, placed: false };
        let instance = Some(("VirtualMachine", id.clone()));
        let root = self.accounts.get(caller).is_some_and(|account| account.role == Role::Root);
        let class = if root { "admin.vm.DeployVMCmdByAdmin" } else { "user.vm.DeployVMCmd" };
        let job = self.accept(caller, class, instance, work, custom_job.as_deref(), now)?;
        Ok(json!({"id": id, "jobid": job}))
    }

    /// An id of the caller's own is for root, and for one machine.
    fn check_custom_id(&self, account: &Account, call: &Call) -> Result<(), Refusal> {
        let Some(id) = call.get("customid") else { return Ok(()) };
        if account.role != Role::Root {
            let text = "Please check your permissions, you are not allowed to create/update custom id";
            return Err(Refusal::denied(text));
        }
        if !is_uuid(id) {
            return Err(Refusal::parameter(format!("UUID: {id} doesn't follow the UUID format")));
        }
        if self.machine_ids.contains_key(id) {
            let text = format!("UUID: {id} already exists so can't create/update with custom id");
            return Err(Refusal::parameter(text));
        }
        Ok(())
    }

    /// The networks of a new machine, each with the address that is wanted in it, if any is.
    fn networks_of(&self, call: &Call) -> Result<Vec<(String, String)>, Refusal> {
        let plain = call.list("networkids");
        let with_addresses = call.map("iptonetworklist")?;
        if with_addresses.is_empty() {
            return Ok(plain.into_iter().map(|network| (network, String::new())).collect());
        }
        if !plain.is_empty() || call.get("ipaddress").is_some() || call.get("ip6address").is_some() {
            let text = "ipToNetworkMap can't be specified along with networkIds or ipAddress";
            return Err(Refusal::parameter(text));
        }
        let wanted = with_addresses.into_iter().map(|mut entry| {
            let network = entry.remove("networkid").unwrap_or_default();
            if Self::by_id(&self.networks, &network).is_none() {
                let text = format!("Unable to translate and find entity with networkId: {network}");
                return Err(Refusal::parameter(text));
            }
            Ok((network, entry.remove("ip").unwrap_or_default()))
        });
        wanted.collect()
    }

    /// Whether a machine of this owner may be made of a template: of one that is public, or the account's own.
    fn may_launch(&self, owner: &Owner, template: &str) -> bool {
        let template = Self::by_id(&self.templates, template).cloned().unwrap_or_default();
        template["ispublic"] != false || self.is_root(owner) || self.owns(owner, &template)
    }

    /// Whether a machine of this owner may have an interface in a network: in one of the owner, or one that is for all of a domain.
    fn may_join(&self, owner: &Owner, network: &Value) -> bool {
        network["acltype"] == "Domain" || self.is_root(owner) || self.owns(owner, network)
    }

    /// Only root is told why.
    fn no_address(&self, caller: usize, network: &str) -> Refusal {
        match self.is_root(&self.owner_of(caller)) {
            true => Refusal::new(530, 0, format!("Unable to acquire Guest IP address for network {network}")),
            false => Refusal::hidden(0),
        }
    }

    fn is_root(&self, owner: &Owner) -> bool {
        let account = self.accounts.get(owner.account);
        owner.project.is_none() && account.is_some_and(|account| account.role == Role::Root)
    }

    /// Servers since 4.17 take several key pairs, those before it one and nothing of several.
    fn key_pairs_of(&self, caller: usize, call: &Call) -> Result<Vec<String>, Refusal> {
        let one = call.get("keypair").map(str::to_owned);
        let several = call.list("keypairs").into_iter().filter(|_| !self.is_older_than(&[4, 17]));
        let wanted: Vec<String> = one.into_iter().chain(several).collect();
        let is_there = |name: &String| {
            let mut there = self.key_pairs.iter().filter(|pair| self.registered(caller, pair, call));
            there.any(|pair| pair["name"] == name.as_str())
        };
        match wanted.iter().all(is_there) {
            true => Ok(wanted),
            false => Err(Refusal::parameter("Not all specified keypairs exist")),
        }
    }

    /// Affinity groups are the machine's owner's; those of dedicated hosts are for whoever may see them.
    fn check_groups(&self, caller: usize, owner: &Owner, call: &Call) -> Result<(), Refusal> {
        let wanted = call.list("affinitygroupids");
        for group in self.groups.iter().filter(|group| wanted.contains(&group.id)) {
            let dedicated = group.kind == "ExplicitDedication";
            if !self.may(caller, &group.owner) || !(dedicated || group.owner.is(owner)) {
                return Err(Refusal::of_others());
            }
        }
        let wanted = call.list("securitygroupids");
        let mut groups = self.security_groups.iter();
        let id = |group: &Value| group["id"].as_str().unwrap_or_default().to_owned();
        match groups
            .any(|group| wanted.contains(&id(group)) && !self.is_root(owner) && !self.owns(owner, group))
        {
            true => Err(Refusal::of_others()),
            false => Ok(()),
        }
    }

    fn name_taken(&self, name: &str, network: &str) -> bool {
        self.machines
            .values()
            .any(|machine| machine.name == name && machine.nics.iter().any(|nic| nic.network == network))
    }

    fn check_user_data(&self, call: &Call) -> Result<(), Refusal> {
        let Some(user_data) = call.get("userdata") else { return Ok(()) };
        if !call.by_post && user_data.len() > 4096 {
            return Err(Refusal::parameter("User data is too long for http GET request"));
        }
        if user_data.len() > self.settings.user_data_max {
            let text =
                format!("User data has exceeded configurable max length: {}", self.settings.user_data_max);
            return Err(Refusal::parameter(text));
        }
        if base64::engine::general_purpose::STANDARD.decode(user_data).is_err() {
            return Err(Refusal::parameter("User data is not base64 encoded."));
        }
        Ok(())
    }

    /// Servers before 4.21 do not know the parameter, and what a server does not know it ignores.
    fn makes_several_disks(&self) -> bool {
        !self.is_older_than(&[4, 21])
    }

    /// Whether the server says that it is older than this version.
    pub(crate) fn is_older_than(&self, other: &[u32]) -> bool {
        let version = self.capability["cloudstackversion"].as_str().unwrap_or_default();
        let numbers: Vec<u32> = version.split('.').map_while(|part| part.parse().ok()).collect();
        !numbers.is_empty() && numbers.as_slice() < other
    }

    /// Offering, bytes and device of every data disk.
    pub(crate) fn new_disks(&self, call: &Call) -> Result<Vec<(String, i64, i64)>, Refusal> {
        let mut wanted: Vec<(String, Option<i64>, i64)> = Vec::new();
        if let Some(id) = call.get("diskofferingid") {
            wanted.push((id.to_owned(), call.get("size").and_then(|size| size.parse().ok()), 1));
        }
        let several = if self.makes_several_disks() { call.map("datadisksdetails")? } else { Vec::new() };
        for entry in several {
            let offering = entry.get("diskofferingid").cloned().unwrap_or_default();
            let Some(device) = entry.get("deviceid").and_then(|id| id.parse().ok()) else {
                return Err(Refusal::parameter("Device ID is required for data disk details"));
            };
            wanted.push((offering, entry.get("size").and_then(|size| size.parse().ok()), device));
        }
        wanted
            .into_iter()
            .map(|(id, size, device)| {
                let offering = Self::by_id(&self.disk_offerings, &id)
                    .ok_or_else(|| Refusal::parameter("Unable to find disk offering with specified id"))?;
                let fixed = offering["disksize"].as_i64().filter(|size| *size > 0);
                let gb = if offering["iscustomized"] == true { size } else { fixed };
                let gb = gb.ok_or_else(|| {
                    Refusal::parameter("Invalid size for custom disk offering; specify a size in GB")
                })?;
                Ok((id, gb << 30, device))
            })
            .collect()
    }

    /// The next address of a network that nobody has.
    pub(crate) fn free_address(&self, network: &str) -> Option<String> {
        self.address(network, "")
    }

    /// The address of a network that is wanted, if nobody has it; any, if none is named.
    fn address(&self, network: &str, wanted: &str) -> Option<String> {
        let network_value = Self::by_id(&self.networks, network)?;
        let (base, prefix) = network_value["cidr"].as_str()?.split_once('/')?;
        let base = u32::from(base.parse::<std::net::Ipv4Addr>().ok()?);
        let size = 1u32.checked_shl(32 - prefix.parse::<u32>().ok()?)?;
        let nics = self.machines.values().flat_map(|machine| &machine.nics);
        let taken: BTreeSet<&str> =
            nics.filter(|nic| nic.network == network).map(|nic| nic.address.as_str()).collect();
        // Network, gateway and broadcast are nobody's.
        let mut all = (2..size - 1).map(|offset| std::net::Ipv4Addr::from(base + offset).to_string());
        all.find(|address| {
            !taken.contains(address.as_str()) && (wanted.is_empty() || address.as_str() == wanted)
        })
    }
}

/// Whether a text is an id as the server writes them.
fn is_uuid(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let is_hex = |part: &&str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12]) && parts.iter().all(is_hex)
}

/// Letters, digits and hyphens; no digit first, no hyphen at either end.
fn valid_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 63
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        && !name.starts_with(|c: char| c.is_ascii_digit() || c == '-')
        && !name.ends_with('-')
}

/// Cores, megahertz, mebibytes, and the details that say so.
pub(crate) fn size(
    offering: &Value,
    call: &Call,
) -> Result<(i64, i64, i64, BTreeMap<String, String>), Refusal> {
    let details: BTreeMap<String, String> = call
        .map("details")?
        .into_iter()
        .flatten()
        .filter(|(key, _)| key != "key" && key != "value")
        .collect();
    let given = |key: &str| details.get(key).and_then(|value| value.parse::<i64>().ok());
    if offering["iscustomized"] != true {
        return Ok((
            number(&offering["cpunumber"]),
            number(&offering["cpuspeed"]),
            number(&offering["memory"]),
            details,
        ));
    }
    let speed = offering["cpuspeed"].as_i64().or_else(|| given("cpuSpeed"));
    let (Some(cpu), Some(memory), Some(speed)) = (given("cpuNumber"), given("memory"), speed) else {
        let text =
            "Need to specify custom parameter values cpu, cpu speed and memory when using custom offering";
        return Err(Refusal::parameter(text));
    };
    let bounds = &offering["serviceofferingdetails"];
    let bound =
        |key: &str, otherwise: i64| if bounds[key].is_null() { otherwise } else { number(&bounds[key]) };
    for (what, value, least, most) in [
        ("CPU cores", cpu, bound("mincpunumber", 1), bound("maxcpunumber", i64::from(i32::MAX))),
        ("memory", memory, bound("minmemory", 32), bound("maxmemory", i64::from(i32::MAX))),
    ] {
        if value < least || value > most {
            let text = format!("Invalid {what} value, specify a value between {least} and {most}");
            return Err(Refusal::parameter(text));
        }
    }
    Ok((cpu, speed, memory, details))
}
