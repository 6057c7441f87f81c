//! How much each parameter decides whether a trial is among the best tenth: PED-ANOVA (Watanabe et
//! al. 2023, <https://arxiv.org/abs/2304.10255>), with conditional parameters as in condPED-ANOVA
//! (<https://arxiv.org/abs/2601.20800>), as in Optuna 5's `PedAnovaImportanceEvaluator`.
//!
//! For each parameter, the density of the best trials is compared with that of all: the more they
//! differ, the more it matters. Densities are on a grid, so that any scale will do.

use crate::config::sweep::{Domain, Parameter, Search, canonical, steps_of, value_of};
use crate::sweep::parzen::mass;
use crate::sweep::ranking::Ranking;
use crate::sweep::trial::{State, Trial, cost};

/// Share of the trials that count as the best.
const TARGET: f64 = 0.1;
/// Most points of a grid.
const MAX_GRID: usize = 50;
/// Fewest trials from which the importance of a parameter's entry is computed.
const MIN_TRIALS: usize = 2;

/// The importance of each key, which sum to 1, in the order in which the keys were written; empty
/// if there are too few trials.
pub(super) fn ped_anova(
    search: &Search,
    ranking: &Ranking,
    trials: &[Trial],
) -> Vec<(String, f64)> {
    let order = with_result(ranking, trials);
    let n_best = n_best(&order, ranking);
    if n_best == order.len() {
        return Vec::new();
    }
    let mut keys: Vec<&str> = Vec::new();
    for parameter in &search.parameters {
        if !keys.contains(&parameter.key.as_str()) {
            keys.push(&parameter.key);
        }
    }
    let shares: Vec<f64> = keys
        .iter()
        .map(|key| {
            let entries = search.parameters.iter().filter(|parameter| parameter.key == *key);
            entries.map(|entry| of_entry(entry, &order, n_best)).sum()
        })
        .collect();
    let sum: f64 = shares.iter().sum();
    if sum == 0.0 {
        return Vec::new();
    }
    keys.into_iter().zip(shares).map(|(key, share)| (key.to_owned(), share / sum)).collect()
}

/// The trials with a result that count as the best, and the others; each best first.
pub(super) fn best_tenth<'a>(
    ranking: &Ranking,
    trials: &'a [Trial],
) -> (Vec<&'a Trial>, Vec<&'a Trial>) {
    let mut best = with_result(ranking, trials);
    let others = best.split_off(n_best(&best, ranking));
    (best, others)
}

/// Trials with a result, best first.
fn with_result<'a>(ranking: &Ranking, trials: &'a [Trial]) -> Vec<&'a Trial> {
    let counted = |trial: &&Trial| !matches!(trial.state, State::Running | State::Failed);
    ranking.ranked(trials).into_iter().filter(counted).collect()
}

/// The number of trials, ranked, that count as the best: a tenth, and those that equal its last.
fn n_best(order: &[&Trial], ranking: &Ranking) -> usize {
    let tenth = (TARGET * order.len() as f64).ceil() as usize;
    let Some(last) = tenth.checked_sub(1).and_then(|last| order.get(last)) else { return tenth };
    let key = |trial: &Trial| (trial.state, cost(trial.value(ranking.goal), ranking.goal));
    tenth + order[tenth..].iter().take_while(|trial| key(trial) == key(last)).count()
}

/// The part of an entry of a key, which counts in some of the trials: what sets the best of these
/// apart, by the shares of the best and of all trials that they are.
fn of_entry(parameter: &Parameter, order: &[&Trial], n_best: usize) -> f64 {
    let place = |trial: &&Trial| {
        let value = value_of(&trial.values, &parameter.key)?;
        parameter.is_active(&trial.values).then(|| place_on_grid(&parameter.domain, value))?
    };
    let size = grid_size(&parameter.domain);
    let all: Vec<usize> = order.iter().filter_map(place).collect();
    let best: Vec<usize> = order[..n_best].iter().filter_map(place).collect();
    if size < 2 || all.len() < MIN_TRIALS || best.is_empty() {
        return 0.0;
    }
    let density = |places: &[usize]| Density::of(&parameter.domain, places, size).on_grid();
    let divergence: f64 = density(&best)
        .iter()
        .zip(density(&all))
        .map(|(best, all)| all * (best / all - 1.0).powi(2))
        .sum();
    let share_of_best = best.len() as f64 / n_best as f64;
    let share_of_all = all.len() as f64 / order.len() as f64;
    share_of_best.powi(2) / share_of_all * divergence
}

