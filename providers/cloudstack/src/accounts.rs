//! Several accounts, perhaps of several clouds, as one provider: each NodeClass is served with the keys it names, or with those
//! Karpenter was given.
//!
//! Every pair of keys has a [`CloudStackProvider`] of its own, with its own view of what there is, its own limits and its own
//! rounds, so that trouble with one holds up no other. What belongs to a NodeClaim is asked for with the keys its machine was
//! made with, and with no others: an account that does not know a machine says nothing about one of another. Where keys cannot be
//! used, what they were used for counts as still there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use karpenter_api::label_rules::LabelRules;
use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloudprovider::error::ProviderError;
use karpenter_cloudprovider::provider::{
    CloudProvider, DisruptionHold, Launch, LaunchHandle, NodeClassKind, ProviderFuture,
};
use karpenter_cloudprovider::repair::RepairPolicy;
use karpenter_engine::Provider as SchedulingRules;
use karpenter_engine::instance_type::InstanceType;
use karpenter_runtime::environment::Environment;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::client::error::{ApiError, ErrorKind};
use crate::client::request::Scope;
use crate::client::throttle::Rate;
use crate::credentials::{KeyKeeper, NamedKeys, Roads, no_session};
use crate::description::as_known;
use crate::naming::machine_id;
use crate::nodeclass::{CloudStackNodeClass, CredentialsRef};
use crate::resolved::resolve;
use crate::shared::{CollectOrphans, Objects, ProviderOptions, Whose, launched_in, made_with};
use crate::voice::Voice;
use crate::{CloudStackProvider, affinity, stray_disks};

/// How often it is looked for accounts that are new or not used any more.
const INTERVAL: Duration = Duration::from_secs(60);

/// How an account is reached whose keys are in a Secret.
pub(crate) struct Reach {
    pub(crate) roads: Roads,
    pub(crate) rate: Rate,
    pub(crate) options: ProviderOptions,
    pub(crate) cluster: kube::Client,
    pub(crate) voice: Voice,
    pub(crate) environment: Environment,
}

/// An account whose keys are in a Secret that NodeClasses name.
struct Account {
    provider: Arc<CloudStackProvider>,
    keys: Arc<NamedKeys>,
    stop: CancellationToken,
    started: bool,
}

type Watcher = Arc<dyn Fn() + Send + Sync>;

/// See the module.
pub(crate) struct Accounts {
    pub(crate) own: Arc<CloudStackProvider>,
    objects: Arc<dyn Objects>,
    reach: Reach,
    others: Mutex<BTreeMap<CredentialsRef, Account>>,
    /// An account was met that nobody looks after yet.
    met: Notify,
    /// Told when what is to be said about any keys changes.
    watcher: Mutex<Option<Watcher>>,
}

impl Accounts {
    pub(crate) fn new(own: Arc<CloudStackProvider>, objects: Arc<dyn Objects>, reach: Reach) -> Self {
        Self { own, objects, reach, others: Mutex::default(), met: Notify::new(), watcher: Mutex::default() }
    }

    fn others(&self) -> MutexGuard<'_, BTreeMap<CredentialsRef, Account>> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls this whenever what is to be said about any keys changes.
    pub(crate) fn watch_keys(&self, watcher: impl Fn() + Send + Sync + 'static) {
        let watcher: Watcher = Arc::new(watcher);
        let told = Arc::clone(&watcher);
        self.own.shared.client.watch_keys(move || told());
        *self.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(watcher);
    }

    /// Who serves a NodeClass.
    pub(crate) fn of_class(&self, class: &CloudStackNodeClass) -> Arc<CloudStackProvider> {
        self.of(&class.credentials().cloned())
    }

    /// What is known to lead nowhere in a NodeClass, in words. CloudStack is not asked, and no account is met for it: whoever
    /// knows nothing has no doubts.
    pub(crate) async fn doubts(&self, class: &CloudStackNodeClass) -> Vec<String> {
        let known = match class.credentials() {
            None => Some(Arc::clone(&self.own)),
            Some(reference) => self.others().get(reference).map(|account| Arc::clone(&account.provider)),
        };
        let Some(provider) = known else { return Vec::new() };
        let shared = &provider.shared;
        let Ok(resolved) = resolve(class, &shared.scope(), &shared.catalogue.remembered()).await else {
            return Vec::new();
        };
        let left_out = resolved.left_out();
        resolved.problems.into_iter().map(|problem| problem.message).chain(left_out).collect()
    }

