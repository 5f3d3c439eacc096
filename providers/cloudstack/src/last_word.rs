//! The last word before something that nobody seems to want is destroyed: what the API server says at this moment.
//!
//! What a watch has brought may be of a while ago: it lags, or whoever leads was stopped for minutes and goes on where it was. A machine
//! whose NodeClaim came meanwhile looks like nobody's then. It is asked for what would be destroyed only, mostly by name; all NodeClaims
//! are read at most once a round, for what does not say whose it was. What cannot be found out destroys nothing.

use karpenter_api::NodeClaim;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use crate::shared::Shared;

/// Whom something was made for, as its tags have it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MadeFor<'a> {
    pub(crate) name: Option<&'a str>,
    pub(crate) uid: Option<&'a str>,
}

/// See the module. One for each round.
pub(crate) struct LastWord<'a> {
    shared: &'a Shared,
    stop: &'a CancellationToken,
    /// Once somebody had to ask for all; nothing if they could not be had.
    all: OnceCell<Option<Vec<NodeClaim>>>,
}

impl<'a> LastWord<'a> {
    pub(crate) fn new(shared: &'a Shared, stop: &'a CancellationToken) -> Self {
        Self { shared, stop, all: OnceCell::new() }
    }

    /// Whether somebody else may lead by now, so that nothing more is ordered.
    pub(crate) fn is_over(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Whether it is certain that no NodeClaim wants what was made for this one.
    pub(crate) async fn nobody_wants(&self, whose: MadeFor<'_>, wants: impl Fn(&NodeClaim) -> bool) -> bool {
        if self.is_over() {
            return false;
        }
        let is_wanted = match whose {
            MadeFor { name: Some(name), uid: Some(_) } => match self.shared.voice.claim_now(name).await {
                Ok(claim) => claim.is_some_and(|claim| wants(&claim)),
                Err(error) => {
                    tracing::warn!(NodeClaim = name, error, "cannot be read, so nothing of it is destroyed");
                    true
                }
            },
            _ => self.claims().await.is_none_or(|claims| claims.iter().any(wants)),
        };
        // The answer took a while too.
        !is_wanted && !self.is_over()
    }

    /// All NodeClaims; nothing if they cannot be read.
    pub(crate) async fn claims(&self) -> Option<&[NodeClaim]> {
        let read = async || match self.shared.voice.claims_now().await {
            Ok(claims) => Some(claims),
            Err(error) => {
                tracing::warn!(
                    error,
                    "NodeClaims cannot be read, so nothing is destroyed that may be theirs"
                );
                None
            }
        };
        self.all.get_or_init(read).await.as_deref()
    }
}
