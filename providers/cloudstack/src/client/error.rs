//! What CloudStack says when something fails, sorted by what can be done about it.
//!
//! HTTP status and error code are too coarse: a full zone is 533 or 530, lacking permission is 531, 432 or 401, and 401 is
//! also the answer to a command nobody knows. So texts are read too, those that were measured on a real server. What is not
//! recognised is [`ErrorKind::Internal`], which promises nothing.

use std::time::Duration;

use serde_json::Value;

/// What is said of an answer in somebody else's words.
pub(crate) const NOT_CLOUDSTACKS: &str = " is not CloudStack's, it begins ";

/// A failed call.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{command}: {text}{}", code_suffix(*code))]
pub struct ApiError {
    /// The command that failed.
    pub command: &'static str,
    /// What can be done about it.
    pub kind: ErrorKind,
    /// CloudStack's code; 0 if there was no answer.
    pub code: u16,
    /// What the server said.
    pub text: String,
}

fn code_suffix(code: u16) -> String {
    if code == 0 { String::new() } else { format!(" ({code})") }
}

/// What can be done about a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The keys are wrong, expired or revoked. Comes only after `listCapabilities` was refused too.
    Auth,
    /// The caller may not do this, or the server does not know the command.
    Denied,
    /// Something named by id does not exist (any more).
    NotFound,
    /// What a machine was to be made of was there and is deleted or closed by now: it is to be looked up anew.
    Gone,
    /// There is a virtual machine of this name, alive, broken or about to go.
    NameTaken,
    /// A limit of the account, project or domain.
    Quota(QuotaExcess),
    /// No room.
    Capacity(CapacityKind),
    /// Too many calls; again after this long. The call did nothing.
    Throttled(Duration),
    /// What was asked makes no sense to the server.
    Parameter,
    /// The server is starting, stopping or behind a broken proxy. A write may not have been seen.
    Unavailable,
    /// The server failed, or hides why. A write may have been carried out.
    Internal,
    /// The request never left: nobody listens, or the certificate is not trusted.
    NotSent,
    /// The request was sent and no answer came: it may have been carried out.
    LostResponse,
    /// Expunging is not allowed; destroying may be.
    ExpungeDenied,
    /// Somebody protected the virtual machine.
    DeleteProtected,
    /// One of the tags is there already, so none was created.
    TagExists,
    /// A network does not work: its router does not do what it is told.
    Network,
    /// The server takes no orders now, because it is under maintenance or about to stop. Nothing was done.
    Closed,
    /// Something on the way refuses, not CloudStack: nothing is known of what was asked for.
    Barred,
}

/// Where there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CapacityKind {
    /// No host for this offering.
    Hosts,
    /// No host that the affinity groups leave.
    Affinity,
    /// No storage in the zone.
    Storage,
    /// No host managed to start it.
    Start,
    /// No address in one of its networks.
    Addresses,
    /// It could not be started for a reason that the server tells in words of many authors: for want of room, mostly.
    InWords,
}

/// A limit that was hit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaExcess {
    /// Which resource: `cpu`, `memory`, `user_vm`, …; with its tag, `cpu (tag: gold)`, where only what bears that counts.
    pub resource: String,
    /// The limit.
    pub limit: Option<i64>,
    /// What is used and reserved.
    pub used: Option<i64>,
    /// What was asked for.
    pub requested: Option<i64>,
}

impl ApiError {
    /// From what the server answered.
    pub(crate) fn answered(command: &'static str, status: u16, body: &Value) -> Self {
        let code = body["errorcode"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(status);
        let text = body["errortext"].as_str().unwrap_or("no reason given").to_owned();
        Self { command, kind: classify(code, &text), code, text }
    }

    pub(crate) fn new(command: &'static str, kind: ErrorKind, text: impl Into<String>) -> Self {
        Self { command, kind, code: 0, text: text.into() }
    }

    /// Whether nobody answered, or somebody who is not CloudStack.
    pub(crate) fn is_nobodys_answer(&self) -> bool {
        matches!(self.kind, ErrorKind::NotSent | ErrorKind::LostResponse | ErrorKind::Unavailable)
            || self.text.contains(NOT_CLOUDSTACKS)
    }

    /// Whether the server has understood what was asked and says no, and would say so again.
    pub(crate) fn is_a_verdict(&self) -> bool {
        matches!(self.kind, ErrorKind::Denied | ErrorKind::Parameter) && !self.is_nobodys_answer()
    }

    /// Whether the role may not use the command at all, or the server does not know it.
    pub(crate) fn is_not_for_this_role(&self) -> bool {
        self.kind == ErrorKind::Denied && matches!(self.code, 401 | 432) && !self.is_nobodys_answer()
    }

    /// Whether a read may simply be sent again.
    pub fn read_again(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::Throttled(_)
                | ErrorKind::Unavailable
                | ErrorKind::Internal
                | ErrorKind::NotSent
                | ErrorKind::LostResponse
        )
    }

