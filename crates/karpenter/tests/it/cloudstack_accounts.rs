//! NodeClasses that name keys of their own (`spec.credentialsRef`): each is served with them, and trouble with one account
//! neither makes its machines look gone nor keeps anybody from looking after the others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Secret};
use karpenter::cloudstack::stage::{Stage, apply_credentials, furnish, node_class};
use karpenter_api::NodeClaim;
use karpenter_api::conditions::HasConditions as _;
use karpenter_provider_cloudstack::naming::Naming;
use karpenter_provider_cloudstack::{CloudStackNodeClass, ProviderOptions};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_sim::cloudstack::MachineView;
use karpenter_sim::cloudstack::faults::{Fault, Trouble as Mishap};
use karpenter_sim::cloudstack::guests::GuestOptions;
use karpenter_sim::faults::FaultPlan;
use karpenter_sim::traffic::{Act, Script};
use karpenter_sim::{Process, Trouble, WorldOptions, in_virtual_time};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::cloudstack::{all_run, deployment, small_nodes};

const MINUTE: Duration = Duration::from_secs(60);
const OTHER: &str = "other";

/// The Secret with the other account's keys.
fn other_secret(api_key: &str, secret_key: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": OTHER, "namespace": "karpenter"},
        "stringData": {
            "api-url": "https://cloudstack.example.com/client/api", "api-key": api_key, "secret-key": secret_key,
        },
    })
}

/// A NodeClass that is served with them.
fn other_class() -> Value {
    let mut class = node_class();
    class["metadata"]["name"] = OTHER.into();
    class["spec"]["credentialsRef"] = json!({"namespace": "karpenter", "name": OTHER});
    class
}

fn other_pool() -> Value {
    let mut pool = small_nodes(json!({}));
    pool["metadata"]["name"] = OTHER.into();
    pool["spec"]["template"]["spec"]["nodeClassRef"]["name"] = OTHER.into();
    pool
}

/// A Deployment whose pods fill a node each, on nodes of a NodePool.
fn on(pool: &str, replicas: u64) -> Value {
    let mut deployment = deployment(pool, replicas, "1500m");
    deployment["spec"]["template"]["spec"]["nodeSelector"] = json!({"karpenter.sh/nodepool": pool});
    deployment
}

/// A cloud with two accounts, and Karpenter with a NodeClass for each; nothing is launched yet.
async fn two_accounts(seed: u64) -> Result<(Stage, Arc<Process>), Trouble> {
    let stage = Stage::new(WorldOptions { seed, ..WorldOptions::default() }, GuestOptions::default()).await?;
    furnish(&stage.cloud, 4);
    stage.cloud.add_account(OTHER, "k8s-network");
    apply_credentials(&stage.world).await?;
    for object in [node_class(), other_class(), small_nodes(json!({})), other_pool()] {
        stage.world.create(object).await?;
    }
    let karpenter = stage.karpenter(FaultPlan::none(), ProviderOptions::new("accounts"));
    karpenter.start();
    Ok((stage, karpenter))
}

fn machines_of(stage: &Stage, account: &str) -> Vec<MachineView> {
    stage.cloud.live_machines().into_iter().filter(|machine| machine.account == account).collect()
}

async fn condition(stage: &Stage, kind: &str) -> (String, String, String) {
    let classes: Api<CloudStackNodeClass> = Api::all(stage.world.cluster().client("user"));
    let class = classes.get(OTHER).await.expect("the NodeClass");
    let condition = class.condition(kind).cloned().unwrap_or_default();
    (condition.status.as_str().to_owned(), condition.reason().to_owned(), condition.message().to_owned())
}

fn secrets(stage: &Stage) -> Api<Secret> {
    Api::namespaced(stage.world.cluster().client("user"), "karpenter")
}

async fn scale(stage: &Stage, name: &str, replicas: u64) -> Result<(), Trouble> {
    let act = Act::Scale { kind: "Deployment", name: name.to_owned(), replicas };
    Script { acts: vec![(Duration::ZERO, act)] }.play(&stage.world).await
}

