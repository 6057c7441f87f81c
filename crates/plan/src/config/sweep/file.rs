//! The file of a sweep: each key is declared here, and nowhere else (see `table`).

use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::schema::{Mode, WEEK};
use crate::config::sweep::Json;
use crate::config::table::{self, table};
use crate::config::values::{Auto, Duration};

/// Most devices, most trials at a time.
const MAX_DEVICES: u32 = 1024;
const MAX_TRIALS: u64 = 1_000_000;
const MAX_REPEATS: u32 = 1000;

/// The keys of a sweep, as they are declared.
pub(crate) static DECLARED: LazyLock<Json> = LazyLock::new(table::declared::<SweepFile>);

table! {
    /// Every key of a sweep, what it means, and its default.
    ///
    /// A key without a default is shown as a comment, with an example. Each can be given on the
    /// command line: `sweep.trials=48`.
    pub(crate) struct SweepFile {
        /// Schema version of this file. Newer versions are refused.
        pub(crate) schema: u32 = 1,
        /// The experiment that trials modify; relative to this file. Required.
        #[schemars(example = &"quickstart.toml")]
        pub(crate) base: String,
        /// What is searched, and how.
        pub(crate) sweep: SweepTable,
    }
}

table! {
    /// What is searched, and how.
    pub(crate) struct SweepTable {
        /// Name of the sweep's folder: letters, digits, `.`, `_`, `-`. Default: the file's name
        /// without its ending; for an experiment with a search on the command line
        /// `<experiment>-sweep`, with a number where another sweep has that name.
        #[schemars(
            example = &"quickstart-lr",
            extend("pattern" = "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$"),
        )]
        pub(crate) name: Option<String>,
        /// How the values of trials are chosen. Options of a method are in a table of its name,
        /// such as `[sweep.lr_range]`.
        pub(crate) method: String = "grid".to_owned(),
        /// The validation metric that ranks trials. Default: the base's `checkpoint.monitor`.
        #[schemars(example = &"val/accuracy")]
        pub(crate) metric: Option<String>,
        /// Whether lower ("min") or higher ("max") is better. Default: it follows from the metric.
        #[schemars(example = Goal::Max)]
        pub(crate) goal: Option<Goal>,
        /// Trials in total, including finished ones when the sweep continues. random, tpe, gp:
        /// required. grid, list: all by default. No setting is trained twice: if there are fewer
        /// settings, the sweep ends with them.
        #[schemars(range(min = 1, max = MAX_TRIALS), example = 24)]
        pub(crate) trials: Option<u64>,
        /// Time after which the sweep stops, counted from the start of the command: "90m", "8h".
        /// Trials that run then are saved, and the same command continues them. With `--share`,
        /// each worker leaves after its own time.
        #[schemars(extend("exclusiveMinimum" = 0, "maximum" = 52 * WEEK, "examples" = ["8h"]))]
        pub(crate) time: Option<Duration>,
        /// Value of the metric that is good enough: once a finished trial has reached it (with
        /// folds or seeds, the mean of a setting), the sweep ends.
        #[schemars(example = 0.94)]
        pub(crate) until: Option<f64>,
        /// Settings that may be tried in a row without a better one; then the sweep ends. Failed
        /// trials do not count.
        #[schemars(range(min = 1, max = MAX_TRIALS), example = 50)]
        pub(crate) patience: Option<u64>,
        /// Trials per setting at most. A setting is trained again, with another seed, as long as it
        /// may still be the best, and settings are compared by their means. If `data.fold`,
        /// `data.split_seed` or `experiment.seed` is a parameter, its values are the repeats;
        /// otherwise they are the base's seed and those that follow it.
        #[schemars(range(min = 2, max = MAX_REPEATS), example = 3)]
        pub(crate) repeats: Option<u32>,
        /// Seed of all random draws.
        #[schemars(range(min = 0, max = i64::MAX))]
        pub(crate) seed: u64 = 42,
        /// Ranks of each trial.
        #[schemars(range(min = 1, max = MAX_DEVICES))]
        pub(crate) devices_per_trial: u32 = 1,
        /// Trials that share a device.
        #[schemars(range(min = 1, max = MAX_DEVICES))]
        pub(crate) trials_per_device: u32 = 1,
        /// Trials that run at the same time; `"auto"`: devices x `trials_per_device` /
        /// `devices_per_trial`.
        #[schemars(extend("minimum" = 1, "maximum" = MAX_DEVICES))]
        pub(crate) concurrent_trials: Auto<u32> = Auto::Auto,
        /// Failed trials that are tolerated; one more ends the sweep.
        #[schemars(range(min = 0, max = MAX_TRIALS))]
        pub(crate) max_failures: u32 = 3,
        /// Whether the checkpoints of a pruned trial are kept.
        pub(crate) keep_pruned_checkpoints: bool = false,
        /// Rules that the values of a trial must satisfy: + - * / %, comparisons, `and`, `or`,
        /// `not`, parentheses.
        #[schemars(
            with = "Option<Texts>",
            extend("examples" = [["train.global_batch_size * optimizer.lr <= 64"]]),
        )]
        pub(crate) constraints: Option<Json>,
        /// The search space: keys of the experiment, each with a list of values, or a table with
        /// `values`, or with a `distribution` (`"uniform"`, `"log_uniform"`, `"int_uniform"`,
        /// `"int_log_uniform"` or `"q_uniform"`) and its `min`, `max` and, for `q_uniform`, `q`.
        /// Keys may be in lists (`"data.transforms.train[0].size"`), and values may be whole
        /// tables (`"optimizer" = [{ name = "sgd", lr = 0.1 }, { name = "adamw" }]`). `when`: this
        /// parameter is active only while other parameters, or keys of the base, have these
        /// values. `"off"` as a value: the key is not set. `data.fold`, `data.split_seed`,
        /// `experiment.seed`: each setting is trained with all of their values, and compared by
        /// its mean.
        #[schemars(extend("examples" = [{ "optimizer.lr": [0.1, 0.01] }]))]
        pub(crate) parameters: Option<Json>,
        /// For the method `list`: the trials, each a table of keys that begins with
        /// `[[sweep.list]]`.
        #[schemars(extend("examples" = [[{ "optimizer.lr": 0.1 }]]))]
        pub(crate) list: Option<Json>,
        /// For random, tpe, gp: settings to try first, such as good ones that are known, each a
        /// table that begins with `[[sweep.start]]`. Its keys are parameters, and its values are in
        /// the search space; what it leaves out keeps the base's value.
        #[schemars(extend("examples" = [[{ "optimizer.lr": 0.1 }]]))]
        pub(crate) start: Option<Json>,
        /// How bad trials are stopped early: a name, or a table `[sweep.pruner]` with `name` and
        /// options.
        #[schemars(extend("examples" = ["none"]))]
        pub(crate) pruner: Option<Json>,
    }
}

/// One text, or several.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
enum Texts {
    /// One.
    One(String),
    /// Several.
    Several(Vec<String>),
}

/// Whether less or more of the metric is better, in the words of Hydra as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goal {
    /// Less is better.
    Min,
    /// More is better.
    Max,
    /// As `min`.
    Minimize,
    /// As `max`.
    Maximize,
}

impl From<Goal> for Mode {
    fn from(goal: Goal) -> Self {
        match goal {
            Goal::Min | Goal::Minimize => Self::Min,
            Goal::Max | Goal::Maximize => Self::Max,
        }
    }
}
