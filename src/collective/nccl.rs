#![expect(unsafe_code, reason = "the C interface of NCCL")]
//! The ranks of one machine on GPUs: gradients are summed by NCCL, on a stream of their own; everything else, which is
//! small and lives on the CPU, goes through the shared mapping.
//!
//! No call of NCCL has a deadline. The communicator is made by a thread that can be left behind, and the end of the sums
//! is watched by asking: whether they are there, whether NCCL found an error, whether the group ended, whether it is
//! too late. Then the communicator is aborted, so that its kernels let go of the GPU.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use candle_core::{DType, Tensor};
use cudarc::driver::result::device;
use cudarc::driver::{CudaStream, DriverError};
use cudarc::nccl::{result as api, sys};

use crate::collective::shm::Shm;
use crate::collective::{Collective, Error, OnGpu, Segment};
use crate::cuda_libraries;
use crate::ops::cuda::{Gpu, compress, expand, pointer};
use crate::plan::CommHook;
use crate::units::{Rank, WorldSize};

/// The first version that admits several ranks on one GPU, with `NCCL_MULTI_RANK_GPU_ENABLE`.
const FIRST_TO_SHARE: i32 = 23_000;
/// Bytes of what identifies a communicator.
const ID_BYTES: usize = 128;
/// Time between two looks at sums that are under way: a fraction of a small step.
const LOOK: Duration = Duration::from_micros(50);

/// One rank of the group.
pub(super) struct Nccl {
    control: Shm,
    communicator: Mutex<Communicator>,
    /// Where the model computes.
    compute: Arc<CudaStream>,
    /// Where gradients are summed.
    sums: Arc<CudaStream>,
    timeout: Duration,
    hook: CommHook,
    /// What is under way in half precision, and where it belongs.
    halves: Mutex<Vec<(Tensor, Tensor)>>,
    version: String,
    aborted: AtomicBool,
}

/// NCCL's handle.
struct Communicator(sys::ncclComm_t);

// SAFETY: a handle may be used by any thread, one at a time: it stands behind a lock.
unsafe impl Send for Communicator {}

impl Nccl {
    /// Makes the communicator together with the other ranks.
    pub(super) fn open(
        gpu: &Gpu,
        control: Shm,
        hook: CommHook,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let version = version()?;
        let mut id = [0u8; ID_BYTES];
        if control.rank().is_first() {
            id = api::get_uniqueid().map_err(failed("making a group"))?.internal.map(|c| c as u8);
        }
        control.broadcast(&mut id)?;
        let compute = gpu.cuda().cuda_stream();
        let sums = compute.context().new_stream().map_err(driver)?;
        let communicator = join(&compute, id, (control.rank(), control.world_size()), timeout)?;
        let (communicator, aborted) = (Mutex::new(communicator), AtomicBool::new(false));
        let halves = Mutex::new(Vec::new());
        Ok(Self { control, communicator, compute, sums, timeout, hook, halves, version, aborted })
    }

    /// What travels for `values`, and what NCCL calls its numbers: themselves, or their half that goes back in
    /// [`Nccl::expand_halves`].
    fn travelling(&self, values: &Tensor) -> candle_core::Result<(Tensor, sys::ncclDataType_t)> {
        let (dtype, name) = match self.hook {
            CommHook::None => return Ok((values.clone(), sys::ncclDataType_t::ncclFloat32)),
            CommHook::Bf16 => (DType::BF16, sys::ncclDataType_t::ncclBfloat16),
            CommHook::Fp16 => (DType::F16, sys::ncclDataType_t::ncclFloat16),
        };
        let half = compress(values, dtype, 1.0 / self.control.world_size().get() as f32)?;
        self.halves().push((values.clone(), half.clone()));
        Ok((half, name))
    }

    /// Puts what travelled in half precision back, behind its sums in the order of the compute stream.
    fn expand_halves(&self) -> candle_core::Result<()> {
        let world = self.control.world_size().get() as f32;
        let mut halves = self.halves();
        halves.drain(..).try_for_each(|(values, half)| expand(&half, &values, world))
    }

