//! Windows that slide over images and sequences.

use crate::config::values::Shape2;
use crate::model::layers::padding::Padding;
use crate::onnx::Sliding;
use crate::ops::{MAX_PIXELS, Slides};
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
        let Self { kernel, stride, padding } = self;
        let room = (side + 2 * padding).checked_sub(kernel).ok_or_else(|| {
            let what =
                format!("{kernel} is larger than {} with padding {padding}", input.in_words());
            Unfit { key: "kernel_size", what, help: None }
        })?;
        Ok(room / stride + 1)
    }

    /// A sequence after a pooling, whose windows see more than padding.
    pub(super) fn pooled_along(self, input: Flow) -> Result<Flow, Unfit> {
        let [steps, features] = input.sequence()?;
        self.sees_values()?;
        Ok(Flow::Sequence([self.along(steps, input)?, features]))
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
        Ok(Self { kernel, slides: Slides { stride, padding, dilation } })
    }

    /// An image after the window slid over it, of which each place has seen a value.
    pub(super) fn over(self, input: Flow) -> Result<Flow, Unfit> {
        let [channels, height, width] = input.image()?;
        holds(self.kernel[0].saturating_mul(self.kernel[1]))?;
        let (height, width) = (self.along(0, height, input)?, self.along(1, width, input)?);
        Ok(Flow::Image([channels, height, width]))
    }

    /// A sequence after that.
    pub(super) fn over_steps(self, input: Flow) -> Result<Flow, Unfit> {
        let [steps, features] = input.sequence()?;
        holds(self.kernel[1])?;
        Ok(Flow::Sequence([self.along(1, steps, input)?, features]))
    }

    /// The same over steps, which are an image of one row.
    pub(super) fn in_a_row(self) -> Self {
        let Slides { stride, padding, dilation } = self.slides;
        let slides =
            Slides { stride: [1, stride[1]], padding: [0, padding[1]], dilation: [1, dilation[1]] };
        Self { kernel: [1, self.kernel[1]], slides }
    }

    /// The same in a graph of ONNX.
    pub(super) fn onnx(self) -> Sliding {
        let Slides { stride, padding, dilation } = self.slides;
        Sliding::new(&self.kernel, &stride, &padding, &dilation)
    }

    fn along(self, axis: usize, side: usize, input: Flow) -> Result<usize, Unfit> {
        let Slides { stride, padding, dilation } = self.slides;
        let (kernel, dilation) = (self.kernel[axis], dilation[axis]);
        let (stride, padding) = (stride[axis], padding[axis]);
        let unfit = |key, what| Err(Unfit { key, what, help: None });
        if 2 * padding > kernel {
            return unfit("padding", format!("must be at most half of kernel_size = {kernel}"));
        }
        let slide = Slide { kernel: kernel.saturating_sub(1) * dilation + 1, stride, padding };
        let places = slide.along(side, input)?;
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
        [self.kernel, stride, padding].into_iter().all(are_alike) && dilation == [1, 1]
    }

    /// " 3, stride 2, pad 1", " 3x2, stride 3x2"
    pub(super) fn in_words(self) -> String {
        let Slides { stride, padding, dilation } = self.slides;
        let unless = |usual: usize, name: &str, sides: [usize; 2]| {
            let is_usual = sides == [usual; 2];
            if is_usual { String::new() } else { format!(", {name} {}", shown(sides)) }
        };
        let (stride, padding) = (unless(1, "stride", stride), unless(0, "pad", padding));
        format!(" {}{stride}{padding}{}", shown(self.kernel), unless(1, "dilation", dilation))
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
