//! The providers this program has, by the names `--provider` takes.

use karpenter_cloudprovider::{Installation, Surroundings};

/// A provider, ready to join the program.
pub(crate) async fn install(name: &str, _around: &Surroundings) -> anyhow::Result<Installation> {
    anyhow::bail!("there is no provider {name:?} (--provider, PROVIDER)")
}
