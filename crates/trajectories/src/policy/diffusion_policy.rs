//! Diffusion policy (Chi et al., RSS 2023, <https://arxiv.org/abs/2303.04137>;
//! github.com/real-stanford/diffusion_policy and, with the same network,
//! github.com/droid-dataset/droid_policy_learning) on low-dimensional observations: from the last
//! observations, an action chunk is sampled by denoising Gaussian noise.
//!
//! Keys: `mid_modules.{0,1}`, `diffusion_step_encoder.{1,3}`, `up_modules.{l}.{0,1,2}`,
//! `down_modules.{l}.{0,1,2}`, `final_conv.{0,1}` (see `unet1d.rs`), registered in this order.

use candle_core::{Result, Tensor, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::{Architecture, Comparison, Model};
use crate::nn::{Builder, ForwardContext};
use crate::onnx::{Graph, Value};
use crate::plan::{Modality, ModelPlan};
use crate::policy::denoiser::{Denoiser, DenoiserConfig, shapes};
use crate::policy::diffusion::{Diffusion, NoiseScheduler};
use crate::policy::unet1d::{Names, Sizes};
use crate::rng::Key;

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
    fn denoiser(&self) -> DenoiserConfig<'_> {
        let Self { kernel_size, n_groups, ref down_dims, .. } = *self;
        DenoiserConfig {
            sizes: Sizes { kernel_size, n_groups, down_dims, names: Names::Authors },
            diffusion_step_embed_dim: self.diffusion_step_embed_dim,
            num_train_timesteps: self.num_train_timesteps,
            num_inference_steps: self.num_inference_steps,
            noise_scheduler: self.noise_scheduler,
        }
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

/// A network that predicts noise, and its sampler.
pub struct DiffusionPolicy(Denoiser);

impl DiffusionPolicy {
    /// Registers its parameters. `plan.input` is (observations, numbers), `plan.target` (actions,
    /// numbers).
    pub fn new(
        config: &DiffusionPolicyConfig,
        plan: &ModelPlan,
        builder: &Builder,
    ) -> Result<Self> {
        let ([n_obs, numbers], chunk) = shapes(plan)?;
        if plan.cameras.is_some() {
            bail!("it sees no images: use `diffusion_policy_image`, or omit the cameras");
        }
        Denoiser::new(config.denoiser(), chunk, n_obs * numbers, builder).map(Self)
    }

    /// Predicts the noise in actions (n, length, numbers) at diffusion `steps` (n), for
    /// observations (n, ...).
    pub fn predict_noise(
        &self,
        noisy: &Tensor,
        steps: &[usize],
        observed: &Tensor,
        pass: &ForwardContext,
    ) -> Result<Tensor> {
        self.0.predict_noise(noisy, steps, &observed.flatten_from(1)?, pass)
    }

    /// The noise schedule.
    pub fn diffusion(&self) -> &Diffusion {
        self.0.diffusion()
    }

    /// Denoises `first`, a chunk for each of the observations (n, ...): actions (n, length,
    /// numbers). `draw` gives the normal numbers that DDPM adds after a step.
    pub fn denoise(
        &self,
        observed: &Tensor,
        first: Vec<f32>,
        draw: impl FnMut(usize) -> Vec<f32>,
        pass: &ForwardContext,
    ) -> Result<Tensor> {
        self.0.denoise(&observed.flatten_from(1)?, first, draw, pass)
    }
}

impl Model for DiffusionPolicy {
    /// Observations `(n, n_obs, numbers)` -> actions (n, length, numbers), with draws of its own.
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        self.0.sample_any(&input.flatten_from(1)?, pass)
    }

    /// Predicted and true noise, at a step and with noise drawn for each sample.
    fn compare(
        &self,
        inputs: &Tensor,
        targets: &Tensor,
        draws: &[Key],
        pass: &ForwardContext,
    ) -> Result<Comparison> {
        self.0.compare(&inputs.flatten_from(1)?, targets, draws, pass)
    }

    fn predict(
        &self,
        inputs: &Tensor,
        draws: &[Key],
        pass: &ForwardContext,
    ) -> Result<Option<Tensor>> {
        self.0.sample(&inputs.flatten_from(1)?, draws, pass).map(Some)
    }

    fn samples_in_steps(&self) -> bool {
        true
    }

    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let features = graph.flattened(input, 1);
        self.0.onnx(graph, &features)
    }
}
