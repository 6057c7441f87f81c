//! One series of numbers per metric from `events.jsonl`, read at once or while the run is running.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;
use serde::Deserialize;

use super::Error;
use crate::event::FORMAT;
use crate::files::{Follower, NewLines};
use crate::record::{EVENTS, NewerFormat, RunTime};
use crate::report;

/// A number of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Number of finished steps.
    pub step: u64,
    /// Seconds of running until then, without the pauses between starts.
    pub seconds: f64,
    /// NaN if the number was not finite.
    pub value: f64,
}

/// All numbers of a run, without those that a resumed run has replaced.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scalars {
    /// By name, each in the order of its steps. Of recorded steps `train/loss`, `train/accuracy`,
    /// `lr`, `grad_norm`, `loss_scale` and `samples_per_second`; of evaluations `val/loss` ... and
    /// `test/loss` ...; of epochs `train/loss_epoch` and `train/accuracy_epoch`.
    pub series: BTreeMap<String, Vec<Point>>,
    /// 0 if not known.
    pub steps_per_epoch: u64,
}

impl Scalars {
    /// Reads the numbers of the run in `folder`; those of its epochs alone if it has recorded no
    /// events.
    pub fn read(folder: &Path) -> Result<Self, Error> {
        if !folder.join(EVENTS).exists() {
            return of_epochs(folder);
        }
        let mut reader = Reader::new(folder);
        reader.poll()?;
        Ok(reader.scalars)
    }

    fn add(&mut self, name: &str, point: Point) {
        match self.series.get_mut(name) {
            Some(series) => series.push(point),
            None => drop(self.series.insert(name.to_owned(), vec![point])),
        }
    }

    /// Removes an epoch that the end of the run had cut short at `step`: it continues.
    fn reopen_epoch(&mut self, step: u64) {
        if step.is_multiple_of(self.steps_per_epoch.max(1)) {
            return;
        }
        for name in ["train/loss_epoch", "train/accuracy_epoch"] {
            if let Some(series) = self.series.get_mut(name) {
                series.retain(|point| point.step != step);
            }
        }
        self.series.retain(|_, series| !series.is_empty());
    }

    /// Removes the points after `step`, which are measured again.
    fn cut(&mut self, step: u64) {
        self.series.values_mut().for_each(|series| series.retain(|point| point.step <= step));
        self.series.retain(|_, series| !series.is_empty());
    }
}

fn of_epochs(folder: &Path) -> Result<Scalars, Error> {
    let mut scalars = Scalars::default();
    let mut seconds = 0.0;
    for epoch in report::read(folder)?.epochs {
        seconds += epoch.seconds;
        let accuracies =
            [("train/accuracy_epoch", epoch.train_accuracy), ("val/accuracy", epoch.val_accuracy)];
        let losses = [("train/loss_epoch", Some(epoch.train_loss)), ("val/loss", epoch.val_loss)];
        for (name, value) in losses.into_iter().chain(accuracies) {
            if let Some(value) = value {
                scalars.add(name, Point { step: epoch.step, seconds, value });
            }
        }
        for (name, value) in &epoch.metrics {
            scalars.add(name, Point { step: epoch.step, seconds, value: *value });
        }
    }
    Ok(scalars)
}

/// Reads the numbers of a run that may go on.
#[derive(Debug)]
pub struct Reader {
    follower: Follower,
    scalars: Scalars,
    time: RunTime,
}

/// The fields of an event that matter here.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    event: Cow<'a, str>,
    time: Timestamp,
    step: u64,
    format: Option<u64>,
    resumed_from: Option<u64>,
    steps_per_epoch: Option<u64>,
    total_steps: Option<u64>,
    loss: Option<f64>,
    accuracy: Option<f64>,
    lr: Option<f64>,
    grad_norm: Option<f64>,
    loss_scale: Option<f64>,
    samples_per_second: Option<f64>,
    train_loss: Option<f64>,
    train_accuracy: Option<f64>,
    metrics: Option<BTreeMap<String, Option<f64>>>,
}

impl Reader {
    /// A reader of the run in `folder`, which may not have any events yet.
    pub fn new(folder: &Path) -> Self {
        let follower = Follower::new(&folder.join(EVENTS));
        Self { follower, scalars: Scalars::default(), time: RunTime::default() }
    }

    /// All numbers up to now.
    pub fn scalars(&self) -> &Scalars {
        &self.scalars
    }

    /// Reads the events since the last call. Returns true if there were any.
    pub fn poll(&mut self) -> Result<bool, Error> {
        let NewLines { is_anew, lines } = self.follower.poll()?;
        if is_anew {
            (self.scalars, self.time) = (Scalars::default(), RunTime::default());
        }
        for line in lines.lines() {
            // A line that a killed process left unfinished says nothing.
            let Ok(line) = serde_json::from_str::<Line<'_>>(line) else { continue };
            NewerFormat::check(self.follower.path(), line.format, FORMAT)?;
            self.take(&line);
        }
        Ok(is_anew || !lines.is_empty())
    }

