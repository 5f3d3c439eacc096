//! What can be found out before anything is launched: whether keys, rights and limits will do, and what a NodeClass comes to.

use std::collections::BTreeSet;
use std::sync::Arc;

use karpenter_api::{NodeClaim, labels as well_known};
use karpenter_runtime::environment::Environment;
use kube::ResourceExt as _;

use crate::candidates::problem_of_text;
use crate::catalogue::Catalogue;
use crate::client::Client;
use crate::client::error::{ApiError, ErrorKind};
use crate::client::http::NOT_CHECKED;
use crate::client::model::{Budget, Capabilities, Named};
use crate::client::request::Scope;
use crate::client::requests;
use crate::client::throttle::Rate;
use crate::provider::CloudStackProvider;
use crate::resolved::resolve;
use crate::shared::{Objects, ProviderOptions, default_scope};
use crate::{CloudStackNodeClass, labels};

/// Commands without which nothing works.
const NEEDED: [&str; 11] = [
    "deployVirtualMachine",
    "destroyVirtualMachine",
    "listVirtualMachines",
    "queryAsyncJobResult",
    "createTags",
    "listZones",
    "listNetworks",
    "listTemplates",
    "listServiceOfferings",
    "listAccounts",
    "listCapabilities",
];
/// Commands that some features need, and which.
const USEFUL: [(&str, &str); 18] = [
    ("startVirtualMachine", "machines that were stopped stay so"),
    ("rebootVirtualMachine", "nodes are replaced where a reboot might do"),
    ("expungeVirtualMachine", "machines are destroyed and stay until the server expunges them"),
    ("listNics", "a machine that was moved to another account or project is taken for gone"),
    ("listVolumes", "data disks would outlive their machines"),
    ("listDiskOfferings", "spec.dataDisks cannot be used"),
    ("listAffinityGroups", "spec.affinity cannot be used"),
    ("createAffinityGroup", "spec.affinity cannot be used"),
    ("deleteAffinityGroup", "affinity groups outlive their NodePools"),
    ("listProjects", "the limits of projects are not known beforehand"),
    ("listSecurityGroups", "spec.securityGroups cannot be used"),
    ("listSSHKeyPairs", "spec.sshKeyPair and spec.sshKeyPairs cannot be used"),
    ("listUserData", "spec.userDataID cannot be used"),
    ("listEvents", "spot machines that are stopped or moved are not replaced"),
    ("deleteTags", "tags of machines that run keep the values they were made with"),
    ("createVolume", "servers before 4.21 give machines no more than one data disk"),
    ("attachVolume", "servers before 4.21 give machines no more than one data disk"),
    ("deleteVolume", "data disks that lost their machine stay"),
];
/// Commands that are asked for where they are there, and that nobody misses.
#[cfg(test)]
const UNMISSED: [&str; 3] = ["listApis", "listHosts", "quotaTariffList"];

/// How something looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it should.
    Good,
    /// Something will not be possible.
    Odd,
    /// Karpenter would not work.
    Bad,
}

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub what: &'static str,
    /// How it looks.
    pub verdict: Verdict,
    /// What there is to say, with the remedy.
    pub text: String,
}

struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, what: &'static str, verdict: Verdict, text: impl Into<String>) {
        self.0.push(Finding { what, verdict, text: text.into() });
    }
}

