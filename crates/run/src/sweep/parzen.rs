//! Densities of good and of other trials, as sums of bumps around them: the multivariate Parzen
//! estimator of Optuna 5's `TPESampler`, with its defaults (Watanabe 2023,
//! <https://arxiv.org/abs/2304.11127>).
//!
//! Every observation is a product of one bump per axis, and one more wide bump, the prior, covers
//! everything: on an axis of numbers a normal distribution cut off at its ends, on an axis of
//! choices a slightly smoothed certainty.

use crate::rng::Stream;

/// Candidates of which the best is taken.
const CANDIDATES: usize = 24;
/// Newest observations that count fully; older ones fade linearly.
const FRESH: usize = 25;

/// One dimension of a space.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Axis {
    /// Numbers from `low` to `high`; `step` 0 for any, else multiples of it above `low`.
    Numbers { low: f64, high: f64, step: f64 },
    /// One of `n`, as its index.
    Choices { n: usize },
}

/// A normal distribution before it is cut off at the ends of its axis; of choices, only the centre
/// counts.
#[derive(Clone, Copy, Debug)]
struct Bump {
    center: f64,
    width: f64,
}

/// The density of some observations.
struct Density<'a> {
    axes: &'a [Axis],
    observations: &'a [Vec<f64>],
    /// Weight of each observation, then of the prior; their sum is 1.
    weights: Vec<f64>,
    /// For each axis, the width of the bump of each observation.
    widths: Vec<Vec<f64>>,
}

/// The point, of [`CANDIDATES`] drawn from the density of the `good`, at which good ones are most
/// likely in proportion to `others`: expected improvement, as Bergstra et al. (2011) show.
pub(crate) fn suggest(
    axes: &[Axis],
    good: &[Vec<f64>],
    others: &[Vec<f64>],
    stream: &mut Stream,
) -> Vec<f64> {
    let good = Density::new(axes, good);
    let others = Density::new(axes, others);
    let mut best = (f64::NEG_INFINITY, Vec::new());
    for _ in 0..CANDIDATES {
        let point = good.draw(stream);
        let gain = good.log(&point) - others.log(&point);
        if gain > best.0 || best.1.is_empty() {
            best = (gain, point);
        }
    }
    best.1
}

/// Weights of `n` observations, oldest first.
fn fading(n: usize) -> Vec<f64> {
    let old = n.saturating_sub(FRESH);
    let first = 1.0 / n.max(1) as f64;
    let step = if old > 1 { (1.0 - first) / (old - 1) as f64 } else { 0.0 };
    (0..n).map(|index| if index < old { first + step * index as f64 } else { 1.0 }).collect()
}

impl<'a> Density<'a> {
    /// The density of `observations`, oldest first, each with a number per axis.
    fn new(axes: &'a [Axis], observations: &'a [Vec<f64>]) -> Self {
        let n = observations.len();
        let mut weights = fading(n);
        weights.push(1.0);
        let sum: f64 = weights.iter().sum();
        for weight in &mut weights {
            *weight /= sum;
        }
        let widths = axes.iter().enumerate().map(|(index, axis)| {
            let centers: Vec<f64> = observations.iter().map(|point| point[index]).collect();
            axis.widths(&centers)
        });
        let widths = widths.collect();
        Self { axes, observations, weights, widths }
    }

    /// A random point.
    fn draw(&self, stream: &mut Stream) -> Vec<f64> {
        let share = stream.uniform();
        let mut sum = 0.0;
        let last = self.weights.len() - 1;
        let kernel = self.weights.iter().position(|weight| {
            sum += weight;
            share < sum
        });
        let kernel = kernel.unwrap_or(last);
        let axis = |index: usize| {
            self.axes[index].draw(self.bump(kernel, index), self.smoothing(), stream)
        };
        (0..self.axes.len()).map(axis).collect()
    }

    /// The logarithm of the density at a point.
    fn log(&self, point: &[f64]) -> f64 {
        let logs: Vec<f64> = self
            .weights
            .iter()
            .enumerate()
            .map(|(kernel, weight)| {
                let axes = self.axes.iter().enumerate().map(|(index, axis)| {
                    axis.log(point[index], self.bump(kernel, index), self.smoothing())
                });
                weight.ln() + axes.sum::<f64>()
            })
            .collect();
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if most == f64::NEG_INFINITY {
            return most;
        }
        most + logs.iter().map(|log| (log - most).exp()).sum::<f64>().ln()
    }

    /// The bump of an observation on an axis; `None` for the prior, which is the last.
    fn bump(&self, kernel: usize, axis: usize) -> Option<Bump> {
        let center = self.observations.get(kernel)?[axis];
        Some(Bump { center, width: self.widths[axis][kernel] })
    }

    /// Pseudo-count of every choice.
    fn smoothing(&self) -> f64 {
        1.0 / self.weights.len() as f64
    }
}

impl Axis {
    /// From end to end, half a step more on each side.
    fn span(&self) -> f64 {
        match self {
            Self::Numbers { low, high, step } => high - low + step,
            Self::Choices { .. } => 1.0,
        }
    }

