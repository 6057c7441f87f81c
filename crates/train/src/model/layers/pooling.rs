//! `name = "max_pool2d"`, `"avg_pool2d"`, `"max_pool1d"`, `"avg_pool1d"`, `"adaptive_avg_pool2d"`,
//! `"global_avg_pool"`

use candle_core::{Device, Error, Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::config::values::Shape2;
use crate::model::layers::attention::{own_steps, without_padding};
use crate::model::layers::window::{Padding, Slide, both, shown};
use crate::model::layers::{
    Flow, Forward, InferredLayer, Layer, LayerMisfit, Node, Scope, Site, Sizes, Unfit,
};
use crate::model::padded_frames::{mean_within, mean_within_onnx};
use crate::nn::ForwardContext;
use crate::onnx::{Graph, Sliding, Value};
use crate::ops::{self, MAX_PIXELS, Means, ResampleWeights, Rounding, SlidingWindow};

fn one() -> u32 {
    1
}

fn once() -> Shape2 {
    Shape2::Side(1)
}

fn yes() -> bool {
    true
}

/// largest value of each window of an image, `torch.nn.MaxPool2d`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MaxPool2d {
    /// rows and columns of the window: one number, or `[rows, columns]`.
    #[schemars(example = 3)]
    pub kernel_size: Shape2,
    /// places from window to window, down and to the right. Default: `kernel_size`.
    #[serde(default)]
    #[schemars(example = 2)]
    pub stride: Option<Shape2>,
    /// pixels on each side, above and left, which are never the maximum; at most half of
    /// `kernel_size`.
    #[serde(default)]
    #[schemars(example = 1)]
    pub padding: Padding,
    /// places from one pixel of the window to the next, down and to the right.
    #[serde(default = "once")]
    pub dilation: Shape2,
    /// one more window where the stride leaves a rest, which hangs over the edge, as PyTorch's.
    /// GPUs leave it to the CPU.
    #[serde(default)]
    #[schemars(example = true)]
    pub ceil_mode: bool,
}

impl MaxPool2d {
    fn pooling(&self) -> Result<Pooling, Unfit> {
        let pooling = Pooling::new(self.kernel_size, self.stride, self.padding, self.dilation)?;
        Ok(pooling.ceil_mode(self.ceil_mode))
    }
}

impl Kind for MaxPool2d {
    const NAME: &'static str = "max_pool2d";
}

impl Layer for MaxPool2d {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        Ok(self.pooling()?.image_output(input)?.into())
    }

    fn details(&self, _: &Sizes) -> String {
        self.pooling().map_or(String::new(), Pooling::in_words)
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let pooling = self.pooling().map_err(|unfit| Error::Msg(unfit.what))?;
        if !pooling.is_square() {
            site.builder().computes_on_cpu();
        }
        Ok(Node::of(MaxOverImage(pooling)))
    }
}

struct MaxOverImage(Pooling);

impl Forward for MaxOverImage {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        let Pooling { kernel, slides, rounding } = self.0;
        ops::max_pool2d_over(x, kernel, slides, rounding)
    }

    fn takes_half(&self) -> bool {
        true
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        self.0.max_pool_onnx(graph, x)
    }
}

/// mean of each window of an image, `torch.nn.AvgPool2d`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AvgPool2d {
    /// rows and columns of the window: one number, or `[rows, columns]`.
    #[schemars(example = 3)]
    pub kernel_size: Shape2,
    /// places from window to window, down and to the right. Default: `kernel_size`.
    #[serde(default)]
    #[schemars(example = 2)]
    pub stride: Option<Shape2>,
    /// zeros on each side, above and left; at most half of `kernel_size`.
    #[serde(default)]
    #[schemars(example = 1)]
    pub padding: Padding,
    /// one more window where the stride leaves a rest, which hangs over the edge, as PyTorch's.
    #[serde(default)]
    #[schemars(example = true)]
    pub ceil_mode: bool,
    /// padding counts as zeros in the mean; else only what is there counts.
    #[serde(default = "yes")]
    #[schemars(example = false)]
    pub count_include_pad: bool,
}

