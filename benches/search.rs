//! Quality of the searches of sweeps: the least value of known functions after so many trials, median of
//! 30 seeds, against Optuna's.
//!
//! ```text
//! cargo bench -p ddprun-benches --bench search                              ours
//! PYTHON=/venv/bin/python cargo bench -p ddprun-benches --bench search      and Optuna's, by benches/peers/bench_search.py
//! ```
//!
//! The Python needs optuna, scipy and torch. `p` is that of Wilcoxon's rank-sum test, two-sided, of our
//! method against Optuna's of the same name.
#![expect(
    clippy::expect_used,
    clippy::unreachable,
    clippy::print_stdout,
    reason = "a benchmark may stop, and prints"
)]

use std::collections::BTreeMap;
use std::f64::consts::{E, PI};
use std::process::Command;

use ddprun::config::kind::{Choice, Kind};
use ddprun::config::schema::Mode;
use ddprun::config::sweep::{Condition, Domain, Parameter, Search, Values};
use ddprun::sweep::{
    BaseValues, Gp, Length, Method, NoPruner, ProposalRequest, Random, Ranking, Report, State, Tpe,
    Trial, Tried,
};
use serde_json::{Value, json};

/// Searches of each function.
const SEEDS: u64 = 30;

/// A function and its domain.
struct Problem {
    name: &'static str,
    trials: u32,
    /// Least value of the function.
    least: f64,
    parameters: Vec<Parameter>,
    function: fn(&Values) -> f64,
}

fn problems() -> [Problem; 6] {
    let uniform = |key: &str, min, max| Parameter::new(key, Domain::Uniform { min, max });
    let cube = |n: u32, min, max| (1..=n).map(|i| uniform(&format!("x{i}"), min, max)).collect();
    [
        Problem {
            name: "branin",
            trials: 60,
            least: 0.397_887,
            parameters: vec![uniform("x1", -5.0, 10.0), uniform("x2", 0.0, 15.0)],
            function: branin,
        },
        Problem {
            name: "hartmann6",
            trials: 100,
            least: -3.322_37,
            parameters: cube(6, 0.0, 1.0),
            function: hartmann6,
        },
        Problem {
            name: "rosenbrock4",
            trials: 100,
            least: 0.0,
            parameters: cube(4, -2.0, 2.0),
            function: rosenbrock4,
        },
        Problem {
            name: "ackley10",
            trials: 100,
            least: 0.0,
            parameters: cube(10, -5.0, 5.0),
            function: ackley10,
        },
        Problem {
            name: "mixed",
            trials: 60,
            least: 0.0,
            parameters: mixed_space(),
            function: mixed,
        },
        Problem {
            name: "conditional",
            trials: 60,
            least: 0.0,
            parameters: conditional_space(),
            function: conditional,
        },
    ]
}

fn number(values: &Values, key: &str) -> f64 {
    let value = values.iter().find(|(known, _)| known == key).map(|(_, value)| value);
    value.and_then(Value::as_f64).expect("a number")
}

fn branin(x: &Values) -> f64 {
    let (x1, x2) = (number(x, "x1"), number(x, "x2"));
    let valley = x2 - 5.1 / (4.0 * PI * PI) * x1 * x1 + 5.0 / PI * x1 - 6.0;
    valley * valley + 10.0 * (1.0 - 1.0 / (8.0 * PI)) * x1.cos() + 10.0
}

fn hartmann6(x: &Values) -> f64 {
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
    let x: Vec<f64> = (1..=6).map(|i| number(x, &format!("x{i}"))).collect();
    let peak = |i: usize| {
        let distance: f64 = (0..6).map(|j| A[i][j] * (x[j] - P[i][j]).powi(2)).sum();
        ALPHA[i] * (-distance).exp()
    };
    -(0..4).map(peak).sum::<f64>()
}

