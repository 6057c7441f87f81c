//! The update rules, element by element, each exactly PyTorch's single-tensor implementation.

use crate::plan::{OptimizerPlan, UpdateRule};

/// State of one parameter: SGD's momentum buffer, or Adam's two moments. As long as the parameter,
/// or empty where the rule needs none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moments {
    /// `momentum_buffer` or `exp_avg`.
    pub first: Vec<f32>,
    /// `exp_avg_sq`.
    pub second: Vec<f32>,
}

impl Moments {
    /// Zeroed state of a parameter with `n` elements under `rule`.
    pub fn new(rule: &UpdateRule, n: usize) -> Self {
        match rule {
            UpdateRule::Sgd { momentum: 0.0, .. } => Self::default(),
            UpdateRule::Sgd { .. } => Self { first: vec![0.0; n], second: Vec::new() },
            UpdateRule::Adam { .. } | UpdateRule::AdamW { .. } => {
                Self { first: vec![0.0; n], second: vec![0.0; n] }
            }
        }
    }

    /// PyTorch's names of the two moments under `rule`.
    pub fn names(rule: &UpdateRule) -> [&'static str; 2] {
        match rule {
            UpdateRule::Sgd { .. } => ["momentum_buffer", ""],
            UpdateRule::Adam { .. } | UpdateRule::AdamW { .. } => ["exp_avg", "exp_avg_sq"],
        }
    }
}

/// One optimizer step with all its numbers decided; applied to one parameter at a time.
#[derive(Clone, Copy, Debug)]
pub struct Update {
    rule: UpdateRule,
    lr: f64,
    weight_decay: f64,
    no_decay_on_1d: bool,
    /// Updates made so far, this one included: `t` of Adam's bias correction.
    count: u64,
    /// Factor on every gradient: the clipping coefficient.
    gradient_factor: f32,
}

impl Update {
    /// The `count`-th update (from 1) at learning rate `lr`. `momentum` replaces SGD's momentum or
    /// Adam's first beta where a schedule moves it.
    pub fn new(plan: &OptimizerPlan, lr: f64, momentum: Option<f64>, count: u64) -> Self {
        let rule = momentum.map_or(plan.rule, |value| with_momentum(plan.rule, value));
        Self {
            rule,
            lr,
            weight_decay: plan.weight_decay,
            no_decay_on_1d: plan.no_decay_on_1d,
            count,
            gradient_factor: 1.0,
        }
    }

    /// The same update with every gradient multiplied by `factor` first.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self { gradient_factor: factor as f32, ..self }
    }

    /// Moves `values` along their `gradient`; all slices are equally long. `dimensions` is the rank
    /// of the parameter's shape.
    pub fn apply(
        &self,
        values: &mut [f32],
        gradient: &[f32],
        moments: &mut Moments,
        dimensions: usize,
    ) {
        let exempt = self.no_decay_on_1d && dimensions <= 1;
        let decay = if exempt { 0.0 } else { self.weight_decay };
        match self.rule {
            UpdateRule::Sgd { momentum: 0.0, .. } => {
                self.sgd(values, gradient, decay);
            }
            UpdateRule::Sgd { momentum, dampening, nesterov } => {
                // PyTorch's buffer starts as the first gradient, undamped.
                let damp = if self.count == 1 { 1.0 } else { 1.0 - dampening as f32 };
                let factors = SgdFactors { momentum: momentum as f32, damp, nesterov };
                self.sgd_momentum(values, gradient, &mut moments.first, decay, factors);
            }
            UpdateRule::Adam { beta1, beta2, eps } => {
                let adam = AdamFactors::new(self.lr, beta1, beta2, eps, self.count);
                self.adam(values, gradient, moments, (decay as f32, 1.0), adam);
            }
            UpdateRule::AdamW { beta1, beta2, eps } => {
                let adam = AdamFactors::new(self.lr, beta1, beta2, eps, self.count);
                let shrink = (1.0 - self.lr * decay) as f32;
                self.adam(values, gradient, moments, (0.0, shrink), adam);
            }
        }
    }

    fn sgd(&self, values: &mut [f32], gradient: &[f32], decay: f64) {
        let (lr, decay, factor) = (self.lr as f32, decay as f32, self.gradient_factor);
        for (value, &g) in values.iter_mut().zip(gradient) {
            *value -= lr * (g * factor + decay * *value);
        }
    }

    fn sgd_momentum(
        &self,
        values: &mut [f32],
        gradient: &[f32],
        buffer: &mut [f32],
        decay: f64,
        SgdFactors { momentum, damp, nesterov }: SgdFactors,
    ) {
        let (lr, decay, factor) = (self.lr as f32, decay as f32, self.gradient_factor);
        for ((value, &g), v) in values.iter_mut().zip(gradient).zip(buffer) {
            let g = g * factor + decay * *value;
            *v = momentum * *v + damp * g;
            *value -= lr * if nesterov { g + momentum * *v } else { *v };
        }
    }

    fn adam(
        &self,
        values: &mut [f32],
        gradient: &[f32],
        moments: &mut Moments,
        (decay, shrink): (f32, f32),
        AdamFactors { beta1, beta2, eps, step_size, root_correction }: AdamFactors,
    ) {
        let factor = self.gradient_factor;
        let moments = moments.first.iter_mut().zip(&mut moments.second);
        for ((value, &g), (m, v)) in values.iter_mut().zip(gradient).zip(moments) {
            let g = g * factor + decay * *value;
            *m += (1.0 - beta1) * (g - *m);
            *v = beta2 * *v + (1.0 - beta2) * (g * g);
            *value = *value * shrink - step_size * (*m / (v.sqrt() / root_correction + eps));
        }
    }
}

#[derive(Clone, Copy)]
struct SgdFactors {
    momentum: f32,
    damp: f32,
    nesterov: bool,
}

#[derive(Clone, Copy)]
struct AdamFactors {
    beta1: f32,
    beta2: f32,
    eps: f32,
    step_size: f32,
    root_correction: f32,
}

impl AdamFactors {
    fn new(lr: f64, beta1: f64, beta2: f64, eps: f64, count: u64) -> Self {
        let correction = |beta: f64| 1.0 - beta.powi(i32::try_from(count).unwrap_or(i32::MAX));
        Self {
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            eps: eps as f32,
            step_size: (lr / correction(beta1)) as f32,
            root_correction: correction(beta2).sqrt() as f32,
        }
    }
}

/// The rule with SGD's momentum or Adam's first beta replaced; SGD without momentum stays as it is.
fn with_momentum(rule: UpdateRule, value: f64) -> UpdateRule {
    match rule {
        UpdateRule::Sgd { momentum, dampening, nesterov } if momentum != 0.0 => {
            UpdateRule::Sgd { momentum: value, dampening, nesterov }
        }
        UpdateRule::Sgd { .. } => rule,
        UpdateRule::Adam { beta2, eps, .. } => UpdateRule::Adam { beta1: value, beta2, eps },
        UpdateRule::AdamW { beta2, eps, .. } => UpdateRule::AdamW { beta1: value, beta2, eps },
    }
}
