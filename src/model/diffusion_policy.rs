//! Diffusion policy (Chi et al., RSS 2023, <https://arxiv.org/abs/2303.04137>;
//! github.com/real-stanford/diffusion_policy and, with the same network,
//! github.com/droid-dataset/droid_policy_learning) on low-dimensional observations: from the last
//! observations, an action chunk is sampled by denoising Gaussian noise.
//!
//! Keys: `mid_modules.{0,1}`, `diffusion_step_encoder.{1,3}`, `up_modules.{l}.{0,1,2}`,
//! `down_modules.{l}.{0,1,2}`, `final_conv.{0,1}` (see `unet1d.rs`), registered in this order.

use candle_core::{Device, Result, Tensor, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::diffusion::{Diffusion, NoiseScheduler, normals};
use super::unet1d::{Sizes, UNet1d};
use super::{Architecture, Comparison, Model};
use crate::config::kind::Kind;
use crate::nn::{Builder, ForwardContext, Linear, Nonlinearity};
use crate::plan::{Modality, ModelPlan};
use crate::rng::{Key, Purpose};

/// Parts of a sample's key: its step and noise in training, its first noise and the noise after a
/// step in sampling.
const STEP: u64 = 0;
const NOISE: u64 = 1;
const FIRST: u64 = 2;
const AFTER: u64 = 3;

/// Diffusion policy: from the last observations, an action chunk is sampled by denoising Gaussian
/// noise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DiffusionPolicyConfig {
    /// U-Net channels per level; each level halves the length of the action chunk.
    #[schemars(inner(range(min = 1, max = 65536)))]
    pub down_dims: Vec<usize>,
    /// timestep embedding size.
    #[schemars(range(min = 4, max = 65536))]
    pub diffusion_step_embed_dim: usize,
    /// kernel size of convolutions (odd).
    #[schemars(range(min = 1, max = 1024))]
    pub kernel_size: usize,
    /// number of groups of each GroupNorm.
    #[schemars(range(min = 1, max = 65536))]
    pub n_groups: usize,
    /// training diffusion timesteps, on the squared cosine schedule.
    #[schemars(range(min = 2, max = 100_000))]
    pub num_train_timesteps: usize,
    /// inference denoising steps. Default: 10 for ddim, all for ddpm.
    #[schemars(range(min = 1, max = 100_000), example = 10)]
    pub num_inference_steps: Option<usize>,
    /// "ddim" (few steps) or "ddpm" (stochastic).
    pub noise_scheduler: NoiseScheduler,
}

impl Default for DiffusionPolicyConfig {
    /// The authors' sizes for Push-T, sampled by DDIM.
    fn default() -> Self {
        Self {
            down_dims: vec![256, 512, 1024],
            diffusion_step_embed_dim: 256,
            kernel_size: 5,
            n_groups: 8,
            num_train_timesteps: 100,
            num_inference_steps: None,
            noise_scheduler: NoiseScheduler::Ddim,
        }
    }
}

impl Kind for DiffusionPolicyConfig {
    const NAME: &'static str = "diffusion_policy";
}

impl DiffusionPolicyConfig {
    /// Steps back. DDPM takes every step unless fewer are asked for.
    fn inference_steps(&self) -> usize {
        let usual = match self.noise_scheduler {
            NoiseScheduler::Ddim => self.num_train_timesteps.min(10),
            NoiseScheduler::Ddpm => self.num_train_timesteps,
        };
        self.num_inference_steps.unwrap_or(usual)
    }

    fn sizes(&self) -> Sizes<'_> {
        let Self { kernel_size, n_groups, ref down_dims, .. } = *self;
        Sizes { kernel_size, n_groups, down_dims }
    }
}

impl Architecture for DiffusionPolicyConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        Ok(Box::new(DiffusionPolicy::new(self, plan, builder)?))
    }

    fn takes(&self) -> &'static [Modality] {
        &[Modality::Behaviour]
    }

    fn draws_on_cpu(&self) -> bool {
        true
    }
}

/// The policy: a network that tells noise from actions, and how it is asked.
pub struct DiffusionPolicy {
    config: DiffusionPolicyConfig,
    /// Actions of a chunk, numbers of an action.
    chunk: [usize; 2],
    diffusion: Diffusion,
    step_encoder: [Linear; 2],
    net: UNet1d,
}

impl DiffusionPolicy {
    /// Registers its parameters. `plan.input` is (observations, numbers), `plan.target` (actions,
    /// numbers).
    ///
    /// # Errors
    ///
    /// Sizes that do not fit each other.
    pub fn new(
        config: &DiffusionPolicyConfig,
        plan: &ModelPlan,
        builder: &Builder,
    ) -> Result<Self> {
        let (&[seen, numbers], &[length, actions]) = (&plan.input[..], &plan.target[..]) else {
            bail!(
                "it predicts chunks of actions: use `data.name = \"trajectories\"` or \"push_t_like\""
            )
        };
        let halvings = config.down_dims.len().saturating_sub(1) as u32;
        if !length.is_multiple_of(2usize.pow(halvings)) {
            bail!("`horizon` = {length} cannot be halved {halvings} times, as `down_dims` asks");
        }
        let width = config.diffusion_step_embed_dim;
        if width < 4 || !width.is_multiple_of(2) {
            bail!("`diffusion_step_embed_dim` must be even and at least 4, not {width}");
        }
        if !(1..=config.num_train_timesteps).contains(&config.inference_steps()) {
            bail!("`num_inference_steps` must be from 1 to `num_train_timesteps`");
        }
        let condition = width + seen * numbers;
        let encoder = builder.pp("diffusion_step_encoder");
        let (net, step_encoder) = UNet1d::new(builder, actions, condition, config.sizes(), || {
            Ok([
                Linear::new(&encoder.pp(1), width, 4 * width)?,
                Linear::new(&encoder.pp(3), 4 * width, width)?,
            ])
        })?;
        let diffusion = Diffusion::squared_cosine(config.num_train_timesteps);
        Ok(Self { chunk: [length, actions], diffusion, step_encoder, net, config: config.clone() })
    }

