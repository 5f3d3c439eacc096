//! The functions and names every CEL rule may use: kube-cel's, and corrections where its engine differs from the one
//! inside kube-apiserver.
//!
//! Corrected: strings have a size in characters, conversions fail with the real server's words, an error in an argument
//! is not swallowed, patterns are Go's and compiled once, and `type()`, `bool()` and `dyn()` exist.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use kube_cel::KubeCelExt as _;
use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedExpr, operators};
use kube_cel::cel::extractors::This;
use kube_cel::cel::{Context, ExecutionError, FunctionContext, Value as Cel, functions};
use regex::Regex;

use super::node::go_regex;

/// Building it costs more than running most rules.
pub(super) static LIBRARY: LazyLock<Context<'static>> = LazyLock::new(|| {
    let mut library = Context::default().with_all();
    for name in ["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "uint"] {
        library.add_variable_from_value(name, type_value(name));
    }
    library.add_function("type", |ftx: &FunctionContext<'_, '_>| {
        argument(ftx).map(|v| type_value(type_name(&v)))
    });
    library.add_function("dyn", |ftx: &FunctionContext<'_, '_>| argument(ftx));
    library.add_function("size", size);
    library.add_function("int", |ftx: &FunctionContext<'_, '_>| convert(ftx, "int", functions::int));
    library.add_function("uint", |ftx: &FunctionContext<'_, '_>| convert(ftx, "uint", functions::uint));
    library.add_function("double", |ftx: &FunctionContext<'_, '_>| convert(ftx, "double", functions::double));
    library.add_function("bool", to_bool);
    library.add_function("matches", matches);
    library
});

type Outcome = Result<Cel, ExecutionError>;

/// The target of a method, else the first argument.
fn argument(ftx: &FunctionContext<'_, '_>) -> Outcome {
    match (&ftx.this, ftx.args.first()) {
        (Some(this), _) => Ok(this.clone()),
        (None, Some(argument)) => ftx.ptx.resolve(argument),
        (None, None) => Err(ExecutionError::NoSuchOverload),
    }
}

fn size(ftx: &FunctionContext<'_, '_>) -> Outcome {
    let size = match argument(ftx)? {
        Cel::String(text) => text.chars().count(),
        Cel::List(list) => list.len(),
        Cel::Map(map) => map.map.len(),
        Cel::Bytes(bytes) => bytes.len(),
        _ => return Err(ExecutionError::NoSuchOverload),
    };
    Ok(Cel::Int(i64::try_from(size).unwrap_or(i64::MAX)))
}

fn convert(
    ftx: &FunctionContext<'_, '_>,
    to: &str,
    function: impl Fn(&FunctionContext<'_, '_>, This<Cel>) -> Outcome,
) -> Outcome {
    let value = argument(ftx)?;
    let from = type_name(&value);
    function(ftx, This(value)).map_err(|error| match &error {
        ExecutionError::FunctionError { message, .. } if message == "integer overflow" => error,
        _ => ftx.error(format!("type conversion error from '{from}' to '{to}'")),
    })
}

fn to_bool(ftx: &FunctionContext<'_, '_>) -> Outcome {
    let value = argument(ftx)?;
    let parsed = match &value {
        Cel::Bool(b) => Some(*b),
        Cel::String(text) => match text.as_str() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
            _ => None,
        },
        _ => None,
    };
    parsed
        .map(Cel::Bool)
        .ok_or_else(|| ftx.error(format!("type conversion error from '{}' to 'bool'", type_name(&value))))
}

/// Patterns stand in rules and are few; the bound only guards against patterns made from data.
const PATTERNS_MAX: usize = 512;
static PATTERNS: Mutex<BTreeMap<String, Regex>> = Mutex::new(BTreeMap::new());

fn matches(ftx: &FunctionContext<'_, '_>) -> Outcome {
    let (text, pattern) = match (&ftx.this, ftx.args) {
        (Some(this), [pattern]) => (this.clone(), ftx.ptx.resolve(pattern)?),
        (None, [text, pattern]) => (ftx.ptx.resolve(text)?, ftx.ptx.resolve(pattern)?),
        _ => return Err(ExecutionError::NoSuchOverload),
    };
    let (Cel::String(text), Cel::String(pattern)) = (text, pattern) else {
        return Err(ExecutionError::NoSuchOverload);
    };
    let mut patterns = PATTERNS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(regex) = patterns.get(pattern.as_str()) {
        return Ok(Cel::Bool(regex.is_match(&text)));
    }
    let regex = go_regex(&pattern).map_err(|error| ftx.error(format!("error parsing regexp: {error}")))?;
    let found = regex.is_match(&text);
    if patterns.len() < PATTERNS_MAX {
        patterns.insert(pattern.to_string(), regex);
    }
    Ok(Cel::Bool(found))
}

fn type_name(value: &Cel) -> &'static str {
    match value {
        Cel::List(_) => "list",
        Cel::Map(_) => "map",
        Cel::Int(_) => "int",
        Cel::UInt(_) => "uint",
        Cel::Float(_) => "double",
        Cel::String(_) => "string",
        Cel::Bytes(_) => "bytes",
        Cel::Bool(_) => "bool",
        Cel::Duration(_) => "google.protobuf.Duration",
        Cel::Timestamp(_) => "google.protobuf.Timestamp",
        Cel::Null => "null_type",
        Cel::Function(..) | Cel::Opaque(_) => "opaque",
    }
}

