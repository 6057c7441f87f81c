//! Values in half precision as f32.
//!
//! On a GPU, under a half precision, some operations hand on bf16 or f16. Those that read nothing
//! but f32 get their operands from here, and their gradients go back in the type that came in.

use candle_core::{DType, Result, Tensor, bail};

use super::chain;
use super::operation::{Gradients, Operation};

/// x as f32: itself, unless it is in half precision.
///
/// # Errors
///
/// Half precision on the CPU.
pub fn widen(x: &Tensor) -> Result<Tensor> {
    if is_half(x) { chain::apply([x], Widen) } else { Ok(x.clone()) }
}

/// Whether x holds bf16 or f16.
pub(super) fn is_half(x: &Tensor) -> bool {
    matches!(x.dtype(), DType::BF16 | DType::F16)
}

pub(super) struct Widen;

impl Operation for Widen {
    type Operands<T> = [T; 1];

    const NAME: &'static str = "widen";

    #[cfg(any(feature = "cuda", test))]
    fn reads_result(&self) -> bool {
        false
    }

    fn backward(&self, _: [&Tensor; 1], _: &Tensor, _: Tensor) -> Gradients<Self> {
        bail!("half precision on the CPU")
    }
}
