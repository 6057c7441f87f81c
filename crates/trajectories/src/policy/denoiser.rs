//! A network that predicts the noise in chunks of actions, given features of the observations, and
//! its sampler.

use candle_core::{Device, Result, Tensor, bail};

use crate::model::Comparison;
use crate::nn::{Builder, ForwardContext, Linear, Nonlinearity};
use crate::onnx::{Dim, Graph, Value};
use crate::plan::ModelPlan;
use crate::policy::diffusion::{Diffusion, NoiseScheduler, normals};
use crate::policy::unet1d::{Sizes, UNet1d};
use crate::rng::{Key, Purpose};

/// Parts of a sample's key: its step and noise in training, its first noise and the noise after a
/// step in sampling.
const STEP: u64 = 0;
const NOISE: u64 = 1;
const FIRST: u64 = 2;
const AFTER: u64 = 3;

/// The options that policies have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct DenoiserConfig<'a> {
    pub(super) sizes: Sizes<'a>,
    pub(super) diffusion_step_embed_dim: usize,
    pub(super) num_train_timesteps: usize,
    pub(super) num_inference_steps: Option<usize>,
    pub(super) noise_scheduler: NoiseScheduler,
}

impl DenoiserConfig<'_> {
    /// Number of denoising steps; by default, DDPM takes all.
    fn inference_steps(&self) -> usize {
        let usual = match self.noise_scheduler {
            NoiseScheduler::Ddim => self.num_train_timesteps.min(10),
            NoiseScheduler::Ddpm => self.num_train_timesteps,
        };
        self.num_inference_steps.unwrap_or(usual)
    }

    /// Refuses sizes that do not fit each other, for chunks of `length` actions.
    fn check(&self, length: usize) -> Result<()> {
        let halvings = self.sizes.down_dims.len().saturating_sub(1) as u32;
        if !length.is_multiple_of(2usize.pow(halvings)) {
            bail!("`horizon` = {length} cannot be halved {halvings} times, as `down_dims` asks");
        }
        let width = self.diffusion_step_embed_dim;
        if width < 4 || !width.is_multiple_of(2) {
            bail!("`diffusion_step_embed_dim` must be even and at least 4, not {width}");
        }
        if !(1..=self.num_train_timesteps).contains(&self.inference_steps()) {
            bail!("`num_inference_steps` must be from 1 to `num_train_timesteps`");
        }
        Ok(())
    }
}

/// (observations, numbers), and (actions, numbers) of a chunk.
pub(super) fn shapes(plan: &ModelPlan) -> Result<([usize; 2], [usize; 2])> {
    let (&[n_obs, numbers], &[length, actions]) = (&plan.input[..], &plan.target[..]) else {
        bail!(
            "it predicts chunks of actions: use `data.name = \"trajectories\"` or \"push_t_like\""
        )
    };
    Ok(([n_obs, numbers], [length, actions]))
}

/// The network and its noise schedule.
pub(super) struct Denoiser {
    /// Actions of a chunk, numbers of an action.
    chunk: [usize; 2],
    width: usize,
    scheduler: NoiseScheduler,
    steps: usize,
    diffusion: Diffusion,
    step_encoder: [Linear; 2],
    net: UNet1d,
}

impl Denoiser {
    /// Registers its parameters, for `features` numbers of the observations.
    pub(super) fn new(
        config: DenoiserConfig<'_>,
        [length, actions]: [usize; 2],
        features: usize,
        builder: &Builder,
    ) -> Result<Self> {
        config.check(length)?;
        let width = config.diffusion_step_embed_dim;
        let encoder = builder.pp("diffusion_step_encoder");
        let (net, step_encoder) =
            UNet1d::new(builder, actions, width + features, config.sizes, || {
                Ok([
                    Linear::new(&encoder.pp(1), width, 4 * width)?,
                    Linear::new(&encoder.pp(3), 4 * width, width)?,
                ])
            })?;
        Ok(Self {
            chunk: [length, actions],
            width,
            scheduler: config.noise_scheduler,
            steps: config.inference_steps(),
            diffusion: Diffusion::squared_cosine(config.num_train_timesteps),
            step_encoder,
            net,
        })
    }

    pub(super) fn diffusion(&self) -> &Diffusion {
        &self.diffusion
    }

