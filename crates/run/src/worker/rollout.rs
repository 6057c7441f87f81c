//! A trained policy acts: it sees the last observations, draws a chunk of actions, does some of
//! them, and looks again.

use candle_core::{Device, Result, Tensor};

use crate::data::transform::{Pixels, Transforms};
use crate::data::{
    self, CameraTransform, Chunk, DataSource, Environment, Policy, Ranges, scaled, unscaled,
};
use crate::engine::{self, Engine};
use crate::plan::Plan;
use crate::rng::{Key, Purpose};

/// Starts from which a policy is tested.
pub(crate) const EPISODES: u64 = 50;
/// Keeps the starts of tests from those of demonstrations.
const TEST: u64 = 1;

/// Answers observations (n, seen, numbers) by chunks of actions (n, length, numbers), all between
/// -1 and 1; each sample draws from its key.
pub(crate) type PredictFn<'a> = &'a mut dyn FnMut(&Tensor, &[Key]) -> Result<Tensor>;

/// Observation and action of one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Transition {
    /// Numbers in the units of the data.
    pub observation: Vec<f32>,
    /// One image per camera; empty when no longer needed.
    pub images: Vec<Pixels>,
    /// Numbers in the units of the data.
    pub action: Vec<f32>,
}

/// An observation: numbers in the units of the data, and images.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Observation {
    pub(crate) numbers: Vec<f32>,
    pub(crate) images: Vec<Pixels>,
}

impl Transition {
    fn seen(&self) -> Observation {
        Observation { numbers: self.observation.clone(), images: self.images.clone() }
    }
}

/// One attempt of a policy.
pub struct Episode {
    pub transitions: Vec<Transition>,
    /// True if it reached its goal.
    pub solved: bool,
    environment: Box<dyn Environment>,
}

impl Episode {
    /// An episode before its first step.
    pub(crate) fn new(environment: Box<dyn Environment>) -> Self {
        Self { transitions: Vec::new(), solved: false, environment }
    }

    /// The last `n` observations; before the first there were more like it.
    fn seen(&self, n: usize) -> Vec<Observation> {
        let before = self.transitions.iter().rev().map(Transition::seen);
        let mut seen: Vec<_> = std::iter::once(self.now()).chain(before).take(n).collect();
        seen.resize_with(n, || {
            self.transitions.first().map_or_else(|| self.now(), Transition::seen)
        });
        seen.reverse();
        seen
    }

    /// Forgets the images that the next `n` observations do not show.
    fn forget(&mut self, n: usize) {
        let old = self.transitions.len().saturating_sub(n);
        self.transitions[..old].iter_mut().for_each(|deed| deed.images = Vec::new());
    }

    fn now(&self) -> Observation {
        Observation { numbers: self.end(), images: self.environment.images() }
    }

    fn act(&mut self, action: &[f32]) {
        if self.solved || self.transitions.len() >= self.environment.max_steps() {
            return;
        }
        let Observation { numbers, images } = self.now();
        self.transitions.push(Transition { observation: numbers, images, action: action.to_vec() });
        self.environment.step(action);
        self.solved = self.environment.is_solved();
    }

    /// The numbers that are seen now.
    pub fn end(&self) -> Vec<f32> {
        self.environment.observe()
    }

    /// Names of the numbers of a [`Transition`].
    pub fn names(&self) -> &'static [&'static str] {
        self.environment.names()
    }
}

/// Turns observations into inputs of the model, and its outputs into actions.
pub(crate) struct ObservationPreprocessor {
    pub(crate) chunk: Chunk,
    pub(crate) ranges: Ranges,
    /// Transform of images, if there are any.
    pub(crate) camera_transform: Option<CameraTransform>,
}

impl ObservationPreprocessor {
    /// The preprocessor of a plan that imitates recorded behaviour; `None` for other plans.
    pub(crate) fn of(
        plan: &Plan,
        transforms: &Transforms,
    ) -> std::result::Result<Option<Self>, data::Error> {
        let Some(policy) = Policy::of(&plan.data.source) else { return Ok(None) };
        let Policy { chunk, ranges, cameras, .. } = policy;
        let camera_transform = cameras
            .map(|cameras| CameraTransform::new(&cameras, &plan.data.val_transforms, transforms))
            .transpose()?;
        Ok(Some(Self { chunk, ranges, camera_transform }))
    }

    /// True if it needs images.
    pub(crate) fn sees_images(&self) -> bool {
        self.camera_transform.is_some()
    }

