//! `sweep.method = "tpe"`
//!
//! The tree-structured Parzen estimator (Bergstra et al. 2011) as Optuna's `TPESampler` does it
//! with `multivariate=True, group=True, constant_liar=True`: ten random trials, then draws near the
//! best tenth.
//!
//! Parameters with the same conditions are drawn together, from the trials in which they counted. A
//! trial of before a parameter was added ran with the base's value of it; where the space does not
//! hold that, the parameters are parted into groups that trials have whole, as Optuna does. Folds
//! and seeds are drawn at random.
//! Trials that still run count among the others, so that trials of the same time do not all try the
//! same place. A draw is a pure function of the seed, the trial's number and what the other trials
//! have reported.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Requirement};
use crate::config::sweep::{
    Domain, Json, Parameter, Search, Values, as_written, canonical, on_grid, ordered, steps_of,
    value_of,
};
use crate::rng::{Key, Purpose, name_hash};
use crate::sweep::method::{Method, ProposalRequest};
use crate::sweep::parzen::{Axis, suggest};
use crate::sweep::repeats::is_repeat;
use crate::sweep::sampler::{self, BaseValues};
use crate::sweep::trial::{State, Trial};

/// Random trials before the first that is drawn near good ones.
const N_STARTUP_TRIALS: usize = 10;
/// Draws after which a space with constraints is drawn from at random.
const ATTEMPTS: u64 = 100;
/// Keeps these draws apart from the random ones of the same trial.
const STREAM: u64 = 1 << 32;

/// Bayesian optimisation: ten random trials, then the tree-structured Parzen estimator (Bergstra et
/// al. 2011), as Optuna's `TPESampler(multivariate=True, group=True, constant_liar=True)`:
/// parameters with the same condition are drawn together, and new trials keep away from running
/// ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tpe {}

impl Kind for Tpe {
    const NAME: &'static str = "tpe";
    const REQUIREMENTS: &'static [Requirement] = &[Requirement::Parameters, Requirement::Trials];
}

impl Method for Tpe {
    fn propose(&self, request: &ProposalRequest<'_>) -> Option<Values> {
        let ProposalRequest { search, base, ranking, number, trials, .. } = *request;
        let counts = |trial: &&Trial| !matches!(trial.state, State::Running | State::Failed);
        let n_done = trials.iter().filter(counts).count();
        if n_done < N_STARTUP_TRIALS {
            return sampler::random(request);
        }
        let n_good = n_done.div_ceil(10).min(25);
        let (good, others) = split(ranking.ranked(trials), n_good);
        let ran = |trials: Vec<&Trial>| -> Vec<Values> {
            trials.into_iter().map(|trial| as_it_ran(search, base, &trial.values)).collect()
        };
        let good = ran(good);
        let others = ran(others);
        (0..ATTEMPTS)
            .map(|attempt| {
                let stream = STREAM + attempt;
                let key = Key::new(search.seed, Purpose::Sweep, u64::from(number), stream);
                draw_groups(search, key, &good, &others)
            })
            .find(|values| request.admits(values))
            .or_else(|| sampler::random(request))
    }

    fn n_independent(&self) -> usize {
        N_STARTUP_TRIALS
    }
}

/// Trials, best first -> the best `n_good` of those that have ended, and the others; each in the
/// order of numbers, because older trials fade.
fn split(ranked: Vec<&Trial>, n_good: usize) -> (Vec<&Trial>, Vec<&Trial>) {
    let mut good = Vec::new();
    let mut others = Vec::new();
    for trial in ranked {
        match trial.state {
            State::Failed => {}
            State::Running => others.push(trial),
            _ if good.len() < n_good => good.push(trial),
            _ => others.push(trial),
        }
    }
    good.sort_by_key(|trial| trial.number);
    others.sort_by_key(|trial| trial.number);
    (good, others)
}

