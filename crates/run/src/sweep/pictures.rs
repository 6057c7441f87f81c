//! Pictures of a sweep: the best value over time, parallel coordinates, the importance of each
//! parameter, and the metric over each parameter.

use std::path::Path;

use plotters::prelude::*;

use crate::config::schema::Mode;
use crate::config::sweep::{Domain, Json, Parameter, Search, value_of};
use crate::record::text::{escape, hyperparameter, is_share, metric};
use crate::report::canvas::{Area, Canvas, Drawn, FAINT_INK, FRAME, INK, Lettering, write_words};
use crate::report::picture::{self, Picture};
use crate::sweep::Error;
use crate::sweep::chart::{
    BLUE, Entry, Frame, GREY, ORANGE, Scale, Side, beyond, legend, line, small, veil,
};
use crate::sweep::coordinates::place_of;
use crate::sweep::importance::importance;
use crate::sweep::ranking::{Ranking, best};
use crate::sweep::repeats::repeats;
use crate::sweep::trial::{State, Trial, cost};

/// Data of all pictures.
struct ChartData<'a> {
    search: &'a Search,
    ranking: &'a Ranking,
    /// Trials with a finite value, best first.
    trials: Vec<(&'a Trial, f64)>,
    /// All trials, in order of their starts.
    all: &'a [Trial],
    /// Axis of the metric.
    scale: Scale,
}

/// Draws all pictures into the sweep's folder.
pub(crate) fn write(
    folder: &Path,
    search: &Search,
    ranking: &Ranking,
    trials: &[Trial],
) -> Result<(), Error> {
    let shown = ChartData::new(search, ranking, trials);
    picture::write(&History(&shown), folder, ["history.png", "history.svg"])?;
    if !search.parameters.is_empty() {
        picture::write(&Parallel(&shown), folder, ["parallel.png", "parallel.svg"])?;
        picture::write(&Importance(&shown), folder, ["importance.png", "importance.svg"])?;
        picture::write(&Slices(&shown), folder, ["slices.png", "slices.svg"])?;
    }
    Ok(())
}

/// Maximum factor by which the worst values may extend the axis of the metric.
const MAX_STRETCH: f64 = 3.0;

impl<'a> ChartData<'a> {
    fn new(search: &'a Search, ranking: &'a Ranking, all: &'a [Trial]) -> Self {
        let goal = search.goal;
        let trials: Vec<(&Trial, f64)> = ranking
            .ranked(all)
            .into_iter()
            .filter_map(|trial| Some((trial, trial.value(goal)?)))
            .collect();
        let mut values: Vec<f64> = trials.iter().map(|(_, value)| *value).collect();
        values.sort_by(|a, b| cost(Some(*a), goal).total_cmp(&cost(Some(*b), goal)));
        // One diverged trial must not press all others into a line: those of the worst tenth that
        // would stretch the axis much stand at the border.
        let most = (values.len() * 9).div_ceil(10);
        if let [first, .., last] = values[..most] {
            let range = MAX_STRETCH * (last - first).abs();
            let is_near = |value: &f64| (value - first).abs() <= range;
            values
                .truncate(most + values[most..].iter().take_while(|value| is_near(value)).count());
        }
        let values = values.into_iter();
        let scale =
            if is_share(&search.metric) { Scale::of_shares(values) } else { Scale::of(values) };
        Self { search, ranking, trials, all, scale }
    }

    fn goal(&self) -> Mode {
        self.search.goal
    }

    /// Legend of the marks at the border, if there are any. A diverged trial may have no value.
    fn beyond_entry(&self) -> Option<Entry> {
        let is_beyond = |(_, value): &(&Trial, f64)| self.scale.side_of(*value).is_some();
        let is_there = self.trials.iter().any(is_beyond) || self.without_value().next().is_some();
        is_there.then(|| Entry::beyond("beyond the axis", FAINT_INK, self.worse()))
    }

    /// The end of the metric's axis where the worst are.
    fn worse(&self) -> Side {
        match self.goal() {
            Mode::Min => Side::High,
            Mode::Max => Side::Low,
        }
    }

    /// Value at that end.
    fn worst(&self) -> f64 {
        match self.worse() {
            Side::High => self.scale.high,
            Side::Low => self.scale.low,
        }
    }

    /// Diverged trials whose metric was never finite.
    fn without_value(&self) -> impl Iterator<Item = &'a Trial> {
        let (all, goal) = (self.all, self.goal());
        all.iter()
            .filter(move |trial| trial.state == State::Diverged && trial.value(goal).is_none())
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
    escape(&hyperparameter(value)).into_owned()
}

