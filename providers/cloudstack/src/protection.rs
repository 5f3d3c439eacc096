//! Machines that somebody protected from deletion: told of, and not drained for gain, since they could not go afterwards. Nor are those
//! drained that the server is at work on, or of which it does not know what they do.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use karpenter_api::NodeClaim;
use karpenter_cloudprovider::provider::DisruptionHold;
use kube::ResourceExt as _;

use crate::client::model::VirtualMachine;
use crate::naming::machine_id;
use crate::nodeclass::CloudStackNodeClass;
use crate::provider::CloudStackProvider;

/// How many are named.
const SHOWN: usize = 5;

/// States in which a machine is there and is to be let be until it is in another.
const LET_BE: [&str; 3] = ["Unknown", "BackingUp", "Restoring"];

/// Somebody protected a machine from deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeleteProtected;

/// What to do about a machine that somebody protected from deletion.
pub(crate) fn protected(machine: &VirtualMachine) -> String {
    format!("virtual machine {} is protected from deletion; set deleteprotection=false on it", machine.name)
}

/// Machines that were protected when they were last looked at.
#[derive(Debug, Default)]
pub(crate) struct Protected(Mutex<BTreeSet<String>>);

impl Protected {
    /// A machine is protected, or not; whether that is news.
    pub(crate) fn note(&self, id: &str, protected: bool) -> bool {
        let mut ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if protected { ids.insert(id.to_owned()) } else { ids.remove(id) }
    }

    /// Forgets all machines but these.
    pub(crate) fn keep(&self, seen: &BTreeSet<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|id| seen.contains(id));
    }

    fn has(&self, id: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(id)
    }
}

fn machine_of(claim: &NodeClaim) -> Option<&str> {
    machine_id(claim.status.as_ref()?.provider_id.as_deref()?)
}

impl CloudStackProvider {
    /// Notes whether a machine is protected, and tells of it once.
    pub(crate) fn look_at_protection(&self, machine: &VirtualMachine, claim: &NodeClaim) {
        let news = self.shared.protected.note(&machine.id, machine.deleteprotection);
        if news && machine.deleteprotection {
            let text = format!(
                "virtual machine {} is protected from deletion, so its node is left alone; set deleteprotection=false on it to let Karpenter replace or remove it",
                machine.name
            );
            self.shared.voice.warn(claim, "DeleteProtected", text);
        }
    }

    /// What to say of the machines of a NodeClass that cannot be deleted.
    pub(crate) fn protected_of(&self, class: &CloudStackNodeClass) -> Option<String> {
        let name = class.name_any();
        let claims = self.shared.objects.node_claims()?;
        let is_held = |claim: &&Arc<NodeClaim>| {
            claim.spec.node_class_ref.name == name && self.shared.is_ours(claim) && self.is_protected(claim)
        };
        let mut held: Vec<String> = claims.iter().filter(is_held).map(|claim| claim.name_any()).collect();
        held.sort();
        let shown = held.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
        let more = if held.len() > SHOWN { ", ..." } else { "" };
        (!held.is_empty()).then(|| {
            format!(
                "{} virtual machines are protected from deletion, those of NodeClaims {shown}{more}; set deleteprotection=false on them to let Karpenter replace or remove them",
                held.len()
            )
        })
    }

    /// What keeps a claim's node from being disrupted.
    pub(crate) fn hold(&self, claim: &NodeClaim) -> Option<DisruptionHold> {
        let reason = if self.is_protected(claim) {
            "its virtual machine is protected from deletion (deleteprotection)".to_owned()
        } else {
            let state = self.shared.sightings.state(machine_of(claim)?)?;
            let let_be = LET_BE.contains(&state.as_str());
            let_be.then(|| format!("its virtual machine is in state {state}"))?
        };
        Some(DisruptionHold { reason, leaving: false, stuck: false })
    }

    fn is_protected(&self, claim: &NodeClaim) -> bool {
        machine_of(claim).is_some_and(|id| self.shared.protected.has(id))
    }
}
