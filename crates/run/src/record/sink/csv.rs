//! `csv` in `logging.sinks`
//!
//! `metrics.csv`: one row per recorded step and per evaluation, and one for the test. Accuracies
//! are shares, 0 to 1. A resume cuts the rows of the steps that it repeats, so that the file ends
//! equal to that of an undisturbed run, except for speed.

use std::io::{BufReader, ErrorKind};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::event::{Evaluated, Event, Finished, StepDone, Unfinished};
use crate::files::{self, LineFile};
use crate::record::Error;
use crate::record::sink::{OpenSink, Sink, SinkStart, Stamped};

/// Name of the file in the run's folder.
pub const NAME: &str = "metrics.csv";

/// `metrics.csv`: a row for each recorded step and each evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Csv {}

impl Kind for Csv {
    const NAME: &'static str = "csv";
}

impl Sink for Csv {
    fn open(&self, start: &SinkStart) -> Result<Box<dyn OpenSink>, Error> {
        let SinkStart { run, resumed_from, total_steps, metrics, unfinished, .. } = start;
        let (resumed_from, unfinished) = (*resumed_from, *unfinished);
        let path = run.logs.join(NAME);
        let mut measured = measured(metrics);
        if resumed_from > 0 {
            measured.extend(earlier(&path, &measured));
        }
        let is_over = resumed_from >= *total_steps;
        let until = CutPoint { step: resumed_from, unfinished, is_over };
        let lines = rewritten(&path, |old| cut(old, until, &measured))?;
        Ok(Box::new(OpenCsv { lines, measured, was_over: is_over }))
    }
}

struct OpenCsv {
    lines: LineFile,
    /// The columns of evaluations.
    measured: Vec<String>,
    /// True if nothing was left to do at the start: there may be a row of the test already.
    was_over: bool,
}

impl OpenSink for OpenCsv {
    fn record(&mut self, stamped: &Stamped) -> Result<(), Error> {
        let Some(row) = row(&stamped.event, &self.measured) else { return Ok(()) };
        if self.was_over && matches!(stamped.event, Event::Tested(_)) {
            // It is said again.
            let path = self.lines.path().to_owned();
            let until = CutPoint { step: u64::MAX, unfinished: None, is_over: false };
            self.lines = rewritten(&path, |old| cut(old, until, &self.measured))?;
        }
        Ok(self.lines.push(&row)?)
    }

    fn file(&self) -> Option<&Path> {
        Some(self.lines.path())
    }

    fn sync(&self) -> Result<(), Error> {
        Ok(self.lines.sync()?)
    }

    fn summary_entry(&self, _: &Finished) -> Option<(&'static str, PathBuf)> {
        Some(("metrics", self.lines.path().to_owned()))
    }
}

/// The columns of a step, which every row has.
const STEP: [&str; 8] = [
    "step",
    "epoch",
    "train/loss",
    "train/accuracy",
    "lr",
    "grad_norm",
    "loss_scale",
    "samples_per_second",
];
/// Metric of a simulation, which only the test uses.
const SUCCESS: &str = "success";

/// The rows to keep when a run resumes: those up to `step`, 0 for a fresh run.
#[derive(Clone, Copy)]
struct CutPoint {
    step: u64,
    /// Unfinished work of that step.
    unfinished: Option<Unfinished>,
    /// True if nothing is left to do: the row of the test stays as well.
    is_over: bool,
}

/// Replaces the file by `kept` of its text, and opens it.
fn rewritten(path: &Path, kept: impl FnOnce(&str) -> String) -> Result<LineFile, Error> {
    let old = match files::read_lines(path) {
        Err(reason) if reason.kind() == ErrorKind::NotFound => Vec::new(),
        other => other.map_err(files::Error::io("read", path))?,
    };
    // Behind the rows that were synced, a power loss leaves whatever the disk held there.
    let old = String::from_utf8_lossy(&old);
    files::write_atomic(path, kept(&old).as_bytes())?;
    Ok(LineFile::open(path)?)
}

/// The columns of evaluations, from the names of this run's metrics.
fn measured(metrics: &[String]) -> Vec<String> {
    // Some say their part of the data themselves.
    let (whole, split): (Vec<&str>, Vec<&str>) =
        metrics.iter().map(String::as_str).partition(|name| name.contains('/'));
    let names = || std::iter::once("loss").chain(split.iter().copied());
    let val = names().filter(|name| *name != SUCCESS).map(|name| format!("val/{name}"));
    let whole = whole.into_iter().map(str::to_owned);
    val.chain(whole).chain(names().map(|name| format!("test/{name}"))).collect()
}

