//! Mistakes to plant: Karpenter is shown the cluster as it would see it if it made the mistake, or what it writes is changed.
//! A world whose rules do not notice proves little when it finds nothing.

use bytes::Bytes;
use clap::ValueEnum;
use http::{Method, Request, Uri};
use karpenter_api::{annotations, taints};
use karpenter_sim::faults::Lens;
use serde_json::{Value, json};

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Plant {
    /// Budgets of NodePools count for nothing.
    BudgetsIgnored,
    /// Nobody's wish not to be disrupted is heard.
    WishesIgnored,
    /// The taint of a command that came to nothing stays.
    TaintsLeft,
    /// Nodes go before their replacement is up.
    ReplacementsNotAwaited,
    /// Pods are deleted instead of evicted.
    EvictionsForced,
    /// The dear is taken for cheap.
    PricesWrong,
    /// A launch is asked for anew instead of once more.
    LaunchesNotRepeatable,
}

impl Plant {
    /// As it is written on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The worlds in which it changes anything: some mistakes are made by the provider of the simulated cloud.
    pub(super) fn worlds(self) -> &'static [&'static str] {
        match self {
            Self::PricesWrong => &["disruption"],
            Self::LaunchesNotRepeatable => &["core", "disruption"],
            _ => &["core", "disruption", "cloudstack", "cluster-api"],
        }
    }
}

impl Lens for Plant {
    fn shown(&self, kind: &str, object: &mut Value) {
        match (self, kind) {
            (Self::BudgetsIgnored, "NodePool") => {
                object["spec"]["disruption"]["budgets"] = json!([{"nodes": "100%"}]);
            }
            (Self::WishesIgnored, "Pod" | "Node") => {
                let annotations = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
                annotations.map(|annotations| annotations.remove(annotations::DO_NOT_DISRUPT));
            }
            (Self::ReplacementsNotAwaited, "NodeClaim") => seem_initialized(object),
            _ => {}
        }
    }

    fn sent(&self, request: &mut Request<Bytes>) {
        match self {
            Self::TaintsLeft if takes_taint_off(request) => {
                *request.method_mut() = Method::GET;
                *request.body_mut() = Bytes::new();
            }
            Self::EvictionsForced => {
                let path = request.uri().path().strip_suffix("/eviction").map(str::to_owned);
                if let Some(pod) = path.and_then(|path| path.parse::<Uri>().ok()) {
                    *request.method_mut() = Method::DELETE;
                    *request.uri_mut() = pod;
                    *request.body_mut() = Bytes::from_static(b"{\"gracePeriodSeconds\":1}");
                }
            }
            _ => {}
        }
    }
}

/// Has a NodeClaim say that its node is up as soon as it is launched.
fn seem_initialized(claim: &mut Value) {
    let Some(conditions) = claim.pointer_mut("/status/conditions").and_then(Value::as_array_mut) else {
        return;
    };
    let is = |condition: &Value, kind: &str| condition["type"] == kind;
    if conditions.iter().any(|condition| is(condition, "Launched") && condition["status"] == "True") {
        for condition in conditions.iter_mut().filter(|condition| is(condition, "Initialized")) {
            condition["status"] = "True".into();
        }
    }
}

/// Whether a request takes the taint of disruption off a node, and nothing else.
fn takes_taint_off(request: &Request<Bytes>) -> bool {
    if *request.method() != Method::PATCH || !request.uri().path().starts_with("/api/v1/nodes/") {
        return false;
    }
    let patch: Value = serde_json::from_slice(request.body()).unwrap_or_default();
    let touches_taints = patch["spec"].as_object().is_some_and(|spec| spec.contains_key("taints"));
    let taints = patch["spec"]["taints"].as_array().into_iter().flatten();
    let stays = taints.into_iter().any(|taint| taint["key"] == taints::DISRUPTED.key);
    touches_taints && !stays && patch["metadata"]["labels"].is_null()
}
