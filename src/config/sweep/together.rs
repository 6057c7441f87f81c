//! What makes sense alone but not together: conditions, method and parameters, and every value with the base.

use crate::config::Vocabulary;
use crate::config::check::METRICS;
use crate::config::keys::path_of;
use crate::config::loaded::Loaded;
use crate::config::problem::Problem;
use crate::config::schema::Mode;
use crate::config::suggest::{any_of, closest};
use crate::config::sweep::load::load_base;
use crate::config::sweep::reader::{Reader, join};
use crate::config::sweep::space::in_order;
use crate::config::sweep::{Domain, Json, Method, Parameter, Pruner, Sweep, Values, change_of};

/// Points of a grid at which it is a slip.
pub(crate) const MOST_POINTS: usize = 100_000;

/// Everything that needs no base.
pub(super) fn check(reader: &mut Reader, sweep: &Sweep) {
    let parameters = &sweep.search.parameters;
    for (index, parameter) in parameters.iter().enumerate() {
        conditions(reader, parameter, parameters);
        for other in &parameters[..index] {
            if other.key == parameter.key && !exclude_each_other(other, parameter) {
                let what = "is given twice, and both may count at the same time";
                reader.wrong_help(
                    &parameter.path,
                    what,
                    "give each a `when` that the other has not",
                );
            }
        }
    }
    method(reader, sweep);
}

fn conditions(reader: &mut Reader, parameter: &Parameter, all: &[Parameter]) {
    let path = join(&parameter.path, "when");
    for condition in &parameter.when {
        if condition.key == parameter.key {
            reader.wrong(&path, "depends on the parameter itself");
            continue;
        }
        let mut parents = all.iter().filter(|other| other.key == condition.key).peekable();
        if parents.peek().is_none() {
            let help = match closest(&condition.key, all.iter().map(|other| other.key.as_str())) {
                Some(key) => format!("did you mean `{key}`?"),
                None => "conditions are about other parameters of the sweep".to_owned(),
            };
            reader.wrong_help(&path, format!("`{}` is not a parameter", condition.key), help);
            continue;
        }
        let possible: Vec<&Json> = parents
            .filter_map(|parent| match &parent.domain {
                Domain::Categorical { values } => Some(values),
                _ => None,
            })
            .flatten()
            .collect();
        for value in condition.values.iter().filter(|value| !possible.contains(value)) {
            let what = format!("`{}` is never {value}", condition.key);
            reader.wrong(&path, what);
        }
        if leads_back(condition.key.as_str(), &parameter.key, all, 0) {
            reader.wrong(&path, format!("`{}` depends on this parameter itself", condition.key));
        }
    }
}

fn leads_back(from: &str, to: &str, all: &[Parameter], depth: usize) -> bool {
    depth <= all.len()
        && all.iter().filter(|parameter| parameter.key == from).any(|parameter| {
            let mut keys = parameter.when.iter().map(|condition| condition.key.as_str());
            keys.any(|key| key == to || leads_back(key, to, all, depth + 1))
        })
}

/// Whether two entries of one key can never count together: a condition on the same key, with no value in common.
fn exclude_each_other(a: &Parameter, b: &Parameter) -> bool {
    a.when.iter().any(|one| {
        let same = b.when.iter().filter(|other| other.key == one.key);
        same.into_iter().any(|other| !one.values.iter().any(|value| other.values.contains(value)))
    })
}

fn method(reader: &mut Reader, sweep: &Sweep) {
    let search = &sweep.search;
    let key = |key: &str| path_of(&format!("sweep.{key}"));
    let is_given = |reader: &Reader, name: &str| reader.get(&key(name)).is_some();
    let word = serde_json::to_value(search.method).unwrap_or_default();
    let word = word.as_str().unwrap_or_default().to_owned();
    let foreign: &[&str] = match search.method {
        Method::List => &["parameters", "lr_range"],
        Method::LrRange => {
            &["parameters", "list", "pruner", "trials", "constraints", "metric", "goal"]
        }
        _ => &["list", "lr_range"],
    };
    for name in foreign.iter().filter(|name| is_given(reader, name)).collect::<Vec<_>>() {
        reader.wrong(&key(name), format!("does not belong to `method = \"{word}\"`"));
    }
    let no_problem_yet = reader.problems.is_empty();
    match search.method {
        Method::List if search.list.is_empty() => {
            let help = "list the trials, each as a table that begins with `[[sweep.list]]`";
            reader.wrong_help(&key("method"), "`list` has nothing to try", help);
        }
        Method::LrRange | Method::List => {}
        _ if search.parameters.is_empty() => {
            if no_problem_yet {
                let help =
                    "such as `[sweep.parameters.\"optimizer.lr\"]` with `values = [0.1, 0.01]`";
                reader.wrong_help(&key("parameters"), "is empty: there is nothing to try", help);
            }
        }
        Method::Grid => grid(reader, sweep),
        Method::Random | Method::Tpe => {
            if !is_given(reader, "trials") {
                let what = format!("is missing: `{word}` has no end of its own");
                reader.wrong_help(&key("trials"), what, "such as `trials = 24`");
            }
        }
    }
    if search.pruner != Pruner::None {
        resources(reader, &search.pruner);
    }
}

