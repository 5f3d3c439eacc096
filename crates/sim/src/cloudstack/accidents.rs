//! What happens to a cloud on bad days: the server dies, hosts fail, limits are lowered, people stop, delete, untag and give away
//! machines, lists lag behind and repeat rows, the server's clock is set wrong, keys are revoked, orders come twice at once. Until the cloud is healed; then all of it is put right, except for what people did.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::SignedDuration;

use super::account::Role;
use super::faults::{Fault, Rates, Trouble, Weather};
use super::settings::{Settings, Throttle};
use super::{CloudStack, MachineView};
use crate::chance::{Chance, Span};
use crate::cluster::Cluster;

/// What may happen, by the numbers of [`Accidents::one`].
const KINDS: [u64; 13] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
/// Time between two accidents.
const BETWEEN: Span = Span::secs(20, 150);

/// Lets accidents happen to a cloud until it is healed.
pub struct Accidents {
    cloud: CloudStack,
    cluster: Cluster,
    chance: Chance,
    between: Span,
    /// For what is merely odd: of its own stream, so that seeds stay what they were.
    oddities: Chance,
    /// For orders that come twice: of its own stream, for the same reason.
    twins: Chance,
    /// For keys that are refused for a while: of its own stream, for the same reason.
    keys: Chance,
    keys_revoked: bool,
    /// Machines that were given to another account, with the one they are of.
    given_away: BTreeMap<String, String>,
}

impl Accidents {
    /// As the cluster's seed decides, with requests that fail at these rates.
    pub fn new(cloud: &CloudStack, cluster: &Cluster, rates: Rates) -> Self {
        let weather = Weather::new(rates, Chance::new(cluster.entropy(), "cloudstack/weather"));
        cloud.expose_to(weather);
        let chance = Chance::new(cluster.entropy(), "cloudstack/accidents");
        Self {
            cloud: cloud.clone(),
            cluster: cluster.clone(),
            chance,
            between: BETWEEN,
            oddities: Chance::new(cluster.entropy(), "cloudstack/oddities"),
            twins: Chance::new(cluster.entropy(), "cloudstack/twins"),
            keys: Chance::new(cluster.entropy(), "cloudstack/keys"),
            keys_revoked: false,
            given_away: BTreeMap::new(),
        }
    }

    /// More or less often than usual.
    #[must_use]
    pub fn every(mut self, between: Span) -> Self {
        self.between = between;
        self
    }

    /// One after the other, until [`CloudStack::heal`].
    pub async fn happen(mut self) {
        loop {
            tokio::time::sleep(self.chance.duration(&self.between)).await;
            if !self.cloud.is_exposed() {
                break;
            }
            let (what, odd, twins, keys) = (self.one(), self.oddity(), self.twins(), self.keys());
            for what in std::iter::once(what).chain(odd).chain(twins).chain(keys) {
                let what = format!("accident: {what}");
                self.cluster.record(&"cloudstack".into(), what, "happened".to_owned(), &[]);
            }
        }
        self.put_right();
    }

    fn ours(&self) -> Vec<MachineView> {
        let machines = self.cloud.live_machines();
        machines.into_iter().filter(|machine| machine.name.starts_with("karpenter-")).collect()
    }

    /// Something happens; what it was.
    fn one(&mut self) -> String {
        let machines = self.ours();
        let victim = self.chance.pick(&machines).cloned();
        let cloud = self.cloud.clone();
        let kind = self.chance.pick(&KINDS).copied().unwrap_or_default();
        match (kind, victim) {
            (0, _) => {
                cloud.restart();
                "the server restarts".to_owned()
            }
            (1, Some(machine)) => {
                cloud.stop_machine(&machine.id);
                format!("somebody stops {}", machine.name)
            }
            (2, Some(machine)) => {
                cloud.expunge_machine(&machine.id);
                format!("somebody expunges {}", machine.name)
            }
            (3, Some(machine)) => {
                let keys: Vec<String> = machine.tags.keys().cloned().collect();
                let key = self.chance.pick(&keys).cloned().unwrap_or_default();
                cloud.tag_machine(&machine.id, &key, None);
                format!("somebody removes tag {key} of {}", machine.name)
            }
            (4, _) => {
                cloud.configure(|settings| settings.maintenance = !settings.maintenance);
                "the server is under maintenance, or no longer".to_owned()
            }
            (5, _) => {
                let broken = self.chance.happens(0.4);
                cloud.break_hosts(broken);
                format!("hosts are broken: {broken}")
            }
            (6, _) => {
                let fail = self.chance.happens(0.4);
                cloud.configure(|settings| settings.volumes_fail = fail);
                format!("volumes fail: {fail}")
            }
            (7, _) => {
                let limit = if self.chance.happens(0.5) {
                    i64::try_from(machines.len()).unwrap_or(0) + 1
                } else {
                    -1
                };
                cloud.limit("user_vm", limit);
                format!("the limit is {limit} machines")
            }
            (8, _) => {
                let lag = self.chance.duration(&Span::millis(0, 8000));
                let lag = if self.chance.happens(0.5) { Duration::ZERO } else { lag };
                cloud.configure(|settings| settings.read_lag = lag);
                format!("lists lag by {lag:?}")
            }
            (9, _) => {
                let throttle = self.chance.happens(0.5).then_some(Throttle {
                    max: 25,
                    interval: Duration::from_secs(1),
                    counts_twice: true,
                });
                let told = if throttle.is_some() { "calls are limited" } else { "calls are not limited" };
                cloud.configure(|settings| settings.throttle = throttle);
                told.to_owned()
            }
            (10, Some(machine)) => {
                cloud.protect_machine(&machine.id, true);
                format!("somebody protects {}", machine.name)
            }
            (12, _) if !self.given_away.is_empty() => {
                self.give_back();
                "machines that were given away are given back".to_owned()
            }
            (12, Some(machine)) if machine.project.is_none() => {
                let others = self.cloud.account(Role::Root).map(|account| account.name);
                cloud.assign_machine(&machine.id, others.as_deref(), None);
                self.given_away.insert(machine.id, machine.account);
                format!("somebody gives {} to another account", machine.name)
            }
            _ => {
                let may = self.chance.happens(0.5);
                cloud.configure(|settings| settings.user_may_expunge = may);
                format!("users may expunge: {may}")
            }
        }
    }

