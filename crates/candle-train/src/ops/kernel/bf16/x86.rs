//! The instruction sets of x86-64 that multiply bf16 numbers.
#![expect(unsafe_code, reason = "instructions that not every processor has")]

use std::arch::x86_64::__cpuid;
use std::sync::LazyLock;

use super::{Order, Tile, amx, avx512};
use crate::Bf16Instructions;
use crate::ops::element::Element;

/// Instructions that multiply bf16 numbers. A value is the proof that this processor has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) enum Instructions {
    /// AMX: a tile by a tile. Rounding is AVX-512's.
    Amx(Proof),
    /// AVX512-BF16: pairs by pairs.
    Avx512(Proof),
}

/// Made by detection only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) struct Proof(());

impl Instructions {
    /// The fastest of this processor.
    pub(in crate::ops) fn best() -> Option<Self> {
        static BEST: LazyLock<Option<Instructions>> =
            LazyLock::new(|| Instructions::all().last().copied());
        *BEST
    }

    /// All instructions of this processor, the fastest last.
    pub(in crate::ops) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        if avx512::is_available() {
            all.push(Self::Avx512(Proof(())));
            if amx::is_permitted() {
                all.push(Self::Amx(Proof(())));
            }
        }
        all
    }

    /// Name of these instructions.
    pub(in crate::ops) fn kind(self) -> Bf16Instructions {
        match self {
            Self::Amx(_) => Bf16Instructions::Amx,
            Self::Avx512(_) => Bf16Instructions::Avx512,
        }
    }

    /// True if they are more than twice as fast as those for f32.
    pub(in crate::ops::kernel) fn multiply_tiles(self) -> bool {
        matches!(self, Self::Amx(_))
    }

    /// True if they are faster than those for f32. Of AVX512-BF16, AMD's processors do as many at a
    /// time as of f32's, so twice the work; Intel's do half as many.
    pub(in crate::ops) fn outrun_f32(self) -> bool {
        self.multiply_tiles() || is_amd()
    }

    /// The order of the tiles of an A that is packed across its lines: as it comes, where the
    /// instructions take it so.
    pub(in crate::ops::kernel) fn order_across(self) -> Order {
        if self.multiply_tiles() { Order::Lines } else { Order::Pairs }
    }

    /// See [`avx512::pack_lines`].
    #[expect(clippy::unused_self, reason = "the proof that they are there")]
    #[inline(always)]
    pub(in crate::ops::kernel) fn pack_lines<'a, E: Element>(
        self,
        tile: &mut Tile,
        shape: [usize; 2],
        order: Order,
        line: impl Fn(usize) -> &'a [E],
    ) {
        // SAFETY: `self` is the proof.
        unsafe { avx512::pack_lines(tile, shape, order == Order::Pairs, line) }
    }

    /// See [`avx512::pack_across`].
    #[expect(clippy::unused_self, reason = "the proof that they are there")]
    #[inline(always)]
    pub(in crate::ops::kernel) fn pack_across<'a, E: Element>(
        self,
        tile: &mut Tile,
        shape: [usize; 2],
        order: Order,
        across: impl Fn(usize) -> &'a [E],
    ) {
        // SAFETY: `self` is the proof.
        unsafe { avx512::pack_across(tile, shape, order == Order::Lines, across) }
    }

    /// Prepares the calling thread for products.
    pub(super) fn start(self) -> Multiplier {
        match self {
            // SAFETY: `self` is the proof; a product starts one at a time.
            Self::Amx(_) => Multiplier::Amx(unsafe { amx::Tiles::configure() }),
            Self::Avx512(_) => Multiplier::Avx512,
        }
    }
}

/// True if AMD made this processor.
fn is_amd() -> bool {
    let vendor = __cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
}

/// Multiplies on one thread.
pub(super) enum Multiplier {
    Amx(amx::Tiles),
    Avx512,
}

impl Multiplier {
    /// The first `rows` of 32 rows of 32 values, which begin `stride` values after each other,
    /// become or grow by A B; further rows may be written to as well. `order` is that of the tiles
    /// of A.
    pub(super) fn multiply(
        &self,
        ([a, b], order): ([&[[Tile; 2]]; 2], Order),
        (c, stride): (&mut [f32], usize),
        rows: usize,
        add: bool,
    ) {
        assert!(stride >= 32 && c.len() >= 31 * stride + 32, "32 rows of 32 values");
        let c = (c.as_mut_ptr(), size_of::<f32>() * stride);
        // SAFETY: the rows lie in `c`, and `self` was made by `Instructions`.
        unsafe {
            match self {
                Self::Amx(tiles) => tiles.multiply(a, b, c, add),
                Self::Avx512 if order == Order::Pairs => {
                    avx512::multiply::<true>(a, b, c, rows, add);
                }
                Self::Avx512 => avx512::multiply::<false>(a, b, c, rows, add),
            }
        }
    }
}
