//! Convolution, channels last: forward, gradient of the input, gradient of the weight.
//!
//! Work is cut into blocks of fixed size, and partial sums are added in a fixed order, so that the
//! number of threads changes no bit.

mod algorithm;
mod autocast;
mod depthwise;
mod direct;
mod direct_gradient;
mod gathered;
mod geometry;
mod normalised;
#[cfg(feature = "cuda")]
mod on_gpu;
#[cfg(test)]
mod tests;
mod transposed;
mod weight_layout;
mod winograd;

use candle_core::{Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::batch_norm::{Moments, moments, near_moments};
use super::chain;
use super::element::Numbers;
use super::half_precision::is_half;
use super::operation::{Gradients, Input, Operation, TwoOrThree, add_multiplications};
use super::precision::{bias_gradient, operand, round_block, rounded};
use super::saved::Saved;
use super::storage::{read, read_numbers};
use super::weight::{Destination, Weight};
use crate::{Convolutions, Precision};
use algorithm::{Algorithm, PIXELS, add_bias};
pub use autocast::autocast_conv2d;
pub(super) use geometry::Geometry;
pub use geometry::Rounding;
use geometry::Sliding;
pub use normalised::{ConvNorm, conv_batch_norm};
pub use transposed::{conv_transpose1d, conv_transpose2d};

/// Stride and padding of a window that slides over an image, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Input pixels from one output pixel to the next.
    pub stride: usize,
    /// Rows and columns added on each side.
    pub padding: usize,
}

/// Stride, padding and dilation of a kernel that slides over an image, along rows and columns; over a
/// line, along columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    /// Input pixels from one output pixel to the next.
    pub stride: [usize; 2],
    /// Rows and columns added on each side.
    pub padding: [usize; 2],
    /// Input pixels from one tap of the kernel to the next.
    pub dilation: [usize; 2],
}

impl SlidingWindow {
    /// `window` along rows and columns, not dilated.
    pub const fn square(window: Window) -> Self {
        let Window { stride, padding } = window;
        Self { stride: [stride; 2], padding: [padding; 2], dilation: [1, 1] }
    }
}

impl From<Window> for SlidingWindow {
    fn from(window: Window) -> Self {
        Self::square(window)
    }
}

/// Options of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvOptions {
    /// Stride, padding and dilation.
    pub window: SlidingWindow,
    /// Groups of channels that do not see each other; as many as channels for a depthwise
    /// convolution.
    pub groups: usize,
    /// Operands, result and gradients are rounded to it.
    pub precision: Precision,
    /// Algorithms that are considered.
    pub convolutions: Convolutions,
}

/// Cross-correlation as `torch.nn.functional.conv2d`, with activations in NHWC.
///
/// x (n, h, w, ci), weight (co, ci / groups, kh, kw), bias (co) -> (n, oh, ow, co), f32. Each group
/// of input channels makes a group of output channels. Under a half precision, operands, result and
/// gradients are rounded to it.
pub fn conv2d(
    x: &Tensor,
    weight: &Weight,
    bias: Option<&Weight>,
    options: ConvOptions,
) -> Result<Tensor> {
    apply(x, weight, bias, Conv::new_2d(x, weight, bias, options)?)
}

/// Cross-correlation as `torch.nn.functional.conv1d`, with activations in NLC.
///
/// x (n, l, ci), weight (co, ci / groups, k), bias (co) -> (n, ol, co); otherwise as [`conv2d`].
pub fn conv1d(
    x: &Tensor,
    weight: &Weight,
    bias: Option<&Weight>,
    options: ConvOptions,
) -> Result<Tensor> {
    let ConvOptions { window: SlidingWindow { stride, padding, dilation }, groups, .. } = options;
    let [stride, padding, dilation] = [[1, stride[1]], [0, padding[1]], [1, dilation[1]]];
    let sliding = Sliding { stride, padding, dilation, groups };
    let ((n, l, ci), (co, inputs, k)) = (x.dims3()?, weight.tensor().dims3()?);
    let g = Geometry::new((n, 1, l, ci), (co, inputs, 1, k), sliding)?;
    apply(x, weight, bias, Conv::new(g, vec![n, g.ow, co], weight, bias, options))
}

fn apply(x: &Tensor, weight: &Weight, bias: Option<&Weight>, op: Conv) -> Result<Tensor> {
    let bias = check_bias(bias, op.geometry.co)?;
    chain::apply(([x, weight.tensor()], bias), op)
}

fn check_bias(bias: Option<&Weight>, channels: usize) -> Result<Option<&Tensor>> {
    let bias = bias.map(Weight::tensor);
    match bias.filter(|bias| bias.dims() != [channels]) {
        Some(bias) => bail!("a bias of shape {:?} for {channels} channels", bias.dims()),
        None => Ok(bias),
    }
}

struct Conv {
    geometry: Geometry,
    algorithm: Algorithm,
    shape: Vec<usize>,
    precision: Precision,
    #[cfg(feature = "cuda")]
    convolutions: Convolutions,
    dw: Destination,
    db: Option<Destination>,
}

