//! Names: of virtual machines, in labels, and the ids nodes carry.
//!
//! The name of a machine follows from its NodeClaim, so that whoever comes after a lost reply or a crash finds it. It holds a
//! digest of the cluster's name: what another cluster made is never taken for ours.

use std::sync::{Mutex, PoisonError};

use karpenter_api::NodeClaim;
use karpenter_api::structure_hash;
use kube::ResourceExt as _;

/// The longest name of a machine.
const MAX_NAME: usize = 63;
/// Room for `--99` behind the name.
const ROOM_FOR_ATTEMPT: usize = 4;
/// A hyphen and a digest of the NodeClaim's UID.
const UID: usize = 9;
/// A hyphen, a digest of the cluster's name, a hyphen.
const CLUSTER: usize = 8;
/// The longest prefix: with a longer one names of machines would have to be cut before what tells that they are ours.
pub(crate) const MAX_PREFIX: usize = MAX_NAME - ROOM_FOR_ATTEMPT - UID - CLUSTER;
/// The longest value of a label.
const MAX_LABEL: usize = 63;

/// How the machines of one cluster are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Naming {
    prefix: String,
}

impl Naming {
    /// Of a cluster.
    pub fn new(prefix: &str, cluster: &str) -> Self {
        let prefix = dns_label(prefix);
        let prefix = if prefix.is_empty() { "karpenter".to_owned() } else { prefix };
        Self { prefix: format!("{prefix}-{}-", digest(cluster, 6)) }
    }

    /// What all names of the cluster's machines begin with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The name of a claim's first machine. Two claims never share one: what had to be changed or cut ends in a digest of the UID.
    pub(crate) fn of_claim(&self, claim: &NodeClaim) -> String {
        let longest = MAX_NAME - ROOM_FOR_ATTEMPT;
        let label = dns_label(&claim.name_any());
        let name = format!("{}{label}", self.prefix);
        if label == claim.name_any() && name.len() <= longest {
            return name.trim_end_matches('-').to_owned();
        }
        let uid = digest(&claim.uid().unwrap_or_default(), UID - 1);
        format!("{}-{uid}", name[..name.len().min(longest - UID)].trim_end_matches('-'))
    }

    /// The name of its machine of this attempt: a machine that could not be started keeps its name until it is expunged. No claim's
    /// own name has two hyphens in a row, so it is never that of another claim's machine.
    pub(crate) fn of_attempt(base: &str, attempt: u32) -> String {
        if attempt == 0 { base.to_owned() } else { format!("{base}--{attempt}") }
    }

    /// Which of a claim's machines a name stands for, if it is one of this claim's: 0 is the first.
    pub(crate) fn attempt(&self, claim: &NodeClaim, name: &str) -> Option<u32> {
        let base = self.of_claim(claim);
        let rest = name.strip_prefix(&base)?;
        if rest.is_empty() {
            return Some(0);
        }
        rest.strip_prefix("--")?.parse().ok().filter(|attempt| (1..100).contains(attempt))
    }
}

/// So many hexadecimal digits of a text's hash: the last ones, since the first hardly differ for short texts.
pub(crate) fn digest(text: &str, digits: usize) -> String {
    let hash = format!("{:016x}", structure_hash::text(text));
    hash[hash.len() - digits..].to_owned()
}

/// Lower case letters, digits and single hyphens; a letter first.
pub(crate) fn dns_label(text: &str) -> String {
    let mut label = String::new();
    for c in text.to_lowercase().chars() {
        let c = if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' };
        if c != '-' || !label.ends_with('-') {
            label.push(c);
        }
    }
    label.trim_matches('-').to_owned()
}

/// A name as the value of a label: what may not stand there becomes `_`; what had to be changed or cut ends in a digest, so
/// that two names never become one.
pub fn label_value(name: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let replaced: String = name.chars().map(|c| if allowed(c) { c } else { '_' }).collect();
    let trimmed = replaced.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    if trimmed == name && name.len() <= MAX_LABEL {
        return name.to_owned();
    }
    let digest = digest(name, 6);
    let kept: String = trimmed.chars().take(MAX_LABEL - 7).collect();
    let kept = kept.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
    if kept.is_empty() { digest } else { format!("{kept}.{digest}") }
}

