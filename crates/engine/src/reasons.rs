//! Why: typed reasons for every place a pod did not get, every pod not tried, every pool left out.
//!
//! Each renders (`Display`) to the text upstream puts into its events and logs, where upstream has one.

use std::fmt;

use crate::labels::Text;
use crate::requirement::Requirement;
use crate::requirements::{Incompatibility, Requirements};
use crate::resources::{Amount, CPU, Resources};
use crate::taints::Taint;

/// Why a pod that was tried has no place.
#[derive(Clone, Debug, PartialEq)]
pub enum Unplaceable {
    /// It uses dynamic resource claims, which are switched off.
    ResourceClaims,
    /// Its volumes could not be looked up.
    Volumes(String),
    /// No NodePool is left to make a NodeClaim from.
    NoPools,
    /// Every NodePool said no; in the order they were asked.
    AllPools(Vec<PoolRejection>),
    /// It had a place, but the claim cannot be launched: too many instance types to list them all, too few varied ones among
    /// the cheapest.
    Truncated {
        /// The NodePool.
        node_pool: Text,
        /// Keys with too few values left.
        labels: Vec<Text>,
    },
    /// The pod itself makes no sense.
    Invalid(String),
}

impl Unplaceable {
    /// Whether the pod only waits for reserved capacity: no event, no metric, tried again.
    pub fn waits_for_reservation(&self) -> bool {
        matches!(self, Unplaceable::AllPools(pools)
            if pools.iter().any(|p| matches!(&p.reason, Rejection::Reserved(r) if r.defers())))
    }
}

/// Why one NodePool cannot take a pod on a new NodeClaim.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolRejection {
    /// The NodePool.
    pub node_pool: Text,
    /// The first rule that said no.
    pub reason: Rejection,
}

/// The first rule that kept a pod from a node or claim.
#[derive(Clone, Debug, PartialEq)]
pub enum Rejection {
    /// The pool may have no more nodes.
    NodeLimitExhausted,
    /// Every instance type left would exceed the pool's limits.
    LimitsExceeded,
    /// Taints the pod does not tolerate.
    Taints(Vec<Taint>),
    /// Too many volumes of a driver; without a driver when several together are too many.
    VolumeLimit(Option<VolumeLimit>),
    /// A host port is taken.
    HostPort {
        /// The port.
        port: i32,
        /// The protocol.
        protocol: Text,
    },
    /// Not enough of a resource on a node that exists.
    NodeResources(Shortage),
    /// Node selector or affinity cannot be met.
    Requirements(Incompatibility),
    /// The pod's volumes cannot be reached from there.
    VolumeRequirements(Incompatibility),
    /// A spread, affinity or anti-affinity allows no domain.
    Topology(TopologyRejection),
    /// The domains allowed by several constraints do not overlap, or are unknown here.
    TopologyConflict(Incompatibility),
    /// No instance type is left.
    InstanceTypes(Box<InstanceTypeRejection>),
    /// Reserved capacity stands in the way.
    Reserved(ReservedRejection),
}

/// A rule by name. In the order in which a node is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// How many nodes a NodePool may have.
    NodeLimit,
    /// How much a NodePool may have.
    Limits,
    /// Taints and tolerations.
    Taints,
    /// How many volumes can be attached.
    VolumeLimit,
    /// Host ports.
    HostPort,
    /// Room on a node.
    Resources,
    /// Node selector and node affinity.
    Requirements,
    /// Where the pod's volumes can be reached.
    VolumeTopology,
    /// Spread, affinity and anti-affinity.
    Topology,
    /// The same, where several do not agree.
    TopologyConflict,
    /// Size and offerings of instance types.
    InstanceTypes,
    /// Reserved capacity.
    ReservedCapacity,
}

impl Rule {
    /// A stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            Rule::NodeLimit => "nodeLimit",
            Rule::Limits => "limits",
            Rule::Taints => "taints",
            Rule::VolumeLimit => "volumeLimit",
            Rule::HostPort => "hostPort",
            Rule::Resources => "resources",
            Rule::Requirements => "requirements",
            Rule::VolumeTopology => "volumeTopology",
            Rule::Topology => "topology",
            Rule::TopologyConflict => "topologyConflict",
            Rule::InstanceTypes => "instanceTypes",
            Rule::ReservedCapacity => "reservedCapacity",
        }
    }
}

impl Rejection {
    /// Whether it is the NodePool's limits, in which case the text names the NodePool.
    pub fn is_of_limits(&self) -> bool {
        matches!(self, Rejection::NodeLimitExhausted | Rejection::LimitsExceeded)
    }

