//! `ddprun sweep ask`: one trial for a caller that trains it itself, or has it trained by the next
//! `ddprun sweep`. The journal is that of any sweep.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::config::sweep::Values;
use crate::failpoint;
use crate::files::{self, RunLock};
use crate::sweep::folder::{prepared_folder, refuse_runs};
use crate::sweep::journal::{self, Journal};
use crate::sweep::request::{SweepRequest, Trainer};
use crate::sweep::sampler::Tried;
use crate::sweep::trial::{State, Trial};
use crate::sweep::trial_scheduler::session::Session;
use crate::sweep::trial_scheduler::{Checks, checked_session, shown};
use crate::sweep::{Error, range_test};

/// Longest wait for another process that asks or tells.
const PATIENCE: Duration = Duration::from_secs(30);

/// The answer to a caller that asks for a trial.
#[derive(Debug)]
pub enum Answer {
    /// The trial, and the changes to the base with which it is trained.
    Trial { trial: Trial, changes: Vec<String> },
    /// There is none: the reason.
    None(String),
}

/// Adds a trial to the sweep: with the values `own`, or with those that its method proposes.
///
/// # Errors
///
/// As [`run`](super::run); and if the values cannot be run, or a trial has had them.
pub fn ask(
    order: SweepRequest<'_>,
    trainer: &dyn Trainer,
    own: Option<Values>,
) -> Result<Answer, Error> {
    let folder = order.folder();
    refuse_runs(&folder)?;
    let exists = || folder.join(journal::NAME).exists();
    let (lock, story, mut session, subject) = loop {
        let owned = exists().then(|| wait_for_lock(&folder)).transpose()?;
        let story = journal::read(&folder)?;
        if story.is_none() {
            range_test::refuse(&folder)?;
        }
        let checks = if story.is_some() { Checks::Earlier } else { Checks::All };
        let (session, subject) = checked_session(order, trainer, story.as_ref(), checks)?;
        if let Some(lock) = owned {
            break (lock, story, session, subject);
        }
        let lock = wait_for_lock(&folder)?;
        // Another process may have begun the sweep meanwhile.
        if !exists() {
            break (lock, story, session, subject);
        }
    };
    let tried = Tried::of(&session.with_earlier(&session.trials), &session.base);
    if let Some(values) = own.as_ref().filter(|values| tried.has(values, &session.base)) {
        let setting = session.base.setting(values);
        let known = session.trials.iter();
        let known = known.map(|trial| (trial.number, session.base.setting(&trial.values)));
        let trial =
            known.into_iter().find(|(_, other)| *other == setting).map(|(number, _)| number);
        return Err(Error::Tried { trial });
    }
    if let Some(values) = &own {
        trainer.check(&order.changes(values)).map_err(|why| Error::Refused {
            trials: vec![format!("{}: {}", shown(values), why.replace('\n', "\n      "))],
        })?;
    }
    let mut journal = Journal::open(&folder)?;
    match &story {
        None => journal.opened(&subject)?,
        Some(story) if !subject.is_recorded_in(&story.subject) => {
            journal.extended(&subject, None)?;
        }
        Some(_) => {}
    }
    for earlier in &session.news {
        journal.earlier(earlier)?;
    }
    let answer = session.next_for_caller(&mut journal, own);
    drop(lock);
    answer
}

impl Session<'_> {
    /// The next trial, journalled as started; values that cannot be run are failed trials.
    fn next_for_caller(
        &mut self,
        journal: &mut Journal,
        mut own: Option<Values>,
    ) -> Result<Answer, Error> {
        loop {
            if self.order.is_reached(&self.trials) {
                return Ok(Answer::None("a trial has reached `sweep.until`".to_owned()));
            }
            if self.trials.len() >= self.total {
                let total = self.total;
                return Ok(Answer::None(format!("all {total} trials were asked for")));
            }
            let failed = self.trials.iter().filter(|trial| trial.state == State::Failed).count();
            if failed > self.order.sweep.max_failures as usize {
                let why = "more trials failed than `sweep.max_failures` allows";
                return Ok(Answer::None(why.to_owned()));
            }
            let number = self.next_number();
            let proposed = match own.take() {
                Some(values) => Some(self.first_of(values)),
                None => self.propose(number)?,
            };
            let Some(values) = proposed else {
                let is_impatient = self.order.is_out_of_patience(&self.trials);
                let patience = "`sweep.patience` settings in a row brought nothing better";
                let why = if is_impatient { patience } else { "nothing is left to try" };
                return Ok(Answer::None(why.to_owned()));
            };
            let (trial, checked) = self.begun(number, values);
            failpoint::reach("sweep.draw");
            journal.started(&trial)?;
            failpoint::reach("sweep.started");
            self.trials.push(trial.clone());
            let Err(error) = checked else {
                let changes = self.order.changes(&trial.values);
                return Ok(Answer::Trial { trial, changes });
            };
            if let Some(last) = self.trials.last_mut() {
                (last.state, last.error) = (State::Failed, Some(error));
                journal.ended(last, self.order.sweep.search.goal)?;
            }
        }
    }
}

/// The lock of a sweep that exists or begins, once other callers have theirs no more.
pub(in crate::sweep) fn wait_for_lock(folder: &Path) -> Result<RunLock, Error> {
    let given_up = Instant::now() + PATIENCE;
    loop {
        match prepared_folder(folder) {
            Err(Error::Files(files::Error::InUse { .. })) if Instant::now() < given_up => {
                std::thread::sleep(Duration::from_millis(20));
            }
            taken => return taken,
        }
    }
}
