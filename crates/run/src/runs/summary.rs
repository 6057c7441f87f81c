//! Summary of a run, from its folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Error, config, read_if_there, tags};
use crate::event::{Evaluated, Event, Reason, TIE_BREAKER};
use crate::plan::{Mode, NO_STEP_LIMIT};
use crate::record::{
    self, DESCRIPTION, DESCRIPTION_FORMAT, NewerFormat, RunTime, Stamped, newest_of,
};
use crate::report::{self, Ending, Progress, Records, Unit};

/// State of a run, a trial or a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// A process has it.
    Running,
    /// It ran to its end.
    Finished,
    /// It was stopped by a signal; a sweep, before its last trial.
    Stopped,
    /// It failed and recorded the reason.
    Failed,
    /// The process is gone without a recorded reason.
    Killed,
    /// A trial that its sweep stopped early.
    Pruned,
}

impl State {
    /// All states.
    pub const ALL: [Self; 6] =
        [Self::Running, Self::Finished, Self::Stopped, Self::Failed, Self::Killed, Self::Pruned];

    /// The state as shown and written.
    pub fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Killed => "killed",
            Self::Pruned => "pruned",
        }
    }
}

/// The best value of the metric that ranks checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    pub value: f64,
    pub step: u64,
}

/// A run as its files show it. The names of the fields are those of `ddprun ls --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The experiment.
    pub name: String,
    /// `<time>-<id>`, or `trial-0007`.
    pub id: String,
    /// Folder of its logs.
    #[serde(serialize_with = "super::as_text")]
    pub folder: PathBuf,
    /// The sweep that it is a trial of.
    pub sweep: Option<String>,
    pub state: State,
    /// Reason for the state: the process that runs it, how it ended, or the failure.
    pub reason: Option<String>,
    /// Finished steps; of a run that is running or was killed, as of its last report, about once a
    /// second.
    pub step: u64,
    /// Last step; `None` if time ends the run.
    pub total_steps: Option<u64>,
    /// 0 if not known.
    #[serde(skip)]
    pub steps_per_epoch: u64,
    /// Epoch of the last finished step, from 1; 0 before the first step.
    pub epoch: u64,
    /// Last epoch; `None` if time ends the run.
    pub epochs: Option<u64>,
    /// The metric that ranks its checkpoints.
    pub monitor: Option<String>,
    /// Direction in which the metric improves.
    pub mode: Option<Mode>,
    /// The best value of that metric.
    pub best: Option<Best>,
    /// Newest value of each metric: `val/loss`, `train/accuracy`, `test/mse` ...
    pub metrics: BTreeMap<String, f64>,
    /// Time of the first start.
    pub started: Option<Timestamp>,
    /// Time of the last event.
    pub updated: Option<Timestamp>,
    /// Running time in seconds, without the pauses between starts.
    pub seconds: f64,
    /// Device of each rank.
    pub devices: Vec<String>,
    /// Tags, sorted.
    pub tags: Vec<String>,
    /// Why the later tags of the run cannot be read; `None` if they can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Reads the run in `folder`. Of a long run, most events are only skimmed.
pub fn summary(folder: &Path) -> Result<Summary, Error> {
    summary_of(folder, &report::read_milestones(folder)?)
}

