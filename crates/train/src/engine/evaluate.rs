//! Exact evaluation: every sample exactly once, whatever the world size.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::collective::Collective;
use crate::data::sampler::Chunk;
use crate::data::{self, Batch};
use crate::engine::batch_to_device::DeviceBatch;
use crate::engine::pass::{draws, scalar};
use crate::engine::step::NextBatch;
use crate::engine::vote::{PassReport, Totals, exchange};
use crate::engine::{Engine, Error};
use crate::event::{Phase, Stop};
use crate::loss::{counted, counted_samples};
use crate::metric::{self, MetricState};
use crate::model::{Comparison, predict};
use crate::nn::ForwardContext;
use crate::plan::{OnBadSample, Plan, TestTimeAugmentation};
use crate::rng::Key;

/// Stands for the epoch where a model draws in an evaluation: each evaluation draws the same.
const EVALUATION: u64 = u64::MAX;

/// The samples that are evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Validation samples: what a run is steered by.
    Val,
    /// Test samples: looked at once, when the run is over.
    Test,
}

/// The scope of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EvaluationScope {
    LossOnly,
    /// The metrics, too.
    All,
}

/// The result of an evaluation; equal on all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// `val/loss` ...
    pub metrics: BTreeMap<String, f64>,
    /// Accumulated state of the metrics; several metrics may share one: see
    /// [`Engine::metric_state`].
    pub(crate) states: Vec<MetricState>,
    /// The samples of this rank that the model is most wrong about, the worst first, if they were
    /// asked for.
    pub worst: Vec<MisjudgedSample>,
    /// Samples that were evaluated, each once.
    pub samples: u64,
    /// Samples that cannot be read.
    pub unreadable: u64,
    /// The strongest request to stop that any rank had at its end.
    pub stop_request: Option<Stop>,
}

/// A rank's message to the others when its chunks are evaluated, or will not be.
#[derive(Serialize, Deserialize)]
struct RankResults {
    passes: Vec<PassReport>,
    stop_request: Option<Stop>,
    /// True if chunks are missing, because of that request.
    is_broken_off: bool,
}

/// A sample that the model is wrong about.
#[derive(Clone, Debug, PartialEq)]
pub struct MisjudgedSample {
    /// Index in its split.
    pub sample: u32,
    pub loss: f64,
    /// The sample's class, and the class that the model takes it for.
    pub classes: Option<[u32; 2]>,
}

impl Split {
    /// The name of the samples in messages.
    pub fn words(self) -> &'static str {
        match self {
            Self::Val => "validation",
            Self::Test => "test",
        }
    }

    /// First part of its metrics' names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Val => "val",
            Self::Test => "test",
        }
    }

    /// Number of its samples that are evaluated.
    pub fn samples(self, plan: &Plan) -> usize {
        let all = match self {
            Self::Val => plan.data.n_val,
            Self::Test => plan.data.n_test,
        };
        plan.evaluated_samples.map_or(all, |most| all.min(most))
    }
}

impl Engine {
    /// Metrics over all samples of `split`: `val/loss` (without label smoothing), and what the
    /// registered metrics measure of such answers, of the averaged parameters where there are
    /// averages. This rank runs its `chunks`; sums are added in the order of the chunks over all
    /// ranks.
    pub fn evaluate(
        &mut self,
        split: Split,
        chunks: &[Chunk],
        next: NextBatch<'_>,
    ) -> Result<Evaluation, Error> {
        self.evaluate_unless(split, chunks, next, &|| None)
    }

    /// Evaluates as [`Engine::evaluate`], but ends after the batch at hand once `stop_request` asks
    /// for it.
    ///
    /// # Errors
    ///
    /// [`Error::BrokenOff`] on all ranks if any of them left out a batch; and what
    /// [`Engine::evaluate`] returns.
    pub fn evaluate_unless(
        &mut self,
        split: Split,
        chunks: &[Chunk],
        next: NextBatch<'_>,
        stop_requested: &dyn Fn() -> Option<Stop>,
    ) -> Result<Evaluation, Error> {
        self.broadcast_buffers()?;
        let step = self.state.step;
        self.averaged(|engine| {
            // Now these are their averages, if they have some, which are rank 0's too.
            if engine.plan.average().is_some_and(|average| average.of_buffers) {
                engine.broadcast_buffers()?;
            }
            engine.evaluate_parameters(split, chunks, next, stop_requested)
        })
        .map_err(Error::tensor("evaluation", step))?
    }

