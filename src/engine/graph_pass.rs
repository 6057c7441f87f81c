//! Passes on a GPU as one CUDA graph: forward and backward, from the batch to the gradients, in one
//! launch.
//!
//! The batch is copied to where the recorded launches read it. Everything that is decided on the
//! CPU stays outside: whether the numbers are finite, the learning rate, the update.

use candle_core::{DType, Device, Result, Tensor, bail};

use crate::data::{Batch, sampler::MicroBatch};
use crate::engine::Engine;
use crate::engine::batch_to_device::DeviceBatch;
use crate::engine::error::Error;
use crate::engine::graph_capture::{Capture, CaptureEvent, Recorder};
use crate::engine::reducer::Marks;
use crate::engine::step::Step;
use crate::engine::vote::PassReport;
use crate::launch::Phase;
use crate::model::Comparison;
use crate::nn::ForwardContext;
use crate::ops::best_classes;
use crate::ops::cuda::{Gpu, Graph, keep_shapes, put};
use crate::plan::Plan;
use crate::plan::cuda_graph::is_wanted;
use crate::rng::Key;

/// The recorded pass of a run, and the memory that it reads and writes.
pub(super) struct GraphPass {
    gpu: Gpu,
    /// Whether the run ends if passes cannot be replayed.
    must: bool,
    /// Of each kind of pass.
    captures: [Capture<Recording>; 2],
    fixed: Option<Fixed>,
}

/// Memory that stays where it is.
struct Fixed {
    inputs: Tensor,
    /// Labels, u32, or what the outputs should be, f32.
    targets: Tensor,
    /// The loss, one f32.
    loss: Tensor,
    /// The class with the largest output, u32; classifiers only.
    best: Option<Tensor>,
}

/// A recorded pass: launches, and what the CPU knows after it.
struct Recording {
    graph: Graph,
    marks: Marks,
    /// What the pass adds to each counter.
    counted: Vec<i64>,
}

/// What a pass says.
#[derive(PartialEq)]
struct Report {
    /// The bits of the loss.
    loss: u32,
    /// Right answers, and how many were asked for.
    correct: [u64; 2],
}

/// A pass at hand.
struct AtHand<'a> {
    engine: &'a Engine,
    gpu: &'a Gpu,
    fixed: &'a Fixed,
    /// In the CPU's memory, where they are compared.
    targets: &'a Tensor,
    context: ForwardContext,
    draws: Vec<Key>,
}

/// All that a pass changes: bits of gradients and running statistics, and the counters.
#[derive(PartialEq)]
struct State {
    numbers: Vec<Vec<u32>>,
    counts: Vec<i64>,
}

impl GraphPass {
    /// What the plan wants and allows; `None` = passes are run one launch after another.
    pub(super) fn new(plan: &Plan, device: &Device) -> Option<Self> {
        let gpu = Gpu::of_device(device).ok().filter(|_| is_wanted(plan))?;
        let must = plan.cuda_graph.is_some();
        Some(Self { gpu, must, captures: [Capture::new(), Capture::new()], fixed: None })
    }

    /// Runs or replays the pass. `None` = this batch is none that a recording could be made of: it
    /// is short, or labels are wrong or do not count.
    fn pass(
        &mut self,
        engine: &Engine,
        context: ForwardContext,
        draws: Vec<Key>,
        batch: &Batch,
    ) -> Result<Option<(Report, CaptureEvent)>> {
        let full = batch.samples.len() == engine.plan.batch.size.count();
        let Some(kind) = engine.reducer.marks().and_then(|marks| marks.kind()) else {
            return Ok(None);
        };
        let capture = kind as usize;
        if !full || matches!(self.captures[capture], Capture::Off) {
            return Ok(None);
        }
        let classifies = engine.plan.loss.has_classes();
        if classifies && (batch.targets.dtype() != DType::U32 || batch.targets.rank() != 1) {
            return Ok(None);
        }
        let labels = || batch.targets.to_vec1::<u32>();
        let outputs = engine.plan.model.outputs;
        if classifies && labels()?.into_iter().any(|label| label as usize >= outputs) {
            return Ok(None);
        }
        let DeviceBatch { inputs, targets } = engine.batch_on_device(batch)?;
        let fixed = match &mut self.fixed {
            Some(fixed) => fixed,
            none => none.insert(Fixed::new(&self.gpu.device(), &inputs, &targets, classifies)?),
        };
        if fixed.inputs.shape() != inputs.shape() || fixed.targets.shape() != targets.shape() {
            return Ok(None);
        }
        fixed.fill(&inputs, &targets)?;
        let (gpu, fixed, targets) = (&self.gpu, &*fixed, &batch.targets);
        let mut at_hand = AtHand { engine, gpu, fixed, targets, context, draws };
        let (report, news) = self.captures[capture].pass(&mut at_hand)?;
        if matches!(news, CaptureEvent::GivenUp(_)) {
            // What was found out about one is true of both.
            self.captures = [Capture::Off, Capture::Off];
        }
        Ok(Some((report, news)))
    }
}

impl Fixed {
    fn new(device: &Device, inputs: &Tensor, targets: &Tensor, classifies: bool) -> Result<Self> {
        let room = |like: &Tensor| Tensor::zeros(like.shape(), like.dtype(), device);
        let loss = Tensor::zeros(1, DType::F32, device)?;
        let best = classifies.then(|| room(targets)).transpose()?;
        Ok(Self { inputs: room(inputs)?, targets: room(targets)?, loss, best })
    }

    fn fill(&self, inputs: &Tensor, targets: &Tensor) -> Result<()> {
        put(&self.inputs, 0, inputs, false)?;
        // Labels are numbers of four bytes as well, which are copied as they are.
        put(&self.targets, 0, &targets.to_device(self.targets.device())?, false)
    }
}

