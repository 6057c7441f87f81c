//! The 36 components of transformed tiles, each a matrix of its own.

use std::ops::Range;

use rayon::prelude::*;

use super::tiles::Needed;
use crate::ops::kernel::{Format, Panels, Source};
use crate::ops::scratch::Scratch;

/// Components of a transformed tile.
pub(super) const COMPONENTS: usize = 36;
/// Columns are padded to a multiple of this: the widest vector, and a line of the cache.
const LINE: usize = 16;

/// A row range of each component.
pub(super) type Pieces<'a> = [&'a mut [f32]; COMPONENTS];

/// Columns of a matrix that holds so many channels.
pub(super) fn padded(channels: usize) -> usize {
    channels.next_multiple_of(LINE)
}

/// One row-major matrix per component, all of one shape.
pub(super) struct Components {
    values: Scratch,
    rows: usize,
    columns: usize,
}

impl Components {
    /// Matrices with whatever values.
    pub(super) fn new(rows: usize, columns: usize) -> Self {
        let columns = padded(columns);
        Self { values: Scratch::new(COMPONENTS * stride(rows, columns)), rows, columns }
    }

    /// The matrix of a component.
    #[inline(always)]
    pub(super) fn get(&self, component: usize) -> &[f32] {
        &self.values[component * stride(self.rows, self.columns)..][..self.rows * self.columns]
    }

    /// The rows of a matrix of the tiles that need it.
    pub(super) fn needed(&self, component: usize, needed: &Needed) -> Vec<&[f32]> {
        let matrix = self.get(component);
        let columns = self.columns;
        let row = |tile: &usize| &matrix[tile * columns..][..columns];
        match needed.of(component) {
            Some(tiles) => tiles.iter().map(row).collect(),
            None => matrix.chunks_exact(columns).collect(),
        }
    }

    /// The rows of a matrix of the tiles that need it, as a right operand.
    pub(super) fn panels(&self, component: usize, needed: &Needed) -> Panels {
        let values = self.get(component);
        let columns = self.columns;
        if needed.of(component).is_some() {
            return Panels::of_slices(&self.needed(component, needed), columns);
        }
        let source = Source { values, tap: 0, row: columns, column: 1 };
        Panels::pack(Format::F32, source, &[0], self.rows, columns)
    }

    /// These rows of all matrices.
    pub(super) fn rows(&self, rows: Range<usize>) -> [&[f32]; COMPONENTS] {
        std::array::from_fn(|component| {
            &self.get(component)[rows.start * self.columns..rows.end * self.columns]
        })
    }

    /// All matrices, to be written.
    pub(super) fn split(&mut self) -> Pieces<'_> {
        let stride = stride(self.rows, self.columns);
        let len = self.rows * self.columns;
        let mut rest = &mut self.values[..];
        std::array::from_fn(|_| {
            let (matrix, after) = std::mem::take(&mut rest).split_at_mut(stride);
            rest = after;
            &mut matrix[..len]
        })
    }

    /// All matrices, to be written by several threads, each cut at these adjoining row ranges.
    pub(super) fn split_at(&mut self, ranges: &[Range<usize>]) -> Vec<Pieces<'_>> {
        let columns = self.columns;
        let mut matrices = self.split();
        let cut = |range: &Range<usize>| {
            std::array::from_fn(|component| {
                let rest = std::mem::take(&mut matrices[component]);
                let (piece, after) = rest.split_at_mut(range.len() * columns);
                matrices[component] = after;
                piece
            })
        };
        ranges.iter().map(cut).collect()
    }

    /// All matrices, each to be written by a thread.
    pub(super) fn par_split(&mut self) -> impl IndexedParallelIterator<Item = &mut [f32]> {
        let stride = stride(self.rows, self.columns);
        let len = self.rows * self.columns;
        self.values.par_chunks_exact_mut(stride.max(1)).map(move |matrix| &mut matrix[..len])
    }
}

/// From one component to the next: an odd number of cache lines, so that the same place of all
/// components falls into different sets of a cache.
fn stride(rows: usize, columns: usize) -> usize {
    ((rows * columns / LINE) | 1) * LINE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_all_components_are_disjoint_and_read_back() {
        let mut components = Components::new(6, 17);
        assert_eq!(components.columns, 32);
        for (piece, values) in components.split_at(&[0..1, 1..4, 4..6]).into_iter().enumerate() {
            for (component, values) in values.into_iter().enumerate() {
                values.fill((piece * COMPONENTS + component) as f32);
            }
        }
        for component in 0..COMPONENTS {
            let first = component as f32;
            assert_eq!(components.get(component)[31..33], [first, first + 36.0]);
            assert_eq!(components.rows(4..5)[component], [first + 72.0; 32]);
        }
        assert_eq!(components.par_split().len(), COMPONENTS);
    }
}
