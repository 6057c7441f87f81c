//! Operations: operands, forward on the CPU, forward on a GPU where there are kernels, backward.
//! Candle's own traits for that (`CustomOp1`, `CustomOp2`, `CustomOp3`) are implemented once, here.

use std::cell::Cell;
use std::sync::{Mutex, OnceLock, PoisonError};

use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, CustomOp3, Layout, Result, Shape, Storage, Tensor, bail,
};
#[cfg(feature = "cuda")]
use candle_core::{CudaStorage, Device};

#[cfg(feature = "cuda")]
use super::cuda::Gpu;
use super::saved::Saved;
#[cfg(feature = "cuda")]
use super::storage::tensor;
use super::storage::{read_numbers, slice};

/// A differentiable operation; [`super::chain::apply`] applies it.
pub(crate) trait Operation: Send + Sync + 'static {
    /// Operands: an array of one to three, [`OneOrTwo`] or [`TwoOrThree`].
    type Operands<T>: List<T>;

    /// Name of the operation in messages.
    const NAME: &'static str;

    /// The result, f32 in row-major order, and its shape.
    fn forward(&self, _operands: Self::Operands<Input<'_>>) -> Result<(Vec<f32>, Shape)> {
        bail!("{} was made for a GPU", Self::NAME)
    }

    /// True if backward reads the result.
    #[cfg(any(feature = "cuda", test))]
    fn reads_result(&self) -> bool {
        true
    }

    /// The gradients of the operands, given the result and its gradient, which is contiguous and
    /// may be written over ([`super::storage::overwrite`]). `None` where no gradient is wanted, or
    /// where it was sent off.
    fn backward(
        &self,
        operands: Self::Operands<&Tensor>,
        y: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self>;
}

/// The half of an operation that enqueues kernels on a GPU.
#[cfg(feature = "cuda")]
pub(crate) trait OnGpu: Operation {
    /// True if there are kernels for it. Without them, operands are copied to the CPU and results back.
    fn has_kernels(&self) -> bool {
        true
    }

    /// True if operands may be in half precision, which is then the type of their gradients. Other
    /// operations get f32.
    fn takes_half(&self) -> bool {
        false
    }

    /// [`Operation::forward`], of contiguous operands.
    fn forward_on(
        &self,
        _gpu: &Gpu,
        _operands: Self::Operands<&Tensor>,
    ) -> Result<(CudaStorage, Shape)> {
        bail!("{} has no kernel for GPUs", Self::NAME)
    }

    /// [`Operation::backward`].
    fn backward_on(
        &self,
        _gpu: &Gpu,
        _operands: Self::Operands<&Tensor>,
        _y: &Tensor,
        _dy: Tensor,
    ) -> Gradients<Self> {
        bail!("{} has no kernel for GPUs", Self::NAME)
    }
}

/// Without CUDA an operation has no such half.
#[cfg(not(feature = "cuda"))]
pub(crate) trait OnGpu: Operation {}

#[cfg(not(feature = "cuda"))]
impl<O: Operation> OnGpu for O {}

/// Result of a backward: a gradient for each operand.
pub(crate) type Gradients<O> = Result<<O as Operation>::Operands<Option<Tensor>>>;

/// A contiguous operand in the CPU's memory.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) shape: &'a Shape,
}

/// Two operands and a third that may be missing, or one thing for each of them.
pub(crate) type TwoOrThree<T> = ([T; 2], Option<T>);

/// An operand and another that may be missing, or one thing for each of them.
pub(crate) type OneOrTwo<T> = ([T; 1], Option<T>);

/// Operands, or one thing for each of them.
pub(crate) trait List<T>: Sized {
    /// `None` if it has another length.
    fn from_vec(items: Vec<T>) -> Option<Self>;

    fn into_vec(self) -> Vec<T>;
}

impl<T, const N: usize> List<T> for [T; N] {
    fn from_vec(items: Vec<T>) -> Option<Self> {
        items.try_into().ok()
    }

    fn into_vec(self) -> Vec<T> {
        self.into()
    }
}

impl<T> List<T> for TwoOrThree<T> {
    fn from_vec(mut items: Vec<T>) -> Option<Self> {
        let last = if items.len() > 2 { items.pop() } else { None };
        Some((items.try_into().ok()?, last))
    }

    fn into_vec(self) -> Vec<T> {
        self.0.into_iter().chain(self.1).collect()
    }
}

impl<T> List<T> for OneOrTwo<T> {
    fn from_vec(mut items: Vec<T>) -> Option<Self> {
        let last = if items.len() > 1 { items.pop() } else { None };
        Some((items.try_into().ok()?, last))
    }

    fn into_vec(self) -> Vec<T> {
        self.0.into_iter().chain(self.1).collect()
    }
}

/// `items` as the operands of an operation.
fn to_operands<O: Operation, T>(items: Vec<T>) -> Result<O::Operands<T>> {
    let n = items.len();
    match List::from_vec(items) {
        Some(list) => Ok(list),
        None => bail!("{} of {n} operands", O::NAME),
    }
}

