//! `karpenter cloudstack doctor`: would Karpenter work with these keys, and with this NodeClass?

use std::path::PathBuf;
use std::process::ExitCode;

use karpenter_provider_cloudstack::doctor::{self, Verdict};

use crate::real_time;

/// Check keys, rights, limits and a NodeClass against a CloudStack.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A file with a CloudStackNodeClass to check too.
    #[arg(long, short = 'f', value_name = "FILE")]
    node_class: Option<PathBuf>,
}

pub(crate) fn cmd(args: &Args) -> anyhow::Result<ExitCode> {
    let class = args.node_class.as_deref().map(super::node_class).transpose()?;
    let (client, options, environment) = super::client(Some("doctor"))?;
    let findings =
        real_time::run(async { Ok(doctor::examine(&client, &options, class.as_ref(), &environment).await) })?;
    for finding in &findings {
        let sign = match finding.verdict {
            Verdict::Good => "ok  ",
            Verdict::Odd => "note",
            Verdict::Bad => "FAIL",
        };
        println!("{sign} {:<14} {}", finding.what, finding.text);
    }
    let bad = findings.iter().filter(|finding| finding.verdict == Verdict::Bad).count();
    Ok(if bad == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