    /// Whether a write certainly did nothing and may be sent again.
    pub fn write_again(&self) -> bool {
        matches!(self.kind, ErrorKind::Throttled(_) | ErrorKind::NotSent)
    }

    /// Whether a write may have been carried out all the same.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self.kind, ErrorKind::LostResponse | ErrorKind::Unavailable)
    }

    /// Whether what is wrong is the account that was named: there is none of that name, or it is not for us to act for it.
    pub fn is_about_account(&self) -> bool {
        let text = self.text.to_lowercase();
        // 432 names our own account, and says that the command is not for it. Pages of others may speak of any account.
        matches!(self.kind, ErrorKind::NotFound | ErrorKind::Denied | ErrorKind::Parameter)
            && self.code != 432
            && !self.is_nobodys_answer()
            && (text.contains("account") || text.contains("domain"))
    }

    /// Whether what was asked for by its id is known not to exist. Where another parameter is meant, such as a project that is gone,
    /// nothing is known of it.
    pub fn says_there_is_no_such_id(&self) -> bool {
        self.is_not_found()
            && (!self.text.contains("nvalid parameter ") || self.text.contains("parameter id "))
    }

    /// Whether the thing asked for is known not to exist.
    pub fn is_not_found(&self) -> bool {
        self.kind == ErrorKind::NotFound
    }
}

/// What helps against a way to the server that does not lead there.
pub(crate) fn remedy(cause: &str) -> &'static str {
    let cause = cause.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| cause.contains(word));
    if !has(&["certificate"]) {
        "check the API address (api-url of the Secret, CLOUDSTACK_API_URL), the network and proxies (proxy of the Secret, CLOUDSTACK_PROXY)"
    } else if has(&["expired", "not valid yet", "notvalidyet"]) {
        "renew the server's certificate, or check the clock of this machine"
    } else if has(&["notvalidforname", "not valid for name"]) {
        "name what the certificate is for: in the API address, or as tls-server-name in the Secret (CLOUDSTACK_TLS_SERVER_NAME)"
    } else {
        "give the authority that signed it: ca-bundle in the Secret, or CLOUDSTACK_CA_FILE"
    }
}

/// What the server says of things it finds by their ids because it keeps the rows of what is deleted.
const GONE: [&str; 6] = [
    "Service offering is inactive",
    "Unable to use template ",
    "Unable to find network by id ",
    "Unable to find disk offering ",
    "Unable to find service offering",
    "Unable to find affinity group ",
];

/// What the server says of a name that another machine has: in the network; and in the whole zone where machines are called as their
/// hosts call them (VMware with `vm.instancename.flag`).
const NAME_TAKEN: [&str; 3] = [
    "already exists in the network domain",
    "There already exists a VM by the name: ",
    "There already exists a VM by the display name supplied",
];

/// What the server says when the router of a network does not do what it is told: until 4.22.1, in a reason, and since 4.23.
const ROUTER_FAILS: [&str; 3] = [
    "Network is unavailable. Please contact administrator",
    "Resource [VirtualRouter:",
    "The Network for VM ",
];

/// What administrators, and tenants before 4.22.1, are told when a network has no address left; in small letters.
const NO_ADDRESS: [&str; 2] = ["insufficient address capacity", "unable to acquire guest ip address"];

