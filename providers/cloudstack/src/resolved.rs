//! What a NodeClass comes to on this cloud: its zones, networks, templates and offerings, looked up.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt as _;

use crate::catalogue::Catalogue;
use crate::client::error::ApiError;
use crate::client::model::{DiskOffering, Named, Network, SecurityGroup, ServiceOffering, Template, Zone};
use crate::client::request::Scope;
use crate::client::requests::NewDisk;
use crate::instancetypes::{self, Architectures, Market, Names, Size};
use crate::keys::is_id;
use crate::naming::label_value;
use crate::nodeclass::{Bootstrap, CloudStackNodeClass, CloudStackNodeClassSpec, Iops};
use crate::quota::Need;
use crate::{networks, selection, templates, zones};

/// Root disk where nobody says.
const ROOT_DISK_GB: i64 = 20;

/// A part of the NodeClass that leads nowhere: which field, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// The condition it belongs to.
    pub(crate) condition: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// What a zone has for the NodeClass.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct InZone {
    pub(crate) networks: Vec<Network>,
    /// Those that each further interface may be in, in the order they are taken.
    pub(crate) additional: Vec<Vec<Network>>,
    /// What a machine needs and the zone does not have, by the field that asks for it.
    pub(crate) lacks: Vec<&'static str>,
    pub(crate) templates: Vec<Template>,
    /// Those that are selected and cannot be used yet.
    pub(crate) unready_templates: Vec<Template>,
    pub(crate) offerings: Vec<ServiceOffering>,
    pub(crate) disks: Vec<DiskOffering>,
}

impl InZone {
    /// Whether there is a network for every further interface.
    fn has_additional(&self) -> bool {
        !self.additional.iter().any(Vec::is_empty)
    }

    /// The networks of all interfaces, each once.
    pub(crate) fn all_networks(&self) -> impl Iterator<Item = &Network> {
        let mut seen = BTreeSet::new();
        let all = self.networks.iter().chain(self.additional.iter().flatten());
        all.filter(move |network| seen.insert(&network.id))
    }
}

/// What a NodeClass comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Resolved {
    /// Name of the NodeClass.
    pub(crate) class: String,
    pub(crate) spec: CloudStackNodeClassSpec,
    pub(crate) scope: Scope,
    pub(crate) zones: Vec<Zone>,
    /// Ids of all zones that can be used, selected or not.
    pub(crate) visible_zones: BTreeSet<String>,
    /// Zones that are named and not there, or disabled.
    pub(crate) missing_zones: Vec<String>,
    /// Zones that are there and whose machines cannot be put into networks.
    pub(crate) basic_zones: Vec<String>,
    pub(crate) in_zone: BTreeMap<String, InZone>,
    /// Ids of the security groups it names or selects.
    pub(crate) security_groups: Vec<String>,
    /// Ids of the affinity groups the NodeClass names.
    pub(crate) affinity_groups: Vec<String>,
    /// Whether the server makes one extra disk with a machine only, and further ones are attached to it later.
    pub(crate) single_disk: bool,
    /// Whether the machine gets one key pair that is told by another parameter: the server is too old for several, or its name has a comma.
    pub(crate) single_key_pair: bool,
    pub(crate) problems: Vec<Problem>,
}

/// The project or account of a NodeClass, or what is given for all.
pub(crate) fn scope_of(spec: &CloudStackNodeClassSpec, otherwise: &Scope) -> Scope {
    match (&spec.project_id, &spec.account, &spec.domain_id) {
        (Some(project), _, _) => Scope::Project(project.clone()),
        (None, Some(account), Some(domain_id)) => {
            Scope::Account { account: account.clone(), domain_id: domain_id.clone() }
        }
        _ => otherwise.clone(),
    }
}

