//! What the environment says about the provider, read once at the start. Pure: variables are looked up by a given function.

use std::path::PathBuf;
use std::time::Duration;

use karpenter_api::duration::Duration as GoDuration;
use karpenter_runtime::options::CloudStackOptions;

use crate::client::http::{HttpSettings, Way, is_proxy};
use crate::client::request::Scope;
use crate::client::signature::Credentials;
use crate::client::throttle::Rate;
use crate::keys::{Keys, is_id};
use crate::naming::{MAX_PREFIX, ProviderIdFormat, dns_label};
use crate::shared::{CollectOrphans, OnStopped, ProviderOptions};

/// A variable of the environment as the documentation lists it.
pub const VARIABLES: [(&str, &str); 34] = [
    (
        "CLOUDSTACK_CREDENTIALS_DIR",
        "directory of a mounted Secret with api-url, api-key and secret-key; watched, so keys can be exchanged",
    ),
    (
        "CLOUDSTACK_CREDENTIALS_SECRET",
        "Secret with the same keys, as `NAMESPACE/NAME`; watched too. Where it is named, CLOUDSTACK_API_URL and its kind are not looked at; without any keys `cloudstack-credentials` in Karpenter's namespace",
    ),
    (
        "CLOUDSTACK_CA_FILE",
        "certificates in PEM to trust besides the system's; read at the start, while `ca-bundle` of a Secret is taken up when it changes",
    ),
    ("CLOUDSTACK_CA_BUNDLE", "the same, given as text instead of a file, or in addition to one"),
    (
        "CLOUDSTACK_TLS_SERVER_NAME",
        "the name the server's certificate carries, where it is not the host of the address",
    ),
    (
        "CLOUDSTACK_CLIENT_CERTIFICATE_FILE",
        "a certificate in PEM of our own, with CLOUDSTACK_CLIENT_KEY_FILE",
    ),
    ("CLOUDSTACK_CLIENT_KEY_FILE", "its key"),
    ("CLOUDSTACK_PROXY", "an HTTP proxy as `http://HOST:PORT`, where HTTPS_PROXY is not to decide"),
    ("CLOUDSTACK_NO_PROXY", "hosts not to use that proxy for"),
    ("CLOUDSTACK_ALLOW_INSECURE_HTTP", "`true` to take an address without TLS"),
    ("CLOUDSTACK_PROJECT_ID", "the project everything belongs to, where a NodeClass names none"),
    (
        "CLOUDSTACK_ACCOUNT",
        "for administrators: the account everything belongs to, with CLOUDSTACK_DOMAIN_ID",
    ),
    ("CLOUDSTACK_DOMAIN_ID", "its domain"),
    (
        "CLOUDSTACK_PROVIDER_ID",
        "how provider ids are written: `external-cloudstack://{id}` (the cloud controller manager's; default), `cloudstack:///{id}` (Cluster API's), `cloudstack://{zone}/{id}` (the Go provider's), or a form of your own that begins with one of the two schemes and ends in `/{id}`, such as `cloudstack://eu/{zone}/{id}`",
    ),
    (
        "CLOUDSTACK_NAME_NODES",
        "`true` where no cloud controller manager runs: Karpenter gives Nodes their provider id, zone, region and instance type",
    ),
    ("CLOUDSTACK_REGION", "the region of all zones; without it each zone is its own"),
    (
        "CLOUDSTACK_NAME_PREFIX",
        "what names of machines begin with, a letter first, at most 42 characters; default `karpenter`",
    ),
    ("CLOUDSTACK_EXPUNGE", "`false` to destroy machines without expunging them even where that is allowed"),
    (
        "CLOUDSTACK_ON_STOPPED",
        "what to do with a machine that stands still: `Start` (once, then replace; default), `Replace`, `Ignore`",
    ),
    (
        "CLOUDSTACK_COLLECT_ORPHANS",
        "what to do with machines nobody wants: `true` (destroy; default), `dry-run` (only tell), `false`",
    ),
    (
        "CLOUDSTACK_REPAIR_AFTER",
        "how long a node may be NotReady, with the feature gate NodeRepair; default `30m`",
    ),
    (
        "CLOUDSTACK_LAUNCH_WAIT",
        "how long a launch waits for its machine to be placed, at most a minute, so that a refusal leads to the next size at once; default `10s`",
    ),
    (
        "CLOUDSTACK_MAX_USER_DATA",
        "how many characters of user data in base64 the server takes (its `vm.userdata.max.length`); default 32768",
    ),
    (
        "CLOUDSTACK_CALLS_PER_SECOND",
        "calls to the API in the long run, at least 0.01; default 10, less where the server says so",
    ),
    ("CLOUDSTACK_CALLS_BURST", "calls at once; default 20"),
    ("CLOUDSTACK_CACHE_ZONES", "how long zones are remembered; default `1h`"),
    ("CLOUDSTACK_CACHE_OFFERINGS", "service and disk offerings; default `5m`"),
    ("CLOUDSTACK_CACHE_TEMPLATES", "templates; default `5m`"),
    ("CLOUDSTACK_CACHE_NETWORKS", "networks and security groups; default `1m`"),
    ("CLOUDSTACK_CACHE_CAPABILITIES", "what the server is and we may do there; default `10m`"),
    ("CLOUDSTACK_CACHE_LIMITS", "what is left of the account's limits; default `1m`"),
    (
        "CLOUDSTACK_CACHE_STALE",
        "how much longer anything is remembered while the server does not answer; default `30m`",
    ),
    ("CLOUDSTACK_WEBHOOK_PORT", "port of the admission webhook; default 0, which is none"),
    (
        "CLOUDSTACK_WEBHOOK_NAME",
        "name of its Service, of its Secret in Karpenter's namespace and of its two configurations; default `karpenter-cloudstack-webhook`",
    ),
];

