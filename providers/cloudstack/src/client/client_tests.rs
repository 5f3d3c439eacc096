//! What the client makes of answers, against a server of a few lines.

use bytes::Bytes;
use std::collections::VecDeque;

use ::http::Response;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::json;

use super::model::Zone;
use super::*;

type Answer = Result<(u16, String), TransportError>;

/// Answers in order, and remembers what was asked.
#[derive(Default)]
struct Script {
    answers: Mutex<VecDeque<Answer>>,
    asked: Mutex<Vec<String>>,
}

impl Script {
    fn of(answers: impl IntoIterator<Item = Answer>) -> Arc<Self> {
        Arc::new(Self { answers: Mutex::new(answers.into_iter().collect()), ..Self::default() })
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Transport for Script {
    fn send(
        &self,
        request: ::http::Request<Bytes>,
    ) -> BoxFuture<'_, Result<Response<Bytes>, TransportError>> {
        let text =
            format!("{} {} {}", request.method(), request.uri(), String::from_utf8_lossy(request.body()));
        self.asked.lock().unwrap().push(text);
        let answer = self.answers.lock().unwrap().pop_front().expect("an answer for every question");
        let asked = self.asked.lock().unwrap().last().cloned().unwrap_or_default();
        let command = asked.split_once("command=").and_then(|(_, rest)| rest.split('&').next());
        let envelope = format!("\"{}response\"", command.unwrap_or_default().to_lowercase());
        async move {
            let (status, body) = answer?;
            let body = body.replace("\"xresponse\"", &envelope);
            Ok(Response::builder().status(status).body(body.into()).unwrap())
        }
        .boxed()
    }
}

fn client(script: &Arc<Script>) -> Client {
    let environment = Environment::seeded("2026-01-01T00:00:00Z".parse().unwrap(), 1);
    let session = Session {
        endpoint: "https://cloud/client/api".into(),
        credentials: Credentials::new("key", "secret"),
        transport: Arc::clone(script) as Arc<dyn Transport>,
        project: None,
    };
    Client::new(session, Rate::default(), &environment)
}

/// Whatever was asked, the answer is in its envelope.
fn ok(body: serde_json::Value) -> Answer {
    Ok((200, json!({"xresponse": body}).to_string()))
}

fn refused(code: u16, text: &str) -> Answer {
    Ok((code, json!({"xresponse": {"uuidList": [], "errorcode": code, "errortext": text}}).to_string()))
}

#[tokio::test(start_paused = true)]
async fn reads_go_by_get_and_writes_by_post_signed_with_a_time() {
    let script = Script::of([ok(json!({})), ok(json!({"jobid": "j"}))]);
    let client = client(&script);
    client.call(&requests::list_zones()).await.expect("an answer");
    client.call(&requests::start("vm")).await.expect("an answer");
    let asked = script.asked();
    assert!(asked[0].starts_with("GET https://cloud/client/api?command=listZones&response=json&apiKey=key"));
    assert!(asked[0].contains("signatureVersion=3&expires=2026-01-01T00%3A10%3A00%2B0000"), "{}", asked[0]);
    assert!(asked[0].contains("&signature="));
    assert!(
        asked[1].starts_with("POST https://cloud/client/api command=startVirtualMachine"),
        "{}",
        asked[1]
    );
}

#[tokio::test(start_paused = true)]
async fn a_read_is_repeated_through_what_passes_and_a_write_is_not() {
    let script = Script::of([
        Ok((502, "<html>Bad Gateway</html>".into())),
        Ok((200, "{\"xresponse\": {\"cou".into())),
        Err(TransportError::NoAnswer("reset".into())),
        ok(json!({"count": 1, "zone": [{"id": "z", "name": "zone"}]})),
        Err(TransportError::NoAnswer("reset".into())),
    ]);
    let client = client(&script);
    let zones: Vec<Zone> = client.list(&requests::list_zones(), Lane::Refresh).await.expect("zones");
    assert_eq!(zones[0].name, "zone");
    let error = client.call(&requests::start("vm")).await.expect_err("lost");
    assert!(error.outcome_unknown());
    assert_eq!(script.asked().len(), 5, "the write was sent once");
}

#[tokio::test(start_paused = true)]
async fn a_throttled_call_waits_as_long_as_it_is_told() {
    let script =
        Script::of([refused(429, "limit, please retry after [9318] ms."), ok(json!({"jobid": "j"}))]);
    let client = client(&script);
    let start = Instant::now();
    client.call(&requests::start("vm")).await.expect("an answer");
    assert!(start.elapsed() >= Duration::from_millis(9318), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_unknown_command_is_not_taken_for_wrong_keys() {
    let unauthorized = || refused(401, "unable to verify user credentials and/or request signature");
    let script = Script::of([unauthorized(), ok(json!({"capability": {}})), unauthorized(), unauthorized()]);
    let client = client(&script);
    let error = client.call(&requests::quota_tariff_list()).await.expect_err("refused");
    assert_eq!(error.kind, ErrorKind::Denied, "listCapabilities let us in");
    let error = client.call(&requests::quota_tariff_list()).await.expect_err("refused");
    assert_eq!(error.kind, ErrorKind::Auth);
}

fn page(ids: std::ops::Range<usize>, count: usize) -> Answer {
    let rows: Vec<_> = ids.map(|i| json!({"id": format!("z{i}")})).collect();
    if rows.is_empty() { ok(json!({"count": count})) } else { ok(json!({"count": count, "zone": rows})) }
}

#[tokio::test(start_paused = true)]
async fn all_pages_are_read_with_the_page_size_the_server_takes() {
    let script = Script::of([
        refused(431, "Page size can't exceed max allowed page size value: 2"),
        page(0..2, 5),
        page(2..4, 5),
        page(4..5, 5),
        // It has said so: the second reading begins with that size.
        page(0..2, 5),
        page(2..4, 5),
        page(4..5, 5),
        // It may take more by now.
        page(0..5, 5),
    ]);
    let client = client(&script);
    let zones: Vec<Zone> = client.list(&requests::list_zones(), Lane::Refresh).await.expect("zones");
    assert_eq!(zones.len(), 5);
    tokio::time::sleep(PAGE_SIZE_HOLDS).await;
    let zones: Vec<Zone> = client.list(&requests::list_zones(), Lane::Refresh).await.expect("zones");
    assert_eq!(zones.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_row_that_slips_between_two_pages_is_found_by_the_second_reading() {
    // z0 goes away after page 1, so z500 moves to page 1 and page 2 begins with z501.
    let script =
        Script::of([page(0..500, 1000), page(501..1000, 999), page(1..501, 999), page(501..1000, 999)]);
    let zones: Vec<Zone> = client(&script).list(&requests::list_zones(), Lane::Refresh).await.expect("zones");
    let ids: BTreeSet<_> = zones.iter().map(|zone| zone.id.clone()).collect();
    assert_eq!(ids.len(), zones.len(), "none twice");
    assert!(ids.contains("z500"));
}

#[tokio::test(start_paused = true)]
async fn who_asks_again_for_what_it_misses_reads_a_list_once_unless_that_is_shorter_than_it_says() {
    let script = Script::of([page(0..500, 1000), page(501..1000, 999)]);
    let once =
        client(&script).list_once::<Zone>(&requests::list_zones(), Lane::Refresh).await.expect("zones");
    assert_eq!((once.len(), script.asked().len()), (999, 2));
    let script = Script::of([page(0..500, 1000), page(0..0, 1000), page(0..500, 501), page(500..501, 501)]);
    let once =
        client(&script).list_once::<Zone>(&requests::list_zones(), Lane::Refresh).await.expect("zones");
    assert_eq!((once.len(), script.asked().len()), (501, 4));
}

#[tokio::test(start_paused = true)]
async fn an_answer_in_somebody_elses_words_is_no_empty_list() {
    for answer in [
        json!({"status": "ok"}),
        json!({"listvolumesresponse": {}}),
        json!({"listzonesresponse": {"count": 3}}),
        json!({"response": {}}),
    ] {
        let answers = std::iter::repeat_with(|| Ok((200, answer.to_string()))).take(8);
        let listed = client(&Script::of(answers)).list::<Zone>(&requests::list_zones(), Lane::Refresh).await;
        assert!(listed.is_err(), "{answer}");
    }
    let empty = Script::of([ok(json!({}))]);
    let listed = client(&empty).list::<Zone>(&requests::list_zones(), Lane::Refresh).await.expect("a list");
    assert!(listed.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_page_that_fails_fails_the_list() {
    let broken = || refused(530, "Internal error");
    let script = Script::of([page(0..500, 1000), broken(), broken(), broken(), broken()]);
    let error =
        client(&script).list::<Zone>(&requests::list_zones(), Lane::Refresh).await.expect_err("half a list");
    assert_eq!(error.kind, ErrorKind::Internal);
}

#[tokio::test(start_paused = true)]
async fn no_server_silences_us_for_longer_than_a_minute() {
    let script =
        Script::of([refused(429, "limit, please retry after [86400000] ms."), ok(json!({"jobid": "j"}))]);
    let client = client(&script);
    let start = Instant::now();
    client.call(&requests::start("vm")).await.expect("an answer");
    assert!(start.elapsed() <= Duration::from_secs(61), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_proxys_404_and_429_are_an_api_that_is_away() {
    for status in [404, 408, 429] {
        let page = || Ok((status, "<html>nothing here</html>".to_owned()));
        let script = Script::of([page(), ok(json!({"count": 1, "zone": [{"id": "z"}]})), page()]);
        let client = client(&script);
        let zones: Vec<Zone> = client.list(&requests::list_zones(), Lane::Refresh).await.expect("it is back");
        assert_eq!(zones.len(), 1);
        let error = client.call(&requests::start("vm")).await.expect_err("away");
        assert_eq!((error.kind.clone(), error.code), (ErrorKind::Unavailable, status));
        assert!(error.outcome_unknown() && !error.write_again(), "who knows what the proxy passed on");
        if status == 429 {
            let start = Instant::now();
            client.0.throttle.turn(Lane::Action).await;
            assert!(!start.elapsed().is_zero(), "everybody waits");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_does_not_say_how_many_is_read_to_its_end() {
    let rows = |ids: std::ops::Range<usize>| ids.map(|i| json!({"id": format!("z{i}")})).collect::<Vec<_>>();
    let silent = |ids| ok(json!({"zone": rows(ids)}));
    let script = Script::of([silent(0..500), silent(500..501), silent(0..500), silent(500..501)]);
    let zones: Vec<Zone> = client(&script).list(&requests::list_zones(), Lane::Refresh).await.expect("zones");
    assert_eq!(zones.len(), 501);
    let textual = |ids| ok(json!({"count": "501", "zone": rows(ids)}));
    let script = Script::of([textual(0..500), textual(500..501), textual(0..500), textual(500..501)]);
    let zones: Vec<Zone> = client(&script).list(&requests::list_zones(), Lane::Refresh).await.expect("zones");
    assert_eq!(zones.len(), 501);
    let script = Script::of([silent(0..2)]);
    let zones: Vec<Zone> = client(&script).list(&requests::list_zones(), Lane::Refresh).await.expect("zones");
    assert_eq!(zones.len(), 2, "one page is all");
}

#[tokio::test(start_paused = true)]
async fn a_full_page_that_counts_its_own_rows_only_is_not_taken_for_the_last() {
    let reading = || [page(0..500, 500), page(500..1000, 500), page(1000..1001, 1)];
    let script = Script::of(reading().into_iter().chain(reading()));
    let zones: Vec<Zone> = client(&script).list(&requests::list_zones(), Lane::Refresh).await.expect("zones");
    assert_eq!(zones.len(), 1001);
    let full = || [page(0..500, 500), page(0..0, 0)];
    let script = Script::of(full().into_iter().chain(full()));
    let zones: Vec<Zone> = client(&script).list(&requests::list_zones(), Lane::Refresh).await.expect("zones");
    assert_eq!(zones.len(), 500, "that was all");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_names_the_row_and_the_field() {
    let zones = json!([{"id": "z1", "name": "one"}, {"id": "z2", "name": "two", "tags": [{"key": ["odd"]}]}]);
    let script = Script::of([ok(json!({"count": 2, "zone": zones}))]);
    let error = client(&script).list::<Zone>(&requests::list_zones(), Lane::Refresh).await.expect_err("odd");
    assert_eq!(error.kind, ErrorKind::Internal);
    for part in ["z2", "two", "tags[0].key", "text is expected"] {
        assert!(error.text.contains(part), "{part}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_without_an_id_or_a_name_is_no_machine() {
    for (row, known, lacks) in [
        (json!({"id": null, "name": "karpenter-x"}), "karpenter-x", "no id"),
        (json!({"id": "", "name": "karpenter-x"}), "karpenter-x", "no id"),
        (json!({"id": "vm-x", "name": null}), "vm-x", "no name"),
        (json!({"id": "vm-x", "name": ""}), "vm-x", "no name"),
        (json!({"id": "vm-x"}), "vm-x", "no name"),
    ] {
        let rows = json!([{"id": "1", "name": "a"}, row]);
        let script = Script::of([ok(json!({"count": 2, "virtualmachine": rows}))]);
        let request = requests::list_virtual_machines_by_keyword("karpenter", &request::Scope::Own);
        let listed = client(&script).list::<model::VirtualMachine>(&request, Lane::Action).await;
        let error = listed.expect_err("not a list without it");
        assert!(!error.is_not_found(), "{error}");
        assert!(error.text.contains(known) && error.text.contains(lacks), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_account_without_an_id_is_nobodys() {
    for id in [json!(null), json!(""), json!(7)] {
        let script = Script::of([ok(json!({"count": 1, "account": [{"id": id, "name": "ours"}]}))]);
        let client = client(&script);
        let error = client.account_of(&client.session()).await.expect_err("nobody's");
        assert!(error.kind == ErrorKind::Internal && error.text.contains("ours"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_keys_is_not_away() {
    let unauthorized = || refused(401, "unable to verify user credentials and/or request signature");
    let lost = || Err(TransportError::NoAnswer("reset".into()));
    let script = Script::of([lost(), unauthorized(), unauthorized()]);
    let client = client(&script);
    client.call(&requests::start("vm")).await.expect_err("lost");
    assert!(client.away().is_some());
    let error = client.call(&requests::start("vm")).await.expect_err("refused");
    assert_eq!((error.kind, client.away()), (ErrorKind::Auth, None));
}

#[tokio::test(start_paused = true)]
async fn a_row_that_moves_up_from_the_last_page_is_found_by_the_second_reading() {
    // z0 goes away after page 1, so z500, alone on page 2, moves to page 1.
    let script = Script::of([page(0..500, 501), page(0..0, 500), page(1..501, 500), page(0..0, 500)]);
    let zones: Vec<Zone> = client(&script).list(&requests::list_zones(), Lane::Refresh).await.expect("zones");
    assert!(zones.iter().any(|zone| zone.id == "z500"));
}

#[tokio::test(start_paused = true)]
async fn machines_that_are_fewer_than_the_list_says_are_no_list() {
    let machines = |ids: std::ops::Range<usize>| {
        let rows: Vec<_> = ids.map(|i| json!({"id": format!("vm{i}"), "name": "karpenter-x"})).collect();
        if rows.is_empty() {
            ok(json!({"count": 501}))
        } else {
            ok(json!({"count": 501, "virtualmachine": rows}))
        }
    };
    let request = requests::list_virtual_machines_by_keyword("karpenter", &request::Scope::Own);
    let list = async |script: &Arc<Script>| {
        client(script)
            .list::<model::VirtualMachine>(&request, Lane::Action)
            .await
            .map(|machines| machines.len())
    };
    let short = Script::of([machines(0..500), machines(0..0), machines(0..500), machines(0..0)]);
    let error = list(&short).await.expect_err("one is missing");
    assert!(error.text.contains("501 rows and shows 500"), "{error}");
    let mended = Script::of([machines(0..500), machines(0..0), machines(0..500), machines(500..501)]);
    assert_eq!(list(&mended).await, Ok(501), "the second reading shows all");
    // Of other things some servers count what they do not show.
    let rows = json!([{"id": "z0"}]);
    let counted = || ok(json!({"count": 2, "zone": rows}));
    let script = Script::of([counted(), page(0..0, 2), counted(), page(0..0, 2)]);
    let zones: Vec<Zone> = client(&script).list(&requests::list_zones(), Lane::Refresh).await.expect("zones");
    assert_eq!(zones.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn our_account_is_told_from_others_of_the_domain_by_the_key() {
    let account = |id: &str, key: &str| json!({"id": id, "name": id, "user": [{"apikey": key}]});
    let shown =
        |key: &str| json!({"count": 2, "account": [account("theirs", "other"), account("ours", key)]});
    let script = Script::of([ok(shown("key")), ok(shown("another of ours"))]);
    let client = client(&script);
    let accounts = client.account_of(&client.session()).await.expect("accounts");
    assert_eq!(only(&accounts).map(String::as_str), Some("ours"));
    let accounts = client.account_of(&client.session()).await.expect("accounts");
    assert_eq!((accounts.len(), only(&accounts)), (2, None), "nobody can tell");
}

#[tokio::test(start_paused = true)]
async fn a_page_that_repeats_what_was_asked_tells_nobody_the_key_or_the_signature() {
    for page in [
        "<p>GET /client/api?command=listZones&apiKey=SECRETKEY&signature=SIGNED failed</p>",
        "<p>POST /client/api command=listZones&amp;APIKEY=SECRETKEY&amp;signature=SIGNED failed</p>",
        "upstream: signature%3DSIGNED apiKey%3DSECRETKEY",
    ] {
        let script = Script::of([Ok((502, page.to_owned()))]);
        let error = client(&script).call(&requests::start("vm")).await.expect_err("a page");
        let text = error.to_string();
        assert!(!text.contains("SECRET") && !text.contains("SIGNED"), "{text}");
        assert!(text.contains("HTTP 502") && text.contains(&page[..8]), "who answered is told: {text}");
    }
}
