//! What the conditions of a NodeClass say, judged by what was observed. Nothing here asks anybody.

use karpenter_api::ConditionStatus;
use karpenter_api::conditions::{Condition, ConditionSet};
use karpenter_engine::instance_type::InstanceType;

use crate::candidates::tags_left_out;
use crate::client::Notice;
use crate::client::error::{ApiError, ErrorKind, remedy};
use crate::client::http::NOT_CHECKED;
use crate::client::model::Budget;
use crate::client::request::Scope;
use crate::nodeclass::{
    CREDENTIALS_READY, CloudStackNodeClass, CloudStackNodeClassSpec, LOOKED_UP, MACHINES_DELETABLE,
    NETWORK_READY, NETWORKS_READY, QUOTA_AVAILABLE, SERVICE_OFFERINGS_READY, VALIDATION_SUCCEEDED,
    ZONES_READY,
};
use crate::resolved::Resolved;
use crate::shared::Whose;

type Conditions<'a> = ConditionSet<'a, CloudStackNodeClass>;

/// What was found out for a NodeClass, and what stands in the way.
pub(crate) struct Observed {
    pub(crate) spec: CloudStackNodeClassSpec,
    /// What it comes to, or why that is not known.
    pub(crate) resolved: Result<Resolved, ApiError>,
    /// What is left of the limits, where the server tells.
    pub(crate) budget: Option<Budget>,
    /// A limit that a launch ran into lately, in words.
    pub(crate) quota_hit: Option<String>,
    pub(crate) types: Vec<InstanceType>,
    /// Which of its machines cannot be deleted, in words.
    pub(crate) protected: Option<String>,
    /// What is wrong with the keys although calls work.
    pub(crate) notice: Option<Notice>,
    /// Machines the keys cannot see.
    pub(crate) elsewhere: Option<Notice>,
    pub(crate) whose: Whose,
    /// Where the keys are given, in words.
    pub(crate) keys_place: String,
    /// The scope of NodeClasses that name none.
    pub(crate) default_scope: Scope,
    pub(crate) checks_certificates: bool,
    pub(crate) has_no_keys: bool,
}

/// What is to be done and told besides the conditions.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Judged {
    /// Whether a condition says that the server does not answer.
    pub(crate) is_told: bool,
    /// Why looking up failed where no condition says it, because what was found before stays.
    pub(crate) failed: Option<String>,
    /// Whether something that was asked for by its id may be gone.
    pub(crate) is_outdated: bool,
}

/// Why it is not known what there is: who has to do something about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    KeysRefused,
    NoKeys,
    /// The project the NodeClass names is at fault.
    Project,
    /// The project is that of the settings or keys.
    DefaultProject,
    Account,
    /// The server has answered, and will answer the same until somebody does something.
    Verdict,
    /// The server has answered, and may answer otherwise in a moment.
    Passing,
    Unreached,
}

/// What is said when no keys work.
fn refused(keys_place: &str) -> String {
    format!(
        "CloudStack does not take the API key and secret; check {keys_place} and the clock of this machine"
    )
}

/// Whether a project is at fault. Something else may be denied or gone, which another project cannot help.
fn is_about_project(error: &ApiError) -> bool {
    matches!(error.kind, ErrorKind::NotFound | ErrorKind::Denied)
        && error.text.to_lowercase().contains("project")
}

impl Observed {
    /// Writes the conditions.
    pub(crate) fn judge(&self, conditions: &mut Conditions<'_>) -> Judged {
        match &self.protected {
            Some(text) => conditions.set_false(MACHINES_DELETABLE, "DeleteProtected", text),
            None => conditions.set_true(MACHINES_DELETABLE),
        };
        match &self.resolved {
            Ok(resolved) => {
                self.judge_keys(conditions);
                judge_findings(resolved, conditions);
                self.judge_quota(resolved, conditions);
                Judged::default()
            }
            Err(error) => self.judge_failure(error, conditions),
        }
    }

    /// The keys work; there may be something to say of them all the same.
    fn judge_keys(&self, conditions: &mut Conditions<'_>) {
        match self.notice.as_ref().or(self.elsewhere.as_ref()) {
            Some(notice) => conditions.set_false(CREDENTIALS_READY, notice.reason, &notice.text),
            None if self.checks_certificates => conditions.set_true(CREDENTIALS_READY),
            None => conditions.set_true_with_reason(CREDENTIALS_READY, "CertificateNotChecked", NOT_CHECKED),
        };
    }

    fn judge_quota(&self, resolved: &Resolved, conditions: &mut Conditions<'_>) {
        let used_up = self.budget.as_ref().and_then(|budget| used_up(budget, resolved));
        match (used_up, &self.quota_hit) {
            (Some(message), _) => conditions.set_false(QUOTA_AVAILABLE, "LimitReached", &message),
            (None, Some(message)) => conditions.set_false(QUOTA_AVAILABLE, "QuotaExceeded", message),
            (None, None) if self.budget.is_some() => conditions.set_true(QUOTA_AVAILABLE),
            (None, None) => conditions.set_unknown_with_reason(
                QUOTA_AVAILABLE,
                "LimitsNotShown",
                "the server does not tell these keys what is left of the limits; whoever runs into one is told so (let the role call listAccounts, and listProjects for projects)",
            ),
        };
    }