/// The axis of a parameter.
fn scale_of(domain: &Domain) -> Scale {
    match domain {
        Domain::Categorical { values } => {
            let mut words: Vec<(usize, String)> =
                places(values).into_iter().zip(values.iter().map(word)).collect();
            words.sort();
            Scale::of_words(words.into_iter().map(|(_, word)| word))
        }
        Domain::LogUniform { min, max } => Scale::of_logarithms(min.ln(), max.ln()),
        Domain::IntLogUniform { min, max } => {
            Scale::of_logarithms((*min as f64).ln(), (*max as f64).ln())
        }
        Domain::Uniform { min, max } | Domain::QUniform { min, max, .. } => {
            Scale::of([*min, *max].into_iter())
        }
        Domain::IntUniform { min, max } => Scale::of_whole(*min as f64, *max as f64),
    }
}

/// The place of each value of a list on its axis: numbers by their size, and no value after them;
/// words as they were written.
fn places(values: &[Json]) -> Vec<usize> {
    let size = |value: &Json| if value.is_null() { Some(f64::INFINITY) } else { value.as_f64() };
    let Some(sizes) = values.iter().map(size).collect::<Option<Vec<f64>>>() else {
        return (0..values.len()).collect();
    };
    sizes.iter().map(|own| sizes.iter().filter(|other| *other < own).count()).collect()
}

/// Coordinate of a trial on a parameter's axis.
fn place(parameter: &Parameter, trial: &Trial) -> Option<f64> {
    let value = value_of(&trial.values, &parameter.key)?;
    if !parameter.is_active(&trial.values) {
        return None;
    }
    let place = place_of(&parameter.domain, value)?;
    match &parameter.domain {
        Domain::Categorical { values } => Some(*places(values).get(place as usize)? as f64),
        _ => Some(place),
    }
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

struct History<'a>(&'a ChartData<'a>);

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
            frame.dot(area, canvas, (f64::from(trial.number), value), color, radius)?;
        }
        for trial in shown.without_value() {
            let at = frame.at(f64::from(trial.number), shown.worst());
            beyond(area, canvas, at, shown.worse(), GREY)?;
        }
        let best = if self.has_means() { "best mean so far" } else { "best so far" };
        let entries = [
            Entry::dot("finished", BLUE),
            Entry::dot("pruned or diverged", GREY),
            Entry::line(best, ORANGE),
        ];
        let entries: Vec<Entry> = entries.into_iter().chain(shown.beyond_entry()).collect();
        legend(
            area,
            canvas,
            (600.0 - 120.0 * (entries.len() - 3) as f64, frame.top - 14.0),
            &entries,
        )
    }
}

impl History<'_> {
    fn has_means(&self) -> bool {
        !repeats(self.0.all, self.0.goal()).is_empty()
    }

    /// Best value (or mean over a setting) of the finished trials up to each trial, as a line of
    /// steps up to trial `last`.
    fn best_so_far(&self, frame: &Frame<'_>, last: u32) -> Vec<(f64, f64)> {
        let mut trials: Vec<&Trial> = self.0.all.iter().collect();
        trials.sort_by_key(|trial| trial.number);
        let mut known: Vec<Trial> = Vec::new();
        let mut before: Option<f64> = None;
        let mut steps = Vec::new();
        for trial in trials.into_iter().filter(|trial| trial.state == State::Finished) {
            known.push(trial.clone());
            let best = self.reached_by_best(&known, before, trial);
            if best != before {
                let at = f64::from(trial.number);
                steps.extend(before.map(|before| frame.at(at, before)));
                steps.extend(best.map(|best| frame.at(at, best)));
                before = best;
            }
        }
        steps.extend(before.map(|best| frame.at(f64::from(last), best)));
        steps
    }

    /// The value, or mean, of the best of the `known` trials; without the last one, `newest`, it
    /// was `before`.
    fn reached_by_best(&self, known: &[Trial], before: Option<f64>, newest: &Trial) -> Option<f64> {
        let goal = self.0.goal();
        if !self.has_means() {
            let value = newest.value(goal);
            let is_better = cost(value, goal) < cost(before, goal);
            return if is_better { value } else { before };
        }
        let settings = repeats(known, goal);
        let mean = settings.first().map(|setting| setting.mean);
        mean.or_else(|| best(known, goal).and_then(|best| best.value(goal)))
    }
}

struct Parallel<'a>(&'a ChartData<'a>);

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
        axes.draw_beyond(area, canvas)?;
        let entries = [
            Entry::line("best trial", ORANGE),
            Entry::line("next best", BLUE),
            Entry::line("worst", GREY),
        ];
        let entries: Vec<Entry> = entries.into_iter().chain(self.0.beyond_entry()).collect();
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
    shown: &'a ChartData<'a>,
    scales: Vec<Scale>,
    /// Width of the picture.
    width: f64,
}

