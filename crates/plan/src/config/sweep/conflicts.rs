//! Contradictions between settings of a sweep: conditions, method and parameters, and every value
//! with the base.

use crate::config::keys::{join, path_of};
use crate::config::kind::Requirement;
use crate::config::loaded::Loaded;
use crate::config::problem::{Problem, Problems};
use crate::config::reader::Reader;
use crate::config::schema::Mode;
use crate::config::suggest::{any_of, closest, remedy};
use crate::config::sweep::METHOD;
use crate::config::sweep::load::{Loader, load_base};
use crate::config::sweep::space::{in_order, is_inside};
use crate::config::sweep::start;
use crate::config::sweep::{
    Condition, Domain, Json, Parameter, Search, Sweep, Values, canonical, change_of, is_repeat,
    setting_of, value_of,
};
use crate::config::{Vocabulary, leaves};

/// Points of a grid at which it is a slip.
pub const MAX_POINTS: usize = 100_000;

/// Reports contradictions that show without the base.
pub(super) fn check(reader: &mut Reader, sweep: &Sweep) {
    let parameters = &sweep.search.parameters;
    for (index, parameter) in parameters.iter().enumerate() {
        conditions(reader, parameter, parameters);
        for other in &parameters[..index] {
            if other.key == parameter.key && !exclude_each_other(other, parameter) {
                let what = "is given twice, and both may be active at once";
                reader.wrong_help(
                    &parameter.path,
                    what,
                    "give each a `when` that excludes the other",
                );
            }
        }
    }
    repeats(reader, &sweep.search);
    method(reader, sweep);
}

/// `sweep.repeats` and the folds and seeds that are written down.
fn repeats(reader: &mut Reader, search: &Search) {
    let Some(n) = search.repeats else { return };
    let place = path_of("sweep.repeats");
    let listed = search.list.iter().flatten().find(|(key, _)| is_repeat(key));
    if let Some((key, _)) = listed {
        let what = format!("`sweep.list` sets `{key}`, by which settings are repeated");
        reader.wrong_help(&place, what, "remove it here, or there");
        return;
    }
    let own = || search.parameters.iter().filter(|parameter| is_repeat(&parameter.key));
    if own().next().is_none() {
        return;
    }
    let keys = own().map(|parameter| format!("`{}`", parameter.key));
    let keys = keys.collect::<Vec<String>>().join(" and ");
    if search.ties_repeats() {
        let what = format!("settings cannot be repeated over {keys}, which is tied to other keys");
        reader.wrong_help(&place, what, "remove its `when`, and rules and conditions on it");
        return;
    }
    let count = |parameter: &Parameter| Some(parameter.domain.points(MAX_POINTS)?.len());
    let n_values = own().map(count).try_fold(1usize, |product, n| Some(product.saturating_mul(n?)));
    match n_values {
        None => {
            let help = "list the values to repeat over, such as `[0, 1, 2]`";
            reader.wrong_help(&place, format!("{keys} has too many values to count"), help);
        }
        Some(n_values) if n_values < n as usize => {
            let what = format!("is {n}, but there are only {n_values} values of {keys}");
            reader.wrong_help(
                &place,
                what,
                format!("list more of them, or `repeats = {n_values}`"),
            );
        }
        Some(_) => {}
    }
}