impl AtHand<'_> {
    /// Gives the GPU the pass; nothing waits for it.
    fn enqueue(&self) -> Result<()> {
        let engine = self.engine;
        let _kept = keep_shapes(self.gpu);
        engine.params.begin_pass(Some(&engine.sink));
        let (inputs, targets) = (&self.fixed.inputs, &self.fixed.targets);
        let compared = engine.model.compare(inputs, targets, &self.draws, &self.context);
        let passed = compared.and_then(|Comparison { outputs, targets }| {
            let loss = engine.loss.mean(&outputs, &targets)?;
            put(&self.fixed.loss, 0, &loss.detach(), false)?;
            if let Some(best) = &self.fixed.best {
                put(best, 0, &best_classes(&outputs.detach(), &targets)?, false)?;
            }
            // A full batch of samples that all count weighs 1, and only fp16, which is not
            // recorded, scales the loss.
            loss.backward().map(drop)
        });
        engine.params.end_pass();
        passed
    }

    /// What the pass at hand says. Waits for the GPU.
    fn report(&self) -> Result<Report> {
        let loss = self.fixed.loss.to_vec1::<f32>()?;
        let loss = loss[0].to_bits();
        let Some(best) = &self.fixed.best else { return Ok(Report { loss, correct: [0, 0] }) };
        let (best, labels) = (best.to_vec1::<u32>()?, self.targets.to_vec1::<u32>()?);
        let right = best.iter().zip(&labels).filter(|(best, label)| best == label).count();
        Ok(Report { loss, correct: [right as u64, labels.len() as u64] })
    }

    fn counts(&self) -> Vec<i64> {
        self.engine.params.counters().iter().map(crate::nn::Counter::get).collect()
    }

    fn set_counts(&self, counts: &[i64]) {
        let counters = self.engine.params.counters().iter();
        counters.zip(counts).for_each(|(counter, count)| counter.set(*count));
    }

    /// Where gradients and running statistics lie.
    fn numbers(&self) -> Result<Vec<Tensor>> {
        let mut all = self.engine.reducer.buckets();
        for buffer in self.engine.params.moving_buffers() {
            all.push(buffer.var()?.as_tensor().clone());
        }
        Ok(all)
    }

    fn marks(&self) -> Result<Marks> {
        let Some(marks) = self.engine.reducer.marks() else { bail!("no gradients on the GPU") };
        Ok(marks)
    }
}

impl Recorder for AtHand<'_> {
    type Recording = Recording;
    type Report = Report;
    type State = State;
    type Error = candle_core::Error;

    fn run(&mut self) -> Result<Report> {
        self.enqueue()?;
        self.report()
    }

    fn record(&mut self) -> Result<Recording> {
        let (marks, counts) = (self.marks()?, self.counts());
        let graph = Graph::record(self.gpu, || self.enqueue());
        let (after, now) = (self.marks()?, self.counts());
        // Nothing has run yet.
        self.engine.reducer.set_marks(&marks);
        self.set_counts(&counts);
        let counted = now.iter().zip(&counts).map(|(now, before)| now - before).collect();
        Ok(Recording { graph: graph?, marks: after, counted })
    }

    fn replay(&mut self, recording: &Recording) -> Result<Report> {
        recording.graph.replay()?;
        self.engine.reducer.set_marks(&recording.marks);
        let counts: Vec<i64> =
            self.counts().iter().zip(&recording.counted).map(|(now, more)| now + more).collect();
        self.set_counts(&counts);
        self.report()
    }

    fn state(&mut self) -> Result<State> {
        let bits = |tensor: Tensor| {
            let values = tensor.flatten_all()?.to_vec1::<f32>()?;
            Ok(values.into_iter().map(f32::to_bits).collect())
        };
        let numbers = self.numbers()?.into_iter().map(bits).collect::<Result<_>>()?;
        Ok(State { numbers, counts: self.counts() })
    }

    fn restore(&mut self, State { numbers, counts }: &State) -> Result<()> {
        for (place, bits) in self.numbers()?.iter().zip(numbers) {
            let values: Vec<f32> = bits.iter().copied().map(f32::from_bits).collect();
            put(place, 0, &Tensor::from_vec(values, bits.len(), place.device())?, false)?;
        }
        self.set_counts(counts);
        Ok(())
    }
}

impl Engine {
    /// Forward and backward in one launch, by their recording or on the way to one; `None` = they
    /// are to be run as every pass is.
    pub(super) fn replay(
        &mut self,
        step: &Step,
        micro_batch: &MicroBatch,
        batch: &Batch,
    ) -> std::result::Result<Option<PassReport>, Error> {
        let Some(mut graph) = self.graph.take() else { return Ok(None) };
        (self.observer)(step.number, Phase::Forward);
        let passes = self.passes(step);
        let (context, draws) = (passes.context(micro_batch, None), passes.draws(batch));
        // Backward is a part of it: one launch has one time.
        let passed = self
            .timed(|time| &mut time.forward, |engine| graph.pass(engine, context, draws, batch));
        let must = graph.must;
        self.graph = Some(graph);
        let phase = "forward and backward";
        let failed = |source| Error::Tensor { phase, step: step.number, source };
        let Some((found, news)) = passed.map_err(failed)? else { return Ok(None) };
        if let CaptureEvent::GivenUp(why) = news {
            let what = format!("CUDA graph disabled: {why}");
            if must {
                return Err(failed(candle_core::Error::Msg(what)));
            }
            self.notice = Some(what);
        }
        let samples = micro_batch.samples.len() as u64;
        let loss = f64::from(f32::from_bits(found.loss));
        Ok(Some(PassReport::new(micro_batch.index_in_step, samples, loss, found.correct)))
    }
}