    /// Predicts the noise in actions (n, length, numbers) at diffusion `steps` (n), for features
    /// (n, ...).
    pub(super) fn predict_noise(
        &self,
        noisy: &Tensor,
        steps: &[usize],
        features: &Tensor,
        pass: &ForwardContext,
    ) -> Result<Tensor> {
        let [first, second] = &self.step_encoder;
        let waves = waves(steps, self.width)?.to_device(features.device())?;
        let hidden = Nonlinearity::Mish.forward(&first.forward(&waves, pass)?)?;
        let condition = Tensor::cat(&[&second.forward(&hidden, pass)?, features], 1)?;
        self.net.forward(noisy, &condition, pass)
    }

    /// Denoises `first`, a chunk for each row of features (n, ...): actions (n, length, numbers).
    /// `draw` gives the normal numbers that DDPM adds after a step.
    pub(super) fn denoise(
        &self,
        features: &Tensor,
        first: Vec<f32>,
        draw: impl FnMut(usize) -> Vec<f32>,
        pass: &ForwardContext,
    ) -> Result<Tensor> {
        let n = features.dim(0)?;
        let shape = (n, self.chunk[0], self.chunk[1]);
        let predict = |x: &[f32], step| {
            let x = Tensor::from_slice(x, shape, features.device())?;
            self.predict_noise(&x, &vec![step; n], features, pass)?.flatten_all()?.to_vec1()
        };
        let actions = self.diffusion.denoise(self.scheduler, self.steps, first, predict, draw)?;
        Tensor::from_vec(actions, shape, features.device())
    }

    /// Samples a chunk of actions for each row of features.
    pub(super) fn sample(
        &self,
        features: &Tensor,
        draws: &[Key],
        pass: &ForwardContext,
    ) -> Result<Tensor> {
        let after = |step| self.drawn(draws, AFTER + step as u64);
        self.denoise(features, self.drawn(draws, FIRST), after, pass)
    }

    /// [`Denoiser::sample`] with the same draws each time.
    pub(super) fn sample_any(&self, features: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let key = |i| Key::new(0, Purpose::Sample, 0, i as u64);
        let draws: Vec<Key> = (0..features.dim(0)?).map(key).collect();
        self.sample(features, &draws, pass)
    }

    /// Predicted and true noise of chunks `clean`, at a step and with noise drawn for each.
    pub(super) fn compare(
        &self,
        features: &Tensor,
        clean: &Tensor,
        draws: &[Key],
        pass: &ForwardContext,
    ) -> Result<Comparison> {
        let noise = self.drawn(draws, NOISE);
        let most = self.diffusion.betas().len() as u64;
        let steps: Vec<usize> =
            draws.iter().map(|key| key.with(STEP).stream().below(most) as usize).collect();
        let values: Vec<f32> = clean.flatten_all()?.to_vec1()?;
        let n = self.chunk.iter().product::<usize>();
        let chunks = values.chunks_exact(n).zip(noise.chunks_exact(n)).zip(&steps);
        let noisy: Vec<f32> = chunks
            .flat_map(|((clean, noise), &step)| self.diffusion.noised(clean, noise, step))
            .collect();
        let noisy = Tensor::from_vec(noisy, clean.dims(), clean.device())?;
        Ok(Comparison {
            outputs: self.predict_noise(&noisy, &steps, features, pass)?,
            targets: Tensor::from_vec(noise, clean.dims(), clean.device())?,
        })
    }

    /// Normal numbers of a chunk for each key.
    fn drawn(&self, draws: &[Key], part: u64) -> Vec<f32> {
        let n = self.chunk.iter().product();
        draws.iter().flat_map(|key| normals(key.with(part), n)).collect()
    }

    /// [`Denoiser::predict_noise`] in a graph of ONNX, one step of many: beside the features it takes
    /// `noisy_actions` (n, length, numbers) and the `timestep` (n) of each.
    pub(super) fn onnx(&self, graph: &mut Graph, features: &Value) -> Result<Value> {
        let (batch, [length, actions]) = (Dim::Named("batch"), self.chunk.map(Dim::Size));
        let noisy = graph.input("noisy_actions", &[batch, length, actions]);
        let steps = graph.indices("timestep", &[batch]);
        let all: Vec<usize> = (0..self.diffusion.betas().len()).collect();
        let table = waves(&all, self.width)?.flatten_all()?.to_vec1::<f32>()?;
        let table = graph.floats(&[all.len(), self.width], &table);
        let waves = graph.rows(&table, &steps);
        let [first, second] = &self.step_encoder;
        let hidden = first.onnx(graph, &waves)?;
        let hidden = Nonlinearity::Mish.onnx(graph, &hidden);
        let encoded = second.onnx(graph, &hidden)?;
        let condition = graph.concatenated(&[&encoded, features], 1);
        self.net.onnx(graph, &noisy, &condition)
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