impl AvgPool2d {
    fn pooling(&self) -> Result<Pooling, Unfit> {
        let pooling = Pooling::new(self.kernel_size, self.stride, self.padding, once())?;
        Ok(pooling.ceil_mode(self.ceil_mode))
    }
}

impl Kind for AvgPool2d {
    const NAME: &'static str = "avg_pool2d";
}

impl Layer for AvgPool2d {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        Ok(self.pooling()?.image_output(input)?.into())
    }

    fn details(&self, _: &Sizes) -> String {
        self.pooling().map_or(String::new(), Pooling::in_words)
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let pooling = self.pooling().map_err(|unfit| Error::Msg(unfit.what))?;
        let pool = MeanOverImage { pooling, count_include_pad: self.count_include_pad };
        if !pooling.is_square() && !pool.averages_by_axis() {
            site.builder().computes_on_cpu();
        }
        Ok(Node::of(pool))
    }
}

struct MeanOverImage {
    pooling: Pooling,
    count_include_pad: bool,
}

impl MeanOverImage {
    /// True if windows average unequal numbers of pixels, so that rows and columns are averaged one
    /// after the other.
    fn averages_by_axis(&self) -> bool {
        self.pooling.rounding == Rounding::Up || !self.count_include_pad
    }
}

impl Forward for MeanOverImage {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        let pooling = self.pooling;
        if !self.averages_by_axis() {
            return ops::average_pool2d_over(x, pooling.kernel, pooling.slides);
        }
        let lines = |axis: usize| {
            ResampleWeights::means(x.dim(1 + axis)?, pooling.means(axis, self.count_include_pad))
        };
        ops::resample(x, lines(0)?, lines(1)?)
    }

    fn takes_half(&self) -> bool {
        true
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        let over = self.pooling.over_the_edge(x)?;
        Ok(graph.average_pool(x, &self.pooling.onnx(), &over, self.count_include_pad))
    }
}

/// largest value of each window of a sequence, `torch.nn.MaxPool1d`. It always runs on the CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MaxPool1d {
    /// kernel size.
    #[schemars(range(min = 1, max = 16_777_216), example = 3)]
    pub kernel_size: u32,
    /// stride. Default: `kernel_size`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 16_777_216), example = 2)]
    pub stride: Option<u32>,
    /// padding on each side, which is never the maximum; at most half of `kernel_size`.
    #[serde(default)]
    #[schemars(range(max = 16_777_216), example = 1)]
    pub padding: u32,
    /// steps from one value of the window to the next.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 16_777_216), example = 2)]
    pub dilation: u32,
    /// one more window where the stride leaves a rest, which hangs over the edge, as PyTorch's.
    #[serde(default)]
    #[schemars(example = true)]
    pub ceil_mode: bool,
}

impl MaxPool1d {
    fn pooling(&self) -> Result<Pooling, Unfit> {
        let side = Shape2::Side;
        let padding = Padding::Zeros(side(self.padding));
        let stride = self.stride.map(side);
        let pooling = Pooling::new(side(self.kernel_size), stride, padding, side(self.dilation))?;
        Ok(pooling.ceil_mode(self.ceil_mode))
    }
}

impl Kind for MaxPool1d {
    const NAME: &'static str = "max_pool1d";
}

impl Layer for MaxPool1d {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        input.sequence()?;
        check_window_size(self.kernel_size as usize)?;
        Ok(self.pooling()?.sequence_output(input)?.into())
    }

    fn details(&self, _: &Sizes) -> String {
        self.pooling().map_or(String::new(), Pooling::in_words)
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        site.builder().computes_on_cpu();
        let pooling = self.pooling().map_err(|unfit| Error::Msg(unfit.what))?;
        Ok(Node::of(MaxOverSteps(pooling.in_a_row())))
    }
}

struct MaxOverSteps(Pooling);

impl Forward for MaxOverSteps {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        let Pooling { kernel, slides, rounding } = self.0;
        ops::max_pool2d_over(&x.unsqueeze(1)?, kernel, slides, rounding)?.squeeze(1)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        // A sequence is an image of one row.
        let row = graph.unsqueezed(x, &[1]);
        let row = self.0.max_pool_onnx(graph, &row)?;
        Ok(graph.squeezed(&row, &[1]))
    }
}

