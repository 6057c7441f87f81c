//! The scheduler of all trials: draws, starts, follows, prunes, journals, and starts the next as
//! soon as there is room. One thread decides; one thread per running trial watches its ranks.

mod preflight;
mod session;

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;

use crate::checkpoint;
use crate::config::Loaded;
use crate::config::sweep::{Sweep, Values, change_of};
use crate::files::{self, RunLock};
use crate::record::Screen;
use crate::sweep::folder::{clear, prepared_folder, refuse_runs};
use crate::sweep::journal::{self, Journal, JournalState, SweepSpec};
use crate::sweep::method::{Method, points};
use crate::sweep::repeats::{Repeated, is_repeat};
use crate::sweep::request::{SweepEnd, SweepRequest, Trainer};
use crate::sweep::sampler::{BaseValues, Tried, all_points};
use crate::sweep::trial::{State, Trial};
use crate::sweep::trial_scheduler::session::Session;
use crate::sweep::view::View;
use crate::sweep::{Error, is_trial, range_test, results};
use crate::terminal::counted;

/// Runs a sweep, or continues it: the trials in its folder are not run again.
///
/// # Errors
///
/// The folder holds another sweep or other runs, trials cannot be run (all before anything is
/// touched), or the folder cannot be written.
pub fn run(
    order: SweepRequest<'_>,
    trainer: &dyn Trainer,
) -> Result<(SweepEnd, JournalState), Error> {
    run_for(order, trainer, None)
}

/// Like [`run`], on request of the worker `asked_by` of a shared sweep, if given.
pub(super) fn run_for(
    order: SweepRequest<'_>,
    trainer: &dyn Trainer,
    asked_by: Option<&str>,
) -> Result<(SweepEnd, JournalState), Error> {
    let folder = order.folder();
    refuse_runs(&folder)?;
    // A sweep that exists is read by its owner alone: what another process has done since would be
    // done again.
    let owned =
        folder.join(journal::NAME).exists().then(|| prepared_folder(&folder)).transpose()?;
    let story = journal::read(&folder)?;
    if story.is_none() {
        range_test::refuse(&folder)?;
    }
    let (mut session, subject) = checked_session(order, trainer, story.as_ref())?;
    // A run of this name may begin at the same moment.
    let turn = files::take_turn(&folder)?;
    refuse_runs(&folder)?;
    let _lock = owned.map_or_else(|| new_folder(&folder), Ok)?;
    let mut journal = Journal::open(&folder)?;
    drop(turn);
    match &story {
        None => journal.opened(&subject)?,
        Some(story) if asked_by.is_some() || !subject.is_recorded_in(&story.subject) => {
            journal.extended(&subject, asked_by)?;
        }
        Some(_) => {}
    }
    clear(&order, &session.trials);
    let ended = session.run(&mut journal)?;
    let trials = session.trials;
    let ranking = session.ranking;
    if ended != SweepEnd::Extended {
        results::write(&folder, &subject, &order.sweep.search, &ranking, &trials)?;
    }
    let (opened, extended_by) = story.map_or_else(
        || (jiff::Timestamp::now(), BTreeSet::new()),
        |it| (it.opened, it.extended_by),
    );
    Ok((ended, JournalState { subject, trials, opened, extended_by }))
}

/// Prepares a sweep to continue from the contents of its folder. Nothing is written.
fn checked_session<'a>(
    order: SweepRequest<'a>,
    trainer: &'a dyn Trainer,
    story: Option<&JournalState>,
) -> Result<(Session<'a>, SweepSpec), Error> {
    let folder = order.folder();
    let base = order.base_values();
    let method = order.method()?;
    let ranking = order.ranking()?;
    let points = known_points(&order, method.as_ref(), &base)?;
    let trials = story.map(|story| story.trials.clone()).unwrap_or_default();
    let TrialPlan { points, total, repeated } = TrialPlan::of(&order, points, &base, &trials);
    let subject = subject(&order, total);
    let earlier = story.map(|story| &story.subject);
    is_same_sweep(&folder, &subject, earlier, order.extend)?;
    if earlier.is_none() {
        refuse_leftovers(&order)?;
    }
    let mut session = Session {
        order,
        trainer,
        base,
        total,
        points,
        notes: notes(&order, total, repeated.as_ref()),
        repeated,
        folder,
        trials,
        running: Vec::new(),
        view: View::new(order.screen, order.sweep, ranking.clone(), total),
        method,
        ranking,
    };
    session.check_data()?;
    session.check_ahead()?;
    Ok((session, subject))
}

