//! A search in which settings are trained several times, with other folds or seeds: with all of
//! them, or with `sweep.repeats` only while a setting is still in the race.

use std::collections::HashMap;

use crate::config::schema::Mode;
use crate::config::sweep::{Domain, Json, Parameter, Search, Values, as_written, is_repeat};
use crate::sweep::race::{Costs, in_race};
use crate::sweep::repeats::shared;
use crate::sweep::sampler::{BaseValues, all_points};
use crate::sweep::trial::{Report, State, Trial, cost};

/// The seed of a run, which makes repeats where no fold or seed is a parameter.
const SEED: &str = "experiment.seed";

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
    /// True if only settings that may still be the best are repeated.
    is_race: bool,
}

impl Repeated {
    /// `None` without `sweep.repeats` if no fold or seed is a parameter, if they cannot be counted
    /// or depend on others, or if they are too many for the sweep to try two settings.
    pub(super) fn of(search: &Search, base: &BaseValues, trials: Option<usize>) -> Option<Self> {
        let (repeats, settings): (Vec<Parameter>, Vec<Parameter>) =
            search.parameters.iter().cloned().partition(|parameter| is_repeat(&parameter.key));
        let is_race = search.repeats.is_some();
        let mut parameters = search.parameters.clone();
        let mut each = if repeats.is_empty() {
            let values = seeds(base, search.repeats? as usize);
            parameters.push(Parameter::new(SEED, Domain::Categorical { values: values.clone() }));
            values.into_iter().map(|seed| vec![(SEED.to_owned(), seed)]).collect()
        } else {
            if settings.is_empty() || search.ties_repeats() {
                return None;
            }
            let alone = Search {
                parameters: repeats,
                constraints: Vec::new(),
                list: Vec::new(),
                ..search.clone()
            };
            all_points(&alone, base)?
        };
        each.truncate(search.repeats.map_or(usize::MAX, |n| n as usize));
        let has_room = each.len().saturating_mul(2) <= trials.unwrap_or(usize::MAX);
        let start = search.start.iter().map(shared).collect();
        let search = Search { parameters: settings, start, ..search.clone() };
        (is_race || has_room).then_some(Self { search, parameters, each, is_race })
    }

    /// Number of repeats per setting; in a race the most that a setting can have.
    pub(super) fn n(&self) -> usize {
        self.each.len()
    }

    /// True if only settings that may still be the best are repeated.
    pub(super) fn is_race(&self) -> bool {
        self.is_race
    }

    /// The first trial of a setting.
    pub(super) fn first(&self, setting: Values) -> Values {
        self.with(setting, &self.each[0])
    }

    /// All trials of a setting.
    pub(super) fn all(&self, setting: &Values) -> Vec<Values> {
        self.each.iter().map(|repeat| self.with(setting.clone(), repeat)).collect()
    }

    fn with(&self, mut setting: Values, repeat: &Values) -> Values {
        setting.extend(repeat.iter().cloned());
        as_written(&self.parameters, &mut setting);
        setting
    }

    /// The next trial of a setting that lacks one: of the first, or in a race of the best that may
    /// still win. A setting of which a trial was pruned, diverged or failed is not trained further.
    pub(super) fn next(&self, trials: &[Trial], base: &BaseValues, goal: Mode) -> Option<Values> {
        let is_fine = |trial: &&Trial| matches!(trial.state, State::Running | State::Finished);
        let mut settings = Self::by_setting(trials, base);
        settings.retain(|all| all.iter().all(is_fine));
        if self.is_race {
            settings = self.still_racing(settings, base, goal);
        }
        settings.into_iter().find_map(|all| {
            let had: Vec<String> = all.iter().map(|trial| repeat_of(trial, base)).collect();
            let next = self.each.iter().find(|each| !had.contains(&base.setting(each)))?;
            Some(self.with(shared(&all[0].values), next))
        })
    }

