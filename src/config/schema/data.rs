//! `[data]`: what is read, in which order, and what becomes of each image.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Entry;
use crate::config::values::{Auto, SplitRule};

/// `[data]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// Kind of data set.
    pub name: DataKind,
    /// `image_folder`, `speech`: folder to train on.
    pub train_dir: Option<PathBuf>,
    /// The same for validation.
    pub val_dir: Option<PathBuf>,
    /// `mnist`: folder of the four idx files (`.gz` or not). `shapes`: folder to generate into.
    pub dir: Option<PathBuf>,
    /// `csv`: training table with a header line. `tokens`: 16-bit tokens.
    pub train_file: Option<PathBuf>,
    /// `csv`: validation table. `tokens`: 16-bit tokens.
    pub val_file: Option<PathBuf>,
    /// `csv`: name of the column to predict.
    pub target: Option<String>,
    /// `csv_forecast`: table of series, one row per time step. `tokens`: text.
    pub file: Option<PathBuf>,
    /// `csv_forecast`: how the rows are cut into training, validation and test.
    pub split: Option<SplitRule>,
    /// `csv_forecast`: time steps that the model sees. `tokens`: length of a window.
    pub seq_len: Option<u32>,
    /// `csv_forecast`: time steps that it predicts.
    pub pred_len: Option<u32>,
    /// `csv_forecast`: features of the date beside the series.
    pub calendar: Option<Calendar>,
    /// `csv_forecast`: whether dates must ascend.
    pub check_dates: Option<bool>,
    /// `tokens`: size of the vocabulary of `train_file` and `val_file`.
    pub vocab_size: Option<u32>,
    /// `tokens`, `instructions`: what cuts texts into tokens, a tokenizer.json; "char" = characters.
    pub tokenizer: Option<PathBuf>,
    /// `instructions`: whether only the answer counts.
    pub mask_prompt: Option<bool>,
    /// `instructions`: the token that ends an answer.
    pub eos_token: Option<String>,
    /// Tokens of the text that is drawn when a run is over.
    pub sample_tokens: Option<u32>,
    /// Behaviour: actions that are predicted together.
    pub horizon: Option<u32>,
    /// Behaviour: observations that are seen.
    pub n_obs_steps: Option<u32>,
    /// Behaviour: actions that are done before the next prediction.
    pub n_action_steps: Option<u32>,
    /// Behaviour: share of the episodes that is held back.
    pub val_ratio: Option<f64>,
    /// `push_t_like`: episodes to generate.
    pub episodes: Option<u32>,
    /// `speech`: mel bands.
    pub n_mels: Option<u32>,
    /// `speech`: longer utterances are cut.
    pub max_seconds: Option<f64>,
    /// `shapes`: number of classes, 2 to 90.
    pub classes: Option<u32>,
    /// `shapes`: training images per class.
    pub train_per_class: Option<u32>,
    /// `shapes`: validation images per class.
    pub val_per_class: Option<u32>,
    /// `shapes`: height and width in pixels.
    pub image_size: Option<u32>,
    /// Loader threads per rank; 0 loads in the training thread.
    pub num_workers: Auto<u32>,
    /// Batches that each loader thread prepares ahead.
    pub prefetch_factor: u32,
    /// Drop the samples that do not fill a global batch at the end of an epoch.
    pub drop_last: bool,
    /// New order in each epoch.
    pub shuffle: bool,
    /// "shards" (same samples per step at any world size) or "torch" (`DistributedSampler`'s order).
    pub sampler: Sampler,
    /// What to do about a sample that cannot be read.
    pub on_bad_sample: OnBadSample,
    /// Largest share of unreadable samples that is passed over.
    pub max_bad_fraction: f64,
    /// Image transforms.
    pub transforms: Transforms,
}

/// Kinds of data sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DataKind {
    /// Folders of images, one folder per class, as torchvision's `ImageFolder`.
    ImageFolder,
    /// The idx files of MNIST and its relatives.
    Mnist,
    /// Generated coloured shapes and textures, written as an image folder on first use.
    Shapes,
    /// A table of numbers with a header line; one column is the target.
    Csv,
    /// A table of series in time; what comes next is the target.
    CsvForecast,
    /// A text as characters or tokens; the next one is the target.
    Tokens,
    /// Instructions and their answers, in Alpaca's form.
    Instructions,
    /// Recorded observations and actions; the next actions are the target.
    Trajectories,
    /// The same of a generated task that has two right ways.
    PushTLike,
    /// Folders of WAV files.
    Speech,
}

/// Features of the date that a forecaster sees beside the series, each from -0.5 to 0.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Calendar {
    /// None.
    None,
    /// Hour, day of the week, day of the month, day of the year.
    Hour,
    /// Minute, and those of `hour`.
    Minute,
}

impl Calendar {
    /// Number of features.
    pub fn features(self) -> usize {
        match self {
            Self::None => 0,
            Self::Hour => 4,
            Self::Minute => 5,
        }
    }
}

/// Order of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sampler {
    /// The global batch is cut into shards; independent of the world size.
    Shards,
    /// `torch.utils.data.DistributedSampler`, bit for bit.
    Torch,
}

/// Policy for samples that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnBadSample {
    /// Stop and name the file.
    Error,
    /// Use the next readable sample in file order instead, and count it.
    Skip,
}

/// `[data.transforms]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Transforms {
    /// Applied to training images, in order.
    pub train: Vec<Entry>,
    /// Applied to validation images, in order.
    pub val: Vec<Entry>,
}
