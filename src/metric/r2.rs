//! `val/r2`

use candle_core::{Device, Result, Tensor, bail};

use crate::metric::{Kept, Metric, needs_numbers};
use crate::plan::{Measurable, Mode};

/// Sums that are kept of each target: of its squared errors, of its values, and of their squares.
const SUMS: usize = 3;

/// Share of the variance of the targets that is explained: of each number of a target (each series,
/// over samples and time steps), and their mean, as scikit-learn's `r2_score`.
#[derive(Debug)]
pub struct R2;

impl Metric for R2 {
    fn name(&self) -> &'static str {
        "r2"
    }

    fn mode(&self) -> Mode {
        Mode::Max
    }

    fn why_not(&self, answers: &Measurable) -> Option<String> {
        needs_numbers(answers)
    }

    fn is_usual(&self) -> bool {
        false
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<Kept> {
        if outputs.dims() != targets.dims() || targets.rank() < 2 {
            bail!("predictions {:?} for targets {:?}", outputs.dims(), targets.dims());
        }
        let rows = |tensor: &Tensor| {
            let tensor = tensor.to_device(&Device::Cpu)?;
            tensor.flatten_to(tensor.rank() - 2)?.to_vec2::<f32>()
        };
        let (outputs, targets) = (rows(outputs)?, rows(targets)?);
        let mut sums = vec![0.0; 1 + SUMS * targets.first().map_or(0, Vec::len)];
        sums[0] = targets.len() as f64;
        for (output, target) in outputs.iter().zip(&targets) {
            let (sums, _) = sums[1..].as_chunks_mut::<SUMS>();
            for (sums, (y, t)) in sums.iter_mut().zip(output.iter().zip(target)) {
                let (y, t) = (f64::from(*y), f64::from(*t));
                let more = [(y - t) * (y - t), t, t * t];
                sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
            }
        }
        Ok(Kept::Sums(sums))
    }

    fn value(&self, all: &Kept) -> f64 {
        let Some((n, sums)) = all.sums().split_first() else { return f64::NAN };
        let (targets, _) = sums.as_chunks::<SUMS>();
        let of_target = |&[errors, sum, squares]: &[f64; SUMS]| {
            let spread = squares - sum * sum / n;
            // Rounding leaves a constant target with a tiny spread.
            if spread > squares * 1e-12 { 1.0 - errors / spread } else { f64::from(errors == 0.0) }
        };
        targets.iter().map(of_target).sum::<f64>() / targets.len() as f64
    }
}
