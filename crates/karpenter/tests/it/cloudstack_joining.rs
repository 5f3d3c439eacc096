//! Machines that join with a token of their own, which Karpenter makes and which expires.

use std::collections::BTreeSet;
use std::time::Duration;

use base64::Engine as _;
use k8s_openapi::api::core::v1::Secret;
use karpenter::cloudstack::stage::{Stage, apply_credentials, furnish, node_class};
use karpenter_provider_cloudstack::ProviderOptions;
use karpenter_sim::cloudstack::guests::GuestOptions;
use karpenter_sim::faults::FaultPlan;
use karpenter_sim::{Trouble, WorldOptions, in_virtual_time};
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::cloudstack::{all_run, deployment, small_nodes};

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn every_machine_joins_with_a_token_of_its_own_that_expires() {
    let done = in_virtual_time(async {
        let stage =
            Stage::new(WorldOptions { seed: 21, ..WorldOptions::default() }, GuestOptions::default()).await?;
        furnish(&stage.cloud, 4);
        let world = &stage.world;
        apply_credentials(world).await?;
        let mut class = node_class();
        class["spec"]["bootstrap"] = json!({
            "mode": "Kubeadm", "apiServer": "api.example.com:6443", "caCertHash": "sha256:0af1", "tokenTTL": "30m",
        });
        class["spec"].as_object_mut().expect("a spec").remove("userData");
        for object in [class, small_nodes(json!({})), deployment("web", 2, "1500m")] {
            world.create(object).await?;
        }
        let karpenter = stage.karpenter(FaultPlan::none(), ProviderOptions::new("tokens"));
        karpenter.start();
        world.wait_until("the pods run", 5 * MINUTE, |objects| all_run(objects, 2)).await?;
        let secrets: Api<Secret> = Api::namespaced(world.cluster().client("user"), "kube-system");
        let secrets = secrets.list(&ListParams::default()).await.expect("Secrets").items;
        let mut tokens = BTreeSet::new();
        for secret in &secrets {
            assert_eq!(secret.type_.as_deref(), Some("bootstrap.kubernetes.io/token"));
            let data = secret.data.clone().unwrap_or_default();
            let text = |key: &str| String::from_utf8(data[key].0.clone()).expect("text");
            assert_eq!(secret.name_any(), format!("bootstrap-token-{}", text("token-id")));
            let expires: jiff::Timestamp = text("expiration").parse().expect("a time");
            let left = expires.duration_since(world.cluster().now());
            assert!(left.as_mins() > 20 && left.as_mins() <= 30, "{left:?}");
            assert_eq!(text("auth-extra-groups"), "system:bootstrappers:kubeadm:default-node-token");
            tokens.insert(format!("{}.{}", text("token-id"), text("token-secret")));
        }
        assert_eq!(tokens.len(), 2, "one for each NodeClaim");
        for machine in stage.cloud.live_machines() {
            let data = machine.user_data.expect("user data");
            let script = base64::engine::general_purpose::STANDARD.decode(data).expect("base64");
            let script = String::from_utf8(script).expect("a script");
            let used: Vec<String> = tokens
                .iter()
                .filter(|token| script.contains(&format!("--token {token} ")))
                .cloned()
                .collect();
            assert_eq!(used.len(), 1, "{script}");
            tokens.remove(&used[0]);
        }
        assert!(tokens.is_empty(), "each joins with its own");
        karpenter.stop(MINUTE).await;
        Ok::<(), Trouble>(())
    });
    done.expect("a runtime").unwrap_or_else(|trouble| panic!("{trouble}"));
}