fn rosenbrock4(x: &Values) -> f64 {
    let x: Vec<f64> = (1..=4).map(|i| number(x, &format!("x{i}"))).collect();
    x.windows(2).map(|x| 100.0 * (x[1] - x[0] * x[0]).powi(2) + (1.0 - x[0]).powi(2)).sum()
}

fn ackley10(x: &Values) -> f64 {
    let x: Vec<f64> = (1..=10).map(|i| number(x, &format!("x{i}"))).collect();
    let far = (x.iter().map(|x| x * x).sum::<f64>() / 10.0).sqrt();
    let waves = x.iter().map(|x| (2.0 * PI * x).cos()).sum::<f64>() / 10.0;
    -20.0 * (-0.2 * far).exp() - waves.exp() + 20.0 + E
}

/// Numbers, choices that are numbers, and choices that are not; the best rate depends on the batch.
fn mixed_space() -> Vec<Parameter> {
    let batches = [16, 32, 64, 128, 256].map(|batch| json!(batch)).to_vec();
    let activations = ["relu", "gelu", "tanh"].map(|name| json!(name)).to_vec();
    vec![
        Parameter::new("lr", Domain::LogUniform { min: 1e-5, max: 1.0 }),
        Parameter::new("layers", Domain::IntUniform { min: 1, max: 8 }),
        Parameter::new("batch", Domain::Categorical { values: batches }),
        Parameter::new("activation", Domain::Categorical { values: activations }),
        Parameter::new("dropout", Domain::Uniform { min: 0.0, max: 0.9 }),
    ]
}

fn mixed(x: &Values) -> f64 {
    let activation = x.iter().find(|(key, _)| key == "activation").and_then(|(_, v)| v.as_str());
    let shift = match activation {
        Some("relu") => 0.0,
        Some("gelu") => 0.02,
        _ => 0.15,
    };
    let layers = number(x, "layers");
    let best_lr = -3.0 + 0.5 * (number(x, "batch").log2() - 6.0);
    0.3 * (number(x, "lr").log10() - best_lr).powi(2)
        + 0.02 * (layers - 5.0).powi(2)
        + shift
        + (number(x, "dropout") - 0.1 * layers / 5.0).powi(2)
}

/// A choice of optimizer with settings of its own, as in a real sweep.
fn conditional_space() -> Vec<Parameter> {
    let log = |min, max| Domain::LogUniform { min, max };
    let names = vec![json!("sgd"), json!("adam")];
    vec![
        Parameter::new("optimizer", Domain::Categorical { values: names }),
        under("sgd", Parameter::new("sgd_lr", log(1e-4, 1.0))),
        under("sgd", Parameter::new("momentum", Domain::Uniform { min: 0.0, max: 1.0 })),
        under("adam", Parameter::new("adam_lr", log(1e-5, 0.1))),
        Parameter::new("width", Domain::QUniform { min: 32.0, max: 512.0, q: 32.0 }),
    ]
}

/// The parameter, where the optimizer is `name`.
fn under(name: &str, mut parameter: Parameter) -> Parameter {
    parameter.when = vec![Condition { key: "optimizer".into(), values: vec![json!(name)] }];
    parameter
}

/// Least, 0, for SGD with 0.1, momentum 0.9 and a width of 128.
fn conditional(x: &Values) -> f64 {
    let width = 0.05 * (number(x, "width").log2() - 7.0).powi(2);
    let chosen = x.iter().find(|(key, _)| key == "optimizer").and_then(|(_, value)| value.as_str());
    width
        + match chosen {
            Some("sgd") => {
                (number(x, "sgd_lr").log10() + 1.0).powi(2)
                    + 4.0 * (number(x, "momentum") - 0.9).powi(2)
            }
            Some("adam") => 0.1 + 0.5 * (number(x, "adam_lr").log10() + 3.0).powi(2),
            other => unreachable!("{other:?}"),
        }
}

