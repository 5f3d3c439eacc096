//! What every command does, once the caller is known and the parameters are sound.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::account::Role;
use super::jobs::after;
use super::state::{Group, Job, Owner, Project, State, Work};
use super::wire::{Call, Refusal};

const AFFINITY_TYPES: [&str; 4] =
    ["host anti-affinity", "host affinity", "non-strict host anti-affinity", "non-strict host affinity"];

impl State {
    /// Carries a command out; deployments come another way.
    pub(crate) fn execute(&mut self, caller: usize, call: &Call, now: Timestamp) -> Result<Value, Refusal> {
        let role = self.accounts.get(caller).map_or(Role::User, |account| account.role);
        match call.command() {
            "listCapabilities" => Ok(self.capabilities(role)),
            "getApiLimit" => self.api_limit(caller, now),
            "queryAsyncJobResult" => self.query_job(caller, call, now),
            "destroyVirtualMachine" => {
                let work = Work::Destroy { expunge: call.flag("expunge"), volumes: call.list("volumeids") };
                self.machine_job(caller, call, "user.vm.DestroyVMCmd", work, now)
            }
            "expungeVirtualMachine" => {
                self.machine_job(caller, call, "admin.vm.ExpungeVMCmd", Work::Expunge, now)
            }
            "startVirtualMachine" => {
                let work = Work::Start { deploy: false, start: true, placed: false };
                self.machine_job(caller, call, "user.vm.StartVMCmd", work, now)
            }
            "stopVirtualMachine" => self.machine_job(caller, call, "user.vm.StopVMCmd", Work::Stop, now),
            "rebootVirtualMachine" => {
                self.machine_job(caller, call, "user.vm.RebootVMCmd", Work::Reboot, now)
            }
            "scaleVirtualMachine" => {
                let work = self.scaling(call);
                self.machine_job(caller, call, "user.vm.ScaleVMCmd", work, now)
            }
            "createVolume" => self.create_volume(caller, call, now),
            "attachVolume" => self.attach_volume(caller, call, now),
            "destroyVolume" | "deleteVolume" => self.destroy_volume(caller, call, now),
            "createTags" | "deleteTags" => self.tag_job(caller, call, now),
            "createAffinityGroup" => self.create_group(caller, call, now),
            "deleteAffinityGroup" => self.delete_group(caller, call, now),
            "createProject" => self.create_project(caller, call, now),
            "createNetwork" => self.create_network(caller, call),
            "registerUserData" => self.register_user_data(caller, call),
            "registerSSHKeyPair" => self.register_key_pair(caller, call),
            "addResourceDetail" => self.add_detail(caller, call, now),
            "createServiceOffering" => self.create_offering(call),
            "createGpuCard" => self.create_gpu_card(call),
            "createVgpuProfile" => self.create_vgpu_profile(call),
            "quotaIsEnabled" => Ok(json!({"isenabled": {"isenabled": true}})),
            "quotaTariffCreate" => Err(Refusal::parameter(
                "'activationrule' cannot be set because JavaScript interpretation is disabled in setting 'js.interpretation.enabled'.",
            )),
            _ => self.list(caller, role, call),
        }
    }

    fn capabilities(&self, role: Role) -> Value {
        let mut capability = self.capability.clone();
        let admin = role != Role::User;
        capability["allowuserexpungerecovervm"] = (admin || self.settings.user_may_expunge).into();
        capability["allowuserviewdestroyedvm"] = (admin || self.settings.user_sees_destroyed).into();
        if role != Role::Root
            && let Some(fields) = capability.as_object_mut()
        {
            fields.remove("extensionspath");
        }
        if let Some(throttle) = &self.settings.throttle {
            capability["apilimitinterval"] = throttle.interval.as_secs().into();
            capability["apilimitmax"] = throttle.max.into();
        }
        json!({"capability": capability})
    }

    fn api_limit(&self, caller: usize, now: Timestamp) -> Result<Value, Refusal> {
        let Some(throttle) = &self.settings.throttle else {
            let text = "This api is only available when api.throttling.enabled = true.";
            return Err(Refusal { anonymous: true, ..Refusal::new(432, 9999, text) });
        };
        let account = self.accounts.get(caller).ok_or_else(Refusal::unauthorized)?;
        let (issued, until) = account.calls;
        let left = until.duration_since(now).as_millis().max(0);
        Ok(json!({"apilimit": {
            "accountid": account.id, "account": account.name, "apiIssued": issued,
            "apiAllowed": throttle.max.saturating_sub(issued), "expireAfter": i64::try_from(left).unwrap_or(0),
        }}))
    }

