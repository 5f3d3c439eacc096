//! Tests of the catalogue: the file's format and the built-in formula.

use karpenter_cloudprovider::conversion;
use karpenter_engine::labels::{ARCH, CAPACITY_TYPE, OS, ZONE};
use karpenter_engine::resources::{Amount, CPU, PODS};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::*;
use crate::labels::{INSTANCE_CPU, INSTANCE_FAMILY, INSTANCE_MEMORY, INSTANCE_SIZE};

fn read(text: &str) -> (Catalogue, Vec<String>) {
    let entries: Vec<&RawValue> = serde_json::from_str(text).expect("a list");
    let (catalogue, faulty) = Catalogue::read(&entries, &mut Ingest::new());
    (catalogue, faulty.iter().map(ToString::to_string).collect())
}

fn parse(text: &str) -> Result<Catalogue, String> {
    Catalogue::parse(Path::new("types.json"), text.as_bytes()).map_err(|error| error.to_string())
}

fn values(kind: &InstanceType, key: &str) -> Vec<String> {
    kind.requirements.get(key).map(|r| r.values.iter().map(ToString::to_string).collect()).unwrap_or_default()
}

const OFFERS: &str = r#""offerings":[
    {"Price":1.5,"Requirements":[{"key":"karpenter.sh/capacity-type","operator":"In","values":["spot"]},
                                 {"key":"topology.kubernetes.io/zone","operator":"In","values":["b"]}]},
    {"Price":2,"Available":false,"Requirements":[{"key":"karpenter.sh/capacity-type","operator":"In","values":["on-demand"]},
                                 {"key":"topology.kubernetes.io/zone","operator":"In","values":["a"]}]}]"#;

#[test]
fn labels_are_derived_as_kwok_derives_them() {
    let text = format!(
        r#"[{{"name":"m5.2xlarge","architecture":"amd64","operatingSystems":["linux"],"resources":{{"cpu":"8000m","memory":"32768Mi"}},{OFFERS}}},
            {{"name":"c-4x-arm","architecture":"arm64","operatingSystems":["linux","windows"],"resources":{{"cpu":4}},{OFFERS}}}]"#
    );
    let (catalogue, rejected) = read(&text);
    assert_eq!(rejected, [] as [&str; 0]);
    let [m5, c4] = &catalogue.types[..] else { panic!("two types") };
    assert_eq!(values(m5, INSTANCE_SIZE), ["2xlarge"]);
    assert_eq!(values(m5, INSTANCE_FAMILY), ["m5"]);
    assert_eq!(values(m5, INSTANCE_CPU), ["8"]);
    assert_eq!(values(m5, INSTANCE_MEMORY), ["32Gi"]);
    assert_eq!(values(m5, ZONE), ["a", "b"]);
    assert_eq!(values(m5, CAPACITY_TYPE), ["on-demand", "spot"]);
    assert!(m5.offerings[0].available && !m5.offerings[1].available);
    assert_eq!(m5.capacity.amount(PODS), Amount::units(110));
    assert_eq!(m5.overhead.total().amount(CPU), Amount::milli(100));
    assert_eq!(values(c4, INSTANCE_SIZE), ["4"]);
    assert_eq!(values(c4, INSTANCE_FAMILY), ["c"]);
    assert_eq!(values(c4, INSTANCE_MEMORY), ["0"]);
}

#[test]
fn requirements_of_the_file_replace_derived_ones_and_become_well_known() {
    let (catalogue, _) = read(
        r#"[{"name":"a","architecture":"amd64","operatingSystems":["linux"],"noKwokLabels":true,
             "requirements":[{"key":"kubernetes.io/arch","operator":"In","values":["riscv"]},{"key":"gpu","operator":"DoesNotExist"}]}]"#,
    );
    assert_eq!(values(&catalogue.types[0], ARCH), ["riscv"]);
    assert!(catalogue.labels.contains("gpu"));
    assert!(catalogue.types[0].requirements.get(INSTANCE_CPU).is_none());
}

#[test]
fn a_bad_entry_is_left_out_with_its_field_and_the_others_stay() {
    let (catalogue, rejected) = read(
        r#"[{"name":"good"},{"name":"bad","resources":{"cpu":"many"}},{"name":"good"},{"offerings":[]},
            {"name":"worse","offerings":[{"Price":-1}]},{"name":"odd","offerings":"none"}]"#,
    );
    assert_eq!(catalogue.types.len(), 1);
    assert_eq!(rejected.len(), 5, "{rejected:?}");
    assert!(rejected[0].starts_with("instance type bad, resources[cpu]: "), "{}", rejected[0]);
    assert!(rejected[1].contains("instance type good, name: another"), "{}", rejected[1]);
    assert!(rejected[2].contains("instance type #4, name: "), "{}", rejected[2]);
    assert!(rejected[3].contains("offerings[0].Price"), "{}", rejected[3]);
    assert!(rejected[4].starts_with("instance type odd, offerings: invalid type"), "{}", rejected[4]);
}

