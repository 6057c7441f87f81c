//! Images of 8-bit pixels, and parts of them.

/// An image of 8-bit values in the order (height, width, channels).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pixels {
    /// 1 (grey) or 3 (RGB).
    pub channels: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// `height * width * channels` values.
    pub data: Vec<u8>,
}

/// A rectangle of pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// First row.
    pub top: usize,
    /// First column.
    pub left: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

/// An image, or as much of it as was decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decoded {
    /// What was decoded.
    pub(crate) pixels: Pixels,
    /// Row of the image in which it begins.
    pub(crate) top: usize,
    /// Column of the image in which it begins.
    pub(crate) left: usize,
    /// (height, width) of the image.
    pub(crate) size: (usize, usize),
}

impl Decoded {
    /// Whether the pixels of `area` are among those that were decoded.
    pub(crate) fn holds(&self, area: Area) -> bool {
        let (bottom, right) = (self.top + self.pixels.height, self.left + self.pixels.width);
        let rows = self.top <= area.top && area.top + area.height <= bottom;
        rows && self.left <= area.left && area.left + area.width <= right
    }
}

impl Area {
    /// All of an image of (height, width).
    pub fn whole((height, width): (usize, usize)) -> Self {
        Self { top: 0, left: 0, height, width }
    }

    /// The same pixels, in a part of the image that begins at (`top`, `left`).
    pub(super) fn seen_from(self, top: usize, left: usize) -> Self {
        Self { top: self.top - top, left: self.left - left, ..self }
    }
}

impl Decoded {
    /// All of an image.
    pub(crate) fn whole(pixels: Pixels) -> Self {
        Self { top: 0, left: 0, size: pixels.size(), pixels }
    }
}

impl Pixels {
    /// (height, width).
    pub fn size(&self) -> (usize, usize) {
        (self.height, self.width)
    }

    /// Black pixels.
    pub fn black(channels: usize, height: usize, width: usize) -> Self {
        Self { channels, height, width, data: vec![0; channels * height * width] }
    }

    /// Values of the pixels from `left` on, `width` of them, in a row.
    pub(in crate::data) fn row(&self, row: usize, left: usize, width: usize) -> &[u8] {
        let start = (row * self.width + left) * self.channels;
        &self.data[start..start + width * self.channels]
    }
}
