//! Whether a machine was made by what its NodeClass says now.
//!
//! Its tag says what the NodeClass said then, as the release computed it that made the machine. What another release computed says
//! nothing; then the NodeClaim does, which is stamped anew with each release that computes otherwise.
//!
//! A launch writes that on its NodeClaim before it orders a machine: should it end before the machine is tagged, or the tags be lost,
//! what the NodeClass says by then is not what made it.

use std::collections::{BTreeMap, BTreeSet};

use karpenter_api::NodeClaim;
use kube::ResourceExt as _;

use crate::client::model::VirtualMachine;
use crate::labels;
use crate::nodeclass::{CloudStackNodeClass, HASH_VERSION};
use crate::shared::Shared;

/// The tag of a machine that this NodeClass makes.
pub(crate) fn tag(class: &CloudStackNodeClass) -> String {
    format!("{HASH_VERSION}/{}", class.hash())
}

/// What a launch from this NodeClass writes on its NodeClaim.
pub(crate) fn annotations(class: &CloudStackNodeClass) -> BTreeMap<String, String> {
    let version = (labels::NODE_CLASS_HASH_VERSION.to_owned(), HASH_VERSION.to_owned());
    BTreeMap::from([(labels::NODE_CLASS_HASH.to_owned(), class.hash()), version])
}

/// The tag of a machine that was made for this NodeClaim, if a launch wrote down what made it.
pub(crate) fn recorded(claim: &NodeClaim) -> Option<String> {
    let annotation = |key: &str| claim.annotations().get(key).map(String::as_str);
    let (version, hash) =
        (annotation(labels::NODE_CLASS_HASH_VERSION)?, annotation(labels::NODE_CLASS_HASH)?);
    Some(format!("{version}/{hash}"))
}

/// What the machine of a launch is tagged with.
pub(crate) struct Tags {
    /// If it is there already: it was made by what the NodeClass said when it was ordered.
    pub(crate) found: BTreeMap<String, String>,
    /// If it is made now.
    pub(crate) made: BTreeMap<String, String>,
    /// What is written on the NodeClaim before that.
    annotations: BTreeMap<String, String>,
}

impl Tags {
    /// With these on a machine that is there already.
    pub(crate) fn new(found: BTreeMap<String, String>, class: &CloudStackNodeClass) -> Self {
        let mut made = found.clone();
        made.insert(labels::TAG_NODE_CLASS_HASH.to_owned(), tag(class));
        Self { found, made, annotations: annotations(class) }
    }

    /// What is to be written on the NodeClaim before a machine is made: nothing if that was done.
    pub(crate) fn news(&self) -> Option<&BTreeMap<String, String>> {
        (self.found != self.made).then_some(&self.annotations)
    }
}

/// What a machine's tag says its NodeClass said, if this release computes it alike.
pub(crate) fn hash_of(machine: &VirtualMachine) -> Option<&str> {
    let told = machine.tag(labels::TAG_NODE_CLASS_HASH)?;
    told.split_once('/').filter(|(version, _)| *version == HASH_VERSION).map(|(_, hash)| hash)
}

/// What a NodeClass says now, to hold machines against.
pub(crate) struct MadeBy {
    hash: String,
    /// UIDs of the NodeClaims that are of it as it is.
    claims: BTreeSet<String>,
}

impl MadeBy {
    fn new<'a>(hash: String, claims: impl IntoIterator<Item = &'a NodeClaim>) -> Self {
        let is_of_it = |claim: &&NodeClaim| {
            let annotation = |key: &str| claim.annotations().get(key).map(String::as_str);
            annotation(labels::NODE_CLASS_HASH_VERSION) == Some(HASH_VERSION)
                && annotation(labels::NODE_CLASS_HASH) == Some(&hash)
        };
        let claims = claims.into_iter().filter(is_of_it).filter_map(kube::ResourceExt::uid).collect();
        Self { hash, claims }
    }

    /// Whether this machine was made by it.
    pub(crate) fn made(&self, machine: &VirtualMachine) -> bool {
        let told = machine.tag(labels::TAG_NODE_CLASS_HASH).unwrap_or_default();
        match told.split_once('/') {
            Some((HASH_VERSION, hash)) => hash == self.hash,
            // Releases before this one wrote no version.
            None if told == self.hash => true,
            _ => machine.tag(labels::TAG_NODE_CLAIM_UID).is_some_and(|uid| self.claims.contains(uid)),
        }
    }
}

impl Shared {
    /// What this NodeClass says now.
    pub(crate) fn made_by(&self, class: &CloudStackNodeClass) -> MadeBy {
        let claims = self.objects.node_claims().unwrap_or_default();
        MadeBy::new(class.hash(), claims.iter().map(|claim| &**claim))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::client::model::Tag;

    #[test]
    fn a_machine_of_another_release_is_known_by_its_node_claim() {
        let claim = |uid: &str, version: &str, hash: &str| -> NodeClaim {
            serde_json::from_value(json!({
                "metadata": {"name": uid, "uid": uid, "annotations": {
                    (labels::NODE_CLASS_HASH): hash, (labels::NODE_CLASS_HASH_VERSION): version}},
                "spec": {"nodeClassRef": {"group": "", "kind": "", "name": ""}, "requirements": []},
            }))
            .expect("a NodeClaim")
        };
        let claims = [
            claim("stamped", HASH_VERSION, "7"),
            claim("drifted", HASH_VERSION, "6"),
            claim("unstamped", "v0", "7"),
        ];
        let made_by = MadeBy::new("7".to_owned(), &claims);
        let made = |uid: &str, told: &str| {
            let tag = |key: &str, value: &str| Tag { key: key.into(), value: value.into() };
            let tags = vec![tag(labels::TAG_NODE_CLAIM_UID, uid), tag(labels::TAG_NODE_CLASS_HASH, told)];
            made_by.made(&VirtualMachine { tags, ..VirtualMachine::default() })
        };
        let ours = |hash: &str| format!("{HASH_VERSION}/{hash}");
        assert!(made("none", &ours("7")) && made("none", "7"), "the tag says it");
        assert!(!made("stamped", &ours("6")), "it was adopted by a NodeClaim that came later");
        for told in ["v0/1", "1"] {
            assert!(made("stamped", told), "{told}: the release before computed otherwise");
            assert!(!made("drifted", told) && !made("unstamped", told) && !made("none", told), "{told}");
        }
    }
}