/// mean of each window of a sequence, `torch.nn.AvgPool1d`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AvgPool1d {
    /// kernel size.
    #[schemars(range(min = 1, max = 16_777_216), example = 3)]
    pub kernel_size: u32,
    /// stride. Default: `kernel_size`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 16_777_216), example = 2)]
    pub stride: Option<u32>,
    /// zeros on each side, at most half of `kernel_size`.
    #[serde(default)]
    #[schemars(range(max = 16_777_216), example = 1)]
    pub padding: u32,
    /// one more window where the stride leaves a rest, which hangs over the edge, as PyTorch's.
    #[serde(default)]
    #[schemars(example = true)]
    pub ceil_mode: bool,
    /// padding counts as zeros in the mean; else only what is there counts.
    #[serde(default = "yes")]
    #[schemars(example = false)]
    pub count_include_pad: bool,
}

impl AvgPool1d {
    fn pooling(&self) -> Result<Pooling, Unfit> {
        let side = Shape2::Side;
        let padding = Padding::Zeros(side(self.padding));
        let pooling = Pooling::new(side(self.kernel_size), self.stride.map(side), padding, once())?;
        Ok(pooling.ceil_mode(self.ceil_mode))
    }
}

impl Kind for AvgPool1d {
    const NAME: &'static str = "avg_pool1d";
}

impl Layer for AvgPool1d {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        Ok(self.pooling()?.sequence_output(input)?.into())
    }

    fn details(&self, _: &Sizes) -> String {
        self.pooling().map_or(String::new(), Pooling::in_words)
    }

    fn build(&self, _: &Site<'_>) -> CandleResult<Node> {
        let pooling = self.pooling().map_err(|unfit| Error::Msg(unfit.what))?;
        Ok(Node::of(MeanOverSteps(pooling.means(1, self.count_include_pad))))
    }
}

struct MeanOverSteps(Means);

impl Forward for MeanOverSteps {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        let steps = ResampleWeights::means(x.dim(1)?, self.0)?;
        ops::resample(&x.unsqueeze(2)?, steps, ResampleWeights::nearest(1, 1)?)?.squeeze(2)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        let Means { kernel, stride, padding, count_include_pad, .. } = self.0;
        let sliding = Sliding::new(&[kernel], &[stride], &[padding], &[1]);
        let over = over_the_edge(x, 1, self.0)?;
        Ok(graph.average_pool(x, &sliding, &[over], count_include_pad))
    }
}

/// means over parts of an image, as many as `output_size` says: `torch.nn.AdaptiveAvgPool2d`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdaptiveAvgPool2d {
    /// rows and columns of the output.
    #[schemars(inner(range(min = 1, max = 65_536)), example = [7, 7])]
    pub output_size: [u32; 2],
}

impl Kind for AdaptiveAvgPool2d {
    const NAME: &'static str = "adaptive_avg_pool2d";
}

impl Layer for AdaptiveAvgPool2d {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        let ([channels, ..], [rows, columns]) = (input.image()?, self.output_size);
        Ok(Flow::Image([channels, rows as usize, columns as usize]).into())
    }

    fn build(&self, _: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(self.clone()))
    }
}

impl Forward for AdaptiveAvgPool2d {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        let ((_, height, width, _), [rows, columns]) = (x.dims4()?, self.output_size);
        let rows = ResampleWeights::adaptive(height, rows as usize)?;
        ops::resample(x, rows, ResampleWeights::adaptive(width, columns as usize)?)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        let sides = [x.dims()[1], x.dims()[2]].map(Option::unwrap_or_default);
        let lines = |axis: usize| -> CandleResult<Tensor> {
            ResampleWeights::adaptive(sides[axis], self.output_size[axis] as usize)?
                .dense(&Device::Cpu)
        };
        let [rows, columns] = [lines(0)?, lines(1)?];
        let mut matrix = |lines: &Tensor| -> CandleResult<Value> {
            Ok(graph.floats(lines.dims(), &lines.flatten_all()?.to_vec1::<f32>()?))
        };
        let rows = matrix(&rows)?;
        let columns = matrix(&columns)?;
        Ok(graph.resampled(x, [&rows, &columns]))
    }
}

/// mean of each channel of an image, or of each feature over the steps of a sequence, without the
/// padding of recordings: a vector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GlobalAvgPool {}

