//! A run that is resumed: from its checkpoints, or from the beginning where it never had one.

use std::path::{Path, PathBuf};

use crate::checkpoint;
use crate::config::schema::{PrecisionChoice, Train};
use crate::config::{self, Change, Loaded, Source};
use crate::event::Event;
use crate::files;
use crate::kinds::Kinds;
use crate::optim::{Plateau, Schedule};
use crate::plan::{Bf16Instructions, Plan, Precision, RunFolders, format_number};
use crate::record::{
    self, EPOCHS, EVENTS, HISTORY, METRICS, RESOLVED, Stamped, newest_of, to_stderr,
};
use crate::runs::{StoredRun, warn_of_skipped};
use crate::session::mirror;
use crate::session::prepare::{LaunchOrigin, Prepared};
use crate::session::run_folder::{
    OtherData, OwnedRun, own_run, refuse_checkpoints_of_others, stored_experiment, unwritable_run,
};
use crate::sweep::{self, State, Trial};
use crate::user_error::{ErrorPage, ExitCode};

/// Policy for a run whose checkpoints are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingCheckpoints {
    /// Refuse, and say where they were looked for.
    Refused,
    /// Begin anew.
    FromScratch,
}

/// A run that is resumed.
#[derive(Clone, Debug)]
pub struct ResumedRun {
    pub folders: RunFolders,
    pub data: OtherData,
    pub gone: MissingCheckpoints,
    /// True if it goes on from its newest checkpoint or not at all.
    pub strict: bool,
}

/// Checkpoints that a run has written and still has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckpointHistory {
    /// There are some.
    Saved,
    /// It ended before the first one.
    Unsaved,
    /// It is over, after this many steps, and saves only when it is stopped.
    Complete(u64),
    /// There were some.
    Lost,
    /// There are none, and nothing says whether there were.
    Unknown,
}

impl ResumedRun {
    /// The run in these folders, with nothing accepted that it did not begin with.
    pub(crate) fn of(folders: RunFolders) -> Self {
        let (data, gone) = (OtherData::Refused, MissingCheckpoints::Refused);
        Self { folders, data, gone, strict: false }
    }

    /// Takes possession of the run's folders.
    pub(crate) fn own(&self, prepared: &Prepared) -> Result<OwnedRun, ErrorPage> {
        refuse_checkpoints_of_others(&self.folders)?;
        if self.strict {
            // If none is intact, the ranks report the damage.
            let newest = checkpoint::newest(&self.folders.checkpoints).ok();
            newest.map_or(Ok(()), |newest| warn_of_skipped(&newest, true))?;
        }
        let begins_anew = self.begins_anew(prepared.plan.length.total_steps)?;
        let mut run = own_run(self.folders.clone(), prepared, self.data)?;
        run.is_resumed = true;
        if begins_anew {
            let kept = set_aside(&run.folders.logs).map_err(unwritable_run)?;
            let kept = kept.map(|folder| format!("; what it had recorded is kept in `{folder}`"));
            let kept = kept.unwrap_or_default();
            to_stderr(&format!("no checkpoint: restarting from step 0{kept}"));
        }
        Ok(run)
    }

    /// True if the run has no checkpoint to go on from; an error if it should have one.
    fn begins_anew(&self, total_steps: u64) -> Result<bool, ErrorPage> {
        let folder = self.folders.checkpoints.display();
        let refuse = |code, what: &str, help: &str| {
            Err(ErrorPage::new(code, format!("error: {what}\n  do: {help}")))
        };
        let history = checkpoint_history(&self.folders)?;
        match (history, self.gone) {
            (CheckpointHistory::Saved, MissingCheckpoints::Refused) => Ok(false),
            (CheckpointHistory::Saved, MissingCheckpoints::FromScratch) => refuse(
                ExitCode::Refused,
                &format!("refusing `--from-scratch`: this run has checkpoints in `{folder}`"),
                "omit `--from-scratch`; if none of them is intact, move that folder away first",
            ),
            (CheckpointHistory::Unsaved, _) | (_, MissingCheckpoints::FromScratch) => Ok(true),
            (CheckpointHistory::Complete(steps), MissingCheckpoints::Refused) => {
                let complete = format!("all {steps} steps are done, and none was saved");
                let help = "train it again from step 0 with `ddprun resume --from-scratch`";
                if total_steps <= steps {
                    let page = format!("already complete: {complete}; {help}");
                    return Err(ErrorPage::new(ExitCode::Ok, page));
                }
                let what = format!("cannot continue: {complete} (`checkpoint.every = \"never\"`)");
                refuse(ExitCode::Checkpoint, &what, help)
            }
            (CheckpointHistory::Lost | CheckpointHistory::Unknown, MissingCheckpoints::Refused) => {
                let had = if history == CheckpointHistory::Lost { "had" } else { "may have" };
                refuse(
                    ExitCode::Checkpoint,
                    &format!("there is no checkpoint in `{folder}`, and this run {had} saved some"),
                    "put them back there, with `ddprun resume --from` if the run has a mirror, or \
                     restart it from step 0 with `ddprun resume --from-scratch`",
                )
            }
        }
    }
}

