//! The server as a tower service: who asks, for what, and which handler answers.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Method, Request, Response};

use crate::answer::{Answer, Written};
use crate::body::{self, Body};
use crate::decode::{self, WriteOptions};
use crate::delete::{DeleteOptions, Deletion};
use crate::negotiate::{self, Form};
use crate::patch::Patch;
use crate::registry::{Handling, Registry, Resource};
use crate::request::{Query, ResourcePath, Target, Verb};
use crate::selection::Selection;
use crate::server::{ApiServer, Writer};
use crate::status::ApiError;
use crate::store::{Key, range};
use crate::{access, binding, delete, discovery, eviction, list, openapi, scale, update, watch};

/// A tower service over the server. Clones share it.
#[derive(Clone)]
pub struct ApiService {
    server: ApiServer,
}

impl ApiService {
    pub(crate) fn new(server: ApiServer) -> Self {
        Self { server }
    }
}

impl<B> tower::Service<Request<B>> for ApiService
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let server = self.server.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let bodiless = parts.method == Method::HEAD;
            let mut answer = match body::collect(body).await {
                Ok(body) => {
                    let query = Query::parse(parts.uri.query());
                    let call = Call { server, method: parts.method, headers: parts.headers, query, body };
                    call.answer(parts.uri.path())
                }
                Err(error) => error.into(),
            };
            if bodiless {
                answer.body = Body::whole(Bytes::new());
            }
            Ok(answer.into_response())
        })
    }
}

/// One request, its body read.
pub(crate) struct Call {
    pub(crate) server: ApiServer,
    pub(crate) method: Method,
    pub(crate) headers: HeaderMap,
    pub(crate) query: Query,
    pub(crate) body: Bytes,
}

const NOT_FOUND: &str = "404 page not found\n";

impl Call {
    fn answer(&self, path: &str) -> Answer {
        if !self.is_authorized() {
            return ApiError::other(401, "Unauthorized", "Unauthorized").into();
        }
        let registry = self.registry();
        let target = Target::parse(path);
        if self.method != Method::GET && !matches!(target, Target::Resource(_)) {
            let known = self.answer_unnamed(&registry, target).code < 400;
            return if known { ApiError::method_not_allowed().into() } else { not_found() };
        }
        match target {
            Target::Resource(path) => {
                let mut answer = self.resource(&registry, &path).unwrap_or_else(Answer::from);
                let asked = registry.find(&path.group, &path.version, &path.resource);
                if let Some(deprecation) = asked.and_then(|resource| resource.deprecation.clone()) {
                    answer.warnings.insert(0, deprecation);
                }
                answer
            }
            target => self.answer_unnamed(&registry, target),
        }
    }

    /// Answers what names no resource.
    fn answer_unnamed(&self, registry: &Registry, target: Target) -> Answer {
        match target {
            Target::Other(path) if path.starts_with("/api/") || path.starts_with("/apis/") => {
                ApiError::no_such_resource().into()
            }
            Target::Other(path) => {
                openapi::answer(registry, &path).or_else(|| discovery::other(&path)).unwrap_or_else(not_found)
            }
            target => discovery::answer(registry, &target, &self.headers),
        }
    }

    pub(crate) fn registry(&self) -> Arc<Registry> {
        self.server.read(|state| Arc::clone(&state.registry))
    }

    fn is_authorized(&self) -> bool {
        let Some(token) = &self.server.options().bearer_token else { return true };
        let given = self.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        given.and_then(|value| value.strip_prefix("Bearer ")).is_some_and(|given| same_secret(given, token))
    }

    fn resource(&self, registry: &Registry, path: &ResourcePath) -> Result<Answer, ApiError> {
        if let Some(answer) = access::answer(self, path) {
            return answer;
        }
        let Some(resource) =
            registry.find(&path.group, &path.version, &path.resource).filter(|_| !path.excess)
        else {
            return unknown_resource(registry, path);
        };
        let verb = Verb::of(&self.method, path, &self.query)
            .ok_or_else(|| wrong_method(resource, path, &self.method))?;
        let namespaced = path.namespace.is_some();
        if namespaced != resource.namespaced && !(resource.namespaced && path.name.is_none()) {
            return Ok(match resource.is_custom() {
                true => not_found(),
                false => ApiError::no_such_resource().into(),
            });
        }
        let form = negotiate::form(&self.headers, path.name.is_none())?;
        let gives_list = matches!(verb, Verb::List | Verb::DeleteCollection);
        if form == Form::MetadataList && !gives_list {
            // Told before anything is done: a refused write has changed nothing.
            return Err(ApiError::other(
                406,
                "NotAcceptable",
                format!(
                    "you requested PartialObjectMetadataList, but the requested object is not a list ({})",
                    resource.kind
                ),
            ));
        }
        let Some(name) = path.name.as_deref() else { return self.collection(resource, path, verb, form) };
        if let Some(why) = karpenter_primitives::names::path_segment_errors(name).first() {
            return Err(ApiError::bad_request(format!("Name parameter invalid: {name:?}: {why}")));
        }
        let target = update::Target {
            resource,
            namespace: path.namespace.as_deref().unwrap_or_default(),
            name,
            subresource: path.subresource.as_deref(),
        };
        match target.subresource {
            None if verb == Verb::Create => Err(ApiError::method_not_allowed()),
            None | Some("status") => self.object(registry, target, verb, form),
            Some(part) => self.part(registry, target, part, verb, form),
        }
    }

