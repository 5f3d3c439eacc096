//! NodeClaims that were asked for without learning whether they were created. Whoever wants one that is alike asks for it by the
//! same name again, so that it is created once.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use karpenter_api::NodeClaim;
use tokio::time::Instant;

/// After this long the watch has shown what there is.
const SEEN_BY_THEN: Duration = Duration::from_secs(10 * 60);

#[derive(Default)]
pub(super) struct Unanswered(Mutex<Vec<(Instant, NodeClaim)>>);

impl Unanswered {
    pub(super) fn keep(&self, asked: NodeClaim) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), asked));
    }

    /// The name of one that is like `wanted`, unless it has been seen to exist meanwhile: it is whoever's asks first.
    pub(super) fn take(&self, wanted: &NodeClaim, is_known: impl Fn(&str) -> bool) -> Option<String> {
        let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        asked.retain(|(at, claim)| {
            at.elapsed() < SEEN_BY_THEN && !claim.metadata.name.as_deref().is_some_and(&is_known)
        });
        let at = asked.iter().position(|(_, claim)| are_alike(claim, wanted))?;
        asked.remove(at).1.metadata.name
    }
}

fn are_alike(one: &NodeClaim, other: &NodeClaim) -> bool {
    let (a, b) = (&one.metadata, &other.metadata);
    one.spec == other.spec
        && (&a.generate_name, &a.labels, &a.annotations, &a.owner_references)
            == (&b.generate_name, &b.labels, &b.annotations, &b.owner_references)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(base: &str, name: Option<&str>) -> NodeClaim {
        let mut claim = NodeClaim::default();
        claim.metadata.generate_name = Some(base.to_owned());
        claim.metadata.name = name.map(str::to_owned);
        claim
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_have_been_created_is_asked_for_by_its_name_once() {
        let (asked, nobody) = (Unanswered::default(), |_: &str| false);
        asked.keep(claim("a-", Some("a-1")));
        assert_eq!(asked.take(&claim("b-", None), nobody), None, "another is wanted");
        assert_eq!(asked.take(&claim("a-", None), nobody).as_deref(), Some("a-1"));
        assert_eq!(asked.take(&claim("a-", None), nobody), None, "that one is taken");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_seen_or_asked_for_long_ago_is_forgotten() {
        let asked = Unanswered::default();
        asked.keep(claim("a-", Some("a-1")));
        assert_eq!(asked.take(&claim("a-", None), |name| name == "a-1"), None, "it is there");
        asked.keep(claim("a-", Some("a-2")));
        tokio::time::advance(SEEN_BY_THEN).await;
        assert_eq!(asked.take(&claim("a-", None), |_| false), None);
    }
}
