//! Trials that differ in their fold or seed alone are repeats of one setting: each setting of a
//! search is trained with every one of them, and settings are compared by their means.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::config::schema::Mode;
use crate::config::sweep::{Parameter, Search, Values, as_written};
use crate::record::text::metric;
use crate::sweep::sampler::{BaseValues, all_points};
use crate::sweep::trial::{Report, State, Trial, cost};

/// Keys that make repeats of an experiment.
const KEYS: [&str; 3] = ["data.fold", "data.split_seed", "experiment.seed"];

/// True for parameters that make repeats of a setting rather than settings.
pub(super) fn is_repeat(key: &str) -> bool {
    KEYS.contains(&key)
}

/// The values of a trial without folds and seeds, which identify its setting.
fn shared(values: &Values) -> Values {
    values.iter().filter(|(key, _)| !is_repeat(key)).cloned().collect()
}

/// A search in which each setting is trained with several folds or seeds; the method sees the
/// settings only.
#[derive(Clone, Debug)]
pub(super) struct Repeated {
    /// The search without folds and seeds.
    pub(super) search: Search,
    /// All parameters, as they were written.
    parameters: Vec<Parameter>,
    /// Values of the folds and seeds, in the order in which they are tried.
    each: Vec<Values>,
}

impl Repeated {
    /// `None` if no fold or seed is a parameter, if they cannot be counted or depend on others, or
    /// if they are too many for the sweep to try two settings.
    pub(super) fn of(search: &Search, base: &BaseValues, trials: Option<usize>) -> Option<Self> {
        let (repeats, settings): (Vec<Parameter>, Vec<Parameter>) =
            search.parameters.iter().cloned().partition(|parameter| is_repeat(&parameter.key));
        let depends = |parameter: &Parameter| {
            parameter.when.iter().any(|condition| is_repeat(&condition.key))
        };
        let is_tied = repeats.iter().any(|parameter| !parameter.when.is_empty())
            || settings.iter().any(depends)
            || search.constraints.iter().any(|rule| rule.names().iter().any(|key| is_repeat(key)));
        if repeats.is_empty() || settings.is_empty() || is_tied {
            return None;
        }
        let alone = Search { parameters: repeats, constraints: Vec::new(), ..search.clone() };
        let each = all_points(&alone, base)?;
        let has_room = each.len().saturating_mul(2) <= trials.unwrap_or(usize::MAX);
        let parameters = search.parameters.clone();
        let search = Search { parameters: settings, ..search.clone() };
        has_room.then_some(Self { search, parameters, each })
    }

    /// Number of repeats per setting.
    pub(super) fn n(&self) -> usize {
        self.each.len()
    }

    /// The first trial of a setting.
    pub(super) fn first(&self, setting: Values) -> Values {
        self.with(setting, &self.each[0])
    }

    fn with(&self, mut setting: Values, repeat: &Values) -> Values {
        setting.extend(repeat.iter().cloned());
        as_written(&self.parameters, &mut setting);
        setting
    }

    /// The next trial of the first setting that lacks one. A setting of which a trial was pruned,
    /// diverged or failed is not trained further.
    pub(super) fn next(&self, trials: &[Trial], base: &BaseValues) -> Option<Values> {
        let is_fine = |trial: &&Trial| matches!(trial.state, State::Running | State::Finished);
        Self::by_setting(trials, base).into_iter().find_map(|all| {
            if !all.iter().all(is_fine) {
                return None;
            }
            let repeat = |trial: &&Trial| {
                let own = trial.values.iter().filter(|(key, _)| is_repeat(key)).cloned();
                base.setting(&own.collect())
            };
            let had: Vec<String> = all.iter().map(repeat).collect();
            let next = self.each.iter().find(|each| !had.contains(&base.setting(each)))?;
            Some(self.with(shared(&all[0].values), next))
        })
    }

    /// One trial per setting that stands for all of its repeats, with their mean as its value.
    pub(super) fn settings(trials: &[Trial], base: &BaseValues, goal: Mode) -> Vec<Trial> {
        let one = |all: Vec<&Trial>| {
            let whole: Vec<&Trial> =
                all.iter().copied().filter(|trial| trial.state == State::Finished).collect();
            let state = |state: State| all.iter().find(|trial| trial.state == state);
            let given_up = || state(State::Pruned).or_else(|| state(State::Diverged));
            let stands = whole.first().or_else(given_up).or_else(|| state(State::Running));
            let mut stands = Trial::clone(stands.unwrap_or(&all[0]));
            stands.values = shared(&stands.values);
            let reached: Vec<f64> = whole.iter().filter_map(|trial| trial.value(goal)).collect();
            if let Some(last) = stands.reports.last()
                && !reached.is_empty()
            {
                let mean = reached.iter().sum::<f64>() / reached.len() as f64;
                stands.reports = vec![Report { step: last.step, value: Some(mean) }];
            }
            stands
        };
        Self::by_setting(trials, base).into_iter().map(one).collect()
    }

