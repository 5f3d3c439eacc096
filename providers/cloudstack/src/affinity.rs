//! Affinity groups: those the NodeClass names, and one of our own per NodePool or NodeClass, made when it is needed and
//! removed when nobody uses it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use karpenter_api::{NodeClaim, labels as well_known};
use kube::ResourceExt as _;

use crate::client::error::{ApiError, ErrorKind};
use crate::client::model::{AffinityGroup, VirtualMachine};
use crate::client::request::Scope;
use crate::client::requests;
use crate::client::throttle::Lane;
use crate::instances::{is_alive, is_placed};
use crate::last_word::{LastWord, MadeFor};
use crate::naming::machine_id;
use crate::nodeclass::{Affinity, CloudStackNodeClass, CloudStackNodeClassSpec};
use crate::provider::CloudStackProvider;
use crate::resolved::Resolved;
use crate::unavailable::Refused;

/// What the names of groups say besides whose they are.
const SOFT: &str = "soft-";
const NEAR: &str = "near-";
const OF_CLASS: &str = "class-";

/// CloudStack's word for a group that lets no two of its machines share a host.
const APART: &str = "host anti-affinity";

/// What removes a group.
pub(crate) const DELETE: &str = "deleteAffinityGroup";

/// The groups of one machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups {
    pub(crate) ids: Vec<String>,
    /// What is refused when no host is left for them.
    pub(crate) refused_as: Option<Refused>,
}

/// CloudStack's word for a kind of affinity.
fn kind(affinity: &Affinity) -> Option<&'static str> {
    Some(match affinity.type_.as_deref()? {
        "hostAntiAffinity" => APART,
        "hostAffinity" => "host affinity",
        "softHostAffinity" => "non-strict host affinity",
        _ => "non-strict host anti-affinity",
    })
}

/// What is refused when no host is left for the machines of a NodePool, whatever their size: only a strict group that keeps them apart
/// takes hosts from all of them. Servers name affinity groups in every refusal of a machine that has any.
pub(crate) fn refused_as(spec: &CloudStackNodeClassSpec, pool: &str) -> Option<Refused> {
    let kind = kind(spec.affinity.as_ref()?).filter(|kind| *kind == APART)?;
    Some(Refused::Pool { name: pool.to_owned(), affinity: kind.to_owned() })
}

/// Whether other NodeClaims have machines on hosts in the group of this one's. What still looks for its place takes none.
pub(crate) fn has_others_beside(
    spec: &CloudStackNodeClassSpec,
    claim: &NodeClaim,
    claims: &[Arc<NodeClaim>],
    machines: &[VirtualMachine],
) -> bool {
    let is_of_class =
        spec.affinity.as_ref().is_some_and(|affinity| affinity.scope.as_deref() == Some("NodeClass"));
    let shares_group = |other: &NodeClaim| match is_of_class {
        true => other.spec.node_class_ref.name == claim.spec.node_class_ref.name,
        false => other.labels().get(well_known::NODEPOOL) == claim.labels().get(well_known::NODEPOOL),
    };
    let has_place = |other: &NodeClaim| {
        let id = other.status.as_ref().and_then(|status| machine_id(status.provider_id.as_deref()?));
        let its = |machine: &&VirtualMachine| Some(machine.id.as_str()) == id;
        machines.iter().find(its).is_some_and(|machine| is_alive(machine) && is_placed(machine))
    };
    claims.iter().any(|other| other.uid() != claim.uid() && shares_group(other) && has_place(other))
}

impl CloudStackProvider {
    /// The groups a claim's machine belongs to.
    ///
    /// # Errors
    ///
    /// If ours is not there and cannot be made.
    pub(crate) async fn groups(
        &self,
        claim: &NodeClaim,
        class: &CloudStackNodeClass,
        resolved: &Resolved,
    ) -> Result<Groups, ApiError> {
        let Some(affinity) = &resolved.spec.affinity else { return Ok(Groups::default()) };
        let pool = claim.labels().get(well_known::NODEPOOL).cloned().unwrap_or_default();
        let refused_as = refused_as(&resolved.spec, &pool);
        let mut ids = Vec::new();
        if let Some(kind) = kind(affinity) {
            // One name per kind: names are unique in an account whatever the type of the group.
            let soft = if kind.starts_with("non-strict") { SOFT } else { "" };
            let near = if kind.ends_with("host affinity") { NEAR } else { "" };
            let of = match affinity.scope.as_deref() {
                Some("NodeClass") => format!("{OF_CLASS}{}", class.name_any()),
                _ => pool,
            };
            let name = format!("{}{soft}{near}{of}", self.shared.naming.prefix());
            ids.push(self.own_group(&name, kind, resolved).await?);
        }
        ids.extend(resolved.affinity_groups.iter().cloned());
        Ok(Groups { ids, refused_as })
    }

