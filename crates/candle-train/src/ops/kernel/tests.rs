use proptest::prelude::*;
use pulp::Arch;

use super::panels::F32Panels;
use super::*;
use crate::ops::testing::{on_threads, values};

fn panels(level: Arch, b: &[f32], depth: usize, columns: usize) -> Panels {
    let source = Source { values: b, tap: 0, row: columns, column: 1 };
    Panels::F32(F32Panels::pack_for(level, source, &[0], depth, columns))
}

pub(super) fn transposed(a: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..rows * columns).map(|i| a[i % rows * columns + i / rows]).collect()
}

/// The largest error of an element, relative to the sum of the absolute values of its products.
pub(super) fn largest_error(out: &[f32], a: &[f32], b: &[f32], k: usize, n: usize) -> f64 {
    let error = |(i, &value): (usize, &f32)| {
        let product = |j: usize| f64::from(a[i / n * k + j]) * f64::from(b[j * n + i % n]);
        let (exact, size) = (0..k)
            .fold((0.0, 0.0), |(sum, size), j| (sum + product(j), size + f64::abs(product(j))));
        (f64::from(value) - exact).abs() / f64::max(size, 1e-30)
    };
    out.iter().enumerate().map(error).fold(0.0, f64::max)
}

/// Rows, columns and inner size: all remainders of the tiles and chunks.
const SHAPES: [(usize, usize, usize); 11] = [
    (1, 1, 1),
    (1, 7, 5),
    (7, 1, 3),
    (5, 64, 16),
    (6, 65, 17),
    (13, 31, 47),
    (2, 257, 130),
    (64, 100, 33),
    (3, 700, 70),
    (197, 13, 11),
    (11, 1031, 67),
];

#[test]
fn products_of_odd_sizes_and_transposed_operands_are_within_the_bound_at_every_level() {
    for (m, k, n) in SHAPES {
        let (a, b) = (values("a", 1, m * k), values("b", 2, k * n));
        let (a_turned, b_turned) = (transposed(&a, m, k), transposed(&b, k, n));
        for sums in [Sums::Short, Sums::Long] {
            let mut worst: f64 = 0.0;
            for level in level::all() {
                let straight = panels(level, &b, k, n);
                let source = Source { values: &b_turned, tap: 0, row: 1, column: k };
                let turned = Panels::F32(F32Panels::pack_for(level, source, &[0], k, n));
                let lefts = [Matrix::new(&a, m, k), Matrix::new(&a_turned, k, m).transposed()];
                let mut results = Vec::new();
                for left in lefts {
                    for right in [&straight, &turned] {
                        let mut out = vec![f32::NAN; m * n];
                        multiply(&mut out, left, right, Write::Replace, sums);
                        results.push(out);
                    }
                }
                assert!(results.iter().all(|out| *out == results[0]), "({m}, {k}, {n})");
                worst = worst.max(largest_error(&results[0], &a, &b, k, n));
            }
            println!("{sums:?}: max relative error {worst:.1e} at ({m}, {k}, {n})");
            assert!(worst < 4e-7, "{worst} at ({m}, {k}, {n})");
        }
    }
}

#[test]
fn levels_with_fused_multiply_add_agree_bit_for_bit() {
    for (m, k, n) in SHAPES {
        let (a, b) = (values("a", 3, m * k), values("b", 4, k * n));
        let product = |level| {
            let mut out = values("out", 5, m * n);
            let b = panels(level, &b, k, n);
            multiply(&mut out, Matrix::new(&a, m, k), &b, Write::Add, Sums::Short);
            out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let fused = level::all().into_iter().filter(|level| !matches!(level, Arch::Scalar));
        let results: Vec<_> = fused.map(product).collect();
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "({m}, {k}, {n})");
    }
}

/// Doubles values.
struct Double;

impl Epilogue for Double {
    fn finish(&mut self, _: Arch, _: usize, values: &mut [f32]) {
        for value in values {
            *value *= 2.0;
        }
    }
}

