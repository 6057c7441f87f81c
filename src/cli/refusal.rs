//! What ends a verb early.

use std::fmt;

use crate::terminal::escape;

/// What ends a verb early: a page for the user, and the exit code.
#[derive(Debug)]
pub(crate) struct Refusal {
    page: String,
    code: u8,
}

impl Refusal {
    pub(crate) fn new(code: u8, page: impl AsRef<str>) -> Self {
        Self { page: escape(page.as_ref()).into_owned(), code }
    }

    /// The page of an experiment's problems, which may have colours.
    pub(crate) fn of_problems(code: u8, page: String) -> Self {
        Self { page, code }
    }

    /// One block: what happened, why, and what to do.
    pub(crate) fn of(code: u8, error: &dyn std::error::Error, help: Option<String>) -> Self {
        let mut page = format!("error: {}", with_causes(error));
        if let Some(help) = help {
            page = format!("{page}\n  do: {help}");
        }
        Self::new(code, page)
    }

    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// The page.
    pub(crate) fn page(&self) -> &str {
        &self.page
    }
}

/// An error, and its causes below it, a line each.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        // Messages that show their cause themselves are not repeated.
        if !text.contains(&cause.to_string()) {
            text = format!("{text}\n  why: {cause}");
        }
        source = cause.source();
    }
    text
}

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.page)
    }
}
