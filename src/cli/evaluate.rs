//! `ddprun eval [RUN]`: metrics of a run's best checkpoint, measured anew.

use crate::checkpoint::{self, Opened};
use crate::cli::args::EvalArgs;
use crate::cli::prepare::find_run;
use crate::cli::{Refusal, to_stdout};
use crate::model::Registry;
use crate::plan::RunFolders;
use crate::worker::{self, exit};

/// The best checkpoint of a run; the newest if it is asked for or no best one is kept.
pub(crate) fn checkpoint_of(run: &RunFolders, latest: bool) -> Result<Opened, Refusal> {
    let folder = &run.checkpoints;
    let best = folder.join("best");
    let newest = latest || !best.exists();
    let opened = if newest { checkpoint::newest(folder) } else { checkpoint::open(&best) };
    opened.map_err(|error| Refusal::of(exit::CHECKPOINT, &error, None))
}

/// Evaluates in this process alone; prints one metric a line, or JSON.
pub(crate) fn evaluate(args: &EvalArgs, registry: &Registry) -> Result<u8, Refusal> {
    let description = find_run(args.run.as_deref())?;
    let opened = checkpoint_of(&description.run, args.latest)?;
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
