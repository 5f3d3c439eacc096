//! Jobs: accepted at once, carried out step by step, one at a time per machine. What starts and stops machines is in `power`.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::account::Role;
use super::state::{Event, Job, Outcome, State, Work};
use super::wire::Refusal;
use crate::chance::Span;

/// `then` later, as far as a clock goes.
pub(crate) fn after(now: Timestamp, then: Duration) -> Timestamp {
    SignedDuration::try_from(then).ok().and_then(|then| now.checked_add(then).ok()).unwrap_or(Timestamp::MAX)
}

impl State {
    /// Accepts a job. One whose id was used before is refused, after all that came before the check was done.
    pub(crate) fn accept(
        &mut self,
        caller: usize,
        class: &'static str,
        instance: Option<(&'static str, String)>,
        work: Work,
        custom_id: Option<&str>,
        now: Timestamp,
    ) -> Result<String, Refusal> {
        let used = custom_id.and_then(|id| self.jobs.get(id));
        if used.is_some_and(|job| !self.has_forgotten(job, now)) {
            return Err(Refusal::hidden(9999));
        }
        let id = custom_id.map_or_else(|| self.uuid(), str::to_owned);
        let machine = match &instance {
            Some(("VirtualMachine", id)) => self.machine_ids.get(id).copied(),
            _ => None,
        };
        let job = Job {
            id: id.clone(),
            account: caller,
            class,
            machine,
            instance,
            created: now,
            completed: None,
            outcome: None,
            work,
        };
        self.jobs.insert(id.clone(), job);
        let first = match machine.and_then(|number| self.machines.get_mut(&number)) {
            Some(machine) => {
                machine.jobs.push_back(id.clone());
                machine.jobs.len() == 1
            }
            None => true,
        };
        if first {
            self.begin(&id, now);
        }
        Ok(id)
    }

    /// Whether a job ended so long ago that nobody is told of it any more.
    pub(crate) fn has_forgotten(&self, job: &Job, now: Timestamp) -> bool {
        job.completed.is_some_and(|completed| after(completed, self.settings.job_expiry) <= now)
    }

    fn begin(&mut self, id: &str, now: Timestamp) {
        let Some(job) = self.jobs.get(id) else { return };
        if job.work == Work::Stop {
            let machine = job.machine;
            self.begin_to_stop(machine, now);
        }
        let Some(job) = self.jobs.get(id) else { return };
        let latencies = self.settings.latencies;
        let span: Span = match &job.work {
            Work::Start { start: true, .. } => {
                let refused = job
                    .machine
                    .and_then(|number| self.machines.get(&number))
                    .is_some_and(|machine| self.place(machine).is_err());
                if refused { latencies.refuse } else { latencies.place }
            }
            Work::Stop | Work::Reboot => latencies.stop,
            Work::Destroy { .. } | Work::Expunge => latencies.destroy,
            _ => latencies.small_job,
        };
        let delay = self.delays.duration(&span);
        self.schedule(after(now, delay), Event::Step(id.to_owned()));
    }

    /// Everything that was to happen until now happens.
    pub(crate) fn catch_up(&mut self, now: Timestamp) {
        while let Some((&(at, sequence), _)) = self.events.first_key_value()
            && at <= now
        {
            let Some(event) = self.events.remove(&(at, sequence)) else { break };
            match event {
                Event::Step(id) => self.step(&id, at),
                Event::Implemented(id) => {
                    for network in self.networks.iter_mut().filter(|network| network["id"] == id.as_str()) {
                        network["state"] = "Implemented".into();
                    }
                }
                Event::ExpungeThread => {
                    self.expunge_due(at);
                    let interval = self.settings.expunge_interval;
                    self.schedule(after(at, interval), Event::ExpungeThread);
                }
            }
        }
    }

    fn step(&mut self, id: &str, now: Timestamp) {
        let Some(job) = self.jobs.get(id).filter(|job| job.outcome.is_none()).cloned() else { return };
        let outcome = match job.work.clone() {
            Work::Start { deploy, start, placed } => self.step_start(&job, deploy, start, placed, now),
            Work::Stop => Some(self.stopped(&job, now)),
            Work::Reboot => Some(self.rebooted(&job)),
            Work::Scale { offering, wanted } => Some(self.scaled(&job, &offering, wanted)),
            Work::Destroy { expunge, volumes } => Some(self.destroyed(&job, expunge, &volumes, now)),
            Work::Expunge => Some(self.expunged(&job)),
            Work::Tag { resource_type, ids, tags } => {
                Some(self.tagged(job.account, &resource_type, &ids, &tags))
            }
            Work::Untag { ids, tags } => Some(self.untagged(job.account, &ids, &tags)),
            Work::Attach { volume, machine, device } => Some(self.attached(&volume, machine, device)),
            Work::Nothing(result) => Some(Outcome::Done(result)),
        };
        if let Some(outcome) = outcome {
            self.finish(id, outcome, now);
        }
    }

    fn finish(&mut self, id: &str, outcome: Outcome, now: Timestamp) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        job.outcome = Some(outcome);
        job.completed = Some(now);
        let next = job.machine.and_then(|number| {
            let Some(machine) = self.machines.get_mut(&number) else {
                // What waited for its turn at a machine that is gone gets it, and finds nothing.
                let waiting =
                    self.jobs.values().filter(|job| job.machine == Some(number) && job.outcome.is_none());
                return waiting.min_by_key(|job| job.created).map(|job| job.id.clone());
            };
            machine.jobs.retain(|other| other != id);
            machine.jobs.front().cloned()
        });
        if let Some(next) = next {
            self.begin(&next, now);
        }
    }

