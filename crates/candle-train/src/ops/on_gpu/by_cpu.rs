//! What has no kernels: the CPU computes it, and operands and results are copied.

use candle_core::{Device, Result, Shape, Storage, Tensor};

use crate::ops::operation::{List, Operation, forward_on_cpu, listed};
use crate::ops::storage::tensor;

/// The result of `op` on the GPU of its operands.
pub(in crate::ops) fn forward_by_cpu<O: Operation>(
    op: &O,
    operands: &[Tensor],
) -> Result<(Storage, Shape)> {
    let (y, shape) = forward_on_cpu(op, &on_cpu(operands.iter())?)?;
    let y = tensor(y, &shape)?.to_device(operands[0].device())?;
    let storage = y.storage_and_layout().0.try_clone(y.layout())?;
    Ok((storage, shape))
}

/// The gradients of its operands, where those are.
pub(in crate::ops) fn backward_by_cpu<O: Operation>(
    op: &O,
    operands: Vec<&Tensor>,
    y: &Tensor,
    dy: &Tensor,
) -> Result<Vec<Option<Tensor>>> {
    let operands = on_cpu(operands.into_iter())?;
    let y = y.to_device(&Device::Cpu)?;
    let on = dy.device();
    let dy = dy.to_device(&Device::Cpu)?;
    let gradients = op.backward(listed::<O, _>(operands.iter().collect())?, &y, dy)?.into_vec();
    let back = |gradient: Option<Tensor>| gradient.map(|dx| dx.to_device(on)).transpose();
    gradients.into_iter().map(back).collect()
}

fn on_cpu<'a>(operands: impl Iterator<Item = &'a Tensor>) -> Result<Vec<Tensor>> {
    operands.map(|operand| operand.to_device(&Device::Cpu)?.contiguous()).collect()
}
