//! Which labels users may set, and what a provider adds to that.
//!
//! Go keeps these sets as package variables that providers change at start; here they are a value that whoever knows the
//! provider builds once and hands on.

use std::collections::{BTreeMap, BTreeSet};

use crate::labels;

/// The labels Karpenter understands, those it reserves, and the aliases it translates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelRules {
    well_known: BTreeSet<String>,
    restricted_domains: BTreeSet<String>,
    restricted: BTreeSet<String>,
    known_values: BTreeMap<String, BTreeSet<String>>,
    normalized: BTreeMap<String, String>,
}

impl LabelRules {
    /// What holds with every provider.
    pub fn core() -> Self {
        let set = |items: &[&str]| items.iter().map(|&i| i.to_owned()).collect::<BTreeSet<_>>();
        let capacity_types = set(&[
            labels::CAPACITY_TYPE_ON_DEMAND,
            labels::CAPACITY_TYPE_SPOT,
            labels::CAPACITY_TYPE_RESERVED,
        ]);
        let aliases = [
            (labels::FAILURE_DOMAIN_BETA_ZONE, labels::TOPOLOGY_ZONE),
            (labels::FAILURE_DOMAIN_BETA_REGION, labels::TOPOLOGY_REGION),
            (labels::BETA_INSTANCE_TYPE, labels::INSTANCE_TYPE),
            (labels::BETA_ARCH, labels::ARCH),
            (labels::BETA_OS, labels::OS),
        ];
        Self {
            well_known: set(&[
                labels::NODEPOOL,
                labels::TOPOLOGY_ZONE,
                labels::TOPOLOGY_REGION,
                labels::INSTANCE_TYPE,
                labels::ARCH,
                labels::OS,
                labels::CAPACITY_TYPE,
                labels::WINDOWS_BUILD,
            ]),
            restricted_domains: set(&[crate::GROUP]),
            restricted: set(&[labels::HOSTNAME]),
            known_values: BTreeMap::from([(labels::CAPACITY_TYPE.to_owned(), capacity_types)]),
            normalized: aliases.into_iter().map(|(a, b)| (a.to_owned(), b.to_owned())).collect(),
        }
    }

    /// With labels a provider's instance types carry.
    #[must_use]
    pub fn with_well_known<'a>(mut self, keys: impl IntoIterator<Item = &'a str>) -> Self {
        self.well_known.extend(keys.into_iter().map(str::to_owned));
        self
    }

    /// With a domain a provider reserves.
    #[must_use]
    pub fn with_restricted_domain(mut self, domain: &str) -> Self {
        self.restricted_domains.insert(domain.to_owned());
        self
    }

    /// Labels that every instance type gives a meaning to.
    pub fn well_known(&self) -> &BTreeSet<String> {
        &self.well_known
    }

    /// Whether instance types give the label a meaning.
    pub fn is_well_known(&self, key: &str) -> bool {
        self.well_known.contains(key)
    }

    /// The only sensible values of a label, where there are such.
    pub fn known_values(&self, key: &str) -> Option<&BTreeSet<String>> {
        self.known_values.get(key)
    }

    /// The key an old spelling stands for, or the key itself.
    pub fn normalize<'a>(&'a self, key: &'a str) -> &'a str {
        self.normalized.get(key).map_or(key, String::as_str)
    }

    /// Old spellings and what they stand for.
    pub fn aliases(&self) -> &BTreeMap<String, String> {
        &self.normalized
    }

    /// Why users may not set the label, if they may not.
    pub fn restriction(&self, key: &str) -> Option<String> {
        if self.is_well_known(key) {
            return None;
        }
        let domain = labels::domain(key);
        let in_restricted_domain = self
            .restricted_domains
            .iter()
            .any(|d| domain == d || domain.strip_suffix(d.as_str()).is_some_and(|rest| rest.ends_with('.')));
        (in_restricted_domain || self.restricted.contains(key)).then(|| {
            format!(
                "using label {key} is not allowed as it might interfere with the internal provisioning logic; specify a well known label: {}, or a custom label that does not use a restricted domain: {}",
                listed(&self.well_known),
                listed(&self.restricted_domains),
            )
        })
    }
}

impl Default for LabelRules {
    fn default() -> Self {
        Self::core()
    }
}

/// The labels that tell offerings of one instance type apart.
pub const OFFERING_LABELS: [&str; 2] = [labels::TOPOLOGY_ZONE, labels::CAPACITY_TYPE];

/// A list as Go prints it.
pub(crate) fn listed<'a>(items: impl IntoIterator<Item = &'a String>) -> String {
    let items: Vec<&str> = items.into_iter().map(String::as_str).collect();
    format!("[{}]", items.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restricted_domain_covers_its_subdomains_but_not_lookalikes() {
        let rules = LabelRules::core();
        assert!(rules.restriction("karpenter.sh/custom").is_some());
        assert!(rules.restriction("sub.karpenter.sh/custom").is_some());
        assert!(rules.restriction("mykarpenter.sh/custom").is_none());
        assert!(rules.restriction("kubernetes.io/hostname").is_some());
        assert!(rules.restriction("karpenter.sh/capacity-type").is_none());
        assert!(rules.restriction("kubernetes.io/custom").is_none());
    }

    #[test]
    fn a_provider_can_reserve_a_domain_and_exempt_its_labels() {
        let rules = LabelRules::core()
            .with_restricted_domain("karpenter.kwok.sh")
            .with_well_known(["karpenter.kwok.sh/instance-cpu"]);
        assert!(rules.restriction("karpenter.kwok.sh/other").is_some());
        assert!(rules.restriction("karpenter.kwok.sh/instance-cpu").is_none());
    }

    #[test]
    fn old_spellings_are_translated() {
        let rules = LabelRules::core();
        assert_eq!(rules.normalize("beta.kubernetes.io/arch"), "kubernetes.io/arch");
        assert_eq!(rules.normalize("failure-domain.beta.kubernetes.io/zone"), "topology.kubernetes.io/zone");
        assert_eq!(rules.normalize("team"), "team");
    }
}
