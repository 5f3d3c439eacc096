//! Which labels the nodes of a scalable resource carry: what Cluster API copies from Machines to Nodes, overlaid by what its
//! owner says in cluster-autoscaler's annotation.

use std::collections::BTreeMap;

use karpenter_api::labels::{
    ARCH, CAPACITY_TYPE, HOSTNAME, INSTANCE_TYPE, OS, TOPOLOGY_REGION, TOPOLOGY_ZONE, domain,
};
use karpenter_primitives::names::{label_value_errors, qualified_name_errors};

use crate::client::fields::Malformed;
use crate::client::scalable::{Scalable, ScalableKind};
use crate::client::sync_labels::SyncLabels;
use crate::client::template::Template;
use crate::names;

/// Labels with which Cluster API and we keep book; they say nothing about what a node is.
const BOOKKEEPING: &[&str] = &[names::MEMBER, "machine-template-hash"];

/// Domains of labels with which Cluster API keeps book.
const BOOKKEEPING_DOMAINS: &[&str] =
    &[names::CAPI_GROUP, "topology.cluster.x-k8s.io", "clusterctl.cluster.x-k8s.io"];

/// Labels that say nothing if they are empty: whoever would have the next word has it then.
const NEVER_EMPTY: &[&str] = &[ARCH, CAPACITY_TYPE, INSTANCE_TYPE, OS, TOPOLOGY_REGION, TOPOLOGY_ZONE];

/// The labels of its nodes. `more` are those that this management cluster copies besides Cluster API's own.
pub(crate) fn node_labels(
    scalable: &Scalable,
    template: Option<&Template>,
    more: &SyncLabels,
    default_arch: &str,
) -> Result<BTreeMap<String, String>, Malformed> {
    let field = match scalable.id.kind {
        ScalableKind::MachineTemplate => "labels",
        _ => "spec.template.metadata.labels",
    };
    // Machines of others' making with labels that cannot be are Cluster API's to refuse.
    let ours = scalable.id.kind == ScalableKind::MachineTemplate;
    for (key, value) in scalable.template_labels.iter().filter(|(key, _)| ours || is_copied(key, more)) {
        if let Some(error) = qualified_name_errors(key).first() {
            return Err(scalable.malformed(field, format!("{key:?} is not the key of a label: {error}")));
        }
        value_of(scalable, &format!("{field}[{key}]"), value)?;
    }
    let mut labels: BTreeMap<String, String> = scalable
        .template_labels
        .iter()
        .filter(|(key, _)| is_copied(key, more))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    labels.extend(annotated(scalable)?);
    labels.retain(|key, value| {
        let says_nothing = value.is_empty() && NEVER_EMPTY.contains(&key.as_str());
        !is_bookkeeping(key) && !is_given(key) && !says_nothing
    });
    let info = [
        (ARCH, "architecture", template.and_then(|t| t.architecture.as_deref()), default_arch),
        (OS, "operatingSystem", template.and_then(|t| t.operating_system.as_deref()), "linux"),
    ];
    for (label, field, told, default) in info {
        if labels.contains_key(label) {
            continue;
        }
        let told = told.filter(|told| !told.is_empty());
        let told = told.map(|told| {
            value_of(scalable, &format!("infrastructure template: status.nodeInfo.{field}"), told)
        });
        labels.insert(label.to_owned(), told.transpose()?.unwrap_or(default).to_owned());
    }
    Ok(labels)
}

/// What stands at a key, if a label can have that value: a node with any other is refused by the server every time.
pub(super) fn value_of<'a>(scalable: &Scalable, key: &str, value: &'a str) -> Result<&'a str, Malformed> {
    match label_value_errors(value).first() {
        Some(error) => {
            Err(scalable.malformed(key, format!("{value:?} cannot be the value of a label: {error}")))
        }
        None => Ok(value),
    }
}

/// Whether Karpenter or kubelet gives this label to a node, whatever its owner says.
fn is_given(key: &str) -> bool {
    domain(key) == "karpenter.sh" && key != CAPACITY_TYPE || key == HOSTNAME
}

/// The labels that its owner says its nodes have and that only Cluster API, Karpenter or kubelet gives: they are not reckoned with.
pub(crate) fn ignored(scalable: &Scalable) -> Option<Malformed> {
    let labels = annotated(scalable).ok()?;
    let names = |is_it: &dyn Fn(&str) -> bool| -> Vec<&str> {
        labels.keys().map(String::as_str).filter(|key| is_it(key)).collect()
    };
    let theirs = names(&|key| BOOKKEEPING_DOMAINS.contains(&domain(key)));
    let given = names(&is_given);
    let of = |names: &[&str], whose: &str| {
        (!names.is_empty()).then(|| format!("{} are for {whose} to give, and are ignored", names.join(", ")))
    };
    let problems = [of(&theirs, "Cluster API"), of(&given, "Karpenter and kubelet")];
    let problem = || problems.iter().flatten().cloned().collect::<Vec<_>>().join("; ");
    (problems.iter().any(Option::is_some))
        .then(|| scalable.malformed(format!("{}labels", names::CAPACITY_DOMAIN), problem()))
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
