//! Keeps what a NodeClass's status says: looks at what there is, has [`crate::judgement`] judge it, and writes down what was found.

use karpenter_api::conditions::ConditionSet;
use karpenter_api::labels as well_known;
use karpenter_engine::instance_type::{InstanceType, Offering};

use kube::ResourceExt as _;

use crate::client::Notice;
use crate::client::error::{ApiError, ErrorKind, remedy};
use crate::client::model::Budget;
use crate::client::requests;
use crate::judgement::Observed;
use crate::labels;
use crate::nodeclass::{CloudStackNodeClass, Network, ServiceOffering, Template, Zone};
use crate::provider::CloudStackProvider;
use crate::resolved::{Resolved, resolve};

impl CloudStackProvider {
    /// Writes into the NodeClass what there is for it. What cannot be found out leaves what was known.
    ///
    /// # Errors
    ///
    /// If CloudStack does not answer; the conditions then say so, and nothing that was resolved is taken away.
    pub async fn resolve_status(&self, class: &mut CloudStackNodeClass) -> Result<(), ApiError> {
        let now = self.shared.clock.now();
        let observed = self.observe(class).await;
        self.report(&observed);
        if let Ok(resolved) = &observed.resolved {
            fill(class, resolved, &observed.types);
            if let Some(text) = resolved.full_networks() {
                self.shared.voice.warn(&*class, "NetworkExhausted", text);
            }
            for problem in self.shared.price_problems(resolved).await {
                self.shared.voice.warn(&*class, "PriceNotUsable", problem);
            }
        }
        let judged = observed.judge(&mut ConditionSet::of(class, now));
        if judged.is_outdated {
            self.shared.catalogue.forget();
        }
        if let Some(text) = judged.failed {
            self.shared.voice.warn(&*class, "LookupFailed", text);
        }
        // What is known is used on, so that no condition tells of it.
        let is_known = !self.shared.client.session().is_nobodys();
        if is_known
            && !judged.is_told
            && let Some(cause) = self.shared.client.away()
        {
            let text = format!(
                "CloudStack does not answer, and what it said before is used: {cause}; {}",
                remedy(&cause)
            );
            self.shared.voice.warn(&*class, "CloudStackUnreachable", text);
        }
        observed.resolved.map(drop)
    }

    /// Finds out what there is for a NodeClass, and what stands in the way.
    async fn observe(&self, class: &CloudStackNodeClass) -> Observed {
        let shared = &self.shared;
        let mut resolved = self.look_up(class).await;
        // What is remembered answers for keys that were refused meanwhile. They are asked with again, which may show that they are
        // let in; who is told that the command is not for them was let in, too.
        if resolved.is_ok()
            && shared.client.is_refused()
            && let Err(error) = shared.client.call(&requests::list_capabilities()).await
            && !error.is_a_verdict()
        {
            resolved = Err(error);
        }
        if let Ok(resolved) = &mut resolved {
            let problem = self.user_data_problem(resolved).await;
            resolved.problems.extend(problem);
        }
        let (mut budget, mut quota_hit, mut types) = (None, None, Vec::new());
        if let Ok(resolved) = &resolved {
            budget = shared.catalogue.budget(&resolved.scope).await.ok().and_then(|(_, left)| left);
            if resolved.problems.is_empty() {
                types = self.types(resolved, None).await.unwrap_or_else(|error| {
                    let text = format!("no instance type can be told yet: {error}");
                    shared.voice.warn(class, "InstanceTypesUnknown", text);
                    Vec::new()
                });
            }
            quota_hit = shared.quota_hits.recent(&resolved.scope);
        }
        let elsewhere = self.machines_elsewhere(class).await;
        let session = shared.client.session();
        Observed {
            spec: class.spec.clone().unwrap_or_default(),
            resolved,
            budget,
            quota_hit,
            types,
            protected: self.protected_of(class),
            notice: shared.client.notice(),
            elsewhere,
            whose: shared.whose.clone(),
            keys_place: shared.keys_place(),
            default_scope: shared.scope(),
            checks_certificates: session.transport.checks_certificates(),
            has_no_keys: session.has_no_keys(),
        }
    }

    /// Tells metrics how the keys are and what is left of the limits.
    fn report(&self, observed: &Observed) {
        let (metrics, whose) = (&self.shared.metrics, self.shared.whose_label.as_str());
        let age = self.shared.client.age_of_keys();
        metrics.credentials_age.set(&[whose], age.as_secs_f64());
        let is_refused =
            observed.has_no_keys || matches!(&observed.resolved, Err(error) if error.kind == ErrorKind::Auth);
        metrics.credentials.set(&[whose], f64::from(u8::from(!is_refused)));
        if let (Some(budget), Ok(resolved)) = (&observed.budget, &observed.resolved) {
            self.report_quota(budget, &resolved.scope.write(), whose);
        }
    }

    fn report_quota(&self, budget: &Budget, of: &str, whose: &str) {
        let quota = &self.shared.metrics.quota;
        for (resource, left) in [
            ("user_vm", budget.vmavailable),
            ("cpu", budget.cpuavailable),
            ("memory", budget.memoryavailable),
            ("volume", budget.volumeavailable),
            ("primary_storage", budget.primarystorageavailable),
            ("gpu", budget.gpuavailable),
        ] {
            let series = [resource, of, whose];
            match left {
                Some(left) => quota.set(&series, left as f64),
                // There is no limit, perhaps no more.
                None => {
                    quota.delete(&series);
                }
            }
        }
    }
}

