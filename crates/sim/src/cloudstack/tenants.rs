//! Who has accounts on the cloud, with what keys, limits and projects, and whose anything is: what administrators do there without
//! Karpenter, and what follows from it for callers.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::CloudStack;
use super::account::{Account, Role};
use super::state::{Owner, Project, State};
use super::wire::{Call, Refusal};

/// The ordinary tenant: the first there is.
fn tenant(state: &mut State) -> Option<&mut Account> {
    state.accounts.iter_mut().find(|account| account.role == Role::User)
}

impl State {
    /// Whose the new thing is to be, or whose things are to be listed.
    pub(crate) fn owner_named(&self, caller: usize, call: &Call) -> Result<Owner, Refusal> {
        if let Some(project) = call.get("projectid").filter(|id| *id != "-1") {
            if !self.may_use_project(caller, project) {
                return Err(self.closed_project(caller, "is unauthorised to use", project));
            }
            return Ok(Owner { account: caller, project: Some(project.to_owned()) });
        }
        match call.get("account") {
            None => Ok(Owner { account: caller, project: None }),
            Some(name) => {
                let found = self.accounts.iter().position(|account| account.name == name);
                let owner = found.map(|account| Owner { account, project: None });
                owner
                    .filter(|owner| self.may(caller, owner))
                    .ok_or_else(|| Refusal::denied(format!("Unable to find account {name} in domain")))
            }
        }
    }

    /// Ordinary users are refused every command in the projects of others as if there were none, before anything else about it is
    /// looked at.
    pub(crate) fn check_project(&self, caller: usize, call: &Call) -> Result<(), Refusal> {
        let is_ordinary = self.accounts.get(caller).is_some_and(|account| account.role == Role::User);
        let named = call.get("projectid").filter(|id| self.projects.iter().any(|project| project.id == *id));
        match named.filter(|id| is_ordinary && !self.may_use_project(caller, id)) {
            None => Ok(()),
            Some(project) => {
                let text = format!(
                    "The API [{}] does not exist or is not available for this account/user in project [{project}].",
                    call.command()
                );
                Err(Refusal { anonymous: true, ..Refusal::new(432, 9999, text) })
            }
        }
    }

    /// Whether the caller may look at what belongs to the project or account it names.
    pub(crate) fn check_scope(&self, caller: usize, call: &Call) -> Result<(), Refusal> {
        if let Some(project) = call.get("projectid").filter(|id| *id != "-1")
            && !self.may_use_project(caller, project)
        {
            return Err(self.closed_project(caller, "can't access", project));
        }
        let (Some(name), Some(domain)) = (call.get("account"), call.get("domainid")) else { return Ok(()) };
        let found = self.accounts.iter().position(|a| a.name == name && a.domain_id == domain);
        let Some(account) = found else {
            let text = format!("Unable to find account by name {name} in domain {domain}");
            return Err(Refusal::parameter(text));
        };
        if self.may(caller, &self.owner_of(account)) {
            return Ok(());
        }
        let caller = self.accounts.get(caller).map_or("", |account| account.name.as_str());
        let text = format!("Account {caller} does not have permission to operate within the account {name}");
        Err(Refusal::denied(text))
    }

    /// The server says the number of the project, not the id it was asked for.
    fn closed_project(&self, caller: usize, verb: &str, project: &str) -> Refusal {
        let number = self.projects.iter().position(|other| other.id == project).unwrap_or_default() + 1;
        Refusal::denied(format!("Account {} {verb} project id={number}", self.described(caller)))
    }

    /// Whose an entry of the catalogue is: root's if nobody's.
    pub(crate) fn owner_of_entry(&self, entry: &Value) -> Owner {
        let project = entry["projectid"].as_str();
        let of_project = self.projects.iter().find(|other| project == Some(other.id.as_str()));
        let named = || self.accounts.iter().position(|account| entry["account"] == account.name.as_str());
        let root = || self.accounts.iter().position(|account| account.role == Role::Root);
        let account = of_project.map(|project| project.owner).or_else(named).or_else(root);
        Owner { account: account.unwrap_or_default(), project: project.map(str::to_owned) }
    }

    /// Whether an entry of the catalogue, such as a network, is this owner's.
    pub(crate) fn owns(&self, owner: &Owner, entry: &Value) -> bool {
        match &owner.project {
            Some(project) => entry["projectid"] == project.as_str(),
            None => {
                let name = self.accounts.get(owner.account).map(|account| account.name.as_str());
                entry["projectid"].is_null() && name.is_some() && entry["account"].as_str() == name
            }
        }
    }
}

