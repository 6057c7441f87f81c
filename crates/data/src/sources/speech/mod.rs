//! Utterances.

mod mel;
mod noise;
mod wav;
pub(crate) mod audio;
mod resample;
mod utterances;
mod folder;
mod manifest;
mod source;
#[cfg(test)]
mod tests;

pub use mel::LogMel;
pub use source::Speech;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use utterances::features;
