//! Tests of Nodes made for NodeClaims.

use serde_json::{Value, json};

use super::*;

fn claim(uid: &str, requirements: Value) -> NodeClaim {
    serde_json::from_value(json!({
        "metadata": {"name": "pool-x7k2p", "uid": uid, "labels": {"karpenter.sh/nodepool": "pool", "team": "a"},
                     "annotations": {"karpenter.sh/nodepool-hash": "1"}},
        "spec": {
            "requirements": requirements,
            "resources": {"requests": {"cpu": "1500m", "memory": "1Gi", "pods": "3"}},
            "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
        },
    }))
    .expect("a NodeClaim")
}

fn types(names: &[&str]) -> Value {
    json!([
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": names},
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand", "spot"]},
    ])
}

fn label<'a>(node: &'a Node, key: &str) -> &'a str {
    node.labels().get(key).map(String::as_str).unwrap_or_default()
}

#[test]
fn a_node_is_the_one_gos_provider_makes() {
    let mut requirements = types(&["s-4x-amd64-linux", "s-2x-amd64-linux"]);
    requirements
        .as_array_mut()
        .expect("a list")
        .push(json!({"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["test-zone-c"]}));
    let claim = claim("0f0e", requirements);
    let node = node(&claim, &Catalogue::built_in()).expect("a node");
    let name = first_name(&claim);
    assert!(name.starts_with("kwok-pool-x7k2p-") && name.len() == "kwok-pool-x7k2p-".len() + 10, "{name}");
    assert_eq!(
        serde_json::to_value(&node).expect("JSON"),
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "annotations": {"karpenter.sh/nodepool-hash": "1", "kwok.x-k8s.io/node": "fake"},
                "labels": {
                    "eks-node-viewer/instance-price": "0.041013",
                    "karpenter.kwok.sh/instance-cpu": "2",
                    "karpenter.kwok.sh/instance-family": "s",
                    "karpenter.kwok.sh/instance-memory": "8Gi",
                    "karpenter.kwok.sh/instance-size": "2",
                    "karpenter.sh/capacity-type": "spot",
                    "karpenter.sh/nodepool": "pool",
                    "kubernetes.io/arch": "amd64",
                    "kubernetes.io/hostname": "pool-x7k2p",
                    "kubernetes.io/os": "linux",
                    "kwok-partition": "a",
                    "kwok.x-k8s.io/node": "fake",
                    "node.kubernetes.io/instance-type": "s-2x-amd64-linux",
                    "team": "a",
                    "topology.kubernetes.io/zone": "test-zone-c",
                },
                "ownerReferences": [{
                    "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": "pool-x7k2p", "uid": "0f0e",
                    "blockOwnerDeletion": true,
                }],
            },
            "spec": {
                "providerID": format!("kwok://{name}"),
                "taints": [{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}],
            },
            "status": {
                "capacity": {"cpu": "1500m", "memory": "1Gi", "pods": "3"},
                "allocatable": {"cpu": "1900m", "memory": "8182Mi", "pods": "32", "ephemeral-storage": "20Gi"},
                "phase": "Pending",
            },
        })
    );
    assert!(is_instance(&node));
}

#[test]
fn the_same_claim_gets_the_same_node_and_claims_spread_over_zones() {
    let catalogue = Catalogue::built_in();
    let make = |uid: &str| node(&claim(uid, types(&["c-1x-amd64-linux"])), &catalogue).expect("a node");
    assert_eq!(make("1"), make("1"));
    assert_ne!(make("1").name_any(), make("2").name_any());
    let mut per_zone = BTreeMap::new();
    for uid in 0..400 {
        *per_zone.entry(label(&make(&uid.to_string()), well_known::TOPOLOGY_ZONE).to_owned()).or_insert(0) +=
            1;
    }
    assert_eq!(per_zone.len(), 4);
    assert!(per_zone.values().all(|count| *count > 70), "{per_zone:?}");
}