    /// Appends the model's inputs for an observation.
    fn look(&self, seen: &Observation, values: &mut Vec<f32>) -> Result<()> {
        let numbers = seen.numbers.iter().zip(&self.ranges.observations);
        values.extend(numbers.map(|(&value, &range)| scaled(value, range)));
        let Some(camera_transform) = &self.camera_transform else { return Ok(()) };
        seen.images.iter().enumerate().try_for_each(|(camera, image)| {
            camera_transform
                .see(camera, image.clone(), None, values)
                .map_err(candle_core::Error::msg)
        })
    }

    /// The actions to do now for each of several rows of observations, oldest first.
    pub(crate) fn actions(
        &self,
        seen: &[Vec<Observation>],
        draws: &[Key],
        predict: PredictFn<'_>,
    ) -> Result<Vec<Vec<Vec<f32>>>> {
        let mut values = Vec::new();
        seen.iter().flatten().try_for_each(|seen| self.look(seen, &mut values))?;
        let shape = (seen.len(), self.chunk.n_obs_steps, ());
        let inputs = Tensor::from_vec(values, shape, &Device::Cpu)?;
        let chunks = predict(&inputs, draws)?.to_vec3::<f32>()?;
        let action = |row: Vec<f32>| -> Vec<f32> {
            row.into_iter().zip(&self.ranges.actions).map(|(v, &r)| unscaled(v, r)).collect()
        };
        let now = self.chunk.n_obs_steps - 1;
        let done = |chunk: Vec<Vec<f32>>| {
            chunk.into_iter().skip(now).take(self.chunk.n_action_steps).map(action).collect()
        };
        Ok(chunks.into_iter().map(done).collect())
    }

    /// Lets all `episodes` go on to their end, side by side; `key` gives the draws of an episode at
    /// a step.
    pub(crate) fn roll_out(
        &self,
        episodes: &mut [Episode],
        key: impl Fn(u64, u64) -> Key,
        predict: PredictFn<'_>,
    ) -> Result<()> {
        let most = episodes.iter().map(|episode| episode.environment.max_steps()).max();
        for chunk in 0..most.unwrap_or(0).div_ceil(self.chunk.n_action_steps) as u64 {
            if episodes.iter().all(|episode| episode.solved) {
                break;
            }
            let seen: Vec<_> = episodes.iter().map(|e| e.seen(self.chunk.n_obs_steps)).collect();
            let draws: Vec<Key> = (0..episodes.len() as u64).map(|e| key(e, chunk)).collect();
            let actions = self.actions(&seen, &draws, predict)?;
            for (episode, actions) in episodes.iter_mut().zip(actions) {
                for action in actions {
                    episode.act(&action);
                }
                episode.forget(self.chunk.n_obs_steps);
            }
        }
        Ok(())
    }
}

/// A simulation, and the preprocessor of the policy in it.
#[derive(Clone, Copy)]
pub(crate) struct Simulation<'a> {
    /// The data set, which may have one.
    pub(crate) source: &'a dyn DataSource,
    /// `None` if the plan has no policy.
    pub(crate) preprocessor: Option<&'a ObservationPreprocessor>,
}

/// Share of the episodes that the engine's policy solves, if there is a simulation of the plan's
/// data. Every rank finds the same, unless it `is_stopped`.
///
/// # Errors
///
/// A tensor operation failed. The error means nothing where `is_stopped` has said so.
pub(crate) fn success(
    plan: &Plan,
    Simulation { source, preprocessor }: Simulation<'_>,
    engine: &mut Engine,
    is_stopped: &dyn Fn() -> bool,
) -> std::result::Result<Option<f64>, engine::Error> {
    let (Some(preprocessor), Some(seed)) = (preprocessor, simulated(plan)) else { return Ok(None) };
    let start = |episode| source.environment(Key::new(seed, Purpose::Generate, TEST, episode));
    let starts: Option<Vec<_>> = (0..EPISODES).map(start).collect();
    let Some(starts) = starts else { return Ok(None) };
    let mut episodes: Vec<Episode> = starts.into_iter().map(Episode::new).collect();
    let step = engine.state().step;
    let key = |episode, chunk| Key::new(plan.seed, Purpose::Sample, episode, chunk);
    let mut predict = |inputs: &Tensor, draws: &[Key]| {
        if is_stopped() {
            candle_core::bail!("the run is asked to stop");
        }
        engine.predict(inputs, draws)
    };
    preprocessor
        .roll_out(&mut episodes, key, &mut predict)
        .map_err(|source| engine::Error::Tensor { phase: "rolled out", step, source })?;
    let solved = episodes.iter().filter(|episode| episode.solved).count();
    Ok(Some(solved as f64 / EPISODES as f64))
}

