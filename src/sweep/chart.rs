//! Frames to draw in: places on two scales -> pixels, with ticks, a grid and words. Draws on any
//! backend at any scale.

use plotters::prelude::*;

use crate::record::text::short;
use crate::report::axis::Axis;
use crate::report::panel::{Canvas, FAINT_INK, FRAME, GRID, INK, Lettering, write_words};
use crate::report::picture::{Area, Drawn};

pub(crate) const BLUE: RGBColor = RGBColor(43, 108, 176);
pub(crate) const ORANGE: RGBColor = RGBColor(221, 97, 32);
pub(crate) const GREY: RGBColor = RGBColor(176, 184, 196);

/// One axis: what it spans, its ticks and their words.
#[derive(Clone, Debug)]
pub(crate) struct Scale {
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) ticks: Vec<(f64, String)>,
}

impl Scale {
    /// All of `values` with some room.
    pub(crate) fn of(values: impl Iterator<Item = f64>, write: impl Fn(f64) -> String) -> Self {
        let axis = Axis::of_values(values.filter(|value| value.is_finite()), f64::INFINITY);
        let ticks = axis.ticks.iter().map(|tick| (*tick, write(*tick))).collect();
        Self { low: axis.range.start, high: axis.range.end, ticks }
    }

    /// Logarithms to the base of e from `low` to `high`, a tick at each power of ten.
    pub(crate) fn of_logarithms(low: f64, high: f64) -> Self {
        let margin = 0.03 * (high - low).max(1e-9);
        let ten = std::f64::consts::LN_10;
        let (first, last) = ((low / ten - 1e-9).ceil() as i32, (high / ten + 1e-9).floor() as i32);
        let every = ((last - first) / 6 + 1).max(1);
        let tick = |power: i32| (f64::from(power) * ten, short(10f64.powi(power)));
        let mut ticks: Vec<_> =
            (first..=last).filter(|power| (power - first) % every == 0).map(tick).collect();
        if ticks.len() < 2 {
            // Less than a decade: its ends say more.
            ticks = vec![(low, short(low.exp())), (high, short(high.exp()))];
        }
        Self { low: low - margin, high: high + margin, ticks }
    }

    /// Words at 0, 1, 2 ...
    pub(crate) fn of_words(words: impl Iterator<Item = String>) -> Self {
        let ticks: Vec<(f64, String)> = (0..).map(f64::from).zip(words).collect();
        Self { low: -0.5, high: ticks.len() as f64 - 0.5, ticks }
    }

    /// 0 at the low end, 1 at the high end; what lies outside stands at the border.
    pub(crate) fn share(&self, place: f64) -> f64 {
        ((place - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }
}

/// A rectangle of a picture, in logical pixels, and its scales.
pub(crate) struct Frame<'a> {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) x: &'a Scale,
    pub(crate) y: &'a Scale,
}

impl Frame<'_> {
    /// Where a place is, in logical pixels.
    pub(crate) fn at(&self, x: f64, y: f64) -> (f64, f64) {
        let right = self.left + self.width * self.x.share(x);
        (right, self.top + self.height * (1.0 - self.y.share(y)))
    }

