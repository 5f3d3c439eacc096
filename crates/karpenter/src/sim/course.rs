//! What the course of every seed has in common, whatever its world: who is not content, how everyone goes home, and what is
//! reported at the end.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::{ConditionStatus, NodeClaim, NodePool};
use karpenter_sim::objects::{is_active, is_ready, node_of};
use karpenter_sim::traffic::{Act, Script};
use karpenter_sim::{Cluster, Objects, Process, Trouble, World};
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::Value;

use super::Report;

pub(super) const MINUTE: Duration = Duration::from_secs(60);

impl Report {
    /// Of a seed that was lived through: `counts` is what its world counts, such as `instances=3`.
    pub(super) fn of(cluster: &Cluster, process: &Process, counts: &str, failure: Option<String>) -> Self {
        cluster.tape(|tape| Self {
            tape: tape.entries().iter().map(|entry| format!("{entry}\n")).collect(),
            digest: tape.digest(),
            summary: format!(
                "writes={} {counts} lives={} virtual={}s",
                tape.entries().len(),
                process.lives(),
                cluster.elapsed().as_secs()
            ),
            failure,
        })
    }

    /// Of a seed whose world could not be set up.
    pub(super) fn failed_to_begin(trouble: &Trouble) -> Self {
        Self {
            tape: String::new(),
            digest: "-".to_owned(),
            summary: String::new(),
            failure: Some(trouble.to_string()),
        }
    }
}

/// What went wrong, and the state it left.
pub(super) fn told(trouble: &Trouble, state: &[String]) -> String {
    format!("{trouble}\n{}", state.join("\n"))
}

/// Pods that should run and do not. A NodeClaim may be on its way out for as long as a pod on it refuses to be moved.
pub(super) fn discontent(objects: &Objects) -> Vec<String> {
    let is_daemon =
        |pod: &Pod| pod.metadata.owner_references.iter().flatten().any(|owner| owner.kind == "DaemonSet");
    let waiting = objects.pods.values().filter(|pod| is_active(pod) && !is_ready(pod) && !is_daemon(pod));
    let tell = |pod: &Arc<Pod>| {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        format!("pod {name} on {} is not ready", node_of(pod).unwrap_or("no node"))
    };
    waiting.map(tell).collect()
}

/// Pods that should run and do not, and where there are nodes: most wait for want of one in the right place.
pub(super) fn discontent_and_nodes(objects: &Objects) -> Vec<String> {
    let mut state = discontent(objects);
    state.extend(objects.nodes.values().map(place));
    state.extend(objects.node_claims.values().map(stage));
    state
}

/// What a NodeClaim has yet to reach, and why.
fn stage(claim: &Arc<NodeClaim>) -> String {
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let going = if claim.metadata.deletion_timestamp.is_some() { ", which is going" } else { "" };
    let conditions = claim.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let told: Vec<String> = conditions
        .filter(|condition| condition.status != ConditionStatus::True)
        .map(|condition| {
            let [reason, message] =
                [&condition.reason, &condition.message].map(|text| text.as_deref().unwrap_or_default());
            format!("{}={:?} ({reason}: {message})", condition.type_, condition.status)
        })
        .collect();
    format!("NodeClaim {name}{going}: {}", told.join(", "))
}

/// Where a Node is, and whether it is on its way out.
fn place(node: &Arc<Node>) -> String {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let label = |key: &str| {
        node.metadata.labels.as_ref().and_then(|labels| labels.get(key)).map_or("none", String::as_str)
    };
    let going = if node.metadata.deletion_timestamp.is_some() { ", which is going" } else { "" };
    format!(
        "node {name} in zone {} of NodePool {}{going}",
        label("topology.kubernetes.io/zone"),
        label("karpenter.sh/nodepool"),
    )
}

/// Everyone goes home: what the script made, then NodePools and NodeClaims.
pub(super) async fn go_home(world: &World, script: &Script) -> Result<(), Trouble> {
    let acts = script.acts.iter().filter_map(|(_, act)| match act {
        Act::Create(object) => farewell(object),
        _ => None,
    });
    Script { acts: acts.map(|act| (Duration::ZERO, act)).collect() }.play(world).await?;
    delete_all::<NodePool>(world.cluster()).await;
    delete_all::<NodeClaim>(world.cluster()).await;
    Ok(())
}

fn farewell(object: &Value) -> Option<Act> {
    let name = object.pointer("/metadata/name")?.as_str()?.to_owned();
    let kind = ["Deployment", "StatefulSet", "Job"].into_iter().find(|kind| object["kind"] == *kind)?;
    Some(Act::Delete { kind, name })
}

async fn delete_all<K>(cluster: &Cluster)
where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let api: Api<K> = Api::all(cluster.client("user"));
    // The world's own clients are never refused; what is gone by itself is gone.
    let _ = api.delete_collection(&DeleteParams::background(), &ListParams::default()).await;
}

/// Waits until no node is left on the simulated cloud, nor a machine.
pub(super) async fn wait_until_nothing_is_left(world: &World) -> Result<(), Trouble> {
    let empty = |objects: &Objects| objects.node_claims.is_empty() && objects.nodes.is_empty();
    world.wait_until("every node is gone", 90 * MINUTE, empty).await?;
    world.run_for(MINUTE).await?;
    match world.cluster().inventory(|inventory| inventory.live().count()) {
        0 => Ok(()),
        left => Err(Trouble::TooLong {
            what: format!("{left} machines without a NodeClaim being removed"),
            within: 90 * MINUTE,
            at: world.cluster().elapsed(),
        }),
    }
}
