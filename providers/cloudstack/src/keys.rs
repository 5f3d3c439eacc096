//! What a Secret of keys says: where the server is, how it is reached, who we are there and what for. Pure, but for reading files.

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::api::core::v1::Secret;

use crate::client::Session;
use crate::client::http::{HttpError, Way};
use crate::client::signature::Credentials;
use crate::credentials::Roads;

/// The key of the Secret of the cloud controller manager.
const CLOUD_CONFIG: &str = "cloud-config";

/// What Secrets that charts make call the same.
const ALSO_CALLED: [(&str, &str); 3] =
    [("api-url", "apiUrl"), ("api-key", "apiKey"), ("secret-key", "secretKey")];

/// See the module.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Keys {
    /// Where they were read, for messages.
    pub(crate) place: String,
    pub(crate) api_url: String,
    pub(crate) credentials: Credentials,
    /// The project everything belongs to where a NodeClass names none.
    pub(crate) project: Option<String>,
    pub(crate) way: Way,
}

/// Why there are no keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KeysError {
    #[error(
        "{place}: {problem}; the Secret needs the keys api-url, api-key and secret-key (or cloud-config, as the cloud controller manager has it)"
    )]
    Missing { place: String, problem: String },
    /// What is said makes no sense.
    #[error("{place}: {problem}")]
    Unusable { place: String, problem: String },
    #[error("{place}: {error}")]
    Http { place: String, error: HttpError },
}

/// Puts keys together from named values, of which there may be none.
fn keys(place: &str, value: impl Fn(&str) -> Result<Option<String>, String>) -> Result<Keys, KeysError> {
    let missing = |problem: String| KeysError::Missing { place: place.to_owned(), problem };
    let value = |name: &str| {
        let said = match (value(name), ALSO_CALLED.iter().find(|(usual, _)| *usual == name)) {
            (Ok(None), Some((_, other))) => value(other),
            (said, _) => said,
        };
        said.map_err(|problem| missing(format!("{name}: {problem}")))
    };
    let config = match value("api-url")? {
        Some(_) => None,
        None => value(CLOUD_CONFIG)?.map(|text| global(&text)),
    };
    let own = |name: &str| value(name).map(|value| value.map(|value| value.trim().to_owned()));
    let said = |name: &str| match &config {
        Some(config) => Ok(config.get(name).cloned()),
        None => own(name),
    };
    let needed = |name: &str| match (said(name)?, &config) {
        (Some(text), _) if !text.is_empty() => Ok(text),
        (Some(_), None) => Err(missing(format!("{name} is empty"))),
        (None, None) => Err(missing(format!("{name}: there is none"))),
        (_, Some(_)) => Err(missing(format!("{CLOUD_CONFIG} has no {name}, or an empty one"))),
    };
    let unusable = |problem| KeysError::Unusable { place: place.to_owned(), problem };
    let wrong = |name: &str, problem: String| unusable(format!("{name} {problem}"));
    let wrong_said = |name: &str, problem: String| match &config {
        Some(_) => unusable(format!("{CLOUD_CONFIG}: {name} {problem}")),
        None => wrong(name, problem),
    };
    let project = match said("project-id")?.filter(|id| !id.is_empty()) {
        Some(id) if !is_id(&id) => {
            let problem = format!("is {id:?}; give the id of one project, as listProjects shows it");
            return Err(wrong_said("project-id", problem));
        }
        project => project,
    };
    let ssl_no_verify = match said("ssl-no-verify")? {
        None => false,
        Some(text) => yes_or_no(&text).ok_or_else(|| {
            wrong_said("ssl-no-verify", format!("is {text:?}; write true or false, or leave it out"))
        })?,
    };
    Ok(Keys {
        place: place.to_owned(),
        api_url: needed("api-url")?,
        credentials: Credentials::new(needed("api-key")?, needed("secret-key")?),
        project,
        way: way(ssl_no_verify, own, wrong)?,
    })
}

