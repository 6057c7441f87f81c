//! Windows that slide over images and sequences.

use candle_core::{Error, Result as CandleResult};

use crate::config::values::Shape2;
use crate::model::layers::padding::Padding;
use crate::onnx::{Graph, Sliding, Value};
use crate::ops::{MAX_PIXELS, Means, Rounding, Slides};
use crate::plan::{Flow, Unfit};

/// A square window over an image, or one along a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slide {
    /// Rows and columns.
    pub(super) kernel: usize,
    /// Places from window to window.
    pub(super) stride: usize,
    /// Places added on each side.
    pub(super) padding: usize,
}

impl Slide {
    pub(super) fn new(kernel: u32, stride: u32, padding: u32) -> Self {
        let [kernel, stride, padding] = [kernel, stride, padding].map(|n| n as usize);
        Self { kernel, stride, padding }
    }

    /// A side of `input` after the window slid over it.
    pub(super) fn along(self, side: usize, input: Flow) -> Result<usize, Unfit> {
        self.rounded(side, input, Rounding::Down)
    }

    fn rounded(self, side: usize, input: Flow, rounding: Rounding) -> Result<usize, Unfit> {
        let Self { kernel, stride, padding } = self;
        rounding.windows(side, kernel, stride, padding).map_err(|_| {
            let what =
                format!("{kernel} is larger than {} with padding {padding}", input.in_words());
            Unfit { key: "kernel_size", what, help: None }
        })
    }

    /// A sequence after a pooling, whose windows see more than padding.
    pub(super) fn pooled_along(self, input: Flow, rounding: Rounding) -> Result<Flow, Unfit> {
        let [steps, features] = input.sequence()?;
        self.sees_values()?;
        Ok(input.slid(self.rounded(steps, input, rounding)?, features, self.stride))
    }

    fn sees_values(self) -> Result<(), Unfit> {
        if 2 * self.padding > self.kernel {
            let what = format!("must be at most half of kernel_size = {}", self.kernel);
            return Err(Unfit { key: "padding", what, help: None });
        }
        Ok(())
    }

    /// " 3, stride 2, pad 1"
    pub(super) fn in_words(self) -> String {
        let Self { kernel, stride, padding } = self;
        let mut words = format!(" {kernel}");
        if stride > 1 {
            words += &format!(", stride {stride}");
        }
        if padding > 0 {
            words += &format!(", pad {padding}");
        }
        words
    }
}

/// A window over an image that makes one value of those that it sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pooling {
    /// Rows and columns.
    pub(super) kernel: [usize; 2],
    pub(super) slides: Slides,
    pub(super) rounding: Rounding,
}

/// Places along an axis of x by which the last of the windows hangs over its padding.
pub(super) fn over_the_edge(x: &Value, axis: usize, windows: Means) -> CandleResult<usize> {
    let Means { kernel, stride, padding, rounding, .. } = windows;
    if rounding == Rounding::Down {
        return Ok(0);
    }
    let unknown = || Error::Msg("`ceil_mode` needs inputs of one length".to_owned());
    let size = x.dims()[axis].ok_or_else(unknown)?;
    let n_windows = rounding.windows(size, kernel, stride, padding)?;
    Ok(((n_windows - 1) * stride + kernel).saturating_sub(size + 2 * padding))
}

/// `ceil_mode`
pub(super) fn rounding(ceil_mode: bool) -> Rounding {
    if ceil_mode { Rounding::Up } else { Rounding::Down }
}

impl Pooling {
    /// By its options; the stride is the kernel's size unless it is given.
    pub(super) fn new(
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
        let slides = Slides { stride, padding, dilation };
        Ok(Self { kernel, slides, rounding: Rounding::Down })
    }

    /// The same with one more window where the stride leaves a rest, if `ceil_mode`.
    pub(super) fn ceil_mode(self, ceil_mode: bool) -> Self {
        Self { rounding: rounding(ceil_mode), ..self }
    }

    /// The windows along an axis, whose means are taken.
    pub(super) fn means(self, axis: usize, count_include_pad: bool) -> Means {
        let Slides { stride, padding, .. } = self.slides;
        let kernel = self.kernel[axis];
        let stride = stride[axis];
        let padding = padding[axis];
        Means { kernel, stride, padding, rounding: self.rounding, count_include_pad }
    }

    /// An image after the window slid over it, of which each place has seen a value.
    pub(super) fn over(self, input: Flow) -> Result<Flow, Unfit> {
        let [channels, height, width] = input.image()?;
        holds(self.kernel[0].saturating_mul(self.kernel[1]))?;
        let height = self.along(0, height, input)?;
        let width = self.along(1, width, input)?;
        Ok(Flow::Image([channels, height, width]))
    }