fn grid(reader: &mut Reader, sweep: &Sweep) {
    let mut count: usize = 1;
    for parameter in &sweep.search.parameters {
        if let Some(points) = parameter.domain.points(MOST_POINTS) {
            count = count.saturating_mul(points.len());
        } else {
            let what = "has too many values for a grid";
            let help = "give `values`, or `method = \"random\"` or \"tpe\"";
            reader.wrong_help(&join(&parameter.path, "distribution"), what, help);
            return;
        }
    }
    if count > MOST_POINTS {
        let what = format!("make up to {count} combinations, more than {MOST_POINTS}");
        let help = "give fewer values, or `method = \"random\"` or \"tpe\"";
        reader.wrong_help(&path_of("sweep.parameters"), what, help);
    }
}

fn resources(reader: &mut Reader, pruner: &Pruner) {
    use crate::config::values::Every::{Epochs, Steps};
    let Pruner::Asha { min_resource, max_resource: Some(max), .. } = pruner else { return };
    let is_longer = match (min_resource, max) {
        (Epochs(min), Epochs(max)) | (Steps(min), Steps(max)) => max > min,
        _ => false,
    };
    if !is_longer {
        let what = format!("must be more than `min_resource`, {min_resource}, in the same unit");
        reader.wrong(&path_of("sweep.pruner.max_resource"), what);
    }
}

// ------------------------------------------------------------------------------------------ with the base

/// Loads the base as all trials begin with it, decides what depends on it, and tries every parameter's ends.
pub(super) fn with_base(
    reader: &mut Reader,
    sweep: &mut Sweep,
    vocabulary: &Vocabulary,
) -> Option<Loaded> {
    let plain = match load_base(sweep, &[], vocabulary) {
        Ok(loaded) => loaded,
        Err(problems) => {
            reader.problems.extend(problems.iter().cloned());
            return None;
        }
    };
    if sweep.search.method == Method::LrRange {
        return Some(plain);
    }
    metric(reader, sweep, &plain);
    if !reader.problems.is_empty() {
        return None;
    }
    let loaded = match load_base(sweep, &watching(sweep), vocabulary) {
        Ok(loaded) => loaded,
        Err(problems) => {
            for problem in problems.iter() {
                let moved = moved(reader, problem);
                reader.problems.push(moved);
            }
            return None;
        }
    };
    extremes(reader, sweep, vocabulary);
    Some(loaded)
}

/// What makes the best checkpoint of a trial the one that the sweep counts.
pub(crate) fn watching(sweep: &Sweep) -> Vec<String> {
    let mode = if sweep.search.goal == Mode::Max { "max" } else { "min" };
    vec![
        format!("checkpoint.monitor=\"{}\"", sweep.search.metric),
        format!("checkpoint.mode=\"{mode}\""),
    ]
}

/// A problem of a checkpoint's monitor, which nobody wrote, at the metric that asks for it.
fn moved(reader: &Reader, problem: &Problem) -> Problem {
    let key = match problem.key() {
        "checkpoint.monitor" => "sweep.metric",
        "checkpoint.mode" => "sweep.goal",
        _ => return problem.clone(),
    };
    let moved = reader.problem(&path_of(key), problem.what());
    match problem.remedy() {
        Some(help) => moved.help(help.replace("mode =", "goal =")),
        None => moved,
    }
}

