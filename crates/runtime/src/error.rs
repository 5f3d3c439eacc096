//! Errors of reconciles, with values attached: printed at the end of the text as Go Karpenter does, and as fields of their
//! own on the log line.
//!
//! A library function returns its own typed error. Where such an error needs values ("which pod?") it is wrapped in
//! [`Structured`]; what a reconcile returns is a [`ReconcileError`], made from any error by `?`.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;

use serde_json::Value;

use crate::object_key::ObjectKey;

type BoxError = Box<dyn Error + Send + Sync>;

/// A value attached to an error: how it reads in a sentence, and what stands on the log line.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    text: String,
    json: Value,
}

impl Field {
    /// A text or number.
    pub fn text(value: impl fmt::Display) -> Self {
        let text = value.to_string();
        Self { json: Value::String(text.clone()), text }
    }

    /// A reference to an object: `namespace/name` in a sentence, `{name, namespace}` on the log line.
    pub fn object(key: &ObjectKey) -> Self {
        Self { text: key.to_string(), json: object_json(key) }
    }

    /// Several values: `[a b]` in a sentence.
    pub fn list(values: impl IntoIterator<Item = Self>) -> Self {
        let (texts, json): (Vec<_>, Vec<_>) =
            values.into_iter().map(|field| (field.text, field.json)).unzip();
        Self { text: format!("[{}]", texts.join(" ")), json: Value::Array(json) }
    }
}

/// An object reference as it stands on log lines.
pub(crate) fn object_json(key: &ObjectKey) -> Value {
    let mut reference = serde_json::Map::from_iter([("name".to_owned(), Value::from(&*key.name))]);
    if !key.namespace.is_empty() {
        reference.insert("namespace".to_owned(), Value::from(&*key.namespace));
    }
    Value::Object(reference)
}

/// An error of the API client in few words: what the server said, with code and reason, not the whole answer it was in.
#[derive(Debug)]
pub struct ApiError(kube::Error);

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        Self(error)
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&told(&self.0))
    }
}

/// The text of an [`ApiError`].
pub fn told(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} ({} {})", status.message, status.code, status.reason),
        other => with_causes(other),
    }
}

/// What whoever runs the program can do about a refusal, to stand behind its text; empty where there is nothing.
pub(crate) fn remedy(error: &kube::Error) -> &'static str {
    match error {
        kube::Error::Api(status) if status.code == 403 => {
            "; grant it to this account, as the chart's roles do"
        }
        _ => "",
    }
}

/// An error with its causes, each said once: some have the next one in their own text.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        next = cause.source();
    }
    text
}

/// The causes are part of the text.
impl Error for ApiError {}

/// Puts an error of the API client into few words, wherever it comes from.
fn in_few_words(error: BoxError) -> BoxError {
    match error.downcast::<kube::Error>() {
        Ok(error) => Box::new(ApiError(*error)),
        Err(other) => other,
    }
}

/// An error with values: `<error> (<key>=<value>, …)`, keys in order.
#[derive(Debug)]
pub struct Structured {
    source: BoxError,
    fields: BTreeMap<String, Field>,
}

impl Structured {
    /// This error, values to follow.
    pub fn new(source: impl Into<BoxError>) -> Self {
        Self { source: in_few_words(source.into()), fields: BTreeMap::new() }
    }

    /// Attaches a value.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: Field) -> Self {
        self.fields.insert(key.into(), value);
        self
    }
}

impl fmt::Display for Structured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields: Vec<String> =
            self.fields.iter().map(|(key, field)| format!("{key}={}", field.text)).collect();
        write!(f, "{} ({})", self.source, fields.join(", "))
    }
}

impl Error for Structured {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

/// Something is not there yet that comes by itself: what failed for want of it is tried again like anything else, and need not
/// alarm anybody.
#[derive(Debug)]
pub struct NotYet(String);

impl NotYet {
    /// What is waited for, in a sentence.
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

impl fmt::Display for NotYet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for NotYet {}

/// Several errors at once: `a; b`.
#[derive(Debug)]
pub struct Combined(Vec<ReconcileError>);

impl fmt::Display for Combined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&texts.join("; "))
    }
}

impl Error for Combined {}

/// Why a reconcile failed. It is tried again after a while, unless the error is terminal.
#[derive(Debug)]
pub struct ReconcileError {
    source: BoxError,
    terminal: bool,
}

impl ReconcileError {
    /// An error that is only a text.
    pub fn message(text: impl Into<String>) -> Self {
        Self { source: text.into().into(), terminal: false }
    }

    /// An error that trying again cannot mend; the object is looked at again when it changes.
    pub fn terminal(source: impl Into<BoxError>) -> Self {
        Self { source: in_few_words(source.into()), terminal: true }
    }

    /// Says what was being done: `<doing>, <error>`.
    #[must_use]
    pub fn context(self, doing: impl fmt::Display) -> Self {
        Self {
            terminal: self.terminal,
            source: Box::new(Context { doing: doing.to_string(), source: self.source }),
        }
    }

    /// One error of several; `Ok` of none.
    pub fn combine(errors: impl IntoIterator<Item = Self>) -> Result<(), Self> {
        let mut errors: Vec<Self> = errors.into_iter().collect();
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => {
                Err(Self { terminal: errors.iter().all(|e| e.terminal), source: Box::new(Combined(errors)) })
            }
        }
    }

    /// Whether trying again is of no use.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Whether all there is to it is that something has to be waited for.
    pub fn is_wait(&self) -> bool {
        is_wait(&*self.source)
    }

    /// The error itself.
    pub fn inner(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.source
    }

    /// The values attached anywhere in the chain; a key that occurs several times becomes `<key>s` with a list.
    pub fn fields(&self) -> BTreeMap<String, Value> {
        let mut found: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        collect_fields(&*self.source, &mut found);
        found
            .into_iter()
            .map(|(key, mut values)| match values.len() {
                1 => (key, values.remove(0)),
                _ => (format!("{key}s"), Value::Array(values)),
            })
            .collect()
    }
}

