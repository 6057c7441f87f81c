//! Convolution layers, channels last.

use candle_core::{Result, Tensor};

use super::{Builder, ForwardContext, Init, Param};
use crate::onnx::{Graph, Sliding, Value};
use crate::ops::{self, ConvOptions, SlidingWindow, Weight, Window};

/// Sizes of a convolution with a square kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// Input channels.
    pub inputs: usize,
    /// Output channels.
    pub outputs: usize,
    /// Rows and columns of the kernel.
    pub kernel: usize,
    /// Stride and padding.
    pub window: Window,
    /// Groups of channels that do not see each other; as many as channels for a depthwise
    /// convolution.
    pub groups: usize,
}

impl ConvShape {
    /// Shape of the weight: (out, in / groups, kernel, kernel).
    pub fn weight(&self) -> [usize; 4] {
        [self.outputs, self.group_inputs(), self.kernel, self.kernel]
    }

    /// Shape of the weight of a [`Conv1d`]: (out, in / groups, kernel).
    fn weight_1d(&self) -> [usize; 3] {
        [self.outputs, self.group_inputs(), self.kernel]
    }

    fn group_inputs(&self) -> usize {
        self.inputs / self.groups.max(1)
    }
}

/// Sizes of a convolution whose rows and columns differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RectangularConv {
    /// Input channels.
    pub inputs: usize,
    /// Output channels.
    pub outputs: usize,
    /// Rows and columns of the kernel.
    pub kernel: [usize; 2],
    /// Stride, padding and dilation.
    pub window: SlidingWindow,
    /// Groups of channels that do not see each other.
    pub groups: usize,
}

impl RectangularConv {
    /// Shape of the weight: (out, in / groups, rows, columns).
    pub fn weight(&self) -> [usize; 4] {
        let [rows, columns] = self.kernel;
        [self.outputs, self.inputs / self.groups.max(1), rows, columns]
    }
}

impl From<ConvShape> for RectangularConv {
    fn from(shape: ConvShape) -> Self {
        let ConvShape { inputs, outputs, kernel, window, groups } = shape;
        Self { inputs, outputs, kernel: [kernel; 2], window: window.into(), groups }
    }
}

/// `torch.nn.Conv2d` over NHWC activations: `weight` (out, in / groups, k, k), and `bias` (out) or
/// none.
pub struct Conv2d {
    weight: Param,
    bias: Option<Param>,
    window: SlidingWindow,
    groups: usize,
}

impl Conv2d {
    /// Registers `weight` and `bias`, both with PyTorch's default initialisation.
    pub fn new(builder: &Builder, shape: ConvShape) -> Result<Self> {
        let init = Init::torch_default(shape.weight()[1..].iter().product());
        Self::with_init(builder, shape, init)
    }

    /// Registers `weight` with these initial values, and `bias` with PyTorch's.
    pub fn with_init(builder: &Builder, shape: ConvShape, init: Init) -> Result<Self> {
        let default = Init::torch_default(shape.weight()[1..].iter().product());
        Self::with_inits(builder, shape, init, default)
    }

    /// Registers `weight` and `bias` with these initial values.
    pub fn with_inits(
        builder: &Builder,
        shape: ConvShape,
        weight: Init,
        bias: Init,
    ) -> Result<Self> {
        Self::rectangular(builder, shape.into(), weight, Some(bias))
    }

    /// Registers `weight` only.
    pub fn without_bias(builder: &Builder, shape: ConvShape, init: Init) -> Result<Self> {
        Self::rectangular(builder, shape.into(), init, None)
    }

    /// Registers `weight`, and `bias` if it has initial values.
    pub fn rectangular(
        builder: &Builder,
        shape: RectangularConv,
        weight: Init,
        bias: Option<Init>,
    ) -> Result<Self> {
        let weight = builder.param("weight", &shape.weight(), weight)?;
        let bias = bias.map(|init| builder.param("bias", &[shape.outputs], init)).transpose()?;
        Ok(Self { weight, bias, window: shape.window, groups: shape.groups })
    }