/// How provider ids are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProviderIdFormat {
    /// `external-cloudstack://ID`, as the cloud controller manager writes it.
    #[default]
    CloudControllerManager,
    /// `cloudstack:///ID`, as Cluster API does.
    ClusterApi,
    /// `cloudstack://ZONE/ID`, as the Go provider did.
    Zoned,
    /// Anything with `{id}` and perhaps `{zone}` in it.
    Template(String),
}

impl ProviderIdFormat {
    /// The provider id of a machine.
    pub fn write(&self, zone: &str, id: &str) -> String {
        match self {
            Self::CloudControllerManager => format!("external-cloudstack://{id}"),
            Self::ClusterApi => format!("cloudstack:///{id}"),
            Self::Zoned => format!("cloudstack://{zone}/{id}"),
            Self::Template(template) => template.replace("{zone}", zone).replace("{id}", id),
        }
    }

    /// Reads a form as users write it; nothing if machines could not be told apart by it.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "external-cloudstack://{id}" => Some(Self::CloudControllerManager),
            "cloudstack:///{id}" => Some(Self::ClusterApi),
            "cloudstack://{zone}/{id}" => Some(Self::Zoned),
            // The id must stand where it is looked for again.
            other => (other.ends_with("/{id}") && machine_id(other) == Some("{id}"))
                .then(|| Self::Template(other.to_owned())),
        }
    }
}

impl ProviderIdFormat {
    /// The form a provider id is written in, if it is one that is known.
    fn of(provider_id: &str) -> Option<Self> {
        machine_id(provider_id)?;
        match provider_id.split_once("://")? {
            ("external-cloudstack", rest) if !rest.contains('/') => Some(Self::CloudControllerManager),
            ("cloudstack", rest) if rest.starts_with('/') => Some(Self::ClusterApi),
            ("cloudstack", rest) if rest.split('/').count() == 2 => Some(Self::Zoned),
            _ => None,
        }
    }
}

/// How provider ids of new machines are written: as it was set, until Nodes show that whatever names them does it otherwise.
#[derive(Debug)]
pub(crate) struct Form(Mutex<ProviderIdFormat>);

impl Form {
    pub(crate) fn new(format: ProviderIdFormat) -> Self {
        Self(Mutex::new(format))
    }

    pub(crate) fn write(&self, zone: &str, id: &str) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(zone, id)
    }

    /// A Node carries this provider id.
    pub(crate) fn learn(&self, provider_id: &str) {
        let Some(seen) = ProviderIdFormat::of(provider_id) else { return };
        let mut format = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A form of the user's own is told from its likes by nobody else.
        if *format != seen && !matches!(*format, ProviderIdFormat::Template(_)) {
            tracing::info!(
                provider_id,
                "Nodes carry provider ids of another form, which is used from now on"
            );
            *format = seen;
        }
    }
}

