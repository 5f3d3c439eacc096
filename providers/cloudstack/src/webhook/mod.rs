//! The admission webhook: refuses NodeClasses that make no sense, and warns of names that lead nowhere, before they are stored.
//! Off unless a port is given. It runs on every replica, whether it leads or not, and nothing depends on it: what it would have
//! refused is told by conditions otherwise.
//!
//! | Module | What it is |
//! |---|---|
//! | `review` | what is asked, and the answers. Pure |
//! | `server` | HTTPS |
//! | `keeper` | the Secret with the certificate, and whom the API server is to trust |
//! | `certificate` | X.509 |

mod certificate;
mod keeper;
mod review;
mod server;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use karpenter_runtime::clock::SharedClock;
use karpenter_runtime::http;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use keeper::Keeper;
pub(crate) use server::Doubts;
use server::Reviewer;

/// How long to wait for a port that somebody else has.
const PORT_TAKEN: Duration = Duration::from_secs(30);

/// Where the webhook is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookOptions {
    /// The port it listens on.
    pub port: u16,
    /// Karpenter's own namespace.
    pub namespace: String,
    /// The name of its Service, its Secret and its two configurations.
    pub name: String,
}

impl WebhookOptions {
    /// The host the API server calls it by.
    fn host(&self) -> String {
        format!("{}.{}.svc", self.name, self.namespace)
    }
}

impl fmt::Display for WebhookOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Serves until stopped.
pub(crate) async fn run(
    options: WebhookOptions,
    client: kube::Client,
    clock: SharedClock,
    max_user_data: usize,
    doubts: Doubts,
    stop: CancellationToken,
) {
    let port = options.port;
    let (sender, current) = watch::channel(None);
    let keeper = Keeper::new(options, &client, clock);
    let reviewer = Arc::new(Reviewer { max_user_data, doubts });
    let serve = async {
        // Nothing depends on the webhook, so Karpenter does not end for the want of a port.
        let listener = loop {
            match http::bind(port, "CLOUDSTACK_WEBHOOK_PORT").await {
                Ok(listener) => break listener,
                Err(error) => tracing::error!(%error, "there is no admission webhook"),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PORT_TAKEN) => {}
            }
        };
        server::serve(listener, current, reviewer, stop.clone()).await;
    };
    tokio::join!(keeper.follow(sender, stop.clone()), serve);
}