    fn halves(&self) -> MutexGuard<'_, Vec<(Tensor, Tensor)>> {
        self.halves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends NCCL's part of the group and passes the reason on.
    fn end(&self, error: Error) -> Error {
        self.control.abort(&error.to_string());
        self.abort_communicator();
        error
    }

    fn abort_communicator(&self) {
        if !self.aborted.swap(true, Ordering::SeqCst) {
            let communicator = self.communicator.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: the handle is live, and after this swap nobody uses it.
            drop(unsafe { api::comm_abort(communicator.0) });
        }
    }

    /// What NCCL found out since the last call.
    fn asynchronous_error(&self) -> Option<Error> {
        let communicator = self.communicator.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = sys::ncclResult_t::ncclSuccess;
        // SAFETY: the handle is live, and `state` is a place for one result.
        let asked = unsafe { sys::ncclCommGetAsyncError(communicator.0, &raw mut state) };
        let bad = [asked, state].into_iter().find(|result| {
            !matches!(result, sys::ncclResult_t::ncclSuccess | sys::ncclResult_t::ncclInProgress)
        });
        bad.map(|result| failed("a sum of gradients")(api::NcclError(result)))
    }

    /// Why waiting makes no sense any more, if so.
    fn reason_to_stop(&self, began: Instant) -> Option<Error> {
        if let Some(end) = self.control.end().or_else(|| self.asynchronous_error()) {
            return Some(end);
        }
        let waited = began.elapsed();
        (waited >= self.timeout || self.control.gives_up()).then(|| {
            let seconds = waited.as_secs_f64();
            let what = format!(
                "a sum of gradients did not end within {seconds:.1} s: a rank did not come to it"
            );
            Error::Nccl { what }
        })
    }
}

impl OnGpu for Nccl {
    fn enqueue_all_reduce(&self, values: &Tensor) -> Result<(), Error> {
        let tensor = |error: candle_core::Error| Error::Nccl { what: error.to_string() };
        let (travelling, number_type) = self.travelling(values).map_err(tensor)?;
        let place = pointer(&travelling).map_err(tensor)? as *mut std::ffi::c_void;
        let ready = self.compute.record_event(None).map_err(driver)?;
        self.sums.wait(&ready).map_err(driver)?;
        if self.aborted.load(Ordering::SeqCst) {
            let what = "the group has ended".to_owned();
            return Err(self.control.end().unwrap_or(Error::Nccl { what }));
        }
        let communicator = self.communicator.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the handle is live; these are that many numbers in the memory of this rank's GPU, which live as long as
        // the engine, or until `finish` has enqueued their way back; the stream is of the same context.
        let enqueued = unsafe {
            api::all_reduce(
                place,
                place,
                values.elem_count(),
                number_type,
                sys::ncclRedOp_t::ncclSum,
                communicator.0,
                self.sums.cu_stream().cast(),
            )
        };
        drop(communicator);
        enqueued.map(|_| ()).map_err(|error| self.end(failed("a sum of gradients")(error)))
    }

    fn finish(&self) -> Result<(), Error> {
        let done = self.sums.record_event(None).map_err(driver)?;
        self.compute.wait(&done).map_err(driver)?;
        self.expand_halves().map_err(|error| Error::Nccl { what: error.to_string() })?;
        let began = Instant::now();
        while !done.try_is_complete().map_err(driver)? {
            if let Some(error) = self.reason_to_stop(began) {
                return Err(self.end(error));
            }
            // CUDA has no wait with a deadline.
            std::thread::park_timeout(LOOK);
        }
        Ok(())
    }
}

impl Collective for Nccl {
    fn rank(&self) -> Rank {
        self.control.rank()
    }

    fn world_size(&self) -> WorldSize {
        self.control.world_size()
    }

    /// Gradients live in the GPU's memory.
    fn segments(&self, _lengths: &[usize]) -> Result<Vec<Segment>, Error> {
        Err(Error::mapping("`nccl` has no gradients in it"))
    }

