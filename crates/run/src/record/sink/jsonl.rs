//! `jsonl` in `logging.sinks`
//!
//! `events.jsonl`: one line per event, with its time and step. A resumed run appends to it; its
//! `started` line has the step that it resumes from.
//!
//! The state of a run is read from this file, so a run without the sink writes it too, except for
//! the steps.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::kind::Kind;
use crate::event::{Event, FORMAT, Finished, Reason};
use crate::files::{self, LineFile};
use crate::record::sink::{OpenSink, Sink, SinkStart};
use crate::record::{Error, NewerFormat, is_cut_short};

/// Name of the file in the run's folder.
pub const NAME: &str = "events.jsonl";

/// `events.jsonl`: all events of a run, one JSON object per line. Without it the file has no steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Jsonl {}

impl Kind for Jsonl {
    const NAME: &'static str = "jsonl";
}

impl Sink for Jsonl {
    fn open(&self, start: &SinkStart) -> Result<Box<dyn OpenSink>, Error> {
        let lines = LineFile::open(&start.run.logs.join(NAME))?;
        Ok(Box::new(EventsFile { lines, has_steps: true }))
    }
}

struct EventsFile {
    lines: LineFile,
    /// False for a run without the sink: its file lacks steps and the ranks' reports between them.
    has_steps: bool,
}

/// Opens `events.jsonl` at `path` for a run without the sink.
pub(in crate::record) fn rare_events(path: &Path) -> Result<Box<dyn OpenSink>, Error> {
    Ok(Box::new(EventsFile { lines: LineFile::open(path)?, has_steps: false }))
}

impl OpenSink for EventsFile {
    fn record(&mut self, stamped: &Stamped) -> Result<(), Error> {
        if !self.has_steps && matches!(stamped.event, Event::StepDone(_) | Event::RankStats(_)) {
            return Ok(());
        }
        let line = encode(stamped).map_err(|reason| Error::Encode { what: NAME, reason })?;
        Ok(self.lines.push(&line)?)
    }

    fn file(&self) -> Option<&Path> {
        Some(self.lines.path())
    }

    fn sync(&self) -> Result<(), Error> {
        Ok(self.lines.sync()?)
    }

    fn summary_entry(&self, _: &Finished) -> Option<(&'static str, PathBuf)> {
        self.has_steps.then(|| ("events", self.lines.path().to_owned()))
    }
}

/// An event with its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stamped {
    /// Time of recording.
    pub time: Timestamp,
    /// The last step known then.
    pub step: u64,
    pub event: Event,
}

/// The readable events of an `events.jsonl`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Log {
    /// In file order.
    pub events: Vec<Stamped>,
    /// Damaged lines: a killed process, or a full disk, cuts a line short.
    pub n_unreadable: usize,
}

impl Log {
    /// Adds the event of a line of the file at `path`; an empty line has none.
    pub(super) fn add(&mut self, path: &Path, line: &[u8]) -> Result<(), Error> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        match parse(path, line)? {
            _ if line.is_empty() => {}
            Some(stamped) => self.events.push(stamped),
            None => self.n_unreadable += 1,
        }
        Ok(())
    }

    /// The events that led to the present state: without those after the step from which a later
    /// start resumed, since these steps were repeated, and without the end before it, unless
    /// nothing was left to do. The end of a start that had nothing to do does not count.
    pub fn effective(&self) -> Vec<&Stamped> {
        let mut kept: Vec<&Stamped> = Vec::new();
        for stamped in &self.events {
            if let Event::Started(started) = &stamped.event {
                kept.retain(|earlier| earlier.step <= started.resumed_from);
                if let Some(unfinished) = started.unfinished {
                    let mut evaluations = 0;
                    kept.retain(|earlier| match &earlier.event {
                        Event::Evaluated(at) if at.step == started.resumed_from => {
                            evaluations += 1;
                            evaluations <= unfinished.evaluations
                        }
                        Event::EpochDone(epoch) if epoch.step == started.resumed_from => {
                            unfinished.epoch_is_closed
                        }
                        _ => true,
                    });
                }
                let goes_on = started.resumed_from < started.total_steps;
                let is_said_again = |event: &Event| match event {
                    Event::EpochDone(epoch) => {
                        is_cut_short(epoch, started.resumed_from, started.steps_per_epoch)
                    }
                    event => is_end(event),
                };
                kept.retain(|earlier| !(goes_on && is_said_again(&earlier.event)));
            }
            match &stamped.event {
                // A run that was stopped at its last step is evaluated by the next start. Another
                // end is said again by a start that found nothing left to do.
                Event::Finished(_) => {
                    kept.retain(|at| !is_interruption(&at.event));
                    if kept.iter().any(|at| is_finished(&at.event)) {
                        continue;
                    }
                }
                Event::Tested(_) => kept.retain(|at| !matches!(at.event, Event::Tested(_))),
                _ => {}
            }
            kept.push(stamped);
        }
        kept
    }
}

