//! The provider ids of Nodes that are no NodeClaim's yet, listed once for all launches that look for theirs: there may be a thousand
//! Nodes that never will be anybody's, and a hundred launches.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::voice::{Voice, machine_of};

/// How old a list may be: a launch looks again that late, too.
const RECENT: Duration = Duration::from_secs(30);

/// When they were listed last, and what there was: nothing if that could not be found out.
#[derive(Debug, Default)]
pub(crate) struct Unregistered(Mutex<Option<(Instant, BTreeMap<String, String>)>>);

impl Unregistered {
    /// How the Node of a machine writes its provider id, if there is one that nobody has recognised.
    pub(crate) async fn provider_id_of(&self, machine: &str, voice: &Voice) -> Option<String> {
        let mut listed = self.0.lock().await;
        if let Some((at, ids)) = &*listed
            && at.elapsed() < RECENT
        {
            return ids.get(machine).cloned();
        }
        let nodes = voice.unregistered_nodes().await.unwrap_or_default();
        let named = nodes.iter().filter_map(|node| {
            let id = node.spec.as_ref()?.provider_id.clone()?;
            Some((machine_of(node)?, id))
        });
        let ids: BTreeMap<String, String> = named.collect();
        let found = ids.get(machine).cloned();
        *listed = Some((Instant::now(), ids));
        found
    }
}
