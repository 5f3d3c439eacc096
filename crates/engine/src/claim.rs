//! A NodeClaim in the making.

use smallvec::SmallVec;

use crate::algebra::SetId;
use crate::bits::Bits;
use crate::columns::{Cell, Row};
use crate::pod::HostPort;
use crate::templates::Template;
use crate::types::{ReservationId, TypeTable};
use crate::vocabulary::ValueId;
use crate::volumes::Volumes;

/// Reservations a claim holds.
pub(crate) type Held = SmallVec<[ReservationId; 2]>;

/// A claim and the pods it is for so far.
pub(crate) struct Claim {
    pub(crate) template: usize,
    /// Placeholder for the hostname it will get.
    pub(crate) host: ValueId,
    pub(crate) set: SetId,
    /// Instance types it can still become; they only ever get fewer.
    pub(crate) types: Bits,
    /// What its pods ask for, daemons not included.
    pub(crate) requests: Row,
    /// The most that could still be added of each column, on whichever instance type has most of it.
    pub(crate) room: Row,
    /// Batch indices of its pods, with the class each was placed as.
    pub(crate) pods: Vec<(u32, u32)>,
    /// Host ports of its pods.
    pub(crate) ports: Vec<HostPort>,
    pub(crate) volumes: Volumes,
    pub(crate) held: Held,
}

impl Claim {
    /// Works out `room` again after types or requests have changed.
    pub(crate) fn update_room(&mut self, template: &Template, tables: &[TypeTable]) {
        let mut room = std::mem::take(&mut self.room);
        room.clear();
        room.extend(
            self.requests
                .iter()
                .enumerate()
                .map(|(column, requested)| self.most(template, tables, column).saturating_sub(*requested)),
        );
        self.room = room;
    }

    /// The most of a column that is left beside daemons, on whichever instance type has most of it.
    pub(crate) fn most(&self, template: &Template, tables: &[TypeTable], column: usize) -> Cell {
        let table = &tables[template.table];
        let beside_daemons = template.daemons.iter().filter_map(|group| {
            let taken = group.row.get(column).copied().unwrap_or(0);
            table.most(&self.types, &group.types, column).map(|most| most.saturating_sub(taken))
        });
        beside_daemons.max().unwrap_or(0)
    }
}

/// What a claim becomes when a pod joins it.
pub(crate) struct Joined {
    pub(crate) set: SetId,
    pub(crate) types: Bits,
    pub(crate) held: Held,
}