/// Looks everything up. What cannot be found is a problem of the NodeClass; what cannot be asked is an error.
pub(crate) async fn resolve(
    class: &CloudStackNodeClass,
    default_scope: &Scope,
    catalogue: &Catalogue,
) -> Result<Resolved, ApiError> {
    let spec = class.spec.clone().unwrap_or_default();
    let scope = scope_of(&spec, default_scope);
    // Nothing can be asked for it: `-1` would be answered with what is in all projects at once.
    if let Some(problem) = no_id(&spec) {
        let class = class.name_any();
        return Ok(Resolved { class, scope, spec, problems: vec![problem], ..Resolved::default() });
    }
    let there = catalogue.zones().await?;
    let (mut found, missing) = zones::resolve(&class.zones(), &spec.zone_selector_terms, &there);
    let basic = found.extract_if(.., |zone| zone.networktype == BASIC).map(|zone| zone.name).collect();
    let visible = there.iter().filter(|zone| zone.allocationstate != "Disabled");
    let mut resolved = Resolved {
        class: class.name_any(),
        scope,
        zones: found,
        visible_zones: visible.map(|zone| zone.id.clone()).collect(),
        missing_zones: missing.clone(),
        basic_zones: basic,
        spec,
        ..Resolved::default()
    };
    if resolved.zones.is_empty() {
        resolved.problems.push(Problem {
            condition: crate::nodeclass::ZONES_READY,
            reason: "ZoneValidationFailed",
            message: resolved.about_basic_zones().unwrap_or_else(|| {
                format!(
                    "spec.zone, spec.zones, spec.zoneSelectorTerms: there is no enabled zone {}; the account sees other zones or none (listZones)",
                    quoted(&missing)
                )
            }),
        });
    }
    for zone in resolved.zones.clone() {
        let in_zone = look_into(&zone, &resolved, catalogue).await?;
        resolved.in_zone.insert(zone.id.clone(), in_zone);
    }
    resolved.find_problems();
    look_at_version(&mut resolved, catalogue).await?;
    look_for_names(&mut resolved, catalogue).await?;
    Ok(resolved)
}

/// What the server is too old for: servers ignore in silence what they do not know. Those before 4.21 make one extra disk with a machine,
/// those before 4.17 give it one key pair, and the root disk of its service offering.
async fn look_at_version(resolved: &mut Resolved, catalogue: &Catalogue) -> Result<(), ApiError> {
    let spec = &resolved.spec;
    let has_disks = !spec.data_disks.is_empty() || spec.disk_offering.is_some();
    let pairs: BTreeSet<&String> = spec.ssh_key_pair.iter().chain(&spec.ssh_key_pairs).collect();
    if !has_disks && pairs.is_empty() && spec.root_disk_offering.is_none() {
        return Ok(());
    }
    let version = catalogue.capabilities().await?.cloudstackversion;
    let mut numbers = version.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let known = numbers.next().zip(numbers.next());
    let is_before = |newer: (u32, u32)| known.is_some_and(|version| version < newer);
    let mut problems = Vec::new();
    let mut unsupported = |message: String| {
        problems.push(Problem {
            condition: crate::nodeclass::VALIDATION_SUCCEEDED,
            reason: "NotSupportedByServer",
            message,
        });
    };
    // A list of names is taken apart at its commas.
    let in_parts = pairs.iter().find(|pair| pair.contains(','));
    if is_before((4, 17)) {
        if pairs.len() > 1 {
            unsupported(format!(
                "spec.sshKeyPair, spec.sshKeyPairs: CloudStack {version} gives a machine one key pair, and {} are named; name one, or upgrade the server to 4.17 or later",
                pairs.len()
            ));
        }
        if spec.root_disk_offering.is_some() {
            unsupported(format!(
                "spec.rootDiskOffering: CloudStack {version} gives the root disk that of the service offering; remove the field and select service offerings with the disk that is wanted, or upgrade the server to 4.17 or later"
            ));
        }
    }
    if let Some(pair) = in_parts.filter(|_| pairs.len() > 1 && !is_before((4, 17))) {
        unsupported(format!(
            "spec.sshKeyPair, spec.sshKeyPairs: CloudStack takes the name {pair:?} for several, because of its comma; name it alone, or register the key pair under another name"
        ));
    }
    let single_key_pair = is_before((4, 17)) || in_parts.is_some();
    resolved.single_disk = is_before((4, 21));
    resolved.single_key_pair = single_key_pair;
    resolved.problems.extend(problems);
    Ok(())
}

