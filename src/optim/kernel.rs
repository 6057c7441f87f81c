//! The update rules over one block of elements, each exactly PyTorch's single-tensor implementation.
//!
//! Plain loops: they are compiled for the instruction set at hand where they are called, and as no two
//! roundings are contracted, every instruction set gives the same bits.

#[cfg(feature = "cuda")]
use crate::ops::cuda::Rule;
use crate::optim::Preparation;

/// Elements of one parameter; the moments and the average are empty where there are none.
pub(super) struct Block<'a> {
    pub(super) values: &'a mut [f32],
    pub(super) gradient: &'a [f32],
    pub(super) first: &'a mut [f32],
    pub(super) second: &'a mut [f32],
    pub(super) average: &'a mut [f32],
}

/// Numbers of SGD with momentum.
#[derive(Clone, Copy)]
pub(super) struct SgdFactors {
    pub(super) lr: f32,
    pub(super) decay: f32,
    pub(super) momentum: f32,
    pub(super) damp: f32,
}

/// Numbers of Adam and `AdamW`.
#[derive(Clone, Copy)]
pub(super) struct AdamFactors {
    beta1: f32,
    beta2: f32,
    eps: f32,
    step_size: f32,
    root_correction: f32,
    /// Share of the parameter that is added to its gradient.
    penalty: f32,
    /// What is left of the parameter before it moves.
    shrink: f32,
}

impl AdamFactors {
    /// Without weight decay, for the `count`-th update.
    pub(super) fn new(lr: f64, beta1: f64, beta2: f64, eps: f64, count: u64) -> Self {
        let correction = |beta: f64| 1.0 - beta.powi(i32::try_from(count).unwrap_or(i32::MAX));
        Self {
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            eps: eps as f32,
            step_size: (lr / correction(beta1)) as f32,
            root_correction: correction(beta2).sqrt() as f32,
            penalty: 0.0,
            shrink: 1.0,
        }
    }

    /// Adam's weight decay.
    pub(super) fn with_penalty(self, decay: f64) -> Self {
        Self { penalty: decay as f32, ..self }
    }

    /// `AdamW`'s weight decay, times the learning rate.
    pub(super) fn with_shrinking(self, share: f64) -> Self {
        Self { shrink: (1.0 - share) as f32, ..self }
    }
}

#[cfg(feature = "cuda")]
impl AdamFactors {
    /// The same numbers for a GPU; `kind` says where weight decay goes.
    pub(super) fn on_gpu(self, kind: i32) -> Rule {
        let Self { beta1, beta2, eps, step_size, root_correction, penalty, shrink } = self;
        let decay = if kind == Rule::ADAMW { shrink } else { penalty };
        Rule { kind, beta1, beta2, eps, step_size, root_correction, decay, ..Rule::default() }
    }
}

impl Block<'_> {
    #[inline(always)]
    pub(super) fn sgd(&mut self, preparation: Preparation, lr: f32, decay: f32) {
        for (value, &g) in self.values.iter_mut().zip(self.gradient) {
            *value -= lr * (preparation.of(g) + decay * *value);
        }
    }

    #[inline(always)]
    pub(super) fn sgd_momentum<const NESTEROV: bool>(
        &mut self,
        preparation: Preparation,
        SgdFactors { lr, decay, momentum, damp }: SgdFactors,
    ) {
        for ((value, &g), v) in self.values.iter_mut().zip(self.gradient).zip(self.first.iter_mut())
        {
            let g = preparation.of(g) + decay * *value;
            *v = momentum * *v + damp * g;
            *value -= lr * if NESTEROV { g + momentum * *v } else { *v };
        }
    }

    #[inline(always)]
    pub(super) fn adam(&mut self, preparation: Preparation, factors: AdamFactors) {
        let AdamFactors { beta1, beta2, eps, step_size, root_correction, penalty, shrink } =
            factors;
        let moments = self.first.iter_mut().zip(self.second.iter_mut());
        for ((value, &g), (m, v)) in self.values.iter_mut().zip(self.gradient).zip(moments) {
            let g = preparation.of(g) + penalty * *value;
            *m += (1.0 - beta1) * (g - *m);
            *v = beta2 * *v + (1.0 - beta2) * (g * g);
            *value = *value * shrink - step_size * (*m / (v.sqrt() / root_correction + eps));
        }
    }

    /// Moves the average towards the values.
    #[inline(always)]
    pub(super) fn average(&mut self, keep: f32) {
        for (average, &value) in self.average.iter_mut().zip(self.values.iter()) {
            *average = keep * *average + (1.0 - keep) * value;
        }
    }
}
