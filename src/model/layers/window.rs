//! Windows that slide over images and sequences.

use crate::ops::Window;
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

    /// The same for an operation, which knows the kernel.
    pub(super) fn window(self) -> Window {
        Window { stride: self.stride, padding: self.padding }
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

    /// An image after the window slid over it, with as many channels as before.
    pub(super) fn over(self, input: Flow) -> Result<[usize; 3], Unfit> {
        let [channels, height, width] = input.image()?;
        Ok([channels, self.along(height, input)?, self.along(width, input)?])
    }

    /// [`Slide::over`] of a pooling, whose windows see more than padding.
    pub(super) fn pooled(self, input: Flow) -> Result<Flow, Unfit> {
        input.image()?;
        self.sees_values()?;
        self.over(input).map(Flow::Image)
    }

    /// [`Slide::pooled`] along a sequence.
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

/// What groups of channels do not see of each other must be equal parts.
pub(super) fn divided(groups: u32, inputs: usize, outputs: u32) -> Result<(), Unfit> {
    let divides = |n: usize| n.is_multiple_of(groups as usize);
    if divides(inputs) && divides(outputs as usize) {
        return Ok(());
    }
    let what = format!("{groups} do not divide {inputs} channels into {outputs}");
    Err(Unfit { key: "groups", what, help: None })
}
