//! The matrices of F(4x4, 3x3) as straight-line vector code: one lane per channel.
//!
//! y = At [(G g Gt) . (Bt d B)] A for a 6x6 input tile d, a 3x3 kernel g and a 4x4 output tile y
//! (Lavin and Gray, 2016, section 4.3, interpolation points 0, 1, -1, 2, -2 and infinity). The
//! gradients are the adjoints of the same transforms. Every transform is a matrix applied to the
//! columns and then to the rows.
//!
//! A tile of three pixels leaves out the point -2, one of two pixels 2 and -2. G is the same for
//! all, so that all tiles are multiplied by the same kernels: the factors that it would have
//! without those points are in Bt.

use pulp::Simd;

use super::tiles::{Length, TileSize};

/// A linear map of `I` values to `O`, lane by lane, for each length of a tile.
pub(super) trait Transform<const I: usize, const O: usize>: Sync {
    /// Applies it to one column or row. What a length does not need, it neither reads nor makes.
    fn line<S: Simd>(simd: S, length: Length, values: [S::f32s; I]) -> [S::f32s; O];

    /// Work memory for [`Transform::tile`]; its values do not matter.
    #[inline(always)]
    fn workspace<S: Simd>(simd: S) -> [[S::f32s; O]; I] {
        [[simd.splat_f32s(0.0); O]; I]
    }

    /// Applies it to the columns, then to the rows, of what `load` gives for a row and a column,
    /// and calls `store` with each row. Both must be `#[inline(always)]`.
    #[inline(always)]
    fn tile<S: Simd>(
        simd: S,
        size: TileSize,
        columns: &mut [[S::f32s; O]; I],
        load: impl Fn(usize, usize) -> S::f32s,
        store: impl FnMut(usize, [S::f32s; O]),
    ) {
        // Compiled for itself, most tiles need no branches.
        match size {
            TileSize::WHOLE => Self::sized(simd, TileSize::WHOLE, columns, load, store),
            size => Self::sized(simd, size, columns, load, store),
        }
    }

    /// [`Transform::tile`].
    // Loops, not closures: a closure that is not inlined loses the instruction set.
    #[inline(always)]
    fn sized<S: Simd>(
        simd: S,
        size: TileSize,
        columns: &mut [[S::f32s; O]; I],
        load: impl Fn(usize, usize) -> S::f32s,
        mut store: impl FnMut(usize, [S::f32s; O]),
    ) {
        let zero = simd.splat_f32s(0.0);
        for (j, transformed) in columns.iter_mut().enumerate() {
            let mut column = [zero; I];
            for (i, value) in column.iter_mut().enumerate() {
                *value = load(i, j);
            }
            *transformed = Self::line(simd, size.rows, column);
        }
        for i in 0..O {
            let mut row = [zero; I];
            for (value, column) in row.iter_mut().zip(&*columns) {
                *value = column[i];
            }
            store(i, Self::line(simd, size.columns, row));
        }
    }
}

/// The nearest bf16 numbers, ties to even, as `precision::round` has them; NaN stays as it is.
#[inline(always)]
pub(super) fn rounded<S: Simd>(simd: S, values: S::f32s) -> S::f32s {
    let [one, half, upper] = [1, 0x7FFF, 0xFFFF_0000].map(|bits| simd.splat_u32s(bits));
    let bits = simd.transmute_u32s_f32s(values);
    let last = simd.and_u32s(simd.wrapping_dyn_shr_u32s(bits, simd.splat_u32s(16)), one);
    let nearest = simd.and_u32s(simd.add_u32s(bits, simd.add_u32s(half, last)), upper);
    let is_number = simd.equal_f32s(values, values);
    simd.select_f32s(is_number, simd.transmute_f32s_u32s(nearest), values)
}

/// Bt: input tiles.
pub(super) struct Input;
/// At: output tiles.
pub(super) struct Output;
/// A: gradients of output tiles.
pub(super) struct OutputGradient;
/// G: kernels.
pub(super) struct Kernel;
/// Gt: gradients of kernels.
pub(super) struct KernelGradient;

impl Transform<6, 6> for Input {
    #[inline(always)]
    fn line<S: Simd>(simd: S, length: Length, d: [S::f32s; 6]) -> [S::f32s; 6] {
        let v = Lanes(simd);
        let none = simd.splat_f32s(0.0);
        let rise = v.sub(d[3], d[1]);
        match length {
            Length::Two => [
                v.scale(4.0, v.sub(d[0], d[2])),
                v.scale(-3.0, v.add(d[1], d[2])),
                v.scale(3.0, v.sub(d[1], d[2])),
                none,
                none,
                rise,
            ],
            Length::Three => [
                v.fma(4.0, v.sub(d[0], d[2]), v.scale(2.0, rise)),
                v.scale(3.0, v.sub(v.fma(-2.0, d[1], d[3]), d[2])),
                v.fma(2.0, d[1], v.fma(-3.0, d[2], d[3])),
                v.scale(4.0, rise),
                none,
                v.fma(-2.0, rise, v.sub(d[4], d[2])),
            ],
            Length::Four => {
                let a = v.fma(-4.0, d[2], d[4]);
                let b = v.fma(-4.0, d[1], d[3]);
                let c = v.sub(d[4], d[2]);
                [
                    v.fma(4.0, d[0], v.fma(-5.0, d[2], d[4])),
                    v.add(a, b),
                    v.sub(a, b),
                    v.fma(2.0, rise, c),
                    v.fma(-2.0, rise, c),
                    v.fma(4.0, d[1], v.fma(-5.0, d[3], d[5])),
                ]
            }
        }
    }
}

