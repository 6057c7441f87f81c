//! The loss, and whether the data has what it compares with.

use serde::{Deserialize, Serialize};

use crate::config::{Loaded, Problem};
use crate::plan::{DataFacts, LossKind};

/// The loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossPlan {
    /// Which.
    pub kind: LossKind,
    /// Cross-entropy only; 0 otherwise.
    pub label_smoothing: f64,
    /// Weight of the frequencies; 0 for other losses.
    #[serde(default)]
    pub alpha: f64,
}

impl LossPlan {
    /// What an evaluation measures: the loss without label smoothing, so that it says the same whatever a run smooths.
    #[must_use]
    pub fn measured(self) -> Self {
        Self { label_smoothing: 0.0, ..self }
    }
}

/// Cross-entropy needs classes; the losses of numbers need data without.
pub(crate) fn decide(loaded: &Loaded, data: &DataFacts) -> Result<LossPlan, Problem> {
    let asked = &loaded.experiment.loss;
    let has_classes = !data.classes.is_empty();
    match (asked.name, has_classes) {
        (LossKind::CrossEntropy, false) => Err(loaded
            .problem_at("loss.name", place(loaded), "needs classes, but the target holds numbers")
            .help("use `mse` or `mae`")),
        (LossKind::TimeFrequency, false) if data.target.len() != 2 => Err(loaded
            .problem("loss.name", "compares series in time, which this data does not have")
            .help("use `mse` or `mae`, or data of the kind `csv_forecast`")),
        (LossKind::Mse | LossKind::Mae | LossKind::TimeFrequency, true) => Err(loaded
            .problem("loss.name", "needs numbers, but the data has classes")
            .help("use `cross_entropy`")),
        (kind, _) => Ok(LossPlan {
            kind,
            label_smoothing: asked.label_smoothing.unwrap_or(0.0),
            alpha: asked.alpha.unwrap_or(0.0),
        }),
    }
}

/// The loss itself where it was written, else the target.
fn place(loaded: &Loaded) -> &'static str {
    if loaded.is_given("loss.name") { "loss.name" } else { "data.target" }
}
