//! Nodes that joined, never got a provider id, and whose machine is gone: removed, because nobody else may do it, and because
//! Karpenter finds Nodes by that id: to everybody else they are nobody's.
//!
//! A machine can go in the moment between its Node's coming and its being named. A cloud controller manager removes such Nodes
//! where one runs; this is for where none does, or where it is late.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use karpenter_api::labels as well_known;
use karpenter_cloudprovider::provider::CloudProvider as _;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::{Api, ResourceExt as _};
use tokio_util::sync::CancellationToken;

use crate::absence::Care;
use crate::accounts::Accounts;

/// How long nobody must have heard of a Node without a machine: until then it may still be one that is coming.
const PATIENCE: Duration = Duration::from_secs(2 * 60);
/// How often it is looked for them.
const INTERVAL: Duration = Duration::from_secs(2 * 60);

/// See the module.
pub(crate) struct AbandonedNodes {
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) api: Api<Node>,
}

impl AbandonedNodes {
    /// Removes them until stopped.
    pub(crate) async fn look_after(self, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(INTERVAL)).await.is_some() {
            if let Err(error) = self.sweep().await {
                tracing::warn!(%error, "Nodes without a machine could not be looked for");
            }
        }
    }

    async fn sweep(&self) -> Result<(), kube::Error> {
        // Few at a time: what has been registered has an id.
        let unregistered = ListParams::default().labels(&format!("!{}", well_known::REGISTERED));
        for node in self.api.list(&unregistered).await? {
            if self.is_one(&node).await {
                self.remove(&node).await?;
            }
        }
        Ok(())
    }

    /// Whether the Node is one of ours that never got an id, nobody has heard of its kubelet for a while, and its machine is gone.
    pub(crate) async fn is_one(&self, node: &Node) -> bool {
        let shared = &self.accounts.own.shared;
        let spec = node.spec.as_ref();
        let unnamed = spec.and_then(|spec| spec.provider_id.as_deref()).is_none_or(str::is_empty);
        let quiet = last_heard(node).is_some_and(|at| shared.clock.undoubted_since(at) >= PATIENCE);
        let ready = condition(node).is_some_and(|condition| condition.status == "True");
        let name = node.name_any();
        unnamed
            && quiet
            && !ready
            && name.starts_with(shared.naming.prefix())
            && self.machine_is_gone(&name).await
    }

    /// Whether the server says, for every account and project we know, that there is no machine of this name.
    async fn machine_is_gone(&self, name: &str) -> bool {
        let Ok(accounts) = self.accounts.in_use() else { return false };
        for account in accounts {
            let shared = &account.shared;
            let Ok(scopes) = shared.scopes() else { return false };
            for scope in scopes {
                match shared.inventory.fresh(&scope, Care::Complete).await {
                    Ok(machines) if machines.iter().all(|machine| machine.name != name) => {}
                    Err(error) if shared.may_leave_out(&scope, &error) => {}
                    _ => return false,
                }
            }
        }
        self.claims_machine_is_gone(name).await
    }

    /// Whether the NodeClaim this Node may be of, if there is one, has lost its machine for certain: lists leave out what was moved.
    async fn claims_machine_is_gone(&self, name: &str) -> bool {
        let shared = &self.accounts.own.shared;
        let Some(known) = shared.objects.node_claims() else { return false };
        // A watch may be late, and what it has not brought yet may have a machine.
        let claims = match shared.voice.claims_now().await {
            Ok(claims) => claims,
            Err(error) => {
                tracing::warn!(Node = name, error, "stays: NodeClaims cannot be read");
                return false;
            }
        };
        for claim in claims {
            let is_known = known.iter().any(|known| known.uid() == claim.uid());
            if !is_known && shared.naming.attempt(&claim, name).is_some() {
                return false;
            }
            let id = claim.status.as_ref().and_then(|status| status.provider_id.as_deref());
            if let Some(id) = id
                && shared.naming.attempt(&claim, name).is_some()
                && !self.accounts.get(id).await.is_err_and(|error| error.is_not_found())
            {
                return false;
            }
        }
        true
    }

    /// Removes it as it was looked at: a kubelet that comes back in this moment keeps its Node. Whether it is gone.
    pub(crate) async fn remove(&self, node: &Node) -> Result<bool, kube::Error> {
        let name = node.name_any();
        let only_this = Preconditions { uid: node.uid(), resource_version: node.resource_version() };
        let how = DeleteParams { preconditions: Some(only_this), ..DeleteParams::default() };
        match self.api.delete(&name, &how).await {
            Ok(_) => {
                tracing::info!(Node = name, "removed: its machine is gone and it never got a name");
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// What a Node says of whether it is ready.
fn condition(node: &Node) -> Option<&NodeCondition> {
    node.status.as_ref()?.conditions.iter().flatten().find(|condition| condition.type_ == "Ready")
}

/// When its kubelet was last heard of, or it was noticed that it is not; at the least it came once.
fn last_heard(node: &Node) -> Option<Timestamp> {
    let created = node.metadata.creation_timestamp.as_ref()?;
    let ready = condition(node);
    let beat = ready.and_then(|condition| condition.last_heartbeat_time.as_ref());
    let change = ready.and_then(|condition| condition.last_transition_time.as_ref());
    [Some(created), beat, change].into_iter().flatten().map(|at| at.0).max()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_kubelet_was_heard_of_when_it_last_said_something_and_not_when_its_node_came() {
        let heard = |conditions: serde_json::Value| {
            let node: Node = serde_json::from_value(json!({
                "metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z"},
                "status": {"conditions": conditions},
            }))
            .expect("a Node");
            last_heard(&node).map(|at| at.to_string())
        };
        let (came, later) = ("2026-01-01T00:00:00Z", "2026-01-01T00:07:00Z");
        assert_eq!(heard(json!([])).as_deref(), Some(came));
        let other = json!({"type": "DiskPressure", "status": "False", "lastHeartbeatTime": later});
        assert_eq!(heard(json!([other])).as_deref(), Some(came));
        for field in ["lastHeartbeatTime", "lastTransitionTime"] {
            let ready = json!({"type": "Ready", "status": "Unknown", (field): later});
            assert_eq!(heard(json!([ready])).as_deref(), Some(later), "{field}");
        }
        assert_eq!(last_heard(&Node::default()), None, "nobody knows");
    }
}
