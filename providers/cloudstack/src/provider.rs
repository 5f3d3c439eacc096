//! The provider as the core sees it, of one account: [`crate::accounts`] puts several together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use karpenter_api::conditions::{HasConditions as _, READY};
use karpenter_api::label_rules::LabelRules;
use karpenter_api::{ConditionStatus, NodeClaim, NodePool, labels as well_known};
use karpenter_cloudprovider::error::{Cause, ProviderError};
use karpenter_cloudprovider::provider::{
    CloudProvider, DisruptionHold, Launch, LaunchHandle, NodeClassKind, ProviderFuture,
};
use karpenter_cloudprovider::repair::RepairPolicy;
use karpenter_cloudprovider::selection;
use karpenter_engine::Provider as SchedulingRules;
use karpenter_engine::instance_type::InstanceType;
use karpenter_runtime::environment::Environment;
use kube::ResourceExt as _;

use crate::absence::{Care, Whereabouts};
use crate::client::error::ApiError;
use crate::client::host::Demand;
use crate::client::request::Scope;
use crate::client::{Client, Estate, model, only, requests};
use crate::instances::{Candidate, RESOURCE_NOT_FOUND};
use crate::naming::machine_id;
use crate::nodeclass::{CloudStackNodeClass, CredentialsRef, Reservation};
use crate::resolved::{Resolved, resolve, scope_of};
use crate::shared::{Objects, ProviderOptions, Shared, closed, launched_in};
use crate::unavailable::Refused;
use crate::voice::Voice;
use crate::{GROUP, affinity, description, instancetypes, labels, made_by, repair, reservations, templates};

/// How long a launch may take, queueing for the server included.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// Virtual machines of Apache CloudStack, as far as one pair of keys leads.
pub struct CloudStackProvider {
    kinds: [NodeClassKind; 1],
    pub(crate) shared: Arc<Shared>,
}

/// The kind of NodeClass the provider serves.
pub fn kind() -> NodeClassKind {
    NodeClassKind::new(GROUP, "v1", "CloudStackNodeClass", "cloudstacknodeclasses")
}

/// Whether a launch failed because something that was looked up before is gone.
fn is_out_of_date(error: &ProviderError) -> bool {
    matches!(error, ProviderError::Create { condition_reason, .. } if condition_reason == RESOURCE_NOT_FOUND)
}

/// A series of prices, of these keys.
fn with<'a>([name, zone, kind, currency]: &[&'a str; 4], whose: &'a str) -> [&'a str; 5] {
    [name, zone, kind, currency, whose]
}

impl CloudStackProvider {
    /// Over this client, for the cluster whose objects these are.
    pub fn new(
        client: Client,
        options: ProviderOptions,
        objects: Arc<dyn Objects>,
        environment: &Environment,
    ) -> Self {
        Self::speaking(client, options, objects, Voice::default(), environment)
    }

    /// As [`Self::new`], with a voice in the cluster.
    pub fn speaking(
        client: Client,
        options: ProviderOptions,
        objects: Arc<dyn Objects>,
        voice: Voice,
        environment: &Environment,
    ) -> Self {
        Self::with_keys_of(None, client, options, objects, voice, environment)
    }

    /// As [`Self::speaking`], for the NodeClasses that name this Secret.
    pub fn with_keys_of(
        whose: Option<CredentialsRef>,
        client: Client,
        options: ProviderOptions,
        objects: Arc<dyn Objects>,
        voice: Voice,
        environment: &Environment,
    ) -> Self {
        let shared = Arc::new(Shared::new(whose, client, options, objects, voice, environment));
        let estate: Weak<dyn Estate> = Arc::<Shared>::downgrade(&shared);
        shared.client.has_estate(estate);
        Self { kinds: [kind()], shared }
    }

    /// A NodeClass that is ready to be launched from.
    fn ready_class(&self, name: &str) -> Result<Arc<CloudStackNodeClass>, ProviderError> {
        let class = self.shared.objects.node_class(name);
        let class = class.filter(|class| class.metadata.deletion_timestamp.is_none()).ok_or_else(|| {
            ProviderError::insufficient_capacity(format!(
                "CloudStackNodeClass {name:?} does not exist or is being deleted"
            ))
        })?;
        if class.condition_status(READY) == ConditionStatus::True {
            return Ok(class);
        }
        let why = class.condition(READY).map(|ready| ready.message().to_owned()).unwrap_or_default();
        Err(ProviderError::node_class_not_ready(format!("CloudStackNodeClass {name:?} is not ready: {why}")))
    }

