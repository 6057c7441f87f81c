//! Diffusion policy that sees images (Chi et al., RSS 2023, <https://arxiv.org/abs/2303.04137>), as
//! `LeRobot` has it (github.com/huggingface/lerobot, `policies/diffusion`): each image becomes key
//! points, which stand behind the numbers of its observation; all observations together are the
//! condition of the U-Net.
//!
//! Keys are `LeRobot`'s, whose `model.safetensors` load:
//! `diffusion.rgb_encoder.{backbone,pool,out}` (with an encoder for each camera
//! `diffusion.rgb_encoder.{i}`) and `diffusion.unet`. What its configuration calls `crop_shape` is
//! a transform here: `random_crop` in training, `center_crop` in validation.

use candle_core::{Result, Tensor, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::{Architecture, Comparison, Model};
use crate::nn::{Builder, ForwardContext};
use crate::onnx::{Graph, Value};
use crate::plan::{Cameras, Modality, ModelPlan};
use crate::policy::denoiser::{Denoiser, DenoiserConfig, shapes};
use crate::policy::diffusion::{Diffusion, NoiseScheduler};
use crate::policy::rgb_encoder::{RgbEncoder, VisionBackbone};
use crate::policy::unet1d::{Names, Sizes};
use crate::rng::Key;

/// Diffusion policy with camera images, as in LeRobot: a ResNet with group norms finds keypoints in
/// the images of each camera.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DiffusionPolicyImageConfig {
    /// image encoder: "resnet18", "resnet34", "resnet50", or "resnet8" for images of about 32x32.
    pub vision_backbone: VisionBackbone,
    /// keypoints per image; each gives two features.
    #[schemars(range(min = 1, max = 65536))]
    pub spatial_softmax_num_keypoints: usize,
    /// use a separate encoder for each camera instead of a shared one.
    pub use_separate_rgb_encoder_per_camera: bool,
    /// U-Net channels per level; each level halves the length of the action chunk.
    #[schemars(inner(range(min = 1, max = 65536)))]
    pub down_dims: Vec<usize>,
    /// timestep embedding size.
    #[schemars(range(min = 4, max = 65536))]
    pub diffusion_step_embed_dim: usize,
    /// kernel size of the U-Net's convolutions (odd).
    #[schemars(range(min = 1, max = 1024))]
    pub kernel_size: usize,
    /// number of groups of each GroupNorm of the U-Net.
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

impl Default for DiffusionPolicyImageConfig {
    /// `LeRobot`'s sizes, sampled by DDIM.
    fn default() -> Self {
        Self {
            vision_backbone: VisionBackbone::Resnet18,
            spatial_softmax_num_keypoints: 32,
            use_separate_rgb_encoder_per_camera: false,
            down_dims: vec![512, 1024, 2048],
            diffusion_step_embed_dim: 128,
            kernel_size: 5,
            n_groups: 8,
            num_train_timesteps: 100,
            num_inference_steps: None,
            noise_scheduler: NoiseScheduler::Ddim,
        }
    }
}

impl Kind for DiffusionPolicyImageConfig {
    const NAME: &'static str = "diffusion_policy_image";
}

impl DiffusionPolicyImageConfig {
    fn denoiser(&self) -> DenoiserConfig<'_> {
        let Self { kernel_size, n_groups, ref down_dims, .. } = *self;
        DenoiserConfig {
            sizes: Sizes { kernel_size, n_groups, down_dims, names: Names::LeRobot },
            diffusion_step_embed_dim: self.diffusion_step_embed_dim,
            num_train_timesteps: self.num_train_timesteps,
            num_inference_steps: self.num_inference_steps,
            noise_scheduler: self.noise_scheduler,
        }
    }
}

impl Architecture for DiffusionPolicyImageConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        Ok(Box::new(DiffusionPolicyImage::new(self, plan, builder)?))
    }

    fn takes(&self) -> &'static [Modality] {
        &[Modality::Behaviour]
    }

    fn draws_on_cpu(&self) -> bool {
        true
    }
}

/// Image encoders and a network that predicts noise.
pub struct DiffusionPolicyImage {
    /// One, or one for each camera.
    encoders: Vec<RgbEncoder>,
    cameras: Cameras,
    /// Numbers of an observation before its images.
    numbers: usize,
    denoiser: Denoiser,
}