/// Like [`summary`], with records that were read before.
pub fn summary_of(folder: &Path, records: &Records) -> Result<Summary, Error> {
    let description = Description::read(folder)?;
    let starts = record::read_environment(folder)?;
    let events = records.log.effective();
    let (state, reason) = state_of(records, &events, &description);
    let times = || records.log.events.iter().map(|stamped| stamped.time);
    // A run is more than its tags.
    let (tags, problem) = match tags(folder, config(folder).ok().as_ref()) {
        Ok(tags) => (tags, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let by_events = events.iter().map(|stamped| stamped.step).max();
    let by_records = by_events.or(records.epochs.last().map(|epoch| epoch.step));
    // Between two recorded steps a failure knows more.
    let step = by_records.max(records.traces.failed_after).unwrap_or(0);
    let per_epoch = description.steps_per_epoch.unwrap_or(0);
    let epochs_at = |step: u64| if per_epoch == 0 { 0 } else { step.div_ceil(per_epoch) };
    Ok(Summary {
        name: description.name.clone().unwrap_or_else(|| name_of(folder.parent())),
        id: name_of(Some(folder)),
        folder: folder.to_owned(),
        sweep: None,
        state,
        reason,
        step,
        total_steps: description.total_steps,
        steps_per_epoch: per_epoch,
        epoch: epochs_at(step),
        epochs: description.total_steps.filter(|_| per_epoch > 0).map(epochs_at),
        best: best(records, &events, &description),
        metrics: newest_metrics(records, &events),
        monitor: description.monitor,
        mode: description.mode,
        started: starts.first().map(|start| start.time).into_iter().chain(times()).min(),
        updated: times().max(),
        seconds: seconds(records, state),
        devices: description.devices,
        tags,
        problem,
    })
}

fn name_of(folder: Option<&Path>) -> String {
    folder.and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned()
}

/// The state of the run and its reason.
fn state_of(
    records: &Records,
    events: &[&Stamped],
    description: &Description,
) -> (State, Option<String>) {
    let first_line = |text: &str| text.lines().next().map(str::to_owned);
    let said = |words: &str| Some(words.to_owned());
    match Ending::of(events, &records.traces) {
        Ending::Running(holder) => (State::Running, said(holder)),
        Ending::Failed(failure) => (State::Failed, first_line(failure)),
        Ending::Finished(finished) => {
            let (state, words) = of_reason(finished.reason);
            let lacks = if finished.no_checkpoint { ", no checkpoint" } else { "" };
            (state, said(&format!("{words}{lacks}")))
        }
        Ending::NothingLeft(_) => (State::Finished, said("completed")),
        Ending::Killed => (State::Killed, None),
        Ending::Silent => {
            let last = records.epochs.last().map(|epoch| epoch.step);
            match last {
                Some(last) if Some(last) == description.total_steps => {
                    (State::Finished, said("completed"))
                }
                Some(_) => (State::Killed, said("its events were not recorded")),
                None => (State::Killed, said("before its first step")),
            }
        }
    }
}

fn of_reason(reason: Reason) -> (State, &'static str) {
    match reason {
        Reason::Completed => (State::Finished, "completed"),
        Reason::EarlyStopped => (State::Finished, "stopped early"),
        Reason::OutOfTime => (State::Finished, "time limit reached"),
        Reason::Stopped => (State::Stopped, "state saved"),
        Reason::Abandoned => (State::Stopped, "state not saved"),
    }
}

/// The best value as recorded at the end of the run, or else the best of its evaluations.
fn best(records: &Records, events: &[&Stamped], description: &Description) -> Option<Best> {
    let monitor = description.monitor.as_deref()?;
    let mode = description.mode?;
    let ends = events.iter().rev().find_map(|stamped| match &stamped.event {
        Event::Finished(finished) => finished.best.as_ref(),
        _ => None,
    });
    if let Some(said) = ends.filter(|best| best.metric == monitor && best.value.is_finite()) {
        return Some(Best { value: said.value, step: said.step });
    }
    let found = |metrics: &BTreeMap<String, f64>, step| {
        let loss = metrics.get(TIE_BREAKER).copied().unwrap_or(f64::INFINITY);
        Some((Best { value: *metrics.get(monitor)?, step }, loss))
    };
    let measured = evaluations(events).filter_map(|at| found(&at.metrics, at.step));
    let mut measured: Vec<(Best, f64)> = measured.collect();
    if measured.is_empty() {
        let Progress { unit, rows } = records.progress();
        let step = |at: u64| match unit {
            Unit::Step => at,
            Unit::Epoch => records.epochs.iter().rfind(|it| it.epoch == at).map_or(0, |it| it.step),
        };
        measured.extend(rows.into_iter().filter_map(|row| found(&row.metrics, step(row.at))));
    }
    let cost = |best: &Best| if mode == Mode::Max { -best.value } else { best.value };
    let finite = measured.into_iter().filter(|(best, _)| best.value.is_finite());
    let best = finite.min_by(|(a, a_loss), (b, b_loss)| {
        cost(a).total_cmp(&cost(b)).then_with(|| a_loss.total_cmp(b_loss))
    });
    best.map(|(best, _)| best)
}

fn evaluations<'a>(events: &[&'a Stamped]) -> impl Iterator<Item = &'a Evaluated> {
    events.iter().filter_map(|stamped| match &stamped.event {
        Event::Evaluated(at) | Event::Tested(at) => Some(at),
        _ => None,
    })
}

/// The last value of each metric.
fn newest_metrics(records: &Records, events: &[&Stamped]) -> BTreeMap<String, f64> {
    let rows = records.progress().rows;
    let by_epoch = rows.iter().flat_map(|row| row.metrics.clone());
    let measured = evaluations(events).flat_map(|at| at.metrics.clone());
    by_epoch.chain(measured).collect()
}

