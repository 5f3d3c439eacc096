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
//! What is there for these keys and in no list of theirs is destroyed, if it stays so for a minute: lists are late at times, and it
//! may have come back from where nobody saw it. A machine that a root administrator keeps from tenants' sight
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

/// How long lists may take to show a machine, one that came back into our sight for example.
const SHOWN_WITHIN: Duration = Duration::from_secs(60);
/// How long it is remembered that a machine is gone, or that no list shows it.
const REMEMBERED: Duration = Duration::from_secs(5 * 60);
/// All projects the caller is in, and nothing else.
const EVERY_PROJECT: &str = "-1";

/// What became of a machine that is not where it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    /// It is gone, or destroyed and waits for the server to remove it.
    Gone,
    /// It is being destroyed, or lists are late to show it.
    Going,
    /// It is there, out of our sight: what to do about it.
    Hidden(String),
}

/// Machines that were gone for certain a moment ago. Several ask after the machine of every node that goes, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Gone(Mutex<BTreeMap<String, Instant>>);

impl Gone {
    fn has(&self, id: &str) -> bool {
        let gone = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gone.get(id).is_some_and(|since| since.elapsed() < REMEMBERED)
    }

    fn note(&self, id: &str) {
        let mut gone = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gone.retain(|_, since| since.elapsed() < REMEMBERED);
        gone.insert(id.to_owned(), Instant::now());
    }
}

/// Machines that no list shows and that may be there.
#[derive(Debug, Default)]
pub(crate) struct Unlisted(Mutex<BTreeMap<String, Spell>>);

/// From when on it was so, and when it was last.
#[derive(Debug)]
struct Spell {
    since: Instant,
    last: Instant,
}

impl Unlisted {
    /// For how long it has been so, now that it is.
    fn note(&self, id: &str) -> Duration {
        let now = Instant::now();
        let mut spells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Who asks no more has seen it, perhaps.
        spells.retain(|_, spell| spell.last.elapsed() < REMEMBERED);
        let spell = spells.entry(id.to_owned()).or_insert(Spell { since: now, last: now });
        spell.last = now;
        now - spell.since
    }

    fn forget(&self, id: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
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
            Whereabouts::Hidden(_) => self.unlisted.forget(id),
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
        match self.client.call(&requests::list_nics(id)).await {
            Ok(_) => {}
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
        let is_late = self.unlisted.note(id) < SHOWN_WITHIN;
        Ok(if is_late { Whereabouts::Going } else { Whereabouts::Gone })
    }
}