    /// Evaluates the parameters themselves where averages replace them otherwise: `val/loss`
    /// becomes `val_weights/loss`.
    pub fn evaluate_weights(
        &mut self,
        split: Split,
        chunks: &[Chunk],
        next: NextBatch<'_>,
        stop_requested: &dyn Fn() -> Option<Stop>,
    ) -> Result<Evaluation, Error> {
        self.broadcast_buffers()?;
        let mut found = self.evaluate_parameters(split, chunks, next, stop_requested)?;
        let renamed = |(name, value): (String, f64)| (name.replacen('/', "_weights/", 1), value);
        found.metrics = found.metrics.into_iter().map(renamed).collect();
        Ok(found)
    }

    /// True if the averages that replace the parameters still hold so much of the initial weights
    /// that the parameters should be measured, too.
    pub fn has_young_average(&self) -> bool {
        self.plan.ema.is_some_and(|ema| ema.is_young(self.state.updates))
    }

    fn evaluate_parameters(
        &mut self,
        split: Split,
        chunks: &[Chunk],
        next: NextBatch<'_>,
        stop_requested: &dyn Fn() -> Option<Stop>,
    ) -> Result<Evaluation, Error> {
        let scope = self.scope(split);
        let mut passes = Vec::with_capacity(chunks.len());
        let mut states = Vec::new();
        let mut worst = Vec::new();
        let mut is_broken_off = false;
        for chunk in chunks {
            // Every rank hears of it by itself. One that does not waits for the others at the end.
            is_broken_off = stop_requested().is_some_and(Stop::is_urgent);
            if is_broken_off {
                break;
            }
            // A loader that hangs is found here as in a step.
            (self.observer)(self.state.step, Phase::LoadingData);
            let batch = next()?;
            (self.observer)(self.state.step, Phase::Evaluating);
            // Under `on_bad_sample = "skip"` unreadable samples are left out.
            if !batch.samples.is_empty() {
                let found = self.evaluate_batch(chunk.index, &batch, scope)?;
                passes.push(found.report);
                states.push((chunk.index, found.states));
                add_worst(&mut worst, found.worst, self.most_worst);
            }
        }
        let mine = RankResults { passes, stop_request: stop_requested(), is_broken_off };
        let all = exchange(self.collective.as_ref(), &mine)?;
        let stop_request = all.iter().filter_map(|part| part.stop_request).max();
        if let Some(stop) = stop_request
            && all.iter().any(|part| part.is_broken_off)
        {
            return Err(Error::BrokenOff(stop));
        }
        let totals = Totals::over(all.iter().flat_map(|part| &part.passes));
        let states = gather(self.collective.as_ref(), &states)?;
        let unreadable = self.audit(split, &totals)?;
        let metrics = self.values(split, totals.loss, &states);
        let samples = totals.samples;
        Ok(Evaluation { metrics, states, worst, samples, unreadable, stop_request })
    }

    /// Returns the model's answers to `inputs` in the CPU's memory, by the averaged parameters
    /// where there are averages. Each sample draws from its key.
    pub fn predict(&mut self, inputs: &Tensor, draws: &[Key]) -> candle_core::Result<Tensor> {
        // A simulation asks thousands of times.
        (self.observer)(self.state.step, Phase::Evaluating);
        let pass = self.context();
        let inputs = self.inputs_on_device(inputs)?;
        self.averaged(|engine| predict(&*engine.model, &inputs, draws, &pass))?
    }

    /// Returns the context for the layers in an evaluation.
    fn context(&self) -> ForwardContext {
        let convolutions = self.plan.convolutions;
        ForwardContext { convolutions, ..ForwardContext::eval(self.plan.precision) }
    }

    /// Returns the scope of an evaluation: mostly the loss alone where an answer takes many passes.
    fn scope(&self, split: Split) -> EvaluationScope {
        let state = &self.state;
        let is_due = split == Split::Test
            || state.evaluations.is_multiple_of(self.plan.sample_every.max(1))
            || state.step >= self.plan.length.total_steps;
        if self.model.samples_in_steps() && !is_due {
            EvaluationScope::LossOnly
        } else {
            EvaluationScope::All
        }
    }