/// The result of `op`, where its operands are.
pub(super) fn forward<O: OnGpu>(op: &O, operands: &[Tensor]) -> Result<(Storage, Shape)> {
    #[cfg(feature = "cuda")]
    if let Some(first) = operands.first().filter(|first| first.device().is_cuda()) {
        if !op.has_kernels() {
            return forward_by_cpu(op, operands);
        }
        let gpu = Gpu::of_tensor(first)?;
        let (y, shape) = op.forward_on(&gpu, to_operands::<O, _>(operands.iter().collect())?)?;
        return Ok((Storage::Cuda(y), shape));
    }
    let (y, shape) = forward_on_cpu(op, operands)?;
    Ok((Storage::Cpu(CpuStorage::F32(y)), shape))
}

/// The result of `op`, of operands in the CPU's memory.
fn forward_on_cpu<O: Operation>(op: &O, operands: &[Tensor]) -> Result<(Vec<f32>, Shape)> {
    let guards: Vec<_> = operands.iter().map(Tensor::storage_and_layout).collect();
    let mut inputs = Vec::with_capacity(guards.len());
    for (storage, layout) in &guards {
        let Storage::Cpu(storage) = &**storage else {
            bail!("{} of tensors of different devices", O::NAME)
        };
        inputs.push(Input { values: slice(storage, layout)?, shape: layout.shape() });
    }
    op.forward(to_operands::<O, _>(inputs)?)
}

/// The result of `op`, which has no kernels, on the GPU of its operands: the CPU computes it, and
/// operands and result are copied.
#[cfg(feature = "cuda")]
fn forward_by_cpu<O: Operation>(op: &O, operands: &[Tensor]) -> Result<(Storage, Shape)> {
    let (y, shape) = forward_on_cpu(op, &on_cpu(operands.iter())?)?;
    let y = tensor(y, &shape)?.to_device(operands[0].device())?;
    let storage = y.storage_and_layout().0.try_clone(y.layout())?;
    Ok((storage, shape))
}

/// [`forward_by_cpu`] for the gradients of the operands.
#[cfg(feature = "cuda")]
fn backward_by_cpu<O: Operation>(
    op: &O,
    operands: Vec<&Tensor>,
    y: &Tensor,
    dy: &Tensor,
) -> Result<Vec<Option<Tensor>>> {
    let operands = on_cpu(operands.into_iter())?;
    let y = y.to_device(&Device::Cpu)?;
    let on = dy.device();
    let dy = dy.to_device(&Device::Cpu)?;
    let gradients =
        op.backward(to_operands::<O, _>(operands.iter().collect())?, &y, dy)?.into_vec();
    let back = |gradient: Option<Tensor>| gradient.map(|dx| dx.to_device(on)).transpose();
    gradients.into_iter().map(back).collect()
}

#[cfg(feature = "cuda")]
fn on_cpu<'a>(operands: impl Iterator<Item = &'a Tensor>) -> Result<Vec<Tensor>> {
    operands.map(|operand| operand.to_device(&Device::Cpu)?.contiguous()).collect()
}

/// The gradient of a result that is known.
pub(crate) trait Backward: Send + Sync {
    /// Name of the operation in messages.
    fn name(&self) -> &'static str;

    /// [`Operation::reads_result`].
    #[cfg(any(feature = "cuda", test))]
    fn reads_result(&self) -> bool {
        true
    }

    /// [`Operation::backward`]; `dy` may be written over if it is contiguous. Operands beyond the last
    /// gradient that is returned have none.
    fn backward(
        &self,
        operands: &[&Tensor],
        y: &Tensor,
        dy: &Tensor,
    ) -> Result<Vec<Option<Tensor>>>;
}

impl<O: OnGpu> Backward for O {
    fn name(&self) -> &'static str {
        O::NAME
    }

    #[cfg(any(feature = "cuda", test))]
    fn reads_result(&self) -> bool {
        Operation::reads_result(self)
    }

    fn backward(
        &self,
        operands: &[&Tensor],
        y: &Tensor,
        dy: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let (operands, dy) = (to_operands::<O, _>(operands.to_vec())?, dy.contiguous()?);
        #[cfg(feature = "cuda")]
        if dy.device().is_cuda() {
            if !self.has_kernels() {
                return backward_by_cpu(self, operands.into_vec(), y, &dy);
            }
            let gpu = Gpu::of_tensor(&dy)?;
            return Ok(self.backward_on(&gpu, operands, y, dy)?.into_vec());
        }
        Ok(Operation::backward(self, operands, y, dy)?.into_vec())
    }
}

