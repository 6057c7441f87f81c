//! Lengths of the rows of a weight with its adapter.

use candle_core::{Result, Tensor, bail};
use rayon::prelude::*;

use super::simd::{sum, vectorised};
use super::storage::{read, tensor};
use super::stored::StoredNumbers;
use super::weight::Weight;

/// Rows that one task takes.
const ROWS: usize = 16;

/// The length of each row of W + scale B A, of W (out, in), A (r, in) and B (out, r): (out), detached
/// and in the CPU's memory or that of the GPU of W.
pub fn row_norms(weight: &Weight, a: &Tensor, b: &Tensor, scale: f64) -> Result<Tensor> {
    let (outputs, inputs) = weight.dims2()?;
    let r = a.elem_count() / inputs.max(1);
    if a.dims() != [r, inputs] || b.dims() != [outputs, r] {
        bail!("an adapter {:?} and {:?} of ({outputs}, {inputs})", a.dims(), b.dims());
    }
    if !a.device().is_cpu() {
        let sum = (weight.tensor().detach() + (b.detach().matmul(&a.detach())? * scale)?)?;
        return sum.sqr()?.sum(1)?.sqrt();
    }
    let norms = |numbers: StoredNumbers<'_>| {
        read([a, b], |[a, b]| Ok(of_rows(numbers, [outputs, inputs, r], a, b, scale as f32)))
    };
    let norms = match weight.as_stored() {
        Some(stored) => norms(stored.numbers()),
        None => read([weight.tensor()], |[values]| norms(StoredNumbers::F32(values))),
    };
    tensor(norms?, outputs)
}

fn of_rows(
    weight: StoredNumbers<'_>,
    [outputs, inputs, r]: [usize; 3],
    a: &[f32],
    b: &[f32],
    scale: f32,
) -> Vec<f32> {
    let mut norms = vec![0.0; outputs];
    norms.par_chunks_mut(ROWS).enumerate().for_each(|(block, norms)| {
        let mut row = vec![0.0; inputs];
        for (i, norm) in norms.iter_mut().enumerate() {
            let i = block * ROWS + i;
            weight.widen(i * inputs, &mut row);
            for (a, b) in a.chunks_exact(inputs.max(1)).zip(&b[i * r..][..r]) {
                let factor = scale * b;
                vectorised(
                    #[inline(always)]
                    || {
                        for (value, a) in row.iter_mut().zip(a) {
                            *value += factor * a;
                        }
                    },
                );
            }
            let squares = vectorised(
                #[inline(always)]
                || {
                    sum(
                        &row,
                        #[inline(always)]
                        |x| x * x,
                    )
                },
            );
            *norm = squares.sqrt() as f32;
        }
    });
    norms
}

#[cfg(test)]
mod tests {
    use super::super::stored::StoredType;
    use super::super::testing::{flat, stored, values};
    use super::*;

    #[test]
    fn lengths_are_those_of_the_rows_of_the_sum() -> Result<()> {
        for (outputs, inputs, r) in [(1, 1, 1), (37, 130, 4), (5, 64, 2)] {
            let weight = stored("w", StoredType::Bf16, &[outputs, inputs]);
            let wide = weight.widened()?;
            let a = tensor(values("a", 0, r * inputs), (r, inputs))?;
            let b = tensor(values("b", 0, outputs * r), (outputs, r))?;
            let found = row_norms(&Weight::stored(weight), &a, &b, 0.5)?;
            assert_eq!(flat(&found), flat(&row_norms(&Weight::from(&wide), &a, &b, 0.5)?));
            let slow = (&wide + (b.matmul(&a)? * 0.5)?)?.sqr()?.sum(1)?.sqrt()?;
            for (found, slow) in flat(&found).into_iter().zip(flat(&slow)) {
                assert!((found - slow).abs() < 1e-5 * slow, "{found} instead of {slow}");
            }
        }
        Ok(())
    }
}
