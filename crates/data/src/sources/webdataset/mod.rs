//! `data.name = "webdataset"`: tar shards of encoded images and their classes, read where they lie.

mod tar_shard;
mod index_cache;
mod data_set;
mod recognised;

pub use data_set::WebDataset;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use data_set::read_shard;
pub use recognised::TarShards;
