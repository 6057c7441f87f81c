//! What samples are, so that a model can say which it takes.

use crate::plan::SourcePlan;

/// What the samples of a data set are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modality {
    /// (channels, height, width)
    Images,
    /// Rows of numbers, each with a class or a number.
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

impl SourcePlan {
    /// What its samples are.
    pub fn modality(&self) -> Modality {
        match self {
            Self::ImageFolder { .. } | Self::Mnist { .. } => Modality::Images,
            Self::Csv { .. } => Modality::Table,
            Self::CsvForecast { .. } => Modality::Series,
            Self::Text { .. } | Self::Instructions(_) | Self::Tokens { .. } => Modality::Text,
            Self::Trajectories { .. } => Modality::Behaviour,
            Self::Speech(_) => Modality::Speech,
        }
    }

    /// Whether samples are images, which transforms can change.
    pub fn holds_images(&self) -> bool {
        self.modality() == Modality::Images
    }
}
