//! `ddprun sweep tell`: the result of a trial that the caller has trained.

use std::path::Path;

use crate::files::lock_holder;
use crate::sweep::journal::{self, Journal, JournalState};
use crate::sweep::pruner::Pruners;
use crate::sweep::trial::{Report, State, Trial, word};
use crate::sweep::trial_scheduler::wait_for_lock;
use crate::sweep::{Error, results};

/// The result of a trial.
#[derive(Clone, Debug, PartialEq)]
pub enum TrialResult {
    /// The metric at its end; not finite for a trial that diverged.
    Value(f64),
    /// It failed, for this reason.
    Failed(String),
}

/// Journals the result of the trial `number` of the sweep in `folder`, and writes its tables. The
/// same result may be told again.
///
/// # Errors
///
/// There is no such trial, it has ended otherwise, or a process of ddprun trains it.
pub fn tell(
    folder: &Path,
    number: u32,
    result: TrialResult,
    pruners: &Pruners,
) -> Result<JournalState, Error> {
    let lock = wait_for_lock(folder)?;
    let story = journal::read(folder)?;
    let mut story = story.ok_or_else(|| Error::NoSweep { folder: folder.to_owned() })?;
    let n = story.trials.len();
    let goal = story.subject.goal;
    let Some(trial) = story.trials.iter_mut().find(|trial| trial.number == number) else {
        return Err(Error::NoTrial { trial: number, n });
    };
    let ended = with_result(trial, result);
    if trial.state != State::Running {
        let is_same = (trial.state, trial.value(goal), &trial.error)
            == (ended.state, ended.value(goal), &ended.error);
        let end = word(trial.state);
        return if is_same { Ok(story) } else { Err(Error::Ended { trial: number, end }) };
    }
    if let Some(holder) = lock_holder(&folder.join(trial.id())) {
        return Err(Error::UnderWay { trial: number, holder });
    }
    trial.clone_from(&ended);
    Journal::open(folder)?.ended(&ended, goal)?;
    if let Some(search) = story.subject.search() {
        let ranking = story.subject.ranking(pruners);
        results::write_tables(folder, &story.subject, &search, &ranking, &story.trials)?;
    }
    drop(lock);
    Ok(story)
}

/// The trial with its result.
fn with_result(trial: &Trial, result: TrialResult) -> Trial {
    let step = trial.length.total_steps.max(1);
    let (state, error, reports) = match result {
        TrialResult::Value(value) if value.is_finite() => {
            (State::Finished, None, vec![Report { step, value: Some(value) }])
        }
        TrialResult::Value(_) => (State::Diverged, None, Vec::new()),
        TrialResult::Failed(reason) => (State::Failed, Some(reason), Vec::new()),
    };
    Trial { state, reports, error, ..trial.clone() }
}