    /// The instance types of a NodeClass, with what of them can be had.
    /// With a NodePool, what is refused to its machines only is not available.
    pub(crate) async fn types(
        &self,
        resolved: &Resolved,
        pool: Option<&str>,
    ) -> Result<Vec<InstanceType>, ApiError> {
        let shared = &self.shared;
        let (since, budget) = shared.catalogue.budget(&resolved.scope).await?;
        let left = shared.ordered.rest(&resolved.scope, since, budget.unwrap_or_default());
        let pool = pool.and_then(|pool| affinity::refused_as(&resolved.spec, pool));
        let pool_refused = pool.is_some_and(|pool| shared.unavailable.is_refused(&pool));
        let mut hosts = BTreeMap::new();
        for zone in &resolved.zones {
            hosts.insert(zone.id.clone(), shared.catalogue.hosts(&zone.id).await);
        }
        // A sum over the zone would lie: what counts is a single host.
        let has_host = |zone: &model::Zone, size: &instancetypes::Size| {
            let Some(hosts) = hosts.get(&zone.id).and_then(Option::as_ref) else { return true };
            let in_zone = resolved.in_zone.get(&zone.id);
            let used = in_zone.map(|in_zone| templates::used(&in_zone.templates, &resolved.spec));
            let archs: Vec<&str> =
                used.into_iter().flatten().map(|template| template.arch.as_str()).collect();
            let demand = Demand {
                offering: &size.offering,
                cores: size.cpu,
                core_mhz: size.core_mhz(),
                memory_mib: size.memory_mib,
                archs: &archs,
            };
            hosts.iter().any(|host| host.has_room(&demand))
        };
        let offered = resolved.in_zone.values().flat_map(|zone| &zone.offerings);
        let gpus = match offered.map(model::ServiceOffering::counted_gpus).max() {
            Some(1..) => shared.catalogue.free_gpus().await,
            _ => BTreeMap::new(),
        };
        let has_gpus = |zone: &model::Zone, size: &instancetypes::Size| {
            gpus.get(&zone.id).is_none_or(|free| size.offering.counted_gpus() <= *free)
        };
        // Whether there is a network in which nothing of this type was refused.
        let has_network = |zone: &model::Zone, name: &str| {
            resolved.in_zone.get(&zone.id).is_some_and(|in_zone| {
                let refused = |network: &model::Network| {
                    let (zone, name, id) = (zone.id.clone(), name.to_owned(), network.id.clone());
                    shared.unavailable.is_refused(&Refused::Network(id.clone()))
                        || shared.unavailable.is_refused(&Refused::TypeIn { zone, name, network: id })
                };
                let has_one = in_zone.networks.iter().any(|network| !network.is_full() && !refused(network));
                has_one && in_zone.additional.iter().all(|term| term.iter().any(|network| !network.is_full()))
            })
        };
        let refused_zone =
            |zone: &model::Zone| shared.unavailable.is_refused(&Refused::Zone(zone.id.clone()));
        let used = shared.used_reservations(resolved).await?;
        let prices = shared.prices(&resolved.spec).await?;
        let price = |zone: &model::Zone, size: &instancetypes::Size| {
            let storage_gb = resolved.need(&zone.id, size).storage_gb;
            prices.of(size, storage_gb, resolved.spec.pricing.as_ref())
        };
        let slots = |reservation: &Reservation| {
            let used = used.get(&reservation.name).map_or(0, BTreeSet::len);
            reservation.count.saturating_sub(i64::try_from(used).unwrap_or(i64::MAX)).max(0)
        };
        let available =
            |zone: &model::Zone, size: &instancetypes::Size, reservation: Option<&Reservation>| {
                let name = reservations::refused_name(&size.name, reservation.map(|r| r.name.as_str()));
                let has_network = has_network(zone, &name);
                let this = Refused::Type { zone: zone.id.clone(), name };
                let need = resolved.need(&zone.id, size);
                need.is_within(&left)
                    && !shared.quota_hits.refuse(&resolved.scope, &need)
                    && !pool_refused
                    && has_host(zone, size)
                    && has_gpus(zone, size)
                    && has_network
                    && !refused_zone(zone)
                    && !shared.unavailable.is_refused(&this)
            };
        let memory = |size: &instancetypes::Size| shared.learnt_memory.of(&resolved.class, &size.name);
        let root_gb = |zone: &model::Zone, size: &instancetypes::Size| resolved.root_gb(&zone.id, size);
        let mut types = instancetypes::build(
            &resolved.spec,
            &resolved.market(&self.names_carried()),
            &resolved.architectures(),
            instancetypes::Quotation {
                price,
                available,
                slots,
                memory,
                root_gb,
                region: shared.options.region.clone(),
            },
        );
        self.keep_what_runs(resolved, &mut types);
        shared.metrics.unavailable.set(&[&shared.whose_label], shared.unavailable.count() as f64);
        let pricing = resolved.spec.pricing.as_ref();
        self.measure(&resolved.class, &types, pricing.and_then(|pricing| pricing.currency.as_deref()));
        Ok(types)
    }

