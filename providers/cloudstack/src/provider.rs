//! The provider as the core sees it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_api::conditions::{HasConditions as _, READY};
use karpenter_api::label_rules::LabelRules;
use karpenter_api::{ConditionStatus, NodeClaim, NodePool, labels as well_known, taints};
use karpenter_cloudprovider::error::ProviderError;
use karpenter_cloudprovider::provider::{
    CloudProvider, Launch, LaunchHandle, LaunchedInstance, NodeClassKind, ProviderFuture,
};
use karpenter_cloudprovider::repair::{RepairAction, RepairPolicy};
use karpenter_cloudprovider::selection;
use karpenter_engine::Provider as SchedulingRules;
use karpenter_engine::instance_type::{InstanceType, Offering};
use karpenter_runtime::environment::Environment;
use kube::ResourceExt as _;

use crate::affinity::Groups;
use crate::client::error::ApiError;
use crate::client::model::VirtualMachine;
use crate::client::request::Scope;
use crate::client::requests::{self, Deploy};
use crate::client::{Client, model};
use crate::instances::{Candidate, is_alive};
use crate::instancetypes::{self, Market};
use crate::naming::{label_value, machine_id};
use crate::nodeclass::{CloudStackNodeClass, CloudStackNodeClassSpec, HASH_VERSION, VALIDATION_SUCCEEDED};
use crate::resolved::{Problem, Resolved, resolve};
use crate::shared::{Objects, ProviderOptions, Shared, launched_in};
use crate::unavailable::Refused;
use crate::userdata::{self, Variables};
use crate::voice::{NoValue, Voice};
use crate::{GROUP, affinity, bootstrap, labels, templates};

/// How long a launch may take, queueing for the server included.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// Virtual machines of Apache CloudStack.
pub struct CloudStackProvider {
    kinds: [NodeClassKind; 1],
    pub(crate) shared: Arc<Shared>,
}

/// What machines are told, as far as it is the same for all of a NodeClass.
struct Told {
    user_data: Option<String>,
    token: Option<String>,
}

impl Told {
    /// The user data of one machine, before its variables are filled in.
    fn text(
        &self,
        spec: &CloudStackNodeClassSpec,
        variables: &Variables,
    ) -> Result<Option<String>, bootstrap::CannotMerge> {
        match (&spec.bootstrap, &self.token) {
            (Some(how), Some(token)) => {
                let ours = bootstrap::script(how, token.trim(), spec.max_pods, variables);
                bootstrap::merge(&ours, self.user_data.as_deref()).map(Some)
            }
            _ => Ok(self.user_data.clone()),
        }
    }
}

