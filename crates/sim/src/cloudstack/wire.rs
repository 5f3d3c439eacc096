//! What arrives at the simulated server, and what leaves it: parameters, signatures, envelopes. Written anew from what a real
//! server does, sharing no code with the client it helps to test.

use std::collections::BTreeMap;

use base64::Engine as _;
use bytes::Bytes;
use http::{Method, Request, Response, header};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::account::Account;

/// What is said of anything that belongs to others.
pub(crate) const OF_OTHERS: &str = "Caller does not have permission to operate with provided resource.";

/// What the server refuses to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) code: u16,
    pub(crate) cs_code: Option<i64>,
    pub(crate) text: String,
    /// Whether the envelope names no command.
    pub(crate) anonymous: bool,
}

impl Refusal {
    pub(crate) fn new(code: u16, cs_code: i64, text: impl Into<String>) -> Self {
        Self { code, cs_code: Some(cs_code), text: text.into(), anonymous: false }
    }

    /// Wrong parameter, as the server's own checks say it.
    pub(crate) fn parameter(text: impl Into<String>) -> Self {
        Self::new(431, 4350, text)
    }

    /// What the caller may not touch.
    pub(crate) fn denied(text: impl Into<String>) -> Self {
        Self::new(531, 4365, text)
    }

    /// Something of others, named by its id.
    pub(crate) fn of_others() -> Self {
        Self::denied(OF_OTHERS)
    }

    /// One text for everything from a wrong key to a command nobody knows.
    pub(crate) fn unauthorized() -> Self {
        let text = "unable to verify user credentials and/or request signature".to_owned();
        Self { code: 401, cs_code: None, text, anonymous: false }
    }

    /// The same in an envelope that names no command, since there is none of this name.
    pub(crate) fn unknown_command() -> Self {
        Self { anonymous: true, ..Self::unauthorized() }
    }

    /// What ordinary users are told when the server does not want to say.
    pub(crate) fn hidden(cs_code: i64) -> Self {
        Self::new(530, cs_code, "Internal error executing command, please contact your system administrator")
    }

    pub(crate) fn entity(command: &str, parameter: &str, value: &str) -> Self {
        let command = command.to_lowercase();
        Self::new(
            431,
            9999,
            format!(
                "Unable to execute API command {command} due to invalid value. Invalid parameter {parameter} value={value} due to incorrect long value format, or entity does not exist or due to incorrect parameter annotation for the field in api cmd class."
            ),
        )
    }
}

/// A request, taken apart.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) by_post: bool,
    /// As sent, for the signature.
    sent: Vec<(String, String)>,
    /// By lower-case name.
    parameters: BTreeMap<String, String>,
}

impl Call {
    pub(crate) fn read(request: &Request<Bytes>) -> Self {
        let mut sent = decode(request.uri().query().unwrap_or_default());
        if request.method() == Method::POST {
            for (name, value) in decode(&String::from_utf8_lossy(request.body())) {
                // The query string wins.
                if !sent.iter().any(|(other, _)| *other == name) {
                    sent.push((name, value));
                }
            }
        }
        let parameters = sent.iter().map(|(name, value)| (name.to_lowercase(), value.clone())).collect();
        Self { by_post: request.method() == Method::POST, sent, parameters }
    }

    pub(crate) fn command(&self) -> &str {
        self.get("command").unwrap_or_default()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.get(name) == Some("true")
    }

    /// Values separated by commas.
    pub(crate) fn list(&self, name: &str) -> Vec<String> {
        self.get(name).map_or_else(Vec::new, |text| text.split(',').map(|v| v.trim().to_owned()).collect())
    }

    pub(crate) fn all(&self) -> &BTreeMap<String, String> {
        &self.parameters
    }

    /// The entries of `name[i].field`, in the order of their numbers. Field names keep their case.
    pub(crate) fn map(&self, name: &str) -> Result<Vec<BTreeMap<String, String>>, Refusal> {
        let mut entries: BTreeMap<usize, BTreeMap<String, String>> = BTreeMap::new();
        for (key, value) in &self.sent {
            let Some(rest) = strip_prefix_ignoring_case(key, name).and_then(|rest| rest.strip_prefix('['))
            else {
                continue;
            };
            let parsed = rest
                .split_once("].")
                .and_then(|(index, field)| index.parse().ok().map(|index: usize| (index, field)));
            let Some((index, field)) = parsed else {
                // The server writes three letters X for a value.
                const VALUE: &str = concat!("X", "X", "X");
                let text = format!(
                    "Unable to decode parameter {key}; if specifying an object array, please use parameter[index].field={VALUE}, e.g. userGroupList[0].group=httpGroup"
                );
                return Err(Refusal::new(430, 9999, text));
            };
            entries.entry(index).or_default().insert(field.to_owned(), value.clone());
        }
        Ok(entries.into_values().collect())
    }