    fn evaluate_batch(
        &self,
        index: usize,
        batch: &Batch,
        scope: EvaluationScope,
    ) -> Result<BatchResults, Error> {
        let pass = ForwardContext { segments: batch.segments.clone(), ..self.context() };
        let draws = draws(&self.plan, EVALUATION, &batch.samples);
        let n = batch.samples.len();
        let (loss, weight, states, worst) = self
            .batch_on_device(batch)
            .and_then(|DeviceBatch { inputs, targets }| {
                let compared = self.compared(&inputs, &targets, &draws, &pass)?;
                let Comparison { outputs, targets: wanted } = &compared;
                let loss = self.loss.measured(outputs, wanted)?;
                let states = match scope {
                    EvaluationScope::LossOnly => Vec::new(),
                    EvaluationScope::All => match self.answer_to(&inputs, &draws, &pass)? {
                        Some(answer) => metric::measure(&self.metrics, &answer, &targets)?,
                        None => metric::measure(&self.metrics, outputs, wanted)?,
                    },
                };
                let weight = counted_samples(wanted, n)?;
                let worst = self.loss_of_each(&batch.samples, &compared)?;
                Ok((f64::from(scalar(&loss)?), weight, states, worst))
            })
            .map_err(Error::tensor("evaluation", self.state.step))?;
        let report = PassReport::new(index, n as u64, loss, [0, 0]).with_weight(weight);
        Ok(BatchResults { report, states, worst })
    }

    /// Returns outputs and targets to compare; with test-time augmentation the outputs are the mean
    /// over all views of an image.
    fn compared(
        &self,
        inputs: &Tensor,
        targets: &Tensor,
        draws: &[Key],
        pass: &ForwardContext,
    ) -> candle_core::Result<Comparison> {
        let how = self.plan.test_time_augmentation;
        let mut views = each_view(inputs, how)?;
        if how.is_some_and(TestTimeAugmentation::mirrors) {
            let mirror =
                |(view, weight): &(Tensor, f64)| Ok((view.flip(&[view.rank() - 1])?, *weight));
            let mirrored = views.iter().map(mirror).collect::<candle_core::Result<Vec<_>>>()?;
            views.extend(mirrored);
        }
        let total: f64 = views.iter().map(|(_, weight)| weight).sum();
        let mut views = views.into_iter();
        let (first, weight) = views.next().unwrap_or_else(|| (inputs.clone(), 1.0));
        let mut compared = self.model.compare(&first, targets, draws, pass)?;
        compared.outputs = weighed(compared.outputs, weight)?;
        for (view, weight) in views {
            let more = self.model.compare(&view, targets, draws, pass)?;
            compared.outputs = (compared.outputs + weighed(more.outputs, weight)?)?;
        }
        compared.outputs = weighed(compared.outputs, 1.0 / total)?;
        Ok(compared)
    }

    /// Returns the model's answer where it is not the prediction of a single pass. There are no
    /// views then.
    fn answer_to(
        &self,
        inputs: &Tensor,
        draws: &[Key],
        pass: &ForwardContext,
    ) -> candle_core::Result<Option<Tensor>> {
        if self.plan.test_time_augmentation.is_some() {
            return Ok(None);
        }
        self.model.predict(inputs, draws, pass)
    }

    /// Each sample by itself, if the worst ones are asked for.
    fn loss_of_each(
        &self,
        samples: &[u32],
        Comparison { outputs, targets }: &Comparison,
    ) -> candle_core::Result<Vec<MisjudgedSample>> {
        if self.most_worst == 0 || outputs.dim(0)? != samples.len() {
            return Ok(Vec::new());
        }
        let classifies = self.plan.loss.has_classes() && targets.rank() == 1;
        let one = |(at, &sample): (usize, &u32)| {
            let output = outputs.narrow(0, at, 1)?;
            let target = targets.narrow(0, at, 1)?;
            let loss = f64::from(scalar(&self.loss.measured(&output, &target)?)?);
            let classes = classifies.then(|| metric::one_answer(&output, &target)).transpose()?;
            Ok(MisjudgedSample { sample, loss, classes: classes.flatten() })
        };
        samples.iter().enumerate().map(one).collect()
    }