    /// The settings with a result that may still be the best, the best mean first.
    fn still_racing<'a>(
        &self,
        settings: Vec<Vec<&'a Trial>>,
        base: &BaseValues,
        goal: Mode,
    ) -> Vec<Vec<&'a Trial>> {
        let each: Vec<String> = self.each.iter().map(|repeat| base.setting(repeat)).collect();
        let costs = |all: &Vec<&Trial>| -> Costs {
            let result = |repeat: &String| {
                let whole = all.iter().filter(|trial| trial.state == State::Finished);
                let mut own = whole.filter(|trial| repeat_of(trial, base) == *repeat);
                own.next().map(|trial| cost(trial.value(goal), goal))
            };
            each.iter().map(result).collect()
        };
        let costs: Vec<Costs> = settings.iter().map(costs).collect();
        let mut left: Vec<(f64, Vec<&Trial>)> = in_race(&costs)
            .into_iter()
            .zip(&costs)
            .zip(settings)
            .filter_map(|((may_win, costs), all)| {
                let known: Vec<f64> = costs.iter().flatten().copied().collect();
                let mean = known.iter().sum::<f64>() / known.len() as f64;
                (may_win && !known.is_empty()).then_some((mean, all))
            })
            .collect();
        left.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        left.into_iter().map(|(_, all)| all).collect()
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

    /// A running trial up to its report `index`, and the other settings, each as one trial with the
    /// mean curve of its repeats: a pruner judges settings, not the luck of one seed.
    pub(super) fn curves(
        trials: &[Trial],
        at: usize,
        index: usize,
        base: &BaseValues,
    ) -> (Trial, Vec<Trial>) {
        let own = base.setting(&shared(&trials[at].values));
        let mut judged = trials[at].clone();
        judged.reports.truncate(index + 1);
        let mut others = Vec::new();
        for all in Self::by_setting(trials, base) {
            if base.setting(&shared(&all[0].values)) == own {
                let siblings = all.iter().copied().filter(|trial| trial.number != judged.number);
                let group: Vec<&Trial> = [&judged].into_iter().chain(siblings).collect();
                judged = mean_curve(&group);
            } else {
                others.push(mean_curve(&all));
            }
        }
        judged.reports.truncate(index + 1);
        (judged, others)
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

/// The fold and seed of a trial in canonical form.
fn repeat_of(trial: &Trial, base: &BaseValues) -> String {
    let own = trial.values.iter().filter(|(key, _)| is_repeat(key)).cloned();
    base.setting(&own.collect())
}

/// `n` seeds, the base's first.
fn seeds(base: &BaseValues, n: usize) -> Vec<Json> {
    let first = base.get(SEED).and_then(Json::as_i64).unwrap_or(0);
    let next = |step: i64| first.checked_add(step).unwrap_or(first - step);
    (0..n as i64).map(|step| Json::from(next(step))).collect()
}

/// The first trial with the mean of all at each of its reports, over those that have got there; it
/// is finished if one of them is.
fn mean_curve(all: &[&Trial]) -> Trial {
    let mut mean = all[0].clone();
    if let Some(longest) = all.iter().max_by_key(|trial| trial.reports.len()) {
        mean.reports.extend_from_slice(&longest.reports[mean.reports.len()..]);
    }
    for (index, report) in mean.reports.iter_mut().enumerate() {
        let there: Vec<Option<f64>> =
            all.iter().filter_map(|trial| Some(trial.reports.get(index)?.value)).collect();
        let n = there.len() as f64;
        report.value = there.into_iter().sum::<Option<f64>>().map(|sum| sum / n);
    }
    if all.iter().any(|trial| trial.state == State::Finished) {
        mean.state = State::Finished;
    }
    mean
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::sweep::Constraint;
    use crate::sweep::example_sweeps::{search, trial};

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
        let second = repeated.next(&[one.clone()], &base, Mode::Min).unwrap();
        assert_eq!(second[0], ("experiment.seed".to_owned(), json!(2.0)));
        let two = Trial { values: second, ..trial(2, State::Finished, &[0.75]) };
        assert_eq!(repeated.next(&[one.clone(), two.clone()], &base, Mode::Min), None);
        (one.state, one.reports) = (State::Finished, trial(1, State::Finished, &[0.25]).reports);
        let settings = Repeated::settings(&[one.clone(), two], &base, Mode::Min);
        assert_eq!((settings.len(), settings[0].value(Mode::Min)), (1, Some(0.5)));
        assert_eq!(settings[0].values, setting(0.5));
        one.state = State::Pruned;
        assert_eq!(
            repeated.next(&[one], &base, Mode::Min),
            None,
            "what was given up is not repeated"
        );
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

    /// Three seeds for each setting that is still in the race.
    fn race() -> Repeated {
        let mut search = seeds();
        search.parameters.remove(0);
        let search = Search { repeats: Some(3), ..search };
        let base = BaseValues::default().with(SEED, json!(42));
        Repeated::of(&search, &base, Some(9)).unwrap()
    }

    fn racer(number: u32, lr: f64, seed: i64, state: State, losses: &[f64]) -> Trial {
        let values = vec![("optimizer.lr".to_owned(), json!(lr)), (SEED.to_owned(), json!(seed))];
        Trial { values, ..trial(number, state, losses) }
    }

    #[test]
    fn a_race_repeats_the_best_with_other_seeds_and_leaves_out_what_cannot_win() {
        let (race, base) = (race(), BaseValues::default().with(SEED, json!(42)));
        let seed = |values: Option<Values>| values.map(|all| all[1].1.as_i64().unwrap());
        let next = |trials: &[Trial]| race.next(trials, &base, Mode::Min);
        let mut trials = vec![racer(1, 0.1, 42, State::Running, &[])];
        assert_eq!(next(&trials), None, "it has no result yet");
        trials[0] = racer(1, 0.1, 42, State::Finished, &[0.5]);
        trials.push(racer(2, 0.2, 42, State::Finished, &[0.25]));
        let best = next(&trials).unwrap();
        assert_eq!((&best[0].1, &best[1].1), (&json!(0.2), &json!(43)));
        // A trial from before the race had the base's seed.
        trials[1].values.pop();
        assert_eq!(next(&trials).unwrap(), best);
        trials.push(racer(3, 0.2, 43, State::Finished, &[0.27]));
        trials.push(racer(4, 0.2, 44, State::Running, &[]));
        assert_eq!(next(&trials).unwrap()[0].1, json!(0.1), "chance is not known yet");
        trials.push(racer(5, 0.1, 43, State::Finished, &[0.53]));
        assert_eq!(seed(next(&trials)), None, "0.1 is out of the race, and all of 0.2 runs");
        trials.push(racer(6, 0.3, 42, State::Finished, &[0.26]));
        assert_eq!(next(&trials).unwrap()[0].1, json!(0.3));
    }

    #[test]
    fn pruners_see_the_mean_curve_of_each_setting() {
        let base = BaseValues::default();
        let trials = [
            racer(1, 0.1, 1, State::Finished, &[0.5, 0.25, 0.125]),
            racer(2, 0.1, 2, State::Running, &[0.75, 0.5]),
            racer(3, 0.2, 1, State::Running, &[0.5, f64::NAN]),
        ];
        let values =
            |trial: &Trial| trial.reports.iter().map(|one| one.value).collect::<Vec<Option<f64>>>();
        let (judged, others) = Repeated::curves(&trials, 1, 0, &base);
        assert_eq!((judged.number, values(&judged)), (2, vec![Some(0.625)]));
        assert_eq!((others.len(), others[0].number), (1, 3));
        let (_, others) = Repeated::curves(&trials, 2, 1, &base);
        assert_eq!(values(&others[0]), [Some(0.625), Some(0.375), Some(0.125)]);
        assert_eq!(others[0].state, State::Finished);
    }
}