    /// The group of this name, made when there is none yet.
    async fn own_group(&self, name: &str, kind: &str, resolved: &Resolved) -> Result<String, ApiError> {
        let client = &self.shared.client;
        let list = requests::list_affinity_groups(name, &resolved.scope);
        let found = |groups: Vec<AffinityGroup>| {
            let Some(group) = groups.into_iter().find(|group| group.name == name) else { return Ok(None) };
            if group.type_ == kind {
                return Ok(Some(group.id));
            }
            // Machines in a group of another type would be placed otherwise than the NodeClass says.
            let text = format!(
                "spec.affinity: the affinity group {name:?} is of type {:?}, not {kind:?}; delete it",
                group.type_
            );
            Err(ApiError::new("listAffinityGroups", ErrorKind::Parameter, text))
        };
        if let Some(id) = found(client.list(&list, Lane::Action).await?)? {
            return Ok(id);
        }
        self.shared.no_groups.store(false, Relaxed);
        match client.call(&requests::create_affinity_group(name, kind, &resolved.scope)).await {
            Ok(answer) => answer["id"].as_str().map(str::to_owned).ok_or_else(|| {
                ApiError::new("createAffinityGroup", ErrorKind::Internal, "the server names no group")
            }),
            // Somebody else was faster, or our answer was lost.
            Err(error) if error.kind == ErrorKind::Parameter || error.outcome_unknown() => {
                found(client.list(&list, Lane::Action).await?)?.ok_or(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Our groups go with the last NodeClaim of their NodePool or NodeClass. Once none is left and no NodeClass wants any,
    /// nobody asks again.
    pub(crate) async fn remove_empty_groups(&self, last_word: &LastWord<'_>) -> Result<(), ApiError> {
        let shared = &self.shared;
        let wants = |class: &Arc<CloudStackNodeClass>| {
            let is_ours = class.credentials() == shared.whose.as_ref();
            is_ours && class.spec.as_ref().is_some_and(|spec| spec.affinity.is_some())
        };
        let Some(classes) = shared.objects.node_classes() else { return Ok(()) };
        let wanted = classes.iter().any(wants);
        if !wanted && shared.no_groups.load(Relaxed) {
            return Ok(());
        }
        let session = shared.client.session();
        let mut left = false;
        for scope in shared.scopes()? {
            let groups = match self.our_groups(&scope).await {
                Ok(groups) => groups,
                Err(error) => {
                    shared.denied.note_list(&error, &scope);
                    left = true;
                    continue;
                }
            };
            left |= !groups.is_empty();
            for (group, rest) in groups {
                // Claims come while groups are listed.
                let claims = shared.objects.node_claims();
                let may_be_wanted =
                    claims.is_none_or(|claims| claims.iter().any(|claim| may_want_group(claim, &rest)));
                if group.virtual_machine_ids.is_empty()
                    && !may_be_wanted
                    && !shared.denied.holds(DELETE, &scope, &group.id)
                    && last_word.nobody_wants(MadeFor::default(), |claim| may_want_group(claim, &rest)).await
                {
                    self.remove_group(&group, &scope).await;
                }
            }
        }
        shared.conclude(&shared.no_groups, !left && !wanted, &session);
        Ok(())
    }

    /// The groups in a scope that are ours and empty, in words; they are removed. Nobody is asked whether they want them: they are of
    /// other NodeClaims then, elsewhere, which have groups of the same names. What may not be removed is not waited for, and the
    /// NodeClass is told of it.
    ///
    /// # Errors
    ///
    /// If CloudStack cannot say what there is.
    pub(crate) async fn groups_left(
        &self,
        scope: &Scope,
        class: &CloudStackNodeClass,
    ) -> Result<Vec<String>, ApiError> {
        if self.shared.no_groups.load(Relaxed) {
            return Ok(Vec::new());
        }
        let groups = match self.our_groups(scope).await {
            Err(error) if self.shared.may_leave_out(scope, &error) || error.is_a_verdict() => Vec::new(),
            groups => groups?,
        };
        let mut left = Vec::new();
        for (group, _) in groups.iter().filter(|(group, _)| group.virtual_machine_ids.is_empty()) {
            self.remove_group(group, scope).await;
            let what = format!("affinity group {}", group.name);
            match self.shared.denied.why(DELETE, scope, &group.id) {
                Some(why) => self.tell_of_denial(class, &what, DELETE, &why),
                None => left.push(what),
            }
        }
        Ok(left)
    }

    /// Our groups in a scope, with what their names say besides that they are ours.
    async fn our_groups(&self, scope: &Scope) -> Result<Vec<(AffinityGroup, String)>, ApiError> {
        let prefix = self.shared.naming.prefix();
        let request = requests::list_affinity_groups_by_keyword(prefix, scope);
        let groups: Vec<AffinityGroup> = self.shared.client.list(&request, Lane::Refresh).await?;
        let ours = |group: AffinityGroup| {
            let rest = group.name.strip_prefix(prefix)?.to_owned();
            Some((group, rest))
        };
        Ok(groups.into_iter().filter_map(ours).collect())
    }

    async fn remove_group(&self, group: &AffinityGroup, scope: &Scope) {
        let request = requests::delete_affinity_group(&group.id, scope);
        if let Err(error) = self.shared.client.call(&request).await {
            self.shared.denied.note(&error, scope, &group.id);
            tracing::warn!(group = group.name, %error, "an affinity group will be removed later");
        }
    }

    /// Says on a NodeClass, once for each command, what stays because these keys may not remove it.
    pub(crate) fn tell_of_denial(
        &self,
        class: &CloudStackNodeClass,
        what: &str,
        command: &'static str,
        why: &str,
    ) {
        if self.shared.denied.is_news(command, &class.uid().unwrap_or_else(|| class.name_any())) {
            let text = format!(
                "{what} stays, and so does whatever else {command} would remove: {why}; remove it by hand, and allow {command} to the role of the keys"
            );
            self.shared.voice.warn(class, "DeleteRefused", text);
        }
    }
}

/// Whether this NodeClaim may be about to use the group of this name.
fn may_want_group(claim: &NodeClaim, name: &str) -> bool {
    // A NodePool may itself be called soft-something: whoever could be meant keeps the group.
    let hard = name.strip_prefix(SOFT).unwrap_or(name);
    let far = |name: &'_ str| name.strip_prefix(NEAR).unwrap_or(name).to_owned();
    let mut names = vec![name.to_owned(), hard.to_owned(), far(name), far(hard)];
    let of_classes: Vec<String> =
        names.iter().filter_map(|name| name.strip_prefix(OF_CLASS)).map(str::to_owned).collect();
    names.extend(of_classes);
    let pool = claim.labels().get(well_known::NODEPOOL);
    pool.is_some_and(|pool| names.contains(pool)) || names.contains(&claim.spec.node_class_ref.name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_machines_on_hosts_take_them_from_others_of_their_group() {
        let claim = |name: &str, pool: &str| -> Arc<NodeClaim> {
            let claim = json!({
                "metadata": {"name": name, "uid": name, "labels": {well_known::NODEPOOL: pool}},
                "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "default"}, "requirements": []},
                "status": {"providerID": format!("external-cloudstack://{name}")},
            });
            Arc::new(serde_json::from_value(claim).expect("a claim"))
        };
        let machine = |id: &str, state: &str| VirtualMachine {
            id: id.into(),
            state: state.into(),
            ..VirtualMachine::default()
        };
        let spec = CloudStackNodeClassSpec::default();
        let claims = [claim("a", "x"), claim("b", "x"), claim("c", "y")];
        let beside = |states: [&str; 3]| {
            let [a, b, c] = states;
            let machines = [machine("a", a), machine("b", b), machine("c", c)];
            has_others_beside(&spec, &claims[0], &claims, &machines)
        };
        assert!(beside(["Error", "Running", "Stopped"]));
        assert!(!beside(["Running", "Stopped", "Running"]), "the other of its pool has no place yet");
        assert!(!beside(["Running", "Error", "Running"]), "or got none");
        assert!(!has_others_beside(&spec, &claims[0], &claims, &[]), "nobody sees any");
    }
}
