//! Types and definitions of our kinds belong together: whatever a definition lets users write, the type gives back unchanged;
//! and the definitions are upstream's (`conformance/crds/structure.json`), their descriptions aside.

use karpenter::cloudstack::stage::{Stage, node_class};
use karpenter_api::crd::Crd;
use karpenter_api::{CapacityBuffer, NodeClaim, NodeOverlay, NodePool};
use karpenter_provider_cloudstack::CloudStackNodeClass;
use karpenter_provider_cluster_api::ClusterAPINodeClass;
use karpenter_provider_kwok::KWOKNodeClass;
use karpenter_sim::cloudstack::guests::GuestOptions;
use karpenter_sim::{WorldOptions, in_virtual_time};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// Through the type and back.
type RoundTrip = fn(Value) -> Result<Value, serde_json::Error>;

fn through<T: DeserializeOwned + Serialize>(object: Value) -> Result<Value, serde_json::Error> {
    serde_json::to_value(serde_json::from_value::<T>(object)?)
}

fn kinds() -> Vec<(Crd, RoundTrip)> {
    vec![
        (NodePool::crd(), through::<NodePool>),
        (NodeClaim::crd(), through::<NodeClaim>),
        (NodeOverlay::crd(), through::<NodeOverlay>),
        (CapacityBuffer::crd(), through::<CapacityBuffer>),
        (KWOKNodeClass::crd(), through::<KWOKNodeClass>),
        (ClusterAPINodeClass::crd(), through::<ClusterAPINodeClass>),
        (CloudStackNodeClass::crd(), through::<CloudStackNodeClass>),
    ]
}

