//! Tables: rows of numbers, words and dates, each with a class or numbers to predict.

pub(crate) mod column_names;
pub(crate) mod dates;
pub(crate) mod features;
pub(crate) mod column;
pub(crate) mod answer;
pub(crate) mod fit;
pub(crate) mod table;
mod date_formats;
mod unlabelled_rows;
mod target_cells;
pub(crate) mod csv_rows;
pub(crate) mod csv;
mod jsonl;
#[cfg(test)]
mod tests;

pub use column_names::ColumnNames;
pub use csv::Csv;
pub use csv_rows::{delimiter, other_separator};
pub use date_formats::DateFormats;
pub use dates::DateFeature;
pub use features::{Features, HandleUnknown, Missing, MissingValues};
pub use jsonl::Jsonl;
pub use target_cells::TargetCells;
