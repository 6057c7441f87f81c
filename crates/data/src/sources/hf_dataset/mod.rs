//! `data.name = "hf_dataset"`: parquet shards of encoded images and their classes, as repositories of
//! the Hugging Face hub hold them.

mod layout;
mod features;
mod rows;
mod image_store;
mod data_set;
mod recognised;

pub use data_set::HfDataset;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use data_set::read_shard;
pub(crate) use layout::{are_synonyms, check_one_split, split_of};
pub use recognised::ImageShards;
