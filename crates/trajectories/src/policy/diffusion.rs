//! Denoising diffusion (Ho et al., 2020, <https://arxiv.org/abs/2006.11239>) with the cosine
//! schedule of Nichol and Dhariwal (2021), and its samplers: DDPM draws at every step, DDIM (Song
//! et al., 2021) takes few steps and draws none. Numbers are those of the `diffusers` library with
//! `clip_sample` and `set_alpha_to_one`.

use candle_core::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rng::Key;

/// Largest share of noise that one step adds.
const MAX_BETA: f64 = 0.999;
/// Least variance of a drawing step.
const MIN_VARIANCE: f64 = 1e-20;

/// How a diffusion model takes the noise off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoiseScheduler {
    /// Every step, each with a little new noise.
    Ddpm,
    /// Few steps, without.
    Ddim,
}

/// A noise schedule.
#[derive(Clone, Debug)]
pub struct Diffusion {
    betas: Vec<f64>,
    /// Share of the variance of the clean values that is left after each step.
    alphas_cumprod: Vec<f64>,
}

impl Diffusion {
    /// `steps` steps of `squaredcos_cap_v2`.
    pub fn squared_cosine(steps: usize) -> Self {
        let left = |at: usize| {
            let share = (at as f64 / steps as f64 + 0.008) / 1.008;
            (share * std::f64::consts::FRAC_PI_2).cos().powi(2)
        };
        let beta = |step: usize| (1.0 - left(step + 1) / left(step)).min(MAX_BETA);
        let betas: Vec<f64> = (0..steps).map(beta).collect();
        let alphas_cumprod = betas.iter().scan(1.0, |left, beta| {
            *left *= 1.0 - beta;
            Some(*left)
        });
        Self { alphas_cumprod: alphas_cumprod.collect(), betas }
    }

    /// Variance of the noise that each step adds.
    pub fn betas(&self) -> &[f64] {
        &self.betas
    }

    /// Share of the variance of the clean values that is left after each step.
    pub fn alphas_cumprod(&self) -> &[f64] {
        &self.alphas_cumprod
    }

    /// Clean values with as much of `noise` as there is after `step`.
    pub fn noised(&self, clean: &[f32], noise: &[f32], step: usize) -> Vec<f32> {
        let signal = self.alphas_cumprod[step].sqrt();
        let amount = (1.0 - self.alphas_cumprod[step]).sqrt();
        let mix = |(x, e): (&f32, &f32)| (signal * f64::from(*x) + amount * f64::from(*e)) as f32;
        clean.iter().zip(noise).map(mix).collect()
    }

    /// The steps that a sampler visits, from noise to clean values.
    fn visited(&self, count: usize) -> impl Iterator<Item = usize> + use<> {
        let stride = (self.betas.len() / count.max(1)).max(1);
        (0..self.betas.len() / stride).rev().map(move |i| i * stride).take(count.max(1))
    }

    /// Denoises `x` in `count` steps. `predict` gives the noise in values at a step, `draw` the
    /// normal numbers that DDPM adds after a step.
    pub fn denoise(
        &self,
        scheduler: NoiseScheduler,
        count: usize,
        mut x: Vec<f32>,
        mut predict: impl FnMut(&[f32], usize) -> Result<Vec<f32>>,
        mut draw: impl FnMut(usize) -> Vec<f32>,
    ) -> Result<Vec<f32>> {
        let visited: Vec<usize> = self.visited(count).collect();
        for (i, &step) in visited.iter().enumerate() {
            let noise = predict(&x, step)?;
            let next = visited.get(i + 1).map_or(1.0, |&next| self.alphas_cumprod[next]);
            let here = DenoisingStep { alpha_cumprod: self.alphas_cumprod[step], next };
            match scheduler {
                NoiseScheduler::Ddim => here.ddim(&mut x, &noise),
                NoiseScheduler::Ddpm if i + 1 == visited.len() => here.ddpm(&mut x, &noise, None),
                NoiseScheduler::Ddpm => here.ddpm(&mut x, &noise, Some(&draw(step))),
            }
        }
        Ok(x)
    }
}

/// One denoising step.
#[derive(Clone, Copy)]
struct DenoisingStep {
    /// Share of the clean values' variance at this step, and at the next that is visited.
    alpha_cumprod: f64,
    next: f64,
}

