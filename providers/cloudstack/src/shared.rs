//! What the parts of the provider share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::NodeClaim;
use karpenter_cloudprovider::error::ProviderError;
use karpenter_runtime::clock::SharedClock;
use karpenter_runtime::entropy::Stream;
use karpenter_runtime::environment::Environment;
use karpenter_runtime::metrics::{CounterVec, DURATION_BUCKETS, GaugeVec, HistogramVec, Registry};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::store::Store;
use kube::ResourceExt as _;

use crate::absence::MachineLists;
use crate::aftermath::{Denied, ExpungeDenied, Lost, NamesTaken, Unexplained};
use crate::catalogue::{Catalogue, Lifetimes};
use crate::client::error::{ApiError, ErrorKind};
use crate::client::request::Scope;
use crate::client::{Client, Estate, Made, Session};
use crate::deletions::Deletions;
use crate::disks::Tagged;
use crate::garbage::Starts;
use crate::interruptions::Taken;
use crate::inventory::Inventory;
use crate::keys::is_id;
use crate::later_disks::LaterDisks;
use crate::launches::Launches;
use crate::learnt_memory::LearntMemory;
use crate::lookups::Lookups;
use crate::measured::Measured;
use crate::naming::{Form, Naming, ProviderIdFormat};
use crate::nodeclass::{CloudStackNodeClass, CredentialsRef};
use crate::prices::Books;
use crate::protection::Protected;
use crate::quota::{Hits, Ordered};
use crate::repair::{GivenUp, Troubled};
use crate::reservations::Slots;
use crate::root_disks::RootDisks;
use crate::sightings::Sightings;
use crate::stray_disks::SeenDisks;
use crate::tagging::Retagged;
use crate::tokens::Tokens;
use crate::unavailable::Unavailable;
use crate::unregistered::Unregistered;
use crate::voice::Voice;
use crate::webhook::WebhookOptions;

/// How long a broken node is borne, as in the Go provider.
const REPAIR_AFTER: Duration = Duration::from_secs(30 * 60);

/// How long a launch waits for its machine to be placed: refusals for want of room come within three seconds.
const LAUNCH_WAIT: Duration = Duration::from_secs(10);

/// Calls under way at once. More deployments would only wait at the server, where each runs into its time limit.
const MAX_DEPLOYING: usize = 8;
const MAX_DESTROYING: usize = 16;

/// How far a server's clock is thought to be behind ours at most, unless a launch of our own shows it.
const FURTHEST_BEHIND: SignedDuration = SignedDuration::from_hours(1);

/// What the provider is told.
#[derive(Clone, Debug)]
pub struct ProviderOptions {
    /// The cluster's name: what tells our machines from those of other clusters.
    pub cluster_name: String,
    /// What names of machines begin with.
    pub name_prefix: String,
    /// How provider ids are written: as whatever names the Nodes does it.
    pub provider_id: ProviderIdFormat,
    /// Whose machines they are, where a NodeClass names no project.
    pub scope: Scope,
    /// Whether machines are expunged where that is allowed.
    pub expunge: bool,
    /// How long what CloudStack said is remembered.
    pub lifetimes: Lifetimes,
    /// What to do with machines that stand still.
    pub on_stopped: OnStopped,
    /// What to do with machines nobody wants.
    pub collect_orphans: CollectOrphans,
    /// How long a node may be NotReady before it is repaired.
    pub repair_after: Duration,
    /// The region of all zones; without it each zone is its own.
    pub region: Option<String>,
    /// How long a launch waits for its machine to be placed, so that a refusal leads to the next size at once.
    pub launch_wait: Duration,
    /// How much user data the server takes, in base64.
    pub max_user_data: usize,
    /// Whether Karpenter names Nodes, because no cloud controller manager does.
    pub name_nodes: bool,
    /// Whether the core repairs nodes (feature gate NodeRepair).
    pub node_repair: bool,
    /// Where the admission webhook is, if there is one.
    pub webhook: Option<WebhookOptions>,
    /// Where the keys are given that no NodeClass names, in words for who is to put them right.
    pub keys_place: String,
}