    fn of(&self, whose: &Whose) -> Arc<CloudStackProvider> {
        let Some(reference) = whose else { return Arc::clone(&self.own) };
        let mut others = self.others();
        if let Some(account) = others.get(reference) {
            return Arc::clone(&account.provider);
        }
        let account = self.meet(reference);
        let provider = Arc::clone(&account.provider);
        others.insert(reference.clone(), account);
        self.met.notify_one();
        provider
    }

    fn meet(&self, reference: &CredentialsRef) -> Account {
        let reach = &self.reach;
        let nothing = no_session(format!("Secret {reference} has not been read yet"));
        // Two accounts of one server must never choose the same id for a job.
        let environment = Environment {
            entropy: reach.environment.entropy.child(&format!("cloudstack account {reference}")),
            ..reach.environment.clone()
        };
        let client = Client::new(nothing, reach.rate, &environment);
        let watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(watcher) = watcher {
            client.watch_keys(move || watcher());
        }
        // The project or account Karpenter was told of is one that its own keys see.
        let options = ProviderOptions { scope: Scope::Own, ..reach.options.clone() };
        let provider = CloudStackProvider::with_keys_of(
            Some(reference.clone()),
            client.clone(),
            options,
            Arc::clone(&self.objects),
            reach.voice.clone(),
            &environment,
        );
        let keys = NamedKeys {
            reference: reference.clone(),
            cluster: reach.cluster.clone(),
            keeper: KeyKeeper::new(&reach.roads, client),
        };
        Account {
            provider: Arc::new(provider),
            keys: Arc::new(keys),
            stop: CancellationToken::new(),
            started: false,
        }
    }

    /// Every account that NodeClasses or NodeClaims need, or that is still looked after.
    ///
    /// # Errors
    ///
    /// While NodeClasses or NodeClaims are not known: what is in an account nobody thought of would look gone.
    pub(crate) fn in_use(&self) -> Result<Vec<Arc<CloudStackProvider>>, ApiError> {
        let unknown = |what: &str| {
            ApiError::new("listVirtualMachines", ErrorKind::NotSent, format!("the {what} are not known yet"))
        };
        let classes = self.objects.node_classes().ok_or_else(|| unknown("CloudStackNodeClasses"))?;
        let claims = self.objects.node_claims().ok_or_else(|| unknown("NodeClaims"))?;
        let of_classes = classes.iter().map(|class| class.credentials().cloned());
        // Whose machine it is nobody can say any more may be in any account.
        let of_claims = claims.iter().filter(|claim| claim.spec.node_class_ref.group == crate::GROUP);
        let of_claims = of_claims.map(|claim| made_with(claim, &*self.objects).unwrap_or_default());
        let mut own_is_used = !self.own.shared.client.session().is_nobodys();
        for whose in of_classes.chain(of_claims) {
            own_is_used |= whose.is_none();
            self.of(&whose);
        }
        let own = own_is_used.then(|| Arc::clone(&self.own));
        Ok(own.into_iter().chain(self.others().values().map(|other| Arc::clone(&other.provider))).collect())
    }

    /// Who may have the machine of a NodeClaim: one, unless nobody can say any more who made it.
    fn of_claim(&self, claim: &NodeClaim) -> Result<Vec<Arc<CloudStackProvider>>, ProviderError> {
        match made_with(claim, &*self.objects) {
            Some(whose) => Ok(vec![self.of(&whose)]),
            None => self.in_use().map_err(ProviderError::other),
        }
    }

