//! Parquet files: the columns of a file as typed values, read with bounds on what they may claim.

mod thrift;
mod footer;
mod header;
mod pages;
mod table;
mod rows;
mod columns;

pub use columns::{Column, ColumnKind};
pub use rows::json_lines;
pub use table::{Rows, Table};
