//! Parquet files, read with bounds on what they may claim.

mod thrift;
mod footer;
mod header;
mod pages;
mod table;
mod images;
mod files;

pub(super) use files::{cameras, is_parquet, listed, read};
pub(super) use images::listed as listed_images;
