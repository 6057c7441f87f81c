//! The scheduler of all trials: draws, starts, follows, prunes, journals, and starts the next as
//! soon as there is room. One thread decides; one thread per running trial watches its ranks.

mod ask;
mod preflight;
mod session;

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use crate::checkpoint;
use crate::config::Loaded;
use crate::config::sweep::{Search, Sweep, Values, change_of, is_repeat};
use crate::files::{self, RunLock};
use crate::plan::RunFolders;
use crate::record::Screen;
use crate::record::text::metric;
use crate::sweep::earlier::comparable;
use crate::sweep::folder::{clear, prepared_folder, refuse_runs};
use crate::sweep::journal::{self, Journal, JournalState, SweepSpec};
use crate::sweep::method::{Method, points};
use crate::sweep::repeated_search::Repeated;
use crate::sweep::request::{SweepEnd, SweepRequest, Trainer};
use crate::sweep::sampler::{BaseValues, Tried, all_points};
use crate::sweep::trial::{EarlierTrial, State, Trial, cost};
use crate::sweep::trial_scheduler::session::Session;
use crate::sweep::view::View;
use crate::sweep::{Error, is_trial, range_test, results};
use crate::terminal::counted;

pub(super) use ask::wait_for_lock;
pub use ask::{Answer, ask};

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
    let (mut session, subject) = checked_session(order, trainer, story.as_ref(), Checks::All)?;
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
    for earlier in &session.news {
        journal.earlier(earlier)?;
    }
    clear(&order, &session.trials);
    let ended = session.run(&mut journal)?;
    let Session { trials, ranking, earlier, .. } = session;
    if ended != SweepEnd::Extended {
        results::write(&folder, &subject, &order.sweep.search, &ranking, &trials)?;
    }
    let (opened, extended_by) = story.map_or_else(
        || (jiff::Timestamp::now(), BTreeSet::new()),
        |it| (it.opened, it.extended_by),
    );
    Ok((ended, JournalState { subject, trials, opened, extended_by, earlier }))
}

/// What is checked of a sweep before it continues.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Checks {
    /// Its earlier trials, and all that are known before any result.
    All,
    /// Its earlier trials only.
    Earlier,
}

/// Prepares a sweep to continue from the contents of its folder. Nothing is written.
fn checked_session<'a>(
    order: SweepRequest<'a>,
    trainer: &'a dyn Trainer,
    story: Option<&JournalState>,
    checks: Checks,
) -> Result<(Session<'a>, SweepSpec), Error> {
    let folder = order.folder();
    let base = order.base_values();
    let method = order.method()?;
    let ranking = order.ranking()?;
    let trials = story.map(|story| story.trials.clone()).unwrap_or_default();
    let mut earlier = story.map(|story| story.earlier.clone()).unwrap_or_default();
    let (news, left_out) = news(&order, trainer, &earlier)?;
    earlier.extend(news.iter().cloned());
    let plan = TrialPlan::of(&order, method.as_ref(), &base, &trials, &earlier)?;
    let TrialPlan { points, total, repeated } = plan;
    let subject = subject(&order, total);
    let before = story.map(|story| &story.subject);
    is_same_sweep(&folder, &subject, before, order.extend)?;
    if before.is_none() {
        refuse_leftovers(&order)?;
    }
    let mut notes = notes(&order, total, repeated.as_ref());
    notes.extend(of_earlier(&earlier, left_out, &order.sweep.search));
    let mut session = Session {
        order,
        trainer,
        base,
        total,
        points,
        notes,
        earlier,
        news,
        repeated,
        folder,
        trials,
        running: Vec::new(),
        view: View::new(order.screen, order.sweep, ranking.clone(), total),
        method,
        ranking,
    };
    session.check_data()?;
    if checks == Checks::All {
        session.check_ahead()?;
    }
    Ok((session, subject))
}

/// Returns true if the order asks for more than the sweep of `story` has: more trials, or with
/// `--extend` another search. Fails if that cannot be run.
pub(super) fn extends(
    order: SweepRequest<'_>,
    trainer: &dyn Trainer,
    story: &JournalState,
) -> Result<bool, Error> {
    let subject = subject_of(&order, story)?;
    is_same_sweep(&order.folder(), &subject, Some(&story.subject), order.extend)?;
    let (open, _) = subject.changes(&story.subject);
    let is_more = !open.is_empty() || subject.trials > story.subject.trials;
    if is_more {
        let silent = SweepRequest { screen: Screen::Silent, ..order };
        checked_session(silent, trainer, Some(story), Checks::All)?;
    }
    Ok(is_more)
}

/// The subject of the order's sweep after the trials of this journal.
fn subject_of(order: &SweepRequest<'_>, story: &JournalState) -> Result<SweepSpec, Error> {
    let JournalState { trials, earlier, .. } = story;
    let method = order.method()?;
    let plan = TrialPlan::of(order, method.as_ref(), &order.base_values(), trials, earlier)?;
    Ok(subject(order, plan.total))
}