    /// Pairs of key and value under `name`.
    pub(crate) fn pairs(&self, name: &str) -> Result<Vec<(String, String)>, Refusal> {
        let field =
            |entry: &BTreeMap<String, String>, name: &str| entry.get(name).cloned().unwrap_or_default();
        Ok(self.map(name)?.iter().map(|entry| (field(entry, "key"), field(entry, "value"))).collect())
    }

    /// Whether the signature is that of the account, made in time.
    pub(crate) fn is_signed_by(&self, account: &Account, now: Timestamp, strict: bool) -> bool {
        let Some(signature) = self.get("signature") else { return false };
        let third = self.get("signatureversion") == Some("3");
        if strict && !third {
            return false;
        }
        if third {
            let Some(expires) = self.get("expires").and_then(time) else { return false };
            let too_far = now.checked_add(SignedDuration::from_mins(15)).is_ok_and(|limit| expires > limit);
            if expires < now || (strict && too_far) {
                return false;
            }
        }
        let mut sorted: Vec<&(String, String)> =
            self.sent.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("signature")).collect();
        sorted.sort();
        let text = sorted
            .iter()
            .map(|(name, value)| format!("{name}={}", java_url_encoded(value)))
            .collect::<Vec<_>>()
            .join("&")
            .to_lowercase();
        let secret = self.get("apikey").and_then(|key| account.secret_of(key)).unwrap_or_default();
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret.as_bytes());
        let Ok(given) = base64::engine::general_purpose::STANDARD.decode(signature) else { return false };
        ring::hmac::verify(&key, text.as_bytes(), &given).is_ok()
    }
}

fn strip_prefix_ignoring_case<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let head = text.get(..prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then(|| &text[prefix.len()..])
}

/// ISO 8601 in the forms the server takes.
fn time(text: &str) -> Option<Timestamp> {
    if let Ok(time) = text.parse() {
        return Some(time);
    }
    jiff::fmt::strtime::parse("%Y-%m-%dT%H:%M:%S%z", text).ok()?.to_timestamp().ok()
}

/// Java's `URLEncoder`, with `+` written as `%20`.
fn java_url_encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| {
            if byte.is_ascii_alphanumeric() || b".-*_".contains(&byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

/// A query string or form.
fn decode(text: &str) -> Vec<(String, String)> {
    text.split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (percent_decoded(name), percent_decoded(value))
        })
        .collect()
}

fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = (bytes[at] == b'%')
            .then(|| text.get(at + 1..at + 3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match hex {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(if bytes[at] == b'+' { b' ' } else { bytes[at] });
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// The answer in its envelope.
pub(crate) fn answer(command: &str, outcome: Result<Value, Refusal>) -> Response<Bytes> {
    let key = format!("{}response", command.to_lowercase());
    let (status, body, description) = match outcome {
        Ok(inside) => (200, json!({ key: inside }), None),
        Err(refusal) => {
            let key = if refusal.anonymous { "errorresponse".to_owned() } else { key };
            let mut inside = json!({"uuidList": [], "errorcode": refusal.code, "errortext": refusal.text});
            if let Some(cs_code) = refusal.cs_code {
                inside["cserrorcode"] = cs_code.into();
            }
            (refusal.code, json!({ key: inside }), Some(refusal.text))
        }
    };
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() =
        http::StatusCode::from_u16(status).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/json;charset=utf-8"));
    if let Some(text) = description.and_then(|text| http::HeaderValue::from_str(&text).ok()) {
        headers.insert("X-Description", text);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_come_from_query_and_form_and_the_query_wins() {
        let request = Request::post("/client/api?command=listZones&a=1%2B1")
            .body(Bytes::from("a=2&b=x+y&tags%5B1%5D.key=second&tags%5B0%5D.key=first&tags%5B0%5D.value=v"))
            .expect("a request");
        let call = Call::read(&request);
        assert_eq!((call.command(), call.get("a"), call.get("b")), ("listZones", Some("1+1"), Some("x y")));
        let pairs = call.pairs("tags").expect("pairs");
        assert_eq!(pairs[0], ("first".to_owned(), "v".to_owned()));
        assert_eq!(pairs[1].0, "second");
    }

    #[test]
    fn a_number_that_is_none_is_malformed() {
        let request = Request::get("/client/api?tags[x].key=a".replace('[', "%5B").replace(']', "%5D"))
            .body(Bytes::new())
            .expect("a request");
        assert_eq!(Call::read(&request).map("tags").expect_err("malformed").code, 430);
    }
}
