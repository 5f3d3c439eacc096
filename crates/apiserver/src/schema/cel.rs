//! CEL rules (`x-kubernetes-validations`): compiling them once, and running them over an object.
//!
//! Parsing and evaluation are kube-cel's; which rules run on what, how `oldSelf` is found and how a failure is told are
//! kube-apiserver's and stand here. There is no cost budget: the server trusts whoever may create CRDs with its time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{JSONSchemaProps, ValidationRule};
use kube_cel::cel::objects::OptionalValue;
use kube_cel::cel::parser::Parser;
use kube_cel::cel::{Context, ExecutionError, IdedExpr, Value as Cel};
use serde_json::Value;

use super::cel_check;
use super::cel_library::{LIBRARY, describe, rewrite_optional_selects};
use super::cel_value::to_cel;
use super::correlate::{self, Predecessor};
use super::field_path;
use super::node::{Additional, Node, Type};
use super::path::Path;
use crate::field_error::{FieldError, Reason, show};

const MESSAGE_BYTES_MAX: usize = 5 * 1024;

/// One rule, ready to run.
#[derive(Debug)]
pub(super) struct Rule {
    /// None if the rule is empty, which is refused elsewhere.
    pub(super) program: Option<Result<Program, String>>,
    pub(super) message_program: Option<Result<Program, String>>,
    pub(super) uses_old: bool,
    optional_old: bool,
    rule: String,
    message: String,
    reason: Option<String>,
    /// Below the place of the rule, as field errors write it.
    field: Option<String>,
}

/// A parsed expression.
#[derive(Debug)]
pub(super) struct Program(IdedExpr);

impl Program {
    fn parse(text: &str) -> Result<Self, String> {
        // The parser is generated code fed with text from outside: a fault in it must not take the server down.
        let parsed = catch_unwind(|| Parser::new().enable_optional_syntax(true).parse(text));
        match parsed {
            Ok(Ok(mut expr)) => {
                rewrite_optional_selects(&mut expr);
                Ok(Self(expr))
            }
            // The real server indents the quoted source by one more.
            Ok(Err(errors)) => Err(errors.to_string().replace("\n| ", "\n | ")),
            Err(_) => Err("the expression cannot be parsed".to_owned()),
        }
    }

    fn run(&self, context: &Context<'_>) -> Result<Cel, String> {
        catch_unwind(AssertUnwindSafe(|| context.resolve(&self.0)))
            .unwrap_or_else(|_| Err(ExecutionError::function_error("rule", "evaluation failed")))
            .map_err(|error| describe(&error, &self.0))
    }
}

impl Rule {
    /// `resource_root`: whether `node` is a whole resource, which always has a type and metadata.
    pub(super) fn compile_all(props: &JSONSchemaProps, node: &Node, resource_root: bool) -> Vec<Self> {
        let rules = props.x_kubernetes_validations.as_deref().unwrap_or_default();
        rules.iter().map(|rule| Self::compile(rule, node, resource_root)).collect()
    }

    fn compile(rule: &ValidationRule, node: &Node, resource_root: bool) -> Self {
        let optional_old = rule.optional_old_self == Some(true);
        let checked = |program: Program| {
            let complaint = cel_check::complaint(&program.0, &rule.rule, node, resource_root, optional_old);
            complaint.map_or(Ok(program), Err)
        };
        let program = (!rule.rule.trim().is_empty()).then(|| {
            let parsed = Program::parse(&rule.rule).map_err(|error| format!("compilation failed: {error}"));
            parsed.and_then(checked)
        });
        let uses_old =
            matches!(&program, Some(Ok(program)) if program.0.references().has_variable("oldSelf"));
        let message_program =
            rule.message_expression.as_deref().filter(|text| !text.is_empty()).map(Program::parse);
        Self {
            program,
            message_program,
            uses_old,
            optional_old,
            rule: rule.rule.trim().to_owned(),
            message: rule.message.as_deref().unwrap_or_default().trim().to_owned(),
            reason: rule.reason.clone(),
            field: rule
                .field_path
                .as_deref()
                .filter(|path| !path.is_empty())
                .and_then(|path| field_path::resolve(path, node, true).ok())
                .map(|(path, _)| path),
        }
    }

    /// The rule as an error names it.
    fn name(&self) -> &str {
        if self.message.is_empty() { &self.rule } else { &self.message }
    }
}

/// Runs every rule of `node` and below on `value`.
pub(super) fn check<'a>(
    node: &Node,
    value: &'a Value,
    old: Option<&Value>,
    ratchet: Ratchet<'a>,
    at: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    if !node.ruled || value.is_null() {
        return;
    }
    if !node.rules.is_empty() {
        check_here(node, value, old.filter(|old| !old.is_null()), &ratchet, at, errors);
    }
    match value {
        Value::Array(items) => {
            let Some(child) = node.items.as_deref() else { return };
            for (i, item) in items.iter().enumerate() {
                let old = old.and_then(|old| correlate::matching(node, old, item));
                check(child, item, old, ratchet.element(item), &at.index(i), errors);
            }
        }
        Value::Object(map) => {
            if let Some(Additional::Each(each)) = &node.additional {
                for (key, value) in map {
                    let old = old.and_then(|old| old.get(key));
                    check(each, value, old, ratchet.key(key, value), &at.key(key), errors);
                }
            }
            for (key, value) in map {
                if let Some(property) = node.properties.get(key).filter(|property| is_typed(property)) {
                    let old = old.and_then(|old| old.get(key));
                    check(property, value, old, ratchet.key(key, value), &at.field(key), errors);
                }
            }
        }
        _ => {}
    }
}

