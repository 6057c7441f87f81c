//! A sweep as the page shows it: its trials with their values and results, and what mattered.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::files;
use crate::plan::Mode;
use crate::sweep::{self, State, Status};

/// One sweep.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SweepView {
    /// Its folder below the one that is looked into.
    pub(super) id: String,
    name: String,
    metric: String,
    goal: Mode,
    /// How it stands, in a line.
    words: String,
    parameters: Vec<ParameterView>,
    importance: Vec<Share>,
    trials: Vec<TrialView>,
}

/// A parameter of the search.
#[derive(Clone, Debug, Serialize)]
struct ParameterView {
    key: String,
    /// Whether it is drawn by magnitudes.
    log: bool,
}

/// How much of the trials' order a parameter alone explains, 0 to 1.
#[derive(Clone, Debug, Serialize)]
struct Share {
    key: String,
    share: Option<f64>,
}

/// One trial.
#[derive(Clone, Debug, Serialize)]
struct TrialView {
    number: u32,
    /// What the page calls its run by.
    run: String,
    state: State,
    values: BTreeMap<String, Value>,
    value: Option<f64>,
    seconds: f64,
}

impl SweepView {
    /// The sweep in `folder`, called `id` on the page.
    pub(super) fn read(folder: &Path, id: &str) -> Result<Self, sweep::Error> {
        let Status { story, holder, .. } = sweep::status(folder)?;
        let subject = &story.subject;
        let trials = &story.trials;
        let done = trials.iter().filter(|trial| trial.state != State::Running).count();
        let running = if holder.is_some() { ", running" } else { "" };
        let view = |trial: &sweep::Trial| TrialView {
            number: trial.number,
            run: format!("{}{}", prefix(id), trial.id()),
            state: trial.state,
            values: trial.values.iter().cloned().collect(),
            value: trial.value(subject.goal).filter(|value| value.is_finite()),
            seconds: trial.seconds,
        };
        Ok(Self {
            id: id.to_owned(),
            name: subject.name.clone(),
            metric: subject.metric.clone(),
            goal: subject.goal,
            words: format!("{done} of {} trials done{running}", subject.trials),
            parameters: parameters(&subject.search),
            importance: importance(folder),
            trials: trials.iter().map(view).collect(),
        })
    }
}

impl SweepView {
    /// The runs that it has given up.
    pub(super) fn pruned(&self) -> impl Iterator<Item = String> {
        let pruned = self.trials.iter().filter(|trial| trial.state == State::Pruned);
        pruned.map(|trial| trial.run.clone())
    }
}

/// What stands before the names of runs inside `id`.
fn prefix(id: &str) -> String {
    if id == "." { String::new() } else { format!("{id}/") }
}

/// What was searched, as the journal has it.
fn parameters(search: &Value) -> Vec<ParameterView> {
    let all = search.get("parameters").and_then(Value::as_array);
    let view = |parameter: &Value| {
        let log = parameter.get("distribution").is_some_and(|it| it == "log_uniform");
        Some(ParameterView { key: parameter.get("key")?.as_str()?.to_owned(), log })
    };
    all.into_iter().flatten().filter_map(view).collect()
}

/// As the sweep itself has written it down after its last trial.
fn importance(folder: &Path) -> Vec<Share> {
    let bytes = files::read(&folder.join(sweep::JSON)).unwrap_or_default();
    let results: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let shares = results.get("importance").and_then(Value::as_object);
    let share = |(key, share): (&String, &Value)| Share { key: key.clone(), share: share.as_f64() };
    shares.into_iter().flatten().map(share).collect()
}