/// The sweep of an order as the journal has it: another process may have extended it since.
pub(super) fn as_journaled(order: &SweepRequest<'_>, story: &JournalState) -> Result<Sweep, Error> {
    let own = order.sweep.clone();
    let is_known = subject_of(order, story)?.is_recorded_in(&story.subject);
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
    let subject = subject_of(order, &story)?;
    is_same_sweep(&folder, &subject, Some(&story.subject), order.extend)?;
    let count = |state| story.trials.iter().filter(|trial| trial.state == state).count();
    if order.is_reached(&story.trials) {
        return Ok(Some((SweepEnd::Reached, story)));
    }
    let is_over = story.trials.len() >= subject.trials && count(State::Running) == 0;
    let failed = count(State::Failed);
    Ok(is_over.then_some((SweepEnd::Done { failed }, story)))
}

/// Comparable results that the sweep does not have yet, and the number of results that are not
/// comparable. Refused if their data are others than those here.
fn news(
    order: &SweepRequest<'_>,
    trainer: &dyn Trainer,
    known: &[EarlierTrial],
) -> Result<(Vec<EarlierTrial>, usize), Error> {
    let search = &order.sweep.search;
    let subject = subject(order, 0);
    let (mut news, mut left_out) = (Vec::new(), 0);
    for results in order.earlier {
        let (mut found, n_left) = comparable(&subject, search, results)?;
        left_out += n_left;
        found.retain(|one| {
            known.iter().chain(&news).all(|other: &EarlierTrial| other.from != one.from)
        });
        if let Some(first) = found.first() {
            let logs = PathBuf::from(&first.from);
            let folders = RunFolders { id: first.trial.id(), checkpoints: logs.clone(), logs };
            let differences = trainer.other_data(&folders, &order.changes(&first.trial.values));
            if !differences.is_empty() {
                return Err(Error::OtherData { folder: folders.logs, differences });
            }
        }
        news.extend(found);
    }
    Ok((news, left_out))
}

/// A remark on the results from which the sweep starts.
fn of_earlier(earlier: &[EarlierTrial], left_out: usize, search: &Search) -> Option<String> {
    let value = |one: &EarlierTrial| cost(one.trial.value(search.goal), search.goal);
    let finished = earlier.iter().filter(|one| one.trial.state == State::Finished);
    let best = finished.min_by(|a, b| value(a).total_cmp(&value(b)));
    let results = counted(earlier.len() as u64, "earlier result");
    let mut note = match best.and_then(|best| Some((best, best.trial.value(search.goal)?))) {
        _ if earlier.is_empty() => return None,
        Some((best, value)) => {
            let value = metric(&search.metric, value);
            format!(
                "{results} from elsewhere; the best: {} {value}, `{}`",
                search.metric, best.from
            )
        }
        None => format!("{results} from elsewhere"),
    };
    if left_out > 0 {
        note += &format!("; {left_out} more are not comparable");
    }
    Some(note)
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
        method: &dyn Method,
        base: &BaseValues,
        trials: &[Trial],
        earlier: &[EarlierTrial],
    ) -> Result<Self, Error> {
        let search = &order.sweep.search;
        let asked = order.sweep.trials;
        let draws = method.points(search).is_none();
        let repeated = if draws || search.repeats.is_some() {
            Repeated::of(search, base, asked)
        } else {
            None
        };
        let search = repeated.as_ref().map_or(search, |repeated| &repeated.search);
        let points = points(method, search, base);
        if points.as_ref().is_some_and(Vec::is_empty) {
            return Err(Error::NothingLeft);
        }
        // A space that is drawn from may have an end, too.
        let space = || {
            let space = draws.then(|| all_points(search, base))??;
            Some(search.start.iter().cloned().chain(space).collect())
        };
        let settings: Option<Vec<Values>> = points.clone().or_else(space);
        let ran: Vec<Trial> =
            trials.iter().chain(earlier.iter().map(|one| &one.trial)).cloned().collect();
        let mut tried = Tried::of(&ran, base);
        let n_left = settings.map(|settings| {
            let all = settings.into_iter().flat_map(|setting| match &repeated {
                Some(repeated) => repeated.all(&setting),
                None => vec![setting],
            });
            all.filter(|values| tried.add(values, base)).count()
        });
        let points = points.map(|points| {
            let mut begun = match &repeated {
                Some(_) => Tried::of(&Repeated::settings(&ran, base, search.goal), base),
                None => Tried::of(&ran, base),
            };
            points.into_iter().filter(|point| begun.add(point, base)).collect()
        });
        let most = asked.unwrap_or(usize::MAX);
        let wanted = n_left.map_or(most, |left| most.min(trials.len() + left));
        Ok(Self { points, total: wanted.max(trials.len()), repeated })
    }
}

/// Remarks on what a user may not expect.
fn notes(order: &SweepRequest<'_>, total: usize, repeated: Option<&Repeated>) -> Vec<String> {
    let search = &order.sweep.search;
    let mut notes = Vec::new();
    if let Some(asked) = order.sweep.trials.filter(|asked| *asked > total) {
        let noun = if repeated.is_some() { "trial" } else { "setting" };
        notes.push(format!(
            "`sweep.trials` is {asked}, but there are only {}: none is trained twice, as it would \
             give the same numbers",
            counted(total as u64, noun)
        ));
    }
    if let Some(repeated) = repeated.filter(|repeated| repeated.is_race()) {
        notes.push(format!(
            "each setting is trained up to {} times, as long as it may still be the best, and \
             compared by its mean",
            repeated.n()
        ));
        return notes;
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