/// The kind of NodeClass the provider serves.
pub fn kind() -> NodeClassKind {
    NodeClassKind::new(GROUP, "v1", "CloudStackNodeClass", "cloudstacknodeclasses")
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
        let shared = Shared::new(client, options, objects, voice, environment);
        Self { kinds: [kind()], shared: Arc::new(shared) }
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
        let left = shared.ordered.rest(&resolved.scope, since, budget);
        let pool = pool.and_then(|pool| affinity::refused_as(&resolved.spec, pool));
        let pool_refused = pool.is_some_and(|pool| shared.unavailable.is_refused(&pool));
        let mut hosts = BTreeMap::new();
        for zone in &resolved.zones {
            hosts.insert(zone.id.clone(), shared.catalogue.hosts(&zone.id).await);
        }
        // A sum over the zone would lie: what counts is a single host.
        let has_host = |zone: &model::Zone, size: &instancetypes::Size| {
            let known = hosts.get(&zone.id).and_then(Option::as_ref);
            known.is_none_or(|hosts| {
                hosts.iter().any(|host| host.has_room(&size.offering, size.cpu, size.memory_mib))
            })
        };
        let refused_zone = |zone: &model::Zone| {
            let networks =
                resolved.in_zone.get(&zone.id).map(|zone| zone.networks.as_slice()).unwrap_or_default();
            let no_network = networks
                .iter()
                .all(|network| shared.unavailable.is_refused(&Refused::Network(network.id.clone())));
            no_network || shared.unavailable.is_refused(&Refused::Zone(zone.id.clone()))
        };
        let available = |zone: &model::Zone, size: &instancetypes::Size| {
            let this = Refused::Type { zone: zone.id.clone(), name: size.name.clone() };
            let need = resolved.need(&zone.id, size);
            need.is_within(&left)
                && !shared.quota_hits.refuse(&resolved.scope, &need)
                && !pool_refused
                && has_host(zone, size)
                && !refused_zone(zone)
                && !shared.unavailable.is_refused(&this)
        };
        let types = instancetypes::build(
            &resolved.spec,
            &resolved.market(),
            &resolved.architectures(),
            resolved.template_gb(),
            available,
        );
        shared.metrics.unavailable.set(&[], shared.unavailable.count() as f64);
        self.measure(&types);
        Ok(types)
    }

    fn measure(&self, types: &[InstanceType]) {
        let metrics = &self.shared.metrics;
        for it in types {
            let amount =
                |name: &str| it.capacity.get(name).map_or(0.0, |amount| amount.as_units_ceil() as f64);
            metrics.type_cpu.set(&[&it.name], amount("cpu"));
            metrics.type_memory.set(&[&it.name], amount("memory"));
            for offering in &it.offerings {
                let zone = offering.requirements.get(well_known::TOPOLOGY_ZONE);
                let zone = zone.and_then(|zone| zone.values.first()).map(ToString::to_string);
                metrics.type_price.set(&[&it.name, &zone.unwrap_or_default()], offering.price);
            }
        }
    }

    async fn launch(&self, claim: &NodeClaim) -> Result<Launch, ProviderError> {
        let shared = &self.shared;
        let class = self.ready_class(&claim.spec.node_class_ref.name)?;
        let resolved =
            resolve(&class, &shared.options.scope, &shared.catalogue).await.map_err(ProviderError::other)?;
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
        let groups = self.groups(claim, &class, &resolved).await.map_err(ProviderError::other)?;
        let market = resolved.market();
        let security_groups = self.security_groups(&resolved).await?;
        let told = self.told(&resolved).await.map_err(|(field, problem)| {
            let text = format!("{field}: {problem}");
            ProviderError::create(text.clone(), "UserDataNotFound", text)
        })?;
        let mut candidates = Vec::new();
        for (instance_type, offering) in &choices {
            candidates.extend(self.candidate(
                claim,
                (&resolved, &market),
                (instance_type, offering),
                (&groups, security_groups.as_slice()),
                &told,
            )?);
        }
        let tags = self.tags(claim, &class);
        let machine = shared.launch(claim, &resolved.scope, candidates, &tags).await?;
        let mut instance = self.describe(&machine, claim, &class, &types);
        let of_zone = resolved.in_zone.get(&machine.zoneid).map(|zone| zone.templates.as_slice());
        let template = of_zone.unwrap_or_default().iter().find(|template| template.id == machine.templateid);
        if let Some(template) = template {
            let arch = templates::arch(template, &resolved.spec).to_owned();
            instance.labels.insert(well_known::ARCH.to_owned(), arch);
        }
        instance.annotations.insert(labels::SCOPE.to_owned(), resolved.scope.write());
        Ok(Launch::Launched(Box::new(instance)))
    }

    /// How the machine of this choice would be deployed; nothing if the choice names what is not there.
    fn candidate(
        &self,
        claim: &NodeClaim,
        (resolved, market): (&Resolved, &Market),
        (instance_type, offering): (&InstanceType, &Offering),
        (groups, security_groups): (&Groups, &[String]),
        told: &Told,
    ) -> Result<Option<Candidate>, ProviderError> {
        let value = |key: &str| {
            let requirement = offering.requirements.get(key)?;
            requirement.values.first().map(ToString::to_string)
        };
        let Some(zone_id) = value(labels::ZONE_ID) else { return Ok(None) };
        let (Some(in_zone), Some(zone)) =
            (resolved.in_zone.get(&zone_id), resolved.zones.iter().find(|zone| zone.id == zone_id))
        else {
            return Ok(None);
        };
        let Some(size) = market.size(&zone_id, &instance_type.name) else { return Ok(None) };
        let wanted_archs =
            karpenter_cloudprovider::conversion::requirements(claim).map_err(ProviderError::other)?;
        let template = resolved
            .architectures()
            .into_iter()
            .filter(|arch| wanted_archs.get(well_known::ARCH).is_none_or(|wanted| wanted.has(arch)))
            .find_map(|arch| templates::for_arch(&in_zone.templates, &resolved.spec, &arch));
        let unavailable = &self.shared.unavailable;
        let usable: Vec<&model::Network> = in_zone
            .networks
            .iter()
            .filter(|network| !unavailable.is_refused(&Refused::Network(network.id.clone())))
            .collect();
        // Spread by the claim's name: whoever asks again for the same claim gets the same network.
        let turn = match resolved.spec.network_selection.as_deref() {
            Some("Spread") if !usable.is_empty() => {
                let hash = karpenter_api::structure_hash::text(&claim.name_any());
                usize::try_from(hash % usable.len() as u64).unwrap_or(0)
            }
            _ => 0,
        };
        let network = usable.get(turn).copied();
        let (Some(template), Some(network)) = (template, network) else { return Ok(None) };
        let spec = &resolved.spec;
        let mut details = spec.details.clone().unwrap_or_default();
        details.extend(size.details.clone());
        let variables = self.variables(claim, &zone.name, &size.name);
        let told = told.text(spec, &variables).map_err(|error| {
            let text = error.to_string();
            ProviderError::create(error, "UserDataInvalid", text)
        })?;
        let user_data = match told {
            Some(text) => {
                let rendered = userdata::render(&text, &variables).map_err(|error| {
                    let text = error.to_string();
                    self.shared.voice.warn(claim, "UserDataTooLong", text.clone());
                    ProviderError::create(error, "UserDataTooLong", text)
                })?;
                Some(rendered)
            }
            None => None,
        };
        let networks = std::iter::once(network).chain(&in_zone.additional);
        Ok(Some(Candidate {
            type_name: size.name.clone(),
            zone_id: zone_id.clone(),
            zone_name: zone.name.clone(),
            offering_name: size.offering.name.clone(),
            network_name: network.name.clone(),
            need: resolved.need(&zone_id, size),
            group_refused_as: groups.refused_as.clone(),
            deploy: Deploy {
                zone_id: zone_id.clone(),
                service_offering_id: size.offering.id.clone(),
                template_id: template.id.clone(),
                network_ids: networks.map(|network| network.id.clone()).collect(),
                security_group_ids: security_groups.to_vec(),
                affinity_group_ids: groups.ids.clone(),
                key_pairs: spec.ssh_key_pair.iter().chain(&spec.ssh_key_pairs).cloned().collect(),
                user_data,
                user_data_id: spec.user_data_id.clone(),
                root_disk_size_gb: spec.root_disk_size,
                root_disk_offering_id: resolved.root_disk_offering(&zone_id),
                data_disks: resolved.new_disks(&zone_id),
                details,
                group: Some(self.shared.options.cluster_name.clone()),
                boot_type: spec.boot_type.clone(),
                boot_mode: spec.boot_mode.clone(),
                scope: resolved.scope.clone(),
                ..Deploy::default()
            },
        }))
    }

    /// What machines of this NodeClass are told besides what is known of each.
    async fn told(&self, resolved: &Resolved) -> Result<Told, (&'static str, NoValue)> {
        let voice = &self.shared.voice;
        let user_data = match &resolved.spec.user_data_ref {
            Some(wanted) => {
                let value = voice.value_of(wanted).await;
                Some(value.map_err(|problem| ("spec.userDataRef", problem))?)
            }
            None => resolved.spec.user_data.clone(),
        };
        let token = match &resolved.spec.bootstrap {
            Some(bootstrap) => {
                let value = voice.value_of(&bootstrap.token_secret_ref).await;
                Some(value.map_err(|problem| ("spec.bootstrap.tokenSecretRef", problem))?)
            }
            None => None,
        };
        Ok(Told { user_data, token })
    }

    /// What is wrong with what machines of this NodeClass would be told, before any is made.
    pub(crate) async fn user_data_problem(&self, resolved: &Resolved) -> Option<Problem> {
        let problem = |reason: &'static str, message: String| {
            Some(Problem { condition: VALIDATION_SUCCEEDED, reason, message })
        };
        let told = match self.told(resolved).await {
            Ok(told) => told,
            Err((field, NoValue::Missing(text))) => {
                return problem("UserDataNotFound", format!("{field}: {text}"));
            }
            // Not knowing is no verdict.
            Err((_, NoValue::Unreadable(_))) => return None,
        };
        let variables = Variables::default();
        match told.text(&resolved.spec, &variables) {
            Err(error) => problem("UserDataInvalid", error.to_string()),
            Ok(text) => match userdata::render(&text?, &variables) {
                Err(error) => problem("UserDataTooLong", error.to_string()),
                Ok(_) => None,
            },
        }
    }

    fn variables(&self, claim: &NodeClaim, zone: &str, instance_type: &str) -> Variables {
        let pool = claim.labels().get(well_known::NODEPOOL).cloned().unwrap_or_default();
        let mut labels: Vec<String> =
            claim.labels().iter().map(|(key, value)| format!("{key}={value}")).collect();
        labels.sort();
        let mut all_taints = vec![taints::UNREGISTERED.to_taint()];
        all_taints.extend(claim.spec.taints().iter().chain(claim.spec.startup_taints()).cloned());
        let taints: Vec<String> = all_taints
            .iter()
            .map(|taint| {
                format!("{}={}:{}", taint.key, taint.value.as_deref().unwrap_or_default(), taint.effect)
            })
            .collect();
        Variables {
            cluster: self.shared.options.cluster_name.clone(),
            node_claim: claim.name_any(),
            node_pool: pool,
            zone: zone.to_owned(),
            instance_type: instance_type.to_owned(),
            labels: labels.join(","),
            taints: taints.join(","),
        }
    }

    /// What a machine of this claim is tagged with. Nothing of the user's overrides what says whose it is.
    pub(crate) fn tags(&self, claim: &NodeClaim, class: &CloudStackNodeClass) -> BTreeMap<String, String> {
        let spec = class.spec.clone().unwrap_or_default();
        let mut tags = spec.tags.clone().unwrap_or_default();
        let mut put = |key: &str, value: String| {
            if !value.is_empty() {
                tags.insert(key.to_owned(), value);
            }
        };
        put(labels::TAG_MANAGED_BY, "karpenter".to_owned());
        put(&labels::cluster_tag(&self.shared.options.cluster_name), "owned".to_owned());
        put(labels::TAG_NODE_CLAIM, claim.name_any());
        put(labels::TAG_NODE_POOL, claim.labels().get(well_known::NODEPOOL).cloned().unwrap_or_default());
        put(labels::TAG_NODE_CLASS, class.name_any());
        put(labels::TAG_NODE_CLAIM_UID, claim.uid().unwrap_or_default());
        put(labels::TAG_NODE_CLASS_HASH, class.hash());
        let disks = spec.data_disks.len() + usize::from(spec.disk_offering.is_some());
        if disks > 0 {
            put(labels::TAG_DATA_DISKS, disks.to_string());
        }
        tags
    }

    /// The ids of the security groups the NodeClass names.
    async fn security_groups(&self, resolved: &Resolved) -> Result<Vec<String>, ProviderError> {
        if resolved.spec.security_groups.is_empty() {
            return Ok(Vec::new());
        }
        let there =
            self.shared.catalogue.security_groups(&resolved.scope).await.map_err(ProviderError::other)?;
        let named = |wanted: &String| {
            let group = there.iter().find(|group| group.id == *wanted || group.name == *wanted);
            group.map(|group| group.id.clone()).ok_or_else(|| {
                let text = format!("spec.securityGroups: there is no security group {wanted:?}");
                ProviderError::create(text.clone(), "SecurityGroupNotFound", text)
            })
        };
        resolved.spec.security_groups.iter().map(named).collect()
    }

    /// The machine as the core wants to hear of it.
    fn describe(
        &self,
        machine: &VirtualMachine,
        claim: &NodeClaim,
        class: &CloudStackNodeClass,
        types: &[InstanceType],
    ) -> LaunchedInstance {
        let provider_id = self.shared.options.provider_id.write(&machine.zonename, &machine.id);
        let is_size = |it: &&InstanceType| {
            let is = |key: &str, wanted: &str| {
                it.requirements.get(key).is_some_and(|requirement| requirement.has(wanted))
            };
            let number = |number: Option<i64>| number.map_or_else(String::new, |number| number.to_string());
            is(labels::SERVICE_OFFERING_ID, &machine.serviceofferingid)
                && is(labels::INSTANCE_CPU, &number(machine.cpunumber))
                && is(labels::INSTANCE_MEMORY, &number(machine.memory))
        };
        let zone = label_value(&machine.zonename);
        let chosen = types.iter().find(is_size).and_then(|it| {
            let in_zone = |offering: &&Offering| {
                offering
                    .requirements
                    .get(well_known::TOPOLOGY_ZONE)
                    .is_some_and(|requirement| requirement.has(&zone))
            };
            Some((it, it.offerings.iter().find(in_zone)?))
        });
        let mut instance = match chosen {
            Some((it, offering)) => selection::describe(&provider_id, it, offering),
            None => LaunchedInstance { provider_id, ..LaunchedInstance::default() },
        };
        let mut put = |key: &str, value: &str| {
            if !value.is_empty() {
                instance.labels.insert(key.to_owned(), label_value(value));
            }
        };
        put(well_known::TOPOLOGY_ZONE, &machine.zonename);
        put(labels::ZONE_ID, &machine.zoneid);
        put(labels::ZONE_NAME, &machine.zonename);
        put(labels::SERVICE_OFFERING_ID, &machine.serviceofferingid);
        put(labels::SERVICE_OFFERING_NAME, &machine.serviceofferingname);
        put(labels::TEMPLATE_ID, &machine.templateid);
        put(labels::TEMPLATE_NAME, &machine.templatename);
        if let Some(nic) = machine.nic.iter().find(|nic| nic.isdefault).or(machine.nic.first()) {
            put(labels::NETWORK_ID, &nic.networkid);
            put(labels::NETWORK_NAME, &nic.networkname);
        }
        put(well_known::OS, "linux");
        let pool = machine
            .tag(labels::TAG_NODE_POOL)
            .or_else(|| Some(claim.labels().get(well_known::NODEPOOL)?.as_str()));
        put(well_known::NODEPOOL, pool.unwrap_or_default());
        instance.image_id = machine.templateid.clone();
        instance.annotations.insert(labels::NODE_CLASS_HASH.to_owned(), class.hash());
        instance.annotations.insert(labels::NODE_CLASS_HASH_VERSION.to_owned(), HASH_VERSION.to_owned());
        instance
    }

    /// The machine as a NodeClaim, which is how instances are listed.
    fn as_claim(&self, machine: &VirtualMachine) -> NodeClaim {
        let mut claim = NodeClaim::default();
        let nothing = CloudStackNodeClass::default();
        let mut instance = self.describe(machine, &claim, &nothing, &[]);
        instance.annotations.clear();
        instance.write_into(&mut claim);
        claim.metadata.name = machine.tag(labels::TAG_NODE_CLAIM).map(str::to_owned);
        claim.metadata.creation_timestamp = machine.created().map(Time);
        if !is_alive(machine) {
            claim.metadata.deletion_timestamp = Some(Time(self.shared.clock.now()));
        }
        claim.status.get_or_insert_default().node_name = Some(machine.name.clone());
        claim
    }

    async fn find(&self, provider_id: &str) -> Result<NodeClaim, ProviderError> {
        let id = machine_id(provider_id).ok_or_else(|| {
            ProviderError::other(format!("provider id {provider_id:?} is none of CloudStack's"))
        })?;
        for scope in self.shared.scopes().map_err(ProviderError::other)? {
            if let Some(machine) = self.shared.machine(id, &scope).await.map_err(ProviderError::other)? {
                // A machine that failed to start is none, and garbage collection sees to it.
                if machine.state != "Error" {
                    return Ok(self.as_claim(&machine));
                }
            }
        }
        Err(ProviderError::not_found(format!("CloudStack has no virtual machine {id}")))
    }

    async fn list_all(&self) -> Result<Vec<NodeClaim>, ProviderError> {
        let mut claims = Vec::new();
        for scope in self.shared.scopes().map_err(ProviderError::other)? {
            let machines = self.shared.all_machines(&scope).await.map_err(ProviderError::other)?;
            let there = machines.iter().filter(|machine| machine.state != "Error");
            claims.extend(there.map(|machine| self.as_claim(machine)));
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
            resolve(&class, &shared.options.scope, &shared.catalogue).await.map_err(ProviderError::other)?;
        Ok(self.types(&resolved, Some(&pool.name_any())).await.map_err(ProviderError::other)?.into())
    }

    async fn restart(&self, claim: &NodeClaim) -> Result<(), ProviderError> {
        let provider_id =
            claim.status.as_ref().and_then(|status| status.provider_id.clone()).unwrap_or_default();
        let id = machine_id(&provider_id)
            .ok_or_else(|| ProviderError::other("the NodeClaim has no machine yet"))?;
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
            Some(spec) => Ok(vec![crate::resolved::scope_of(&spec, &self.shared.options.scope)]),
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
        let policy = |status: &str| RepairPolicy {
            condition_type: "Ready".to_owned(),
            condition_status: status.to_owned(),
            reason_regex: String::new(),
            toleration: self.shared.options.repair_after,
            termination_grace_period: None,
            priority: 0,
            action: RepairAction::ReplaceNode,
        };
        vec![policy("False"), policy("Unknown")]
    }

    /// The server takes deployments of an account one by one, about one a second: many at once take their time.
    fn launch_timeout(&self) -> Duration {
        LAUNCH_TIMEOUT
    }

    /// The name follows from the NodeClaim, so it is written down before anything is made.
    fn launch_handle(&self, claim: &NodeClaim) -> Option<LaunchHandle> {
        Some(LaunchHandle(self.shared.naming.of_claim(claim)))
    }

    fn scheduling_rules(&self) -> SchedulingRules {
        let mut rules = SchedulingRules::default();
        rules.well_known_labels.extend(labels::WELL_KNOWN.iter().map(|label| (*label).into()));
        rules.restricted_label_domains.insert(GROUP.into());
        rules
    }

    fn label_rules(&self, core: LabelRules) -> LabelRules {
        core.with_well_known(labels::WELL_KNOWN).with_restricted_domain(GROUP)
    }
}
