//! Data disks that lost their machine: removed if they are provably ours, were to go with it, and no NodeClaim wants them.
//!
//! A machine that somebody expunges by hand leaves its disks behind, and so does one that is gone before a disk that was made
//! for it was attached.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use karpenter_api::NodeClaim;
use kube::ResourceExt as _;
use tokio::time::Instant;

use crate::absence::Care;
use crate::client::error::ApiError;
use crate::client::model::{VirtualMachine, Volume, time};
use crate::client::request::{Request, Scope};
use crate::client::requests;
use crate::client::throttle::Lane;
use crate::garbage::{GRACE, MAX_PER_ROUND, Round};
use crate::last_word::{LastWord, MadeFor};
use crate::nodeclass::CloudStackNodeClass;
use crate::provider::CloudStackProvider;
use crate::shared::CollectOrphans;
use crate::{labels, later_disks};

/// What removes a disk.
pub(crate) const DELETE: &str = "deleteVolume";

/// Whether a disk of ours goes once nobody wants it: one that is to stay does not, nor one of which nothing says whose it was.
fn is_to_go(disk: &Volume) -> bool {
    let is_somebodys =
        disk.tag(labels::TAG_NODE_CLAIM_UID).is_some() || later_disks::machine_of(&disk.name).is_some();
    is_somebodys && disk.tag(labels::TAG_KEPT).is_none()
}

/// When disks of ours were first seen: they are no younger, whatever the server's clock says.
#[derive(Debug, Default)]
pub(crate) struct SeenDisks(Mutex<BTreeMap<String, Instant>>);

impl SeenDisks {
    /// These are seen. What is not seen any more is forgotten, but where nobody could look.
    fn see<'a>(&self, ids: impl Iterator<Item = &'a str>, all: bool) {
        let now = Instant::now();
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let there: BTreeMap<String, Instant> =
            ids.map(|id| (id.to_owned(), seen.get(id).copied().unwrap_or(now))).collect();
        if all {
            *seen = there;
        } else {
            seen.extend(there);
        }
    }

    fn least_age(&self, id: &str) -> Duration {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(id).map_or(Duration::ZERO, Instant::elapsed)
    }
}

