//! The provider while everything between it and the server goes wrong and its process dies again and again: every NodeClaim comes to
//! one Node, and no Node stays without its NodeClaim.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use karpenter_api::NodeClaim;
use karpenter_cloudprovider::provider::Launch;
use karpenter_provider_kwok::{Catalogue, installation};
use karpenter_runtime::events;
use karpenter_runtime::options::{Environ, Options};
use karpenter_runtime::writes;
use karpenter_sim::chance::Span;
use karpenter_sim::faults::FaultPlan;
use karpenter_sim::process::Life;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::world::{MINUTE, Scene};

/// What the core does for NodeClaims as far as the provider is concerned, without any of its caution.
fn core(life: Life) -> BoxFuture<'static, ()> {
    async move {
        let around = karpenter_cloudprovider::Surroundings {
            client: life.client.clone(),
            recorder: events::recorder("karpenter", &life.environment).0,
            options: Arc::new(Options::parse([], &Environ::new()).expect("no settings are valid")),
            environment: life.environment.clone(),
        };
        let installed = installation::install_with(Catalogue::built_in(), &around);
        for part in installed.parts {
            tokio::spawn((part.run)(life.stop.clone()));
        }
        let claims: Api<NodeClaim> = Api::all(life.client.clone());
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            for claim in claims.list(&Default::default()).await.map(|all| all.items).unwrap_or_default() {
                // Whatever fails is tried again in the next turn.
                if claim.metadata.deletion_timestamp.is_some() {
                    let gone = installed.provider.delete(&claim).await;
                    if gone.is_err_and(|error| error.is_not_found()) {
                        let mut freed = claim.clone();
                        freed.metadata.finalizers = None;
                        let _ = writes::patch(&claims, &claim, &freed, writes::Lock::Optimistic).await;
                    }
                } else if claim.status.as_ref().is_none_or(|status| status.provider_id.is_none())
                    && let Ok(Launch::Launched(instance)) = installed.provider.create(&claim).await
                {
                    let now = life.environment.clock.now().to_string();
                    let launched = json!({"type": "Launched", "status": "True", "lastTransitionTime": now});
                    let status = json!({"providerID": instance.provider_id, "conditions": [launched]});
                    let patch = Patch::Merge(json!({"status": status}));
                    let _ = claims.patch_status(&claim.name_any(), &PatchParams::default(), &patch).await;
                }
            }
        }
    }
    .boxed()
}

#[tokio::test(start_paused = true)]
async fn under_all_faults_every_claim_has_one_node_and_no_node_is_left() {
    for (seed, delay) in [(1, "0s"), (2, "7s"), (3, "40s")] {
        let scene = Scene::seeded(seed, delay).await;
        let process = scene.world.process("karpenter", FaultPlan::all(), core);
        process.start();
        let danger = process.endanger(Span::secs(5, 40), Span::secs(1, 5));
        let user: Api<NodeClaim> = Api::all(scene.world.cluster().client("user"));
        for number in 0..24 {
            scene.claim(&format!("c{number}")).await;
            scene.world.run_for(Duration::from_secs(13)).await.expect("all well");
            if number >= 4 && number % 2 == 0 {
                let name = format!("c{}", number - (number % 5));
                // It may have been deleted before.
                let _ = user.delete(&name, &DeleteParams::default()).await;
            }
        }
        process.faults().heal();
        danger.await.expect("no panic");
        scene.world.run_for(3 * MINUTE).await.expect("all well");
        assert!(process.lives() > 3, "seed {seed}: {} lives", process.lives());

        let claims = user.list(&Default::default()).await.expect("claims").items;
        assert!((12..24).contains(&claims.len()), "seed {seed}: {} claims", claims.len());
        let ids: BTreeMap<String, String> = claims
            .iter()
            .map(|claim| {
                let id = claim.status.as_ref().and_then(|status| status.provider_id.clone());
                (
                    id.unwrap_or_else(|| panic!("seed {seed}: {} was not launched", claim.name_any())),
                    claim.name_any(),
                )
            })
            .collect();
        let expected: BTreeSet<String> = ids.keys().map(|id| id.replace("kwok://", "")).collect();
        let there: BTreeSet<String> = scene.node_names().await.into_iter().collect();
        assert_eq!(there, expected, "seed {seed}");
        assert_eq!(ids.len(), claims.len(), "seed {seed}");
    }
}
