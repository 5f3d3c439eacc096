//! What CloudStack has on offer, remembered for a while per kind.
//!
//! Whoever asks while an answer is under way waits for it instead of asking too. When the server cannot say, what was known is
//! used a little longer; when that is too old the error is passed on: not knowing is never taken for there being nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use karpenter_runtime::metrics::{CounterVec, Registry};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::client::error::{ApiError, ErrorKind};
use crate::client::host::Host;
use crate::client::model::{
    Budget, Capabilities, DiskOffering, Named, Network, SecurityGroup, ServiceOffering, Tariff, Template,
    Zone,
};
use crate::client::request::Scope;
use crate::client::throttle::Lane;
use crate::client::{Accounts, Client, only, requests};

/// How long each kind is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// Zones.
    pub zones: Duration,
    /// Service and disk offerings.
    pub offerings: Duration,
    /// Templates.
    pub templates: Duration,
    /// Networks and security groups.
    pub networks: Duration,
    /// What the server is.
    pub capabilities: Duration,
    /// What is left of limits.
    pub budgets: Duration,
    /// How much older than that anything may be when the server cannot say better.
    pub stale: Duration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        let minutes = |n: u64| Duration::from_secs(60 * n);
        Self {
            zones: minutes(60),
            offerings: minutes(5),
            templates: minutes(5),
            networks: minutes(1),
            capabilities: minutes(10),
            budgets: minutes(1),
            stale: minutes(30),
        }
    }
}

/// What is remembered for no longer than this is asked for often enough not to come all at once.
const SHORT: Duration = Duration::from_secs(60);
/// What did not do, and is older than this, is asked for again before anybody is told that it is missing.
const DOUBTFUL: Duration = Duration::from_secs(60);
/// How long it is remembered how full hosts are.
const HOSTS: Duration = Duration::from_secs(15);
/// The type of account that sees everything.
const ROOT_ADMINISTRATOR: i64 = 1;

type Key = (String, Scope);

/// One kind of thing, by zone and scope.
struct Shelf<T> {
    name: &'static str,
    lifetime: Duration,
    /// What was asked for before is asked for again, and used only if the server cannot say better.
    doubted_before: std::sync::Mutex<Option<Instant>>,
    slots: std::sync::Mutex<BTreeMap<Key, Arc<Slot<T>>>>,
}

/// What is known under one key, and since when. The lock is held while the server is asked.
type Slot<T> = Mutex<Option<(Instant, Arc<Vec<T>>)>>;

impl<T> Shelf<T> {
    fn new(name: &'static str, lifetime: Duration) -> Self {
        Self {
            name,
            lifetime,
            doubted_before: std::sync::Mutex::default(),
            slots: std::sync::Mutex::default(),
        }
    }

    fn slot(&self, key: Key) -> Arc<Slot<T>> {
        let mut slots = self.slots.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Arc::clone(slots.entry(key).or_default())
    }

    /// How long what is under a key is remembered: up to a tenth less, so that not everything is asked for at once. What is
    /// forgotten soon anyway is not, for that would only be more calls.
    fn lifetime_of(&self, (zone, scope): &Key) -> Duration {
        if self.lifetime <= SHORT {
            return self.lifetime;
        }
        let key = format!("{}/{zone}/{}", self.name, scope.write());
        let spread = karpenter_api::structure_hash::text(&key) % 100;
        self.lifetime - self.lifetime.mul_f64(0.001 * spread as f64)
    }

    /// What is older than this is to be asked for again.
    fn doubt(&self, age: Duration) {
        let mut before = self.doubted_before.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *before = Instant::now().checked_sub(age).max(*before);
    }

    fn is_doubted(&self, since: Instant) -> bool {
        let before = self.doubted_before.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        before.is_some_and(|before| since <= before)
    }

    fn clear(&self) {
        self.slots.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
    }

