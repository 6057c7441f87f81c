//! `events.jsonl` of a trial, as it grows -> what it has reported so far.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::files;
use crate::record::EVENTS;
use crate::sweep::trial::Report;

/// Follows one file.
#[derive(Debug)]
pub(crate) struct TrialEvents {
    path: PathBuf,
    metric: String,
    /// Bytes that have been read, without the last line if that has no end yet.
    offset: u64,
    /// By step; a step that was done again after a resume counts once.
    pub(crate) reports: Vec<Report>,
    /// Whether the run has said that it is done, and was not started again since.
    pub(crate) is_over: bool,
}

impl TrialEvents {
    /// The reports of `metric` of the run in `folder`.
    pub(crate) fn new(folder: &Path, metric: &str) -> Self {
        Self {
            path: folder.join(EVENTS),
            metric: metric.to_owned(),
            offset: 0,
            reports: Vec::new(),
            is_over: false,
        }
    }

    /// Reads what is new. A file that is not there yet has nothing new.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub(crate) fn poll(&mut self) -> Result<(), files::Error> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(files::Error::io("open", &self.path))?,
        };
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(self.offset))
            .and_then(|_| file.read_to_end(&mut bytes))
            .map_err(files::Error::io("read", &self.path))?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.offset += whole as u64;
        bytes[..whole].split(|byte| *byte == b'\n').for_each(|line| self.line(line));
        Ok(())
    }

    fn line(&mut self, line: &[u8]) {
        // Most lines are recorded steps, which need not be parsed here.
        let has = |word: &[u8]| line.windows(word.len()).any(|window| window == word);
        if !(has(b"\"evaluated\"") || has(b"\"started\"") || has(b"\"finished\"")) {
            return;
        }
        let Ok(event) = serde_json::from_slice::<Value>(line) else { return };
        match event.get("event").and_then(Value::as_str) {
            Some("started") => self.is_over = false,
            Some("finished") => {
                self.is_over = event.get("reason").and_then(Value::as_str) != Some("stopped");
            }
            Some("evaluated") => self.evaluated(&event),
            _ => {}
        }
    }

    fn evaluated(&mut self, event: &Value) {
        let Some(step) = event.get("step").and_then(Value::as_u64) else { return };
        let Some(value) = event.get("metrics").and_then(|metrics| metrics.get(&self.metric)) else {
            return;
        };
        let report = Report { step, value: value.as_f64() };
        if let Err(place) = self.reports.binary_search_by_key(&step, |report| report.step) {
            self.reports.insert(place, report);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Lines;

    fn evaluated(step: u64, value: &str) -> String {
        format!(r#"{{"step":{step},"event":"evaluated","metrics":{{"val/loss":{value}}}}}"#)
    }

    #[test]
    fn reports_come_once_each_however_often_the_run_was_resumed() {
        let folder = tempfile::tempdir().unwrap();
        let mut tail = TrialEvents::new(folder.path(), "val/loss");
        tail.poll().unwrap();
        let mut lines = Lines::open(&folder.path().join(EVENTS)).unwrap();
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
    fn a_run_that_was_stopped_is_not_over() {
        let folder = tempfile::tempdir().unwrap();
        let mut lines = Lines::open(&folder.path().join(EVENTS)).unwrap();
        lines.push(r#"{"step":30,"event":"finished","reason":"stopped"}"#).unwrap();
        let mut tail = TrialEvents::new(folder.path(), "val/loss");
        tail.poll().unwrap();
        assert!(!tail.is_over);
    }
}
