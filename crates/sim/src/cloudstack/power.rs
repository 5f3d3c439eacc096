//! Machines start, stop, are rebooted and scaled: what the state of each allows, and what the server says where it does not.
//!
//! What was not measured is as the server's source (4.23) has it.

use jiff::Timestamp;
use serde_json::json;

use super::deploy::size;
use super::jobs::{after, stamp};
use super::placement::number;
use super::state::{Event, Job, Machine, Outcome, Router, Size, State, Work};
use super::wire::{Call, Refusal};

impl State {
    /// The machine a job works on, or what becomes of the job without it.
    fn machine_of(&self, job: &Job) -> Result<&Machine, Outcome> {
        let number = job.machine.unwrap_or_default();
        let gone = || Outcome::Failed(431, format!("unable to find a virtual machine with id {number}"));
        self.machines.get(&number).ok_or_else(gone)
    }

    /// A machine as the server's own words name it.
    fn words_for(&self, machine: &Machine) -> String {
        format!(
            "VM instance {{\"id\":{},\"instanceName\":\"{}\",\"state\":\"{}\",\"type\":\"User\",\"uuid\":\"{}\"}}",
            machine.number,
            self.instance_name(machine),
            machine.state,
            machine.id
        )
    }

    /// Only what stands still is started.
    fn why_not_started(&self, machine: &Machine) -> Option<Outcome> {
        let (code, text) = match machine.state {
            "Stopped" => return None,
            "Running" => {
                (431, format!("The virtual machine {} ({}) is already running", machine.id, machine.name))
            }
            state => (530, format!("Cannot start {} in {state} state", self.words_for(machine))),
        };
        Some(Outcome::Failed(code, text))
    }

    fn not_orchestrated(&self, machine: &Machine) -> String {
        format!(
            "Unable to orchestrate the start of VM instance {{\"instanceName\":\"{}\",\"uuid\":\"{}\"}}.",
            self.instance_name(machine),
            machine.id
        )
    }

    /// Places it, and then starts it; nothing yet while it is on its way.
    pub(crate) fn step_start(
        &mut self,
        job: &Job,
        deploy: bool,
        start: bool,
        placed: bool,
        now: Timestamp,
    ) -> Option<Outcome> {
        let machine = match self.machine_of(job) {
            Ok(machine) => machine.clone(),
            Err(outcome) => return Some(outcome),
        };
        let number = machine.number;
        if !start {
            return Some(self.rendered(job));
        }
        if !placed {
            if let Some(refused) = self.why_not_started(&machine) {
                return Some(refused);
            }
            let host = match self.place(&machine) {
                Ok(host) => host,
                Err((code, text)) => return Some(self.failed_start(number, deploy, false, code, text, now)),
            };
            let mut first = false;
            for nic in &machine.nics {
                for network in self.networks.iter_mut().filter(|n| n["id"] == nic.network.as_str()) {
                    if network["state"] == "Allocated" {
                        network["state"] = "Implementing".into();
                        first = true;
                    }
                    first |= network["state"] == "Implementing";
                }
            }
            let latencies = self.settings.latencies;
            let span = if first { latencies.first_start } else { latencies.start };
            let done = after(now, self.delays.duration(&span));
            if first {
                for nic in &machine.nics {
                    self.schedule(done, Event::Implemented(nic.network.clone()));
                }
            }
            let machine = self.machines.get_mut(&number)?;
            machine.state = "Starting";
            machine.host = Some(host);
            machine.stored = true;
            machine.updated = Some(now);
            for nic in &mut machine.nics {
                nic.plugged = true;
            }
            if let Some(job) = self.jobs.get_mut(&job.id) {
                job.work = Work::Start { deploy, start, placed: true };
            }
            self.schedule(done, Event::Step(job.id.clone()));
            return None;
        }
        if machine.state != "Starting" {
            // Somebody was faster.
            return Some(Outcome::Failed(530, self.not_orchestrated(&machine)));
        }
        let broken = machine.host.as_ref().is_some_and(|host| self.broken_hosts.contains(host));
        if self.settings.volumes_fail || !self.store(number) {
            // Since 4.22.1 tenants are not told more.
            let why = match self.is_older_than(&[4, 22, 1]) {
                true => "[Unable to create a deployment after 3 attempts]",
                false => "insufficient capacity",
            };
            let text = format!("Unable to start a VM [{}] due to {why}.", machine.id);
            return Some(self.failed_start(number, deploy, true, 530, text, now));
        }
        let routers = machine.nics.iter().filter_map(|nic| self.broken_routers.get(&nic.network));
        if let Some(how) = routers.copied().next() {
            let text = self.failed_router(&machine.id, how);
            return Some(self.failed_start(number, deploy, true, 530, text, now));
        }
        if self.settings.starts_fail || broken {
            let text = self.not_orchestrated(&machine);
            return Some(self.failed_start(number, deploy, true, 530, text, now));
        }
        let machine = self.machines.get_mut(&number)?;
        machine.state = "Running";
        machine.updated = Some(now);
        machine.details.remove("deployvm");
        Some(self.rendered(job))
    }

