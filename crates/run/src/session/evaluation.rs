//! The plan of an evaluation: of a run, on its own or on other data or computed in another way, or
//! of given weights.
//!
//! Facts that the run found out about its data (means, categories, classes) stay as they were; data
//! with other classes or shapes are refused.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::config::kind::Kind;
use crate::config::schema::{Data, PrecisionChoice};
use crate::config::{self, Loaded, Problem, Problems, changed_keys, no_use_in_evaluations};
use crate::data::transform::CenterCrop;
use crate::data::{self, Fingerprint};
use crate::kinds::Kinds;
use crate::plan::{Plan, TargetColumn, TestTimeAugmentation};
use crate::record::{DATA, newest_of, to_stderr};
use crate::runs::StoredRun;
use crate::session::{
    Prepared, SINGLE_NODE, another_model, generate, prepare, source_of, stored_experiment,
};
use crate::user_error::{ErrorPage, ExitCode};

/// Changes of an evaluation.
pub struct EvaluationChanges {
    /// `key=value`
    pub changes: Vec<String>,
    /// Test-time augmentation.
    pub tta: Option<TestTimeAugmentation>,
    /// The folder in which relative paths in the changes begin.
    pub here: PathBuf,
}

/// The plan to evaluate a run with. Warns if its data have changed.
///
/// # Errors
///
/// A key has no effect on evaluations, the data cannot be used, or they do not fit the model.
pub fn evaluation_of_run(
    description: &StoredRun,
    asked: &EvaluationChanges,
    kinds: &Kinds,
) -> Result<Plan, ErrorPage> {
    let mut plan = if asked.changes.is_empty() {
        description.plan.clone()
    } else {
        changed(description, asked, kinds)?
    };
    augment(asked.tta, &mut plan)?;
    plan.data.notes.iter().for_each(|note| to_stderr(&format!("warning: {note}")));
    warn_of_other_data(description, &plan, kinds)?;
    Ok(plan)
}

/// The plan to evaluate the model of an experiment with these weights, all of which must fit.
/// Nothing is left behind but data that the experiment wants generated.
pub fn evaluation_of_weights(
    weights: &Path,
    experiment: &Path,
    changes: Vec<String>,
    tta: Option<TestTimeAugmentation>,
    kinds: &Kinds,
) -> Result<Plan, ErrorPage> {
    let weights = toml::Value::from(weights.to_string_lossy().into_owned());
    let ours = [format!("model.pretrained={weights}"), "model.strict=true".to_owned()];
    let changes: Vec<String> = changes.into_iter().chain(ours).collect();
    let prepared = prepare(experiment, &changes, SINGLE_NODE, kinds)?;
    generate(&prepared)?;
    // Averages are made in training.
    let mut plan = Plan { ema: None, swa: None, lookahead: None, ..prepared.plan };
    augment(tta, &mut plan)?;
    Ok(plan)
}

/// Averages the predictions as the command line asks.
fn augment(tta: Option<TestTimeAugmentation>, plan: &mut Plan) -> Result<(), ErrorPage> {
    let Some(how) = tta else { return Ok(()) };
    let source = &plan.data.source;
    if !source.holds_images() {
        let (name, words) = (&source.kind.name, source.modality.words());
        let page = format!("error: `--tta {how}` is for images, but `{name}` holds {words}");
        return Err(ErrorPage::new(ExitCode::Refused, page));
    }
    let has_crop = plan.data.val_transforms.iter().any(|choice| choice.name == CenterCrop::NAME);
    if how.crops() && !has_crop {
        let what = format!(
            "`--tta {how}` needs a `center_crop` in `data.transforms.val`, in whose place it \
             crops"
        );
        return Err(ErrorPage::refused(what, "use `--tta hflip`, which needs none"));
    }
    plan.test_time_augmentation = Some(how);
    Ok(())
}

/// Warns if the run's data have changed since it was trained: other samples may validate now, even
/// some that it was trained on.
fn warn_of_other_data(trained: &StoredRun, plan: &Plan, kinds: &Kinds) -> Result<(), ErrorPage> {
    if trained.plan.data.source != plan.data.source {
        return Ok(());
    }
    let (kept, source) = (newest_of(&trained.run.logs, DATA), source_of(plan, kinds)?);
    let compared = Fingerprint::refuse_other_files(&kept, source.as_ref(), &plan.data.source);
    // Files that cannot be read are told by the evaluation.
    if let Err(data::Error::Changed { differences }) = compared {
        to_stderr(&format!(
            "warning: the data have changed since the run was trained, so its validation samples \
             may include ones that it was trained on:\n  {}",
            differences.join("\n  ")
        ));
    }
    Ok(())
}

