//! Words of a command line -> checkpoints, or a run and the inputs of a prediction.

use std::path::{Path, PathBuf};

use crate::checkpoint::{self, is_checkpoint};
use crate::record::{is_run, to_stderr};
use crate::runs::{
    CheckpointRef, LOGS, RUN, StoredRun, enter_best_run, find_run, find_sweep, is_experiment,
    is_name, of_experiment,
};
use crate::sweep::JOURNAL;
use crate::user_error::{ErrorPage, ExitCode};

/// The checkpoints that `word` names: one, those of a folder, those of a run; without a word those
/// of the newest run.
pub fn named_checkpoints(word: Option<&str>) -> Result<Vec<PathBuf>, ErrorPage> {
    let path = word.map(PathBuf::from);
    if let Some(path) = path.as_ref().filter(|path| is_checkpoint(path)) {
        return Ok(vec![path.clone()]);
    }
    let mut found = path.as_ref().map_or(Ok(Vec::new()), |folder| in_folder(folder))?;
    let mut looked_in = path.clone().unwrap_or_default();
    if found.is_empty() {
        match named_run(word) {
            Ok(description) => looked_in = description.run.checkpoints,
            // A folder that is there was meant as one.
            Err(_) if path.is_some_and(|path| path.is_dir()) => {}
            Err(refusal) => return Err(refusal),
        }
        found = in_folder(&looked_in)?;
    }
    if found.is_empty() {
        let page = format!("error: there is no checkpoint in `{}`", looked_in.display());
        return Err(ErrorPage::new(ExitCode::Checkpoint, page));
    }
    Ok(found)
}

/// The checkpoints of a folder; none if there is no such folder.
fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, ErrorPage> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let all = checkpoint::all(folder)?;
    Ok(all.into_iter().map(|found| found.path).collect())
}

fn named_run(word: Option<&str>) -> Result<StoredRun, ErrorPage> {
    let Some(word) = word else { return enter_best_run(None) };
    enter_best_run(Some(word)).map_err(|refusal| or_checkpoint(refusal, word))
}

/// A refusal of a word that names neither a run nor a checkpoint; others stay as they are.
pub fn or_checkpoint(refusal: ErrorPage, word: &str) -> ErrorPage {
    if refusal.code() != ExitCode::Refused || find_sweep(Path::new(word)).is_some() {
        return refusal;
    }
    let what = format!("there is no run or checkpoint `{word}`");
    ErrorPage::refused(
        what,
        "name a run (`<name>` or `<time>-<id>`), or a checkpoint \
         (`checkpoints/<name>/<time>-<id>/best`)",
    )
}

/// Splits the words of a prediction into the run or checkpoint, if the first word names one, and
/// the inputs. A word that is a run as well as a file or folder is the run if inputs follow, and
/// the input if it stands alone.
pub fn split_inputs(words: &[String]) -> Result<(Option<&str>, Vec<PathBuf>), ErrorPage> {
    let (first, rest) = words.split_first().map_or(("", &[][..]), |(f, rest)| (f.as_str(), rest));
    let is_run = |path: &Path| is_run(path) || path.join(JOURNAL).is_file();
    let is_named = |word: &str| {
        find_sweep(Path::new(word)).is_some() || find_run(Path::new(LOGS), Some(word)).is_ok()
    };
    let is_input = match CheckpointRef::parse(first) {
        _ if first.starts_with(RUN) => false,
        CheckpointRef::Checkpoint(_) | CheckpointRef::Folder(..) => false,
        CheckpointRef::Run(run, _) if is_run(Path::new(run)) => false,
        CheckpointRef::Run(run, _) if Path::new(first).exists() && is_name(run) => {
            let what = if Path::new(first).is_dir() { "folder" } else { "file" };
            to_stderr(&if rest.is_empty() {
                format!(
                    "`{first}` is the {what}; for the run of that name: `{RUN}{first}`, then inputs"
                )
            } else {
                format!("`{first}` is the run; for the {what} of that name: `./{first}`")
            });
            rest.is_empty()
        }
        CheckpointRef::Run(..) if is_experiment(first) => {
            let what = format!("`{first}` is not data");
            return Err(ErrorPage::refused(what, of_experiment(first)));
        }
        CheckpointRef::Run(..) if Path::new(first).exists() => true,
        CheckpointRef::Run(run, _) if is_named(run) => false,
        CheckpointRef::Run(..) => {
            let what = format!("there is no file, folder, run or checkpoint `{first}`");
            return Err(ErrorPage::refused(
                what,
                "name a run first (`ddprun predict RUN INPUT...`), or only the inputs, and the \
                 newest run is taken",
            ));
        }
    };
    let (run, inputs) = if is_input { (None, words) } else { (Some(first), rest) };
    if inputs.is_empty() {
        let what = "there is nothing to predict";
        return Err(ErrorPage::refused(what, "name files or folders after the run"));
    }
    Ok((run, inputs.iter().map(PathBuf::from).collect()))
}
