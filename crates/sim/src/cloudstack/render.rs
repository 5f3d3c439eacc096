//! Machines, volumes and groups as the server shows them, to whom.

use serde_json::{Map, Value, json};

use super::account::Role;
use super::jobs::stamp;
use super::state::{Group, Machine, Owner, Project, State, Volume};

/// What a plain user is told about settings it cannot change.
const READ_ONLY_DETAILS: &str = "dataDiskController, rootDiskController, backupValidationCommandTimeout, backupValidationScreenshotWait, backupValidationBootTimeout";

impl State {
    /// A machine, with these groups of details (none is all of them).
    pub(crate) fn render_machine(
        &self,
        machine: &Machine,
        role: Role,
        details: &[String],
        with_user_data: bool,
    ) -> Value {
        let wants = |group: &str| {
            details.is_empty() || details.iter().any(|detail| detail == group || detail == "all")
        };
        let nothing = Value::Null;
        let has_disks = self.volumes.iter().any(|v| !v.root && v.machine == Some(machine.number));
        let rows = machine.nics.len().max(1) * machine.tags.len().max(1) * if has_disks { 2 } else { 1 };
        let zone = Self::by_id(&self.zones, &machine.zone).unwrap_or(&nothing);
        let template = Self::by_id(&self.templates, &machine.template).unwrap_or(&nothing);
        let offering = Self::by_id(&self.offerings, &machine.offering).unwrap_or(&nothing);
        let mut fields = Map::new();
        let mut put = |key: &str, value: Value| {
            if !value.is_null() {
                fields.insert(key.to_owned(), value);
            }
        };
        let text = |text: &str| Value::from(text);
        put("id", text(&machine.id));
        put("name", text(&machine.name));
        put("displayname", text(&machine.display_name));
        for (key, value) in self.owned(&machine.owner) {
            put(key, value);
        }
        if let Some(account) = self.accounts.get(machine.owner.account) {
            put("userid", text(&account.user_id));
            put("username", text(&account.name));
        }
        put("created", stamp(machine.created).into());
        put("lastupdated", machine.updated.map_or(Value::Null, |time| stamp(time).into()));
        put("state", text(machine.state));
        put("haenable", offering["offerha"].as_bool().unwrap_or(false).into());
        put("zoneid", text(&machine.zone));
        put("zonename", zone["name"].clone());
        if let Some(group) = &machine.group {
            put("group", text(group));
        }
        if let Some(host) = &machine.host {
            put("hostcontrolstate", text("Enabled"));
            if role == Role::Root {
                put("hostid", text(host));
                let name = Self::by_id(&self.hosts, host).map_or(Value::Null, |host| host["name"].clone());
                put("hostname", name);
            }
        }
        if wants("tmpl") {
            put("templateid", text(&machine.template));
            put("templatename", template["name"].clone());
            put("templatetype", template["templatetype"].clone());
            put("templateformat", template["format"].clone());
            put("templatedisplaytext", template["displaytext"].clone());
            put("passwordenabled", template["passwordenabled"].as_bool().unwrap_or(false).into());
        }
        if wants("iso") {
            put("isos", json!([]));
            put("isomaxcount", 1.into());
        }
        if wants("servoff") {
            put("serviceofferingid", text(&machine.offering));
            put("serviceofferingname", offering["name"].clone());
            put("cpunumber", machine.cpu.into());
            put("cpuspeed", machine.cpu_speed.into());
            put("memory", machine.memory.into());
            if machine.gpus > 0 {
                put("gpucount", machine.gpus.into());
                for key in ["gpucardid", "gpucardname", "vgpuprofileid", "vgpuprofilename"] {
                    put(key, offering[key].clone());
                }
            }
        }
        if (wants("diskoff") || has_disks)
            && let Some(disk) =
                machine.disk_offering.as_ref().and_then(|id| Self::by_id(&self.disk_offerings, id))
        {
            put("diskofferingid", disk["id"].clone());
            put("diskofferingname", disk["name"].clone());
        }
        put("guestosid", template["ostypeid"].clone());
        put("ostypeid", template["ostypeid"].clone());
        put("osdisplayname", template["ostypename"].clone());
        if wants("volume") {
            put("rootdeviceid", 0.into());
            put("rootdevicetype", text("ROOT"));
        }
        let groups: Vec<Value> = machine
            .security_groups
            .iter()
            .filter_map(|id| Self::by_id(&self.security_groups, id))
            .map(|group| json!({"id": group["id"], "name": group["name"]}))
            .collect();
        put("securitygroup", groups.into());
        // With `min` the first row of the server's join brings no interface, only further ones do.
        let nics: Vec<Value> = if wants("nics") {
            self.render_nics(machine)
        } else {
            let nics = self.render_nics(machine);
            let hidden = nics.len().saturating_sub(rows - 1);
            nics.into_iter().skip(hidden).collect()
        };
        put("ipaddress", nics.first().map_or(Value::Null, |nic| nic["ipaddress"].clone()));
        put("nic", nics.into());
        put("hypervisor", template["hypervisor"].clone());
        let shown = machine.details.iter().filter(|(key, _)| {
            role == Role::Root || (key.as_str() != "rootdisksize" && !key.starts_with("Message."))
        });
        put("details", shown.map(|(k, v)| (k.clone(), v.clone().into())).collect::<Map<_, _>>().into());
        if role == Role::Root {
            put("instancename", self.instance_name(machine).into());
            put("displayvm", true.into());
            put("arch", template["arch"].clone());
        } else {
            put("readonlydetails", text(READ_ONLY_DETAILS));
        }
        let affinity: Vec<Value> = machine
            .groups
            .iter()
            .filter_map(|id| self.groups.iter().find(|group| group.id == *id))
            .map(|group| {
                let account = self.accounts.get(group.owner.account).map(|account| account.name.clone());
                let mut shown = json!({"id": group.id, "name": group.name, "account": account});
                if let Some(description) = &group.description {
                    shown["description"] = description.clone().into();
                }
                shown
            })
            .collect();
        let shows_groups = wants("affgrp") || rows > 1;
        put("affinitygroup", if shows_groups { affinity.into() } else { json!([]) });
        put("isdynamicallyscalable", false.into());
        put("deleteprotection", machine.protected.into());
        if let Some(ends) = machine.lease_ends {
            put("leaseexpirydate", stamp(ends).into());
            put("leaseexpiryaction", "STOP".into());
        }
        if machine.state == "Running" && machine.details.is_empty() {
            put("bootmode", text("legacy"));
            put("boottype", text("Bios"));
        }
        if machine.stored {
            put("pooltype", text("NetworkFilesystem"));
        }
        put("receivedbytes", 0.into());
        put("sentbytes", 0.into());
        if with_user_data && let Some(user_data) = &machine.user_data {
            put("userdata", text(user_data));
        }
        if !machine.key_pairs.is_empty() {
            put("keypairs", machine.key_pairs.join(",").into());
        }
        put("tags", self.render_tags(&machine.tags, "UserVm", &machine.id, &machine.owner, false).into());
        put("hasannotations", false.into());
        if let Some(job) = machine.jobs.front() {
            put("jobid", text(job));
            put("jobstatus", 0.into());
        }
        Value::Object(fields)
    }

