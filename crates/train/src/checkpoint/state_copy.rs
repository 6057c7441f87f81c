//! A copy of a run's state, laid out as the files of a checkpoint. Training goes on while it is
//! written.

use rayon::iter::{IntoParallelIterator, ParallelIterator};
use safetensors::Dtype;

use crate::checkpoint::entries::{self, Entry, Source};
use crate::checkpoint::manifest::{CONTENTS, HEADER};
use crate::checkpoint::{BaseFile, Error, FILES};
use crate::engine::TrainState;
use crate::event::TIE_BREAKER;
use crate::nn::Params;
use crate::optim::ParameterState;
use crate::plan::Plan;

/// Everything that a checkpoint holds, where it lives.
pub struct Snapshot<'a> {
    /// The plan of the run.
    pub plan: &'a Plan,
    /// Parameters and buffers.
    pub params: &'a Params,
    /// Optimizer state of each parameter in registration order.
    pub optimizer_state: &'a [ParameterState],
    /// Progress.
    pub state: &'a TrainState,
}

/// The copy. Its memory is used again for the next one.
#[derive(Default)]
pub struct StateCopy {
    pub(crate) step: u64,
    /// The metric that ranks checkpoints, if it is known of this step.
    pub(crate) metric: Option<f64>,
    /// Name of that metric.
    pub(crate) monitor: String,
    /// `val/loss`, by which equal values of the metric are told apart, if it is known of this step.
    pub(crate) loss: Option<f64>,
    /// The weights below adapters.
    pub(crate) base: Option<BaseFile>,
    /// In the order of [`FILES`].
    pub(crate) files: [FileCopy; 3],
}

/// True if `values`, f32 in little-endian order, are all finite.
pub(crate) fn are_finite(values: &[u8]) -> bool {
    // The exponent of a number that is not finite is all ones.
    const EXPONENT: u32 = 0x7f80_0000;
    let bits = |four: &[u8; 4]| u32::from_le_bytes(*four) & EXPONENT;
    values.as_chunks().0.iter().all(|four| bits(four) != EXPONENT)
}

/// A file in memory.
#[derive(Default)]
pub(crate) struct FileCopy {
    bytes: Vec<u8>,
    /// Name and length of each part, in order.
    parts: Vec<(String, usize)>,
    /// True for each part that is f32.
    are_floats: Vec<bool>,
}

impl StateCopy {
    /// Memory for copies of `snapshot`, given by the system now and not at the first copy.
    pub(crate) fn with_room_for(sizes: [usize; 3]) -> Self {
        // Anything but zeros: pages of zeros are handed out when they are first written.
        let file = |size| FileCopy { bytes: vec![1; size], ..FileCopy::default() };
        Self { files: sizes.map(file), ..Self::default() }
    }

    /// Takes a copy; a large one on all cores of this rank.
    pub(crate) fn take(&mut self, snapshot: &Snapshot<'_>) -> Result<(), Error> {
        let Snapshot { plan, params, optimizer_state, state } = snapshot;
        let failed = |why: String| Error::Encode { step: state.step, why };
        self.step = state.step;
        self.metric = state.metric_now(&plan.checkpoint.monitor);
        self.monitor.clone_from(&plan.checkpoint.monitor);
        self.base = BaseFile::of(params);
        self.loss = state.metric_now(TIE_BREAKER).filter(|loss| loss.is_finite());
        let [model, optimizer, progress] = &mut self.files;
        let tensors = entries::of_model(params).map_err(|error| failed(error.to_string()))?;
        model.take_tensors(&tensors, Some("pt")).map_err(failed)?;
        let tensors = entries::of_optimizer(params, plan, optimizer_state);
        optimizer.take_tensors(&tensors, None).map_err(failed)?;
        progress.bytes =
            serde_json::to_vec_pretty(state).map_err(|error| failed(error.to_string()))?;
        progress.parts = vec![(CONTENTS.to_owned(), progress.bytes.len())];
        Ok(())
    }

    /// The files with their names.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&'static str, &FileCopy)> {
        FILES.into_iter().zip(&self.files)
    }

    /// The first weight or buffer with a value that is not finite.
    pub(crate) fn not_finite(&self) -> Option<&str> {
        let [model, ..] = &self.files;
        let mut floats = model.parts().zip(&model.are_floats).filter(|(_, is_float)| **is_float);
        floats.find(|((_, bytes), _)| !are_finite(bytes)).map(|((name, _), _)| name)
    }

    /// Bytes of all files.
    pub(crate) fn size(&self) -> u64 {
        self.files.iter().map(|file| file.bytes.len() as u64).sum()
    }
}

impl FileCopy {
    /// The bytes of each part, in order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let mut rest = self.bytes.as_slice();
        self.parts.iter().map(move |(name, length)| {
            let (part, after) = rest.split_at(*length);
            rest = after;
            (name.as_str(), part)
        })
    }

    fn take_tensors<V: Source>(
        &mut self,
        entries: &[Entry<V>],
        format: Option<&str>,
    ) -> Result<(), String> {
        let header = entries::header(entries, format).map_err(|error| error.to_string())?;
        let size = header.len() + entries.iter().map(Entry::bytes).sum::<usize>();
        if self.bytes.len() != size {
            self.bytes = vec![0; size];
        }
        self.parts.clear();
        self.parts.push((HEADER.to_owned(), header.len()));
        self.parts.extend(entries.iter().map(|entry| (entry.name.clone(), entry.bytes())));
        let is_float = |entry: &Entry<V>| entry.dtype == Dtype::F32;
        self.are_floats = std::iter::once(false).chain(entries.iter().map(is_float)).collect();
        let (start, mut rest) = self.bytes.split_at_mut(header.len());
        start.copy_from_slice(&header);
        let mut copies = Vec::with_capacity(entries.len());
        for entry in entries {
            let (place, after) = rest.split_at_mut(entry.bytes());
            rest = after;
            copies.push((place, entry));
        }
        let copy = |(place, entry): (&mut [u8], &Entry<V>)| entry.values.copy_to(place);
        let copied = if is_worth_sharing(size) {
            copies.into_par_iter().try_for_each(copy)
        } else {
            copies.into_iter().try_for_each(copy)
        };
        copied.map_err(|error| error.to_string())
    }
}

/// True if other threads save more time than it takes to wake them.
fn is_worth_sharing(size: usize) -> bool {
    const PARALLEL_THRESHOLD: usize = 8 << 20;
    size >= PARALLEL_THRESHOLD && rayon::current_num_threads() > 1
}

/// Sizes of the files that `snapshot` makes, for [`StateCopy::with_room_for`]; that of the
/// progress, which grows, is left open.
pub(crate) fn sizes(snapshot: &Snapshot<'_>) -> [usize; 3] {
    fn size<V>(entries: &[Entry<V>], format: Option<&str>) -> usize {
        let header = entries::header(entries, format).map_or(0, |header| header.len());
        header + entries.iter().map(Entry::bytes).sum::<usize>()
    }
    let model = entries::of_model(snapshot.params).unwrap_or_default();
    let optimizer = entries::of_optimizer(snapshot.params, snapshot.plan, snapshot.optimizer_state);
    [size(&model, Some("pt")), size(&optimizer, None), 0]
}
