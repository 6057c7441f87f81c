//! Details of one run for its own tab.

use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::evaluation::{self, Evaluation, evaluations};
use crate::event::{Event, Straggler};
use crate::files;
use crate::overview::milliseconds;
use crate::processes::{Process, processes};
use crate::ranks::Ranks;
use crate::record::{self, Context, ENVIRONMENT, EVENTS, Stamped};
use crate::report::{self, Records};
use crate::units::Rank;

/// Maximum number of events and of stragglers.
const MAX_EVENTS: usize = 300;
/// Bytes of a log that are looked at.
const MAX_LOG: u64 = 1 << 20;

/// The answer to `api/run`.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Details {
    version: Option<String>,
    arithmetic: Vec<String>,
    /// Why it failed, and what to do.
    failure: Option<String>,
    /// Seconds of rank 0 in each phase.
    phases: Vec<(&'static str, f64)>,
    peak_memory: Option<u64>,
    /// Statistics of the ranks, if they were reported.
    ranks_told: Ranks,
    stragglers: Vec<Straggler>,
    events: Vec<EventView>,
    /// Ranks that have a log.
    ranks: Vec<u32>,
    /// The machine and the program of its newest start.
    environment: Option<Value>,
    evaluations: Vec<Evaluation>,
    /// Processes of a run that is running on this machine.
    processes: Vec<Process>,
    /// The end of each rank's log; in a report.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logs: Vec<LogEnd>,
}

/// Something that happened, in words.
#[derive(Clone, Debug, Serialize)]
struct EventView {
    time: i64,
    step: u64,
    text: String,
}

/// The last lines of a log, and the size of the whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct LogEnd {
    lines: Vec<String>,
    size: u64,
}

impl Details {
    /// Reads the details of the run in `folder`, whose id on the page is `id`.
    pub(crate) fn read(folder: &Path, id: &str) -> Result<Self, report::Error> {
        let records = report::read_milestones(folder)?;
        let events = records.log.effective();
        let start = report::last_start(&events);
        let end = report::last_end(&events);
        Ok(Self {
            version: start.map(|start| start.version.clone()),
            arithmetic: start.map_or(Vec::new(), |start| start.arithmetic.clone()),
            failure: records.traces.failure.clone(),
            phases: end.map_or(Vec::new(), |end| end.time.phases().to_vec()),
            peak_memory: end.and_then(|end| end.peak_memory).map(|bytes| bytes.0),
            stragglers: last(events.iter().filter_map(|at| straggler(&at.event)).collect()),
            ranks_told: Ranks::of(&record::read_rank_stats(&folder.join(EVENTS))?),
            ranks: ranks(folder),
            environment: environment(folder),
            evaluations: evaluations(folder, id),
            processes: processes(records.traces.holder.as_deref()),
            events: told(&records),
            logs: Vec::new(),
        })
    }

    /// Adds what a page without a server needs: the ends of the logs, and pictures.
    pub(crate) fn alone(mut self, folder: &Path, lines: usize) -> Self {
        let most = self.ranks.last().map_or(0, |last| last + 1);
        self.logs = (0..most).map(|rank| log_end(folder, rank, lines)).collect();
        evaluation::inline(folder, &mut self.evaluations);
        self.processes.clear();
        self
    }
}

fn straggler(event: &Event) -> Option<Straggler> {
    match event {
        Event::Straggler(straggler) => Some(*straggler),
        _ => None,
    }
}

fn last<T>(mut all: Vec<T>) -> Vec<T> {
    all.drain(..all.len().saturating_sub(MAX_EVENTS));
    all
}

/// Events other than steps and epochs, with their text on the terminal.
fn told(records: &Records) -> Vec<EventView> {
    let mut context = Context::default();
    let mut views = Vec::new();
    for Stamped { time, step, event } in &records.log.events {
        if let Event::Started(started) = event {
            context = Context::of(started);
        }
        if matches!(event, Event::StepDone(_)) {
            continue;
        }
        if let Some(text) = record::line(event, &context) {
            views.push(EventView { time: milliseconds(Some(*time)), step: *step, text });
        }
    }
    last(views)
}

fn ranks(folder: &Path) -> Vec<u32> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |name: &str| name.strip_prefix("rank-")?.strip_suffix(".log")?.parse().ok();
    let mut found: Vec<u32> =
        entries.filter_map(|entry| number(&entry.file_name().to_string_lossy())).collect();
    found.sort_unstable();
    found
}

fn environment(folder: &Path) -> Option<Value> {
    let value: Value =
        serde_json::from_slice(&files::read(&folder.join(ENVIRONMENT)).ok()?).ok()?;
    value.get("starts")?.as_array()?.last().cloned()
}

/// The last `lines` of the log of `rank`; nothing where there is none.
pub(crate) fn log_end(folder: &Path, rank: u32, lines: usize) -> LogEnd {
    let path = record::RankLog::path(folder, Rank(rank));
    let read = || -> std::io::Result<LogEnd> {
        let file = files::open(&path)?;
        let size = file.metadata()?.len();
        let start = size.saturating_sub(MAX_LOG);
        let mut bytes = vec![0; (size - start) as usize];
        let n = file.read_at(&mut bytes, start)?;
        let text = String::from_utf8_lossy(&bytes[..n]);
        let all: Vec<&str> = text.lines().skip(usize::from(start > 0)).collect();
        let end = all.len().saturating_sub(lines);
        Ok(LogEnd { lines: all[end..].iter().map(|&line| line.to_owned()).collect(), size })
    };
    read().unwrap_or_default()
}
