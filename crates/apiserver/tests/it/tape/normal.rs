//! Takes out of the answers of one chapter what may differ between two runs on the same server: uids, times, versions,
//! continue tokens and generated names. Each is replaced by a name that keeps what can be compared: which object a uid
//! belongs to, and the how-manieth version of that object a resourceVersion is.
//!
//! Works on all answers of a chapter at once: only then are the versions of an object known in their order.
//! What our server is allowed to answer differently is not decided here but in `explained.rs`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::chapter::{Answer, Chapter, Step, View};

/// How many random characters end a generated name, and how much of a long `generateName` is kept before them.
const SUFFIX_LEN: usize = 5;
const PREFIX_MAX: usize = 58;

/// Normalises the answers of one run in place.
pub(crate) fn normalise(chapter: &Chapter, answers: &mut [Answer]) {
    for (step, answer) in chapter.steps.iter().zip(answers.iter_mut()) {
        if let Some(view) = step.view {
            answer.body = digest(view, &answer.body);
        }
    }
    let mut names = Names { given: given(chapter), ..Names::default() };
    for answer in answers.iter() {
        names.learn(&answer.document());
    }
    names.settle();
    for answer in answers.iter_mut() {
        order_causes(&mut answer.body);
        names.apply(&mut answer.body);
        for event in answer.events.iter_mut().flatten() {
            names.apply(event);
        }
        for header in answer.headers.values_mut() {
            *header = names.rewrite(header);
        }
    }
}

/// Everything the chapter itself sends: a time or uid that stands there is no accident of the run.
fn given(chapter: &Chapter) -> String {
    chapter
        .steps
        .iter()
        .map(|Step { path, body, text, .. }| {
            let body = body.as_ref().map(Value::to_string).unwrap_or_default();
            format!(
                "{} {body} {}\n",
                path.as_deref().unwrap_or_default(),
                text.as_deref().unwrap_or_default()
            )
        })
        .collect()
}

#[derive(Default)]
struct Names {
    given: String,
    /// Generated name → prefix + `<suffix>`; with a number where the same prefix was drawn from more than once.
    generated: Vec<(String, String)>,
    /// Uids in the order of their first appearance, with the name of their object.
    uids: Vec<(String, String)>,
    /// Versions seen of each uid.
    versions: BTreeMap<String, BTreeSet<u64>>,
    labels: BTreeMap<String, String>,
}

