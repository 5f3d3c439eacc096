//! Lists: what there is, filtered, hidden from those who may not see it, cut into pages.

use serde_json::{Map, Value, json};

use super::account::Role;
use super::placement::number;
use super::state::{Machine, Owner, State};
use super::wire::{Call, Refusal};

/// What only root sees, per kind.
const ROOT_ONLY: [(&str, &[&str]); 3] = [
    ("zone", &["dns1", "internaldns1", "guestcidraddress"]),
    ("template", &["status", "url"]),
    ("network", &["details", "displaynetwork", "keepmacaddressonpublicnic"]),
];

fn hidden(kind: &str, mut value: Value, role: Role) -> Value {
    if role != Role::Root
        && let Some(fields) = value.as_object_mut()
    {
        for key in ROOT_ONLY.iter().filter(|(of, _)| *of == kind).flat_map(|(_, keys)| *keys) {
            fields.remove(*key);
        }
        for download in fields.get_mut("downloaddetails").and_then(Value::as_array_mut).into_iter().flatten()
        {
            if let Some(download) = download.as_object_mut() {
                download.remove("datastoreRole");
                download.remove("datastoreId");
            }
        }
    }
    value
}

fn contains_ignoring_case(value: &Value, part: &str) -> bool {
    value.as_str().is_some_and(|text| text.to_lowercase().contains(&part.to_lowercase()))
}

/// Whether an entry of the catalogue is what these parameters ask for.
fn selected(value: &Value, call: &Call) -> bool {
    let equal = |name: &str| call.get(name).is_none_or(|wanted| value[name] == wanted);
    let listed = |name: &str, field: &str| {
        let wanted = call.list(name);
        wanted.is_empty() || wanted.iter().any(|wanted| value[field] == wanted.as_str())
    };
    equal("id")
        && equal("name")
        && listed("ids", "id")
        && call.get("keyword").is_none_or(|word| contains_ignoring_case(&value["name"], word))
}

/// Whether an offering is sold in the zone that is asked for.
fn in_zone(offering: &Value, call: &Call) -> bool {
    let zones = offering["zoneid"].as_str().unwrap_or_default();
    call.get("zoneid").is_none_or(|zone| zones.is_empty() || zones.split(',').any(|z| z == zone))
}

fn tagged(value: &Value, wanted: &[(String, String)]) -> bool {
    wanted.is_empty()
        || value["tags"].as_array().is_some_and(|tags| {
            tags.iter()
                .any(|tag| wanted.iter().any(|(k, v)| tag["key"] == k.as_str() && tag["value"] == v.as_str()))
        })
}

