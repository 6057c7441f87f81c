//! `journal.jsonl`: the decisions and events of a sweep, one per line, on disk before anything
//! depends on them.
//!
//! ```text
//! opened     the search, and the experiment that all trials change
//! extended   another search for the trials from here on
//! started    a trial and its values: from here on it is never drawn again
//! kept       it continues past a report; the pruner does not judge that report again
//! ended      its outcome, also if pruned, and all of its reports
//! retried    a failed trial is tried again
//! earlier    a result of another sweep or run from which this one starts
//! ```
//!
//! A trial that was started and not ended was interrupted: it is resumed. A line that a killed
//! process left unfinished says nothing, as if it had not been begun.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::kind::{Choice, Options};
use crate::config::schema::Mode;
use crate::config::sweep::Search;
use crate::config::{Loaded, leaves};
use crate::files::{self, LineFile};
use crate::record::NewerFormat;
use crate::sweep::pruner::Pruners;
use crate::sweep::ranking::Ranking;
use crate::sweep::trial::{EarlierTrial, Length, Report, State, Trial};
use crate::sweep::{Error, changes};

/// Name of the file in the sweep's folder.
pub const NAME: &str = "journal.jsonl";
/// Version of its lines.
const FORMAT: u32 = 1;

/// Keys of the experiment that decide no result: they may differ between two starts of a sweep.
const FREE: [&str; 8] = [
    "experiment.tags",
    "logging.",
    "fault.",
    "data.num_workers",
    "data.prefetch_factor",
    "distributed.threads_per_rank",
    "distributed.timeout",
    "distributed.devices",
];

/// The search of a sweep and the experiment that its trials change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweepSpec {
    /// Name of the sweep.
    pub name: String,
    /// The experiment that all trials change.
    pub base: PathBuf,
    /// Validation metric that ranks trials.
    pub metric: String,
    /// Direction in which the metric improves.
    pub goal: Mode,
    /// Number of trials requested.
    pub trials: usize,
    /// Everything that decides values, as JSON.
    pub search: Value,
    /// Every key of the base that decides results, as JSON.
    pub experiment: BTreeMap<String, String>,
    /// The keys of `experiment` that were not set and so have their default values.
    #[serde(skip)]
    pub defaults: BTreeSet<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