/// What to do with a machine that stands still.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStopped {
    /// Start it once, then replace it: what a crash of the server stopped comes back by itself.
    #[default]
    Start,
    /// Replace it.
    Replace,
    /// Leave it to whoever stopped it.
    Ignore,
}

/// What to do with machines nobody wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CollectOrphans {
    /// Destroy them.
    #[default]
    Destroy,
    /// Only tell.
    Tell,
    /// Nothing.
    Never,
}

impl ProviderOptions {
    /// For a cluster, with everything else as it usually is.
    pub fn new(cluster_name: impl Into<String>) -> Self {
        Self {
            cluster_name: cluster_name.into(),
            name_prefix: "karpenter".to_owned(),
            provider_id: ProviderIdFormat::default(),
            scope: Scope::Own,
            expunge: true,
            lifetimes: Lifetimes::default(),
            on_stopped: OnStopped::default(),
            collect_orphans: CollectOrphans::default(),
            repair_after: REPAIR_AFTER,
            region: None,
            launch_wait: LAUNCH_WAIT,
            max_user_data: crate::userdata::MAX_LENGTH,
            name_nodes: false,
            node_repair: false,
            webhook: None,
            keys_place: "the keys Karpenter was given".to_owned(),
        }
    }
}

/// Where NodeClasses and NodeClaims are found.
pub trait Objects: Send + Sync + 'static {
    /// A NodeClass.
    fn node_class(&self, name: &str) -> Option<Arc<CloudStackNodeClass>>;

    /// All NodeClasses; none while they are not known.
    fn node_classes(&self) -> Option<Vec<Arc<CloudStackNodeClass>>>;

    /// All NodeClaims; none while they are not known.
    fn node_claims(&self) -> Option<Vec<Arc<NodeClaim>>>;
}

/// The scope a NodeClaim's machine was made in, as its launch wrote it down.
pub(crate) fn launched_in(claim: &NodeClaim) -> Option<Scope> {
    claim.metadata.annotations.as_ref()?.get(crate::labels::SCOPE).and_then(|text| Scope::read(text))
}

/// Whose machines are of NodeClasses that do not say: as the settings have it, or else the keys.
pub(crate) fn default_scope(options: &ProviderOptions, client: &Client) -> Scope {
    match (&options.scope, client.session().project) {
        (Scope::Own, Some(project)) => Scope::Project(project),
        (scope, _) => scope.clone(),
    }
}

/// What to do about a project or account that is closed.
pub(crate) fn closed(scope: &Scope, error: &ApiError) -> String {
    format!(
        "{} is gone or closed to these keys, so nobody knows what is in it: {error}; open it again, or remove the annotation {} from NodeClaims whose machines are known to be gone",
        scope.write(),
        crate::labels::SCOPE
    )
}

/// Whose keys: those of a Secret a NodeClass names, or those Karpenter was given.
pub(crate) type Whose = Option<CredentialsRef>;

/// With whose keys a NodeClaim's machine was made or would be; nothing if nobody can say any more.
pub(crate) fn made_with(claim: &NodeClaim, objects: &dyn Objects) -> Option<Whose> {
    let annotations = claim.metadata.annotations.as_ref();
    let written = annotations.and_then(|annotations| annotations.get(crate::labels::CREDENTIALS));
    if let Some(reference) = written.and_then(|text| CredentialsRef::read(text)) {
        return Some(Some(reference));
    }
    // What a launch wrote down without naming a Secret was made without one.
    if launched_in(claim).is_some() {
        return Some(None);
    }
    let class = objects.node_class(&claim.spec.node_class_ref.name)?;
    Some(class.credentials().cloned())
}

/// What two watches keep.
#[derive(Clone)]
pub struct Watched {
    /// NodeClasses.
    pub classes: Store<CloudStackNodeClass>,
    /// NodeClaims.
    pub claims: Store<NodeClaim>,
}

impl Objects for Watched {
    fn node_class(&self, name: &str) -> Option<Arc<CloudStackNodeClass>> {
        self.classes.get(&ObjectKey::cluster(name))
    }

