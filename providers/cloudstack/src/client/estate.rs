//! Whose keys are, and what was made with them: keys of another account would make that look gone.

use std::collections::{BTreeMap, BTreeSet};

/// Accounts a session may be of: names by id. Several only where the server shows others of the domain too
/// (`allow.user.view.all.domain.accounts`) and does not tell which is ours.
pub(crate) type Accounts = BTreeMap<String, String>;

/// The id of the account, if it is known which it is.
pub(crate) fn only(accounts: &Accounts) -> Option<&String> {
    accounts.keys().next().filter(|_| accounts.len() == 1)
}

/// What hangs on the account a session is of.
pub(crate) trait Estate: Send + Sync {
    /// What was made with the keys so far; nothing while that is not known.
    fn made(&self) -> Option<Made>;

    /// The keys are of another account: what was looked up with the old ones says nothing any more.
    fn forget(&self);

    /// Whether the keys choose the project of what names none, because the settings do not.
    fn keys_choose_project(&self) -> bool {
        true
    }
}

/// What was made with keys, as NodeClaims and lists tell it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Made {
    /// Ids of the accounts that NodeClaims record.
    pub(crate) accounts: BTreeSet<String>,
    /// Whether there is a machine in the keys' own account of which none is recorded.
    pub(crate) unrecorded: bool,
    /// Whether anything may have been made at all.
    pub(crate) anything: bool,
}

impl Made {
    /// Whether everything was made in this account, as far as it is recorded, and all of it is.
    pub(crate) fn is_all_of(&self, accounts: &Accounts) -> bool {
        !self.unrecorded && self.accounts.iter().all(|account| only(accounts) == Some(account))
    }
}
