//! What a provider must keep to, whatever happens to the cloud: rules about NodeClaims and machines together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::NodeClaim;

use super::CloudStack;
use super::hands::is_live;
use super::state::Machine;
use crate::invariants::{Asked, Invariant, Rest, Step};
use crate::objects::{Change, Objects, uid};

/// The tag that says which NodeClaim a machine was made for.
const UID_TAG: &str = "karpenter.k8s.cloudstack/nodeclaim-uid";
/// How old a machine is that every list shows on good days.
const SEEN_BY: Duration = Duration::from_secs(60);
/// How often the slow rules are looked at.
const LOOK: Duration = Duration::from_secs(20);

/// All rules, for machines whose names begin with `karpenter-`.
pub fn all(cloud: &CloudStack) -> Vec<Box<dyn Invariant>> {
    vec![
        Box::new(MachinesAreWanted::within(cloud, Duration::from_secs(10 * 60))),
        Box::new(LivingClaimsKeepTheirMachine),
        Box::new(ClaimsOutliveTheirMachine(cloud.clone())),
        Box::new(OneMachinePerClaim(cloud.clone())),
    ]
}

fn machine_of(claim: &NodeClaim) -> Option<&str> {
    let provider_id = claim.status.as_ref()?.provider_id.as_deref()?;
    provider_id.rsplit('/').next().filter(|id| !id.is_empty())
}

/// The NodeClaim a machine says it was made for.
fn tag_of(machine: &Machine) -> Option<&str> {
    machine.tags.iter().find(|(key, _)| key == UID_TAG).map(|(_, value)| value.as_str())
}

fn ours(machine: &Machine) -> bool {
    is_live(machine.state) && machine.name.starts_with("karpenter-")
}

/// What NodeClaims stand behind: machines by id, and while a NodeClaim names none, those of its tag or name.
struct WantedMachines<'a> {
    ids: BTreeSet<&'a str>,
    /// Of NodeClaims without a machine: UID and name.
    waiting: Vec<(&'a str, &'a str)>,
}

impl<'a> WantedMachines<'a> {
    fn by(objects: &'a Objects) -> Self {
        let claims = || objects.node_claims.values();
        let waits = claims().filter(|claim| machine_of(claim).is_none());
        let named = |claim: &'a Arc<NodeClaim>| claim.metadata.name.as_deref().unwrap_or("-");
        Self {
            ids: claims().filter_map(|claim| machine_of(claim)).collect(),
            waiting: waits.map(|claim| (uid(&**claim), named(claim))).collect(),
        }
    }

    fn have(&self, machine: &Machine) -> bool {
        let tag = tag_of(machine);
        self.ids.contains(machine.id.as_str())
            || self.waiting.iter().any(|(uid, name)| match tag {
                Some(tag) => tag == *uid,
                None => machine.name.contains(name),
            })
    }
}

/// A machine without a NodeClaim, or beside another of the same NodeClaim, is gone within some minutes.
pub struct MachinesAreWanted {
    cloud: CloudStack,
    within: Duration,
    /// Whether bad days count too.
    always: bool,
    unwanted: BTreeMap<String, Timestamp>,
    looked: Option<Timestamp>,
}

impl MachinesAreWanted {
    /// Within this long of good days.
    pub fn within(cloud: &CloudStack, within: Duration) -> Self {
        Self { cloud: cloud.clone(), within, always: false, unwanted: BTreeMap::new(), looked: None }
    }

    /// Bad days count too.
    #[must_use]
    pub fn always(mut self) -> Self {
        self.always = true;
        self
    }

    fn look(&mut self, objects: &Objects, now: Timestamp) -> Result<(), String> {
        if self.cloud.is_exposed() && !self.always {
            self.unwanted.clear();
            return Ok(());
        }
        let wanted = WantedMachines::by(objects);
        let state = self.cloud.state();
        let machines = state.machines.values();
        let unwanted: Vec<&Machine> =
            machines.filter(|machine| ours(machine) && !wanted.have(machine)).collect();
        self.unwanted.retain(|id, _| unwanted.iter().any(|machine| machine.id == *id));
        for machine in unwanted {
            let since = *self.unwanted.entry(machine.id.clone()).or_insert(now);
            let age = Duration::try_from(now.duration_since(since)).unwrap_or_default();
            if age > self.within {
                return Err(format!(
                    "machine {} ({}, {}) has been without a NodeClaim for {age:?}",
                    machine.name, machine.id, machine.state
                ));
            }
        }
        Ok(())
    }
}

