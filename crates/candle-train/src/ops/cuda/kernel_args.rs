#![expect(unsafe_code, reason = "kernels read these structures as C declares them")]
//! The arguments of our kernels: addresses in the GPU's memory, numbers, and structures by value,
//! each of which a file of `kernels` declares, too.

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::{CudaStorage, DType, Result, Storage, Tensor, bail};
use cudarc::driver::{CudaSlice, DevicePtr, DeviceRepr, LaunchArgs, PushKernelArg};

use crate::Precision;

/// Contiguous values in the GPU's memory: address of the first one, and type.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops) struct Address {
    pub(super) at: u64,
    pub(in crate::ops) dtype: DType,
}

/// The values of a contiguous tensor of a GPU, which must outlive the work that is enqueued with them.
pub(in crate::ops) fn of_tensor(tensor: &Tensor) -> Result<Address> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else { bail!("a tensor of the GPU is needed") };
    let Some((start, _)) = layout.contiguous_offsets() else {
        bail!("a contiguous tensor is needed on the GPU, got {layout:?}")
    };
    let Address { at, dtype } = whole(storage)?;
    Ok(Address { at: at + (start * dtype.size_in_bytes()) as u64, dtype })
}

/// All values of a storage.
pub(super) fn whole(storage: &CudaStorage) -> Result<Address> {
    let at = match &storage.slice {
        CudaStorageSlice::F32(slice) => pointer(slice),
        CudaStorageSlice::F64(slice) => pointer(slice),
        CudaStorageSlice::BF16(slice) => pointer(slice),
        CudaStorageSlice::F16(slice) => pointer(slice),
        CudaStorageSlice::U32(slice) => pointer(slice),
        _ => bail!("no kernel reads {:?}", storage.dtype()),
    };
    Ok(Address { at, dtype: storage.dtype() })
}

/// Address of a buffer.
pub(super) fn pointer<T>(slice: &CudaSlice<T>) -> u64 {
    // Without event tracking the guard has nothing to wait for.
    let (pointer, _guard) = slice.device_ptr(slice.stream());
    pointer
}

/// Suffix of a kernel's name for a number type.
pub(super) fn suffix(dtype: DType) -> Result<&'static str> {
    match dtype {
        DType::F32 => Ok("f32"),
        DType::BF16 => Ok("bf16"),
        DType::F16 => Ok("f16"),
        other => bail!("no kernel computes with {other:?}"),
    }
}

/// The number type of operands and results of matrix products under a precision.
pub(in crate::ops) fn product_dtype(precision: Precision) -> DType {
    match precision {
        Precision::Fp32 => DType::F32,
        Precision::Bf16 => DType::BF16,
        Precision::Fp16 => DType::F16,
    }
}

/// Numbers of an update: `Rule` of optimizer.cu.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Rule {
    /// Kind of rule: one of the constants below.
    pub kind: i32,
    /// Learning rate; `NAdam`'s factor of the gradient.
    pub lr: f32,
    /// Share of the momentum buffer that stays.
    pub momentum: f32,
    /// Share of the gradient that goes into the momentum buffer.
    pub damp: f32,
    /// 1 - beta1
    pub rest1: f32,
    /// Share of the mean of squares that stays.
    pub beta2: f32,
    /// 1 - beta2
    pub rest2: f32,
    /// Added to the root of the mean of squares.
    pub eps: f32,
    /// Adam's learning rate, the bias correction of the first moment included; `NAdam`'s factor of
    /// the momentum.
    pub step_size: f32,
    /// Root of the bias correction of the second moment.
    pub root_correction: f32,
    /// Share of a value that weight decay adds to its gradient.
    pub penalty: f32,
    /// Factor by which weight decay multiplies a value.
    pub shrink: f32,
    /// Added to Adagrad's sum before the square.
    pub start: f32,
    /// Factor that makes a mean of a summed gradient.
    pub mean: f32,
    /// Factor of clipping by norm.
    pub clip: f32,
    /// Largest absolute value of a gradient element.
    pub limit: f32,
    /// Share of the distance to the values by which averages move.
    pub follow: f32,
}

impl Rule {
    /// SGD without momentum.
    pub const SGD: i32 = 0;
    /// SGD with momentum.
    pub const SGD_MOMENTUM: i32 = 1;
    /// SGD with Nesterov's momentum.
    pub const SGD_NESTEROV: i32 = 2;
    /// Adam and `AdamW`.
    pub const ADAM: i32 = 3;
    /// Values stay; only averages move.
    pub const AVERAGE_ONLY: i32 = 4;
    /// Lion.
    pub const LION: i32 = 5;
    /// `RMSprop` without momentum.
    pub const RMSPROP: i32 = 6;
    /// `RMSprop` with momentum.
    pub const RMSPROP_MOMENTUM: i32 = 7;
    /// Adagrad.
    pub const ADAGRAD: i32 = 8;
    /// `NAdam`.
    pub const NADAM: i32 = 9;
    /// Adam and `AdamW` with the largest mean of squares so far.
    pub const ADAM_AMSGRAD: i32 = 10;
}