impl DenoisingStep {
    /// Clean value of `x`, if `noise` is its noise.
    fn clean(self, x: f32, noise: f32) -> f64 {
        let clean = (f64::from(x) - (1.0 - self.alpha_cumprod).sqrt() * f64::from(noise))
            / self.alpha_cumprod.sqrt();
        clean.clamp(-1.0, 1.0)
    }

    fn ddim(self, x: &mut [f32], noise: &[f32]) {
        let signal = self.next.sqrt();
        let amount = (1.0 - self.next).sqrt();
        for (x, &noise) in x.iter_mut().zip(noise) {
            *x = (signal * self.clean(*x, noise) + amount * f64::from(noise)) as f32;
        }
    }

    fn ddpm(self, x: &mut [f32], noise: &[f32], drawn: Option<&[f32]>) {
        let Self { alpha_cumprod, next } = self;
        let alpha = alpha_cumprod / next;
        let of_clean = next.sqrt() * (1.0 - alpha) / (1.0 - alpha_cumprod);
        let of_x = alpha.sqrt() * (1.0 - next) / (1.0 - alpha_cumprod);
        let variance = (1.0 - next) / (1.0 - alpha_cumprod) * (1.0 - alpha);
        let deviation = variance.max(MIN_VARIANCE).sqrt();
        for (i, (x, &noise)) in x.iter_mut().zip(noise).enumerate() {
            let added = drawn.map_or(0.0, |drawn| deviation * f64::from(drawn[i]));
            *x = (of_clean * self.clean(*x, noise) + of_x * f64::from(*x) + added) as f32;
        }
    }
}

/// `n` normal numbers of `key`.
pub fn normals(key: Key, n: usize) -> impl Iterator<Item = f32> {
    let mut stream = key.stream();
    (0..n).map(move |_| stream.normal() as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-6 * expected.max(1e-4), "{found} for {expected}");
    }

    #[test]
    fn the_schedule_is_the_published_one() {
        let diffusion = Diffusion::squared_cosine(100);
        let betas = diffusion.betas();
        near(betas[0], 0.000_631_281_598);
        near(betas[4], 0.002_576_691_042);
        near(betas[98], 0.749_939_280_4);
        near(betas[99], 0.999);
        let alphas_cumprod = diffusion.alphas_cumprod();
        near(alphas_cumprod[0], 0.999_368_718_4);
        near(alphas_cumprod[50], 0.478_264_632_9);
        near(alphas_cumprod[99], 2.428_572_279_350_061_5e-7);
    }

    #[test]
    fn few_steps_are_spread_over_the_schedule() {
        let visited = |count| Diffusion::squared_cosine(100).visited(count).collect::<Vec<_>>();
        assert_eq!(visited(10), [90, 80, 70, 60, 50, 40, 30, 20, 10, 0]);
        assert_eq!((visited(100).len(), visited(100)[0]), (100, 99));
        assert_eq!(visited(1), [0]);
    }

    #[test]
    fn a_sampler_that_is_told_the_noise_finds_the_clean_values() {
        let diffusion = Diffusion::squared_cosine(100);
        let (clean, noise) = ([0.5, -0.25], [1.5, -0.75]);
        let at = |step| diffusion.noised(&clean, &noise, step);
        for scheduler in [NoiseScheduler::Ddim, NoiseScheduler::Ddpm] {
            let found = diffusion
                .denoise(
                    scheduler,
                    10,
                    at(90),
                    |x, step| {
                        let alpha_cumprod = diffusion.alphas_cumprod[step];
                        let (signal, amount) = (alpha_cumprod.sqrt(), (1.0 - alpha_cumprod).sqrt());
                        let noise = |(x, clean): (&f32, &f32)| {
                            ((f64::from(*x) - signal * f64::from(*clean)) / amount) as f32
                        };
                        Ok(x.iter().zip(&clean).map(noise).collect())
                    },
                    |step| {
                        normals(Key::new(1, crate::rng::Purpose::Draw, 0, step as u64), 2).collect()
                    },
                )
                .unwrap();
            for (found, clean) in found.iter().zip(clean) {
                assert!((found - clean).abs() < 1e-5, "{scheduler:?} {found}");
            }
        }
    }
}
