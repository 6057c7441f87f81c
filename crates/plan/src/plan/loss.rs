//! The loss, and whether the data has the targets that it needs.

use serde::{Deserialize, Serialize};

use crate::config::kind::Choice;
use crate::config::{Loaded, Problem};
use crate::plan::{DataFacts, Unfit};

/// The loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossPlan {
    /// The loss with all its options.
    pub kind: Choice,
    /// Targets that outputs are compared with.
    pub targets: Targets,
    /// True if a pass reads labels or weights in the CPU's memory.
    #[serde(default)]
    pub weighs_labels: bool,
    /// True if the model is compared with what it was at the start.
    #[serde(default)]
    pub needs_reference: bool,
}

/// Targets that a loss compares outputs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Targets {
    /// Labels: u32, or i64, of which some may not count. Predictions can then be right or wrong.
    Classes,
    /// For each class a 1 if a sample has it and a 0 if not, f32: (n, classes).
    MultiLabel,
    /// Numbers in the shape of the outputs.
    Numbers,
    /// Numbers over time: (n, time steps, series).
    Series,
    /// Log-probabilities of a reference for the chosen and the rejected answer of a pair, and the
    /// numbers of their tokens: (n, 4).
    Preferences,
}

/// Properties that a loss declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossFacts {
    /// Targets that outputs are compared with.
    pub targets: Targets,
    /// True if a pass reads labels or weights in the CPU's memory, so that it cannot be recorded.
    pub weighs_labels: bool,
    /// True if its operations have kernels for GPUs.
    pub runs_on_gpus: bool,
    /// True if it takes a probability of each class instead of a label.
    pub takes_probabilities: bool,
    /// True if the loss is never negative.
    pub is_never_negative: bool,
    /// True if it compares the model with what it was at the start.
    pub needs_reference: bool,
}

impl LossPlan {
    /// True if predictions are classes, which can be right or wrong.
    pub fn has_classes(&self) -> bool {
        self.targets == Targets::Classes
    }
}

/// The loss that the experiment chooses.
pub fn chosen(loaded: &Loaded) -> Choice {
    let config = &loaded.experiment.loss;
    Choice { name: config.name.clone(), options: config.options.clone() }
}

/// The plan of `[loss]`. Labels need data with classes; numbers need data without. `facts` returns
/// what a loss declares, `resolve` the loss with class weights as numbers.
pub(super) fn decide(
    loaded: &Loaded,
    data: &DataFacts,
    on_gpus: bool,
    facts: impl FnOnce(&Choice) -> Result<LossFacts, String>,
    resolve: impl FnOnce(&Choice) -> Result<Choice, Unfit>,
) -> Result<LossPlan, Problem> {
    let kind = chosen(loaded);
    let facts = facts(&kind).map_err(|what| loaded.problem("loss.name", what))?;
    if let Some(problem) = check_targets(loaded, data, facts.targets) {
        return Err(problem);
    }
    if let Some(key) = loaded.experiment.data.mixup.given()
        && !facts.takes_probabilities
    {
        let what = format!("mixes labels, but `{}` takes no probabilities of classes", kind.name);
        let help = "use `loss.name = \"cross_entropy\"`";
        return Err(loaded.problem(&format!("data.mixup.{key}"), what).help(help));
    }
    if on_gpus && !facts.runs_on_gpus {
        let what = format!("`{}` has no kernel for GPUs", kind.name);
        let help = "train on the CPU (`CUDA_VISIBLE_DEVICES=`), or choose another loss";
        return Err(loaded.problem("loss.name", what).help(help));
    }
    let kind = resolve(&kind).map_err(|unfit| {
        let key = format!("loss.{}", unfit.key);
        unfit.problem(|what| loaded.problem(&key, what))
    })?;
    let LossFacts { targets, weighs_labels, needs_reference, .. } = facts;
    Ok(LossPlan { kind, targets, weighs_labels, needs_reference })
}

/// A problem if the data has no such targets.
fn check_targets(loaded: &Loaded, data: &DataFacts, targets: Targets) -> Option<Problem> {
    let has_classes = !data.classes.is_empty();
    match (targets, has_classes) {
        (Targets::Preferences, _) if !data.holds_pairs() => Some(
            loaded
                .problem("loss.name", "compares pairs of answers, which this data does not have")
                .help("use `data.name = \"preferences\"`; or `cross_entropy` for single answers"),
        ),
        (Targets::Preferences, _) => None,
        _ if data.holds_pairs() => Some(
            loaded
                .problem("loss.name", "compares no pairs of answers, which this data holds")
                .help("use `dpo`, `simpo` or `orpo`; or `data.name = \"chat\"` for single answers"),
        ),
        (Targets::Classes, true) if data.multi_label => Some(
            loaded
                .problem("loss.name", "needs one class for each sample, but these may have several")
                .help(match loaded.experiment.data.name.as_str() {
                    "image_table" => {
                        "use `bce_with_logits`; or, if a column holds the class of each image, \
                         name it by `data.class_column`"
                    }
                    _ => "use `bce_with_logits`",
                }),
        ),
        (Targets::MultiLabel, _) if !data.multi_label => Some(
            loaded
                .problem("loss.name", "needs samples that may have several classes")
                .help("use `cross_entropy` where each has one"),
        ),
        (Targets::Classes, false) => Some(
            loaded
                .problem_at(
                    "loss.name",
                    place(loaded),
                    "needs classes, but the target holds numbers",
                )
                .help("use `mse` or `mae`"),
        ),
        (Targets::Series, false) if data.target.len() != 2 => Some(
            loaded
                .problem("loss.name", "compares series in time, which this data does not have")
                .help("use `mse` or `mae`, or data of the kind `csv_forecast`"),
        ),
        (Targets::Numbers | Targets::Series, true) => Some(
            loaded
                .problem("loss.name", "needs numbers, but the data has classes")
                .help("use `cross_entropy`"),
        ),
        _ => None,
    }
}

/// The loss itself where it was written, else the target.
fn place(loaded: &Loaded) -> &'static str {
    if loaded.is_given("loss.name") { "loss.name" } else { "data.target" }
}
