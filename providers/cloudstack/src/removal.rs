//! How machines go: those of a NodeClaim that ends, and those that nobody wants. One order at a time for each, and what became of the last
//! one is asked before the next. Orders that are under way are in [`crate::deletions`]; when a machine counts as gone is said by
//! [`crate::absence`].

use std::time::Duration;

use karpenter_api::NodeClaim;
use karpenter_cloudprovider::error::ProviderError;
use kube::ResourceExt as _;
use serde_json::Value;

use crate::absence::{Care, Whereabouts};
use crate::client::error::{ApiError, ErrorKind};
use crate::client::job::{Job, JobState};
use crate::client::model::VirtualMachine;
use crate::client::request::Scope;
use crate::client::requests;
use crate::deletions::LastOrder;
use crate::instances::{RECENT, failed};
use crate::labels;
use crate::naming::machine_id;
use crate::protection::{DeleteProtected, protected};
use crate::shared::{Shared, closed};

/// As [`RECENT`], while the server takes no orders.
const WITHOUT_ORDERS: Duration = Duration::from_secs(60);

impl Shared {
    /// How old a list may be that usually is so old at most. While nothing can be ordered there is only the end of machines to be seen,
    /// and everybody who waits for one looks every few seconds.
    pub(crate) fn recent_enough(&self, usually: Duration) -> Duration {
        if self.client.is_closed_to_orders() { WITHOUT_ORDERS } else { usually }
    }

    /// Starts or goes on removing the machines of a claim.
    pub(crate) async fn remove(&self, claim: &NodeClaim, scopes: &[Scope]) -> Result<(), ProviderError> {
        let provider_id =
            claim.status.as_ref().and_then(|status| status.provider_id.clone()).unwrap_or_default();
        let id = match provider_id.is_empty() {
            true => None,
            false => Some(machine_id(&provider_id).ok_or_else(|| {
                ProviderError::other(format!("provider id {provider_id:?} is none of CloudStack's"))
            })?),
        };
        // Its own, and whatever else was made for it.
        let mut machines = Vec::new();
        let mut listed = false;
        // A project that is gone or closed to us holds up no machine elsewhere, and says nothing of its own.
        let mut unknown = None;
        let mut is_closed = |scope: &Scope, error: &ApiError| {
            let closed_to_us = self.is_closed(scope, error);
            if closed_to_us {
                unknown = Some(closed(scope, error));
            }
            closed_to_us
        };
        let age = self.recent_enough(RECENT);
        for scope in scopes {
            let there = match id {
                None => self.inventory.fresh(scope, Care::Complete).await,
                Some(_) => self.inventory.recent(scope, age).await,
            };
            let there = match there {
                Err(error) if is_closed(scope, &error) => continue,
                there => there.map_err(|error| failed(&error))?,
            };
            if let Some(id) = id.filter(|_| !listed) {
                let found = match there.iter().find(|machine| machine.id == id) {
                    Some(machine) => Some(machine.clone()),
                    None => self.lookups.find(id, scope).await.map_err(|error| failed(&error))?,
                };
                listed = found.is_some();
                machines.extend(found.map(|machine| (scope.clone(), machine)));
            }
            let mine: Vec<&VirtualMachine> = match id {
                Some(id) => self.twins_of(&there, claim, id),
                None => self.machines_of(&there, claim).into_iter().map(|(_, machine)| machine).collect(),
            };
            machines.extend(mine.into_iter().map(|machine| (scope.clone(), machine.clone())));
        }
        machines.retain(|(_, machine)| !matches!(machine.state.as_str(), "Destroyed" | "Expunging"));
        if let Some(text) = unknown.filter(|_| machines.is_empty()) {
            self.voice.warn(claim, "ScopeClosed", text.clone());
            return Err(ProviderError::other(text));
        }
        if machines.is_empty() {
            if let Some(id) = id {
                let whereabouts = if listed { Ok(Whereabouts::Gone) } else { self.whereabouts(id).await };
                match whereabouts.map_err(|error| failed(&error))? {
                    Whereabouts::Gone => {}
                    Whereabouts::Going => return Ok(()),
                    Whereabouts::Hidden(text) => {
                        self.voice.warn(claim, "MachineHidden", text.clone());
                        return Err(ProviderError::other(text));
                    }
                }
                self.protected.note(id, false);
                if self.deletions.ended(id) {
                    self.metrics.jobs_ended.inc(&["destroy", "succeeded"]);
                }
            }
            let what = if provider_id.is_empty() { claim.name_any() } else { provider_id };
            return Err(ProviderError::not_found(format!("CloudStack has no virtual machine for {what}")));
        }
        // One that will not go keeps no other from going, and one that is gone says nothing of the others, nor of the one it is a twin
        // of, which no list shows.
        let is_only = machines.len() == 1;
        let mut trouble = None;
        for (scope, machine) in machines {
            let says_it_all = is_only && id.is_none_or(|id| id == machine.id);
            match self.go_on_deleting(claim, &machine, &scope).await {
                Err(error) if says_it_all || !error.is_not_found() => trouble = trouble.or(Some(error)),
                _ => {}
            }
        }
        trouble.map_or(Ok(()), Err)
    }

