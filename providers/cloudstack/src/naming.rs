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
/// Room for `-99` behind the name.
const ROOM_FOR_ATTEMPT: usize = 3;
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

    /// The name of a claim's first machine.
    pub(crate) fn of_claim(&self, claim: &NodeClaim) -> String {
        let name = format!("{}{}", self.prefix, dns_label(&claim.name_any()));
        let longest = MAX_NAME - ROOM_FOR_ATTEMPT;
        if name.len() <= longest {
            return name.trim_end_matches('-').to_owned();
        }
        let uid = digest(&claim.uid().unwrap_or_default(), 8);
        format!("{}-{uid}", name[..longest - 9].trim_end_matches('-'))
    }

    /// The name of its machine of this attempt: a machine that could not be started keeps its name until it is expunged.
    pub(crate) fn of_attempt(base: &str, attempt: u32) -> String {
        if attempt == 0 { base.to_owned() } else { format!("{base}-{attempt}") }
    }

    /// The attempt a name stands for, if it is one of this claim's.
    pub(crate) fn attempt(base: &str, name: &str) -> Option<u32> {
        let rest = name.strip_prefix(base)?;
        if rest.is_empty() {
            return Some(0);
        }
        rest.strip_prefix('-')?.parse().ok().filter(|attempt| (1..100).contains(attempt))
    }
}

/// So many hexadecimal digits of a text's hash: the last ones, since the first hardly differ for short texts.
pub(crate) fn digest(text: &str, digits: usize) -> String {
    let hash = format!("{:016x}", structure_hash::text(text));
    hash[hash.len() - digits..].to_owned()
}

/// Lower case letters, digits and single hyphens; a letter first.
fn dns_label(text: &str) -> String {
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
        assert_eq!(Naming::attempt("k-1-np-a", "k-1-np-a"), Some(0));
        assert_eq!(Naming::attempt("k-1-np-a", "k-1-np-a-3"), Some(3));
        for other in ["k-1-np-ab", "k-1-np-a-b", "k-1-np-a-", "k-1-np-a-0", "other"] {
            assert_eq!(Naming::attempt("k-1-np-a", other), None, "{other}");
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
