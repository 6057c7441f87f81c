//! Runs -> sorted by a metric, or side by side: their differences, and the metrics that follow from
//! them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::config::Vocabulary;
use crate::plan::Mode;
use crate::record::text::cut;
use crate::record::{Environment, read_environment};
use crate::report::overlay::{self, Overlay};
use crate::report::{self, Unit};
use crate::runs::{self, Difference, Error, Listing, Scalars, Summary};
use crate::user_error::ErrorPage;

/// Series of steps, which have no last or best value worth a line.
const OF_STEPS: [&str; 4] = ["lr", "grad_norm", "loss_scale", "samples_per_second"];
/// Epochs from which on curves go by epochs.
const MIN_EPOCHS: u64 = 3;
/// Runs whose names have room above a panel.
const MAX_NAMED: usize = 3;

/// A run and everything that is compared of it.
pub struct ComparedRun {
    pub summary: Summary,
    config: toml::Table,
    environment: BTreeMap<String, String>,
    scalars: Scalars,
}

/// A key or metric, and the value of each run.
pub type Rows<T> = Vec<(String, Vec<Option<T>>)>;

/// Last and best value of a metric.
#[derive(Clone, Copy)]
pub struct LastAndBest {
    pub last: f64,
    /// The best, of a metric for which that has a meaning.
    pub best: Option<f64>,
}

/// Runs side by side.
pub struct Comparison {
    pub runs: Vec<ComparedRun>,
    /// Keys of the experiments whose values differ.
    pub configuration: Vec<Difference>,
    /// Every metric of evaluations and epochs.
    pub metrics: Rows<LastAndBest>,
    /// Differences of the machines and programs, the number and kind of ranks first.
    pub environment: Rows<String>,
}

impl Comparison {
    /// Reads the runs in `folders`.
    pub fn read(folders: &[PathBuf], vocabulary: &Vocabulary) -> Result<Self, Error> {
        let runs = folders.iter().map(|folder| read(folder)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            configuration: runs::differences(&configs(&runs)),
            metrics: metrics(&runs, vocabulary),
            environment: environment(&runs),
            runs,
        })
    }

    /// Draws the loss, and what the first run monitors or its accuracy. Returns false if there is
    /// nothing to draw.
    pub fn draw(&self, path: &Path) -> Result<bool, report::Error> {
        draw(&self.runs, path)
    }
}

/// The folders of the runs that `words` name.
///
/// # Errors
///
/// Two words name the same run.
pub fn distinct_runs(words: &[String]) -> Result<Vec<PathBuf>, ErrorPage> {
    let mut folders: Vec<PathBuf> = Vec::new();
    for word in words {
        let folder = runs::best_run(Some(word))?;
        if folders.contains(&folder) {
            let what = format!("`{word}` names `{}`, which is compared already", folder.display());
            return Err(ErrorPage::refused(what, "name another run; `ddprun ls` lists them"));
        }
        folders.push(folder);
    }
    Ok(folders)
}

fn read(folder: &Path) -> Result<ComparedRun, Error> {
    let environment = read_environment(folder)?.pop();
    Ok(ComparedRun {
        summary: runs::summary(folder)?,
        config: runs::config(folder)?,
        environment: environment.map(of_machine).unwrap_or_default(),
        scalars: Scalars::read(folder)?,
    })
}

/// Fields on which a result can depend beside the experiment.
fn of_machine(start: Environment) -> BTreeMap<String, String> {
    let own = ["time", "command_line", "folder"];
    let Ok(Value::Object(fields)) = serde_json::to_value(start) else { return BTreeMap::new() };
    let known =
        fields.into_iter().filter(|(key, value)| !own.contains(&&**key) && !value.is_null());
    known.map(|(key, value)| (key, word(&value))).collect()
}

fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The experiments without their tags, which say what the user thinks of a run.
fn configs(runs: &[ComparedRun]) -> Vec<toml::Table> {
    let mut configs: Vec<toml::Table> = runs.iter().map(|run| run.config.clone()).collect();
    for config in &mut configs {
        if let Some(toml::Value::Table(identity)) = config.get_mut("experiment") {
            identity.remove("tags");
        }
    }
    configs
}

fn environment(runs: &[ComparedRun]) -> Rows<String> {
    let ranks = |run: &ComparedRun| Some(run.summary.devices.len().to_string());
    let devices = |run: &ComparedRun| {
        let kinds: BTreeSet<&str> = run.summary.devices.iter().map(String::as_str).collect();
        Some(kinds.into_iter().collect::<Vec<_>>().join(", "))
    };
    let mut rows: Rows<String> = vec![
        ("ranks".to_owned(), runs.iter().map(ranks).collect()),
        ("device".to_owned(), runs.iter().map(devices).collect()),
    ];
    let keys: BTreeSet<&String> = runs.iter().flat_map(|run| run.environment.keys()).collect();
    rows.extend(keys.into_iter().map(|key| {
        (key.clone(), runs.iter().map(|run| run.environment.get(key).cloned()).collect())
    }));
    rows.retain(|(_, values)| values.windows(2).any(|pair| pair[0] != pair[1]));
    rows
}

