//! Limits: how much a NodePool's nodes may have together.

use karpenter_primitives::Quantity;

use super::NodePool;
use crate::ResourceList;

/// A NodePool has, or would have, more of a resource than it may.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "resource usage exceeds limit (limit={}, resource-name={resource}, usage={})",
    limit.to_plain_decimal(),
    usage.to_plain_decimal()
)]
pub struct LimitExceeded {
    /// Of which resource.
    pub resource: String,
    /// How much there would be.
    pub usage: Quantity,
    /// How much there may be.
    pub limit: Quantity,
}

impl NodePool {
    /// The limit that this much would exceed, if any. Resources without a limit do not count; of several limits the first by
    /// name is reported (in Go, any).
    pub fn exceeded_limit(&self, usage: &ResourceList) -> Option<LimitExceeded> {
        let limits = self.spec.limits.as_ref()?;
        usage.iter().find_map(|(resource, used)| {
            let limit = limits.get(resource).filter(|limit| used > *limit)?;
            Some(LimitExceeded { resource: resource.clone(), usage: used.clone(), limit: limit.clone() })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amounts(pairs: &[(&str, &str)]) -> ResourceList {
        pairs.iter().map(|(name, amount)| ((*name).to_owned(), amount.parse().unwrap())).collect()
    }

    #[test]
    fn a_limit_may_be_reached_but_not_passed() {
        let mut pool = NodePool::default();
        assert_eq!(pool.exceeded_limit(&amounts(&[("cpu", "1000")])), None);
        pool.spec.limits = Some(amounts(&[("cpu", "10"), ("memory", "1Gi")]));
        assert_eq!(pool.exceeded_limit(&amounts(&[("cpu", "10"), ("pods", "5000")])), None);
        let error = pool.exceeded_limit(&amounts(&[("cpu", "10001m")])).unwrap();
        assert_eq!(
            error.to_string(),
            "resource usage exceeds limit (limit=10, resource-name=cpu, usage=10.001)"
        );
    }
}