    /// A random value of the bump at `center`, of the prior if there is none.
    fn draw(&self, bump: Option<Bump>, smoothing: f64, stream: &mut Stream) -> f64 {
        match *self {
            Self::Numbers { low, high, step } => {
                let Bump { center, width } = bump.unwrap_or_else(|| self.prior());
                let least = low - step / 2.0;
                let most = high + step / 2.0;
                let value = loop {
                    // The centre is inside and the width at most the span: a third of the draws or
                    // more are, too.
                    let value = center + width * stream.normal();
                    if (least..=most).contains(&value) {
                        break value;
                    }
                };
                if step == 0.0 {
                    return value;
                }
                (low + ((value - low) / step).round() * step).clamp(low, high)
            }
            Self::Choices { n } => {
                let observed = bump.map(|bump| bump.center as usize);
                let share = stream.uniform();
                let mut sum = 0.0;
                let found = (0..n).find(|&choice| {
                    sum += probability(choice, observed, n, smoothing);
                    share < sum
                });
                found.unwrap_or(n.saturating_sub(1)) as f64
            }
        }
    }

    /// Logarithm of the density (of the probability, for steps and choices) of the bump at
    /// `center`.
    fn log(&self, value: f64, bump: Option<Bump>, smoothing: f64) -> f64 {
        match *self {
            Self::Numbers { low, high, step } => {
                let Bump { center, width } = bump.unwrap_or_else(|| self.prior());
                let z = |value: f64| (value - center) / width;
                let whole = mass(z(low - step / 2.0), z(high + step / 2.0)).ln();
                if step > 0.0 {
                    return mass(z(value - step / 2.0), z(value + step / 2.0)).ln() - whole;
                }
                let root = (std::f64::consts::TAU).sqrt() * width;
                -0.5 * z(value).powi(2) - root.ln() - whole
            }
            Self::Choices { n } => {
                let observed = bump.map(|bump| bump.center as usize);
                probability(value as usize, observed, n, smoothing).ln()
            }
        }
    }

    /// The bump that covers everything.
    fn prior(&self) -> Bump {
        match self {
            Self::Numbers { low, high, .. } => {
                Bump { center: f64::midpoint(*low, *high), width: self.span() }
            }
            Self::Choices { .. } => Bump { center: 0.0, width: 1.0 },
        }
    }

    /// The width of the bump at each of `centers`: the distance to the farther of its two
    /// neighbours, from a part of the span, which gets smaller with their number, to all of it. An
    /// outermost one has one neighbour; one alone has the ends of the axis.
    fn widths(&self, centers: &[f64]) -> Vec<f64> {
        let n = centers.len();
        let Self::Numbers { low, high, step } = *self else { return vec![1.0; n] };
        let ends = [low - step / 2.0, high + step / 2.0];
        let narrowest = self.span() / (n as f64 + 2.0).min(100.0);
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by(|&a, &b| centers[a].total_cmp(&centers[b]));
        let mut widths = vec![0.0; n];
        for (place, &index) in order.iter().enumerate() {
            let center = centers[index];
            let next = order.get(place + 1).map(|&next| centers[next] - center);
            let last = place.checked_sub(1).map(|last| center - centers[order[last]]);
            let farther = match (last, next) {
                (None, None) => (center - ends[0]).max(ends[1] - center),
                (last, next) => last.unwrap_or(0.0).max(next.unwrap_or(0.0)),
            };
            widths[index] = farther.clamp(narrowest, self.span());
        }
        widths
    }
}

fn probability(choice: usize, observed: Option<usize>, n: usize, smoothing: f64) -> f64 {
    match observed {
        None => 1.0 / n as f64,
        Some(observed) => {
            let seen = if choice == observed { 1.0 } else { 0.0 };
            (smoothing + seen) / (1.0 + n as f64 * smoothing)
        }
    }
}

/// Probability that a standard normal number lies between `low` and `high`; never quite 0.
pub(super) fn mass(low: f64, high: f64) -> f64 {
    // Differences of numbers near 1 would lose what matters: the upper tail is taken by its mirror
    // image.
    let (low, high) = if low > 0.0 { (-high, -low) } else { (low, high) };
    (below(high) - below(low)).max(1e-300)
}