    /// What is remembered and not too old, without waiting for anybody.
    fn known(&self, key: &Key, stale: Duration) -> Option<(Instant, Arc<Vec<T>>)> {
        let slots = self.slots.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let slot = Arc::clone(slots.get(key)?);
        drop(slots);
        let known = slot.try_lock().ok()?;
        known.clone().filter(|(since, _)| since.elapsed() < self.lifetime + stale)
    }

    /// What there is, and when it was asked for.
    async fn get_since<F>(
        &self,
        key: Key,
        stale: Duration,
        asked: &CounterVec,
        ask: F,
    ) -> Result<(Instant, Arc<Vec<T>>), ApiError>
    where
        F: Future<Output = Result<Vec<T>, ApiError>>,
    {
        let lifetime = self.lifetime_of(&key);
        let slot = self.slot(key);
        let mut known = slot.lock().await;
        if let Some((since, value)) = &*known
            && since.elapsed() < lifetime
            && !self.is_doubted(*since)
        {
            asked.inc(&[self.name, "hit"]);
            return Ok((*since, Arc::clone(value)));
        }
        let begun = Instant::now();
        match ask.await {
            Ok(fresh) => {
                asked.inc(&[self.name, "miss"]);
                let fresh = Arc::new(fresh);
                *known = Some((begun, Arc::clone(&fresh)));
                Ok((begun, fresh))
            }
            Err(error) => match &*known {
                Some((since, value)) if error.read_again() && since.elapsed() < self.lifetime + stale => {
                    asked.inc(&[self.name, "stale"]);
                    tracing::warn!(kind = self.name, %error, "using what CloudStack said before");
                    Ok((*since, Arc::clone(value)))
                }
                _ => Err(error),
            },
        }
    }
}

/// What there is. Clones share what they remember.
#[derive(Clone)]
pub(crate) struct Catalogue {
    client: Client,
    /// Whether the server is asked for what is not remembered.
    asks: bool,
    stale: Duration,
    asked: CounterVec,
    shelves: Arc<Shelves>,
}

struct Shelves {
    zones: Shelf<Zone>,
    gpus: Shelf<Zone>,
    offerings: Shelf<ServiceOffering>,
    disk_offerings: Shelf<DiskOffering>,
    networks: Shelf<Network>,
    templates: Shelf<Template>,
    security_groups: Shelf<SecurityGroup>,
    affinity_groups: Shelf<Named>,
    hosts: Shelf<Host>,
    owners: Shelf<Budget>,
    tariffs: Shelf<Tariff>,
    key_pairs: Shelf<Named>,
    user_data: Shelf<Named>,
    capabilities: Shelf<Capabilities>,
    budgets: Shelf<Budget>,
}

impl Catalogue {
    pub(crate) fn new(client: Client, lifetimes: &Lifetimes, registry: &Registry) -> Self {
        let shelves = Shelves {
            zones: Shelf::new("zones", lifetimes.zones),
            gpus: Shelf::new("gpus", lifetimes.budgets),
            offerings: Shelf::new("service-offerings", lifetimes.offerings),
            disk_offerings: Shelf::new("disk-offerings", lifetimes.offerings),
            networks: Shelf::new("networks", lifetimes.networks),
            templates: Shelf::new("templates", lifetimes.templates),
            security_groups: Shelf::new("security-groups", lifetimes.networks),
            affinity_groups: Shelf::new("affinity-groups", lifetimes.networks),
            hosts: Shelf::new("hosts", HOSTS),
            owners: Shelf::new("owners", lifetimes.capabilities),
            tariffs: Shelf::new("tariffs", lifetimes.zones),
            key_pairs: Shelf::new("key-pairs", lifetimes.networks),
            user_data: Shelf::new("user-data", lifetimes.networks),
            capabilities: Shelf::new("capabilities", lifetimes.capabilities),
            budgets: Shelf::new("budgets", lifetimes.budgets),
        };
        Self {
            client,
            asks: true,
            stale: lifetimes.stale,
            asked: registry.counter(
                "karpenter_cloudstack_cache_requests_total",
                "Number of times something was looked up, by kind and by whether it was remembered.",
                &["cache", "result"],
            ),
            shelves: Arc::new(shelves),
        }
    }

