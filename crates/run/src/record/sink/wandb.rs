//! `wandb` in `logging.sinks`
//!
//! `wandb/offline-run-TIME-ID` in the run's folder for logs, as W&B's own client leaves it with
//! `WANDB_MODE=offline`; `wandb sync` uploads it. Its `run-ID.wandb` holds the run with its
//! configuration, a row of numbers for each step, the summary, and how the run ended.
//!
//! W&B wants one row of each step, in order. Training, evaluation and test of a step are told one
//! after the other, so a row is complete when the next one begins or the run ends; until then its
//! numbers are in the summary. `wandb sync` always uploads the whole file, so a resumed run writes
//! it again without the steps that it repeats, under the same id: W&B shows one curve.

mod messages;
#[cfg(test)]
mod tests;
mod transaction_log;

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use prost::Message;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::tensorboard::scalars;
use crate::config::kind::{Kind, OptionConflict};
use crate::event::{Event, Finished, Reason};
use crate::files::{self, AppendFile};
use crate::launch;
use crate::record::Error;
use crate::record::sink::{Delivery, OpenSink, RunTime, Sink, SinkStart, Stamped};
use messages::{Exit, Header, History, Item, Items, Record, RunRecord, Step, Time, VersionInfo};
use transaction_log::{Chunks, HEADER, records};

/// Folder of W&B in the run's folder for logs.
const FOLDER: &str = "wandb";
/// Prefix of the folder of a run that is uploaded later; its time and id follow.
const PREFIX: &str = "offline-run-";
/// Form of the time, in UTC as in ids of runs, and its length.
const TIME_FORM: &str = "%Y%m%d_%H%M%S";
const TIME_LENGTH: usize = 15;
/// Oldest client that can read the file, as W&B's client itself says.
const MIN_CONSUMER: &str = "0.70.0";
/// Characters that W&B refuses in names of projects, and how long these may be.
const REFUSED: &[char] = &['/', '\\', '#', '?', '%', ':'];
const MAX_NAME: usize = 128;
/// Characters of a sweep's name in the ids of its trials.
const MAX_SWEEP: usize = 100;
/// Keys of W&B in rows and in the summary.
const STEP: &str = "_step";
const TIMESTAMP: &str = "_timestamp";
const RUNTIME: &str = "_runtime";
/// The column of `metrics.csv`, to draw curves over.
const EPOCH: &str = "epoch";
/// Prefix of metrics of the test.
const TEST: &str = "test/";

/// a run for Weights & Biases in `wandb/offline-run-TIME-ID` of the run's folder, to be uploaded by
/// `wandb sync`: all numbers of `metrics.csv`, the configuration, tags, and how the run ended.
/// Training needs neither network nor account.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Wandb {
    /// project of the run. Default: `experiment.name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"animals")]
    pub project: Option<String>,
    /// user or team that has the project. Default: that of `wandb login`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"my-team")]
    pub entity: Option<String>,
    /// group of the run. Default: the sweep of a trial, otherwise none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"baselines")]
    pub group: Option<String>,
    /// job type of the run.
    pub job_type: String,
}

impl Default for Wandb {
    fn default() -> Self {
        Self { project: None, entity: None, group: None, job_type: "train".to_owned() }
    }
}

impl Kind for Wandb {
    const NAME: &'static str = "wandb";

    fn check(&self) -> Vec<OptionConflict> {
        let names = [
            ("project", self.project.as_deref(), REFUSED),
            ("entity", self.entity.as_deref(), REFUSED),
            ("group", self.group.as_deref(), &[]),
            ("job_type", Some(self.job_type.as_str()), &[]),
        ];
        let conflict = |(key, name, refused): (_, Option<&str>, _)| {
            let what = reason_against(name?, refused)?;
            Some(OptionConflict { key, with: &[], what })
        };
        names.into_iter().filter_map(conflict).collect()
    }
}

/// Why W&B would refuse a name, a fragment; `None` if it would not.
fn reason_against(name: &str, refused: &[char]) -> Option<String> {
    if name.trim().is_empty() {
        return Some("must not be empty".to_owned());
    }
    if name.chars().count() > MAX_NAME {
        return Some(format!("must have at most {MAX_NAME} characters"));
    }
    let found = name.chars().find(|c| refused.contains(c) || c.is_control())?;
    let what = format!("must not contain `{}`, which W&B refuses", found.escape_debug());
    Some(if found == '/' { what + "; `project` and `entity` are keys of their own" } else { what })
}

