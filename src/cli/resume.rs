//! `ddprun resume [RUN] [key=value ...]`: the stored experiment goes on from its newest checkpoint.

use std::path::{Path, PathBuf};

use crate::cli::args::{Launch, ResumeArgs, run_and_changes};
use crate::cli::find_run::find_sweep;
use crate::cli::prepare::{Origin, Prepared, refused, vocabulary};
use crate::cli::request::RunRequest;
use crate::cli::resumed::{MissingCheckpoints, ResumedRun};
use crate::cli::run_files::{OtherData, enter_run, stored_experiment};
use crate::cli::supervise::report;
use crate::cli::train::{launch as launch_run, role};
use crate::cli::{Refusal, to_stderr};
use crate::config::schema::PrecisionChoice;
use crate::config::{self, Change, Loaded};
use crate::kinds::Kinds;
use crate::launch::Role;
use crate::launch::exit_code as exit;
use crate::launch::rank_env::Foreign;
use crate::plan::{Bf16Instructions, Plan, Precision};
use crate::runs::{StoredPlan, StoredRun};

/// Continues a run. Changes that would alter what was already computed are refused by name.
pub(crate) fn resume(args: &ResumeArgs, kinds: &Kinds) -> Result<u8, Refusal> {
    let (run, changes) = run_and_changes(&args.words);
    if let Some(folder) = run.and_then(|run| find_sweep(Path::new(run))) {
        let page = format!(
            "error: `{}` is a sweep\n  do: start it again with the `ddprun sweep` command that \
             began it, or name one of its trials",
            folder.display()
        );
        return Err(Refusal::new(exit::REFUSED, page));
    }
    let (mut launch, mut role) = (args.launch.clone(), role()?);
    // They are meant from here, and the run may be elsewhere.
    launch.rendezvous.token_file = launch.rendezvous.token_file.take().map(absolute);
    if let Role::Foreign(Foreign { rendezvous: Some(endpoint), .. }) = &mut role {
        endpoint.token_file = absolute(std::mem::take(&mut endpoint.token_file));
    }
    // Each rank of a foreign launcher goes there; those that do not see the run are told of it by
    // the first.
    let entered = enter_run(run);
    let make = |origin: Origin<'_>| {
        let description = entered?;
        let prepared = prepare(&description, changes, origin, &launch, kinds)?;
        let data = if args.accept_changed_data { OtherData::Accepted } else { OtherData::Refused };
        let gone = if args.from_scratch {
            MissingCheckpoints::FromScratch
        } else {
            MissingCheckpoints::Refused
        };
        let resumed = ResumedRun { folders: description.run, data, gone };
        Ok(RunRequest::of(prepared, resumed))
    };
    report(launch_run(&launch, &role, make, kinds)?, kinds)
}

/// What a relative path means here.
fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

fn prepare(
    description: &StoredRun,
    changes: Vec<String>,
    origin: Origin<'_>,
    launch: &Launch,
    kinds: &Kinds,
) -> Result<Prepared, Refusal> {
    let before = load(description, &[], kinds)?;
    let changes: Vec<String> = changes.into_iter().chain(launch.changes()).collect();
    let mut now = load(description, &changes, kinds)?;
    let changed = config::refuse_unsafe(&before.experiment, &now.experiment);
    for change in changed.map_err(|changes| refusal(&changes))? {
        to_stderr(&format!("changed: {change}"));
    }
    if now.experiment.train.precision == PrecisionChoice::Amp {
        // What it stands for is a matter of the version; the run goes on as it began.
        now.experiment.train.precision = description.plan.precision().into();
    }
    now.pretrained = description.plan.pretrained_checkpoint();
    let prepared = Prepared::of(now, origin, Some(&description.plan.found()), kinds)?;
    if let Some(change) = other_bf16(&description.plan, &prepared.plan) {
        to_stderr(&change);
    }
    Ok(prepared)
}

/// Says that this processor multiplies bf16 numbers in another way than the run's, if it does.
fn other_bf16(before: &StoredPlan, now: &Plan) -> Option<String> {
    let way = |found: Option<Bf16Instructions>| {
        found.map_or("rounded fp32".to_owned(), |found| found.to_string())
    };
    let before = before.current()?;
    let is_meant =
        |plan: &Plan| plan.precision == Precision::Bf16 && !plan.distributed.is_on_gpus();
    let ways = [before, now].map(|plan| plan.bf16_instructions);
    (is_meant(before) && is_meant(now) && ways[0] != ways[1]).then(|| {
        let [before, now] = ways.map(way);
        format!("changed: bf16 by {now}, before by {before}: the last bits differ")
    })
}

fn load(description: &StoredRun, changes: &[String], kinds: &Kinds) -> Result<Loaded, Refusal> {
    let (path, text) = stored_experiment(&description.run)?;
    config::load_text(&path, &text, changes, &vocabulary(kinds)).map_err(refused)
}

fn refusal(changes: &[Change]) -> Refusal {
    let list: Vec<String> = changes.iter().map(|change| format!("\n  {change}")).collect();
    let page = format!(
        "error: these keys cannot change on resume:{}\n  \
         do: omit them, or start a new run; `{}` may change on a resume",
        list.concat(),
        config::SAFE_ON_RESUME.join("`, `")
    );
    Refusal::new(exit::REFUSED, page)
}
