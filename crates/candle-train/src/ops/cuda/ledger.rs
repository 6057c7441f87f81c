//! Numbers that the passes of a step note on the GPU, kept there until the CPU reads all of them at once.

use std::sync::Arc;

use candle_core::{Result, Tensor};

use super::gpu::{Gpu, Grid, Scratch};
use super::kernel_args::{Arg, of_tensor};

/// Numbers, f64, of a pass: loss, right answers, weight.
const NUMBERS: usize = 3;
/// Bytes of them.
const BYTES: usize = 8 * NUMBERS;
/// Passes that fit into the first memory.
const INITIAL_CAPACITY: usize = 8;

/// The place on the GPU where a pass notes its loss, its right answers and its weight.
#[derive(Clone)]
pub struct PassNumbers {
    memory: Arc<Scratch>,
    at: u64,
}

impl PassNumbers {
    /// Memory of its own.
    pub fn new(gpu: &Gpu) -> Result<Self> {
        let memory = Arc::new(gpu.scratch(BYTES)?);
        Ok(Self { at: memory.address(), memory })
    }

    pub(super) fn argument(&self) -> Arg {
        Arg::Address(self.at)
    }

    /// Notes a loss, a scalar f32. `right` are the right answers, unless they were counted on the
    /// GPU.
    pub fn note(&self, loss: &Tensor, right: Option<u64>, weight: f64) -> Result<()> {
        let right = right.map_or(-1.0, |right| right as f64);
        let arguments = [of_tensor(loss)?.into(), self.argument(), right.into(), weight.into()];
        Gpu::of_tensor(loss)?.launch("note_found", Grid::rows(1), &arguments)
    }

    /// Takes over what `other` holds.
    pub fn take(&self, gpu: &Gpu, other: &Self) -> Result<()> {
        copy(gpu, other.at, self.at, 1)
    }

    /// The bits of the number there. Waits for the GPU.
    pub fn bits(&self, gpu: &Gpu) -> Result<Vec<u8>> {
        gpu.download(&self.memory)
    }

    /// Puts them back.
    pub fn set_bits(&self, gpu: &Gpu, bits: &[u8]) -> Result<()> {
        let values = gpu.upload(bits)?;
        copy(gpu, values.address(), self.at, 1)
    }
}

/// Numbers of a step: the sum of squares of its gradients, and the loss and the right answers of each
/// pass.
pub struct StepNumbers {
    /// Not finite if a gradient is not.
    pub squares: f64,
    /// Loss and right answers of each pass, in their order.
    pub passes: Vec<[f64; 2]>,
}

/// Numbers that an update depends on besides its gradients.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// Factor that makes means of the summed gradients.
    pub factor: f64,
    /// Norm to which the mean gradient is clipped.
    pub most_norm: f64,
    /// Largest loss after which parameters move.
    pub most_loss: f64,
}

/// The GPU's own decision about an update ([`Ledger::decide`]): how gradients are clipped, and
/// whether parameters move.
pub struct Decision(Scratch);

impl Decision {
    pub(super) fn argument(&self) -> Arg {
        self.0.at()
    }
}

/// Memory for the numbers that the passes of a step note.
pub struct Ledger {
    gpu: Gpu,
    /// Numbers of the step, then those of each pass.
    memory: Arc<Scratch>,
    capacity: usize,
    passes: usize,
}

impl Ledger {
    /// An empty one.
    pub fn new(gpu: &Gpu) -> Result<Self> {
        let memory = Arc::new(gpu.scratch((1 + INITIAL_CAPACITY) * BYTES)?);
        Ok(Self { gpu: gpu.clone(), memory, capacity: INITIAL_CAPACITY, passes: 0 })
    }

    /// Begins a step.
    pub fn begin_step(&mut self) {
        self.passes = 0;
    }

    /// The place for the numbers of the next pass.
    pub fn next_pass(&mut self) -> Result<PassNumbers> {
        if self.passes == self.capacity {
            let larger = self.gpu.scratch((1 + 2 * self.capacity) * BYTES)?;
            copy(&self.gpu, self.memory.address(), larger.address(), 1 + self.capacity)?;
            (self.memory, self.capacity) = (Arc::new(larger), 2 * self.capacity);
        }
        self.passes += 1;
        Ok(self.place(self.passes))
    }

    /// Passes that noted something.
    pub fn passes(&self) -> usize {
        self.passes
    }

    /// The place of the sum of squares.
    pub(super) fn squares(&self) -> PassNumbers {
        self.place(0)
    }

    fn place(&self, index: usize) -> PassNumbers {
        let memory = self.memory.clone();
        PassNumbers { at: memory.address() + (index * BYTES) as u64, memory }
    }

    /// Lets the GPU decide about the update.
    pub fn decide(&self, conditions: Conditions) -> Result<Decision> {
        let Conditions { factor, most_norm, most_loss } = conditions;
        let decision = Decision(self.gpu.scratch(8)?);
        let arguments = [
            self.memory.at(),
            decision.argument(),
            factor.into(),
            most_norm.into(),
            most_loss.into(),
            self.passes.into(),
        ];
        self.gpu.launch("decide", Grid::rows(1), &arguments)?;
        Ok(decision)
    }

    /// All that was noted in the step. Waits for the GPU.
    pub fn read(&self) -> Result<StepNumbers> {
        let bytes = self.gpu.download(&self.memory)?;
        let numbers: Vec<f64> = bytemuck::pod_collect_to_vec(&bytes);
        let passes = numbers.chunks_exact(NUMBERS).skip(1).take(self.passes);
        let passes = passes.map(|pass| [pass[0], pass[1]]).collect();
        Ok(StepNumbers { squares: numbers[0], passes })
    }
}

/// Copies what `n` passes noted, as words of four bytes.
fn copy(gpu: &Gpu, from: u64, to: u64, n: usize) -> Result<()> {
    let words = n * BYTES / 4;
    let arguments = [Arg::Address(from), Arg::Address(to), words.into()];
    gpu.launch("narrow_f32", Grid::over(words), &arguments)
}
