//! Sweeps for the tests of this module.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::json;

use crate::config::kind::{Choice, Options};
use crate::config::schema::Mode;
use crate::config::sweep::{Domain, Parameter, Search, Sweep};
use crate::config::values::Auto;
use crate::config::{Loaded, Vocabulary, load_text};
use crate::record::Screen;
use crate::sweep::journal::SweepSpec;
use crate::sweep::method::Methods;
use crate::sweep::pruner::Pruners;
use crate::sweep::request::{Machine, SweepRequest};
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
        start: Vec::new(),
        repeats: None,
        pruner: plain("none"),
        devices_per_trial: 1,
    }
}

/// Four trials for the highest accuracy.
pub(crate) fn subject() -> SweepSpec {
    SweepSpec {
        name: "s".into(),
        base: "b.toml".into(),
        metric: "val/accuracy".into(),
        goal: Mode::Max,
        trials: 4,
        search: json!({}),
        experiment: BTreeMap::new(),
        defaults: BTreeSet::new(),
    }
}

/// A trial of ten epochs of ten steps, with these reports, one after each epoch.
pub(crate) fn trial(number: u32, state: State, reports: &[f64]) -> Trial {
    let length = Length { steps_per_epoch: 10, total_steps: 100 };
    let report = |(epoch, value): (u64, &f64)| Report { step: 10 * epoch, value: Some(*value) };
    let reports = (1..).zip(reports).map(report).collect();
    Trial { state, reports, ..Trial::new(number, Vec::new(), length) }
}

/// The same trial with these values.
#[expect(clippy::needless_pass_by_value, reason = "written in place")]
pub(crate) fn with_values(mut trial: Trial, values: serde_json::Value) -> Trial {
    trial.values = values.as_object().unwrap().clone().into_iter().collect();
    trial
}

/// The same trial with a batch of which `steps` make an epoch.
pub(crate) fn of_batch(steps: u64, mut trial: Trial) -> Trial {
    let before = trial.length.steps_per_epoch;
    trial.reports.iter_mut().for_each(|report| report.step = report.step * steps / before);
    trial.length =
        Length { steps_per_epoch: steps, total_steps: trial.length.total_steps * steps / before };
    trial
}

/// A sweep in a temporary folder.
pub(crate) struct SweepFixture {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) sweep: Sweep,
    pub(crate) base: Loaded,
    pub(crate) methods: Methods,
    pub(crate) pruners: Pruners,
}

impl SweepFixture {
    pub(crate) fn new(method: &str, trials: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "schema = 1\n[model]\nname = \"mlp\"\n[data]\nname = \"shapes\"\n[train]\nepochs = 4\n\
             batch_size = 8\n[logging]\ndir = \"{0}\"\n[checkpoint]\ndir = \"{0}/c\"\n",
            folder.path().display()
        );
        let vocabulary = Vocabulary::open();
        let base = load_text(Path::new("base.toml"), &text, &[], &vocabulary).unwrap();
        let line = Domain::Uniform { min: 0.0, max: 1.0 };
        let search =
            Search { parameters: vec![Parameter::new("optimizer.lr", line)], ..search(method) };
        let sweep = Sweep {
            name: "s".into(),
            path: "s.toml".into(),
            base: "base.toml".into(),
            changes: Vec::new(),
            search,
            trials: Some(trials),
            trials_per_device: 1,
            concurrent_trials: Auto::Given(1),
            time: None,
            until: None,
            patience: None,
            max_failures: 3,
            keep_pruned_checkpoints: false,
        };
        let methods = Methods::default();
        let pruners = Pruners::default();
        Self { folder, sweep, base, methods, pruners }
    }

    pub(crate) fn order(&self) -> SweepRequest<'_> {
        self.order_on(Machine { cores: 8, gpus: 0 })
    }

    pub(crate) fn order_on(&self, machine: Machine) -> SweepRequest<'_> {
        let sweep = &self.sweep;
        let base = &self.base;
        let methods = &self.methods;
        let pruners = &self.pruners;
        let (deadline, extend) = (None, false);
        let retry_failed = false;
        let screen = Screen::Silent;
        SweepRequest {
            sweep,
            base,
            methods,
            pruners,
            machine,
            deadline,
            extend,
            retry_failed,
            earlier: &[],
            screen,
        }
    }
}