    /// Makes evaluations report the `most` samples that the model is most wrong about. It takes a
    /// loss for each sample.
    pub fn name_worst(&mut self, most: usize) {
        self.most_worst = most;
    }

    /// The state that the metrics which keep `keeps` have accumulated in an evaluation.
    pub fn metric_state<'a>(&self, found: &'a Evaluation, keeps: &str) -> Option<&'a MetricState> {
        metric::state_of(&self.metrics, &found.states, keeps)
    }

    /// The audit that makes "exactly once" more than an intention. Returns how many samples were
    /// left out.
    fn audit(&self, split: Split, totals: &Totals) -> Result<u64, Error> {
        let samples = split.samples(&self.plan) as u64;
        let counted = totals.samples;
        let data = &self.plan.data;
        let unreadable = samples.checked_sub(counted);
        let may_lack = data.on_bad_sample == OnBadSample::Skip;
        let unreadable = unreadable.filter(|&missing| missing == 0 || may_lack);
        let unreadable = unreadable.ok_or(Error::Miscounted { counted, expected: samples })?;
        if !data.tolerates(unreadable, samples) {
            let split = split.words();
            let most = data.max_bad_fraction;
            return Err(data::Error::TooManyUnreadable { split, unreadable, samples, most }.into());
        }
        if totals.weight <= 0.0 {
            return Err(Error::NothingCounts { split: split.words() });
        }
        if !totals.loss.is_finite() {
            let split = split.words();
            let step = self.state.step;
            return Err(Error::EvaluationNotFinite { split, step });
        }
        Ok(unreadable)
    }

    /// Checks for training what [`Engine::audit`] checks for evaluations: all ranks find at the
    /// same step that too many samples of the epoch cannot be read.
    pub(super) fn check_readable(&self, totals: &Totals) -> Result<(), Error> {
        let plan = &self.plan;
        let sums = &self.state.sums;
        let unreadable = sums.unreadable + totals.unreadable;
        let whole = plan.length.steps_per_epoch * plan.batch.global.count() as u64;
        let samples = whole.min(plan.data.n_train as u64);
        if plan.data.tolerates(unreadable, samples) {
            return Ok(());
        }
        let split = "training";
        let most = plan.data.max_bad_fraction;
        Err(data::Error::TooManyUnreadable { split, unreadable, samples, most }.into())
    }

    fn values(&self, split: Split, loss: f64, states: &[MetricState]) -> BTreeMap<String, f64> {
        let columns = &self.plan.data.target_columns;
        let scales: Vec<f64> = columns.iter().map(|column| column.scale).collect();
        let measured = metric::values(&self.metrics, states, &scales);
        let metrics = std::iter::once(("loss", loss)).chain(measured);
        let name = split.name();
        metrics.map(|(metric, value)| (format!("{name}/{metric}"), value)).collect()
    }

    /// Runs `work` with the weights that are evaluated: the averages, where they are complete.
    pub fn with_evaluated_weights<T>(&mut self, work: impl FnOnce(&Self) -> T) -> Result<T, Error> {
        let step = self.state.step;
        self.averaged(|engine| work(engine)).map_err(Error::tensor("prediction", step))
    }

    /// The answer to each sample of `batch`, its numbers one after the other, with the weights at
    /// hand; as evaluations compare it.
    pub fn predict_batch(&self, batch: &Batch) -> Result<Vec<Vec<f32>>, Error> {
        self.predicting(|| {
            let answers = self.batch_outputs(batch)?;
            let answers = answers.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
            answers.flatten_from(1)?.to_vec2()
        })
    }

    /// The mean loss of each sample of `batch`, a text, and how many tokens it is the mean of.
    pub fn token_losses(&self, batch: &Batch) -> Result<Vec<(f64, u64)>, Error> {
        self.predicting(|| {
            let outputs = self.batch_outputs(batch)?;
            let one = |at| {
                let output = outputs.narrow(0, at, 1)?;
                let target = batch.targets.narrow(0, at, 1)?;
                let tokens = match target.dtype() {
                    DType::I64 => counted(&target)?,
                    _ => target.elem_count(),
                };
                Ok((f64::from(scalar(&self.loss.measured(&output, &target)?)?), tokens as u64))
            };
            (0..batch.samples.len()).map(one).collect()
        })
    }

    fn batch_outputs(&self, batch: &Batch) -> candle_core::Result<Tensor> {
        let draws = draws(&self.plan, EVALUATION, &batch.samples);
        let DeviceBatch { inputs, .. } = self.batch_on_device(batch)?;
        predict(&*self.model, &inputs, &draws, &self.context())
    }

    fn predicting<T>(&self, work: impl FnOnce() -> candle_core::Result<T>) -> Result<T, Error> {
        let step = self.state.step;
        work().map_err(Error::tensor("prediction", step))
    }
}

