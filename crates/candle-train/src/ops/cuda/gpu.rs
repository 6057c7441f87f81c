#![expect(
    unsafe_code,
    reason = "memory of the GPU is handed out before it is written, and kernels are launched"
)]
//! A GPU: its memory and the launches of our kernels, all in the order of one stream.

use std::ffi::c_void;

use candle_core::cuda_backend::{CudaStorageSlice, WrapErr};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, DType, Device, Result, Shape, Storage, Tensor, bail};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{
    CUdevice, CUgraphMem_attribute, CUmemPool_attribute, cuDeviceGetGraphMemAttribute,
    cuDeviceGraphMemTrim, cuDeviceSetGraphMemAttribute,
};
use cudarc::driver::{CudaSlice, LaunchConfig};

use super::kernel_args::{Arg, pointer};
use super::kernel_source::{self, Kernels};

/// Threads of a block that goes over single elements, and of one that works on a row: `ROW_THREADS`
/// of common.cu.
pub(super) const THREADS: u32 = 256;
/// Threads of a block that works on a row that is [`LONG`]: a multiprocessor has two such rows at a
/// time, which the cache of a large GPU holds from one pass over them to the next.
const LONG_ROW_THREADS: u32 = 512;
/// Values of a row from which on it is long.
const LONG: usize = 8192;
/// Most blocks of a grid that strides over elements.
const MAX_BLOCKS: u64 = 1 << 16;
/// Columns of a block: `COLUMNS` of columns.cu.
pub(super) const COLUMNS: usize = 32;
/// Most packs of columns that a block takes side by side, as `part` of columns.cu.
const MOST_PACKS: usize = 32;
/// The columns of a block, and `LANES`.
const COLUMN_BLOCK: (u32, u32) = (COLUMNS as u32, 8);
/// Columns of a block that merges chunks, and lanes.
const MERGING_BLOCK: (u32, u32) = (8, 32);

/// A GPU. Cheap to clone.
#[derive(Clone)]
pub struct Gpu {
    device: CudaDevice,
}

/// Blocks and threads of a launch.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    blocks: (u32, u32, u32),
    threads: (u32, u32, u32),
}

impl Grid {
    /// A grid that strides over `n` elements.
    pub(super) fn over(n: usize) -> Self {
        let blocks = (n as u64).div_ceil(u64::from(THREADS)).min(MAX_BLOCKS);
        Self { blocks: (blocks as u32, 1, 1), threads: (THREADS, 1, 1) }
    }

    /// A thread for each of `n` elements, and no stride.
    pub(super) fn over_all(n: usize) -> Self {
        Self::of(n.div_ceil(THREADS as usize), THREADS)
    }

    /// So many blocks of as many threads.
    pub(super) fn of(blocks: usize, threads: u32) -> Self {
        Self { blocks: (blocks as u32, 1, 1), threads: (threads, 1, 1) }
    }

    /// A block for each of `n` rows.
    pub(super) fn rows(n: usize) -> Self {
        Self::of(n, THREADS)
    }

    /// A block for each of `n` rows of `c` values, which are read several times.
    pub(super) fn long_rows(n: usize, c: usize) -> Self {
        Self::of(n, if c < LONG { THREADS } else { LONG_ROW_THREADS })
    }

    /// Blocks of 1024 threads for 32 columns each, for each of `layers`.
    pub(super) fn wide_columns(c: usize, layers: usize) -> Self {
        let blocks = ((c as u32).div_ceil(COLUMN_BLOCK.0), layers as u32, 1);
        Self { blocks, threads: (1024, 1, 1) }
    }

    /// Blocks of 32 columns for each of `chunks` chunks of rows.
    pub(super) fn columns(c: usize, chunks: usize) -> Self {
        let (width, lanes) = COLUMN_BLOCK;
        let blocks = ((c as u32).div_ceil(width), chunks as u32, 1);
        Self { blocks, threads: (width, lanes, 1) }
    }

    /// Blocks of the kernels that merge the chunks of `c` columns: `MERGED_COLUMNS` and
    /// `MERGING_LANES` of columns.cu.
    pub(super) fn merging(c: usize) -> Self {
        let (width, lanes) = MERGING_BLOCK;
        Self { blocks: ((c as u32).div_ceil(width), 1, 1), threads: (width, lanes, 1) }
    }

    /// Blocks of at most [`MOST_PACKS`] packs of columns, of which `packs` lie side by side, for
    /// each of `chunks` chunks of rows: `Part` of columns.cu.
    pub(super) fn packs(packs: usize, chunks: usize) -> Self {
        let blocks = (packs.div_ceil(packs_of_block(packs)) as u32, chunks as u32, 1);
        Self { blocks, threads: (THREADS, 1, 1) }
    }

