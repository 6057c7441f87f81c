//! `ddprun eval [RUN] [key=value ...]`: metrics of a run's best checkpoint, re-evaluated; `ddprun
//! eval --weights FILE EXPERIMENT`: those of given weights.

use std::path::{self, Path, PathBuf};

use serde_json::{Value, json};

use crate::checkpoint::Opened;
use crate::cli::args::{EvalArgs, run_and_changes};
use crate::cli::{answer, evaluation_changes, evaluation_tables, progress_bar};
use crate::config::kind::Kind;
use crate::data::transform::CenterCrop;
use crate::data::{self, Fingerprint};
use crate::engine::Split;
use crate::event::Event;
use crate::files;
use crate::kinds::Kinds;
use crate::metric::worse_than_naive;
use crate::plan::{Plan, TestTimeAugmentation};
use crate::record::text::metric;
use crate::record::{Context, DATA, line, newest_of, to_stderr};
use crate::report;
use crate::runs::{StoredRun, choose_checkpoint};
use crate::session::{ALONE, generate, prepare, source_of};
use crate::user_error::{ErrorPage, ExitCode};
use crate::worker::{self, Details, Measured};

/// Evaluates in this process alone; prints one metric a line, or JSON.
pub(crate) fn evaluate(args: &EvalArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    // It is meant from here, and looking for a run may lead elsewhere.
    let whole = |folder: &PathBuf| path::absolute(folder).unwrap_or_else(|_| folder.clone());
    let out = args.out.as_ref().map(whole);
    let out = out.as_deref();
    if let Some(weights) = &args.weights {
        let measured = of_weights(weights, args, kinds)?;
        let head = format!("{}\n", weights.display());
        return print(out, &measured, &head, json!({ "weights": weights }));
    }
    let (run, changes) = run_and_changes(&args.words);
    let here = std::env::current_dir().unwrap_or_default();
    let chosen = choose_checkpoint(run, args.latest, args.strict)?;
    let (description, opened) = (chosen.run()?, &chosen.opened);
    let mut plan = if changes.is_empty() {
        description.plan.clone()
    } else {
        let draws = matches!(args.tta, Some(TestTimeAugmentation::Draws(_)));
        let asked = evaluation_changes::Asked { changes, draws, here };
        evaluation_changes::changed(description, &asked, kinds)?
    };
    augment(args, &mut plan)?;
    plan.data.notes.iter().for_each(|note| to_stderr(&format!("warning: {note}")));
    warn_of_other_data(description, &plan, kinds)?;
    let measured = told(measured(&plan, Some(opened), &parts(args, &plan)?, kinds)?);
    let step = opened.state.step;
    print(out, &measured, &format!("step {step}\n"), json!({ "step": step }))
}

/// Metrics of the model of an experiment with these weights, all of which must fit. Nothing is left
/// behind but data that the experiment wants generated.
fn of_weights(weights: &Path, args: &EvalArgs, kinds: &Kinds) -> Result<Measured, ErrorPage> {
    let (experiment, changes) = run_and_changes(&args.words);
    let experiment = Path::new(experiment.unwrap_or_default());
    let weights = toml::Value::from(weights.to_string_lossy().into_owned());
    let ours = [format!("model.pretrained={weights}"), "model.strict=true".to_owned()];
    let changes: Vec<String> = changes.into_iter().chain(ours).collect();
    let mut prepared = prepare(experiment, &changes, ALONE, kinds)?;
    generate(&prepared)?;
    // Averages are made in training.
    let plan = &mut prepared.plan;
    (plan.ema, plan.swa, plan.lookahead) = (None, None, None);
    augment(args, &mut prepared.plan)?;
    let parts = parts(args, &prepared.plan)?;
    measured(&prepared.plan, None, &parts, kinds).map(told)
}

/// What is measured, under a bar.
fn measured(
    plan: &Plan,
    opened: Option<&Opened>,
    parts: &[Split],
    kinds: &Kinds,
) -> Result<Measured, ErrorPage> {
    let bar = progress_bar("{prefix} {wide_bar} {pos}/{len} batches  {eta} left");
    let progress = |split: Split, done: usize, batches: usize| {
        bar.set_prefix(split.words());
        bar.set_length(batches as u64);
        bar.set_position(done as u64);
    };
    let measured = worker::evaluate(plan, opened, parts, kinds, &progress);
    bar.finish_and_clear();
    measured.map_err(failed)
}

