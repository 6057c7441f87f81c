//! One optimizer step with all its numbers decided, over any number of parameters at once.

use rayon::prelude::*;

#[cfg(feature = "cuda")]
use crate::ops::cuda::Rule;
use crate::ops::vectorised;
use crate::optim::Preparation;
use crate::optim::kernel::{AdamFactors, Block, SgdFactors};
use crate::plan::{OptimizerPlan, UpdateRule};

/// Elements that one thread updates at a time: 64 KiB of each vector.
const BLOCK: usize = 1 << 14;
/// Elements below which one thread is done sooner than others are woken.
const WORTH_SHARING: usize = 1 << 16;

/// State of one parameter: SGD's momentum buffer, or Adam's two moments, and the average of its values. As long as
/// the parameter, or empty where there is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moments {
    /// `momentum_buffer` or `exp_avg`.
    pub first: Vec<f32>,
    /// `exp_avg_sq`.
    pub second: Vec<f32>,
    /// Moving average of the parameter (`[ema]`); whoever wants one gives it its first values.
    pub average: Vec<f32>,
}

impl Moments {
    /// Zeroed state of a parameter with `n` elements under `rule`.
    pub fn new(rule: &UpdateRule, n: usize) -> Self {
        match rule {
            UpdateRule::Sgd { momentum: 0.0, .. } => Self::default(),
            UpdateRule::Sgd { .. } => Self { first: vec![0.0; n], ..Self::default() },
            UpdateRule::Adam { .. } | UpdateRule::AdamW { .. } => {
                Self { first: vec![0.0; n], second: vec![0.0; n], ..Self::default() }
            }
        }
    }

    /// The same with room for an average.
    #[must_use]
    pub fn averaged(self, n: usize) -> Self {
        Self { average: vec![0.0; n], ..self }
    }

    /// PyTorch's names of the two moments under `rule`, and that of the average.
    pub fn names(rule: &UpdateRule) -> [&'static str; 3] {
        match rule {
            UpdateRule::Sgd { .. } => ["momentum_buffer", "", "ema"],
            UpdateRule::Adam { .. } | UpdateRule::AdamW { .. } => ["exp_avg", "exp_avg_sq", "ema"],
        }
    }
}

/// One parameter in an update; all slices are equally long, or empty where the rule has no such moment.
pub struct Part<'a> {
    /// The parameter.
    pub values: &'a mut [f32],
    /// Its gradient, before the update's [`Preparation`].
    pub gradient: &'a [f32],
    /// Its moments.
    pub moments: &'a mut Moments,
    /// Rank of the parameter's shape.
    pub dimensions: usize,
}

