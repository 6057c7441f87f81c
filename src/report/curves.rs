//! `History -> curves.png, curves.svg`: loss and accuracy over epochs, train and val, side by side. Without
//! accuracies (regression) the second panel shows the learning rate.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::Error;
use super::panel::{Canvas, INK, Panel, Series};
use super::picture::{self, Area, Drawn, Picture};
use crate::event::History;
use crate::record::text::{self, escape};

/// Name of the bitmap in the run's folder.
pub const PNG: &str = "curves.png";
/// Name of the vector picture in the run's folder.
pub const SVG: &str = "curves.svg";

const TRAIN: RGBColor = RGBColor(43, 108, 176);
const VAL: RGBColor = RGBColor(221, 97, 32);
const RATE: RGBColor = RGBColor(26, 138, 122);

/// Logical pixels.
const SIZE: (u32, u32) = (1200, 480);

/// Draws both pictures into `folder`, each complete or not at all, with a mark at the epoch `best` (from 1).
///
/// # Errors
///
/// A picture cannot be drawn or written.
pub fn write(
    history: &History,
    best: Option<usize>,
    folder: &Path,
    title: &str,
) -> Result<(), Error> {
    picture::write(&Curves { history, best, title: &escape(title) }, folder, [PNG, SVG])
}

struct Curves<'a> {
    history: &'a History,
    best: Option<usize>,
    title: &'a str,
}

impl Picture for Curves<'_> {
    fn size(&self) -> (u32, u32) {
        SIZE
    }

    fn draw<DB: DrawingBackend>(&self, area: &Area<DB>, canvas: Canvas) -> Drawn<DB> {
        let Self { history, best, title } = *self;
        let (head, body) = area.split_vertically((46.0 * canvas.scale) as u32);
        let (width, _) = head.dim_in_pixel();
        let style = canvas.text(22.0, INK).pos(Pos::new(HPos::Center, VPos::Center));
        let middle = ((width / 2) as i32, (28.0 * canvas.scale) as i32);
        head.draw(&Text::new(title, middle, style))?;
        let second = if history.has_accuracy() { accuracy(history, best) } else { rate(history) };
        for (panel, half) in [loss(history, best), second].iter().zip(body.split_evenly((1, 2))) {
            panel.draw(&half, canvas)?;
        }
        Ok(())
    }
}

fn loss(history: &History, best: Option<usize>) -> Panel<'_> {
    Panel {
        quantity: "loss",
        series: train_and_val(&history.train_loss, &history.val_loss),
        top: f64::INFINITY,
        value: text::loss,
        best,
    }
}

fn accuracy(history: &History, best: Option<usize>) -> Panel<'_> {
    Panel {
        quantity: "accuracy (%)",
        series: train_and_val(&history.train_acc, &history.val_acc),
        top: 100.0,
        value: |percent| text::percent(percent / 100.0),
        best,
    }
}

fn rate(history: &History) -> Panel<'_> {
    let values = &history.learning_rate;
    Panel {
        quantity: "learning rate",
        series: vec![Series { label: "learning rate", color: RATE, values }],
        top: f64::INFINITY,
        value: text::short,
        best: None,
    }
}

fn train_and_val<'a>(train: &'a [Option<f64>], val: &'a [Option<f64>]) -> Vec<Series<'a>> {
    vec![
        Series { label: "train", color: TRAIN, values: train },
        Series { label: "val", color: VAL, values: val },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of a classifier as they usually look.
    fn classifier(n: usize) -> History {
        let share = |epoch: usize| (epoch as f64 / n as f64).powf(0.35);
        let each = |f: &dyn Fn(f64) -> f64| -> Vec<Option<f64>> {
            (1..=n).map(|epoch| Some(f(share(epoch)))).collect()
        };
        History {
            train_loss: each(&|x| 2.4 - 2.3 * x),
            train_acc: each(&|x| 100.0 * (0.1 + 0.88 * x)),
            val_loss: each(&|x| 2.3 - 2.6 * x + 0.9 * x.powi(6)),
            val_acc: each(&|x| 100.0 * (0.15 + 0.95 * x - 0.2 * x.powi(8))),
            learning_rate: each(&|x| 0.1 * (1.0 - x)),
        }
    }

    fn regression(n: usize) -> History {
        let none = vec![None; n];
        History { train_acc: none.clone(), val_acc: none, ..classifier(n) }
    }

    fn svg(history: &History) -> String {
        let best = Some(history.len());
        picture::draw_svg(&Curves { history, best, title: "a <title> & more" }, SVG).unwrap()
    }

    #[test]
    fn a_classifiers_picture_has_both_panels_with_their_words() {
        let text = svg(&classifier(12));
        for words in ["loss", "accuracy (%)", "epoch", "train", "val", "best epoch"] {
            assert!(text.contains(&format!("\n{words}")), "`{words}` is missing");
        }
        assert!(!text.contains("learning rate"));
        assert!(text.contains("a &lt;title&gt; &amp; more"));
    }

    #[test]
    fn a_regressions_picture_shows_the_learning_rate_instead() {
        let text = svg(&regression(12));
        assert!(text.contains("learning rate") && !text.contains("accuracy"));
    }

    #[test]
    fn one_epoch_gaps_and_nothing_at_all_can_be_drawn() {
        let mut gaps = classifier(6);
        gaps.val_loss = vec![None, Some(1.0), None, Some(0.5), None, None];
        gaps.val_acc = vec![None; 6];
        for history in [classifier(1), gaps, regression(1), History::default(), classifier(300)] {
            let text = svg(&history);
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }

    #[test]
    fn the_bitmap_is_a_png_of_the_announced_size_with_smooth_dark_text() {
        let folder = tempfile::tempdir().unwrap();
        write(&classifier(20), Some(17), folder.path(), "shapes").unwrap();
        let picture = image::open(folder.path().join(PNG)).unwrap().into_rgb8();
        assert_eq!(picture.dimensions(), (2400, 960));
        let count = |wanted: RGBColor| {
            picture.pixels().filter(|pixel| pixel.0 == [wanted.0, wanted.1, wanted.2]).count()
        };
        assert!(count(TRAIN) > 2_000 && count(VAL) > 2_000, "the lines are there");
        assert!(count(WHITE) > 1_500_000, "on white");
    }
}
