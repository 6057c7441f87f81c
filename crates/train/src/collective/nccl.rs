#![expect(unsafe_code, reason = "the C interface of NCCL")]
//! Sums of gradients and copies of weights by NCCL, on a stream of their own, overlapping with the
//! computation. Streams wait for each other by events; the CPU only polls, as
//! [`crate::collective::device_group`] does.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use candle_core::{DType, Tensor};
use cudarc::driver::result::device;
use cudarc::driver::{CudaEvent, CudaStream, DriverError};
use cudarc::nccl::{result as api, sys};

use crate::collective::device_group::{Control, DeviceGroup, DeviceReducer, ID_BYTES};
use crate::collective::{DeviceExchange, Error};
use crate::cuda_libraries;
use crate::ops::cuda::{Gpu, compress, decompress, pointer};
use crate::plan::CommHook;
use crate::units::{Rank, WorldSize};

/// The first version that allows several ranks on one GPU, with `NCCL_MULTI_RANK_GPU_ENABLE`.
const MIN_SHARING_VERSION: i32 = 23_000;

/// One rank of NCCL's group.
pub(super) struct Nccl {
    /// `None` once it was aborted.
    communicator: Mutex<Option<Communicator>>,
    rank: Rank,
    world: WorldSize,
    /// The stream on which the model computes.
    compute: Arc<CudaStream>,
    /// The stream on which gradients are summed.
    sums: Arc<CudaStream>,
    hook: CommHook,
    /// Pending sums in half precision, and the tensors that they belong to.
    halves: Mutex<Vec<(Tensor, Tensor)>>,
    version: String,
}

/// NCCL's handle.
struct Communicator(sys::ncclComm_t);

// SAFETY: a handle may be used by any thread, one at a time: it is behind a lock.
unsafe impl Send for Communicator {}

/// A call of NCCL.
struct NcclCall {
    from: u64,
    to: u64,
    /// Numbers.
    n: usize,
    kind: sys::ncclDataType_t,
    operation: Operation,
}

/// Operation of a call.
enum Operation {
    Sum,
    SumAt(Rank),
    CopyFrom(Rank),
}

impl NcclCall {
    fn enqueue(
        &self,
        Communicator(handle): &Communicator,
        stream: &CudaStream,
    ) -> Result<(), api::NcclError> {
        let from = self.from as *const c_void;
        let to = self.to as *mut c_void;
        let n = self.n;
        let kind = self.kind;
        let sum = sys::ncclRedOp_t::ncclSum;
        let handle = *handle;
        let stream = stream.cu_stream().cast();
        // SAFETY: the handle is live; these are that many numbers in the memory of this rank's GPU,
        // which stay there until later work has waited for the stream, or `record` has enqueued
        // their way back; the stream is of the same context.
        let enqueued = unsafe {
            match self.operation {
                Operation::Sum => api::all_reduce(from, to, n, kind, sum, handle, stream),
                Operation::SumAt(Rank(root)) => {
                    api::reduce(from, to, n, kind, sum, root as i32, handle, stream)
                }
                Operation::CopyFrom(Rank(root)) => {
                    api::broadcast(from, to, n, kind, root as i32, handle, stream)
                }
            }
        };
        enqueued.map(drop)
    }
}

/// Joins NCCL's group of all ranks; all else is exchanged through `control`.
pub(super) fn open(
    gpu: &Gpu,
    control: Arc<dyn Control>,
    hook: CommHook,
    timeout: Duration,
) -> Result<DeviceGroup<Nccl>, Error> {
    let place = (control.rank(), control.world_size());
    let compute = gpu.cuda().cuda_stream();
    let context = compute.context().clone();
    let join_group = move |id: [u8; ID_BYTES], rank: Rank, world: WorldSize| {
        context.bind_to_thread().map_err(driver)?;
        join(id, rank, world)
    };
    let finish = move |communicator| Nccl::new(communicator, place, compute, hook);
    DeviceGroup::open(control, timeout, new_id, join_group, finish)
}

/// Returns the id of a new group.
fn new_id() -> Result<[u8; ID_BYTES], Error> {
    let id = api::get_uniqueid().map_err(failed("making a group"))?;
    Ok(id.internal.map(|byte| byte as u8))
}