/// What is only named: whether it is there, before a deployment is refused for it.
async fn look_for_names(resolved: &mut Resolved, catalogue: &Catalogue) -> Result<(), ApiError> {
    let mut problems = Vec::new();
    let missing = |problems: &mut Vec<Problem>, field: &str, what: &str, name: &str| {
        problems.push(Problem {
            condition: crate::nodeclass::VALIDATION_SUCCEEDED,
            reason: "NotFound",
            message: format!("{field}: there is no {what} {name:?} in this account or project"),
        });
    };
    let (spec, scope) = (&resolved.spec, &resolved.scope);
    for name in spec.ssh_key_pair.iter().chain(&spec.ssh_key_pairs) {
        if !catalogue.key_pairs(name, scope).await?.iter().any(|pair| pair.name == *name) {
            missing(&mut problems, "spec.sshKeyPair, spec.sshKeyPairs", "key pair", name);
        }
    }
    if let Some(id) = &spec.user_data_id
        && !catalogue.has_user_data(id, scope).await?
    {
        missing(&mut problems, "spec.userDataID", "registered user data", id);
    }
    let mut security_groups = Vec::new();
    if spec.wants_security_groups() {
        let there = catalogue.security_groups(scope).await?;
        for name in &spec.security_groups {
            match there.iter().find(|group| group.id == *name || group.name == *name) {
                Some(group) => security_groups.push(group.id.clone()),
                None => missing(&mut problems, "spec.securityGroups", "security group", name),
            }
        }
        let selected = |group: &&SecurityGroup| {
            let tag = |key: &str| selection::tag_values(&group.tags, key);
            let mut terms = spec.security_group_selector_terms.iter();
            terms.any(|term| selection::matches(term, &group.id, &group.name, tag))
        };
        let selected: Vec<&SecurityGroup> = there.iter().filter(selected).collect();
        if selected.is_empty() && !spec.security_group_selector_terms.is_empty() {
            problems.push(Problem {
                condition: crate::nodeclass::VALIDATION_SUCCEEDED,
                reason: "SecurityGroupNotFound",
                message: "spec.securityGroupSelectorTerms select no security group of this account or project; compare with listSecurityGroups".to_owned(),
            });
        }
        security_groups.extend(selected.into_iter().map(|group| group.id.clone()));
        let mut seen = BTreeSet::new();
        security_groups.retain(|id| seen.insert(id.clone()));
    }
    problems.extend(contradictions(spec));
    let mut groups = Vec::new();
    let affinity = spec.affinity.clone().unwrap_or_default();
    let of_reservations = spec.reservations.iter().filter_map(|reservation| reservation.group_id.as_ref());
    let wanted: Vec<(&str, &String)> = (affinity.group_ids.iter().map(|id| ("spec.affinity.groupIDs", id)))
        .chain(affinity.group_names.iter().map(|name| ("spec.affinity.groupNames", name)))
        .chain(of_reservations.map(|id| ("spec.reservations.groupID", id)))
        .collect();
    if !wanted.is_empty() {
        let there = catalogue.affinity_groups(scope).await?;
        for (field, wanted) in wanted {
            let by_name = field.ends_with("groupNames");
            let is =
                |group: &&Named| *wanted == if by_name { group.name.as_str() } else { group.id.as_str() };
            match there.iter().find(is) {
                // Those of reservations are for their machines only.
                Some(group) if field.starts_with("spec.affinity") => groups.push(group.id.clone()),
                Some(_) => {}
                None => problems.push(Problem {
                    condition: crate::nodeclass::AFFINITY_READY,
                    reason: "AffinityGroupNotFound",
                    message: format!(
                        "{field}: there is no affinity group {wanted:?} in this account or project"
                    ),
                }),
            }
        }
    }
    resolved.security_groups = security_groups;
    resolved.affinity_groups = groups;
    resolved.problems.extend(problems);
    Ok(())
}