/// Sorts an answer by code and text.
fn classify(code: u16, text: &str) -> ErrorKind {
    let has = |part: &str| text.contains(part);
    let lower = |part: &str| text.to_lowercase().contains(part);
    match code {
        _ if is_expunge_denied(text) => ErrorKind::ExpungeDenied,
        401 => ErrorKind::Auth,
        429 => ErrorKind::Throttled(retry_after(text)),
        432 | 531 => ErrorKind::Denied,
        431 if has("entity does not exist") || has("unable to find a virtual machine") => ErrorKind::NotFound,
        // Of what was removed, and with the code of trouble that passes: whoever waited for that to pass would wait for ever.
        431 | 530 if has("Virtual machine id does not exist") => ErrorKind::NotFound,
        431 if NAME_TAKEN.iter().any(|words| has(words)) => ErrorKind::NameTaken,
        431 if has("has delete protection enabled") => ErrorKind::DeleteProtected,
        431 if GONE.iter().any(|words| has(words)) => ErrorKind::Gone,
        400 | 405 | 430 | 431 => ErrorKind::Parameter,
        503 if has("Can not accept new jobs") => ErrorKind::Closed,
        502..=504 => ErrorKind::Unavailable,
        532 | 535 => ErrorKind::Quota(quota_excess(text)),
        // Addresses are the network's, and no other size would help.
        533 if lower(" address") => ErrorKind::Capacity(CapacityKind::Addresses),
        530 if NO_ADDRESS.iter().any(|words| lower(words)) => ErrorKind::Capacity(CapacityKind::Addresses),
        533 if has("check the affinity groups") => ErrorKind::Capacity(CapacityKind::Affinity),
        533 | 534 => ErrorKind::Capacity(CapacityKind::Hosts),
        530 if ROUTER_FAILS.iter().any(|words| has(words)) => ErrorKind::Network,
        530 if has("No suitable host found") => ErrorKind::Capacity(CapacityKind::Hosts),
        530 if has("due to insufficient capacity") => ErrorKind::Capacity(CapacityKind::Storage),
        530 if has("Unable to orchestrate the start of VM") || has("Unable to orchestrate start ") => {
            ErrorKind::Capacity(CapacityKind::Start)
        }
        530 if has("affinity rules associated to the VM conflict") => {
            ErrorKind::Capacity(CapacityKind::Affinity)
        }
        // Before 4.22.1, and to administrators: the want itself is told, in words of many authors. What else is wrong with addresses is
        // the network's. That no deployment can be created is said too when a router failed and the server gave up the whole zone for that.
        530 if has("Unable to start a VM [") && has("] due to [") && !lower(" address") => {
            ErrorKind::Capacity(CapacityKind::InWords)
        }
        530 if has("tag ") && has(" already on ") => ErrorKind::TagExists,
        _ => ErrorKind::Internal,
    }
}

/// In the words of 4.20 and later, and of 4.19.
fn is_expunge_denied(text: &str) -> bool {
    text.contains("permission for expunging")
        || text.contains("Parameter expunge can be passed by Admin only")
}

/// Nobody holds us back for longer: machines have to come and go.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The pause a 429 asks for; there is no header for it, only words.
fn retry_after(text: &str) -> Duration {
    let millis = text
        .split_once("retry after [")
        .and_then(|(_, rest)| rest.split_once(']'))
        .and_then(|(number, _)| number.trim().parse().ok());
    let asked = Duration::from_millis(millis.unwrap_or(1000));
    if asked > LONGEST_PAUSE {
        tracing::warn!(
            ?asked,
            "CloudStack wants a longer pause than it gets; see its api.throttling.interval"
        );
    }
    asked.min(LONGEST_PAUSE)
}

