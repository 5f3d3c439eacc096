//! Where in an object (or in a CRD's schema) something is, built on the stack while descending.
//!
//! A path costs nothing until it is shown: most validations never show one.

use std::fmt;

/// A place below [`Path::Root`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Path<'a> {
    Root,
    /// `.name`; without the dot directly below the root. A name may itself hold dots (a prefix given from outside).
    Field(&'a Path<'a>, &'a str),
    /// `[key]`, an entry of a map as field errors write it.
    Key(&'a Path<'a>, &'a str),
    /// `.key`, an entry of a map as OpenAPI validation writes it: with the dot even below the root.
    Entry(&'a Path<'a>, &'a str),
    /// `[index]`
    Index(&'a Path<'a>, usize),
}

impl<'a> Path<'a> {
    pub(crate) fn field(&'a self, name: &'a str) -> Path<'a> {
        Path::Field(self, name)
    }

    pub(crate) fn key(&'a self, key: &'a str) -> Path<'a> {
        Path::Key(self, key)
    }

    pub(crate) fn entry(&'a self, key: &'a str) -> Path<'a> {
        Path::Entry(self, key)
    }

    pub(crate) fn index(&'a self, index: usize) -> Path<'a> {
        Path::Index(self, index)
    }

    pub(crate) fn is_root(&self) -> bool {
        matches!(self, Path::Root)
    }

    /// The path as text, empty for the root.
    pub(crate) fn dotted(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) {
        match self {
            Path::Root => {}
            Path::Field(parent, name) => {
                parent.write(out);
                if !parent.is_root() {
                    out.push('.');
                }
                out.push_str(name);
            }
            Path::Key(parent, key) => {
                parent.write(out);
                out.push('[');
                out.push_str(key);
                out.push(']');
            }
            Path::Entry(parent, key) => {
                parent.write(out);
                out.push('.');
                out.push_str(key);
            }
            Path::Index(parent, index) => {
                parent.write(out);
                out.push('[');
                out.push_str(&index.to_string());
                out.push(']');
            }
        }
    }
}

/// As in a field error, where the object itself is written `<nil>`.
impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_root() { "<nil>" } else { "" })?;
        f.write_str(&self.dotted())
    }
}
