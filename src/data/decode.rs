//! Bytes of an image file -> 8-bit RGB pixels, by content and not by the name's ending.
//!
//! As `PIL.Image.open(..).convert("RGB")`: grey and palette are expanded, alpha is dropped (not blended),
//! EXIF rotation is not applied, CMYK and YCCK become RGB, an animation gives its first picture, 16-bit
//! colour keeps its high byte. One wanted difference: Pillow clips 16-bit *grey* at 255, which turns almost
//! every picture white; here it keeps the high byte too.

use std::io::Cursor;

use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};

use crate::data::transform::Pixels;

/// Most pixels of an image: 64 Mpx.
const MOST_PIXELS: u64 = 64 << 20;
/// Most memory that decoding may take: 256 MiB.
const MOST_BYTES: u64 = 256 << 20;

/// Decodes an image to RGB.
///
/// # Errors
///
/// A message saying what is wrong with the bytes: empty, unknown format, truncated, corrupt or too large.
pub(crate) fn decode(bytes: &[u8]) -> Result<Pixels, String> {
    if bytes.is_empty() {
        return Err("the file is empty".to_owned());
    }
    let mut reader = ImageReader::new(Cursor::new(bytes))
        .with_guessed_format()
        .map_err(|error| error.to_string())?;
    let Some(format) = reader.format() else {
        return Err("not an image of a known format".to_owned());
    };
    if format == ImageFormat::Jpeg && !jpeg_is_complete(bytes) {
        return Err("the JPEG is truncated: its end marker is missing".to_owned());
    }
    let mut limits = Limits::default();
    limits.max_alloc = Some(MOST_BYTES);
    reader.limits(limits);
    let decoder = reader.into_decoder().map_err(|error| error.to_string())?;
    check_size(decoder.dimensions(), decoder.total_bytes())?;
    let image = DynamicImage::from_decoder(decoder).map_err(|error| error.to_string())?;
    Ok(to_rgb(image))
}

fn check_size((width, height): (u32, u32), bytes: u64) -> Result<(), String> {
    let pixels = u64::from(width) * u64::from(height);
    if pixels == 0 {
        return Err("the image has no pixels".to_owned());
    }
    if pixels > MOST_PIXELS || bytes > MOST_BYTES {
        let limits = "the limits are 64 Mpx and 256 MiB";
        return Err(format!("{width}x{height} pixels ({bytes} bytes) are too many; {limits}"));
    }
    Ok(())
}

fn to_rgb(image: DynamicImage) -> Pixels {
    let (width, height) = (image.width() as usize, image.height() as usize);
    let high = |v: u16| (v >> 8) as u8;
    // The library rounds 16-bit values; Pillow keeps the high byte.
    let data = match image {
        DynamicImage::ImageLuma16(buffer) => {
            buffer.into_raw().into_iter().flat_map(|v| [high(v); 3]).collect()
        }
        DynamicImage::ImageLumaA16(buffer) => {
            buffer.into_raw().chunks_exact(2).flat_map(|p| [high(p[0]); 3]).collect()
        }
        DynamicImage::ImageRgb16(buffer) => buffer.into_raw().into_iter().map(high).collect(),
        DynamicImage::ImageRgba16(buffer) => buffer
            .into_raw()
            .chunks_exact(4)
            .flat_map(|p| [high(p[0]), high(p[1]), high(p[2])])
            .collect(),
        other => other.into_rgb8().into_raw(),
    };
    Pixels { channels: 3, height, width, data }
}

/// Whether a JPEG reaches its end-of-image marker.
///
/// The decoder fills what is missing with grey and says nothing, so a truncated file would train as a half
/// grey picture.
fn jpeg_is_complete(bytes: &[u8]) -> bool {
    const END_OF_IMAGE: u8 = 0xD9;
    const START_OF_SCAN: u8 = 0xDA;
    let mut at = 2;
    while let Some((marker, after)) = next_marker(bytes, at) {
        match marker {
            END_OF_IMAGE => return true,
            // Stand-alone markers, and bytes of entropy-coded data that only look like one.
            0x00 | 0x01 | 0xD0..=0xD8 => at = after,
            // Entropy-coded data follows the header of a scan; the search for a marker skips it.
            START_OF_SCAN | 0x02..=0xFE => {
                let Some(length) = bytes.get(after..after + 2) else { return false };
                at = after + usize::from(u16::from_be_bytes([length[0], length[1]])).max(2);
            }
            0xFF => at = after - 1,
        }
    }
    false
}

/// The next `FF xx` at or after `at`: `xx`, and the place after it.
fn next_marker(bytes: &[u8], at: usize) -> Option<(u8, usize)> {
    let found = at + bytes.get(at..)?.iter().position(|&byte| byte == 0xFF)?;
    Some((*bytes.get(found + 1)?, found + 2))
}