    pub(crate) fn render_nics(&self, machine: &Machine) -> Vec<Value> {
        let nothing = Value::Null;
        machine
            .nics
            .iter()
            .enumerate()
            .map(|(i, nic)| {
                let network = Self::by_id(&self.networks, &nic.network).unwrap_or(&nothing);
                let mut rendered = json!({
                    "id": nic.id, "networkid": nic.network, "networkname": network["name"],
                    "netmask": network["netmask"], "gateway": network["gateway"], "ipaddress": nic.address,
                    "traffictype": "Guest", "type": network["type"], "isdefault": i == 0, "macaddress": nic.mac,
                    "secondaryip": [], "extradhcpoption": [], "deviceid": i.to_string(), "enabled": true,
                });
                if nic.plugged {
                    rendered["isolationuri"] = "vlan://278".into();
                    rendered["broadcasturi"] = "vlan://278".into();
                }
                rendered
            })
            .collect()
    }

    /// Tags as they stand in lists; `listTags` adds the path of the domain.
    pub(crate) fn render_tags(
        &self,
        tags: &[(String, String)],
        kind: &str,
        id: &str,
        owner: &Owner,
        with_path: bool,
    ) -> Vec<Value> {
        tags.iter()
            .map(|(key, value)| {
                let mut tag = json!({"key": key, "value": value, "resourcetype": kind, "resourceid": id});
                for (key, value) in self.owned(owner) {
                    if with_path || key != "domainpath" {
                        tag[key] = value;
                    }
                }
                tag
            })
            .collect()
    }

