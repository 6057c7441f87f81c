//! `data.name = "push_t_like"`

use push_t::PushEnv;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::chunk::{self, ACTS, Behaviour};
use crate::config::kind::{BuiltinSplits, Capability, Kind, Modality, OptionConflict};
use crate::data::transform::Pixels;
use crate::data::{
    Chunk, DataSource, Environment, Error, Inputs, OpenRequest, PredictionRequest, Splits, Survey,
    SurveyRequest,
};
use crate::rng::Key;
use crate::windows;

/// a generated pushing task that can be solved in two ways; the next actions are predicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PushTLike {
    /// demonstrations to generate: an agent goes around a disc, on the left or on the right, and
    /// pushes it to the goal. test/success is the success rate of the best policy from 50 new
    /// initial states.
    #[serde(default = "two_hundred")]
    #[schemars(range(min = 2, max = 100_000))]
    pub episodes: usize,
    /// actions predicted at once; the first `n_obs_steps - 1` of them are in the past.
    #[serde(default = "chunk::horizon")]
    #[schemars(range(min = 1, max = 65_536))]
    pub horizon: usize,
    /// number of past observations that the policy sees.
    #[serde(default = "chunk::n_obs_steps")]
    #[schemars(range(min = 1, max = 65_536))]
    pub n_obs_steps: usize,
    /// actions executed before the next prediction.
    #[serde(default = "chunk::n_action_steps")]
    #[schemars(range(min = 1, max = 65_536))]
    pub n_action_steps: usize,
    /// height and width of an image that is part of each observation; only it shows the disc then.
    /// Default: no image, but four numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 16, max = 512), example = 96)]
    pub image_size: Option<usize>,
    /// fraction of the episodes, at the end, held out for validation, unless `data.val_fraction` or
    /// `data.folds` is given.
    #[serde(default = "chunk::val_ratio")]
    #[schemars(extend("exclusiveMinimum" = 0.0, "exclusiveMaximum" = 1.0))]
    pub val_ratio: f64,
}

impl Kind for PushTLike {
    const NAME: &'static str = "push_t_like";
    const CAPABILITIES: &'static [Capability] = &[
        Capability::Samples(Modality::Behaviour),
        Capability::Cameras,
        Capability::Simulation,
        Capability::Split(BuiltinSplits::LAST),
    ];

    fn check(&self) -> Vec<OptionConflict> {
        chunk::check(self.chunk())
    }
}

impl PushTLike {
    fn chunk(&self) -> Chunk {
        let &Self { horizon, n_obs_steps, n_action_steps, val_ratio, .. } = self;
        Chunk { horizon, n_obs_steps, n_action_steps, val_ratio }
    }

    fn behaviour(&self, seed: u64) -> Behaviour {
        let &Self { episodes, image_size, .. } = self;
        Behaviour::PushTLike { episodes, seed, image_size }
    }
}

fn two_hundred() -> usize {
    200
}

impl DataSource for PushTLike {
    fn open(&self, reading: &OpenRequest<'_>) -> Result<Splits, Error> {
        windows::open(&self.behaviour(reading.survey.seed), self.chunk(), reading)
    }

    fn environment(&self, key: Key) -> Option<Box<dyn Environment>> {
        Some(Box::new(Attempt { push: PushEnv::start(key), image_size: self.image_size }))
    }

    fn inputs(&self, _: &PredictionRequest<'_>) -> Result<Inputs, Error> {
        Err(Error::NotPredicted { why: ACTS })
    }

    fn survey(&self, request: &SurveyRequest<'_>) -> Result<Survey, Error> {
        windows::survey(&self.behaviour(request.seed), self.chunk(), &request.split, request.found)
    }
}

/// An attempt at the task.
struct Attempt {
    push: PushEnv,
    image_size: Option<usize>,
}

impl Environment for Attempt {
    fn observe(&self) -> Vec<f32> {
        self.push.observe()[..windows::numbers_seen(self.image_size)].to_vec()
    }

    fn images(&self) -> Vec<Pixels> {
        let picture = |side| Pixels::new(3, [side, side], self.push.draw(side));
        self.image_size.map(picture).into_iter().collect()
    }

    fn step(&mut self, action: &[f32]) {
        self.push.act([action[0], action[1]]);
    }

    fn is_solved(&self) -> bool {
        self.push.is_solved()
    }

    fn max_steps(&self) -> usize {
        push_t::MAX_STEPS
    }

    fn names(&self) -> &'static [&'static str] {
        match self.image_size {
            None => &["agent_x", "agent_y", "disc_x", "disc_y", "action_x", "action_y"],
            Some(_) => &["agent_x", "agent_y", "action_x", "action_y"],
        }
    }
}