    fn node_classes(&self) -> Option<Vec<Arc<CloudStackNodeClass>>> {
        self.classes.is_synced().then(|| self.classes.list())
    }

    fn node_claims(&self) -> Option<Vec<Arc<NodeClaim>>> {
        self.claims.is_complete().then(|| self.claims.list())
    }
}

pub(crate) struct Metrics {
    pub(crate) created: CounterVec,
    pub(crate) deleted: CounterVec,
    pub(crate) orphans: CounterVec,
    pub(crate) unavailable: GaugeVec,
    pub(crate) credentials: GaugeVec,
    pub(crate) credentials_age: GaugeVec,
    pub(crate) launch_duration: HistogramVec,
    pub(crate) quota: GaugeVec,
    pub(crate) jobs: GaugeVec,
    pub(crate) jobs_ended: CounterVec,
    pub(crate) type_price: GaugeVec,
    pub(crate) type_cpu: GaugeVec,
    pub(crate) type_memory: GaugeVec,
}

impl Metrics {
    fn new(registry: &Registry) -> Self {
        Self {
            created: registry.counter(
                "karpenter_cloudstack_vms_created_total",
                "Number of virtual machines created, by zone, service offering and reason: launched, or others-refused if cheaper types were refused before.",
                &["zone", "offering", "reason"],
            ),
            deleted: registry.counter(
                "karpenter_cloudstack_vms_deleted_total",
                "Number of virtual machines destroyed, by zone, service offering and reason.",
                &["zone", "offering", "reason"],
            ),
            orphans: registry.counter(
                "karpenter_cloudstack_orphans_deleted_total",
                "Number of virtual machines destroyed because no NodeClaim wanted them.",
                &[],
            ),
            unavailable: registry.gauge(
                "karpenter_cloudstack_unavailable_offerings",
                "Number of instance types, networks and zones that were refused a short while ago, by Secret of the NodeClass.",
                &["credentials"],
            ),
            credentials: registry.gauge(
                "karpenter_cloudstack_credentials_valid",
                "Whether CloudStack takes our keys, by Secret of the NodeClass; empty for those Karpenter was given.",
                &["credentials"],
            ),
            credentials_age: registry.gauge(
                "karpenter_cloudstack_credentials_age_seconds",
                "How long the keys are in use, by Secret of the NodeClass.",
                &["credentials"],
            ),
            launch_duration: registry.histogram(
                "karpenter_cloudstack_vm_launch_duration_seconds",
                "Duration of launches, by phase: accept until the server has taken the order, job until the virtual machine runs, registered from the NodeClaim to its Node.",
                &["phase"],
                DURATION_BUCKETS,
            ),
            quota: registry.gauge(
                "karpenter_cloudstack_quota_available",
                "What is left of the limits, by resource, whose they are (own, project/ID, account/DOMAIN/NAME) and Secret of the NodeClass; absent where there is no limit.",
                &["resource", "scope", "credentials"],
            ),
            jobs: registry.gauge(
                "karpenter_cloudstack_async_jobs",
                "Number of jobs that make or destroy virtual machines, by state and Secret of the NodeClass: deploying, destroying.",
                &["state", "credentials"],
            ),
            jobs_ended: registry.counter(
                "karpenter_cloudstack_async_jobs_ended_total",
                "Number of jobs that made or destroyed virtual machines and have ended, by what they did (deploy, destroy) and result (succeeded, failed).",
                &["job", "result"],
            ),
            type_price: registry.gauge(
                "karpenter_cloudstack_instance_type_price",
                "Price per hour, by instance type, zone, capacity type, the currency the NodeClass names and its Secret.",
                &["instance_type", "zone", "capacity_type", "currency", "credentials"],
            ),
            type_cpu: registry.gauge(
                "karpenter_cloudstack_instance_type_cpu_cores",
                "Number of cores, by instance type and Secret of the NodeClass.",
                &["instance_type", "credentials"],
            ),
            type_memory: registry.gauge(
                "karpenter_cloudstack_instance_type_memory_bytes",
                "Memory, by instance type and Secret of the NodeClass.",
                &["instance_type", "credentials"],
            ),
        }
    }
}