/// Where keys come from.
#[derive(Clone)]
pub(crate) enum Source {
    /// They do not change.
    Given(Box<Keys>),
    /// The files of a mounted Secret.
    Directory(PathBuf),
    /// A Secret of the cluster.
    Secret { namespace: String, name: String },
}

impl Source {
    /// In words, for who is to put the keys right.
    pub(crate) fn place(&self) -> String {
        match self {
            Self::Given(_) => "CLOUDSTACK_API_KEY and CLOUDSTACK_SECRET_KEY".to_owned(),
            Self::Directory(directory) => {
                format!("the files in {} (CLOUDSTACK_CREDENTIALS_DIR)", directory.display())
            }
            Self::Secret { namespace, name } => format!("the Secret {namespace}/{name}"),
        }
    }
}

/// What was said.
pub(crate) struct Settings {
    pub(crate) options: ProviderOptions,
    pub(crate) http: HttpSettings,
    pub(crate) rate: Rate,
    pub(crate) source: Source,
    /// Port and name of the admission webhook, if there is to be one.
    pub(crate) webhook: Option<(u16, String)>,
}

/// The core waits for a launch; longer would only keep it from others.
const MAX_LAUNCH_WAIT: Duration = Duration::from_secs(60);

/// Where and under which name the keys are, if nobody says.
const DEFAULT_SECRET: &str = "cloudstack-credentials";
const DEFAULT_NAMESPACE: &str = "karpenter";

/// What belongs to the webhook is called, if nobody says.
const DEFAULT_WEBHOOK: &str = "karpenter-cloudstack-webhook";

impl Settings {
    /// Reads everything; which variable is wrong, and what to write, otherwise.
    pub(crate) fn read(
        given: &CloudStackOptions,
        own_namespace: Option<&str>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        if given.cluster_name.is_empty() {
            return Err(
                "CLUSTER_NAME is not set; it tells this cluster's machines from those of others".to_owned()
            );
        }
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let options = options(&given.cluster_name, &variable)?;
        let http = http(given, &variable)?;
        let source = source(given, own_namespace, &variable)?;
        Ok(Self {
            options: ProviderOptions { keys_place: source.place(), ..options },
            http,
            rate: rate(&variable)?,
            source,
            webhook: webhook(&variable)?,
        })
    }
}

