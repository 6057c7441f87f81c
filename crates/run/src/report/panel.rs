//! One panel of the curves: a legend line, axes, a grid and one line per series. Draws on any
//! backend at any scale.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::Axis;
use super::canvas::{Area, Canvas, Drawn, FAINT_INK, FRAME, GRID, INK};
use super::progress::Unit;

/// Logical pixels.
const LEGEND_HEIGHT: f64 = 36.0;
const MARGIN: f64 = 18.0;
const LABEL_WIDTH: f64 = 92.0;

/// One line.
pub(crate) struct Series {
    pub(crate) label: String,
    pub(crate) color: RGBColor,
    /// Epoch or step, and value, in order.
    pub(crate) points: Vec<(f64, f64)>,
}

/// One panel.
pub(crate) struct Panel {
    /// Unit of the horizontal axis.
    pub(crate) unit: Unit,
    /// Label of the vertical axis.
    pub(crate) quantity: String,
    pub(crate) series: Vec<Series>,
    /// Upper bound of the values.
    pub(crate) top: f64,
    /// Formats the best value.
    pub(crate) value: fn(f64) -> String,
    /// Epoch or step to mark on the last series.
    pub(crate) best: Option<u64>,
}

type Chart<'a, DB> = ChartContext<'a, DB, Cartesian2d<Axis, Axis>>;

impl Panel {
    /// Draws the panel into `area`.
    pub(crate) fn draw<DB: DrawingBackend>(&self, area: &Area<DB>, canvas: Canvas) -> Drawn<DB> {
        let (legend, plot) = area.split_vertically(canvas.px(LEGEND_HEIGHT));
        self.draw_legend(&legend, canvas)?;
        let points = || self.series.iter().flat_map(|series| &series.points);
        let last = points().map(|point| point.0).fold(0.0, f64::max);
        let x = match self.unit {
            Unit::Epoch => Axis::of_epochs(last as usize),
            Unit::Step => Axis::of_steps(last),
        };
        let y = Axis::of_values(points().map(|point| point.1), self.top);

        let mut chart = ChartBuilder::on(&plot)
            .margin_left(canvas.px(MARGIN))
            .margin_right(canvas.px(MARGIN))
            .margin_top(canvas.px(8.0))
            .x_label_area_size(canvas.px(52.0))
            .y_label_area_size(canvas.px(LABEL_WIDTH))
            .build_cartesian_2d(x, y.clone())?;
        self.draw_mesh(&mut chart, &y, canvas)?;
        self.draw_best_place(&mut chart, &y, canvas)?;
        for series in &self.series {
            draw_series(&mut chart, series, canvas)?;
        }
        self.draw_best_ring(&mut chart, canvas)
    }

    fn draw_mesh<DB: DrawingBackend>(
        &self,
        chart: &mut Chart<'_, DB>,
        y: &Axis,
        canvas: Canvas,
    ) -> Drawn<DB> {
        chart
            .configure_mesh()
            .max_light_lines(0)
            .bold_line_style(canvas.line(GRID, 1.0))
            .axis_style(canvas.line(FRAME, 1.0))
            .set_all_tick_mark_size(canvas.px(4.0))
            .y_label_offset(canvas.px(canvas.lift))
            .x_label_formatter(&|at| format!("{at:.0}"))
            .y_label_formatter(&|value| y.tick(*value))
            .label_style(canvas.text(16.0, FAINT_INK))
            .axis_desc_style(canvas.text(18.0, INK))
            .x_desc(self.unit.word())
            .y_desc(&self.quantity)
            .draw()
    }

    /// A dashed line at the best epoch or step.
    fn draw_best_place<DB: DrawingBackend>(
        &self,
        chart: &mut Chart<'_, DB>,
        y: &Axis,
        canvas: Canvas,
    ) -> Drawn<DB> {
        let Some(at) = self.best else { return Ok(()) };
        let ends = [(at as f64, y.range.start), (at as f64, y.range.end)];
        let dash = canvas.px(5.0) as u32;
        let gap = canvas.px(4.0) as u32;
        let dashes = DashedLineSeries::new(ends, dash, gap, canvas.line(FRAME, 1.2));
        chart.draw_series(dashes).map(|_| ())
    }

    /// A ring on the last series at the best epoch or step.
    fn draw_best_ring<DB: DrawingBackend>(
        &self,
        chart: &mut Chart<'_, DB>,
        canvas: Canvas,
    ) -> Drawn<DB> {
        let Some(best) = self.best_point() else { return Ok(()) };
        let disc = |(size, color): (f64, RGBColor)| {
            Circle::new((best.at as f64, best.value), canvas.px(size), color.filled())
        };
        chart.draw_series(ring(best.color).map(disc)).map(|_| ())
    }

    /// The legend, from left to right above the panel.
    fn draw_legend<DB: DrawingBackend>(&self, area: &Area<DB>, canvas: Canvas) -> Drawn<DB> {
        let style = canvas.text(17.0, INK).pos(Pos::new(HPos::Left, VPos::Center));
        let middle = LEGEND_HEIGHT - 12.0;
        let write = |words: &str, x: f64| -> Result<f64, _> {
            let place = (canvas.px(x), canvas.px(middle + canvas.lift));
            area.draw(&Text::new(words, place, style.clone()))?;
            area.estimate_text_size(words, &style).map(|(width, _)| f64::from(width) / canvas.scale)
        };
        let mut x = MARGIN + LABEL_WIDTH;
        for series in self.series.iter().filter(|series| !series.points.is_empty()) {
            let ends = [x, x + 24.0].map(|x| (canvas.px(x), canvas.px(middle)));
            area.draw(&PathElement::new(ends, canvas.line(series.color, 3.0)))?;
            x += 32.0 + write(&series.label, x + 32.0)? + 26.0;
        }
        let Some(best) = self.best_point() else { return Ok(()) };
        for (size, color) in ring(best.color) {
            let center = (canvas.px(x + 6.0), canvas.px(middle));
            area.draw(&Circle::new(center, canvas.px(size), color.filled()))?;
        }
        let unit = self.unit.word();
        write(&format!("best {unit} {}: {}", best.at, (self.value)(best.value)), x + 20.0)?;
        Ok(())
    }

    fn best_point(&self) -> Option<Best> {
        let at = self.best?;
        let series = self.series.last()?;
        let (_, value) = series.points.iter().find(|point| point.0 == at as f64)?;
        Some(Best { at, value: *value, color: series.color })
    }
}

struct Best {
    at: u64,
    value: f64,
    color: RGBColor,
}

/// Radii and colours of the discs that make a ring.
fn ring(color: RGBColor) -> [(f64, RGBColor); 2] {
    [(6.5, color), (4.0, WHITE)]
}

fn draw_series<DB: DrawingBackend>(
    chart: &mut Chart<'_, DB>,
    series: &Series,
    canvas: Canvas,
) -> Drawn<DB> {
    let points = &series.points;
    let line = LineSeries::new(points.iter().copied(), canvas.line(series.color, 2.4));
    chart.draw_series(line)?;
    // Markers of many points would run into each other.
    let radius = if points.len() == 1 { 5.0 } else { 3.2 };
    let marked = if points.len() <= 40 { &points[..] } else { &[] };
    let dot = |point: &(f64, f64)| Circle::new(*point, canvas.px(radius), series.color.filled());
    chart.draw_series(marked.iter().map(dot)).map(|_| ())
}
