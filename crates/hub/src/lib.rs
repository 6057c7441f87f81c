//! `hf:ORG/NAME[@REVISION][/FILE]` -> a file on this machine, fetched once.
//!
//! Files lie in the cache of Python's `huggingface_hub`, in its layout and under its locks and
//! environment variables, so that what either program has fetched is found by the other. A file has
//! its final name only once its length and hash are those that the hub announced; what a broken
//! connection or a killed process has left is continued. Nothing here runs where ranks train: one
//! process fetches before they start.

#![expect(missing_docs, reason = "an error's operands say their names")]

mod name;
mod error;
mod settings;
mod cache;
mod progress;
mod archive;
mod catalog;
mod client;
mod fetch;

pub use cache::Cache;
pub use catalog::{KnownFile, KnownSet};
pub use error::Error;
pub use fetch::{Hub, Snapshot};
pub use name::{BadName, HubName, Repo, RepoKind};
pub use progress::{OnProgress, Progress};
pub use settings::Config;