fn quota_excess(text: &str) -> QuotaExcess {
    let number = |label: &str| {
        let rest = text.split_once(label)?.1.trim_start().strip_prefix('=')?.trim_start();
        rest.split(|c: char| !c.is_ascii_digit() && c != '-').next()?.parse::<i64>().ok()
    };
    // Of a domain it is `Type 'cpu'`, and with a tag `Type 'cpu (tag: x)'`; of an account the tag stands apart.
    let (mut resource, rest) = text
        .split_once("Type = '")
        .or_else(|| text.split_once("Type '"))
        .and_then(|(_, rest)| rest.split_once('\''))
        .map_or_else(|| (String::new(), ""), |(name, rest)| (name.to_owned(), rest));
    let tag = rest.strip_prefix(", tag = '").and_then(|rest| rest.split_once('\'')).map(|(tag, _)| tag);
    if let Some(tag) = tag.filter(|tag| *tag != "null") {
        resource = format!("{resource} (tag: {tag})");
    }
    let used = match (number("Resource Amount"), number("Resource Reservation")) {
        (Some(amount), reserved) => Some(amount.saturating_add(reserved.unwrap_or(0))),
        (None, _) => None,
    };
    QuotaExcess {
        resource,
        limit: number("Resource Limit"),
        used,
        requested: number("Requested Resource Amount"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_real_server_said_is_understood() {
        let host = CapacityKind::Hosts;
        for (code, text, kind) in [
            (
                533,
                "No destination found for a deployment for VM instance {\"id\":17}",
                ErrorKind::Capacity(host),
            ),
            (
                533,
                "No destination found for a deployment for VM instance {}, Please check the affinity groups provided, there may not be sufficient capacity to follow them",
                ErrorKind::Capacity(CapacityKind::Affinity),
            ),
            (530, "No suitable host found.", ErrorKind::Capacity(host)),
            (
                530,
                "Unable to start a VM [4bf9895c] due to insufficient capacity.",
                ErrorKind::Capacity(CapacityKind::Storage),
            ),
            (
                530,
                "Unable to orchestrate the start of VM instance {}.",
                ErrorKind::Capacity(CapacityKind::Start),
            ),
            (530, "Account does not have permission for expunging.", ErrorKind::ExpungeDenied),
            (530, "Virtual machine id does not exist", ErrorKind::NotFound),
            (
                530,
                "Unable to start a VM [4bf9895c] due to [Unable to create a deployment for VM instance {}].",
                ErrorKind::Capacity(CapacityKind::InWords),
            ),
            (
                530,
                "Unable to start a VM [4bf9895c] due to [Resource [VirtualRouter:12] is unreachable: Unable to send command. Router requires upgrade].",
                ErrorKind::Network,
            ),
            (530, "Network is unavailable. Please contact administrator", ErrorKind::Network),
            (
                530,
                "The Network for VM 4bf9895c is unavailable. Please contact administrator.",
                ErrorKind::Network,
            ),
            (
                530,
                "Unable to start a VM [4bf9895c] due to [Unable to prepare the template].",
                ErrorKind::Capacity(CapacityKind::InWords),
            ),
            (
                530,
                "Unable to start a VM [4bf9895c] due to [Insufficient address capacity].",
                ErrorKind::Capacity(CapacityKind::Addresses),
            ),
            (
                530,
                "Unable to acquire Guest IP address for network 204",
                ErrorKind::Capacity(CapacityKind::Addresses),
            ),
            (
                530,
                "Unable to start a VM [4bf9895c] due to [Unable to program the mac address].",
                ErrorKind::Internal,
            ),
            (
                530,
                "Unable to orchestrate start VM instance {\"id\":1} due to [Unable to start on any host].",
                ErrorKind::Capacity(CapacityKind::Start),
            ),
            (
                530,
                "Unable to create deployment, affinity rules associated to the VM conflict",
                ErrorKind::Capacity(CapacityKind::Affinity),
            ),
            (
                531,
                "Parameter expunge can be passed by Admin only. Or when the allow.user.expunge.recover.vm key is set.",
                ErrorKind::ExpungeDenied,
            ),
            (530, "tag karpenter.sh/nodeclaim already on UserVm with id 310ee660", ErrorKind::TagExists),
            (
                530,
                "Internal error executing command, please contact your system administrator",
                ErrorKind::Internal,
            ),
            (
                431,
                "The vm with hostName x already exists in the network domain: cs4; network=n",
                ErrorKind::NameTaken,
            ),
            (431, "There already exists a VM by the name: karpenter-x-a.", ErrorKind::NameTaken),
            (431, "There already exists a VM by the display name supplied", ErrorKind::NameTaken),
            (
                431,
                "Invalid parameter id value=1 due to incorrect long value format, or entity does not exist or due to incorrect parameter annotation",
                ErrorKind::NotFound,
            ),
            (
                431,
                "Instance [id = 1, name = i] has delete protection enabled and cannot be deleted.",
                ErrorKind::DeleteProtected,
            ),
            (431, "User data is not base64 encoded.", ErrorKind::Parameter),
            (431, "Unable to use template 204", ErrorKind::Gone),
            (431, "Service offering is inactive: [310ee660].", ErrorKind::Gone),
            (
                533,
                "Insufficient address capacityScope=interface com.cloud.dc.DataCenter; id=1",
                ErrorKind::Capacity(CapacityKind::Addresses),
            ),
            (531, "Cannot perform this operation, Zone is currently disabled: Zone", ErrorKind::Denied),
            (
                432,
                "The API [listCapacity] does not exist or is not available for the account karp.",
                ErrorKind::Denied,
            ),
            (401, "unable to verify user credentials and/or request signature", ErrorKind::Auth),
            (
                429,
                "The given user has reached his/her account api limit, please retry after [9318] ms.",
                ErrorKind::Throttled(Duration::from_millis(9318)),
            ),
        ] {
            assert_eq!(classify(code, text), kind, "{text}");
        }
    }

    #[test]
    fn remedies_name_what_the_secret_has() {
        assert!(remedy("connection refused").contains("api-url of the Secret"));
        assert!(remedy("connection refused").contains("proxy of the Secret"));
    }

    #[test]
    fn the_numbers_of_a_quota_are_read() {
        let text = "Maximum amount of resources of Type = 'cpu', tag = 'null' for Account Name = karp in Domain Id = 2 is exceeded: Account Resource Limit = 40, Current Account Resource Amount = 2, Current Account Resource Reservation = 1, Requested Resource Amount = 64.";
        let excess =
            QuotaExcess { resource: "cpu".into(), limit: Some(40), used: Some(3), requested: Some(64) };
        assert_eq!(classify(535, text), ErrorKind::Quota(excess));
        for name in ["cpu", "cpu (tag: gold)"] {
            let text = format!(
                "Maximum domain resource limits of Type '{name}' for Domain Id = 7c02 is exceeded: Domain Resource Limit = 40, Current Domain Resource Amount = 2, Current Resource Reservation = 1, Requested Resource Amount = 64."
            );
            let of_domain =
                QuotaExcess { resource: name.into(), limit: Some(40), used: Some(3), requested: Some(64) };
            assert_eq!(classify(535, &text), ErrorKind::Quota(of_domain), "{text}");
        }
        let ErrorKind::Quota(of_tag) = classify(535, &text.replace("'null'", "'gold'")) else { panic!() };
        assert_eq!((of_tag.resource.as_str(), of_tag.limit), ("cpu (tag: gold)", Some(40)));
        assert_eq!(classify(535, "other words"), ErrorKind::Quota(QuotaExcess::default()));
    }

    #[test]
    fn a_project_that_is_gone_says_nothing_of_a_machine() {
        let says = |text: &str| {
            let error =
                ApiError::answered("listVirtualMachines", 431, &serde_json::json!({"errortext": text}));
            assert!(error.is_not_found(), "{error}");
            error.says_there_is_no_such_id()
        };
        assert!(says(
            "Unable to execute API command due to invalid value. Invalid parameter id value=1 due to incorrect long value format, or entity does not exist"
        ));
        assert!(says("unable to find a virtual machine with id 7"));
        assert!(!says(
            "Unable to execute API command due to invalid value. Invalid parameter projectid value=1 due to incorrect long value format, or entity does not exist"
        ));
    }

    #[test]
    fn a_write_is_sent_again_only_when_it_certainly_did_nothing() {
        let error = |kind| ApiError::new("deployVirtualMachine", kind, "x");
        for kind in
            [ErrorKind::LostResponse, ErrorKind::Internal, ErrorKind::Unavailable, ErrorKind::NameTaken]
        {
            assert!(!error(kind).write_again());
        }
        assert!(error(ErrorKind::NotSent).write_again());
        assert!(error(ErrorKind::Throttled(Duration::ZERO)).write_again());
        assert!(error(ErrorKind::LostResponse).outcome_unknown());
    }
}