    /// The machine as it is now, as the result of a job.
    pub(crate) fn rendered(&self, job: &Job) -> Outcome {
        let role = self.accounts.get(job.account).map_or(Role::User, |account| account.role);
        let machine = job.machine.and_then(|number| self.machines.get(&number));
        let rendered = machine.map_or(Value::Null, |machine| {
            let mut rendered = self.render_machine(machine, role, &[], false);
            rendered["jobid"] = job.id.clone().into();
            rendered["jobstatus"] = 0.into();
            rendered
        });
        Outcome::Done(json!({"virtualmachine": rendered}))
    }

    fn destroyed(&mut self, job: &Job, expunge: bool, volumes: &[String], now: Timestamp) -> Outcome {
        let role = self.accounts.get(job.account).map_or(Role::User, |account| account.role);
        let Some(number) = job.machine else { return Outcome::Crashed };
        let Some(machine) = self.machines.get(&number) else {
            return Outcome::Failed(431, format!("unable to find a virtual machine with id {number}"));
        };
        if machine.protected {
            let name = self.instance_name(machine);
            let text = format!(
                "Instance [id = {}, name = {name}] has delete protection enabled and cannot be deleted.",
                machine.id
            );
            return Outcome::Failed(431, text);
        }
        if expunge && role == Role::User && !self.settings.user_may_expunge {
            return Outcome::Failed(530, "Account does not have permission for expunging.".to_owned());
        }
        if self.settings.destroys_fail && machine.state == "Running" {
            let name = self.instance_name(machine);
            let text = format!(
                "Unable to contact the agent to stop the virtual machine VM instance {{\"instanceName\":\"{name}\"}}"
            );
            return Outcome::Failed(530, text);
        }
        for volume in self.volumes.iter_mut().filter(|volume| volume.machine == Some(number)) {
            if volumes.contains(&volume.id) {
                volume.destroyed = Some(now);
                volume.machine = None;
            } else if !volume.root {
                volume.machine = None;
            }
        }
        if let Some(machine) = self.machines.get_mut(&number)
            && !matches!(machine.state, "Destroyed" | "Expunging")
        {
            if machine.stored {
                // Left by the real server on whatever once ran.
                let flag = "Message.ReservedCapacityFreed.Flag".to_owned();
                machine.details.insert(flag, "false".to_owned());
            }
            let broken = machine.state == "Error";
            machine.state = if broken { "Expunging" } else { "Destroyed" };
            machine.host = None;
            machine.updated = Some(now);
            if !broken {
                for nic in &mut machine.nics {
                    nic.plugged = false;
                }
            }
        }
        if expunge {
            self.volumes.retain(|volume| volume.destroyed.is_none() || !volumes.contains(&volume.id));
            self.remove(number);
            let empty = json!({"securitygroup": [], "nic": [], "affinitygroup": [], "deleteprotection": false, "tags": []});
            return Outcome::Done(json!({"virtualmachine": empty}));
        }
        self.rendered(job)
    }

    fn expunged(&mut self, job: &Job) -> Outcome {
        let role = self.accounts.get(job.account).map_or(Role::User, |account| account.role);
        if role == Role::User && !self.settings.user_may_expunge {
            return Outcome::Failed(530, "Account does not have permission for expunging.".to_owned());
        }
        let Some(number) = job.machine else { return Outcome::Crashed };
        match self.machines.get(&number) {
            Some(machine) if matches!(machine.state, "Destroyed" | "Expunging") => {
                self.remove(number);
                Outcome::Done(json!({"success": true}))
            }
            Some(machine) => {
                let text = format!("Please destroy vm with specified id before expunge: {}", machine.id);
                Outcome::Failed(431, text)
            }
            None => Outcome::Failed(431, format!("unable to find a virtual machine with id {number}")),
        }
    }

