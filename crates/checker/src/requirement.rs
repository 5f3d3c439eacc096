//! Node selector expressions and label selectors, evaluated one label at a time.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::world::{entries, list, text, texts};

/// `kubernetes.io/hostname`.
pub(crate) const HOSTNAME: &str = "kubernetes.io/hostname";

/// The stable name of a deprecated label.
pub(crate) fn stable(key: &str) -> &str {
    match key {
        "failure-domain.beta.kubernetes.io/zone" => "topology.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region" => "topology.kubernetes.io/region",
        "beta.kubernetes.io/arch" => "kubernetes.io/arch",
        "beta.kubernetes.io/os" => "kubernetes.io/os",
        "beta.kubernetes.io/instance-type" => "node.kubernetes.io/instance-type",
        other => other,
    }
}

/// One expression over one label.
#[derive(Clone, Debug)]
pub(crate) struct Expression<'a> {
    pub(crate) key: &'a str,
    operator: &'a str,
    values: Vec<&'a str>,
}

impl<'a> Expression<'a> {
    pub(crate) fn read(json: &'a Value) -> Self {
        Expression {
            key: stable(text(&json["key"])),
            operator: text(&json["operator"]),
            values: texts(&json["values"]),
        }
    }

    pub(crate) fn equals(key: &'a str, value: &'a str) -> Self {
        Expression { key: stable(key), operator: "In", values: vec![value] }
    }

    /// As storage classes write it: a key and its values, the operator understood.
    pub(crate) fn listed(json: &'a Value) -> Self {
        Expression { key: stable(text(&json["key"])), operator: "In", values: texts(&json["values"]) }
    }

    pub(crate) fn needs_presence(&self) -> bool {
        !matches!(self.operator, "NotIn" | "DoesNotExist")
    }

    /// Whether a label with this value (or its absence) satisfies the expression.
    pub(crate) fn accepts(&self, value: Option<&str>) -> bool {
        let bound = || self.values.first().and_then(|b| b.parse::<i64>().ok());
        let number = || value.and_then(|v| v.parse::<i64>().ok());
        let compare =
            |holds: fn(i64, i64) -> bool| matches!((number(), bound()), (Some(n), Some(b)) if holds(n, b));
        match self.operator {
            "In" => value.is_some_and(|v| self.values.contains(&v)),
            "NotIn" => value.is_none_or(|v| !self.values.contains(&v)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            "Gt" => compare(|n, b| n > b),
            "Lt" => compare(|n, b| n < b),
            "Gte" => compare(|n, b| n >= b),
            "Lte" => compare(|n, b| n <= b),
            _ => false,
        }
    }
}

/// The alternatives a pod demands of a node: its node selector with each of the required affinity terms.
pub(crate) fn demands(spec: &Value) -> Vec<Vec<Expression<'_>>> {
    let selector: Vec<_> =
        entries(&spec["nodeSelector"]).map(|(k, v)| Expression::equals(k, text(v))).collect();
    let terms = list(
        &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"],
    );
    if terms.is_empty() {
        return vec![selector];
    }
    terms
        .iter()
        .map(|t| {
            selector
                .iter()
                .cloned()
                .chain(list(&t["matchExpressions"]).iter().map(Expression::read))
                .collect()
        })
        .collect()
}

/// A `LabelSelector`; absent selects nothing, `{}` everything.
pub(crate) fn selects(selector: &Value, labels: &BTreeMap<&str, &str>) -> bool {
    if selector.is_null() {
        return false;
    }
    entries(&selector["matchLabels"]).all(|(k, v)| labels.get(k).copied() == Some(text(v)))
        && list(&selector["matchExpressions"]).iter().all(|e| {
            let values = texts(&e["values"]);
            let found = labels.get(text(&e["key"]));
            match text(&e["operator"]) {
                "In" => found.is_some_and(|v| values.contains(v)),
                "NotIn" => found.is_none_or(|v| !values.contains(v)),
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => false,
            }
        })
}

/// Whether any of the tolerations tolerates the taint.
pub(crate) fn tolerates(spec: &Value, taint: &Value) -> bool {
    list(&spec["tolerations"]).iter().any(|t| {
        let (key, effect) = (text(&t["key"]), text(&t["effect"]));
        if !effect.is_empty() && effect != text(&taint["effect"])
            || !key.is_empty() && key != text(&taint["key"])
        {
            return false;
        }
        let (mine, theirs) = (text(&t["value"]), text(&taint["value"]));
        let numbers = || Some((mine.parse::<i64>().ok()?, theirs.parse::<i64>().ok()?));
        match text(&t["operator"]) {
            "" | "Equal" => mine == theirs,
            "Exists" => true,
            "Gt" => numbers().is_some_and(|(m, t)| t > m),
            "Lt" => numbers().is_some_and(|(m, t)| t < m),
            _ => false,
        }
    })
}
