//! Peak memory and operations of one pass, measured on small batches before anything is trained.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, Tensor};

use crate::engine::{Components, Error};
use crate::memory;
use crate::nn::ForwardContext;
use crate::ops::{GradientSink, count_flops};
use crate::plan::{Modality, Plan};
use crate::rng::{Key, Purpose};
use crate::units::Bytes;

/// Input elements of the larger batch that is run.
const ELEMENTS: usize = 1 << 16;
/// Least and most samples of that batch.
const SAMPLES: [usize; 2] = [4, 128];
/// Values of an image above which a smaller one is run in its place.
const LARGE_IMAGE: usize = 1 << 20;
/// Stack of the thread that runs them, as that of a rank's training thread.
const STACK_BYTES: usize = 512 << 20;

/// Memory and operations that a pass needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassProfile {
    /// Bytes that it holds beside parameters and gradients at its largest moment; unknown in a
    /// program without [`memory::Allocator`].
    pub activations: Option<Bytes>,
    /// Floating-point operations of the forward pass, per sample.
    pub flops: u64,
}

/// Profiles a pass of `plan`: runs two small batches of zeros forward and backward, with as many
/// threads as a rank has. Large blocks of memory are counted as they are handed out. Between two
/// gradients that backward hands over, the most in use grows in proportion to the batch; which
/// moment is the largest depends on the batch. Instead of large images smaller ones are run, if the
/// model takes them, since what a sample adds grows with its area.
pub fn profile_pass(plan: &Plan, components: &Components) -> Result<PassProfile, Error> {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(plan.distributed.threads_per_rank)
        .stack_size(STACK_BYTES)
        .build()
        .map_err(|error| Error::Thread(std::io::Error::other(error)))?;
    let whole = &plan.model.input;
    let smaller = profiled_shape(plan);
    let found = pool.install(|| {
        let found = profile_samples(plan, components, &smaller);
        if found.is_ok() || smaller == *whole {
            return found;
        }
        profile_samples(plan, components, whole)
    });
    found.map_err(Error::tensor("profiled", 0))
}

/// Profiles a pass with samples of `shape`.
fn profile_samples(
    plan: &Plan,
    components: &Components,
    shape: &[usize],
) -> candle_core::Result<PassProfile> {
    let elements = shape.iter().product::<usize>().max(1);
    let area = plan.model.input.iter().product::<usize>().max(1) as f64 / elements as f64;
    let size = plan.batch.size.count();
    let [least, most] = SAMPLES;
    // Values of a frozen base are drawn at their first use.
    components.params.buffers().iter().try_for_each(|buffer| buffer.var().map(drop))?;
    let many = (ELEMENTS / elements).clamp(least, most).min(size);
    let before = memory::in_use();
    let measure = |samples| peaks_of_pass(plan, components, samples, shape, before);
    // Each batch twice: the first pass leaves the work memory that threads keep, which grows with
    // the batch, so the smaller one comes first.
    let settled = |samples| measure(samples).and_then(|_| measure(samples));
    let few = many / 2;
    let small = if few == 0 { None } else { Some(settled(few)?.0) };
    let (large, flops) = settled(many)?;
    let small = small.unwrap_or_else(|| vec![0; large.len()]);
    let peak = |(small, large): (u64, u64)| {
        let of_sample = large.saturating_sub(small) as f64 / (many - few) as f64;
        large + (of_sample * (size as f64 * area - many as f64)) as u64
    };
    let flops = (flops as f64 * area / many as f64) as u64;
    Ok(PassProfile { activations: counted(small.into_iter().zip(large).map(peak)), flops })
}

/// The shape of the samples that are run: that of the model's inputs, or of images with a half, a
/// quarter ... of their rows and columns.
fn profiled_shape(plan: &Plan) -> Vec<usize> {
    let mut shape = plan.model.input.clone();
    while let [channels, rows, columns] = &mut shape[..]
        && plan.data.source.modality == Modality::Images
        && *channels * *rows * *columns > LARGE_IMAGE
        && *rows.max(columns) > 1
    {
        (*rows, *columns) = (rows.div_ceil(2), columns.div_ceil(2));
    }
    shape
}

/// The largest of these peaks, where they were counted.
fn counted(peaks: impl IntoIterator<Item = u64>) -> Option<Bytes> {
    memory::is_installed().then(|| Bytes(peaks.into_iter().max().unwrap_or(0)))
}

/// Most bytes in use beside those of `before` until each gradient was handed over, and after the
/// last; and the operations of the forward pass.
fn peaks_of_pass(
    plan: &Plan,
    Components { model, params, loss, .. }: &Components,
    samples: usize,
    shape: &[usize],
    before: Bytes,
) -> candle_core::Result<(Vec<u64>, u64)> {
    let of_sample = |of: &[usize]| [&[samples], &plan.model.of_sample(of)[..]].concat();
    let inputs = Tensor::zeros(of_sample(shape), DType::F32, &Device::Cpu)?;
    // The labels of pairs are tokens.
    let has_classes = plan.loss.has_classes() || plan.model.takes_pairs;
    let target = match &plan.model.target[..] {
        [] if !has_classes => &[plan.model.outputs],
        target => target,
    };
    let dtype = if has_classes { DType::U32 } else { DType::F32 };
    let targets = Tensor::zeros(of_sample(target), dtype, &Device::Cpu)?;
    let key = Key::new(plan.seed, Purpose::Dropout, 0, 0);
    let mut pass = ForwardContext::train(key, plan.precision);
    pass.convolutions = plan.convolutions;
    pass.activation_checkpointing = plan.activation_checkpointing;
    let peaks = Arc::new(Peaks { before, found: Mutex::default() });
    let sink: Arc<dyn GradientSink> = peaks.clone();
    memory::reset_peak();
    params.begin_pass(Some(&sink));
    let compare = || model.compare(&inputs, &targets, &vec![key; samples], &pass);
    let (compared, flops) = count_flops(compare);
    let result = compared
        .and_then(|compared| loss.mean(&compared.outputs, &compared.targets))
        .and_then(|loss| loss.backward());
    params.end_pass();
    result?;
    peaks.note();
    let found = std::mem::take(&mut *peaks.found.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((found, flops))
}

/// Collects the peak of memory since the gradient before.
struct Peaks {
    before: Bytes,
    found: Mutex<Vec<u64>>,
}

impl Peaks {
    fn note(&self) {
        let peak = memory::peak().0.saturating_sub(self.before.0);
        memory::reset_peak();
        self.found.lock().unwrap_or_else(PoisonError::into_inner).push(peak);
    }
}

impl GradientSink for Peaks {
    fn add(&self, _: usize, _: &[f32]) -> candle_core::Result<()> {
        self.note();
        Ok(())
    }

    fn complete(&self, _: usize) -> candle_core::Result<()> {
        Ok(())
    }
}
