//! One optimizer step over any number of parameters.

use rayon::prelude::*;

#[cfg(feature = "cuda")]
use crate::ops::cuda::Rule;
use crate::optim::block::follow_values;
use crate::optim::{Block, Optimizer, ParameterState, Preparation, Rates, Step};
use crate::plan::{OptimizerPlan, ParameterGroup};

/// Elements per block, the unit of work of a thread: 64 KiB of each vector.
const BLOCK: usize = 1 << 14;
/// Number of elements below which one thread is faster than several.
const PARALLEL_THRESHOLD: usize = 1 << 16;

/// One parameter in an update, with a gradient of its length. A frozen parameter has no part.
pub struct ParameterUpdate<'a> {
    pub values: &'a mut [f32],
    /// Gradient before the update's [`Preparation`].
    pub gradient: &'a [f32],
    pub state: &'a mut ParameterState,
    /// Index in registration order.
    pub index: usize,
    pub shape: &'a [usize],
    /// Number of this update of the parameter, from 1: `t` of Adam's bias correction. `None` = no
    /// pass used it, so it does not move, but its average does.
    pub count: Option<u64>,
}

/// One optimizer step: a rule and its rates.
#[derive(Clone, Copy, Debug)]
pub struct Update<'a> {
    rule: &'a dyn Optimizer,
    plan: &'a OptimizerPlan,
    rates: Rates,
    preparation: Preparation,
    /// Fraction of their distance to the parameters that averages move.
    follow: f32,
}

impl<'a> Update<'a> {
    /// Step of `rule`, the rule of `plan`, at the rates of a schedule.
    pub fn new(rule: &'a dyn Optimizer, plan: &'a OptimizerPlan, rates: Rates) -> Self {
        Self { rule, plan, rates, preparation: Preparation::default(), follow: 0.0 }
    }

    /// Sets the preparation of gradients.
    #[must_use]
    pub fn prepared(self, preparation: Preparation) -> Self {
        Self { preparation, ..self }
    }

    /// Also updates averages of the weights: average = keep x average + (1 - keep) x parameter.
    /// Without averages it changes nothing.
    #[must_use]
    pub fn averaging(self, keep: f64) -> Self {
        Self { follow: (1.0 - keep) as f32, ..self }
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn plan(&self) -> &'a OptimizerPlan {
        self.plan
    }

    /// Updates the average of values without a gradient.
    pub fn follow(&self, average: &mut [f32], values: &[f32]) {
        if self.follow > 0.0 {
            follow_values(average, values, self.follow);
        }
    }