impl State {
    pub(crate) fn list(&self, caller: usize, role: Role, call: &Call) -> Result<Value, Refusal> {
        let command = call.command();
        let (object, rows): (&str, Vec<Value>) = match command {
            "listZones" => ("zone", self.list_zones(role, call)),
            "listServiceOfferings" => ("serviceoffering", self.list_offerings(caller, role, call)?),
            "listDiskOfferings" => {
                let shown =
                    |o: &&Value| selected(o, call) && in_zone(o, call) && self.offers(caller, role, o, call);
                ("diskoffering", self.disk_offerings.iter().filter(shown).cloned().collect())
            }
            "listTemplates" => ("template", self.list_templates(caller, role, call)?),
            "listNetworks" => ("network", self.list_networks(caller, role, call)?),
            "listHosts" => {
                let in_zone = |host: &&Value| call.get("zoneid").is_none_or(|zone| host["zoneid"] == zone);
                let hosts = self.hosts.iter().filter(|host| selected(host, call)).filter(in_zone);
                ("host", hosts.map(|host| self.render_host(host)).collect())
            }
            "listCapacity" => ("capacity", self.list_capacity(call)),
            "listVirtualMachines" => ("virtualmachine", self.list_machines(caller, role, call)?),
            "listNics" => ("nic", self.list_nics(caller, call)?),
            "listVolumes" => ("volume", self.list_volumes(caller, call)),
            "listTags" => ("tag", self.list_tags(caller, call)),
            "listAffinityGroups" => {
                let groups = self.groups.iter().filter(|group| {
                    self.shows(caller, &group.owner, call)
                        && call.get("name").is_none_or(|name| group.name == name)
                        && call.get("id").is_none_or(|id| group.id == id)
                        && call.get("keyword").is_none_or(|word| group.name.contains(word))
                });
                ("affinitygroup", groups.map(|group| self.render_group(group)).collect())
            }
            "listAffinityGroupTypes" => ("affinityGroupType", Self::affinity_types()),
            "listAccounts" => ("account", self.list_accounts(caller, call)),
            "listProjects" => {
                let mine =
                    self.projects.iter().filter(|project| role == Role::Root || project.owner == caller);
                let wanted = mine.filter(|project| call.get("id").is_none_or(|id| project.id == id));
                ("project", wanted.map(|project| self.render_project(project)).collect())
            }
            "listEvents" => {
                // Newest first.
                let seen = self.history.iter().rev().filter(|(owner, event)| {
                    self.shows(caller, owner, call)
                        && call.get("type").is_none_or(|kind| event["type"] == kind)
                });
                ("event", seen.map(|(_, event)| event.clone()).collect())
            }
            "listResourceLimits" => ("resourcelimit", self.list_limits(caller, call)),
            "listSecurityGroups" => {
                let own = self.accounts.get(caller).map(|account| account.name.clone());
                let name = call.get("account").map(str::to_owned).or(own);
                let mine =
                    self.security_groups.iter().filter(|group| group["account"].as_str() == name.as_deref());
                ("securitygroup", mine.filter(|group| selected(group, call)).cloned().collect())
            }
            "listSSHKeyPairs" => {
                let mine = self.key_pairs.iter().filter(|pair| self.registered(caller, pair, call));
                ("sshkeypair", mine.filter(|pair| selected(pair, call)).cloned().collect())
            }
            "listUserData" => {
                let mine = self.user_data.iter().filter(|data| self.registered(caller, data, call));
                ("userdata", mine.filter(|data| selected(data, call)).cloned().collect())
            }
            "listGpuCards" => {
                ("gpucard", self.gpu_cards.iter().filter(|c| selected(c, call)).cloned().collect())
            }
            "listVgpuProfiles" => {
                let of_card = |p: &&Value| call.get("gpucardid").is_none_or(|id| p["gpucardid"] == id);
                ("vgpuprofile", self.vgpu_profiles.iter().filter(of_card).cloned().collect())
            }
            "listManagementServersMetrics" => ("managementserver", self.management_servers.clone()),
            "listApis" => ("api", super::permissions::apis(call.get("name"), role)),
            "quotaTariffList" => {
                let of_type = |t: &&Value| {
                    call.get("usagetype").is_none_or(|kind| t["usageType"].as_i64() == kind.parse().ok())
                };
                ("quotatariff", self.tariffs.iter().filter(of_type).cloned().collect())
            }
            _ => {
                let name = self.accounts.get(caller).map_or("", |account| account.name.as_str());
                let text =
                    format!("The API [{command}] does not exist or is not available for the account {name}.");
                return Err(Refusal { anonymous: true, ..Refusal::new(432, 9999, text) });
            }
        };
        self.paged(object, rows, call)
    }

    /// The page that was asked for, in its envelope.
    fn paged(&self, object: &str, rows: Vec<Value>, call: &Call) -> Result<Value, Refusal> {
        if object == "api" {
            // The one list that has no pages.
            return Ok(json!({"count": rows.len(), "api": rows}));
        }
        let count = rows.len();
        let size = call.get("pagesize").and_then(|size| size.parse::<i64>().ok());
        let page = call.get("page").and_then(|page| page.parse::<usize>().ok());
        let max = self.settings.page_size;
        let (page, size) = match (page, size) {
            (_, Some(-1)) => (1, usize::MAX),
            (Some(page), Some(size)) => (page.max(1), usize::try_from(size).unwrap_or(max)),
            (None, None) => (1, max),
            (None, Some(_)) => {
                return Err(Refusal::new(
                    431,
                    9999,
                    "\"page\" parameter is required when \"pagesize\" is specified",
                ));
            }
            (Some(_), None) => {
                return Err(Refusal::new(
                    431,
                    9999,
                    "\"pagesize\" parameter is required when \"page\" is specified",
                ));
            }
        };
        if size != usize::MAX && size > max {
            return Err(Refusal::parameter(format!(
                "Page size can't exceed max allowed page size value: {max}"
            )));
        }
        let moved = self.settings.rows_repeated.min(size.saturating_sub(1));
        let rows: Vec<Value> =
            rows.into_iter().skip((page - 1).saturating_mul(size - moved)).take(size).collect();
        let count = if rows.is_empty() { count } else { count + (page - 1).saturating_mul(moved) };
        let mut answer = Map::new();
        if count > 0 {
            answer.insert("count".to_owned(), count.into());
        }
        if !rows.is_empty() {
            answer.insert(object.to_owned(), rows.into());
        }
        Ok(answer.into())
    }

