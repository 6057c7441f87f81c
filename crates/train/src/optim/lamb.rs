//! `optimizer.name = "lamb"`

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::optim::adam::{STATE, decays};
use crate::optim::block::lerp;
use crate::optim::{Block, Optimizer, Step, shared_sum_of_squares};

/// LAMB (You et al. 2020) for large batches, as timm's `Lamb`: Adam with steps scaled to the norm
/// of each tensor. timm also clips gradients; set `train.clip_grad_norm` to 1.0 for that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Lamb {
    /// fraction of a weight that is added to its update; tensors without weight decay are updated
    /// as by Adam.
    #[schemars(range(min = 0.0))]
    pub weight_decay: f64,
    /// exponential decay rates of the first and second moments.
    #[schemars(schema_with = "decays::<2>")]
    pub betas: [f64; 2],
    /// added to the denominator for stability.
    #[schemars(range(min = 0.0))]
    pub eps: f64,
    /// never make a step longer than Adam's (LAMBC).
    pub trust_clip: bool,
    /// also scale the steps of tensors without weight decay.
    pub always_adapt: bool,
}

impl Default for Lamb {
    fn default() -> Self {
        let trust_clip = false;
        let always_adapt = false;
        Self { weight_decay: 0.01, betas: [0.9, 0.999], eps: 1e-6, trust_clip, always_adapt }
    }
}

impl Kind for Lamb {
    const NAME: &'static str = "lamb";
}

impl Optimizer for Lamb {
    fn state(&self) -> Vec<&'static str> {
        STATE.to_vec()
    }

    fn weight_decay(&self) -> f64 {
        self.weight_decay
    }

    fn momentum(&self) -> Option<&'static str> {
        Some("beta1")
    }

    fn takes_whole_tensors(&self) -> bool {
        true
    }

    fn update(&self, tensor: &mut Block<'_>, step: &Step) {
        let update = self.direction(tensor, step);
        let ratio = if step.weight_decay != 0.0 || self.always_adapt {
            self.trust(shared_sum_of_squares(tensor.values), shared_sum_of_squares(&update))
        } else {
            1.0
        };
        let lr = (step.lr * ratio) as f32;
        for (value, update) in tensor.values.iter_mut().zip(update) {
            *value -= lr * update;
        }
    }
}

impl Lamb {
    /// Adam's update plus the weight decay.
    fn direction(&self, tensor: &mut Block<'_>, step: &Step) -> Vec<f32> {
        let [beta1, beta2] = [step.momentum.unwrap_or(self.betas[0]), self.betas[1]];
        let count = i32::try_from(step.count).unwrap_or(i32::MAX);
        let correction = |beta: f64| 1.0 - beta.powi(count);
        let first = correction(beta1) as f32;
        let root = correction(beta2).sqrt() as f32;
        let rest1 = (1.0 - beta1) as f32;
        let rest2 = (1.0 - beta2) as f32;
        let beta2 = beta2 as f32;
        let eps = self.eps as f32;
        let decay = step.weight_decay as f32;
        let gradient = tensor.prepared_gradient();
        let [exp_avg, exp_avg_sq] = &mut tensor.state[..] else { return vec![0.0; gradient.len()] };
        let state = exp_avg.par_iter_mut().zip(&mut **exp_avg_sq);
        let elements = tensor.values.par_iter().zip(gradient).zip(state);
        let element = |((&value, g), (m, v)): ((&f32, f32), (&mut f32, &mut f32))| {
            *m = lerp(*m, g, rest1);
            *v = beta2 * *v + rest2 * (g * g);
            (*m / first) / (v.sqrt() / root + eps) + decay * value
        };
        elements.map(element).collect()
    }

    /// Trust ratio: the norm of the tensor over that of its update, from the sums of squares.
    fn trust(&self, weights: f64, update: f64) -> f64 {
        let ratio = if weights > 0.0 && update > 0.0 { (weights / update).sqrt() } else { 1.0 };
        if self.trust_clip { ratio.min(1.0) } else { ratio }
    }
}