    /// The trials of each setting, in the order of the first of each.
    fn by_setting<'a>(trials: &'a [Trial], base: &BaseValues) -> Vec<Vec<&'a Trial>> {
        let mut places: HashMap<String, usize> = HashMap::new();
        let mut found: Vec<Vec<&Trial>> = Vec::new();
        for trial in trials {
            let place = *places.entry(base.setting(&shared(&trial.values))).or_insert(found.len());
            match found.get_mut(place) {
                Some(all) => all.push(trial),
                None => found.push(vec![trial]),
            }
        }
        found
    }
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
    KEYS.into_iter().filter(is_changed).collect::<Vec<&str>>().join(", ")
}

/// The value of `trial` in words, with the mean over its setting if that was repeated: `81.25 %`,
/// `81.25 % (mean of 5: 79.50 %)`.
pub(crate) fn reached(trial: &Trial, trials: &[Trial], goal: Mode, name: &str) -> String {
    let own =
        trial.value(goal).map_or_else(|| "not finite".to_owned(), |value| metric(name, value));
    let all = repeats(trials, goal);
    match all.iter().find(|setting| setting.trials.contains(&trial.number)) {
        Some(all) => format!("{own} (mean of {}: {})", all.count(), metric(name, all.mean)),
        None => own,
    }
}

/// The mean over the setting of a trial, if that was repeated.
pub(super) fn mean_of(trials: &[Trial], goal: Mode, trial: u32) -> Option<f64> {
    let all = repeats(trials, goal);
    all.iter().find(|setting| setting.trials.contains(&trial)).map(|setting| setting.mean)
}

/// All repeated settings as JSON.
pub(super) fn json(trials: &[Trial], goal: Mode) -> Value {
    let one = |Repeats { values, trials, n_lost, mean, sd }: Repeats| {
        let values: Map<String, Value> = Values::into_iter(values).collect();
        let n = trials.len();
        json!({ "values": values, "trials": n, "lost": n_lost, "mean": mean, "sd": sd })
    };
    repeats(trials, goal).into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::sweep::{Constraint, Domain};
    use crate::sweep::example_sweeps::{search, trial};

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
        assert!(repeats(&trials[5..], Mode::Max).is_empty());
        // One fold of the best setting diverged: what is left of it says less.
        let lost = Trial { state: State::Diverged, ..of(8, 0.2, 3, 0.1) };
        let found = repeats(&[&trials[..], &[lost]].concat(), Mode::Max);
        assert_eq!((found[0].trials.len(), found[1].count()), (2, "3 of 4".to_owned()));
        let same = [1, 2].map(|number| trial(number, State::Finished, &[0.5]));
        assert!(repeats(&same, Mode::Max).is_empty(), "drawn twice");
    }
    /// Two learning rates or more, each with two seeds.
    fn seeds() -> Search {
        let values = |values: &[f64]| Domain::Categorical {
            values: values.iter().map(|value| json!(value)).collect(),
        };
        let parameters = vec![
            Parameter::new("experiment.seed", values(&[1.0, 2.0])),
            Parameter::new("optimizer.lr", Domain::Uniform { min: 0.0, max: 1.0 }),
        ];
        Search { parameters, ..search("tpe") }
    }

    #[test]
    fn a_setting_is_trained_with_every_seed_before_the_next_is_drawn() {
        let base = BaseValues::default();
        let repeated = Repeated::of(&seeds(), &base, Some(4)).unwrap();
        assert_eq!((repeated.n(), repeated.search.parameters.len()), (2, 1));
        let setting = |lr: f64| vec![("optimizer.lr".to_owned(), json!(lr))];
        let first = repeated.first(setting(0.5));
        assert_eq!(first[0], ("experiment.seed".to_owned(), json!(1.0)));
        let mut one = Trial { values: first, ..trial(1, State::Running, &[]) };
        let second = repeated.next(&[one.clone()], &base).unwrap();
        assert_eq!(second[0], ("experiment.seed".to_owned(), json!(2.0)));
        let two = Trial { values: second, ..trial(2, State::Finished, &[0.75]) };
        assert_eq!(repeated.next(&[one.clone(), two.clone()], &base), None);
        (one.state, one.reports) = (State::Finished, trial(1, State::Finished, &[0.25]).reports);
        let settings = Repeated::settings(&[one.clone(), two], &base, Mode::Min);
        assert_eq!((settings.len(), settings[0].value(Mode::Min)), (1, Some(0.5)));
        assert_eq!(settings[0].values, setting(0.5));
        one.state = State::Pruned;
        assert_eq!(repeated.next(&[one], &base), None, "what was given up is not repeated");
    }

    #[test]
    fn seeds_are_drawn_where_they_are_too_many_or_tied_to_something() {
        let base = BaseValues::default();
        assert!(Repeated::of(&seeds(), &base, Some(3)).is_none(), "no room for two settings");
        let mut search = seeds();
        search.constraints = vec![Constraint::parse("experiment.seed < 2").unwrap()];
        assert!(Repeated::of(&search, &base, None).is_none());
        search = seeds();
        search.parameters[0].domain = Domain::Uniform { min: 0.0, max: 1.0 };
        assert!(Repeated::of(&search, &base, None).is_none());
        search = seeds();
        search.parameters.remove(0);
        assert!(Repeated::of(&search, &base, None).is_none());
    }
}
