#![expect(unsafe_code, reason = "memory is handed out before it is written")]
//! Batches on their way to the GPU, through page-locked memory: when the step wants them
//! ([`to_gpu`]), or ahead of it on a stream of their own, beside what the GPU computes
//! ([`H2dPrefetcher`]).
//!
//! A place of the prefetcher is page-locked memory and as much of the GPU's. The copy between the two waits until the
//! last batch that went through the place has been taken; taking one lets the compute stream wait
//! for the copy, and moves the values out. So memory of the GPU is allocated and freed on the
//! compute stream only. The page-locked side is written again only when the copy out of it is over:
//! a place comes back as soon as its batch is taken, when the copy may still be waiting its turn.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use candle_core::cuda_backend::WrapErr;
use candle_core::{CudaStorage, Result, Shape, Tensor, bail};
use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, PinnedHostSlice};

use super::gpu::{Gpu, wrap};
use super::graph::compute_stream;
use crate::ops::storage::read;

/// Batches under way at a time, for each length: one that is copied while the one before it is
/// used.
const PLACES: usize = 2;

/// The way to a GPU, for one thread.
pub struct H2dPrefetcher {
    gpu: Gpu,
    copies: Arc<CudaStream>,
    back: (Sender<PinnedBuffer>, Receiver<PinnedBuffer>),
    free: Vec<PinnedBuffer>,
    made: Vec<usize>,
}

/// Memory of one length on both sides.
struct PinnedBuffer {
    host: PinnedHostSlice<f32>,
    device: CudaSlice<f32>,
    /// When the copy out of the host's side is over.
    copied: Option<CudaEvent>,
    /// When the values were moved out of the GPU's.
    taken: Option<CudaEvent>,
}

/// A tensor under way.
pub struct InFlightTensor {
    gpu: Gpu,
    shape: Shape,
    /// There until it goes back.
    place: Option<PinnedBuffer>,
    back: Sender<PinnedBuffer>,
}

impl H2dPrefetcher {
    /// The way to `gpu`.
    pub fn new(gpu: Gpu) -> Result<Self> {
        let copies = gpu.cuda().cuda_stream().context().new_stream().w()?;
        Ok(Self { gpu, copies, back: channel(), free: Vec::new(), made: Vec::new() })
    }

    /// Sends a tensor of the CPU, f32, off. Waits until a place is free: [`InFlightTensor::take`]
    /// frees it.
    pub fn send(&mut self, tensor: &Tensor) -> Result<InFlightTensor> {
        let mut place = self.place(tensor.elem_count())?;
        if let Some(copied) = place.copied.take() {
            copied.synchronize().w()?;
        }
        let host = place.host.as_mut_slice().w()?;
        read([tensor], |[values]| {
            host.copy_from_slice(values);
            Ok(())
        })?;
        if let Some(taken) = place.taken.take() {
            self.copies.wait(&taken).w()?;
        }
        self.copies.memcpy_htod(&place.host, &mut place.device).w()?;
        place.copied = Some(self.copies.record_event(None).w()?);
        let gpu = self.gpu.clone();
        let shape = tensor.shape().clone();
        Ok(InFlightTensor { gpu, shape, place: Some(place), back: self.back.0.clone() })
    }

    /// A place for `n` numbers: a free one, a new one, or the next that comes back.
    fn place(&mut self, n: usize) -> Result<PinnedBuffer> {
        loop {
            self.free.extend(self.back.1.try_iter());
            if let Some(at) = self.free.iter().position(|place| place.host.len() == n) {
                return Ok(self.free.swap_remove(at));
            }
            if self.made.iter().filter(|made| **made == n).count() < PLACES {
                self.made.push(n);
                return self.make(n);
            }
            match self.back.1.recv() {
                Ok(place) => self.free.push(place),
                Err(_) => bail!("the receiver of the batches is gone"),
            }
        }
    }

