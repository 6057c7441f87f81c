//! Files on disk -> this rank's batches: survey, decode, augment, shard, prefetch.
//!
//! ```text
//! DataFacts ◀─survey─ DataSource ─open─▶ Dataset ─┐
//!                 EpochOrder ─passes─▶ Request ───┴─Loader─▶ Batch
//! ```
//!
//! Which samples a pass holds and how each is augmented follows from (seed, epoch, sample) alone: no
//! loader thread owns random state, so a run may resume at any step, with any number of threads.
//!
//! Each data set is a file of its own: its options, what it counts, and its samples.

mod caught;
mod names;
mod error;
mod dataset;
mod environment;
mod read;
pub mod transform;
mod images;
mod listing;
mod tokenizer;
mod sources;
mod fingerprint;
mod survey;
mod pipeline;
#[cfg(test)]
mod damaged;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzed;

pub use dataset::{Batch, Dataset, IGNORED, IGNORED_LABEL, Splits, Target};
pub use environment::Environment;
pub use error::{Error, Fault, SampleError};
pub use fingerprint::Fingerprint;
pub use pipeline::{audit, loader, sampler};
pub use sources::{
    Asked, Calendar, Chunk, Csv, CsvForecast, DataFamily, DataSource, DataSources, Files,
    ImageFolder, Instructions, Jsonl, LogMel, Mnist, Policy, PushTLike, Ranges, Reading, Shapes,
    Speech, Survey, Tokens, Trajectories, encode, prompt, scaled, unscaled,
};
pub use survey::{open, survey};
pub use tokenizer::{TextForm, Tokenizer};
pub use transform::Transforms;
