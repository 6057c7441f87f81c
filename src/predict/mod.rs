//! A checkpoint and files without answers -> predictions.
//!
//! ```text
//! checkpoint ─Predictor─▶ inputs ─parts─▶ batches ─model─▶ answers ─Form─▶ rows ─format─▶ csv, jsonl, parquet
//! ```
//!
//! Each data set reads inputs without answers in its own way
//! ([`DataSource::inputs`](crate::data::DataSource::inputs)). Batches are cut by the place of a
//! sample among the inputs, so the rows are the same for any number of ranks. Rows are written as
//! they come, so memory does not grow with their number.
//!
//! ```no_run
//! use ddprun::kinds::Kinds;
//! use ddprun::predict::Predictor;
//!
//! # fn main() -> Result<(), ddprun::predict::Error> {
//! let mut model = Predictor::open("logs/quickstart/20261123-020701-3fa2", &Kinds::default())?;
//! for row in model.predict(&["photos"])?.iter() {
//!     println!("{} {}", row["path"], row["class"]);
//! }
//! # Ok(())
//! # }
//! ```

mod error;
mod row;
mod form;
mod format;
mod predictor;
mod part_folder;
mod job;
mod request_body;
mod service;

pub use error::Error;
pub(crate) use format::Format;
pub(crate) use job::{Job, Progress, run};
pub use predictor::{Predictions, Predictor};
pub(crate) use row::JobSummary;
pub use row::{Column, ColumnType, Row, Value};
pub(crate) use service::Service;
