//! Update rule and learning rate, with PyTorch's numbers where none were given.

use serde::{Deserialize, Serialize};

use crate::config::kind::Choice;
use crate::config::{Loaded, Problem};
use crate::plan::{BatchPlan, KindFacts, ModelFacts, ParameterGroup, ScalingRule, scale_lr};
use train_numbers::units::GlobalBatchSize;

/// Update rule with all its numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimizerPlan {
    /// Which rule, with all its options.
    pub rule: Choice,
    /// Names of its state tensors of a parameter, each of the parameter's shape.
    pub state: Vec<String>,
    /// What it does otherwise with matrices, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matrices: Option<Matrices>,
    /// What a schedule of momentum moves, if the rule has it.
    pub momentum: Option<String>,
    /// Learning rate after scaling by the global batch size; schedules multiply it.
    pub lr: f64,
    /// Learning rate as written.
    pub base_lr: f64,
    /// How it was scaled.
    pub scaling: ScalingRule,
    /// Global batch size that `base_lr` was tuned for.
    pub base_batch_size: GlobalBatchSize,
    /// L2 penalty or decoupled decay.
    pub weight_decay: f64,
    /// Whether one-dimensional parameters are left without decay.
    pub no_decay_on_1d: bool,
    /// Whether the parameters are on GPUs and the update is on the CPU.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_cpu: bool,
    /// Groups of parameters; empty = all are treated alike.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<ParameterGroup>,
    /// The group of each parameter in registration order, where there are groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub group_of: Vec<usize>,
}

/// A tensor that an optimizer keeps of a parameter between steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(String, Extent)", into = "(String, Extent)")]
pub struct StateTensor {
    /// As in PyTorch's state dict: `exp_avg`.
    pub name: String,
    /// Which values of the parameter it has.
    pub extent: Extent,
}

impl StateTensor {
    /// A tensor with a value for each element of the parameter.
    pub fn whole(name: impl Into<String>) -> Self {
        Self { name: name.into(), extent: Extent::Whole }
    }

    /// Its shape for a parameter of this shape.
    pub fn shape(&self, parameter: &[usize]) -> Vec<usize> {
        self.extent.of(parameter)
    }

    /// Its elements for a parameter of this shape.
    pub fn elem_count(&self, parameter: &[usize]) -> usize {
        self.shape(parameter).iter().product()
    }
}

impl From<(String, Extent)> for StateTensor {
    fn from((name, extent): (String, Extent)) -> Self {
        Self { name, extent }
    }
}

impl From<StateTensor> for (String, Extent) {
    fn from(StateTensor { name, extent }: StateTensor) -> Self {
        (name, extent)
    }
}

/// How much of a state tensor there is of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Extent {
    /// One value of each element.
    Whole,
    /// One of each row.
    Rows,
    /// One of each column.
    Columns,
}

impl Extent {
    /// Its shape for a tensor of this shape, whose last two dimensions are rows and columns.
    pub fn of(self, shape: &[usize]) -> Vec<usize> {
        let mut of = shape.to_vec();
        match (self, of.as_mut_slice()) {
            (Self::Rows, [.., _, columns]) => *columns = 1,
            (Self::Columns, [.., rows, _]) => *rows = 1,
            _ => {}
        }
        of
    }
}

/// What an update rule does otherwise with matrices than with all else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Matrices {
    /// Whether only those of hidden layers count, with two dimensions, neither embeddings nor the
    /// head; else every tensor of two dimensions or more does.
    pub only_hidden: bool,
    /// The state tensors of each of them.
    pub state: Vec<StateTensor>,
    /// Multiplies the learning rate of all else.
    pub others_lr_factor: f64,
}

impl Matrices {
    /// Whether this parameter is one of them.
    pub(crate) fn holds(&self, name: &str, shape: &[usize], model: &ModelFacts) -> bool {
        let is_hidden = || {
            shape.len() == 2
                && !model.embeddings.iter().any(|embedding| embedding == name)
                && !model.head.iter().any(|head| name.starts_with(head.as_str()))
        };
        if self.only_hidden { is_hidden() } else { shape.len() >= 2 }
    }
}

/// What an update rule says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OptimizerFacts {
    /// Names of its state tensors of a parameter, each of the parameter's shape.
    pub state: Vec<String>,
    /// What it does otherwise with matrices, if it does.
    #[serde(default)]
    pub matrices: Option<Matrices>,
    /// Coefficient of its weight decay.
    pub weight_decay: f64,
    /// The option that a schedule of momentum moves.
    pub momentum: Option<String>,
    /// Whether it has a kernel for GPUs.
    pub has_gpu_kernel: bool,
}

