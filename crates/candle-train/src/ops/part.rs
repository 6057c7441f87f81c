//! A part of a tensor along one dimension.

use candle_core::{Result, Shape, Tensor, bail};

use super::chain;
use super::operation::{Gradients, Input, Operation};
use super::simd::build_rows;
use super::storage::{read, tensor};

/// `count` places of x along `dim`, from `first` on, contiguous, f32:
/// `x.narrow(dim, first, count).contiguous()`, on all threads.
pub fn narrow(x: &Tensor, dim: usize, first: usize, count: usize) -> Result<Tensor> {
    let mut dims = x.dims().to_vec();
    let &[len, ref inner @ ..] = &dims[dim.min(dims.len())..] else {
        bail!("dimension {dim} of {dims:?}")
    };
    if count == 0 || first + count > len {
        bail!("places {first}..{} along dimension {dim} of {dims:?}", first + count);
    }
    if count == len {
        return Ok(x.clone());
    }
    let inner: usize = inner.iter().product();
    dims[dim] = count;
    let [first, count, len] = [first, count, len].map(|places| places * inner);
    chain::apply([x], Part { first, count, len, shape: dims.into() })
}

/// [`narrow`] within each group of `group` places of the last dimension: x (..., groups group) ->
/// (..., groups count).
pub fn narrow_groups(x: &Tensor, group: usize, first: usize, count: usize) -> Result<Tensor> {
    let mut dims = x.dims().to_vec();
    let Some(last) = dims.last_mut().filter(|last| group > 0 && last.is_multiple_of(group)) else {
        bail!("groups of {group} places of {:?}", x.dims())
    };
    if count == 0 || first + count > group {
        bail!("places {first}..{} of groups of {group}", first + count);
    }
    *last = *last / group * count;
    chain::apply([x], Part { first, count, len: group, shape: dims.into() })
}

/// Takes `count` values of each row of `len`, from `first` on.
pub(super) struct Part {
    first: usize,
    count: usize,
    len: usize,
    /// Shape of the result.
    shape: Shape,
}

impl Part {
    /// As Candle's operation.
    #[cfg(feature = "cuda")]
    pub(super) fn composed(&self, x: &Tensor) -> Result<Tensor> {
        let rows = x.detach().reshape(((), self.len))?;
        rows.narrow(1, self.first, self.count)?.contiguous()?.reshape(&self.shape)
    }

    /// The gradient of [`Part::composed`].
    #[cfg(feature = "cuda")]
    pub(super) fn composed_gradient(&self, x: &Tensor, dy: &Tensor) -> Result<Tensor> {
        let rows = dy.detach().reshape(((), self.count))?;
        let after = self.len - self.first - self.count;
        rows.pad_with_zeros(1, self.first, after)?.reshape(x.shape())
    }
}

impl Operation for Part {
    type Operands<T> = [T; 1];

    const NAME: &'static str = "part";

    fn forward(&self, [x]: [Input<'_>; 1]) -> Result<(Vec<f32>, Shape)> {
        let Self { first, count, len, .. } = *self;
        let y = build_rows(self.shape.elem_count(), count, |start, rows| {
            let from = x.values[start / count * len..].chunks_exact(len);
            for (row, from) in rows.chunks_exact_mut(count).zip(from) {
                row.copy_from_slice(&from[first..][..count]);
            }
        });
        Ok((y, self.shape.clone()))
    }

    fn backward(&self, [x]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let Self { first, count, len, .. } = *self;
        let dx = read([&dy], |[dy]| {
            Ok(build_rows(x.elem_count(), len, |start, rows| {
                let from = dy[start / len * count..].chunks_exact(count);
                for (row, from) in rows.chunks_exact_mut(len).zip(from) {
                    row[first..][..count].copy_from_slice(from);
                }
            }))
        })?;
        Ok([Some(tensor(dx, x.shape())?)])
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Var;
    use test_support::assert_refused;

    use super::super::testing::values;
    use super::*;

    #[test]
    fn a_part_and_its_gradient_are_those_of_candles_narrow() -> Result<()> {
        let flat = |t: &Tensor| t.flatten_all()?.to_vec1::<f32>();
        for dims in [&[7][..], &[2, 5], &[2, 5, 3], &[3, 2, 5, 4]] {
            let x = Var::from_tensor(&tensor(values("x", 0, dims.iter().product()), dims)?)?;
            for (dim, &places) in dims.iter().enumerate() {
                for (first, count) in [(0, 1), (1, places - 1), (0, places)] {
                    let theirs = x.narrow(dim, first, count)?.contiguous()?;
                    let ours = narrow(&x, dim, first, count)?;
                    assert_eq!((ours.dims(), flat(&ours)?), (theirs.dims(), flat(&theirs)?));
                    let weight = tensor(values("dy", 0, ours.elem_count()), ours.dims())?;
                    let [ours, theirs] = [ours, theirs].map(|y| -> Result<Vec<f32>> {
                        let gradients = (y * &weight)?.sum_all()?.backward()?;
                        gradients.get(&x).map_or(Ok(vec![]), &flat)
                    });
                    assert_eq!(ours?, theirs?);
                }
            }
            let places = dims[0];
            assert_refused(narrow(&x, 0, 1, places), "along dimension 0 of");
            assert_refused(narrow(&x, 0, 0, 0), "places 0..0 along dimension 0 of");
            assert_refused(narrow(&x, 9, 0, 1), "dimension 9 of");
        }
        Ok(())
    }

    #[test]
    fn a_part_of_each_group_is_that_of_candles_narrow_of_the_groups() -> Result<()> {
        let flat = |t: &Tensor| t.flatten_all()?.to_vec1::<f32>();
        let x = Var::from_tensor(&tensor(values("x", 0, 60), (2, 3, 10))?)?;
        for (first, count) in [(0, 2), (3, 2), (0, 5)] {
            let theirs = x.reshape((2, 3, 2, 5))?.narrow(3, first, count)?.contiguous()?;
            let theirs = theirs.reshape((2, 3, 2 * count))?;
            let ours = narrow_groups(&x, 5, first, count)?;
            assert_eq!((ours.dims(), flat(&ours)?), (theirs.dims(), flat(&theirs)?));
            let [ours, theirs] = [ours, theirs].map(|y| -> Result<Vec<f32>> {
                let gradients = y.sqr()?.sum_all()?.backward()?;
                gradients.get(&x).map_or(Ok(vec![]), &flat)
            });
            assert_eq!(ours?, theirs?);
        }
        assert_refused(narrow_groups(&x, 4, 0, 1), "groups of 4 places of [2, 3, 10]");
        assert_refused(narrow_groups(&x, 5, 4, 2), "places 4..6 of groups of 5");
        Ok(())
    }
}
