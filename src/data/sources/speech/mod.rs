//! Utterances.

mod mel;
mod noise;
mod wav;
mod utterances;

pub use mel::LogMel;
pub use utterances::Speech;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use utterances::features;