    fn query_job(&self, caller: usize, call: &Call, now: Timestamp) -> Result<Value, Refusal> {
        let job = match call.get("resourceid") {
            Some(resource) => {
                let of_resource = |job: &&Job| job.instance.as_ref().is_some_and(|(_, id)| id == resource);
                let remembered = self.jobs.values().filter(|job| !self.has_forgotten(job, now));
                let newest = remembered.filter(of_resource).max_by_key(|job| job.created);
                newest.ok_or_else(|| Refusal::entity(call.command(), "resourceid", resource))?
            }
            None => {
                let id = call.get("jobid").unwrap_or_default();
                let job = self.jobs.get(id).filter(|job| !self.has_forgotten(job, now));
                job.ok_or_else(|| Refusal::entity(call.command(), "jobid", id))?
            }
        };
        // Whose it is goes by who ordered it, in a project, too.
        if !self.may(caller, &self.owner_of(job.account)) {
            let place = self.jobs.keys().position(|id| *id == job.id).unwrap_or_default() + 1;
            let text = format!("Account {} is not authorized to see job id={place}", self.described(caller));
            return Err(Refusal::denied(text));
        }
        Ok(self.render_job(job))
    }

    fn machine_job(
        &mut self,
        caller: usize,
        call: &Call,
        class: &'static str,
        work: Work,
        now: Timestamp,
    ) -> Result<Value, Refusal> {
        let id = call.get("id").unwrap_or_default().to_owned();
        if let Some(machine) = self.machine(&id)
            && !self.may(caller, &machine.owner)
        {
            return Err(Refusal::of_others());
        }
        let instance = Some(("VirtualMachine", id));
        let job = self.accept(caller, class, instance, work, call.get("customjobid"), now)?;
        Ok(json!({"jobid": job}))
    }

    fn tag_job(&mut self, caller: usize, call: &Call, now: Timestamp) -> Result<Value, Refusal> {
        let ids = call.list("resourceids");
        let tags = call.pairs("tags")?;
        let resource_type = call.get("resourcetype").unwrap_or_default().to_owned();
        for id in &ids {
            if !self.knows(id) {
                return Err(Refusal::entity(call.command(), "resourceids", id));
            }
        }
        let (class, work) = if call.command() == "createTags" {
            ("user.tag.CreateTagsCmd", Work::Tag { resource_type, ids, tags })
        } else {
            ("user.tag.DeleteTagsCmd", Work::Untag { ids, tags })
        };
        let job = self.accept(caller, class, None, work, call.get("customjobid"), now)?;
        Ok(json!({"jobid": job}))
    }

    fn create_group(&mut self, caller: usize, call: &Call, now: Timestamp) -> Result<Value, Refusal> {
        let name = call.get("name").unwrap_or_default().to_owned();
        let kind = call.get("type").unwrap_or_default().to_owned();
        if !AFFINITY_TYPES.contains(&kind.as_str()) {
            let text = format!(
                "Unable to create affinity group, invalid affinity group type: {kind}. Valid values are non-strict host affinity,host affinity,host anti-affinity,ExplicitDedication,non-strict host anti-affinity"
            );
            return Err(Refusal::parameter(text));
        }
        let owner = self.owner_named(caller, call)?;
        if self.groups.iter().any(|group| group.name == name && group.owner == owner) {
            let text = format!("Unable to create affinity group, a group with name {name} already exists.");
            return Err(Refusal::parameter(text));
        }
        let id = self.uuid();
        let description = call.get("description").map(str::to_owned);
        self.groups.push(Group { id: id.clone(), name, kind, description, owner });
        let instance = Some(("AffinityGroup", id.clone()));
        let work = Work::Nothing(json!({"affinitygroup": {"id": id}}));
        let job =
            self.accept(caller, "user.affinitygroup.CreateAffinityGroupCmd", instance, work, None, now)?;
        Ok(json!({"id": id, "jobid": job}))
    }

