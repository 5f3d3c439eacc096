//! How the machine of a NodeClaim would be made: everything a deployment says, and the tags the machine gets.

use std::collections::{BTreeMap, BTreeSet};

use karpenter_api::{NodeClaim, labels as well_known, taints};
use karpenter_cloudprovider::error::ProviderError;
use karpenter_engine::instance_type::{InstanceType, Offering};
use kube::ResourceExt as _;

use crate::affinity::Groups;
use crate::bootstrap::BootstrapError;
use crate::client::model;
use crate::client::requests::Deploy;
use crate::instances::Candidate;
use crate::instancetypes::{CPU_SPEED, Market};
use crate::nodeclass::{CloudStackNodeClass, CloudStackNodeClassSpec, VALIDATION_SUCCEEDED};
use crate::provider::CloudStackProvider;
use crate::resolved::{Problem, Resolved, quoted};
use crate::unavailable::Refused;
use crate::userdata::{self, INSTANCE_ID, Packing, Variables};
use crate::voice::NoValue;
use crate::{bootstrap, disks, labels, made_by, talos, templates, tokens};

/// The longest key or value of a tag that the server takes.
const MAX_TAG: usize = 255;

/// What machines are told, as far as it is the same for all of a NodeClass.
pub(crate) struct Told {
    user_data: Option<String>,
    token: Option<String>,
}

impl Told {
    /// The user data of one machine, before its variables are filled in.
    fn text(
        &self,
        spec: &CloudStackNodeClassSpec,
        variables: &Variables,
    ) -> Result<Option<String>, BootstrapError> {
        let Some(how) = &spec.bootstrap else { return Ok(self.user_data.clone()) };
        let (theirs, token) = (self.user_data.as_deref(), self.token.as_deref().unwrap_or_default().trim());
        let arguments = bootstrap::kubelet_arguments(spec);
        match how.mode.as_str() {
            "Talos" => talos::configuration(theirs, spec, variables).map(Some),
            "Custom" => Ok(Some(bootstrap::custom(theirs, how, token, arguments))),
            _ => bootstrap::merge(&bootstrap::script(how, token, arguments, variables), theirs).map(Some),
        }
    }

    /// What is wrong with it, before any machine is made.
    fn problem(&self, spec: &CloudStackNodeClassSpec, packing: Packing) -> Option<Problem> {
        let problem = |reason: &'static str, message: String| {
            Some(Problem { condition: VALIDATION_SUCCEEDED, reason, message })
        };
        let variables = Variables::default();
        match self.text(spec, &variables) {
            Err(error) => problem("UserDataInvalid", error.to_string()),
            Ok(text) => match userdata::render(&text?, &variables, packing) {
                Err(error) => problem("UserDataTooLong", error.to_string()),
                Ok(_) => None,
            },
        }
    }
}

/// What is wrong with what machines would be told, as far as the NodeClass itself says it: values that stand in Secrets and
/// ConfigMaps are not looked at.
pub(crate) fn problem_of_text(spec: &CloudStackNodeClassSpec, max_user_data: usize) -> Option<Problem> {
    if let Some(bootstrap) = spec.bootstrap.as_ref().filter(|bootstrap| bootstrap.token_secret_ref.is_none())
        && let Err(problem) = tokens::ttl(bootstrap)
    {
        let message = format!("spec.bootstrap.tokenTTL: {problem}");
        return Some(Problem { condition: VALIDATION_SUCCEEDED, reason: "UserDataNotFound", message });
    }
    if spec.user_data_ref.is_some() {
        return None;
    }
    let told = Told { user_data: spec.user_data.clone(), token: Some(tokens::EXAMPLE.to_owned()) };
    told.problem(spec, Packing::of(spec, max_user_data))
}