    /// Asks one after the other: the first that knows decides, and only if all say that there is nothing, there is nothing.
    async fn ask<'a, T, F>(
        providers: &'a [Arc<CloudStackProvider>],
        what: &str,
        question: F,
    ) -> Result<T, ProviderError>
    where
        F: Fn(&'a CloudStackProvider) -> ProviderFuture<'a, T>,
    {
        let mut unknown = None;
        for provider in providers {
            match question(provider).await {
                Err(error) if error.is_not_found() => {}
                Err(error) => unknown = Some(error),
                answer => return answer,
            }
        }
        let nothing = || ProviderError::not_found(format!("no account in use has a machine of {what}"));
        Err(unknown.unwrap_or_else(nothing))
    }

    async fn list_all(&self) -> Result<Vec<NodeClaim>, ProviderError> {
        let mut listed: BTreeMap<String, NodeClaim> = BTreeMap::new();
        let (mut answered, mut failure) = (false, None);
        let providers = self.in_use().map_err(ProviderError::other)?;
        for provider in &providers {
            match provider.list().await {
                Ok(claims) => {
                    answered = true;
                    listed.extend(claims.into_iter().map(|claim| (provider_id(&claim).to_owned(), claim)));
                }
                Err(error) => {
                    // Not knowing what is there is no reason to take it for gone, nor to look away from all the others.
                    let shared = &provider.shared;
                    tracing::warn!(%error, credentials = shared.whose_label, "machines cannot be listed");
                    let claims = shared.objects.node_claims().unwrap_or_default();
                    let ours = claims.iter().filter(|claim| shared.is_ours(claim));
                    for claim in ours.filter(|claim| machine_id(provider_id(claim)).is_some()) {
                        let id = provider_id(claim).to_owned();
                        listed.entry(id).or_insert_with(|| as_known(claim));
                    }
                    failure = Some(error);
                }
            }
        }
        match failure {
            Some(error) if !answered => Err(error),
            _ => Ok(listed.into_values().collect()),
        }
    }

    async fn find(&self, provider_id: &str) -> Result<NodeClaim, ProviderError> {
        let claims = self.objects.node_claims().unwrap_or_default();
        let id = machine_id(provider_id);
        let carries = |claim: &&Arc<NodeClaim>| id.is_some() && machine_id(self::provider_id(claim)) == id;
        let providers = match claims.iter().find(carries) {
            Some(claim) => self.of_claim(claim)?,
            None => self.in_use().map_err(ProviderError::other)?,
        };
        Self::ask(&providers, provider_id, |provider| provider.get(provider_id)).await
    }

    /// Looks after accounts as they come into use, until stopped. Those of Karpenter's own keys are looked after elsewhere.
    pub(crate) async fn look_after(self: Arc<Self>, stop: CancellationToken) {
        let mut running: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
        loop {
            // Whether they are known is found out by whoever asks.
            let _ = self.in_use();
            self.retire();
            running.extend(self.begin(&stop));
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(()) = running.next() => {}
                () = self.met.notified() => {}
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
        while running.next().await.is_some() {}
    }

    /// What runs for accounts nobody looks after yet.
    fn begin(&self, stop: &CancellationToken) -> Vec<BoxFuture<'static, ()>> {
        let mut begun = Vec::new();
        for account in self.others().values_mut().filter(|account| !account.started) {
            account.started = true;
            account.stop = stop.child_token();
            let (machines, launches) = (Arc::clone(&account.provider), Arc::clone(&account.provider));
            let stops = [account.stop.clone(), account.stop.clone(), account.stop.clone()];
            let [first, second, third] = stops;
            begun.push(Arc::clone(&account.keys).run(first).boxed());
            begun.push(async move { machines.look_after(second).await }.boxed());
            begun.push(async move { launches.watch_launches(third).await }.boxed());
        }
        begun
    }

    /// Lets accounts go that nothing names any more and in which nothing of this cluster is left, or which nobody can get into.
    fn retire(&self) {
        let (Some(classes), Some(claims)) = (self.objects.node_classes(), self.objects.node_claims()) else {
            return;
        };
        self.others().retain(|reference, account| {
            let shared = &account.provider.shared;
            let named = classes.iter().any(|class| class.credentials() == Some(reference))
                || claims.iter().any(|claim| {
                    made_with(claim, &*self.objects).is_some_and(|whose| whose.as_ref() == Some(reference))
                });
            let may_not = |command| shared.denied.holds(command, &shared.scope(), "");
            // What nobody is to look for, or may not see or remove, is not waited for.
            let no_disks = shared.no_disks.load(Relaxed)
                || shared.options.collect_orphans == CollectOrphans::Never
                || ["listVolumes", stray_disks::DELETE].into_iter().any(may_not);
            let no_groups = shared.no_groups.load(Relaxed)
                || ["listAffinityGroups", affinity::DELETE].into_iter().any(may_not);
            let empty = shared.has_no_machines.load(Relaxed)
                && no_disks
                && no_groups
                && !shared.lost.may_come_anywhere();
            let client = &shared.client;
            let is_beyond_reach =
                client.is_refused() && (client.has_lost_its_secret() || !client.was_ever_let_in());
            let empty = empty || client.session().has_no_keys() || is_beyond_reach;
            let stays = named || !empty || !account.started;
            if !stays {
                tracing::info!(credentials = %reference, "an account is not used any more");
                account.stop.cancel();
            }
            stays
        });
    }

    fn class_of_claim(&self, claim: &NodeClaim) -> Arc<CloudStackProvider> {
        let class = self.objects.node_class(&claim.spec.node_class_ref.name);
        class.map_or_else(|| Arc::clone(&self.own), |class| self.of_class(&class))
    }
}