impl Names {
    fn learn(&mut self, value: &Value) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.learn(item)),
            Value::Object(members) => {
                for part in ["metadata", "details"] {
                    if let Some(Value::Object(meta)) = members.get(part) {
                        self.learn_identity(meta);
                    }
                }
                members.values().for_each(|value| self.learn(value));
            }
            _ => {}
        }
    }

    fn learn_identity(&mut self, meta: &Map<String, Value>) {
        let text = |name: &str| meta.get(name).and_then(Value::as_str);
        let Some(name) = text("name") else { return };
        if let Some(prefix) = text("generateName").map(|prefix| prefix.get(..PREFIX_MAX).unwrap_or(prefix))
            && name.starts_with(prefix)
            && name.len() == prefix.len() + SUFFIX_LEN
            && !self.generated.iter().any(|(known, _)| known == name)
        {
            let drawn = self.generated.iter().filter(|(known, _)| known.starts_with(prefix)).count();
            let label = if drawn == 0 { "<suffix>".to_owned() } else { format!("<suffix:{}>", drawn + 1) };
            self.generated.push((name.to_owned(), format!("{prefix}{label}")));
        }
        let Some(uid) = text("uid") else { return };
        if !self.uids.iter().any(|(known, _)| known == uid) {
            self.uids.push((uid.to_owned(), name.to_owned()));
        }
        if let Some(version) = text("resourceVersion").and_then(|version| version.parse().ok()) {
            self.versions.entry(uid.to_owned()).or_default().insert(version);
        }
    }

    fn settle(&mut self) {
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        for (uid, name) in &self.uids {
            let generated = self.generated.iter().find(|(known, _)| known == name);
            let name = generated.map_or(name.as_str(), |(_, label)| label.as_str());
            let count = seen.entry(name).or_default();
            *count += 1;
            let label = if *count == 1 { format!("<uid:{name}>") } else { format!("<uid:{name}#{count}>") };
            self.labels.insert(uid.clone(), label);
        }
    }

    fn apply(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.rewrite(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.apply(item)),
            Value::Object(members) => {
                if let Some(Value::Object(meta)) = members.get_mut("metadata") {
                    self.apply_meta(meta);
                }
                hide_cluster_ip(members);
                if let Some(address) = members.get_mut("serverAddress") {
                    *address = json!("<address>");
                }
                members.values_mut().for_each(|value| self.apply(value));
            }
            _ => {}
        }
    }

    fn apply_meta(&self, meta: &mut Map<String, Value>) {
        // Field ownership is server-side apply's, which is not part of this server yet.
        meta.remove("managedFields");
        let uid = meta.get("uid").and_then(Value::as_str).map(str::to_owned);
        if let Some(Value::String(version)) = meta.get_mut("resourceVersion") {
            let seen = uid.and_then(|uid| self.versions.get(&uid));
            let rank = seen
                .zip(version.parse::<u64>().ok())
                .and_then(|(seen, own)| seen.iter().position(|v| *v == own));
            match rank {
                Some(rank) => *version = format!("<rv:{}>", rank + 1),
                // Of a list or a bookmark: the store's version, which other writers move too.
                None if !version.is_empty() => *version = "<rv>".into(),
                None => {}
            }
        }
        if let Some(Value::String(token)) = meta.get_mut("continue")
            && !token.is_empty()
        {
            *token = "<continue>".into();
        }
    }

    /// Replaces what is accidental inside a text.
    fn rewrite(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, label) in &self.generated {
            text = text.replace(name, label);
        }
        text = replace_shaped(&text, "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", |uid| {
            (!self.given.contains(uid)).then(|| self.labels.get(uid).cloned().unwrap_or("<uid>".into()))
        });
        let time = |time: &str| (!self.given.contains(time)).then(|| "<time>".to_owned());
        text = replace_shaped(&text, "dddd-dd-ddTdd:dd:dd.ddddddZ", time);
        text = replace_shaped(&text, "dddd-dd-ddTdd:dd:ddZ", time);
        for before in ["current: ", "too old resource version: ", "the ResourceVersion in record ("] {
            text = replace_number_after(&text, before, &self.given);
        }
        hide_patched_object(text)
    }
}

/// Replaces every run of characters of the given shape (`x`: hexadecimal, `d`: digit, others stand for themselves).
fn replace_shaped(text: &str, shape: &str, replace: impl Fn(&str) -> Option<String>) -> String {
    let fits = |candidate: &str| {
        candidate.chars().zip(shape.chars()).all(|(c, s)| match s {
            'x' => c.is_ascii_hexdigit(),
            'd' => c.is_ascii_digit(),
            other => c == other,
        })
    };
    let (mut out, mut rest) = (String::new(), text);
    while !rest.is_empty() {
        if let Some(candidate) = rest.get(..shape.len())
            && fits(candidate)
        {
            out += &replace(candidate).unwrap_or_else(|| candidate.to_owned());
            rest = &rest[shape.len()..];
        } else {
            let step = rest.chars().next().map_or(1, char::len_utf8);
            out += &rest[..step];
            rest = &rest[step..];
        }
    }
    out
}

/// Messages about versions name the store's own, which other writers move too; a version that was asked for stays.
fn replace_number_after(text: &str, before: &str, given: &str) -> String {
    let Some(at) = text.find(before) else { return text.to_owned() };
    let (head, tail) = text.split_at(at + before.len());
    let digits = tail.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 {
        return text.to_owned();
    }
    let (number, rest) = tail.split_at(digits);
    let number = if given.contains(&format!("={number}")) { number } else { "<rv>" };
    let rest = match rest.strip_prefix(" (").and_then(|inner| inner.split_once(')')) {
        Some((inner, rest)) if inner.bytes().all(|b| b.is_ascii_digit()) => format!(" (<rv>){rest}"),
        _ => rest.to_owned(),
    };
    format!("{head}{number}{rest}")
}