    /// What is noise in actions (n, length, numbers) that are `steps` (n) deep in noise, for
    /// observations (n, ...).
    ///
    /// # Errors
    ///
    /// A shape that does not fit.
    pub fn predict(
        &self,
        noisy: &Tensor,
        steps: &[usize],
        observed: &Tensor,
        pass: &ForwardContext,
    ) -> Result<Tensor> {
        let [first, second] = &self.step_encoder;
        let waves = waves(steps, self.config.diffusion_step_embed_dim)?;
        let hidden = Nonlinearity::Mish.forward(&first.forward(&waves, pass)?)?;
        let condition =
            Tensor::cat(&[&second.forward(&hidden, pass)?, &observed.flatten_from(1)?], 1)?;
        self.net.forward(noisy, &condition, pass)
    }

    /// The noise schedule.
    pub fn diffusion(&self) -> &Diffusion {
        &self.diffusion
    }

    /// Takes the noise off `first`, a chunk for each of the observations (n, ...): actions (n,
    /// length, numbers). `draw` gives the normal numbers that DDPM adds after a step.
    ///
    /// # Errors
    ///
    /// A shape that does not fit.
    pub fn denoise(
        &self,
        observed: &Tensor,
        first: Vec<f32>,
        draw: impl FnMut(usize) -> Vec<f32>,
        pass: &ForwardContext,
    ) -> Result<Tensor> {
        let n = observed.dim(0)?;
        let shape = (n, self.chunk[0], self.chunk[1]);
        let predict = |x: &[f32], step| {
            let x = Tensor::from_slice(x, shape, &Device::Cpu)?;
            self.predict(&x, &vec![step; n], observed, pass)?.flatten_all()?.to_vec1()
        };
        let (scheduler, steps) = (self.config.noise_scheduler, self.config.inference_steps());
        let actions = self.diffusion.denoise(scheduler, steps, first, predict, draw)?;
        Tensor::from_vec(actions, shape, &Device::Cpu)
    }

    /// A chunk of numbers for each key.
    fn drawn(&self, draws: &[Key], part: u64) -> Vec<f32> {
        let n = self.chunk.iter().product();
        draws.iter().flat_map(|key| normals(key.with(part), n)).collect()
    }
}

impl Model for DiffusionPolicy {
    /// Observations (n, seen, numbers) -> actions (n, length, numbers), with draws of its own.
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let key = |i| Key::new(0, Purpose::Sample, 0, i as u64);
        let draws: Vec<Key> = (0..input.dim(0)?).map(key).collect();
        self.denoise(
            input,
            self.drawn(&draws, FIRST),
            |step| self.drawn(&draws, AFTER + step as u64),
            pass,
        )
    }

    /// Predicted and true noise, at a step and with noise drawn for each sample.
    fn compare(
        &self,
        inputs: &Tensor,
        targets: &Tensor,
        draws: &[Key],
        pass: &ForwardContext,
    ) -> Result<Comparison> {
        let clean: Vec<f32> = targets.flatten_all()?.to_vec1()?;
        let noise = self.drawn(draws, NOISE);
        let most = self.diffusion.betas().len() as u64;
        let steps: Vec<usize> =
            draws.iter().map(|key| key.with(STEP).stream().below(most) as usize).collect();
        let n = self.chunk.iter().product::<usize>();
        let chunks = clean.chunks_exact(n).zip(noise.chunks_exact(n)).zip(&steps);
        let noisy: Vec<f32> = chunks
            .flat_map(|((clean, noise), &step)| self.diffusion.noised(clean, noise, step))
            .collect();
        let noisy = Tensor::from_vec(noisy, targets.dims(), &Device::Cpu)?;
        Ok(Comparison {
            outputs: self.predict(&noisy, &steps, inputs, pass)?,
            targets: Tensor::from_vec(noise, targets.dims(), &Device::Cpu)?,
        })
    }

    fn answer(
        &self,
        inputs: &Tensor,
        draws: &[Key],
        pass: &ForwardContext,
    ) -> Result<Option<Tensor>> {
        let after = |step| self.drawn(draws, AFTER + step as u64);
        self.denoise(inputs, self.drawn(draws, FIRST), after, pass).map(Some)
    }

    fn samples(&self) -> bool {
        true
    }
}

/// Sines, then cosines, of each step at `width` / 2 rates.
fn waves(steps: &[usize], width: usize) -> Result<Tensor> {
    let half = width / 2;
    let rate = |j: usize| (-(j as f64) * 10_000f64.ln() / (half - 1) as f64).exp();
    let wave = |step: usize| {
        let angle = move |j: usize| step as f64 * rate(j);
        let sines = (0..half).map(move |j| angle(j).sin() as f32);
        sines.chain((0..half).map(move |j| angle(j).cos() as f32))
    };
    let values: Vec<f32> = steps.iter().flat_map(|&step| wave(step)).collect();
    Tensor::from_vec(values, (steps.len(), width), &Device::Cpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_encoded_as_in_the_original() {
        let found = waves(&[50], 64).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let expected = [-0.262_374_9, -0.523_465_7, 0.624_554_6, 0.996_365_6, 0.455_573_25];
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found}");
        }
        assert!((found.iter().map(|v| v * v).sum::<f32>() / 64.0 - 0.5).abs() < 1e-5);
    }
}