fn provider_id(claim: &NodeClaim) -> &str {
    claim.status.as_ref().and_then(|status| status.provider_id.as_deref()).unwrap_or_default()
}

impl CloudProvider for Accounts {
    fn name(&self) -> &str {
        self.own.name()
    }

    fn supported_node_classes(&self) -> &[NodeClassKind] {
        self.own.supported_node_classes()
    }

    fn create<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, Launch> {
        // Who began it goes on with it, whatever its NodeClass says by now.
        let began = launched_in(claim).and_then(|_| made_with(claim, &*self.objects));
        let provider = began.map_or_else(|| self.class_of_claim(claim), |whose| self.of(&whose));
        async move { provider.create(claim).await }.boxed()
    }

    fn delete<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, ()> {
        async move {
            let providers = self.of_claim(claim)?;
            Self::ask(&providers, &kube::ResourceExt::name_any(claim), |provider| provider.delete(claim))
                .await
        }
        .boxed()
    }

    fn get<'a>(&'a self, provider_id: &'a str) -> ProviderFuture<'a, NodeClaim> {
        self.find(provider_id).boxed()
    }

    fn list(&self) -> ProviderFuture<'_, Vec<NodeClaim>> {
        self.list_all().boxed()
    }

    fn get_instance_types<'a>(&'a self, pool: &'a NodePool) -> ProviderFuture<'a, Arc<[InstanceType]>> {
        let class = self.objects.node_class(&pool.spec.template.spec.node_class_ref.name);
        let provider = class.map_or_else(|| Arc::clone(&self.own), |class| self.of_class(&class));
        async move { provider.get_instance_types(pool).await }.boxed()
    }

    fn is_drifted<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, Option<String>> {
        let provider = made_with(claim, &*self.objects).map(|whose| self.of(&whose));
        async move {
            match provider {
                Some(provider) => provider.is_drifted(claim).await,
                // Neither its NodeClass nor its launch says anything of it.
                None => Ok(None),
            }
        }
        .boxed()
    }

    fn reboot<'a>(&'a self, claim: &'a NodeClaim, operation_id: &'a str) -> ProviderFuture<'a, ()> {
        async move {
            let providers = self.of_claim(claim)?;
            let what = kube::ResourceExt::name_any(claim);
            Self::ask(&providers, &what, |provider| provider.reboot(claim, operation_id)).await
        }
        .boxed()
    }

    fn repair_policies(&self) -> Vec<RepairPolicy> {
        self.own.repair_policies()
    }

    fn launch_timeout(&self) -> Duration {
        self.own.launch_timeout()
    }

    fn launch_handle(&self, claim: &NodeClaim) -> Option<LaunchHandle> {
        self.own.launch_handle(claim)
    }

    fn disruption_hold(&self, claim: &NodeClaim) -> Option<DisruptionHold> {
        self.of(&made_with(claim, &*self.objects)?).disruption_hold(claim)
    }

    fn scheduling_rules(&self) -> SchedulingRules {
        self.own.scheduling_rules()
    }

    fn reserved_capacity_labels(&self) -> BTreeSet<String> {
        self.own.reserved_capacity_labels()
    }

    fn label_rules(&self, core: LabelRules) -> LabelRules {
        self.own.label_rules(core)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use karpenter_runtime::environment::Environment;
    use serde_json::json;

    use super::*;
    use crate::client::Session;
    use crate::client::http::HttpError;
    use crate::client::signature::Credentials;
    use crate::client::transport::{Transport, TransportError};

    /// A cluster in which nobody names anything.
    struct Nobody;

    impl Objects for Nobody {
        fn node_class(&self, _: &str) -> Option<Arc<CloudStackNodeClass>> {
            None
        }

        fn node_classes(&self) -> Option<Vec<Arc<CloudStackNodeClass>>> {
            Some(Vec::new())
        }

        fn node_claims(&self) -> Option<Vec<Arc<NodeClaim>>> {
            Some(Vec::new())
        }
    }

    /// Accounts of that cluster.
    fn nobodys() -> Accounts {
        let environment = Environment::seeded("2026-01-01T00:00:00Z".parse().expect("a time"), 1);
        let answer = |_: http::Request<kube::client::Body>| async {
            Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::empty()))
        };
        let roads: Roads =
            Arc::new(|_, _| -> Result<Arc<dyn Transport>, HttpError> { unreachable!("no Secret is read") });
        let reach = Reach {
            roads,
            rate: Rate::default(),
            options: ProviderOptions::new("test"),
            cluster: kube::Client::new(tower::service_fn(answer), "default"),
            voice: Voice::default(),
            environment: environment.clone(),
        };
        let objects: Arc<dyn Objects> = Arc::new(Nobody);
        let client = Client::new(no_session("none yet".to_owned()), Rate::default(), &environment);
        let options = ProviderOptions::new("test");
        let own = CloudStackProvider::new(client, options, Arc::clone(&objects), &environment);
        Accounts::new(Arc::new(own), objects, reach)
    }

    /// An account that is looked after.
    fn met(accounts: &Accounts) -> (CredentialsRef, Arc<crate::shared::Shared>) {
        let reference = CredentialsRef { namespace: "team".to_owned(), name: "keys".to_owned() };
        let shared = Arc::clone(&accounts.of(&Some(reference.clone())).shared);
        accounts.others().get_mut(&reference).expect("met").started = true;
        (reference, shared)
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_is_not_let_go_while_machines_disks_or_groups_may_be_left_in_it() {
        let accounts = nobodys();
        let (reference, shared) = met(&accounts);
        for may_be_left in [&shared.has_no_machines, &shared.no_disks, &shared.no_groups] {
            for none_left in [&shared.has_no_machines, &shared.no_disks, &shared.no_groups] {
                none_left.store(!std::ptr::eq(none_left, may_be_left), Relaxed);
            }
            accounts.retire();
            assert!(accounts.others().contains_key(&reference));
        }
        shared.no_groups.store(true, Relaxed);
        accounts.retire();
        assert!(!accounts.others().contains_key(&reference), "nothing is left");
    }

    /// A server that has nothing and refuses these commands.
    struct Refusing(u16, [&'static str; 2]);

    impl Transport for Refusing {
        fn send(
            &self,
            request: http::Request<Bytes>,
        ) -> BoxFuture<'_, Result<http::Response<Bytes>, TransportError>> {
            let query = request.uri().query().unwrap_or_default();
            let command = query.split('&').find_map(|part| part.strip_prefix("command=")).unwrap_or_default();
            let (code, body) = match self.1.contains(&command) {
                true => (
                    self.0,
                    json!({"errorcode": self.0, "errortext": format!("The API [{command}] is not available")}),
                ),
                false => (200, json!({})),
            };
            let text = json!({format!("{}response", command.to_lowercase()): body}).to_string();
            let answer = http::Response::builder().status(code).body(Bytes::from(text)).expect("an answer");
            std::future::ready(Ok(answer)).boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_is_let_go_though_its_role_may_not_list_disks_and_groups() {
        for (code, goes) in [(432, true), (530, false)] {
            let accounts = nobodys();
            let (reference, shared) = met(&accounts);
            let provider = accounts.of(&Some(reference.clone()));
            let refusing = Refusing(code, ["listVolumes", "listAffinityGroups"]);
            shared.client.move_to(Session {
                endpoint: "https://cloud/client/api".to_owned(),
                credentials: Credentials::new("key", "secret"),
                transport: Arc::new(refusing),
                project: None,
            });
            provider.round().await.expect("a round");
            accounts.retire();
            assert_eq!(!accounts.others().contains_key(&reference), goes, "{code}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_is_let_go_though_its_role_may_not_remove_disks_and_groups() {
        for (code, goes) in [(432, true), (531, false)] {
            let accounts = nobodys();
            let (reference, shared) = met(&accounts);
            shared.has_no_machines.store(true, Relaxed);
            for command in [stray_disks::DELETE, affinity::DELETE] {
                let refusal = ApiError::answered(command, code, &json!({"errortext": "not for you"}));
                // One thing that is another's says nothing of the others.
                assert!(shared.denied.note(&refusal, &Scope::Own, "1"));
            }
            accounts.retire();
            assert_eq!(!accounts.others().contains_key(&reference), goes, "{code}");
        }
    }
}
