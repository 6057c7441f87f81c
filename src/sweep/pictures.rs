//! A sweep in pictures: the best value over time, all values beside each other, what each parameter
//! explains, and the metric over each parameter.

use std::path::Path;

use plotters::prelude::*;

use crate::config::schema::Mode;
use crate::config::sweep::{Domain, Json, Parameter, Search, value_of};
use crate::record::text::{escape, is_share, metric, short};
use crate::report::panel::{Canvas, FAINT_INK, FRAME, INK, Lettering, write_words};
use crate::report::picture::{self, Area, Drawn, Picture};
use crate::sweep::Error;
use crate::sweep::chart::{
    BLUE, Entry, Frame, GREY, ORANGE, Scale, dot, legend, line, small, veil,
};
use crate::sweep::importance::importance;
use crate::sweep::method::place_of;
use crate::sweep::ranking::Ranking;
use crate::sweep::trial::{State, Trial, cost};

/// What all pictures show: trials with a value, best first.
struct Shown<'a> {
    search: &'a Search,
    ranking: &'a Ranking,
    /// With the metric's value, which is finite.
    trials: Vec<(&'a Trial, f64)>,
    /// Every trial, in the order of starting.
    all: &'a [Trial],
    /// Of the metric.
    scale: Scale,
}

/// Draws all pictures into the sweep's folder.
///
/// # Errors
///
/// A picture cannot be drawn or written.
pub(crate) fn write(
    folder: &Path,
    search: &Search,
    ranking: &Ranking,
    trials: &[Trial],
) -> Result<(), Error> {
    let shown = Shown::new(search, ranking, trials);
    picture::write(&History(&shown), folder, ["history.png", "history.svg"])?;
    if !search.parameters.is_empty() {
        picture::write(&Parallel(&shown), folder, ["parallel.png", "parallel.svg"])?;
        picture::write(&Importance(&shown), folder, ["importance.png", "importance.svg"])?;
        picture::write(&Slices(&shown), folder, ["slices.png", "slices.svg"])?;
    }
    Ok(())
}

impl<'a> Shown<'a> {
    fn new(search: &'a Search, ranking: &'a Ranking, all: &'a [Trial]) -> Self {
        let goal = search.goal;
        let trials: Vec<(&Trial, f64)> = ranking
            .ranked(all)
            .into_iter()
            .filter_map(|trial| Some((trial, trial.value(goal)?)))
            .collect();
        // One diverged trial must not press all others into a line: the worst tenth may stand at
        // the border.
        let mut values: Vec<f64> = trials.iter().map(|(_, value)| *value).collect();
        values.sort_by(|a, b| cost(Some(*a), goal).total_cmp(&cost(Some(*b), goal)));
        values.truncate((values.len() * 9).div_ceil(10));
        let values = values.into_iter();
        let scale =
            if is_share(&search.metric) { Scale::of_shares(values) } else { Scale::of(values) };
        Self { search, ranking, trials, all, scale }
    }

    fn goal(&self) -> Mode {
        self.search.goal
    }

    /// From blue, the best, to grey, the worst.
    fn color(&self, rank: usize) -> RGBColor {
        let share = rank as f64 / self.trials.len().saturating_sub(1).max(1) as f64;
        let mix =
            |a: u8, b: u8| (f64::from(a) + share.sqrt() * (f64::from(b) - f64::from(a))) as u8;
        RGBColor(mix(BLUE.0, GREY.0), mix(BLUE.1, GREY.1), mix(BLUE.2, GREY.2))
    }
}

fn word(value: &Json) -> String {
    let text = match value {
        Json::String(text) => text.clone(),
        Json::Number(number) => number.as_f64().map_or_else(|| number.to_string(), short),
        other => other.to_string(),
    };
    escape(&text).into_owned()
}

/// The axis of a parameter.
fn scale_of(domain: &Domain) -> Scale {
    match domain {
        Domain::Categorical { values } => Scale::of_words(values.iter().map(word)),
        Domain::LogUniform { min, max } => Scale::of_logarithms(min.ln(), max.ln()),
        Domain::Uniform { min, max } | Domain::QUniform { min, max, .. } => {
            Scale::of([*min, *max].into_iter())
        }
        Domain::IntUniform { min, max } => Scale::of_whole(*min as f64, *max as f64),
    }
}

/// Where a trial lies on a parameter's axis.
fn place(parameter: &Parameter, trial: &Trial) -> Option<f64> {
    let value = value_of(&trial.values, &parameter.key)?;
    place_of(&parameter.domain, value).filter(|_| parameter.is_active(&trial.values))
}

