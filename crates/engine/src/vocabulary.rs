//! Label keys and values as small numbers.
//!
//! Numbers are given in order of first mention and mean nothing beyond one solve. Names are looked at again only to break
//! ties (smallest name first) and to render the result.

use hashbrown::HashMap;

use crate::hashing::FixedState;
use crate::labels::{self, HOSTNAME, Text};
use crate::requirement::parse_integer;

/// A label key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct KeyId(pub(crate) u32);

/// A value of one particular label key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ValueId(pub(crate) u32);

impl ValueId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// `kubernetes.io/hostname` is always the first key: every machine has its own value of it, so it is kept out of the shared
/// requirement sets and handled by itself.
pub(crate) const HOST: KeyId = KeyId(0);

struct Key {
    name: Text,
    well_known: bool,
    by_name: HashMap<Text, ValueId, FixedState>,
    values: Vec<Value>,
}

struct Value {
    name: Text,
    integer: Option<i64>,
}

/// All keys and values of a solve.
pub(crate) struct Vocabulary {
    keys: Vec<Key>,
    by_name: HashMap<Text, KeyId, FixedState>,
    placeholders: Vec<ValueId>,
}

impl Vocabulary {
    pub(crate) fn new<'a>(provider_labels: impl IntoIterator<Item = &'a Text>) -> Self {
        let mut vocabulary =
            Vocabulary { keys: Vec::new(), by_name: HashMap::default(), placeholders: Vec::new() };
        vocabulary.key(&HOSTNAME.into());
        for name in labels::WELL_KNOWN {
            vocabulary.mark_well_known(&name.into());
        }
        for name in provider_labels {
            vocabulary.mark_well_known(name);
        }
        vocabulary
    }

    fn mark_well_known(&mut self, name: &Text) {
        let key = self.key(name);
        self.keys[key.0 as usize].well_known = true;
    }

    /// The number of a key, as written: aliases are not resolved here.
    pub(crate) fn key(&mut self, name: &Text) -> KeyId {
        if let Some(key) = self.by_name.get(name) {
            return *key;
        }
        let key = KeyId(self.keys.len() as u32);
        self.keys.push(Key {
            name: name.clone(),
            well_known: false,
            by_name: HashMap::default(),
            values: Vec::new(),
        });
        self.by_name.insert(name.clone(), key);
        key
    }

    pub(crate) fn value(&mut self, key: KeyId, name: &Text) -> ValueId {
        let key = &mut self.keys[key.0 as usize];
        if let Some(value) = key.by_name.get(name) {
            return *value;
        }
        let value = ValueId(key.values.len() as u32);
        key.values.push(Value { name: name.clone(), integer: parse_integer(name) });
        key.by_name.insert(name.clone(), value);
        value
    }

    /// The hostname of the claim with this number (from 1), which nobody else has or can ask for. Asked again, it is the same.
    pub(crate) fn placeholder_host(&mut self, number: usize) -> ValueId {
        if let Some(known) = self.placeholders.get(number - 1) {
            return *known;
        }
        let hosts = &mut self.keys[HOST.0 as usize].values;
        let value = ValueId(hosts.len() as u32);
        hosts.push(Value { name: format!("hostname-placeholder-{number:04}").into(), integer: None });
        self.placeholders.push(value);
        value
    }

    pub(crate) fn key_name(&self, key: KeyId) -> &Text {
        &self.keys[key.0 as usize].name
    }

    pub(crate) fn value_name(&self, key: KeyId, value: ValueId) -> &Text {
        &self.keys[key.0 as usize].values[value.index()].name
    }

    pub(crate) fn integer(&self, key: KeyId, value: ValueId) -> Option<i64> {
        self.keys[key.0 as usize].values[value.index()].integer
    }

    pub(crate) fn is_well_known(&self, key: KeyId) -> bool {
        self.keys[key.0 as usize].well_known
    }
}