/// Columns of the file for metrics that only an earlier start has measured.
fn earlier(path: &Path, measured: &[String]) -> Vec<String> {
    let mut line = Vec::new();
    let read =
        files::open(path).and_then(|file| files::read_line(&mut BufReader::new(file), &mut line));
    if read.is_err() {
        return Vec::new();
    }
    let line = String::from_utf8_lossy(&line);
    let Some(old) = line.strip_suffix('\n') else { return Vec::new() };
    let header = header(measured);
    let is_known = |name: &str| header.split(',').any(|known| known == name);
    let names = old.split(',').filter(|name| name.contains('/') && !is_known(name));
    names.map(str::to_owned).collect()
}

/// The row of an event; `None` for events without numbers.
fn row(event: &Event, measured: &[String]) -> Option<String> {
    match event {
        Event::StepDone(done) => Some(step_row(done, measured.len())),
        Event::Evaluated(evaluated) | Event::Tested(evaluated) => {
            Some(evaluation_row(evaluated, measured))
        }
        _ => None,
    }
}

fn header(measured: &[String]) -> String {
    let all = STEP.iter().copied().chain(measured.iter().map(String::as_str));
    all.collect::<Vec<_>>().join(",")
}

/// Returns the header and the complete rows of `old` up to a step; the test's row only if the run
/// is over. Columns that `old` lacks are empty.
fn cut(old: &str, until: CutPoint, measured: &[String]) -> String {
    let header = header(measured);
    let names: Vec<&str> = old.lines().next().unwrap_or_default().split(',').collect();
    // The run may measure other metrics than before: columns are found by their names.
    let column = |name: &str| names.iter().position(|other| *other == name);
    let from: Vec<Option<usize>> = header.split(',').map(column).collect();
    // Only rows of steps have a learning rate.
    let lr = column("lr");
    let mut kept = header + "\n";
    let mut evaluations = 0;
    for line in old.split_inclusive('\n') {
        let Some(line) = line.strip_suffix('\n') else { continue };
        let fields: Vec<&str> = line.split(',').collect();
        let field = |at: &Option<usize>| at.and_then(|at| fields.get(at)).map_or("", |f| *f);
        let step = fields[0].parse::<u64>().ok().filter(|step| *step <= until.step);
        let Some(step) = step else { continue };
        let mut of_test = names.iter().zip(&fields).filter(|(name, _)| name.starts_with("test/"));
        let is_test = of_test.any(|(_, field)| !field.is_empty());
        let is_made_again = until.unfinished.is_some_and(|unfinished| {
            let is_evaluation = step == until.step && !is_test && field(&lr).is_empty();
            evaluations += u64::from(is_evaluation);
            is_evaluation && evaluations > unfinished.evaluations
        });
        if !is_made_again && (until.is_over || !is_test) {
            kept += &from.iter().map(field).collect::<Vec<_>>().join(",");
            kept.push('\n');
        }
    }
    kept
}

fn step_row(done: &StepDone, measured: usize) -> String {
    let StepDone { step, epoch, loss, lr, grad_norm, samples_per_second, .. } = done;
    let accuracy = or_empty(done.accuracy);
    let scale = or_empty(done.loss_scale);
    let rest = ",".repeat(measured);
    format!(
        "{step},{epoch},{loss},{accuracy},{lr},{grad_norm},{scale},{samples_per_second:.1}{rest}"
    )
}

/// The row of an evaluation; its step has a row of its own.
fn evaluation_row(evaluated: &Evaluated, measured: &[String]) -> String {
    let gap = ",".repeat(STEP.len() - 2);
    let value = |name: &str| or_empty(evaluated.metrics.get(name).copied());
    let values: Vec<String> = measured.iter().map(|name| value(name)).collect();
    format!("{},{}{gap},{}", evaluated.step, evaluated.epoch, values.join(","))
}

