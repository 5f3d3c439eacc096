//! Who may use which command, and what each command wants, as listed by a real server (`listApis` of CloudStack 4.23).

use std::sync::OnceLock;

use serde_json::{Map, Value, json};

use super::account::Role;

/// How long a text may be where nothing else is said.
const SHORT: usize = 255;

const TABLE: &str = include_str!("commands.json");

fn table() -> &'static Map<String, Value> {
    static PARSED: OnceLock<Map<String, Value>> = OnceLock::new();
    PARSED.get_or_init(|| serde_json::from_str(TABLE).unwrap_or_default())
}

/// What is known of a command; none where nobody knows it.
pub(crate) fn command(name: &str) -> Option<&'static Value> {
    table().get(name)
}

/// Whether the command is of a plug-in that need not be there.
pub(crate) fn of_plugin(name: &str) -> bool {
    name.starts_with("quota")
}

/// Whether this role may use it.
pub(crate) fn allowed(entry: &Value, role: Role) -> bool {
    let roles = entry["roles"].as_str().unwrap_or_default();
    roles.is_empty() || roles.contains(role.letter())
}

/// Parameters with their types, as far as they are checked.
pub(crate) fn parameters(entry: &Value) -> impl Iterator<Item = (&str, &str)> {
    entry["params"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(name, kind)| Some((name.as_str(), kind.as_str()?)))
}

/// How long a text may be, in the units Java counts in; names of machines are checked more strictly. Nothing where the type is another.
pub(crate) fn longest(kind: &str) -> Option<usize> {
    let mut words = kind.split(' ');
    if words.next() != Some("string") {
        return None;
    }
    let said = words.skip_while(|word| *word != "length").nth(1);
    Some(said.and_then(|length| length.parse().ok()).unwrap_or(SHORT))
}

/// The commands a role may use.
pub(crate) fn apis(name: Option<&str>, role: Role) -> Vec<Value> {
    table()
        .iter()
        .filter(|(command, entry)| allowed(entry, role) && name.is_none_or(|wanted| wanted == *command))
        .map(|(command, entry)| {
            let params: Vec<Value> = parameters(entry)
                .map(|(name, kind)| {
                    let kind_name = kind.split(' ').next().unwrap_or_default();
                    json!({"name": name, "type": kind_name, "required": kind.contains("required")})
                })
                .collect();
            json!({"name": command, "isasync": entry["async"] == true, "params": params})
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_has_a_longest_length() {
        let deploy = command("deployVirtualMachine").expect("known");
        let longest = |wanted: &str| {
            let (_, kind) = parameters(deploy).find(|(name, _)| *name == wanted).expect("listed");
            longest(kind)
        };
        let lengths = ["hypervisor", "keypair", "userdata", "zoneid", "keypairs"].map(longest);
        assert_eq!(lengths, [Some(255), Some(255), Some(1_048_576), None, None]);
    }

    #[test]
    fn tenants_may_deploy_and_not_look_at_hosts() {
        let deploy = command("deployVirtualMachine").expect("known");
        let hosts = command("listHosts").expect("known");
        assert!(allowed(deploy, Role::User) && !allowed(hosts, Role::User) && allowed(hosts, Role::Root));
        assert!(!allowed(hosts, Role::DomainAdmin));
        assert!(command("listFlyingPigs").is_none());
    }
}