    /// The same without asking the server for anything: what is not remembered is not known.
    pub(crate) fn remembered(&self) -> Self {
        Self { asks: false, ..self.clone() }
    }

    /// What is on a shelf, and when it was asked for.
    async fn look<T, F>(
        &self,
        shelf: &Shelf<T>,
        key: Key,
        stale: Duration,
        ask: F,
    ) -> Result<(Instant, Arc<Vec<T>>), ApiError>
    where
        F: Future<Output = Result<Vec<T>, ApiError>>,
    {
        if self.asks {
            return shelf.get_since(key, stale, &self.asked, ask).await;
        }
        shelf.known(&key, stale).ok_or_else(|| {
            let text = format!("nothing is remembered of {}", shelf.name);
            ApiError::new("", ErrorKind::NotSent, text)
        })
    }

    async fn get<T, F>(&self, shelf: &Shelf<T>, key: Key, ask: F) -> Result<Arc<Vec<T>>, ApiError>
    where
        F: Future<Output = Result<Vec<T>, ApiError>>,
    {
        self.look(shelf, key, self.stale, ask).await.map(|(_, value)| value)
    }

    pub(crate) async fn zones(&self) -> Result<Arc<Vec<Zone>>, ApiError> {
        let request = requests::list_zones();
        let ask = self.client.list(&request, Lane::Refresh);
        self.get(&self.shelves.zones, (String::new(), Scope::Own), ask).await
    }

    pub(crate) async fn offerings(
        &self,
        zone: &str,
        scope: &Scope,
    ) -> Result<Arc<Vec<ServiceOffering>>, ApiError> {
        let request = requests::list_service_offerings(zone, scope);
        let ask = async {
            let offerings: Vec<ServiceOffering> = self.client.list(&request, Lane::Refresh).await?;
            Ok(offerings.into_iter().map(ServiceOffering::with_gpu_of_details).collect())
        };
        self.get(&self.shelves.offerings, (zone.to_owned(), scope.clone()), ask).await
    }

    pub(crate) async fn disk_offerings(
        &self,
        zone: &str,
        scope: &Scope,
    ) -> Result<Arc<Vec<DiskOffering>>, ApiError> {
        let request = requests::list_disk_offerings(zone, scope);
        let ask = self.client.list(&request, Lane::Refresh);
        self.get(&self.shelves.disk_offerings, (zone.to_owned(), scope.clone()), ask).await
    }

    pub(crate) async fn networks(&self, zone: &str, scope: &Scope) -> Result<Arc<Vec<Network>>, ApiError> {
        let request = requests::list_networks(zone, scope);
        let ask = self.client.list(&request, Lane::Refresh);
        self.get(&self.shelves.networks, (zone.to_owned(), scope.clone()), ask).await
    }

    pub(crate) async fn templates(&self, zone: &str, scope: &Scope) -> Result<Arc<Vec<Template>>, ApiError> {
        let request = requests::list_templates(zone, scope);
        let ask = self.client.list(&request, Lane::Refresh);
        self.get(&self.shelves.templates, (zone.to_owned(), scope.clone()), ask).await
    }

    pub(crate) async fn security_groups(&self, scope: &Scope) -> Result<Arc<Vec<SecurityGroup>>, ApiError> {
        let request = requests::list_security_groups(scope);
        let ask = self.client.list(&request, Lane::Refresh);
        self.get(&self.shelves.security_groups, (String::new(), scope.clone()), ask).await
    }