#[test]
fn a_program_does_not_start_with_half_a_catalogue() {
    for (text, want) in [
        (
            "{}",
            "invalid type: map, expected a sequence at line 1 column 0; the file must be a JSON list of instance types",
        ),
        ("[", "EOF while parsing a list at line 1 column 1; the file must be a JSON list of instance types"),
        (
            r#"[{"name":"b","resources":{"cpu":"many"}}]"#,
            "instance type b, resources[cpu]: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'; correct it, or leave the entry out",
        ),
        (
            r#"[{"name":"a","offerings":[{"capacityType":"spot","zone":"a","price":1}]}]"#,
            "instance type a, offerings[0].capacityType: is of an old format; write a requirement karpenter.sh/capacity-type In [...] under Requirements; correct it, or leave the entry out",
        ),
        (
            r#"[{"name":"a","offerings":[{"Requirements":[]}]}]"#,
            "instance type a, offerings[0]: missing field `Price`",
        ),
    ] {
        let error = parse(text).expect_err(want);
        assert!(error.starts_with("instance type file \"types.json\": "), "{error}");
        assert!(error.contains(want), "{error}\n{want}");
    }
    let empty = parse("[]").expect_err("empty");
    assert!(empty.contains("lists no instance type"), "{empty}");
    let nameless = format!("[{}]", ["{}"; 7].join(","));
    assert!(
        parse(&nameless)
            .expect_err("nameless")
            .ends_with("; and 2 more; correct them, or leave the entries out")
    );
    let missing = Catalogue::load(Some(Path::new("no/such/file"))).expect_err("no file").to_string();
    assert!(missing.contains("no/such/file") && missing.contains("INSTANCE_TYPES_FILE_PATH"), "{missing}");
}

#[test]
fn an_entry_that_leaves_out_what_a_node_needs_is_named_with_the_field() {
    let whole = format!(
        r#"{{"name":"a","architecture":"amd64","operatingSystems":["linux"],"resources":{{"cpu":"1","memory":"1Gi"}},{OFFERS}}}"#
    );
    let whole: Value = serde_json::from_str(&whole).expect("an entry");
    parse(&Value::from(vec![whole.clone()]).to_string()).expect("nothing is missing");
    for (pointer, field) in [
        ("/offerings", "offerings"),
        ("/architecture", "architecture"),
        ("/operatingSystems", "operatingSystems"),
        ("/resources/cpu", "resources[cpu]"),
        ("/resources/memory", "resources[memory]"),
    ] {
        let mut entry = whole.clone();
        let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
        entry.pointer_mut(parent).and_then(Value::as_object_mut).expect("an object").remove(key);
        let error = parse(&Value::from(vec![entry]).to_string()).expect_err(field);
        assert!(error.contains(&format!("instance type a, {field}: is missing; ")), "{error}");
    }
}

#[test]
fn everything_in_a_providers_file_is_available_as_gos_has_it() {
    let text = format!(
        r#"[{{"name":"a","architecture":"amd64","operatingSystems":["linux"],"resources":{{"cpu":"1","memory":"1Gi"}},{OFFERS}}}]"#
    );
    assert!(!read(&text).0.types[0].offerings[1].available, "a scenario may say so");
    assert!(parse(&text).expect("a catalogue").types[0].offerings.iter().all(|offering| offering.available));
}

/// An instance type as `conformance/kwok/record` writes it.
fn line(kind: &InstanceType) -> String {
    let resources: Vec<String> = conversion::resource_list(&kind.capacity)
        .iter()
        .map(|(name, quantity)| format!("{name}={quantity}"))
        .collect();
    let offerings: Vec<String> = kind
        .offerings
        .iter()
        .map(|offering| {
            let terms: Vec<String> = offering
                .requirements
                .iter()
                .map(|r| format!("{}={}", r.key, r.values.first().expect("a value")))
                .collect();
            format!("{}:{}", offering.price, terms.join(","))
        })
        .collect();
    format!(
        "{} {} {} {} {}",
        kind.name,
        values(kind, ARCH).join(","),
        values(kind, OS).join(","),
        resources.join(","),
        offerings.join(" ")
    )
}

#[test]
fn the_built_in_catalogue_is_gos_to_the_last_bit() {
    let recorded: Value =
        serde_json::from_str(include_str!("../../../conformance/kwok/catalogue.json")).expect("JSON");
    let hex = |text: &str| -> String {
        Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let catalogue = Catalogue::built_in();
    let lines: Vec<String> = catalogue.types.iter().map(line).collect();
    for text in recorded["lines"].as_array().expect("lines") {
        let name = text.as_str().and_then(|text| text.split(' ').next()).expect("a name");
        let at = catalogue.types.iter().position(|kind| &*kind.name == name).expect(name);
        assert_eq!(lines[at], *text);
    }
    for (kind, line) in catalogue.types.iter().zip(&lines) {
        assert_eq!(recorded["types"][&*kind.name], hex(line)[..12], "{line}");
    }
    assert_eq!(recorded["types"].as_object().expect("types").len(), catalogue.types.len());
    let order: Vec<&str> = catalogue.types[..13].iter().map(|kind| &*kind.name).collect();
    assert_eq!(recorded["order"], Value::from(order));
    assert_eq!(recorded["sha256"], hex(&lines.iter().map(|line| format!("{line}\n")).collect::<String>()));
}

#[test]
fn built_in_types_have_the_labels_kwok_derives() {
    let catalogue = Catalogue::built_in();
    let kind = catalogue.get("m-256x-arm64-windows").expect("the last one");
    assert_eq!(values(kind, INSTANCE_SIZE), ["256"]);
    assert_eq!(values(kind, INSTANCE_FAMILY), ["m"]);
    assert_eq!(values(kind, INSTANCE_CPU), ["256"]);
    assert_eq!(values(kind, INSTANCE_MEMORY), ["2Ti"]);
    assert_eq!(values(kind, ZONE), ["test-zone-a", "test-zone-b", "test-zone-c", "test-zone-d"]);
    let speaks_of: Vec<&str> = catalogue.labels.iter().map(|key| &**key).collect();
    assert_eq!(speaks_of, [CAPACITY_TYPE, ZONE]);
}
