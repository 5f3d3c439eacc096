//! The providers this program has, by the names `--provider` takes.

use karpenter_cloudprovider::{Installation, Surroundings};

/// A provider, ready to join the program.
pub(crate) async fn install(name: &str, around: &Surroundings) -> anyhow::Result<Installation> {
    match name {
        "cloudstack" => Ok(karpenter_provider_cloudstack::install(around)?),
        "kwok" => Ok(karpenter_provider_kwok::install(around)?),
        "cluster-api" => Ok(karpenter_provider_cluster_api::install(around).await?),
        other => anyhow::bail!(
            "there is no provider {other:?} (--provider, PROVIDER); give kwok, cluster-api or cloudstack"
        ),
    }
}