/// Waits for the other ranks in NCCL. The GPU's context is current.
fn join(id: [u8; ID_BYTES], rank: Rank, world: WorldSize) -> Result<Communicator, Error> {
    let id = sys::ncclUniqueId { internal: id.map(|byte| byte as std::ffi::c_char) };
    let mut handle = std::ptr::null_mut();
    let ranks = world.get() as i32;
    let rank = rank.0 as i32;
    // SAFETY: `handle` is a place for one handle, and the GPU's context is current.
    unsafe { api::comm_init_rank(&raw mut handle, ranks, id, rank) }
        .map_err(failed("joining the group"))?;
    Ok(Communicator(handle))
}

impl Nccl {
    fn new(
        communicator: Communicator,
        (rank, world): (Rank, WorldSize),
        compute: Arc<CudaStream>,
        hook: CommHook,
    ) -> Result<Self, Error> {
        let sums = compute.context().new_stream().map_err(driver)?;
        let communicator = Mutex::new(Some(communicator));
        let halves = Mutex::new(Vec::new());
        let version = version()?;
        Ok(Self { communicator, rank, world, compute, sums, hook, halves, version })
    }

    /// The calls that make an exchange. Where gradients go as half precision, these are of copies,
    /// and [`Nccl::expand_halves`] copies what they give back.
    fn calls(&self, exchange: DeviceExchange<'_>) -> candle_core::Result<Vec<NcclCall>> {
        match exchange {
            DeviceExchange::AllReduce(values) => {
                let (sent, kind) = self.compressed(values)?;
                if let Some(half) = &sent {
                    self.halves().push((values.clone(), half.clone()));
                }
                let at = pointer(sent.as_ref().unwrap_or(values))?;
                Ok(vec![NcclCall {
                    from: at,
                    to: at,
                    n: values.elem_count(),
                    kind,
                    operation: Operation::Sum,
                }])
            }
            DeviceExchange::ReduceScatter { values, parts, mine } => {
                self.sums_of_parts(values, parts, mine)
            }
            DeviceExchange::AllGather(values) => {
                let call = |(owner, values): &(Rank, Tensor)| {
                    let at = pointer(values)?;
                    let kind = sys::ncclDataType_t::ncclFloat32;
                    let operation = Operation::CopyFrom(*owner);
                    Ok(NcclCall { from: at, to: at, n: values.elem_count(), kind, operation })
                };
                values.iter().map(call).collect()
            }
        }
    }

    /// A sum at each rank: parts are those of whole parameters, so they differ in length, and
    /// `ncclReduceScatter` does not fit. As many bytes leave a rank.
    fn sums_of_parts(
        &self,
        values: &Tensor,
        parts: &[Range<usize>],
        mine: &Tensor,
    ) -> candle_core::Result<Vec<NcclCall>> {
        let (half, kind) = self.compressed(values)?;
        let sent = half.as_ref().unwrap_or(values);
        let mut to_mine = pointer(mine)?;
        if let Some(half) = &half {
            let part = parts[self.rank.index()].clone();
            let half = half.narrow(0, part.start, part.len())?;
            to_mine = pointer(&half)?;
            self.halves().push((mine.clone(), half));
        }
        let begin = pointer(sent)?;
        let size = sent.dtype().size_in_bytes();
        let call = |(owner, part): (Rank, &Range<usize>)| {
            let from = begin + (part.start * size) as u64;
            let to = if owner == self.rank { to_mine } else { from };
            NcclCall { from, to, n: part.len(), kind, operation: Operation::SumAt(owner) }
        };
        let parts = (0..).map(Rank).zip(parts).filter(|(_, part)| !part.is_empty());
        Ok(parts.map(call).collect())
    }

