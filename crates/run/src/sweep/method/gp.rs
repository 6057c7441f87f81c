//! `sweep.method = "gp"`
//!
//! One Gaussian process over all parameters. A parameter that does not count in a trial, because its
//! condition does not hold, stands at the same place in all such trials. Choices that are all numbers
//! are an axis of their ranks. Trials that run are believed to give what is expected of them, so that
//! trials of the same time do not all try the same place. A draw is a pure function of the seed, the
//! trial's number and what the other trials have reported.

use gaussian_process::{Axis, GaussianProcess};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Requirement};
use crate::config::sweep::{Domain, Json, Parameter, Search, Values, as_written, value_of};
use crate::rng::{Key, Purpose, Stream};
use crate::sweep::coordinates::{
    as_it_ran, axis, draw_repeats, place_of, repeats_and_modelled, value_at,
};
use crate::sweep::method::{Method, N_STARTUP_TRIALS, ProposalRequest};
use crate::sweep::parzen;
use crate::sweep::sampler::{self, is_allowed};
use crate::sweep::trial::{State, cost};

/// Newest trials that the model knows, besides the best: its time grows with their cube.
const MOST_TRIALS: usize = 300;
/// Random points whose improvement is compared.
const N_RANDOM: usize = 1024;
/// Best trials near which points are compared, too, and their number near each.
const NEAR: (usize, usize) = (5, 40);
/// Points from which the search for the largest improvement climbs.
const N_CLIMBS: usize = 8;
/// Steps of a climb, in spans of an axis, and how often each is taken at most.
const STEPS: [f64; 8] = [0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005];
const TURNS: usize = 12;
/// Costs are cut off this many times as far above the median as the best is below it.
const OUTLIER: f64 = 1e3;
/// Keeps these draws apart from the random ones of the same trial.
const STREAM: u64 = 1 << 34;

/// Bayesian optimisation by a Gaussian process, for up to some hundred trials: ten random trials,
/// then each where the expected improvement on the best is largest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Gp {}

impl Kind for Gp {
    const NAME: &'static str = "gp";
    const REQUIREMENTS: &'static [Requirement] = &[Requirement::Parameters, Requirement::Trials];
}

impl Method for Gp {
    fn propose(&self, request: &ProposalRequest<'_>) -> Option<Values> {
        let ProposalRequest { search, number, .. } = *request;
        if request.n_ended() < N_STARTUP_TRIALS {
            return sampler::random(request);
        }
        let space = Space::of(search);
        let key = Key::new(search.seed, Purpose::Sweep, u64::from(number), STREAM);
        let drawn = || {
            let Measured { points, costs, running } = Measured::of(request, &space);
            let model = GaussianProcess::fit(&space.kernel_axes(), points.clone(), &costs)?;
            let model = model.believing(&running);
            let candidates = Candidates { space: &space, request, model: &model };
            candidates.best_first(&points, &costs, &mut key.stream()).into_iter().find_map(
                |point| {
                    let values = space.values(search, key, &point);
                    request.admits(&values).then_some(values)
                },
            )
        };
        drawn().or_else(|| sampler::random(request))
    }

    fn n_independent(&self) -> usize {
        N_STARTUP_TRIALS
    }
}

/// The parameters as axes from 0 to 1, or of choices.
struct Space<'a> {
    axes: Vec<Coordinate<'a>>,
    /// Folds and seeds, which are not modelled.
    repeats: Vec<&'a Parameter>,
    is_conditional: bool,
}

struct Coordinate<'a> {
    parameter: &'a Parameter,
    scale: Scale,
}

/// How the values of a domain lie on an axis.
enum Scale {
    /// From `low` to `high`, as multiples of `step` if it is not 0.
    Numbers { low: f64, high: f64, step: f64 },
    /// Choices that are numbers: the index of each in the order of their size.
    Ranks(Vec<usize>),
    /// So many choices without an order.
    Choices(usize),
}

impl<'a> Space<'a> {
    fn of(search: &'a Search) -> Self {
        let (repeats, modelled) = repeats_and_modelled(search);
        let is_conditional = modelled.iter().any(|parameter| !parameter.when.is_empty());
        let axes = modelled.into_iter();
        let axes =
            axes.map(|parameter| Coordinate { parameter, scale: Scale::of(&parameter.domain) });
        Self { axes: axes.collect(), repeats, is_conditional }
    }

