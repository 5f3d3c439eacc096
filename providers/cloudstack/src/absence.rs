//! Whether a machine that no list shows is gone for certain: with it go its NodeClaim and its Node, and neither comes back.
//!
//! A list says nothing of what it leaves out. The server leaves out machines that are of another account or project by now, whether
//! asked by `id` or by `ids`; by `ids` it leaves out for administrators even what it shows by `id`; ordinary users are not shown
//! what is destroyed. What it answers for certain:
//!
//! | asked | the row is gone | not for these keys | there |
//! |---|---|---|---|
//! | the job of our own order to destroy it | succeeded | | pending for up to ten minutes, failed |
//! | `listNics` of the machine | 530, it does not exist; 431 where there never was one | 531 | its interfaces |
//!
//! What is there for these keys and in no list of theirs is destroyed, if it stays so for a minute: lists are late at times, and it
//! may have come back from where nobody saw it. A machine that a root administrator keeps from tenants' sight
//! (`displayvm=false`) is answered as one that is gone, to every question there is.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::client::error::{ApiError, ErrorKind};
use crate::client::job::JobState;
use crate::client::model::VirtualMachine;
use crate::client::request::{Request, Scope};
use crate::client::throttle::Lane;
use crate::client::{Client, requests};
use crate::instances::is_alive;
use crate::shared::Shared;
use crate::sightings::Sightings;

/// How long lists may take to show a machine, one that came back into our sight for example.
const SHOWN_WITHIN: Duration = Duration::from_secs(60);
/// How long it is remembered that a machine is gone, or that no list shows it.
const REMEMBERED: Duration = Duration::from_secs(5 * 60);
/// How long it may be since somebody asked for nobody to ask the server again.
const ASKED_LATELY: Duration = Duration::from_secs(30);
/// How long the word of a job counts that no list shows the machine of, and that has not ended: a server may lose one.
const JOB_BELIEVED: Duration = Duration::from_secs(10 * 60);
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

/// What is known of machines that no list shows. Several ask after the machine of every node that goes, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Absences(Mutex<BTreeMap<String, Absence>>);

#[derive(Debug)]
enum Absence {
    /// It was gone for certain then.
    Gone(Instant),
    /// It may be there.
    Unlisted(Spell),
}

/// From when on no list showed it, and when it was last asked after.
#[derive(Debug)]
struct Spell {
    since: Instant,
    last: Instant,
}

impl Absence {
    fn is_remembered(&self) -> bool {
        let (Self::Gone(last) | Self::Unlisted(Spell { last, .. })) = self;
        // Who asks no more has seen it, perhaps.
        last.elapsed() < REMEMBERED
    }
}

impl Absences {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Absence>> {
        let mut absences = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        absences.retain(|_, absence| absence.is_remembered());
        absences
    }

    fn is_gone(&self, id: &str) -> bool {
        matches!(self.lock().get(id), Some(Absence::Gone(_)))
    }

    fn note_gone(&self, id: &str) {
        self.lock().insert(id.to_owned(), Absence::Gone(Instant::now()));
    }

    /// For how long no list has shown it, now that none does.
    fn note_unlisted(&self, id: &str) -> Duration {
        let now = Instant::now();
        let mut absences = self.lock();
        if let Some(Absence::Unlisted(spell)) = absences.get_mut(id) {
            spell.last = now;
            return now - spell.since;
        }
        absences.insert(id.to_owned(), Absence::Unlisted(Spell { since: now, last: now }));
        Duration::ZERO
    }

    /// Whether it was not listed a moment ago, and for too short a time to tell: then asking once more says nothing new. Whoever asks
    /// has lists read, which would show it.
    fn is_still_late(&self, id: &str) -> bool {
        match self.lock().get_mut(id) {
            Some(Absence::Unlisted(spell))
                if spell.since.elapsed() < SHOWN_WITHIN && spell.last.elapsed() < ASKED_LATELY =>
            {
                spell.last = Instant::now();
                true
            }
            _ => false,
        }
    }

    fn forget(&self, id: &str) {
        self.lock().remove(id);
    }

