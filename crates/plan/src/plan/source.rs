//! Where samples come from: the data set that was chosen, and what was found out about it.

mod legacy;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::config::kind::{Choice, Options};
use crate::plan::Modality;
use train_numbers::units::Bytes;

/// Where samples come from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")]
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

impl Serialize for SourcePlan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for SourcePlan {
    /// Reads plans of earlier versions, too, in which each data set had a form of its own.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let value = if value.get("kind").is_some() { value } else { legacy::upgraded(&value) };
        Self::deserialize(value).map_err(D::Error::custom)
    }
}
