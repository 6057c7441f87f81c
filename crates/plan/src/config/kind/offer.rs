//! What a kind has to offer to the rest of an experiment.

use serde::{Deserialize, Serialize};

/// What the rest of an experiment may build on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Samples of this modality.
    Samples(Modality),
    /// Images among its observations, which transforms change, where the experiment asks for them.
    Cameras,
    /// Samples to test on when the training is over: `test/mse` and others can be expected.
    Test,
    /// Training samples that can be held back: `val_fraction` and others say which.
    Split(OwnParts),
    /// A simulation in which policies are tried when the training is over: `test/success` can be
    /// expected.
    Simulation,
}

/// What a data set has to validate and to test on by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnParts {
    /// The options of which one says what validates; none = there is always a validation part,
    /// which is to test on where training samples are held back to validate.
    pub val: &'static [&'static str],
    /// Whether one of them has to be given where nothing is held back.
    pub needs_val: bool,
    /// The options of which one says what tests.
    pub test: &'static [&'static str],
    /// Whether samples can be dealt out; else what is held back follows what is trained on.
    pub deals: bool,
}

impl OwnParts {
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

/// What the samples of a data set are.
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
}

impl Modality {
    /// As it stands in a sentence.
    pub fn words(self) -> &'static str {
        match self {
            Self::Images => "images",
            Self::Table => "rows of a table",
            Self::Series => "series in time",
            Self::Text => "text in tokens",
            Self::Behaviour => "observations and actions",
            Self::Speech => "speech",
        }
    }
}
