//! A parameter's values, changed where they are: for optimizers and broadcasts.

use std::cell::Cell;

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Var, bail};

/// Gives the values of `var`, f32 in row-major order, to `change`.
///
/// # Errors
///
/// The variable is not f32.
pub fn change_values(var: &Var, change: impl FnOnce(&mut [f32])) -> Result<()> {
    var.inplace_op1(&Change(Cell::new(Some(change))))
}

/// Calls the closure, once, on the variable's storage.
struct Change<F>(Cell<Option<F>>);

impl<F: FnOnce(&mut [f32])> InplaceOp1 for Change<F> {
    fn name(&self) -> &'static str {
        "change-values"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let CpuStorage::F32(values) = storage else { bail!("parameters are f32") };
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("a parameter is always contiguous")
        };
        if let Some(change) = self.0.take() {
            change(&mut values[start..end]);
        }
        Ok(())
    }
}