/// Returns true if the order asks for more than the sweep of `story` has: more trials, or with
/// `--extend` another search. Fails if that cannot be run.
pub(super) fn extends(
    order: SweepRequest<'_>,
    trainer: &dyn Trainer,
    story: &JournalState,
) -> Result<bool, Error> {
    let subject = subject_of(&order, &story.trials)?;
    is_same_sweep(&order.folder(), &subject, Some(&story.subject), order.extend)?;
    let (open, _) = subject.changes(&story.subject);
    let is_more = !open.is_empty() || subject.trials > story.subject.trials;
    if is_more {
        checked_session(SweepRequest { screen: Screen::Silent, ..order }, trainer, Some(story))?;
    }
    Ok(is_more)
}

/// The subject of the order's sweep after these trials.
fn subject_of(order: &SweepRequest<'_>, trials: &[Trial]) -> Result<SweepSpec, Error> {
    let base = order.base_values();
    let points = known_points(order, order.method()?.as_ref(), &base)?;
    Ok(subject(order, TrialPlan::of(order, points, &base, trials).total))
}

/// The sweep of an order as the journal has it: another process may have extended it since.
pub(super) fn as_journaled(order: &SweepRequest<'_>, story: &JournalState) -> Result<Sweep, Error> {
    let own = order.sweep.clone();
    let is_known = subject_of(order, &story.trials)?.is_recorded_in(&story.subject);
    Ok(match story.subject.search() {
        Some(search) if !is_known => Sweep { search, trials: Some(story.subject.trials), ..own },
        _ => own,
    })
}

/// The end of the sweep as its folder has it, if all trials have ended. Nothing is written.
pub(super) fn finished(
    order: &SweepRequest<'_>,
) -> Result<Option<(SweepEnd, JournalState)>, Error> {
    let folder = order.folder();
    refuse_runs(&folder)?;
    let Some(story) = journal::read(&folder)? else {
        range_test::refuse(&folder)?;
        return Ok(None);
    };
    let subject = subject_of(order, &story.trials)?;
    is_same_sweep(&folder, &subject, Some(&story.subject), order.extend)?;
    let count = |state| story.trials.iter().filter(|trial| trial.state == state).count();
    if order.is_reached(&story.trials) {
        return Ok(Some((SweepEnd::Reached, story)));
    }
    let is_over = story.trials.len() >= subject.trials && count(State::Running) == 0;
    let failed = count(State::Failed);
    Ok(is_over.then_some((SweepEnd::Done { failed }, story)))
}

/// The points of a method that knows all points beforehand.
fn known_points(
    order: &SweepRequest<'_>,
    method: &dyn Method,
    base: &BaseValues,
) -> Result<Option<Vec<Values>>, Error> {
    let points = points(method, &order.sweep.search, base);
    if points.as_ref().is_some_and(Vec::is_empty) {
        return Err(Error::NothingLeft);
    }
    Ok(points)
}

/// The trials to come.
struct TrialPlan {
    /// Untried points in order, for a method that knows all points beforehand.
    points: Option<VecDeque<Values>>,
    /// Total number of trials: the present ones, of which some may be points of an earlier search,
    /// and the remaining settings, up to the number requested.
    total: usize,
    /// Repeats of every setting over folds or seeds.
    repeated: Option<Repeated>,
}

impl TrialPlan {
    fn of(
        order: &SweepRequest<'_>,
        points: Option<Vec<Values>>,
        base: &BaseValues,
        trials: &[Trial],
    ) -> Self {
        let search = &order.sweep.search;
        let asked = order.sweep.trials;
        let mut tried = Tried::of(trials, base);
        let mut left = |all: Vec<Values>| -> VecDeque<Values> {
            all.into_iter().filter(|point| tried.add(point, base)).collect()
        };
        let draws = points.is_none();
        let points = points.map(&mut left);
        // A space that is drawn from may have an end, too.
        let space = draws.then(|| all_points(search, base)).flatten().map(&mut left);
        let n_left = points.as_ref().or(space.as_ref()).map(VecDeque::len);
        let most = asked.unwrap_or(usize::MAX);
        let wanted = n_left.map_or(most, |left| most.min(trials.len() + left));
        let repeated = draws.then(|| Repeated::of(search, base, asked)).flatten();
        Self { points, total: wanted.max(trials.len()), repeated }
    }
}