/// The parts of the data to evaluate on.
fn parts(args: &EvalArgs, plan: &Plan) -> Result<Vec<Split>, ErrorPage> {
    match args.part.as_deref() {
        Some("test") if plan.data.n_test == 0 && worker::simulated(plan).is_none() => {
            let name = &plan.data.source.kind.name;
            let what = format!("error: this `{name}` has no part to test on");
            let help = "hold one out with `data.test_fraction`, or name its file or folder";
            Err(ErrorPage::new(ExitCode::Refused, format!("{what}\n  do: {help}")))
        }
        Some("test") => Ok(vec![Split::Test]),
        Some(_) => Ok(vec![Split::Val]),
        None => Ok(vec![Split::Val, Split::Test]),
    }
}

/// Has answers averaged as the command line asks.
fn augment(args: &EvalArgs, plan: &mut Plan) -> Result<(), ErrorPage> {
    let Some(how) = args.tta else { return Ok(()) };
    let source = &plan.data.source;
    let refuse = |what: String| Err(ErrorPage::new(ExitCode::Refused, what));
    if !source.holds_images() {
        let (name, words) = (&source.kind.name, source.modality.words());
        return refuse(format!("error: `--tta {how}` is for images, but `{name}` holds {words}"));
    }
    let has_crop = plan.data.val_transforms.iter().any(|choice| choice.name == CenterCrop::NAME);
    if how.crops() && !has_crop {
        let what = format!("error: `--tta {how}` needs a `center_crop` in `data.transforms.val`");
        let help = "use `--tta hflip`, which needs none";
        return refuse(format!("{what}, in whose place it crops\n  do: {help}"));
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

/// What was measured, after it was said what could not be read.
fn told(mut measured: Measured) -> Measured {
    for unreadable in measured.unreadable.drain(..) {
        if let Some(text) = line(&Event::Unreadable(unreadable), &Context::default()) {
            to_stderr(&text);
        }
    }
    measured
}

#[expect(clippy::needless_pass_by_value, reason = "fits `map_err`")]
fn failed(error: worker::Error) -> ErrorPage {
    let page = ErrorPage::from_error(&error);
    match &error {
        worker::Error::Data(data::Error::Changed { .. }) => {
            page.help("restore the original data, or train a new run on these")
        }
        _ => page,
    }
}

/// One metric a line after `head`, and the tables; or all of it as JSON behind `value`, which goes
/// to the folder `out`, too.
fn print(
    out: Option<&Path>,
    found: &Measured,
    head: &str,
    mut value: Value,
) -> Result<ExitCode, ErrorPage> {
    let Measured { metrics, details, .. } = found;
    value["metrics"] = json!(metrics);
    value["details"] = json!(details);
    if let Some(folder) = out {
        save(folder, &value, details)?;
    }
    for split in ["val", "test"] {
        if let Some(what) = worse_than_naive(split, metrics) {
            to_stderr(&format!("warning: {what}"));
        }
    }
    answer(
        "evaluation",
        || value,
        || {
            let line =
                |(name, value): (&String, &f64)| format!("{name} {}\n", metric(name, *value));
            let tables = details.iter().map(evaluation_tables::of);
            head.to_owned() + &metrics.iter().map(line).chain(tables).collect::<String>()
        },
    )
}

/// `eval.json`, and a picture for each part whose samples have one class.
fn save(folder: &Path, value: &Value, details: &[Details]) -> Result<(), ErrorPage> {
    let refused =
        |error: &(dyn std::error::Error + 'static)| ErrorPage::of(ExitCode::Storage, error);
    files::create_folder(folder).map_err(|error| refused(&error))?;
    let text = format!("{value:#}\n");
    files::write_atomic(&folder.join("eval.json"), text.as_bytes()).map_err(|e| refused(&e))?;
    for Details { split, classes, confusion, .. } in details {
        let names: Vec<&str> = classes.iter().map(|class| class.class.as_str()).collect();
        if !confusion.is_empty() {
            let drawn = report::confusion::write(split, &names, confusion, folder);
            drawn.map_err(|error| refused(&error))?;
        }
    }
    Ok(())
}
