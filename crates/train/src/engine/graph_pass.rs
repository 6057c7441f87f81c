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
use crate::engine::pass::{PassLoss, Passes, Step};
use crate::engine::reducer::Marks;
use crate::engine::vote::PassReport;
use crate::event::Phase;
use crate::model::Comparison;
use crate::nn::ForwardContext;
use crate::ops::cuda::{Gpu, Graph, PassNumbers, keep_shapes, write_gradient};
use crate::plan::Plan;
use crate::plan::cuda_graph::is_wanted;
use crate::rng::Key;

/// The recorded pass of a run, and the memory that it reads and writes.
pub(super) struct GraphPass {
    gpu: Gpu,
    /// True if the run ends when passes cannot be replayed.
    must: bool,
    /// One for each [`Kind`](crate::engine::graph_capture::Kind) of pass.
    captures: [Capture<Recording>; 2],
    fixed: Option<GraphBuffers>,
}

/// Memory that stays where it is.
struct GraphBuffers {
    inputs: Tensor,
    /// Labels, u32, or what the outputs should be, f32.
    targets: Tensor,
    /// Loss and right answers.
    numbers: PassNumbers,
}

/// A recorded pass: launches, and what the CPU knows after it.
struct Recording {
    graph: Graph,
    marks: Marks,
    /// Increment of each counter by the pass.
    counted: Vec<i64>,
}

/// A pass at hand.
struct CurrentPass<'a> {
    engine: &'a Engine,
    gpu: &'a Gpu,
    fixed: &'a GraphBuffers,
    passes: Passes<'a>,
    context: ForwardContext,
    draws: Vec<Key>,
    /// Weight of the pass, which is full.
    weight: f64,
}

/// Everything that a pass changes: bits of gradients and running statistics, the counters, and its
/// results.
#[derive(PartialEq)]
struct State {
    numbers: Vec<Vec<u32>>,
    found: Vec<u8>,
    counts: Vec<i64>,
}

impl GraphPass {
    /// Returns a graph if the plan wants and allows one; `None` if passes are run launch by launch.
    pub(super) fn new(plan: &Plan, device: &Device) -> Option<Self> {
        if !is_wanted(plan) {
            return None;
        }
        let gpu = Gpu::of_device(device).ok()?;
        let must = plan.cuda_graph.is_some();
        Some(Self { gpu, must, captures: [Capture::new(), Capture::new()], fixed: None })
    }

    /// Runs or replays the pass. `None` = this batch is none that a recording could be made of: it
    /// is short, or labels are wrong or do not count.
    fn pass(
        &mut self,
        engine: &Engine,
        passes: Passes<'_>,
        context: ForwardContext,
        batch: &Batch,
    ) -> Result<Option<CaptureEvent>> {
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
            none => none.insert(GraphBuffers::new(&self.gpu, &inputs, &targets)?),
        };
        if fixed.inputs.shape() != inputs.shape() || fixed.targets.shape() != targets.shape() {
            return Ok(None);
        }
        fixed.fill(&inputs, &targets)?;
        let gpu = &self.gpu;
        let fixed = &*fixed;
        let draws = passes.draws(batch);
        let weight = batch.samples.len() as f64;
        let mut current = CurrentPass { engine, gpu, fixed, passes, context, draws, weight };
        let news = self.captures[capture].pass(&mut current)?;
        if let Some(found) = engine.reducer.next_pass() {
            found?.take(gpu, &fixed.numbers)?;
        }
        if matches!(news, CaptureEvent::GivenUp(_)) {
            // What was found out about one is true of both.
            self.captures = [Capture::Off, Capture::Off];
        }
        Ok(Some(news))
    }
}

impl GraphBuffers {
    fn new(gpu: &Gpu, inputs: &Tensor, targets: &Tensor) -> Result<Self> {
        let room = |like: &Tensor| Tensor::zeros(like.shape(), like.dtype(), &gpu.device());
        Ok(Self { inputs: room(inputs)?, targets: room(targets)?, numbers: PassNumbers::new(gpu)? })
    }

    fn fill(&self, inputs: &Tensor, targets: &Tensor) -> Result<()> {
        write_gradient(&self.inputs, 0, inputs, false)?;
        // Labels are numbers of four bytes as well, which are copied as they are.
        write_gradient(&self.targets, 0, &targets.to_device(self.targets.device())?, false)
    }
}