    /// Updates all parameters in one pass over memory. Blocks are independent of each other, so the
    /// number of threads changes no bit.
    pub fn apply<'b>(&self, parts: impl IntoIterator<Item = ParameterUpdate<'b>>) {
        let blocks: Vec<(Block<'b>, Option<Step>)> =
            parts.into_iter().flat_map(|part| self.blocks(part)).collect();
        let elements: usize = blocks.iter().map(|(block, _)| block.len()).sum();
        if elements < PARALLEL_THRESHOLD {
            for (block, step) in blocks {
                self.move_block(block, step);
            }
        } else {
            blocks.into_par_iter().for_each(|(block, step)| self.move_block(block, step));
        }
    }

    fn move_block(&self, mut block: Block<'_>, step: Option<Step>) {
        if let Some(step) = step {
            self.rule.update(&mut block, &step);
        }
        if self.follow > 0.0 {
            block.follow(self.follow);
        }
    }

    /// Arguments of the GPU kernel for the `count`-th update of parameters of `group`; `None` if it
    /// changes nothing.
    #[cfg(feature = "cuda")]
    pub(crate) fn on_gpu(
        &self,
        count: Option<u64>,
        group: Option<&ParameterGroup>,
    ) -> Option<Rule> {
        let Preparation { mean, clip, limit } = self.preparation;
        let still = Rule { kind: Rule::AVERAGE_ONLY, ..Rule::default() };
        let weight_decay = group.map_or(self.plan.weight_decay, |group| group.weight_decay);
        let step = self.step(count, group, weight_decay);
        let rule = step.map_or(Some(still), |step| self.rule.on_gpu(&step))?;
        let changes = count.is_some() || self.follow > 0.0;
        changes.then_some(Rule { mean, clip, limit, follow: self.follow, ..rule })
    }

    /// Blocks of one parameter, each with its step.
    fn blocks<'b>(
        &self,
        part: ParameterUpdate<'b>,
    ) -> impl Iterator<Item = (Block<'b>, Option<Step>)> {
        let weight_decay = self.plan.weight_decay_of(part.index, part.shape.len());
        let step = self.step(part.count, self.plan.group(part.index), weight_decay);
        let preparation = self.preparation;
        let is_matrix = self.plan.group(part.index).is_some_and(|group| group.is_matrix);
        let most = if self.rule.takes_whole_tensors() { usize::MAX } else { BLOCK };
        let ParameterUpdate { mut values, mut gradient, state, shape, .. } = part;
        let ParameterState { tensors, average } = state;
        let mut tensors: Vec<&mut [f32]> =
            tensors.iter_mut().map(|tensor| &mut tensor.values[..]).collect();
        let mut average = &mut average[..];
        std::iter::from_fn(move || {
            let n = most.min(values.len());
            let block = Block {
                values: values.split_off_mut(..n)?,
                gradient: gradient.split_off(..n.min(gradient.len()))?,
                preparation,
                state: tensors
                    .iter_mut()
                    .map(|tensor| tensor.split_off_mut(..n.min(tensor.len())))
                    .collect::<Option<_>>()?,
                average: average.split_off_mut(..n.min(average.len()))?,
                shape,
                is_matrix,
            };
            (n > 0).then_some((block, step))
        })
    }

    /// Rates of the `count`-th update of a parameter of `group`; `None` if it is not updated.
    fn step(
        &self,
        count: Option<u64>,
        group: Option<&ParameterGroup>,
        weight_decay: f64,
    ) -> Option<Step> {
        let Rates { lr, momentum } = self.rates;
        let lr = lr * group.map_or(1.0, |group| group.lr_factor);
        count.map(|count| Step { lr, weight_decay, count, momentum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::kind::{Choice, Options};
    use crate::optim::{Optimizers, RmsProp, Sgd, facts};

    const PREPARATION: Preparation = Preparation { mean: 0.3, clip: 0.7, limit: 0.15 };

    fn plan(rule: &dyn Optimizer) -> OptimizerPlan {
        let choice = Choice { name: String::new(), options: Options::new() };
        let plan = OptimizerPlan::new(choice, facts(rule), 0.1);
        OptimizerPlan { weight_decay: 0.01, no_decay_on_1d: true, ..plan }
    }

    fn rules() -> Vec<Box<dyn Optimizer>> {
        let all = Optimizers::default();
        let mut rules: Vec<_> =
            all.names().map(|name| all.build(&Choice::named(name)).unwrap()).collect();
        let sgd = |nesterov| Sgd { momentum: 0.9, nesterov, dampening: 0.5, ..Sgd::default() };
        rules.push(Box::new(sgd(false)));
        rules.push(Box::new(sgd(true)));
        rules.push(Box::new(RmsProp { momentum: 0.9, ..RmsProp::default() }));
        rules
    }

    fn wave(n: usize, salt: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7 + salt) as f32 * 0.37).sin()).collect()
    }

    /// Three updates of three parameters by `apply`, of which the second is not used at first; all
    /// values and states.
    fn train(
        rule: &dyn Optimizer,
        apply: impl Fn(
            Update<'_>,
            &mut [Vec<f32>],
            &[Vec<f32>],
            &mut [ParameterState],
            [Option<u64>; 3],
        ),
    ) -> (Vec<Vec<f32>>, Vec<ParameterState>) {
        let plan = plan(rule);
        let rates = Rates { lr: 0.1, momentum: None };
        let sizes = [70_001, 3, BLOCK];
        let mut values: Vec<_> = sizes.iter().map(|&n| wave(n, n)).collect();
        let mut states: Vec<_> =
            sizes.iter().map(|&n| ParameterState::zeros(&plan, 0, &[n]).averaged(n)).collect();
        for step in 1..=3 {
            let gradients: Vec<_> = sizes.iter().map(|&n| wave(n, step as usize)).collect();
            let update = Update::new(rule, &plan, rates).prepared(PREPARATION).averaging(0.9);
            let late = (step > 1).then_some(step - 1);
            apply(update, &mut values, &gradients, &mut states, [Some(step), late, Some(step)]);
        }
        (values, states)
    }

    fn parts<'a>(
        values: &'a mut [Vec<f32>],
        gradients: &'a [Vec<f32>],
        states: &'a mut [ParameterState],
        counts: [Option<u64>; 3],
    ) -> impl Iterator<Item = ParameterUpdate<'a>> {
        let all = values.iter_mut().zip(gradients).zip(states).enumerate();
        all.map(move |(i, ((values, gradient), state))| ParameterUpdate {
            values,
            gradient,
            state,
            index: i,
            shape: &[1; 3][..=i],
            count: counts[i],
        })
    }

    #[test]
    fn threads_and_the_company_of_other_parameters_change_no_bit() {
        for rule in &rules() {
            let rule = rule.as_ref();
            let together = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                train(rule, |update, values, gradients, states, counts| {
                    pool.install(|| update.apply(parts(values, gradients, states, counts)));
                })
            };
            let alone = train(rule, |update, values, gradients, states, counts| {
                parts(values, gradients, states, counts).for_each(|part| update.apply([part]));
            });
            assert!(together(1) == alone && together(3) == alone, "{rule:?}");
        }
    }

    #[test]
    fn the_preparation_is_that_of_separate_passes() {
        for rule in &rules() {
            let rule = rule.as_ref();
            let fused = train(rule, |update, values, gradients, states, counts| {
                update.apply(parts(values, gradients, states, counts));
            });
            let separate = train(rule, |update, values, gradients, states, counts| {
                let Preparation { mean, clip, limit } = PREPARATION;
                let mut gradients = gradients.to_vec();
                gradients.iter_mut().flatten().for_each(|g| *g *= mean);
                gradients.iter_mut().flatten().for_each(|g| *g *= clip);
                gradients.iter_mut().flatten().for_each(|g| *g = g.clamp(-limit, limit));
                let update = update.prepared(Preparation::default());
                update.apply(parts(values, &gradients, states, counts));
            });
            assert!(fused == separate, "{rule:?}");
        }
    }
}
