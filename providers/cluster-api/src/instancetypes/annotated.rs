//! What the owner of a scalable resource says of its nodes by annotations: its own, and where it says nothing those of its newest
//! MachineSet, which Cluster API copied there or somebody wrote.

use std::collections::BTreeMap;

use crate::client::fields::Malformed;
use crate::client::scalable::Scalable;

/// The annotations that tell what nodes of a resource have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Annotated<'a> {
    pub(crate) scalable: &'a Scalable,
    /// Its newest MachineSet, if it has any.
    pub(crate) set: Option<&'a Scalable>,
}

impl<'a> Annotated<'a> {
    /// What an annotation says.
    pub(crate) fn get(self, key: &str) -> Option<&'a str> {
        let of = |resource: &'a Scalable| resource.annotations.get(key).map(String::as_str);
        of(self.scalable).or_else(|| self.set.and_then(of))
    }

    /// All annotations whose keys begin so, by what follows in the key.
    pub(crate) fn with_prefix(self, prefix: &str) -> BTreeMap<&'a str, &'a str> {
        let of = |resource: &'a Scalable| {
            let all = resource.annotations.iter();
            all.filter_map(move |(key, text)| Some((key.strip_prefix(prefix)?, text.as_str())))
        };
        let mut found: BTreeMap<&str, &str> = self.set.into_iter().flat_map(of).collect();
        found.extend(of(self.scalable));
        found
    }

    /// An error about one of the keys, which says where it stands.
    pub(crate) fn malformed(self, key: &str, problem: impl std::fmt::Display) -> Malformed {
        match self.set.filter(|_| !self.scalable.annotations.contains_key(key)) {
            Some(set) if set.annotations.contains_key(key) => {
                self.scalable.malformed(format!("{}: {key}", set.id), problem)
            }
            _ => self.scalable.malformed(key, problem),
        }
    }
}
