//! The scenario as plain maps: pods, nodes, types and pools, with the few derived facts every rule needs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::quantity::nanos;

/// Amounts by resource, in billionths.
pub(crate) type Amounts = BTreeMap<String, i128>;

pub(crate) fn text(v: &Value) -> &str {
    v.as_str().unwrap_or_default()
}

pub(crate) fn list(v: &Value) -> &[Value] {
    v.as_array().map(Vec::as_slice).unwrap_or_default()
}

pub(crate) fn texts(v: &Value) -> Vec<&str> {
    list(v).iter().map(text).collect()
}

pub(crate) fn entries(v: &Value) -> impl Iterator<Item = (&str, &Value)> {
    v.as_object().into_iter().flatten().map(|(k, v)| (k.as_str(), v))
}

/// A resource list; numbers count as their decimal text.
pub(crate) fn amounts(v: &Value) -> Amounts {
    entries(v)
        .filter_map(|(k, q)| {
            let written = q.as_str().map_or_else(|| q.to_string(), str::to_owned);
            Some((k.to_owned(), nanos(&written)?))
        })
        .collect()
}

pub(crate) fn add(total: &mut Amounts, more: &Amounts) {
    for (k, v) in more {
        *total.entry(k.clone()).or_default() += v;
    }
}

fn larger(a: Amounts, b: &Amounts) -> Amounts {
    let mut out = a;
    for (k, v) in b {
        let slot = out.entry(k.clone()).or_insert(*v);
        *slot = (*slot).max(*v);
    }
    out
}

pub(crate) struct World<'a> {
    pub(crate) pods: BTreeMap<String, Pod<'a>>,
    pub(crate) pools: BTreeMap<&'a str, &'a Value>,
    /// By the name the plan uses: the Node's, or the NodeClaim's while it is not registered.
    pub(crate) nodes: BTreeMap<&'a str, Node<'a>>,
    pub(crate) types: BTreeMap<&'a str, &'a Value>,
    pub(crate) namespaces: BTreeMap<&'a str, BTreeMap<&'a str, &'a str>>,
    pub(crate) claims: BTreeMap<String, &'a Value>,
    pub(crate) volumes: BTreeMap<&'a str, &'a Value>,
    pub(crate) classes: BTreeMap<&'a str, &'a Value>,
    pub(crate) csi_nodes: BTreeMap<&'a str, &'a Value>,
    pub(crate) best_effort_min_values: bool,
}

pub(crate) struct Pod<'a> {
    pub(crate) key: String,
    pub(crate) namespace: &'a str,
    pub(crate) json: &'a Value,
    pub(crate) labels: BTreeMap<&'a str, &'a str>,
    pub(crate) requests: Amounts,
}

pub(crate) struct Node<'a> {
    pub(crate) node: Option<&'a Value>,
    pub(crate) claim: Option<&'a Value>,
    marked: bool,
}