impl Kind for GlobalAvgPool {
    const NAME: &'static str = "global_avg_pool";
}

impl Layer for GlobalAvgPool {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        match input {
            Flow::Image([features, ..])
            | Flow::Sequence([_, features])
            | Flow::Padded([_, features, _]) => Ok(Flow::Vector(features).into()),
            _ => Err(input.is_no("an image or a sequence").into()),
        }
    }

    fn details(&self, sizes: &Sizes) -> String {
        without_padding(sizes).to_owned()
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(Mean { padded: site.sizes().input.padded() }))
    }
}

struct Mean {
    /// Frames from one step to the next, if some are padding.
    padded: Option<usize>,
}

impl Forward for Mean {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> CandleResult<Tensor> {
        if let Some(lengths) = own_steps(x, self.padded, pass)? {
            return mean_within(x, &lengths);
        }
        match x.rank() {
            3 => ops::global_average_pool(&x.unsqueeze(2)?),
            _ => ops::global_average_pool(x),
        }
    }

    fn takes_half(&self) -> bool {
        self.padded.is_none()
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        Ok(match self.padded.and_then(|stride| graph.lengths(stride)) {
            Some(lengths) => mean_within_onnx(graph, x, &lengths),
            None => graph.global_average_pool(x),
        })
    }
}

/// The window of a pooling over an image, or over a sequence (the second axis alone).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pooling {
    /// Rows and columns.
    kernel: [usize; 2],
    slides: SlidingWindow,
    rounding: Rounding,
}

/// Elements by which the last window along an axis of x hangs over its padding.
fn over_the_edge(x: &Value, axis: usize, windows: Means) -> CandleResult<usize> {
    let Means { kernel, stride, padding, rounding, .. } = windows;
    if rounding == Rounding::Down {
        return Ok(0);
    }
    let unknown = || Error::Msg("`ceil_mode` needs inputs of one length".to_owned());
    let size = x.dims()[axis].ok_or_else(unknown)?;
    let n_windows = rounding.windows(size, kernel, stride, padding)?;
    Ok(((n_windows - 1) * stride + kernel).saturating_sub(size + 2 * padding))
}

impl Pooling {
    /// Reads the options; the default stride is the kernel size.
    fn new(
        kernel: Shape2,
        stride: Option<Shape2>,
        padding: Padding,
        dilation: Shape2,
    ) -> Result<Self, Unfit> {
        let Padding::Zeros(padding) = padding else {
            let what = "is a number of pixels where values are pooled".to_owned();
            return Err(Unfit { key: "padding", what, help: None });
        };
        let [kernel, stride, padding, dilation] =
            [kernel, stride.unwrap_or(kernel), padding, dilation].map(both);
        let slides = SlidingWindow { stride, padding, dilation };
        Ok(Self { kernel, slides, rounding: Rounding::Down })
    }

    /// With `ceil_mode`, adds one more window where the stride leaves a rest.
    fn ceil_mode(self, ceil_mode: bool) -> Self {
        Self { rounding: if ceil_mode { Rounding::Up } else { Rounding::Down }, ..self }
    }

    /// The windows along an axis, as an average pooling takes them.
    fn means(self, axis: usize, count_include_pad: bool) -> Means {
        let SlidingWindow { stride, padding, .. } = self.slides;
        let kernel = self.kernel[axis];
        let stride = stride[axis];
        let padding = padding[axis];
        Means { kernel, stride, padding, rounding: self.rounding, count_include_pad }
    }

    /// Shape of an image after pooling; an error if a window would see only padding.
    fn image_output(self, input: Flow) -> Result<Flow, Unfit> {
        let [channels, height, width] = input.image()?;
        check_window_size(self.kernel[0].saturating_mul(self.kernel[1]))?;
        let height = self.along(0, height, input)?;
        let width = self.along(1, width, input)?;
        Ok(Flow::Image([channels, height, width]))
    }

    /// Shape of a sequence after pooling; an error if a window would see only padding.
    fn sequence_output(self, input: Flow) -> Result<Flow, Unfit> {
        let [steps, features] = input.sequence()?;
        Ok(input.slid(self.along(1, steps, input)?, features, self.slides.stride[1]))
    }

