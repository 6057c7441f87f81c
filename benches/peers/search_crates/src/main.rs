//! The least values that maintained crates find of the functions of `benches/search.rs`, with as
//! many trials: median and middle half of 20 seeds, as rows of the table of docs/sweeps.md.

use std::f64::consts::PI;

use egobox_ego::{EgorBuilder, XType};
use ndarray::{Array2, ArrayView2};
use optimizer::prelude::*;
use optimizer::sampler::tpe::{ConstantLiarStrategy, MultivariateTpeSampler};
use rand::SeedableRng;
use rand::rngs::StdRng;

const SEEDS: u64 = 20;

/// How a parameter is drawn between its ends.
#[derive(Clone, Copy, PartialEq)]
enum Scale {
    Linear,
    Log,
    Step(f64),
    /// 0 or 1.
    Choice,
}

/// A parameter; `when` is the value of the first parameter with which it counts.
struct Dimension {
    name: &'static str,
    low: f64,
    high: f64,
    scale: Scale,
    when: Option<f64>,
}

struct Problem {
    name: &'static str,
    trials: usize,
    space: Vec<Dimension>,
    function: fn(&[f64]) -> f64,
}

const fn dimension(name: &'static str, low: f64, high: f64, scale: Scale) -> Dimension {
    Dimension { name, low, high, scale, when: None }
}

fn problems() -> [Problem; 3] {
    let names = ["x1", "x2", "x3", "x4", "x5", "x6"];
    let unit = |name: &&'static str| dimension(name, 0.0, 1.0, Scale::Linear);
    [
        Problem {
            name: "branin",
            trials: 60,
            space: vec![
                dimension("x1", -5.0, 10.0, Scale::Linear),
                dimension("x2", 0.0, 15.0, Scale::Linear),
            ],
            function: branin,
        },
        Problem {
            name: "hartmann6",
            trials: 100,
            space: names.iter().map(unit).collect(),
            function: hartmann6,
        },
        Problem { name: "conditional", trials: 60, space: conditional_space(), function: conditional },
    ]
}

fn branin(x: &[f64]) -> f64 {
    let valley = x[1] - 5.1 / (4.0 * PI * PI) * x[0] * x[0] + 5.0 / PI * x[0] - 6.0;
    valley * valley + 10.0 * (1.0 - 1.0 / (8.0 * PI)) * x[0].cos() + 10.0
}