impl<'a> World<'a> {
    pub(crate) fn read(scenario: &'a Value) -> Self {
        let mut out = World {
            pods: BTreeMap::new(),
            pools: BTreeMap::new(),
            nodes: BTreeMap::new(),
            types: list(&scenario["instanceTypes"]).iter().map(|t| (text(&t["name"]), t)).collect(),
            namespaces: BTreeMap::new(),
            claims: BTreeMap::new(),
            volumes: BTreeMap::new(),
            classes: BTreeMap::new(),
            csi_nodes: BTreeMap::new(),
            best_effort_min_values: text(&scenario["options"]["minValuesPolicy"]) == "BestEffort",
        };
        let mut by_provider: BTreeMap<&str, Node<'a>> = BTreeMap::new();
        for object in list(&scenario["objects"]) {
            let meta = &object["metadata"];
            let (name, namespace) = (text(&meta["name"]), text(&meta["namespace"]));
            match text(&object["kind"]) {
                "Pod" => {
                    let key = format!("{namespace}/{name}");
                    out.pods.insert(key.clone(), Pod::read(key, namespace, object));
                }
                "NodePool" => drop(out.pools.insert(name, object)),
                "Namespace" => drop(out.namespaces.insert(name, labels(meta))),
                "PersistentVolumeClaim" => drop(out.claims.insert(format!("{namespace}/{name}"), object)),
                "PersistentVolume" => drop(out.volumes.insert(name, object)),
                "StorageClass" => drop(out.classes.insert(name, object)),
                "CSINode" => drop(out.csi_nodes.insert(name, object)),
                "NodeClaim" => {
                    let provider = text(&object["status"]["providerID"]);
                    if !provider.is_empty() {
                        by_provider.entry(provider).or_insert(Node::NONE).claim = Some(object);
                    }
                }
                "Node" => {
                    let provider = text(&object["spec"]["providerID"]);
                    let provider = if provider.is_empty() { name } else { provider };
                    by_provider.entry(provider).or_insert(Node::NONE).node = Some(object);
                }
                _ => {}
            }
        }
        let marked: BTreeSet<&str> = texts(&scenario["state"]["markedForDeletion"]).into_iter().collect();
        for mut node in by_provider.into_values() {
            let name = node.name();
            node.marked = marked.contains(name);
            out.nodes.insert(name, node);
        }
        out
    }

    /// Whether the pod is bound to a node that is being deleted.
    pub(crate) fn leaves_its_node(&self, pod: &Pod) -> bool {
        let on = text(&pod.json["spec"]["nodeName"]);
        !on.is_empty() && self.nodes.values().any(|n| n.node_name() == Some(on) && n.going_away())
    }

    /// Pods that occupy the Node of this name.
    pub(crate) fn bound_to<'s>(&'s self, node: &'s str) -> impl Iterator<Item = &'s Pod<'a>> {
        self.pods.values().filter(move |p| text(&p.json["spec"]["nodeName"]) == node && !p.terminal())
    }
}

pub(crate) fn labels(meta: &Value) -> BTreeMap<&str, &str> {
    entries(&meta["labels"]).map(|(k, v)| (k, text(v))).collect()
}

impl<'a> Pod<'a> {
    fn read(key: String, namespace: &'a str, json: &'a Value) -> Self {
        Pod { key, namespace, json, labels: labels(&json["metadata"]), requests: requests(&json["spec"]) }
    }

    pub(crate) fn spec(&self) -> &'a Value {
        &self.json["spec"]
    }

    pub(crate) fn terminal(&self) -> bool {
        matches!(text(&self.json["status"]["phase"]), "Succeeded" | "Failed")
    }

    pub(crate) fn terminating(&self) -> bool {
        !self.json["metadata"]["deletionTimestamp"].is_null()
    }

    pub(crate) fn provisionable(&self) -> bool {
        let owned = |version: &str, kind: &str| {
            list(&self.json["metadata"]["ownerReferences"])
                .iter()
                .any(|o| text(&o["apiVersion"]) == version && text(&o["kind"]) == kind)
        };
        list(&self.json["status"]["conditions"])
            .iter()
            .any(|c| text(&c["type"]) == "PodScheduled" && text(&c["reason"]) == "Unschedulable")
            && text(&self.spec()["nodeName"]).is_empty()
            && text(&self.json["status"]["nominatedNodeName"]).is_empty()
            && !owned("apps/v1", "DaemonSet")
            && !owned("v1", "Node")
    }
}