    fn collection(
        &self,
        resource: &Arc<Resource>,
        path: &ResourcePath,
        verb: Verb,
        form: Form,
    ) -> Result<Answer, ApiError> {
        let namespace = path.namespace.as_deref();
        // Only reading reaches across namespaces.
        let across = resource.namespaced && namespace.is_none();
        let reads = matches!(verb, Verb::List | Verb::Watch);
        if (across && !reads) || !resource.verbs.contains(&verb.as_str()) {
            return if across && resource.is_custom() {
                Ok(not_found())
            } else {
                Err(ApiError::method_not_allowed())
            };
        }
        match verb {
            Verb::List => self.server.read(|state| list::list(state, resource, namespace, &self.query, form)),
            Verb::Watch => watch::watch(&self.server, resource, namespace, &self.query, form),
            Verb::Create => self.create(resource, namespace.unwrap_or_default(), form),
            Verb::DeleteCollection => self.delete_collection(resource, namespace),
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    fn create(&self, resource: &Arc<Resource>, namespace: &str, form: Form) -> Result<Answer, ApiError> {
        if resource.is("", "bindings") {
            return binding::bind(self, namespace, None);
        }
        let options = WriteOptions::parse(&self.query, "CreateOptions")?;
        let media_type = decode::media_type(&self.headers);
        self.server.write(|writer| {
            let registry = Arc::clone(&writer.state.registry);
            let decoded =
                decode::decode(&self.body, media_type, resource, &registry, options.field_validation)?;
            let mut hints = Vec::from_iter(crate::meta::repeated_owners(&decoded.object));
            if let Handling::Builtin(kind) = resource.handling {
                hints.extend(kind.warnings_on_create(&decoded.object));
            }
            match writer.create(resource, namespace, decoded.object, options) {
                Ok(written) => {
                    Ok(Answer::object(201, resource, &written, form).warn(decoded.warnings).warn(hints))
                }
                // What exists already was still found valid, and warned of.
                Err(error) if error.code == 409 => {
                    Err(error.with_warnings(decoded.warnings).with_warnings(hints))
                }
                Err(error) => Err(error.with_warnings(decoded.warnings)),
            }
        })
    }

    fn object(
        &self,
        registry: &Registry,
        target: update::Target<'_>,
        verb: Verb,
        form: Form,
    ) -> Result<Answer, ApiError> {
        let resource = target.resource;
        let verbs = match target.subresource {
            Some(part) => resource.subresource(part).ok_or_else(ApiError::no_such_resource)?.verbs,
            None => resource.verbs,
        };
        if !verbs.contains(&verb.as_str()) {
            return Err(ApiError::method_not_allowed());
        }
        let media_type = decode::media_type(&self.headers);
        match verb {
            Verb::Get => self.get(target, form),
            Verb::Update => {
                let options = WriteOptions::parse(&self.query, "UpdateOptions")?;
                let decoded =
                    decode::decode(&self.body, media_type, resource, registry, options.field_validation)?;
                self.server.write(|writer| match writer.replace(target, decoded.object, options) {
                    Ok(updated) => {
                        let code = if updated.created { 201 } else { 200 };
                        Ok(Answer::object(code, resource, &updated.written, form).warn(decoded.warnings))
                    }
                    Err(error) => Err(error.with_warnings(decoded.warnings)),
                })
            }
            Verb::Patch => {
                let patch = Patch::parse(&self.body, media_type, resource.is_custom())?;
                let options = WriteOptions::parse(&self.query, "PatchOptions")?;
                self.server.write(|writer| {
                    let patched = writer.patch(target, &patch, options)?;
                    Ok(Answer::object(200, resource, &patched.written, form).warn(patched.warnings))
                })
            }
            Verb::Delete => {
                let options = DeleteOptions::parse(&self.body, media_type, &self.query)?;
                let warning = Vec::from_iter(delete::warning(resource, &options));
                let answer = self.server.write(|writer| match writer.delete(target, &options)? {
                    Deletion::Object(written) => Ok(Answer::object(200, resource, &written, form)),
                    Deletion::Gone(status) => Ok(Answer::value(200, &status)),
                });
                answer.map(|answer| answer.warn(warning))
            }
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    fn get(&self, target: update::Target<'_>, form: Form) -> Result<Answer, ApiError> {
        // Alone among the readers, a get passes on the bare error.
        let asked = list::revision(&self.query).map_err(|why| ApiError::other(500, "", why))?;
        let (stored, current) =
            self.server.read(|state| (state.store.get(&target.key()).cloned(), state.store.revision()));
        if let Some(asked) = asked.filter(|asked| *asked > current) {
            return Err(list::too_large(asked, current));
        }
        let stored = stored.ok_or_else(|| target.not_found())?;
        Ok(Answer::object(200, target.resource, &Written::Stored(stored), form))
    }

    fn part(
        &self,
        registry: &Registry,
        target: update::Target<'_>,
        part: &str,
        verb: Verb,
        form: Form,
    ) -> Result<Answer, ApiError> {
        let found =
            target.resource.subresource(part).ok_or_else(|| match (target.resource.is_custom(), part) {
                // A custom resource could have this one.
                (true, "scale") => target.not_found(),
                _ => ApiError::no_such_resource(),
            })?;
        if !found.verbs.contains(&verb.as_str()) {
            return Err(ApiError::method_not_allowed());
        }
        match part {
            "scale" => scale::answer(self, target, verb),
            "binding" => binding::bind(self, target.namespace, Some(target.name)),
            "eviction" => eviction::evict(self, target),
            // The other parts with the parent's kind are written like the parent itself.
            _ if found.kind == target.resource.kind => self.object(registry, target, verb, form),
            _ => Err(ApiError::no_such_resource()),
        }
    }

    fn delete_collection(
        &self,
        resource: &Arc<Resource>,
        namespace: Option<&str>,
    ) -> Result<Answer, ApiError> {
        let selection = Selection::parse(&self.query, resource, &self.registry())?;
        let media_type = decode::media_type(&self.headers);
        let options = DeleteOptions::parse(&self.body, media_type, &self.query)?;
        self.server.write(|writer| {
            let answer = list::list(writer.state, resource, namespace, &self.query, Form::Whole)?;
            let limit = self.query.integer("limit").ok().flatten().and_then(|n| usize::try_from(n).ok());
            let limit = limit.filter(|limit| *limit > 0).unwrap_or(usize::MAX);
            for key in selected(writer, resource, namespace, &selection).into_iter().take(limit) {
                let target = update::Target {
                    resource,
                    namespace: key.namespace(),
                    name: key.name(),
                    subresource: None,
                };
                match writer.delete(target, &options) {
                    // Gone with one of the others.
                    Err(error) if error.code == 404 => {}
                    other => drop(other?),
                }
            }
            Ok(answer)
        })
    }
}

fn selected(
    writer: &Writer<'_>,
    resource: &Resource,
    namespace: Option<&str>,
    selection: &Selection,
) -> Vec<Key> {
    range(writer.state.store.objects(), resource.storage, namespace, None)
        .filter(|(key, object)| selection.matches_key(key, object))
        .map(|(key, _)| key.clone())
        .collect()
}

pub(crate) fn not_found() -> Answer {
    Answer::text(404, NOT_FOUND)
}

/// A resource that is not served: groups that are built in answer with a `Status`, unknown ones with plain text.
fn unknown_resource(registry: &Registry, path: &ResourcePath) -> Result<Answer, ApiError> {
    let built_in = registry.all().any(|resource| resource.group == path.group && !resource.is_custom());
    if built_in || path.group.is_empty() { Err(ApiError::no_such_resource()) } else { Ok(not_found()) }
}

/// A method that fits nothing at this path.
fn wrong_method(resource: &Resource, path: &ResourcePath, method: &Method) -> ApiError {
    let needs_name = matches!(*method, Method::PUT | Method::PATCH) && path.name.is_none();
    if resource.is_custom() && needs_name {
        return ApiError::bad_request("name must be provided");
    }
    ApiError::method_not_allowed()
}

/// Compares without telling by its duration how much is right.
fn same_secret(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |diff, (x, y)| diff | (x ^ y)) == 0
}
