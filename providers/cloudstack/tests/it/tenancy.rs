//! Whose machines are, and who may reach them: accounts per NodeClass, security groups.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use http_body_util::BodyExt as _;
use karpenter_api::conditions::HasConditions as _;
use karpenter_cloudprovider::provider::CloudProvider as _;
use karpenter_provider_cloudstack::client::Session;
use karpenter_provider_cloudstack::client::request::Scope;
use karpenter_provider_cloudstack::client::signature::Credentials;
use karpenter_provider_cloudstack::client::transport::{Transport, TransportError};
use karpenter_provider_cloudstack::naming::Naming;
use karpenter_provider_cloudstack::nodeclass::HASH_VERSION;
use karpenter_provider_cloudstack::voice::Voice;
use karpenter_provider_cloudstack::{CloudStackProvider, Objects, ProviderOptions};
use karpenter_sim::cloudstack::account::Role;
use karpenter_sim::cloudstack::faults::{Fault, Trouble};
use serde_json::{Value, json};

use crate::cloud::{World, seconds, spec};

#[tokio::test(start_paused = true)]
async fn an_administrators_class_makes_its_machines_in_the_account_it_names() {
    let world = World::new().await;
    let admin = world.with_role(Role::Root, ProviderOptions::new("test"));
    let tenant = world.cloud.account(Role::User).unwrap();
    let mut class = spec();
    class["account"] = tenant.name.clone().into();
    class["domainID"] = tenant.domain_id.clone().into();
    let class = world.class_by(&admin, "default", class).await;
    assert_eq!(class.condition("Ready").expect("a condition").status.as_str(), "True");
    // The limits that count are the account's.
    world.cloud.limit("user_vm", 1);
    seconds(120).await;
    let instance =
        world.launch_by(&admin, &world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
    assert_eq!(
        instance.annotations["karpenter.k8s.cloudstack/scope"],
        format!("account/{}/{}", tenant.domain_id, tenant.name)
    );
    seconds(120).await;
    let full = world.launch_by(&admin, &world.claim("np-b", json!({"cpu": "1"}))).await;
    full.expect_err("its limit is reached");
    assert_eq!(world.calls("deployVirtualMachine"), 1, "and nobody had to ask");
    assert_eq!(admin.list().await.expect("a list").len(), 1);
    admin.get(&instance.provider_id).await.expect("there");
    // The tenant sees it as its own.
    world.provider.get(&instance.provider_id).await.expect("there");
    for _ in 0..10 {
        let _ = admin.delete(&world.current("np-a")).await;
        seconds(10).await;
    }
    assert!(admin.delete(&world.current("np-a")).await.expect_err("gone").is_not_found());
    assert!(world.live().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_account_that_is_not_there_or_not_ours_is_told_of_and_keeps_nothing_else_from_being_looked_after()
{
    let world = World::new().await;
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
    let orphan = world.cloud.add_machine(&format!("{}np-x", Naming::new("karpenter", "test").prefix()), &[]);
    let root = world.cloud.account(Role::Root).unwrap();
    for (name, account) in [("nobody", "nobody"), ("theirs", root.name.as_str())] {
        let mut class = spec();
        class["account"] = account.into();
        class["domainID"] = root.domain_id.clone().into();
        let class = world.class(name, class).await;
        let condition = class.condition("ValidationSucceeded").expect("a condition");
        assert_eq!(condition.reason(), "AccountNotFound", "{condition:?}");
        let told = condition.message();
        assert!(told.contains("spec.account") && told.contains(account), "{told}");
    }
    seconds(310).await;
    assert_eq!(world.provider.list().await.expect("a list").len(), 2);
    assert_eq!(world.provider.round().await.expect("a round").destroyed, [orphan]);
}

#[tokio::test(start_paused = true)]
async fn machines_of_a_class_without_a_project_are_in_the_one_that_the_keys_name() {
    let world = World::new().await;
    let (project, mut class) = world.project();
    class.as_object_mut().unwrap().remove("projectID");
    let unnamed = world.client.session();
    world.client.become_session(Session { project: Some(project.clone()), ..unnamed });
    let read = world.class("default", class).await;
    assert_eq!(read.condition("Ready").expect("a condition").status.as_str(), "True", "{read:?}");
    let instance = world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
    assert_eq!(instance.annotations["karpenter.k8s.cloudstack/scope"], format!("project/{project}"));
    assert_eq!(world.live()[0].project.as_ref(), Some(&project));
    world.provider.get(&instance.provider_id).await.expect("there");
    // What a NodeClaim was launched in is looked at whatever the keys say later.
    let unnamed = Session { project: None, ..world.client.session() };
    world.client.become_session(unnamed);
    assert_eq!(world.provider.list().await.expect("a list").len(), 1);
    world.provider.get(&instance.provider_id).await.expect("there");
}

#[tokio::test(start_paused = true)]
async fn a_project_that_the_settings_name_comes_before_that_of_the_keys() {
    let world = World::new().await;
    let (project, mut class) = world.project();
    class.as_object_mut().unwrap().remove("projectID");
    let absent = "11111111-0000-4000-8000-000000000000".to_owned();
    world.client.become_session(Session { project: Some(absent), ..world.client.session() });
    let options = ProviderOptions { scope: Scope::Project(project.clone()), ..ProviderOptions::new("test") };
    let objects = Arc::clone(&world.cluster) as Arc<dyn Objects>;
    let provider = CloudStackProvider::new(world.client.clone(), options, objects, &world.environment);
    let class = world.class_by(&provider, "default", class).await;
    assert_eq!(class.condition("Ready").expect("a condition").status.as_str(), "True", "{class:?}");
}

#[tokio::test(start_paused = true)]
async fn a_project_of_the_keys_that_is_not_there_is_told_of_with_where_it_is_named() {
    let world = World::new().await;
    let absent = "11111111-0000-4000-8000-000000000000".to_owned();
    world.client.become_session(Session { project: Some(absent.clone()), ..world.client.session() });
    seconds(301).await;
    let class = world.class("default", spec()).await;
    let condition = class.condition("ValidationSucceeded").expect("a condition");
    assert_eq!(condition.reason(), "ProjectNotFound", "{condition:?}");
    for part in [absent.as_str(), "project-id", "CLOUDSTACK_PROJECT_ID", "spec.projectID"] {
        assert!(condition.message().contains(part), "{condition:?}");
    }
}

/// A road on which nobody's certificate is looked at.
struct Unchecked(Arc<dyn Transport>);

impl Transport for Unchecked {
    fn send(
        &self,
        request: http::Request<bytes::Bytes>,
    ) -> BoxFuture<'_, Result<http::Response<bytes::Bytes>, TransportError>> {
        self.0.send(request)
    }

    fn checks_certificates(&self) -> bool {
        false
    }
}

#[tokio::test(start_paused = true)]
async fn a_class_says_that_the_certificate_of_its_server_is_not_checked() {
    let world = World::new().await;
    let session = world.client.session();
    let transport = Arc::new(Unchecked(Arc::clone(&session.transport)));
    world.client.become_session(Session { transport, ..session });
    let class = world.class("default", spec()).await;
    let condition = class.condition("CredentialsReady").expect("a condition");
    assert_eq!((condition.status.as_str(), condition.reason()), ("True", "CertificateNotChecked"));
    assert!(condition.message().contains("ssl-no-verify=false"), "{condition:?}");
}

fn by_team(team: &str) -> Value {
    let mut class = spec();
    class["securityGroupSelectorTerms"] = json!([{"tags": {"team": team}}, {"name": "default"}]);
    class
}

#[tokio::test(start_paused = true)]
async fn security_groups_are_selected_by_tags_where_there_are_any() {
    let world = World::new().await;
    let tenant = world.cloud.account(Role::User).unwrap().name;
    let group =
        |name: &str| json!({"name": name, "account": tenant, "tags": [{"key": "team", "value": "web"}]});
    let first = world.cloud.add("securitygroup", group("first"));
    let default = world.cloud.id_of("securitygroup", "default").unwrap();
    let none = world.class("default", by_team("web")).await;
    let told = none.condition("ValidationSucceeded").expect("a condition").message().to_owned();
    assert!(told.contains("securityGroupSelectorTerms"), "a machine without its groups is open: {told}");
    world.cloud.edit("zone", "sim-zone-1", |zone| zone["securitygroupsenabled"] = true.into());
    seconds(3700).await;
    world.class("default", by_team("web")).await;
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
    let log = world.cloud.log();
    let deploy = log.iter().find(|entry| entry.command == "deployVirtualMachine").expect("a deployment");
    let mut given: Vec<&str> = deploy.parameters["securitygroupids"].split(',').collect();
    given.sort_unstable();
    let mut wanted = [first.as_str(), default.as_str()];
    wanted.sort_unstable();
    assert_eq!(given, wanted);
    assert_eq!(world.provider.is_drifted(&world.current("np-a")).await.expect("known"), None);
    world.cloud.add("securitygroup", group("second"));
    seconds(120).await;
    let drift = world.provider.is_drifted(&world.current("np-a")).await.expect("known");
    assert_eq!(drift.as_deref(), Some("SecurityGroupDrift"));
    let mut nothing = spec();
    nothing["securityGroupSelectorTerms"] = json!([{"tags": {"team": "nobody"}}]);
    let class = world.class("default", nothing).await;
    assert_eq!(
        class.condition("ValidationSucceeded").expect("a condition").reason(),
        "SecurityGroupNotFound"
    );
}

#[tokio::test(start_paused = true)]
async fn keys_of_another_account_do_not_make_machines_look_gone() {
    let world = World::new().await;
    let instance = world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
    world.cloud.add_account("other", "k8s-net");
    // Exchanged while nobody was there to compare them.
    let other = world.as_account("other");
    let error = other.get(&instance.provider_id).await.expect_err("not seen");
    assert!(!error.is_not_found() && error.to_string().contains("another"), "{error}");
    let listed = other.list().await.expect("a list");
    let id = |claim: &karpenter_api::NodeClaim| claim.status.clone().and_then(|status| status.provider_id);
    assert_eq!(listed.iter().filter_map(id).collect::<Vec<_>>(), std::slice::from_ref(&instance.provider_id));
    assert!(!other.delete(&world.current("np-a")).await.expect_err("not seen").is_not_found());
    let class = world.class_by(&other, "default", spec()).await;
    let condition = class.condition("CredentialsReady").expect("a condition");
    assert_eq!((condition.status.as_str(), condition.reason()), ("False", "AnotherAccount"));
    assert!(condition.message().contains("np-a"), "{}", condition.message());
    // With the right ones everything is as it was.
    world.provider.get(&instance.provider_id).await.expect("there");
    world.delete(&world.current("np-a")).await.expect("gone");
    assert!(world.live().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_server_on_which_a_machine_never_was_gives_no_nodeclaim_up() {
    let world = World::new().await;
    world.node("np-a").await;
    // Another server, with keys of another account there: a wrong address in the Secret.
    let elsewhere = World::seeded(2).await;
    elsewhere.cloud.add_account("other", "k8s-net");
    let keys = Credentials::new("other-api-key", "other-secret-key");
    elsewhere.client.become_session(Session { credentials: keys, ..elsewhere.client.session() });
    elsewhere.cluster.claims.lock().unwrap().insert("np-a".to_owned(), world.current("np-a"));
    for _ in 0..30 {
        elsewhere.provider.look_at_launches().await.expect("looked");
        seconds(5).await;
    }
    assert_eq!(elsewhere.told("LaunchFailed"), Vec::<String>::new());
    assert_eq!(elsewhere.calls("listNics"), 0, "its word is not even asked for");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_somebody_opened_to_others_has_drifted() {
    let world = World::new().await;
    world.cloud.edit("zone", "sim-zone-1", |zone| zone["securitygroupsenabled"] = true.into());
    seconds(3700).await;
    let tenant = world.cloud.account(Role::User).unwrap().name;
    let group = |name: &str| world.cloud.add("securitygroup", json!({"name": name, "account": tenant}));
    let (wanted, other) = (group("nodes"), group("everybody"));
    let default = world.cloud.id_of("securitygroup", "default").unwrap();
    let mut class = spec();
    class["securityGroups"] = json!([wanted]);
    world.class("default", class).await;
    let drift = async |name: &str| world.provider.is_drifted(&world.current(name)).await.expect("known");
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
    let id = world.live()[0].id.clone();
    world.cloud.put_into_security_group(&id, &default);
    seconds(60).await;
    assert_eq!(drift("np-a").await, None, "the server adds the default group by itself");
    world.cloud.put_into_security_group(&id, &other);
    seconds(60).await;
    assert_eq!(drift("np-a").await.as_deref(), Some("SecurityGroupDrift"));

    world.class("default", spec()).await;
    world.launch(&world.claim("np-b", json!({"cpu": "1"}))).await.expect("a machine");
    let id = world.live().into_iter().find(|machine| machine.name.ends_with("np-b")).unwrap().id;
    assert_eq!(drift("np-b").await, None);
    world.cloud.give_key_pair(&id, "somebodys");
    seconds(60).await;
    assert_eq!(drift("np-b").await.as_deref(), Some("VMDrift"));
}

#[tokio::test(start_paused = true)]
async fn classes_of_earlier_releases_keep_their_hash() {
    let world = World::new().await;
    let class = world.class("default", spec()).await;
    assert_eq!(class.hash(), "1923771754713599707");
    let mut disks = spec();
    disks["dataDisks"] = json!([{"offering": "k8s.data20"}]);
    disks["securityGroups"] = json!(["default"]);
    assert_eq!(world.class("disks", disks).await.hash(), "15836465483089609380");
}

/// Annotations that were written, and how many machines had been ordered by then.
type Written = Arc<Mutex<Vec<(Value, usize)>>>;

/// A provider in a cluster that takes annotations of NodeClaims.
fn writing(world: &World) -> (CloudStackProvider, Written) {
    let written = Written::default();
    let (writing, cloud) = (Arc::clone(&written), world.cloud.clone());
    let answer = move |request: http::Request<kube::client::Body>| {
        let (writing, cloud) = (Arc::clone(&writing), cloud.clone());
        async move {
            let body = request.into_body().collect().await.expect("a body").to_bytes();
            let patch: Value = serde_json::from_slice(&body).expect("JSON");
            let ordered = cloud.calls().get("deployVirtualMachine").copied().unwrap_or(0);
            writing.lock().unwrap().push((patch["metadata"]["annotations"].clone(), ordered));
            let claim = json!({"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "np-a"},
                "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}, "requirements": []}});
            let body = kube::client::Body::from(claim.to_string().into_bytes());
            Ok::<_, std::convert::Infallible>(http::Response::new(body))
        }
    };
    let cluster = kube::Client::new(tower::service_fn(answer), "default");
    let (recorder, _writer) = karpenter_runtime::events::recorder("karpenter", &world.environment);
    let objects = Arc::clone(&world.cluster) as Arc<dyn Objects>;
    let provider = CloudStackProvider::speaking(
        world.client.clone(),
        ProviderOptions::new("test"),
        objects,
        Voice::new(recorder, cluster),
        &world.environment,
    );
    (provider, written)
}

#[tokio::test(start_paused = true)]
async fn where_a_launch_begins_is_written_down_before_anything_is_made() {
    let world = World::new().await;
    let (provider, written) = writing(&world);
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    // Made, and the answer is lost.
    world.cloud.inject(Fault::times("deployVirtualMachine", 1, Trouble::DropResponse));
    world.cloud.inject(Fault::times("queryAsyncJobResult", 3, Trouble::Fail(530, 4250, "x".into())));
    let _ = provider.create(&claim).await;
    let first = written.lock().unwrap().first().cloned().expect("written");
    let account = &first.0["karpenter.k8s.cloudstack/account-id"];
    assert!(account.is_string(), "{first:?}");
    let class = world.class("default", spec()).await;
    let place = json!({"karpenter.k8s.cloudstack/scope": "own", "karpenter.k8s.cloudstack/account-id": account,
        "karpenter.k8s.cloudstack/nodeclass-hash": class.hash(),
        "karpenter.k8s.cloudstack/nodeclass-hash-version": HASH_VERSION});
    assert_eq!(first, (place, 0));
    assert_eq!(world.calls("deployVirtualMachine"), 1);
    // The NodeClass is made anew for a project before anybody has heard of the machine.
    let project = world.cloud.add_project("team");
    let network = json!({"name": "team-net", "projectid": project, "account": null, "state": "Allocated"});
    world.cloud.add("network", network);
    let mut class = spec();
    class["projectID"] = project.into();
    class["networkSelectorTerms"] = json!([{"name": "team-net"}]);
    world.class("default", class).await;
    let mut claim = (*claim).clone();
    let scope = ("karpenter.k8s.cloudstack/scope".to_owned(), "own".to_owned());
    claim.metadata.annotations = Some(BTreeMap::from([scope]));
    let error = world.another(7).create(&claim).await.expect_err("it began elsewhere");
    assert!(error.to_string().contains("began in own"), "{error}");
    assert_eq!(world.calls("deployVirtualMachine"), 1, "and no second machine is made");
    world.delete(&claim).await.expect("gone");
    assert!(world.live().is_empty());
}

#[tokio::test(start_paused = true)]
async fn our_own_account_counts_where_all_of_the_domain_are_shown() {
    let world = World::new().await;
    world.cloud.add_account("other", "k8s-net");
    world.cloud.configure(|settings| settings.user_sees_domain_accounts = true);
    // Of the account that is shown first.
    world.cloud.limit("user_vm", 0);
    let other = world.as_account("other");
    world.class_by(&other, "default", spec()).await;
    let instance = world
        .launch_by(&other, &world.claim("np-a", json!({"cpu": "1"})))
        .await
        .expect("its own limits count");
    let recorded = &instance.annotations["karpenter.k8s.cloudstack/account-id"];
    assert!(!recorded.is_empty());
    let listed = world.provider.list().await.expect("a list");
    let id = |claim: &karpenter_api::NodeClaim| claim.status.clone().and_then(|status| status.provider_id);
    assert_eq!(
        listed.iter().filter_map(id).collect::<Vec<_>>(),
        [instance.provider_id],
        "as of another account"
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_made_while_nobody_says_whose_the_keys_are() {
    let world = World::new().await;
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    world.cloud.inject(Fault::times("listAccounts", 4, Trouble::Proxy(502)));
    world.launch(&claim).await.expect_err("it could not be recorded");
    assert_eq!(world.calls("deployVirtualMachine"), 0);
    let instance = world.launch(&claim).await.expect("a machine");
    assert!(instance.annotations.contains_key("karpenter.k8s.cloudstack/account-id"));
}

#[tokio::test(start_paused = true)]
async fn offerings_are_those_of_the_project_or_account_machines_are_made_in() {
    let world = World::new().await;
    let other = json!({"name": "k8s.mini", "cpunumber": 2, "memory": 2048, "domainid": "11111111-2222-4000-8000-000000000000"});
    world.cloud.add("serviceoffering", other);
    let root = world.as_root();
    let mut all = spec();
    all["serviceOfferingSelectorTerms"] = json!([{"name": "k8s.mini"}, {"name": "k8s.small"}]);
    world.class_by(&root, "default", all).await;
    let asked = world.cloud.log();
    let asked = asked.iter().rev().find(|entry| entry.command == "listServiceOfferings").expect("a list");
    assert!(
        asked.parameters.contains_key("account") && asked.parameters.contains_key("domainid"),
        "{asked:?}"
    );
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    let instance = world.launch_by(&root, &claim).await.expect("a machine");
    assert_eq!(instance.labels["node.kubernetes.io/instance-type"], "k8s.small");
    assert_eq!(world.calls("deployVirtualMachine"), 1, "what is for another domain is not asked for");
}

#[tokio::test(start_paused = true)]
async fn what_kubelet_is_told_to_keep_is_drift_where_user_data_tells_it() {
    let world = World::new().await;
    let hash = async |bootstrap: Value, kept: &str| {
        let mut class = spec();
        class["kubeReserved"] = json!({"cpu": kept});
        if !bootstrap.is_null() {
            class["bootstrap"] = bootstrap;
        }
        world.class("kept", class).await.hash()
    };
    assert_eq!(
        hash(Value::Null, "100m").await,
        hash(Value::Null, "200m").await,
        "machines hear nothing of it"
    );
    let joins = json!({"mode": "K3s", "apiServer": "api:6443"});
    assert_ne!(hash(joins.clone(), "100m").await, hash(joins, "200m").await);
}

#[tokio::test(start_paused = true)]
async fn a_launch_that_made_nothing_before_its_class_was_edited_is_of_the_class_as_it_is_now() {
    let world = World::new().await;
    let (provider, written) = writing(&world);
    let mut claim = (*world.claim("np-a", json!({"cpu": "1"}))).clone();
    claim.metadata.annotations = Some(BTreeMap::from([
        ("karpenter.k8s.cloudstack/scope".to_owned(), "own".to_owned()),
        ("karpenter.k8s.cloudstack/nodeclass-hash".to_owned(), "7".to_owned()),
        ("karpenter.k8s.cloudstack/nodeclass-hash-version".to_owned(), HASH_VERSION.to_owned()),
    ]));
    provider.create(&claim).await.expect("a machine");
    seconds(10).await;
    let hash = world.cluster.classes.lock().unwrap()["default"].hash();
    let stamp = json!({"karpenter.k8s.cloudstack/nodeclass-hash": hash,
        "karpenter.k8s.cloudstack/nodeclass-hash-version": HASH_VERSION});
    assert_eq!(*written.lock().unwrap(), [(stamp, 0)], "before anything was made");
    let tag = &world.live()[0].tags["karpenter.k8s.cloudstack/nodeclass-hash"];
    assert_eq!(*tag, format!("{HASH_VERSION}/{hash}"));
}
