//! Spatial softmax (Finn et al., 2016, <https://arxiv.org/abs/1509.06113>, section IV-A): where in
//! an image something is.

use candle_core::{Result, Tensor};

use crate::nn::{Buffer, Builder, Conv2d, ConvShape, ForwardContext};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Weight, Window};
use crate::plan::Precision;

/// A map for each key point, and the mean place under its softmax. Keys: `nets` (a 1x1
/// convolution), `pos_grid`.
pub(super) struct SpatialSoftmax {
    maps: Conv2d,
    /// (height x width, 2): x, then y of each place, from -1 to 1.
    grid: Buffer,
    points: usize,
}

impl SpatialSoftmax {
    /// Registers it for maps (height, width, channels).
    pub(super) fn new(
        builder: &Builder,
        [height, width, inputs]: [usize; 3],
        points: usize,
    ) -> Result<Self> {
        let window = Window { stride: 1, padding: 0 };
        let shape = ConvShape { inputs, outputs: points, kernel: 1, window, groups: 1 };
        Ok(Self {
            maps: Conv2d::new(&builder.pp("nets"), shape)?,
            grid: builder.constant("pos_grid", &[height * width, 2], || grid(height, width))?,
            points,
        })
    }

    /// (n, height, width, channels) -> x and y of each point, (n, 2 points).
    pub(super) fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let (n, height, width, _) = x.dims4()?;
        let maps = self.maps.forward(x, pass)?.reshape((n, height * width, self.points))?;
        let shares = ops::softmax(&maps.transpose(1, 2)?.contiguous()?)?;
        // Places are means over many pixels: never in half precision.
        let grid = Weight::from(&self.grid.var()?.as_detached_tensor().t()?.contiguous()?);
        ops::linear(&shares, &grid, None, Precision::Fp32)?.flatten_from(1)
    }
}

impl SpatialSoftmax {
    /// [`SpatialSoftmax::forward`] in a graph of ONNX.
    pub(super) fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let maps = self.maps.onnx(graph, x, [0; 2])?;
        let maps = graph.reshaped(&maps, &[0, -1, self.points as i64]);
        let maps = graph.transposed(&maps, &[0, 2, 1]);
        let shares = graph.softmax(&maps);
        let grid = self.grid.onnx(graph)?;
        let places = graph.matmul(&shares, &grid);
        Ok(graph.flattened(&places, 1))
    }
}

/// x and y of each place, row by row. A single one is at -1, as `numpy.linspace` has it.
fn grid(height: usize, width: usize) -> Vec<f32> {
    let at = |i: usize, n: usize| -1.0 + 2.0 * i as f64 / n.saturating_sub(1).max(1) as f64;
    let places = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    places.flat_map(|(x, y)| [at(x, width) as f32, at(y, height) as f32]).collect()
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::nn::Params;

    #[test]
    fn places_go_from_corner_to_corner_x_first() {
        let rows = [-1.0, -1.0, 0.0, -1.0, 1.0, -1.0, -1.0, 1.0, 0.0, 1.0, 1.0, 1.0];
        assert_eq!(grid(2, 3), rows);
        assert_eq!(grid(1, 1), [-1.0, -1.0]);
    }

    /// One map, the input itself.
    fn places(x: &Tensor) -> Vec<Vec<f32>> {
        let builder = Builder::new(1);
        let (_, height, width, _) = x.dims4().unwrap();
        let pool = SpatialSoftmax::new(&builder, [height, width, 1], 1).unwrap();
        let params: Params = builder.finish();
        for (param, value) in params.parameters().iter().zip([1f32, 0.0]) {
            let value = Tensor::full(value, param.shape(), &Device::Cpu).unwrap();
            param.var().unwrap().set(&value).unwrap();
        }
        let pass = ForwardContext::eval(Precision::Bf16);
        pool.forward(x, &pass).unwrap().to_vec2().unwrap()
    }

    #[test]
    fn a_key_point_is_where_its_map_is_large_and_in_the_middle_of_an_even_one() {
        let mut values = vec![0f32; 2 * 3 * 5];
        // The second image has a peak in the second row of three, the last column of five.
        values[15 + 9] = 40.0;
        let x = Tensor::from_vec(values, (2, 3, 5, 1), &Device::Cpu).unwrap();
        let found = places(&x);
        for (found, expected) in found.concat().iter().zip([0.0, 0.0, 1.0, 0.0]) {
            assert!((found - expected).abs() < 1e-6, "{found} instead of {expected}");
        }
    }
}
