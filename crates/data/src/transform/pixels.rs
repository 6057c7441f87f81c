//! Images as pixels of 8 or 16 bits, parts of them, and the pool of their buffers.

use std::cell::RefCell;

use crate::plan::PixelDtype;

/// An image of values in the order (height, width, channels).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pixels {
    /// 1 (grey) or 3 (RGB).
    pub channels: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// Storage type of a value: a byte, or two in the machine's order. 16 bits reach only
    /// transforms that [take](crate::transform::Transform::takes_uint16) them.
    pub dtype: PixelDtype,
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
pub struct Decoded {
    pub pixels: Pixels,
    /// Row of the image in which it begins.
    pub top: usize,
    /// Column of the image in which it begins.
    pub left: usize,
    /// (height, width) of the image.
    pub size: (usize, usize),
}

impl Decoded {
    /// True if the pixels of `area` are among those that were decoded.
    pub fn holds(&self, area: Area) -> bool {
        let bottom = self.top + self.pixels.height;
        let right = self.left + self.pixels.width;
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
    pub fn whole(pixels: Pixels) -> Self {
        Self { top: 0, left: 0, size: pixels.size(), pixels }
    }
}

impl Pixels {
    /// (height, width).
    pub fn size(&self) -> (usize, usize) {
        (self.height, self.width)
    }

    /// An image of 8-bit values.
    pub fn new(channels: usize, [height, width]: [usize; 2], data: Vec<u8>) -> Self {
        Self { channels, height, width, dtype: PixelDtype::Uint8, data }
    }

    /// An image of 16-bit values.
    pub fn of_uint16(channels: usize, [height, width]: [usize; 2], values: &[u16]) -> Self {
        let data = bytemuck::cast_slice(values).to_vec();
        Self { channels, height, width, dtype: PixelDtype::Uint16, data }
    }

    /// Black pixels of the same kind.
    #[must_use]
    pub fn black(&self, height: usize, width: usize) -> Self {
        let data = vec![0; height * width * self.stride()];
        Self { channels: self.channels, height, width, dtype: self.dtype, data }
    }

    /// Bytes from pixel to pixel.
    pub fn stride(&self) -> usize {
        self.channels * self.dtype.bytes()
    }

    /// The values of an image of 16 bits.
    pub fn uint16(&self) -> Vec<u16> {
        self.data.as_chunks().0.iter().map(|&bytes| u16::from_ne_bytes(bytes)).collect()
    }

    /// Values of the pixels from `left` on, `width` of them, in a row.
    pub(crate) fn row(&self, row: usize, left: usize, width: usize) -> &[u8] {
        let start = (row * self.width + left) * self.stride();
        &self.data[start..start + width * self.stride()]
    }
}

/// Most buffers that a loader thread keeps for its next images: the decoded image, the resized one,
/// and one more.
const MAX_BUFFERS: usize = 3;

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of `length` bytes with arbitrary contents.
pub(crate) fn take_buffer(length: usize) -> Vec<u8> {
    let mut buffer = SPARE.with_borrow_mut(|spare| {
        // The smallest that is long enough, else the longest: what grows has to be cleared.
        let best = (0..spare.len()).min_by_key(|&i| {
            let have = spare[i].len();
            if have >= length { (0, have) } else { (1, usize::MAX - have) }
        });
        best.map(|i| spare.swap_remove(i)).unwrap_or_default()
    });
    buffer.resize(length, 0);
    buffer
}

/// Keeps a buffer for [`take_buffer`].
pub(crate) fn give_buffer(buffer: Vec<u8>) {
    SPARE.with_borrow_mut(|spare| {
        if spare.len() < MAX_BUFFERS {
            spare.push(buffer);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_buffer_that_is_long_enough_is_used_again() {
        let large = vec![1; 100];
        let (small_at, large_at) = {
            let small = vec![2; 10];
            let places = (small.as_ptr(), large.as_ptr());
            give_buffer(small);
            give_buffer(large);
            places
        };
        let (found, other) = (take_buffer(8), take_buffer(90));
        assert_eq!((found.as_ptr(), found.len()), (small_at, 8));
        assert_eq!((other.as_ptr(), other.len()), (large_at, 90));
        assert_eq!(take_buffer(5), [0; 5]);
    }
}
