#![expect(unsafe_code, reason = "the driver page-locks memory, and copies to and from it")]
//! Memory of the CPU through which values of the GPU go when something else changes them on the
//! way: page-locked where the driver allows it, with copies on a stream of their own, beside what
//! the GPU computes.

use std::ffi::c_void;
use std::ops::{DerefMut, Range};
use std::sync::Arc;

use candle_core::cuda_backend::WrapErr;
use candle_core::{DType, Result, Tensor, bail};
use cudarc::driver::result::{memcpy_dtoh_async, memcpy_htod_async};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, sys};

use super::gpu::Gpu;
use super::kernel_args::of_tensor;

/// Bytes of a page of x86-64; where pages are larger, the driver takes the whole pages around a range.
const PAGE: usize = 4096;

/// Memory on the CPU, and the way between it and a GPU. For one thread.
pub struct Staging<M> {
    copies: Arc<CudaStream>,
    /// Undone before the memory goes.
    locked: Locked,
    memory: Vec<M>,
}

/// A point on a stream, to wait for.
pub struct StreamEvent(CudaEvent);

impl StreamEvent {
    /// After all that was enqueued on the compute stream of `gpu` so far.
    pub fn now(gpu: &Gpu) -> Result<Self> {
        gpu.cuda().cuda_stream().record_event(None).w().map(Self)
    }

    /// Makes the work that is enqueued on the compute stream of `gpu` from now on wait for it.
    pub fn goes_before(&self, gpu: &Gpu) -> Result<()> {
        gpu.cuda().cuda_stream().wait(&self.0).w()
    }
}

impl<M: DerefMut<Target = [f32]>> Staging<M> {
    /// Page-locks what of `memory` has pages of its own. Where it has not, or the driver refuses,
    /// copies go through memory of the driver, as they always can.
    ///
    /// Copies to and from page-locked memory go on when the call has returned, so whatever else
    /// lies in such a page, a result that is read at once, or a shape that is freed after the call,
    /// would be read too early or written too late.
    pub fn new(gpu: &Gpu, memory: Vec<M>, has_own_pages: impl Fn(&M) -> bool) -> Result<Self> {
        let context = gpu.cuda().cuda_stream().context().clone();
        let copies = context.new_stream().w()?;
        let alone = memory.iter().filter(|part| has_own_pages(part));
        let ranges = alone.map(|part| {
            let Range { start, end } = part.as_ptr_range();
            start as usize..end as usize
        });
        let mut locked = Locked::lock(&context, &pages(ranges));
        if !memory.iter().all(has_own_pages) {
            locked.refused = Some("other values lie in its pages".to_owned());
        }
        Ok(Self { copies, locked, memory })
    }

    /// The way of copies, in words.
    pub fn describe(&self) -> String {
        match &self.locked.refused {
            None => "gradients are summed by the CPU, through page-locked memory".to_owned(),
            Some(why) => format!(
                "gradients are summed by the CPU, through memory that is not page-locked ({why})"
            ),
        }
    }

    /// Copies `values`, f32 on the GPU, to the `index`-th memory once `ready` is over, lets
    /// `change` have it there, and enqueues the copy of some elements to another tensor, which may
    /// be a part of `values`. Returns when that copy is over.
    pub fn visit<E>(
        &mut self,
        index: usize,
        (values, ready): (&Tensor, &StreamEvent),
        back: &(Range<usize>, Tensor),
        change: impl FnOnce(&mut M) -> std::result::Result<(), E>,
    ) -> Result<std::result::Result<StreamEvent, E>> {
        self.fetch(index, values, ready)?;
        match change(&mut self.memory[index]) {
            Ok(()) => self.send(index, back).map(Ok),
            Err(error) => Ok(Err(error)),
        }
    }

    fn fetch(&mut self, index: usize, values: &Tensor, ready: &StreamEvent) -> Result<()> {
        let at = place_of(values, self.memory[index].len())?;
        self.copies.wait(&ready.0).w()?;
        let memory = &mut self.memory[index][..];
        let stream = self.copies.cu_stream();
        // SAFETY: as many numbers on both sides, on a stream of the context that both belong to;
        // this function returns after the copy, and the memory is not shared meanwhile.
        unsafe { memcpy_dtoh_async(memory, at, stream) }.w()?;
        self.copies.synchronize().w()
    }

