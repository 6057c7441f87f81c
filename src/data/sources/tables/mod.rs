//! Tables: rows of numbers, words and dates, each with a class or numbers to predict.

pub(in crate::data) mod column_names;
pub(in crate::data) mod dates;
pub(in crate::data) mod features;
pub(in crate::data) mod column;
pub(in crate::data) mod answer;
pub(in crate::data) mod fit;
pub(in crate::data) mod table;
mod date_formats;
mod unanswered;
mod target_cells;
pub(in crate::data) mod csv_rows;
pub(in crate::data) mod header;
pub(in crate::data) mod csv;
mod csv_inputs;
mod jsonl;
#[cfg(test)]
mod tests;

pub use column_names::ColumnNames;
pub use csv::Csv;
pub(crate) use csv_rows::delimiter;
pub use date_formats::DateFormats;
pub use dates::DateFeature;
pub use features::{Features, HandleUnknown, Missing, MissingValues};
pub(crate) use header::other_separator;
pub use jsonl::Jsonl;
pub(crate) use target_cells::TargetCells;
