//! The numbers of the table and the curves: one row per epoch, or one per step for a run with too
//! few epochs for a curve. Pure.

use std::collections::BTreeMap;

use crate::event::{EpochDone, Event, TIE_BREAKER};
use crate::plan::{CheckpointPlan, Mode};
use crate::record::Stamped;

/// Minimum number of epochs for a curve by epochs.
const MIN_EPOCHS: usize = 3;

/// Unit of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A finished epoch.
    Epoch,
    /// A step that was recorded, or after which the run was validated.
    Step,
}

/// Numbers of one epoch or step; those not measured or not finite are absent. Accuracies are
/// shares, 0 to 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Row {
    /// Number of the epoch or step, from 1.
    pub(crate) at: u64,
    /// `train/loss`, `val/mae` ...
    pub(crate) metrics: BTreeMap<String, f64>,
    /// Learning rate.
    pub(crate) lr: Option<f64>,
}

/// The course of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    pub(crate) unit: Unit,
    /// In order.
    pub(crate) rows: Vec<Row>,
}

impl Unit {
    /// "epoch" or "step"
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Epoch => "epoch",
            Self::Step => "step",
        }
    }
}

impl Row {
    fn set(&mut self, metric: &str, value: Option<f64>) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            self.metrics.insert(metric.to_owned(), value);
        }
    }

    /// True if the run was validated here.
    pub(crate) fn is_validated(&self) -> bool {
        self.metrics.keys().any(|name| name.starts_with("val/"))
    }
}

impl Progress {
    /// The course of a run of these epochs, with these events.
    pub(crate) fn of(epochs: &[EpochDone], events: &[&Stamped]) -> Self {
        let steps = by_step(events);
        let n = epochs.len();
        let validated = steps.iter().filter(|row| row.is_validated()).count();
        let says_more = validated > n || n <= 1 && steps.len() > 1;
        if n < MIN_EPOCHS && says_more {
            Self { unit: Unit::Step, rows: steps }
        } else {
            Self { unit: Unit::Epoch, rows: by_epoch(epochs) }
        }
    }

    /// The epoch or step with the best value of the metric that ranks checkpoints; among equals the
    /// one with the smallest loss, then the first. `None` if it was never measured.
    pub fn best(&self, plan: &CheckpointPlan) -> Option<u64> {
        // The loss of a single step ranks nothing.
        let is_known = self.unit == Unit::Epoch || plan.monitor.starts_with("val/");
        let sign = if plan.mode == Mode::Min { 1.0 } else { -1.0 };
        let value = |row: &Row| {
            let loss = row.metrics.get(TIE_BREAKER).copied().unwrap_or(f64::INFINITY);
            Some((row.at, sign * row.metrics.get(&plan.monitor)?, loss))
        };
        let known = self.rows.iter().filter(|_| is_known).filter_map(value);
        let best = known.min_by(|(_, a, a_loss), (_, b, b_loss)| {
            a.total_cmp(b).then_with(|| a_loss.total_cmp(b_loss))
        });
        best.map(|(at, ..)| at)
    }