/// The shortest decimal that reads back as the same number; empty for `None`.
fn or_empty(value: Option<f64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::record::example_events;

    fn open(
        path: &Path,
        step: u64,
        total_steps: u64,
        measured: &[String],
    ) -> Result<LineFile, Error> {
        let until = CutPoint { step, unfinished: None, is_over: step >= total_steps };
        rewritten(path, |old| cut(old, until, measured))
    }

    #[test]
    fn an_evaluation_that_is_made_again_is_cut() {
        let old = "step,epoch,train/loss,train/accuracy,lr,grad_norm,loss_scale,samples_per_second,val/loss\n\
                   3,1,1.5,,0.1,1,,10,\n4,1,1.4,,0.1,1,,10,\n4,1,,,,,,,0.7\n4,1,,,,,,,0.6\n5,1,1.3,,0.1,1,,10,\n";
        let measured = ["val/loss".to_owned()];
        let kept = |evaluations: Option<u64>| {
            let unfinished =
                evaluations.map(|evaluations| Unfinished { evaluations, epoch_is_closed: false });
            let kept = cut(old, CutPoint { step: 4, unfinished, is_over: false }, &measured);
            kept.lines()
                .skip(1)
                .map(|row| row.rsplit(',').next().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(kept(None), ["", "", "0.7", "0.6"]);
        assert_eq!(kept(Some(0)), ["", ""]);
        assert_eq!(kept(Some(1)), ["", "", "0.7"]);
    }

    /// Columns of a run with these metrics that is tested in a simulation.
    fn usual() -> Vec<String> {
        measured(&["accuracy", "mse", "mae", "success"].map(str::to_owned))
    }

    fn rows(events: &[Event]) -> String {
        events.iter().filter_map(|event| row(event, &usual())).map(|row| row + "\n").collect()
    }

    #[test]
    fn a_run_has_columns_for_what_it_measures() {
        let columns = |names: &[&str]| {
            measured(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>()).join(",")
        };
        let classes = "val/loss,val/accuracy,val/top5,test/loss,test/accuracy,test/top5";
        assert_eq!(columns(&["accuracy", "top5"]), classes);
        assert_eq!(
            columns(&["mse", "success"]),
            "val/loss,val/mse,test/loss,test/mse,test/success"
        );
        assert_eq!(columns(&[]), "val/loss,test/loss");
    }

    fn step(step: u64) -> Event {
        Event::StepDone(example_events::step_done(step))
    }

    #[test]
    fn each_row_has_as_many_fields_as_the_header() {
        let regression =
            StepDone { accuracy: None, loss_scale: Some(65536.0), ..example_events::step_done(2) };
        let of_numbers = [("val/loss", 0.25), ("val/mae", 0.5), ("val/mse", 0.25)];
        let metrics = of_numbers.map(|(name, value)| (name.to_owned(), value)).into();
        let numbers = Evaluated { metrics, ..example_events::evaluated(40) };
        let events = [
            step(1),
            Event::StepDone(regression),
            Event::Evaluated(example_events::evaluated(20)),
            Event::Evaluated(numbers),
            tested(40),
        ];
        let text = format!("{}\n{}", header(&usual()), rows(&events));
        insta::assert_snapshot!(text, @r"
        step,epoch,train/loss,train/accuracy,lr,grad_norm,loss_scale,samples_per_second,val/loss,val/accuracy,val/mse,val/mae,test/loss,test/accuracy,test/mse,test/mae,test/success
        1,1,0.5,0.75,0.05,1.25,,1234.4,,,,,,,,,
        2,1,0.5,,0.05,1.25,65536,1234.4,,,,,,,,,
        20,1,,,,,,,0.55,0.725,,,,,,,
        40,2,,,,,,,0.25,,0.25,0.5,,,,,
        40,2,,,,,,,,,,,0.375,,,0.125,
        ");
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        assert_eq!(reader.headers().unwrap().len(), 17);
        assert!(reader.records().all(|row| row.is_ok()), "rows of one length");
    }

    fn tested(step: u64) -> Event {
        let metrics = [("test/loss".to_owned(), 0.375), ("test/mae".to_owned(), 0.125)].into();
        Event::Tested(Evaluated { metrics, ..example_events::evaluated(step) })
    }

    #[test]
    fn the_test_of_a_run_that_goes_on_is_cut_and_that_of_one_that_is_over_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let all = rows(&[step(40), step(50), tested(40)]);
        for (total_steps, rest) in [(50, all.clone()), (60, rows(&[step(40), step(50)]))] {
            files::write_atomic(&path, format!("{}\n{all}", header(&usual())).as_bytes()).unwrap();
            open(&path, 50, total_steps, &usual()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n{rest}", header(&usual())));
        }
    }

    fn started(logs: &Path, resumed_from: u64, metrics: Vec<String>) -> SinkStart {
        let mut start =
            SinkStart { resumed_from, total_steps: 50, metrics, ..SinkStart::default() };
        start.run.logs = logs.to_owned();
        start
    }

    #[test]
    fn a_test_that_is_said_again_has_one_row() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let whole = format!("{}\n{}", header(&usual()), rows(&[step(40), step(50), tested(40)]));
        files::write_atomic(&path, whole.as_bytes()).unwrap();
        let metrics = ["accuracy", "mse", "mae", "success"].map(str::to_owned).to_vec();
        let start = started(folder.path(), 50, metrics);
        let mut sink = Csv::default().open(&start).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), whole);
        let time = "2026-11-20T13:25:56Z".parse().unwrap();
        sink.record(&Stamped { time, step: 50, event: tested(40) }).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), whole);
    }

    #[test]
    fn what_an_earlier_start_measured_keeps_its_column() {
        let folder = tempfile::tempdir().unwrap();
        let written = |name: &str, resumed_from: u64, step: u64| -> Vec<String> {
            let logs = folder.path();
            let start = started(logs, resumed_from, vec![name.to_owned()]);
            let mut sink = Csv::default().open(&start).unwrap();
            let metrics = [(format!("val/{name}"), 0.5)].into();
            let event = Event::Evaluated(Evaluated { metrics, ..example_events::evaluated(step) });
            let time = "2026-11-20T13:25:56Z".parse().unwrap();
            sink.record(&Stamped { time, step, event }).unwrap();
            let text = fs::read_to_string(logs.join(NAME)).unwrap();
            text.lines()
                .map(|line| line.split(',').skip(STEP.len()).collect::<Vec<_>>().join(","))
                .collect()
        };
        let first = written("f1", 0, 20);
        assert_eq!(first, ["val/loss,val/f1,test/loss,test/f1", ",0.5,,"]);
        let second = written("recall", 20, 40);
        let header = "val/loss,val/recall,test/loss,test/recall,val/f1,test/f1";
        assert_eq!(second, [header, ",,,,0.5,", ",0.5,,,,"]);
        let anew = written("recall", 0, 20);
        assert_eq!(anew, ["val/loss,val/recall,test/loss,test/recall", ",0.5,,"]);
    }

    #[test]
    fn rows_of_a_file_with_fewer_columns_are_filled_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let old = "step,epoch,train/loss,train/accuracy,lr,grad_norm,loss_scale,samples_per_second,\
            val/loss,val/accuracy\n1,1,0.5,0.75,0.05,1.25,,1234.4,,\n20,1,,,,,,,0.55,0.725\n";
        files::write_atomic(&path, old.as_bytes()).unwrap();
        open(&path, 20, 50, &usual()).unwrap();
        let expected = rows(&[step(1), Event::Evaluated(example_events::evaluated(20))]);
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n{expected}", header(&usual())));
    }

    #[test]
    fn a_killed_and_resumed_run_ends_with_the_rows_of_an_undisturbed_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let undisturbed: Vec<Event> = (1..=50).map(step).collect();

        let mut first = open(&path, 0, 50, &usual()).unwrap();
        undisturbed[..37]
            .iter()
            .filter_map(|event| row(event, &usual()))
            .for_each(|row| first.push(&row).unwrap());
        drop(first);
        let torn = [fs::read(&path).unwrap(), b"38,2,0.\0\0\xff".to_vec()].concat();
        files::write_atomic(&path, &torn).unwrap();

        let mut second = open(&path, 20, 50, &usual()).unwrap();
        undisturbed[20..]
            .iter()
            .filter_map(|event| row(event, &usual()))
            .for_each(|row| second.push(&row).unwrap());
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            format!("{}\n{}", header(&usual()), rows(&undisturbed))
        );
    }

    #[test]
    fn a_fresh_start_begins_with_the_header_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        files::write_atomic(&path, b"1,1,left from before\n").unwrap();
        open(&path, 0, 50, &usual()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), header(&usual()) + "\n");
    }
}
