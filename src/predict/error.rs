//! Errors of predictions.

use crate::checkpoint;
use crate::data;
use crate::files;
use crate::runs;
use crate::user_error::{ExitCode, UserError};
use crate::worker;

/// The reason why there are no predictions, with a remedy.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Error {
    what: String,
    help: Option<String>,
    code: ExitCode,
}

impl Error {
    pub(crate) fn new(code: ExitCode, what: impl Into<String>) -> Self {
        Self { what: what.into(), help: None, code }
    }

    #[must_use]
    pub(crate) fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

impl UserError for Error {
    fn exit_code(&self) -> ExitCode {
        self.code
    }

    fn help(&self) -> Option<String> {
        self.help.clone()
    }
}

/// Conversions that keep the exit code and the remedy of an error.
macro_rules! as_they_say {
    ($($error:ty),+) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self { what: error.to_string(), help: error.help(), code: error.exit_code() }
            }
        })+
    };
}

as_they_say!(worker::Error, data::Error, checkpoint::Error, runs::Error);

impl From<files::Error> for Error {
    fn from(error: files::Error) -> Self {
        let why = std::error::Error::source(&error).map(|why| format!(": {why}"));
        Self::new(ExitCode::Storage, format!("{error}{}", why.unwrap_or_default()))
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
        assert_eq!(error.exit_code(), ExitCode::Storage);
    }
}