    /// The fields that say whose something is.
    pub(crate) fn owned(&self, owner: &Owner) -> Vec<(&'static str, Value)> {
        let Some(account) = self.accounts.get(owner.account) else { return Vec::new() };
        let mut fields = vec![
            ("domainid", account.domain_id.clone().into()),
            ("domain", account.domain.clone().into()),
            ("domainpath", account.domain_path.clone().into()),
        ];
        match owner.project.as_ref().and_then(|id| self.projects.iter().find(|project| project.id == *id)) {
            Some(project) => {
                fields.push(("projectid", project.id.clone().into()));
                fields.push(("project", project.name.clone().into()));
            }
            None => fields.push(("account", account.name.clone().into())),
        }
        fields
    }

    pub(crate) fn render_volume(&self, volume: &Volume) -> Value {
        let nothing = Value::Null;
        let zone = Self::by_id(&self.zones, &volume.zone).unwrap_or(&nothing);
        let offering = Self::by_id(&self.disk_offerings, &volume.offering)
            .or_else(|| Self::by_id(&self.offerings, &volume.offering))
            .unwrap_or(&nothing);
        let mut rendered = json!({
            "id": volume.id, "name": volume.name, "zoneid": volume.zone, "zonename": zone["name"],
            "type": if volume.root { "ROOT" } else { "DATADISK" }, "provisioningtype": "thin",
            "size": volume.size_bytes, "created": stamp(volume.created),
            "state": if volume.destroyed.is_some() { "Destroy" } else { "Ready" },
            "diskofferingid": volume.offering, "diskofferingname": offering["name"],
            "diskofferingdisplaytext": offering["displaytext"], "destroyed": volume.destroyed.is_some(),
            "isextractable": true, "quiescevm": false, "supportsstoragesnapshot": false,
            "deleteprotection": false, "hasannotations": false,
            "tags": self.render_tags(&volume.tags, "Volume", &volume.id, &volume.owner, false),
        });
        for (key, value) in self.owned(&volume.owner) {
            rendered[key] = value;
        }
        if let Some(machine) = volume.machine.and_then(|number| self.machines.get(&number)) {
            rendered["deviceid"] = volume.device.into();
            rendered["virtualmachineid"] = machine.id.clone().into();
            rendered["vmname"] = machine.name.clone().into();
            rendered["vmdisplayname"] = machine.display_name.clone().into();
            rendered["vmstate"] = machine.state.into();
            rendered["vmtype"] = "User".into();
            for key in ["diskkbsread", "diskkbswrite", "diskioread", "diskiowrite"] {
                rendered[key] = 0.into();
            }
        }
        rendered
    }

    pub(crate) fn render_group(&self, group: &Group) -> Value {
        let mut rendered = json!({"id": group.id, "name": group.name, "type": group.kind});
        if let Some(description) = &group.description {
            rendered["description"] = description.clone().into();
        }
        for (key, value) in self.owned(&group.owner) {
            rendered[key] = value;
        }
        let members: Vec<Value> = self
            .machines
            .values()
            .filter(|machine| machine.groups.contains(&group.id) && machine.counts())
            .map(|machine| machine.id.clone().into())
            .collect();
        if !members.is_empty() {
            rendered["virtualmachineIds"] = members.into();
        }
        rendered
    }

    pub(crate) fn render_project(&self, project: &Project) -> Value {
        let owner = Owner { account: project.owner, project: Some(project.id.clone()) };
        let account = self.accounts.get(project.owner);
        let mut rendered = json!({
            "id": project.id, "name": project.name, "displaytext": project.display_text,
            "domainid": account.map(|a| a.domain_id.clone()), "domain": account.map(|a| a.domain.clone()),
            "owner": [{"account": account.map(|a| a.name.clone())}],
            "projectaccountname": format!("PrjAcct-{}-2", project.name), "state": "Active", "tags": [],
            "created": stamp(project.created),
        });
        self.add_usage(&mut rendered, &owner, &project.limits);
        rendered
    }
}
