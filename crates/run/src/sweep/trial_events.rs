//! Reports and running time of a trial from its `events.jsonl`, as it grows.

use std::path::Path;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use crate::event::Reason;
use crate::files::{self, Follower};
use crate::record::{EVENTS, RunTime};
use crate::sweep::trial::Report;

/// Follows the events of one trial.
#[derive(Debug)]
pub(crate) struct TrialEvents {
    events: Follower,
    metric: String,
    /// By step; a step that was evaluated again, as after a resume, counts once, with the last
    /// value.
    pub(crate) reports: Vec<Report>,
    /// True if the run has finished and was not started again since.
    pub(crate) is_over: bool,
    time: RunTime,
}

impl TrialEvents {
    /// The reports of `metric` of the run in `folder`.
    pub(crate) fn new(folder: &Path, metric: &str) -> Self {
        Self {
            events: Follower::new(&folder.join(EVENTS)),
            metric: metric.to_owned(),
            reports: Vec::new(),
            is_over: false,
            time: RunTime::default(),
        }
    }

    /// Running time in seconds, without the pauses between starts; `None` before the first event.
    pub(crate) fn seconds(&self) -> Option<f64> {
        self.time.seconds()
    }

    /// The same for a run that is running.
    pub(crate) fn seconds_until_now(&self) -> Option<f64> {
        self.time.seconds_until_now()
    }

    /// Reads on to the end of the file, which may not exist yet.
    pub(crate) fn poll(&mut self) -> Result<(), files::Error> {
        let news = self.events.poll()?;
        if news.is_anew {
            self.time = RunTime::default();
        }
        news.lines.lines().for_each(|line| self.line(line));
        Ok(())
    }

    fn line(&mut self, line: &str) {
        // Most lines are recorded steps, which need not be parsed here.
        let words = ["\"evaluated\"", "\"started\"", "\"finished\""];
        if words.iter().any(|word| line.contains(word)) {
            self.word(&serde_json::from_str(line).unwrap_or_default());
        }
        if let Some(time) = time_of(line) {
            self.time.advance(time);
        }
    }

    fn word(&mut self, event: &Value) {
        match event.get("event").and_then(Value::as_str) {
            Some("started") => {
                self.is_over = false;
                self.time.restart();
            }
            Some("finished") => self.is_over = ends_the_run(event),
            Some("evaluated") => self.evaluated(event),
            _ => {}
        }
    }

    fn evaluated(&mut self, event: &Value) {
        let Some(step) = event.get("step").and_then(Value::as_u64) else { return };
        let Some(value) = event.get("metrics").and_then(|metrics| metrics.get(&self.metric)) else {
            return;
        };
        let report = Report { step, value: value.as_f64() };
        match self.reports.binary_search_by_key(&step, |report| report.step) {
            // The average of `[swa]`, which takes the place of the weights that ended early.
            Ok(place) => self.reports[place] = report,
            Err(place) => self.reports.insert(place, report),
        }
    }
}

/// The time of a line.
fn time_of(line: &str) -> Option<Timestamp> {
    let (_, rest) = line.split_once("\"time\":\"")?;
    rest.split_once('"')?.0.parse().ok()
}

/// True if a `finished` event ends the run: a stopped run goes on, whether it had saved or not.
fn ends_the_run(finished: &Value) -> bool {
    let reason = finished.get("reason").and_then(|reason| Reason::deserialize(reason).ok());
    matches!(reason, Some(Reason::Completed | Reason::EarlyStopped | Reason::OutOfTime))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::LineFile;

    fn evaluated(step: u64, value: &str) -> String {
        format!(r#"{{"step":{step},"event":"evaluated","metrics":{{"val/loss":{value}}}}}"#)
    }

    #[test]
    fn reports_come_once_each_however_often_the_run_was_resumed() {
        let folder = tempfile::tempdir().unwrap();
        let mut tail = TrialEvents::new(folder.path(), "val/loss");
        tail.poll().unwrap();
        let mut lines = LineFile::open(&folder.path().join(EVENTS)).unwrap();
        for line in [evaluated(10, "0.5"), evaluated(20, "null")] {
            lines.push(&line).unwrap();
            tail.poll().unwrap();
        }
        assert_eq!(tail.reports.len(), 2);
        lines.push(r#"{"step":10,"event":"started","resumed_from":10}"#).unwrap();
        lines.push(&evaluated(20, "null")).unwrap();
        lines.push(&evaluated(30, "0.25")).unwrap();
        lines.push(r#"{"step":30,"event":"finished","reason":"completed"}"#).unwrap();
        tail.poll().unwrap();
        let steps: Vec<(u64, Option<f64>)> =
            tail.reports.iter().map(|r| (r.step, r.value)).collect();
        assert_eq!(steps, [(10, Some(0.5)), (20, None), (30, Some(0.25))]);
        assert!(tail.is_over);
    }

    #[test]
    fn a_run_that_ends_early_reached_what_its_average_does() {
        let folder = tempfile::tempdir().unwrap();
        let mut lines = LineFile::open(&folder.path().join(EVENTS)).unwrap();
        for line in [evaluated(10, "0.5"), evaluated(20, "0.75"), evaluated(20, "0.25")] {
            lines.push(&line).unwrap();
        }
        let mut tail = TrialEvents::new(folder.path(), "val/loss");
        tail.poll().unwrap();
        let values: Vec<Option<f64>> = tail.reports.iter().map(|report| report.value).collect();
        assert_eq!(values, [Some(0.5), Some(0.25)]);
    }

    #[test]
    fn the_time_of_a_run_is_that_of_all_its_starts_without_the_pauses() {
        let folder = tempfile::tempdir().unwrap();
        let mut lines = LineFile::open(&folder.path().join(EVENTS)).unwrap();
        let mut tail = TrialEvents::new(folder.path(), "val/loss");
        tail.poll().unwrap();
        assert_eq!((tail.seconds(), tail.seconds_until_now()), (None, None));
        let events = [(0, "started"), (2, "step_done"), (5, "finished"), (500, "started")];
        for (second, event) in events.into_iter().chain([(501, "step_done")]) {
            let time = Timestamp::from_second(second).unwrap();
            lines.push(&format!(r#"{{"time":"{time}","step":0,"event":"{event}"}}"#)).unwrap();
        }
        tail.poll().unwrap();
        assert_eq!(tail.seconds(), Some(6.0));
        assert!(tail.seconds_until_now().unwrap() > 1e6);
    }

    #[test]
    fn half_a_line_waits_for_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(EVENTS);
        let text = evaluated(10, "0.5") + "\n";
        let mut tail = TrialEvents::new(folder.path(), "val/loss");
        for length in 0..=text.len() {
            files::write_atomic(&path, &text.as_bytes()[..length]).unwrap();
            tail.poll().unwrap();
            assert_eq!(tail.reports.len(), usize::from(length == text.len()));
        }
    }

    #[test]
    fn a_run_that_was_stopped_is_not_over_and_one_that_came_to_its_end_is() {
        let reasons = ["completed", "early_stopped", "out_of_time", "stopped", "abandoned"];
        let is_over = reasons.map(|reason| {
            let folder = tempfile::tempdir().unwrap();
            let mut lines = LineFile::open(&folder.path().join(EVENTS)).unwrap();
            let finished = format!(r#"{{"step":30,"event":"finished","reason":"{reason}"}}"#);
            lines.push(&finished).unwrap();
            let mut tail = TrialEvents::new(folder.path(), "val/loss");
            tail.poll().unwrap();
            tail.is_over
        });
        assert_eq!(is_over, [true, true, true, false, false]);
    }
}