    fn measure(&self, class: &str, types: &[InstanceType], currency: Option<&str>) {
        let (metrics, whose) = (&self.shared.metrics, self.shared.whose_label.as_str());
        let mut offered = BTreeSet::new();
        for it in types {
            let amount =
                |name: &str| it.capacity.get(name).map_or(0.0, |amount| amount.as_units_ceil() as f64);
            metrics.type_cpu.set(&[&it.name, whose], amount("cpu"));
            metrics.type_memory.set(&[&it.name, whose], amount("memory"));
            for offering in &it.offerings {
                let value = |key: &str| {
                    let values = offering.requirements.get(key);
                    values
                        .and_then(|values| values.values.first())
                        .map(ToString::to_string)
                        .unwrap_or_default()
                };
                let (zone, kind) = (value(well_known::TOPOLOGY_ZONE), value(well_known::CAPACITY_TYPE));
                let series = [&*it.name, &zone, &kind, currency.unwrap_or_default()];
                metrics.type_price.set(&with(&series, whose), offering.price);
                offered.insert(series.map(str::to_owned));
            }
        }
        let objects = &self.shared.objects;
        let vanished = self.shared.measured.note(class, offered, |name| objects.node_class(name).is_some());
        for series in &vanished.series {
            metrics.type_price.delete(&with(&series.each_ref().map(String::as_str), whose));
        }
        for name in &vanished.types {
            metrics.type_cpu.delete(&[name, whose]);
            metrics.type_memory.delete(&[name, whose]);
        }
    }

    async fn launch(&self, claim: &NodeClaim) -> Result<Launch, ProviderError> {
        match self.launch_as_known(claim).await {
            // What is known of the cloud is older than it: it was forgotten, so that everything is looked up anew, once.
            Err(error) if is_out_of_date(&error) => self.launch_as_known(claim).await,
            launched => launched,
        }
    }