/// Everything the provider's parts work on.
pub(crate) struct Shared {
    /// Whose keys the client has.
    pub(crate) whose: Whose,
    /// The same for metrics; empty for Karpenter's own.
    pub(crate) whose_label: String,
    pub(crate) client: Client,
    pub(crate) options: ProviderOptions,
    pub(crate) naming: Naming,
    pub(crate) objects: Arc<dyn Objects>,
    pub(crate) catalogue: Catalogue,
    pub(crate) inventory: Inventory,
    pub(crate) lookups: Lookups,
    pub(crate) lists: MachineLists,
    pub(crate) unavailable: Unavailable,
    pub(crate) quota_hits: Hits,
    pub(crate) ordered: Ordered,
    pub(crate) tagged_disks: Tagged,
    pub(crate) later_disks: LaterDisks,
    /// Whether a list showed that no data disk of ours is left.
    pub(crate) no_disks: AtomicBool,
    pub(crate) seen_disks: SeenDisks,
    pub(crate) troubled: Troubled,
    pub(crate) unregistered: Unregistered,
    pub(crate) sightings: Arc<Sightings>,
    pub(crate) protected: Protected,
    pub(crate) retagged: Retagged,
    pub(crate) root_disks: RootDisks,
    pub(crate) taken: Taken,
    pub(crate) learnt_memory: LearntMemory,
    pub(crate) measured: Measured,
    pub(crate) slots: Slots,
    pub(crate) tokens: Tokens,
    pub(crate) books: Books,
    /// How provider ids of new machines are written.
    pub(crate) form: Form,
    pub(crate) unexplained: Unexplained,
    pub(crate) lost: Lost,
    pub(crate) deletions: Deletions,
    pub(crate) launches: Launches,
    pub(crate) voice: Voice,
    pub(crate) expunge_denied: ExpungeDenied,
    pub(crate) denied: Denied,
    pub(crate) names_taken: NamesTaken,
    pub(crate) turns: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Whether a list showed that no affinity group of ours is left.
    pub(crate) no_groups: AtomicBool,
    pub(crate) started: Mutex<BTreeMap<String, Starts>>,
    pub(crate) given_up: GivenUp,
    /// How many deployments may wait at the server: it takes those of an account one by one.
    pub(crate) deploying: tokio::sync::Semaphore,
    /// How many machines may be destroyed at once.
    pub(crate) destroying: tokio::sync::Semaphore,
    pub(crate) clock: SharedClock,
    pub(crate) metrics: Metrics,
    /// By how many seconds the server's clock is behind ours, as launches and NodeClaims show it: its machines look that much older.
    behind_secs: AtomicI64,
    /// Whether the last list of machines had none of this cluster's.
    pub(crate) has_no_machines: AtomicBool,
    ids: Mutex<Stream>,
}

impl Shared {
    pub(crate) fn new(
        whose: Whose,
        client: Client,
        options: ProviderOptions,
        objects: Arc<dyn Objects>,
        voice: Voice,
        environment: &Environment,
    ) -> Self {
        let form = Form::new(options.provider_id.clone());
        let naming = Naming::new(&options.name_prefix, &options.cluster_name);
        let sightings = Arc::new(Sightings::default());
        let lists = MachineLists::new(client.clone(), Arc::clone(&sightings));
        Self {
            whose_label: whose.as_ref().map(ToString::to_string).unwrap_or_default(),
            whose,
            behind_secs: AtomicI64::new(0),
            has_no_machines: AtomicBool::new(false),
            catalogue: Catalogue::new(client.clone(), &options.lifetimes, &environment.registry),
            inventory: Inventory::new(lists.clone(), naming.prefix()),
            lookups: Lookups::new(lists.clone()),
            lists,
            naming,
            options,
            objects,
            unavailable: Unavailable::default(),
            quota_hits: Hits::default(),
            ordered: Ordered::default(),
            tagged_disks: Tagged::default(),
            later_disks: LaterDisks::default(),
            no_disks: AtomicBool::new(false),
            seen_disks: SeenDisks::default(),
            troubled: Troubled::default(),
            unregistered: Unregistered::default(),
            sightings,
            protected: Protected::default(),
            retagged: Retagged::default(),
            root_disks: RootDisks::default(),
            taken: Taken::default(),
            learnt_memory: LearntMemory::default(),
            measured: Measured::default(),
            slots: Slots::default(),
            tokens: Tokens::new(environment.entropy.stream("cloudstack/tokens")),
            books: Books::default(),
            form,
            unexplained: Unexplained::default(),
            lost: Lost::default(),
            deletions: Deletions::default(),
            launches: Launches::default(),
            voice,
            expunge_denied: ExpungeDenied::default(),
            denied: Denied::default(),
            names_taken: NamesTaken::default(),
            turns: Mutex::default(),
            no_groups: AtomicBool::new(false),
            started: Mutex::default(),
            given_up: GivenUp::default(),
            deploying: tokio::sync::Semaphore::new(MAX_DEPLOYING),
            destroying: tokio::sync::Semaphore::new(MAX_DESTROYING),
            clock: environment.clock.clone(),
            metrics: Metrics::new(&environment.registry),
            ids: Mutex::new(environment.entropy.stream("cloudstack/jobs")),
            client,
        }
    }

