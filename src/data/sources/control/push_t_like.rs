//! `data.name = "push_t_like"`

use push_t::Push;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Modality, Offer, OwnParts, Wrong};
use crate::data::error::Error;
use crate::data::inputs::{Inputs, Predicting};
use crate::data::sources::control::chunk::{ACTS, Behaviour, Chunk};
use crate::data::sources::control::windows;
use crate::data::sources::source::{Asked, DataSource, Reading, Survey};
use crate::data::transform::Pixels;
use crate::data::{Environment, Splits};
use crate::rng::Key;

/// generated observations and actions of a task that has two right ways; the next actions are the
/// target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PushTLike {
    /// demonstrations to generate: an agent goes around a disc, by the left or by the right, and
    /// pushes it to the goal. test/success is the success rate of the best policy from 50 new
    /// starts.
    #[serde(default = "two_hundred")]
    #[schemars(range(min = 2, max = 100_000))]
    pub episodes: usize,
    /// actions that are predicted together; the first `n_obs_steps - 1` of them are past.
    #[serde(default = "Chunk::horizon")]
    #[schemars(range(min = 1, max = 65_536))]
    pub horizon: usize,
    /// observations that are seen.
    #[serde(default = "Chunk::n_obs_steps")]
    #[schemars(range(min = 1, max = 65_536))]
    pub n_obs_steps: usize,
    /// actions that are done before the next are predicted.
    #[serde(default = "Chunk::n_action_steps")]
    #[schemars(range(min = 1, max = 65_536))]
    pub n_action_steps: usize,
    /// pixels of a side of the picture that each observation holds: it shows where the disc is,
    /// which no number says then. Default: no picture, but four numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 16, max = 512), example = 96)]
    pub image_size: Option<usize>,
    /// held-out fraction: the last episodes are for validation, where `data.val_fraction` and
    /// `data.folds` deal out none.
    #[serde(default = "Chunk::val_ratio")]
    #[schemars(extend("exclusiveMinimum" = 0.0, "exclusiveMaximum" = 1.0))]
    pub val_ratio: f64,
}

impl Kind for PushTLike {
    const NAME: &'static str = "push_t_like";
    const OFFERS: &'static [Offer] = &[
        Offer::Samples(Modality::Behaviour),
        Offer::Cameras,
        Offer::Simulation,
        Offer::Split(OwnParts::LAST),
    ];

    fn check(&self) -> Vec<Wrong> {
        self.chunk().check()
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
    fn open(&self, reading: &Reading<'_>) -> Result<Splits, Error> {
        windows::open(&self.behaviour(reading.asked.seed), self.chunk(), reading)
    }

    fn environment(&self, key: Key) -> Option<Box<dyn Environment>> {
        Some(Box::new(Attempt { push: Push::start(key), image_size: self.image_size }))
    }

    fn inputs(&self, _: &Predicting<'_>) -> Result<Inputs, Error> {
        Err(Error::NotPredicted { why: ACTS })
    }

    fn survey(&self, asked: &Asked<'_>) -> Result<Survey, Error> {
        let asked_of = (&asked.split, asked.found);
        windows::survey(&self.behaviour(asked.seed), self.chunk(), asked_of)
    }
}

/// An attempt at the task.
struct Attempt {
    push: Push,
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
