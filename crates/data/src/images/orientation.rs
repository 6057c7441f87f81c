//! The orientation of a photo in its EXIF data, which cameras write instead of turning pixels.

use std::fs::File;
use std::io::{Cursor, Read};
use std::path::Path;

use image::metadata;
use image::{ImageDecoder, ImageFormat, ImageReader};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::images::jpeg;
use crate::images::png::without_profile;
use crate::read::caught;
use crate::transform::{Area, Decoded, Pixels};

/// What is done about the orientation that a photo names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Exif {
    /// Pixels stay as they are stored.
    #[default]
    Ignore,
    /// They are turned as a viewer shows them.
    Apply,
}

impl Exif {
    /// True for the default, which is not written down.
    pub fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

/// Positions of the pixels of an upright image in the stored one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Orientation {
    /// True if its rows are columns of the file.
    swaps: bool,
    /// Rows of the file are counted from the last one.
    from_bottom: bool,
    /// Columns of the file are counted from the last one.
    from_right: bool,
}

/// Bytes of a JPEG in which EXIF is looked for; it stands first.
const HEAD: u64 = 64 << 10;

impl Orientation {
    /// The orientation in a JPEG, or in the beginning of one.
    pub(super) fn of_jpeg(bytes: &[u8]) -> Self {
        let chunk = jpeg::exif(bytes);
        chunk.and_then(metadata::Orientation::from_exif_chunk).map_or_else(Self::default, Self::of)
    }

    /// The orientation that the decoder of another format finds.
    pub(super) fn of_decoder(decoder: &mut impl ImageDecoder) -> Self {
        decoder.orientation().map_or_else(|_| Self::default(), Self::of)
    }

    fn of(orientation: metadata::Orientation) -> Self {
        let value = orientation.to_exif();
        Self {
            swaps: value > 4,
            from_bottom: matches!(value, 3 | 4 | 6 | 7),
            from_right: matches!(value, 2 | 3 | 7 | 8),
        }
    }

    fn is_upright(self) -> bool {
        self == Self::default()
    }

    /// (height, width) of the upright image, of one stored in such a size; and the other way round.
    pub(super) fn turned(self, (height, width): (usize, usize)) -> (usize, usize) {
        if self.swaps { (width, height) } else { (height, width) }
    }

    /// The part of the file, in which the image has `size`, that holds the `area` of the upright
    /// image.
    pub(super) fn stored(self, area: Area, size: (usize, usize)) -> Area {
        let Area { top, left, height, width } = if self.swaps { swapped(area) } else { area };
        let top = if self.from_bottom { size.0 - top - height } else { top };
        let left = if self.from_right { size.1 - left - width } else { left };
        Area { top, left, height, width }
    }

    /// The image turned upright.
    pub(super) fn apply(self, decoded: Decoded) -> Decoded {
        if self.is_upright() {
            return decoded;
        }
        let Decoded { pixels, top, left, size } = decoded;
        let (height, width) = pixels.size();
        let top = if self.from_bottom { size.0 - top - height } else { top };
        let left = if self.from_right { size.1 - left - width } else { left };
        let area = Area { top, left, height, width };
        let Area { top, left, .. } = if self.swaps { swapped(area) } else { area };
        Decoded { pixels: self.turn(&pixels), top, left, size: self.turned(size) }
    }

    fn turn(self, stored: &Pixels) -> Pixels {
        let (height, width) = self.turned(stored.size());
        let last_row = stored.height - 1;
        let last_column = stored.width - 1;
        let mut data = Vec::with_capacity(stored.data.len());
        for row in 0..height {
            for column in 0..width {
                let (y, x) = if self.swaps { (column, row) } else { (row, column) };
                let y = if self.from_bottom { last_row - y } else { y };
                let x = if self.from_right { last_column - x } else { x };
                data.extend_from_slice(stored.row(y, x, 1));
            }
        }
        Pixels { channels: stored.channels, height, width, dtype: stored.dtype, data }
    }
}

fn swapped(Area { top, left, height, width }: Area) -> Area {
    Area { top: left, left: top, height: width, width: height }
}

/// True if the image at `path` names an orientation other than upright that Pillow leaves to its
/// caller; for a TIFF, Pillow applies it.
pub(crate) fn is_turned(path: &Path) -> bool {
    let orientation = || {
        let mut head = Vec::new();
        File::open(path).ok()?.take(HEAD).read_to_end(&mut head).ok()?;
        match image::guess_format(&head).ok()? {
            ImageFormat::Jpeg => Some(Orientation::of_jpeg(&head)),
            ImageFormat::Png => {
                let bytes = std::fs::read(path).ok()?;
                let needed = without_profile(&bytes);
                let reader = ImageReader::with_format(Cursor::new(&*needed), ImageFormat::Png);
                let decoder = || reader.into_decoder().map_err(|error| error.to_string());
                Some(Orientation::of_decoder(&mut caught(decoder).ok()?))
            }
            ImageFormat::WebP => {
                let reader = ImageReader::open(path).ok()?.with_guessed_format().ok()?;
                let decoder = || reader.into_decoder().map_err(|error| error.to_string());
                Some(Orientation::of_decoder(&mut caught(decoder).ok()?))
            }
            _ => None,
        }
    };
    orientation().is_some_and(|orientation| !orientation.is_upright())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orientations() -> impl Iterator<Item = Orientation> {
        (1..=8).map(|value| Orientation::of(metadata::Orientation::from_exif(value).unwrap()))
    }

    #[test]
    fn a_turned_part_is_the_part_of_the_turned_image() {
        let stored = crate::transform::golden::picture(3, 7, 11);
        for orientation in orientations() {
            let whole = orientation.apply(Decoded::whole(stored.clone()));
            assert_eq!(whole.size, orientation.turned((7, 11)));
            let area = Area { top: 1, left: 2, height: 4, width: 3 };
            let needed = orientation.stored(area, (7, 11));
            let row = |row| stored.row(needed.top + row, needed.left, needed.width);
            let data = (0..needed.height).flat_map(row).copied().collect();
            let part = Decoded {
                pixels: Pixels::new(3, [needed.height, needed.width], data),
                top: needed.top,
                left: needed.left,
                size: (7, 11),
            };
            let part = orientation.apply(part);
            assert_eq!(
                (part.top, part.left, part.pixels.size()),
                (1, 2, (4, 3)),
                "{orientation:?}"
            );
            let expected = (1..5).flat_map(|row| whole.pixels.row(row, 2, 3)).copied();
            assert!(expected.eq(part.pixels.data.iter().copied()), "{orientation:?}");
        }
    }

    /// `ImageOps.exif_transpose` of the pixels 1 2 3 / 4 5 6, for each value of the tag.
    #[test]
    fn pixels_lie_as_pillow_turns_them() {
        let expected: [(usize, [u8; 6]); 8] = [
            (3, [1, 2, 3, 4, 5, 6]),
            (3, [3, 2, 1, 6, 5, 4]),
            (3, [6, 5, 4, 3, 2, 1]),
            (3, [4, 5, 6, 1, 2, 3]),
            (2, [1, 4, 2, 5, 3, 6]),
            (2, [4, 1, 5, 2, 6, 3]),
            (2, [6, 3, 5, 2, 4, 1]),
            (2, [3, 6, 2, 5, 1, 4]),
        ];
        let stored = Pixels::new(1, [2, 3], vec![1, 2, 3, 4, 5, 6]);
        for (orientation, (width, data)) in orientations().zip(expected) {
            let upright = orientation.turn(&stored);
            assert_eq!((upright.width, &upright.data[..]), (width, &data[..]), "{orientation:?}");
        }
    }
}
