//! `csv` in `logging.sinks`
//!
//! `metrics.csv`: one row per recorded step and per evaluation, and one of the test. Accuracies are
//! shares, 0 to 1. After a resume the rows of what is done again are cut, so that the file ends
//! equal to that of an undisturbed run, except for speed.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::event::{Evaluated, Event, Finished, StepDone};
use crate::files::{self, Lines};
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
    fn open(&self, start: &SinkStart<'_>) -> Result<Box<dyn OpenSink>, Error> {
        let SinkStart { logs, resumed_from, total_steps, metrics } = *start;
        let (path, mut others) = (logs.join(NAME), others(metrics));
        if resumed_from > 0 {
            others.extend(earlier(&path, &others));
        }
        let lines = open(&path, resumed_from, total_steps, &others)?;
        Ok(Box::new(OpenCsv { lines, others, was_over: resumed_from >= total_steps }))
    }
}

struct OpenCsv {
    lines: Lines,
    /// Columns that only some runs have.
    others: Vec<String>,
    /// Whether nothing was left to do at the start: there may be a row of the test already.
    was_over: bool,
}

impl OpenSink for OpenCsv {
    fn record(&mut self, stamped: &Stamped) -> Result<(), Error> {
        let Some(row) = row(&stamped.event, &self.others) else { return Ok(()) };
        if self.was_over && matches!(stamped.event, Event::Tested(_)) {
            // It is said again.
            let path = self.lines.path().to_owned();
            self.lines = rewritten(&path, |old| cut(old, u64::MAX, false, &self.others))?;
        }
        Ok(self.lines.push(&row)?)
    }

    fn file(&self) -> Option<&Path> {
        Some(self.lines.path())
    }

    fn sync(&self) -> Result<(), Error> {
        Ok(self.lines.sync()?)
    }

