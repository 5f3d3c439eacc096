//! What befell the runs, counted from their tapes: it shows that a range of seeds was no walk in fair weather, and that pods of
//! every kind of workload had to move.

use std::collections::BTreeMap;
use std::fmt;

/// Names, and what a line of the tape has in it when it happened.
const HAPPENINGS: &[(&str, &[&str])] = &[
    ("latency", &["fault Latency on "]),
    ("409", &["fault Conflict on "]),
    ("429", &["fault TooManyRequests on "]),
    ("500", &["fault InternalError on "]),
    ("504", &["fault GatewayTimeout on "]),
    ("lost-reply", &["fault LostReply on "]),
    ("outage", &["fault Outage on "]),
    ("watch-drop", &["fault WatchDrop on "]),
    ("stale-watch", &["fault StaleWatch on "]),
    ("410", &["fault Gone on "]),
    ("duplicate-event", &["fault DuplicateEvent on "]),
    ("killed", &["process ", " is killed "]),
    ("stopped", &["process ", " stops "]),
    ("lease-lost", &["process ", " loses the lease "]),
    ("clock-leap", &["process ", " is told that it is "]),
    ("cloud-no-capacity", &["cloud: launch refused -> no capacity"]),
    ("cloud-refused", &["cloud: call failed -> "]),
    ("cloud-lost-reply", &["cloud: answer lost -> "]),
    ("cloud-slow", &["cloud: a call is slow "]),
    ("cloud-vanished", &["cloud: i-", " vanishes "]),
    ("cloud-stillborn", &["cloud: launch i-", " -> stillborn"]),
    ("cloud-never-ready", &["cloud: boot i-", " -> running, and never ready"]),
    ("cloud-list-lags", &["cloud: a list lags "]),
    ("cloud-list-forgets", &["cloud: a list forgets "]),
    ("machines-adopted", &["census: NodeClaim ", " was adopted"]),
    ("machine-sets-scaled", &["karpenter", "/machinesets/alone/scale"]),
    ("machines-hooked", &["somebody: HookMachine"]),
    ("infrastructure-stuck", &["somebody: StickInfrastructure"]),
    ("evictions-forbidden", &["somebody: ForbidEvictions"]),
    ("old-version-gone", &["somebody: StopServingTheOldVersion"]),
    ("hub-refused", &["somebody: RefuseKarpenter"]),
    ("creation-refused", &["somebody: RefuseCreation"]),
    ("held-up-for-long", &["somebody: takes "]),
    ("updated-in-place", &["somebody: UpdateInPlace"]),
    ("informers-lag", &["informers: the watch of ", "lags by up to"]),
    ("marks-unseen", &["informers: MachineSet ", " has not heard of a mark"]),
    ("set-back-by-topology", &["topology-controller: PATCH"]),
    ("evicted-deployment", &["/pods/app-", "/eviction? -> 201"]),
    ("evicted-statefulset", &["/pods/db-", "/eviction? -> 201"]),
    ("evicted-job", &["/pods/job-", "/eviction? -> 201"]),
    ("evicted-daemonset", &["/pods/agent-", "/eviction? -> 201"]),
];

/// How often everything happened.
#[derive(Default)]
pub(super) struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    /// Adds a run.
    pub(super) fn add(&mut self, tape: &str) {
        for line in tape.lines() {
            for (name, signs) in HAPPENINGS {
                if signs.iter().all(|sign| line.contains(sign)) {
                    *self.0.entry(name).or_default() += 1;
                }
            }
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |(name, _): &(&'static str, _)| {
            format!("{name}={}", self.0.get(name).copied().unwrap_or_default())
        };
        f.write_str(&HAPPENINGS.iter().map(one).collect::<Vec<_>>().join(" "))
    }
}
