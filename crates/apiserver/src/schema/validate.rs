//! Checking a value against the structure and the constraints of its schema, CEL aside.
//!
//! The order of the checks, the words of the messages and the way failed alternatives (`anyOf`, `oneOf`) are summed up
//! follow the OpenAPI validator inside kube-apiserver, since users see all of them. On an update, what is wrong with an
//! unchanged value is forgiven ("ratcheting"), at every level that has a predecessor; alternatives are never forgiven
//! on their own.

use serde_json::Value;

use super::correlate::Predecessor;
use super::node::{Additional, Node, Type};
use super::number::{self, Num, Range};
use super::path::Path;
use crate::field_error::{FieldError, Reason};
use crate::go_format;

/// Everything wrong with `value`. `base` is put before every reported field but not into the messages.
pub(super) fn check(
    node: &Node,
    value: &Value,
    old: Option<Predecessor<'_>>,
    base: &Path<'_>,
) -> Vec<FieldError> {
    let mut errors = examine(node, value, old, &Path::Root).errors;
    for error in &mut errors {
        let field = std::mem::take(&mut error.field);
        let relative = field.strip_prefix('.').unwrap_or(&field);
        error.field = match relative {
            "" => base.to_string(),
            relative => base.field(relative).to_string(),
        };
    }
    errors
}

/// What an examination found, and how many of its checks succeeded: the best of several failed alternatives is the one
/// with the most successes.
#[derive(Debug, Default)]
struct Findings {
    errors: Vec<FieldError>,
    /// The full message of each error; the same message is not reported twice.
    messages: Vec<String>,
    successes: usize,
}

impl Findings {
    fn is_valid(&self) -> bool {
        self.errors.is_empty()
    }

    fn add(&mut self, error: FieldError, message: String) {
        if !self.messages.contains(&message) {
            self.errors.push(error);
            self.messages.push(message);
        }
    }

    /// An error that names its place only in its message.
    fn add_placeless(&mut self, message: String) {
        let error = FieldError {
            reason: Reason::Invalid,
            field: String::new(),
            shown: Some("\"\"".into()),
            detail: message.clone(),
        };
        self.add(error, message);
    }

    fn add_invalid(&mut self, at: &Path<'_>, shown: String, message: String) {
        let error = FieldError {
            reason: Reason::Invalid,
            field: at.dotted(),
            shown: Some(shown),
            detail: message.clone(),
        };
        self.add(error, message);
    }

    fn merge(&mut self, other: Self) {
        for (error, message) in other.errors.into_iter().zip(other.messages) {
            self.add(error, message);
        }
        self.successes += other.successes;
    }
}

fn examine(node: &Node, value: &Value, old: Option<Predecessor<'_>>, at: &Path<'_>) -> Findings {
    let mut found = examine_new(node, value, old, at);
    if !found.is_valid() && old.is_some_and(|old| old.unchanged(value)) {
        found.errors.clear();
        found.messages.clear();
    }
    found
}

fn examine_new(node: &Node, value: &Value, old: Option<Predecessor<'_>>, at: &Path<'_>) -> Findings {
    let mut found = Findings::default();
    if value.is_null() {
        check_type(node, value, at, &mut found);
        check_enum(node, value, at, &mut found);
        return found;
    }
    if !node.types().is_empty() || node.checks.format.is_some() {
        check_type(node, value, at, &mut found);
        found.successes += 1;
    }
    check_alternatives(node, value, at, &mut found);
    found.successes += 2;
    match value {
        Value::String(text) => {
            check_string(node, text, at, &mut found);
            found.successes += 1;
            if let Some(format) = &node.checks.format
                && let Some(of_strings) = format.of_strings
            {
                if !of_strings.accepts(text) {
                    wrong_type(at, &format.name, text, &mut found);
                }
                found.successes += 1;
            }
        }
        Value::Number(number) => {
            check_number(node, Num::of(number), at, &mut found);
            found.successes += 2;
        }
        Value::Array(items) => {
            check_array(node, items, old, at, &mut found);
            found.successes += 2;
        }
        _ => {}
    }
    check_enum(node, value, at, &mut found);
    found.successes += 1;
    if let Value::Object(map) = value {
        check_object(node, map, old, at, &mut found);
        found.successes += 1;
    }
    found.successes += 1;
    found
}

