//! Parameters' values, changed where they are: for optimizers and broadcasts.

use candle_core::{Result, Tensor, Var, bail};

use crate::ops::with_vector;

/// Gives the values of `var`, f32 in row-major order, to `change`.
pub fn change_values(var: &Var, change: impl FnOnce(&mut [f32])) -> Result<()> {
    if var.device().is_cpu() {
        return with_storage(var, |values| change(values));
    }
    // In a GPU's memory: out, and in again.
    let mut values = var.flatten_all()?.to_vec1::<f32>()?;
    change(&mut values);
    var.set(&Tensor::from_vec(values, var.shape(), var.device())?)
}

/// Gives the values of all `vars`, f32 in row-major order, to `change` at once. Meanwhile they are
/// nowhere else.
///
/// # Errors
///
/// A variable is not f32; then nothing was changed.
pub fn change_all(vars: &[&Var], change: impl FnOnce(&mut [Vec<f32>])) -> Result<()> {
    let mut storages = Vec::with_capacity(vars.len());
    let all = vars
        .iter()
        .try_for_each(|var| with_storage(var, |values| storages.push(std::mem::take(values))));
    if all.is_ok() {
        change(&mut storages);
    }
    let put_back = vars
        .iter()
        .zip(storages)
        .try_for_each(|(var, values)| with_storage(var, |storage| *storage = values));
    all.and(put_back)
}

fn with_storage(var: &Var, change: impl FnOnce(&mut Vec<f32>)) -> Result<()> {
    with_vector(var, |values, range| {
        if range.start != 0 {
            bail!("a parameter has its values to itself")
        }
        change(values);
        Ok(())
    })?
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use test_support::assert_refused;

    use super::*;

    #[test]
    fn all_variables_are_changed_where_they_are_or_none_is() -> Result<()> {
        let first = Var::new(&[1f32, 2.0], &Device::Cpu)?;
        let second = Var::new(&[[3f32]], &Device::Cpu)?;
        let add = |values: &mut [Vec<f32>]| values.iter_mut().flatten().for_each(|v| *v += 1.0);
        change_all(&[&first, &second], add)?;
        assert_eq!(
            (first.to_vec1::<f32>()?, second.to_vec2::<f32>()?),
            (vec![2.0, 3.0], vec![vec![4.0]])
        );
        let half = Var::zeros(1, DType::F16, &Device::Cpu)?;
        assert_refused(change_all(&[&first, &half, &second], add), "values to change are F32");
        assert_eq!(first.to_vec1::<f32>()?, [2.0, 3.0]);
        Ok(())
    }
}
