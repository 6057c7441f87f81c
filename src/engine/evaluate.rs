//! Exact evaluation: every sample exactly once, whatever the world size.

use std::collections::BTreeMap;

use candle_core::Tensor;

use crate::data::sampler::Chunk;
use crate::data::{self, Batch};
use crate::engine::pass::draws;
use crate::engine::step::NextBatch;
use crate::engine::vote::{PassReport, Totals, exchange};
use crate::engine::{Engine, Error, loss};
use crate::launch::Phase;
use crate::loss::counted_samples;
use crate::metric::Share;
use crate::model::{Comparison, asked};
use crate::nn::ForwardContext;
use crate::plan::{OnBadSample, Plan, TestTimeAugmentation};
use crate::rng::Key;

/// Stands for the epoch where a model draws in an evaluation: each evaluation draws the same.
const EVALUATION: u64 = u64::MAX;

/// What is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Validation samples: what a run is steered by.
    Val,
    /// Test samples: looked at once, when the run is over.
    Test,
}

/// What an evaluation measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    LossOnly,
    /// The metrics, too.
    All,
}

/// What an evaluation found; equal on all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// `val/loss` ...
    pub metrics: BTreeMap<String, f64>,
    /// Samples that were evaluated, each once.
    pub samples: u64,
    /// Samples that cannot be read.
    pub unreadable: u64,
}

impl Split {
    /// What messages call its samples.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Val => "validation",
            Self::Test => "test",
        }
    }

    /// First part of its metrics' names.
    fn name(self) -> &'static str {
        match self {
            Self::Val => "val",
            Self::Test => "test",
        }
    }

    /// Number of its samples.
    pub(crate) fn samples(self, plan: &Plan) -> usize {
        match self {
            Self::Val => plan.data.n_val,
            Self::Test => plan.data.n_test,
        }
    }
}

impl Engine {
    /// Metrics over all samples of `split`: `val/loss` (without label smoothing), and what the registered metrics measure of such
    /// answers, of the averaged parameters where there are averages. This rank runs its `chunks`; sums are added in the order of the chunks over all
    /// ranks.
    ///
    /// # Errors
    ///
    /// A tensor operation, a sample or another rank failed; the loss is not finite; too many samples cannot be read, or
    /// no label of them counts.
    pub fn evaluate(
        &mut self,
        split: Split,
        chunks: &[Chunk],
        next: NextBatch<'_>,
    ) -> Result<Evaluation, Error> {
        self.broadcast_buffers()?;
        let step = self.state.step;
        self.averaged(|engine| {
            // Now these are their averages, if they have some, which are rank 0's too.
            if engine.plan.ema.is_some_and(|ema| ema.use_buffers) {
                engine.broadcast_buffers()?;
            }
            engine.evaluate_parameters(split, chunks, next)
        })
        .map_err(|source| Error::Tensor { phase: "evaluation", step, source })?
    }