impl CloudStack {
    /// Another tenant of the same domain, without limits, and with a network in every zone the first one has such a network in;
    /// its keys are `NAME-api-key` and `NAME-secret-key`.
    pub fn add_account(&self, name: &str, network: &str) -> Account {
        let mut state = self.state();
        let (id, user_id) = (state.uuid(), state.uuid());
        let number = i64::try_from(state.accounts.len()).unwrap_or_default() + 10;
        let Some(first) = tenant(&mut state).cloned() else { return Account::from_fixture(&json!({})) };
        let account = Account {
            name: name.to_owned(),
            id,
            user_id,
            number,
            api_key: format!("{name}-api-key"),
            secret_key: format!("{name}-secret-key"),
            more_keys: BTreeMap::new(),
            limits: BTreeMap::new(),
            ..first.clone()
        };
        let mine = |entry: &&Value| entry["name"] == network && entry["account"] == first.name.as_str();
        let networks: Vec<Value> = state.networks.iter().filter(mine).cloned().collect();
        for (place, mut entry) in networks.into_iter().enumerate() {
            entry["id"] = state.uuid().into();
            entry["account"] = name.into();
            entry["cidr"] = format!("10.{}.0.0/20", 48 + 16 * place).into();
            entry["state"] = "Allocated".into();
            state.networks.push(entry);
        }
        state.accounts.push(account.clone());
        account
    }

    /// The keys of the account of this name no longer work; these do.
    pub fn give_keys(&self, account: &str, api_key: &str, secret_key: &str) {
        let mut state = self.state();
        for account in state.accounts.iter_mut().filter(|other| other.name == account) {
            account.api_key = api_key.to_owned();
            account.secret_key = secret_key.to_owned();
            account.more_keys.clear();
        }
    }

    /// A project of the ordinary tenant, without limits; gives back its id.
    pub fn add_project(&self, name: &str) -> String {
        let created = self.now();
        let mut state = self.state();
        let owner = state.accounts.iter().position(|account| account.role == Role::User).unwrap_or(0);
        let id = state.uuid();
        state.projects.push(Project {
            id: id.clone(),
            name: name.to_owned(),
            display_text: name.to_owned(),
            owner,
            created,
            limits: BTreeMap::new(),
        });
        id
    }

    /// Whoever had a project is taken out of it, and the account of this name has it.
    pub fn give_project(&self, id: &str, account: &str) {
        let mut state = self.state();
        let Some(account) = state.accounts.iter().position(|other| other.name == account) else { return };
        for project in state.projects.iter_mut().filter(|project| project.id == id) {
            project.owner = account;
        }
    }

    /// A project goes, with all that is in it.
    pub fn remove_project(&self, id: &str) {
        let mut state = self.state();
        state.projects.retain(|project| project.id != id);
        let inside = state.machines.values().filter(|machine| machine.owner.project.as_deref() == Some(id));
        let inside: Vec<u64> = inside.map(|machine| machine.number).collect();
        for number in inside {
            state.remove(number);
        }
    }

    /// An administrator disables the ordinary tenant, or no longer: nothing is made for it.
    pub fn disable_tenant(&self, disabled: bool) {
        if let Some(account) = tenant(&mut self.state()) {
            account.disabled = disabled;
        }
    }

    /// Sets a limit of the ordinary tenant; negative is none.
    pub fn limit(&self, resource: &str, limit: i64) {
        if let Some(account) = tenant(&mut self.state()) {
            account.limits.insert(resource.to_owned(), limit);
        }
    }

    /// A new pair of keys for the ordinary tenant; the old ones no longer work.
    pub fn rotate_keys(&self, api_key: &str, secret_key: &str) {
        if let Some(account) = tenant(&mut self.state()) {
            account.api_key = api_key.to_owned();
            account.secret_key = secret_key.to_owned();
        }
    }

    /// Another pair of keys for the ordinary tenant, beside those that work already.
    pub fn add_keys(&self, api_key: &str, secret_key: &str) {
        if let Some(account) = tenant(&mut self.state()) {
            account.more_keys.insert(api_key.to_owned(), secret_key.to_owned());
        }
    }

    /// The keys of the ordinary tenant are refused, or taken again.
    pub fn revoke_keys(&self, revoked: bool) {
        if let Some(account) = tenant(&mut self.state()) {
            account.keys_revoked = revoked;
        }
    }

    /// All pairs of the ordinary tenant but this one are revoked.
    pub fn revoke_all_keys_but(&self, api_key: &str) {
        if let Some(account) = tenant(&mut self.state()) {
            if let Some(secret) = account.secret_of(api_key).map(str::to_owned) {
                account.api_key = api_key.to_owned();
                account.secret_key = secret;
            }
            account.more_keys.clear();
        }
    }
}
