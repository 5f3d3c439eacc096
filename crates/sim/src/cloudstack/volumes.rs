//! Data disks on their own: made, attached, destroyed.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::state::{Outcome, State, Volume, Work};
use super::wire::{Call, Refusal};

impl State {
    /// The row is there as soon as the order is accepted; space is taken when it is first attached.
    pub(crate) fn create_volume(
        &mut self,
        caller: usize,
        call: &Call,
        now: Timestamp,
    ) -> Result<Value, Refusal> {
        let owner = self.owner_named(caller, call)?;
        let (offering, size_bytes, _) = self.new_disks(call)?.into_iter().next().ok_or_else(|| {
            Refusal::parameter("Either disk offering or snapshot is needed to create a volume")
        })?;
        self.check_limits(&owner, &[("volume", 1), ("primary_storage", size_bytes >> 30)])?;
        let id = self.uuid();
        self.volumes.push(Volume {
            id: id.clone(),
            name: call.get("name").unwrap_or_default().to_owned(),
            root: false,
            owner,
            zone: call.get("zoneid").unwrap_or_default().to_owned(),
            created: now,
            machine: None,
            device: 0,
            size_bytes,
            offering,
            pool: None,
            destroyed: None,
            tags: Vec::new(),
        });
        let work = Work::Nothing(json!({"volume": {"id": id}}));
        let instance = Some(("Volume", id.clone()));
        let job = self.accept(caller, "user.volume.CreateVolumeCmd", instance, work, None, now)?;
        Ok(json!({"id": id, "jobid": job}))
    }

    pub(crate) fn attach_volume(
        &mut self,
        caller: usize,
        call: &Call,
        now: Timestamp,
    ) -> Result<Value, Refusal> {
        let volume = call.get("id").unwrap_or_default().to_owned();
        let machine = call.get("virtualmachineid").unwrap_or_default();
        let machine = self.machine_ids.get(machine).copied();
        let machine = machine.ok_or_else(|| Refusal::parameter("Unable to find the virtual machine"))?;
        if self.machines.get(&machine).is_some_and(|machine| !self.may(caller, &machine.owner)) {
            return Err(Refusal::of_others());
        }
        self.own_volume(caller, &volume)?;
        let device = call.get("deviceid").and_then(|id| id.parse().ok());
        let work = Work::Attach { volume: volume.clone(), machine, device };
        let instance = Some(("Volume", volume));
        let job = self.accept(caller, "user.volume.AttachVolumeCmd", instance, work, None, now)?;
        Ok(json!({"jobid": job}))
    }

    pub(crate) fn destroy_volume(
        &mut self,
        caller: usize,
        call: &Call,
        now: Timestamp,
    ) -> Result<Value, Refusal> {
        let id = call.get("id").unwrap_or_default().to_owned();
        let volume = self.own_volume(caller, &id)?;
        if volume.machine.is_some() {
            let text = "Please specify a volume that is not attached to any VM.";
            return Err(Refusal::parameter(text));
        }
        // The real server says so in the job; of what never was attached there is nothing that could be recovered.
        if call.command() == "destroyVolume" && volume.device == 0 {
            let text = "The volume in Allocated/Uploaded state can only be expunged not destroyed/recovered";
            return Err(Refusal::parameter(text));
        }
        if call.command() == "deleteVolume" {
            self.volumes.retain(|volume| volume.id != id);
            return Ok(json!({"success": true}));
        }
        for volume in self.volumes.iter_mut().filter(|volume| volume.id == id) {
            volume.destroyed = Some(now);
        }
        let work = Work::Nothing(json!({"volume": {"id": id, "state": "Destroy"}}));
        let instance = Some(("Volume", id));
        let job = self.accept(caller, "user.volume.DestroyVolumeCmd", instance, work, None, now)?;
        Ok(json!({"jobid": job}))
    }

    fn own_volume(&self, caller: usize, id: &str) -> Result<&Volume, Refusal> {
        let volume = self.volumes.iter().find(|volume| volume.id == id && volume.destroyed.is_none());
        let volume = volume.ok_or_else(|| Refusal::parameter(format!("Unable to find volume {id}")))?;
        if self.may(caller, &volume.owner) {
            return Ok(volume);
        }
        Err(Refusal::of_others())
    }

    pub(crate) fn attached(&mut self, volume: &str, machine: u64, device: Option<i64>) -> Outcome {
        let ready = |state: &str| matches!(state, "Running" | "Stopped");
        if !self.machines.get(&machine).is_some_and(|machine| ready(machine.state)) {
            let text = "Please specify a VM that is either running or stopped.";
            return Outcome::Failed(431, text.to_owned());
        }
        let older = self.is_older_than(&[4, 20]);
        let used = self.volumes.iter().filter(|v| v.machine == Some(machine));
        let used: BTreeMap<i64, String> = used.map(|v| (v.device, v.name.clone())).collect();
        // 0 is the root disk, 3 the CD drive.
        let device = device.or_else(|| (1..).find(|device| *device != 3 && !used.contains_key(device)));
        let device = device.unwrap_or_default();
        let Some(volume) = self.volumes.iter_mut().find(|v| v.id == volume && v.destroyed.is_none()) else {
            return Outcome::Failed(431, format!("Unable to find volume {volume}"));
        };
        if volume.machine.is_some() {
            return Outcome::Failed(
                431,
                "Please specify a volume that is not attached to any VM.".to_owned(),
            );
        }
        if let Some(by) = used.get(&device) {
            let text = match older {
                true => format!("deviceId {device} is used by vm {machine}"),
                false => format!("deviceId {device} is used by vol {by} on vm {machine}"),
            };
            return Outcome::Failed(530, text);
        }
        volume.machine = Some(machine);
        volume.device = device;
        Outcome::Done(json!({"volume": {"id": volume.id}}))
    }
}
