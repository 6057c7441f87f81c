//! Transposed convolution: each input value is spread over the outputs that a convolution would
//! have read it from. Forward is the convolution's gradient of its input, and the other way round.

use candle_core::{Result, Shape, Tensor, bail};

use super::algorithm::Algorithm;
use super::geometry::{Geometry, Sliding};
use super::{ConvOptions, SlidingWindow};
use crate::Precision;
use crate::ops::chain;
use crate::ops::operation::{Gradients, Input, Operation};
use crate::ops::precision::{bias_gradient, operand, round, rounded};
use crate::ops::storage::{read, tensor};
use crate::ops::weight::{Destination, Weight};

/// `torch.nn.functional.conv_transpose1d`, with activations in NLC.
///
/// x (n, l, ci), weight (ci, co, k), bias (co) -> (n, (l - 1) stride - 2 padding + k, co), f32,
/// without groups. Rounds as [`super::conv1d`].
pub fn conv_transpose1d(
    x: &Tensor,
    weight: &Weight,
    bias: &Weight,
    options: ConvOptions,
) -> Result<Tensor> {
    let ((n, l, ci), (inputs, co, k)) = (x.dims3()?, weight.tensor().dims3()?);
    let SlidingWindow { stride, padding, dilation } = options.window;
    let window = SlidingWindow {
        stride: [1, stride[1]],
        padding: [0, padding[1]],
        dilation: [1, dilation[1]],
    };
    let options = ConvOptions { window, ..options };
    let shapes = Shapes { x: [n, 1, l, ci], weight: [inputs, co, 1, k] };
    let mut op = Transposed::new(shapes, [0; 2], weight, bias, options)?;
    op.shape.remove(1);
    chain::apply([x, weight.tensor(), bias.tensor()], op)
}

/// `torch.nn.functional.conv_transpose2d`, with activations in NHWC and `behind` as its
/// `output_padding`: rows and columns that only the bias reaches, or what further taps reach.
///
/// x (n, h, w, ci), weight (ci, co / groups, kh, kw), bias (co) -> (n, (h - 1) stride - 2 padding +
/// dilation (kh - 1) + behind + 1, ..., co), f32. Rounds as [`super::conv2d`].
pub fn conv_transpose2d(
    x: &Tensor,
    weight: &Weight,
    bias: &Weight,
    behind: [usize; 2],
    options: ConvOptions,
) -> Result<Tensor> {
    let shapes = Shapes { x: x.dims4()?.into(), weight: weight.tensor().dims4()?.into() };
    let op = Transposed::new(shapes, behind, weight, bias, options)?;
    chain::apply([x, weight.tensor(), bias.tensor()], op)
}

/// Length of an axis after a transposed convolution of `side` places.
fn spread_over(
    side: usize,
    kernel: usize,
    [stride, padding, dilation, behind]: [usize; 4],
) -> Option<usize> {
    let reach = kernel.checked_sub(1)? * dilation + 1;
    let length = side.checked_sub(1)? * stride + reach + behind;
    length.checked_sub(2 * padding).filter(|&length| length > 0)
}

pub(super) struct Transposed {
    /// Sizes of the convolution that this is the transpose of: from outputs (n, length, co) to inputs (n,
    /// l, ci).
    pub(super) geometry: Geometry,
    /// Shape of the output.
    shape: Vec<usize>,
    algorithm: Algorithm,
    pub(super) precision: Precision,
    #[cfg(feature = "cuda")]
    pub(super) convolutions: crate::Convolutions,
    pub(super) dw: Destination,
    pub(super) db: Destination,
}

/// Shapes of the operands.
#[derive(Clone, Copy)]
struct Shapes {
    /// (n, rows, columns, inputs)
    x: [usize; 4],
    /// (inputs, outputs / groups, rows, columns)
    weight: [usize; 4],
}

impl Transposed {
    fn new(
        shapes: Shapes,
        behind: [usize; 2],
        weight: &Weight,
        bias: &Weight,
        options: ConvOptions,
    ) -> Result<Self> {
        let Shapes { x, weight: w } = shapes;
        let ([n, h, width, ci], [inputs, per_group, kh, kw]) = (x, w);
        let (SlidingWindow { stride, padding, dilation }, groups) =
            (options.window, options.groups);
        let co = per_group * groups;
        if ci != inputs || bias.tensor().dims() != [co] {
            let bias = bias.tensor().dims();
            bail!("a transposed convolution of {x:?} by {w:?} and {bias:?}");
        }
        let side = |side, kernel, i: usize| {
            spread_over(side, kernel, [stride[i], padding[i], dilation[i], behind[i]])
        };
        let (Some(rows), Some(columns)) = (side(h, kh, 0), side(width, kw, 1)) else {
            bail!("a padding of {padding:?} takes all of {h} x {width} values")
        };
        let sliding = Sliding { stride, padding, dilation, groups };
        let geometry = Geometry::new((n, rows, columns, co), (ci, per_group, kh, kw), sliding)?;
        if [geometry.oh, geometry.ow] != [h, width] {
            bail!("{behind:?} places behind, which a stride of {stride:?} skips");
        }
        Ok(Self {
            geometry,
            shape: vec![n, rows, columns, co],
            algorithm: Algorithm::of(&geometry, options.convolutions, options.precision),
            precision: options.precision,
            #[cfg(feature = "cuda")]
            convolutions: options.convolutions,
            dw: weight.destination(),
            db: bias.destination(),
        })
    }

    fn values(&self, x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
        let x = self.algorithm.operand(x);
        let weight = self.algorithm.factor(weight);
        let mut y = self.algorithm.data_sums(&self.geometry, &x, &weight);
        let bias = rounded(bias, self.precision);
        for place in y.chunks_exact_mut(bias.len()) {
            place.iter_mut().zip(&*bias).for_each(|(y, bias)| *y += bias);
        }
        round(&mut y, self.precision);
        y
    }

    pub(super) fn output_shape(&self) -> Shape {
        Shape::from(&*self.shape)
    }
}

impl Operation for Transposed {
    type Operands<T> = [T; 3];

    const NAME: &'static str = "conv-transpose-nhwc";

    fn forward(&self, [x, weight, bias]: [Input<'_>; 3]) -> Result<(Vec<f32>, Shape)> {
        Ok((self.values(x.values, weight.values, bias.values), self.output_shape()))
    }

    fn backward(&self, [x, weight, bias]: [&Tensor; 3], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let algorithm = self.algorithm;
        let g = &self.geometry;
        read([x, weight, &dy], |[x_values, weight_values, dy]| {
            let db = bias_gradient(&operand(dy, self.precision), g.ci, self.precision);
            let db = self.db.send(db, bias)?;
            let dy = algorithm.operand(dy);
            let x_values = algorithm.operand(x_values);
            let dw = self.dw.send(algorithm.backward_weight(g, &dy, &x_values), weight)?;
            let dx = if x.track_op() {
                let weight_values = algorithm.factor(weight_values);
                Some(tensor(algorithm.forward(g, &dy.wide(), &weight_values), x.shape())?)
            } else {
                None
            };
            Ok([dx, dw, db])
        })
    }
}
