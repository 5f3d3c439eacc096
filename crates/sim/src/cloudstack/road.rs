//! How a program under test gets to the simulated cloud: what it changes there is on the tape, and what is sent is carried out
//! even if the program dies before it hears of it.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};

use super::wire::Call;
use super::{CloudStack, Lost};
use crate::cluster::Cluster;
use crate::gate::Gate;
use crate::invariants::Asked;
use crate::inventory::InstanceId;

/// One process's way to the cloud. Clones are the same way.
#[derive(Clone)]
pub struct Road {
    cloud: CloudStack,
    cluster: Cluster,
    actor: Arc<str>,
    gate: Gate,
}

impl Road {
    pub(crate) fn new(cloud: CloudStack, cluster: Cluster, actor: Arc<str>, gate: Gate) -> Self {
        Self { cloud, cluster, actor, gate }
    }

    /// For a program that nothing happens to.
    pub fn open(cloud: &CloudStack, cluster: &Cluster, actor: &str) -> Self {
        Self::new(cloud.clone(), cluster.clone(), actor.into(), Gate::default())
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Lost> {
        let call = Call::read(&request);
        let reads = ["list", "get", "query", "quota"].iter().any(|prefix| call.command().starts_with(prefix));
        if reads {
            self.gate.pass().await;
        } else {
            self.gate.before_write().await;
            let deed = format!("cloudstack: asked to {}", told(&call));
            let asked = (call.command() == "destroyVirtualMachine")
                .then(|| Asked::Terminate { id: InstanceId::new(call.get("id").unwrap_or_default()) });
            self.cluster.record_asking(&self.actor, deed, "asked".to_owned(), &[], asked.as_ref());
        }
        // On a task of its own: a server goes on with what it was sent, whether the sender lives or not.
        let cloud = self.cloud.clone();
        let carried_out = tokio::spawn(async move { cloud.handle(request).await });
        let answer = carried_out.await.unwrap_or(Err(Lost::NoAnswer));
        if reads {
            self.gate.pass().await;
        } else {
            let outcome = match &answer {
                Ok(answer) => answer.status().as_u16().to_string(),
                Err(lost) => lost.to_string(),
            };
            self.cluster.record(&self.actor, format!("cloudstack: {}", told(&call)), outcome, &[]);
            self.gate.after_write().await;
        }
        answer
    }
}

fn told(call: &Call) -> String {
    let mut told = call.command().to_owned();
    for name in ["name", "id", "resourceids", "serviceofferingid", "expunge"] {
        if let Some(value) = call.get(name) {
            told.push_str(&format!(" {name}={value}"));
        }
    }
    told
}