enum Record {
    Opened {
        format: u32,
        ddprun: String,
        #[serde(flatten)]
        subject: SweepSpec,
    },
    Extended {
        #[serde(flatten)]
        subject: SweepSpec,
        /// The worker that requested it while another one led.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        by: Option<String>,
    },
    Started {
        trial: u32,
        values: Map<String, Value>,
        #[serde(flatten)]
        length: Length,
    },
    Kept {
        trial: u32,
        step: u64,
    },
    Retried {
        trial: u32,
        #[serde(flatten)]
        length: Length,
    },
    Earlier {
        from: String,
        values: Map<String, Value>,
        #[serde(flatten)]
        length: Length,
        state: State,
        seconds: f64,
        reports: Vec<(u64, Option<f64>)>,
    },
    Ended {
        trial: u32,
        state: State,
        /// Best value, for readers of the file; the reports decide.
        value: Option<f64>,
        seconds: f64,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        error: Option<String>,
        /// True if something could not be written.
        #[serde(skip_serializing_if = "is_false", default)]
        lacked_storage: bool,
        /// Step and value.
        reports: Vec<(u64, Option<f64>)>,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_false(value: &bool) -> bool {
    !value
}

#[derive(Serialize, Deserialize)]
struct Line {
    time: Timestamp,
    #[serde(flatten)]
    record: Record,
}

/// The contents of a journal.
#[derive(Clone, Debug, PartialEq)]
pub struct JournalState {
    /// The search, as last extended.
    pub subject: SweepSpec,
    /// Trials by number.
    pub trials: Vec<Trial>,
    /// When it was opened.
    pub opened: Timestamp,
    /// Workers of a shared sweep that extended it.
    pub extended_by: BTreeSet<String>,
    /// Results of other sweeps and runs from which it starts.
    pub earlier: Vec<EarlierTrial>,
}

/// The open journal.
pub(crate) struct Journal(LineFile);

impl SweepSpec {
    /// The subject of `search` with this number of trials over `base`.
    pub fn new(name: &str, search: &Search, trials: usize, base: &Loaded) -> Self {
        let is_free = |key: &str| FREE.iter().any(|free| key.starts_with(free));
        let experiment: BTreeMap<String, String> =
            leaves(&base.experiment).into_iter().filter(|(key, _)| !is_free(key)).collect();
        Self {
            name: name.to_owned(),
            base: base.path.clone(),
            metric: search.metric.clone(),
            goal: search.goal,
            trials,
            search: serde_json::to_value(search).unwrap_or_default(),
            defaults: experiment.keys().filter(|key| !base.is_given(key)).cloned().collect(),
            experiment,
        }
    }

    /// The ranking of its trials; a pruner that this program does not know counts as none.
    pub fn ranking(&self, pruners: &Pruners) -> Ranking {
        let mut options: Options = self
            .search
            .get("pruner")
            .and_then(|pruner| serde_json::from_value(pruner.clone()).ok())
            .unwrap_or_default();
        options.retain(|_, value| !value.is_null());
        let name = options.remove("name").unwrap_or_default();
        let choice = Choice { name: name.as_str().unwrap_or_default().to_owned(), options };
        match pruners.build(&choice) {
            Ok(pruner) => Ranking { goal: self.goal, pruner: pruner.into() },
            Err(_) => Ranking::plain(self.goal),
        }
    }

    /// True if a journal with `earlier` contains all of this.
    pub(super) fn is_recorded_in(&self, earlier: &Self) -> bool {
        // What has its default value is not written down.
        let told = Self { defaults: BTreeSet::new(), ..self.clone() };
        told == Self { defaults: BTreeSet::new(), ..earlier.clone() }
    }

    /// Parses the search; `None` if another ddprun wrote it in a form that this one does not know.
    pub(super) fn search(&self) -> Option<Search> {
        serde_json::from_value(self.search.clone()).ok()
    }

    /// Differences from an earlier subject, in words: those that `--extend` allows, and the others.
    ///
    /// A default value that the earlier one lacks is no difference: an earlier ddprun did not know
    /// the key.
    pub fn changes(&self, earlier: &Self) -> (Vec<String>, Vec<String>) {
        let mut fixed = Vec::new();
        let keys = earlier.experiment.keys().chain(self.experiment.keys());
        let keys: BTreeSet<&String> = keys.collect();
        for key in keys {
            let old = earlier.experiment.get(key);
            let new = self.experiment.get(key);
            let is_newly_known = old.is_none() && self.defaults.contains(key);
            if old != new && !is_newly_known {
                fixed.push(changes::line(key, old.cloned(), new.cloned()));
            }
        }
        let mut open = Vec::new();
        let empty = Map::new();
        let [old, new] =
            [earlier, self].map(|subject| subject.search.as_object().unwrap_or(&empty));
        for key in new.keys() {
            let [before, after] =
                [old.get(key), new.get(key)].map(|value| value.map(without_nulls));
            if before == after {
                continue;
            }
            let lines = changes::of_search(key, before.as_ref(), after.as_ref());
            let is_fixed = ["metric", "goal", "devices_per_trial"].contains(&key.as_str());
            if is_fixed { fixed.extend(lines) } else { open.extend(lines) }
        }
        (open, fixed)
    }
}

/// `value` without options that are null, which older journals list.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(keys) => {
            let given = keys.iter().filter(|(_, value)| !value.is_null());
            given.map(|(key, value)| (key.clone(), without_nulls(value))).collect()
        }
        other => other.clone(),
    }
}

/// Reads the journal of the sweep in `folder`; `None` if there is none.
pub fn read(folder: &Path) -> Result<Option<JournalState>, Error> {
    let path = folder.join(NAME);
    let bytes = match files::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(files::Error::io("read", &path))?,
    };
    let mut replay = Replay::default();
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let Ok(value) = serde_json::from_slice::<Value>(line) else { continue };
        NewerFormat::check(&path, value.get("format").and_then(Value::as_u64), FORMAT)?;
        let Ok(Line { time, record }) = serde_json::from_value(value) else { continue };
        replay.record(time, record);
    }
    match replay.story {
        Some(story) => Ok(Some(story)),
        // A process that was killed before its first line was whole has begun nothing.
        None if !bytes.contains(&b'\n') => Ok(None),
        None => Err(Error::NotAJournal { path }),
    }
}

