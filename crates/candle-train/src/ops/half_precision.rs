//! Values in half precision, and their conversion to f32 and back.
//!
//! Under bf16, and on a GPU under fp16, some operations hand on half precision. Those that read
//! nothing but f32 get their operands widened ([`super::widen`]), and their gradients go back in the
//! type that came in.

use candle_core::{DType, Result, Tensor};

use super::operation::{Gradients, Operation};
use super::saved::Saved;
use super::storage::read_numbers;
use crate::Precision;

/// True if x holds bf16 or f16.
pub(super) fn is_half(x: &Tensor) -> bool {
    matches!(x.dtype(), DType::BF16 | DType::F16)
}

/// True if x holds bf16 in the CPU's memory.
pub(super) fn is_held_in_bf16(x: &Tensor) -> bool {
    x.device().is_cpu() && x.dtype() == DType::BF16
}

/// The values of `x`, of the CPU, in the type of `other`: f32 or bf16. Without a gradient.
pub(super) fn with_type_of(x: &Tensor, other: &Tensor) -> Result<Tensor> {
    with_type(x, other.dtype())
}

pub(super) fn with_type(x: &Tensor, dtype: DType) -> Result<Tensor> {
    if x.dtype() == dtype {
        return Ok(x.clone());
    }
    let held = if dtype == DType::BF16 { Precision::Bf16 } else { Precision::Fp32 };
    read_numbers([x], |[x]| Ok(Saved::copy_of(x, held))).map(|copy| copy.tensor(x.shape()))
}

pub(super) struct Widen;

impl Operation for Widen {
    type Operands<T> = [T; 1];

    const NAME: &'static str = "widen";

    #[cfg(any(feature = "cuda", test))]
    fn reads_result(&self) -> bool {
        false
    }

    fn backward(&self, [x]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        Ok([Some(with_type_of(&dy, x)?)])
    }
}
