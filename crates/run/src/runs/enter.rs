//! A run's log folder -> the run as it was stored, with the current folder where its paths begin.

use std::path::Path;

use crate::record::to_stderr;
use crate::runs::run_ref::{best_run, named_run};
use crate::runs::stored::StoredRun;
use crate::user_error::{ErrorPage, ExitCode};

/// The run that `word` names ([`named_run`]). Goes to where its paths begin, so that it is what it
/// was wherever it is called from.
pub fn enter_run(word: Option<&str>) -> Result<StoredRun, ErrorPage> {
    enter_found(&named_run(word)?)
}

/// As [`enter_run`]; of a sweep its best trial.
pub fn enter_best_run(word: Option<&str>) -> Result<StoredRun, ErrorPage> {
    enter_found(&best_run(word)?)
}

/// As [`enter_run`]: that of this log folder.
pub(crate) fn enter_found(folder: &Path) -> Result<StoredRun, ErrorPage> {
    let (stored, root) = StoredRun::rooted(folder)?;
    if let Some(root) = root {
        std::env::set_current_dir(&root).map_err(|error| {
            let page = format!("error: cannot change to `{}`\n  why: {error}", root.display());
            ErrorPage::new(ExitCode::Storage, page)
        })?;
        to_stderr(&format!("the paths of this run begin at `{}`", root.display()));
    }
    Ok(stored)
}
