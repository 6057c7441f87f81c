//! What the tests of this room search for.

use std::collections::BTreeMap;

use serde_json::json;

use crate::config::kind::{Choice, Options};
use crate::config::schema::Mode;
use crate::config::sweep::Search;
use crate::sweep::journal::Subject;
use crate::sweep::trial::{Length, Report, State, Trial};

/// A search without parameters.
pub(crate) fn search(method: &str) -> Search {
    let plain = |name: &str| Choice { name: name.to_owned(), options: Options::new() };
    Search {
        method: plain(method),
        metric: "val/loss".into(),
        goal: Mode::Min,
        seed: 1,
        parameters: Vec::new(),
        constraints: Vec::new(),
        list: Vec::new(),
        pruner: plain("none"),
        devices_per_trial: 1,
    }
}

/// Four trials for the highest accuracy.
pub(crate) fn subject() -> Subject {
    Subject {
        name: "s".into(),
        base: "b.toml".into(),
        metric: "val/accuracy".into(),
        goal: Mode::Max,
        trials: 4,
        search: json!({}),
        experiment: BTreeMap::new(),
    }
}

/// A trial of ten epochs of ten steps, with these reports, one after each epoch.
pub(crate) fn trial(number: u32, state: State, reports: &[f64]) -> Trial {
    let length = Length { steps_per_epoch: 10, total_steps: 100 };
    let report = |(epoch, value): (u64, &f64)| Report { step: 10 * epoch, value: Some(*value) };
    let reports = (1..).zip(reports).map(report).collect();
    Trial { state, reports, ..Trial::new(number, Vec::new(), length) }
}

/// The same trial with a batch of which `steps` make an epoch.
pub(crate) fn of_batch(steps: u64, mut trial: Trial) -> Trial {
    let before = trial.length.steps_per_epoch;
    trial.reports.iter_mut().for_each(|report| report.step = report.step * steps / before);
    trial.length =
        Length { steps_per_epoch: steps, total_steps: trial.length.total_steps * steps / before };
    trial
}