    fn place(&self, _: &Finished) -> Option<(&'static str, PathBuf)> {
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
/// The columns of an evaluation.
const VAL: [&str; 4] = ["val/loss", "val/accuracy", "val/mse", "val/mae"];
/// The columns of the test.
const TEST: [&str; 5] = ["test/loss", "test/accuracy", "test/mse", "test/mae", "test/success"];

/// Opens the file with the rows up to `resumed_from`; none at a fresh start. The row of the test
/// stays where nothing is left to do until `total_steps`.
fn open(
    path: &Path,
    resumed_from: u64,
    total_steps: u64,
    others: &[String],
) -> Result<Lines, Error> {
    rewritten(path, |old| cut(old, resumed_from, resumed_from >= total_steps, others))
}

/// Opens the file with what is `kept` of it.
fn rewritten(path: &Path, kept: impl FnOnce(&str) -> String) -> Result<Lines, Error> {
    let old = match fs::read(path) {
        Err(reason) if reason.kind() == ErrorKind::NotFound => Vec::new(),
        other => other.map_err(files::Error::io("read", path))?,
    };
    // Behind the rows that were synced, a power loss leaves whatever the disk held there.
    let old = String::from_utf8_lossy(&old);
    files::write_atomic(path, kept(&old).as_bytes())?;
    Ok(Lines::open(path)?)
}

/// The columns of the metrics that only some runs have, behind all others.
fn others(metrics: &[String]) -> Vec<String> {
    let column = |split: &str, name: &String| format!("{split}/{name}");
    let rare = metrics.iter().filter(|name| !VAL.contains(&column("val", name).as_str()));
    let columns = rare.map(|name| match name.split_once('/') {
        // It says its part of the data itself.
        Some(_) => vec![name.clone()],
        None => vec![column("val", name), column("test", name)],
    });
    columns.flatten().collect()
}

/// Columns of the file that this start has no values for: an earlier one has measured them.
fn earlier(path: &Path, others: &[String]) -> Vec<String> {
    let mut line = String::new();
    let read = File::open(path).and_then(|file| BufReader::new(file).read_line(&mut line));
    let Some(old) = line.strip_suffix('\n').filter(|_| read.is_ok()) else { return Vec::new() };
    let header = header(others);
    let is_known = |name: &str| header.split(',').any(|known| known == name);
    let names = old.split(',').filter(|name| name.contains('/') && !is_known(name));
    names.map(str::to_owned).collect()
}

/// The row of an event; `None` for events without numbers.
fn row(event: &Event, others: &[String]) -> Option<String> {
    match event {
        Event::StepDone(done) => Some(step_row(done, others.len())),
        Event::Evaluated(evaluated) | Event::Tested(evaluated) => {
            Some(evaluation_row(evaluated, others))
        }
        _ => None,
    }
}

fn header(others: &[String]) -> String {
    let usual = STEP.iter().chain(&VAL).chain(&TEST).copied();
    usual.chain(others.iter().map(String::as_str)).collect::<Vec<_>>().join(",")
}

/// The header and the whole rows of `old` up to a step, that of the test only from a run that is
/// over. Rows of an older ddprun, which had fewer columns, are filled up.
fn cut(old: &str, last_step: u64, is_over: bool, others: &[String]) -> String {
    let header = header(others);
    let names: Vec<&str> = old.lines().next().unwrap_or_default().split(',').collect();
    // The run may measure other metrics than before: columns are found by their names.
    let from: Vec<Option<usize>> =
        header.split(',').map(|column| names.iter().position(|name| *name == column)).collect();
    let mut kept = header + "\n";
    for line in old.split_inclusive('\n') {
        let Some(line) = line.strip_suffix('\n') else { continue };
        let fields: Vec<&str> = line.split(',').collect();
        let mut of_test = names.iter().zip(&fields).filter(|(name, _)| name.starts_with("test/"));
        let is_test = of_test.any(|(_, field)| !field.is_empty());
        let step = fields[0].parse::<u64>().ok();
        if step.is_some_and(|step| step <= last_step) && (is_over || !is_test) {
            let field = |at: &Option<usize>| at.and_then(|at| fields.get(at)).map_or("", |f| *f);
            kept += &from.iter().map(field).collect::<Vec<_>>().join(",");
            kept.push('\n');
        }
    }
    kept
}

fn step_row(done: &StepDone, others: usize) -> String {
    let StepDone { step, epoch, loss, lr, grad_norm, samples_per_second, .. } = done;
    let (accuracy, scale) = (or_empty(done.accuracy), or_empty(done.loss_scale));
    let rest = ",".repeat(VAL.len() + TEST.len() + others);
    format!(
        "{step},{epoch},{loss},{accuracy},{lr},{grad_norm},{scale},{samples_per_second:.1}{rest}"
    )
}

/// What the step measured has a row of its own.
fn evaluation_row(evaluated: &Evaluated, others: &[String]) -> String {
    let gap = ",".repeat(STEP.len() - 2);
    let value = |name: &str| or_empty(evaluated.metrics.get(name).copied());
    let names = VAL.iter().chain(&TEST).copied().chain(others.iter().map(String::as_str));
    let values: Vec<String> = names.map(value).collect();
    format!("{},{}{gap},{}", evaluated.step, evaluated.epoch, values.join(","))
}

/// Rust writes the shortest decimal that reads back as the same number.
fn or_empty(value: Option<f64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::example_events;

    fn rows(events: &[Event]) -> String {
        events.iter().filter_map(|event| row(event, &[])).map(|row| row + "\n").collect()
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
        let text = format!("{}\n{}", header(&[]), rows(&events));
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
            files::write_atomic(&path, format!("{}\n{all}", header(&[])).as_bytes()).unwrap();
            open(&path, 50, total_steps, &[]).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n{rest}", header(&[])));
        }
    }

    #[test]
    fn a_test_that_is_said_again_has_one_row() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let whole = format!("{}\n{}", header(&[]), rows(&[step(40), step(50), tested(40)]));
        files::write_atomic(&path, whole.as_bytes()).unwrap();
        let logs = folder.path();
        let start = SinkStart { logs, resumed_from: 50, total_steps: 50, metrics: &[] };
        let mut sink = Csv::default().open(&start).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), whole);
        let time = "2026-11-20T13:25:56Z".parse().unwrap();
        sink.record(&Stamped { time, step: 50, event: tested(40) }).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), whole);
    }

    #[test]
    fn what_an_earlier_start_measured_keeps_its_column() {
        let folder = tempfile::tempdir().unwrap();
        let measured = |name: &str, resumed_from: u64, step: u64| -> Vec<String> {
            let metrics = [name.to_owned()];
            let logs = folder.path();
            let start = SinkStart { logs, resumed_from, total_steps: 50, metrics: &metrics };
            let mut sink = Csv::default().open(&start).unwrap();
            let metrics = [(format!("val/{name}"), 0.5)].into();
            let event = Event::Evaluated(Evaluated { metrics, ..example_events::evaluated(step) });
            let time = "2026-11-20T13:25:56Z".parse().unwrap();
            sink.record(&Stamped { time, step, event }).unwrap();
            let text = fs::read_to_string(logs.join(NAME)).unwrap();
            text.lines()
                .map(|line| line.split(',').skip(17).collect::<Vec<_>>().join(","))
                .collect()
        };
        let first = measured("f1", 0, 20);
        assert_eq!(first, ["val/f1,test/f1", "0.5,"]);
        let second = measured("recall", 20, 40);
        let header = "val/recall,test/recall,val/f1,test/f1";
        assert_eq!(second, [header, ",,0.5,", "0.5,,,"]);
        let anew = measured("recall", 0, 20);
        assert_eq!(anew, ["val/recall,test/recall", "0.5,"]);
    }

    #[test]
    fn rows_of_an_older_file_are_filled_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let old = "step,epoch,train/loss,train/accuracy,lr,grad_norm,loss_scale,samples_per_second,\
            val/loss,val/accuracy\n1,1,0.5,0.75,0.05,1.25,,1234.4,,\n20,1,,,,,,,0.55,0.725\n";
        files::write_atomic(&path, old.as_bytes()).unwrap();
        open(&path, 20, 50, &[]).unwrap();
        let expected = rows(&[step(1), Event::Evaluated(example_events::evaluated(20))]);
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n{expected}", header(&[])));
    }

    #[test]
    fn a_killed_and_resumed_run_ends_with_the_rows_of_an_undisturbed_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let undisturbed: Vec<Event> = (1..=50).map(step).collect();

        let mut first = open(&path, 0, 50, &[]).unwrap();
        undisturbed[..37]
            .iter()
            .filter_map(|event| row(event, &[]))
            .for_each(|row| first.push(&row).unwrap());
        drop(first);
        let torn = [fs::read(&path).unwrap(), b"38,2,0.\0\0\xff".to_vec()].concat();
        files::write_atomic(&path, &torn).unwrap();

        let mut second = open(&path, 20, 50, &[]).unwrap();
        undisturbed[20..]
            .iter()
            .filter_map(|event| row(event, &[]))
            .for_each(|row| second.push(&row).unwrap());
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            format!("{}\n{}", header(&[]), rows(&undisturbed))
        );
    }

    #[test]
    fn a_fresh_start_begins_with_the_header_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        files::write_atomic(&path, b"1,1,left from before\n").unwrap();
        open(&path, 0, 50, &[]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), header(&[]) + "\n");
    }
}