/// State while a journal is read.
#[derive(Default)]
struct Replay {
    story: Option<JournalState>,
    /// Index of each trial.
    places: HashMap<u32, usize>,
}

impl Replay {
    fn record(&mut self, time: Timestamp, record: Record) {
        let Some(story) = &mut self.story else {
            if let Record::Opened { subject, .. } = record {
                let (trials, extended_by, earlier) = Default::default();
                let opened = time;
                let story = JournalState { subject, trials, opened, extended_by, earlier };
                self.story = Some(story);
            }
            return;
        };
        match record {
            Record::Opened { subject, .. } => story.subject = subject,
            Record::Extended { subject, by } => {
                story.subject = subject;
                story.extended_by.extend(by);
            }
            Record::Started { trial, values, length } => {
                self.places.entry(trial).or_insert_with(|| {
                    let values = values.into_iter().collect();
                    story.trials.push(Trial::new(trial, values, length));
                    story.trials.len() - 1
                });
            }
            Record::Earlier { from, values, length, state, seconds, reports } => {
                let values = values.into_iter().collect();
                let reports = reports.into_iter().map(report).collect();
                let trial = Trial { state, reports, seconds, ..Trial::new(0, values, length) };
                story.earlier.push(EarlierTrial { from, trial });
            }
            Record::Kept { trial, step } => {
                if let Some(known) = trial_of(story, &self.places, trial) {
                    known.kept = step;
                }
            }
            Record::Retried { trial, length } => {
                if let Some(known) = trial_of(story, &self.places, trial) {
                    known.begin_again(length);
                }
            }
            Record::Ended { trial, state, seconds, error, lacked_storage, reports, .. } => {
                if let Some(known) = trial_of(story, &self.places, trial) {
                    (known.state, known.seconds, known.error) = (state, seconds, error);
                    known.lacked_storage = lacked_storage;
                    known.reports = reports.into_iter().map(report).collect();
                }
            }
        }
    }
}

fn report((step, value): (u64, Option<f64>)) -> Report {
    Report { step, value }
}

fn trial_of<'a>(
    story: &'a mut JournalState,
    places: &HashMap<u32, usize>,
    number: u32,
) -> Option<&'a mut Trial> {
    story.trials.get_mut(*places.get(&number)?)
}

impl Journal {
    /// Opens the journal of `folder`, which this process alone may write, to add to it.
    pub(crate) fn open(folder: &Path) -> Result<Self, Error> {
        Ok(Self(LineFile::open(&folder.join(NAME))?))
    }

    /// The first line.
    pub(crate) fn opened(&mut self, subject: &SweepSpec) -> Result<(), Error> {
        let format = FORMAT;
        let ddprun = env!("CARGO_PKG_VERSION").to_owned();
        self.write(Record::Opened { format, ddprun, subject: subject.clone() })
    }

    /// Another search from here on, or another number of trials.
    pub(crate) fn extended(&mut self, subject: &SweepSpec, by: Option<&str>) -> Result<(), Error> {
        self.write(Record::Extended { subject: subject.clone(), by: by.map(str::to_owned) })
    }

    /// A trial is about to be started.
    pub(crate) fn started(&mut self, trial: &Trial) -> Result<(), Error> {
        let values = trial.values.iter().cloned().collect();
        self.write(Record::Started { trial: trial.number, values, length: trial.length })
    }

    /// A trial continues past the report of [`Trial::kept`].
    pub(crate) fn kept(&mut self, trial: &Trial) -> Result<(), Error> {
        self.write(Record::Kept { trial: trial.number, step: trial.kept })
    }