/// The plan of the run, changed.
fn changed(
    description: &StoredRun,
    asked: &EvaluationChanges,
    kinds: &Kinds,
) -> Result<Plan, ErrorPage> {
    let (path, text) = stored_experiment(&description.run)?;
    let load = |changes: &[String]| {
        config::load_text(&path, &text, changes, &kinds.vocabulary()).map_err(ErrorPage::from)
    };
    let before = load(&[])?;
    let mut changes: Vec<String> =
        asked.changes.iter().map(|change| from(&asked.here, change)).collect();
    if before.experiment.train.precision == PrecisionChoice::Fp16 {
        // Nothing is scaled here, and its numbers would be refused beside another precision.
        changes.push("~loss_scale".to_owned());
    }
    changes.extend(no_longer_held_out(&changes, &before.experiment.data));
    let now = load(&changes)?;
    refuse(&now, asked)?;
    for change in changed_keys(&before.experiment, &now.experiment) {
        to_stderr(&format!("changed: {change}"));
    }
    // The group that trained is not needed.
    let alone = ["distributed.devices=1", "~distributed.min_world_size", "~distributed.backend"];
    changes.extend(alone.map(str::to_owned));
    let found = description.plan.data.source.survey.clone();
    let prepared = Prepared::of(load(&changes)?, SINGLE_NODE, Some(&found), kinds)?;
    generate(&prepared)?;
    fits(description, &prepared.plan)?;
    Ok(prepared.plan)
}

/// Further changes that follow from changes that name a part to validate or to test on: no training
/// samples are held out for it any more.
fn no_longer_held_out(changes: &[String], before: &Data) -> Vec<String> {
    let is_named = |part: &str| {
        let rest = |change: &String| {
            Some(key(change).strip_prefix("data.")?.strip_prefix(part)?.to_owned())
        };
        let mut named = changes.iter().filter(|change| !change.starts_with('~')).filter_map(rest);
        named.any(|rest| rest != "fraction")
    };
    let (val, test) = (is_named("val_"), is_named("test_"));
    let held_out = [
        ("data.val_fraction", val, before.val_fraction.is_some()),
        ("data.folds", val, before.folds.is_some()),
        ("data.fold", val, before.fold.is_some()),
        ("data.test_fraction", test, before.test_fraction.is_some()),
    ];
    let held_out = held_out.into_iter().filter(|(.., is_held)| *is_held);
    let is_given = |key: &str| changes.iter().any(|change| self::key(change) == key);
    let replaced = held_out.clone().filter(|(key, is_named, _)| *is_named && !is_given(key));
    let mut all: Vec<String> = replaced.map(|(key, ..)| format!("~{key}")).collect();
    let is_gone = |key: &str| all.iter().chain(changes).any(|it| it.strip_prefix('~') == Some(key));
    let holds_some = held_out.into_iter().any(|(key, ..)| key != "data.fold" && !is_gone(key));
    if let Some(group) = before.options.get("group").filter(|group| !group.is_null())
        && (val || test)
        && !holds_some
        && !is_given("data.group")
    {
        // It says what is held out together, and is no feature.
        all.push("~data.group".to_owned());
        if let Some(Value::Array(ignored)) = before.options.get("ignore") {
            let ignored: Vec<&Value> = ignored.iter().chain([group]).collect();
            all.push(format!("data.ignore={}", json!(ignored)));
        }
    }
    all
}

/// Refuses all keys that have no effect, each with the reason.
fn refuse(now: &Loaded, asked: &EvaluationChanges) -> Result<(), Problems> {
    let draws = matches!(asked.tta, Some(TestTimeAugmentation::Draws(_)));
    let problems: Vec<Problem> = asked
        .changes
        .iter()
        .filter_map(|change| {
            let key = key(change);
            let why = no_use_in_evaluations(key)
                .filter(|_| !(draws && is_in("data.transforms.train", key)))?;
            let what = format!("has no effect on an evaluation: {why}");
            Some(now.problem(key, what).help("omit it"))
        })
        .collect();
    if problems.is_empty() { Ok(()) } else { Err(Problems::new(problems)) }
}

/// The key of a change.
fn key(change: &str) -> &str {
    change.split('=').next().unwrap_or_default().trim_start_matches(['~', '+']).trim()
}

