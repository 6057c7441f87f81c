//! Attention on the GPU. Backward makes the probabilities again, so nothing of the size of the scores
//! is kept.
//!
//! In half precision and for usual widths of a head, kernels of our own, whose scores never reach the
//! GPU's memory: FlashAttention-2 (Dao, 2023, <https://arxiv.org/abs/2307.08691>). One kernel for
//! forward, which keeps the logarithm of each query's sum of exponentials, to base 2; backward has one
//! for the gradients of keys and values and one for those of queries, so that nothing is added by
//! atomics.
//!
//! Otherwise batched products by cuBLAS, and a kernel for softmax, mask and dropout between them.

use std::f64::consts::LOG2_E;

use candle_core::{CudaStorage, DType, Result, Tensor, bail};

use super::gpu::{Gpu, Grid, wrap};
use super::kernel_args::{Address, Arg, Attended, args, of_tensor, suffix, whole};
use super::kernel_source::{AttentionKernels, Kernels};
use super::pointwise::Mask;

/// Queries or keys of a block, `ATTENTION_ROWS` of attention.cu.
const ROWS: usize = 64;
/// Threads of a block, `WARPS_THREADS` of `tensor_cores.cu`.
const THREADS: u32 = 128;
/// Widths of a head that have kernels.
const WIDTHS: [usize; 3] = [32, 64, 128];

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
    /// True if a backward follows.
    pub(in crate::ops) keeps: bool,
}

/// Result of forward, and the gradient of it that backward starts from.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Outcome {
    /// (b, t, heads d), f32.
    pub(in crate::ops) y: Address,
    /// Logarithm of each query's sum of exponentials, (b, heads, t), where forward kept it.
    pub(in crate::ops) log_sums: Option<Address>,
    /// The gradient of y, f32.
    pub(in crate::ops) dy: Address,
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

    fn rows(&self) -> usize {
        self.b * self.heads * self.t
    }

    fn scale(&self) -> f32 {
        (1.0 / (self.d as f64).sqrt()) as f32
    }

    fn numbers(&self) -> Mask {
        self.mask.unwrap_or(Mask { key: 0, threshold: 0, scale: 1.0 })
    }

    /// The heads of an operand: (b heads, length, d).
    fn split(&self, x: Operand) -> Result<Tensor> {
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

    /// True if our own kernels compute it. They count the values of a head in 32 bits.
    fn is_fused(&self) -> bool {
        let values = self.t.max(self.s).saturating_mul(self.d);
        let is_small = u32::try_from(values).is_ok() && self.s > 0;
        self.dtype != DType::F32 && WIDTHS.contains(&self.d) && is_small
    }

    /// (b, t, heads d), f32, and the logarithms (b heads, t), where backward wants them.
    fn forward_fused(&self, operands: [Operand; 3]) -> Result<(CudaStorage, Option<Tensor>)> {
        let [q, k, v] = operands.map(|operand| self.split(operand));
        let [q, k, v] = [q?, k?, v?];
        let y = self.gpu.storage(DType::F32, self.b * self.t * self.heads * self.d)?;
        let log_sums = self.keeps.then(|| self.numbers_of_queries()).transpose()?;
        let place = log_sums.as_ref().map(of_tensor).transpose()?;
        let arguments =
            args![of_tensor(&q)?, of_tensor(&k)?, of_tensor(&v)?, whole(&y)?, place, self.sizes()];
        self.launch("forward", self.blocks(self.t), arguments)?;
        Ok((y, log_sums))
    }

    /// Writes the gradients of q, k and v to `out`.
    fn backward_fused(
        &self,
        operands: [Operand; 3],
        outcome: Outcome,
        log_sums: Address,
        [of_q, of_k, of_v]: [Operand; 3],
    ) -> Result<()> {
        let [q, k, v] = operands.map(|operand| self.split(operand));
        let q = q?;
        let k = k?;
        let v = v?;
        let (dy, products) = self.products(outcome)?;
        let [q, k, v, dy] = [of_tensor(&q)?, of_tensor(&k)?, of_tensor(&v)?, of_tensor(&dy)?];
        let products = of_tensor(&products)?;
        // Both lie in tensors of the same number of columns.
        let dk = of_k.values;
        let dv = of_v.values;
        let columns = of_k.columns;
        let [first_of_k, first_of_v] = [of_k.first, of_v.first];
        let read = args![q, k, v, dy, log_sums, products];
        let places = args![dk, dv, columns, first_of_k, first_of_v, self.sizes()];
        let grid = self.blocks(self.s);
        self.launch("gradient_of_keys", grid, &[&read[..], places].concat())?;
        let Operand { values: dq, columns, first, .. } = of_q;
        let places = args![dq, columns, first, self.sizes()];
        self.launch("gradient_of_queries", self.blocks(self.t), &[&read[..], places].concat())
    }

    /// The gradient of the result by head, (b heads, t, d), and its product with the result for
    /// each query.
    fn products(&self, Outcome { y, dy, .. }: Outcome) -> Result<(Tensor, Tensor)> {
        let by_head = self.gpu.tensor(self.dtype, (self.b * self.heads, self.t, self.d))?;
        let products = self.numbers_of_queries()?;
        let queries = self.rows();
        // Each thread reads four neighbours.
        let grid = Grid::over_all(queries * self.d / 4);
        let places = [of_tensor(&by_head)?, of_tensor(&products)?];
        let arguments = args![y, dy, places[0], places[1], self.heads, self.t, queries];
        self.launch("products", grid, arguments)?;
        Ok((by_head, products))
    }

    /// A number for each query of each head, f32.
    fn numbers_of_queries(&self) -> Result<Tensor> {
        self.gpu.tensor(DType::F32, (self.b * self.heads, self.t))
    }

    /// A block for each 64 of `length` queries or keys, in each head.
    fn blocks(&self, length: usize) -> Grid {
        Grid::of(self.b * self.heads * length.div_ceil(ROWS), THREADS)
    }

    fn launch(&self, kernel: &str, grid: Grid, arguments: &[Arg]) -> Result<()> {
        let dtype = suffix(self.dtype)?;
        let drops = self.mask.is_some();
        let kernels = AttentionKernels { dtype, d: self.d, drops };
        let kernel = format!("attention_{kernel}_{}", kernels.name());
        self.gpu.launch_of(Kernels::Attention(kernels), &kernel, grid, arguments)
    }

    fn sizes(&self) -> Arg {
        let Mask { key, threshold, scale } = self.numbers();
        Arg::Attended(Attended {
            heads: self.heads as u32,
            t: self.t as u32,
            s: self.s as u32,
            causal: i32::from(self.causal),
            scale: (LOG2_E / (self.d as f64).sqrt()) as f32,
            kept_scale: scale,
            key,
            threshold,
        })
    }
}