    /// Launches with what is remembered of the cloud.
    async fn launch_as_known(&self, claim: &NodeClaim) -> Result<Launch, ProviderError> {
        let shared = &self.shared;
        let class = self.ready_class(&claim.spec.node_class_ref.name)?;
        self.must_be_where_it_began(claim, &class)?;
        // Begun with keys of another account, it may have a machine that these do not show.
        shared.must_see(claim).await?;
        let resolved =
            resolve(&class, &shared.scope(), &shared.catalogue).await.map_err(ProviderError::other)?;
        if let Some(problem) = resolved.problems.first() {
            return Err(ProviderError::node_class_not_ready(problem.message.clone()));
        }
        let pool = claim.labels().get(well_known::NODEPOOL).map(String::as_str);
        let types = self.types(&resolved, pool).await.map_err(|error| {
            let text = error.to_string();
            ProviderError::create(error, "InstanceTypeResolutionFailed", text)
        })?;
        let choices =
            selection::by_price(&types, claim, &labels::WELL_KNOWN).map_err(ProviderError::other)?;
        if choices.is_empty()
            && let Some(text) = resolved.full_networks()
        {
            shared.voice.warn(claim, "NetworkExhausted", text);
        }
        let groups = self.groups(claim, &class, &resolved).await.map_err(ProviderError::other)?;
        let market = resolved.market(&self.names_carried());
        // What is not made needs no token. There may be a machine all the same, so this is no end yet.
        let made_for = Some(claim).filter(|_| !choices.is_empty());
        let told = self.told(&resolved, made_for).await.map_err(|(field, problem)| {
            let text = format!("{field}: {problem}");
            let reason = if field.ends_with("tokenTTL") { "TokenNotMade" } else { "UserDataNotFound" };
            ProviderError::create(text.clone(), reason, text)
        })?;
        let networks = resolved.in_zone.values().map(|zone| zone.networks.len()).max().unwrap_or(0);
        let mut candidates = Vec::new();
        // Everything in one network first: another is for when that turns out to be full.
        for nth in 0..networks {
            for (instance_type, offering) in &choices {
                candidates.extend(self.candidate(
                    claim,
                    (&resolved, &market),
                    (instance_type, offering, nth),
                    &groups,
                )?);
            }
        }
        let tags = made_by::Tags::new(self.tags(claim, &class), &class);
        // What is not recorded now would be looked for in vain should the keys be of another account later.
        let account = self.own_account(&resolved.scope).await.map_err(ProviderError::other)?;
        self.write_place(claim, &class, &resolved.scope, account.as_deref()).await?;
        let limit = shared.quota_hits.believed(&resolved.scope).filter(|_| choices.is_empty());
        let tell = |candidate: &Candidate| self.user_data(claim, &resolved.spec, &told, candidate);
        let machine = match (shared.launch(claim, &resolved.scope, candidates, &tell, &tags).await, limit) {
            // Nothing was even tried, because of what others were refused for a moment ago.
            (Err(ProviderError::InsufficientCapacity(cause)), Some(limit)) => {
                return Err(ProviderError::insufficient_capacity(format!("{cause}: {limit}")));
            }
            (launched, _) => launched?,
        };
        let mut instance = self.describe(&machine, claim, &class, &types);
        let of_zone = resolved.in_zone.get(&machine.zoneid).map(|zone| zone.templates.as_slice());
        let template = of_zone.unwrap_or_default().iter().find(|template| template.id == machine.templateid);
        if let Some(template) = template {
            let arch = templates::arch(template, &resolved.spec).to_owned();
            instance.labels.insert(well_known::ARCH.to_owned(), arch);
        }
        instance.annotations.insert(labels::SCOPE.to_owned(), resolved.scope.write());
        if let Some(account) = account {
            instance.annotations.insert(labels::ACCOUNT_ID.to_owned(), account);
        }
        if let Some(whose) = &shared.whose {
            instance.annotations.insert(labels::CREDENTIALS.to_owned(), whose.to_string());
        }
        Ok(Launch::Launched(Box::new(instance)))
    }

    /// The id of the account our keys are of, where machines are in it; nothing if the server shows several and does not tell which.
    ///
    /// # Errors
    ///
    /// If the server does not say.
    async fn own_account(&self, scope: &Scope) -> Result<Option<String>, ApiError> {
        if *scope != Scope::Own {
            return Ok(None);
        }
        let accounts = self.shared.client.account().await?;
        Ok(only(&accounts).cloned())
    }

    /// A launch that began elsewhere, in another project or with other keys, may have made a machine there of which no answer came. So
    /// it is not begun again here: with its NodeClaim goes whatever it made, and the next one begins anew.
    fn must_be_where_it_began(
        &self,
        claim: &NodeClaim,
        class: &CloudStackNodeClass,
    ) -> Result<(), ProviderError> {
        let shared = &self.shared;
        let Some(began) = launched_in(claim) else { return Ok(()) };
        let now = scope_of(&class.spec.clone().unwrap_or_default(), &shared.scope());
        if began == now && class.credentials() == shared.whose.as_ref() {
            return Ok(());
        }
        Err(ProviderError::insufficient_capacity(format!(
            "its launch began in {}, and CloudStackNodeClass {:?} names another project, account or Secret by now",
            began.write(),
            class.name_any()
        )))
    }

    /// Writes down where a NodeClaim's machine will be and what makes it, before there is one: whoever comes after us looks for it
    /// there.
    async fn write_place(
        &self,
        claim: &NodeClaim,
        class: &CloudStackNodeClass,
        scope: &Scope,
        account: Option<&str>,
    ) -> Result<(), ProviderError> {
        if launched_in(claim).as_ref() == Some(scope) {
            return Ok(());
        }
        let mut place = made_by::annotations(class);
        place.insert(labels::SCOPE.to_owned(), scope.write());
        if let Some(account) = account {
            place.insert(labels::ACCOUNT_ID.to_owned(), account.to_owned());
        }
        if let Some(whose) = &self.shared.whose {
            place.insert(labels::CREDENTIALS.to_owned(), whose.to_string());
        }
        self.shared.write_down(claim, &place).await
    }