/// That its project or domain is nothing that could be the id of one, in words.
fn no_id(spec: &CloudStackNodeClassSpec) -> Option<Problem> {
    let said =
        [("projectID", &spec.project_id, "listProjects"), ("domainID", &spec.domain_id, "listDomains")];
    let (field, said, command) = said.into_iter().find_map(|(field, said, command)| {
        Some((field, said.as_ref().filter(|said| !is_id(said))?, command))
    })?;
    Some(Problem {
        condition: crate::nodeclass::VALIDATION_SUCCEEDED,
        reason: "InvalidID",
        message: format!(
            "spec.{field}: {said:?} is no id; give that of one, as {command} shows it; it cannot be changed, so make another NodeClass"
        ),
    })
}

/// What is said and makes no sense wherever it is applied.
pub(crate) fn contradictions(spec: &CloudStackNodeClassSpec) -> Vec<Problem> {
    let mut problems: Vec<Problem> = no_id(spec).into_iter().collect();
    if spec.bootstrap.as_ref().is_some_and(Bootstrap::trusts_anybody) {
        problems.push(Problem {
            condition: crate::nodeclass::VALIDATION_SUCCEEDED,
            reason: "CACertHashMissing",
            message: "spec.bootstrap.caCertHash: kubeadm needs it to know the API server; write it, or caVerification: Skip to do without".to_owned(),
        });
    }
    let mut invalid = |message: String| {
        let condition = crate::nodeclass::VALIDATION_SUCCEEDED;
        problems.push(Problem { condition, reason: "InvalidResources", message });
    };
    for (field, list) in [("kubeReserved", &spec.kube_reserved), ("systemReserved", &spec.system_reserved)] {
        for (name, amount) in list.iter().flatten() {
            if amount.to_string().starts_with('-') {
                invalid(format!("spec.{field}: {name} is {amount}; nothing less than 0 can be kept"));
            }
        }
    }
    if let Some(resource) = &spec.gpu_resource {
        let is_word = |word: &str| {
            let mut ends = word.chars().take(1).chain(word.chars().last());
            !word.is_empty()
                && ends.all(|c| c.is_ascii_alphanumeric())
                && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        };
        let parts: Vec<&str> = resource.split('/').collect();
        if parts.len() != 2 || !parts.into_iter().all(is_word) {
            invalid(format!(
                "spec.gpuResource: {resource:?} is no name of an extended resource such as amd.com/gpu"
            ));
        }
    }
    problems
}

async fn look_into(zone: &Zone, resolved: &Resolved, catalogue: &Catalogue) -> Result<InZone, ApiError> {
    let Resolved { spec, scope, .. } = resolved;
    let there = catalogue.networks(&zone.id, scope).await?;
    let needs_disks =
        !spec.data_disks.is_empty() || spec.disk_offering.is_some() || spec.root_disk_offering.is_some();
    let offerings = catalogue.offerings(&zone.id, scope).await?;
    let (templates, unready_templates) =
        templates::resolve(spec, &catalogue.templates(&zone.id, scope).await?);
    let mut in_zone = InZone {
        networks: networks::primary(spec, &there),
        additional: networks::additional(spec, &there),
        templates,
        unready_templates,
        offerings: offerings.iter().filter(|o| instancetypes::selects(spec, o)).cloned().collect(),
        disks: if needs_disks {
            catalogue.disk_offerings(&zone.id, scope).await?.to_vec()
        } else {
            Vec::new()
        },
        ..InZone::default()
    };
    let has_disk =
        |wanted: &String| in_zone.disks.iter().any(|disk| disk.id == *wanted || disk.name == *wanted);
    in_zone.lacks = [
        ("networkSelectorTerms", in_zone.networks.is_empty()),
        ("additionalNetworkSelectorTerms", !in_zone.has_additional()),
        ("templateSelectorTerms", in_zone.templates.is_empty()),
        ("dataDisks, diskOffering, rootDiskOffering", !resolved.disk_names().iter().all(has_disk)),
        ("dataDisks.size", !sizeless(spec, &in_zone.disks).is_empty()),
        ("rootDiskSize", largest_template(spec, &in_zone.templates).is_some()),
        // A machine without the groups it was to have would be open to whom it should not.
        (SECURITY_GROUPS, spec.wants_security_groups() && !has_security_groups(zone, &in_zone.networks)),
    ]
    .into_iter()
    .filter_map(|(field, lacks)| lacks.then_some(field))
    .collect();
    Ok(in_zone)
}

