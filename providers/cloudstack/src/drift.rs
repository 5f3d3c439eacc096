//! When a machine is no longer what its NodeClass says, or what it was launched as.

use std::collections::BTreeSet;

use karpenter_api::NodeClaim;
use karpenter_cloudprovider::error::ProviderError;
use kube::ResourceExt as _;

use crate::client::model::{Named, Network, Nic, VirtualMachine};
use crate::naming::machine_id;
use crate::nodeclass::HASH_VERSION;
use crate::provider::CloudStackProvider;
use crate::resolved::{Resolved, resolve};
use crate::root_disks::Wanted;
use crate::shared::launched_in;
use crate::{labels, templates};

impl CloudStackProvider {
    /// Why the claim's machine has drifted, if so. What cannot be found out is an error and no drift.
    pub(crate) async fn drift(&self, claim: &NodeClaim) -> Result<Option<String>, ProviderError> {
        let name = &claim.spec.node_class_ref.name;
        let Some(class) = self.shared.objects.node_class(name) else { return Ok(None) };
        let annotation = |key: &str| claim.annotations().get(key).map(String::as_str);
        // A hash of another version says nothing: a new release must not replace every node.
        if annotation(labels::NODE_CLASS_HASH_VERSION) == Some(HASH_VERSION)
            && annotation(labels::NODE_CLASS_HASH).is_some_and(|hash| hash != class.hash())
        {
            return Ok(Some("NodeClassDrift".to_owned()));
        }
        let provider_id =
            claim.status.as_ref().and_then(|status| status.provider_id.as_deref()).unwrap_or_default();
        let Some(id) = machine_id(provider_id) else { return Ok(None) };
        let shared = &self.shared;
        let resolved =
            resolve(&class, &shared.scope(), &shared.catalogue).await.map_err(ProviderError::other)?;
        // A NodeClass that leads nowhere at the moment is no reason to replace what runs.
        if !resolved.problems.is_empty() {
            return Ok(None);
        }
        let scope = launched_in(claim).unwrap_or_else(|| resolved.scope.clone());
        let machines = shared
            .inventory
            .recent(&scope, std::time::Duration::from_secs(30))
            .await
            .map_err(ProviderError::other)?;
        // The list knows machines by their names, which people can change.
        let machine = match machines.iter().find(|machine| machine.id == id) {
            Some(machine) => Some(machine.clone()),
            None => shared.lookups.find(id, &scope).await.map_err(ProviderError::other)?,
        };
        let machine = machine
            .ok_or_else(|| ProviderError::not_found(format!("CloudStack has no virtual machine {id}")))?;
        if let Some(reason) = reason(&machine, claim, &resolved) {
            return Ok(Some(reason.to_owned()));
        }
        let wanted = Wanted {
            gb: resolved.spec.root_disk_size,
            offering: resolved.root_disk_offering(&machine.zoneid),
        };
        let made_by = shared.made_by(&class);
        let like = machines.iter().filter(|other| made_by.made(other));
        let like: BTreeSet<&str> = like.map(|other| other.id.as_str()).collect();
        let other_disk = shared.has_other_root_disk(id, &wanted, &like, &scope).await;
        Ok(other_disk.map_err(ProviderError::other)?.then(|| "VMDrift".to_owned()))
    }
}

