//! The worst faults of the Go provider, made on purpose: each is caught by a trial that the provider itself passes. What
//! catches nothing proves nothing.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloudprovider::error::ProviderError;
use karpenter_cloudprovider::provider::{CloudProvider, Launch, NodeClassKind, ProviderFuture};
use karpenter_engine::instance_type::InstanceType;
use karpenter_provider_cloudstack::client::requests::{self, Deploy};
use karpenter_sim::chance::Span;
use karpenter_sim::cloudstack::faults::{Fault, Trouble};
use serde_json::json;
use tokio::time::Instant;

use crate::cloud::{World, seconds};

/// What the Go provider does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Go {
    /// Deleting what is not there is done.
    W1,
    /// The first type will do.
    W2,
    /// Tags come last, lists go by tags, and nobody collects what has none.
    W3,
    /// The name of a machine that failed is used again.
    W4,
    /// A full cloud is any error.
    W5,
    /// Machines are always expunged.
    W10,
    /// A launch waits for the machine to run.
    W21,
    /// What cannot be listed is not there.
    W23,
}

/// The provider, with one of its virtues taken away.
struct Planted<'a> {
    world: &'a World,
    fault: Option<Go>,
}

impl Planted<'_> {
    fn has(&self, fault: Go) -> bool {
        self.fault == Some(fault)
    }

    fn deploy(&self, claim: &NodeClaim) -> Deploy {
        let id = |kind: &str, name: &str| self.world.cloud.id_of(kind, name).expect("there");
        Deploy {
            name: format!("karpenter-{}", claim.metadata.name.clone().unwrap_or_default()),
            zone_id: id("zone", "sim-zone-1"),
            service_offering_id: id("serviceoffering", "k8s.small"),
            template_id: id("template", "CentOS 5.6 (64-bit) no GUI (Simulator)"),
            network_ids: vec![id("network", "k8s-net")],
            job_id: format!("00000000-0000-4000-8000-{:012}", self.world.cloud.log().len()),
            ..Deploy::default()
        }
    }

    async fn launch(&self, claim: &NodeClaim) -> Result<Launch, ProviderError> {
        let (provider, client) = (&self.world.provider, &self.world.client);
        match self.fault {
            Some(Go::W2) => {
                let mut any = claim.clone();
                any.spec.resources = None;
                provider.create(&any).await
            }
            Some(Go::W3) => {
                client.call(&requests::deploy(&self.deploy(claim))).await.map_err(ProviderError::other)?;
                unreachable!("the answer was lost")
            }
            Some(Go::W4) => {
                let answer = client.call(&requests::deploy(&self.deploy(claim))).await;
                let answer = answer.map_err(ProviderError::other)?;
                let job = answer["jobid"].as_str().unwrap_or_default().to_owned();
                seconds(30).await;
                let job = client.job(&job).await.map_err(ProviderError::other)?;
                match job.state {
                    karpenter_provider_cloudstack::client::job::JobState::Succeeded(_) => {
                        provider.create(claim).await
                    }
                    _ => Err(ProviderError::other("it did not start")),
                }
            }
            Some(Go::W5) => {
                provider.create(claim).await.map_err(|error| ProviderError::other(error.to_string()))
            }
            Some(Go::W21) => {
                let launched = provider.create(claim).await?;
                while self.world.live().iter().any(|machine| machine.state != "Running") {
                    seconds(5).await;
                }
                Ok(launched)
            }
            _ => provider.create(claim).await,
        }
    }

    async fn remove(&self, claim: &NodeClaim) -> Result<(), ProviderError> {
        if self.has(Go::W10) {
            let provider_id =
                claim.status.as_ref().and_then(|status| status.provider_id.clone()).unwrap_or_default();
            let id = provider_id.rsplit('/').next().unwrap_or_default().to_owned();
            self.world.provider.get(&provider_id).await?;
            let destroy = requests::destroy(&id, true, &[]);
            return self.world.client.call(&destroy).await.map(drop).map_err(ProviderError::other);
        }
        match self.world.provider.delete(claim).await {
            Err(error) if error.is_not_found() && self.has(Go::W1) => Ok(()),
            other => other,
        }
    }

    /// What runs besides.
    async fn look_after(&self) {
        if !self.has(Go::W3) {
            self.world.provider.round().await.expect("a round");
        }
    }
}