    fn list_zones(&self, role: Role, call: &Call) -> Vec<Value> {
        let visible = self.zones.iter().filter(|zone| {
            selected(zone, call) && (role == Role::Root || zone["allocationstate"] != "Disabled")
        });
        visible
            .map(|zone| {
                let mut zone = hidden("zone", zone.clone(), role);
                self.count_gpus(&mut zone);
                if role == Role::Root && call.flag("showcapacities") {
                    zone["capacity"] = self.zone_capacity(&zone).into();
                }
                zone
            })
            .collect()
    }

    /// How many GPUs the hosts of a zone have, and machines of them; servers before 4.21 do not say.
    fn count_gpus(&self, zone: &mut Value) {
        if zone.get("gputotal").is_none() {
            return;
        }
        let hosts = self.hosts.iter().filter(|host| host["zoneid"] == zone["id"]);
        let total: i64 = hosts.map(|host| number(&host["gpus"])).sum();
        let machines =
            self.machines.values().filter(|machine| machine.occupies() && zone["id"] == *machine.zone);
        let used: i64 = machines.map(|machine| machine.gpus).sum();
        zone["gputotal"] = total.into();
        zone["gpuused"] = used.into();
    }

    /// Whether key pairs or user data are of the project or account that is asked for.
    pub(crate) fn registered(&self, caller: usize, value: &Value, call: &Call) -> bool {
        let own = self.accounts.get(caller).map(|account| account.name.as_str());
        match call.get("projectid") {
            Some(project) => value["projectid"] == project,
            None => value["projectid"].is_null() && value["account"].as_str() == call.get("account").or(own),
        }
    }

    /// Whether the owner a list is for may use this offering: some are for domains only. Root sees all but on behalf of others.
    fn offers(&self, caller: usize, role: Role, offering: &Value, call: &Call) -> bool {
        let named = call.get("account").is_some() || call.get("projectid").is_some();
        let owner = self.owner_named(caller, call).ok();
        (role == Role::Root && !named) || owner.is_some_and(|owner| self.is_for(offering, &owner))
    }

    /// Whether an offering is for the domain of this owner.
    pub(crate) fn is_for(&self, offering: &Value, owner: &Owner) -> bool {
        let domains = offering["domainid"].as_str().unwrap_or_default();
        let domain = self.accounts.get(owner.account).map(|account| account.domain_id.as_str());
        domains.is_empty() || domains.split(',').any(|id| Some(id) == domain)
    }

    fn list_offerings(&self, caller: usize, role: Role, call: &Call) -> Result<Vec<Value>, Refusal> {
        if call.flag("issystem") {
            if role != Role::Root {
                return Err(Refusal::parameter("Only ROOT admins can access system offerings."));
            }
            return Ok(self.system_offerings.clone());
        }
        let wanted = self.offerings.iter().filter(|offering| {
            selected(offering, call)
                && in_zone(offering, call)
                && self.offers(caller, role, offering, call)
                && (offering["state"] == "Active" || call.get("state").is_some())
                && (!call.flag("gpuenabled") || offering["gpucount"].as_i64().unwrap_or(0) > 0)
        });
        Ok(wanted.cloned().collect())
    }

    fn list_templates(&self, caller: usize, role: Role, call: &Call) -> Result<Vec<Value>, Refusal> {
        let filter = call.get("templatefilter").unwrap_or_default();
        if filter == "all" && role != Role::Root {
            return Err(Refusal::parameter("Filter all can be specified by admin only"));
        }
        let tags = call.pairs("tags")?;
        let owner = self.owner_named(caller, call)?;
        let wanted = self.templates.iter().filter(|template| {
            selected(template, call)
                && (template["ispublic"] != false || role == Role::Root || self.owns(&owner, template))
                && tagged(template, &tags)
                && (filter == "all" || template["templatetype"] != "SYSTEM")
                && (filter != "featured" || template["isfeatured"] == true)
                && call
                    .get("zoneid")
                    .is_none_or(|zone| template["zoneid"] == zone || template["crossZones"] == true)
                && call.get("arch").is_none_or(|arch| template["arch"] == arch)
        });
        Ok(wanted
            .map(|template| {
                let mut template = hidden("template", template.clone(), role);
                // A template of all zones is listed in the one that was asked for.
                if let Some(zone) = call.get("zoneid").and_then(|id| Self::by_id(&self.zones, id))
                    && template["crossZones"] == true
                {
                    template["zoneid"] = zone["id"].clone();
                    template["zonename"] = zone["name"].clone();
                }
                template
            })
            .collect())
    }