impl CurrentPass<'_> {
    /// Enqueues the pass on the GPU; nothing waits for it.
    fn enqueue(&self) -> Result<()> {
        let engine = self.engine;
        let _kept = keep_shapes(self.gpu);
        engine.params.begin_pass(Some(&engine.sink));
        let inputs = &self.fixed.inputs;
        let targets = &self.fixed.targets;
        let compared = engine.model.compare(inputs, targets, &self.draws, &self.context);
        let passed = compared.and_then(|Comparison { outputs, targets }| {
            let found = &self.fixed.numbers;
            let PassLoss { loss, .. } =
                self.passes.noted(&outputs, &targets, self.weight, found)?;
            // A full batch of samples that all count weighs 1, and only fp16, which is not
            // recorded, scales the loss.
            loss.backward().map(drop)
        });
        engine.params.end_pass();
        passed
    }

    fn counts(&self) -> Vec<i64> {
        self.engine.params.counters().iter().map(crate::nn::Counter::get).collect()
    }

    fn set_counts(&self, counts: &[i64]) {
        let counters = self.engine.params.counters().iter();
        counters.zip(counts).for_each(|(counter, count)| counter.set(*count));
    }

    /// Returns the tensors that hold gradients and running statistics.
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

impl Recorder for CurrentPass<'_> {
    type Recording = Recording;
    type State = State;
    type Error = candle_core::Error;

    fn run(&mut self) -> Result<()> {
        self.enqueue()
    }

    fn record(&mut self) -> Result<Recording> {
        let marks = self.marks()?;
        let counts = self.counts();
        let graph = Graph::record(self.gpu, || self.enqueue());
        let after = self.marks()?;
        let now = self.counts();
        // Nothing has run yet.
        self.engine.reducer.set_marks(&marks);
        self.set_counts(&counts);
        let counted = now.iter().zip(&counts).map(|(now, before)| now - before).collect();
        Ok(Recording { graph: graph?, marks: after, counted })
    }

    fn replay(&mut self, recording: &Recording) -> Result<()> {
        recording.graph.replay()?;
        self.engine.reducer.set_marks(&recording.marks);
        let counts: Vec<i64> =
            self.counts().iter().zip(&recording.counted).map(|(now, more)| now + more).collect();
        self.set_counts(&counts);
        Ok(())
    }

    fn state(&mut self) -> Result<State> {
        let bits = |tensor: Tensor| {
            let values = tensor.flatten_all()?.to_vec1::<f32>()?;
            Ok(values.into_iter().map(f32::to_bits).collect())
        };
        let numbers = self.numbers()?.into_iter().map(bits).collect::<Result<_>>()?;
        let found = self.fixed.numbers.bits(self.gpu)?;
        Ok(State { numbers, found, counts: self.counts() })
    }

    fn restore(&mut self, State { numbers, found, counts }: &State) -> Result<()> {
        self.fixed.numbers.set_bits(self.gpu, found)?;
        for (place, bits) in self.numbers()?.iter().zip(numbers) {
            let values: Vec<f32> = bits.iter().copied().map(f32::from_bits).collect();
            write_gradient(
                place,
                0,
                &Tensor::from_vec(values, bits.len(), place.device())?,
                false,
            )?;
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
        // Backward is a part of it: one launch has one time.
        let passed = self.timed(
            |time| &mut time.forward,
            |engine| {
                let passes = engine.passes(step.number, step.loss_scale);
                graph.pass(engine, passes, passes.context(micro_batch, None), batch)
            },
        );
        let must = graph.must;
        self.graph = Some(graph);
        let phase = "forward and backward";
        let failed = Error::tensor(phase, step.number);
        let Some(news) = passed.map_err(failed)? else { return Ok(None) };
        if let CaptureEvent::GivenUp(why) = news {
            let what = format!("CUDA graph disabled: {why}");
            if must {
                return Err(failed(candle_core::Error::Msg(what)));
            }
            self.notice = Some(what);
        }
        let samples = micro_batch.samples.len() as u64;
        let asked = if self.plan.loss.has_classes() { samples } else { 0 };
        Ok(Some(PassReport::new(micro_batch.index_in_step, samples, f64::NAN, [0, asked])))
    }
}
