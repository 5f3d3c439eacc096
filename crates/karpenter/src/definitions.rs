//! Whether the cluster knows the kinds we work with: asked once before anything starts, by discovery, which needs no rights.

use karpenter_cloudprovider::CloudProvider;
use karpenter_runtime::options::Options;
use kube::Client;

/// A kind the cluster does not serve.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DefinitionError {
    /// Not installed.
    #[error(
        "the cluster does not serve {resource} of {api_version}, which {needed_by} needs; install the definitions (karpenter crds | kubectl apply --server-side -f -)"
    )]
    Missing {
        /// Plural name.
        resource: String,
        /// Group and version.
        api_version: String,
        /// Who needs it.
        needed_by: String,
    },
    /// Could not find out.
    #[error("cannot ask the cluster which kinds it serves: {0}")]
    Unknown(#[source] Box<kube::Error>),
}

/// Karpenter's own kinds, and those of the feature gates that are open.
pub(crate) async fn check_core(client: &Client, options: &Options) -> Result<(), DefinitionError> {
    let gates = &options.feature_gates;
    let mut needed =
        vec![("karpenter.sh/v1", "nodepools", "karpenter"), ("karpenter.sh/v1", "nodeclaims", "karpenter")];
    if gates.node_overlay {
        needed.push(("karpenter.sh/v1alpha1", "nodeoverlays", "feature gate NodeOverlay"));
    }
    if gates.capacity_buffer {
        needed.push(("autoscaling.x-k8s.io/v1beta1", "capacitybuffers", "feature gate CapacityBuffer"));
    }
    for (api_version, resource, needed_by) in needed {
        check(client, api_version, resource, needed_by).await?;
    }
    Ok(())
}

/// The NodeClasses of a provider.
pub(crate) async fn check_node_classes(
    client: &Client,
    provider: &dyn CloudProvider,
) -> Result<(), DefinitionError> {
    for kind in provider.supported_node_classes() {
        let api_version = format!("{}/{}", kind.group, kind.version);
        check(client, &api_version, &kind.plural, &format!("provider {}", provider.name())).await?;
    }
    Ok(())
}

async fn check(
    client: &Client,
    api_version: &str,
    resource: &str,
    needed_by: &str,
) -> Result<(), DefinitionError> {
    let served = match client.list_api_group_resources(api_version).await {
        Ok(list) => list.resources.iter().any(|served| served.name == resource),
        Err(kube::Error::Api(status)) if status.code == 404 => false,
        Err(error) => return Err(DefinitionError::Unknown(Box::new(error))),
    };
    if served {
        return Ok(());
    }
    Err(DefinitionError::Missing {
        resource: resource.to_owned(),
        api_version: api_version.to_owned(),
        needed_by: needed_by.to_owned(),
    })
}