/// The key, and where it counts: `optimizer.lr (sgd)`.
pub(super) fn label(parameter: &Parameter) -> String {
    let values = parameter.when.iter().flat_map(|condition| &condition.values);
    let values: Vec<String> = values.map(word).collect();
    if values.is_empty() {
        return parameter.key.clone();
    }
    format!("{} ({})", parameter.key, values.join(", "))
}

struct History<'a>(&'a Shown<'a>);

impl Picture for History<'_> {
    fn size(&self) -> (u32, u32) {
        (1000, 460)
    }

    fn draw<DB: DrawingBackend>(&self, area: &Area<DB>, canvas: Canvas) -> Drawn<DB> {
        let shown = self.0;
        let last = shown.all.iter().map(|trial| trial.number).max().unwrap_or(1);
        let x = Scale::of_whole(1.0, f64::from(last));
        let frame =
            Frame { left: 90.0, top: 50.0, width: 880.0, height: 340.0, x: &x, y: &shown.scale };
        let title = format!("{} of each trial, and the best so far", shown.search.metric);
        frame.draw(area, canvas, &title, "trial")?;
        line(area, canvas, self.best_so_far(&frame, last), canvas.line(ORANGE, 2.4))?;
        for trial in shown.all {
            let Some(value) = trial.value(shown.goal()) else { continue };
            let is_whole = trial.state == State::Finished;
            let (color, radius) = if is_whole { (BLUE, 4.5) } else { (GREY, 3.5) };
            dot(area, canvas, frame.at(f64::from(trial.number), value), color, radius)?;
        }
        let entries = [
            Entry::dot("finished", BLUE),
            Entry::dot("pruned or diverged", GREY),
            Entry::line("best so far", ORANGE),
        ];
        legend(area, canvas, (600.0, frame.top - 14.0), &entries)
    }
}

impl History<'_> {
    /// The best value of the finished trials up to each, as a line of steps up to trial `last`.
    fn best_so_far(&self, frame: &Frame<'_>, last: u32) -> Vec<(f64, f64)> {
        let goal = self.0.goal();
        let mut best: Option<f64> = None;
        let mut steps = Vec::new();
        for trial in self.0.all.iter().filter(|trial| trial.state == State::Finished) {
            let Some(value) = trial.value(goal) else { continue };
            let is_better =
                best.is_none_or(|best| cost(Some(value), goal) < cost(Some(best), goal));
            if is_better {
                let at = f64::from(trial.number);
                steps.extend(best.map(|before| frame.at(at, before)));
                steps.push(frame.at(at, value));
                best = Some(value);
            }
        }
        steps.extend(best.map(|best| frame.at(f64::from(last), best)));
        steps
    }
}

struct Parallel<'a>(&'a Shown<'a>);

impl Picture for Parallel<'_> {
    fn size(&self) -> (u32, u32) {
        let n = self.0.search.parameters.len() as u32 + 1;
        (240 + 170 * n.max(2), 560)
    }

    fn draw<DB: DrawingBackend>(&self, area: &Area<DB>, canvas: Canvas) -> Drawn<DB> {
        let width = f64::from(self.size().0);
        let axes = Axes::of(self.0, width);
        axes.draw_trials(area, canvas)?;
        axes.draw_words(area, canvas)?;
        let entries = [
            Entry::line("best trial", ORANGE),
            Entry::line("next best", BLUE),
            Entry::line("worst", GREY),
        ];
        legend(area, canvas, (40.0, 24.0), &entries)?;
        let Some((trial, value)) = self.0.trials.first() else { return Ok(()) };
        let name = &self.0.search.metric;
        let best = format!("trial {}: {name} {}", trial.number, metric(name, *value));
        let at = (width / 2.0, Axes::TOP + Axes::HEIGHT + 48.0);
        write_words(area, canvas, &best, at, Lettering::centered(15.0, ORANGE))
    }
}

/// One upright axis for each parameter, and the last for the metric.
struct Axes<'a> {
    shown: &'a Shown<'a>,
    scales: Vec<Scale>,
    /// Of the picture.
    width: f64,
}

impl<'a> Axes<'a> {
    /// Logical pixels.
    const TOP: f64 = 90.0;
    const HEIGHT: f64 = 400.0;
    /// Where the lines of trials pass in which a parameter did not count.
    const UNUSED: f64 = Self::TOP + Self::HEIGHT + 20.0;

    fn of(shown: &'a Shown<'a>, width: f64) -> Self {
        let parameters = shown.search.parameters.iter();
        let mut scales: Vec<Scale> = parameters.map(|p| scale_of(&p.domain)).collect();
        scales.push(shown.scale.clone());
        Self { shown, scales, width }
    }

    /// Of the metric.
    fn last(&self) -> usize {
        self.scales.len() - 1
    }

