//! The wire: what the provider asks the API server. Its machines are Node objects, so this is its cloud.

use k8s_openapi::api::core::v1::Node;
use karpenter_api::NodeClaim;
use karpenter_cloudprovider::error::ProviderError;
use karpenter_runtime::error::{ApiError, Field, Structured};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::store::Store;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

use crate::instances;
use crate::nodeclass::KWOKNodeClass;

/// Nodes, NodeClaims and NodeClasses at the API server.
#[derive(Clone)]
pub(crate) struct Wire {
    nodes: Api<Node>,
    claims: Api<NodeClaim>,
    node_classes: Api<KWOKNodeClass>,
    /// Filled while the NodeClasses are watched; else each is asked for.
    watched: Store<KWOKNodeClass>,
}

impl Wire {
    pub(crate) fn new(client: &Client, watched: Store<KWOKNodeClass>) -> Self {
        Self {
            nodes: Api::all(client.clone()),
            claims: Api::all(client.clone()),
            node_classes: Api::all(client.clone()),
            watched,
        }
    }

    /// The NodeClass of this name; none only if the server says there is none.
    pub(crate) async fn node_class(&self, name: &str) -> Result<Option<KWOKNodeClass>, ProviderError> {
        if let Some(seen) = self.watched.get(&ObjectKey::cluster(name)) {
            return Ok(Some(KWOKNodeClass::clone(&seen)));
        }
        self.node_classes
            .get_opt(name)
            .await
            .map_err(|error| failed("resolving node class from nodeclaim", error))
    }

    pub(crate) async fn node(&self, name: &str) -> Result<Option<Node>, ProviderError> {
        self.nodes.get_opt(name).await.map_err(|error| failed("finding node", error))
    }

    /// Every Node that is an instance of ours.
    pub(crate) async fn instances(&self) -> Result<Vec<Node>, ProviderError> {
        let all = self.nodes.list(&ListParams::default()).await.map_err(|e| failed("listing nodes", e))?;
        Ok(all.items.into_iter().filter(instances::is_instance).collect())
    }

    /// The NodeClaim as it is now.
    pub(crate) async fn claim(&self, name: &str) -> Result<Option<NodeClaim>, ProviderError> {
        self.claims.get_opt(name).await.map_err(|error| failed("finding nodeclaim", error))
    }

    pub(crate) async fn claims(&self) -> Result<Vec<NodeClaim>, ProviderError> {
        let all = self.claims.list(&ListParams::default()).await;
        all.map(|all| all.items).map_err(|error| failed("listing nodeclaims", error))
    }

    /// Makes the NodeClaim's Node, unless it is there already: then that one comes back.
    pub(crate) async fn make_node(&self, node: &Node) -> Result<Node, ProviderError> {
        let refused = match self.nodes.create(&PostParams::default(), node).await {
            Ok(made) => return Ok(made),
            Err(kube::Error::Api(status)) if status.is_already_exists() => status,
            Err(error) => return Err(failed("creating node", error)),
        };
        let name = node.name_any();
        match self.node(&name).await? {
            Some(there) if instances::is_instance(&there) => Ok(there),
            Some(_) => Err(ProviderError::create(
                Structured::new("node exists and was not made for this nodeclaim")
                    .with("Node", Field::object(&ObjectKey::cluster(name.as_str()))),
                "NodeNameTaken",
                format!("Node {name} exists and was not made for this NodeClaim; delete the Node"),
            )),
            // It went between the two requests; the next attempt makes it.
            None => Err(failed("creating node", kube::Error::Api(refused))),
        }
    }

    /// Deletes this very Node, not another of the same name.
    pub(crate) async fn delete_node(&self, node: &Node) -> Result<(), ProviderError> {
        let precondition = Preconditions { uid: node.metadata.uid.clone(), resource_version: None };
        let params = DeleteParams { preconditions: Some(precondition), ..DeleteParams::default() };
        match self.nodes.delete(&node.name_any(), &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            Err(error) => Err(failed("deleting node", error)),
        }
    }

    /// Gives a Node a new boot id. `false` if there is no such Node.
    pub(crate) async fn reboot_node(&self, name: &str, boot_id: &str) -> Result<bool, ProviderError> {
        let patch = json!({"status": {"nodeInfo": {"bootID": boot_id}}});
        match self.nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(false),
            Err(error) => Err(failed("rebooting node", error)),
        }
    }
}

/// What was being done, and what the server said to it.
#[derive(Debug, thiserror::Error)]
#[error("{doing}, {source}")]
struct Failed {
    doing: &'static str,
    source: ApiError,
}

fn failed(doing: &'static str, source: kube::Error) -> ProviderError {
    ProviderError::other(Failed { doing, source: source.into() })
}
