//! The layer on a GPU.

use candle_core::{CudaStorage, Layout, Result, Shape, Tensor};

use super::{Linear, LinearActivation};
use crate::ops::cuda;

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

    pub(super) fn forward_on_gpu(
        &self,
        x: (&CudaStorage, &Layout),
        weight: (&CudaStorage, &Layout),
        bias: Option<(&CudaStorage, &Layout)>,
    ) -> Result<(CudaStorage, Shape)> {
        let shape = Shape::from([&x.1.dims()[..x.1.dims().len() - 1], &[self.outputs]].concat());
        let bias = bias.map(|(bias, layout)| cuda::of_storage(bias, layout)).transpose()?;
        let (y, before) = self.on_gpu().forward(x, weight, bias)?;
        if let Some(before) = before {
            self.before_on_gpu.get_or_init(|| cuda::wrap(before, &shape));
        }
        Ok((y, shape))
    }

    /// Gradients of x, weight and bias. The bias's leaves first: it was registered last.
    pub(super) fn backward_on_gpu(
        &self,
        [x, weight, y, dy]: [&Tensor; 4],
        bias: Option<&Tensor>,
    ) -> Result<[Option<Tensor>; 3]> {
        let before = self.before_on_gpu.get().map(cuda::of_tensor).transpose()?;
        let found = self.on_gpu().backward([x, weight, y, dy], before, bias.is_some())?;
        let db = match (&self.db, bias, found.bias) {
            (Some(destination), Some(bias), Some(gradient)) => {
                destination.send_tensor(gradient, bias)?
            }
            _ => None,
        };
        let dw = match found.weight {
            Some(gradient) => self.dw.send_tensor(gradient, weight)?,
            None => None,
        };
        Ok([found.x, dw, db])
    }
}