    /// The points of a metric: epoch or step, and value.
    pub(crate) fn points(&self, metric: &str) -> Vec<(f64, f64)> {
        let point = |row: &Row| Some((row.at as f64, *row.metrics.get(metric)?));
        self.rows.iter().filter_map(point).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// An epoch that went on after its first end has one row, the newest.
fn by_epoch(epochs: &[EpochDone]) -> Vec<Row> {
    let mut rows = BTreeMap::new();
    for epoch in epochs {
        let lr = Some(epoch.lr).filter(|lr| lr.is_finite());
        let mut row = Row { at: epoch.epoch, lr, ..Row::default() };
        row.set("train/loss", Some(epoch.train_loss));
        row.set("train/accuracy", epoch.train_accuracy);
        row.set("val/loss", epoch.val_loss);
        row.set("val/accuracy", epoch.val_accuracy);
        epoch.metrics.iter().for_each(|(name, value)| row.set(name, Some(*value)));
        rows.insert(epoch.epoch, row);
    }
    rows.into_values().collect()
}

fn by_step(events: &[&Stamped]) -> Vec<Row> {
    let mut rows: BTreeMap<u64, Row> = BTreeMap::new();
    for event in events.iter().map(|stamped| &stamped.event) {
        match event {
            Event::StepDone(done) => {
                let row = rows.entry(done.step).or_default();
                row.lr = Some(done.lr);
                row.set("train/loss", Some(done.loss));
                row.set("train/accuracy", done.accuracy);
            }
            Event::Evaluated(at) => {
                let row = rows.entry(at.step).or_default();
                let measured = at.metrics.iter().filter(|(name, _)| name.starts_with("val/"));
                measured.for_each(|(name, value)| row.set(name, Some(*value)));
            }
            _ => {}
        }
    }
    rows.into_iter().map(|(at, row)| Row { at, ..row }).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::plan::Interval;
    use crate::record::example_events;

    pub(crate) fn ranked_by(monitor: &str, mode: Mode) -> CheckpointPlan {
        let (monitor, dir) = (monitor.into(), "checkpoints".into());
        CheckpointPlan {
            dir,
            every: Interval::Epochs(1),
            keep_last: 1,
            keep_best: 1,
            monitor,
            mode,
        }
    }

    fn stamped(event: Event) -> Stamped {
        let time = "2026-11-20T13:25:56Z".parse().unwrap();
        Stamped { time, step: event.step().unwrap_or(0), event }
    }

    fn progress(epochs: u64, steps: &[u64], validated: &[u64]) -> Progress {
        let steps = steps.iter().map(|&step| Event::StepDone(example_events::step_done(step)));
        let validated =
            validated.iter().map(|&step| Event::Evaluated(example_events::evaluated(step)));
        let events: Vec<Stamped> = steps.chain(validated).map(stamped).collect();
        let epochs: Vec<EpochDone> = (1..=epochs).map(example_events::epoch_done).collect();
        Progress::of(&epochs, &events.iter().collect::<Vec<_>>())
    }

    #[test]
    fn a_run_goes_by_steps_as_long_as_its_epochs_say_less() {
        let unit =
            |epochs, steps: &[u64], validated: &[u64]| progress(epochs, steps, validated).unit;
        assert_eq!(unit(0, &[10, 20], &[]), Unit::Step, "no epoch is over");
        assert_eq!(unit(1, &[10, 20, 30], &[]), Unit::Step, "one point is no curve");
        assert_eq!(unit(2, &[10, 20, 30], &[10, 20, 30]), Unit::Step, "validated inside epochs");
        assert_eq!(unit(2, &[10, 20, 30], &[20, 40]), Unit::Epoch);
        assert_eq!(unit(3, &[10, 20, 30, 40], &[10, 20, 30, 40]), Unit::Epoch);
        assert_eq!(unit(1, &[], &[20]), Unit::Epoch, "without events");
    }

    #[test]
    fn a_step_and_its_validation_are_one_row() {
        let Progress { rows, .. } = progress(0, &[10, 20], &[20, 25]);
        let at: Vec<u64> = rows.iter().map(|row| row.at).collect();
        assert_eq!(at, [10, 20, 25]);
        assert_eq!(rows[1].metrics.len(), 4);
        assert_eq!((rows[1].lr, rows[2].lr), (Some(0.05), None));
        assert_eq!([0, 1, 2].map(|i: usize| rows[i].is_validated()), [false, true, true]);
    }

    #[test]
    fn the_best_is_that_of_the_monitored_metric_and_of_equals_that_of_the_smallest_loss() {
        let epoch = |epoch: u64, loss: f64, accuracy: Option<f64>| {
            let metrics = [("val/mae".to_owned(), 1.0 / epoch as f64)].into();
            let (val_loss, val_accuracy) = (Some(loss), accuracy);
            EpochDone { val_loss, val_accuracy, metrics, ..example_events::epoch_done(epoch) }
        };
        let epochs = [
            epoch(1, 0.4, Some(0.5)),
            epoch(2, 0.1, None),
            epoch(3, 0.3, Some(0.7)),
            epoch(4, 0.2, Some(0.7)),
        ];
        let progress = Progress::of(&epochs, &[]);
        assert_eq!(progress.best(&ranked_by("val/accuracy", Mode::Max)), Some(4));
        assert_eq!(progress.best(&ranked_by("val/loss", Mode::Min)), Some(2));
        assert_eq!(progress.best(&ranked_by("val/mae", Mode::Min)), Some(4));
        assert_eq!(progress.best(&ranked_by("val/mse", Mode::Min)), None);
    }

    #[test]
    fn a_single_step_ranks_nothing() {
        let by_steps = progress(0, &[10, 20], &[10, 20]);
        assert_eq!(by_steps.best(&ranked_by("train/loss", Mode::Min)), None);
        assert_eq!(by_steps.best(&ranked_by("val/loss", Mode::Min)), Some(10));
    }
}
