//! Who is asking: the controller on whose behalf the current task runs, for metrics that say so.

use std::sync::Arc;

tokio::task_local! {
    static CONTROLLER: Arc<str>;
}

/// The name of the controller whose reconcile this task is part of; empty outside of one.
///
/// A task spawned from a reconcile does not inherit it; wrap it with [`on_behalf_of`].
pub fn controller_name() -> Arc<str> {
    CONTROLLER.try_with(Arc::clone).unwrap_or_default()
}

/// Runs a future on behalf of a controller.
pub async fn on_behalf_of<F: Future>(controller: Arc<str>, future: F) -> F::Output {
    CONTROLLER.scope(controller, future).await
}
