//! The instruction sets: which one runs, and what its registers allow.

use std::sync::LazyLock;

use pulp::{Arch, Scalar128b, Simd, WithSimd};

/// The best level of this processor: AVX-512, AVX2 with fused multiply-add, NEON, or portable code.
pub(in crate::ops) fn best() -> Arch {
    static BEST: LazyLock<Arch> = LazyLock::new(Arch::new);
    *BEST
}

/// Runs `op` compiled for `level`.
#[inline(always)]
pub(in crate::ops) fn run<Op: WithSimd>(level: Arch, op: Op) -> Op::Output {
    match level {
        // Four lanes as arrays, which every compiler backend turns into vectors.
        Arch::Scalar => op.with_simd(Scalar128b),
        level => level.dispatch(op),
    }
}

/// Rows of A in a register tile.
pub(super) const TILE_ROWS: usize = 6;

/// Registers of B in a register tile: sums, B and one value of A fit into the register file.
pub(super) const fn tile_registers<S: Simd>() -> usize {
    if S::REGISTER_COUNT >= 32 { 4 } else { 2 }
}

/// a b + c, rounded once where the processor can; a software `fma` would be a hundred times slower.
#[inline(always)]
pub(super) fn multiply_add<S: Simd>(simd: S, a: S::f32s, b: S::f32s, c: S::f32s) -> S::f32s {
    // Of the levels of four lanes, only NEON has 32 registers; portable code has 16.
    if const { S::F32_LANES > 4 || S::REGISTER_COUNT >= 32 } {
        simd.mul_add_f32s(a, b, c)
    } else {
        simd.add_f32s(simd.mul_f32s(a, b), c)
    }
}

/// Lanes of a register, and registers of B in a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Width {
    pub(super) lanes: usize,
    pub(super) registers: usize,
}

impl Width {
    pub(super) fn of(level: Arch) -> Self {
        struct Ask;
        impl WithSimd for Ask {
            type Output = Width;
            fn with_simd<S: Simd>(self, _: S) -> Width {
                Width { lanes: S::F32_LANES, registers: tile_registers::<S>() }
            }
        }
        run(level, Ask)
    }
}

/// Every level that this processor can run.
#[cfg(test)]
pub(in crate::ops) fn all() -> Vec<Arch> {
    let mut levels = vec![Arch::Scalar];
    #[cfg(target_arch = "x86_64")]
    levels.extend(pulp::x86::V3::try_new().map(Arch::V3));
    #[cfg(target_arch = "x86_64")]
    levels.extend(pulp::x86::V4::try_new().map(Arch::V4));
    #[cfg(target_arch = "aarch64")]
    levels.push(Arch::new());
    levels
}