/// Looks at everything that can be looked at.
pub async fn examine(
    client: &Client,
    options: &ProviderOptions,
    class: Option<&CloudStackNodeClass>,
    environment: &Environment,
) -> Vec<Finding> {
    let mut findings = Findings(Vec::new());
    let capabilities = match client.capabilities().await {
        Ok(capabilities) => {
            findings.add("server", Verdict::Good, format!("CloudStack {}", capabilities.cloudstackversion));
            Some(capabilities)
        }
        Err(error) if error.is_a_verdict() => {
            findings.add("server", Verdict::Odd, format!("what it is and can is not known: {error}"));
            None
        }
        Err(error) => {
            let (what, remedy) = match error.kind {
                ErrorKind::Auth => ("credentials", "check API key, secret key and this machine's clock"),
                _ => (
                    "server",
                    "check the address, proxies and certificates (ca-bundle in the Secret, or CLOUDSTACK_CA_FILE)",
                ),
            };
            findings.add(what, Verdict::Bad, format!("{error}; {remedy}"));
            return findings.0;
        }
    };
    findings.add("credentials", Verdict::Good, "taken");
    if !client.session().transport.checks_certificates() {
        findings.add("certificate", Verdict::Odd, NOT_CHECKED);
    }
    let commands = rights(client, &mut findings).await;
    if let Some(capabilities) = capabilities {
        limits(&capabilities, commands.as_ref(), options, &mut findings);
    }
    let catalogue = Catalogue::new(client.clone(), &options.lifetimes, &environment.registry);
    let scope = default_scope(options, client);
    match catalogue.budget(&scope).await {
        Ok((_, Some(budget))) => quota(&budget, &mut findings),
        Ok((_, None)) => {
            findings.add("quota", Verdict::Odd, "the server does not tell these keys what is left")
        }
        Err(error) => findings.add("quota", Verdict::Odd, format!("what is left is not known: {error}")),
    }
    match class {
        None => match catalogue.zones().await {
            Ok(zones) if zones.is_empty() => {
                findings.add("zones", Verdict::Bad, "the account sees no zone that is enabled");
            }
            Ok(zones) => {
                let names: Vec<&str> = zones.iter().map(|zone| zone.name.as_str()).collect();
                findings.add("zones", Verdict::Good, names.join(", "));
            }
            Err(error) => findings.add("zones", Verdict::Bad, error.to_string()),
        },
        Some(class) => {
            if let Err(error) = look_at_class(options, &scope, class, &catalogue, &mut findings).await {
                findings.add("nodeclass", of_class(class), error.to_string());
            }
        }
    }
    findings.0
}

/// What the role may call; nothing where the server does not say.
async fn rights(client: &Client, findings: &mut Findings) -> Option<BTreeSet<String>> {
    // Not by pages, which this list does not have.
    let commands: BTreeSet<String> = match client.call(&requests::list_apis(None)).await {
        Ok(answer) => {
            let listed: Vec<Named> = serde_json::from_value(answer["api"].clone()).unwrap_or_default();
            listed.into_iter().map(|command| command.name).collect()
        }
        Err(error) => {
            findings.add("rights", Verdict::Odd, format!("cannot be listed: {error}"));
            return None;
        }
    };
    let missing: Vec<&str> = NEEDED.into_iter().filter(|command| !commands.contains(*command)).collect();
    if missing.is_empty() {
        findings.add("rights", Verdict::Good, format!("{} commands, all that are needed", commands.len()));
    } else {
        let text = format!("the role may not call {}; ask for a role like User", missing.join(", "));
        findings.add("rights", Verdict::Bad, text);
    }
    for (command, without) in USEFUL.iter().filter(|(command, _)| !commands.contains(*command)) {
        findings.add("rights", Verdict::Odd, format!("without {command} {without}"));
    }
    Some(commands)
}

fn limits(
    capabilities: &Capabilities,
    commands: Option<&BTreeSet<String>>,
    options: &ProviderOptions,
    findings: &mut Findings,
) {
    match (capabilities.apilimitmax, capabilities.apilimitinterval) {
        (Some(max), Some(interval)) => {
            let ours = Rate::under_limit(max, interval).map_or(0.0, |rate| rate.per_second);
            let text = format!("{max} calls in {interval} s; Karpenter keeps to {ours:.1} a second");
            findings.add("throttling", if ours < 2.0 { Verdict::Odd } else { Verdict::Good }, text);
        }
        _ => findings.add("throttling", Verdict::Good, "none that the server tells of"),
    }
    let may_call = commands.map(|commands| commands.contains("expungeVirtualMachine"));
    let may = if capabilities.allowuserexpungerecovervm { may_call } else { Some(false) };
    let (verdict, text) = match (options.expunge, may) {
        (true, Some(true)) => (Verdict::Good, "machines are expunged at once"),
        (true, None) => (Verdict::Odd, "allowed by the server; whether by the role too is not known"),
        (true, Some(false)) => (
            Verdict::Odd,
            "not allowed: destroyed machines keep name, disk and limits until the server expunges them (expunge.delay)",
        ),
        (false, _) => (Verdict::Odd, "switched off (CLOUDSTACK_EXPUNGE)"),
    };
    findings.add("expunging", verdict, text);
}

