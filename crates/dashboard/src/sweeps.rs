//! View of a sweep on the page: its trials with their values and results, and the importance of
//! parameters.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::files;
use crate::plan::Mode;
use crate::sweep::{self, State, Status};

/// One sweep.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SweepView {
    /// Folder relative to the served one.
    pub(crate) id: String,
    name: String,
    metric: String,
    goal: Mode,
    /// Status in a line.
    words: String,
    parameters: Vec<ParameterView>,
    importance: Vec<Importance>,
    trials: Vec<TrialView>,
}

/// A parameter of the search.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct ParameterView {
    key: String,
    /// True for a logarithmic axis.
    log: bool,
}

/// Share of the trials' ranking that a parameter alone explains, 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Importance {
    key: String,
    share: Option<f64>,
}

/// One trial.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct TrialView {
    number: u32,
    /// Id of its run on the page.
    run: String,
    state: State,
    values: BTreeMap<String, Value>,
    value: Option<f64>,
    seconds: f64,
}

impl SweepView {
    /// The sweep in `folder`, called `id` on the page.
    pub(crate) fn read(folder: &Path, id: &str) -> Result<Self, sweep::Error> {
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

    /// Ids of the pruned trials' runs.
    pub(crate) fn pruned(&self) -> impl Iterator<Item = String> {
        let pruned = self.trials.iter().filter(|trial| trial.state == State::Pruned);
        pruned.map(|trial| trial.run.clone())
    }
}

/// Prefix of the ids of runs inside of `id`.
fn prefix(id: &str) -> String {
    if id == "." { String::new() } else { format!("{id}/") }
}

/// The parameters of a journalled search.
fn parameters(search: &Value) -> Vec<ParameterView> {
    let all = search.get("parameters").and_then(Value::as_array);
    let view = |parameter: &Value| {
        let distribution = parameter.get("distribution").and_then(Value::as_str);
        let log = distribution.is_some_and(|name| name.ends_with("log_uniform"));
        Some(ParameterView { key: parameter.get("key")?.as_str()?.to_owned(), log })
    };
    all.into_iter().flatten().filter_map(view).collect()
}

/// Reads the importance that the sweep wrote after its last trial.
fn importance(folder: &Path) -> Vec<Importance> {
    let bytes = files::read(&folder.join(sweep::JSON)).unwrap_or_default();
    let results: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let shares = results.get("importance").and_then(Value::as_object);
    let share =
        |(key, share): (&String, &Value)| Importance { key: key.clone(), share: share.as_f64() };
    shares.into_iter().flatten().map(share).collect()
}