impl CloudStackProvider {
    /// Removes disks that nobody wants. Once none is left and no NodeClass wants any, nobody asks again.
    pub(crate) async fn collect_disks(
        &self,
        scopes: &[Scope],
        (claims, last_word): (&[Arc<NodeClaim>], &LastWord<'_>),
        machines: &[VirtualMachine],
        round: &mut Round,
    ) {
        let shared = &self.shared;
        let has_disks = |class: &Arc<CloudStackNodeClass>| {
            let spec = class.spec.as_ref();
            spec.is_some_and(|spec| !spec.data_disks.is_empty() || spec.disk_offering.is_some())
        };
        let ours = |class: &&Arc<CloudStackNodeClass>| class.credentials() == shared.whose.as_ref();
        let wanted =
            shared.objects.node_classes().is_none_or(|classes| classes.iter().filter(ours).any(has_disks));
        if shared.options.collect_orphans == CollectOrphans::Never
            || (!wanted && shared.no_disks.load(Relaxed))
        {
            return;
        }
        let session = shared.client.session();
        let (mut left, mut there, mut saw_all) = (false, Vec::new(), true);
        for scope in scopes {
            // What is missed goes with a later round, unless this is the last one.
            let care = if wanted { Care::Glance } else { Care::Complete };
            let disks = match self.our_disks(scope, care).await {
                Ok(disks) => disks,
                Err(error) if shared.may_leave_out(scope, &error) => continue,
                Err(error) => {
                    shared.denied.note_list(&error, scope);
                    tracing::warn!(%error, "data disks could not be looked after");
                    (left, saw_all) = (true, false);
                    continue;
                }
            };
            there.extend(disks.iter().map(|disk| disk.id.clone()));
            left |= disks.iter().any(is_to_go);
            for disk in disks.iter().filter(|disk| self.is_stray(disk, claims, machines)) {
                if round.disks.len() < MAX_PER_ROUND && !shared.denied.holds(DELETE, scope, &disk.id) {
                    self.collect_disk(disk, scope, last_word, round).await;
                }
            }
        }
        shared.seen_disks.see(there.iter().map(String::as_str), saw_all);
        shared.conclude(&shared.no_disks, !left && !wanted, &session);
    }

    /// The disks in a scope that are ours to remove and wait for it, in words. What may not be removed is not waited for, and the
    /// NodeClass is told of it.
    ///
    /// # Errors
    ///
    /// If CloudStack cannot say what there is.
    pub(crate) async fn disks_left(
        &self,
        scope: &Scope,
        class: &CloudStackNodeClass,
    ) -> Result<Vec<String>, ApiError> {
        if self.shared.no_disks.load(Relaxed) {
            return Ok(Vec::new());
        }
        let mut disks = match self.our_disks(scope, Care::Complete).await {
            // Nobody makes what may not even be listed; and nobody would ever see it go.
            Err(error) if self.shared.may_leave_out(scope, &error) || error.is_a_verdict() => Vec::new(),
            disks => disks?,
        };
        // What is attached goes with its machine, or has become somebody's.
        disks.retain(|disk| disk.virtualmachineid.is_empty() && later_disks::is_idle(disk) && is_to_go(disk));
        let mut left = Vec::new();
        for disk in disks {
            let what = format!("data disk {}", disk.name);
            match self.shared.denied.why(DELETE, scope, &disk.id) {
                Some(why) => self.tell_of_denial(class, &what, DELETE, &why),
                None => left.push(what),
            }
        }
        Ok(left)
    }

    /// The disks that carry our tags or the name of one of our machines.
    async fn our_disks(&self, scope: &Scope, care: Care) -> Result<Vec<Volume>, ApiError> {
        let shared = &self.shared;
        let cluster_tag = labels::cluster_tag(&shared.options.cluster_name);
        let by_tag = requests::list_data_disks_by_tag(&cluster_tag, "owned", scope);
        let by_name = requests::list_data_disks_by_keyword(shared.naming.prefix(), scope);
        let read = async |request: &Request| match care {
            Care::Glance => shared.client.list_once::<Volume>(request, Lane::Refresh).await,
            Care::Complete => shared.client.list::<Volume>(request, Lane::Refresh).await,
        };
        let mut disks = read(&by_tag).await?;
        disks.retain(|disk| disk.tag(labels::TAG_MANAGED_BY) == Some("karpenter"));
        for disk in read(&by_name).await? {
            let ours = disk.name.starts_with(shared.naming.prefix())
                && later_disks::machine_of(&disk.name).is_some()
                && disk.tags.is_empty();
            if ours && !disks.iter().any(|other| other.id == disk.id) {
                disks.push(disk);
            }
        }
        Ok(disks)
    }

    fn is_stray(&self, disk: &Volume, claims: &[Arc<NodeClaim>], machines: &[VirtualMachine]) -> bool {
        let shared = &self.shared;
        let seen = shared.seen_disks.least_age(&disk.id);
        let old = time(&disk.created).is_some_and(|created| shared.age(created).max(seen) >= GRACE);
        if !old || !disk.virtualmachineid.is_empty() || !later_disks::is_idle(disk) || !is_to_go(disk) {
            return false;
        }
        let has_machine = match (disk.tag(labels::TAG_NODE_CLAIM_UID), later_disks::machine_of(&disk.name)) {
            (Some(uid), _) => machines.iter().any(|m| m.tag(labels::TAG_NODE_CLAIM_UID) == Some(uid)),
            (None, Some(name)) => machines.iter().any(|machine| machine.name == name),
            (None, None) => true,
        };
        !has_machine && !claims.iter().any(|claim| self.may_want_disk(claim, disk))
    }

    /// Whether a disk may be of this claim: its tags say so, or, before it has any, its name.
    fn may_want_disk(&self, claim: &NodeClaim, disk: &Volume) -> bool {
        match (disk.tag(labels::TAG_NODE_CLAIM_UID), later_disks::machine_of(&disk.name)) {
            (Some(uid), _) => claim.uid().as_deref() == Some(uid),
            (None, Some(name)) => self.shared.naming.attempt(claim, name).is_some(),
            (None, None) => true,
        }
    }

    async fn collect_disk(&self, disk: &Volume, scope: &Scope, last_word: &LastWord<'_>, round: &mut Round) {
        let shared = &self.shared;
        let name = disk.tag(labels::TAG_NODE_CLAIM);
        let whose = MadeFor { name, uid: disk.tag(labels::TAG_NODE_CLAIM_UID) };
        let mut former = NodeClaim::default();
        former.metadata.name = whose.name.map(str::to_owned);
        former.metadata.uid = whose.uid.map(str::to_owned);
        let what = format!("data disk {} ({}) has neither machine nor NodeClaim", disk.name, disk.id);
        if shared.options.collect_orphans == CollectOrphans::Tell {
            tracing::warn!("{what}; it would be destroyed (CLOUDSTACK_COLLECT_ORPHANS)");
            shared.voice.warn(&former, "OrphanFound", what);
            return;
        }
        if !last_word.nobody_wants(whose, |claim| self.may_want_disk(claim, disk)).await {
            return;
        }
        match shared.client.call(&requests::destroy_volume(&disk.id)).await {
            Ok(_) => {
                shared.voice.inform(&former, "OrphanDeleted", format!("{what}; destroyed"));
                round.disks.push(disk.id.clone());
            }
            Err(error) => {
                shared.denied.note(&error, scope, &disk.id);
                tracing::warn!(disk = disk.id, %error, "a data disk will be destroyed later");
            }
        }
    }
}
