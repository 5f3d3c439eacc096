//! Whose things are on the simulated CloudStack: what belongs to others is refused, and a project that was taken away is closed.

use karpenter_sim::cloudstack::account::Role;
use serde_json::{Value, json};

use crate::cloudstack_replay::{Replay, seconds};

/// What the ordinary tenant is answered, without the envelope.
async fn ask(replay: &Replay, command: &str, parameters: &[(&str, &str)]) -> (u16, Value) {
    let parameters: Vec<(String, String)> =
        parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let (status, body) = replay.ask(Role::User, false, command, &parameters).await;
    // What is refused early names no command.
    let refused = body.get("errorresponse").cloned();
    (status, refused.unwrap_or_else(|| body[format!("{}response", command.to_lowercase())].clone()))
}

/// Code, number and text of what is refused.
fn refusal((status, answer): (u16, Value)) -> (u16, i64, String) {
    let text = answer["errortext"].as_str().unwrap_or_default().to_owned();
    (status, answer["cserrorcode"].as_i64().unwrap_or_default(), text)
}

/// What came of a job: its code and text.
async fn job(replay: &Replay, job: &Value) -> (i64, String) {
    seconds(30).await;
    let answer = ask(replay, "queryAsyncJobResult", &[("jobid", job.as_str().expect("a job"))]).await.1;
    let result = &answer["jobresult"];
    (
        answer["jobresultcode"].as_i64().unwrap_or_default(),
        result["errortext"].as_str().unwrap_or_default().into(),
    )
}

#[tokio::test(start_paused = true)]
async fn a_project_that_was_taken_away_is_closed_to_every_command() {
    let replay = Replay::new();
    let cloud = &replay.cloud;
    let project = cloud.add_project("team");
    cloud.add(
        "network",
        json!({"name": "team-net", "projectid": project, "account": null, "state": "Allocated"}),
    );
    let deployed = replay.deploy("inside", "k8s.small", "team-net", &[("projectid", &project)]).await;
    seconds(60).await;
    let machine = deployed["id"].as_str().expect("a machine").to_owned();
    let listed = |answer: Value| answer["virtualmachine"].as_array().map_or(0, Vec::len);
    let inside = [("projectid", project.as_str())];
    assert_eq!(listed(ask(&replay, "listVirtualMachines", &inside).await.1), 1);
    cloud.add_account("other", "k8s-net");
    cloud.give_project(&project, "other");

    for command in ["listVirtualMachines", "listVolumes", "listNetworks", "listAffinityGroups", "listTags"] {
        let (status, number, text) = refusal(ask(&replay, command, &inside).await);
        assert_eq!((status, number), (432, 9999), "{command}: {text}");
        let wanted = format!(
            "[{command}] does not exist or is not available for this account/user in project [{project}]."
        );
        assert!(text.ends_with(&wanted), "{text}");
    }
    let again = replay.deploy("again", "k8s.small", "team-net", &[("projectid", &project)]).await;
    assert_eq!(again["errorcode"], 432, "{again}");
    let of_machine = [("virtualmachineid", machine.as_str())];
    assert_eq!(refusal(ask(&replay, "listNics", &of_machine).await).0, 531);
    for command in ["destroyVirtualMachine", "stopVirtualMachine"] {
        assert_eq!(refusal(ask(&replay, command, &[("id", &machine)]).await).0, 531, "{command}");
    }
    let tag = [
        ("resourceids", machine.as_str()),
        ("resourcetype", "UserVm"),
        ("tags[0].key", "a"),
        ("tags[0].value", "b"),
    ];
    let tagged = ask(&replay, "createTags", &tag).await.1;
    assert_eq!(job(&replay, &tagged["jobid"]).await.0, 531, "which the job says");
    assert_eq!(listed(ask(&replay, "listVirtualMachines", &[("projectid", "-1")]).await.1), 0);
    assert_eq!(listed(ask(&replay, "listVirtualMachines", &[("id", &machine)]).await.1), 0);
    assert_eq!(cloud.live_machines().len(), 1, "and there it is");

    cloud.give_project(&project, "karp");
    assert_eq!(listed(ask(&replay, "listVirtualMachines", &inside).await.1), 1);
}

