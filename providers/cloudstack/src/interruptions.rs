//! What is about to take a machine away, told early enough that its pods can leave first.
//!
//! CloudStack has no market that takes machines back. But a lease ends on a day that is known; and machines that are cheap because
//! they may be taken, those sold as spot, are taken when their host goes into maintenance, when the server moves them,
//! and when somebody stops them. Others are moved by CloudStack, or started again.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use karpenter_api::{NodeClaim, labels as well_known};
use kube::ResourceExt as _;

use crate::client::error::{ApiError, ErrorKind};
use crate::client::host::Host;
use crate::client::model::{Event, VirtualMachine, time};
use crate::client::request::Scope;
use crate::client::{decoded, requests};
use crate::provider::CloudStackProvider;

/// How long before its lease ends a machine is replaced.
const BEFORE_LEASE_ENDS: Duration = Duration::from_secs(30 * 60);
/// How old an event may be to be about what goes on now.
const RECENT: Duration = Duration::from_secs(10 * 60);
/// States of hosts that are being emptied.
const EMPTIED: [&str; 4] = [
    "PrepareForMaintenance",
    "PrepareForMaintenanceWithErrors",
    "Maintenance",
    "ErrorInPrepareForMaintenance",
];

/// What events tell of machines, by id; nothing at all once it turned out that nobody may ask.
#[derive(Debug)]
pub(crate) struct Taken(Mutex<Option<BTreeMap<String, (&'static str, &'static str)>>>);

impl Default for Taken {
    fn default() -> Self {
        Self(Mutex::new(Some(BTreeMap::new())))
    }
}

impl Taken {
    /// The keys are of another account, which may be allowed to ask.
    pub(crate) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(BTreeMap::new());
    }
}

/// Whether the role may not use the command at all. Whatever else is denied, perhaps by a proxy on the way, may pass.
fn is_not_for_this_role(error: &ApiError) -> bool {
    error.kind == ErrorKind::Denied && error.code == 432
}

fn is_spot(claim: &NodeClaim) -> bool {
    claim.labels().get(well_known::CAPACITY_TYPE).is_some_and(|kind| kind == well_known::CAPACITY_TYPE_SPOT)
}

/// The events of an answer. One that cannot be read hides no other.
fn read(rows: serde_json::Value) -> Vec<Event> {
    let serde_json::Value::Array(rows) = rows else { return Vec::new() };
    let event = |row| match decoded::<Event>("listEvents", row) {
        Ok(event) => Some(event),
        Err(error) => {
            // It stays odd for as long as it is listed.
            tracing::debug!(%error, "an event is left out");
            None
        }
    };
    rows.into_iter().filter_map(event).collect()
}

