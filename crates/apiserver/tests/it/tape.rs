//! The tape: requests answered by a real kube-apiserver and recorded, replayed against this server.
//!
//! Without any setting the chapters in `conformance/tape` are played to an embedded server under paused time. With
//! `KARPENTER_TAPE_KUBECONFIG` they are played to the real server it names instead, which must still answer as it did
//! when it was recorded (`KARPENTER_TAPE_CLUSTER=full` says that it has its controllers and plays the chapters that need
//! them); with `KARPENTER_TAPE_RECORD=1` too, its answers are written into the chapters.
//! `KARPENTER_TAPE_REPORT=DIRECTORY` also writes the differences of each chapter to a file there.
//! A real server must be fresh: the chapters name their objects without chance and do not clean up.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod chapter;
mod compare;
mod explained;
mod normal;
mod player;
mod pretty;

use std::path::PathBuf;

use karpenter_apiserver::{ApiServer, Options, Seeded};
use kube::Client;

use chapter::{Chapter, Cluster, directory};
use explained::Explained;

macro_rules! chapters {
    ($($test:ident plays $file:literal;)*) => {
        const CHAPTERS: &[&str] = &[$($file),*];
        $(
            #[tokio::test(start_paused = true)]
            async fn $test() {
                if std::env::var_os("KARPENTER_TAPE_KUBECONFIG").is_none() {
                    replay_embedded($file).await;
                }
            }
        )*
    };
}

chapters! {
    discovery_and_health_answer_as_recorded plays "01-discovery";
    objects_are_created_read_and_listed_as_recorded plays "02-objects";
    lists_select_and_page_as_recorded plays "03-lists";
    watches_deliver_as_recorded plays "04-watch";
    updates_keep_versions_as_recorded plays "05-update";
    deletion_takes_its_course_as_recorded plays "06-delete";
    patches_apply_as_recorded plays "07-patch";
    pods_and_their_subresources_answer_as_recorded plays "08-pods";
    evictions_honour_budgets_as_recorded plays "09-eviction";
    workloads_default_and_scale_as_recorded plays "10-workloads";
    builtin_kinds_default_as_recorded plays "11-builtins";
    crds_are_accepted_and_refused_as_recorded plays "12-crd";
    custom_resources_follow_their_schema_as_recorded plays "13-custom-resources";
    validation_rules_hold_as_recorded plays "14-rules";
    bad_requests_get_the_recorded_refusals plays "15-bad-input";
    garbage_collection_and_namespaces_end_as_recorded plays "16-controllers";
    what_a_second_look_found_is_answered_as_recorded plays "17-second-look";
}

#[test]
fn every_chapter_is_played() {
    let mut files: Vec<String> = std::fs::read_dir(directory())
        .unwrap()
        .filter_map(|entry| {
            entry.unwrap().file_name().into_string().unwrap().strip_suffix(".json").map(str::to_owned)
        })
        .filter(|name| name != "explained")
        .collect();
    files.sort();
    assert_eq!(files, CHAPTERS);
}

#[test]
fn every_step_is_recorded_under_a_name_of_its_own() {
    let mut ids = Vec::new();
    for file in CHAPTERS {
        for step in read(file).1.steps {
            assert!(step.expect.is_some(), "{file}: {} has no recorded answer", step.id);
            ids.push(step.id);
        }
    }
    let steps = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), steps, "two steps share an id");
    assert!(steps >= 200, "the tape has only {steps} requests");
}

#[tokio::test]
async fn the_real_server_still_answers_as_recorded() {
    let Some(kubeconfig) = std::env::var_os("KARPENTER_TAPE_KUBECONFIG") else { return };
    let full = std::env::var("KARPENTER_TAPE_CLUSTER").is_ok_and(|cluster| cluster == "full");
    let cluster = if full { Cluster::Full } else { Cluster::Apiserver };
    let record = std::env::var_os("KARPENTER_TAPE_RECORD").is_some();
    let client = real_client(kubeconfig.into()).await;
    let mut played = 0;
    let mut reports = String::new();
    for file in CHAPTERS {
        let (path, mut chapter) = read(file);
        if chapter.cluster != cluster {
            continue;
        }
        let mut answers = player::play(&client, &chapter).await;
        normal::normalise(&chapter, &mut answers);
        played += answers.len();
        if record {
            for (step, answer) in chapter.steps.iter_mut().zip(answers) {
                step.expect = Some(answer);
            }
            chapter.write(&path).unwrap();
        } else {
            reports += &report(&chapter, &answers, &Explained::nothing());
        }
    }
    println!("played {played} steps to the real server");
    assert!(reports.is_empty(), "the real server no longer answers as recorded:\n{reports}");
}

async fn replay_embedded(file: &str) {
    let (_, chapter) = read(file);
    let options = Options { controllers: chapter.cluster == Cluster::Full, ..Options::default() };
    let server = ApiServer::new(Seeded::default(), options);
    let client = Client::new(server.service(), "default");
    let mut answers = player::play(&client, &chapter).await;
    normal::normalise(&chapter, &mut answers);
    let report = report(&chapter, &answers, &Explained::read().unwrap());
    if let Some(directory) = std::env::var_os("KARPENTER_TAPE_REPORT") {
        std::fs::write(PathBuf::from(directory).join(format!("{file}.txt")), &report).unwrap();
    }
    assert!(report.is_empty(), "{}: answers differ from kube-apiserver's:\n{report}", chapter.subject);
}

/// What differs, step by step, in words; empty where nothing does.
fn report(chapter: &Chapter, answers: &[chapter::Answer], explained: &Explained) -> String {
    let mut out = String::new();
    for (step, got) in chapter.steps.iter().zip(answers) {
        let Some(recorded) = &step.expect else { continue };
        let mut found = compare::differences(step.view, recorded, got);
        found.retain(|difference| !explained.covers(&step.id, difference));
        if found.is_empty() {
            continue;
        }
        let request = format!(
            "{} {}",
            step.method.as_deref().unwrap_or("GET"),
            step.path.as_deref().unwrap_or("(watch)")
        );
        out += &format!("  {}: {}\n    {request}\n", step.id, step.why);
        if found.iter().any(|difference| difference.pointer == "/status") {
            // Another kind of answer altogether: member by member it would only be longer.
            out += &format!("      recorded {}\n      got      {}\n", recorded.summary(), got.summary());
        } else {
            found.iter().for_each(|difference| out += &format!("    {difference}\n"));
        }
    }
    let ids: Vec<&str> = chapter.steps.iter().map(|step| step.id.as_str()).collect();
    for idle in explained.idle(&ids) {
        out += &format!("  explained.json explains what no longer differs: {idle}\n");
    }
    out
}

fn read(file: &str) -> (PathBuf, Chapter) {
    let path = directory().join(format!("{file}.json"));
    let chapter = Chapter::read(&path).unwrap();
    (path, chapter)
}

async fn real_client(kubeconfig: PathBuf) -> Client {
    let kubeconfig = kube::config::Kubeconfig::read_from(kubeconfig).unwrap();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
    // An answer of 429 or 503 is what some steps ask for.
    config.default_retry = false;
    Client::try_from(config).unwrap()
}