/// A type as a value. The prefix keeps it from being equal to a string of the document.
fn type_value(name: &str) -> Cel {
    Cel::String(Arc::new(format!("\u{0}type {name}")))
}

/// An execution error in the words of the engine inside kube-apiserver. `program` is what was run.
pub(super) fn describe(error: &ExecutionError, program: &IdedExpr) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::IndexOutOfBounds(Cel::Int(i)) => format!("index out of bounds: {i}"),
        ExecutionError::DivisionByZero(_) => "division by zero".into(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".into(),
        ExecutionError::Overflow(..) => "integer overflow".into(),
        ExecutionError::FunctionError { function, message } => match function.as_str() {
            "duration" => "type conversion error from 'string' to 'google.protobuf.Duration'".into(),
            "timestamp" => "type conversion error from 'string' to 'google.protobuf.Timestamp'".into(),
            _ => message.clone(),
        },
        ExecutionError::UndeclaredReference(name) => format!("undeclared reference to '{name}'"),
        // The engine drops the error of an argument; almost always a field is missing there.
        ExecutionError::MissingArgumentOrTarget => match field_in_argument(program) {
            Some(field) => format!("no such key: {field}"),
            None => "no such overload".into(),
        },
        ExecutionError::NoSuchOverload
        | ExecutionError::UnsupportedTargetType { .. }
        | ExecutionError::NotSupportedAsMethod { .. }
        | ExecutionError::UnexpectedType { .. }
        | ExecutionError::ValuesNotComparable(..)
        | ExecutionError::UnsupportedUnaryOperator(..)
        | ExecutionError::UnsupportedBinaryOperator(..)
        | ExecutionError::UnsupportedMapIndex(_)
        | ExecutionError::UnsupportedListIndex(_)
        | ExecutionError::UnsupportedIndex(..)
        | ExecutionError::InvalidArgumentCount { .. } => "no such overload".into(),
        other => other.to_string(),
    }
}

/// The field selected in the first argument of a function call, in order of evaluation.
fn field_in_argument(expr: &IdedExpr) -> Option<&str> {
    if let Expr::Call(call) = &expr.expr
        && call.target.is_none()
        && call.func_name.starts_with(|c: char| c.is_ascii_alphabetic())
        && let Some(field) = call.args.first().and_then(selected_field)
    {
        return Some(field);
    }
    children(expr).into_iter().find_map(field_in_argument)
}

fn selected_field(expr: &IdedExpr) -> Option<&str> {
    match &expr.expr {
        Expr::Select(select) if !select.test => Some(&select.field),
        _ => children(expr).into_iter().find_map(selected_field),
    }
}

/// `a.?b` as `a[?'b']`: the engine answers the first with an error where the field is missing.
pub(super) fn rewrite_optional_selects(expr: &mut IdedExpr) {
    if let Expr::Call(call) = &mut expr.expr
        && call.func_name == operators::OPT_SELECT
    {
        call.func_name = operators::OPT_INDEX.to_owned();
    }
    for child in children_mut(expr) {
        rewrite_optional_selects(child);
    }
}

fn children_mut(expr: &mut IdedExpr) -> Vec<&mut IdedExpr> {
    match &mut expr.expr {
        Expr::Call(call) => call.target.as_deref_mut().into_iter().chain(&mut call.args).collect(),
        Expr::Comprehension(c) => {
            let c = c.as_mut();
            vec![&mut c.iter_range, &mut c.accu_init, &mut c.loop_cond, &mut c.loop_step, &mut c.result]
        }
        Expr::List(list) => list.elements.iter_mut().collect(),
        Expr::Select(select) => vec![&mut select.operand],
        Expr::Map(map) => {
            map.entries.iter_mut().flat_map(|entry| entry_children_mut(&mut entry.expr)).collect()
        }
        Expr::Struct(s) => {
            s.entries.iter_mut().flat_map(|entry| entry_children_mut(&mut entry.expr)).collect()
        }
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => Vec::new(),
    }
}

fn entry_children_mut(entry: &mut EntryExpr) -> Vec<&mut IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&mut field.value],
        EntryExpr::MapEntry(entry) => vec![&mut entry.key, &mut entry.value],
    }
}

/// The expressions directly inside one.
pub(super) fn children(expr: &IdedExpr) -> Vec<&IdedExpr> {
    match &expr.expr {
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).collect(),
        Expr::Comprehension(c) => vec![&c.iter_range, &c.accu_init, &c.loop_cond, &c.loop_step, &c.result],
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Select(select) => vec![&select.operand],
        Expr::Map(map) => map.entries.iter().flat_map(|entry| entry_children(&entry.expr)).collect(),
        Expr::Struct(s) => s.entries.iter().flat_map(|entry| entry_children(&entry.expr)).collect(),
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => Vec::new(),
    }
}

fn entry_children(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}
