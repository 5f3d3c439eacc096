//! What each NodePool can buy, as its provider says.
//!
//! Providers are asked anew for every decision and all at once. One that errs costs only its own NodePools this pass; one that
//! does not answer is waited for a while, then its last answer stands in, and its late answer serves the next pass. Where there
//! is no last answer nothing is decided for some minutes: the pods of a NodePool whose provider is merely slow would get nodes
//! of another.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, join_all};
use karpenter_api::NodePool;
use karpenter_cloudprovider::{CloudProvider, ProviderError, Registry};
use karpenter_engine::Snapshot;
use karpenter_engine::instance_type::InstanceType;
use karpenter_engine::labels::Text;
use karpenter_engine::node_pool::{InstanceTypes, TaintedTypes};
use karpenter_engine::taints::Taint;
use karpenter_runtime::context::{controller_name, on_behalf_of};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

/// How long a decision waits for a provider. Healthy ones answer from memory.
const PATIENCE: Duration = Duration::from_secs(10);
/// A question put longer ago than this is put again: its answer, should it have come meanwhile, is as old.
const OLDEST: Duration = Duration::from_secs(5 * 60);

/// How long nothing is decided for want of a first answer. A provider that has not answered by then may never do.
const LONGEST_WAIT: Duration = Duration::from_secs(5 * 60);

type Answer = Result<Arc<[InstanceType]>, ProviderError>;

/// Asks providers, and remembers what they said; clones share what they know.
#[derive(Clone)]
pub(crate) struct Catalogue {
    providers: Registry,
    known: Arc<Mutex<Known>>,
}

#[derive(Default)]
struct Known {
    /// Questions without an answer yet, by NodePool.
    asked: BTreeMap<String, Question>,
    /// The last good answer.
    answered: BTreeMap<String, Arc<[InstanceType]>>,
    /// NodePools that decisions wait for, or no longer do.
    awaited: BTreeMap<String, Awaited>,
}

/// A NodePool that nothing is known of because its provider takes its time.
struct Awaited {
    since: Instant,
    given_up: bool,
}

struct Question {
    /// The NodePool as it was when the question was put.
    about: (Option<String>, Option<i64>),
    put: Instant,
    answer: Shared<BoxFuture<'static, Answer>>,
}

/// What NodePools can buy at the moment.
#[derive(Clone, Default)]
pub(crate) struct Offers {
    types: BTreeMap<Text, InstanceTypes>,
    /// Taints that what they can buy has besides those they declare, where their provider has them planned for.
    taints: BTreeMap<Text, Vec<Taint>>,
    /// What has further taints, for pods that tolerate them.
    tainted: BTreeMap<Text, Vec<TaintedTypes>>,
    are_awaited: bool,
}

impl Offers {
    /// Whether a provider still has to answer for the first time: it is too early to decide anything.
    pub(crate) fn are_awaited(&self) -> bool {
        self.are_awaited
    }

    /// Whether they are about the NodePool of this name: it may have come since they were asked for, or be nobody's here.
    pub(crate) fn are_about(&self, pool: &str) -> bool {
        self.types.contains_key(pool)
    }

    /// What the NodePool of this name can buy.
    pub(crate) fn of(&self, pool: &str) -> InstanceTypes {
        self.types
            .get(pool)
            .cloned()
            .unwrap_or_else(|| InstanceTypes::Unresolved { reason: "its provider was not asked".into() })
    }

    /// The list itself, empty when it is not known.
    #[cfg(test)]
    pub(crate) fn list(&self, pool: &str) -> &[InstanceType] {
        self.types.get(pool).map(InstanceTypes::list).unwrap_or_default()
    }

    /// Adds the taints that NodePools inherit to what is decided from, for all of their nodes or some: pods have to tolerate them, and
    /// NodeClaims get them.
    pub(crate) fn taint(&self, snapshot: &mut Snapshot) {
        for pool in &mut snapshot.node_pools {
            pool.tainted = self.tainted.get(&pool.name).cloned().unwrap_or_default();
            for taint in self.taints.get(&pool.name).into_iter().flatten() {
                let declared = pool.taints.iter().chain(&pool.startup_taints);
                if !declared.clone().any(|known| known.matches(&taint.key, &taint.effect)) {
                    pool.taints.push(taint.clone());
                }
            }
        }
    }
}

impl Catalogue {
    pub(crate) fn new(providers: &Registry) -> Self {
        Self { providers: providers.clone(), known: Arc::default() }
    }

