//! Nodes that exist, or are on their way: what they still have room for.

use std::collections::BTreeMap;

use crate::algebra::SetId;
use crate::columns::{Cell, Row};
use crate::labels::Text;
use crate::pod::HostPort;
use crate::reasons::VolumeLimit;
use crate::tolerance::TaintsId;
use crate::vocabulary::ValueId;
use crate::volumes::{self, Volumes};

/// A node that can receive pods.
#[derive(Clone)]
pub(crate) struct ExistingNode {
    pub(crate) name: Text,
    pub(crate) initialized: bool,
    pub(crate) rebooting: bool,
    pub(crate) host: ValueId,
    /// Its labels, and whatever pods placed on it brought along.
    pub(crate) set: SetId,
    pub(crate) taints: TaintsId,
    /// What is left for pods.
    pub(crate) remaining: Row,
    /// Some amount is negative: nothing fits any more.
    pub(crate) overcommitted: bool,
    pub(crate) ports: Vec<HostPort>,
    pub(crate) volumes: Volumes,
    pub(crate) volume_limits: BTreeMap<Text, i64>,
    /// Some driver is over its limit already: nothing is added any more.
    pub(crate) volumes_exceeded: bool,
    /// Pods have come or gone lately, so a simulation that spares such nodes moves no settled pod there.
    pub(crate) restless: bool,
    /// Batch indices of pods placed on it, with the class each was placed as.
    pub(crate) pods: Vec<(u32, u32)>,
}

impl ExistingNode {
    /// Notes whether the volumes attached are too many as it is.
    pub(crate) fn check_volumes(&mut self) {
        self.volumes_exceeded = self.exceeded_volume_limit(&Volumes::new()).is_some();
    }

    pub(crate) fn fits(&self, need: &[(u32, Cell)]) -> bool {
        !self.overcommitted
            && need
                .iter()
                .all(|(column, cell)| *cell <= self.remaining.get(*column as usize).copied().unwrap_or(0))
    }

    /// The driver whose limit would be exceeded. A driver over its limit already blocks every pod.
    pub(crate) fn exceeded_volume_limit(&self, added: &Volumes) -> Option<VolumeLimit> {
        if self.volume_limits.is_empty() {
            return None;
        }
        let mut all = self.volumes.clone();
        volumes::union_into(&mut all, added);
        all.iter().find_map(|(driver, claims)| {
            let limit = *self.volume_limits.get(driver)?;
            (claims.len() as i64 > limit).then(|| VolumeLimit {
                driver: driver.clone(),
                count: claims.len(),
                limit,
            })
        })
    }
}