    /// One order at a time: jobs of a machine wait for each other, so a second would only queue up.
    async fn go_on_deleting(
        &self,
        claim: &NodeClaim,
        machine: &VirtualMachine,
        scope: &Scope,
    ) -> Result<(), ProviderError> {
        if let Some(why) = self.why_not_ours(machine) {
            let text = format!(
                "virtual machine {} ({}) is not destroyed: {why}; if it is not this cluster's, take NodeClaim {} away by removing its finalizers",
                machine.name,
                machine.id,
                claim.name_any()
            );
            self.voice.warn(claim, "DeleteRefused", text.clone());
            return Err(ProviderError::other(text));
        }
        let mut under_way = self.deletions.job(&machine.id);
        if under_way.is_none() && machine.has_pending_job() {
            // Ordered by whoever led before us, perhaps: servers since 4.22.1 know the last job of a machine.
            // The list may still tell of another.
            let asked = self.client.call(&requests::query_job_of_machine(&machine.id)).await;
            let destroys = |job: &Value| job["cmd"].as_str().is_some_and(|cmd| cmd.contains("DestroyVMCmd"));
            let job = asked.ok().filter(destroys).and_then(|job| Job::from_answer(&job).ok());
            if let Some(job) = job.filter(|job| job.state == JobState::Pending) {
                self.deletions.ordered(&machine.id, &job.id);
                under_way = Some(job.id);
            }
        }
        if under_way.is_some() && machine.has_pending_job() {
            return Ok(());
        }
        let last = match self.last_order(machine).await.map_err(|error| failed(&error))? {
            // What the list says need not be found out by an order.
            LastOrder::None if machine.deleteprotection => LastOrder::Protected,
            last => last,
        };
        match last {
            LastOrder::UnderWay => return Ok(()),
            LastOrder::Protected => {
                self.protected.note(&machine.id, true);
                self.voice.warn(claim, "DeleteRefused", protected(machine));
                let text = format!("{}, Karpenter keeps trying ({})", protected(machine), machine.id);
                return Err(ProviderError::other(text));
            }
            LastOrder::Failed(error) => {
                let text = format!(
                    "virtual machine {} ({}) could not be destroyed: {error}; Karpenter tries again, ever more rarely; look at its host and at snapshots of its disks",
                    machine.name, machine.id
                );
                self.voice.warn(claim, "DeleteRefused", text.clone());
                return Err(ProviderError::other(text));
            }
            LastOrder::None => {}
        }
        self.protected.note(&machine.id, false);
        match self.destroy(machine, scope, "deleted").await {
            Ok(()) => Ok(()),
            Err(error) if error.says_there_is_no_such_id() => {
                Err(ProviderError::not_found(format!("CloudStack has no virtual machine {}", machine.id)))
            }
            Err(error) => Err(failed(&error)),
        }
    }

