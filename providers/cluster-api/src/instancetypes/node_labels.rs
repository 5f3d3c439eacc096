//! Which labels the nodes of a scalable resource carry: what Cluster API copies from Machines to Nodes, overlaid by what its
//! owner says in cluster-autoscaler's annotation.

use std::collections::BTreeMap;

use karpenter_api::labels::{ARCH, OS, domain};
use karpenter_primitives::names::{label_value_errors, qualified_name_errors};

use crate::client::fields::Malformed;
use crate::client::scalable::Scalable;
use crate::client::sync_labels::SyncLabels;
use crate::client::template::Template;
use crate::names;

/// Labels with which Cluster API and we keep book; they say nothing about what a node is.
const BOOKKEEPING: &[&str] = &[names::MEMBER, "machine-template-hash"];

/// Domains of labels with which Cluster API keeps book.
const BOOKKEEPING_DOMAINS: &[&str] =
    &[names::CAPI_GROUP, "topology.cluster.x-k8s.io", "clusterctl.cluster.x-k8s.io"];

/// The labels of its nodes. `more` are those that this management cluster copies besides Cluster API's own.
pub fn node_labels(
    scalable: &Scalable,
    template: Option<&Template>,
    more: &SyncLabels,
    default_arch: &str,
) -> Result<BTreeMap<String, String>, Malformed> {
    let mut labels: BTreeMap<String, String> = scalable
        .template_labels
        .iter()
        .filter(|(key, _)| is_copied(key, more))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    labels.extend(annotated(scalable)?);
    labels.retain(|key, _| !is_bookkeeping(key));
    let told = |field: fn(&Template) -> Option<String>| template.and_then(field);
    labels
        .entry(ARCH.to_owned())
        .or_insert_with(|| told(|t| t.architecture.clone()).unwrap_or_else(|| default_arch.to_owned()));
    labels
        .entry(OS.to_owned())
        .or_insert_with(|| told(|t| t.operating_system.clone()).unwrap_or_else(|| "linux".to_owned()));
    Ok(labels)
}

/// The labels that its owner says its nodes have and that only Cluster API gives: they are not reckoned with.
pub fn ignored(scalable: &Scalable) -> Option<Malformed> {
    let labels = annotated(scalable).ok()?;
    let theirs: Vec<&str> =
        labels.keys().map(String::as_str).filter(|key| BOOKKEEPING_DOMAINS.contains(&domain(key))).collect();
    let problem = || format!("{} are for Cluster API to give, and are ignored", theirs.join(", "));
    (!theirs.is_empty()).then(|| scalable.malformed(format!("{}labels", names::CAPACITY_DOMAIN), problem()))
}

/// Cluster API copies roles, the two domains with their subdomains, and what it was told to.
fn is_copied(key: &str, more: &SyncLabels) -> bool {
    let domain = domain(key);
    let within = |parent: &str| domain == parent || domain.ends_with(&format!(".{parent}"));
    domain == "node-role.kubernetes.io"
        || within("node-restriction.kubernetes.io")
        || within("node.cluster.x-k8s.io")
        || more.matches(key)
}

pub(crate) fn is_bookkeeping(key: &str) -> bool {
    BOOKKEEPING.contains(&key) || BOOKKEEPING_DOMAINS.contains(&domain(key))
}

/// Whether a label of a Machine says something about its node and comes to be on it.
pub(crate) fn comes_to_node(key: &str, more: &SyncLabels) -> bool {
    is_copied(key, more) && !is_bookkeeping(key)
}

/// `key=value` separated by commas, split at the first `=`.
fn annotated(scalable: &Scalable) -> Result<BTreeMap<String, String>, Malformed> {
    let annotation = format!("{}labels", names::CAPACITY_DOMAIN);
    let Some(text) = scalable.annotations.get(&annotation) else { return Ok(BTreeMap::new()) };
    let mut labels = BTreeMap::new();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        // Items without a value are dropped, as cluster-autoscaler does.
        let Some((key, value)) = item.split_once('=') else { continue };
        let (key, value) = (key.trim(), value.trim());
        let errors: Vec<String> =
            qualified_name_errors(key).into_iter().chain(label_value_errors(value)).collect();
        if let Some(error) = errors.first() {
            return Err(scalable.malformed(annotation, format!("{item:?} is not a label: {error}")));
        }
        labels.insert(key.to_owned(), value.to_owned());
    }
    Ok(labels)
}
