//! Resources as numbered columns, so that amounts are vectors.

use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::hashing::FixedState;
use crate::labels::Text;
use crate::resources::{Amount, Resources};

/// An amount of one resource, in billionths.
pub(crate) type Cell = i128;

/// Amounts of every column, absent ones zero.
pub(crate) type Row = Vec<Cell>;

/// What something asks for: only the columns it names.
pub(crate) type Need = SmallVec<[(u32, Cell); 4]>;

/// The columns of a solve.
#[derive(Default)]
pub(crate) struct Columns {
    names: Vec<Text>,
    by_name: HashMap<Text, u32, FixedState>,
}

impl Columns {
    pub(crate) fn column(&mut self, name: &Text) -> u32 {
        // There are few columns and names are mostly shared, so the address tells before the text does.
        if let Some(column) = self.names.iter().position(|known| Arc::ptr_eq(known, name)) {
            return column as u32;
        }
        if let Some(column) = self.by_name.get(name) {
            return *column;
        }
        let column = self.names.len() as u32;
        self.names.push(name.clone());
        self.by_name.insert(name.clone(), column);
        column
    }

    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn name(&self, column: u32) -> &Text {
        &self.names[column as usize]
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn need(&mut self, resources: &Resources) -> Need {
        resources.iter().map(|(name, amount)| (self.column(name), amount.as_nanos())).collect()
    }

    /// The need in words.
    pub(crate) fn resources(&self, need: &[(u32, Cell)]) -> Resources {
        need.iter().map(|(c, cell)| (self.name(*c).clone(), Amount::nanos(*cell))).collect()
    }
}

/// A row with the amounts of `need`, at least `width` wide.
pub(crate) fn row(need: &[(u32, Cell)], width: usize) -> Row {
    let mut row = vec![0; width];
    for (column, cell) in need {
        row[*column as usize] = *cell;
    }
    row
}

/// Adds `need` to `row`.
pub(crate) fn add(row: &mut Row, need: &[(u32, Cell)]) {
    for (column, cell) in need {
        let at = *column as usize;
        if at >= row.len() {
            row.resize(at + 1, 0);
        }
        row[at] = row[at].saturating_add(*cell);
    }
}

/// Takes `need` from `row` again.
pub(crate) fn subtract(row: &mut Row, need: &[(u32, Cell)]) {
    for (column, cell) in need {
        row[*column as usize] = row[*column as usize].saturating_sub(*cell);
    }
}
