//! Losses of regression: mean squared error and mean absolute error.

use candle_core::{Result, Shape, Tensor, bail};

use super::chain;
#[cfg(feature = "cuda")]
use super::cuda;
use super::fourier::both_signs;
use super::operation::{Gradients, Input, Operation};
use super::storage::{read, tensor};

/// Mean over all elements of (prediction - target)^2, as `torch.nn.MSELoss`; equal shapes, f32 ->
/// scalar.
pub fn mse(prediction: &Tensor, target: &Tensor) -> Result<Tensor> {
    apply(prediction, target, Kind::Squared)
}

/// Mean over all elements of |prediction - target|, as `torch.nn.L1Loss`; the gradient at 0 is 0.
pub fn mae(prediction: &Tensor, target: &Tensor) -> Result<Tensor> {
    apply(prediction, target, Kind::Absolute)
}

/// Each sample's mean squared error over its targets, without a graph: (n, targets) -> n numbers.
pub fn score_mse(prediction: &Tensor, target: &Tensor) -> Result<Vec<f64>> {
    score(prediction, target, Kind::Squared)
}

/// Each sample's mean absolute error over its targets, without a graph.
pub fn score_mae(prediction: &Tensor, target: &Tensor) -> Result<Vec<f64>> {
    score(prediction, target, Kind::Absolute)
}

#[derive(Clone, Copy)]
pub(super) enum Kind {
    Squared,
    Absolute,
}

impl Kind {
    fn loss(self, difference: f64) -> f64 {
        match self {
            Self::Squared => difference * difference,
            Self::Absolute => difference.abs(),
        }
    }

    fn slope(self, difference: f32) -> f32 {
        match self {
            Self::Squared => 2.0 * difference,
            Self::Absolute if difference == 0.0 => 0.0,
            // Keeps NaN, unlike a comparison.
            Self::Absolute => difference.signum(),
        }
    }
}

fn apply(prediction: &Tensor, target: &Tensor, kind: Kind) -> Result<Tensor> {
    check(prediction, target)?;
    chain::apply([prediction, target], Regression(kind))
}

fn score(prediction: &Tensor, target: &Tensor, kind: Kind) -> Result<Vec<f64>> {
    check(prediction, target)?;
    let per_sample = prediction.elem_count() / prediction.dims().first().copied().unwrap_or(1);
    #[cfg(feature = "cuda")]
    if prediction.device().is_cuda() {
        let prediction = prediction.contiguous()?;
        let target = target.contiguous()?;
        let differences = cuda::Differences::of([&prediction, &target], kind.is_absolute())?;
        let sums = differences.scores(&cuda::Gpu::of_tensor(&prediction)?, per_sample)?;
        return Ok(sums.into_iter().map(|sum| sum / per_sample as f64).collect());
    }
    read([prediction, target], |[p, t]| {
        let sample = |(p, t): (&[f32], &[f32])| sum(p, t, kind) / per_sample as f64;
        Ok(p.chunks_exact(per_sample).zip(t.chunks_exact(per_sample)).map(sample).collect())
    })
}

fn check(prediction: &Tensor, target: &Tensor) -> Result<()> {
    if prediction.dims() != target.dims() || prediction.elem_count() == 0 {
        bail!("predictions {:?} for targets {:?}", prediction.dims(), target.dims());
    }
    Ok(())
}

fn sum(p: &[f32], t: &[f32], kind: Kind) -> f64 {
    p.iter().zip(t).map(|(&p, &t)| kind.loss(f64::from(p) - f64::from(t))).sum()
}

pub(super) struct Regression(pub(super) Kind);

impl Operation for Regression {
    type Operands<T> = [T; 2];

    const NAME: &'static str = "regression-loss";

    fn forward(&self, [p, t]: [Input<'_>; 2]) -> Result<(Vec<f32>, Shape)> {
        let mean = sum(p.values, t.values, self.0) / p.values.len() as f64;
        Ok((vec![mean as f32], ().into()))
    }

    fn backward(
        &self,
        [prediction, target]: [&Tensor; 2],
        _: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        let scale = dy.to_scalar::<f32>()? / prediction.elem_count() as f32;
        let slopes = read([prediction, target], |[p, t]| {
            let slopes = p.iter().zip(t).map(|(p, t)| scale * self.0.slope(p - t)).collect();
            tensor(slopes, prediction.shape())
        })?;
        both_signs(slopes, target)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::check_gradients;
    use super::*;

    #[test]
    fn outputs_and_gradients_equal_the_slow_ones() {
        let shapes: [&[usize]; 2] = [&[5, 3], &[5, 3]];
        let mean = |v: &[Vec<f64>], f: fn(f64) -> f64| {
            vec![v[0].iter().zip(&v[1]).map(|(p, t)| f(p - t)).sum::<f64>() / 15.0]
        };
        check_gradients(&shapes, |t| mse(&t[0], &t[1]), |v| mean(v, |d| d * d), 1e-6);
        check_gradients(&shapes, |t| mae(&t[0], &t[1]), |v| mean(v, f64::abs), 1e-6);
    }

    #[test]
    fn a_number_that_is_none_stays_one() -> Result<()> {
        let t = tensor(vec![0.0], 1)?;
        for loss in [mse, mae] {
            let p = candle_core::Var::from_tensor(&tensor(vec![f32::NAN], 1)?)?;
            let loss = loss(p.as_tensor(), &t)?;
            let gradient = loss.backward()?;
            assert!(loss.to_scalar::<f32>()?.is_nan());
            assert!(gradient.get(&p).unwrap().to_vec1::<f32>()?[0].is_nan());
        }
        Ok(())
    }

    #[test]
    fn scores_are_per_sample_and_shapes_must_agree() -> Result<()> {
        let p = tensor(vec![1.0, 2.0, 3.0, 5.0], (2, 2))?;
        let t = tensor(vec![1.0, 0.0, 3.0, 4.0], (2, 2))?;
        assert_eq!(score_mse(&p, &t)?, [2.0, 0.5]);
        assert_eq!(score_mae(&p, &t)?, [1.0, 0.5]);
        assert!(mse(&p, &t.flatten_all()?).is_err());
        Ok(())
    }
}
