//! Numbers of a tensor that nothing changes, as a file holds them: f32, bf16 or f16, in the file's
//! mapped pages or in memory. What is computed with them is f32.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Result, Tensor, bail};
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};

use super::element::convert;
use super::precision::round_block;
use super::simd::build;
use super::storage::tensor;
use crate::Precision;

/// Bytes that several tensors share: a mapped file.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Type of stored numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredType {
    /// 4 bytes.
    F32,
    /// 2 bytes, with the exponent of f32.
    Bf16,
    /// 2 bytes.
    F16,
}

impl StoredType {
    /// Size of a number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }
}

/// A tensor whose numbers stay as a file holds them. Cloning shares them.
#[derive(Clone)]
pub struct StoredTensor {
    bytes: SharedBytes,
    range: Range<usize>,
    dtype: StoredType,
    shape: Vec<usize>,
}

impl StoredTensor {
    /// The tensor in this range of `bytes`, row-major and little-endian. Numbers that do not lie at
    /// multiples of their size are copied.
    ///
    /// # Errors
    ///
    /// The range has another size than the shape, or is not inside.
    pub fn new(
        bytes: SharedBytes,
        range: Range<usize>,
        dtype: StoredType,
        shape: &[usize],
    ) -> Result<Self> {
        let Some(values) = (*bytes).as_ref().get(range.clone()) else {
            bail!("a tensor at {range:?} of {} bytes", (*bytes).as_ref().len())
        };
        let size = shape.iter().product::<usize>() * dtype.bytes();
        if values.len() != size {
            bail!("a tensor of {size} bytes in {}", values.len());
        }
        let shape = shape.to_vec();
        if values.as_ptr().addr().is_multiple_of(dtype.bytes()) {
            return Ok(Self { bytes, range, dtype, shape });
        }
        let mut words = vec![0u32; size.div_ceil(4)];
        bytemuck::cast_slice_mut(&mut words)[..size].copy_from_slice(values);
        Ok(Self { bytes: Arc::new(Words(words)), range: 0..size, dtype, shape })
    }

    /// The shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Type of the numbers.
    pub fn dtype(&self) -> StoredType {
        self.dtype
    }

    /// The numbers as bytes.
    pub fn bytes(&self) -> &[u8] {
        &(*self.bytes).as_ref()[self.range.clone()]
    }

    /// The numbers as f32, row-major.
    pub fn to_vec(&self) -> Vec<f32> {
        let numbers = self.numbers();
        build(numbers.len(), |start, wide| numbers.widen(start, wide))
    }

    /// The tensor as f32, in memory of its own.
    pub fn widened(&self) -> Result<Tensor> {
        tensor(self.to_vec(), self.shape.clone())
    }

    /// The numbers by their type.
    pub(super) fn numbers(&self) -> StoredNumbers<'_> {
        let bytes = self.bytes();
        match self.dtype {
            StoredType::F32 => StoredNumbers::F32(bytemuck::cast_slice(bytes)),
            StoredType::Bf16 => {
                StoredNumbers::Bf16(bytemuck::cast_slice::<u8, u16>(bytes).reinterpret_cast())
            }
            StoredType::F16 => {
                StoredNumbers::F16(bytemuck::cast_slice::<u8, u16>(bytes).reinterpret_cast())
            }
        }
    }
}

/// Bytes at multiples of 4.
struct Words(Vec<u32>);

impl AsRef<[u8]> for Words {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// Stored numbers by their type.
#[derive(Clone, Copy)]
pub(super) enum StoredNumbers<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
    F16(&'a [f16]),
}

impl StoredNumbers<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::Bf16(values) => values.len(),
            Self::F16(values) => values.len(),
        }
    }

    /// Writes the numbers from `start` on as f32, as many as `to` has.
    pub(super) fn widen(&self, start: usize, to: &mut [f32]) {
        let range = start..start + to.len();
        match self {
            Self::F32(values) => to.copy_from_slice(&values[range]),
            Self::Bf16(values) => convert(&values[range], to),
            Self::F16(values) => values[range].convert_to_f32_slice(to),
        }
    }

    /// [`StoredNumbers::widen`], and rounds them as autocast does.
    pub(super) fn widen_rounded(&self, start: usize, to: &mut [f32], precision: Precision) {
        self.widen(start, to);
        round_block(to, precision);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_each_type_become_f32_wherever_they_lie() {
        let values = [1.0f32, -0.5, 65504.0, 3.0e-5];
        let f32s: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let bf16s: Vec<u8> = values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
        let f16s: Vec<u8> = values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
        let near = |v: f32, dtype| match dtype {
            StoredType::F32 => v,
            StoredType::Bf16 => bf16::from_f32(v).to_f32(),
            StoredType::F16 => f16::from_f32(v).to_f32(),
        };
        for (dtype, bytes) in
            [(StoredType::F32, f32s), (StoredType::Bf16, bf16s), (StoredType::F16, f16s)]
        {
            for offset in 0..4 {
                let len = bytes.len();
                let shifted: Vec<u8> = vec![9; offset].into_iter().chain(bytes.clone()).collect();
                let shared: SharedBytes = Arc::new(shifted);
                let stored =
                    StoredTensor::new(shared.clone(), offset..offset + len, dtype, &[2, 2])
                        .unwrap();
                assert_eq!(stored.to_vec(), values.map(|v| near(v, dtype)));
                assert_eq!(stored.bytes(), bytes);
                assert!(StoredTensor::new(shared.clone(), 0..len + 4, dtype, &[2, 2]).is_err());
                assert!(StoredTensor::new(shared, 8..8 + len, dtype, &[2, 2]).is_err());
            }
        }
    }
}
