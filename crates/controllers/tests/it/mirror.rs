//! What is in the cluster is in the state.

use serde_json::json;

use crate::rig::Rig;

#[tokio::test(start_paused = true)]
async fn what_the_watches_see_is_in_the_state() {
    let rig = Rig::quiet(&[]).await;
    rig.create(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }))
    .await;
    rig.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})).await;
    rig.eventually("the state has a pod and a machine", |rig| {
        rig.context.cluster.read(|cluster| cluster.pods().len() == 1 && cluster.machines().count() == 1)
    })
    .await;
}
