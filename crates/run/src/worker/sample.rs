//! Samples of a trained model: a text is continued token by token, each drawn from the predicted
//! distribution; a policy acts.

use candle_core::{Device, Tensor};

use crate::checkpoint::{self, OpenCheckpoint};
use crate::data;
use crate::engine::{self, Components};
use crate::kinds::Kinds;
use crate::model::{Model, predict};
use crate::nn::ForwardContext;
use crate::plan::Plan;
use crate::rng::{Key, Purpose};
use crate::worker::rollout::{Episode, Observation, ObservationPreprocessor, simulated};
use crate::worker::{Error, on_large_stack};

/// Keeps the starts of samples from those of demonstrations and tests.
const SHOWN: u64 = 2;

/// Options of sampling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Tokens to draw.
    pub tokens: usize,
    /// Logits are divided by it: lower is more deterministic.
    pub temperature: f64,
    /// Only so many of the most likely tokens are drawn.
    pub top_k: usize,
    /// Seed of the draws.
    pub seed: u64,
    /// The token that ends the text.
    pub end: Option<u32>,
}

/// Returns the tokens that the model of the checkpoint `opened` writes after those of `prompt`, in this
/// process alone.
pub fn sample(
    plan: &Plan,
    opened: &OpenCheckpoint,
    kinds: &Kinds,
    prompt: &[u32],
    asked: &Sampling,
) -> Result<Vec<u32>, Error> {
    on_large_stack(|| {
        let model = restored(plan, opened, kinds)?;
        let failed = |source| failed(opened, source);
        let length = plan.model.input.first().copied().unwrap_or(1);
        let key = Key::new(asked.seed, Purpose::Sample, 0, 0);
        let mut tokens = prompt.to_vec();
        for i in 0..asked.tokens {
            let seen = &tokens[tokens.len().saturating_sub(length)..];
            let logits = expected_next(&*model, seen, plan).map_err(failed)?;
            let token = draw(&logits, asked, key.uniform(i as u64));
            if asked.end == Some(token) {
                break;
            }
            tokens.push(token);
        }
        Ok(tokens.split_off(prompt.len()))
    })
}

/// The model of the checkpoint, with averaged weights where the run kept some.
fn restored(plan: &Plan, opened: &OpenCheckpoint, kinds: &Kinds) -> Result<Box<dyn Model>, Error> {
    let Components { model, params, .. } = kinds.components(plan, &Device::Cpu)?;
    let mut states = checkpoint::restore(opened, plan, &params)?;
    if opened.state.has_averages() {
        engine::swap_averages(&params, &mut states).map_err(|source| failed(opened, source))?;
    }
    Ok(model)
}

fn failed(opened: &OpenCheckpoint, source: candle_core::Error) -> engine::Error {
    engine::Error::Tensor { phase: "sampling", step: opened.state.step, source }
}

/// Runs the policy of the checkpoint `opened` for `episodes` simulated episodes from one start, drawn
/// for `seed`, each with draws of its own, in this process alone; `None` if there is no simulation of
/// its data.
pub fn roll_out(
    plan: &Plan,
    opened: &OpenCheckpoint,
    kinds: &Kinds,
    episodes: usize,
    seed: u64,
) -> Result<Option<Vec<Episode>>, Error> {
    on_large_stack(|| {
        let preprocessor = ObservationPreprocessor::of(plan, &kinds.transforms)?;
        let (Some(preprocessor), Some(_)) = (preprocessor, simulated(plan)) else {
            return Ok(None);
        };
        let model = restored(plan, opened, kinds)?;
        let source = kinds.data.build(&plan.data.source.kind).map_err(data::Error::from)?;
        let start = || source.environment(Key::new(seed, Purpose::Generate, SHOWN, 0));
        let starts: Option<Vec<_>> = (0..episodes).map(|_| start()).collect();
        let Some(starts) = starts else { return Ok(None) };
        let mut all: Vec<Episode> = starts.into_iter().map(Episode::new).collect();
        let key = |episode, chunk| Key::new(seed, Purpose::Sample, episode, chunk);
        let pass = ForwardContext::eval(plan.precision);
        preprocessor
            .roll_out(&mut all, key, &mut |inputs, draws| predict(&*model, inputs, draws, &pass))
            .map_err(|source| failed(opened, source))?;
        Ok(Some(all))
    })
}

