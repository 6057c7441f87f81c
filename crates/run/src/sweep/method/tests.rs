//! What search methods that learn from earlier trials have in common.

use serde_json::json;

use super::{Gp, Method, ProposalRequest, Random, Tpe};
use crate::config::schema::Mode;
use crate::config::sweep::{
    Condition, Constraint, Domain, Json, Parameter, Search, Values, value_of,
};
use crate::sweep::example_sweeps::{of_batch, search, trial};
use crate::sweep::ranking::Ranking;
use crate::sweep::sampler::{BaseValues, Tried};
use crate::sweep::trial::{Length, Report, State, Trial, cost};

/// The methods that learn from earlier trials.
const MODELS: [&dyn Method; 2] = [&Tpe {}, &Gp {}];

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

fn propose(method: &dyn Method, search: &Search, number: u32, trials: &[Trial]) -> Values {
    drawn(method, search, &BaseValues::default(), number, trials)
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
        let mut best: Vec<f64> = (0..5).map(|seed| best_after(40, seed, draw)).collect();
        best.sort_by(f64::total_cmp);
        best[2]
    };
    let random = median(&|search, number, _| drawn(&Random {}, search, &base, number, &[]));
    for (model, share) in MODELS.into_iter().zip([0.5, 0.05]) {
        let found = median(&|search, number, trials| propose(model, search, number, trials));
        assert!(found < share * random, "{model:?}: {found} {random}");
    }
}

#[test]
fn the_same_story_gives_the_same_trial_and_a_running_one_drives_the_next_away() {
    for model in MODELS {
        let search = Search { seed: 3, ..conditional() };
        let mut trials: Vec<Trial> = Vec::new();
        for number in 1..=20 {
            let values = propose(model, &search, number, &trials);
            let value = bowl(&values);
            trials.push(done(number, values, value));
        }
        let next = propose(model, &search, 21, &trials);
        assert_eq!(next, propose(model, &search, 21, &trials));
        trials.rotate_left(7);
        assert_eq!(next, propose(model, &search, 21, &trials), "whatever their order");
        for number in 21..60 {
            let values = next.clone();
            let length = Length { steps_per_epoch: 1, total_steps: 1 };
            trials.push(Trial::new(number, values, length));
        }
        let away = propose(model, &search, 60, &trials);
        // By more than a two-hundredth of an axis.
        let apart = |key: &str, moved: fn(f64, f64) -> f64| {
            number(&away, key).zip(number(&next, key)).map_or(1.0, |(a, b)| moved(a, b).abs())
        };
        let is_away = away[0] != next[0]
            || apart("x", |a, b| a - b) > 0.05
            || apart("y", |a, b| a - b) > 0.05
            || apart("z", |a, b| (a / b).log10()) > 0.03;
        assert!(is_away, "{model:?}: {next:?} {away:?}");
    }
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
    for model in MODELS {
        let drawn = (31..91).map(|number| {
            let (search, base, ranking, trials) = (&search, &base, &ranking, &trials[..]);
            model
                .propose(&ProposalRequest { search, base, ranking, number, trials, tried })
                .unwrap()
        });
        let large = drawn.filter(|values| values[0].1 == json!(256)).count();
        // By steps the batch of 32 would be the good one.
        assert!(large > 24, "{model:?}: {large} of 60 draws have the best batch");
    }
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

/// Number of draws, out of twenty, near the best trials.
fn near_the_best(
    method: &dyn Method,
    search: &Search,
    base: &BaseValues,
    trials: &[Trial],
) -> usize {
    let near = |number: &u32| {
        let values = drawn(method, search, base, *number, trials);
        super::tests::number(&values, "x").unwrap().abs() < 20.0
    };
    (31..51).filter(near).count()
}

#[test]
fn a_parameter_that_is_added_leaves_what_the_earlier_trials_say_about_the_others() {
    for model in MODELS {
        let (mut search, trials) = along_a_line();
        let before = near_the_best(model, &search, &BaseValues::default(), &trials);
        assert!(before >= 15, "{model:?}: {before} of 20");
        search.parameters.push(Parameter::new("y", Domain::Uniform { min: 0.0, max: 1.0 }));
        let words = Domain::Categorical { values: vec![json!("a"), json!("b")] };
        search.parameters.push(Parameter::new("word", words));
        // The base's values are in the space, outside of it, and unknown.
        let with = |y: f64, word: &str| {
            BaseValues::default().with("y", json!(y)).with("word", json!(word))
        };
        for base in [with(0.5, "a"), with(9.0, "c"), BaseValues::default()] {
            let after = near_the_best(model, &search, &base, &trials);
            assert!(after >= 15, "{model:?}: {after} of 20: {base:?}");
        }
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
    for model in MODELS {
        let low = (61..81)
            .filter(|n| number(&drawn(model, &search, &base, *n, &trials), "y").unwrap() < 0.5);
        let low = low.count();
        assert!(low >= 15, "{model:?}: {low} of 20");
    }
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
    for model in MODELS {
        let lucky = (31..91).filter(|number| {
            let values = propose(model, &search, *number, &trials);
            value_of(&values, "experiment.seed") == Some(&json!(3))
        });
        let lucky = lucky.count();
        assert!((1..=14).contains(&lucky), "{model:?}: {lucky} of 60, where chance gives 6");
    }
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
    for model in MODELS {
        let values = propose(model, &search, 31, &trials);
        assert!((1e-3..=1e3).contains(&number(&values, "z").unwrap()), "{model:?}");
    }
}

#[test]
fn a_process_finds_the_least_of_numbers_steps_and_choices_under_a_constraint() {
    let mut search = search("gp");
    let sizes = [256, 16, 64, 32, 128].map(Json::from).to_vec();
    search.parameters = vec![
        Parameter::new("train.batch_size", Domain::Categorical { values: sizes }),
        Parameter::new("n", Domain::IntUniform { min: 1, max: 9 }),
        Parameter::new("x", Domain::Uniform { min: 0.0, max: 1.0 }),
        Parameter::new("q", Domain::QUniform { min: 0.0, max: 1.0, q: 0.25 }),
    ];
    // The best of all, a batch of 64, is forbidden.
    search.constraints = vec![Constraint::parse("train.batch_size < 64").unwrap()];
    let value = |values: &Values| {
        let [batch, n, x, q] =
            ["train.batch_size", "n", "x", "q"].map(|key| number(values, key).unwrap());
        assert!(batch < 64.0 && n.fract() == 0.0 && (q * 4.0).fract() == 0.0, "{values:?}");
        (batch.log2() - 6.0).abs() + (n - 7.0).powi(2) / 10.0 + (x - 0.37).powi(2) + (q - 0.5).abs()
    };
    let mut trials: Vec<Trial> = Vec::new();
    for number in 1..=40 {
        let values = propose(&Gp {}, &search, number, &trials);
        let cost = value(&values);
        // Every third ends early, one in ten not at all.
        let state = match number % 10 {
            3 | 6 | 9 => State::Pruned,
            5 => State::Diverged,
            _ => State::Finished,
        };
        let cost = if state == State::Diverged { f64::NAN } else { cost };
        trials.push(Trial { state, ..done(number, values, cost) });
    }
    let best = trials.iter().map(|trial| value(&trial.values)).fold(f64::INFINITY, f64::min);
    assert!(best < 1.02, "{best}, where the least is 1");
}
