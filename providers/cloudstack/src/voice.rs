//! What the provider says and does in the cluster itself: events for the people who look at an object, and giving up NodeClaims
//! whose machine will never come.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{self as core, ConfigMap, Node, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_api::{NodeClaim, NodePool, labels as well_known};
use karpenter_runtime::events::{Event, EventType, Recorder, reference};
use karpenter_runtime::writes::{self, Lock, Written};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Resource, ResourceExt as _};
use serde_json::json;

use crate::client::model::VirtualMachine;
use crate::naming::machine_id;
use crate::nodeclass::ValueRef;

/// How often a Node that others write at the same moment is marked again.
const MARKING_ATTEMPTS: usize = 3;

/// Why a value of the cluster cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoValue {
    /// It is not there: somebody has to write it.
    #[error("{0}")]
    Missing(String),
    /// Nobody knows whether it is there.
    #[error("{0}")]
    Unreadable(String),
}

/// What a Node is to say of its machine.
pub(crate) struct NodeCondition {
    pub(crate) kind: &'static str,
    pub(crate) status: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl NodeCondition {
    /// The Node with this condition, since when it says so; a Node that says so already stays as it is.
    fn on(&self, node: &Node, now: Timestamp) -> Node {
        let mut marked = node.clone();
        let conditions = marked.status.get_or_insert_default().conditions.get_or_insert_default();
        let known = conditions.iter().position(|known| known.type_ == self.kind);
        let same = known.map(|at| &conditions[at]).filter(|known| known.status == self.status);
        if same.is_some_and(|known| known.reason.as_deref() == Some(self.reason)) {
            return marked;
        }
        let since = same.and_then(|known| known.last_transition_time.clone());
        let condition = core::NodeCondition {
            type_: self.kind.to_owned(),
            status: self.status.to_owned(),
            reason: Some(self.reason.to_owned()),
            message: Some(self.message.clone()),
            last_heartbeat_time: Some(Time(now)),
            last_transition_time: since.or(Some(Time(now))),
        };
        match known {
            Some(at) => conditions[at] = condition,
            None => conditions.push(condition),
        }
        marked
    }
}

/// The provider's way to tell and to act. Without a cluster it keeps silent.
#[derive(Clone, Default)]
pub struct Voice {
    recorder: Option<Recorder>,
    claims: Option<Api<NodeClaim>>,
    client: Option<kube::Client>,
    ear: Option<Ear>,
    book: Option<Book>,
}

/// Hears the reason and message of what is told.
pub type Ear = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// Says what NodeClaims there are at this moment, or why that is not known.
pub type Book = Arc<dyn Fn() -> Result<Vec<NodeClaim>, String> + Send + Sync>;

impl Voice {
    /// In a cluster.
    pub fn new(recorder: Recorder, client: kube::Client) -> Self {
        let claims = Some(Api::all(client.clone()));
        Self { recorder: Some(recorder), claims, client: Some(client), ear: None, book: None }
    }

    /// Without a cluster, for whoever wants to hear what would be told there.
    pub fn heard_by(ear: Ear) -> Self {
        Self { ear: Some(ear), ..Self::default() }
    }

    /// With this in place of what the API server has written down.
    #[must_use]
    pub fn reading(mut self, book: Book) -> Self {
        self.book = Some(book);
        self
    }

    /// A NodeClaim as the API server has it now. What a watch has brought may be of a while ago, and that is too old for who is about to
    /// destroy something by it.
    ///
    /// # Errors
    ///
    /// If that cannot be found out.
    pub(crate) async fn claim_now(&self, name: &str) -> Result<Option<NodeClaim>, String> {
        match (&self.book, &self.claims) {
            (Some(book), _) => Ok(book()?.into_iter().find(|claim| claim.name_any() == name)),
            (None, Some(claims)) => claims.get_opt(name).await.map_err(|error| error.to_string()),
            (None, None) => Err("there is no cluster to ask".to_owned()),
        }
    }

    /// All NodeClaims as the API server has them now.
    ///
    /// # Errors
    ///
    /// If that cannot be found out.
    pub(crate) async fn claims_now(&self) -> Result<Vec<NodeClaim>, String> {
        match (&self.book, &self.claims) {
            (Some(book), _) => book(),
            (None, Some(claims)) => {
                let listed = claims.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
                Ok(listed.items)
            }
            (None, None) => Err("there is no cluster to ask".to_owned()),
        }
    }

