//! State of each parameter between steps: the optimizer's state tensors, and the average of its
//! values.
//!
//! An optimizer names its state tensors (`Optimizer::state`, `Optimizer::matrices`). Code that
//! allocates, shards, saves, restores, compares or copies them iterates over this list, whatever
//! their number and meaning.

use crate::nn::{Buffer, Param, Params};
use crate::plan::{OptimizerPlan, Plan, StateTensor};

/// A tensor with its name, as in PyTorch's state dict: `exp_avg`.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// The state of one parameter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParameterState {
    /// State tensors of the optimizer, in its order; none while the parameter is frozen, or if
    /// another rank keeps them.
    pub tensors: Vec<NamedTensor>,
    /// Moving average of the values (`[ema]`, `[swa]`, `[lookahead]`), empty if there is none; it
    /// is initialised later. A buffer whose values are averaged has this alone.
    pub average: Vec<f32>,
}

impl NamedTensor {
    /// Tensor of zeros.
    pub fn zeros(name: String, shape: Vec<usize>) -> Self {
        let values = vec![0.0; shape.iter().product()];
        Self { name, shape, values }
    }
}

impl ParameterState {
    /// Zeroed state of all parameters for the optimizer of `plan`, in registration order, after
    /// `done` steps: parameters that are frozen then have none. With averages of the weights, these
    /// are there too, and after all parameters those of the moving buffers.
    pub fn of_all(plan: &Plan, params: &Params, done: u64) -> Vec<Self> {
        let average = plan.average();
        let plan = &plan.optimizer;
        let of_param = |(index, param): (usize, &Param)| {
            let n = param.elem_count();
            let is_trained = plan.is_trained(index, done);
            let state =
                if is_trained { Self::zeros(plan, index, param.shape()) } else { Self::default() };
            if average.is_some() { state.averaged(n) } else { state }
        };
        let of_buffer = |buffer: &Buffer| Self::default().averaged(buffer.shape().iter().product());
        let has_buffers = average.is_some_and(|average| average.of_buffers);
        let buffers = params.moving_buffers().filter(|_| has_buffers);
        let parameters = params.parameters().iter().enumerate().map(of_param);
        parameters.chain(buffers.map(of_buffer)).collect()
    }

    /// Zeroed state of a parameter, by its index in registration order and its shape.
    pub fn zeros(plan: &OptimizerPlan, index: usize, shape: &[usize]) -> Self {
        let zeros = |tensor: StateTensor| {
            let shape = tensor.shape(shape);
            NamedTensor::zeros(tensor.name, shape)
        };
        let tensors = plan.state_of(index).into_iter().map(zeros).collect();
        Self { tensors, average: Vec::new() }
    }

    /// Adds room for an average of `n` values.
    #[must_use]
    pub fn averaged(self, n: usize) -> Self {
        Self { average: vec![0.0; n], ..self }
    }

    /// Number of elements of the optimizer's state tensors.
    pub fn elem_count(&self) -> usize {
        self.tensors.iter().map(|tensor| tensor.values.len()).sum()
    }
}