impl Transform<6, 4> for Output {
    #[inline(always)]
    fn line<S: Simd>(simd: S, length: Length, m: [S::f32s; 6]) -> [S::f32s; 4] {
        let v = Lanes(simd);
        let near = v.add(m[1], m[2]);
        let near_odd = v.sub(m[1], m[2]);
        let first = v.add(m[0], near);
        let none = simd.splat_f32s(0.0);
        match length {
            Length::Two => [first, v.add(near_odd, m[5]), none, none],
            Length::Three => {
                let last = v.add(v.fma(4.0, m[3], near), m[5]);
                [v.add(first, m[3]), v.fma(2.0, m[3], near_odd), last, none]
            }
            Length::Four => {
                let far = v.add(m[3], m[4]);
                let far_odd = v.sub(m[3], m[4]);
                [
                    v.add(first, far),
                    v.fma(2.0, far_odd, near_odd),
                    v.fma(4.0, far, near),
                    v.add(v.fma(8.0, far_odd, near_odd), m[5]),
                ]
            }
        }
    }
}

impl Transform<4, 6> for OutputGradient {
    #[inline(always)]
    fn line<S: Simd>(simd: S, length: Length, y: [S::f32s; 4]) -> [S::f32s; 6] {
        let v = Lanes(simd);
        let none = simd.splat_f32s(0.0);
        match length {
            Length::Two => [y[0], v.add(y[0], y[1]), v.sub(y[0], y[1]), none, none, y[1]],
            Length::Three => {
                let even = v.add(y[0], y[2]);
                let far = v.fma(4.0, y[2], y[0]);
                let near = v.add(even, y[1]);
                let near_odd = v.sub(even, y[1]);
                [y[0], near, near_odd, v.fma(2.0, y[1], far), none, y[2]]
            }
            Length::Four => {
                let even = v.add(y[0], y[2]);
                let odd = v.add(y[1], y[3]);
                let far = v.fma(4.0, y[2], y[0]);
                let far_odd = v.scale(2.0, v.fma(4.0, y[3], y[1]));
                let near = v.add(even, odd);
                let near_odd = v.sub(even, odd);
                [y[0], near, near_odd, v.add(far, far_odd), v.sub(far, far_odd), y[3]]
            }
        }
    }
}

impl Transform<3, 6> for Kernel {
    #[inline(always)]
    fn line<S: Simd>(simd: S, _: Length, g: [S::f32s; 3]) -> [S::f32s; 6] {
        let v = Lanes(simd);
        let near = v.scale(-1.0 / 6.0, v.add(g[0], g[2]));
        let far = v.fma(1.0 / 6.0, g[2], v.scale(1.0 / 24.0, g[0]));
        [
            v.scale(0.25, g[0]),
            v.fma(-1.0 / 6.0, g[1], near),
            v.fma(1.0 / 6.0, g[1], near),
            v.fma(1.0 / 12.0, g[1], far),
            v.fma(-1.0 / 12.0, g[1], far),
            g[2],
        ]
    }
}

impl Transform<6, 3> for KernelGradient {
    #[inline(always)]
    fn line<S: Simd>(simd: S, _: Length, u: [S::f32s; 6]) -> [S::f32s; 3] {
        let v = Lanes(simd);
        let near = v.scale(-1.0 / 6.0, v.add(u[1], u[2]));
        let far = v.add(u[3], u[4]);
        [
            v.fma(0.25, u[0], v.fma(1.0 / 24.0, far, near)),
            v.fma(1.0 / 12.0, v.sub(u[3], u[4]), v.scale(1.0 / 6.0, v.sub(u[2], u[1]))),
            v.add(v.fma(1.0 / 6.0, far, near), u[5]),
        ]
    }
}

/// Short names for the four operations above.
struct Lanes<S>(S);

impl<S: Simd> Lanes<S> {
    #[inline(always)]
    fn add(&self, a: S::f32s, b: S::f32s) -> S::f32s {
        self.0.add_f32s(a, b)
    }

    #[inline(always)]
    fn sub(&self, a: S::f32s, b: S::f32s) -> S::f32s {
        self.0.sub_f32s(a, b)
    }