impl CloudStackProvider {
    /// How the machine of this choice would be deployed, in the network of this number among those that can be used; nothing if the
    /// choice names what is not there, or there are not so many networks.
    pub(crate) fn candidate(
        &self,
        claim: &NodeClaim,
        (resolved, market): (&Resolved, &Market),
        (instance_type, offering, nth): (&InstanceType, &Offering, usize),
        groups: &Groups,
    ) -> Result<Option<Candidate>, ProviderError> {
        let value = |key: &str| {
            let requirement = offering.requirements.get(key)?;
            requirement.values.first().map(ToString::to_string)
        };
        let Some(zone_id) = value(labels::ZONE_ID) else { return Ok(None) };
        let reservation = value(labels::RESERVATION_ID);
        let reservation = resolved.spec.reservations.iter().find(|r| Some(&r.name) == reservation.as_ref());
        let (Some(in_zone), Some(zone)) =
            (resolved.in_zone.get(&zone_id), resolved.zones.iter().find(|zone| zone.id == zone_id))
        else {
            return Ok(None);
        };
        let Some(size) = market.size(&zone_id, &instance_type.name) else { return Ok(None) };
        let wanted_archs =
            karpenter_cloudprovider::conversion::requirements(claim).map_err(ProviderError::other)?;
        let template = templates::used(&in_zone.templates, &resolved.spec).find(|template| {
            let arch = templates::arch(template, &resolved.spec);
            wanted_archs.get(well_known::ARCH).is_none_or(|wanted| wanted.has(arch))
        });
        let unavailable = &self.shared.unavailable;
        let refused =
            |network: &model::Network| unavailable.is_refused(&Refused::Network(network.id.clone()));
        let usable: Vec<&model::Network> =
            in_zone.networks.iter().filter(|network| !network.is_full() && !refused(network)).collect();
        let additional = in_zone.additional.iter().map(|term| {
            let room = || term.iter().filter(|network| !network.is_full());
            // Whether it is the additional one that fails nobody says, so a refused one is better than none.
            room().find(|network| !refused(network)).or_else(|| room().next())
        });
        let Some(additional) = additional.collect::<Option<Vec<&model::Network>>>() else { return Ok(None) };
        // Spread by the claim's name: whoever asks again for the same claim gets the same network.
        let turn = match resolved.spec.network_selection.as_deref() {
            Some("Spread") if !usable.is_empty() => {
                let hash = karpenter_api::structure_hash::text(&claim.name_any());
                usize::try_from(hash % usable.len() as u64).unwrap_or(0)
            }
            _ => 0,
        };
        let network = (nth < usable.len()).then(|| usable[(turn + nth) % usable.len()]);
        let (Some(template), Some(network)) = (template, network) else { return Ok(None) };
        let spec = &resolved.spec;
        let mut details = spec.details.clone().unwrap_or_default();
        // Only of sizes that leave it open, which have it.
        details.remove(CPU_SPEED);
        details.extend(size.details.clone());
        let variables = self.variables(claim, &zone.name, &size.name);
        let networks = std::iter::once(network).chain(additional);
        Ok(Some(Candidate {
            type_name: size.name.clone(),
            zone_id: zone_id.clone(),
            zone_name: zone.name.clone(),
            offering_name: size.offering.name.clone(),
            network_name: network.name.clone(),
            need: resolved.need(&zone_id, size),
            group_refused_as: groups.refused_as.clone(),
            reservation: reservation.map(|r| (r.name.clone(), r.count)),
            deploy: Deploy {
                zone_id: zone_id.clone(),
                service_offering_id: size.offering.id.clone(),
                template_id: template.id.clone(),
                network_ids: networks.map(|network| network.id.clone()).collect(),
                security_group_ids: resolved.security_groups.clone(),
                affinity_group_ids: groups
                    .ids
                    .iter()
                    .chain(reservation.and_then(|r| r.group_id.as_ref()))
                    .cloned()
                    .collect(),
                key_pairs: spec.ssh_key_pair.iter().chain(&spec.ssh_key_pairs).cloned().collect(),
                single_key_pair: resolved.single_key_pair,
                user_data_id: spec.user_data_id.clone(),
                user_data_details: spec
                    .user_data_details
                    .iter()
                    .map(|(name, value)| (name.clone(), userdata::fill(value, &variables)))
                    .collect(),
                root_disk_size_gb: spec.root_disk_size,
                root_disk_offering_id: resolved.root_disk_offering(&zone_id),
                data_disks: resolved.new_disks(&zone_id),
                details,
                group: Some(spec.group.as_ref().unwrap_or(&self.shared.options.cluster_name).clone()),
                boot_type: spec.boot_type.clone(),
                boot_mode: spec.boot_mode.clone(),
                hypervisor: spec.hypervisor.clone(),
                dynamic_scaling: spec.dynamic_scaling.unwrap_or(false),
                single_disk: resolved.single_disk,
                scope: resolved.scope.clone(),
                ..Deploy::default()
            },
        }))
    }

