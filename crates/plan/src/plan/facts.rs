//! Facts about the machine, the data and its samples, measured elsewhere and handed in, so that
//! planning is pure. What registered components declare of themselves stands beside the plan of
//! their table: `LossFacts` in `loss.rs`, `OptimizerFacts` in `optimizer.rs` ...

use serde::{Deserialize, Serialize};

use crate::config::Problem;
use crate::config::kind::{Choice, Options};
use crate::plan::{Bf16Instructions, Cameras, Modality, PixelDtype, PixelStats, TrainedOn};
use train_numbers::units::{Bytes, WorldSize};

/// The data and the machine, as measured before planning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Cores that this process may use.
    pub cores: usize,
    /// Main memory that this process may use; `None` = unknown.
    #[serde(default)]
    pub memory: Option<Bytes>,
    /// Instructions of the CPU that multiply bf16 numbers; `None` = f32 numbers are rounded.
    #[serde(default)]
    pub bf16: Option<Bf16Instructions>,
    /// True if these have a higher throughput than f32 instructions.
    #[serde(default)]
    pub bf16_is_faster: bool,
    /// The data, counted.
    pub data: DataFacts,
    /// GPUs that CUDA shows, in its order; `None` if this program was built without CUDA.
    pub gpus: Option<Vec<GpuFacts>>,
    /// Number of ranks that a foreign launcher (torchrun, srun) started.
    pub launched_world: Option<WorldSize>,
    /// Local rank of this process under such a launcher; 0 without one.
    #[serde(default)]
    pub local_rank: u32,
    /// Machines that take part, with as many ranks each.
    pub nodes: u32,
    /// The library of the MPI launcher that started this process; `None` without such a launcher,
    /// and where it is not needed.
    #[serde(default)]
    pub mpi: Option<MpiFacts>,
    /// Preprocessing of the images that the weights of `model.pretrained` were trained on; `None` =
    /// no file beside the weights describes it.
    #[serde(default)]
    pub trained_on: Option<TrainedOn>,
}

impl Facts {
    /// Facts of `data` on one machine with one core, no GPU and no launcher, for programs that plan
    /// a run without looking at the machine: tests, benches and your own.
    pub fn of(data: DataFacts) -> Self {
        Self {
            cores: 1,
            memory: None,
            bf16: None,
            bf16_is_faster: false,
            data,
            gpus: None,
            launched_world: None,
            local_rank: 0,
            nodes: 1,
            mpi: None,
            trained_on: None,
        }
    }
}

/// State of an MPI launcher's library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MpiFacts {
    /// It was opened.
    Found,
    /// It was not.
    Unusable {
        /// The reason.
        why: String,
        /// A remedy for the user.
        help: String,
    },
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuFacts {
    /// The vendor's name for it.
    pub name: String,
    /// All of its memory.
    #[serde(rename = "held")]
    pub memory: Bytes,
}

/// The data, counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DataFacts {
    /// The data set.
    pub source: SourcePlan,
    /// Samples to train on.
    pub n_train: usize,
    /// Training samples that the data set has, if only a part of them is taken.
    #[serde(default)]
    pub subset_of: Option<usize>,
    /// Samples to validate on.
    pub n_val: usize,
    /// Samples to test on when the training is over; 0 = there is no test.
    pub n_test: usize,
    /// Remarks for the user: gaps between dates, files that were left out.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Class names in label order; empty for regression.
    pub classes: Vec<String>,
    /// Bytes of text of each class, if classes are tokens for which that is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub token_bytes: Vec<u32>,
    /// Training samples of each class; empty if they are not counted.
    #[serde(default)]
    pub class_counts: Vec<u64>,
    /// True if a sample may have several classes.
    #[serde(default)]
    pub multi_label: bool,
    /// Length of a target that is a flat list of numbers; 0 = it is one number or has a shape.
    #[serde(default)]
    pub n_targets: usize,
    /// Named numbers of a target: columns of a table, series of a forecast.
    #[serde(default)]
    pub target_columns: Vec<TargetColumn>,
    /// Widths of the one-hot categories at the end of a sample.
    #[serde(default)]
    pub one_hot: Vec<usize>,
    /// Shape of one sample where the files decide it: (1, 28, 28) for MNIST, (features) for a
    /// table, (time steps, series and features of the date) for a forecast, (tokens) for a text;
    /// `None` for image folders, whose transforms decide.
    pub sample: Option<Vec<usize>>,
    /// Shape of one sample's target where it is an array: (time steps, series) of a forecast,
    /// (tokens) of a text; empty for a label or a number.
    pub target: Vec<usize>,
    /// Images that each observation holds beside the numbers of `sample`, before transforms.
    #[serde(default)]
    pub cameras: Option<Cameras>,
    /// Pixel statistics that normalize images where no transform does.
    #[serde(default)]
    pub pixels: Option<PixelStats>,
    /// Type of the pixels of image files.
    #[serde(default, skip_serializing_if = "PixelDtype::is_usual")]
    pub pixel_dtype: PixelDtype,
}

impl DataFacts {
    /// True if a sample is a pair of texts, (tokens, 2).
    pub fn holds_pairs(&self) -> bool {
        self.source.modality == Modality::Text && self.target.len() == 2
    }
}

/// A data set: the component that was chosen, and what its survey measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SourcePlan {
    /// The data set and its options.
    pub kind: Choice,
    /// Type of its samples.
    pub modality: Modality,
    /// The data set in a line: its files, and how they are cut.
    pub line: String,
    /// Memory in which each rank holds the data set.
    #[serde(rename = "held")]
    pub memory: Bytes,
    /// Results of the survey that reading needs, by names that the data set chooses.
    #[serde(rename = "found")]
    pub survey: Options,
}

impl SourcePlan {
    /// A data set of which only the name and the type of its samples are known.
    pub fn new(name: &str, modality: Modality) -> Self {
        Self { kind: Choice::named(name), modality, line: name.to_owned(), ..Self::default() }
    }

    /// True if samples are images, which transforms can change.
    pub fn holds_images(&self) -> bool {
        self.modality == Modality::Images
    }
}

/// A number to predict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetColumn {
    /// Name in the data.
    pub name: String,
    /// The standard deviation that it was divided by, in its own unit; 1 if it was not.
    pub scale: f64,
}

/// Why a component cannot be used with the rest of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// The option that is wrong; empty = the component as a whole.
    pub key: &'static str,
    /// The reason, a fragment: "must be at most the learning rate, 0.1".
    pub what: String,
    /// A remedy.
    pub help: Option<&'static str>,
}

impl Unfit {
    /// A misfit of the component as a whole, not of one option.
    pub fn of_all(what: String) -> Self {
        Self { key: "", what, help: None }
    }

    /// The misfit as `draw` reports its reason, with its remedy.
    pub(super) fn problem(self, draw: impl FnOnce(String) -> Problem) -> Problem {
        draw(self.what).maybe_help(self.help)
    }
}
