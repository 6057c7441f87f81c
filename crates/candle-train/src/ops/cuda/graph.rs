#![expect(unsafe_code, reason = "the driver's view of what was recorded")]
//! Launches that are recorded once and replayed together: a CUDA graph.
//!
//! Recording enqueues nothing: what the recording thread gives the compute stream becomes the
//! graph, memory that is allocated and freed meanwhile belongs to it, and each replay works at the
//! same addresses. Whatever a replay should read anew lies in memory that was there before. A copy
//! from or to the CPU's memory would read there what is no more, so a recording with one is
//! refused: Candle says so at once (what it always sends, shapes, it keeps from the passes before:
//! [`keep_shapes`]), and of what others enqueued the driver's list of nodes tells.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use candle_core::cuda_backend::WrapErr;
use candle_core::{Result, bail};
use cudarc::cublas::sys::cublasSetWorkspace_v2;
use cudarc::driver::{CudaGraph, sys};

use super::gpu::Gpu;
use crate::units::Bytes;

/// Work memory of cuBLAS, as its documentation recommends for the largest GPUs.
const CUBLAS_BYTES: usize = 32 << 20;

/// Bytes that stay free for memory that is not counted.
const RESERVED_BYTES: u64 = 512 << 20;

/// True if something was ever recorded in this process.
static ANY: AtomicBool = AtomicBool::new(false);

/// Held while something is recorded, and by other threads while they give the compute stream
/// something.
static COMPUTE_STREAM: Mutex<()> = Mutex::new(());

/// Launches that were recorded.
pub struct Graph(CudaGraph);

// SAFETY: a graph may be used by any thread, one at a time: its owner is its only user, and only
// `&self` methods of one thread use it, as it is not `Sync`.
unsafe impl Send for Graph {}

impl Graph {
    /// Records what `enqueue` gives the compute stream of `gpu`, without running it. All that it
    /// allocates must be freed when it returns.
    pub fn record(gpu: &Gpu, enqueue: impl FnOnce() -> Result<()>) -> Result<Self> {
        let _alone = compute_stream();
        let (free, needed) = gpu.free_memory()?;
        // The pass itself overlaps with the first replays, and the memory it has used stays with the
        // process.
        if free < 2 * needed + RESERVED_BYTES {
            let [free, needed, reserved] = [free, needed, RESERVED_BYTES].map(Bytes);
            bail!(
                "a graph and the pass beside it need twice {needed}, with {reserved} to spare, and \
                 {free} are free"
            );
        }
        give_cublas_memory(gpu)?;
        ANY.store(true, Ordering::Relaxed);
        let stream = gpu.cuda().cuda_stream();
        // Other threads go on calling the driver: the limits of a recording do not apply to them.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).w()?;
        let enqueued = enqueue();
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let recorded = stream.end_capture(flags);
        if enqueued.is_err() || recorded.is_err() {
            // A broken recording refuses to free memory; cudarc would keep that refusal for the
            // next call.
            let _ = stream.context().check_err();
        }
        enqueued?;
        let Some(graph) = recorded.w()? else { bail!("nothing was enqueued") };
        for node in nodes(graph.cu_graph())? {
            check(node)?;
        }
        graph.upload().w()?;
        Ok(Self(graph))
    }

    /// Enqueues what was recorded.
    pub fn replay(&self) -> Result<()> {
        self.0.launch().w()
    }
}

/// True if a graph may use memory that nothing else uses any more.
pub(super) fn any_recorded() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Has Candle keep in the GPU's memory what it sends there, shapes and strides, until the guard is
/// dropped; so nothing of it is sent in a recording of what ran before.
pub fn keep_shapes(gpu: &Gpu) -> impl Sized + use<> {
    gpu.cuda().enable_cuda_graph_htod_cache()
}

/// Keeps a recording from beginning while this thread gives the compute stream something that is no
/// part of it.
pub(super) fn compute_stream() -> MutexGuard<'static, ()> {
    COMPUTE_STREAM.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives cuBLAS memory that stays, once: recorded products would otherwise allocate theirs in the
/// graph.
fn give_cublas_memory(gpu: &Gpu) -> Result<()> {
    thread_local! {
        static GIVEN: Cell<bool> = const { Cell::new(false) };
    }
    if GIVEN.get() {
        return Ok(());
    }
    let memory = gpu.scratch(CUBLAS_BYTES)?;
    let at = memory.address();
    let handle = *gpu.cuda().cublas_handle().handle();
    // SAFETY: a live handle, and as much memory as is said, which is never freed; all products run
    // on one stream.
    let given = unsafe { cublasSetWorkspace_v2(handle, at as *mut c_void, CUBLAS_BYTES) };
    std::mem::forget(memory);
    GIVEN.set(true);
    match given.result() {
        Ok(()) => Ok(()),
        Err(error) => bail!("cuBLAS refuses work memory: {error:?}"),
    }
}

/// Nodes of a graph.
fn nodes(graph: sys::CUgraph) -> Result<Vec<sys::CUgraphNode>> {
    let mut count = 0;
    // SAFETY: a live graph; without a place for nodes only their number is written.
    unsafe { sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &raw mut count) }.result().w()?;
    let mut nodes = vec![std::ptr::null_mut(); count];
    // SAFETY: as above, with room for as many nodes.
    unsafe { sys::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count) }.result().w()?;
    Ok(nodes)
}

/// Refuses a node that calls the CPU, or copies from or to its memory.
fn check(node: sys::CUgraphNode) -> Result<()> {
    let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
    // SAFETY: a node of a live graph, and a place for its type.
    unsafe { sys::cuGraphNodeGetType(node, &raw mut kind) }.result().w()?;
    match kind {
        sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST => bail!("it calls the CPU"),
        sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY => check_copy(node),
        _ => Ok(()),
    }
}

fn check_copy(node: sys::CUgraphNode) -> Result<()> {
    let mut copy = std::mem::MaybeUninit::<sys::CUDA_MEMCPY3D>::zeroed();
    // SAFETY: a copy of a live graph, and a place for its parameters.
    unsafe { sys::cuGraphMemcpyNodeGetParams(node, copy.as_mut_ptr()) }.result().w()?;
    // SAFETY: the driver has written it.
    let copy = unsafe { copy.assume_init() };
    let from = is_on_gpu(copy.srcMemoryType, copy.srcDevice);
    if !from || !is_on_gpu(copy.dstMemoryType, copy.dstDevice) {
        bail!("it copies from or to the CPU's memory, where other numbers lie each time");
    }
    Ok(())
}

/// True if an end of a copy lies in the GPU's memory; where the copy leaves that to the address,
/// the driver is asked what lies there.
fn is_on_gpu(kind: sys::CUmemorytype, address: sys::CUdeviceptr) -> bool {
    if kind != sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED {
        return kind == sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
    }
    let mut memory_type = 0_u32;
    let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    // SAFETY: the attribute is a number of 32 bits, and any address may be asked for: one that the
    // driver does not know is an error.
    let status =
        unsafe { sys::cuPointerGetAttribute((&raw mut memory_type).cast(), attribute, address) };
    status.result().is_ok() && memory_type == sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32
}
