//! `karpenter.sh/nodepool-hash`: what must change in a template for its nodes to count as drifted.

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{NodePool, TemplateMeta};
use crate::structure_hash::{Struct, bytes, int, map, set, text};
use crate::{NillableDuration, NodeClassReference};

/// The version of the algorithm, [`crate::annotations::NODEPOOL_HASH_VERSION`].
pub const HASH_VERSION: &str = "v3";

impl NodePool {
    /// The hash of the template, as decimal text. Requirements do not count: they drift by comparison with the node.
    pub fn hash(&self) -> String {
        let template = &self.spec.template;
        let spec = &template.spec;
        let spec_hash = Struct::named("NodeClaimTemplateSpec")
            .field("Taints", spec.taints.as_deref().map(taints))
            .field("StartupTaints", spec.startup_taints.as_deref().map(taints))
            .field("NodeClassRef", node_class_ref(&spec.node_class_ref))
            .field(
                "TerminationGracePeriod",
                spec.termination_grace_period.as_ref().map(|period| {
                    // A pointer to a struct around an integer: the pointer counts even where the integer is zero.
                    Struct::named("Duration").field("Duration", non_zero(period.as_nanos())).finish()
                }),
            )
            .field(
                "ExpireAfter",
                spec.expire_after.as_ref().and_then(NillableDuration::as_duration).map(|after| {
                    Struct::named("NillableDuration").field("Duration", int(after.as_nanos())).finish()
                }),
            )
            .finish();
        let hash = Struct::named("NodeClaimTemplate")
            .field("ObjectMeta", template.metadata.as_ref().and_then(object_meta))
            .field("Spec", spec_hash)
            .finish();
        hash.to_string()
    }
}

fn object_meta(meta: &TemplateMeta) -> Option<u64> {
    if meta.labels.is_none() && meta.annotations.is_none() {
        return None;
    }
    let entries = |map_of: &Option<std::collections::BTreeMap<String, String>>| {
        map_of.as_ref().map(|m| map(m.iter().map(|(k, v)| (k.as_str(), v.as_str()))))
    };
    let hash = Struct::named("ObjectMeta")
        .field("Labels", entries(&meta.labels))
        .field("Annotations", entries(&meta.annotations));
    Some(hash.finish())
}

fn taints(taints: &[Taint]) -> u64 {
    set(taints.iter().map(|taint| {
        Struct::named("Taint")
            .field("Key", non_empty(&taint.key))
            .field("Value", taint.value.as_deref().and_then(non_empty))
            .field("Effect", non_empty(&taint.effect))
            .field("TimeAdded", taint.time_added.as_ref().map(time))
            .finish()
    }))
}

fn node_class_ref(reference: &NodeClassReference) -> u64 {
    Struct::named("NodeClassReference")
        .field("Kind", non_empty(&reference.kind))
        .field("Name", non_empty(&reference.name))
        .field("Group", non_empty(&reference.group))
        .finish()
}

/// Go's binary form of a time: version, seconds since year 1, nanoseconds, minutes of the zone's offset. Times read from JSON
/// are in the process's zone, which in a container is UTC: offset 0 (not the -1 of Go's own UTC).
fn time(time: &Time) -> u64 {
    const SECONDS_FROM_YEAR_1_TO_1970: i64 = 62_135_596_800;
    let seconds = time.0.as_second() + SECONDS_FROM_YEAR_1_TO_1970;
    let mut encoded = vec![1];
    encoded.extend(seconds.to_be_bytes());
    encoded.extend(time.0.subsec_nanosecond().to_be_bytes());
    encoded.extend([0, 0]);
    Struct::named("Time").field("Time", bytes(&encoded)).finish()
}

fn non_empty(value: &str) -> Option<u64> {
    (!value.is_empty()).then(|| text(value))
}

fn non_zero(value: i64) -> Option<u64> {
    (value != 0).then(|| int(value))
}
