//! Tags: set on and taken off machines, volumes, networks and templates, all or none.

use serde_json::{Value, json};

use super::account::Role;
use super::state::{Outcome, State};
use super::wire::OF_OTHERS;

impl State {
    /// The job of `createTags`.
    pub(crate) fn tagged(
        &mut self,
        caller: usize,
        resource_type: &str,
        ids: &[String],
        tags: &[(String, String)],
    ) -> Outcome {
        if matches!(resource_type, "ServiceOffering" | "DiskOffering" | "NetworkOffering") {
            let text = format!("The resource type {resource_type} doesn't support resource tags");
            return Outcome::Failed(431, text);
        }
        if let Some((key, _)) = tags.iter().find(|(key, value)| key.is_empty() || value.is_empty()) {
            return Outcome::Failed(431, format!("Value for the key {key} is either null or empty"));
        }
        if ids.iter().any(|id| self.is_of_others(caller, id)) {
            return Outcome::Failed(531, OF_OTHERS.to_owned());
        }
        for id in ids {
            let Some(there) = self.tag_keys(id) else {
                let text = format!("Unable to find resource by id {id} and type {resource_type}");
                return Outcome::Failed(431, text);
            };
            let is_there = |key: &str| there.iter().any(|other| other.eq_ignore_ascii_case(key));
            if let Some((key, _)) = tags.iter().find(|(key, _)| is_there(key)) {
                return Outcome::Failed(530, format!("tag {key} already on {resource_type} with id {id}"));
            }
        }
        for id in ids {
            if let Some(there) = self.tags_of(id) {
                there.extend(tags.iter().cloned());
            } else if let Some(there) = self.entry(id).and_then(|entry| entry["tags"].as_array_mut()) {
                there.extend(tags.iter().map(|(key, value)| json!({"key": key, "value": value})));
            }
        }
        Outcome::Done(json!({"success": true}))
    }

    /// The job of `deleteTags`: of what has one of these values under its key, whatever the case; without any tags all go. Where nothing
    /// is as it was said, nothing goes, and the job says so.
    pub(crate) fn untagged(&mut self, caller: usize, ids: &[String], tags: &[(String, String)]) -> Outcome {
        if ids.iter().any(|id| self.is_of_others(caller, id)) {
            return Outcome::Failed(531, OF_OTHERS.to_owned());
        }
        let goes = |key: &str, value: &str| {
            let is_this = |(of, wanted): &(String, String)| {
                of.eq_ignore_ascii_case(key) && (wanted.is_empty() || wanted.eq_ignore_ascii_case(value))
            };
            tags.is_empty() || tags.iter().any(is_this)
        };
        let mut gone = 0;
        for id in ids {
            if let Some(there) = self.tags_of(id) {
                let before = there.len();
                there.retain(|(key, value)| !goes(key, value));
                gone += before - there.len();
            } else if let Some(there) = self.entry(id).and_then(|entry| entry["tags"].as_array_mut()) {
                let before = there.len();
                let text = |tag: &Value, part: &str| tag[part].as_str().unwrap_or_default().to_owned();
                there.retain(|tag| !goes(&text(tag, "key"), &text(tag, "value")));
                gone += before - there.len();
            }
        }
        Outcome::Done(json!({"success": gone > 0}))
    }

    /// The keys of what is on something, if it is there.
    fn tag_keys(&mut self, id: &str) -> Option<Vec<String>> {
        if let Some(there) = self.tags_of(id) {
            return Some(there.iter().map(|(key, _)| key.clone()).collect());
        }
        let entry = self.entry(id)?;
        if entry["tags"].is_null() {
            entry["tags"] = json!([]);
        }
        let keys = entry["tags"].as_array().into_iter().flatten();
        Some(keys.filter_map(|tag| tag["key"].as_str().map(str::to_owned)).collect())
    }

    /// Whether something is there, and not for the caller.
    fn is_of_others(&mut self, caller: usize, id: &str) -> bool {
        let machine = self.machine(id).map(|machine| &machine.owner);
        let volume = || self.volumes.iter().find(|volume| volume.id == id).map(|volume| &volume.owner);
        if let Some(owner) = machine.or_else(volume) {
            return !self.may(caller, owner);
        }
        let Some(entry) = self.entry(id).cloned() else { return false };
        if let Some(project) = entry["projectid"].as_str() {
            return !self.may_use_project(caller, project);
        }
        match self.accounts.iter().position(|account| entry["account"] == account.name.as_str()) {
            Some(owner) => !self.may(caller, &self.owner_of(owner)),
            None => self.accounts.get(caller).is_none_or(|account| account.role != Role::Root),
        }
    }

    fn tags_of(&mut self, id: &str) -> Option<&mut Vec<(String, String)>> {
        if let Some(number) = self.machine_ids.get(id) {
            return self.machines.get_mut(number).map(|machine| &mut machine.tags);
        }
        self.volumes.iter_mut().find(|volume| volume.id == id).map(|volume| &mut volume.tags)
    }

    /// A network or template.
    fn entry(&mut self, id: &str) -> Option<&mut Value> {
        self.networks.iter_mut().chain(&mut self.templates).find(|entry| entry["id"] == id)
    }
}
