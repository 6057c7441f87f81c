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
    /// A simulation in which policies are tried when the training is over: `test/success` can be
    /// expected.
    Simulation,
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