/// The fields that ask for security groups.
const SECURITY_GROUPS: &str = "securityGroups, securityGroupSelectorTerms";

/// The disk offerings that leave the size of a data disk open, which the NodeClass does not say either.
fn sizeless(spec: &CloudStackNodeClassSpec, disks: &[DiskOffering]) -> BTreeSet<String> {
    let open = |wanted: &String| {
        disks.iter().any(|disk| (disk.id == *wanted || disk.name == *wanted) && disk.iscustomized)
    };
    let unsaid = spec.data_disks.iter().filter(|disk| disk.size.is_none()).map(|disk| &disk.offering);
    spec.disk_offering.iter().chain(unsaid).filter(|wanted| open(wanted)).cloned().collect()
}

/// The largest of the templates machines would be made from that does not fit on the root disk the NodeClass asks for.
fn largest_template<'a>(
    spec: &CloudStackNodeClassSpec,
    templates: &'a [Template],
) -> Option<(&'a Template, i64)> {
    let disk = spec.root_disk_size?.saturating_mul(1 << 30);
    let used = templates::used(templates, spec);
    let sized = used.filter_map(|template| Some((template, template.size?)));
    sized.filter(|(_, size)| *size > disk).max_by_key(|(_, size)| *size)
}

/// How many gigabytes so many bytes take.
fn whole_gb(bytes: i64) -> i64 {
    bytes.max(0).saturating_add((1 << 30) - 1) >> 30
}

/// The kind of zone that has one flat network for all.
const BASIC: &str = "Basic";

/// Whether machines of a zone can be in security groups: all of it has them, or the networks have.
fn has_security_groups(zone: &Zone, networks: &[Network]) -> bool {
    let serves = |network: &Network| network.service.iter().any(|service| service.name == "SecurityGroup");
    zone.securitygroupsenabled || (!networks.is_empty() && networks.iter().all(serves))
}

pub(crate) fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