    fn kernel_axes(&self) -> Vec<Axis> {
        let axis = |axis: &Coordinate<'_>| match axis.scale {
            Scale::Numbers { .. } | Scale::Ranks(_) => Axis::Number,
            Scale::Choices(_) => Axis::Choice,
        };
        self.axes.iter().map(axis).collect()
    }

    /// The point of a trial; `None` if it had a value that the space no longer contains.
    fn point(&self, values: &Values) -> Option<Vec<f64>> {
        let place = |axis: &Coordinate<'_>| {
            let value = value_of(values, &axis.parameter.key);
            match value.filter(|_| axis.parameter.is_active(values)) {
                Some(value) => axis.scale.place(&axis.parameter.domain, value),
                None => Some(axis.scale.neutral()),
            }
        };
        self.axes.iter().map(place).collect()
    }

    /// Rounds a point to what its values are, and moves what does not count to its neutral place.
    fn round(&self, point: &mut [f64]) {
        for (place, axis) in point.iter_mut().zip(&self.axes) {
            *place = axis.scale.round(*place);
        }
        if !self.is_conditional {
            return;
        }
        let mut values = Values::new();
        for (place, axis) in point.iter_mut().zip(&self.axes) {
            if axis.parameter.is_active(&values) {
                let value = axis.scale.value(&axis.parameter.domain, *place);
                values.push((axis.parameter.key.clone(), value));
            } else {
                *place = axis.scale.neutral();
            }
        }
    }

    /// The values at a point, with folds and seeds.
    fn values(&self, search: &Search, key: Key, point: &[f64]) -> Values {
        let mut values = Values::new();
        draw_repeats(&self.repeats, key, &mut values);
        for (place, axis) in point.iter().zip(&self.axes) {
            if axis.parameter.is_active(&values) {
                let value = axis.scale.value(&axis.parameter.domain, *place);
                values.push((axis.parameter.key.clone(), value));
            }
        }
        as_written(&search.parameters, &mut values);
        values
    }
}

impl Scale {
    fn of(domain: &Domain) -> Self {
        match (axis(domain), domain) {
            (_, Domain::Categorical { values }) => Self::of_choices(values),
            (parzen::Axis::Numbers { low, high, step }, _) => Self::Numbers { low, high, step },
            (parzen::Axis::Choices { n }, _) => Self::Choices(n),
        }
    }

    fn of_choices(values: &[Json]) -> Self {
        let numbers: Option<Vec<f64>> = values.iter().map(Json::as_f64).collect();
        let Some(numbers) = numbers.filter(|numbers| numbers.len() > 2) else {
            return Self::Choices(values.len());
        };
        let mut order: Vec<usize> = (0..numbers.len()).collect();
        order.sort_by(|&a, &b| numbers[a].total_cmp(&numbers[b]));
        Self::Ranks(order)
    }

    /// The place of a value, which the domain may not contain.
    fn place(&self, domain: &Domain, value: &Json) -> Option<f64> {
        let place = place_of(domain, value)?;
        Some(match self {
            Self::Numbers { low, high, .. } if high > low => (place - low) / (high - low),
            Self::Numbers { .. } => self.neutral(),
            Self::Ranks(order) => {
                let rank = order.iter().position(|&index| index == place as usize)?;
                rank as f64 / (order.len() - 1) as f64
            }
            Self::Choices(_) => place,
        })
    }

    /// Inverse of [`Scale::place`].
    fn value(&self, domain: &Domain, place: f64) -> Json {
        match self {
            Self::Numbers { low, high, .. } => value_at(domain, low + place * (high - low)),
            Self::Ranks(order) => {
                let rank = (place * (order.len() - 1) as f64).round() as usize;
                value_at(domain, order[rank.min(order.len() - 1)] as f64)
            }
            Self::Choices(_) => value_at(domain, place),
        }
    }

    /// The place of a parameter that does not count.
    fn neutral(&self) -> f64 {
        if let Self::Choices(_) = self { 0.0 } else { 0.5 }
    }

    /// The distance of two values that follow each other; 0 between any numbers.
    fn grain(&self) -> f64 {
        match self {
            Self::Numbers { low, high, step } if high > low => step / (high - low),
            Self::Numbers { .. } | Self::Choices(_) => 0.0,
            Self::Ranks(order) => 1.0 / (order.len() - 1) as f64,
        }
    }

    fn round(&self, place: f64) -> f64 {
        let place = place.max(0.0);
        match (self, self.grain()) {
            (Self::Choices(_), _) => place,
            (_, 0.0) => place.min(1.0),
            (_, grain) => ((place / grain).round() * grain).min(1.0),
        }
    }

    fn draw(&self, stream: &mut Stream) -> f64 {
        match self {
            Self::Choices(n) => stream.below(*n as u64) as f64,
            Self::Numbers { .. } | Self::Ranks(_) => stream.uniform(),
        }
    }

    /// Places beside `place`: a step up and down, or all other choices.
    fn beside(&self, place: f64, step: f64) -> Vec<f64> {
        match self {
            Self::Choices(n) => {
                (0..*n).map(|choice| choice as f64).filter(|choice| *choice != place).collect()
            }
            Self::Numbers { .. } | Self::Ranks(_) => {
                let step = step.max(self.grain());
                vec![(place - step).max(0.0), (place + step).min(1.0)]
            }
        }
    }
}

/// What trials say about the space.
struct Measured {
    points: Vec<Vec<f64>>,
    /// The less, the better.
    costs: Vec<f64>,
    running: Vec<Vec<f64>>,
}

