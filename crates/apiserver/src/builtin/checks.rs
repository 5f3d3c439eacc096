//! Rules about single values that many kinds share: names, ports, numbers, quantities, selectors.
//!
//! Each pushes what it finds; none stops the others. Texts are kube-apiserver's.

use karpenter_primitives::{Quantity, names};
use serde_json::Value;

use super::fields::{entries, items, text};
use super::path::At;
use super::quantity;
use crate::field_error::FieldError;

/// What a validation has found so far.
pub(super) type Errors = Vec<FieldError>;

pub(super) const IMMUTABLE: &str = "field is immutable";

pub(super) fn invalid(errors: &mut Errors, at: At<'_>, value: impl Into<Value>, detail: impl Into<String>) {
    errors.push(FieldError::invalid(at, &value.into(), detail));
}

pub(super) fn required(errors: &mut Errors, at: At<'_>, detail: &str) {
    errors.push(FieldError::required(at, detail));
}

pub(super) fn forbidden(errors: &mut Errors, at: At<'_>, detail: &str) {
    errors.push(FieldError::forbidden(at, detail));
}

pub(super) fn duplicate(errors: &mut Errors, at: At<'_>, value: impl Into<Value>) {
    errors.push(FieldError::duplicate(at, &value.into()));
}

/// Shows the value of the last error as this text: kube-apiserver prints its own types with their fields in order.
pub(super) fn last_shown_as(errors: &mut Errors, text: String) {
    if let Some(error) = errors.last_mut() {
        error.shown = Some(text);
    }
}

/// `allowed` is shown in the order given: some of kube-apiserver's rules sort it, some do not.
pub(super) fn unsupported(errors: &mut Errors, at: At<'_>, value: impl Into<Value>, allowed: &[&str]) {
    let mut error = FieldError::not_supported(at, &value.into(), &[]);
    let quoted: Vec<String> = allowed.iter().map(|a| format!("{a:?}")).collect();
    error.detail = format!("supported values: {}", quoted.join(", "));
    errors.push(error);
}

/// An enum field that must be set to one of `allowed`.
pub(super) fn one_of(errors: &mut Errors, at: At<'_>, value: &str, allowed: &[&str]) {
    if value.is_empty() {
        required(errors, at, "");
    } else if !allowed.contains(&value) {
        unsupported(errors, at, value, allowed);
    }
}

/// A rule of the family that returns complaints about a name.
pub(super) fn name(errors: &mut Errors, at: At<'_>, value: &str, complaints: fn(&str) -> Vec<String>) {
    for complaint in complaints(value) {
        invalid(errors, at, value, complaint);
    }
}

pub(super) fn dns_label(errors: &mut Errors, at: At<'_>, value: &str) {
    name(errors, at, value, names::dns1123_label_errors);
}

pub(super) fn dns_subdomain(errors: &mut Errors, at: At<'_>, value: &str) {
    name(errors, at, value, names::dns1123_subdomain_errors);
}

pub(super) fn qualified_name(errors: &mut Errors, at: At<'_>, value: &str) {
    name(errors, at, value, names::qualified_name_errors);
}

/// The name of a port: a service name of RFC 6335.
pub(super) fn port_name(errors: &mut Errors, at: At<'_>, value: &str) -> bool {
    let before = errors.len();
    if value.len() > 15 {
        invalid(errors, at, value, "must be no more than 15 characters");
    }
    if value.is_empty() || !value.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
        invalid(errors, at, value, "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)");
    }
    if !value.bytes().any(|b| b.is_ascii_lowercase()) {
        invalid(errors, at, value, "must contain at least one letter (a-z)");
    }
    if value.contains("--") {
        invalid(errors, at, value, "must not contain consecutive hyphens");
    }
    if value.starts_with('-') || value.ends_with('-') {
        invalid(errors, at, value, "must not begin or end with a hyphen");
    }
    errors.len() == before
}

pub(super) fn port_number(errors: &mut Errors, at: At<'_>, value: i64) {
    if !(1..=65_535).contains(&value) {
        invalid(errors, at, value, "must be between 1 and 65535, inclusive");
    }
}

/// A port given by number or by name.
pub(super) fn port(errors: &mut Errors, at: At<'_>, value: &Value) {
    match value {
        Value::String(text) => {
            port_name(errors, at, text);
        }
        number => port_number(errors, at, number.as_i64().unwrap_or(0)),
    }
}

pub(super) fn non_negative(errors: &mut Errors, at: At<'_>, value: Option<i64>) {
    if let Some(value) = value.filter(|v| *v < 0) {
        invalid(errors, at, value, "must be greater than or equal to 0");
    }
}

/// A quantity that must not be below zero.
pub(super) fn non_negative_quantity(errors: &mut Errors, at: At<'_>, value: &Value) {
    if quantity::parse(value.as_str()).is_some_and(|q| q.is_negative()) {
        invalid(errors, at, value.clone(), "must be greater than or equal to 0");
    }
}

pub(super) fn is_whole(quantity: &Quantity) -> bool {
    quantity.milli_value() % 1000 == 0
}

