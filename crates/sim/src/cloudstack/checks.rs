//! What a provider must keep to, whatever happens to the cloud: rules about NodeClaims and machines together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::NodeClaim;

use super::CloudStack;
use super::account::Role;
use super::hands::{is_live, is_there};
use super::state::{Machine, Owner, State, Volume};
use crate::invariants::{Asked, Invariant, Rest, Step};
use crate::objects::{Change, Objects, uid};

/// The tag that says which NodeClaim a machine was made for.
const UID_TAG: &str = "karpenter.k8s.cloudstack/nodeclaim-uid";
/// The tag that says whose a disk is, and the one of those that are to stay.
const MANAGED_BY_TAG: (&str, &str) = ("karpenter.sh/managed-by", "karpenter");
const KEPT_TAG: &str = "karpenter.k8s.cloudstack/kept";
/// How old a machine is that every list shows on good days.
const SEEN_BY: Duration = Duration::from_secs(60);
/// How often the slow rules are looked at.
const LOOK: Duration = Duration::from_secs(20);

/// How long what nobody wants may stay.
pub const WITHIN: Duration = Duration::from_secs(10 * 60);

/// All rules, for machines whose names begin with `karpenter-`.
pub fn all(cloud: &CloudStack) -> Vec<Box<dyn Invariant>> {
    vec![
        Box::new(MachinesAreWanted::within(cloud, WITHIN)),
        Box::new(DisksAreWanted::within(cloud, WITHIN)),
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

fn is_named(machine: &Machine) -> bool {
    machine.name.starts_with("karpenter-")
}

fn ours(machine: &Machine) -> bool {
    is_live(machine.state) && is_named(machine)
}

/// The name of the NodeClaim in the name of a machine: behind the prefix and the cluster's digest, before the number of an attempt. (Names
/// that had to be cut have no such part; no world has any.)
fn claim_in(name: &str) -> Option<&str> {
    let (_, claim) = name.strip_prefix("karpenter-")?.split_once('-')?;
    let attempt = claim.rsplit_once("--").filter(|(_, number)| number.parse::<u32>().is_ok());
    Some(attempt.map_or(claim, |(claim, _)| claim))
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
                None => claim_in(&machine.name) == Some(*name),
            })
    }
}

/// What nobody wants, since when.
#[derive(Debug)]
struct Unwanted {
    within: Duration,
    since: BTreeMap<String, Timestamp>,
    looked: Option<Timestamp>,
}

impl Unwanted {
    fn within(within: Duration) -> Self {
        Self { within, since: BTreeMap::new(), looked: None }
    }

    /// Whether it is time to look again.
    fn is_due(&mut self, now: Timestamp) -> bool {
        let passed = |at| Duration::try_from(now.duration_since(at)).unwrap_or_default();
        let due = self.looked.is_none_or(|at| passed(at) >= LOOK);
        if due {
            self.looked = Some(now);
        }
        due
    }

    /// What has been unwanted for too long, of what is unwanted now: ids and what they are of. What cannot be removed counts from now.
    fn look(&mut self, unwanted: &BTreeMap<String, Thing>, now: Timestamp) -> Result<(), String> {
        self.since.retain(|id, _| unwanted.get(id).is_some_and(|thing| !thing.held));
        for (id, thing) in unwanted.iter().filter(|(_, thing)| !thing.held) {
            let since = *self.since.entry(id.clone()).or_insert(now);
            let age = Duration::try_from(now.duration_since(since)).unwrap_or_default();
            if age > self.within {
                return Err(format!("{} ({id}) has been without a NodeClaim for {age:?}", thing.what));
            }
        }
        Ok(())
    }
}

/// Something nobody wants.
struct Thing {
    what: String,
    /// Whether something keeps everybody from removing it.
    held: bool,
}

/// A machine without a NodeClaim, or beside another of the same NodeClaim, is gone within some minutes, also one that failed to start.
pub struct MachinesAreWanted {
    cloud: CloudStack,
    /// Whether bad days count too.
    always: bool,
    unwanted: Unwanted,
}

