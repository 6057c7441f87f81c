//! Operators that want channels first: convolutions, pooling, and norms of channels.

use super::graph::Graph;
use super::value::{Attribute, Layout, Value};

/// A window that slides along each axis of an image or a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sliding {
    /// Size of the window.
    pub kernel: Vec<usize>,
    /// Places from window to window.
    pub stride: Vec<usize>,
    /// Places that are added before.
    pub before: Vec<usize>,
    /// Places that are added behind.
    pub behind: Vec<usize>,
    /// Places from tap to tap.
    pub dilation: Vec<usize>,
}

impl Sliding {
    /// A window with the same padding on both sides.
    pub fn new(kernel: &[usize], stride: &[usize], padding: &[usize], dilation: &[usize]) -> Self {
        let [kernel, stride, before, dilation] =
            [kernel, stride, padding, dilation].map(<[usize]>::to_vec);
        Self { kernel, stride, behind: before.clone(), before, dilation }
    }

    /// Adds `more` places behind.
    #[must_use]
    pub fn behind(mut self, more: &[usize]) -> Self {
        self.behind.iter_mut().zip(more).for_each(|(behind, more)| *behind += more);
        self
    }

    fn attributes(&self) -> Vec<Attribute> {
        let ints = |values: &[usize]| values.iter().map(|&value| value as i64).collect();
        let pads = [&self.before[..], &self.behind].concat();
        vec![
            Attribute::Ints("kernel_shape", ints(&self.kernel)),
            Attribute::Ints("strides", ints(&self.stride)),
            Attribute::Ints("pads", ints(&pads)),
            Attribute::Ints("dilations", ints(&self.dilation)),
        ]
    }

    /// Lengths after it slid over `dims` (n, ..., c), which then have `channels`.
    fn over(&self, dims: &[Option<usize>], channels: Option<usize>) -> Vec<Option<usize>> {
        let along = |(axis, &length): (usize, &Option<usize>)| {
            let whole = length? + self.before[axis] + self.behind[axis];
            Some((whole - self.reach(axis)) / self.stride[axis] + 1)
        };
        let inside = dims[1..dims.len() - 1].iter().enumerate().map(along);
        [dims[0]].into_iter().chain(inside).chain([channels]).collect()
    }

    /// Places from the first tap of a window to its last, both counted.
    fn reach(&self, axis: usize) -> usize {
        (self.kernel[axis] - 1) * self.dilation[axis] + 1
    }
}

impl Graph {
    /// A convolution of x (n, ..., in) by a weight (out, in / groups, ...).
    pub fn conv(
        &mut self,
        x: &Value,
        weight: &Value,
        bias: Option<&Value>,
        sliding: &Sliding,
        groups: usize,
    ) -> Value {
        let attributes = [sliding.attributes(), vec![Attribute::Int("group", groups as i64)]];
        let dims = sliding.over(&x.dims, weight.dims[0]);
        self.spatial("Conv", [Some(x), Some(weight), bias], &attributes.concat(), dims)
    }

    /// A transposed convolution of x (n, ..., in) by a weight (in, out / groups, ...), with so many
    /// places more behind.
    pub fn conv_transpose(
        &mut self,
        x: &Value,
        [weight, bias]: [&Value; 2],
        sliding: &Sliding,
        groups: usize,
        behind: &[usize],
    ) -> Value {
        let more = behind.iter().map(|&places| places as i64).collect();
        let more =
            vec![Attribute::Int("group", groups as i64), Attribute::Ints("output_padding", more)];
        let attributes = [sliding.attributes(), more].concat();
        let inside = x.dims[1..x.rank() - 1].iter().enumerate().map(|(axis, &length)| {
            let whole = (length? - 1) * sliding.stride[axis] + sliding.reach(axis) + behind[axis];
            Some(whole - sliding.before[axis] - sliding.behind[axis])
        });
        let dims = [x.dims[0]].into_iter().chain(inside).chain([bias.dims[0]]).collect();
        self.spatial("ConvTranspose", [Some(x), Some(weight), Some(bias)], &attributes, dims)
    }

    /// The largest value of each window.
    pub fn max_pool(&mut self, x: &Value, sliding: &Sliding) -> Value {
        let dims = sliding.over(&x.dims, x.dims[x.rank() - 1]);
        self.spatial("MaxPool", [Some(x), None, None], &sliding.attributes(), dims)
    }

    /// The mean of each window, of which the last ones hang over the edge by so many places, which
    /// never count; padding counts as zeros or not at all.
    pub fn average_pool(
        &mut self,
        x: &Value,
        sliding: &Sliding,
        over: &[usize],
        count_include_pad: bool,
    ) -> Value {
        if count_include_pad && over.iter().any(|&places| places > 0) {
            // Runtimes differ in what they count of such windows, so padding is written as zeros.
            let pads = sliding.before.iter().zip(&sliding.behind).enumerate();
            let x = pads.fold(x.clone(), |x, (axis, (&before, &behind))| {
                self.padded(&x, 1 + axis, before, behind)
            });
            let none = vec![0; over.len()];
            let bare = Sliding { before: none.clone(), behind: none, ..sliding.clone() };
            return self.average_pool(&x, &bare, over, false);
        }
        let sliding = sliding.clone().behind(over);
        let counts = Attribute::Int("count_include_pad", i64::from(count_include_pad));
        let attributes = [sliding.attributes(), vec![counts]];
        let dims = sliding.over(&x.dims, x.dims[x.rank() - 1]);
        self.spatial("AveragePool", [Some(x), None, None], &attributes.concat(), dims)
    }