/// What the pod asks for, by its spec alone.
fn requests(spec: &Value) -> Amounts {
    let of = |c: &Value| amounts(&c["resources"]["requests"]);
    let mut total = Amounts::new();
    for c in list(&spec["containers"]) {
        add(&mut total, &of(c));
    }
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for c in list(&spec["initContainers"]) {
        if text(&c["restartPolicy"]) == "Always" {
            add(&mut sidecars, &of(c));
            peak = larger(peak, &sidecars);
        } else {
            let mut during = sidecars.clone();
            add(&mut during, &of(c));
            peak = larger(peak, &during);
        }
    }
    add(&mut total, &sidecars);
    let mut total = larger(total, &peak);
    for (name, amount) in amounts(&spec["resources"]["requests"]) {
        if name == "cpu" || name == "memory" || name.starts_with("hugepages-") {
            total.insert(name, amount);
        }
    }
    add(&mut total, &amounts(&spec["overhead"]));
    total.insert("pods".into(), 1_000_000_000);
    total
}

impl<'a> Node<'a> {
    const NONE: Self = Node { node: None, claim: None, marked: false };

    fn has_label(&self, key: &str) -> bool {
        self.node.is_some_and(|n| text(&n["metadata"]["labels"][key]) == "true")
    }

    fn registered(&self) -> bool {
        self.claim.is_none() || self.has_label("karpenter.sh/registered")
    }

    fn initialized(&self) -> bool {
        self.claim.is_none() || self.has_label("karpenter.sh/initialized")
    }

    fn spoken_for_by(&self) -> &'a Value {
        match (self.node, self.claim) {
            (Some(node), _) if self.registered() => node,
            (_, Some(claim)) => claim,
            (Some(node), None) => node,
            (None, None) => &Value::Null,
        }
    }

    fn name(&self) -> &'a str {
        text(&self.spoken_for_by()["metadata"]["name"])
    }

    /// The Kubernetes Node's name, if there is one.
    pub(crate) fn node_name(&self) -> Option<&'a str> {
        self.node.map(|n| text(&n["metadata"]["name"]))
    }

    pub(crate) fn labels(&self) -> BTreeMap<&'a str, &'a str> {
        labels(&self.spoken_for_by()["metadata"])
    }

    /// Taints that will stay: those that vanish while a node starts do not count until it has.
    pub(crate) fn lasting_taints(&self) -> Vec<&'a Value> {
        let taints = list(&self.spoken_for_by()["spec"]["taints"]);
        if self.initialized() {
            return taints.iter().collect();
        }
        let startup = self.claim.map(|c| list(&c["spec"]["startupTaints"])).unwrap_or_default();
        let same = |a: &Value, b: &Value| a["key"] == b["key"] && a["effect"] == b["effect"];
        taints
            .iter()
            .filter(|t| {
                let key = text(&t["key"]);
                !matches!(
                    key,
                    "node.kubernetes.io/not-ready"
                        | "node.kubernetes.io/unreachable"
                        | "node.cloudprovider.kubernetes.io/uninitialized"
                        | "node.cluster.x-k8s.io/uninitialized"
                        | "karpenter.sh/unregistered"
                        | "karpenter.sh/rebooting"
                ) && !key.starts_with("readiness.k8s.io/")
                    && !startup.iter().any(|s| same(s, t))
            })
            .collect()
    }

    /// `capacity` or `allocatable`, with what the Node does not know yet taken from the NodeClaim.
    pub(crate) fn resources(&self, field: &str) -> Amounts {
        let mut out = self.node.map(|n| amounts(&n["status"][field])).unwrap_or_default();
        if !self.initialized()
            && let Some(claim) = self.claim
        {
            for (k, v) in amounts(&claim["status"][field]) {
                let slot = out.entry(k).or_default();
                if *slot == 0 {
                    *slot = v;
                }
            }
        }
        out
    }

    pub(crate) fn going_away(&self) -> bool {
        let deleting = |o: &Value| !o["metadata"]["deletionTimestamp"].is_null();
        let terminating = |c: &Value| {
            list(&c["status"]["conditions"])
                .iter()
                .any(|c| text(&c["type"]) == "InstanceTerminating" && text(&c["status"]) == "True")
        };
        self.marked
            || match (self.claim, self.node) {
                (Some(c), _) => deleting(c) || terminating(c),
                (None, Some(n)) => deleting(n),
                (None, None) => false,
            }
    }
}