    /// The rule that said no.
    pub fn rule(&self) -> Rule {
        match self {
            Rejection::NodeLimitExhausted => Rule::NodeLimit,
            Rejection::LimitsExceeded => Rule::Limits,
            Rejection::Taints(_) => Rule::Taints,
            Rejection::VolumeLimit(_) => Rule::VolumeLimit,
            Rejection::HostPort { .. } => Rule::HostPort,
            Rejection::NodeResources(_) => Rule::Resources,
            Rejection::Requirements(_) => Rule::Requirements,
            Rejection::VolumeRequirements(_) => Rule::VolumeTopology,
            Rejection::Topology(_) => Rule::Topology,
            Rejection::TopologyConflict(_) => Rule::TopologyConflict,
            Rejection::InstanceTypes(_) => Rule::InstanceTypes,
            Rejection::Reserved(_) => Rule::ReservedCapacity,
        }
    }
}

/// A driver's volume limit that would be exceeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeLimit {
    /// CSI driver.
    pub driver: Text,
    /// Volumes there would be.
    pub count: usize,
    /// Volumes there may be.
    pub limit: i64,
}

/// The resource that is shortest, and by how much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Resource name.
    pub resource: Text,
    /// What the pod needs.
    pub need: Amount,
    /// What is left.
    pub left: Amount,
}

/// What kind of topology constraint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TopologyKind {
    /// Topology spread.
    Spread,
    /// Pod affinity.
    Affinity,
    /// Pod anti-affinity, the pod's own or another pod's.
    AntiAffinity,
}

impl fmt::Display for TopologyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TopologyKind::Spread => "topology spread",
            TopologyKind::Affinity => "pod affinity",
            TopologyKind::AntiAffinity => "pod anti-affinity",
        })
    }
}

/// A topology constraint without an allowed domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyRejection {
    /// What kind.
    pub kind: TopologyKind,
    /// Topology key.
    pub key: Text,
    /// Pods counted per domain, at most 25 of them.
    pub counts: Vec<(Text, i32)>,
    /// Domains known in all.
    pub domains: usize,
    /// Domains the pod allows.
    pub pod_domains: Requirement,
    /// Domains the node could be in.
    pub node_domains: Requirement,
}

/// No instance type is left: what was tried and which criteria none of them met.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceTypeRejection {
    /// Some type met the requirements.
    pub requirements_met: bool,
    /// Some type was large enough (and had an offering).
    pub fits: bool,
    /// Some type had a compatible offering.
    pub has_offering: bool,
    /// One type met the requirements and had the offering, but was too small.
    pub requirements_and_offering: bool,
    /// One type was large enough and had the offering, but did not meet the requirements.
    pub fits_and_offering: bool,
    /// Keys whose `minValues` could not be met, when that is the reason.
    pub min_values: Vec<Text>,
    /// The requirements.
    pub requirements: Requirements,
    /// The pod's own requests.
    pub pod_requests: Resources,
    /// Least and most that daemons need, over the kinds of nodes considered.
    pub daemon_requests: Option<(Resources, Resources)>,
    /// What the best-endowed candidate lacks, when size is the reason.
    pub nearest: Option<Shortage>,
}

/// How reserved capacity stands in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservedRejection {
    /// Compatible reservations have room, but other claims of this pass hold it.
    Held,
    /// Compatible reservations are full and there is nothing else; wait.
    Full,
    /// As `Full`, in a mode that does not wait.
    FullFallThrough,
    /// The claim would lose all reservations it holds.
    WouldLose,
}

impl ReservedRejection {
    /// Whether the pod should wait instead of being relaxed or sent to lesser pools.
    pub fn defers(self) -> bool {
        !matches!(self, ReservedRejection::FullFallThrough)
    }
}

/// Something given up to place a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Relaxation {
    /// An alternative of the required node affinity.
    RequiredNodeTerm(String),
    /// A preferred pod affinity.
    PreferredPodAffinity(String),
    /// A preferred pod anti-affinity.
    PreferredPodAntiAffinity(String),
    /// A preferred node affinity.
    PreferredNodeTerm(String),
    /// A soft topology spread.
    TopologySpread(String),
    /// Respect for `PreferNoSchedule` taints.
    PreferNoScheduleTaints,
}

