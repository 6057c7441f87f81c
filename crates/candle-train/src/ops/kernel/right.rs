//! The right operand of a product, packed for the numbers that it multiplies.

use super::bf16::{Bf16Panels, DEPTH, Instructions};
use super::panels::{Block, F32Panels, Source};
use crate::Precision;
use crate::ops::element::Element;
use crate::ops::scratch::Scratch;

/// Type of the numbers that a product multiplies; sums are f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) enum Format {
    /// The operands as they are.
    F32,
    /// The operands rounded to bf16, by instructions of this processor.
    Bf16(Instructions),
}

impl Format {
    /// bf16 where the precision asks for it and the processor multiplies it, else f32.
    pub(in crate::ops) fn of(precision: Precision) -> Self {
        match (precision, Instructions::best()) {
            (Precision::Bf16, Some(instructions)) => Self::Bf16(instructions),
            _ => Self::F32,
        }
    }

    /// [`Format::of`] where sums have so few products: f32 where bf16 would mostly multiply zeros.
    pub(in crate::ops) fn of_depth(precision: Precision, depth: usize) -> Self {
        match Self::of(precision) {
            Self::Bf16(instructions) if depth < DEPTH && !instructions.multiply_tiles() => {
                Self::F32
            }
            format => format,
        }
    }

    /// True if plain products are faster than fewer products of transformed f32 numbers.
    pub(in crate::ops) fn outruns_transforms(self) -> bool {
        matches!(self, Self::Bf16(instructions) if instructions.multiply_tiles())
    }
}

/// Numbers that can be packed as the right operand.
pub(in crate::ops) trait Packable: Element {
    /// Packed for products of f32 numbers, which bf16 numbers never are.
    fn f32_panels(
        source: Source<'_, Self>,
        taps: &[usize],
        depth: usize,
        columns: usize,
    ) -> F32Panels;
}

impl Packable for f32 {
    fn f32_panels(source: Source<'_>, taps: &[usize], depth: usize, columns: usize) -> F32Panels {
        F32Panels::pack(source, taps, depth, columns)
    }
}

impl Packable for half::bf16 {
    fn f32_panels(_: Source<'_, Self>, _: &[usize], _: usize, _: usize) -> F32Panels {
        unreachable!("{ONLY_BF16}")
    }
}

/// The invariant of operands that are bf16 already.
pub(super) const ONLY_BF16: &str = "bf16 numbers are factors of products of bf16 numbers only";

/// B, (taps, depth, columns), in panels of a few columns.
pub(in crate::ops) enum Panels {
    /// See [`Format::F32`].
    F32(F32Panels),
    /// See [`Format::Bf16`].
    Bf16(Bf16Panels),
}

impl Panels {
    /// Packs B, (taps, depth, columns). `taps` gives the tap of the source for each tap of B, so
    /// that a product may use some of them, in any order.
    pub(in crate::ops) fn pack<E: Packable>(
        format: Format,
        source: Source<'_, E>,
        taps: &[usize],
        depth: usize,
        columns: usize,
    ) -> Self {
        match format {
            Format::F32 => Self::F32(E::f32_panels(source, taps, depth, columns)),
            Format::Bf16(instructions) => {
                Self::Bf16(Bf16Panels::pack(instructions, source, taps, depth, columns))
            }
        }
    }

    /// B, row-major (depth, columns): `values` as they are where that will do, else packed.
    pub(in crate::ops) fn of_rows(
        format: Format,
        values: Scratch,
        depth: usize,
        columns: usize,
    ) -> Self {
        if format == Format::F32 {
            return Self::F32(F32Panels::of_rows(values, depth, columns));
        }
        let source = Source { values: &values, tap: 0, row: columns, column: 1 };
        Self::pack(format, source, &[0], depth, columns)
    }

    /// See [`F32Panels::of_slices`].
    pub(in crate::ops) fn of_slices(rows: &[&[f32]], columns: usize) -> Self {
        Self::F32(F32Panels::of_slices(rows, columns))
    }

    /// See [`F32Panels::pack_together`].
    pub(in crate::ops) fn pack_together<const N: usize>(
        depth: usize,
        columns: usize,
        fill: impl Fn(&Block, [&mut [f32]; N]) + Sync,
    ) -> [Self; N] {
        F32Panels::pack_together(depth, columns, fill).map(Self::F32)
    }

    /// The inner size.
    pub(super) fn inner(&self) -> usize {
        match self {
            Self::F32(panels) => panels.taps * panels.depth,
            Self::Bf16(panels) => panels.taps * panels.depth,
        }
    }

    pub(super) fn columns(&self) -> usize {
        match self {
            Self::F32(panels) => panels.columns,
            Self::Bf16(panels) => panels.columns,
        }
    }

    pub(super) fn format(&self) -> Format {
        match self {
            Self::F32(_) => Format::F32,
            Self::Bf16(panels) => Format::Bf16(panels.instructions),
        }
    }
}