    fn make(&self, n: usize) -> Result<PinnedBuffer> {
        let stream = self.gpu.cuda().cuda_stream();
        // Work that this thread gives the compute stream must not become part of a recording.
        let _alone = compute_stream();
        // SAFETY: every element is written before the memory is read.
        let host = unsafe { stream.context().alloc_pinned(n) }.w()?;
        // SAFETY: as above.
        let device = unsafe { self.gpu.cuda().alloc::<f32>(n) }?;
        // Where memory is free on the compute stream, something that came before may still use it.
        let taken = Some(stream.record_event(None).w()?);
        Ok(PinnedBuffer { host, device, copied: None, taken })
    }
}

impl Drop for H2dPrefetcher {
    /// Keeps a recording from taking in what this thread gives back to the compute stream.
    fn drop(&mut self) {
        let _alone = compute_stream();
        self.free.clear();
        // With the places that have come back since.
        drop(std::mem::replace(&mut self.back, channel()));
    }
}

impl InFlightTensor {
    /// The tensor, for work that is enqueued on the compute stream from now on.
    pub fn take(mut self) -> Result<Tensor> {
        let Some(place) = &mut self.place else { bail!("a batch can be taken once") };
        let device = self.gpu.cuda();
        let stream = device.cuda_stream();
        if let Some(copied) = &place.copied {
            stream.wait(copied).w()?;
        }
        // SAFETY: the copy writes every element.
        let mut out = unsafe { device.alloc::<f32>(place.device.len()) }?;
        stream.memcpy_dtod(&place.device, &mut out).w()?;
        place.taken = Some(stream.record_event(None).w()?);
        Ok(wrap(CudaStorage::wrap_cuda_slice(out, device.clone()), self.shape.clone()))
    }
}

impl Drop for InFlightTensor {
    /// Gives the place back, also if its tensor was never used: the next copy through it waits
    /// for this one.
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            // The thread that sends may be over.
            drop(self.back.send(place));
        }
    }
}

/// Buffers of each length: while one is copied, the next is filled.
const BUFFERS_PER_LENGTH: usize = 2;

/// Page-locked memory.
struct HostBuffer {
    host: PinnedHostSlice<f32>,
    /// When the copy out of it is over. cudarc waits for nothing here, because its own tracking of
    /// events is off.
    copied: Option<CudaEvent>,
}

/// Buffers of each length, the oldest copy first.
type Buffers = HashMap<usize, VecDeque<HostBuffer>>;

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::new(HashMap::new());
}

/// A tensor of the CPU, f32, in the memory of `gpu`. The copy overlaps with the CPU's next work, in the
/// order of the compute stream.
pub fn to_gpu(gpu: &Gpu, tensor: &Tensor) -> Result<Tensor> {
    let storage = read([tensor], |[values]| BUFFERS.with_borrow_mut(|all| copy(gpu, all, values)))?;
    Ok(wrap(storage, tensor.shape()))
}

fn copy(gpu: &Gpu, all: &mut Buffers, values: &[f32]) -> Result<CudaStorage> {
    let turns = all.entry(values.len()).or_default();
    let mut buffer = next(gpu, turns, values.len())?;
    if let Some(copied) = buffer.copied.take() {
        copied.synchronize().w()?;
    }
    buffer.host.as_mut_slice().w()?.copy_from_slice(values);
    // SAFETY: the copy writes every element.
    let mut out = unsafe { gpu.cuda().alloc::<f32>(values.len()) }?;
    gpu.cuda().memcpy_htod(&buffer.host, &mut out)?;
    buffer.copied = Some(gpu.cuda().cuda_stream().record_event(None).w()?);
    turns.push_back(buffer);
    Ok(CudaStorage::wrap_cuda_slice(out, gpu.cuda().clone()))
}

/// The buffer whose turn it is, or a new one while there are too few.
fn next(gpu: &Gpu, turns: &mut VecDeque<HostBuffer>, n: usize) -> Result<HostBuffer> {
    if turns.len() >= BUFFERS_PER_LENGTH
        && let Some(oldest) = turns.pop_front()
    {
        return Ok(oldest);
    }
    let context = gpu.cuda().cuda_stream().context().clone();
    // SAFETY: every element is written before the buffer is read.
    let host = unsafe { context.alloc_pinned(n) }.w()?;
    Ok(HostBuffer { host, copied: None })
}