/// Reads the folders of a run for traces of its checkpoints.
fn checkpoint_history(run: &RunFolders) -> Result<CheckpointHistory, ErrorPage> {
    let folder = &run.checkpoints;
    let found = checkpoint::all(folder);
    let found = found.map_err(|error| ErrorPage::of(ExitCode::Checkpoint, &error))?;
    if !found.is_empty() {
        return Ok(CheckpointHistory::Saved);
    }
    // Links are younger than a checkpoint.
    if folder.join("latest").is_symlink() {
        return Ok(CheckpointHistory::Lost);
    }
    let unreadable = |error: record::Error| ErrorPage::of(ExitCode::Storage, &error);
    let (events, history) = (run.logs.join(EVENTS), run.logs.join(HISTORY));
    // The folder is older than the run; what was saved last may not be recorded.
    let unsaved =
        if folder.is_dir() { CheckpointHistory::Unsaved } else { CheckpointHistory::Unknown };
    if events.is_file() {
        let log = record::read_events(&events).map_err(unreadable)?;
        let complete = log.effective().into_iter().rev().find_map(|stamped| match &stamped.event {
            Event::Finished(finished) if finished.no_checkpoint => Some(finished.step),
            _ => None,
        });
        return Ok(match complete {
            Some(steps) => CheckpointHistory::Complete(steps),
            None if had_saved(&log.events) => CheckpointHistory::Lost,
            None => unsaved,
        });
    }
    let epochs = record::read_epochs(&run.logs.join(EPOCHS)).map_err(unreadable)?;
    let is_silent = epochs.is_none_or(|epochs| epochs.is_empty())
        && (!history.is_file() || record::read_history(&history).map_err(unreadable)?.is_empty());
    Ok(if is_silent { unsaved } else { CheckpointHistory::Unknown })
}

/// True if a checkpoint had been written since the run last began at its first step.
fn had_saved(events: &[Stamped]) -> bool {
    events.iter().fold(false, |saved, stamped| match &stamped.event {
        Event::Started(started) => started.resumed_from > 0,
        Event::Saved(_) => true,
        _ => saved,
    })
}

/// Copies the records that a start at the first step writes anew into a folder of their own, and
/// names it; `None` where there are none.
fn set_aside(logs: &Path) -> Result<Option<String>, files::Error> {
    let read = |name: &'static str| Some((name, files::read(&logs.join(name)).ok()?));
    let records: Vec<(&str, Vec<u8>)> =
        [METRICS, EPOCHS, HISTORY].into_iter().filter_map(read).collect();
    let has_rows = records.iter().any(|(name, bytes)| match *name {
        METRICS => has_rows(bytes),
        EPOCHS => !bytes.is_empty(),
        _ => false,
    });
    let has_epochs = record::read_history(&logs.join(HISTORY)).is_ok_and(|it| !it.is_empty());
    if !has_rows && !has_epochs {
        return Ok(None);
    }
    let mut numbers = 1..;
    let folder = numbers.find_map(|number: u32| {
        Some(logs.join(format!("before-{number}"))).filter(|folder| !folder.exists())
    });
    let folder = folder.unwrap_or_else(|| logs.join("before"));
    files::create_folder(&folder)?;
    for (name, bytes) in records {
        files::write_atomic(&folder.join(name), &bytes)?;
    }
    Ok(Some(folder.display().to_string()))
}

/// True if a table has more than its header.
fn has_rows(bytes: &[u8]) -> bool {
    bytes.split(|&byte| byte == b'\n').filter(|row| !row.is_empty()).nth(1).is_some()
}

/// Source of changes to the stored experiment beside the words of a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Environment {
    /// `DDPRUN_*` variables: a user resumes.
    Read,
    /// Nothing: a launcher starts the run again, in the environment that it began in.
    Ignored,
}

