//! Whether something is paused, as the management cluster has it now. Who moves objects to another management cluster pauses them
//! first, and a watch may lag far behind: before Machines are written to, the server is asked. Who comes while it is asked waits for
//! that answer.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::client::hub::{Hub, HubError};
use crate::client::scalable::ScalableKey;

/// For how long an answer serves others.
const MOMENT: Duration = Duration::from_secs(1);

/// An answer, and when it came.
type Answer = (Instant, bool);

/// The last answers.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    cluster: Mutex<Option<Answer>>,
    resources: Mutex<BTreeMap<ScalableKey, Answer>>,
}

impl Pauses {
    /// Whether the Cluster is paused.
    pub(crate) async fn of_cluster(&self, hub: &Hub) -> Result<bool, HubError> {
        let mut last = self.cluster.lock().await;
        if let Some((_, paused)) = last.filter(is_fresh) {
            return Ok(paused);
        }
        let paused = hub.cluster().await?.paused;
        *last = Some((Instant::now(), paused));
        Ok(paused)
    }

    /// Whether a scalable resource is. One that is gone is not.
    pub(crate) async fn of_resource(&self, hub: &Hub, id: &ScalableKey) -> Result<bool, HubError> {
        let mut last = self.resources.lock().await;
        last.retain(|_, answer| is_fresh(answer));
        if let Some((_, paused)) = last.get(id) {
            return Ok(*paused);
        }
        let paused = match hub.scalable(id).await {
            Ok(scalable) => scalable.is_paused(),
            Err(error) if error.is_not_found() => false,
            Err(error) => return Err(error),
        };
        last.insert(id.clone(), (Instant::now(), paused));
        Ok(paused)
    }
}

fn is_fresh((at, _): &Answer) -> bool {
    at.elapsed() < MOMENT
}
