//! A request as a value: a command and its parameters, without keys, time or signature.

use std::fmt;

/// On whose behalf things are listed and made.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// The caller's own account.
    #[default]
    Own,
    /// A project, by id. Its things are invisible without saying so.
    Project(String),
    /// Another account, for administrators.
    Account {
        /// Its name.
        account: String,
        /// The id of its domain.
        domain_id: String,
    },
}

impl Scope {
    /// In one word, to be written down.
    pub fn write(&self) -> String {
        match self {
            Self::Own => "own".to_owned(),
            Self::Project(id) => format!("project/{id}"),
            Self::Account { account, domain_id } => format!("account/{domain_id}/{account}"),
        }
    }

    /// As it was written down; nothing if that is none.
    pub(crate) fn read(text: &str) -> Option<Self> {
        match text.split_once('/') {
            None => (text == "own").then_some(Self::Own),
            Some(("project", id)) if !id.is_empty() => Some(Self::Project(id.to_owned())),
            Some(("account", rest)) => {
                let (domain_id, account) = rest.split_once('/')?;
                Some(Self::Account { account: account.to_owned(), domain_id: domain_id.to_owned() })
            }
            Some(_) => None,
        }
    }
}

/// A command with its parameters.
#[derive(Clone, PartialEq, Eq)]
pub struct Request {
    command: &'static str,
    parameters: Vec<(String, String)>,
}

impl Request {
    pub(crate) fn new(command: &'static str) -> Self {
        Self { command, parameters: Vec::new() }
    }

    /// With a parameter.
    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.parameters.push((name.to_owned(), value.into()));
        self
    }

    /// With a parameter, if there is a value.
    #[must_use]
    pub(crate) fn maybe<V: Into<String>>(self, name: &str, value: Option<V>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// With a list, if there is anything in it. Lists are split at commas with no way to escape one.
    #[must_use]
    pub(crate) fn list(self, name: &str, values: &[String]) -> Self {
        if values.is_empty() { self } else { self.with(name, values.join(",")) }
    }

    /// With pairs of key and value, numbered.
    #[must_use]
    pub(crate) fn pairs<'a>(
        mut self,
        name: &str,
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        for (i, (key, value)) in pairs.into_iter().enumerate() {
            self = self.with(&format!("{name}[{i}].key"), key).with(&format!("{name}[{i}].value"), value);
        }
        self
    }

    /// On behalf of a project or an account.
    #[must_use]
    pub(crate) fn within(self, scope: &Scope) -> Self {
        match scope {
            Scope::Own => self,
            Scope::Project(id) => self.with("projectid", id.as_str()),
            Scope::Account { account, domain_id } => {
                self.with("account", account.as_str()).with("domainid", domain_id.as_str())
            }
        }
    }

    /// Its command.
    pub fn command(&self) -> &'static str {
        self.command
    }

    /// Its parameters, in the order they are sent.
    pub fn parameters(&self) -> &[(String, String)] {
        &self.parameters
    }

    /// What it is about, for logs: a name or an id.
    pub(crate) fn about(&self) -> &str {
        let names = ["name", "id", "resourceids", "jobid", "keyword", "zoneid"];
        let value = |name: &&str| self.parameters.iter().find(|(key, _)| key == name);
        names.iter().find_map(value).map_or("", |(_, value)| value.as_str())
    }

    /// Whether it only reads: the server's own rule goes by the name.
    pub fn is_read(&self) -> bool {
        ["list", "get", "query", "find", "quotaTariffList"].iter().any(|p| self.command.starts_with(p))
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // User data holds what joins a cluster.
        let shown = self.parameters.iter().map(|(name, value)| {
            (name, if name == "userdata" { format!("({} bytes)", value.len()) } else { value.clone() })
        });
        write!(f, "{}", self.command)?;
        f.debug_map().entries(shown).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_read_as_it_was_written() {
        let account = Scope::Account { account: "a/b".into(), domain_id: "d".into() };
        for scope in [Scope::Own, Scope::Project("p".into()), account] {
            assert_eq!(Scope::read(&scope.write()), Some(scope));
        }
        for text in ["", "project/", "account/x", "else/x"] {
            assert_eq!(Scope::read(text), None, "{text}");
        }
    }

    #[test]
    fn user_data_does_not_show() {
        let request = Request::new("deployVirtualMachine").with("userdata", "c2VjcmV0").with("name", "x");
        let text = format!("{request:?}");
        assert!(!text.contains("c2VjcmV0") && text.contains("(8 bytes)") && text.contains("\"x\""), "{text}");
    }

    #[test]
    fn what_only_reads_is_told_by_its_name() {
        for (command, read) in [
            ("listZones", true),
            ("queryAsyncJobResult", true),
            ("quotaTariffList", true),
            ("deployVirtualMachine", false),
            ("createTags", false),
        ] {
            assert_eq!(Request::new(command).is_read(), read, "{command}");
        }
    }
}
