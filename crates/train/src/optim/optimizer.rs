//! The family of update rules.

use std::fmt::Debug;

use crate::config::kind::{Choice, Kind};
#[cfg(feature = "cuda")]
use crate::ops::cuda::Rule;
use crate::optim::block::Block;
use crate::plan::{Matrices, OptimizerFacts, OptimizerPlan};
use crate::registry::{Accepts, Family, Registry};

/// An update rule for the elements of a parameter. It does the same on every rank.
pub trait Optimizer: Debug + Send + Sync {
    /// Names of the state tensors that each parameter has between steps, in its shape and initially
    /// zero. Checkpoints use these names, which should be those of PyTorch's state dict.
    fn state(&self) -> Vec<&'static str>;

    /// State tensors and learning rates of matrices, if they differ from those of other parameters.
    fn matrices(&self) -> Option<Matrices> {
        None
    }

    /// True if an element's update depends on others of its tensor: a block is then a whole
    /// parameter.
    fn takes_whole_tensors(&self) -> bool {
        false
    }

    /// Weight decay.
    fn weight_decay(&self) -> f64;

    /// Name of the option that a schedule of momentum changes, if the rule has one.
    fn momentum(&self) -> Option<&'static str> {
        None
    }

    /// Updates a block in one step, by [`Block::each`] or [`Block::each_with_state`].
    fn update(&self, block: &mut Block<'_>, step: &Step);

    /// True if it has a kernel for GPUs. Without one, gradients are copied to the CPU and new
    /// values back.
    fn has_gpu_kernel(&self) -> bool {
        false
    }

    /// Arguments of its kernel for a step, if it has one.
    #[cfg(feature = "cuda")]
    fn on_gpu(&self, step: &Step) -> Option<Rule> {
        let _ = step;
        None
    }
}

/// Rates of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Learning rate.
    pub lr: f64,
    /// Weight decay of this parameter: zero where it is exempt.
    pub weight_decay: f64,
    /// Number of this update of the parameter, from 1.
    pub count: u64,
    /// Value in place of the option [`Optimizer::momentum`], if a schedule changes it.
    pub momentum: Option<f64>,
}

impl Step {
    /// The momentum of this step, by default `option`; a schedule does not change one of zero.
    pub(super) fn momentum_or(&self, option: f64) -> f64 {
        if option == 0.0 { option } else { self.momentum.unwrap_or(option) }
    }
}

/// `[optimizer]`
#[derive(Debug)]
pub enum OptimizerFamily {}

impl Family for OptimizerFamily {
    const TABLE: &'static str = "optimizer";
    const NOUN: &'static str = "optimizer";
    type Object = dyn Optimizer;
}

impl<K: Kind + Optimizer> Accepts<K> for OptimizerFamily {
    fn boxed(kind: K) -> Box<dyn Optimizer> {
        Box::new(kind)
    }
}

/// Registry of update rules.
pub type Optimizers = Registry<OptimizerFamily>;

/// Properties of a rule that planning needs.
pub fn facts(rule: &dyn Optimizer) -> OptimizerFacts {
    OptimizerFacts {
        state: rule.state().into_iter().map(str::to_owned).collect(),
        matrices: rule.matrices(),
        weight_decay: rule.weight_decay(),
        momentum: rule.momentum().map(str::to_owned),
        has_gpu_kernel: rule.has_gpu_kernel(),
    }
}

/// The plan of `rule` at the learning rate `lr`, which does not depend on the batch size.
pub fn plan<K: Kind + Optimizer>(rule: &K, lr: f64) -> OptimizerPlan {
    OptimizerPlan::new(Choice::of(rule), facts(rule), lr)
}
