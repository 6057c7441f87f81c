//! `ddprun try x.toml`: each part of a run once, in a temporary folder: two steps, an evaluation,
//! a save, a resume from it, and a prediction.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::checkpoint::OpenCheckpoint;
use crate::cli::answer;
use crate::cli::args::Run;
use crate::data;
use crate::doctor::Rehearsal;
use crate::kinds::Kinds;
use crate::plan::Interval;
use crate::predict::Predictor;
use crate::terminal::counted;
use crate::user_error::{ErrorPage, ExitCode};

/// Tries the experiment, and prints each part that works.
pub(crate) fn try_run(run: &Run, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let path = run.experiment.clone().unwrap_or_default();
    let mut rehearsal = Rehearsal::prepare(&path, run.all_changes(), kinds)?;
    let plan = rehearsal.plan.clone();
    let (name, global) = (&plan.name, plan.batch.global);
    let ranks = plan.world_size().get();
    let object = || json!({ "experiment": name, "ranks": ranks, "global_batch_size": global });
    answer("try", object, || {
        format!("{name} on {}, global batch {global}\n", counted(ranks.into(), "rank"))
    })?;
    let time = rehearsal.train()?;
    let steps = counted(plan.length.total_steps, "step");
    let validated = match plan.validate_every {
        Interval::Never => String::new(),
        _ => {
            format!(", validated on {}", counted(rehearsal.evaluated_samples() as u64, "sample"))
        }
    };
    print_part("train", &format!("{steps}{validated}, and saved"), time)?;
    let time = rehearsal.resume()?;
    let step = plan.length.total_steps;
    print_part("resume", &format!("from step {step}, and one step more"), time)?;
    let opened = rehearsal.checkpoint()?;
    let began = Instant::now();
    let predicted = match predict(&rehearsal, &opened, kinds)? {
        Some(rows) => counted(rows as u64, "row"),
        None => "such data have no predictions of files".to_owned(),
    };
    print_part("predict", &predicted, began.elapsed())?;
    answer("works", || json!({}), || "all of it works, and nothing is left behind\n".to_owned())
}

/// Prints `  train    2 steps, 1.2 s`.
fn print_part(part: &str, words: &str, time: Duration) -> Result<ExitCode, ErrorPage> {
    let object = || json!({ "part": part, "words": words, "seconds": time.as_secs_f64() });
    answer("tried", object, || format!("  {part:<8} {words}, {:.1} s\n", time.as_secs_f64()))
}

/// Rows of predictions; `None` for data that have none.
fn predict(
    rehearsal: &Rehearsal,
    opened: &OpenCheckpoint,
    kinds: &Kinds,
) -> Result<Option<usize>, ErrorPage> {
    let inputs = rehearsal.inputs()?;
    let plan = rehearsal.extended_plan();
    let source = kinds.data.build(&plan.data.source.kind).map_err(data::Error::from);
    let request =
        data::PredictionRequest { paths: &inputs, plan: &plan.data, transforms: &kinds.transforms };
    let has_none = source.and_then(|source| source.inputs(&request).map(drop));
    if inputs.is_empty() || matches!(has_none, Err(data::Error::NotPredicted { .. })) {
        return Ok(None);
    }
    let rows = Predictor::of(plan, opened, kinds)?.predict(&inputs)?;
    Ok(Some(rows.len()))
}