    /// A result of another sweep or run counts from here on.
    pub(crate) fn earlier(
        &mut self,
        EarlierTrial { from, trial }: &EarlierTrial,
    ) -> Result<(), Error> {
        self.write(Record::Earlier {
            from: from.clone(),
            values: trial.values.iter().cloned().collect(),
            length: trial.length,
            state: trial.state,
            seconds: trial.seconds,
            reports: trial.reports.iter().map(|report| (report.step, report.value)).collect(),
        })
    }

    /// A failed trial is tried again.
    pub(crate) fn retried(&mut self, trial: &Trial) -> Result<(), Error> {
        self.write(Record::Retried { trial: trial.number, length: trial.length })
    }

    /// A trial has ended or was pruned.
    pub(crate) fn ended(&mut self, trial: &Trial, goal: Mode) -> Result<(), Error> {
        self.write(Record::Ended {
            trial: trial.number,
            state: trial.state,
            value: trial.value(goal),
            seconds: trial.seconds,
            error: trial.error.clone(),
            lacked_storage: trial.lacked_storage,
            reports: trial.reports.iter().map(|report| (report.step, report.value)).collect(),
        })
    }

    /// One line, on disk when this returns.
    fn write(&mut self, record: Record) -> Result<(), Error> {
        let line = serde_json::to_string(&Line { time: Timestamp::now(), record })
            .map_err(|reason| Error::Encode { what: NAME, reason })?;
        self.0.push(&line)?;
        Ok(self.0.sync()?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::sweep::example_sweeps::{search, trial};

    fn subject() -> SweepSpec {
        SweepSpec {
            name: "s".into(),
            base: "b.toml".into(),
            metric: "val/loss".into(),
            goal: Mode::Min,
            trials: 4,
            search: serde_json::to_value(search("random")).unwrap(),
            experiment: BTreeMap::from([("train.epochs".into(), "3".into())]),
            defaults: BTreeSet::new(),
        }
    }

    fn written(folder: &Path) -> JournalState {
        let mut journal = Journal::open(folder).unwrap();
        journal.opened(&subject()).unwrap();
        let values = vec![("z".to_owned(), json!(0.1)), ("a".to_owned(), json!("sgd"))];
        let one = Trial { values, ..trial(1, State::Pruned, &[0.5, f64::NAN]) };
        journal.started(&one).unwrap();
        journal.ended(&one, Mode::Min).unwrap();
        journal.started(&trial(2, State::Running, &[])).unwrap();
        let trial = Trial { number: 0, ..one };
        journal.earlier(&EarlierTrial { from: "logs/a/trial-0003".into(), trial }).unwrap();
        read(folder).unwrap().unwrap()
    }

    #[test]
    fn what_was_written_comes_back_in_its_order() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()).unwrap(), None);
        let story = written(folder.path());
        assert_eq!(story.subject, subject());
        let [one, two] = &story.trials[..] else { panic!("{story:?}") };
        assert_eq!(one.values[0], ("z".to_owned(), json!(0.1)));
        assert_eq!((one.state, one.value(Mode::Min)), (State::Pruned, Some(0.5)));
        assert_eq!(one.reports[1], Report { step: 20, value: None });
        assert_eq!((two.state, two.reports.len()), (State::Running, 0));
        let [earlier] = &story.earlier[..] else { panic!("{story:?}") };
        assert_eq!(earlier.from, "logs/a/trial-0003");
        assert_eq!((&earlier.trial.values, earlier.trial.number), (&one.values, 0));
    }

    #[test]
    fn a_journal_cut_at_any_byte_tells_a_beginning_of_its_story() {
        let folder = tempfile::tempdir().unwrap();
        let whole = written(folder.path());
        let path = folder.path().join(NAME);
        let bytes = fs::read(&path).unwrap();
        for length in 0..bytes.len() {
            files::write_atomic(&path, &bytes[..length]).unwrap();
            let Some(story) = read(folder.path()).unwrap() else { continue };
            assert!(story.trials.len() <= 2);
            for (cut, known) in story.trials.iter().zip(&whole.trials) {
                assert!(cut == known || cut.state == State::Running, "{length}: {cut:?}");
            }
            // What is written after the cut is read, too.
            Journal::open(folder.path()).unwrap().started(&trial(9, State::Running, &[])).unwrap();
            assert_eq!(read(folder.path()).unwrap().unwrap().trials.last().unwrap().number, 9);
        }
    }

    #[test]
    fn what_was_decided_about_a_trial_comes_back_and_a_retried_one_is_open_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(folder.path()).unwrap();
        journal.opened(&subject()).unwrap();
        let mut one = trial(1, State::Failed, &[0.5]);
        (one.kept, one.lacked_storage, one.error) = (10, true, Some("no space".into()));
        journal.started(&one).unwrap();
        journal.kept(&one).unwrap();
        journal.ended(&one, Mode::Min).unwrap();
        assert_eq!(read(folder.path()).unwrap().unwrap().trials, [one.clone()]);
        one.begin_again(Length { total_steps: 7, ..one.length });
        journal.retried(&one).unwrap();
        let [again] = &read(folder.path()).unwrap().unwrap().trials[..] else { panic!() };
        assert_eq!(*again, one);
        assert_eq!((again.state, again.kept, again.length.total_steps), (State::Running, 10, 7));
    }

    #[test]
    fn a_journal_of_an_earlier_version_is_read_with_its_pruner() {
        let folder = tempfile::tempdir().unwrap();
        let lines = [
            r#"{"time":"2026-01-01T00:00:00Z","record":"opened","format":1,"ddprun":"0.1.0","name":"s","base":"b.toml","metric":"val/accuracy","goal":"max","trials":2,"search":{"pruner":{"name":"asha","min_resource":"500 steps","max_resource":null,"reduction_factor":3}},"experiment":{}}"#,
            r#"{"time":"2026-01-01T00:00:01Z","record":"started","trial":1,"values":{"optimizer.lr":0.1},"steps_per_epoch":10,"total_steps":40}"#,
            r#"{"time":"2026-01-01T00:00:02Z","record":"a later kind of line","trial":1}"#,
            r#"{"time":"2026-01-01T00:00:03Z","record":"ended","trial":1,"state":"failed","value":0.5,"seconds":1.5,"error":"x","reports":[[10,0.5]]}"#,
        ];
        files::write_atomic(&folder.path().join(NAME), (lines.join("\n") + "\n").as_bytes())
            .unwrap();
        let story = read(folder.path()).unwrap().unwrap();
        assert_eq!(story.subject.ranking(&Pruners::default()).unit_name(), "steps");
        let [one] = &story.trials[..] else { panic!("{story:?}") };
        assert_eq!((one.state, one.lacked_storage, one.kept), (State::Failed, false, 0));
    }

    #[test]
    fn a_newer_journal_and_another_file_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        files::write_atomic(&path, b"{\"record\":\"opened\",\"format\":9}\n").unwrap();
        let message = read(folder.path()).unwrap_err().to_string();
        assert!(
            message.ends_with("has format 9, and this ddprun reads formats up to 1"),
            "{message}"
        );
        files::write_atomic(&path, b"step,loss\n").unwrap();
        assert!(read(folder.path()).unwrap_err().to_string().ends_with("is not a sweep's journal"));
    }

    #[test]
    fn another_space_may_be_extended_and_another_experiment_may_not() {
        let mut later = subject();
        assert_eq!(later.changes(&subject()), (vec![], vec![]));
        later.trials = 99;
        assert_eq!(later.changes(&subject()), (vec![], vec![]));
        later.search["seed"] = json!(5);
        later.search["goal"] = json!("max");
        later.experiment.insert("train.epochs".into(), "4".into());
        later.defaults.insert("train.epochs".into());
        let (open, fixed) = later.changes(&subject());
        assert_eq!(open, ["`sweep.seed`: 1 -> 5"]);
        assert_eq!(fixed, ["`train.epochs`: 3 -> 4", "`sweep.goal`: \"min\" -> \"max\""]);
    }

    #[test]
    fn a_default_of_a_key_that_an_earlier_ddprun_did_not_know_is_no_change() {
        let mut later = subject();
        later.experiment.insert("train.new".into(), "1".into());
        assert_eq!(later.changes(&subject()).1, ["`train.new`: absent -> 1"]);
        later.defaults.insert("train.new".into());
        assert_eq!(later.changes(&subject()), (vec![], vec![]));
    }
}