    fn list_networks(&self, caller: usize, role: Role, call: &Call) -> Result<Vec<Value>, Refusal> {
        let tags = call.pairs("tags")?;
        let name = self.accounts.get(caller).map(|account| account.name.clone());
        let on_behalf_of = call.get("account").filter(|_| role != Role::User);
        let wanted = self.networks.iter().filter(|network| {
            let mine = match call.get("projectid") {
                Some("-1") => {
                    network["projectid"].as_str().is_some_and(|project| self.may_use_project(caller, project))
                }
                Some(project) => network["projectid"] == project,
                None => {
                    network["projectid"].is_null()
                        && (network["account"].as_str() == on_behalf_of.or(name.as_deref())
                            || network["acltype"] == "Domain"
                            || (role != Role::User && (call.flag("listall") || call.get("id").is_some())))
                }
            };
            mine && selected(network, call)
                && tagged(network, &tags)
                && call.get("zoneid").is_none_or(|zone| network["zoneid"] == zone)
                && call.get("type").is_none_or(|kind| network["type"] == kind)
        });
        let rendered = wanted.map(|network| self.render_network(network, role));
        let usable = call.get("canusefordeploy").map(|wanted| wanted == "true");
        Ok(rendered
            .filter(|network| usable.is_none_or(|usable| network["canusefordeploy"] == usable))
            .collect())
    }

    pub(crate) fn render_network(&self, network: &Value, role: Role) -> Value {
        let mut network = hidden("network", network.clone(), role);
        // It has an address left; of networks of the second layer nobody counts any.
        let id = network["id"].as_str().unwrap_or_default();
        network["canusefordeploy"] = (network["type"] == "L2" || self.free_address(id).is_some()).into();
        if network["service"].is_null() {
            network["service"] = self.network_services.clone();
        }
        network
    }

    fn render_host(&self, host: &Value) -> Value {
        let free = self.free_on(host);
        let mut host = host.clone();
        let memory = number(&host["memorytotal"]);
        let cpu = number(&host["cpuwithoverprovisioning"]);
        let used_memory = memory - free.memory_bytes;
        let used_cpu = cpu - free.cpu_mhz;
        let percent = |used: i64, of: i64| {
            if of == 0 { "0.00%".to_owned() } else { format!("{:.2}%", used as f64 * 100.0 / of as f64) }
        };
        host["memorywithoverprovisioning"] = memory.to_string().into();
        host["memoryallocated"] = used_memory.into();
        host["memoryallocatedbytes"] = used_memory.into();
        host["memoryallocatedpercentage"] = percent(used_memory, memory).into();
        host["cpuallocatedvalue"] = used_cpu.into();
        for key in ["cpuallocated", "cpuallocatedpercentage", "cpuallocatedwithoverprovisioning"] {
            host[key] = percent(used_cpu, cpu).into();
        }
        if let Some(fields) = host.as_object_mut() {
            fields.remove("gpus");
        }
        host
    }

    /// What is used of a zone, by kind of capacity.
    fn zone_capacity(&self, zone: &Value) -> Vec<Value> {
        let hosts: Vec<&Value> = self.hosts.iter().filter(|host| host["zoneid"] == zone["id"]).collect();
        let free: Vec<_> = hosts.iter().map(|host| self.free_on(host)).collect();
        let memory: i64 = hosts.iter().map(|host| number(&host["memorytotal"])).sum();
        let cpu: i64 = hosts.iter().map(|host| number(&host["cpuwithoverprovisioning"])).sum();
        let cores: i64 = hosts.iter().map(|host| number(&host["cpunumber"])).sum();
        let used_memory = memory - free.iter().map(|free| free.memory_bytes).sum::<i64>();
        let used_cpu = cpu - free.iter().map(|free| free.cpu_mhz).sum::<i64>();
        let used_cores: i64 = self.machines.values().filter(|m| m.occupies()).map(|m| m.cpu).sum();
        let row = |kind: i64, name: &str, used: i64, total: i64| {
            let percent = if total == 0 { 0.0 } else { used as f64 * 100.0 / total as f64 };
            json!({"type": kind, "name": name, "capacityused": used, "capacitytotal": total, "percentused": format!("{percent:.2}")})
        };
        vec![
            row(0, "MEMORY", used_memory, memory),
            row(1, "CPU", used_cpu, cpu),
            row(2, "STORAGE", 0, 4 << 40),
            row(90, "CPU_CORE", used_cores, cores),
            row(20, "OBJECT_STORAGE", 0, 0),
            row(6, "SECONDARY_STORAGE", 0, 0),
        ]
    }

