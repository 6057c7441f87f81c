use half::bf16;

use super::*;
use crate::ops::kernel::tests::{self, transposed};
use crate::ops::kernel::{
    Columns, Epilogue, Matrix, Output, Panels, Rows, Source, Sums, Write, multiply, product,
};
use crate::ops::testing::{on_threads, values};

fn panels(instructions: Instructions, source: Source<'_>, depth: usize, columns: usize) -> Panels {
    Panels::Bf16(Bf16Panels::pack(instructions, source, &[0], depth, columns))
}

fn rounded(values: &[f32]) -> Vec<f32> {
    values.iter().map(|value| bf16::from_f32(*value).to_f32()).collect()
}

/// [`tests::largest_error`] for rounded operands.
fn largest_error(out: &[f32], a: &[f32], b: &[f32], k: usize, n: usize) -> f64 {
    tests::largest_error(out, &rounded(a), &rounded(b), k, n)
}

/// Rows, inner size and columns: remainders of tiles, strips and blocks of the depth.
const SHAPES: [(usize, usize, usize); 9] = [
    (1, 1, 1),
    (3, 7, 5),
    (16, 31, 47),
    (17, 33, 31),
    (32, 32, 32),
    (33, 64, 65),
    (70, 513, 33),
    (197, 100, 96),
    (40, 1100, 70),
];

#[test]
fn products_are_those_of_rounded_operands_for_all_instructions_and_orders() {
    for instructions in Instructions::all() {
        for (m, k, n) in SHAPES {
            let (a, b) = (values("a", 1, m * k), values("b", 2, k * n));
            let (a_turned, b_turned) = (transposed(&a, m, k), transposed(&b, k, n));
            // Every other value, too: neither rows nor columns lie side by side.
            let b_apart: Vec<f32> = b.iter().flat_map(|&value| [value, 9.0]).collect();
            let sources = [
                Source { values: &b, tap: 0, row: n, column: 1 },
                Source { values: &b_turned, tap: 0, row: 1, column: k },
                Source { values: &b_apart, tap: 0, row: 2 * n, column: 2 },
            ];
            let lefts = [Matrix::new(&a, m, k), Matrix::new(&a_turned, k, m).transposed()];
            let mut results = Vec::new();
            for left in lefts {
                for source in sources {
                    let mut out = vec![f32::NAN; m * n];
                    let right = panels(instructions, source, k, n);
                    multiply(&mut out, left, &right, Write::Replace, Sums::Long);
                    results.push(out);
                }
            }
            assert!(results.iter().all(|out| *out == results[0]), "({m}, {k}, {n})");
            let error = largest_error(&results[0], &a, &b, k, n);
            assert!(error < 1e-6, "{instructions:?}: {error} at ({m}, {k}, {n})");
        }
    }
}

#[test]
fn products_are_added_to_what_is_there_and_each_row_is_finished_once() {
    struct Note(Vec<usize>);
    impl Epilogue for Note {
        fn finish(&mut self, _: pulp::Arch, first: usize, values: &mut [f32]) {
            self.0.push(first);
            for value in values {
                *value += 100.0;
            }
        }
    }
    for instructions in Instructions::all() {
        for (rows, taps, depth, columns) in [(37, 3, 5, 40), (64, 2, 33, 32), (5, 9, 70, 3)] {
            let (a, b) =
                (values("a", 3, rows * taps * depth), values("b", 4, taps * depth * columns));
            let slices: Vec<&[f32]> = a.chunks_exact(depth).collect();
            let width = columns + 3;
            // The rows in falling order, and apart from each other.
            let starts: Vec<usize> = (0..rows).rev().map(|row| row * width).collect();
            let before = values("out", 5, rows * width);
            let mut out = before.clone();
            let source = Source { values: &b, tap: depth * columns, row: columns, column: 1 };
            let order: Vec<usize> = (0..taps).collect();
            let right =
                Panels::Bf16(Bf16Panels::pack(instructions, source, &order, depth, columns));
            let output =
                Output { values: &mut out, starts: &starts, write: Write::Add, sums: Sums::Long };
            let mut note = Note(Vec::new());
            product(&mut Rows { slices: &slices, taps }, &right, output, &mut note);
            assert_eq!(note.0, (0..rows).collect::<Vec<_>>());
            let mut sums = vec![0.0; rows * columns];
            for (row, start) in starts.iter().enumerate() {
                for column in 0..columns {
                    let at = start + column;
                    sums[row * columns + column] = out[at] - before[at] - 100.0;
                }
                assert_eq!(out[start + columns..][..3], before[start + columns..][..3]);
            }
            let error = largest_error(&sums, &a, &b, taps * depth, columns);
            assert!(error < 1e-4, "{instructions:?}: {error}");
        }
    }
}

