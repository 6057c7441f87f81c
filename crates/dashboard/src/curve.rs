//! A curve as a limited number of stretches, each with its mean, lowest and highest value. Pure.

use serde::Serialize;

/// Stretches of a curve; at twice as many, neighbours become one.
const MAX_STRETCHES: usize = 1024;

/// A metric over steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Curve {
    stretches: Vec<Stretch>,
    /// Steps of a stretch.
    width: u64,
    pub(crate) extent: Extent,
}

/// The last, lowest and highest finite value of a metric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Extent {
    pub(crate) last: Option<f64>,
    pub(crate) min: Option<f64>,
    pub(crate) max: Option<f64>,
}

/// Neighbouring points.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stretch {
    from: u64,
    to: u64,
    /// Sum of the finite values.
    sum: f64,
    low: f64,
    high: f64,
    count: u32,
}

/// A curve as the page draws it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Columns {
    step: Vec<u64>,
    mean: Vec<Option<f32>>,
    /// Absent where each point stands for itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    low: Vec<Option<f32>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    high: Vec<Option<f32>>,
}

impl Extent {
    fn add(&mut self, value: f64) {
        if value.is_finite() {
            self.last = Some(value);
            self.min = Some(self.min.map_or(value, |min| min.min(value)));
            self.max = Some(self.max.map_or(value, |max| max.max(value)));
        }
    }
}

impl Stretch {
    fn of(step: u64, value: f64) -> Self {
        let low = f64::INFINITY;
        let high = f64::NEG_INFINITY;
        let mut one = Self { from: step, to: step, sum: 0.0, low, high, count: 0 };
        one.add(step, value);
        one
    }

    fn add(&mut self, step: u64, value: f64) {
        self.to = step;
        if value.is_finite() {
            self.sum += value;
            self.low = self.low.min(value);
            self.high = self.high.max(value);
            self.count += 1;
        }
    }

    fn join(&mut self, next: &Self) {
        self.to = next.to;
        self.sum += next.sum;
        self.low = self.low.min(next.low);
        self.high = self.high.max(next.high);
        self.count += next.count;
    }
}

impl Curve {
    /// Adds a point behind the others.
    pub(crate) fn push(&mut self, step: u64, value: f64) {
        self.extent.add(value);
        let width = self.width.max(1);
        match self.stretches.last_mut() {
            Some(last) if last.from / width == step / width => last.add(step, value),
            _ => self.stretches.push(Stretch::of(step, value)),
        }
        if self.stretches.len() >= 2 * MAX_STRETCHES {
            (self.stretches, self.width) = coarser(&self.stretches, width, MAX_STRETCHES);
        }
    }

    /// The steps in `from..=to` in about `points` columns, with one more on each side of them.
    pub(crate) fn columns(&self, points: usize, from: u64, to: u64) -> Columns {
        let first = self.stretches.partition_point(|stretch| stretch.to < from).saturating_sub(1);
        let last = self.stretches.partition_point(|stretch| stretch.from <= to) + 1;
        let inside = &self.stretches[first..last.min(self.stretches.len()).max(first)];
        let (shown, _) = coarser(inside, self.width.max(1), points.max(2));
        let is_exact = shown.iter().all(|stretch| stretch.count <= 1);
        let finite = |stretch: &Stretch, value: f64| (stretch.count > 0).then_some(value as f32);
        let column = |of: fn(&Stretch) -> f64| {
            shown.iter().map(|stretch| finite(stretch, of(stretch))).collect::<Vec<_>>()
        };
        let edge = |of| if is_exact { Vec::new() } else { column(of) };
        Columns {
            step: shown.iter().map(|stretch| u64::midpoint(stretch.from, stretch.to)).collect(),
            mean: column(|stretch| stretch.sum / f64::from(stretch.count)),
            low: edge(|stretch| stretch.low),
            high: edge(|stretch| stretch.high),
        }
    }

    /// True if points share a stretch.
    pub(crate) fn is_reduced(&self) -> bool {
        self.width > 1
    }
}

/// Joins stretches of a common, doubled width until there are at most `most`.
fn coarser(stretches: &[Stretch], mut width: u64, most: usize) -> (Vec<Stretch>, u64) {
    let mut joined = stretches.to_vec();
    while joined.len() > most {
        width *= 2;
        let mut next: Vec<Stretch> = Vec::with_capacity(joined.len() / 2 + 1);
        for stretch in &joined {
            match next.last_mut() {
                Some(last) if last.from / width == stretch.from / width => last.join(stretch),
                _ => next.push(*stretch),
            }
        }
        joined = next;
    }
    (joined, width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(values: impl IntoIterator<Item = (u64, f64)>) -> Curve {
        let mut curve = Curve::default();
        values.into_iter().for_each(|(step, value)| curve.push(step, value));
        curve
    }

    #[test]
    fn few_points_are_shown_as_they_are_and_a_gap_where_one_is_not_finite() {
        let few = curve([(10, 2.0), (20, f64::NAN), (30, 1.0)]);
        let columns = few.columns(100, 0, u64::MAX);
        assert_eq!(
            (columns.step, columns.mean),
            (vec![10, 20, 30], vec![Some(2.0), None, Some(1.0)])
        );
        assert!(columns.low.is_empty() && !few.is_reduced());
        assert_eq!(few.extent, Extent { last: Some(1.0), min: Some(1.0), max: Some(2.0) });
    }

    #[test]
    fn of_many_points_the_extremes_and_the_mean_are_kept() {
        let value = |step: u64| if step == 54_321 { 99.0 } else { (step % 7) as f64 };
        let many = curve((1..=100_000).map(|step| (step, value(step))));
        let columns = many.columns(300, 0, u64::MAX);
        assert!((100..=300).contains(&columns.step.len()), "{}", columns.step.len());
        assert_eq!(columns.high.iter().flatten().copied().fold(0.0, f32::max), 99.0);
        assert_eq!(columns.low.iter().flatten().copied().fold(9.0, f32::min), 0.0);
        let mean = columns.mean.iter().flatten().sum::<f32>() / columns.mean.len() as f32;
        assert!((mean - 3.0).abs() < 0.02, "{mean}");
        assert!(columns.step.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn a_range_is_shown_with_a_neighbour_on_each_side() {
        let few = curve((1..=10).map(|step| (10 * step, step as f64)));
        assert_eq!(few.columns(100, 35, 55).step, [30, 40, 50, 60]);
        assert!(few.columns(100, 500, 600).step.len() <= 1);
        assert!(Curve::default().columns(100, 0, 9).step.is_empty());
    }
}