    /// Where our keys are given, in words.
    pub(crate) fn keys_place(&self) -> String {
        match &self.whose {
            Some(reference) => format!("the Secret {reference} (spec.credentialsRef)"),
            None => self.options.keys_place.clone(),
        }
    }

    /// Whose machines are of NodeClasses that do not say.
    pub(crate) fn scope(&self) -> Scope {
        default_scope(&self.options, &self.client)
    }

    /// An id no job ever had.
    pub(crate) fn new_job_id(&self) -> String {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).uuid().to_string()
    }

    /// The account a NodeClaim's machine was made in, if our keys are of another by now: then not seeing it says nothing about it.
    ///
    /// # Errors
    ///
    /// If whose the keys are cannot be found out.
    pub(crate) async fn made_elsewhere(&self, claim: &NodeClaim) -> Result<Option<String>, ApiError> {
        let annotations = claim.metadata.annotations.as_ref();
        let Some(recorded) = annotations.and_then(|annotations| annotations.get(crate::labels::ACCOUNT_ID))
        else {
            return Ok(None);
        };
        // What is in a project is seen by all its members.
        if launched_in(claim) != Some(Scope::Own) || self.client.account().await?.contains_key(recorded) {
            return Ok(None);
        }
        Ok(Some(recorded.clone()))
    }

    /// The same as an error, for who must know.
    ///
    /// # Errors
    ///
    /// If it was made elsewhere, or that cannot be found out.
    pub(crate) async fn must_see(&self, claim: &NodeClaim) -> Result<(), ProviderError> {
        match self.made_elsewhere(claim).await.map_err(ProviderError::other)? {
            None => Ok(()),
            Some(account) => Err(ProviderError::other(format!(
                "the virtual machine of NodeClaim {} was made in account {account}, and the keys are of another by now; give keys of that account, or remove the annotation {} if its machine is gone",
                claim.name_any(),
                crate::labels::ACCOUNT_ID
            ))),
        }
    }

    /// A machine that was ordered after this time was made by the server's clock at that: whether it is behind.
    pub(crate) fn compare_clocks(&self, ordered: Timestamp, made: Timestamp) {
        let behind = ordered.duration_since(made).as_secs().max(0);
        self.behind_secs.store(behind, Ordering::Relaxed);
    }

    /// The server's clock is, or was when it made something that is still there, so much behind ours. What says so is no proof: one
    /// that is further behind than clocks are is a NodeClaim that was restored from a backup, younger than its machine.
    pub(crate) fn server_is_behind_by_at_least(&self, by: SignedDuration) {
        if by <= FURTHEST_BEHIND {
            self.behind_secs.fetch_max(by.as_secs(), Ordering::Relaxed);
        }
    }

    /// How old something is that the server made at this time by its clock.
    pub(crate) fn age(&self, made: Timestamp) -> Duration {
        let behind = u64::try_from(self.behind_secs.load(Ordering::Relaxed)).unwrap_or(0);
        self.clock.undoubted_since(made).saturating_sub(Duration::from_secs(behind))
    }

    /// Whether a NodeClaim's machine is among those our keys lead to; in doubt it is.
    pub(crate) fn is_ours(&self, claim: &NodeClaim) -> bool {
        made_with(claim, &*self.objects).is_none_or(|whose| whose == self.whose)
    }

    /// Whether a scope that cannot be asked may be left out: the server says that there is no such project for us, and no
    /// NodeClaim can have been launched in it. A NodeClass with a wrong id must not keep everything else from being looked after.
    pub(crate) fn may_leave_out(&self, scope: &Scope, error: &ApiError) -> bool {
        self.objects.node_claims().is_some()
            && self.is_closed(scope, error)
            && *scope != self.scope()
            && self.claims_that_may_be_in(scope).is_empty()
    }

    /// The NodeClaims whose machines are in a scope, or may be.
    pub(crate) fn claims_that_may_be_in(&self, scope: &Scope) -> Vec<Arc<NodeClaim>> {
        let claims = self.objects.node_claims().unwrap_or_default().into_iter();
        let may_be_in = |claim: &Arc<NodeClaim>| match launched_in(claim) {
            Some(launched) => launched == *scope,
            None => self.may_be_in(claim, scope),
        };
        claims.filter(|claim| self.is_ours(claim) && may_be_in(claim)).collect()
    }

    /// Whether a NodeClaim that does not say where its machine is may have it in this scope: wherever its NodeClass says, or said before
    /// it was deleted.
    fn may_be_in(&self, claim: &NodeClaim, scope: &Scope) -> bool {
        let class = self.objects.node_class(&claim.spec.node_class_ref.name);
        let spec = class.and_then(|class| class.spec.clone());
        spec.is_none_or(|spec| crate::resolved::scope_of(&spec, &self.scope()) == *scope)
    }

    /// Whether every NodeClaim whose machine may be in this scope says so: then it is known what counts as there.
    pub(crate) fn all_say_where(&self, scope: &Scope) -> bool {
        let Some(claims) = self.objects.node_claims() else { return false };
        let mut ours = claims.iter().filter(|claim| self.is_ours(claim));
        !ours.any(|claim| launched_in(claim).is_none() && self.may_be_in(claim, scope))
    }

    /// Whether the server says of a project or account that it is not there, or not for us. What is in it is there as far as anybody
    /// knows.
    pub(crate) fn is_closed(&self, scope: &Scope, error: &ApiError) -> bool {
        // What stands between us and the server knows nothing of projects.
        if error.is_nobodys_answer() {
            return false;
        }
        match scope {
            Scope::Own => false,
            Scope::Account { .. } => error.is_about_account(),
            Scope::Project(_) => matches!(error.kind, ErrorKind::NotFound | ErrorKind::Denied),
        }
    }

    /// Tells of a project or account that is closed, on every NodeClaim whose machine is in it.
    pub(crate) fn tell_closed(&self, scope: &Scope, error: &ApiError) {
        let text = closed(scope, error);
        tracing::warn!("{text}");
        for claim in self.claims_in(scope) {
            self.voice.warn(&*claim, "ScopeClosed", text.clone());
        }
    }

    /// Writes down what lists showed that were read as this session. Once the keys are others, they show nothing.
    pub(crate) fn conclude(&self, known: &AtomicBool, shown: bool, session: &Session) {
        known.store(shown, Ordering::Relaxed);
        // Looked at after it is written: who moves later forgets it.
        if !self.client.is_still(session) {
            known.store(false, Ordering::Relaxed);
        }
    }

    /// The NodeClaims that were launched in a scope.
    pub(crate) fn claims_in(&self, scope: &Scope) -> Vec<Arc<NodeClaim>> {
        let claims = self.objects.node_claims().unwrap_or_default().into_iter();
        claims.filter(|claim| self.is_ours(claim) && launched_in(claim).as_ref() == Some(scope)).collect()
    }

    /// Every scope machines of our keys may be in, each once: ours, those of the NodeClasses, and those NodeClaims were launched in.
    ///
    /// # Errors
    ///
    /// While the NodeClasses or NodeClaims are not known: a project nobody thought of would look empty.
    pub(crate) fn scopes(&self) -> Result<Vec<Scope>, ApiError> {
        self.scopes_but(None)
    }

    /// The same, without those that only the NodeClass of this name leads to, or one that goes too.
    pub(crate) fn scopes_but(&self, left_out: Option<&str>) -> Result<Vec<Scope>, ApiError> {
        let unknown = |what: &str| {
            ApiError::new("listVirtualMachines", ErrorKind::NotSent, format!("the {what} are not known yet"))
        };
        let classes = self.objects.node_classes().ok_or_else(|| unknown("CloudStackNodeClasses"))?;
        let claims = self.objects.node_claims().ok_or_else(|| unknown("NodeClaims"))?;
        let stays = |class: &CloudStackNodeClass| {
            let goes = class.metadata.deletion_timestamp.is_some();
            left_out.is_none_or(|name| class.name_any() != name && !goes)
        };
        let of_classes = classes.iter().filter(|class| class.credentials() == self.whose.as_ref());
        let of_classes: Vec<_> = of_classes.filter(|class| stays(class)).collect();
        let names_our_keys = |claim: &Arc<NodeClaim>| {
            made_with(claim, &*self.objects).is_some_and(|whose| whose == self.whose)
        };
        // Keys of a Secret that nobody names any more are not found again by whoever comes after us.
        let leads_here = left_out.is_none()
            || self.whose.is_none()
            || !of_classes.is_empty()
            || claims.iter().any(names_our_keys);
        let of_classes = of_classes.into_iter().filter_map(|class| class.spec.as_ref());
        let otherwise = self.scope();
        let of_classes = of_classes.map(|spec| crate::resolved::scope_of(spec, &otherwise));
        // Nothing is made for what cannot be the id of a project, and asking for it would show those of others.
        let of_classes = of_classes.filter(|scope| !matches!(scope, Scope::Project(id) if !is_id(id)));
        let of_claims = claims.iter().filter(|claim| self.is_ours(claim));
        let of_claims = of_claims.filter_map(|claim| launched_in(claim));
        let mut scopes = Vec::from_iter(leads_here.then(|| otherwise.clone()));
        for scope in of_classes.chain(of_claims) {
            if !scopes.contains(&scope) {
                scopes.push(scope);
            }
        }
        Ok(scopes)
    }
}