/// Probability that a standard normal number is less than `z`: erfc by Numerical Recipes (Press et
/// al. 1992, section 6.2), whose relative error is below 1.2e-7 everywhere.
fn below(z: f64) -> f64 {
    let x = -z / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.5 * x.abs());
    let coefficients = [
        0.170_872_77,
        -0.822_152_23,
        1.488_515_87,
        -1.135_203_98,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_68,
        -1.265_512_23,
    ];
    let series = coefficients.iter().fold(0.0, |sum, coefficient| sum * t + coefficient);
    let tail = t * (-x * x + series).exp();
    0.5 * if x >= 0.0 { tail } else { 2.0 - tail }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Key, Purpose};

    const LINE: Axis = Axis::Numbers { low: -1.0, high: 3.0, step: 0.0 };

    fn stream(seed: u64) -> Stream {
        Key::new(seed, Purpose::Sweep, 0, 0).stream()
    }

    #[test]
    fn the_normal_distribution_is_that_of_the_tables() {
        for (z, expected) in [
            (0.0, 0.5),
            (1.0, 0.841_344_75),
            (-1.959_964, 0.025),
            (3.0, 0.998_650_1),
            (-6.0, 9.865_9e-10),
        ] {
            let error = (below(z) / expected - 1.0).abs();
            assert!(error < 1e-5, "{z}: {} {expected}", below(z));
        }
        assert!((mass(5.0, 6.0) / 2.856_650e-7 - 1.0).abs() < 1e-4);
    }

    #[test]
    fn old_observations_fade_and_the_newest_25_count_fully() {
        assert_eq!(fading(3), [1.0, 1.0, 1.0]);
        let weights = fading(29);
        assert_eq!(weights.len(), 29);
        let expected = [1.0 / 29.0, 0.356_321_839, 0.678_160_919, 1.0];
        for (weight, expected) in weights.iter().zip(expected) {
            assert!((weight - expected).abs() < 1e-8, "{weights:?}");
        }
        assert!(weights[4..].iter().all(|weight| *weight == 1.0));
    }

    /// Integral over a line and a sum over choices.
    fn total(density: &Density<'_>, n: usize) -> f64 {
        let cells = 4000;
        let cell = 4.0 / f64::from(cells);
        let mut sum = 0.0;
        for index in 0..cells {
            let x = -1.0 + cell * (f64::from(index) + 0.5);
            sum += (0..n).map(|choice| density.log(&[x, choice as f64]).exp() * cell).sum::<f64>();
        }
        sum
    }

    #[test]
    fn a_density_integrates_to_one() {
        let axes = [LINE, Axis::Choices { n: 3 }];
        let observations: Vec<Vec<f64>> =
            (0..40).map(|i| vec![-1.0 + 0.1 * f64::from(i), f64::from(i % 3)]).collect();
        for n in [0, 1, 7, 40] {
            let density = Density::new(&axes, &observations[..n]);
            assert!((total(&density, 3) - 1.0).abs() < 1e-4, "{n}: {}", total(&density, 3));
        }
    }

    #[test]
    fn the_probabilities_of_steps_add_up_to_one() {
        let axes = [Axis::Numbers { low: 2.0, high: 8.0, step: 2.0 }];
        let density = Density::new(&axes, &[]);
        let with = [vec![8.0], vec![8.0], vec![2.0]];
        for density in [&density, &Density::new(&axes, &with)] {
            let sum: f64 = [2.0, 4.0, 6.0, 8.0].iter().map(|x| density.log(&[*x]).exp()).sum();
            assert!((sum - 1.0).abs() < 1e-5, "{sum}");
        }
        let mut stream = stream(3);
        let density = Density::new(&axes, &with);
        let draws: Vec<f64> = (0..500).map(|_| density.draw(&mut stream)[0]).collect();
        assert!(draws.iter().all(|x| [2.0, 4.0, 6.0, 8.0].contains(x)));
        let eights = draws.iter().filter(|x| **x == 8.0).count();
        let expected = 500.0 * density.log(&[8.0]).exp();
        assert!((eights as f64 - expected).abs() < 50.0, "{eights} {expected}");
    }

    /// What `_ParzenEstimator` of Optuna 5.0.0 computes for the same observations.
    #[test]
    fn bumps_are_as_wide_as_optunas() {
        let line = Axis::Numbers { low: -2.0, high: 2.0, step: 0.0 };
        let steps = Axis::Numbers { low: 0.0, high: 9.0, step: 1.0 };
        let cases: [(&Axis, &[f64], &[f64]); 4] = [
            (&line, &[-1.0, 0.5, 1.0], &[1.5, 1.5, 0.8]),
            (&line, &[0.25], &[2.25]),
            (&line, &[-2.0, 2.0, -1.9, -1.99], &[2.0 / 3.0, 3.9, 3.9, 2.0 / 3.0]),
            (&steps, &[1.0, 4.0, 4.0, 9.0], &[3.0, 3.0, 5.0, 5.0]),
        ];
        for (axis, centers, expected) in cases {
            let widths = axis.widths(centers);
            let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12;
            assert!(widths.iter().zip(expected).all(near), "{widths:?} {expected:?}");
        }
        assert_eq!(line.prior().width, 4.0);
    }

    #[test]
    fn suggestions_gather_where_good_ones_are_and_others_are_not() {
        let axes = [LINE, Axis::Choices { n: 4 }];
        let good: Vec<Vec<f64>> = (0..5).map(|i| vec![2.0 + 0.05 * f64::from(i), 3.0]).collect();
        let others: Vec<Vec<f64>> =
            (0..30).map(|i| vec![-1.0 + 0.1 * f64::from(i), f64::from(i % 4)]).collect();
        let mut stream = stream(1);
        let points: Vec<Vec<f64>> =
            (0..200).map(|_| suggest(&axes, &good, &others, &mut stream)).collect();
        let near = points.iter().filter(|point| (1.5..=3.0).contains(&point[0])).count();
        let chosen = points.iter().filter(|point| point[1] == 3.0).count();
        assert!(near > 180 && chosen > 180, "{near} {chosen}");
    }
}
