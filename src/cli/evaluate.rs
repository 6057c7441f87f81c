//! `ddprun eval [RUN]`: metrics of a run's best checkpoint, re-evaluated.

use std::path::Path;

use crate::checkpoint::{self, Opened};
use crate::cli::args::EvalArgs;
use crate::cli::prepare::find_best_run;
use crate::cli::{Refusal, to_stdout};
use crate::model::Registry;
use crate::record::text::metric;
use crate::worker::{self, exit};

/// The best checkpoint in a run's folder of them; the newest if it is asked for or no best one is kept.
pub(crate) fn checkpoint_of(folder: &Path, latest: bool) -> Result<Opened, Refusal> {
    let best = folder.join("best");
    let newest = latest || !best.exists();
    let opened = if newest { checkpoint::newest(folder) } else { checkpoint::open(&best) };
    opened.map_err(|error| Refusal::of(exit::CHECKPOINT, &error, None))
}

/// Evaluates in this process alone; prints one metric a line, or JSON.
pub(crate) fn evaluate(args: &EvalArgs, registry: &Registry) -> Result<u8, Refusal> {
    let description = find_best_run(args.run.as_deref())?;
    let opened = checkpoint_of(&description.run.checkpoints, args.latest)?;
    let metrics = worker::evaluate(&description.plan, &opened, registry)
        .map_err(|error| Refusal::of(error.exit_code(), &error, error.help()))?;
    if args.json {
        let step = opened.state.step;
        let value = serde_json::json!({ "step": step, "metrics": metrics });
        return to_stdout(&format!("{value}\n"));
    }
    let lines: Vec<String> =
        metrics.iter().map(|(name, value)| format!("{name} {}\n", metric(name, *value))).collect();
    to_stdout(&format!("step {}\n{}", opened.state.step, lines.concat()))
}
