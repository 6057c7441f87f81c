//! The layer on a GPU.

use candle_core::{CudaStorage, Result, Shape, Tensor, bail};

use super::{Linear, LinearActivation, StoredLinear};
use crate::Precision;
use crate::ops::cuda::{self, Gpu};
use crate::ops::operation::{Gradients, OnGpu, SavedForBackward, TwoOrThree};

impl LinearActivation {
    fn on_gpu(self) -> cuda::Kind {
        match self {
            Self::Identity => cuda::Kind::Identity,
            Self::Relu => cuda::Kind::Relu,
            Self::Gelu => cuda::Kind::Gelu,
            Self::GeluTanh => cuda::Kind::GeluTanh,
        }
    }
}

impl Linear {
    fn on_gpu(&self) -> cuda::Linear {
        cuda::Linear {
            n: self.n,
            inputs: self.inputs,
            outputs: self.outputs,
            kind: self.activation.on_gpu(),
            precision: self.precision,
            keeps: self.before.is_some(),
        }
    }
}

impl OnGpu for Linear {
    fn takes_half(&self) -> bool {
        self.precision != Precision::Fp32
    }

    fn forward_on(
        &self,
        gpu: &Gpu,
        ([x, weight], bias): TwoOrThree<&Tensor>,
    ) -> Result<(CudaStorage, Shape)> {
        let bias = bias.map(cuda::of_tensor).transpose()?;
        let (y, before) = self.on_gpu().forward(gpu, [x, weight], bias)?;
        let shape = self.output_shape(x.shape());
        if let (Some(kept), Some(before)) = (&self.before, before) {
            kept.keep_on_gpu(cuda::wrap(before, &shape));
        }
        Ok((y, shape))
    }

    /// The bias's gradient leaves first: it was registered last.
    fn backward_on(
        &self,
        gpu: &Gpu,
        ([x, weight], bias): TwoOrThree<&Tensor>,
        y: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        let before = self.before.as_ref().and_then(SavedForBackward::on_gpu::<Tensor>);
        if before.is_none() && self.activation.needs_its_input() {
            bail!("what entered {:?} was not kept", self.activation);
        }
        let before = before.map(cuda::of_tensor).transpose()?;
        let gradients = self.on_gpu().backward(gpu, [x, weight, y, &dy], before, bias.is_some())?;
        let db = match (&self.db, bias, gradients.bias) {
            (Some(destination), Some(bias), Some(gradient)) => {
                destination.send_tensor(gradient, bias)?
            }
            _ => None,
        };
        let dw = match gradients.weight {
            Some(gradient) => self.dw.send_tensor(gradient, weight)?,
            None => None,
        };
        Ok(([gradients.x, dw], Some(db)))
    }
}

/// Made for the CPU's memory only.
impl OnGpu for StoredLinear {
    fn has_kernels(&self) -> bool {
        false
    }
}
