//! Machines as the core hears of them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_api::{NodeClaim, labels as well_known};
use karpenter_cloudprovider::provider::LaunchedInstance;
use karpenter_cloudprovider::{conversion, selection};
use karpenter_engine::instance_type::{InstanceType, Offering, Overhead};
use karpenter_engine::requirement::Requirement;
use karpenter_engine::requirements::Requirements;
use kube::ResourceExt as _;

use crate::client::model::VirtualMachine;
use crate::instances::is_alive;
use crate::instancetypes::Names;
use crate::naming::{label_value, machine_id};
use crate::nodeclass::{CloudStackNodeClass, HASH_VERSION};
use crate::provider::CloudStackProvider;
use crate::resolved::Resolved;
use crate::{labels, made_by, zones};

/// The provider ids NodeClaims carry, by the machine they name.
pub(crate) type Carried = BTreeMap<String, String>;

impl CloudStackProvider {
    /// The provider ids that NodeClaims carry. One that is written differently, by another release or another setting, is
    /// still the machine's: whoever compares texts must not take it for gone.
    pub(crate) fn carried(&self) -> Carried {
        let claims = self.shared.objects.node_claims().unwrap_or_default();
        let id = |claim: &NodeClaim| {
            let text = claim.status.as_ref()?.provider_id.clone()?;
            Some((machine_id(&text)?.to_owned(), text))
        };
        claims.iter().filter_map(|claim| id(claim)).collect()
    }

    /// The names of instance types that NodeClaims carry.
    pub(crate) fn names_carried(&self) -> Names {
        let claims = self.shared.objects.node_claims().unwrap_or_default();
        let name = |claim: &NodeClaim| {
            let label = |key: &str| claim.labels().get(key).cloned();
            Some((label(well_known::INSTANCE_TYPE)?, label(labels::SERVICE_OFFERING_ID)?))
        };
        claims.iter().filter_map(|claim| name(claim)).collect()
    }

    /// Keeps what the NodeClass's machines were launched as among what is offered, though it cannot be had at the moment: a
    /// zone that is disabled, another capacity type. Else the core would take them for something that is not sold any more.
    pub(crate) fn keep_what_runs(&self, resolved: &Resolved, types: &mut Vec<InstanceType>) {
        for claim in self.shared.objects.node_claims().unwrap_or_default() {
            let label = |key: &str| claim.labels().get(key).map_or("", String::as_str);
            let (zone, zone_id) = (label(well_known::TOPOLOGY_ZONE), label(labels::ZONE_ID));
            if claim.spec.node_class_ref.name != resolved.class || !resolved.lets_stay_in(zone_id, zone) {
                continue;
            }
            let name = label(well_known::INSTANCE_TYPE);
            // Sold in that zone only, which cannot be seen at the moment: it is as it was when the machine was made.
            if !types.iter().any(|it| &*it.name == name)
                && !resolved.in_zone.contains_key(zone_id)
                && let Some(it) = as_launched(&claim)
            {
                types.push(it);
            }
            let Some(it) = types.iter_mut().find(|it| &*it.name == name) else { continue };
            // The core takes what was reserved for on demand once its reservation is gone.
            let capacity_type = match label(well_known::CAPACITY_TYPE) {
                well_known::CAPACITY_TYPE_RESERVED => well_known::CAPACITY_TYPE_ON_DEMAND,
                other => other,
            };
            let mut wanted = vec![
                (well_known::TOPOLOGY_ZONE, zone),
                (well_known::CAPACITY_TYPE, capacity_type),
                (labels::ZONE_ID, zone_id),
                (labels::SERVICE_OFFERING_ID, label(labels::SERVICE_OFFERING_ID)),
            ];
            if wanted.iter().any(|(_, value)| value.is_empty()) {
                continue;
            }
            // Not every machine has them, and what they are called may change around a machine.
            let named = [well_known::TOPOLOGY_REGION, labels::ZONE_NAME].map(|key| (key, label(key)));
            wanted.extend(named.into_iter().filter(|(_, value)| !value.is_empty()));
            let is = |offering: &Offering, (key, value): (&str, &str)| {
                offering.requirements.get(key).is_some_and(|requirement| requirement.has(value))
            };
            let arch = label(well_known::ARCH);
            // Said only where zones differ. Whether a template of its architecture is left is for drift to say.
            let of_arch = |offering: &Offering| {
                arch.is_empty()
                    || offering.requirements.get(well_known::ARCH).is_none_or(|said| said.has(arch))
            };
            let known =
                |offering: &Offering| wanted.iter().all(|wanted| is(offering, *wanted)) && of_arch(offering);
            if it.offerings.iter().any(known) {
                continue;
            }
            let near = it.offerings.iter().find(|offering| is(offering, wanted[0])).or(it.offerings.first());
            let price = near.map_or(0.0, |offering| offering.price);
            let mut requirements = Requirements::new();
            for (key, value) in wanted {
                requirements.add(Requirement::one_of(key, [value]));
            }
            it.offerings.push(Offering { requirements, price, available: false, ..Offering::default() });
        }
    }