/// `got` is what the message says stands there: a type, or the text that has not the wanted format.
fn wrong_type(at: &Path<'_>, wanted: &str, got: &str, found: &mut Findings) {
    let got = go_format::quote(got);
    let message = format!("{} in body must be of type {wanted}: {got}", at.dotted());
    let error = FieldError {
        reason: Reason::TypeInvalid,
        field: at.dotted(),
        shown: Some(got),
        detail: message.clone(),
    };
    found.add(error, message);
}

fn check_type(node: &Node, value: &Value, at: &Path<'_>, found: &mut Findings) {
    let types = node.types();
    let wanted = || types.iter().map(|t| t.name()).collect::<Vec<_>>().join(",");
    let (kind, kind_format) = match value {
        Value::Null => {
            if types.is_empty() || node.nullable {
                found.successes += 1;
            } else {
                wrong_type(at, &wanted(), "null", found);
            }
            return;
        }
        Value::Bool(_) => (Type::Boolean, ""),
        Value::Number(n) if n.is_i64() => (Type::Integer, "int64"),
        Value::Number(_) => (Type::Number, "float64"),
        Value::String(_) => (Type::String, ""),
        Value::Array(_) => (Type::Array, ""),
        Value::Object(_) => (Type::Object, ""),
    };
    let numeric = types.contains(&Type::Number) || types.contains(&Type::Integer);
    let whole_float = types.contains(&Type::Integer)
        && matches!(value, Value::Number(n) if number::is_json_integer(Num::of(n).as_f64()));
    let integer_as_number = kind == Type::Integer && types.contains(&Type::Number);
    let fits = types.contains(&kind) || whole_float || integer_as_number;
    if let Some(format) = &node.checks.format {
        if matches!(kind, Type::String | Type::Array) {
            // Only the format is checked then; an array passes where a formatted string is wanted.
            if !numeric {
                found.successes += 1;
                return;
            }
        } else if !fits && kind_format != format.name {
            return wrong_type(at, &format.name, kind_format, found);
        }
    }
    if fits {
        found.successes += 1;
    } else {
        wrong_type(at, &wanted(), kind.name(), found);
    }
}

fn check_enum(node: &Node, value: &Value, at: &Path<'_>, found: &mut Findings) {
    let allowed = &node.checks.allowed;
    if allowed.is_empty() || (!value.is_null() && allowed.iter().any(|a| number::is_enumerated(value, a))) {
        return;
    }
    let names: Vec<String> = allowed
        .iter()
        .map(|a| match a {
            Value::String(text) => go_format::quote(text),
            other => go_format::quote(&go_format::json(other)),
        })
        .collect();
    let error = FieldError {
        reason: Reason::NotSupported,
        field: at.dotted(),
        shown: Some(crate::field_error::show(value)),
        detail: format!("supported values: {}", names.join(", ")),
    };
    found.add(error, format!("{} in body should be one of {names:?}", at.dotted()));
}

/// One complaint at most: too long, too short, or not matching.
fn check_string(node: &Node, text: &str, at: &Path<'_>, found: &mut Findings) {
    let checks = &node.checks;
    let length = || i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    if let Some(max) = checks.max_length
        && length() > max
    {
        let bytes = if max == 1 { "byte" } else { "bytes" };
        let detail =
            if max < 0 { "value is too long".into() } else { format!("may not be more than {max} {bytes}") };
        let error = FieldError { reason: Reason::TooLong, field: at.dotted(), shown: None, detail };
        return found.add(error, format!("{} in body should be at most {max} chars long", at.dotted()));
    }
    if let Some(min) = checks.min_length
        && length() < min
    {
        let message = format!("{} in body should be at least {min} chars long", at.dotted());
        return found.add_invalid(at, go_format::quote(text), message);
    }
    if let Some(pattern) = &checks.pattern {
        let mismatch = match &pattern.regex {
            Ok(regex) if regex.is_match(text) => return,
            Ok(_) => pattern.text.clone(),
            Err(error) => format!("{}, but pattern is invalid: {error}", pattern.text),
        };
        let message = format!("{} in body should match '{mismatch}'", at.dotted());
        found.add_invalid(at, go_format::quote(text), message);
    }
}