    fn take(&mut self, line: &Line<'_>) {
        let goes_on = line.event == "started" && line.resumed_from < line.total_steps;
        if goes_on || line.event == "tested" {
            // The test is made at the end, which there is once.
            self.scalars.series.retain(|name, _| !name.starts_with("test/"));
        }
        if line.event == "started" {
            self.scalars.cut(line.resumed_from.unwrap_or(0));
            self.scalars.steps_per_epoch = line.steps_per_epoch.unwrap_or(0);
            if goes_on {
                self.scalars.reopen_epoch(line.resumed_from.unwrap_or(0));
            }
            self.time.restart();
        }
        let seconds = self.time.advance(line.time);
        let step = line.step;
        let mut add = |name: &str, value: Option<f64>| {
            self.scalars.add(name, Point { step, seconds, value: value.unwrap_or(f64::NAN) });
        };
        match &*line.event {
            "step_done" => {
                add("train/loss", line.loss);
                add("lr", line.lr);
                add("grad_norm", line.grad_norm);
                add("samples_per_second", line.samples_per_second);
                let some = [("train/accuracy", line.accuracy), ("loss_scale", line.loss_scale)];
                some.iter().filter(|it| it.1.is_some()).for_each(|(name, value)| add(name, *value));
            }
            "epoch_done" => {
                add("train/loss_epoch", line.train_loss);
                if line.train_accuracy.is_some() {
                    add("train/accuracy_epoch", line.train_accuracy);
                }
            }
            // Beside its own metrics an evaluation tells those of the epoch's training.
            "evaluated" | "tested" => {
                let measured = line.metrics.iter().flatten();
                let own = measured.filter(|(name, _)| !name.starts_with("train/"));
                own.for_each(|(name, value)| add(name, *value));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Evaluated, Event, Started};
    use crate::record::{Jsonl, OpenSink, Sink, SinkStart, Stamped, example_events};

    fn sink(logs: &Path) -> Box<dyn OpenSink> {
        let mut start = SinkStart { total_steps: 50, ..SinkStart::default() };
        start.run.logs = logs.to_owned();
        Jsonl::default().open(&start).unwrap()
    }

    /// Says an event some seconds after the beginning.
    fn say(sink: &mut dyn OpenSink, second: i64, event: Event) {
        let time = Timestamp::from_second(1_700_000_000 + second).unwrap();
        sink.record(&Stamped { time, step: event.step().unwrap_or(0), event }).unwrap();
    }

    #[test]
    fn a_resumed_run_has_each_step_once_and_no_pause() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = sink(folder.path());
        let mut reader = Reader::new(folder.path());
        assert!(!reader.poll().unwrap());
        say(&mut *events, 0, Event::Started(example_events::started(0)));
        say(&mut *events, 5, Event::StepDone(example_events::step_done(10)));
        say(&mut *events, 10, Event::Evaluated(example_events::evaluated(20)));
        say(&mut *events, 12, Event::StepDone(example_events::step_done(30)));
        assert!(reader.poll().unwrap());
        let places = |reader: &Reader, name: &str| -> Vec<(u64, f64)> {
            let series = &reader.scalars().series[name];
            series.iter().map(|point| (point.step, point.seconds)).collect()
        };
        assert_eq!(places(&reader, "train/loss"), [(10, 5.0), (30, 12.0)]);
        say(&mut *events, 1000, Event::Started(example_events::started(20)));
        say(&mut *events, 1003, Event::StepDone(example_events::step_done(40)));
        reader.poll().unwrap();
        assert_eq!(places(&reader, "train/loss"), [(10, 5.0), (40, 15.0)]);
        assert_eq!(places(&reader, "val/accuracy"), [(20, 10.0)]);
        assert_eq!(reader.scalars().steps_per_epoch, 20);
        assert!(!reader.scalars().series.contains_key("loss_scale"));
        assert_eq!(&Scalars::read(folder.path()).unwrap(), reader.scalars());
    }

    #[test]
    fn a_run_that_goes_on_has_only_the_test_of_its_last_end() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = sink(folder.path());
        let mut reader = Reader::new(folder.path());
        let tested = |step: u64, loss: f64| {
            let metrics = [("test/loss".to_owned(), loss)].into();
            Event::Tested(Evaluated { metrics, ..example_events::evaluated(step) })
        };
        say(&mut *events, 0, Event::Started(example_events::started(0)));
        say(&mut *events, 5, tested(50, 0.1));
        say(&mut *events, 9, Event::Started(example_events::started(50)));
        reader.poll().unwrap();
        assert_eq!(reader.scalars().series["test/loss"].len(), 1, "nothing was left to do");
        let longer = Started { total_steps: 60, ..example_events::started(50) };
        say(&mut *events, 10, Event::Started(longer));
        reader.poll().unwrap();
        assert!(!reader.scalars().series.contains_key("test/loss"), "it goes on");
        say(&mut *events, 15, tested(60, 0.2));
        say(
            &mut *events,
            20,
            Event::Started(Started { total_steps: 60, ..example_events::started(60) }),
        );
        say(&mut *events, 25, tested(60, 0.2));
        reader.poll().unwrap();
        let values: Vec<f64> =
            reader.scalars().series["test/loss"].iter().map(|point| point.value).collect();
        assert_eq!(values, [0.2]);
    }

    #[test]
    fn a_number_that_is_not_finite_is_a_gap() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = sink(folder.path());
        let metrics = [("val/loss".to_owned(), f64::NAN), ("train/loss".to_owned(), 1.0)].into();
        let evaluated = Evaluated { metrics, ..example_events::evaluated(20) };
        say(&mut *events, 0, Event::Evaluated(evaluated));
        let series = Scalars::read(folder.path()).unwrap().series;
        assert!(series["val/loss"][0].value.is_nan());
        assert!(!series.contains_key("train/loss"), "of the epoch, not of the step");
    }
}