    pub(crate) async fn affinity_groups(&self, scope: &Scope) -> Result<Arc<Vec<Named>>, ApiError> {
        let request = requests::list_all_affinity_groups(scope);
        let ask = self.client.list(&request, Lane::Refresh);
        self.get(&self.shelves.affinity_groups, (String::new(), scope.clone()), ask).await
    }

    /// The hosts of a zone, if we may know: only root administrators see them, and nobody else is made to ask.
    pub(crate) async fn hosts(&self, zone: &str) -> Option<Arc<Vec<Host>>> {
        let own = (String::new(), Scope::Own);
        let request = requests::list_accounts();
        let ask = self.client.list(&request, Lane::Refresh);
        let owners = self.get(&self.shelves.owners, own, ask).await.ok()?;
        if self.ours_of(&owners).await.ok()?.accounttype != Some(ROOT_ADMINISTRATOR) {
            return None;
        }
        let request = requests::list_hosts(zone);
        let ask = self.client.list(&request, Lane::Refresh);
        // What is older than that says nothing about room.
        let key = (zone.to_owned(), Scope::Own);
        self.look(&self.shelves.hosts, key, Duration::ZERO, ask).await.ok().map(|(_, hosts)| hosts)
    }

    /// How many GPUs are free, by zone, as far as the server says. Whoever cannot find out leaves it open.
    pub(crate) async fn free_gpus(&self) -> BTreeMap<String, i64> {
        let request = requests::list_zones();
        let ask = self.client.list(&request, Lane::Refresh);
        // What is older than that says nothing about room.
        let key = (String::new(), Scope::Own);
        let Ok((_, zones)) = self.look(&self.shelves.gpus, key, Duration::ZERO, ask).await else {
            return BTreeMap::new();
        };
        zones.iter().filter_map(|zone| Some((zone.id.clone(), zone.free_gpus()?))).collect()
    }

    /// The tariffs of the quota plug-in; none where there is no plug-in, which looks like wrong keys.
    ///
    /// # Errors
    ///
    /// If that cannot be found out now: without tariffs prices would be others.
    pub(crate) async fn tariffs(&self) -> Result<Arc<Vec<Tariff>>, ApiError> {
        let ask = async {
            match self.client.call(&requests::quota_tariff_list()).await {
                Ok(answer) => {
                    let rows = answer["quotatariff"].as_array().cloned().unwrap_or_default();
                    // One that nobody can read is not the end of the others.
                    Ok(rows.into_iter().filter_map(|row| serde_json::from_value(row).ok()).collect())
                }
                Err(error) if error.kind == ErrorKind::Denied => Ok(Vec::new()),
                Err(error) => Err(error),
            }
        };
        let key = (String::new(), Scope::Own);
        self.get(&self.shelves.tariffs, key, ask).await
    }

    /// The key pairs of a name: one or none.
    pub(crate) async fn key_pairs(&self, name: &str, scope: &Scope) -> Result<Arc<Vec<Named>>, ApiError> {
        let request = requests::list_ssh_key_pairs(name, scope);
        let ask = self.client.list(&request, Lane::Refresh);
        self.get(&self.shelves.key_pairs, (name.to_owned(), scope.clone()), ask).await
    }

    /// Whether there is registered user data of this id.
    pub(crate) async fn has_user_data(&self, id: &str, scope: &Scope) -> Result<bool, ApiError> {
        let request = requests::list_user_data(id, scope);
        let ask = async {
            match self.client.list(&request, Lane::Refresh).await {
                Err(error) if error.is_not_found() => Ok(Vec::new()),
                found => found,
            }
        };
        let found = self.get(&self.shelves.user_data, (id.to_owned(), scope.clone()), ask).await?;
        Ok(found.iter().any(|registered| registered.id == id))
    }

    pub(crate) async fn capabilities(&self) -> Result<Capabilities, ApiError> {
        let ask = async { Ok(vec![self.client.capabilities().await?]) };
        let known = self.get(&self.shelves.capabilities, (String::new(), Scope::Own), ask).await?;
        Ok(known.first().cloned().unwrap_or_default())
    }