    /// As many of these grids at once.
    pub(super) fn deep(mut self, layers: usize) -> Self {
        self.blocks.2 = layers as u32;
        self
    }

    /// Tiles of 32 x 32 over `images` matrices (rows, columns).
    pub(super) fn tiles(rows: usize, columns: usize, images: usize) -> Self {
        let (width, lanes) = COLUMN_BLOCK;
        let blocks =
            ((columns as u32).div_ceil(width), (rows as u32).div_ceil(width), images as u32);
        Self { blocks, threads: (width, lanes, 1) }
    }
}

/// Packs of columns that a block takes side by side, of `packs` in all.
pub(super) fn packs_of_block(packs: usize) -> usize {
    packs.next_power_of_two().min(MOST_PACKS)
}

/// Bytes of work memory, freed when what was enqueued before is done.
pub(super) struct Scratch(CudaSlice<u8>);

impl Scratch {
    /// Address of the memory.
    pub(super) fn address(&self) -> u64 {
        pointer(&self.0)
    }

    /// Address of the memory, as an argument of a kernel.
    pub(super) fn at(&self) -> Arg {
        Arg::Address(self.address())
    }
}

impl Gpu {
    /// Opens GPU number `ordinal` for this process. Candle's own waits between streams are turned
    /// off: everything runs on one stream, and the others are ordered by events of ours.
    pub fn open(ordinal: usize) -> Result<Self> {
        let device = CudaDevice::new_with_stream(ordinal)?;
        // SAFETY: every buffer of this process is allocated and freed on the device's own stream,
        // and what other streams do with some (NCCL's sums, copies of batches and of gradients) is
        // ordered around its use there by events.
        unsafe { device.disable_event_tracking() };
        let gpu = Self { device };
        gpu.keep_freed_memory().w()?;
        Ok(gpu)
    }

    /// Memory that was freed stays with the process, instead of going back to the driver at each
    /// synchronisation.
    fn keep_freed_memory(&self) -> std::result::Result<(), DriverError> {
        let context = self.device.cuda_stream().context().clone();
        if !context.has_async_alloc() {
            return Ok(());
        }
        let mut threshold = u64::MAX;
        let value = std::ptr::from_mut(&mut threshold).cast::<c_void>();
        let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the pool is the device's own, and the attribute is a 64-bit number, which `value`
        // points to.
        unsafe {
            let pool = result::device::get_default_mem_pool(context.cu_device())?;
            result::mem_pool::set_attribute(pool, attribute, value)
        }
    }

    /// The most bytes in use at a time since the last call.
    pub(in crate::ops) fn take_peak(&self) -> Result<u64> {
        let context = self.device.cuda_stream().context().clone();
        let mut peak = 0u64;
        let value = std::ptr::from_mut(&mut peak).cast::<c_void>();
        let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
        let (mut zero, mut in_graphs) = (0u64, 0u64);
        let of_graphs = CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH;
        // SAFETY: the pool is the device's own, and each attribute is a 64-bit number, as what the
        // pointers point to; setting one to zero begins anew.
        unsafe {
            let pool = result::device::get_default_mem_pool(context.cu_device()).w()?;
            result::mem_pool::get_attribute(pool, attribute, value).w()?;
            let value = std::ptr::from_mut(&mut zero).cast::<c_void>();
            result::mem_pool::set_attribute(pool, attribute, value).w()?;
            let gpu = context.cu_device();
            let value = std::ptr::from_mut(&mut in_graphs);
            cuDeviceGetGraphMemAttribute(gpu, of_graphs, value.cast()).result().w()?;
            let value = std::ptr::from_mut(&mut zero).cast();
            cuDeviceSetGraphMemAttribute(gpu, of_graphs, value).result().w()?;
        }
        Ok(peak + in_graphs)
    }

    /// Gives memory that is free back to the driver, and says how many bytes are free then, and how
    /// many more than now have been in use at a time.
    pub(in crate::ops) fn free_memory(&self) -> Result<(u64, u64)> {
        let context = self.device.cuda_stream().context().clone();
        context.synchronize().w()?;
        let (mut most, mut now) = (0u64, 0u64);
        let attributes = [
            (CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, &mut most),
            (CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &mut now),
        ];
        // SAFETY: the pool is the device's own, and both attributes are 64-bit numbers, as what the
        // pointers point to.
        unsafe {
            let pool = result::device::get_default_mem_pool(context.cu_device()).w()?;
            result::mem_pool::trim_to(pool, 0).w()?;
            cuDeviceGraphMemTrim(context.cu_device()).result().w()?;
            for (attribute, place) in attributes {
                let value = std::ptr::from_mut(place).cast::<c_void>();
                result::mem_pool::get_attribute(pool, attribute, value).w()?;
            }
        }
        let (free, _) = result::mem_get_info().w()?;
        Ok((free as u64, most - now))
    }

