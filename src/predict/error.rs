//! Why there are no predictions.

use crate::launch::exit_code as exit;
use crate::{checkpoint, data, files, runs, worker};

/// Why there are no predictions, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Error {
    what: String,
    help: Option<String>,
    code: u8,
}

impl Error {
    pub(crate) fn new(code: u8, what: impl Into<String>) -> Self {
        Self { what: what.into(), help: None, code }
    }

    #[must_use]
    pub(crate) fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// What can be done about it.
    pub fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// The exit code of `ddprun predict`.
    pub fn exit_code(&self) -> u8 {
        self.code
    }
}

impl From<worker::Error> for Error {
    fn from(error: worker::Error) -> Self {
        Self { what: error.to_string(), help: error.help(), code: error.exit_code() }
    }
}

impl From<data::Error> for Error {
    fn from(error: data::Error) -> Self {
        Self { what: error.to_string(), help: error.help(), code: worker::of_data(&error) }
    }
}

impl From<checkpoint::Error> for Error {
    fn from(error: checkpoint::Error) -> Self {
        let help = error.help();
        Self { help, ..Self::new(exit::CHECKPOINT, error.to_string()) }
    }
}

impl From<runs::Error> for Error {
    fn from(error: runs::Error) -> Self {
        let help = error.help();
        Self { help, ..Self::new(exit::CHECKPOINT, error.to_string()) }
    }
}

impl From<files::Error> for Error {
    fn from(error: files::Error) -> Self {
        let why = std::error::Error::source(&error).map(|why| format!(": {why}"));
        Self::new(exit::STORAGE, format!("{error}{}", why.unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_disk_that_is_full_is_named_as_the_cause() {
        let full = files::Error::io("write", Path::new("p.csv"))(std::io::Error::other("no room"));
        let error = Error::from(full);
        assert_eq!(error.to_string(), "cannot write `p.csv`: no room");
        assert_eq!(error.exit_code(), exit::STORAGE);
    }
}
