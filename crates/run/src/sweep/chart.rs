//! Charts: two scales with ticks, a grid and labels, marks and legends. Draws on any backend at any
//! scale.

use std::f64::consts::LN_10;

use plotters::prelude::*;

use crate::record::text::shortened;
use crate::report::axis::Axis;
use crate::report::canvas::{
    Area, Canvas, Drawn, FAINT_INK, FRAME, GRID, INK, Lettering, write_words,
};

pub(crate) const BLUE: RGBColor = RGBColor(43, 108, 176);
pub(crate) const ORANGE: RGBColor = RGBColor(221, 97, 32);
pub(crate) const GREY: RGBColor = RGBColor(176, 184, 196);

/// Most words on an axis; more would run into each other.
const MAX_WORDS: usize = 20;
/// Most characters of a word; more would reach the axis before, or the edge.
const MAX_CHARACTERS: usize = 15;

/// Range, ticks and labels of an axis.
#[derive(Clone, Debug)]
pub(crate) struct Scale {
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) ticks: Vec<(f64, String)>,
}

impl Scale {
    /// All of `values` with some room.
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Self {
        let finite = values.filter(|value| value.is_finite());
        Self::along(&Axis::of_values(finite, f64::INFINITY))
    }

    /// All of `shares` with some room, in percent.
    pub(crate) fn of_shares(shares: impl Iterator<Item = f64>) -> Self {
        let finite = shares.filter(|share| share.is_finite());
        let percent = Self::along(&Axis::of_values(finite.map(|share| 100.0 * share), 100.0));
        let ticks = percent.ticks.into_iter();
        let ticks = ticks.map(|(place, words)| (place / 100.0, words + " %")).collect();
        Self { low: percent.low / 100.0, high: percent.high / 100.0, ticks }
    }

    /// Whole numbers from `low` to `high`.
    pub(crate) fn of_whole(low: f64, high: f64) -> Self {
        Self::along(&Axis::of_whole(low, high))
    }

    /// Logarithms to the base of e from `low` to `high`, with ticks at powers of ten, or between
    /// them where these are few.
    pub(crate) fn of_logarithms(low: f64, high: f64) -> Self {
        let margin = 0.03 * (high - low).max(1e-9);
        let mut ticks = decades(low, high, &[1.0]);
        if ticks.len() < 2 {
            ticks = decades(low, high, &[1.0, 2.0, 5.0]);
        }
        if ticks.len() < 2 {
            // So narrow that its ends say more.
            ticks = vec![low, high];
        }
        let every = (ticks.len() - 1) / 6 + 1;
        let ticks = ticks.into_iter().step_by(every).map(|at| (at, brief(at.exp()))).collect();
        Self { low: low - margin, high: high + margin, ticks }
    }

    /// Words at 0, 1, 2 ..., as many as there is room for.
    pub(crate) fn of_words(words: impl Iterator<Item = String>) -> Self {
        let words: Vec<(f64, String)> = (0..).map(f64::from).zip(words).collect();
        let high = words.len() as f64 - 0.5;
        let every = words.len().div_ceil(MAX_WORDS).max(1);
        let fitting = words.into_iter().step_by(every);
        let ticks =
            fitting.map(|(place, word)| (place, shortened(&word, MAX_CHARACTERS))).collect();
        Self { low: -0.5, high, ticks }
    }

    fn along(axis: &Axis) -> Self {
        let ticks = axis.ticks.iter().map(|tick| (*tick, axis.tick(*tick))).collect();
        Self { low: axis.range.start, high: axis.range.end, ticks }
    }

    /// The side on which a value lies outside of the scale.
    pub(crate) fn side_of(&self, value: f64) -> Option<Side> {
        if value > self.high {
            Some(Side::High)
        } else if value < self.low {
            Some(Side::Low)
        } else {
            None
        }
    }