/// Points of a domain's grid.
fn grid_size(domain: &Domain) -> usize {
    let whole = |min: i64, max: i64| max.abs_diff(min).saturating_add(1);
    let points = match domain {
        Domain::Categorical { values } => return values.len(),
        Domain::Uniform { .. } | Domain::LogUniform { .. } => MAX_GRID as u64,
        Domain::IntUniform { min, max } => whole(*min, *max),
        Domain::IntLogUniform { min, max } => (whole(*min, *max) as f64).log2().ceil() as u64 + 1,
        Domain::QUniform { min, max, q } => steps_of(*min, *max, *q) + 1,
    };
    points.min(MAX_GRID as u64) as usize
}

/// The point of the grid that is nearest to a value, the lower one of two.
fn place_on_grid(domain: &Domain, value: &serde_json::Value) -> Option<usize> {
    let (low, high) = match domain {
        Domain::Categorical { values } => {
            return values.iter().position(|known| canonical(known) == canonical(value));
        }
        Domain::Uniform { min, max } => (*min, *max),
        Domain::LogUniform { min, max } => (min.ln(), max.ln()),
        Domain::IntUniform { min, max } => (*min as f64, *max as f64),
        Domain::IntLogUniform { min, max } => ((*min as f64).ln(), (*max as f64).ln()),
        Domain::QUniform { min, max, q } => (*min, min + q * steps_of(*min, *max, *q) as f64),
    };
    let is_log = matches!(domain, Domain::LogUniform { .. } | Domain::IntLogUniform { .. });
    if !domain.contains(value) {
        return None;
    }
    let number = value.as_f64().map(|number| if is_log { number.ln() } else { number })?;
    let last = grid_size(domain) - 1;
    let step = (high - low) / last as f64;
    Some((((number - low) / step - 0.5).ceil().max(0.0) as usize).min(last))
}

/// A Parzen estimate on a grid: a bump at each point that trials have, and a prior over all.
struct Density {
    size: usize,
    /// Points and how many trials are at each.
    counts: Vec<(usize, f64)>,
    /// Width of the bumps; `None` for choices.
    width: Option<f64>,
}

impl Density {
    fn of(domain: &Domain, places: &[usize], size: usize) -> Self {
        let mut all = vec![0.0; size];
        for &place in places {
            all[place] += 1.0;
        }
        let counts: Vec<(usize, f64)> =
            all.into_iter().enumerate().filter(|(_, count)| *count > 0.0).collect();
        let is_choice = matches!(domain, Domain::Categorical { .. });
        let width = (!is_choice).then(|| scott(&counts, places.len() as f64));
        Self { size, counts, width }
    }

    /// The probability of each point of the grid; never 0.
    fn on_grid(&self) -> Vec<f64> {
        let n_kernels = self.counts.len() as f64 + 1.0;
        let total = self.counts.iter().map(|(_, count)| count).sum::<f64>() + 1.0;
        let (size, last) = (self.size as f64, self.size as f64 - 1.0);
        let bump = |at: f64, center: f64, width: f64| {
            let z = |edge: f64| (edge - center) / width;
            mass(z(at - 0.5), z(at + 0.5)) / mass(z(-0.5), z(last + 0.5))
        };
        let probability = |point: usize| {
            let at = point as f64;
            let bumps = self.counts.iter().map(|&(place, count)| {
                let seen = if place == point { 1.0 } else { 0.0 };
                let choice = (seen + 1.0 / n_kernels) / (1.0 + size / n_kernels);
                count * self.width.map_or(choice, |width| bump(at, place as f64, width))
            });
            let prior = self.width.map_or(1.0 / size, |_| bump(at, last / 2.0, size));
            (bumps.sum::<f64>() + prior) / total + 1e-12
        };
        (0..self.size).map(probability).collect()
    }
}