    fn all_reduce(&self, _segment: &mut Segment) -> Result<(), Error> {
        Err(Error::mapping("`nccl` has no gradients in it"))
    }

    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), Error> {
        self.control.broadcast(bytes)
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.control.all_gather(mine)
    }

    fn barrier(&self) -> Result<(), Error> {
        self.control.barrier()
    }

    fn describe(&self) -> Option<String> {
        let numbers = self.hook.name();
        Some(format!("gradients are summed by NCCL {}, in {numbers}", self.version))
    }

    fn on_gpu(&self) -> Option<&dyn OnGpu> {
        Some(self)
    }

    fn abort(&self, reason: &str) {
        self.control.abort(reason);
        self.abort_communicator();
    }

    fn give_up(&self) {
        self.control.give_up();
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        if !self.aborted.swap(true, Ordering::SeqCst) {
            let communicator = self.communicator.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: the handle is live, and this is its last use.
            drop(unsafe { api::comm_destroy(communicator.0) });
        }
    }
}

/// What tells the GPU from all others, whatever number it has here; nothing if NCCL cannot be had or the driver does not tell.
pub(super) fn identity(gpu: &Gpu) -> Vec<u8> {
    let device = gpu.cuda().cuda_stream().context().cu_device();
    match (cuda_libraries::check_nccl(), device::get_uuid(device)) {
        (Ok(()), Ok(uuid)) => uuid.bytes.map(|byte| byte as u8).to_vec(),
        _ => Vec::new(),
    }
}

/// Whether the NCCL of this machine admits several ranks on one GPU.
pub(super) fn check_sharing() -> Result<(), Error> {
    let code = api::get_nccl_version().map_err(failed("asking for its version"))?;
    if code >= FIRST_TO_SHARE {
        return Ok(());
    }
    let (here, first) = (version()?, shown(FIRST_TO_SHARE));
    let what = format!(
        "version {here} refuses two ranks on one GPU, which {first} is the first to admit: use `distributed.backend = \"shm\"`"
    );
    Err(Error::Nccl { what })
}

/// Meets the other ranks in a communicator. NCCL waits for them without a deadline, on a thread that is left behind when
/// it is too late: the process then ends.
fn join(
    compute: &Arc<CudaStream>,
    id: [u8; ID_BYTES],
    (rank, world): (Rank, WorldSize),
    timeout: Duration,
) -> Result<Communicator, Error> {
    let (made, joined) = channel();
    let context = compute.context().clone();
    let join = move || {
        let id = sys::ncclUniqueId { internal: id.map(|byte| byte as std::ffi::c_char) };
        let mut handle = std::ptr::null_mut();
        let result = context.bind_to_thread().map_err(driver).and_then(|()| {
            let (ranks, rank) = (world.get() as i32, rank.0 as i32);
            // SAFETY: `handle` is a place for one handle, and the GPU's context is current.
            unsafe { api::comm_init_rank(&raw mut handle, ranks, id, rank) }
                .map_err(failed("joining the group"))
        });
        // Nobody listens any more if it took too long.
        drop(made.send(result.map(|_| Communicator(handle))));
    };
    let thread = std::thread::Builder::new().name("nccl".into()).spawn(join);
    thread.map_err(|error| Error::Nccl { what: format!("no thread for it: {error}") })?;
    joined.recv_timeout(timeout).unwrap_or_else(|_| {
        let seconds = timeout.as_secs_f64();
        Err(Error::Nccl { what: format!("not all ranks joined the group within {seconds:.1} s") })
    })
}

/// NCCL's error in its own words, which cudarc's does not show.
fn failed(doing: &'static str) -> impl Fn(api::NcclError) -> Error {
    move |api::NcclError(result)| {
        // SAFETY: NCCL returns a text that lives as long as the library, for any result.
        let words = unsafe { std::ffi::CStr::from_ptr(sys::ncclGetErrorString(result)) };
        let words = words.to_string_lossy();
        let what = format!("{doing} failed: {words} ({result:?}); NCCL_DEBUG=INFO tells more");
        Error::Nccl { what }
    }
}

fn driver(error: DriverError) -> Error {
    Error::Nccl { what: format!("the driver refused: {error}") }
}

/// "2.28.9"
fn version() -> Result<String, Error> {
    Ok(shown(api::get_nccl_version().map_err(failed("asking for its version"))?))
}

fn shown(code: i32) -> String {
    format!("{}.{}.{}", code / 10_000, code / 100 % 100, code % 100)
}