/// Decides again about the run that goes on, with these changes.
///
/// # Errors
///
/// A change would alter what was already computed, or end the run before where it is.
pub fn resumed(
    description: &StoredRun,
    changes: &[String],
    environment: Environment,
    origin: LaunchOrigin<'_>,
    kinds: &Kinds,
) -> Result<Prepared, ErrorPage> {
    let (path, text) = stored_experiment(&description.run)?;
    let vocabulary = kinds.vocabulary();
    let before = config::load_text(&path, &text, &[], &vocabulary)?;
    let load = match environment {
        Environment::Read => config::load_stored,
        Environment::Ignored => config::load_text,
    };
    let mut now = load(&path, &text, changes, &vocabulary)?;
    let changed = config::refuse_unsafe(&before.experiment, &now.experiment, &vocabulary)
        .map_err(|changes| refusal(&changes, &now))?;
    if changed.iter().any(|change| change.key == mirror::KEY) {
        mirror::check_mirror(&now)?;
    }
    if now.experiment.train.precision == PrecisionChoice::Amp {
        // What it stands for is a matter of the version; the run goes on as it began.
        now.experiment.train.precision = description.plan.precision.into();
    }
    now.pretrained.clone_from(&description.plan.model.pretrained_checkpoint);
    let prepared = Prepared::of(now, origin, Some(&description.plan.data.source.survey), kinds)?;
    let (train, plan) = (&prepared.loaded.experiment.train, &prepared.plan);
    refuse_shorter(&description.run, &changed, train, plan.length.steps_per_epoch)?;
    for change in &changed {
        to_stderr(&format!("changed: {change}{}", by(change, &prepared.loaded)));
    }
    if let Some(change) = moved_lr(description, &changed, plan, kinds) {
        to_stderr(&change);
    }
    if let Some(change) = other_bf16(&description.plan, &prepared.plan) {
        to_stderr(&change);
    }
    Ok(prepared)
}

/// A line for a processor that multiplies bf16 numbers in another way than the run's.
fn other_bf16(before: &Plan, now: &Plan) -> Option<String> {
    let way = |found: Option<Bf16Instructions>| {
        found.map_or("rounded fp32".to_owned(), |found| found.to_string())
    };
    let is_meant =
        |plan: &Plan| plan.precision == Precision::Bf16 && !plan.distributed.is_on_gpus();
    let ways = [before, now].map(|plan| plan.bf16_instructions);
    (is_meant(before) && is_meant(now) && ways[0] != ways[1]).then(|| {
        let [before, now] = ways.map(way);
        format!("changed: bf16 by {now}, before by {before}: the last bits differ")
    })
}

/// The variable that makes a change, if one does.
fn by(change: &Change, now: &Loaded) -> String {
    match now.sources.get(&change.key) {
        Some(Source::Environment(name)) => format!(" (by {name})"),
        _ => String::new(),
    }
}

fn refusal(changes: &[Change], now: &Loaded) -> ErrorPage {
    let line = |change: &Change| format!("\n  {change}{}", by(change, now));
    let list: Vec<String> = changes.iter().map(line).collect();
    let variables: Vec<&str> = changes
        .iter()
        .filter_map(|change| match now.sources.get(&change.key)? {
            Source::Environment(name) => Some(name.as_str()),
            _ => None,
        })
        .collect();
    let help = if variables.len() == changes.len() {
        format!("take the variables away: `unset {}`", variables.join(" "))
    } else if changes.iter().all(|change| config::is_folder(&change.key)) {
        "omit them: a run stays in its folders; to move it, move them, and leave a link (`ln -s`) \
         in their place"
            .to_owned()
    } else {
        let safe = config::safe_on_resume().join("`, `");
        format!(
            "omit them. To train with other values, start a new run, with \
             `model.pretrained=run:NAME/latest` from these weights. These keys can change on \
             resume, except for their folders: `{safe}`"
        )
    };
    let list = list.concat();
    let page = format!("error: these keys cannot change on resume:{list}\n  do: {help}");
    ErrorPage::new(ExitCode::Refused, page)
}

/// Keys that end a run after a number of steps.
const LENGTHS: [&str; 2] = ["train.epochs", "train.steps"];

