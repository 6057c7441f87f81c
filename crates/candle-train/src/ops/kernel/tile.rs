//! Register tiles: `M` rows of A by `V` registers of B, the sums in registers.

use pulp::Simd;

use super::level::multiply_add;

/// The sums of a tile.
pub(super) type Tile<S, const M: usize, const V: usize> = [[<S as Simd>::f32s; V]; M];

/// Sums of zero.
#[inline(always)]
pub(super) fn zeros<S: Simd, const M: usize, const V: usize>(simd: S) -> Tile<S, M, V> {
    [[simd.splat_f32s(0.0); V]; M]
}

/// `sums[i] +=` sum over k of `a[i][k] b[k]`; rows of `a` are at least as long as `b`.
#[inline(always)]
pub(super) fn add_rows<S: Simd, const M: usize, const V: usize>(
    simd: S,
    mut sums: Tile<S, M, V>,
    mut a: [&[f32]; M],
    b: &[[S::f32s; V]],
) -> Tile<S, M, V> {
    // Cut to one length here, so that no check remains in the loop.
    for row in &mut a {
        *row = &row[..b.len()];
    }
    for (k, b) in b.iter().enumerate() {
        for i in 0..M {
            let value = simd.splat_f32s(a[i][k]);
            for v in 0..V {
                sums[i][v] = multiply_add(simd, value, b[v], sums[i][v]);
            }
        }
    }
    sums
}

/// `sums[i] += a[i] b` for one position.
#[inline(always)]
pub(super) fn add_outer<S: Simd, const M: usize, const V: usize>(
    simd: S,
    sums: &mut Tile<S, M, V>,
    a: &[f32; M],
    b: &[S::f32s; V],
) {
    for i in 0..M {
        let value = simd.splat_f32s(a[i]);
        for v in 0..V {
            sums[i][v] = multiply_add(simd, value, b[v], sums[i][v]);
        }
    }
}

/// Writes or adds rows of sums to `out`, of which row `i` begins at `start(i)`, whole registers
/// each.
#[inline(always)]
pub(super) fn write_whole_rows<S: Simd, const M: usize, const V: usize>(
    simd: S,
    sums: &Tile<S, M, V>,
    out: &mut [f32],
    start: impl Fn(usize) -> usize,
    add: bool,
) {
    const { assert!(M <= 6, "all rows are written out") };
    // A loop over the rows would have the compiler put the sums into memory to count through them.
    macro_rules! rows {
        ($($i:literal)*) => {$(
            if $i < M {
                let (out, _) = S::as_mut_simd_f32s(&mut out[start($i)..][..V * S::F32_LANES]);
                write(simd, &sums[$i], &mut out.as_chunks_mut::<V>().0[0], add);
            }
        )*};
    }
    rows!(0 1 2 3 4 5);
}

#[inline(always)]
fn write<S: Simd, const V: usize>(simd: S, sums: &[S::f32s; V], out: &mut [S::f32s; V], add: bool) {
    for v in 0..V {
        out[v] = if add { simd.add_f32s(out[v], sums[v]) } else { sums[v] };
    }
}

/// Writes or adds one row of sums to `out`, which ends within the last register.
#[inline(always)]
pub(super) fn write_row<S: Simd, const V: usize>(
    simd: S,
    sums: &[S::f32s; V],
    out: &mut [f32],
    add: bool,
) {
    let (whole, rest) = S::as_mut_simd_f32s(out);
    for v in 0..V - 1 {
        whole[v] = if add { simd.add_f32s(whole[v], sums[v]) } else { sums[v] };
    }
    let sum = sums[V - 1];
    let sum = if add { simd.add_f32s(simd.partial_load_f32s(rest), sum) } else { sum };
    simd.partial_store_f32s(rest, sum);
}