fn metrics(runs: &[ComparedRun], vocabulary: &Vocabulary) -> Rows<LastAndBest> {
    let names: BTreeSet<&String> = runs.iter().flat_map(|run| run.scalars.series.keys()).collect();
    let is_compared = |name: &&&String| {
        let by_epoch = names.iter().any(|other| ***other == format!("{name}_epoch"));
        !OF_STEPS.contains(&name.as_str()) && !by_epoch
    };
    let names: Vec<&String> = names.iter().filter(is_compared).copied().collect();
    let row = |name: &String| {
        let of = |run: &ComparedRun| {
            let points = run.scalars.series.get(name)?;
            let mode = vocabulary.mode_of(name.trim_end_matches("_epoch"));
            let values = points.iter().map(|point| point.value).filter(|value| value.is_finite());
            let best = match mode {
                Some(Mode::Min) => values.min_by(f64::total_cmp),
                Some(Mode::Max) => values.max_by(f64::total_cmp),
                None => None,
            };
            Some(LastAndBest { last: points.last()?.value, best })
        };
        (name.clone(), runs.iter().map(of).collect())
    };
    names.into_iter().map(row).collect()
}

fn draw(runs: &[ComparedRun], path: &Path) -> Result<bool, report::Error> {
    let has = |name: &str| runs.iter().any(|run| run.scalars.series.contains_key(name));
    let losses = ["val/loss", "train/loss"].into_iter().find(|name| has(name));
    let monitor = runs[0].summary.monitor.as_deref();
    let others = monitor.into_iter().chain(["val/accuracy", "train/accuracy"]);
    let second = others.into_iter().find(|name| has(name) && Some(*name) != losses);
    let names: Vec<&str> = losses.into_iter().chain(second).collect();
    if names.is_empty() {
        return Ok(false);
    }
    let by_epoch = runs.iter().all(|run| {
        let scalars = &run.scalars;
        scalars.steps_per_epoch > 0 && run.summary.step >= MIN_EPOCHS * scalars.steps_per_epoch
    });
    let unit = if by_epoch { Unit::Epoch } else { Unit::Step };
    let overlay = |name: &&str| Overlay {
        metric: (*name).to_owned(),
        unit,
        lines: (0..runs.len()).map(|at| line(at, runs, name, unit)).collect(),
    };
    let overlays: Vec<Overlay> = names.iter().map(overlay).collect();
    let ids: Vec<&str> = runs.iter().map(|run| run.summary.id.as_str()).collect();
    overlay::write(&overlays, &cut(&ids.join(" · "), 90), path)?;
    Ok(true)
}

/// A run's points under its number, and its name where there is room for all of them.
fn line(at: usize, runs: &[ComparedRun], name: &str, unit: Unit) -> (String, Vec<(f64, f64)>) {
    let run = &runs[at];
    let words = format!("{} {}", at + 1, cut(&run.summary.name, 12));
    let legend = if runs.len() > MAX_NAMED { (at + 1).to_string() } else { words };
    let per_epoch = if unit == Unit::Epoch { run.scalars.steps_per_epoch } else { 1 };
    let points = run.scalars.series.get(name).into_iter().flatten();
    let points = points.map(|point| (point.step as f64 / per_epoch as f64, point.value));
    (legend, points.collect())
}

impl Listing {
    /// Sorts the runs by the value of a metric, the best first; runs without it come last.
    pub fn sort_by_metric(&mut self, name: &str, vocabulary: &Vocabulary) -> Result<(), ErrorPage> {
        let measured = || self.runs.iter().flat_map(|run| run.metrics.keys().map(String::as_str));
        if !measured().any(|known| known == name) && !self.runs.is_empty() {
            let mut known: Vec<&str> = measured().collect();
            known.sort_unstable();
            known.dedup();
            let what = format!("no run has measured `{name}`");
            return Err(ErrorPage::refused(
                what,
                format!("sort by `start` or one of `{}`", known.join("`, `")),
            ));
        }
        let monitored = self.runs.iter().find(|run| run.monitor.as_deref() == Some(name));
        let mode = monitored.and_then(|run| run.mode).or_else(|| vocabulary.mode_of(name));
        let sign = if mode == Some(Mode::Max) { -1.0 } else { 1.0 };
        let order = |a: &Summary, b: &Summary| match (a.value(name), b.value(name)) {
            (Some(a), Some(b)) => (sign * a).total_cmp(&(sign * b)),
            (a, b) => {
                if a.is_some() {
                    Ordering::Less
                } else {
                    b.map_or(Ordering::Equal, |_| Ordering::Greater)
                }
            }
        };
        self.runs.sort_by(order);
        Ok(())
    }
}

impl Summary {
    /// The best value of the metric that the run monitors, the last one of another.
    pub fn value(&self, name: &str) -> Option<f64> {
        let best =
            self.best.filter(|_| self.monitor.as_deref() == Some(name)).map(|best| best.value);
        best.or_else(|| self.metrics.get(name).copied()).filter(|value| value.is_finite())
    }
}
