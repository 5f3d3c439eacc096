//! The hash of a Go struct as mitchellh/hashstructure v2 computes it (format 2, slices as sets, zero values left out).
//!
//! Hashes of templates sit in annotations of objects that exist, and a difference means drift: every node would be replaced.
//! So the arithmetic is Go's to the bit, oddities included: the hash is FNV-1 (not 1a), the running hash of
//! a struct is hashed again after each field that counts, and equal elements of a list cancel out.

/// FNV-1, 64 bits, of the pieces in a row.
fn fnv1(pieces: &[&[u8]]) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in pieces.iter().copied().flatten() {
        hash = hash.wrapping_mul(0x0000_0100_0000_01b3) ^ u64::from(*byte);
    }
    hash
}

/// The hash of raw bytes.
pub fn bytes(value: &[u8]) -> u64 {
    fnv1(&[value])
}

/// The hash of a text.
pub fn text(value: &str) -> u64 {
    bytes(value.as_bytes())
}

/// The hash of a 64-bit integer.
pub fn int(value: i64) -> u64 {
    bytes(&value.to_le_bytes())
}

fn pair(a: u64, b: u64) -> u64 {
    fnv1(&[&a.to_le_bytes(), &b.to_le_bytes()])
}

fn harden(hash: u64) -> u64 {
    bytes(&hash.to_le_bytes())
}

/// The hash of a map of texts.
pub fn map<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> u64 {
    harden(entries.into_iter().fold(0, |hash, (key, value)| hash ^ pair(text(key), text(value))))
}

/// The hash of a list whose order does not matter.
pub fn set(elements: impl IntoIterator<Item = u64>) -> u64 {
    elements.into_iter().fold(0, |hash, element| hash ^ element)
}

/// The hash of a struct, field by field in the order Go declares them.
#[derive(Clone, Copy, Debug)]
pub struct Struct(u64);

impl Struct {
    /// A struct of this type without fields that count.
    pub fn named(type_name: &str) -> Self {
        Self(text(type_name))
    }

    /// A field; `None` is a zero value, which does not count.
    #[must_use]
    pub fn field(self, name: &str, value: impl Into<Option<u64>>) -> Self {
        match value.into() {
            Some(value) => Self(harden(self.0 ^ pair(text(name), value))),
            None => self,
        }
    }

    /// The hash.
    pub fn finish(self) -> u64 {
        self.0
    }
}