    /// A sequence after that.
    pub(super) fn over_steps(self, input: Flow) -> Result<Flow, Unfit> {
        let [steps, features] = input.sequence()?;
        holds(self.kernel[1])?;
        Ok(input.slid(self.along(1, steps, input)?, features, self.slides.stride[1]))
    }

    /// The same over steps, which are an image of one row.
    pub(super) fn in_a_row(self) -> Self {
        let Slides { stride, padding, dilation } = self.slides;
        let slides =
            Slides { stride: [1, stride[1]], padding: [0, padding[1]], dilation: [1, dilation[1]] };
        Self { kernel: [1, self.kernel[1]], slides, ..self }
    }

    /// The same in a graph of ONNX.
    pub(super) fn onnx(self) -> Sliding {
        let Slides { stride, padding, dilation } = self.slides;
        Sliding::new(&self.kernel, &stride, &padding, &dilation)
    }

    /// The largest value of each window of x (n, h, w, c).
    pub(super) fn max_pool_onnx(self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        // Runtimes refuse padding that is wider than the window, as a dilated one may need it.
        let low = |graph: &mut Graph, x: &Value, axis: usize, places: usize| {
            graph.padded_by(f64::NEG_INFINITY, x, 1 + axis, [0, places])
        };
        let [rows, columns] = self.over_the_edge(x)?;
        let x = low(graph, x, 0, rows);
        let x = low(graph, &x, 1, columns);
        Ok(graph.max_pool(&x, &self.onnx()))
    }

    /// Rows and columns of x (n, h, w, c) by which the last windows hang over its padding.
    pub(super) fn over_the_edge(self, x: &Value) -> CandleResult<[usize; 2]> {
        let along = |axis: usize| {
            let reach = (self.kernel[axis] - 1) * self.slides.dilation[axis] + 1;
            let windows = self.means(axis, true);
            over_the_edge(x, 1 + axis, Means { kernel: reach, ..windows })
        };
        Ok([along(0)?, along(1)?])
    }

    fn along(self, axis: usize, side: usize, input: Flow) -> Result<usize, Unfit> {
        let Slides { stride, padding, dilation } = self.slides;
        let kernel = self.kernel[axis];
        let dilation = dilation[axis];
        let stride = stride[axis];
        let padding = padding[axis];
        let unfit = |key, what| Err(Unfit { key, what, help: None });
        if 2 * padding > kernel {
            return unfit("padding", format!("must be at most half of kernel_size = {kernel}"));
        }
        let slide = Slide { kernel: kernel.saturating_sub(1) * dilation + 1, stride, padding };
        let places = slide.rounded(side, input, self.rounding)?;
        let sees = |place: usize, tap: usize| {
            (place * stride + tap * dilation).checked_sub(padding).is_some_and(|at| at < side)
        };
        if (0..places).any(|place| !(0..kernel).any(|tap| sees(place, tap))) {
            let what = format!("leaves windows over {} that see only padding", input.in_words());
            return unfit("dilation", what);
        }
        Ok(places)
    }

    /// Whether there are kernels of GPUs for it.
    pub(super) fn is_square(self) -> bool {
        let Slides { stride, padding, dilation } = self.slides;
        let are_alike = |sides: [usize; 2]| sides[0] == sides[1];
        let are_square = [self.kernel, stride, padding].into_iter().all(are_alike);
        are_square && dilation == [1, 1] && self.rounding == Rounding::Down
    }

    /// " 3, stride 2, pad 1", " 3x2, stride 3x2"
    pub(super) fn in_words(self) -> String {
        let Slides { stride, padding, dilation } = self.slides;
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

/// Whether the places of a window can be told apart.
fn holds(places: usize) -> Result<(), Unfit> {
    if places <= MAX_PIXELS {
        return Ok(());
    }
    let what = format!("is a window of {places} places, more than {MAX_PIXELS}");
    Err(Unfit { key: "kernel_size", what, help: None })
}

/// Both numbers of an option.
pub(super) fn both(sides: Shape2) -> [usize; 2] {
    let (rows, columns) = sides.sides();
    [rows as usize, columns as usize]
}

/// "3", "3x5"
pub(super) fn shown([rows, columns]: [usize; 2]) -> String {
    if rows == columns { rows.to_string() } else { format!("{rows}x{columns}") }
}

/// What groups of channels do not see of each other must be equal parts.
pub(super) fn divided(groups: u32, inputs: usize, outputs: u32) -> Result<(), Unfit> {
    let divides = |n: usize| n.is_multiple_of(groups as usize);
    if divides(inputs) && divides(outputs as usize) {
        return Ok(());
    }
    let what = format!("{groups} do not divide {inputs} channels into {outputs}");
    Err(Unfit { key: "groups", what, help: None })
}