    /// The user data of the machine of this candidate.
    pub(crate) fn user_data(
        &self,
        claim: &NodeClaim,
        spec: &CloudStackNodeClassSpec,
        told: &Told,
        candidate: &Candidate,
    ) -> Result<Option<String>, ProviderError> {
        let variables = self.variables(claim, &candidate.zone_name, &candidate.type_name);
        let text = told.text(spec, &variables).map_err(|error| {
            let text = error.to_string();
            ProviderError::create(error, "UserDataInvalid", text)
        })?;
        let Some(text) = text else { return Ok(None) };
        let rendered = userdata::render(&text, &variables, self.packing(spec)).map_err(|error| {
            let text = error.to_string();
            self.shared.voice.warn(claim, "UserDataTooLong", text.clone());
            ProviderError::create(error, "UserDataTooLong", text)
        })?;
        Ok(Some(rendered))
    }

    fn packing(&self, spec: &CloudStackNodeClassSpec) -> Packing {
        Packing::of(spec, self.shared.options.max_user_data)
    }

    /// What machines of this NodeClass are told besides what is known of each; the token, where each gets its own, is that of
    /// this NodeClaim, or one that only looks so.
    pub(crate) async fn told(
        &self,
        resolved: &Resolved,
        claim: Option<&NodeClaim>,
    ) -> Result<Told, (&'static str, NoValue)> {
        let voice = &self.shared.voice;
        let user_data = match &resolved.spec.user_data_ref {
            Some(wanted) => {
                let value = voice.value_of(wanted).await;
                Some(value.map_err(|problem| ("spec.userDataRef", problem))?)
            }
            None => resolved.spec.user_data.clone(),
        };
        let bootstrap = resolved.spec.bootstrap.clone().unwrap_or_default();
        let token = match (&bootstrap.token_secret_ref, tokens::ttl(&bootstrap)) {
            (Some(wanted), _) => {
                let value = voice.value_of(wanted).await;
                Some(value.map_err(|problem| ("spec.bootstrap.tokenSecretRef", problem))?)
            }
            (None, Err(problem)) => {
                return Err(("spec.bootstrap.tokenTTL", NoValue::Missing(problem)));
            }
            (None, Ok(None)) => None,
            (None, Ok(Some(ttl))) => match claim {
                None => Some(tokens::EXAMPLE.to_owned()),
                Some(claim) => {
                    let (keys, now) = (self.shared.client.session().credentials, self.shared.clock.now());
                    let token = self.shared.tokens.of(claim, ttl, &keys, voice, now).await;
                    Some(token.map_err(|problem| ("spec.bootstrap.tokenTTL", problem))?)
                }
            },
        };
        Ok(Told { user_data, token })
    }

