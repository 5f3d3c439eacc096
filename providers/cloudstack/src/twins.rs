//! Twins: several machines of one NodeClaim. Servers check names and write them down separately, so two orders of one name that come
//! together are both taken: those of two Karpenters that both lead, or one that is repeated while the server still reads the first.
//!
//! Which of them is the NodeClaim's is decided where only one can win, by the write of its provider id. Until that is written any of them
//! may become the one, so none is destroyed: two leaders that each destroyed what the other made would be left with nothing. Both
//! prefer the oldest, and mostly agree. After it, what the NodeClaim does not name never will be named, and goes. What was made for a
//! NodeClaim that is gone is an orphan like any other, only that nobody has to wait for it to become old.
//!
//! That is read from the API server itself, not from a watch, which may be late. What cannot be found out destroys nothing: garbage
//! collection sees to it in its time.

use karpenter_api::NodeClaim;
use kube::ResourceExt as _;

use crate::client::model::VirtualMachine;
use crate::client::request::Scope;
use crate::instances::{RECENT, is_alive, is_placed};
use crate::naming::machine_id;
use crate::shared::{CollectOrphans, Shared};

/// What the API server says of a NodeClaim at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// This machine is its own, for good.
    Names(String),
    /// None is yet.
    NamesNone,
    /// There is none of its name.
    Gone,
    /// It is being deleted, and its machines with it; another has its name by now; or nobody knows.
    Unclear,
}

impl Standing {
    /// The machine it names.
    pub(crate) fn named(&self) -> Option<&str> {
        match self {
            Self::Names(id) => Some(id),
            _ => None,
        }
    }

    /// Whether a machine of this NodeClaim will certainly never be the one it has.
    fn has_no_use_for(&self, machine: &VirtualMachine) -> bool {
        match self {
            Self::Names(id) => *id != machine.id,
            // What came to nothing is nobody's; of what is alive another leader may be writing down that it is the one.
            Self::NamesNone => !is_alive(machine),
            Self::Gone => true,
            Self::Unclear => false,
        }
    }
}

/// Whether a machine can be told to go now, and was not.
fn may_be_told_to_go(shared: &Shared, machine: &VirtualMachine) -> bool {
    !matches!(machine.state.as_str(), "Destroyed" | "Expunging")
        && !machine.has_pending_job()
        && !machine.deleteprotection
        && !shared.deletions.has(&machine.id)
        && shared.why_not_ours(machine).is_none()
}

impl Shared {
    /// What becomes of a NodeClaim, asked where it is decided.
    pub(crate) async fn standing(&self, name: &str, uid: &str) -> Standing {
        let claim = match self.voice.claim_now(name).await {
            Ok(Some(claim)) => claim,
            Ok(None) => return Standing::Gone,
            Err(error) => {
                tracing::debug!(NodeClaim = name, error, "whose machine is whose cannot be found out");
                return Standing::Unclear;
            }
        };
        if claim.uid().unwrap_or_default() != uid || claim.metadata.deletion_timestamp.is_some() {
            return Standing::Unclear;
        }
        let named = claim.status.as_ref().and_then(|status| status.provider_id.as_deref());
        match named.filter(|id| !id.is_empty()) {
            None => Standing::NamesNone,
            // An id that is none of ours says nothing of what is.
            Some(id) => machine_id(id).map_or(Standing::Unclear, |id| Standing::Names(id.to_owned())),
        }
    }

    /// The machine that this claim's launch should take instead of its own: one that was made before and is on a host. It is looked for in
    /// the list that showed the launch its own; who does not wait for machines has none, and asks for none.
    pub(crate) async fn elder_of(
        &self,
        claim: &NodeClaim,
        own: &str,
        scope: &Scope,
    ) -> Option<VirtualMachine> {
        if self.options.launch_wait.is_zero() {
            return None;
        }
        let machines = self.inventory.recent(scope, RECENT).await.ok()?;
        let own = machines.iter().find(|machine| machine.id == own)?;
        let is_older = |machine: &&VirtualMachine| (&machine.created, &machine.id) < (&own.created, &own.id);
        // One that stands still and waits for nothing is what an order left that came to nothing.
        let has_place = |machine: &&VirtualMachine| is_alive(machine) && is_placed(machine);
        self.twins_of(&machines, claim, &own.id).into_iter().filter(is_older).find(has_place).cloned()
    }

    /// Destroys what a launched NodeClaim has besides the machine it names.
    pub(crate) async fn part_from_twins(
        &self,
        claim: &NodeClaim,
        named: &str,
        machines: &[VirtualMachine],
        scope: &Scope,
    ) {
        for twin in self.twins_of(machines, claim, named) {
            self.part_from(twin, (&claim.name_any(), &claim.uid().unwrap_or_default()), scope).await;
        }
    }

    /// Whether a machine of a NodeClaim that stands so is to be destroyed: one that the NodeClaim never will have. Whether it is where
    /// the NodeClaim is gone the settings say.
    pub(crate) fn is_to_go(&self, machine: &VirtualMachine, standing: &Standing) -> bool {
        let is_left_to_people =
            *standing == Standing::Gone && self.options.collect_orphans != CollectOrphans::Destroy;
        standing.has_no_use_for(machine) && !is_left_to_people
    }

    /// Destroys a machine if the NodeClaim it was made for has certainly no use for it; whether that was ordered, or is no business of
    /// the launch that made it.
    pub(crate) async fn part_from(
        &self,
        twin: &VirtualMachine,
        (name, uid): (&str, &str),
        scope: &Scope,
    ) -> bool {
        if !may_be_told_to_go(self, twin) {
            return false;
        }
        let standing = self.standing(name, uid).await;
        // One that came to nothing may be written down at this moment all the same: its launch may have looked before it failed.
        if standing == Standing::NamesNone || !self.is_to_go(twin, &standing) {
            // Then garbage collection tells of it.
            return standing == Standing::Gone;
        }
        let is_orphan = standing == Standing::Gone;
        let reason = if is_orphan { "orphaned" } else { "duplicate" };
        // One that turns out to be protected is told of by garbage collection.
        let ordered = matches!(self.discard(twin, scope, reason).await, Ok(true));
        if ordered {
            let mut claim = NodeClaim::default();
            (claim.metadata.name, claim.metadata.uid) = (Some(name.to_owned()), Some(uid.to_owned()));
            let what = format!("virtual machine {} ({}) was made for NodeClaim {name}", twin.name, twin.id);
            if is_orphan {
                self.metrics.orphans.inc(&[]);
                self.voice.inform(&claim, "OrphanDeleted", format!("{what}, which is gone; destroyed"));
            } else {
                self.voice.inform(&claim, "TwinDeleted", format!("{what}, which has another; destroyed"));
            }
        }
        ordered
    }
}