/// Whether CEL has a type for the schema; rules below one without are not run.
pub(super) fn is_typed(node: &Node) -> bool {
    if node.int_or_string {
        return true;
    }
    match node.kind {
        None => false,
        Some(Type::Array) => node.items.as_deref().is_some_and(is_typed),
        Some(Type::Object) => match &node.additional {
            Some(Additional::Each(each)) => is_typed(each),
            _ => true,
        },
        Some(_) => true,
    }
}

fn check_here(
    node: &Node,
    value: &Value,
    old: Option<&Value>,
    ratchet: &Ratchet<'_>,
    at: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let kind = Value::from(node.kind.map_or("", Type::name));
    let mut scope = LIBRARY.new_inner_scope();
    scope.add_variable_from_value("self", to_cel(value, Some(node)));
    let old_value =
        node.rules.iter().any(|rule| rule.uses_old).then(|| old.map(|old| to_cel(old, Some(node))));
    let old_value = old_value.flatten();
    if let Some(old) = &old_value {
        scope.add_variable_from_value("oldSelf", old.clone());
    }
    for rule in &node.rules {
        let Some(program) = &rule.program else { continue };
        let program = match program {
            Ok(program) => program,
            Err(error) => {
                let detail = format!("rule compile error: {error}");
                errors.push(FieldError::invalid(at.to_string(), &kind, detail));
                continue;
            }
        };
        if rule.uses_old && old.is_none() && !rule.optional_old {
            continue;
        }
        let result = if rule.optional_old {
            let mut optional = scope.new_inner_scope();
            let old = old_value.clone().map_or_else(OptionalValue::none, OptionalValue::of);
            optional.add_variable_from_value("oldSelf", Cel::Opaque(Arc::new(old)));
            program.run(&optional)
        } else {
            program.run(&scope)
        };
        match result {
            Ok(Cel::Bool(true)) => {}
            Ok(_) => {
                if !rule.uses_old && ratchet.forgives() {
                    continue;
                }
                errors.push(failure(rule, node, value, &scope, at));
            }
            Err(error) if error.starts_with("no such overload") => {
                let detail = format!(
                    "'{error}': call arguments did not match a supported operator, function or macro signature for \
                     rule: {}",
                    rule.name()
                );
                errors.push(FieldError::invalid(at.to_string(), &kind, detail));
            }
            Err(error) => {
                let detail = format!("{error} evaluating rule: {}", rule.name());
                errors.push(FieldError::invalid(at.to_string(), &kind, detail));
            }
        }
    }
}

fn failure(rule: &Rule, node: &Node, value: &Value, scope: &Context<'_>, at: &Path<'_>) -> FieldError {
    let field = match &rule.field {
        Some(field) => at.field(field).to_string(),
        None => at.to_string(),
    };
    let detail = rule
        .message_program
        .as_ref()
        .and_then(|program| computed_message(program, scope))
        .unwrap_or_else(|| {
            if rule.message.is_empty() { format!("failed rule: {}", rule.rule) } else { rule.message.clone() }
        });
    // Objects and arrays would drown the message.
    let shown = (!matches!(node.kind, Some(Type::Object | Type::Array))).then(|| show(value));
    match rule.reason.as_deref() {
        Some("FieldValueForbidden") => FieldError::forbidden(field, detail),
        Some("FieldValueRequired") => FieldError::required(field, detail),
        Some("FieldValueDuplicate") => {
            FieldError { reason: Reason::Duplicate, field, shown, detail: String::new() }
        }
        _ => FieldError { reason: Reason::Invalid, field, shown, detail },
    }
}

/// The text of a `messageExpression`; none if it fails or says nothing usable.
fn computed_message(program: &Result<Program, String>, scope: &Context<'_>) -> Option<String> {
    match program.as_ref().ok()?.run(scope) {
        Ok(Cel::String(text)) => {
            let text = text.trim();
            let usable = !text.is_empty() && text.len() <= MESSAGE_BYTES_MAX && !text.contains('\n');
            usable.then(|| text.to_owned())
        }
        _ => None,
    }
}

/// What of the old object the rules of a place are measured against when they fail: an unchanged value may stay.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ratchet<'a> {
    /// This place's predecessor with its successor.
    current: Option<(Predecessor<'a>, &'a Value)>,
    /// The nearest place above that has one.
    above: Option<(Predecessor<'a>, &'a Value)>,
}

impl<'a> Ratchet<'a> {
    pub(super) fn root(old: Predecessor<'a>, new: &'a Value) -> Self {
        Self { current: Some((old, new)), above: None }
    }

    fn forgives(&self) -> bool {
        self.current.or(self.above).is_some_and(|(old, new)| old.unchanged(new))
    }

    fn key(self, key: &str, value: &'a Value) -> Self {
        let Some((old, _)) = self.current else { return self };
        if self.above.is_none() && matches!(key, "apiVersion" | "kind") {
            return Self::default();
        }
        Self { current: old.key(key).map(|old| (old, value)), above: self.current }
    }

    fn element(self, element: &'a Value) -> Self {
        let Some((old, _)) = self.current else { return self };
        Self { current: old.element(element).map(|old| (old, element)), above: self.current }
    }
}
