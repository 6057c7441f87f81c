#![expect(unsafe_code, reason = "the C interface of cuDNN")]
//! Convolutions by cuDNN: which algorithm a shape gets is decided once, and all share one work
//! memory.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;

use candle_core::{DType, Error, Result};
use cudarc::cudnn::result::{self as api, CudnnError};
use cudarc::cudnn::sys;

use super::gpu::{Gpu, Scratch};
use super::graph::any_recorded;

/// Most work memory that an algorithm may want.
const WORKSPACE_LIMIT: usize = 1 << 30;
/// Room for all algorithms of a direction.
const ALGORITHMS: usize = 10;

type CudnnResult<T> = std::result::Result<T, CudnnError>;

/// Direction of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Direction {
    /// x, w -> y
    Forward,
    /// w, dy -> dx
    Data,
    /// x, dy -> dw
    Filter,
}

/// Sizes as (n, c, h, w), whatever the order in memory, which is channels last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Problem {
    pub(super) dtype: DType,
    /// True if f32 stays f32; otherwise its products may be TF32's.
    pub(super) exact: bool,
    pub(super) x: [i32; 4],
    pub(super) w: [i32; 4],
    pub(super) y: [i32; 4],
    pub(super) padding: [i32; 2],
    pub(super) stride: [i32; 2],
    pub(super) dilation: [i32; 2],
    pub(super) groups: i32,
}

/// Enqueues a convolution: `operands` and `out` are addresses of contiguous values, channels last.
/// `false` = it has groups, and cuDNN has no algorithm for it.
pub(super) fn run(
    gpu: &Gpu,
    direction: Direction,
    problem: Problem,
    operands: [u64; 2],
    out: u64,
) -> Result<bool> {
    thread_local! {
        static CUDNN: RefCell<Option<Cudnn>> = const { RefCell::new(None) };
    }
    CUDNN.with_borrow_mut(|cudnn| {
        let failed = |error: CudnnError| {
            Error::Msg(format!("cuDNN says {error} for the {direction:?} direction of {problem:?}"))
        };
        let cudnn = match cudnn {
            Some(cudnn) => cudnn,
            none => none.insert(Cudnn::open(gpu).map_err(failed)?),
        };
        loop {
            let plan = match cudnn.plan(direction, problem) {
                Err(_) if problem.groups > 1 => return Ok(false),
                plan => plan.map_err(failed)?,
            };
            let workspace = cudnn.workspace(gpu, plan.candidate.bytes)?;
            let ran = plan.run(cudnn.handle, operands, out, workspace);
            let Err(error) = ran else { return Ok(true) };
            // An estimate may promise an algorithm that the library then refuses for this shape.
            if !cudnn.take_next(direction, problem).map_err(failed)? && problem.groups == 1 {
                return Err(failed(error));
            }
        }
    })
}

/// The handle of the training thread, and its decisions. Lives as long as the thread; the
/// process ends with it.
struct Cudnn {
    handle: sys::cudnnHandle_t,
    plans: HashMap<(Direction, Problem), Plan>,
    workspace: Option<(usize, Scratch)>,
    /// Smaller ones that a graph may still use.
    outgrown: Vec<Scratch>,
}

impl Cudnn {
    fn open(gpu: &Gpu) -> CudnnResult<Self> {
        let stream = gpu.cuda().cuda_stream();
        let handle = api::create_handle()?;
        // SAFETY: the handle was just made, and the stream lives as long as the process's device.
        unsafe { api::set_stream(handle, stream.cu_stream().cast()) }?;
        Ok(Self { handle, plans: HashMap::new(), workspace: None, outgrown: Vec::new() })
    }

    fn plan(&mut self, direction: Direction, problem: Problem) -> CudnnResult<Convolution> {
        if let Some(plan) = self.plans.get(&(direction, problem)) {
            return plan.convolution();
        }
        let plan = Plan::new(self.handle, direction, &problem)?;
        self.plans.entry((direction, problem)).or_insert(plan).convolution()
    }

    /// Goes on to the plan's next algorithm; whether there is one.
    fn take_next(&mut self, direction: Direction, problem: Problem) -> CudnnResult<bool> {
        let Some(plan) = self.plans.get_mut(&(direction, problem)) else { return Ok(false) };
        plan.candidates.pop_front();
        plan.drop_unusable(self.handle)
    }

    /// At least `bytes` of work memory. One buffer serves all: convolutions follow one another on
    /// the stream.
    fn workspace(&mut self, gpu: &Gpu, bytes: usize) -> Result<u64> {
        if self.workspace.as_ref().is_none_or(|(capacity, _)| *capacity < bytes) {
            let larger = gpu.scratch(bytes)?;
            let outgrown = self.workspace.replace((bytes, larger)).filter(|_| any_recorded());
            self.outgrown.extend(outgrown.map(|(_, scratch)| scratch));
        }
        Ok(self.workspace.as_ref().map_or(0, |(_, scratch)| scratch.address()))
    }
}

