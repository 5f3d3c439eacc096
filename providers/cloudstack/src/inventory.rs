//! What virtual machines there are, asked for once by many: a hundred launches that wait look at one list.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::absence::{Care, MachineLists};
use crate::client::error::ApiError;
use crate::client::model::VirtualMachine;
use crate::client::request::Scope;
use crate::client::requests;

/// What the last list showed.
struct Listed {
    begun: Instant,
    care: Care,
    machines: Arc<Vec<VirtualMachine>>,
}

/// The machines whose names begin as this cluster's do.
pub(crate) struct Inventory {
    lists: MachineLists,
    prefix: String,
    listings: Mutex<BTreeMap<Scope, Arc<tokio::sync::Mutex<Option<Listed>>>>>,
}

impl Inventory {
    pub(crate) fn new(lists: MachineLists, prefix: &str) -> Self {
        Self { lists, prefix: prefix.to_owned(), listings: Mutex::default() }
    }

    /// The keys are of another account.
    pub(crate) fn forget(&self) {
        self.listings.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The machines as they are now or later: the list was begun after this call.
    pub(crate) async fn fresh(
        &self,
        scope: &Scope,
        care: Care,
    ) -> Result<Arc<Vec<VirtualMachine>>, ApiError> {
        self.since(scope, Instant::now(), care).await
    }

    /// The machines as they were at most this long ago, at a glance.
    pub(crate) async fn recent(
        &self,
        scope: &Scope,
        age: Duration,
    ) -> Result<Arc<Vec<VirtualMachine>>, ApiError> {
        let now = Instant::now();
        self.since(scope, now.checked_sub(age).unwrap_or(now), Care::Glance).await
    }

    /// The machines as they were at most this long ago, and not before then, at a glance.
    pub(crate) async fn recent_since(
        &self,
        scope: &Scope,
        age: Duration,
        then: Instant,
    ) -> Result<Arc<Vec<VirtualMachine>>, ApiError> {
        let since = Instant::now().checked_sub(age).map_or(then, |recent| recent.max(then));
        self.since(scope, since, Care::Glance).await
    }

    async fn since(
        &self,
        scope: &Scope,
        since: Instant,
        care: Care,
    ) -> Result<Arc<Vec<VirtualMachine>>, ApiError> {
        let listed = {
            let mut listings = self.listings.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(listings.entry(scope.clone()).or_default())
        };
        let mut listed = listed.lock().await;
        if let Some(last) = &*listed
            && last.begun >= since
            && last.care >= care
        {
            return Ok(Arc::clone(&last.machines));
        }
        let begun = Instant::now();
        let request = requests::list_virtual_machines_by_keyword(&self.prefix, scope);
        let mut machines = self.lists.read(&request, care).await?;
        // The keyword is looked for anywhere, in addresses too.
        // Machines of CloudStack's own Kubernetes service are its business, whatever they are called.
        machines
            .retain(|machine| machine.name.starts_with(&self.prefix) && !machine.is_of_kubernetes_service());
        let machines = Arc::new(machines);
        *listed = Some(Listed { begun, care, machines: Arc::clone(&machines) });
        Ok(machines)
    }
}