/// The width of bumps by Scott's rule (1992), with the spread of the middle half where that is
/// less.
fn scott(counts: &[(usize, f64)], n: f64) -> f64 {
    /// A bump has nine tenths of its mass in its own cell of the grid.
    const NARROWEST: f64 = 0.5 / 1.64;
    let mean = counts.iter().map(|(place, count)| *place as f64 * count).sum::<f64>() / n;
    let squares: f64 =
        counts.iter().map(|(place, count)| (*place as f64 - mean).powi(2) * count).sum();
    let deviation = (squares / (n - 1.0).max(1.0)).sqrt();
    let mut sum = 0.0;
    let sums: Vec<f64> = counts
        .iter()
        .map(|(_, count)| {
            sum += count;
            sum
        })
        .collect();
    let last = counts.len() - 1;
    let first = sums.partition_point(|sum| *sum < (n / 4.0).floor()).min(last);
    let third = sums.partition_point(|sum| *sum <= (n * 3.0 / 4.0).floor()).min(last);
    let middle = (counts[third].0 - counts[first].0) as f64;
    (1.059 * (middle / 1.34).min(deviation) * n.powf(-0.2)).max(NARROWEST)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::config::sweep::Condition;
    use crate::sweep::example_sweeps::{search, trial};

    fn names() -> Domain {
        Domain::Categorical { values: vec![json!("sgd"), json!("adamw"), json!("lion")] }
    }

    fn only_for(name: &str, parameter: Parameter) -> Parameter {
        let when = vec![Condition { key: "name".into(), values: vec![json!(name)] }];
        Parameter { when, ..parameter }
    }

    /// The spaces of `tests/golden/ped_anova.py`.
    fn space(case: &str) -> Vec<Parameter> {
        let rates = |min: f64, max: f64| Parameter::new("lr", Domain::LogUniform { min, max });
        if case == "conditional" {
            let momentum = Parameter::new("momentum", Domain::Uniform { min: 0.0, max: 0.99 });
            return vec![
                Parameter::new("name", names()),
                only_for("sgd", rates(1e-2, 1.0)),
                only_for("adamw", rates(1e-5, 1e-2)),
                only_for("sgd", momentum),
            ];
        }
        vec![
            rates(1e-5, 1e-1),
            Parameter::new("dropout", Domain::Uniform { min: 0.0, max: 0.5 }),
            Parameter::new("layers", Domain::IntUniform { min: 1, max: 8 }),
            Parameter::new("width", Domain::IntLogUniform { min: 8, max: 512 }),
            Parameter::new("crop", Domain::QUniform { min: 0.1, max: 1.0, q: 0.1 }),
            Parameter::new("name", names()),
        ]
    }

    #[test]
    fn the_importances_are_those_of_optuna() {
        let golden = include_str!("../../../../tests/golden/ped_anova.json");
        let golden: Value = serde_json::from_str(golden).unwrap();
        for case in golden["cases"].as_array().unwrap() {
            let name = case["case"].as_str().unwrap();
            let search = Search { parameters: space(name), ..search("random") };
            let trials: Vec<Trial> = (1..)
                .zip(case["trials"].as_array().unwrap())
                .map(|(number, told)| {
                    let values = told["values"].as_object().unwrap().clone().into_iter().collect();
                    let loss = told["loss"].as_f64().unwrap();
                    Trial { values, ..trial(number, State::Finished, &[loss]) }
                })
                .collect();
            let found = ped_anova(&search, &Ranking::plain(search.goal), &trials);
            let expected = case["importance"].as_object().unwrap();
            assert_eq!(found.len(), expected.len(), "{name}");
            for (key, share) in found {
                let expected = expected[&key].as_f64().unwrap();
                // The normal distribution is good to seven digits here.
                assert!((share - expected).abs() < 1e-5, "{name} {key}: {share} {expected}");
            }
        }
    }

    #[test]
    fn too_few_trials_or_equal_ones_say_nothing() {
        let search = Search { parameters: space("flat"), ..search("random") };
        let of = |number| {
            let values = vec![("lr".to_owned(), json!(1e-3)), ("name".to_owned(), json!("sgd"))];
            Trial { values, ..trial(number, State::Finished, &[0.5]) }
        };
        let told = |n| {
            ped_anova(&search, &Ranking::plain(search.goal), &(1..=n).map(of).collect::<Vec<_>>())
        };
        assert_eq!((told(0), told(1), told(30)), (vec![], vec![], vec![]));
    }
}
