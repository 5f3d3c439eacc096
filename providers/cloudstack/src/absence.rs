//! Whether a machine that no list shows is gone for certain: with it go its NodeClaim and its Node, and neither comes back.
//!
//! A list says nothing of what it leaves out. The server leaves out machines that are of another account or project by now, whether
//! asked by `id` or by `ids`; by `ids` it leaves out for administrators even what it shows by `id`; ordinary users are not shown
//! what is destroyed. What it answers for certain:
//!
//! | asked | the row is gone | not for these keys | there |
//! |---|---|---|---|
//! | the job of our own order to destroy it | succeeded | | pending, failed |
//! | `listNics` of the machine | 431, it does not exist | 531 | its interfaces |
//!
//! What is there for these keys and in no list of theirs is destroyed, unless it was out of sight a moment ago: lists are late at
//! times, and it may have come back. A machine that a root administrator keeps from tenants' sight
//! (`displayvm=false`) is answered as one that is gone, to every question there is.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::client::error::{ApiError, ErrorKind};
use crate::client::job::JobState;
use crate::client::model::VirtualMachine;
use crate::client::request::Scope;
use crate::client::requests;
use crate::client::throttle::Lane;
use crate::instances::is_alive;
use crate::shared::Shared;

/// How long lists may take to show a machine that came back into our sight.
const COMES_BACK_WITHIN: Duration = Duration::from_secs(60);
/// How long it is remembered that a machine is gone.
const REMEMBERED: Duration = Duration::from_secs(5 * 60);
/// All projects the caller is in, and nothing else.
const EVERY_PROJECT: &str = "-1";

/// What became of a machine that is not where it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    /// It is gone, or destroyed and waits for the server to remove it.
    Gone,
    /// It is being destroyed.
    Going,
    /// It is there, out of our sight: what to do about it.
    Hidden(String),
}

/// Machines of which something was found out a moment ago.
#[derive(Debug)]
pub(crate) struct Recently {
    within: Duration,
    found: Mutex<BTreeMap<String, Instant>>,
}

impl Recently {
    /// Gone for certain. Several ask after the machine of every node that goes, one after the other.
    pub(crate) fn gone() -> Self {
        Self { within: REMEMBERED, found: Mutex::default() }
    }

    /// Out of our sight.
    pub(crate) fn hidden() -> Self {
        Self { within: COMES_BACK_WITHIN, found: Mutex::default() }
    }

    fn has(&self, id: &str) -> bool {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.get(id).is_some_and(|last| last.elapsed() < self.within)
    }

    fn note(&self, id: &str) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.retain(|_, last| last.elapsed() < self.within);
        found.insert(id.to_owned(), Instant::now());
    }
}

impl Shared {
    /// What became of a machine that the lists of its project or account do not show.
    ///
    /// # Errors
    ///
    /// If the server does not say.
    pub(crate) async fn whereabouts(&self, id: &str) -> Result<Whereabouts, ApiError> {
        if self.gone.has(id) {
            return Ok(Whereabouts::Gone);
        }
        let whereabouts = self.ask_for_whereabouts(id).await?;
        match whereabouts {
            Whereabouts::Gone => self.gone.note(id),
            Whereabouts::Hidden(_) => self.hidden.note(id),
            Whereabouts::Going => {}
        }
        Ok(whereabouts)
    }

    async fn ask_for_whereabouts(&self, id: &str) -> Result<Whereabouts, ApiError> {
        if let Some(job) = self.deletions.job(id) {
            match self.client.job(&job).await {
                Ok(job) => match job.state {
                    JobState::Succeeded(_) => return Ok(Whereabouts::Gone),
                    JobState::Pending => return Ok(Whereabouts::Going),
                    JobState::Failed(_) => {}
                },
                // Jobs are forgotten after a day.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        let mut is_there = false;
        match self.client.call(&requests::list_nics(id)).await {
            Ok(_) => is_there = true,
            Err(error) if error.code == 431 && error.text.contains("does not exist") => {
                return Ok(Whereabouts::Gone);
            }
            Err(error) if error.kind == ErrorKind::Denied && error.code == 531 => {
                return Ok(Whereabouts::Hidden(format!(
                    "virtual machine {id} is there, in an account or project that is closed to these keys ({}); move it back, give keys that reach it, or destroy and expunge it",
                    error.text
                )));
            }
            // A role without the command: then lists must do.
            Err(error) if error.kind == ErrorKind::Denied => {
                tracing::warn!(machine = id, %error, "whether it is gone cannot be asked; it counts as gone if no list shows it");
            }
            Err(error) => return Err(error),
        }
        for scope in [Scope::Own, Scope::Project(EVERY_PROJECT.to_owned())] {
            let request = requests::list_virtual_machine(id, &scope);
            let machines: Vec<VirtualMachine> = match self.client.list(&request, Lane::Action).await {
                Err(error) if error.says_there_is_no_such_id() => return Ok(Whereabouts::Gone),
                machines => machines?,
            };
            if let Some(machine) = machines.iter().find(|machine| is_alive(machine)) {
                return Ok(Whereabouts::Hidden(format!(
                    "virtual machine {} ({id}) is {} by now, where Karpenter does not look after it; move it back or destroy it",
                    machine.name,
                    machine.whose()
                )));
            }
        }
        Ok(if is_there && self.hidden.has(id) { Whereabouts::Going } else { Whereabouts::Gone })
    }
}
