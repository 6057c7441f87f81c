//! Transposed convolution along a line: each input value is spread over the outputs that a convolution would
//! have read it from. Forward is the convolution's gradient of its input, and the other way round.

use candle_core::{Result, Shape, Tensor, bail};

use super::algorithm::Algorithm;
use super::geometry::Geometry;
use super::{ConvOptions, Sliding};
use crate::Precision;
use crate::ops::bias::column_sums;
use crate::ops::chain;
use crate::ops::operation::{Gradients, Input, Operation};
use crate::ops::precision::{round, rounded};
use crate::ops::storage::{read, tensor};
use crate::ops::weight::{Destination, Weight};

/// `torch.nn.functional.conv_transpose1d`, with activations in NLC.
///
/// x (n, l, ci), weight (ci, co, k), bias (co) -> (n, (l - 1) stride - 2 padding + k, co), f32, without groups.
/// Rounds as [`super::conv1d`].
///
/// # Errors
///
/// The channels differ, or nothing is left of the line.
pub fn conv_transpose1d(
    x: &Tensor,
    weight: &Weight,
    bias: &Weight,
    options: ConvOptions,
) -> Result<Tensor> {
    let ((n, l, ci), (inputs, co, k)) = (x.dims3()?, weight.tensor().dims3()?);
    let (stride, padding) = (options.window.stride, options.window.padding);
    if ci != inputs || bias.tensor().dims() != [co] || options.groups != 1 {
        let (weight, bias) = (weight.tensor().dims(), bias.tensor().dims());
        bail!("a transposed convolution of {:?} by {weight:?} and {bias:?}", x.dims());
    }
    let length = (l.saturating_sub(1) * stride + k).checked_sub(2 * padding).filter(|&n| n > 0);
    let Some(length) = length else { bail!("a padding of {padding} takes all of {l} values") };
    let sliding = Sliding { stride: [1, stride], padding: [0, padding], groups: 1 };
    let geometry = Geometry::new((n, 1, length, co), (ci, co, 1, k), sliding)?;
    let op = Transposed {
        geometry,
        algorithm: Algorithm::of(&geometry, options.convolutions),
        precision: options.precision,
        #[cfg(feature = "cuda")]
        convolutions: options.convolutions,
        dw: weight.destination(),
        db: bias.destination(),
    };
    chain::apply([x, weight.tensor(), bias.tensor()], op)
}

pub(super) struct Transposed {
    /// Of the convolution that this is the transpose of: from outputs (n, length, co) to inputs (n, l, ci).
    pub(super) geometry: Geometry,
    algorithm: Algorithm,
    pub(super) precision: Precision,
    #[cfg(feature = "cuda")]
    pub(super) convolutions: crate::Convolutions,
    pub(super) dw: Destination,
    pub(super) db: Destination,
}

impl Transposed {
    fn values(&self, x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
        let (x, weight) = (rounded(x, self.precision), rounded(weight, self.precision));
        let mut y = self.algorithm.backward_data(&self.geometry, &x, &weight);
        let bias = rounded(bias, self.precision);
        for place in y.chunks_exact_mut(bias.len()) {
            place.iter_mut().zip(&*bias).for_each(|(y, bias)| *y += bias);
        }
        round(&mut y, self.precision);
        y
    }

    pub(super) fn output_shape(&self) -> Shape {
        let Geometry { n, w, ci, .. } = self.geometry;
        Shape::from((n, w, ci))
    }
}

impl Operation for Transposed {
    type Operands<T> = [T; 3];

    const NAME: &'static str = "conv-transpose1d-nlc";

    fn forward(&self, [x, weight, bias]: [Input<'_>; 3]) -> Result<(Vec<f32>, Shape)> {
        Ok((self.values(x.values, weight.values, bias.values), self.output_shape()))
    }

    fn backward(&self, [x, weight, bias]: [&Tensor; 3], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let (algorithm, g) = (self.algorithm, &self.geometry);
        read([x, weight, &dy], |[x_values, weight_values, dy]| {
            let dy = rounded(dy, self.precision);
            let rounded_to = |mut values: Vec<f32>| {
                round(&mut values, self.precision);
                values
            };
            let db = self.db.send(rounded_to(column_sums(&dy, g.ci)), bias)?;
            let x_values = rounded(x_values, self.precision);
            let dw = algorithm.backward_weight(g, &dy, &x_values);
            let dw = self.dw.send(rounded_to(dw), weight)?;
            let dx = if x.track_op() {
                let weight_values = rounded(weight_values, self.precision);
                let dx = algorithm.forward(g, &dy, &weight_values);
                Some(tensor(rounded_to(dx), x.shape())?)
            } else {
                None
            };
            Ok([dx, dw, db])
        })
    }
}
