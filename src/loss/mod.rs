//! Outputs and targets -> the number that training minimises.
//!
//! Each loss is a file of its own: its options, what it compares, and its value. A mean over a batch is one over what
//! counts in it; means over several batches are put together by the engine.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use ddprun::config::kind::Choice;
//! use ddprun::loss::{Huber, Losses};
//!
//! let mut choice = Choice::of(&Huber::default());
//! choice.set("delta", 0.5);
//! let huber = Losses::default().build(&choice).unwrap();
//! let (outputs, targets) = (Tensor::new(&[[2f32]], &Device::Cpu)?, Tensor::new(&[[0f32]], &Device::Cpu)?);
//! assert_eq!(huber.mean(&outputs, &targets)?.to_scalar::<f32>()?, 0.875);
//! # Ok::<(), candle_core::Error>(())
//! ```

mod cross_entropy;
mod huber;
mod mae;
mod mse;
mod time_frequency;

use std::fmt::Debug;

use candle_core::{DType, Result, Tensor};

use crate::config::kind::{Choice, Kind};
use crate::ops::IGNORED_LABEL;
use crate::plan::{LossFacts, LossPlan, Targets};
use crate::registry::{Family, Member, Registry};
pub use cross_entropy::CrossEntropy;
pub use huber::Huber;
pub use mae::Mae;
pub use mse::Mse;
pub use time_frequency::TimeFrequency;

/// A loss. It does the same on every rank.
pub trait Loss: Debug + Send + Sync {
    /// What it compares outputs with.
    fn targets(&self) -> Targets;

    /// Mean over what counts in a batch, scalar f32, in the graph; a zero that the outputs have a part in if nothing counts.
    ///
    /// # Errors
    ///
    /// Shapes or labels that do not fit.
    fn mean(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor>;

    /// What an evaluation measures: the mean without what is only for training.
    ///
    /// # Errors
    ///
    /// As [`Loss::mean`].
    fn measured(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        self.mean(outputs, targets)
    }

    /// Whether its operations have kernels for GPUs.
    fn runs_on_gpus(&self) -> bool {
        false
    }

    /// Whether [`Loss::mean`] also takes a probability of each class, (n, classes) f32: what `data.mixup` makes of labels.
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

impl<K: Kind + Loss> Member<LossFamily> for K {
    fn boxed(self) -> Box<dyn Loss> {
        Box::new(self)
    }
}

/// Losses that a program knows.
pub type Losses = Registry<LossFamily>;

impl Default for Losses {
    /// Those that come with ddprun.
    fn default() -> Self {
        let mut all = Self::empty();
        all.add::<CrossEntropy>();
        all.add::<Mse>();
        all.add::<Mae>();
        all.add::<Huber>();
        all.add::<TimeFrequency>();
        all
    }
}

/// What planning needs to know of a loss.
pub fn facts(loss: &dyn Loss) -> LossFacts {
    LossFacts {
        targets: loss.targets(),
        runs_on_gpus: loss.runs_on_gpus(),
        takes_probabilities: loss.takes_probabilities(),
    }
}

/// The plan of `loss`.
pub fn plan<K: Kind + Loss>(loss: &K) -> LossPlan {
    LossPlan { kind: Choice::of(loss), targets: loss.targets() }
}

/// Each token of a text as a row of its own: (n, tokens, classes) and (n, tokens) -> (rows, classes) and (rows).
///
/// # Errors
///
/// Shapes that do not fit.
pub fn rows(outputs: &Tensor, labels: &Tensor) -> Result<(Tensor, Tensor)> {
    if labels.rank() < 2 {
        return Ok((outputs.clone(), labels.clone()));
    }
    Ok((outputs.flatten_to(1)?, labels.flatten_all()?))
}

/// Labels that are not [`IGNORED_LABEL`], which only i64 labels can be.
///
/// # Errors
///
/// The device's.
pub fn counted(labels: &Tensor) -> Result<usize> {
    if labels.dtype() != DType::I64 {
        return Ok(labels.elem_count());
    }
    let labels = labels.flatten_all()?.to_vec1::<i64>()?;
    Ok(labels.into_iter().filter(|&label| label != IGNORED_LABEL).count())
}
