//! Update rule, learning rate and clipping, with PyTorch's numbers where none were given.

use serde::{Deserialize, Serialize};

use crate::config::kind::Choice;
use crate::config::{Experiment, Loaded, Problem};
use crate::plan::{BatchPlan, ModelFacts, ScalingRule};
use crate::terminal::format_number;
use train_numbers::units::GlobalBatchSize;

/// Update rule with all its numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimizerPlan {
    /// The optimizer with all its options.
    pub rule: Choice,
    /// Names of the state tensors of a parameter, each of the parameter's shape.
    pub state: Vec<String>,
    /// Special treatment of matrices, if the rule has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matrices: Option<Matrices>,
    /// The option that a momentum schedule changes, if the rule has one.
    pub momentum: Option<String>,
    /// Learning rate after scaling by the global batch size; schedules multiply it.
    pub lr: f64,
    /// Learning rate as written.
    pub base_lr: f64,
    /// Rule by which the learning rate was scaled.
    pub scaling: ScalingRule,
    /// Global batch size that `base_lr` was tuned for.
    pub base_batch_size: GlobalBatchSize,
    /// L2 penalty or decoupled decay.
    pub weight_decay: f64,
    /// True if one-dimensional parameters have no weight decay.
    pub no_decay_on_1d: bool,
    /// True if the parameters are on GPUs and the update is on the CPU.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_cpu: bool,
    /// Groups of parameters; empty = all are treated alike.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<ParameterGroup>,
    /// The group of each parameter in registration order, where there are groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub group_of: Vec<usize>,
}

/// Parameters that the optimizer treats alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParameterGroup {
    /// The pattern, or "others".
    pub name: String,
    /// Multiplies the learning rate of each step.
    pub lr_factor: f64,
    /// L2 penalty or decoupled decay.
    pub weight_decay: f64,
    /// Step from which it is trained.
    pub unfreezes_at: u64,
    /// Step from which it is frozen; 0 = it is never trained, `None` = it is never frozen.
    pub freezes_at: Option<u64>,
    /// True if the rule treats its parameters as matrices.
    #[serde(default)]
    pub is_matrix: bool,
    /// Elements of its optimizer state.
    #[serde(default)]
    pub n_state: usize,
    /// Parameter tensors.
    pub n_tensors: usize,
    /// Parameters.
    pub n_parameters: usize,
}

impl ParameterGroup {
    /// True if it is updated in the step after `done` finished ones.
    pub fn is_trained(&self, done: u64) -> bool {
        done >= self.unfreezes_at && self.freezes_at.is_none_or(|end| done < end)
    }

    /// True if it is updated in any step.
    pub fn is_ever_trained(&self) -> bool {
        self.freezes_at.is_none_or(|end| end > self.unfreezes_at)
    }

    /// True if both groups have the same settings, whatever their counts.
    pub(super) fn has_settings_of(&self, other: &Self) -> bool {
        let uncounted =
            |group: &Self| Self { n_tensors: 0, n_parameters: 0, n_state: 0, ..group.clone() };
        uncounted(self) == uncounted(other)
    }
}

/// A tensor that an optimizer keeps of a parameter between steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(String, Extent)", into = "(String, Extent)")]
pub struct StateTensor {
    /// Name in PyTorch's state dict: `exp_avg`.
    pub name: String,
    /// Size relative to the parameter.
    pub extent: Extent,
}

impl StateTensor {
    /// A tensor with a value for each element of the parameter.
    pub fn whole(name: impl Into<String>) -> Self {
        Self { name: name.into(), extent: Extent::Whole }
    }

    /// Shape for a parameter of this shape.
    pub fn shape(&self, parameter: &[usize]) -> Vec<usize> {
        self.extent.of(parameter)
    }

    /// Number of elements for a parameter of this shape.
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

/// Size of a state tensor relative to its parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Extent {
    /// One value per element.
    Whole,
    /// One value per row.
    Rows,
    /// One value per column.
    Columns,
}

impl Extent {
    /// Shape of the state for a tensor of this shape, whose last two dimensions are rows and
    /// columns.
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

/// Special treatment of matrices by an update rule, as Muon's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Matrices {
    /// True if only 2D weights of hidden layers count, neither embeddings nor the head; else every
    /// tensor of two dimensions or more counts.
    pub only_hidden: bool,
    /// State tensors of each matrix.
    pub state: Vec<StateTensor>,
    /// Factor on the learning rate of all other parameters.
    pub others_lr_factor: f64,
}

impl Matrices {
    /// True if this parameter counts as a matrix.
    pub(super) fn holds(&self, name: &str, shape: &[usize], model: &ModelFacts) -> bool {
        let is_hidden = || {
            shape.len() == 2
                && !model.embeddings.iter().any(|embedding| embedding == name)
                && !model.head.iter().any(|head| name.starts_with(head.as_str()))
        };
        if self.only_hidden { is_hidden() } else { shape.len() >= 2 }
    }
}

