//! Gradient clipping by the norm of all and by value, and the noise of `train.gradient_noise`: what
//! is done to gradients between the check and the update. The arithmetic is in `optim::clip`.

use rayon::prelude::*;

use crate::engine::Engine;
use crate::engine::update::MeanGradient;
use crate::optim::{Preparation, clip_coefficient};
use crate::rng::{Key, Purpose, name_hash};

impl Engine {
    /// What [`Engine::update`] does with each gradient before it is used: by its mean, by the norm
    /// of all, by value.
    pub(super) fn clip(&self, gradient: &MeanGradient) -> Preparation {
        let plan = &self.plan.clip;
        let clip = plan.norm.map_or(1.0, |limit| clip_coefficient(gradient.norm.norm(), limit));
        let limit = plan.value.map_or(f32::INFINITY, |limit| limit as f32);
        Preparation { mean: gradient.factor, clip: clip as f32, limit }
    }

    /// Prepares the gradients and adds the noise of `train.gradient_noise`, if there is any;
    /// returns the preparation that the update still has to do.
    pub(super) fn add_noise(&self, preparation: Preparation) -> candle_core::Result<Preparation> {
        let Some(first) = self.plan.clip.noise else { return Ok(preparation) };
        let deviation = (first / (1.0 + self.state.step as f64).powf(0.55)).sqrt();
        self.reducer.change_gradients(&mut |index, gradient| {
            let name = name_hash(self.params.parameters()[index].name());
            let key = Key::new(self.plan.seed, Purpose::GradientNoise, self.state.step, name);
            gradient.par_iter_mut().enumerate().for_each(|(element, value)| {
                let noise = deviation * key.normal(2 * element as u64);
                *value = preparation.of(*value) + noise as f32;
            });
        })?;
        Ok(Preparation::default())
    }
}
