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
use crate::sweep::chart::{BLUE, Frame, GREY, ORANGE, Scale, dot, legend, line, tag};
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
        let mut best: Option<f64> = None;
        let mut steps: Vec<(f64, f64)> = Vec::new();
        for trial in shown.all {
            let Some(value) = trial.value(shown.goal()) else { continue };
            let at = frame.at(f64::from(trial.number), value);
            let is_whole = trial.state == State::Finished;
            let (color, radius) = if is_whole { (BLUE, 4.5) } else { (GREY, 3.5) };
            dot(area, canvas, at, color, radius)?;
            if is_whole {
                let before = best.unwrap_or(f64::NAN);
                let is_better = best.is_none_or(|best| {
                    cost(Some(value), shown.goal()) < cost(Some(best), shown.goal())
                });
                if is_better {
                    steps.extend(best.map(|_| frame.at(f64::from(trial.number), before)));
                    steps.push(at);
                    best = Some(value);
                }
            }
        }
        steps.extend(best.map(|best| frame.at(f64::from(last), best)));
        line(area, canvas, steps, canvas.line(ORANGE, 2.4))?;
        let entries = [("finished", BLUE), ("pruned or diverged", GREY), ("best so far", ORANGE)];
        let entries = entries.map(|(label, color)| (label.to_owned(), color));
        legend(area, canvas, (520.0, 24.0), &entries)
    }
}

struct Parallel<'a>(&'a Shown<'a>);

impl Picture for Parallel<'_> {
    fn size(&self) -> (u32, u32) {
        let n = self.0.search.parameters.len() as u32 + 1;
        (240 + 170 * n.max(2), 540)
    }

    fn draw<DB: DrawingBackend>(&self, area: &Area<DB>, canvas: Canvas) -> Drawn<DB> {
        const TOP: f64 = 70.0;
        const HEIGHT: f64 = 400.0;
        /// Where the lines of trials pass in which a parameter did not count.
        const UNUSED: f64 = TOP + HEIGHT + 20.0;
        let shown = self.0;
        let parameters = &shown.search.parameters;
        let mut scales: Vec<Scale> = parameters.iter().map(|p| scale_of(&p.domain)).collect();
        scales.push(shown.scale.clone());
        let width = f64::from(self.size().0);
        let x =
            |axis: usize| 100.0 + (width - 200.0) * axis as f64 / (scales.len() - 1).max(1) as f64;
        let y = |axis: usize, place: f64| TOP + HEIGHT * (1.0 - scales[axis].share(place));
        // The best are drawn last, above all others.
        for (rank, (trial, value)) in shown.trials.iter().enumerate().rev() {
            let places = parameters.iter().enumerate().map(|(axis, parameter)| {
                let height = place(parameter, trial).map_or(UNUSED, |place| y(axis, place));
                (x(axis), height)
            });
            let end = (x(parameters.len()), y(parameters.len(), *value));
            let (color, width) = if rank == 0 { (ORANGE, 3.0) } else { (shown.color(rank), 1.4) };
            line(area, canvas, places.chain([end]), canvas.line(color, width))?;
        }
        for (axis, _) in parameters.iter().enumerate().filter(|(_, p)| !p.when.is_empty()) {
            let at = (x(axis) - 8.0, UNUSED);
            tag(area, canvas, "not used", at)?;
        }
        let names = parameters.iter().map(label);
        for (axis, name) in names.chain([shown.search.metric.clone()]).enumerate() {
            line(area, canvas, [(x(axis), TOP), (x(axis), TOP + HEIGHT)], canvas.line(FRAME, 1.5))?;
            let style = Lettering::centered(15.0, INK);
            write_words(area, canvas, &name, (x(axis), TOP - 24.0), style)?;
            for (place, label) in &scales[axis].ticks {
                let at = (x(axis) - 8.0, y(axis, *place));
                tag(area, canvas, label, at)?;
            }
        }
        let best = shown.trials.first().map(|(trial, value)| {
            format!(
                "trial {}: {} {}",
                trial.number,
                shown.search.metric,
                metric(&shown.search.metric, *value)
            )
        });
        let style = Lettering::centered(15.0, ORANGE);
        write_words(
            area,
            canvas,
            &best.unwrap_or_default(),
            (width / 2.0, TOP + HEIGHT + 48.0),
            style,
        )
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
            ("parallel", ["optimizer.lr", "&lt;b&gt;", "trial 8: val/loss 0.0000"]),
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
