//! Which checkpoint of a run is meant -> the checkpoint.

use std::path::Path;

use crate::checkpoint::{self, Opened};
use crate::plan::CheckpointPlan;
use crate::runs::Error;

/// Which checkpoint of a run is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// The best; the newest where no best one is kept.
    Any,
    Best,
    Newest,
    Step(u64),
}

impl Which {
    /// The newest, if it is asked for and the word names no other.
    pub(crate) fn or_newest(self, newest: bool) -> Self {
        if newest && self == Self::Any { Self::Newest } else { self }
    }
}

/// A checkpoint of a folder; `plan` says which one is the best, and without it the link `best`.
pub(crate) fn open(
    folder: &Path,
    plan: Option<&CheckpointPlan>,
    which: Which,
) -> Result<Opened, Error> {
    let linked = || {
        let link = folder.join("best");
        link.is_dir().then(|| checkpoint::open(&link)).transpose()
    };
    let best = || plan.map_or_else(linked, |plan| checkpoint::best(folder, plan));
    Ok(match which {
        Which::Newest => checkpoint::newest(folder)?,
        Which::Step(step) => of_step(folder, step)?,
        Which::Any => match plan {
            Some(plan) => checkpoint::best_or_newest(folder, plan)?,
            None => linked()?.map_or_else(|| checkpoint::newest(folder), Ok)?,
        },
        Which::Best => best()?.ok_or_else(|| Error::NoBest { folder: folder.to_owned() })?,
    })
}

fn of_step(folder: &Path, step: u64) -> Result<Opened, Error> {
    let path = folder.join(checkpoint::name(step));
    if path.is_dir() {
        return Ok(checkpoint::open(&path)?);
    }
    let kept = checkpoint::all(folder)?.into_iter().map(|found| found.step).collect();
    Err(Error::NoStep { folder: folder.to_owned(), step, kept })
}
