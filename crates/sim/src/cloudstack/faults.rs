//! What goes wrong on the way to and from the simulated server: scripted by command, account and count, or at random as a seed
//! decides.

use std::time::Duration;

use crate::chance::{Chance, Span};

/// Something that goes wrong with requests of a command.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The command, or any.
    pub command: Option<String>,
    /// The name of the account whose keys sign them, or anybody's.
    pub account: Option<String>,
    /// How many matching requests pass first.
    pub after: u64,
    /// How many are hit then.
    pub times: u64,
    /// What happens to them.
    pub what: Trouble,
}

/// What happens to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Trouble {
    /// It never arrives, and its sender cannot know.
    DropRequest,
    /// It is carried out, and the answer is lost.
    DropResponse,
    /// Nobody listens.
    Refuse,
    /// Something on the way answers instead, in HTML; the server sees nothing.
    Proxy(u16),
    /// The answer is cut in the middle.
    Truncate,
    /// The answer comes late.
    Delay(Duration),
    /// It comes twice at the same moment, the second time under a job of its own, as from another leader: whose answer nobody here hears.
    Twice,
    /// It comes twice at the same moment under one job: both are written down, and the server gives the job to the later one only. What
    /// the other was to become stays behind and stands still.
    TwiceUnderOneJob,
    /// It is carried out, and the server dies before it answers, and is back at once.
    Restart,
    /// The server refuses with this code and text.
    Fail(u16, i64, String),
}

impl Fault {
    /// The next request of this command.
    pub fn once(command: &str, what: Trouble) -> Self {
        Self { command: Some(command.to_owned()), ..Self::of_any(1, what) }
    }

    /// So many requests of whatever command.
    pub fn of_any(times: u64, what: Trouble) -> Self {
        Self { command: None, account: None, after: 0, times, what }
    }

    /// So many requests of this command.
    pub fn times(command: &str, times: u64, what: Trouble) -> Self {
        Self { times, ..Self::once(command, what) }
    }

    /// Only those of this account.
    #[must_use]
    pub fn by(mut self, account: &str) -> Self {
        self.account = Some(account.to_owned());
        self
    }

    /// Not before so many have passed.
    #[must_use]
    pub fn after(mut self, passed: u64) -> Self {
        self.after = passed;
        self
    }
}

/// What becomes of this request; faults count down.
pub(crate) fn strike(faults: &mut [Fault], command: &str, account: &str) -> Option<Trouble> {
    let is = |wanted: &Option<String>, what: &str| wanted.as_deref().is_none_or(|wanted| wanted == what);
    let mut struck = None;
    for fault in faults.iter_mut() {
        if fault.times == 0 || !is(&fault.command, command) || !is(&fault.account, account) {
            continue;
        }
        if fault.after > 0 {
            fault.after -= 1;
        } else if struck.is_none() {
            fault.times -= 1;
            struck = Some(fault.what.clone());
        }
    }
    struck
}

/// How likely it is that something goes wrong, per request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// The request is lost.
    pub drop_request: f64,
    /// The answer is lost.
    pub drop_response: f64,
    /// Nobody listens.
    pub refuse: f64,
    /// A proxy answers in HTML.
    pub proxy: f64,
    /// The answer is cut.
    pub truncate: f64,
    /// The answer takes long.
    pub delay: f64,
    /// The server fails and does not say why.
    pub internal: f64,
    /// The server says there were too many.
    pub throttle: f64,
}

impl Rates {
    /// Each kind there or not, and more or less likely, as the seed decides.
    pub fn swarm(chance: &mut Chance) -> Self {
        let mut draw = || {
            let (exists, which) = (chance.happens(0.5), chance.below(3));
            if exists { [0.01, 0.05, 0.15][usize::try_from(which).unwrap_or(0)] } else { 0.0 }
        };
        Self {
            drop_request: draw(),
            drop_response: draw(),
            refuse: draw(),
            proxy: draw(),
            truncate: draw(),
            delay: draw(),
            internal: draw(),
            throttle: draw(),
        }
    }

    /// A bit of everything.
    pub fn mild() -> Self {
        let rate = 0.004;
        Self {
            drop_request: rate,
            drop_response: rate,
            refuse: rate,
            proxy: rate,
            truncate: rate,
            delay: rate,
            internal: rate,
            throttle: rate,
        }
    }
}

/// Things that go wrong at random.
#[derive(Clone, Debug)]
pub struct Weather {
    rates: Rates,
    chance: Chance,
}

impl Weather {
    /// At these rates, as chance has it.
    pub fn new(rates: Rates, chance: Chance) -> Self {
        Self { rates, chance }
    }

    /// What becomes of the next request.
    pub(crate) fn strike(&mut self) -> Option<Trouble> {
        let Rates { drop_request, drop_response, refuse, proxy, truncate, delay, internal, throttle } =
            self.rates;
        let hidden = "Internal error executing command, please contact your system administrator";
        let many =
            "The given user has reached his/her account api limit, please retry after [2000] ms.".to_owned();
        let status = 502 + u16::try_from(self.chance.below(3)).unwrap_or(0);
        let long = self.chance.duration(&Span::secs(1, 45));
        let kinds = [
            (drop_request, Trouble::DropRequest),
            (drop_response, Trouble::DropResponse),
            (refuse, Trouble::Refuse),
            (proxy, Trouble::Proxy(status)),
            (truncate, Trouble::Truncate),
            (delay, Trouble::Delay(long)),
            (internal, Trouble::Fail(530, 0, hidden.to_owned())),
            (throttle, Trouble::Fail(429, 4545, many)),
        ];
        // Each is drawn, whatever strikes: one rate does not shift what another draws.
        let drawn = kinds.map(|(rate, trouble)| (self.chance.happens(rate), trouble));
        drawn.into_iter().find(|(strikes, _)| *strikes).map(|(_, trouble)| trouble)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_hits_after_so_many_and_so_often() {
        let mut faults = vec![Fault::times("x", 2, Trouble::DropResponse).after(1)];
        let hits: Vec<bool> =
            ["x", "y", "x", "x", "x"].iter().map(|c| strike(&mut faults, c, "a").is_some()).collect();
        assert_eq!(hits, [false, false, true, true, false]);
    }

    #[test]
    fn a_fault_of_one_account_leaves_others_alone() {
        let mut faults = vec![Fault::of_any(2, Trouble::Refuse).by("a")];
        let hits: Vec<bool> =
            ["b", "a", "", "a", "a"].iter().map(|who| strike(&mut faults, "x", who).is_some()).collect();
        assert_eq!(hits, [false, true, false, true, false]);
    }
}