fn check_number(node: &Node, value: Num, at: &Path<'_>, found: &mut Findings) {
    let (checks, range) = (&node.checks, node.range());
    let out_of_range = |what: &str| {
        let kind = node.types().first().map_or("", |t| t.name());
        let format =
            checks.format.as_ref().map_or("(default format)".into(), |f| format!("with format {}", f.name));
        format!("{what} value must be of type {kind} {format} in {}", at.dotted())
    };
    if !value.fits(range) {
        found.add_placeless(out_of_range("Checked"));
    }
    if let Some(factor) = checks.multiple_of {
        let native = fits_native(factor, range, found, || out_of_range("MultipleOf"));
        check_multiple(value, factor, native, at, found);
    }
    for (bound, exclusive, is_minimum) in
        [(checks.minimum, checks.exclusive_minimum, true), (checks.maximum, checks.exclusive_maximum, false)]
    {
        let Some(bound) = bound else { continue };
        let what = if is_minimum { "Minimum boundary" } else { "Maximum boundary" };
        let native = fits_native(bound, range, found, || out_of_range(what));
        check_bound(value, bound, exclusive, is_minimum, native, at, found);
    }
}

/// Whether a constraint can itself be read as what it constrains; if not, that is an error of its own.
fn fits_native(constraint: f64, range: Range, found: &mut Findings, message: impl Fn() -> String) -> bool {
    let fits = Num::Float(constraint).fits(range);
    if !fits {
        found.add_placeless(message());
    }
    fits
}

#[expect(clippy::cast_possible_truncation, reason = "kube-apiserver truncates bounds of integers")]
fn check_bound(
    value: Num,
    bound: f64,
    exclusive: bool,
    is_minimum: bool,
    native: bool,
    at: &Path<'_>,
    found: &mut Findings,
) {
    let (beyond, equal, shown) = match value {
        Num::Int(value) if native => {
            let bound = bound as i64;
            (if is_minimum { value < bound } else { value > bound }, value == bound, bound.to_string())
        }
        value => {
            let value = value.as_f64();
            (if is_minimum { value < bound } else { value > bound }, value == bound, go_format::float(bound))
        }
    };
    let within = !beyond && (!exclusive || !equal);
    if within {
        return;
    }
    let words = match (is_minimum, exclusive) {
        (true, false) => "greater than or equal to",
        (true, true) => "greater than",
        (false, false) => "less than or equal to",
        (false, true) => "less than",
    };
    found.add_invalid(at, value.show(), format!("{} in body should be {words} {shown}", at.dotted()));
}

#[expect(clippy::cast_possible_truncation, reason = "kube-apiserver truncates factors of integers")]
fn check_multiple(value: Num, factor: f64, native: bool, at: &Path<'_>, found: &mut Findings) {
    let (positive, divides, shown) = match value {
        Num::Int(value) if native => {
            let factor = factor as i64;
            (factor > 0, factor > 0 && value % factor == 0, factor.to_string())
        }
        value => {
            let value = value.as_f64();
            let quotient = if factor < 1.0 { 1.0 / factor * value } else { value / factor };
            (factor > 0.0, number::is_json_integer(quotient), go_format::float(factor))
        }
    };
    if !positive {
        let message = format!("factor MultipleOf declared for {} must be positive: {shown}", at.dotted());
        found.add_invalid(at, shown, message);
    } else if !divides {
        let message = format!("{} in body should be a multiple of {shown}", at.dotted());
        found.add_invalid(at, value.show(), message);
    }
}

fn check_array(
    node: &Node,
    items: &[Value],
    old: Option<Predecessor<'_>>,
    at: &Path<'_>,
    found: &mut Findings,
) {
    if let Some(node) = node.items.as_deref() {
        for (i, item) in items.iter().enumerate() {
            found.merge(examine(node, item, old.and_then(|old| old.element(item)), &at.index(i)));
        }
    }
    let checks = &node.checks;
    let size = i64::try_from(items.len()).unwrap_or(i64::MAX);
    if let Some(min) = checks.min_items.filter(|min| size < *min) {
        let message = format!("{} in body should have at least {min} items", at.dotted());
        found.add_invalid(at, size.to_string(), message);
    }
    if let Some(max) = checks.max_items.filter(|max| size > *max) {
        found
            .add(too_many(at, size, max), format!("{} in body should have at most {max} items", at.dotted()));
    }
    if checks.unique_items && (1..items.len()).any(|i| items[..i].contains(&items[i])) {
        found.add_invalid(at, "\"\"".into(), format!("{} in body shouldn't contain duplicates", at.dotted()));
    }
}

