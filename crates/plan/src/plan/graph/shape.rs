//! What flows between the layers of a graph.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::plan::{Modality, Unfit};

/// One sample between two layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flow {
    /// Channels, height, width.
    Image([usize; 3]),
    /// Steps, features.
    Sequence([usize; 2]),
    /// The same of recordings, which are padded to one length, with the frames from one step to the
    /// next: what a recording's length is counted in.
    Padded([usize; 3]),
    /// Features.
    Vector(usize),
    /// Steps, each a token.
    Tokens(usize),
}

impl Flow {
    /// A sample of shape `input` whose target has shape `target`: with a target per element it is a
    /// text. Of speech, it is the frames without the row that says how many there are.
    pub(super) fn of(modality: Modality, input: &[usize], target: &[usize]) -> Option<Self> {
        Some(match *input {
            [_, rows, bands] if modality == Modality::Speech => {
                Self::Padded([rows.saturating_sub(1), bands, 1])
            }
            [channels, height, width] => Self::Image([channels, height, width]),
            [steps, features] => Self::Sequence([steps, features]),
            [steps] if *target == [steps] => Self::Tokens(steps),
            [features] => Self::Vector(features),
            _ => return None,
        })
    }

    /// What the loss needs: `outputs` numbers, or as many for each step of the target.
    pub(super) fn needed(outputs: usize, target: &[usize]) -> Self {
        match *target {
            [steps, ..] => Self::Sequence([steps, outputs]),
            [] => Self::Vector(outputs),
        }
    }

    /// Channels or features; none for tokens.
    pub fn features(self) -> Option<usize> {
        match self {
            Self::Image([features, ..])
            | Self::Sequence([_, features])
            | Self::Padded([_, features, _])
            | Self::Vector(features) => Some(features),
            Self::Tokens(_) => None,
        }
    }

    /// The same with other channels or features.
    #[must_use]
    pub fn with_features(self, features: usize) -> Self {
        match self {
            Self::Image([_, height, width]) => Self::Image([features, height, width]),
            Self::Sequence([steps, _]) | Self::Tokens(steps) => Self::Sequence([steps, features]),
            Self::Padded([steps, _, stride]) => Self::Padded([steps, features, stride]),
            Self::Vector(_) => Self::Vector(features),
        }
    }

    /// A sequence after a window slid over it; of one that is padded, it is known which steps are
    /// padding where the window keeps to the stride.
    #[must_use]
    pub fn slid(self, steps: usize, features: usize, stride: usize) -> Self {
        match self {
            Self::Padded([before, _, frames]) if steps == before.div_ceil(stride.max(1)) => {
                Self::Padded([steps, features, frames * stride])
            }
            _ => Self::Sequence([steps, features]),
        }
    }

    /// The frames from one step to the next, if steps beyond a sample's own length are padding.
    pub fn padded(self) -> Option<usize> {
        match self {
            Self::Padded([_, _, frames]) => Some(frames),
            _ => None,
        }
    }

    /// Vectors of features in one sample.
    pub fn rows(self) -> usize {
        match self {
            Self::Image([_, height, width]) => height * width,
            Self::Sequence([steps, _]) | Self::Padded([steps, ..]) | Self::Tokens(steps) => steps,
            Self::Vector(_) => 1,
        }
    }

    /// (channels, height, width) of an image.
    pub fn image(self) -> Result<[usize; 3], Unfit> {
        match self {
            Self::Image(sides) => Ok(sides),
            _ => Err(self.is_no("an image")),
        }
    }

    /// (steps, features) of a sequence.
    pub fn sequence(self) -> Result<[usize; 2], Unfit> {
        match self {
            Self::Sequence(sides) => Ok(sides),
            Self::Padded([steps, features, _]) => Ok([steps, features]),
            _ => Err(self.is_no("a sequence")),
        }
    }

    /// The same, if it is of numbers.
    pub fn numbers(self) -> Result<Self, Unfit> {
        match self {
            Self::Tokens(_) => {
                let help = Some("put `embedding` before it");
                Err(Unfit { help, ..self.is_no("numbers") })
            }
            _ => Ok(self),
        }
    }

    /// Why it does not suit a layer that needs `what`.
    pub fn is_no(self, what: &str) -> Unfit {
        Unfit::of_all(format!("needs {what}, but gets {}", self.in_words()))
    }

    /// "an image of 64x56x56"
    pub fn in_words(self) -> String {
        match self {
            Self::Image(_) => format!("an image of {self}"),
            Self::Sequence([steps, features]) | Self::Padded([steps, features, _]) => {
                format!("a sequence of {steps} steps with {features} features")
            }
            Self::Vector(features) => format!("a vector of {features}"),
            Self::Tokens(steps) => format!("a text of {steps} tokens"),
        }
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image([channels, height, width]) => write!(f, "{channels}x{height}x{width}"),
            Self::Sequence([steps, features]) | Self::Padded([steps, features, _]) => {
                write!(f, "{steps}x{features}")
            }
            Self::Vector(length) | Self::Tokens(length) => write!(f, "{length}"),
        }
    }
}
