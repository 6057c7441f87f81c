//! Steps of Adam and AdamW on given gradients, as the engine takes them.
#![expect(clippy::unwrap_used, reason = "a helper may stop the test")]

use std::collections::BTreeMap;

use ddprun::config::kind::Kind;
use ddprun::nn::{Params, change_values};
use ddprun::optim::{
    self, Optimizer, ParameterState, ParameterUpdate, Preparation, Rates, Update, clip_coefficient,
};
use ddprun::plan::OptimizerPlan;

/// Gradients by parameter index.
pub(crate) type Gradients = BTreeMap<usize, Vec<f32>>;

/// An optimizer with a constant rate.
pub(crate) struct Steps {
    rule: Box<dyn Optimizer>,
    plan: OptimizerPlan,
    clip: f64,
    pub(crate) states: Vec<ParameterState>,
    count: u64,
    /// Share of the averages, where there are any, that stays at an update.
    pub(crate) keep: fn(u64) -> f64,
}

impl Steps {
    /// Weight decay acts on matrices only; gradients are clipped to the length `clip`.
    pub(crate) fn new<K: Kind + Optimizer>(
        params: &Params,
        rule: K,
        lr: f64,
        (weight_decay, clip): (f64, f64),
    ) -> Self {
        let plan = OptimizerPlan { weight_decay, no_decay_on_1d: true, ..optim::plan(&rule, lr) };
        let new = |param: &ddprun::nn::Param| ParameterState::zeros(&plan, 0, param.shape());
        let states = params.parameters().iter().map(new).collect();
        let rule = Box::new(rule);
        Self { rule, plan, clip, states, count: 0, keep: |_| 1.0 }
    }

    /// One step; the gradients' length before clipping.
    pub(crate) fn step(&mut self, params: &Params, gradients: &Gradients) -> f64 {
        self.count += 1;
        let squares: f64 = gradients.values().flatten().map(|&g| f64::from(g).powi(2)).sum();
        let clip = clip_coefficient(squares.sqrt(), self.clip) as f32;
        let clipped = Preparation { clip, ..Preparation::default() };
        let rates = Rates { lr: self.plan.lr, momentum: None };
        let update = Update::new(self.rule.as_ref(), &self.plan, rates)
            .prepared(clipped)
            .averaging((self.keep)(self.count));
        for (&index, gradient) in gradients {
            let param = &params.parameters()[index];
            let (state, shape) = (&mut self.states[index], param.shape());
            let count = Some(self.count);
            let apply = |values: &mut [f32]| {
                update.apply([ParameterUpdate { values, gradient, state, index, shape, count }]);
            };
            change_values(param.var().unwrap(), apply).unwrap();
        }
        squares.sqrt()
    }
}
