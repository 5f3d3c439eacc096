//! A NodeClaim in the making.

use smallvec::SmallVec;

use crate::algebra::SetId;
use crate::bits::Bits;
use crate::columns::Row;
use crate::pod::HostPort;
use crate::types::ReservationId;
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
    /// Batch indices of its pods, with the class each was placed as.
    pub(crate) pods: Vec<(u32, u32)>,
    /// Host ports of its pods.
    pub(crate) ports: Vec<HostPort>,
    pub(crate) volumes: Volumes,
    pub(crate) held: Held,
}

/// What a claim becomes when a pod joins it.
pub(crate) struct Joined {
    pub(crate) set: SetId,
    pub(crate) types: Bits,
    pub(crate) held: Held,
}