fn hartmann6(x: &[f64]) -> f64 {
    const ALPHA: [f64; 4] = [1.0, 1.2, 3.0, 3.2];
    const A: [[f64; 6]; 4] = [
        [10.0, 3.0, 17.0, 3.5, 1.7, 8.0],
        [0.05, 10.0, 17.0, 0.1, 8.0, 14.0],
        [3.0, 3.5, 1.7, 10.0, 17.0, 8.0],
        [17.0, 8.0, 0.05, 10.0, 0.1, 14.0],
    ];
    const P: [[f64; 6]; 4] = [
        [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
        [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
        [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650],
        [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
    ];
    let distance = |i: usize| (0..6).map(|j| A[i][j] * (x[j] - P[i][j]).powi(2)).sum::<f64>();
    -(0..4).map(|i| ALPHA[i] * (-distance(i)).exp()).sum::<f64>()
}

fn conditional_space() -> Vec<Dimension> {
    let under = |when, dimension| Dimension { when: Some(when), ..dimension };
    vec![
        dimension("optimizer", 0.0, 1.0, Scale::Choice),
        under(0.0, dimension("sgd_lr", 1e-4, 1.0, Scale::Log)),
        under(0.0, dimension("momentum", 0.0, 1.0, Scale::Linear)),
        under(1.0, dimension("adam_lr", 1e-5, 0.1, Scale::Log)),
        dimension("width", 32.0, 512.0, Scale::Step(32.0)),
    ]
}

fn conditional(x: &[f64]) -> f64 {
    let width = 0.05 * (x[4].log2() - 7.0).powi(2);
    if x[0] < 0.5 {
        width + (x[1].log10() + 1.0).powi(2) + 4.0 * (x[2] - 0.9).powi(2)
    } else {
        width + 0.1 + 0.5 * (x[3].log10() + 3.0).powi(2)
    }
}

/// A value of a flat space, whose logarithms and steps are uniform, as the parameter's own.
fn unfolded(dimension: &Dimension, flat: f64) -> f64 {
    match dimension.scale {
        Scale::Log => flat.exp(),
        Scale::Step(step) => dimension.low + step * flat.floor(),
        Scale::Linear => flat,
        Scale::Choice => flat.floor().min(1.0),
    }
}

/// The ends of the flat space of a parameter.
fn flat(dimension: &Dimension) -> (f64, f64) {
    let &Dimension { low, high, scale, .. } = dimension;
    match scale {
        Scale::Log => (low.ln(), high.ln()),
        Scale::Step(step) => (0.0, (high - low) / step + 1.0),
        Scale::Linear => (low, high),
        Scale::Choice => (0.0, 2.0),
    }
}

/// `tpe`: one estimator per parameter.
fn by_tpe(problem: &Problem, seed: u64) -> f64 {
    let mut rng = StdRng::seed_from_u64(seed);
    let estimator = |dimension: &Dimension| {
        let (low, high) = flat(dimension);
        let kind = if dimension.scale == Scale::Choice {
            tpe::histogram_estimator()
        } else {
            tpe::parzen_estimator()
        };
        tpe::TpeOptimizer::new(kind, tpe::range(low, high).expect("a range"))
    };
    let mut estimators: Vec<_> = problem.space.iter().map(estimator).collect();
    let mut best = f64::INFINITY;
    for _ in 0..problem.trials {
        let mut drawn = vec![f64::NAN; problem.space.len()];
        let mut x = drawn.clone();
        for (i, dimension) in problem.space.iter().enumerate() {
            if dimension.when.is_none_or(|when| x[0] == when) {
                drawn[i] = estimators[i].ask(&mut rng).expect("a draw");
                x[i] = unfolded(dimension, drawn[i]);
            }
        }
        let value = (problem.function)(&x);
        for (estimator, drawn) in estimators.iter_mut().zip(drawn).filter(|(_, drawn)| !drawn.is_nan()) {
            estimator.tell(drawn, value).expect("a finite value");
        }
        best = best.min(value);
    }
    best
}

/// `optimizer`: its multivariate estimator with groups, as Optuna's options of the same names.
fn by_optimizer(problem: &Problem, seed: u64) -> f64 {
    let sampler = MultivariateTpeSampler::builder()
        .group(true)
        .constant_liar(ConstantLiarStrategy::Worst)
        .seed(seed)
        .build()
        .expect("a sampler");
    let study: Study<f64> = Study::builder().minimize().sampler(sampler).build();
    let parameter = |dimension: &Dimension| {
        let plain = FloatParam::new(dimension.low, dimension.high).name(dimension.name);
        match dimension.scale {
            Scale::Log => plain.log_scale(),
            Scale::Step(step) => plain.step(step),
            Scale::Linear | Scale::Choice => plain,
        }
    };
    let parameters: Vec<_> = problem.space.iter().map(parameter).collect();
    let choice = CategoricalParam::new(vec![0.0, 1.0]).name("choice");
    let objective = |trial: &mut Trial| {
        let mut x = vec![f64::NAN; problem.space.len()];
        for (i, dimension) in problem.space.iter().enumerate() {
            if dimension.when.is_none_or(|when| x[0] == when) {
                x[i] = match dimension.scale {
                    Scale::Choice => choice.suggest(trial)?,
                    _ => parameters[i].suggest(trial)?,
                };
            }
        }
        Ok::<_, Error>((problem.function)(&x))
    };
    study.optimize(problem.trials, objective).expect("a study");
    study.best_value().expect("a trial")
}

/// `egobox-ego`: Gaussian processes, ten trials of its first design; it knows no conditions, all
/// parameters count.
fn by_egobox(problem: &Problem, seed: u64) -> f64 {
    let function = |points: &ArrayView2<f64>| {
        let value = |row: usize| {
            let of = |(i, dimension): (usize, &Dimension)| match dimension.scale {
                Scale::Log => unfolded(dimension, points[[row, i]]),
                Scale::Choice | Scale::Step(_) | Scale::Linear => points[[row, i]],
            };
            let x: Vec<f64> = problem.space.iter().enumerate().map(of).collect();
            (problem.function)(&x)
        };
        Array2::from_shape_fn((points.nrows(), 1), |(row, _)| value(row))
    };
    let kind = |dimension: &Dimension| match dimension.scale {
        Scale::Choice => XType::Enum(2),
        Scale::Step(step) => {
            let count = ((dimension.high - dimension.low) / step) as usize;
            XType::Ord((0..=count).map(|i| dimension.low + step * i as f64).collect())
        }
        Scale::Linear | Scale::Log => {
            let (low, high) = flat(dimension);
            XType::Float(low, high)
        }
    };
    let kinds: Vec<XType> = problem.space.iter().map(kind).collect();
    let found = EgorBuilder::optimize(function)
        .configure(|config| config.n_doe(10).max_iters(problem.trials - 10).seed(seed))
        .min_within_mixint_space(&kinds)
        .expect("a space")
        .run()
        .expect("a search");
    found.y_opt[0]
}

/// Median and middle half.
fn summary(mut found: Vec<f64>) -> String {
    found.sort_by(f64::total_cmp);
    let at = |share: f64| found[(share * (found.len() - 1) as f64).round() as usize];
    let median = f64::midpoint(found[found.len() / 2 - 1], found[found.len() / 2]);
    format!("{median:.3} ({:.3} to {:.3})", at(0.25), at(0.75))
}

fn main() {
    type Search = fn(&Problem, u64) -> f64;
    let crates: [(&str, Search); 3] =
        [("tpe", by_tpe), ("optimizer", by_optimizer), ("egobox-ego", by_egobox)];
    println!("| function | trials | crate | found |\n|---|---|---|---|");
    for problem in problems() {
        for (name, search) in crates {
            let began = std::time::Instant::now();
            let found = (0..SEEDS).map(|seed| search(&problem, seed)).collect();
            let seconds = began.elapsed().as_secs_f64() / (SEEDS as f64 * problem.trials as f64);
            let words = summary(found);
            println!("| {} | {} | `{name}` | {words}, {:.1} ms a trial |", problem.name, problem.trials, 1e3 * seconds);
        }
    }
}
