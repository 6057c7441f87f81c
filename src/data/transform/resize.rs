//! Antialiased bilinear resizing, as PIL: the support grows with the shrink factor.

use std::cell::RefCell;

use fast_image_resize::images::{CroppedImage, Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};

use crate::data::transform::{Area, Pixels, crop};

thread_local! {
    /// Keeps its buffers from image to image.
    static RESIZER: RefCell<Resizer> = RefCell::new(Resizer::new());
}

/// (height, width) with the shorter side at `size` and the aspect kept, as torchvision:
/// `int(size * long / short)`.
pub(super) fn shorter_side(height: u32, width: u32, size: u32) -> (u32, u32) {
    let long = |long: u32, short: u32| {
        (u64::from(size) * u64::from(long) / u64::from(short.max(1))) as u32
    };
    if width <= height { (long(height, width), size) } else { (size, long(width, height)) }
}

/// Resizes the whole image.
pub(super) fn resize(image: Pixels, height: u32, width: u32) -> Result<Pixels, String> {
    let area = Area::whole(&image);
    resize_area(image, area, height, width)
}

/// Resizes an area of the image; pixels outside of it play no part.
pub(super) fn resize_area(
    image: Pixels,
    area: Area,
    height: u32,
    width: u32,
) -> Result<Pixels, String> {
    if (area.height, area.width) == (height as usize, width as usize) {
        return Ok(crop::cut(image, area));
    }
    let kind = if image.channels == 1 { PixelType::U8 } else { PixelType::U8x3 };
    let failed = |error: &dyn std::fmt::Display| format!("cannot resize: {error}");
    let source = ImageRef::new(image.width as u32, image.height as u32, &image.data, kind)
        .map_err(|error| failed(&error))?;
    let [left, top, area_width, area_height] =
        [area.left, area.top, area.width, area.height].map(|n| n as u32);
    let source = CroppedImage::new(&source, left, top, area_width, area_height)
        .map_err(|error| failed(&error))?;
    let mut out = Image::new(width, height, kind);
    let options = ResizeOptions::new()
        .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
        .use_alpha(false);
    RESIZER
        .with_borrow_mut(|resizer| resizer.resize(&source, &mut out, &options))
        .map_err(|error| failed(&error))?;
    Ok(Pixels {
        channels: image.channels,
        height: height as usize,
        width: width as usize,
        data: out.into_vec(),
    })
}
