//! Asks after machines by their own ids, many with one call.
//!
//! Only a machine's own id says that it is not there, and when nodes go, many want to know that at the same time. Those who ask
//! while others do are asked for together. One id the server never knew spoils the answer for all, and is named by it: the others are
//! asked for once more without it. Nothing is certain of a machine that is left out: see [`crate::absence`].

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use crate::absence::{Care, MachineLists};
use crate::client::error::ApiError;
use crate::client::model::VirtualMachine;
use crate::client::request::Scope;
use crate::client::requests;

/// How long others are waited for.
const COLLECT: Duration = Duration::from_millis(250);
/// As many as a request by GET has room for.
const MOST: usize = 100;

type Answer = Result<Option<VirtualMachine>, ApiError>;
type Asking = Vec<(String, oneshot::Sender<Answer>)>;

/// Who asks after which machines.
pub(crate) struct Lookups {
    lists: MachineLists,
    asking: Mutex<BTreeMap<Scope, Asking>>,
    /// One call at a time; whoever waits for it is asked for by whoever is before.
    turn: tokio::sync::Mutex<()>,
}

impl Lookups {
    pub(crate) fn new(lists: MachineLists) -> Self {
        Self { lists, asking: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }

    fn asking(&self) -> MutexGuard<'_, BTreeMap<Scope, Asking>> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The machine of an id, if the server says that there is one.
    pub(crate) async fn find(&self, id: &str, scope: &Scope) -> Answer {
        'again: loop {
            let (tell, mut told) = oneshot::channel();
            self.asking().entry(scope.clone()).or_default().push((id.to_owned(), tell));
            let _turn = self.turn.lock().await;
            let mut waited = false;
            loop {
                match told.try_recv() {
                    Ok(answer) => return answer,
                    // Whoever asked for us was dropped on the way.
                    Err(TryRecvError::Closed) => continue 'again,
                    Err(TryRecvError::Empty) => {}
                }
                if !std::mem::replace(&mut waited, true) {
                    tokio::time::sleep(COLLECT).await;
                }
                self.ask(scope).await;
            }
        }
    }

    /// Asks for those who wait, as many as one call takes, and tells them.
    async fn ask(&self, scope: &Scope) {
        let mut asking: Asking = {
            let mut all = self.asking();
            let Some(of_scope) = all.get_mut(scope) else { return };
            // Those that were dropped while they waited want no answer.
            of_scope.retain(|(_, tell)| !tell.is_closed());
            let some = of_scope.drain(..of_scope.len().min(MOST)).collect();
            if of_scope.is_empty() {
                all.remove(scope);
            }
            some
        };
        loop {
            let mut ids: Vec<String> = asking.iter().map(|(id, _)| id.clone()).collect();
            ids.sort();
            ids.dedup();
            if ids.len() <= 1 {
                break;
            }
            let request = requests::list_virtual_machines_by_id(&ids, scope);
            match self.lists.read(&request, Care::Glance).await {
                Ok(machines) => {
                    for (id, tell) in asking {
                        let machine = machines.iter().find(|machine| machine.id == id).cloned();
                        // Who is gone wants no answer.
                        let _ = tell.send(Ok(machine));
                    }
                    return;
                }
                // The server names the first it never knew. Without that one it answers for the others.
                Err(error) if error.is_not_found() => match unknown_among(&ids, &error) {
                    Some(unknown) => {
                        let (of_it, others): (Asking, Asking) =
                            asking.into_iter().partition(|(id, _)| *id == unknown);
                        for (_, tell) in of_it {
                            let _ = tell.send(Ok(None));
                        }
                        asking = others;
                    }
                    None => break,
                },
                Err(error) => {
                    for (_, tell) in asking {
                        let _ = tell.send(Err(error.clone()));
                    }
                    return;
                }
            }
        }
        for (id, tell) in asking {
            let request = requests::list_virtual_machine(&id, scope);
            let answer = match self.lists.read(&request, Care::Glance).await {
                Ok(machines) => Ok(machines.into_iter().next()),
                Err(error) if error.says_there_is_no_such_id() => Ok(None),
                Err(error) => Err(error),
            };
            let _ = tell.send(answer);
        }
    }
}

/// Which of these ids the server says it does not know; none where something else is unknown to it, such as a project.
fn unknown_among(ids: &[String], error: &ApiError) -> Option<String> {
    let (_, rest) = error.text.split_once("parameter ids value=")?;
    ids.iter().find(|id| rest.starts_with(id.as_str())).cloned()
}