impl CloudProvider for Planted<'static> {
    fn name(&self) -> &str {
        "planted"
    }

    fn supported_node_classes(&self) -> &[NodeClassKind] {
        &[]
    }

    fn create<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, Launch> {
        self.launch(claim).boxed()
    }

    fn delete<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, ()> {
        self.remove(claim).boxed()
    }

    fn get<'a>(&'a self, provider_id: &'a str) -> ProviderFuture<'a, NodeClaim> {
        self.world.provider.get(provider_id)
    }

    fn list(&self) -> ProviderFuture<'_, Vec<NodeClaim>> {
        async move {
            match self.world.provider.list().await {
                Err(_) if self.has(Go::W23) => Ok(Vec::new()),
                other => other,
            }
        }
        .boxed()
    }

    fn get_instance_types<'a>(&'a self, pool: &'a NodePool) -> ProviderFuture<'a, Arc<[InstanceType]>> {
        self.world.provider.get_instance_types(pool)
    }

    fn is_drifted<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, Option<String>> {
        self.world.provider.is_drifted(claim)
    }
}

/// Launches a claim and lets it run.
async fn running(provider: &Planted<'static>, claim: &NodeClaim) -> NodeClaim {
    let Launch::Launched(instance) = provider.create(claim).await.expect("a machine") else {
        panic!("never pending")
    };
    let mut written = claim.clone();
    instance.write_into(&mut written);
    seconds(60).await;
    written
}

/// A claim whose machine somebody took away is let go.
async fn w1(provider: &Planted<'static>) -> Result<(), String> {
    let claim = running(provider, &provider.world.claim("np-a", json!({"cpu": "1"}))).await;
    provider.world.cloud.expunge_machine(&provider.world.live()[0].id);
    for _ in 0..60 {
        match provider.delete(&claim).await {
            Err(error) if error.is_not_found() => return Ok(()),
            _ => seconds(5).await,
        }
    }
    Err("after five minutes nobody says that the machine is gone".to_owned())
}

/// A node is large enough for what it was launched for.
async fn w2(provider: &Planted<'static>) -> Result<(), String> {
    let claim = provider.world.claim("np-a", json!({"cpu": "3"}));
    let claim = running(provider, &claim).await;
    let cpu =
        claim.status.and_then(|status| status.capacity).and_then(|capacity| capacity.get("cpu").cloned());
    match cpu.map(|cpu| cpu.to_string()) {
        Some(cpu) if cpu == "4" => Ok(()),
        other => Err(format!("three cores were asked for, and the node has {other:?}")),
    }
}

/// A machine whose launch nobody heard of does not stay.
async fn w3(provider: &Planted<'static>) -> Result<(), String> {
    let world = provider.world;
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    for command in ["deployVirtualMachine", "queryAsyncJobResult", "listVirtualMachines"] {
        let times = if command == "deployVirtualMachine" { 1 } else { 12 };
        let what =
            if command == "deployVirtualMachine" { Trouble::DropResponse } else { Trouble::Proxy(502) };
        world
            .cloud
            .inject(Fault::times(command, times, what).after(u64::from(command == "listVirtualMachines")));
    }
    let _ = provider.create(&claim).await;
    // The core gives up meanwhile.
    world.cluster.claims.lock().unwrap().clear();
    world.cloud.heal();
    for _ in 0..8 {
        seconds(120).await;
        provider.look_after().await;
    }
    let left = world.live();
    if left.is_empty() { Ok(()) } else { Err(format!("{} is left", left[0].name)) }
}

