//! Run folders -> a page in the browser: live from a small server, or whole in one file.
//!
//! ```text
//! folder ──RunCatalog──▶ answers as JSON ──Server──▶ browser     ddprun serve
//!                                        ──html────▶ one file    ddprun report --html
//! ```
//!
//! The server is a process of its own that only reads, so training cannot be hurt by it. Its page
//! is plain modules of JavaScript in `page/`, which are packed without a build step; `chart.js`
//! draws. Names and texts of runs reach the page as JSON alone, and there only as text of elements.
//!
//! Requests of the page and their answers. Times are milliseconds since 1970; a number that is not
//! finite is `null`.
//!
//! ```text
//! api/overview?since                Overview: runs with state, metrics, configuration; sweeps; all,
//!                                   or what has changed after version `since` and what is gone
//! api/series?metric&points&from&to&runs
//!                                   {runs: {id: {step, mean, low?, high?}}}, columns of one length,
//!                                   reduced to about `points`; `from` and `to` are steps, `runs`
//!                                   keys of the overview as `1-3,7`, without it all
//! api/timelines?runs                {id: [[step, seconds]]}: when each run was where
//! api/run?id                        Details: ranks' phases and resources, stragglers, events,
//!                                   failure, evaluations ...
//! api/log?id&rank&lines             {lines, size}: the end of a rank's log
//! api/image?id&evaluation&sample    a picture that an evaluation names
//! api/events                        server-sent events: a number whenever anything has changed
//! ```
//!
//! Answers are compressed for clients that take gzip.
//!
//! `metrics` is the text that Prometheus scrapes.
//!
//! In a report the same answers stand in one object: `{overview, series, timelines, details}`, with
//! `series` by metric and `details` by run.
#![expect(missing_docs, reason = "an error's operands say their names")]

use ddprun_host::{files, http, transport};
use ddprun_plan::plan;
use ddprun_run::{launch, record, report, runs, sweep};
use ddprun_train::event;
use train_numbers::units;
#[cfg(test)]
#[path = "../../run/src/record/example_events.rs"]
#[expect(dead_code, reason = "the page shows fewer events than the log has")]
mod example_events;
mod access;
mod curve;
mod metrics_file;
mod sweeps;
mod overview;
mod evaluation;
mod processes;
mod ranks;
mod details;
mod catalog;
mod prometheus;
mod page;
mod routes;
mod server;

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value, json};

pub use access::kept_token;
pub use server::{Error, Server};

use crate::catalog::{Keys, RunCatalog};
use crate::details::Details;

/// Points of a curve, and lines of a log.
const POINTS: usize = 600;
const LINES: usize = 300;

/// The page of all runs and sweeps below `folder`, which may be one itself; `None` if there are
/// none.
pub fn html(folder: &Path) -> std::io::Result<Option<String>> {
    let mut catalog = RunCatalog::new(folder);
    catalog.look();
    while catalog.read_some(usize::MAX).is_some() {}
    while catalog.read_one_long().is_some() {}
    if catalog.is_empty() {
        return Ok(None);
    }
    let overview = catalog.overview(0);
    let metrics: BTreeSet<&String> =
        overview.runs.iter().flat_map(|listed| &listed.run.series).collect();
    let mut series = Map::new();
    for metric in metrics {
        let mut found = catalog.series(metric, POINTS, (0, u64::MAX), &Keys::ALL);
        series.insert(metric.clone(), found["runs"].take());
    }
    let mut details = Map::new();
    for id in catalog.ids() {
        let Some(folder) = catalog.folder(id) else { continue };
        let found = Details::read(folder, id).map(|details| details.alone(folder, LINES));
        let value = match found {
            Ok(found) => serde_json::to_value(found).unwrap_or_default(),
            Err(error) => json!({ "problem": error.to_string() }),
        };
        details.insert(id.clone(), value);
    }
    let timelines = catalog.timelines(&Keys::ALL);
    let data: Value = json!({
        "overview": overview, "series": series, "timelines": timelines, "details": details,
    });
    let nonce = transport::new_token()?;
    Ok(Some(page::whole(&data, nonce.trim())))
}
