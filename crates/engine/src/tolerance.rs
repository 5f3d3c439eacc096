//! Which tolerations answer which taints, each distinct list numbered and each question asked once.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::hashing::FixedState;
use crate::taints::{Taint, Toleration, first_untolerated};

/// A distinct list of taints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TaintsId(u32);

/// A distinct list of tolerations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TolerationsId(u32);

impl TaintsId {
    /// No taints.
    pub(crate) const NONE: TaintsId = TaintsId(0);
}

#[derive(Default)]
pub(crate) struct Tolerance {
    taints: Vec<Arc<[Taint]>>,
    taint_ids: HashMap<Arc<[Taint]>, TaintsId, FixedState>,
    tolerations: Vec<Arc<[Toleration]>>,
    toleration_ids: HashMap<Arc<[Toleration]>, TolerationsId, FixedState>,
    known: HashMap<(TaintsId, TolerationsId), bool, FixedState>,
}

impl Tolerance {
    pub(crate) fn new() -> Self {
        let mut tolerance = Tolerance::default();
        tolerance.taints(&[]);
        tolerance
    }

    pub(crate) fn taints(&mut self, list: &[Taint]) -> TaintsId {
        if let Some(id) = self.taint_ids.get(list) {
            return *id;
        }
        let (id, list): (_, Arc<[Taint]>) = (TaintsId(self.taints.len() as u32), list.into());
        self.taints.push(list.clone());
        self.taint_ids.insert(list, id);
        id
    }

    pub(crate) fn list(&self, taints: TaintsId) -> &[Taint] {
        &self.taints[taints.0 as usize]
    }

    pub(crate) fn tolerations(&mut self, list: &[Toleration]) -> TolerationsId {
        if let Some(id) = self.toleration_ids.get(list) {
            return *id;
        }
        let (id, list): (_, Arc<[Toleration]>) = (TolerationsId(self.tolerations.len() as u32), list.into());
        self.tolerations.push(list.clone());
        self.toleration_ids.insert(list, id);
        id
    }

    pub(crate) fn tolerates(&mut self, taints: TaintsId, tolerations: TolerationsId) -> bool {
        if taints == TaintsId::NONE {
            return true;
        }
        let (all_taints, all_tolerations) = (&self.taints, &self.tolerations);
        *self.known.entry((taints, tolerations)).or_insert_with(|| {
            first_untolerated(&all_taints[taints.0 as usize], &all_tolerations[tolerations.0 as usize])
                .is_none()
        })
    }

    /// The taints without an answer.
    pub(crate) fn untolerated(&self, taints: TaintsId, tolerations: TolerationsId) -> Vec<Taint> {
        let tolerations = &self.tolerations[tolerations.0 as usize];
        self.taints[taints.0 as usize]
            .iter()
            .filter(|taint| !tolerations.iter().any(|t| t.tolerates(taint)))
            .cloned()
            .collect()
    }
}