/// Properties that an optimizer declares.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OptimizerFacts {
    /// Names of the state tensors of a parameter, each of the parameter's shape.
    pub state: Vec<String>,
    /// Special treatment of matrices, if the rule has one.
    #[serde(default)]
    pub matrices: Option<Matrices>,
    /// Coefficient of the weight decay.
    pub weight_decay: f64,
    /// The option that a momentum schedule changes.
    pub momentum: Option<String>,
    /// True if it has a kernel for GPUs.
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

    /// The group of the parameter at this index in registration order, if there are groups.
    pub fn group(&self, parameter: usize) -> Option<&ParameterGroup> {
        self.groups.get(*self.group_of.get(parameter)?)
    }

    /// True if a parameter is updated in the step after `done` finished ones.
    pub fn is_trained(&self, parameter: usize, done: u64) -> bool {
        self.group(parameter).is_none_or(|group| group.is_trained(done))
    }

    /// True if a parameter is updated in any step.
    pub fn is_ever_trained(&self, parameter: usize) -> bool {
        self.group(parameter).is_none_or(ParameterGroup::is_ever_trained)
    }

    /// Elements of each parameter of `model` that is updated in some step.
    pub(super) fn trained(&self, model: &ModelFacts) -> Vec<usize> {
        let lengths = model.lengths().enumerate();
        lengths.filter(|&(index, _)| self.is_ever_trained(index)).map(|(_, n)| n).collect()
    }

    /// The state tensors of the parameter at this index in registration order.
    pub fn state_of(&self, parameter: usize) -> Vec<StateTensor> {
        match &self.matrices {
            Some(matrices) if self.group(parameter).is_some_and(|group| group.is_matrix) => {
                matrices.state.clone()
            }
            _ => self.state.iter().map(StateTensor::whole).collect(),
        }
    }

    /// Elements of the state tensors of all `n` parameters.
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
    pub(super) fn n_frozen(&self) -> usize {
        let frozen = self.groups.iter().filter(|group| !group.is_ever_trained());
        frozen.map(|group| group.n_parameters).sum()
    }
}

/// The plan of `[optimizer]`, at the learning rate for this global batch size. `facts` returns what
/// an optimizer declares.
pub(super) fn decide(
    loaded: &Loaded,
    batch: &BatchPlan,
    on_gpus: bool,
    facts: impl FnOnce(&Choice) -> Result<OptimizerFacts, String>,
) -> Result<OptimizerPlan, Problem> {
    let config = &loaded.experiment.optimizer;
    let scaling = loaded.experiment.lr_scaling.rule;
    let Some(base_batch_size) = GlobalBatchSize::new(loaded.experiment.lr_scaling.base_batch_size)
    else {
        return Err(loaded.problem("lr_scaling.base_batch_size", "must be at least 1"));
    };
    let rule = Choice { name: config.name.clone(), options: config.options.clone() };
    let facts = facts(&rule).map_err(|what| loaded.problem("optimizer.name", what))?;
    Ok(OptimizerPlan {
        lr: scale_lr(scaling, config.lr, base_batch_size, batch.global),
        scaling,
        base_batch_size,
        no_decay_on_1d: config.no_decay_on_1d,
        on_cpu: on_gpus && !facts.has_gpu_kernel,
        ..OptimizerPlan::new(rule, facts, config.lr)
    })
}

/// The learning rate for another global batch size: `base_lr (global / base)^e`, e = 0, 1/2 or 1
/// (Goyal et al. 2017: linear for SGD; square root suits Adam).
pub fn scale_lr(
    rule: ScalingRule,
    base_lr: f64,
    tuned_for: GlobalBatchSize,
    in_use: GlobalBatchSize,
) -> f64 {
    let ratio = f64::from(in_use.get()) / f64::from(tuned_for.get());
    match rule {
        ScalingRule::None => base_lr,
        ScalingRule::Sqrt => base_lr * ratio.sqrt(),
        ScalingRule::Linear => base_lr * ratio,
    }
}

/// Changes of gradients after unscaling, in this order: clipping by norm, noise, clipping by value.
/// `None` = off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClipPlan {
    /// Largest global L2 norm.
    pub norm: Option<f64>,
    /// Largest absolute value.
    pub value: Option<f64>,
    /// Variance of the noise in the first step.
    #[serde(default)]
    pub noise: Option<f64>,
}

impl ClipPlan {
    /// ", clipped to norm 1.0, noise 0.3"
    pub(super) fn line(&self) -> String {
        let norm = self
            .norm
            .map_or(String::new(), |norm| format!(", clipped to norm {}", format_number(norm)));
        let noise =
            self.noise.map_or(String::new(), |noise| format!(", noise {}", format_number(noise)));
        norm + &noise
    }
}

/// The plan of `train.clip_grad_norm`, `clip_grad_value` and `gradient_noise`.
pub(super) fn clipping(experiment: &Experiment) -> ClipPlan {
    let train = &experiment.train;
    let norm = train.clip_grad_norm;
    let value = train.clip_grad_value;
    let noise = train.gradient_noise;
    ClipPlan { norm, value, noise }
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

    #[test]
    fn the_rate_follows_the_global_batch_and_not_the_number_of_ranks() {
        let size = |n| GlobalBatchSize::new(n).unwrap();
        let check = |rule, in_use, expected: f64| {
            let lr = scale_lr(rule, 0.1, size(256), size(in_use));
            assert!((lr - expected).abs() < 1e-15, "{rule:?} {in_use}: {lr}");
        };
        check(ScalingRule::None, 1024, 0.1);
        check(ScalingRule::Linear, 1024, 0.4);
        check(ScalingRule::Linear, 128, 0.05);
        check(ScalingRule::Sqrt, 1024, 0.2);
        check(ScalingRule::Sqrt, 64, 0.05);
        check(ScalingRule::Linear, 256, 0.1);
    }
}
