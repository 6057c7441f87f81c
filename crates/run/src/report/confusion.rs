//! Picture of a confusion matrix, `confusion_val.png` and `confusion_val.svg`: a row per true
//! class, a column per predicted one, darker the larger its share of the true class.

use std::path::Path;

use plotters::prelude::*;

use super::Error;
use super::canvas::{
    Area, Canvas, Drawn, FAINT_INK, FRAME, INK, Lettering, write_upwards, write_words,
};
use super::picture::{self, Picture};
use crate::record::text::{self, escape};

/// Logical pixels.
const SIDE: f64 = 640.0;
const TOP: f64 = 70.0;
/// Minimum and maximum of the margin beside and below the cells, which the longest name needs.
const MARGINS: [f64; 2] = [190.0, 420.0];
/// Width of a wide letter relative to the font size.
const LETTER: f64 = 0.56;
/// Most classes for numbers in the cells, and for names of rows and columns.
const MAX_CLASSES_WITH_NUMBERS: usize = 20;
const MAX_CLASSES_WITH_NAMES: usize = 45;
/// Colour of a cell that holds its whole class.
const FULL: RGBColor = RGBColor(43, 108, 176);

/// Draws `counts[label][answer]` of the part `split` into `folder`, under names of its own.
pub fn write(split: &str, names: &[&str], counts: &[Vec<u64>], folder: &Path) -> Result<(), Error> {
    let files = match split {
        "test" => ["confusion_test.png", "confusion_test.svg"],
        _ => ["confusion_val.png", "confusion_val.svg"],
    };
    picture::write(&Confusion::new(split, names, counts), folder, files)
}

struct Confusion<'a> {
    split: &'a str,
    names: Vec<String>,
    counts: &'a [Vec<u64>],
    /// For names, left of the cells and below them.
    margin: f64,
}

impl<'a> Confusion<'a> {
    fn new(split: &'a str, names: &[&str], counts: &'a [Vec<u64>]) -> Self {
        let has_names = counts.len() <= MAX_CLASSES_WITH_NAMES;
        let names = if has_names { names } else { &[] };
        let names: Vec<String> = names.iter().map(|name| escape(name).into()).collect();
        let letter = LETTER * name_size(counts.len());
        let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let margin = (longest as f64 * letter + 24.0).clamp(MARGINS[0], MARGINS[1]);
        let room = ((margin - 24.0) / letter) as usize;
        Self { split, names: shortened(&names, room), counts, margin }
    }
}

/// Side of a cell in pixels with `n` classes.
fn cell(n: usize) -> f64 {
    SIDE / n.max(1) as f64
}

/// Font size of names with `n` classes.
fn name_size(n: usize) -> f64 {
    (cell(n) * 0.4).clamp(11.0, 16.0)
}

/// Shortens names to `most` letters, with a mark for the cut middle; names that would be equal get
/// their number.
fn shortened(names: &[String], most: usize) -> Vec<String> {
    let all: Vec<String> = names.iter().map(|name| text::shortened(name, most)).collect();
    let distinct = |(at, name): (usize, &String)| {
        if all.iter().filter(|other| *other == name).count() == 1 {
            return name.clone();
        }
        let number = format!("{at}: ");
        let rest = text::shortened(&names[at], most.saturating_sub(number.len()).max(1));
        number + &rest
    };
    all.iter().enumerate().map(distinct).collect()
}

impl Picture for Confusion<'_> {
    fn size(&self) -> (u32, u32) {
        ((self.margin + SIDE + 24.0) as u32, (TOP + SIDE + self.margin) as u32)
    }

    fn draw<DB: DrawingBackend>(&self, area: &Area<DB>, canvas: Canvas) -> Drawn<DB> {
        let title = format!("{}: true and predicted classes", self.split);
        let left = self.margin;
        let above = (left + SIDE / 2.0, 26.0);
        write_words(area, canvas, &title, above, Lettering::centered(20.0, INK))?;
        let heads = [("true", (left - 8.0, 54.0)), ("predicted", (left + SIDE / 2.0, 54.0))];
        let [rows, columns] =
            [Lettering::up_to(16.0, FAINT_INK), Lettering::centered(16.0, FAINT_INK)];
        write_words(area, canvas, heads[0].0, heads[0].1, rows)?;
        write_words(area, canvas, heads[1].0, heads[1].1, columns)?;
        for (label, row) in self.counts.iter().enumerate() {
            self.draw_class(area, canvas, label, row)?;
        }
        let corners =
            [(left, TOP), (left + SIDE, TOP + SIDE)].map(|(x, y)| (canvas.px(x), canvas.px(y)));
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
        let (n, first) = (self.counts.len(), self.margin);
        let cell = cell(n);
        let size = (cell * 0.4).clamp(8.0, 16.0);
        let middle = TOP + (label as f64 + 0.5) * cell;
        if let Some(name) = self.names.get(label) {
            let style = Lettering::up_to(name_size(n), INK);
            write_words(area, canvas, name, (first - 8.0, middle), style)?;
            let place = (first + (label as f64 + 0.5) * cell, TOP + SIDE + 8.0);
            write_upwards(area, canvas, name, place, style)?;
        }
        let samples = row.iter().sum::<u64>().max(1);
        for (answer, &count) in row.iter().enumerate().filter(|(_, count)| **count > 0) {
            let share = count as f64 / samples as f64;
            let [left, right] = [answer, answer + 1].map(|at| canvas.px(first + at as f64 * cell));
            let [top, bottom] = [label, label + 1].map(|at| canvas.px(TOP + at as f64 * cell));
            let color = FULL.mix(share.max(0.04)).filled();
            area.draw(&Rectangle::new([(left, top), (right, bottom)], color))?;
            if n <= MAX_CLASSES_WITH_NUMBERS {
                let ink = if share > 0.5 { WHITE } else { INK };
                let place = (first + (answer as f64 + 0.5) * cell, middle);
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
        let confusion = Confusion::new("val", &["ant", "bee", "cat"], &counts);
        let svg = picture::draw_svg(&confusion, "confusion").unwrap();
        for words in
            ["ant", "cat", "12", "77", "31", "val: true and predicted", "\ntrue\n", "\npredicted\n"]
        {
            assert!(svg.contains(words), "{words}");
        }
        let (long, other) =
            ("Pepper,_bell___Bacterial_spot_11", "Pepper,_bell___Bacterial_spot_12");
        let confusion = Confusion::new("val", &[long, other, "cat"], &counts);
        let svg = picture::draw_svg(&confusion, "confusion").unwrap();
        assert!(svg.contains(long) && svg.contains(other), "there is room for whole names");
        let names = ["a".repeat(40), "a".repeat(20) + "b" + &"a".repeat(40), "abcdefghijk".into()];
        assert_eq!(shortened(&names, 10), ["0: aaa…aaa", "1: aaa…aaa", "abcde…hijk"]);
        let folder = tempfile::tempdir().unwrap();
        write("test", &["a"; 60], &vec![vec![1; 60]; 60], folder.path()).unwrap();
        assert!(folder.path().join("confusion_test.png").metadata().unwrap().len() > 2_000);
    }
}