impl Sink for Wandb {
    fn open(&self, start: &SinkStart) -> Result<Box<dyn OpenSink>, Error> {
        Ok(Box::new(Tracker::open(self, start, Timestamp::now())?))
    }

    fn delivery(&self) -> Delivery {
        Delivery::BestEffort
    }
}

/// The row of a step.
#[derive(Clone, Debug, Default, PartialEq)]
struct Row {
    step: u64,
    /// Seconds since 1970, and of the run.
    timestamp: f64,
    runtime: f64,
    metrics: BTreeMap<String, f64>,
}

impl Row {
    fn items(&self) -> Vec<Item> {
        let mut items: Vec<Item> =
            self.metrics.iter().map(|(key, value)| item(key, number(*value))).collect();
        items.push(item(RUNTIME, number(self.runtime)));
        items.push(item(STEP, self.step.to_string()));
        items.push(item(TIMESTAMP, number(self.timestamp)));
        items
    }

    fn history(&self) -> Record {
        let step = Some(Step { num: self.step as i64 });
        Record { history: Some(History { item: self.items(), step }), ..Record::default() }
    }

    fn summary(&self) -> Record {
        Record { summary: Some(Items { update: self.items() }), ..Record::default() }
    }

    /// The row of these entries of a row or a summary; `None` if they have no step.
    fn read(items: &[Item]) -> Option<Self> {
        let mut metrics: BTreeMap<String, f64> =
            items.iter().map(|item| (item.key.clone(), value(&item.value_json))).collect();
        let mut taken = |key| metrics.remove(key);
        let (step, timestamp, runtime) = (taken(STEP)?, taken(TIMESTAMP)?, taken(RUNTIME)?);
        Some(Self { step: step as u64, timestamp, runtime, metrics })
    }
}

/// The run of W&B in a run's folder.
struct Tracker {
    folder: PathBuf,
    file: AppendFile,
    chunks: Chunks,
    /// Number of the last record.
    num: i64,
    /// The row that is not complete yet.
    row: Option<Row>,
    time: RunTime,
}

impl Tracker {
    fn open(options: &Wandb, start: &SinkStart, now: Timestamp) -> Result<Self, Error> {
        let all = start.run.logs.join(FOLDER);
        let (folder, id) = match earlier(&all)? {
            Some(known) => known,
            None => new_folder(&all, start, now),
        };
        files::create_folder(&folder.join("files"))?;
        let path = folder.join(format!("run-{id}.wandb"));
        let old = match files::read(&path) {
            Err(reason) if reason.kind() == ErrorKind::NotFound => Vec::new(),
            other => other.map_err(files::Error::io("read", &path))?,
        };
        let is_over = start.resumed_from >= start.total_steps;
        let kept = EarlierRecords::of(records(&old), start.resumed_from, is_over);
        let begun =
            kept.begun.unwrap_or(Time { seconds: now.as_second(), nanos: now.subsec_nanosecond() });
        let first = [header(), run(options, start, &id, begun)];

        let (mut chunks, mut bytes, mut num) = (Chunks::new(), HEADER.to_vec(), 0);
        for record in first {
            num += 1;
            chunks.push(&Record { num, ..record }.encode_to_vec(), &mut bytes);
        }
        for record in &kept.records {
            chunks.push(record, &mut bytes);
        }
        num = num.max(kept.num);
        if let Some(row) = &kept.row {
            num += 1;
            chunks.push(&Record { num, ..row.summary() }.encode_to_vec(), &mut bytes);
        }
        // W&B's client passes over what it has uploaded.
        let mark = folder.join(format!("run-{id}.wandb.synced"));
        if mark.exists() {
            files::remove_file(&mark)?;
        }
        files::write_atomic(&path, &bytes)?;
        let file = AppendFile::open(&path)?;
        Ok(Self { folder, file, chunks, num, row: kept.row, time: RunTime::after(kept.runtime) })
    }

