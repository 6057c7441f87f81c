//! One of a run's checkpoints: as the end of a word, and in the folder of checkpoints.

use std::path::Path;

use crate::checkpoint::{self, OpenCheckpoint};
use crate::config::closest;
use crate::plan::CheckpointPlan;
use crate::runs::Error;

/// Prefix that marks the name of a run.
pub const RUN: &str = "run:";

/// Choice of a checkpoint of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointChoice {
    /// The best; the newest where no best one is kept.
    Any,
    Best,
    Newest,
    Step(u64),
}

impl CheckpointChoice {
    /// [`CheckpointChoice::Newest`] if `newest` is set and the word names no checkpoint.
    pub(super) fn or_newest(self, newest: bool) -> Self {
        if newest && self == Self::Any { Self::Newest } else { self }
    }
}

/// Splits a word into the run and the choice of its checkpoint.
pub fn split(word: &str) -> (&str, CheckpointChoice) {
    let Some((run, last)) = word.trim_end_matches('/').rsplit_once('/') else {
        return (word, CheckpointChoice::Any);
    };
    let step = || last.strip_prefix("step-")?.parse().ok().map(CheckpointChoice::Step);
    match last {
        "best" => (run, CheckpointChoice::Best),
        "latest" => (run, CheckpointChoice::Newest),
        _ => step().map_or((word, CheckpointChoice::Any), |step| (run, step)),
    }
}

/// Suggests a correction of an unknown word: one of `names`, or a checkpoint of it.
pub fn nearest(word: &str, names: &[String]) -> Option<String> {
    let near = |word: &str| closest(word, names.iter().map(String::as_str));
    let Some((run, last)) = word.trim_end_matches('/').rsplit_once('/') else {
        return near(word).map(str::to_owned);
    };
    let exact = names.iter().any(|name| name == run).then_some(run);
    let checkpoint = match split(word).1 {
        CheckpointChoice::Any => closest(last, ["best", "latest"]),
        _ => Some(last),
    };
    match (exact.or_else(|| near(run)), checkpoint) {
        (Some(run), Some(checkpoint)) => Some(format!("{run}/{checkpoint}")),
        (run, None) => near(word).or(run).map(str::to_owned),
        (None, Some(_)) => near(word).map(str::to_owned),
    }
}

/// Opens a checkpoint of a folder. The best one is decided by `plan`, or without it by the link
/// `best`.
pub fn open(
    folder: &Path,
    plan: Option<&CheckpointPlan>,
    choice: CheckpointChoice,
) -> Result<OpenCheckpoint, Error> {
    let linked = || {
        let link = folder.join("best");
        link.is_dir().then(|| checkpoint::open(&link)).transpose()
    };
    let best = || plan.map_or_else(linked, |plan| checkpoint::best(folder, plan));
    Ok(match choice {
        CheckpointChoice::Newest => checkpoint::newest(folder)?,
        CheckpointChoice::Step(step) => of_step(folder, step)?,
        CheckpointChoice::Any => match plan {
            Some(plan) => checkpoint::best_or_newest(folder, plan)?,
            None => linked()?.map_or_else(|| checkpoint::newest(folder), Ok)?,
        },
        CheckpointChoice::Best => {
            best()?.ok_or_else(|| Error::NoBest { folder: folder.to_owned() })?
        }
    })
}

fn of_step(folder: &Path, step: u64) -> Result<OpenCheckpoint, Error> {
    let path = folder.join(checkpoint::name(step));
    if path.is_dir() {
        return Ok(checkpoint::open(&path)?);
    }
    let kept = checkpoint::all(folder)?.into_iter().map(|found| found.step).collect();
    Err(Error::NoStep { folder: folder.to_owned(), step, kept })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_that_of_a_run_or_of_its_checkpoint() {
        let names = ["tiny", "resnet18", "20261123-020701-3fa2"].map(str::to_owned);
        let check = |word, expected: Option<&str>| {
            assert_eq!(nearest(word, &names).as_deref(), expected, "{word}");
        };
        check("tniy", Some("tiny"));
        check("tiny/bst", Some("tiny/best"));
        check("tiny/lastest", Some("tiny/latest"));
        check("tniy/best", Some("tiny/best"));
        check("resnet81/step-00000300", Some("resnet18/step-00000300"));
        check("resnet81/lates/", Some("resnet18/latest"));
        check("tiny/20261123", Some("tiny"));
        check("quite/another", None);
    }

    #[test]
    fn the_last_part_says_which_checkpoint_if_it_is_a_word_for_one() {
        let check = |word, run, choice| {
            assert_eq!(split(word), (run, choice), "{word}");
        };
        check("quickstart", "quickstart", CheckpointChoice::Any);
        check("quickstart/best", "quickstart", CheckpointChoice::Best);
        check("quickstart/best/", "quickstart", CheckpointChoice::Best);
        check(
            "quickstart/20261123-020701-3fa2/latest",
            "quickstart/20261123-020701-3fa2",
            CheckpointChoice::Newest,
        );
        check("a/step-00000300", "a", CheckpointChoice::Step(300));
        check("a/20261123-020701-3fa2", "a/20261123-020701-3fa2", CheckpointChoice::Any);
    }
}
