//! Exact evaluation: every sample exactly once, whatever the world size.

use std::collections::BTreeMap;

use crate::data::Batch;
use crate::data::sampler::Chunk;
use crate::engine::vote::{PassReport, Totals, exchange};
use crate::engine::{Engine, Error, NextBatch, loss};
use crate::launch::Phase;
use crate::nn::Pass;
use crate::plan::{OnBadSample, Plan};

/// What is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Validation samples: what a run is steered by.
    Val,
    /// Test samples: looked at once, when the run is over.
    Test,
}

impl Split {
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
    /// Metrics over all samples of `split`: `val/loss`, and `val/accuracy` for classifiers, `val/mse` and
    /// `val/mae` for numbers. This rank runs its `chunks`; sums are added in the order of the chunks over all
    /// ranks.
    ///
    /// # Errors
    ///
    /// A tensor operation, a sample or another rank failed; the loss is not finite.
    pub fn evaluate(
        &mut self,
        split: Split,
        chunks: &[Chunk],
        next: NextBatch<'_>,
    ) -> Result<BTreeMap<String, f64>, Error> {
        self.broadcast_buffers()?;
        let mut mine = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            // A loader that hangs is found here as in a step.
            (self.observer)(self.state.step, Phase::LoadingData);
            let batch = next()?;
            (self.observer)(self.state.step, Phase::Evaluating);
            // Under `on_bad_sample = "skip"` unreadable samples are left out.
            if !batch.samples.is_empty() {
                mine.push(self.evaluate_batch(chunk.index, &batch)?);
            }
        }
        let all = exchange(self.collective.as_ref(), &mine)?;
        let totals = Totals::over(all.iter().flatten());
        self.check(split, &totals)?;
        Ok(self.metrics(split, &totals))
    }

    fn evaluate_batch(&self, index: usize, batch: &Batch) -> Result<PassReport, Error> {
        let plan = &self.plan.loss;
        let convolutions = self.plan.convolutions;
        let pass = Pass { convolutions, ..Pass::eval(self.plan.precision) };
        let (loss, correct, errors) = self
            .placed(batch)
            .and_then(|(inputs, targets)| {
                let outputs = self.model.forward(&inputs, &pass)?;
                let loss = loss::mean(plan, &outputs, &targets)?;
                let correct = loss::correct(plan, &outputs, &targets)?;
                let errors = loss::errors(plan, &outputs, &targets)?;
                Ok((f64::from(loss::scalar(&loss)?), correct, errors))
            })
            .map_err(|source| Error::Tensor {
                phase: "evaluation",
                step: self.state.step,
                source,
            })?;
        Ok(PassReport::new(index, batch.samples.len() as u64, loss, correct).with_errors(errors))
    }

    /// The audit that makes "exactly once" more than an intention.
    fn check(&self, split: Split, totals: &Totals) -> Result<(), Error> {
        let expected = split.samples(&self.plan) as u64;
        let may_lack = self.plan.data.on_bad_sample == OnBadSample::Skip;
        if totals.samples > expected || (totals.samples < expected && !may_lack) {
            return Err(Error::Miscounted { counted: totals.samples, expected });
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
        Ok(())
    }

    fn metrics(&self, split: Split, totals: &Totals) -> BTreeMap<String, f64> {
        let mut metrics = vec![("loss", totals.loss)];
        if loss::is_classifier(&self.plan.loss) {
            let answers = totals.samples * self.plan.model.answers();
            metrics.push(("accuracy", totals.correct as f64 / answers as f64));
        }
        if let Some([squared, absolute]) = totals.errors {
            metrics.extend([("mse", squared), ("mae", absolute)]);
        }
        let name = split.name();
        metrics.into_iter().map(|(metric, value)| (format!("{name}/{metric}"), value)).collect()
    }
}