/// What the keys of a Secret say of the way to its server.
fn way(
    ssl_no_verify: bool,
    value: impl Fn(&str) -> Result<Option<String>, KeysError>,
    wrong: impl Fn(&str, String) -> KeysError,
) -> Result<Way, KeysError> {
    let said = |name: &str| value(name).map(|text| text.filter(|text| !text.is_empty()));
    let client_certificate = match (said("client-certificate")?, said("client-key")?) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => return Err(wrong("client-certificate", "needs client-key; add it".to_owned())),
        (None, Some(_)) => return Err(wrong("client-key", "needs client-certificate; add it".to_owned())),
    };
    let proxy = match (said("proxy")?, said("no-proxy")?) {
        (Some(proxy), no_proxy) => Some((proxy, no_proxy.unwrap_or_default())),
        (None, None) => None,
        (None, Some(_)) => {
            let text =
                "is for the proxy of the same Secret; add proxy, or say it for all (CLOUDSTACK_NO_PROXY)";
            return Err(wrong("no-proxy", text.to_owned()));
        }
    };
    let ca_bundle = said("ca-bundle")?;
    let tls_server_name = said("tls-server-name")?;
    let way = Way { ssl_no_verify, ca_bundle, tls_server_name, client_certificate, proxy };
    match way.problem() {
        Some((name, problem)) => Err(wrong(name, problem)),
        None => Ok(way),
    }
}

/// Whether this can be the id of something: `-1` would be all projects at once, and nothing of ours.
pub(crate) fn is_id(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

/// The words the cloud controller manager takes.
fn yes_or_no(text: &str) -> Option<bool> {
    let is = |words: &[&str]| words.iter().any(|word| word.eq_ignore_ascii_case(text));
    match (is(&["true", "yes", "on", "1"]), is(&["false", "no", "off", "0"])) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    }
}

/// What the section `[Global]` of a cloud-config says, and whatever stands before any section, read as the cloud controller manager
/// reads it: names in any case, a name alone means `true`, of several the last counts.
fn global(config: &str) -> BTreeMap<String, String> {
    let mut said = BTreeMap::new();
    let mut is_global = true;
    for line in config.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            let name = section.split(']').next().unwrap_or_default();
            is_global = name.trim().eq_ignore_ascii_case("global");
        } else if is_global && !line.is_empty() && !line.starts_with(['#', ';']) {
            let (name, value) = match line.split_once('=') {
                Some((name, value)) => (name, unquoted(value)),
                None => (uncommented(line), "true"),
            };
            said.insert(name.trim().to_ascii_lowercase(), value.to_owned());
        }
    }
    said
}

/// A value without quotation marks, or without the comment behind it.
fn unquoted(value: &str) -> &str {
    match value.trim().strip_prefix('"') {
        Some(quoted) => quoted.split('"').next().unwrap_or_default().trim(),
        None => uncommented(value).trim(),
    }
}

fn uncommented(text: &str) -> &str {
    text.split(['#', ';']).next().unwrap_or_default()
}

/// Reads the keys of a mounted Secret.
pub(crate) fn read(directory: &Path) -> Result<Keys, KeysError> {
    keys(&directory.display().to_string(), |name| match std::fs::read_to_string(directory.join(name)) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    })
}

/// Reads the keys of a Secret.
pub(crate) fn of_secret(place: &str, secret: &Secret) -> Result<Keys, KeysError> {
    keys(place, |name| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(name));
        let text = bytes.map(|bytes| String::from_utf8(bytes.0.clone()));
        text.transpose().map_err(|_| "it is no text".to_owned())
    })
}