    #[inline(always)]
    fn scale(&self, k: f32, a: S::f32s) -> S::f32s {
        self.0.mul_f32s(self.0.splat_f32s(k), a)
    }

    /// k a + b. One rounding where the machine has a fused instruction; without one, two are faster
    /// than emulating it.
    #[inline(always)]
    fn fma(&self, k: f32, a: S::f32s, b: S::f32s) -> S::f32s {
        self.0.mul_add_e_f32s(self.0.splat_f32s(k), a, b)
    }
}

#[cfg(test)]
mod tests {
    use std::array::from_fn;

    use pulp::Scalar;

    use super::*;

    /// The matrix of a transform, read off its action on unit vectors.
    fn matrix<const I: usize, const O: usize, T: Transform<I, O>>(length: Length) -> [[f32; I]; O] {
        let columns: [[f32; O]; I] =
            from_fn(|i| T::line(Scalar, length, from_fn(|j| f32::from(u8::from(i == j)))));
        from_fn(|o| from_fn(|i| columns[i][o]))
    }

    #[test]
    fn the_transforms_of_a_whole_tile_are_lavin_and_grays_matrices() {
        let whole = Length::Four;
        let (t, s, q) = (1.0 / 24.0, 1.0 / 6.0, 1.0 / 12.0);
        assert_eq!(
            matrix::<6, 6, Input>(whole),
            [
                [4., 0., -5., 0., 1., 0.],
                [0., -4., -4., 1., 1., 0.],
                [0., 4., -4., -1., 1., 0.],
                [0., -2., -1., 2., 1., 0.],
                [0., 2., -1., -2., 1., 0.],
                [0., 4., 0., -5., 0., 1.],
            ]
        );
        let kernel =
            [[0.25, 0., 0.], [-s, -s, -s], [-s, s, -s], [t, q, s], [t, -q, s], [0., 0., 1.]];
        assert_eq!(matrix::<3, 6, Kernel>(whole), kernel);
        let output = [
            [1., 1., 1., 1., 1., 0.],
            [0., 1., -1., 2., -2., 0.],
            [0., 1., 1., 4., 4., 0.],
            [0., 1., -1., 8., -8., 1.],
        ];
        assert_eq!(matrix::<6, 4, Output>(whole), output);
        assert_eq!(matrix::<4, 6, OutputGradient>(whole), from_fn(|i| from_fn(|j| output[j][i])));
        assert_eq!(matrix::<6, 3, KernelGradient>(whole), from_fn(|i| from_fn(|j| kernel[j][i])));
    }

    #[test]
    fn the_transforms_of_each_length_make_a_convolution_of_what_they_need() {
        for (pixels, length) in [(2, Length::Two), (3, Length::Three), (4, Length::Four)] {
            let (input, output) = (matrix::<6, 6, Input>(length), matrix::<6, 4, Output>(length));
            let kernel = matrix::<3, 6, Kernel>(length);
            let gradient = matrix::<4, 6, OutputGradient>(length);
            for point in 0..6 {
                let is_made = input[point] != [0.0; 6];
                let is_read = output.iter().any(|row| row[point] != 0.0);
                assert_eq!([is_made, is_read], [length.needs(point); 2], "{length:?} {point}");
                let adjoint: [f32; 4] = from_fn(|pixel| output[pixel][point]);
                assert_eq!(gradient[point], adjoint, "{length:?} {point}");
            }
            for (pixel, output) in output.iter().enumerate().take(pixels) {
                for (tap, read) in (0..3).flat_map(|tap| (0..6).map(move |read| (tap, read))) {
                    let product = |point: usize| kernel[point][tap] * input[point][read];
                    let sum: f32 = (0..6).map(|point| output[point] * product(point)).sum();
                    let exact = f32::from(u8::from(read == pixel + tap));
                    assert!((sum - exact).abs() < 1e-6, "{length:?}: {pixel} {tap} {read}: {sum}");
                }
            }
        }
    }

    #[test]
    fn a_tile_is_transformed_by_columns_and_by_rows() {
        let tile: [[f32; 3]; 3] = from_fn(|i| from_fn(|j| (i * 3 + j) as f32 - 2.5));
        let matrix = matrix::<3, 6, Kernel>(Length::Four);
        let mut transformed = [[0.0; 6]; 6];
        let mut workspace = Kernel::workspace(Scalar);
        Kernel::tile(
            Scalar,
            TileSize::WHOLE,
            &mut workspace,
            |i, j| tile[i][j],
            |i, row| {
                transformed[i] = row;
            },
        );
        for (row, line) in transformed.iter().enumerate() {
            for (column, &value) in line.iter().enumerate() {
                let exact: f32 = (0..9)
                    .map(|i| matrix[row][i / 3] * tile[i / 3][i % 3] * matrix[column][i % 3])
                    .sum();
                assert!((value - exact).abs() < 1e-6, "{row} {column}");
            }
        }
    }
}