impl CloudStackProvider {
    /// What there is for a NodeClass. What is missing as far as is remembered is looked up anew: it may be there by now.
    async fn look_up(&self, class: &CloudStackNodeClass) -> Result<Resolved, ApiError> {
        let shared = &self.shared;
        let resolved = resolve(class, &shared.scope(), &shared.catalogue).await?;
        match (resolved.problems.is_empty(), resolved.missing_zones.is_empty()) {
            (true, true) => return Ok(resolved),
            (true, false) => shared.catalogue.doubt_zones(),
            (false, _) => shared.catalogue.doubt(),
        }
        resolve(class, &shared.scope(), &shared.catalogue).await
    }

    /// What to say of machines of a NodeClass that our keys cannot see because they are of another account.
    async fn machines_elsewhere(&self, class: &CloudStackNodeClass) -> Option<Notice> {
        let mut foreign = Vec::new();
        let name = class.name_any();
        for claim in self.shared.objects.node_claims()? {
            if claim.spec.node_class_ref.name == name
                && let Ok(Some(account)) = self.shared.made_elsewhere(&claim).await
            {
                foreign.push((claim.name_any(), account));
            }
        }
        let (claim, account) = foreign.first()?;
        let text = format!(
            "the keys are of another account than {} machines, such as that of NodeClaim {claim}, were made in ({account}); they count as there and cannot be removed until keys of that account are given",
            foreign.len()
        );
        Some(Notice { reason: "AnotherAccount", text })
    }
}

/// The instance types of an offering.
fn types_of<'a>(offering: &'a str, types: &'a [InstanceType]) -> impl Iterator<Item = &'a InstanceType> {
    types.iter().filter(move |it| {
        it.requirements.get(labels::SERVICE_OFFERING_ID).is_some_and(|requirement| requirement.has(offering))
    })
}

/// What the cheapest of its sizes costs. A reservation costs next to nothing, and only until it is used up.
fn cheapest(offering: &str, types: &[InstanceType]) -> Option<f64> {
    let is_reserved = |offering: &&Offering| {
        let kind = offering.requirements.get(well_known::CAPACITY_TYPE);
        kind.is_some_and(|kind| kind.has(well_known::CAPACITY_TYPE_RESERVED))
    };
    let offerings = types_of(offering, types).flat_map(|it| &it.offerings);
    offerings.filter(|offering| !is_reserved(offering)).map(|offering| offering.price).min_by(f64::total_cmp)
}

/// Whether any size can be had in any zone; nothing if it has no size.
fn is_available(offering: &str, types: &[InstanceType]) -> Option<String> {
    let mut offerings = types_of(offering, types).flat_map(|it| &it.offerings).peekable();
    offerings.peek()?;
    let available = offerings.any(|offering| offering.available);
    Some(if available { "True" } else { "False" }.to_owned())
}

/// What was found, for people to read.
fn fill(class: &mut CloudStackNodeClass, resolved: &Resolved, types: &[InstanceType]) {
    let mut networks = Vec::new();
    let mut templates = Vec::new();
    let mut offerings: Vec<ServiceOffering> = Vec::new();
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    for zone in &resolved.zones {
        let Some(in_zone) = resolved.in_zone.get(&zone.id) else { continue };
        networks.extend(in_zone.all_networks().map(|network| Network {
            id: network.id.clone(),
            name: network.name.clone(),
            type_: text(&network.kind),
            zone: zone.name.clone(),
        }));
        templates.extend(in_zone.templates.iter().map(|template| Template {
            id: template.id.clone(),
            name: template.name.clone(),
            os_type: text(&template.ostypename),
            zone: zone.name.clone(),
        }));
        for offering in &in_zone.offerings {
            if !offerings.iter().any(|other| other.id == offering.id) {
                offerings.push(ServiceOffering {
                    id: offering.id.clone(),
                    name: offering.name.clone(),
                    cpu_number: offering.cpunumber.unwrap_or(0),
                    cpu_speed: offering.cpuspeed,
                    memory: offering.memory.unwrap_or(0),
                    network_rate: offering.networkrate,
                    price: cheapest(&offering.id, types).map(|price| format!("{price:.4}")),
                    available: is_available(&offering.id, types),
                });
            }
        }
    }
    let zones = resolved.zones.iter().map(|zone| Zone { id: zone.id.clone(), name: zone.name.clone() });
    let zones: Vec<Zone> = zones.collect();
    let names: Vec<&str> = zones.iter().map(|zone| zone.name.as_str()).collect();
    let available = offerings.iter().filter(|offering| offering.available.as_deref() == Some("True")).count();
    let status = class.status.get_or_insert_default();
    status.zone_names = Some(names.join(","));
    status.offerings_available = Some(format!("{available}/{}", offerings.len()));
    status.zones = Some(zones);
    status.networks = Some(networks);
    status.templates = Some(templates);
    status.service_offerings = Some(offerings);
}