/// Returns the views of (n, channels, height, width), or of (n, views, channels, height, width),
/// each with its weight.
fn each_view(
    inputs: &Tensor,
    how: Option<TestTimeAugmentation>,
) -> candle_core::Result<Vec<(Tensor, f64)>> {
    if how == Some(TestTimeAugmentation::HflipTranslate) {
        let moved =
            [(shifted(inputs, Towards::End)?, 1.0), (shifted(inputs, Towards::Start)?, 1.0)];
        return Ok([(inputs.clone(), 2.0)].into_iter().chain(moved).collect());
    }
    if !how.is_some_and(TestTimeAugmentation::has_views) {
        return Ok(vec![(inputs.clone(), 1.0)]);
    }
    let view = |at| Ok((inputs.narrow(1, at, 1)?.squeeze(1)?.contiguous()?, 1.0));
    (0..inputs.dim(1)?).map(view).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Towards {
    Start,
    End,
}

/// (n, channels, height, width), of which rows and columns are moved by one; what comes in is the
/// reflection of the border.
fn shifted(images: &Tensor, towards: Towards) -> candle_core::Result<Tensor> {
    let along = |images: &Tensor, dim: usize| {
        let n = images.dim(dim)?;
        let inner = n.saturating_sub(2).min(1);
        match towards {
            Towards::End => {
                let rest = images.narrow(dim, 0, n - 1)?;
                Tensor::cat(&[&images.narrow(dim, inner, 1)?, &rest], dim)
            }
            Towards::Start => {
                let rest = images.narrow(dim, 1, n - 1)?;
                Tensor::cat(&[&rest, &images.narrow(dim, n - 1 - inner, 1)?], dim)
            }
        }
    };
    along(&along(images, 2)?, 3)
}

fn weighed(outputs: Tensor, weight: f64) -> candle_core::Result<Tensor> {
    if weight == 1.0 { Ok(outputs) } else { outputs * weight }
}

/// Results of one batch of an evaluation.
struct BatchResults {
    report: PassReport,
    states: Vec<MetricState>,
    /// Each of its samples, if the worst ones are asked for.
    worst: Vec<MisjudgedSample>,
}

/// Keeps the `most` samples with the largest losses, the first of equal ones.
fn add_worst(worst: &mut Vec<MisjudgedSample>, more: Vec<MisjudgedSample>, most: usize) {
    worst.extend(more);
    worst.sort_by(|a, b| b.loss.total_cmp(&a.loss).then(a.sample.cmp(&b.sample)));
    worst.truncate(most);
}

/// Gathers the metric states of all ranks' chunks and adds them in the order of the chunks; empty
/// without chunks.
fn gather(
    collective: &dyn Collective,
    mine: &[(usize, Vec<MetricState>)],
) -> Result<Vec<MetricState>, Error> {
    let mut words = Vec::new();
    for (index, states) in mine {
        words.extend([*index as u64, states.len() as u64]);
        for states in states {
            states.write(&mut words);
        }
    }
    let all = collective.all_gather(bytemuck::cast_slice(&words))?;
    let mut chunks = Vec::new();
    for bytes in all {
        let words: Vec<u64> = bytemuck::pod_collect_to_vec(&bytes);
        let mut rest = &words[..];
        while let Some((&[index, n], after)) = rest.split_first_chunk::<2>() {
            rest = after;
            let states: Vec<MetricState> =
                (0..n).map_while(|_| MetricState::read(&mut rest)).collect();
            chunks.push((index, states));
        }
    }
    chunks.sort_by_key(|(index, _)| *index);
    let mut chunks = chunks.into_iter().map(|(_, states)| states);
    let mut total = chunks.next().unwrap_or_default();
    for chunk in chunks {
        total.iter_mut().zip(chunk).for_each(|(total, states)| total.add(states));
    }
    Ok(total)
}