#[test]
fn machines_are_made_and_removed_with_the_keys_their_node_class_names() {
    let done = in_virtual_time(async {
        let (stage, karpenter) = two_accounts(341).await?;
        let world = &stage.world;
        world.create(other_secret("other-api-key", "other-secret-key")).await?;
        world.create(on("default", 1)).await?;
        world.create(on(OTHER, 2)).await?;
        world.wait_until("the pods run", 5 * MINUTE, |objects| all_run(objects, 3)).await?;
        assert_eq!(machines_of(&stage, "karp").len(), 1);
        assert_eq!(machines_of(&stage, OTHER).len(), 2);
        let claims: Api<NodeClaim> = Api::all(world.cluster().client("user"));
        let claims = claims.list(&ListParams::default()).await.expect("claims").items;
        for claim in &claims {
            let keys = claim.annotations().get("karpenter.k8s.cloudstack/credentials").map(String::as_str);
            let wanted = (claim.spec.node_class_ref.name == OTHER).then_some("karpenter/other");
            assert_eq!(keys, wanted, "whoever comes later knows where to look");
        }
        let deployed = stage.cloud.log().into_iter().filter(|entry| entry.command == "deployVirtualMachine");
        let jobs: Vec<String> = deployed.map(|entry| entry.parameters["customjobid"].clone()).collect();
        let different: BTreeSet<&String> = jobs.iter().collect();
        assert_eq!((jobs.len(), different.len()), (3, 3), "a job's id is never used twice on a server");
        // What nobody wants is found in either account.
        let prefix = Naming::new("karpenter", "accounts").prefix().to_owned();
        let lost = stage.cloud.add_machine_of(OTHER, &format!("{prefix}lost"), &[]);
        world.run_for(10 * MINUTE).await?;
        assert!(machines_of(&stage, OTHER).iter().all(|machine| machine.id != lost), "an orphan");
        assert_eq!(machines_of(&stage, OTHER).len(), 2);
        // Whether a machine is gone is asked where it was made.
        stage.cloud.expunge_machine(&machines_of(&stage, OTHER)[0].id);
        world.run_for(15 * MINUTE).await?;
        assert!(world.cluster().read(|objects| all_run(objects, 3)), "its pod runs elsewhere");
        assert_eq!(world.cluster().read(|objects| (objects.nodes.len(), objects.node_claims.len())), (3, 3));
        scale(&stage, OTHER, 0).await?;
        world.run_for(10 * MINUTE).await?;
        assert_eq!((machines_of(&stage, "karp").len(), machines_of(&stage, OTHER).len()), (1, 0));

        // Without NodeClass nobody asks there any more.
        let classes: Api<CloudStackNodeClass> = Api::all(world.cluster().client("user"));
        classes.delete(OTHER, &DeleteParams::default()).await.expect("deleted");
        world.run_for(10 * MINUTE).await?;
        assert!(classes.get_opt(OTHER).await.expect("an answer").is_none(), "nothing holds it");
        let calls = |stage: &Stage| stage.cloud.log().iter().filter(|entry| entry.account == OTHER).count();
        let before = calls(&stage);
        world.run_for(10 * MINUTE).await?;
        assert_eq!(calls(&stage), before, "the account is let go");
        karpenter.stop(MINUTE).await;
        Ok::<(), Trouble>(())
    });
    done.expect("a runtime").unwrap_or_else(|trouble| panic!("{trouble}"));
}

#[test]
fn what_is_left_in_an_account_that_only_one_class_names_is_known_until_it_is_gone() {
    let done = in_virtual_time(async {
        let (stage, karpenter) = two_accounts(346).await?;
        let world = &stage.world;
        world.create(other_secret("other-api-key", "other-secret-key")).await?;
        world.run_for(MINUTE).await?;
        // Of a launch whose answer never came; its NodeClaim is gone, and so is its NodeClass in a moment.
        let prefix = Naming::new("karpenter", "accounts").prefix().to_owned();
        let lost = stage.cloud.add_machine_of(OTHER, &format!("{prefix}lost"), &[]);
        let classes: Api<CloudStackNodeClass> = Api::all(world.cluster().client("user"));
        classes.delete(OTHER, &DeleteParams::default()).await.expect("taken");
        world.run_for(2 * MINUTE).await?;
        let there = || machines_of(&stage, OTHER).iter().any(|machine| machine.id == lost);
        assert!(there(), "it may be somebody's yet");
        // Nothing else leads a new process to the account.
        karpenter.kill();
        karpenter.start();
        world.run_for(15 * MINUTE).await?;
        assert!(!there(), "nobody wants it");
        assert!(classes.get_opt(OTHER).await.expect("an answer").is_none(), "nothing holds it any more");
        karpenter.stop(MINUTE).await;
        Ok::<(), Trouble>(())
    });
    done.expect("a runtime").unwrap_or_else(|trouble| panic!("{trouble}"));
}