    /// A value of a Secret or ConfigMap.
    pub(crate) async fn value_of(&self, wanted: &ValueRef) -> Result<String, NoValue> {
        let ValueRef { kind, namespace, name, key } = wanted;
        let kind = kind.as_deref().unwrap_or("Secret");
        let place = format!("{kind} {namespace}/{name}");
        let client = self
            .client
            .clone()
            .ok_or_else(|| NoValue::Unreadable(format!("no cluster to read {place} from")))?;
        let cannot = |error: kube::Error| NoValue::Unreadable(format!("{place} cannot be read: {error}"));
        let missing = |text: String| NoValue::Missing(text);
        let value = if kind == "ConfigMap" {
            let object =
                Api::<ConfigMap>::namespaced(client, namespace).get_opt(name).await.map_err(cannot)?;
            let object = object.ok_or_else(|| missing(format!("there is no {place}")))?;
            object.data.and_then(|mut data| data.remove(key))
        } else {
            let object = Api::<Secret>::namespaced(client, namespace).get_opt(name).await.map_err(cannot)?;
            let object = object.ok_or_else(|| missing(format!("there is no {place}")))?;
            let bytes = object.data.and_then(|mut data| data.remove(key));
            bytes
                .map(|bytes| String::from_utf8(bytes.0))
                .transpose()
                .map_err(|_| missing(format!("{place}: {key} is no text")))?
        };
        value.filter(|value| !value.is_empty()).ok_or_else(|| missing(format!("{place} has no key {key}")))
    }

    /// Makes a Secret; whether there was none of its name yet.
    pub(crate) async fn create_secret(&self, secret: &Secret) -> Result<bool, NoValue> {
        let namespace = secret.namespace().unwrap_or_default();
        let cannot = |problem: String| {
            NoValue::Unreadable(format!("no Secret can be made in namespace {namespace}: {problem}"))
        };
        let client = self.client.clone().ok_or_else(|| cannot("there is no cluster".to_owned()))?;
        match Api::<Secret>::namespaced(client, &namespace).create(&PostParams::default(), secret).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(kube::Error::Api(status)) if status.code == 403 => Err(cannot(
                "it is not allowed; let Karpenter's service account create Secrets there (cloudstack.mintTokens of the chart)"
                    .to_owned(),
            )),
            Err(error) => Err(cannot(error.to_string())),
        }
    }

    /// What a ConfigMap says.
    pub(crate) async fn config_map(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<BTreeMap<String, String>, NoValue> {
        let place = format!("ConfigMap {namespace}/{name}");
        // Whoever looks at a cloud without a cluster does without.
        let client = self
            .client
            .clone()
            .ok_or_else(|| NoValue::Missing(format!("no cluster to read {place} from")))?;
        match Api::<ConfigMap>::namespaced(client, namespace).get_opt(name).await {
            Ok(Some(object)) => Ok(object.data.unwrap_or_default()),
            Ok(None) => Err(NoValue::Missing(format!("there is no {place}"))),
            Err(kube::Error::Api(status)) if status.code == 403 => Err(NoValue::Unreadable(format!(
                "{place} may not be read; let Karpenter's service account get it by a Role, or remove the field"
            ))),
            Err(error) => Err(NoValue::Unreadable(format!("{place} cannot be read: {error}"))),
        }
    }

    /// Something that somebody should look at.
    pub(crate) fn warn<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) {
        self.tell(object, EventType::Warning, reason.into(), message.into());
    }