/// Running time: each start from its first event to its last, or until now if it is running.
fn seconds(records: &Records, state: State) -> f64 {
    let mut time = RunTime::default();
    for stamped in &records.log.events {
        if matches!(stamped.event, Event::Started(_)) {
            time.restart();
        }
        time.advance(stamped.time);
    }
    let is_running = state == State::Running;
    let found = if is_running { time.seconds_until_now() } else { time.seconds() };
    // A sum of nothing would be -0.
    found.unwrap_or_else(|| records.epochs.iter().fold(0.0, |sum, epoch| sum + epoch.seconds))
}

/// The part of `run.json` that all versions of ddprun have written in the same form; what a start
/// has not yet written, or an old version did not know, is absent.
#[derive(Clone, Debug, Default, PartialEq)]
struct Description {
    name: Option<String>,
    steps_per_epoch: Option<u64>,
    /// Absent if time ends the run.
    total_steps: Option<u64>,
    monitor: Option<String>,
    mode: Option<Mode>,
    devices: Vec<String>,
}

impl Description {
    /// Reads `run.json` of the newest start of the run in `folder`.
    fn read(folder: &Path) -> Result<Self, Error> {
        let path = newest_of(folder, DESCRIPTION);
        let Some(bytes) = read_if_there(&path)? else { return Ok(Self::default()) };
        let value: Value =
            serde_json::from_slice(&bytes).map_err(|error| Error::damaged(&path, &error))?;
        NewerFormat::check(&path, value.get("format").and_then(Value::as_u64), DESCRIPTION_FORMAT)?;
        let text = |place: &str| value.pointer(place)?.as_str().map(str::to_owned);
        let number = |place: &str| value.pointer(place)?.as_u64();
        let mode = value.pointer("/plan/checkpoint/mode").cloned();
        let devices = value.pointer("/plan/distributed/devices").and_then(Value::as_array);
        let word =
            |device: &Value| device.as_str().map_or_else(|| device.to_string(), str::to_owned);
        Ok(Self {
            name: text("/plan/name"),
            steps_per_epoch: number("/plan/length/steps_per_epoch"),
            total_steps: number("/plan/length/total_steps").filter(|&steps| steps < NO_STEP_LIMIT),
            monitor: text("/plan/checkpoint/monitor"),
            mode: mode.and_then(|mode| serde_json::from_value(mode).ok()),
            devices: devices.into_iter().flatten().map(word).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;
    use crate::event::Finished;
    use crate::files::{self, RunLock};
    use crate::record::{HISTORY, Jsonl, OpenSink, RESOLVED, Sink, SinkStart, example_events};

    const PLAN: &str = r#"{"format":1,"plan":{"name":"shapes",
        "length":{"steps_per_epoch":20,"total_steps":50},"distributed":{"devices":["cpu","cpu"]},
        "checkpoint":{"monitor":"val/accuracy","mode":"max"}}}"#;

    /// A run that records an event per second.
    struct Speaker {
        folder: tempfile::TempDir,
        sink: Box<dyn OpenSink>,
        seconds: i64,
    }

    impl Speaker {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            files::write_atomic(&folder.path().join(DESCRIPTION), PLAN.as_bytes()).unwrap();
            let tags = b"[experiment]\ntags = ['baseline']\n";
            files::write_atomic(&folder.path().join(RESOLVED), tags).unwrap();
            let mut start = SinkStart { total_steps: 50, ..SinkStart::default() };
            start.run.logs = folder.path().to_owned();
            let sink = Jsonl::default().open(&start).unwrap();
            let mut speaker = Self { folder, sink, seconds: 0 };
            speaker.say(Event::Started(example_events::started(0)));
            speaker
        }

        fn say(&mut self, event: Event) {
            self.seconds += 1;
            let time = Timestamp::from_second(1_700_000_000 + self.seconds).unwrap();
            let step = event.step().unwrap_or(0);
            self.sink.record(&Stamped { time, step, event }).unwrap();
        }

        fn summary(&self) -> Summary {
            summary(self.folder.path()).unwrap()
        }

        fn state(&self) -> (State, Option<String>) {
            let Summary { state, reason, .. } = self.summary();
            (state, reason)
        }
    }

    fn better(step: u64, accuracy: f64) -> Event {
        let metrics = [("val/accuracy".to_owned(), accuracy)].into();
        Event::Evaluated(Evaluated { metrics, ..example_events::evaluated(step) })
    }