/// Refuses a length that the run is past already: nothing is left to train, and the run would not
/// go on from where it stopped any more.
pub(crate) fn refuse_shorter(
    run: &RunFolders,
    changed: &[Change],
    train: &Train,
    steps_per_epoch: u64,
) -> Result<(), ErrorPage> {
    let asked: Vec<&str> = lengths(changed).collect();
    if asked.is_empty() {
        return Ok(());
    }
    let least = |done: u64| least(&asked, train, steps_per_epoch, done);
    let found = checkpoint::all(&run.checkpoints)
        .map_err(|error| ErrorPage::of(ExitCode::Checkpoint, &error))?;
    if !found.iter().any(|found| least(found.step).is_some()) {
        return Ok(());
    }
    // Where no checkpoint is whole, the ranks say what is wrong with each.
    let Ok(newest) = checkpoint::newest(&run.checkpoints) else { return Ok(()) };
    let done = newest.state.step;
    least(done).map_or(Ok(()), |(key, least)| Err(too_short(key, least, done, steps_per_epoch)))
}

/// The changed keys that end a run after a number of steps.
fn lengths(changed: &[Change]) -> impl Iterator<Item = &str> {
    let keys = changed.iter().map(|change| change.key.as_str());
    keys.filter(|key| LENGTHS.contains(key))
}

/// The key among those `asked` for that would end the run before `done` steps, and its least value
/// that would not.
fn least(
    asked: &[&str],
    train: &Train,
    steps_per_epoch: u64,
    done: u64,
) -> Option<(&'static str, u64)> {
    let limits = [train.epochs.zip(Some(steps_per_epoch)), train.steps.zip(Some(1))];
    let mut limits = LENGTHS.into_iter().zip(limits).filter(|(key, _)| asked.contains(key));
    limits.find_map(|(key, limit)| {
        let (_, steps) = limit.filter(|(count, steps)| count.saturating_mul(*steps) < done)?;
        Some((key, done.div_ceil(steps)))
    })
}

fn too_short(key: &str, least: u64, done: u64, steps_per_epoch: u64) -> ErrorPage {
    // Rounded down: what is not done is not said to be.
    let epochs = (done * 10 / steps_per_epoch) as f64 / 10.0;
    let page = format!(
        "error: this run is past `{key}` already: {done} steps ({epochs} epochs) are done\n  \
         do: set `{key}` to at least {least}, or leave it out"
    );
    ErrorPage::new(ExitCode::Refused, page)
}

/// A line for a run that goes on with another length, if that moves its learning rate.
pub(crate) fn moved_lr(
    description: &StoredRun,
    changed: &[Change],
    now: &Plan,
    kinds: &Kinds,
) -> Option<String> {
    lengths(changed).next()?;
    let before = &description.plan;
    let newest = checkpoint::all(&description.run.checkpoints).ok()?.pop()?;
    let state = checkpoint::open(&newest.path).ok()?.state;
    let is_own = before.swa.is_none() && now.swa.is_none();
    let done = Some(state.step).filter(|step| *step > 0 && is_own)?;
    let lr = |plan: &Plan| lr_of_step(plan, done, &state.plateau, kinds);
    let (then, lr) = (format_number(lr(before)?), format_number(lr(now)?));
    (then != lr).then(|| {
        let (rule, total) = (&now.schedule.rule.name, now.length.total_steps);
        format!(
            "changed: the learning rate at step {done}: {then} -> {lr}, since `{rule}` now spans \
             {total} steps"
        )
    })
}

/// The learning rate of the step `number`, from 1.
fn lr_of_step(plan: &Plan, number: u64, plateau: &Plateau, kinds: &Kinds) -> Option<f64> {
    let scheduler = kinds.schedulers.build(&plan.schedule.rule).ok()?;
    let schedule = Schedule::new(scheduler.as_ref(), &plan.schedule, plan.optimizer.lr);
    Some(schedule.rates(number - 1, plateau).lr)
}

/// Refuses to resume a trial that its sweep has pruned, or one with these `changes`.
pub fn refuse_changed_trial(run: &RunFolders, changes: &[String]) -> Result<(), ErrorPage> {
    let Some((folder, trial)) = trial_of(&run.logs)? else { return Ok(()) };
    let (number, folder) = (trial.number, folder.display());
    if trial.state == State::Pruned {
        return Err(pruned(run, &format!("trial {number} was pruned by the sweep `{folder}`")));
    }
    if !changes.is_empty() {
        return Err(changed(
            run,
            &format!("trial {number} is ranked with the others of the sweep `{folder}`"),
            changes,
        ));
    }
    if trial.state == State::Running {
        to_stderr(&format!(
            "note: this is trial {number} of the sweep `{folder}`, whose command resumes it, too"
        ));
    }
    Ok(())
}

