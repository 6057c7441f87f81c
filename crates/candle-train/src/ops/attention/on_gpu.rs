//! Attention on a GPU: which columns of which tensors the operands are.

use candle_core::{CudaStorage, DType, Result, Shape, Tensor};

use super::{Heads, PackedQkv, ScoreBounds, SeparateQkv, Sizes};
use crate::ops::cuda::{self, Address, Attend, Gpu, Mask, Operand, Outcome};
use crate::ops::operation::{Gradients, OnGpu, SavedForBackward};

impl Heads {
    /// The kernels know no lengths, no texts in a sample and no bounds of scores.
    fn has_kernels(&self) -> bool {
        let is_bounded = self.bounds != ScoreBounds::default();
        self.lengths.is_empty() && self.segments.is_none() && !is_bounded
    }

    fn on_gpu<'a>(&self, gpu: &'a Gpu) -> Attend<'a> {
        let Sizes { b, t, s, .. } = self.sizes;
        let attention = self.attention;
        Attend {
            gpu,
            dtype: cuda::product_dtype(attention.precision),
            b,
            heads: attention.heads,
            d: self.head_width(),
            t,
            s,
            causal: attention.causal,
            mask: attention.dropout.map(|(p, key)| Mask::new(p, key)),
            keeps: self.log_sums.is_some(),
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

    fn push_on_gpu(&self, gpu: &Gpu, operands: [Operand; 3]) -> Result<(CudaStorage, Shape)> {
        let Sizes { b, t, w, .. } = self.sizes;
        let (y, log_sums) = self.on_gpu(gpu).forward(operands)?;
        if let (Some(kept), Some(log_sums)) = (&self.log_sums, log_sums) {
            kept.keep_on_gpu(log_sums);
        }
        Ok((y, Shape::from((b, t, w))))
    }

    fn pull_on_gpu(
        &self,
        gpu: &Gpu,
        operands: [Operand; 3],
        [y, dy]: [&Tensor; 2],
        out: [Operand; 3],
    ) -> Result<()> {
        let log_sums = self.log_sums.as_ref().and_then(SavedForBackward::on_gpu::<Tensor>);
        let log_sums = log_sums.map(cuda::of_tensor).transpose()?;
        let outcome = Outcome { y: cuda::of_tensor(y)?, log_sums, dy: cuda::of_tensor(dy)? };
        self.on_gpu(gpu).backward(operands, outcome, out)
    }
}

impl OnGpu for SeparateQkv {
    fn has_kernels(&self) -> bool {
        self.0.has_kernels()
    }

    fn forward_on(&self, gpu: &Gpu, operands: [&Tensor; 3]) -> Result<(CudaStorage, Shape)> {
        let [q, k, v] = operands.map(cuda::of_tensor);
        let operands = self.0.apart_on_gpu([q?, k?, v?]);
        self.0.push_on_gpu(gpu, operands)
    }

    fn backward_on(
        &self,
        gpu: &Gpu,
        operands: [&Tensor; 3],
        y: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        let [q, k, v] = operands.map(|operand| gpu.tensor(DType::F32, operand.shape()));
        let gradients = [q?, k?, v?];
        let at = |[q, k, v]: [&Tensor; 3]| {
            let [q, k, v] = [cuda::of_tensor(q)?, cuda::of_tensor(k)?, cuda::of_tensor(v)?];
            Ok::<_, candle_core::Error>(self.0.apart_on_gpu([q, k, v]))
        };
        self.0.pull_on_gpu(gpu, at(operands)?, [y, &dy], at(gradients.each_ref())?)?;
        Ok(gradients.map(Some))
    }
}

impl OnGpu for PackedQkv {
    fn has_kernels(&self) -> bool {
        self.0.has_kernels()
    }

    fn forward_on(&self, gpu: &Gpu, [qkv]: [&Tensor; 1]) -> Result<(CudaStorage, Shape)> {
        self.0.push_on_gpu(gpu, self.0.packed_on_gpu(cuda::of_tensor(qkv)?))
    }

    fn backward_on(
        &self,
        gpu: &Gpu,
        [qkv]: [&Tensor; 1],
        y: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        let gradient = gpu.tensor(DType::F32, qkv.shape())?;
        let operands = self.0.packed_on_gpu(cuda::of_tensor(qkv)?);
        let out = self.0.packed_on_gpu(cuda::of_tensor(&gradient)?);
        self.0.pull_on_gpu(gpu, operands, [y, &dy], out)?;
        Ok([Some(gradient)])
    }
}
