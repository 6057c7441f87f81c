//! PyTorch's `GradScaler`: fp16 gradients are kept in range by scaling the loss.

use serde::{Deserialize, Serialize};

use crate::engine::{Engine, Error};
use crate::plan::ScalerPlan;

/// Loss scale below which fp16 is given up.
const SCALE_FLOOR: f64 = 1.0 / (1 << 20) as f64;

/// State of the scaler: equal on all ranks, because it moves on reduced gradients only.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scaler {
    /// Factor on the loss.
    pub scale: f64,
    /// Good steps since the scale last moved.
    pub good_steps: u64,
}

impl Scaler {
    /// The scaler of a new run.
    pub fn new(plan: &ScalerPlan) -> Self {
        Self { scale: plan.init, good_steps: 0 }
    }

    /// Moves the scale after a step whose gradients were `finite` or not
    /// (`aten/src/ATen/native/cuda/AmpKernels.cu`, `amp_update_scale`).
    pub fn update(&mut self, plan: &ScalerPlan, finite: bool) {
        if !finite {
            self.scale *= plan.backoff_factor;
            self.good_steps = 0;
            return;
        }
        self.good_steps += 1;
        if self.good_steps == plan.growth_interval {
            let grown = self.scale * plan.growth_factor;
            // The scale is an f32 in PyTorch, and grows only as long as it stays finite.
            self.scale = if (grown as f32).is_finite() { grown } else { self.scale };
            self.good_steps = 0;
        }
    }
}

impl Engine {
    /// Moves the loss scale, if there is one, after a step whose gradients were `finite` or not.
    pub(super) fn move_loss_scale(&mut self, step: u64, finite: bool) -> Result<(), Error> {
        if let (Some(scaler), Some(plan)) = (&mut self.state.scaler, &self.plan.scaler) {
            scaler.update(plan, finite);
            if scaler.scale < SCALE_FLOOR {
                return Err(Error::ScaleUnderflow { step, floor: SCALE_FLOOR });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_moves_as_pytorchs() {
        let plan = ScalerPlan {
            init: 65536.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 3,
        };
        let mut scaler = Scaler::new(&plan);
        let scales: Vec<f64> = (0..12)
            .map(|step| {
                scaler.update(&plan, ![4, 5, 9, 10].contains(&step));
                scaler.scale
            })
            .collect();
        let recorded = [
            65536.0, 65536.0, 131_072.0, 131_072.0, 65536.0, 32768.0, 32768.0, 32768.0, 65536.0,
            32768.0, 16384.0, 16384.0,
        ];
        assert_eq!(scales, recorded);
    }
}
