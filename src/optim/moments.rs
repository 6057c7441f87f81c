//! What an update rule keeps of each parameter.

use crate::nn::{Buffer, Param, Params};
use crate::plan::{OptimizerPlan, Plan};

/// State of one parameter: SGD's momentum buffer, or Adam's two moments, and the average of its
/// values. As long as the parameter, or empty where there is none. A buffer whose values are
/// averaged has the average alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moments {
    /// `momentum_buffer` or `exp_avg`.
    pub first: Vec<f32>,
    /// `exp_avg_sq`.
    pub second: Vec<f32>,
    /// Moving average of the parameter (`[ema]`, `[swa]`, `[lookahead]`); its first values are
    /// given to it later.
    pub average: Vec<f32>,
}

impl Moments {
    /// Zeroed state of all parameters under the rule of `plan` in registration order, after `done`
    /// steps: those that are frozen then have none. Where averages are kept they are there too, and
    /// after them those of the moving buffers.
    pub fn of_all(plan: &Plan, params: &Params, done: u64) -> Vec<Self> {
        let average = plan.average();
        let plan = &plan.optimizer;
        let of_param = |(index, param): (usize, &Param)| {
            let n = param.elem_count();
            let is_trained = plan.is_trained(index, done);
            let moments =
                if is_trained { Self::of(plan, index, param.shape()) } else { Self::default() };
            if average.is_some() { moments.averaged(n) } else { moments }
        };
        let of_buffer = |buffer: &Buffer| Self::default().averaged(buffer.shape().iter().product());
        let has_buffers = average.is_some_and(|average| average.of_buffers);
        let buffers = params.moving_buffers().filter(|_| has_buffers);
        let parameters = params.parameters().iter().enumerate().map(of_param);
        parameters.chain(buffers.map(of_buffer)).collect()
    }

    /// Zeroed state of the parameter with this place and shape.
    pub fn of(plan: &OptimizerPlan, index: usize, shape: &[usize]) -> Self {
        let [first, second] = Self::lengths(plan, index, shape).map(|n| vec![0.0; n]);
        Self { first, second, average: Vec::new() }
    }

    /// Elements of the first and the second of [`Moments::of`].
    pub fn lengths(plan: &OptimizerPlan, index: usize, shape: &[usize]) -> [usize; 2] {
        let state = plan.state_of(index);
        [0, 1].map(|kept| {
            let shape = state.get(kept).map(|(_, extent)| extent.of(shape));
            shape.map_or(0, |shape| shape.iter().product())
        })
    }

    /// Zeroed state of a parameter with `n` elements under the rule of `plan`, where it is no
    /// matrix.
    pub fn new(plan: &OptimizerPlan, n: usize) -> Self {
        let zeros = |kept: usize| vec![0.0; if plan.state.len() > kept { n } else { 0 }];
        Self { first: zeros(0), second: zeros(1), average: Vec::new() }
    }

    /// The same with room for an average.
    #[must_use]
    pub fn averaged(self, n: usize) -> Self {
        Self { average: vec![0.0; n], ..self }
    }

    /// PyTorch's names and the shapes of what is kept of the parameter with this place and shape,
    /// as [`Moments`] has it: its two moments (nothing where there is none) and the average.
    pub fn named(plan: &Plan, index: usize, shape: &[usize]) -> [(String, Vec<usize>); 3] {
        let state = plan.optimizer.state_of(index);
        let average = plan.average().map_or("", |average| average.name);
        let kept = |kept: usize| match state.get(kept) {
            Some((name, extent)) => (name.clone(), extent.of(shape)),
            None => (String::new(), shape.to_vec()),
        };
        [kept(0), kept(1), (average.to_owned(), shape.to_vec())]
    }
}