    /// Nothing breaks, and yet it is not as anybody expects; what it was, if it was anything.
    fn oddity(&mut self) -> Option<String> {
        let machines = self.ours();
        let (chance, cloud) = (&mut self.oddities, &self.cloud);
        if !chance.happens(0.5) {
            return None;
        }
        Some(match chance.below(3) {
            0 => {
                // Keys that sign for ten minutes are refused by a clock that is further ahead.
                let minutes = i64::try_from(chance.between(0, 18)).unwrap_or(0) - 9;
                cloud.set_clock_ahead(SignedDuration::from_mins(minutes));
                format!("the server's clock is {minutes} min ahead")
            }
            1 => {
                // Of many machines not so few that nothing else can be asked.
                let few = 3.max(machines.len() / 3);
                let size = if chance.happens(0.5) { 500 } else { few };
                let repeated = usize::try_from(chance.below(3)).unwrap_or(0);
                cloud.configure(|settings| (settings.page_size, settings.rows_repeated) = (size, repeated));
                format!("pages have {size} rows and repeat {repeated}")
            }
            _ => {
                let account = &chance.pick(&machines)?.account;
                let times = chance.between(1, 30);
                let fails = Trouble::Fail(530, 0, "the database is locked".to_owned());
                cloud.inject(Fault::of_any(times, fails).by(account));
                format!("the next {times} requests of account {account} fail")
            }
        })
    }

    /// Somebody else leads too, for a moment, or something on the way repeats what it was sent: the next orders are taken twice, as real
    /// servers take them.
    fn twins(&mut self) -> Option<String> {
        if !self.twins.happens(0.3) {
            return None;
        }
        let times = self.twins.between(1, 2);
        self.cloud.inject(Fault::times("deployVirtualMachine", times, Trouble::Twice));
        Some(format!("the next {times} orders come twice"))
    }

    /// Somebody revokes the tenant's keys, and makes that good at the next occasion.
    fn keys(&mut self) -> Option<String> {
        let revoke = self.keys.happens(0.05) && !self.keys_revoked;
        if revoke == self.keys_revoked {
            return None;
        }
        self.keys_revoked = revoke;
        self.cloud.revoke_keys(revoke);
        Some(if revoke { "the keys are revoked" } else { "the keys are taken again" }.to_owned())
    }

    fn give_back(&mut self) {
        for (id, account) in std::mem::take(&mut self.given_away) {
            self.cloud.assign_machine(&id, Some(&account), None);
        }
    }

    fn put_right(&mut self) {
        self.give_back();
        self.cloud.revoke_keys(false);
        self.cloud.break_hosts(false);
        self.cloud.limit("user_vm", -1);
        self.cloud.set_clock_ahead(SignedDuration::ZERO);
        self.cloud.configure(|settings| {
            let Settings { page_size, rows_repeated, .. } = Settings::default();
            (settings.page_size, settings.rows_repeated) = (page_size, rows_repeated);
            settings.maintenance = false;
            settings.volumes_fail = false;
            settings.read_lag = Duration::ZERO;
            settings.throttle = None;
        });
        for machine in self.cloud.machines() {
            self.cloud.protect_machine(&machine.id, false);
        }
        self.cluster.record(
            &"cloudstack".into(),
            "everything is put right".to_owned(),
            "done".to_owned(),
            &[],
        );
    }
}
