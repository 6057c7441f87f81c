//! `curves.png` and `curves.svg`: loss and accuracy over epochs, or over steps if there are too few
//! epochs, of training and validation, side by side. Without accuracies (regression) the second
//! panel shows the learning rate.

use std::path::Path;

use plotters::prelude::*;

use super::Error;
use super::canvas::{Area, Canvas, Drawn};
use super::panel::{Panel, Series};
use super::picture::{self, Picture};
use super::progress::{Progress, Unit};
use crate::record::text::{self, escape};

/// Name of the bitmap in the run's folder.
pub(crate) const PNG: &str = "curves.png";
/// Name of the vector picture in the run's folder.
pub(crate) const SVG: &str = "curves.svg";

const TRAIN: RGBColor = RGBColor(43, 108, 176);
const VAL: RGBColor = RGBColor(221, 97, 32);
const RATE: RGBColor = RGBColor(26, 138, 122);

/// Logical pixels.
const SIZE: (u32, u32) = (1200, 480);

/// Most points of a line by steps.
const MAX_POINTS: usize = 600;

/// Draws both pictures into `folder`, each complete or not at all, with a mark at the epoch or step
/// `best`.
pub(crate) fn write(
    progress: &Progress,
    best: Option<u64>,
    folder: &Path,
    title: &str,
) -> Result<(), Error> {
    picture::write(&Curves { progress, best, title: &escape(title) }, folder, [PNG, SVG])
}

struct Curves<'a> {
    progress: &'a Progress,
    best: Option<u64>,
    title: &'a str,
}

impl Picture for Curves<'_> {
    fn size(&self) -> (u32, u32) {
        SIZE
    }

    fn draw<DB: DrawingBackend>(&self, area: &Area<DB>, canvas: Canvas) -> Drawn<DB> {
        let body = picture::titled(self.title, area, canvas)?;
        for (panel, half) in [self.loss(), self.second()].iter().zip(body.split_evenly((1, 2))) {
            panel.draw(&half, canvas)?;
        }
        Ok(())
    }
}

impl Curves<'_> {
    fn loss(&self) -> Panel {
        let unit = self.progress.unit;
        let series = self.train_and_val("loss");
        let top = f64::INFINITY;
        let value = text::loss as fn(f64) -> String;
        let best = self.best;
        Panel { unit, quantity: "loss".into(), series, top, value, best }
    }

    fn second(&self) -> Panel {
        let accuracy = self.train_and_val("accuracy");
        if accuracy.iter().all(|series| series.points.is_empty()) {
            self.rate()
        } else {
            self.accuracy(accuracy)
        }
    }

    fn accuracy(&self, mut series: Vec<Series>) -> Panel {
        let points = series.iter_mut().flat_map(|series| &mut series.points);
        points.for_each(|(_, share)| *share *= 100.0);
        Panel {
            unit: self.progress.unit,
            quantity: "accuracy (%)".into(),
            series,
            top: 100.0,
            value: |percent| text::percent(percent / 100.0),
            best: self.best,
        }
    }

    fn rate(&self) -> Panel {
        let rows = self.progress.rows.iter();
        let points = rows.filter_map(|row| Some((row.at as f64, row.lr?))).collect();
        let series = vec![Series { label: "learning rate".into(), color: RATE, points }];
        let unit = self.progress.unit;
        let top = f64::INFINITY;
        let value = text::short as fn(f64) -> String;
        Panel { unit, quantity: "learning rate".into(), series, top, value, best: None }
    }

    /// The validation is drawn above the training, which is noisier.
    fn train_and_val(&self, metric: &str) -> Vec<Series> {
        let points = |split: &str| self.progress.points(&format!("{split}/{metric}"));
        let (label, train) = match self.progress.unit {
            Unit::Epoch => ("train", points("train")),
            Unit::Step => ("train (per step)", thinned(points("train"))),
        };
        vec![
            Series { label: label.into(), color: TRAIN, points: train },
            Series { label: "val".into(), color: VAL, points: points("val") },
        ]
    }
}

/// Reduces points to at most [`MAX_POINTS`] by averaging equally many neighbours.
pub(super) fn thinned(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    if points.len() <= MAX_POINTS {
        return points;
    }
    let mean = |some: &[(f64, f64)]| {
        let (x, y) = some.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0, y + point.1));
        (x / some.len() as f64, y / some.len() as f64)
    };
    points.chunks(points.len().div_ceil(MAX_POINTS)).map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::progress::Row;

    /// A run of a classifier as they usually look.
    fn classifier(n: u64) -> Progress {
        let row = |at: u64| {
            let x = (at as f64 / n as f64).powf(0.35);
            let metrics = [
                ("train/loss", 2.4 - 2.3 * x),
                ("train/accuracy", 0.1 + 0.88 * x),
                ("val/loss", 2.3 - 2.6 * x + 0.9 * x.powi(6)),
                ("val/accuracy", 0.15 + 0.95 * x - 0.2 * x.powi(8)),
            ];
            let metrics = metrics.map(|(name, value)| (name.to_owned(), value)).into();
            Row { at, metrics, lr: Some(0.1 * (1.0 - x)) }
        };
        Progress { unit: Unit::Epoch, rows: (1..=n).map(row).collect() }
    }

    fn regression(n: u64) -> Progress {
        let mut progress = classifier(n);
        progress
            .rows
            .iter_mut()
            .for_each(|row| row.metrics.retain(|name, _| name.ends_with("loss")));
        progress
    }

    /// Thousands of steps of which every twentieth is validated.
    fn by_steps(n: u64) -> Progress {
        let mut progress = Progress { unit: Unit::Step, ..classifier(n) };
        for row in &mut progress.rows {
            let is_validated = row.at.is_multiple_of(n / 8);
            row.metrics.retain(|name, _| is_validated || name.starts_with("train"));
        }
        progress
    }

    fn svg(progress: &Progress) -> String {
        let best = progress.rows.last().map(|row| row.at);
        picture::draw_svg(&Curves { progress, best, title: "a <title> & more" }, SVG).unwrap()
    }

    #[test]
    fn a_classifiers_picture_has_both_panels_with_their_words() {
        let text = svg(&classifier(12));
        let background = text.lines().find(|line| line.starts_with("<rect")).unwrap();
        assert!(background.contains("fill=\"#FFFFFF\""), "dark pages need it: {background}");
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
        for row in &mut gaps.rows {
            row.metrics.retain(|name, _| {
                name != "val/accuracy" && (row.at.is_multiple_of(2) || name != "val/loss")
            });
        }
        let nothing = Progress { rows: vec![], ..classifier(1) };
        for progress in [classifier(1), gaps, regression(1), nothing, classifier(300)] {
            let text = svg(&progress);
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }

    #[test]
    fn a_picture_by_steps_says_so() {
        let text = svg(&by_steps(4000));
        for words in ["step", "train (per step)", "best step 4000", "2000", "3000"] {
            assert!(text.contains(&format!("\n{words}")), "`{words}` is missing");
        }
        assert!(!text.contains("epoch"));
        let points: Vec<(f64, f64)> = (1..=4000).map(|x| (f64::from(x), 2.0)).collect();
        let thin = thinned(points);
        assert_eq!((thin.len(), thin[0]), (572, (4.0, 2.0)));
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