    fn evaluate_parameters(
        &mut self,
        split: Split,
        chunks: &[Chunk],
        next: NextBatch<'_>,
    ) -> Result<Evaluation, Error> {
        let answers = self.answers(split);
        let mut mine = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            // A loader that hangs is found here as in a step.
            (self.observer)(self.state.step, Phase::LoadingData);
            let batch = next()?;
            (self.observer)(self.state.step, Phase::Evaluating);
            // Under `on_bad_sample = "skip"` unreadable samples are left out.
            if !batch.samples.is_empty() {
                mine.push(self.evaluate_batch(chunk.index, &batch, answers)?);
            }
        }
        let all = exchange(self.collective.as_ref(), &mine)?;
        let totals = Totals::over(all.iter().flatten());
        let unreadable = self.audit(split, &totals)?;
        Ok(Evaluation { metrics: self.means(split, &totals), samples: totals.samples, unreadable })
    }

    /// What the model answers to `inputs`, with the averaged parameters where there are averages. Each sample draws
    /// from its key.
    ///
    /// # Errors
    ///
    /// A shape that does not fit.
    pub fn answer(&mut self, inputs: &Tensor, draws: &[Key]) -> candle_core::Result<Tensor> {
        let pass = ForwardContext {
            convolutions: self.plan.convolutions,
            ..ForwardContext::eval(self.plan.precision)
        };
        self.averaged(|engine| asked(&*engine.model, inputs, draws, &pass))?
    }

    /// What is asked beside the loss: nothing in most evaluations where an answer takes many passes.
    fn answers(&self, split: Split) -> Answers {
        let state = &self.state;
        let is_due = split == Split::Test
            || state.evaluations.is_multiple_of(self.plan.sample_every.max(1))
            || state.step >= self.plan.length.total_steps;
        if self.model.samples() && !is_due { Answers::LossOnly } else { Answers::All }
    }

    fn evaluate_batch(
        &self,
        index: usize,
        batch: &Batch,
        answers: Answers,
    ) -> Result<PassReport, Error> {
        let convolutions = self.plan.convolutions;
        let pass = ForwardContext { convolutions, ..ForwardContext::eval(self.plan.precision) };
        let draws = draws(&self.plan, EVALUATION, &batch.samples);
        let n = batch.samples.len();
        let ((loss, weight), measured) = self
            .batch_on_device(batch)
            .and_then(|(inputs, targets)| {
                let compared = self.compared([&inputs, &targets], &draws, &pass)?;
                let Comparison { outputs, targets: wanted } = &compared;
                let loss = self.loss.measured(outputs, wanted)?;
                let measured = match answers {
                    Answers::LossOnly => Vec::new(),
                    Answers::All => match self.model.answer(&inputs, &draws, &pass)? {
                        Some(answer) => self.measured(&answer, &targets)?,
                        None => self.measured(outputs, wanted)?,
                    },
                };
                let weight = counted_samples(wanted, n)?;
                Ok(((f64::from(loss::scalar(&loss)?), weight), measured))
            })
            .map_err(|source| Error::Tensor {
                phase: "evaluation",
                step: self.state.step,
                source,
            })?;
        let report = PassReport::new(index, n as u64, loss, [0, 0]).weighing(weight);
        Ok(report.with_metrics(&measured))
    }

    /// What is compared; the mean of the answers to an image and to its mirror image where that is asked for, as timm's
    /// test-time augmentation.
    fn compared(
        &self,
        [inputs, targets]: [&Tensor; 2],
        draws: &[Key],
        pass: &ForwardContext,
    ) -> candle_core::Result<Comparison> {
        let compared = self.model.compare(inputs, targets, draws, pass)?;
        match self.plan.test_time_augmentation {
            None => Ok(compared),
            Some(TestTimeAugmentation::Hflip) => {
                let mirrored = inputs.flip(&[inputs.rank() - 1])?;
                let mirrored = self.model.compare(&mirrored, targets, draws, pass)?;
                let outputs = ((compared.outputs + mirrored.outputs)? / 2.0)?;
                Ok(Comparison { outputs, ..compared })
            }
        }
    }

    /// Each metric's sum over a batch.
    fn measured(&self, outputs: &Tensor, targets: &Tensor) -> candle_core::Result<Vec<Share>> {
        self.metrics.iter().map(|metric| metric.measure(outputs, targets)).collect()
    }

    /// The audit that makes "exactly once" more than an intention. Returns how many samples were left out.
    fn audit(&self, split: Split, totals: &Totals) -> Result<u64, Error> {
        let samples = split.samples(&self.plan) as u64;
        let (counted, data) = (totals.samples, &self.plan.data);
        let unreadable = samples.checked_sub(counted);
        let may_lack = data.on_bad_sample == OnBadSample::Skip;
        let unreadable = unreadable.filter(|&missing| missing == 0 || may_lack);
        let unreadable = unreadable.ok_or(Error::Miscounted { counted, expected: samples })?;
        if !data.tolerates(unreadable, samples) {
            let (split, most) = (split.words(), data.max_bad_fraction);
            return Err(data::Error::TooManyUnreadable { split, unreadable, samples, most }.into());
        }
        if totals.weight <= 0.0 {
            return Err(Error::NothingCounts { split: split.words() });
        }
        if !totals.loss.is_finite() {
            let step = self.state.step;
            let culprit = String::new();
            let what = match split {
                Split::Val => "the validation loss",
                Split::Test => "the test loss",
            };
            return Err(Error::NotFinite { what, step, culprit });
        }
        Ok(unreadable)
    }

    /// The same for training: all ranks find at the same step that too many samples of the epoch cannot be read.
    pub(super) fn check_readable(&self, totals: &Totals) -> Result<(), Error> {
        let (plan, sums) = (&self.plan, &self.state.sums);
        let unreadable = sums.unreadable + totals.unreadable;
        let whole = plan.length.steps_per_epoch * plan.batch.global.count() as u64;
        let samples = whole.min(plan.data.n_train as u64);
        if plan.data.tolerates(unreadable, samples) {
            return Ok(());
        }
        let (split, most) = ("training", plan.data.max_bad_fraction);
        Err(data::Error::TooManyUnreadable { split, unreadable, samples, most }.into())
    }

    fn means(&self, split: Split, totals: &Totals) -> BTreeMap<String, f64> {
        let names = self.metrics.iter().map(|metric| metric.name());
        let measured = names.zip(totals.metrics.iter().copied());
        let metrics = std::iter::once(("loss", totals.loss)).chain(measured);
        let name = split.name();
        metrics.map(|(metric, value)| (format!("{name}/{metric}"), value)).collect()
    }
}
