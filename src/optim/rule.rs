//! One optimizer step with all its numbers decided, over any number of parameters at once.

use rayon::prelude::*;

use crate::nn::{Buffer, Param, Params};
#[cfg(feature = "cuda")]
use crate::ops::cuda::Rule;
use crate::ops::vectorised;
use crate::optim::Preparation;
use crate::optim::kernel::{AdamFactors, Block, Factors, SgdFactors, follow_values};
use crate::plan::{EmaPlan, OptimizerPlan, UpdateRule};

/// Elements that one thread updates at a time: 64 KiB of each vector.
const BLOCK: usize = 1 << 14;
/// Elements below which one thread is done sooner than others are woken.
const WORTH_SHARING: usize = 1 << 16;

/// State of one parameter: SGD's momentum buffer, or Adam's two moments, and the average of its values. As long as
/// the parameter, or empty where there is none. A buffer whose values are averaged has the average alone.
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
    /// Zeroed state of all parameters under `rule` in registration order; with `ema`, averages too, and after them those
    /// of the moving buffers if it wants them.
    pub fn of_all(rule: &UpdateRule, ema: Option<&EmaPlan>, params: &Params) -> Vec<Self> {
        let of_param = |param: &Param| {
            let (n, moments) = (param.elem_count(), Self::new(rule, param.elem_count()));
            if ema.is_some() { moments.averaged(n) } else { moments }
        };
        let of_buffer = |buffer: &Buffer| Self::default().averaged(buffer.shape().iter().product());
        let buffers = params.moving_buffers().filter(|_| ema.is_some_and(|ema| ema.use_buffers));
        params.parameters().iter().map(of_param).chain(buffers.map(of_buffer)).collect()
    }

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
    /// Which update of the parameter this is, from 1: `t` of Adam's bias correction. `None` = no pass used it: it stays
    /// where it is, and its average comes nearer.
    pub count: Option<u64>,
}

/// One optimizer step with all its numbers decided.
#[derive(Clone, Copy, Debug)]
pub struct Update {
    rule: UpdateRule,
    lr: f64,
    weight_decay: f64,
    no_decay_on_1d: bool,
    preparation: Preparation,
    /// Share of their way to the parameters that averages go.
    follow: f32,
}