fn choice<T: Copy>(
    name: &str,
    value: Option<String>,
    choices: &[(&str, T)],
    otherwise: T,
) -> Result<T, String> {
    let Some(value) = value else { return Ok(otherwise) };
    let found = choices.iter().find(|(word, _)| word.eq_ignore_ascii_case(&value));
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        format!("{name} is {value:?}; it can be {}", words.join(", "))
    })
}

const YES_OR_NO: [(&str, bool); 2] = [("true", true), ("false", false)];

fn options(cluster: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<ProviderOptions, String> {
    let mut options = ProviderOptions::new(cluster);
    let span = |name: &str, otherwise: Duration| match variable(name) {
        None => Ok(otherwise),
        Some(text) => GoDuration::parse(&text)
            .map(|duration| duration.to_std())
            .map_err(|error| format!("{name} is {text:?}: {error}; write it as 5m or 1h30m")),
    };
    let lifetimes = &mut options.lifetimes;
    lifetimes.zones = span("CLOUDSTACK_CACHE_ZONES", lifetimes.zones)?;
    lifetimes.offerings = span("CLOUDSTACK_CACHE_OFFERINGS", lifetimes.offerings)?;
    lifetimes.templates = span("CLOUDSTACK_CACHE_TEMPLATES", lifetimes.templates)?;
    lifetimes.networks = span("CLOUDSTACK_CACHE_NETWORKS", lifetimes.networks)?;
    lifetimes.capabilities = span("CLOUDSTACK_CACHE_CAPABILITIES", lifetimes.capabilities)?;
    lifetimes.budgets = span("CLOUDSTACK_CACHE_LIMITS", lifetimes.budgets)?;
    lifetimes.stale = span("CLOUDSTACK_CACHE_STALE", lifetimes.stale)?;
    options.launch_wait = span("CLOUDSTACK_LAUNCH_WAIT", options.launch_wait)?;
    if options.launch_wait > MAX_LAUNCH_WAIT {
        return Err("CLOUDSTACK_LAUNCH_WAIT is more than a minute; give at most 60s".to_owned());
    }
    if let Some(text) = variable("CLOUDSTACK_MAX_USER_DATA") {
        options.max_user_data = match text.parse() {
            Ok(number) if number > 0 => number,
            _ => return Err(format!("CLOUDSTACK_MAX_USER_DATA is {text:?}; give a number of characters")),
        };
    }
    options.repair_after = span("CLOUDSTACK_REPAIR_AFTER", options.repair_after)?;
    options.scope = match (
        variable("CLOUDSTACK_PROJECT_ID"),
        variable("CLOUDSTACK_ACCOUNT"),
        variable("CLOUDSTACK_DOMAIN_ID"),
    ) {
        (None, None, None) => Scope::Own,
        (Some(project), None, None) => Scope::Project(project),
        (None, Some(account), Some(domain_id)) => Scope::Account { account, domain_id },
        _ => {
            return Err(
                "CLOUDSTACK_PROJECT_ID, or CLOUDSTACK_ACCOUNT and CLOUDSTACK_DOMAIN_ID together: not a mixture".to_owned()
            );
        }
    };
    let ids = [("CLOUDSTACK_PROJECT_ID", "listProjects"), ("CLOUDSTACK_DOMAIN_ID", "listDomains")];
    for (name, command) in ids {
        if let Some(said) = variable(name).filter(|said| !is_id(said)) {
            return Err(format!("{name} is {said:?}; give the id of one, as {command} shows it"));
        }
    }
    if let Some(form) = variable("CLOUDSTACK_PROVIDER_ID") {
        options.provider_id = ProviderIdFormat::parse(&form).ok_or_else(|| {
            format!("CLOUDSTACK_PROVIDER_ID is {form:?}; it begins with external-cloudstack:// or cloudstack:// and ends in /{{id}}, as in external-cloudstack://{{id}}")
        })?;
    }
    if let Some(prefix) = variable("CLOUDSTACK_NAME_PREFIX") {
        let first = prefix.chars().find(char::is_ascii_alphanumeric);
        if first.is_none_or(|first| first.is_ascii_digit()) {
            return Err(format!(
                "CLOUDSTACK_NAME_PREFIX is {prefix:?}; names of machines are names of hosts, which begin with a letter"
            ));
        }
        let length = dns_label(&prefix).len();
        if length > MAX_PREFIX {
            return Err(format!(
                "CLOUDSTACK_NAME_PREFIX is {prefix:?}, which takes {length} characters of the names of machines; give at most {MAX_PREFIX}, or no machine would be known as this cluster's"
            ));
        }
        options.name_prefix = prefix;
    }
    options.region = variable("CLOUDSTACK_REGION");
    let yes = |name: &str, otherwise| choice(name, variable(name), &YES_OR_NO, otherwise);
    options.expunge = yes("CLOUDSTACK_EXPUNGE", true)?;
    options.name_nodes = yes("CLOUDSTACK_NAME_NODES", false)?;
    let stopped =
        [("Start", OnStopped::Start), ("Replace", OnStopped::Replace), ("Ignore", OnStopped::Ignore)];
    options.on_stopped =
        choice("CLOUDSTACK_ON_STOPPED", variable("CLOUDSTACK_ON_STOPPED"), &stopped, OnStopped::Start)?;
    let orphans = [
        ("true", CollectOrphans::Destroy),
        ("dry-run", CollectOrphans::Tell),
        ("false", CollectOrphans::Never),
    ];
    let given = variable("CLOUDSTACK_COLLECT_ORPHANS");
    options.collect_orphans = choice("CLOUDSTACK_COLLECT_ORPHANS", given, &orphans, CollectOrphans::Destroy)?;
    Ok(options)
}

fn file(name: &str, path: &str) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{name} {path}: {error}"))
}

