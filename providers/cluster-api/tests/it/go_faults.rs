//! The faults of the Go provider, done on purpose: the simulated Cluster API lets each do its harm, and a rule catches it. What
//! catches nothing proves nothing.

use karpenter_api::NodeClaim;
use karpenter_sim::cluster_api::{Kind, UPGRADING};
use kube::Api;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::json;

use crate::rig::{MAX, MINUTE, NAMESPACE, Rig, SECOND, scenario};

/// What the Go provider does, in single steps, under a name that rules watch.
struct Go<'a> {
    rig: &'a Rig,
    claims: Api<NodeClaim>,
}

impl<'a> Go<'a> {
    async fn new(rig: &'a Rig) -> Self {
        rig.deployment("m", &[(MAX, "100")]).await;
        let enrolled = json!({"metadata": {"annotations": {
            "karpenter.cluster.x-k8s.io/epoch": "2026-01-01T00:00:00Z",
            "karpenter.cluster.x-k8s.io/protected-replicas": "0",
        }}});
        rig.patch(Kind::MachineDeployment, "m", enrolled).await;
        Self { rig, claims: Api::all(rig.world.cluster().client("karpenter-go")) }
    }

    async fn scale(&self, by: i64) {
        let replicas = (self.rig.replicas("m") + by).max(0);
        // By its own hand: what people set is theirs to answer for.
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(
            Kind::MachineDeployment.group(),
            "v1beta2",
            Kind::MachineDeployment.as_str(),
        ));
        let client = self.rig.world.cluster().client("karpenter-go");
        let api: Api<DynamicObject> = Api::namespaced_with(client, NAMESPACE, &resource);
        let change = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        api.patch("m", &PatchParams::default(), &change).await.expect("a level");
    }

    async fn uid(&self, claim: &str) -> String {
        self.claims.get(claim).await.expect("a NodeClaim").metadata.uid.unwrap_or_default()
    }

    async fn bind(&self, machine: &str, claim: &str) {
        let annotations = json!({
            "karpenter.cluster.x-k8s.io/nodeclaim": claim,
            "karpenter.cluster.x-k8s.io/nodeclaim-uid": self.uid(claim).await,
        });
        self.rig.patch(Kind::Machine, machine, json!({"metadata": {"annotations": annotations}})).await;
        let status = json!({"status": {"providerID": format!("sim://fleet/{machine}")}});
        let patched = self.claims.patch_status(claim, &PatchParams::default(), &Patch::Merge(status)).await;
        patched.expect("a status");
    }

    async fn mark(&self, machine: &str) {
        let mark = json!({"metadata": {"annotations": {"cluster.x-k8s.io/delete-machine": "now"}}});
        self.rig.patch(Kind::Machine, machine, mark).await;
    }

    /// Somebody asks for so many nodes.
    async fn asked_for(&self, count: usize) {
        self.rig.until("they are asked for", MINUTE, |objects| objects.node_claims.len() == count).await;
    }

    /// So many NodeClaims, each bound to a Machine of its own.
    async fn launched(&self, count: usize) -> Vec<String> {
        self.rig.want(count);
        self.asked_for(count).await;
        self.scale(count as i64).await;
        self.rig
            .until("the nodes are there", 5 * MINUTE, |objects| {
                objects.nodes.len() == count && objects.node_claims.len() == count
            })
            .await;
        let machines = self.machines();
        let claims = self.claims.list(&ListParams::default()).await.expect("NodeClaims");
        for (machine, claim) in machines.iter().zip(&claims.items) {
            self.bind(machine, claim.metadata.name.as_deref().unwrap_or_default()).await;
        }
        machines
    }

    fn machines(&self) -> Vec<String> {
        self.rig.read(|objects| objects.machines.keys().map(|key| key.name.to_string()).collect())
    }

    /// The rule that was broken, on the way or at rest.
    fn caught(&self) -> String {
        let cluster = self.rig.world.cluster();
        let violation = cluster.violation().or_else(|| cluster.check_at_rest(10 * MINUTE).err());
        violation.map(|violation| violation.to_string()).unwrap_or_default()
    }
}

#[test]
fn w1_asking_again_for_what_was_asked_for_is_caught() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        let go = Go::new(&rig).await;
        rig.patch(Kind::Cluster, "c", json!({"metadata": {"annotations": {UPGRADING: "the control plane"}}}))
            .await;
        rig.want(1);
        go.asked_for(1).await;
        go.scale(1).await;
        rig.pass(30 * SECOND).await;
        assert_eq!(go.rig.world.cluster().violation(), None, "it is for somebody");
        // No Machine has appeared within half a minute: the deficit is one, again.
        go.scale(1).await;
        let _ = rig.world.run_for(SECOND).await;
        let told = "levels rise for somebody (O3): fleet/m was raised from 1 to 2, and 1 are needed";
        assert!(go.caught().contains(told), "{}", go.caught());
    });
}

#[test]
fn w2_counting_down_at_every_call_is_caught() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        let go = Go::new(&rig).await;
        let machines = go.launched(3).await;
        rig.capi.run_machine_sets(false);
        rig.want(2);
        rig.delete_claim("n1").await;
        for _ in 0..3 {
            go.mark(&machines[0]).await;
            go.scale(-1).await;
        }
        rig.capi.run_machine_sets(true);
        let _ = rig.world.run_for(MINUTE).await;
        assert!(go.caught().contains("is being deleted"), "{}", go.caught());
    });
}

#[test]
fn w3_claiming_what_is_claimed_is_caught() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        let go = Go::new(&rig).await;
        let machines = go.launched(2).await;
        go.bind(&machines[0], "n2").await;
        assert!(go.caught().contains("one Machine per NodeClaim"), "{}", go.caught());
    });
}

#[test]
fn w4_finalizing_without_deleting_is_caught() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        let go = Go::new(&rig).await;
        go.launched(1).await;
        rig.want(0);
        rig.delete_claim("n1").await;
        let gone = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        go.claims.patch("n1", &PatchParams::default(), &gone).await.expect("a patch");
        rig.pass(MINUTE).await;
        assert!(go.caught().contains("outlives its NodeClaim"), "{}", go.caught());
    });
}

#[test]
fn w7_lowering_replicas_during_a_rollout_is_caught() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        let go = Go::new(&rig).await;
        let strategy = json!({"spec": {"rollout": {"strategy": {"type": "OnDelete"}}}});
        rig.patch(Kind::MachineDeployment, "m", strategy).await;
        go.launched(2).await;
        rig.patch(
            Kind::MachineDeployment,
            "m",
            json!({"spec": {"template": {"spec": {"version": "v1.37.0"}}}}),
        )
        .await;
        rig.pass(10 * SECOND).await;
        let old = go.machines();
        rig.want(4);
        go.asked_for(4).await;
        go.scale(2).await;
        rig.until("two of each", 5 * MINUTE, |objects| {
            objects.nodes.len() == 4 && objects.node_claims.len() == 4
        })
        .await;
        let new: Vec<String> = go.machines().into_iter().filter(|name| !old.contains(name)).collect();
        for (machine, claim) in new.iter().zip(["n3", "n4"]) {
            go.bind(machine, claim).await;
        }
        // A new Machine is marked; the MachineDeployment shrinks the old MachineSet.
        rig.want(3);
        rig.delete_claim("n3").await;
        go.mark(&new[0]).await;
        go.scale(-1).await;
        let _ = rig.world.run_for(MINUTE).await;
        assert!(go.caught().contains("Machines in use live"), "{}", go.caught());
    });
}