/// What about the machine is not as it should be. What a list leaves out says nothing.
fn reason(machine: &VirtualMachine, claim: &NodeClaim, resolved: &Resolved) -> Option<&'static str> {
    if machine.zoneid.is_empty() {
        return None;
    }
    let Some(in_zone) = resolved.in_zone.get(&machine.zoneid) else {
        let stays = resolved.lets_stay_in(&machine.zoneid, &machine.zonename);
        return (!stays).then_some("ZoneDrift");
    };
    // What the zone does not have at the moment could not replace anything.
    if !in_zone.lacks.is_empty() {
        return None;
    }
    let launched_as = |key: &str| claim.labels().get(key).map(String::as_str);
    let offering = Some(&machine.serviceofferingid).filter(|id| !id.is_empty());
    if let Some(id) = offering
        && launched_as(labels::SERVICE_OFFERING_ID).is_some_and(|launched| launched != id)
    {
        return Some("VMDrift");
    }
    // A customised offering can be changed in place.
    let resized = |key: &str, now: Option<i64>| {
        now.is_some_and(|now| launched_as(key).is_some_and(|then| then != now.to_string()))
    };
    if resized(labels::INSTANCE_CPU, machine.cpunumber) || resized(labels::INSTANCE_MEMORY, machine.memory) {
        return Some("VMDrift");
    }
    if offering.is_some_and(|id| !in_zone.offerings.iter().any(|offering| offering.id == *id)) {
        return Some("ServiceOfferingDrift");
    }
    let arch = in_zone
        .templates
        .iter()
        .find(|template| template.id == machine.templateid)
        .map(|template| templates::arch(template, &resolved.spec));
    let current = arch.and_then(|arch| templates::for_arch(&in_zone.templates, &resolved.spec, arch));
    if !machine.templateid.is_empty() && current.is_none_or(|template| template.id != machine.templateid) {
        return Some("TemplateDrift");
    }
    let mut nics: Vec<_> = machine.nic.iter().collect();
    nics.sort_by_key(|nic| nic.deviceid);
    let first =
        nics.first().is_some_and(|nic| in_zone.networks.iter().any(|network| network.id == nic.networkid));
    // Whichever of a term's networks it was: that others are selected as well by now changes nothing for it.
    let is_one_of =
        |(nic, term): (&&Nic, &Vec<Network>)| term.iter().any(|network| network.id == nic.networkid);
    let others = nics.len().saturating_sub(1) == in_zone.additional.len()
        && nics.iter().skip(1).zip(&in_zone.additional).all(is_one_of);
    let known = !machine.nic.is_left_out() && nics.iter().all(|nic| !nic.networkid.is_empty());
    if known && (!first || !others) {
        return Some("NetworkDrift");
    }
    let has_group = |id: &String| machine.affinitygroup.iter().any(|group| group.id == *id);
    if resolved.spec.affinity.is_some()
        && !machine.affinitygroup.is_left_out()
        && (machine.affinitygroup.is_empty() || !resolved.affinity_groups.iter().all(has_group))
    {
        return Some("AffinityDrift");
    }
    let in_group = |wanted: &String| machine.securitygroup.iter().any(|group| group.id == *wanted);
    // The server adds the default group by itself. Where the NodeClass says nothing, people may.
    let added = |group: &Named| group.name != "default" && !resolved.security_groups.contains(&group.id);
    if !machine.securitygroup.is_left_out()
        && (!resolved.security_groups.iter().all(in_group)
            || (!resolved.security_groups.is_empty() && machine.securitygroup.iter().any(added)))
    {
        return Some("SecurityGroupDrift");
    }
    has_other_key_pair(machine, resolved).then_some("VMDrift")
}