fn is_finished(event: &Event) -> bool {
    matches!(event, Event::Finished(_))
}

/// True if a run was asked to end before it was complete.
fn is_interruption(event: &Event) -> bool {
    let Event::Finished(finished) = event else { return false };
    matches!(finished.reason, Reason::Stopped | Reason::Abandoned)
}

/// True for events that occur once, at the end.
fn is_end(event: &Event) -> bool {
    matches!(event, Event::Tested(_) | Event::Finished(_) | Event::Failed { .. })
}

/// Reads the events of a run.
pub fn read(path: &Path) -> Result<Log, Error> {
    let failed = |reason| files::Error::io("read", path)(reason);
    let bytes = files::read_lines(path).map_err(failed)?;
    let mut log = Log::default();
    bytes.split(|&byte| byte == b'\n').try_for_each(|line| log.add(path, line))?;
    Ok(log)
}

/// Encodes an event as one flat object: time, step, kind, then the fields of the event.
pub(super) fn encode(stamped: &Stamped) -> Result<String, serde_json::Error> {
    serde_json::to_string(&stamped.object()?)
}

impl Stamped {
    /// The object of this event in `events.jsonl`.
    pub fn object(&self) -> Result<Map<String, Value>, serde_json::Error> {
        let mut object = Map::new();
        object.insert("time".into(), format!("{:.3}", self.time).into());
        object.insert("step".into(), self.step.into());
        if let Value::Object(fields) = serde_json::to_value(&self.event)? {
            object.extend(fields);
        }
        Ok(object)
    }
}

/// The event of a line of the file at `path`; `None` if the line is not an event.
pub(super) fn parse(path: &Path, line: &[u8]) -> Result<Option<Stamped>, NewerFormat> {
    let Ok(object) = serde_json::from_slice::<Map<String, Value>>(line) else { return Ok(None) };
    NewerFormat::check(path, object.get("format").and_then(Value::as_u64), FORMAT)?;
    let field = |name: &str| object.get(name).cloned().unwrap_or_default();
    let (time, step) = (field("time"), field("step"));
    let stamped = || {
        Some(Stamped {
            time: serde_json::from_value(time).ok()?,
            step: serde_json::from_value(step).ok()?,
            event: serde_json::from_value(Value::Object(object)).ok()?,
        })
    };
    Ok(stamped())
}

/// Running time of a run: each of its starts from its first event to its last, without the pauses
/// between them.
#[derive(Debug, Default)]
pub struct RunTime {
    /// Seconds of the starts before the newest one.
    before: f64,
    /// First and last event of the newest start.
    newest: Option<(Timestamp, Timestamp)>,
}

impl RunTime {
    /// The time of a run whose earlier starts took `before` seconds.
    pub(super) fn after(before: f64) -> Self {
        Self { before, newest: None }
    }

    /// Begins another start: the pause before it does not count.
    pub fn restart(&mut self) {
        self.before += self.newest.take().map_or(0.0, |(first, last)| span(first, last));
    }

    /// Adds the time of an event. Returns the seconds until then.
    pub fn advance(&mut self, time: Timestamp) -> f64 {
        let first = self.newest.map_or(time, |(first, _)| first);
        self.newest = Some((first, time));
        self.before + span(first, time)
    }

    /// Seconds without the pauses between the starts; `None` before the first event.
    pub(crate) fn seconds(&self) -> Option<f64> {
        let (first, last) = self.newest?;
        Some(self.before + span(first, last))
    }

    /// The same for a run that is still running.
    pub(crate) fn seconds_until_now(&self) -> Option<f64> {
        let (first, last) = self.newest?;
        Some(self.before + span(first, last.max(Timestamp::now())))
    }
}

