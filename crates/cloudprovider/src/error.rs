//! What can go wrong at a provider. The core acts on the kind of an error, so providers choose it with care: what is not
//! known to be one of these is [`ProviderError::Other`], which is always retried and never leads to a deletion.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

type BoxError = Box<dyn Error + Send + Sync>;

/// Longest message of a condition or event, in bytes.
const MAX_MESSAGE: usize = 1024;

/// Why a provider could not do what was asked. The texts are Go Karpenter's.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ProviderError {
    /// The instance does not exist (any more).
    ///
    /// On delete: the NodeClaim's finalizer goes. On get of a node that is not ready: the node goes without a drain. On drift:
    /// ignored. Return it only when the cloud *said* so; an answer that is merely empty is [`Other`](Self::Other).
    #[error("nodeclaim not found, {0}")]
    NodeClaimNotFound(#[source] Cause),
    /// Nothing the NodeClaim allows can be had at the moment.
    ///
    /// On create: the NodeClaim is deleted and its pods are told; the next pass schedules them anew.
    #[error("insufficient capacity, {0}")]
    InsufficientCapacity(#[source] Cause),
    /// The NodeClass is not ready to launch from.
    ///
    /// On create: the NodeClaim is deleted.
    #[error("NodeClassRef not ready, {0}")]
    NodeClassNotReady(#[source] Cause),
    /// The launch failed in a way worth naming.
    ///
    /// On create: the condition `Launched` stays unknown with this reason and message, and the launch is retried.
    #[error("creating nodeclaim, {cause}")]
    Create {
        /// What happened.
        #[source]
        cause: Cause,
        /// Reason of the condition.
        condition_reason: String,
        /// Message of the condition.
        condition_message: String,
    },
    /// This provider cannot reboot. The reboot fails at once.
    #[error("reboot is not implemented by this cloud provider")]
    RebootNotImplemented,
    /// The reboot was refused in a way trying again cannot mend. The reboot fails at once.
    #[error("{0}")]
    RebootFailed(#[source] Cause),
    /// Overlays have not been applied to this NodePool's instance types yet. The NodePool is left out of this pass.
    #[error("nodepool {0:?} is awaiting evaluation")]
    UnevaluatedNodePool(String),
    /// The provider did not answer in time. While instance types are gathered this ends the whole pass: deciding without a
    /// NodePool that is merely slow would put its pods elsewhere.
    #[error("{method} of provider {provider} gave no answer within {}s", limit.as_secs())]
    Timeout {
        /// Which provider.
        provider: String,
        /// What was asked.
        method: &'static str,
        /// How long it was given.
        limit: Duration,
    },
    /// Anything else: retried. While instance types are gathered the NodePool is left out of this pass.
    #[error("{0}")]
    Other(#[source] Cause),
}

/// What the core does about a failed launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaunchFailure {
    /// Delete the NodeClaim; its pods are scheduled anew.
    GiveUp {
        /// The `reason` the disruption is counted under.
        counted_as: &'static str,
        /// Whether NodeClaim and pods are told by an event.
        told: bool,
    },
    /// Set `Launched` to unknown with this reason and message, and try again.
    Retry {
        /// Reason of the condition.
        reason: String,
        /// Message of the condition, cut to what fits.
        message: String,
    },
}

impl ProviderError {
    /// See [`ProviderError::NodeClaimNotFound`].
    pub fn not_found(cause: impl Into<BoxError>) -> Self {
        Self::NodeClaimNotFound(Cause::new(cause))
    }

    /// See [`ProviderError::InsufficientCapacity`].
    pub fn insufficient_capacity(cause: impl Into<BoxError>) -> Self {
        Self::InsufficientCapacity(Cause::new(cause))
    }

    /// See [`ProviderError::NodeClassNotReady`].
    pub fn node_class_not_ready(cause: impl Into<BoxError>) -> Self {
        Self::NodeClassNotReady(Cause::new(cause))
    }

    /// See [`ProviderError::Create`].
    pub fn create(cause: impl Into<BoxError>, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Create {
            cause: Cause::new(cause),
            condition_reason: reason.into(),
            condition_message: message.into(),
        }
    }

    /// See [`ProviderError::Other`].
    pub fn other(cause: impl Into<BoxError>) -> Self {
        Self::Other(Cause::new(cause))
    }

    /// Whether the instance is known not to exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NodeClaimNotFound(_))
    }

    /// The `error` label of `karpenter_cloudprovider_errors_total`.
    pub fn metric_label(&self) -> &'static str {
        match self {
            Self::InsufficientCapacity(_) => "InsufficientCapacityError",
            Self::NodeClaimNotFound(_) => "NodeClaimNotFoundError",
            Self::NodeClassNotReady(_) => "NodeClassNotReadyError",
            _ => "unknown",
        }
    }

    /// What follows when [`create`](crate::CloudProvider::create) gives this error (rules L1.13–L1.15).
    pub fn launch_failure(&self) -> LaunchFailure {
        match self {
            Self::InsufficientCapacity(_) => {
                LaunchFailure::GiveUp { counted_as: "insufficient_capacity", told: true }
            }
            Self::NodeClassNotReady(_) => {
                LaunchFailure::GiveUp { counted_as: "nodeclass_not_ready", told: false }
            }
            Self::Create { condition_reason, condition_message, .. } => LaunchFailure::Retry {
                reason: condition_reason.clone(),
                message: truncated(condition_message.clone()),
            },
            other => LaunchFailure::Retry {
                reason: "LaunchFailed".to_owned(),
                message: truncated(other.to_string()),
            },
        }
    }

    /// Whether a reboot that gave this error is over.
    pub fn is_reboot_over(&self) -> bool {
        matches!(self, Self::RebootNotImplemented | Self::RebootFailed(_) | Self::NodeClaimNotFound(_))
    }
}

/// At most 1024 bytes, the end replaced by `...` if there were more; never cut inside a character.
pub fn truncated(mut message: String) -> String {
    if message.len() > MAX_MESSAGE {
        let cut = message.floor_char_boundary(MAX_MESSAGE - 3);
        message.truncate(cut);
        message.push_str("...");
    }
    message
}

/// What lies behind an error: any error, or a text.
#[derive(Clone, Debug)]
pub struct Cause(Arc<dyn Error + Send + Sync>);

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

impl Cause {
    /// Of an error or a text.
    pub fn new(error: impl Into<BoxError>) -> Self {
        Self(Arc::from(error.into()))
    }
}

#[cfg(test)]
mod tests {
    use karpenter_runtime::error::{Field, ReconcileError, Structured};
    use karpenter_runtime::object_key::ObjectKey;

    use super::*;

    #[test]
    fn texts_and_metric_labels_are_gos() {
        for (error, text, label) in [
            (ProviderError::not_found("i-1"), "nodeclaim not found, i-1", "NodeClaimNotFoundError"),
            (
                ProviderError::insufficient_capacity("x"),
                "insufficient capacity, x",
                "InsufficientCapacityError",
            ),
            (ProviderError::node_class_not_ready("x"), "NodeClassRef not ready, x", "NodeClassNotReadyError"),
            (ProviderError::create("x", "R", "M"), "creating nodeclaim, x", "unknown"),
            (
                ProviderError::RebootNotImplemented,
                "reboot is not implemented by this cloud provider",
                "unknown",
            ),
            (
                ProviderError::UnevaluatedNodePool("p".to_owned()),
                "nodepool \"p\" is awaiting evaluation",
                "unknown",
            ),
            (ProviderError::other("x"), "x", "unknown"),
        ] {
            assert_eq!((error.to_string().as_str(), error.metric_label()), (text, label));
        }
    }

    #[test]
    fn a_failed_launch_is_given_up_only_when_it_is_known_to_be_hopeless() {
        let give_up = |counted_as, told| LaunchFailure::GiveUp { counted_as, told };
        assert_eq!(
            ProviderError::insufficient_capacity("x").launch_failure(),
            give_up("insufficient_capacity", true)
        );
        assert_eq!(
            ProviderError::node_class_not_ready("x").launch_failure(),
            give_up("nodeclass_not_ready", false)
        );
        let retry = |reason: &str, message: &str| LaunchFailure::Retry {
            reason: reason.into(),
            message: message.into(),
        };
        assert_eq!(
            ProviderError::create("x", "QuotaExceeded", "ask").launch_failure(),
            retry("QuotaExceeded", "ask")
        );
        for error in [ProviderError::other("x"), ProviderError::RebootFailed(Cause::new("x"))] {
            assert_eq!(error.launch_failure(), retry("LaunchFailed", "x"));
        }
        let timeout =
            ProviderError::Timeout { provider: "p".into(), method: "Create", limit: Duration::from_secs(60) };
        assert!(matches!(timeout.launch_failure(), LaunchFailure::Retry { .. }));
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let LaunchFailure::Retry { message, .. } = ProviderError::other("ä".repeat(600)).launch_failure()
        else {
            panic!("a retry")
        };
        assert_eq!(message.len(), 1023);
        assert!(message.ends_with("ä..."));
        assert_eq!(truncated("x".repeat(1024)).len(), 1024);
        assert_eq!(truncated("x".repeat(1025)), "x".repeat(1021) + "...");
    }

    #[test]
    fn values_attached_to_the_cause_reach_the_log_line() {
        let cause = Structured::new("no room").with("NodeClass", Field::object(&ObjectKey::cluster("c")));
        let error = ReconcileError::from(ProviderError::insufficient_capacity(cause));
        assert_eq!(error.to_string(), "insufficient capacity, no room (NodeClass=c)");
        assert_eq!(error.fields()["NodeClass"]["name"], "c");
    }
}
