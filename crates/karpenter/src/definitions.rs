//! Whether the cluster knows the kinds we work with: asked once before anything starts, by discovery, which needs no rights.

use karpenter_cloudprovider::CloudProvider;
use karpenter_runtime::error::ApiError;
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
    #[error(
        "cannot ask the cluster which kinds it serves: {0}; check that it can be reached, and that --kubeconfig (KUBECONFIG) names the right one"
    )]
    Unknown(ApiError),
    /// May not find out.
    #[error(
        "may not ask the cluster which kinds it serves: {0}; let this account do so (the cluster role system:discovery)"
    )]
    Forbidden(ApiError),
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

/// The NodeClasses of a provider, of this name for `--provider`.
pub(crate) async fn check_node_classes(
    client: &Client,
    name: &str,
    provider: &dyn CloudProvider,
) -> Result<(), DefinitionError> {
    for kind in provider.supported_node_classes() {
        let api_version = format!("{}/{}", kind.group, kind.version);
        check(client, &api_version, &kind.plural, &format!("--provider {name}")).await?;
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
        Err(kube::Error::Api(status)) if status.code == 403 => {
            return Err(DefinitionError::Forbidden(kube::Error::Api(status).into()));
        }
        Err(error) => return Err(DefinitionError::Unknown(error.into())),
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use karpenter_runtime::options::Environ;
    use karpenter_sim::Cluster;
    use karpenter_sim::World;
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    fn options(flags: &[&str]) -> Options {
        Options::parse(flags.iter().copied(), &Environ::new()).expect("settings")
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_without_the_definitions_is_refused_with_the_kind_and_the_remedy() {
        let client = Cluster::new(1).client("karpenter");
        let error = check_core(&client, &options(&[])).await.expect_err("nothing is installed").to_string();
        assert!(
            error.contains("nodepools of karpenter.sh/v1") && error.contains("karpenter crds"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_server_that_cannot_be_reached_is_told_with_the_cause_and_the_remedy() {
        let nowhere = kube::Config::new("http://127.0.0.1:1".parse().expect("a URL"));
        let client = Client::try_from(nowhere).expect("a client");
        let error = check_core(&client, &options(&[])).await.expect_err("nobody listens").to_string();
        assert!(error.contains("refused") && error.contains("--kubeconfig (KUBECONFIG)"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_node_class_is_told_with_the_provider_as_it_was_asked_for() {
        let client = Cluster::new(1).client("karpenter");
        let provider = karpenter_cloudprovider::fake::FakeProvider::new("fake");
        let error =
            check_node_classes(&client, "cluster-api", &provider).await.expect_err("nothing is installed");
        assert!(error.to_string().contains(", which --provider cluster-api needs; "), "{error}");
    }

    #[tokio::test]
    async fn a_server_that_does_not_let_us_ask_is_told_with_the_right_that_is_missing() {
        let refuse = tower::service_fn(|_: http::Request<Body>| async {
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 403,
                "reason": "Forbidden", "message": "forbidden: User \"k\" cannot get path \"/apis\"",
            });
            let mut answer = http::Response::new(Body::from(status.to_string().into_bytes()));
            *answer.status_mut() = http::StatusCode::FORBIDDEN;
            Ok::<_, Infallible>(answer)
        });
        let client = Client::new(refuse, "default");
        let error = check_core(&client, &options(&[])).await.expect_err("forbidden").to_string();
        assert!(error.contains("cannot get path") && error.contains("system:discovery"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_gates_definitions_are_needed_only_when_it_is_open() {
        let world = World::bare(karpenter_sim::WorldOptions::default());
        for definition in karpenter_api::crds() {
            let definition = definition.to_json();
            if definition["metadata"]["name"] != "capacitybuffers.autoscaling.x-k8s.io" {
                world.create(definition).await.expect("a definition");
            }
        }
        let client = world.cluster().client("karpenter");
        check_core(&client, &options(&[])).await.expect("all that is needed is there");
        let open = options(&["--feature-gates=CapacityBuffer=true"]);
        let error = check_core(&client, &open).await.expect_err("one is missing").to_string();
        assert!(error.contains("feature gate CapacityBuffer"), "{error}");
    }
}