impl Resolved {
    fn find_problems(&mut self) {
        if self.zones.is_empty() {
            return;
        }
        let zones = quoted(&self.zones.iter().map(|zone| zone.name.clone()).collect::<Vec<_>>());
        let nowhere = |has: &dyn Fn(&InZone) -> bool| !self.in_zone.values().any(has);
        let mut problems = Vec::new();
        let mut problem = |condition, reason, message: String| {
            problems.push(Problem { condition, reason, message });
        };
        if nowhere(&|zone| !zone.networks.is_empty()) {
            problem(
                crate::nodeclass::NETWORKS_READY,
                "NetworkResolutionFailed",
                format!(
                    "spec.networkSelectorTerms select no usable network in zone {zones}; compare with listNetworks of the account"
                ),
            );
        } else if !self.spec.additional_network_selector_terms.is_empty() && nowhere(&InZone::has_additional)
        {
            problem(
                crate::nodeclass::NETWORKS_READY,
                "NetworkResolutionFailed",
                format!(
                    "a term of spec.additionalNetworkSelectorTerms selects no usable network in zone {zones}"
                ),
            );
        }
        if nowhere(&|zone| !zone.templates.is_empty()) {
            problem(
                crate::nodeclass::TEMPLATES_READY,
                "TemplateResolutionFailed",
                self.about_unready_templates().unwrap_or_else(|| {
                    let hypervisor = self.spec.hypervisor.as_ref().map(|name| format!(" for spec.hypervisor {name:?}"));
                    format!(
                        "spec.templateSelectorTerms select no template{} in zone {zones}; compare with listTemplates of the account (templatefilter=executable)",
                        hypervisor.unwrap_or_default()
                    )
                }),
            );
        } else if self.spec.has_user_data()
            && !nowhere(&|zone| templates::used(&zone.templates, &self.spec).any(templates::denies_user_data))
        {
            problem(
                crate::nodeclass::TEMPLATES_READY,
                "TemplateDeniesUserData",
                "the newest template selected, or that of an architecture, brings user data of its own and denies others (userdatapolicy); remove spec.userData, userDataRef, userDataID and bootstrap, or link none with the template".to_owned(),
            );
        }
        if nowhere(&|zone| zone.offerings.iter().any(|o| !instancetypes::sizes(&self.spec, o).is_empty())) {
            let odd = self.odd_offerings().map(|odd| format!("; {odd}")).unwrap_or_default();
            problem(
                crate::nodeclass::SERVICE_OFFERINGS_READY,
                "ServiceOfferingResolutionFailed",
                format!(
                    "spec.serviceOfferingSelectorTerms select no service offering with a size in zone {zones}; tags are matched against the offering's details (addResourceDetail){odd}"
                ),
            );
        }
        for wanted in self.disk_names() {
            if nowhere(&|zone| zone.disks.iter().any(|disk| disk.id == wanted || disk.name == wanted)) {
                problem(
                    crate::nodeclass::VALIDATION_SUCCEEDED,
                    "DiskOfferingNotFound",
                    format!(
                        "there is no disk offering {wanted:?} in zone {zones} (spec.dataDisks, spec.diskOffering, spec.rootDiskOffering)"
                    ),
                );
            }
        }
        let everywhere = |lacks: &str| {
            self.in_zone.values().all(|zone| zone.lacks.contains(&lacks)) && !self.in_zone.is_empty()
        };
        if everywhere("dataDisks.size") {
            let open = self.in_zone.values().flat_map(|zone| sizeless(&self.spec, &zone.disks));
            let open: BTreeSet<String> = open.collect();
            problem(
                crate::nodeclass::VALIDATION_SUCCEEDED,
                "DiskSizeMissing",
                format!(
                    "spec.dataDisks, spec.diskOffering: disk offering {} leaves the size open; write it under spec.dataDisks with a size in gigabytes",
                    quoted(&open.into_iter().collect::<Vec<_>>())
                ),
            );
        }
        if everywhere("rootDiskSize")
            && let Some((template, bytes)) = (self.in_zone.values())
                .filter_map(|zone| largest_template(&self.spec, &zone.templates))
                .max_by_key(|(_, bytes)| *bytes)
        {
            problem(
                crate::nodeclass::VALIDATION_SUCCEEDED,
                "RootDiskTooSmall",
                format!(
                    "spec.rootDiskSize is {} and template {:?} takes {} gigabytes; give at least as many, or leave it out",
                    self.spec.root_disk_size.unwrap_or_default(),
                    template.name,
                    whole_gb(bytes)
                ),
            );
        }
        if everywhere(SECURITY_GROUPS) {
            problem(
                crate::nodeclass::VALIDATION_SUCCEEDED,
                "SecurityGroupsUnsupported",
                format!(
                    "spec.securityGroups, spec.securityGroupSelectorTerms: zone {zones} has no security groups (securitygroupsenabled), nor have the networks (service SecurityGroup); leave them out, or name a zone or networks that have them"
                ),
            );
        }
        // Each thing is somewhere, but nowhere are all of them.
        if problems.is_empty() && nowhere(&|zone| zone.lacks.is_empty()) {
            let lacks = self.zones.iter().filter_map(|zone| {
                let lacks = &self.in_zone.get(&zone.id)?.lacks;
                Some(format!("{:?} has nothing for spec.{}", zone.name, lacks.join(", spec.")))
            });
            problems.push(Problem {
                condition: crate::nodeclass::ZONES_READY,
                reason: "NoZoneHasEverything",
                message: format!("no zone has all a machine needs: {}", lacks.collect::<Vec<_>>().join("; ")),
            });
        }
        self.problems.extend(problems);
    }

    /// In words, the selected offerings of which no machine can be made.
    pub(crate) fn odd_offerings(&self) -> Option<String> {
        let offerings = || self.in_zone.values().flat_map(|zone| &zone.offerings);
        let odd: BTreeSet<String> = offerings().filter_map(instancetypes::odd_size).collect();
        let odd = (!odd.is_empty()).then(|| {
            format!(
                "left out for their size: {}; there must be 1 to {} cores and 1 to {} MiB",
                odd.into_iter().collect::<Vec<_>>().join(", "),
                instancetypes::MAX_CPUS,
                instancetypes::MAX_MEMORY_MIB
            )
        });
        let strict = offerings().filter(|it| instancetypes::keeps_its_root_disk(&self.spec, it));
        let strict: BTreeSet<String> = strict.map(|offering| offering.name.clone()).collect();
        let strict = (!strict.is_empty()).then(|| {
            format!(
                "left out because spec.rootDiskOffering is set and they take no root disk but their own (diskofferingstrictness): {}",
                quoted(&strict.into_iter().collect::<Vec<_>>())
            )
        });
        let said: Vec<String> = odd.into_iter().chain(strict).collect();
        (!said.is_empty()).then(|| said.join("; "))
    }