impl Measured {
    fn of(request: &ProposalRequest<'_>, space: &Space<'_>) -> Self {
        let ProposalRequest { search, base, ranking, trials, .. } = *request;
        let mut measured = Self { points: Vec::new(), costs: Vec::new(), running: Vec::new() };
        let newest = trials.iter().map(|trial| trial.number).max().unwrap_or_default();
        let oldest = newest.saturating_sub(MOST_TRIALS as u32);
        for (rank, trial) in ranking.ranked(trials).into_iter().enumerate() {
            if trial.number < oldest && rank >= N_STARTUP_TRIALS {
                continue;
            }
            let Some(point) = space.point(&as_it_ran(search, base, &trial.values)) else {
                continue;
            };
            match trial.state {
                State::Failed => {}
                State::Running => measured.running.push(point),
                State::Finished | State::Pruned | State::Diverged => {
                    measured.points.push(point);
                    measured.costs.push(cost(trial.value(search.goal), search.goal));
                }
            }
        }
        measured.cap();
        measured
    }

    /// Brings in costs that are infinite or out of all proportion, which would hide the differences
    /// of all others.
    fn cap(&mut self) {
        let mut sorted: Vec<f64> =
            self.costs.iter().copied().filter(|cost| cost.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (Some(least), Some(median)) = (sorted.first(), sorted.get(sorted.len() / 2)) else {
            return;
        };
        let most = median + OUTLIER * (median - least);
        let most = sorted.last().map_or(most, |last| last.min(most));
        for cost in &mut self.costs {
            *cost = if cost.is_nan() { most } else { cost.min(most) };
        }
    }
}

/// The search for the point of the largest expected improvement.
struct Candidates<'a> {
    space: &'a Space<'a>,
    request: &'a ProposalRequest<'a>,
    model: &'a GaussianProcess,
}

impl Candidates<'_> {
    /// Points that satisfy the constraints, by their expected improvement.
    fn best_first(&self, points: &[Vec<f64>], costs: &[f64], stream: &mut Stream) -> Vec<Vec<f64>> {
        let mut best: Vec<usize> = (0..points.len()).collect();
        best.sort_by(|&a, &b| costs[a].total_cmp(&costs[b]));
        let mut starts = Vec::new();
        for _ in 0..N_RANDOM {
            starts.push(self.space.axes.iter().map(|axis| axis.scale.draw(stream)).collect());
        }
        for &index in best.iter().take(NEAR.0) {
            for nth in 0..NEAR.1 {
                let width = [0.2, 0.05, 0.01][nth % 3];
                starts.push(self.near(&points[index], width, stream));
            }
        }
        let mut scored: Vec<(f64, Vec<f64>)> =
            starts.into_iter().filter_map(|point| self.scored(point)).collect();
        by_gain(&mut scored);
        let climbed: Vec<_> =
            scored.iter().take(N_CLIMBS).map(|start| self.climb(start.clone())).collect();
        scored.extend(climbed);
        by_gain(&mut scored);
        scored.into_iter().map(|(_, point)| point).collect()
    }

    /// A point beside another: most coordinates a little, some choices newly drawn.
    fn near(&self, point: &[f64], width: f64, stream: &mut Stream) -> Vec<f64> {
        let moved = |(place, axis): (&f64, &Coordinate<'_>)| match &axis.scale {
            Scale::Choices(_) if stream.uniform() < 0.7 => *place,
            scale @ Scale::Choices(_) => scale.draw(stream),
            scale => (place + width.max(scale.grain()) * stream.normal()).clamp(0.0, 1.0),
        };
        point.iter().zip(&self.space.axes).map(moved).collect()
    }

    /// The point as its values are, with its expected improvement; `None` if it breaks a constraint.
    fn scored(&self, mut point: Vec<f64>) -> Option<(f64, Vec<f64>)> {
        let ProposalRequest { search, base, .. } = *self.request;
        self.space.round(&mut point);
        if !search.constraints.is_empty() {
            let key = Key::new(search.seed, Purpose::Sweep, 0, STREAM);
            let values = self.space.values(search, key, &point);
            if !is_allowed(search, &values, base) {
                return None;
            }
        }
        Some((self.model.log_expected_improvement(&point), point))
    }

    /// Steps along the axes, ever smaller, as long as they improve.
    fn climb(&self, start: (f64, Vec<f64>)) -> (f64, Vec<f64>) {
        let mut best = start;
        for step in STEPS {
            for _ in 0..TURNS {
                let before = best.0;
                for (index, axis) in self.space.axes.iter().enumerate() {
                    for place in axis.scale.beside(best.1[index], step) {
                        let mut point = best.1.clone();
                        point[index] = place;
                        if let Some(next) = self.scored(point).filter(|next| next.0 > best.0) {
                            best = next;
                        }
                    }
                }
                if best.0 <= before {
                    break;
                }
            }
        }
        best
    }
}

fn by_gain(scored: &mut [(f64, Vec<f64>)]) {
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
}
