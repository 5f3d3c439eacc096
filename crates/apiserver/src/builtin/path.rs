//! Where a validation is, as a chain of borrowed steps: rendered only when there is something to say.

/// A field's address within the object.
#[derive(Clone, Copy)]
pub(super) enum At<'a> {
    Top(&'a str),
    Field(&'a At<'a>, &'a str),
    Index(&'a At<'a>, usize),
    Key(&'a At<'a>, &'a str),
}

impl<'a> At<'a> {
    /// `this.name`
    pub(super) fn field(&'a self, name: &'a str) -> At<'a> {
        At::Field(self, name)
    }

    /// `this[index]`
    pub(super) fn index(&'a self, index: usize) -> At<'a> {
        At::Index(self, index)
    }

    /// `this[key]`
    pub(super) fn key(&'a self, key: &'a str) -> At<'a> {
        At::Key(self, key)
    }
}

impl std::fmt::Display for At<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            At::Top(name) => f.write_str(name),
            At::Field(parent, name) => write!(f, "{parent}.{name}"),
            At::Index(parent, index) => write!(f, "{parent}[{index}]"),
            At::Key(parent, key) => write!(f, "{parent}[{key}]"),
        }
    }
}

impl From<At<'_>> for String {
    fn from(at: At<'_>) -> String {
        at.to_string()
    }
}

impl From<&At<'_>> for String {
    fn from(at: &At<'_>) -> String {
        at.to_string()
    }
}
