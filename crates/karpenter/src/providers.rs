//! The providers this program has, by the names `--provider` takes.

use karpenter_cloudprovider::{Installation, Surroundings};
use karpenter_runtime::options::PROVIDERS;

/// A provider, ready to join the program.
pub(crate) async fn install(name: &str, around: &Surroundings) -> anyhow::Result<Installation> {
    match name {
        "cloudstack" => Ok(karpenter_provider_cloudstack::install(around)?),
        "kwok" => Ok(karpenter_provider_kwok::install(around)?),
        "cluster-api" => Ok(karpenter_provider_cluster_api::install(around).await?),
        other => {
            anyhow::bail!("--provider: there is no provider {other:?}; there are {}", PROVIDERS.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::Namespace;
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    use karpenter_cloudprovider::Registry;
    use karpenter_controllers::check_repair_policies;
    use karpenter_runtime::environment::Environment;
    use karpenter_runtime::events;
    use karpenter_runtime::options::{Environ, Options};
    use karpenter_sim::cluster::Cluster;
    use kube::Api;
    use kube::api::{DynamicObject, PostParams};
    use kube::core::{ApiResource, GroupVersionKind};
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn every_provider_and_every_set_of_them_can_repair_nodes() {
        let names = PROVIDERS;
        let cluster = Cluster::new(1);
        let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client("user"));
        for definition in karpenter_sim::cluster_api::definitions(&["v1beta2"]) {
            let definition = serde_json::from_value(definition).expect("a definition");
            definitions.create(&PostParams::default(), &definition).await.expect("it is taken");
        }
        let named = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": {"name": "test", "namespace": "fleet"},
        });
        let namespaces: Api<Namespace> = Api::all(cluster.client("user"));
        let fleet = serde_json::from_value(json!({"metadata": {"name": "fleet"}})).expect("a Namespace");
        namespaces.create(&PostParams::default(), &fleet).await.expect("a namespace");
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", "Cluster"));
        let clusters: Api<DynamicObject> = Api::namespaced_with(cluster.client("user"), "fleet", &kind);
        let named = serde_json::from_value(named).expect("a Cluster");
        clusters.create(&PostParams::default(), &named).await.expect("a Cluster");
        let flags = ["--feature-gates=NodeRepair=true", "--leader-election-namespace=kube-system"];
        let environ: Environ = [("CLUSTER_NAME", "test"), ("CLUSTER_NAMESPACE", "fleet")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let options = Options::parse(flags, &environ).expect("options");
        for set in 1..(1 << names.len()) {
            let environment = Environment::seeded(cluster.now(), 1);
            let around = Surroundings {
                client: cluster.client("karpenter"),
                recorder: events::recorder("karpenter", &environment).0,
                environment,
                options: Arc::new(options.clone()),
            };
            let mut registry = Registry::new();
            let chosen: Vec<&str> = names
                .iter()
                .enumerate()
                .filter(|(at, _)| set & (1 << at) != 0)
                .map(|(_, name)| *name)
                .collect();
            for name in &chosen {
                let installation = install(name, &around).await.expect("a provider");
                registry.register(installation.provider).expect("a provider beside the others");
            }
            assert_eq!(check_repair_policies(&options, &registry), Ok(()), "{chosen:?}");
        }
    }
}