    /// The machine goes for good; its data disks stay behind.
    pub(crate) fn remove(&mut self, number: u64) {
        self.machines.remove(&number);
        self.volumes.retain(|volume| volume.machine != Some(number) || !volume.root);
        for volume in self.volumes.iter_mut().filter(|volume| volume.machine == Some(number)) {
            volume.machine = None;
        }
    }

    /// Machines that were destroyed, or failed to start, go for good when their time is over, and so do volumes that were destroyed.
    pub(crate) fn expunge_due(&mut self, now: Timestamp) {
        let delay = self.settings.expunge_delay;
        let due: Vec<u64> = self
            .machines
            .values()
            .filter(|machine| matches!(machine.state, "Destroyed" | "Expunging" | "Error"))
            .filter(|machine| after(machine.updated.unwrap_or(machine.created), delay) <= now)
            .map(|machine| machine.number)
            .collect();
        for number in due {
            self.remove(number);
        }
        let delay = self.settings.storage_cleanup_delay;
        self.volumes.retain(|volume| volume.destroyed.is_none_or(|at| after(at, delay) > now));
    }

    /// The server dies and comes back: jobs end without a result, what was starting stands still.
    pub(crate) fn crash(&mut self, now: Timestamp) {
        let running: Vec<String> =
            self.jobs.values().filter(|job| job.outcome.is_none()).map(|job| job.id.clone()).collect();
        for id in running {
            if let Some(job) = self.jobs.get_mut(&id) {
                job.outcome = Some(Outcome::Crashed);
                job.completed = Some(now);
            }
        }
        for machine in self.machines.values_mut() {
            machine.jobs.clear();
            if machine.state == "Stopping" {
                machine.state = "Stopped";
                machine.host = None;
                machine.updated = Some(now);
            }
            if machine.state == "Starting" {
                machine.details.insert("Message.ReservedCapacityFreed.Flag".to_owned(), "false".to_owned());
                machine.state = "Stopped";
                machine.updated = Some(now);
            }
        }
        self.events.retain(|_, event| !matches!(event, Event::Step(_)));
    }

    /// A job as `queryAsyncJobResult` shows it.
    pub(crate) fn render_job(&self, job: &Job) -> Value {
        let mut rendered = json!({
            "cmd": format!("org.apache.cloudstack.api.command.{}", job.class),
            "jobprocstatus": 0, "jobresultcode": 0, "created": stamp(job.created), "jobid": job.id, "jobstatus": 0,
        });
        if let Some(account) = self.accounts.get(job.account) {
            rendered["accountid"] = account.id.clone().into();
            rendered["account"] = account.name.clone().into();
            rendered["domainid"] = account.domain_id.clone().into();
            rendered["domainpath"] = account.domain_path.clone().into();
            rendered["userid"] = account.user_id.clone().into();
        }
        if let Some((kind, id)) = &job.instance {
            rendered["jobinstancetype"] = (*kind).into();
            rendered["jobinstanceid"] = id.clone().into();
        }
        if let Some(completed) = job.completed {
            rendered["completed"] = stamp(completed).into();
        }
        match &job.outcome {
            Some(Outcome::Done(result)) => {
                rendered["jobstatus"] = 1.into();
                rendered["jobresulttype"] = "object".into();
                rendered["jobresult"] = result.clone();
            }
            Some(Outcome::Failed(code, text)) => {
                rendered["jobstatus"] = 2.into();
                rendered["jobresultcode"] = (*code).into();
                rendered["jobresulttype"] = "object".into();
                rendered["jobresult"] = json!({"errorcode": code, "errortext": text});
            }
            Some(Outcome::Crashed) => {
                rendered["jobstatus"] = 2.into();
                rendered["jobresultcode"] = 530.into();
            }
            None => {}
        }
        if !matches!(job.outcome, Some(Outcome::Done(_) | Outcome::Failed(..)))
            && let Some(server) = self.management_servers.first()
        {
            rendered["managementserverid"] = server["id"].clone();
            rendered["managementservername"] = server["name"].clone();
        }
        rendered
    }
}

/// A time as the server writes it.
pub(crate) fn stamp(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S+0000").to_string()
}