    fn x(&self, axis: usize) -> f64 {
        100.0 + (self.width - 200.0) * axis as f64 / self.last().max(1) as f64
    }

    fn y(&self, axis: usize, place: f64) -> f64 {
        Self::TOP + Self::HEIGHT * (1.0 - self.scales[axis].share(place))
    }

    /// Where the line of a trial meets the axes.
    fn path(&self, trial: &Trial, value: f64) -> Vec<(f64, f64)> {
        let parameters = self.shown.search.parameters.iter().enumerate();
        let places = parameters.map(|(axis, parameter)| {
            let y = place(parameter, trial).map_or(Self::UNUSED, |place| self.y(axis, place));
            (self.x(axis), y)
        });
        let end = (self.x(self.last()), self.y(self.last(), value));
        places.chain([end]).collect()
    }

    /// The small words at an axis, and the height of each.
    fn words(&self, axis: usize) -> Vec<(&str, f64)> {
        let ticks = self.scales[axis].ticks.iter();
        let mut words: Vec<(&str, f64)> =
            ticks.map(|(place, word)| (word.as_str(), self.y(axis, *place))).collect();
        let parameter = self.shown.search.parameters.get(axis);
        if parameter.is_some_and(|parameter| !parameter.when.is_empty()) {
            words.push(("not used", Self::UNUSED));
        }
        words
    }

    /// The lines, better ones above worse ones, and the best above the paper of the words.
    fn draw_trials<DB: DrawingBackend>(&self, area: &Area<DB>, canvas: Canvas) -> Drawn<DB> {
        for (rank, (trial, value)) in self.shown.trials.iter().enumerate().skip(1).rev() {
            let style = canvas.line(self.shown.color(rank), 1.4);
            line(area, canvas, self.path(trial, *value), style)?;
        }
        // No line passes left of the first axis, nor right of the last.
        for axis in 1..self.last() {
            for (word, y) in self.words(axis) {
                veil(area, canvas, word, (self.x(axis) - 8.0, y))?;
            }
        }
        let Some((best, value)) = self.shown.trials.first() else { return Ok(()) };
        line(area, canvas, self.path(best, *value), canvas.line(ORANGE, 3.0))
    }

    /// The axes, their names and ticks.
    fn draw_words<DB: DrawingBackend>(&self, area: &Area<DB>, canvas: Canvas) -> Drawn<DB> {
        let names = self.shown.search.parameters.iter().map(label);
        for (axis, name) in names.chain([self.shown.search.metric.clone()]).enumerate() {
            let x = self.x(axis);
            let ends = [(x, Self::TOP), (x, Self::TOP + Self::HEIGHT)];
            line(area, canvas, ends, canvas.line(FRAME, 1.5))?;
            let style = Lettering::centered(15.0, INK);
            write_words(area, canvas, &name, (x, Self::TOP - 24.0), style)?;
            let (x, style) = if axis == self.last() {
                (x + 8.0, Lettering::from(small().size, FAINT_INK))
            } else {
                (x - 8.0, small())
            };
            for (word, y) in self.words(axis) {
                write_words(area, canvas, word, (x, y), style)?;
            }
        }
        Ok(())
    }
}

struct Importance<'a>(&'a Shown<'a>);

impl Picture for Importance<'_> {
    fn size(&self) -> (u32, u32) {
        (800, 90 + 44 * self.0.search.parameters.len() as u32)
    }

    fn draw<DB: DrawingBackend>(&self, area: &Area<DB>, canvas: Canvas) -> Drawn<DB> {
        const LEFT: f64 = 250.0;
        const WIDTH: f64 = 450.0;
        let shown = self.0;
        let shares = importance(shown.search, shown.ranking, shown.all);
        let mut rows: Vec<(String, Option<f64>)> =
            shown.search.parameters.iter().map(label).zip(shares).collect();
        rows.sort_by(|a, b| b.1.unwrap_or(-1.0).total_cmp(&a.1.unwrap_or(-1.0)));
        let title = "parameter importance: fraction of the ranking explained";
        write_words(area, canvas, title, (LEFT - 200.0, 30.0), Lettering::from(16.0, INK))?;
        for (index, (key, share)) in rows.into_iter().enumerate() {
            let y = 75.0 + 44.0 * index as f64;
            write_words(area, canvas, &key, (LEFT - 12.0, y), Lettering::up_to(15.0, INK))?;
            let end = LEFT + WIDTH * share.unwrap_or(0.0).max(0.004);
            let corners =
                [(LEFT, y - 13.0), (end, y + 13.0)].map(|(x, y)| (canvas.px(x), canvas.px(y)));
            area.draw(&Rectangle::new(corners, BLUE.filled()))?;
            let label =
                share.map_or_else(|| "too few trials".to_owned(), |share| format!("{share:.2}"));
            let style = Lettering::from(15.0, FAINT_INK);
            write_words(area, canvas, &label, (end + 10.0, y), style)?;
        }
        Ok(())
    }
}

