//! What goes out and what comes back, as pure functions: the signed HTTP request, the answer taken out of its envelope, the rows of lists.

use ::http::{Method, header};
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::{ApiError, ErrorKind, NOT_CLOUDSTACKS};
use super::request::Request;
use super::{Session, TOO_MANY};

/// How long a signature is good for. Servers that insist on times refuse more than 15 minutes.
const VALIDITY: SignedDuration = SignedDuration::from_mins(10);

/// The HTTP request: reads by GET, everything else by POST, always with a time limit.
pub(super) fn http_request(
    session: &Session,
    request: &Request,
    now: Timestamp,
) -> Result<::http::Request<Bytes>, ApiError> {
    let expires = now.checked_add(VALIDITY).unwrap_or(now);
    let mut parameters = vec![
        ("command".to_owned(), request.command().to_owned()),
        ("response".to_owned(), "json".to_owned()),
        ("apiKey".to_owned(), session.credentials.api_key().to_owned()),
        ("signatureVersion".to_owned(), "3".to_owned()),
        ("expires".to_owned(), expires.strftime("%Y-%m-%dT%H:%M:%S+0000").to_string()),
    ];
    parameters.extend(request.parameters().iter().cloned());
    let signed = session.credentials.signed(&parameters);
    let builder = ::http::Request::builder().header(header::ACCEPT, "application/json");
    let built = if request.is_read() {
        builder.method(Method::GET).uri(format!("{}?{signed}", session.endpoint)).body(Bytes::new())
    } else {
        builder
            .method(Method::POST)
            .uri(&session.endpoint)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(signed.into())
    };
    // The error of the builder may quote the query with its key.
    built.map_err(|_| {
        let text = format!(
            "the API address {:?} cannot be used; write it as https://HOST/client/api",
            session.endpoint
        );
        ApiError::new(request.command(), ErrorKind::NotSent, text)
    })
}

/// What is inside the envelope, or the error it says. An envelope that is not this command's is none: what something in between
/// answers in its own words would look like an empty list.
pub(super) fn opened(command: &'static str, status: u16, body: &[u8]) -> Result<Value, ApiError> {
    let ours = format!("{command}response");
    let inside = serde_json::from_slice::<Value>(body).ok().and_then(|envelope| match envelope {
        Value::Object(fields) => {
            let says_why = |inside: &Value| inside["errorcode"].is_u64();
            let is_ours = |name: &str| name.eq_ignore_ascii_case(&ours);
            fields
                .into_iter()
                .find(|(name, inside)| is_ours(name) || says_why(inside))
                .map(|(_, inside)| inside)
        }
        _ => None,
    });
    match inside {
        Some(inside) if inside["errorcode"].is_u64() || status >= 400 => {
            Err(ApiError::answered(command, status, &inside))
        }
        Some(inside) => Ok(inside),
        // A proxy's page, or an answer cut short: a write may have been carried out.
        None => {
            let kind = match status {
                200..=299 => ErrorKind::LostResponse,
                401 | 403 | 407 => ErrorKind::Barred,
                // It says nothing of what was asked, only that the way there is closed.
                404 | 408 | TOO_MANY => ErrorKind::Unavailable,
                300..=499 => ErrorKind::Parameter,
                _ => ErrorKind::Unavailable,
            };
            let start = beginning(&String::from_utf8_lossy(body));
            let text = format!(
                "the answer (HTTP {status}){}{start:?}; check the API address and proxies before it",
                NOT_CLOUDSTACKS
            );
            Err(ApiError { command, kind, code: status, text })
        }
    }
}

/// What somebody else's page begins with. Pages repeat what was asked, and that has the key and the signature in it.
fn beginning(page: &str) -> String {
    let in_small = page.to_ascii_lowercase();
    let end = ["?", "apikey", "signature"].iter().filter_map(|word| in_small.find(word)).min();
    page[..end.unwrap_or(page.len())].chars().take(80).collect()
}

/// The size of page the server would take, from its refusal of ours.
pub(super) fn allowed_page_size(error: &ApiError) -> Option<usize> {
    let (_, rest) = error.text.split_once("max allowed page size value: ")?;
    rest.trim().trim_end_matches('.').parse().ok()
}

/// The rows of a list, whatever they are called there, and how many there are in all if it says so.
pub(super) fn rows(command: &'static str, answer: Value) -> Result<(Option<usize>, Vec<Value>), ApiError> {
    let Value::Object(fields) = answer else {
        return Err(ApiError::new(command, ErrorKind::LostResponse, "the answer is no list"));
    };
    let count = fields.get("count").and_then(|count| match count {
        Value::Number(number) => usize::try_from(number.as_u64()?).ok(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    });
    let rows = fields.into_iter().find_map(|(_, field)| match field {
        Value::Array(rows) => Some(rows),
        _ => None,
    });
    Ok((count, rows.unwrap_or_default()))
}

/// Whether an account has a user with the key of this session.
pub(super) fn has_key(account: &Value, session: &Session) -> bool {
    let users = account["user"].as_array().map(Vec::as_slice).unwrap_or_default();
    users.iter().any(|user| user["apikey"] == session.credentials.api_key())
}

/// What a row of machines cannot do without and lacks.
pub(super) fn lacking(row: &Value) -> Option<&'static str> {
    let has = |key: &str| row[key].is_number() || row[key].as_str().is_some_and(|text| !text.is_empty());
    ["id", "name"].into_iter().find(|key| !has(key))
}

/// How a row is called in messages.
pub(super) fn named(row: &Value) -> String {
    let said =
        |key: &str| Some(&row[key]).filter(|value| !value.is_null()).map(|value| format!("{key} {value}"));
    let said: Vec<String> = ["id", "name"].into_iter().filter_map(said).collect();
    if said.is_empty() {
        "a row without id and name".to_owned()
    } else {
        format!("the row of {}", said.join(", "))
    }
}

/// What a row says, or which row and which field of it cannot be read.
pub(crate) fn decoded<T: DeserializeOwned>(command: &'static str, value: Value) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(&value).map_err(|error| {
        let text = format!(
            "the answer is not as expected: {} at {}: {}",
            named(&value),
            error.path(),
            error.inner()
        );
        ApiError::new(command, ErrorKind::Internal, text)
    })
}