impl<'a> Axes<'a> {
    /// Logical pixels.
    const TOP: f64 = 90.0;
    const HEIGHT: f64 = 400.0;
    /// Height at which lines pass the axis of a parameter that did not count.
    const UNUSED: f64 = Self::TOP + Self::HEIGHT + 20.0;

    fn of(shown: &'a ChartData<'a>, width: f64) -> Self {
        let parameters = shown.search.parameters.iter();
        let mut scales: Vec<Scale> = parameters.map(|p| scale_of(&p.domain)).collect();
        scales.push(shown.scale.clone());
        Self { shown, scales, width }
    }

    /// Index of the metric's axis.
    fn last(&self) -> usize {
        self.scales.len() - 1
    }

    fn x(&self, axis: usize) -> f64 {
        100.0 + (self.width - 200.0) * axis as f64 / self.last().max(1) as f64
    }

    fn y(&self, axis: usize, place: f64) -> f64 {
        Self::TOP + Self::HEIGHT * (1.0 - self.scales[axis].share(place))
    }

    /// Points at which the line of a trial meets the axes.
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
        for trial in self.shown.without_value() {
            line(area, canvas, self.path(trial, self.shown.worst()), canvas.line(GREY, 1.4))?;
        }
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

    /// Marks the ends of lines whose metric is beyond its axis.
    fn draw_beyond<DB: DrawingBackend>(&self, area: &Area<DB>, canvas: Canvas) -> Drawn<DB> {
        let axis = self.last();
        if self.shown.without_value().next().is_some() {
            let at = (self.x(axis), self.y(axis, self.shown.worst()));
            beyond(area, canvas, at, self.shown.worse(), GREY)?;
        }
        for (rank, (_, value)) in self.shown.trials.iter().enumerate().rev() {
            if let Some(side) = self.scales[axis].side_of(*value) {
                let color = if rank == 0 { ORANGE } else { self.shown.color(rank) };
                beyond(area, canvas, (self.x(axis), self.y(axis, *value)), side, color)?;
            }
        }
        Ok(())
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

struct Importance<'a>(&'a ChartData<'a>);

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

struct Slices<'a>(&'a ChartData<'a>);

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
            let column = (index % COLUMNS) as f64;
            let row = (index / COLUMNS) as f64;
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
                frame.dot(area, canvas, (place, *value), color, radius)?;
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
        let shown = ChartData::new(&search, &ranking, &trials);
        assert!(shown.scale.high < 2.0, "{:?}", shown.scale);
        assert_eq!(shown.scale.share(1e9), 1.0);
        // It is marked as what is not on the axis.
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &search, &ranking, &trials).unwrap();
        for name in ["history", "parallel"] {
            let svg = std::fs::read_to_string(folder.path().join(format!("{name}.svg"))).unwrap();
            assert!(svg.contains("beyond the axis") && svg.contains("<polygon"), "{name}");
        }
        // One that diverged at once is there, too; and a value that is but somewhat worse is no such.
        let mut diverged = trials[..3].to_vec();
        diverged[2] = trial(3, State::Diverged, &[]);
        write(folder.path(), &search, &ranking, &diverged).unwrap();
        for name in ["history", "parallel"] {
            let svg = std::fs::read_to_string(folder.path().join(format!("{name}.svg"))).unwrap();
            assert!(svg.contains("beyond the axis") && svg.contains("<polygon"), "{name}");
        }
        let mut spread: Vec<Trial> =
            (1..=10u32).map(|n| trial(n, State::Finished, &[f64::from(n)])).collect();
        spread.push(trial(11, State::Finished, &[14.0]));
        assert!(ChartData::new(&search, &ranking, &spread).scale.high >= 14.0);
        let near: Vec<Trial> = trials.into_iter().filter(|trial| trial.number != 7).collect();
        write(folder.path(), &search, &ranking, &near[..3]).unwrap();
        let svg = std::fs::read_to_string(folder.path().join("history.svg")).unwrap();
        assert!(!svg.contains("beyond the axis"));
    }

    #[test]
    fn numbers_of_a_list_stand_by_their_size_and_words_as_they_were_written() {
        let numbers = [json!(256), json!(32), json!(null), json!(64.5)];
        assert_eq!(places(&numbers), [2, 0, 3, 1]);
        let scale = scale_of(&Domain::Categorical { values: numbers.to_vec() });
        let words: Vec<&str> = scale.ticks.iter().map(|(_, word)| word.as_str()).collect();
        assert_eq!(words, ["32", "64.5", "256", "off"]);
        assert_eq!(places(&[json!("b"), json!("a"), json!(1)]), [0, 1, 2]);
        let values = Domain::Categorical { values: numbers.to_vec() };
        let trial = Trial {
            values: vec![("train.batch_size".into(), json!(256))],
            ..trial(1, State::Finished, &[1.0])
        };
        assert_eq!(place(&Parameter::new("train.batch_size", values), &trial), Some(2.0));
    }
}