    #[test]
    fn a_run_without_a_process_is_killed_and_knows_its_numbers() {
        let mut run = Speaker::new();
        for at in [10, 20] {
            run.say(Event::StepDone(example_events::step_done(at)));
        }
        run.say(better(20, 0.5));
        run.say(better(30, f64::NAN));
        run.say(Event::StepDone(example_events::step_done(30)));
        run.seconds += 1000;
        run.say(Event::Started(example_events::started(20)));
        run.say(Event::StepDone(example_events::step_done(25)));
        let found = run.summary();
        assert_eq!((found.state, &found.reason), (State::Killed, &None));
        assert_eq!(found.name, "shapes");
        assert_eq!((found.step, found.epoch, found.epochs), (25, 2, Some(3)));
        assert_eq!(found.best, Some(Best { value: 0.5, step: 20 }));
        assert!(found.metrics.contains_key("train/loss"));
        // Five seconds, then a long pause, then one second.
        assert_eq!((found.seconds, found.tags), (6.0, vec!["baseline".to_owned()]));
    }

    #[test]
    fn a_run_that_failed_has_done_the_steps_before_also_those_that_were_not_recorded() {
        let mut run = Speaker::new();
        run.say(Event::StepDone(example_events::step_done(10)));
        let report = r#"{"format":1,"rank":1,"pid":1,"host":"a","monotonic":{"secs":1,"nanos":0},
            "time":"2026-11-20T13:25:57Z","phase":"PHASE","step":27,"exit_code":4,"blame":"own",
            "message":"the loss is not finite","causes":[],"place":null,"help":null}"#;
        let found = |phase: &str| {
            let path = run.folder.path().join("rank-1.error.json");
            files::write_atomic(&path, report.replace("PHASE", phase).as_bytes()).unwrap();
            let Summary { state, step, epoch, .. } = run.summary();
            (state, step, epoch)
        };
        assert_eq!(found("forward"), (State::Failed, 26, 2));
        assert_eq!(found("saving"), (State::Failed, 27, 2));
    }

    #[test]
    fn only_a_lock_that_is_held_is_a_process() {
        let mut run = Speaker::new();
        let lock = RunLock::acquire(run.folder.path()).unwrap();
        let (state, reason) = run.state();
        assert!(state == State::Running && reason.unwrap().starts_with("pid "));
        drop(lock);
        // As a process that was killed leaves it.
        files::write_atomic(&run.folder.path().join(".lock"), b"pid 7 on a").unwrap();
        assert_eq!(run.state(), (State::Killed, None));
        let stopped = Finished { reason: Reason::Stopped, ..example_events::finished() };
        run.say(Event::Finished(stopped));
        assert_eq!(run.state().0, State::Stopped);
        run.say(Event::Started(example_events::started(20)));
        assert_eq!(run.state().0, State::Killed, "it went on");
        run.say(Event::Finished(example_events::finished()));
        assert_eq!(run.state(), (State::Finished, Some("completed".to_owned())));
        assert_eq!(run.summary().best, Some(Best { value: 0.725, step: 40 }));
    }

    #[test]
    fn a_run_that_has_written_almost_nothing_is_told_as_such() {
        let folder = tempfile::tempdir().unwrap();
        files::write_atomic(&folder.path().join(HISTORY), b"{}").unwrap();
        let found = summary(folder.path());
        assert!(found.is_ok(), "{:?}", found.err());
        files::write_atomic(&folder.path().join(HISTORY), b"").unwrap();
        files::remove_file(&folder.path().join(HISTORY)).unwrap();
        files::write_atomic(&folder.path().join(RESOLVED), b"").unwrap();
        let found = summary(folder.path()).unwrap();
        assert_eq!((found.state, found.step, found.best), (State::Killed, 0, None));
        assert!(found.seconds.is_sign_positive());
        assert_eq!(found.id, folder.path().file_name().unwrap().to_string_lossy());
    }

    #[test]
    fn a_folder_whose_name_is_no_text_can_be_told_as_json() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join(OsStr::from_bytes(b"a\xff"));
        files::create_folder(&run).unwrap();
        files::write_atomic(&run.join(RESOLVED), b"").unwrap();
        let found = serde_json::to_value(summary(&run).unwrap()).unwrap();
        assert!(found["folder"].as_str().unwrap().ends_with("a\u{fffd}"), "{found}");
    }

    #[test]
    fn a_newer_run_is_refused_in_words() {
        let run = Speaker::new();
        let newer = PLAN.replace("\"format\":1", "\"format\":7");
        files::write_atomic(&run.folder.path().join(DESCRIPTION), newer.as_bytes()).unwrap();
        let message = summary(run.folder.path()).unwrap_err().to_string();
        assert!(message.ends_with("has format 7, and this ddprun reads formats up to 1"));
    }
}
