//! Parquet files, read with bounds on what they may claim.

mod thrift;
mod footer;
mod header;
mod pages;
mod table;
mod images;
mod files;

pub(super) use files::Parquet;
