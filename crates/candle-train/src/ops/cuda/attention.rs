//! Attention on the GPU: in half precision and for usual widths of a head by kernels of our own
//! (`fused_attention.rs`), else batched products by cuBLAS, and a kernel for softmax, mask and
//! dropout between them. Backward makes the probabilities again, so nothing of the size of the
//! scores is kept.

use candle_core::{CudaStorage, DType, Result, Tensor, bail};

use super::address::{Address, of_tensor};
use super::fused_attention::Outcome;
use super::gpu::{Gpu, Grid, args, suffix, whole, wrap};
use super::pointwise::Mask;

/// One operand, f32: (b, length, columns), of which the heads' values begin at column `first`.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Operand {
    pub(in crate::ops) values: Address,
    pub(in crate::ops) length: usize,
    pub(in crate::ops) columns: usize,
    pub(in crate::ops) first: usize,
}

/// Attention of `t` queries over `s` keys in each of b x `heads` heads of width d.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Attend<'a> {
    pub(in crate::ops) gpu: &'a Gpu,
    /// Type of operands and products.
    pub(in crate::ops) dtype: DType,
    pub(in crate::ops) b: usize,
    pub(in crate::ops) heads: usize,
    pub(in crate::ops) d: usize,
    pub(in crate::ops) t: usize,
    pub(in crate::ops) s: usize,
    pub(in crate::ops) causal: bool,
    pub(in crate::ops) mask: Option<Mask>,
    /// Whether a backward follows.
    pub(in crate::ops) keeps: bool,
}

/// Probabilities (b heads, t, s), and what dropout leaves of them.
struct Weights {
    probabilities: Tensor,
    dropped: Option<Tensor>,
}

impl Weights {
    fn used(&self) -> &Tensor {
        self.dropped.as_ref().unwrap_or(&self.probabilities)
    }
}

impl Attend<'_> {
    /// (b, t, heads d), f32, and what [`Outcome::log_sums`] wants of it.
    pub(in crate::ops) fn forward(
        &self,
        operands: [Operand; 3],
    ) -> Result<(CudaStorage, Option<Tensor>)> {
        if self.is_fused() {
            return self.forward_fused(operands);
        }
        Ok((self.forward_by_products(operands)?, None))
    }

    fn forward_by_products(&self, [q, k, v]: [Operand; 3]) -> Result<CudaStorage> {
        let weights = self.weights(&self.split(q)?, &self.split(k)?)?;
        let y = weights.used().matmul(&self.split(v)?)?;
        let out = self.gpu.storage(DType::F32, self.b * self.t * self.heads * self.d)?;
        let columns = self.heads * self.d;
        let merged = Operand { values: whole(&out)?, length: self.t, columns, first: 0 };
        self.merge(&y, merged)?;
        Ok(out)
    }

    /// Writes the gradients of q, k and v, f32, to `out`, whose values are those of the gradients.
    pub(in crate::ops) fn backward(
        &self,
        operands: [Operand; 3],
        outcome: Outcome,
        out: [Operand; 3],
    ) -> Result<()> {
        if !self.is_fused() {
            return self.backward_by_products(operands, outcome.dy, out);
        }
        let Some(log_sums) = outcome.log_sums else {
            bail!("attention kept nothing for its backward")
        };
        self.backward_fused(operands, outcome, log_sums, out)
    }

    fn backward_by_products(
        &self,
        [q, k, v]: [Operand; 3],
        dy: Address,
        out: [Operand; 3],
    ) -> Result<()> {
        let dy = Operand { values: dy, length: self.t, columns: self.heads * self.d, first: 0 };
        let ([q, k], dy) = ([self.split(q)?, self.split(k)?], self.split(dy)?);
        let weights = self.weights(&q, &k)?;
        let of_v = weights.used().transpose(1, 2)?.matmul(&dy)?;
        self.merge(&of_v, out[2])?;
        // The gradient of the probabilities becomes that of the scores, where it is.
        let gradient = dy.matmul(&self.split(v)?.transpose(1, 2)?)?;
        let Mask { key, threshold, scale } = self.numbers();
        let kernel = format!("attention_weights_gradient_{}", suffix(self.dtype)?);
        let probabilities = of_tensor(&weights.probabilities)?;
        let at = of_tensor(&gradient)?;
        let drops = self.mask.is_some();
        let arguments =
            args![probabilities, at, self.s, self.scale(), drops, key, threshold, scale];
        self.gpu.launch(&kernel, Grid::rows(self.rows()), arguments)?;
        self.merge(&gradient.matmul(&k)?, out[0])?;
        self.merge(&gradient.transpose(1, 2)?.matmul(&q)?, out[1])
    }

    fn weights(&self, q: &Tensor, k: &Tensor) -> Result<Weights> {
        let scores = q.matmul(&k.transpose(1, 2)?)?;
        let dropped = self.mask.map(|_| self.gpu.tensor(self.dtype, scores.shape())).transpose()?;
        let place = dropped.as_ref().map(of_tensor).transpose()?;
        let Mask { key, threshold, scale } = self.numbers();
        let kernel = format!("attention_weights_{}", suffix(self.dtype)?);
        let at = of_tensor(&scores)?;
        let arguments =
            args![at, place, self.t, self.s, self.scale(), self.causal, key, threshold, scale];
        self.gpu.launch(&kernel, Grid::rows(self.rows()), arguments)?;
        Ok(Weights { probabilities: scores, dropped })
    }

    pub(super) fn rows(&self) -> usize {
        self.b * self.heads * self.t
    }

    fn scale(&self) -> f32 {
        (1.0 / (self.d as f64).sqrt()) as f32
    }

    pub(super) fn numbers(&self) -> Mask {
        self.mask.unwrap_or(Mask { key: 0, threshold: 0, scale: 1.0 })
    }

    /// The heads of an operand: (b heads, length, d).
    pub(super) fn split(&self, x: Operand) -> Result<Tensor> {
        let Operand { values, length, columns, first } = x;
        let n = self.b * self.heads * length * self.d;
        let y = self.gpu.storage(self.dtype, n)?;
        let kernel = format!("split_heads_{}", suffix(self.dtype)?);
        let arguments = args![values, whole(&y)?, length, columns, first, self.heads, self.d, n];
        self.gpu.launch(&kernel, Grid::over(n), arguments)?;
        Ok(wrap(y, (self.b * self.heads, length, self.d)))
    }

    /// The way back, to the operand's columns of `out`.
    fn merge(&self, x: &Tensor, out: Operand) -> Result<()> {
        let Operand { values, length, columns, first } = out;
        let n = x.elem_count();
        let kernel = format!("merge_heads_{}", suffix(self.dtype)?);
        let x = of_tensor(x)?;
        let arguments = args![x, values, length, columns, first, self.heads, self.d, n];
        self.gpu.launch(&kernel, Grid::over(n), arguments)
    }
}