#[test]
fn the_first_of_equally_cheap_types_is_bought_and_unknown_ones_are_passed_over() {
    let catalogue = Catalogue::built_in();
    for (names, want) in [
        (vec!["c-1x-arm64-linux", "c-1x-amd64-linux"], "c-1x-arm64-linux"),
        (vec!["gone", "c-8x-amd64-linux"], "c-8x-amd64-linux"),
    ] {
        let node = node(&claim("1", types(&names)), &catalogue).expect("a node");
        assert_eq!(label(&node, well_known::INSTANCE_TYPE), want);
    }
}

#[test]
fn a_claim_nothing_fits_says_why() {
    let catalogue = Catalogue::built_in();
    let refused = |requirements| node(&claim("1", requirements), &catalogue).expect_err("refused");
    let error = refused(types(&["gone", "lost"]));
    assert!(error.to_string().contains("instance type not found (instance-type=gone)"), "{error}");
    let error = refused(json!([]));
    assert_eq!(error.to_string(), "translating nodeclaim to node, instance type requirement not found");
    let mut nowhere = types(&["c-1x-amd64-linux"]);
    nowhere
        .as_array_mut()
        .expect("a list")
        .push(json!({"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["moon"]}));
    let error = refused(nowhere);
    assert!(matches!(error, ProviderError::InsufficientCapacity(_)), "{error}");
}

#[test]
fn a_claim_that_was_launched_keeps_its_name_type_and_zone() {
    let catalogue = Catalogue::built_in();
    let mut claim = claim("1", types(&["c-1x-amd64-linux", "c-2x-amd64-linux"]));
    claim.status.get_or_insert_default().provider_id =
        Some("kwok://kwok-pool-x7k2p-silly-1-abc-7".to_owned());
    for (key, value) in [
        (well_known::INSTANCE_TYPE, "c-2x-amd64-linux"),
        (well_known::TOPOLOGY_ZONE, "test-zone-d"),
        (well_known::CAPACITY_TYPE, "on-demand"),
    ] {
        claim.labels_mut().insert(key.to_owned(), value.to_owned());
    }
    let node = node(&claim, &catalogue).expect("a node");
    assert_eq!(node.name_any(), "kwok-pool-x7k2p-silly-1-abc-7");
    assert_eq!(label(&node, well_known::INSTANCE_TYPE), "c-2x-amd64-linux");
    assert_eq!(label(&node, well_known::TOPOLOGY_ZONE), "test-zone-d");
    assert_eq!(label(&node, labels::NODE_PRICE), "0.054295");
}

#[test]
fn an_id_of_another_provider_says_nothing_about_an_instance() {
    let mut claim = claim("1", types(&["c-1x-amd64-linux"]));
    for id in ["aws:///i-1", "kwok://", "x"] {
        claim.status.get_or_insert_default().provider_id = Some(id.to_owned());
        let error = node_name(&claim).expect_err(id);
        assert!(!error.is_not_found() && error.to_string().contains(id), "{error}");
    }
}

#[test]
fn names_of_nodes_are_never_too_long() {
    let mut claim = claim("1", types(&[]));
    claim.metadata.name = Some("x".repeat(253));
    assert_eq!(first_name(&claim).len(), 253);
    assert_eq!(host_name(&claim).len(), 63);
    claim.metadata.name = Some("a.".repeat(120));
    assert!(!first_name(&claim).contains(".-"));
    claim.metadata.name = Some("ä".repeat(200));
    assert!(first_name(&claim).len() <= 253);
}

#[test]
fn a_node_seen_as_a_claim_has_what_is_known_of_the_instance() {
    let claim = claim("1", types(&["c-1x-amd64-linux"]));
    let node = node(&claim, &Catalogue::built_in()).expect("a node");
    let seen = as_claim(&node);
    let status = seen.status.expect("a status");
    assert_eq!(seen.metadata.name, node.metadata.name);
    assert_eq!(status.node_name, node.metadata.name);
    assert_eq!(status.provider_id, node.spec.expect("a spec").provider_id);
    assert_eq!(status.allocatable.expect("allocatable")["cpu"].to_string(), "900m");
    assert_eq!(seen.metadata.labels, node.metadata.labels);
}
