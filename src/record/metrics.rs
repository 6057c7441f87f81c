//! `metrics.csv`: one row per recorded step and per evaluation. After a resume the rows of the steps that
//! are done again are cut, so that the file ends equal to that of an undisturbed run, except for speed.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::Error;
use crate::event::{Evaluated, Event, StepDone};
use crate::files::{self, Lines};

/// Name of the file in the run's folder.
pub const NAME: &str = "metrics.csv";

const HEADER: &str = "step,epoch,train/loss,train/accuracy,lr,grad_norm,loss_scale,samples_per_second,\
                      val/loss,val/accuracy";

/// Opens the file with the rows up to `resumed_from`; none at a fresh start.
pub(crate) fn open(path: &Path, resumed_from: u64) -> Result<Lines, Error> {
    let old = match fs::read(path) {
        Err(reason) if reason.kind() == ErrorKind::NotFound => Vec::new(),
        other => other.map_err(files::Error::io("read", path))?,
    };
    // Behind the rows that were synced, a power loss leaves whatever the disk held there.
    let old = String::from_utf8_lossy(&old);
    files::write_atomic(path, cut(&old, resumed_from).as_bytes())?;
    Ok(Lines::open(path)?)
}

/// The row of an event; `None` for events without numbers.
pub(crate) fn row(event: &Event) -> Option<String> {
    match event {
        Event::StepDone(done) => Some(step_row(done)),
        Event::Evaluated(evaluated) => Some(evaluation_row(evaluated)),
        _ => None,
    }
}

/// The header and the whole rows of `old` up to a step.
fn cut(old: &str, last_step: u64) -> String {
    let whole = old.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let is_kept = |line: &&str| {
        let step = line.split(',').next().and_then(|step| step.parse::<u64>().ok());
        step.is_some_and(|step| step <= last_step)
    };
    std::iter::once(HEADER).chain(["\n"]).chain(whole.filter(is_kept)).collect()
}

fn step_row(done: &StepDone) -> String {
    let StepDone { step, epoch, loss, lr, grad_norm, samples_per_second, .. } = done;
    let (accuracy, scale) = (or_empty(done.accuracy), or_empty(done.loss_scale));
    format!("{step},{epoch},{loss},{accuracy},{lr},{grad_norm},{scale},{samples_per_second:.1},,")
}

fn evaluation_row(evaluated: &Evaluated) -> String {
    let metric = |name: &str| or_empty(evaluated.metrics.get(name).copied());
    let (loss, accuracy) = (metric("val/loss"), metric("val/accuracy"));
    format!("{},{},,,,,,,{loss},{accuracy}", evaluated.step, evaluated.epoch)
}

/// Rust writes the shortest decimal that reads back as the same number.
fn or_empty(value: Option<f64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::examples;

    fn rows(events: &[Event]) -> String {
        events.iter().filter_map(row).map(|row| row + "\n").collect()
    }

    fn step(step: u64) -> Event {
        Event::StepDone(examples::step_done(step))
    }

    #[test]
    fn each_row_has_as_many_fields_as_the_header() {
        let regression =
            StepDone { accuracy: None, loss_scale: Some(65536.0), ..examples::step_done(2) };
        let events =
            [step(1), Event::StepDone(regression), Event::Evaluated(examples::evaluated(20))];
        insta::assert_snapshot!(format!("{HEADER}\n{}", rows(&events)), @r"
        step,epoch,train/loss,train/accuracy,lr,grad_norm,loss_scale,samples_per_second,val/loss,val/accuracy
        1,1,0.5,0.75,0.05,1.25,,1234.4,,
        2,1,0.5,,0.05,1.25,65536,1234.4,,
        20,1,,,,,,,0.55,0.725
        ");
        let mut reader = csv::Reader::from_reader(HEADER.as_bytes());
        assert_eq!(reader.headers().unwrap().len(), 10);
    }

    #[test]
    fn a_killed_and_resumed_run_ends_with_the_rows_of_an_undisturbed_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let undisturbed: Vec<Event> = (1..=50).map(step).collect();

        let mut first = open(&path, 0).unwrap();
        undisturbed[..37].iter().filter_map(row).for_each(|row| first.push(&row).unwrap());
        drop(first);
        let torn = [fs::read(&path).unwrap(), b"38,2,0.\0\0\xff".to_vec()].concat();
        files::write_atomic(&path, &torn).unwrap();

        let mut second = open(&path, 20).unwrap();
        undisturbed[20..].iter().filter_map(row).for_each(|row| second.push(&row).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{HEADER}\n{}", rows(&undisturbed)));
    }

    #[test]
    fn a_fresh_start_begins_with_the_header_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        files::write_atomic(&path, b"1,1,left from before\n").unwrap();
        open(&path, 0).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{HEADER}\n"));
    }
}