    /// What these NodePools can buy, or why that is not known.
    pub(crate) async fn offers(&self, pools: &[Arc<NodePool>]) -> Offers {
        let name = |pool: &NodePool| pool.metadata.name.clone().unwrap_or_default();
        let answers = join_all(pools.iter().map(|pool| self.ask(pool))).await;
        let mut are_awaited = false;
        let mut types = BTreeMap::new();
        for (pool, answer) in pools.iter().zip(answers) {
            are_awaited |= self.awaits(&name(pool), &answer);
            let known = match answer {
                Ok(types) => InstanceTypes::Resolved(types),
                Err(error) => InstanceTypes::Unresolved { reason: error.to_string().into() },
            };
            types.insert(name(pool).into(), known);
        }
        let inherited = pools.iter().filter_map(|pool| {
            let taints = self.providers.for_pool(pool).ok()?.inherited_taints(pool);
            (!taints.is_empty()).then(|| (name(pool).into(), taints))
        });
        let tainted = pools.iter().filter_map(|pool| {
            let tainted = self.providers.for_pool(pool).ok()?.tainted_types(pool);
            (!tainted.is_empty()).then(|| (name(pool).into(), tainted))
        });
        Offers { types, taints: inherited.collect(), tainted: tainted.collect(), are_awaited }
    }

    /// Whether decisions wait for this NodePool, which this was just said of.
    fn awaits(&self, pool: &str, answer: &Answer) -> bool {
        let mut known = self.known();
        let Err(error @ ProviderError::Timeout { .. }) = answer else {
            known.awaited.remove(pool);
            return false;
        };
        let Some(awaited) = known.awaited.get_mut(pool) else {
            tracing::info!(nodepool = pool, %error, "waiting for instance types before deciding anything");
            known.awaited.insert(pool.to_owned(), Awaited { since: Instant::now(), given_up: false });
            return true;
        };
        if !awaited.given_up && awaited.since.elapsed() >= LONGEST_WAIT {
            awaited.given_up = true;
            tracing::error!(nodepool = pool, %error, "deciding without the nodepool until its instance types are known");
        }
        !awaited.given_up
    }

    /// A NodePool is gone: what was known of it need not be remembered.
    pub(crate) fn forget(&self, pool: &str) {
        let mut known = self.known();
        known.answered.remove(pool);
        known.asked.remove(pool);
        known.awaited.remove(pool);
    }

    async fn ask(&self, pool: &Arc<NodePool>) -> Answer {
        let provider = self.providers.for_pool(pool).map_err(ProviderError::other)?;
        let name = pool.metadata.name.clone().unwrap_or_default();
        let question = self.question(&name, pool, provider);
        let ended = timeout(PATIENCE, question).await;
        let mut known = self.known();
        if ended.is_ok() {
            known.asked.remove(&name);
        }
        let answer = ended.unwrap_or_else(|_| {
            let provider = provider.name().to_owned();
            Err(ProviderError::Timeout { provider, method: "GetInstanceTypes", limit: PATIENCE })
        });
        match answer {
            Ok(types) => {
                known.answered.insert(name, Arc::clone(&types));
                Ok(types)
            }
            Err(error @ ProviderError::Timeout { .. }) => known.answered.get(&name).cloned().ok_or(error),
            Err(error) => Err(error),
        }
    }

    /// The question that is open already, unless the NodePool has changed since.
    fn question(
        &self,
        name: &str,
        pool: &Arc<NodePool>,
        provider: &Arc<dyn CloudProvider>,
    ) -> Shared<BoxFuture<'static, Answer>> {
        let mut known = self.known();
        let about = (pool.metadata.uid.clone(), pool.metadata.generation);
        let is_good = |open: &&Question| open.about == about && open.put.elapsed() < OLDEST;
        if let Some(open) = known.asked.get(name).filter(is_good) {
            return open.answer.clone();
        }
        let (provider, pool) = (Arc::clone(provider), Arc::clone(pool));
        // In a task of its own: a question nobody waits for at the moment goes on, and lets go of what it holds in the provider.
        let asking = async move { provider.get_instance_types(&pool).await };
        let task = AbortOnDropHandle::new(tokio::spawn(on_behalf_of(controller_name(), asking)));
        let answer = async move { task.await.unwrap_or_else(|ended| Err(ProviderError::other(ended))) };
        let answer = answer.boxed().shared();
        known.asked.insert(name.to_owned(), Question { about, put: Instant::now(), answer: answer.clone() });
        answer
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use karpenter_cloudprovider::fake::{Behaviour, FakeProvider, Method, node_class};