    fn append(&mut self, records: Vec<Record>) -> Result<(), Error> {
        let mut bytes = Vec::new();
        for record in records {
            self.num += 1;
            let record = Record { num: self.num, ..record };
            self.chunks.push(&record.encode_to_vec(), &mut bytes);
        }
        Ok(self.file.append(&bytes)?)
    }
}

impl OpenSink for Tracker {
    fn record(&mut self, stamped: &Stamped) -> Result<(), Error> {
        let runtime = self.time.advance(stamped.time);
        let mut records = Vec::new();
        if let Some((step, epoch, points)) = scalars_with_epoch(&stamped.event) {
            let is_next = |row: &mut Row| row.step < step;
            records.extend(self.row.take_if(is_next).map(|complete| complete.history()));
            let timestamp = stamped.time.as_microsecond() as f64 / 1e6;
            let row = self.row.get_or_insert_with(|| Row { step, ..Row::default() });
            (row.timestamp, row.runtime) = (timestamp, runtime);
            // A test is that of the best step, which may be an earlier one.
            let epoch = (step == row.step).then_some((EPOCH, epoch as f64));
            let points = points.into_iter().chain(epoch);
            let metrics: BTreeMap<String, f64> =
                points.map(|(key, value)| (key.to_owned(), value)).collect();
            row.metrics.extend(metrics.clone());
            records.push(Row { metrics, ..row.clone() }.summary());
        }
        if let Some(exit_code) = exit_code(&stamped.event) {
            records.extend(self.row.take().map(|complete| complete.history()));
            let runtime = runtime as i32;
            records.push(runtime_in_summary(runtime));
            let exit = Exit { exit_code, runtime };
            records.push(Record { exit: Some(exit), ..Record::default() });
        }
        if records.is_empty() { Ok(()) } else { self.append(records) }
    }

    fn finish(&mut self) -> Result<(), Error> {
        if let Some(row) = self.row.take() {
            self.append(vec![row.history()])?;
        }
        Ok(self.file.sync()?)
    }

    fn summary_entry(&self, _: &Finished) -> Option<(&'static str, PathBuf)> {
        Some(("wandb sync", self.folder.clone()))
    }
}

/// Step, epoch and numbers of an event; `None` for events without numbers.
fn scalars_with_epoch(event: &Event) -> Option<(u64, u64, Vec<(&str, f64)>)> {
    let (step, points) = scalars(event)?;
    match event {
        Event::StepDone(done) => Some((step, done.epoch, points)),
        Event::Evaluated(at) | Event::Tested(at) => Some((step, at.epoch, points)),
        _ => None,
    }
}

/// Seconds of the run, where W&B's tables look for them.
fn runtime_in_summary(seconds: i32) -> Record {
    let nested_key = vec!["_wandb".to_owned(), "runtime".to_owned()];
    let update = vec![Item { nested_key, ..item("", seconds.to_string()) }];
    Record { summary: Some(Items { update }), ..Record::default() }
}

/// The exit code of a run, if it ends with this event. W&B calls a run with 0 finished, and others
/// failed or killed.
fn exit_code(event: &Event) -> Option<i32> {
    match event {
        Event::Finished(finished) => Some(match finished.reason {
            Reason::Completed | Reason::EarlyStopped | Reason::OutOfTime => 0,
            // That of W&B's client after Ctrl-C.
            Reason::Stopped | Reason::Abandoned => 255,
        }),
        Event::Failed { .. } => Some(1),
        _ => None,
    }
}

/// What an earlier start has written, as far as it holds.
#[derive(Debug, Default, PartialEq)]
struct EarlierRecords {
    /// Start of the run.
    begun: Option<Time>,
    /// Encoded records of complete rows.
    records: Vec<Vec<u8>>,
    /// Number of the last of them.
    num: i64,
    /// The last row, which is not complete.
    row: Option<Row>,
    /// Seconds of the run until then.
    runtime: f64,
}

