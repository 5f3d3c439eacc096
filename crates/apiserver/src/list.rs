//! Lists: which state is shown, which objects of it, and how many at a time.

use serde_json::json;

use crate::answer::Answer;
use crate::continue_token::ContinueToken;
use crate::field_error::FieldError;
use crate::negotiate::Form;
use crate::registry::Resource;
use crate::request::Query;
use crate::selection::Selection;
use crate::server::State;
use crate::status::ApiError;
use crate::store::{Key, Objects, range};

const TOKEN_EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";
const REVISION_EXPIRED: &str = "The resourceVersion for the provided list is too old.";

/// The state a list has to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Now,
    NotOlderThan(u64),
    Exactly(u64),
}

/// Answers a list; `namespace` is `None` for all namespaces and for cluster-scoped resources.
pub(crate) fn list(
    state: &State,
    resource: &Resource,
    namespace: Option<&str>,
    query: &Query,
    form: Form,
) -> Result<Answer, ApiError> {
    if form == Form::Metadata {
        return Err(ApiError::other(
            406,
            "NotAcceptable",
            format!(
                "you requested PartialObjectMetadata, but the requested object is a list ({})",
                resource.list_kind
            ),
        ));
    }
    check_options(query)?;
    let selection = Selection::parse(query, resource, &state.registry)?;
    let limit = query.integer("limit").map_err(ApiError::bad_request)?.unwrap_or(0);
    query.integer("timeoutSeconds").map_err(ApiError::bad_request)?;
    // "Whatever you have" is answered from kube-apiserver's cache, which gives all of it.
    let any = query.get("resourceVersion") == Some("0");
    let limit = usize::try_from(limit).ok().filter(|limit| *limit > 0 && !any);
    let token = match query.get("continue") {
        Some(text) => Some(ContinueToken::decode(text).map_err(|why| {
            ApiError::bad_request(format!("invalid continue token: continue key is not valid: {why}"))
        })?),
        None => None,
    };
    let (objects, revision) = objects(state, resource, query, limit, token.as_ref())?;
    let page = Page {
        resource,
        namespace,
        selection: &selection,
        limit,
        start: token.as_ref().map(|token| token.start.as_str()),
        left: token.as_ref().and_then(|token| token.left),
    };
    Ok(page.write(&objects, revision, form == Form::MetadataList))
}

/// `resourceVersion` of a list or get, parsed.
pub(crate) fn revision(query: &Query) -> Result<Option<u64>, String> {
    query
        .get("resourceVersion")
        .map(|text| {
            text.parse().map_err(|_| {
                format!("resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax")
            })
        })
        .transpose()
}

/// The answer to a revision that is still to come.
pub(crate) fn too_large(asked: u64, current: u64) -> ApiError {
    let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
    ApiError::other(504, "Timeout", message).with_details(json!({
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }))
}

fn objects(
    state: &State,
    resource: &Resource,
    query: &Query,
    limit: Option<usize>,
    token: Option<&ContinueToken>,
) -> Result<(Objects, u64), ApiError> {
    let current = state.store.revision();
    if let Some(token) = token {
        if query.get("resourceVersion").is_some_and(|revision| revision != "0") {
            let message = "specifying resource version is not allowed when using continue";
            return Err(ApiError::bad_request(message));
        }
        let Some(revision) = token.revision else { return Ok((state.store.objects().clone(), current)) };
        return state
            .store
            .objects_at(resource.storage, revision)
            .map(|objects| (objects, revision))
            .map_err(|_| {
                let fresh = ContinueToken { revision: None, start: token.start.clone(), left: None };
                ApiError { continue_token: Some(fresh.encode().into()), ..ApiError::expired(TOKEN_EXPIRED) }
            });
    }
    let asked =
        revision(query).map_err(|why| ApiError::bad_request(format!("invalid resource version: {why}")))?;
    let at = match (asked, query.get("resourceVersionMatch")) {
        (None | Some(0), _) => At::Now,
        (Some(revision), Some("Exact")) => At::Exactly(revision),
        // Limits came before `resourceVersionMatch`, and then meant exactly that revision.
        (Some(revision), None) if limit.is_some() => At::Exactly(revision),
        (Some(revision), _) => At::NotOlderThan(revision),
    };
    match at {
        At::NotOlderThan(revision) | At::Exactly(revision) if revision > current => {
            Err(too_large(revision, current))
        }
        At::Exactly(revision) => state
            .store
            .objects_at(resource.storage, revision)
            .map(|objects| (objects, revision))
            .map_err(|_| ApiError::expired(REVISION_EXPIRED)),
        At::Now | At::NotOlderThan(_) => Ok((state.store.objects().clone(), current)),
    }
}