    /// x (n, h, w, in) -> (n, oh, ow, out).
    pub fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        self.apply(ops::conv2d, x, pass)
    }

    /// [`Conv2d::forward`], but under bf16 on the CPU the result is a bf16 tensor: for operations
    /// that take one ([`ops::widen`] makes it f32).
    pub fn autocast(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        self.apply(ops::autocast_conv2d, x, pass)
    }

    fn apply(&self, op: Convolution, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let bias = self.bias.as_ref().map(Param::weight).transpose()?;
        let options = options(self.window, self.groups, pass);
        op(x, &self.weight.weight()?, bias.as_ref(), options)
    }

    /// The weight and the options, if there is no bias: for operations that a convolution is part
    /// of.
    pub(super) fn parts(&self, pass: &ForwardContext) -> Result<Option<(Weight, ConvOptions)>> {
        match self.bias {
            Some(_) => Ok(None),
            None => Ok(Some((self.weight.weight()?, options(self.window, self.groups, pass)))),
        }
    }

    /// Adds [`Conv2d::forward`] to a graph of ONNX, with `behind` more rows and columns of zeros below and
    /// on the right.
    pub fn onnx(&self, graph: &mut Graph, x: &Value, behind: [usize; 2]) -> Result<Value> {
        let SlidingWindow { stride, padding, dilation } = self.window;
        let kernel = &self.weight.shape()[2..];
        let sliding = Sliding::new(kernel, &stride, &padding, &dilation).behind(&behind);
        let weight = self.weight.onnx(graph)?;
        let bias = onnx_bias(self.bias.as_ref(), graph)?;
        Ok(graph.conv(x, &weight, bias.as_ref(), &sliding, self.groups))
    }
}

/// An operation that computes a [`Conv2d`].
type Convolution = fn(&Tensor, &Weight, Option<&Weight>, ConvOptions) -> Result<Tensor>;

fn onnx_bias(bias: Option<&Param>, graph: &mut Graph) -> Result<Option<Value>> {
    bias.map(|bias| bias.onnx(graph)).transpose()
}

/// `torch.nn.Conv1d` over NLC activations: `weight` (out, in / groups, k), and `bias` (out) or
/// none.
pub struct Conv1d {
    weight: Param,
    bias: Option<Param>,
    window: SlidingWindow,
    groups: usize,
}

impl Conv1d {
    /// Sets the number of steps from one tap of the kernel to the next.
    #[must_use]
    pub fn dilated(self, dilation: usize) -> Self {
        let window = SlidingWindow { dilation: [1, dilation], ..self.window };
        Self { window, ..self }
    }

    /// Registers `weight` and `bias`, both with PyTorch's default initialisation.
    pub fn new(builder: &Builder, shape: ConvShape) -> Result<Self> {
        let layer = Self::without_bias(builder, shape)?;
        let bias = builder.param("bias", &[shape.outputs], Self::init(shape))?;
        Ok(Self { bias: Some(bias), ..layer })
    }

    /// Registers `weight` only.
    pub fn without_bias(builder: &Builder, shape: ConvShape) -> Result<Self> {
        let weight = builder.param("weight", &shape.weight_1d(), Self::init(shape))?;
        Ok(Self { weight, bias: None, window: shape.window.into(), groups: shape.groups })
    }

    fn init(shape: ConvShape) -> Init {
        Init::torch_default(shape.weight_1d()[1..].iter().product())
    }

    /// x (n, l, in) -> (n, ol, out).
    pub fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let bias = self.bias.as_ref().map(Param::weight).transpose()?;
        let options = options(self.window, self.groups, pass);
        ops::conv1d(x, &self.weight.weight()?, bias.as_ref(), options)
    }

    /// Adds [`Conv1d::forward`] to a graph of ONNX, with `behind` more zeros at the end.
    pub fn onnx(&self, graph: &mut Graph, x: &Value, behind: usize) -> Result<Value> {
        let SlidingWindow { stride, padding, dilation } = self.window;
        let [stride, padding, dilation] = [stride, padding, dilation].map(|sides| [sides[1]]);
        let kernel = &self.weight.shape()[2..];
        let sliding = Sliding::new(kernel, &stride, &padding, &dilation).behind(&[behind]);
        let weight = self.weight.onnx(graph)?;
        let bias = onnx_bias(self.bias.as_ref(), graph)?;
        Ok(graph.conv(x, &weight, bias.as_ref(), &sliding, self.groups))
    }
}