    /// What is said of a machine whose network has a router that fails.
    fn failed_router(&self, machine: &str, how: Router) -> String {
        match how {
            Router::Unreachable if self.is_older_than(&[4, 23]) => {
                "Network is unavailable. Please contact administrator".to_owned()
            }
            Router::Unreachable => {
                format!("The Network for VM {machine} is unavailable. Please contact administrator.")
            }
            // Since 4.22.1 tenants are not told more.
            Router::Disobedient if self.is_older_than(&[4, 22, 1]) => format!(
                "Unable to start a VM [{machine}] due to [Unable to create a deployment for VM instance {{\"uuid\":\"{machine}\"}}]."
            ),
            Router::Disobedient => format!("Unable to start a VM [{machine}] due to insufficient capacity."),
        }
    }

    fn failed_start(
        &mut self,
        number: u64,
        deploy: bool,
        was_placed: bool,
        code: u16,
        text: String,
        now: Timestamp,
    ) -> Outcome {
        if let Some(machine) = self.machines.get_mut(&number) {
            machine.state = if deploy { "Error" } else { "Stopped" };
            machine.host = None;
            machine.updated = Some(now);
            if was_placed {
                for nic in &mut machine.nics {
                    nic.plugged = false;
                }
            }
        }
        Outcome::Failed(code, text)
    }

    /// A machine that runs begins to stop as soon as its turn comes.
    pub(crate) fn begin_to_stop(&mut self, number: Option<u64>, now: Timestamp) {
        let machine = number.and_then(|number| self.machines.get_mut(&number));
        if let Some(machine) = machine.filter(|machine| machine.state == "Running") {
            machine.state = "Stopping";
            machine.updated = Some(now);
        }
    }

    /// What does not run stays as it is, which the server takes for success.
    pub(crate) fn stopped(&mut self, job: &Job, now: Timestamp) -> Outcome {
        let machine = match self.machine_of(job) {
            Ok(machine) => machine.clone(),
            Err(outcome) => return outcome,
        };
        if matches!(machine.state, "Stopped" | "Destroyed" | "Expunging" | "Error") {
            return self.rendered(job);
        }
        if machine.state != "Stopping" {
            let text =
                format!("We cannot stop {} when it is in state {}", self.words_for(&machine), machine.state);
            return Outcome::Failed(530, text);
        }
        if let Some(machine) = self.machines.get_mut(&machine.number) {
            machine.state = "Stopped";
            machine.host = None;
            machine.updated = Some(now);
            for nic in &mut machine.nics {
                nic.plugged = false;
            }
        }
        let by = self.accounts.get(job.account).map(|account| account.name.clone()).unwrap_or_default();
        self.record(&machine, &by, "VM.STOP", "Successfully completed stopping", "Completed", now);
        self.rendered(job)
    }

