//! Parquet files, read with bounds on what they may claim.

mod thrift;
mod footer;
mod header;
mod pages;
mod table;
mod files;

pub(super) use files::{is_parquet, listed, read};