/// Seconds from one time to a later one.
fn span(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64().max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Started, StepDone};
    use crate::record::example_events;

    fn stamped(step: u64, event: Event) -> Stamped {
        Stamped { time: "2026-11-20T13:25:56.125Z".parse().unwrap(), step, event }
    }

    fn step(step: u64) -> Stamped {
        stamped(step, Event::StepDone(example_events::step_done(step)))
    }

    #[test]
    fn a_line_is_flat_and_begins_with_time_step_and_kind() {
        let line = encode(&stamped(9, Event::Warned { message: "slow disk".into() })).unwrap();
        insta::assert_snapshot!(line,
            @r#"{"time":"2026-11-20T13:25:56.125Z","step":9,"event":"warned","message":"slow disk"}"#);
        let line = encode(&step(7)).unwrap();
        assert_eq!(line.matches("\"step\"").count(), 1, "{line}");
    }

    #[test]
    fn every_kind_of_event_comes_back_as_it_was_written() {
        let events = [
            Event::Started(example_events::started(0)),
            Event::StepDone(example_events::step_done(3)),
            Event::StepSkipped { step: 4, loss_scale: None },
            Event::Evaluated(example_events::evaluated(20)),
            Event::EpochDone(example_events::epoch_done(1)),
            Event::Warned { message: "two\nlines".into() },
            Event::Finished(example_events::finished()),
        ];
        for event in events {
            let written = stamped(event.step().unwrap_or(5), event);
            let line = encode(&written).unwrap();
            assert_eq!(parse(Path::new(NAME), line.as_bytes()).unwrap(), Some(written));
        }
    }

    #[test]
    fn a_loss_that_is_not_a_number_comes_back_as_such() {
        let done =
            StepDone { loss: f64::NAN, grad_norm: f64::INFINITY, ..example_events::step_done(3) };
        let line = encode(&stamped(3, Event::StepDone(done))).unwrap();
        let read = parse(Path::new(NAME), line.as_bytes()).unwrap().unwrap();
        let Event::StepDone(read) = read.event else { panic!("{line}") };
        assert!(read.loss.is_nan() && read.grad_norm.is_nan());
    }

    #[test]
    fn a_torn_line_is_counted_and_the_rest_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let line = encode(&step(1)).unwrap();
        files::write_atomic(&path, format!("{line}\n{}\n{line}\n", &line[..30]).as_bytes())
            .unwrap();
        let log = read(&path).unwrap();
        assert_eq!((log.events.len(), log.n_unreadable), (2, 1));
    }

    #[test]
    fn a_newer_format_is_refused_with_both_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        files::write_atomic(&path, b"{\"event\":\"started\",\"format\":9}\n").unwrap();
        let message = read(&path).unwrap_err().to_string();
        assert!(
            message.ends_with("has format 9, and this ddprun reads formats up to 1"),
            "{message}"
        );
    }

    #[test]
    fn an_end_after_an_interruption_at_the_last_step_is_the_end() {
        let end = |reason| {
            stamped(30, Event::Finished(Finished { reason, ..example_events::finished() }))
        };
        let started = |from, total_steps| {
            let started = Started { total_steps, ..example_events::started(from) };
            stamped(from, Event::Started(started))
        };
        let reasons = |later: &[Reason]| -> Vec<Reason> {
            let mut events = vec![started(0, 30), step(30)];
            for reason in later {
                events.extend([end(*reason), started(30, 30)]);
            }
            let log = Log { events, n_unreadable: 0 };
            let ends = log.effective().into_iter();
            ends.filter_map(|at| match &at.event {
                Event::Finished(finished) => Some(finished.reason),
                _ => None,
            })
            .collect()
        };
        assert_eq!(reasons(&[Reason::Stopped, Reason::Completed]), [Reason::Completed]);
        assert_eq!(reasons(&[Reason::EarlyStopped, Reason::Completed]), [Reason::EarlyStopped]);
    }

    #[test]
    fn steps_that_were_done_again_count_once() {
        let log = Log {
            events: vec![
                stamped(0, Event::Started(example_events::started(0))),
                step(10),
                step(20),
                step(30),
                stamped(20, Event::Started(example_events::started(20))),
                step(30),
            ],
            n_unreadable: 0,
        };
        let steps: Vec<u64> = log.effective().iter().map(|stamped| stamped.step).collect();
        assert_eq!(steps, [0, 10, 20, 20, 30]);
    }
}
