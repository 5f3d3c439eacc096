//! Whose a machine is. Its name follows from its NodeClaim, and its tags say it too, as soon as it has any; so nothing is taken for a
//! claim's machine that may be another's, whoever that is.

use karpenter_api::NodeClaim;
use kube::ResourceExt as _;

use crate::client::model::VirtualMachine;
use crate::labels;
use crate::naming::machine_id;
use crate::shared::Shared;

impl Shared {
    /// The machines of a claim: names that can only be its own, and no tag of another claim or cluster.
    pub(crate) fn machines_of<'a>(
        &self,
        machines: &'a [VirtualMachine],
        claim: &NodeClaim,
    ) -> Vec<(u32, &'a VirtualMachine)> {
        let uid = claim.uid().unwrap_or_default();
        let mut found = Vec::new();
        for machine in machines {
            let Some(attempt) = self.naming.attempt(claim, &machine.name) else { continue };
            let is_mine = match machine.tag(labels::TAG_NODE_CLAIM_UID) {
                Some(tag) => tag == uid,
                None => !self.is_of_another_claim(machine, claim),
            };
            if is_mine && self.why_not_ours(machine).is_none() {
                found.push((attempt, machine));
            }
        }
        found.sort_by(|(_, a), (_, b)| (&a.created, &a.id).cmp(&(&b.created, &b.id)));
        found
    }

    /// What there is of a claim besides the machine it names, oldest first.
    pub(crate) fn twins_of<'a>(
        &self,
        machines: &'a [VirtualMachine],
        claim: &NodeClaim,
        named: &str,
    ) -> Vec<&'a VirtualMachine> {
        let found = self.machines_of(machines, claim).into_iter().map(|(_, machine)| machine);
        found.filter(|machine| machine.id != named).collect()
    }

    /// Whether another claim names a machine without tags that is called as one of this claim's.
    fn is_of_another_claim(&self, machine: &VirtualMachine, claim: &NodeClaim) -> bool {
        let claims = self.objects.node_claims().unwrap_or_default();
        claims.iter().filter(|other| other.uid() != claim.uid()).any(|other| {
            let named = other.status.as_ref().and_then(|status| status.provider_id.as_deref());
            named.and_then(machine_id) == Some(machine.id.as_str())
        })
    }

    /// Why a machine is not ours, whatever a NodeClaim says of it: objects may be copied to another cluster, machines are not.
    pub(crate) fn why_not_ours(&self, machine: &VirtualMachine) -> Option<String> {
        if machine.is_of_kubernetes_service() {
            return Some("it is a node of CloudStack's own Kubernetes service".to_owned());
        }
        let ours = labels::cluster_tag(&self.options.cluster_name);
        if machine.has_tag(&ours) {
            return None;
        }
        let another = machine.tags.iter().find(|tag| tag.key.starts_with(labels::CLUSTER_TAG))?;
        Some(format!(
            "its tag {} says that it is another cluster's; tag it {ours}=owned if that is wrong",
            another.key
        ))
    }
}