    async fn find(&self, provider_id: &str) -> Result<NodeClaim, ProviderError> {
        let id = machine_id(provider_id).ok_or_else(|| {
            ProviderError::other(format!("provider id {provider_id:?} is none of CloudStack's"))
        })?;
        let claims = self.shared.objects.node_claims().unwrap_or_default();
        let carries = |claim: &&Arc<NodeClaim>| {
            let status = claim.status.as_ref();
            status.and_then(|status| status.provider_id.as_deref()).and_then(machine_id) == Some(id)
        };
        let claim = claims.iter().find(carries);
        if let Some(claim) = claim {
            self.shared.must_see(claim).await?;
        }
        let mut unknown = None;
        let mut failed = false;
        for scope in self.shared.scopes().map_err(ProviderError::other)? {
            let found = match self.shared.machine(id, &scope).await {
                Err(error) if self.shared.may_leave_out(&scope, &error) => continue,
                Err(error) if self.shared.is_closed(&scope, &error) => {
                    unknown = Some(ProviderError::other(closed(&scope, &error)));
                    continue;
                }
                found => found.map_err(ProviderError::other)?,
            };
            if let Some(machine) = found {
                // A machine that failed to start is none, and garbage collection sees to it.
                if machine.state != "Error" {
                    return Ok(
                        self.as_claim(&machine, &BTreeMap::from([(id.to_owned(), provider_id.to_owned())]))
                    );
                }
                failed = true;
            }
        }
        if let Some(unknown) = unknown {
            return Err(unknown);
        }
        // A NodeClaim would go, or its Node, because of this answer.
        if claim.is_some() && !failed {
            return Err(self.absent(id).await);
        }
        Err(ProviderError::not_found(format!("CloudStack has no virtual machine {id}")))
    }

    /// What is said of a machine that no list shows.
    async fn absent(&self, id: &str) -> ProviderError {
        match self.shared.whereabouts(id).await {
            Ok(Whereabouts::Gone) => {
                ProviderError::not_found(format!("CloudStack has no virtual machine {id}"))
            }
            Ok(Whereabouts::Going) => ProviderError::other(format!(
                "virtual machine {id} is being destroyed, or lists show it late"
            )),
            Ok(Whereabouts::Hidden(text)) => ProviderError::other(text),
            Err(error) => ProviderError::other(error),
        }
    }

    async fn list_all(&self) -> Result<Vec<NodeClaim>, ProviderError> {
        let mut claims = Vec::new();
        let carried = self.carried();
        for scope in self.shared.scopes().map_err(ProviderError::other)? {
            // Whoever misses one asks for it by its id.
            let machines = match self.shared.all_machines(&scope, Care::Glance).await {
                Err(error) if self.shared.may_leave_out(&scope, &error) => continue,
                Err(error) if self.shared.is_closed(&scope, &error) && self.shared.all_say_where(&scope) => {
                    self.shared.tell_closed(&scope, &error);
                    let launched = self.shared.claims_in(&scope).into_iter();
                    let launched =
                        launched.filter(|c| c.status.as_ref().is_some_and(|s| s.provider_id.is_some()));
                    claims.extend(launched.map(|claim| description::as_known(&claim)));
                    continue;
                }
                machines => machines.map_err(ProviderError::other)?,
            };
            let there = machines.iter().filter(|machine| machine.state != "Error");
            claims.extend(there.map(|machine| self.as_claim(machine, &carried)));
        }
        // What our keys cannot see is there as far as anybody knows.
        for claim in self.shared.objects.node_claims().unwrap_or_default() {
            let ours =
                self.shared.is_ours(&claim) && claim.status.as_ref().is_some_and(|s| s.provider_id.is_some());
            if ours && self.shared.made_elsewhere(&claim).await.map_err(ProviderError::other)?.is_some() {
                claims.push(description::as_known(&claim));
            }
        }
        Ok(claims)
    }

    async fn types_of_pool(&self, pool: &NodePool) -> Result<Arc<[InstanceType]>, ProviderError> {
        let name = &pool.spec.template.spec.node_class_ref.name;
        let Some(class) = self.shared.objects.node_class(name) else {
            return Err(ProviderError::other(format!("CloudStackNodeClass {name:?} does not exist")));
        };
        let shared = &self.shared;
        let resolved =
            resolve(&class, &shared.scope(), &shared.catalogue).await.map_err(ProviderError::other)?;
        let types = self.types(&resolved, Some(&pool.name_any())).await.map_err(ProviderError::other)?;
        // An empty answer would say of every node that its type is gone, and have it replaced.
        if types.is_empty() {
            let why: Vec<&str> = resolved.problems.iter().map(|problem| problem.message.as_str()).collect();
            return Err(ProviderError::other(format!(
                "CloudStackNodeClass {name:?} leads to no instance type: {}",
                why.join("; ")
            )));
        }
        Ok(types.into())
    }

