//! How the simulated server is set up: what real ones have in their global settings, and how long things take there.

use std::time::Duration;

use crate::chance::Span;

/// Global settings, by what they do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Calls per account and window; none is no limit (`api.throttling.*`).
    pub throttle: Option<Throttle>,
    /// State-changing commands only by POST, signatures only with times (`enforce.post.requests.and.timestamps`).
    pub enforce_post: bool,
    /// Whether users may expunge (`allow.user.expunge.recover.vm`).
    pub user_may_expunge: bool,
    /// Whether users see all accounts of their domain (`allow.user.view.all.domain.accounts`).
    pub user_sees_domain_accounts: bool,
    /// Whether users see destroyed machines (`allow.user.view.destroyed.vm`).
    pub user_sees_destroyed: bool,
    /// How long destroyed machines stay (`expunge.delay`).
    pub expunge_delay: Duration,
    /// How often the server looks for those that are due (`expunge.interval`).
    pub expunge_interval: Duration,
    /// How long destroyed volumes are shown (`storage.cleanup.delay`).
    pub storage_cleanup_delay: Duration,
    /// How long jobs that ended are remembered (`job.expire.minutes`).
    pub job_expiry: Duration,
    /// Longest user data, in base64 (`vm.userdata.max.length`).
    pub user_data_max: usize,
    /// Largest page (`default.page.size`).
    pub page_size: usize,
    /// Whether the quota plug-in is there.
    pub quota_plugin: bool,
    /// Whether the server takes new work.
    pub maintenance: bool,
    /// Whether two deployments of one name may both pass the check, as they do on real servers.
    pub names_race: bool,
    /// How long things take.
    pub latencies: Latencies,
    /// Lists show what was this long ago.
    pub read_lag: Duration,
    /// So many rows come in front of a list before each further page of it is read, so that it begins with as many that were on
    /// the page before.
    pub rows_repeated: usize,
    /// Deployments whose root volume cannot be made, wherever: one zone's storage is full with [`super::CloudStack::add_storage_pool`].
    pub volumes_fail: bool,
    /// Deployments that no host manages to start.
    pub starts_fail: bool,
    /// Machines cannot be destroyed: the agent of their host does not answer.
    pub destroys_fail: bool,
}

/// A rate limit with fixed windows.
#[derive(Clone, Copy, Debug)]
pub struct Throttle {
    /// Calls.
    pub max: u64,
    /// Window.
    pub interval: Duration,
    /// Whether signed calls count twice, as in 4.23.
    pub counts_twice: bool,
}

/// How long things take.
#[derive(Clone, Copy, Debug)]
pub struct Latencies {
    /// Any answer.
    pub answer: Span,
    /// Accepting a deployment; those of one account queue.
    pub accept: Span,
    /// Finding out that there is no room.
    pub refuse: Span,
    /// Placing, before anything starts.
    pub place: Span,
    /// The first machine of a network, with its router.
    pub first_start: Span,
    /// Any other machine.
    pub start: Span,
    /// Stopping.
    pub stop: Span,
    /// Destroying.
    pub destroy: Span,
    /// Jobs that only write something down.
    pub small_job: Span,
}

impl Latencies {
    /// As measured on CloudStack 4.23 with the simulator hypervisor.
    pub const MEASURED: Self = Self {
        answer: Span::millis(20, 120),
        accept: Span::millis(700, 1500),
        refuse: Span::millis(300, 2700),
        place: Span::millis(200, 600),
        first_start: Span::millis(7_000, 15_000),
        start: Span::millis(1_500, 6_000),
        stop: Span::millis(1_000, 3_000),
        destroy: Span::millis(1_000, 5_000),
        small_job: Span::millis(100, 900),
    };
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            throttle: None,
            enforce_post: false,
            user_may_expunge: false,
            user_sees_domain_accounts: false,
            user_sees_destroyed: false,
            expunge_delay: Duration::from_secs(86_400),
            expunge_interval: Duration::from_secs(86_400),
            storage_cleanup_delay: Duration::from_secs(86_400),
            job_expiry: Duration::from_secs(86_400),
            user_data_max: 32_768,
            page_size: 500,
            quota_plugin: false,
            maintenance: false,
            names_race: true,
            latencies: Latencies::MEASURED,
            read_lag: Duration::ZERO,
            rows_repeated: 0,
            volumes_fail: false,
            starts_fail: false,
            destroys_fail: false,
        }
    }
}
