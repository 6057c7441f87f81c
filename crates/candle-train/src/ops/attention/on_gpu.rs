//! Attention on a GPU: which columns of which tensors the operands are.

use candle_core::{CudaStorage, DType, Result, Shape, Tensor};

use super::{Apart, Heads, Packed, Sizes};
use crate::ops::cuda::{self, Address, Attend, Gpu, Half, Mask, Operand};
use crate::ops::operation::{Gradients, OnGpu};

impl Heads {
    /// The kernels know no lengths.
    fn has_kernels(&self) -> bool {
        self.lengths.is_empty()
    }

    fn on_gpu<'a>(&self, gpu: &'a Gpu) -> Attend<'a> {
        let Sizes { b, t, s, .. } = self.sizes;
        let attention = self.attention;
        Attend {
            gpu,
            dtype: Half::of(attention.precision),
            b,
            heads: attention.heads,
            d: self.head_width(),
            t,
            s,
            causal: attention.causal,
            mask: attention.dropout.map(|(p, key)| Mask::new(p, key)),
        }
    }

    fn apart_on_gpu(&self, [q, k, v]: [Address; 3]) -> [Operand; 3] {
        let Sizes { t, s, w, .. } = self.sizes;
        let operand = |values, length| Operand { values, length, columns: w, first: 0 };
        [operand(q, t), operand(k, s), operand(v, s)]
    }

    fn packed_on_gpu(&self, qkv: Address) -> [Operand; 3] {
        let Sizes { t, w, .. } = self.sizes;
        [0, w, 2 * w].map(|first| Operand { values: qkv, length: t, columns: 3 * w, first })
    }

    fn shape(&self) -> Shape {
        let Sizes { b, t, w, .. } = self.sizes;
        Shape::from((b, t, w))
    }

    fn pull_on_gpu(
        &self,
        gpu: &Gpu,
        operands: [Operand; 3],
        dy: &Tensor,
        out: [Operand; 3],
    ) -> Result<()> {
        let Sizes { t, w, .. } = self.sizes;
        let values = cuda::of_tensor(dy)?;
        let incoming = Operand { values, length: t, columns: w, first: 0 };
        self.on_gpu(gpu).backward(operands, incoming, out)
    }
}

impl OnGpu for Apart {
    fn has_kernels(&self) -> bool {
        self.0.has_kernels()
    }

    fn forward_on(&self, gpu: &Gpu, operands: [&Tensor; 3]) -> Result<(CudaStorage, Shape)> {
        let [q, k, v] = operands.map(cuda::of_tensor);
        let operands = self.0.apart_on_gpu([q?, k?, v?]);
        Ok((self.0.on_gpu(gpu).forward(operands)?, self.0.shape()))
    }

    fn backward_on(
        &self,
        gpu: &Gpu,
        operands: [&Tensor; 3],
        _: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        let [q, k, v] = operands.map(|operand| gpu.tensor(DType::F32, operand.shape()));
        let gradients = [q?, k?, v?];
        let at = |[q, k, v]: [&Tensor; 3]| {
            let [q, k, v] = [cuda::of_tensor(q)?, cuda::of_tensor(k)?, cuda::of_tensor(v)?];
            Ok::<_, candle_core::Error>(self.0.apart_on_gpu([q, k, v]))
        };
        self.0.pull_on_gpu(gpu, at(operands)?, &dy, at(gradients.each_ref())?)?;
        Ok(gradients.map(Some))
    }
}

impl OnGpu for Packed {
    fn has_kernels(&self) -> bool {
        self.0.has_kernels()
    }

    fn forward_on(&self, gpu: &Gpu, [qkv]: [&Tensor; 1]) -> Result<(CudaStorage, Shape)> {
        let operands = self.0.packed_on_gpu(cuda::of_tensor(qkv)?);
        Ok((self.0.on_gpu(gpu).forward(operands)?, self.0.shape()))
    }

    fn backward_on(
        &self,
        gpu: &Gpu,
        [qkv]: [&Tensor; 1],
        _: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        let gradient = gpu.tensor(DType::F32, qkv.shape())?;
        let operands = self.0.packed_on_gpu(cuda::of_tensor(qkv)?);
        let out = self.0.packed_on_gpu(cuda::of_tensor(&gradient)?);
        self.0.pull_on_gpu(gpu, operands, &dy, out)?;
        Ok([Some(gradient)])
    }
}
