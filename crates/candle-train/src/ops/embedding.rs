//! Rows of a table, by index.

use candle_core::{DType, Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::chain;
use super::operation::{Gradients, Input, Operation};
use super::scratch::zeros;
use super::simd::build_rows;
use super::storage::{read, tensor};
use super::weight::{Destination, Weight};

/// Rows of the table handled by one task of backward.
const ROWS: usize = 64;

/// The row of the table for each index, as `torch.nn.functional.embedding`: indices of any shape,
/// u32 or i64, table (rows, c) f32 -> (..., c).
///
/// The gradient is dense, and adds the contributions to a row in the order of the indices.
pub fn embedding(indices: &Tensor, table: &Weight) -> Result<Tensor> {
    let (rows, c) = table.dims2()?;
    if c == 0 {
        bail!("an embedding in no dimensions");
    }
    let mut shape = indices.dims().to_vec();
    shape.push(c);
    let indices = checked_indices(indices, rows)?;
    if let Some(table) = table.as_stored() {
        let numbers = table.numbers();
        let y = gathered(&indices, c, |index, y| numbers.widen(index * c, y));
        return tensor(y, shape);
    }
    let destination = table.destination();
    chain::apply([table.tensor()], Embedding { indices, shape, c, destination })
}

fn checked_indices(indices: &Tensor, rows: usize) -> Result<Vec<usize>> {
    let flat = indices.flatten_all()?;
    let written: Vec<i64> = if flat.dtype() == DType::I64 {
        flat.to_vec1()?
    } else {
        flat.to_vec1::<u32>()?.into_iter().map(i64::from).collect()
    };
    let index = |written: i64| match usize::try_from(written) {
        Ok(index) if index < rows => Ok(index),
        _ => bail!("index {written} for a table of {rows} rows"),
    };
    written.into_iter().map(index).collect()
}

/// A row of `c` values for each index, which `write` is given.
fn gathered(indices: &[usize], c: usize, write: impl Fn(usize, &mut [f32]) + Sync) -> Vec<f32> {
    build_rows(indices.len() * c, c, |start, y| {
        for (y, &index) in y.chunks_exact_mut(c).zip(&indices[start / c..]) {
            write(index, y);
        }
    })
}

pub(super) struct Embedding {
    pub(super) indices: Vec<usize>,
    /// Shape of the output.
    pub(super) shape: Vec<usize>,
    pub(super) c: usize,
    pub(super) destination: Destination,
}

impl Embedding {
    /// Starts, and positions at which the rows of the table are used, in ascending order: those of row r
    /// are number `starts[r]..starts[r + 1]`.
    pub(super) fn uses(&self, rows: usize) -> (Vec<usize>, Vec<usize>) {
        let mut starts = vec![0; rows + 1];
        for &index in &self.indices {
            starts[index + 1] += 1;
        }
        for row in 0..rows {
            starts[row + 1] += starts[row];
        }
        let mut next = starts.clone();
        let mut positions = vec![0; self.indices.len()];
        for (position, &index) in self.indices.iter().enumerate() {
            positions[next[index]] = position;
            next[index] += 1;
        }
        (starts, positions)
    }

    fn gradient(&self, dy: &[f32], rows: usize) -> Vec<f32> {
        let (starts, positions) = self.uses(rows);
        let mut gradient = zeros(rows * self.c);
        let blocks = gradient.par_chunks_mut(ROWS * self.c).enumerate();
        blocks.for_each(|(block, gradient)| {
            for (row, gradient) in gradient.chunks_exact_mut(self.c).enumerate() {
                let row = block * ROWS + row;
                for &position in &positions[starts[row]..starts[row + 1]] {
                    let dy = &dy[position * self.c..][..self.c];
                    gradient.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += dy);
                }
            }
        });
        gradient
    }
}

impl Operation for Embedding {
    type Operands<T> = [T; 1];

    const NAME: &'static str = "embedding";

