//! Where samples come from: the data set that was chosen, and what was found out about it.

use serde::{Deserialize, Serialize};

use crate::config::kind::{Choice, Options};
use crate::plan::Modality;
use train_numbers::units::Bytes;

/// Where samples come from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SourcePlan {
    /// The data set and its options.
    pub kind: Choice,
    /// What its samples are.
    pub modality: Modality,
    /// The data set in a line: its files, and how they are cut.
    pub line: String,
    /// What each rank holds of it in memory.
    pub held: Bytes,
    /// What was found out and reading needs, by names that the data set chooses.
    pub found: Options,
}

impl SourcePlan {
    /// A data set of which only its name and the kind of its samples are known.
    pub fn new(name: &str, modality: Modality) -> Self {
        let kind = Choice { name: name.to_owned(), options: Options::new() };
        Self { kind, modality, line: name.to_owned(), ..Self::default() }
    }

    /// Whether samples are images, which transforms can change.
    pub fn holds_images(&self) -> bool {
        self.modality == Modality::Images
    }
}