/// The least value that one search finds.
fn search<M: Kind + Method>(problem: &Problem, method: &M, seed: u64) -> f64 {
    let search = Search {
        method: Choice::of(method),
        metric: "val/loss".into(),
        goal: Mode::Min,
        seed,
        parameters: problem.parameters.clone(),
        constraints: Vec::new(),
        list: Vec::new(),
        start: Vec::new(),
        repeats: None,
        pruner: Choice::of(&NoPruner {}),
        devices_per_trial: 1,
    };
    let (base, ranking) = (BaseValues::default(), Ranking::plain(Mode::Min));
    let mut trials: Vec<Trial> = Vec::new();
    for number in 1..=problem.trials {
        let request = ProposalRequest {
            search: &search,
            base: &base,
            ranking: &ranking,
            number,
            trials: &trials,
            tried: &Tried::default(),
        };
        let values = method.propose(&request).expect("no constraints");
        let reports = vec![Report { step: 1, value: Some((problem.function)(&values)) }];
        let length = Length { steps_per_epoch: 1, total_steps: 1 };
        trials.push(Trial {
            state: State::Finished,
            reports,
            ..Trial::new(number, values, length)
        });
    }
    trials.iter().filter_map(|trial| trial.value(Mode::Min)).fold(f64::INFINITY, f64::min)
}

/// `0.41 (0.40-0.45)`: the median and the middle half of them.
fn spread(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
    let median = f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2]);
    format!("{median:.4} ({:.4} to {:.4})", at(0.25), at(0.75))
}

/// Optuna's least values by (function, sampler); empty without `PYTHON`.
fn optuna() -> BTreeMap<(String, String), Vec<f64>> {
    let Some(python) = std::env::var_os("PYTHON") else { return BTreeMap::new() };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/bench_search.py");
    let output = Command::new(python).arg(script).output().expect("PYTHON runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let word = |line: &Value, key: &str| line[key].as_str().unwrap_or_default().to_owned();
    let found = |line: &Value| {
        let numbers = line["found"].as_array().into_iter().flatten();
        numbers.filter_map(Value::as_f64).collect()
    };
    lines.map(|line| ((word(&line, "problem"), word(&line, "sampler")), found(&line))).collect()
}

/// The two-sided p of Wilcoxon's rank-sum test, by its normal approximation.
fn rank_sum_p(ours: &[f64], theirs: &[f64]) -> f64 {
    let wins = |a: f64, b: f64| if a < b { 1.0 } else { f64::from(u8::from(a == b)) * 0.5 };
    let u: f64 = ours.iter().flat_map(|a| theirs.iter().map(move |b| wins(*a, *b))).sum();
    let (n, m) = (ours.len() as f64, theirs.len() as f64);
    let z = (u - n * m / 2.0).abs() / (n * m * (n + m + 1.0) / 12.0).sqrt();
    libm::erfc(z / 2f64.sqrt())
}

fn main() {
    let theirs = optuna();
    println!(
        "| function | trials | least | random | tpe | Optuna's tpe | p | gp | Optuna's gp | p |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    // The functions that are named, or all.
    let named: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with('-')).collect();
    let is_asked = |it: &Problem| named.is_empty() || named.iter().any(|name| name == it.name);
    for problem in problems().into_iter().filter(is_asked) {
        let against = |name: &str, ours: Vec<f64>| {
            let Some(values) = theirs.get(&(problem.name.to_owned(), name.to_owned())) else {
                return format!("{} | not run | ", spread(ours));
            };
            let p = rank_sum_p(&ours, values);
            format!("{} | {} | {p:.2e}", spread(ours), spread(values.clone()))
        };
        let random = (0..SEEDS).map(|seed| search(&problem, &Random {}, seed)).collect();
        let tpe = (0..SEEDS).map(|seed| search(&problem, &Tpe {}, seed)).collect();
        let gp = (0..SEEDS).map(|seed| search(&problem, &Gp {}, seed)).collect();
        println!(
            "| {} | {} | {:.4} | {} | {} | {} |",
            problem.name,
            problem.trials,
            problem.least,
            spread(random),
            against("tpe", tpe),
            against("gp", gp),
        );
    }
}
