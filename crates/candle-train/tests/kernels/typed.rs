//! Values of a number type that kernels know.

use half::{bf16, f16};

use crate::emulator::Arg;

/// Values as f32, bf16 or f16.
pub(crate) struct Typed {
    pub(crate) kind: &'static str,
    singles: Vec<f32>,
    halves: Vec<u16>,
}

impl Typed {
    /// `values` as "f32", "bf16" or "f16".
    pub(crate) fn new(kind: &'static str, values: &[f32]) -> Self {
        let (mut singles, mut halves) = (Vec::new(), Vec::new());
        match kind {
            "bf16" => halves.extend(values.iter().map(|v| bf16::from_f32(*v).to_bits())),
            "f16" => halves.extend(values.iter().map(|v| f16::from_f32(*v).to_bits())),
            _ => singles.extend(values),
        }
        Self { kind, singles, halves }
    }

    /// As kernels read and write them.
    pub(crate) fn arg(&mut self) -> Arg<'_> {
        match self.kind {
            "f32" => Arg::Out(&mut self.singles),
            _ => Arg::Halves(&mut self.halves),
        }
    }

    /// As f32.
    pub(crate) fn values(&self) -> Vec<f32> {
        match self.kind {
            "bf16" => self.halves.iter().map(|bits| bf16::from_bits(*bits).to_f32()).collect(),
            "f16" => self.halves.iter().map(|bits| f16::from_bits(*bits).to_f32()).collect(),
            _ => self.singles.clone(),
        }
    }
}