    fn forward(&self, [table]: [Input<'_>; 1]) -> Result<(Vec<f32>, Shape)> {
        let c = self.c;
        let y = gathered(&self.indices, c, |index, y| {
            y.copy_from_slice(&table.values[index * c..][..c]);
        });
        Ok((y, Shape::from(self.shape.clone())))
    }

    fn backward(&self, [table]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let (rows, _) = table.dims2()?;
        let gradient = read([&dy], |[dy]| Ok(self.gradient(dy, rows)))?;
        Ok([self.destination.send(gradient, table)?])
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};
    use proptest::prelude::*;

    use super::super::stored::StoredType;
    use super::super::testing::{check_weights, on_threads, stored, values};
    use super::*;

    fn indices(values: &[u32]) -> Tensor {
        Tensor::new(values, &Device::Cpu).unwrap()
    }

    fn slow(table: &[f64], c: usize, indices: &[u32]) -> Vec<f64> {
        indices.iter().flat_map(|&i| table[i as usize * c..][..c].to_vec()).collect()
    }

    #[test]
    fn outputs_and_gradients_equal_the_slow_ones() {
        for (rows, c, used) in
            [(1, 1, vec![0]), (5, 3, vec![4, 0, 4, 4, 2]), (130, 2, vec![129, 1])]
        {
            check_weights(
                &[&[rows, c]],
                |t| embedding(&indices(&used), &t[0]),
                |v| slow(&v[0], c, &used),
                1e-6,
            );
        }
    }

    #[test]
    fn the_shape_of_the_indices_is_kept_and_what_is_no_row_is_named() -> Result<()> {
        let table = Weight::from(&tensor((0..6).map(|i| i as f32).collect(), (3, 2))?);
        let at = Tensor::new(&[[2i64, 0], [1, 1]], &Device::Cpu)?;
        let y = embedding(&at, &table)?;
        assert_eq!(y.dims(), [2, 2, 2]);
        assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [4.0, 5.0, 0.0, 1.0, 2.0, 3.0, 2.0, 3.0]);
        let error = |at: &[i64]| embedding(&Tensor::new(at, &Device::Cpu)?, &table);
        assert!(error(&[3]).unwrap_err().to_string().contains("index 3 for a table of 3 rows"));
        assert!(error(&[-1]).unwrap_err().to_string().contains("index -1"));
        assert_eq!(embedding(&indices(&[]), &table)?.dims(), [0, 2]);
        Ok(())
    }

    #[test]
    fn rows_of_a_stored_table_are_those_of_the_table_in_f32() {
        for dtype in [StoredType::F32, StoredType::Bf16, StoredType::F16] {
            let stored = stored("table", dtype, &[30, 7]);
            let at = indices(&[29, 0, 4, 4]);
            let [y, wide] = [Weight::stored(stored.clone()), (&stored.widened().unwrap()).into()]
                .map(|table| embedding(&at, &table).unwrap());
            let [y, wide] = [y, wide].map(|y| y.to_vec2::<f32>().unwrap());
            assert_eq!(y, wide);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn gradients_have_the_same_bits_on_any_number_of_threads(
            rows in 1usize..300, c in 1usize..40, n in 1usize..500
        ) {
            let mut stream = crate::rng::Key::new(n as u64, crate::rng::Purpose::Generate, 0, 0).stream();
            let used: Vec<u32> = (0..n).map(|_| stream.below(rows as u64) as u32).collect();
            let table = Var::from_vec(values("table", 0, rows * c), (rows, c), &Device::Cpu).unwrap();
            let run = |threads| {
                on_threads(threads, || {
                    let y = embedding(&indices(&used), &Weight::from(table.as_tensor())).unwrap();
                    let grads = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
                    grads.get(&table).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
                })
            };
            let gradient = run(1);
            prop_assert!(gradient == run(2) && gradient == run(3));
            let times = |row: usize| used.iter().filter(|&&used| used as usize == row).count();
            let table = values("table", 0, rows * c);
            let error = (0..rows * c)
                .map(|i| {
                    let exact = 2.0 * times(i / c) as f64 * f64::from(table[i]);
                    (f64::from(gradient[i]) - exact).abs() / (1.0 + exact.abs())
                })
                .fold(0.0, f64::max);
            println!("embedding of ({rows}, {c}): relative error of the gradient {error:.1e}");
            prop_assert!(error < 1e-5);
        }
    }
}