fn is_wait(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(Combined(errors)) = error.downcast_ref::<Combined>() {
            return errors.iter().all(ReconcileError::is_wait);
        }
        if error.is::<NotYet>() {
            return true;
        }
        next = error.source();
    }
    false
}

fn collect_fields(error: &(dyn Error + 'static), found: &mut BTreeMap<String, Vec<Value>>) {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(structured) = error.downcast_ref::<Structured>() {
            for (key, field) in &structured.fields {
                found.entry(key.clone()).or_default().push(field.json.clone());
            }
        }
        if let Some(Combined(errors)) = error.downcast_ref::<Combined>() {
            for error in errors {
                collect_fields(&*error.source, found);
            }
        }
        next = error.source();
    }
}

/// Shows the error; its sources are part of the text already.
impl fmt::Display for ReconcileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

/// `?` on any error. For this to work `ReconcileError` itself is not one.
impl<E: Error + Send + Sync + 'static> From<E> for ReconcileError {
    fn from(error: E) -> Self {
        Self { source: in_few_words(Box::new(error)), terminal: false }
    }
}

#[derive(Debug)]
struct Context {
    doing: String,
    source: BoxError,
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.doing, self.source)
    }
}

impl Error for Context {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

/// A text with its first letter in upper case, as event messages have it.
pub fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("pdb prevents pod evictions")]
    struct Blocked;

    fn blocked(pdb: &str) -> Structured {
        let reference = Field::object(&ObjectKey::namespaced("ns", pdb));
        Structured::new(Blocked)
            .with("PodDisruptionBudget", Field::list([reference]))
            .with("attempt", Field::text(2))
    }

    #[test]
    fn values_stand_at_the_end_of_the_text_with_their_keys_in_order() {
        assert_eq!(
            sentence(&blocked("web").to_string()),
            "Pdb prevents pod evictions (PodDisruptionBudget=[ns/web], attempt=2)"
        );
    }

    #[test]
    fn values_of_a_whole_chain_become_fields_and_repeated_keys_a_list() {
        let error = ReconcileError::from(blocked("web")).context("draining node");
        assert_eq!(
            error.to_string(),
            "draining node, pdb prevents pod evictions (PodDisruptionBudget=[ns/web], attempt=2)"
        );
        assert_eq!(error.fields()["PodDisruptionBudget"], json!([{"name": "web", "namespace": "ns"}]));
        let both =
            ReconcileError::combine([blocked("a").into(), blocked("b").into()]).expect_err("two errors");
        assert_eq!(both.fields()["attempts"], json!(["2", "2"]));
        assert!(both.to_string().contains("attempt=2); pdb prevents"), "{both}");
    }

    #[test]
    fn waiting_is_told_from_failing_through_a_whole_chain() {
        let wait = || ReconcileError::from(NotYet::new("not listed yet")).context("listing machines");
        assert!(wait().is_wait());
        assert_eq!(wait().to_string(), "listing machines, not listed yet");
        assert!(!ReconcileError::from(Blocked).is_wait());
        assert!(ReconcileError::combine([wait(), wait()]).expect_err("two").is_wait());
        assert!(!ReconcileError::combine([wait(), Blocked.into()]).expect_err("two").is_wait(), "one failed");
    }

    #[test]
    fn a_refusal_of_the_server_is_told_with_code_and_reason_and_without_the_whole_answer() {
        let status: kube::core::Status = serde_json::from_value(json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden",
            "message": "nodeclaims.karpenter.sh is forbidden: no", "details": {"kind": "nodeclaims"},
        }))
        .expect("a status");
        let refused = || kube::Error::Api(Box::new(status.clone()));
        let told = "nodeclaims.karpenter.sh is forbidden: no (403 Forbidden)";
        let error = ReconcileError::from(refused()).context("creating node claim");
        assert_eq!(error.to_string(), format!("creating node claim, {told}"));
        let error = Structured::new(refused()).with("taint", Field::text("t"));
        assert_eq!(error.to_string(), format!("{told} (taint=t)"));
    }

    #[test]
    fn an_error_is_told_with_all_its_causes_and_none_of_them_twice() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot ask: {0}")]
        struct Embedding(#[source] Plain);
        #[derive(Debug, thiserror::Error)]
        #[error("client error")]
        struct Plain(#[source] std::io::Error);
        let refused = || Plain(std::io::Error::other("connection refused"));
        assert_eq!(with_causes(&Embedding(refused())), "cannot ask: client error: connection refused");
        let error = ApiError::from(kube::Error::Service(Box::new(refused())));
        assert_eq!(error.to_string(), "ServiceError: client error: connection refused");
        assert_eq!(with_causes(&error), error.to_string());
    }

    #[test]
    fn errors_combine_to_none_one_or_several_and_stay_terminal_only_together() {
        assert!(ReconcileError::combine([]).is_ok());
        let error =
            |terminal| if terminal { ReconcileError::terminal("x") } else { ReconcileError::message("x") };
        assert!(ReconcileError::combine([error(true), error(true)]).expect_err("two").is_terminal());
        assert!(!ReconcileError::combine([error(true), error(false)]).expect_err("two").is_terminal());
        assert!(error(true).context("doing").is_terminal());
    }
}
