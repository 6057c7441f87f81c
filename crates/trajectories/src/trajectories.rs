//! `data.name = "trajectories"`

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::chunk::{self, ACTS, Behaviour};
use crate::config::kind::{BuiltinSplits, Capability, Kind, Modality, OptionConflict, Options};
use crate::data::{
    Chunk, DataSource, Error, Files, Inputs, OpenRequest, PredictionRequest, Splits, Survey,
    SurveyRequest,
};
use crate::windows;

/// recorded observations and actions; the next actions are predicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Trajectories {
    /// an npz file with the arrays `obs` (steps, numbers), `actions` (steps, numbers), and
    /// `episode_starts` (steps) or `episode_ends` (episodes); or a parquet file, or the folder of a
    /// LeRobot data set, with the columns `observation.state`, `action` and `episode_index`. Null,
    /// NaN and infinite numbers are refused. Numbers are scaled to -1 .. 1 by their ranges in the
    /// training episodes.
    #[schemars(extend("format" = "path"), example = "data/expert.npz")]
    pub file: PathBuf,
    /// cameras whose images are part of each observation: columns of a parquet file, images in the
    /// folder `images` of a LeRobot data set (videos are not read), or uint8 arrays (steps, height,
    /// width, channels) of an npz file. `data.transforms` apply to them.
    #[serde(default)]
    #[schemars(example = ["observation.images.top"])]
    pub cameras: Vec<String>,
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
    /// fraction of the episodes, at the end, held out for validation, unless `data.val_fraction` or
    /// `data.folds` is given.
    #[serde(default = "chunk::val_ratio")]
    #[schemars(extend("exclusiveMinimum" = 0.0, "exclusiveMaximum" = 1.0))]
    pub val_ratio: f64,
}

impl Kind for Trajectories {
    const NAME: &'static str = "trajectories";
    const CAPABILITIES: &'static [Capability] = &[
        Capability::Samples(Modality::Behaviour),
        Capability::Cameras,
        Capability::Split(BuiltinSplits::LAST),
    ];

    fn check(&self) -> Vec<OptionConflict> {
        let twice = (1..self.cameras.len()).find(|&i| self.cameras[..i].contains(&self.cameras[i]));
        let twice = twice.map(|i| OptionConflict {
            key: "cameras",
            with: &[],
            what: format!("names `{}` twice", self.cameras[i]),
        });
        chunk::check(self.chunk()).into_iter().chain(twice).collect()
    }
}

impl Trajectories {
    fn chunk(&self) -> Chunk {
        let &Self { horizon, n_obs_steps, n_action_steps, val_ratio, .. } = self;
        Chunk { horizon, n_obs_steps, n_action_steps, val_ratio }
    }

    fn behaviour(&self) -> Behaviour {
        Behaviour::Recorded { file: self.file.clone(), cameras: self.cameras.clone() }
    }
}

impl DataSource for Trajectories {
    fn open(&self, reading: &OpenRequest<'_>) -> Result<Splits, Error> {
        windows::open(&self.behaviour(), self.chunk(), reading)
    }

    fn inputs(&self, _: &PredictionRequest<'_>) -> Result<Inputs, Error> {
        Err(Error::NotPredicted { why: ACTS })
    }

    fn survey(&self, request: &SurveyRequest<'_>) -> Result<Survey, Error> {
        windows::survey(&self.behaviour(), self.chunk(), &request.split, request.found)
    }

    fn files(&self, _: &Options) -> Result<Vec<Files>, Error> {
        const NAME: &str = "trajectories";
        if !self.file.is_dir() {
            return Ok(vec![Files::one(NAME, &self.file)]);
        }
        let [paths, images] = windows::reader_of(&self.file).files(&self.file, &self.cameras)?;
        let mut files = vec![Files { by_contents: true, ..Files::many(NAME, &self.file, paths) }];
        if !images.is_empty() {
            files.push(Files::many("images", &self.file, images));
        }
        Ok(files)
    }
}