    /// What is left of the limits, empty where there are none, and when that was asked for. Nothing is known where the server does not
    /// tell us: who may not see limits runs into them.
    pub(crate) async fn budget(&self, scope: &Scope) -> Result<(Instant, Option<Budget>), ApiError> {
        let request = match scope {
            Scope::Project(id) => requests::list_project(id),
            Scope::Account { account, domain_id } => requests::list_account(account, domain_id),
            Scope::Own => requests::list_accounts(),
        };
        let ask = async {
            match self.client.list(&request, Lane::Refresh).await {
                Err(error) if error.is_a_verdict() => Ok(Vec::new()),
                answer => answer,
            }
        };
        let key = (String::new(), scope.clone());
        let (since, known) = self.look(&self.shelves.budgets, key, self.stale, ask).await?;
        let left = match scope {
            Scope::Account { account, .. } => known.iter().find(|budget| budget.name == *account).cloned(),
            Scope::Own if known.is_empty() => None,
            Scope::Own => Some(self.ours_of(&known).await?),
            Scope::Project(_) => known.first().cloned(),
        };
        Ok((since, left))
    }

    /// Our own account among those the server shows; one without limits if nobody can tell which that is.
    async fn ours_of(&self, shown: &[Budget]) -> Result<Budget, ApiError> {
        if shown.len() < 2 {
            return Ok(shown.first().cloned().unwrap_or_default());
        }
        let accounts = if self.asks { self.client.account().await? } else { Accounts::default() };
        let ours = only(&accounts).and_then(|id| shown.iter().find(|account| account.id == *id));
        Ok(ours.cloned().unwrap_or_default())
    }

    /// The limits changed: somebody was refused, or something went away.
    pub(crate) fn forget_budgets(&self) {
        self.shelves.budgets.clear();
        self.shelves.hosts.clear();
        self.shelves.gpus.clear();
    }

    /// The keys are of another account.
    pub(crate) fn forget_everything(&self) {
        self.forget();
        self.forget_budgets();
        self.shelves.owners.clear();
        self.shelves.tariffs.clear();
        self.shelves.capabilities.clear();
    }

    /// A zone is missing as far as is known, perhaps no more.
    pub(crate) fn doubt_zones(&self) {
        self.shelves.zones.doubt(DOUBTFUL);
    }

    /// Something is missing as far as is known, perhaps no more.
    pub(crate) fn doubt(&self) {
        self.doubt_zones();
        self.shelves.offerings.doubt(DOUBTFUL);
        self.shelves.disk_offerings.doubt(DOUBTFUL);
        self.shelves.networks.doubt(DOUBTFUL);
        self.shelves.templates.doubt(DOUBTFUL);
        self.shelves.security_groups.doubt(DOUBTFUL);
        self.shelves.key_pairs.doubt(DOUBTFUL);
        self.shelves.user_data.doubt(DOUBTFUL);
        self.shelves.affinity_groups.doubt(DOUBTFUL);
    }

    /// A network may have no address left.
    pub(crate) fn forget_networks(&self) {
        self.shelves.networks.clear();
    }

    /// Something named by id does not exist any more.
    pub(crate) fn forget(&self) {
        self.shelves.zones.clear();
        self.shelves.offerings.clear();
        self.shelves.disk_offerings.clear();
        self.shelves.networks.clear();
        self.shelves.templates.clear();
        self.shelves.security_groups.clear();
        self.shelves.key_pairs.clear();
        self.shelves.user_data.clear();
        self.shelves.affinity_groups.clear();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::FutureExt as _;
    use futures_util::future::BoxFuture;
    use karpenter_runtime::environment::Environment;
    use karpenter_sim::cloudstack::account::Role;
    use karpenter_sim::cloudstack::{CloudStack, Lost};
    use serde_json::{Value, json};

    use super::*;
    use crate::client::Session;
    use crate::client::signature::Credentials;
    use crate::client::throttle::Rate;
    use crate::client::transport::{Transport, TransportError};
    use crate::nodeclass::CloudStackNodeClass;
    use crate::resolved::resolve;

    /// The road into the simulator.
    struct Wire(CloudStack);

    impl Transport for Wire {
        fn send(
            &self,
            request: http::Request<Bytes>,
        ) -> BoxFuture<'_, Result<http::Response<Bytes>, TransportError>> {
            let answer = self.0.handle(request);
            async move { answer.await.map_err(|lost: Lost| TransportError::NotSent(lost.to_string())) }
                .boxed()
        }
    }