impl fmt::Display for Relaxation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Relaxation::RequiredNodeTerm(term) => write!(f, "an alternative of its node affinity: {term}"),
            Relaxation::PreferredPodAffinity(term) => write!(f, "a preferred pod affinity over {term}"),
            Relaxation::PreferredPodAntiAffinity(term) => {
                write!(f, "a preferred pod anti-affinity over {term}")
            }
            Relaxation::PreferredNodeTerm(term) => write!(f, "a preferred node affinity: {term}"),
            Relaxation::TopologySpread(spread) => write!(f, "a soft spread over {spread}"),
            Relaxation::PreferNoScheduleTaints => {
                f.write_str("staying off nodes that would rather not have it")
            }
        }
    }
}

/// Why a pod that wants a place was not tried.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PodRejection {
    /// It refuses Karpenter's nodes.
    #[error(
        "configured to not run on a Karpenter provisioned node (requirement=karpenter.sh/nodepool DoesNotExist)"
    )]
    RefusesKarpenter,
    /// Its node selection is not valid.
    #[error("{problem}")]
    NodeSelection {
        /// The field.
        field: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// A volume claim keeps it from being placed.
    #[error("{problem}")]
    VolumeClaim {
        /// The claim.
        claim: Text,
        /// What is wrong.
        problem: String,
    },
}

/// A NodePool that took no part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedPool {
    /// The NodePool.
    pub node_pool: Text,
    /// Why.
    pub reason: SkipReason,
}

/// Why a NodePool took no part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SkipReason {
    /// It has a fixed number of nodes.
    #[error("static nodepool")]
    Static,
    /// It is not ready.
    #[error("not ready")]
    NotReady,
    /// It is being deleted.
    #[error("deleting")]
    Deleting,
    /// Its instance types are not known.
    #[error("unable to resolve instance types: {0}")]
    Unresolved(Text),
    /// Its provider offers nothing.
    #[error("no resolved instance types found")]
    NoInstanceTypes,
    /// Its requirements leave no instance type.
    #[error("nodepool requirements filtered out all instance types{}", if .min_values.is_empty() { "" } else { " due to minValues incompatibility" })]
    FilteredOut {
        /// The labels whose `minValues` are why, with how many values each comes to; empty when it is not `minValues`.
        min_values: Vec<(Text, i64)>,
    },
    /// Its requirements make no sense.
    #[error("{0}")]
    Invalid(String),
}

impl fmt::Display for Unplaceable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unplaceable::ResourceClaims => f.write_str(
                "pod has Dynamic Resource Allocation requirements that are not yet supported by Karpenter",
            ),
            Unplaceable::Volumes(problem) | Unplaceable::Invalid(problem) => f.write_str(problem),
            Unplaceable::NoPools => {
                f.write_str("nodepool requirements filtered out all available instance types")
            }
            Unplaceable::AllPools(pools) => {
                for (i, pool) in pools.iter().enumerate() {
                    if i > 0 {
                        f.write_str("; ")?;
                    }
                    write!(f, "{pool}")?;
                }
                Ok(())
            }
            Unplaceable::Truncated { node_pool, labels } => write!(
                f,
                "pod didn’t schedule because NodePool couldn’t meet minValues requirements, validating minValues, \
                 minValues requirement is not met for label(s) (label(s)=[{}]) (NodePool={node_pool})",
                labels.join(" ")
            ),
        }
    }
}

impl fmt::Display for PoolRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.reason)?;
        if self.reason.is_of_limits() {
            write!(f, " (NodePool={})", self.node_pool)?;
        }
        Ok(())
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rejection::NodeLimitExhausted => f.write_str("node limits have been exhausted for nodepool"),
            Rejection::LimitsExceeded => {
                f.write_str("all available instance types exceed limits for nodepool")
            }
            Rejection::Taints(taints) => {
                for (i, taint) in taints.iter().enumerate() {
                    let separator = if i > 0 { "; " } else { "" };
                    write!(f, "{separator}did not tolerate taint (taint={taint})")?;
                }
                Ok(())
            }
            Rejection::VolumeLimit(None) => {
                f.write_str("would exceed volume limit for all instance type options")
            }
            Rejection::VolumeLimit(Some(limit)) => write!(
                f,
                "would exceed volume limit for all instance type options (provisioner={}, volume-count={}, volume-limit={})",
                limit.driver, limit.count, limit.limit
            ),
            Rejection::HostPort { port, protocol } => write!(
                f,
                "checking host port usage, pod hostport conflicts with existing hostport configuration (port={port}, protocol={protocol})"
            ),
            Rejection::NodeResources(_) => f.write_str("exceeds node resources"),
            Rejection::Requirements(why) => write!(f, "incompatible requirements, {why}"),
            Rejection::VolumeRequirements(why) => write!(f, "incompatible volume requirements, {why}"),
            Rejection::Topology(why) => write!(f, "{why}"),
            Rejection::TopologyConflict(why) => write!(f, "{why}"),
            Rejection::InstanceTypes(why) => write!(f, "{why}"),
            Rejection::Reserved(why) => write!(f, "{why}"),
        }
    }
}