impl Invariant for MachinesAreWanted {
    fn name(&self) -> &'static str {
        "a machine nobody wants goes within ten minutes"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I5"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        let due = self
            .looked
            .is_none_or(|at| Duration::try_from(step.now.duration_since(at)).unwrap_or_default() >= LOOK);
        if !due {
            return Ok(());
        }
        self.looked = Some(step.now);
        self.look(step.objects, step.now)
    }

    fn check_at_rest(&mut self, rest: &Rest<'_>) -> Result<(), String> {
        self.look(rest.objects, rest.now)
    }
}

/// Nobody asks for the end of a machine whose NodeClaim is to stay.
pub struct LivingClaimsKeepTheirMachine;

impl Invariant for LivingClaimsKeepTheirMachine {
    fn name(&self) -> &'static str {
        "the machine of a living NodeClaim is not destroyed"
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        let Some(Asked::Terminate { id }) = step.asked else { return Ok(()) };
        let owner = step.objects.node_claims.values().find(|claim| machine_of(claim) == Some(id.as_str()));
        match owner.filter(|claim| claim.metadata.deletion_timestamp.is_none()) {
            Some(claim) => Err(format!(
                "machine {} of NodeClaim {}, which is not being deleted",
                id.as_str(),
                claim.metadata.name.as_deref().unwrap_or_default()
            )),
            None => Ok(()),
        }
    }
}

/// A NodeClaim goes only after its machine.
pub struct ClaimsOutliveTheirMachine(CloudStack);

impl Invariant for ClaimsOutliveTheirMachine {
    fn name(&self) -> &'static str {
        "a NodeClaim goes only after its machine"
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        for change in step.changes {
            let Change::NodeClaim(edit) = &**change else { continue };
            let (Some(old), None) = (&edit.old, &edit.new) else { continue };
            let Some(id) = machine_of(old) else { continue };
            let state = self.0.state();
            if state.machine(id).is_some_and(|machine| is_live(machine.state)) {
                return Err(format!("NodeClaim {} went while its machine {id} was there", edit.key));
            }
            // On bad days lists do not show everything that is there.
            let settled = |machine: &&Machine| {
                let age = Duration::try_from(step.now.duration_since(machine.created)).unwrap_or_default();
                age >= SEEN_BY && tag_of(machine) == Some(uid(&**old))
            };
            let twin = state.machines.values().filter(|machine| ours(machine)).find(settled);
            if let Some(twin) = twin.filter(|_| !self.0.is_exposed()) {
                return Err(format!("NodeClaim {} went while {} of it was there, too", edit.key, twin.id));
            }
        }
        Ok(())
    }
}

/// In the end a NodeClaim has one machine, however many were ordered for it.
pub struct OneMachinePerClaim(CloudStack);

impl Invariant for OneMachinePerClaim {
    fn name(&self) -> &'static str {
        "a NodeClaim has one machine in the end"
    }

    fn check(&mut self, _: &Step<'_>) -> Result<(), String> {
        Ok(())
    }

    fn check_at_rest(&mut self, rest: &Rest<'_>) -> Result<(), String> {
        let state = self.0.state();
        let mut claimed: BTreeMap<&str, &str> = BTreeMap::new();
        for machine in state.machines.values().filter(|machine| ours(machine)) {
            let Some(claim) = tag_of(machine) else { continue };
            if let Some(other) = claimed.insert(claim, &machine.id)
                && rest.objects.node_claims.values().any(|known| uid(&**known) == claim)
            {
                return Err(format!("machines {other} and {} are both of NodeClaim {claim}", machine.id));
            }
        }
        Ok(())
    }
}