/// Remarks on what a user may not expect.
fn notes(order: &SweepRequest<'_>, total: usize, repeated: Option<&Repeated>) -> Vec<String> {
    let search = &order.sweep.search;
    let mut notes = Vec::new();
    if let Some(asked) = order.sweep.trials.filter(|asked| *asked > total) {
        notes.push(format!(
            "`sweep.trials` is {asked}, but there are only {}: none is trained twice, as it would \
             give the same numbers",
            counted(total as u64, "setting")
        ));
    }
    let keys = search.parameters.iter().map(|parameter| parameter.key.as_str());
    let keys: Vec<&str> = keys.filter(|key| is_repeat(key)).collect();
    let keys = keys.join("`, `");
    match repeated {
        Some(repeated) => notes.push(format!(
            "each setting is trained with {} of `{keys}`, and compared by its mean",
            counted(repeated.n() as u64, "value")
        )),
        None if !keys.is_empty() && search.list.is_empty() && order.sweep.trials.is_some() => {
            notes.push(format!(
                "`{keys}` is drawn for each trial: a setting that is tried once is compared by one \
                 value"
            ));
        }
        None => {}
    }
    notes
}

fn subject(order: &SweepRequest<'_>, total: usize) -> SweepSpec {
    let sweep = order.sweep;
    SweepSpec::new(&sweep.name, &sweep.search, total, order.base)
}

/// Refuses checkpoints of an earlier sweep of this name whose records are gone: an interrupted
/// trial of the same number would resume from them.
fn refuse_leftovers(order: &SweepRequest<'_>) -> Result<(), Error> {
    let all = order.base.experiment.checkpoint.dir.join(&order.sweep.name);
    let has_any = |path: &Path| checkpoint::all(path).is_ok_and(|found| !found.is_empty());
    let folders = std::fs::read_dir(all).into_iter().flatten().flatten();
    let first =
        folders.map(|folder| folder.path()).filter(|path| is_trial(path) && has_any(path)).min();
    first.map_or(Ok(()), |folder| Err(Error::Leftovers { folder }))
}

/// Creates and locks the folder of a new sweep.
fn new_folder(folder: &Path) -> Result<RunLock, Error> {
    let lock = prepared_folder(folder)?;
    if folder.join(journal::NAME).exists() {
        let holder = "another process that began it at the same time".to_owned();
        return Err(files::Error::InUse { folder: folder.to_owned(), holder }.into());
    }
    Ok(lock)
}

fn is_same_sweep(
    folder: &Path,
    subject: &SweepSpec,
    earlier: Option<&SweepSpec>,
    extend: bool,
) -> Result<(), Error> {
    let Some(earlier) = earlier else { return Ok(()) };
    let (open, fixed) = subject.changes(earlier);
    let can_extend = fixed.is_empty();
    if can_extend && (open.is_empty() || extend) {
        return Ok(());
    }
    let changes = fixed.into_iter().chain(open).collect();
    Err(Error::Changed { folder: folder.to_owned(), changes, can_extend })
}

/// Returns true if the folder of the sweep holds another one, which it cannot continue.
pub fn is_taken(sweep: &Sweep, base: &Loaded, extend: bool) -> Result<bool, Error> {
    let folder = base.experiment.logging.dir.join(&sweep.name);
    let Some(story) = journal::read(&folder)? else { return Ok(false) };
    let subject = SweepSpec::new(&sweep.name, &sweep.search, story.trials.len(), base);
    Ok(is_same_sweep(&folder, &subject, Some(&story.subject), extend).is_err())
}

/// `optimizer.lr=0.01 train.batch_size=32`
pub(crate) fn shown(values: &Values) -> String {
    let words: Vec<String> = values.iter().map(|(key, value)| change_of(key, value)).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests;