    /// That some of the zones it names are left out, in words.
    pub(crate) fn left_out(&self) -> Option<String> {
        if self.zones.is_empty() {
            return None;
        }
        let missing = (!self.missing_zones.is_empty()).then(|| {
            let missing = quoted(&self.missing_zones);
            format!("spec.zone, spec.zones: there is no enabled zone {missing}; the others are used")
        });
        missing.or_else(|| self.about_basic_zones())
    }

    /// That zones are of a kind whose machines take no networks, in words.
    fn about_basic_zones(&self) -> Option<String> {
        (!self.basic_zones.is_empty()).then(|| {
            format!(
                "spec.zone, spec.zones, spec.zoneSelectorTerms: zone {} has networktype Basic, where CloudStack takes no machine with networks (spec.networkSelectorTerms); name a zone with networktype Advanced",
                quoted(&self.basic_zones)
            )
        })
    }

    /// That templates are not ready yet, in words.
    fn about_unready_templates(&self) -> Option<String> {
        let unready = self.zones.iter().flat_map(|zone| {
            let templates = self.in_zone.get(&zone.id).into_iter().flat_map(|there| &there.unready_templates);
            templates.map(|template| format!("{:?} in zone {:?}", template.name, zone.name))
        });
        let unready: Vec<String> = unready.collect();
        (!unready.is_empty()).then(|| {
            format!(
                "spec.templateSelectorTerms: template {} is not ready; it is used once it is downloaded (isready of listTemplates), or name another",
                unready.join(", ")
            )
        })
    }

    /// That networks have no address left, in words.
    pub(crate) fn full_networks(&self) -> Option<String> {
        let networks = self.in_zone.values().flat_map(InZone::all_networks);
        let full: BTreeSet<&str> =
            networks.filter(|network| network.is_full()).map(|network| network.name.as_str()).collect();
        let full: Vec<String> = full.into_iter().map(str::to_owned).collect();
        (!full.is_empty()).then(|| {
            format!(
                "no address is left in network {}, so it gets no further machines; make it larger, free some, or select another (spec.networkSelectorTerms, spec.additionalNetworkSelectorTerms)",
                quoted(&full)
            )
        })
    }

    fn disk_names(&self) -> BTreeSet<String> {
        let spec = &self.spec;
        let single = [&spec.disk_offering, &spec.root_disk_offering];
        single
            .into_iter()
            .flatten()
            .chain(spec.data_disks.iter().map(|disk| &disk.offering))
            .cloned()
            .collect()
    }

    /// The sizes of all zones. Half a machine, without its second interface or its disks, is none: a zone that lacks something
    /// sells nothing.
    pub(crate) fn market(&self, carried: &Names) -> Market {
        let mut market = Market::default();
        for zone in &self.zones {
            let Some(in_zone) = self.in_zone.get(&zone.id) else { continue };
            let sizes = in_zone.offerings.iter().flat_map(|o| instancetypes::sizes(&self.spec, o)).collect();
            market.zones.push((zone.clone(), sizes));
            if !in_zone.lacks.is_empty() {
                market.lacking.insert(zone.id.clone());
            }
        }
        market.tell_apart(carried);
        market
    }

    /// Whether the NodeClass has nothing against machines in this zone. One that is disabled at the moment looks as if it were
    /// not there; what runs in it may go on.
    pub(crate) fn lets_stay_in(&self, zone_id: &str, zone_name: &str) -> bool {
        let spec = &self.spec;
        let is = |zone: &String| zone == zone_id || zone == zone_name || label_value(zone) == zone_name;
        let named = !zone_name.is_empty() && spec.zones.iter().chain(&spec.zone).any(is);
        // What terms once selected is not selected any more only if it can be seen.
        let unseen = !spec.zone_selector_terms.is_empty() && !self.visible_zones.contains(zone_id);
        self.in_zone.contains_key(zone_id) || named || unseen
    }