#[test]
fn whatever_a_definition_allows_survives_its_type_unchanged() {
    for (crd, round_trip) in kinds() {
        let schema = &crd.to_json()["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let objects = samples(schema);
        assert!(objects.len() > 10, "{}: only {} samples", crd.kind, objects.len());
        for mut object in objects {
            object["apiVersion"] = json!(format!("{}/{}", crd.group, crd.version));
            object["kind"] = json!(crd.kind);
            object["metadata"] = json!({ "name": "sample", "labels": { "a": "b" } });
            match round_trip(object.clone()) {
                Ok(mut back) => {
                    if crd.kind == "CloudStackNodeClass" {
                        // Of the optional fields of our own an empty one says what an absent one says, and nobody writes it.
                        without_empty(&mut back["spec"]);
                        without_empty(&mut object["spec"]);
                    }
                    assert_eq!(back, object, "{}", crd.kind);
                }
                Err(error) => panic!("{}: {error}: {object}", crd.kind),
            }
        }
    }
}

/// Removes empty lists and maps, however deep.
fn without_empty(node: &mut Value) {
    match node {
        Value::Array(items) => items.iter_mut().for_each(without_empty),
        Value::Object(entries) => {
            entries.values_mut().for_each(without_empty);
            entries.retain(|_, value| *value != json!([]) && *value != json!({}));
        }
        _ => {}
    }
}

#[test]
fn the_definitions_have_upstreams_structure() {
    let recorded: Vec<Value> =
        serde_json::from_str(include_str!("../../../../conformance/crds/structure.json")).unwrap();
    let ours = kinds();
    assert_eq!(ours.len(), recorded.len());
    for (crd, _) in ours {
        let mut ours = crd.to_json();
        strip(&mut ours);
        let theirs = recorded.iter().find(|d| d["metadata"]["name"] == crd.name());
        if crd.kind == "CloudStackNodeClass" {
            without_differences(&mut ours);
        }
        if crd.kind == "ClusterAPINodeClass" {
            without_operators(&mut ours);
        }
        if matches!(crd.kind, "ClusterAPINodeClass" | "CloudStackNodeClass") {
            without_our_own(&mut ours, theirs.unwrap_or(&Value::Null));
        }
        assert_eq!(Some(&ours), theirs, "{}", crd.kind);
    }
}

#[test]
fn a_cloudstack_node_class_says_its_zones_in_one_of_three_ways() {
    let done = in_virtual_time(async {
        let stage = Stage::new(WorldOptions::default(), GuestOptions::default()).await?;
        let by = |number: usize, zones: Value| {
            let mut class = node_class();
            class["metadata"]["name"] = format!("by-{number}").into();
            let spec = class["spec"].as_object_mut().expect("a spec");
            spec.retain(|field, _| !field.starts_with("zone"));
            spec.extend(zones.as_object().expect("fields").clone());
            class
        };
        let ways = [
            json!({"zone": "sim-zone-1"}),
            json!({"zones": ["sim-zone-1"]}),
            json!({"zoneSelectorTerms": [{"name": "sim-*"}]}),
        ];
        for (number, zones) in ways.into_iter().enumerate() {
            stage.world.create(by(number, zones)).await?;
        }
        let refused = stage.world.create(by(3, json!({}))).await.expect_err("no zone at all");
        let refused = format!("{refused:?}");
        assert!(refused.contains("['zone', 'zones', 'zoneSelectorTerms']"), "{refused}");
        Ok::<(), karpenter_sim::Trouble>(())
    });
    done.expect("a runtime").unwrap_or_else(|trouble| panic!("{trouble}"));
}

/// Undoes where a CloudStackNodeClass deliberately differs (docs/compatibility.md): a template term may say its osType or family
/// alone, user data has a greatest length, and several zones or terms do instead of the one zone.
fn without_differences(ours: &mut Value) {
    let spec = &mut ours["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    spec["required"].as_array_mut().expect("fields").push("zone".into());
    let spec = &mut spec["properties"];
    let rule = &mut spec["templateSelectorTerms"]["x-kubernetes-validations"][1];
    for key in ["message", "rule"] {
        let text = rule[key].as_str().expect("a text");
        rule[key] =
            text.replace(", 'osType', 'family'", "").replace(" || has(x.osType) || has(x.family)", "").into();
    }
    spec["userData"].as_object_mut().expect("a field").remove("maxLength");
}

/// Undoes where a ClusterAPINodeClass deliberately differs: its selector takes no operator that means nothing.
fn without_operators(ours: &mut Value) {
    let operator = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/scalableResourceSelector/properties/matchExpressions/items/properties/operator";
    let operator = ours.pointer_mut(operator).and_then(Value::as_object_mut).expect("a field");
    operator.remove("enum").expect("operators");
}

/// Removes the optional properties that we have added, the rules about them and the columns that show them: whoever does not know them
/// never meets them.
fn without_our_own(ours: &mut Value, theirs: &Value) {
    let Value::Object(entries) = ours else { return };
    let required = entries.get("required").cloned().unwrap_or_default();
    let added: Vec<String> = entries
        .get("properties")
        .and_then(Value::as_object)
        .map(|all| all.keys().filter(|name| theirs["properties"][name].is_null()).cloned().collect())
        .unwrap_or_default();
    if let Some(Value::Array(rules)) = entries.get_mut("x-kubernetes-validations") {
        let about_added = |rule: &Value| {
            let text = rule["rule"].as_str().unwrap_or_default();
            added.iter().any(|name| text.contains(&format!("has(self.{name})")))
        };
        rules.retain(|rule| !about_added(rule));
        if rules.is_empty() {
            entries.remove("x-kubernetes-validations");
        }
    }
    if let Some(Value::Object(properties)) = entries.get_mut("properties") {
        let known = &theirs["properties"];
        let must = |name: &String| required.as_array().is_some_and(|r| r.iter().any(|r| r == name));
        properties.retain(|name, _| !known[name].is_null() || must(name));
    }
    if let Some(Value::Array(columns)) = entries.get_mut("additionalPrinterColumns") {
        let shows_added = |column: &Value| {
            let path = column["jsonPath"].as_str().unwrap_or_default();
            ["zoneNames", "offeringsAvailable"].iter().any(|name| path == format!(".status.{name}"))
        };
        columns.retain(|column| !shows_added(column));
    }
    for (key, value) in entries.iter_mut() {
        match value {
            Value::Object(_) => without_our_own(value, &theirs[key]),
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    without_our_own(item, &theirs[key][index]);
                }
            }
            _ => {}
        }
    }
}

/// Removes descriptions (texts, not a property of that name) and orders what has no order.
fn strip(node: &mut Value) {
    match node {
        Value::Array(entries) => entries.iter_mut().for_each(strip),
        Value::Object(entries) => {
            if entries.get("description").is_some_and(Value::is_string) {
                entries.remove("description");
            }
            if let Some(Value::Array(required)) = entries.get_mut("required") {
                required.sort_by_key(ToString::to_string);
            }
            entries.values_mut().for_each(strip);
        }
        _ => {}
    }
}

