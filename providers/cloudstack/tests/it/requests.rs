//! Every request the provider can send is one the real server takes from an ordinary user: command and parameters are held
//! against what a CloudStack 4.23 lists for role User (conformance/cloudstack/apis-user.json).

use std::collections::BTreeMap;

use karpenter_provider_cloudstack::client::model::Tag;
use karpenter_provider_cloudstack::client::request::{Request, Scope};
use karpenter_provider_cloudstack::client::requests::{self, Deploy, NewDisk};
use serde_json::Value;

/// Root administrators only, or of a plug-in that need not be there: the provider works without.
const OPTIONAL: [&str; 2] = ["listHosts", "quotaTariffList"];

/// Taken by every asynchronous command and listed by none; measured (sample deploy-customjobid).
const UNLISTED: &str = "customjobid";

fn every_request() -> Vec<Request> {
    let tags: BTreeMap<String, String> = [("a".to_owned(), "b".to_owned())].into();
    let ids = ["1".to_owned(), "2".to_owned()];
    let deploy = |scope: Scope| Deploy {
        name: "n".into(),
        zone_id: "z".into(),
        service_offering_id: "s".into(),
        template_id: "t".into(),
        network_ids: ids.to_vec(),
        security_group_ids: ids.to_vec(),
        affinity_group_ids: ids.to_vec(),
        key_pairs: ids.to_vec(),
        user_data: Some("eA==".into()),
        user_data_id: Some("u".into()),
        user_data_details: [("role".to_owned(), "worker".to_owned())].into(),
        root_disk_size_gb: Some(20),
        root_disk_offering_id: Some("d".into()),
        data_disks: vec![NewDisk { offering_id: "d".into(), size_gb: Some(1), iops: Some((1, 2)) }; 4],
        single_disk: false,
        single_key_pair: false,
        details: [("cpuNumber".to_owned(), "2".to_owned())].into(),
        group: Some("g".into()),
        boot_type: Some("UEFI".into()),
        boot_mode: Some("Secure".into()),
        hypervisor: Some("KVM".into()),
        dynamic_scaling: false,
        job_id: "j".into(),
        scope,
    };
    let mut all = vec![
        requests::list_capabilities(),
        requests::list_apis(Some("listZones")),
        requests::list_zones(),
        requests::list_accounts(),
        requests::list_account("a", "d"),
        requests::list_project("p"),
        requests::list_hosts("z"),
        requests::quota_tariff_list(),
        requests::destroy("v", true, &ids),
        requests::start("v"),
        requests::reboot("v"),
        requests::query_job_of_machine("1"),
        requests::list_affinity_groups_by_keyword("k", &Scope::Own),
        requests::query_job("j"),
        requests::list_nics("v"),
        requests::attach_volume("d", "v", Some(1)),
        requests::destroy_volume("d"),
        requests::create_tags("UserVm", &ids, &tags),
        requests::delete_tag("UserVm", &ids, &Tag { key: "a".into(), value: "b".into() }),
    ];
    let account = Scope::Account { account: "a".into(), domain_id: "d".into() };
    for scope in [Scope::Own, Scope::Project("p".into()), account] {
        all.extend([
            requests::list_service_offerings("z", &scope),
            requests::list_disk_offerings("z", &scope),
            requests::list_networks("z", &scope),
            requests::list_templates("z", &scope),
            requests::list_ssh_key_pairs("k", &scope),
            requests::list_security_groups(&scope),
            requests::list_user_data("u", &scope),
            requests::list_virtual_machines_by_tag("k", "v", &scope),
            requests::list_virtual_machines_by_keyword("n", &scope),
            requests::list_virtual_machine("v", &scope),
            requests::list_data_disks("v", &scope),
            requests::list_data_disks_by_tag("k", "v", &scope),
            requests::list_data_disks_by_keyword("n", &scope),
            requests::list_root_disks(&scope),
            requests::list_virtual_machines_by_id(&["a".into(), "b".into()], &scope),
            requests::create_volume(
                "n",
                "z",
                &NewDisk { offering_id: "d".into(), size_gb: Some(1), iops: Some((1, 2)) },
                &scope,
            ),
            requests::list_events("VM.STOP", &scope),
            requests::list_affinity_groups("n", &scope),
            requests::list_all_affinity_groups(&scope),
            requests::create_affinity_group("n", "host anti-affinity", &scope),
            requests::delete_affinity_group("g", &scope),
            requests::deploy(&Deploy { single_disk: true, single_key_pair: true, ..deploy(scope.clone()) }),
            requests::deploy(&deploy(scope.clone())),
        ]);
    }
    all
}

/// Done when it is answered: there is no job to follow.
const AT_ONCE: [&str; 1] = ["deleteVolume"];

/// Asked for whole: the server knows no pages of them.
const WHOLE: [&str; 3] = ["listCapabilities", "listApis", "listNics"];

#[test]
fn every_way_to_build_a_request_is_among_those_that_are_checked() {
    let source = include_str!("../../src/client/requests.rs");
    let here = include_str!("requests.rs");
    let mut builders = 0;
    for signature in source.split("\npub fn ").skip(1) {
        let (head, _) = signature.split_once('{').expect("a body");
        if !head.trim_end().ends_with("-> Request") {
            continue;
        }
        let name = head.split('(').next().expect("a name");
        assert!(
            here.contains(&format!("requests::{name}(")),
            "{name} is not checked: add it to every_request"
        );
        builders += 1;
    }
    assert!(builders > 30, "{builders}");
}

#[test]
fn what_is_asked_for_page_by_page_comes_in_pages() {
    let recorded = recorded();
    for request in every_request() {
        let command = request.command();
        let has = |name: &str| !recorded[command]["parameters"][name].is_null();
        if command.starts_with("list") && !WHOLE.contains(&command) && !OPTIONAL.contains(&command) {
            assert!(has("page") && has("pagesize"), "{command} has no pages");
        }
    }
}

fn recorded() -> Value {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../conformance/cloudstack/apis-user.json");
    serde_json::from_str(&std::fs::read_to_string(file).expect("the recorded commands")).expect("JSON")
}

#[test]
fn every_command_and_parameter_exists_for_role_user() {
    let recorded = recorded();
    for request in every_request() {
        let command = request.command();
        if OPTIONAL.contains(&command) && recorded[command].is_null() {
            continue;
        }
        let known = recorded[command]["parameters"].as_object();
        let known = known.unwrap_or_else(|| panic!("{command} does not exist for role User"));
        for (name, _) in request.parameters() {
            let base = name.split('[').next().expect("a name");
            assert!(base == UNLISTED || known.contains_key(base), "{command} has no parameter {name}");
        }
    }
}

#[test]
fn a_device_id_is_given_to_every_data_disk_and_skips_the_cd_drive() {
    let request = every_request().pop().expect("the deployment");
    let devices: Vec<&str> = request
        .parameters()
        .iter()
        .filter(|(name, _)| name.ends_with(".deviceid"))
        .map(|(_, value)| value.as_str())
        .collect();
    assert_eq!(devices, ["1", "2", "4", "5"]);
}

#[test]
fn what_changes_something_is_asynchronous_or_a_read_by_its_name() {
    let recorded = recorded();
    for request in every_request().iter().filter(|request| !request.is_read()) {
        let (command, has_job) = (request.command(), &recorded[request.command()]["async"]);
        assert_eq!(*has_job, !AT_ONCE.contains(&command), "{command}");
    }
}
