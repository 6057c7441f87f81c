//! Attention that writes no scores, against its formula in f64.

use crate::emulator::Arg::{Count, Halves, In, Nothing, Out, Whole};
use crate::emulator::{Emulator, STRIDING, Shape, emulator};
use crate::{agree, values};
use candle_train::rng::{Key, Purpose};

const KEY: u64 = 77;

/// A half-precision type: its name, what a word holds, and how near a result is.
struct Half {
    name: &'static str,
    value: fn(u16) -> f64,
    tolerance: f32,
}

const BF16: Half = Half {
    name: "bf16",
    value: |bits| f64::from(f32::from_bits(u32::from(bits) << 16)),
    tolerance: 1e-2,
};
const F16: Half = Half { name: "f16", value: value_of_f16, tolerance: 1.5e-3 };

/// A finite number.
fn value_of_f16(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023) / 1024.0);
    let size = if exponent == 0 { fraction / 16384.0 } else { (1.0 + fraction) * 2f64.powi(exponent - 15) };
    sign * size
}

/// What is computed.
#[derive(Clone, Copy)]
struct Case {
    b: usize,
    heads: usize,
    d: usize,
    t: usize,
    s: usize,
    causal: bool,
    dropout: f64,
    /// Whether queries, keys and values lie side by side.
    packed: bool,
}

impl Case {
    fn width(&self) -> usize {
        self.heads * self.d
    }

    /// Columns of the operands' tensors, and the first of each operand's.
    fn columns(&self) -> (usize, [usize; 3]) {
        let w = self.width();
        if self.packed { (3 * w, [0, w, 2 * w]) } else { (w, [0; 3]) }
    }

    fn threshold(&self) -> u64 {
        (self.dropout * (1u64 << 53) as f64).ceil() as u64
    }

    fn kept_scale(&self) -> f64 {
        1.0 / (1.0 - self.dropout)
    }

    fn scale(&self) -> f64 {
        1.0 / (self.d as f64).sqrt()
    }

    /// `Attended` of attention.cu.
    fn sizes(&self) -> Vec<u32> {
        let long = |n: u64| [n as u32, (n >> 32) as u32];
        let short = |x: f64| (x as f32).to_bits();
        let mut words = [self.heads, self.t, self.s].map(|n| long(n as u64)).concat();
        words.push(short(self.scale() * std::f64::consts::LOG2_E));
        words.extend([self.causal.into(), u32::from(self.dropout > 0.0)]);
        words.push(short(self.kept_scale()));
        words.extend([long(KEY), long(self.threshold())].concat());
        words
    }

    /// The place of a value of a head in (b, length, columns).
    fn place(&self, head: usize, [length, row]: [usize; 2], columns: usize, first: usize) -> usize {
        (head / self.heads * length + row) * columns + first + head % self.heads * self.d
    }
}