impl OptimizerPlan {
    /// The rule with a learning rate that does not depend on the batch size.
    pub fn new(rule: Choice, facts: OptimizerFacts, lr: f64) -> Self {
        let OptimizerFacts { state, matrices, weight_decay, momentum, .. } = facts;
        Self {
            rule,
            state,
            matrices,
            momentum,
            lr,
            base_lr: lr,
            scaling: ScalingRule::None,
            base_batch_size: GlobalBatchSize::ONE,
            weight_decay,
            no_decay_on_1d: false,
            on_cpu: false,
            groups: Vec::new(),
            group_of: Vec::new(),
        }
    }

    /// The group of the parameter with this place in registration order, if there are groups.
    pub fn group(&self, parameter: usize) -> Option<&ParameterGroup> {
        self.groups.get(*self.group_of.get(parameter)?)
    }

    /// Whether a parameter takes part in the step after `done` finished ones.
    pub fn is_trained(&self, parameter: usize, done: u64) -> bool {
        self.group(parameter).is_none_or(|group| group.is_trained(done))
    }

    /// Whether a parameter takes part in any step.
    pub fn is_ever_trained(&self, parameter: usize) -> bool {
        self.group(parameter).is_none_or(ParameterGroup::is_ever_trained)
    }

    /// Elements of each parameter of `model` that takes part in some step.
    pub(crate) fn trained(&self, model: &ModelFacts) -> Vec<usize> {
        let lengths = model.lengths().enumerate();
        lengths.filter(|&(index, _)| self.is_ever_trained(index)).map(|(_, n)| n).collect()
    }

    /// The state tensors of the parameter with this place in registration order.
    pub fn state_of(&self, parameter: usize) -> Vec<StateTensor> {
        match &self.matrices {
            Some(matrices) if self.group(parameter).is_some_and(|group| group.is_matrix) => {
                matrices.state.clone()
            }
            _ => self.state.iter().map(StateTensor::whole).collect(),
        }
    }

    /// Elements of the state tensors of all of `n` parameters.
    pub fn n_state(&self, n: usize) -> usize {
        if self.groups.is_empty() {
            return self.state.len() * n;
        }
        let trained = self.groups.iter().filter(|group| group.is_ever_trained());
        trained.map(|group| group.n_state).sum()
    }

    /// Weight decay of a parameter with so many dimensions.
    pub fn weight_decay_of(&self, parameter: usize, dimensions: usize) -> f64 {
        match self.group(parameter) {
            Some(group) => group.weight_decay,
            None if self.no_decay_on_1d && dimensions <= 1 => 0.0,
            None => self.weight_decay,
        }
    }

    /// Parameters, of `n` altogether, that keep their values for the whole run.
    pub fn n_frozen(&self) -> usize {
        let frozen = self.groups.iter().filter(|group| !group.is_ever_trained());
        frozen.map(|group| group.n_parameters).sum()
    }
}

/// The update rule as asked, at the rate that the batch asks for.
pub(crate) fn decide(
    loaded: &Loaded,
    batch: &BatchPlan,
    on_gpus: bool,
    kinds: &dyn KindFacts,
) -> Result<OptimizerPlan, Problem> {
    let asked = &loaded.experiment.optimizer;
    let scaling = loaded.experiment.lr_scaling.rule;
    let Some(base_batch_size) = GlobalBatchSize::new(loaded.experiment.lr_scaling.base_batch_size)
    else {
        return Err(loaded.problem("lr_scaling.base_batch_size", "must be at least 1"));
    };
    let rule = Choice { name: asked.name.clone(), options: asked.options.clone() };
    let facts = kinds.optimizer(&rule).map_err(|what| loaded.problem("optimizer.name", what))?;
    Ok(OptimizerPlan {
        lr: scale_lr(scaling, asked.lr, base_batch_size, batch.global),
        scaling,
        base_batch_size,
        no_decay_on_1d: asked.no_decay_on_1d,
        on_cpu: on_gpus && !facts.has_gpu_kernel,
        ..OptimizerPlan::new(rule, facts, asked.lr)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_tensor_is_written_as_its_name_and_extent() {
        let tensor = StateTensor { name: "row_var".to_owned(), extent: Extent::Rows };
        let written = serde_json::to_string(&tensor).unwrap();
        assert_eq!(written, r#"["row_var","rows"]"#);
        assert_eq!(serde_json::from_str::<StateTensor>(&written).unwrap(), tensor);
        assert_eq!(tensor.shape(&[2, 3, 4]), [2, 3, 1]);
    }
}
