//! `journal.jsonl`: what a sweep has decided and seen, one line each, on disk before anything depends on it.
//!
//! ```text
//! opened     the search, and the experiment that all trials change
//! extended   another search for the trials from here on
//! started    a trial and its values: from here on it is never drawn again
//! ended      how it ended, and all that it reported
//! ```
//!
//! A trial that was started and not ended was interrupted: it is resumed. A line that a killed process left
//! unfinished says nothing, as if it had not been begun.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::schema::Mode;
use crate::config::sweep::{Search, Values};
use crate::config::{Experiment, leaves};
use crate::files::{self, Lines};
use crate::sweep::Error;
use crate::sweep::trial::{Length, Report, State, Trial};

/// Name of the file in the sweep's folder.
pub const NAME: &str = "journal.jsonl";
/// Version of its lines.
const FORMAT: u32 = 1;

/// Keys of the experiment that decide no result: they may differ between two starts of a sweep.
const FREE: [&str; 7] = [
    "logging.",
    "fault.",
    "data.num_workers",
    "data.prefetch_factor",
    "distributed.threads_per_rank",
    "distributed.timeout",
    "distributed.devices",
];

/// What the trials of a sweep are about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    /// Name of the sweep.
    pub name: String,
    /// The experiment that all trials change.
    pub base: PathBuf,
    /// Validation metric that ranks trials.
    pub metric: String,
    /// Whether less or more of it is better.
    pub goal: Mode,
    /// Trials asked for.
    pub trials: usize,
    /// Everything that decides values, as JSON.
    pub search: Value,
    /// Every key of the base that decides results, as JSON.
    pub experiment: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
enum Record {
    Opened {
        format: u32,
        ddprun: String,
        #[serde(flatten)]
        subject: Subject,
    },
    Extended {
        #[serde(flatten)]
        subject: Subject,
    },
    Started {
        trial: u32,
        values: Map<String, Value>,
        #[serde(flatten)]
        length: Length,
    },
    Ended {
        trial: u32,
        state: State,
        /// Best value, for readers of the file; the reports decide.
        value: Option<f64>,
        seconds: f64,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        error: Option<String>,
        /// Step and value.
        reports: Vec<(u64, Option<f64>)>,
    },
}

#[derive(Serialize, Deserialize)]
struct Line {
    time: Timestamp,
    #[serde(flatten)]
    record: Record,
}

/// What a journal says.
#[derive(Clone, Debug, PartialEq)]
pub struct Story {
    /// What the sweep is about, as last extended.
    pub subject: Subject,
    /// Its trials, by number.
    pub trials: Vec<Trial>,
    /// When it was opened.
    pub opened: Timestamp,
}

/// The open journal.
pub(crate) struct Journal(Lines);

impl Subject {
    /// The subject of `search` over `base`.
    pub fn new(
        name: &str,
        base: &Path,
        search: &Search,
        trials: usize,
        experiment: &Experiment,
    ) -> Self {
        let is_free = |key: &str| FREE.iter().any(|free| key.starts_with(free));
        Self {
            name: name.to_owned(),
            base: base.to_owned(),
            metric: search.metric.clone(),
            goal: search.goal,
            trials,
            search: serde_json::to_value(search).unwrap_or_default(),
            experiment: leaves(experiment).into_iter().filter(|(key, _)| !is_free(key)).collect(),
        }
    }

    /// What differs from an earlier subject, in words: what may be extended, and what may not.
    pub fn changes(&self, earlier: &Self) -> (Vec<String>, Vec<String>) {
        let say = |key: &str, old: Option<&String>, new: Option<&String>| {
            let show = |value: Option<&String>| value.map_or("absent", String::as_str).to_owned();
            format!("`{key}`: {} -> {}", show(old), show(new))
        };
        let mut fixed = Vec::new();
        let keys = earlier.experiment.keys().chain(self.experiment.keys());
        let keys: std::collections::BTreeSet<&String> = keys.collect();
        for key in keys {
            let (old, new) = (earlier.experiment.get(key), self.experiment.get(key));
            if old != new {
                fixed.push(say(key, old, new));
            }
        }
        let mut open = Vec::new();
        let empty = Map::new();
        let [old, new] =
            [earlier, self].map(|subject| subject.search.as_object().unwrap_or(&empty));
        for key in new.keys() {
            let [before, after] =
                [old.get(key), new.get(key)].map(|value| value.map(Value::to_string));
            if before == after {
                continue;
            }
            let line = say(&format!("sweep.{key}"), before.as_ref(), after.as_ref());
            let is_fixed = ["metric", "goal", "devices_per_trial"].contains(&key.as_str());
            if is_fixed { fixed.push(line) } else { open.push(line) }
        }
        (open, fixed)
    }
}

