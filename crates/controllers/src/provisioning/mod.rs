//! Provisioning: nodes for pods that have no place.
//!
//! Pods and nodes ask for a pass ([`triggers`]), a window collects who asks ([`batcher`]), a [`pass`] lets the engine decide from
//! one snapshot and what providers offer ([`offerings`]), [`records`] tells, [`claims`] creates.

mod batcher;
mod buffers;
pub(crate) mod claims;
mod leftovers;
pub(crate) mod metrics;
mod nominations;
pub(crate) mod offerings;
mod pass;
mod records;
mod triggers;
mod unanswered;
mod unmet;

use std::sync::{Arc, Mutex};

use karpenter_engine::{DrainPatience, SolveOptions};
use karpenter_runtime::controller::Controller;
use karpenter_runtime::informer::Delta;
use karpenter_runtime::program::Program;

use self::batcher::Batcher;
use self::claims::ClaimFactory;
use self::metrics::SchedulerMetrics;
pub(crate) use self::nominations::Nominations;
use self::offerings::Catalogue;
pub(crate) use self::pass::solve_options;
use self::pass::{NAME, Provisioner};
use self::records::Records;
use crate::context::Context;
use crate::sync::Sync;
use crate::watches::Watches;

/// Longer than drains take that nothing holds up.
const DRAIN_PATIENCE: DrainPatience = DrainPatience::Seconds(10 * 60);

/// What others need of provisioning; clones are handles to the same.
#[derive(Clone)]
pub(crate) struct Provisioning {
    batcher: Arc<Batcher>,
    /// What NodePools can buy.
    pub(crate) catalogue: Catalogue,
    /// Creates NodeClaims.
    pub(crate) claims: ClaimFactory,
    /// Whether decisions can be made.
    pub(crate) sync: Sync,
    /// Measures of scheduling.
    pub(crate) metrics: SchedulerMetrics,
    /// Promises nodes to pods.
    pub(crate) nominations: Nominations,
}

impl Provisioning {
    /// Asks for a pass on behalf of the object of this UID.
    pub(crate) fn trigger(&self, uid: &str) {
        self.batcher.trigger(uid);
    }

    /// Asks for a pass on nobody's behalf.
    pub(crate) fn trigger_now(&self) {
        self.batcher.trigger_now();
    }
}

pub(crate) fn register(context: &Context, watches: &mut Watches, program: &mut Program) -> Provisioning {
    let options = &context.options;
    let batcher = Arc::new(Batcher::new(options.batch_idle_duration, options.batch_max_duration));
    triggers::register(context, &batcher, watches, program);
    let metrics = SchedulerMetrics::new(&context.environment.registry);
    let provisioning = Provisioning {
        catalogue: Catalogue::new(&context.providers),
        claims: ClaimFactory::new(context, leftovers::register(context, program)),
        sync: Sync::new(context),
        metrics: metrics.clone(),
        nominations: Nominations::new(context),
        batcher: Arc::clone(&batcher),
    };
    let catalogue = provisioning.catalogue.clone();
    watches.node_pools.subscribe(move |delta| {
        if let Delta::Deleted { object } = delta {
            catalogue.forget(object.metadata.name.as_deref().unwrap_or_default());
        }
    });
    let provisioner = Provisioner {
        context: context.clone(),
        batcher,
        sync: provisioning.sync.clone(),
        catalogue: provisioning.catalogue.clone(),
        claims: provisioning.claims.clone(),
        records: Records::new(context, &metrics, &provisioning.nominations),
        metrics,
        options: Arc::new(SolveOptions { drain_patience: DRAIN_PATIENCE, ..solve_options(options) }),
        ids: Mutex::new(context.environment.entropy.stream("scheduling ids")),
    };
    context.run(program, Controller::singleton(NAME, provisioner, &context.environment));
    provisioning
}