impl EarlierRecords {
    /// What holds for a run that resumes from step `until`, 0 for a fresh one; metrics of the test
    /// only if nothing is left to do.
    fn of(records: Vec<Vec<u8>>, until: u64, is_over: bool) -> Self {
        let mut kept = Self::default();
        if until == 0 {
            return kept;
        }
        // Records of the row's step are those from here on.
        let mut row_begins = 0;
        for bytes in records {
            let Ok(record) = Record::decode(bytes.as_slice()) else { break };
            if let Some(run) = record.run {
                kept.begun = run.start_time;
            }
            let history = record.history.map(|history| history.item);
            let summary = record.summary.map(|summary| summary.update);
            let Some(found) = history.or(summary).and_then(|items| Row::read(&items)) else {
                continue;
            };
            if found.step > until {
                break;
            }
            match &mut kept.row {
                Some(row) if row.step == found.step => {
                    row.metrics.extend(found.metrics);
                    (row.timestamp, row.runtime) = (found.timestamp, found.runtime);
                }
                row => {
                    *row = Some(found);
                    row_begins = kept.records.len();
                }
            }
            kept.records.push(bytes);
            kept.num = record.num;
        }
        kept.records.truncate(row_begins);
        if let Some(row) = &mut kept.row {
            row.metrics.retain(|key, _| is_over || !key.starts_with(TEST));
            kept.runtime = row.runtime;
        }
        kept
    }
}

/// Folder and id of the run, if an earlier start has made them.
fn earlier(all: &Path) -> Result<Option<(PathBuf, String)>, Error> {
    let entries = match fs::read_dir(all) {
        Err(reason) if reason.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.map_err(files::Error::io("read", all))?,
    };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let known = names.filter_map(|name| {
        let id = name.strip_prefix(PREFIX)?.get(TIME_LENGTH..)?.strip_prefix('-')?.to_owned();
        Some((all.join(&name), id))
    });
    Ok(known.min())
}

/// Folder and id of a run that W&B does not know. Trials have the same ids in every sweep, so
/// theirs get the sweep's name and a random number.
fn new_folder(all: &Path, start: &SinkStart, now: Timestamp) -> (PathBuf, String) {
    let id = match &start.sweep {
        Some(sweep) => {
            let sweep: String = sweep.chars().take(MAX_SWEEP).collect();
            format!("{sweep}-{}-{:04x}", start.run.id, files::random() as u16)
        }
        None => start.run.id.clone(),
    };
    let time = now.strftime(TIME_FORM);
    (all.join(format!("{PREFIX}{time}-{id}")), id)
}

fn header() -> Record {
    let version_info = VersionInfo {
        producer: concat!("ddprun ", env!("CARGO_PKG_VERSION")).to_owned(),
        min_consumer: MIN_CONSUMER.to_owned(),
    };
    let header = Header { version_info: Some(version_info) };
    Record { header: Some(header), ..Record::default() }
}

fn run(options: &Wandb, start: &SinkStart, id: &str, begun: Time) -> Record {
    let SinkStart { run, name, sweep, tags, config, .. } = start;
    let text = |option: &Option<String>| option.clone().unwrap_or_default();
    let run = RunRecord {
        run_id: id.to_owned(),
        entity: text(&options.entity),
        project: options.project.clone().unwrap_or_else(|| name.clone()),
        config: Some(Items { update: items(config) }),
        run_group: options.group.clone().or_else(|| sweep.clone()).unwrap_or_default(),
        job_type: options.job_type.clone(),
        display_name: format!("{} {}", sweep.as_ref().unwrap_or(name), run.id),
        tags: tags.clone(),
        host: launch::host(),
        start_time: Some(begun),
    };
    Record { run: Some(run), ..Record::default() }
}

fn items(config: &Map<String, Value>) -> Vec<Item> {
    config.iter().map(|(key, value)| item(key, value.to_string())).collect()
}

fn item(key: &str, value_json: String) -> Item {
    Item { key: key.to_owned(), value_json, ..Item::default() }
}

/// A number as Python writes it into JSON.
fn number(value: f64) -> String {
    match value {
        _ if value.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        _ => Value::from(value).to_string(),
    }
}

/// The number that [`number`] wrote.
fn value(json: &str) -> f64 {
    match json {
        "Infinity" => f64::INFINITY,
        "-Infinity" => f64::NEG_INFINITY,
        _ => json.parse().unwrap_or(f64::NAN),
    }
}