    fn delete_group(&mut self, caller: usize, call: &Call, now: Timestamp) -> Result<Value, Refusal> {
        let id = call.get("id").unwrap_or_default().to_owned();
        if self.groups.iter().any(|group| group.id == id && !self.may(caller, &group.owner)) {
            return Err(Refusal::of_others());
        }
        // The server takes machines out of it without asking, as its source says.
        for machine in self.machines.values_mut() {
            machine.groups.retain(|group| *group != id);
        }
        self.groups.retain(|group| group.id != id);
        let work = Work::Nothing(json!({"success": true}));
        let job = self.accept(caller, "user.affinitygroup.DeleteAffinityGroupCmd", None, work, None, now)?;
        Ok(json!({"jobid": job}))
    }

    fn create_project(&mut self, caller: usize, call: &Call, now: Timestamp) -> Result<Value, Refusal> {
        let id = self.uuid();
        let name = call.get("name").unwrap_or_default().to_owned();
        let limits = self.project_limits.clone();
        let display_text = call.get("displaytext").unwrap_or(&name).to_owned();
        self.projects.push(Project {
            id: id.clone(),
            name,
            display_text,
            owner: caller,
            created: now,
            limits,
        });
        let work = Work::Nothing(json!({"project": {"id": id}}));
        let instance = Some(("None", id.clone()));
        let job = self.accept(caller, "user.project.CreateProjectCmd", instance, work, None, now)?;
        Ok(json!({"id": id, "jobid": job}))
    }

    fn create_network(&mut self, caller: usize, call: &Call) -> Result<Value, Refusal> {
        let owner = self.owner_named(caller, call)?;
        let mut network = self.networks.first().cloned().unwrap_or_else(|| json!({}));
        let id = self.uuid();
        let zone =
            Self::by_id(&self.zones, call.get("zoneid").unwrap_or_default()).cloned().unwrap_or_default();
        network["id"] = id.clone().into();
        network["related"] = id.into();
        network["name"] = call.get("name").unwrap_or_default().into();
        network["displaytext"] = call.get("displaytext").or(call.get("name")).unwrap_or_default().into();
        network["zoneid"] = zone["id"].clone();
        network["zonename"] = zone["name"].clone();
        network["state"] = "Allocated".into();
        network["tags"] = json!([]);
        if let Some(fields) = network.as_object_mut() {
            for key in ["account", "projectid", "project"] {
                fields.remove(key);
            }
        }
        for (key, value) in self.owned(&owner) {
            network[key] = value;
        }
        self.networks.push(network.clone());
        let role = self.accounts.get(caller).map_or(Role::User, |account| account.role);
        Ok(json!({"network": self.render_network(&network, role)}))
    }

    fn register_user_data(&mut self, caller: usize, call: &Call) -> Result<Value, Refusal> {
        let owner = self.owner_named(caller, call)?;
        let mut registered = json!({
            "id": self.uuid(), "name": call.get("name"), "userdata": call.get("userdata"), "hasannotations": false,
        });
        for (key, value) in self.owned(&owner) {
            registered[key] = value;
        }
        self.user_data.push(registered.clone());
        Ok(json!({"userdata": registered}))
    }

    fn register_key_pair(&mut self, caller: usize, call: &Call) -> Result<Value, Refusal> {
        let owner = self.owner_named(caller, call)?;
        let mut registered = json!({
            "id": self.uuid(), "name": call.get("name"), "hasannotations": false,
            "fingerprint": "69:35:1f:e9:9b:df:26:f7:97:90:e5:00:1a:f7:da:f0",
        });
        for (key, value) in self.owned(&owner) {
            if key != "domainpath" {
                registered[key] = value;
            }
        }
        self.key_pairs.push(registered.clone());
        Ok(json!({"keypair": registered}))
    }

    fn add_detail(&mut self, caller: usize, call: &Call, now: Timestamp) -> Result<Value, Refusal> {
        let id = call.get("resourceid").unwrap_or_default();
        for (key, value) in call.pairs("details")? {
            for offering in self.offerings.iter_mut().filter(|offering| offering["id"] == id) {
                offering["serviceofferingdetails"][key.as_str()] = value.clone().into();
            }
        }
        let work = Work::Nothing(json!({"success": true}));
        let job = self.accept(caller, "user.volume.AddResourceDetailCmd", None, work, None, now)?;
        Ok(json!({"jobid": job}))
    }

