//! A confusion matrix -> `confusion_val.png`, `confusion_val.svg`: a row for each true class, a
//! column for each predicted one, darker the larger its share of the true class.

use std::path::Path;

use plotters::prelude::*;

use super::Error;
use super::panel::{Canvas, FAINT_INK, FRAME, INK, Lettering, write_upwards, write_words};
use super::picture::{self, Area, Drawn, Picture};
use crate::record::text::escape;

/// Logical pixels.
const SIDE: f64 = 640.0;
const LEFT: f64 = 190.0;
const TOP: f64 = 70.0;
const BELOW: f64 = 190.0;
/// Classes up to which each cell has its number, and each line its name.
const MAX_CLASSES_WITH_NUMBERS: usize = 20;
const MAX_CLASSES_WITH_NAMES: usize = 45;
/// Letters of a name.
const MAX_NAME_LENGTH: usize = 20;
/// Of a cell that holds its whole class.
const FULL: RGBColor = RGBColor(43, 108, 176);

/// Draws `counts[label][answer]` of the part `split` into `folder`, under names of its own.
pub(crate) fn write(
    split: &str,
    names: &[&str],
    counts: &[Vec<u64>],
    folder: &Path,
) -> Result<(), Error> {
    let files = match split {
        "test" => ["confusion_test.png", "confusion_test.svg"],
        _ => ["confusion_val.png", "confusion_val.svg"],
    };
    picture::write(&Confusion { split, names, counts }, folder, files)
}

struct Confusion<'a> {
    split: &'a str,
    names: &'a [&'a str],
    counts: &'a [Vec<u64>],
}

impl Picture for Confusion<'_> {
    fn size(&self) -> (u32, u32) {
        ((LEFT + SIDE + 24.0) as u32, (TOP + SIDE + BELOW) as u32)
    }

    fn draw<DB: DrawingBackend>(&self, area: &Area<DB>, canvas: Canvas) -> Drawn<DB> {
        let title = format!("{}: true and predicted classes", self.split);
        let above = (LEFT + SIDE / 2.0, 26.0);
        write_words(area, canvas, &title, above, Lettering::centered(20.0, INK))?;
        let heads = [("true", (LEFT - 8.0, 54.0)), ("predicted", (LEFT + SIDE / 2.0, 54.0))];
        let [rows, columns] =
            [Lettering::up_to(16.0, FAINT_INK), Lettering::centered(16.0, FAINT_INK)];
        write_words(area, canvas, heads[0].0, heads[0].1, rows)?;
        write_words(area, canvas, heads[1].0, heads[1].1, columns)?;
        for (label, row) in self.counts.iter().enumerate() {
            self.draw_class(area, canvas, label, row)?;
        }
        let corners =
            [(LEFT, TOP), (LEFT + SIDE, TOP + SIDE)].map(|(x, y)| (canvas.px(x), canvas.px(y)));
        area.draw(&Rectangle::new(corners, canvas.line(FRAME, 1.0)))
    }
}

impl Confusion<'_> {
    /// The name of a class and its cells.
    fn draw_class<DB: DrawingBackend>(
        &self,
        area: &Area<DB>,
        canvas: Canvas,
        label: usize,
        row: &[u64],
    ) -> Drawn<DB> {
        let n = self.counts.len();
        let cell = SIDE / n as f64;
        let size = (cell * 0.4).clamp(8.0, 16.0);
        let middle = TOP + (label as f64 + 0.5) * cell;
        if let Some(name) = self.names.get(label)
            && n <= MAX_CLASSES_WITH_NAMES
        {
            let name: String = escape(name).chars().take(MAX_NAME_LENGTH).collect();
            let style = Lettering::up_to(size.max(11.0), INK);
            write_words(area, canvas, &name, (LEFT - 8.0, middle), style)?;
            let place = (LEFT + (label as f64 + 0.5) * cell, TOP + SIDE + 8.0);
            write_upwards(area, canvas, &name, place, style)?;
        }
        let samples = row.iter().sum::<u64>().max(1);
        for (answer, &count) in row.iter().enumerate().filter(|(_, count)| **count > 0) {
            let share = count as f64 / samples as f64;
            let [left, right] = [answer, answer + 1].map(|at| canvas.px(LEFT + at as f64 * cell));
            let [top, bottom] = [label, label + 1].map(|at| canvas.px(TOP + at as f64 * cell));
            let color = FULL.mix(share.max(0.04)).filled();
            area.draw(&Rectangle::new([(left, top), (right, bottom)], color))?;
            if n <= MAX_CLASSES_WITH_NUMBERS {
                let ink = if share > 0.5 { WHITE } else { INK };
                let place = (LEFT + (answer as f64 + 0.5) * cell, middle);
                let style = Lettering::centered(size, ink);
                write_words(area, canvas, &count.to_string(), place, style)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_a_number_in_each_cell_that_has_samples() {
        let counts = [vec![12, 0, 1], vec![0, 9, 0], vec![77, 0, 31]];
        let confusion = Confusion { split: "val", names: &["ant", "bee", "cat"], counts: &counts };
        let svg = picture::draw_svg(&confusion, "confusion").unwrap();
        for words in
            ["ant", "cat", "12", "77", "31", "val: true and predicted", "\ntrue\n", "\npredicted\n"]
        {
            assert!(svg.contains(words), "{words}");
        }
        let folder = tempfile::tempdir().unwrap();
        write("test", &["a"; 60], &vec![vec![1; 60]; 60], folder.path()).unwrap();
        assert!(folder.path().join("confusion_test.png").metadata().unwrap().len() > 2_000);
    }
}
