//! Who is asking, and until when: the controller on whose behalf the current task runs, for metrics that say so, and whether
//! it has been asked to stop, for reconciles that wait.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

tokio::task_local! {
    static CONTROLLER: Arc<str>;
    static STOPPING: CancellationToken;
}

/// The name of the controller whose reconcile this task is part of; empty outside of one.
///
/// A task spawned from a reconcile does not inherit it; wrap it with [`on_behalf_of`].
pub fn controller_name() -> Arc<str> {
    CONTROLLER.try_with(Arc::clone).unwrap_or_default()
}

/// Runs a future on behalf of a controller.
pub fn on_behalf_of<F: Future>(controller: Arc<str>, future: F) -> impl Future<Output = F::Output> {
    CONTROLLER.scope(controller, future)
}

/// Cancelled once the controller whose reconcile this task is part of is to stop; never outside of one.
///
/// A reconcile under way may finish, but the watches end with the signal: what waits must give up, and what it saw before
/// the wait is no ground for anything new.
pub fn stopping() -> CancellationToken {
    STOPPING.try_with(CancellationToken::clone).unwrap_or_default()
}

/// Runs a future that may ask whether it is [`stopping`].
pub fn until_stopped<F: Future>(stop: CancellationToken, future: F) -> impl Future<Output = F::Output> {
    STOPPING.scope(stop, future)
}