/// Descriptors of a shape for cuDNN.
#[derive(Clone, Copy)]
struct Descriptors {
    convolution: sys::cudnnConvolutionDescriptor_t,
    x: sys::cudnnTensorDescriptor_t,
    w: sys::cudnnFilterDescriptor_t,
    y: sys::cudnnTensorDescriptor_t,
}

/// Descriptors of a shape, and its algorithms.
struct Plan {
    descriptors: Descriptors,
    /// The best first; the first is in use.
    candidates: VecDeque<Candidate>,
}

/// A convolution with the algorithm in use.
struct Convolution {
    descriptors: Descriptors,
    candidate: Candidate,
}

/// An algorithm as cuDNN's estimate describes it.
#[derive(Clone, Copy)]
struct Candidate {
    algorithm: Algorithm,
    /// Math type that the descriptor must have for it.
    math: sys::cudnnMathType_t,
    /// Work memory.
    bytes: usize,
}

#[derive(Clone, Copy)]
enum Algorithm {
    Forward(sys::cudnnConvolutionFwdAlgo_t),
    Data(sys::cudnnConvolutionBwdDataAlgo_t),
    Filter(sys::cudnnConvolutionBwdFilterAlgo_t),
}

const FORMAT: sys::cudnnTensorFormat_t = sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC;

fn data_type(dtype: DType) -> sys::cudnnDataType_t {
    match dtype {
        DType::BF16 => sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        DType::F16 => sys::cudnnDataType_t::CUDNN_DATA_HALF,
        _ => sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
    }
}

fn math_type(problem: &Problem) -> sys::cudnnMathType_t {
    match problem.dtype {
        DType::BF16 | DType::F16 => sys::cudnnMathType_t::CUDNN_TENSOR_OP_MATH,
        _ if problem.exact => sys::cudnnMathType_t::CUDNN_FMA_MATH,
        _ => sys::cudnnMathType_t::CUDNN_DEFAULT_MATH,
    }
}

/// The algorithms, in the order of cuDNN's estimates, that work, give the same bits each time and
/// want little enough memory. The estimates are structures of one layout and three names.
macro_rules! candidates {
    ($ask:path, $perf:ty, $algorithm:path, $exact:expr, $handle:expr, $($descriptor:expr),*) => {{
        let mut count = 0;
        // SAFETY: numbers and enumerations of C, all of which have a variant 0; cuDNN overwrites
        // `count` of them.
        let mut found: [$perf; ALGORITHMS] = unsafe { std::mem::zeroed() };
        // SAFETY: live descriptors, and room for as many estimates as it says.
        unsafe {
            $ask($handle, $($descriptor),*, ALGORITHMS as i32, &raw mut count, found.as_mut_ptr())
        }?;
        let fits = |perf: &&$perf| {
            perf.status == sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS
                && perf.determinism == sys::cudnnDeterminism_t::CUDNN_DETERMINISTIC
                && perf.memory <= WORKSPACE_LIMIT
        };
        let candidate = |perf: &$perf| Candidate {
            algorithm: $algorithm(perf.algo),
            // Anything else may round f32 to TF32.
            math: if $exact { sys::cudnnMathType_t::CUDNN_FMA_MATH } else { perf.mathType },
            bytes: perf.memory,
        };
        found.iter().take(count as usize).filter(fits).map(candidate).collect()
    }};
}

impl Plan {
    fn new(
        handle: sys::cudnnHandle_t,
        direction: Direction,
        problem: &Problem,
    ) -> CudnnResult<Self> {
        let kind = data_type(problem.dtype);
        let convolution = api::create_convolution_descriptor()?;
        let x = api::create_tensor_descriptor()?;
        let y = api::create_tensor_descriptor()?;
        let w = api::create_filter_descriptor()?;
        let Problem { padding, stride, dilation, groups, .. } = *problem;
        // SAFETY: all descriptors were just made.
        unsafe {
            api::set_convolution2d_descriptor(
                convolution,
                padding[0],
                padding[1],
                stride[0],
                stride[1],
                dilation[0],
                dilation[1],
                sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION,
                sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
            )?;
            api::set_convolution_math_type(convolution, math_type(problem))?;
            api::set_convolution_group_count(convolution, groups)?;
            api::set_tensor4d_descriptor(x, FORMAT, kind, problem.x)?;
            api::set_tensor4d_descriptor(y, FORMAT, kind, problem.y)?;
            api::set_filter4d_descriptor(w, kind, FORMAT, problem.w)?;
        }
        let descriptors = Descriptors { convolution, x, w, y };
        let candidates = match descriptors.estimates(handle, direction, problem) {
            // It is not asked again.
            Err(_) if problem.groups > 1 => VecDeque::new(),
            found => found?,
        };
        let mut plan = Self { descriptors, candidates };
        plan.drop_unusable(handle)?;
        Ok(plan)
    }

