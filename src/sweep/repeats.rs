//! Trials that differ in their fold or seed alone: mean and spread of what they reached.

use serde_json::{Map, Value, json};

use crate::config::schema::Mode;
use crate::config::sweep::Values;
use crate::sweep::trial::{State, Trial, cost};

/// Keys whose values say nothing about which experiment is better.
const KEYS: [&str; 3] = ["data.fold", "data.split_seed", "experiment.seed"];

/// What finished trials of one setting reached.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Repeats {
    /// What they have in common.
    pub(super) values: Values,
    /// How many there are, at least two.
    pub(super) n: usize,
    /// Mean of the metric.
    pub(super) mean: f64,
    /// Standard deviation, whose square is divided by one less than there are trials.
    pub(super) sd: f64,
}

/// Each setting of which several trials are finished, the best mean first. There are none unless a
/// fold or a seed is swept: the same values drawn twice are no repetition.
pub(super) fn repeats(trials: &[Trial], goal: Mode) -> Vec<Repeats> {
    if over(trials).is_empty() {
        return Vec::new();
    }
    let mut settings: Vec<(Values, Vec<f64>)> = Vec::new();
    for trial in trials.iter().filter(|trial| trial.state == State::Finished) {
        let Some(value) = trial.value(goal) else { continue };
        let is_shared = |(key, _): &&(String, Value)| !KEYS.contains(&key.as_str());
        let shared: Values = trial.values.iter().filter(is_shared).cloned().collect();
        match settings.iter_mut().find(|(known, _)| *known == shared) {
            Some((_, reached)) => reached.push(value),
            None => settings.push((shared, vec![value])),
        }
    }
    let repeated = settings.into_iter().filter(|(_, reached)| reached.len() > 1);
    let mut found: Vec<Repeats> = repeated.map(of).collect();
    found.sort_by(|a, b| cost(Some(a.mean), goal).total_cmp(&cost(Some(b.mean), goal)));
    found
}

fn of((values, reached): (Values, Vec<f64>)) -> Repeats {
    let n = reached.len();
    let mean = reached.iter().sum::<f64>() / n as f64;
    let squares: f64 = reached.iter().map(|value| (value - mean).powi(2)).sum();
    Repeats { values, n, mean, sd: (squares / (n - 1) as f64).sqrt() }
}

/// The keys that the trials are repeated over: "data.fold".
pub(super) fn over(trials: &[Trial]) -> String {
    let is_changed =
        |key: &&str| trials.iter().any(|trial| trial.values.iter().any(|(name, _)| name == key));
    KEYS.into_iter().filter(is_changed).collect::<Vec<&str>>().join(", ")
}

/// For programs.
pub(super) fn json(trials: &[Trial], goal: Mode) -> Value {
    let one = |Repeats { values, n, mean, sd }| {
        let values: Map<String, Value> = Values::into_iter(values).collect();
        json!({ "values": values, "trials": n, "mean": mean, "sd": sd })
    };
    repeats(trials, goal).into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::example_sweeps::trial;

    #[test]
    fn folds_of_one_setting_are_taken_together() {
        let of = |number, lr: f64, fold: u32, value: f64| Trial {
            values: vec![
                ("optimizer.lr".to_owned(), json!(lr)),
                ("data.fold".to_owned(), json!(fold)),
            ],
            ..trial(number, State::Finished, &[value])
        };
        let trials = [
            of(1, 0.1, 0, 0.5),
            of(2, 0.1, 1, 0.7),
            of(3, 0.2, 0, 0.9),
            of(4, 0.2, 1, 0.8),
            of(5, 0.2, 2, 1.0),
            of(6, 0.3, 0, 1.0),
            trial(7, State::Pruned, &[0.9]),
        ];
        let found = repeats(&trials, Mode::Max);
        assert_eq!(found.iter().map(|setting| setting.n).collect::<Vec<_>>(), [3, 2]);
        assert!((found[0].mean - 0.9).abs() < 1e-12 && (found[0].sd - 0.1).abs() < 1e-12);
        assert!(
            (found[1].mean - 0.6).abs() < 1e-12 && (found[1].sd - 0.02f64.sqrt()).abs() < 1e-12
        );
        assert_eq!(found[0].values, [("optimizer.lr".to_owned(), json!(0.2))]);
        assert_eq!(repeats(&trials, Mode::Min)[0].n, 2);
        assert_eq!(over(&trials), "data.fold");
        assert_eq!(json(&trials, Mode::Max)[1]["trials"], 2);
        assert!(repeats(&trials[5..], Mode::Max).is_empty());
        let same = [1, 2].map(|number| trial(number, State::Finished, &[0.5]));
        assert!(repeats(&same, Mode::Max).is_empty(), "drawn twice");
    }
}
