//! What was bought: Machines, and which NodeClaim each one is for.
//!
//! The claim lives on the Machine, written by compare-and-swap; the number of replicas is a level that is worked out anew from
//! what is recorded (NodeClaims that target a resource, Machines that are claimed), never counted up or down. So every step
//! may be repeated, or be the last one before a crash, and the next look comes to the same number.
//!
//! | Module | What it is |
//! |---|---|
//! | [`ledger`], `level` | the pure part: what is to be claimed, marked, removed, and the level |
//! | [`offers`] | what a NodeClass offers at the moment |
//! | [`node_claims`] | the NodeClaims, with what was written a moment ago |
//! | [`fleet`] | what all parts share: NodeClasses, catalogs, who is waiting |
//! | [`journeys`] | what was seen of each NodeClaim on its way from launch to end |
//! | [`actor`] | looks at one scalable resource at a time, and has the ledger's plan carried out |
//! | `execution` | writes what the plan says |
//! | [`rollout`] | whether Machines are being replaced, and how far the level may fall meanwhile |
//! | [`holds`], [`skew`] | what keeps a resource from being scaled or Machines from being made: pause, preflight, owners of its replicas |
//! | [`backoff`] | which offerings have failed of late |
//! | [`reverts`] | whose replicas somebody else has set of late, and how long Karpenter leaves it at that |
//! | [`launch`], [`removal`], [`lookup`] | what the core asks for: create, delete, get and list |
//! | `bindings`, `takeover` | what the Go provider bound NodeClaims to, and how that becomes ours |
//! | `stillborn` | Machines that fail after their NodeClaim has an id |
//! | `remains` | whether something is left of a Machine that is gone |
//! | `known_fleet` | by what our Cluster is known in another management cluster |
//! | `census` | one list of Machines for many who ask |
//! | [`standalone`], [`templates`] | Machine mode, and blueprints that a NodeClass names itself |
//! | `care`, `duties`, `strays` | looking after Machines of their own: what Cluster API is told of them, what is left of those never made |
//! | [`customization`] | what Machine mode changes in clones |
//! | [`learning`] | what Nodes tell, and what ConfigMaps and endpoints tell about prices |
//! | `hook` | drains Nodes whose Machines somebody else deletes |
//! | [`notices`], `remediation` | what conditions tell: machines about to be taken away, broken Nodes; who replaces them |
//! | `interruptible`, `whereabouts` | what turns out to be spot, or elsewhere |
//! | [`pace`] | how fast nodes may be launched |
//! | [`adoption`] | NodeClaims for Machines that were there before |
//! | [`succession`] | what becomes of NodeClaims whose Machines Cluster API replaces |
//! | `restoration` | Machines of NodeClaims that were restored from a backup |
//! | [`drift`] | whether a Machine is what its template says |

pub(crate) mod actor;
pub(crate) mod adoption;
pub(crate) mod backoff;
pub(crate) mod bindings;
pub(crate) mod care;
pub(crate) mod census;
pub(crate) mod customization;
pub(crate) mod drift;
pub(crate) mod duties;
mod execution;
pub(crate) mod fleet;
pub(crate) mod holds;
pub(crate) mod hook;
pub(crate) mod interruptible;
pub(crate) mod journeys;
pub(crate) mod known_fleet;
pub(crate) mod launch;
pub(crate) mod learning;
pub(crate) mod ledger;
mod level;
pub(crate) mod lookup;
pub(crate) mod node_claims;
pub(crate) mod notices;
pub(crate) mod offers;
pub(crate) mod pace;
mod pauses;
pub(crate) mod remains;
pub(crate) mod remediation;
pub(crate) mod removal;
pub(crate) mod restoration;
pub(crate) mod reverts;
pub(crate) mod rollout;
pub(crate) mod set_aside;
pub(crate) mod skew;
pub(crate) mod standalone;
pub(crate) mod stillborn;
pub(crate) mod strays;
pub(crate) mod succession;
pub(crate) mod takeover;
pub(crate) mod templates;
pub(crate) mod whereabouts;
