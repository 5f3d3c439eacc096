//! Instance types that nodes run as though nothing offers them at the moment: what they came from has an annotation that cannot be
//! read, takes part no more, or is on its way to another management cluster. The core takes a node whose type is not listed for one
//! that has to be replaced; such types are listed so that it knows them, and cannot be had.

use std::collections::BTreeMap;

use karpenter_api::NodeClaim;
use karpenter_api::labels::{
    ARCH, CAPACITY_TYPE, CAPACITY_TYPE_ON_DEMAND, CAPACITY_TYPE_RESERVED, INSTANCE_TYPE, OS, TOPOLOGY_ZONE,
};
use karpenter_cloudprovider::conversion;
use karpenter_engine::instance_type::{InstanceType, Offering, Overhead};
use karpenter_engine::requirement::Requirement;
use karpenter_engine::requirements::Requirements;
use karpenter_engine::resources::Resources;

/// What a node runs as.
#[derive(Clone, Debug)]
pub(crate) struct RunsAs {
    instance_type: String,
    capacity_type: String,
    zone: Option<String>,
    /// Architecture and operating system.
    platform: BTreeMap<&'static str, String>,
    capacity: Resources,
    allocatable: Resources,
}

impl RunsAs {
    /// What the nodes of these NodeClaims run as, each once.
    pub(crate) fn all<'a>(claims: impl Iterator<Item = &'a NodeClaim>) -> Vec<Self> {
        let label = |claim: &'a NodeClaim, key: &str| claim.metadata.labels.as_ref()?.get(key);
        let place = |claim| [INSTANCE_TYPE, CAPACITY_TYPE, TOPOLOGY_ZONE].map(|key| label(claim, key));
        let mut one_of_each: BTreeMap<[Option<&String>; 3], Self> = BTreeMap::new();
        for claim in claims {
            let place = place(claim);
            if !one_of_each.contains_key(&place)
                && let Some(kept) = Self::of(claim)
            {
                one_of_each.insert(place, kept);
            }
        }
        one_of_each.into_values().collect()
    }

    /// What a NodeClaim's node runs as; `None` until that is known.
    fn of(claim: &NodeClaim) -> Option<Self> {
        let status = claim.status.as_ref()?;
        status.provider_id.as_ref().filter(|id| !id.is_empty())?;
        let label = |key: &str| claim.metadata.labels.as_ref()?.get(key).cloned();
        let capacity = conversion::resources(status.capacity.as_ref()?);
        let allocatable = status.allocatable.as_ref().map(conversion::resources);
        Some(Self {
            instance_type: label(INSTANCE_TYPE)?,
            capacity_type: label(CAPACITY_TYPE)?,
            zone: label(TOPOLOGY_ZONE),
            platform: [ARCH, OS].into_iter().filter_map(|key| Some((key, label(key)?))).collect(),
            allocatable: allocatable.unwrap_or_else(|| capacity.clone()),
            capacity,
        })
    }

    /// Whether the core finds this among the offerings of a type. A reservation that has run out has become a node on demand.
    fn is_offered(&self, offerings: &[Offering]) -> bool {
        let capacity_types: &[&str] = match &*self.capacity_type {
            CAPACITY_TYPE_RESERVED => &[CAPACITY_TYPE_RESERVED, CAPACITY_TYPE_ON_DEMAND],
            one => &[one],
        };
        let is_it = |offering: &Offering| {
            let allows = |key: &str, values: &[&str]| {
                let own = offering.requirements.get(key);
                own.is_none_or(|own| values.is_empty() || values.iter().any(|value| own.has(value)))
            };
            allows(CAPACITY_TYPE, capacity_types)
                && allows(TOPOLOGY_ZONE, &self.zone.as_deref().into_iter().collect::<Vec<_>>())
        };
        offerings.iter().any(is_it)
    }

    /// An offering that cannot be had. It costs nothing, so that nothing seems cheaper.
    fn offering(&self) -> Offering {
        let mut requirements = Requirements::new();
        requirements.add(Requirement::one_of(CAPACITY_TYPE, [self.capacity_type.as_str()]));
        if let Some(zone) = &self.zone {
            requirements.add(Requirement::one_of(TOPOLOGY_ZONE, [zone.as_str()]));
        }
        Offering { requirements, ..Offering::default() }
    }

    fn instance_type(&self) -> InstanceType {
        let mut requirements = Requirements::new();
        requirements.add(Requirement::one_of(INSTANCE_TYPE, [self.instance_type.as_str()]));
        for (key, value) in &self.platform {
            requirements.add(Requirement::one_of(*key, [value.as_str()]));
        }
        InstanceType {
            name: self.instance_type.as_str().into(),
            requirements,
            offerings: Vec::new(),
            capacity: self.capacity.clone(),
            overhead: Overhead {
                kube_reserved: self.capacity.minus(&self.allocatable),
                ..Overhead::default()
            },
            volume_limits: BTreeMap::new(),
            capacity_overlaid: false,
        }
    }
}