/// Several causes of one refusal come in the order of a Go map: sorted here, and left out of the message that lists them.
fn order_causes(status: &mut Value) {
    let Some(Value::Array(causes)) = status.pointer_mut("/details/causes") else { return };
    if causes.len() < 2 {
        return;
    }
    causes.sort_by_key(|cause| (cause["field"].to_string(), cause["message"].to_string()));
    if let Some(Value::String(message)) = status.get_mut("message")
        && let Some(start) = message.find(" is invalid: [")
    {
        message.truncate(start);
        message.push_str(" is invalid: [<causes>]");
    }
}

/// The address a Service is given is drawn by chance from the service network.
fn hide_cluster_ip(members: &mut Map<String, Value>) {
    let hide = |address: &mut Value| {
        if address.as_str().is_some_and(|text| text.starts_with("10.")) {
            *address = json!("<cluster-ip>");
        }
    };
    if let Some(address) = members.get_mut("clusterIP") {
        hide(address);
    }
    if let Some(Value::Array(addresses)) = members.get_mut("clusterIPs") {
        addresses.iter_mut().for_each(hide);
    }
}

/// A refused patch is quoted with the whole object it would have made, field ownership and all.
fn hide_patched_object(text: String) -> String {
    const BEFORE: &str = "Invalid value: \"{";
    const AFTER: &str = "}\": ";
    match (text.find(BEFORE), text.rfind(AFTER)) {
        (Some(start), Some(end)) if start + BEFORE.len() <= end => {
            format!("{}<object>{}", &text[..start + BEFORE.len()], &text[end..])
        }
        _ => text,
    }
}

/// The part of a large document that is compared.
fn digest(view: View, body: &Value) -> Value {
    match view {
        View::Discovery => json!(discovery_lines(body)),
        View::OpenapiIndex => {
            let paths: Vec<&String> =
                body["paths"].as_object().map(|m| m.keys().collect()).unwrap_or_default();
            json!(paths)
        }
        View::Version => {
            json!({"major": body["major"], "minor": body["minor"], "gitVersion": body["gitVersion"]})
        }
        View::Presence => json!(match body {
            Value::Null => "nothing",
            Value::String(_) => "text",
            _ => "document",
        }),
    }
}

/// One line per thing a discovery document offers, so that documents of different extent can be compared.
fn discovery_lines(body: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    let items = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    for group in items(body, "items") {
        for version in items(&group, "versions") {
            let at = format!(
                "{}/{}",
                group["metadata"]["name"].as_str().unwrap_or_default(),
                version["version"].as_str().unwrap_or_default()
            );
            for mut resource in items(&version, "resources") {
                for mut subresource in items(&resource, "subresources") {
                    sort_verbs(&mut subresource);
                    lines.push(format!("{at} {}/{subresource}", resource["resource"]));
                }
                resource.as_object_mut().map(|members| members.remove("subresources"));
                sort_verbs(&mut resource);
                lines.push(format!("{at} {resource}"));
            }
        }
    }
    for mut resource in items(body, "resources") {
        // A hash of the encoded storage form: an internal of etcd migrations.
        resource.as_object_mut().map(|members| members.remove("storageVersionHash"));
        sort_verbs(&mut resource);
        lines.push(resource.to_string());
    }
    for group in items(body, "groups") {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        for version in items(&group, "versions") {
            lines.push(format!("{} is served as {version}", text(&group["name"])));
        }
        lines.push(format!("{} prefers {}", text(&group["name"]), group["preferredVersion"]));
    }
    lines.sort();
    lines
}

fn sort_verbs(resource: &mut Value) {
    if let Some(Value::Array(verbs)) = resource.get_mut("verbs") {
        verbs.sort_by_key(ToString::to_string);
    }
}
