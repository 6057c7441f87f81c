//! `ddprun eval [RUN]`: metrics of a run's best checkpoint, measured anew.

use crate::checkpoint;
use crate::cli::args::EvalArgs;
use crate::cli::prepare::find_run;
use crate::cli::{Refusal, to_stdout};
use crate::model::Registry;
use crate::worker::{self, exit};

/// Evaluates in this process alone; prints one metric a line, or JSON.
pub(crate) fn evaluate(args: &EvalArgs, registry: &Registry) -> Result<u8, Refusal> {
    let description = find_run(args.run.as_deref())?;
    let folder = &description.run.checkpoints;
    let best = folder.join("best");
    let newest = args.latest || !best.exists();
    let opened = if newest { checkpoint::newest(folder) } else { checkpoint::open(&best) };
    let opened = opened.map_err(|error| Refusal::of(exit::CHECKPOINT, &error, None))?;
    let metrics = worker::evaluate(&description.plan, &opened, registry)
        .map_err(|error| Refusal::of(error.exit_code(), &error, error.help()))?;
    if args.json {
        let step = opened.state.step;
        let value = serde_json::json!({ "step": step, "metrics": metrics });
        return to_stdout(&format!("{value}\n"));
    }
    let lines: Vec<String> =
        metrics.iter().map(|(metric, value)| format!("{metric} {value:.6}\n")).collect();
    to_stdout(&format!("step {}\n{}", opened.state.step, lines.concat()))
}