struct Slices<'a>(&'a Shown<'a>);

/// Panels of a row.
const COLUMNS: usize = 3;

impl Picture for Slices<'_> {
    fn size(&self) -> (u32, u32) {
        let n = self.0.search.parameters.len();
        let rows = n.div_ceil(COLUMNS) as u32;
        (60 + 390 * n.min(COLUMNS) as u32, 20 + 340 * rows)
    }

    fn draw<DB: DrawingBackend>(&self, area: &Area<DB>, canvas: Canvas) -> Drawn<DB> {
        let shown = self.0;
        for (index, parameter) in shown.search.parameters.iter().enumerate() {
            let (column, row) = ((index % COLUMNS) as f64, (index / COLUMNS) as f64);
            let x = scale_of(&parameter.domain);
            let frame = Frame {
                left: 90.0 + 390.0 * column,
                top: 46.0 + 340.0 * row,
                width: 290.0,
                height: 230.0,
                x: &x,
                y: &shown.scale,
            };
            frame.draw(area, canvas, &shown.search.metric, &label(parameter))?;
            for (rank, (trial, value)) in shown.trials.iter().enumerate().rev() {
                let Some(place) = place(parameter, trial) else { continue };
                let (color, radius) =
                    if rank == 0 { (ORANGE, 6.0) } else { (shown.color(rank), 4.0) };
                dot(area, canvas, frame.at(place, *value), color, radius)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sweep::example_sweeps::{search, trial};

    fn example() -> (Search, Vec<Trial>) {
        let mut search = search("random");
        search.parameters = vec![
            Parameter::new("optimizer.lr", Domain::LogUniform { min: 1e-4, max: 1.0 }),
            Parameter::new(
                "optimizer.name",
                Domain::Categorical { values: vec![json!("sgd"), json!("<b>")] },
            ),
            Parameter::new("train.batch_size", Domain::IntUniform { min: 1, max: 64 }),
            Parameter::new("model.dropout", Domain::QUniform { min: 0.0, max: 0.5, q: 0.1 }),
        ];
        let trials = (1..=20)
            .map(|number| {
                let share = f64::from(number) / 20.0;
                let state = if number % 5 == 0 { State::Pruned } else { State::Finished };
                let worst = if number == 7 { 1e9 } else { (share - 0.4).abs() };
                Trial {
                    values: vec![
                        ("optimizer.lr".into(), json!(10f64.powf(-4.0 * share))),
                        (
                            "optimizer.name".into(),
                            json!(if number % 2 == 0 { "sgd" } else { "<b>" }),
                        ),
                        ("train.batch_size".into(), json!(3 * number)),
                    ],
                    ..trial(number, state, &[worst])
                }
            })
            .collect();
        (search, trials)
    }

    #[test]
    fn all_pictures_are_drawn_with_their_words() {
        let (search, trials) = example();
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &search, &Ranking::plain(search.goal), &trials).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        for (name, expected) in [
            ("history", ["val/loss of each trial, and the best so far", "trial", "best so far"]),
            ("parallel", ["next best", "&lt;b&gt;", "trial 8: val/loss 0.0000"]),
            ("importance", ["optimizer.lr", "model.dropout", "too few trials"]),
            ("slices", ["train.batch_size", "1e-3", "val/loss"]),
        ] {
            let svg = read(&format!("{name}.svg"));
            for words in expected {
                assert!(svg.contains(words), "{name}: `{words}` is missing");
            }
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name}");
            let png = image::open(folder.path().join(format!("{name}.png"))).unwrap().into_rgb8();
            let is_drawn = png.pixels().filter(|pixel| pixel.0 != [255; 3]).count();
            assert!(is_drawn > 3_000, "{name}: {is_drawn}");
        }
    }

    #[test]
    fn one_trial_and_one_parameter_can_be_drawn() {
        let (mut search, trials) = example();
        search.parameters.truncate(1);
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &search, &Ranking::plain(search.goal), &trials[..1]).unwrap();
        assert!(folder.path().join("parallel.png").exists());
    }

    #[test]
    fn a_trial_that_went_far_away_does_not_press_the_others_into_a_line() {
        let (search, trials) = example();
        let ranking = Ranking::plain(search.goal);
        let shown = Shown::new(&search, &ranking, &trials);
        assert!(shown.scale.high < 2.0, "{:?}", shown.scale);
        assert_eq!(shown.scale.share(1e9), 1.0);
    }
}