fn conditions(reader: &mut Reader, parameter: &Parameter, all: &[Parameter]) {
    let path = join(&parameter.path, "when");
    for condition in &parameter.when {
        if condition.key == parameter.key {
            reader.wrong(&path, "depends on the parameter itself");
            continue;
        }
        let mut parents = all.iter().filter(|other| other.key == condition.key).peekable();
        if let Some(whole) = all.iter().find(|other| is_inside(&condition.key, &other.key)) {
            let what = format!(
                "`{}` is part of `{}`, whose values are whole tables",
                condition.key, whole.key
            );
            let help = "make the key a parameter of its own, or put this one into the tables";
            reader.wrong_help(&path, what, help);
            continue;
        }
        if parents.peek().is_none() && is_of_base(&reader.vocabulary, &condition.key) {
            // Whether it holds is known once the base is.
            continue;
        }
        if parents.peek().is_none() {
            let help = match closest(&condition.key, all.iter().map(|other| other.key.as_str())) {
                Some(key) => format!("did you mean `{key}`?"),
                None => "name another parameter of the sweep, or a key of the base".to_owned(),
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

/// True for keys that an experiment has, which are the same in all trials.
fn is_of_base(vocabulary: &Vocabulary, key: &str) -> bool {
    key.starts_with("model.options.") || vocabulary.keys().iter().any(|known| known == key)
}

/// Decides the conditions on keys that no parameter changes: one that holds in the base is no
/// condition, and a parameter with one that does not is none.
fn settle_conditions(reader: &mut Reader, sweep: &mut Sweep, base: &Loaded, loader: Loader<'_>) {
    let all = sweep.search.parameters.clone();
    let is_fixed = |condition: &Condition| all.iter().all(|other| other.key != condition.key);
    for parameter in &all {
        for condition in parameter.when.iter().filter(|condition| is_fixed(condition)) {
            never(reader, sweep, parameter, condition, loader);
        }
    }
    let usual = leaves(&base.experiment);
    let value = |key: &str| usual.get(key).and_then(|text| serde_json::from_str(text).ok());
    let holds = |condition: &Condition| match value(&condition.key) {
        Some(value) => condition.values.iter().any(|one| canonical(one) == canonical(&value)),
        None => condition.values.iter().any(is_off),
    };
    let parameters = &mut sweep.search.parameters;
    parameters.retain(|parameter| {
        parameter.when.iter().filter(|condition| is_fixed(condition)).all(&holds)
    });
    for parameter in parameters.iter_mut() {
        parameter.when.retain(|condition| !is_fixed(condition));
    }
    if parameters.is_empty() && !all.is_empty() {
        let what = "leaves nothing to try: no parameter has a `when` that holds in the base";
        let help = "change the base, or the conditions";
        reader.wrong_help(&path_of("sweep.parameters"), what, help);
    }
}

/// Refuses a value of a condition that its key cannot have.
fn never(
    reader: &mut Reader,
    sweep: &Sweep,
    parameter: &Parameter,
    condition: &Condition,
    loader: Loader<'_>,
) {
    for value in condition.values.iter().filter(|value| !is_off(value)) {
        let change = change_of(&condition.key, value);
        let Err(problems) = load_base(sweep, &[change], loader) else { continue };
        if let Some(problem) = problems.iter().find(|problem| problem.key() == condition.key) {
            let what = format!("`{}` is never {value}: {}", condition.key, problem.what());
            let help = problem.remedy().map(str::to_owned);
            let blamed = reader.problem(&join(&parameter.path, "when"), what).maybe_help(help);
            reader.problems.push(blamed);
        }
    }
}

/// True for `null` and the words for it.
fn is_off(value: &Json) -> bool {
    value.is_null() || value.as_str().is_some_and(|word| ["off", "null"].contains(&word))
}

fn leads_back(from: &str, to: &str, all: &[Parameter], depth: usize) -> bool {
    depth <= all.len()
        && all.iter().filter(|parameter| parameter.key == from).any(|parameter| {
            let mut keys = parameter.when.iter().map(|condition| condition.key.as_str());
            keys.any(|key| key == to || leads_back(key, to, all, depth + 1))
        })
}

/// True if two entries of one key can never be active together: they have conditions on the same
/// key, with no value in common.
fn exclude_each_other(a: &Parameter, b: &Parameter) -> bool {
    a.when.iter().any(|one| {
        let same = b.when.iter().filter(|other| other.key == one.key);
        same.into_iter().any(|other| !one.values.iter().any(|value| other.values.contains(value)))
    })
}

/// Requirements of the method; parameters, where methods are not known.
fn needs(vocabulary: &Vocabulary, sweep: &Sweep) -> &'static [Requirement] {
    let method = &sweep.search.method.name;
    match vocabulary.family(METHOD) {
        None => &[Requirement::Parameters],
        Some(family) => family.kind(method).map_or(&[], |kind| kind.requirements),
    }
}

/// True if the method has trials, false if it is one run of its own.
fn has_trials(needs: &[Requirement]) -> bool {
    needs.contains(&Requirement::Parameters) || needs.contains(&Requirement::List)
}

/// True if the sweep is written after an experiment on the command line, not in a file.
fn is_typed(sweep: &Sweep) -> bool {
    sweep.base == sweep.path
}

/// A remedy for a grid of too many points.
fn other_methods(sweep: &Sweep) -> &'static str {
    if is_typed(sweep) {
        "give a list of values, or `sweep.method=random` or `sweep.method=tpe`"
    } else {
        "give `values`, or `method = \"random\"` or \"tpe\""
    }
}

fn method(reader: &mut Reader, sweep: &Sweep) {
    // An unknown method was reported, and needs nothing.
    if reader.problems.iter().any(|problem| problem.key().starts_with(METHOD)) {
        return;
    }
    let needs = needs(&reader.vocabulary, sweep);
    let is_needed = |need| needs.contains(&need);
    foreign(reader, sweep, needs);
    let key = |key: &str| path_of(&format!("sweep.{key}"));
    let (search, word) = (&sweep.search, &sweep.search.method.name);
    if is_needed(Requirement::List) && search.list.is_empty() {
        let help = "list the trials, each as a table that begins with `[[sweep.list]]`";
        reader.wrong_help(&key("method"), format!("`{word}` has nothing to try"), help);
    }
    if is_needed(Requirement::Parameters) && search.parameters.is_empty() {
        if reader.problems.is_empty() {
            let help = if is_typed(sweep) {
                "add one, such as `optimizer.lr=0.1,0.01`"
            } else {
                "add one, such as `[sweep.parameters.\"optimizer.lr\"]` with `values = [0.1, 0.01]`"
            };
            reader.wrong_help(&key("parameters"), "is empty: there is nothing to try", help);
        }
        return;
    }
    if is_needed(Requirement::Points) {
        points(reader, sweep);
    }
    if is_needed(Requirement::Trials)
        && sweep.trials.is_none()
        && reader.get(&key("trials")).is_none()
    {
        let what = format!("`{word}` needs `sweep.trials`, since it never stops by itself");
        let help =
            if is_typed(sweep) { "add it: `sweep.trials=24`" } else { "add it: `trials = 24`" };
        reader.wrong_help(&key("method"), what, help);
    }
}

/// Reports keys that the method has no use for, and the options of other methods.
fn foreign(reader: &mut Reader, sweep: &Sweep, needs: &[Requirement]) {
    let word = &sweep.search.method.name;
    let methods = reader.vocabulary.family(METHOD).cloned();
    let methods = methods.iter().flat_map(|family| &family.kinds);
    let others = methods.filter(|kind| !kind.keys.is_empty() && kind.name != word);
    let mut foreign: Vec<&str> = others.map(|kind| kind.name).collect();
    if !needs.contains(&Requirement::Parameters) {
        foreign.push("parameters");
    }
    if !needs.contains(&Requirement::List) {
        foreign.push("list");
    }
    if !has_trials(needs) {
        foreign.extend(["pruner", "trials", "constraints", "metric", "goal", "time", "until"]);
        foreign.extend(["patience", "repeats"]);
    }
    // The others know all of their trials.
    if !needs.contains(&Requirement::Trials) {
        foreign.push("start");
    }
    for name in foreign {
        let key = path_of(&format!("sweep.{name}"));
        if reader.get(&key).is_some() {
            let what = format!("`method = \"{word}\"` does not use it");
            reader.wrong_help(&key, what, "remove it, or choose another `sweep.method`");
        }
    }
}

/// Refuses a grid with a parameter of unlimited values, or with too many points.
fn points(reader: &mut Reader, sweep: &Sweep) {
    let mut count: usize = 1;
    for parameter in &sweep.search.parameters {
        if let Some(points) = parameter.domain.points(MAX_POINTS) {
            count = count.saturating_mul(points.len());
        } else {
            let what = "has too many values for a grid";
            reader.wrong_help(&join(&parameter.path, "distribution"), what, other_methods(sweep));
            return;
        }
    }
    if count > MAX_POINTS {
        let what = format!("make up to {count} combinations, more than {MAX_POINTS}");
        reader.wrong_help(&path_of("sweep.parameters"), what, other_methods(sweep));
    }
}

/// Loads the base as all trials begin with it, decides what depends on it, and tries every
/// parameter's ends.
pub(super) fn with_base(
    reader: &mut Reader,
    sweep: &mut Sweep,
    loader: Loader<'_>,
) -> Option<Loaded> {
    let plain = match load_base(sweep, &[], loader) {
        Ok(loaded) => loaded,
        Err(problems) => {
            reader.problems.extend(problems.iter().cloned());
            return None;
        }
    };
    if !has_trials(needs(loader.vocabulary, sweep)) {
        return Some(plain);
    }
    settle_conditions(reader, sweep, &plain, loader);
    metric(reader, sweep, &plain);
    if !reader.problems.is_empty() {
        return None;
    }
    let loaded = match load_base(sweep, &watching(sweep), loader) {
        Ok(loaded) => loaded,
        Err(problems) => {
            for problem in problems.iter() {
                let moved = moved(reader, problem);
                reader.problems.push(moved);
            }
            return None;
        }
    };
    switch_off(reader, sweep, loader);
    if !reader.problems.is_empty() {
        return None;
    }
    repeated(reader, &sweep.search.list, "sweep.list", &loaded);
    extremes(reader, sweep, loader);
    start::check(reader, sweep, |values| with_values(sweep, values, loader));
    repeated(reader, &sweep.search.start, "sweep.start", &loaded);
    Some(loaded)
}

/// The meaning of `null`, or of a word for it, as the value of a key in a trial.
enum NullMeaning {
    /// The key takes the word as it is.
    Word,
    /// The key has no value then.
    Absent,
    /// The key has this value then, which the trial would be listed without.
    Default(String),
}

/// A file has no `null`: "off" and "null" stand for it where the key takes no such word. A key that
/// has a default cannot be off.
fn switch_off(reader: &mut Reader, sweep: &mut Sweep, loader: Loader<'_>) {
    let mut meant: Vec<(String, Json, NullMeaning, Vec<String>)> = Vec::new();
    let parameters = &sweep.search.parameters;
    for (index, parameter) in parameters.iter().enumerate() {
        let Domain::Categorical { values } = &parameter.domain else { continue };
        for value in values.iter().filter(|value| is_off(value)) {
            let with = assignment(parameters, index, value);
            let off = meaning(sweep, &with, &parameter.key, loader);
            meant.push((parameter.key.clone(), value.clone(), off, place_of(parameter, value)));
        }
    }
    for (index, with) in sweep.search.list.iter().enumerate() {
        for (key, value) in with.iter().filter(|(_, value)| is_off(value)) {
            let off = meaning(sweep, with, key, loader);
            let path = join(&join(&path_of("sweep.list"), &index.to_string()), key);
            meant.push((key.clone(), value.clone(), off, path));
        }
    }
    for (key, word, off, path) in meant {
        match off {
            NullMeaning::Word => {}
            NullMeaning::Absent => replace(sweep, &key, &word),
            NullMeaning::Default(usual) => {
                let shown = word.as_str().unwrap_or("null");
                let mut place = path;
                if reader.get(&place).is_none() {
                    place.retain(|key| key != "values");
                }
                let what = format!("`{shown}` would be the default, {usual}: `{key}` is never off");
                reader.wrong_help(&place, what, "write the value that is meant");
            }
        }
    }
}

/// The meaning of the null value of `key` in a trial with these values.
fn meaning(sweep: &Sweep, values: &Values, key: &str, loader: Loader<'_>) -> NullMeaning {
    /// A word that no key takes which takes certain words only.
    const NO_WORD: &str = "no such word";
    let load = |value: Json| {
        let set = |(name, other): &(String, Json)| {
            (name.clone(), if name == key { value.clone() } else { other.clone() })
        };
        with_values(sweep, &values.iter().map(set).collect(), loader)
    };
    let takes = |word: &str| {
        let of_key = |problem: &Problem| problem.key() == key;
        load(Json::from(word)).err().is_none_or(|problems| !problems.iter().any(of_key))
    };
    let without = load(Json::Null).ok();
    let usual = without.and_then(|loaded| leaves(&loaded.experiment).remove(key));
    let word = value_of(values, key).and_then(Json::as_str);
    let is_word = word.is_some_and(|word| takes(word) && (!takes(NO_WORD) || usual.is_some()));
    match usual {
        _ if is_word => NullMeaning::Word,
        None => NullMeaning::Absent,
        Some(usual) => NullMeaning::Default(usual),
    }
}

/// Puts `null` in the place of `word` wherever it is a value of `key`.
fn replace(sweep: &mut Sweep, key: &str, word: &Json) {
    let mend = |value: &mut Json| {
        if value == word {
            *value = Json::Null;
        }
    };
    for parameter in &mut sweep.search.parameters {
        if parameter.key == key
            && let Domain::Categorical { values } = &mut parameter.domain
        {
            values.iter_mut().for_each(mend);
        }
        let conditions = parameter.when.iter_mut().filter(|condition| condition.key == key);
        conditions.flat_map(|condition| &mut condition.values).for_each(mend);
    }
    let search = &mut sweep.search;
    let listed = search.list.iter_mut().chain(&mut search.start).flatten();
    let listed = listed.filter(|(name, _)| name == key);
    listed.for_each(|(_, value)| mend(value));
}

/// Refuses a trial of a list that has the settings of an earlier one: it would give the same
/// numbers.
fn repeated(reader: &mut Reader, list: &[Values], key: &str, base: &Loaded) {
    let usual = leaves(&base.experiment);
    let base = |key: &str| usual.get(key).and_then(|text| serde_json::from_str(text).ok());
    let mut known: Vec<String> = Vec::new();
    for (index, values) in list.iter().enumerate() {
        let setting = setting_of(values, base);
        if let Some(earlier) = known.iter().position(|other| *other == setting) {
            let what = format!("has the settings of trial {}", earlier + 1);
            let help = "remove it, as it would give the same numbers; to repeat a trial, give it \
                        another `experiment.seed`";
            reader.wrong_help(&join(&path_of(key), &index.to_string()), what, help);
        }
        known.push(setting);
    }
}

/// Overrides by which the best checkpoint of a trial is the one that the sweep ranks.
pub fn watching(sweep: &Sweep) -> Vec<String> {
    let mode = sweep.search.goal.word();
    vec![
        format!("checkpoint.monitor=\"{}\"", sweep.search.metric),
        format!("checkpoint.mode=\"{mode}\""),
    ]
}

/// A problem of a checkpoint's monitor, which is a default, at the metric that asks for it.
fn moved(reader: &Reader, problem: &Problem) -> Problem {
    let key = match problem.key() {
        "checkpoint.monitor" => "sweep.metric",
        "checkpoint.mode" => "sweep.goal",
        _ => return problem.clone(),
    };
    let help = problem.remedy().map(|help| help.replace("mode =", "goal ="));
    reader.problem(&path_of(key), problem.what()).maybe_help(help)
}

/// A problem of a checkpoint's monitor that only the data show, at the metric that asks for it.
pub(super) fn at_metric(reader: &Reader, problem: &Problem) -> Problems {
    moved(reader, problem).into()
}

/// The metric: a validation metric, from the base if the sweep names none.
fn metric(reader: &mut Reader, sweep: &mut Sweep, base: &Loaded) {
    let key = path_of("sweep.metric");
    let known = reader.vocabulary.watchable();
    let validation = || known.iter().map(String::as_str).filter(|name| name.starts_with("val/"));
    let search = &mut sweep.search;
    if reader.get(&key).is_none() {
        let checkpoint = &base.experiment.checkpoint;
        if !checkpoint.monitor.starts_with("val/") {
            let help = format!("choose {}", any_of(validation()));
            reader.wrong_help(&key, "is missing", help);
            return;
        }
        search.metric.clone_from(&checkpoint.monitor);
    }
    let metric = search.metric.as_str();
    if !known.is_empty() && !validation().any(|known| known == metric) {
        let what = if metric.starts_with("test/") {
            "select on a validation metric, not on the test set".to_owned()
        } else if metric.starts_with("train/") {
            "select on a validation metric, not on the training set".to_owned()
        } else {
            format!("`{metric}` is not a metric that a run reports")
        };
        let help = remedy(metric, validation());
        reader.wrong_help(&key, what, help);
        return;
    }
    let better = reader.vocabulary.mode_of(metric);
    let goal = path_of("sweep.goal");
    if reader.get(&goal).is_none() {
        search.goal = better.unwrap_or(Mode::Min);
    } else if let Some(better) = better.filter(|better| *better != search.goal) {
        let what = format!("would keep the worst `{metric}`");
        reader.wrong_help(&goal, what, format!("set `goal = \"{}\"`", better.word()));
    }
}

/// Loads the base with every end of every parameter, the others at their first value, and blames
/// what is wrong on the parameters that cause it.
fn extremes(reader: &mut Reader, sweep: &Sweep, loader: Loader<'_>) {
    /// More values of one parameter are not tried one by one.
    const MAX_VALUES: usize = 64;
    let mut said: Vec<(Vec<String>, String)> = Vec::new();
    for (index, parameter) in sweep.search.parameters.iter().enumerate() {
        for value in parameter.domain.extremes().into_iter().take(MAX_VALUES) {
            let values = assignment(&sweep.search.parameters, index, &value);
            let Err(problems) = with_values(sweep, &values, loader) else { continue };
            for problem in problems.iter() {
                let case = Case { sweep, loader, values: &values, tried: &parameter.key };
                let (mut place, what) = case.blame(problem);
                if reader.get(&place).is_none() {
                    // A list that stands for `{ values = [...] }`.
                    place.retain(|key| key != "values");
                }
                let words = (place.clone(), what.clone());
                if said.contains(&words) {
                    continue;
                }
                said.push(words);
                let blamed = reader.problem(&place, what).maybe_help(case.remedy(problem));
                reader.problems.push(blamed);
            }
        }
    }
}

/// The base as a trial with these values has it.
fn with_values(sweep: &Sweep, values: &Values, loader: Loader<'_>) -> Result<Loaded, Problems> {
    let mut changes = watching(sweep);
    changes.extend(values.iter().map(|(key, value)| change_of(key, value)));
    load_base(sweep, &changes, loader)
}

/// Values that the experiment cannot have.
struct Case<'a> {
    sweep: &'a Sweep,
    loader: Loader<'a>,
    values: &'a Values,
    /// Key of the parameter whose value was to be tried.
    tried: &'a str,
}

impl Case<'_> {
    /// The place of the value that causes `problem`, and the reason in words.
    fn blame(&self, problem: &Problem) -> (Vec<String>, String) {
        if let Some((key, value)) = self.own(problem) {
            return (self.place(key, value), problem.what().to_owned());
        }
        let (mut causes, mut joined) = (self.needed_for(problem), " and ");
        if causes.is_empty() {
            (causes, joined) = (self.enough_for(problem), " or ");
        }
        if causes.is_empty() {
            causes = self.values.iter().filter(|(key, _)| key == self.tried).collect();
        }
        let place = causes.first().map(|(key, value)| self.place(key, value)).unwrap_or_default();
        let with = match &causes[..] {
            [(_, value)] => value.to_string(),
            all => {
                let words = all.iter().map(|(key, value)| format!("`{}`", change_of(key, value)));
                words.collect::<Vec<_>>().join(joined)
            }
        };
        (place, format!("with {with}, `{}` {}", problem.key(), problem.what()))
    }

    /// The value that the problem itself names.
    fn own(&self, problem: &Problem) -> Option<&(String, Json)> {
        let is_it = |key: &str| problem.key() == key || is_inside(problem.key(), key);
        self.values.iter().find(|(key, _)| is_it(key))
    }

    /// The values without any one of which the problem would not be there.
    fn needed_for(&self, problem: &Problem) -> Vec<&(String, Json)> {
        let is_needed = |(key, _): &&(String, Json)| {
            let rest: Values =
                self.values.iter().filter(|(other, _)| other != key).cloned().collect();
            !self.has(problem, &rest)
        };
        self.values.iter().filter(is_needed).collect()
    }

    /// The values each of which alone makes the problem.
    fn enough_for(&self, problem: &Problem) -> Vec<&(String, Json)> {
        let is_enough = |value: &&(String, Json)| self.has(problem, &vec![(*value).clone()]);
        self.values.iter().filter(is_enough).collect()
    }

    /// True if the experiment has this problem with these values, too.
    fn has(&self, problem: &Problem, values: &Values) -> bool {
        with_values(self.sweep, values, self.loader)
            .is_err_and(|problems| problems.iter().any(|other| other.key() == problem.key()))
    }

    /// The place of a key's value, in the entry that is active here.
    fn place(&self, key: &str, value: &Json) -> Vec<String> {
        let mut entries = self.sweep.search.parameters.iter().filter(|entry| entry.key == key);
        let counts = |entry: &&Parameter| {
            let known = place_in(&entry.domain, value).is_some();
            entry.is_active(self.values) && known
        };
        let entry = entries.clone().find(counts).or_else(|| entries.next());
        entry.map(|entry| place_of(entry, value)).unwrap_or_default()
    }

    fn remedy(&self, problem: &Problem) -> Option<String> {
        let own = self.own(problem);
        let condition = own.and_then(|(key, _)| super::checks::remedy_of(key, problem.what()));
        condition.or_else(|| problem.remedy().map(str::to_owned))
    }
}

/// The place of a value of a parameter.
fn place_of(parameter: &Parameter, value: &Json) -> Vec<String> {
    place_in(&parameter.domain, value).map_or_else(
        || parameter.path.clone(),
        |at| at.iter().fold(parameter.path.clone(), |path, key| join(&path, key)),
    )
}

/// The place of a value inside the parameter's table; `None` for a value that it does not name.
fn place_in(domain: &Domain, value: &Json) -> Option<Vec<String>> {
    match domain {
        Domain::Categorical { values } => {
            let index = values.iter().position(|known| known == value)?;
            Some(vec!["values".to_owned(), index.to_string()])
        }
        domain => {
            let end = domain.extremes().iter().position(|end| end == value)?;
            Some(vec![if end == 0 { "min" } else { "max" }.to_owned()])
        }
    }
}

/// A trial in which parameter `index` counts and is `value`, the others are as early in their lists
/// as that allows.
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