    fn failure(&self, error: &ApiError) -> Failure {
        let is_about_project = is_about_project(error);
        let is_of_default = matches!(self.default_scope, Scope::Project(_)) && self.spec.account.is_none();
        match error.kind {
            ErrorKind::Auth => Failure::KeysRefused,
            _ if self.has_no_keys => Failure::NoKeys,
            _ if self.spec.project_id.is_some() && is_about_project => Failure::Project,
            _ if is_of_default && is_about_project => Failure::DefaultProject,
            _ if self.spec.account.is_some() && error.is_about_account() => Failure::Account,
            _ if error.is_a_verdict() => Failure::Verdict,
            _ if !error.is_nobodys_answer() => Failure::Passing,
            _ => Failure::Unreached,
        }
    }

    fn judge_failure(&self, error: &ApiError, conditions: &mut Conditions<'_>) -> Judged {
        let failure = self.failure(error);
        let mut judged = Judged::default();
        let invalid = match failure {
            Failure::KeysRefused => {
                let refused = refused(&self.keys_place);
                conditions.set_false(CREDENTIALS_READY, "CredentialsRefused", &refused);
                // Nothing can be launched with them either.
                conditions.set_unknown_with_reason(ZONES_READY, "CredentialsRefused", &refused);
                return judged;
            }
            Failure::NoKeys => {
                let why = self.notice.as_ref().map_or(&error.text, |notice| &notice.text);
                let text = match &self.whose {
                    Some(_) => format!("spec.credentialsRef: {why}"),
                    None => why.clone(),
                };
                conditions.set_false(CREDENTIALS_READY, "SecretNotUsable", &text);
                conditions.set_unknown_with_reason(ZONES_READY, "SecretNotUsable", &text);
                return judged;
            }
            Failure::Unreached => {
                judged.is_told = judge_unreached(error, conditions);
                return judged;
            }
            Failure::Passing => {
                conditions.set_true(CREDENTIALS_READY);
                let text =
                    format!("{error}; what was found before stays, and it is looked up again in a minute");
                if conditions.get(ZONES_READY).is_none_or(|known| known.status == ConditionStatus::Unknown) {
                    conditions.set_unknown_with_reason(ZONES_READY, "LookupFailed", &text);
                } else {
                    judged.failed = Some(text);
                }
                judged.is_outdated = error.is_not_found();
                return judged;
            }
            Failure::Project => {
                let project = self.spec.project_id.as_deref().unwrap_or_default();
                let message = format!(
                    "spec.projectID: there is no project {project:?}, or it is none of this account's ({error}); it cannot be changed, so make another NodeClass"
                );
                ("ProjectNotFound", message)
            }
            Failure::DefaultProject => {
                let message = format!(
                    "there is no {}, or it is none of this account's ({error}); the NodeClass names no project (spec.projectID), so it is the one of CLOUDSTACK_PROJECT_ID, or of project-id in the Secret or cloud-config: name another there",
                    self.default_scope.write().replace('/', " ")
                );
                ("ProjectNotFound", message)
            }
            Failure::Account => {
                let message = format!(
                    "spec.account, spec.domainID: there is no account {:?} in that domain, or these keys may not act for it ({error}); it cannot be changed, so make another NodeClass",
                    self.spec.account.as_deref().unwrap_or_default()
                );
                ("AccountNotFound", message)
            }
            Failure::Verdict => verdict(error),
        };
        let (reason, message) = invalid;
        conditions.set_true(CREDENTIALS_READY);
        conditions.set_false(VALIDATION_SUCCEEDED, reason, &message);
        judged
    }
}

/// What was found and what was not.
fn judge_findings(resolved: &Resolved, conditions: &mut Conditions<'_>) {
    for condition in LOOKED_UP {
        match resolved.problems.iter().find(|problem| problem.condition == condition) {
            Some(problem) => conditions.set_false(condition, problem.reason, &problem.message),
            None if resolved.zones.is_empty() && condition != VALIDATION_SUCCEEDED => {
                conditions.set_unknown_with_reason(condition, "AwaitingZone", "there is no zone to look into")
            }
            None => match left_out(resolved, condition) {
                Some((reason, text)) => conditions.set_true_with_reason(condition, reason, &text),
                None => conditions.set_true(condition),
            },
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
}

/// What is not used although the rest is well: reason and text.
fn left_out(resolved: &Resolved, condition: &str) -> Option<(&'static str, String)> {
    match condition {
        ZONES_READY => resolved.left_out().map(|text| ("SomeZonesMissing", text)),
        VALIDATION_SUCCEEDED => tags_left_out(&resolved.spec).map(|text| ("SomeTagsLeftOut", text)),
        NETWORKS_READY => resolved.full_networks().map(|text| ("SomeNetworksFull", text)),
        SERVICE_OFFERINGS_READY => resolved.odd_offerings().map(|odd| {
            let text = format!("spec.serviceOfferingSelectorTerms: {odd}; the others are used");
            ("SomeOfferingsLeftOut", text)
        }),
        _ => None,
    }
}

/// Nobody answers. What was ready stays so: readiness must not flap with the API. Whether a condition says it.
fn judge_unreached(error: &ApiError, conditions: &mut Conditions<'_>) -> bool {
    let mut is_told = false;
    for condition in [CREDENTIALS_READY, ZONES_READY] {
        let unreached = |c: &Condition| {
            c.status == ConditionStatus::Unknown
                && !["CredentialsRefused", "SecretNotUsable"].contains(&c.reason())
        };
        if conditions.get(condition).is_none_or(unreached) {
            is_told = true;
            let text = format!("{error}; {}", remedy(&error.text));
            conditions.set_unknown_with_reason(condition, "CloudStackUnreachable", &text);
        }
    }
    is_told
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
