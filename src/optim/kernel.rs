//! The update rules over one block of elements, each exactly PyTorch's single-tensor implementation.
//!
//! Plain loops: they are compiled for the instruction set at hand where they are called, and as no two
//! roundings are contracted, every instruction set gives the same bits. A share such as 1 - beta is taken in f64 and
//! then rounded, as PyTorch does: of a beta that was rounded before, few digits of it would be left.

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

/// What an update does to one parameter, in numbers.
#[derive(Clone, Copy)]
pub(super) enum Factors {
    /// Nothing: no pass used it.
    Still,
    /// SGD without momentum.
    Sgd(SgdFactors),
    /// SGD with momentum.
    Momentum(SgdFactors),
    /// SGD with Nesterov's look-ahead.
    Nesterov(SgdFactors),
    /// Adam and `AdamW`.
    Adam(AdamFactors),
}

/// Numbers of SGD.
#[derive(Clone, Copy)]
pub(super) struct SgdFactors {
    pub(super) lr: f32,
    /// Share of the parameter that is added to its gradient.
    pub(super) penalty: f32,
    pub(super) momentum: f32,
    /// Share of the gradient that goes into the momentum buffer.
    pub(super) damp: f32,
}

/// Numbers of Adam and `AdamW`.
#[derive(Clone, Copy)]
pub(super) struct AdamFactors {
    /// 1 - beta1
    rest1: f32,
    beta2: f32,
    /// 1 - beta2
    rest2: f32,
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
            rest1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            rest2: (1.0 - beta2) as f32,
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
impl Factors {
    /// The same numbers for a GPU.
    pub(super) fn on_gpu(self) -> Rule {
        let sgd = |kind, SgdFactors { lr, penalty, momentum, damp }| Rule {
            kind,
            lr,
            momentum,
            damp,
            penalty,
            ..Rule::default()
        };
        match self {
            Self::Still => Rule { kind: Rule::STILL, ..Rule::default() },
            Self::Sgd(factors) => sgd(Rule::SGD, factors),
            Self::Momentum(factors) => sgd(Rule::SGD_MOMENTUM, factors),
            Self::Nesterov(factors) => sgd(Rule::SGD_NESTEROV, factors),
            Self::Adam(factors) => {
                let AdamFactors { rest1, beta2, rest2, eps, step_size, .. } = factors;
                let AdamFactors { root_correction, penalty, shrink, .. } = factors;
                let kind = Rule::ADAM;
                let rule = Rule { kind, rest1, beta2, rest2, eps, step_size, ..Rule::default() };
                Rule { root_correction, penalty, shrink, ..rule }
            }
        }
    }
}

/// From `start` to `end` by the share `weight`, with the roundings of `torch.lerp`: at 1 it is `end`.
#[inline(always)]
fn lerp(start: f32, end: f32, weight: f32) -> f32 {
    if weight < 0.5 { start + weight * (end - start) } else { end - (end - start) * (1.0 - weight) }
}

/// Moves an average the share `follow` of its way to the values.
#[inline(always)]
pub(super) fn follow_values(average: &mut [f32], values: &[f32], follow: f32) {
    for (average, &value) in average.iter_mut().zip(values) {
        *average = lerp(*average, value, follow);
    }
}

impl Block<'_> {
    /// Moves the values, and then the average the share `follow` of its way to them.
    #[inline(always)]
    pub(super) fn update(&mut self, preparation: Preparation, factors: Factors, follow: f32) {
        match factors {
            Factors::Still => (),
            Factors::Sgd(factors) => self.sgd(preparation, factors),
            Factors::Momentum(factors) => self.sgd_momentum::<false>(preparation, factors),
            Factors::Nesterov(factors) => self.sgd_momentum::<true>(preparation, factors),
            Factors::Adam(factors) => self.adam(preparation, factors),
        }
        follow_values(self.average, self.values, follow);
    }

    #[inline(always)]
    fn sgd(&mut self, preparation: Preparation, SgdFactors { lr, penalty, .. }: SgdFactors) {
        for (value, &g) in self.values.iter_mut().zip(self.gradient) {
            *value -= lr * (preparation.of(g) + penalty * *value);
        }
    }

    #[inline(always)]
    fn sgd_momentum<const NESTEROV: bool>(
        &mut self,
        preparation: Preparation,
        SgdFactors { lr, penalty, momentum, damp }: SgdFactors,
    ) {
        for ((value, &g), v) in self.values.iter_mut().zip(self.gradient).zip(self.first.iter_mut())
        {
            let g = preparation.of(g) + penalty * *value;
            *v = momentum * *v + damp * g;
            *value -= lr * if NESTEROV { g + momentum * *v } else { *v };
        }
    }

    #[inline(always)]
    fn adam(&mut self, preparation: Preparation, factors: AdamFactors) {
        let AdamFactors { rest1, beta2, rest2, eps, step_size, .. } = factors;
        let AdamFactors { root_correction, penalty, shrink, .. } = factors;
        let moments = self.first.iter_mut().zip(self.second.iter_mut());
        for ((value, &g), (m, v)) in self.values.iter_mut().zip(self.gradient).zip(moments) {
            let g = preparation.of(g) + penalty * *value;
            *m = lerp(*m, g, rest1);
            *v = beta2 * *v + rest2 * (g * g);
            *value = *value * shrink - step_size * (*m / (v.sqrt() / root_correction + eps));
        }
    }
}
