//! Status of a sweep from its folder, also while another process runs it.

use std::path::Path;

use crate::files::lock_holder;
use crate::record::text::wrapped;
use crate::sweep::contrast::{Contrast, contrast};
use crate::sweep::journal::{self, JournalState};
use crate::sweep::pruner::Pruners;
use crate::sweep::ranking::{Ranking, best};
use crate::sweep::repeats::reached;
use crate::sweep::table::{WIDTH, table};
use crate::sweep::trial::State;
use crate::sweep::trial_events::TrialEvents;
use crate::sweep::view::values_of;
use crate::sweep::{Error, workers};
use crate::terminal::counted;

/// Status of a sweep.
#[derive(Clone, Debug)]
pub struct Status {
    /// The journal, with the reports of running trials up to now.
    pub story: JournalState,
    /// The process that runs it; `None` if none does.
    pub holder: Option<String>,
    /// Number of live workers, if machines share it.
    pub workers: usize,
}

/// Reads the status of the sweep in `folder`. Nothing is written.
pub fn status(folder: &Path) -> Result<Status, Error> {
    let story = journal::read(folder)?;
    let mut story = story.ok_or_else(|| Error::NoSweep { folder: folder.to_owned() })?;
    for trial in story.trials.iter_mut().filter(|trial| trial.state == State::Running) {
        let logs = folder.join(trial.id());
        let mut tail = TrialEvents::new(&logs, &story.subject.metric);
        tail.poll()?;
        let runs = lock_holder(&logs).is_some();
        let seconds = if runs { tail.seconds_until_now() } else { tail.seconds() };
        trial.seconds = seconds.unwrap_or(trial.seconds);
        trial.reports = tail.reports;
    }
    Ok(Status::of(story, folder))
}

impl Status {
    /// The status of the sweep in `folder` with this journal.
    pub fn of(story: JournalState, folder: &Path) -> Self {
        Self { story, holder: lock_holder(folder), workers: workers::count(folder) }
    }

    /// Word for trials that have not ended.
    fn open_word(&self) -> &'static str {
        if self.holder.is_some() { "running" } else { "interrupted" }
    }

    /// What sets its best trials apart; `None` while there are too few to tell.
    pub fn contrast(&self, pruners: &Pruners) -> Option<Contrast> {
        let JournalState { subject, trials, .. } = &self.story;
        contrast(&subject.search()?, &subject.ranking(pruners), trials)
    }

    /// The best trials, ranked.
    pub fn table(&self, ranking: &Ranking) -> String {
        table(&self.story, self.open_word(), ranking)
    }

    /// The page for the terminal.
    pub fn page(&self, pruners: &Pruners) -> String {
        let JournalState { subject, trials, opened, .. } = &self.story;
        let count = |state: State| trials.iter().filter(|trial| trial.state == state).count();
        let states = [
            (count(State::Finished), "finished"),
            (count(State::Pruned), "pruned"),
            (count(State::Diverged), "diverged"),
            (count(State::Failed), "failed"),
            (count(State::Running), self.open_word()),
        ];
        let states: Vec<String> = states
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, word)| format!("{count} {word}"))
            .collect();
        let holder = match &self.holder {
            Some(holder) if self.workers > 0 => {
                format!("led by {holder}, {}", counted(self.workers as u64, "worker"))
            }
            Some(holder) => format!("running as {holder}"),
            None => "not running".to_owned(),
        };
        let mut text = format!(
            "sweep `{}` of `{}`, started {opened:.0}; {holder}\n{} of {} trials done: {}\n",
            subject.name,
            subject.base.display(),
            trials.len() - count(State::Running),
            subject.trials,
            states.join(", ")
        );
        if let Some(best) = best(trials, subject.goal) {
            let value = reached(best, trials, subject.goal, &subject.metric);
            let values = values_of(best);
            let line = format!("best {} {value}, trial {}: {values}", subject.metric, best.number);
            text += &(wrapped(&line, WIDTH, 2) + "\n");
        }
        if let Some(contrast) = self.contrast(pruners) {
            text += &(wrapped(&contrast.line(), WIDTH, 2) + "\n");
        }
        text + "\n" + &self.table(&subject.ranking(pruners))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{self, LineFile};
    use crate::record::EVENTS;
    use crate::sweep::example_sweeps::{subject, trial};
    use crate::sweep::journal::Journal;

    #[test]
    fn a_trial_that_was_interrupted_has_the_time_that_it_ran_and_one_that_said_nothing_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(folder.path()).unwrap();
        journal.opened(&subject()).unwrap();
        for number in [1, 2] {
            journal.started(&trial(number, State::Running, &[])).unwrap();
        }
        let logs = folder.path().join("trial-0001");
        files::create_folder(&logs).unwrap();
        let mut lines = LineFile::open(&logs.join(EVENTS)).unwrap();
        for second in [0, 90] {
            let line = format!(r#"{{"time":"1970-01-01T00:0{}:30Z","step":0}}"#, second / 60);
            lines.push(&line).unwrap();
        }
        let page = status(folder.path()).unwrap().page(&Pruners::default());
        assert!(
            page.contains(" 1m 00s  interrupted") && page.contains(" -  interrupted"),
            "{page}"
        );
    }
}
