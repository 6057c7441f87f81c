//! Outputs and targets -> the number that training minimises.
//!
//! Each loss is a file of its own: its options, what it compares, and its value. A mean over a
//! batch is one over what counts in it; means over several batches are put together by the engine.
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
mod huber;
mod mae;
mod mse;
mod sigmoid_focal;
mod smooth_l1;
#[cfg(test)]
mod testing;
mod time_frequency;
mod registered;

use std::fmt::Debug;

use candle_core::{DType, Result, Tensor};

use crate::config::kind::{Choice, Kind, Options};
use crate::ops::IGNORED_LABEL;
use crate::plan::{DataFacts, LossFacts, LossPlan, Targets, Unfit};
use crate::registry::{Family, Registry, Takes};
pub use bce_with_logits::BceWithLogits;
pub use class_weights::ClassWeights;
pub use cross_entropy::CrossEntropy;
pub use focal::Focal;
pub use huber::Huber;
pub use mae::Mae;
pub use mse::Mse;
pub use sigmoid_focal::SigmoidFocal;
pub use smooth_l1::SmoothL1;
pub use time_frequency::TimeFrequency;

/// A loss. It does the same on every rank.
pub trait Loss: Debug + Send + Sync {
    /// What it compares outputs with.
    fn targets(&self) -> Targets;

    /// Options that follow from the data, in numbers: weights that balance its classes.
    fn decided(&self, _data: &DataFacts) -> std::result::Result<Options, Unfit> {
        Ok(Options::new())
    }

    /// Mean over what counts in a batch, scalar f32, in the graph; a zero that the outputs have a
    /// part in if nothing counts.
    fn mean(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor>;

    /// [`Loss::mean`] of labels on a GPU in one pass over `outputs`, which may be written over.
    /// Loss, right answers and the `weight` of the pass are noted in `found`. `None` = there is no
    /// such way.
    #[cfg(feature = "cuda")]
    fn scored(
        &self,
        _outputs: &Tensor,
        _targets: &Tensor,
        _weight: f64,
        _found: &crate::ops::cuda::Found,
    ) -> Result<Option<Tensor>> {
        Ok(None)
    }

    /// What an evaluation measures: the mean without what is only for training.
    fn measured(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        self.mean(outputs, targets)
    }

    /// How much a batch of `samples` counts beside others in [`Loss::mean`], so that the mean over
    /// batches is the one over all that they hold. In samples, of which each that is whole counts
    /// 1.
    fn weight(&self, targets: &Tensor, samples: usize) -> Result<f64> {
        counted_samples(targets, samples)
    }

    /// Whether a pass reads its labels, or numbers of its own, in the CPU's memory, or full batches
    /// weigh differently: such passes cannot be recorded.
    fn weighs_labels(&self) -> bool {
        false
    }

    /// Whether its operations have kernels for GPUs. Those of Candle have.
    fn runs_on_gpus(&self) -> bool {
        false
    }

    /// Whether no outputs have a loss below zero, so that none can be expected.
    fn is_never_negative(&self) -> bool {
        false
    }

    /// Whether [`Loss::mean`] also takes a probability of each class, (n, classes) f32: what
    /// `data.mixup` makes of labels.
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

impl<K: Kind + Loss> Takes<K> for LossFamily {
    fn boxed(kind: K) -> Box<dyn Loss> {
        Box::new(kind)
    }
}

/// Losses that a program knows.
pub type Losses = Registry<LossFamily>;

/// What planning needs to know of a loss.
pub fn facts(loss: &dyn Loss) -> LossFacts {
    LossFacts {
        targets: loss.targets(),
        weighs_labels: loss.weighs_labels(),
        runs_on_gpus: loss.runs_on_gpus(),
        takes_probabilities: loss.takes_probabilities(),
        is_never_negative: loss.is_never_negative(),
    }
}

/// The plan of `loss`.
pub fn plan<K: Kind + Loss>(loss: &K) -> LossPlan {
    let kind = Choice::of(loss);
    let targets = loss.targets();
    LossPlan { kind, targets, weighs_labels: loss.weighs_labels() }
}

/// Each token of a text as a row of its own: (n, tokens, classes) and (n, tokens) -> (rows,
/// classes) and (rows).
pub fn rows(outputs: &Tensor, labels: &Tensor) -> Result<(Tensor, Tensor)> {
    if labels.rank() < 2 {
        return Ok((outputs.clone(), labels.clone()));
    }
    Ok((outputs.flatten_to(1)?, labels.flatten_all()?))
}

/// Labels that are not [`IGNORED_LABEL`], which only i64 labels can be.
pub fn counted(labels: &Tensor) -> Result<usize> {
    if labels.dtype() != DType::I64 {
        return Ok(labels.elem_count());
    }
    let labels = labels.flatten_all()?.to_vec1::<i64>()?;
    Ok(labels.into_iter().filter(|&label| label != IGNORED_LABEL).count())
}

/// How much a batch of `samples` counts where all labels weigh the same: by those that count, so
/// that the mean over batches is the mean over labels.
pub fn counted_samples(targets: &Tensor, samples: usize) -> Result<f64> {
    if targets.dtype() != DType::I64 {
        return Ok(samples as f64);
    }
    Ok((samples * counted(targets)?) as f64 / targets.elem_count().max(1) as f64)
}