#[test]
fn an_account_from_which_a_machine_may_still_come_is_not_let_go() {
    let done = in_virtual_time(async {
        let (stage, karpenter) = two_accounts(347).await?;
        let world = &stage.world;
        world.create(other_secret("other-api-key", "other-secret-key")).await?;
        // A round shows that nothing is there.
        world.run_for(5 * MINUTE).await?;
        // An order that arrives late: neither its answer nor its machine is seen.
        stage.cloud.inject(Fault::times("deployVirtualMachine", 100, Mishap::DropRequest));
        world.create(on(OTHER, 1)).await?;
        let ordered = || stage.cloud.calls().contains_key("deployVirtualMachine");
        world.wait_until("it is ordered", 5 * MINUTE, |_| ordered()).await?;
        // Whatever stands for it is taken away by force, so that only the account itself remembers.
        scale(&stage, OTHER, 0).await?;
        let client = world.cluster().client("user");
        let (classes, claims) =
            (Api::<CloudStackNodeClass>::all(client.clone()), Api::<NodeClaim>::all(client));
        let (goes, how) = (DeleteParams::default(), PatchParams::default());
        let free = json!({"metadata": {"finalizers": null}});
        for claim in claims.list(&ListParams::default()).await.expect("claims") {
            claims.delete(&claim.name_any(), &goes).await.expect("taken");
            let _ = claims.patch(&claim.name_any(), &how, &Patch::Merge(&free)).await;
        }
        classes.delete(OTHER, &goes).await.expect("taken");
        let _ = classes.patch(OTHER, &how, &Patch::Merge(&free)).await;
        world.run_for(4 * MINUTE).await?;
        assert!(classes.get_opt(OTHER).await.expect("an answer").is_none());
        assert!(machines_of(&stage, OTHER).is_empty());
        let prefix = Naming::new("karpenter", "accounts").prefix().to_owned();
        stage.cloud.add_machine_of(OTHER, &format!("{prefix}late"), &[]);
        world.run_for(10 * MINUTE).await?;
        assert!(machines_of(&stage, OTHER).is_empty(), "nobody wants it");
        let calls = || stage.cloud.log().iter().filter(|entry| entry.account == OTHER).count();
        world.run_for(5 * MINUTE).await?;
        let before = calls();
        world.run_for(10 * MINUTE).await?;
        assert_eq!(calls(), before, "then the account is let go");
        karpenter.stop(MINUTE).await;
        Ok::<(), Trouble>(())
    });
    done.expect("a runtime").unwrap_or_else(|trouble| panic!("{trouble}"));
}