/// `torch.nn.ConvTranspose1d` over NLC activations, without groups: `weight` (in, out, k), `bias`
/// (out).
pub struct ConvTranspose1d {
    weight: Param,
    bias: Param,
    window: Window,
}

impl ConvTranspose1d {
    /// Registers `weight` and `bias`, both with PyTorch's default initialisation.
    pub fn new(builder: &Builder, shape: ConvShape) -> Result<Self> {
        let ConvShape { inputs, outputs, kernel, window, .. } = shape;
        // PyTorch counts the inputs of the convolution that this is the transpose of.
        let init = Init::torch_default(outputs * kernel);
        Ok(Self {
            weight: builder.param("weight", &[inputs, outputs, kernel], init)?,
            bias: builder.param("bias", &[outputs], init)?,
            window,
        })
    }

    /// x (n, l, in) -> (n, (l - 1) stride - 2 padding + k, out).
    pub fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let options = options(self.window.into(), 1, pass);
        ops::conv_transpose1d(x, &self.weight.weight()?, &self.bias.weight()?, options)
    }

    /// Adds [`ConvTranspose1d::forward`] to a graph of ONNX.
    pub fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let Window { stride, padding } = self.window;
        let kernel = &self.weight.shape()[2..];
        let sliding = Sliding::new(kernel, &[stride], &[padding], &[1]);
        let weight = self.weight.onnx(graph)?;
        let bias = self.bias.onnx(graph)?;
        Ok(graph.conv_transpose(x, [&weight, &bias], &sliding, 1, &[0]))
    }
}

/// `torch.nn.ConvTranspose2d` over NHWC activations: `weight` (in, out / groups, rows, columns),
/// `bias` (out).
pub struct ConvTranspose2d {
    weight: Param,
    bias: Param,
    window: SlidingWindow,
    groups: usize,
    behind: [usize; 2],
}

impl ConvTranspose2d {
    /// Registers `weight` and `bias`, both with PyTorch's default initialisation; `behind` is
    /// PyTorch's `output_padding`.
    pub fn new(builder: &Builder, shape: RectangularConv, behind: [usize; 2]) -> Result<Self> {
        let RectangularConv { inputs, outputs, kernel: [rows, columns], window, groups } = shape;
        let per_group = outputs / groups.max(1);
        let init = Init::torch_default(per_group * rows * columns);
        Ok(Self {
            weight: builder.param("weight", &[inputs, per_group, rows, columns], init)?,
            bias: builder.param("bias", &[outputs], init)?,
            window,
            groups,
            behind,
        })
    }

    /// x (n, h, w, in) -> (n, oh, ow, out).
    pub fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let options = options(self.window, self.groups, pass);
        let weight = self.weight.weight()?;
        let bias = self.bias.weight()?;
        ops::conv_transpose2d(x, &weight, &bias, self.behind, options)
    }

    /// Adds [`ConvTranspose2d::forward`] to a graph of ONNX.
    pub fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let SlidingWindow { stride, padding, dilation } = self.window;
        let kernel = &self.weight.shape()[2..];
        let sliding = Sliding::new(kernel, &stride, &padding, &dilation);
        let weight = self.weight.onnx(graph)?;
        let bias = self.bias.onnx(graph)?;
        let operands = [&weight, &bias];
        Ok(graph.conv_transpose(x, operands, &sliding, self.groups, &self.behind))
    }
}

fn options(window: SlidingWindow, groups: usize, pass: &ForwardContext) -> ConvOptions {
    let ForwardContext { precision, convolutions, .. } = *pass;
    ConvOptions { window, groups, precision, convolutions }
}
