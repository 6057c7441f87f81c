//! `ddprun eval [RUN]`: metrics of a run's best checkpoint, re-evaluated; `ddprun eval --weights
//! FILE EXPERIMENT`: those of given weights.

use std::path::Path;

use serde_json::{Value, json};

use crate::checkpoint::{self, Opened};
use crate::cli::args::EvalArgs;
use crate::cli::prepare::{ALONE, generate, plan_of, prepare};
use crate::cli::run_files::{Description, enter_best_run};
use crate::cli::{Refusal, evaluation_tables, to_stdout};
use crate::event::Event;
use crate::files;
use crate::kinds::Kinds;
use crate::plan::{Plan, TestTimeAugmentation};
use crate::record::text::metric;
use crate::record::{Context, line, say};
use crate::report;
use crate::worker::{self, Details, Measured, exit};

/// The best checkpoint of a run; the newest if it is asked for or no best one is kept.
pub(crate) fn checkpoint_of(description: &Description, latest: bool) -> Result<Opened, Refusal> {
    let (folder, plan) = (&description.run.checkpoints, description.plan.checkpoint());
    let best = if latest { Ok(None) } else { checkpoint::best(folder, plan) };
    let opened = best.and_then(|best| best.map_or_else(|| checkpoint::newest(folder), Ok));
    opened.map_err(|error| Refusal::of(exit::CHECKPOINT, &error, None))
}

/// Evaluates in this process alone; prints one metric a line, or JSON.
pub(crate) fn evaluate(args: &EvalArgs, kinds: &Kinds) -> Result<u8, Refusal> {
    if let Some(weights) = &args.weights {
        let measured = of_weights(weights, args, kinds)?;
        let head = format!("{}\n", weights.display());
        return print(args, &measured, &head, json!({ "weights": weights }));
    }
    let description = enter_best_run(args.run.as_deref())?;
    let opened = checkpoint_of(&description, args.latest)?;
    let mut plan = plan_of(&description, kinds)?;
    augment(args, &mut plan)?;
    let measured = worker::evaluate(&plan, Some(&opened), kinds);
    let measured = told(measured.map_err(failed)?);
    let step = opened.state.step;
    print(args, &measured, &format!("step {step}\n"), json!({ "step": step }))
}

/// Metrics of the model of an experiment with these weights, all of which must fit. Nothing is left
/// behind but data that the experiment wants generated.
fn of_weights(weights: &Path, args: &EvalArgs, kinds: &Kinds) -> Result<Measured, Refusal> {
    let experiment = Path::new(args.run.as_deref().unwrap_or_default());
    let weights = toml::Value::from(weights.to_string_lossy().into_owned());
    let ours = [format!("model.pretrained={weights}"), "model.strict=true".to_owned()];
    let changes: Vec<String> = args.changes.iter().cloned().chain(ours).collect();
    let mut prepared = prepare(experiment, &changes, ALONE, kinds)?;
    generate(&prepared)?;
    // Averages are made in training.
    (prepared.plan.ema, prepared.plan.swa) = (None, None);
    augment(args, &mut prepared.plan)?;
    worker::evaluate(&prepared.plan, None, kinds).map(told).map_err(failed)
}

/// Has answers averaged as the command line asks.
fn augment(args: &EvalArgs, plan: &mut Plan) -> Result<(), Refusal> {
    let source = &plan.data.source;
    if args.tta.is_some() && !source.holds_images() {
        let (name, words) = (&source.kind.name, source.modality.words());
        let what = format!("error: `--tta hflip` mirrors images, but `{name}` holds {words}");
        return Err(Refusal::new(exit::REFUSED, what));
    }
    plan.test_time_augmentation = args.tta.as_ref().map(|_| TestTimeAugmentation::Hflip);
    Ok(())
}

/// What was measured, after it was said what could not be read.
fn told(mut measured: Measured) -> Measured {
    for unreadable in measured.unreadable.drain(..) {
        if let Some(text) = line(&Event::Unreadable(unreadable), &Context::default()) {
            say(&text);
        }
    }
    measured
}

#[expect(clippy::needless_pass_by_value, reason = "fits `map_err`")]
fn failed(error: worker::Error) -> Refusal {
    Refusal::of(error.exit_code(), &error, error.help())
}

/// One metric a line after `head`, and the tables; or all of it as JSON behind `value`.
fn print(args: &EvalArgs, found: &Measured, head: &str, mut value: Value) -> Result<u8, Refusal> {
    let Measured { metrics, details, .. } = found;
    value["metrics"] = json!(metrics);
    value["details"] = json!(details);
    if let Some(folder) = &args.out {
        save(folder, &value, details)?;
    }
    if args.json {
        return to_stdout(&format!("{value}\n"));
    }
    let lines = metrics.iter().map(|(name, value)| format!("{name} {}\n", metric(name, *value)));
    let tables = details.iter().map(evaluation_tables::of);
    to_stdout(&(head.to_owned() + &lines.chain(tables).collect::<String>()))
}

/// `eval.json`, and a picture for each part whose samples have one class.
fn save(folder: &Path, value: &Value, details: &[Details]) -> Result<(), Refusal> {
    let refused = |error: &dyn std::error::Error| Refusal::of(exit::STORAGE, error, None);
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