#[tokio::test(start_paused = true)]
async fn no_machine_is_made_of_what_belongs_to_others() {
    let replay = Replay::new();
    let cloud = &replay.cloud;
    let others = json!({"name": "theirs", "account": "other", "acltype": "Account"});
    cloud.add("network", others.clone());
    let group = cloud.add("securitygroup", others);
    let refused = replay.deploy("a", "k8s.small", "theirs", &[]).await;
    assert_eq!(refused["errorcode"], 531, "{refused}");
    cloud.edit("zone", "sim-zone-1", |zone| zone["securitygroupsenabled"] = true.into());
    let refused = replay.deploy("a", "k8s.small", "k8s-net", &[("securitygroupids", &group)]).await;
    assert_eq!(refused["errorcode"], 531, "{refused}");
    let template = "CentOS 5.6 (64-bit) no GUI (Simulator)";
    let executable = [("templatefilter", "executable")];
    assert!(ask(&replay, "listTemplates", &executable).await.1.to_string().contains(template));
    cloud.edit("template", template, |template| template["ispublic"] = false.into());
    let refused = replay.deploy("a", "k8s.small", "k8s-net", &[]).await;
    assert_eq!(refused["errorcode"], 531, "{refused}");
    let shown = ask(&replay, "listTemplates", &executable).await.1;
    assert!(!shown.to_string().contains(template), "{shown}");
    assert!(cloud.machines().is_empty());
}

#[tokio::test(start_paused = true)]
async fn jobs_and_groups_are_for_those_who_made_them() {
    let replay = Replay::new();
    let group =
        [("name".to_owned(), "theirs".to_owned()), ("type".to_owned(), "host anti-affinity".to_owned())];
    let made = replay.ask(Role::Root, true, "createAffinityGroup", &group).await.1;
    let made = &made["createaffinitygroupresponse"];
    let id = made["id"].as_str().expect("a group");
    let theirs = [("jobid", made["jobid"].as_str().expect("a job"))];
    let (status, number, text) = refusal(ask(&replay, "queryAsyncJobResult", &theirs).await);
    assert!((status, number) == (531, 4365) && text.contains("is not authorized to see job"), "{text}");
    assert_eq!(refusal(ask(&replay, "deleteAffinityGroup", &[("id", id)]).await).0, 531);
    let refused = replay.deploy("a", "k8s.small", "k8s-net", &[("affinitygroupids", id)]).await;
    assert_eq!(refused["errorcode"], 531, "{refused}");
    assert_eq!(replay.cloud.affinity_groups(), ["theirs"]);
}

#[tokio::test(start_paused = true)]
async fn networks_are_found_by_the_tags_their_owner_sets_and_templates_of_others_are_not_tagged() {
    let replay = Replay::new();
    let network = replay.cloud.id_of("network", "k8s-net").expect("a network");
    let tag = async |command: &str, id: &str, kind: &str| {
        let tag =
            [("resourceids", id), ("resourcetype", kind), ("tags[0].key", "team"), ("tags[0].value", "web")];
        let answer = ask(&replay, command, &tag).await.1;
        job(&replay, &answer["jobid"]).await
    };
    let found = async || {
        let tagged = [("tags[0].key", "team"), ("tags[0].value", "web")];
        ask(&replay, "listNetworks", &tagged).await.1["network"][0]["name"].clone()
    };
    assert_eq!(tag("createTags", &network, "Network").await.0, 0);
    assert_eq!(found().await, "k8s-net");
    assert_eq!(tag("createTags", &network, "Network").await.0, 530, "it is there");
    assert_eq!(tag("deleteTags", &network, "Network").await.0, 0);
    assert_eq!(found().await, Value::Null);
    let template =
        replay.cloud.id_of("template", "CentOS 5.6 (64-bit) no GUI (Simulator)").expect("a template");
    assert_eq!(tag("createTags", &template, "Template").await.0, 531);
}

#[tokio::test(start_paused = true)]
async fn a_tag_goes_only_with_the_value_that_is_named_whatever_its_case() {
    let replay = Replay::new();
    let network = replay.cloud.id_of("network", "k8s-net").expect("a network");
    let tags = async |command: &str, key: &str, value: &str| {
        let tag = [
            ("resourceids", network.as_str()),
            ("resourcetype", "Network"),
            ("tags[0].key", key),
            ("tags[0].value", value),
        ];
        let asked = ask(&replay, command, &tag).await.1;
        seconds(30).await;
        let job = [("jobid", asked["jobid"].as_str().expect("a job"))];
        ask(&replay, "queryAsyncJobResult", &job).await.1["jobresult"]["success"].clone()
    };
    assert_eq!(tags("createTags", "team", "web").await, true);
    assert_eq!(tags("deleteTags", "team", "shop").await, false, "nothing is so");
    assert_eq!(tags("deleteTags", "other", "web").await, false);
    assert_eq!(tags("deleteTags", "Team", "WEB").await, true);
    assert_eq!(tags("deleteTags", "team", "web").await, false, "it is gone");
}
