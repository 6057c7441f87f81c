//! The range of an axis and the round numbers on it. Pure.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};

use crate::record::text::short;

/// Range and ticks of an axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Axis {
    pub(crate) range: Range<f64>,
    pub(crate) ticks: Vec<f64>,
}

impl Axis {
    /// Epochs 1 to `n` with whole numbers as ticks, and room for the markers of the first and last.
    pub(crate) fn of_epochs(n: usize) -> Self {
        let last = n.max(1) as f64;
        let margin = (0.02 * (last - 1.0)).max(if n <= 1 { 0.5 } else { 0.08 });
        let step = round_step((last - 1.0) / 8.0).max(1.0);
        // 1, 10, 20 ... reads better than 1, 11, 21.
        let mut ticks = multiples(step, &(step..last));
        ticks.retain(|tick| *tick > 1.0 && last - tick >= 0.6 * step);
        ticks.insert(0, 1.0);
        if n > 1 {
            ticks.push(last);
        }
        Self { range: 1.0 - margin..last + margin, ticks }
    }

    /// Steps up to `last` with round numbers as ticks, and room for the markers of the first and
    /// last.
    pub(crate) fn of_steps(last: f64) -> Self {
        let last = last.max(1.0);
        let margin = 0.02 * last;
        let step = round_step(last / 6.0).max(1.0);
        Self { range: -margin..last + margin, ticks: multiples(step, &(0.0..last + margin)) }
    }

    /// Whole numbers from `low` to `high` with some room, and round ones of them as ticks.
    pub(crate) fn of_whole(low: f64, high: f64) -> Self {
        let margin = 0.04 * (high - low).max(1.0);
        let step = round_step((high - low) / 6.0).max(1.0);
        Self { range: low - margin..high + margin, ticks: multiples(step, &(low..high)) }
    }

    /// All of `values` with some room, but not beyond `top`, nor below zero for the sake of room
    /// alone; from zero to twice the value if all are the same.
    pub(crate) fn of_values(values: impl Iterator<Item = f64>, top: f64) -> Self {
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        if low > high {
            return Self { range: 0.0..1.0, ticks: vec![0.0, 1.0] };
        }
        if low == high && low != 0.0 {
            return Self::over((2.0 * low).min(0.0)..(2.0 * low).max(0.0).min(top.max(high)));
        }
        // Nearly equal values still need a scale.
        let span = (high - low).max(0.02 * high.abs()).max(1e-12);
        let margin = 0.07 * span + 0.5 * (span - (high - low));
        let floor = if low >= 0.0 { 0.0 } else { f64::NEG_INFINITY };
        Self::over((low - margin).max(floor)..(high + margin).min(top.max(high)))
    }

    fn over(range: Range<f64>) -> Self {
        let step = round_step((range.end - range.start) / 5.0);
        let ticks = multiples(step, &range);
        Self { range, ticks }
    }

    /// A tick with as many decimals as all of them need.
    pub(crate) fn tick(&self, value: f64) -> String {
        let step =
            self.ticks.windows(2).map(|pair| pair[1] - pair[0]).fold(f64::INFINITY, f64::min);
        let decimals = -(step * 1.001).log10().floor();
        if (0.0..=4.0).contains(&decimals) {
            let decimals = decimals as usize;
            format!("{value:.decimals$}")
        } else {
            short(value)
        }
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (start, end): (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        start + (share * f64::from(end - start)).round() as i32
    }

    /// The ticks, and no finer points between them.
    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// 1, 2 or 5 times a power of ten, whichever is nearest to `rough` by ratio.
fn round_step(rough: f64) -> f64 {
    let rough = rough.max(1e-300);
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let distance = |step: f64| (step / rough).ln().abs();
    steps.into_iter().min_by(|a, b| distance(*a).total_cmp(&distance(*b))).unwrap_or(power)
}

fn multiples(step: f64, range: &Range<f64>) -> Vec<f64> {
    let first = (range.start / step).ceil() as i64;
    let last = (range.end / step).floor() as i64;
    (first..=last).map(|n| n as f64 * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_are_whole_numbers_and_the_last_one_is_always_there() {
        let ticks = |n| Axis::of_epochs(n).ticks;
        assert_eq!(ticks(1), [1.0]);
        assert_eq!(ticks(2), [1.0, 2.0]);
        assert_eq!(ticks(5), [1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(ticks(100), [1.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0]);
        assert_eq!(ticks(43), [1.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 43.0]);
    }

    #[test]
    fn steps_begin_at_zero_and_have_round_ticks() {
        let axis = Axis::of_steps(620.0);
        assert_eq!(axis.ticks, [0.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0]);
        assert!(axis.range.start < 0.0 && axis.range.end > 620.0);
        assert_eq!(Axis::of_steps(1.0).ticks, [0.0, 1.0]);
    }

    #[test]
    fn whole_numbers_have_whole_ticks_within_their_ends() {
        assert_eq!(Axis::of_whole(1.0, 4.0).ticks, [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(Axis::of_whole(1.0, 64.0).ticks, [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]);
        let one = Axis::of_whole(1.0, 1.0);
        assert!(one.ticks == [1.0] && one.range.start < one.range.end, "{one:?}");
    }

    #[test]
    fn ticks_are_round_and_inside() {
        let axis = Axis::of_values([31.2, 97.9].into_iter(), 100.0);
        assert_eq!(axis.ticks, [40.0, 60.0, 80.0, 100.0]);
        assert_eq!(axis.range.end, 100.0);
        for values in [[0.3, 0.3], [0.0, 0.0], [1e-9, 2e5], [-3.0, -2.5], [99.9, 100.0]] {
            let axis = Axis::of_values(values.into_iter(), 100.0);
            assert!(axis.range.start < axis.range.end, "{axis:?}");
            assert!(axis.ticks.len() > 2, "{axis:?}");
            let spans = |value: &f64| axis.range.start <= *value && *value <= axis.range.end;
            assert!(axis.ticks.iter().chain(&values).all(spans), "{axis:?}");
        }
    }

    #[test]
    fn ticks_have_as_many_decimals_as_they_need() {
        let ticks = |values: [f64; 2]| {
            let axis = Axis::of_values(values.into_iter(), f64::INFINITY);
            axis.ticks.iter().map(|tick| axis.tick(*tick)).collect::<Vec<_>>()
        };
        assert_eq!(ticks([0.02, 1.9]), ["0.0", "0.5", "1.0", "1.5", "2.0"]);
        assert_eq!(ticks([0.0, 9e-5]), ["0", "2e-5", "4e-5", "6e-5", "8e-5"]);
        assert_eq!(ticks([21.0, 98.0]), ["20", "40", "60", "80", "100"]);
    }

    #[test]
    fn a_constant_stands_between_zero_and_twice_its_value() {
        let of = |value: f64, top: f64| Axis::of_values([value; 3].into_iter(), top);
        let rate = of(1e-3, f64::INFINITY);
        assert_eq!(rate.range, 0.0..2e-3);
        let words: Vec<String> = rate.ticks.iter().map(|tick| rate.tick(*tick)).collect();
        assert_eq!(words, ["0.0000", "0.0005", "0.0010", "0.0015", "0.0020"]);
        assert_eq!(of(-2.0, 0.0).range, -4.0..0.0);
        assert_eq!(of(97.0, 100.0).range, 0.0..100.0);
    }

    #[test]
    fn no_values_still_make_an_axis() {
        let axis = Axis::of_values(std::iter::empty(), 100.0);
        assert_eq!(axis.ticks, [0.0, 1.0]);
    }
}