    fn list_capacity(&self, call: &Call) -> Vec<Value> {
        let zones = self.zones.iter().filter(|zone| call.get("zoneid").is_none_or(|id| zone["id"] == id));
        let mut rows = Vec::new();
        for zone in zones {
            for mut row in self.zone_capacity(zone) {
                if row["type"] == 20 {
                    row["type"] = 19.into();
                    row["name"] = "GPU".into();
                }
                row["zoneid"] = zone["id"].clone();
                row["zonename"] = zone["name"].clone();
                if !matches!(row["type"].as_i64(), Some(2 | 6)) {
                    row["capacityallocated"] = row["capacityused"].clone();
                }
                rows.push(row);
            }
        }
        rows
    }

    /// Whether the caller is shown what belongs to `owner`, by these parameters.
    fn shows(&self, caller: usize, owner: &Owner, call: &Call) -> bool {
        // Administrators see by its id what is not their own, also in projects; by `ids` they do not.
        let by_id = call.get("id").is_some();
        let is_admin = self.accounts.get(caller).is_some_and(|account| account.role != Role::User);
        match (call.get("projectid"), &owner.project) {
            (Some("-1"), Some(_)) => self.may(caller, owner),
            (Some(wanted), Some(project)) => wanted == project && self.may(caller, owner),
            (None, Some(_)) if by_id && is_admin => self.may(caller, owner),
            (Some(_), None) | (None, Some(_)) => false,
            (None, None) if call.flag("listall") || by_id => self.may(caller, owner),
            (None, None) => match call.get("account") {
                Some(name) => {
                    self.may(caller, owner)
                        && self.accounts.get(owner.account).is_some_and(|account| account.name == name)
                }
                None => caller == owner.account,
            },
        }
    }

    fn list_machines(&self, caller: usize, role: Role, call: &Call) -> Result<Vec<Value>, Refusal> {
        let tags = call.pairs("tags")?;
        let ids = call.list("ids");
        if let Some(unknown) = ids.iter().find(|id| !self.knows(id)) {
            return Err(Refusal::entity(call.command(), "ids", unknown));
        }
        let details = call.list("details");
        let gone = |machine: &Machine| matches!(machine.state, "Destroyed" | "Expunging");
        let equal = |name: &str, value: &str| call.get(name).is_none_or(|wanted| wanted == value);
        let wanted = self.shown_machines().values().filter(|machine| {
            self.shows(caller, &machine.owner, call)
                && (role != Role::User || self.settings.user_sees_destroyed || !gone(machine))
                && equal("id", &machine.id)
                && equal("name", &machine.name)
                && equal("zoneid", &machine.zone)
                && equal("templateid", &machine.template)
                && equal("serviceofferingid", &machine.offering)
                && (ids.is_empty() || ids.contains(&machine.id))
                && (tags.is_empty() || tags.iter().any(|(key, value)| machine.has_tag(key, value)))
                && call.get("networkid").is_none_or(|id| machine.nics.iter().any(|nic| nic.network == id))
                && call.get("affinitygroupid").is_none_or(|id| machine.groups.iter().any(|group| group == id))
                && call.get("keyword").is_none_or(|word| {
                    let word = word.to_lowercase();
                    let names = [&machine.name, &machine.display_name];
                    names.iter().any(|name| name.to_lowercase().contains(&word))
                        || machine.nics.iter().any(|nic| nic.address.contains(&word))
                })
                && match call.get("state") {
                    None => true,
                    Some("present") => !gone(machine),
                    Some(state) => machine.state.eq_ignore_ascii_case(state),
                }
        });
        Ok(wanted
            .map(|machine| self.render_machine(machine, role, &details, call.flag("userdata")))
            .collect())
    }