struct Page<'a> {
    resource: &'a Resource,
    namespace: Option<&'a str>,
    selection: &'a Selection,
    limit: Option<usize>,
    start: Option<&'a str>,
    /// How many objects there are from `start` on, if an earlier page counted them.
    left: Option<u64>,
}

impl Page<'_> {
    fn write(&self, objects: &Objects, revision: u64, metadata_only: bool) -> Answer {
        let mut items = Vec::new();
        let mut count = 0;
        let mut last: Option<&Key> = None;
        let mut rest = range(objects, self.resource.storage, self.namespace, self.start)
            .filter(|(key, object)| self.selection.matches_key(key, object));
        let mut next = rest.next();
        while let Some((key, object)) = next.filter(|_| self.limit.is_none_or(|limit| count < limit)) {
            if count > 0 {
                items.push(b',');
            }
            if metadata_only {
                object.write_metadata(object.revision, &mut items);
            } else {
                object.write(self.resource, true, object.revision, &mut items);
            }
            count += 1;
            last = Some(key);
            next = rest.next();
        }
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        match (last, next) {
            (Some(last), Some(_)) => {
                let path = self.namespace.map_or(&*last.path, |_| last.name());
                // With a selector the number would need a walk over everything, so kube-apiserver leaves it out.
                let left = self.selection.is_everything().then(|| match self.left {
                    Some(left) => left.saturating_sub(count as u64),
                    None => 1 + rest.count() as u64,
                });
                let token = ContinueToken { revision: Some(revision), start: format!("{path}\0"), left };
                metadata["continue"] = token.encode().into();
                if let Some(left) = left {
                    metadata["remainingItemCount"] = left.into();
                }
            }
            _ if self.resource.is_custom() && !metadata_only => metadata["continue"] = "".into(),
            _ => {}
        }
        let (kind, api_version) = if metadata_only {
            ("PartialObjectMetadataList", "meta.k8s.io/v1".to_owned())
        } else {
            (self.resource.list_kind.as_str(), self.resource.api_version())
        };
        let head = format!(
            "{{\"kind\":{},\"apiVersion\":{},\"metadata\":{metadata},\"items\":[",
            json!(kind),
            json!(api_version)
        );
        let mut body = Vec::with_capacity(head.len() + items.len() + 2);
        body.extend_from_slice(head.as_bytes());
        body.append(&mut items);
        body.extend_from_slice(b"]}");
        Answer::json(200, body)
    }
}

fn check_options(query: &Query) -> Result<(), ApiError> {
    let mut errors = Vec::new();
    let matching = query.get("resourceVersionMatch");
    let revision = query.get("resourceVersion");
    let path = "resourceVersionMatch";
    if query.get("sendInitialEvents").is_some() {
        errors.push(FieldError::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    if let Some(matching) = matching {
        if revision.is_none() {
            let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
            errors.push(FieldError::forbidden(path, why));
        }
        if query.get("continue").is_some() {
            let why = "resourceVersionMatch is forbidden when continue is provided";
            errors.push(FieldError::forbidden(path, why));
        }
        if matching == "Exact" && revision == Some("0") {
            let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            errors.push(FieldError::forbidden(path, why));
        }
        if !matches!(matching, "Exact" | "NotOlderThan") {
            let mut error = FieldError::not_supported(path, &json!(matching), &[]);
            error.detail = "supported values: \"Exact\", \"NotOlderThan\", \"\"".into();
            errors.push(error);
        }
    }
    invalid_options(&errors)
}

/// Refuses a request for what is wrong with its list options.
pub(crate) fn invalid_options(errors: &[FieldError]) -> Result<(), ApiError> {
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid("meta.k8s.io", "ListOptions", "", errors)) }
}