    fn send(&self, index: usize, (elements, to): &(Range<usize>, Tensor)) -> Result<StreamEvent> {
        let at = place_of(to, elements.len())?;
        let stream = self.copies.cu_stream();
        if !elements.is_empty() {
            let values = &self.memory[index][elements.clone()];
            // SAFETY: as many numbers on both sides. They are changed again only after the next
            // copy to this memory, which waits for this one, as everything on the stream does; so
            // does `drop`.
            unsafe { memcpy_htod_async(at, values, stream) }.w()?;
        }
        self.copies.record_event(None).w().map(StreamEvent)
    }
}

/// Address of the `n` values of a tensor, f32 on the GPU.
fn place_of(values: &Tensor, n: usize) -> Result<u64> {
    let place = of_tensor(values)?;
    if values.elem_count() != n || place.dtype != DType::F32 {
        bail!("{:?} {:?} do not fit {n} numbers", values.shape(), place.dtype);
    }
    Ok(place.at)
}

impl<M> Drop for Staging<M> {
    fn drop(&mut self) {
        // The last copies read the memory; a driver that fails here has said so before.
        let _ = self.copies.synchronize();
    }
}

/// Pages that stay where they are, for the driver to copy from and to by itself.
struct Locked {
    context: Arc<CudaContext>,
    ranges: Vec<Range<usize>>,
    /// Why some of them could not be locked.
    refused: Option<String>,
}

impl Locked {
    fn lock(context: &Arc<CudaContext>, wanted: &[Range<usize>]) -> Self {
        let mut locked = Self { context: context.clone(), ranges: Vec::new(), refused: None };
        for range in wanted {
            match locked.lock_one(range) {
                Ok(()) => locked.ranges.push(range.clone()),
                Err(error) => locked.refused = Some(error.to_string()),
            }
        }
        locked
    }

    fn lock_one(&self, range: &Range<usize>) -> std::result::Result<(), DriverError> {
        self.context.bind_to_thread()?;
        // SAFETY: whole pages of this process, which stay mapped until `drop`: `Staging` holds what
        // lies in them.
        unsafe { sys::cuMemHostRegister_v2(range.start as *mut c_void, range.len(), 0) }.result()
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            for range in &self.ranges {
                // SAFETY: this range was locked by that call, once. An error leaves it to the end
                // of the process.
                let _ = unsafe { sys::cuMemHostUnregister(range.start as *mut c_void) };
            }
        }
    }
}

/// The whole pages around `ranges`, each page once: a page that is locked twice is refused.
fn pages(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let whole = |range: Range<usize>| range.start / PAGE * PAGE..range.end.next_multiple_of(PAGE);
    let mut all: Vec<Range<usize>> = ranges.filter(|range| !range.is_empty()).map(whole).collect();
    all.sort_by_key(|range| range.start);
    let mut apart: Vec<Range<usize>> = Vec::new();
    for range in all {
        match apart.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => apart.push(range),
        }
    }
    apart
}

#[cfg(test)]
mod tests {
    use super::{PAGE, pages};

    #[test]
    fn ranges_that_share_a_page_are_locked_together_and_no_page_twice() {
        let of = |ranges: &[(usize, usize)]| {
            let found = pages(ranges.iter().map(|&(start, end)| start..end));
            found.into_iter().map(|r| (r.start / PAGE, r.end / PAGE)).collect::<Vec<_>>()
        };
        assert_eq!(of(&[(10, 20)]), [(0, 1)]);
        assert_eq!(of(&[(PAGE, 2 * PAGE)]), [(1, 2)], "whole pages are not made larger");
        assert_eq!(
            of(&[(9 * PAGE + 1, 9 * PAGE + 2), (64, 5000), (5064, 9000)]),
            [(0, 3), (9, 10)]
        );
        assert_eq!(of(&[(0, 3 * PAGE), (PAGE, PAGE + 1)]), [(0, 3)], "one inside another");
        assert!(of(&[(7, 7)]).is_empty(), "the driver refuses nothing at all");
    }
}
