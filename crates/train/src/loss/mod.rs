//! Outputs and targets -> the number that training minimises.
//!
//! A loss is its options, its kind of targets, and a mean over the labels of a batch that count.
//! The engine combines the means of several batches.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use ddprun_plan::config::kind::Choice;
//! use ddprun_train::loss::{Huber, Losses};
//!
//! let mut choice = Choice::of(&Huber::default());
//! choice.set("delta", 0.5);
//! let huber = Losses::default().build(&choice).unwrap();
//! let (outputs, targets) = (Tensor::new(&[[2f32]], &Device::Cpu)?, Tensor::new(&[[0f32]], &Device::Cpu)?);
//! assert_eq!(huber.mean(&outputs, &targets)?.to_scalar::<f32>()?, 0.875);
//! # Ok::<(), candle_core::Error>(())
//! ```

mod bce_with_logits;
mod class_weights;
mod cross_entropy;
mod focal;
mod preference;
mod regression;
mod sigmoid_focal;

use std::fmt::Debug;

use candle_core::{DType, Result, Tensor, bail};

use crate::config::kind::{Choice, Kind, Options};
use crate::ops::IGNORED_LABEL;
use crate::plan::{DataFacts, LossFacts, LossPlan, Targets, Unfit};
use crate::registry::{Accepts, Family, Registered, Registry};
pub use bce_with_logits::BceWithLogits;
pub use class_weights::ClassWeights;
pub use cross_entropy::CrossEntropy;
pub use focal::Focal;
pub use preference::{Dpo, DpoLoss, Orpo, SimPo};
pub use regression::{Huber, Mae, Mse, SmoothL1, TimeFrequency};
pub use sigmoid_focal::SigmoidFocal;

/// A loss. It does the same on every rank.
pub trait Loss: Debug + Send + Sync {
    /// Kind of targets that it compares outputs with.
    fn targets(&self) -> Targets;

    /// Options computed from the data, such as weights that balance its classes.
    fn options_from_data(&self, _data: &DataFacts) -> std::result::Result<Options, Unfit> {
        Ok(Options::new())
    }

    /// Mean over the labels of a batch that count, scalar f32, in the graph. If none counts, a zero
    /// with a gradient of zeros.
    fn mean(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor>;

    /// [`Loss::mean`] of labels on a GPU in one pass over `outputs`, which may be overwritten. Adds
    /// loss, right answers and the `weight` of the pass to `numbers`. `None` = it has no such kernel.
    #[cfg(feature = "cuda")]
    fn scored(
        &self,
        _outputs: &Tensor,
        _targets: &Tensor,
        _weight: f64,
        _found: &crate::ops::cuda::PassNumbers,
    ) -> Result<Option<Tensor>> {
        Ok(None)
    }

    /// The mean in evaluations, without label smoothing, class weights and the like.
    fn measured(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        self.mean(outputs, targets)
    }

    /// Weight of a batch of `samples` in a mean over batches, so that this is the mean over all
    /// their labels. In samples: one of which all labels count has the weight 1.
    fn weight(&self, targets: &Tensor, samples: usize) -> Result<f64> {
        counted_samples(targets, samples)
    }

    /// True if a pass reads labels or other values on the CPU, or if full batches differ in weight:
    /// such passes cannot be recorded as a CUDA graph.
    fn weighs_labels(&self) -> bool {
        false
    }

    /// True if its operations have kernels for GPUs, as all of Candle's have.
    fn runs_on_gpus(&self) -> bool {
        false
    }

    /// True if the loss is never below zero, so that no such value can be expected.
    fn is_never_negative(&self) -> bool {
        false
    }

    /// True if it compares the model with what it was at the start.
    fn needs_reference(&self) -> bool {
        false
    }

    /// Rewards of the chosen and the rejected answer of each pair; only of a loss of preferences.
    fn rewards(&self, _outputs: &Tensor, _targets: &Tensor) -> Result<Vec<[f64; 2]>> {
        bail!("a loss without rewards")
    }

    /// True if [`Loss::mean`] also takes a probability of each class, (n, classes) f32, as
    /// `data.mixup` makes them of labels.
    fn takes_probabilities(&self) -> bool {
        false
    }
}

/// `[loss]`
#[derive(Debug)]
pub enum LossFamily {}

impl Family for LossFamily {
    const TABLE: &'static str = "loss";
    const NOUN: &'static str = "loss";
    type Object = dyn Loss;
}

impl<K: Kind + Loss> Accepts<K> for LossFamily {
    fn boxed(kind: K) -> Box<dyn Loss> {
        Box::new(kind)
    }
}

/// Registry of losses.
pub type Losses = Registry<LossFamily>;

impl Registered for LossFamily {
    fn registered() -> Losses {
        let mut all = Losses::empty();
        all.add::<CrossEntropy>();
        all.add::<Mse>();
        all.add::<Mae>();
        all.add::<Huber>();
        all.add::<SmoothL1>();
        all.add::<Focal>();
        all.add::<BceWithLogits>();
        all.add::<SigmoidFocal>();
        all.add::<TimeFrequency>();
        all.add::<Dpo>();
        all.add::<SimPo>();
        all.add::<Orpo>();
        all
    }
}

/// Properties of a loss that planning needs.
pub fn facts(loss: &dyn Loss) -> LossFacts {
    LossFacts {
        targets: loss.targets(),
        weighs_labels: loss.weighs_labels(),
        runs_on_gpus: loss.runs_on_gpus(),
        takes_probabilities: loss.takes_probabilities(),
        is_never_negative: loss.is_never_negative(),
        needs_reference: loss.needs_reference(),
    }
}

/// The plan of `loss`.
pub fn plan<K: Kind + Loss>(loss: &K) -> LossPlan {
    let kind = Choice::of(loss);
    let targets = loss.targets();
    let needs_reference = loss.needs_reference();
    LossPlan { kind, targets, weighs_labels: loss.weighs_labels(), needs_reference }
}

/// Flattens texts to one row per token: (n, tokens, classes) and (n, tokens) -> (rows, classes) and
/// (rows).
pub fn rows(outputs: &Tensor, labels: &Tensor) -> Result<(Tensor, Tensor)> {
    if labels.rank() < 2 {
        return Ok((outputs.clone(), labels.clone()));
    }
    Ok((outputs.flatten_to(1)?, labels.flatten_all()?))
}

/// Number of labels other than [`IGNORED_LABEL`], which only i64 labels can be.
pub fn counted(labels: &Tensor) -> Result<usize> {
    if labels.dtype() != DType::I64 {
        return Ok(labels.elem_count());
    }
    let labels = labels.flatten_all()?.to_vec1::<i64>()?;
    Ok(labels.into_iter().filter(|&label| label != IGNORED_LABEL).count())
}

/// [`Loss::weight`] of a batch of `samples` whose labels have equal weights: the share of labels
/// that count, in samples.
pub fn counted_samples(targets: &Tensor, samples: usize) -> Result<f64> {
    if targets.dtype() != DType::I64 {
        return Ok(samples as f64);
    }
    Ok((samples * counted(targets)?) as f64 / targets.elem_count().max(1) as f64)
}

/// Helpers of the losses' tests.
#[cfg(test)]
mod testing {
    use candle_core::{Device, Tensor, Var};
    use serde_json::Value;