#[test]
fn a_product_of_few_rows_has_the_bits_of_one_of_many() {
    for (m, k, n) in [(1, 5, 9), (2, 64, 40), (7, 130, 300), (37, 257, 211), (40, 3, 2)] {
        let (a, b) = (values("a", 8, m * k), values("b", 9, k * n));
        let (a, b_turned) = (Matrix::new(&a, m, k), transposed(&b, k, n));
        let straight = Matrix::new(&b, k, n);
        let mut expected = vec![0.0; m * n];
        multiply(&mut expected, a, &straight.panels(), Write::Replace, Sums::Long);
        for right in [straight, Matrix::new(&b_turned, n, k).transposed()] {
            assert!(multiplied(a, right, Sums::Long) == expected, "({m}, {k}, {n})");
            let product = Rowwise::new(a, right, Format::F32, Sums::Long);
            assert_eq!(matches!(product, Rowwise::Turned { .. }), m < 40);
            let mut rows = vec![f32::NAN; (m - m / 2) * n];
            product.write(&mut rows, m / 2, &mut Double);
            let expected = expected[m / 2 * n..].iter().map(|value| 2.0 * value);
            assert!(rows.into_iter().eq(expected), "({m}, {k}, {n})");
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    let (m, k, n) = (301, 513, 67);
    let (a, b) = (values("a", 6, m * k), values("b", 7, k * n));
    let bits = |threads: usize| {
        on_threads(threads, || {
            let (a, b) = (Matrix::new(&a, m, k), Matrix::new(&b, k, n));
            let mut out = vec![0.0; m * n];
            multiply(&mut out, a, &b.panels(), Write::Replace, Sums::Long);
            let square = Matrix::new(&out, m, n);
            let mut more = vec![0.0; n * n];
            let right = square.panels();
            multiply(&mut more, square.transposed(), &right, Write::Replace, Sums::Long);
            out.extend(more);
            out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        })
    };
    let one = bits(1);
    assert!(one == bits(2) && one == bits(3));
}

/// Adds row + column / 1000 and notes the rows that it was given.
struct Note(Vec<usize>);

impl Epilogue for Note {
    fn finish(&mut self, _: Arch, row: usize, values: &mut [f32]) {
        self.0.push(row);
        for (column, value) in values.iter_mut().enumerate() {
            *value += row as f32 + column as f32 / 1000.0;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn rows_of_taps_reach_scattered_outputs_and_each_row_is_finished_once(
        rows in 1usize..20,
        taps in 1usize..6,
        depth in 1usize..90,
        columns in 1usize..100,
        short in any::<bool>(),
        add in any::<bool>(),
    ) {
        let a = values("a", 8, rows * taps * depth);
        // Taps of the source in another order, one of them left out.
        let b = values("b", 9, (taps + 1) * depth * columns);
        let order: Vec<usize> = (1..=taps).rev().collect();
        let source = Source { values: &b, tap: depth * columns, row: columns, column: 1 };
        let slices: Vec<&[f32]> = a.chunks_exact(depth).collect();
        let starts: Vec<usize> = (0..rows).map(|row| (rows - 1 - row) * (columns + 3)).collect();
        let sums = if short { Sums::Short } else { Sums::Long };
        let write = if add { Write::Add } else { Write::Replace };
        for level in level::all() {
            let before = values("out", 10, rows * (columns + 3));
            let mut out = before.clone();
            let mut note = Note(Vec::new());
            let b_panels =
                Panels::F32(F32Panels::pack_for(level, source, &order, depth, columns));
            let output = Output { values: &mut out, starts: &starts, write, sums };
            product(&mut Rows { slices: &slices, taps }, &b_panels, output, &mut note);
            for row in 0..rows {
                for column in 0..columns {
                    let at = starts[row] + column;
                    let old = if add { f64::from(before[at]) } else { 0.0 };
                    let dot: f64 = (0..taps * depth)
                        .map(|i| {
                            let from = order[i / depth] * depth + i % depth;
                            f64::from(a[row * taps * depth + i]) * f64::from(b[from * columns + column])
                        })
                        .sum();
                    let exact = old + dot + row as f64 + column as f64 / 1000.0;
                    prop_assert!((f64::from(out[at]) - exact).abs() < 1e-4, "{} {}", out[at], exact);
                }
                let end = starts[row] + columns;
                prop_assert_eq!(&out[end..end + 3], &before[end..end + 3]);
            }
            prop_assert_eq!(note.0, (0..rows).collect::<Vec<_>>());
        }
    }

    #[test]
    fn columns_of_scattered_positions_make_the_transposed_product(
        positions in 0usize..600,
        rows in 1usize..20,
        columns in 1usize..100,
    ) {
        let (a, b) = (values("a", 11, positions * (rows + 2)), values("b", 12, positions * columns));
        let slices: Vec<&[f32]> = (0..positions).map(|p| &a[p * (rows + 2) + 1..]).collect();
        for level in level::all() {
            let mut out = vec![1.0; rows * columns];
            let starts: Vec<usize> = (0..rows).map(|row| row * columns).collect();
            let output =
                Output { values: &mut out, starts: &starts, write: Write::Add, sums: Sums::Long };
            let b_panels = panels(level, &b, positions, columns);
            product(&mut Columns::new(&slices, rows), &b_panels, output, &mut ());
            for (i, value) in out.iter().enumerate() {
                let exact: f64 = (0..positions)
                    .map(|p| f64::from(slices[p][i / columns]) * f64::from(b[p * columns + i % columns]))
                    .sum();
                prop_assert!((f64::from(*value) - 1.0 - exact).abs() < 1e-4);
            }
        }
    }
}

#[test]
fn a_sum_over_nothing_is_zero() {
    let b = Matrix::new(&[], 0, 2).panels();
    let mut out = [3.0; 4];
    multiply(&mut out, Matrix::new(&[], 2, 0), &b, Write::Add, Sums::Long);
    assert_eq!(out, [3.0; 4]);
    multiply(&mut out, Matrix::new(&[], 2, 0), &b, Write::Replace, Sums::Long);
    assert_eq!(out, [0.0; 4]);
}