    /// Grid, ticks and the words below and above.
    pub(crate) fn draw<DB: DrawingBackend>(
        &self,
        area: &Area<DB>,
        canvas: Canvas,
        title: &str,
        below: &str,
    ) -> Drawn<DB> {
        let (right, bottom) = (self.left + self.width, self.top + self.height);
        for (place, words) in &self.y.ticks {
            let (_, y) = self.at(self.x.low, *place);
            line(area, canvas, [(self.left, y), (right, y)], canvas.line(GRID, 1.0))?;
            let style = Lettering::up_to(14.0, FAINT_INK);
            write_words(area, canvas, words, (self.left - 8.0, y), style)?;
        }
        for (place, words) in &self.x.ticks {
            let (x, _) = self.at(*place, self.y.low);
            line(area, canvas, [(x, bottom), (x, bottom + 4.0)], canvas.line(FRAME, 1.0))?;
            let style = Lettering::below(14.0, FAINT_INK);
            write_words(area, canvas, words, (x, bottom + 8.0), style)?;
        }
        line(area, canvas, [(self.left, bottom), (right, bottom)], canvas.line(FRAME, 1.0))?;
        line(area, canvas, [(self.left, self.top), (self.left, bottom)], canvas.line(FRAME, 1.0))?;
        let above = (self.left, self.top - 14.0);
        write_words(area, canvas, title, above, Lettering::from(16.0, INK))?;
        let under = (self.left + self.width / 2.0, bottom + 30.0);
        write_words(area, canvas, below, under, Lettering::below(15.0, INK))
    }
}

/// A line through `points`.
pub(crate) fn line<DB: DrawingBackend>(
    area: &Area<DB>,
    canvas: Canvas,
    points: impl IntoIterator<Item = (f64, f64)>,
    style: ShapeStyle,
) -> Drawn<DB> {
    let points: Vec<(i32, i32)> =
        points.into_iter().map(|(x, y)| (canvas.px(x), canvas.px(y))).collect();
    area.draw(&PathElement::new(points, style))
}

/// A filled circle.
pub(crate) fn dot<DB: DrawingBackend>(
    area: &Area<DB>,
    canvas: Canvas,
    (x, y): (f64, f64),
    color: RGBColor,
    radius: f64,
) -> Drawn<DB> {
    area.draw(&Circle::new((canvas.px(x), canvas.px(y)), canvas.px(radius), color.filled()))
}

/// Small words that end at a place, on paper: the lines that pass there go on behind them.
pub(crate) fn tag<DB: DrawingBackend>(
    area: &Area<DB>,
    canvas: Canvas,
    words: &str,
    (x, y): (f64, f64),
) -> Drawn<DB> {
    let style = Lettering::up_to(13.0, FAINT_INK);
    let (width, _) = area.estimate_text_size(words, &canvas.text(style.size, style.color))?;
    let room = canvas.px(3.0);
    let (right, middle, half) = (canvas.px(x), canvas.px(y), canvas.px(0.6 * style.size));
    let corners = [(right - width as i32 - room, middle - half), (right + room, middle + half)];
    area.draw(&Rectangle::new(corners, WHITE.filled()))?;
    write_words(area, canvas, words, (x, y), style)
}

/// What the colours mean, in a row that begins at a place.
pub(crate) fn legend<DB: DrawingBackend>(
    area: &Area<DB>,
    canvas: Canvas,
    (mut x, y): (f64, f64),
    entries: &[(String, RGBColor)],
) -> Drawn<DB> {
    for (label, color) in entries {
        dot(area, canvas, (x, y), *color, 5.0)?;
        write_words(area, canvas, label, (x + 12.0, y), Lettering::from(15.0, INK))?;
        x += 36.0 + 8.0 * label.len() as f64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_have_a_tick_at_each_power_of_ten() {
        let scale = Scale::of_logarithms(1e-5f64.ln(), 1f64.ln());
        let words: Vec<&str> = scale.ticks.iter().map(|(_, words)| words.as_str()).collect();
        assert_eq!(words, ["1e-5", "0.0001", "0.001", "0.01", "0.1", "1"]);
        let narrow = Scale::of_logarithms(2f64.ln(), 5f64.ln());
        assert_eq!(narrow.ticks.len(), 2);
        assert!((narrow.share(3f64.ln()) - 0.443).abs() < 0.03);
    }

    #[test]
    fn what_lies_outside_stands_at_the_border() {
        let scale = Scale::of_words(["a", "b"].into_iter().map(str::to_owned));
        assert_eq!((scale.share(-9.0), scale.share(0.5), scale.share(9.0)), (0.0, 0.5, 1.0));
    }
}