    /// Destroys a machine that nobody wants; whether the server took the order. What cannot be done now is found again by garbage
    /// collection.
    pub(crate) async fn discard(
        &self,
        machine: &VirtualMachine,
        scope: &Scope,
        reason: &'static str,
    ) -> Result<bool, DeleteProtected> {
        let ordered = async {
            match self.last_order(machine).await? {
                LastOrder::UnderWay => Ok(Ok(false)),
                LastOrder::Protected => Ok(Err(DeleteProtected)),
                LastOrder::Failed(error) => Err(error),
                LastOrder::None => self.destroy(machine, scope, reason).await.map(|()| Ok(true)),
            }
        };
        ordered.await.unwrap_or_else(|error: ApiError| {
            tracing::warn!(machine = machine.id, %error, "a machine will be destroyed later");
            Ok(false)
        })
    }

    /// What came of the last order to destroy a machine that is still there.
    async fn last_order(&self, machine: &VirtualMachine) -> Result<LastOrder, ApiError> {
        let Some(job) = self.deletions.job(&machine.id) else {
            return Ok(self.deletions.rests(&machine.id).map_or(LastOrder::None, LastOrder::Failed));
        };
        let error = match self.client.job(&job).await {
            Ok(job) => match job.state {
                JobState::Pending => return Ok(LastOrder::UnderWay),
                JobState::Succeeded(_) => return Ok(LastOrder::None),
                JobState::Failed(error) => error,
            },
            Err(error) if error.is_not_found() => {
                self.deletions.ended(&machine.id);
                return Ok(LastOrder::None);
            }
            Err(error) => return Err(error),
        };
        self.metrics.jobs_ended.inc(&["destroy", "failed"]);
        let last = match error.kind {
            ErrorKind::ExpungeDenied => {
                self.expunge_denied.note();
                LastOrder::None
            }
            ErrorKind::DeleteProtected => LastOrder::Protected,
            ErrorKind::NotFound => LastOrder::None,
            _ => {
                self.deletions.failed(&machine.id, &error);
                return Ok(LastOrder::Failed(error));
            }
        };
        self.deletions.ended(&machine.id);
        Ok(last)
    }

    async fn destroy(
        &self,
        machine: &VirtualMachine,
        scope: &Scope,
        reason: &'static str,
    ) -> Result<(), ApiError> {
        if let Some(error) = self.client.takes_no_prepared_order() {
            return Err(error);
        }
        let disks = self.disks_of(machine, scope).await?;
        let volumes: Vec<String> = disks.into_iter().map(|disk| disk.id).collect();
        let expunge = self.may_expunge(machine).await;
        let _turn = self.destroying.acquire().await;
        let answer = self.client.call(&requests::destroy(&machine.id, expunge, &volumes)).await;
        let answer = answer.inspect_err(|error| {
            if error.kind == ErrorKind::ExpungeDenied {
                self.expunge_denied.note();
            }
        })?;
        self.launches.forget(&machine.id);
        if !self.deletions.has(&machine.id) {
            self.metrics.deleted.inc(&[&machine.zonename, &machine.serviceofferingname, reason]);
        }
        if let Some(job) = answer["jobid"].as_str() {
            self.deletions.ordered(&machine.id, job);
        }
        self.catalogue.forget_budgets();
        Ok(())
    }

    async fn may_expunge(&self, machine: &VirtualMachine) -> bool {
        let class = machine.tag(labels::TAG_NODE_CLASS).and_then(|name| self.objects.node_class(name));
        let spec = class.and_then(|class| class.spec.clone()).unwrap_or_default();
        self.options.expunge
            && spec.deletion_policy.as_deref() != Some("Destroy")
            && !self.expunge_denied.holds()
            && self.catalogue.capabilities().await.is_ok_and(|can| can.allowuserexpungerecovervm)
    }
}