#[test]
fn keys_that_cannot_be_used_make_no_machine_look_gone_and_hold_up_no_other_account() {
    let done = in_virtual_time(async {
        let (stage, karpenter) = two_accounts(342).await?;
        let world = &stage.world;
        world.create(other_secret("other-api-key", "other-secret-key")).await?;
        world.create(on("default", 1)).await?;
        world.create(on(OTHER, 1)).await?;
        world.wait_until("the pods run", 5 * MINUTE, |objects| all_run(objects, 2)).await?;
        world.run_for(3 * MINUTE).await?;
        let machine = machines_of(&stage, OTHER)[0].clone();
        let key = ObjectKey::cluster(machine.name.as_str());
        let node = || world.cluster().read(|objects| objects.nodes.contains_key(&key));
        assert!(node());

        // Its node is not ready, and the keys are revoked: nobody knows whether the machine is there.
        stage.cloud.give_keys(OTHER, "newer-api-key", "newer-secret-key");
        stage.cloud.stop_machine(&machine.id);
        let prefix = Naming::new("karpenter", "accounts").prefix().to_owned();
        let lost = stage.cloud.add_machine(&format!("{prefix}lost"), &[]);
        world.run_for(15 * MINUTE).await?;
        assert_eq!(condition(&stage, "CredentialsReady").await.1, "CredentialsRefused");
        assert!(node(), "not knowing is no reason to take it for gone");
        assert!(
            machines_of(&stage, "karp").iter().all(|machine| machine.id != lost),
            "others are looked after"
        );

        // Nor does a new process think so that never had keys, because the Secret is gone.
        karpenter.stop(MINUTE).await;
        secrets(&stage).delete(OTHER, &DeleteParams::default()).await.expect("deleted");
        karpenter.start();
        world.run_for(15 * MINUTE).await?;
        let (status, reason, message) = condition(&stage, "CredentialsReady").await;
        assert_eq!((status.as_str(), reason.as_str()), ("False", "SecretNotUsable"), "{message}");
        assert!(message.contains("spec.credentialsRef") && message.contains("karpenter/other"), "{message}");
        assert!(node());
        assert_eq!(machines_of(&stage, "karp").len(), 1);

        let there = machines_of(&stage, OTHER);
        assert_eq!(there.iter().map(|other| &other.id).collect::<Vec<_>>(), [&machine.id]);

        // With the right ones it goes on: what stood still is started, or its pod finds another.
        world.create(other_secret("newer-api-key", "newer-secret-key")).await?;
        world.run_for(10 * MINUTE).await?;
        assert_eq!(condition(&stage, "Ready").await.0, "True");
        assert!(world.cluster().read(|objects| all_run(objects, 2)), "its pod runs");
        assert_eq!(machines_of(&stage, OTHER).len(), 1);
        karpenter.stop(MINUTE).await;
        Ok::<(), Trouble>(())
    });
    done.expect("a runtime").unwrap_or_else(|trouble| panic!("{trouble}"));
}

#[test]
fn a_node_class_says_what_is_wrong_with_the_secret_it_names_until_it_is_put_right() {
    let done = in_virtual_time(async {
        let (stage, karpenter) = two_accounts(343).await?;
        let world = &stage.world;
        world.create(on(OTHER, 1)).await?;
        world.run_for(MINUTE).await?;
        let (status, reason, message) = condition(&stage, "CredentialsReady").await;
        assert_eq!((status.as_str(), reason.as_str()), ("False", "SecretNotUsable"), "{message}");
        assert!(message.contains("there is no Secret karpenter/other"), "{message}");
        assert_ne!(condition(&stage, "Ready").await.0, "True");
        assert!(stage.cloud.live_machines().is_empty(), "and nothing is made with other keys");

        let mut incomplete = other_secret("other-api-key", "other-secret-key");
        incomplete["stringData"].as_object_mut().expect("an object").remove("secret-key");
        world.create(incomplete).await?;
        world.run_for(MINUTE).await?;
        let message = condition(&stage, "CredentialsReady").await.2;
        assert!(message.contains("secret-key") && message.contains("karpenter/other"), "{message}");

        let patch = json!({"stringData": {"secret-key": "other-secret-key"}});
        secrets(&stage).patch(OTHER, &PatchParams::default(), &Patch::Merge(patch)).await.expect("written");
        world.wait_until("the pod runs", 5 * MINUTE, |objects| all_run(objects, 1)).await?;
        assert_eq!(condition(&stage, "CredentialsReady").await.0, "True");
        assert_eq!(machines_of(&stage, OTHER).len(), 1);
        // Gone again: what was read goes on, and who looks is told.
        secrets(&stage).delete(OTHER, &DeleteParams::default()).await.expect("deleted");
        world.run_for(MINUTE).await?;
        assert_eq!(condition(&stage, "CredentialsReady").await.1, "SecretNotUsable");
        assert_eq!(condition(&stage, "Ready").await.0, "True");
        scale(&stage, OTHER, 2).await?;
        world.wait_until("both pods run", 5 * MINUTE, |objects| all_run(objects, 2)).await?;
        karpenter.stop(MINUTE).await;
        Ok::<(), Trouble>(())
    });
    done.expect("a runtime").unwrap_or_else(|trouble| panic!("{trouble}"));
}