fn quota(budget: &Budget, findings: &mut Findings) {
    let all = [
        ("virtual machines", budget.vmavailable),
        ("cores", budget.cpuavailable),
        ("MiB of memory", budget.memoryavailable),
        ("volumes", budget.volumeavailable),
        ("GB of primary storage", budget.primarystorageavailable),
        ("GPUs", budget.gpuavailable),
    ];
    let left: Vec<String> =
        all.iter().filter_map(|(what, left)| Some(format!("{} {what}", (*left)?))).collect();
    // Without a GPU most machines can be made.
    let none = all.iter().any(|(what, left)| *left == Some(0) && *what != "GPUs");
    let text = if left.is_empty() { "no limits".to_owned() } else { format!("{} left", left.join(", ")) };
    findings.add("quota", if none { Verdict::Odd } else { Verdict::Good }, text);
}

/// How bad it is that something the NodeClass names is not found: what other keys see nobody knows here.
fn of_class(class: &CloudStackNodeClass) -> Verdict {
    if class.credentials().is_some() { Verdict::Odd } else { Verdict::Bad }
}

async fn look_at_class(
    options: &ProviderOptions,
    scope: &Scope,
    class: &CloudStackNodeClass,
    catalogue: &Catalogue,
    findings: &mut Findings,
) -> Result<(), ApiError> {
    if let Some(reference) = class.credentials() {
        let text = format!(
            "it is served with the keys of Secret {reference} (spec.credentialsRef); what follows is what the keys of the environment see"
        );
        findings.add("nodeclass", Verdict::Odd, text);
    }
    let resolved = resolve(class, scope, catalogue).await?;
    for problem in &resolved.problems {
        findings.add("nodeclass", of_class(class), problem.message.clone());
    }
    for zone in &resolved.zones {
        let Some(in_zone) = resolved.in_zone.get(&zone.id) else { continue };
        let names = |names: Vec<&str>| names.join(", ");
        findings.add(
            "zone",
            Verdict::Good,
            format!(
                "{}: networks {}; templates {}; offerings {}",
                zone.name,
                names(in_zone.networks.iter().map(|network| network.name.as_str()).collect()),
                names(in_zone.templates.iter().map(|template| template.name.as_str()).collect()),
                names(in_zone.offerings.iter().map(|offering| offering.name.as_str()).collect()),
            ),
        );
        for network in &in_zone.networks {
            if resolved.spec.has_user_data() && !network.service.iter().any(|s| s.name == "UserData") {
                let text = format!(
                    "network {:?} has no service UserData: machines get their user data only by a config drive",
                    network.name
                );
                findings.add("network", Verdict::Odd, text);
            }
        }
    }
    if resolved.spec.user_data_ref.is_some() {
        let text =
            "spec.userDataRef is not read here; the condition ValidationSucceeded says what is wrong with it";
        findings.add("user data", Verdict::Odd, text);
    }
    // As Karpenter looks at it, whoever's keys the NodeClass is served with.
    let problem = problem_of_text(&resolved.spec, options.max_user_data);
    if let Some(problem) = &problem {
        findings.add("user data", Verdict::Bad, problem.message.clone());
    }
    if resolved.problems.is_empty() && problem.is_none() {
        findings.add("nodeclass", Verdict::Good, format!("{} can be used", class.name_any()));
    }
    Ok(())
}

/// An instance type in a zone.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// The zone.
    pub zone: String,
    /// Cores.
    pub cpu: i64,
    /// Memory for pods and system.
    pub memory_mib: i64,
    /// GPUs.
    pub gpus: i64,
    /// `on-demand` or `spot`.
    pub capacity_type: String,
    /// Per hour.
    pub price: f64,
    /// Whether the account's limits allow one more.
    pub available: bool,
    /// Name of the service offering.
    pub offering: String,
}

