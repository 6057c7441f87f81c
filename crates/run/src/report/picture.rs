//! Pictures that can be drawn at any scale, as PNG and SVG files.

use std::path::Path;

use image::codecs::png::{CompressionType, FilterType::Adaptive, PngEncoder};
use image::{DynamicImage, ExtendedColorType, ImageEncoder, RgbImage};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::Error;
use super::canvas::{Area, Canvas, Drawn, FONT, INK};
use crate::files;

const BITMAP_SCALE: u32 = 2;
/// Pixels drawn per pixel of the bitmap and side; their mean has smooth edges.
const OVERSAMPLING: u32 = 2;
/// The bitmap backend centres text by the height of the em square, not by that of its letters.
const BITMAP_LIFT: f64 = 3.0;

/// Something to draw.
pub(crate) trait Picture {
    /// Width and height in logical pixels. The bitmap has twice as many, for screens of high
    /// density.
    fn size(&self) -> (u32, u32);

    /// Draws the picture into an area of that size.
    fn draw<DB: DrawingBackend>(&self, area: &Area<DB>, canvas: Canvas) -> Drawn<DB>;
}

/// Draws `title` at the top of `area`. Returns the area below it.
pub(super) fn titled<DB: DrawingBackend>(
    title: &str,
    area: &Area<DB>,
    canvas: Canvas,
) -> Result<Area<DB>, DrawingAreaErrorKind<DB::ErrorType>> {
    let (head, body) = area.split_vertically((46.0 * canvas.scale) as u32);
    let (width, _) = head.dim_in_pixel();
    let style = canvas.text(22.0, INK).pos(Pos::new(HPos::Center, VPos::Center));
    let middle = ((width / 2) as i32, (28.0 * canvas.scale) as i32);
    head.draw(&Text::new(title, middle, style))?;
    Ok(body)
}

/// Draws `picture` into `folder` under both names.
pub(crate) fn write(
    picture: &impl Picture,
    folder: &Path,
    [png, svg]: [&'static str; 2],
) -> Result<(), Error> {
    files::write_atomic(&folder.join(png), &draw_png(picture, png)?)?;
    files::write_atomic(&folder.join(svg), draw_svg(picture, svg)?.as_bytes())?;
    Ok(())
}

/// Registers the embedded font: a machine for training often has none.
fn register_font(what: &'static str) -> Result<(), Error> {
    let font = epaint_default_fonts::UBUNTU_LIGHT;
    plotters::style::register_font(FONT, FontStyle::Normal, font)
        .map_err(|_| Error::Draw { what, reason: "the embedded font is damaged".into() })
}

pub(crate) fn draw_png(picture: &impl Picture, what: &'static str) -> Result<Vec<u8>, Error> {
    register_font(what)?;
    let scale = BITMAP_SCALE * OVERSAMPLING;
    let size = picture.size();
    let width = size.0 * scale;
    let height = size.1 * scale;
    // White.
    let mut pixels = vec![255; (3 * width * height) as usize];
    let area = BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area();
    let canvas = Canvas { scale: f64::from(scale), lift: BITMAP_LIFT };
    picture.draw(&area, canvas).map_err(failed(what))?;
    area.present().map_err(failed(what))?;
    drop(area);
    let fine = DynamicImage::from(RgbImage::from_raw(width, height, pixels).unwrap_or_default());
    // Not generic, so that it is compiled, and optimised, with its own crate.
    let smooth = fine.thumbnail_exact(width / OVERSAMPLING, height / OVERSAMPLING).into_rgb8();
    let mut bytes = Vec::new();
    let encoder = PngEncoder::new_with_quality(&mut bytes, CompressionType::Best, Adaptive);
    encoder
        .write_image(&smooth, smooth.width(), smooth.height(), ExtendedColorType::Rgb8)
        .map_err(failed(what))?;
    Ok(bytes)
}

/// The picture as text.
pub(crate) fn draw_svg(picture: &impl Picture, what: &'static str) -> Result<String, Error> {
    register_font(what)?;
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, picture.size()).into_drawing_area();
    area.fill(&WHITE).map_err(failed(what))?;
    picture.draw(&area, Canvas { scale: 1.0, lift: 0.0 }).map_err(failed(what))?;
    area.present().map_err(failed(what))?;
    drop(area);
    Ok(text)
}

fn failed<E: std::error::Error + Send + Sync + 'static>(
    what: &'static str,
) -> impl FnOnce(E) -> Error {
    move |reason| Error::Draw { what, reason: Box::new(reason) }
}