/// The values of a trial, and those of the base for parameters that it does not have: they were
/// added to the search later.
fn as_it_ran(search: &Search, base: &BaseValues, values: &Values) -> Values {
    let mut all = values.clone();
    for parameter in ordered(&search.parameters) {
        if value_of(&all, &parameter.key).is_none()
            && parameter.is_active(&all)
            && let Some(value) = base.get(&parameter.key)
            && place_of(&parameter.domain, value).is_some()
        {
            all.push((parameter.key.clone(), value.clone()));
        }
    }
    all
}

/// Draws the parameters, group by group, parents first.
fn draw_groups(search: &Search, key: Key, good: &[Values], others: &[Values]) -> Values {
    let mut values = Values::new();
    let (repeats, modelled): (Vec<&Parameter>, Vec<&Parameter>) =
        ordered(&search.parameters).into_iter().partition(|parameter| is_repeat(&parameter.key));
    for parameter in repeats {
        let share = key.with(name_hash(&parameter.key)).uniform(0);
        if parameter.is_active(&values) && value_of(&values, &parameter.key).is_none() {
            values.push((parameter.key.clone(), sampler::at(&parameter.domain, share)));
        }
    }
    for (index, group) in groups(&modelled, &[good, others]).into_iter().enumerate() {
        let group: Vec<&Parameter> = group
            .into_iter()
            .filter(|parameter| parameter.is_active(&values))
            .filter(|parameter| value_of(&values, &parameter.key).is_none())
            .collect();
        if group.is_empty() {
            continue;
        }
        let axes: Vec<Axis> = group.iter().map(|parameter| axis(&parameter.domain)).collect();
        let seen = |trials: &[Values]| -> Vec<Vec<f64>> {
            trials.iter().filter_map(|values| place_of_trial(&group, values)).collect()
        };
        let mut stream = key.with(index as u64).stream();
        let point = suggest(&axes, &seen(good), &seen(others), &mut stream);
        for (parameter, place) in group.iter().zip(point) {
            values.push((parameter.key.clone(), value_at(&parameter.domain, place)));
        }
    }
    as_written(&search.parameters, &mut values);
    values
}

/// Parameters that always count together, parents before those that depend on them: those with the
/// same condition, of which every trial has all or none.
fn groups<'a>(parameters: &[&'a Parameter], trials: &[&[Values]]) -> Vec<Vec<&'a Parameter>> {
    let mut groups: Vec<Vec<&Parameter>> = Vec::new();
    for &parameter in parameters {
        match groups.iter_mut().find(|group| group[0].when == parameter.when) {
            Some(group) => group.push(parameter),
            None => groups.push(vec![parameter]),
        }
    }
    for values in trials.iter().flat_map(|trials| trials.iter()) {
        let has = |parameter: &&Parameter| value_of(values, &parameter.key).is_some();
        let parted = groups.into_iter().flat_map(|group| {
            let (with, without): (Vec<&Parameter>, Vec<&Parameter>) =
                group.into_iter().partition(has);
            [with, without]
        });
        groups = parted.filter(|group| !group.is_empty()).collect();
    }
    groups
}

/// Coordinates of a trial on the axes of a group; `None` if a parameter did not count, or had a
/// value that the space no longer contains.
fn place_of_trial(group: &[&Parameter], values: &Values) -> Option<Vec<f64>> {
    let place = |parameter: &&Parameter| {
        let value = value_of(values, &parameter.key)?;
        let counted = parameter.is_active(values);
        if counted { place_of(&parameter.domain, value) } else { None }
    };
    group.iter().map(place).collect()
}

fn axis(domain: &Domain) -> Axis {
    match domain {
        Domain::Categorical { values } => Axis::Choices { n: values.len() },
        Domain::Uniform { min, max } => Axis::Numbers { low: *min, high: *max, step: 0.0 },
        Domain::LogUniform { min, max } => {
            Axis::Numbers { low: min.ln(), high: max.ln(), step: 0.0 }
        }
        Domain::IntUniform { min, max } => {
            Axis::Numbers { low: *min as f64, high: *max as f64, step: 1.0 }
        }
        Domain::QUniform { min, max, q } => {
            let high = min + q * steps_of(*min, *max, *q) as f64;
            Axis::Numbers { low: *min, high, step: *q }
        }
    }
}