    /// What is wrong with what machines of this NodeClass would be told, before any is made.
    pub(crate) async fn user_data_problem(&self, resolved: &Resolved) -> Option<Problem> {
        match self.told(resolved, None).await {
            Ok(told) => told.problem(&resolved.spec, self.packing(&resolved.spec)),
            Err((field, NoValue::Missing(text))) => Some(Problem {
                condition: VALIDATION_SUCCEEDED,
                reason: "UserDataNotFound",
                message: format!("{field}: {text}"),
            }),
            // Not knowing is no verdict.
            Err((_, NoValue::Unreadable(_))) => None,
        }
    }

    fn variables(&self, claim: &NodeClaim, zone: &str, instance_type: &str) -> Variables {
        let pool = claim.labels().get(well_known::NODEPOOL).cloned().unwrap_or_default();
        let mut labels: Vec<String> = claim
            .labels()
            .iter()
            .filter(|(key, _)| bootstrap::kubelet_takes(key))
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        labels.sort();
        let mut all_taints = vec![taints::UNREGISTERED.to_taint()];
        all_taints.extend(claim.spec.taints().iter().chain(claim.spec.startup_taints()).cloned());
        let taints: Vec<String> = all_taints
            .iter()
            .map(|taint| {
                format!("{}={}:{}", taint.key, taint.value.as_deref().unwrap_or_default(), taint.effect)
            })
            .collect();
        Variables {
            cluster: self.shared.options.cluster_name.clone(),
            node_claim: claim.name_any(),
            node_pool: pool,
            zone: zone.to_owned(),
            instance_type: instance_type.to_owned(),
            labels: labels.join(","),
            taints: taints.join(","),
            provider_id: self.shared.form.write(zone, INSTANCE_ID),
        }
    }

    /// What a machine of this claim is tagged with. Nothing of the user's overrides what says whose it is.
    pub(crate) fn tags(&self, claim: &NodeClaim, class: &CloudStackNodeClass) -> BTreeMap<String, String> {
        let spec = class.spec.clone().unwrap_or_default();
        let mut tags = takeable(spec.tags.clone().unwrap_or_default());
        let mut put = |key: &str, value: String| {
            if !value.is_empty() {
                tags.insert(key.to_owned(), value);
            }
        };
        put(labels::TAG_MANAGED_BY, "karpenter".to_owned());
        put(&labels::cluster_tag(&self.shared.options.cluster_name), "owned".to_owned());
        put(labels::TAG_NODE_CLAIM, claim.name_any());
        put(labels::TAG_NODE_POOL, claim.labels().get(well_known::NODEPOOL).cloned().unwrap_or_default());
        put(labels::TAG_NODE_CLASS, class.name_any());
        put(labels::TAG_NODE_CLAIM_UID, claim.uid().unwrap_or_default());
        put(labels::TAG_NODE_CLASS_HASH, made_by::recorded(claim).unwrap_or_else(|| made_by::tag(class)));
        put(labels::TAG_RESERVATION, claim.labels().get(labels::RESERVATION_ID).cloned().unwrap_or_default());
        let disks = spec.data_disks.len() + usize::from(spec.disk_offering.is_some());
        if disks > 0 {
            put(labels::TAG_DATA_DISKS, disks.to_string());
        }
        let kept: Vec<String> = disks::kept_devices(&spec).iter().map(ToString::to_string).collect();
        put(labels::TAG_KEPT_DISKS, kept.join(","));
        drop_twins(&mut tags, &spec.tags.unwrap_or_default());
        tags
    }
}

/// What a machine's own tags begin with: what says whose it is, what it counts against and which disks go with it.
const OWN: [&str; 3] = ["karpenter.sh/", "karpenter.k8s.cloudstack/", "kubernetes.io/cluster/"];

/// Whether a tag of the user's can be used: the server takes none of the others with an empty or long one, nor with one that has
/// control characters, and ours are not theirs.
fn is_takeable(key: &str, value: &str) -> bool {
    let is_control = |c: char| c.is_ascii_control() && !matches!(c, '\n' | '\r');
    let takes =
        |text: &str| !text.is_empty() && text.chars().count() <= MAX_TAG && !text.contains(is_control);
    takes(key) && takes(value) && !is_own(key)
}

