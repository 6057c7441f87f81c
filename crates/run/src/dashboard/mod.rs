//! Run folders -> a page in the browser: live from a small server, or whole in one file.
//!
//! ```text
//! folder ──Watched──▶ answers as JSON ──Server──▶ browser     ddprun serve
//!                                     ──html────▶ one file    ddprun report --html
//! ```
//!
//! The server is a process of its own that only reads, so training cannot be hurt by it. Its page
//! is plain modules of JavaScript in `page/`, which are packed without a build step; charts are
//! drawn by uPlot. Names and texts of runs reach the page as JSON alone, and there only as text of
//! elements.
//!
//! What the page may ask, and what it gets. Times are milliseconds since 1970; a number that is not
//! finite is `null`.
//!
//! ```text
//! api/overview                      Overview: all runs with state, metrics, configuration; sweeps
//! api/series?metric&points&from&to  {runs: {id: {step, mean, low?, high?}}}, columns of one length,
//!                                   reduced to about `points`; `from` and `to` are steps
//! api/timelines                     {id: [[step, seconds]]}: when each run was where
//! api/run?id                        Details: ranks' phases and resources, stragglers, events,
//!                                   failure, evaluations ...
//! api/log?id&rank&lines             {lines, size}: the end of a rank's log
//! api/image?id&evaluation&sample    a picture that an evaluation names
//! api/events                        server-sent events: a number whenever anything has changed
//! ```
//!
//! In a report the same answers stand in one object: `{overview, series, timelines, details}`, with
//! `series` by metric and `details` by run.

mod access;
mod curve;
mod details;
mod evaluation;
mod http;
mod metrics_file;
mod overview;
mod page;
mod processes;
mod ranks;
mod report;
mod routes;
mod server;
mod sweeps;
mod timeline;
mod watched;

pub use report::html;
pub use server::{Error, Server};