/// One optimizer step with all its numbers decided.
#[derive(Clone, Copy, Debug)]
pub struct Update {
    rule: UpdateRule,
    lr: f64,
    weight_decay: f64,
    no_decay_on_1d: bool,
    /// Updates made so far, this one included: `t` of Adam's bias correction.
    count: u64,
    preparation: Preparation,
    /// Share of the averages that stays.
    keep: f32,
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
            preparation: Preparation::default(),
            keep: 1.0,
        }
    }

    /// The same update over gradients that are prepared first.
    #[must_use]
    pub fn prepared(self, preparation: Preparation) -> Self {
        Self { preparation, ..self }
    }

    /// The same update, after which averages keep the share `keep` of themselves and take the rest from the
    /// parameters. Without averages it changes nothing.
    #[must_use]
    pub fn averaging(self, keep: f64) -> Self {
        Self { keep: keep as f32, ..self }
    }

    /// Moves all parameters along their gradients in one pass over memory. Blocks are independent of
    /// each other: the number of threads changes no bit.
    pub fn apply<'a>(&self, parts: impl IntoIterator<Item = Part<'a>>) {
        let blocks: Vec<(Block<'a>, f64)> =
            parts.into_iter().flat_map(|part| self.blocks(part)).collect();
        let elements: usize = blocks.iter().map(|(block, _)| block.values.len()).sum();
        let apply = |(mut block, decay)| {
            vectorised(
                #[inline(always)]
                || self.apply_to(&mut block, decay),
            );
        };
        if elements < WORTH_SHARING {
            blocks.into_iter().for_each(apply);
        } else {
            blocks.into_par_iter().for_each(apply);
        }
    }

    /// The same update for a GPU.
    #[cfg(feature = "cuda")]
    pub(crate) fn on_gpu(&self) -> Rule {
        let (lr, decay) = (self.lr as f32, self.weight_decay as f32);
        let adam = |beta1, beta2, eps| AdamFactors::new(self.lr, beta1, beta2, eps, self.count);
        let rule = match self.rule {
            UpdateRule::Sgd { momentum: 0.0, .. } => {
                Rule { kind: Rule::SGD, lr, decay, ..Rule::default() }
            }
            UpdateRule::Sgd { momentum, dampening, nesterov } => {
                let kind = if nesterov { Rule::SGD_NESTEROV } else { Rule::SGD_MOMENTUM };
                let damp = if self.count == 1 { 1.0 } else { 1.0 - dampening as f32 };
                Rule { kind, lr, decay, momentum: momentum as f32, damp, ..Rule::default() }
            }
            UpdateRule::Adam { beta1, beta2, eps } => {
                adam(beta1, beta2, eps).with_penalty(self.weight_decay).on_gpu(Rule::ADAM)
            }
            UpdateRule::AdamW { beta1, beta2, eps } => {
                let share = self.lr * self.weight_decay;
                adam(beta1, beta2, eps).with_shrinking(share).on_gpu(Rule::ADAMW)
            }
        };
        let Preparation { mean, clip, limit } = self.preparation;
        Rule { mean, clip, limit, keep: self.keep, ..rule }
    }

    /// The blocks of one parameter, and its weight decay.
    fn blocks<'a>(&self, part: Part<'a>) -> impl Iterator<Item = (Block<'a>, f64)> {
        let exempt = self.no_decay_on_1d && part.dimensions <= 1;
        let decay = if exempt { 0.0 } else { self.weight_decay };
        let Part { mut values, mut gradient, moments, .. } = part;
        let Moments { first, second, average } = moments;
        let (mut first, mut second, mut average) =
            (&mut first[..], &mut second[..], &mut average[..]);
        std::iter::from_fn(move || {
            let n = BLOCK.min(values.len());
            let block = Block {
                values: values.split_off_mut(..n)?,
                gradient: gradient.split_off(..n)?,
                first: first.split_off_mut(..n.min(first.len()))?,
                second: second.split_off_mut(..n.min(second.len()))?,
                average: average.split_off_mut(..n.min(average.len()))?,
            };
            (n > 0).then_some((block, decay))
        })
    }

    #[inline(always)]
    fn apply_to(&self, block: &mut Block<'_>, decay: f64) {
        let preparation = self.preparation;
        match self.rule {
            UpdateRule::Sgd { momentum: 0.0, .. } => {
                block.sgd(preparation, self.lr as f32, decay as f32);
            }
            UpdateRule::Sgd { momentum, dampening, nesterov } => {
                // PyTorch's buffer starts as the first gradient, undamped.
                let damp = if self.count == 1 { 1.0 } else { 1.0 - dampening as f32 };
                let (lr, decay) = (self.lr as f32, decay as f32);
                let factors = SgdFactors { lr, decay, momentum: momentum as f32, damp };
                if nesterov {
                    block.sgd_momentum::<true>(preparation, factors);
                } else {
                    block.sgd_momentum::<false>(preparation, factors);
                }
            }
            UpdateRule::Adam { beta1, beta2, eps } => {
                let factors = AdamFactors::new(self.lr, beta1, beta2, eps, self.count);
                block.adam(preparation, factors.with_penalty(decay));
            }
            UpdateRule::AdamW { beta1, beta2, eps } => {
                let factors = AdamFactors::new(self.lr, beta1, beta2, eps, self.count);
                block.adam(preparation, factors.with_shrinking(self.lr * decay));
            }
        }
        block.average(self.keep);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::ScalingRule;
    use crate::units::GlobalBatchSize;

    const PREPARATION: Preparation = Preparation { mean: 0.3, clip: 0.7, limit: 0.15 };

    fn plan(rule: UpdateRule) -> OptimizerPlan {
        OptimizerPlan {
            rule,
            lr: 0.1,
            base_lr: 0.1,
            scaling: ScalingRule::None,
            base_batch_size: GlobalBatchSize::ONE,
            weight_decay: 0.01,
            no_decay_on_1d: true,
        }
    }

    fn rules() -> [UpdateRule; 5] {
        let sgd = |momentum, nesterov| UpdateRule::Sgd { momentum, dampening: 0.5, nesterov };
        let (beta1, beta2, eps) = (0.9, 0.999, 1e-8);
        [
            sgd(0.0, false),
            sgd(0.9, false),
            sgd(0.9, true),
            UpdateRule::Adam { beta1, beta2, eps },
            UpdateRule::AdamW { beta1, beta2, eps },
        ]
    }

    fn wave(n: usize, salt: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7 + salt) as f32 * 0.37).sin()).collect()
    }

    /// Three updates of three parameters by `apply`; all values and moments.
    fn train(
        rule: UpdateRule,
        apply: impl Fn(Update, &mut [Vec<f32>], &[Vec<f32>], &mut [Moments]),
    ) -> (Vec<Vec<f32>>, Vec<Moments>) {
        let sizes = [70_001, 3, BLOCK];
        let mut values: Vec<_> = sizes.iter().map(|&n| wave(n, n)).collect();
        let mut moments: Vec<_> =
            sizes.iter().map(|&n| Moments::new(&rule, n).averaged(n)).collect();
        for step in 1..=3 {
            let gradients: Vec<_> = sizes.iter().map(|&n| wave(n, step as usize)).collect();
            let update =
                Update::new(&plan(rule), 0.1, None, step).prepared(PREPARATION).averaging(0.9);
            apply(update, &mut values, &gradients, &mut moments);
        }
        (values, moments)
    }

    fn parts<'a>(
        values: &'a mut [Vec<f32>],
        gradients: &'a [Vec<f32>],
        moments: &'a mut [Moments],
    ) -> impl Iterator<Item = Part<'a>> {
        let all = values.iter_mut().zip(gradients).zip(moments).enumerate();
        all.map(|(i, ((values, gradient), moments))| Part {
            values,
            gradient,
            moments,
            dimensions: 1 + i,
        })
    }

    #[test]
    fn threads_and_the_company_of_other_parameters_change_no_bit() {
        for rule in rules() {
            let together = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                train(rule, |update, values, gradients, moments| {
                    pool.install(|| update.apply(parts(values, gradients, moments)));
                })
            };
            let alone = train(rule, |update, values, gradients, moments| {
                parts(values, gradients, moments).for_each(|part| update.apply([part]));
            });
            assert!(together(1) == alone && together(3) == alone, "{rule:?}");
        }
    }

    #[test]
    fn the_instruction_set_changes_no_bit() {
        for rule in rules() {
            let dispatched = train(rule, |update, values, gradients, moments| {
                update.apply(parts(values, gradients, moments));
            });
            let plain = train(rule, |update, values, gradients, moments| {
                let blocks = parts(values, gradients, moments).flat_map(|part| update.blocks(part));
                blocks.for_each(|(mut block, decay)| update.apply_to(&mut block, decay));
            });
            assert!(dispatched == plain, "{rule:?}");
        }
    }

    #[test]
    fn the_preparation_is_that_of_separate_passes() {
        for rule in rules() {
            let fused = train(rule, |update, values, gradients, moments| {
                update.apply(parts(values, gradients, moments));
            });
            let separate = train(rule, |update, values, gradients, moments| {
                let Preparation { mean, clip, limit } = PREPARATION;
                let mut gradients = gradients.to_vec();
                gradients.iter_mut().flatten().for_each(|g| *g *= mean);
                gradients.iter_mut().flatten().for_each(|g| *g *= clip);
                gradients.iter_mut().flatten().for_each(|g| *g = g.clamp(-limit, limit));
                let update = update.prepared(Preparation::default());
                update.apply(parts(values, &gradients, moments));
            });
            assert!(fused == separate, "{rule:?}");
        }
    }
}
