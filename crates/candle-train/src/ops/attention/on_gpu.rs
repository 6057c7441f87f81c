//! Attention on a GPU: which columns of which tensors the operands are.

use candle_core::{CudaStorage, DType, Layout, Result, Shape, Tensor};

use super::{Op, Sizes};
use crate::ops::cuda::{self, Address, Attend, Gpu, Half, Mask, Operand};

impl Op {
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

    pub(super) fn forward_apart_on_gpu(
        &self,
        [q, k, v]: [(&CudaStorage, &Layout); 3],
    ) -> Result<(CudaStorage, Shape)> {
        let gpu = Gpu::of(q.0);
        let at = |(storage, layout)| cuda::of_storage(storage, layout);
        let operands = self.apart_on_gpu([at(q)?, at(k)?, at(v)?]);
        Ok((self.on_gpu(&gpu).forward(operands)?, self.shape()))
    }

    pub(super) fn forward_packed_on_gpu(
        &self,
        qkv: &CudaStorage,
        layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let gpu = Gpu::of(qkv);
        let operands = self.packed_on_gpu(cuda::of_storage(qkv, layout)?);
        Ok((self.on_gpu(&gpu).forward(operands)?, self.shape()))
    }

    pub(super) fn backward_apart_on_gpu(
        &self,
        operands: [&Tensor; 3],
        dy: &Tensor,
    ) -> Result<[Tensor; 3]> {
        let gpu = Gpu::of_tensor(dy)?;
        let [q, k, v] = operands.map(|operand| gpu.tensor(DType::F32, operand.shape()));
        let gradients = [q?, k?, v?];
        let at = |[q, k, v]: [&Tensor; 3]| {
            let [q, k, v] = [cuda::of_tensor(q)?, cuda::of_tensor(k)?, cuda::of_tensor(v)?];
            Ok::<_, candle_core::Error>(self.apart_on_gpu([q, k, v]))
        };
        self.pull_on_gpu(&gpu, at(operands)?, dy, at(gradients.each_ref())?)?;
        Ok(gradients)
    }

    pub(super) fn backward_packed_on_gpu(&self, qkv: &Tensor, dy: &Tensor) -> Result<Tensor> {
        let gpu = Gpu::of_tensor(dy)?;
        let gradient = gpu.tensor(DType::F32, qkv.shape())?;
        let operands = self.packed_on_gpu(cuda::of_tensor(qkv)?);
        let out = self.packed_on_gpu(cuda::of_tensor(&gradient)?);
        self.pull_on_gpu(&gpu, operands, dy, out)?;
        Ok(gradient)
    }

    fn pull_on_gpu(
        &self,
        gpu: &Gpu,
        operands: [Operand; 3],
        dy: &Tensor,
        out: [Operand; 3],
    ) -> Result<()> {
        let dy = dy.contiguous()?;
        let Sizes { t, w, .. } = self.sizes;
        let values = cuda::of_tensor(&dy)?;
        let incoming = Operand { values, length: t, columns: w, first: 0 };
        self.on_gpu(gpu).backward(operands, incoming, out)
    }
}