fn http(
    given: &CloudStackOptions,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<HttpSettings, String> {
    let text_of = |name: &str| variable(name).map(|path| file(name, &path)).transpose();
    let certificate = text_of("CLOUDSTACK_CLIENT_CERTIFICATE_FILE")?;
    let key = text_of("CLOUDSTACK_CLIENT_KEY_FILE")?;
    if certificate.is_some() != key.is_some() {
        return Err(
            "CLOUDSTACK_CLIENT_CERTIFICATE_FILE and CLOUDSTACK_CLIENT_KEY_FILE go together".to_owned()
        );
    }
    let insecure = variable("CLOUDSTACK_ALLOW_INSECURE_HTTP");
    Ok(HttpSettings {
        verify: given.verify_ssl,
        ca_bundle: ca_bundle(text_of("CLOUDSTACK_CA_FILE")?, variable("CLOUDSTACK_CA_BUNDLE")),
        tls_server_name: variable("CLOUDSTACK_TLS_SERVER_NAME"),
        client_certificate: certificate.zip(key),
        proxy: variable("CLOUDSTACK_PROXY").map(proxy).transpose()?,
        no_proxy: variable("CLOUDSTACK_NO_PROXY").unwrap_or_default(),
        allow_insecure_http: choice("CLOUDSTACK_ALLOW_INSECURE_HTTP", insecure, &YES_OR_NO, false)?,
    })
}

/// All certificates that were given, whichever way.
fn ca_bundle(file: Option<String>, text: Option<String>) -> Option<String> {
    file.into_iter().chain(text).reduce(|file, text| format!("{file}\n{text}"))
}

/// A proxy that can be gone through.
fn proxy(address: String) -> Result<String, String> {
    // It may hold a password, so it is not repeated.
    let wrong = || "CLOUDSTACK_PROXY is no address of an HTTP proxy; write it as http://HOST:PORT".to_owned();
    if is_proxy(&address) { Ok(address) } else { Err(wrong()) }
}

/// Fewer calls a second are no way to run a cluster.
const SLOWEST: f64 = 0.01;

fn rate(variable: &dyn Fn(&str) -> Option<String>) -> Result<Rate, String> {
    let usual = Rate::default();
    let number = |name: &str, otherwise: f64| match variable(name) {
        None => Ok(otherwise),
        Some(text) => match text.parse::<f64>() {
            Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
            _ => Err(format!("{name} is {text:?}; give a number above 0")),
        },
    };
    let burst = number("CLOUDSTACK_CALLS_BURST", f64::from(usual.burst))?;
    let per_second = number("CLOUDSTACK_CALLS_PER_SECOND", usual.per_second)?;
    if per_second < SLOWEST {
        return Err(format!("CLOUDSTACK_CALLS_PER_SECOND is {per_second}; give at least {SLOWEST}"));
    }
    Ok(Rate { per_second, burst: burst.clamp(1.0, 1000.0) as u32 })
}

fn webhook(variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<(u16, String)>, String> {
    let name = variable("CLOUDSTACK_WEBHOOK_NAME").unwrap_or_else(|| DEFAULT_WEBHOOK.to_owned());
    // A label of a host's name, which is what the API server calls.
    let is_label = name.len() <= 63
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.ends_with(|last: char| last.is_ascii_lowercase() || last.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if !is_label {
        return Err(format!(
            "CLOUDSTACK_WEBHOOK_NAME is {name:?}; a Service's name has lower case letters, digits and hyphens"
        ));
    }
    let Some(text) = variable("CLOUDSTACK_WEBHOOK_PORT") else { return Ok(None) };
    match text.parse() {
        Ok(0) => Ok(None),
        Ok(port) => Ok(Some((port, name))),
        Err(_) => Err(format!("CLOUDSTACK_WEBHOOK_PORT is {text:?}; give a port, or 0 for none")),
    }
}

fn source(
    given: &CloudStackOptions,
    own_namespace: Option<&str>,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Source, String> {
    if let Some(directory) = variable("CLOUDSTACK_CREDENTIALS_DIR") {
        return Ok(Source::Directory(PathBuf::from(directory)));
    }
    let parts = [
        ("CLOUDSTACK_API_URL", given.api_url.as_str()),
        ("CLOUDSTACK_API_KEY", given.api_key.reveal()),
        ("CLOUDSTACK_SECRET_KEY", given.secret_key.reveal()),
    ];
    let named = variable("CLOUDSTACK_CREDENTIALS_SECRET");
    if named.is_none() && parts.iter().any(|(_, value)| !value.is_empty()) {
        if let Some((name, _)) = parts.iter().find(|(_, value)| value.is_empty()) {
            return Err(format!("{name} is not set"));
        }
        let [(_, url), (_, key), (_, secret)] = parts;
        let credentials = Credentials::new(key.to_owned(), secret.to_owned());
        return Ok(Source::Given(Box::new(Keys {
            place: "CLOUDSTACK_API_URL".to_owned(),
            api_url: url.to_owned(),
            credentials,
            project: None,
            way: Way::default(),
        })));
    }
    let own = own_namespace.unwrap_or(DEFAULT_NAMESPACE).to_owned();
    Ok(match named.as_deref().unwrap_or(DEFAULT_SECRET).split_once('/') {
        Some((namespace, name)) => Source::Secret { namespace: namespace.to_owned(), name: name.to_owned() },
        None => Source::Secret { namespace: own, name: named.unwrap_or_else(|| DEFAULT_SECRET.to_owned()) },
    })
}

#[cfg(test)]
mod tests {
    use karpenter_runtime::options::Options;

    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let environ = [("CLUSTER_NAME".to_owned(), "prod".to_owned())].into();
        let given = Options::parse([], &environ).expect("options").cloudstack;
        Settings::read(&given, Some("infra"), &|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn wrong(variables: &[(&str, &str)]) -> String {
        read(variables).err().unwrap_or_default()
    }

    #[test]
    fn without_anything_the_secret_in_our_namespace_is_used() {
        let settings = read(&[]).expect("settings");
        let Source::Secret { namespace, name } = settings.source else { panic!("a Secret") };
        assert_eq!((namespace.as_str(), name.as_str()), ("infra", "cloudstack-credentials"));
        let elsewhere = read(&[("CLOUDSTACK_CREDENTIALS_SECRET", "a/b")]).expect("settings");
        assert!(
            matches!(elsewhere.source, Source::Secret { namespace, name } if namespace == "a" && name == "b")
        );
    }

    #[test]
    fn where_the_keys_are_is_said_in_words() {
        let place = |variables: &[(&str, &str)]| read(variables).expect("settings").options.keys_place;
        assert_eq!(place(&[]), "the Secret infra/cloudstack-credentials");
        assert_eq!(place(&[("CLOUDSTACK_CREDENTIALS_SECRET", "a/b")]), "the Secret a/b");
        let directory = place(&[("CLOUDSTACK_CREDENTIALS_DIR", "/etc/keys")]);
        assert_eq!(directory, "the files in /etc/keys (CLOUDSTACK_CREDENTIALS_DIR)");
        let given = [
            ("CLUSTER_NAME", "prod"),
            ("CLOUDSTACK_API_URL", "https://cloud/client/api"),
            ("CLOUDSTACK_API_KEY", "k"),
            ("CLOUDSTACK_SECRET_KEY", "s"),
        ];
        let environ = given.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let given = Options::parse([], &environ).expect("options").cloudstack;
        let settings = Settings::read(&given, None, &|_| None).expect("settings");
        assert_eq!(settings.options.keys_place, "CLOUDSTACK_API_KEY and CLOUDSTACK_SECRET_KEY");
    }

    #[test]
    fn what_cannot_be_used_names_the_variable_and_what_to_write() {
        assert!(wrong(&[("CLOUDSTACK_ON_STOPPED", "x")]).contains("Start, Replace, Ignore"));
        assert!(wrong(&[("CLOUDSTACK_NAME_PREFIX", "-1st")]).contains("begin with a letter"));
        assert!(wrong(&[("CLOUDSTACK_LAUNCH_WAIT", "5m")]).contains("at most 60s"));
        assert!(wrong(&[("CLOUDSTACK_MAX_USER_DATA", "much")]).contains("CLOUDSTACK_MAX_USER_DATA"));
        assert!(wrong(&[("CLOUDSTACK_CACHE_ZONES", "soon")]).contains("CLOUDSTACK_CACHE_ZONES"));
        assert!(wrong(&[("CLOUDSTACK_PROJECT_ID", "p"), ("CLOUDSTACK_ACCOUNT", "a")]).contains("mixture"));
        for nonsense in ["-1", "my project", "a,b"] {
            let refusal = wrong(&[("CLOUDSTACK_PROJECT_ID", nonsense)]);
            assert!(
                refusal.contains("CLOUDSTACK_PROJECT_ID") && refusal.contains("listProjects"),
                "{refusal}"
            );
        }
        assert!(
            wrong(&[("CLOUDSTACK_ACCOUNT", "a"), ("CLOUDSTACK_DOMAIN_ID", "-1")])
                .contains("CLOUDSTACK_DOMAIN_ID")
        );
        assert!(wrong(&[("CLOUDSTACK_CALLS_PER_SECOND", "0")]).contains("above 0"));
        assert!(wrong(&[("CLOUDSTACK_CALLS_PER_SECOND", "1e-20")]).contains("at least 0.01"));
        for proxy in
            ["socks5://proxy:1080", "http://", "proxy host:3128", "http://proxy:port", "https://proxy:3128"]
        {
            let refusal = wrong(&[("CLOUDSTACK_PROXY", proxy)]);
            assert!(refusal.contains("CLOUDSTACK_PROXY") && refusal.contains("http://HOST:PORT"), "{proxy}");
        }
        for proxy in ["http://proxy:3128", "http://user:word@proxy:3128", "proxy:3128", "proxy"] {
            assert_eq!(wrong(&[("CLOUDSTACK_PROXY", proxy)]), "", "{proxy}");
        }
        for form in ["cloudstack://", "openstack:///{id}", "cloudstack://{id}/{zone}", "{id}"] {
            let refusal = wrong(&[("CLOUDSTACK_PROVIDER_ID", form)]);
            assert!(refusal.contains("{id}") && refusal.contains("cloudstack://"), "{form}: {refusal}");
        }
        assert_eq!(wrong(&[("CLOUDSTACK_PROVIDER_ID", "cloudstack://eu/{zone}/{id}")]), "");
        assert!(wrong(&[("CLOUDSTACK_CA_FILE", "/nonexistent")]).contains("CLOUDSTACK_CA_FILE"));
        assert!(wrong(&[("CLOUDSTACK_CLIENT_KEY_FILE", "/dev/null")]).contains("go together"));
        assert!(wrong(&[("CLOUDSTACK_WEBHOOK_PORT", "70000")]).contains("CLOUDSTACK_WEBHOOK_PORT"));
        assert!(wrong(&[("CLOUDSTACK_WEBHOOK_NAME", "Big.One")]).contains("CLOUDSTACK_WEBHOOK_NAME"));
    }

    #[test]
    fn certificates_may_be_given_as_a_file_as_text_or_both() {
        let given =
            |file: Option<&str>, text: Option<&str>| ca_bundle(file.map(Into::into), text.map(Into::into));
        assert_eq!(given(None, None), None);
        assert_eq!(given(None, Some("b")).as_deref(), Some("b"));
        assert_eq!(
            given(Some("a"), Some("b")).as_deref(),
            Some("a\nb"),
            "a file may end without a line's end"
        );
    }

    #[test]
    fn a_name_prefix_that_would_hide_the_machines_is_refused() {
        let said = |prefix: String| wrong(&[("CLOUDSTACK_NAME_PREFIX", prefix.as_str())]);
        let refusal = said("x".repeat(MAX_PREFIX + 1));
        assert!(refusal.contains("CLOUDSTACK_NAME_PREFIX") && refusal.contains("at most 42"), "{refusal}");
        assert_eq!(said("x".repeat(MAX_PREFIX)), "");
        assert_eq!(
            said(format!("{}......{}", "x".repeat(20), "y".repeat(20))),
            "",
            "one hyphen of many dots"
        );
    }

    #[test]
    fn there_is_no_webhook_unless_a_port_is_given() {
        assert_eq!(read(&[]).expect("settings").webhook, None);
        assert_eq!(read(&[("CLOUDSTACK_WEBHOOK_PORT", "0")]).expect("settings").webhook, None);
        let given = read(&[("CLOUDSTACK_WEBHOOK_PORT", "8443")]).expect("settings").webhook;
        assert_eq!(given, Some((8443, "karpenter-cloudstack-webhook".to_owned())));
        let named = [("CLOUDSTACK_WEBHOOK_PORT", "8443"), ("CLOUDSTACK_WEBHOOK_NAME", "x")];
        assert_eq!(read(&named).expect("settings").webhook, Some((8443, "x".to_owned())));
    }

    #[test]
    fn everything_that_is_said_is_heard() {
        let settings = read(&[
            ("CLOUDSTACK_CACHE_OFFERINGS", "90s"),
            ("CLOUDSTACK_COLLECT_ORPHANS", "dry-run"),
            ("CLOUDSTACK_NAME_NODES", "true"),
            ("CLOUDSTACK_PROVIDER_ID", "cloudstack:///{id}"),
            ("CLOUDSTACK_CALLS_PER_SECOND", "5"),
            ("CLOUDSTACK_LAUNCH_WAIT", "0s"),
            ("CLOUDSTACK_CACHE_LIMITS", "15s"),
        ])
        .expect("settings");
        assert_eq!(settings.options.lifetimes.offerings, Duration::from_secs(90));
        assert_eq!(settings.options.collect_orphans, CollectOrphans::Tell);
        assert!(settings.options.name_nodes && settings.options.launch_wait.is_zero());
        assert_eq!(settings.options.lifetimes.budgets, Duration::from_secs(15));
        assert_eq!(settings.options.provider_id.write("z", "1"), "cloudstack:///1");
        assert_eq!(settings.rate.per_second, 5.0);
    }
}
