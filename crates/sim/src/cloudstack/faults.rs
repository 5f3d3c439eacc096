//! What goes wrong on the way to and from the simulated server, scripted by command and count.

use std::time::Duration;

/// Something that goes wrong with requests of a command.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The command, or any.
    pub command: Option<String>,
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
    /// The server refuses with this code and text.
    Fail(u16, i64, String),
}

impl Fault {
    /// The next request of this command.
    pub fn once(command: &str, what: Trouble) -> Self {
        Self { command: Some(command.to_owned()), after: 0, times: 1, what }
    }

    /// So many requests of this command.
    pub fn times(command: &str, times: u64, what: Trouble) -> Self {
        Self { times, ..Self::once(command, what) }
    }

    /// Not before so many have passed.
    #[must_use]
    pub fn after(mut self, passed: u64) -> Self {
        self.after = passed;
        self
    }
}

/// What becomes of this request; faults count down.
pub(crate) fn strike(faults: &mut [Fault], command: &str) -> Option<Trouble> {
    let mut struck = None;
    for fault in faults.iter_mut() {
        if fault.times == 0 || fault.command.as_deref().is_some_and(|wanted| wanted != command) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_hits_after_so_many_and_so_often() {
        let mut faults = vec![Fault::times("x", 2, Trouble::DropResponse).after(1)];
        let hits: Vec<bool> =
            ["x", "y", "x", "x", "x"].iter().map(|c| strike(&mut faults, c).is_some()).collect();
        assert_eq!(hits, [false, false, true, true, false]);
    }
}
