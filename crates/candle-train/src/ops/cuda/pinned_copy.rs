#![expect(unsafe_code, reason = "page-locked memory is handed out before it is written")]
//! Batches on their way to the GPU, through page-locked memory: the copy runs beside what the CPU
//! does next, in the order of the stream.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};

use candle_core::cuda_backend::WrapErr;
use candle_core::{CudaStorage, Result, Tensor};
use cudarc::driver::{CudaEvent, PinnedHostSlice};

use super::gpu::{Gpu, wrap};
use crate::ops::storage::read;

/// Buffers of each length: while one is copied, the next is filled.
const BUFFERS_PER_LENGTH: usize = 2;

/// Page-locked memory.
struct Buffer {
    host: PinnedHostSlice<f32>,
    /// When the copy out of it is over. cudarc waits for nothing here, because its own tracking of
    /// events is off.
    copied: Option<CudaEvent>,
}

/// Those of each length, the oldest copy first.
type Buffers = HashMap<usize, VecDeque<Buffer>>;

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::new(HashMap::new());
}

/// A tensor of the CPU, f32, in the memory of `gpu`.
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
fn next(gpu: &Gpu, turns: &mut VecDeque<Buffer>, n: usize) -> Result<Buffer> {
    if turns.len() >= BUFFERS_PER_LENGTH
        && let Some(oldest) = turns.pop_front()
    {
        return Ok(oldest);
    }
    let context = gpu.cuda().cuda_stream().context().clone();
    // SAFETY: every element is written before the buffer is read.
    let host = unsafe { context.alloc_pinned(n) }.w()?;
    Ok(Buffer { host, copied: None })
}