/// Values a schema allows: for an object one with only what is required, one with everything, and one per value of each
/// property; for lists and maps also the empty one, since losing it is a change.
fn samples(schema: &Value) -> Vec<Value> {
    if let Some(values) = schema["enum"].as_array() {
        return values.clone();
    }
    match schema["type"].as_str() {
        Some("object") if schema["properties"].is_object() => object_samples(schema),
        Some("object") => {
            let mut maps = vec![json!({})];
            if schema["additionalProperties"].is_object() {
                maps.extend(
                    samples(&schema["additionalProperties"]).into_iter().map(|v| json!({ "key": v })),
                );
            }
            maps
        }
        Some("array") => {
            let items = samples(&schema["items"]);
            let mut lists = vec![json!([]), Value::Array(items.clone())];
            lists.extend(items.into_iter().map(|item| json!([item])));
            lists
        }
        Some("integer") => {
            let bounds = ["minimum", "maximum"].into_iter().filter_map(|b| schema[b].as_i64());
            bounds.chain([7]).map(Value::from).collect()
        }
        Some("boolean") => vec![true.into(), false.into()],
        Some("string") | None => texts(schema).iter().map(|&text| text.into()).collect(),
        Some(other) => panic!("no samples for the type {other}"),
    }
}

fn object_samples(schema: &Value) -> Vec<Value> {
    let properties: Vec<(&String, Vec<Value>)> =
        schema["properties"].as_object().into_iter().flatten().map(|(name, p)| (name, samples(p))).collect();
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let least: Map<String, Value> = properties
        .iter()
        .filter(|(name, _)| required.contains(&name.as_str()))
        .map(|(name, values)| ((*name).clone(), values[0].clone()))
        .collect();
    let most =
        properties.iter().map(|(name, values)| ((*name).clone(), values[values.len() - 1].clone())).collect();
    let mut objects = vec![Value::Object(least.clone()), Value::Object(most)];
    for (name, values) in &properties {
        for value in values {
            let mut object = least.clone();
            object.insert((*name).clone(), value.clone());
            objects.push(Value::Object(object));
        }
    }
    objects
}

/// Texts that match the patterns in use. A new pattern needs its examples here.
fn texts(schema: &Value) -> &'static [&'static str] {
    if schema["format"] == "date-time" {
        return &["2024-02-03T04:05:06Z"];
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return &["1500m", "2Gi", "4", "1e3", "-1", "0"];
    }
    let Some(pattern) = schema["pattern"].as_str() else {
        return &["some text", ""];
    };
    match pattern {
        "^([0-9]+(s|m|h))+$" => &["30s", "1h30m", "0s", "00090m"],
        "^(([0-9]+(s|m|h))+|Never)$" => &["Never", "720h", "1h30m15s"],
        "^((([0-9]+(h|m))|([0-9]+h[0-9]+m))(0s)?)$" => &["8h", "30m", "1h30m", "8h0m0s"],
        "^((100|[0-9]{1,2})%|[0-9]+)$" => &["10%", "5", "0"],
        "^[^/]*$" => &["karpenter.kwok.sh"],
        r"^\d+(\.\d+)?$" | r"^[0-9]+(\.[0-9]+)?$" => &["0.50", "1"],
        p if p.starts_with(r"^\s*\+?(\d+\.?\d*|") => &["0.5", "1e-3"],
        p if p.starts_with(r"^\s*(\d+(\.\d*)?\s*%|") => &["10%", "500Mi"],
        p if p.starts_with("^(@(annually|") => &["@daily", "0 9 * * mon-fri"],
        p if p.starts_with("^(([+-]{1}") => &["+10%", "-0.5", "-100%"],
        "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$" => &["", "a.b_c-D"],
        "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$" => &["Ready"],
        "^([A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?|)$" => &["Ready", ""],
        p if p.starts_with("^([a-z0-9]([-a-z0-9]*[a-z0-9])?") => &["Name", "example.com/name"],
        r"^[A-Za-z0-9.:\[\]-]+$" => &["api.example.com:6443"],
        "^/" => &["/spec/template"],
        "^[A-Z][A-Za-z0-9]*Template$" => &["DockerMachineTemplate"],
        "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" => &["worker-a", "0"],
        "^https?://[^/@]+(/|$)" => &["https://prices.example.com", "http://prices:8080/capi"],
        "^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$" => &["rack-7"],
        "^[A-Za-z0-9][A-Za-z0-9-]*$" => &["598959ef-0949-48b5-8ebd-a3f2e7138d21"],
        "^sha256:[0-9a-f]+$" => &["sha256:0af1"],
        other => panic!("no example for the pattern {other}"),
    }
}