    /// Unlike lists it refuses what is not the caller's (as read in the server's source, not measured), and knows no machine that was
    /// removed, which it says with the code of its own failures.
    fn list_nics(&self, caller: usize, call: &Call) -> Result<Vec<Value>, Refusal> {
        let machine = self.machine(call.get("virtualmachineid").unwrap_or_default());
        let machine = machine.ok_or_else(|| Refusal::new(530, 9999, "Virtual machine id does not exist"))?;
        if !self.may(caller, &machine.owner) {
            return Err(Refusal::of_others());
        }
        Ok(self.render_nics(machine))
    }

    fn list_volumes(&self, caller: usize, call: &Call) -> Vec<Value> {
        let of_machine = call.get("virtualmachineid").and_then(|id| self.machine_ids.get(id));
        let wanted = self.volumes.iter().filter(|volume| {
            self.shows(caller, &volume.owner, call)
                && call.get("id").is_none_or(|id| volume.id == id)
                && (call.get("virtualmachineid").is_none() || volume.machine.as_ref() == of_machine)
                && call.get("type").is_none_or(|kind| (kind == "ROOT") == volume.root)
        });
        let tags = call.pairs("tags").unwrap_or_default();
        let rendered = wanted.map(|volume| self.render_volume(volume));
        rendered.filter(|volume| selected(volume, call) && tagged(volume, &tags)).collect()
    }