    use crate::loss::Loss;
    use crate::plan::DataFacts;

    /// Data of three classes that are not counted.
    pub(super) fn three_classes() -> DataFacts {
        DataFacts {
            n_train: 10,
            classes: ["a", "b", "c"].map(str::to_owned).into(),
            ..DataFacts::default()
        }
    }

    /// The values recorded by `tests/golden/losses.py`.
    pub(super) fn golden() -> Value {
        serde_json::from_str(include_str!("../../../../tests/golden/losses.json")).unwrap()
    }

    pub(super) fn numbers(value: &Value) -> Vec<f64> {
        value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
    }

    /// (4, 3) recorded numbers.
    pub(super) fn recorded(name: &str) -> Tensor {
        let values = numbers(&golden()[name]).iter().map(|&value| value as f32).collect();
        Tensor::from_vec(values, (4, 3), &Device::Cpu).unwrap()
    }

    /// The recorded labels, as i64.
    pub(super) fn labels(name: &str) -> Tensor {
        let labels: Vec<i64> = serde_json::from_value(golden()[name].clone()).unwrap();
        let n = labels.len();
        Tensor::from_vec(labels, n, &Device::Cpu).unwrap()
    }

    /// Compares value and gradient with those of `tests/golden/losses.py`.
    #[track_caller]
    pub(super) fn check(name: &str, loss: &dyn Loss, targets: &Tensor) {
        let golden = golden();
        let outputs = Var::from_tensor(&recorded("outputs")).unwrap();
        let value = loss.mean(&outputs, targets).unwrap();
        let gradients = value.backward().unwrap();
        let gradient = gradients.get(&outputs).unwrap().flatten_all().unwrap();
        let expected = golden[name]["value"].as_f64().unwrap();
        let found = f64::from(value.to_scalar::<f32>().unwrap());
        assert!(
            (found - expected).abs() < 2e-7 * expected.max(1.0),
            "{name}: {found}, not {expected}"
        );
        let expected = numbers(&golden[name]["gradient"]);
        for (slope, expected) in gradient.to_vec1::<f32>().unwrap().iter().zip(expected) {
            let error = (f64::from(*slope) - expected).abs();
            assert!(error < 6e-8 * expected.abs().max(1.0), "{name}: {slope}, not {expected}");
        }
    }
}
