//! `karpenter cluster-api self-check`: may Karpenter's account do in both clusters what Karpenter does there?

use std::io::{self, Write as _};
use std::process::ExitCode;

use karpenter_provider_cluster_api::self_check::{
    Right, Verdict, for_prices, for_repairs, in_management_cluster, in_workload_cluster, node_classes,
};
use karpenter_provider_cluster_api::wiring;
use karpenter_runtime::error::with_causes;
use karpenter_runtime::options::{Options, OptionsError};
use karpenter_runtime::surroundings;
use kube::Client;

use crate::real_time;

/// Ask both clusters whether Karpenter's account may do what it does.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Settings as of `karpenter run`, which say where the clusters are
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "SETTING")]
    settings: Vec<String>,
}

pub(crate) fn cmd(args: &Args) -> anyhow::Result<ExitCode> {
    let environ = Options::environ(std::env::vars_os())?;
    let options = match Options::parse(args.settings.iter().map(String::as_str), &environ) {
        Err(OptionsError::Help) => {
            writeln!(
                io::stdout(),
                "Ask both clusters whether Karpenter's account may do what it does; exit status 1 if it would not work.\n\nUsage: karpenter cluster-api self-check [SETTING]...\n\nSettings are those of `karpenter run`."
            )?;
            return Ok(ExitCode::SUCCESS);
        }
        parsed => parsed?,
    };
    let well = real_time::run(async {
        let own = surroundings::cluster(options.kubeconfig.as_ref()).await?;
        let clusters = wiring::clusters(own, &options).await?;
        anyhow::Ok(report(&clusters, &options, &mut io::stdout()).await?)
    })?;
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Says what is granted and what is missing; whether nothing is that is needed.
///
/// # Errors
///
/// If nobody takes what is said.
pub async fn report(
    clusters: &wiring::Clusters,
    options: &Options,
    out: &mut impl io::Write,
) -> io::Result<bool> {
    let wiring::Clusters { workload, management, .. } = clusters;
    let mut report = Report { out, well: true };
    let mut rights = super::core_rights(&options.feature_gates, !options.default_topology_spread.is_empty());
    rights.extend(in_workload_cluster());
    report.ask("workload", workload, &rights).await?;
    let home = match options.cluster_api.in_management_cluster {
        true => ("management", management.client()),
        false => ("workload", workload),
    };
    if !options.disable_leader_election {
        match surroundings::lease_namespace(&options.leader_election_namespace) {
            Ok(namespace) => report.ask(home.0, home.1, &lease(&options.lease_name(), &namespace)).await?,
            Err(error) => report.say("note", home.0, &format!("the lease was not looked at: {error}"))?,
        }
    }
    let classes = match node_classes(workload).await {
        Ok(classes) => classes,
        Err(error) => {
            report.say(
                "FAIL",
                "workload",
                &format!("NodeClasses cannot be listed: {}", with_causes(&error)),
            )?;
            Vec::new()
        }
    };
    if classes.is_empty() {
        report.say("note", "workload", "there is no ClusterAPINodeClass: what scaling takes is asked for")?;
    }
    report.ask("workload", workload, &for_prices(&classes)).await?;
    if options.feature_gates.node_repair {
        report.ask("workload", workload, &for_repairs(&classes)).await?;
    }
    match in_management_cluster(management, &classes).await {
        Ok(mut rights) => {
            if options.cluster_api.in_management_cluster {
                let secret = format!("{}-kubeconfig", options.cluster_name);
                let secrets = Right::anywhere(&["get"], "", "secrets").named(&secret);
                rights.push(secrets.within(&options.cluster_api.cluster_namespace));
            }
            report.ask("management", management.client(), &rights).await?;
        }
        Err(error) => report.say("FAIL", "management", &with_causes(&error))?,
    }
    Ok(report.well)
}

/// What leading takes.
fn lease(name: &str, namespace: &str) -> [Right; 2] {
    let leases =
        |verbs: &[&'static str]| Right::anywhere(verbs, "coordination.k8s.io", "leases").within(namespace);
    [leases(&["get", "update"]).named(name), leases(&["create"])]
}

struct Report<'a, W> {
    out: &'a mut W,
    well: bool,
}

impl<W: io::Write> Report<'_, W> {
    async fn ask(&mut self, cluster: &str, client: &Client, rights: &[Right]) -> io::Result<()> {
        for right in rights {
            match (right.ask(client).await, right.is_needed) {
                (Verdict::Granted, _) => self.say("ok", cluster, &right.to_string())?,
                (Verdict::Missing(verbs), needed) => {
                    let text = format!("may not {} {}", verbs.join(", "), right.object());
                    match needed {
                        true => self.say("FAIL", cluster, &text)?,
                        false => self.say("note", cluster, &format!("{text}; it is done without"))?,
                    }
                }
                // What cannot be found out is nothing to rely on.
                (Verdict::Unknown(why), _) => self.say("FAIL", cluster, &format!("{right}: {why}"))?,
            }
        }
        Ok(())
    }

    fn say(&mut self, sign: &str, cluster: &str, text: &str) -> io::Result<()> {
        self.well &= sign != "FAIL";
        writeln!(self.out, "{sign:<4} {cluster:<10} {text}")
    }
}
