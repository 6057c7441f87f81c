//! Results of settings that were trained several times: trials that differ in their fold or seed
//! alone are repeats of one setting, and settings are compared by their means.

use serde_json::{Map, Value, json};

use crate::config::schema::Mode;
use crate::config::sweep::{REPEAT_KEYS, Values, is_repeat};
use crate::record::text::metric;
use crate::sweep::trial::{State, Trial, cost};

/// The values of a trial without folds and seeds, which identify its setting.
pub(super) fn shared(values: &Values) -> Values {
    values.iter().filter(|(key, _)| !is_repeat(key)).cloned().collect()
}

/// Results of the finished trials of one setting.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Repeats {
    /// The values of the setting.
    pub(super) values: Values,
    /// Numbers of the trials, at least two.
    pub(super) trials: Vec<u32>,
    /// Number of further trials that were pruned or diverged.
    pub(super) n_lost: usize,
    /// Mean of the metric.
    pub(super) mean: f64,
    /// Sample standard deviation (divisor n - 1).
    pub(super) sd: f64,
}

impl Repeats {
    /// Standard error of the mean.
    pub(super) fn error(&self) -> f64 {
        self.sd / (self.trials.len() as f64).sqrt()
    }

    /// `5`, or `3 of 5` if two were pruned or diverged.
    pub(super) fn count(&self) -> String {
        let n = self.trials.len();
        if self.n_lost == 0 { n.to_string() } else { format!("{n} of {}", n + self.n_lost) }
    }
}

/// Settings with several finished trials, the best mean first; those of which a trial was pruned or
/// diverged come last, since only their better part is left. Empty unless a fold or a seed is
/// swept.
pub(super) fn repeats(trials: &[Trial], goal: Mode) -> Vec<Repeats> {
    if over(trials).is_empty() {
        return Vec::new();
    }
    let mut settings: Vec<Setting> = Vec::new();
    for trial in trials {
        let reached = match trial.state {
            State::Finished => trial.value(goal).map(|value| (trial.number, value)),
            State::Pruned | State::Diverged => None,
            State::Running | State::Failed => continue,
        };
        let shared = shared(&trial.values);
        let at = settings.iter().position(|setting| setting.values == shared);
        let at = at.unwrap_or_else(|| {
            settings.push(Setting { values: shared, reached: Vec::new(), n_lost: 0 });
            settings.len() - 1
        });
        settings[at].reached.extend(reached);
        settings[at].n_lost += usize::from(reached.is_none());
    }
    let repeated = settings.into_iter().filter(|setting| setting.reached.len() > 1);
    let mut found: Vec<Repeats> = repeated.map(of).collect();
    found.sort_by(|a, b| {
        let means = cost(Some(a.mean), goal).total_cmp(&cost(Some(b.mean), goal));
        (a.n_lost > 0).cmp(&(b.n_lost > 0)).then(means)
    });
    found
}

/// The trials of a setting.
struct Setting {
    values: Values,
    /// Number and value of each finished trial.
    reached: Vec<(u32, f64)>,
    /// Number of trials that were pruned or diverged.
    n_lost: usize,
}

fn of(Setting { values, reached, n_lost }: Setting) -> Repeats {
    let n = reached.len();
    let mean = reached.iter().map(|(_, value)| value).sum::<f64>() / n as f64;
    let squares: f64 = reached.iter().map(|(_, value)| (value - mean).powi(2)).sum();
    let trials = reached.iter().map(|(number, _)| *number).collect();
    Repeats { values, trials, n_lost, mean, sd: (squares / (n - 1) as f64).sqrt() }
}

/// The keys that the trials are repeated over: "data.fold".
pub(super) fn over(trials: &[Trial]) -> String {
    let is_changed =
        |key: &&str| trials.iter().any(|trial| trial.values.iter().any(|(name, _)| name == key));
    REPEAT_KEYS.into_iter().filter(is_changed).collect::<Vec<&str>>().join(", ")
}

/// The value of `trial` in words, with the mean over its setting and its standard error if that was
/// repeated: `81.25 %`, `81.25 % (mean of 5: 79.50 % ± 0.40 %)`.
pub(crate) fn reached(trial: &Trial, trials: &[Trial], goal: Mode, name: &str) -> String {
    let own =
        trial.value(goal).map_or_else(|| "not finite".to_owned(), |value| metric(name, value));
    let all = repeats(trials, goal);
    match all.iter().find(|setting| setting.trials.contains(&trial.number)) {
        Some(all) => {
            let mean = format!("{} ± {}", metric(name, all.mean), metric(name, all.error()));
            format!("{own} (mean of {}: {mean})", all.count())
        }
        None => own,
    }
}

/// The setting of a trial, if that was repeated.
pub(super) fn repeats_of(trials: &[Trial], goal: Mode, trial: u32) -> Option<Repeats> {
    repeats(trials, goal).into_iter().find(|setting| setting.trials.contains(&trial))
}

/// All repeated settings as JSON.
pub(super) fn json(trials: &[Trial], goal: Mode) -> Value {
    let one = |setting: Repeats| {
        let error = setting.error();
        let Repeats { values, trials, n_lost, mean, sd } = setting;
        let values: Map<String, Value> = Values::into_iter(values).collect();
        let n = trials.len();
        json!({
            "values": values, "trials": n, "lost": n_lost,
            "mean": mean, "sd": sd, "standard_error": error,
        })
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
        assert_eq!(found.iter().map(|setting| setting.trials.len()).collect::<Vec<_>>(), [3, 2]);
        assert!((found[0].mean - 0.9).abs() < 1e-12 && (found[0].sd - 0.1).abs() < 1e-12);
        assert!(
            (found[1].mean - 0.6).abs() < 1e-12 && (found[1].sd - 0.02f64.sqrt()).abs() < 1e-12
        );
        assert_eq!(found[0].values, [("optimizer.lr".to_owned(), json!(0.2))]);
        assert_eq!(repeats(&trials, Mode::Min)[0].trials, [1, 2]);
        assert_eq!(over(&trials), "data.fold");
        assert_eq!(json(&trials, Mode::Max)[1]["trials"], 2);
        let told = reached(&trials[4], &trials, Mode::Max, "val/accuracy");
        assert_eq!(told, "100.00 % (mean of 3: 90.00 % ± 5.77 %)");
        assert!(repeats(&trials[5..], Mode::Max).is_empty());
        // One fold of the best setting diverged: what is left of it says less.
        let lost = Trial { state: State::Diverged, ..of(8, 0.2, 3, 0.1) };
        let found = repeats(&[&trials[..], &[lost]].concat(), Mode::Max);
        assert_eq!((found[0].trials.len(), found[1].count()), (2, "3 of 4".to_owned()));
        let same = [1, 2].map(|number| trial(number, State::Finished, &[0.5]));
        assert!(repeats(&same, Mode::Max).is_empty(), "drawn twice");
    }
}
