//! `optimizer.name = "adafactor"`

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::optim::block::lerp;
use crate::optim::{Block, Optimizer, Step, shared_sum_of_squares};
use crate::plan::{Extent, Matrices, StateTensor};

/// Adafactor (Shazeer and Stern 2018), as `torch.optim.Adafactor`: for a matrix, it keeps only the
/// mean squares of rows and columns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Adafactor {
    /// decoupled weight decay: each step multiplies weights by `1 - lr * weight_decay`.
    #[schemars(range(min = 0.0), example = 0.01)]
    pub weight_decay: f64,
    /// at step t, mean squares move by the fraction `t^beta2_decay` towards the squared gradients.
    #[schemars(range(max = 0.0))]
    pub beta2_decay: f64,
    /// lower bound of the root mean square of a row's or column's gradients; by default, the
    /// precision of f32.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), example = 1e-30)]
    pub eps1: Option<f64>,
    /// lower bound of a tensor's root mean square, by which its step is scaled.
    #[schemars(range(min = 0.0))]
    pub eps2: f64,
    /// upper bound of an update's root mean square, before it is scaled.
    #[schemars(range(min = 1.0))]
    pub d: f64,
}

impl Default for Adafactor {
    fn default() -> Self {
        Self { weight_decay: 0.0, beta2_decay: -0.8, eps1: None, eps2: 1e-3, d: 1.0 }
    }
}

impl Kind for Adafactor {
    const NAME: &'static str = "adafactor";
}

impl Optimizer for Adafactor {
    fn state(&self) -> Vec<&'static str> {
        vec!["variance"]
    }

    fn matrices(&self) -> Option<Matrices> {
        let tensor = |name: &str, extent| StateTensor { name: name.to_owned(), extent };
        let state = vec![tensor("row_var", Extent::Rows), tensor("col_var", Extent::Columns)];
        Some(Matrices { only_hidden: false, state, others_lr_factor: 1.0 })
    }

    fn weight_decay(&self) -> f64 {
        self.weight_decay
    }

    fn takes_whole_tensors(&self) -> bool {
        true
    }

    fn update(&self, tensor: &mut Block<'_>, step: &Step) {
        let t = step.count as f64;
        let follow = t.powf(self.beta2_decay) as f32;
        let gradient = tensor.prepared_gradient();
        let mut update = if tensor.is_matrix {
            self.factored(tensor, &gradient, follow)
        } else {
            self.whole(tensor, &gradient, follow)
        };
        update.iter_mut().zip(&gradient).for_each(|(update, g)| *update *= g);
        let rms = |squares: f64| (squares / tensor.len().max(1) as f64).sqrt();
        let rate = step.lr.min(1.0 / t.sqrt());
        let alpha = self.eps2.max(rms(shared_sum_of_squares(tensor.values))) * rate;
        let shorten = (rms(shared_sum_of_squares(&update)) / self.d).max(1.0);
        let factor = (alpha / shorten) as f32;
        let shrink = (1.0 - step.lr * step.weight_decay) as f32;
        for (value, update) in tensor.values.iter_mut().zip(update) {
            *value = *value * shrink - factor * update;
        }
    }
}

impl Adafactor {
    fn eps1(&self) -> f32 {
        self.eps1.map_or(f32::EPSILON, |eps| eps as f32)
    }

    /// Inverse roots of the variances of a vector.
    fn whole(&self, tensor: &mut Block<'_>, gradient: &[f32], follow: f32) -> Vec<f32> {
        let least = self.eps1() * self.eps1();
        let [variance] = &mut tensor.state[..] else { return vec![0.0; gradient.len()] };
        let renewed = variance.iter_mut().zip(gradient).map(|(variance, &g)| {
            *variance = lerp(*variance, g * g, follow);
            1.0 / variance.max(least).sqrt()
        });
        renewed.collect()
    }

    /// Inverse roots of the variances of a matrix, from those of its rows and columns; a tensor of
    /// more dimensions is a stack of matrices.
    fn factored(&self, tensor: &mut Block<'_>, gradient: &[f32], follow: f32) -> Vec<f32> {
        let [.., rows, columns] = *tensor.shape else { return vec![0.0; gradient.len()] };
        let [row_var, col_var] = &mut tensor.state[..] else { return vec![0.0; gradient.len()] };
        let least = self.eps1() * self.eps1();
        let mut inverse = vec![0.0; gradient.len()];
        let matrices = gradient.chunks(rows * columns).zip(inverse.chunks_mut(rows * columns));
        let state = row_var.chunks_mut(rows).zip(col_var.chunks_mut(columns));
        for ((gradient, inverse), (row_var, col_var)) in matrices.zip(state) {
            let [of_rows, of_columns] = mean_squares(gradient, columns);
            for (var, new) in [(&mut *row_var, of_rows), (&mut *col_var, of_columns)] {
                var.iter_mut().zip(new).for_each(|(var, new)| *var = lerp(*var, new, follow));
            }
            let mean = row_var.iter().map(|&v| f64::from(v)).sum::<f64>() / rows as f64;
            let mean = (mean as f32).max(self.eps1());
            let row = |(inverse, &row): (&mut [f32], &f32)| {
                for (inverse, &column) in inverse.iter_mut().zip(&*col_var) {
                    *inverse = 1.0 / (row * column / mean).max(least).sqrt();
                }
            };
            inverse.par_chunks_mut(columns).zip(&*row_var).for_each(row);
        }
        inverse
    }
}

/// Mean squares of the rows and of the columns of a matrix, summed in f64.
fn mean_squares(matrix: &[f32], columns: usize) -> [Vec<f32>; 2] {
    let rows = matrix.len() / columns.max(1);
    let square = |&value: &f32| f64::from(value) * f64::from(value);
    let of_row = |row: &[f32]| (row.iter().map(square).sum::<f64>() / columns as f64) as f32;
    let of_rows = matrix.chunks(columns).map(of_row).collect();
    let mut sums = vec![0.0f64; columns];
    for row in matrix.chunks(columns) {
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += square(value));
    }
    [of_rows, sums.into_iter().map(|sum| (sum / rows as f64) as f32).collect()]
}
