//! What pods are configured with: ConfigMaps, Secrets and ServiceAccounts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::checks::{self, Errors, config_key_errors, forbidden, invalid, required};
use super::fields::{at, child, default_to, entries, flag, items, remove, set, text};
use super::path::At;
use super::{Lookup, Rules};
use crate::field_error::FieldError;
use crate::status::ApiError;

pub(super) const CONFIG_MAP: Rules = Rules {
    validate_create: validate_config_map,
    validate_update: |new, old, _, errors| {
        frozen(new, old, &["data", "binaryData"], errors);
        validate_config_map(new, errors);
    },
    ..Rules::NONE
};
pub(super) const SECRET: Rules = Rules {
    default: default_secret,
    validate_create: validate_secret,
    validate_update: |new, old, _, errors| {
        checks::immutable(errors, At::Top("type"), at(new, &["type"]), at(old, &["type"]));
        frozen(new, old, &["data"], errors);
        validate_secret(new, errors);
    },
    ..Rules::NONE
};
pub(super) const SERVICE_ACCOUNT: Rules = Rules {
    prepare_create: prepare_account,
    prepare_update: |account, _, _| only_names(account),
    ..Rules::NONE
};

/// `stringData` is a convenience of writing: it ends up in `data`, and wins there.
fn default_secret(secret: &mut Value) {
    if let Some(Value::Object(plain)) = remove(secret, "stringData") {
        let data = child(secret, "data");
        for (key, value) in plain {
            let encoded = STANDARD.encode(value.as_str().unwrap_or_default());
            set(data, &key, encoded);
        }
    }
    default_to(secret, "type", "Opaque");
}

fn prepare_account(account: &mut Value, _cluster: &dyn Lookup) -> Result<(), ApiError> {
    only_names(account);
    Ok(())
}

/// Of the secrets an account refers to, only the names are kept.
fn only_names(account: &mut Value) {
    let secrets: Vec<Value> =
        items(account, "secrets").iter().map(|s| json!({"name": text(s, "name")})).collect();
    if !secrets.is_empty() {
        set(account, "secrets", secrets);
    }
}

/// The most a ConfigMap or Secret may hold.
const MAX_BYTES: usize = 1024 * 1024;

fn validate_config_map(map: &Value, errors: &mut Errors) {
    let mut bytes = 0;
    for list in ["data", "binaryData"] {
        let list_at = At::Top(list);
        for (key, value) in entries(map, list) {
            checks::name(errors, list_at.key(key), key, config_key_errors);
            if list == "data" && at(map, &["binaryData"]).get(key).is_some() {
                invalid(errors, list_at.key(key), key.as_str(), "duplicate of key present in binaryData");
            }
            bytes += value.as_str().map_or(0, str::len);
        }
    }
    too_large(errors, "[]", bytes);
}

fn too_large(errors: &mut Errors, field: &str, bytes: usize) {
    if bytes > MAX_BYTES {
        errors.push(FieldError::too_long(field, MAX_BYTES));
    }
}

/// What `immutable: true` has frozen.
fn frozen(new: &Value, old: &Value, lists: &[&str], errors: &mut Errors) {
    const DETAIL: &str = "field is immutable when `immutable` is set";
    if !flag(old, "immutable") {
        return;
    }
    if !flag(new, "immutable") {
        forbidden(errors, At::Top("immutable"), DETAIL);
    }
    for list in lists {
        if at(new, &[list]) != at(old, &[list]) {
            forbidden(errors, At::Top(list), DETAIL);
        }
    }
}

fn validate_secret(secret: &Value, errors: &mut Errors) {
    let data = at(secret, &["data"]);
    let mut bytes = 0;
    let list_at = At::Top("data");
    for (key, value) in entries(secret, "data") {
        checks::name(errors, list_at.key(key), key, config_key_errors);
        bytes += value.as_str().map_or(0, str::len) / 4 * 3;
    }
    too_large(errors, "data", bytes);
    let needed: &[&str] = match text(secret, "type") {
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/basic-auth" if data.get("username").is_none() && data.get("password").is_none() => {
            &["username", "password"]
        }
        _ => &[],
    };
    for key in needed {
        match data.get(key).and_then(Value::as_str) {
            None => required(errors, list_at.key(key), ""),
            Some(encoded) if key.starts_with(".docker") => {
                let plain = STANDARD.decode(encoded).unwrap_or_default();
                if let Some(error) = json_error(&plain) {
                    invalid(errors, list_at.key(key), "<secret contents redacted>", error);
                }
            }
            Some(_) => {}
        }
    }
    if text(secret, "type") == "kubernetes.io/service-account-token" {
        const ACCOUNT: &str = "kubernetes.io/service-account.name";
        if text(at(secret, &["metadata", "annotations"]), ACCOUNT).is_empty() {
            required(errors, At::Top("metadata.annotations").key(ACCOUNT), "");
        }
    }
}

/// What Go says about a text that is no JSON, for the case that its first byte already shows it.
fn json_error(bytes: &[u8]) -> Option<String> {
    serde_json::from_slice::<Value>(bytes).err()?;
    Some(match bytes.iter().find(|b| !b.is_ascii_whitespace()) {
        None => "unexpected end of JSON input".to_owned(),
        Some(first) => format!("invalid character {:?} looking for beginning of value", char::from(*first)),
    })
}