    /// The half-precision copy of `values` that is summed for them, if there is one, and NCCL's
    /// type of what is summed.
    fn compressed(
        &self,
        values: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, sys::ncclDataType_t)> {
        let (dtype, kind) = match (values.dtype(), self.hook) {
            (DType::F64, _) => return Ok((None, sys::ncclDataType_t::ncclFloat64)),
            (_, CommHook::None) => return Ok((None, sys::ncclDataType_t::ncclFloat32)),
            (_, CommHook::Bf16) => (DType::BF16, sys::ncclDataType_t::ncclBfloat16),
            (_, CommHook::Fp16) => (DType::F16, sys::ncclDataType_t::ncclFloat16),
        };
        let half = compress(values, dtype, 1.0 / self.world.get() as f32)?;
        Ok((Some(half), kind))
    }

    /// Copies sums in half precision back, after them in the order of the compute stream.
    fn expand_halves(&self) -> candle_core::Result<()> {
        let world = self.world.get() as f32;
        let mut halves = self.halves();
        halves.drain(..).try_for_each(|(values, half)| decompress(&half, &values, world))
    }

    fn halves(&self) -> MutexGuard<'_, Vec<(Tensor, Tensor)>> {
        self.halves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn communicator(&self) -> MutexGuard<'_, Option<Communicator>> {
        self.communicator.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeviceReducer for Nccl {
    type Event = CudaEvent;

    fn describe(&self) -> String {
        format!("gradients are summed by NCCL {}, in {}", self.version, self.hook.name())
    }

    fn enqueue(&self, exchange: DeviceExchange<'_>) -> Result<(), Error> {
        let calls = self.calls(exchange).map_err(tensor)?;
        let ready = self.compute.record_event(None).map_err(driver)?;
        self.sums.wait(&ready).map_err(driver)?;
        let communicator = self.communicator();
        let Some(communicator) = &*communicator else {
            return Err(Error::Nccl { what: "the group has ended".to_owned() });
        };
        // Several are one launch.
        api::group_start().map_err(failed("an exchange"))?;
        let stream = &self.sums;
        let enqueued = calls.iter().try_for_each(|call| call.enqueue(communicator, stream));
        let ended = api::group_end();
        enqueued.and(ended.map(drop)).map_err(failed("a sum of gradients"))
    }

    fn record(&self) -> Result<CudaEvent, Error> {
        let done = self.sums.record_event(None).map_err(driver)?;
        self.compute.wait(&done).map_err(driver)?;
        self.expand_halves().map_err(tensor)?;
        Ok(done)
    }

    fn is_complete(&self, done: &CudaEvent) -> Result<bool, Error> {
        done.try_is_complete().map_err(driver)
    }

    fn failure(&self) -> Option<Error> {
        let communicator = self.communicator();
        let Communicator(handle) = communicator.as_ref()?;
        let mut state = sys::ncclResult_t::ncclSuccess;
        // SAFETY: the handle is live, and `state` is a place for one result.
        let asked = unsafe { sys::ncclCommGetAsyncError(*handle, &raw mut state) };
        let bad = [asked, state].into_iter().find(|result| {
            !matches!(result, sys::ncclResult_t::ncclSuccess | sys::ncclResult_t::ncclInProgress)
        });
        bad.map(|result| failed("a sum of gradients")(api::NcclError(result)))
    }

    fn abort(&self) {
        if let Some(Communicator(handle)) = self.communicator().take() {
            // SAFETY: the handle is live, and nothing else has it.
            drop(unsafe { api::comm_abort(handle) });
        }
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        if let Some(Communicator(handle)) = self.communicator().take() {
            // SAFETY: the handle is live, and this is its last use.
            drop(unsafe { api::comm_destroy(handle) });
        }
    }
}

/// The GPU's UUID; empty if NCCL is missing or the driver does not tell.
pub(super) fn identity(gpu: &Gpu) -> Vec<u8> {
    let device = gpu.cuda().cuda_stream().context().cu_device();
    match (cuda_libraries::check_nccl(), device::get_uuid(device)) {
        (Ok(()), Ok(uuid)) => uuid.bytes.map(|byte| byte as u8).to_vec(),
        _ => Vec::new(),
    }
}

/// Checks that the NCCL of this machine allows several ranks on one GPU.
pub(super) fn check_sharing() -> Result<(), Error> {
    let code = api::get_nccl_version().map_err(failed("asking for its version"))?;
    if code >= MIN_SHARING_VERSION {
        return Ok(());
    }
    let here = version()?;
    let first = shown(MIN_SHARING_VERSION);
    let what = format!(
        "version {here} refuses two ranks on one GPU, which {first} and later allow: use \
         `distributed.backend = \"shm\"`"
    );
    Err(Error::Nccl { what })
}

/// NCCL's error with its message, which cudarc's does not show.
fn failed(doing: &'static str) -> impl Fn(api::NcclError) -> Error {
    move |api::NcclError(result)| {
        // SAFETY: NCCL returns a text that lives as long as the library, for any result.
        let message = unsafe { std::ffi::CStr::from_ptr(sys::ncclGetErrorString(result)) };
        let message = message.to_string_lossy();
        let what =
            format!("{doing} failed: {message} ({result:?}); set NCCL_DEBUG=INFO for details");
        Error::Nccl { what }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "fits `map_err`")]
fn tensor(error: candle_core::Error) -> Error {
    Error::Nccl { what: error.to_string() }
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

#[cfg(test)]
mod tests {
    use super::{Nccl, join, new_id, open};

    use std::sync::Barrier;
    use std::time::Duration;

    use candle_core::{DType, Device, Result, Tensor};

    use crate::collective::device_group::DeviceReducer;
    use crate::collective::device_group::tests::{over_memory, spawn};
    use crate::collective::{Collective, DeviceExchange, OnGpu};
    use crate::cuda_libraries::check_nccl;
    use crate::ops::cuda::Gpu;
    use crate::ops::{open_gpu, visible_gpus};
    use crate::plan::CommHook;
    use crate::skipped::skipped;
    use crate::units::{Rank, WorldSize};

    /// A group of one on the first GPU.
    fn alone(device: &Device, hook: CommHook) -> Nccl {
        let compute = Gpu::of_device(device).unwrap().cuda().cuda_stream();
        compute.context().bind_to_thread().unwrap();
        let communicator = join(new_id().unwrap(), Rank(0), WorldSize::ONE).unwrap();
        Nccl::new(communicator, (Rank(0), WorldSize::ONE), compute, hook).unwrap()
    }

    /// Returns `values` as the group of one sums them.
    fn summed(group: &Nccl, device: &Device, values: &[f32]) -> Result<Vec<f32>> {
        let gradient = Tensor::from_slice(values, values.len(), device)?;
        group.enqueue(DeviceExchange::AllReduce(&gradient)).unwrap();
        let done = group.record().unwrap();
        while !group.is_complete(&done).unwrap() {
            assert!(group.failure().is_none());
        }
        gradient.to_vec1()
    }

    /// One card is enough to see that the library is found, joins, sums, and ends in both ways.
    #[test]
    fn gpu_a_group_of_one_keeps_its_values_and_ends() {
        let gpus = visible_gpus().and_then(std::result::Result::ok).map_or(0, |gpus| gpus.len());
        if gpus == 0 || check_nccl().is_err() {
            return skipped("a GPU and NCCL");
        }
        let device = open_gpu(0).unwrap();
        let values = [1.0, -2.5, 0.125, 4096.0];
        for hook in [CommHook::None, CommHook::Bf16, CommHook::Fp16] {
            let group = alone(&device, hook);
            assert_eq!(summed(&group, &device, &values).unwrap(), values, "{hook:?}");
            assert!(group.failure().is_none());
        }
        let aborted = alone(&device, CommHook::None);
        aborted.abort();
        let gradient = Tensor::zeros(4, candle_core::DType::F32, &device).unwrap();
        let refused = aborted.enqueue(DeviceExchange::AllReduce(&gradient)).unwrap_err();
        assert!(refused.to_string().contains("the group has ended"), "{refused}");
    }

    /// Parts of unequal length, in their place and elsewhere, and one rank without a part.
    #[test]
    fn gpu_each_rank_gets_the_sum_of_its_part_and_what_others_own() {
        let gpus = visible_gpus().and_then(std::result::Result::ok).map_or(0, |gpus| gpus.len());
        if gpus < 2 || check_nccl().is_err() {
            return skipped("two GPUs and NCCL");
        }
        for (hook, parts) in [
            (CommHook::None, [0..4, 4..6]),
            (CommHook::Bf16, [0..1, 1..6]),
            (CommHook::Fp16, [0..6, 0..0]),
        ] {
            let controls = over_memory(2, Duration::from_secs(60));
            let found = spawn(controls, |control| {
                let rank = control.rank();
                let device = open_gpu(rank.index()).unwrap();
                let gpu = Gpu::of_device(&device).unwrap();
                let group = open(&gpu, control, hook, Duration::from_secs(60)).unwrap();
                let factor = 1.0 + 2.0 * rank.index() as f32;
                let values: Vec<f32> = (1..=6).map(|value| factor * value as f32).collect();
                let values = Tensor::new(values, &device).unwrap();
                let part = parts[rank.index()].clone();
                let mine = if rank.is_first() {
                    values.narrow(0, part.start, part.len()).unwrap()
                } else {
                    Tensor::zeros(6, DType::F32, &device).unwrap().narrow(0, 0, part.len()).unwrap()
                };
                let parts = &parts;
                let exchange =
                    DeviceExchange::ReduceScatter { values: &values, parts, mine: &mine };
                group.enqueue(exchange).unwrap();
                group.join().unwrap();
                // Later work, which need not wait on the CPU.
                let doubled = (!part.is_empty()).then(|| (&mine * 2.0).unwrap());
                let owned = [Rank(1), Rank(0)]
                    .map(|owner| (owner, Tensor::new(&[factor, -factor], &device).unwrap()));
                group.enqueue(DeviceExchange::AllGather(&owned)).unwrap();
                let total = Tensor::new(&[f64::from(factor) / 3.0], &device).unwrap();
                group.enqueue(DeviceExchange::AllReduce(&total)).unwrap();
                group.finish().unwrap();
                let owned = owned.map(|(_, values)| values.to_vec1::<f32>().unwrap());
                let doubled = doubled.map(|values| values.to_vec1::<f32>().unwrap());
                (doubled.unwrap_or_default(), owned, total.to_vec1::<f64>().unwrap())
            });
            for (rank, (doubled, owned, total)) in found.into_iter().enumerate() {
                let sums: Vec<f32> = parts[rank].clone().map(|i| 8.0 * (i + 1) as f32).collect();
                assert_eq!(doubled, sums, "{hook:?}, rank {rank}");
                assert_eq!(owned, [[3.0, -3.0], [1.0, -1.0]]);
                assert_eq!(total, [1.0 / 3.0 + 1.0], "f64 is not rounded");
            }
        }
    }

    /// A rank that joins, and never takes part in the sum.
    #[test]
    fn gpu_a_sum_without_the_other_rank_ends_at_the_deadline_and_frees_the_card() {
        let gpus = visible_gpus().and_then(std::result::Result::ok).map_or(0, |gpus| gpus.len());
        if gpus < 2 || check_nccl().is_err() {
            return skipped("two GPUs and NCCL");
        }
        let (deadline, over) = (Duration::from_secs(3), Barrier::new(2));
        let errors = spawn(over_memory(2, 20 * deadline), |control| {
            let rank = control.rank();
            let device = open_gpu(rank.index()).unwrap();
            let gpu = Gpu::of_device(&device).unwrap();
            let group = open(&gpu, control, CommHook::None, deadline).unwrap();
            if rank.is_first() {
                let gradient = Tensor::ones(4, candle_core::DType::F32, &device).unwrap();
                group.enqueue(DeviceExchange::AllReduce(&gradient)).unwrap();
                let error = group.finish().unwrap_err();
                // What is enqueued from now on waits for the sum no more.
                device.synchronize().unwrap();
                over.wait();
                return error.to_string();
            }
            over.wait();
            group.barrier().unwrap_err().to_string()
        });
        let why =
            "timed out waiting for rank 1 (in call 1) after 3.0 s in `sum on devices` (call 2)";
        assert!(errors[0].contains(why), "{errors:?}");
        assert!(errors[1].contains(why), "the other rank is told why: {errors:?}");
    }
}
