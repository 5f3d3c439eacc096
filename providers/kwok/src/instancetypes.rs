//! What could be bought: the catalogue of instance types, from a file in the format of Go's kwok provider or built in.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use karpenter_engine::ingest::Ingest;
use karpenter_engine::instance_type::InstanceType;
use karpenter_engine::labels::Text;
use serde_json::value::RawValue;

mod builtin;
mod entry;

use entry::Entry;
pub use entry::EntryError;

/// How many faulty entries an error tells of; a file that is wrong throughout is wrong in the same way throughout.
const MOST_TOLD: usize = 5;

/// Instance types and the labels they speak of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalogue {
    /// The types, in the order of the file.
    pub types: Vec<InstanceType>,
    /// Label keys the types and offerings speak of, which a claim need not define to be compatible.
    pub labels: BTreeSet<Text>,
}

/// Why an instance type file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// It cannot be read.
    #[error(
        "instance type file {path:?} (--instance-types-file-path, INSTANCE_TYPES_FILE_PATH): {source}; name a readable file, or leave the setting out for the built-in catalogue", path = .path.display()
    )]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// It is no list.
    #[error("instance type file {path:?}: {source}; the file must be a JSON list of instance types", path = .path.display())]
    NoList {
        /// Which.
        path: PathBuf,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// The list is empty.
    #[error("instance type file {path:?} lists no instance type, so no node could ever be launched; list at least one", path = .path.display())]
    Empty {
        /// Which.
        path: PathBuf,
    },
    /// Entries make no sense.
    #[error("instance type file {path:?}: {}; correct {}", told(.entries), if .entries.len() == 1 { "it, or leave the entry out" } else { "them, or leave the entries out" }, path = .path.display())]
    Entries {
        /// Which.
        path: PathBuf,
        /// What is wrong with them.
        entries: Vec<EntryError>,
    },
}

fn told(entries: &[EntryError]) -> String {
    let mut text = entries.iter().take(MOST_TOLD).map(ToString::to_string).collect::<Vec<_>>().join("; ");
    if entries.len() > MOST_TOLD {
        text.push_str(&format!("; and {} more", entries.len() - MOST_TOLD));
    }
    text
}

impl Catalogue {
    /// The catalogue of the file or, if none is named, the built-in one.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or anything in it makes no sense: a program that starts with half a catalogue would buy the
    /// wrong machines.
    pub fn load(path: Option<&Path>) -> Result<Self, CatalogueError> {
        let Some(path) = path else { return Ok(Self::built_in()) };
        let text = std::fs::read(path)
            .map_err(|source| CatalogueError::Unreadable { path: path.to_owned(), source })?;
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &[u8]) -> Result<Self, CatalogueError> {
        let entries: Vec<&RawValue> = serde_json::from_slice(text)
            .map_err(|source| CatalogueError::NoList { path: path.to_owned(), source })?;
        if entries.is_empty() {
            return Err(CatalogueError::Empty { path: path.to_owned() });
        }
        let (mut catalogue, faulty) = Self::read_checked(&entries, &mut Ingest::new(), entry::check_complete);
        if !faulty.is_empty() {
            return Err(CatalogueError::Entries { path: path.to_owned(), entries: faulty });
        }
        // Go's provider has no way to run out of anything, whatever the file says.
        for offering in catalogue.types.iter_mut().flat_map(|kind| &mut kind.offerings) {
            offering.available = true;
        }
        Ok(catalogue)
    }

    /// Understands each entry on its own: what makes no sense is left out and comes back beside.
    pub fn read(entries: &[&RawValue], ingest: &mut Ingest) -> (Self, Vec<EntryError>) {
        Self::read_checked(entries, ingest, |_| Ok(()))
    }

    fn read_checked(
        entries: &[&RawValue],
        ingest: &mut Ingest,
        check: impl Fn(&Entry) -> Result<(), EntryError>,
    ) -> (Self, Vec<EntryError>) {
        let mut catalogue = Self::default();
        let mut faulty = Vec::new();
        let mut names = BTreeSet::new();
        for (index, text) in entries.iter().enumerate() {
            let resolved = entry::read(text, index).and_then(|entry| {
                let resolved = entry::resolve(&entry, ingest)?;
                check(&entry).map(|()| resolved)
            });
            match resolved {
                Ok((kind, labels)) if names.insert(kind.name.clone()) => {
                    catalogue.types.push(kind);
                    catalogue.labels.extend(labels);
                }
                Ok((kind, _)) => faulty.push(EntryError {
                    entry: kind.name.to_string(),
                    field: "name".to_owned(),
                    problem: "another instance type has the same name; the first one counts".to_owned(),
                }),
                Err(error) => faulty.push(error),
            }
        }
        (catalogue, faulty)
    }

    /// The catalogue of Go's kwok provider, which follows a formula: 144 types in four zones.
    pub fn built_in() -> Self {
        let mut catalogue = Self::default();
        let mut ingest = Ingest::new();
        for entry in builtin::entries() {
            // A test reads every one of them.
            if let Ok((kind, labels)) = entry::resolve(&entry, &mut ingest) {
                catalogue.types.push(kind);
                catalogue.labels.extend(labels);
            }
        }
        catalogue
    }

    /// The type of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&InstanceType> {
        self.types.iter().find(|kind| &*kind.name == name)
    }
}

#[cfg(test)]
#[path = "instancetypes_tests.rs"]
mod tests;