impl DiffusionPolicyImage {
    /// Registers its parameters. `plan.input` is (observations, numbers and images), `plan.target`
    /// (actions, numbers).
    pub fn new(
        config: &DiffusionPolicyImageConfig,
        plan: &ModelPlan,
        builder: &Builder,
    ) -> Result<Self> {
        let ([n_obs, values], chunk) = shapes(plan)?;
        let Some(cameras) = &plan.cameras else {
            bail!("`diffusion_policy_image` takes observations with images, and the data has none")
        };
        let Some(numbers) = values.checked_sub(cameras.values()) else {
            bail!("observations of {values} values have no room for their images")
        };
        let builder = builder.pp("diffusion");
        let points = config.spatial_softmax_num_keypoints;
        let n = cameras.names.len();
        let encoder = |builder: &Builder| {
            RgbEncoder::new(builder, config.vision_backbone, cameras.shape, points)
        };
        let shared = builder.pp("rgb_encoder");
        let encoders = if config.use_separate_rgb_encoder_per_camera {
            (0..n).map(|camera| encoder(&shared.pp(camera))).collect::<Result<_>>()?
        } else {
            vec![encoder(&shared)?]
        };
        let features = n_obs * (numbers + 2 * points * n);
        let unet = builder.pp("unet");
        Ok(Self {
            encoders,
            cameras: cameras.clone(),
            numbers,
            denoiser: Denoiser::new(config.denoiser(), chunk, features, &unet)?,
        })
    }

    /// Predicts the noise in actions (n, length, numbers) at diffusion `steps` (n), for
    /// observations `(n, n_obs, numbers and images)`.
    pub fn predict_noise(
        &self,
        noisy: &Tensor,
        steps: &[usize],
        observed: &Tensor,
        pass: &ForwardContext,
    ) -> Result<Tensor> {
        self.denoiser.predict_noise(noisy, steps, &self.features(observed, pass)?, pass)
    }

    /// The noise schedule.
    pub fn diffusion(&self) -> &Diffusion {
        self.denoiser.diffusion()
    }

    /// Observations `(n, n_obs, values)` -> (n, features): of each observation its numbers, then those
    /// of its images.
    fn features(&self, observed: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let (n, n_obs, _) = observed.dims3()?;
        let numbers = self.numbers;
        let cameras = self.cameras.names.len();
        let [channels, height, width] = self.cameras.shape;
        let values = self.cameras.values() / cameras.max(1);
        let images = observed.narrow(2, numbers, cameras * values)?;
        let images = images.reshape((n * n_obs, cameras, values))?;
        let of_encoder = |i: usize| {
            let (first, count) = if self.encoders.len() == 1 { (0, cameras) } else { (i, 1) };
            let images = images.narrow(1, first, count)?.contiguous()?;
            let images = images.reshape((n * n_obs * count, channels, height, width))?;
            self.encoders[i].forward(&images, pass)?.reshape((n, n_obs, ()))
        };
        let features = (0..self.encoders.len()).map(of_encoder).collect::<Result<Vec<_>>>()?;
        let numbers = observed.narrow(2, 0, numbers)?.contiguous()?;
        let all: Vec<&Tensor> = std::iter::once(&numbers).chain(&features).collect();
        Tensor::cat(&all, 2)?.flatten_from(1)
    }

    /// [`DiffusionPolicyImage::features`] in a graph of ONNX.
    fn features_onnx(&self, graph: &mut Graph, observed: &Value) -> Result<Value> {
        let n_obs = observed.dims()[1].unwrap_or(1);
        let numbers = self.numbers;
        let (cameras, [channels, height, width]) = (self.cameras.names.len(), self.cameras.shape);
        let values = self.cameras.values() / cameras.max(1);
        let images = graph.narrowed(observed, 2, numbers, cameras * values);
        let images = graph.shaped(&images, &[cameras, values]);
        let mut features = vec![graph.narrowed(observed, 2, 0, numbers)];
        for (i, encoder) in self.encoders.iter().enumerate() {
            let (first, count) = if self.encoders.len() == 1 { (0, cameras) } else { (i, 1) };
            let images = graph.narrowed(&images, 1, first, count);
            let images = graph.shaped(&images, &[channels, height, width]);
            let found = encoder.onnx(graph, &images)?;
            let each = count * found.features();
            features.push(graph.shaped(&found, &[n_obs, each]));
        }
        let all = graph.concatenated(&features.iter().collect::<Vec<_>>(), 2);
        Ok(graph.flattened(&all, 1))
    }
}

impl Model for DiffusionPolicyImage {
    /// Observations `(n, n_obs, values)` -> actions (n, length, numbers), with draws of its own.
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        self.denoiser.sample_any(&self.features(input, pass)?, pass)
    }

    /// Predicted and true noise, at a step and with noise drawn for each sample.
    fn compare(
        &self,
        inputs: &Tensor,
        targets: &Tensor,
        draws: &[Key],
        pass: &ForwardContext,
    ) -> Result<Comparison> {
        self.denoiser.compare(&self.features(inputs, pass)?, targets, draws, pass)
    }

    /// Images are encoded once for all denoising steps.
    fn predict(
        &self,
        inputs: &Tensor,
        draws: &[Key],
        pass: &ForwardContext,
    ) -> Result<Option<Tensor>> {
        self.denoiser.sample(&self.features(inputs, pass)?, draws, pass).map(Some)
    }

    fn samples_in_steps(&self) -> bool {
        true
    }

    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let features = self.features_onnx(graph, input)?;
        self.denoiser.onnx(graph, &features)
    }
}