/// The types that are offered, with those that nodes run as besides; `None` if there are none besides.
pub(crate) fn with_kept(offered: &[InstanceType], kept: &[RunsAs]) -> Option<Vec<InstanceType>> {
    let mut types: Option<Vec<InstanceType>> = None;
    for one in kept {
        let now = types.as_deref().unwrap_or(offered);
        let known = now.iter().position(|known| *known.name == *one.instance_type);
        if known.is_some_and(|at| one.is_offered(&now[at].offerings)) {
            continue;
        }
        let types = types.get_or_insert_with(|| offered.to_vec());
        let at = known.unwrap_or_else(|| {
            types.push(one.instance_type());
            types.len() - 1
        });
        types[at].offerings.push(one.offering());
    }
    types
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn running(instance_type: &str, zone: Option<&str>, capacity_type: &str) -> NodeClaim {
        let mut labels = json!({INSTANCE_TYPE: instance_type, CAPACITY_TYPE: capacity_type, ARCH: "arm64"});
        if let Some(zone) = zone {
            labels[TOPOLOGY_ZONE] = zone.into();
        }
        serde_json::from_value(json!({
            "metadata": {"name": "n", "labels": labels},
            "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}, "requirements": []},
            "status": {"providerID": "x://n", "capacity": {"cpu": "4"}, "allocatable": {"cpu": "3500m"}},
        }))
        .expect("a NodeClaim")
    }

    fn told(types: &[InstanceType]) -> Value {
        types.iter().map(|one| (one.name.to_string(), json!(one.offerings.len()))).collect()
    }

    #[test]
    fn what_a_node_runs_as_is_listed_and_cannot_be_had() {
        let run = [("a", "spot"), ("a", "spot"), ("b", "spot")];
        let claims = run.map(|(zone, capacity_type)| running("m", Some(zone), capacity_type));
        let kept = RunsAs::all(claims.iter());
        assert_eq!(kept.len(), 2);
        let types = with_kept(&[], &kept).expect("further types");
        assert_eq!(told(&types), json!({"m": 2}), "one offering for each place");
        assert!(types[0].offerings.iter().all(|offering| !offering.available && offering.price == 0.0));
        let left = conversion::resource_list(&conversion::allocatable(&types[0]));
        assert_eq!(left["cpu"].to_string(), "3500m");
        assert!(with_kept(&types, &kept).is_none(), "they are listed now");
    }

    #[test]
    fn a_type_that_is_still_offered_elsewhere_gets_the_place_besides() {
        let offered =
            with_kept(&[], &[RunsAs::of(&running("m", Some("a"), "spot")).expect("one")]).expect("types");
        let besides = |claim: NodeClaim| {
            with_kept(&offered, &[RunsAs::of(&claim).expect("one")]).map(|types| told(&types))
        };
        assert_eq!(besides(running("m", Some("a"), "spot")), None);
        assert_eq!(besides(running("m", None, "spot")), None, "its node does not say where it is");
        assert_eq!(besides(running("m", Some("a"), "on-demand")), Some(json!({"m": 2})));
        assert_eq!(besides(running("other", Some("a"), "spot")), Some(json!({"m": 1, "other": 1})));
    }

    #[test]
    fn a_reserved_node_may_have_become_one_on_demand() {
        let on_demand = RunsAs::of(&running("m", None, "on-demand")).expect("one");
        let offered = with_kept(&[], &[on_demand]).expect("types");
        assert!(with_kept(&offered, &[RunsAs::of(&running("m", None, "reserved")).expect("one")]).is_none());
    }

    #[test]
    fn what_has_no_node_yet_runs_as_nothing() {
        let mut claim = running("m", None, "spot");
        claim.status.as_mut().expect("a status").provider_id = None;
        assert!(RunsAs::of(&claim).is_none());
    }
}
