//! What a NodeClass's status says: whether it can be used, and what was found for it.

use karpenter_api::conditions::{Condition, ConditionSet};
use karpenter_api::{ConditionStatus, labels as well_known};
use karpenter_engine::instance_type::{InstanceType, Offering};

use kube::ResourceExt as _;

use crate::candidates::tags_left_out;
use crate::client::Notice;
use crate::client::error::{ApiError, ErrorKind, remedy};
use crate::client::http::NOT_CHECKED;
use crate::client::model::Budget;
use crate::client::request::Scope;
use crate::client::requests;
use crate::labels;
use crate::nodeclass::{
    CREDENTIALS_READY, CloudStackNodeClass, LOOKED_UP, MACHINES_DELETABLE, NETWORK_READY, NETWORKS_READY,
    Network, QUOTA_AVAILABLE, SERVICE_OFFERINGS_READY, ServiceOffering, Template, VALIDATION_SUCCEEDED,
    ZONES_READY, Zone,
};
use crate::provider::CloudStackProvider;
use crate::resolved::{Resolved, resolve};
use crate::shared::Whose;

/// What is said when no keys work.
fn refused(whose: &Whose) -> String {
    let secret = match whose {
        None => "the Secret cloudstack-credentials".to_owned(),
        Some(reference) => format!("spec.credentialsRef, the Secret {reference},"),
    };
    format!("CloudStack does not take the API key and secret; check {secret} and the clock of this machine")
}

/// Whether a project is at fault. Something else may be denied or gone, which another project cannot help.
fn is_about_project(error: &ApiError) -> bool {
    matches!(error.kind, ErrorKind::NotFound | ErrorKind::Denied)
        && error.text.to_lowercase().contains("project")
}