/// What a NodeClass could buy, cheapest first.
///
/// # Errors
///
/// If CloudStack does not say what there is.
pub async fn what_can_be_bought(
    client: Client,
    options: ProviderOptions,
    class: CloudStackNodeClass,
    environment: &Environment,
) -> Result<Vec<Row>, ApiError> {
    let snapshot = Snapshot { classes: vec![Arc::new(class.clone())], claims: Vec::new() };
    let provider = CloudStackProvider::new(client, options, Arc::new(snapshot), environment);
    let shared = &provider.shared;
    let resolved = resolve(&class, &shared.scope(), &shared.catalogue).await?;
    let mut rows = Vec::new();
    for it in provider.types(&resolved, None).await? {
        let of_type = |key: &str| value(&it.requirements, key);
        for offering in &it.offerings {
            rows.push(Row {
                name: it.name.to_string(),
                zone: value(&offering.requirements, well_known::TOPOLOGY_ZONE),
                cpu: of_type(labels::INSTANCE_CPU).parse().unwrap_or(0),
                memory_mib: of_type(labels::INSTANCE_MEMORY).parse().unwrap_or(0),
                gpus: of_type(labels::INSTANCE_GPU_COUNT).parse().unwrap_or(0),
                capacity_type: value(&offering.requirements, well_known::CAPACITY_TYPE),
                price: offering.price,
                available: offering.available,
                offering: of_type(labels::SERVICE_OFFERING_NAME),
            });
        }
    }
    rows.sort_by(|a, b| {
        a.price.total_cmp(&b.price).then_with(|| (&a.name, &a.zone).cmp(&(&b.name, &b.zone)))
    });
    Ok(rows)
}

fn value(requirements: &karpenter_engine::requirements::Requirements, key: &str) -> String {
    let requirement = requirements.get(key).and_then(|requirement| requirement.values.first());
    requirement.map(ToString::to_string).unwrap_or_default()
}

/// Objects of a cluster at one moment.
pub struct Snapshot {
    /// NodeClasses.
    pub classes: Vec<Arc<CloudStackNodeClass>>,
    /// NodeClaims, all of them.
    pub claims: Vec<Arc<NodeClaim>>,
}

impl Objects for Snapshot {
    fn node_class(&self, name: &str) -> Option<Arc<CloudStackNodeClass>> {
        self.classes.iter().find(|class| class.metadata.name.as_deref() == Some(name)).cloned()
    }

    fn node_classes(&self) -> Option<Vec<Arc<CloudStackNodeClass>>> {
        Some(self.classes.clone())
    }

    fn node_claims(&self) -> Option<Vec<Arc<NodeClaim>>> {
        Some(self.claims.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_that_can_be_sent_is_one_whose_lack_is_told_of() {
        let source = include_str!("client/requests.rs");
        let sent: BTreeSet<&str> =
            source.split("Request::new(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(sent.len() > 20, "{sent:?}");
        let useful = USEFUL.iter().map(|(command, _)| *command);
        let known: BTreeSet<&str> = NEEDED.into_iter().chain(useful).chain(UNMISSED).collect();
        let untold: Vec<&&str> = sent.difference(&known).collect();
        assert!(untold.is_empty(), "{untold:?}");
        // Expunging is a right that destroyVirtualMachine asks for.
        let unsent: Vec<&&str> = known.difference(&sent).filter(|c| **c != "expungeVirtualMachine").collect();
        assert!(unsent.is_empty(), "{unsent:?}");
    }

    #[test]
    fn all_limits_are_told() {
        let mut findings = Findings(Vec::new());
        let left = Budget {
            cpuavailable: Some(8),
            primarystorageavailable: Some(0),
            gpuavailable: Some(2),
            ..Budget::default()
        };
        quota(&left, &mut findings);
        let Finding { verdict, text, .. } = &findings.0[0];
        assert_eq!(
            (*verdict, text.as_str()),
            (Verdict::Odd, "8 cores, 0 GB of primary storage, 2 GPUs left")
        );
    }
}
