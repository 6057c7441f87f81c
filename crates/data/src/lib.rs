//! Files on disk -> this rank's batches: survey, decode, augment, shard, prefetch.
//!
//! ```text
//! DataFacts ◀─survey─ DataSource ─open─▶ Dataset ─┐
//!                 EpochOrder ─passes─▶ Request ───┴─Loader─▶ Batch
//! ```
//!
//! The samples of a pass and their augmentation follow from (seed, epoch, sample) alone:
//! no loader thread owns random state, so a run may resume at any step, with any number of threads.
//!
//! Each data set is a file of its own: its options, what it counts, and its samples.
//!
//! ```
//! use ddprun_plan::config::kind::Choice;
//! use ddprun_data::{DataSources, SurveyRequest, survey};
//! use ddprun_plan::plan::Targets;
//!
//! let folder = tempfile::tempdir().unwrap();
//! let file = folder.path().join("houses.csv");
//! std::fs::write(&file, "rooms,price\n3,210\n5,340\n").unwrap();
//! let mut csv = Choice::named("csv");
//! csv.set("train_file", &file);
//! csv.set("val_file", &file);
//! csv.set("target", "price");
//! let request = SurveyRequest::new("houses", 0, Targets::Numbers);
//! let found = survey(&DataSources::default(), &csv, &request).unwrap();
//! assert_eq!((found.n_train, found.sample), (2, Some(vec![1])));
//! ```
#![expect(missing_docs, reason = "\"The file.\" over `path: PathBuf` says nothing")]

use candle_train::ops;
use ddprun_host::{failpoint, files, registry, user_error};
use ddprun_plan::{config, plan, terminal};
#[cfg(test)]
use test_support::{mutated, skipped};
use train_numbers::{rng, units};
mod packed;
mod file_names;
mod error;
mod walk;
mod file_state;
mod dataset;
mod read;
mod json;
pub mod npz;
pub mod parquet;
pub mod transform;
mod images;
mod policy;
mod listing;
mod inputs;
mod tokenizer;
mod chat_template;
mod subset;
mod sources;
mod fingerprint;
mod survey;
mod views;
mod preprocessing;
mod pipeline;
#[cfg(test)]
mod damaged_tests;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz_readers;

pub use chat_template::ChatTemplate;
pub use dataset::{Baseline, Batch, Dataset, IGNORED, IGNORED_LABEL, Splits, Target};
pub use error::{Error, SampleError, Traceback, shown as shown_path};
pub use file_names::{IMAGE_ENDINGS, is_hidden, is_image, unpacked};
pub use fingerprint::Fingerprint;
pub use images::decode::{decode_image, has_more_than_8_bits};
pub use images::orientation::Exif;
pub use inputs::{InputFiles, ends_with as has_ending, files as input_files};
pub use inputs::{InputItem, InputItems, Inputs, OutputScale, PredictionKind, PredictionRequest};
pub use json::object as json_object;
pub use listing::paths::Paths;
pub use pipeline::{SampleWeights, audit, loader, sampler};
pub use policy::{CameraTransform, Chunk, Policy, Ranges, scaled, unscaled};
pub use preprocessing::{image_processor, preprocessing, text_files};
pub use read::{
    caught as catch_panic, open as open_file, panic_message, table as read_table,
    whole as read_file,
};
pub use sources::holdout::{Parts, SampleIndices, SplitUnits, Splittable, numbered};
pub use sources::{
    Calendar, Chat, ColumnNames, Csv, CsvForecast, DataFamily, DataSource, DataSources,
    DateFeature, DateFormats, Environment, Features, Files, FrequencyAlias, HandleUnknown,
    HfDataset, ImageFolder, ImageShards, ImageTable, Instructions, Jsonl, Missing, MissingValues,
    Mnist, NamePattern, OpenRequest, Preferences, PythonData, Shapes, Survey, SurveyRequest,
    TarShards, TokenDtype, Tokens, WebDataset, encode, end_of_answers, prompt,
};
pub use sources::{
    Date, Frequency, TargetCells, dates, delimiter, is_date, is_dated, largest_token,
    other_separator,
};
pub use survey::{open, survey};
pub use tokenizer::{TextForm, Tokenizer};
pub use transform::Transforms;
pub use views::open as open_views;
pub use walk::files_below;