    /// What a machine of this size takes of the limits.
    pub(crate) fn need(&self, zone: &str, size: &Size) -> Need {
        let disks = self.disks(zone);
        let root_gb = self.root_gb(zone, size);
        let disk_gb = disks.iter().map(|(offering, size, _)| size.or(offering.disksize).unwrap_or(0).max(0));
        Need {
            cpu: size.cpu,
            memory_mib: size.memory_mib,
            gpus: size.offering.gpucount.unwrap_or(0),
            volumes: 1 + i64::try_from(disks.len()).unwrap_or(i64::MAX - 1),
            storage_gb: disk_gb.fold(root_gb, i64::saturating_add),
        }
    }

    /// How large the root disk of a machine of this size is. A disk offering of its own overrides what the size says.
    pub(crate) fn root_gb(&self, zone: &str, size: &Size) -> i64 {
        let fixed = |disk: &&DiskOffering| !disk.iscustomized;
        let of_disk = self.root_disk(zone).filter(fixed).and_then(|disk| disk.disksize);
        let said = [self.spec.root_disk_size, of_disk, size.offering.rootdisksize];
        let template = self.template_gb(zone);
        let said = said.into_iter().flatten().find(|gb| *gb > 0);
        // The server makes no disk that is smaller than what is on it.
        said.max(template).unwrap_or(ROOT_DISK_GB)
    }

    /// The architectures templates exist for, by zone.
    pub(crate) fn architectures(&self) -> Architectures<'_> {
        let of = |zone: &InZone| templates::architectures(&zone.templates, &self.spec);
        self.in_zone.iter().map(|(id, zone)| (id.as_str(), of(zone))).collect()
    }

    /// The size of the disk of a zone's templates, if anybody says: of several architectures the least, which each machine has.
    fn template_gb(&self, zone: &str) -> Option<i64> {
        let templates = &self.in_zone.get(zone)?.templates;
        let sizes = templates::used(templates, &self.spec).filter_map(|template| template.size);
        sizes.filter(|bytes| *bytes > 0).map(whole_gb).min()
    }

    /// The extra disks in a zone: offering, size where it is left open, operations per second.
    fn disks(&self, zone: &str) -> Vec<(&DiskOffering, Option<i64>, Option<Iops>)> {
        let disks = self.in_zone.get(zone).map(|zone| zone.disks.as_slice()).unwrap_or_default();
        let single = self.spec.disk_offering.iter().map(|offering| (offering, None, None));
        single
            .chain(self.spec.data_disks.iter().map(|disk| (&disk.offering, disk.size, disk.iops)))
            .filter_map(|(wanted, size, iops)| {
                let offering = disks.iter().find(|disk| disk.id == *wanted || disk.name == *wanted)?;
                Some((offering, size.filter(|_| offering.iscustomized), iops))
            })
            .collect()
    }

    /// The extra disks in a zone, to be deployed.
    pub(crate) fn new_disks(&self, zone: &str) -> Vec<NewDisk> {
        let disks = self.disks(zone).into_iter();
        disks
            .map(|(offering, size_gb, iops)| {
                let iops = iops.map(|iops| (iops.min, iops.max));
                NewDisk { offering_id: offering.id.clone(), size_gb, iops }
            })
            .collect()
    }

    /// The offering of the root disk in a zone, if one is wanted.
    pub(crate) fn root_disk_offering(&self, zone: &str) -> Option<String> {
        self.root_disk(zone).map(|disk| disk.id.clone())
    }

    fn root_disk(&self, zone: &str) -> Option<&DiskOffering> {
        let wanted = self.spec.root_disk_offering.as_ref()?;
        let disks = &self.in_zone.get(zone)?.disks;
        disks.iter().find(|disk| disk.id == *wanted || disk.name == *wanted)
    }
}