fn check_object(
    node: &Node,
    map: &serde_json::Map<String, Value>,
    old: Option<Predecessor<'_>>,
    at: &Path<'_>,
    found: &mut Findings,
) {
    let checks = &node.checks;
    let size = i64::try_from(map.len()).unwrap_or(i64::MAX);
    if let Some(min) = checks.min_properties.filter(|min| size < *min) {
        let message = format!("{} in body should have at least {min} properties", at.dotted());
        found.add_invalid(at, size.to_string(), message);
    }
    if let Some(max) = checks.max_properties.filter(|max| size > *max) {
        found.add(
            too_many(at, size, max),
            format!("{} in body should have at most {max} properties", at.dotted()),
        );
    }
    for (key, value) in map {
        if node.properties.contains_key(key) {
            continue;
        }
        match &node.additional {
            Some(Additional::None) => {
                let message = format!("{}.{key} in body is a forbidden property", at.dotted());
                found.add_invalid(at, go_format::quote(key), message);
            }
            Some(Additional::Each(each)) => {
                found.merge(examine(each, value, old.and_then(|old| old.key(key)), &at.entry(key)));
            }
            _ => {}
        }
    }
    for (name, property) in &node.properties {
        if let Some(value) = map.get(name) {
            // The type of the object itself is the same in both versions whatever was written.
            let type_meta = at.is_root() && matches!(name.as_str(), "apiVersion" | "kind");
            let old = old.filter(|_| !type_meta).and_then(|old| old.key(name));
            found.merge(examine(property, value, old, &at.field(name)));
        }
    }
    for name in &checks.required {
        if !map.contains_key(name) {
            let at = at.entry(name).dotted();
            found.add(FieldError::required(at.clone(), ""), format!("{at} in body is required"));
        }
    }
}

fn too_many(at: &Path<'_>, actual: i64, max: i64) -> FieldError {
    let items = if max == 1 { "item" } else { "items" };
    let detail =
        if max < 0 { "has too many items".into() } else { format!("must have at most {max} {items}") };
    FieldError { reason: Reason::TooMany, field: at.dotted(), shown: Some(actual.to_string()), detail }
}

fn check_alternatives(node: &Node, value: &Value, at: &Path<'_>, found: &mut Findings) {
    let checks = &node.checks;
    if !checks.any_of.is_empty() {
        let (valid, best) = best_of(&checks.any_of, value, at, true);
        if valid == 0 {
            found.add_placeless(format!(
                "{} must validate at least one schema (anyOf)",
                go_format::quote(&at.dotted())
            ));
        }
        found.merge(best);
    }
    if !checks.one_of.is_empty() {
        let (valid, best) = best_of(&checks.one_of, value, at, false);
        if valid != 1 {
            let count = if valid == 0 {
                "Found none valid".into()
            } else {
                format!("Found {valid} valid alternatives")
            };
            let at = go_format::quote(&at.dotted());
            found.add_placeless(format!("{at} must validate one and only one schema (oneOf). {count}"));
        }
        if valid < 2 {
            found.merge(best);
        }
    }
    let mut valid = 0;
    for schema in &checks.all_of {
        let result = examine(schema, value, None, at);
        valid += usize::from(result.is_valid());
        found.merge(result);
    }
    if valid < checks.all_of.len() {
        let none = if valid == 0 { ". None validated" } else { "" };
        let at = go_format::quote(&at.dotted());
        found.add_placeless(format!("{at} must validate all the schemas (allOf){none}"));
    }
    if let Some(not) = &checks.not
        && examine(not, value, None, at).is_valid()
    {
        found.add_placeless(format!("{} must not validate the schema (not)", go_format::quote(&at.dotted())));
    }
}

/// How many alternatives hold, and the findings of the first that holds, else of the one that nearly does.
fn best_of(schemas: &[Node], value: &Value, at: &Path<'_>, stop_at_first: bool) -> (usize, Findings) {
    let mut valid = 0;
    let mut best: Option<Findings> = None;
    for schema in schemas {
        let result = examine(schema, value, None, at);
        if result.is_valid() {
            if valid == 0 {
                best = Some(result);
            }
            valid += 1;
            if stop_at_first {
                break;
            }
        } else if valid == 0 && best.as_ref().is_none_or(|best| result.successes > best.successes) {
            best = Some(result);
        }
    }
    (valid, best.unwrap_or_default())
}
