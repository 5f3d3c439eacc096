//! What pods are configured with: ConfigMaps, Secrets and ServiceAccounts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::fields::{child, default_to, items, remove, set, text};
use super::{Lookup, Rules};
use crate::status::ApiError;

pub(super) const CONFIG_MAP: Rules = Rules { ..Rules::NONE };
pub(super) const SECRET: Rules = Rules { default: default_secret, ..Rules::NONE };
pub(super) const SERVICE_ACCOUNT: Rules = Rules {
    prepare_create: |account, cluster| prepare_account(account, cluster),
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