    /// Something that is as it should be.
    pub(crate) fn inform<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        self.tell(object, EventType::Normal, reason.into(), message.into());
    }

    fn tell<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        kind: EventType,
        reason: Cow<'static, str>,
        message: String,
    ) {
        if let Some(ear) = &self.ear {
            ear(&reason, &message);
        }
        if let Some(recorder) = &self.recorder {
            let name = object.meta().name.clone().unwrap_or_default();
            let values = [name, message.clone()];
            recorder.publish(Event::new(reference(object), kind, reason, message).dedupe_by(values));
        }
    }

    /// The provider id some Node carries, of ours if there are any: how whatever names Nodes here writes them.
    pub(crate) async fn provider_id_of_some_node(&self, prefix: &str) -> Option<String> {
        let nodes: Api<Node> = Api::all(self.client.clone()?);
        let listed = nodes.list(&ListParams::default().limit(100)).await.ok()?;
        let named =
            |node: &Node| node.spec.as_ref()?.provider_id.clone().filter(|id| machine_id(id).is_some());
        let mut ours = listed.items.iter().filter(|node| node.name_any().starts_with(prefix));
        ours.find_map(named).or_else(|| listed.items.iter().find_map(named))
    }

    /// Gives a Node its provider id. What cannot be done now is done when it is looked at again.
    pub(crate) async fn name_node(&self, node: &Node, provider_id: &str) {
        let Some(client) = self.client.clone() else { return };
        let mut named = node.clone();
        named.spec.get_or_insert_default().provider_id = Some(provider_id.to_owned());
        match writes::patch(&Api::all(client), node, &named, Lock::Optimistic).await {
            Ok(_) => tracing::info!(Node = node.name_any(), provider_id, "got its provider id"),
            Err(error) => {
                tracing::warn!(Node = node.name_any(), %error, "cannot be given its provider id yet")
            }
        }
    }

    /// All Nodes; nothing while they are not known.
    pub(crate) async fn nodes(&self) -> Option<Vec<Node>> {
        let nodes: Api<Node> = Api::all(self.client.clone()?);
        match nodes.list(&ListParams::default()).await {
            Ok(listed) => Some(listed.items),
            Err(error) => {
                tracing::warn!(%error, "Nodes cannot be listed");
                None
            }
        }
    }

    /// The Nodes that Karpenter has not recognised as any NodeClaim's; nothing while they are not known.
    pub(crate) async fn unregistered_nodes(&self) -> Option<Vec<Node>> {
        let nodes: Api<Node> = Api::all(self.client.clone()?);
        let unregistered = ListParams::default().labels(&format!("!{}", well_known::REGISTERED));
        nodes.list(&unregistered).await.ok().map(|listed| listed.items)
    }

    /// A Node, if there is one and it can be read.
    pub(crate) async fn node(&self, name: &str) -> Option<Node> {
        let nodes: Api<Node> = Api::all(self.client.clone()?);
        nodes.get_opt(name).await.ok()?
    }

    /// Writes a condition on the Node of a NodeClaim's machine, if it says something else; whether there is such a Node. What cannot
    /// be done now is for the next round.
    pub(crate) async fn mark_node(
        &self,
        claim: &NodeClaim,
        machine: &VirtualMachine,
        condition: &NodeCondition,
        now: Timestamp,
    ) -> Result<bool, ()> {
        let Some(client) = self.client.clone() else { return Ok(false) };
        let nodes: Api<Node> = Api::all(client);
        // Nodes may be called otherwise than their machines: by a name with its domain, or because a machine was renamed.
        let registered = claim.status.as_ref().and_then(|status| status.node_name.as_deref());
        let names = registered.into_iter().chain([machine.name.as_str()]).filter(|name| !name.is_empty());
        for name in names {
            if mark(&nodes, name, machine, condition, now).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A NodePool, if there is one.
    pub(crate) async fn node_pool(&self, name: &str) -> Result<Option<NodePool>, kube::Error> {
        let Some(client) = self.client.clone() else { return Ok(None) };
        Api::<NodePool>::all(client).get_opt(name).await
    }

    /// Writes annotations on this very NodeClaim. Without a cluster there is nobody to read them.
    pub(crate) async fn annotate(
        &self,
        claim: &NodeClaim,
        annotations: &BTreeMap<String, String>,
    ) -> Result<(), kube::Error> {
        let Some(claims) = &self.claims else { return Ok(()) };
        let patch = json!({"metadata": {"uid": claim.uid(), "annotations": annotations}});
        claims.patch(&claim.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
    }

    /// Has a NodeClaim carry the provider id its Node has, which cannot be changed.
    pub(crate) async fn carry(&self, claim: &NodeClaim, provider_id: &str) {
        let Some(claims) = &self.claims else { return };
        let patch = json!({
            "metadata": {"resourceVersion": claim.resource_version()},
            "status": {"providerID": provider_id},
        });
        let how = PatchParams::default();
        match claims.patch_status(&claim.name_any(), &how, &Patch::Merge(patch)).await {
            Ok(_) => {
                tracing::info!(NodeClaim = claim.name_any(), provider_id, "carries its Node's provider id")
            }
            // Looked at again in a moment.
            Err(error) => tracing::debug!(NodeClaim = claim.name_any(), %error, "cannot carry it yet"),
        }
    }

    /// Deletes a NodeClaim whose machine is lost, so that the core makes another. Only this very one.
    pub(crate) async fn give_up(&self, claim: &NodeClaim, reason: &'static str, why: &str) {
        self.warn(claim, reason, why);
        let Some(claims) = &self.claims else { return };
        let only_this = Preconditions { uid: claim.uid(), resource_version: None };
        let how = DeleteParams { preconditions: Some(only_this), ..DeleteParams::default() };
        match claims.delete(&claim.name_any(), &how).await {
            Ok(_) => tracing::info!(NodeClaim = claim.name_any(), why, "gave up a NodeClaim"),
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => {}
            Err(error) => tracing::warn!(NodeClaim = claim.name_any(), %error, "will give it up later"),
        }
    }
}

/// Writes a condition on the Node of this name, if that is the machine's; whether it is.
async fn mark(
    nodes: &Api<Node>,
    name: &str,
    machine: &VirtualMachine,
    condition: &NodeCondition,
    now: Timestamp,
) -> Result<bool, ()> {
    let warn = |error: kube::Error| tracing::warn!(%error, Node = name, "cannot be marked yet");
    for _ in 0..MARKING_ATTEMPTS {
        let Some(node) = nodes.get_opt(name).await.map_err(warn)? else { return Ok(false) };
        // Of that name, but somebody else's.
        if machine_of(&node).is_none_or(|id| id != machine.id) {
            return Ok(false);
        }
        let marked = condition.on(&node, now);
        match writes::patch_status(nodes, &node, &marked, Lock::Optimistic).await.map_err(warn)? {
            Written::Conflict => {}
            Written::Gone => return Ok(false),
            Written::Done(_) | Written::Unchanged => return Ok(true),
        }
    }
    Err(())
}

/// The machine a Node names.
pub(crate) fn machine_of(node: &Node) -> Option<String> {
    machine_id(node.spec.as_ref()?.provider_id.as_deref()?).map(str::to_owned)
}
