//! Rules of held-back training samples: which keys go together, and with the data set.

use crate::config::check::conflicts::kind_of_data;
use crate::config::check::finding::Finding;
use crate::config::kind::{BuiltinSplits, Spec};
use crate::config::layer::Source;
use crate::config::loaded::Loaded;
use crate::config::schema::Data;
use crate::config::values::Interval;
use crate::config::vocabulary::Vocabulary;

/// All that is wrong with `data.val_fraction` and its like.
pub(crate) fn all(loaded: &Loaded, vocabulary: &Vocabulary) -> Vec<Finding> {
    let data = &loaded.experiment.data;
    let mut found = numbers(data);
    let Some(kind) = kind_of_data(loaded, vocabulary) else { return found };
    match kind.own_parts() {
        Some(own) => {
            found.extend(validation(loaded, kind, own));
            found.extend(test(loaded, own));
            found.extend(group(loaded));
        }
        None => found.extend(given(data).map(|key| {
            let what = format!("`{}` has parts of its own: nothing can be held out", kind.name);
            Finding::new(format!("data.{key}"), what).about("data.name")
        })),
    }
    found
}

/// The keys that hold something back.
fn given(data: &Data) -> impl Iterator<Item = &'static str> {
    let keys = [
        ("val_fraction", data.val_fraction.is_some()),
        ("test_fraction", data.test_fraction.is_some()),
        ("folds", data.folds.is_some()),
    ];
    keys.into_iter().filter(|(_, given)| *given).map(|(key, _)| key)
}

impl Loaded {
    /// Removes the defaults of keys that another key overrules: they would be refused beside that
    /// key in `resolved.toml`.
    pub(crate) fn leave_out_overruled(&mut self, vocabulary: &Vocabulary) {
        for key in overruled(self, vocabulary) {
            self.experiment.data.options.remove(key);
        }
        // Without evaluations the training loss ranks checkpoints. Where a metric of the validation
        // is given, that is refused.
        let is_given = self.is_given("checkpoint.monitor");
        let experiment = &mut self.experiment;
        let monitor = &mut experiment.checkpoint.monitor;
        let is_unknown =
            experiment.validation.every == Interval::Never && monitor.starts_with("val/");
        if is_unknown && !is_given {
            "train/loss".clone_into(monitor);
        }
    }
}

/// Options of the data set that only have their defaults, where another key holds out what they
/// would.
fn overruled(loaded: &Loaded, vocabulary: &Vocabulary) -> Vec<&'static str> {
    let data = &loaded.experiment.data;
    let own = kind_of_data(loaded, vocabulary).and_then(Spec::own_parts);
    let Some(own) = own else { return Vec::new() };
    let keys: Vec<_> = given(data).collect();
    let of_val = own.val.iter().filter(|_| keys.iter().any(|&key| key != "test_fraction"));
    let of_test = own.test.iter().filter(|_| keys.contains(&"test_fraction"));
    let overruled = of_val.chain(of_test).copied();
    overruled.filter(|key| !loaded.is_given(&format!("data.{key}"))).collect()
}

/// The one of these options that is given.
fn named(loaded: &Loaded, keys: &[&str]) -> Option<String> {
    keys.iter().map(|key| format!("data.{key}")).find(|key| loaded.is_given(key))
}

/// The one of two keys to omit: the second where only the first was given on the command line,
/// as that is what is wanted now.
fn not_typed(loaded: &Loaded, keys: [String; 2]) -> String {
    let is_typed = |key: &String| matches!(loaded.sources.get(key), Some(Source::CommandLine(_)));
    let [first, second] = keys;
    if is_typed(&first) && !is_typed(&second) { second } else { first }
}

/// Findings about the keys among themselves.
fn numbers(data: &Data) -> Vec<Finding> {
    let mut found = Vec::new();
    if data.val_fraction.is_some() && data.folds.is_some() {
        let what = "cannot be combined with `data.val_fraction`";
        let help = "omit `data.val_fraction`: of `data.folds` parts, one is validated on";
        found.push(Finding::new("data.folds", what).about("data.val_fraction").help(help));
    }
    match (data.fold, data.folds) {
        (Some(_), None) => {
            let what = "needs `data.folds`, the number of parts";
            found.push(Finding::new("data.fold", what).about("data.folds"));
        }
        (Some(fold), Some(folds)) if fold >= folds => {
            let what = format!("is {fold}, but the last of {folds} parts is {}", folds - 1);
            found.push(Finding::new("data.fold", what).about("data.folds"));
        }
        _ => {}
    }
    let shares = data.val_fraction.zip(data.test_fraction);
    if shares.is_some_and(|(val, test)| val < 1.0 && test < 1.0 && val + test >= 1.0) {
        let what = "leaves nothing to train on, with `data.test_fraction`";
        found.push(Finding::new("data.val_fraction", what).about("data.test_fraction"));
    }
    found
}

/// Findings about validation: it needs an option of the data set or held-back samples, not both.
fn validation(loaded: &Loaded, kind: &Spec, own: BuiltinSplits) -> Vec<Finding> {
    let data = &loaded.experiment.data;
    let of_val = || given(data).filter(|&key| key != "test_fraction");
    let mut found = Vec::new();
    if let Some(own_key) = named(loaded, own.val) {
        found.extend(of_val().map(|key| {
            let what = format!("cannot be combined with `{own_key}`");
            let finding = Finding::new(format!("data.{key}"), what).about(own_key.clone());
            let other = not_typed(loaded, [format!("data.{key}"), own_key.clone()]);
            finding.help(format!("omit one of the two: on the command line `~{other}` does"))
        }));
    } else if let Some(key) = own.val.first().filter(|_| own.needs_val && of_val().next().is_none())
    {
        let by = if own.deals { "`val_fraction` or `folds`" } else { "`val_fraction`" };
        let others: Vec<String> = own.val[1..].iter().map(|key| format!(" or `{key}`")).collect();
        let others = others.concat();
        let what = format!("is missing: give it{others}, or hold out samples with {by}");
        found.push(Finding::new(format!("data.{key}"), what).asked_by("data.name"));
    }
    if data.folds.is_some() && !own.deals {
        let what = format!("`{}` is cut in its order: give `val_fraction`", kind.name);
        found.push(Finding::new("data.folds", what).about("data.name"));
    }
    found
}

/// A finding about the test part: it is an option of the data set or held-back samples, not both.
fn test(loaded: &Loaded, own: BuiltinSplits) -> Option<Finding> {
    let data = &loaded.experiment.data;
    data.test_fraction?;
    if let Some(key) = named(loaded, own.test) {
        let what = format!("cannot be combined with `{key}`");
        return Some(Finding::new("data.test_fraction", what).about(key));
    }
    let holds_val = given(data).find(|&key| key != "test_fraction")?;
    let what = format!(
        "cannot be combined with `data.{holds_val}`: `{}` then tests on its validation part",
        data.name
    );
    own.val.is_empty().then(|| Finding::new("data.test_fraction", what).about("data.name"))
}

/// A group that nothing is held back by.
fn group(loaded: &Loaded) -> Option<Finding> {
    const KEY: &str = "data.group";
    let what = "needs `val_fraction`, `test_fraction` or `folds`: nothing is held out";
    let is_idle = loaded.is_given(KEY) && given(&loaded.experiment.data).next().is_none();
    is_idle.then(|| Finding::new(KEY, what))
}