impl CloudStackProvider {
    /// Asks what happened to machines, if any was sold as one that may be taken.
    pub(crate) async fn look_at_events<'a>(
        &self,
        scopes: &[Scope],
        mut claims: impl Iterator<Item = &'a NodeClaim>,
    ) {
        let shared = &self.shared;
        let lock = || shared.taken.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lock().is_none() || !claims.any(is_spot) {
            return;
        }
        let mut taken = BTreeMap::new();
        for scope in scopes {
            for (kind, reason, what) in [
                ("VM.STOP", "SpotStopped", "was stopped"),
                ("VM.MIGRATE", "SpotMoved", "is being moved to another host, or was a moment ago"),
            ] {
                match shared.client.call(&requests::list_events(kind, scope)).await {
                    Ok(answer) => {
                        let events = read(answer["event"].clone());
                        for id in self.affected(&events) {
                            taken.insert(id, (reason, what));
                        }
                    }
                    // Who was taken out of a project is told the same of all commands in it.
                    Err(error) if is_not_for_this_role(&error) && matches!(scope, Scope::Project(_)) => {
                        tracing::debug!(%error, "events of a project cannot be looked at");
                        break;
                    }
                    Err(error) if is_not_for_this_role(&error) => {
                        tracing::info!(%error, "machines sold as spot are replaced without a look at events");
                        *lock() = None;
                        return;
                    }
                    Err(error) => tracing::debug!(%error, "events cannot be looked at"),
                }
            }
        }
        *lock() = Some(taken);
    }

    /// The machines of which the newest event says that they go now, or were moved: that takes less time than passes between two
    /// looks, and what was sold as one that may be taken is not wanted where it was. One that could not be moved stays.
    fn affected(&self, events: &[Event]) -> Vec<String> {
        let mut newest: BTreeMap<&str, &Event> = BTreeMap::new();
        for event in events {
            newest.entry(&event.resourceid).or_insert(event);
        }
        let goes = |event: &Event| {
            let fresh = time(&event.created).is_some_and(|at| self.shared.age(at) <= RECENT);
            fresh && event.level != "ERROR"
        };
        newest.into_iter().filter(|(_, event)| goes(event)).map(|(id, _)| id.to_owned()).collect()
    }

    /// Has the machine replaced if it will not stay: its NodeClaim goes, and the core lets its pods leave first. Whether it does.
    pub(crate) async fn leaves_before_interruption(
        &self,
        machine: &VirtualMachine,
        claim: &NodeClaim,
    ) -> bool {
        let Some((reason, why)) = self.interruption(machine, claim).await else { return false };
        self.shared.voice.give_up(claim, reason, &why).await;
        true
    }

    async fn interruption(
        &self,
        machine: &VirtualMachine,
        claim: &NodeClaim,
    ) -> Option<(&'static str, String)> {
        if let Some(ends) = time(&machine.leaseexpirydate)
            // A clock that leapt ahead is doubted: a lease that ends by the leap alone has not ended.
            && ends.duration_since(self.shared.clock.undoubted_now())
                <= jiff::SignedDuration::try_from(BEFORE_LEASE_ENDS).ok()?
        {
            return Some((
                "LeaseEnds",
                format!("the lease of virtual machine {} ends at {ends}; it is replaced", machine.name),
            ));
        }
        if !is_spot(claim) {
            return None;
        }
        let taken = self.shared.taken.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((reason, what)) = taken.and_then(|taken| taken.get(&machine.id).copied())
            // Stopped a while ago, it may have been started again.
            && (machine.state == "Stopped" || reason != "SpotStopped")
        {
            return Some((reason, format!("virtual machine {} {what}; it is replaced", machine.name)));
        }
        if machine.hostid.is_empty() {
            return None;
        }
        let hosts = self.shared.catalogue.hosts(&machine.zoneid).await?;
        let leaves =
            |host: &&Host| host.id == machine.hostid && EMPTIED.contains(&host.resourcestate.as_str());
        hosts.iter().find(leaves).map(|host| {
            (
                "HostMaintenance",
                format!(
                    "the host of virtual machine {} is in state {}; it is replaced",
                    machine.name, host.resourcestate
                ),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::SignedDuration;
    use karpenter_runtime::clock::{Clock as _, DOUBT, TokioClock, WallClock};
    use karpenter_runtime::environment::Environment;
    use serde_json::json;

    use super::*;
    use crate::client::Client;
    use crate::client::throttle::Rate;
    use crate::credentials::no_session;
    use crate::nodeclass::CloudStackNodeClass;
    use crate::{Objects, ProviderOptions};

    /// A cluster of which nothing is known.
    struct Unknown;

    impl Objects for Unknown {
        fn node_class(&self, _: &str) -> Option<Arc<CloudStackNodeClass>> {
            None
        }

        fn node_classes(&self) -> Option<Vec<Arc<CloudStackNodeClass>>> {
            None
        }

        fn node_claims(&self) -> Option<Vec<Arc<NodeClaim>>> {
            None
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_leap_of_the_clock_ends_no_lease() {
        let machine_clock = TokioClock::starting_at("2026-01-02T03:00:00Z".parse().expect("a time"));
        let read = machine_clock.clone();
        let environment = Environment {
            clock: Arc::new(WallClock::reading(move || read.now())),
            ..Environment::seeded(machine_clock.now(), 1)
        };
        let client = Client::new(no_session("no cloud".into()), Rate::default(), &environment);
        let options = ProviderOptions::new("test");
        let provider = CloudStackProvider::new(client, options, Arc::new(Unknown), &environment);
        let machine = VirtualMachine {
            leaseexpirydate: "2026-01-02T05:00:00+0000".into(),
            ..VirtualMachine::default()
        };
        let ends = async || provider.interruption(&machine, &NodeClaim::default()).await.map(|(why, _)| why);
        assert_eq!(ends().await, None, "there are two hours yet");
        machine_clock.step(SignedDuration::from_hours(8));
        assert_eq!(ends().await, None, "the clock is doubted");
        machine_clock.step(SignedDuration::from_hours(-8));
        tokio::time::sleep(DOUBT).await;
        assert_eq!(ends().await, None, "it was set right");
        tokio::time::sleep(Duration::from_secs(91 * 60)).await;
        assert_eq!(ends().await, Some("LeaseEnds"), "less than half an hour is left");
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_is_recent_whatever_the_servers_clock_says() {
        let environment = Environment::seeded("2026-01-02T03:00:00Z".parse().expect("a time"), 1);
        let client = Client::new(no_session("no cloud".into()), Rate::default(), &environment);
        let options = ProviderOptions::new("test");
        let provider = CloudStackProvider::new(client, options, Arc::new(Unknown), &environment);
        let stopped = |created: &str| {
            let events = read(json!([{"resourceid": "1", "state": "Completed", "created": created}]));
            !provider.affected(&events).is_empty()
        };
        assert!(stopped("2026-01-02T02:55:00+0000") && !stopped("2026-01-02T02:45:00+0000"));
        assert!(stopped("2026-01-02T03:09:00+0000"), "a server that is ahead");
        provider.shared.server_is_behind_by_at_least(SignedDuration::from_mins(10));
        assert!(stopped("2026-01-02T02:45:00+0000"), "a server that is behind");
    }

    #[test]
    fn what_was_moved_a_moment_ago_goes_and_what_could_not_be_moved_stays() {
        let environment = Environment::seeded("2026-01-02T03:00:00Z".parse().expect("a time"), 1);
        let client = Client::new(no_session("no cloud".into()), Rate::default(), &environment);
        let options = ProviderOptions::new("test");
        let provider = CloudStackProvider::new(client, options, Arc::new(Unknown), &environment);
        let created = "2026-01-02T02:55:00+0000";
        // The newest first.
        let events = read(json!([
            {"resourceid": "moved", "state": "Completed", "level": "INFO", "created": created},
            {"resourceid": "moved", "state": "Started", "level": "INFO", "created": created},
            {"resourceid": "failed", "state": "Completed", "level": "ERROR", "created": created},
            {"resourceid": "failed", "state": "Started", "level": "INFO", "created": created},
            {"resourceid": "long ago", "state": "Completed", "level": "INFO", "created": "2026-01-02T02:40:00+0000"},
        ]));
        assert_eq!(provider.affected(&events), ["moved"]);
    }

    #[test]
    fn one_odd_event_hides_no_other() {
        let events = read(json!([
            {"resourceid": "1", "state": "Completed"},
            {"resourceid": {"odd": true}},
            "odder",
            {"resourceid": 2, "created": null},
        ]));
        let of: Vec<&str> = events.iter().map(|event| event.resourceid.as_str()).collect();
        assert_eq!(of, ["1", "2"]);
        assert!(read(json!({"odd": []})).is_empty() && read(json!(null)).is_empty());
    }
}
