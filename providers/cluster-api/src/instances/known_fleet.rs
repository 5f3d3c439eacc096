//! By what our Cluster is known when new credentials lead to a management cluster: what was seen of it, and what was launched from it.

use std::sync::{Arc, Weak};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use kube::Client;

use super::fleet::Fleet;
use super::node_claims::Target;
use crate::client::credentials::Judge;
use crate::client::hub::Hub;
use crate::client::identity::OurCluster;
use crate::client::scope::Ours;

pub(crate) struct KnownFleet(Weak<Fleet>);

impl KnownFleet {
    /// Of this fleet, for as long as it is there.
    pub(crate) fn new(fleet: &Arc<Fleet>) -> Self {
        Self(Arc::downgrade(fleet))
    }
}

impl Judge for KnownFleet {
    fn check<'a>(&'a self, client: &'a Client) -> BoxFuture<'a, Result<(), String>> {
        async move {
            let Some(fleet) = self.0.upgrade() else { return Err("we are about to end".to_owned()) };
            let claims = fleet.node_claims.store();
            claims.wait_synced().await;
            let ours = match fleet.hub.scope() {
                Some(scope) => Ours::is(scope.clone()),
                None => Ours::new(&fleet.settings).asking(fleet.node_claims.client()),
            };
            let launched = claims.list().iter().any(|claim| {
                let id = claim.status.as_ref().and_then(|status| status.provider_id.as_ref());
                id.is_some() && Target::of(claim).is_some()
            });
            let known =
                OurCluster { endpoint: fleet.mirror.endpoint(), owner: fleet.owner.clone(), launched };
            known.is_at(&Hub::new(client.clone(), ours)).await
        }
        .boxed()
    }

    fn tell(&self, unused: Option<&str>) {
        if let Some(fleet) = self.0.upgrade() {
            fleet.hub.note_unused_credentials(unused.map(str::to_owned));
        }
    }
}