    fn list_tags(&self, caller: usize, call: &Call) -> Vec<Value> {
        let machines = self.machines.values().map(|m| ("UserVm", &m.id, &m.owner, &m.tags));
        let volumes = self.volumes.iter().map(|v| ("Volume", &v.id, &v.owner, &v.tags));
        let resources = machines.chain(volumes).map(|(kind, id, owner, tags)| {
            let (id, owner, tags) = (id.clone(), owner.clone(), tags.clone());
            (kind, id, owner, tags)
        });
        let entry = |kind: &'static str, entry: &Value| {
            let text = |text: &Value| text.as_str().unwrap_or_default().to_owned();
            let tags = entry["tags"].as_array().into_iter().flatten();
            let tags = tags.map(|tag| (text(&tag["key"]), text(&tag["value"]))).collect();
            (kind, text(&entry["id"]), self.owner_of_entry(entry), tags)
        };
        let networks = self.networks.iter().map(|network| entry("Network", network));
        let templates = self.templates.iter().map(|template| entry("Template", template));
        resources
            .chain(networks)
            .chain(templates)
            .filter(|(kind, id, owner, _)| {
                self.shows(caller, owner, call)
                    && call.get("resourcetype").is_none_or(|wanted| wanted.eq_ignore_ascii_case(kind))
                    && call.get("resourceid").is_none_or(|wanted| wanted == id.as_str())
            })
            .flat_map(|(kind, id, owner, tags)| self.render_tags(&tags, kind, &id, &owner, true))
            .filter(|tag| {
                call.get("key").is_none_or(|key| tag["key"] == key)
                    && call.get("value").is_none_or(|value| tag["value"] == value)
            })
            .collect()
    }

    fn list_accounts(&self, caller: usize, call: &Call) -> Vec<Value> {
        let domain = self.accounts.get(caller).map(|account| account.domain_id.as_str());
        let of_domain = self.settings.user_sees_domain_accounts;
        let visible = self.accounts.iter().enumerate().filter(|(i, account)| match call.get("name") {
            Some(name) => account.name == name && self.may(caller, &self.owner_of(*i)),
            None => *i == caller || (of_domain && Some(account.domain_id.as_str()) == domain),
        });
        visible
            .map(|(i, account)| {
                let mut rendered = account.listed();
                if of_domain {
                    rendered["user"][0]["apikey"] = account.api_key.clone().into();
                }
                self.add_usage(&mut rendered, &self.owner_of(i), &account.limits);
                rendered
            })
            .collect()
    }

    fn list_limits(&self, caller: usize, call: &Call) -> Vec<Value> {
        let Some(account) = self.accounts.get(caller) else { return Vec::new() };
        self.resource_types
            .iter()
            .filter(|(number, _)| call.get("resourcetype").is_none_or(|wanted| wanted == number))
            .map(|(number, name)| {
                let max = account.limits.get(name).copied().unwrap_or(-1);
                json!({
                    "account": account.name, "domainid": account.domain_id, "domain": account.domain,
                    "domainpath": account.domain_path, "resourcetype": number, "resourcetypename": name, "max": max,
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::Request;
    use karpenter_runtime::environment::Environment;

    use super::*;
    use crate::cloudstack::CloudStack;

    /// Names of what the account of this role is shown.
    fn names(cloud: &CloudStack, role: Role, query: &str, object: &str) -> Vec<String> {
        let request = Request::get(format!("/?{query}")).body(Bytes::new()).expect("a request");
        let state = cloud.state();
        let caller = state.accounts.iter().position(|account| account.role == role).expect("an account");
        let answer = state.list(caller, role, &Call::read(&request)).expect("a list");
        let rows = answer[object].as_array().cloned().unwrap_or_default();
        rows.iter().filter_map(|row| row["name"].as_str().map(str::to_owned)).collect()
    }

    fn cloud() -> CloudStack {
        CloudStack::new(&Environment::seeded("2026-11-15T08:00:00Z".parse().expect("a time"), 1))
    }

    #[test]
    fn a_network_without_a_free_address_cannot_be_used_for_deployments() {
        let cloud = cloud();
        cloud.edit("network", "k8s-net", |network| network["cidr"] = "10.1.1.0/31".into());
        let listed =
            |usable: &str| names(&cloud, Role::User, &format!("command=listNetworks{usable}"), "network");
        assert_eq!(listed(""), ["k8s-storage", "k8s-net"]);
        assert_eq!(listed("&canusefordeploy=true"), ["k8s-storage"]);
        assert_eq!(listed("&canusefordeploy=false"), ["k8s-net"]);
    }

    #[test]
    fn what_is_for_another_domain_or_zone_is_not_offered() {
        let cloud = cloud();
        let zone = cloud.id_of("zone", "sim-zone-1").expect("a zone");
        cloud.add("serviceoffering", json!({"name": "theirs", "domainid": "other"}));
        cloud.add("diskoffering", json!({"name": "elsewhere", "zoneid": "other"}));
        let has = |role: Role, query: &str, object: &str, name: &str| {
            names(&cloud, role, query, object).iter().any(|listed| listed == name)
        };
        let tenant = cloud.account(Role::User).expect("a tenant");
        let for_tenant =
            format!("command=listServiceOfferings&account={}&domainid={}", tenant.name, tenant.domain_id);
        assert!(has(Role::Root, "command=listServiceOfferings", "serviceoffering", "theirs"));
        assert!(!has(Role::Root, &for_tenant, "serviceoffering", "theirs"));
        assert!(!has(Role::User, "command=listServiceOfferings", "serviceoffering", "theirs"));
        assert!(has(Role::User, "command=listDiskOfferings", "diskoffering", "elsewhere"));
        let here = format!("command=listDiskOfferings&zoneid={zone}");
        assert!(!has(Role::User, &here, "diskoffering", "elsewhere"));
    }

    #[test]
    fn the_list_of_commands_has_no_pages() {
        let cloud = cloud();
        cloud.configure(|settings| settings.page_size = 2);
        let commands = names(&cloud, Role::User, "command=listApis", "api");
        assert!(commands.iter().any(|name| name == "deployVirtualMachine"), "{}", commands.len());
    }

    #[test]
    fn rows_that_come_in_between_repeat_others_on_the_next_page_and_hide_none() {
        let cloud = cloud();
        let made: Vec<String> = (0..7).map(|number| format!("machine-{number}")).collect();
        for name in &made {
            cloud.add_machine(name, &[]);
        }
        cloud.configure(|settings| (settings.page_size, settings.rows_repeated) = (3, 1));
        let page = |page: usize| {
            let query = format!("command=listVirtualMachines&page={page}&pagesize=3");
            names(&cloud, Role::User, &query, "virtualmachine")
        };
        assert_eq!([page(1), page(2), page(3)], [&made[0..3], &made[2..5], &made[4..7]]);
        assert!(page(4).len() <= 1);
    }

    #[test]
    fn key_pairs_are_those_of_the_project_that_is_asked_for() {
        let cloud = cloud();
        let project = cloud.add_project("team");
        cloud.add_key_pair("mine", None);
        cloud.add_key_pair("ours", Some(&project));
        let own = names(&cloud, Role::User, "command=listSSHKeyPairs", "sshkeypair");
        let query = format!("command=listSSHKeyPairs&projectid={project}");
        assert_eq!(
            (own, names(&cloud, Role::User, &query, "sshkeypair")),
            (vec!["mine".into()], vec!["ours".into()])
        );
    }
}