/// Coordinate of a value on its axis.
pub(crate) fn place_of(domain: &Domain, value: &Json) -> Option<f64> {
    let number = || value.as_f64();
    match domain {
        Domain::Categorical { values } => {
            let value = canonical(value);
            values.iter().position(|known| canonical(known) == value).map(|index| index as f64)
        }
        Domain::LogUniform { min, max } => {
            number().filter(|x| (min..=max).contains(&x)).map(f64::ln)
        }
        Domain::Uniform { min, max } | Domain::QUniform { min, max, .. } => {
            number().filter(|x| (min..=max).contains(&x))
        }
        Domain::IntUniform { min, max } => {
            number().filter(|x| (*min as f64..=*max as f64).contains(x))
        }
    }
}

/// Inverse of [`place_of`].
fn value_at(domain: &Domain, place: f64) -> Json {
    match domain {
        Domain::Categorical { values } => {
            values.get(place as usize).or(values.first()).cloned().unwrap_or_default()
        }
        Domain::Uniform { .. } => Json::from(place),
        Domain::LogUniform { min, max } => Json::from(place.exp().clamp(*min, *max)),
        Domain::IntUniform { .. } => Json::from(place.round() as i64),
        Domain::QUniform { min, q, .. } => {
            Json::from(on_grid(*min, *q, ((place - min) / q).round().max(0.0) as u64))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::schema::Mode;
    use crate::config::sweep::Condition;
    use crate::sweep::example_sweeps::{of_batch, search, trial};
    use crate::sweep::method::Random;
    use crate::sweep::ranking::Ranking;
    use crate::sweep::sampler::Tried;
    use crate::sweep::trial::{Length, Report, cost};

    /// The values that `method` draws after these trials.
    fn drawn(
        method: &dyn Method,
        search: &Search,
        base: &BaseValues,
        number: u32,
        trials: &[Trial],
    ) -> Values {
        let (ranking, tried) = (&Ranking::plain(search.goal), &Tried::of(trials, base));
        method.propose(&ProposalRequest { search, base, ranking, number, trials, tried }).unwrap()
    }

    fn propose(search: &Search, number: u32, trials: &[Trial]) -> Values {
        drawn(&Tpe {}, search, &BaseValues::default(), number, trials)
    }

    fn number(values: &Values, key: &str) -> Option<f64> {
        value_of(values, key).and_then(Json::as_f64)
    }

    /// A conditional space: a choice of method decides which of two numbers counts.
    fn conditional() -> Search {
        let mut search = search("tpe");
        let when = |value: &str| vec![Condition { key: "m".into(), values: vec![json!(value)] }];
        let line = Domain::Uniform { min: -5.0, max: 5.0 };
        search.parameters = vec![
            Parameter::new("m", Domain::Categorical { values: vec![json!("a"), json!("b")] }),
            Parameter { when: when("a"), ..Parameter::new("x", line.clone()) },
            Parameter { when: when("b"), ..Parameter::new("y", line) },
            Parameter::new("z", Domain::LogUniform { min: 1e-3, max: 1e3 }),
        ];
        search
    }

    /// Least at m = a, x = 2, z = 1.
    fn bowl(values: &Values) -> f64 {
        let z = number(values, "z").unwrap().log10().powi(2);
        match (number(values, "x"), number(values, "y")) {
            (Some(x), None) => (x - 2.0).powi(2) + z,
            (None, Some(y)) => y.powi(2) + 3.0 + z,
            both => panic!("{both:?}"),
        }
    }

    fn done(number: u32, values: Values, value: f64) -> Trial {
        let length = Length { steps_per_epoch: 1, total_steps: 1 };
        let reports = vec![Report { step: 1, value: Some(value) }];
        Trial { state: State::Finished, reports, ..Trial::new(number, values, length) }
    }

    fn best_after(n: u32, seed: u64, draw: impl Fn(&Search, u32, &[Trial]) -> Values) -> f64 {
        let search = Search { seed, ..conditional() };
        let mut trials: Vec<Trial> = Vec::new();
        for number in 1..=n {
            let values = draw(&search, number, &trials);
            let value = bowl(&values);
            trials.push(done(number, values, value));
        }
        trials.iter().map(|t| cost(t.value(Mode::Min), Mode::Min)).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn a_conditional_space_is_searched_better_than_at_random() {
        let base = BaseValues::default();
        let median = |draw: &dyn Fn(&Search, u32, &[Trial]) -> Values| {
            let mut best: Vec<f64> = (0..11).map(|seed| best_after(60, seed, draw)).collect();
            best.sort_by(f64::total_cmp);
            best[5]
        };
        let tpe = median(&|search, number, trials| propose(search, number, trials));
        let random = median(&|search, number, _| drawn(&Random {}, search, &base, number, &[]));
        assert!(tpe < 0.5 * random, "{tpe} {random}");
    }

    #[test]
    fn the_same_story_gives_the_same_trial_and_a_running_one_drives_the_next_away() {
        let search = Search { seed: 3, ..conditional() };
        let mut trials: Vec<Trial> = Vec::new();
        for number in 1..=20 {
            let values = propose(&search, number, &trials);
            let value = bowl(&values);
            trials.push(done(number, values, value));
        }
        let next = propose(&search, 21, &trials);
        assert_eq!(next, propose(&search, 21, &trials));
        trials.rotate_left(7);
        assert_eq!(next, propose(&search, 21, &trials), "whatever their order");
        for number in 21..60 {
            let values = next.clone();
            let length = Length { steps_per_epoch: 1, total_steps: 1 };
            trials.push(Trial::new(number, values, length));
        }
        let away = propose(&search, 60, &trials);
        let distance = (number(&away, "z").unwrap() / number(&next, "z").unwrap()).log10().abs();
        assert!(away[0] != next[0] || distance > 0.1, "{next:?} {away:?}");
    }

    /// Thirty pruned trials of two batch sizes, one epoch each: what is good is the large batch.
    fn of_two_batches() -> (Search, Vec<Trial>) {
        let mut search = search("tpe");
        search.goal = Mode::Max;
        let values = [32, 64, 128, 256].map(Json::from).to_vec();
        let key = "train.global_batch_size";
        search.parameters = vec![Parameter::new(key, Domain::Categorical { values })];
        let one = |number: u32| {
            let batch = [32, 64, 128, 256][number as usize % 4];
            let accuracy = f64::from(batch) / 1000.0;
            let values = vec![(key.to_owned(), json!(batch))];
            let pruned = trial(number, State::Pruned, &[accuracy]);
            of_batch(6400 / batch as u64, Trial { values, ..pruned })
        };
        (search, (1..=30).map(one).collect())
    }

    #[test]
    fn what_is_good_after_an_epoch_is_good_whatever_number_of_steps_that_took() {
        let (search, trials) = of_two_batches();
        let (base, ranking) = (BaseValues::default(), Ranking::plain(search.goal));
        // Both batches were tried, so that nothing would be left to draw.
        let tried = &Tried::of(&[], &base);
        let drawn = (31..131).map(|number| {
            let (search, base, ranking, trials) = (&search, &base, &ranking, &trials[..]);
            Tpe {}
                .propose(&ProposalRequest { search, base, ranking, number, trials, tried })
                .unwrap()
        });
        let large = drawn.filter(|values| values[0].1 == json!(256)).count();
        // By steps the batch of 32 would be the good one.
        assert!(large > 40, "{large} of 100 draws have the best batch");
    }

    /// Thirty trials whose value is the distance of `x` from 2.
    fn along_a_line() -> (Search, Vec<Trial>) {
        let mut search = search("tpe");
        let line = Domain::Uniform { min: -50.0, max: 50.0 };
        search.parameters = vec![Parameter::new("x", line)];
        let trials = (1..=30).map(|number| {
            let x = -44.0 + 3.0 * f64::from(number);
            done(number, vec![("x".to_owned(), json!(x))], (x - 1.0).abs())
        });
        let trials = trials.collect();
        (search, trials)
    }

    /// Number of draws, out of forty, near the best trials.
    fn near_the_best(search: &Search, base: &BaseValues, trials: &[Trial]) -> usize {
        let near = |number: &u32| {
            let values = drawn(&Tpe {}, search, base, *number, trials);
            super::tests::number(&values, "x").unwrap().abs() < 20.0
        };
        (31..71).filter(near).count()
    }

    #[test]
    fn a_parameter_that_is_added_leaves_what_the_earlier_trials_say_about_the_others() {
        let (mut search, trials) = along_a_line();
        let before = near_the_best(&search, &BaseValues::default(), &trials);
        assert!(before > 30, "{before} of 40");
        search.parameters.push(Parameter::new("y", Domain::Uniform { min: 0.0, max: 1.0 }));
        let words = Domain::Categorical { values: vec![json!("a"), json!("b")] };
        search.parameters.push(Parameter::new("word", words));
        // The base's values are in the space, outside of it, and unknown.
        let with = |y: f64, word: &str| {
            BaseValues::default().with("y", json!(y)).with("word", json!(word))
        };
        for base in [with(0.5, "a"), with(9.0, "c"), BaseValues::default()] {
            let after = near_the_best(&search, &base, &trials);
            assert!(after > 30, "{after} of 40: {base:?}");
        }
    }

    #[test]
    fn a_new_parameter_is_drawn_near_the_bases_value_if_that_was_good() {
        let (mut search, mut trials) = along_a_line();
        search.parameters.push(Parameter::new("y", Domain::Uniform { min: 0.0, max: 1.0 }));
        for number in 31..=60u32 {
            let values = vec![("x".to_owned(), json!(1.0)), ("y".to_owned(), json!(0.9))];
            trials.push(done(number, values, 100.0 + f64::from(number)));
        }
        let base = BaseValues::default().with("y", json!(0.1));
        let low = (61..101)
            .filter(|n| number(&drawn(&Tpe {}, &search, &base, *n, &trials), "y").unwrap() < 0.5);
        let low = low.count();
        assert!(low > 30, "{low} of 40");
    }

    #[test]
    fn a_seed_is_no_hyperparameter() {
        let (mut search, mut trials) = along_a_line();
        let seeds = Domain::IntUniform { min: 0, max: 9 };
        search.parameters.push(Parameter::new("experiment.seed", seeds));
        for trial in &mut trials {
            // A lucky seed decides the value alone.
            let seed = trial.number % 10;
            trial.values.push(("experiment.seed".to_owned(), json!(seed)));
            trial.reports[0].value = Some(f64::from((seed + 7) % 10));
        }
        let lucky = (31..131).filter(|number| {
            let values = drawn(&Tpe {}, &search, &BaseValues::default(), *number, &trials);
            value_of(&values, "experiment.seed") == Some(&json!(3))
        });
        let lucky = lucky.count();
        assert!((3..=20).contains(&lucky), "{lucky} of 100, where chance gives 10");
    }

    #[test]
    fn trials_of_a_space_that_was_changed_count_where_they_still_fit() {
        let search = conditional();
        let trials: Vec<Trial> = (1..=30)
            .map(|number| {
                let values = vec![("m".to_owned(), json!("c")), ("z".to_owned(), json!(1e9))];
                done(number, values, 0.0)
            })
            .collect();
        let values = propose(&search, 31, &trials);
        assert!((1e-3..=1e3).contains(&number(&values, "z").unwrap()));
    }
}
