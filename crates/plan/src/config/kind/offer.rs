//! Capabilities of a kind that the rest of an experiment may use.

use serde::{Deserialize, Serialize};

/// A capability that the rest of the experiment may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Samples of this modality.
    Samples(Modality),
    /// Images among its observations, which transforms change, where the experiment asks for them.
    Cameras,
    /// Samples to test on when the training is over: `test/mse` and others can be expected.
    Test,
    /// Training samples that can be held back: `val_fraction` and others say which.
    Split(BuiltinSplits),
    /// A simulation in which policies are tried when the training is over: `test/success` can be
    /// expected.
    Simulation,
}

/// Validation and test parts that a data set has by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuiltinSplits {
    /// Options that name a validation part; none = there is always one, which becomes the test part
    /// where training samples are held back to validate.
    pub val: &'static [&'static str],
    /// True if one of them must be given where nothing is held back.
    pub needs_val: bool,
    /// Options that name a test part.
    pub test: &'static [&'static str],
    /// True if samples can be split at random; else held-back samples follow those to train on.
    pub deals: bool,
}

impl BuiltinSplits {
    /// `val_file` or held-back samples, and `test_file`.
    pub const FILES: Self =
        Self { val: &["val_file"], needs_val: true, test: &["test_file"], deals: true };
    /// `val_dir` or held-back samples, and `test_dir`.
    pub const FOLDERS: Self =
        Self { val: &["val_dir"], needs_val: true, test: &["test_dir"], deals: true };
    /// A validation part that is always there.
    pub const FIXED: Self = Self { val: &[], needs_val: false, test: &[], deals: true };
    /// `val_ratio` of the samples, the last ones.
    pub const LAST: Self = Self { val: &["val_ratio"], ..Self::FIXED };
}

/// Type of the samples of a data set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Modality {
    /// (channels, height, width)
    Images,
    /// Rows of numbers, each with a class or a number.
    #[default]
    Table,
    /// Windows of series in time, with what follows.
    Series,
    /// Tokens, each with the next one.
    Text,
    /// Observations, with the actions that follow.
    Behaviour,
    /// Mel bands over time.
    Speech,
    /// Numbers that are ready for the model, in shapes that only the samples tell: see
    /// [`Modality::of_shape`].
    Arrays,
}

impl Modality {
    /// Words for a sentence.
    pub fn words(self) -> &'static str {
        match self {
            Self::Images => "images",
            Self::Table => "rows of a table",
            Self::Series => "series in time",
            Self::Text => "text in tokens",
            Self::Behaviour => "observations and actions",
            Self::Speech => "speech",
            Self::Arrays => "arrays",
        }
    }

    /// The modality for which models take samples of this shape: (channels, height, width), (steps,
    /// features) or (features).
    pub fn of_shape(shape: &[usize]) -> Self {
        match shape.len() {
            3 => Self::Images,
            2 => Self::Series,
            _ => Self::Table,
        }
    }
}
