#![expect(unsafe_code, reason = "the C interface of cuBLAS")]
//! Matrix products by cuBLAS with f32 sums, whose result may be wider than their operands. Candle's
//! own have the type of their operands, and would have to be cast.

use std::ffi::c_void;

use candle_core::cuda_backend::WrapErr;
use candle_core::{DType, Result, bail};
use cudarc::cublas::{result, sys};

use super::gpu::Gpu;
use super::kernel_args::Address;

/// A matrix in memory, row after row.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) values: Address,
    /// Elements from one row to the next.
    pub(super) stride: usize,
}

impl Rows {
    /// As it is.
    pub(super) fn plain(self) -> Factor {
        Factor { rows: self, operation: sys::cublasOperation_t::CUBLAS_OP_N }
    }

    /// With rows and columns exchanged.
    pub(super) fn transposed(self) -> Factor {
        Factor { rows: self, operation: sys::cublasOperation_t::CUBLAS_OP_T }
    }
}

/// Operand of a product.
#[derive(Clone, Copy)]
pub(super) struct Factor {
    rows: Rows,
    operation: sys::cublasOperation_t,
}

/// Enqueues out (m, n) = a (m, k) b (k, n). The factors have one type; `out` has theirs, or is f32.
pub(super) fn product(
    gpu: &Gpu,
    [a, b]: [Factor; 2],
    out: Rows,
    [m, n, k]: [usize; 3],
) -> Result<()> {
    let (one, zero) = (1f32, 0f32);
    let number = |factor: &f32| std::ptr::from_ref(factor).cast::<c_void>();
    let pointer = |rows: Rows| rows.values.at as *const c_void;
    let stride = |rows: Rows| rows.stride as i32;
    let blas = gpu.cuda().cublas_handle();
    // cuBLAS reads columns: rows of `out` are columns of b^T a^T.
    // SAFETY: the addresses are those of live buffers of these shapes, and the factors are f32, as
    // sums of f32 want them.
    unsafe {
        result::gemm_ex(
            *blas.handle(),
            b.operation,
            a.operation,
            n as i32,
            m as i32,
            k as i32,
            number(&one),
            pointer(b.rows),
            data_type(b.rows.values.dtype)?,
            stride(b.rows),
            pointer(a.rows),
            data_type(a.rows.values.dtype)?,
            stride(a.rows),
            number(&zero),
            out.values.at as *mut c_void,
            data_type(out.values.dtype)?,
            stride(out),
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT_TENSOR_OP,
        )
    }
    .w()
}

fn data_type(dtype: DType) -> Result<sys::cudaDataType> {
    Ok(match dtype {
        DType::F32 => sys::cudaDataType::CUDA_R_32F,
        DType::BF16 => sys::cudaDataType::CUDA_R_16BF,
        DType::F16 => sys::cudaDataType::CUDA_R_16F,
        other => bail!("no product of {other:?}"),
    })
}