    /// The GPU of a tensor.
    pub fn of_tensor(tensor: &Tensor) -> Result<Self> {
        Ok(Self { device: tensor.device().as_cuda_device()?.clone() })
    }

    /// The GPU that Candle calls `device`.
    pub fn of_device(device: &Device) -> Result<Self> {
        Ok(Self { device: device.as_cuda_device()?.clone() })
    }

    /// Candle's device.
    pub fn device(&self) -> Device {
        Device::Cuda(self.device.clone())
    }

    /// Candle's handle of the GPU.
    pub fn cuda(&self) -> &CudaDevice {
        &self.device
    }

    /// Memory for `n` numbers, which the caller's kernels write before anyone reads them.
    pub(super) fn storage(&self, dtype: DType, n: usize) -> Result<CudaStorage> {
        // SAFETY: the kernels of this module write every element of what they are given as output.
        let slice = unsafe {
            match dtype {
                DType::F32 => CudaStorageSlice::F32(self.device.alloc(n)?),
                DType::F64 => CudaStorageSlice::F64(self.device.alloc(n)?),
                DType::BF16 => CudaStorageSlice::BF16(self.device.alloc(n)?),
                DType::F16 => CudaStorageSlice::F16(self.device.alloc(n)?),
                DType::U32 => CudaStorageSlice::U32(self.device.alloc(n)?),
                other => bail!("no kernel writes {other:?}"),
            }
        };
        Ok(CudaStorage { slice, device: self.device.clone() })
    }

    /// [`Gpu::storage`] as a tensor.
    pub(in crate::ops) fn tensor(&self, dtype: DType, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        Ok(wrap(self.storage(dtype, shape.elem_count())?, shape))
    }

    /// Work memory.
    pub(super) fn scratch(&self, bytes: usize) -> Result<Scratch> {
        // SAFETY: work memory is written before it is read, as outputs are.
        unsafe { self.device.alloc(bytes.max(1)) }.map(Scratch)
    }

    /// A copy of `values` in work memory.
    pub(super) fn upload(&self, values: &[u8]) -> Result<Scratch> {
        self.device.clone_htod(values).map(Scratch)
    }

    /// The bytes of `scratch`. Waits for everything that was enqueued.
    pub(super) fn download(&self, scratch: &Scratch) -> Result<Vec<u8>> {
        self.device.clone_dtoh(&scratch.0)
    }

    /// Enqueues a kernel; an empty grid is no launch.
    pub(super) fn launch(&self, kernel: &str, grid: Grid, arguments: &[Arg]) -> Result<()> {
        self.launch_of(Kernels::Common, kernel, grid, arguments)
    }

    /// Enqueues a kernel of `kernels`; an empty grid is no launch.
    pub(super) fn launch_of(
        &self,
        kernels: Kernels,
        kernel: &str,
        grid: Grid,
        arguments: &[Arg],
    ) -> Result<()> {
        let (x, y, z) = grid.blocks;
        if x == 0 || y == 0 || z == 0 {
            return Ok(());
        }
        let stream = self.device.cuda_stream();
        let module = kernel_source::module(stream.context(), kernels)?;
        let function = module.load_function(kernel).w()?;
        let mut builder = stream.launch_builder(&function);
        for argument in arguments {
            argument.push(&mut builder);
        }
        let config =
            LaunchConfig { grid_dim: grid.blocks, block_dim: grid.threads, shared_mem_bytes: 0 };
        // SAFETY: each launch of this module passes the arguments that its kernel declares; addresses
        // are those of live buffers of the sizes that go with them, which are freed on the same
        // stream, so after the kernel.
        unsafe { builder.launch(config) }.w()?;
        Ok(())
    }
}

/// A storage as a tensor outside of any graph.
pub(in crate::ops) fn wrap(storage: CudaStorage, shape: impl Into<Shape>) -> Tensor {
    Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false)
}

/// Stands in a tensor for memory of the same GPU that was moved out of it; never read.
pub(in crate::ops) fn placeholder(storage: &CudaStorage) -> Result<CudaStorage> {
    Gpu { device: storage.device.clone() }.storage(DType::F32, 1)
}

/// All of a GPU's memory, in bytes.
pub(in crate::ops) fn total_memory(device: CUdevice) -> std::result::Result<usize, DriverError> {
    // SAFETY: `device` came from the driver.
    unsafe { result::device::total_mem(device) }
}