impl Update {
    /// An update at learning rate `lr`. `momentum` replaces SGD's momentum or Adam's first beta where a schedule moves
    /// it.
    pub fn new(plan: &OptimizerPlan, lr: f64, momentum: Option<f64>) -> Self {
        let rule = momentum.map_or(plan.rule, |value| with_momentum(plan.rule, value));
        Self {
            rule,
            lr,
            weight_decay: plan.weight_decay,
            no_decay_on_1d: plan.no_decay_on_1d,
            preparation: Preparation::default(),
            follow: 0.0,
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
        Self { follow: (1.0 - keep) as f32, ..self }
    }

    /// Moves the average of values that have no gradient.
    pub fn follow(&self, average: &mut [f32], values: &[f32]) {
        follow_values(average, values, self.follow);
    }

    /// Moves all parameters along their gradients in one pass over memory. Blocks are independent of
    /// each other: the number of threads changes no bit.
    pub fn apply<'a>(&self, parts: impl IntoIterator<Item = Part<'a>>) {
        let blocks: Vec<(Block<'a>, Factors)> =
            parts.into_iter().flat_map(|part| self.blocks(part)).collect();
        let elements: usize = blocks.iter().map(|(block, _)| block.values.len()).sum();
        let apply = |(mut block, factors): (Block<'a>, Factors)| {
            vectorised(
                #[inline(always)]
                || block.update(self.preparation, factors, self.follow),
            );
        };
        if elements < WORTH_SHARING {
            blocks.into_iter().for_each(apply);
        } else {
            blocks.into_par_iter().for_each(apply);
        }
    }

    /// The same update for a GPU and the parameters whose `count`-th it is; `None` if it changes nothing.
    #[cfg(feature = "cuda")]
    pub(crate) fn on_gpu(&self, count: Option<u64>) -> Option<Rule> {
        let Preparation { mean, clip, limit } = self.preparation;
        let rule = self.factors(count, self.weight_decay).on_gpu();
        let changes = count.is_some() || self.follow > 0.0;
        changes.then_some(Rule { mean, clip, limit, follow: self.follow, ..rule })
    }

    /// The blocks of one parameter, and what becomes of them.
    fn blocks<'a>(&self, part: Part<'a>) -> impl Iterator<Item = (Block<'a>, Factors)> {
        let exempt = self.no_decay_on_1d && part.dimensions <= 1;
        let factors = self.factors(part.count, if exempt { 0.0 } else { self.weight_decay });
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
            (n > 0).then_some((block, factors))
        })
    }

    /// What the `count`-th update of a parameter with this weight decay does to it.
    fn factors(&self, count: Option<u64>, decay: f64) -> Factors {
        let Some(count) = count else { return Factors::Still };
        let lr = self.lr as f32;
        match self.rule {
            UpdateRule::Sgd { momentum, dampening, nesterov } => {
                // PyTorch's buffer starts as the first gradient, undamped.
                let damp = if count == 1 { 1.0 } else { (1.0 - dampening) as f32 };
                let (penalty, momentum) = (decay as f32, momentum as f32);
                let factors = SgdFactors { lr, penalty, momentum, damp };
                match momentum {
                    0.0 => Factors::Sgd(factors),
                    _ if nesterov => Factors::Nesterov(factors),
                    _ => Factors::Momentum(factors),
                }
            }
            UpdateRule::Adam { beta1, beta2, eps } => {
                let factors = AdamFactors::new(self.lr, beta1, beta2, eps, count);
                Factors::Adam(factors.with_penalty(decay))
            }
            UpdateRule::AdamW { beta1, beta2, eps } => {
                let factors = AdamFactors::new(self.lr, beta1, beta2, eps, count);
                Factors::Adam(factors.with_shrinking(self.lr * decay))
            }
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

    /// Three updates of three parameters by `apply`, of which the second is not used at first; all values and moments.
    fn train(
        rule: UpdateRule,
        apply: impl Fn(Update, &mut [Vec<f32>], &[Vec<f32>], &mut [Moments], [Option<u64>; 3]),
    ) -> (Vec<Vec<f32>>, Vec<Moments>) {
        let sizes = [70_001, 3, BLOCK];
        let mut values: Vec<_> = sizes.iter().map(|&n| wave(n, n)).collect();
        let mut moments: Vec<_> =
            sizes.iter().map(|&n| Moments::new(&rule, n).averaged(n)).collect();
        for step in 1..=3 {
            let gradients: Vec<_> = sizes.iter().map(|&n| wave(n, step as usize)).collect();
            let update = Update::new(&plan(rule), 0.1, None).prepared(PREPARATION).averaging(0.9);
            let late = (step > 1).then_some(step - 1);
            apply(update, &mut values, &gradients, &mut moments, [Some(step), late, Some(step)]);
        }
        (values, moments)
    }

    fn parts<'a>(
        values: &'a mut [Vec<f32>],
        gradients: &'a [Vec<f32>],
        moments: &'a mut [Moments],
        counts: [Option<u64>; 3],
    ) -> impl Iterator<Item = Part<'a>> {
        let all = values.iter_mut().zip(gradients).zip(moments).enumerate();
        all.map(move |(i, ((values, gradient), moments))| Part {
            values,
            gradient,
            moments,
            dimensions: 1 + i,
            count: counts[i],
        })
    }

    #[test]
    fn threads_and_the_company_of_other_parameters_change_no_bit() {
        for rule in rules() {
            let together = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                train(rule, |update, values, gradients, moments, counts| {
                    pool.install(|| update.apply(parts(values, gradients, moments, counts)));
                })
            };
            let alone = train(rule, |update, values, gradients, moments, counts| {
                parts(values, gradients, moments, counts).for_each(|part| update.apply([part]));
            });
            assert!(together(1) == alone && together(3) == alone, "{rule:?}");
        }
    }

    #[test]
    fn the_instruction_set_changes_no_bit() {
        for rule in rules() {
            let dispatched = train(rule, |update, values, gradients, moments, counts| {
                update.apply(parts(values, gradients, moments, counts));
            });
            let plain = train(rule, |update, values, gradients, moments, counts| {
                let blocks =
                    parts(values, gradients, moments, counts).flat_map(|part| update.blocks(part));
                blocks.for_each(|(mut block, factors)| {
                    block.update(update.preparation, factors, update.follow);
                });
            });
            assert!(dispatched == plain, "{rule:?}");
        }
    }

    #[test]
    fn the_preparation_is_that_of_separate_passes() {
        for rule in rules() {
            let fused = train(rule, |update, values, gradients, moments, counts| {
                update.apply(parts(values, gradients, moments, counts));
            });
            let separate = train(rule, |update, values, gradients, moments, counts| {
                let Preparation { mean, clip, limit } = PREPARATION;
                let mut gradients = gradients.to_vec();
                gradients.iter_mut().flatten().for_each(|g| *g *= mean);
                gradients.iter_mut().flatten().for_each(|g| *g *= clip);
                gradients.iter_mut().flatten().for_each(|g| *g = g.clamp(-limit, limit));
                let update = update.prepared(Preparation::default());
                update.apply(parts(values, &gradients, moments, counts));
            });
            assert!(fused == separate, "{rule:?}");
        }
    }
}
