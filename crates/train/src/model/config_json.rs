//! JSON files that describe what lies beside them: weights, adapters.

use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// Why a description was not understood.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read.
    #[error("`{}` cannot be read: {source}", path.display())]
    Read {
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Not JSON, or without the numbers that are needed.
    #[error("`{}` does not describe {what}: {source}", path.display())]
    Format {
        path: PathBuf,
        /// What it should describe.
        what: &'static str,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// A variant that is computed differently.
    #[error("`{}` has {what}, which `{model}` does not compute", path.display())]
    Unknown {
        path: PathBuf,
        /// Our model.
        model: &'static str,
        /// The key and its value.
        what: String,
    },
    /// The experiment says something else.
    #[error("`model.lora.{key}` is {given}, but `{}` has {found}", path.display())]
    Differs {
        path: PathBuf,
        key: &'static str,
        /// In the experiment.
        given: String,
        /// In the file.
        found: String,
    },
}

/// The file at `path`, which describes `what`.
pub(super) fn read<T: DeserializeOwned>(path: &Path, what: &'static str) -> Result<T, Error> {
    let bytes =
        crate::files::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let format = |source| Error::Format { path: path.to_owned(), what, source };
    serde_json::from_slice(&bytes).map_err(format)
}