    /// 0 at the low end, 1 at the high end; values outside are clamped.
    pub(crate) fn share(&self, place: f64) -> f64 {
        ((place - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }
}

/// An end of a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Low,
    High,
}

/// The logarithms from `low` to `high` of powers of ten, times each of `factors`.
fn decades(low: f64, high: f64, factors: &[f64]) -> Vec<f64> {
    let powers = (low / LN_10).floor() as i32..=(high / LN_10).ceil() as i32;
    let all = powers
        .flat_map(|power| factors.iter().map(move |factor| f64::from(power) * LN_10 + factor.ln()));
    all.filter(|at| (low - 1e-9..=high + 1e-9).contains(at)).collect()
}

/// At most two digits, and an exponent where that is shorter: `0.05`, `1e-3`, `2.5e-4`.
fn brief(value: f64) -> String {
    let rounded: f64 = format!("{value:.1e}").parse().unwrap_or(value);
    if (1e-2..1e4).contains(&rounded) { rounded.to_string() } else { format!("{rounded:e}") }
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
    /// Logical pixels of a point.
    pub(crate) fn at(&self, x: f64, y: f64) -> (f64, f64) {
        let right = self.left + self.width * self.x.share(x);
        (right, self.top + self.height * (1.0 - self.y.share(y)))
    }

    /// Draws a dot, or for a value beyond the vertical scale a mark at the border.
    pub(crate) fn dot<DB: DrawingBackend>(
        &self,
        area: &Area<DB>,
        canvas: Canvas,
        (x, y): (f64, f64),
        color: RGBColor,
        radius: f64,
    ) -> Drawn<DB> {
        match self.y.side_of(y) {
            Some(side) => beyond(area, canvas, self.at(x, y), side, color),
            None => dot(area, canvas, self.at(x, y), color, radius),
        }
    }

    /// Draws grid, ticks, title and the label of the horizontal axis.
    pub(crate) fn draw<DB: DrawingBackend>(
        &self,
        area: &Area<DB>,
        canvas: Canvas,
        title: &str,
        below: &str,
    ) -> Drawn<DB> {
        let right = self.left + self.width;
        let bottom = self.top + self.height;
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

/// Draws a triangle that points to a value beyond a vertical scale.
pub(crate) fn beyond<DB: DrawingBackend>(
    area: &Area<DB>,
    canvas: Canvas,
    (x, y): (f64, f64),
    side: Side,
    color: RGBColor,
) -> Drawn<DB> {
    let tip = if side == Side::High { y - 5.0 } else { y + 5.0 };
    let base = if side == Side::High { y + 4.0 } else { y - 4.0 };
    let corners = [(x, tip), (x + 6.0, base), (x - 6.0, base)];
    area.draw(&Polygon::new(corners.map(|(x, y)| (canvas.px(x), canvas.px(y))), color.filled()))
}

/// Style of small labels, which end at their position.
pub(crate) fn small() -> Lettering {
    Lettering::up_to(13.0, FAINT_INK)
}

/// Draws a translucent background for a small label: lines that pass behind it are faint.
pub(crate) fn veil<DB: DrawingBackend>(
    area: &Area<DB>,
    canvas: Canvas,
    words: &str,
    (x, y): (f64, f64),
) -> Drawn<DB> {
    let style = small();
    let (width, _) = area.estimate_text_size(words, &canvas.text(style.size, style.color))?;
    let room = canvas.px(2.0);
    let right = canvas.px(x);
    let middle = canvas.px(y);
    let half = canvas.px(0.5 * style.size);
    let corners = [(right - width as i32 - room, middle - half), (right + room, middle + half)];
    area.draw(&Rectangle::new(corners, WHITE.mix(0.75).filled()))
}

/// An entry of a legend.
pub(crate) struct Entry {
    label: String,
    color: RGBColor,
    mark: Mark,
}

/// Mark of a legend's entry, as in the chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Dot,
    Line,
    Beyond(Side),
}

impl Entry {
    pub(crate) fn dot(label: impl Into<String>, color: RGBColor) -> Self {
        Self { label: label.into(), color, mark: Mark::Dot }
    }

    pub(crate) fn line(label: impl Into<String>, color: RGBColor) -> Self {
        Self { label: label.into(), color, mark: Mark::Line }
    }

    /// An entry for triangles at the border.
    pub(crate) fn beyond(label: impl Into<String>, color: RGBColor, side: Side) -> Self {
        Self { label: label.into(), color, mark: Mark::Beyond(side) }
    }

    /// Draws the mark at a position. Returns its width.
    fn draw_mark<DB: DrawingBackend>(
        &self,
        area: &Area<DB>,
        canvas: Canvas,
        (x, y): (f64, f64),
    ) -> Result<f64, DrawingAreaErrorKind<DB::ErrorType>> {
        match self.mark {
            Mark::Dot => {
                dot(area, canvas, (x + 5.0, y), self.color, 5.0)?;
                Ok(10.0)
            }
            Mark::Beyond(side) => {
                beyond(area, canvas, (x + 6.0, y), side, self.color)?;
                Ok(12.0)
            }
            Mark::Line => {
                line(area, canvas, [(x, y), (x + 22.0, y)], canvas.line(self.color, 2.6))?;
                Ok(22.0)
            }
        }
    }
}

/// Draws a legend in a row from a position.
pub(crate) fn legend<DB: DrawingBackend>(
    area: &Area<DB>,
    canvas: Canvas,
    (mut x, y): (f64, f64),
    entries: &[Entry],
) -> Drawn<DB> {
    let style = Lettering::from(15.0, INK);
    for entry in entries {
        x += entry.draw_mark(area, canvas, (x, y))? + 7.0;
        write_words(area, canvas, &entry.label, (x, y), style)?;
        let text = canvas.text(style.size, style.color);
        let (width, _) = area.estimate_text_size(&entry.label, &text)?;
        x += f64::from(width) / canvas.scale + 24.0;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(scale: &Scale) -> Vec<&str> {
        scale.ticks.iter().map(|(_, words)| words.as_str()).collect()
    }

    #[test]
    fn logarithms_have_a_tick_at_each_power_of_ten_and_more_where_these_are_few() {
        let of = |low: f64, high: f64| Scale::of_logarithms(low.ln(), high.ln());
        assert_eq!(words(&of(1e-5, 1.0)), ["1e-5", "1e-4", "1e-3", "0.01", "0.1", "1"]);
        assert_eq!(words(&of(1e-9, 1.0)), ["1e-9", "1e-7", "1e-5", "1e-3", "0.1"]);
        assert_eq!(words(&of(3e-4, 3e-3)), ["5e-4", "1e-3", "2e-3"]);
        assert_eq!(words(&of(2.0, 5.0)), ["2", "5"]);
        assert_eq!(words(&of(2.123_456e-4, 4.9e-4)), ["2.1e-4", "4.9e-4"]);
        assert!((of(2.0, 5.0).share(3f64.ln()) - 0.443).abs() < 0.03);
    }

    #[test]
    fn all_numbers_of_an_axis_have_as_many_decimals_and_shares_end_at_all() {
        let narrow = Scale::of([0.7965, 0.8117].into_iter());
        assert_eq!(words(&narrow), ["0.795", "0.800", "0.805", "0.810"]);
        let shares = Scale::of_shares([0.975, 0.999, f64::NAN].into_iter());
        let expected = ["97.5 %", "98.0 %", "98.5 %", "99.0 %", "99.5 %", "100.0 %"];
        assert_eq!((words(&shares), shares.high), (expected.to_vec(), 1.0));
        assert!((shares.share(shares.ticks[0].0) - 0.063).abs() < 0.01);
        assert_eq!(words(&Scale::of_whole(1.0, 4.0)), ["1", "2", "3", "4"]);
    }

    #[test]
    fn words_are_shortened_and_only_as_many_as_fit() {
        let of = |all: &[&str]| Scale::of_words(all.iter().map(|&word| word.to_owned()));
        let paths = of(&["checkpoints/quickstart/best", "[512,512,256]"]);
        assert_eq!(words(&paths), ["checkpo…rt/best", "[512,512,256]"]);
        let many = of(&["x"; 50]);
        assert_eq!((many.ticks.len(), many.ticks[1].0, many.high), (17, 3.0, 49.5));
    }

    #[test]
    fn what_lies_outside_stands_at_the_border() {
        let scale = Scale::of_words(["a", "b"].into_iter().map(str::to_owned));
        assert_eq!((scale.share(-9.0), scale.share(0.5), scale.share(9.0)), (0.0, 0.5, 1.0));
    }
}