/// Whether a tag is Karpenter's own.
pub(crate) fn is_own(key: &str) -> bool {
    let key_in_small = key.to_lowercase();
    OWN.iter().any(|own| key_in_small.starts_with(own))
}

fn takeable(tags: BTreeMap<String, String>) -> BTreeMap<String, String> {
    tags.into_iter().filter(|(key, value)| is_takeable(key, value)).collect()
}

/// That tags of the NodeClass are left out, in words.
pub(crate) fn tags_left_out(spec: &CloudStackNodeClassSpec) -> Option<String> {
    let tags = spec.tags.iter().flatten().filter(|(key, value)| !is_takeable(key, value));
    // Nobody reads more of a long one.
    let keys: Vec<String> = tags.map(|(key, _)| key.chars().take(63).collect()).collect();
    (!keys.is_empty()).then(|| {
        format!(
            "spec.tags: {} are left out; keys and values have 1 to {MAX_TAG} characters, none of them a control character such as TAB, and keys that begin with {} are Karpenter's own",
            quoted(&keys),
            OWN.join(", ")
        )
    })
}

/// To the server keys that differ in case alone are the same, and it takes each once: the user's give way to ours, and the later
/// of two of the user's to the earlier.
fn drop_twins(tags: &mut BTreeMap<String, String>, users: &BTreeMap<String, String>) {
    let is_users = |key: &String, value: &String| users.get(key) == Some(value);
    let mut keys: Vec<(bool, String)> =
        tags.iter().map(|(key, value)| (is_users(key, value), key.clone())).collect();
    keys.sort();
    let mut seen = BTreeSet::new();
    for (_, key) in keys {
        if !seen.insert(key.to_lowercase()) {
            tags.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tag_of_the_users_keeps_none_of_the_others_away() {
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let long = "x".repeat(256);
        let users = map(&[
            ("team", ""),
            ("Owner", "a"),
            ("owner", "b"),
            ("long", &long),
            (long.as_str(), "long"),
            ("Karpenter.sh/NodeClaim", "mine"),
            ("tab", "a\tb"),
            ("bell\u{7}", "a"),
            ("kept", "yes"),
            ("lines", "a\r\nb"),
        ]);
        let mut tags = takeable(users.clone());
        tags.insert(labels::TAG_NODE_CLAIM.to_owned(), "np-a".to_owned());
        drop_twins(&mut tags, &users);
        let kept = [("Owner", "a"), (labels::TAG_NODE_CLAIM, "np-a"), ("kept", "yes"), ("lines", "a\r\nb")];
        assert_eq!(tags, map(&kept));
    }

    #[test]
    fn tags_of_karpenters_own_kind_are_left_out_and_named() {
        let mut spec = CloudStackNodeClassSpec::default();
        assert_eq!(tags_left_out(&spec), None);
        let own = [
            labels::TAG_RESERVATION,
            labels::TAG_KEPT_DISKS,
            labels::TAG_DATA_DISKS,
            "Karpenter.sh/managed-by",
        ];
        let mut tags: BTreeMap<String, String> = own.map(|key| (key.to_owned(), "1".to_owned())).into();
        tags.insert("team".to_owned(), "a".to_owned());
        tags.insert("empty".to_owned(), String::new());
        tags.insert("tab".to_owned(), "a\tb".to_owned());
        assert_eq!(takeable(tags.clone()).into_keys().collect::<Vec<_>>(), ["team"]);
        spec.tags = Some(tags);
        let text = tags_left_out(&spec).expect("some are left out");
        assert!(text.starts_with("spec.tags: ") && !text.contains("team"), "{text}");
        assert!(own.iter().chain(&["empty", "tab"]).all(|key| text.contains(&format!("{key:?}"))), "{text}");
    }
}
