//! One picture of several runs: a panel per metric with a line per run.

use std::path::Path;

use plotters::prelude::*;

use super::Error;
use super::canvas::{Area, Canvas, Drawn};
use super::curves::thinned;
use super::panel::{Panel, Series};
use super::picture::{self, Picture};
use super::progress::Unit;
use crate::files;
use crate::record::text::{escape, percent, short};

/// Colours of the lines, which can be told apart also by eyes that see fewer colours (Okabe and
/// Ito, 2008), the darker ones first.
const COLORS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(17, 21, 28),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(150, 150, 150),
];

/// Logical pixels of a panel.
const SIZE: (u32, u32) = (600, 480);
/// Panels beside each other.
const ACROSS: usize = 2;

/// The name of a run, and its points.
pub type Line = (String, Vec<(f64, f64)>);

/// One metric of several runs.
pub struct Overlay {
    /// `val/loss`
    pub metric: String,
    /// Unit of the horizontal axis.
    pub unit: Unit,
    /// One for each run.
    pub lines: Vec<Line>,
}

/// Draws all metrics into a PNG file, complete or not at all.
pub fn write(overlays: &[Overlay], title: &str, path: &Path) -> Result<(), Error> {
    let picture = Overlays { overlays, title: &escape(title) };
    Ok(files::write_atomic(path, &picture::draw_png(&picture, "the curves")?)?)
}

struct Overlays<'a> {
    overlays: &'a [Overlay],
    title: &'a str,
}

impl Overlays<'_> {
    /// Rows and columns of panels.
    fn grid(&self) -> (usize, usize) {
        let n = self.overlays.len().max(1);
        (n.div_ceil(ACROSS), n.min(ACROSS))
    }
}

impl Picture for Overlays<'_> {
    fn size(&self) -> (u32, u32) {
        let (rows, columns) = self.grid();
        (SIZE.0 * columns as u32, SIZE.1 * rows as u32)
    }

    fn draw<DB: DrawingBackend>(&self, area: &Area<DB>, canvas: Canvas) -> Drawn<DB> {
        let body = picture::titled(self.title, area, canvas)?;
        for (overlay, part) in self.overlays.iter().zip(body.split_evenly(self.grid())) {
            overlay.panel().draw(&part, canvas)?;
        }
        Ok(())
    }
}

impl Overlay {
    fn panel(&self) -> Panel {
        let is_share = self.metric.ends_with("accuracy");
        let scale = if is_share { 100.0 } else { 1.0 };
        let line = |(at, (label, points)): (usize, &Line)| {
            let finite = points.iter().filter(|point| point.1.is_finite());
            let points = finite.map(|(x, y)| (*x, scale * y)).collect();
            let label = escape(label).into_owned();
            let color = COLORS[at % COLORS.len()];
            Series { label, color, points: thinned(points) }
        };
        Panel {
            unit: self.unit,
            quantity: if is_share { format!("{} (%)", self.metric) } else { self.metric.clone() },
            series: self.lines.iter().enumerate().map(line).collect(),
            top: if is_share { 100.0 } else { f64::INFINITY },
            value: if is_share { |value| percent(value / 100.0) } else { short },
            best: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlay(metric: &str, runs: usize) -> Overlay {
        let points =
            |run: usize| (1..20).map(move |x| (f64::from(x), 1.0 / f64::from(x) / run as f64));
        let line = |run: usize| (format!("{run} <b>"), points(run).collect());
        let lines = (1..=runs).map(line).collect();
        Overlay { metric: metric.to_owned(), unit: Unit::Step, lines }
    }

    #[test]
    fn every_run_has_a_line_in_every_panel() {
        let mut overlays = vec![overlay("val/loss", 3), overlay("val/accuracy", 3)];
        overlays[0].lines[1].1.push((20.0, f64::NAN));
        let text =
            picture::draw_svg(&Overlays { overlays: &overlays, title: "a & b" }, "x").unwrap();
        for words in ["val/loss", "val/accuracy (%)", "step", "1 &lt;b&gt;", "a &amp; b"] {
            assert!(text.contains(words), "`{words}` is missing");
        }
        assert!(!text.contains("NaN"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("compare.png");
        write(&overlays, "two", &path).unwrap();
        assert_eq!(image::open(&path).unwrap().width(), 2400);
    }

    #[test]
    fn nothing_at_all_can_be_drawn() {
        let one = [overlay("val/loss", 0)];
        assert!(picture::draw_svg(&Overlays { overlays: &one, title: "" }, "x").is_ok());
        assert!(picture::draw_svg(&Overlays { overlays: &[], title: "" }, "x").is_ok());
    }
}