/// A result that is known, as a node of Candle's graph.
pub(crate) fn in_graph(
    operands: &[&Tensor],
    result: (Storage, Shape),
    backward: Box<dyn Backward>,
) -> Result<Tensor> {
    let node = Node { result: Mutex::new(Some(result)), backward };
    match operands {
        [x] => x.apply_op1(node),
        [x, y] => x.apply_op2(y, node),
        [x, y, z] => x.apply_op3(y, z, node),
        _ => bail!("{} of {} operands", node.backward.name(), operands.len()),
    }
}

/// The values of `x` in memory of their own.
pub(crate) fn copy_of(x: &Tensor) -> Result<(Storage, Shape)> {
    let storage = if x.device().is_cpu() {
        read_numbers([x], |[x]| Ok(Saved::same_as(x)))?.storage()
    } else {
        x.storage_and_layout().0.try_clone(x.layout())?
    };
    Ok((storage, x.shape().clone()))
}

struct Node {
    /// Until Candle has taken it over.
    result: Mutex<Option<(Storage, Shape)>>,
    backward: Box<dyn Backward>,
}

impl Node {
    fn take(&self) -> Result<(Storage, Shape)> {
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner).take();
        match result {
            Some(result) => Ok(result),
            None => bail!("the result of {} was taken before", self.backward.name()),
        }
    }

    fn on_cpu(&self) -> Result<(CpuStorage, Shape)> {
        match self.take()? {
            (Storage::Cpu(storage), shape) => Ok((storage, shape)),
            _ => bail!("{} on the CPU gave a tensor of a GPU", self.backward.name()),
        }
    }

    #[cfg(feature = "cuda")]
    fn on_gpu(&self) -> Result<(CudaStorage, Shape)> {
        match self.take()? {
            (Storage::Cuda(storage), shape) => Ok((storage, shape)),
            _ => bail!("{} on a GPU gave a tensor of the CPU", self.backward.name()),
        }
    }

    fn gradients<const N: usize>(
        &self,
        operands: [&Tensor; N],
        y: &Tensor,
        dy: &Tensor,
    ) -> Result<[Option<Tensor>; N]> {
        let mut gradients = self.backward.backward(&operands, y, dy)?.into_iter();
        Ok(std::array::from_fn(|_| gradients.next().flatten()))
    }
}

impl CustomOp1 for Node {
    fn name(&self) -> &'static str {
        self.backward.name()
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        self.on_cpu()
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        self.on_gpu()
    }

    fn bwd(&self, x: &Tensor, y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        let [dx] = self.gradients([x], y, dy)?;
        Ok(dx)
    }
}

impl CustomOp2 for Node {
    fn name(&self) -> &'static str {
        self.backward.name()
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.on_cpu()
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.on_gpu()
    }

    fn bwd(
        &self,
        first: &Tensor,
        second: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        self.gradients([first, second], y, dy).map(Into::into)
    }
}

impl CustomOp3 for Node {
    fn name(&self) -> &'static str {
        self.backward.name()
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.on_cpu()
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.on_gpu()
    }

    fn bwd(
        &self,
        first: &Tensor,
        second: &Tensor,
        third: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        self.gradients([first, second, third], y, dy).map(Into::into)
    }
}

/// Values that forward keeps for backward, on the device that it ran on.
pub(crate) struct SavedForBackward<T> {
    on_cpu: OnceLock<T>,
    #[cfg(feature = "cuda")]
    on_gpu: OnceLock<Box<dyn std::any::Any + Send + Sync>>,
}

impl<T> Default for SavedForBackward<T> {
    fn default() -> Self {
        Self {
            on_cpu: OnceLock::new(),
            #[cfg(feature = "cuda")]
            on_gpu: OnceLock::new(),
        }
    }
}

impl<T> SavedForBackward<T> {
    /// Keeps it; forward runs once for each operation.
    pub(crate) fn keep(&self, found: T) {
        self.on_cpu.get_or_init(|| found);
    }

    pub(crate) fn get(&self) -> Option<&T> {
        self.on_cpu.get()
    }

    /// [`SavedForBackward::keep`] on a GPU.
    #[cfg(feature = "cuda")]
    pub(crate) fn keep_on_gpu<G: std::any::Any + Send + Sync>(&self, found: G) {
        self.on_gpu.get_or_init(|| Box::new(found));
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn on_gpu<G: std::any::Any>(&self) -> Option<&G> {
        self.on_gpu.get()?.downcast_ref()
    }
}

thread_local! {
    static COUNTED: Cell<u64> = const { Cell::new(0) };
}

/// Returns the result of `f` and the floating-point operations of the products whose forward pass this
/// thread began in it: two for each multiplication of a convolution, a linear layer or an attention
/// (its masked half too), as `torch.utils.flop_counter` counts them.
pub fn count_flops<R>(f: impl FnOnce() -> R) -> (R, u64) {
    let before = COUNTED.get();
    let result = f();
    (result, COUNTED.get().wrapping_sub(before))
}

/// A product of so many multiplications begins.
pub(super) fn add_multiplications(count: usize) {
    COUNTED.set(COUNTED.get().wrapping_add(2 * count as u64));
}
