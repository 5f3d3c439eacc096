//! What becomes of machines while things may go wrong: a seed draws which fates there are and how likely, and each machine meets
//! at most one of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use karpenter_runtime::entropy::Entropy;
use serde_json::{Value, json};

use crate::chance::Chance;

/// What can become of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fate {
    /// It is never provisioned.
    Never,
    /// It fails for good, and says so.
    Fails,
    /// It has an id, and no Node ever joins.
    NeverJoins,
    /// It dies after its Node has joined.
    Dies,
    /// Its Node joins without the taint that Karpenter waits for.
    Untainted,
    /// Its Node says that it is in another zone.
    Elsewhere,
    /// It takes long to be deleted.
    Lingers,
    /// It takes long to be provisioned.
    Slow,
}

impl Fate {
    const ALL: [Self; 8] = [
        Self::Never,
        Self::Fails,
        Self::NeverJoins,
        Self::Dies,
        Self::Untainted,
        Self::Elsewhere,
        Self::Lingers,
        Self::Slow,
    ];

    /// What a machine of this fate is like.
    fn behaviour(self, chance: &mut Chance) -> Value {
        match self {
            Self::Never => json!({"never": true}),
            Self::Fails => json!({"fails": {
                "seconds": chance.between(1, 60), "reason": "InsufficientResources", "message": "no host has room",
            }}),
            Self::NeverJoins => json!({"neverJoins": true}),
            Self::Dies => json!({"diesSeconds": chance.between(5, 300)}),
            Self::Untainted => json!({"untainted": true}),
            Self::Elsewhere => json!({"nodeLabels": {"topology.kubernetes.io/zone": "elsewhere"}}),
            Self::Lingers => json!({"deleteSeconds": chance.between(60, 600)}),
            Self::Slow => json!({"provisionSeconds": chance.between(60, 400)}),
        }
    }
}

/// How likely a fate is, where it exists.
const RATES: [f64; 3] = [0.02, 0.1, 0.3];

/// See the module. Clones are the same.
#[derive(Clone)]
pub struct Misfortune(Arc<Mutex<State>>);

struct State {
    rates: BTreeMap<Fate, f64>,
    chance: Chance,
}

impl Misfortune {
    /// None.
    pub(super) fn none(entropy: &Entropy) -> Self {
        let chance = Chance::new(entropy, "misfortune");
        Self(Arc::new(Mutex::new(State { rates: BTreeMap::new(), chance })))
    }

    /// From now on about half of the fates exist, each at one of its rates.
    pub fn swarm(&self, entropy: &Entropy) {
        let mut chance = Chance::new(entropy, "fates");
        let mut state = self.lock();
        for fate in Fate::ALL {
            let (exists, rate) = (chance.happens(0.5), chance.pick(&RATES).copied());
            if let Some(rate) = rate.filter(|_| exists) {
                state.rates.insert(fate, rate);
            }
        }
    }

    /// From now on machines are as their template says. What has befallen one stays.
    pub fn heal(&self) {
        self.lock().rates.clear();
    }

    /// What a new machine is like, beyond its template.
    pub(super) fn draw(&self) -> Value {
        let mut state = self.lock();
        let State { rates, chance } = &mut *state;
        let mut fates = rates.iter();
        let fate = fates.find(|(_, rate)| chance.happens(**rate)).map(|(fate, _)| *fate);
        fate.map_or_else(|| json!({}), |fate| fate.behaviour(chance))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
