//! Clones of templates whose Machine was never made and whose NodeClaim is gone: nobody else knows of them. Usually they go when their
//! NodeClaim does; these are left by whoever took its finalizer away, or by a blueprint that was gone when they should have gone.
//!
//! Only what provably is one goes: it says that it is a clone, made for a NodeClaim of this cluster after which it is named; no Machine
//! owns it, both clusters say that there is neither the Machine nor the NodeClaim, and that twice, some time apart. While the Cluster
//! is paused its objects may be on the move: then nothing is known to be gone.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::time::Instant;

use super::fleet::Fleet;
use super::standalone::kind_of_clones;
use crate::client::fields::Reference;
use crate::client::hub::HubError;
use crate::client::machine::Claim;
use crate::names;

/// How often they are looked for.
const PERIOD: Duration = Duration::from_secs(5 * 60);

/// Where they are looked for, and when that was done last.
#[derive(Debug, Default)]
pub(crate) struct Strays {
    looked: Option<Instant>,
    /// Group and kind of clones. Those of blueprints that are gone are remembered.
    kinds: BTreeSet<(String, String)>,
    /// What looked like one the last time, by uid.
    suspects: BTreeSet<String>,
}

impl Strays {
    /// Deletes those that are there. What fails is done the next time.
    pub(crate) async fn collect(&mut self, fleet: &Fleet) {
        self.learn_kinds(fleet);
        if self.kinds.is_empty() || self.looked.is_some_and(|at| at.elapsed() < PERIOD) {
            return;
        }
        self.looked = Some(Instant::now());
        let found = match find(fleet, &self.kinds).await {
            Ok(found) => found,
            // The NodeClass tells what we may not do. A list that is not complete tells nothing.
            Err(error) => return tracing::debug!(%error, "cannot look for clones that nobody needs"),
        };
        self.suspects.retain(|uid| found.iter().any(|(stray, _)| stray.uid == *uid));
        for (stray, claim) in found {
            match is_abandoned(fleet, &claim).await {
                Ok(true) if self.suspects.contains(&stray.uid) => stray.delete(fleet).await,
                Ok(true) => drop(self.suspects.insert(stray.uid)),
                Ok(false) => drop(self.suspects.remove(&stray.uid)),
                Err(error) => tracing::debug!(%error, "cannot find out whether a clone is needed"),
            }
        }
    }

    fn learn_kinds(&mut self, fleet: &Fleet) {
        let kind = |template: &Reference| (template.group.clone(), kind_of_clones(template).to_owned());
        for class in fleet.node_classes.list().iter().filter(|class| class.makes_machines()) {
            for blueprint in &fleet.offers(class).members {
                let templates = [&blueprint.infrastructure, &blueprint.bootstrap];
                self.kinds.extend(templates.into_iter().flatten().map(kind));
            }
        }
    }
}

/// An object that looks like a clone nobody needs.
struct Stray {
    reference: Reference,
    uid: String,
}

impl Stray {
    async fn delete(&self, fleet: &Fleet) {
        if !matches!(fleet.is_paused().await, Ok(false)) {
            return;
        }
        tracing::info!(clone = %self.reference, "deleting a clone whose NodeClaim is gone and whose Machine was never made");
        match fleet.hub.delete(&self.reference, Some(&self.uid)).await {
            Ok(()) => fleet.metrics.writes.inc(&["delete"]),
            Err(error) => tracing::warn!(%error, "cannot delete a clone that nobody needs, will retry"),
        }
    }
}

/// All objects of these kinds that look like clones without a Machine, with whom they were made for.
async fn find(fleet: &Fleet, kinds: &BTreeSet<(String, String)>) -> Result<Vec<(Stray, Claim)>, HubError> {
    // Before the lists: whoever moves objects pauses first.
    if fleet.hub.cluster().await?.paused {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for (group, kind) in kinds {
        for metadata in fleet.hub.clones(group, kind).await? {
            let Some(claim) = made_for(&metadata).filter(|claim| claim.owner == fleet.owner) else {
                continue;
            };
            let reference = Reference {
                group: group.clone(),
                version: String::new(),
                kind: kind.clone(),
                name: claim.node_claim.clone(),
            };
            found.push((Stray { reference, uid: metadata.uid.unwrap_or_default() }, claim));
        }
    }
    Ok(found)
}

/// Whom a clone was made for, if it is one of ours, alive, and no Machine has taken it.
fn made_for(metadata: &ObjectMeta) -> Option<Claim> {
    let annotation =
        |key: &str| metadata.annotations.as_ref()?.get(key).filter(|text| !text.is_empty()).cloned();
    let claim = Claim {
        node_claim: annotation(names::NODECLAIM)?,
        uid: annotation(names::NODECLAIM_UID)?,
        owner: annotation(names::OWNER)?,
    };
    annotation(names::CLONED_FROM_NAME)?;
    annotation(names::CLONED_FROM_KIND)?;
    let owners = metadata.owner_references.as_deref().unwrap_or_default();
    let is_taken = owners.iter().any(|owner| owner.kind != "Cluster");
    let is_paused = metadata.annotations.as_ref().is_some_and(|all| all.contains_key(names::PAUSED));
    let lives = metadata.deletion_timestamp.is_none() && metadata.uid.is_some();
    let is_named_so = metadata.name.as_deref() == Some(&claim.node_claim);
    (lives && is_named_so && !is_taken && !is_paused).then_some(claim)
}

/// Whether both clusters say that there is neither a NodeClaim nor a Machine that a clone could be for.
async fn is_abandoned(
    fleet: &Fleet,
    claim: &Claim,
) -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
    if fleet.node_claims.is_seen(&claim.node_claim, &claim.uid)
        || !fleet.node_claims.is_gone(&claim.node_claim, &claim.uid).await?
    {
        return Ok(false);
    }
    // One of that name, whosever it is, may be what it is for.
    match fleet.hub.machine(&claim.node_claim).await {
        Ok(_) => Ok(false),
        Err(error) if error.is_not_found() => Ok(true),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::object;

    fn clone(change: Value) -> ObjectMeta {
        let mut value = json!({"metadata": {
            "name": "n1", "namespace": "fleet", "uid": "u",
            "annotations": {
                names::NODECLAIM: "n1", names::NODECLAIM_UID: "claim", names::OWNER: "cluster",
                names::CLONED_FROM_NAME: "t", names::CLONED_FROM_KIND: "FakeMachineTemplate.infra.x",
            },
            "ownerReferences": [{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "c", "uid": "c"}],
        }});
        json_patch::merge(&mut value, &json!({"metadata": change}));
        object(value).metadata
    }

    #[test]
    fn only_what_says_that_it_is_a_clone_of_ours_and_has_no_machine_is_one() {
        let found = made_for(&clone(json!({}))).expect("a clone");
        assert_eq!((found.node_claim.as_str(), found.uid.as_str()), ("n1", "claim"));
        for (change, why) in [
            (json!({"annotations": {names::NODECLAIM_UID: null}}), "made for nobody"),
            (json!({"annotations": {names::OWNER: ""}}), "nobody's"),
            (json!({"annotations": {names::CLONED_FROM_NAME: null}}), "no clone"),
            (json!({"annotations": {names::PAUSED: ""}}), "paused"),
            (json!({"name": "n2"}), "named after another"),
            (json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), "going already"),
            (
                json!({"ownerReferences": [{"apiVersion": "a", "kind": "Machine", "name": "n1", "uid": "m"}]}),
                "a Machine's",
            ),
        ] {
            assert_eq!(made_for(&clone(change)), None, "{why}");
        }
    }
}
