//! The kinds as `kube` sees them.

use karpenter_api::{CapacityBuffer, NodeClaim, NodeOverlay, NodePool};
use kube::Resource;

#[test]
fn objects_are_found_under_the_urls_of_their_kinds() {
    assert_eq!(NodePool::url_path(&(), None), "/apis/karpenter.sh/v1/nodepools");
    assert_eq!(NodeClaim::url_path(&(), None), "/apis/karpenter.sh/v1/nodeclaims");
    assert_eq!(NodeOverlay::url_path(&(), None), "/apis/karpenter.sh/v1alpha1/nodeoverlays");
    let buffers = "/apis/autoscaling.x-k8s.io/v1beta1/namespaces/team/capacitybuffers";
    assert_eq!(CapacityBuffer::url_path(&(), Some("team")), buffers);
}

#[test]
fn an_object_says_what_it_is() {
    let object = serde_json::to_value(CapacityBuffer::default()).unwrap();
    assert_eq!(object["apiVersion"], "autoscaling.x-k8s.io/v1beta1");
    assert_eq!(object["kind"], "CapacityBuffer");
    assert!(object.get("status").is_none());
}

/// Compiles only if the types satisfy what `kube::Api` asks for.
#[expect(dead_code, reason = "compiling it is the test")]
fn the_api_accepts_the_kinds(client: kube::Client) {
    fn usable<K>(_: &kube::Api<K>)
    where
        K: Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + serde::Serialize,
    {
    }
    usable(&kube::Api::<NodePool>::all(client.clone()));
    usable(&kube::Api::<CapacityBuffer>::namespaced(client, "team"));
}