impl Conv {
    fn new_2d(
        x: &Tensor,
        weight: &Weight,
        bias: Option<&Weight>,
        options: ConvOptions,
    ) -> Result<Self> {
        let ConvOptions { window: SlidingWindow { stride, padding, dilation }, groups, .. } =
            options;
        let sliding = Sliding { stride, padding, dilation, groups };
        let g = Geometry::new(x.dims4()?, weight.tensor().dims4()?, sliding)?;
        Ok(Self::new(g, vec![g.n, g.oh, g.ow, g.co], weight, bias, options))
    }

    fn new(
        geometry: Geometry,
        shape: Vec<usize>,
        weight: &Weight,
        bias: Option<&Weight>,
        ConvOptions { precision, convolutions, .. }: ConvOptions,
    ) -> Self {
        add_multiplications(geometry.multiplications());
        let algorithm = Algorithm::of(&geometry, convolutions, precision);
        let dw = weight.destination();
        let db = bias.map(Weight::destination);
        Self {
            geometry,
            algorithm,
            shape,
            precision,
            #[cfg(feature = "cuda")]
            convolutions,
            dw,
            db,
        }
    }

    fn values(&self, x: &[f32], weight: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
        let x = self.algorithm.operand(x);
        let weight = self.algorithm.factor(weight);
        let Some(bias) = bias else {
            return self.algorithm.forward(&self.geometry, &x.wide(), &weight);
        };
        let mut y = self.algorithm.sums(&self.geometry, &x.wide(), &weight);
        let bias = rounded(bias, self.precision);
        y.par_chunks_mut(PIXELS * bias.len()).for_each(|block| {
            add_bias(block, &bias);
            round_block(block, self.precision);
        });
        y
    }

    /// The values without a bias, as they are kept for a norm, and their moments.
    fn values_and_moments(&self, x: Numbers<'_>, weight: &[f32]) -> (Saved, Moments) {
        let x = self.algorithm.operand(x);
        let weight = self.algorithm.factor(weight);
        let channels = self.geometry.co;
        let see = |pixels: &[f32]| near_moments(pixels, channels);
        let (values, seen) = self.algorithm.forward_saved(&self.geometry, &x, &weight, see);
        let moments = match seen {
            Some(parts) => Moments::of_all(channels, parts.into_iter().flatten()),
            None => moments(values.numbers(), channels),
        };
        (values, moments)
    }

    /// Gradients of x, of its type, and weight, given that of the sum.
    fn gradients(&self, x: &Tensor, weight: &Tensor, dy: &Tensor) -> Result<ConvGradients> {
        let algorithm = self.algorithm;
        let geometry = &self.geometry;
        read_numbers([x, dy], |[x_values, dy]| {
            let dy = algorithm.operand(dy);
            let dw = if weight.track_op() {
                let x_values = algorithm.operand(x_values);
                self.dw.send(algorithm.backward_weight(geometry, &x_values, &dy), weight)?
            } else {
                None
            };
            let held = if is_half(x) { Precision::Bf16 } else { Precision::Fp32 };
            let data_gradient = |[weight]: [&[f32]; 1]| {
                Ok(algorithm.backward_data(geometry, &dy, &algorithm.factor(weight), held))
            };
            let dx = x.track_op().then(|| read([weight], data_gradient)).transpose()?;
            Ok(ConvGradients { dx: dx.map(|dx| dx.tensor(x.shape())), dw })
        })
    }

    fn bias_gradient(&self, bias: Option<&Tensor>, dy: &Tensor) -> Result<Option<Tensor>> {
        let (Some(destination), Some(bias)) = (&self.db, bias) else { return Ok(None) };
        let channels = self.geometry.co;
        let precision = self.precision;
        let sums = |[dy]: [Numbers<'_>; 1]| {
            Ok(match dy {
                Numbers::F32(dy) => bias_gradient(&operand(dy, precision), channels, precision),
                Numbers::Bf16(dy) => bias_gradient(dy, channels, precision),
            })
        };
        destination.send(read_numbers([dy], sums)?, bias)
    }
}

struct ConvGradients {
    dx: Option<Tensor>,
    dw: Option<Tensor>,
}

impl Operation for Conv {
    type Operands<T> = TwoOrThree<T>;

    const NAME: &'static str = "conv2d-nhwc";

    fn forward(&self, ([x, weight], bias): TwoOrThree<Input<'_>>) -> Result<(Vec<f32>, Shape)> {
        let y = self.values(x.values, weight.values, bias.map(|bias| bias.values));
        Ok((y, Shape::from(&*self.shape)))
    }

    fn backward(
        &self,
        ([x, weight], bias): TwoOrThree<&Tensor>,
        _: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        // The bias's leaves first: it was registered last.
        let db = self.bias_gradient(bias, &dy)?;
        let gradients = self.gradients(x, weight, &dy)?;
        Ok(([gradients.dx, gradients.dw], Some(db)))
    }
}