    fn class(zone: &str, network: &str) -> CloudStackNodeClass {
        let spec: Value = json!({
            "zone": zone,
            "networkSelectorTerms": [{"name": network}],
            "serviceOfferingSelectorTerms": [{"name": "k8s.small"}],
            "templateSelectorTerms": [{"name": "CentOS*"}],
        });
        serde_json::from_value(json!({"metadata": {"name": "default"}, "spec": spec})).expect("a NodeClass")
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_remembered_is_not_known_and_nobody_is_asked_for_it() {
        let environment = Environment::seeded("2026-11-15T08:00:00Z".parse().expect("a time"), 1);
        let cloud = CloudStack::new(&environment);
        let account = cloud.account(Role::User).expect("an account");
        let session = Session {
            endpoint: "http://cloud/client/api".to_owned(),
            credentials: Credentials::new(account.api_key, account.secret_key),
            transport: Arc::new(Wire(cloud.clone())),
            project: None,
        };
        let client = Client::new(session, Rate::default(), &environment);
        let catalogue = Catalogue::new(client, &Lifetimes::default(), &environment.registry);
        let remembered = catalogue.remembered();
        let known =
            async |zone: &str, network: &str| resolve(&class(zone, network), &Scope::Own, &remembered).await;
        known("moon", "k8s-net").await.expect_err("nothing is known of zones");
        assert!(cloud.log().is_empty());
        resolve(&class("sim-zone-1", "k8s-net"), &Scope::Own, &catalogue).await.expect("an answer");
        let asked = cloud.log().len();
        assert!(known("sim-zone-1", "k8s-net").await.expect("known").problems.is_empty());
        let problems = known("sim-zone-1", "no-net").await.expect("known").problems;
        assert!(problems[0].message.contains("spec.networkSelectorTerms"), "{problems:?}");
        let problems = known("moon", "k8s-net").await.expect("known").problems;
        assert!(problems[0].message.contains("\"moon\""), "{problems:?}");
        // For a while after it was to be asked for again it will do; then it will not.
        tokio::time::advance(Duration::from_secs(20 * 60)).await;
        known("sim-zone-1", "k8s-net").await.expect("still known");
        tokio::time::advance(Duration::from_secs(30 * 60)).await;
        known("sim-zone-1", "k8s-net").await.expect_err("nothing is known of networks");
        assert_eq!(cloud.log().len(), asked);
    }

    #[test]
    fn not_everything_is_asked_for_in_the_same_moment_nor_later_than_was_said() {
        let minutes = Duration::from_secs(300);
        let shelf: Shelf<Zone> = Shelf::new("templates", minutes);
        let lifetimes: Vec<Duration> =
            (0..20).map(|i| shelf.lifetime_of(&(format!("zone-{i}"), Scope::Own))).collect();
        assert!(lifetimes.iter().all(|lifetime| *lifetime <= minutes && *lifetime >= minutes.mul_f64(0.9)));
        let different: std::collections::BTreeSet<_> = lifetimes.iter().collect();
        assert!(different.len() > 10, "{lifetimes:?}");
        let short: Shelf<Zone> = Shelf::new("networks", SHORT);
        assert_eq!(short.lifetime_of(&("zone-1".into(), Scope::Own)), SHORT);
    }
}