/// A claim whose first machine could not be started gets another.
async fn w4(provider: &Planted<'static>) -> Result<(), String> {
    let world = provider.world;
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    world.cloud.configure(|settings| settings.starts_fail = true);
    let _ = provider.create(&claim).await;
    seconds(60).await;
    world.cloud.configure(|settings| settings.starts_fail = false);
    let mut last = String::new();
    for _ in 0..5 {
        // What was refused is left alone for a while.
        seconds(240).await;
        match provider.create(&claim).await {
            Ok(_) => return Ok(()),
            Err(error) => last = error.to_string(),
        }
    }
    Err(last)
}

/// A full cloud is told as such.
async fn w5(provider: &Planted<'static>) -> Result<(), String> {
    for host in ["big-0", "big-1"] {
        provider.world.cloud.edit("host", host, |host| host["state"] = "Down".into());
    }
    for offering in ["k8s.small", "k8s.medium"] {
        provider
            .world
            .cloud
            .edit("serviceoffering", offering, |offering| offering["hosttags"] = "nowhere".into());
    }
    match provider.create(&provider.world.claim("np-a", json!({"cpu": "1"}))).await {
        Err(ProviderError::InsufficientCapacity(_)) => Ok(()),
        Err(error) => Err(format!("no lack of capacity: {error}")),
        Ok(_) => Err("a machine without a host".to_owned()),
    }
}

/// A tenant without the right to expunge gets rid of machines.
async fn w10(provider: &Planted<'static>) -> Result<(), String> {
    let claim = running(provider, &provider.world.claim("np-a", json!({"cpu": "1"}))).await;
    for _ in 0..60 {
        match provider.delete(&claim).await {
            Err(error) if error.is_not_found() => return Ok(()),
            _ => seconds(5).await,
        }
    }
    Err(format!("{} machines are left", provider.world.live().len()))
}

/// A launch does not wait for a machine that takes its time.
async fn w21(provider: &Planted<'static>) -> Result<(), String> {
    provider.world.cloud.configure(|settings| {
        settings.latencies.start = Span::secs(480, 480);
        settings.latencies.first_start = Span::secs(480, 480);
    });
    let begun = Instant::now();
    provider.create(&provider.world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
    let took = begun.elapsed();
    if took < Duration::from_secs(60) { Ok(()) } else { Err(format!("it took {took:?}")) }
}

/// While the server cannot say what there is, nothing is said to be gone.
async fn w23(provider: &Planted<'static>) -> Result<(), String> {
    running(provider, &provider.world.claim("np-a", json!({"cpu": "1"}))).await;
    provider.world.cloud.inject(Fault::times("listVirtualMachines", 50, Trouble::Proxy(502)));
    match provider.list().await {
        Err(_) => Ok(()),
        Ok(list) => Err(format!("{} machines are listed, and one is there", list.len())),
    }
}

async fn on_trial(fault: Option<Go>, trial: Go) -> Result<(), String> {
    // For as long as the test lives.
    let world: &'static World = Box::leak(Box::new(World::new().await));
    let provider = Planted { world, fault };
    match trial {
        Go::W1 => w1(&provider).await,
        Go::W2 => w2(&provider).await,
        Go::W3 => w3(&provider).await,
        Go::W4 => w4(&provider).await,
        Go::W5 => w5(&provider).await,
        Go::W10 => w10(&provider).await,
        Go::W21 => w21(&provider).await,
        Go::W23 => w23(&provider).await,
    }
}

#[tokio::test(start_paused = true)]
async fn each_of_the_go_providers_worst_faults_is_caught_and_ours_has_none_of_them() {
    for trial in [Go::W1, Go::W2, Go::W3, Go::W4, Go::W5, Go::W10, Go::W21, Go::W23] {
        let ours = on_trial(None, trial).await;
        assert_eq!(ours, Ok(()), "{trial:?}");
        let caught = on_trial(Some(trial), trial).await;
        assert!(caught.is_err(), "{trial:?} was planted and nothing was noticed");
    }
}