/// Reads the journal of the sweep in `folder`; `None` if there is none.
///
/// # Errors
///
/// It cannot be read, is no journal, or a newer ddprun wrote it.
pub fn read(folder: &Path) -> Result<Option<Story>, Error> {
    let path = folder.join(NAME);
    let bytes = match fs::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(files::Error::io("read", &path))?,
    };
    let mut story: Option<Story> = None;
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let Ok(value) = serde_json::from_slice::<Value>(line) else { continue };
        let found = value.get("format").and_then(Value::as_u64).unwrap_or(1);
        if found > u64::from(FORMAT) {
            return Err(Error::Newer { path, found: found as u32, known: FORMAT });
        }
        let Ok(Line { time, record }) = serde_json::from_value(value) else { continue };
        replay(&mut story, time, record);
    }
    match story {
        Some(story) => Ok(Some(story)),
        // A process that was killed before its first line was whole has begun nothing.
        None if !bytes.contains(&b'\n') => Ok(None),
        None => Err(Error::NotAJournal { path }),
    }
}

fn replay(story: &mut Option<Story>, time: Timestamp, record: Record) {
    match (record, story.as_mut()) {
        (Record::Opened { subject, .. }, None) => {
            *story = Some(Story { subject, trials: Vec::new(), opened: time });
        }
        (Record::Extended { subject } | Record::Opened { subject, .. }, Some(story)) => {
            story.subject = subject;
        }
        (Record::Started { trial, values, length }, Some(story)) => {
            let values: Values = values.into_iter().collect();
            if !story.trials.iter().any(|known| known.number == trial) {
                story.trials.push(Trial::new(trial, values, length));
            }
        }
        (Record::Ended { trial, state, seconds, error, reports, .. }, Some(story)) => {
            if let Some(known) = story.trials.iter_mut().find(|known| known.number == trial) {
                known.state = state;
                known.seconds = seconds;
                known.error = error;
                known.reports =
                    reports.into_iter().map(|(step, value)| Report { step, value }).collect();
            }
        }
        (_, None) => {}
    }
}

impl Journal {
    /// Opens the journal of `folder`, which this process alone may write, to add to it.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub(crate) fn open(folder: &Path) -> Result<Self, Error> {
        Ok(Self(Lines::open(&folder.join(NAME))?))
    }

    /// The first line.
    pub(crate) fn opened(&mut self, subject: &Subject) -> Result<(), Error> {
        let (format, ddprun) = (FORMAT, env!("CARGO_PKG_VERSION").to_owned());
        self.write(Record::Opened { format, ddprun, subject: subject.clone() })
    }

    /// Another search from here on, or another number of trials.
    pub(crate) fn extended(&mut self, subject: &Subject) -> Result<(), Error> {
        self.write(Record::Extended { subject: subject.clone() })
    }

    /// A trial is about to be started.
    pub(crate) fn started(&mut self, trial: &Trial) -> Result<(), Error> {
        let values = trial.values.iter().cloned().collect();
        self.write(Record::Started { trial: trial.number, values, length: trial.length })
    }

    /// A trial has ended.
    pub(crate) fn ended(&mut self, trial: &Trial, goal: Mode) -> Result<(), Error> {
        self.write(Record::Ended {
            trial: trial.number,
            state: trial.state,
            value: trial.value(goal),
            seconds: trial.seconds,
            error: trial.error.clone(),
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
    use serde_json::json;

    use super::*;
    use crate::config::sweep::Method;
    use crate::sweep::examples::{search, trial};

    fn subject() -> Subject {
        Subject {
            name: "s".into(),
            base: "b.toml".into(),
            metric: "val/loss".into(),
            goal: Mode::Min,
            trials: 4,
            search: serde_json::to_value(search(Method::Random)).unwrap(),
            experiment: BTreeMap::from([("train.epochs".into(), "3".into())]),
        }
    }

    fn written(folder: &Path) -> Story {
        let mut journal = Journal::open(folder).unwrap();
        journal.opened(&subject()).unwrap();
        let values = vec![("z".to_owned(), json!(0.1)), ("a".to_owned(), json!("sgd"))];
        let one = Trial { values, ..trial(1, State::Pruned, &[0.5, f64::NAN]) };
        journal.started(&one).unwrap();
        journal.ended(&one, Mode::Min).unwrap();
        journal.started(&trial(2, State::Running, &[])).unwrap();
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
        let (open, fixed) = later.changes(&subject());
        assert_eq!(open, ["`sweep.seed`: 1 -> 5"]);
        assert_eq!(fixed, ["`train.epochs`: 3 -> 4", "`sweep.goal`: \"min\" -> \"max\""]);
    }
}
