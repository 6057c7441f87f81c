//! What pictures are drawn with: colours, text and lengths at a scale, on any backend.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// The family that is registered for measuring and for bitmaps; viewers of SVG pick their own.
pub(crate) const FONT: &str = "sans-serif";

pub(crate) const INK: RGBColor = RGBColor(17, 21, 28);
pub(crate) const FAINT_INK: RGBColor = RGBColor(58, 64, 75);
pub(crate) const GRID: RGBColor = RGBColor(228, 231, 236);
pub(crate) const FRAME: RGBColor = RGBColor(160, 168, 180);

/// An area of a picture.
pub(crate) type Area<DB> = DrawingArea<DB, Shift>;
/// Nothing, or what the backend could not draw.
pub(crate) type Drawn<DB> = Result<(), DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>>;

/// Style and anchor of text.
#[derive(Clone, Copy)]
pub(crate) struct Lettering {
    pub(crate) size: f64,
    pub(crate) color: RGBColor,
    pub(crate) horizontal: HPos,
    pub(crate) vertical: VPos,
}

impl Lettering {
    /// Text centered at its position.
    pub(crate) fn centered(size: f64, color: RGBColor) -> Self {
        Self { size, color, horizontal: HPos::Center, vertical: VPos::Center }
    }

    /// Text that begins at its position.
    pub(crate) fn from(size: f64, color: RGBColor) -> Self {
        Self { horizontal: HPos::Left, ..Self::centered(size, color) }
    }

    /// Text that ends at its position.
    pub(crate) fn up_to(size: f64, color: RGBColor) -> Self {
        Self { horizontal: HPos::Right, ..Self::centered(size, color) }
    }

    /// Text below its position.
    pub(crate) fn below(size: f64, color: RGBColor) -> Self {
        Self { vertical: VPos::Top, ..Self::centered(size, color) }
    }

    fn on(self, canvas: Canvas) -> TextStyle<'static> {
        canvas.text(self.size, self.color).pos(Pos::new(self.horizontal, self.vertical))
    }
}

/// Draws text at a position in logical pixels.
pub(crate) fn write_words<DB: DrawingBackend>(
    area: &Area<DB>,
    canvas: Canvas,
    words: &str,
    (x, y): (f64, f64),
    style: Lettering,
) -> Drawn<DB> {
    let style = style.on(canvas);
    area.draw(&Text::new(words.to_owned(), (canvas.px(x), canvas.px(y + canvas.lift)), style))
}

/// Draws text that reads upwards and ends at its position.
pub(crate) fn write_upwards<DB: DrawingBackend>(
    area: &Area<DB>,
    canvas: Canvas,
    words: &str,
    (x, y): (f64, f64),
    style: Lettering,
) -> Drawn<DB> {
    let style = style.on(canvas).transform(FontTransform::Rotate270);
    area.draw(&Text::new(words.to_owned(), (canvas.px(x + canvas.lift), canvas.px(y)), style))
}

/// Scale of a drawing backend.
#[derive(Clone, Copy)]
pub(crate) struct Canvas {
    /// Pixels per logical pixel.
    pub(crate) scale: f64,
    /// Logical pixels by which the backend places text too high.
    pub(crate) lift: f64,
}

impl Canvas {
    /// Pixels of the backend.
    pub(crate) fn px(self, logical: f64) -> i32 {
        (logical * self.scale).round() as i32
    }

    /// A line `width` logical pixels wide.
    pub(crate) fn line(self, color: RGBColor, width: f64) -> ShapeStyle {
        color.stroke_width(self.px(width).max(1) as u32)
    }

    /// Text of `size` logical pixels.
    pub(crate) fn text(self, size: f64, color: RGBColor) -> TextStyle<'static> {
        (FONT, size * self.scale).into_font().color(&color)
    }
}
