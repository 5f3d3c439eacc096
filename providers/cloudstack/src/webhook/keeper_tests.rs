//! Replicas that share one Secret, on a cluster in memory.

use karpenter_runtime::clock::TokioClock;
use karpenter_sim::Cluster;
use karpenter_sim::cluster::EPOCH;
use serde_json::{Value, json};

use super::*;

const NAME: &str = "karpenter-cloudstack-webhook";
const DAY: SignedDuration = SignedDuration::from_hours(24);

fn options() -> WebhookOptions {
    WebhookOptions { port: 8443, namespace: "default".to_owned(), name: NAME.to_owned() }
}

struct World {
    cluster: Cluster,
    clock: TokioClock,
}

impl World {
    /// A cluster with both configurations, as the chart makes them, and a webhook of somebody else in each.
    async fn new() -> Self {
        let world = Self { cluster: Cluster::new(1), clock: TokioClock::starting_at(EPOCH) };
        let webhooks = |service: &str| {
            json!({"name": format!("{service}.example.com"), "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "clientConfig": {"service": {"name": service, "namespace": "default"}}})
        };
        let both = json!([webhooks(NAME), webhooks("other")]);
        let metadata = json!({"name": NAME});
        let validating = json!({"metadata": metadata, "webhooks": both});
        let client = world.cluster.client("chart");
        Api::<ValidatingWebhookConfiguration>::all(client.clone())
            .create(
                &PostParams::default(),
                &serde_json::from_value(validating.clone()).expect("a configuration"),
            )
            .await
            .expect("created");
        Api::<MutatingWebhookConfiguration>::all(client)
            .create(&PostParams::default(), &serde_json::from_value(validating).expect("a configuration"))
            .await
            .expect("created");
        world
    }

    fn replica(&self, name: &str) -> Keeper {
        Keeper::new(options(), &self.cluster.client(name), Arc::new(self.clock.clone()))
    }

    async fn secret(&self) -> Secret {
        let api: Api<Secret> = Api::namespaced(self.cluster.client("user"), "default");
        api.get(NAME).await.expect("the Secret")
    }

    /// Whom each webhook of both configurations trusts.
    async fn trusted(&self) -> Vec<Option<String>> {
        let text = |client: WebhookClientConfig| {
            client.ca_bundle.map(|bundle| String::from_utf8(bundle.0).expect("PEM"))
        };
        let client = self.cluster.client("user");
        let validating: ValidatingWebhookConfiguration =
            Api::all(client.clone()).get(NAME).await.expect("there");
        let mutating: MutatingWebhookConfiguration = Api::all(client).get(NAME).await.expect("there");
        let validating =
            validating.webhooks.unwrap_or_default().into_iter().map(|webhook| webhook.client_config);
        let mutating = mutating.webhooks.unwrap_or_default().into_iter().map(|webhook| webhook.client_config);
        validating.chain(mutating).map(text).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn two_replicas_that_race_end_with_one_secret() {
    let world = World::new().await;
    let (one, two) = (world.replica("one"), world.replica("two"));
    // Both saw none.
    let (first, second) = tokio::join!(one.renew(None), two.renew(None));
    let made: Vec<Held> =
        [first, second].into_iter().filter_map(|made| made.expect("written or not")).collect();
    assert_eq!(made.len(), 1, "only one of them was first");
    let (ones, trouble) = one.look().await.expect("a certificate");
    let (twos, _) = two.look().await.expect("a certificate");
    assert_eq!(trouble, None);
    assert_eq!(ones.certificate, made[0].certificate);
    assert_eq!(twos.certificate, made[0].certificate);
    let bundle = Some(made[0].bundle.clone());
    assert_eq!(
        world.trusted().await,
        [bundle.clone(), None, bundle, None],
        "others' webhooks are left alone"
    );
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_renewed_long_before_its_end_and_the_one_before_stays_trusted() {
    let world = World::new().await;
    let (one, two) = (world.replica("one"), world.replica("two"));
    let (first, _) = one.look().await.expect("a certificate");
    world.clock.step(DAY * 270);
    assert_eq!(one.look().await.expect("a certificate").0.certificate, first.certificate, "not yet");
    let seen = world.secret().await;
    world.clock.step(DAY * 10);
    let (second, _) = one.look().await.expect("a certificate");
    assert_ne!(second.certificate, first.certificate);
    assert!(two.renew(Some(seen)).await.expect("no error").is_none(), "whoever is late writes nothing");
    let secret = world.secret().await;
    let now = EPOCH + DAY * 280;
    // The key of the one before is nobody's business here: only whether its certificate would be taken.
    let trusts = |bundle: &str, certificate: &str| {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(
            CertificateDer::pem_slice_iter(bundle.as_bytes()).map(|found| found.expect("a certificate")),
        );
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().expect("roots");
        let host = ServerName::try_from(options().host()).expect("a name");
        let at = UnixTime::since_unix_epoch(Duration::from_secs(now.as_second().unsigned_abs()));
        let shown = CertificateDer::from_pem_slice(certificate.as_bytes()).expect("a certificate");
        verifier.verify_server_cert(&shown, &[], &host, &[], at).is_ok()
    };
    assert!(trusts(&second.bundle, &first.certificate) && trusts(&second.bundle, &second.certificate));
    assert_eq!(text_of(&secret, BUNDLE).expect("a bundle"), second.bundle);
    assert_eq!(world.trusted().await[0], Some(second.bundle.clone()));
    world.clock.step(DAY * 280);
    let (third, _) = two.look().await.expect("a certificate");
    assert!(!trusts(&third.bundle, &first.certificate), "nobody shows that one any more");
    assert_eq!(third.bundle.matches("BEGIN CERTIFICATE").count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_is_not_good_yet_is_renewed() {
    let world = World::new().await;
    let keeper = world.replica("one");
    let (first, _) = keeper.look().await.expect("a certificate");
    world.clock.step(-DAY);
    let (second, _) = keeper.look().await.expect("a certificate");
    assert_ne!(second.certificate, first.certificate);
    world.clock.step(DAY);
    assert_eq!(keeper.look().await.expect("a certificate").0.certificate, second.certificate);
}

#[tokio::test(start_paused = true)]
async fn a_secret_of_somebody_else_is_not_overwritten() {
    let world = World::new().await;
    let theirs: Secret =
        serde_json::from_value::<Secret>(json!({"metadata": {"name": NAME}, "stringData": {"x": "y"}}))
            .expect("a Secret");
    let api: Api<Secret> = Api::namespaced(world.cluster.client("user"), "default");
    api.create(&PostParams::default(), &theirs).await.expect("created");
    let before = world.secret().await;
    let refused = world.replica("one").look().await.err().expect("refused");
    assert!(refused.contains("CLOUDSTACK_WEBHOOK_NAME"), "{refused}");
    assert_eq!(world.secret().await, before);
}

#[tokio::test(start_paused = true)]
async fn without_configurations_it_serves_and_says_what_is_missing() {
    let world = World { cluster: Cluster::new(1), clock: TokioClock::starting_at(EPOCH) };
    let (_, trouble) = world.replica("one").look().await.expect("a certificate");
    let trouble = trouble.expect("told");
    assert!(trouble.contains("ValidatingWebhookConfiguration") && trouble.contains("Mutating"), "{trouble}");
    assert!(!trouble.contains("PRIVATE"), "{trouble}");
}

#[tokio::test(start_paused = true)]
async fn what_somebody_broke_in_the_secret_or_took_from_a_configuration_is_put_right() {
    let world = World::new().await;
    let keeper = world.replica("one");
    let (first, _) = keeper.look().await.expect("a certificate");
    let api: Api<Secret> = Api::namespaced(world.cluster.client("user"), "default");
    let mut broken = world.secret().await;
    broken.data.get_or_insert_default().insert(KEY.to_owned(), ByteString(b"no key".to_vec()));
    api.replace(NAME, &PostParams::default(), &broken).await.expect("broken");
    let (second, _) = keeper.look().await.expect("a certificate");
    assert_ne!(second.certificate, first.certificate);
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(world.cluster.client("user"));
    let mut configuration = configurations.get(NAME).await.expect("there");
    configuration.webhooks.iter_mut().flatten().for_each(|webhook| webhook.client_config.ca_bundle = None);
    configurations.replace(NAME, &PostParams::default(), &configuration).await.expect("taken");
    keeper.look().await.expect("a certificate");
    assert_eq!(world.trusted().await[0], Some(second.bundle));
    let labels: Value = serde_json::to_value(world.secret().await.metadata.labels).expect("labels");
    assert_eq!(labels[OURS], "true");
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_somebody_else_put_there_is_shown_while_it_is_good() {
    let world = World::new().await;
    let keeper = world.replica("one");
    let (first, _) = keeper.look().await.expect("a certificate");
    let api: Api<Secret> = Api::namespaced(world.cluster.client("user"), "default");
    let mut theirs = world.secret().await;
    theirs.metadata.labels = None;
    let theirs = api.replace(NAME, &PostParams::default(), &theirs).await.expect("theirs");
    world.clock.step(DAY * 300);
    assert_eq!(keeper.look().await.expect("still good").0.certificate, first.certificate);
    world.clock.step(DAY * 70);
    keeper.look().await.err().expect("expired");
    assert_eq!(world.secret().await, theirs);
}

#[tokio::test(start_paused = true)]
async fn a_replica_serves_with_what_it_finds_and_changes_to_what_comes_after() {
    let world = World::new().await;
    let (sender, mut current) = watch::channel(None);
    let stop = CancellationToken::new();
    let followed = tokio::spawn(world.replica("one").follow(sender, stop.clone()));
    current.changed().await.expect("a certificate");
    let first = current.borrow_and_update().clone().expect("a certificate");
    let api: Api<Secret> = Api::namespaced(world.cluster.client("user"), "default");
    api.delete(NAME, &kube::api::DeleteParams::default()).await.expect("deleted");
    // Within a minute of virtual time.
    tokio::time::timeout(LOOK * 2, current.changed()).await.expect("soon").expect("a certificate");
    let second = current.borrow_and_update().clone().expect("a certificate");
    assert!(!Arc::ptr_eq(&first, &second));
    stop.cancel();
    followed.await.expect("an end");
}
