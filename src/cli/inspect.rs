//! Verbs that look and change nothing: `plan`, `report`, `checkpoint`.

use std::path::Path;

use crate::checkpoint;
use crate::cli::args::PlanArgs;
use crate::cli::prepare::{find_run, prepare};
use crate::cli::{Refusal, to_stderr, to_stdout};
use crate::files;
use crate::launch::Role;
use crate::model::Registry;
use crate::plan;
use crate::report;
use crate::worker::exit;

/// `ddprun plan x.toml`
pub(crate) fn plan(args: &PlanArgs, registry: &Registry) -> Result<u8, Refusal> {
    let path = args.run.experiment.clone().unwrap_or_default();
    let prepared = prepare(&path, &args.run.all_changes(), &Role::Parent, registry)?;
    if args.json {
        let value = plan::json(&prepared.plan, &prepared.loaded, &prepared.facts);
        let text = serde_json::to_string_pretty(&value).unwrap_or_default();
        return to_stdout(&(text + "\n"));
    }
    to_stdout(&plan::page(&prepared.plan, &prepared.loaded, &prepared.facts))
}

/// `ddprun report [RUN]`
pub(crate) fn report(run: Option<&str>) -> Result<u8, Refusal> {
    let description = find_run(run)?;
    let page = report::write(&description.run.logs, &description.plan.checkpoint)
        .map_err(|error| Refusal::of(exit::STORAGE, &error, None))?;
    to_stdout(&page)
}

/// `ddprun checkpoint verify PATH`: a line for each checkpoint; exit 7 if one is damaged.
pub(crate) fn verify(path: &Path) -> Result<u8, Refusal> {
    let checkpoints = if checkpoint::is_checkpoint(path) {
        vec![path.to_owned()]
    } else {
        let all = checkpoint::all(path).map_err(|error| unusable(&error))?;
        all.into_iter().map(|found| found.path).collect()
    };
    if checkpoints.is_empty() {
        let page = format!("error: there is no checkpoint in `{}`", path.display());
        return Err(Refusal::new(exit::CHECKPOINT, page));
    }
    let mut code = 0;
    for path in checkpoints {
        match checkpoint::open(&path) {
            Ok(_) => drop(to_stdout(&format!("{}: whole\n", path.display()))?),
            Err(error) => {
                to_stderr(&format!("error: {error}"));
                code = exit::CHECKPOINT;
            }
        }
    }
    Ok(code)
}

/// `ddprun checkpoint export CHECKPOINT FILE`: the checked weights as one safetensors file.
pub(crate) fn export(checkpoint: &Path, to: &Path) -> Result<u8, Refusal> {
    let opened = checkpoint::open(checkpoint).map_err(|error| unusable(&error))?;
    files::write_atomic(to, opened.model())
        .map_err(|error| Refusal::of(exit::STORAGE, &error, None))?;
    to_stderr(&format!("wrote `{}`", to.display()));
    Ok(0)
}

fn unusable(error: &checkpoint::Error) -> Refusal {
    Refusal::of(exit::CHECKPOINT, error, None)
}