    /// Writes down what somebody did to a machine.
    pub(crate) fn record(
        &mut self,
        machine: &Machine,
        by: &str,
        kind: &str,
        what: &str,
        stage: &str,
        now: Timestamp,
    ) {
        let mut event = json!({
            "id": format!("00000000-0000-4000-8000-{:012x}", self.history.len()),
            "username": by, "type": kind, "level": "INFO", "state": stage,
            "description": format!("{what} VM: {}", machine.id), "created": stamp(now),
            "resourceid": machine.id, "resourcetype": "VirtualMachine", "archived": false,
        });
        for (key, value) in self.owned(&machine.owner) {
            event[key] = value;
        }
        self.history.push((machine.owner.clone(), event));
    }

    pub(crate) fn rebooted(&self, job: &Job) -> Outcome {
        match self.machine_of(job) {
            Ok(machine) if machine.state == "Running" => self.rendered(job),
            Ok(machine) => Outcome::Failed(
                431,
                format!("The Instance {} ({}) is not running, unable to reboot it", machine.id, machine.name),
            ),
            Err(outcome) => outcome,
        }
    }

    /// The work of an order to scale; what is wrong with the size its job says.
    pub(crate) fn scaling(&self, call: &Call) -> Work {
        let id = call.get("serviceofferingid").unwrap_or_default();
        let offering = Self::by_id(&self.offerings, id).cloned().unwrap_or_default();
        let wanted = match offering["state"] == "Inactive" {
            true => Err(Refusal::parameter(format!("New service offering is inactive: [{id}]."))),
            false => size(&offering, call).map(|(cpu, cpu_speed, memory, _)| Size {
                cpu,
                cpu_speed,
                memory,
                gpus: number(&offering["gpucount"]),
            }),
        };
        Work::Scale { offering: id.to_owned(), wanted }
    }

    /// A machine that stands still gets another offering; one that runs does not where zones do not let it, which is the default.
    pub(crate) fn scaled(&mut self, job: &Job, offering: &str, wanted: Result<Size, Refusal>) -> Outcome {
        let machine = match self.machine_of(job) {
            Ok(machine) => machine.clone(),
            Err(outcome) => return outcome,
        };
        let wanted = match wanted {
            Ok(wanted) => wanted,
            Err(refusal) => return Outcome::Failed(refusal.code, refusal.text),
        };
        let name = self.words_for(&machine);
        match machine.state {
            "Stopped" => {}
            "Running" => {
                let text =
                    "Dynamically scaling Instances is disabled for this zone, please contact your admin.";
                return Outcome::Failed(530, text.to_owned());
            }
            state => {
                let text = format!(
                    "Unable to upgrade virtual machine {name}  in state {state}; make sure the virtual machine is stopped/running"
                );
                return Outcome::Failed(431, text);
            }
        }
        let is_custom =
            Self::by_id(&self.offerings, offering).is_some_and(|offering| offering["iscustomized"] == true);
        if machine.offering == offering && !is_custom {
            let text = format!("Not upgrading vm {name} since it already has the requested service offering");
            return Outcome::Failed(431, text);
        }
        let more = [("cpu", wanted.cpu - machine.cpu), ("memory", wanted.memory - machine.memory)];
        let more: Vec<(&str, i64)> = more.into_iter().filter(|(_, more)| *more > 0).collect();
        if let Err(refusal) = self.check_limits(&machine.owner, &more) {
            return Outcome::Failed(refusal.code, refusal.text);
        }
        if let Some(machine) = self.machines.get_mut(&machine.number) {
            offering.clone_into(&mut machine.offering);
            Size {
                cpu: machine.cpu,
                cpu_speed: machine.cpu_speed,
                memory: machine.memory,
                gpus: machine.gpus,
            } = wanted;
        }
        self.rendered(job)
    }
}