    fn convolution(&self) -> CudnnResult<Convolution> {
        let none = CudnnError(sys::cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED);
        let candidate = *self.candidates.front().ok_or(none)?;
        Ok(Convolution { descriptors: self.descriptors, candidate })
    }

    /// Drops algorithms from the front until one is accepted with its math type, and asks anew how
    /// much memory it wants with that; whether one is left. PyTorch sets the returned math type,
    /// too: an estimate holds for it alone.
    fn drop_unusable(&mut self, handle: sys::cudnnHandle_t) -> CudnnResult<bool> {
        while let Some(Candidate { algorithm, math, .. }) = self.candidates.front().copied() {
            // SAFETY: the descriptor lives as long as the thread.
            unsafe { api::set_convolution_math_type(self.descriptors.convolution, math) }?;
            match (self.descriptors.workspace_of(handle, algorithm), self.candidates.front_mut()) {
                (Ok(bytes), Some(first)) if bytes <= WORKSPACE_LIMIT => {
                    first.bytes = bytes;
                    return Ok(true);
                }
                _ => drop(self.candidates.pop_front()),
            }
        }
        Ok(false)
    }
}

impl Descriptors {
    fn estimates(
        &self,
        handle: sys::cudnnHandle_t,
        direction: Direction,
        problem: &Problem,
    ) -> CudnnResult<VecDeque<Candidate>> {
        let Self { convolution, x, w, y } = *self;
        let exact = problem.dtype == DType::F32 && problem.exact;
        Ok(match direction {
            Direction::Forward => candidates!(
                api::get_convolution_forward_algorithm,
                sys::cudnnConvolutionFwdAlgoPerf_t,
                Algorithm::Forward,
                exact,
                handle,
                x,
                w,
                convolution,
                y
            ),
            Direction::Data => candidates!(
                api::get_convolution_backward_data_algorithm,
                sys::cudnnConvolutionBwdDataAlgoPerf_t,
                Algorithm::Data,
                exact,
                handle,
                w,
                y,
                convolution,
                x
            ),
            Direction::Filter => candidates!(
                api::get_convolution_backward_filter_algorithm,
                sys::cudnnConvolutionBwdFilterAlgoPerf_t,
                Algorithm::Filter,
                exact,
                handle,
                x,
                y,
                convolution,
                w
            ),
        })
    }

    fn workspace_of(&self, handle: sys::cudnnHandle_t, algorithm: Algorithm) -> CudnnResult<usize> {
        let Self { convolution, x, w, y } = *self;
        // SAFETY: live descriptors.
        unsafe {
            match algorithm {
                Algorithm::Forward(algorithm) => api::get_convolution_forward_workspace_size(
                    handle,
                    x,
                    w,
                    convolution,
                    y,
                    algorithm,
                ),
                Algorithm::Data(algorithm) => api::get_convolution_backward_data_workspace_size(
                    handle,
                    w,
                    y,
                    convolution,
                    x,
                    algorithm,
                ),
                Algorithm::Filter(algorithm) => {
                    api::get_convolution_backward_filter_workspace_size(
                        handle,
                        x,
                        y,
                        convolution,
                        w,
                        algorithm,
                    )
                }
            }
        }
    }
}

impl Convolution {
    fn run(
        &self,
        handle: sys::cudnnHandle_t,
        operands: [u64; 2],
        out: u64,
        workspace: u64,
    ) -> CudnnResult<()> {
        let pointer = |at: u64| at as *const c_void;
        let (one, zero) = (1f32, 0f32);
        let one = (&raw const one).cast();
        let zero = (&raw const zero).cast();
        let ([a, b], out) = (operands.map(pointer), out as *mut c_void);
        let workspace = workspace as *mut c_void;
        let bytes = self.candidate.bytes;
        let Descriptors { convolution, x, w, y } = self.descriptors;
        // SAFETY: the descriptors say what lies at the addresses, and the caller's buffers have
        // those sizes; the work memory has at least `bytes`. The factors are f32, as for all three
        // number types.
        unsafe {
            match self.candidate.algorithm {
                Algorithm::Forward(algorithm) => api::convolution_forward(
                    handle,
                    one,
                    x,
                    a,
                    w,
                    b,
                    convolution,
                    algorithm,
                    workspace,
                    bytes,
                    zero,
                    y,
                    out,
                ),
                Algorithm::Data(algorithm) => api::convolution_backward_data(
                    handle,
                    one,
                    w,
                    a,
                    y,
                    b,
                    convolution,
                    algorithm,
                    workspace,
                    bytes,
                    zero,
                    x,
                    out,
                ),
                Algorithm::Filter(algorithm) => api::convolution_backward_filter(
                    handle,
                    one,
                    x,
                    a,
                    y,
                    b,
                    convolution,
                    algorithm,
                    workspace,
                    bytes,
                    zero,
                    w,
                    out,
                ),
            }
        }
    }
}
