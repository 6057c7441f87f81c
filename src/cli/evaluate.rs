//! `ddprun eval [RUN] [key=value ...]`: metrics of a run's best checkpoint, re-evaluated; `ddprun
//! eval --weights FILE EXPERIMENT`: those of given weights.

use std::path::{self, Path, PathBuf};

use serde_json::{Value, json};

use crate::checkpoint::OpenCheckpoint;
use crate::cli::args::{EvalArgs, run_and_changes};
use crate::cli::{answer, evaluation_tables};
use crate::data;
use crate::engine::Split;
use crate::event::Event;
use crate::files;
use crate::kinds::Kinds;
use crate::metric::naive_forecast_warning;
use crate::plan::Plan;
use crate::record::text::metric;
use crate::record::{Context, line, progress_bar, to_stderr};
use crate::report;
use crate::runs::choose_checkpoint;
use crate::session::{EvaluationChanges, evaluation_of_run, evaluation_of_weights};
use crate::user_error::{ErrorPage, ExitCode};
use crate::worker::{self, Details, EvaluationResult};

/// Evaluates in this process alone; prints one metric a line, or JSON.
pub(crate) fn evaluate(args: &EvalArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    // It is meant from here, and looking for a run may lead elsewhere.
    let whole = |folder: &PathBuf| path::absolute(folder).unwrap_or_else(|_| folder.clone());
    let out = args.out.as_ref().map(whole);
    let out = out.as_deref();
    if let Some(weights) = &args.weights {
        let (experiment, changes) = run_and_changes(&args.words);
        let experiment = Path::new(experiment.unwrap_or_default());
        let plan = evaluation_of_weights(weights, experiment, changes, args.tta, kinds)?;
        let measured = measure(&plan, None, args, kinds)?;
        let head = format!("{}\n", weights.display());
        return print(out, &measured, &head, json!({ "weights": weights }));
    }
    let (run, changes) = run_and_changes(&args.words);
    let here = std::env::current_dir().unwrap_or_default();
    let chosen = choose_checkpoint(run, args.latest, args.strict)?;
    let (description, opened) = (chosen.run()?, &chosen.opened);
    let changes = EvaluationChanges { changes, tta: args.tta, here };
    let plan = evaluation_of_run(description, &changes, kinds)?;
    let measured = measure(&plan, Some(opened), args, kinds)?;
    let step = opened.state.step;
    print(out, &measured, &format!("step {step}\n"), json!({ "step": step }))
}

/// Evaluates under a progress bar. Prints files that cannot be read.
fn measure(
    plan: &Plan,
    opened: Option<&OpenCheckpoint>,
    args: &EvalArgs,
    kinds: &Kinds,
) -> Result<EvaluationResult, ErrorPage> {
    let parts = parts(args, plan)?;
    let bar = progress_bar("{prefix} {wide_bar} {pos}/{len} batches  {eta} left");
    let progress = |split: Split, done: usize, batches: usize| {
        bar.set_prefix(split.words());
        bar.set_length(batches as u64);
        bar.set_position(done as u64);
    };
    let measured = worker::evaluate(plan, opened, &parts, kinds, &progress);
    bar.finish_and_clear();
    let mut measured = measured.map_err(failed)?;
    for unreadable in measured.unreadable.drain(..) {
        if let Some(text) = line(&Event::Unreadable(unreadable), &Context::default()) {
            to_stderr(&text);
        }
    }
    Ok(measured)
}

/// The parts of the data to evaluate on.
fn parts(args: &EvalArgs, plan: &Plan) -> Result<Vec<Split>, ErrorPage> {
    match args.part.as_deref() {
        Some("test") if plan.data.n_test == 0 && worker::simulated(plan).is_none() => {
            let name = &plan.data.source.kind.name;
            let what = format!("this `{name}` has no part to test on");
            Err(ErrorPage::refused(
                what,
                "hold one out with `data.test_fraction`, or name its file or folder",
            ))
        }
        Some("test") => Ok(vec![Split::Test]),
        Some(_) => Ok(vec![Split::Val]),
        None => Ok(vec![Split::Val, Split::Test]),
    }
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
    found: &EvaluationResult,
    head: &str,
    mut value: Value,
) -> Result<ExitCode, ErrorPage> {
    let EvaluationResult { metrics, details, .. } = found;
    value["metrics"] = json!(metrics);
    value["details"] = json!(details);
    if let Some(folder) = out {
        save(folder, &value, details)?;
    }
    for split in ["val", "test"] {
        if let Some(what) = naive_forecast_warning(split, metrics) {
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