    /// The mean of each channel: (n, ..., c) -> (n, c).
    pub fn global_average_pool(&mut self, x: &Value) -> Value {
        let mean = self.mean_pixel(x);
        let axes: Vec<usize> = (1..x.rank() - 1).collect();
        self.squeezed(&mean, &axes)
    }

    /// The mean of each channel: (n, ..., c) -> (n, 1, ..., c).
    pub fn mean_pixel(&mut self, x: &Value) -> Value {
        let axes: Vec<usize> = (1..x.rank() - 1).collect();
        self.reduced("ReduceMean", x, &axes)
    }

    /// `torch.nn.BatchNorm` in evaluation: scale, shift, running mean and variance, (c) each.
    pub fn batch_norm(&mut self, x: &Value, numbers: [&Value; 4], eps: f64) -> Value {
        let x = self.first(x);
        let names: Vec<&str> =
            [&x].into_iter().chain(numbers).map(|value| value.name.as_str()).collect();
        let name = self.push("BatchNormalization", &names, &[Attribute::Float("epsilon", eps)]);
        Value { name, ..x }
    }

    /// `torch.nn.GroupNorm`; scale and shift (c), or none.
    pub fn group_norm(
        &mut self,
        x: &Value,
        affine: Option<[&Value; 2]>,
        groups: usize,
        eps: f64,
    ) -> Value {
        let x = self.first(x);
        let shape = self.push("Shape", &[&x.name], &[]);
        let ones = vec![1.0; groups];
        let zeros = vec![0.0; groups];
        let ones = self.floats(&[groups], &ones);
        let zeros = self.floats(&[groups], &zeros);
        let parts = self.integers(&[0, groups as i64, -1]);
        let parts = self.push("Reshape", &[&x.name, &parts.name], &[]);
        let operands = [parts.as_str(), ones.name.as_str(), zeros.name.as_str()];
        let eps = [Attribute::Float("epsilon", eps)];
        let normed = self.push("InstanceNormalization", &operands, &eps);
        let name = self.push("Reshape", &[&normed, &shape], &[]);
        let y = Value { name, ..x };
        let Some([scale, shift]) = affine else { return y };
        let y = self.per_channel("Mul", &y, scale);
        self.per_channel("Add", &y, shift)
    }

    /// An image (n, h, w, c) with as many times more rows and columns.
    pub fn resized(&mut self, x: &Value, factor: usize, is_linear: bool) -> Value {
        let scales = self.floats(&[4], &[1.0, 1.0, factor as f32, factor as f32]);
        let attributes = if is_linear {
            vec![
                Attribute::Text("mode", "linear"),
                Attribute::Text("coordinate_transformation_mode", "half_pixel"),
            ]
        } else {
            vec![
                Attribute::Text("mode", "nearest"),
                Attribute::Text("coordinate_transformation_mode", "asymmetric"),
                Attribute::Text("nearest_mode", "floor"),
            ]
        };
        let x = self.first(x);
        let name = self.push("Resize", &[&x.name, "", &scales.name], &attributes);
        let larger = |dim: Option<usize>| dim.map(|side| side * factor);
        let dims = vec![x.dims[0], larger(x.dims[1]), larger(x.dims[2]), x.dims[3]];
        Value { name, dims, layout: x.layout }
    }

    /// An image (n, h, w, c) whose rows and columns are sums of those of x, weighted by matrices
    /// (rows, h) and (columns, w).
    pub fn resampled(&mut self, x: &Value, [rows, columns]: [&Value; 2]) -> Value {
        let x = self.first(x);
        let across = self.transposed(columns, &[1, 0]);
        let y = self.push("MatMul", &[&x.name, &across.name], &[]);
        let name = self.push("MatMul", &[&rows.name, &y], &[]);
        let dims = vec![x.dims[0], rows.dims[0], columns.dims[0], x.dims[3]];
        Value { name, dims, layout: Layout::First }
    }

    fn spatial(
        &mut self,
        op: &str,
        [x, weight, bias]: [Option<&Value>; 3],
        attributes: &[Attribute],
        dims: Vec<Option<usize>>,
    ) -> Value {
        let x = x.map(|x| self.first(x));
        let operands = [x.as_ref(), weight, bias];
        let names: Vec<&str> =
            operands.into_iter().flatten().map(|value| value.name.as_str()).collect();
        let name = self.push(op, &names, attributes);
        Value { name, dims, layout: Layout::First }
    }
}
