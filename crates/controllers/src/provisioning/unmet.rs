//! Which of a NodePool's requirements leave it nothing to buy, in words for whoever wrote them.

use std::collections::BTreeSet;

use karpenter_engine::instance_type::InstanceType;
use karpenter_engine::labels::Text;
use karpenter_engine::node_pool::NodePool;
use karpenter_engine::requirement::{Operator, Requirement};
use karpenter_engine::requirements::Requirements;

/// The field that requirements stand in.
pub(super) const REQUIREMENTS: &str = "spec.template.spec.requirements";
const LABELS: &str = "spec.template.metadata.labels";

/// Why no instance type is left: field, problem and what there would be; none where nothing can be had at all, whatever is asked.
/// `min_values` are the keys that too few values of can be had, with how many.
pub(super) fn nothing_left(pool: &NodePool, min_values: &[(Text, i64)]) -> Option<String> {
    let mut asked = Requirements::from_selectors(&pool.requirements).unwrap_or_default();
    asked.add_all(&Requirements::from_labels(&pool.labels));
    if let Some((key, reached)) = min_values.first() {
        let wanted = asked.get(key).and_then(|requirement| requirement.min_values).unwrap_or_default();
        return Some(format!(
            "{REQUIREMENTS}: minValues of {key} is {wanted}, and {reached} can be had; lower it, or allow more values"
        ));
    }
    let types = pool.instance_types.list();
    if !types.iter().any(|instance_type| meets(instance_type, &Requirements::new())) {
        return None;
    }
    let unmet = asked.iter().find(|requirement| {
        let alone = Requirements::from_iter([(*requirement).clone()]);
        !types.iter().any(|instance_type| meets(instance_type, &alone))
    });
    let Some(unmet) = unmet else {
        return Some(format!(
            "{REQUIREMENTS}: no instance type that can be had meets all of {asked} at once"
        ));
    };
    let key = &unmet.key;
    let none_is_asked_for = pool
        .requirements
        .iter()
        .any(|asked| asked.key == *key && Operator::parse(&asked.operator) == Some(Operator::DoesNotExist));
    if unmet.operator() == Operator::DoesNotExist && !none_is_asked_for {
        return Some(format!(
            "{REQUIREMENTS}: no value of {key} is left by what is asked of it; take some of that back"
        ));
    }
    let field = if pool.labels.get(key).is_some() { LABELS } else { REQUIREMENTS };
    let there_is = possible(types, key);
    Some(format!("{field}: no instance type that can be had meets {unmet}; there is {there_is}"))
}

fn meets(instance_type: &InstanceType, asked: &Requirements) -> bool {
    let mut offered = instance_type.offerings.iter().filter(|offering| offering.available);
    instance_type.requirements.intersects(asked).is_ok()
        && offered.any(|offering| offering.requirements.intersects(asked).is_ok())
}

/// What can be had of a label.
fn possible(types: &[InstanceType], key: &Text) -> Requirement {
    let offerings = types.iter().flat_map(|instance_type| &instance_type.offerings);
    let offered = offerings.filter(|offering| offering.available).map(|offering| &offering.requirements);
    let values = values_of(offered, key);
    let values = if values.is_empty() {
        values_of(types.iter().map(|instance_type| &instance_type.requirements), key)
    } else {
        values
    };
    Requirement::one_of(key.clone(), values)
}

fn values_of<'a>(requirements: impl Iterator<Item = &'a Requirements>, key: &str) -> BTreeSet<Text> {
    let told = requirements.filter_map(|requirements| requirements.get(key));
    told.filter(|told| !told.complement).flat_map(|told| told.values.iter().cloned()).collect()
}