/// Labels of an object or a selector: keys and values reported at the map itself.
pub(super) fn labels(errors: &mut Errors, at: At<'_>, owner: &Value, key: &str) {
    for (label, value) in entries(owner, key) {
        name(errors, at, label, names::qualified_name_errors);
        name(errors, at, value.as_str().unwrap_or_default(), names::label_value_errors);
    }
}

/// A `metav1.LabelSelector`.
pub(super) fn label_selector(errors: &mut Errors, at: At<'_>, selector: &Value) {
    labels(errors, at.field("matchLabels"), selector, "matchLabels");
    for (index, requirement) in items(selector, "matchExpressions").iter().enumerate() {
        let list = at.field("matchExpressions");
        let at = list.index(index);
        let values = items(requirement, "values");
        match text(requirement, "operator") {
            "In" | "NotIn" if values.is_empty() => {
                required(errors, at.field("values"), "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => forbidden(
                errors,
                at.field("values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => invalid(errors, at.field("operator"), other, "not a valid selector operator"),
        }
        qualified_name(errors, at.field("key"), text(requirement, "key"));
        for (index, value) in values.iter().filter_map(Value::as_str).enumerate() {
            let list = at.field("values");
            name(errors, list.index(index), value, names::label_value_errors);
        }
    }
}

/// Whether a `metav1.LabelSelector` says nothing.
pub(super) fn is_empty_selector(selector: &Value) -> bool {
    entries(selector, "matchLabels").next().is_none() && items(selector, "matchExpressions").is_empty()
}

/// Whether labels satisfy a `metav1.LabelSelector`.
pub(super) fn selector_matches(selector: &Value, labels: &Value) -> bool {
    entries(selector, "matchLabels").all(|(key, value)| labels.get(key) == Some(value))
        && items(selector, "matchExpressions").iter().all(|requirement| {
            let actual = labels.get(text(requirement, "key"));
            let listed = actual.is_some_and(|value| items(requirement, "values").contains(value));
            match text(requirement, "operator") {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => actual.is_some(),
                _ => actual.is_none(),
            }
        })
}

/// A field that must stay as it was.
pub(super) fn immutable(errors: &mut Errors, at: At<'_>, new: &Value, old: &Value) {
    if new != old {
        invalid(errors, at, new.clone(), IMMUTABLE);
    }
}

/// A whole number or a percentage, at least zero; returns whether it is well formed.
pub(super) fn int_or_percent(errors: &mut Errors, at: At<'_>, value: &Value) -> bool {
    match value {
        Value::String(text) => {
            let valid = text
                .strip_suffix('%')
                .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
            if !valid {
                invalid(
                    errors,
                    at,
                    text.as_str(),
                    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')",
                );
            }
            valid
        }
        number => {
            let before = errors.len();
            non_negative(errors, at, number.as_i64());
            errors.len() == before
        }
    }
}

/// A percentage must not be above 100.
pub(super) fn not_above_100_percent(errors: &mut Errors, at: At<'_>, value: &Value) {
    if percent(value).is_some_and(|p| p > 100) {
        invalid(errors, at, value.clone(), "must not be greater than 100%");
    }
}

/// The number of a well-formed percentage.
pub(super) fn percent(value: &Value) -> Option<u64> {
    value.as_str().and_then(|text| text.strip_suffix('%')).and_then(|n| n.parse().ok())
}

/// Zero, as a number or a percentage.
pub(super) fn is_zero(value: &Value) -> bool {
    value.as_i64() == Some(0) || percent(value) == Some(0)
}

/// Something that is not there although something else names it.
pub(super) fn not_found(errors: &mut Errors, at: At<'_>, value: &str, detail: &str) {
    let mut error = FieldError::not_found(at, &value.into());
    detail.clone_into(&mut error.detail);
    errors.push(error);
}

/// The key of a ConfigMap or Secret.
pub(super) fn config_key_errors(key: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if key.len() > 253 {
        errors.push("must be no more than 253 characters".to_owned());
    }
    if key.is_empty() || !key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) {
        errors.push(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
                .to_owned(),
        );
    }
    if key == "." {
        errors.push("must not be '.'".to_owned());
    } else if key == ".." {
        errors.push("must not be '..'".to_owned());
    } else if key.starts_with("..") {
        errors.push("must not start with '..'".to_owned());
    }
    errors
}

/// An IP address in the form kube-apiserver takes.
pub(super) fn is_ip(text: &str) -> bool {
    text.parse::<std::net::IpAddr>().is_ok()
}

/// A network in CIDR form.
pub(super) fn is_cidr(text: &str) -> bool {
    text.split_once('/').is_some_and(|(address, bits)| match address.parse::<std::net::IpAddr>() {
        Ok(address) => bits.parse::<u8>().is_ok_and(|bits| bits <= if address.is_ipv4() { 32 } else { 128 }),
        Err(_) => false,
    })
}

pub(super) const NOT_AN_IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
pub(super) const NOT_A_CIDR: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