    /// The same window over a sequence as an image of one row.
    fn in_a_row(self) -> Self {
        let SlidingWindow { stride, padding, dilation } = self.slides;
        let slides = SlidingWindow {
            stride: [1, stride[1]],
            padding: [0, padding[1]],
            dilation: [1, dilation[1]],
        };
        Self { kernel: [1, self.kernel[1]], slides, ..self }
    }

    fn onnx(self) -> Sliding {
        let SlidingWindow { stride, padding, dilation } = self.slides;
        Sliding::new(&self.kernel, &stride, &padding, &dilation)
    }

    /// Max pooling of x (n, h, w, c) in a graph of ONNX.
    fn max_pool_onnx(self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        // Runtimes refuse padding that is wider than the window, as a dilated one may need it.
        let low = |graph: &mut Graph, x: &Value, axis: usize, n: usize| {
            graph.padded_by(f64::NEG_INFINITY, x, 1 + axis, [0, n])
        };
        let [rows, columns] = self.over_the_edge(x)?;
        let x = low(graph, x, 0, rows);
        let x = low(graph, &x, 1, columns);
        Ok(graph.max_pool(&x, &self.onnx()))
    }

    /// Rows and columns by which the last windows hang over the padding of x (n, h, w, c).
    fn over_the_edge(self, x: &Value) -> CandleResult<[usize; 2]> {
        let along = |axis: usize| {
            let reach = (self.kernel[axis] - 1) * self.slides.dilation[axis] + 1;
            let windows = self.means(axis, true);
            over_the_edge(x, 1 + axis, Means { kernel: reach, ..windows })
        };
        Ok([along(0)?, along(1)?])
    }

    fn along(self, axis: usize, side: usize, input: Flow) -> Result<usize, Unfit> {
        let SlidingWindow { stride, padding, dilation } = self.slides;
        let kernel = self.kernel[axis];
        let dilation = dilation[axis];
        let stride = stride[axis];
        let padding = padding[axis];
        let unfit = |key, what| Err(Unfit { key, what, help: None });
        if 2 * padding > kernel {
            return unfit("padding", format!("must be at most half of kernel_size = {kernel}"));
        }
        let slide = Slide { kernel: kernel.saturating_sub(1) * dilation + 1, stride, padding };
        let n_windows = slide.along(side, input, self.rounding)?;
        let sees = |window: usize, tap: usize| {
            (window * stride + tap * dilation).checked_sub(padding).is_some_and(|at| at < side)
        };
        if (0..n_windows).any(|window| !(0..kernel).any(|tap| sees(window, tap))) {
            let what = format!("leaves windows over {} that see only padding", input.in_words());
            return unfit("dilation", what);
        }
        Ok(n_windows)
    }

    /// True if GPUs have kernels for it.
    fn is_square(self) -> bool {
        let SlidingWindow { stride, padding, dilation } = self.slides;
        let are_alike = |sides: [usize; 2]| sides[0] == sides[1];
        let are_square = [self.kernel, stride, padding].into_iter().all(are_alike);
        are_square && dilation == [1, 1] && self.rounding == Rounding::Down
    }

    /// " 3, stride 2, pad 1", " 3x2, stride 3x2"
    fn in_words(self) -> String {
        let SlidingWindow { stride, padding, dilation } = self.slides;
        let unless = |usual: usize, name: &str, sides: [usize; 2]| {
            let is_usual = sides == [usual; 2];
            if is_usual { String::new() } else { format!(", {name} {}", shown(sides)) }
        };
        let stride = unless(1, "stride", stride);
        let padding = unless(0, "pad", padding);
        let ceil = if self.rounding == Rounding::Up { ", ceil" } else { "" };
        let dilation = unless(1, "dilation", dilation);
        format!(" {}{stride}{padding}{dilation}{ceil}", shown(self.kernel))
    }
}

/// Checks that max pooling can number the elements of a window.
fn check_window_size(n: usize) -> Result<(), Unfit> {
    if n <= MAX_PIXELS {
        return Ok(());
    }
    let what = format!("is a window of {n} places, more than {MAX_PIXELS}");
    Err(Unfit { key: "kernel_size", what, help: None })
}