/// Whether somebody gave the machine a key pair the NodeClass does not name. That it lacks one is no difference: servers before 4.17
/// do not tell them all.
fn has_other_key_pair(machine: &VirtualMachine, resolved: &Resolved) -> bool {
    let spec = &resolved.spec;
    let pairs: BTreeSet<&str> =
        spec.ssh_key_pair.iter().chain(&spec.ssh_key_pairs).map(String::as_str).collect();
    if pairs.contains(machine.keypairs.as_str()) {
        return false;
    }
    let mut carried = machine.keypairs.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    carried.any(|pair| !pairs.contains(pair))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::client::model::{ServiceOffering, Template};
    use crate::resolved::InZone;

    #[test]
    fn what_a_list_leaves_out_is_no_drift() {
        let offering = ServiceOffering { id: "small".into(), ..ServiceOffering::default() };
        let template = Template { id: "image".into(), isready: true, ..Template::default() };
        let network = Network { id: "net".into(), ..Network::default() };
        let in_zone = InZone {
            offerings: vec![offering],
            templates: vec![template.clone()],
            networks: vec![network],
            ..InZone::default()
        };
        let mut resolved = Resolved {
            in_zone: [("zone".to_owned(), in_zone)].into(),
            affinity_groups: vec!["rack".into()],
            security_groups: vec!["web".into()],
            ..Resolved::default()
        };
        resolved.spec.affinity =
            Some(serde_json::from_value(json!({"groupIDs": ["rack"]})).expect("affinity"));
        let claim: NodeClaim = serde_json::from_value(json!({
            "metadata": {"name": "a", "labels": {(labels::SERVICE_OFFERING_ID): "small"}},
            "spec": {"nodeClassRef": {"group": "", "kind": "", "name": ""}, "requirements": []},
        }))
        .expect("a NodeClaim");
        let full = json!({"id": "1", "zoneid": "zone", "serviceofferingid": "small", "templateid": "image",
            "nic": [{"networkid": "net"}], "affinitygroup": [{"id": "rack"}], "securitygroup": [{"id": "web"}]});
        let of = |row: &Value| {
            let machine: VirtualMachine = serde_json::from_value(row.clone()).expect("a machine");
            reason(&machine, &claim, &resolved)
        };
        assert_eq!(of(&full), None);
        for (field, other, drift) in [
            ("zoneid", json!("elsewhere"), "ZoneDrift"),
            ("serviceofferingid", json!("large"), "VMDrift"),
            ("templateid", json!("other"), "TemplateDrift"),
            ("nic", json!([]), "NetworkDrift"),
            ("affinitygroup", json!([]), "AffinityDrift"),
            ("securitygroup", json!([]), "SecurityGroupDrift"),
        ] {
            let mut row = full.clone();
            row[field] = other;
            assert_eq!(of(&row), Some(drift), "{field} is another");
            row[field] = Value::Null;
            assert_eq!(of(&row), None, "{field} is not told");
            row.as_object_mut().expect("a row").remove(field);
            assert_eq!(of(&row), None, "{field} is left out");
        }
        // By hand: another interface, and a reinstallation from what the NodeClass selects too but does not use.
        let mut row = full.clone();
        row["nic"] = json!([{"networkid": "net", "deviceid": 0}, {"networkid": "net", "deviceid": 1}]);
        assert_eq!(of(&row), Some("NetworkDrift"), "an interface was added");
        let older = Template { id: "older".into(), ..template };
        let zone = resolved.in_zone.get_mut("zone").expect("the zone");
        zone.templates.push(older);
        let mut row = full.clone();
        row["templateid"] = json!("older");
        let machine: VirtualMachine = serde_json::from_value(row).expect("a machine");
        assert_eq!(reason(&machine, &claim, &resolved), Some("TemplateDrift"), "it was reinstalled");
    }

    #[test]
    fn another_key_pair_is_drift_and_one_that_is_missing_is_none() {
        let machine = |pairs: &str| VirtualMachine { keypairs: pairs.into(), ..VirtualMachine::default() };
        let mut resolved = Resolved::default();
        resolved.spec.ssh_key_pairs = vec!["ops".into(), "dev".into()];
        for (pairs, other) in
            [("ops,dev", false), ("ops", false), ("", false), ("ops,mine", true), ("mine", true)]
        {
            assert_eq!(has_other_key_pair(&machine(pairs), &resolved), other, "{pairs}");
        }
        resolved.spec.ssh_key_pairs = vec!["ops, Berlin".into()];
        assert!(!has_other_key_pair(&machine("ops, Berlin"), &resolved), "one whose name has a comma");
        assert!(has_other_key_pair(&machine("ops, Bonn"), &resolved));
    }
}