    use super::*;

    fn pool(name: &str) -> Arc<NodePool> {
        let mut pool = NodePool::default();
        pool.metadata.name = Some(name.to_owned());
        let kind = node_class();
        let reference = &mut pool.spec.template.spec.node_class_ref;
        (reference.group, reference.kind, reference.name) = (kind.group, kind.kind, "default".to_owned());
        Arc::new(pool)
    }

    fn catalogue() -> (Arc<FakeProvider>, Catalogue) {
        let provider = Arc::new(FakeProvider::new("fake"));
        let registry = Registry::of([Arc::clone(&provider) as Arc<dyn CloudProvider>]).expect("a registry");
        (provider, Catalogue::new(&registry))
    }

    #[tokio::test(start_paused = true)]
    async fn a_provider_that_errs_costs_only_the_pool_it_errs_for() {
        let (provider, catalogue) = catalogue();
        provider.next(Method::GetInstanceTypes, Behaviour::Fail(ProviderError::other("no route to host")));
        let offers = catalogue.offers(&[pool("a"), pool("b")]).await;
        assert!(
            matches!(offers.of("a"), InstanceTypes::Unresolved { reason } if &*reason == "no route to host")
        );
        assert_eq!(offers.list("b").len(), 5);
        assert!(matches!(offers.of("c"), InstanceTypes::Unresolved { .. }));
    }

    #[tokio::test(start_paused = true)]
    async fn a_provider_that_hangs_is_waited_for_once_and_its_last_answer_stands_in() {
        let (provider, catalogue) = catalogue();
        assert_eq!(catalogue.offers(&[pool("a")]).await.list("a").len(), 5);
        provider.always(Method::GetInstanceTypes, Some(Behaviour::Hang));
        let started = Instant::now();
        let offers = catalogue.offers(&[pool("a"), pool("new")]).await;
        assert_eq!(started.elapsed(), PATIENCE);
        assert_eq!(offers.list("a").len(), 5, "as it last was");
        assert!(offers.are_awaited());
        let InstanceTypes::Unresolved { reason } = offers.of("new") else { panic!("never answered") };
        assert_eq!(&*reason, "GetInstanceTypes of provider fake gave no answer within 10s");
        assert_eq!(provider.count(Method::GetInstanceTypes), 3);
        assert!(!catalogue.offers(&[pool("a")]).await.are_awaited());
        assert_eq!(provider.count(Method::GetInstanceTypes), 3, "the open question is not put again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_answer_is_awaited_for_minutes_but_not_for_ever_and_an_error_is_an_answer() {
        let (provider, catalogue) = catalogue();
        provider.always(Method::GetInstanceTypes, Some(Behaviour::Hang));
        let (started, pools) = (Instant::now(), [pool("a")]);
        while catalogue.offers(&pools).await.are_awaited() {}
        assert_eq!(started.elapsed(), PATIENCE + LONGEST_WAIT);
        assert!(!catalogue.offers(&pools).await.are_awaited(), "it was given up");
        catalogue.forget("a");
        assert!(catalogue.offers(&pools).await.are_awaited(), "another of its name");
        catalogue.known().asked.clear();
        provider.always(Method::GetInstanceTypes, Some(Behaviour::Fail(ProviderError::other("no route"))));
        assert!(!catalogue.offers(&pools).await.are_awaited());
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_serves_the_next_pass() {
        let (provider, catalogue) = catalogue();
        provider.next(Method::GetInstanceTypes, Behaviour::Slow(Duration::from_secs(15)));
        assert!(catalogue.offers(&[pool("a")]).await.list("a").is_empty());
        // Nobody waits for it meanwhile.
        tokio::time::sleep(Duration::from_secs(60)).await;
        let asked_again = Instant::now();
        assert_eq!(catalogue.offers(&[pool("a")]).await.list("a").len(), 5);
        assert!(asked_again.elapsed().is_zero(), "it was answered while nobody waited");
        assert_eq!(provider.count(Method::GetInstanceTypes), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_nobody_came_for_is_not_believed_for_ever() {
        let (provider, catalogue) = catalogue();
        provider.next(Method::GetInstanceTypes, Behaviour::Slow(Duration::from_secs(15)));
        catalogue.offers(&[pool("a")]).await;
        tokio::time::sleep(OLDEST).await;
        assert_eq!(catalogue.offers(&[pool("a")]).await.list("a").len(), 5);
        assert_eq!(provider.count(Method::GetInstanceTypes), 2);
    }
}