impl Estate for Shared {
    fn made(&self) -> Option<Made> {
        let lists_show_none = self.has_no_machines.load(Ordering::Relaxed);
        let mut made = Made { anything: !lists_show_none, ..Made::default() };
        for claim in self.objects.node_claims()? {
            if claim.spec.node_class_ref.group != crate::GROUP || !self.is_ours(&claim) {
                continue;
            }
            // One that is not launched yet may be about to be: what it writes down comes to us late.
            made.anything = true;
            let scope = launched_in(&claim);
            let named = claim.status.as_ref().is_some_and(|status| status.provider_id.is_some());
            if scope.is_none() && !named {
                continue;
            }
            match claim.annotations().get(crate::labels::ACCOUNT_ID) {
                Some(account) => {
                    made.accounts.insert(account.clone());
                }
                // What is in a project is asked for there, with whatever keys, and counts as there where that is refused.
                None => made.unrecorded |= matches!(scope, None | Some(Scope::Own)),
            }
        }
        Some(made)
    }

    fn keys_choose_project(&self) -> bool {
        self.options.scope == Scope::Own
    }

    fn forget(&self) {
        self.catalogue.forget_everything();
        self.inventory.forget();
        self.unavailable.forget();
        self.quota_hits.forget();
        self.ordered.forget();
        self.taken.forget();
        self.expunge_denied.forget();
        self.denied.forget();
        self.names_taken.forget();
        for known in [&self.has_no_machines, &self.no_disks, &self.no_groups] {
            known.store(false, Ordering::Relaxed);
        }
    }
}
