//! `sweep.method = "tpe"`
//!
//! The tree-structured Parzen estimator (Bergstra et al. 2011) as Optuna's `TPESampler` does it
//! with `multivariate=True, group=True, constant_liar=True`: ten random trials, then draws near the
//! best tenth.
//!
//! Parameters with the same conditions are drawn together, from the trials in which they counted.
//! Trials that still run count among the others, so that trials of the same time do not all try the
//! same place. A draw is a pure function of the seed, the trial's number and what the other trials
//! have reported.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Need};
use crate::config::sweep::{
    Domain, Json, Parameter, Search, Values, as_written, on_grid, ordered, steps_of, value_of,
};
use crate::rng::{Key, Purpose};
use crate::sweep::method::{Asked, Method};
use crate::sweep::parzen::{Axis, suggest};
use crate::sweep::sampler;
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
    const NEEDS: &'static [Need] = &[Need::Parameters, Need::Trials];
}

impl Method for Tpe {
    fn propose(&self, asked: &Asked<'_>) -> Option<Values> {
        let Asked { search, base, ranking, number, trials } = *asked;
        let counts = |trial: &&Trial| !matches!(trial.state, State::Running | State::Failed);
        let n_done = trials.iter().filter(counts).count();
        if n_done < N_STARTUP_TRIALS {
            return sampler::random(search, base, number);
        }
        let n_good = n_done.div_ceil(10).min(25);
        let (good, others) = split(ranking.ranked(trials), n_good);
        (0..ATTEMPTS)
            .map(|attempt| {
                let stream = STREAM + attempt;
                let key = Key::new(search.seed, Purpose::Sweep, u64::from(number), stream);
                draw_groups(search, key, &good, &others)
            })
            .find(|values| sampler::is_allowed(search, values, base))
            .or_else(|| sampler::random(search, base, number))
    }

    fn n_independent(&self) -> usize {
        N_STARTUP_TRIALS
    }
}

/// Trials, best first -> the best `n_good` of those that have ended, and the others; each in the
/// order of numbers, because older trials fade.
fn split(ranked: Vec<&Trial>, n_good: usize) -> (Vec<&Trial>, Vec<&Trial>) {
    let (mut good, mut others) = (Vec::new(), Vec::new());
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

/// Draws the parameters, group by group, parents first.
fn draw_groups(search: &Search, key: Key, good: &[&Trial], others: &[&Trial]) -> Values {
    let mut values = Values::new();
    for (index, group) in groups(&search.parameters).into_iter().enumerate() {
        let group: Vec<&Parameter> = group
            .into_iter()
            .filter(|parameter| parameter.is_active(&values))
            .filter(|parameter| value_of(&values, &parameter.key).is_none())
            .collect();
        if group.is_empty() {
            continue;
        }
        let axes: Vec<Axis> = group.iter().map(|parameter| axis(&parameter.domain)).collect();
        let seen = |trials: &[&Trial]| -> Vec<Vec<f64>> {
            trials.iter().filter_map(|trial| place_of_trial(&group, trial)).collect()
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

/// Parameters that always count together, parents before those that depend on them.
fn groups(parameters: &[Parameter]) -> Vec<Vec<&Parameter>> {
    let mut groups: Vec<Vec<&Parameter>> = Vec::new();
    for parameter in ordered(parameters) {
        match groups.iter_mut().find(|group| group[0].when == parameter.when) {
            Some(group) => group.push(parameter),
            None => groups.push(vec![parameter]),
        }
    }
    groups
}

/// Where a trial lies on the axes of a group; `None` if one of its parameters did not count, or had
/// a value that the space does not hold any more.
fn place_of_trial(group: &[&Parameter], trial: &Trial) -> Option<Vec<f64>> {
    let place = |parameter: &&Parameter| {
        let value = value_of(&trial.values, &parameter.key)?;
        let counted = parameter.is_active(&trial.values);
        place_of(&parameter.domain, value).filter(|_| counted)
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

/// The place of a value on its axis.
pub(crate) fn place_of(domain: &Domain, value: &Json) -> Option<f64> {
    let number = || value.as_f64();
    match domain {
        Domain::Categorical { values } => {
            values.iter().position(|known| known == value).map(|index| index as f64)
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

/// The way back.
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
    use crate::sweep::ranking::Ranking;
    use crate::sweep::sampler::BaseValues;
    use crate::sweep::trial::{Length, Report, cost};

    fn propose(search: &Search, number: u32, trials: &[Trial]) -> Values {
        let (base, ranking) = (&BaseValues::default(), &Ranking::plain(search.goal));
        Tpe {}.propose(&Asked { search, base, ranking, number, trials }).unwrap()
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
        let random = median(&|search, number, _| sampler::random(search, &base, number).unwrap());
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
        let drawn = (31..131).map(|number| propose(&search, number, &trials));
        let large = drawn.filter(|values| values[0].1 == json!(256)).count();
        // By steps the batch of 32 would be the good one.
        assert!(large > 40, "{large} of 100 draws have the best batch");
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