/// Most state tensors of a rule that has a kernel: `MOST_STATE` of optimizer.cu.
pub(super) const MOST_STATE: usize = 3;

/// `ParameterAddresses` of optimizer.cu.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ParameterAddresses {
    pub(super) values: u64,
    pub(super) gradient: u64,
    pub(super) state: [u64; MOST_STATE],
    pub(super) average: u64,
    pub(super) n: u64,
    pub(super) decays: u32,
    pub(super) idle: u32,
}

/// `GroupedShape` of grouped.cu.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct GroupedShape {
    pub(super) n: u32,
    pub(super) h: u32,
    pub(super) w: u32,
    pub(super) ci: u32,
    pub(super) oh: u32,
    pub(super) ow: u32,
    pub(super) co: u32,
    pub(super) kh: u32,
    pub(super) kw: u32,
    pub(super) stride: [u32; 2],
    pub(super) padding: [u32; 2],
    pub(super) dilation: [u32; 2],
    pub(super) groups: u32,
}

/// `Attended` of attention.cu.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Attended {
    pub(super) heads: u32,
    pub(super) t: u32,
    pub(super) s: u32,
    pub(super) causal: i32,
    /// log2(e) / sqrt(d): the kernels take powers of two.
    pub(super) scale: f32,
    pub(super) kept_scale: f32,
    pub(super) key: u64,
    pub(super) threshold: u64,
}

// SAFETY: `Rule` is plain numbers in C's layout, as optimizer.cu declares it.
unsafe impl DeviceRepr for Rule {}

// SAFETY: `GroupedShape` is plain numbers in C's layout, as grouped.cu declares it.
unsafe impl DeviceRepr for GroupedShape {}

// SAFETY: `Attended` is plain numbers in C's layout, as attention.cu declares it.
unsafe impl DeviceRepr for Attended {}

// SAFETY: six numbers of eight bytes and two of four, in C's layout, without padding; zero is a
// value of each.
unsafe impl bytemuck::Zeroable for ParameterAddresses {}
// SAFETY: as above; any bits are a value.
unsafe impl bytemuck::Pod for ParameterAddresses {}

/// An argument of a kernel.
#[derive(Clone, Copy)]
pub(super) enum Arg {
    Address(u64),
    Count(u64),
    Flag(i32),
    Single(f32),
    Double(f64),
    Rule(Rule),
    Grouped(GroupedShape),
    Attended(Attended),
}

impl Arg {
    /// Adds this argument to those of a launch.
    pub(super) fn push<'a>(&'a self, launch: &mut LaunchArgs<'a>) {
        match self {
            Self::Address(value) | Self::Count(value) => launch.arg(value),
            Self::Flag(value) => launch.arg(value),
            Self::Single(value) => launch.arg(value),
            Self::Double(value) => launch.arg(value),
            Self::Rule(value) => launch.arg(value),
            Self::Grouped(value) => launch.arg(value),
            Self::Attended(value) => launch.arg(value),
        };
    }
}

impl From<Address> for Arg {
    fn from(address: Address) -> Self {
        Self::Address(address.at)
    }
}

impl From<Option<Address>> for Arg {
    /// Nothing is a null pointer.
    fn from(address: Option<Address>) -> Self {
        Self::Address(address.map_or(0, |address| address.at))
    }
}

impl From<usize> for Arg {
    fn from(count: usize) -> Self {
        Self::Count(count as u64)
    }
}

impl From<u64> for Arg {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<bool> for Arg {
    fn from(flag: bool) -> Self {
        Self::Flag(i32::from(flag))
    }
}

impl From<i32> for Arg {
    fn from(number: i32) -> Self {
        Self::Flag(number)
    }
}

impl From<f32> for Arg {
    fn from(value: f32) -> Self {
        Self::Single(value)
    }
}

impl From<f64> for Arg {
    fn from(value: f64) -> Self {
        Self::Double(value)
    }
}

/// The arguments of a kernel, in order.
macro_rules! args {
    ($($argument:expr),* $(,)?) => { &[$($crate::ops::cuda::kernel_args::Arg::from($argument)),*] };
}
pub(super) use args;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_argument_has_no_padding() {
        assert_eq!(size_of::<Attended>(), 40);
    }
}
