//! Attention in half precision whose scores never reach the GPU's memory: FlashAttention-2 (Dao,
//! 2023, <https://arxiv.org/abs/2307.08691>). One kernel for forward; backward has one for the
//! gradients of keys and values and one for those of queries, so that nothing is added by atomics.
//!
//! Forward keeps the logarithm of each query's sum of exponentials, to base 2.

use std::f64::consts::LOG2_E;

use candle_core::{CudaStorage, DType, Result, Tensor};

use super::address::{Address, of_tensor};
use super::attention::{Attend, Operand};
use super::gpu::{Arg, Grid, args, suffix, whole};
use super::kernel_source::{AttentionKernels, Kernels};
use super::pointwise::Mask;

/// Queries or keys of a block, `ATTENTION_ROWS` of attention.cu.
const ROWS: usize = 64;
/// Threads of a block, `WARPS_THREADS` of `tensor_cores.cu`.
const THREADS: u32 = 128;
/// Widths of a head that have kernels.
const WIDTHS: [usize; 3] = [32, 64, 128];

/// `Attended` of attention.cu.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Attended {
    heads: u32,
    t: u32,
    s: u32,
    causal: i32,
    /// log2(e) / sqrt(d): the kernels take powers of two.
    scale: f32,
    kept_scale: f32,
    key: u64,
    threshold: u64,
}

/// What backward reads of forward's result.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Outcome {
    /// (b, t, heads d), f32.
    pub(in crate::ops) y: Address,
    /// Of each (batch, head, query), where forward kept it.
    pub(in crate::ops) log_sums: Option<Address>,
    /// The gradient of y, f32.
    pub(in crate::ops) dy: Address,
}

impl Attend<'_> {
    /// Whether these kernels compute it. They count the values of a head in 32 bits.
    pub(super) fn is_fused(&self) -> bool {
        let values = self.t.max(self.s).saturating_mul(self.d);
        let is_small = u32::try_from(values).is_ok() && self.s > 0;
        self.dtype != DType::F32 && WIDTHS.contains(&self.d) && is_small
    }

    /// (b, t, heads d), f32, and the logarithms (b heads, t), where backward wants them.
    pub(super) fn forward_fused(
        &self,
        operands: [Operand; 3],
    ) -> Result<(CudaStorage, Option<Tensor>)> {
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
    pub(super) fn backward_fused(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_argument_has_no_padding() {
        assert_eq!(size_of::<Attended>(), 40);
    }
}