    /// The machine as the core wants to hear of it.
    pub(crate) fn describe(
        &self,
        machine: &VirtualMachine,
        claim: &NodeClaim,
        class: &CloudStackNodeClass,
        types: &[InstanceType],
    ) -> LaunchedInstance {
        let provider_id = self.shared.form.write(&machine.zonename, &machine.id);
        let is_size = |it: &&InstanceType| {
            let is = |key: &str, wanted: &str| {
                it.requirements.get(key).is_some_and(|requirement| requirement.has(wanted))
            };
            let number = |number: Option<i64>| number.map_or_else(String::new, |number| number.to_string());
            is(labels::SERVICE_OFFERING_ID, &machine.serviceofferingid)
                && is(labels::INSTANCE_CPU, &number(machine.cpunumber))
                && is(labels::INSTANCE_MEMORY, &number(machine.memory))
        };
        let zone = label_value(&machine.zonename);
        let chosen = types.iter().find(is_size).and_then(|it| {
            let value = |offering: &Offering, key: &str| {
                let requirement = offering.requirements.get(key)?;
                requirement.values.first().map(ToString::to_string)
            };
            let reservation = machine.tag(labels::TAG_RESERVATION);
            let is_it = |offering: &&Offering| {
                value(offering, well_known::TOPOLOGY_ZONE).as_deref() == Some(zone.as_str())
                    && value(offering, labels::RESERVATION_ID).as_deref() == reservation
            };
            Some((it, it.offerings.iter().find(is_it)?))
        });
        let mut instance = match chosen {
            Some((it, offering)) => selection::describe(&provider_id, it, offering),
            None => LaunchedInstance { provider_id, ..LaunchedInstance::default() },
        };
        let mut put = |key: &str, value: &str| {
            if !value.is_empty() {
                instance.labels.insert(key.to_owned(), label_value(value));
            }
        };
        put(well_known::TOPOLOGY_ZONE, &machine.zonename);
        if !machine.zonename.is_empty() {
            let region = self.shared.options.region.as_deref();
            put(well_known::TOPOLOGY_REGION, &zones::region(&machine.zonename, region));
        }
        put(labels::ZONE_ID, &machine.zoneid);
        put(labels::ZONE_NAME, &machine.zonename);
        put(labels::SERVICE_OFFERING_ID, &machine.serviceofferingid);
        put(labels::SERVICE_OFFERING_NAME, &machine.serviceofferingname);
        put(labels::TEMPLATE_ID, &machine.templateid);
        put(labels::TEMPLATE_NAME, &machine.templatename);
        if let Some(nic) = machine.nic.iter().find(|nic| nic.isdefault).or(machine.nic.first()) {
            put(labels::NETWORK_ID, &nic.networkid);
            put(labels::NETWORK_NAME, &nic.networkname);
        }
        put(well_known::OS, "linux");
        let pool = machine
            .tag(labels::TAG_NODE_POOL)
            .or_else(|| Some(claim.labels().get(well_known::NODEPOOL)?.as_str()));
        put(well_known::NODEPOOL, pool.unwrap_or_default());
        instance.image_id = machine.templateid.clone();
        // A machine that is found may have been made by what the NodeClass said before.
        let hash = made_by::hash_of(machine).map_or_else(|| class.hash(), str::to_owned);
        instance.annotations.insert(labels::NODE_CLASS_HASH.to_owned(), hash);
        instance.annotations.insert(labels::NODE_CLASS_HASH_VERSION.to_owned(), HASH_VERSION.to_owned());
        instance
    }

    /// The machine as a NodeClaim, which is how instances are listed.
    pub(crate) fn as_claim(&self, machine: &VirtualMachine, carried: &Carried) -> NodeClaim {
        let mut claim = NodeClaim::default();
        let nothing = CloudStackNodeClass::default();
        let mut instance = self.describe(machine, &claim, &nothing, &[]);
        instance.annotations.clear();
        if let Some(text) = carried.get(&machine.id) {
            instance.provider_id.clone_from(text);
        }
        instance.write_into(&mut claim);
        claim.metadata.name = machine.tag(labels::TAG_NODE_CLAIM).map(str::to_owned);
        claim.metadata.creation_timestamp = machine.created().map(Time);
        if !is_alive(machine) {
            claim.metadata.deletion_timestamp = Some(Time(self.shared.clock.now()));
        }
        claim.status.get_or_insert_default().node_name = Some(machine.name.clone());
        claim
    }
}

/// The machine of a NodeClaim as far as that tells of it: there.
pub(crate) fn as_known(claim: &NodeClaim) -> NodeClaim {
    let mut known = claim.clone();
    known.metadata.deletion_timestamp = None;
    known
}

/// The instance type of a machine, as its NodeClaim has it.
fn as_launched(claim: &NodeClaim) -> Option<InstanceType> {
    let name = claim.labels().get(well_known::INSTANCE_TYPE).filter(|name| !name.is_empty())?;
    let status = claim.status.as_ref()?;
    let mut requirements = Requirements::new();
    for (key, value) in claim.labels() {
        let described = labels::WELL_KNOWN.contains(&key.as_str())
            || [
                well_known::INSTANCE_TYPE,
                well_known::ARCH,
                well_known::OS,
                well_known::TOPOLOGY_ZONE,
                well_known::TOPOLOGY_REGION,
                well_known::CAPACITY_TYPE,
            ]
            .contains(&key.as_str());
        if described {
            requirements.add(Requirement::one_of(key.as_str(), [value.as_str()]));
        }
    }
    let capacity = conversion::resources(status.capacity.as_ref()?);
    let kept = capacity.minus(&conversion::resources(status.allocatable.as_ref()?));
    let overhead = Overhead { kube_reserved: kept, ..Overhead::default() };
    Some(InstanceType {
        name: name.as_str().into(),
        requirements,
        capacity,
        overhead,
        ..InstanceType::default()
    })
}