/// The metric: a validation metric, from the base if the sweep names none.
fn metric(reader: &mut Reader, sweep: &mut Sweep, base: &Loaded) {
    let key = path_of("sweep.metric");
    let validation = || METRICS.iter().copied().filter(|metric| metric.starts_with("val/"));
    let search = &mut sweep.search;
    if reader.get(&key).is_none() {
        let checkpoint = &base.experiment.checkpoint;
        if !checkpoint.monitor.starts_with("val/") {
            let help = format!("it may be {}", any_of(validation()));
            reader.wrong_help(&key, "is missing", help);
            return;
        }
        search.metric.clone_from(&checkpoint.monitor);
    }
    let metric = search.metric.as_str();
    if !validation().any(|known| known == metric) {
        let what = if metric.starts_with("test/") {
            "a choice by test data leaves nothing to test with: only validation metrics".to_owned()
        } else if metric.starts_with("train/") {
            "ranks by the training data: only validation metrics".to_owned()
        } else {
            format!("`{metric}` is not a metric that a run reports")
        };
        let help = match closest(metric, validation()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("it may be {}", any_of(validation())),
        };
        reader.wrong_help(&key, what, help);
        return;
    }
    if reader.get(&path_of("sweep.goal")).is_none() {
        search.goal = if metric.ends_with("/accuracy") { Mode::Max } else { Mode::Min };
    }
}

/// Loads the base with every end of every parameter, the others at their first value, and blames what is wrong
/// on the parameter that says it.
fn extremes(reader: &mut Reader, sweep: &Sweep, vocabulary: &Vocabulary) {
    /// More values of one parameter are not tried one by one.
    const MOST: usize = 64;
    let mut said: Vec<(String, String)> = Vec::new();
    for (index, parameter) in sweep.search.parameters.iter().enumerate() {
        for value in parameter.domain.extremes().into_iter().take(MOST) {
            let values = assignment(&sweep.search.parameters, index, &value);
            let mut changes = watching(sweep);
            changes.extend(values.iter().map(|(key, value)| change_of(key, value)));
            let Err(problems) = load_base(sweep, &changes, vocabulary) else { continue };
            for problem in problems.iter() {
                let words = (problem.key().to_owned(), problem.what().to_owned());
                if said.contains(&words) {
                    continue;
                }
                said.push(words);
                let blamed = blamed(reader, sweep, (parameter, &value), problem);
                reader.problems.push(blamed);
            }
        }
    }
}

fn blamed(
    reader: &Reader,
    sweep: &Sweep,
    (parameter, value): (&Parameter, &Json),
    problem: &Problem,
) -> Problem {
    let is_it = |other: &&Parameter| {
        problem.key() == other.key || problem.key().starts_with(&format!("{}[", other.key))
    };
    let own = Some(parameter).filter(is_it);
    let culprit = own.or_else(|| sweep.search.parameters.iter().find(is_it)).unwrap_or(parameter);
    let place =
        if culprit == parameter { place_of(parameter, value) } else { culprit.path.clone() };
    let what = if is_it(&culprit) {
        problem.what().to_owned()
    } else {
        format!("with {value}, `{}` {}", problem.key(), problem.what())
    };
    let blamed = reader.problem(&place, what);
    match super::checks::remedy_of(&culprit.key, problem.what()) {
        Some(help) => blamed.help(help),
        None => match problem.remedy() {
            Some(help) => blamed.help(help),
            None => blamed,
        },
    }
}

/// Where a value of a parameter was written.
fn place_of(parameter: &Parameter, value: &Json) -> Vec<String> {
    match &parameter.domain {
        Domain::Categorical { values } => {
            let index = values.iter().position(|known| known == value).unwrap_or(0);
            join(&join(&parameter.path, "values"), &index.to_string())
        }
        domain => {
            let is_first = domain.extremes().first() == Some(value);
            join(&parameter.path, if is_first { "min" } else { "max" })
        }
    }
}

/// A trial in which parameter `index` counts and is `value`, the others are as early in their lists as that allows.
fn assignment(parameters: &[Parameter], index: usize, value: &Json) -> Values {
    let mut wanted: Vec<(&str, &Json)> = vec![(&parameters[index].key, value)];
    let mut next = 0;
    while next < wanted.len() {
        let key = wanted[next].0;
        for parameter in parameters.iter().filter(|parameter| parameter.key == key) {
            let is_other_entry = key == parameters[index].key && *parameter != parameters[index];
            for condition in parameter.when.iter().filter(|_| !is_other_entry) {
                if let Some(first) = condition.values.first()
                    && !wanted.iter().any(|(key, _)| *key == condition.key)
                {
                    wanted.push((&condition.key, first));
                }
            }
        }
        next += 1;
    }
    in_order(parameters, |parameter| {
        let given = wanted.iter().find(|(key, _)| *key == parameter.key);
        given
            .map(|(_, value)| (*value).clone())
            .or_else(|| parameter.domain.extremes().first().cloned())
    })
}
