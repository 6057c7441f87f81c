//! Tables: rows of numbers, each with a class or a number.

pub(in crate::data) mod table;
pub(in crate::data) mod csv;
mod jsonl;

pub use csv::Csv;
pub use jsonl::Jsonl;