impl CloudStackProvider {
    /// Writes into the NodeClass what there is for it. What cannot be found out leaves what was known.
    ///
    /// # Errors
    ///
    /// If CloudStack does not answer; the conditions then say so, and nothing that was resolved is taken away.
    pub async fn resolve_status(&self, class: &mut CloudStackNodeClass) -> Result<(), ApiError> {
        let now = self.shared.clock.now();
        let mut resolved = self.look_up(class).await;
        // What is remembered answers for keys that were refused meanwhile. They are asked with again, which may show that they are
        // let in; who is told that the command is not for them was let in, too.
        if resolved.is_ok()
            && self.shared.client.is_refused()
            && let Err(error) = self.shared.client.call(&requests::list_capabilities()).await
            && !error.is_a_verdict()
        {
            resolved = Err(error);
        }
        if let Ok(resolved) = &mut resolved {
            let problem = self.user_data_problem(resolved).await;
            resolved.problems.extend(problem);
        }
        let age = self.shared.client.age_of_keys();
        let whose = self.shared.whose_label.as_str();
        self.shared.metrics.credentials_age.set(&[whose], age.as_secs_f64());
        let budget = match &resolved {
            Ok(resolved) => {
                self.shared.catalogue.budget(&resolved.scope).await.ok().and_then(|(_, left)| left)
            }
            Err(_) => None,
        };
        let is_refused = self.shared.client.session().has_no_keys()
            || matches!(&resolved, Err(error) if error.kind == ErrorKind::Auth);
        self.shared.metrics.credentials.set(&[whose], f64::from(u8::from(!is_refused)));
        let types = match &resolved {
            Ok(resolved) if resolved.problems.is_empty() => {
                self.types(resolved, None).await.unwrap_or_else(|error| {
                    let text = format!("no instance type can be told yet: {error}");
                    self.shared.voice.warn(&*class, "InstanceTypesUnknown", text);
                    Vec::new()
                })
            }
            _ => Vec::new(),
        };
        if let Ok(resolved) = &resolved {
            fill(class, resolved, &types);
            if let Some(text) = resolved.full_networks() {
                self.shared.voice.warn(&*class, "NetworkExhausted", text);
            }
            for problem in self.shared.price_problems(resolved).await {
                self.shared.voice.warn(&*class, "PriceNotUsable", problem);
            }
        }
        if let (Some(budget), Ok(resolved)) = (&budget, &resolved) {
            let of = resolved.scope.write();
            for (resource, left) in [
                ("user_vm", budget.vmavailable),
                ("cpu", budget.cpuavailable),
                ("memory", budget.memoryavailable),
                ("volume", budget.volumeavailable),
                ("primary_storage", budget.primarystorageavailable),
                ("gpu", budget.gpuavailable),
            ] {
                let series = [resource, of.as_str(), whose];
                match left {
                    Some(left) => self.shared.metrics.quota.set(&series, left as f64),
                    // There is no limit, perhaps no more.
                    None => {
                        self.shared.metrics.quota.delete(&series);
                    }
                }
            }
        }
        let elsewhere = self.machines_elsewhere(class).await;
        let protected = self.protected_of(class);
        let project = class.spec.as_ref().and_then(|spec| spec.project_id.clone());
        let account = class.spec.as_ref().and_then(|spec| spec.account.clone());
        let default = self.shared.scope();
        let checked = self.shared.client.session().transport.checks_certificates();
        let mut is_told = false;
        let mut failed = None;
        let mut conditions = ConditionSet::of(class, now);
        match protected {
            Some(text) => conditions.set_false(MACHINES_DELETABLE, "DeleteProtected", &text),
            None => conditions.set_true(MACHINES_DELETABLE),
        };
        let error = match resolved {
            Ok(resolved) => {
                match self.shared.client.notice().or(elsewhere) {
                    Some(notice) => conditions.set_false(CREDENTIALS_READY, notice.reason, &notice.text),
                    None if checked => conditions.set_true(CREDENTIALS_READY),
                    None => conditions.set_true_with_reason(
                        CREDENTIALS_READY,
                        "CertificateNotChecked",
                        NOT_CHECKED,
                    ),
                };
                let odd_offerings = resolved.odd_offerings();
                for condition in LOOKED_UP {
                    match resolved.problems.iter().find(|problem| problem.condition == condition) {
                        Some(problem) => conditions.set_false(condition, problem.reason, &problem.message),
                        None if resolved.zones.is_empty() && condition != VALIDATION_SUCCEEDED => conditions
                            .set_unknown_with_reason(
                                condition,
                                "AwaitingZone",
                                "there is no zone to look into",
                            ),
                        None => {
                            let left_out = match condition {
                                ZONES_READY => resolved.left_out().map(|text| ("SomeZonesMissing", text)),
                                VALIDATION_SUCCEEDED => {
                                    tags_left_out(&resolved.spec).map(|text| ("SomeTagsLeftOut", text))
                                }
                                NETWORKS_READY => {
                                    resolved.full_networks().map(|text| ("SomeNetworksFull", text))
                                }
                                SERVICE_OFFERINGS_READY => odd_offerings.as_ref().map(|odd| {
                                    let text = format!(
                                        "spec.serviceOfferingSelectorTerms: {odd}; the others are used"
                                    );
                                    ("SomeOfferingsLeftOut", text)
                                }),
                                _ => None,
                            };
                            match left_out {
                                Some((reason, text)) => {
                                    conditions.set_true_with_reason(condition, reason, &text)
                                }
                                None => conditions.set_true(condition),
                            }
                        }
                    };
                    // Under its older name too, for who waits for that.
                    if condition == NETWORKS_READY {
                        let copy = conditions.get(condition).cloned();
                        if let Some(copy) = copy {
                            let (reason, message) = (copy.reason().to_owned(), copy.message().to_owned());
                            conditions.set(NETWORK_READY, copy.status, &reason, &message);
                        }
                    }
                }
                let refused = self.shared.quota_hits.recent(&resolved.scope);
                let is_known = budget.is_some();
                match (budget.and_then(|budget| used_up(&budget, &resolved)), refused) {
                    (Some(message), _) => conditions.set_false(QUOTA_AVAILABLE, "LimitReached", &message),
                    (None, Some(message)) => conditions.set_false(QUOTA_AVAILABLE, "QuotaExceeded", &message),
                    (None, None) if is_known => conditions.set_true(QUOTA_AVAILABLE),
                    (None, None) => conditions.set_unknown_with_reason(
                        QUOTA_AVAILABLE,
                        "LimitsNotShown",
                        "the server does not tell these keys what is left of the limits; whoever runs into one is told so (let the role call listAccounts, and listProjects for projects)",
                    ),
                };
                None
            }
            Err(error) if error.kind == ErrorKind::Auth => {
                let refused = refused(&self.shared.whose);
                conditions.set_false(CREDENTIALS_READY, "CredentialsRefused", &refused);
                // Nothing can be launched with them either.
                conditions.set_unknown_with_reason(ZONES_READY, "CredentialsRefused", &refused);
                Some(error)
            }
            Err(error) if self.shared.client.session().has_no_keys() => {
                let why =
                    self.shared.client.notice().map_or_else(|| error.text.clone(), |notice| notice.text);
                let text = match &self.shared.whose {
                    Some(_) => format!("spec.credentialsRef: {why}"),
                    None => why,
                };
                conditions.set_false(CREDENTIALS_READY, "SecretNotUsable", &text);
                conditions.set_unknown_with_reason(ZONES_READY, "SecretNotUsable", &text);
                Some(error)
            }
            Err(error) if project.is_some() && is_about_project(&error) => {
                conditions.set_true(CREDENTIALS_READY);
                let project = project.unwrap_or_default();
                let message = format!(
                    "spec.projectID: there is no project {project:?}, or it is none of this account's ({error}); it cannot be changed, so make another NodeClass"
                );
                conditions.set_false(VALIDATION_SUCCEEDED, "ProjectNotFound", &message);
                Some(error)
            }
            Err(error)
                if matches!(default, Scope::Project(_)) && account.is_none() && is_about_project(&error) =>
            {
                conditions.set_true(CREDENTIALS_READY);
                let message = format!(
                    "there is no {}, or it is none of this account's ({error}); the NodeClass names no project (spec.projectID), so it is the one of CLOUDSTACK_PROJECT_ID, or of project-id in the Secret or cloud-config: name another there",
                    default.write().replace('/', " ")
                );
                conditions.set_false(VALIDATION_SUCCEEDED, "ProjectNotFound", &message);
                Some(error)
            }
            Err(error) if account.is_some() && error.is_about_account() => {
                conditions.set_true(CREDENTIALS_READY);
                let message = format!(
                    "spec.account, spec.domainID: there is no account {:?} in that domain, or these keys may not act for it ({error}); it cannot be changed, so make another NodeClass",
                    account.unwrap_or_default()
                );
                conditions.set_false(VALIDATION_SUCCEEDED, "AccountNotFound", &message);
                Some(error)
            }
            // The server has answered, and will answer the same until somebody does something.
            Err(error) if error.is_a_verdict() => {
                conditions.set_true(CREDENTIALS_READY);
                let (reason, text) = verdict(&error);
                conditions.set_false(VALIDATION_SUCCEEDED, reason, &text);
                Some(error)
            }
            Err(error) if !error.is_nobodys_answer() => {
                conditions.set_true(CREDENTIALS_READY);
                let text =
                    format!("{error}; what was found before stays, and it is looked up again in a minute");
                if conditions.get(ZONES_READY).is_none_or(|known| known.status == ConditionStatus::Unknown) {
                    conditions.set_unknown_with_reason(ZONES_READY, "LookupFailed", &text);
                } else {
                    failed = Some(text);
                }
                // Something asked for by its id may be gone.
                if error.is_not_found() {
                    self.shared.catalogue.forget();
                }
                Some(error)
            }
            Err(error) => {
                // What was ready stays so: readiness must not flap with the API.
                for condition in [CREDENTIALS_READY, ZONES_READY] {
                    let known = conditions.get(condition);
                    let unreached = |c: &Condition| {
                        c.status == ConditionStatus::Unknown
                            && !["CredentialsRefused", "SecretNotUsable"].contains(&c.reason())
                    };
                    if known.is_none_or(unreached) {
                        is_told = true;
                        let text = format!("{error}; {}", remedy(&error.text));
                        conditions.set_unknown_with_reason(condition, "CloudStackUnreachable", &text);
                    }
                }
                Some(error)
            }
        };
        if let Some(text) = failed {
            self.shared.voice.warn(&*class, "LookupFailed", text);
        }
        // What is known is used on, so that no condition tells of it.
        let is_known = !self.shared.client.session().is_nobodys();
        if is_known
            && !is_told
            && let Some(cause) = self.shared.client.away()
        {
            let text = format!(
                "CloudStack does not answer, and what it said before is used: {cause}; {}",
                remedy(&cause)
            );
            self.shared.voice.warn(&*class, "CloudStackUnreachable", text);
        }
        error.map_or(Ok(()), Err)
    }
}