#[test]
fn a_node_class_says_which_value_of_its_secret_leads_nowhere_and_machines_are_made_as_before() {
    let done = in_virtual_time(async {
        let (stage, karpenter) = two_accounts(345).await?;
        let world = &stage.world;
        world.create(other_secret("other-api-key", "other-secret-key")).await?;
        world.create(on(OTHER, 1)).await?;
        world.wait_until("the pod runs", 5 * MINUTE, |objects| all_run(objects, 1)).await?;
        let patch = async |patch: Value| {
            let how = PatchParams::default();
            secrets(&stage).patch(OTHER, &how, &Patch::Merge(patch)).await.expect("written");
        };
        patch(json!({"stringData": {"ca-bundle": "nothing"}})).await;
        world.run_for(MINUTE).await?;
        let (status, reason, message) = condition(&stage, "CredentialsReady").await;
        assert_eq!((status.as_str(), reason.as_str()), ("False", "SecretNotUsable"), "{message}");
        for part in ["Secret karpenter/other", "ca-bundle", "certificates in PEM", "go on"] {
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(condition(&stage, "Ready").await.0, "True");
        scale(&stage, OTHER, 2).await?;
        world.wait_until("both pods run", 5 * MINUTE, |objects| all_run(objects, 2)).await?;
        patch(json!({"data": {"ca-bundle": null}})).await;
        world.run_for(MINUTE).await?;
        assert_eq!(condition(&stage, "CredentialsReady").await.0, "True");
        karpenter.stop(MINUTE).await;
        Ok::<(), Trouble>(())
    });
    done.expect("a runtime").unwrap_or_else(|trouble| panic!("{trouble}"));
}

#[test]
fn a_node_class_whose_keys_never_worked_goes_at_once_and_one_whose_keys_did_waits_for_its_secret_to_go() {
    let done = in_virtual_time(async {
        let (stage, karpenter) = two_accounts(348).await?;
        let world = &stage.world;
        let client = world.cluster().client("user");
        let (classes, events) = (Api::<CloudStackNodeClass>::all(client.clone()), Api::<Event>::all(client));
        let there = async || classes.get_opt(OTHER).await.expect("an answer").is_some();
        let told = async || {
            let events = events.list(&ListParams::default()).await.expect("events").items;
            let told = events.into_iter().filter(|event| event.reason.as_deref() == Some("MachinesLeft"));
            told.filter_map(|event| event.message).collect::<Vec<_>>()
        };
        let goes = DeleteParams::default();
        world.create(other_secret("wrong", "wrong")).await?;
        world.run_for(2 * MINUTE).await?;
        assert_eq!(condition(&stage, "CredentialsReady").await.1, "CredentialsRefused");
        classes.delete(OTHER, &goes).await.expect("taken");
        world.run_for(2 * MINUTE).await?;
        assert!(!there().await, "nothing can have been made with them: {:?}", told().await);
        secrets(&stage).delete(OTHER, &goes).await.expect("deleted");
        world.run_for(5 * MINUTE).await?;

        world.create(other_secret("other-api-key", "other-secret-key")).await?;
        world.create(other_class()).await?;
        world.run_for(5 * MINUTE).await?;
        assert_eq!(condition(&stage, "Ready").await.0, "True");
        let prefix = Naming::new("karpenter", "accounts").prefix().to_owned();
        let lost = stage.cloud.add_machine_of(OTHER, &format!("{prefix}lost"), &[]);
        stage.cloud.give_keys(OTHER, "newer-api-key", "newer-secret-key");
        classes.delete(OTHER, &goes).await.expect("taken");
        // Nor does a new process take it for empty: what was found for the NodeClass says that keys of it worked.
        for _ in 0..2 {
            world.run_for(5 * MINUTE).await?;
            assert!(there().await, "a machine is left, and nobody can tell");
            karpenter.kill();
            karpenter.start();
        }
        let told = told().await;
        let says = |part: &str| told.iter().any(|message| message.contains(part));
        assert!(says("the Secret karpenter/other (spec.credentialsRef)") && says("or delete it"), "{told:?}");
        world.run_for(5 * MINUTE).await?;
        secrets(&stage).delete(OTHER, &goes).await.expect("deleted");
        world.run_for(3 * MINUTE).await?;
        assert!(!there().await, "nobody will ever know");
        assert!(machines_of(&stage, OTHER).iter().any(|machine| machine.id == lost));
        karpenter.stop(MINUTE).await;
        Ok::<(), Trouble>(())
    });
    done.expect("a runtime").unwrap_or_else(|trouble| panic!("{trouble}"));
}
