//! All runs and sweeps, for the list, the table and the heads of charts.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::curve::Extent;
use crate::plan::Mode;
use crate::runs::{State, Summary};
use crate::sweeps::SweepView;

/// The answer to `api/overview`: everything, or what has changed since a version.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Overview<'a> {
    /// Version of the answers' forms.
    pub(crate) format: u32,
    /// Rises with each change.
    pub(crate) version: u64,
    /// False if only changes are told.
    pub(crate) whole: bool,
    /// The served folder.
    pub(crate) folder: String,
    /// When this was written.
    pub(crate) now: i64,
    /// The newest first.
    pub(crate) runs: Vec<Listed<'a>>,
    pub(crate) sweeps: Vec<&'a SweepView>,
    /// Ids of runs and sweeps that are there no more.
    pub(crate) removed: Vec<&'a str>,
    /// Runs that are still to be read.
    pub(crate) unread: usize,
    /// Messages about runs and sweeps that cannot be read.
    pub(crate) problems: Vec<String>,
}

/// A run in the overview.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Listed<'a> {
    /// By which requests name several runs; it changes with a restart of the server.
    pub(crate) key: u32,
    /// Version of its last change.
    pub(crate) version: u64,
    #[serde(flatten)]
    pub(crate) run: Cow<'a, RunView>,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RunView {
    /// Folder relative to the served one, by which the page identifies the run.
    pub(crate) id: String,
    /// The experiment.
    pub(crate) name: String,
    /// `<time>-<id>`, or `trial-0007`.
    pub(crate) run: String,
    /// The sweep that it is a trial of.
    pub(crate) sweep: Option<String>,
    pub(crate) folder: String,
    pub(crate) state: State,
    /// Why, in a line.
    pub(crate) reason: Option<String>,
    pub(crate) step: u64,
    pub(crate) total_steps: Option<u64>,
    pub(crate) steps_per_epoch: u64,
    pub(crate) epoch: u64,
    pub(crate) epochs: Option<u64>,
    pub(crate) started: i64,
    pub(crate) updated: i64,
    pub(crate) seconds: f64,
    pub(crate) devices: Vec<String>,
    pub(crate) tags: Vec<String>,
    /// Why a part of it cannot be read; `None` if all of it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<String>,
    /// The metric that ranks its checkpoints.
    pub(crate) monitor: Option<Monitor>,
    /// Names of all metrics that have values.
    pub(crate) series: Vec<String>,
    pub(crate) metrics: BTreeMap<String, Extent>,
    /// Every key of its configuration.
    pub(crate) config: BTreeMap<String, Value>,
}

/// A metric, and whether less or more of it is better.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Monitor {
    pub(crate) metric: String,
    pub(crate) mode: Mode,
}

/// Milliseconds since 1970.
pub(crate) fn milliseconds(time: Option<Timestamp>) -> i64 {
    time.map_or(0, Timestamp::as_millisecond)
}

impl RunView {
    /// A run that is called `id` on the page.
    pub(crate) fn of(
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
            problem: summary.problem,
            monitor: monitor.map(|(metric, mode)| Monitor { metric, mode }),
            series: metrics.keys().cloned().collect(),
            metrics,
            config,
        }
    }
}
