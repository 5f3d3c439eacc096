//! Who may call: accounts with their keys, roles, limits, and how often they called.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// An ordinary tenant.
    User,
    /// Administrator of a domain.
    DomainAdmin,
    /// Administrator of everything.
    Root,
}

impl Role {
    /// As the table of commands abbreviates it.
    pub(crate) fn letter(self) -> char {
        match self {
            Self::User => 'u',
            Self::DomainAdmin => 'd',
            Self::Root => 'a',
        }
    }

    fn names(self) -> (&'static str, &'static str, i64) {
        match self {
            Self::User => ("User", "User", 0),
            Self::DomainAdmin => ("DomainAdmin", "Domain Admin", 2),
            Self::Root => ("Admin", "Root Admin", 1),
        }
    }
}

/// An account with one user.
#[derive(Clone, Debug)]
pub struct Account {
    /// Name.
    pub name: String,
    /// Role.
    pub role: Role,
    /// Key of its user.
    pub api_key: String,
    /// Secret of its user.
    pub secret_key: String,
    /// Further pairs of its user that work as well: servers since 4.23 know several.
    pub(crate) more_keys: BTreeMap<String, String>,
    pub(crate) id: String,
    pub(crate) number: i64,
    pub(crate) user_id: String,
    /// Id of its domain.
    pub domain_id: String,
    pub(crate) domain: String,
    pub(crate) domain_path: String,
    pub(crate) domain_number: i64,
    pub(crate) role_id: String,
    pub(crate) created: String,
    /// Whether it may make nothing any more.
    pub(crate) disabled: bool,
    /// Whether its keys are refused.
    pub(crate) keys_revoked: bool,
    /// By the name of the resource; absent or negative is no limit.
    pub(crate) limits: BTreeMap<String, i64>,
    /// Calls in the current window, and its end.
    pub(crate) calls: (u64, Timestamp),
    /// The user as listed.
    pub(crate) user: Value,
}

impl Account {
    /// From the fixture.
    pub(crate) fn from_fixture(value: &Value) -> Self {
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let role = match value["role"].as_str() {
            Some("Admin") => Role::Root,
            Some("DomainAdmin") => Role::DomainAdmin,
            _ => Role::User,
        };
        let name = text("name");
        let limits = value["limits"]
            .as_object()
            .map(|limits| limits.iter().filter_map(|(k, v)| Some((k.clone(), v.as_i64()?))).collect())
            .unwrap_or_default();
        Self {
            api_key: format!("{name}-api-key"),
            secret_key: format!("{name}-secret-key"),
            more_keys: BTreeMap::new(),
            role,
            id: text("id"),
            number: value["number"].as_i64().unwrap_or_default(),
            user_id: text("userid"),
            domain_id: text("domainid"),
            domain: text("domain"),
            domain_path: text("domainpath"),
            domain_number: value["domainnumber"].as_i64().unwrap_or_default(),
            role_id: text("roleid"),
            created: text("created"),
            disabled: false,
            keys_revoked: false,
            limits,
            calls: (0, Timestamp::MIN),
            user: value["user"].clone(),
            name,
        }
    }

    /// The secret that belongs to a key, if the key is one of this account.
    pub(crate) fn secret_of(&self, key: &str) -> Option<&str> {
        if self.keys_revoked {
            return None;
        }
        if self.api_key == key {
            return Some(&self.secret_key);
        }
        self.more_keys.get(key).map(String::as_str)
    }

    /// As `listAccounts` shows it, without the numbers of what it uses.
    pub(crate) fn listed(&self) -> Value {
        let (kind, name, number) = self.role.names();
        let mut account = json!({
            "id": self.id, "name": self.name, "accounttype": number, "roleid": self.role_id,
            "roletype": kind, "rolename": name, "domainid": self.domain_id, "domain": self.domain,
            "domainpath": self.domain_path, "state": "enabled", "user": [self.user], "isdefault": false,
            "groups": [],
        });
        match self.role {
            Role::Root => {
                account["apikeyaccess"] = "INHERIT".into();
                account["isdefault"] = true.into();
            }
            _ => account["created"] = self.created.clone().into(),
        }
        account
    }
}