/// The seed of a plan's simulation, if it has one.
pub fn simulated(plan: &Plan) -> Option<u64> {
    Policy::of(&plan.data.source)?.simulated
}

#[cfg(test)]
mod tests {
    use ddprun_trajectories::PushTLike;
    use push_t::{MAX_STEPS, PushEnv};

    use super::*;

    const CHUNK: Chunk = Chunk { horizon: 4, n_obs_steps: 2, n_action_steps: 2, val_ratio: 0.1 };

    fn arena() -> Ranges {
        Ranges { observations: vec![[0.0, 512.0]; 4], actions: vec![[0.0, 512.0]; 2] }
    }

    fn push(episode: u64) -> Box<dyn Environment> {
        let source = PushTLike {
            episodes: 2,
            horizon: 4,
            n_obs_steps: 2,
            n_action_steps: 2,
            image_size: None,
            val_ratio: 0.5,
        };
        source.environment(Key::new(5, Purpose::Generate, 0, episode)).unwrap()
    }

    /// The policy is told the expert's way in the units that it sees.
    #[test]
    fn the_chosen_actions_of_a_chunk_are_done_in_the_units_of_the_data() {
        let ranges = arena();
        let preprocessor = ObservationPreprocessor {
            chunk: CHUNK,
            ranges: ranges.clone(),
            camera_transform: None,
        };
        let mut episodes = vec![Episode::new(push(0)), Episode::new(push(1))];
        let first: Vec<Vec<f32>> = episodes.iter().map(Episode::end).collect();
        let mut asked = 0;
        let mut predict = |inputs: &Tensor, draws: &[Key]| {
            assert_eq!((inputs.dims(), draws.len()), (&[2usize, 2, 4][..], 2));
            asked += 1;
            // The chunk's actions are 0, 0.25, 0.5, 0.75: the second and the third are done.
            let chunk =
                Tensor::new(&[[0f32, 0.0], [0.25, 0.25], [0.5, 0.5], [0.75, 0.75]], &Device::Cpu)?;
            chunk.unsqueeze(0)?.repeat((2, 1, 1))
        };
        let key = |episode, chunk| Key::new(1, Purpose::Sample, episode, chunk);
        preprocessor.roll_out(&mut episodes, key, &mut predict).unwrap();
        assert_eq!(asked, MAX_STEPS / 2);
        for (episode, first) in episodes.iter().zip(first) {
            assert!(!episode.solved);
            assert_eq!(episode.transitions.len(), MAX_STEPS);
            assert_eq!(episode.transitions[0].observation, first);
            let actions: Vec<f32> =
                episode.transitions.iter().take(4).map(|deed| deed.action[0]).collect();
            assert_eq!(actions, [320.0, 384.0, 320.0, 384.0]);
        }
    }

    #[test]
    fn the_first_observation_stands_for_those_before_it() {
        let mut episode = Episode::new(push(0));
        let start = episode.now();
        assert_eq!(episode.seen(3), vec![start.clone(); 3]);
        episode.act(&[200.0, 200.0]);
        let now = episode.now();
        assert_ne!(now, start);
        assert_eq!(episode.seen(3), [start.clone(), start, now]);
    }

    #[test]
    fn an_expert_who_is_asked_this_way_solves_every_episode() {
        let ranges = arena();
        let chunk = Chunk { horizon: 1, n_obs_steps: 1, n_action_steps: 1, val_ratio: 0.1 };
        let preprocessor =
            ObservationPreprocessor { chunk, ranges: ranges.clone(), camera_transform: None };
        let mut episodes: Vec<Episode> = (0..10).map(|e| Episode::new(push(e))).collect();
        let mut predict = |inputs: &Tensor, draws: &[Key]| {
            let seen = inputs.flatten_from(1)?.to_vec2::<f32>()?;
            let action = |(seen, key): (&Vec<f32>, &Key)| {
                let at = |i: usize| f64::from(unscaled(seen[i], [0.0, 512.0]));
                let push = PushEnv::at([at(0), at(1)], [at(2), at(3)]);
                push.expert(1.0, &mut key.stream()).map(|value| scaled(value, [0.0, 512.0]))
            };
            let actions: Vec<f32> = seen.iter().zip(draws).flat_map(action).collect();
            Tensor::from_vec(actions, (seen.len(), 1, 2), &Device::Cpu)
        };
        let key = |episode, chunk| Key::new(1, Purpose::Sample, episode, chunk);
        preprocessor.roll_out(&mut episodes, key, &mut predict).unwrap();
        assert!(episodes.iter().all(|episode| episode.solved));
    }
}