/// The sweep's folder and the trial whose records are in `logs`, if it is one.
fn trial_of(logs: &Path) -> Result<Option<(PathBuf, Trial)>, ErrorPage> {
    let Some(folder) = logs.parent() else { return Ok(None) };
    let story = sweep::read(folder).map_err(|error| ErrorPage::from_error(&error))?;
    let trials = story.map(|story| story.trials).unwrap_or_default();
    let trial = trials.into_iter().find(|trial| logs.ends_with(trial.id()));
    Ok(trial.map(|trial| (folder.to_owned(), trial)))
}

fn pruned(run: &RunFolders, what: &str) -> ErrorPage {
    let gone = if run.checkpoints.exists() { "" } else { ", and its checkpoints were removed" };
    let page = format!(
        "error: {what}{gone}\n  do: train a run of its own with its settings: `{}`",
        command_of_own_run(run)
    );
    ErrorPage::new(ExitCode::Refused, page)
}

fn changed(run: &RunFolders, what: &str, changes: &[String]) -> ErrorPage {
    let (changes, checkpoints) = (changes.join(" "), run.checkpoints.display());
    let page = format!(
        "error: {what}, and would not be comparable with `{changes}`\n  do: omit that, or train a \
         run of its own from its weights: `{} model.pretrained={checkpoints}/latest`",
        command_of_own_run(run)
    );
    ErrorPage::new(ExitCode::Refused, page)
}

/// The command that trains the trial's experiment outside of the sweep.
fn command_of_own_run(run: &RunFolders) -> String {
    format!("ddprun {} experiment.name=NAME", newest_of(&run.logs, RESOLVED).display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Experiment;
    use crate::event::Saved;
    use crate::record::example_events;
    use crate::units::Bytes;

    #[test]
    fn a_run_that_began_anew_has_saved_nothing_until_it_does() {
        let stamped = |event: Event| Stamped { time: jiff::Timestamp::UNIX_EPOCH, step: 0, event };
        let started = |from: u64| stamped(Event::Started(example_events::started(from)));
        let saved = stamped(Event::Saved(Saved {
            step: 4,
            path: "step-00000004".into(),
            best: true,
            size: Bytes(1),
            seconds: 0.1,
            stall_seconds: 0.0,
            replaced: 0,
            surplus: None,
        }));
        assert!(!had_saved(&[]));
        assert!(!had_saved(&[started(0)]));
        assert!(had_saved(&[started(0), saved.clone()]));
        assert!(had_saved(&[started(4)]));
        assert!(!had_saved(&[started(0), saved.clone(), started(0)]));
        assert!(had_saved(&[started(0), saved.clone(), started(0), saved]));
    }

    fn train(epochs: Option<u64>, steps: Option<u64>) -> Train {
        let text = "schema = 1\n[model]\nname = \"mlp\"\n[data]\nname = \"shapes\"\n\
                    [train]\nepochs = 2\nbatch_size = 4\n";
        let path = std::path::Path::new("x.toml");
        let loaded = crate::config::load_text(path, text, &[], &Kinds::default().vocabulary());
        let Experiment { train, .. } = loaded.unwrap().experiment;
        Train { epochs, steps, ..train }
    }

    #[test]
    fn a_run_may_end_where_it_is_and_not_before() {
        let least = |epochs, steps, done| least(&LENGTHS, &train(epochs, steps), 10, done);
        assert_eq!(least(Some(2), None, 43), Some(("train.epochs", 5)));
        assert_eq!(least(Some(4), None, 40), None);
        assert_eq!(least(Some(4), None, 41), Some(("train.epochs", 5)));
        assert_eq!(least(Some(9), Some(42), 43), Some(("train.steps", 43)));
        assert_eq!(least(None, Some(43), 43), None);
        assert_eq!(super::least(&["train.steps"], &train(Some(2), None), 10, 43), None);
    }

    #[test]
    fn what_is_said_of_a_length_names_the_least_one() {
        let page = too_short("train.epochs", 5, 43, 10).to_string();
        assert!(page.contains("43 steps (4.3 epochs) are done"), "{page}");
        assert!(page.contains("set `train.epochs` to at least 5, or leave it out"), "{page}");
    }
}