#[test]
fn columns_of_scattered_positions_make_the_transposed_product() {
    for instructions in Instructions::all() {
        for (positions, rows, columns) in [(1, 1, 1), (45, 20, 33), (600, 48, 64)] {
            let (a, b) = (values("a", 6, positions * rows), values("b", 7, positions * columns));
            let slices: Vec<&[f32]> = a.chunks_exact(rows).collect();
            let source = Source { values: &b, tap: 0, row: columns, column: 1 };
            let right = panels(instructions, source, positions, columns);
            let starts: Vec<usize> = (0..rows).map(|row| row * columns).collect();
            let mut out = vec![f32::NAN; rows * columns];
            let output = Output {
                values: &mut out,
                starts: &starts,
                write: Write::Replace,
                sums: Sums::Long,
            };
            product(&mut Columns::new(&slices, rows), &right, output, &mut ());
            let turned = transposed(&a, positions, rows);
            let error = largest_error(&out, &turned, &b, positions, columns);
            assert!(error < 1e-6, "{instructions:?}: {error}");
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads_nor_on_the_block_of_a_row() {
    let (m, k, n) = (301, 1030, 67);
    let (a, b) = (values("a", 8, m * k), values("b", 9, k * n));
    for instructions in Instructions::all() {
        let of_rows = |first: usize, threads: usize| {
            on_threads(threads, || {
                let source = Source { values: &b, tap: 0, row: n, column: 1 };
                let right = panels(instructions, source, k, n);
                let mut out = vec![0.0; (m - first) * n];
                let left = Matrix::new(&a[first * k..], m - first, k);
                multiply(&mut out, left, &right, Write::Replace, Sums::Long);
                out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            })
        };
        let one = of_rows(0, 1);
        assert!(one == of_rows(0, 2) && one == of_rows(0, 3));
        assert!(one[45 * n..] == of_rows(45, 2));
    }
}

#[test]
fn operands_that_are_rounded_before_give_the_same_bits() {
    let (m, k, n) = (35, 70, 40);
    let (a, b) = (values("a", 10, m * k), values("b", 11, k * n));
    for instructions in Instructions::all() {
        let of = |a: &[f32], b: &[f32]| {
            let source = Source { values: b, tap: 0, row: n, column: 1 };
            let mut out = vec![0.0; m * n];
            let right = panels(instructions, source, k, n);
            multiply(&mut out, Matrix::new(a, m, k), &right, Write::Replace, Sums::Long);
            out
        };
        assert!(of(&a, &b) == of(&rounded(&a), &rounded(&b)));
    }
}

#[test]
fn a_sum_over_nothing_is_zero_and_nan_and_infinity_pass() {
    for instructions in Instructions::all() {
        let empty = Source { values: &[], tap: 0, row: 2, column: 1 };
        let right = panels(instructions, empty, 0, 2);
        let mut out = [3.0; 4];
        multiply(&mut out, Matrix::new(&[], 2, 0), &right, Write::Replace, Sums::Long);
        assert_eq!(out, [0.0; 4]);
        let one = Source { values: &[f32::INFINITY, 1.0], tap: 0, row: 2, column: 1 };
        let right = panels(instructions, one, 1, 2);
        let mut out = [0.0; 4];
        multiply(&mut out, Matrix::new(&[2.0, f32::NAN], 2, 1), &right, Write::Replace, Sums::Long);
        assert!(out[0] == f32::INFINITY && out[1] == 2.0 && out[2].is_nan() && out[3].is_nan());
    }
}
