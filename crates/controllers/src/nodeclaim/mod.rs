//! Controllers of NodeClaims: from a claim to a node, and what may be done with it meanwhile.

pub(crate) mod disruption;