impl MachinesAreWanted {
    /// Within this long of good days.
    pub fn within(cloud: &CloudStack, within: Duration) -> Self {
        Self { cloud: cloud.clone(), always: false, unwanted: Unwanted::within(within) }
    }

    /// Bad days count too, but for what cannot be removed then.
    #[must_use]
    pub fn always(mut self) -> Self {
        self.always = true;
        self
    }

    fn look(&mut self, objects: &Objects, now: Timestamp) -> Result<(), String> {
        let exposed = self.cloud.is_exposed() && !self.always;
        let wanted = WantedMachines::by(objects);
        let state = self.cloud.state();
        let machines = state.machines.values().filter(|machine| is_there(machine.state) && is_named(machine));
        let unwanted = machines.filter(|machine| !wanted.have(machine)).map(|machine| {
            let held = exposed || machine.protected || state.holds(&machine.owner);
            (
                machine.id.clone(),
                Thing { what: format!("machine {}, {},", machine.name, machine.state), held },
            )
        });
        self.unwanted.look(&unwanted.collect(), now)
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
        if self.unwanted.is_due(step.now) { self.look(step.objects, step.now) } else { Ok(()) }
    }

    fn check_at_rest(&mut self, rest: &Rest<'_>) -> Result<(), String> {
        self.look(rest.objects, rest.now)
    }
}

/// A data disk that says whose it was, is not to stay and has lost its machine goes within some minutes of good days once its NodeClaim is gone.
pub struct DisksAreWanted {
    cloud: CloudStack,
    unwanted: Unwanted,
}

impl DisksAreWanted {
    /// Within this long.
    pub fn within(cloud: &CloudStack, within: Duration) -> Self {
        Self { cloud: cloud.clone(), unwanted: Unwanted::within(within) }
    }

    fn look(&mut self, objects: &Objects, now: Timestamp) -> Result<(), String> {
        let held = self.cloud.is_exposed();
        let state = self.cloud.state();
        let claims: BTreeSet<&str> = objects.node_claims.values().map(|claim| uid(&**claim)).collect();
        let tag = |disk: &Volume, key: &str| {
            disk.tags.iter().find(|(other, _)| other == key).map(|(_, value)| value.clone())
        };
        let is_left = |disk: &&Volume| {
            let (key, value) = MANAGED_BY_TAG;
            let claim = tag(disk, UID_TAG);
            !disk.root
                && disk.destroyed.is_none()
                && disk.machine.is_none_or(|number| !state.machines.contains_key(&number))
                && tag(disk, key).as_deref() == Some(value)
                && tag(disk, KEPT_TAG).is_none()
                && claim.is_some_and(|claim| {
                    // A destroyed twin of its machine could still be recovered.
                    let is_its = |machine: &Machine| tag_of(machine) == Some(claim.as_str());
                    !claims.contains(claim.as_str()) && !state.machines.values().any(is_its)
                })
        };
        let left = state.volumes.iter().filter(is_left);
        let left = left.map(|disk| (disk.id.clone(), Thing { what: format!("disk {}", disk.name), held }));
        self.unwanted.look(&left.collect(), now)
    }
}

impl Invariant for DisksAreWanted {
    fn name(&self) -> &'static str {
        "a disk nobody wants goes within ten minutes"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I5"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        if self.unwanted.is_due(step.now) { self.look(step.objects, step.now) } else { Ok(()) }
    }

    fn check_at_rest(&mut self, rest: &Rest<'_>) -> Result<(), String> {
        self.look(rest.objects, rest.now)
    }
}

impl State {
    /// Whether an owner's machines cannot be removed now: by maintenance, or because they are not those of the tenants Karpenter's keys are of.
    fn holds(&self, owner: &Owner) -> bool {
        let account = self.accounts.get(owner.account);
        self.settings.maintenance
            || account.is_none_or(|account| account.role != Role::User || account.keys_revoked)
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
