//! What a client accepts: whole objects, their metadata alone, or the aggregated form of discovery.

use http::HeaderMap;
use http::header::ACCEPT;

use crate::status::ApiError;

/// How objects are written into an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Whole,
    Metadata,
    /// `PartialObjectMetadataList` was asked for; fits lists only.
    MetadataList,
}

/// What kube-apiserver says it can write. This server writes the first.
const MEDIA_TYPES: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// The first representation in the `Accept` header that this server has; a `collection` may be watched, too.
pub(crate) fn form(headers: &HeaderMap, collection: bool) -> Result<Form, ApiError> {
    let mut asked = false;
    let mut transformed = false;
    for range in ranges(headers) {
        asked = true;
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        if !matches!(media, "application/json" | "*/*") {
            continue;
        }
        let parameters: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
        let get = |name: &str| parameters.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
        match (get("as"), get("g"), get("v")) {
            (None, _, _) => return Ok(Form::Whole),
            (Some("PartialObjectMetadata"), Some("meta.k8s.io"), Some("v1")) => return Ok(Form::Metadata),
            (Some("PartialObjectMetadataList"), Some("meta.k8s.io"), Some("v1")) => {
                return Ok(Form::MetadataList);
            }
            // Tables and other forms are not offered; clients name a plain fallback behind them.
            _ => transformed = true,
        }
    }
    if transformed {
        let message = format!("only the following media types are accepted: {MEDIA_TYPES}");
        return Err(ApiError::other(406, "NotAcceptable", message));
    }
    if !asked {
        return Ok(Form::Whole);
    }
    let streams = if collection {
        ", application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch"
    } else {
        ""
    };
    let message = format!("406: Not Acceptable\n\nAvailable representations: {MEDIA_TYPES}{streams}");
    Err(ApiError::other(406, "NotAcceptable", message).with_details(serde_json::json!({})))
}

/// Whether aggregated discovery is asked for, and in which version of its format.
pub(crate) fn aggregated_discovery(headers: &HeaderMap) -> Option<&'static str> {
    for range in ranges(headers) {
        let range = range.replace(' ', "");
        if range == "application/json" {
            return None;
        }
        if range.starts_with("application/json;") && range.contains("as=APIGroupDiscoveryList") {
            if range.contains("v=v2beta1") {
                return Some("v2beta1");
            }
            if range.contains("v=v2") {
                return Some("v2");
            }
        }
    }
    None
}

fn ranges(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|range| !range.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, value.parse().unwrap());
        headers
    }

    #[test]
    fn the_first_form_on_offer_wins() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        assert_eq!(form(&accept(kubectl), true), Ok(Form::Whole));
        let metadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        assert_eq!(form(&accept(metadata), false), Ok(Form::Metadata));
        assert_eq!(form(&accept("application/vnd.kubernetes.protobuf, */*"), false), Ok(Form::Whole));
        assert_eq!(form(&HeaderMap::new(), false), Ok(Form::Whole));
        assert_eq!(form(&accept("application/xml"), false).unwrap_err().code, 406);
    }

    #[test]
    fn aggregated_discovery_is_given_to_those_who_ask_first() {
        let kubectl = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
        assert_eq!(aggregated_discovery(&accept(kubectl)), Some("v2"));
        assert_eq!(aggregated_discovery(&accept("application/json")), None);
    }
}