impl fmt::Display for TopologyRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut counts: Vec<String> = self.counts.iter().map(|(d, n)| format!("{d}: {n}")).collect();
        if self.domains > self.counts.len() {
            counts.push(format!("and {} other(s)", self.domains - self.counts.len()));
        }
        // Upstream's text never closes the parenthesis.
        write!(
            f,
            "unsatisfiable topology constraint for {}, key={} (counts = {}, podDomains = {}, nodeDomains = {}",
            self.kind,
            self.key,
            counts.join(", "),
            self.pod_domains,
            self.node_domains
        )
    }
}

impl fmt::Display for ReservedRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReservedRejection::Held => {
                "one or more instance types with compatible reserved offerings are available, but could not be reserved"
            }
            ReservedRejection::Full => {
                "all compatible reserved offerings are full and no on-demand or spot fallback is available"
            }
            ReservedRejection::FullFallThrough => {
                "the only compatible reserved offering is full; falling through to other NodePools"
            }
            ReservedRejection::WouldLose => {
                "satisfying updated nodeclaim constraints would remove all compatible reserved offering options"
            }
        })
    }
}

impl fmt::Display for InstanceTypeRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headline = if !self.min_values.is_empty() {
            format!(
                "minValues requirement is not met for label(s) (label(s)=[{}])",
                self.min_values.join(" ")
            )
        } else {
            match (self.requirements_met, self.fits, self.has_offering) {
                (false, false, false) => {
                    "no instance type met the scheduling requirements or had enough resources or had a required offering"
                }
                (false, false, true) => {
                    "no instance type met the scheduling requirements or had enough resources"
                }
                (false, true, false) => {
                    "no instance type met the scheduling requirements or had a required offering"
                }
                (true, false, false) => "no instance type had enough resources or had a required offering",
                (false, true, true) => "no instance type met all requirements",
                (true, false, true) => "no instance type has enough resources",
                (true, true, false) => "no instance type has the required offering",
                (true, true, true) if self.fits_and_offering => {
                    "no instance type which had enough resources and the required offering met the scheduling requirements"
                }
                (true, true, true) if self.requirements_and_offering => {
                    "no instance type which met the scheduling requirements and the required offering had the required resources"
                }
                (true, true, true) => "no instance type met the requirements/resources/offering tuple",
            }
            .to_owned()
        };
        write!(f, "{headline}, requirements={}, resources={}", self.requirements, self.resources_text())?;
        let too_small =
            self.requirements_met && !self.fits && self.has_offering && self.min_values.is_empty();
        if too_small && self.pod_requests.amount(CPU) >= Amount::units(1_000_000) {
            f.write_str(" (CPU request >= 1 Million, m vs M typo?)")?;
        }
        Ok(())
    }
}

impl InstanceTypeRejection {
    fn resources_text(&self) -> String {
        let Some((least, most)) = &self.daemon_requests else { return resources_json(&self.pod_requests) };
        let total = |daemons: &Resources| {
            let mut sum = daemons.clone();
            sum.add(&self.pod_requests);
            resources_json(&sum)
        };
        let (least, most) = (total(least), total(most));
        if least == most { least } else { format!("min={least}, max={most}") }
    }
}

/// A resource list as JSON, the way it appears in messages.
fn resources_json(resources: &Resources) -> String {
    let entries: Vec<String> = resources
        .iter()
        .map(|(name, amount)| format!("\"{name}\":\"{}\"", amount_text(name, *amount)))
        .collect();
    format!("{{{}}}", entries.join(","))
}

/// An amount in its usual notation.
pub fn amount_text(resource: &str, amount: Amount) -> String {
    const BINARY: [(&str, i128); 6] = [
        ("Ei", 1 << 60),
        ("Pi", 1 << 50),
        ("Ti", 1 << 40),
        ("Gi", 1 << 30),
        ("Mi", 1 << 20),
        ("Ki", 1 << 10),
    ];
    let units = amount.as_units_ceil();
    if amount != Amount::nanos(units.saturating_mul(1_000_000_000)) {
        return format!("{}m", amount.as_milli_ceil());
    }
    let bytes = resource == "memory" || resource == "ephemeral-storage" || resource.starts_with("hugepages-");
    if bytes && units != 0 {
        for (suffix, size) in BINARY {
            if units % size == 0 {
                return format!("{}{suffix}", units / size);
            }
        }
    }
    units.to_string()
}