/// A refusal of what the NodeClass needs looked up: reason and text, with the field it is about and what to do.
fn verdict(error: &ApiError) -> (&'static str, String) {
    let fields = match error.command {
        "listSSHKeyPairs" => "spec.sshKeyPair, spec.sshKeyPairs",
        "listUserData" => "spec.userDataID",
        "listSecurityGroups" => "spec.securityGroups, spec.securityGroupSelectorTerms",
        "listAffinityGroups" => "spec.affinity, spec.reservations.groupID",
        "listDiskOfferings" => "spec.dataDisks, spec.diskOffering, spec.rootDiskOffering",
        "listNetworks" => "spec.networkSelectorTerms, spec.additionalNetworkSelectorTerms",
        "listTemplates" => "spec.templateSelectorTerms",
        "listServiceOfferings" => "spec.serviceOfferingSelectorTerms",
        "listZones" => "spec.zone, spec.zones, spec.zoneSelectorTerms",
        _ => "spec",
    };
    if error.kind == ErrorKind::Denied {
        let text = format!(
            "{fields}: the role of these keys may not call {} ({error}); have an administrator allow it (see karpenter cloudstack doctor), or leave the field out where that is possible",
            error.command
        );
        return ("NotPermitted", text);
    }
    let text = format!(
        "{fields}: CloudStack does not take what {} asks for ({error}); correct the field",
        error.command
    );
    ("NotUnderstood", text)
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

/// That limits leave nothing of what every machine of the NodeClass needs, in words.
fn used_up(budget: &Budget, resolved: &Resolved) -> Option<String> {
    let mut offerings = resolved.in_zone.values().flat_map(|zone| &zone.offerings);
    let all_have_gpus = offerings.all(|offering| offering.gpucount.is_some_and(|count| count > 0));
    let left = [
        (budget.vmavailable, "virtual machines"),
        (budget.cpuavailable, "cores"),
        (budget.memoryavailable, "MiB of memory"),
        (budget.volumeavailable, "volumes"),
        (budget.primarystorageavailable, "GB of primary storage"),
        (budget.gpuavailable.filter(|_| all_have_gpus), "GPUs"),
    ];
    let none: Vec<String> = left
        .into_iter()
        .filter_map(|(left, what)| left.filter(|left| *left <= 0).map(|left| format!("{left} {what}")))
        .collect();
    (!none.is_empty()).then(|| {
        format!(
            "the account's limits leave {}; ask for more, or delete what is not needed",
            none.join(" and ")
        )
    })
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