/// Returns the actions of the policy of the checkpoint `opened` after the observations `seen`, oldest
/// first; `None` if it is no policy.
pub fn act(
    plan: &Plan,
    opened: &OpenCheckpoint,
    kinds: &Kinds,
    seen: Vec<Vec<f32>>,
    seed: u64,
) -> Result<Option<Vec<Vec<f32>>>, Error> {
    on_large_stack(|| {
        let preprocessor = ObservationPreprocessor::of(plan, &kinds.transforms)?
            .filter(|preprocessor| !preprocessor.sees_images());
        let Some(preprocessor) = preprocessor else { return Ok(None) };
        let model = restored(plan, opened, kinds)?;
        let draws = [Key::new(seed, Purpose::Sample, 0, 0)];
        let pass = ForwardContext::eval(plan.precision);
        let mut predict = |inputs: &Tensor, draws: &[Key]| predict(&*model, inputs, draws, &pass);
        let actions = preprocessor
            .actions(&[numbers(seen)], &draws, &mut predict)
            .map_err(|source| failed(opened, source))?;
        Ok(actions.into_iter().next())
    })
}

/// Observations without images.
fn numbers(seen: Vec<Vec<f32>>) -> Vec<Observation> {
    seen.into_iter().map(|numbers| Observation { numbers, images: Vec::new() }).collect()
}

/// Logits of the token after `seen`.
fn expected_next(model: &dyn Model, seen: &[u32], plan: &Plan) -> candle_core::Result<Vec<f32>> {
    let seen = Tensor::from_iter(seen.iter().map(|&token| token as f32), &Device::Cpu)?;
    let logits = model.forward(&seen.unsqueeze(0)?, &ForwardContext::eval(plan.precision))?;
    let last = logits.dim(1)? - 1;
    logits.narrow(1, last, 1)?.flatten_all()?.to_vec1()
}

/// The token at `position`, from 0 to 1, of the distribution; equally likely ones stand in their
/// order.
fn draw(logits: &[f32], asked: &Sampling, position: f64) -> u32 {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    order.truncate(asked.top_k.max(1));
    let largest = order.first().map_or(0.0, |&first| f64::from(logits[first]));
    let weight = |&i: &usize| ((f64::from(logits[i]) - largest) / asked.temperature).exp();
    let mut left = position * order.iter().map(weight).sum::<f64>();
    let drawn = order.iter().find(|i| {
        left -= weight(i);
        left < 0.0
    });
    drawn.or(order.last()).map_or(0, |&i| i as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_the_distribution_its_temperature_and_its_cut() {
        let logits = [0.0, 2f32.ln(), f32::NEG_INFINITY, 0.0];
        let asked = Sampling { tokens: 1, temperature: 1.0, top_k: 4, seed: 1, end: None };
        let at = |position, asked: &Sampling| draw(&logits, asked, position);
        // Probabilities 1/2, 1/4, 1/4 of tokens 1, 0 and 3.
        let drawn = [0.0, 0.49, 0.51, 0.74, 0.76, 0.999].map(|position| at(position, &asked));
        assert_eq!(drawn, [1, 1, 0, 0, 3, 3]);
        let bold = Sampling { temperature: 1e9, ..asked };
        assert_eq!([0.32, 0.34, 0.67].map(|position| at(position, &bold)), [1, 0, 3]);
        let cut = Sampling { top_k: 1, ..asked };
        assert_eq!([0.0, 0.999].map(|position| at(position, &cut)), [1, 1]);
    }
}