/// True if `key` is `table` or in it.
fn is_in(table: &str, key: &str) -> bool {
    key.strip_prefix(table).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Resolves the path of a change from the folder of the command, although those of the run begin
/// elsewhere.
fn from(here: &Path, change: &str) -> String {
    let is_here = std::env::current_dir().is_ok_and(|now| now == here);
    match change.split_once('=') {
        Some((key, value)) if is_in("data", key) && !is_here && here.join(value).exists() => {
            format!("{key}={}", here.join(value).display())
        }
        _ => change.to_owned(),
    }
}

/// Refuses data that do not fit the model of the run, or have other classes.
fn fits(description: &StoredRun, now: &Plan) -> Result<(), ErrorPage> {
    let then = &description.plan;
    let classes =
        |plan: &Plan| Fingerprint::of_plan(&plan.data).counting([0; 3], plan.data.classes.clone());
    let other_classes = || {
        let differences = classes(now).differences(&classes(then));
        (!differences.is_empty()).then(|| differences.join("; "))
    };
    let why = another_model(now, then)
        .or_else(other_classes)
        .or_else(|| other_targets(&now.data.target_columns, &then.data.target_columns));
    let Some(why) = why else { return Ok(()) };
    let page = format!("error: these data do not fit the model of the run\n  why: {why}");
    Err(ErrorPage::new(ExitCode::Data, page)
        .help("evaluate on data with the classes, columns and shapes that it was trained on"))
}

/// Describes columns to predict, or series, that are others or in another order: each has a place
/// among the outputs, and a mean and a deviation of its own. Runs from before their names were
/// stored have none.
fn other_targets(now: &[TargetColumn], then: &[TargetColumn]) -> Option<String> {
    let names = |columns: &[TargetColumn]| -> Vec<String> {
        columns.iter().map(|column| format!("`{}`", column.name)).collect()
    };
    let (now, then) = (names(now), names(then));
    (!then.is_empty() && now != then)
        .then(|| format!("they hold {}, but the run predicts {}", now.join(", "), then.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_in_another_order_are_refused() {
        let columns = |names: &[&str]| -> Vec<TargetColumn> {
            let column = |name: &&str| TargetColumn { name: (*name).to_owned(), scale: 2.0 };
            names.iter().map(column).collect()
        };
        let why = |now: &[&str], then: &[&str]| other_targets(&columns(now), &columns(then));
        assert_eq!(why(&["load", "heat"], &["load", "heat"]), None);
        assert_eq!(why(&["load"], &[]), None);
        let expected = "they hold `heat`, `load`, but the run predicts `load`, `heat`";
        assert_eq!(why(&["heat", "load"], &["load", "heat"]).as_deref(), Some(expected));
    }

    #[test]
    fn a_part_of_its_own_takes_the_place_of_what_the_run_held_out() {
        let run = |text: &str| {
            let text = format!(
                "schema = 1\n[model]\nname = \"mlp\"\nhidden = []\n[data]\nname = \
                 \"csv\"\ntrain_file = \"t.csv\"\ntarget = \"y\"\n{text}\n[train]\nepochs = \
                 1\nbatch_size = 1\n[optimizer]\nlr = 0.1\n"
            );
            let kinds = Kinds::default();
            let read = config::load_text(Path::new("x.toml"), &text, &[], &kinds.vocabulary());
            read.unwrap_or_else(|problems| panic!("{problems}")).experiment.data
        };
        let check = |text: &str, changes: &[&str], expected: &[&str]| {
            let changes: Vec<String> = changes.iter().map(|&change| change.to_owned()).collect();
            assert_eq!(no_longer_held_out(&changes, &run(text)), expected, "{text}, {changes:?}");
        };
        let (fraction, file) = ("val_fraction = 0.2", "data.val_file=v.csv");
        check(fraction, &[file], &["~data.val_fraction"]);
        check(fraction, &[file, "~data.val_fraction"], &[]);
        check(fraction, &["data.val_fraction=0.5"], &[]);
        check("folds = 3\nfold = 1", &[file], &["~data.folds", "~data.fold"]);
        check("val_file = \"v.csv\"\ntest_fraction = 0.1", &[file], &[]);
        let both = "val_fraction = 0.2\ntest_fraction = 0.1";
        check(both, &["data.test_file=u.csv"], &["~data.test_fraction"]);
        check(
            "val_fraction = 0.2\ngroup = \"g\"\nignore = [\"id\"]",
            &[file],
            &["~data.val_fraction", "~data.group", "data.ignore=[\"id\",\"g\"]"],
        );
        check(&format!("{both}\ngroup = \"g\""), &[file], &["~data.val_fraction"]);
    }

    #[test]
    fn a_key_that_changes_no_evaluation_has_a_reason() {
        let check = |change: &str, taken: bool| {
            assert_eq!(no_use_in_evaluations(key(change)).is_none(), taken, "{change}");
        };
        for change in ["data.val_file=x.csv", "train.precision=bf16", "validation.batch_size=7"] {
            check(change, true);
        }
        check("data.transforms.val=[{name=\"resize\", size=8}]", true);
        check("data.transforms.train[0].size=8", false);
        check("~optimizer.lr", false);
        check("train.epochs=3", false);
        check("validation.every=\"1 epoch\"", false);
        check("model.hidden=[3]", false);
        check("datas=1", true);
    }
}
