//! Tests of how keys are exchanged.

use k8s_openapi::ByteString;

use super::*;
use crate::client::{Estate, Made};

/// A server that knows the accounts of some keys.
#[derive(Default)]
struct Doorman(Mutex<std::collections::BTreeMap<&'static str, &'static str>>);

impl Doorman {
    fn knows(&self, keys: &[(&'static str, &'static str)]) {
        *self.0.lock().expect("a lock") = keys.iter().copied().collect();
    }
}

impl Transport for Doorman {
    fn send(
        &self,
        request: http::Request<bytes::Bytes>,
    ) -> BoxFuture<'_, Result<http::Response<bytes::Bytes>, TransportError>> {
        let asked = format!("{}&{}", request.uri(), String::from_utf8_lossy(request.body())).to_lowercase();
        let known = self.0.lock().expect("a lock");
        let account = known.iter().find(|(key, _)| asked.contains(&format!("apikey={key}")));
        let (status, body) = match account {
            None => (401, r#"{"errorcode":401,"errortext":"unable to verify user credentials"}"#.to_owned()),
            Some((_, &"unknown")) if asked.contains("listaccounts") => {
                (530, r#"{"errorcode":530,"errortext":"internal error"}"#.to_owned())
            }
            Some((_, &"many")) if asked.contains("listaccounts") => {
                let rows = r#"{"id":"id-many","name":"many"},{"id":"id-more","name":"more"}"#;
                (200, format!(r#"{{"count":2,"account":[{rows}]}}"#))
            }
            Some((_, account)) if asked.contains("listaccounts") => {
                (200, format!(r#"{{"count":1,"account":[{{"id":"id-{account}","name":"{account}"}}]}}"#))
            }
            Some((_, &"slow")) => {
                (200, r#"{"capability":{"apilimitmax":10,"apilimitinterval":100}}"#.to_owned())
            }
            Some(_) => (200, r#"{"capability":{}}"#.to_owned()),
        };
        let command = match asked.contains("command=listaccounts") {
            true => "listaccounts",
            false => "listcapabilities",
        };
        let answer = http::Response::builder().status(status);
        let answer = answer.body(format!(r#"{{"{command}response":{body}}}"#).into()).expect("an answer");
        std::future::ready(Ok(answer)).boxed()
    }
}

fn pair(key: &str) -> Keys {
    Keys {
        place: "Secret karpenter/keys".into(),
        api_url: "https://cloud/client/api".into(),
        credentials: Credentials::new(key, "secret"),
        project: None,
        way: Way::default(),
    }
}

/// A client with the keys "old" of account "ours".
fn at_the_door() -> (Arc<Doorman>, Roads, Client) {
    let doorman = Arc::new(Doorman::default());
    doorman.knows(&[("old", "ours"), ("new", "ours"), ("foreign", "theirs")]);
    let there = Arc::clone(&doorman);
    let roads: Roads = Arc::new(move |_, _| Ok(Arc::clone(&there) as Arc<dyn Transport>));
    let environment = karpenter_runtime::environment::Environment::seeded(
        "2026-01-01T00:00:00Z".parse().expect("a time"),
        1,
    );
    let session = pair("old").session(&roads).expect("a session");
    let client = Client::new(session, crate::client::throttle::Rate::default(), &environment);
    (doorman, roads, client)
}

#[tokio::test(start_paused = true)]
async fn keys_of_another_account_are_not_taken_and_those_of_the_same_are() {
    let (doorman, roads, client) = at_the_door();
    assert!(!exchange(&client, pair("foreign"), &roads).await, "its machines are others");
    let notice = client.notice().expect("a notice").text;
    assert!(notice.contains("account theirs") && notice.contains("account ours"), "{notice}");
    assert_eq!(client.session().credentials.api_key(), "old");
    // Revoked meanwhile: whose they were is remembered.
    doorman.knows(&[("new", "ours"), ("foreign", "theirs")]);
    assert!(!exchange(&client, pair("foreign"), &roads).await);
    assert!(exchange(&client, pair("new"), &roads).await);
    assert_eq!((client.notice(), client.session().credentials.api_key()), (None, "new"));
    assert!(!exchange(&client, pair("foreign"), &roads).await, "held against the new ones now");
}

#[tokio::test(start_paused = true)]
async fn keys_are_not_taken_where_the_server_shows_many_accounts_and_not_whose_they_are() {
    let (doorman, roads, client) = at_the_door();
    doorman.knows(&[("old", "many"), ("new", "many")]);
    assert!(!exchange(&client, pair("new"), &roads).await);
    let notice = client.notice().expect("a notice").text;
    assert!(notice.contains("account many, more") && notice.contains("restart Karpenter"), "{notice}");
    assert_eq!(client.session().credentials.api_key(), "old");
}

#[tokio::test(start_paused = true)]
async fn keys_of_an_account_whose_calls_are_counted_are_used_no_more_often_than_it_allows() {
    let (doorman, roads, client) = at_the_door();
    doorman.knows(&[("new", "slow")]);
    assert!(exchange(&client, pair("new"), &roads).await, "the old ones never worked");
    let begun = tokio::time::Instant::now();
    for _ in 0..20 {
        client.probe(&client.session()).await.expect("let in");
    }
    assert!(begun.elapsed() > Duration::from_secs(60), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn keys_that_never_worked_do_not_stand_in_the_way_of_those_that_do() {
    let (doorman, roads, client) = at_the_door();
    doorman.knows(&[("new", "ours")]);
    assert!(exchange(&client, pair("new"), &roads).await);
}

#[tokio::test(start_paused = true)]
async fn keys_are_not_taken_while_nobody_can_say_whose_the_old_ones_are() {
    let (doorman, roads, client) = at_the_door();
    doorman.knows(&[("old", "unknown"), ("foreign", "theirs")]);
    assert!(!exchange(&client, pair("foreign"), &roads).await);
    let notice = client.notice().expect("a notice").text;
    assert!(notice.contains("whose the old ones are"), "{notice}");
    assert_eq!(client.session().credentials.api_key(), "old");
}

/// The Secrets of a cluster that refuses to show any.
fn refusing(code: u16, reason: &'static str) -> Api<Secret> {
    let answer = move |_: http::Request<kube::client::Body>| async move {
        let status = serde_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Failure", "message": "no", "reason": reason, "code": code});
        let body = kube::client::Body::from(status.to_string().into_bytes());
        let answer = http::Response::builder().status(code).body(body).expect("an answer");
        Ok::<_, std::convert::Infallible>(answer)
    };
    Api::namespaced(kube::Client::new(tower::service_fn(answer), "default"), "karpenter")
}

#[tokio::test]
async fn a_secret_that_may_not_be_read_is_told_from_one_that_is_not_there() {
    let (_, roads, client) = at_the_door();
    let key = ObjectKey::namespaced("karpenter", "keys");
    let watching = |api: Api<Secret>| SecretKeys {
        secrets: Store::new(),
        api,
        keeper: KeyKeeper::new(&roads, client.clone()),
    };
    let said = || client.notice().map(|notice| notice.text).unwrap_or_default();
    let forbidden = watching(refusing(403, "Forbidden"));
    assert!(forbidden.follow(key.clone()).await.is_ok());
    assert!(
        said().contains("Secret karpenter/keys may not be read") && said().contains("Role"),
        "{}",
        said()
    );
    let missing = watching(refusing(404, "NotFound"));
    assert!(missing.follow(key.clone()).await.is_ok());
    assert!(said().starts_with("there is no Secret karpenter/keys; create it"), "{}", said());
    // Deleted while it is used.
    let entry = |name: &str, text: &str| (name.to_owned(), ByteString(text.into()));
    let data =
        [entry("api-url", "https://cloud/client/api"), entry("api-key", "old"), entry("secret-key", "s")];
    let secret = Secret { data: Some(data.into()), ..Secret::default() };
    assert!(missing.keeper.take_up("Secret karpenter/keys", &secret).await);
    assert_eq!(said(), "");
    assert!(missing.follow(key).await.is_ok());
    assert!(said().contains("the keys read before go on"), "{}", said());
    assert_eq!(client.session().credentials.api_key(), "old");
}

/// A keeper of the keys "old".
fn with_old(roads: &Roads, client: &Client) -> KeyKeeper {
    let keeper = KeyKeeper::new(roads, client.clone());
    *keeper.current() = Some(pair("old"));
    keeper
}

#[tokio::test(start_paused = true)]
async fn files_that_lack_a_key_or_make_no_sense_are_told_of_and_taken_once_they_are_put_right() {
    let (_, roads, client) = at_the_door();
    client.become_session(no_session("nothing was read yet".into()));
    let directory = std::env::temp_dir().join(format!("karpenter-keys-first-{}", std::process::id()));
    let files = Files { directory: directory.clone(), keeper: KeyKeeper::new(&roads, client.clone()) };
    let said = || client.notice().map(|notice| (notice.reason, notice.text)).unwrap_or_default();
    files.begin();
    assert!(said().0 == "SecretNotUsable" && said().1.contains("karpenter-keys-first"), "{:?}", said());
    assert!(client.session().has_no_keys());
    std::fs::create_dir_all(&directory).expect("a directory");
    let write = |name: &str, text: &str| std::fs::write(directory.join(name), text).expect("a file");
    write("api-url", "https://cloud/client/api");
    write("api-key", "new");
    assert!(!files.follow().await);
    assert!(said().1.contains("secret-key"), "{:?}", said());
    write("secret-key", "secret");
    write("ca-bundle", "nothing");
    assert!(!files.follow().await);
    assert!(said().1.contains("ca-bundle cannot be used"), "{:?}", said());
    write("ca-bundle", "");
    assert!(files.follow().await);
    assert_eq!((client.notice(), client.session().credentials.api_key()), (None, "new"));
    std::fs::remove_dir_all(&directory).expect("removed");
}

#[tokio::test(start_paused = true)]
async fn keys_whose_files_are_gone_go_on_and_are_told_of() {
    let (_, roads, client) = at_the_door();
    let directory = std::env::temp_dir().join(format!("karpenter-keys-gone-{}", std::process::id()));
    let files = Files { directory, keeper: with_old(&roads, &client) };
    assert!(!files.follow().await);
    let notice = client.notice().expect("a notice");
    assert_eq!(notice.reason, "SecretNotUsable");
    assert!(notice.text.contains("karpenter-keys-gone") && notice.text.contains("go on"), "{}", notice.text);
    assert_eq!(client.session().credentials.api_key(), "old");
}

/// What the cluster says was made.
struct Recorded(Made);

impl Estate for Recorded {
    fn made(&self) -> Option<Made> {
        Some(self.0.clone())
    }

    fn forget(&self) {}
}

fn recorded(client: &Client, made: Made) -> Arc<dyn Estate> {
    let estate: Arc<dyn Estate> = Arc::new(Recorded(made));
    client.has_estate(Arc::downgrade(&estate));
    estate
}

#[tokio::test(start_paused = true)]
async fn an_address_that_never_answered_does_not_stand_in_the_way_of_the_right_one() {
    let (_, roads, client) = at_the_door();
    client.become_session(nobodys("https://clodu/client/api", "nobody listens there".into()));
    assert!(!exchange(&client, pair("new"), &roads).await, "what was made is not known");
    let of = |accounts: &[&str], unrecorded| Made {
        accounts: accounts.iter().map(|account| (*account).to_owned()).collect(),
        unrecorded,
        anything: true,
    };
    let _theirs = recorded(&client, of(&["id-theirs"], false));
    assert!(!exchange(&client, pair("new"), &roads).await, "machines are of another account");
    let _unrecorded = recorded(&client, of(&["id-ours"], true));
    assert!(!exchange(&client, pair("new"), &roads).await, "of one machine nobody knows");
    let _ours = recorded(&client, of(&["id-ours"], false));
    assert!(exchange(&client, pair("new"), &roads).await);
    assert_eq!((client.notice(), client.session().credentials.api_key()), (None, "new"));
}

/// Counts how often everything was forgotten.
#[derive(Default)]
struct Forgetful(std::sync::atomic::AtomicUsize);

impl Estate for Forgetful {
    fn made(&self) -> Option<Made> {
        None
    }

    fn forget(&self) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn what_keys_saw_is_forgotten_unless_the_new_ones_are_known_to_see_the_same() {
    let (doorman, roads, client) = at_the_door();
    let estate = Arc::new(Forgetful::default());
    let seen: Arc<dyn Estate> = estate.clone();
    client.has_estate(Arc::downgrade(&seen));
    let forgotten = || estate.0.load(std::sync::atomic::Ordering::Relaxed);
    // Refused before they said whose they are.
    doorman.knows(&[("new", "ours"), ("old", "ours")]);
    client.become_session(pair("revoked").session(&roads).expect("a session"));
    assert!(exchange(&client, pair("new"), &roads).await);
    assert_eq!(forgotten(), 1);
    assert!(exchange(&client, pair("old"), &roads).await);
    assert_eq!(forgotten(), 1, "of the same account");
}

#[tokio::test(start_paused = true)]
async fn keys_of_another_account_are_taken_while_nothing_was_made() {
    let (_, roads, client) = at_the_door();
    let something = recorded(&client, Made { anything: true, ..Made::default() });
    assert!(!exchange(&client, pair("foreign"), &roads).await);
    drop(something);
    assert!(!exchange(&client, pair("foreign"), &roads).await, "what was made is not known");
    let _nothing = recorded(&client, Made::default());
    assert!(exchange(&client, pair("foreign"), &roads).await);
    assert_eq!(client.session().credentials.api_key(), "foreign");
    let _nothing = recorded(&client, Made { anything: true, ..Made::default() });
    assert!(!exchange(&client, pair("new"), &roads).await, "held against the new ones now");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_refused_any_more_once_the_old_keys_are_back() {
    let (_, roads, client) = at_the_door();
    let directory = std::env::temp_dir().join(format!("karpenter-keys-back-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let write = |name: &str, text: &str| std::fs::write(directory.join(name), text).expect("a file");
    write("api-url", "https://cloud/client/api");
    write("secret-key", "secret");
    write("api-key", "wrong");
    let stop = CancellationToken::new();
    let files = Files { directory: directory.clone(), keeper: with_old(&roads, &client) };
    let follows = tokio::spawn(files.run(stop.clone()));
    tokio::time::sleep(INTERVAL * 3).await;
    assert!(client.notice().is_some(), "wrong keys are told of");
    write("api-key", "old");
    tokio::time::sleep(INTERVAL * 3).await;
    assert_eq!(client.notice(), None);
    stop.cancel();
    follows.await.expect("it ends");
    std::fs::remove_dir_all(&directory).expect("removed");
}

#[tokio::test(start_paused = true)]
async fn keys_of_another_project_are_taken_only_while_nothing_was_made() {
    let (_, roads, client) = at_the_door();
    let of = |project: &str| Keys { project: Some(project.to_owned()), ..pair("old") };
    let _something = recorded(&client, Made { anything: true, ..Made::default() });
    assert!(!exchange(&client, of("team"), &roads).await);
    let notice = client.notice().expect("a notice").text;
    for part in
        ["Secret karpenter/keys", "project-id", "project team instead of no project", "spec.projectID"]
    {
        assert!(notice.contains(part), "{notice}");
    }
    assert_eq!(client.session().project, None);
    let _nothing = recorded(&client, Made::default());
    assert!(exchange(&client, of("team"), &roads).await);
    assert_eq!(client.session().project.as_deref(), Some("team"));
    let _something = recorded(&client, Made { anything: true, ..Made::default() });
    let newer = Keys { project: Some("team".into()), ..pair("new") };
    assert!(exchange(&client, newer, &roads).await, "other keys, and where machines are made is the same");
}

const AUTHORITY: &str = include_str!("../tests/it/certificates/ca.pem");

/// A Secret with the keys "old" and what it says of the way.
fn secret(way: &[(&str, &str)]) -> Secret {
    let keys = [("api-url", "https://cloud/client/api"), ("api-key", "old"), ("secret-key", "secret")];
    let said = keys.iter().chain(way).map(|(name, text)| ((*name).to_owned(), ByteString((*text).into())));
    Secret { data: Some(said.collect()), ..Secret::default() }
}

/// A keeper of keys for a server that is reached only by who trusts its authority and takes no proxy but this one.
fn behind_an_authority() -> (Client, KeyKeeper) {
    let (doorman, _, client) = at_the_door();
    client.become_session(no_session("nothing was read yet".into()));
    let roads: Roads = Arc::new(move |_, way| {
        let trusted = way.ca_bundle.as_deref() == Some(AUTHORITY.trim());
        let reached = way.proxy.as_ref().is_none_or(|(proxy, _)| proxy == "http://right:3128");
        Ok(match trusted && reached {
            true => Arc::clone(&doorman) as Arc<dyn Transport>,
            false => Arc::new(Nowhere("invalid peer certificate".into())),
        })
    });
    let keeper = KeyKeeper::new(&roads, client.clone());
    (client, keeper)
}

#[tokio::test(start_paused = true)]
async fn another_way_to_the_server_is_taken_up_when_the_secret_changes() {
    let (client, keeper) = behind_an_authority();
    let place = "Secret karpenter/keys";
    assert!(keeper.take_up(place, &secret(&[])).await, "the first keys are better than none");
    assert!(client.capabilities().await.is_err(), "nobody trusts its certificate");
    // Machines of which no account is recorded do not stand in the way: the user is the same.
    let made = Made { unrecorded: true, anything: true, ..Made::default() };
    let _estate = recorded(&client, made);
    assert!(keeper.take_up(place, &secret(&[("ca-bundle", AUTHORITY)])).await);
    assert!(client.capabilities().await.is_ok());
    let age = client.age_of_keys();
    let through = [("ca-bundle", AUTHORITY), ("proxy", "http://right:3128")];
    tokio::time::advance(Duration::from_secs(60)).await;
    assert!(keeper.take_up(place, &secret(&through)).await);
    assert!(client.capabilities().await.is_ok());
    assert!(client.age_of_keys() > age, "the keys are the same");
    assert_eq!(client.notice(), None);
}

#[tokio::test(start_paused = true)]
async fn a_way_that_leads_nowhere_or_makes_no_sense_is_told_of_and_the_old_one_goes_on() {
    let (client, keeper) = behind_an_authority();
    let place = "Secret karpenter/keys";
    assert!(keeper.take_up(place, &secret(&[("ca-bundle", AUTHORITY)])).await);
    for (way, reason, parts) in [
        (vec![("ca-bundle", "garbage")], "SecretNotUsable", ["ca-bundle", "certificates in PEM"]),
        (
            vec![("ca-bundle", AUTHORITY), ("proxy", "ftp://wrong")],
            "SecretNotUsable",
            ["proxy", "http://HOST:PORT"],
        ),
        (
            vec![("ca-bundle", AUTHORITY), ("proxy", "http://wrong:3128")],
            "NewKeysRefused",
            ["ca-bundle, proxy", "invalid peer certificate"],
        ),
        (vec![], "NewKeysRefused", ["ca-bundle, proxy", "the old one goes on"]),
    ] {
        keeper.take_up(place, &secret(&way)).await;
        let notice = client.notice().expect("a notice");
        assert_eq!(notice.reason, reason, "{}", notice.text);
        for part in parts.into_iter().chain([place]) {
            assert!(notice.text.contains(part), "{part}: {}", notice.text);
        }
        assert!(client.capabilities().await.is_ok(), "what worked works");
    }
    assert!(keeper.take_up(place, &secret(&[("ca-bundle", AUTHORITY)])).await);
    assert_eq!(client.notice(), None);
}

#[tokio::test(start_paused = true)]
async fn a_call_made_before_the_keys_were_read_waits_for_them_and_not_for_ever() {
    let (client, keeper) = behind_an_authority();
    let began = tokio::time::Instant::now();
    let early = tokio::spawn({
        let client = client.clone();
        async move { client.capabilities().await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(keeper.take_up("Secret karpenter/keys", &secret(&[("ca-bundle", AUTHORITY)])).await);
    assert!(early.await.unwrap().is_ok(), "it goes on with the keys that came");
    assert!(began.elapsed() < Duration::from_secs(2), "and at once");

    client.become_session(no_session("nothing was read yet".into()));
    let error = client.capabilities().await.unwrap_err();
    assert!(error.text.contains("nothing was read yet"), "{error}");

    // Where it is known that there are none, nobody waits.
    client.become_session(nobodys(NO_KEYS, "there is no Secret".into()));
    let began = tokio::time::Instant::now();
    assert!(client.call(&crate::client::requests::list_accounts()).await.is_err());
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}
