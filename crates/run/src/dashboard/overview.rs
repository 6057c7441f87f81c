//! All runs and sweeps, for the list, the table and the heads of charts.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::curve::Extent;
use super::sweeps::SweepView;
use crate::plan::Mode;
use crate::runs::{State, Summary};

/// The answer to `api/overview`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Overview {
    /// Version of the answers' forms.
    pub(super) format: u32,
    /// The served folder.
    pub(super) folder: String,
    /// When this was written.
    pub(super) now: i64,
    /// The newest first.
    pub(super) runs: Vec<RunView>,
    pub(super) sweeps: Vec<SweepView>,
    /// Runs that are still to be read.
    pub(super) unread: usize,
    /// Messages about runs and sweeps that cannot be read.
    pub(super) problems: Vec<String>,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RunView {
    /// Folder relative to the served one, by which the page identifies the run.
    pub(super) id: String,
    /// The experiment.
    pub(super) name: String,
    /// `<time>-<id>`, or `trial-0007`.
    pub(super) run: String,
    /// The sweep that it is a trial of.
    pub(super) sweep: Option<String>,
    pub(super) folder: String,
    pub(super) state: State,
    /// Why, in a line.
    pub(super) reason: Option<String>,
    pub(super) step: u64,
    pub(super) total_steps: Option<u64>,
    pub(super) steps_per_epoch: u64,
    pub(super) epoch: u64,
    pub(super) epochs: Option<u64>,
    pub(super) started: i64,
    pub(super) updated: i64,
    pub(super) seconds: f64,
    pub(super) devices: Vec<String>,
    pub(super) tags: Vec<String>,
    /// The metric that ranks its checkpoints.
    pub(super) monitor: Option<Monitor>,
    /// Names of all metrics that have values.
    pub(super) series: Vec<String>,
    pub(super) metrics: BTreeMap<String, Extent>,
    /// Every key of its configuration.
    pub(super) config: BTreeMap<String, Value>,
}

/// A metric, and whether less or more of it is better.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Monitor {
    pub(super) metric: String,
    pub(super) mode: Mode,
}

/// Milliseconds since 1970.
pub(super) fn milliseconds(time: Option<Timestamp>) -> i64 {
    time.map_or(0, Timestamp::as_millisecond)
}

impl RunView {
    /// A run that is called `id` on the page.
    pub(super) fn of(
        id: String,
        summary: Summary,
        metrics: BTreeMap<String, Extent>,
        config: BTreeMap<String, Value>,
    ) -> Self {
        let monitor = summary.monitor.zip(summary.mode);
        Self {
            id,
            name: summary.name,
            run: summary.id,
            sweep: summary.sweep,
            folder: summary.folder.display().to_string(),
            state: summary.state,
            reason: summary.reason,
            step: summary.step,
            total_steps: summary.total_steps,
            steps_per_epoch: summary.steps_per_epoch,
            epoch: summary.epoch,
            epochs: summary.epochs,
            started: milliseconds(summary.started),
            updated: milliseconds(summary.updated.or(summary.started)),
            seconds: summary.seconds,
            devices: summary.devices,
            tags: summary.tags,
            monitor: monitor.map(|(metric, mode)| Monitor { metric, mode }),
            series: metrics.keys().cloned().collect(),
            metrics,
            config,
        }
    }
}