    /// A list that was begun then shows these. What is out of sight later is so anew.
    fn are_listed(&self, machines: &[VirtualMachine], begun: Instant) {
        let mut absences = self.lock();
        for machine in machines.iter().filter(|machine| is_there(machine)) {
            // What was gone after the list was begun may have gone since.
            let stays = matches!(absences.get(&machine.id), Some(Absence::Gone(since)) if *since >= begun);
            if !stays {
                absences.remove(&machine.id);
            }
        }
    }
}

/// Whether a listed machine is there, also if it came to nothing.
fn is_there(machine: &VirtualMachine) -> bool {
    !matches!(machine.state.as_str(), "Destroyed" | "Expunging")
}

/// How much it matters that a list lacks nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Care {
    /// Whoever misses a machine in it asks for that one by its id, or looks again a while later: see [`Client::list_once`].
    Glance,
    /// What is not in it counts as not there: see [`Client::list`].
    Complete,
}

/// Lists of machines: all of them are read here, so that none goes unseen which shows what was out of sight, or since when a machine
/// stands still.
#[derive(Clone)]
pub(crate) struct MachineLists {
    client: Client,
    absences: Arc<Absences>,
    sightings: Arc<Sightings>,
}

impl MachineLists {
    pub(crate) fn new(client: Client, sightings: Arc<Sightings>) -> Self {
        Self { client, absences: Arc::default(), sightings }
    }

    pub(crate) async fn read(&self, request: &Request, care: Care) -> Result<Vec<VirtualMachine>, ApiError> {
        let begun = Instant::now();
        let machines = match care {
            Care::Glance => self.client.list_once(request, Lane::Action).await?,
            Care::Complete => self.client.list(request, Lane::Action).await?,
        };
        self.absences.are_listed(&machines, begun);
        for machine in &machines {
            self.sightings.see(machine);
        }
        Ok(machines)
    }
}

impl Shared {
    /// What became of a machine that the lists of its project or account do not show.
    ///
    /// # Errors
    ///
    /// If the server does not say.
    pub(crate) async fn whereabouts(&self, id: &str) -> Result<Whereabouts, ApiError> {
        let absences = &self.lists.absences;
        if absences.is_gone(id) {
            return Ok(Whereabouts::Gone);
        }
        let whereabouts = self.ask_for_whereabouts(id).await?;
        match whereabouts {
            Whereabouts::Gone => absences.note_gone(id),
            Whereabouts::Hidden(_) => absences.forget(id),
            Whereabouts::Going => {}
        }
        Ok(whereabouts)
    }

    async fn ask_for_whereabouts(&self, id: &str) -> Result<Whereabouts, ApiError> {
        if let Some(job) = self.deletions.job(id) {
            match self.client.job(&job).await {
                Ok(job) => match job.state {
                    JobState::Succeeded(_) => return Ok(Whereabouts::Gone),
                    JobState::Pending if self.lists.absences.note_unlisted(id) < JOB_BELIEVED => {
                        return Ok(Whereabouts::Going);
                    }
                    JobState::Pending | JobState::Failed(_) => {}
                },
                // Jobs are forgotten after a day.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        if self.lists.absences.is_still_late(id) {
            return Ok(Whereabouts::Going);
        }
        match self.client.call(&requests::list_nics(id)).await {
            Ok(_) => {}
            Err(error)
                if error.is_not_found() || error.code == 431 && error.text.contains("does not exist") =>
            {
                return Ok(Whereabouts::Gone);
            }
            Err(error) if error.kind == ErrorKind::Denied && error.code == 531 => {
                return Ok(Whereabouts::Hidden(format!(
                    "virtual machine {id} is there, in an account or project that is closed to these keys ({}); move it back, give keys that reach it, or destroy and expunge it",
                    error.text
                )));
            }
            // A role without the command, or a server that does not know it: then lists must do.
            Err(error) if error.kind == ErrorKind::Denied && matches!(error.code, 401 | 432) => {
                tracing::warn!(machine = id, %error, "whether it is gone cannot be asked; it counts as gone if no list shows it");
            }
            Err(error) => return Err(error),
        }
        for scope in [Scope::Own, Scope::Project(EVERY_PROJECT.to_owned())] {
            let request = requests::list_virtual_machine(id, &scope);
            let machines = match self.lists.read(&request, Care::Complete).await {
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
        let is_late = self.lists.absences.note_unlisted(id) < SHOWN_WITHIN;
        Ok(if is_late { Whereabouts::Going } else { Whereabouts::Gone })
    }
}