/// The machine's id in a provider id of any form.
pub fn machine_id(provider_id: &str) -> Option<&str> {
    let (scheme, rest) = provider_id.split_once("://")?;
    if !matches!(scheme, "cloudstack" | "external-cloudstack") {
        return None;
    }
    rest.rsplit('/').next().filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_ids_is_learnt_from_nodes_unless_it_is_the_users_own() {
        let form = Form::new(ProviderIdFormat::default());
        form.learn("aws:///eu/i-1");
        assert_eq!(form.write("z", "1"), "external-cloudstack://1");
        form.learn("cloudstack:///2");
        assert_eq!(form.write("z", "1"), "cloudstack:///1");
        form.learn("cloudstack://zone/2");
        assert_eq!(form.write("z", "1"), "cloudstack://z/1");
        let own = Form::new(ProviderIdFormat::Template("cloudstack://region/{id}".into()));
        own.learn("cloudstack:///2");
        assert_eq!(own.write("z", "1"), "cloudstack://region/1");
    }

    fn claim(name: &str, uid: &str) -> NodeClaim {
        let mut claim = NodeClaim::default();
        claim.metadata.name = Some(name.into());
        claim.metadata.uid = Some(uid.into());
        claim
    }

    fn valid(name: &str) -> bool {
        name.len() <= 63
            && name.starts_with(|c: char| c.is_ascii_lowercase())
            && !name.ends_with('-')
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    }

    #[test]
    fn names_are_ones_the_server_takes_and_tell_clusters_and_claims_apart() {
        let naming = Naming::new("karpenter", "prod");
        let long = "x".repeat(250);
        for name in ["default-abcde", "Über.Größe_1", &long] {
            let name = naming.of_claim(&claim(name, "1"));
            assert!(valid(&name) && valid(&Naming::of_attempt(&name, 99)), "{name}");
        }
        assert_ne!(naming.of_claim(&claim(&long, "1")), naming.of_claim(&claim(&long, "2")));
        assert_ne!(naming.prefix(), Naming::new("karpenter", "test").prefix());
    }

    #[test]
    fn attempts_are_recognised_and_other_claims_are_not() {
        let naming = Naming::new("k", "prod");
        let web = claim("web", "1");
        let number = |name: &str| naming.attempt(&web, &format!("{}{name}", naming.prefix()));
        assert_eq!(number("web"), Some(0));
        assert_eq!(number("web--3"), Some(3));
        for other in ["webb", "web-b", "web-1", "web-", "web--", "web--0", "web--100", "web-0", "other"] {
            assert_eq!(number(other), None, "{other}");
        }
        assert_eq!(naming.attempt(&web, "other"), None);
    }

    #[test]
    fn no_two_claims_have_machines_of_one_name() {
        let naming = Naming::new("k", "prod");
        let claims = [claim("web.1", "1"), claim("web-1", "2"), claim("web--1", "3"), claim("web", "4")];
        let mut names: Vec<String> = Vec::new();
        for claim in &claims {
            let base = naming.of_claim(claim);
            names.extend((0..20).map(|attempt| Naming::of_attempt(&base, attempt)));
        }
        let different: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(different.len(), names.len(), "{names:?}");
    }

    #[test]
    fn names_with_the_longest_prefix_still_say_whose_they_are() {
        let naming = Naming::new(&"p".repeat(MAX_PREFIX), "prod");
        for name in ["a", "default-abcde", &"x".repeat(250)] {
            let name = naming.of_claim(&claim(name, "1"));
            assert!(name.starts_with(naming.prefix()), "{name}");
            assert!(valid(&Naming::of_attempt(&name, 99)), "{name}");
        }
    }

    #[test]
    fn labels_are_valid_and_never_collide() {
        assert_eq!(label_value("k8s.small"), "k8s.small");
        let odd = [
            label_value("k8s large (8 vCPU / 16 GiB)"),
            label_value("k8s large [8 vCPU / 16 GiB]"),
            label_value("größe"),
            label_value("漢字"),
            label_value(&"x".repeat(80)),
        ];
        for (i, label) in odd.iter().enumerate() {
            assert!(label.len() <= 63 && label.starts_with(|c: char| c.is_ascii_alphanumeric()), "{label}");
            assert!(label.ends_with(|c: char| c.is_ascii_alphanumeric()), "{label}");
            assert!(odd.iter().skip(i + 1).all(|other| other != label));
        }
        assert!(odd[0].starts_with("k8s_large__8_vCPU___16_GiB"), "{}", odd[0]);
    }

    #[test]
    fn provider_ids_are_read_in_every_form() {
        for format in
            [ProviderIdFormat::CloudControllerManager, ProviderIdFormat::ClusterApi, ProviderIdFormat::Zoned]
        {
            assert_eq!(machine_id(&format.write("z", "1-2")), Some("1-2"));
        }
        let own = ProviderIdFormat::parse("cloudstack://prod/{zone}/{id}").expect("a form");
        assert_eq!(machine_id(&own.write("z", "1-2")), Some("1-2"));
        assert_eq!(ProviderIdFormat::parse("cloudstack://{id}/x"), None);
        for other in ["kwok://x", "", "cloudstack://", "aws:///a/i-1"] {
            assert_eq!(machine_id(other), None, "{other}");
        }
    }
}