    fn create_offering(&mut self, call: &Call) -> Result<Value, Refusal> {
        let number = |name: &str| call.get(name).and_then(|value| value.parse::<i64>().ok());
        let mut offering =
            self.offerings.iter().find(|o| o["gpudisplay"] == false).cloned().unwrap_or_default();
        let text = call.get("displaytext").or(call.get("name"));
        offering["id"] = self.uuid().into();
        offering["diskofferingid"] = self.uuid().into();
        offering["name"] = call.get("name").into();
        offering["diskofferingname"] = call.get("name").into();
        offering["displaytext"] = text.into();
        offering["diskofferingdisplaytext"] = text.into();
        for name in ["cpunumber", "cpuspeed", "memory", "gpucount"] {
            if let Some(value) = number(name) {
                offering[name] = value.into();
            }
        }
        if let Some(fields) = offering.as_object_mut() {
            fields.remove("serviceofferingdetails");
        }
        if let Some(profile) = call.get("vgpuprofileid").and_then(|id| Self::by_id(&self.vgpu_profiles, id)) {
            offering["gpucardid"] = profile["gpucardid"].clone();
            offering["gpucardname"] = profile["gpucardname"].clone();
            offering["vgpuprofileid"] = profile["id"].clone();
            offering["vgpuprofilename"] = profile["name"].clone();
            offering["videoram"] = profile["videoram"].clone();
        }
        let mut answered = offering.clone();
        if let Some(zone) = call.get("zoneid").and_then(|id| Self::by_id(&self.zones, id)) {
            for offering in [&mut offering, &mut answered] {
                offering["zoneid"] = zone["id"].clone();
                offering["zone"] = zone["name"].clone();
            }
            // Shown once, to whoever makes it.
            answered["serviceofferingdetails"] = json!({"zoneid": "1"});
        }
        self.offerings.push(offering);
        Ok(json!({"serviceoffering": answered}))
    }

    fn create_gpu_card(&mut self, call: &Call) -> Result<Value, Refusal> {
        let mut card = json!({"id": self.uuid()});
        for name in ["deviceid", "devicename", "name", "vendorname", "vendorid"] {
            card[name] = call.get(name).into();
        }
        self.gpu_cards.push(card.clone());
        let mut profile = card.clone();
        profile["gpucardid"] = card["id"].clone();
        profile["gpucardname"] = card["name"].clone();
        profile["id"] = self.uuid().into();
        profile["name"] = "passthrough".into();
        profile["description"] = "passthrough".into();
        profile["maxvgpuperphysicalgpu"] = 1.into();
        self.vgpu_profiles.push(profile);
        Ok(json!({"gpucard": card}))
    }

    fn create_vgpu_profile(&mut self, call: &Call) -> Result<Value, Refusal> {
        let card = call.get("gpucardid").and_then(|id| Self::by_id(&self.gpu_cards, id)).cloned();
        let Some(mut profile) = card else {
            return Err(Refusal::parameter("GPU card with the specified id doesn't exist"));
        };
        profile["gpucardid"] = profile["id"].clone();
        profile["gpucardname"] = profile["name"].clone();
        profile["id"] = self.uuid().into();
        profile["name"] = call.get("name").into();
        for name in ["videoram", "maxvgpuperphysicalgpu"] {
            if let Some(value) = call.get(name).and_then(|value| value.parse::<i64>().ok()) {
                profile[name] = value.into();
            }
        }
        self.vgpu_profiles.push(profile.clone());
        Ok(json!({"vgpuprofile": profile}))
    }

    /// Counts a call of the account; refuses it when there were too many in the window.
    pub(crate) fn count_call(&mut self, caller: usize, now: Timestamp) -> Result<(), Refusal> {
        let Some(throttle) = self.settings.throttle else { return Ok(()) };
        let Some(account) = self.accounts.get_mut(caller).filter(|account| account.role != Role::Root) else {
            return Ok(());
        };
        if account.calls.1 <= now {
            account.calls = (0, after(now, throttle.interval));
        }
        for _ in 0..if throttle.counts_twice { 2 } else { 1 } {
            if account.calls.0 >= throttle.max {
                let left = account.calls.1.duration_since(now).as_millis();
                let text = format!(
                    "The given user has reached his/her account api limit, please retry after [{left}] ms."
                );
                return Err(Refusal::new(429, 9999, text));
            }
            account.calls.0 += 1;
        }
        Ok(())
    }

    pub(crate) fn affinity_types() -> Vec<Value> {
        AFFINITY_TYPES.iter().map(|kind| json!({"type": kind})).collect()
    }

    /// Machines of an owner, for whoever asks about the world from outside.
    pub(crate) fn owner_of(&self, account: usize) -> Owner {
        Owner { account, project: None }
    }
}