impl Keys {
    /// A session with these keys.
    pub(crate) fn session(self, roads: &Roads) -> Result<Session, KeysError> {
        let Self { place, api_url: endpoint, credentials, project, way } = self;
        let transport = roads(&endpoint, &way).map_err(|error| KeysError::Http { place, error })?;
        Ok(Session { endpoint, credentials, transport, project })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    #[test]
    fn a_secret_that_lacks_a_key_says_which() {
        let directory =
            std::env::temp_dir().join(format!("karpenter-cloudstack-keys-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        std::fs::write(directory.join("api-url"), "https://cloud/client/api\n").expect("a file");
        std::fs::write(directory.join("api-key"), "key\n").expect("a file");
        let error = read(&directory).err().expect("no secret-key").to_string();
        assert!(error.contains("secret-key") && error.contains("api-url, api-key and secret-key"), "{error}");
        std::fs::write(directory.join("secret-key"), "secret\n").expect("a file");
        let url = read(&directory).map(|credentials| credentials.api_url);
        assert_eq!(url.expect("keys"), "https://cloud/client/api");
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn the_secret_of_the_cloud_controller_manager_will_do() {
        let config = "[Global]\napi-url = https://cloud/client/api\napi-key = key\nsecret-key = secret\n";
        let data = [("cloud-config".to_owned(), ByteString(config.into()))].into();
        let secret = Secret { data: Some(data), ..Secret::default() };
        let keys = of_secret("Secret x", &secret).expect("keys");
        assert_eq!((keys.api_url.as_str(), keys.credentials.api_key()), ("https://cloud/client/api", "key"));
        let error = of_secret("Secret x", &Secret::default()).err().expect("nothing").to_string();
        assert!(error.contains("Secret x") && error.contains("cloud-config"), "{error}");
    }

    #[test]
    fn the_secret_of_a_chart_will_do() {
        let data = [("apiUrl", "https://cloud/client/api"), ("apiKey", "key"), ("secretKey", "secret")];
        let keys = of_secret("Secret x", &secret(&data)).expect("keys");
        assert_eq!((keys.api_url.as_str(), keys.credentials.api_key()), ("https://cloud/client/api", "key"));
        let both = [("apiKey", "old"), ("api-key", "new"), ("api-url", "https://c"), ("secret-key", "s")];
        assert_eq!(of_secret("Secret x", &secret(&both)).expect("keys").credentials.api_key(), "new");
    }

    #[test]
    fn a_cloud_config_with_an_empty_key_is_none() {
        for config in [
            "api-url = https://cloud/client/api\napi-key =\nsecret-key = secret\n",
            "api-url = https://cloud/client/api\napi-key = \" \"\nsecret-key = secret\n",
        ] {
            let data = [("cloud-config".to_owned(), ByteString(config.into()))].into();
            let secret = Secret { data: Some(data), ..Secret::default() };
            let error = of_secret("Secret x", &secret).err().expect("no key").to_string();
            assert!(error.contains("api-key, or an empty one"), "{error}");
        }
    }

    fn secret(data: &[(&str, &str)]) -> Secret {
        let data = data.iter().map(|(name, text)| ((*name).to_owned(), ByteString((*text).into()))).collect();
        Secret { data: Some(data), ..Secret::default() }
    }

    fn of_config(config: &str) -> Result<Keys, KeysError> {
        let whole =
            format!("api-url = https://cloud/client/api\napi-key = key\nsecret-key = secret\n{config}");
        of_secret("Secret karpenter/x", &secret(&[("cloud-config", &whole)]))
    }

    #[test]
    fn a_cloud_config_says_which_project_and_whether_certificates_are_checked() {
        let keys = of_config("").expect("keys");
        assert_eq!((keys.project, keys.way.ssl_no_verify), (None, false));
        let keys = of_config("project-id = 1a2b-3c\nssl-no-verify = true").expect("keys");
        assert_eq!((keys.project.as_deref(), keys.way.ssl_no_verify), (Some("1a2b-3c"), true));
        let keys = of_config("Project-ID = \"\"\nssl-no-verify = Off ; not yet").expect("keys");
        assert_eq!((keys.project, keys.way.ssl_no_verify), (None, false));
        assert!(of_config("ssl-no-verify").expect("keys").way.ssl_no_verify, "alone it means yes");
        let keys = of_config("[Other]\nproject-id = other\n[Global]\nproject-id = \"ours\" # ours\n");
        assert_eq!(keys.expect("keys").project.as_deref(), Some("ours"));
    }

    #[test]
    fn a_cloud_config_that_makes_no_sense_says_where_and_what_to_write() {
        let wrong = |config: &str| of_config(config).err().map(|error| error.to_string()).unwrap_or_default();
        for value in ["maybe", "\"\"", "2"] {
            let error = wrong(&format!("ssl-no-verify = {value}"));
            for part in ["Secret karpenter/x", "cloud-config", "ssl-no-verify", "true or false"] {
                assert!(error.contains(part), "{error}");
            }
        }
        for value in ["-1", "our project", "a,b", "../x"] {
            let error = wrong(&format!("project-id = {value}"));
            for part in ["Secret karpenter/x", "cloud-config", "project-id", "listProjects"] {
                assert!(error.contains(part), "{error}");
            }
        }
    }

    #[test]
    fn what_a_cloud_config_may_say_may_be_keys_of_the_secret() {
        assert_eq!(with(&[("project-id", "1a\n")]).expect("keys").project.as_deref(), Some("1a"));
        assert!(with(&[("ssl-no-verify", "true\n")]).expect("keys").way.ssl_no_verify);
        let error = with(&[("ssl-no-verify", "maybe")]).err().expect("nonsense").to_string();
        assert!(error.starts_with("Secret karpenter/x: ssl-no-verify is \"maybe\""), "{error}");
        // What the three keys say is not mixed with a cloud-config's.
        let keys = with(&[("cloud-config", "project-id = other")]).expect("keys");
        assert_eq!(keys.project, None);
    }

    const AUTHORITY: &str = include_str!("../tests/it/certificates/ca.pem");
    const CERTIFICATE: &str = include_str!("../tests/it/certificates/server.pem");
    const KEY: &str = include_str!("../tests/it/certificates/server.key");

    fn with(further: &[(&str, &str)]) -> Result<Keys, KeysError> {
        let three = [("api-url", "https://c/client/api"), ("api-key", "k"), ("secret-key", "s")];
        of_secret("Secret karpenter/x", &secret(&[&three[..], further].concat()))
    }

    #[test]
    fn a_secret_says_how_its_server_is_reached_whichever_form_its_keys_have() {
        let way = [
            ("ca-bundle", AUTHORITY),
            ("tls-server-name", "cloud.internal\n"),
            ("client-certificate", CERTIFICATE),
            ("client-key", KEY),
            ("proxy", "http://user:word@proxy:3128\n"),
            ("no-proxy", "inside"),
        ];
        let config = "api-url = https://cloud/client/api\napi-key = key\nsecret-key = secret\n";
        let of_config = secret(&[&[("cloud-config", config)], &way[..]].concat());
        for keys in [with(&way), of_secret("Secret karpenter/x", &of_config)] {
            let way = keys.map_err(|error| error.to_string()).expect("keys").way;
            assert_eq!(way.ca_bundle.as_deref(), Some(AUTHORITY.trim()));
            assert_eq!(way.tls_server_name.as_deref(), Some("cloud.internal"));
            assert!(way.client_certificate.is_some());
            assert_eq!(way.proxy, Some(("http://user:word@proxy:3128".to_owned(), "inside".to_owned())));
        }
        let nothing = with(&[("ca-bundle", ""), ("proxy", "\n")]).map(|keys| keys.way == Way::default());
        assert_eq!(nothing, Ok(true), "an empty value says nothing");
    }

    #[test]
    fn a_way_that_cannot_be_gone_names_secret_key_and_remedy_and_repeats_no_password() {
        let other_key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        for (further, key, remedy) in [
            (&[("ca-bundle", "nothing")][..], "ca-bundle cannot be used", "in PEM"),
            (
                &[("ca-bundle", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----")][..],
                "ca-bundle cannot be used",
                "in PEM",
            ),
            (&[("tls-server-name", "a b")][..], "tls-server-name is \"a b\"", "certificate carries"),
            (&[("client-certificate", CERTIFICATE)][..], "client-certificate needs", "add it"),
            (&[("client-key", KEY)][..], "client-key needs", "add it"),
            (
                &[("client-certificate", CERTIFICATE), ("client-key", other_key)][..],
                "client-certificate and client-key cannot be used",
                "in PEM",
            ),
            (&[("proxy", "socks5://user:word@proxy:1080")][..], "proxy is no address", "http://HOST:PORT"),
            (&[("no-proxy", "inside")][..], "no-proxy is for the proxy", "add proxy"),
        ] {
            let error = with(further).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.starts_with(&format!("Secret karpenter/x: {key}")), "{error}");
            assert!(error.contains(remedy) && !error.contains("word"), "{error}");
        }
    }
}