    async fn restart(&self, claim: &NodeClaim) -> Result<(), ProviderError> {
        let provider_id =
            claim.status.as_ref().and_then(|status| status.provider_id.clone()).unwrap_or_default();
        let id = machine_id(&provider_id)
            .ok_or_else(|| ProviderError::other("the NodeClaim has no machine yet"))?;
        self.shared.must_see(claim).await?;
        let mut found = None;
        for scope in self.scopes_of(claim).map_err(ProviderError::other)? {
            found = match self.shared.machine(id, &scope).await {
                Err(error) if self.shared.may_leave_out(&scope, &error) => continue,
                machine => machine.map_err(ProviderError::other)?.or(found),
            };
        }
        let Some(machine) = found else { return Err(self.absent(id).await) };
        if let Some(why) = self.shared.why_not_ours(&machine) {
            let text = format!("virtual machine {} ({id}) is not rebooted: {why}", machine.name);
            return Err(ProviderError::RebootFailed(Cause::new(text)));
        }
        match self.shared.client.call(&requests::reboot(id)).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => Err(ProviderError::not_found(error)),
            Err(error) => Err(ProviderError::other(error)),
        }
    }

    /// The scopes a claim's machine may be in: where it was launched, if that is written down; where it would be, otherwise.
    ///
    /// # Errors
    ///
    /// If that depends on NodeClasses and they are not known yet.
    pub(crate) fn scopes_of(&self, claim: &NodeClaim) -> Result<Vec<Scope>, ApiError> {
        // Nowhere else: a NodeClass that names a project that does not exist must not keep its machines from going.
        if let Some(scope) = launched_in(claim) {
            return Ok(vec![scope]);
        }
        let class = self.shared.objects.node_class(&claim.spec.node_class_ref.name);
        match class.and_then(|class| class.spec.clone()) {
            Some(spec) => Ok(vec![crate::resolved::scope_of(&spec, &self.shared.scope())]),
            None => self.shared.scopes(),
        }
    }
}

impl CloudProvider for CloudStackProvider {
    fn name(&self) -> &str {
        "cloudstack"
    }

    fn supported_node_classes(&self) -> &[NodeClassKind] {
        &self.kinds
    }

    fn create<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, Launch> {
        self.launch(claim).boxed()
    }

    fn delete<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, ()> {
        async move {
            self.shared.must_see(claim).await?;
            let scopes = self.scopes_of(claim).map_err(ProviderError::other)?;
            self.shared.remove(claim, &scopes).await
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
        self.types_of_pool(pool).boxed()
    }

    fn is_drifted<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, Option<String>> {
        self.drift(claim).boxed()
    }

    fn reboot<'a>(&'a self, claim: &'a NodeClaim, _operation_id: &'a str) -> ProviderFuture<'a, ()> {
        self.restart(claim).boxed()
    }

    fn repair_policies(&self) -> Vec<RepairPolicy> {
        repair::policies(self.shared.options.repair_after)
    }

    /// The server takes deployments of an account one by one, about one a second: many at once take their time.
    fn launch_timeout(&self) -> Duration {
        LAUNCH_TIMEOUT
    }

    /// The name follows from the NodeClaim, so it is written down before anything is made.
    fn launch_handle(&self, claim: &NodeClaim) -> Option<LaunchHandle> {
        Some(LaunchHandle(self.shared.naming.of_claim(claim)))
    }

    fn disruption_hold(&self, claim: &NodeClaim) -> Option<DisruptionHold> {
        self.hold(claim)
    }

    fn scheduling_rules(&self) -> SchedulingRules {
        let mut rules = SchedulingRules::default();
        rules.well_known_labels.extend(labels::WELL_KNOWN.iter().map(|label| (*label).into()));
        rules.restricted_label_domains.insert(GROUP.into());
        rules.reservation_id_label = labels::RESERVATION_ID.into();
        rules.sells_spot = false;
        rules
    }

    fn reserved_capacity_labels(&self) -> BTreeSet<String> {
        [labels::RESERVATION_ID.to_owned()].into()
    }

    fn label_rules(&self, core: LabelRules) -> LabelRules {
        core.with_well_known(labels::WELL_KNOWN).with_restricted_domain(GROUP)
    }
}
